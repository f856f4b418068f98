//! The tuples on a heap page of a catalog.
//!
//! The rules: src/include/storage/itemid.h, src/include/access/htup_details.h. A page may be torn or rubbish: tuples that
//! do not lie on it are passed over.

use super::super::page::PageHeader;

const PAGE_HEADER_BYTES: usize = 24;
const LINE_POINTER_BYTES: usize = 4;
/// A line pointer with storage that is not a redirection and not dead.
const LP_NORMAL: u32 = 1;
const XMAX_AT: usize = 4;
const INFOMASK_AT: usize = 20;
const DATA_OFFSET_AT: usize = 22;
const TUPLE_HEADER_BYTES: usize = 23;

const XMAX_LOCK_ONLY: u16 = 0x0080;
const XMIN_COMMITTED: u16 = 0x0100;
const XMIN_INVALID: u16 = 0x0200;
const XMIN_FROZEN: u16 = XMIN_COMMITTED | XMIN_INVALID;
const XMAX_COMMITTED: u16 = 0x0400;
const XMAX_INVALID: u16 = 0x0800;

/// How new a version of a row is, as far as the tuple itself says: which transactions committed is not looked up, because
/// only tuples of the last aborted ones could deceive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct RowVersion {
    /// Nobody has replaced or deleted it.
    is_latest: bool,
    /// Whoever replaced or deleted it is known to have committed.
    is_gone: bool,
    /// The transaction that made it; 0 for one that ended ages ago.
    made_by: u32,
}

impl RowVersion {
    /// Whether no transaction that begins now sees it; a row that is not known to be gone may be.
    pub(in super::super) fn is_gone(self) -> bool {
        self.is_gone
    }

    /// Whether this one counts and not `earlier`, which was found before it.
    pub(in super::super) fn supersedes(self, earlier: RowVersion) -> bool {
        if self.is_latest != earlier.is_latest {
            return self.is_latest;
        }
        match (self.made_by, earlier.made_by) {
            (_, 0) => true,
            (0, _) => false,
            // Transaction numbers go round.
            (made_by, earlier) => made_by.wrapping_sub(earlier).cast_signed() >= 0,
        }
    }
}

/// One tuple that no transaction is known to have taken back.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Tuple<'a> {
    /// Its columns.
    pub(in super::super) data: &'a [u8],
    pub(in super::super) version: RowVersion,
}

/// What a line pointer with storage leads to.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Item<'a> {
    Tuple(Tuple<'a>),
    /// A tuple of a transaction that did not commit.
    TakenBack,
    /// Nothing that lies on the page, or no tuple.
    Broken,
}

/// The tuples on `page`, in the order of their line pointers.
pub(in super::super) fn tuples(page: &[u8]) -> impl Iterator<Item = Tuple<'_>> {
    items(page).filter_map(|item| match item {
        Item::Tuple(tuple) => Some(tuple),
        Item::TakenBack | Item::Broken => None,
    })
}

/// What all line pointers with storage lead to.
pub(in super::super) fn items(page: &[u8]) -> impl Iterator<Item = Item<'_>> {
    let lower = PageHeader::parse(page).map_or(0, |header| usize::from(header.lower));
    let pointers = page.get(PAGE_HEADER_BYTES..lower).unwrap_or_default();
    pointers.chunks_exact(LINE_POINTER_BYTES).filter_map(move |pointer| {
        let pointer = u32_at(pointer, 0)?;
        let (offset, length) = ((pointer & 0x7FFF) as usize, (pointer >> 17) as usize);
        if pointer >> 15 & 3 != LP_NORMAL {
            return None;
        }
        Some(page.get(offset..offset + length).and_then(parse).unwrap_or(Item::Broken))
    })
}

