//! The way that replay takes: along one timeline, before its beginning along its parent, and so on.
//!
//! The rule: tliOfPointInHistory in src/backend/access/transam/timeline.c and XLogFileReadAnyTLI in xlogrecovery.c: a
//! segment is read from the newest timeline of the path that has begun by then.

use std::collections::BTreeMap;

use crate::terms::{Lsn, TimelineId};

/// What a history file says: the ancestors of a timeline, oldest first, each with the LSN where the next one left it.
pub type Ancestors = Vec<(TimelineId, Lsn)>;

/// A timeline with everything that lies before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelinePath {
    /// Oldest first; the last one is the path's own timeline and has no end.
    legs: Vec<Leg>,
}

/// The part of a path on one timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leg {
    timeline: TimelineId,
    begin: Lsn,
    end: Lsn,
}

impl TimelinePath {
    /// The path that ends on `timeline`; a timeline without history in `histories` has nothing before it.
    pub fn new(timeline: TimelineId, histories: &BTreeMap<TimelineId, Ancestors>) -> Self {
        let ancestors = histories.get(&timeline).map_or(&[][..], Vec::as_slice);
        // A recovery that stopped before the branch of its own target timeline leaves a history whose branches go back:
        // what lies behind a later branch was never on the path.
        let mut legs = Vec::with_capacity(ancestors.len() + 1);
        let mut end = Lsn(u64::MAX);
        legs.push(Leg { timeline, begin: Lsn(0), end });
        for (ancestor, branch) in ancestors.iter().rev() {
            end = end.min(*branch);
            legs.push(Leg { timeline: *ancestor, begin: Lsn(0), end });
        }
        legs.reverse();
        for later in 1..legs.len() {
            legs[later].begin = legs[later - 1].end;
        }
        TimelinePath { legs }
    }

    /// The timeline at its end.
    pub fn timeline(&self) -> TimelineId {
        self.legs.last().map_or(TimelineId(0), |leg| leg.timeline)
    }

    /// Whether the byte of `timeline` in front of `lsn` is part of the path.
    pub fn holds(&self, timeline: TimelineId, lsn: Lsn) -> bool {
        let begins_before = |leg: &Leg| leg.begin.0 == 0 || leg.begin < lsn;
        self.legs.iter().any(|leg| leg.timeline == timeline && begins_before(leg) && lsn <= leg.end)
    }

    /// Where the path leaves `timeline`; none where it ends there, or never is on it.
    pub fn branch(&self, timeline: TimelineId) -> Option<Lsn> {
        self.legs.iter().find(|leg| leg.timeline == timeline).map(|leg| leg.end).filter(|end| end.0 < u64::MAX)
    }

    /// The timeline whose file a server reads for segment `number`.
    pub fn owner(&self, number: u64, segment_size_bytes: u64) -> TimelineId {
        let began = |leg: &&Leg| leg.begin.0.checked_div(segment_size_bytes).is_some_and(|first| first <= number);
        self.legs.iter().rev().find(began).map_or_else(|| self.timeline(), |leg| leg.timeline)
    }

    /// The first segment that a server reads from the path's own timeline.
    pub fn own_first_segment(&self, segment_size_bytes: u64) -> u64 {
        self.legs.last().and_then(|leg| leg.begin.0.checked_div(segment_size_bytes)).unwrap_or_default()
    }

    /// The segments that a server reads from `ranges` one after the other, beginning with `first`: how far they go.
    ///
    /// Gives the number after the last one; `first` itself if that one is not there.
    pub fn contiguous_end(
        &self,
        first: u64,
        ranges: &BTreeMap<TimelineId, Vec<SegmentRange>>,
        segment_size_bytes: u64,
    ) -> u64 {
        let mut next = first;
        loop {
            let owner = self.owner(next, segment_size_bytes);
            let Some(range) = range_of(ranges, owner, next) else { return next };
            // The next leg may take over inside the range.
            let next_owner =
                self.legs.iter().map(|leg| leg.begin.0.checked_div(segment_size_bytes).unwrap_or_default());
            let until = next_owner.filter(|begin| *begin > next).min().unwrap_or(u64::MAX);
            next = range.end.min(until);
        }
    }

