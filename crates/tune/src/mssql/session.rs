//! One run of `tune` on SQL Server: facts, trials in their order, answer; kept in the history, so that the next run goes
//! on where an interrupted one ended.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::source::mssql::address::ServerAddress;
use pagehaul_engine::source::mssql::client::Connection;
use pagehaul_engine::source::mssql::questions::Line;
use pagehaul_engine::source::mssql::server_facts::ServerFacts;

use super::point::Point;
use super::recommend::Ending;
use super::report::{Made, machine, place, report};
use super::run::{Runner, stop_if_interrupted};
use super::script::{Entry, Places, Scripts};
use super::space::{Space, buffer_bytes, buffer_bytes_max};
use super::{CONTESTANT, transcript, walk};
use crate::figures::{Row, Trial, TuneReport};
use crate::history::{History, Origin, Session, SessionLock};
use crate::objective::Objective;
use crate::rounds::TuneObserver;
use crate::rows;

/// What is tuned, within which bounds.
#[derive(Clone, Debug)]
pub struct MssqlRequest {
    /// Name of the source, for the history.
    pub source: String,
    /// The database.
    pub database: String,
    /// Where trials go.
    pub places: Places,
    /// The settings to choose from; None is what the server offers.
    pub space: SpaceWish,
    /// Run every point instead of walking to the best.
    pub runs_grid: bool,
    /// What is best.
    pub objective: Objective,
    /// Runs of every point of a grid, or of the best and the defaults of a walk.
    pub repeat: u32,
    /// Time for all of it.
    pub budget: Option<Duration>,
    /// Time for one statement.
    pub statement_limit: Option<Duration>,
    /// What buffers may take; None is a share of the server's memory.
    pub buffer_bytes_max: Option<u64>,
    /// Where runs are kept.
    pub history: PathBuf,
    /// Begin anew even if an earlier run was interrupted.
    pub begins_anew: bool,
    /// The command line, for the report.
    pub command: String,
}

/// Lists that somebody named; None is what the server offers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpaceWish {
    /// Algorithms and levels.
    pub compressions: Option<Vec<pagehaul_engine::source::mssql::statement::Compression>>,
    /// Numbers of backup files.
    pub files: Option<Vec<u16>>,
    /// BUFFERCOUNT.
    pub buffer_counts: Option<Vec<Option<u32>>>,
    /// MAXTRANSFERSIZE.
    pub transfer_sizes: Option<Vec<Option<u32>>>,
    /// BLOCKSIZE.
    pub block_sizes: Option<Vec<Option<u32>>>,
}

impl SpaceWish {
    fn on(&self, facts: &ServerFacts) -> Space {
        let own = Space::of(&facts.dialect);
        Space {
            compressions: self.compressions.clone().unwrap_or(own.compressions),
            files: self.files.clone().unwrap_or(own.files),
            buffer_counts: self.buffer_counts.clone().unwrap_or(own.buffer_counts),
            transfer_sizes: self.transfer_sizes.clone().unwrap_or(own.transfer_sizes),
            block_sizes: self.block_sizes.clone().unwrap_or(own.block_sizes),
        }
    }
}

/// What will be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The baseline, the defaults, then the points.
    pub entries: Vec<Entry>,
    /// Why points are left out.
    pub notes: Vec<String>,
    /// What makes two requests the same.
    pub key: String,
}

