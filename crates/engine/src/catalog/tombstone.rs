//! `expired.json`: the tombstone of a set that `expire` has decided to remove.
//!
//! It is written before anything of the set goes and deleted after everything else went, so whoever finds one can
//! finish the removal: it says where the stripes are when the manifest does not any more. It is never withdrawn.

use serde::{Deserialize, Serialize};

use super::repository::{Repository, set_prefix};
use crate::error::{Error, ErrorKind, Result};
use crate::format::FORMAT_VERSION;
use crate::format::manifest::Manifest;
use crate::terms::{BackupLabel, SourceName, is_absolute_place};

/// Name of the tombstone.
pub const TOMBSTONE_NAME: &str = "expired.json";
const TOMBSTONE_BYTES_MAX: u64 = 1024 * 1024;

/// Why a set goes, and what is needed to remove it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tombstone {
    /// Version of all bytes of the set.
    pub format_version: u16,
    /// The set.
    pub label: BackupLabel,
    /// Its id, 32 hexadecimal digits.
    pub set_id: String,
    /// When it was decided, RFC 3339 in UTC; for people.
    pub expired_at: String,
    /// Why, in words.
    pub reasons: Vec<String>,
    /// Directories outside of the repository that hold stripes of it, absolute.
    pub stripe_directories: Vec<String>,
    /// Bytes that go with it.
    pub stored_bytes: u64,
}

impl Tombstone {
    /// The tombstone of the set that `manifest` describes.
    pub fn new(manifest: &Manifest, at: jiff::Timestamp, reasons: Vec<String>) -> Self {
        let mut stripe_directories: Vec<String> =
            manifest.all_stripes().filter_map(|stripe| stripe.directory.clone()).collect();
        stripe_directories.sort_unstable();
        stripe_directories.dedup();
        Tombstone {
            format_version: FORMAT_VERSION,
            label: manifest.label.clone(),
            set_id: manifest.set_id.clone(),
            expired_at: at.to_string(),
            reasons,
            stripe_directories,
            stored_bytes: manifest.stored_bytes,
        }
    }

    /// Whether both remove the same set from the same places.
    pub fn removes_the_same(&self, other: &Tombstone) -> bool {
        let of = |tombstone: &Tombstone| {
            (tombstone.label.clone(), tombstone.set_id.clone(), tombstone.stripe_directories.clone())
        };
        of(self) == of(other)
    }

    /// Puts it into its set; false if one is there already.
    ///
    /// # Errors
    /// Those of the storage.
    pub fn put(&self, repository: &Repository, source: &SourceName) -> Result<bool> {
        let text = serde_json::to_vec_pretty(self)
            .map_err(|cause| Error::new(ErrorKind::Bug, "render the tombstone of a set", cause))?;
        repository.storage().put_new(&name(source, &self.label), &text)
    }

    /// Reads the tombstone of a set; None if it has none.
    ///
    /// # Errors
    /// `Damage` if it does not read or is of another set; those of the storage.
    pub fn read(repository: &Repository, source: &SourceName, label: &BackupLabel) -> Result<Option<Self>> {
        let name = name(source, label);
        let Some(bytes) = repository.storage().read_small(&name, TOMBSTONE_BYTES_MAX)? else { return Ok(None) };
        let bad = |cause: String| {
            Error::new(ErrorKind::Damage, format!("read {name}"), cause)
                .hint("the set is not offered any more; remove its directory and its stripes by hand")
        };
        let tombstone: Tombstone = serde_json::from_slice(&bytes).map_err(|cause| bad(cause.to_string()))?;
        if tombstone.format_version != FORMAT_VERSION {
            return Err(bad(format!("format version {} is not known to this build", tombstone.format_version)));
        }
        if tombstone.label != *label {
            return Err(bad(format!("it is the tombstone of {}", tombstone.label)));
        }
        if tombstone.stripe_directories.iter().any(|directory| !is_absolute_place(directory)) {
            return Err(bad("the directory of a stripe is neither an absolute path nor an object store".to_owned()));
        }
        Ok(Some(tombstone))
    }
}

fn name(source: &SourceName, label: &BackupLabel) -> String {
    format!("{}/{TOMBSTONE_NAME}", set_prefix(source, label))
}

/// Whether a set with these objects is on its way out: a tombstone is there and no pin, which is stronger.
pub fn is_expiring(objects: &[String]) -> bool {
    let has = |name: &str| objects.iter().any(|object| object == name);
    has(TOMBSTONE_NAME) && !has(super::pin::PIN_NAME)
}
