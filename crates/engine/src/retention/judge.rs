//! Which sets the rules may count: those that can be restored, in an order that no clock decides, with stamps that
//! can be right and sizes that can be whole.
//!
//! A set that does not count is never a reason for another one to go. It goes itself when it is older than everything
//! that the rules keep.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::facts::{CompleteSet, RetentionInventory, SetFacts};
use crate::terms::{BackupKind, BackupLabel};

/// By how much the clocks of two machines may differ before a stamp is one of the future.
const CLOCK_DIFFERENCE: SignedDuration = SignedDuration::from_hours(1);

/// A full set with less than this part of what an older one of the same cluster had is taken for a failure: a data
/// directory that was emptied or mounted wrongly backs up without an error.
const SHRUNK_TO: u64 = 10;

/// The sets in order, and which of them count.
pub(super) struct Judged<'a> {
    /// The sets that have a manifest, oldest first.
    pub(super) sets: Vec<JudgedSet<'a>>,
    /// Where each label is in it.
    pub(super) index: BTreeMap<&'a BackupLabel, usize>,
}

/// One of them.
pub(super) struct JudgedSet<'a> {
    pub(super) facts: &'a SetFacts,
    pub(super) complete: &'a CompleteSet,
    /// Which cluster of that name it is of, from 0.
    pub(super) rank: usize,
    /// Whether it can be restored: it and all it needs are there.
    pub(super) is_restorable: bool,
    /// When it was finished, if the rules may count it; else why not.
    pub(super) counts: Result<Timestamp, String>,
}

impl JudgedSet<'_> {
    pub(super) fn is_full(&self) -> bool {
        self.facts.kind == BackupKind::Full
    }
}

/// Judges every set with a manifest.
pub(super) fn judge(inventory: &RetentionInventory, at: Timestamp) -> Judged<'_> {
    let ranks = cluster_ranks(inventory);
    let mut sets: Vec<JudgedSet<'_>> = inventory
        .sets
        .iter()
        .filter_map(|facts| {
            let complete = facts.complete()?;
            let rank = ranks.get(&complete.system_identifier).copied().unwrap_or_default();
            Some(JudgedSet { facts, complete, rank, is_restorable: false, counts: Err(String::new()) })
        })
        .collect();
    sets.sort_by_key(|set| {
        let complete = set.complete;
        (set.rank, complete.timeline, complete.stop_lsn, complete.start_lsn, &set.facts.label)
    });
    let index: BTreeMap<&BackupLabel, usize> =
        sets.iter().enumerate().map(|(place, set)| (&set.facts.label, place)).collect();
    for place in 0..sets.len() {
        let doubt = cannot_restore(&sets, &index, place).or_else(|| stamp_doubt(sets[place].complete, at));
        sets[place].is_restorable = cannot_restore(&sets, &index, place).is_none();
        let finished_at = sets[place].complete.finished_at.unwrap_or(at);
        sets[place].counts = doubt.map_or(Ok(finished_at), Err);
    }
    doubt_the_shrunken(&mut sets);
    doubt_the_disordered(&mut sets);
    Judged { sets, index }
}

/// The place of each cluster among those of this name: as recorded, those that are not recorded before them.
fn cluster_ranks(inventory: &RetentionInventory) -> BTreeMap<u64, usize> {
    let mut ranks: BTreeMap<u64, usize> =
        inventory.sets.iter().filter_map(SetFacts::complete).map(|set| (set.system_identifier, 0)).collect();
    ranks.extend(inventory.clusters.iter().enumerate().map(|(place, cluster)| (*cluster, place + 1)));
    ranks
}

