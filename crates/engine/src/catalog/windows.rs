//! Which points a source can be recovered to: from the consistency point of a set to the end of the WAL behind it.
//!
//! Pure: filled from manifests and from the list of archived WAL.

use std::collections::{BTreeMap, BTreeSet};

use super::timeline_path::{Ancestors, SegmentRange, TimelinePath};
use crate::terms::{BackupLabel, Lsn, TimelineId};

/// Where a set can begin a recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetPoint {
    /// The set.
    pub label: BackupLabel,
    /// Its timeline.
    pub timeline: TimelineId,
    /// Where replay starts.
    pub start_lsn: Lsn,
    /// Where the cluster is consistent.
    pub stop_lsn: Lsn,
    /// When the backup ended by the server's clock: no commit before `stop_lsn` is later.
    pub stop_time: Option<jiff::Timestamp>,
}

/// The archived WAL of one cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArchivedWal {
    /// Size of a segment; 0 only if nothing is archived.
    pub segment_size_bytes: u64,
    /// Whole segments of each timeline, in order, merged; without those that are there twice with different bytes.
    pub ranges: BTreeMap<TimelineId, Vec<SegmentRange>>,
    /// The latter: nobody can tell which of the two is right, so none is delivered.
    pub conflicts: BTreeSet<(TimelineId, u64)>,
    /// Of segments that are not there as a whole: where the pieces end that are there from their start on.
    pub tails: BTreeMap<(TimelineId, u64), Lsn>,
    /// What the history files say.
    pub histories: BTreeMap<TimelineId, Ancestors>,
}

/// Points that can be reached on the path of one timeline, without a gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryWindow {
    /// The timeline that the path leads to.
    pub timeline: TimelineId,
    /// The sets that recovery can begin with, by consistency point.
    pub sets: Vec<SetPoint>,
    /// Consistency point of the first set.
    pub begin_lsn: Lsn,
    /// End of the archived WAL; `begin_lsn` if none is archived behind it.
    pub end_lsn: Lsn,
    /// The archived segments that recovery reads from the consistency point of the first set on; of the last one there may
    /// be pieces only.
    pub segments: SegmentRange,
    /// Whether the path has more WAL behind a gap.
    pub ends_in_gap: bool,
}

impl RecoveryWindow {
    /// Whether any WAL behind the first set's own end is archived.
    pub fn has_archived_wal(&self) -> bool {
        !self.segments.is_empty()
    }
}

