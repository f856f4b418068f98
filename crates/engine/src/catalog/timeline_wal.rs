//! The WAL of one timeline as it lies in a repository.

use serde::Serialize;

use super::wal_names::{ObjectName, WalFileName};
use crate::format::wal_bundle::Member;
use crate::terms::{Lsn, SegmentNumber, TimelineHistory, TimelineId, WalFacts, WalSegmentName};

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
    pub(super) fn new(timeline: TimelineId) -> Self {
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

    /// Size and members of an object, where they were read; None if it is of no use. Damage is noted.
    pub(super) fn table_of(&mut self, object: &str, looked: Looked) -> Option<(Option<u64>, Vec<Member>)> {
        match looked {
            Looked::Unread => Some((None, Vec::new())),
            Looked::Table { stored_bytes, members } => Some((Some(stored_bytes), members)),
            Looked::Damaged(cause) => {
                self.damaged.push(DamagedObject { object: object.to_owned(), cause });
                None
            }
            Looked::Gone => None,
        }
    }

    pub(super) fn add(&mut self, segment_size: u64, (log_id, object, name): Named, looked: Looked) {
        let timeline = self.timeline;
        let number = |index: u32| WalSegmentName::from_parts(timeline, log_id, index).number(segment_size);
        let (index, count) = match name {
            ObjectName::Bundle { first_index, count } => (first_index, count),
            ObjectName::Piece { index, .. } => (index, 1),
            ObjectName::File(file) => return self.add_file(object, file, looked),
        };
        let (Some(first), Some(_)) = (number(index), number(index.saturating_add(count - 1))) else {
            let cause = format!("there is no such segment of {segment_size} bytes");
            self.damaged.push(DamagedObject { object, cause });
            return;
        };
        let Some((stored_bytes, members)) = self.table_of(&object, looked) else { return };
        match name {
            ObjectName::Piece { offset, .. } => {
                let member = members.into_iter().next();
                self.pieces.push(StoredPiece { object, segment: first, offset, stored_bytes, member });
            }
            _ => self.bundles.push(StoredBundle { object, first, count, stored_bytes, members }),
        }
    }

    fn add_file(&mut self, object: String, name: WalFileName, looked: Looked) {
        let Some((stored_bytes, members)) = self.table_of(&object, looked) else { return };
        let files = if matches!(name, WalFileName::Partial(_)) { &mut self.partials } else { &mut self.labels };
        files.push(StoredFile { object, name, stored_bytes, member: members.into_iter().next() });
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

/// The log id of an object, its name in the repository, and what that says.
pub(super) type Named = (u32, String, ObjectName);

/// What was seen of an object.
pub(super) enum Looked {
    /// Nobody asked.
    Unread,
    /// It reads.
    Table { stored_bytes: u64, members: Vec<Member> },
    /// What is wrong with it.
    Damaged(String),
    /// It was deleted meanwhile.
    Gone,
}

/// What bundles in order cover.
pub(super) fn merged(bundles: &[StoredBundle]) -> Vec<WalRange> {
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