impl Plan {
    /// What `request` means on the server of `facts`.
    ///
    /// # Errors
    /// `Usage` for a space that cannot be run, `Source` for a database that cannot be backed up.
    pub fn new(request: &MssqlRequest, facts: &ServerFacts) -> Result<Self> {
        facts.check_online()?;
        let space = request.space.on(facts);
        let most = request.buffer_bytes_max.unwrap_or_else(|| buffer_bytes_max(facts));
        let (points, too_large): (Vec<Point>, Vec<Point>) =
            space.points()?.into_iter().partition(|point| buffer_bytes(point, facts) <= most);
        let mut notes = Vec::new();
        if !too_large.is_empty() {
            notes.push(format!(
                "{} settings are left out, for their buffers would take more than {:.0} MB (--max-buffer-memory)",
                too_large.len(),
                most as f64 / 1e6
            ));
        }
        if points.is_empty() {
            let cause = "the buffers of every setting would take more memory than they may";
            return Err(Error::new(ErrorKind::Configuration, "tune SQL Server", cause)
                .hint("allow more with --max-buffer-memory"));
        }
        let key = format!("mssql {space:?} memory {most} grid {}", request.runs_grid);
        let scripts = Scripts::new(facts, &request.places, &key)?;
        let mut entries = vec![Entry::Baseline, Entry::Defaults];
        entries.iter().try_for_each(|entry| scripts.trial(entry, 1).map(drop))?;
        // What this server does not take is said now, not in the middle.
        let mut refused = Vec::new();
        for entry in points.into_iter().map(Entry::Candidate) {
            match scripts.trial(&entry, 1) {
                Ok(_) => entries.push(entry),
                Err(error) => refused.push(error),
            }
        }
        let count = refused.len();
        if let Some(first) = refused.into_iter().next() {
            if entries.len() == 2 {
                return Err(first);
            }
            let rule = first.hint_text().unwrap_or_default();
            notes.push(format!("{count} settings are left out: {} ({rule})", first.cause()));
        }
        Ok(Plan { entries, notes, key })
    }

    fn points(&self) -> Vec<Point> {
        let point = |entry: &Entry| match entry {
            Entry::Candidate(point) => Some(*point),
            _ => None,
        };
        self.entries.iter().filter_map(point).collect()
    }
}

/// The T-SQL of the run that `request` asks for, every batch as it would be run.
///
/// # Errors
/// As [`Plan::new`].
pub fn script(request: &MssqlRequest, facts: &ServerFacts) -> Result<String> {
    let plan = Plan::new(request, facts)?;
    let scripts = Scripts::new(facts, &request.places, &plan.key)?;
    let mut head = vec![
        format!(
            "pagehaul: tuning of BACKUP and RESTORE of [{}], {}",
            facts.database.escape_debug(),
            facts.dialect.version
        ),
        format!(
            "{} trials; backups are COPY_ONLY, restores go to {} and are dropped",
            plan.entries.len(),
            scripts.scratch().escape_debug()
        ),
    ];
    if !request.runs_grid {
        head.push(
            "run by pagehaul, a trial of these is left out once none that is near the best can be better".to_owned(),
        );
    }
    // Without -x it would replace what looks like one of its variables, in names and paths as well.
    head.push("by hand: sqlcmd -x -S SERVER -i THIS -o RESULTS; then pagehaul mssql import RESULTS".to_owned());
    head.extend(plan.notes.iter().cloned());
    scripts.text(&plan.entries, request.repeat, &head)
}

/// Measures and answers.
///
/// # Errors
/// `Usage` for places and lists, `Source` without a server, `Conflict` if the scratch database is there already or
/// another process is at the same task, `Interrupted`; what a single trial met is in its row.
pub fn tune(request: &MssqlRequest, address: &ServerAddress, observer: &dyn TuneObserver) -> Result<TuneReport> {
    let started = Instant::now();
    let mut connection = Connection::connect(address)?;
    let facts = ServerFacts::ask(&mut connection, &request.database)?;
    let plan = Plan::new(request, &facts)?;
    let scripts = Scripts::new(&facts, &request.places, &plan.key)?;
    check_scratch(&mut connection, request, &scripts)?;
    let history = History::open(&request.history)?;
    let (session, _lock) = begin(&history, request, &plan, &scripts, observer)?;
    plan.notes.iter().for_each(|note| observer.note(note));
    let origin = Origin {
        source: request.source.clone(),
        pgdata: place(&facts),
        system_identifier: 0,
        machine: machine(&facts),
    };
    let runner = Runner { address, connection, statement_limit: request.statement_limit, observer };
    let trials = history.load_trials(&session)?;
    let mut work = Work {
        request,
        facts: &facts,
        scripts,
        runner,
        keep: &|trial| {
            if let Err(error) = history.save_trial(&session, trial, &origin) {
                observer.note(&format!("this run is not in the history: {}", error.message()));
            }
        },
        trials,
        notes: plan.notes.clone(),
        too_much_memory: u64::MAX,
        started,
    };
    observer.stage("trials: backups and restores by the server, in turns");
    let ending = work.run(&plan)?;
    history.finish(&session)?;
    let (trials, notes) = (work.trials, work.notes);
    Ok(report(Made {
        facts: &facts,
        objective: &request.objective,
        trials,
        backup_to: &request.places.backup_to,
        ending,
        point_count: plan.entries.len() - 1,
        notes,
        started_at: (jiff::Timestamp::now() - started.elapsed()).strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        elapsed_s: started.elapsed().as_secs_f64(),
        command: request.command.clone(),
    }))
}

