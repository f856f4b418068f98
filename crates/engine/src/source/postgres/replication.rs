//! The replication protocol: what a connection with `replication=true` can be asked, but for `BASE_BACKUP`
//! (`base_backup.rs`).
//!
//! The rules: the manual's "Streaming Replication Protocol", src/backend/replication/walsender.c and, for the client's
//! side, src/bin/pg_basebackup/receivelog.c.

use std::time::{Duration, Instant};

use bytes::BytesMut;
use postgres_protocol::message::frontend;

use super::client::{Connection, Message, QueryResult, Row, SessionKind};
use super::conninfo::ConnectSettings;
use super::server_error::{QueryError, ServerError};
use super::session::quote_literal;
use crate::error::{Error, ErrorKind, Result};
use crate::terms::{Lsn, TimelineId, WalTime};

/// A peer that says nothing for this long, though asked at half time, is gone: the server's own wal_receiver_timeout.
pub const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How often the server hears from us though nothing happens: the server's own wal_receiver_status_interval.
const STATUS_INTERVAL: Duration = Duration::from_secs(10);
/// Simple commands answer at once; a server that reserves WAL may have to look at pg_control first.
const COMMAND_PATIENCE: Duration = Duration::from_secs(60);
/// SQLSTATE of something that is not there: a slot.
pub const UNDEFINED_OBJECT: &str = "42704";
/// SQLSTATE of a slot that somebody else uses.
pub const OBJECT_IN_USE: &str = "55006";
/// Seconds from 1970 to 2000, where the server's clock begins.
const EPOCH_2000_S: i64 = 946_684_800;

/// A connection that understands replication commands and no SQL.
#[derive(Debug)]
pub struct Replication {
    pub(super) connection: Connection,
    server_version_num: u32,
}

/// Which cluster answers, and where its WAL ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemIdentity {
    /// Unique to the cluster.
    pub system_identifier: u64,
    /// The timeline it writes or replays now.
    pub timeline: TimelineId,
    /// WAL up to here is durable there (on a standby: received or replayed).
    pub flush_lsn: Lsn,
}

/// What is known of a physical slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// There is none of that name.
    Missing,
    /// It is there and keeps WAL from this position on; None if it keeps none (yet, or any more).
    Present(Option<Lsn>),
    /// Servers before 15 do not tell over this protocol.
    Unknown,
}

/// A timeline history file as the server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryFile {
    /// `00000002.history`
    pub name: String,
    /// Its bytes.
    pub content: Vec<u8>,
}

