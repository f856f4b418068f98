//! One connection of a receiver, from the log-in to its end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::open_segment::{Archive, OpenSegment};
use super::place::{Held, Place, after, at, holes, segment_start};
use super::spool::Spool;
use super::{ReceiveReport, ReceiveRequest, Trouble};
use crate::catalog::Repository;
use crate::catalog::encryption_mark::keep_encrypted;
use crate::catalog::identity::{self, ClusterFacts};
use crate::catalog::wal_bundle::open_bundle;
use crate::catalog::wal_inventory::{Detail, TimelineWal, WalInventory};
use crate::catalog::wal_pieces::reach_of;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::MIB;
use crate::pipeline::Observer;
use crate::source::postgres::base_backup::check_version;
use crate::source::postgres::conninfo::ConnectSettings;
use crate::source::postgres::replication::{
    OBJECT_IN_USE, Replication, SlotState, SystemIdentity, WalEvent, WalStream,
};
use crate::source::postgres::server_error::QueryError;
use crate::source::postgres::server_facts::gather_without_sql;
use crate::source::postgres::timeline_history;
use crate::source::postgres::tls_settings::exposure;
use crate::terms::{Lsn, TimelineHistory, TimelineId, WalSegmentName};
use crate::wal::stored::StoredLog;

/// How long the stream is listened to at once when nothing is waiting to be stored.
pub(super) const WAIT: Duration = Duration::from_millis(200);
/// With `synchronous`: how long more may come before what came is stored; commits wait meanwhile.
const SYNCHRONOUS_WAIT: Duration = Duration::from_millis(1);
/// A piece is stored at the latest when it is this large.
const PIECE_BYTES_MAX: u64 = 4 * MIB;
/// How often it is told how far we are behind.
const BEHIND_INTERVAL: Duration = Duration::from_secs(10);
/// SQLSTATE duplicate_object.
const DUPLICATE_OBJECT: &str = "42710";
/// SQLSTATE undefined_file: the WAL is not there any more.
const UNDEFINED_FILE: &str = "58P01";

pub(super) type Outcome<T> = std::result::Result<T, Trouble>;

/// How a connection ended well.
pub(super) enum Ended {
    /// A signal asked to stop.
    Asked,
    /// The server said goodbye.
    ByServer,
}

/// How a stream ended well.
enum Streamed {
    Asked,
    ByServer,
    /// The timeline was left for another one.
    Timeline(TimelineId, Lsn),
}

/// What a stream is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// To follow the server.
    GoOn,
    /// To get the end of a timeline that it has left; the server is told nothing.
    Fill,
}

/// Where a connection streams from.
struct Way {
    /// First the ends of timelines that were left, which the archive lacks.
    holes: Vec<Place>,
    /// Then on from here.
    place: Place,
    /// Or from here, if the server has removed what comes first and that may be lost.
    behind_gap: Place,
}

/// What lives from one connection to the next.
pub(super) struct Link<'a> {
    pub(super) repository: &'a Repository,
    pub(super) request: &'a ReceiveRequest,
    pub(super) observer: &'a dyn Observer,
    spool: &'a Spool,
    pub(super) report: ReceiveReport,
    /// Whether a stream was ever begun.
    pub(super) has_streamed: bool,
    /// Whether WAL that the server has removed may be passed over: until the first byte came.
    may_jump: bool,
    /// Where the server's WAL ended when it was asked last.
    pub(super) server_end: Lsn,
    behind_told_at: Instant,
}

impl<'a> Link<'a> {
    pub(super) fn new(
        repository: &'a Repository,
        request: &'a ReceiveRequest,
        observer: &'a dyn Observer,
        spool: &'a Spool,
    ) -> Self {
        let (report, behind_told_at) = (ReceiveReport::default(), Instant::now());
        Link {
            repository,
            request,
            observer,
            spool,
            report,
            has_streamed: false,
            may_jump: request.accept_gap,
            server_end: Lsn(0),
            behind_told_at,
        }
    }

