//! A source of a repository as [`Shelf`]: what is there, and the steps by which it goes.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::facts::{CompleteSet, RetentionInventory, SetContent, SetFacts, SourceDamage};
use super::load_wal::add_wal;
use super::plan::{Decisions, Fate};
use super::shelf::Shelf;
use crate::catalog::identity;
use crate::catalog::pin::PIN_NAME;
use crate::catalog::place_owner::Owner;
use crate::catalog::protection::{protections_of, protections_of_sets};
use crate::catalog::reader_lease::READER_PREFIX;
use crate::catalog::recovery_mark::RecoveryMark;
use crate::catalog::repository::{LEASE_NAME, MANIFEST_NAME, Repository, set_labels, set_prefix};
use crate::catalog::stripe_places::find_flaw;
use crate::catalog::tombstone::{TOMBSTONE_NAME, Tombstone};
use crate::catalog::{SetListing, SetState, list_sets, read_manifest};
use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::Manifest;
use crate::pipeline::Observer;
use crate::storage::{Storage, at_once, open_storage};
use crate::terms::{BackupKind, BackupLabel, SourceName};

/// One source of a repository.
pub(super) struct RepositoryShelf<'a> {
    pub(super) repository: &'a Repository,
    pub(super) source: &'a SourceName,
    pub(super) observer: &'a dyn Observer,
    pub(super) at: Timestamp,
}

