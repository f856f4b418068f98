//! `global/pg_control`: what the cluster says about itself on disk.
//!
//! The rule: src/include/catalog/pg_control.h. The offsets are those of 64-bit little-endian machines; 13 to 18 agree
//! on all fields read here but the place of the CRC.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::conninfo::owner_hint;
use crate::error::{Error, ErrorKind, Result};
use crate::terms::{Lsn, TimelineId};

/// The file, relative to the data directory.
pub const CONTROL_FILE_PATH: &str = "global/pg_control";
/// Size of the file on disk; only the first few hundred bytes are used.
const CONTROL_FILE_SIZE_BYTES: u64 = 8192;
/// A write of the server is one system call of microseconds: a torn read does not repeat this often.
const READ_ATTEMPTS_MAX: u32 = 100;

const VERSION_OFFSET: usize = 8;
const CATALOG_VERSION_OFFSET: usize = 12;
const STATE_OFFSET: usize = 16;
const CHECKPOINT_OFFSET: usize = 32;
const CHECKPOINT_REDO_OFFSET: usize = 40;
const CHECKPOINT_TIMELINE_OFFSET: usize = 48;
const MIN_RECOVERY_OFFSET: usize = 136;
const MIN_RECOVERY_TIMELINE_OFFSET: usize = 144;
const MAX_PREPARED_OFFSET: usize = 192;
const MAX_LOCKS_OFFSET: usize = 196;
const BLOCK_SIZE_OFFSET: usize = 216;
const SEGMENT_BLOCKS_OFFSET: usize = 220;
const WAL_BLOCK_SIZE_OFFSET: usize = 224;
const WAL_SEGMENT_SIZE_OFFSET: usize = 228;
const CHECKSUM_VERSION_OFFSET: usize = 252;

/// The cluster's state as of the last write of pg_control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterState {
    /// Not yet started.
    StartingUp,
    /// Cleanly shut down.
    ShutDown,
    /// Cleanly shut down as a standby.
    ShutDownInRecovery,
    /// On its way down.
    ShuttingDown,
    /// Replaying WAL after a crash.
    InCrashRecovery,
    /// Replaying WAL as a standby or from an archive.
    InArchiveRecovery,
    /// Running, or crashed while running.
    InProduction,
}

/// The fields of pg_control that a backup needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlFile {
    /// Unique to the cluster.
    pub system_identifier: u64,
    /// Version of pg_control's layout: 1300 (13 to 16), 1700, 1800.
    pub control_version: u32,
    /// Version of the system catalogs; part of the tablespaces' directory names.
    pub catalog_version: u32,
    /// Running, shut down, ...
    pub state: ClusterState,
    /// Where the last checkpoint record is.
    pub checkpoint_lsn: Lsn,
    /// Where replay from that checkpoint starts.
    pub checkpoint_redo_lsn: Lsn,
    /// The timeline of that checkpoint.
    pub timeline: TimelineId,
    /// While WAL of another server is replayed: no page on disk has a higher LSN, so a copy is consistent from here on.
    pub min_recovery_lsn: Lsn,
    /// The timeline of that position.
    pub min_recovery_timeline: TimelineId,
    /// The server's max_prepared_transactions: replay needs no fewer.
    pub max_prepared_transactions: u32,
    /// The server's max_locks_per_transaction.
    pub max_locks_per_transaction: u32,
    /// Size of a data page.
    pub block_size_bytes: u32,
    /// Pages in one segment file of a relation (131072 for 1 GiB of 8 KiB pages).
    pub segment_blocks: u32,
    /// Size of a page of WAL.
    pub wal_block_size_bytes: u32,
    /// Size of a WAL segment.
    pub wal_segment_size_bytes: u32,
    /// 0 without page checksums, else the version of the algorithm.
    pub checksum_version: u32,
}

impl ControlFile {
    /// Whether pages carry checksums.
    pub fn has_data_checksums(&self) -> bool {
        self.checksum_version != 0
    }
}

/// What pg_control's bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParsedControlFile {
    /// Sound and understood.
    Sound(ControlFile),
    /// The CRC does not hold: read in the middle of a write, worth another try, or damaged.
    Torn,
}

