//! One connection to a server: the simple query protocol, blocking, no threads.
//!
//! Own framing, because the same client later speaks replication, which no crate does; postgres-protocol builds the
//! messages and knows SCRAM. Every length that the server sends is bounded before anything is allocated.

use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::message::frontend;

use super::conninfo::ConnectSettings;
use super::login;
use super::server_error::{QueryError, ServerError};
use super::socket::{Received, Socket};
use super::tls_settings::Encryption;
use crate::error::{Error, ErrorKind, Result};

/// No message of the server may be longer than this.
const MESSAGE_SIZE_BYTES_MAX: usize = 64 << 20;
/// Notices beyond this number are dropped: a chatty server must not fill our memory.
const NOTICE_COUNT_MAX: usize = 100;
/// What to do when the other side is gone.
const LOOK_AT_SERVER: &str =
    "is the server up, and the way to it? its log says what ended the connection; run this again then";

/// One row of a result, in text format; `None` is NULL.
pub type Row = Vec<Option<Vec<u8>>>;

/// Result of a query: what the server refused is kept apart from what broke.
pub type QueryResult<T> = std::result::Result<T, QueryError>;

/// A session on the server; dropping it closes the session.
#[derive(Debug)]
pub struct Connection {
    pub(super) socket: Socket,
    received: Received,
    /// How long a read waits before it gives up; None for ever.
    patience: Option<Duration>,
    server_version_num: u32,
    notices: Vec<ServerError>,
    /// Set once the conversation is out of step; nothing more is sent then.
    is_broken: bool,
    /// The SQLSTATE with which the server refused to let this user in.
    refusal: Option<String>,
    peer: String,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionKind {
    /// SQL.
    Sql,
    /// Commands of the replication protocol, and no SQL.
    Replication,
}

/// Why a try to connect came to nothing.
struct Failed {
    error: Error,
    /// With encryption, or without, it may be another matter.
    is_of_this_way: bool,
    /// The server's SQLSTATE, if it was the server that refused.
    refusal: Option<String>,
}

/// One message of the server: its kind and its body.
pub(super) struct Message {
    pub(super) tag: u8,
    pub(super) body: Vec<u8>,
}

impl Connection {
    /// Connects, logs in and makes the session independent of the role's and database's settings.
    ///
    /// Blocks for at most the connect timeout; afterwards a query may take as long as it takes.
    ///
    /// # Errors
    /// `Source` for everything the server or network refuses, `Configuration` for files of certificates.
    pub fn connect(settings: &ConnectSettings) -> Result<Self> {
        let mut connection = Self::connect_or_refusal(settings).map_err(|refused| refused.0)?;
        connection.wait_at_most(None)?;
        Ok(connection)
    }

    /// As [`Connection::connect`]; beside the error comes the SQLSTATE if it was the server that refused.
    pub(super) fn connect_or_refusal(
        settings: &ConnectSettings,
    ) -> std::result::Result<Self, Box<(Error, Option<String>)>> {
        let mut refusal = None;
        let mut connection = Self::log_in_or_refusal(settings, SessionKind::Sql, &mut refusal)
            .map_err(|error| Box::new((error, refusal)))?;
        let prepared = connection.prepare_session().map_err(|error| {
            let sqlstate = error.server().map(|refused| refused.sqlstate.clone());
            Box::new((error.into_error(format!("set up a session on the {settings}")), sqlstate))
        });
        prepared.map(|()| connection)
    }

    /// Connects and logs in; reads wait for at most the connect timeout until [`Connection::wait_at_most`] says else.
    pub(super) fn log_in(settings: &ConnectSettings, kind: SessionKind) -> Result<Self> {
        Self::log_in_or_refusal(settings, kind, &mut None)
    }

