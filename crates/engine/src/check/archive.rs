//! What the repository has of the server's WAL.

use super::report::{CheckLine, CheckRequest, CheckState};
use crate::catalog::Repository;
use crate::error::Result;
use crate::source::postgres::archiving::Marker;
use crate::source::postgres::server_facts::ServerFacts;

pub(super) fn identity(_: &CheckRequest, _: &Repository, _: &ServerFacts) -> CheckLine {
    CheckLine::new("identity", CheckState::Skipped, "later")
}
pub(super) fn has_marker(_: &CheckRequest, _: &Repository, _: u64, _: &Marker) -> Result<bool> {
    Ok(false)
}
pub(super) fn backups_and_wal(_: &CheckRequest, _: &Repository, _: u64) -> Vec<CheckLine> {
    Vec::new()
}
