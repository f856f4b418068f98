//! One backup as the server sees it: a session that begins backup mode, is held, and ends it.
//!
//! The rules: the manual's "Making a Base Backup Using the Low Level API". Losing the session aborts the backup on
//! the server's side, so nothing of it can stay behind.

use super::catalog_files::{self, CatalogDatabase};
use super::client::Connection;
use super::conninfo::ConnectSettings;
use super::server_error::QueryError;
use super::server_facts::ServerFacts;
use crate::error::{Error, ErrorKind, Result};
use crate::terms::{Lsn, TimelineId};

/// The server's clock, RFC 3339 in UTC. It is read when the row is made, which is when the function has returned. The
/// commits that a standby replays have the times of another clock, which may be ahead of its own.
const UTC_NOW: &str = "to_char(greatest(clock_timestamp(), pg_last_xact_replay_timestamp()) AT TIME ZONE 'UTC', \
                       'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')";
/// SQLSTATE object_not_in_prerequisite_state.
pub const OBJECT_NOT_IN_STATE: &str = "55000";

/// Whether the server is kept from removing WAL that this backup still needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WalProtection {
    /// A temporary replication slot holds it for as long as the session lives.
    Slot {
        /// The slot's name; it carries the server process' id.
        name: String,
    },
    /// Nothing does; `wal_keep_size` and luck decide.
    None {
        /// Why there is no slot.
        reason: String,
    },
}

/// A begun backup; dropping it without [`BackupSession::end`] makes the server abort the backup.
#[derive(Debug)]
pub struct BackupSession {
    connection: Connection,
    facts: ServerFacts,
    start_lsn: Lsn,
    timeline: TimelineId,
    wal_hold: WalHold,
}

/// What the server gives for a finished backup.
#[derive(Debug)]
pub struct StopResult {
    /// The backup is consistent once WAL up to here is replayed.
    pub stop_lsn: Lsn,
    /// The server's clock just after that, RFC 3339 in UTC: no commit before `stop_lsn` is later.
    pub stop_time: String,
    /// The timeline of start and stop (a primary does not change it without a restart).
    pub timeline: TimelineId,
    /// The content of the file `backup_label`, byte for byte.
    pub backup_label: Vec<u8>,
    /// The content of the file `tablespace_map`, byte for byte; empty without tablespaces.
    pub tablespace_map: Vec<u8>,
    /// Keep it until every WAL segment of the backup is stored: the slot lives as long as it does.
    pub wal_hold: WalHold,
}

/// What keeps WAL on the server. The slot has a session of its own: a server that invalidates a slot
/// (`max_slot_wal_keep_size`) ends its session, and the backup may do without the slot.
#[derive(Debug)]
pub struct WalHold {
    _connection: Option<Connection>,
    wal_protection: WalProtection,
}

impl BackupSession {
    /// Begins the backup on a server that can give one, with its WAL held as far as that goes.
    ///
    /// Blocks for the checkpoint: seconds with `fast_checkpoint`, else up to the server's checkpoint interval.
    ///
    /// # Errors
    /// `Source`: the server's refusal.
    pub fn begin(
        mut connection: Connection,
        facts: ServerFacts,
        wal_hold: WalHold,
        label: &str,
        fast_checkpoint: bool,
    ) -> Result<Self> {
        let call = if has_new_names(&facts) {
            format!("pg_backup_start({}, {fast_checkpoint})", quote_literal(label))
        } else {
            // The last argument: not exclusive.
            format!("pg_start_backup({}, {fast_checkpoint}, false)", quote_literal(label))
        };
        let action = "begin the backup";
        let start_lsn: Lsn = parse_server_text(
            &connection.query_value(&format!("SELECT {call}")).map_err(|error| start_refused(error, &facts))?,
            action,
        )?;
        let timeline = match facts.is_standby() {
            true => standby_timeline(&mut connection, "timeline_id FROM pg_control_checkpoint()", action)?,
            false => timeline_now(&mut connection, action)?,
        };
        Ok(BackupSession { connection, facts, start_lsn, timeline, wal_hold })
    }

