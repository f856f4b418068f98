//! One run of `tune`, stage by stage: facts, model, trials, answer. Each stage is kept, so that the next run goes on
//! where an interrupted one ended.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::pipeline::machine_cores;
use pagehaul_engine::source::postgres::client::Connection;
use pagehaul_engine::source::postgres::conninfo::ConnectSettings;
use pagehaul_engine::source::postgres::pg_install::PgInstall;

use crate::contestants::stopwatch::Stopwatch;
use crate::contestants::{Contestant, Place, ServerAddress};
use crate::device::page_cache::source_cache;
use crate::figures::{Facts, Prediction, Trial, TuneReport};
use crate::gather::{self, Gather};
use crate::guard::Guard;
use crate::history::{History, Origin, Session, SessionLock};
use crate::model::{Model, model_error};
use crate::objective::Objective;
use crate::recommend::{Ending, recommend};
use crate::rounds::{Progress, Rounds, TuneObserver};
use crate::rows;
use crate::scratch::{Scratch, local_directory};
use crate::source_files::SourceFiles;
use crate::space::{Settings, Space};
use crate::trial::{Bench, CONTESTANTS, Targets};

/// What is tuned, within which bounds.
#[derive(Clone, Debug)]
pub struct TuneRequest {
    /// Name of the source, for the history.
    pub source: String,
    /// From where to where.
    pub targets: Targets,
    /// The settings to choose from.
    pub space: Space,
    /// Run every point instead of searching.
    pub runs_grid: bool,
    /// What is best.
    pub objective: Objective,
    /// Bytes of the source that are sampled.
    pub sample_size_bytes: u64,
    /// Time for all of it; None is as long as it takes.
    pub budget: Option<Duration>,
    /// Parity stripes whose cost is shown: one row for each number, with the best settings.
    pub parities: Vec<u16>,
    /// Runs of each finalist.
    pub repeat: u32,
    /// Other tools that run too.
    pub contestants: Vec<Contestant>,
    /// Stop when a probe query takes longer.
    pub max_impact: Option<Duration>,
    /// Drop the page cache before reading is measured, where the user may.
    pub drops_caches: bool,
    /// Where runs are kept.
    pub history: PathBuf,
    /// Begin anew even if an earlier run was interrupted.
    pub begins_anew: bool,
    /// The command line, for the report.
    pub command: String,
}

/// The server as found.
struct Server {
    settings: ConnectSettings,
    address: ServerAddress,
    postmaster: Option<u32>,
    version: String,
}

/// Measures and answers.
///
/// The database is only read. What trials write lies in directories of their own below the targets, which are gone at
/// the end, or swept by the next run.
///
/// # Errors
/// `Usage` for targets that cannot be used, `Source` without a server, `Conflict` if another process is at the same
/// task, `Interrupted`; what a single trial met is in
/// its row.
pub fn tune(request: &TuneRequest, observer: &dyn TuneObserver) -> Result<TuneReport> {
    let started = Instant::now();
    for target in all_targets(&request.targets) {
        local_directory(&target)?;
    }
    let source = SourceFiles::list(&request.targets.pgdata)?;
    let server = find_server(request)?;
    let history = History::open(&request.history)?;
    let (session, _lock) = begin(&history, request, &source, observer)?;
    let (scratch, swept) = Scratch::create(&all_targets(&request.targets), None)?;
    for path in swept {
        observer.note(&format!("removed {}, left by a run that was killed", path.display()));
    }
    let guard = Guard::new(observer, &scratch, request.max_impact);
    std::thread::scope(|scope| {
        let probe = guard.start_probe(scope, &server.settings);
        let work =
            Work { request, observer, started, source: &source, server: &server, scratch: &scratch, guard: &guard };
        let done = work.run(&history, &session);
        guard.end();
        if let Some(probe) = probe {
            probe.thread().unpark();
        }
        done.map_err(|error| match guard.verdict() {
            Some(why) if error.kind() == ErrorKind::Interrupted => {
                Error::new(ErrorKind::Configuration, "go on with tuning", why)
                    .hint("free what is short, give other directories, or allow more; what was measured is kept")
            }
            _ => error,
        })
    })
}

fn all_targets(targets: &Targets) -> Vec<String> {
    let rest = targets.stripe_to.iter().cloned().chain([targets.restore_to.clone()]);
    std::iter::once(targets.repo.clone()).chain(rest).collect()
}

