//! A set on its way to being complete: its lease, where its stripes go, its commit, and its removal when it fails.

use serde::{Deserialize, Serialize};

use super::manifest_lock::encrypted_manifest;
use super::pin::PIN_NAME;
use super::place_owner::Owner;
use super::reader_lease::check_are_kept;
use super::repository::{
    FILE_TABLE_NAME, FRAME_DIGESTS_NAME, LEASE_NAME, MANIFEST_NAME, PLAN_NAME, Repository, set_labels, set_prefix,
};
use super::signed_head::{sign_set, sign_without};
use super::stripe_places::{repair_number, repaired_name};
use super::tombstone::TOMBSTONE_NAME;
use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::{Manifest, ObjectDigest, StripeRecord};
use crate::limits::MANIFEST_BYTES_MAX;
use crate::storage::{Lease, Storage, at_once, confirm, is_same_store, is_temporary_name, open_storage};
use crate::terms::{BackupLabel, SourceName};

const PLAN_BYTES_MAX: u64 = 1024 * 1024;

/// Where the stripes of an unfinished set are, for whoever finds it.
#[derive(Debug, Default, Serialize, Deserialize)]
struct StripePlaces {
    stripe_directories: Vec<Option<String>>,
    /// What is said in each of them, but in the repository's own store; None in a plan that an earlier build made.
    #[serde(default)]
    owner: Option<String>,
}

/// Where one stripe goes.
pub struct StripePlace {
    directory: Option<String>,
    storage: Option<Box<dyn Storage>>,
}

impl StripePlace {
    /// One for each of `directories`, for stripes of `repository`; None is beside the manifest.
    ///
    /// # Errors
    /// `Usage` for a target that does not read; those of the storages.
    pub fn open_all(repository: &Repository, directories: Vec<Option<String>>) -> Result<Vec<Self>> {
        let open = |directory: Option<String>| {
            let storage = directory.as_deref().map(|target| repository.open_place(target)).transpose()?;
            let directory = storage.as_ref().map(|storage| storage.describe());
            Ok(StripePlace { directory, storage })
        };
        directories.into_iter().map(open).collect()
    }

    /// Whether nothing lies below `prefix` in those of `places` that are outside of `repository`: a set of the same label may be there, of another
    /// repository.
    ///
    /// # Errors
    /// Those of the storages.
    pub fn are_free(repository: &Repository, places: &[Self], prefix: &str) -> Result<bool> {
        let places = elsewhere(repository.storage(), places.iter().filter_map(StripePlace::storage));
        let found = at_once(places.collect(), |place: &dyn Storage| place.list(prefix))?;
        Ok(found.iter().all(Vec::is_empty))
    }

    /// The store; None is that of the manifest.
    pub fn storage(&self) -> Option<&dyn Storage> {
        self.storage.as_deref()
    }
}

/// A set that is not committed yet; dropping it removes everything that was written, unless somebody else has its lease or
/// has committed it.
pub struct NewSet<'a> {
    repository: &'a Repository,
    source: SourceName,
    storage: &'a dyn Storage,
    label: BackupLabel,
    prefix: String,
    places: Vec<StripePlace>,
    owner: Owner,
    lease: Option<Box<dyn Lease>>,
    committed: bool,
}

impl<'a> NewSet<'a> {
    /// Begins the set whose `lease` the caller holds, and notes where its stripes will be.
    ///
    /// # Errors
    /// Those of the storage; `Conflict` if there are objects of another repository's set where the stripes would go.
    pub fn begin(
        repository: &'a Repository,
        source: &SourceName,
        label: BackupLabel,
        lease: Box<dyn Lease>,
        places: Vec<StripePlace>,
    ) -> Result<Self> {
        let (storage, prefix) = (repository.storage(), set_prefix(source, &label));
        let (lease, source, owner) = (Some(lease), source.clone(), Owner::new(repository)?);
        let mut set = NewSet { repository, source, storage, label, prefix, places, owner, lease, committed: false };
        let stripe_directories = set.places.iter().map(|place| place.directory.clone()).collect();
        let plan = StripePlaces { stripe_directories, owner: Some(set.owner.owner.clone()) };
        storage.put_new(&set.name(PLAN_NAME), &json(&plan)?)?;
        let claimed = set.elsewhere().try_for_each(|place| set.claim(place));
        if let Err(error) = claimed {
            // Those that were claimed hold nothing yet, and the others nothing of this set.
            set.elsewhere().for_each(|place| set.give_back(place));
            set.places.clear();
            return Err(error);
        }
        Ok(set)
    }

