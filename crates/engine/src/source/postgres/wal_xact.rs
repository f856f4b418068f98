//! The few records that are looked into: ends of transactions, restore points, switches of segments.
//!
//! The rule: src/include/access/xact.h, ParseCommitRecord and ParseAbortRecord in
//! src/backend/access/rmgrdesc/xactdesc.c, xl_restore_point in src/include/access/xlog_internal.h.

use crc_fast::{CrcAlgorithm, Digest};

use super::wal::page_magic;
use super::wal_records::RECORD_HEADER_SIZE_BYTES;
use crate::terms::{Lsn, RESTORE_POINT_NAME_BYTES_MAX, RestorePoint, WalFacts, WalTime};

/// Most restore points that are kept of one segment.
const RESTORE_POINTS_MAX: usize = 256;

const TRANSACTION_ID_OFFSET: usize = 4;
const INFO_OFFSET: usize = 16;
const RESOURCE_MANAGER_OFFSET: usize = 17;
const CRC_OFFSET: usize = 20;

/// RM_XLOG_ID and RM_XACT_ID
const MANAGER_XLOG: u8 = 0;
const MANAGER_TRANSACTION: u8 = 1;
/// RM_RELMAP_ID: which files a database's mapped catalogs have. Its one record is an update.
const MANAGER_RELATION_MAP: u8 = 7;
/// The bits of the info byte that say what an RM_XLOG_ID record is.
const XLOG_MASK: u8 = 0xF0;
const XLOG_SWITCH: u8 = 0x40;
const XLOG_RESTORE_POINT: u8 = 0x70;
/// XLOG_XACT_OPMASK, and what it leaves.
const XACT_MASK: u8 = 0x70;
const XACT_COMMIT: u8 = 0x00;
const XACT_ABORT: u8 = 0x20;
const XACT_COMMIT_PREPARED: u8 = 0x30;
const XACT_ABORT_PREPARED: u8 = 0x40;
const XACT_HAS_INFO: u8 = 0x80;

/// XACT_XINFO_HAS_...: which parts follow the time, in this order.
const HAS_DATABASE: u32 = 1;
const HAS_SUBTRANSACTIONS: u32 = 1 << 1;
const HAS_RELATIONS: u32 = 1 << 2;
const HAS_DROPPED_STATS: u32 = 1 << 8;
const HAS_INVALIDATIONS: u32 = 1 << 3;
const HAS_TWO_PHASE: u32 = 1 << 4;
/// Sizes of their items.
const RELATION_BYTES: u32 = 12;
const INVALIDATION_BYTES: u32 = 16;

/// XLR_BLOCK_ID_...: what may stand between a record's header and its data.
const PART_DATA_SHORT: u8 = 255;
const PART_DATA_LONG: u8 = 254;
const PART_ORIGIN: u8 = 253;
const PART_TOP_TRANSACTION: u8 = 252;

/// Whether the record that begins with this header is to be looked into.
pub(super) fn is_of_interest(header: &[u8]) -> bool {
    match manager_and_info(header) {
        Some((MANAGER_TRANSACTION, info)) => {
            matches!(info & XACT_MASK, XACT_COMMIT | XACT_ABORT | XACT_COMMIT_PREPARED | XACT_ABORT_PREPARED)
        }
        Some((MANAGER_XLOG, info)) => info & XLOG_MASK == XLOG_RESTORE_POINT,
        Some((manager, _)) => manager == MANAGER_RELATION_MAP,
        None => false,
    }
}

/// Whether the record ends its segment early.
pub(super) fn is_switch(header: &[u8]) -> bool {
    matches!(manager_and_info(header), Some((MANAGER_XLOG, info)) if info & XLOG_MASK == XLOG_SWITCH)
}

fn manager_and_info(header: &[u8]) -> Option<(u8, u8)> {
    Some((*header.get(RESOURCE_MANAGER_OFFSET)?, *header.get(INFO_OFFSET)?))
}

/// Whether a whole record is what the server wrote: the sum is over its data, then its header up to the sum.
pub(super) fn crc_holds(record: &[u8]) -> bool {
    let (Some(data), Some(header)) = (record.get(RECORD_HEADER_SIZE_BYTES..), record.get(..CRC_OFFSET)) else {
        return false;
    };
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(data);
    digest.update(header);
    Some(digest.finalize() as u32) == Fields(record).word(CRC_OFFSET)
}

