//! How a server archives its WAL, and a marker in it that can be looked for in the archive.

use super::client::{Connection, Row};
use super::conninfo::ConnectSettings;
use super::server_error::QueryError;
use super::server_facts::{self, ServerFacts};
use super::session::quote_literal;
use crate::error::{Error, ErrorKind, Result};
use crate::io;
use crate::terms::{Lsn, WalSegmentName};

/// What programs of ours call themselves when they stream WAL.
const STREAMING_NAME_PATTERN: &str = "pagehaul%";

/// A session that looks at archiving.
#[derive(Debug)]
pub struct ArchivingSession {
    connection: Connection,
    facts: ServerFacts,
    /// Whether the server is on this machine.
    is_local: bool,
}

/// The settings and the state of the server's archiver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Archiving {
    /// off, on or always.
    pub mode: String,
    /// archive_command; empty if none is set.
    pub command: String,
    /// archive_library; empty if none is set, and before 15.
    pub library: String,
    /// archive_timeout in seconds; 0 is none.
    pub timeout_s: u64,
    /// Whether the server only replays.
    pub is_standby: bool,
    /// Name of the last file that was archived, and seconds since then.
    pub last_archived: Option<(String, u64)>,
    /// Name of the last file that could not be archived, and seconds since then.
    pub last_failed: Option<(String, u64)>,
    /// How often archiving failed since the statistics began.
    pub failed_count: u64,
    /// What waits for the archiver; none if the role may not look.
    pub waiting: Option<Waiting>,
    /// Room left where WAL is written; none if the server is on another machine, or its directory is not ours to see.
    pub wal_room_bytes: Option<u64>,
    /// Whether a program of ours streams WAL from here.
    pub is_streamed: bool,
}

/// A rate over less time than this says little.
const RATE_SPAN_S_MIN: u64 = 60;
/// With room for fewer bursts than this, what comes after one is not waited for.
const BURSTS_WITH_ROOM: u128 = 16;

/// Finished segments that are not archived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// How many.
    pub count: u64,
    /// For how many seconds the oldest of them has waited.
    pub oldest_s: u64,
}

impl Waiting {
    /// After how many seconds there is no room for WAL, if it goes on coming as it has since the oldest segment was
    /// finished. None if too little is known: of one segment nobody can tell a rate, and a burst of a few seconds goes on
    /// only in the mind of who extrapolates it, unless there is hardly room for the next ones.
    pub fn full_after_s(&self, segment_size_bytes: u64, room_bytes: u64) -> Option<u64> {
        let (room, waiting) = (u128::from(room_bytes), u128::from(self.count) * u128::from(segment_size_bytes));
        let is_burst = self.oldest_s < RATE_SPAN_S_MIN && room > waiting * BURSTS_WITH_ROOM;
        if self.count < 2 || is_burst {
            return None;
        }
        u64::try_from(room * u128::from(self.oldest_s.max(1)) / waiting.max(1)).ok()
    }
}

/// A restore point made to be looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// Its name.
    pub name: String,
    /// End of its record.
    pub lsn: Lsn,
    /// The segment that holds it, and that the server has finished by now.
    pub segment: WalSegmentName,
}

impl ArchivingSession {
    /// Connects and asks the server about itself.
    ///
    /// # Errors
    /// `Source`: no connection, or a version that is not supported.
    pub fn begin(settings: &ConnectSettings) -> Result<Self> {
        let mut connection = Connection::connect(settings)?;
        let facts = server_facts::gather(&mut connection)?;
        Ok(ArchivingSession { connection, facts, is_local: settings.host.starts_with('/') })
    }

    /// What the server said about itself.
    pub fn facts(&self) -> &ServerFacts {
        &self.facts
    }

    /// Settings and state of the archiver.
    ///
    /// # Errors
    /// `Source`.
    pub fn archiving(&mut self) -> Result<Archiving> {
        let action = "ask the server about archiving";
        let sql = format!(
            "SELECT current_setting('archive_mode'), current_setting('archive_command'), \
             coalesce(current_setting('archive_library', true), ''), \
             (SELECT setting FROM pg_settings WHERE name = 'archive_timeout'), pg_is_in_recovery(), \
             last_archived_wal, extract(epoch FROM clock_timestamp() - last_archived_time)::bigint, \
             last_failed_wal, extract(epoch FROM clock_timestamp() - last_failed_time)::bigint, failed_count, \
             EXISTS (SELECT 1 FROM pg_stat_replication WHERE application_name LIKE {}) FROM pg_stat_archiver",
            quote_literal(STREAMING_NAME_PATTERN)
        );
        let row = self.connection.query_row_text(&sql, 11).map_err(|error| error.into_error(action))?;
        let text = |column: usize| row[column].clone().unwrap_or_default();
        let number = |column: usize| text(column).parse::<i64>().ok().and_then(|number| u64::try_from(number).ok());
        let event = |name: usize, age: usize| row[name].clone().map(|name| (name, number(age).unwrap_or_default()));
        Ok(Archiving {
            mode: text(0),
            // What SHOW says while archive_mode is off.
            command: if text(1) == "(disabled)" { String::new() } else { text(1) },
            library: text(2),
            timeout_s: number(3).unwrap_or_default(),
            is_standby: text(4) == "t",
            last_archived: event(5, 6),
            last_failed: event(7, 8),
            failed_count: number(9).unwrap_or_default(),
            waiting: self.waiting()?,
            wal_room_bytes: self.wal_room_bytes(),
            is_streamed: text(10) == "t",
        })
    }

