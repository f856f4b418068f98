//! Pages of 8 KiB: their own numbers, their checksums, and which of them are in use.

use serde::Serialize;

use crate::checksum::{SECTOR_BYTES, SectorSum};

/// Bytes of a page.
pub const PAGE_BYTES: usize = 8192;
/// Pages of an extent.
pub const EXTENT_PAGES: usize = 8;
/// Bytes of an extent.
pub const EXTENT_BYTES: usize = PAGE_BYTES * EXTENT_PAGES;
/// Sectors of a page.
pub const PAGE_SECTORS: usize = PAGE_BYTES / SECTOR_BYTES;
/// Pages whose use one PFS page notes.
pub const PFS_INTERVAL_PAGES: u32 = 8088;

/// The bit of the header's flags that says: the page has a checksum.
const HAS_CHECKSUM: u16 = 0x0200;
/// The bit of the header's flags that says: the page has torn bits.
const HAS_TORN_BITS: u16 = 0x0100;
/// Where flags stand in the header, and where the checksum.
const FLAGS_AT: usize = 4;
const CHECKSUM_AT: usize = 60;
/// The bit in a PFS byte that says: the page is in use.
const PFS_ALLOCATED: u8 = 0x40;
/// Where PFS bytes begin in a PFS page.
const PFS_BYTES_AT: usize = 100;
/// The type of pages that a stripe is filled up with.
const TYPE_FILLER: u8 = 101;
/// The largest page type that databases have.
const TYPE_MAX: u8 = 20;

/// File and number of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct PageId {
    /// The database file.
    pub file_id: u16,
    /// The page in it.
    pub page: u32,
}

impl std::fmt::Display for PageId {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}:{}", self.file_id, self.page)
    }
}

/// The PFS page that notes the use of page `page`.
pub fn pfs_page(page: u32) -> u32 {
    if page < PFS_INTERVAL_PAGES { 1 } else { page - page % PFS_INTERVAL_PAGES }
}

/// Whether a page holds PFS bytes, by its number.
pub fn is_pfs_page(page: u32) -> bool {
    page == pfs_page(page)
}

/// What a page's own protection says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The checksum is right.
    Sound,
    /// All sectors carry the same torn bits.
    NotTorn,
    /// The page has neither checksum nor torn bits.
    Unprotected,
    /// Damaged, if the page is in use.
    Wrong(String),
    /// The content could not be read.
    Lost,
}

/// A page that is being put together from its sectors.
#[derive(Clone, Debug)]
pub struct PageCheck {
    sectors: usize,
    header: [u8; 96],
    sum: SectorSum,
    /// The low two bits of the last bytes of sectors 1 to 15, of a page with torn bits: others' sectors are not looked at,
    /// because they lie in the cache of the core that decoded them.
    signatures: [u8; PAGE_SECTORS - 1],
    is_zero: bool,
    is_lost: bool,
}

impl Default for PageCheck {
    fn default() -> Self {
        PageCheck {
            sectors: 0,
            header: [0; 96],
            sum: SectorSum::default(),
            signatures: [0; PAGE_SECTORS - 1],
            is_zero: true,
            is_lost: false,
        }
    }
}

impl PageCheck {
    /// Adds the next of 16 sectors, with its exclusive or.
    pub fn add(&mut self, bytes: &[u8], xor: u32, is_lost: bool) {
        let mut xor = xor;
        self.is_lost |= is_lost || bytes.len() != SECTOR_BYTES;
        if self.sectors == 0 {
            let length = bytes.len().min(self.header.len());
            self.header[..length].copy_from_slice(&bytes[..length]);
            // The checksum's own field counts as zero.
            xor ^= self.stored_sum();
        } else if self.flags() & HAS_TORN_BITS != 0
            && let (Some(slot), Some(last)) = (self.signatures.get_mut(self.sectors - 1), bytes.last())
        {
            *slot = last & 3;
        }
        if self.is_zero {
            self.is_zero = bytes.iter().all(|byte| *byte == 0);
        }
        self.sum.add(xor);
        self.sectors += 1;
    }

    /// Whether all sectors are there.
    pub fn is_whole(&self) -> bool {
        self.sectors == PAGE_SECTORS
    }

    /// Whether no byte is anything but zero.
    pub fn is_zero(&self) -> bool {
        self.is_zero
    }

    /// Whether the content could not be read.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// The page's number, as its header has it.
    pub fn id(&self) -> PageId {
        let page = u32::from_le_bytes([self.header[32], self.header[33], self.header[34], self.header[35]]);
        PageId { file_id: u16::from_le_bytes([self.header[36], self.header[37]]), page }
    }

    /// Whether header version and type are those of a page of a database.
    pub fn looks_like_a_page(&self) -> bool {
        !self.is_lost && self.header[0] == 1 && (1..=TYPE_MAX).contains(&self.header[1]) && self.id().file_id > 0
    }

    /// Whether the page only fills up a stripe.
    pub fn is_filler(&self) -> bool {
        self.header[0] == 1 && self.header[1] == TYPE_FILLER && self.id() == PageId::default()
    }

    fn flags(&self) -> u16 {
        u16::from_le_bytes([self.header[FLAGS_AT], self.header[FLAGS_AT + 1]])
    }

