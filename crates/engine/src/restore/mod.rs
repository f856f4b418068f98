//! Verb: a set back into an empty directory, ready to be started.
//!
//! [`restore`] reads like the runbook: everything that can be checked is checked before the first byte is written,
//! and pg_control comes last, so that a directory that is not whole never starts.

mod archive_records;
mod databases;
mod delta;
mod end_of_set;
mod finish;
mod plan;
mod recovery;
mod recovery_plan;
mod recovery_reach;
mod recovery_settings;
pub mod recovery_target;
mod recovery_walk;
mod report;
mod target;

use std::path::Path;
use std::time::Instant;

pub use databases::LeftOutDatabase;
pub use delta::DeltaReport;
pub use recovery_target::{RecoveryTarget, TargetAction, TargetTime, TargetTimeline};
pub use report::{ArchiveMode, RecoveryReport, RestoreReport, RestoreRequest, RestoreStages, SpaceNeed};

use crate::catalog::reader_lease::{ReaderLease, hold_to_read};
use crate::catalog::{OpenSet, Repository, open_set};
use crate::error::{Error, ErrorKind, Result};
use crate::format::file_table::FileTable;
use crate::io;
use crate::pipeline::ceiling::{Ceiling, CeilingFacts, MachineMemory};
use crate::pipeline::frame_reader::FrameReader;
use crate::pipeline::limit::{Direction, find_limit};
use crate::pipeline::stats::PipelineStats;
use crate::pipeline::usage::ProcessUsage;
use crate::pipeline::{
    DecodeInput, Extent, FrameDamage, Mount, Observer, OldSums, PipelineSettings, Progress, StripeInput, WriteRoot,
    decoder_state_bytes, machine_cores, run_decode,
};
use crate::terms::{BackupLabel, FileId, SetIndex, SourceName};
use delta::{Delta, DeltaCheck, OldTarget, Reuse};
use finish::{FileSystems, Finish};
use plan::{SpecialFiles, TablespacePlace};
use recovery::Recovery;
use target::{Target, TargetLocks};

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
    let source = repository.source_or_only(request.source.as_ref())?;
    observer.phase("choose the set");
    let recovery = recovery::prepare(request, &repository, &source)?;
    let _lease = lease(&repository, &source, &recovery.label, observer)?;
    observer.phase(&format!("open set {} of {source}", recovery.label));
    let mut set = open_set(&repository, &source, &recovery.label, &request.stripe_from)?;
    let left_out = databases::leave_out(&mut set.table, &set.manifest, &request.include_databases)?;
    let notes = check_stripes_and_pages(&set, &left_out)?;
    let special = SpecialFiles::find(&set.table)?;
    plan::check_links(&set.table)?;
    let places = plan::tablespaces(&set.table, &request.tablespace_map)?;
    let settings = plan::settings(request, &set, machine_cores())?;
    let ceiling = check_memory(request, &settings, &set)?;
    let (target, old) = check_target(request, &repository, &set, &places)?;
    recovery.check(request, &set.manifest, target.owner)?;
    let zeros_are_holes = !left_out.is_empty();
    let space = target.space(&set.table, &places, old.as_ref(), zeros_are_holes);
    let archiving_off = plan::archiving_off(request.archive_mode, &set.manifest, &target.directory);
    let mut report = Report {
        request,
        recovery: &recovery,
        settings,
        ceiling,
        space,
        left_out,
        archiving_off,
        notes,
        started,
        usage,
        sync_s: 0.0,
        delta: None,
    };
    report.check_space()?;
    if request.dry_run {
        return Ok(report.render("planned", &set, &PipelineStats::default()));
    }

    observer.phase("prepare the target directory");
    let marked = recovery.mark(&repository, &source, &target.directory, observer);
    let _locks = take_target(&target, old.as_ref(), &set, &special, &places)?;
    let file_systems = FileSystems::open(&target, &places)?;
    let root = open_root(&target, &set, &places, zeros_are_holes)?;
    let (table, to) = (&set.table, &places[..]);
    let delta = Delta { target: &target, root: &root, table, special: &special, places: to, settings };
    let mut reuse = delta.begin(old.as_ref(), observer)?;

    observer.phase("read, decode and write the files");
    let stripes = stripe_inputs(&mut set, &special, reuse.as_mut());
    let (stats, stripes) = run_data_path(&set, settings, stripes, &root, &special, reuse.as_ref(), observer)?;

    observer.phase("write settings and labels, make everything durable, pg_control last");
    let finish = Finish {
        recovery: recovery.settings.as_ref(),
        end_of_set: recovery.end_of_set(&set.manifest, &target.directory)?,
        manifest: &set.manifest,
        table: &set.table,
        special,
        places: &places,
        target: &target,
        root: &root,
        archiving_off,
    };
    report.sync_s = make_startable(&finish, stripes, &file_systems, reuse.is_some(), observer)?;
    report.tell_of(reuse, &set.table);
    marked.keep();
    Ok(report.render("restored", &set, &stats))
}

