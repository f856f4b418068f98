//! `pin.json`: a set that has one never expires.

use serde::{Deserialize, Serialize};

use super::open_set::read_manifest;
use super::repository::{Repository, set_prefix};
use super::tombstone::TOMBSTONE_NAME;
use crate::error::{Error, ErrorKind, Result};
use crate::format::FORMAT_VERSION;
use crate::terms::{BackupLabel, SourceName};

/// Name of the pin.
pub const PIN_NAME: &str = "pin.json";
const PIN_BYTES_MAX: u64 = 64 * 1024;

/// Why and when a set was pinned. Only that it is there counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pin {
    /// Version of the document.
    pub format_version: u16,
    /// When, RFC 3339 in UTC; for people.
    pub pinned_at: String,
    /// What the user said.
    pub reason: Option<String>,
}

/// Pins a set; false if it was pinned before (its reason stays).
///
/// # Errors
/// `Repository` or `Damage` if there is no such complete set, `Conflict` if it is already on its way out.
pub fn pin_set(
    repository: &Repository,
    source: &SourceName,
    label: &BackupLabel,
    reason: Option<&str>,
) -> Result<bool> {
    read_manifest(repository, source, label)?;
    let storage = repository.storage();
    let prefix = set_prefix(source, label);
    let is_buried = || Ok::<bool, Error>(storage.list(&prefix)?.iter().any(|object| object == TOMBSTONE_NAME));
    let too_late = || {
        let cause = "expire has decided to remove it, and is doing so";
        Error::new(ErrorKind::Conflict, format!("pin set {label} of {source}"), cause)
            .hint("pin a set of another day: `pagehaul info` lists them")
    };
    let name = format!("{prefix}/{PIN_NAME}");
    if read_pin(repository, source, label).is_none() && is_buried()? {
        return Err(too_late());
    }
    let pin = Pin {
        format_version: FORMAT_VERSION,
        pinned_at: jiff::Timestamp::now().to_string(),
        reason: reason.map(str::to_owned),
    };
    let text = serde_json::to_vec_pretty(&pin)
        .map_err(|cause| Error::new(ErrorKind::Bug, "render the pin of a set", cause))?;
    let is_new = storage.put_new(&name, &text)?;
    // An expire that wrote its tombstone between our look and our pin may have missed the pin: then nothing is promised.
    if is_new && is_buried()? {
        storage.delete(&name)?;
        return Err(too_late());
    }
    Ok(is_new)
}

/// Takes the pin off a set; false if there was none.
///
/// # Errors
/// Those of the storage.
pub fn unpin_set(repository: &Repository, source: &SourceName, label: &BackupLabel) -> Result<bool> {
    let storage = repository.storage();
    let prefix = set_prefix(source, label);
    let objects = storage.list(&prefix)?;
    if objects.is_empty() {
        let action = format!("unpin set {label} of {source}");
        return Err(
            Error::new(ErrorKind::Repository, action, "there is no such set").hint("`pagehaul info` lists the sets")
        );
    }
    let was_pinned = objects.iter().any(|object| object == PIN_NAME);
    storage.delete(&format!("{prefix}/{PIN_NAME}"))?;
    Ok(was_pinned)
}

/// The pin of a set as it lies there, if it has one.
///
/// # Errors
/// `Damage` if it is too long; those of the storage.
pub fn read_pin_object(repository: &Repository, source: &SourceName, label: &BackupLabel) -> Result<Option<Vec<u8>>> {
    repository.storage().read_small(&format!("{}/{PIN_NAME}", set_prefix(source, label)), PIN_BYTES_MAX)
}

/// What the pin of a set says, if it has one that reads: its text is for people.
pub fn read_pin(repository: &Repository, source: &SourceName, label: &BackupLabel) -> Option<Pin> {
    let name = format!("{}/{PIN_NAME}", set_prefix(source, label));
    let bytes = repository.storage().read_small(&name, PIN_BYTES_MAX).ok()??;
    // One that does not read pins all the same.
    let unreadable = Pin { format_version: FORMAT_VERSION, pinned_at: String::new(), reason: None };
    Some(serde_json::from_slice(&bytes).unwrap_or(unreadable))
}