/// A scratch database that somebody named must not be there: it may be somebody's.
fn check_scratch(connection: &mut Connection, request: &MssqlRequest, scripts: &Scripts<'_>) -> Result<()> {
    let name = scripts.scratch();
    let answer = connection.ask(&scripts.look_for_scratch(), "look for the scratch database")?;
    let is_there =
        answer.messages.iter().filter_map(|message| Line::parse(&message.text)).any(|line| line.value == "1");
    if !is_there || request.places.scratch_database.is_none() {
        return Ok(());
    }
    let action = format!("use {name:?} as the scratch database");
    Err(Error::new(ErrorKind::Conflict, action, "there is a database of this name")
        .hint("name another with --scratch-database, or drop it if it is a leftover of yours"))
}

fn begin(
    history: &History,
    request: &MssqlRequest,
    plan: &Plan,
    scripts: &Scripts<'_>,
    observer: &dyn TuneObserver,
) -> Result<(Session, SessionLock)> {
    let key = format!("{} {}", scripts.run(), plan.key);
    let words = serde_json::json!({ "command": request.command }).to_string();
    let (mut session, mut lock) = history.begin_alone(&key, &words)?;
    if session.resumed && request.begins_anew {
        history.finish(&session)?;
        drop(lock);
        (session, lock) = history.begin_alone(&key, &words)?;
    }
    if session.resumed {
        let count = history.load_trials(&session)?.len();
        observer.note(&format!(
            "going on with the run of {} that was interrupted after {count} trials (--anew begins another)",
            session.started_at
        ));
    }
    Ok((session, lock))
}

/// The state between trials.
struct Work<'a> {
    request: &'a MssqlRequest,
    facts: &'a ServerFacts,
    scripts: Scripts<'a>,
    runner: Runner<'a>,
    keep: &'a dyn Fn(&Trial),
    trials: Vec<Trial>,
    notes: Vec<String>,
    /// Buffers of this size did not fit.
    too_much_memory: u64,
    started: Instant,
}

