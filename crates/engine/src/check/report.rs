//! What a check is asked for, and its lines.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use crate::error::{Error, ErrorKind};
use crate::terms::{Lsn, SourceName};

/// What is checked.
#[derive(Clone, Debug)]
pub struct CheckRequest {
    /// The source.
    pub source: SourceName,
    /// Repository directory.
    pub repo: String,
    /// How to reach the server, as libpq writes it.
    pub connection: Option<String>,
    /// Its data directory, if it is on this machine.
    pub pgdata: Option<PathBuf>,
    /// How long a marker may take from WAL to the repository.
    pub timeout: Duration,
    /// Whether a marker is put into WAL; without one the server is only asked.
    pub with_marker: bool,
}

/// How one thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckState {
    /// As it should be.
    Ok,
    /// Not wrong, and worth to be known.
    Note,
    /// Wrong: there is a next step.
    Problem,
    /// Not checked; the text says why.
    Skipped,
}

/// One thing that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct CheckLine {
    /// What it is: repository, server, identity, settings, archiver, marker, backups, damage, WAL, newest WAL.
    pub what: &'static str,
    /// How it is.
    pub state: CheckState,
    /// What was found.
    pub text: String,
    /// What to do about a problem.
    pub next: Option<String>,
    #[serde(skip)]
    kind: Option<ErrorKind>,
}

impl CheckLine {
    pub(super) fn new(what: &'static str, state: CheckState, text: impl Into<String>) -> Self {
        CheckLine { what, state, text: text.into(), next: None, kind: None }
    }

    pub(super) fn problem(what: &'static str, kind: ErrorKind, text: impl Into<String>, next: &str) -> Self {
        let next = Some(next.to_owned());
        CheckLine { what, state: CheckState::Problem, text: text.into(), next, kind: Some(kind) }
    }

    pub(super) fn of_error(what: &'static str, error: &Error) -> Self {
        let next = error.hint_text().map(str::to_owned);
        CheckLine { what, state: CheckState::Problem, text: error.message(), next, kind: Some(error.kind()) }
    }
}

/// The result; the keys of `check --json`.
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    /// The source.
    pub source: SourceName,
    /// The repository.
    pub repo: String,
    /// Whether no line is a problem.
    pub ok: bool,
    /// What was looked at, in order.
    pub lines: Vec<CheckLine>,
    /// The marker and how long it took; null if none was made.
    pub marker: Option<MarkerReport>,
}

/// A marker's way into the repository.
#[derive(Clone, Debug, Serialize)]
pub struct MarkerReport {
    /// The restore point.
    pub name: String,
    /// End of its record.
    pub lsn: Lsn,
    /// Its WAL segment.
    pub segment: String,
    /// Seconds from the end of the segment until it was read back from the repository; null if it never was.
    pub lag_s: Option<f64>,
}

impl CheckReport {
    /// What kind of error the first problem is; none if all is well.
    pub fn problem_kind(&self) -> Option<ErrorKind> {
        self.lines.iter().find(|line| line.state == CheckState::Problem).and_then(|line| line.kind)
    }
}