impl Replication {
    /// Whether it is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.connection.socket.is_encrypted()
    }

    /// Connects and logs in for replication.
    ///
    /// # Errors
    /// `Source` for what network and server refuse; the hint names pg_hba.conf's replication lines.
    pub fn connect(settings: &ConnectSettings) -> Result<Self> {
        let connection = Connection::log_in(settings, SessionKind::Replication)?;
        let mut replication = Replication { connection, server_version_num: 0 };
        replication.connection.wait_at_most(Some(COMMAND_PATIENCE))?;
        replication.connection.send_within(SILENCE_MAX)?;
        let version =
            replication.show("server_version_num").map_err(|error| error.into_error("ask for the version"))?;
        replication.server_version_num =
            version.parse().map_err(|_| replication.connection.unexpected("a version that is not a number"))?;
        Ok(replication)
    }

    /// The server's version, `150020` for 15.20.
    pub fn server_version_num(&self) -> u32 {
        self.server_version_num
    }

    /// The major version, 15 for 15.20.
    pub fn major(&self) -> u32 {
        self.server_version_num / 10_000
    }

    /// A setting as text.
    ///
    /// # Errors
    /// [`QueryError::Server`] for one that does not exist or is not for this role.
    pub fn show(&mut self, setting: &str) -> QueryResult<String> {
        self.connection.query_value(&format!("SHOW {setting}"))
    }

    /// Which cluster this is.
    ///
    /// # Errors
    /// `Source`.
    pub fn identify_system(&mut self) -> Result<SystemIdentity> {
        let action = "identify the system";
        let row = self.connection.query_row_text("IDENTIFY_SYSTEM", 4).map_err(|error| error.into_error(action))?;
        let texts: Vec<String> = row.into_iter().map(Option::unwrap_or_default).collect();
        let parsed = || {
            Some(SystemIdentity {
                system_identifier: texts[0].parse().ok()?,
                timeline: TimelineId(texts[1].parse().ok()?),
                flush_lsn: texts[2].parse().ok()?,
            })
        };
        parsed().ok_or_else(|| self.connection.unexpected("an identity that makes no sense"))
    }

    /// The history file of `timeline`, which is not the first.
    ///
    /// # Errors
    /// `Source` if the server does not have it.
    pub fn timeline_history(&mut self, timeline: TimelineId) -> Result<HistoryFile> {
        let row = self
            .connection
            .query_row(&format!("TIMELINE_HISTORY {timeline}"), 2)
            .map_err(|error| error.into_error(format!("ask for the history of timeline {timeline}")))?;
        let expected = format!("{:08X}.history", timeline.0);
        match <[_; 2]>::try_from(row) {
            Ok([Some(name), Some(content)]) if name == expected.as_bytes() => {
                Ok(HistoryFile { name: expected, content })
            }
            _ => Err(self.connection.unexpected("a timeline history of another name")),
        }
    }

    /// Whether the physical slot `name` is there.
    ///
    /// # Errors
    /// `Source`; a logical slot of that name too.
    pub fn slot(&mut self, name: &str) -> Result<SlotState> {
        check_slot_name(name)?;
        if self.major() < 15 {
            return Ok(SlotState::Unknown);
        }
        let action = format!("ask for replication slot {name}");
        let row = self
            .connection
            .query_row_text(&format!("READ_REPLICATION_SLOT {name}"), 3)
            .map_err(|error| error.into_error(&action))?;
        match &row[..] {
            [None, ..] => Ok(SlotState::Missing),
            [Some(kind), lsn, _] if kind == "physical" => {
                let lsn = lsn.as_deref().map(str::parse).transpose();
                lsn.map(SlotState::Present).map_err(|_| self.connection.unexpected("a slot's position that is none"))
            }
            _ => Err(Error::new(ErrorKind::Source, action, "it is not a physical slot")
                .hint("choose another name with --slot")),
        }
    }

    /// Creates a physical slot that reserves WAL from now on; a temporary one ends with this connection.
    ///
    /// # Errors
    /// [`QueryError::Server`] with 42710 if there is one of that name.
    pub fn create_slot(&mut self, name: &str, temporary: bool) -> QueryResult<()> {
        check_slot_name(name).map_err(QueryError::Lost)?;
        let temporary = if temporary { " TEMPORARY" } else { "" };
        let sql = match self.major() {
            15.. => format!("CREATE_REPLICATION_SLOT {name}{temporary} PHYSICAL (RESERVE_WAL)"),
            _ => format!("CREATE_REPLICATION_SLOT {name}{temporary} PHYSICAL RESERVE_WAL"),
        };
        self.connection.query(&sql).map(drop)
    }

    /// Removes a slot that nobody uses.
    ///
    /// # Errors
    /// [`QueryError::Server`] if it is not there or in use.
    pub fn drop_slot(&mut self, name: &str) -> QueryResult<()> {
        check_slot_name(name).map_err(QueryError::Lost)?;
        self.connection.query(&format!("DROP_REPLICATION_SLOT {name}")).map(drop)
    }

    /// Begins to stream the WAL of `timeline` from `start` on.
    ///
    /// # Errors
    /// [`QueryError::Server`]: no such slot, WAL removed already, a start position that lies in the future.
    pub fn start_streaming(
        &mut self,
        slot: Option<&str>,
        start: Lsn,
        timeline: TimelineId,
    ) -> QueryResult<WalStream<'_>> {
        slot.map_or(Ok(()), check_slot_name).map_err(QueryError::Lost)?;
        let slot = slot.map_or_else(String::new, |name| format!("SLOT {name} "));
        let lost = QueryError::Lost;
        self.connection.wait_at_most(Some(COMMAND_PATIENCE)).map_err(lost)?;
        self.send_command(&format!("START_REPLICATION {slot}PHYSICAL {start} TIMELINE {timeline}")).map_err(lost)?;
        let message = self.connection.read_message().map_err(lost)?;
        let is_copying = match message.tag {
            b'W' => true,
            // The timeline ended at `start`: the server says at once which one follows.
            b'T' => false,
            b'E' => return Err(self.refused(&message)),
            _ => return Err(lost(self.connection.unexpected("no stream of WAL"))),
        };
        Ok(WalStream {
            replication: self,
            is_copying,
            is_over: false,
            acknowledged: Lsn(0),
            heard_at: Instant::now(),
            told_at: Instant::now(),
            has_asked: false,
        })
    }

    pub(super) fn send_command(&mut self, command: &str) -> Result<()> {
        let mut message = BytesMut::new();
        frontend::query(command, &mut message)
            .map_err(|cause| Error::new(ErrorKind::Bug, "build a command", format!("the text has a NUL: {cause}")))?;
        self.connection.send(&message)
    }

    /// The server's refusal; after an ERROR the connection is usable again.
    pub(super) fn refused(&mut self, message: &Message) -> QueryError {
        let error = ServerError::parse(&message.body);
        if error.severity == "ERROR" {
            loop {
                match self.connection.read_message() {
                    Ok(message) if message.tag == b'Z' => break,
                    Ok(_) => {}
                    Err(_) => break,
                }
            }
        }
        QueryError::from(error)
    }
}

