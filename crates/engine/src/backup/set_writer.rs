//! The set that a backup writes: its label, its lease, its stripes, its commit, and its removal when it fails.

use serde::{Deserialize, Serialize};

use super::report::StripeReport;
use crate::catalog::repository::{
    FILE_TABLE_NAME, LEASE_NAME, MANIFEST_NAME, PLAN_NAME, Repository, page_sums_name, set_prefix, sets_prefix,
    stripe_name,
};
use crate::catalog::tombstone::TOMBSTONE_NAME;
use crate::error::{Error, ErrorKind, Result};
use crate::format::file_table::FileTable;
use crate::format::manifest::{Manifest, ObjectDigest, StripeRecord, hex64};
use crate::format::page_sums::PageSumsHeader;
use crate::format::stripe::StripeHeader;
use crate::io::is_temporary_name;
use crate::limits::MANIFEST_BYTES_MAX;
use crate::pipeline::{Stripe, SumsObject, pause};
use crate::storage::{Lease, Storage, confirm, open_storage, read_small};
use crate::terms::{BackupKind, BackupLabel, SetId, SourceName, StripeIndex};

/// How often a new label is tried: one a second, and a repository has few backups that start in one second.
const LABEL_ATTEMPTS: usize = 10;
const PLAN_BYTES_MAX: u64 = 1024 * 1024;

/// Where the stripes of an unfinished set are, for whoever finds it.
#[derive(Debug, Serialize, Deserialize)]
struct StripePlaces {
    stripe_directories: Vec<Option<String>>,
}

/// A set that is not committed yet; dropping it removes everything that was written.
pub(super) struct SetWriter<'a> {
    storage: &'a dyn Storage,
    pub(super) source: SourceName,
    pub(super) label: BackupLabel,
    pub(super) set_id: SetId,
    prefix: String,
    places: Vec<StripePlace>,
    lease: Option<Box<dyn Lease>>,
    committed: bool,
}

struct StripePlace {
    directory: Option<String>,
    storage: Option<Box<dyn Storage>>,
}

impl<'a> SetWriter<'a> {
    /// Takes a label nobody has, holds its lease, and notes where the stripes will be. The label is later than that of
    /// `behind`, even if the clock was set back since.
    ///
    /// # Errors
    /// Those of the storage; `Conflict` if no label is free.
    pub(super) fn begin(
        repository: &'a Repository,
        source: &SourceName,
        kind: BackupKind,
        directories: Vec<Option<String>>,
        behind: Option<&BackupLabel>,
    ) -> Result<Self> {
        let storage = repository.storage();
        // Before the label: a directory that cannot be used must not leave a begun set behind.
        let mut places = Vec::with_capacity(directories.len());
        for directory in directories {
            let storage = directory.as_deref().map(open_storage).transpose()?;
            let directory = storage.as_ref().map(|storage| storage.describe());
            places.push(StripePlace { directory, storage });
        }
        let set_id = SetId::random()?;
        let (label, lease) = take_label(storage, source, kind, behind)?;
        let prefix = set_prefix(source, &label);
        let set = SetWriter {
            storage,
            source: source.clone(),
            label,
            set_id,
            prefix,
            places,
            lease: Some(lease),
            committed: false,
        };
        let plan =
            StripePlaces { stripe_directories: set.places.iter().map(|place| place.directory.clone()).collect() };
        let text = serde_json::to_vec_pretty(&plan)
            .map_err(|cause| Error::new(ErrorKind::Bug, "render the plan of the set", cause))?;
        storage.put_new(&set.name(PLAN_NAME), &text)?;
        Ok(set)
    }

    fn name(&self, object: &str) -> String {
        format!("{}/{object}", self.prefix)
    }

    fn place(&self, stripe: usize) -> &dyn Storage {
        self.places[stripe].storage.as_deref().unwrap_or(self.storage)
    }

