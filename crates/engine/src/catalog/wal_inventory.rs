//! The WAL of one cluster in a repository: which segments are there, what is missing between them, where timelines
//! branch off, what the records say.

use std::collections::{BTreeMap, BTreeSet};

use super::repository::Repository;
pub use super::timeline_wal::{
    DamagedObject, StoredBundle, StoredFile, StoredPiece, TimelineWal, WalConflict, WalRange,
};
use super::timeline_wal::{Looked, Named, merged};
use super::wal_bundle::open_bundle;
use super::wal_names::{ObjectName, WalFileName, log_prefix, timeline_prefix, upper_hex, wal_prefix, wal_root};
use crate::error::{Error, ErrorKind, Result};
use crate::format::wal_bundle::MemberFacts;
use crate::storage::at_once;
use crate::terms::{SegmentNumber, SourceName, TimelineId, WalSegmentName};

/// How much of an archive is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Names, timeline histories, and tables only where names overlap: one listing for 4 GiB of WAL.
    Listing,
    /// The table of members of every object as well.
    Members,
}

/// The WAL of one cluster.
#[derive(Debug)]
pub struct WalInventory {
    /// The cluster.
    pub system_identifier: u64,
    /// Size of its segments; None if there is no object that tells.
    pub segment_size_bytes: Option<u64>,
    /// By timeline.
    pub timelines: BTreeMap<TimelineId, TimelineWal>,
}

/// The system identifiers of all clusters that have WAL under the name of `source`, sorted.
///
/// # Errors
/// Those of the storage.
pub fn clusters(repository: &Repository, source: &SourceName) -> Result<Vec<u64>> {
    let names = repository.storage().list(&wal_root(source))?;
    let number = |name: &String| (name.len() == 16).then(|| u64::from_str_radix(name, 16).ok())?;
    Ok(names.iter().filter_map(number).collect())
}

impl WalInventory {
    /// Looks at all WAL of one cluster; a cluster without WAL has no timelines.
    ///
    /// # Errors
    /// Those of the storage; damage is listed, not an error.
    pub fn load(repository: &Repository, source: &SourceName, system_identifier: u64, detail: Detail) -> Result<Self> {
        let loader = Loader { repository, source, system_identifier, detail };
        loader.load()
    }
}

struct Loader<'a> {
    repository: &'a Repository,
    source: &'a SourceName,
    system_identifier: u64,
    detail: Detail,
}

/// The objects of one timeline, by name alone.
#[derive(Default)]
struct Names {
    objects: Vec<Named>,
    history: Option<String>,
}

impl Names {
    fn all(&self) -> impl Iterator<Item = &str> {
        self.objects.iter().map(|(_, object, _)| object.as_str()).chain(self.history.as_deref())
    }

    fn remove(&mut self, known: &BTreeSet<String>) {
        self.objects.retain(|(_, object, _)| !known.contains(object));
        self.history.take_if(|object| known.contains(object));
    }
}

