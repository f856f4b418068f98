//! `BASE_BACKUP`: a whole cluster over one replication connection, as tar archives and the server's own manifest.
//!
//! The rules: the manual's "Streaming Replication Protocol" and src/backend/backup/basebackup_copy.c. From 15 on
//! everything is one COPY of typed messages; 13 and 14 send one COPY for each archive, and one for the manifest.

use std::time::{Duration, Instant};

use super::client::{Connection, QueryResult, Row, split_row};
use super::replication::Replication;
use super::server_error::{QueryError, ServerError};
use super::session::quote_literal;
use crate::error::{Error, ErrorKind, Result};
use crate::terms::{Lsn, TimelineId};

/// A server that sends nothing for this long in the middle of a base backup is given up.
const SILENCE_MAX: Duration = Duration::from_secs(300);
/// SQLSTATE data_corrupted: the server found wrong checksums, and says so after the last byte.
const DATA_CORRUPTED: &str = "XX001";

/// A tablespace as the server lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupTablespace {
    /// None for the data directory itself.
    pub oid: Option<u32>,
    /// Where it lies on the server.
    pub location: Vec<u8>,
    /// About how large it is.
    pub size_kib: u64,
}

/// A running base backup; dropping it before [`BackupMessage::End`] makes the connection useless.
#[derive(Debug)]
pub struct BaseBackup {
    replication: Replication,
    /// Where replay starts.
    pub start_lsn: Lsn,
    /// The timeline of the start.
    pub timeline: TimelineId,
    /// Tablespaces in the order of their archives, the data directory last.
    pub tablespaces: Vec<BackupTablespace>,
    state: State,
    heard_at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// 15 and later: before the one COPY.
    BeforeCopy,
    /// 15 and later: in it; what the data messages belong to.
    Typed(Part),
    /// 13 and 14: before the COPY of the archive of this number; one behind the last is the manifest.
    BeforeArchive(usize),
    /// 13 and 14: in it.
    InArchive(usize),
    /// All COPYs are over.
    AfterCopy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    None,
    Archive,
    Manifest,
}

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub enum BackupMessage {
    /// The archive of a tablespace begins; None is the data directory's.
    Archive {
        /// The tablespace.
        oid: Option<u32>,
    },
    /// Bytes of the tar archive that began last.
    ArchiveData(Vec<u8>),
    /// Bytes of the server's backup manifest.
    ManifestData(Vec<u8>),
    /// Nothing came in the given time.
    Quiet,
    /// The backup is over.
    End {
        /// Replaying up to here makes the copy consistent.
        stop_lsn: Lsn,
        /// The timeline of the end.
        timeline: TimelineId,
        /// Whether the server found wrong page checksums.
        has_bad_checksums: bool,
    },
}

/// What a base backup is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order<'a> {
    /// Kept in the backup label.
    pub label: &'a str,
    /// An immediate checkpoint instead of a spread one.
    pub fast_checkpoint: bool,
    /// Only what has changed since the backup whose manifest was uploaded on this connection (from 17 on).
    pub changes_only: bool,
}

/// A base backup that the server has begun.
#[derive(Debug)]
pub struct Accepted {
    begun: Vec<Row>,
    lists: Vec<Row>,
}

impl BaseBackup {
    /// Asks for a base backup without WAL, with a manifest, and waits for its checkpoint.
    ///
    /// # Errors
    /// [`QueryError::Server`] for the server's refusal, after which the connection is usable.
    pub fn ask(replication: &mut Replication, order: &Order<'_>) -> QueryResult<Accepted> {
        let lost = QueryError::Lost;
        // A spread checkpoint takes minutes; a dead link is found by the keep-alives of TCP.
        replication.connection.wait_at_most(None).map_err(lost)?;
        replication.send_command(&command(replication.major(), order)).map_err(lost)?;
        Ok(Accepted { begun: one_result(replication)?, lists: one_result(replication)? })
    }

    /// Goes on with a base backup that the server has begun.
    ///
    /// # Errors
    /// `Source` for an answer that makes no sense.
    pub fn begin(mut replication: Replication, accepted: &Accepted) -> Result<Self> {
        let Accepted { begun, lists } = accepted;
        let connection = &mut replication.connection;
        let [start] = &begun[..] else { return Err(connection.unexpected("no start of the backup")) };
        let Some((start_lsn, timeline)) = parse_position(start) else {
            return Err(connection.unexpected("a start of the backup that makes no sense"));
        };
        let tablespaces: Option<Vec<BackupTablespace>> = lists.iter().map(parse_tablespace).collect();
        let tablespaces = match tablespaces {
            Some(list) if list.iter().filter(|space| space.oid.is_none()).count() == 1 => list,
            _ => return Err(connection.unexpected("a list of tablespaces that makes no sense")),
        };
        let state = if replication.major() >= 15 { State::BeforeCopy } else { State::BeforeArchive(0) };
        Ok(BaseBackup { replication, start_lsn, timeline, tablespaces, state, heard_at: Instant::now() })
    }

