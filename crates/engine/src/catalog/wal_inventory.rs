//! The WAL of one cluster in a repository: which segments are there, what is missing between them, where timelines
//! branch off, what the records say.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::repository::Repository;
use super::wal_bundle::{OpenBundle, open_bundle};
use super::wal_names::{ObjectName, WalFileName, log_prefix, timeline_prefix, upper_hex, wal_prefix, wal_root};
use crate::error::{Error, ErrorKind, Result};
use crate::format::wal_bundle::{Member, MemberFacts};
use crate::terms::{Lsn, SegmentNumber, SourceName, TimelineHistory, TimelineId, WalFacts, WalSegmentName};

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

/// The WAL of one timeline.
#[derive(Debug)]
pub struct TimelineWal {
    /// The timeline.
    pub timeline: TimelineId,
    /// Where it comes from; None for the first one, or if its history is not in the archive.
    pub history: Option<TimelineHistory>,
    /// The object of its history.
    pub history_file: Option<StoredFile>,
    /// The objects with whole segments, in order; those that do not read are in `damaged` instead.
    pub bundles: Vec<StoredBundle>,
    /// What the bundles cover, merged, in order.
    pub ranges: Vec<WalRange>,
    /// Segments that end early.
    pub partials: Vec<StoredFile>,
    /// Labels of base backups.
    pub labels: Vec<StoredFile>,
    /// Pieces of segments, in order.
    pub pieces: Vec<StoredPiece>,
    /// Segments that are there twice with different bytes.
    pub conflicts: Vec<WalConflict>,
    /// Objects that do not read, or hold something else than their name says.
    pub damaged: Vec<DamagedObject>,
}

/// An object with whole segments.
#[derive(Clone, Debug)]
pub struct StoredBundle {
    /// Its name in the repository.
    pub object: String,
    /// Its first segment.
    pub first: SegmentNumber,
    /// How many.
    pub count: u32,
    /// Its size, where its table was read.
    pub stored_bytes: Option<u64>,
    /// Its members, one a segment, where its table was read; else empty.
    pub members: Vec<Member>,
}

/// An object with another file.
#[derive(Clone, Debug)]
pub struct StoredFile {
    /// Its name in the repository.
    pub object: String,
    /// The file's name.
    pub name: WalFileName,
    /// Its size, where its table was read.
    pub stored_bytes: Option<u64>,
    /// The file, where the table was read.
    pub member: Option<Member>,
}

/// An object with a piece of a segment.
#[derive(Clone, Debug)]
pub struct StoredPiece {
    /// Its name in the repository.
    pub object: String,
    /// The segment.
    pub segment: SegmentNumber,
    /// Where the piece begins in it.
    pub offset: u32,
    /// Its size, where its table was read.
    pub stored_bytes: Option<u64>,
    /// The piece, where the table was read.
    pub member: Option<Member>,
}

/// A segment of which there are different versions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WalConflict {
    /// The segment.
    pub segment: WalSegmentName,
    /// The objects that have it.
    pub objects: Vec<String>,
}

/// An object that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DamagedObject {
    /// Its name in the repository.
    pub object: String,
    /// What is wrong with it.
    pub cause: String,
}

/// Consecutive segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WalRange {
    /// The first.
    pub first: SegmentNumber,
    /// The last, which belongs to it.
    pub last: SegmentNumber,
}

impl WalRange {
    /// How many segments.
    pub fn segment_count(&self) -> u64 {
        self.last.0 - self.first.0 + 1
    }

    /// The LSN of its first byte.
    pub fn start_lsn(&self, segment_size_bytes: u64) -> Lsn {
        Lsn(self.first.0.saturating_mul(segment_size_bytes))
    }

    /// The LSN after its last byte.
    pub fn end_lsn(&self, segment_size_bytes: u64) -> Lsn {
        Lsn((self.last.0 + 1).saturating_mul(segment_size_bytes))
    }

    /// Whether the segment belongs to it.
    pub fn contains(&self, segment: SegmentNumber) -> bool {
        (self.first..=self.last).contains(&segment)
    }
}

impl TimelineWal {
    fn new(timeline: TimelineId) -> Self {
        TimelineWal {
            timeline,
            history: None,
            history_file: None,
            bundles: Vec::new(),
            ranges: Vec::new(),
            partials: Vec::new(),
            labels: Vec::new(),
            pieces: Vec::new(),
            conflicts: Vec::new(),
            damaged: Vec::new(),
        }
    }

    /// The segments that are missing between those that are there.
    pub fn gaps(&self) -> Vec<WalRange> {
        let between = |pair: &[WalRange]| WalRange {
            first: SegmentNumber(pair[0].last.0 + 1),
            last: SegmentNumber(pair[1].first.0 - 1),
        };
        self.ranges.windows(2).map(between).collect()
    }

    /// Whether the whole segment is there.
    pub fn covers(&self, segment: SegmentNumber) -> bool {
        self.ranges.iter().any(|range| range.contains(segment))
    }

    /// The range that holds the segment.
    pub fn range_of(&self, segment: SegmentNumber) -> Option<WalRange> {
        self.ranges.iter().copied().find(|range| range.contains(segment))
    }

    /// What each whole segment's records say, in order; empty unless the tables were read.
    pub fn segment_facts(&self) -> impl Iterator<Item = (SegmentNumber, &WalFacts)> {
        self.bundles.iter().flat_map(|bundle| {
            let facts = bundle.members.iter().enumerate();
            facts
                .filter_map(|(place, member)| Some((SegmentNumber(bundle.first.0 + place as u64), member.wal_facts()?)))
        })
    }

