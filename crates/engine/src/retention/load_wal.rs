//! The WAL of a source as retention sees it: one fact an object, and where timelines come from.

use jiff::Timestamp;

use super::facts::{HistoryFacts, RetentionInventory, WalObject};
use crate::catalog::Repository;
use crate::catalog::wal_inventory::{Detail, StoredFile, TimelineWal, WalInventory, clusters};
use crate::catalog::wal_names::WalFileName;
use crate::error::Result;
use crate::format::wal_bundle::Member;
use crate::terms::{Lsn, SourceName, TimelineId};

/// Adds the WAL of every cluster of `source`.
///
/// Objects that do not read are left out: nothing is decided on them, so they stay.
///
/// # Errors
/// Those of the storage.
pub(super) fn add_wal(repository: &Repository, source: &SourceName, inventory: &mut RetentionInventory) -> Result<()> {
    for cluster in clusters(repository, source)? {
        let wal = WalInventory::load(repository, source, cluster, Detail::Members)?;
        let Some(segment_size) = wal.segment_size_bytes else { continue };
        for timeline in wal.timelines.values() {
            if let Some(history) = &timeline.history {
                inventory.histories.push(HistoryFacts {
                    system_identifier: cluster,
                    timeline: timeline.timeline,
                    branches: history.branches.iter().map(|branch| (branch.timeline, branch.end_lsn)).collect(),
                });
            }
            let objects = Objects { cluster, segment_size, timeline: timeline.timeline };
            objects.add(timeline, &mut inventory.wal);
        }
    }
    Ok(())
}

/// What the objects of one timeline have in common.
struct Objects {
    cluster: u64,
    segment_size: u64,
    timeline: TimelineId,
}

impl Objects {
    fn add(&self, wal: &TimelineWal, into: &mut Vec<WalObject>) {
        for bundle in &wal.bundles {
            let (first, end) = (bundle.first.0, bundle.first.0 + u64::from(bundle.count));
            into.push(self.object(&bundle.object, first, end, bundle.stored_bytes, last_commit(&bundle.members)));
        }
        for piece in &wal.pieces {
            let (first, members) = (piece.segment.0, piece.member.as_slice());
            into.push(self.object(&piece.object, first, first + 1, piece.stored_bytes, last_commit(members)));
        }
        for file in wal.partials.iter().chain(&wal.labels) {
            into.extend(self.file(file));
        }
    }

    /// A partial segment or a label goes with the segment whose name it has.
    fn file(&self, file: &StoredFile) -> Option<WalObject> {
        let (segment, last_commit_at) = match &file.name {
            WalFileName::Partial(segment) => (segment, last_commit(file.member.as_slice())),
            WalFileName::Label(segment, _) => (segment, None),
            WalFileName::Segment(_) | WalFileName::History(_) => return None,
        };
        let first = segment.number(self.segment_size)?.0;
        Some(self.object(&file.object, first, first + 1, file.stored_bytes, last_commit_at))
    }

    fn object(
        &self,
        object: &str,
        first: u64,
        end: u64,
        stored_bytes: Option<u64>,
        last_commit_at: Option<Timestamp>,
    ) -> WalObject {
        WalObject {
            object: object.to_owned(),
            system_identifier: self.cluster,
            timeline: self.timeline,
            start_lsn: Lsn(first.saturating_mul(self.segment_size)),
            end_lsn: Lsn(end.saturating_mul(self.segment_size)),
            stored_bytes: stored_bytes.unwrap_or_default(),
            last_commit_at,
        }
    }
}

/// The last commit of the members; the end of time if their records could not be followed to the end.
fn last_commit(members: &[Member]) -> Option<Timestamp> {
    let time = |member: &Member| match member.wal_facts() {
        Some(facts) if facts.whole => facts.ended_at.map(|(_, latest)| latest.to_timestamp().unwrap_or(Timestamp::MAX)),
        _ => Some(Timestamp::MAX),
    };
    if members.is_empty() { Some(Timestamp::MAX) } else { members.iter().filter_map(time).max() }
}