    /// About how many bytes come.
    pub fn size_bytes(&self) -> u64 {
        self.tablespaces.iter().map(|space| space.size_kib.saturating_mul(1024)).sum()
    }

    /// The next message, waited for at most `wait`.
    ///
    /// # Errors
    /// `Source` when the connection is lost, the server is silent for minutes, or ends the backup with an error.
    pub fn next(&mut self, wait: Duration) -> Result<BackupMessage> {
        loop {
            let Some(message) = self.replication.connection.read_message_within(wait)? else {
                if self.heard_at.elapsed() > SILENCE_MAX {
                    let cause = format!("the server has sent nothing for {} s", SILENCE_MAX.as_secs());
                    return Err(self.replication.connection.lost(&cause));
                }
                return Ok(BackupMessage::Quiet);
            };
            self.heard_at = Instant::now();
            let next = match (message.tag, self.state) {
                (b'E', _) => {
                    let refused = ServerError::parse(&message.body);
                    return Err(QueryError::from(refused).into_error("go on with the base backup"));
                }
                (b'H', State::BeforeCopy) => {
                    self.state = State::Typed(Part::None);
                    None
                }
                (b'd', State::Typed(part)) => self.typed(part, message.body)?,
                (b'c', State::Typed(_)) => {
                    self.state = State::AfterCopy;
                    None
                }
                (b'H', State::BeforeArchive(number)) => {
                    self.state = State::InArchive(number);
                    self.tablespaces.get(number).map(|space| BackupMessage::Archive { oid: space.oid })
                }
                (b'd', State::InArchive(number)) if number < self.tablespaces.len() => {
                    Some(BackupMessage::ArchiveData(message.body))
                }
                (b'd', State::InArchive(_)) => Some(BackupMessage::ManifestData(message.body)),
                (b'c', State::InArchive(number)) => {
                    let is_last = number == self.tablespaces.len();
                    self.state = if is_last { State::AfterCopy } else { State::BeforeArchive(number + 1) };
                    None
                }
                // The description of the last result's columns.
                (b'T', State::AfterCopy) => None,
                (b'D', State::AfterCopy) => Some(self.end(&message.body)?),
                _ => return Err(self.replication.connection.unexpected("something that is no part of a base backup")),
            };
            if let Some(next) = next {
                return Ok(next);
            }
        }
    }

    /// A message of 15 and later: its first byte says what it is.
    fn typed(&mut self, part: Part, mut body: Vec<u8>) -> Result<Option<BackupMessage>> {
        let unexpected =
            |connection: &mut Connection| Err(connection.unexpected("a malformed message of a base backup"));
        match (body.first(), part) {
            (Some(b'n'), _) => {
                let Some(name) = body[1..].split(|byte| *byte == 0).next() else {
                    return unexpected(&mut self.replication.connection);
                };
                let Some(oid) = parse_archive_name(name) else {
                    return unexpected(&mut self.replication.connection);
                };
                self.state = State::Typed(Part::Archive);
                Ok(Some(BackupMessage::Archive { oid }))
            }
            (Some(b'm'), _) => {
                self.state = State::Typed(Part::Manifest);
                Ok(None)
            }
            // Progress, which the bytes themselves tell.
            (Some(b'p'), _) => Ok(None),
            (Some(b'd'), Part::Archive | Part::Manifest) => {
                body.drain(..1);
                let is_archive = part == Part::Archive;
                Ok(Some(if is_archive { BackupMessage::ArchiveData(body) } else { BackupMessage::ManifestData(body) }))
            }
            _ => unexpected(&mut self.replication.connection),
        }
    }

    /// The row that ends a backup, and what follows it.
    fn end(&mut self, row: &[u8]) -> Result<BackupMessage> {
        let connection = &mut self.replication.connection;
        let Some((stop_lsn, timeline)) = split_row(row).as_ref().and_then(parse_position) else {
            return Err(connection.unexpected("an end of the backup that makes no sense"));
        };
        let mut has_bad_checksums = false;
        connection.wait_at_most(Some(SILENCE_MAX))?;
        loop {
            let message = connection.read_message()?;
            match message.tag {
                b'C' => {}
                b'Z' => return Ok(BackupMessage::End { stop_lsn, timeline, has_bad_checksums }),
                b'E' => {
                    let refused = ServerError::parse(&message.body);
                    if refused.sqlstate != DATA_CORRUPTED {
                        return Err(QueryError::from(refused).into_error("end the base backup"));
                    }
                    has_bad_checksums = true;
                }
                _ => return Err(connection.unexpected("something behind the end of the backup")),
            }
        }
    }
}

