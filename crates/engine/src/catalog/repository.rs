//! The repository itself: its marker, and the names of objects in it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use serde::{Deserialize, Serialize};

use super::signed_head::FoundHead;
use crate::encryption::{EncryptedStorage, Keys};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{DOCUMENT_HINT, FORMAT_VERSION};
use crate::storage::{MirroredStorage, Storage, open_storage};
use crate::terms::{BackupLabel, SetId, SourceName};

/// Marks a directory as a repository.
pub const MARKER: &str = "pagehaul-repository.json";
const MARKER_BYTES_MAX: u64 = 64 * 1024;

#[derive(Debug, Serialize, Deserialize)]
struct Marker {
    format_version: u16,
    repository_id: String,
}

/// A repository that exists.
pub struct Repository {
    storage: Arc<dyn Storage>,
    /// The same store with the bytes as they lie there.
    stored: Arc<dyn Storage>,
    keys: Arc<Keys>,
    /// What its marker says, once that was read.
    id: OnceLock<String>,
    /// The repositories that are written as one; empty if it is only itself.
    copies: Vec<Repository>,
    mirror: Option<MirroredStorage>,
    /// The newest signed head of each source that was looked at.
    heads: Mutex<BTreeMap<SourceName, Arc<FoundHead>>>,
}

impl Repository {
    /// Opens the repository at `target`.
    ///
    /// # Errors
    /// `Repository` if there is none, `Damage` if its marker does not read.
    pub fn open(target: &str) -> Result<Self> {
        let storage = open_storage(target)?;
        if storage.discards() {
            return Err(Error::new(ErrorKind::Usage, "read from NUL", "it keeps nothing")
                .hint("give --repo the directory of a repository"));
        }
        match read_marker(storage.as_ref())? {
            Some(marker) => Ok(Repository::over(storage).marked(marker)),
            None => Err(not_a_repository(storage.as_ref(), "it has no pagehaul-repository.json")),
        }
    }

    /// Opens the repository at `target`, or makes one there if the place is empty.
    ///
    /// # Errors
    /// `Repository` if the place holds something else.
    pub fn open_or_create(target: &str) -> Result<Self> {
        let storage = open_storage(target)?;
        if storage.discards() {
            return Ok(Repository::over(storage));
        }
        if let Some(marker) = read_marker(storage.as_ref())? {
            return Ok(Repository::over(storage).marked(marker));
        }
        if storage.list("")?.iter().any(|name| !may_be_in_empty_place(name)) {
            // What is there may be a repository that somebody else has made since.
            if has_marker(storage.as_ref())? {
                return Ok(Repository::over(storage));
            }
            return Err(not_a_repository(storage.as_ref(), "it is not empty and has no pagehaul-repository.json"));
        }
        let marker = Marker { format_version: FORMAT_VERSION, repository_id: SetId::random()?.to_string() };
        let text = serde_json::to_vec_pretty(&marker)
            .map_err(|cause| Error::new(ErrorKind::Bug, "render the repository marker", cause))?;
        // The loser of a race has a repository too.
        storage.put_new(MARKER, &text)?;
        Ok(Repository::over(storage))
    }

    /// Over a store of the caller's; tests bring stores that fail.
    pub fn over(storage: Box<dyn Storage>) -> Self {
        Repository::new(storage.into(), Keys::of_process())
    }

    fn new(stored: Arc<dyn Storage>, keys: Arc<Keys>) -> Self {
        let storage = Arc::new(EncryptedStorage::new(Arc::clone(&stored), Arc::clone(&keys), Arc::clone(&stored)));
        let (id, heads) = (OnceLock::new(), Mutex::default());
        Repository { storage, stored, keys, id, copies: Vec::new(), mirror: None, heads }
    }

    fn marked(self, marker: Marker) -> Self {
        Repository { id: OnceLock::from(marker.repository_id), ..self }
    }

    /// The same repository with other keys than those of the process.
    #[must_use]
    pub fn with_keys(&self, keys: Arc<Keys>) -> Self {
        Repository { id: self.id.clone(), ..Repository::new(Arc::clone(&self.stored), keys) }
    }

    /// Its objects as they lie there: nothing is encrypted or decrypted.
    pub fn stored(&self) -> &dyn Storage {
        self.stored.as_ref()
    }

