//! A backup that nobody can delete before a time: what belongs to it is protected before its manifest says that it is there.

use jiff::{SignedDuration, Timestamp};

use super::report::BackupRequest;
use crate::catalog::Repository;
use crate::catalog::protection::{SetObjects, objects_of_set, objects_of_source};
use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::Manifest;
use crate::storage::{LockMode, Protection, object_lock_of, open_storage};

/// For how long a new set and those it needs are protected, from its end on, and how binding that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtectFor {
    /// How long.
    pub span: SignedDuration,
    /// How binding.
    pub mode: LockMode,
}

/// Looks whether all places of the set have object lock, before anything is written or asked of the server.
///
/// # Errors
/// `Configuration` if one has none, `Usage` if the span does not end in time; those of the storages.
pub(super) fn check_places(request: &BackupRequest) -> Result<()> {
    if from_now(request)?.is_none() {
        return Ok(());
    }
    let repositories = std::iter::once(&request.repo).chain(&request.more_repos);
    for place in repositories.chain(&request.stripe_to).chain(&request.parity_to) {
        object_lock_of(open_storage(place)?.as_ref())?;
    }
    Ok(())
}

fn from_now(request: &BackupRequest) -> Result<Option<Protection>> {
    let Some(ProtectFor { span, mode }) = request.protect else { return Ok(None) };
    let until = Timestamp::now().checked_add(span).map_err(|cause| {
        Error::new(ErrorKind::Usage, "protect the backup for so long", cause).hint("an example is --protect-for 30d")
    })?;
    Ok(Some(Protection::new(until, mode)))
}

/// Protects the sets that a backup builds on, the oldest first: what cannot be protected is to be known before hours of work.
///
/// # Errors
/// `Configuration` if one cannot be; `Damage` if one is not whole; those of the storages.
pub(super) fn protect_priors(
    repository: &Repository,
    request: &BackupRequest,
    nearest_first: &[&Manifest],
) -> Result<()> {
    let Some(wanted) = from_now(request)? else { return Ok(()) };
    repository.each(|copy| {
        for manifest in nearest_first.iter().rev() {
            let set = objects_of_set(copy, manifest)?;
            protect_parts(copy, &set, wanted)?;
            protect_manifest(copy, &set, wanted)?;
        }
        Ok(())
    })
}

/// Protects everything that the set which `manifest` will describe consists of, and what it needs; gives what its manifest is
/// to be protected with once that is written.
///
/// # Errors
/// As [`protect_priors`].
pub(super) fn protect_before_commit(
    repository: &Repository,
    request: &BackupRequest,
    manifest: &Manifest,
    priors: &[Manifest],
) -> Result<Option<Protection>> {
    let Some(wanted) = from_now(request)? else { return Ok(None) };
    protect_priors(repository, request, &priors.iter().collect::<Vec<_>>())?;
    repository.each(|copy| {
        object_lock_of(copy.stored())?.protect(&objects_of_source(copy, &manifest.source)?, wanted)?;
        protect_parts(copy, &objects_of_set(copy, manifest)?, wanted)
    })?;
    Ok(Some(wanted))
}

/// Protects the head that was signed, and the manifest, which is there now: from here on the set counts as protected.
///
/// # Errors
/// Those of the storages; the set is complete all the same.
pub(super) fn protect_after_commit(repository: &Repository, manifest: &Manifest, wanted: Protection) -> Result<()> {
    repository.each(|copy| {
        let protect = || {
            object_lock_of(copy.stored())?.protect(&objects_of_source(copy, &manifest.source)?, wanted)?;
            protect_manifest(copy, &objects_of_set(copy, manifest)?, wanted)
        };
        protect().map_err(|error| {
            error.more_hint(
                "the backup is complete, and its manifest is not protected yet: `pagehaul protect` does that",
            )
        })
    })
}

fn protect_parts(copy: &Repository, set: &SetObjects, wanted: Protection) -> Result<()> {
    object_lock_of(copy.stored())?.protect(&set.at_home, wanted)?;
    for (place, names) in &set.elsewhere {
        object_lock_of(place.as_ref())?.protect(names, wanted)?;
    }
    Ok(())
}

fn protect_manifest(copy: &Repository, set: &SetObjects, wanted: Protection) -> Result<()> {
    object_lock_of(copy.stored())?.protect(std::slice::from_ref(&set.manifest), wanted).map(drop)
}