    /// Connects and receives until a signal, the server or trouble ends it.
    pub(super) fn run(&mut self, settings: &ConnectSettings) -> Outcome<Ended> {
        let mut replication = Replication::connect(settings)?;
        exposure(settings, replication.is_encrypted()).iter().for_each(|text| self.observer.note(text));
        check_version(&replication)?;
        let identity = replication.identify_system()?;
        self.server_end = identity.flush_lsn;
        // A disk that is not mounted any more must not get a second archive.
        self.repository.check_is_there()?;
        let facts = gather_without_sql(&mut replication, &identity)?.facts;
        let cluster = ClusterFacts {
            system_identifier: identity.system_identifier,
            pg_version_num: replication.server_version_num(),
        };
        identity::check_or_create(self.repository, &self.request.source, &cluster)?;
        keep_encrypted(self.repository, &self.request.source, self.repository.keys())?;
        let slot_lsn = self.prepare_slot(&mut replication)?;
        let archive = Archive {
            repository: self.repository,
            request: self.request,
            observer: self.observer,
            spool: self.spool,
            system_identifier: identity.system_identifier,
            segment_size_bytes: facts.wal_segment_size_bytes,
        };
        let history = self.store_histories(&mut replication, &archive, identity.timeline)?;
        let mut way = self.way(&archive, &identity, history.as_ref(), slot_lsn)?;
        for hole in &way.holes {
            if let Some(ended) = self.fill(&mut replication, &archive, *hole)? {
                return Ok(ended);
            }
        }
        loop {
            let place = way.place;
            self.compare_last(&mut replication, &archive, place)?;
            match self.stream(&mut replication, &archive, place, Purpose::GoOn) {
                Ok(Streamed::Asked) => return Ok(Ended::Asked),
                Ok(Streamed::ByServer) => return Ok(Ended::ByServer),
                Ok(Streamed::Timeline(timeline, begins_at)) => {
                    self.observer.note(&format!("timeline {} was left at {begins_at} for {timeline}", place.timeline));
                    self.store_histories(&mut replication, &archive, timeline)?;
                    let start_lsn = segment_start(begins_at, archive.segment_size_bytes);
                    way.place = Place { timeline, start_lsn };
                }
                // Only now: as long as the server has it, nothing of it is passed over.
                Err(Trouble::Removed(_)) if self.may_jump && way.behind_gap.start_lsn > place.start_lsn => {
                    self.may_jump = false;
                    self.observer.note(&format!(
                        "the archive ends at {}, the server has removed what follows, and it goes on at {}: what lies \
                         between may be lost for it; make a new backup",
                        place.start_lsn, way.behind_gap.start_lsn
                    ));
                    way.place = way.behind_gap;
                }
                Err(trouble) => return Err(trouble),
            }
        }
    }

    /// Fetches the end of a timeline that the server has left and the archive does not have whole; None if the stream
    /// can go on.
    fn fill(&mut self, replication: &mut Replication, archive: &Archive<'_>, hole: Place) -> Outcome<Option<Ended>> {
        self.compare_last(replication, archive, hole)?;
        match self.stream(replication, archive, hole, Purpose::Fill) {
            Ok(Streamed::Asked) => Ok(Some(Ended::Asked)),
            Ok(Streamed::ByServer) => Ok(Some(Ended::ByServer)),
            Ok(Streamed::Timeline(..)) => Ok(None),
            // The archive has newer WAL, which must not have to wait for ever for what is lost.
            Err(Trouble::Removed(error)) => {
                self.observer.note(&format!(
                    "the end of timeline {} from {} on is in the archive no more than at the server: nobody can recover \
                     along it beyond that point ({})",
                    hole.timeline,
                    hole.start_lsn,
                    error.message()
                ));
                Ok(None)
            }
            Err(trouble) => Err(trouble),
        }
    }