    fn elsewhere(&self) -> impl Iterator<Item = &dyn Storage> {
        elsewhere(self.storage, self.places.iter().filter_map(StripePlace::storage))
    }

    /// Gives a place back that was claimed, or in which a claim failed; what others have there stays, and their directory.
    fn give_back(&self, place: &dyn Storage) {
        if self.has_claimed(place).is_ok_and(|has_claimed| has_claimed) {
            Owner::delete(place, &self.prefix).ok();
        }
        place.remove_prefix(&self.prefix).ok();
    }

    fn has_claimed(&self, place: &dyn Storage) -> Result<bool> {
        Ok(Owner::of(place, &self.prefix)?.is_some_and(|found| found.is(&self.owner)))
    }

    /// Takes the set's prefix in a place outside of the repository. Another repository may have a set of the same label there; what it has begun and
    /// not finished may not be seen.
    fn claim(&self, place: &dyn Storage) -> Result<()> {
        let taken = |cause: &str| {
            let action = format!("put stripes of set {} into {}", self.label, place.describe());
            Err(Error::new(ErrorKind::Conflict, action, cause)
                .hint("run it again; give each repository places of its own for its stripes (--stripe-to), or another name to its source"))
        };
        if place.discards() || self.has_claimed(place)? {
            return Ok(());
        }
        // Before it is claimed: what is there is not this set's, and may not go with it.
        if let Some(object) = place.list(&self.prefix)?.iter().find(|object| !is_temporary_name(object)) {
            return taken(&format!("{object} of another repository's set of that label is there"));
        }
        if !self.owner.put(place, &self.prefix)? {
            return taken("another repository has begun a set of that label there");
        }
        Ok(())
    }

    /// The name of one of its objects.
    pub fn name(&self, object: &str) -> String {
        format!("{}/{object}", self.prefix)
    }

    /// How many places it has: one for each stripe, then one for each parity stripe.
    pub fn place_count(&self) -> u16 {
        self.places.len() as u16
    }

    /// The store that a stripe goes to.
    pub fn place(&self, stripe: usize) -> &dyn Storage {
        self.places[stripe].storage().unwrap_or(self.storage)
    }

    /// The directory that a stripe goes to, as the manifest names it; None is beside the manifest.
    pub fn directory(&self, stripe: usize) -> Option<String> {
        self.places[stripe].directory.clone()
    }

    /// Looks whether the store has every object of the set with all its bytes, before anything says that it is complete.
    ///
    /// # Errors
    /// `Repository`, naming the object; those of the storages.
    pub fn confirm_objects<'o>(
        &self,
        stripes: impl IntoIterator<Item = &'o StripeRecord>,
        others: impl IntoIterator<Item = &'o ObjectDigest>,
    ) -> Result<()> {
        let stripes = stripes.into_iter().enumerate();
        let stripes = stripes.map(|(number, stripe)| (self.place(number), &stripe.name, stripe.size_bytes));
        let others = others.into_iter().map(|object| (self.storage, &object.name, object.size_bytes));
        at_once(stripes.chain(others).collect(), |(storage, name, size_bytes)| {
            confirm(storage, &self.name(name), size_bytes)
        })?;
        Ok(())
    }

    /// Writes the manifest: the set exists from here on.
    ///
    /// # Errors
    /// Those of the storage, and if it does not have what it said to have stored; `Conflict` if the label was taken by
    /// somebody else. The set is there if only its signature is missing.
    pub fn commit(mut self, manifest: &Manifest) -> Result<()> {
        let bytes = encrypted_manifest(self.repository.keys(), &self.name(MANIFEST_NAME), manifest)?.to_bytes()?;
        // Who lost it has lost the set, too: whoever has it now may be removing what was written.
        self.lease.iter().try_for_each(|lease| lease.check_held())?;
        if manifest.parity.is_some() {
            self.put_copy(&bytes)?;
        }
        if !self.storage.put_new(&self.name(MANIFEST_NAME), &bytes)? {
            let action = format!("commit set {}", self.label);
            // Not ours to remove.
            self.committed = true;
            return Err(Error::new(ErrorKind::Conflict, action, "somebody else has committed a set of that label"));
        }
        // A store that cannot be asked has said that it is there, and what it says is durable.
        if let Ok(found) = self.storage.read_small(&self.name(MANIFEST_NAME), MANIFEST_BYTES_MAX)
            && !self.storage.discards()
            && found.as_ref() != Some(&bytes)
        {
            let cause = "the store said that the manifest was stored, and does not give it back";
            return Err(Error::new(ErrorKind::Repository, format!("commit set {}", self.label), cause).hint(
                "nothing of this set is kept, earlier ones are not touched; look at what answers for the store",
            ));
        }
        self.committed = true;
        // While the lease says that it is not finished: a set that is not signed is nobody's else.
        let signed = self.repository.each(|copy| sign_set(copy, &self.source, &self.label, &bytes));
        // The set is complete whether or not these go away.
        remove_scaffolding(self.storage, &self.prefix, &[PLAN_NAME.to_owned(), LEASE_NAME.to_owned()]);
        signed
    }
}

