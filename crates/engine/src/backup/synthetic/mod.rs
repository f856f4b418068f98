//! Verb: a full set made of a chain, inside the repository and without a server.
//!
//! It is a backup whose files come from the stripes of a chain: the stages behind the readers, the writer of the set and the
//! commit are those of every backup. What it restores to is what the chain's newest set restores to.

mod bad_pages;
mod known_sums;
mod layouts;
pub(super) mod plan;
mod report;
pub(super) mod store;

use std::time::Instant;

pub use report::{SynthesizeOutcome, SynthesizeReport, SynthesizeRequest};

use super::plan::with_relations;
use super::report::Made;
use super::set_writer::SetWriter;
use super::set_writer::with_space_needed;
use crate::catalog::encryption_mark::{keep_encrypted, refuse_clear_of};
use crate::catalog::new_set::remove_leftovers;
use crate::catalog::page_sums::ChainSums;
use crate::catalog::reader_lease::{ReaderLease, hold_to_read};
use crate::catalog::{OpenSet, Repository, newest_set, open_set, read_manifest};
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::ceiling::MachineMemory;
use crate::pipeline::usage::ProcessUsage;
use crate::pipeline::{Observer, Progress, machine_cores};
use crate::storage::open_storage;
use crate::terms::{BackupKind, BackupLabel, SourceName};
use plan::Plan;
use store::{Finish, stripe_inputs};

/// Makes a full set of a chain.
///
/// When it returns a report, the set is durable and complete, needs no other one, and restores to the same bytes as the
/// chain's newest set. When it returns an error, nothing of it is left, and every other set is as it was.
///
/// # Errors
/// `Usage` and `Configuration` before anything is read; `Damage` if the chain does not read, naming set, stripe, frame and
/// file; `Repository`, `Conflict`, `Interrupted`.
pub fn synthesize(request: &SynthesizeRequest, observer: &dyn Observer) -> Result<SynthesizeOutcome> {
    synthesize_in(&Repository::open(&request.repo)?, request, observer)
}