    /// Makes sure of the slot; gives the position from which on it keeps WAL, where the server tells.
    fn prepare_slot(&self, replication: &mut Replication) -> Outcome<Option<Lsn>> {
        let Some(name) = &self.request.slot else { return Ok(None) };
        let mut state = replication.slot(name)?;
        let may_create = self.request.create_slot && !self.has_streamed;
        if may_create && !matches!(state, SlotState::Present(_)) {
            match replication.create_slot(name, false) {
                Ok(()) => {}
                Err(QueryError::Server(refused)) if refused.sqlstate == DUPLICATE_OBJECT => {}
                Err(error) => return Err(error.into_error(format!("create replication slot {name}")).into()),
            }
            state = replication.slot(name)?;
        }
        match state {
            SlotState::Missing => Err(Trouble::Final(slot_missing(name, self.has_streamed))),
            SlotState::Present(lsn) => Ok(lsn),
            SlotState::Unknown => Ok(None),
        }
    }

    /// Stores the history of `timeline` and of those before it: recovery asks for each of them.
    fn store_histories(
        &self,
        replication: &mut Replication,
        archive: &Archive<'_>,
        timeline: TimelineId,
    ) -> Outcome<Option<TimelineHistory>> {
        if timeline.0 <= 1 {
            return Ok(None);
        }
        let file = replication.timeline_history(timeline)?;
        let history = timeline_history::parse(timeline, &file.content)?;
        for branch in history.branches.iter().filter(|branch| branch.timeline.0 > 1) {
            match replication.timeline_history(branch.timeline) {
                Ok(file) => archive.store_history(&file.name, &file.content)?,
                Err(error) => self.observer.note(&error.message()),
            }
        }
        archive.store_history(&file.name, &file.content)?;
        Ok(Some(history))
    }

    fn way(
        &self,
        archive: &Archive<'_>,
        identity: &SystemIdentity,
        history: Option<&TimelineHistory>,
        slot_lsn: Option<Lsn>,
    ) -> Outcome<Way> {
        let (source, size) = (&self.request.source, archive.segment_size_bytes);
        let inventory = WalInventory::load(self.repository, source, identity.system_identifier, Detail::Listing)?;
        inventory.timelines.values().try_for_each(|wal| self.finish_last(wal))?;
        let mut held = BTreeMap::new();
        for timeline in inventory.timelines.keys() {
            held.insert(*timeline, self.held(archive, &inventory, *timeline)?);
        }
        let held = |timeline| held.get(&timeline).copied().unwrap_or_default();
        let behind_gap = at(slot_lsn.unwrap_or(identity.flush_lsn), identity.timeline, history, size);
        let place = after(identity.timeline, history, &held, size).unwrap_or(behind_gap);
        Ok(Way { holes: holes(place.timeline, history, &held, size), place, behind_gap })
    }

    fn held(&self, archive: &Archive<'_>, inventory: &WalInventory, timeline: TimelineId) -> Result<Held> {
        let size = archive.segment_size_bytes;
        let mut held = Held::of(inventory, timeline, size);
        if let Some(next) = held.next().filter(|_| held.reached.is_none()) {
            let name = WalSegmentName::new(timeline, next, size);
            let log = StoredLog::list(self.repository, &self.request.source, archive.system_identifier, &name)?;
            held.reached = match log.pieces(&name) {
                Ok(pieces) => Some(Lsn(next.0 * size + reach_of(&pieces))),
                // Nothing can be put beside damaged ones; of the newest timeline that is an error when it is opened.
                Err(error) if error.kind() == ErrorKind::Damage => {
                    self.observer.note(&error.message());
                    Some(Lsn(u64::MAX))
                }
                Err(error) => return Err(error),
            };
        }
        Ok(held)
    }

    /// Does what a receiver that was killed behind its last whole segment had still to do: the server may forget that
    /// segment, so it must be durable, and its pieces are of no use.
    fn finish_last(&self, wal: &TimelineWal) -> Result<()> {
        let Some(last) = wal.bundles.last() else { return Ok(()) };
        let storage = self.repository.storage();
        storage.make_durable(&last.object)?;
        let segments = last.first.0..last.first.0 + u64::from(last.count);
        let mut pieces = wal.pieces.iter().filter(|piece| segments.contains(&piece.segment.0)).peekable();
        if pieces.peek().is_none() {
            return Ok(());
        }
        match open_bundle(self.repository, &last.object) {
            Ok(Some(_)) => pieces.try_for_each(|piece| storage.delete(&piece.object)),
            Ok(None) => Ok(()),
            // Of an object that does not read they are all that is left.
            Err(error) => {
                self.observer.note(&error.message());
                Ok(())
            }
        }
    }

