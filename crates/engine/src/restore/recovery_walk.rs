//! The way of a recovery along archived segments, one by one, and what stops it.

use crate::catalog::{ArchivedWal, SegmentFacts, SetPoint, TimelinePath};
use crate::error::Result;
use crate::terms::{Lsn, TimelineId, WalFacts, WalSegmentName};

/// What the records of archived segments say, one by one; each call may read segments.
///
/// The facts of a segment are those of the records that begin and end in it.
pub(super) trait WalRecords: SegmentFacts {
    /// What the record says that begins in this segment and ends in `next`, the one behind it on the path.
    fn crossing(&mut self, stop: Stop, next: Stop) -> Result<WalFacts>;

    /// End of the record in this segment with which transaction `xid` ended.
    fn end_of_transaction(&mut self, stop: Stop, xid: u32) -> Result<Option<Lsn>>;

    /// Start of the first record at or behind `lsn` that begins in this segment, and whether the segment has all of it.
    fn record_from(&mut self, stop: Stop, lsn: Lsn) -> Result<Option<(Lsn, bool)>>;
}

/// Where recovery stops: a record of this segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stop {
    pub(super) timeline: TimelineId,
    pub(super) number: u64,
}

/// Why a set does not lead to the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unreached {
    /// The target lies before the set is consistent.
    BeforeSet,
    /// The set does not say when it was consistent, and the archive does not either.
    UnknownTime,
    /// This segment is not archived; whether there is WAL behind it.
    Missing(Stop, bool),
    /// The WAL breaks off in this segment, at this position.
    BreaksOff(Stop, Lsn),
}

/// How a walk along archived segments ended.
pub(super) enum Walked {
    Found(Stop),
    Not(Unreached),
}

/// Goes from the set's point of consistency along the path, segment by segment, until `visit` has found its stop.
pub(super) fn walk(
    set: &SetPoint,
    path: &TimelinePath,
    wal: &ArchivedWal,
    records: &mut dyn WalRecords,
    visit: &mut dyn FnMut(Stop, &WalFacts, &mut dyn WalRecords) -> Result<bool>,
) -> Result<Walked> {
    let size = wal.segment_size_bytes;
    let Some(first) = set.stop_lsn.0.checked_div(size) else {
        let stop = Stop { timeline: set.timeline, number: 0 };
        return Ok(Walked::Not(Unreached::Missing(stop, false)));
    };
    for number in first.. {
        let stop = Stop { timeline: path.owner(number, size), number };
        let tail = wal.tail_behind(stop.timeline, number, set.stop_lsn);
        let is_whole = wal.has(stop.timeline, number);
        if !is_whole && tail.is_none() {
            let more = path.has_wal_from(number, &wal.ranges, size);
            return Ok(Walked::Not(Unreached::Missing(stop, more)));
        }
        let facts = records.facts(stop.timeline, number)?;
        if visit(stop, &facts, records)? {
            return Ok(Walked::Found(stop));
        }
        if !facts.whole {
            return Ok(Walked::Not(Unreached::BreaksOff(stop, facts.end_lsn)));
        }
        if !is_whole {
            let more = path.has_wal_from(number + 1, &wal.ranges, size);
            return Ok(Walked::Not(Unreached::Missing(stop, more)));
        }
    }
    Ok(Walked::Not(Unreached::BeforeSet))
}

/// All archived segments that a server on this path would read, in order, with those of which there are pieces.
pub(super) fn archived_on(path: &TimelinePath, wal: &ArchivedWal) -> Vec<Stop> {
    let tails = wal.tails.keys().map(|(timeline, number)| Stop { timeline: *timeline, number: *number });
    let mut stops: Vec<Stop> = wal
        .ranges
        .iter()
        .flat_map(|(timeline, ranges)| ranges.iter().map(|range| (*timeline, range.clone())))
        .flat_map(|(timeline, range)| range.map(move |number| Stop { timeline, number }))
        .chain(tails)
        .filter(|stop| path.owner(stop.number, wal.segment_size_bytes) == stop.timeline)
        .collect();
    stops.sort_unstable_by_key(|stop| stop.number);
    stops
}

pub(super) fn segment_name(stop: Stop, wal: &ArchivedWal) -> WalSegmentName {
    let start = Lsn(stop.number * wal.segment_size_bytes);
    WalSegmentName::containing(stop.timeline, start, wal.segment_size_bytes)
}

/// The first segment of the set's own WAL that the archive does not have.
pub(super) fn first_missing(set: &SetPoint, path: &TimelinePath, wal: &ArchivedWal) -> Option<Stop> {
    let size = wal.segment_size_bytes;
    let mut own = set.start_lsn.0.checked_div(size)?..=set.stop_lsn.0.checked_div(size)?;
    let stop = |number| Stop { timeline: path.owner(number, size), number };
    let is_there = |number: u64| {
        let owner = path.owner(number, size);
        wal.has(owner, number) || wal.tail_behind(owner, number, set.stop_lsn).is_some()
    };
    own.find(|number| !is_there(*number)).map(stop)
}
