//! One session: a batch goes out, messages are heard as they come, rows are kept. Blocking, no threads.
//!
//! Own code, for the crates keep what the server says during a statement until it is over, or drop it: a backup's
//! progress is such a message, and of the errors of a failed one the first is the cause and the last only says so.
//! Every length that the server sends is bounded before anything is allocated.

use std::time::{Duration, Instant};

use super::address::{Encryption, ServerAddress};
use super::login::{self, Agreed};
use super::server_message::{RunError, ServerMessage, StopReason};
use super::token::{Token, read_token};
use super::transport::{Transport, is_timeout};
use super::value::{Column, Value};
use super::wire::{self, HEADER_SIZE_BYTES, PACKET_SIZE_DEFAULT, PacketHeader, PacketKind, Unread};
use crate::error::{Error, ErrorKind, Result};

/// A token is never longer, and so neither is what waits to be read.
const TOKEN_SIZE_BYTES_MAX: usize = 4 << 20;
/// Rows beyond this number end the connection: what is asked here has few.
const ROW_COUNT_MAX: usize = 1 << 20;
/// What is kept of a batch's messages; they are all heard.
const MESSAGE_COUNT_MAX: usize = 4096;
/// And of its errors.
const ERROR_COUNT_MAX: usize = 256;
/// What rows and messages of one answer may take together.
const ANSWER_SIZE_BYTES_MAX: usize = 64 << 20;
/// The longest batch.
const BATCH_SIZE_BYTES_MAX: usize = 64 << 20;
/// How often is looked whether somebody wants to stop.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// A statement that is told to end has to within this time: a backup gives back its buffers and closes its files.
const ATTENTION_PATIENCE: Duration = Duration::from_secs(60);
/// What one read asks for.
const READ_SIZE_BYTES: usize = 32 << 10;

/// Hears a statement while it runs, and may end it.
pub trait Watch {
    /// The server said something.
    fn message(&mut self, message: &ServerMessage);
    /// Whether to end it, asked a few times a second.
    fn stop(&mut self) -> Option<StopReason>;
}

/// Hears nothing and lets everything run to its end.
#[derive(Debug)]
pub struct NoWatch;

impl Watch for NoWatch {
    fn message(&mut self, _message: &ServerMessage) {}
    fn stop(&mut self) -> Option<StopReason> {
        None
    }
}

/// A result set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResultSet {
    /// Its columns.
    pub columns: Vec<Column>,
    /// Its rows, as many values each.
    pub rows: Vec<Vec<Value>>,
}

impl ResultSet {
    /// The value of the column called `name` in row `index`.
    pub fn value(&self, index: usize, name: &str) -> Option<&Value> {
        let column = self.columns.iter().position(|column| column.name.eq_ignore_ascii_case(name))?;
        self.rows.get(index)?.get(column)
    }
}

/// What a batch gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Its result sets that have columns.
    pub results: Vec<ResultSet>,
    /// What the server said, the first few thousand.
    pub messages: Vec<ServerMessage>,
}

/// A session; dropping it ends it, and with it what it runs.
#[derive(Debug)]
pub struct Connection {
    /// None once it is lost.
    transport: Option<Transport>,
    /// What came and is no whole packet yet.
    raw: Vec<u8>,
    /// Content of packets that is not read yet.
    received: Vec<u8>,
    /// Whether the packet that came last ended a message.
    is_message_over: bool,
    packet_size: usize,
    /// Major, minor, build.
    version: [u16; 3],
    peer: String,
    /// A batch was sent and its answer not read yet.
    is_pending: bool,
}

impl Connection {
    /// Connects and logs in.
    ///
    /// # Errors
    /// `Source` for what server and network refuse, `Configuration` for files of certificates.
    pub fn connect(address: &ServerAddress) -> Result<Self> {
        let tcp = Transport::open(address)?;
        let transport = match address.encryption {
            Encryption::Strict => Transport::encrypt(tcp, address)?,
            _ => Transport::Plain(tcp),
        };
        let mut connection = Connection {
            transport: Some(transport),
            raw: Vec::new(),
            received: Vec::new(),
            is_message_over: false,
            packet_size: PACKET_SIZE_DEFAULT,
            version: [0; 3],
            peer: address.to_string(),
            is_pending: false,
        };
        connection.log_in(address)?;
        Ok(connection)
    }