/// Reads the fields of `bytes`, the content of pg_control.
///
/// # Errors
/// `Source` for a version that is not supported, `Damage` for too few bytes or values that cannot be.
pub fn parse(bytes: &[u8]) -> Result<ParsedControlFile> {
    let error = |kind, cause: String| Error::new(kind, "read pg_control", cause);
    let (Some(version), Some(catalog_version)) = (u32_at(bytes, VERSION_OFFSET), u32_at(bytes, CATALOG_VERSION_OFFSET))
    else {
        return Err(error(ErrorKind::Damage, format!("it has only {} bytes", bytes.len())));
    };
    let Some(crc_offset) = crc_offset(version) else {
        return Err(error(ErrorKind::Source, format!("its layout version is {version}"))
            .hint("supported are the layouts of PostgreSQL 13 to 18: 1300, 1700 and 1800"));
    };
    let (Some(stored_crc), Some(covered)) = (u32_at(bytes, crc_offset), bytes.get(..crc_offset)) else {
        return Err(error(ErrorKind::Damage, format!("it has only {} bytes", bytes.len())));
    };
    if crc_fast::crc32_iscsi(covered) != stored_crc {
        return Ok(ParsedControlFile::Torn);
    }
    // The CRC covers every offset below, so the reads cannot fail.
    let field = |offset| u32_at(bytes, offset).unwrap_or_default();
    let wide_field = |offset| u64_at(bytes, offset).unwrap_or_default();
    let state = parse_state(field(STATE_OFFSET))
        .ok_or_else(|| error(ErrorKind::Damage, format!("state {} does not exist", field(STATE_OFFSET))))?;
    let control_file = ControlFile {
        system_identifier: wide_field(0),
        control_version: version,
        catalog_version,
        state,
        checkpoint_lsn: Lsn(wide_field(CHECKPOINT_OFFSET)),
        checkpoint_redo_lsn: Lsn(wide_field(CHECKPOINT_REDO_OFFSET)),
        timeline: TimelineId(field(CHECKPOINT_TIMELINE_OFFSET)),
        min_recovery_lsn: Lsn(wide_field(MIN_RECOVERY_OFFSET)),
        min_recovery_timeline: TimelineId(field(MIN_RECOVERY_TIMELINE_OFFSET)),
        // Whatever they hold, a server must still be able to start with them.
        max_prepared_transactions: field(MAX_PREPARED_OFFSET).min(262_143),
        max_locks_per_transaction: field(MAX_LOCKS_OFFSET).min(1_000_000),
        block_size_bytes: field(BLOCK_SIZE_OFFSET),
        segment_blocks: field(SEGMENT_BLOCKS_OFFSET),
        wal_block_size_bytes: field(WAL_BLOCK_SIZE_OFFSET),
        wal_segment_size_bytes: field(WAL_SEGMENT_SIZE_OFFSET),
        checksum_version: field(CHECKSUM_VERSION_OFFSET),
    };
    let sizes = [control_file.block_size_bytes, control_file.wal_block_size_bytes, control_file.wal_segment_size_bytes];
    if !sizes.iter().all(|size| size.is_power_of_two()) || control_file.segment_blocks == 0 {
        return Err(error(ErrorKind::Damage, "a block or segment size makes no sense".into()));
    }
    Ok(ParsedControlFile::Sound(control_file))
}

fn crc_offset(version: u32) -> Option<usize> {
    match version {
        1300 | 1700 => Some(288),
        // 18 put default_char_signedness before the nonce, and the CRC moved to the next multiple of 4.
        1800 => Some(292),
        _ => None,
    }
}

/// `bytes` of pg_control with a checkpoint that is nowhere; none for bytes that are not a sound pg_control.
///
/// A restored cluster must begin at the checkpoint that its backup_label names. Without the label a server would begin
/// at the one in pg_control, which is too late for some of the files, and serve a damaged cluster: now it does not start.
pub fn without_checkpoint(bytes: &[u8]) -> Option<Vec<u8>> {
    let Ok(ParsedControlFile::Sound(control_file)) = parse(bytes) else { return None };
    let crc_offset = crc_offset(control_file.control_version)?;
    let mut changed = bytes.to_vec();
    changed[CHECKPOINT_OFFSET..CHECKPOINT_OFFSET + 8].copy_from_slice(&NO_CHECKPOINT.0.to_le_bytes());
    let crc = crc_fast::crc32_iscsi(&changed[..crc_offset]);
    changed[crc_offset..crc_offset + 4].copy_from_slice(&crc.to_le_bytes());
    Some(changed)
}

/// In the segment that no cluster has, and yet where a record may begin, which the server asks of any checkpoint.
pub const NO_CHECKPOINT: Lsn = Lsn(0xDEAD);