    /// Several repositories that are written as one: each gets the same objects, one that fails is left out.
    pub fn mirrored(copies: Vec<Repository>) -> Self {
        let mirror = MirroredStorage::new(copies.iter().map(|copy| Arc::clone(&copy.stored)).collect());
        // Encrypted once, so that each copy has the same bytes.
        Repository { copies, mirror: Some(mirror.clone()), ..Repository::new(Arc::new(mirror), Keys::of_process()) }
    }

    /// Does something with each repository of a mirror that works, and leaves out those with which it fails; with the
    /// repository itself if it is only one.
    ///
    /// # Errors
    /// Those of the last one that worked.
    pub fn each(&self, mut work: impl FnMut(&Repository) -> Result<()>) -> Result<()> {
        match &self.mirror {
            Some(mirror) => mirror.each(|index, _| work(&self.copies[index])).map(drop),
            None => work(self),
        }
    }

    /// What `look` finds in the first repository of a mirror that works; in the repository itself if it is only one.
    ///
    /// # Errors
    /// Those of `look`.
    pub(super) fn any_copy<T>(&self, look: impl FnOnce(&Repository) -> Result<T>) -> Result<T> {
        let works = |mirror: &MirroredStorage| self.copies.iter().enumerate().find(|(index, _)| mirror.works(*index));
        look(self.mirror.as_ref().and_then(works).map_or(self, |(_, copy)| copy))
    }

    /// The heads that were looked at.
    pub(super) fn heads(&self) -> &Mutex<BTreeMap<SourceName, Arc<FoundHead>>> {
        &self.heads
    }

    /// The repositories of a mirror that were left out.
    pub fn failed_copies(&self) -> impl Iterator<Item = &Repository> {
        let mirror = self.mirror.iter();
        mirror.flat_map(|mirror| {
            self.copies.iter().enumerate().filter(|(index, _)| !mirror.works(*index)).map(|(_, copy)| copy)
        })
    }

    /// Where each copy of a mirror is, and why it was left out, if it was; empty if it is only one repository.
    pub fn copies(&self) -> Vec<(String, Option<&Error>)> {
        let mirror = self.mirror.iter();
        let all =
            mirror.flat_map(|mirror| self.copies.iter().enumerate().map(|(index, copy)| (copy, mirror.failure(index))));
        all.map(|(copy, failed)| (copy.storage.describe(), failed)).collect()
    }

    /// What it reads and writes with.
    pub fn keys(&self) -> &Arc<Keys> {
        &self.keys
    }

    /// Another place for objects of this repository, such as a directory of stripes.
    ///
    /// # Errors
    /// As [`open_storage`].
    pub fn open_place(&self, target: &str) -> Result<Box<dyn Storage>> {
        Ok(Box::new(EncryptedStorage::new(
            open_storage(target)?.into(),
            Arc::clone(&self.keys),
            Arc::clone(&self.stored),
        )))
    }

    /// Where the objects are.
    pub fn storage(&self) -> &dyn Storage {
        self.storage.as_ref()
    }

    /// Its id, by which two ways to one repository are known; None without a marker.
    ///
    /// # Errors
    /// `Damage` if the marker does not read; those of the storage.
    pub fn id(&self) -> Result<Option<String>> {
        if self.id.get().is_none()
            && let Some(marker) = read_marker(self.storage.as_ref())?
        {
            drop(self.id.set(marker.repository_id));
        }
        Ok(self.id.get().cloned())
    }

    /// Checks that the repository has not gone away since it was opened.
    ///
    /// # Errors
    /// `Repository` if it has; those of the storage.
    pub fn check_is_there(&self) -> Result<()> {
        if self.storage.discards() || has_marker(self.storage.as_ref())? {
            return Ok(());
        }
        Err(not_a_repository(self.storage.as_ref(), "its pagehaul-repository.json is gone"))
    }

    /// Names of all sources that have a backup, a fence or WAL, sorted.
    ///
    /// # Errors
    /// Those of the storage.
    pub fn sources(&self) -> Result<Vec<SourceName>> {
        let mut sources = Vec::new();
        for name in self.storage.list("")? {
            if let Ok(source) = name.parse::<SourceName>()
                && self.is_source(&source)?
            {
                sources.push(source);
            }
        }
        Ok(sources)
    }

    fn is_source(&self, source: &SourceName) -> Result<bool> {
        let is_one = |name: &String| name == "wal" || name.starts_with("identity-");
        Ok(self.storage.list(source.as_str())?.iter().any(is_one)
            || !self.storage.list(&sets_prefix(source))?.is_empty())
    }

