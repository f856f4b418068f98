//! The newest head that this user has seen of each source: who remembers it notices when a repository goes back.

use serde::{Deserialize, Serialize};

use super::repository::Repository;
use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::sha256_hex;
use crate::storage::{Storage, open_storage};
use crate::terms::SourceName;

const KNOWN_HEAD_BYTES_MAX: u64 = 64 * 1024;

/// A head as it is remembered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KnownHead {
    /// Where the repository is; for people.
    repository: String,
    /// Whose head.
    source: SourceName,
    pub(super) counter: u64,
    pub(super) sha256: String,
}

/// The memory of one source in one repository: `<directory>/<id of the place>/<counter>.json`, each written once.
pub(super) struct KnownHeads {
    storage: Box<dyn Storage>,
    place: String,
    repository: String,
    source: SourceName,
}

impl KnownHeads {
    /// None if the process remembers nothing.
    pub(super) fn of(repository: &Repository, source: &SourceName) -> Result<Option<Self>> {
        let Some(directory) = &repository.keys().sources().known_heads else { return Ok(None) };
        let home = repository.storage().describe();
        let place = sha256_hex(format!("{home}\n{source}").as_bytes());
        let storage = open_storage(&directory.display().to_string())?;
        let place = place.get(..16).unwrap_or_default().to_owned();
        Ok(Some(KnownHeads { storage, place, repository: home, source: source.clone() }))
    }

    /// Where it is kept, for people.
    pub(super) fn describe(&self) -> String {
        format!("{}/{}", self.storage.describe(), self.place)
    }

    fn counters(&self) -> Result<Vec<u64>> {
        let counter = |name: String| name.strip_suffix(".json")?.parse().ok();
        Ok(self.storage.list(&self.place)?.into_iter().filter_map(counter).collect())
    }

    fn name(&self, counter: u64) -> String {
        format!("{}/{counter:010}.json", self.place)
    }

    /// The newest that was seen.
    pub(super) fn newest(&self) -> Result<Option<KnownHead>> {
        let Some(counter) = self.counters()?.into_iter().max() else { return Ok(None) };
        let name = self.name(counter);
        let damaged = |cause: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Damage, format!("read {name} in {}", self.storage.describe()), cause)
                .hint("it remembers the newest head that was seen; remove it to trust what the repository has now")
        };
        let bytes = self.storage.read_small(&name, KNOWN_HEAD_BYTES_MAX)?;
        let bytes = bytes.ok_or_else(|| damaged(&"it went away"))?;
        serde_json::from_slice(&bytes).map(Some).map_err(|cause| damaged(&cause))
    }

    /// Remembers a head that is newer than all that were seen.
    pub(super) fn remember(&self, counter: u64, sha256: &str) -> Result<()> {
        let older = self.counters()?;
        if older.contains(&counter) {
            return Ok(());
        }
        let (repository, source) = (self.repository.clone(), self.source.clone());
        let known = KnownHead { repository, source, counter, sha256: sha256.to_owned() };
        let text = serde_json::to_vec_pretty(&known)
            .map_err(|cause| Error::new(ErrorKind::Bug, "render what is known of a head", cause))?;
        self.storage.put_new(&self.name(counter), &text).map_err(|error| {
            error.more_hint(
                "the newest head is remembered there: name another directory with --known-heads, or NUL for none",
            )
        })?;
        for counter in older.into_iter().filter(|older| *older < counter) {
            // One that stays is older, and does not count.
            self.storage.delete(&self.name(counter)).ok();
        }
        Ok(())
    }
}
