//! The list of sets of a source, and what state each is in.

use super::identity;
use super::open_set::read_manifest;
use super::pin::{PIN_NAME, Pin, read_pin};
use super::repository::{LEASE_NAME, MANIFEST_NAME, Repository, set_labels, set_prefix};
use super::signed_head::{may_become_signed, missing_sets, trusted_head};
use super::tombstone::{TOMBSTONE_NAME, is_expiring};
use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::Manifest;
use crate::storage::at_once;
use crate::terms::{BackupLabel, Lsn, SourceName, TimelineId};

/// What state a set is in.
#[derive(Debug)]
pub enum SetState {
    /// Committed; its manifest reads.
    Complete(Box<Manifest>),
    /// A backup is writing it now.
    Running,
    /// A backup died before its commit; the next backup removes it.
    Incomplete,
    /// Committed, but its manifest does not read.
    Damaged(Error),
    /// Expire removes it as soon as nobody reads it; its manifest if that is still there and reads.
    Expiring(Option<Box<Manifest>>),
}

/// One set.
#[derive(Debug)]
pub struct SetListing {
    /// Its label.
    pub label: BackupLabel,
    /// Its state.
    pub state: SetState,
    /// Its pin, if it has one.
    pub pin: Option<Pin>,
}

/// All sets of `source`, oldest first; those of a cluster that had the name before come before all others.
///
/// # Errors
/// Those of the storage; a damaged manifest is a state, not an error.
pub fn list_sets(repository: &Repository, source: &SourceName) -> Result<Vec<SetListing>> {
    let head = repository.any_copy(|copy| trusted_head(copy, source))?;
    let looked = at_once(set_labels(repository.storage(), source)?, |label| look_at_set(repository, source, label))?;
    // A set that expire removes between the two looks is not there any more.
    let mut sets: Vec<SetListing> = looked.into_iter().flatten().collect();
    if let Some(head) = head {
        let listed: Vec<_> = sets.iter().map(|set| &set.label).collect();
        let missing = repository.any_copy(|copy| missing_sets(copy, &head, &listed))?;
        let listing = |(label, error)| SetListing { label, state: SetState::Damaged(error), pin: None };
        sets.extend(missing.into_iter().map(listing));
    }
    let owner = match identity::newest(repository, source) {
        Ok(newest) => newest.map(|(_, owner)| owner.system_identifier),
        // A damaged fence says nothing of the sets, which are to be seen all the same.
        Err(error) if error.kind() == ErrorKind::Damage => None,
        Err(error) => return Err(error),
    };
    let is_of_owner =
        |manifest: &Manifest| owner.as_ref().is_some_and(|owner| *owner == manifest.postgres.system_identifier);
    // Positions in WAL order sets of one cluster, not clocks; labels only tell apart what WAL cannot.
    sets.sort_by_key(|set| match &set.state {
        SetState::Complete(manifest) | SetState::Expiring(Some(manifest)) => {
            let postgres = &manifest.postgres;
            (0, is_of_owner(manifest), postgres.timeline, postgres.stop_lsn, set.label.clone())
        }
        _ => (1, false, TimelineId(0), Lsn(0), set.label.clone()),
    });
    Ok(sets)
}

fn look_at_set(repository: &Repository, source: &SourceName, label: BackupLabel) -> Result<Option<SetListing>> {
    let storage = repository.storage();
    let prefix = set_prefix(source, &label);
    let mut objects = storage.list(&prefix)?;
    let mut manifest = None;
    if objects.iter().any(|object| object == MANIFEST_NAME) {
        match read_manifest(repository, source, &label) {
            Ok(read) => manifest = Some(Ok(Box::new(read))),
            Err(error) if error.kind() == ErrorKind::Damage => manifest = Some(Err(error)),
            Err(error) => {
                objects = storage.list(&prefix)?;
                if objects.iter().any(|object| object == MANIFEST_NAME) {
                    // A store that cannot be read says nothing of the set; who takes an older one for the newest is misled.
                    return Err(error);
                }
                if objects.is_empty() {
                    return Ok(None);
                }
            }
        }
    }
    let state = match manifest {
        manifest if is_expiring(&objects) => SetState::Expiring(manifest.and_then(std::result::Result::ok)),
        Some(Ok(manifest)) => SetState::Complete(manifest),
        Some(Err(_)) if may_become_signed(repository, &prefix)? => SetState::Running,
        Some(Err(error)) => SetState::Damaged(error),
        None if storage.is_leased(&format!("{prefix}/{LEASE_NAME}"))? => SetState::Running,
        None => SetState::Incomplete,
    };
    let is_pinned = objects.iter().any(|object| object == PIN_NAME);
    let pin = if is_pinned { read_pin(repository, source, &label) } else { None };
    Ok(Some(SetListing { label, state, pin }))
}

/// The newest complete set of `source` that is of this cluster, if any.
///
/// # Errors
/// Those of the storage.
pub fn newest_complete_of(
    repository: &Repository,
    source: &SourceName,
    system_identifier: u64,
) -> Result<Option<Manifest>> {
    let wanted = system_identifier.to_string();
    Ok(list_sets(repository, source)?.into_iter().rev().find_map(|set| match set.state {
        SetState::Complete(manifest) if manifest.postgres.system_identifier == wanted => Some(*manifest),
        _ => None,
    }))
}

/// The newest complete set of `source`, if any.
///
/// # Errors
/// Those of the storage.
pub fn newest_complete(repository: &Repository, source: &SourceName) -> Result<Option<Manifest>> {
    Ok(list_sets(repository, source)?.into_iter().rev().find_map(|set| match set.state {
        SetState::Complete(manifest) => Some(*manifest),
        _ => None,
    }))
}

/// The set that is meant when the user named none: the newest complete one.
///
/// # Errors
/// `Damage` if a set that looks newer has a damaged manifest: an older one must not be taken for it in silence;
/// `Repository` if there is none; those of the storage.
pub fn newest_set(repository: &Repository, source: &SourceName) -> Result<BackupLabel> {
    let sets = list_sets(repository, source)?;
    let newest = sets.iter().rfind(|set| matches!(set.state, SetState::Complete(_)));
    let newest = newest.map(|set| set.label.clone());
    for set in &sets {
        if let SetState::Damaged(error) = &set.state
            && newest.as_ref().is_none_or(|newest| set.label > *newest)
        {
            let action = format!("use the newest set of {source}");
            let hint = match &newest {
                Some(label) => format!("name the set to use; {label} is the newest whose manifest reads"),
                None => "no other set is complete".to_owned(),
            };
            return Err(Error::new(ErrorKind::Damage, action, error.message()).hint(hint));
        }
    }
    // No expire removes the newest one, and whoever may back up can put a tombstone.
    let is_newer = |set: &&SetListing| matches!(set.state, SetState::Expiring(Some(_)));
    if let Some(buried) = sets.iter().rev().take_while(|set| Some(&set.label) != newest.as_ref()).find(is_newer) {
        let action = format!("use the newest set of {source}");
        let cause = format!(
            "{} is newer and has a tombstone ({TOMBSTONE_NAME}), which no expire puts into the newest set",
            buried.label
        );
        let hint = match &newest {
            Some(label) => format!(
                "name the set to use, {label} is the newest without one; or have that file removed, and look who may write there"
            ),
            None => "have that file removed, and look who may write there".to_owned(),
        };
        return Err(Error::new(ErrorKind::Damage, action, cause).hint(hint));
    }
    newest.ok_or_else(|| {
        Error::new(ErrorKind::Repository, format!("find a set of {source}"), "there is no complete one")
            .hint("`pagehaul info` lists the sets and their states")
    })
}
