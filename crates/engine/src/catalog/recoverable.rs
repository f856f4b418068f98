//! The times of recovery windows, by what the records of archived WAL say.

use jiff::Timestamp;

use super::timeline_path::TimelinePath;
use super::windows::{ArchivedWal, RecoveryWindow, SetPoint, recovery_windows};
use crate::error::Result;
use crate::terms::{TimelineId, WalFacts};

/// What the records of archived segments say; a call may read from the repository.
pub trait SegmentFacts {
    /// The facts of a segment that is archived.
    ///
    /// # Errors
    /// Those of the store, `Damage` if the object that holds it does not read.
    fn facts(&mut self, timeline: TimelineId, number: u64) -> Result<WalFacts>;
}

/// A window with its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedWindow {
    /// What can be reached.
    pub window: RecoveryWindow,
    /// The first set is consistent by then; none if nobody knows.
    pub begin_time: Option<Timestamp>,
    /// The last commit or abort in the window; none if there is none behind the first set's end.
    ///
    /// A time target must lie before it: a server stops in front of the first commit that is later than the target.
    pub end_time: Option<Timestamp>,
}

/// The windows of `timeline` with their times.
///
/// # Errors
/// Those of `facts`.
pub fn timed_windows(
    timeline: TimelineId,
    sets: &[SetPoint],
    wal: &ArchivedWal,
    facts: &mut dyn SegmentFacts,
) -> Result<Vec<TimedWindow>> {
    let path = TimelinePath::new(timeline, &wal.histories);
    let timed = |window: RecoveryWindow| {
        let begin_time = match window.sets.first() {
            Some(set) => consistency_time(set, &path, wal, facts)?,
            None => None,
        };
        let end_time = last_end(&window, &path, wal, facts)?.filter(|end| begin_time.is_none_or(|begin| begin < *end));
        Ok(TimedWindow { window, begin_time, end_time })
    };
    recovery_windows(timeline, sets, wal).into_iter().map(timed).collect()
}

/// No commit before the set's point of consistency is later than this; none if neither the set nor the archive knows.
///
/// # Errors
/// Those of `facts`.
pub fn consistency_time(
    set: &SetPoint,
    path: &TimelinePath,
    wal: &ArchivedWal,
    facts: &mut dyn SegmentFacts,
) -> Result<Option<Timestamp>> {
    let size = wal.segment_size_bytes;
    if set.stop_time.is_some() || size == 0 {
        return Ok(set.stop_time);
    }
    let mut latest = None;
    for number in set.start_lsn.0 / size..=set.stop_lsn.0.saturating_sub(1) / size {
        let timeline = path.owner(number, size);
        if !wal.has(timeline, number) {
            return Ok(None);
        }
        latest = latest.max(latest_end(&facts.facts(timeline, number)?));
    }
    Ok(latest)
}

/// The latest commit or abort of a segment.
pub fn latest_end(facts: &WalFacts) -> Option<Timestamp> {
    facts.ended_at.and_then(|(_, latest)| latest.to_timestamp())
}

/// Goes back from the end of the window to the last segment in which a transaction ended.
fn last_end(
    window: &RecoveryWindow,
    path: &TimelinePath,
    wal: &ArchivedWal,
    facts: &mut dyn SegmentFacts,
) -> Result<Option<Timestamp>> {
    for number in window.segments.clone().rev() {
        let found = latest_end(&facts.facts(path.owner(number, wal.segment_size_bytes), number)?);
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}