/// Adds what a whole record that is of interest says to `facts`; a record of no known shape says nothing.
pub(super) fn note(record: &[u8], magic: u16, end_lsn: Lsn, facts: &mut WalFacts) {
    let (Some((manager, info)), Some(data)) = (manager_and_info(record), main_data(record)) else { return };
    if manager == MANAGER_XLOG {
        let Some(point) = restore_point(data, end_lsn) else { return };
        if facts.restore_points.len() < RESTORE_POINTS_MAX {
            facts.restore_points.push(point);
        } else {
            facts.restore_points_cut = true;
        }
        return;
    }
    if manager != MANAGER_TRANSACTION {
        return;
    }
    let Some(at) = data.long(0) else { return };
    let is_prepared = matches!(info & XACT_MASK, XACT_COMMIT_PREPARED | XACT_ABORT_PREPARED);
    // A prepared transaction is ended by a session with another id, or none.
    let own = Fields(record).word(TRANSACTION_ID_OFFSET);
    let xid = if is_prepared { prepared_transaction(data, info, magic) } else { own };
    facts.note_end(xid.unwrap_or(0), WalTime(at as i64));
}

/// Tablespace and database whose map of relations a whole record writes anew; none for the map of shared relations
/// (xl_relmap_update in src/include/utils/relmapper.h).
pub(super) fn mapped_database(record: &[u8]) -> Option<(u32, u32)> {
    let data = (manager_and_info(record)?.0 == MANAGER_RELATION_MAP).then(|| main_data(record))??;
    let (database, tablespace) = (data.word(0)?, data.word(4)?);
    (database != 0).then_some((tablespace, database))
}

fn restore_point(data: Fields<'_>, end_lsn: Lsn) -> Option<RestorePoint> {
    let at = WalTime(data.long(0)? as i64);
    let name = data.0.get(8..)?;
    let length = name.iter().take(RESTORE_POINT_NAME_BYTES_MAX).take_while(|byte| **byte != 0).count();
    Some(RestorePoint { name: String::from_utf8_lossy(&name[..length]).into_owned(), lsn: end_lsn, at })
}

/// The id of the transaction that COMMIT PREPARED or ROLLBACK PREPARED ended.
fn prepared_transaction(data: Fields<'_>, info: u8, magic: u16) -> Option<u32> {
    if info & XACT_HAS_INFO == 0 {
        return None;
    }
    let parts = data.word(8)?;
    let mut at = 12usize;
    if parts & HAS_DATABASE != 0 {
        at += 8;
    }
    // 18 made the id of an object in statistics twice as long; before 15 there were none.
    let stats_bytes = if Some(magic) >= page_magic(18) { 16 } else { 12 };
    let lists = [
        (HAS_SUBTRANSACTIONS, 4),
        (HAS_RELATIONS, RELATION_BYTES),
        (HAS_DROPPED_STATS, stats_bytes),
        (HAS_INVALIDATIONS, INVALIDATION_BYTES),
    ];
    for (_, item_bytes) in lists.iter().filter(|(part, _)| parts & part != 0) {
        let list_bytes = data.word(at)?.checked_mul(*item_bytes)?;
        at = at.checked_add(4)?.checked_add(list_bytes as usize)?;
    }
    (parts & HAS_TWO_PHASE != 0).then(|| data.word(at))?
}

/// The data of a record that belongs to no page, which is its end.
fn main_data(record: &[u8]) -> Option<Fields<'_>> {
    let mut at = RECORD_HEADER_SIZE_BYTES;
    loop {
        let (length, head_bytes) = match *record.get(at)? {
            PART_DATA_SHORT => (u32::from(*record.get(at + 1)?), 2),
            PART_DATA_LONG => (Fields(record).word(at + 1)?, 5),
            PART_ORIGIN => {
                at += 3;
                continue;
            }
            PART_TOP_TRANSACTION => {
                at += 5;
                continue;
            }
            _ => return None,
        };
        let data = record.get(at + head_bytes..)?;
        return (data.len() as u64 == u64::from(length)).then_some(Fields(data));
    }
}

/// Bytes whose numbers may lie anywhere.
#[derive(Clone, Copy)]
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn word(self, at: usize) -> Option<u32> {
        self.0.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
    }

    fn long(self, at: usize) -> Option<u64> {
        self.0.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }
}