/// The command in the grammar of the server's version. WAL comes over a connection of its own, so nothing is waited for.
fn command(major: u32, order: &Order<'_>) -> String {
    let label = quote_literal(order.label);
    if major >= 15 {
        let checkpoint = if order.fast_checkpoint { "fast" } else { "spread" };
        let incremental = if order.changes_only { ", INCREMENTAL" } else { "" };
        return format!(
            "BASE_BACKUP ( LABEL {label}, PROGRESS, CHECKPOINT '{checkpoint}', WAIT 0, TABLESPACE_MAP, \
             MANIFEST 'yes', MANIFEST_CHECKSUMS 'CRC32C'{incremental} )"
        );
    }
    let fast = if order.fast_checkpoint { " FAST" } else { "" };
    format!("BASE_BACKUP LABEL {label} PROGRESS{fast} NOWAIT TABLESPACE_MAP MANIFEST 'yes' MANIFEST_CHECKSUMS 'CRC32C'")
}

/// The rows of one result of several: up to its CommandComplete.
fn one_result(replication: &mut Replication) -> QueryResult<Vec<Row>> {
    let lost = QueryError::Lost;
    let mut rows = Vec::new();
    loop {
        let message = replication.connection.read_message().map_err(lost)?;
        match message.tag {
            b'T' => {}
            b'D' => match split_row(&message.body) {
                Some(row) => rows.push(row),
                None => return Err(lost(replication.connection.unexpected("a malformed row"))),
            },
            b'C' => return Ok(rows),
            b'E' => return Err(replication.refused(&message)),
            _ => return Err(lost(replication.connection.unexpected("no base backup"))),
        }
    }
}

/// A position and its timeline, as start and end of a backup are given.
fn parse_position(row: &Row) -> Option<(Lsn, TimelineId)> {
    let [Some(lsn), Some(timeline)] = &row[..] else { return None };
    Some((text(lsn)?.parse().ok()?, TimelineId(text(timeline)?.parse().ok()?)))
}

/// Object id, location and size in KiB; all NULL but the size for the data directory.
fn parse_tablespace(row: &Row) -> Option<BackupTablespace> {
    let [oid, location, size] = &row[..] else { return None };
    let oid = match oid {
        Some(oid) => Some(text(oid)?.parse().ok()?),
        None => None,
    };
    let size_kib = match size {
        Some(size) => text(size)?.parse().ok()?,
        None => 0,
    };
    Some(BackupTablespace { oid, location: location.clone().unwrap_or_default(), size_kib })
}

/// `base.tar`, or the object id of a tablespace and `.tar`.
fn parse_archive_name(name: &[u8]) -> Option<Option<u32>> {
    match text(name)?.strip_suffix(".tar")? {
        "base" => Some(None),
        oid => oid.parse().ok().map(Some),
    }
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// Refuses a server whose base backups are not known here.
///
/// # Errors
/// `Source`.
pub fn check_version(replication: &Replication) -> Result<()> {
    let majors = super::server_facts::MAJORS;
    if majors.contains(&replication.major()) {
        return Ok(());
    }
    let cause = format!(
        "it is version {}, and versions {} to {} are supported",
        replication.major(),
        majors.start(),
        majors.end()
    );
    Err(Error::new(ErrorKind::Source, "back up this server", cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_are_named_by_their_tablespace() {
        assert_eq!(parse_archive_name(b"base.tar"), Some(None));
        assert_eq!(parse_archive_name(b"16384.tar"), Some(Some(16384)));
        for bad in [&b"base"[..], b"../x.tar", b"99999999999.tar", b"\xff.tar", b""] {
            assert_eq!(parse_archive_name(bad), None);
        }
    }

    #[test]
    fn commands_quote_their_label() {
        let fast = Order { label: "it's", fast_checkpoint: true, changes_only: false };
        assert!(command(15, &fast).contains("LABEL 'it''s', PROGRESS, CHECKPOINT 'fast'"));
        assert!(!command(17, &fast).contains("INCREMENTAL"));
        assert!(command(17, &Order { changes_only: true, ..fast }).contains(", INCREMENTAL )"));
        let spread = Order { label: "x", fast_checkpoint: false, ..fast };
        assert!(command(14, &spread).starts_with("BASE_BACKUP LABEL 'x' PROGRESS NOWAIT TABLESPACE_MAP"));
    }
}
