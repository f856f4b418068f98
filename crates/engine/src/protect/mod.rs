//! Verb: sets and WAL that nobody can delete before a time, whatever credentials he has.
//!
//! Sets are protected in the order in which they are needed, and the manifest of each after everything else of it: at every
//! moment a manifest that is protected means that the set is, and all that it needs. Whoever is killed goes on the next time.

mod report;

use std::time::Instant;

use jiff::Timestamp;

pub use report::{ProtectReport, ProtectRequest, Protected, ProtectedObjects, ProtectedSet};

use crate::catalog::protection::{SetObjects, objects_of_set, objects_of_source, objects_of_wal};
use crate::catalog::{Repository, SetState, list_sets, newest_set, read_manifest, read_priors};
use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::Manifest;
use crate::pipeline::Observer;
use crate::storage::{ObjectLock, Protection, Storage, object_lock_of};
use crate::terms::{BackupLabel, SourceName};

/// Objects between two looks whether a signal asks to stop.
const OBJECTS_AT_ONCE: usize = 256;

/// Protects sets with those they need, and the WAL archive, at least until a time.
///
/// When it returns, every object that the report counts has shown that protection. Nothing is protected for less than before.
///
/// # Errors
/// `Usage` for a time that is past; `Configuration` if a place has no object lock, or an object is bound otherwise;
/// `Repository`, `Interrupted`; `Damage` if a set that was named is not whole. If none was named, that is in the result.
pub fn protect(request: &ProtectRequest, observer: &dyn Observer) -> Result<Protected> {
    let started = Instant::now();
    let wanted = Protection::new(request.until, request.mode);
    if wanted.until <= Timestamp::now() {
        return Err(Error::new(ErrorKind::Usage, format!("protect until {}", wanted.until), "that is past")
            .hint("give a later time, or a span from now on, such as --for 30d"));
    }
    let repository = Repository::open(&request.repo)?;
    // What cannot be protected is to be known before anything is.
    let work = Work { wanted, dry_run: request.dry_run, observer, home: repository.stored() };
    object_lock_of(work.home)?;
    let source = repository.source_or_only(request.source.as_ref())?;
    observer.phase(&format!("look at the sets of {source}"));
    let Chosen { sets, failed, notes } = Chosen::of(&repository, &source, &request.sets)?;
    for (_, objects) in &sets {
        objects.elsewhere.iter().try_for_each(|(place, _)| object_lock_of(place.as_ref()).map(drop))?;
    }
    observer.phase(&format!("protect what {source} needs besides its sets"));
    let shared = work.protect(work.home, &objects_of_source(&repository, &source)?)?;
    let sets = sets.iter().map(|(manifest, objects)| work.protect_set(manifest, objects)).collect::<Result<_>>()?;
    let wal = match request.wal {
        true => {
            observer.phase("protect the WAL archive");
            Some(work.protect(work.home, &objects_of_wal(&repository, &source)?)?)
        }
        false => None,
    };
    let report = ProtectReport {
        source,
        repo: repository.stored().describe(),
        until: wanted.until.to_string(),
        mode: wanted.mode,
        dry_run: request.dry_run,
        sets,
        shared,
        wal,
        notes,
        elapsed_s: started.elapsed().as_secs_f64(),
    };
    Ok(Protected { report, failed })
}

/// The sets that are meant, each behind those it needs.
#[derive(Default)]
struct Chosen {
    sets: Vec<(Manifest, SetObjects)>,
    /// What keeps some from being protected, if none was named.
    failed: Option<Error>,
    notes: Vec<String>,
}

