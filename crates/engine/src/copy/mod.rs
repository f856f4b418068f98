//! Verb: sets and WAL of one repository, copied to another as they are and checked on the way, without decoding.
//!
//! A copy restores to the same bytes and has the same label and id. Only the manifest is made anew: it says where the stripes
//! are now. Whoever is killed leaves what a killed backup leaves, and the next copy removes it and goes on.

mod as_stored;
mod checks;
mod failures;
mod plan;
mod report;
mod set;
mod wal;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

pub use report::{Copied, CopiedSet, CopiedWal, CopyReport, CopyRequest, CopyStages, SetOutcome};

use crate::catalog::key_rotation::follow_rotations;
use crate::catalog::new_set::remove_leftovers;
use crate::catalog::parity_set::healed_memory_bytes;
use crate::catalog::reader_lease::{Reading, hold_to_read};
use crate::catalog::repository::{MANIFEST_NAME, set_prefix};
use crate::catalog::signed_head::refuse_unsigned;
use crate::catalog::{
    Repository, SetListing, SetState, digests_memory_bytes, encryption_mark, identity, list_sets, newest_set,
    read_manifest,
};
use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::Manifest;
use crate::limits::{STAGE_THREADS_MAX, TRANSFER_SIZE_BYTES_DEFAULT, TRANSFER_SIZE_BYTES_MAX};
use crate::pipeline::ceiling::{Ceiling, MachineMemory};
use crate::pipeline::usage::ProcessUsage;
use crate::pipeline::{CopyRun, CopySettings, Observer, Progress};
use crate::storage::{Uploads, open_storage, writer_bytes_max};
use crate::terms::{BackupLabel, SourceName};
use failures::Failures;
use plan::{There, Todo, chain_of, todo, what_is_there};
use set::SetCopier;
use wal::WalCopier;

/// Objects that are copied at the same time when nobody says otherwise: a store behind a network waits more than it works.
const LANES_DEFAULT: u16 = 4;
/// Smallest transfer buffer.
const TRANSFER_SIZE_BYTES_MIN: u32 = 64 * 1024;

/// Copies sets and WAL from one repository to another.
///
/// When it returns, every set that the report calls copied is durable and complete in the other repository, and what the
/// report calls failed is not there. Sets and WAL that were there before are as they were.
///
/// # Errors
/// `Usage` and `Configuration` before anything is written; `Conflict` if another cluster has the name there; `Repository`,
/// `Interrupted`. With chosen sets, what keeps one from being copied; otherwise that is in the result.
pub fn copy(request: &CopyRequest, observer: &dyn Observer) -> Result<Copied> {
    let from = Repository::open(&request.repo)?;
    if open_storage(&request.to)?.discards() {
        return Err(Error::new(ErrorKind::Usage, "copy to NUL", "it keeps nothing")
            .hint("`pagehaul verify` reads a backup and checks it without a copy"));
    }
    copy_between(&from, &Repository::open_or_create(&request.to)?, request, observer)
}

