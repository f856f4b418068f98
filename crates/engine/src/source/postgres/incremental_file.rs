//! The head of an `INCREMENTAL.name` file, as PostgreSQL 17 and later send a relation's file of which they know what has
//! changed: which blocks follow, and how much of the file an earlier backup has.
//!
//! The rules: src/backend/backup/basebackup_incremental.c (what is sent), src/bin/pg_combinebackup/reconstruct.c (what
//! it means).

use std::ops::Range;

use super::path_class::{Fork, PathClass, classify};
use crate::error::{Error, ErrorKind, Result};

const MAGIC: u32 = 0xd3ae_1f0d;
const PREFIX: &[u8] = b"INCREMENTAL.";
/// Magic, number of blocks, truncation block length.
pub const FIXED_BYTES: usize = 12;

/// The start of a head, from which its size follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedHead {
    block_count: u32,
    shared_blocks: u32,
}

/// A whole head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IncrementalHead {
    /// Blocks before this one that are not sent are those of the earlier backup; others are zeros.
    pub shared_blocks: u32,
    /// The blocks that follow, as ranges, in order and with gaps between them.
    pub ranges: Vec<Range<u32>>,
}

/// The path that `path` is an incremental file of; None if its name is that of no such file.
pub fn original_path(path: &[u8]) -> Option<Vec<u8>> {
    let name = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let rest = path[name..].strip_prefix(PREFIX)?;
    let original = [&path[..name], rest].concat();
    matches!(classify(&original), PathClass::Relation { .. }).then_some(original)
}

/// Whether a server is believed when it says what has changed of this file. Free space maps are not in WAL, and records
/// that clear bits of a visibility map do not name its pages: WAL summaries do not know of them.
pub fn is_followed_by_wal(path: &[u8]) -> bool {
    matches!(classify(path), PathClass::Relation { fork: Fork::Main, .. })
}

impl FixedHead {
    /// Reads the first bytes of a file that has at most `blocks_max` blocks.
    ///
    /// # Errors
    /// `Source` if they are not the start of an incremental file.
    pub fn parse(bytes: &[u8; FIXED_BYTES], blocks_max: u32) -> Result<Self> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if word(0) != MAGIC {
            return Err(refuse("it does not start with the magic number"));
        }
        if word(4) > blocks_max {
            return Err(refuse(&format!("it has {} blocks, and a file has at most {blocks_max}", word(4))));
        }
        // The first servers that had this counted blocks of later segments, too.
        Ok(FixedHead { block_count: word(4), shared_blocks: word(8).min(blocks_max) })
    }

    /// Bytes of the block numbers and of what fills them up to a whole page: they follow at once.
    pub fn rest_bytes(&self, page_size_bytes: u32) -> usize {
        let plain = FIXED_BYTES + 4 * self.block_count as usize;
        let whole = if self.block_count > 0 { plain.next_multiple_of(page_size_bytes as usize) } else { plain };
        whole - FIXED_BYTES
    }

    /// Bytes of the blocks, which follow the head.
    pub fn content_bytes(&self, page_size_bytes: u32) -> u64 {
        u64::from(self.block_count) * u64::from(page_size_bytes)
    }

    /// Reads the block numbers from `rest`, of a file that has at most `blocks_max` blocks.
    ///
    /// # Errors
    /// `Source` if they do not rise, or are those of another file.
    pub fn with_blocks(self, rest: &[u8], blocks_max: u32) -> Result<IncrementalHead> {
        let mut ranges: Vec<Range<u32>> = Vec::new();
        let numbers = rest.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
        for block in numbers.take(self.block_count as usize) {
            let after = ranges.last().map_or(0, |range| range.end);
            if block < after || block >= blocks_max {
                return Err(refuse(&format!("block {block} is out of order")));
            }
            match ranges.last_mut() {
                Some(last) if last.end == block => last.end += 1,
                _ => ranges.push(block..block + 1),
            }
        }
        Ok(IncrementalHead { shared_blocks: self.shared_blocks, ranges })
    }
}

