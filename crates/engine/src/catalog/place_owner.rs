//! `owner.json`: whose stripes lie below a set's prefix in a place outside of their repository.
//!
//! Labels are unique in one repository only, and several may put stripes into one place. What a plan or a tombstone says is
//! not enough to remove any there: whoever may add objects to a repository can write one that names any place. Whose a place is
//! was said by the first who put something there, and credentials that may only add cannot change it.

use serde::{Deserialize, Serialize};

use super::repository::Repository;
use crate::error::{Error, ErrorKind, Result};
use crate::storage::Storage;
use crate::terms::SetId;

/// Its name.
pub const OWNER_NAME: &str = "owner.json";
const OWNER_BYTES_MAX: u64 = 4096;

/// Whose a set's prefix in one place is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Chosen at random by who began the set.
    pub owner: String,
    /// The id of its repository; None where an earlier build has put it there.
    #[serde(default)]
    pub repository: Option<String>,
}

impl Owner {
    /// That of a set which is begun in `repository`.
    ///
    /// # Errors
    /// `Damage` if the repository's marker does not read; those of its storage.
    pub fn new(repository: &Repository) -> Result<Self> {
        Owner::named(SetId::random()?.to_string(), repository)
    }

    /// The one of that name in `repository`.
    ///
    /// # Errors
    /// As [`Owner::new`].
    pub fn named(owner: String, repository: &Repository) -> Result<Self> {
        Ok(Owner { owner, repository: repository.id()? })
    }

    /// What a place says; None if it says nothing, or nothing that reads.
    ///
    /// # Errors
    /// Those of the storage.
    pub fn of(place: &dyn Storage, prefix: &str) -> Result<Option<Self>> {
        let bytes = place.read_small(&name(prefix), OWNER_BYTES_MAX)?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// Says it there; false if somebody else has said something.
    ///
    /// # Errors
    /// Those of the storage.
    pub fn put(&self, place: &dyn Storage, prefix: &str) -> Result<bool> {
        let text = serde_json::to_vec_pretty(self)
            .map_err(|cause| Error::new(ErrorKind::Bug, "render whose a place is", cause))?;
        place.put_new(&name(prefix), &text)
    }

    /// Takes back what was said.
    ///
    /// # Errors
    /// Those of the storage.
    pub fn delete(place: &dyn Storage, prefix: &str) -> Result<()> {
        place.delete(&name(prefix))
    }

    /// Whether a place that says `self` is that of `other`.
    pub fn is(&self, other: &Owner) -> bool {
        self.owner == other.owner && (self.repository.is_none() || self.repository == other.repository)
    }

    /// Whether a place says that it is that of another repository than `repository`.
    ///
    /// # Errors
    /// As [`Owner::new`]; those of the storage.
    pub fn is_another(repository: &Repository, place: &dyn Storage, prefix: &str) -> Result<bool> {
        let said = Owner::of(place, prefix)?.and_then(|owner| owner.repository);
        Ok(said.is_some() && said != repository.id()?)
    }
}

fn name(prefix: &str) -> String {
    format!("{prefix}/{OWNER_NAME}")
}
