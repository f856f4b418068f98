//! Verb: a backup of a PostgreSQL cluster, full or on top of others, from beginning backup mode to the commit; and a full
//! set made of a chain (`synthetic/`).
//!
//! [`backup`] reads like the runbook: each phase is one call, in the order in which it happens to the server.

mod begun;
#[cfg(test)]
mod chain_tests;
pub mod cluster_stream;
mod compare;
mod compose;
mod finished;
mod incremental;
mod lanes;
mod layouts;
mod lost_files;
mod page_check;
mod plan;
mod prior;
mod protected;
mod read_plan;
mod remote;
mod remote_changes;
mod report;
mod repositories;
mod run;
mod sent_files;
mod server;
mod server_end;
mod set_writer;
mod source_files;
mod standby;
mod stream_pages;
mod synthetic;
mod wal_read_back;
mod wal_stream;
mod zero_pages;

use std::time::Instant;

pub use protected::ProtectFor;
pub use report::{
    BackupOutcome, BackupPlan, BackupReport, BackupRequest, BackupStages, RepositoryReport, StripeReport,
};

pub use synthetic::{SynthesizeOutcome, SynthesizeReport, SynthesizeRequest, synthesize, synthesize_in};

use crate::catalog::Repository;
use crate::catalog::new_set::remove_leftovers;
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::ceiling::MachineMemory;
use crate::pipeline::usage::ProcessUsage;
use crate::pipeline::{Observer, Progress, beside, machine_cores};
use crate::storage::open_storage;
use crate::terms::BackupKind;
use begun::Begun;
use incremental::Incremental;
use run::Run;
use set_writer::SetWriter;

/// Backs up a cluster.
///
/// When it returns a report, the set is durable, complete and restorable by itself, WAL included. When it returns an
/// error, the server is out of backup mode, nothing of the set is left, and every earlier set is as it was.
///
/// # Errors
/// `Usage` and `Configuration` before anything starts; `Source`, `Repository`, `Conflict`, `Interrupted` after.
pub fn backup(request: &BackupRequest, observer: &dyn Observer) -> Result<BackupOutcome> {
    let settings = plan::settings(request, machine_cores())?;
    // What is mistyped in a target is to be known before the server is asked for anything.
    request.stripe_to.iter().chain(&request.parity_to).try_for_each(|target| open_storage(target).map(drop))?;
    protected::check_places(request)?;
    if request.dry_run && request.remote {
        let cause = "a remote server tells its size only when a backup begins";
        return Err(Error::new(ErrorKind::Usage, "plan without a backup", cause)
            .hint("leave out --dry-run or --explain, or run it on the server with --pgdata"));
    }
    server::refuse_overlaps(request)?;
    if request.dry_run {
        let pgdata = server::find_data_directory(request)?;
        let table = source_files::list_files(&pgdata, observer)?;
        let relations = layouts::of_directory(request, &pgdata, observer);
        let ceiling = plan::ceiling(request, &settings, &table, None, relations.as_ref());
        let (ceiling, _) = plan::with_ahead(ceiling, request, &settings, &MachineMemory::now())?;
        let content_bytes = (request.kind == BackupKind::Full).then(|| table.content_bytes());
        plan::stripe_directories(request, &settings, content_bytes, observer);
        return Ok(BackupOutcome::Planned(Box::new(plan::describe(request, &settings, &table, &ceiling))));
    }
    let repository = repositories::open_all(request)?;
    let report = backup_into(&repository, request, observer);
    repositories::remove_from_failed(&repository, &request.source);
    Ok(BackupOutcome::Done(Box::new(report?)))
}

/// Backs up a cluster into a repository that the caller opened; `request.repo` and `request.dry_run` are not looked at.
///
/// # Errors
/// As [`backup`].
pub fn backup_into(repository: &Repository, request: &BackupRequest, observer: &dyn Observer) -> Result<BackupReport> {
    let (started, usage) = (Instant::now(), ProcessUsage::now());
    let settings = plan::settings(request, machine_cores())?;
    repository.each(|copy| {
        for label in remove_leftovers(copy, &request.source)? {
            observer.note(&format!("removed what the interrupted backup {label} had left behind"));
        }
        Ok(())
    })?;
    let started_at = jiff::Timestamp::now();
    if request.remote {
        let remote = remote::Remote { repository, request, settings, observer };
        return remote.backup(started_at, started, &usage);
    }

    observer.phase("begin the backup on the server (checkpoint)");
    let mut server = server::begin(request, observer)?;
    server.refuse_set_back(repository, request)?;

    observer.phase("list the files");
    let pgdata = &server.pgdata;
    let read_layouts = || Ok(layouts::of_directory(request, pgdata, observer));
    let (table, relations) = beside(|| source_files::list_files(pgdata, observer), read_layouts)?;
    let incremental = Incremental::prepare(repository, request, &settings, &mut server, &table, observer)?;
    let ceiling = plan::ceiling(request, &settings, &table, incremental.facts(), relations.as_ref());
    let ceiling = plan::with_digests(ceiling, repository, &settings, table.content_bytes());
    let (ceiling, ahead_buffers) = plan::with_ahead(ceiling, request, &settings, &MachineMemory::now())?;
    let content_bytes = (incremental.kind == BackupKind::Full).then(|| table.content_bytes());
    let places = plan::stripe_directories(request, &settings, content_bytes, observer);
    let set = SetWriter::begin(repository, &request.source, incremental.kind, places, table.content_bytes(), None)?;
    let progress = Progress::default();
    let begun = Begun { relations, ..server.into_begun()? };
    let mut run = Run::new(request, repository, settings, begun, table, incremental, set, &progress, observer)?;

    observer.phase("read, encode and write the data files");
    run.store_data_files(ahead_buffers)?;
    run.check_zero_pages()?;

    observer.phase("store WAL and pg_control");
    run.store_tail()?;

    observer.phase("make the stripes durable, read WAL back, commit");
    let finished = run.finish()?;
    finished.commit(started_at, started, &usage, &ceiling)
}
