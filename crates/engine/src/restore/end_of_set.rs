//! Where recovery stops that is to end with its set.
//!
//! The rule: recoveryStopsBefore and recoveryStopsAfter in src/backend/access/transam/xlogrecovery.c (xlog.c before 15).
//! With `recovery_target = 'immediate'` a server that is consistent stops before the next record, or after one that ended a
//! transaction. WAL that ends with any other record, exactly where the copy is consistent, is a fatal error. The set of a
//! standby often ends so: nobody writes a record behind its minimum recovery point. A position has no such gap: the server
//! stops after the first record that begins there or later, whatever it is.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::recovery_target::TargetAction;
use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::PostgresRecord;
use crate::source::postgres::wal_header::SegmentHeader;
use crate::source::postgres::wal_records::WalWalker;
use crate::terms::{Lsn, SegmentNumber, WalSegmentName};

/// What is read of a segment at once.
const PIECE_BYTES: u64 = 1 << 20;

/// The longest that WAL can be which is one checkpoint record: 24 bytes of header, 2 of length, a CheckPoint of 88 bytes at
/// most (18), aligned to 8, and a long page header in its midst. A checkpoint of a running primary logs 168 bytes at least,
/// because a record with its transactions comes before it.
const LONE_CHECKPOINT_BYTES: u64 = 120 + 40;

/// What the server is told of the end of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndOfSet {
    /// To stop after the record that begins here: the last one that the set needs.
    Record(Lsn),
    /// Nothing: it replays what the set has, if anything.
    LastOfItsWal,
    /// To stop as soon as it finds itself consistent.
    Consistency,
}

impl EndOfSet {
    /// Looks into the restored WAL for the record with which the set is consistent.
    ///
    /// # Errors
    /// `Target` if a segment does not read.
    pub(super) fn find(postgres: &PostgresRecord, pg_wal: &Path) -> Result<Self> {
        if has_no_record_to_stop_at(postgres) {
            return Ok(EndOfSet::LastOfItsWal);
        }
        // Where our reading of the WAL ends elsewhere, the server judges.
        Ok(last_record(postgres, pg_wal)?.map_or(EndOfSet::Consistency, EndOfSet::Record))
    }
}

/// Whether the set's WAL is the checkpoint at which replay begins, and no more: that of a standby whose primary was shut
/// down. The server replays what comes behind that record.
fn has_no_record_to_stop_at(postgres: &PostgresRecord) -> bool {
    postgres.stop_lsn.0.saturating_sub(postgres.start_lsn.0) <= LONE_CHECKPOINT_BYTES
}

/// Refuses an action that the server never comes to.
///
/// # Errors
/// `Usage`.
pub(super) fn check_action(postgres: &PostgresRecord, action: TargetAction) -> Result<()> {
    if action == TargetAction::Promote || !has_no_record_to_stop_at(postgres) {
        return Ok(());
    }
    let cause =
        "the set is of a standby whose primary was shut down: it has no record of WAL at which a server could stop";
    Err(Error::new(ErrorKind::Usage, "use --target-action", cause).hint(
        "leave --target-action away, or use --type standby for a server that stays read-only; nothing was written",
    ))
}

/// Start of the record that ends where the set does; none if there is none.
fn last_record(postgres: &PostgresRecord, pg_wal: &Path) -> Result<Option<Lsn>> {
    let (start, stop) = (postgres.start_lsn.0, postgres.stop_lsn.0);
    let Some(size) = std::num::NonZero::new(postgres.wal_segment_size_bytes) else { return Ok(None) };
    let last = stop.saturating_sub(1) / size;
    // A long record may have begun some segments earlier.
    for first in (start / size..=last).rev() {
        match walk(postgres, pg_wal, first..=last)? {
            Walk::Found(lsn) => return Ok(Some(lsn)),
            Walk::BeganBefore => {}
            Walk::EndsElsewhere => break,
        }
    }
    Ok(None)
}

/// What segments say of the record that ends where the set does.
enum Walk {
    Found(Lsn),
    BeganBefore,
    EndsElsewhere,
}

fn walk(postgres: &PostgresRecord, pg_wal: &Path, segments: std::ops::RangeInclusive<u64>) -> Result<Walk> {
    let size = postgres.wal_segment_size_bytes;
    let mut walker: Option<WalWalker> = None;
    let mut last = None;
    let mut piece = Vec::new();
    for number in segments {
        let name = WalSegmentName::new(postgres.timeline, SegmentNumber(number), size);
        if !postgres.wal_segments.iter().any(|held| held == name.as_str()) {
            return Ok(Walk::EndsElsewhere);
        }
        let path = pg_wal.join(name.as_str());
        let failed = |cause: std::io::Error| Error::new(ErrorKind::Target, format!("read {}", path.display()), cause);
        let wanted = postgres.stop_lsn.0.saturating_sub(number.saturating_mul(size)).min(size);
        let mut file = File::open(&path).map_err(failed)?.take(wanted);
        loop {
            piece.clear();
            if (&mut file).take(PIECE_BYTES).read_to_end(&mut piece).map_err(failed)? == 0 {
                break;
            }
            if walker.is_none() {
                let Ok(header) = SegmentHeader::parse(&piece, &name) else { return Ok(Walk::EndsElsewhere) };
                walker = Some(WalWalker::with_records(header.place(0)));
            }
            if let Some(walker) = &mut walker {
                walker.feed(&piece);
                last = walker.take_records().pop().map(|record| record.start).or(last);
            }
        }
    }
    let ends_at = walker.map(|walker| walker.finish().end_lsn);
    Ok(match last {
        _ if ends_at != Some(postgres.stop_lsn) => Walk::EndsElsewhere,
        Some(lsn) => Walk::Found(lsn),
        None => Walk::BeganBefore,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(start_lsn: u64, stop_lsn: u64) -> PostgresRecord {
        let mut postgres = crate::format::manifest::tests::sample().postgres;
        (postgres.start_lsn, postgres.stop_lsn) = (Lsn(start_lsn), Lsn(stop_lsn));
        postgres
    }

    #[test]
    fn a_set_of_one_checkpoint_has_nothing_to_stop_at() {
        // 13 to 18, and with a page header in its midst; then the least that a running primary logs.
        for (size, is_alone) in [(112, true), (120, true), (160, true), (168, false), (1 << 20, false)] {
            let set = record(1 << 24, (1 << 24) + size);
            assert_eq!(has_no_record_to_stop_at(&set), is_alone, "{size}");
            check_action(&set, TargetAction::Promote).unwrap();
            for action in [TargetAction::Pause, TargetAction::Shutdown] {
                let refused = check_action(&set, action).err().map(|error| error.kind());
                assert_eq!(refused, is_alone.then_some(ErrorKind::Usage), "{size}");
            }
        }
    }
}