    /// Counts the `.ready` files; a role without pg_monitor may not.
    fn waiting(&mut self) -> Result<Option<Waiting>> {
        let sql = "SELECT count(*), coalesce(greatest(extract(epoch FROM clock_timestamp() - min(modification)), 0), 0)::bigint \
                   FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'";
        match self.connection.query_row_text(sql, 2) {
            Ok(row) => {
                let number = |column: usize| row[column].as_deref().and_then(|text| text.parse().ok());
                Ok(number(0).zip(number(1)).map(|(count, oldest_s)| Waiting { count, oldest_s }))
            }
            Err(QueryError::Server(error)) if error.is_missing_privilege() => Ok(None),
            Err(error) => Err(error.into_error("count the segments that wait for the archiver")),
        }
    }

    fn wal_room_bytes(&self) -> Option<u64> {
        let data_directory = self.facts.data_directory.as_ref().filter(|_| self.is_local)?;
        io::free_bytes(&data_directory.join("pg_wal")).ok()
    }

    /// Makes a restore point and has the server finish the segment that holds it.
    ///
    /// # Errors
    /// `Source`; the hint has the GRANT that is missing.
    pub fn make_marker(&mut self, name: &str) -> Result<Marker> {
        let action = "put a marker into WAL";
        let refused = |error: QueryError| {
            let is_missing = error.server().is_some_and(super::server_error::ServerError::is_missing_privilege);
            let error = error.into_error(action);
            if is_missing { error.hint(GRANTS) } else { error }
        };
        let sql = format!("SELECT pg_create_restore_point({})", quote_literal(name));
        let lsn: Lsn = self.connection.query_value(&sql).map_err(refused)?.parse()?;
        let sql = format!("SELECT pg_walfile_name({}), pg_switch_wal()", quote_literal(&lsn.to_string()));
        let row: Row = self.connection.query_row(&sql, 2).map_err(refused)?;
        let segment = row[0].as_deref().map(String::from_utf8_lossy).unwrap_or_default();
        let segment = segment.parse().map_err(|error: Error| Error::new(ErrorKind::Source, action, error.message()))?;
        Ok(Marker { name: name.to_owned(), lsn, segment })
    }

    /// Lets the server wait: this session needs it to be there, and a lost one ends the wait.
    ///
    /// # Errors
    /// `Source` when the session is lost.
    pub fn wait(&mut self, seconds: f64) -> Result<()> {
        let sql = format!("SELECT pg_sleep({seconds})");
        self.connection.query(&sql).map(drop).map_err(|error| error.into_error("wait for the archiver"))
    }
}

const GRANTS: &str = "as a superuser: GRANT EXECUTE ON FUNCTION pg_catalog.pg_create_restore_point(text) TO the role; \
                      GRANT EXECUTE ON FUNCTION pg_catalog.pg_switch_wal() TO the role; or check with --no-marker";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_until_there_is_no_room_comes_from_what_waits() {
        let waiting = |count, oldest_s| Waiting { count, oldest_s };
        // Ten segments of 16 MiB in 100 s, and room for a hundred.
        assert_eq!(waiting(10, 100).full_after_s(16 << 20, 1600 << 20), Some(1000));
        assert_eq!(waiting(10, 0).full_after_s(16 << 20, 160 << 20), Some(1), "all of them within a second");
        assert_eq!(waiting(10, 5).full_after_s(16 << 20, 16_000 << 20), None, "a burst, and room for a hundred");
        assert_eq!(waiting(1, 100).full_after_s(16 << 20, 160 << 20), None);
        assert_eq!(waiting(2, u64::MAX).full_after_s(1, u64::MAX), None, "longer than can be said");
        assert_eq!(waiting(10, 100).full_after_s(16 << 20, 0), Some(0));
    }
}