    /// Creates all stripes, each with an object for the checksums of its pages if these have a size.
    ///
    /// # Errors
    /// Those of the storages.
    pub(super) fn create_stripes(&self, frame_size_bytes: u32, page_size_bytes: Option<u32>) -> Result<Vec<Stripe>> {
        let stripe_count = self.places.len() as u16;
        let create = |number: u16| {
            let object = self.place(usize::from(number)).create(&self.name(&stripe_name(number)))?;
            let header =
                StripeHeader { set_id: self.set_id, stripe: StripeIndex(number), stripe_count, frame_size_bytes };
            let sums = page_size_bytes.map(|page_size_bytes| {
                let header = PageSumsHeader { set_id: self.set_id, stripe: StripeIndex(number), page_size_bytes };
                SumsObject::begin(&header, self.storage.create(&self.name(&page_sums_name(number)))?)
            });
            Stripe::begin(header, object, sums.transpose()?)
        };
        (0..stripe_count).map(create).collect()
    }

    /// Finishes all stripes and their pages' checksums: from here on they are durable.
    ///
    /// # Errors
    /// Those of the storages.
    pub(super) fn finish_stripes(
        &self,
        stripes: Vec<Stripe>,
    ) -> Result<(Vec<StripeRecord>, Option<Vec<ObjectDigest>>)> {
        let mut sums = Vec::new();
        let finish = |(number, stripe): (usize, Stripe)| {
            let finished = stripe.finish()?;
            sums.push(finished.sums.map(|digest| ObjectDigest {
                name: page_sums_name(number as u16),
                size_bytes: digest.size_bytes,
                xxh3: hex64(digest.xxh3),
            }));
            Ok(StripeRecord {
                name: stripe_name(number as u16),
                directory: self.places[number].directory.clone(),
                size_bytes: finished.size_bytes,
                frame_count: finished.frame_count,
                index_xxh3: hex64(finished.index_xxh3),
            })
        };
        let records = stripes.into_iter().enumerate().map(finish).collect::<Result<_>>()?;
        Ok((records, sums.into_iter().collect()))
    }

    /// Where a stripe lies, for people.
    pub(super) fn stripe_path(&self, stripe: usize) -> String {
        format!("{}/{}", self.place(stripe).describe(), self.name(&stripe_name(stripe as u16)))
    }

    /// Where each of the finished stripes lies, and its size.
    pub(super) fn stripe_reports(&self, stripes: &[StripeRecord]) -> Vec<StripeReport> {
        let report = |(stripe, record): (usize, &StripeRecord)| StripeReport {
            path: self.stripe_path(stripe),
            bytes: record.size_bytes,
        };
        stripes.iter().enumerate().map(report).collect()
    }

    /// Opens a finished stripe to read it back; None with a store that keeps nothing.
    ///
    /// # Errors
    /// Those of the storage.
    pub(super) fn open_stripe(&self, stripe: usize) -> Result<Option<Box<dyn crate::storage::ObjectReader>>> {
        self.place(stripe).open(&self.name(&stripe_name(stripe as u16)))
    }

    /// Writes the file table.
    ///
    /// # Errors
    /// Those of the storage.
    pub(super) fn write_file_table(&self, table: &FileTable) -> Result<ObjectDigest> {
        let mut object = self.storage.create(&self.name(FILE_TABLE_NAME))?;
        let digest = table.write(self.set_id, &mut |bytes| object.append(bytes))?;
        object.finish()?;
        Ok(ObjectDigest { name: FILE_TABLE_NAME.to_owned(), size_bytes: digest.size_bytes, xxh3: hex64(digest.xxh3) })
    }