/// The same between repositories that the caller opened; the request's are not looked at.
///
/// # Errors
/// As [`copy`].
pub fn copy_between(
    from: &Repository,
    to: &Repository,
    request: &CopyRequest,
    observer: &dyn Observer,
) -> Result<Copied> {
    let (started, usage) = (Instant::now(), ProcessUsage::now());
    refuse_same(from, to)?;
    // What is mistyped in a target is to be known before anything is written.
    request.stripe_to.iter().try_for_each(|target| open_storage(target).map(drop))?;
    let settings = settings(request)?;
    let source = from.source_or_only(request.source.as_ref())?;
    let (parity_bytes, digests_bytes, largest_bytes) =
        memory_bytes(from, list_sets(from, &source)?, &request.stripe_from, settings.lanes);
    let uploads = Uploads { count: 1, largest_bytes };
    let writer_bytes = writer_bytes_max(request.stripe_to.iter(), uploads).max(to.storage().writer_bytes(uploads));
    let mut ceiling = settings.ceiling(writer_bytes);
    ceiling.add_parity(parity_bytes);
    ceiling.add_digests(digests_bytes);
    ceiling.check(request.max_memory_bytes, &MachineMemory::now())?;
    identity::follow(from, to, &source)?;
    encryption_mark::follow(from, to, &source)?;
    follow_rotations(from, to, &source)?;
    refuse_unsigned(to, &source)?;
    for label in remove_leftovers(to, &source)? {
        observer.note(&format!("removed what was left of {label}, which was never finished"));
    }

    let progress = Progress::default();
    let run = CopyRun::new(settings, &progress, observer, stopped);
    let (stripe_from, stripe_to) = (&request.stripe_from, &request.stripe_to);
    let copier = SetCopier { from, to, stripe_from, stripe_to, run: &run, observer };
    let there = what_is_there(list_sets(to, &source)?);
    let mut sets = Sets { copier, source: &source, there, progress: &progress, done: Vec::new(), notes: Vec::new() };
    let failures = Failures::default();
    if request.sets.is_empty() {
        sets.copy_all(&failures)?;
    } else {
        sets.copy_chosen(&request.sets)?;
    }
    let Sets { done, notes, .. } = sets;
    let wal = match request.wants_wal() {
        true => {
            observer.phase("copy the WAL archive");
            let to_as_stored = &to.with_keys(Arc::default());
            let copier = WalCopier { from, to, to_as_stored, source: &source, run: &run, progress: &progress };
            Some(copier.copy(&failures)?)
        }
        false => None,
    };
    let made = Made { from, to, source, sets: done, notes, wal, run: &run, ceiling: &ceiling, started, usage: &usage };
    Ok(Copied { report: made.report(), failed: failures.into_first() })
}

fn stopped() -> Error {
    Error::new(ErrorKind::Interrupted, "finish the copy", "a signal asked to stop")
        .hint("the next copy goes on with what is missing")
}

/// What reading a set through its parity takes at most, in so many lanes; what the digests of its frames take; and bytes of the largest stripe.
fn memory_bytes(from: &Repository, sets: Vec<SetListing>, stripe_from: &[String], lanes: u16) -> (u64, u64, u64) {
    let bytes = |set: SetListing| match set.state {
        SetState::Complete(manifest) => {
            let largest_bytes = manifest.all_stripes().map(|stripe| stripe.size_bytes).max().unwrap_or_default();
            let healed_bytes = healed_memory_bytes(from, &manifest, stripe_from, lanes);
            (healed_bytes, digests_memory_bytes(from, &manifest), largest_bytes)
        }
        _ => (0, 0, 0),
    };
    let most = |most: (u64, u64, u64), set: (u64, u64, u64)| (most.0.max(set.0), most.1.max(set.1), most.2.max(set.2));
    sets.into_iter().map(bytes).fold((0, 0, 0), most)
}

/// One repository under two names would wait for itself, or find its own sets.
fn refuse_same(from: &Repository, to: &Repository) -> Result<()> {
    if from.id()? != to.id()? {
        return Ok(());
    }
    let action = format!("copy {} to {}", from.storage().describe(), to.storage().describe());
    let cause = "they are the same repository, or one is a copy of the other made by other means";
    Err(Error::new(ErrorKind::Usage, action, cause).hint("give --to an empty or new directory, or another repository"))
}

fn settings(request: &CopyRequest) -> Result<CopySettings> {
    let lanes = request.readers.unwrap_or(LANES_DEFAULT);
    let transfer_size_bytes = request.transfer_size_bytes.unwrap_or(TRANSFER_SIZE_BYTES_DEFAULT);
    let range = |name: &str, value: u32, least: u32, most: u32| {
        if (least..=most).contains(&value) {
            return Ok(());
        }
        let hint = format!("{name} may be {least} to {most}");
        Err(Error::new(ErrorKind::Usage, format!("use {name} {value}"), "out of range").hint(hint))
    };
    range("--readers", lanes.into(), 1, STAGE_THREADS_MAX.into())?;
    range("--transfer-size", transfer_size_bytes, TRANSFER_SIZE_BYTES_MIN, TRANSFER_SIZE_BYTES_MAX)?;
    Ok(CopySettings { lanes, transfer_size_bytes, max_rate_bytes_per_s: request.max_rate_bytes_per_s })
}

/// The sets of one source on their way.
struct Sets<'a> {
    copier: SetCopier<'a>,
    source: &'a SourceName,
    there: BTreeMap<BackupLabel, There>,
    progress: &'a Progress,
    done: Vec<CopiedSet>,
    notes: Vec<String>,
}