/// What a stream of WAL gives next.
#[derive(Debug, PartialEq, Eq)]
pub enum WalEvent {
    /// WAL from `start_lsn` on.
    Wal {
        /// Position of the first byte.
        start_lsn: Lsn,
        /// The bytes; they may end anywhere.
        bytes: Vec<u8>,
        /// Where the server's WAL ends now.
        server_lsn: Lsn,
        /// The server's clock when it sent them.
        sent_at: WalTime,
    },
    /// Nothing but a sign of life.
    Keepalive {
        /// Where the server's WAL ends now.
        server_lsn: Lsn,
    },
    /// Nothing came in the given time.
    Quiet,
    /// The timeline has ended, or the server shuts down; [`WalStream::end`] says which.
    End,
}

/// A running stream of WAL; dropping it without [`WalStream::end`] makes the connection useless.
#[derive(Debug)]
pub struct WalStream<'a> {
    replication: &'a mut Replication,
    is_copying: bool,
    /// The server has ended the command by itself.
    is_over: bool,
    acknowledged: Lsn,
    heard_at: Instant,
    told_at: Instant,
    has_asked: bool,
}

impl WalStream<'_> {
    /// The next message, waited for at most `wait`; answers the server's questions and keeps the link alive meanwhile.
    ///
    /// # Errors
    /// [`QueryError::Server`] when the server gives up, as it does when the WAL is not there any more;
    /// [`QueryError::Lost`] when the connection is lost, or silent for [`SILENCE_MAX`] though asked.
    pub fn next(&mut self, wait: Duration) -> QueryResult<WalEvent> {
        let message = match self.listen(wait).map_err(QueryError::Lost)? {
            Some(message) => message,
            None if self.is_copying => return Ok(WalEvent::Quiet),
            None => return Ok(WalEvent::End),
        };
        self.heard_at = Instant::now();
        self.has_asked = false;
        match message.tag {
            b'd' => self.copy_data(&message.body).map_err(QueryError::Lost),
            b'c' => {
                self.is_copying = false;
                Ok(WalEvent::End)
            }
            // A server that shuts down ends the command without asking, and then the connection.
            b'C' => {
                self.is_copying = false;
                self.is_over = true;
                Ok(WalEvent::End)
            }
            b'E' => {
                self.is_copying = false;
                self.is_over = true;
                Err(self.replication.refused(&message))
            }
            _ => Err(QueryError::Lost(self.replication.connection.unexpected("no WAL in the middle of WAL"))),
        }
    }

    /// Says what is due, and waits for a message.
    fn listen(&mut self, wait: Duration) -> Result<Option<Message>> {
        if !self.is_copying {
            return Ok(None);
        }
        let silent = self.heard_at.elapsed();
        if silent > SILENCE_MAX {
            let cause = format!("the server has been silent for {} s", silent.as_secs());
            return Err(self.replication.connection.lost(&cause));
        }
        if silent > SILENCE_MAX / 2 && !self.has_asked {
            self.has_asked = true;
            self.send_status(true)?;
        } else if self.told_at.elapsed() >= STATUS_INTERVAL {
            self.send_status(false)?;
        }
        self.replication.connection.read_message_within(wait)
    }

    fn copy_data(&mut self, body: &[u8]) -> Result<WalEvent> {
        match parse_copy_data(body) {
            Some(CopyData::Wal { start_lsn, server_lsn, sent_at, bytes }) => {
                Ok(WalEvent::Wal { start_lsn, bytes: bytes.to_vec(), server_lsn, sent_at })
            }
            Some(CopyData::Keepalive { server_lsn, reply_wanted }) => {
                if reply_wanted {
                    self.send_status(false)?;
                }
                Ok(WalEvent::Keepalive { server_lsn })
            }
            None => Err(self.replication.connection.unexpected("a malformed message of WAL")),
        }
    }

    /// Tells the server that everything before `durable` is durable here: a slot moves up to there, and commits that
    /// wait for a synchronous standby are released.
    ///
    /// # Errors
    /// `Source` when the connection is lost.
    pub fn acknowledge(&mut self, durable: Lsn) -> Result<()> {
        self.acknowledged = self.acknowledged.max(durable);
        if self.is_copying { self.send_status(false) } else { Ok(()) }
    }

    /// StandbyStatusUpdate. What is written is only told when it is durable: `synchronous_commit = remote_write` waits for
    /// it, and what came may lie in memory. Nothing is ever replayed here, so that position stays 0.
    fn send_status(&mut self, reply_wanted: bool) -> Result<()> {
        let mut message = Vec::with_capacity(39);
        message.push(b'd');
        message.extend_from_slice(&38u32.to_be_bytes());
        message.push(b'r');
        for position in [self.acknowledged, self.acknowledged, Lsn(0)] {
            message.extend_from_slice(&position.0.to_be_bytes());
        }
        let micros = jiff::Timestamp::now().as_microsecond() - EPOCH_2000_S * 1_000_000;
        message.extend_from_slice(&micros.to_be_bytes());
        message.push(u8::from(reply_wanted));
        self.told_at = Instant::now();
        self.replication.connection.send(&message)
    }

    /// Ends the stream; gives the timeline that follows and where it begins, if this one has ended.
    ///
    /// # Errors
    /// `Source` when the connection is lost or the server's answer makes no sense.
    pub fn end(self) -> Result<Option<(TimelineId, Lsn)>> {
        if self.is_over {
            return Ok(None);
        }
        let connection = &mut self.replication.connection;
        connection.wait_at_most(Some(COMMAND_PATIENCE))?;
        let mut done = BytesMut::new();
        frontend::copy_done(&mut done);
        connection.send(&done)?;
        let mut next = None;
        loop {
            let message = connection.read_message()?;
            match message.tag {
                // What was on its way when we ended, and the columns' description.
                b'd' | b'c' | b'C' | b'T' => {}
                b'D' => {
                    let row = super::client::split_row(&message.body);
                    let parsed = row.as_ref().and_then(parse_next_timeline);
                    next = Some(parsed.ok_or_else(|| connection.unexpected("a next timeline that makes no sense"))?);
                }
                b'E' => return Err(QueryError::from(ServerError::parse(&message.body)).into_error("end a stream")),
                b'Z' => return Ok(next),
                _ => return Err(connection.unexpected("something else than the end of the stream")),
            }
        }
    }
}

