//! WAL summaries of PostgreSQL 17 and later: which blocks WAL has changed between two positions.
//!
//! The files are read, not asked for through SQL: they are compact, and need no right that reading the data directory
//! does not need. The rules: src/common/blkreftable.c (the format), src/backend/backup/walsummary.c (the names),
//! src/backend/backup/basebackup_incremental.c (what follows from them).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};
use crate::terms::{Lsn, TimelineId};

const MAGIC: u32 = 0x652b_137b;
const BLOCKS_PER_CHUNK: u32 = 65_536;
/// A chunk with so many entries is a bitmap of as many 16-bit words.
const BITMAP_WORDS: usize = 4096;
const MAIN_FORK: i32 = 0;
const NO_LIMIT: u32 = u32::MAX;
/// Largest summary that is read: one of a terabyte of changed blocks has less.
const SUMMARY_BYTES_MAX: u64 = 1 << 30;

/// One summary file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SummaryFile {
    /// Timeline of the WAL that it is of.
    pub timeline: TimelineId,
    /// First position.
    pub start: Lsn,
    /// Position after the last.
    pub end: Lsn,
    /// The file.
    pub path: PathBuf,
}

/// A stretch of WAL on one timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalStretch {
    /// The timeline.
    pub timeline: TimelineId,
    /// First position.
    pub start: Lsn,
    /// Position after the last.
    pub end: Lsn,
}

/// The summaries in a data directory, sorted by timeline and start; none if it has no such directory.
///
/// # Errors
/// `Source` if the directory cannot be listed.
pub fn list_summaries(pgdata: &Path) -> Result<Vec<SummaryFile>> {
    let directory = pgdata.join("pg_wal/summaries");
    let entries = match std::fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(Error::new(ErrorKind::Source, format!("list {}", directory.display()), cause)),
    };
    let mut files: Vec<SummaryFile> = entries
        .flatten()
        .filter_map(|entry| {
            let (timeline, start, end) = parse_name(entry.file_name().to_str()?)?;
            Some(SummaryFile { timeline, start, end, path: entry.path() })
        })
        .collect();
    files.sort_by_key(|file| (file.timeline, file.start, file.end));
    Ok(files)
}

/// `TTTTTTTTSSSSSSSSSSSSSSSSEEEEEEEEEEEEEEEE.summary`, all hexadecimal.
fn parse_name(name: &str) -> Option<(TimelineId, Lsn, Lsn)> {
    let digits = name.strip_suffix(".summary").filter(|digits| digits.len() == 40 && digits.is_ascii())?;
    let timeline = u32::from_str_radix(&digits[..8], 16).ok()?;
    let start = u64::from_str_radix(&digits[8..24], 16).ok()?;
    let end = u64::from_str_radix(&digits[24..], 16).ok()?;
    Some((TimelineId(timeline), Lsn(start), Lsn(end)))
}

/// The files that cover a stretch without a gap; or the position that none covers.
///
/// # Errors
/// The first position that is not covered.
pub fn covering(files: &[SummaryFile], stretch: &WalStretch) -> std::result::Result<Vec<SummaryFile>, Lsn> {
    let mut chosen = Vec::new();
    let mut reached = stretch.start;
    for file in files.iter().filter(|file| file.timeline == stretch.timeline && file.end > stretch.start) {
        if reached >= stretch.end || file.start > reached {
            break;
        }
        // Every one that overlaps: a longer one may stand beside shorter ones.
        reached = reached.max(file.end);
        chosen.push(file.clone());
    }
    if reached >= stretch.end { Ok(chosen) } else { Err(reached) }
}

/// Which relation: tablespace, database, file number.
pub type RelationKey = (u32, u32, u32);

/// The blocks of main forks that WAL has changed.
#[derive(Debug, Default)]
pub struct ChangedBlocks {
    relations: BTreeMap<RelationKey, RelationChanges>,
}

/// What has changed of one relation.
#[derive(Debug)]
pub struct RelationChanges {
    /// The relation was shorter than this at some time, or began empty: what lies behind is new.
    limit: u32,
    chunks: BTreeMap<u32, Chunk>,
}

#[derive(Debug)]
enum Chunk {
    Listed(Vec<u16>),
    Bitmap(Box<[u64; BLOCKS_PER_CHUNK as usize / 64]>),
}

impl Chunk {
    fn add(&mut self, block: u16) {
        match self {
            Chunk::Listed(blocks) if blocks.len() < BITMAP_WORDS => blocks.push(block),
            Chunk::Listed(blocks) => {
                let mut bits = Box::new([0u64; BLOCKS_PER_CHUNK as usize / 64]);
                for block in blocks.iter().chain([&block]) {
                    bits[usize::from(*block) / 64] |= 1 << (block % 64);
                }
                *self = Chunk::Bitmap(bits);
            }
            Chunk::Bitmap(bits) => bits[usize::from(block) / 64] |= 1 << (block % 64),
        }
    }
}

