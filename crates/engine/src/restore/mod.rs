//! Verb: a set back into an empty directory, ready to be started.
//!
//! [`restore`] reads like the runbook: everything that can be checked is checked before the first byte is written,
//! and pg_control comes last, so that a directory that is not whole never starts.

mod finish;
mod plan;
mod report;
mod target;

use std::time::Instant;

pub use report::{ArchiveMode, RecoveryTarget, RestoreReport, RestoreRequest, RestoreStages, SpaceNeed, TargetAction};

use crate::catalog::{OpenSet, Repository, newest_set, open_set};
use crate::error::{Error, ErrorKind, Result};
use crate::io;
use crate::pipeline::ceiling::{Ceiling, CeilingFacts, MachineMemory};
use crate::pipeline::frame_reader::FrameReader;
use crate::pipeline::limit::{Direction, find_limit};
use crate::pipeline::stats::PipelineStats;
use crate::pipeline::usage::ProcessUsage;
use crate::pipeline::{
    DecodeInput, Extent, FrameDamage, Observer, PipelineSettings, Progress, StripeInput, WriteRoot,
    decoder_state_bytes, machine_cores, run_decode,
};
use crate::terms::SetIndex;
use finish::{FileSystems, Finish};
use plan::SpecialFiles;
use target::Target;

/// Restores a set.
///
/// When it returns a report, every file is there bit for bit, its digest compared, and durable. When it returns an
/// error, the target has no pg_control and never starts; running the restore again starts over.
///
/// # Errors
/// `Usage`, `Repository`, `Damage`, `Target`, `Configuration` before the first byte; `Damage`, `Repository`, `Target`,
/// `Interrupted` after.
pub fn restore(request: &RestoreRequest, observer: &dyn Observer) -> Result<RestoreReport> {
    let (started, usage) = (Instant::now(), ProcessUsage::now());
    let repository = Repository::open(&request.repo)?;
    let mut set = choose_and_open(request, &repository, observer)?;
    let notes = refuse_damaged_stripes(&set)?;
    let special = SpecialFiles::find(&set.table)?;
    plan::check_links(&set.table)?;
    let places = plan::tablespaces(&set.table, &request.tablespace_map)?;
    let settings = plan::settings(request, &set, machine_cores())?;
    let ceiling = check_memory(request, &settings, &set)?;
    let target = Target::check(&request.target_dir, &places, request.owner.as_deref(), &set.manifest)?;
    let space = target.space(&set.table, &places);
    let archiving_off = plan::archiving_off(request.archive_mode, &set.manifest, &target.directory);
    let mut report = Report { request, settings, ceiling, space, archiving_off, notes, started, usage, sync_s: 0.0 };
    report.check_space()?;
    if request.dry_run {
        return Ok(report.render("planned", &set, &PipelineStats::default()));
    }

    observer.phase("prepare the target directory");
    let _locks = target.begin(&set.manifest, &places, special.group_access(&set.table))?;
    let file_systems = FileSystems::open(&target, &places)?;
    let root = open_root(&target, &set)?;
    target.create_tree(&root, &set.table, &places, &special)?;

    observer.phase("read, decode and write the files");
    let stripes = stripe_inputs(&mut set, &special);
    let (stats, stripes) = run_data_path(&set, settings, stripes, &root, &special, observer)?;

    observer.phase("write settings and labels, make everything durable, pg_control last");
    let mut reader = FrameReader::new(stripes);
    let finish = Finish {
        request,
        manifest: &set.manifest,
        table: &set.table,
        special,
        places: &places,
        target: &target,
        root: &root,
        archiving_off,
    };
    let control_file = finish.write_special_files(&mut reader)?;
    finish.set_times();
    let sync_started = Instant::now();
    file_systems.sync()?;
    finish.write_control_file(&control_file)?;
    report.sync_s = sync_started.elapsed().as_secs_f64();
    Ok(report.render("restored", &set, &stats))
}