    /// As [`Connection::log_in`]; `sqlstate` is the server's, if it was the server that refused.
    fn log_in_or_refusal(settings: &ConnectSettings, kind: SessionKind, sqlstate: &mut Option<String>) -> Result<Self> {
        let unencrypted = [Encryption::Never];
        let tries = if settings.is_unix_socket() { &unencrypted } else { settings.tls.tries() };
        let mut earlier: Option<Error> = None;
        for (number, encryption) in tries.iter().enumerate() {
            match Self::log_in_by(settings, kind, *encryption) {
                Ok(connection) => return Ok(connection),
                Err(failed) if failed.is_of_this_way && number + 1 < tries.len() => earlier = Some(failed.error),
                Err(failed) => {
                    let Failed { mut error, refusal, .. } = *failed;
                    earlier.into_iter().for_each(|earlier| error.attach(earlier));
                    *sqlstate = refusal;
                    return Err(error);
                }
            }
        }
        Err(Error::new(ErrorKind::Bug, "log in", "there was no way to try"))
    }

    /// One try.
    fn log_in_by(
        settings: &ConnectSettings,
        kind: SessionKind,
        encryption: Encryption,
    ) -> std::result::Result<Self, Box<Failed>> {
        let final_word = |error| Box::new(Failed { error, is_of_this_way: false, refusal: None });
        let socket = Socket::open(settings).map_err(final_word)?;
        let socket = socket.encrypt(settings, encryption).map_err(|error| {
            // A file of ours that does not do is never a reason to go without.
            let is_of_this_way = error.kind() == ErrorKind::Source;
            Box::new(Failed { error, is_of_this_way, refusal: None })
        })?;
        // Where nothing was encrypted though it might have been, the other way is the same one.
        let has_other_way = encryption != Encryption::IfOffered || socket.is_encrypted();
        let mut connection = Connection {
            socket,
            received: Received::default(),
            patience: None,
            server_version_num: 0,
            notices: Vec::new(),
            is_broken: false,
            refusal: None,
            peer: settings.to_string(),
        };
        connection.wait_at_most(Some(Duration::from_secs(settings.connect_timeout_s))).map_err(final_word)?;
        match login::log_in(&mut connection, settings, kind) {
            Ok(()) => Ok(connection),
            Err(error) => {
                let is_shut_out = connection.refusal.as_deref() == Some(login::INVALID_AUTHORIZATION);
                let refusal = connection.refusal.take();
                Err(Box::new(Failed { error, is_of_this_way: has_other_way && is_shut_out, refusal }))
            }
        }
    }

    /// What the log-in can be bound to; None without TLS.
    pub(super) fn end_point_hash(&self) -> Option<Vec<u8>> {
        self.socket.end_point_hash()
    }

    /// Notes why the server does not let this user in.
    pub(super) fn note_refusal(&mut self, sqlstate: &str) {
        self.refusal = Some(sqlstate.to_owned());
    }

    /// Runs `sql` and returns the rows of its last statement.
    ///
    /// # Errors
    /// [`QueryError::Server`] when the server refuses the statement (the session stays usable),
    /// [`QueryError::Lost`] when the connection broke (it does not).
    pub fn query(&mut self, sql: &str) -> QueryResult<Vec<Row>> {
        if self.is_broken {
            return Err(QueryError::Lost(self.lost("an earlier failure ended it")));
        }
        let mut message = BytesMut::new();
        frontend::query(sql, &mut message).map_err(|cause| {
            QueryError::Lost(Error::new(ErrorKind::Bug, "build a query", format!("the text has a NUL: {cause}")))
        })?;
        self.send(&message).map_err(QueryError::Lost)?;
        self.read_results()
    }

    /// Runs `sql`, which must give exactly one row, and returns its columns as text.
    ///
    /// # Errors
    /// As [`Connection::query`], and `Lost` with a precise cause for another number of rows or columns.
    pub fn query_row_text(&mut self, sql: &str, column_count: usize) -> QueryResult<Vec<Option<String>>> {
        let row = self.query_row(sql, column_count)?;
        row.into_iter()
            .map(|value| value.map(String::from_utf8).transpose())
            .collect::<std::result::Result<_, _>>()
            .map_err(|_| QueryError::Lost(self.unexpected("a text that is not UTF-8")))
    }