/// The set that [`restore`] would take: the one that is named, or the newest that leads to the recovery target.
///
/// # Errors
/// `Usage`, `Repository`, `Damage`: as [`restore`] before the first byte.
pub fn choose_set(request: &RestoreRequest) -> Result<BackupLabel> {
    let repository = Repository::open(&request.repo)?;
    let source = repository.source_or_only(request.source.as_ref())?;
    Ok(recovery::prepare(request, &repository, &source)?.label)
}

/// Marks the target as one that is being restored to, and locks it.
fn take_target(
    target: &Target,
    old: Option<&OldTarget>,
    set: &OpenSet,
    special: &SpecialFiles,
    places: &[TablespacePlace],
) -> Result<TargetLocks> {
    let group_access = special.group_access(&set.table);
    match old {
        Some(old) => old.begin(target, &set.manifest, group_access),
        None => target.begin(&set.manifest, places, group_access),
    }
}

/// Writes what comes last: the special files, and pg_control when all else is durable. Gives the seconds that took.
fn make_startable(
    finish: &Finish<'_>,
    stripes: Vec<StripeInput>,
    file_systems: &FileSystems,
    had_files: bool,
    observer: &dyn Observer,
) -> Result<f64> {
    let control_file = finish.write_special_files(&mut FrameReader::new(stripes))?;
    finish.set_times();
    let sync_started = Instant::now();
    file_systems.sync(observer)?;
    if had_files {
        delta::remove_aside(&finish.target.directory)?;
    }
    finish.write_control_file(&control_file)?;
    Ok(sync_started.elapsed().as_secs_f64())
}

/// Keeps expire from removing the set while it is read; that it cannot is a note.
fn lease<'a>(
    repository: &'a Repository,
    source: &SourceName,
    label: &BackupLabel,
    observer: &dyn Observer,
) -> Result<ReaderLease<'a>> {
    let reading = hold_to_read(repository, source, label)?;
    if let Some(note) = &reading.note {
        observer.note(note);
    }
    Ok(reading.lease)
}

/// Replay mends a damaged page only if WAL has a whole image of it.
fn note_of_bad_pages(set: &OpenSet) -> Option<String> {
    let count = set.manifest.bad_page_count;
    (count > 0).then(|| {
        format!(
            "{count} pages of the source were damaged when set {} was made, and are so in it; an older set (--set) with \
             archived WAL may still have them whole",
            set.manifest.label
        )
    })
}

fn note_of_lost_files(set: &OpenSet) -> Option<String> {
    let count = set.manifest.lost_file_count;
    (count > 0).then(|| {
        format!(
            "{count} files of the source were lost when set {} was made, and it is without them; an older set (--set) with \
             archived WAL may still have them",
            set.manifest.label
        )
    })
}

/// Applies the rules of a target: an empty one, or with `--delta` one that may be written over.
fn check_target(
    request: &RestoreRequest,
    repository: &Repository,
    set: &OpenSet,
    places: &[TablespacePlace],
) -> Result<(Target, Option<OldTarget>)> {
    let (directory, owner, manifest) = (request.target_dir.as_path(), request.owner.as_deref(), &set.manifest);
    let stripe_from = if request.delta { &request.stripe_from[..] } else { &[] };
    let read_from = delta::read_from(set, &repository.storage().describe(), stripe_from);
    if !request.delta {
        return Ok((Target::check(directory, places, &read_from, owner, manifest)?, None));
    }
    let (table, force) = (&set.table, request.force);
    OldTarget::check(&DeltaCheck { directory, places, table, manifest, read_from: &read_from, owner, force })
}

/// A set with a stripe that is missing, swapped or cut is refused before the first byte; a lost trailer is only noted.
/// Pages that were damaged in the source are noted as well.
fn check_stripes_and_pages(set: &OpenSet, left_out: &[LeftOutDatabase]) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    let mut refused: Option<Error> = None;
    for problem in &set.problems {
        if problem.by_parity {
            notes.push(format!(
                "stripe {}{}: {}; parity gives it back: run `pagehaul repair`",
                problem.stripe,
                of_prior(set, problem.set),
                problem.error.message()
            ));
            continue;
        }
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
    notes.extend(note_of_bad_pages(set));
    notes.extend(note_of_lost_files(set));
    notes.extend(databases::note_of_replay(left_out, &set.manifest));
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
        codec_state_bytes: decoder_state_bytes(set.may_hold_page_frames()),
        frame_count: Some(set.frame_count()),
        reads_from_elsewhere: set.is_remote(),
        ..CeilingFacts::default()
    };
    let mut ceiling = Ceiling::of_restore(settings, &facts, set.table.run_count());
    ceiling.add_parity(set.parity_memory_bytes());
    ceiling.add_digests(set.digests_bytes());
    ceiling.add_decryption(settings.readers, set.decryption_bytes());
    if request.delta {
        let sums = OldSums::memory_bytes(&set.table, set.frame_sizes_bytes().0);
        let lists = set.table.entries().len() as u64 * (size_of::<FileId>() as u64 + 3);
        ceiling.add("sums of what is in the target".to_owned(), sums + lists);
    }
    ceiling.check(request.max_memory_bytes, &MachineMemory::now())?;
    Ok(ceiling)
}

