//! The history: every measured run is a row in one SQLite file, and an interrupted `tune` finds its facts and trials
//! there.
//!
//! ```text
//! run      one row a measured backup, restore or trial; a trial of a session carries its whole figures as JSON
//! session  one `tune`; open until it is finished, and only one open session has the same key
//! fact     what a stage of a session found, as JSON
//! ```
//!
//! Every write is one transaction and durable when the call returns: a kill at any moment loses at most the run that
//! was going on. Several processes may write at once; each waits for the other.
//!
//! A history that cannot be written must never make a backup or restore fail: whoever calls this beside one warns with
//! the error's text and goes on.

mod columns;
mod drift;
mod export;
mod open;
mod row;
mod schema;
mod session;
mod session_lock;

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use pagehaul_engine::error::{Error, ErrorKind, Result};
use rusqlite::types::Value;
use rusqlite::{Connection, ErrorCode, params_from_iter};

pub use drift::{Change, Drift, drift};
pub use export::{to_csv, to_json};
pub use row::{HistoryRow, Origin, RunSettings};
pub use session::Session;
pub use session_lock::SessionLock;

/// The open history file.
#[derive(Debug)]
pub struct History {
    connection: Connection,
    path: PathBuf,
}

/// Which rows; everything that is None lets all through.
#[derive(Clone, Debug, Default)]
pub struct HistoryFilter {
    /// Name of the source.
    pub source: Option<String>,
    /// backup, restore, or what a trial was for.
    pub role: Option<String>,
    /// How the label of its set ends: F, D or I for the kind of a backup.
    pub label_end: Option<char>,
    /// Started at this time or later.
    pub since: Option<Timestamp>,
    /// At most so many, the newest.
    pub limit: Option<u32>,
}

impl History {
    /// Adds a run; returns its id. Durable when it returns.
    ///
    /// # Errors
    /// `Usage` if a time of the row is not one; `Conflict` if others keep the file for 10 s; `Repository` or `Damage`
    /// if it cannot be written. None of them may fail the run that was measured: warn.
    pub fn add(&self, row: &HistoryRow) -> Result<i64> {
        self.insert(columns::of(row)?)
    }

    fn insert(&self, columns: Vec<(String, Value)>) -> Result<i64> {
        let (names, values): (Vec<String>, Vec<Value>) = columns.into_iter().filter(|(name, _)| name != "id").unzip();
        let places = vec!["?"; names.len()].join(", ");
        let insert = format!("INSERT INTO run ({}) VALUES ({places})", names.join(", "));
        let added = self.connection.prepare(&insert).and_then(|mut add| add.insert(params_from_iter(values)));
        added.map_err(|cause| self.error("write to", &cause))
    }

    /// The runs that `filter` lets through, newest first.
    ///
    /// # Errors
    /// As `add`.
    pub fn rows(&self, filter: &HistoryFilter) -> Result<Vec<HistoryRow>> {
        let mut conditions = vec!["1"];
        let mut values = Vec::new();
        let given = [
            ("source = ?", filter.source.clone()),
            ("role = ?", filter.role.clone()),
            ("label LIKE ?", filter.label_end.map(|end| format!("%{end}"))),
            ("started_at >= ?", filter.since.map(columns::time_text)),
        ];
        for (condition, value) in given {
            if let Some(value) = value {
                conditions.push(condition);
                values.push(Value::Text(value));
            }
        }
        // A negative limit is none.
        values.push(Value::Integer(filter.limit.map_or(-1, i64::from)));
        let select =
            format!("SELECT * FROM run WHERE {} ORDER BY started_at DESC, id DESC LIMIT ?", conditions.join(" AND "));
        let mut query = self.connection.prepare(&select).map_err(|cause| self.error("read", &cause))?;
        let rows = query.query_map(params_from_iter(values), columns::row).and_then(Iterator::collect);
        rows.map_err(|cause| self.error("read", &cause))
    }

    /// Where the file lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn error(&self, verb: &str, cause: &rusqlite::Error) -> Error {
        error(verb, &self.path, cause)
    }
}

/// What SQLite says of the file at `path`, with the next step.
fn error(verb: &str, path: &Path, cause: &rusqlite::Error) -> Error {
    let shown = path.display();
    let (kind, hint) = match cause.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => (
            ErrorKind::Damage,
            format!(
                "it holds figures only, no backup depends on it: move it away (mv {shown} {shown}.damaged), a new one is begun"
            ),
        ),
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => (
            ErrorKind::Repository,
            "let this user write to the file and its directory, or name another file with PAGEHAUL_HISTORY".to_owned(),
        ),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (ErrorKind::Conflict, "another process is writing to it: run the command again".to_owned())
        }
        Some(ErrorCode::DiskFull) => {
            (ErrorKind::Repository, "free space there, or name a file on another disk with PAGEHAUL_HISTORY".to_owned())
        }
        _ => (ErrorKind::Repository, "name another file with PAGEHAUL_HISTORY if this one cannot be used".to_owned()),
    };
    Error::new(kind, format!("{verb} the history {shown}"), cause).hint(hint)
}