    /// Looks whether the store has every object of the set with all its bytes, before anything says that it is complete.
    ///
    /// # Errors
    /// `Repository`, naming the object; those of the storages.
    pub(super) fn confirm_objects<'o>(
        &self,
        stripes: &[StripeRecord],
        others: impl IntoIterator<Item = &'o ObjectDigest>,
    ) -> Result<()> {
        for (number, stripe) in stripes.iter().enumerate() {
            confirm(self.place(number), &self.name(&stripe.name), stripe.size_bytes)?;
        }
        others.into_iter().try_for_each(|object| confirm(self.storage, &self.name(&object.name), object.size_bytes))
    }

    /// Writes the manifest: the set exists from here on.
    ///
    /// # Errors
    /// Those of the storage, and if it does not have what it said to have stored; `Conflict` if the label was taken by
    /// somebody else.
    pub(super) fn commit(mut self, manifest: &Manifest) -> Result<()> {
        let bytes = manifest.to_bytes()?;
        // Who lost it has lost the set, too: whoever has it now may be removing what was written.
        self.lease.iter().try_for_each(|lease| lease.check_held())?;
        if !self.storage.put_new(&self.name(MANIFEST_NAME), &bytes)? {
            let action = format!("commit set {}", self.label);
            // Not ours to remove.
            self.committed = true;
            return Err(Error::new(ErrorKind::Conflict, action, "somebody else has committed a set of that label"));
        }
        // A store that cannot be asked has said that it is there, and what it says is durable.
        if let Ok(found) = read_small(self.storage, &self.name(MANIFEST_NAME), MANIFEST_BYTES_MAX)
            && !self.storage.discards()
            && found.as_ref() != Some(&bytes)
        {
            let cause = "the store said that the manifest was stored, and does not give it back";
            return Err(Error::new(ErrorKind::Repository, format!("commit set {}", self.label), cause));
        }
        self.committed = true;
        // The set is complete whether or not these go away.
        remove_scaffolding(self.storage, &self.prefix, &[PLAN_NAME.to_owned(), LEASE_NAME.to_owned()]);
        Ok(())
    }
}

impl Drop for SetWriter<'_> {
    fn drop(&mut self) {
        if !self.committed {
            let places: Vec<&dyn Storage> = (0..self.places.len()).map(|stripe| self.place(stripe)).collect();
            // What cannot be removed now is found and removed by the next backup.
            remove_set(self.storage, &self.prefix, &places).ok();
        }
        self.lease = None;
    }
}

/// A label whose lease we hold and whose place is empty.
fn take_label(
    storage: &dyn Storage,
    source: &SourceName,
    kind: BackupKind,
    behind: Option<&BackupLabel>,
) -> Result<(BackupLabel, Box<dyn Lease>)> {
    let before = behind.and_then(BackupLabel::moment);
    for attempt in 0..LABEL_ATTEMPTS {
        let now = jiff::Timestamp::now();
        let later = jiff::SignedDuration::from_secs(1 + attempt as i64);
        let least = before.and_then(|before| before.checked_add(later).ok());
        let label = BackupLabel::new(least.map_or(now, |least| least.max(now)), kind);
        let prefix = set_prefix(source, &label);
        if storage.list(&prefix)?.is_empty() {
            let lease = storage.lease(&format!("{prefix}/{LEASE_NAME}")).inspect_err(|_| {
                // Nobody else is in this prefix: another backup's lease would have been a None. It goes if it is empty.
                storage.remove_prefix(&prefix).ok();
            })?;
            if let Some(lease) = lease {
                return Ok((label, lease));
            }
        }
        pause(std::time::Duration::from_millis(1100));
    }
    Err(Error::new(ErrorKind::Conflict, format!("take a label for {source}"), "other backups take every one of them"))
}

