//! One measured run: a real backup into the scratch directories, the restore of it, the comparison, and nothing left.

use std::path::{Path, PathBuf};

use pagehaul_engine::backup::{BackupOutcome, BackupReport, BackupRequest, backup};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::pipeline::limit::Limit;
use pagehaul_engine::pipeline::stats::StageStats;
use pagehaul_engine::restore::{ArchiveMode, RestoreReport, RestoreRequest, restore};
use pagehaul_engine::terms::SourceName;

use crate::compare::first_difference;
use crate::contestants::{Contestant, Place, server_cpu_s, tablespaces};
use crate::figures::{CacheState, RunFigures, StageWaits, Trial};
use crate::guard::Guard;
use crate::rows::OWN_NAME;
use crate::scratch::Scratch;
use crate::space::Settings;

/// Where trials read from and write to.
#[derive(Clone, Debug, Default)]
pub struct Targets {
    /// Data directory of the cluster.
    pub pgdata: PathBuf,
    /// How to reach its server.
    pub connection: Option<String>,
    /// As `--repo`.
    pub repo: String,
    /// As `--stripe-to`.
    pub stripe_to: Vec<String>,
    /// A directory on the disk that a restore would go to.
    pub restore_to: String,
}

/// Why a trial is run, and which repetition of it this is.
#[derive(Clone, Copy, Debug)]
pub struct Occasion<'a> {
    /// One of [`crate::rows::role`].
    pub role: &'a str,
    /// From 1.
    pub repetition: u32,
    /// Whether restored bytes are read back and compared.
    pub compares: bool,
}

/// Runs trials.
pub struct Bench<'a> {
    /// From where to where.
    pub targets: &'a Targets,
    /// Below which directories.
    pub scratch: &'a Scratch,
    /// Who may stop it.
    pub guard: &'a Guard<'a>,
    /// The server's first process, whose CPU time is counted too.
    pub postmaster: Option<u32>,
    /// Tells whether the source is in the page cache.
    pub cache_state: &'a dyn Fn() -> CacheState,
}

