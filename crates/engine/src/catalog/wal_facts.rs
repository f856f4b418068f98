//! The archived WAL of one cluster as recovery planning wants it: ranges at once, facts of a segment when it is asked.

use std::collections::BTreeMap;

use super::inventory::{SetState, list_sets};
use super::recoverable::SegmentFacts;
use super::repository::Repository;
use super::timeline_path::{Ancestors, SegmentRange};
use super::wal_bundle::{OpenBundle, open_bundle};
use super::wal_inventory::{Detail, WalInventory};
use super::windows::{ArchivedWal, SetPoint};
use crate::error::{Error, ErrorKind, Result};
use crate::terms::{SourceName, TimelineId, WalFacts, WalSegmentName};

/// An archive whose objects are opened one by one.
pub struct ArchiveFacts<'a> {
    repository: &'a Repository,
    inventory: WalInventory,
    wal: ArchivedWal,
    /// Of all members of each object that was opened.
    facts: BTreeMap<(TimelineId, u64), WalFacts>,
}

impl<'a> ArchiveFacts<'a> {
    /// Lists the WAL of one cluster.
    ///
    /// # Errors
    /// Those of the store.
    pub fn load(repository: &'a Repository, source: &SourceName, system_identifier: u64) -> Result<Self> {
        let inventory = WalInventory::load(repository, source, system_identifier, Detail::Listing)?;
        let wal = archived_wal(&inventory);
        Ok(ArchiveFacts { repository, inventory, wal, facts: BTreeMap::new() })
    }

    /// Ranges and histories.
    pub fn wal(&self) -> &ArchivedWal {
        &self.wal
    }

    /// What was listed.
    pub fn inventory(&self) -> &WalInventory {
        &self.inventory
    }

    /// The object that holds an archived segment, and which of its members that is.
    ///
    /// # Errors
    /// `Damage` if the object does not read; `Repository` if it is gone; those of the store.
    pub fn open(&self, timeline: TimelineId, number: u64) -> Result<(OpenBundle, usize)> {
        let name = WalSegmentName::new(timeline, crate::terms::SegmentNumber(number), self.wal.segment_size_bytes);
        let action = || format!("read WAL segment {name} in {}", self.repository.storage().describe());
        let bundles = self.inventory.timelines.get(&timeline).map_or(&[][..], |wal| wal.bundles.as_slice());
        let holds = |first: u64, count: u32| (first..first + u64::from(count)).contains(&number);
        let Some(stored) = bundles.iter().find(|bundle| holds(bundle.first.0, bundle.count)) else {
            return Err(Error::new(ErrorKind::Repository, action(), "it is not archived"));
        };
        let Some(bundle) = open_bundle(self.repository.storage(), &stored.object)? else {
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
        if let Some(facts) = self.facts.get(&(timeline, number)) {
            return Ok(facts.clone());
        }
        let (bundle, place) = self.open(timeline, number)?;
        let first = number - place as u64;
        for (member, number) in bundle.table.members.iter().zip(first..) {
            self.facts.insert((timeline, number), member.wal_facts().cloned().unwrap_or_default());
        }
        Ok(self.facts.get(&(timeline, number)).cloned().unwrap_or_default())
    }
}

fn archived_wal(inventory: &WalInventory) -> ArchivedWal {
    let ranges = inventory.timelines.values().map(|wal| {
        let ranges: Vec<SegmentRange> = wal.ranges.iter().map(|range| range.first.0..range.last.0 + 1).collect();
        (wal.timeline, ranges)
    });
    let histories = inventory.timelines.values().filter_map(|wal| {
        let history = wal.history.as_ref()?;
        let ancestors: Ancestors = history.branches.iter().map(|branch| (branch.timeline, branch.end_lsn)).collect();
        Some((wal.timeline, ancestors))
    });
    ArchivedWal {
        segment_size_bytes: inventory.segment_size_bytes.unwrap_or_default(),
        ranges: ranges.filter(|(_, ranges)| !ranges.is_empty()).collect(),
        histories: histories.collect(),
    }
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