impl Chosen {
    fn of(repository: &Repository, source: &SourceName, named: &[Option<BackupLabel>]) -> Result<Self> {
        let mut chosen = Chosen::default();
        for label in named {
            let label = match label {
                Some(label) => label.clone(),
                None => newest_set(repository, source)?,
            };
            chosen.add_with_priors(repository, read_manifest(repository, source, &label)?)?;
        }
        let all = if named.is_empty() { list_sets(repository, source)? } else { Vec::new() };
        for set in all {
            let added = match set.state {
                SetState::Complete(manifest) => chosen.add_with_priors(repository, *manifest),
                SetState::Damaged(error) => Err(error),
                SetState::Running | SetState::Incomplete | SetState::Expiring(_) => Ok(()),
            };
            match added {
                // One that is not whole keeps the others from nothing.
                Err(error) if error.kind() == ErrorKind::Damage => chosen.leave_out(&set.label, error),
                added => added?,
            }
        }
        if chosen.sets.is_empty() && chosen.failed.is_none() {
            let action = format!("protect sets of {source}");
            return Err(Error::new(ErrorKind::Repository, action, "there is no complete one")
                .hint("`pagehaul info` lists the sets and their states"));
        }
        Ok(chosen)
    }

    fn add_with_priors(&mut self, repository: &Repository, manifest: Manifest) -> Result<()> {
        let mut chain = vec![manifest];
        chain.extend(read_priors(repository, &chain[0])?);
        let mut found = Vec::new();
        for manifest in chain.into_iter().rev() {
            if self.sets.iter().all(|(other, _)| other.label != manifest.label) {
                let objects = objects_of_set(repository, &manifest)?;
                found.push((manifest, objects));
            }
        }
        self.sets.extend(found);
        Ok(())
    }

    fn leave_out(&mut self, label: &BackupLabel, error: Error) {
        self.notes.push(format!("set {label} is NOT protected: {}", error.message()));
        match &mut self.failed {
            Some(first) => first.attach(error),
            None => self.failed = Some(error),
        }
    }
}

struct Work<'a> {
    wanted: Protection,
    dry_run: bool,
    observer: &'a dyn Observer,
    home: &'a dyn Storage,
}

impl Work<'_> {
    fn protect_set(&self, manifest: &Manifest, objects: &SetObjects) -> Result<ProtectedSet> {
        self.observer.phase(&format!("protect {}", manifest.label));
        let mut changed_count = self.protect(self.home, &objects.at_home)?.changed_count;
        for (place, names) in &objects.elsewhere {
            changed_count += self.protect(place.as_ref(), names)?.changed_count;
        }
        let last = std::slice::from_ref(&objects.manifest);
        changed_count += self.protect(self.home, last)?.changed_count;
        let shown = object_lock_of(self.home)?.protections(last)?.into_iter().flatten().next();
        Ok(ProtectedSet {
            label: manifest.label.clone(),
            object_count: objects.count(),
            changed_count,
            protected_until: shown.map(|protection| protection.until.to_string()),
            mode: shown.map(|protection| protection.mode),
        })
    }

    fn protect(&self, place: &dyn Storage, names: &[String]) -> Result<ProtectedObjects> {
        let lock = object_lock_of(place)?;
        let mut done = ProtectedObjects { object_count: names.len() as u64, changed_count: 0 };
        for some in names.chunks(OBJECTS_AT_ONCE) {
            if self.observer.interrupted() {
                return Err(Error::new(ErrorKind::Interrupted, "protect the rest", "a signal asked to stop")
                    .hint("what is protected stays so; the same command goes on"));
            }
            done.changed_count += match self.dry_run {
                true => self.to_change(lock, some)?,
                false => lock.protect(some, self.wanted)?,
            };
        }
        Ok(done)
    }

    /// How many of the objects have less protection.
    fn to_change(&self, lock: &dyn ObjectLock, names: &[String]) -> Result<u64> {
        let now = Timestamp::now();
        let mut count = 0;
        for (name, found) in names.iter().zip(lock.protections(names)?) {
            let is_more = self.wanted.is_more_than(found, now);
            count += u64::from(is_more.map_err(|cause| self.wanted.bound_otherwise(name, &cause))?);
        }
        Ok(count)
    }
}
