//! The tables of the history, and the steps from each version to the next.

use std::path::Path;

use pagehaul_engine::error::{Error, ErrorKind, Result};
use rusqlite::{Connection, TransactionBehavior};

use super::error;

/// "PHhi", big-endian, in SQLite's header: tells our file from any other SQLite file.
const APPLICATION_ID: i32 = 0x5048_6869;

/// Step N leads from version N to N + 1. A step that was released never changes.
const STEPS: [&str; 1] = ["
    CREATE TABLE session (
        id INTEGER PRIMARY KEY,
        key TEXT NOT NULL,
        started_at TEXT NOT NULL,
        finished_at TEXT,
        request_json TEXT NOT NULL
    );
    -- Only one session with the same key is open; finished ones stay.
    CREATE UNIQUE INDEX session_open ON session (key) WHERE finished_at IS NULL;

    CREATE TABLE fact (
        session INTEGER NOT NULL REFERENCES session (id) ON DELETE CASCADE,
        stage TEXT NOT NULL,
        json TEXT NOT NULL,
        PRIMARY KEY (session, stage)
    );

    CREATE TABLE run (
        id INTEGER PRIMARY KEY,
        session INTEGER REFERENCES session (id),
        started_at TEXT NOT NULL,
        role TEXT NOT NULL,
        source TEXT NOT NULL,
        pgdata TEXT NOT NULL,
        -- Text, because it has 64 bits without a sign.
        system_identifier TEXT NOT NULL,
        contestant TEXT NOT NULL,
        setting TEXT NOT NULL,
        repetition INTEGER NOT NULL,
        label TEXT,
        source_bytes INTEGER NOT NULL,
        stored_bytes INTEGER NOT NULL,
        compression TEXT,
        readers INTEGER,
        encoders INTEGER,
        stripes INTEGER,
        buffer_count INTEGER,
        transfer_size_bytes INTEGER,
        stripe_readers INTEGER,
        decoders INTEGER,
        file_writers INTEGER,
        backup_started_at TEXT,
        backup_ended_at TEXT,
        backup_wall_s REAL,
        backup_cpu_s REAL,
        backup_server_cpu_s REAL,
        backup_rss_bytes_max INTEGER,
        backup_stages TEXT,
        backup_limit TEXT,
        backup_cache TEXT,
        restore_started_at TEXT,
        restore_ended_at TEXT,
        restore_wall_s REAL,
        restore_cpu_s REAL,
        restore_server_cpu_s REAL,
        restore_rss_bytes_max INTEGER,
        restore_stages TEXT,
        restore_limit TEXT,
        restore_cache TEXT,
        bytes_equal INTEGER,
        host TEXT NOT NULL,
        processor TEXT NOT NULL,
        cores INTEGER NOT NULL,
        memory_bytes INTEGER NOT NULL,
        system TEXT NOT NULL,
        pagehaul TEXT NOT NULL,
        server TEXT NOT NULL,
        failed TEXT,
        trial_json TEXT
    );
    CREATE INDEX run_started ON run (started_at);
    CREATE INDEX run_source ON run (source, started_at);
    CREATE INDEX run_session ON run (session) WHERE session IS NOT NULL;
"];

/// Refuses a file that is not a history, or one of a later version. Writes nothing.
pub(super) fn check(connection: &Connection, path: &Path) -> Result<()> {
    let failed = |cause: rusqlite::Error| error("open", path, &cause);
    let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).map_err(failed);
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0)).map_err(failed)?;
    let refused = |cause: String, hint: &str| {
        Err(Error::new(ErrorKind::Configuration, format!("open the history {}", path.display()), cause).hint(hint))
    };
    let (application, version) = (number("application_id")?, number("user_version")?);
    if application != i64::from(APPLICATION_ID) && (tables > 0 || application != 0) {
        return refused(
            "it is an SQLite file of another program".to_owned(),
            "name a file of its own for the history with PAGEHAUL_HISTORY",
        );
    }
    if version > STEPS.len() as i64 {
        return refused(
            format!("a newer pagehaul made it: its schema has version {version}, this one knows up to {}", STEPS.len()),
            "use the newer pagehaul, or name another file with PAGEHAUL_HISTORY",
        );
    }
    Ok(())
}

/// Brings the file to today's version, all steps or none; whoever comes second finds it done.
pub(super) fn migrate(connection: &mut Connection, path: &Path) -> Result<()> {
    let mut steps = || -> rusqlite::Result<()> {
        let version =
            |connection: &Connection| connection.pragma_query_value(None, "user_version", |row| row.get::<_, u32>(0));
        if version(connection)? as usize == STEPS.len() {
            return Ok(());
        }
        let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for step in STEPS.iter().skip(version(&change)? as usize) {
            change.execute_batch(step)?;
        }
        change.pragma_update(None, "application_id", APPLICATION_ID)?;
        change.pragma_update(None, "user_version", STEPS.len() as i64)?;
        change.commit()
    };
    steps().map_err(|cause| error("bring up to date", path, &cause))
}