    /// Streams from `place` on, and stores what comes, also when the stream breaks.
    fn stream(
        &mut self,
        replication: &mut Replication,
        archive: &Archive<'_>,
        place: Place,
        purpose: Purpose,
    ) -> Outcome<Streamed> {
        let Place { timeline, start_lsn } = place;
        // A slot would go back to what it is told.
        let slot = self.request.slot.as_deref().filter(|_| purpose == Purpose::GoOn);
        let mut open = self.open(archive, place)?;
        let mut stream =
            replication.start_streaming(slot, start_lsn, timeline).map_err(|error| self.refused(error, start_lsn))?;
        self.has_streamed = true;
        self.report.timeline = Some(timeline);
        self.observer.note(&format!("streaming WAL of timeline {timeline} from {start_lsn}"));
        let outcome = self.receive(archive, &mut stream, &mut open, place, purpose);
        // A server that is gone may be gone for ever: what it sent last must not be lost with it.
        let flushed = self.flush(&mut open);
        match (outcome, flushed) {
            (Ok(is_asked), Ok(_)) => {
                if open.durable_lsn() > self.known_to_server(place, purpose) {
                    stream.acknowledge(open.durable_lsn()).ok();
                }
                let next = stream.end();
                if is_asked {
                    return Ok(Streamed::Asked);
                }
                Ok(match next? {
                    Some((timeline, begins_at)) => Streamed::Timeline(timeline, begins_at),
                    None => Streamed::ByServer,
                })
            }
            (Err(trouble), _) => Err(trouble),
            (_, Err(error)) => Err(error.into()),
        }
    }

    /// What the server need not be told. A slot takes the position that it is told, also one that is behind its own: where
    /// WAL is to come, the start of the stream is only told when some of it came, and not if it is gone.
    fn known_to_server(&self, place: Place, purpose: Purpose) -> Lsn {
        match purpose {
            Purpose::Fill => Lsn(u64::MAX),
            Purpose::GoOn if place.start_lsn >= self.server_end => Lsn(0),
            Purpose::GoOn => place.start_lsn,
        }
    }