    /// Bytes of all objects whose tables were read.
    pub fn stored_bytes(&self) -> u64 {
        let files = self.partials.iter().chain(&self.labels).chain(&self.history_file);
        let bundles = self.bundles.iter().filter_map(|bundle| bundle.stored_bytes);
        let pieces = self.pieces.iter().filter_map(|piece| piece.stored_bytes);
        bundles.chain(pieces).chain(files.filter_map(|file| file.stored_bytes)).sum()
    }
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
    /// Log id, then what its objects' names say.
    objects: Vec<(u32, String, ObjectName)>,
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
                for (log_id, object, name) in names.objects {
                    self.add(wal, segment_size, log_id, object, &name)?;
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

    /// Opens an object that must hold `names`; None if it is damaged, which is noted, or was deleted meanwhile.
    fn open(
        &self,
        wal: &mut TimelineWal,
        object: &str,
        segment_size_bytes: Option<u64>,
        names: impl Iterator<Item = String>,
    ) -> Result<Option<OpenBundle>> {
        let opened = open_bundle(self.repository, object).and_then(|opened| {
            let Some(bundle) = opened else { return Ok(None) };
            bundle.check_holds(self.system_identifier, names)?;
            match segment_size_bytes {
                Some(size) if size != u64::from(bundle.table.segment_size_bytes) => {
                    let cause = format!("its segments have {} bytes, others {size}", bundle.table.segment_size_bytes);
                    Err(Error::new(ErrorKind::Damage, format!("use {object}"), cause))
                }
                _ => Ok(Some(bundle)),
            }
        });
        match opened {
            Err(error) if error.kind() == ErrorKind::Damage => {
                wal.damaged.push(DamagedObject { object: object.to_owned(), cause: error.message() });
                Ok(None)
            }
            other => other,
        }
    }

    fn add_history(&self, wal: &mut TimelineWal, object: String) -> Result<()> {
        let name = WalFileName::History(wal.timeline);
        let Some(bundle) = self.open(wal, &object, None, [name.to_string()].into_iter())? else { return Ok(()) };
        let stored_bytes = Some(bundle.object.size_bytes());
        let member = bundle.table.members.into_iter().next();
        wal.history = member.as_ref().and_then(|member| match &member.facts {
            MemberFacts::History(history) => Some(history.clone()),
            MemberFacts::None | MemberFacts::Wal(_) => None,
        });
        wal.history_file = Some(StoredFile { object, name, stored_bytes, member });
        Ok(())
    }

    fn add(
        &self,
        wal: &mut TimelineWal,
        segment_size: u64,
        log_id: u32,
        object: String,
        name: &ObjectName,
    ) -> Result<()> {
        let timeline = wal.timeline;
        let segment = |index: u32| WalSegmentName::from_parts(timeline, log_id, index);
        let (index, count) = match name {
            ObjectName::Bundle { first_index, count } => (*first_index, *count),
            ObjectName::Piece { index, .. } => (*index, 1),
            ObjectName::File(file) => return self.add_file(wal, segment_size, object, file.clone()),
        };
        let last = segment(index.saturating_add(count - 1)).number(segment_size);
        let (Some(first), Some(_)) = (segment(index).number(segment_size), last) else {
            let cause = format!("there is no such segment of {segment_size} bytes");
            wal.damaged.push(DamagedObject { object, cause });
            return Ok(());
        };
        let mut opened = None;
        if self.detail == Detail::Members {
            let names = (index..index + count).map(|index| segment(index).to_string());
            let Some(bundle) = self.open(wal, &object, Some(segment_size), names)? else { return Ok(()) };
            opened = Some(bundle);
        }
        let stored_bytes = opened.as_ref().map(|bundle| bundle.object.size_bytes());
        let members = opened.map(|bundle| bundle.table.members).unwrap_or_default();
        match name {
            ObjectName::Piece { offset, .. } => {
                let member = members.into_iter().next();
                wal.pieces.push(StoredPiece { object, segment: first, offset: *offset, stored_bytes, member });
            }
            _ => wal.bundles.push(StoredBundle { object, first, count, stored_bytes, members }),
        }
        Ok(())
    }

    fn add_file(&self, wal: &mut TimelineWal, segment_size: u64, object: String, name: WalFileName) -> Result<()> {
        let is_partial = matches!(name, WalFileName::Partial(_));
        let mut file = StoredFile { object, name, stored_bytes: None, member: None };
        if self.detail == Detail::Members {
            let size = is_partial.then_some(segment_size);
            let names = [file.name.to_string()].into_iter();
            let Some(bundle) = self.open(wal, &file.object, size, names)? else { return Ok(()) };
            file.stored_bytes = Some(bundle.object.size_bytes());
            file.member = bundle.table.members.into_iter().next();
        }
        let files = if is_partial { &mut wal.partials } else { &mut wal.labels };
        files.push(file);
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
        for bundle in wal.bundles.clone() {
            let numbers = bundle.first.0..bundle.first.0 + u64::from(bundle.count);
            let mut members = bundle.members;
            if members.is_empty() {
                let names = numbers.clone().map(|number| name(number).to_string());
                let opened = self.open(wal, &bundle.object, Some(segment_size), names)?;
                members = opened.map(|opened| opened.table.members).unwrap_or_default();
            }
            for (number, member) in numbers.zip(members) {
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

/// What bundles in order cover.
fn merged(bundles: &[StoredBundle]) -> Vec<WalRange> {
    let mut ranges: Vec<WalRange> = Vec::new();
    for bundle in bundles {
        let last = SegmentNumber(bundle.first.0 + u64::from(bundle.count) - 1);
        match ranges.last_mut() {
            Some(range) if bundle.first.0 <= range.last.0 + 1 => range.last = range.last.max(last),
            _ => ranges.push(WalRange { first: bundle.first, last }),
        }
    }
    ranges
}