    /// As [`Connection::query_row_text`], the columns as the server's bytes.
    ///
    /// # Errors
    /// As there.
    pub fn query_row(&mut self, sql: &str, column_count: usize) -> QueryResult<Row> {
        let mut rows = self.query(sql)?;
        match (rows.pop(), rows.len()) {
            (Some(row), 0) if row.len() == column_count => Ok(row),
            _ => Err(QueryError::Lost(self.unexpected("an answer that is not the one row asked for"))),
        }
    }

    /// Runs `sql`, which must give one value that is not NULL, and returns it.
    ///
    /// # Errors
    /// As [`Connection::query_row_text`].
    pub fn query_value(&mut self, sql: &str) -> QueryResult<String> {
        match self.query_row_text(sql, 1)?.pop().flatten() {
            Some(value) => Ok(value),
            None => Err(QueryError::Lost(self.unexpected("NULL where a value was due"))),
        }
    }

    /// The server's version as a number, `150020` for 15.20.
    pub fn server_version_num(&self) -> u32 {
        self.server_version_num
    }

    /// Takes the notices and warnings that came in since the last call.
    pub fn take_notices(&mut self) -> Vec<ServerError> {
        std::mem::take(&mut self.notices)
    }

    /// Settings a role or database may carry that would end a session which only waits for files to be read.
    fn prepare_session(&mut self) -> QueryResult<()> {
        let version = self.query_value("SELECT pg_catalog.current_setting('server_version_num')")?;
        self.server_version_num =
            version.parse().map_err(|_| QueryError::Lost(self.unexpected("a version that is not a number")))?;
        self.query(
            "SET search_path = pg_catalog; SET statement_timeout = 0; SET lock_timeout = 0; \
             SET idle_in_transaction_session_timeout = 0; SET standard_conforming_strings = on",
        )?;
        if self.server_version_num >= 140_000 {
            self.query("SET idle_session_timeout = 0")?;
        }
        Ok(())
    }

    /// Reads until the server is ready again; the first error wins, rows of the last statement are returned.
    fn read_results(&mut self) -> QueryResult<Vec<Row>> {
        let mut rows = Vec::new();
        let mut refused: Option<ServerError> = None;
        loop {
            let message = match self.read_message() {
                Ok(message) => message,
                // A FATAL error is the last word of the server and says more than the end of the stream.
                Err(lost) => return Err(refused.map_or(QueryError::Lost(lost), QueryError::from)),
            };
            match message.tag {
                b'T' => rows.clear(),
                b'D' => rows.push(self.parse_row(&message.body).map_err(QueryError::Lost)?),
                b'E' => {
                    refused.get_or_insert_with(|| ServerError::parse(&message.body));
                }
                b'Z' => return refused.map_or(Ok(rows), |error| Err(QueryError::from(error))),
                b'C' | b'I' => {}
                // Copy sub-protocols: no statement of ours starts one.
                _ => return Err(QueryError::Lost(self.unexpected(&describe_tag(message.tag)))),
            }
        }
    }

    fn parse_row(&mut self, body: &[u8]) -> Result<Row> {
        match split_row(body) {
            Some(row) => Ok(row),
            None => Err(self.unexpected("a malformed row")),
        }
    }

    /// The next message that is not a notice, a notification or a parameter's new value.
    pub(super) fn read_message(&mut self) -> Result<Message> {
        loop {
            let message = self.read_any_message()?;
            match message.tag {
                b'N' if self.notices.len() < NOTICE_COUNT_MAX => self.notices.push(ServerError::parse(&message.body)),
                b'N' | b'A' | b'S' => {}
                _ => return Ok(message),
            }
        }
    }