/// Why a set cannot be restored, if so.
fn cannot_restore(sets: &[JudgedSet<'_>], index: &BTreeMap<&BackupLabel, usize>, place: usize) -> Option<String> {
    let set = &sets[place];
    if set.facts.is_expiring {
        return Some("it has expired before".to_owned());
    }
    if let Some(flaw) = &set.complete.flaw {
        return Some(flaw.clone());
    }
    set.complete.prior.iter().find_map(|prior| match index.get(prior) {
        None => Some(format!("{prior}, which it needs, is not there")),
        Some(prior_place) => {
            let flaw = sets[*prior_place].complete.flaw.as_ref()?;
            Some(format!("{prior}, which it needs, is not whole: {flaw}"))
        }
    })
}

fn stamp_doubt(complete: &CompleteSet, at: Timestamp) -> Option<String> {
    match complete.finished_at {
        None => Some("its stamps make no sense".to_owned()),
        Some(finished_at) if finished_at.duration_since(at) > CLOCK_DIFFERENCE => {
            Some("its stamp lies in the future".to_owned())
        }
        Some(_) => None,
    }
}

/// A full set that is far smaller than one before it does not count, whatever is wrong with that one.
fn doubt_the_shrunken(sets: &mut [JudgedSet<'_>]) {
    let mut largest: BTreeMap<u64, u64> = BTreeMap::new();
    for set in sets {
        let before = largest.entry(set.complete.system_identifier).or_default();
        if set.counts.is_ok() && set.is_full() && set.complete.source_bytes < *before / SHRUNK_TO {
            set.counts = Err(format!(
                "it has {} bytes of data where an older one has {before}: perhaps it is of an emptied directory",
                set.complete.source_bytes
            ));
        }
        *before = (*before).max(set.complete.source_bytes);
    }
}

/// Stamps have to rise with the positions in WAL. Where they do not, those count that belong to every longest rising
/// selection: of a few wrong clocks among many right ones, only the wrong ones are left out.
fn doubt_the_disordered(sets: &mut [JudgedSet<'_>]) {
    let counted: Vec<usize> = (0..sets.len()).filter(|place| sets[*place].counts.is_ok()).collect();
    let stamps: Vec<Timestamp> = counted.iter().filter_map(|place| sets[*place].counts.clone().ok()).collect();
    for (place, is_certain) in counted.iter().zip(in_every_longest_rise(&stamps)) {
        if !is_certain {
            sets[*place].counts = Err("its stamp and those of other sets contradict their places in WAL".to_owned());
        }
    }
}

/// For each value, whether every longest selection of values that do not fall has it.
fn in_every_longest_rise(values: &[Timestamp]) -> Vec<bool> {
    if values.is_sorted() {
        return vec![true; values.len()];
    }
    // The longest rise that ends at each value, and the longest that begins there.
    let mut ends = vec![1usize; values.len()];
    let mut begins = vec![1usize; values.len()];
    for place in 0..values.len() {
        let before = (0..place).filter(|earlier| values[*earlier] <= values[place]).map(|earlier| ends[earlier]);
        ends[place] += before.max().unwrap_or(0);
    }
    for place in (0..values.len()).rev() {
        let after =
            (place + 1..values.len()).filter(|later| values[*later] >= values[place]).map(|later| begins[later]);
        begins[place] += after.max().unwrap_or(0);
    }
    let longest = ends.iter().copied().max().unwrap_or(0);
    let is_in_one = |place: usize| ends[place] + begins[place] == longest + 1;
    let mut at_height: BTreeMap<usize, usize> = BTreeMap::new();
    for place in (0..values.len()).filter(|place| is_in_one(*place)) {
        *at_height.entry(ends[place]).or_default() += 1;
    }
    (0..values.len()).map(|place| is_in_one(place) && at_height.get(&ends[place]) == Some(&1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certain(seconds: &[i64]) -> Vec<bool> {
        let values: Vec<Timestamp> = seconds.iter().map(|second| Timestamp::from_second(*second).unwrap()).collect();
        in_every_longest_rise(&values)
    }

    #[test]
    fn one_wrong_clock_among_many_is_found() {
        assert_eq!(certain(&[1, 2, 2, 3]), [true; 4]);
        assert_eq!(certain(&[1, 2, 3, 4, -100]), [true, true, true, true, false]);
        assert_eq!(certain(&[1, 900, 2, 3]), [true, false, true, true]);
        assert_eq!(certain(&[3, 10, 5]), [true, false, false], "either may be the wrong one");
        assert_eq!(certain(&[]), [true; 0]);
    }
}