    fn stored_sum(&self) -> u32 {
        let at = CHECKSUM_AT;
        u32::from_le_bytes([self.header[at], self.header[at + 1], self.header[at + 2], self.header[at + 3]])
    }

    /// What checksum or torn bits say.
    pub fn verdict(&self) -> Verdict {
        let (flags, stored, sum) = (self.flags(), self.stored_sum(), self.sum.value());
        if self.is_lost {
            return Verdict::Lost;
        }
        if flags & HAS_CHECKSUM != 0 {
            if stored == sum {
                return Verdict::Sound;
            }
            return Verdict::Wrong(format!("page checksum is {stored:#010x}, the content has {sum:#010x}"));
        }
        if flags & HAS_TORN_BITS != 0 {
            let is_torn = self.signatures.iter().any(|signature| *signature != self.signatures[0]);
            return if is_torn {
                Verdict::Wrong("page is torn: its sectors differ in their torn bits".to_owned())
            } else {
                Verdict::NotTorn
            };
        }
        // A checksum that is right but for the flag: the flag itself was flipped.
        let without_flag = self.sum_with_flag();
        if stored != 0 && stored == without_flag {
            return Verdict::Wrong("page has a right checksum, but the flag that says so is off".to_owned());
        }
        Verdict::Unprotected
    }

    /// The sum as it would be with the checksum flag set: sixteen rotations lie behind the first sector.
    fn sum_with_flag(&self) -> u32 {
        let flag = u32::from(HAS_CHECKSUM).rotate_left((8 * (FLAGS_AT % 4)) as u32);
        self.sum.value() ^ flag.rotate_left(PAGE_SECTORS as u32 - 1)
    }
}

/// Which pages of an interval are in use: one bit a page.
pub type UseMap = Box<[u64; (PFS_INTERVAL_PAGES as usize).div_ceil(64)]>;

/// Reads the PFS bytes of a whole PFS page.
pub fn use_map(page: &[u8]) -> UseMap {
    let mut map = Box::new([0u64; (PFS_INTERVAL_PAGES as usize).div_ceil(64)]);
    for (index, byte) in page.iter().skip(PFS_BYTES_AT).take(PFS_INTERVAL_PAGES as usize).enumerate() {
        if byte & PFS_ALLOCATED != 0 {
            map[index / 64] |= 1 << (index % 64);
        }
    }
    map
}

/// Whether `map` says that `page` is in use.
pub fn is_used(map: &UseMap, page: u32) -> bool {
    let index = (page % PFS_INTERVAL_PAGES) as usize;
    map[index / 64] >> (index % 64) & 1 != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::sector_xor;

    fn check(page: &[u8]) -> PageCheck {
        let mut check = PageCheck::default();
        for sector in page.chunks(SECTOR_BYTES) {
            check.add(sector, sector_xor(sector), false);
        }
        assert!(check.is_whole());
        check
    }

    fn page_with_checksum() -> Vec<u8> {
        let mut page: Vec<u8> = (0..PAGE_BYTES).map(|at| (at * 7 / 3) as u8).collect();
        page[..64].fill(0);
        (page[0], page[1], page[5], page[32], page[36]) = (1, 1, 2, 42, 1);
        let sum = check(&page).sum.value();
        page[60..64].copy_from_slice(&sum.to_le_bytes());
        page
    }

    #[test]
    fn every_flipped_bit_of_a_page_is_seen() {
        let mut page = page_with_checksum();
        assert_eq!(check(&page).verdict(), Verdict::Sound);
        assert_eq!(check(&page).id(), PageId { file_id: 1, page: 42 });
        for bit in 0..PAGE_BYTES * 8 {
            page[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(check(&page).verdict(), Verdict::Wrong(_)), "bit {bit}");
            page[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn torn_bits_are_compared() {
        let mut page: Vec<u8> = (0..PAGE_BYTES).map(|at| (at / 5) as u8).collect();
        (1..PAGE_SECTORS).for_each(|sector| page[sector * 512 + 511] = page[sector * 512 + 511] & !3 | 2);
        (page[4], page[5]) = (0, 1);
        assert_eq!(check(&page).verdict(), Verdict::NotTorn);
        for sector in 1..PAGE_SECTORS {
            page[sector * 512 + 511] ^= 3;
            assert!(matches!(check(&page).verdict(), Verdict::Wrong(_)), "sector {sector}");
            page[sector * 512 + 511] ^= 3;
        }
    }

    #[test]
    fn use_of_pages_is_read_from_pfs() {
        assert_eq!([0, 1, 8087, 8088, 8089, 16_176].map(pfs_page), [1, 1, 1, 8088, 8088, 16_176]);
        assert!(is_pfs_page(1) && is_pfs_page(8088) && !is_pfs_page(0) && !is_pfs_page(8089));
        let mut page = vec![0; PAGE_BYTES];
        (page[100], page[107], page[100 + 8087]) = (0x44, 0x60, 0x40);
        let map = use_map(&page);
        assert!(is_used(&map, 0) && is_used(&map, 7) && is_used(&map, 8087) && !is_used(&map, 8));
        assert!(is_used(&map, 8088) && !is_used(&map, 8089));
    }
}