fn parse(tuple: &[u8]) -> Option<Item<'_>> {
    let data_offset = usize::from(*tuple.get(DATA_OFFSET_AT)?);
    let (xmin, xmax, infomask) = (u32_at(tuple, 0)?, u32_at(tuple, XMAX_AT)?, u16_at(tuple, INFOMASK_AT)?);
    let data = tuple.get(data_offset..).filter(|_| data_offset >= TUPLE_HEADER_BYTES)?;
    let is_frozen = infomask & XMIN_FROZEN == XMIN_FROZEN;
    if infomask & XMIN_INVALID != 0 && !is_frozen {
        return Some(Item::TakenBack);
    }
    let is_latest = xmax == 0 || infomask & (XMAX_INVALID | XMAX_LOCK_ONLY) != 0;
    let version = RowVersion {
        is_latest,
        is_gone: !is_latest && infomask & XMAX_COMMITTED != 0,
        made_by: if is_frozen { 0 } else { xmin },
    };
    Some(Item::Tuple(Tuple { data, version }))
}

pub(in super::super) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..)?.first_chunk().map(|chunk| u32::from_le_bytes(*chunk))
}

pub(in super::super) fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes.get(offset..)?.first_chunk().map(|chunk| u16::from_le_bytes(*chunk))
}

#[cfg(test)]
pub(in super::super) mod tests {
    use super::*;

    /// A page with such tuples: transactions that made and deleted it, infomask, columns.
    pub(in super::super::super) fn page(size: usize, tuples: &[(u32, u32, u16, Vec<u8>)]) -> Vec<u8> {
        let mut page = vec![0u8; size];
        let mut upper = size;
        for (number, (xmin, xmax, infomask, data)) in tuples.iter().enumerate() {
            let length = 24 + data.len();
            upper = (upper - length) & !7;
            let tuple = &mut page[upper..upper + length];
            tuple[..4].copy_from_slice(&xmin.to_le_bytes());
            tuple[4..8].copy_from_slice(&xmax.to_le_bytes());
            tuple[20..22].copy_from_slice(&infomask.to_le_bytes());
            tuple[22] = 24;
            tuple[24..].copy_from_slice(data);
            let pointer = upper as u32 | 1 << 15 | (length as u32) << 17;
            page[24 + 4 * number..28 + 4 * number].copy_from_slice(&pointer.to_le_bytes());
        }
        let lower = 24 + 4 * tuples.len();
        assert!(lower <= upper, "too many tuples");
        let size_and_version = size as u16 | 4;
        for (at, half) in [(12, lower as u16), (14, upper as u16), (16, size as u16), (18, size_and_version)] {
            page[at..at + 2].copy_from_slice(&half.to_le_bytes());
        }
        page
    }

    #[test]
    fn tuples_come_with_their_columns_and_without_those_taken_back() {
        let mut page =
            page(8192, &[(9, 0, 0, vec![1; 5]), (9, 0, XMIN_INVALID, vec![2]), (9, 10, XMIN_FROZEN, vec![3])]);
        let found: Vec<_> = tuples(&page).map(|tuple| (tuple.data.to_vec(), tuple.version)).collect();
        let version = |is_latest, made_by| RowVersion { is_latest, is_gone: false, made_by };
        assert_eq!(found, [(vec![1; 5], version(true, 9)), (vec![3], version(false, 0))]);
        // Redirections, dead pointers, and what lies beyond the page.
        page[25] &= 0x7F;
        page[26] |= 1;
        page[32..36].copy_from_slice(&(8190u32 | 1 << 15 | 100 << 17).to_le_bytes());
        assert_eq!(tuples(&page).count(), 0);
        assert_eq!(tuples(&[0; 8192]).count() + tuples(&[]).count() + tuples(&[0xFF; 8192]).count(), 0);
    }

    #[test]
    fn later_versions_count() {
        let version = |is_latest, made_by| RowVersion { is_latest, is_gone: false, made_by };
        assert!(version(true, 5).supersedes(version(false, 9)));
        assert!(!version(false, 9).supersedes(version(true, 5)));
        assert!(version(true, 9).supersedes(version(true, 5)) && !version(true, 5).supersedes(version(true, 9)));
        assert!(version(true, 5).supersedes(version(true, 0)) && !version(true, 0).supersedes(version(true, 5)));
        assert!(version(true, 3).supersedes(version(true, u32::MAX - 3)), "numbers go round");
        assert!(version(true, 5).supersedes(version(true, 5)), "the later in the file");
    }
}
