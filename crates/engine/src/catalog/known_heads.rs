//! The newest head that this user has seen of each source: who remembers it notices when a repository goes back.

use serde::{Deserialize, Serialize};

use super::repository::Repository;
use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::sha256_hex;
use crate::storage::{Storage, object_place, open_storage};
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

/// The memory of one source in one repository: `<directory>/<id of the place>/<counter>.json`, each written once. A repository that can
/// be reached in several places is remembered in each, so that who later knows it by one of them notices too.
pub(super) struct KnownHeads {
    storage: Box<dyn Storage>,
    places: Vec<String>,
    repository: String,
    source: SourceName,
}

impl KnownHeads {
    /// None if the process remembers nothing.
    pub(super) fn of(repository: &Repository, source: &SourceName) -> Result<Option<Self>> {
        let Some(directory) = &repository.keys().sources().known_heads else { return Ok(None) };
        let id = |place: &String| sha256_hex(format!("{place}\n{source}").as_bytes()).chars().take(16).collect();
        let places = repository.storage().places().iter().map(id).collect();
        let storage = open_storage(&directory.display().to_string())?;
        let repository = repository.storage().describe();
        Ok(Some(KnownHeads { storage, places, repository, source: source.clone() }))
    }

    /// Where it is kept, for people.
    pub(super) fn describe(&self) -> String {
        let kept: Vec<_> = self.places.iter().map(|place| object_place(&self.storage.describe(), place)).collect();
        kept.join(" and ")
    }

    fn counters(&self, place: &str) -> Result<Vec<u64>> {
        let counter = |name: String| name.strip_suffix(".json")?.parse().ok();
        Ok(self.storage.list(place)?.into_iter().filter_map(counter).collect())
    }

    /// The newest that was seen in each place; a repository that is the same in all of them follows from every one.
    pub(super) fn newest(&self) -> Result<Vec<KnownHead>> {
        let mut known = Vec::new();
        for place in &self.places {
            if let Some(counter) = self.counters(place)?.into_iter().max() {
                known.push(self.read(&name(place, counter))?);
            }
        }
        Ok(known)
    }

    fn read(&self, name: &str) -> Result<KnownHead> {
        let damaged = |cause: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Damage, format!("read {name} in {}", self.storage.describe()), cause)
                .hint("it remembers the newest head that was seen; remove it to trust what the repository has now")
        };
        let bytes = self.storage.read_small(name, KNOWN_HEAD_BYTES_MAX)?;
        let bytes = bytes.ok_or_else(|| damaged(&"it went away"))?;
        serde_json::from_slice(&bytes).map_err(|cause| damaged(&cause))
    }

    /// Remembers a head that is newer than all that were seen.
    pub(super) fn remember(&self, counter: u64, sha256: &str) -> Result<()> {
        let (repository, source) = (self.repository.clone(), self.source.clone());
        let known = KnownHead { repository, source, counter, sha256: sha256.to_owned() };
        let text = serde_json::to_vec_pretty(&known)
            .map_err(|cause| Error::new(ErrorKind::Bug, "render what is known of a head", cause))?;
        for place in &self.places {
            let older = self.counters(place)?;
            if older.contains(&counter) {
                continue;
            }
            self.storage.put_new(&name(place, counter), &text).map_err(|error| {
                error.more_hint(
                    "the newest head is remembered there: name another directory with --known-heads, or NUL for none",
                )
            })?;
            for counter in older.into_iter().filter(|older| *older < counter) {
                // One that stays is older, and does not count.
                self.storage.delete(&name(place, counter)).ok();
            }
        }
        Ok(())
    }
}

fn name(place: &str, counter: u64) -> String {
    format!("{place}/{counter:010}.json")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::encryption::{KeySources, Keys};

    #[test]
    fn f55_s18_what_was_seen_of_a_store_counts_however_it_is_spoken_to() {
        let memory = tempfile::tempdir().unwrap();
        let source = "main".parse().unwrap();
        let of = |target: &str| {
            let sources = KeySources { known_heads: Some(memory.path().to_owned()), ..KeySources::default() };
            let repository = Repository::over(open_storage(target).unwrap());
            let repository = repository.with_keys(Arc::new(Keys::load(&sources).unwrap()));
            KnownHeads::of(&repository, &source).unwrap().unwrap()
        };
        let counters =
            |target: &str| -> Vec<u64> { of(target).newest().unwrap().iter().map(|head| head.counter).collect() };
        let [one, two] = ["endpoint=http://127.0.0.1:1", "endpoint=http://127.0.0.1:2"];
        of(&format!("s3://bucket/p?{one}")).remember(7, "of 7").unwrap();
        for same in [
            "&parallel=8&part-size=16MiB",
            "&timeout=5s&retries=1",
            "&region=eu-1&virtual-host=true",
            &format!("&{two}"),
        ] {
            assert_eq!(counters(&format!("s3://bucket/p?{one}{same}")), [7], "{same}");
        }
        for other in
            [format!("s3://bucket/p?{two}"), format!("s3://bucket/q?{one}"), "s3://bucket/p?region=eu-1".to_owned()]
        {
            assert!(counters(&other).is_empty(), "{other}");
        }
        // What was seen by either way counts by both.
        of(&format!("s3://bucket/p?{two}")).remember(6, "of another 6").unwrap();
        assert_eq!(counters(&format!("s3://bucket/p?{one}&{two}")), [7, 6]);
        of(&format!("s3://bucket/p?{one}&{two}")).remember(8, "of 8").unwrap();
        assert_eq!([one, two].map(|way| counters(&format!("s3://bucket/p?{way}"))), [[8], [8]]);
    }
}