/// The same in a repository that the caller opened; `request.repo` is not looked at.
///
/// # Errors
/// As [`synthesize`].
pub fn synthesize_in(
    repository: &Repository,
    request: &SynthesizeRequest,
    observer: &dyn Observer,
) -> Result<SynthesizeOutcome> {
    let (started, usage) = (Instant::now(), ProcessUsage::now());
    // What is mistyped in a target is to be known before anything is read.
    request.stripe_to.iter().chain(&request.parity_to).try_for_each(|target| open_storage(target).map(drop))?;
    let source = repository.source_or_only(request.source.as_ref())?;
    for label in remove_leftovers(repository, &source)? {
        observer.note(&format!("removed what the interrupted backup {label} had left behind"));
    }
    let label = match &request.label {
        Some(label) => label.clone(),
        None => newest_set(repository, &source)?,
    };
    let _leases = hold_chain(repository, &source, &label)?;
    if read_manifest(repository, &source, &label)?.kind == BackupKind::Full {
        return Ok(SynthesizeOutcome::AlreadyFull { source, label });
    }
    observer.phase(&format!("open the chain of set {label}"));
    let mut chain = open_set(repository, &source, &label, &request.stripe_from)?;
    refuse_problems(&chain, observer)?;
    let page_size_bytes = chain.manifest.postgres.block_size_bytes;
    let (sums, notes) = ChainSums::open(repository, &chain, page_size_bytes);
    notes.iter().for_each(|note| observer.note(note));
    let plan = Plan::make(request, &chain, machine_cores())?;
    let inputs = stripe_inputs(&mut chain);
    let (relations, inputs) = layouts::of_chain(&chain, inputs, &plan, observer);
    let ceiling = with_relations(plan.ceiling(repository, &chain, &sums), relations.as_ref());
    ceiling.check(request.max_memory_bytes, &MachineMemory::now())?;
    stay_encrypted(repository, &source, &chain)?;
    let (places, content_bytes) = (plan.stripe_directories(&chain, observer), chain.table.content_bytes());
    let set = SetWriter::begin(repository, &source, BackupKind::Full, places, content_bytes, Some(&label))?;
    let progress = Progress::default();
    let with_need = |error| with_space_needed(&progress, content_bytes, error);
    observer.phase(&format!("read the chain of set {label}, encode and write"));
    let mut stripes = set.create_stripes(plan.settings.frame_size_bytes, Some(page_size_bytes))?;
    let parity = set.create_parity(&plan.settings)?;
    let (what, who) = ((relations.as_ref(), parity.as_ref()), (&progress, observer));
    let how = store::Store::new(&plan, &sums, page_size_bytes, what, who);
    let stored = store::store(&chain, inputs, &how, &mut stripes).map_err(with_need)?;

    observer.phase("make the stripes durable, read WAL back, commit");
    let finish = Finish { set: &set, chain: &chain.manifest, plan: &plan, page_size_bytes, observer };
    let finished = finish.run(&stored.table, stripes, parity).map_err(with_need)?;
    let manifest = finish.manifest(&chain, &stored.table, finished, request.description.as_deref());
    let (stripes, parity_stripes) = set.all_reports(&manifest);
    set.commit(&manifest, observer).map_err(with_need)?;
    let made = Made {
        state: "complete",
        changes_found_by: None,
        changed_bytes: manifest.source_bytes,
        notes,
        stripes,
        parity_stripes,
        repositories: Vec::new(),
        manifest,
        codec: plan.codec,
        levels: stored.levels,
        settings: &plan.settings,
        stats: &stored.stats,
        ceiling: &ceiling,
        started,
        usage: &usage,
    };
    let (copied_bytes, chain_prior) = (stored.copied_bytes, chain.manifest.prior);
    let report = SynthesizeReport { synthesized_from: label, chain_prior, copied_bytes, set: made.report() };
    Ok(SynthesizeOutcome::Done(Box::new(report)))
}

/// What was encrypted is not written in clear.
fn stay_encrypted(repository: &Repository, source: &SourceName, chain: &OpenSet) -> Result<()> {
    chain.chain().try_for_each(|manifest| refuse_clear_of(manifest, repository.keys()))?;
    keep_encrypted(repository, source, repository.keys())
}

/// Holds leases in the set and in all that it needs; here one that cannot be made is an error, as a new set is to be written
/// into the same repository.
fn hold_chain<'a>(repository: &'a Repository, source: &SourceName, label: &BackupLabel) -> Result<ReaderLease<'a>> {
    let reading = hold_to_read(repository, source, label)?;
    match reading.note {
        None => Ok(reading.lease),
        Some(note) => Err(Error::new(ErrorKind::Repository, format!("make a full set of {label}"), note)),
    }
}

/// A missing, swapped or cut stripe is known before anything is written; a lost trailer is only noted.
fn refuse_problems(chain: &OpenSet, observer: &dyn Observer) -> Result<()> {
    for problem in &chain.problems {
        let of = &chain.manifest_of(problem.set).label;
        if problem.harmless {
            let (stripe, cause) = (problem.stripe, problem.error.message());
            let how = match problem.by_parity {
                true => "parity gives it back: run `pagehaul repair`",
                false => "its index was rebuilt from its frames",
            };
            observer.note(&format!("stripe {stripe} of set {of}: {cause}; {how}"));
            continue;
        }
        let action = format!("make a full set of {} (stripe {} of set {of})", chain.manifest.label, problem.stripe);
        let hint = problem.error.hint_text().unwrap_or(HINT_OF_DAMAGE);
        return Err(Error::new(problem.error.kind(), action, problem.error.message()).hint(hint));
    }
    Ok(())
}

/// What to do about a chain that does not read.
const HINT_OF_DAMAGE: &str = "nothing was made, and every set is as it was; `pagehaul verify` lists all damage; take a full \
                              backup of the server (pagehaul backup --type full)";