impl Work<'_> {
    fn run(&mut self, plan: &Plan) -> Result<Ending> {
        if self.request.runs_grid {
            for repetition in 1..=self.request.repeat {
                for entry in &plan.entries {
                    if !self.run_once(entry, repetition)? {
                        return Ok(Ending::Early);
                    }
                }
            }
            return Ok(Ending::All);
        }
        let points = plan.points();
        let first = walk::start(&points).map(Entry::Candidate);
        for entry in [Some(Entry::Baseline), Some(Entry::Defaults), first].into_iter().flatten() {
            if !self.run_once(&entry, 1)? {
                return Ok(Ending::Early);
            }
        }
        self.walk(&points)
    }

    /// From the best point to a better neighbour, while there is one; then repetitions of the best and the defaults.
    fn walk(&mut self, points: &[Point]) -> Result<Ending> {
        loop {
            let best = self.best(points).or_else(|| walk::start(points));
            let Some(best) = best else { return Ok(Ending::Early) };
            let next = match walk::next(points, &best, &self.tried()) {
                Some(point) => Some((Entry::Candidate(point), 1)),
                None => self.lacking(&best),
            };
            let Some((entry, repetition)) = next else { return Ok(Ending::Settled) };
            if !self.run_once(&entry, repetition)? {
                return Ok(Ending::Early);
            }
        }
    }

    /// What has run less often than asked of the best and of what it is compared with.
    fn lacking(&self, best: &Point) -> Option<(Entry, u32)> {
        let entries = [Entry::Candidate(*best), Entry::Defaults];
        let next = entries.into_iter().map(|entry| (entry, self.runs(&entry) + 1));
        next.filter(|(_, repetition)| *repetition <= self.request.repeat).min_by_key(|(_, repetition)| *repetition)
    }

    fn rows(&self) -> Vec<Row> {
        rows::table(&self.trials, &self.request.objective, self.facts.cpu_count)
    }

    fn best(&self, points: &[Point]) -> Option<Point> {
        let rows = self.rows();
        let ranked = rows.iter().filter(|row| row.rank > 0).filter_map(|row| row.setting.parse().ok());
        ranked.into_iter().find(|point| points.contains(point))
    }

    fn tried(&self) -> Vec<Point> {
        self.trials.iter().filter_map(|trial| trial.setting.parse().ok()).collect()
    }

    /// How often it has run, failed runs counted.
    fn runs(&self, entry: &Entry) -> u32 {
        let setting = entry.setting();
        self.trials.iter().filter(|trial| trial.setting == setting).count() as u32
    }

    /// Runs `entry` unless it has run that often; false if time is over.
    fn run_once(&mut self, entry: &Entry, repetition: u32) -> Result<bool> {
        if self.runs(entry) >= repetition {
            return Ok(true);
        }
        stop_if_interrupted(self.runner.observer)?;
        if self.lacks_time(entry) {
            return Ok(false);
        }
        let memory = buffer_bytes(&entry.point(), self.facts);
        let trial = if memory >= self.too_much_memory {
            let failed =
                format!("not run: smaller buffers ({:.0} MB) did not fit already", self.too_much_memory as f64 / 1e6);
            self.not_run(entry, repetition, failed)
        } else {
            self.measure(entry, repetition)?
        };
        let is_out_of_memory = |why: &String| why.contains("Msg 701:") || why.contains("Msg 802:");
        if trial.failed.as_ref().is_some_and(is_out_of_memory) {
            self.too_much_memory = self.too_much_memory.min(memory);
        }
        (self.keep)(&trial);
        self.trials.push(trial);
        if let Some(trial) = self.trials.last() {
            self.runner.observer.trial_ended(trial, &self.rows());
        }
        Ok(true)
    }

    fn measure(&mut self, entry: &Entry, repetition: u32) -> Result<Trial> {
        self.runner.observer.trial_begins(&format!("{} (run {repetition})", entry.setting()));
        let script = self.scripts.trial(entry, repetition)?;
        let lines = self.runner.run(&script)?;
        let found = transcript::trials(lines.iter().map(String::as_str), self.facts.cpu_count).pop();
        Ok(found.unwrap_or_else(|| self.not_run(entry, repetition, "the server said nothing of it".to_owned())))
    }

    fn not_run(&self, entry: &Entry, repetition: u32, failed: String) -> Trial {
        Trial {
            contestant: CONTESTANT.to_owned(),
            setting: entry.setting(),
            role: entry.role().to_owned(),
            repetition,
            failed: Some(failed),
            ..Trial::default()
        }
    }

    /// Whether the time left is too short for a trial, by what the shortest of them took.
    fn lacks_time(&mut self, entry: &Entry) -> bool {
        let Some(budget) = self.request.budget else { return false };
        let took = |trial: &Trial| [&trial.backup, &trial.restore].into_iter().flatten().map(|run| run.wall_s).sum();
        let is_comparable = |trial: &&Trial| trial.failed.is_none() && trial.restore.is_some();
        let walls = self.trials.iter().filter(is_comparable).map(took);
        let needed_s = if *entry == Entry::Baseline { 0.0 } else { walls.reduce(f64::min).unwrap_or_default() };
        if self.started.elapsed().as_secs_f64() + needed_s <= budget.as_secs_f64() {
            return false;
        }
        let note = "the budget is used up; --budget gives it more".to_owned();
        self.runner.observer.note(&note);
        self.notes.push(note);
        true
    }
}