    /// Whether the path has WAL in `ranges` at or behind segment `number`.
    pub fn has_wal_from(
        &self,
        number: u64,
        ranges: &BTreeMap<TimelineId, Vec<SegmentRange>>,
        segment_size_bytes: u64,
    ) -> bool {
        let of_leg = |leg: &Leg| {
            let first = leg.begin.0.checked_div(segment_size_bytes).unwrap_or_default().max(number);
            let end = if leg.end.0 == u64::MAX { u64::MAX } else { leg.end.0.div_ceil(segment_size_bytes) };
            let ranges = ranges.get(&leg.timeline).map_or(&[][..], Vec::as_slice);
            ranges.iter().any(|range| range.start.max(first) < range.end.min(end))
        };
        self.legs.iter().any(of_leg)
    }
}

/// Numbers of segments without a gap, the end not included.
pub type SegmentRange = std::ops::Range<u64>;

fn range_of(
    ranges: &BTreeMap<TimelineId, Vec<SegmentRange>>,
    timeline: TimelineId,
    number: u64,
) -> Option<&SegmentRange> {
    ranges.get(&timeline)?.iter().find(|range| range.contains(&number))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 16;

    fn path(timeline: u32, ancestors: &[(u32, u64)]) -> TimelinePath {
        let ancestors = ancestors.iter().map(|(timeline, lsn)| (TimelineId(*timeline), Lsn(*lsn))).collect();
        TimelinePath::new(TimelineId(timeline), &BTreeMap::from([(TimelineId(timeline), ancestors)]))
    }

    #[test]
    fn segments_belong_to_the_newest_timeline_that_has_begun() {
        let path = path(3, &[(1, 40), (2, 64)]);
        let owners: Vec<u32> = (0..6).map(|number| path.owner(number, SEGMENT).0).collect();
        assert_eq!(owners, [1, 1, 2, 2, 3, 3]);
        assert!(path.holds(TimelineId(1), Lsn(40)) && !path.holds(TimelineId(1), Lsn(41)));
        assert!(path.holds(TimelineId(2), Lsn(41)) && !path.holds(TimelineId(2), Lsn(40)));
        assert!(path.holds(TimelineId(3), Lsn(u64::MAX)) && !path.holds(TimelineId(4), Lsn(70)));
        assert_eq!((path.branch(TimelineId(2)), path.branch(TimelineId(3))), (Some(Lsn(64)), None));
        assert_eq!(path.own_first_segment(SEGMENT), 4);
    }

    #[test]
    fn two_branches_in_one_segment_leave_it_to_the_newest() {
        let path = path(3, &[(1, 33), (2, 40)]);
        assert_eq!([1, 2, 3].map(|number| path.owner(number, SEGMENT).0), [1, 3, 3]);
    }

    #[test]
    fn a_branch_that_goes_back_takes_what_lies_behind_it() {
        let path = path(3, &[(1, 100), (2, 80)]);
        assert!(path.holds(TimelineId(1), Lsn(80)) && !path.holds(TimelineId(1), Lsn(81)));
        assert_eq!([4, 5, 6].map(|number| path.owner(number, SEGMENT).0), [1, 3, 3]);
    }

    #[test]
    fn runs_go_from_timeline_to_timeline_and_end_at_gaps() {
        let path = path(2, &[(1, 40)]);
        let ranges = |one: SegmentRange, two: SegmentRange| {
            let there = |range: SegmentRange| Some(range).filter(|range| !range.is_empty()).into_iter().collect();
            BTreeMap::from([(TimelineId(1), there(one)), (TimelineId(2), there(two))])
        };
        let end = |first, ranges: &BTreeMap<_, _>| path.contiguous_end(first, ranges, SEGMENT);
        assert_eq!(end(0, &ranges(0..2, 2..5)), 5);
        assert_eq!(end(0, &ranges(0..9, 0..0)), 2, "the parent's WAL behind the branch is not the path's");
        assert_eq!(end(0, &ranges(0..1, 2..5)), 1);
        assert_eq!(end(1, &ranges(0..1, 2..5)), 1);
        assert!(path.has_wal_from(1, &ranges(0..1, 2..5), SEGMENT));
        assert!(!path.has_wal_from(5, &ranges(0..9, 2..5), SEGMENT));
        assert!(path.has_wal_from(2, &ranges(2..3, 0..0), SEGMENT), "the segment of the branch is the parent's too");
    }
}