impl NewSet<'_> {
    /// Puts the second copy of the manifest there, which says nothing without the first.
    fn put_copy(&self, bytes: &[u8]) -> Result<()> {
        let name = self.name(&repaired_name(MANIFEST_NAME, 1));
        if self.storage.put_new(&name, bytes)? {
            return confirm(self.storage, &name, bytes.len() as u64);
        }
        let action = format!("commit set {}", self.label);
        Err(Error::new(ErrorKind::Conflict, action, "somebody else has put a copy of a manifest there")
            .hint("run the backup again: the next set has another label"))
    }

    /// Whether what lies below the prefix is nobody else's. Who has lost the lease may find there what the next holder
    /// wrote; if there is none, and no set, the lease is taken again to remove what came too late.
    fn is_ours_to_remove(&mut self) -> bool {
        if self.lease.as_ref().is_some_and(|lease| lease.check_held().is_ok()) {
            return true;
        }
        self.lease = None;
        self.lease = self.storage.lease(&self.name(LEASE_NAME)).ok().flatten();
        self.lease.is_some() && matches!(self.storage.open(&self.name(MANIFEST_NAME)), Ok(None))
    }
}

impl Drop for NewSet<'_> {
    fn drop(&mut self) {
        if !self.committed && self.is_ours_to_remove() {
            let places = self.elsewhere();
            // Where nobody's claim is any more there is nobody's set: what came after it was removed is ours, who slept.
            let is_ours = |found: Option<Owner>| found.is_none_or(|found| found.is(&self.owner));
            // What cannot be removed now is found and removed by the next backup or copy.
            remove_set(self.storage, &self.prefix, places, &is_ours).ok();
        }
        self.lease = None;
    }
}

/// Takes a set back that was committed while one of its priors was going: without it, it restores nothing.
///
/// # Errors
/// `Conflict` if it was taken back; those of the storage.
pub fn withdraw_without_priors(repository: &Repository, manifest: &Manifest) -> Result<()> {
    check_are_kept(repository, &manifest.source, &manifest.prior).or_else(|gone| {
        repository.storage().delete(&format!("{}/{MANIFEST_NAME}", set_prefix(&manifest.source, &manifest.label)))?;
        sign_without(repository, &manifest.source, std::slice::from_ref(&manifest.label))?;
        Err(gone.more_hint("the backup that was built on it is of no use and was withdrawn; make another one"))
    })
}