fn open_root(target: &Target, set: &OpenSet, places: &[TablespacePlace], zeros_are_holes: bool) -> Result<WriteRoot> {
    let open = |path: &Path| {
        io::open_directory(path)
            .map_err(|cause| Error::new(ErrorKind::Target, format!("open {}", path.display()), cause))
    };
    let mount =
        |place: &TablespacePlace| Ok(Mount { path: set.table.path(place.link).to_vec(), directory: open(&place.to)? });
    let (frame_size_bytes, _) = set.frame_sizes_bytes();
    Ok(WriteRoot {
        directory: open(&target.directory)?,
        mounts: places.iter().map(mount).collect::<Result<_>>()?,
        owner: target.owner,
        frame_size_bytes,
        zeros_are_holes,
    })
}

/// The stripes with the extents of all files but the special ones, and those that need not be written again.
fn stripe_inputs(set: &mut OpenSet, special: &SpecialFiles, mut reuse: Option<&mut Reuse>) -> Vec<StripeInput> {
    let extents = Extent::by_stripe(&set.table, &set.stripe_counts());
    let table = &set.table;
    let opened = set.stripes.iter_mut().zip(extents).filter_map(|(stripe, extents)| Some((stripe.take()?, extents)));
    let input = |(open, mut extents): (crate::catalog::OpenStripe, Vec<Extent>)| {
        extents.retain(|extent| !special.contains(extent.file()));
        let crate::catalog::OpenStripe { set, set_id, frame_size_bytes, stripe, object, index, .. } = open;
        let mut input = StripeInput { set, set_id, frame_size_bytes, stripe, object, index, extents };
        if let Some(reuse) = &mut reuse {
            reuse.leave_out(table, &mut input);
        }
        input
    };
    opened.map(input).collect()
}

fn run_data_path(
    set: &OpenSet,
    settings: PipelineSettings,
    stripes: Vec<StripeInput>,
    root: &WriteRoot,
    special: &SpecialFiles,
    reuse: Option<&Reuse>,
    observer: &dyn Observer,
) -> Result<(PipelineStats, Vec<StripeInput>)> {
    let progress = Progress::default();
    progress.set_total(set.table.content_bytes() - reuse.map_or(0, |reuse| reuse.reused_bytes(&set.table)));
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
                .hint("the target cannot be started; running the restore again starts over, or goes on with --delta"));
        }
        Ok(())
    })?;
    reuse.inspect(|reuse| reuse.add_to(&outcome.totals, &set.table));
    let mut wrong = outcome.totals.mismatches(&set.table);
    wrong.retain(|file| !special.contains(*file) && !reuse.is_some_and(|reuse| reuse.is_whole(*file)));
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
    recovery: &'a Recovery,
    settings: PipelineSettings,
    ceiling: Ceiling,
    space: Vec<SpaceNeed>,
    left_out: Vec<LeftOutDatabase>,
    archiving_off: bool,
    notes: Vec<String>,
    started: Instant,
    usage: ProcessUsage,
    sync_s: f64,
    delta: Option<DeltaReport>,
}

impl Report<'_> {
    /// What a delta restore found in the target.
    fn tell_of(&mut self, reuse: Option<Reuse>, table: &FileTable) {
        if let Some(reuse) = reuse {
            self.delta = Some(reuse.report(table));
            self.notes.extend(reuse.notes);
        }
    }

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
        let left_out_bytes: u64 = self.left_out.iter().map(|database| database.bytes).sum();
        let restored_bytes = set.table.content_bytes() - left_out_bytes;
        let (rebuilt, damaged) = set.rebuilt();
        let note = (!damaged.is_empty()).then(|| {
            format!("{} frames were damaged, and parity gave them back: run `pagehaul repair`", damaged.len())
        });
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
            repaired_frame_count: rebuilt,
            stages: RestoreStages { stripe_readers: stats.first, decoders: stats.middle, file_writers: stats.last },
            limit: find_limit(
                Direction::Restore,
                set.manifest.compression.parse().ok(),
                stats,
                f64::from(machine_cores()),
                self.settings.max_rate_bytes_per_s.is_some(),
            ),
            target: self.request.target.kind(),
            recovery: self.recovery.report(),
            stop_lsn: set.manifest.postgres.stop_lsn,
            timeline: set.manifest.postgres.timeline,
            archiving_off: self.archiving_off,
            space: self.space,
            delta: self.delta,
            left_out_databases: self.left_out,
            external_files: set.manifest.postgres.external_files.clone(),
            notes: self.recovery.notes.iter().cloned().chain(self.notes).chain(note).collect(),
        }
    }
}