    fn read_any_message(&mut self) -> Result<Message> {
        match self.take_message()? {
            Some(message) => Ok(message),
            None => Err(self.lost("the server did not answer in time").hint(LOOK_AT_SERVER)),
        }
    }

    /// As [`Connection::read_message`], but None if no whole message comes within `wait`; what came of it is kept.
    pub(super) fn read_message_within(&mut self, wait: Duration) -> Result<Option<Message>> {
        // A socket takes a timeout of zero for none.
        self.wait_at_most(Some(wait.max(Duration::from_millis(1))))?;
        loop {
            let Some(message) = self.take_message()? else { return Ok(None) };
            match message.tag {
                b'N' if self.notices.len() < NOTICE_COUNT_MAX => self.notices.push(ServerError::parse(&message.body)),
                b'N' | b'A' | b'S' => {}
                _ => return Ok(Some(message)),
            }
        }
    }

    /// The next message of any kind; None if it does not come in time.
    fn take_message(&mut self) -> Result<Option<Message>> {
        if !self.fill(5)? {
            return Ok(None);
        }
        let header = self.received.unused();
        let tag = header[0];
        let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
        // The length counts itself, not the tag.
        if !(4..=MESSAGE_SIZE_BYTES_MAX).contains(&length) {
            return Err(self.unexpected(&format!("a message of {length} bytes")));
        }
        if !self.fill(1 + length)? {
            return Ok(None);
        }
        let body = self.received.unused()[5..=length].to_vec();
        self.received.use_up(1 + length);
        Ok(Some(Message { tag, body }))
    }

    /// Receives until at least `count` unused bytes are there; false if they do not come in time.
    fn fill(&mut self, count: usize) -> Result<bool> {
        while self.received.unused().len() < count {
            match self.socket.receive(&mut self.received) {
                Ok(0) => return Err(self.lost("the server closed the connection").hint(LOOK_AT_SERVER)),
                Ok(_) => {}
                Err(cause) if cause.kind() == std::io::ErrorKind::Interrupted => {}
                // A socket with a read timeout; TimedOut are the kernel's questions that nobody answered.
                Err(cause) if cause.kind() == std::io::ErrorKind::WouldBlock => return Ok(false),
                Err(cause) => return Err(self.lost(&cause.to_string()).hint(LOOK_AT_SERVER)),
            }
        }
        Ok(true)
    }

    /// Sends bytes of whole messages.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        // A server that ended the session has said why: its last message waits to be read.
        match self.socket.send(bytes) {
            Err(cause) if cause.kind() != std::io::ErrorKind::BrokenPipe => Err(self.lost(&cause.to_string())),
            _ => Ok(()),
        }
    }

    /// How long reads and writes may wait from now on; None for ever.
    pub(super) fn wait_at_most(&mut self, patience: Option<Duration>) -> Result<()> {
        if self.patience != patience {
            self.socket.set_read_timeout(patience).map_err(|cause| self.lost(&cause.to_string()))?;
            self.patience = patience;
        }
        Ok(())
    }

    /// A send that cannot get rid of its bytes for this long fails.
    pub(super) fn send_within(&mut self, patience: Duration) -> Result<()> {
        self.socket.set_write_timeout(Some(patience)).map_err(|cause| self.lost(&cause.to_string()))
    }

    /// The error of a connection that can no longer be used.
    pub(super) fn lost(&mut self, cause: &str) -> Error {
        self.is_broken = true;
        Error::new(ErrorKind::Source, format!("use the connection to the {}", self.peer), cause)
    }

    /// The error of an answer that the protocol, or the question, does not allow.
    pub(super) fn unexpected(&mut self, what: &str) -> Error {
        self.lost(&format!("the server sent {what}"))
    }
}

impl Drop for Connection {
    /// Says goodbye, so that the server's log does not show a broken client.
    fn drop(&mut self) {
        if !self.is_broken {
            let mut message = BytesMut::new();
            frontend::terminate(&mut message);
            self.send(&message).ok();
        }
    }
}

