//! The sets and the WAL of one source as expire handles them: each call is one step, between which a crash may come,
//! and other hosts.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::RetentionInventory;
use super::plan::{Decisions, Fate, plan_wal};
use super::report::Outcome;
use crate::error::{Error, Result};
use crate::terms::BackupLabel;

/// WAL objects that are removed before it is looked whether a signal asked to stop: the oldest that are left, so that a run that is
/// killed leaves no hole but in these.
const WAL_AT_ONCE: usize = 64;

/// What expire needs of a repository.
pub(super) trait Shelf {
    /// All there is.
    fn inventory(&self) -> Result<RetentionInventory>;

    /// Puts the tombstone of a set, if it has none.
    fn bury(&self, label: &BackupLabel, reasons: &[String]) -> Result<()>;

    /// Who keeps a buried set from being removed: the holder of a lease, a pin.
    fn user_of(&self, label: &BackupLabel) -> Result<Option<&'static str>>;

    /// The sets that have a manifest, each with the sets it names; those whose manifest does not read with None.
    fn needs(&self) -> Result<BTreeMap<BackupLabel, Option<Vec<BackupLabel>>>>;

    /// Removes a buried set: manifest first, tombstone last.
    fn remove_set(&self, label: &BackupLabel) -> Result<()>;

    /// Removes a few WAL objects in any order; of each whether it went, false if it is protected and stays.
    fn remove_wal(&self, objects: &[String]) -> Result<Vec<Result<bool>>>;

    /// Fails if a signal asked to stop.
    fn go_on(&self) -> Result<()>;
}

/// What became of what was to go.
#[derive(Debug, Default)]
pub(super) struct Executed {
    /// Of each set.
    pub(super) sets: BTreeMap<BackupLabel, Outcome>,
    /// The WAL objects that were removed.
    pub(super) wal: Vec<String>,
    /// How many WAL objects stayed because they are protected.
    pub(super) protected_wal_count: u64,
    /// The first error, with later ones attached: what it kept from going is for the next expire.
    pub(super) failed: Option<Error>,
}

impl Executed {
    fn note(&mut self, error: Error) {
        match &mut self.failed {
            Some(first) => first.attach(error),
            None => self.failed = Some(error),
        }
    }
}

/// Does what was decided.
///
/// The order is the argument (ARCHITECTURE.md, "Who may remove what"): all tombstones; then leases; then, once more,
/// who needs whom; then each set, those that need others first; then the WAL that no set which is left anchors.
///
/// # Errors
/// `Interrupted`; those of the storage that leave nothing else to do. Others are in the result.
pub(super) fn execute(shelf: &dyn Shelf, inventory: &RetentionInventory, decisions: &Decisions) -> Result<Executed> {
    let mut done = Executed::default();
    let mut buried: Vec<&BackupLabel> = Vec::new();
    // Newest first: a set never outlives one that it needs.
    for set in decisions.sets.iter().rev().filter(|set| set.fate == Fate::Remove) {
        shelf.go_on()?;
        match shelf.bury(&set.label, &set.reasons) {
            Ok(()) => buried.push(&set.label),
            Err(error) => done.fail(&set.label, error),
        }
    }
    let mut unused: Vec<&BackupLabel> = Vec::new();
    for label in buried {
        match shelf.user_of(label) {
            Ok(None) => unused.push(label),
            Ok(Some(user)) => drop(done.sets.insert(label.clone(), Outcome::Postponed(user.to_owned()))),
            Err(error) => done.fail(label, error),
        }
    }
    if !unused.is_empty() {
        remove_sets(shelf, &unused, &mut done)?;
    }
    remove_wal(shelf, inventory, decisions, &mut done)?;
    Ok(done)
}

impl Executed {
    fn fail(&mut self, label: &BackupLabel, error: Error) {
        self.sets.insert(label.clone(), Outcome::Failed(error.message()));
        self.note(error);
    }
}

fn remove_sets(shelf: &dyn Shelf, unused: &[&BackupLabel], done: &mut Executed) -> Result<()> {
    let mut needs = shelf.needs()?;
    for label in unused {
        shelf.go_on()?;
        let needed_by = needs.iter().find_map(|(other, priors)| match priors {
            _ if other == *label => None,
            Some(priors) => priors.contains(label).then(|| format!("{other} needs it")),
            // What cannot be read may need anything.
            None => other.as_str().ends_with(['D', 'I']).then(|| format!("the manifest of {other} does not read")),
        });
        if let Some(why) = needed_by {
            done.sets.insert((*label).clone(), Outcome::Postponed(why));
            continue;
        }
        match shelf.remove_set(label) {
            Ok(()) => {
                done.sets.insert((*label).clone(), Outcome::Removed);
                needs.remove(*label);
            }
            // It may still be named by its manifest, so what it needs stays as well.
            Err(error) => done.fail(label, error),
        }
    }
    Ok(())
}

fn remove_wal(
    shelf: &dyn Shelf,
    inventory: &RetentionInventory,
    decisions: &Decisions,
    done: &mut Executed,
) -> Result<()> {
    let by_plan = decisions.sets.iter().filter(|set| set.anchors_wal).map(|set| &set.label);
    // Who uses a set that could not go may want the WAL behind it.
    let stayed = done.sets.iter().filter(|(_, outcome)| **outcome != Outcome::Removed).map(|(label, _)| label);
    let anchors: BTreeSet<&BackupLabel> = by_plan.chain(stayed).collect();
    let going = plan_wal(inventory, &anchors).into_iter().filter(|wal| wal.fate == Fate::Remove);
    let objects: Vec<String> = going.map(|wal| wal.object).collect();
    for few in objects.chunks(WAL_AT_ONCE) {
        shelf.go_on()?;
        for (object, outcome) in few.iter().zip(shelf.remove_wal(few)?) {
            match outcome {
                Ok(true) => done.wal.push(object.clone()),
                Ok(false) => done.protected_wal_count += 1,
                Err(error) => done.note(error),
            }
        }
    }
    Ok(())
}
