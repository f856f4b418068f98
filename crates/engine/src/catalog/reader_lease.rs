//! Leases of those who read a set: while one is held, `expire` leaves the set's objects alone.
//!
//! The order matters. A reader holds its lease first and looks for a tombstone then; expire writes the tombstone first
//! and looks for leases then. So at least one of them sees the other (ARCHITECTURE.md, "Who may remove what").

use super::open_set::read_manifest;
use super::repository::{MANIFEST_NAME, Repository, set_prefix};
use super::tombstone::{TOMBSTONE_NAME, is_expiring};
use crate::error::{Error, ErrorKind, Result};
use crate::storage::{Lease, Storage};
use crate::terms::{BackupLabel, SourceName};

/// Begins the name of a reader's lease.
pub const READER_PREFIX: &str = "reader-";
/// How often another name is tried: one is lost only to somebody who clears away a lease just as it is made.
const NAME_ATTEMPTS: usize = 5;

/// Leases in one or more sets, given back when this is dropped.
pub struct ReaderLease<'a> {
    storage: &'a dyn Storage,
    held: Vec<HeldLease>,
}

struct HeldLease {
    prefix: String,
    name: String,
    _lease: Box<dyn Lease>,
}

impl Drop for ReaderLease<'_> {
    fn drop(&mut self) {
        for held in &self.held {
            // One that stays is held by nobody; expire clears it away.
            self.storage.delete(&held.name).ok();
            // Only if the set went between our look and our lease is there nothing else.
            self.storage.remove_prefix(&held.prefix).ok();
        }
    }
}

/// Whether the sets are there and nobody has begun to remove them: for who built on them, after the commit.
///
/// Who removes them writes a tombstone first and looks at all manifests then; who builds on them writes a manifest first
/// and looks for tombstones then. So one sees the other also where a lease was lost, as not every store keeps one while
/// the network is away.
///
/// # Errors
/// `Conflict`, naming a set that was removed or is about to be; those of the storage.
pub fn check_are_kept(repository: &Repository, source: &SourceName, labels: &[BackupLabel]) -> Result<()> {
    for label in labels {
        let objects = repository.storage().list(&set_prefix(source, label))?;
        let has = |name: &str| objects.iter().any(|object| object == name);
        if !has(MANIFEST_NAME) || has(TOMBSTONE_NAME) {
            return Err(expiring(source, label));
        }
    }
    Ok(())
}

/// Holds a lease in each of the sets; for who will depend on them, as an incremental backup on its priors.
///
/// # Errors
/// `Conflict` if one of them is gone or about to be; `Repository` if a lease cannot be made.
pub fn hold<'a>(repository: &'a Repository, source: &SourceName, labels: &[BackupLabel]) -> Result<ReaderLease<'a>> {
    let storage = repository.storage();
    let mut lease = ReaderLease { storage, held: Vec::new() };
    // Before the leases too: they must not make directories for sets that are not there.
    check_are_kept(repository, source, labels)?;
    for label in labels {
        lease.add(source, label)?;
    }
    check_are_kept(repository, source, labels)?;
    Ok(lease)
}

/// A set that somebody reads now.
pub struct Reading<'a> {
    /// Its leases, and those of the sets it needs.
    pub lease: ReaderLease<'a>,
    /// Why there is none in some set, for people: then expire may remove the set while it is read.
    pub note: Option<String>,
}

/// Holds leases in a set and in those it needs, if leases can be made; for who only reads.
///
/// A repository on read-only media must be readable, so a lease that cannot be made is a note.
///
/// # Errors
/// `Conflict` if the set is about to be removed, `Repository` or `Damage` if there is no such set.
pub fn hold_to_read<'a>(repository: &'a Repository, source: &SourceName, label: &BackupLabel) -> Result<Reading<'a>> {
    look(repository, source, label)?;
    let mut lease = ReaderLease { storage: repository.storage(), held: Vec::new() };
    let mut refused = lease.add(source, label).err();
    if is_expiring(&look(repository, source, label)?) {
        return Err(expiring(source, label));
    }
    for prior in read_manifest(repository, source, label)?.prior {
        // Expire removes no set that another one needs, tombstone or not: this set's lease protects its priors too.
        refused = refused.or(lease.add(source, &prior).err());
    }
    let note = refused.map(|error| {
        format!("{}: nothing keeps `pagehaul expire` from removing the set while it is read", error.message())
    });
    Ok(Reading { lease, note })
}

impl ReaderLease<'_> {
    fn add(&mut self, source: &SourceName, label: &BackupLabel) -> Result<()> {
        let prefix = set_prefix(source, label);
        for _ in 0..NAME_ATTEMPTS {
            let name = format!("{prefix}/{READER_PREFIX}{:016x}", random()?);
            if let Some(lease) = self.storage.lease(&name)? {
                self.held.push(HeldLease { prefix, name, _lease: lease });
                return Ok(());
            }
        }
        let action = format!("hold a lease in set {label} of {source}");
        Err(Error::new(ErrorKind::Conflict, action, "somebody clears away every lease that is made"))
    }
}

/// The objects of a complete set.
fn look(repository: &Repository, source: &SourceName, label: &BackupLabel) -> Result<Vec<String>> {
    let objects = repository.storage().list(&set_prefix(source, label))?;
    if objects.iter().any(|object| object == MANIFEST_NAME) {
        return Ok(objects);
    }
    if is_expiring(&objects) {
        return Err(expiring(source, label));
    }
    Err(Error::new(
        ErrorKind::Repository,
        format!("open set {label} of {source}"),
        "there is no finished backup of that label",
    )
    .hint("`pagehaul info` lists the sets"))
}

fn expiring(source: &SourceName, label: &BackupLabel) -> Error {
    let cause = "it has expired and is being removed";
    Error::new(ErrorKind::Conflict, format!("open set {label} of {source}"), cause)
        .hint("use another set: `pagehaul info` lists them; `pagehaul pin` keeps one for good")
}

fn random() -> Result<u64> {
    let mut bytes = [0u8; 8];
    getrandom::fill(&mut bytes).map_err(|cause| Error::new(ErrorKind::Bug, "name a lease", cause))?;
    Ok(u64::from_le_bytes(bytes))
}
