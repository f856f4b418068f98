//! Tuning sessions: what an interrupted `tune` needs to go on.

use jiff::Timestamp;
use pagehaul_engine::error::{Error, ErrorKind, Result};
use rusqlite::types::Value;
use rusqlite::{OptionalExtension, Transaction, TransactionBehavior, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::columns::{self, time_text};
use super::row::{HistoryRow, Origin};
use super::{History, HistoryFilter};
use crate::figures::Trial;

/// One `tune`, from its start to its finish, perhaps through several processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Its number in the file.
    pub id: i64,
    /// What makes two requests the same.
    pub key: String,
    /// When it began, UTC.
    pub started_at: String,
    /// The request it began with.
    pub request_json: String,
    /// Whether it was there already, so that facts and trials may be in it.
    pub resumed: bool,
}

impl History {
    /// The open session with this key, or a new one for `request_json`. Finished sessions are left alone.
    ///
    /// # Errors
    /// As [`History::add`].
    pub fn begin_or_resume(&self, key: &str, request_json: &str) -> Result<Session> {
        self.open_session(key, request_json).map_err(|cause| self.error("begin a session in", &cause))
    }

    fn open_session(&self, key: &str, request_json: &str) -> rusqlite::Result<Session> {
        // Immediate: two processes with one key must not both find none.
        let change = Transaction::new_unchecked(&self.connection, TransactionBehavior::Immediate)?;
        let select = "SELECT id, started_at, request_json FROM session WHERE key = ? AND finished_at IS NULL";
        let found = change.query_row(select, [key], |row| {
            Ok(Session {
                id: row.get(0)?,
                key: key.to_owned(),
                started_at: row.get(1)?,
                request_json: row.get(2)?,
                resumed: true,
            })
        });
        if let Some(session) = found.optional()? {
            return Ok(session);
        }
        let started_at = time_text(Timestamp::now());
        let insert = "INSERT INTO session (key, started_at, request_json) VALUES (?, ?, ?)";
        change.execute(insert, params![key, started_at, request_json])?;
        let id = change.last_insert_rowid();
        change.commit()?;
        Ok(Session { id, key: key.to_owned(), started_at, request_json: request_json.to_owned(), resumed: false })
    }

    /// Keeps what a stage found; what it found before is replaced.
    ///
    /// # Errors
    /// As [`History::add`].
    pub fn save_stage(&self, session: &Session, stage: &str, found: &impl Serialize) -> Result<()> {
        let json = json_text(found)?;
        let upsert = "INSERT INTO fact (session, stage, json) VALUES (?, ?, ?)
            ON CONFLICT (session, stage) DO UPDATE SET json = excluded.json";
        let saved = self.connection.execute(upsert, params![session.id, stage, json]);
        saved.map(drop).map_err(|cause| self.error("write to", &cause))
    }

    /// What a stage found, or None if it has not been saved, or in a form that this version does not read: then it is
    /// to be measured again.
    ///
    /// # Errors
    /// As [`History::add`].
    pub fn load_stage<T: DeserializeOwned>(&self, session: &Session, stage: &str) -> Result<Option<T>> {
        let select = "SELECT json FROM fact WHERE session = ? AND stage = ?";
        let json = self.connection.query_row(select, params![session.id, stage], |row| row.get::<_, String>(0));
        let json = json.optional().map_err(|cause| self.error("read", &cause))?;
        Ok(json.and_then(|json| serde_json::from_str(&json).ok()))
    }

    /// Keeps a trial: a run of the history that also holds the whole trial, one row, all or nothing. Returns its id.
    ///
    /// # Errors
    /// As [`History::add`].
    pub fn save_trial(&self, session: &Session, trial: &Trial, origin: &Origin) -> Result<i64> {
        let row = HistoryRow { session: Some(session.id), ..HistoryRow::from_trial(trial, origin) };
        let mut columns = columns::of(&row)?;
        columns.push(("trial_json".to_owned(), Value::Text(json_text(trial)?)));
        self.insert(columns)
    }

    /// The session's trials in the order in which they were saved; one that this version does not read is left out.
    ///
    /// # Errors
    /// As [`History::add`].
    pub fn load_trials(&self, session: &Session) -> Result<Vec<Trial>> {
        let select = "SELECT trial_json FROM run WHERE session = ? AND trial_json IS NOT NULL ORDER BY id";
        let read = || -> rusqlite::Result<Vec<String>> {
            self.connection.prepare(select)?.query_map([session.id], |row| row.get(0))?.collect()
        };
        let texts = read().map_err(|cause| self.error("read", &cause))?;
        Ok(texts.iter().filter_map(|text| serde_json::from_str(text).ok()).collect())
    }

    /// Closes the session: the next with its key begins anew. Its facts and trials stay.
    ///
    /// # Errors
    /// As [`History::add`].
    pub fn finish(&self, session: &Session) -> Result<()> {
        let update = "UPDATE session SET finished_at = ? WHERE id = ? AND finished_at IS NULL";
        let finished = self.connection.execute(update, params![time_text(Timestamp::now()), session.id]);
        finished.map(drop).map_err(|cause| self.error("finish a session in", &cause))
    }

    /// The newest `limit` plain full backups of `source`, for [`super::drift()`]: what an incremental one takes is a matter of what has changed.
    ///
    /// # Errors
    /// As [`History::add`].
    pub fn full_backups(&self, source: &str, limit: u32) -> Result<Vec<HistoryRow>> {
        self.rows(&HistoryFilter {
            source: Some(source.to_owned()),
            role: Some("backup".to_owned()),
            label_end: Some('F'),
            limit: Some(limit),
            since: None,
        })
    }
}

fn json_text(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|cause| Error::new(ErrorKind::Bug, "write figures as JSON", cause))
}