fn parse_next_timeline(row: &Row) -> Option<(TimelineId, Lsn)> {
    let [Some(timeline), Some(lsn)] = &row[..] else { return None };
    let text = |bytes| std::str::from_utf8(bytes).ok();
    Some((TimelineId(text(timeline)?.parse().ok()?), text(lsn)?.parse().ok()?))
}

#[derive(Debug, PartialEq, Eq)]
enum CopyData<'a> {
    Wal { start_lsn: Lsn, server_lsn: Lsn, sent_at: WalTime, bytes: &'a [u8] },
    Keepalive { server_lsn: Lsn, reply_wanted: bool },
}

/// XLogData ('w': start, end, clock, bytes) or a primary keepalive ('k': end, clock, reply wanted).
fn parse_copy_data(body: &[u8]) -> Option<CopyData<'_>> {
    let lsn = |at: usize| body.get(at..)?.first_chunk().map(|bytes| Lsn(u64::from_be_bytes(*bytes)));
    match body.first()? {
        b'w' => {
            let (start_lsn, bytes) = (lsn(1)?, body.get(25..)?);
            start_lsn.0.checked_add(bytes.len() as u64)?;
            let sent_at = WalTime(i64::from_be_bytes(*body.get(17..)?.first_chunk()?));
            Some(CopyData::Wal { start_lsn, server_lsn: lsn(9)?, sent_at, bytes })
        }
        b'k' if body.len() == 18 => Some(CopyData::Keepalive { server_lsn: lsn(1)?, reply_wanted: body[17] != 0 }),
        _ => None,
    }
}

