//! Which objects of the WAL archive are needed: those from which recovery goes on behind a set that anchors it.

use std::collections::BTreeMap;

use super::facts::{CompleteSet, RetentionInventory, WalObject};
use super::timelines::Timelines;
use crate::terms::{BackupLabel, Lsn, TimelineId};

/// The sets behind which WAL is kept, by cluster and timeline: where the oldest one begins.
pub(super) struct Anchors<'a> {
    timelines: &'a Timelines<'a>,
    from: BTreeMap<(u64, TimelineId), (Lsn, String)>,
    newest_rank: usize,
    ranks: BTreeMap<u64, usize>,
}

impl<'a> Anchors<'a> {
    /// Those that the sets are.
    pub(super) fn new<'s>(
        timelines: &'a Timelines<'a>,
        inventory: &RetentionInventory,
        sets: impl Iterator<Item = (&'s BackupLabel, &'s CompleteSet)>,
    ) -> Self {
        let ranks = inventory.clusters.iter().enumerate().map(|(place, cluster)| (*cluster, place + 1)).collect();
        let mut anchors = Anchors { timelines, from: BTreeMap::new(), newest_rank: 0, ranks };
        for (label, set) in sets {
            let rank = anchors.ranks.get(&set.system_identifier).copied().unwrap_or_default();
            anchors.newest_rank = anchors.newest_rank.max(rank);
            let key = (set.system_identifier, set.timeline);
            let oldest = anchors.from.entry(key).or_insert_with(|| (set.start_lsn, label.to_string()));
            if set.start_lsn < oldest.0 {
                *oldest = (set.start_lsn, label.to_string());
            }
        }
        anchors
    }

    /// Why an object is needed; else why not.
    pub(super) fn judge(&self, object: &WalObject) -> Result<String, String> {
        let (cluster, timeline) = (object.system_identifier, object.timeline);
        let of_cluster = || self.from.range((cluster, TimelineId(0))..=(cluster, TimelineId(u32::MAX)));
        let Some(((_, highest), _)) = of_cluster().next_back() else {
            return match self.ranks.get(&cluster) {
                Some(rank) if *rank < self.newest_rank => {
                    Err("no set of that cluster is kept, and its name has a newer one".to_owned())
                }
                _ => Ok("no kept set of its cluster says from where on it is needed".to_owned()),
            };
        };
        if let Some((start, label)) = self.from.get(&(cluster, timeline))
            && object.end_lsn > *start
        {
            return Ok(format!("recovery from {label} on needs it"));
        }
        let Some(before) = self.timelines.before(cluster, timeline) else {
            return Ok("the history of its timeline is not in the archive".to_owned());
        };
        let reaching = before.iter().find_map(|(earlier, end)| {
            self.from.get(&(cluster, *earlier)).filter(|(start, _)| start < end).map(|(_, label)| label)
        });
        if let Some(label) = reaching {
            return Ok(format!("recovery from {label} on leads into its timeline"));
        }
        if timeline > *highest {
            return Ok("its timeline is newer than every kept set".to_owned());
        }
        match self.from.get(&(cluster, timeline)) {
            Some((_, label)) => Err(format!("older than {label}, the oldest set that WAL is kept for")),
            None => Err("no kept set leads into its timeline".to_owned()),
        }
    }
}