impl RelationChanges {
    /// Blocks from here on must be read, whatever else is said.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// The changed blocks from `first` to before `end`, in order.
    pub fn blocks(&self, first: u32, end: u32) -> Vec<u32> {
        let mut blocks = Vec::new();
        for (chunk, content) in self.chunks.range(first / BLOCKS_PER_CHUNK..) {
            let base = chunk * BLOCKS_PER_CHUNK;
            if base >= end {
                break;
            }
            match content {
                Chunk::Listed(listed) => blocks.extend(listed.iter().map(|block| base + u32::from(*block))),
                Chunk::Bitmap(bits) => {
                    let is_set = |block: &u32| bits[*block as usize / 64] & (1 << (block % 64)) != 0;
                    blocks.extend((0..BLOCKS_PER_CHUNK).filter(is_set).map(|block| base + block));
                }
            }
        }
        blocks.retain(|block| (first..end).contains(block));
        blocks.sort_unstable();
        blocks.dedup();
        blocks
    }
}

impl ChangedBlocks {
    /// What has changed of a relation's main fork; None if nothing.
    pub fn relation(&self, key: RelationKey) -> Option<&RelationChanges> {
        self.relations.get(&key)
    }

    /// Whether the database was made anew there, by copying files: none of its pages tells of it.
    pub fn database_is_new(&self, tablespace: u32, database: u32) -> bool {
        self.relations.contains_key(&(tablespace, database, 0))
    }

    /// Memory that it takes, about.
    pub fn memory_bytes(&self) -> u64 {
        let of_chunk = |chunk: &Chunk| match chunk {
            Chunk::Listed(blocks) => 2 * blocks.capacity() as u64 + 64,
            Chunk::Bitmap(_) => u64::from(BLOCKS_PER_CHUNK) / 8 + 64,
        };
        self.relations.values().map(|changes| 96 + changes.chunks.values().map(of_chunk).sum::<u64>()).sum()
    }

    /// Adds what a summary file says.
    ///
    /// # Errors
    /// `Source` if it does not read or its checksum does not hold.
    pub fn add_file(&mut self, path: &Path) -> Result<()> {
        let failed = |cause: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Source, format!("read WAL summary {}", path.display()), cause)
        };
        let size_bytes = std::fs::metadata(path).map_err(|cause| failed(&cause))?.len();
        if size_bytes > SUMMARY_BYTES_MAX {
            return Err(failed(&"it is too large"));
        }
        let bytes = std::fs::read(path).map_err(|cause| failed(&cause))?;
        self.add(&bytes).map_err(|cause| failed(&cause))
    }

    /// Adds the content of a summary.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn add(&mut self, bytes: &[u8]) -> std::result::Result<(), &'static str> {
        const SHORT: &str = "it ends too early";
        let (body, sum) = bytes.split_at_checked(bytes.len().saturating_sub(4)).ok_or(SHORT)?;
        if crc_fast::crc32_iscsi(body).to_le_bytes() != sum {
            return Err("its checksum does not match");
        }
        let mut rest = Words { bytes: body };
        if rest.u32().ok_or(SHORT)? != MAGIC {
            return Err("it is not of a known format");
        }
        loop {
            let mut next = || rest.u32().ok_or(SHORT);
            let key: RelationKey = (next()?, next()?, next()?);
            let (fork, limit, chunk_count) = (next()?.cast_signed(), next()?, next()?);
            if key == (0, 0, 0) {
                return if rest.bytes.is_empty() { Ok(()) } else { Err("bytes follow its end") };
            }
            let sizes = rest.take(chunk_count as usize).ok_or(SHORT)?;
            let mut changes = (fork == MAIN_FORK).then(|| {
                self.relations.entry(key).or_insert_with(|| RelationChanges { limit: NO_LIMIT, chunks: BTreeMap::new() })
            });
            if let Some(changes) = &mut changes {
                changes.limit = changes.limit.min(limit);
            }
            for (number, size) in words(sizes).enumerate() {
                let content = rest.take(usize::from(size)).ok_or(SHORT)?;
                if let Some(changes) = changes.as_mut().filter(|_| size > 0) {
                    changes.add_chunk(number as u32, content);
                }
            }
        }
    }
}

impl RelationChanges {
    fn add_chunk(&mut self, number: u32, content: &[u8]) {
        let chunk = self.chunks.entry(number).or_insert_with(|| Chunk::Listed(Vec::new()));
        if content.len() / 2 < BITMAP_WORDS {
            words(content).for_each(|block| chunk.add(block));
            return;
        }
        for (at, word) in words(content).enumerate() {
            for bit in (0..16).filter(|bit| word & (1 << bit) != 0) {
                chunk.add((at * 16) as u16 + bit);
            }
        }
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u16> + '_ {
    bytes.chunks_exact(2).map(|word| u16::from_le_bytes([word[0], word[1]]))
}

struct Words<'a> {
    bytes: &'a [u8],
}