/// Removes what interrupted backups and copies of `source` left behind; gives their labels.
///
/// A set is dead if it has no manifest and its lease is free: leases end with their process. A set on a store that we
/// cannot clean up stays, and is listed as incomplete.
///
/// # Errors
/// Those of listing the repository.
pub fn remove_leftovers(repository: &Repository, source: &SourceName) -> Result<Vec<BackupLabel>> {
    let storage = repository.storage();
    let mut removed = Vec::new();
    // One that expire is removing has no manifest either, and is not ours to remove.
    let is_not_ours =
        |objects: &[String]| objects.iter().any(|object| object == MANIFEST_NAME || object == TOMBSTONE_NAME);
    let looked = at_once(set_labels(storage, source)?, |label| {
        let objects = storage.list(&set_prefix(source, &label))?;
        Ok((label, objects))
    })?;
    for (label, objects) in looked {
        let prefix = set_prefix(source, &label);
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
        let plan = read_plan(storage, &prefix)?;
        let Ok(stores) = plan.open() else { continue };
        let places = elsewhere(storage, stores.iter().map(AsRef::as_ref));
        let owner = plan.owner.clone().map(|owner| Owner::named(owner, repository)).transpose()?;
        // Anybody who may add objects may have written the plan.
        let is_ours = |found: Option<Owner>| found.zip(owner.as_ref()).is_some_and(|(found, owner)| found.is(owner));
        if remove_set(storage, &prefix, places, &is_ours).is_ok() {
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

/// The plan of an unfinished set; that of a set without places elsewhere if it does not read.
fn read_plan(storage: &dyn Storage, prefix: &str) -> Result<StripePlaces> {
    let plan = storage.read_small(&format!("{prefix}/{PLAN_NAME}"), PLAN_BYTES_MAX)?;
    Ok(plan.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default())
}

impl StripePlaces {
    fn open(&self) -> Result<Vec<Box<dyn Storage>>> {
        self.stripe_directories.iter().flatten().map(|directory| open_storage(directory)).collect()
    }
}

/// Those of `places` that are not the repository's own store, each once.
fn elsewhere<'p>(
    repository: &'p dyn Storage,
    places: impl Iterator<Item = &'p dyn Storage>,
) -> impl Iterator<Item = &'p dyn Storage> {
    let mut seen = vec![repository];
    places.filter(move |place| {
        let is_new = !seen.iter().any(|known| is_same_store(*known, *place));
        seen.extend(is_new.then_some(*place));
        is_new
    })
}

fn json(document: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec_pretty(document).map_err(|cause| Error::new(ErrorKind::Bug, "render the plan of the set", cause))
}

/// Removes every object that a backup or a copy makes below `prefix`, here and in those of the `places` elsewhere of which `is_ours` says so, by what they say
/// whose they are: the manifest first, so that no moment shows a set as complete that is not; the lease last.
fn remove_set<'p>(
    storage: &'p dyn Storage,
    prefix: &str,
    places: impl Iterator<Item = &'p dyn Storage>,
    is_ours: &dyn Fn(Option<Owner>) -> bool,
) -> Result<()> {
    storage.delete(&format!("{prefix}/{MANIFEST_NAME}"))?;
    for place in places {
        if !is_ours(Owner::of(place, prefix)?) {
            // Nothing but what died on its way to a claim.
            place.sweep(prefix).ok();
            place.remove_prefix(prefix).ok();
            continue;
        }
        remove_stripes(place, prefix)?;
        // Before the plan goes: without it nobody finds these again.
        Owner::delete(place, prefix)?;
        place.remove_prefix(prefix)?;
    }
    remove_stripes(storage, prefix)?;
    // Only a set that is copied is pinned before it is complete.
    for object in [FILE_TABLE_NAME, FRAME_DIGESTS_NAME, PIN_NAME, PLAN_NAME, LEASE_NAME] {
        storage.delete(&format!("{prefix}/{object}"))?;
    }
    storage.remove_prefix(prefix)
}