    /// What the server said about itself.
    pub fn facts(&self) -> &ServerFacts {
        &self.facts
    }

    /// Where replay of this backup starts.
    pub fn start_lsn(&self) -> Lsn {
        self.start_lsn
    }

    /// The timeline the backup began on.
    pub fn timeline(&self) -> TimelineId {
        self.timeline
    }

    /// Whether WAL is kept for us.
    pub fn wal_protection(&self) -> &WalProtection {
        &self.wal_hold.wal_protection
    }

    /// Asks the server whether it is still there; cheap, for between two files.
    ///
    /// # Errors
    /// `Source` when the session is lost, and the backup with it.
    pub fn check_alive(&mut self) -> Result<()> {
        self.connection.query("SELECT 1").map(drop).map_err(session_lost)
    }

    /// A setting of the server; None if it does not know it or this role may not see it.
    ///
    /// # Errors
    /// `Source` when the session is lost.
    pub fn setting(&mut self, name: &str) -> Result<Option<String>> {
        match self.connection.query_row_text(&format!("SELECT current_setting({}, true)", quote_literal(name)), 1) {
            Ok(row) => Ok(row.into_iter().next().flatten()),
            Err(QueryError::Server(_)) => Ok(None),
            Err(error) => Err(session_lost(error)),
        }
    }

    /// All databases but those that are being dropped or moved right now.
    ///
    /// # Errors
    /// `Source` when the session is lost.
    pub fn databases(&mut self) -> Result<Vec<CatalogDatabase>> {
        catalog_files::databases(&mut self.connection)
    }

    /// The end of WAL right now, on a standby of what it has: no page on disk can have a higher LSN.
    ///
    /// # Errors
    /// `Source` when the session is lost, or the standby was promoted.
    pub fn current_insert_lsn(&mut self) -> Result<Lsn> {
        if self.facts.is_standby() {
            return self.standby_wal_end();
        }
        let text = self.connection.query_value("SELECT pg_current_wal_insert_lsn()").map_err(session_lost)?;
        parse_server_text(&text, "read the WAL position")
    }

    fn standby_wal_end(&mut self) -> Result<Lsn> {
        let sql = "SELECT pg_is_in_recovery(), greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())";
        let row = self.connection.query_row_text(sql, 2).map_err(session_lost)?;
        match &row[..] {
            [Some(recovers), Some(lsn)] if recovers == "t" => parse_server_text(lsn, "read the WAL position"),
            _ => Err(promoted()),
        }
    }

    /// Ends the backup and returns what a restore needs; does not wait for WAL archiving.
    ///
    /// # Errors
    /// `Source` when the session is lost, the server refuses, or the label is not of the backup that was begun.
    pub fn end(mut self) -> Result<StopResult> {
        let action = "end the backup";
        let call = if has_new_names(&self.facts) { "pg_backup_stop(false)" } else { "pg_stop_backup(false, false)" };
        let sql = format!("SELECT lsn, labelfile, spcmapfile, {UTC_NOW} FROM {call}");
        let row = self.connection.query_row(&sql, 4).map_err(|error| match error {
            QueryError::Lost(_) => session_lost(error),
            QueryError::Server(_) => stop_refused(error, &self.facts),
        })?;
        let [Some(lsn), Some(backup_label), tablespace_map, Some(stop_time)] = &row[..] else {
            return Err(Error::new(ErrorKind::Source, action, "the server gave no stop position or no label"));
        };
        let stop_lsn = parse_server_text(&String::from_utf8_lossy(lsn), action)?;
        let timeline = match self.facts.is_standby() {
            true => {
                let column = "min_recovery_end_timeline FROM pg_control_recovery()";
                standby_timeline(&mut self.connection, column, action)?
            }
            false => timeline_now(&mut self.connection, action)?,
        };
        self.check_same_backup(backup_label, timeline)?;
        Ok(StopResult {
            stop_lsn,
            stop_time: String::from_utf8_lossy(stop_time).into_owned(),
            timeline,
            backup_label: backup_label.clone(),
            tablespace_map: tablespace_map.clone().unwrap_or_default(),
            wal_hold: self.wal_hold,
        })
    }