fn begin(
    history: &History,
    request: &TuneRequest,
    source: &SourceFiles,
    observer: &dyn TuneObserver,
) -> Result<(Session, SessionLock)> {
    let targets = &request.targets;
    let key = format!(
        "{} {} {:?} {} {:?} cores {} sample {} cold {} grid {}",
        source.control_file.system_identifier,
        targets.pgdata.display(),
        (&targets.repo, &targets.stripe_to),
        targets.restore_to,
        request.space,
        machine_cores(),
        request.sample_size_bytes,
        request.drops_caches,
        request.runs_grid
    );
    let words = serde_json::json!({ "command": request.command }).to_string();
    let (mut session, mut lock) = history.begin_alone(&key, &words)?;
    if session.resumed && request.begins_anew {
        history.finish(&session)?;
        drop(lock);
        (session, lock) = history.begin_alone(&key, &words)?;
    }
    if session.resumed {
        let trials = history.load_trials(&session)?.len();
        observer.note(&format!(
            "going on with the run of {} that was interrupted after {trials} trials (--anew begins another)",
            session.started_at
        ));
    }
    Ok((session, lock))
}

fn find_server(request: &TuneRequest) -> Result<Server> {
    let pgdata = &request.targets.pgdata;
    let conninfo = request.targets.connection.as_deref().unwrap_or("");
    let settings = ConnectSettings::parse_for_data_directory(conninfo, pgdata)?;
    let connection = Connection::connect(&settings)?;
    let version = connection.server_version_num();
    let install = PgInstall::find_major(version / 10_000);
    let pid_file = std::fs::read_to_string(pgdata.join("postmaster.pid")).unwrap_or_default();
    let address = ServerAddress {
        pgdata: pgdata.clone(),
        host: settings.host.clone(),
        port: settings.port,
        user: settings.user.clone(),
        bin_directory: install.map(|install| install.bin_directory().to_owned()).unwrap_or_default(),
    };
    let version = format!("{}.{}", version / 10_000, version % 10_000);
    Ok(Server {
        settings,
        address,
        postmaster: pid_file.lines().next().and_then(|pid| pid.trim().parse().ok()),
        version,
    })
}

/// Everything one run works with.
struct Work<'a> {
    request: &'a TuneRequest,
    observer: &'a dyn TuneObserver,
    started: Instant,
    source: &'a SourceFiles,
    server: &'a Server,
    scratch: &'a Scratch,
    guard: &'a Guard<'a>,
}