impl Loader<'_> {
    fn load(&self) -> Result<WalInventory> {
        let names = self.list()?;
        let mut inventory = WalInventory {
            system_identifier: self.system_identifier,
            segment_size_bytes: self.segment_size(&names)?,
            timelines: BTreeMap::new(),
        };
        let mut known: BTreeSet<String> = BTreeSet::new();
        known.extend(names.values().flat_map(Names::all).map(str::to_owned));
        self.add_all(&mut inventory, names)?;
        // A segment that became whole meanwhile may be missed as a whole, not there yet, and in pieces, gone already.
        let mut later = self.list()?;
        later.values_mut().for_each(|names| names.remove(&known));
        if inventory.segment_size_bytes.is_none() {
            inventory.segment_size_bytes = self.segment_size(&later)?;
        }
        self.add_all(&mut inventory, later)?;
        let segment_size = inventory.segment_size_bytes;
        for wal in inventory.timelines.values_mut() {
            if let Some(segment_size) = segment_size {
                self.find_conflicts(wal, segment_size)?;
            }
            wal.ranges = merged(&wal.bundles);
        }
        Ok(inventory)
    }

    fn add_all(&self, inventory: &mut WalInventory, names: BTreeMap<TimelineId, Names>) -> Result<()> {
        for (timeline, names) in names {
            let wal = inventory.timelines.entry(timeline).or_insert_with(|| TimelineWal::new(timeline));
            if let Some(object) = names.history {
                self.add_history(wal, object)?;
            }
            if let Some(segment_size) = inventory.segment_size_bytes {
                let looked =
                    at_once(names.objects.iter().collect(), |object| self.look_at(timeline, segment_size, object))?;
                for (object, looked) in names.objects.into_iter().zip(looked) {
                    wal.add(segment_size, object, looked);
                }
            } else {
                // Nothing could be opened: none of it is of use.
                let cause = "it does not read, nor does any other object that would tell the size of segments";
                let lost = names.objects.into_iter();
                wal.damaged.extend(lost.map(|(_, object, _)| DamagedObject { object, cause: cause.to_owned() }));
            }
        }
        Ok(())
    }

    fn list(&self) -> Result<BTreeMap<TimelineId, Names>> {
        let storage = self.repository.storage();
        let mut found: BTreeMap<TimelineId, Names> = BTreeMap::new();
        let prefix = wal_prefix(self.source, self.system_identifier);
        for name in storage.list(&prefix)? {
            let history = name.strip_suffix(".phw").and_then(WalFileName::parse);
            if let Some(WalFileName::History(timeline)) = history {
                found.entry(timeline).or_default().history = Some(format!("{prefix}/{name}"));
            }
            let Some(timeline) = upper_hex(&name).map(TimelineId) else { continue };
            let names = found.entry(timeline).or_default();
            for log in storage.list(&timeline_prefix(self.source, self.system_identifier, timeline))? {
                let Some(log_id) = upper_hex(&log) else { continue };
                let prefix = log_prefix(self.source, self.system_identifier, timeline, log_id);
                let objects = storage.list(&prefix)?.into_iter();
                let read = |name: String| Some((log_id, format!("{prefix}/{name}"), ObjectName::parse(&name)?));
                names.objects.extend(objects.filter_map(read));
            }
        }
        Ok(found)
    }

    /// The size of segments, by the first object that reads.
    fn segment_size(&self, names: &BTreeMap<TimelineId, Names>) -> Result<Option<u64>> {
        for (_, object, name) in names.values().flat_map(|names| &names.objects) {
            if matches!(name, ObjectName::File(WalFileName::Label(..) | WalFileName::History(_))) {
                continue;
            }
            match open_bundle(self.repository, object) {
                Ok(Some(bundle)) if bundle.table.segment_size_bytes.is_power_of_two() => {
                    return Ok(Some(u64::from(bundle.table.segment_size_bytes)));
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Damage => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Looks at an object that must hold `names`, of segments of `segment_size_bytes` if that is known.
    fn look(
        &self,
        object: &str,
        segment_size_bytes: Option<u64>,
        names: impl Iterator<Item = String>,
    ) -> Result<Looked> {
        let opened = open_bundle(self.repository, object).and_then(|opened| {
            let Some(bundle) = opened else { return Ok(Looked::Gone) };
            bundle.check_holds(self.system_identifier, names)?;
            match segment_size_bytes {
                Some(size) if size != u64::from(bundle.table.segment_size_bytes) => {
                    let cause = format!("its segments have {} bytes, others {size}", bundle.table.segment_size_bytes);
                    Err(Error::new(ErrorKind::Damage, format!("use {object}"), cause))
                }
                _ => Ok(Looked::Table { stored_bytes: bundle.object.size_bytes(), members: bundle.table.members }),
            }
        });
        match opened {
            Err(error) if error.kind() == ErrorKind::Damage => Ok(Looked::Damaged(error.message())),
            other => other,
        }
    }

    /// Looks at an object with segments or other files of `timeline`, if tables are wanted.
    fn look_at(&self, timeline: TimelineId, segment_size: u64, object: &Named) -> Result<Looked> {
        let (log_id, object, name) = object;
        if self.detail == Detail::Listing {
            return Ok(Looked::Unread);
        }
        let (first, count) = match name {
            ObjectName::Bundle { first_index, count } => (*first_index, *count),
            ObjectName::Piece { index, .. } => (*index, 1),
            ObjectName::File(file) => {
                let size = matches!(file, WalFileName::Partial(_)).then_some(segment_size);
                return self.look(object, size, std::iter::once(file.to_string()));
            }
        };
        let names =
            (first..first.saturating_add(count)).map(|index| WalSegmentName::from_parts(timeline, *log_id, index));
        self.look(object, Some(segment_size), names.map(|name| name.to_string()))
    }

    fn add_history(&self, wal: &mut TimelineWal, object: String) -> Result<()> {
        let name = WalFileName::History(wal.timeline);
        let looked = self.look(&object, None, std::iter::once(name.to_string()))?;
        let Some((stored_bytes, members)) = wal.table_of(&object, looked) else { return Ok(()) };
        let member = members.into_iter().next();
        wal.history = member.as_ref().and_then(|member| match &member.facts {
            MemberFacts::History(history) => Some(history.clone()),
            MemberFacts::None | MemberFacts::Wal(_) => None,
        });
        wal.history_file = Some(StoredFile { object, name, stored_bytes, member });
        Ok(())
    }

    /// Compares segments that lie in more than one bundle.
    fn find_conflicts(&self, wal: &mut TimelineWal, segment_size: u64) -> Result<()> {
        wal.bundles.sort_by_key(|bundle| (bundle.first, bundle.count));
        wal.pieces.sort_by_key(|piece| (piece.segment, piece.offset));
        let mut reached = None;
        let overlaps = wal.bundles.iter().any(|bundle| {
            let last = bundle.first.0 + u64::from(bundle.count) - 1;
            let overlaps = reached.is_some_and(|reached| bundle.first.0 <= reached);
            reached = reached.max(Some(last));
            overlaps
        });
        if !overlaps {
            return Ok(());
        }
        let timeline = wal.timeline;
        let name = |number: u64| WalSegmentName::new(timeline, SegmentNumber(number), segment_size);
        let mut seen: BTreeMap<u64, Vec<(u32, String)>> = BTreeMap::new();
        let numbers = |bundle: &StoredBundle| bundle.first.0..bundle.first.0 + u64::from(bundle.count);
        let looked = at_once(wal.bundles.iter().collect(), |bundle| match bundle.members.as_slice() {
            [] => {
                let names = numbers(bundle).map(|number| name(number).to_string());
                self.look(&bundle.object, Some(segment_size), names)
            }
            members => Ok(Looked::Table { stored_bytes: 0, members: members.to_vec() }),
        })?;
        for (bundle, looked) in wal.bundles.clone().into_iter().zip(looked) {
            let members = wal.table_of(&bundle.object, looked).map(|(_, members)| members).unwrap_or_default();
            for (number, member) in numbers(&bundle).zip(members) {
                seen.entry(number).or_default().push((member.crc32c, bundle.object.clone()));
            }
        }
        let damaged: Vec<String> = wal.damaged.iter().map(|damaged| damaged.object.clone()).collect();
        wal.bundles.retain(|bundle| !damaged.contains(&bundle.object));
        for (number, versions) in seen {
            if versions.iter().any(|(crc, _)| *crc != versions[0].0) {
                let objects = versions.into_iter().map(|(_, object)| object).collect();
                wal.conflicts.push(WalConflict { segment: name(number), objects });
            }
        }
        Ok(())
    }
}