fn choose_and_open(request: &RestoreRequest, repository: &Repository, observer: &dyn Observer) -> Result<OpenSet> {
    let source = match &request.source {
        Some(source) => source.clone(),
        None => repository.only_source()?,
    };
    let label = match &request.label {
        Some(label) => label.clone(),
        None => newest_set(repository, &source)?,
    };
    observer.phase(&format!("open set {label} of {source}"));
    open_set(repository, &source, &label, &request.stripe_from)
}

/// A set with a stripe that is missing, swapped or cut is refused before the first byte; a lost trailer is only noted.
fn refuse_damaged_stripes(set: &OpenSet) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    let mut refused: Option<Error> = None;
    for problem in &set.problems {
        if problem.harmless {
            notes.push(format!(
                "stripe {}{}: {}; its index was rebuilt from its frames",
                problem.stripe,
                of_prior(set, problem.set),
                problem.error.message()
            ));
            continue;
        }
        let of_prior = of_prior(set, problem.set);
        let action =
            format!("restore set {} (stripe {}{of_prior} at {})", set.manifest.label, problem.stripe, problem.place);
        // A stripe that cannot be looked at just now is not a damaged one: its error keeps its kind.
        let error = Error::new(problem.error.kind(), action, problem.error.message());
        match &mut refused {
            Some(first) => first.attach(error),
            None => {
                let hint = problem
                    .error
                    .hint_text()
                    .unwrap_or("`pagehaul verify` lists the files that are hit; nothing was written");
                refused = Some(error.hint(hint));
            }
        }
    }
    refused.map_or(Ok(notes), Err)
}

/// " of prior set LABEL", or nothing for the set itself.
fn of_prior(set: &OpenSet, index: SetIndex) -> String {
    if index == SetIndex::OWN { String::new() } else { format!(" of prior set {}", set.manifest_of(index).label) }
}

fn check_memory(request: &RestoreRequest, settings: &PipelineSettings, set: &OpenSet) -> Result<Ceiling> {
    let facts = CeilingFacts {
        file_count: set.table.entries().len() as u64,
        path_bytes: set.table.path_bytes(),
        content_bytes: set.table.content_bytes(),
        codec_state_bytes: decoder_state_bytes(),
        frame_count: Some(set.frame_count()),
        ..CeilingFacts::default()
    };
    let ceiling = Ceiling::of_restore(settings, &facts, set.table.run_count());
    ceiling.check(request.max_memory_bytes, &MachineMemory::now())?;
    Ok(ceiling)
}

fn open_root(target: &Target, set: &OpenSet) -> Result<WriteRoot> {
    let directory = io::open_directory(&target.directory)
        .map_err(|cause| Error::new(ErrorKind::Target, format!("open {}", target.directory.display()), cause))?;
    let (frame_size_bytes, _) = set.frame_sizes_bytes();
    Ok(WriteRoot { directory, owner: target.owner, frame_size_bytes })
}

/// The stripes with the extents of all files but the special ones.
fn stripe_inputs(set: &mut OpenSet, special: &SpecialFiles) -> Vec<StripeInput> {
    let extents = Extent::by_stripe(&set.table, &set.stripe_counts());
    let opened = set.stripes.iter_mut().zip(extents).filter_map(|(stripe, extents)| Some((stripe.take()?, extents)));
    let input = |(open, mut extents): (crate::catalog::OpenStripe, Vec<Extent>)| {
        extents.retain(|extent| !special.contains(extent.file()));
        let crate::catalog::OpenStripe { set, set_id, frame_size_bytes, stripe, object, index, .. } = open;
        StripeInput { set, set_id, frame_size_bytes, stripe, object, index, extents }
    };
    opened.map(input).collect()
}