    /// The server's version: major, minor, build. SQL Server 2022 is 16, 2025 is 17.
    pub fn version(&self) -> [u16; 3] {
        self.version
    }

    /// Runs `batch` to its end, heard by `watch`.
    ///
    /// # Errors
    /// [`RunError::Refused`] with all errors, [`RunError::Stopped`] if `watch` wanted it, [`RunError::Lost`].
    pub fn run(&mut self, batch: &str, watch: &mut dyn Watch) -> std::result::Result<Answer, RunError> {
        self.begin(batch).map_err(RunError::Lost)?;
        self.finish(watch)
    }

    /// Runs `batch` to its end.
    ///
    /// # Errors
    /// As [`Connection::run`], as the engine's error; `action` completes "unable to ...".
    pub fn ask(&mut self, batch: &str, action: &str) -> Result<Answer> {
        self.run(batch, &mut NoWatch).map_err(|error| error.into_error(action))
    }

    /// Sends `batch` and does not wait for what comes of it: the server goes on by itself.
    ///
    /// # Errors
    /// `Source` if the connection is lost.
    pub fn begin(&mut self, batch: &str) -> Result<()> {
        if self.is_pending {
            return Err(Error::new(ErrorKind::Bug, "run a batch", "another one of the session has not ended"));
        }
        let text = wire::utf16(batch);
        if text.len() > BATCH_SIZE_BYTES_MAX {
            return Err(Error::new(ErrorKind::Usage, "run a batch", "it is longer than the server takes"));
        }
        // All headers: one, of a transaction that there is not, and one request.
        let mut content = vec![22, 0, 0, 0, 18, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
        content.extend(text);
        self.send(PacketKind::SqlBatch, &content)?;
        self.is_pending = true;
        Ok(())
    }

    /// Reads the answer to what [`Connection::begin`] sent.
    ///
    /// # Errors
    /// As [`Connection::run`].
    pub fn finish(&mut self, watch: &mut dyn Watch) -> std::result::Result<Answer, RunError> {
        self.set_patience(LOOK_EVERY).map_err(RunError::Lost)?;
        let mut reading = Reading::default();
        let mut looked = Instant::now();
        loop {
            let token = self.next_token(&mut reading).map_err(RunError::Lost)?;
            let is_quiet = token.is_none();
            if let Some(token) = token
                && let Some(over) = self.take_in(token, &mut reading, watch).map_err(RunError::Lost)?
            {
                return over;
            }
            // A server that never pauses is to end its statement all the same.
            if is_quiet || looked.elapsed() > LOOK_EVERY {
                looked = Instant::now();
                self.look(&mut reading, watch).map_err(RunError::Lost)?;
            }
        }
    }

    /// Does somebody want to stop, and did the server hear it?
    fn look(&mut self, reading: &mut Reading, watch: &mut dyn Watch) -> Result<()> {
        if let Some((_, since)) = reading.stopping {
            if since.elapsed() > ATTENTION_PATIENCE {
                return Err(self.lost("the server does not end the statement"));
            }
        } else if let Some(reason) = watch.stop() {
            self.send(PacketKind::Attention, &[])?;
            reading.stopping = Some((reason, Instant::now()));
        }
        Ok(())
    }

    /// Takes in one token; gives the outcome once the answer is over.
    fn take_in(
        &mut self,
        token: Token,
        reading: &mut Reading,
        watch: &mut dyn Watch,
    ) -> Result<Option<std::result::Result<Answer, RunError>>> {
        match token {
            Token::Columns(columns) if columns.is_empty() => reading.columns_are_open = false,
            Token::Columns(columns) => {
                reading.columns_are_open = true;
                reading.answer.results.push(ResultSet { columns, rows: Vec::new() });
            }
            Token::Row(row) => {
                reading.row_count += 1;
                let fits = reading.row_count <= ROW_COUNT_MAX && reading.size_bytes <= ANSWER_SIZE_BYTES_MAX;
                match reading.answer.results.last_mut().filter(|_| fits) {
                    Some(result) => result.rows.push(row),
                    None => return Err(self.unexpected("rows without columns, or far too many")),
                }
            }
            Token::Message(message) => reading.hear(message, watch),
            Token::PacketSize(size) => self.packet_size = size,
            Token::Done { has_more, failed, is_attention } => {
                // A statement that failed says so with its errors; this is for those that do not.
                reading.failed |= failed;
                let is_over = if reading.stopping.is_some() { is_attention } else { !has_more };
                if is_over {
                    self.skip_to_end()?;
                    self.is_pending = false;
                    return Ok(Some(std::mem::take(reading).outcome()));
                }
            }
            Token::LoggedIn(_) | Token::Routed(_) | Token::Other => {}
        }
        Ok(None)
    }

    /// The packet that ends a message may come behind its last token.
    fn skip_to_end(&mut self) -> Result<()> {
        let since = Instant::now();
        while !self.is_message_over {
            if !self.receive_packet()? && since.elapsed() > ATTENTION_PATIENCE {
                return Err(self.lost("the server does not end its answer"));
            }
            self.received.clear();
        }
        self.received.clear();
        Ok(())
    }

    fn log_in(&mut self, address: &ServerAddress) -> Result<()> {
        self.send(PacketKind::Prelogin, &login::prelogin(address.encryption))?;
        let answer = self.read_message()?;
        let agreed = login::agree(address, &answer)?;
        if agreed != Agreed::Nothing
            && let Some(Transport::Plain(tcp)) = self.transport.take_if(|open| matches!(open, Transport::Plain(_)))
        {
            self.transport = Some(Transport::encrypt(tcp, address)?);
        }
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        self.send(PacketKind::Login, &login::login(address, host.trim()))?;
        if agreed == Agreed::LogIn {
            self.transport = self.transport.take().map(Transport::without_tls);
        }
        self.read_log_in(address)
    }

    fn read_log_in(&mut self, address: &ServerAddress) -> Result<()> {
        let until = Instant::now() + address.connect_timeout;
        let action = || format!("log in to {address}");
        let mut reading = Reading::default();
        let mut is_in = false;
        loop {
            let token = match self.next_token(&mut reading)? {
                Some(token) => token,
                None if Instant::now() < until => continue,
                None => return Err(self.lost("the server did not answer the log-in in time")),
            };
            match token {
                Token::LoggedIn(version) => {
                    self.version = version;
                    is_in = true;
                }
                Token::PacketSize(size) => self.packet_size = size,
                Token::Routed(elsewhere) => {
                    return Err(Error::new(ErrorKind::Source, action(), format!("it sends us on to {elsewhere}"))
                        .hint("give that address with --server"));
                }
                Token::Message(message) => reading.hear(message, &mut NoWatch),
                Token::Done { has_more: false, .. } => break,
                _ => {}
            }
        }
        self.skip_to_end()?;
        match (is_in, reading.errors.is_empty()) {
            (true, _) => Ok(()),
            (false, false) => Err(RunError::Refused(reading.errors).into_error(action())),
            (false, true) => Err(self.unexpected("neither a log-in nor an error")),
        }
    }

    /// The next token; None if it does not come in time.
    fn next_token(&mut self, reading: &mut Reading) -> Result<Option<Token>> {
        loop {
            match read_token(&self.received, reading.columns()) {
                Ok((token, size)) => {
                    self.received.drain(..size);
                    reading.size_bytes += size;
                    return Ok(Some(token));
                }
                Err(Unread::Bad(what)) => return Err(self.unexpected(&what)),
                Err(Unread::More) if self.received.len() > TOKEN_SIZE_BYTES_MAX => {
                    return Err(self.unexpected("a token that has no end"));
                }
                Err(Unread::More) if self.is_message_over && !self.received.is_empty() => {
                    return Err(self.unexpected("an answer that ends too early"));
                }
                Err(Unread::More) => {
                    if !self.receive_packet()? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// A whole message, not in tokens.
    fn read_message(&mut self) -> Result<Vec<u8>> {
        loop {
            if !self.receive_packet()? {
                return Err(self.lost("the server did not answer in time"));
            }
            if self.received.len() > TOKEN_SIZE_BYTES_MAX {
                return Err(self.unexpected("an answer that has no end"));
            }
            if self.is_message_over {
                return Ok(std::mem::take(&mut self.received));
            }
        }
    }

    /// Receives one packet behind what is there; false if it does not come in time.
    fn receive_packet(&mut self) -> Result<bool> {
        loop {
            if let Some((header, rest)) = self.raw.split_first_chunk::<HEADER_SIZE_BYTES>() {
                let header = match PacketHeader::parse(header) {
                    Ok(header) => header,
                    Err(what) => return Err(self.unexpected(&what)),
                };
                if header.kind != PacketKind::Response as u8 {
                    return Err(self.unexpected(&format!("a packet of kind 0x{:02x}", header.kind)));
                }
                if let Some(content) = rest.get(..header.content_size) {
                    self.received.extend_from_slice(content);
                    self.raw.drain(..HEADER_SIZE_BYTES + header.content_size);
                    self.is_message_over = header.is_last;
                    return Ok(true);
                }
            }
            if !self.receive()? {
                return Ok(false);
            }
        }
    }

    /// Receives some bytes; false if none come in time.
    fn receive(&mut self) -> Result<bool> {
        let Some(transport) = &mut self.transport else { return Err(self.lost("an earlier failure ended it")) };
        let mut room = [0; READ_SIZE_BYTES];
        match transport.receive(&mut room) {
            Ok(0) => Err(self.lost("the server closed the connection")),
            Ok(size) => {
                self.raw.extend_from_slice(&room[..size]);
                Ok(true)
            }
            Err(cause) if cause.kind() == std::io::ErrorKind::Interrupted => Ok(true),
            Err(cause) if is_timeout(&cause) => Ok(false),
            Err(cause) => Err(self.lost(&cause.to_string())),
        }
    }

    fn send(&mut self, kind: PacketKind, content: &[u8]) -> Result<()> {
        let bytes = wire::message(kind, content, self.packet_size);
        let Some(transport) = &mut self.transport else { return Err(self.lost("an earlier failure ended it")) };
        self.is_message_over = false;
        transport.send(&bytes).map_err(|cause| self.lost(&cause.to_string()))
    }

    fn set_patience(&mut self, patience: Duration) -> Result<()> {
        let Some(transport) = &self.transport else { return Err(self.lost("an earlier failure ended it")) };
        transport.set_read_timeout(patience).map_err(|cause| self.lost(&cause.to_string()))
    }

    /// The error of a connection that can no longer be used.
    fn lost(&mut self, cause: &str) -> Error {
        self.transport = None;
        self.is_pending = false;
        Error::new(ErrorKind::Source, format!("use the connection to {}", self.peer), cause)
    }

    /// The error of an answer that the protocol does not allow.
    fn unexpected(&mut self, what: &str) -> Error {
        self.lost(&format!("the server sent {what}"))
    }
}

/// An answer while it is read.
#[derive(Debug, Default)]
struct Reading {
    answer: Answer,
    errors: Vec<ServerMessage>,
    columns_are_open: bool,
    row_count: usize,
    /// Of all its tokens so far.
    size_bytes: usize,
    failed: bool,
    stopping: Option<(StopReason, Instant)>,
}

impl Reading {
    /// Of the result set whose rows come now.
    fn columns(&self) -> &[Column] {
        let open = self.answer.results.last().filter(|_| self.columns_are_open);
        open.map_or(&[], |result| &result.columns)
    }

    fn hear(&mut self, message: ServerMessage, watch: &mut dyn Watch) {
        watch.message(&message);
        if message.is_error() {
            if self.errors.len() < ERROR_COUNT_MAX {
                self.errors.push(message);
            }
        } else if self.answer.messages.len() < MESSAGE_COUNT_MAX && self.size_bytes <= ANSWER_SIZE_BYTES_MAX {
            self.answer.messages.push(message);
        }
    }

    fn outcome(self) -> std::result::Result<Answer, RunError> {
        if let Some((reason, _)) = self.stopping {
            return Err(RunError::Stopped(reason));
        }
        if self.errors.is_empty() && !self.failed {
            return Ok(self.answer);
        }
        let said_nothing =
            ServerMessage { class: 16, text: "it failed and does not say why".into(), ..Default::default() };
        Err(RunError::Refused(if self.errors.is_empty() { vec![said_nothing] } else { self.errors }))
    }
}
