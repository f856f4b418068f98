//! The data keys of a source, wrapped for other recipients: what can be read with the old keys can be read with the new ones.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::inventory::{SetState, list_sets};
use super::repository::Repository;
use super::wal_inventory::clusters;
use super::wal_names::{log_prefix, timeline_prefix, upper_hex, wal_prefix};
use crate::encryption::Rewrapping;
use crate::error::{Error, ErrorKind, Result};
use crate::format::encrypted::ENCRYPTED_HEADER_BYTES_MAX;
use crate::storage::is_temporary_name;
use crate::terms::{SourceName, TimelineId};

/// Wraps the data keys of all complete sets, all archived WAL and all stored files of a source for the recipients of the process; gives how
/// many these are. Nothing that is there is changed.
///
/// # Errors
/// `Usage` without recipients; `Configuration` if a data key cannot be had with the keys at hand; those of the storage.
pub fn rotate_keys(repository: &Repository, source: &SourceName) -> Result<u64> {
    let mut rewrapping = Rewrapping::new(repository.keys(), repository.stored());
    for set in list_sets(repository, source)? {
        let manifest = match set.state {
            SetState::Complete(manifest) => manifest,
            SetState::Damaged(error) => return Err(error),
            _ => continue,
        };
        let Some(encryption) = &manifest.encryption else { continue };
        let object = BASE64.decode(&encryption.private).map_err(|cause| {
            Error::new(ErrorKind::Damage, format!("read the private part of the manifest of {}", set.label), cause)
        })?;
        rewrapping.bytes(&object)?;
    }
    for system_identifier in clusters(repository, source)? {
        for prefix in wal_prefixes(repository, source, system_identifier)? {
            wrap_all(repository, &prefix, &mut rewrapping)?;
        }
    }
    wrap_all(repository, &format!("{source}/files"), &mut rewrapping)?;
    Ok(rewrapping.key_count())
}

/// Where the WAL objects of a cluster lie.
pub(super) fn wal_prefixes(
    repository: &Repository,
    source: &SourceName,
    system_identifier: u64,
) -> Result<Vec<String>> {
    let storage = repository.stored();
    let root = wal_prefix(source, system_identifier);
    let mut prefixes = vec![root.clone()];
    for timeline in storage.list(&root)?.iter().filter_map(|name| upper_hex(name)).map(TimelineId) {
        let logs = storage.list(&timeline_prefix(source, system_identifier, timeline))?;
        let logs = logs.iter().filter_map(|log| upper_hex(log));
        prefixes.extend(logs.map(|log| log_prefix(source, system_identifier, timeline, log)));
    }
    Ok(prefixes)
}

fn wrap_all(repository: &Repository, prefix: &str, rewrapping: &mut Rewrapping<'_>) -> Result<()> {
    let storage = repository.stored();
    for name in storage.list(prefix)? {
        if name.contains('.')
            && !is_temporary_name(&name)
            && let Some(object) = storage.open(&format!("{prefix}/{name}"))?
        {
            rewrapping.object(object.as_ref())?;
        }
    }
    Ok(())
}

/// Copies what was wrapped later for other recipients, for who copies objects as they are.
///
/// # Errors
/// Those of the storages.
pub fn follow_rotations(from: &Repository, to: &Repository, source: &SourceName) -> Result<()> {
    let root = format!("{source}/keys");
    for key_id in from.stored().list(&root)? {
        let prefix = format!("{root}/{key_id}");
        for name in from.stored().list(&prefix)?.iter().filter(|name| !is_temporary_name(name)) {
            let name = format!("{prefix}/{name}");
            if let Some(bytes) = from.stored().read_small(&name, ENCRYPTED_HEADER_BYTES_MAX as u64)? {
                // One that is there has the same key in it, for whomever.
                to.stored().put_new(&name, &bytes)?;
            }
        }
    }
    Ok(())
}
