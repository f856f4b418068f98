//! The archived WAL of one cluster as recovery planning wants it: ranges at once, facts of a segment when it is asked.

use std::collections::{BTreeMap, BTreeSet};

use super::inventory::{SetState, list_sets};
use super::recoverable::SegmentFacts;
use super::repository::Repository;
use super::timeline_path::{Ancestors, SegmentRange};
use super::wal_bundle::{OpenBundle, open_bundle};
use super::wal_inventory::{Detail, WalInventory};
use super::wal_pieces::{open_pieces, tails};
use super::windows::{ArchivedWal, SetPoint};
use crate::error::{Error, ErrorKind, Result};
use crate::storage::at_once;
use crate::terms::{SegmentNumber, SourceName, TimelineId, WalFacts, WalSegmentName};

/// An archive whose objects are opened one by one.
pub struct ArchiveFacts<'a> {
    repository: &'a Repository,
    inventory: WalInventory,
    wal: ArchivedWal,
    /// Of all members of each object that was opened, and of all segments of which there are pieces.
    facts: BTreeMap<(TimelineId, u64), WalFacts>,
    /// The segment that was asked for last.
    asked: Option<(TimelineId, u64)>,
}

/// Who goes back from segment to segment has so many looked at together.
const WALK_SEGMENTS: u64 = 16;

impl<'a> ArchiveFacts<'a> {
    /// Lists the WAL of one cluster.
    ///
    /// # Errors
    /// Those of the store.
    pub fn load(repository: &'a Repository, source: &SourceName, system_identifier: u64) -> Result<Self> {
        let inventory = WalInventory::load(repository, source, system_identifier, Detail::Listing)?;
        let mut wal = archived_wal(&inventory);
        let mut facts = BTreeMap::new();
        for (place, tail) in tails(repository, &inventory)? {
            wal.tails.insert(place, tail.end_lsn);
            facts.insert(place, tail.facts);
        }
        Ok(ArchiveFacts { repository, inventory, wal, facts, asked: None })
    }

    /// Ranges and histories.
    pub fn wal(&self) -> &ArchivedWal {
        &self.wal
    }

    /// What was listed.
    pub fn inventory(&self) -> &WalInventory {
        &self.inventory
    }

    /// The pieces of a segment that is not there as a whole, in order of offset.
    ///
    /// # Errors
    /// `Damage` if one does not read; those of the store.
    pub fn open_pieces(&self, timeline: TimelineId, number: u64) -> Result<Vec<OpenBundle>> {
        match self.inventory.timelines.get(&timeline) {
            Some(wal) => open_pieces(self.repository, &self.inventory, wal, SegmentNumber(number)),
            None => Ok(Vec::new()),
        }
    }

    /// The object that holds an archived segment, and which of its members that is.
    ///
    /// # Errors
    /// `Damage` if the object does not read; `Repository` if it is gone; those of the store.
    pub fn open(&self, timeline: TimelineId, number: u64) -> Result<(OpenBundle, usize)> {
        let name = WalSegmentName::new(timeline, SegmentNumber(number), self.wal.segment_size_bytes);
        let action = || format!("read WAL segment {name} in {}", self.repository.storage().describe());
        let bundles = self.inventory.timelines.get(&timeline).map_or(&[][..], |wal| wal.bundles.as_slice());
        let holds = |first: u64, count: u32| (first..first + u64::from(count)).contains(&number);
        let Some(stored) = bundles.iter().find(|bundle| holds(bundle.first.0, bundle.count)) else {
            return Err(Error::new(ErrorKind::Repository, action(), "it is not archived"));
        };
        let Some(bundle) = open_bundle(self.repository, &stored.object)? else {
            return Err(Error::new(ErrorKind::Repository, action(), "its object was removed meanwhile"));
        };
        let place = bundle.table.members.iter().position(|member| member.name == name.as_str());
        let place = place.ok_or_else(|| {
            Error::new(ErrorKind::Damage, action(), format!("object {} holds something else", stored.object))
        })?;
        Ok((bundle, place))
    }
}