impl Bench<'_> {
    /// A backup with `settings` and so many parity stripes, and its restore; what fails is in the trial.
    ///
    /// # Errors
    /// `Interrupted` only: by the user or the guard.
    pub fn own(&self, settings: &Settings, parity: u16, occasion: Occasion<'_>) -> Result<Trial> {
        let mut trial = Trial {
            contestant: OWN_NAME.to_owned(),
            setting: setting_text(settings, parity),
            settings: Some(settings.clone()),
            ..blank(occasion)
        };
        let done = self.own_steps(settings, parity, occasion, &mut trial);
        self.close(done, trial)
    }

    fn own_steps(&self, settings: &Settings, parity: u16, occasion: Occasion<'_>, trial: &mut Trial) -> Result<()> {
        self.scratch.clear()?;
        let request = BackupRequest { parity, ..self.backup_request(settings)? };
        let cache = (self.cache_state)();
        let (report, server_cpu_s) = self.run_backup(&request)?;
        trial.source_bytes = report.source_bytes;
        trial.stored_bytes = report.stored_bytes;
        trial.backup = Some(RunFigures { cache, server_cpu_s, ..of_backup(&report) });
        let target = self.scratch.path(&self.targets.restore_to)?.join("restored");
        let restored = self.run_restore(&request.repo, settings, &target)?;
        trial.restore = Some(of_restore(&restored));
        if occasion.compares {
            let stop = || self.guard.stops();
            let difference = first_difference(&request.repo, &request.source, &report.label, &target, &stop)?;
            trial.bytes_equal = Some(difference.is_none());
            if let Some(file) = difference {
                let action = format!("trust settings {settings}");
                return Err(Error::new(ErrorKind::Bug, action, format!("restored file {file} is not what was read")));
            }
        }
        Ok(())
    }

    /// The read side alone: no codec, output discarded.
    ///
    /// # Errors
    /// `Interrupted` only.
    pub fn baseline(&self, settings: &Settings, occasion: Occasion<'_>) -> Result<Trial> {
        let mut trial = Trial {
            contestant: OWN_NAME.to_owned(),
            setting: format!("NUL, none, r{}", settings.readers),
            ..blank(occasion)
        };
        let done = (|| {
            let none = Settings { compression: "none".parse()?, ..settings.clone() };
            let request =
                BackupRequest { repo: "NUL".to_owned(), stripe_to: Vec::new(), ..self.backup_request(&none)? };
            let cache = (self.cache_state)();
            let (report, server_cpu_s) = self.run_backup(&request)?;
            trial.source_bytes = report.source_bytes;
            trial.backup = Some(RunFigures { cache, server_cpu_s, ..of_backup(&report) });
            Ok(())
        })();
        self.close(done, trial)
    }

    /// Another tool's backup and restore.
    ///
    /// # Errors
    /// `Interrupted` only.
    pub fn contestant(
        &self,
        tool: &Contestant,
        place: &Place<'_>,
        occasion: Occasion<'_>,
        source_bytes: u64,
    ) -> Result<Trial> {
        let mut trial =
            Trial { contestant: tool.name().to_owned(), setting: tool.setting(), source_bytes, ..blank(occasion) };
        let done = (|| {
            self.scratch.clear()?;
            let cache = (self.cache_state)();
            // What it writes stands where our stripes do.
            self.scratch.empty_directory(&self.targets.repo, CONTESTANTS)?;
            let backup = tool.backup(place)?;
            trial.stored_bytes = backup.stored_bytes;
            let figures = |cost: &crate::contestants::stopwatch::Cost| RunFigures {
                started_at: started_at(cost.wall_s),
                wall_s: cost.wall_s,
                cpu_s: cost.cpu_user_s + cost.cpu_system_s,
                server_cpu_s: cost.server_cpu_s,
                rss_bytes_max: cost.rss_tree_bytes_max,
                ..RunFigures::default()
            };
            trial.backup = Some(RunFigures { cache, ..figures(&backup.cost) });
            let target = self.scratch.empty_directory(&self.targets.restore_to, "restored")?;
            let cost = tool.restore(place, &target)?;
            trial.restore = Some(figures(&cost));
            Ok(())
        })();
        self.close(done, trial)
    }

    /// Clears up; a failure becomes part of the trial, an interruption is passed on.
    fn close(&self, done: Result<()>, mut trial: Trial) -> Result<Trial> {
        let cleared = self.scratch.clear();
        match done.and(cleared) {
            Err(error) if error.kind() == ErrorKind::Interrupted => Err(error),
            Err(error) => {
                trial.failed = Some(error.message());
                Ok(trial)
            }
            Ok(()) => Ok(trial),
        }
    }

    fn backup_request(&self, settings: &Settings) -> Result<BackupRequest> {
        let targets = self.targets;
        let stripes = |target: &String| format!("{}/stripes", self.scratch.below(target));
        let source: SourceName = "tune".parse()?;
        Ok(BackupRequest {
            pgdata: Some(targets.pgdata.clone()),
            connection: targets.connection.clone(),
            stripe_to: targets.stripe_to.iter().map(stripes).collect(),
            stripes: Some(settings.stripes),
            compression: settings.compression,
            readers: Some(settings.readers),
            encoders: Some(settings.encoders),
            buffer_count: Some(settings.buffer_count),
            transfer_size_bytes: Some(settings.transfer_size_bytes),
            frame_size_bytes: Some(settings.frame_size_bytes()),
            ..BackupRequest::new(source, format!("{}/repo", self.scratch.below(&targets.repo)))
        })
    }

    /// The report, and what the server's processes used meanwhile.
    fn run_backup(&self, request: &BackupRequest) -> Result<(BackupReport, f64)> {
        settle();
        let server_cpu_s = || self.postmaster.map_or(0.0, server_cpu_s);
        let before_s = server_cpu_s();
        match backup(request, self.guard)? {
            BackupOutcome::Done(report) => Ok((*report, server_cpu_s() - before_s)),
            BackupOutcome::Planned(_) => Err(Error::new(ErrorKind::Bug, "run a trial", "the backup only planned")),
        }
    }

    fn run_restore(&self, repo: &str, settings: &Settings, target: &Path) -> Result<RestoreReport> {
        let request = RestoreRequest {
            readers: Some(settings.stripe_readers),
            decoders: Some(settings.decoders),
            file_writers: Some(settings.file_writers),
            archive_mode: ArchiveMode::Off,
            tablespace_map: self.tablespace_map(target)?,
            ..RestoreRequest::new(repo, target)
        };
        settle();
        restore(&request, self.guard)
    }

    /// Every tablespace goes beside the restored data directory, never to its own place.
    fn tablespace_map(&self, target: &Path) -> Result<Vec<(PathBuf, PathBuf)>> {
        let beside = |name: String| target.with_file_name(format!("restored-tablespace-{name}"));
        let found = tablespaces(&self.targets.pgdata)?;
        Ok(found.into_iter().map(|(name, place)| (place, beside(name))).collect())
    }
}

