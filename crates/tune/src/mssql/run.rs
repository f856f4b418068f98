//! Runs a trial's batches on a server.

use std::time::{Duration, Instant};

use pagehaul_engine::error::{Error, Result};
use pagehaul_engine::source::mssql::address::ServerAddress;
use pagehaul_engine::source::mssql::client::{Connection, NoWatch, Watch};
use pagehaul_engine::source::mssql::questions::SESSION_START;
use pagehaul_engine::source::mssql::said::percent;
use pagehaul_engine::source::mssql::server_message::{RunError, ServerMessage, StopReason};

use super::script::TrialScript;
use super::transcript::error_lines;
use crate::rounds::TuneObserver;

/// The server, and how long a statement may take there.
pub(super) struct Runner<'a> {
    pub(super) address: &'a ServerAddress,
    pub(super) connection: Connection,
    pub(super) statement_limit: Option<Duration>,
    pub(super) observer: &'a dyn TuneObserver,
}

impl Runner<'_> {
    /// Runs `script`, and its clean-up whatever came of it; gives the lines that were written.
    ///
    /// # Errors
    /// `Interrupted` when the user wants to stop, `Source` when the server is gone and does not come back; what the
    /// server refused is in the lines.
    pub(super) fn run(&mut self, script: &TrialScript) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        let failed = script.steps.iter().find_map(|batch| self.batch(batch, &mut lines).err());
        let outcome = match failed {
            Some(RunError::Lost(error)) => {
                lines.extend(["Msg 0, Level 20, State 0".to_owned(), error.message()]);
                self.reconnect()
            }
            Some(RunError::Refused(errors)) => {
                lines.extend(errors.iter().flat_map(error_lines));
                Ok(())
            }
            Some(RunError::Stopped(StopReason::TimedOut)) => {
                let text = "it took longer than --statement-limit and was ended".to_owned();
                lines.extend(["Msg 0, Level 16, State 0".to_owned(), text]);
                Ok(())
            }
            Some(stopped @ RunError::Stopped(StopReason::Interrupted)) => Err(stopped.into_error("go on with tuning")),
            None => Ok(()),
        };
        for batch in &script.cleanup {
            // A signal does not keep the server from being left as it was.
            if let Err(error) = self.connection.run(batch, &mut NoWatch) {
                let what = batch.lines().next().unwrap_or_default();
                self.observer.note(&format!("not cleaned up ({what}): {}", error.into_error("clean up").cause()));
            }
        }
        outcome.map(|()| lines)
    }

    fn batch(&mut self, batch: &str, lines: &mut Vec<String>) -> std::result::Result<(), RunError> {
        let until = self.statement_limit.map(|limit| Instant::now() + limit);
        let name = batch.lines().next().unwrap_or_default().to_owned();
        let mut listener = Listener { observer: self.observer, name, until, lines };
        self.connection.run(batch, &mut listener).map(drop)
    }

    /// The connection broke in the middle: the server may be there all the same.
    fn reconnect(&mut self) -> Result<()> {
        self.connection = Connection::connect(self.address)?;
        self.connection.ask(SESSION_START, "set up a session").map(drop)
    }
}

/// Keeps what is said, and shows how far it is.
struct Listener<'a> {
    observer: &'a dyn TuneObserver,
    name: String,
    until: Option<Instant>,
    lines: &'a mut Vec<String>,
}

impl Watch for Listener<'_> {
    fn message(&mut self, message: &ServerMessage) {
        if let Some(percent) = percent(&message.text) {
            self.observer.measured(&self.name, percent as usize, 100);
        } else if !message.is_error() {
            self.lines.extend(message.text.lines().map(str::to_owned));
        }
    }

    fn stop(&mut self) -> Option<StopReason> {
        if self.observer.interrupted() {
            return Some(StopReason::Interrupted);
        }
        self.until.filter(|until| Instant::now() > *until).map(|_| StopReason::TimedOut)
    }
}

/// An error if the user wants to stop.
pub(super) fn stop_if_interrupted(observer: &dyn TuneObserver) -> Result<()> {
    if observer.interrupted() {
        let kind = pagehaul_engine::error::ErrorKind::Interrupted;
        return Err(Error::new(kind, "go on with tuning", "a signal asked to stop"));
    }
    Ok(())
}