impl SegmentFacts for ArchiveFacts<'_> {
    fn facts(&mut self, timeline: TimelineId, number: u64) -> Result<WalFacts> {
        let walks = self.asked.replace((timeline, number)) == Some((timeline, number + 1));
        if let Some(facts) = self.facts.get(&(timeline, number)) {
            return Ok(facts.clone());
        }
        let first = if walks { (number + 1).saturating_sub(WALK_SEGMENTS) } else { number };
        let is_wanted =
            |at: &u64| *at == number || self.wal.has(timeline, *at) && !self.facts.contains_key(&(timeline, *at));
        let wanted: Vec<u64> = (first..=number).rev().filter(is_wanted).collect();
        let opened = at_once(wanted, |at| {
            let table = self.open(timeline, at).map(|(bundle, place)| Some((at, bundle.table, place)));
            // What nobody has asked for fails when somebody does.
            if at == number { table } else { Ok(table.unwrap_or_default()) }
        })?;
        for (at, table, place) in opened.into_iter().flatten() {
            for (member, number) in table.members.iter().zip(at - place as u64..) {
                self.facts.insert((timeline, number), member.wal_facts().cloned().unwrap_or_default());
            }
        }
        Ok(self.facts.get(&(timeline, number)).cloned().unwrap_or_default())
    }
}

fn archived_wal(inventory: &WalInventory) -> ArchivedWal {
    let segment_size_bytes = inventory.segment_size_bytes.unwrap_or_default();
    let conflicts: BTreeSet<(TimelineId, u64)> = inventory
        .timelines
        .values()
        .flat_map(|wal| wal.conflicts.iter().map(|conflict| (wal.timeline, &conflict.segment)))
        .filter_map(|(timeline, segment)| Some((timeline, segment.number(segment_size_bytes)?.0)))
        .collect();
    let ranges = inventory.timelines.values().map(|wal| {
        let whole = wal.ranges.iter().map(|range| range.first.0..range.last.0 + 1);
        let without = |range: SegmentRange| {
            let numbers = conflicts.iter().filter(|(timeline, _)| *timeline == wal.timeline).map(|(_, number)| *number);
            without_numbers(range, numbers)
        };
        (wal.timeline, whole.flat_map(without).collect::<Vec<_>>())
    });
    let histories = inventory.timelines.values().filter_map(|wal| {
        let history = wal.history.as_ref()?;
        let ancestors: Ancestors = history.branches.iter().map(|branch| (branch.timeline, branch.end_lsn)).collect();
        Some((wal.timeline, ancestors))
    });
    ArchivedWal {
        segment_size_bytes,
        ranges: ranges.filter(|(_, ranges)| !ranges.is_empty()).collect(),
        histories: histories.collect(),
        conflicts,
        tails: BTreeMap::new(),
    }
}

/// `range` in parts between `numbers`, which come in order.
fn without_numbers(range: SegmentRange, numbers: impl Iterator<Item = u64>) -> Vec<SegmentRange> {
    let mut parts = Vec::new();
    let mut start = range.start;
    for number in numbers.filter(|number| range.contains(number)) {
        parts.push(start..number);
        start = number + 1;
    }
    parts.push(start..range.end);
    parts.retain(|part| !part.is_empty());
    parts
}

/// The complete sets of one cluster, as points where a recovery can begin.
///
/// # Errors
/// Those of the store.
pub fn set_points(repository: &Repository, source: &SourceName, system_identifier: u64) -> Result<Vec<SetPoint>> {
    let sets = list_sets(repository, source)?;
    let points = sets.into_iter().filter_map(|set| {
        let SetState::Complete(manifest) = set.state else { return None };
        let postgres = &manifest.postgres;
        (postgres.system_identifier.parse() == Ok(system_identifier)).then(|| SetPoint {
            label: set.label,
            timeline: postgres.timeline,
            start_lsn: postgres.start_lsn,
            stop_lsn: postgres.stop_lsn,
            stop_time: postgres.stop_time.as_ref().and_then(|time| time.parse().ok()),
        })
    });
    Ok(points.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflicts_cut_ranges() {
        let parts = |numbers: &[u64]| without_numbers(3..8, numbers.iter().copied());
        assert_eq!(parts(&[]), [3..8]);
        assert_eq!(parts(&[1, 3, 5, 7, 9]), [4..5, 6..7]);
        assert_eq!(parts(&[3, 4, 5, 6, 7]), []);
    }
}