impl RepositoryShelf<'_> {
    fn storage(&self) -> &dyn Storage {
        self.repository.storage()
    }

    fn prefix(&self, label: &BackupLabel) -> String {
        set_prefix(self.source, label)
    }

    /// The sets that were to go and have no manifest any more.
    pub(super) fn gone(&self, decisions: &Decisions) -> Result<Vec<BackupLabel>> {
        let going = decisions.sets.iter().filter(|set| set.fate == Fate::Remove);
        let mut gone = Vec::new();
        for set in going {
            if self.storage().open(&format!("{}/{MANIFEST_NAME}", self.prefix(&set.label)))?.is_none() {
                gone.push(set.label.clone());
            }
        }
        Ok(gone)
    }

    fn facts(&self, set: SetListing) -> Result<SetFacts> {
        let kind = kind_of(&set.label);
        let (manifest, is_expiring) = match &set.state {
            SetState::Complete(manifest) => (Some(manifest.as_ref()), false),
            SetState::Expiring(manifest) => (manifest.as_deref(), true),
            _ => (None, false),
        };
        let content = match (manifest, &set.state) {
            (Some(manifest), _) => SetContent::Complete(Box::new(self.complete(manifest)?)),
            (None, SetState::Damaged(error)) => SetContent::Unreadable(error.message()),
            (None, SetState::Running) => SetContent::Running,
            _ => SetContent::Unfinished,
        };
        let pin = set.pin.map(|pin| pin.reason.unwrap_or_default());
        let is_leased = self.is_leased(&set.label)?;
        Ok(SetFacts { label: set.label, kind, content, pin, protected_until: None, is_expiring, is_leased })
    }

    fn complete(&self, manifest: &Manifest) -> Result<CompleteSet> {
        let stamp = |text: &str| text.parse::<Timestamp>().ok();
        let started_at = stamp(&manifest.started_at);
        let finished_at = stamp(&manifest.finished_at).filter(|end| started_at.is_some_and(|start| start <= *end));
        let postgres = &manifest.postgres;
        Ok(CompleteSet {
            system_identifier: postgres.system_identifier.parse().unwrap_or_default(),
            timeline: postgres.timeline,
            start_lsn: postgres.start_lsn,
            stop_lsn: postgres.stop_lsn,
            finished_at,
            prior: manifest.prior.clone(),
            source_bytes: manifest.source_bytes,
            stored_bytes: manifest.stored_bytes,
            flaw: find_flaw(self.repository, manifest)?,
            damage: SourceDamage {
                pages: manifest.bad_pages.iter().map(|bad| (bad.path.clone(), bad.page)).collect(),
                has_more: manifest.bad_page_count > manifest.bad_pages.len() as u64,
            },
        })
    }

    /// Whether somebody holds the set, or a recovery replays from it that is not known to have ended.
    fn is_leased(&self, label: &BackupLabel) -> Result<bool> {
        let prefix = self.prefix(label);
        let objects = self.storage().list(&prefix)?;
        if objects.iter().filter_map(|object| RecoveryMark::parse(object)).any(|mark| mark.counts(self.at)) {
            return Ok(true);
        }
        for object in objects.iter().filter(|object| is_lease(object)) {
            if self.storage().is_leased(&format!("{prefix}/{object}"))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the tombstone that is there would remove what `own` does: it is what is believed once the manifest is gone.
    fn says_the_same(&self, own: &Tombstone) -> Result<bool> {
        match Tombstone::read(self.repository, self.source, &own.label) {
            Ok(found) => Ok(found.is_some_and(|found| found.removes_the_same(own))),
            Err(error) if error.kind() == ErrorKind::Damage => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes the directories of sets of which nothing else is left: the last step of a removal that was killed.
    ///
    /// # Errors
    /// Those of listing.
    pub(super) fn sweep_empty(&self) -> Result<()> {
        for label in set_labels(self.storage(), self.source)? {
            let prefix = self.prefix(&label);
            if self.storage().list(&prefix)?.is_empty() {
                // A backup that has just taken the label makes it again.
                self.storage().remove_prefix(&prefix).ok();
            }
        }
        Ok(())
    }

    /// Removes every object below the set's prefix in a directory that holds stripes of it.
    fn remove_stripes_in(&self, directory: &str, label: &BackupLabel) -> Result<()> {
        let storage = open_storage(directory)?;
        let prefix = self.prefix(label);
        if storage.list("")?.is_empty() {
            // Where a stripe was written there is at least the directory that held it.
            let action = format!("remove stripes of set {label} in {directory}");
            return Err(Error::new(ErrorKind::Repository, action, "there is nothing in that directory").hint(format!(
                "mount the disk and run expire again; if it is gone for good, remove {}/{prefix} by hand",
                self.storage().describe()
            )));
        }
        let objects = storage.list(&prefix)?;
        if objects.iter().any(|object| object == TOMBSTONE_NAME) {
            // It is the repository itself, which is cleared last: what else is to go is known by the tombstone.
            return Ok(());
        }
        let is_anothers = Owner::is_another(self.repository, storage.as_ref(), &prefix)?;
        let has_manifest = objects.iter().any(|object| object == MANIFEST_NAME);
        if is_anothers || has_manifest {
            let cause = if has_manifest {
                "a set of that label is there, with its manifest: the tombstone names a repository, not a directory of stripes"
            } else {
                "the stripes there are of a set of that label in another repository"
            };
            let action = format!("remove stripes of set {label} in {directory}");
            return Err(Error::new(ErrorKind::Conflict, action, cause).hint(format!(
                "nothing was removed there; if the set is to go from {}, remove its {prefix} by hand",
                self.storage().describe()
            )));
        }
        storage.abandon(&prefix).ok();
        at_once(objects, |object| storage.delete(&format!("{prefix}/{object}")))?;
        storage.remove_prefix(&prefix)
    }
}

fn is_lease(object: &str) -> bool {
    object == LEASE_NAME || object.starts_with(READER_PREFIX)
}

fn kind_of(label: &BackupLabel) -> BackupKind {
    match label.as_str().chars().last() {
        Some('D') => BackupKind::Differential,
        Some('I') => BackupKind::Incremental,
        _ => BackupKind::Full,
    }
}

impl Shelf for RepositoryShelf<'_> {
    fn inventory(&self) -> Result<RetentionInventory> {
        let sets = list_sets(self.repository, self.source)?;
        let mut sets = at_once(sets, |set| self.facts(set))?;
        let labels: Vec<BackupLabel> = sets.iter().map(|set| set.label.clone()).collect();
        let protections = protections_of_sets(self.repository, self.source, &labels);
        for (set, protection) in sets.iter_mut().zip(protections) {
            set.protected_until = protection.map(|protection| protection.until);
        }
        let mut inventory = RetentionInventory { sets, ..RetentionInventory::default() };
        for identity in identity::all(self.repository, self.source)? {
            inventory.clusters.push(identity.system_identifier()?);
        }
        add_wal(self.repository, self.source, &mut inventory)?;
        Ok(inventory)
    }

    fn bury(&self, label: &BackupLabel, reasons: &[String]) -> Result<()> {
        let is_buried = self.storage().list(&self.prefix(label))?.iter().any(|object| object == TOMBSTONE_NAME);
        if is_buried && self.storage().open(&format!("{}/{MANIFEST_NAME}", self.prefix(label)))?.is_none() {
            return Ok(());
        }
        let manifest = read_manifest(self.repository, self.source, label)?;
        let tombstone = Tombstone::new(&manifest, self.at, reasons.to_vec());
        if is_buried && !self.says_the_same(&tombstone)? {
            self.storage().delete(&format!("{}/{TOMBSTONE_NAME}", self.prefix(label)))?;
        }
        // Another expire may have been first: the same is said by either tombstone.
        if tombstone.put(self.repository, self.source)? || self.says_the_same(&tombstone)? {
            return Ok(());
        }
        let cause = "it has a tombstone that does not fit its manifest, and another one as soon as that is removed";
        Err(Error::new(ErrorKind::Conflict, format!("expire set {label}"), cause))
    }

    fn user_of(&self, label: &BackupLabel) -> Result<Option<&'static str>> {
        let prefix = self.prefix(label);
        if self.storage().list(&prefix)?.iter().any(|object| object == PIN_NAME) {
            return Ok(Some("somebody has pinned it"));
        }
        // Whoever takes a lease after this look sees the tombstone.
        Ok(self.is_leased(label)?.then_some("somebody uses it now"))
    }

    fn needs(&self) -> Result<BTreeMap<BackupLabel, Option<Vec<BackupLabel>>>> {
        let sets = list_sets(self.repository, self.source)?;
        let needs = sets.into_iter().filter_map(|set| match set.state {
            SetState::Complete(manifest) | SetState::Expiring(Some(manifest)) => {
                Some((set.label, Some(manifest.prior)))
            }
            SetState::Damaged(_) => Some((set.label, None)),
            _ => None,
        });
        Ok(needs.collect())
    }

    fn remove_set(&self, label: &BackupLabel) -> Result<()> {
        let prefix = self.prefix(label);
        // Whoever removed it meanwhile has done our work.
        let Some(tombstone) = Tombstone::read(self.repository, self.source, label)? else { return Ok(()) };
        self.observer.phase(&format!("remove {label}"));
        self.storage().delete(&format!("{prefix}/{MANIFEST_NAME}"))?;
        for directory in &tombstone.stripe_directories {
            self.remove_stripes_in(directory, label)?;
        }
        // Of repairs that died; what stays is for the bucket's own rule.
        self.storage().abandon(&prefix).ok();
        let mut objects = self.storage().list(&prefix)?;
        objects.retain(|object| object != TOMBSTONE_NAME);
        at_once(objects, |object| self.storage().delete(&format!("{prefix}/{object}")))?;
        self.storage().delete(&format!("{prefix}/{TOMBSTONE_NAME}"))?;
        self.storage().remove_prefix(&prefix)
    }

    fn remove_wal(&self, objects: &[String]) -> Result<Vec<Result<bool>>> {
        // The store would keep the bytes of those anyway, and only hide them.
        let protections = protections_of(self.repository, objects);
        at_once(objects.iter().zip(protections).collect(), |(object, protection)| {
            let is_free = protection.is_none();
            Ok(if is_free { self.storage().delete(object).map(|()| true) } else { Ok(false) })
        })
    }

    fn go_on(&self) -> Result<()> {
        if self.observer.interrupted() {
            return Err(Error::new(ErrorKind::Interrupted, "finish expire", "a signal asked to stop")
                .hint("what was begun is finished by the next `pagehaul expire --confirm`"));
        }
        Ok(())
    }
}
