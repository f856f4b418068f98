//! Data pages: their checksum, their header, and the judgement whether one is what it should be.
//!
//! The rules: src/include/storage/bufpage.h (header), src/include/storage/checksum_impl.h (algorithm) and
//! PageIsVerified in src/backend/storage/page/bufpage.c.

pub use pagehaul_page::page_checksum;

use crate::terms::Lsn;

/// Size of the page header.
const HEADER_SIZE_BYTES: usize = 24;
const CHECKSUM_OFFSET: usize = 8;
/// All flag bits that exist.
const FLAG_BITS: u16 = 0x0007;
/// The layout version of pages since 8.3.
const LAYOUT_VERSION: u16 = 4;
/// Special space starts at a multiple of this.
const ALIGNMENT: u16 = 8;

/// The fields of a page header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageHeader {
    /// End of the last WAL record that changed the page.
    pub lsn: Lsn,
    /// The stored checksum; 0 where the cluster has none.
    pub checksum: u16,
    /// Flag bits.
    pub flags: u16,
    /// End of the item pointers.
    pub lower: u16,
    /// Start of the items; 0 on a page that was never used.
    pub upper: u16,
    /// Start of the special space.
    pub special: u16,
    /// Page size and layout version in one number.
    pub size_and_version: u16,
}

impl PageHeader {
    /// Reads the header; none if `page` is too short for one.
    pub fn parse(page: &[u8]) -> Option<Self> {
        let header: &[u8; HEADER_SIZE_BYTES] = page.first_chunk()?;
        let half = |offset: usize| u16::from_le_bytes([header[offset], header[offset + 1]]);
        // Two 32-bit halves, the high one first, each in machine order.
        let word = |offset: usize| u64::from(half(offset)) | u64::from(half(offset + 2)) << 16;
        Some(PageHeader {
            lsn: Lsn(word(0) << 32 | word(4)),
            checksum: half(CHECKSUM_OFFSET),
            flags: half(10),
            lower: half(12),
            upper: half(14),
            special: half(16),
            size_and_version: half(18),
        })
    }

    /// Whether the fields fit each other on a page of `block_size_bytes`.
    pub(super) fn is_sane(&self, block_size_bytes: usize) -> bool {
        self.flags & !FLAG_BITS == 0
            && usize::from(self.lower) >= HEADER_SIZE_BYTES
            && self.lower <= self.upper
            && self.upper <= self.special
            && usize::from(self.special) <= block_size_bytes
            && self.special.is_multiple_of(ALIGNMENT)
            && usize::from(self.size_and_version & 0xFF00) == block_size_bytes
            && self.size_and_version & 0x00FF == LAYOUT_VERSION
    }
}

/// What a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageVerdict {
    /// As it should be.
    Good {
        /// Its LSN.
        lsn: Lsn,
    },
    /// All zeros: allocated and never written, or lost; only the caller can know.
    Zero,
    /// Torn by a concurrent write, or bad: read it again, several times, before raising an alarm.
    Suspect(SuspectReason),
}

/// What is wrong with a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuspectReason {
    /// The stored checksum is not that of the content at this place.
    ChecksumMismatch {
        /// Computed from the content.
        expected: u16,
        /// Stored in the page.
        found: u16,
    },
    /// The LSN lies beyond the end of WAL, where no change can come from.
    FutureLsn {
        /// The page's LSN.
        lsn: Lsn,
    },
    /// The header's fields contradict each other, or the page is not a whole one.
    BadHeader,
}

impl std::fmt::Display for SuspectReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SuspectReason::ChecksumMismatch { expected, found } => {
                write!(f, "checksum {found:04X} where {expected:04X} is right")
            }
            SuspectReason::FutureLsn { lsn } => write!(f, "LSN {lsn} beyond the end of WAL"),
            SuspectReason::BadHeader => f.write_str("invalid page header"),
        }
    }
}

