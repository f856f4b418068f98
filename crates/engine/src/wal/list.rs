//! What an archive has: ranges, gaps, sizes, by cluster and timeline.

use serde::Serialize;

use crate::catalog::identity;
use crate::catalog::wal_inventory::{
    DamagedObject, Detail, TimelineWal, WalConflict, WalInventory, WalRange, clusters,
};
use crate::catalog::Repository;
use crate::error::Result;
use crate::terms::{Lsn, SegmentNumber, SourceName, TimelineId, WalSegmentName, WalTime};

/// The WAL of one source; the keys of `wal list --json`.
#[derive(Clone, Debug, Serialize)]
pub struct WalListing {
    /// The source.
    pub source: SourceName,
    /// The cluster that writes under its name now; None if nobody has yet.
    pub system_identifier: Option<String>,
    /// All clusters that have WAL under its name.
    pub clusters: Vec<ClusterListing>,
}

/// The WAL of one cluster.
#[derive(Clone, Debug, Serialize)]
pub struct ClusterListing {
    /// The cluster.
    pub system_identifier: String,
    /// Size of its segments.
    pub segment_size_bytes: Option<u64>,
    /// Its timelines, in order.
    pub timelines: Vec<TimelineListing>,
}

/// The WAL of one timeline.
#[derive(Clone, Debug, Serialize)]
pub struct TimelineListing {
    /// The timeline.
    pub timeline: TimelineId,
    /// The one it branched off from.
    pub parent: Option<TimelineId>,
    /// Where it branched off.
    pub branch_lsn: Option<Lsn>,
    /// Consecutive segments that are there.
    pub ranges: Vec<NamedRange>,
    /// Segments that are missing between them.
    pub gaps: Vec<NamedRange>,
    /// How many whole segments are there.
    pub segment_count: u64,
    /// Their size as files.
    pub raw_bytes: u64,
    /// What all objects of the timeline take; None if their tables were not read.
    pub stored_bytes: Option<u64>,
    /// Names of segments that end early.
    pub partials: Vec<String>,
    /// How many pieces of segments there are.
    pub piece_count: u64,
    /// Earliest commit or abort in it; None if it has none, or tables were not read.
    pub earliest_end_at: Option<WalTime>,
    /// Latest commit or abort in it.
    pub latest_end_at: Option<WalTime>,
    /// Restore points in it.
    pub restore_points: Vec<RestorePointListing>,
    /// Segments whose records cannot be followed to the end.
    pub broken_segments: Vec<WalSegmentName>,
    /// Segments with different versions.
    pub conflicts: Vec<WalConflict>,
    /// Objects that do not read.
    pub damaged: Vec<DamagedObject>,
}

/// Consecutive segments, by name and by LSN.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NamedRange {
    /// The first segment.
    pub first: WalSegmentName,
    /// The last one, which belongs to it.
    pub last: WalSegmentName,
    /// How many.
    pub segment_count: u64,
    /// LSN of the first byte.
    pub start_lsn: Lsn,
    /// LSN behind the last byte.
    pub end_lsn: Lsn,
}

/// A restore point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RestorePointListing {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub lsn: Lsn,
    /// When it was made.
    pub at: WalTime,
}

impl WalListing {
    /// Whether recovery along some timeline would stop early or fail.
    pub fn has_faults(&self) -> bool {
        let mut timelines = self.clusters.iter().flat_map(|cluster| &cluster.timelines);
        timelines.any(|timeline| {
            !(timeline.gaps.is_empty()
                && timeline.broken_segments.is_empty()
                && timeline.conflicts.is_empty()
                && timeline.damaged.is_empty())
        })
    }
}

/// Lists the WAL of `source`, or of all sources that have some.
///
/// # Errors
/// Those of the storage; damage is listed.
pub fn list(repository: &Repository, source: Option<&SourceName>, detail: Detail) -> Result<Vec<WalListing>> {
    let sources = match source {
        Some(source) => vec![source.clone()],
        None => repository.sources()?,
    };
    let list_one = |source: SourceName| {
        let identity = identity::newest(repository, &source)?;
        let mut listing = WalListing {
            system_identifier: identity.map(|(_, found)| found.system_identifier),
            clusters: Vec::new(),
            source,
        };
        for system_identifier in clusters(repository, &listing.source)? {
            let inventory = WalInventory::load(repository, &listing.source, system_identifier, detail)?;
            listing.clusters.push(describe(&inventory, detail));
        }
        Ok(listing)
    };
    sources.into_iter().map(list_one).collect()
}

fn describe(inventory: &WalInventory, detail: Detail) -> ClusterListing {
    let size = inventory.segment_size_bytes.unwrap_or(1 << 24);
    ClusterListing {
        system_identifier: inventory.system_identifier.to_string(),
        segment_size_bytes: inventory.segment_size_bytes,
        timelines: inventory.timelines.values().map(|wal| describe_timeline(wal, size, detail)).collect(),
    }
}

fn describe_timeline(wal: &TimelineWal, segment_size: u64, detail: Detail) -> TimelineListing {
    let name = |number: SegmentNumber| WalSegmentName::new(wal.timeline, number, segment_size);
    let named = |range: &WalRange| NamedRange {
        first: name(range.first),
        last: name(range.last),
        segment_count: range.segment_count(),
        start_lsn: range.start_lsn(segment_size),
        end_lsn: range.end_lsn(segment_size),
    };
    let parent = wal.history.as_ref().and_then(|history| history.parent());
    let facts: Vec<_> = wal.segment_facts().collect();
    let ended_at = || facts.iter().filter_map(|(_, facts)| facts.ended_at);
    let points = facts.iter().flat_map(|(_, facts)| &facts.restore_points);
    let segment_count = wal.ranges.iter().map(WalRange::segment_count).sum::<u64>();
    TimelineListing {
        timeline: wal.timeline,
        parent: parent.map(|branch| branch.timeline),
        branch_lsn: parent.map(|branch| branch.end_lsn),
        ranges: wal.ranges.iter().map(named).collect(),
        gaps: wal.gaps().iter().map(named).collect(),
        segment_count,
        raw_bytes: segment_count * segment_size,
        stored_bytes: (detail == Detail::Members).then(|| wal.stored_bytes()),
        partials: wal.partials.iter().map(|file| file.name.to_string()).collect(),
        piece_count: wal.pieces.len() as u64,
        earliest_end_at: ended_at().map(|(earliest, _)| earliest).min(),
        latest_end_at: ended_at().map(|(_, latest)| latest).max(),
        restore_points: points
            .map(|point| RestorePointListing { name: point.name.clone(), lsn: point.lsn, at: point.at })
            .collect(),
        broken_segments: facts.iter().filter(|(_, facts)| !facts.whole).map(|(number, _)| name(*number)).collect(),
        conflicts: wal.conflicts.clone(),
        damaged: wal.damaged.clone(),
    }
}
