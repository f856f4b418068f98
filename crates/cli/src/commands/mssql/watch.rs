//! Shows a statement while it runs, keeps what the server says, and ends it when a signal or the clock wants it.

use std::time::{Duration, Instant};

use pagehaul_engine::pipeline::Observer;
use pagehaul_engine::source::mssql::client::Watch;
use pagehaul_engine::source::mssql::questions::Line;
use pagehaul_engine::source::mssql::said::{Processed, percent, processed};
use pagehaul_engine::source::mssql::server_message::{ServerMessage, StopReason};

use crate::progress::Console;

/// Watches one statement.
pub(super) struct Shown<'a> {
    console: &'a Console,
    until: Option<Instant>,
    /// The server's last word, once it is said.
    pub(super) processed: Option<Processed>,
}

impl<'a> Shown<'a> {
    /// Shows on `console`, for at most `limit`.
    pub(super) fn new(console: &'a Console, limit: Option<Duration>) -> Self {
        Shown { console, until: limit.map(|limit| Instant::now() + limit), processed: None }
    }
}

impl Watch for Shown<'_> {
    fn message(&mut self, message: &ServerMessage) {
        if message.is_error() || Line::parse(&message.text).is_some() {
            return;
        }
        self.processed = self.processed.or(processed(&message.text));
        match percent(&message.text) {
            Some(percent) => self.console.tell(&format!("   {percent} %")),
            None => self.console.tell(&format!("   {}", message.text)),
        }
    }

    fn stop(&mut self) -> Option<StopReason> {
        if self.console.interrupted() {
            return Some(StopReason::Interrupted);
        }
        self.until.filter(|until| Instant::now() > *until).map(|_| StopReason::TimedOut)
    }
}