/// The LSN in the first eight bytes of a page: where WAL last changed it.
pub fn page_lsn(page: &[u8]) -> Lsn {
    let half = |at: usize| page.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    Lsn(u64::from(half(0)) << 32 | u64::from(half(4)))
}

/// Judges pages of one cluster; pure, for any number of readers at once.
#[derive(Clone, Copy, Debug)]
pub struct PageJudge {
    block_size_bytes: usize,
    data_checksums: bool,
    start_lsn: Lsn,
}

impl PageJudge {
    /// For a cluster with pages of `block_size_bytes`; `start_lsn` is where the backup began.
    pub fn new(block_size_bytes: u32, data_checksums: bool, start_lsn: Lsn) -> Self {
        PageJudge { block_size_bytes: block_size_bytes as usize, data_checksums, start_lsn }
    }

    /// What `page` is, as block `block_number` of its relation (segment number x blocks per segment + place in file).
    ///
    /// `lsn_limit` is a recent end of WAL, taken after or not long before the read; on `FutureLsn` take a new one and
    /// ask again. The reference tool judges neither pages changed since the start nor LSNs, so it misses a flipped bit
    /// next to a damaged LSN.
    pub fn judge(&self, page: &[u8], block_number: u32, lsn_limit: Lsn) -> PageVerdict {
        let header = match PageHeader::parse(page) {
            Some(header) if page.len() == self.block_size_bytes => header,
            _ => return PageVerdict::Suspect(SuspectReason::BadHeader),
        };
        if header.upper == 0 && is_zero(page) {
            return PageVerdict::Zero;
        }
        if self.data_checksums && header.upper != 0 {
            let expected = page_checksum(page, block_number);
            if expected != header.checksum {
                return PageVerdict::Suspect(SuspectReason::ChecksumMismatch { expected, found: header.checksum });
            }
        }
        if !header.is_sane(self.block_size_bytes) {
            return PageVerdict::Suspect(SuspectReason::BadHeader);
        }
        if header.lsn > lsn_limit {
            return PageVerdict::Suspect(SuspectReason::FutureLsn { lsn: header.lsn });
        }
        PageVerdict::Good { lsn: header.lsn }
    }

    /// Whether a page with this LSN was changed since the backup began, so that its full image is in the backup's WAL.
    pub fn is_rewritten_by_wal(&self, lsn: Lsn) -> bool {
        lsn >= self.start_lsn
    }
}

fn is_zero(page: &[u8]) -> bool {
    page.iter().all(|byte| *byte == 0)
}

/// What the visibility map says of one heap block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VisibilityBits {
    /// Every row is visible to everybody; such a page cannot be all zeros.
    pub all_visible: bool,
    /// And none needs freezing.
    pub all_frozen: bool,
    /// The LSN of the map's page: up to when the bits are known to be true.
    pub map_lsn: Lsn,
}