impl IncrementalHead {
    /// How many blocks the whole file has.
    pub fn total_blocks(&self) -> u32 {
        self.ranges.last().map_or(0, |range| range.end).max(self.shared_blocks)
    }
}

fn refuse(cause: &str) -> Error {
    Error::new(ErrorKind::Source, "read an incremental file", cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(magic: u32, shared: u32, blocks: &[u32]) -> Vec<u8> {
        let head = [magic, blocks.len() as u32, shared];
        let mut bytes: Vec<u8> = head.iter().chain(blocks).flat_map(|word| word.to_le_bytes()).collect();
        if !blocks.is_empty() {
            bytes.resize(bytes.len().next_multiple_of(8192), 0);
        }
        bytes
    }

    fn read(bytes: &[u8]) -> Result<IncrementalHead> {
        let (fixed, rest) = bytes.split_first_chunk::<FIXED_BYTES>().unwrap();
        let fixed = FixedHead::parse(fixed, 5000)?;
        assert_eq!(fixed.rest_bytes(8192), rest.len());
        fixed.with_blocks(rest, 5000)
    }

    #[test]
    fn heads_are_read() {
        let head = read(&file(MAGIC, 9, &[0, 1, 2, 7, 12])).unwrap();
        assert_eq!((head.ranges.clone(), head.total_blocks()), (vec![0..3, 7..8, 12..13], 13));
        let nothing = read(&file(MAGIC, 9, &[])).unwrap();
        assert_eq!((nothing.ranges.clone(), nothing.total_blocks()), (Vec::new(), 9));
        let many: Vec<u32> = (0..4000).collect();
        assert_eq!(read(&file(MAGIC, u32::MAX, &many)).unwrap().shared_blocks, 5000, "a later segment was cut");
        assert_eq!(read(&file(MAGIC, 4, &many)).unwrap().ranges, [0..4000]);
    }

    #[test]
    fn what_is_no_head_is_refused() {
        let many: Vec<u32> = (0..5001).collect();
        for bad in [file(1, 9, &[]), file(MAGIC, 9, &[3, 3]), file(MAGIC, 9, &[4, 3]), file(MAGIC, 9, &[5000])] {
            assert_eq!(read(&bad).unwrap_err().kind(), ErrorKind::Source);
        }
        let long = file(MAGIC, 9, &many);
        assert!(FixedHead::parse(long.first_chunk().unwrap(), 5000).is_err());
    }

    proptest::proptest! {
        #[test]
        fn rubbish_never_panics(fixed: [u8; FIXED_BYTES], count in 0u32..3000, rest in proptest::collection::vec(0u8..9, 0..16_000)) {
            let mut nearly = fixed;
            nearly[..4].copy_from_slice(&MAGIC.to_le_bytes());
            nearly[4..8].copy_from_slice(&count.to_le_bytes());
            for fixed in [fixed, nearly] {
                if let Ok(head) = FixedHead::parse(&fixed, 3000)
                    && let Ok(head) = head.with_blocks(&rest, 3000)
                {
                    proptest::prop_assert!(head.total_blocks() <= 3000);
                    proptest::prop_assert!(head.ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
                }
            }
        }
    }

    #[test]
    fn names_are_those_of_relations() {
        let original = |path: &str| original_path(path.as_bytes()).map(|path| String::from_utf8(path).unwrap());
        assert_eq!(original("base/5/INCREMENTAL.16384.1").as_deref(), Some("base/5/16384.1"));
        assert_eq!(original("pg_tblspc/7/PG_17_1/5/INCREMENTAL.16384").as_deref(), Some("pg_tblspc/7/PG_17_1/5/16384"));
        for other in ["base/5/16384", "INCREMENTAL.16384", "base/5/INCREMENTAL.x", "INCREMENTAL.backup_label", "a"] {
            assert_eq!(original(other), None, "{other}");
        }
        assert!(is_followed_by_wal(b"global/1262") && is_followed_by_wal(b"base/5/16384.1"));
        for other in ["base/5/16384_vm", "base/5/16384_fsm", "base/5/16384_init", "pg_xact/0000"] {
            assert!(!is_followed_by_wal(other.as_bytes()), "{other}");
        }
    }
}
