//! Lines of history: which sets lead to which timeline, and whether anything happened there lately.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::facts::{CompleteSet, RetentionInventory};
use super::judge::{Judged, JudgedSet};
use crate::terms::{Lsn, TimelineId};

/// The timelines of all clusters of a source.
pub(super) struct Timelines<'a> {
    inventory: &'a RetentionInventory,
    /// What is known of where each came from.
    branches: BTreeMap<(u64, TimelineId), &'a [(TimelineId, Lsn)]>,
}

/// One way through history: a cluster's timeline and those it came from, each up to where it was left.
pub(super) struct Line {
    system_identifier: u64,
    timeline: TimelineId,
    before: Vec<(TimelineId, Lsn)>,
}

impl Line {
    /// Whether recovery along this line can begin with the set.
    pub(super) fn has(&self, set: &JudgedSet<'_>) -> bool {
        let complete = set.complete;
        complete.system_identifier == self.system_identifier
            && (complete.timeline == self.timeline
                || self
                    .before
                    .iter()
                    .any(|(timeline, end)| complete.timeline == *timeline && complete.stop_lsn <= *end))
    }
}

impl<'a> Timelines<'a> {
    pub(super) fn new(inventory: &'a RetentionInventory) -> Self {
        let branches = inventory
            .histories
            .iter()
            .map(|history| ((history.system_identifier, history.timeline), history.branches.as_slice()))
            .collect();
        Timelines { inventory, branches }
    }

    /// The timelines before this one; None if that is not known.
    pub(super) fn before(&self, system_identifier: u64, timeline: TimelineId) -> Option<&'a [(TimelineId, Lsn)]> {
        if timeline == TimelineId(1) {
            return Some(&[]);
        }
        self.branches.get(&(system_identifier, timeline)).copied()
    }

    /// Whether recovery from the one set can come to the other. Where histories are missing it is taken for possible.
    pub(super) fn leads_to(&self, from: &CompleteSet, to: &CompleteSet) -> bool {
        let is_left_later = |before: &[(TimelineId, Lsn)]| {
            before.iter().any(|(timeline, end)| from.timeline == *timeline && from.stop_lsn <= *end)
        };
        from.system_identifier == to.system_identifier
            && (from.timeline == to.timeline
                || self.before(to.system_identifier, to.timeline).is_none_or(is_left_later))
    }

    /// The lines on which something happened since `start`, and the one that is being written now.
    pub(super) fn lines_since(&self, judged: &Judged<'_>, start: Timestamp) -> Vec<Line> {
        let mut known: BTreeSet<(u64, TimelineId)> =
            judged.sets.iter().map(|set| (set.complete.system_identifier, set.complete.timeline)).collect();
        known.extend(self.inventory.wal.iter().map(|object| (object.system_identifier, object.timeline)));
        // The cluster of the newest set that counts is the one that goes on; its highest timeline is where it is.
        let newest = judged.sets.iter().rfind(|set| set.counts.is_ok()).map(|set| set.complete.system_identifier);
        let present = known.iter().copied().filter(|(cluster, _)| Some(*cluster) == newest).max();
        let live = known.iter().filter(|line| Some(**line) == present || self.is_alive(judged, **line, start));
        live.flat_map(|(cluster, timeline)| self.lines_to(judged, *cluster, *timeline)).collect()
    }

    /// Whether a set or a commit of the timeline is later than `start`.
    fn is_alive(&self, judged: &Judged<'_>, (cluster, timeline): (u64, TimelineId), start: Timestamp) -> bool {
        let has_set = judged.sets.iter().any(|set| {
            let is_on_it = set.complete.system_identifier == cluster && set.complete.timeline == timeline;
            // A set of uncertain time may be one of the window.
            is_on_it && set.counts.as_ref().map_or(set.is_restorable, |finished_at| *finished_at > start)
        });
        has_set
            || self.inventory.wal.iter().any(|object| {
                object.system_identifier == cluster
                    && object.timeline == timeline
                    && object.last_commit_at.is_some_and(|last| last > start)
            })
    }

    /// The ways to a timeline: one, or, as long as its history is not known, one from each lower timeline.
    fn lines_to(&self, judged: &Judged<'_>, system_identifier: u64, timeline: TimelineId) -> Vec<Line> {
        if let Some(before) = self.before(system_identifier, timeline) {
            return vec![Line { system_identifier, timeline, before: before.to_vec() }];
        }
        let of_cluster = judged.sets.iter().map(|set| set.complete);
        let lower: BTreeSet<TimelineId> = of_cluster
            .clone()
            .filter(|set| set.system_identifier == system_identifier && set.timeline < timeline)
            .map(|set| set.timeline)
            .collect();
        let in_sets = of_cluster
            .filter(|set| set.system_identifier == system_identifier && set.timeline == timeline)
            .map(|set| set.start_lsn);
        let in_wal = self
            .inventory
            .wal
            .iter()
            .filter(|object| object.system_identifier == system_identifier && object.timeline == timeline)
            .map(|object| object.end_lsn);
        let first = in_sets.chain(in_wal).min().unwrap_or(Lsn(u64::MAX));
        let alone = Line { system_identifier, timeline, before: Vec::new() };
        let from = lower.into_iter().map(|lower| Line { system_identifier, timeline, before: vec![(lower, first)] });
        std::iter::once(alone).chain(from).collect()
    }
}