/// Slot names go into commands unquoted: only what the server allows in them.
///
/// # Errors
/// `Usage`.
pub fn check_slot_name(name: &str) -> Result<()> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    if (1..=63).contains(&name.len()) && name.bytes().all(allowed) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Usage, format!("use {} as a slot name", quote_literal(name)), "not a valid name")
        .hint("1 to 63 of a-z, 0-9 and _"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_wal_are_read_and_malformed_ones_refused() {
        let mut wal = vec![b'w'];
        for position in [0x10u64, 0x20, 7] {
            wal.extend_from_slice(&position.to_be_bytes());
        }
        wal.extend_from_slice(b"xyz");
        let expected =
            CopyData::Wal { start_lsn: Lsn(0x10), server_lsn: Lsn(0x20), sent_at: WalTime(7), bytes: b"xyz" };
        assert_eq!(parse_copy_data(&wal), Some(expected));
        assert_eq!(parse_copy_data(&wal[..24]), None);
        wal[1..9].fill(0xFF);
        assert_eq!(parse_copy_data(&wal), None, "the position overflows");
        let mut alive = vec![b'k'];
        alive.extend_from_slice(&0x30u64.to_be_bytes());
        alive.extend_from_slice(&[0; 8]);
        alive.push(1);
        let expected = CopyData::Keepalive { server_lsn: Lsn(0x30), reply_wanted: true };
        assert_eq!(parse_copy_data(&alive), Some(expected));
        for bad in [&b""[..], b"x", b"k", &alive[..17]] {
            assert_eq!(parse_copy_data(bad), None);
        }
    }

    #[test]
    fn slot_names_are_only_what_the_server_allows() {
        check_slot_name("pagehaul_1").unwrap();
        for bad in ["", "A", "a b", "a;b", "a'b", "ä", &"a".repeat(64)] {
            assert_eq!(check_slot_name(bad).unwrap_err().kind(), ErrorKind::Usage, "{bad:?}");
        }
    }
}
