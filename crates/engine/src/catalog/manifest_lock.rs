//! The private part of a manifest: closed when a set is committed, opened for who has the key.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::repository::{MANIFEST_NAME, Repository, set_prefix};
use crate::encryption::{Keys, decrypt_bytes, encrypt_bytes, keys_of_object};
use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::Manifest;
use crate::format::manifest_private::{Encryption, PrivatePart};
use crate::storage::ObjectReader;

fn object_name(manifest: &Manifest) -> String {
    format!("{}/{MANIFEST_NAME}", set_prefix(&manifest.source, &manifest.label))
}

/// The manifest with its private part encrypted, if what is written is encrypted; one that is already stays as it is.
///
/// # Errors
/// `Configuration` if no key can be made.
pub(super) fn encrypted_manifest(keys: &Keys, name: &str, manifest: &Manifest) -> Result<Manifest> {
    let mut manifest = manifest.clone();
    if manifest.encryption.is_some() || !keys.encrypts() {
        return Ok(manifest);
    }
    let text = serde_json::to_vec(&manifest.private_part()?)
        .map_err(|cause| Error::new(ErrorKind::Bug, "render the private part of a manifest", cause))?;
    manifest.encryption = encrypt_bytes(keys, name, &text)?
        .map(|(key_id, object)| Encryption { key_id: key_id.to_string(), private: BASE64.encode(object) });
    Ok(manifest)
}

/// The manifest with its private part, if it is encrypted for a key at hand; without it if not.
///
/// # Errors
/// `Damage` if the private part is damaged or of another manifest.
pub(super) fn unlocked_if_possible(repository: &Repository, mut manifest: Manifest) -> Result<Manifest> {
    if manifest.encryption.is_none() {
        return Ok(manifest);
    }
    match open(repository, &manifest) {
        Ok(private) => {
            manifest.put_private(private);
            Ok(manifest)
        }
        Err(error) if error.kind() == ErrorKind::Configuration => Ok(manifest),
        Err(error) => Err(error),
    }
}

fn open(repository: &Repository, manifest: &Manifest) -> Result<PrivatePart> {
    let name = object_name(manifest);
    let damaged = |cause: &dyn std::fmt::Display| Error::new(ErrorKind::Damage, format!("decrypt {name}"), cause);
    let encryption = manifest.encryption.as_ref().ok_or_else(|| damaged(&"it is not encrypted"))?;
    let object = BASE64.decode(&encryption.private).map_err(|cause| damaged(&cause))?;
    let (key_id, text) = decrypt_bytes(repository.keys(), repository.stored(), &name, &object)?;
    let private: PrivatePart = serde_json::from_slice(&text).map_err(|cause| damaged(&cause))?;
    if private.public_sha256 != manifest.public_sha256()? || key_id.to_string() != encryption.key_id {
        return Err(damaged(
            &"its public part is not the one that was written with its private part: somebody changed it",
        ));
    }
    Ok(private)
}

/// The keys of a set: what is written with them is encrypted as the set is, or in clear as the set is.
///
/// # Errors
/// `Configuration` without its key; `Damage` if its private part does not read.
pub fn keys_of(repository: &Repository, manifest: &Manifest) -> Result<Arc<Keys>> {
    let Some(encryption) = &manifest.encryption else { return Ok(Arc::new(repository.keys().that_only_read())) };
    let object = BASE64
        .decode(&encryption.private)
        .map_err(|cause| Error::new(ErrorKind::Damage, format!("decrypt {}", object_name(manifest)), cause))?;
    keys_of_object(repository.keys(), repository.stored(), &object).map(Arc::new)
}

/// Checks that the set can be read with the keys at hand.
///
/// # Errors
/// `Configuration` if a key is missing or wrong; `Damage` as above.
pub fn check_unlocked(repository: &Repository, manifest: &Manifest) -> Result<()> {
    if manifest.encryption.is_none() {
        return Ok(());
    }
    open(repository, manifest).map(drop)
}

/// Checks that an object of a set is encrypted with the set's key, or not at all as the set: nobody without the key can put
/// another one there.
///
/// # Errors
/// `Damage` if it is not.
pub fn check_key(manifest: &Manifest, object: &dyn ObjectReader, name: &str) -> Result<()> {
    let found = object.key_id().map(|id| id.to_string());
    let expected = manifest.encryption.as_ref().map(|encryption| &encryption.key_id);
    if found.as_ref() == expected {
        return Ok(());
    }
    let cause = match (&found, expected) {
        (None, _) => "it is not encrypted, and the set is: it was put there by somebody else",
        (_, None) => "it is encrypted, and the set is not: it was put there by somebody else",
        _ => "it is encrypted with another key than the set: it was put there by somebody else",
    };
    Err(Error::new(ErrorKind::Damage, format!("open {name}"), cause))
}
