//! What kind of content a relation's file holds, told from its name and its first page, without the server.
//!
//! An index page ends in a special space that its access method recognises its own pages by. The sizes and marks:
//! src/include/access/nbtree.h, hash.h, gist.h, spgist_private.h, ginblock.h, brin_page.h, and sequence.c. A heap page
//! has none. A TOAST table is a heap whose rows all are (oid, int4, bytea) with chunks as heaptoast.h cuts them.

use pagehaul_engine::source::postgres::page::PageHeader;
use pagehaul_engine::source::postgres::path_class::{Fork, PathClass};

/// A kind of content; each has its own compressibility.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StratumKind {
    /// Rows, and whatever has pages and is nothing else.
    Heap,
    /// B-tree indexes.
    Btree,
    /// Chunks of large values.
    Toast,
    /// GIN, GiST, SP-GiST, BRIN, hash and the like.
    OtherIndex,
    /// Free space and visibility maps.
    Map,
    /// Files without pages.
    NotPages,
}

impl StratumKind {
    /// All of them, in the order of reports.
    pub const ALL: [StratumKind; 6] = [
        StratumKind::Heap,
        StratumKind::Btree,
        StratumKind::Toast,
        StratumKind::OtherIndex,
        StratumKind::Map,
        StratumKind::NotPages,
    ];

    /// As reports call it.
    pub fn name(self) -> &'static str {
        match self {
            StratumKind::Heap => "heap",
            StratumKind::Btree => "btree",
            StratumKind::Toast => "toast",
            StratumKind::OtherIndex => "other index",
            StratumKind::Map => "map",
            StratumKind::NotPages => "not pages",
        }
    }
}

/// The kind that a file's name alone decides; None for main forks, whose pages must be looked at.
pub fn kind_of_class(class: PathClass) -> Option<StratumKind> {
    match class {
        PathClass::Other => Some(StratumKind::NotPages),
        PathClass::Relation { fork: Fork::Fsm | Fork::Vm, .. } => Some(StratumKind::Map),
        PathClass::Relation { fork: Fork::Main | Fork::Init, .. } => None,
    }
}

/// Marks in the last two bytes of the special space.
const HASH_PAGE_ID: u16 = 0xFF80;
const GIST_PAGE_ID: u16 = 0xFF81;
/// The first four bytes of a sequence's special space of 8.
const SEQUENCE_MAGIC: u32 = 0x1717;

/// The kind of a main fork by one of its pages; a page that says nothing (all zeros, torn) counts as heap.
pub fn kind_of_page(page: &[u8]) -> StratumKind {
    let Some(header) = PageHeader::parse(page) else { return StratumKind::Heap };
    let special = usize::from(header.special);
    if header.upper == 0 || special == 0 || special > page.len() {
        return StratumKind::Heap;
    }
    let area = &page[special..];
    match area.len() {
        0 if is_toast(page, &header) => StratumKind::Toast,
        0 => StratumKind::Heap,
        16 if matches!(half_at(area, 14), HASH_PAGE_ID | GIST_PAGE_ID) => StratumKind::OtherIndex,
        16 => StratumKind::Btree,
        8 if word_at(area, 0) == SEQUENCE_MAGIC => StratumKind::Heap,
        _ => StratumKind::OtherIndex,
    }
}

/// Bytes of a tuple's header without null bitmap, aligned (htup_details.h).
const TUPLE_HEADER_BYTES: usize = 24;
/// t_infomask's mark of a row with nulls, and t_infomask2's bits for the number of attributes.
const HAS_NULL: u16 = 0x0001;
const ATTRIBUTE_COUNT_BITS: u16 = 0x07FF;
/// Most chunks of one value: 1 GiB in pieces of 1996 bytes, rounded up.
const CHUNK_NUMBER_MAX: u32 = 600_000;
/// Rows of (int, int, text) look alike; chunks are longer than what such rows usually hold.
const CHUNK_BYTES_MEAN_MIN: usize = 256;

/// Whether all rows of a heap page are chunks of a TOAST table.
fn is_toast(page: &[u8], header: &PageHeader) -> bool {
    let items = usize::from(header.lower).saturating_sub(24).min(page.len() - 24) / 4;
    let (mut chunks, mut bytes) = (0, 0);
    for item in 0..items {
        // An item pointer: 15 bits offset, 2 bits state (1 is in use), 15 bits length (itemid.h).
        let pointer = word_at(page, 24 + 4 * item);
        let (start, state, length) = ((pointer & 0x7FFF) as usize, pointer >> 15 & 3, (pointer >> 17) as usize);
        if state != 1 {
            continue;
        }
        let Some(tuple) = page.get(start..start + length) else { return false };
        let Some(chunk_bytes) = chunk_bytes(tuple) else { return false };
        chunks += 1;
        bytes += chunk_bytes;
    }
    chunks > 0 && bytes / chunks >= CHUNK_BYTES_MEAN_MIN
}