    fn open<'s>(&self, archive: &Archive<'s>, place: Place) -> Result<OpenSegment<'s>> {
        let name = WalSegmentName::containing(place.timeline, place.start_lsn, archive.segment_size_bytes);
        OpenSegment::begin(*archive, name, place.start_lsn)
    }

    /// Receives until the stream ends (false) or a signal asks to stop (true).
    fn receive<'s>(
        &mut self,
        archive: &Archive<'s>,
        stream: &mut WalStream<'_>,
        open: &mut OpenSegment<'s>,
        place: Place,
        purpose: Purpose,
    ) -> Outcome<bool> {
        let (mut position, mut told) = (place.start_lsn, self.known_to_server(place, purpose));
        let mut flushed_at = Instant::now();
        loop {
            if self.observer.interrupted() {
                return Ok(true);
            }
            // Also without anything new: a commit may wait for what an earlier run stored and died before it said so.
            if open.durable_lsn() > told {
                told = open.durable_lsn();
                stream.acknowledge(told)?;
            }
            let is_pending = open.pending_bytes() > 0;
            let wait = match self.request.synchronous && is_pending {
                true => SYNCHRONOUS_WAIT,
                false => WAIT.min(self.request.flush_every),
            };
            let mut is_quiet = false;
            match stream.next(wait).map_err(|error| self.refused(error, position))? {
                WalEvent::End => return Ok(false),
                WalEvent::Quiet => is_quiet = true,
                WalEvent::Keepalive { server_lsn } => self.tell_behind(server_lsn, position, archive),
                WalEvent::Wal { start_lsn, bytes, server_lsn, .. } => {
                    if start_lsn != position {
                        let cause = format!("WAL from {start_lsn} came, expected was {position}");
                        return Err(Error::new(ErrorKind::Source, "receive WAL", cause).into());
                    }
                    self.may_jump &= purpose == Purpose::Fill;
                    position = Lsn(position.0 + bytes.len() as u64);
                    self.report.received_bytes += bytes.len() as u64;
                    self.take(archive, open, place.timeline, &bytes)?;
                    self.tell_behind(server_lsn, position, archive);
                }
            }
            let is_due = match self.request.synchronous {
                true => is_quiet,
                false => flushed_at.elapsed() >= self.request.flush_every,
            };
            if is_due || open.pending_bytes() >= PIECE_BYTES_MAX {
                flushed_at = Instant::now();
                self.flush(open)?;
            }
        }
    }

    /// Puts bytes into the open segment; whole ones are stored, and the next one is opened.
    fn take<'s>(
        &mut self,
        archive: &Archive<'s>,
        open: &mut OpenSegment<'s>,
        timeline: TimelineId,
        mut bytes: &[u8],
    ) -> Outcome<()> {
        while !bytes.is_empty() {
            let (taken, is_whole) = open.take(bytes)?;
            bytes = &bytes[taken..];
            if is_whole {
                let start_lsn = open.end_lsn();
                let next = self.open(archive, Place { timeline, start_lsn })?;
                let durable = std::mem::replace(open, next).store_whole()?;
                self.report.segment_count += 1;
                self.report.durable_lsn = Some(durable);
            }
        }
        Ok(())
    }

    fn flush(&mut self, open: &mut OpenSegment<'_>) -> Result<bool> {
        let is_new = open.flush()?;
        if is_new {
            self.report.piece_count += 1;
            self.report.durable_lsn = Some(open.durable_lsn()).max(self.report.durable_lsn);
        }
        Ok(is_new)
    }

    /// Says now and then how far the stream is behind the server, if it is by more than a segment.
    fn tell_behind(&mut self, server_lsn: Lsn, position: Lsn, archive: &Archive<'_>) {
        let behind = server_lsn.0.saturating_sub(position.0);
        if behind > archive.segment_size_bytes && self.behind_told_at.elapsed() >= BEHIND_INTERVAL {
            self.behind_told_at = Instant::now();
            self.observer.note(&format!("{} MiB behind the server, which is at {server_lsn}", behind / MIB));
        }
    }

    /// The server does not stream: which refusals end with time, and what helps against the others.
    pub(super) fn refused(&self, error: QueryError, start_lsn: Lsn) -> Trouble {
        let Some(refused) = error.server().cloned() else { return Trouble::Again(error.into_error("stream WAL")) };
        let slot = self.request.slot.as_deref().unwrap_or_default();
        let error = error.into_error(format!("stream WAL from {start_lsn}"));
        match refused.sqlstate.as_str() {
            // The server process of a receiver that was killed is still there.
            OBJECT_IN_USE => Trouble::Again(error),
            "42704" => Trouble::Final(slot_missing(slot, self.has_streamed)),
            UNDEFINED_FILE | "55000" => Trouble::Removed(error.hint(
                "the server has removed WAL that the archive does not have: take a new backup, then start again with \
                 --accept-gap; a slot (--slot NAME --create-slot) keeps WAL from being removed, within \
                 max_slot_wal_keep_size",
            )),
            // Shutting down, starting up, too many connections.
            state if state.starts_with("57P") || state.starts_with("53") || state.starts_with("08") => {
                Trouble::Again(error)
            }
            _ => Trouble::Final(error),
        }
    }
}

fn slot_missing(name: &str, was_there: bool) -> Error {
    let cause = if was_there { "it was there and is gone" } else { "there is no such slot" };
    let hint = match was_there {
        true => {
            "somebody dropped it, or the server is a copy that does not have it; the server no longer keeps WAL for the \
             archive: start again with --create-slot"
        }
        false => "create it with --create-slot",
    };
    Error::new(ErrorKind::Source, format!("use replication slot {name}"), cause).hint(hint)
}
