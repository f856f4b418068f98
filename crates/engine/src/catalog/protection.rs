//! Which objects belong to a set, to its source and to the archive, for who protects them; and what protects a set.
//!
//! The manifest of a set is protected after everything else of it, so what protects the manifest protects the set.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::Serialize;

use super::key_rotation::wal_prefixes;
use super::repository::{FILE_TABLE_NAME, MANIFEST_NAME, MARKER, Repository, set_prefix};
use super::stripe_places::repair_number;
use super::wal_inventory::clusters;
use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::{Manifest, StripeRecord};
use crate::storage::{Protection, Storage, is_same_store, is_temporary_name, open_storage};
use crate::terms::{BackupLabel, SourceName};

/// The objects of one set.
pub struct SetObjects {
    /// Those in the repository, without the manifest.
    pub at_home: Vec<String>,
    /// Those in other places.
    pub elsewhere: Vec<(Box<dyn Storage>, Vec<String>)>,
    /// The manifest.
    pub manifest: String,
}

impl SetObjects {
    /// How many there are, with the manifest.
    pub fn count(&self) -> u64 {
        let elsewhere: usize = self.elsewhere.iter().map(|(_, names)| names.len()).sum();
        (self.at_home.len() + elsewhere + 1) as u64
    }
}

/// The objects of the set that `manifest` describes, where they were written; those that were repaired, too.
///
/// # Errors
/// `Damage` if one that the manifest names is not there, nor a repaired one; those of the storages.
pub fn objects_of_set(repository: &Repository, manifest: &Manifest) -> Result<SetObjects> {
    let prefix = set_prefix(&manifest.source, &manifest.label);
    let in_place = |storage: &dyn Storage| -> Result<Vec<String>> {
        let names = storage.list(&prefix)?;
        Ok(names.into_iter().filter(|name| is_of_set(name)).map(|name| format!("{prefix}/{name}")).collect())
    };
    let at_home = in_place(repository.stored())?;
    let places: BTreeSet<&String> = manifest.all_stripes().filter_map(|stripe| stripe.directory.as_ref()).collect();
    let mut elsewhere = Vec::new();
    for place in places {
        let storage = open_storage(place)?;
        if !is_same_store(storage.as_ref(), repository.stored()) {
            let names = in_place(storage.as_ref())?;
            elsewhere.push((storage, names));
        }
    }
    let set = SetObjects { at_home, elsewhere, manifest: format!("{prefix}/{MANIFEST_NAME}") };
    check_all_there(&set, manifest, &prefix)?;
    Ok(set)
}

/// Leases, pins, marks and tombstones come and go; the others are the set.
fn is_of_set(name: &str) -> bool {
    let is_copy = |of: &str| repair_number(of, name).is_some();
    let is_other = name == FILE_TABLE_NAME || is_copy(FILE_TABLE_NAME) || is_copy(MANIFEST_NAME);
    !is_temporary_name(name) && (name.ends_with(".phs") || name.ends_with(".sums") || is_other)
}

/// Half a set that is protected is none.
fn check_all_there(set: &SetObjects, manifest: &Manifest, prefix: &str) -> Result<()> {
    let all = || set.elsewhere.iter().flat_map(|(_, names)| names).chain(&set.at_home);
    let files: BTreeSet<&str> = all().filter_map(|name| name.strip_prefix(prefix)?.strip_prefix('/')).collect();
    let is_there = |stripe: &&StripeRecord| {
        files.contains(stripe.name.as_str()) || files.iter().any(|file| repair_number(&stripe.name, file).is_some())
    };
    let lost_stripe = manifest.all_stripes().find(|stripe| !is_there(stripe)).map(|stripe| &stripe.name);
    let mut others = manifest.other_objects().map(|object| &object.name);
    let lost = lost_stripe.or_else(|| others.find(|name| !files.contains(name.as_str())));
    lost.map_or(Ok(()), |name| {
        let action = format!("protect set {} of {}", manifest.label, manifest.source);
        Err(Error::new(ErrorKind::Damage, action, format!("{name} is not where it was written")).hint(
            "`pagehaul verify` says what is lost, and `pagehaul repair` puts it back if the set has parity; stripes that were \
             moved must be brought back first",
        ))
    })
}

/// What the sets and the WAL of a source need besides themselves: the marker of the repository, who the source is, its
/// newest signed head, and its data keys wrapped for others.
///
/// # Errors
/// Those of the storage.
pub fn objects_of_source(repository: &Repository, source: &SourceName) -> Result<Vec<String>> {
    let storage = repository.stored();
    let documents = |name: &String| name.starts_with("identity-") || name == "encrypted.json";
    let mut names = vec![MARKER.to_owned()];
    let of_source = storage.list(source.as_str())?.into_iter().filter(documents);
    names.extend(of_source.map(|name| format!("{source}/{name}")));
    // The newest head lists all sets; who has seen an older one and does not find it is warned, not misled.
    let heads = format!("{source}/heads");
    let newest = storage.list(&heads)?.into_iter().filter(|name| !is_temporary_name(name)).max();
    names.extend(newest.map(|name| format!("{heads}/{name}")));
    let root = format!("{source}/keys");
    for key_id in storage.list(&root)? {
        let prefix = format!("{root}/{}", key_id.trim_end_matches('/'));
        let wrapped = storage.list(&prefix)?.into_iter().filter(|name| !is_temporary_name(name));
        names.extend(wrapped.map(|name| format!("{prefix}/{name}")));
    }
    Ok(names)
}