fn describe_tag(tag: u8) -> String {
    format!("an unexpected message of kind {:?}", char::from(tag))
}

/// DataRow: a count, then length-prefixed values; length -1 is NULL.
pub(super) fn split_row(body: &[u8]) -> Option<Row> {
    let (count, mut rest) = body.split_first_chunk::<2>()?;
    let count = usize::from(u16::from_be_bytes(*count));
    let mut row = Vec::with_capacity(count.min(body.len()));
    for _ in 0..count {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let Ok(length) = usize::try_from(i32::from_be_bytes(*length)) else {
            row.push(None);
            rest = after;
            continue;
        };
        row.push(Some(after.get(..length)?.to_vec()));
        rest = &after[length..];
    }
    rest.is_empty().then_some(row)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn rows_are_split_and_malformed_ones_refused() {
        let row = split_row(b"\0\x02\0\0\0\x01x\xff\xff\xff\xff").unwrap();
        assert_eq!(row, vec![Some(b"x".to_vec()), None]);
        for bad in [&b"\0"[..], b"\0\x01\0\0\0\x02x", b"\0\0y", b"\0\x01\0\0"] {
            assert!(split_row(bad).is_none(), "{bad:?}");
        }
    }

    /// A server that only has one scripted answer.
    fn against_script(answer: &'static [u8]) -> Result<Connection> {
        let directory = tempfile::tempdir().unwrap();
        let settings =
            ConnectSettings::parse(&format!("host={} user=x connect_timeout=1", directory.path().display())).unwrap();
        let listener = std::os::unix::net::UnixListener::bind(settings.socket_path()).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(answer).unwrap();
            // Keeps the stream open until the client hangs up.
            stream.read_to_end(&mut Vec::new()).ok();
        });
        let outcome = Connection::connect(&settings);
        if outcome.is_err() {
            server.join().unwrap();
        }
        outcome
    }

    #[test]
    fn s07_a_hostile_server_gives_errors_and_never_a_panic_or_a_huge_allocation() {
        let scripts: [&'static [u8]; 6] = [
            b"R\x7f\xff\xff\xff",
            b"R\0\0\0\x03",
            b"R\0\0\0\x04",
            b"R\0\0\0\x08\0\0\0\x63",
            b"HTTP/1.1 400 Bad Request\r\n",
            b"R\0\0\0\x08\0\0\0\x0c",
        ];
        for script in scripts {
            let error = against_script(script).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Source, "{error}");
        }
        let error = against_script(b"").unwrap_err();
        assert!(error.message().contains("did not answer in time"), "{error}");
    }

    #[test]
    fn missing_sockets_are_explained() {
        let settings = ConnectSettings::parse("host=/nonexistent user=x").unwrap();
        let error = Connection::connect(&settings).unwrap_err();
        assert!(error.hint_text().unwrap().contains("is the server running"), "{error}");
    }

    #[test]
    fn tcp_works_like_a_socket() {
        let ready = b"Z\0\0\0\x05I";
        let done = b"C\0\0\0\x08SET\0";
        let version = b"D\0\0\0\x10\0\x01\0\0\0\x06150020";
        let script: Vec<&[u8]> =
            vec![b"R\0\0\0\x08\0\0\0\0", ready, version, done, ready, done, ready, done, ready, version, done, ready];
        let script = script.concat();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&script).unwrap();
            stream.read_to_end(&mut Vec::new()).ok();
        });
        let settings = ConnectSettings::parse(&format!("host=127.0.0.1 port={port} user=x sslmode=disable")).unwrap();
        let mut connection = Connection::connect(&settings).unwrap();
        assert_eq!(connection.server_version_num(), 150_020);
        assert_eq!(connection.query_value("SELECT 1").unwrap(), "150020");
        drop(connection);
        server.join().unwrap();
        assert_eq!(Connection::connect(&settings).unwrap_err().kind(), ErrorKind::Source);
    }
}
