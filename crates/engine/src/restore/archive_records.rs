//! Records of archived WAL, read where the facts of segments are not enough.

use super::recovery_plan::{Known, RecoveryPlan, Wanted, plan_recovery};
use super::recovery_walk::{Stop, WalRecords};
use crate::catalog::wal_bundle::OpenBundle;
use crate::catalog::wal_pieces::into_chain;
use crate::catalog::{ArchiveFacts, Repository, SegmentFacts, identity, newest_set, read_manifest, set_points};
use crate::error::{Error, ErrorKind, Result};
use crate::format::wal_bundle::{BundleKind, Member};
use crate::pipeline::bundle::decode_one_frame;
use crate::source::postgres::wal_records::{WalPlace, WalWalker, WalkedRecord};
use crate::terms::{BackupLabel, Lsn, SourceName, TimelineId, WalFacts};

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
    system_identifier_of(repository, source, &label)
}

/// The cluster that a set is of.
///
/// # Errors
/// As of a manifest that is read.
pub(super) fn system_identifier_of(repository: &Repository, source: &SourceName, label: &BackupLabel) -> Result<u64> {
    let text = read_manifest(repository, source, label)?.postgres.system_identifier;
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
        // Behind pieces there is nothing.
        let is_open = self.archive.wal().has_tail(stop.timeline, stop.number);
        if is_open || self.facts(stop.timeline, stop.number)?.ends_with_switch {
            return Ok(WalFacts::default());
        }
        let segment = self.open(stop)?;
        let last = segment.frame_count().saturating_sub(1);
        let mut walker = segment.walker(last)?;
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
        let size = self.archive.wal().segment_size_bytes;
        let start = Lsn(stop.number.saturating_mul(size));
        let wrong = || Error::new(ErrorKind::Bug, "open a WAL segment", "its place is wrong");
        if !self.archive.wal().has_tail(stop.timeline, stop.number) {
            let (bundle, place) = self.archive.open(stop.timeline, stop.number)?;
            let member = bundle.table.members.get(place).cloned().ok_or_else(wrong)?;
            return Ok(Segment { parts: vec![Part { bundle, member, skip_bytes: 0 }], start });
        }
        let pieces = self.archive.open_pieces(stop.timeline, stop.number)?;
        let parts = into_chain(pieces).into_iter().map(|(bundle, skip_bytes)| {
            let member = bundle.table.members.first().cloned().ok_or_else(wrong)?;
            Ok(Part { bundle, member, skip_bytes })
        });
        Ok(Segment { parts: parts.collect::<Result<_>>()?, start })
    }
}

/// An archived segment whose frames can be read, or as much of it as its pieces hold.
struct Segment {
    /// One after the other; the whole segment is one part.
    parts: Vec<Part>,
    start: Lsn,
}

/// A member of a bundle, with bytes at its beginning that the part before has too.
struct Part {
    bundle: OpenBundle,
    member: Member,
    skip_bytes: u64,
}

impl Part {
    /// Of a piece that is nothing but zeros one too.
    fn frame_count(&self) -> u64 {
        u64::from(self.member.frame_count).max(u64::from(self.is_piece()))
    }

    /// Raw bytes of one of its frames, from 0; behind the last one of a piece the zeros that are not stored.
    fn frame(&self, number: u64) -> Result<Vec<u8>> {
        let OpenBundle { object, header, index, .. } = &self.bundle;
        let mut bytes = match self.member.frame_count {
            0 => Vec::new(),
            _ => decode_one_frame(object.as_ref(), header, index, self.member.first_frame + number)?,
        };
        let offset = number * u64::from(header.frame_size_bytes);
        if number + 1 == self.frame_count() && self.is_piece() {
            bytes.resize((self.member.size_bytes - offset) as usize, 0);
        }
        let skip = self.skip_bytes.saturating_sub(offset).min(bytes.len() as u64);
        Ok(bytes.split_off(skip as usize))
    }

    fn is_piece(&self) -> bool {
        self.bundle.table.kind == BundleKind::Piece
    }
}

impl Segment {
    fn frame_count(&self) -> u64 {
        self.parts.iter().map(Part::frame_count).sum()
    }

    /// A walker that begins with one of its frames; of pieces, with the first one.
    fn walker(&self, frame: u64) -> Result<WalWalker> {
        let part = self.parts.first().ok_or_else(|| {
            Error::new(ErrorKind::Repository, "read a WAL segment", "its pieces were removed meanwhile")
                .hint("the whole segment is there now: try again")
        })?;
        let offset = frame * u64::from(part.bundle.header.frame_size_bytes);
        Ok(WalWalker::with_records(WalPlace {
            start: Lsn(self.start.0.saturating_add(offset)),
            page_magic: part.bundle.table.page_magic,
            block_size_bytes: part.bundle.table.wal_block_size_bytes,
            segment_size_bytes: part.bundle.table.segment_size_bytes,
        }))
    }

    fn feed(&self, walker: &mut WalWalker, frame: u64) -> Result<()> {
        let mut number = frame;
        for part in &self.parts {
            let count = part.frame_count();
            if number < count {
                walker.feed(&part.frame(number)?);
                return Ok(());
            }
            number -= count;
        }
        Ok(())
    }

    /// Walks its records up to the first that is wanted; beside it the start of a record that goes on behind its end.
    fn find(&self, is_wanted: &dyn Fn(&WalkedRecord) -> bool) -> Result<(Option<WalkedRecord>, Option<Lsn>)> {
        let mut walker = self.walker(0)?;
        for frame in 0..self.frame_count() {
            self.feed(&mut walker, frame)?;
            if let Some(record) = walker.take_records().into_iter().find(is_wanted) {
                return Ok((Some(record), None));
            }
        }
        Ok((None, walker.open_record()))
    }
}