/// The whole WAL archive of a source, of every cluster that has had its name.
///
/// # Errors
/// Those of the storage.
pub fn objects_of_wal(repository: &Repository, source: &SourceName) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for system_identifier in clusters(repository, source)? {
        for prefix in wal_prefixes(repository, source, system_identifier)? {
            let is_wal = |name: &String| name.ends_with(".phw") || name.ends_with(".php");
            let objects = repository.stored().list(&prefix)?.into_iter().filter(is_wal);
            names.extend(objects.map(|name| format!("{prefix}/{name}")));
        }
    }
    Ok(names)
}

/// What protects each of the sets now, in their order: that of its manifest. None if nothing does, or if the store does not
/// say: who only looks is not kept from it.
pub fn protections_of_sets(
    repository: &Repository,
    source: &SourceName,
    labels: &[BackupLabel],
) -> Vec<Option<Protection>> {
    let names = labels.iter().map(|label| format!("{}/{MANIFEST_NAME}", set_prefix(source, label))).collect::<Vec<_>>();
    protections_of(repository, &names)
}

/// The same of any objects of the repository.
pub fn protections_of(repository: &Repository, names: &[String]) -> Vec<Option<Protection>> {
    let ask = || {
        let lock = repository.stored().object_lock().filter(|_| !names.is_empty())?;
        lock.check_enabled().ok()?;
        lock.protections(names).ok()
    };
    let now = Timestamp::now();
    let found = ask().unwrap_or_else(|| vec![None; names.len()]);
    // What has run out protects nothing.
    found.into_iter().map(|protection| protection.filter(|protection| protection.until > now)).collect()
}

/// Objects of a WAL archive that are asked what protects them, at most: each is a request.
const WAL_LOOKED_AT_MAX: usize = 64;

/// What protects the WAL of a source, by its oldest and newest object and some between.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WalProtection {
    /// Objects of the archive.
    pub object_count: u64,
    /// Those that were asked for.
    pub looked_at_count: u64,
    /// Of those, the ones that nothing protects.
    pub unprotected_count: u64,
    /// Until when nobody can delete the others, in UTC; null if there are none.
    pub protected_until: Option<Timestamp>,
}

impl WalProtection {
    fn of(object_count: usize, asked: &[Option<Protection>]) -> Self {
        WalProtection {
            object_count: object_count as u64,
            looked_at_count: asked.len() as u64,
            unprotected_count: asked.iter().filter(|protection| protection.is_none()).count() as u64,
            protected_until: asked.iter().flatten().map(|protection| protection.until).min(),
        }
    }
}

/// What protects the WAL of a source; None if there is none, or the store does not say what it protects.
///
/// # Errors
/// Those of the storage.
pub fn protection_of_wal(repository: &Repository, source: &SourceName) -> Result<Option<WalProtection>> {
    if repository.stored().object_lock().is_none_or(|lock| lock.check_enabled().is_err()) {
        return Ok(None);
    }
    let names = objects_of_wal(repository, source)?;
    let asked: Vec<String> = spread(names.len(), WAL_LOOKED_AT_MAX).map(|place| names[place].clone()).collect();
    let protections = protections_of(repository, &asked);
    Ok((!names.is_empty()).then(|| WalProtection::of(names.len(), &protections)))
}

/// Up to `most` (at least two) of so many places, the first and the last among them.
fn spread(count: usize, most: usize) -> impl Iterator<Item = usize> {
    let chosen = count.min(most);
    (0..chosen).map(move |number| if chosen < 2 { 0 } else { number * (count - 1) / (chosen - 1) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::LockMode;

    #[test]
    fn what_is_looked_at_is_spread_and_has_both_ends() {
        for count in [0, 1, 2, 3, 63, 64, 65, 1000] {
            let places: Vec<usize> = spread(count, 64).collect();
            assert_eq!(places.len(), count.min(64));
            assert!(places.is_sorted_by(|one, two| one < two), "{count}: {places:?}");
            assert_eq!((places.first(), places.last()), ((count > 0).then_some(&0), count.checked_sub(1).as_ref()));
        }
    }

    #[test]
    fn wal_is_protected_until_the_first_of_it_is_not() {
        let until =
            |second| Some(Protection { until: Timestamp::from_second(second).unwrap(), mode: LockMode::Governance });
        let found = WalProtection::of(500, &[until(30), None, until(20), until(40)]);
        assert_eq!((found.object_count, found.looked_at_count, found.unprotected_count), (500, 4, 1));
        assert_eq!(found.protected_until, Some(Timestamp::from_second(20).unwrap()));
    }
}