fn run_data_path(
    set: &OpenSet,
    settings: PipelineSettings,
    stripes: Vec<StripeInput>,
    root: &WriteRoot,
    special: &SpecialFiles,
    observer: &dyn Observer,
) -> Result<(PipelineStats, Vec<StripeInput>)> {
    let progress = Progress::default();
    progress.set_total(set.table.content_bytes());
    let label = &set.manifest.label;
    let hint = format!(
        "the target is not complete and cannot be started; `pagehaul verify {} --set {label} --repo ...` lists all \
         damage; try an earlier set",
        set.manifest.source
    );
    let on_damage = |damage: FrameDamage| -> Result<()> {
        let files: Vec<String> = damage.files.iter().take(5).map(|file| set.table.path_text(*file)).collect();
        let action = format!(
            "restore set {label}: frame {} of stripe {}{} (byte {}), which holds {}",
            damage.sequence,
            damage.stripe,
            of_prior(set, damage.set),
            damage.offset.unwrap_or_default(),
            files.join(", ")
        );
        Err(Error::new(ErrorKind::Damage, action, damage.cause).hint(hint.as_str()))
    };
    let input = DecodeInput {
        settings,
        stripes: &stripes,
        table: &set.table,
        target: Some(root),
        on_damage: &on_damage,
        progress: &progress,
    };
    let outcome = run_decode(&input, &mut |live| {
        observer.progress(Direction::Restore, live);
        if observer.interrupted() {
            return Err(Error::new(ErrorKind::Interrupted, "finish the restore", "a signal asked to stop")
                .hint("the target cannot be started; running the restore again starts over"));
        }
        Ok(())
    })?;
    let mut wrong = outcome.totals.mismatches(&set.table);
    wrong.retain(|file| !special.contains(*file));
    if let Some(file) = wrong.first() {
        let action = format!("restore file {}", set.table.path_text(*file));
        let cause = format!("its bytes are not complete or its digest does not match ({} such files)", wrong.len());
        return Err(Error::new(ErrorKind::Damage, action, cause).hint(hint));
    }
    Ok((outcome.stats, stripes))
}

/// What the report is made of.
struct Report<'a> {
    request: &'a RestoreRequest,
    settings: PipelineSettings,
    ceiling: Ceiling,
    space: Vec<SpaceNeed>,
    archiving_off: bool,
    notes: Vec<String>,
    started: Instant,
    usage: ProcessUsage,
    sync_s: f64,
}

impl Report<'_> {
    fn check_space(&self) -> Result<()> {
        let Some(short) = self.space.iter().find(|need| need.needed_bytes > need.free_bytes) else { return Ok(()) };
        let mib = |bytes: u64| bytes as f64 / (1024.0 * 1024.0);
        let cause = format!(
            "{:.1} MiB are needed there and {:.1} MiB are free",
            mib(short.needed_bytes),
            mib(short.free_bytes)
        );
        Err(Error::new(ErrorKind::Target, format!("restore to the disk under {}", short.directory), cause)
            .hint("free space, or restore to another disk; nothing was written"))
    }

    fn render(self, state: &'static str, set: &OpenSet, stats: &PipelineStats) -> RestoreReport {
        let used = ProcessUsage::now().since(&self.usage);
        let elapsed_s = self.started.elapsed().as_secs_f64();
        let restored_bytes = set.table.content_bytes();
        RestoreReport {
            label: set.manifest.label.clone(),
            source: set.manifest.source.clone(),
            state,
            target_dir: self.request.target_dir.display().to_string(),
            elapsed_s,
            data_path_s: stats.elapsed_s,
            sync_s: self.sync_s,
            restored_bytes,
            stored_bytes: stats.first.bytes,
            throughput_bytes_per_s: restored_bytes as f64 / elapsed_s.max(1e-9),
            file_count: set.table.entries().len() as u64,
            readers: self.settings.readers,
            decoders: self.settings.encoders,
            file_writers: self.settings.writers,
            buffer_count: self.settings.buffer_count,
            transfer_size_bytes: self.settings.transfer_size_bytes,
            memory_ceiling_bytes: self.ceiling.total_bytes(),
            rss_bytes_max: used.rss_bytes_max,
            cpu_user_s: used.cpu_user_s,
            cpu_system_s: used.cpu_system_s,
            stages: RestoreStages { stripe_readers: stats.first, decoders: stats.middle, file_writers: stats.last },
            limit: find_limit(
                Direction::Restore,
                stats,
                f64::from(machine_cores()),
                self.settings.max_rate_bytes_per_s.is_some(),
            ),
            target: self.request.target,
            stop_lsn: set.manifest.postgres.stop_lsn,
            timeline: set.manifest.postgres.timeline,
            archiving_off: self.archiving_off,
            space: self.space,
            notes: self.notes,
        }
    }
}