impl Work<'_> {
    fn run(&self, history: &History, session: &Session) -> Result<TuneReport> {
        let facts = self.gather(history, session)?;
        let origin = Origin {
            source: self.request.source.clone(),
            pgdata: facts.source.pgdata.clone(),
            system_identifier: facts.source.system_identifier,
            machine: facts.machine.clone(),
        };
        let keep = |trial: &Trial| {
            if let Err(error) = history.save_trial(session, trial, &origin) {
                self.observer.note(&format!("this run is not in the history: {}", error.message()));
            }
        };
        let mut progress = Progress {
            model: Model::new(facts.clone()),
            trials: history.load_trials(session)?,
            ending: Ending::Early,
            notes: Vec::new(),
        };
        progress.learn();
        self.observer.stage("trials: real backups and restores, in turns");
        let predictions = self.trials(&facts, &keep, &mut progress)?;
        if self.guard.verdict().is_none() {
            history.finish(session)?;
        }
        Ok(self.report(facts, progress, predictions))
    }

    /// Stages a and b, from the history where they are kept.
    fn gather(&self, history: &History, session: &Session) -> Result<Facts> {
        let gather = Gather {
            source: self.source,
            space: &self.request.space,
            targets: &self.request.targets,
            scratch: self.scratch,
            sample_size_bytes: self.request.sample_size_bytes,
            drops_caches: self.request.drops_caches,
            observer: self.observer,
            guard: self.guard,
        };
        let mut facts = Facts {
            machine: gather::machine_facts(&self.server.version),
            source: self.source.facts(),
            ..Facts::default()
        };
        facts.sample = match history.load_stage(session, "sample")? {
            Some(kept) => kept,
            None => {
                self.observer.stage("sample: every codec, level and frame size on pages of this database");
                let sample = gather.sample()?;
                history.save_stage(session, "sample", &sample)?;
                sample
            }
        };
        facts.devices = match history.load_stage(session, "devices")? {
            Some(kept) => kept,
            None => {
                self.observer.stage("devices: the read side, the stripes' targets and the restore target alone");
                let devices = gather.devices()?;
                history.save_stage(session, "devices", &devices)?;
                devices
            }
        };
        Ok(facts)
    }

    fn trials(&self, facts: &Facts, keep: &dyn Fn(&Trial), progress: &mut Progress) -> Result<Vec<Prediction>> {
        let targets = &self.request.targets;
        let tools = self.scratch.empty_directory(&targets.repo, CONTESTANTS)?;
        let stop = || self.guard.stops();
        let stopwatch = Stopwatch { directory: tools.clone(), postmaster: self.server.postmaster, stop: &stop };
        let place = Place { work: &tools, server: &self.server.address, owner: None, stopwatch: &stopwatch };
        let cache_state = || source_cache(self.source);
        let defaults = Space::defaults(machine_cores(), targets.stripe_to.len());
        let rounds = Rounds {
            bench: Bench {
                targets,
                scratch: self.scratch,
                guard: self.guard,
                postmaster: self.server.postmaster,
                cache_state: &cache_state,
            },
            server: &self.server.settings,
            place: &place,
            contestants: &self.request.contestants,
            objective: self.request.objective,
            cores: machine_cores(),
            source_bytes: facts.source.source_bytes,
            points: self.request.space.points(),
            adaptive: self.request.space.adaptive(&defaults),
            defaults,
            parities: &self.request.parities,
            repeat: self.request.repeat,
            started: self.started,
            budget: self.request.budget,
            keep,
            observer: self.observer,
        };
        if self.request.runs_grid {
            rounds.grid(progress)?;
        } else {
            rounds.search(progress)?;
        }
        rounds.with_parity(progress)?;
        Ok(rounds.predictions(progress))
    }

    fn report(&self, facts: Facts, progress: Progress, predictions: Vec<Prediction>) -> TuneReport {
        let (objective, cores) = (&self.request.objective, machine_cores());
        let rows = rows::table(&progress.trials, objective, cores);
        let recommendation = recommend(&rows, &predictions, objective, cores, &self.request.targets, progress.ending);
        let mut notes = progress.notes;
        let targets = &self.request.targets;
        if targets.restore_to == targets.repo {
            notes.push(
                "restores were measured on the repository's disk; --target-dir names the disk that they would go to"
                    .to_owned(),
            );
        }
        if self.guard.slowest_probe_s() > 0.0 {
            notes.push(format!(
                "the server's slowest answer to a probe query during the trials took {:.1} ms",
                self.guard.slowest_probe_s() * 1e3
            ));
        }
        let began = jiff::Timestamp::now() - self.started.elapsed();
        TuneReport {
            started_at: began.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            elapsed_s: self.started.elapsed().as_secs_f64(),
            command: self.request.command.clone(),
            facts,
            model_error: model_error(&progress.trials),
            trials: progress.trials,
            recommendation,
            predictions: worth_drawing(predictions, &rows),
            rows,
            notes,
        }
    }
}

/// Predictions that the plots show: those of points that were run, the best of each codec, and the best one's
/// neighbours in buffer count and transfer size.
fn worth_drawing(predictions: Vec<Prediction>, rows: &[crate::figures::Row]) -> Vec<Prediction> {
    let best = rows.iter().filter(|row| row.rank > 0).find_map(|row| row.settings.clone());
    let both_s = |point: &Prediction| point.backup.wall_s + point.restore.wall_s;
    let mut best_of_codec: Vec<&Prediction> = Vec::new();
    for point in &predictions {
        match best_of_codec.iter_mut().find(|other| other.settings.compression == point.settings.compression) {
            Some(other) if both_s(point) < both_s(other) => *other = point,
            Some(_) => {}
            None => best_of_codec.push(point),
        }
    }
    let best_of_codec: Vec<Settings> = best_of_codec.into_iter().map(|point| point.settings.clone()).collect();
    let is_neighbour = |settings: &Settings| {
        best.as_ref().is_some_and(|best| {
            let moved = Settings {
                buffer_count: best.buffer_count,
                transfer_size_bytes: best.transfer_size_bytes,
                ..settings.clone()
            };
            moved == *best
        })
    };
    let is_run = |settings: &Settings| rows.iter().any(|row| row.settings.as_ref() == Some(settings));
    let keeps = |settings: &Settings| best_of_codec.contains(settings) || is_neighbour(settings) || is_run(settings);
    predictions.into_iter().filter(|point| keeps(&point.settings)).collect()
}