/// Bytes of the chunk in a row of a TOAST table; None if it is no such row.
fn chunk_bytes(tuple: &[u8]) -> Option<usize> {
    let data = tuple.get(TUPLE_HEADER_BYTES..)?;
    let (attributes, flags, header_bytes) = (half_at(tuple, 18) & ATTRIBUTE_COUNT_BITS, half_at(tuple, 20), tuple[22]);
    let is_row = attributes == 3 && flags & HAS_NULL == 0 && usize::from(header_bytes) == TUPLE_HEADER_BYTES;
    if !is_row || data.len() < 9 || word_at(data, 4) > CHUNK_NUMBER_MAX {
        return None;
    }
    // A varlena with one byte of header (odd) or four (the two low bits clear); the length counts its header.
    let value = &data[8..];
    let length = match value[0] & 1 {
        1 => usize::from(value[0] >> 1),
        _ if value.len() >= 4 && value[0] & 3 == 0 => (word_at(value, 0) >> 2) as usize,
        _ => return None,
    };
    (length == value.len()).then_some(length)
}

fn half_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes([bytes[offset], bytes[offset + 1]])
}

fn word_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from(half_at(bytes, offset)) | u32::from(half_at(bytes, offset + 2)) << 16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(special: &[u8]) -> Vec<u8> {
        let mut page = vec![0u8; 8192];
        let start = (8192 - special.len()) as u16;
        for (offset, value) in [(12, 24u16), (14, start), (16, start), (18, 8192 + 4)] {
            page[offset..offset + 2].copy_from_slice(&value.to_le_bytes());
        }
        page[8192 - special.len()..].copy_from_slice(special);
        page
    }

    fn add_row(page: &mut [u8], attributes: u16, data: &[u8]) {
        let half = |page: &[u8], offset| half_at(page, offset);
        let (lower, upper) = (half(page, 12), half(page, 14));
        let length = 24 + data.len();
        let start = (usize::from(upper) - length) & !7;
        page[start + 18..start + 20].copy_from_slice(&attributes.to_le_bytes());
        page[start + 22] = 24;
        page[start + 24..start + length].copy_from_slice(data);
        let pointer = start as u32 | 1 << 15 | (length as u32) << 17;
        page[usize::from(lower)..usize::from(lower) + 4].copy_from_slice(&pointer.to_le_bytes());
        page[12..14].copy_from_slice(&(lower + 4).to_le_bytes());
        page[14..16].copy_from_slice(&(start as u16).to_le_bytes());
    }

    fn chunk(number: u32, bytes: usize) -> Vec<u8> {
        let mut data = 16_400u32.to_le_bytes().to_vec();
        data.extend(number.to_le_bytes());
        data.extend((((bytes + 4) as u32) << 2).to_le_bytes());
        data.resize(data.len() + bytes, 7);
        data
    }

    #[test]
    fn special_spaces_tell_the_access_method() {
        let mut mark = [0u8; 16];
        assert_eq!(kind_of_page(&page(&mark)), StratumKind::Btree);
        for id in [HASH_PAGE_ID, GIST_PAGE_ID] {
            mark[14..].copy_from_slice(&id.to_le_bytes());
            assert_eq!(kind_of_page(&page(&mark)), StratumKind::OtherIndex);
        }
        let (gin, brin, spgist) =
            ([0, 0, 0, 0, 0, 0, 8, 0], [0, 0, 0, 0, 0, 0, 0x93, 0xF0], [0, 0, 0, 0, 0, 0, 0x82, 0xFF]);
        for special in [gin, brin, spgist] {
            assert_eq!(kind_of_page(&page(&special)), StratumKind::OtherIndex);
        }
        assert_eq!(kind_of_page(&page(&[0x17, 0x17, 0, 0, 0, 0, 0, 0])), StratumKind::Heap);
        assert_eq!(kind_of_page(&page(&[])), StratumKind::Heap);
        assert_eq!(kind_of_page(&[0u8; 8192]), StratumKind::Heap);
        assert_eq!(kind_of_page(&[]), StratumKind::Heap);
    }

    #[test]
    fn toast_is_told_by_its_rows() {
        let mut toast = page(&[]);
        for number in 0..3 {
            add_row(&mut toast, 3, &chunk(number, 1996));
        }
        assert_eq!(kind_of_page(&toast), StratumKind::Toast);
        let mut short = page(&[]);
        add_row(&mut short, 3, &chunk(0, 20));
        assert_eq!(kind_of_page(&short), StratumKind::Heap, "an ordinary (int, int, text)");
        let mut wide = page(&[]);
        add_row(&mut wide, 4, &chunk(0, 1996));
        assert_eq!(kind_of_page(&wide), StratumKind::Heap);
        let mut cut = chunk(0, 1996);
        cut.truncate(1000);
        let mut odd = page(&[]);
        add_row(&mut odd, 3, &cut);
        assert_eq!(kind_of_page(&odd), StratumKind::Heap, "a length that does not fit");
    }

    #[test]
    fn any_bytes_at_all_have_a_kind() {
        let mut bytes = vec![0u8; 8192];
        for seed in 0..2000 {
            crate::threads::fill_random(&mut bytes, seed);
            bytes[16..18].copy_from_slice(&8192u16.to_le_bytes());
            kind_of_page(&bytes);
            kind_of_page(&bytes[..seed as usize % 60]);
        }
    }
}