impl<'a> Words<'a> {
    fn u32(&mut self) -> Option<u32> {
        let (head, rest) = self.bytes.split_first_chunk::<4>()?;
        self.bytes = rest;
        Some(u32::from_le_bytes(*head))
    }

    /// The bytes of `count` 16-bit words.
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.bytes.split_at_checked(count.checked_mul(2)?)?;
        self.bytes = rest;
        Some(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(timeline: u32, start: u64, end: u64) -> SummaryFile {
        SummaryFile { timeline: TimelineId(timeline), start: Lsn(start), end: Lsn(end), path: PathBuf::new() }
    }

    #[test]
    fn a_gap_is_seen() {
        let files = [file(1, 10, 20), file(1, 20, 30), file(1, 40, 50), file(2, 30, 60)];
        let stretch = |timeline, start, end| WalStretch { timeline: TimelineId(timeline), start: Lsn(start), end: Lsn(end) };
        assert_eq!(covering(&files, &stretch(1, 12, 30)).unwrap().len(), 2);
        assert_eq!(covering(&files, &stretch(1, 20, 28)).unwrap().len(), 1);
        assert_eq!(covering(&files, &stretch(1, 12, 45)).unwrap_err(), Lsn(30));
        assert_eq!(covering(&files, &stretch(1, 5, 15)).unwrap_err(), Lsn(5));
        assert_eq!(covering(&files, &stretch(2, 30, 60)).unwrap().len(), 1);
        assert_eq!(covering(&[], &stretch(1, 7, 7)).unwrap().len(), 0, "nothing to cover");
        let name = "0000000100000000010000280000000001ABCDE0.summary";
        assert_eq!(parse_name(name), Some((TimelineId(1), Lsn(0x0100_0028), Lsn(0x01AB_CDE0))));
        assert_eq!(parse_name("temp.summary"), None);
    }

    /// A summary of one relation as the server writes it.
    fn summary(fork: i32, limit: u32, chunks: &[Vec<u16>]) -> Vec<u8> {
        let mut bytes = MAGIC.to_le_bytes().to_vec();
        let head = [1663, 5, 16_384, fork.cast_unsigned(), limit, chunks.len() as u32];
        bytes.extend(head.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(chunks.iter().flat_map(|chunk| (chunk.len() as u16).to_le_bytes()));
        bytes.extend(chunks.iter().flatten().flat_map(|word| word.to_le_bytes()));
        bytes.extend([0u8; 24]);
        let sum = crc_fast::crc32_iscsi(&bytes);
        bytes.extend(sum.to_le_bytes());
        bytes
    }

    #[test]
    fn lists_and_bitmaps_read() {
        let mut bitmap = vec![0u16; BITMAP_WORDS];
        bitmap[1] = 0b101;
        let mut changed = ChangedBlocks::default();
        changed.add(&summary(0, NO_LIMIT, &[vec![7, 3], bitmap])).unwrap();
        changed.add(&summary(0, 70_000, &[vec![3, 4]])).unwrap();
        changed.add(&summary(2, 0, &[vec![1]])).unwrap();
        let relation = changed.relation((1663, 5, 16_384)).unwrap();
        assert_eq!(relation.blocks(0, u32::MAX), [3, 4, 7, 65_552, 65_554]);
        assert_eq!(relation.blocks(4, 65_553), [4, 7, 65_552]);
        assert_eq!(relation.limit(), 70_000);
        assert!(changed.relation((1663, 5, 1)).is_none() && !changed.database_is_new(1663, 5));
    }

    #[test]
    fn every_flipped_bit_and_cut_is_seen() {
        let good = summary(0, 9, &[vec![7, 3]]);
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(ChangedBlocks::default().add(&bad).is_err(), "bit {bit}");
        }
        assert!((0..good.len()).all(|length| ChangedBlocks::default().add(&good[..length]).is_err()));
    }

    #[test]
    fn a_full_list_becomes_a_bitmap() {
        let mut chunk = Chunk::Listed(Vec::new());
        (0..10_000u16).for_each(|block| chunk.add(block * 3));
        assert!(matches!(chunk, Chunk::Bitmap(_)));
        let changes = RelationChanges { limit: NO_LIMIT, chunks: BTreeMap::from([(0, chunk)]) };
        assert_eq!(changes.blocks(0, 65_536), (0..10_000u32).map(|block| block * 3).collect::<Vec<_>>());
    }
}