impl Sets<'_> {
    /// Every complete set, oldest first. What is wrong with one keeps no other from its turn, unless that is built on it.
    fn copy_all(&mut self, failures: &Failures) -> Result<()> {
        let listed = list_sets(self.copier.from, self.source)?;
        let missing_bytes = listed.iter().map(|set| match &set.state {
            SetState::Complete(manifest) if !self.there.contains_key(&set.label) => manifest.stored_bytes,
            _ => 0,
        });
        self.progress.set_total(missing_bytes.sum());
        for set in listed {
            let failed = match set.state {
                SetState::Complete(manifest) => self.copy_listed(&manifest).err(),
                SetState::Damaged(error) => Some(error),
                SetState::Running | SetState::Incomplete | SetState::Expiring(_) => None,
            };
            let Some(error) = failed else { continue };
            if !matches!(error.kind(), ErrorKind::Damage | ErrorKind::Conflict) {
                return Err(error);
            }
            if self.has_expired(&set.label)? {
                self.note(&set.label, None, SetOutcome::Expired);
                continue;
            }
            self.note(&set.label, None, SetOutcome::Failed(error.message()));
            failures.note(error);
        }
        Ok(())
    }

    /// Copies a set that was listed as complete, if it is not there.
    fn copy_listed(&mut self, manifest: &Manifest) -> Result<()> {
        match todo(&self.there, self.source, &manifest.label, &manifest.set_id)? {
            Todo::Copy => self.copy_with_priors(&manifest.label)?,
            Todo::Nothing => self.note(&manifest.label, Some(manifest), SetOutcome::Skipped),
            Todo::Expired => self.note(&manifest.label, Some(manifest), SetOutcome::Expired),
        }
        Ok(())
    }

    /// Some sets, each with its priors.
    fn copy_chosen(&mut self, chosen: &[Option<BackupLabel>]) -> Result<()> {
        let from = self.copier.from;
        let label = |label: &Option<BackupLabel>| match label {
            Some(label) => Ok(label.clone()),
            None => newest_set(from, self.source),
        };
        let labels: Vec<BackupLabel> = chosen.iter().map(label).collect::<Result<_>>()?;
        // What does not read is told when it has its turn.
        let read = |label: &BackupLabel| read_manifest(from, self.source, label).ok();
        let manifests: Vec<Manifest> = labels.iter().filter_map(read).collect();
        let members: BTreeSet<&BackupLabel> =
            manifests.iter().flat_map(|manifest| manifest.prior.iter().chain([&manifest.label])).collect();
        let missing = members.into_iter().filter(|label| !self.there.contains_key(*label));
        self.progress.set_total(missing.filter_map(read).map(|manifest| manifest.stored_bytes).sum());
        labels.iter().try_for_each(|label| self.copy_with_priors(label))
    }

    /// Copies what is missing of a set and its priors; a lease in each keeps it from expiring meanwhile.
    fn copy_with_priors(&mut self, label: &BackupLabel) -> Result<()> {
        let from = self.copier.from;
        let Reading { lease: _lease, note } = hold_to_read(from, self.source, label)?;
        self.notes.extend(note);
        let manifest = read_manifest(from, self.source, label)?;
        for (member, set_id) in chain_of(&manifest)? {
            let had_turn = self.done.iter().find(|done| done.label == member);
            if let Some(SetOutcome::Failed(_)) = had_turn.map(|done| &done.outcome) {
                return Err(self.lacks(label, &member, "which could not be copied"));
            }
            let is_known = had_turn.is_some();
            match todo(&self.there, self.source, &member, &set_id)? {
                Todo::Copy => self.copy_one(&manifest, &member, &set_id)?,
                // A prior had its turn before; of a chosen set it is told.
                Todo::Nothing if is_known => {}
                Todo::Nothing => self.note(&member, None, SetOutcome::Skipped),
                Todo::Expired => {
                    let action = format!("copy set {label} of {}", self.source);
                    let cause = format!("set {member} has expired there and is being removed");
                    return Err(Error::new(ErrorKind::Conflict, action, cause)
                        .hint("when expire has removed it there, the next copy brings it again"));
                }
            }
        }
        Ok(())
    }

    /// Copies one set of the chain of `newest`.
    fn copy_one(&mut self, newest: &Manifest, label: &BackupLabel, set_id: &str) -> Result<()> {
        let manifest = match *label == newest.label {
            true => newest.clone(),
            false => self.read_prior(&newest.label, label)?,
        };
        if manifest.set_id != set_id {
            return Err(self.lacks(&newest.label, label, "and another set has that label now"));
        }
        self.copier.copy(&manifest)?;
        self.there.insert(label.clone(), There::Complete(manifest.set_id.clone()));
        self.note(label, Some(&manifest), SetOutcome::Copied);
        Ok(())
    }

    fn read_prior(&self, of: &BackupLabel, label: &BackupLabel) -> Result<Manifest> {
        let from = self.copier.from;
        let failed = match read_manifest(from, self.source, label) {
            Ok(manifest) => return Ok(manifest),
            Err(error) => error,
        };
        // A store that does not answer says nothing of the set.
        let is_there =
            from.storage().list(&set_prefix(self.source, label))?.iter().any(|object| object == MANIFEST_NAME);
        match failed.kind() {
            ErrorKind::Repository if is_there => Err(failed),
            _ => Err(self.lacks(of, label, &format!("which cannot be copied: {}", failed.cause()))),
        }
    }

    /// Why a set cannot be copied whose prior is not there.
    fn lacks(&self, label: &BackupLabel, prior: &BackupLabel, cause: &str) -> Error {
        let action = format!("copy set {label} of {}", self.source);
        Error::new(ErrorKind::Damage, action, format!("it needs set {prior}, {cause}"))
            .hint("bring that set back, or copy a set that does not need it: `pagehaul info` lists them")
    }

    /// Whether a set that was listed as complete is on its way out by now, or gone.
    fn has_expired(&self, label: &BackupLabel) -> Result<bool> {
        let listed = list_sets(self.copier.from, self.source)?;
        let found = listed.into_iter().find(|set| set.label == *label);
        Ok(found.is_none_or(|set| matches!(set.state, SetState::Expiring(_))))
    }

    fn note(&mut self, label: &BackupLabel, manifest: Option<&Manifest>, outcome: SetOutcome) {
        let (kind, stored_bytes) = (manifest.map(|set| set.kind), manifest.map(|set| set.stored_bytes));
        self.done.push(CopiedSet { label: label.clone(), kind, stored_bytes, outcome });
    }
}