    /// The source that is meant: the `named` one, or the only one there is.
    ///
    /// # Errors
    /// `Usage` if none is named and there are several, `Repository` if there is none; those of the storage.
    pub fn source_or_only(&self, named: Option<&SourceName>) -> Result<SourceName> {
        named.map_or_else(|| self.only_source(), |source| Ok(source.clone()))
    }

    fn only_source(&self) -> Result<SourceName> {
        let mut sources = self.sources()?;
        match sources.len() {
            1 => Ok(sources.remove(0)),
            0 => {
                let action = format!("find a source in {}", self.storage.describe());
                Err(Error::new(ErrorKind::Repository, action, "it has no backup yet"))
            }
            _ => {
                let names: Vec<_> = sources.iter().map(SourceName::as_str).collect();
                Err(Error::new(ErrorKind::Usage, "choose a source", "the repository has several")
                    .hint(format!("name one of: {}", names.join(", "))))
            }
        }
    }
}

/// What a new file system has at its root, what a process leaves that was killed as it made the repository, and
/// directories in which settings are tried.
fn may_be_in_empty_place(name: &str) -> bool {
    name == "lost+found"
        || name.starts_with(SCRATCH_PREFIX)
        || name.starts_with(&format!(".{MARKER}.")) && name.ends_with(".new")
}

/// Begins the name of a directory that tuning makes for its trials beside what is kept; it is no source's name.
pub const SCRATCH_PREFIX: &str = ".pagehaul-tune-";

fn not_a_repository(storage: &dyn Storage, cause: &str) -> Error {
    let action = format!("open repository {}", storage.describe());
    Error::new(ErrorKind::Repository, action, format!("not a pagehaul repository: {cause}")).hint(
        "give --repo the directory that holds pagehaul-repository.json, or an empty or new one to `pagehaul backup`",
    )
}

fn has_marker(storage: &dyn Storage) -> Result<bool> {
    read_marker(storage).map(|marker| marker.is_some())
}

fn read_marker(storage: &dyn Storage) -> Result<Option<Marker>> {
    let Some(bytes) = storage.read_small(MARKER, MARKER_BYTES_MAX)? else { return Ok(None) };
    let action = format!("read {MARKER} in {}", storage.describe());
    let bad = |cause: String| Error::new(ErrorKind::Damage, action.as_str(), cause).hint(DOCUMENT_HINT);
    let marker: Marker = serde_json::from_slice(&bytes).map_err(|cause| bad(cause.to_string()))?;
    if marker.format_version == FORMAT_VERSION {
        return Ok(Some(marker));
    }
    let version = marker.format_version;
    Err(bad(format!("format version {version} is not known to this build, which reads version {FORMAT_VERSION}")))
}

/// `<source>/sets`
pub fn sets_prefix(source: &SourceName) -> String {
    format!("{source}/sets")
}

/// The labels of all sets of `source` that there are, in whatever state.
///
/// # Errors
/// Those of the storage.
pub fn set_labels(storage: &dyn Storage, source: &SourceName) -> Result<Vec<BackupLabel>> {
    Ok(storage.list(&sets_prefix(source))?.iter().filter_map(|name| name.parse().ok()).collect())
}

/// `<source>/sets/<label>`
pub fn set_prefix(source: &SourceName, label: &BackupLabel) -> String {
    format!("{source}/sets/{label}")
}

/// Name of the commit object.
pub const MANIFEST_NAME: &str = "manifest.json";
/// Name of the file table object.
pub const FILE_TABLE_NAME: &str = "files.table";
/// Name of the running backup's lease.
pub const LEASE_NAME: &str = "in-progress";
/// Name of the object that says where the stripes go.
pub const PLAN_NAME: &str = "plan.json";

/// Name of the object with the checksums of a stripe's pages.
pub fn page_sums_name(stripe: u16) -> String {
    format!("pages-{stripe:04}.sums")
}

/// Name of the object with the digests of all frames.
pub const FRAME_DIGESTS_NAME: &str = "frames.sums";
/// Name of the object that says which frames the rows of parity are of.
pub const ROWS_NAME: &str = "rows.phs";

/// Name of a parity stripe's object.
pub fn parity_name(parity: u16) -> String {
    format!("parity-{parity:04}.phs")
}

/// Name of a stripe object.
pub fn stripe_name(stripe: u16) -> String {
    format!("stripe-{stripe:04}.phs")
}