/// The bits of heap block `heap_block` in `vm_fork`, the content of the relation's `_vm` fork (all segments joined);
/// none if the map does not reach that far.
///
/// The rule: HEAPBLK_TO_MAPBYTE in src/backend/access/heap/visibilitymap.c: two bits a block, four blocks a byte.
pub fn visibility_bits(vm_fork: &[u8], block_size_bytes: u32, heap_block: u32) -> Option<VisibilityBits> {
    let block_size = block_size_bytes as usize;
    let blocks_per_page = block_size.checked_sub(HEADER_SIZE_BYTES)?.checked_mul(4)?;
    let heap_block = heap_block as usize;
    let map_page = heap_block.checked_div(blocks_per_page)?;
    let page = vm_fork.get(map_page.checked_mul(block_size)?..)?.get(..block_size)?;
    let position = heap_block % blocks_per_page;
    let bits = page[HEADER_SIZE_BYTES + position / 4] >> (position % 4 * 2);
    let map_lsn = PageHeader::parse(page)?.lsn;
    Some(VisibilityBits { all_visible: bits & 1 != 0, all_frozen: bits & 2 != 0, map_lsn })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Lsn = Lsn(0x5_0000_0000);

    /// An empty, valid page with a right checksum as block `block_number`.
    fn empty_page(block_number: u32, lsn: Lsn) -> Vec<u8> {
        let mut page = vec![0u8; 8192];
        page[0..4].copy_from_slice(&((lsn.0 >> 32) as u32).to_le_bytes());
        page[4..8].copy_from_slice(&(lsn.0 as u32).to_le_bytes());
        for (offset, value) in [(12, 24u16), (14, 8192), (16, 8192), (18, 8192 + 4)] {
            page[offset..offset + 2].copy_from_slice(&value.to_le_bytes());
        }
        let checksum = page_checksum(&page, block_number);
        page[8..10].copy_from_slice(&checksum.to_le_bytes());
        page
    }

    fn judge() -> PageJudge {
        PageJudge::new(8192, true, Lsn(0x100))
    }

    #[test]
    fn good_zero_and_swapped_pages() {
        let page = empty_page(7, Lsn(0x1_0000_0010));
        assert_eq!(judge().judge(&page, 7, LIMIT), PageVerdict::Good { lsn: Lsn(0x1_0000_0010) });
        assert!(matches!(judge().judge(&page, 8, LIMIT), PageVerdict::Suspect(SuspectReason::ChecksumMismatch { .. })));
        assert_eq!(judge().judge(&[0; 8192], 7, LIMIT), PageVerdict::Zero);
        assert_eq!(judge().judge(&page[..8191], 7, LIMIT), PageVerdict::Suspect(SuspectReason::BadHeader));
        assert_eq!(judge().judge(&[], 7, LIMIT), PageVerdict::Suspect(SuspectReason::BadHeader));
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let page = empty_page(7, Lsn(0x1_0000_0010));
        for bit in (0..8192 * 8).step_by(37).chain(0..24 * 8) {
            let mut flipped = page.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(judge().judge(&flipped, 7, LIMIT), PageVerdict::Suspect(_)), "bit {bit}");
        }
    }

    #[test]
    fn lsns_of_the_future_and_half_zeroed_pages_are_suspects() {
        let future = Lsn(LIMIT.0 + 8);
        let page = empty_page(7, future);
        let suspect = PageVerdict::Suspect(SuspectReason::FutureLsn { lsn: future });
        assert_eq!(judge().judge(&page, 7, LIMIT), suspect);
        assert_eq!(judge().judge(&page, 7, future), PageVerdict::Good { lsn: future });
        let mut half = vec![0u8; 8192];
        half[5000] = 1;
        assert_eq!(judge().judge(&half, 7, LIMIT), PageVerdict::Suspect(SuspectReason::BadHeader));
        let without_checksums = PageJudge::new(8192, false, Lsn(0x100));
        assert!(without_checksums.is_rewritten_by_wal(Lsn(0x100)) && !without_checksums.is_rewritten_by_wal(Lsn(0xFF)));
        assert_eq!(without_checksums.judge(&page, 9, future), PageVerdict::Good { lsn: future });
    }

    #[test]
    fn visibility_bits_are_found() {
        let mut map = empty_page(0, Lsn(0x99));
        map.extend_from_slice(&empty_page(1, Lsn(0x77)));
        map[24 + 1] = 0b0000_0100; // Block 5: all-visible.
        let blocks_per_page = (8192 - 24) * 4;
        map[8192 + 24] = 0b0000_0011;
        let five = visibility_bits(&map, 8192, 5).unwrap();
        assert_eq!(five, VisibilityBits { all_visible: true, all_frozen: false, map_lsn: Lsn(0x99) });
        let next = visibility_bits(&map, 8192, blocks_per_page).unwrap();
        assert_eq!(next, VisibilityBits { all_visible: true, all_frozen: true, map_lsn: Lsn(0x77) });
        assert_eq!(visibility_bits(&map, 8192, 2 * blocks_per_page), None);
        assert_eq!(visibility_bits(&map, 0, 0), None);
    }
}
