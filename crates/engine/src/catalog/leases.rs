//! Leases of those who read sets, so that none is removed under them.
//!
//! A reader holds its lease in each set it uses and then looks for the tombstone; who removes sets writes the tombstone
//! and then looks for held leases. Whatever the order, one of the two sees the other.

use super::repository::{MANIFEST_NAME, Repository, set_prefix};
use crate::error::{Error, ErrorKind, Result};
use crate::storage::{Lease, Storage};
use crate::terms::{BackupLabel, SetId, SourceName};

/// First part of the names of readers' leases; 16 random hexadecimal digits follow.
pub const READER_PREFIX: &str = "reader-";
/// Name of the tombstone: a set that has one is being removed.
pub const EXPIRED_NAME: &str = "expired.json";

/// Leases in several sets; dropping it gives them back.
pub struct SetLeases<'a> {
    storage: &'a dyn Storage,
    held: Vec<(String, Option<Box<dyn Lease>>)>,
}

impl Drop for SetLeases<'_> {
    fn drop(&mut self) {
        for (name, lease) in &mut self.held {
            // The object first: a lease that is free and still there would look like that of a reader who died.
            self.storage.delete(name).ok();
            *lease = None;
        }
    }
}

/// Whether a set has a tombstone.
///
/// # Errors
/// Those of the storage.
pub fn is_expired(repository: &Repository, source: &SourceName, label: &BackupLabel) -> Result<bool> {
    Ok(repository.storage().open(&format!("{}/{EXPIRED_NAME}", set_prefix(source, label)))?.is_some())
}

/// Holds a reader's lease in each of the sets, and then checks that each is still offered.
///
/// # Errors
/// `Conflict` if one of them is being removed or is gone; those of the storage.
pub fn hold_sets<'a>(
    repository: &'a Repository,
    source: &SourceName,
    labels: &[BackupLabel],
) -> Result<SetLeases<'a>> {
    let storage = repository.storage();
    let mut leases = SetLeases { storage, held: Vec::new() };
    for label in labels {
        let gone = |cause: &str| {
            Error::new(ErrorKind::Conflict, format!("use set {label} of {source}"), cause)
                .hint("run the command again: it takes another set then")
        };
        let prefix = set_prefix(source, label);
        let manifest = format!("{prefix}/{MANIFEST_NAME}");
        // Before the lease: it must not make a directory for a set that is not there.
        if storage.open(&manifest)?.is_none() {
            return Err(gone("it is not there any more"));
        }
        let random = SetId::random()?.to_string();
        let name = format!("{prefix}/{READER_PREFIX}{}", &random[..16]);
        let lease = storage.lease(&name)?;
        let held = lease.is_some();
        leases.held.push((name, lease));
        if !held {
            return Err(gone("its lease cannot be had"));
        }
        if is_expired(repository, source, label)? || storage.open(&manifest)?.is_none() {
            return Err(gone("it is being removed"));
        }
    }
    Ok(leases)
}