impl ArchivedWal {
    /// Every timeline that has WAL, a history, or a set.
    pub fn timelines(&self, sets: &[SetPoint]) -> Vec<TimelineId> {
        let with_wal = self.ranges.iter().filter(|(_, ranges)| !ranges.is_empty()).map(|(timeline, _)| *timeline);
        let with_pieces = self.tails.keys().map(|(timeline, _)| *timeline);
        let all = with_wal
            .chain(with_pieces)
            .chain(self.histories.keys().copied())
            .chain(sets.iter().map(|set| set.timeline));
        let mut all: Vec<TimelineId> = all.collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Where the pieces of a segment end that is not there as a whole, if that is behind `lsn`.
    pub fn tail_behind(&self, timeline: TimelineId, number: u64, lsn: Lsn) -> Option<Lsn> {
        self.tails.get(&(timeline, number)).copied().filter(|end| *end > lsn)
    }

    /// Whether there are pieces of a segment that is not there as a whole.
    pub fn has_tail(&self, timeline: TimelineId, number: u64) -> bool {
        self.tails.contains_key(&(timeline, number))
    }

    /// Whether the whole segment with this number is there.
    pub fn has(&self, timeline: TimelineId, number: u64) -> bool {
        self.ranges.get(&timeline).is_some_and(|ranges| ranges.iter().any(|range| range.contains(&number)))
    }

    /// Whether the whole segment with this number is there, or a later one of its timeline.
    pub fn has_at_or_behind(&self, timeline: TimelineId, number: u64) -> bool {
        self.ranges.get(&timeline).is_some_and(|ranges| ranges.iter().any(|range| range.end > number))
    }

    /// The gaps between the ranges of `timeline`.
    pub fn gaps(&self, timeline: TimelineId) -> Vec<SegmentRange> {
        let ranges = self.ranges.get(&timeline).map_or(&[][..], Vec::as_slice);
        ranges.windows(2).map(|pair| pair[0].end..pair[1].start).collect()
    }
}

/// The windows on the path of `timeline`, by consistency point.
pub fn recovery_windows(timeline: TimelineId, sets: &[SetPoint], wal: &ArchivedWal) -> Vec<RecoveryWindow> {
    let path = TimelinePath::new(timeline, &wal.histories);
    let mut on_path: Vec<&SetPoint> = sets.iter().filter(|set| path.holds(set.timeline, set.stop_lsn)).collect();
    on_path.sort_by_key(|set| (set.stop_lsn, set.timeline, set.label.clone()));
    let mut windows: Vec<RecoveryWindow> = Vec::new();
    for set in on_path {
        let Behind { segments, end_lsn, ends_in_gap } = wal_behind(&path, set, wal);
        match windows.last_mut() {
            // The WAL that this set needs is part of that window.
            Some(window) if !segments.is_empty() && window.segments.end == segments.end => {
                window.sets.push(set.clone());
            }
            _ => {
                windows.push(RecoveryWindow {
                    timeline,
                    begin_lsn: set.stop_lsn,
                    end_lsn,
                    segments,
                    ends_in_gap,
                    sets: vec![set.clone()],
                });
            }
        }
    }
    windows
}

/// The archived WAL behind a set.
struct Behind {
    /// From the segment on that holds the byte behind the consistency point.
    segments: SegmentRange,
    /// Where it ends; the consistency point if there is none.
    end_lsn: Lsn,
    /// Whether more follows behind a gap.
    ends_in_gap: bool,
}

fn wal_behind(path: &TimelinePath, set: &SetPoint, wal: &ArchivedWal) -> Behind {
    let size = wal.segment_size_bytes;
    let Some(first) = set.stop_lsn.0.checked_div(size) else {
        return Behind { segments: 0..0, end_lsn: set.stop_lsn, ends_in_gap: false };
    };
    let end = path.contiguous_end(first, &wal.ranges, size);
    let (end, end_lsn) = match wal.tail_behind(path.owner(end, size), end, set.stop_lsn) {
        Some(end_lsn) => (end + 1, end_lsn),
        None if end == first => (end, set.stop_lsn),
        None => (end, Lsn(end.saturating_mul(size))),
    };
    Behind { segments: first..end, end_lsn, ends_in_gap: path.has_wal_from(end, &wal.ranges, size) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SEGMENT: u64 = 4;

    fn set(number: usize, timeline: u32, stop_lsn: u64) -> SetPoint {
        SetPoint {
            label: format!("20260101-{number:06}F").parse().unwrap(),
            timeline: TimelineId(timeline),
            start_lsn: Lsn(stop_lsn.saturating_sub(2)),
            stop_lsn: Lsn(stop_lsn),
            stop_time: None,
        }
    }

    fn wal(ranges: &[(u32, &[SegmentRange])], histories: &[(u32, &[(u32, u64)])]) -> ArchivedWal {
        let ancestors = |list: &[(u32, u64)]| list.iter().map(|(tli, lsn)| (TimelineId(*tli), Lsn(*lsn))).collect();
        ArchivedWal {
            segment_size_bytes: SEGMENT,
            ranges: ranges.iter().map(|(timeline, list)| (TimelineId(*timeline), list.to_vec())).collect(),
            conflicts: BTreeSet::new(),
            tails: BTreeMap::new(),
            histories: histories.iter().map(|(timeline, list)| (TimelineId(*timeline), ancestors(list))).collect(),
        }
    }

    fn bounds(windows: &[RecoveryWindow]) -> Vec<(u64, u64, usize, bool)> {
        let bounds =
            |window: &RecoveryWindow| (window.begin_lsn.0, window.end_lsn.0, window.sets.len(), window.ends_in_gap);
        windows.iter().map(bounds).collect()
    }

    #[test]
    fn a_gap_splits_the_window() {
        let sets = [set(1, 1, 5), set(2, 1, 9), set(3, 1, 22)];
        let wal = wal(&[(1, &[0..4, 5..8])], &[]);
        let windows = recovery_windows(TimelineId(1), &sets, &wal);
        assert_eq!(bounds(&windows), [(5, 16, 2, true), (22, 32, 1, false)]);
        assert_eq!(wal.gaps(TimelineId(1)), [4..5]);
    }

    #[test]
    fn pieces_of_the_next_segment_belong_to_the_window() {
        let with_tail = |tail: (u32, u64, u64)| {
            let mut wal = wal(&[(1, &[0..4, 6..8]), (2, &[6..7])], &[(2, &[(1, 25)])]);
            wal.tails.insert((TimelineId(tail.0), tail.1), Lsn(tail.2));
            wal
        };
        let windows = |timeline, stop_lsn, tail| {
            bounds(&recovery_windows(TimelineId(timeline), &[set(1, 1, stop_lsn)], &with_tail(tail)))
        };
        assert_eq!(windows(1, 5, (1, 4, 18)), [(5, 18, 1, true)]);
        assert_eq!(windows(1, 5, (1, 5, 22)), [(5, 16, 1, true)], "behind a gap");
        assert_eq!(windows(1, 17, (1, 4, 18)), [(17, 18, 1, true)], "nothing else behind the set");
        assert_eq!(windows(1, 18, (1, 4, 18)), [(18, 18, 1, true)], "the set itself has it");
        assert_eq!(windows(1, 26, (1, 8, 33)), [(26, 33, 1, false)]);
        assert_eq!(windows(2, 24, (2, 7, 30)), [(24, 30, 1, false)]);
        assert_eq!(windows(2, 24, (1, 7, 30)), [(24, 28, 1, false)], "of a timeline that was left");
        let sets = [set(1, 1, 5), set(2, 1, 9)];
        assert_eq!(bounds(&recovery_windows(TimelineId(1), &sets, &with_tail((1, 4, 18)))), [(5, 18, 2, true)]);
    }

    #[test]
    fn a_set_without_archived_wal_reaches_its_own_end() {
        let windows = recovery_windows(TimelineId(1), &[set(1, 1, 5)], &ArchivedWal::default());
        assert_eq!(bounds(&windows), [(5, 5, 1, false)]);
        let later = wal(&[(1, &[3..4])], &[]);
        assert_eq!(bounds(&recovery_windows(TimelineId(1), &[set(1, 1, 5)], &later)), [(5, 5, 1, true)]);
    }

    #[test]
    fn the_path_decides_which_sets_count() {
        let sets = [set(1, 1, 5), set(2, 1, 30), set(3, 2, 26)];
        let wal = wal(&[(1, &[0..9]), (2, &[6..8])], &[(2, &[(1, 25)])]);
        assert_eq!(bounds(&recovery_windows(TimelineId(2), &sets, &wal)), [(5, 32, 2, false)]);
        assert_eq!(bounds(&recovery_windows(TimelineId(1), &sets, &wal)), [(5, 36, 2, false)]);
        assert_eq!(wal.timelines(&sets), [TimelineId(1), TimelineId(2)]);
    }

    /// A tree of timelines with WAL that has holes, and sets anywhere on it.
    fn worlds() -> impl Strategy<Value = (Vec<SetPoint>, ArchivedWal)> {
        let parents = prop::collection::vec((0usize..4, 0u64..60), 0..4);
        let files = prop::collection::vec(any::<[bool; 16]>(), 5);
        let sets = prop::collection::vec((0usize..5, 1u64..60), 0..6);
        (parents, files, sets).prop_map(|(parents, files, sets)| {
            let mut histories: BTreeMap<TimelineId, Ancestors> = BTreeMap::new();
            for (number, (parent, branch)) in parents.iter().enumerate() {
                let parent = TimelineId((parent % (number + 1)) as u32 + 1);
                let mut ancestors = histories.get(&parent).cloned().unwrap_or_default();
                ancestors.push((parent, Lsn(*branch)));
                histories.insert(TimelineId(number as u32 + 2), ancestors);
            }
            let timeline_count = parents.len() + 1;
            let mut ranges: BTreeMap<TimelineId, Vec<SegmentRange>> = BTreeMap::new();
            for (number, there) in files.iter().take(timeline_count).enumerate() {
                let list = ranges.entry(TimelineId(number as u32 + 1)).or_default();
                for segment in (0..16).filter(|segment| there[*segment as usize] || segment % 5 != number as u64) {
                    match list.last_mut() {
                        Some(last) if last.end == segment => last.end += 1,
                        _ => list.push(segment..segment + 1),
                    }
                }
            }
            let sets = sets.iter().enumerate();
            let sets =
                sets.map(|(number, (timeline, stop))| set(number, (timeline % timeline_count) as u32 + 1, *stop));
            (sets.collect(), ArchivedWal { segment_size_bytes: SEGMENT, ranges, histories, ..ArchivedWal::default() })
        })
    }

    /// As the server's timeline.c has it: the entries of a history, newest first, with begin and end.
    fn server_entries(timeline: TimelineId, wal: &ArchivedWal) -> Vec<(TimelineId, u64, Option<u64>)> {
        let mut entries = Vec::new();
        let mut begin = 0;
        for (ancestor, branch) in wal.histories.get(&timeline).into_iter().flatten() {
            entries.insert(0, (*ancestor, begin, Some(branch.0)));
            begin = branch.0;
        }
        entries.insert(0, (timeline, begin, None));
        entries
    }

    /// tliOfPointInHistory
    fn timeline_of_point(lsn: u64, entries: &[(TimelineId, u64, Option<u64>)]) -> Option<TimelineId> {
        let on =
            |entry: &&(_, u64, Option<u64>)| (entry.1 == 0 || entry.1 <= lsn) && entry.2.is_none_or(|end| lsn < end);
        entries.iter().find(on).map(|entry| entry.0)
    }

    /// XLogFileReadAnyTLI, but that the file must be of the timeline that it tries first.
    fn file_is_there(segment: u64, entries: &[(TimelineId, u64, Option<u64>)], wal: &ArchivedWal) -> bool {
        let first = entries.iter().find(|entry| entry.1 == 0 || entry.1 / SEGMENT <= segment);
        first.is_some_and(|entry| wal.ranges[&entry.0].iter().any(|range| range.contains(&segment)))
    }

    /// Whether a server that starts from `set` can read up to the byte at `lsn`.
    fn reaches(set: &SetPoint, lsn: u64, timeline: TimelineId, wal: &ArchivedWal) -> bool {
        let entries = server_entries(timeline, wal);
        set.stop_lsn.0 <= lsn
            && timeline_of_point(set.stop_lsn.0 - 1, &entries) == Some(set.timeline)
            && (set.stop_lsn.0 / SEGMENT..=lsn / SEGMENT).all(|segment| file_is_there(segment, &entries, wal))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

        #[test]
        fn windows_are_what_a_server_could_read((sets, wal) in worlds()) {
            for timeline in wal.timelines(&sets) {
                let windows = recovery_windows(timeline, &sets, &wal);
                for lsn in 0..80u64 {
                    for set in &sets {
                        let inside = windows.iter().any(|window| {
                            let has_set = window.sets.contains(set);
                            has_set && set.stop_lsn.0 <= lsn && lsn < window.end_lsn.0
                        });
                        prop_assert_eq!(inside, reaches(set, lsn, timeline, &wal), "{} {:?} {}", timeline, set, lsn);
                    }
                }
                for window in &windows {
                    prop_assert_eq!(window.begin_lsn, window.sets[0].stop_lsn);
                    prop_assert!(!file_is_there(window.segments.end, &server_entries(timeline, &wal), &wal));
                }
            }
        }
    }
}