fn remove_stripes(place: &dyn Storage, prefix: &str) -> Result<()> {
    // First: what is joined meanwhile has a name then. What stays is for the bucket's own rule.
    place.abandon(prefix).ok();
    for object in place.list(prefix)? {
        let is_stripe =
            ["stripe-", "parity-", "rows"].iter().any(|begin| object.starts_with(begin)) && object.ends_with(".phs");
        let is_sums = object.starts_with("pages-") && object.ends_with(".sums");
        let is_copy = [MANIFEST_NAME, FILE_TABLE_NAME].iter().any(|name| repair_number(name, &object).is_some());
        if is_stripe || is_sums || is_copy || is_temporary_name(&object) {
            place.delete(&format!("{prefix}/{object}"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::place_owner::OWNER_NAME;
    use super::*;

    struct Lost;

    impl Lease for Lost {
        fn check_held(&self) -> Result<()> {
            Err(Error::new(ErrorKind::Conflict, "go on", "somebody else has it"))
        }
    }

    struct Held;

    impl Lease for Held {}

    /// Two hosts whose backups begin in the same second have sets of the same label, each in its own repository.
    #[test]
    fn f11_repositories_that_share_a_place_for_stripes_remove_nothing_of_each_other() {
        let work = tempfile::tempdir().unwrap();
        let path = |name: &str| work.path().join(name).display().to_string();
        let (source, label): (SourceName, BackupLabel) = ("main".parse().unwrap(), "20260101-000000F".parse().unwrap());
        let [one, two] = ["one", "two"].map(|name| Repository::open_or_create(&path(name)).unwrap());
        let begin = |repository| {
            let places =
                StripePlace::open_all(repository, vec![Some(path("shared")), None, Some(path("shared"))]).unwrap();
            NewSet::begin(repository, &source, label.clone(), Box::new(Held), places)
        };
        let shared = open_storage(&path("shared")).unwrap();
        let first = begin(&one).unwrap();
        let stripe = first.name("stripe-0000.phs");
        let refused = || begin(&two).err().unwrap();
        assert_eq!(refused().kind(), ErrorKind::Conflict, "it is being written, and nothing is to be seen yet");
        assert!(shared.put_new(&stripe, b"of the first").unwrap());
        assert_eq!(refused().kind(), ErrorKind::Conflict);
        assert_eq!(shared.list(&first.prefix).unwrap(), [OWNER_NAME, "stripe-0000.phs"]);
        assert!(two.storage().list("main/sets").unwrap().is_empty());
        // As when it was removed as a dead one, and somebody else came before it woke.
        let own = Owner::of(shared.as_ref(), &first.prefix).unwrap();
        assert_eq!(own.as_ref(), Some(&first.owner));
        Owner::delete(shared.as_ref(), &first.prefix).unwrap();
        let others = Owner { owner: "another".to_owned(), repository: None };
        assert!(others.put(shared.as_ref(), &first.prefix).unwrap());
        drop(first);
        assert_eq!(shared.list("main/sets/20260101-000000F").unwrap(), [OWNER_NAME, "stripe-0000.phs"]);
        // And as when nobody did: what it joined then is nobody's.
        std::fs::remove_dir_all(work.path().join("shared")).unwrap();
        let slept = begin(&two).unwrap();
        assert_ne!(Owner::of(shared.as_ref(), &slept.prefix).unwrap(), own);
        Owner::delete(shared.as_ref(), &slept.prefix).unwrap();
        assert!(shared.put_new(&stripe, b"came too late").unwrap());
        drop(slept);
        assert!(shared.list("main/sets").unwrap().is_empty());
    }

    /// A copy has the label of its original, so whoever takes over from one that slept writes the same names.
    #[test]
    fn f42_who_lost_the_lease_removes_nothing_of_the_one_who_took_over() {
        let work = tempfile::tempdir().unwrap();
        let repository = Repository::open_or_create(&work.path().display().to_string()).unwrap();
        let source: SourceName = "main".parse().unwrap();
        let label: BackupLabel = "20260101-000000F".parse().unwrap();
        for is_committed in [false, true] {
            let places = StripePlace::open_all(&repository, vec![None]).unwrap();
            let slept = NewSet::begin(&repository, &source, label.clone(), Box::new(Lost), places).unwrap();
            let (manifest, stripe) = (slept.name(MANIFEST_NAME), slept.name("stripe-0000.phs"));
            assert!(repository.storage().put_new(&stripe, b"came too late, or another's").unwrap());
            if is_committed {
                assert!(repository.storage().put_new(&manifest, b"of the one who took over").unwrap());
            }
            drop(slept);
            for name in [&manifest, &stripe] {
                assert_eq!(repository.storage().open(name).unwrap().is_some(), is_committed, "{name}");
            }
        }
    }
}
