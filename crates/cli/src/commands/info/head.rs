//! The signed list of a source's sets, as `info` shows it.

use pagehaul_engine::catalog::Repository;
use pagehaul_engine::catalog::signed_head::newest_head;
use pagehaul_engine::terms::SourceName;
use serde::Serialize;

use super::short_time;

/// A signed list of sets.
#[derive(Debug, Serialize)]
pub(super) struct HeadInfo {
    counter: u64,
    sha256: String,
    signed_at: String,
    signer: String,
    /// Whether the signer is one that was given; null if none was.
    trusted: Option<bool>,
}

/// The newest one; or none, and why it does not read.
pub(super) fn load(repository: &Repository, source: &SourceName) -> (Option<HeadInfo>, Option<String>) {
    // The sets were only listed if it is to be trusted.
    let trusted = repository.keys().asks_for_signatures().then_some(true);
    match newest_head(repository, source) {
        Ok(found) => {
            let info = found.map(|found| HeadInfo {
                counter: found.head.counter,
                sha256: found.sha256,
                signed_at: found.head.signed_at,
                signer: found.head.signer,
                trusted,
            });
            (info, None)
        }
        Err(error) => (None, Some(error.message())),
    }
}

pub(super) fn text(head: &HeadInfo) -> String {
    let checked = if head.trusted.is_some() { "by a given signer" } else { "not checked: give --signer" };
    let (counter, short) = (head.counter, head.sha256.get(..16).unwrap_or(&head.sha256));
    format!("signed: head {counter} ({short}...) of {} UTC, {checked}\n", short_time(&head.signed_at))
}
