//! One connection of a receiver, from the log-in to its end.

use std::time::{Duration, Instant};

use super::open_segment::{Archive, OpenSegment};
use super::place::{Held, Place, after, at, segment_start};
use super::spool::Spool;
use super::{ReceiveReport, ReceiveRequest, Trouble};
use crate::catalog::Repository;
use crate::catalog::identity::{self, ClusterFacts};
use crate::catalog::wal_bundle::open_bundle;
use crate::catalog::wal_inventory::{Detail, TimelineWal, WalInventory};
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
use crate::terms::{Lsn, TimelineHistory, TimelineId, WalSegmentName};

/// How long the stream is listened to at once when nothing is waiting to be stored.
const WAIT: Duration = Duration::from_millis(200);
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

type Outcome<T> = std::result::Result<T, Trouble>;

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

/// What lives from one connection to the next.
pub(super) struct Link<'a> {
    repository: &'a Repository,
    request: &'a ReceiveRequest,
    observer: &'a dyn Observer,
    spool: &'a Spool,
    pub(super) report: ReceiveReport,
    /// Whether a stream was ever begun.
    pub(super) has_streamed: bool,
    /// Where the server's WAL ended when this connection began.
    server_end: Lsn,
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
        Link { repository, request, observer, spool, report, has_streamed: false, server_end: Lsn(0), behind_told_at }
    }

    /// Connects and receives until a signal, the server or trouble ends it.
    pub(super) fn run(&mut self, settings: &ConnectSettings) -> Outcome<Ended> {
        let mut replication = Replication::connect(settings)?;
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
        let mut place = self.place(&archive, &identity, history.as_ref(), slot_lsn)?;
        loop {
            match self.stream(&mut replication, &archive, place)? {
                Streamed::Asked => return Ok(Ended::Asked),
                Streamed::ByServer => return Ok(Ended::ByServer),
                Streamed::Timeline(timeline, begins_at) => {
                    self.observer.note(&format!("timeline {} was left at {begins_at} for {timeline}", place.timeline));
                    self.store_histories(&mut replication, &archive, timeline)?;
                    let start_lsn = segment_start(begins_at, archive.segment_size_bytes);
                    place = Place { timeline, start_lsn };
                }
            }
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

    fn place(
        &self,
        archive: &Archive<'_>,
        identity: &SystemIdentity,
        history: Option<&TimelineHistory>,
        slot_lsn: Option<Lsn>,
    ) -> Outcome<Place> {
        let (source, size) = (&self.request.source, archive.segment_size_bytes);
        let inventory = WalInventory::load(self.repository, source, identity.system_identifier, Detail::Listing)?;
        let held = |timeline| Held::of(&inventory, timeline);
        inventory.timelines.values().try_for_each(|wal| self.finish_last(wal))?;
        let begin = || at(slot_lsn.unwrap_or(identity.flush_lsn), identity.timeline, history, size);
        let place = after(identity.timeline, history, &held, size);
        if self.request.accept_gap
            && let Some(place) = place
            && place.start_lsn < begin().start_lsn
            && !self.has_streamed
        {
            let begin = begin();
            self.observer.note(&format!(
                "the archive ends at {}, and goes on at {}: what lies between may be lost for it; make a new backup",
                place.start_lsn, begin.start_lsn
            ));
            return Ok(begin);
        }
        Ok(place.unwrap_or_else(begin))
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
        match open_bundle(storage, &last.object) {
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
    fn stream(&mut self, replication: &mut Replication, archive: &Archive<'_>, place: Place) -> Outcome<Streamed> {
        let Place { timeline, start_lsn } = place;
        let slot = self.request.slot.as_deref();
        let mut open = self.open(archive, place)?;
        let mut stream =
            replication.start_streaming(slot, start_lsn, timeline).map_err(|error| self.refused(error, start_lsn))?;
        self.has_streamed = true;
        self.report.timeline = Some(timeline);
        self.observer.note(&format!("streaming WAL of timeline {timeline} from {start_lsn}"));
        let outcome = self.receive(archive, &mut stream, &mut open, place);
        // A server that is gone may be gone for ever: what it sent last must not be lost with it.
        let flushed = self.flush(&mut open);
        match (outcome, flushed) {
            (Ok(is_asked), Ok(_)) => {
                if open.durable_lsn() > self.known_to_server(place) {
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
    fn known_to_server(&self, place: Place) -> Lsn {
        if place.start_lsn >= self.server_end { Lsn(0) } else { place.start_lsn }
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
    ) -> Outcome<bool> {
        let (mut position, mut told) = (place.start_lsn, self.known_to_server(place));
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
    fn refused(&self, error: QueryError, start_lsn: Lsn) -> Trouble {
        let Some(refused) = error.server().cloned() else { return Trouble::Again(error.into_error("stream WAL")) };
        let slot = self.request.slot.as_deref().unwrap_or_default();
        let error = error.into_error(format!("stream WAL from {start_lsn}"));
        match refused.sqlstate.as_str() {
            // The server process of a receiver that was killed is still there.
            OBJECT_IN_USE => Trouble::Again(error),
            "42704" => Trouble::Final(slot_missing(slot, self.has_streamed)),
            UNDEFINED_FILE | "55000" => Trouble::Final(error.hint(
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