/// Where other tools work, below the repository's scratch directory.
pub const CONTESTANTS: &str = "contestants";

fn blank(occasion: Occasion<'_>) -> Trial {
    Trial { role: occasion.role.to_owned(), repetition: occasion.repetition, ..Trial::default() }
}

/// How a table calls `settings` with so many parity stripes.
pub fn setting_text(settings: &Settings, parity: u16) -> String {
    match parity {
        0 => settings.to_string(),
        _ => format!("{settings}, parity {parity}"),
    }
}

/// Lets earlier writes reach the disk, and forgets the peak of memory, so that a run pays for itself only.
fn settle() {
    rustix::fs::sync();
    // 5 resets the peak (proc(5), clear_refs); where that is not allowed the peak is that of the whole process.
    drop(std::fs::write("/proc/self/clear_refs", "5"));
}

/// When a run of `elapsed_s` that ends now began, UTC.
fn started_at(elapsed_s: f64) -> String {
    let began = jiff::Timestamp::now() - std::time::Duration::from_secs_f64(elapsed_s.max(0.0));
    began.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The figures of our own backup.
pub fn of_backup(report: &BackupReport) -> RunFigures {
    let stages = &report.stages;
    let stages = [("readers", &stages.readers), ("encoders", &stages.encoders), ("writers", &stages.writers)];
    RunFigures {
        cpu_s: report.cpu_user_s + report.cpu_system_s,
        rss_bytes_max: report.rss_bytes_max,
        ..own_run(report.elapsed_s, stages, &report.limit)
    }
}

/// The figures of our own restore.
pub fn of_restore(report: &RestoreReport) -> RunFigures {
    let stages = &report.stages;
    let stages = [
        ("stripe readers", &stages.stripe_readers),
        ("decoders", &stages.decoders),
        ("file writers", &stages.file_writers),
    ];
    RunFigures {
        cpu_s: report.cpu_user_s + report.cpu_system_s,
        rss_bytes_max: report.rss_bytes_max,
        ..own_run(report.elapsed_s, stages, &report.limit)
    }
}

fn own_run(elapsed_s: f64, stages: [(&str, &StageStats); 3], limit: &Limit) -> RunFigures {
    RunFigures {
        started_at: started_at(elapsed_s),
        wall_s: elapsed_s,
        stages: stages.map(|(name, stats)| waits(name, stats)).into(),
        limit: limit_text(limit),
        ..RunFigures::default()
    }
}

fn limit_text(limit: &Limit) -> String {
    let cpus = if limit.cpu_bound { ", CPUs used up" } else { "" };
    format!("{} busy {:.0} %{cpus}", limit.stage, limit.share * 100.0)
}

fn waits(stage: &str, stats: &StageStats) -> StageWaits {
    StageWaits {
        stage: stage.to_owned(),
        threads: stats.threads,
        busy_s: stats.busy_s,
        wait_input_s: stats.wait_input_s,
        wait_output_s: stats.wait_output_s,
    }
}