/// What a report is made of.
struct Made<'a> {
    from: &'a Repository,
    to: &'a Repository,
    source: SourceName,
    sets: Vec<CopiedSet>,
    notes: Vec<String>,
    wal: Option<CopiedWal>,
    run: &'a CopyRun<'a>,
    ceiling: &'a Ceiling,
    started: Instant,
    usage: &'a ProcessUsage,
}

impl Made<'_> {
    fn report(self) -> CopyReport {
        let count =
            |is_wanted: fn(&SetOutcome) -> bool| self.sets.iter().filter(|set| is_wanted(&set.outcome)).count() as u64;
        let copied = self.sets.iter().filter(|set| set.outcome == SetOutcome::Copied);
        let set_copied_bytes: u64 = copied.filter_map(|set| set.stored_bytes).sum();
        let used = ProcessUsage::now().since(self.usage);
        let elapsed_s = self.started.elapsed().as_secs_f64();
        let stats = self.run.stats();
        CopyReport {
            from: self.from.storage().describe(),
            to: self.to.storage().describe(),
            set_copied_count: count(|outcome| *outcome == SetOutcome::Copied),
            set_skipped_count: count(|outcome| *outcome == SetOutcome::Skipped),
            set_failed_count: count(|outcome| matches!(outcome, SetOutcome::Failed(_))),
            set_copied_bytes,
            throughput_bytes_per_s: stats.last.bytes as f64 / elapsed_s.max(1e-9),
            stages: CopyStages { readers: stats.first, writers: stats.last },
            elapsed_s,
            memory_ceiling_bytes: self.ceiling.total_bytes(),
            rss_bytes_max: used.rss_bytes_max,
            cpu_user_s: used.cpu_user_s,
            cpu_system_s: used.cpu_system_s,
            source: self.source,
            sets: self.sets,
            wal: self.wal,
            notes: self.notes,
        }
    }
}
