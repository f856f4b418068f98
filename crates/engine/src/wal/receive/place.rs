//! Where a receiver goes on: what the repository has decides, not what the slot says. Pure.

use crate::catalog::wal_inventory::WalInventory;
use crate::catalog::wal_names::WalFileName;
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
    /// Where the pieces of the next segment end; None if nobody has looked.
    pub(super) reached: Option<Lsn>,
}

impl Held {
    /// What `inventory` has of `timeline`.
    pub(super) fn of(inventory: &WalInventory, timeline: TimelineId, segment_size_bytes: u64) -> Self {
        let Some(wal) = inventory.timelines.get(&timeline) else { return Held::default() };
        let mut held = Held {
            last_whole: wal.ranges.iter().map(|range| range.last).max(),
            first_piece: wal.pieces.iter().map(|piece| piece.segment).min(),
            reached: None,
        };
        // What a server archives as partial is all there ever will be of that segment.
        let is_partial = |next: &SegmentNumber| {
            wal.partials.iter().any(|file| match &file.name {
                WalFileName::Partial(segment) => segment.number(segment_size_bytes) == Some(*next),
                _ => false,
            })
        };
        held.reached = held.next().filter(is_partial).map(|next| Lsn((next.0 + 1).saturating_mul(segment_size_bytes)));
        held
    }

    /// The first segment that is not whole yet.
    pub(super) fn next(self) -> Option<SegmentNumber> {
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
        Some(end_lsn) if held(own).reached.unwrap_or(start_lsn).max(start_lsn) >= end_lsn => {
            Some(Place { timeline: ways[found + 1].0, start_lsn: segment_start(end_lsn, segment_size_bytes) })
        }
        _ => Some(Place { timeline: own, start_lsn }),
    }
}

/// The ends that the archive lacks of timelines which were left on the way to `timeline`, oldest first; each from the start of
/// the first segment that is not there. What lies before the oldest timeline that is held is not missed.
pub(super) fn holes(
    timeline: TimelineId,
    history: Option<&TimelineHistory>,
    held: &dyn Fn(TimelineId) -> Held,
    segment_size_bytes: u64,
) -> Vec<Place> {
    let branches = history.map_or(&[][..], |history| &history.branches);
    let mut holes = Vec::new();
    let (mut begin_lsn, mut has_begun) = (Lsn(0), false);
    for branch in branches.iter().take_while(|branch| branch.timeline != timeline) {
        let (own, next) = (held(branch.timeline), held(branch.timeline).next());
        has_begun |= next.is_some();
        let start_lsn = match next {
            Some(next) => Lsn(next.0 * segment_size_bytes),
            None => segment_start(begin_lsn, segment_size_bytes),
        };
        let reached = own.reached.unwrap_or(start_lsn).max(begin_lsn);
        if has_begun && reached.max(start_lsn) < branch.end_lsn {
            holes.push(Place { timeline: branch.timeline, start_lsn });
        }
        begin_lsn = begin_lsn.max(branch.end_lsn);
    }
    holes
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
        Held { last_whole: Some(SegmentNumber(last)), ..Held::default() }
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
        let piece = Held { first_piece: Some(SegmentNumber(2)), ..Held::default() };
        assert_eq!(go_on(&[(1, piece)]), Some((1, 2)));
        let both = Held { first_piece: Some(SegmentNumber(3)), ..whole(2) };
        assert_eq!(go_on(&[(1, both)]), Some((1, 3)));
        let pieces = |reached| Held { reached: Some(Lsn(reached)), ..whole(4) };
        assert_eq!(go_on(&[(1, pieces(5 * SIZE + 99))]), Some((1, 5)));
        assert_eq!(go_on(&[(1, pieces(5 * SIZE + 100))]), Some((2, 5)), "pieces reach where it was left");
        // A timeline that this server never had says nothing.
        assert_eq!(go_on(&[(4, whole(30))]), None);
    }

    #[test]
    fn the_ends_of_timelines_that_were_left_are_missed() {
        let missed = |timeline: u32, held: &[(u32, Held)]| -> Vec<(u32, u64)> {
            let held = |timeline: TimelineId| {
                held.iter().find(|(own, _)| *own == timeline.0).map_or_else(Held::default, |(_, held)| *held)
            };
            let holes = holes(TimelineId(timeline), Some(&history()), &held, SIZE);
            holes.into_iter().map(|place| (place.timeline.0, place.start_lsn.0 / SIZE)).collect()
        };
        let pieces = |last: u64, reached: u64| Held { reached: Some(Lsn(reached)), ..whole(last) };
        assert_eq!(missed(3, &[(3, whole(20))]), [], "the archive begins on the last timeline");
        assert_eq!(missed(3, &[(2, whole(8)), (3, whole(20))]), []);
        assert_eq!(missed(3, &[(2, whole(6)), (3, whole(20))]), [(2, 7)]);
        assert_eq!(missed(3, &[(1, whole(2)), (3, whole(20))]), [(1, 3), (2, 5)], "nothing of the one between");
        assert_eq!(missed(2, &[(1, whole(2)), (2, whole(20))]), [(1, 3)]);
        assert_eq!(missed(2, &[(1, pieces(4, 5 * SIZE + 99)), (2, whole(6))]), [(1, 5)]);
        assert_eq!(missed(2, &[(1, pieces(4, 5 * SIZE + 100)), (2, whole(6))]), [], "its last segment is left open");
        assert_eq!(missed(1, &[(1, whole(2))]), [], "the server is there still");
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