/// Removes what interrupted backups of `source` left behind; gives their labels.
///
/// A set is dead if it has no manifest and its lease is free: leases end with their process. A set on a store that we
/// cannot clean up stays, and is listed as incomplete.
///
/// # Errors
/// Those of listing the repository.
pub(super) fn remove_leftovers(repository: &Repository, source: &SourceName) -> Result<Vec<BackupLabel>> {
    let storage = repository.storage();
    let mut removed = Vec::new();
    for name in storage.list(&sets_prefix(source))? {
        let Ok(label) = name.parse::<BackupLabel>() else { continue };
        let prefix = set_prefix(source, &label);
        // One that expire is removing has no manifest either, and is not ours to remove.
        let is_not_ours =
            |objects: &[String]| objects.iter().any(|object| object == MANIFEST_NAME || object == TOMBSTONE_NAME);
        let objects = storage.list(&prefix)?;
        if is_not_ours(&objects) {
            remove_scaffolding(storage, &prefix, &objects);
            continue;
        }
        let Some(_lease) = storage.lease(&format!("{prefix}/{LEASE_NAME}"))? else { continue };
        // It may have been committed between the two calls; its lease was free then.
        if is_not_ours(&storage.list(&prefix)?) {
            storage.delete(&format!("{prefix}/{LEASE_NAME}"))?;
            continue;
        }
        let plan = read_small(storage, &format!("{prefix}/{PLAN_NAME}"), PLAN_BYTES_MAX)?;
        let plan: Option<StripePlaces> = plan.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let directories = plan.map(|plan| plan.stripe_directories).unwrap_or_default();
        let stores: Result<Vec<Box<dyn Storage>>> =
            directories.iter().flatten().map(|directory| open_storage(directory)).collect();
        let stores = stores?;
        let places: Vec<&dyn Storage> = stores.iter().map(AsRef::as_ref).collect();
        if remove_set(storage, &prefix, &places).is_ok() {
            removed.push(label);
        }
    }
    Ok(removed)
}

/// Removes what only an unfinished set needs from the objects of one that is committed; the next backup finds what
/// stays.
fn remove_scaffolding(storage: &dyn Storage, prefix: &str, objects: &[String]) {
    for object in objects.iter().filter(|object| [PLAN_NAME, LEASE_NAME].contains(&object.as_str())) {
        storage.delete(&format!("{prefix}/{object}")).ok();
    }
}

/// Removes every object that a backup makes below `prefix`: the manifest first, so that no moment shows a set as
/// complete that is not; the lease last.
fn remove_set(storage: &dyn Storage, prefix: &str, places: &[&dyn Storage]) -> Result<()> {
    storage.delete(&format!("{prefix}/{MANIFEST_NAME}"))?;
    for place in places.iter().copied().chain([storage]) {
        for object in place.list(prefix)? {
            let is_stripe = object.starts_with("stripe-") && object.ends_with(".phs");
            let is_sums = object.starts_with("pages-") && object.ends_with(".sums");
            if is_stripe || is_sums || is_temporary_name(&object) {
                place.delete(&format!("{prefix}/{object}"))?;
            }
        }
    }
    storage.delete(&format!("{prefix}/{FILE_TABLE_NAME}"))?;
    // Before the plan goes: without it nobody finds these again.
    for place in places.iter().filter(|place| place.describe() != storage.describe()) {
        place.remove_prefix(prefix)?;
    }
    for object in [PLAN_NAME, LEASE_NAME] {
        storage.delete(&format!("{prefix}/{object}"))?;
    }
    storage.remove_prefix(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_behind_the_one_it_is_to_follow_whatever_the_clock_says() {
        let work = tempfile::tempdir().unwrap();
        let repository = Repository::open_or_create(&work.path().display().to_string()).unwrap();
        let source = "main".parse().unwrap();
        let future: BackupLabel = "29991231-235959I".parse().unwrap();
        let begin = |behind: Option<&BackupLabel>| {
            SetWriter::begin(&repository, &source, BackupKind::Full, vec![None], behind).unwrap()
        };
        let first = begin(Some(&future));
        let second = begin(Some(&future));
        assert_eq!((first.label.as_str(), second.label.as_str()), ("30000101-000000F", "30000101-000001F"));
        let past: BackupLabel = "20010101-000000I".parse().unwrap();
        let now = BackupLabel::new(jiff::Timestamp::now(), BackupKind::Full);
        assert!(begin(Some(&past)).label >= now && begin(None).label >= now);
    }
}
