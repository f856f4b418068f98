//! Records of archived WAL, read where the facts of segments are not enough.

use super::recovery_plan::{Known, RecoveryPlan, Wanted, plan_recovery};
use super::recovery_walk::{Stop, WalRecords};
use crate::catalog::wal_bundle::OpenBundle;
use crate::catalog::{ArchiveFacts, Repository, SegmentFacts, identity, newest_set, read_manifest, set_points};
use crate::error::{Error, ErrorKind, Result};
use crate::format::wal_bundle::Member;
use crate::pipeline::bundle::decode_one_frame;
use crate::source::postgres::wal_records::{WalPlace, WalWalker, WalkedRecord};
use crate::terms::{Lsn, SourceName, TimelineId, WalFacts};

/// Plans a recovery from the archive of the cluster that is meant; gives its system identifier too.
///
/// # Errors
/// As [`plan_recovery`], and those of the store.
pub(super) fn plan(wanted: Wanted<'_>, repository: &Repository, source: &SourceName) -> Result<(RecoveryPlan, u64)> {
    let system_identifier = cluster(wanted, repository, source)?;
    let sets = set_points(repository, source, system_identifier)?;
    let mut records = ArchiveRecords { archive: ArchiveFacts::load(repository, source, system_identifier)? };
    let wal = records.archive.wal().clone();
    let plan = plan_recovery(wanted, Known { sets: &sets, wal: &wal }, &mut records)?;
    Ok((plan, system_identifier))
}

/// The cluster whose set was named; else the one that archives now; else that of the newest set.
fn cluster(wanted: Wanted<'_>, repository: &Repository, source: &SourceName) -> Result<u64> {
    let label = match (wanted.label, identity::newest(repository, source)?) {
        (Some(label), _) => label.clone(),
        (None, Some((_, identity))) => return identity.system_identifier(),
        (None, None) => newest_set(repository, source)?,
    };
    let text = read_manifest(repository, source, &label)?.postgres.system_identifier;
    text.parse().map_err(|_| {
        Error::new(ErrorKind::Damage, format!("read set {label}"), format!("{text:?} is not a system identifier"))
    })
}

struct ArchiveRecords<'a> {
    archive: ArchiveFacts<'a>,
}

impl SegmentFacts for ArchiveRecords<'_> {
    fn facts(&mut self, timeline: TimelineId, number: u64) -> Result<WalFacts> {
        self.archive.facts(timeline, number)
    }
}

impl WalRecords for ArchiveRecords<'_> {
    fn crossing(&mut self, stop: Stop, next: Stop) -> Result<WalFacts> {
        if self.facts(stop.timeline, stop.number)?.ends_with_switch {
            return Ok(WalFacts::default());
        }
        let segment = self.open(stop)?;
        let last = segment.frame_count().saturating_sub(1);
        let mut walker = segment.walker(last);
        segment.feed(&mut walker, last)?;
        walker.take_records();
        if walker.open_record().is_none() {
            return Ok(WalFacts::default());
        }
        let following = self.open(next)?;
        for frame in 0..following.frame_count() {
            following.feed(&mut walker, frame)?;
            if let Some(record) = walker.take_records().into_iter().next() {
                return Ok(WalFacts { end_lsn: record.end, ..record.facts });
            }
        }
        Ok(WalFacts::default())
    }

    fn end_of_transaction(&mut self, stop: Stop, xid: u32) -> Result<Option<Lsn>> {
        let ended = |record: &WalkedRecord| record.facts.ended_xids.is_some_and(|(ended, _)| ended == xid);
        Ok(self.open(stop)?.find(&ended)?.0.map(|record| record.end))
    }

    fn record_from(&mut self, stop: Stop, lsn: Lsn) -> Result<Option<(Lsn, bool)>> {
        let (found, open) = self.open(stop)?.find(&|record| record.start >= lsn)?;
        Ok(match (found, open) {
            (Some(record), _) => Some((record.start, true)),
            (None, open) => open.filter(|start| *start >= lsn).map(|start| (start, false)),
        })
    }
}

impl ArchiveRecords<'_> {
    fn open(&self, stop: Stop) -> Result<Segment> {
        let (bundle, place) = self.archive.open(stop.timeline, stop.number)?;
        let member = bundle.table.members.get(place).cloned();
        let member = member.ok_or_else(|| Error::new(ErrorKind::Bug, "open a WAL segment", "its place is wrong"))?;
        let start = Lsn(stop.number.saturating_mul(u64::from(bundle.table.segment_size_bytes)));
        Ok(Segment { bundle, member, start })
    }
}

/// An archived segment whose frames can be read.
struct Segment {
    bundle: OpenBundle,
    member: Member,
    start: Lsn,
}

impl Segment {
    fn frame_count(&self) -> u64 {
        u64::from(self.member.frame_count)
    }

    /// Raw bytes of one of its frames, from 0.
    fn frame(&self, number: u64) -> Result<Vec<u8>> {
        let OpenBundle { object, header, index, .. } = &self.bundle;
        decode_one_frame(object.as_ref(), header, index, self.member.first_frame + number)
    }

    /// A walker that begins with one of its frames.
    fn walker(&self, frame: u64) -> WalWalker {
        let offset = frame * u64::from(self.bundle.header.frame_size_bytes);
        WalWalker::with_records(WalPlace {
            start: Lsn(self.start.0.saturating_add(offset)),
            page_magic: self.bundle.table.page_magic,
            block_size_bytes: self.bundle.table.wal_block_size_bytes,
            segment_size_bytes: self.bundle.table.segment_size_bytes,
        })
    }

    fn feed(&self, walker: &mut WalWalker, frame: u64) -> Result<()> {
        walker.feed(&self.frame(frame)?);
        Ok(())
    }

    /// Walks its records up to the first that is wanted; beside it the start of a record that goes on behind its end.
    fn find(&self, is_wanted: &dyn Fn(&WalkedRecord) -> bool) -> Result<(Option<WalkedRecord>, Option<Lsn>)> {
        let mut walker = self.walker(0);
        for frame in 0..self.frame_count() {
            self.feed(&mut walker, frame)?;
            if let Some(record) = walker.take_records().into_iter().find(is_wanted) {
                return Ok((Some(record), None));
            }
        }
        Ok((None, walker.open_record()))
    }
}
