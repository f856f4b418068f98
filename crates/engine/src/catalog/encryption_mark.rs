//! A source whose backups are encrypted says so: nothing is written without encryption by oversight from then on.

use serde::{Deserialize, Serialize};

use super::repository::Repository;
use crate::encryption::Keys;
use crate::error::{Error, ErrorKind, Result};
use crate::format::FORMAT_VERSION;
use crate::format::manifest::Manifest;
use crate::terms::SourceName;

#[derive(Debug, Serialize, Deserialize)]
struct Mark {
    format_version: u16,
    encrypted_since: String,
}

/// Marks the source if what is written with `keys` is encrypted, and looks for the mark if it is not.
///
/// # Errors
/// `Configuration` if there is a mark and no recipient; those of the storage.
pub fn keep_encrypted(repository: &Repository, source: &SourceName, keys: &Keys) -> Result<()> {
    refuse_clear(repository, source, keys)?;
    if keys.encrypts() && !repository.storage().discards() {
        mark(repository, source)?;
    }
    Ok(())
}

/// Looks for the mark if what is written with `keys` is not encrypted.
///
/// # Errors
/// `Configuration` if there is a mark and no recipient; those of the storage.
pub fn refuse_clear(repository: &Repository, source: &SourceName, keys: &Keys) -> Result<()> {
    let storage = repository.storage();
    if storage.discards() || keys.encrypts() {
        return Ok(());
    }
    if is_marked(repository, source)? {
        let name = mark_name(source);
        let cause = "what is stored of this source is encrypted, and this would not be";
        return Err(Error::new(
            ErrorKind::Configuration,
            format!("write to {source} in {}", storage.describe()),
            cause,
        )
        .hint(format!("give --recipient; to go on without encryption from now on, remove {name} by hand")));
    }
    Ok(())
}

/// Refuses to put content of an encrypted set into one that is not.
///
/// # Errors
/// `Configuration` if the set is encrypted and there is no recipient.
pub fn refuse_clear_of(manifest: &Manifest, keys: &Keys) -> Result<()> {
    if manifest.encryption.is_none() || keys.encrypts() {
        return Ok(());
    }
    let cause = "it is encrypted, and the new set would not be";
    Err(Error::new(ErrorKind::Configuration, format!("build on set {} of {}", manifest.label, manifest.source), cause)
        .hint("give --recipient"))
}

/// Marks the source in `to` if it is marked in `from`, or what is written there is encrypted. What was stored without
/// encryption before may be copied as it is.
///
/// # Errors
/// Those of the storages.
pub fn follow(from: &Repository, to: &Repository, source: &SourceName) -> Result<()> {
    if to.keys().encrypts() || is_marked(from, source)? {
        mark(to, source)?;
    }
    Ok(())
}

fn mark_name(source: &SourceName) -> String {
    format!("{source}/encrypted.json")
}

fn is_marked(repository: &Repository, source: &SourceName) -> Result<bool> {
    Ok(repository.storage().open(&mark_name(source))?.is_some())
}

fn mark(repository: &Repository, source: &SourceName) -> Result<()> {
    if is_marked(repository, source)? {
        return Ok(());
    }
    let mark = Mark { format_version: FORMAT_VERSION, encrypted_since: jiff::Timestamp::now().to_string() };
    let text = serde_json::to_vec_pretty(&mark)
        .map_err(|cause| Error::new(ErrorKind::Bug, "render the mark of an encrypted source", cause))?;
    repository.storage().put_new(&mark_name(source), &text).map(drop)
}