/// The bytes of `pgdata`'s pg_control and what they say; re-reads while the server is writing it.
///
/// # Errors
/// `Source` if it cannot be read (with a hint when rights are missing), `Damage` if its CRC never holds.
pub fn read_control_file(pgdata: &Path) -> Result<(Vec<u8>, ControlFile)> {
    let path = pgdata.join(CONTROL_FILE_PATH);
    let action = || format!("read {}", path.display());
    for _ in 0..READ_ATTEMPTS_MAX {
        let mut bytes = Vec::new();
        File::open(&path).and_then(|file| file.take(CONTROL_FILE_SIZE_BYTES).read_to_end(&mut bytes)).map_err(
            |cause| match cause.kind() {
                std::io::ErrorKind::NotFound => Error::new(ErrorKind::Source, action(), cause)
                    .hint("is this a PostgreSQL data directory? it is the one that has PG_VERSION in it"),
                std::io::ErrorKind::PermissionDenied => {
                    Error::new(ErrorKind::Source, action(), cause).hint(owner_hint(pgdata))
                }
                _ => Error::new(ErrorKind::Source, action(), cause),
            },
        )?;
        if let ParsedControlFile::Sound(control_file) = parse(&bytes)? {
            return Ok((bytes, control_file));
        }
    }
    Err(Error::new(ErrorKind::Damage, action(), "its checksum does not hold, however often it is read")
        .hint("the cluster is damaged; pg_controldata shows more"))
}

fn parse_state(number: u32) -> Option<ClusterState> {
    Some(match number {
        0 => ClusterState::StartingUp,
        1 => ClusterState::ShutDown,
        2 => ClusterState::ShutDownInRecovery,
        3 => ClusterState::ShuttingDown,
        4 => ClusterState::InCrashRecovery,
        5 => ClusterState::InArchiveRecovery,
        6 => ClusterState::InProduction,
        _ => return None,
    })
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..)?.first_chunk().map(|chunk| u32::from_le_bytes(*chunk))
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    bytes.get(offset..)?.first_chunk().map(|chunk| u64::from_le_bytes(*chunk))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A sound pg_control with catalog version 7.
    pub(in crate::source::postgres) fn sample() -> Vec<u8> {
        let mut bytes = vec![0u8; 8192];
        let mut put = |offset: usize, value: u32| bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
        put(VERSION_OFFSET, 1300);
        put(CATALOG_VERSION_OFFSET, 7);
        put(STATE_OFFSET, 6);
        put(BLOCK_SIZE_OFFSET, 8192);
        put(SEGMENT_BLOCKS_OFFSET, 131_072);
        put(WAL_BLOCK_SIZE_OFFSET, 8192);
        put(WAL_SEGMENT_SIZE_OFFSET, 16 << 20);
        let crc = crc_fast::crc32_iscsi(&bytes[..288]);
        bytes[288..292].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    #[test]
    fn a_torn_read_is_told_from_an_unknown_version() {
        assert!(matches!(parse(&sample()).unwrap(), ParsedControlFile::Sound(_)));
        let mut torn = sample();
        torn[100] ^= 1;
        assert_eq!(parse(&torn).unwrap(), ParsedControlFile::Torn);
        let mut unknown = sample();
        unknown[VERSION_OFFSET] ^= 1;
        assert_eq!(parse(&unknown).unwrap_err().kind(), ErrorKind::Source);
        for length in [0, 11, 200, 290] {
            assert_eq!(parse(&sample()[..length]).unwrap_err().kind(), ErrorKind::Damage);
        }
    }

    #[test]
    fn a_checkpoint_is_taken_away_and_nothing_else() {
        let bytes = sample();
        let changed = without_checkpoint(&bytes).unwrap();
        let (ParsedControlFile::Sound(before), ParsedControlFile::Sound(mut after)) =
            (parse(&bytes).unwrap(), parse(&changed).unwrap())
        else {
            panic!("not sound");
        };
        assert_eq!(after.checkpoint_lsn, NO_CHECKPOINT);
        after.checkpoint_lsn = before.checkpoint_lsn;
        assert_eq!(after, before);
        assert!(bytes.iter().zip(&changed).filter(|(old, new)| old != new).count() <= 8 + 4);
        assert_eq!(without_checkpoint(&bytes[..200]), None);
    }

    #[test]
    fn a_file_that_stays_torn_is_damage() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("global")).unwrap();
        assert_eq!(read_control_file(directory.path()).unwrap_err().kind(), ErrorKind::Source);
        let mut torn = sample();
        torn[100] ^= 1;
        std::fs::write(directory.path().join(CONTROL_FILE_PATH), torn).unwrap();
        assert_eq!(read_control_file(directory.path()).unwrap_err().kind(), ErrorKind::Damage);
    }
}
