//! Where a receiver goes on: what the repository has decides, not what the slot says. Pure.

use crate::catalog::wal_inventory::WalInventory;
use crate::terms::{Lsn, SegmentNumber, TimelineHistory, TimelineId};

/// The start of a segment on a timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) timeline: TimelineId,
    pub(super) start_lsn: Lsn,
}

/// What the archive has of one timeline, as far as going on is concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// The last whole segment.
    pub(super) last_whole: Option<SegmentNumber>,
    /// The first segment of which there are pieces.
    pub(super) first_piece: Option<SegmentNumber>,
}

impl Held {
    /// What `inventory` has of `timeline`.
    pub(super) fn of(inventory: &WalInventory, timeline: TimelineId) -> Self {
        let Some(wal) = inventory.timelines.get(&timeline) else { return Held::default() };
        Held {
            last_whole: wal.ranges.iter().map(|range| range.last).max(),
            first_piece: wal.pieces.iter().map(|piece| piece.segment).min(),
        }
    }

    /// The first segment that is not whole yet.
    fn next(self) -> Option<SegmentNumber> {
        self.last_whole.map(|last| SegmentNumber(last.0 + 1)).or(self.first_piece)
    }
}

/// Where to go on with a server on `timeline`, which came about as `history` says (None: it is the first).
///
/// The newest timeline of which something is held decides. If it was left where all of it is held, its successor begins,
/// at the segment in which it was left. None if nothing is held.
pub(super) fn after(
    timeline: TimelineId,
    history: Option<&TimelineHistory>,
    held: &dyn Fn(TimelineId) -> Held,
    segment_size_bytes: u64,
) -> Option<Place> {
    let branches = history.map_or(&[][..], |history| &history.branches);
    let mut ways: Vec<(TimelineId, Option<Lsn>)> =
        branches.iter().map(|branch| (branch.timeline, Some(branch.end_lsn))).collect();
    ways.push((timeline, None));
    let found = ways.iter().rposition(|(timeline, _)| held(*timeline).next().is_some())?;
    let (own, end_lsn) = ways[found];
    let next = held(own).next()?;
    let start_lsn = Lsn(next.0 * segment_size_bytes);
    match end_lsn {
        Some(end_lsn) if start_lsn >= end_lsn => {
            Some(Place { timeline: ways[found + 1].0, start_lsn: segment_start(end_lsn, segment_size_bytes) })
        }
        _ => Some(Place { timeline: own, start_lsn }),
    }
}

/// Where to begin when nothing is held: the segment of `lsn`, on the timeline that had it.
pub(super) fn at(lsn: Lsn, timeline: TimelineId, history: Option<&TimelineHistory>, segment_size_bytes: u64) -> Place {
    let branches = history.map_or(&[][..], |history| &history.branches);
    let own = branches.iter().find(|branch| lsn < branch.end_lsn).map_or(timeline, |branch| branch.timeline);
    Place { timeline: own, start_lsn: segment_start(lsn, segment_size_bytes) }
}

/// The start of the segment that holds `lsn`.
pub(super) fn segment_start(lsn: Lsn, segment_size_bytes: u64) -> Lsn {
    Lsn(lsn.0 / segment_size_bytes * segment_size_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terms::TimelineBranch;

    const SIZE: u64 = 1 << 20;

    fn history() -> TimelineHistory {
        let branch = |timeline, end| TimelineBranch { timeline: TimelineId(timeline), end_lsn: Lsn(end) };
        TimelineHistory { timeline: TimelineId(3), branches: vec![branch(1, 5 * SIZE + 100), branch(2, 9 * SIZE)] }
    }

    fn whole(last: u64) -> Held {
        Held { last_whole: Some(SegmentNumber(last)), first_piece: None }
    }

    fn go_on(held: &[(u32, Held)]) -> Option<(u32, u64)> {
        let held = |timeline: TimelineId| {
            held.iter().find(|(own, _)| *own == timeline.0).map_or_else(Held::default, |(_, held)| *held)
        };
        let place = after(TimelineId(3), Some(&history()), &held, SIZE)?;
        Some((place.timeline.0, place.start_lsn.0 / SIZE))
    }

    #[test]
    fn the_repository_decides_where_to_go_on() {
        assert_eq!(go_on(&[]), None);
        assert_eq!(go_on(&[(1, whole(3))]), Some((1, 4)), "in the middle of an old timeline");
        assert_eq!(go_on(&[(1, whole(4))]), Some((1, 5)), "its last segment is left in the middle");
        assert_eq!(go_on(&[(1, whole(5))]), Some((2, 5)), "it is whole beyond where it was left");
        assert_eq!(go_on(&[(1, whole(4)), (2, whole(7))]), Some((2, 8)));
        assert_eq!(go_on(&[(2, whole(8))]), Some((3, 9)), "left at a boundary");
        assert_eq!(go_on(&[(3, whole(20)), (1, whole(4))]), Some((3, 21)));
        let piece = Held { last_whole: None, first_piece: Some(SegmentNumber(2)) };
        assert_eq!(go_on(&[(1, piece)]), Some((1, 2)));
        let both = Held { last_whole: Some(SegmentNumber(2)), first_piece: Some(SegmentNumber(3)) };
        assert_eq!(go_on(&[(1, both)]), Some((1, 3)));
        // A timeline that this server never had says nothing.
        assert_eq!(go_on(&[(4, whole(30))]), None);
    }

    #[test]
    fn an_empty_archive_begins_on_the_timeline_of_the_slot() {
        let at = |lsn| {
            let place = at(Lsn(lsn), TimelineId(3), Some(&history()), SIZE);
            (place.timeline.0, place.start_lsn.0 / SIZE)
        };
        assert_eq!(at(SIZE + 5), (1, 1));
        assert_eq!(at(6 * SIZE), (2, 6));
        assert_eq!(at(9 * SIZE), (3, 9));
    }
}