    fn check_same_backup(&self, backup_label: &[u8], timeline_at_stop: TimelineId) -> Result<()> {
        let refuse = |cause: String| Err(Error::new(ErrorKind::Source, "end the backup", cause));
        let Some((start_lsn, label_timeline)) = parse_backup_label(backup_label) else {
            return refuse("the server's backup label has no START WAL LOCATION or no START TIMELINE".into());
        };
        if start_lsn != self.start_lsn {
            return refuse(format!(
                "the label is of a backup that began at {start_lsn}, this one began at {}",
                self.start_lsn
            ));
        }
        if label_timeline != self.timeline || timeline_at_stop != self.timeline {
            return refuse(format!(
                "the timeline changed from {} to {timeline_at_stop} (label: {label_timeline})",
                self.timeline
            ));
        }
        Ok(())
    }
}

impl WalHold {
    /// Makes a temporary slot that holds WAL from here on, if the server lets it: one that does not give one is no reason to
    /// have no backup.
    pub fn begin(settings: &ConnectSettings) -> Self {
        let sql =
            "SELECT slot_name FROM pg_create_physical_replication_slot('pagehaul_' || pg_backend_pid(), true, true)";
        let made = Connection::connect(settings).map_err(|error| error.message()).and_then(|mut connection| {
            let name = connection.query_value(sql).map_err(without_slot)?;
            Ok((connection, name))
        });
        match made {
            Ok((connection, name)) => {
                WalHold { _connection: Some(connection), wal_protection: WalProtection::Slot { name } }
            }
            Err(reason) => WalHold { _connection: None, wal_protection: WalProtection::None { reason } },
        }
    }
}

/// Why there is no slot, and what would give one.
fn without_slot(error: QueryError) -> String {
    let advice = match error.server().map(|refused| refused.sqlstate.as_str()) {
        Some("42501") => "; ALTER ROLE ... REPLICATION gives the right",
        Some("53400") => "; raise max_replication_slots",
        _ => "",
    };
    let words = error.server().map_or_else(String::new, ToString::to_string);
    let words = if words.is_empty() { error.into_error("reserve WAL for the backup").message() } else { words };
    format!("{words}{advice}")
}

/// START WAL LOCATION and START TIMELINE of a backup label.
///
/// The rule: src/backend/access/transam/xlogbackup.c (before 15: xlog.c); both lines are there since 11.
pub fn parse_backup_label(content: &[u8]) -> Option<(Lsn, TimelineId)> {
    let text = std::str::from_utf8(content).ok()?;
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
    let start_lsn = value("START WAL LOCATION")?.split_whitespace().next()?.parse().ok()?;
    Some((start_lsn, TimelineId(value("START TIMELINE")?.trim().parse().ok()?)))
}

/// The two lines with which a server says what an incremental backup is built on: a position, a timeline.
const INCREMENTAL_LINES: [&str; 2] = ["INCREMENTAL FROM LSN: ", "INCREMENTAL FROM TLI: "];

/// A label without what makes it one of an incremental backup, and where that one says that its prior began. A server
/// does not start on a directory whose label has these lines.
pub fn strip_backup_label(content: &[u8]) -> (Vec<u8>, Option<Lsn>) {
    let is_of_incremental = |line: &[u8]| INCREMENTAL_LINES.iter().any(|key| line.starts_with(key.as_bytes()));
    let lines = || content.split_inclusive(|byte| *byte == b'\n');
    let from = lines().find_map(|line| line.strip_prefix(INCREMENTAL_LINES[0].as_bytes()));
    let from = from.and_then(|lsn| std::str::from_utf8(lsn).ok()?.trim().parse().ok());
    (lines().filter(|line| !is_of_incremental(line)).flatten().copied().collect(), from)
}

/// From 15 on the functions are called pg_backup_start and pg_backup_stop.
fn has_new_names(facts: &ServerFacts) -> bool {
    facts.server_version_num >= 150_000
}

