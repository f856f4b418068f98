//! `pg_filenode.map`: the files of the catalogs that a server must find before it can read any catalog.
//!
//! The rule: struct RelMapFile in src/backend/utils/cache/relmapper.c.

use std::path::Path;

// Oids of the catalogs, by which maps name them.
pub(super) const PG_TYPE: u32 = 1247;
pub(super) const PG_ATTRIBUTE: u32 = 1249;
pub(super) const PG_CLASS: u32 = 1259;

/// Object id and file number of each mapped catalog.
pub type FileMap = Vec<(u32, u32)>;

const MAGIC: u32 = 0x0059_2717;
/// Where the checksum lies, by the length of the file: 512 bytes until 15, 524 since 16.
const CHECKSUM_AT: [(usize, usize); 2] = [(512, 504), (524, 520)];

/// The map in `directory`; None if there is no whole one.
pub fn read(directory: &Path) -> Option<FileMap> {
    parse(&std::fs::read(directory.join("pg_filenode.map")).ok()?)
}

/// The file number that a map has for the catalog with this object id.
pub(super) fn file_of(map: &FileMap, catalog: u32) -> Option<u32> {
    map.iter().find(|(oid, _)| *oid == catalog).map(|(_, file_number)| *file_number)
}

/// None if the bytes are not a whole map.
pub fn parse(bytes: &[u8]) -> Option<FileMap> {
    let (_, checksum_at) = CHECKSUM_AT.into_iter().find(|(length, _)| *length == bytes.len())?;
    let number = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
    let count = number(4)? as usize;
    if number(0)? != MAGIC
        || count > (checksum_at - 8) / 8
        || number(checksum_at)? != crc_fast::crc32_iscsi(&bytes[..checksum_at])
    {
        return None;
    }
    (0..count).map(|entry| Some((number(8 + 8 * entry)?, number(12 + 8 * entry)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_maps_are_read() {
        for (length, checksum_at) in CHECKSUM_AT {
            let mut map = vec![0u8; length];
            for (at, number) in [(0, MAGIC), (4, 2), (8, 1259), (12, 16_384), (16, 1249), (20, 1249)] {
                map[at..at + 4].copy_from_slice(&number.to_le_bytes());
            }
            let sum = crc_fast::crc32_iscsi(&map[..checksum_at]);
            map[checksum_at..checksum_at + 4].copy_from_slice(&sum.to_le_bytes());
            assert_eq!(parse(&map), Some(vec![(1259, 16_384), (1249, 1249)]));
            assert_eq!(parse(&map[..length - 1]), None);
            for bit in 0..8 * checksum_at {
                let mut bad = map.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(parse(&bad), None, "bit {bit}");
            }
        }
    }
}