/// The timeline the server writes WAL on.
fn timeline_now(connection: &mut Connection, action: &str) -> Result<TimelineId> {
    let name = connection
        .query_value("SELECT pg_walfile_name(pg_current_wal_insert_lsn())")
        .map_err(|error| error.into_error(action))?;
    name.get(..8)
        .and_then(|digits| u32::from_str_radix(digits, 16).ok())
        .map(TimelineId)
        .ok_or_else(|| Error::new(ErrorKind::Source, action, format!("{name:?} is not a WAL file name")))
}

/// A timeline of pg_control, which is what a standby's backup goes by; `column` ends the query.
fn standby_timeline(connection: &mut Connection, column: &str, action: &str) -> Result<TimelineId> {
    let text = connection.query_value(&format!("SELECT {column}")).map_err(|error| error.into_error(action))?;
    text.parse().map(TimelineId).map_err(|_| Error::new(ErrorKind::Source, action, format!("{text:?} is no timeline")))
}

fn promoted() -> Error {
    Error::new(ErrorKind::Source, "continue the backup", "the standby was promoted meanwhile")
        .hint("what was read is of no use; begin a new backup, it will be one of the new primary")
}

/// What a standby's refusal to begin means: it can say no although the role has every right.
fn start_refused(error: QueryError, facts: &ServerFacts) -> Error {
    let is_state = error.server().is_some_and(|refused| refused.sqlstate == OBJECT_NOT_IN_STATE);
    let error = error.into_error("begin the backup");
    match is_state && facts.is_standby() {
        true => error.more_hint(
            "pages that the primary wrote with full_page_writes = off cannot be repaired: switch it on there, \
             run CHECKPOINT there, and try again when the standby has replayed it; or back up the primary",
        ),
        false => error,
    }
}

fn stop_refused(error: QueryError, facts: &ServerFacts) -> Error {
    let is_state = error.server().is_some_and(|refused| refused.sqlstate == OBJECT_NOT_IN_STATE);
    let error = error.into_error("end the backup");
    match is_state && facts.is_standby() {
        true => error.more_hint(
            "a backup of a standby is of no use if the standby is promoted meanwhile, or if its primary wrote WAL with \
             full_page_writes = off; begin a new one",
        ),
        false => error,
    }
}

fn session_lost(error: QueryError) -> Error {
    Error::new(ErrorKind::Source, "continue the backup", error.into_error("ask the server").message())
        .hint("the server has aborted the backup because its session ended; begin a new one")
}

fn parse_server_text<T: std::str::FromStr<Err = Error>>(text: &str, action: &str) -> Result<T> {
    text.parse().map_err(|cause: Error| Error::new(ErrorKind::Source, action, cause.message()))
}

/// `text` as an SQL literal under standard_conforming_strings, which the client switches on.
pub(super) fn quote_literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_read() {
        let label = b"START WAL LOCATION: 0/2000028 (file 000000010000000000000002)\n\
            CHECKPOINT LOCATION: 0/2000060\nBACKUP METHOD: streamed\nSTART TIMELINE: 3\n";
        assert_eq!(parse_backup_label(label), Some((Lsn(0x200_0028), TimelineId(3))));
        assert_eq!(parse_backup_label(b"START WAL LOCATION: x\nSTART TIMELINE: 3\n"), None);
        assert_eq!(parse_backup_label(b"\xff"), None);
    }

    #[test]
    fn labels_of_incrementals_lose_two_lines() {
        let label = b"START WAL LOCATION: 0/2000028 (x)\nLABEL: y\nSTART TIMELINE: 1\n\
            INCREMENTAL FROM LSN: 16/B374D848\nINCREMENTAL FROM TLI: 1\n";
        let (stripped, from) = strip_backup_label(label);
        assert_eq!(stripped, b"START WAL LOCATION: 0/2000028 (x)\nLABEL: y\nSTART TIMELINE: 1\n");
        assert_eq!(from, Some(Lsn(0x16_B374_D848)));
        assert_eq!(strip_backup_label(&stripped), (stripped.clone(), None));
    }

    #[test]
    fn literals_are_quoted() {
        assert_eq!(quote_literal(r"a'b\c"), r"'a''b\c'");
    }
}
