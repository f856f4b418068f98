//! The trials of one run: which comes next, what the model learns from each, when it is enough.

use std::time::{Duration, Instant};

use pagehaul_engine::error::Result;
use pagehaul_engine::pipeline::{Observer, pause};
use pagehaul_engine::source::postgres::client::Connection;
use pagehaul_engine::source::postgres::conninfo::ConnectSettings;

use crate::contestants::{Contestant, Place};
use crate::figures::{Prediction, Row, Trial};
use crate::model::Model;
use crate::objective::Objective;
use crate::recommend::Ending;
use crate::rows::{self, role};
use crate::search::Known;
use crate::space::Settings;
use crate::trial::{Bench, Occasion, setting_text};

/// Runs shorter than this, backup and restore together, are preceded by one that is not kept: the first files in a
/// directory find cold block maps and inode tables, which took up to half of a run of a second.
const WARM_UP_BELOW_S: f64 = 10.0;
/// Share of the budget after which no new point is begun: the rest is for repetitions.
const SEARCH_SHARE: f64 = 0.6;

/// Hears what tuning does, beside what the verbs it calls tell.
pub trait TuneObserver: Observer {
    /// A stage begins, in words: sample, devices, trials.
    fn stage(&self, name: &str);
    /// Something was measured, of so many.
    fn measured(&self, what: &str, done: usize, total: usize);
    /// The next trial, in words.
    fn trial_begins(&self, what: &str);
    /// A trial has ended; `rows` is the table now.
    fn trial_ended(&self, trial: &Trial, rows: &[Row]);
}

/// How long to wait for a server that went away, and how often it is looked for.
const SERVER_WAIT: Duration = Duration::from_secs(60);
const SERVER_TRY_EVERY: Duration = Duration::from_millis(500);

/// Everything the rounds work with.
pub struct Rounds<'a> {
    /// Runs a trial.
    pub bench: Bench<'a>,
    /// How to reach the server.
    pub server: &'a ConnectSettings,
    /// Where other tools run.
    pub place: &'a Place<'a>,
    /// Other tools.
    pub contestants: &'a [Contestant],
    /// What is asked.
    pub objective: Objective,
    /// Cores of the machine.
    pub cores: u16,
    /// Bytes of the source.
    pub source_bytes: u64,
    /// Every point.
    pub points: Vec<Settings>,
    /// The product's own.
    pub defaults: Settings,
    /// The adaptive level, if it is to be tried.
    pub adaptive: Option<Settings>,
    /// Parity stripes whose cost is shown, with the best settings.
    pub parities: &'a [u16],
    /// Runs of each finalist.
    pub repeat: u32,
    /// When it began, and how long it may take; None is as long as it takes.
    pub started: Instant,
    /// Of all together.
    pub budget: Option<Duration>,
    /// Keeps a trial.
    pub keep: &'a dyn Fn(&Trial),
    /// Hears.
    pub observer: &'a dyn TuneObserver,
}

/// The state between trials.
pub struct Progress {
    /// Corrected by every trial.
    pub model: Model,
    /// All that were run, resumed ones first.
    pub trials: Vec<Trial>,
    /// How they ended.
    pub ending: Ending,
    /// Things worth knowing.
    pub notes: Vec<String>,
}

impl Progress {
    /// Lets the model learn from all trials of fixed levels.
    pub fn learn(&mut self) {
        // The model knows neither levels that change nor parity.
        let is_auto = |settings: &Settings| settings.compression.is_auto();
        let is_fixed = |trial: &&Trial| trial.role != role::PARITY && !trial.settings.as_ref().is_some_and(is_auto);
        let fixed: Vec<Trial> = self.trials.iter().filter(is_fixed).cloned().collect();
        self.model.correct(&fixed);
    }
}

/// Something to run.
#[derive(Clone, Debug, PartialEq)]
enum Entry {
    Baseline,
    Own(Settings, &'static str),
    WithParity(Settings, u16),
    Other(Contestant),
}

impl Rounds<'_> {
    /// The search: first a run of everything that is compared; then what promises to be better, and repetitions of the
    /// best, until neither is left. A repetition can show that the first run was luck, and then the search goes on.
    ///
    /// # Errors
    /// `Interrupted` by the user; what stopped it otherwise is a note.
    pub fn search(&self, progress: &mut Progress) -> Result<()> {
        self.warm_up(progress)?;
        let mut first = self.compared();
        // With a short budget ours come before the other tools.
        let others = first.split_off(2);
        first.extend(self.adaptive.clone().map(candidate));
        first.extend(self.batch(progress));
        first.extend(others);
        let mut goes_on = self.run_each(&once(first), progress)?;
        while goes_on {
            let candidates = if self.is_over(SEARCH_SHARE) { Vec::new() } else { self.batch(progress) };
            let mut next = once(candidates);
            if next.is_empty() {
                next = self.lacking(progress);
            }
            if next.is_empty() {
                // Over the search's share of the budget a better point may be left.
                let is_searched = self.batch(progress).is_empty();
                progress.ending = if is_searched { Ending::Settled } else { Ending::Early };
                return Ok(());
            }
            goes_on = self.run_each(&next, progress)?;
        }
        Ok(())
    }

    /// Where runs are short, one of the defaults whose figures nobody sees; what it meets the first trial meets too.
    fn warm_up(&self, progress: &Progress) -> Result<()> {
        let predicted = progress.model.predict(&self.defaults);
        let is_short = predicted.backup.wall_s + predicted.restore.wall_s < WARM_UP_BELOW_S;
        let needed = self.space_needed(&Entry::Own(self.defaults.clone(), role::DEFAULT), Some(&predicted));
        if progress.trials.is_empty() && is_short && self.bench.guard.refuses(needed).is_none() {
            self.observer.trial_begins("one run to warm up, not counted");
            self.bench.own(&self.defaults, 0, Occasion { role: role::DEFAULT, repetition: 0, compares: false })?;
        }
        Ok(())
    }

    /// What stands beside every search: the read side, the defaults, other tools.
    fn compared(&self) -> Vec<Entry> {
        let own = [Entry::Baseline, Entry::Own(self.defaults.clone(), role::DEFAULT)];
        own.into_iter().chain(self.contestants.iter().cloned().map(Entry::Other)).collect()
    }

    /// What has run less often than asked, each once more: what is compared, and the finalists of now.
    fn lacking(&self, progress: &Progress) -> Vec<(Entry, u32)> {
        let rows = self.rows(progress);
        let finalists = self.known(&[], &rows).finalists().into_iter().filter(|point| *point != self.defaults);
        let all = self.compared().into_iter().chain(finalists.map(candidate));
        let next = all.map(|entry| {
            let done = self.runs(&entry, progress);
            (entry, done + 1)
        });
        next.filter(|(_, repetition)| *repetition <= self.repeat).collect()
    }

    /// Every point of the space, as often as asked, in turns.
    ///
    /// # Errors
    /// As [`Rounds::search`].
    pub fn grid(&self, progress: &mut Progress) -> Result<()> {
        self.warm_up(progress)?;
        let mut all = self.compared();
        all.extend(self.adaptive.clone().map(candidate));
        all.extend(self.points.iter().filter(|point| **point != self.defaults).cloned().map(candidate));
        for repetition in 1..=self.repeat {
            let round: Vec<_> = all.iter().cloned().map(|entry| (entry, repetition)).collect();
            if !self.run_each(&round, progress)? {
                return Ok(());
            }
        }
        progress.ending = Ending::All;
        Ok(())
    }

    /// What parity costs, with the settings that are the best now.
    ///
    /// # Errors
    /// As [`Rounds::search`].
    pub fn with_parity(&self, progress: &mut Progress) -> Result<()> {
        let rows = self.rows(progress);
        let Some(best) = rows.into_iter().filter(|row| row.rank > 0).find_map(|row| row.settings) else {
            return Ok(());
        };
        for repetition in 1..=self.repeat {
            let round: Vec<_> =
                self.parities.iter().map(|count| (Entry::WithParity(best.clone(), *count), repetition)).collect();
            if !self.run_each(&round, progress)? {
                return Ok(());
            }
        }
        Ok(())
    }

    fn batch(&self, progress: &Progress) -> Vec<Entry> {
        let rows = self.rows(progress);
        let predictions = self.predictions(progress);
        self.known(&predictions, &rows).next_batch().into_iter().map(candidate).collect()
    }

    fn known<'a>(&'a self, predictions: &'a [Prediction], rows: &'a [Row]) -> Known<'a> {
        Known { predictions, rows, objective: &self.objective, cores: self.cores }
    }

    /// The whole space as the model sees it now.
    pub fn predictions(&self, progress: &Progress) -> Vec<Prediction> {
        self.points.iter().map(|point| progress.model.predict(point)).collect()
    }

    /// The table now.
    pub fn rows(&self, progress: &Progress) -> Vec<Row> {
        rows::table(&progress.trials, &self.objective, self.cores)
    }

    /// Runs each entry that has not yet run that often; false if the budget or the guard ended it.
    fn run_each(&self, entries: &[(Entry, u32)], progress: &mut Progress) -> Result<bool> {
        for (entry, repetition) in entries {
            if self.runs(entry, progress) >= *repetition {
                continue;
            }
            if self.is_stopped() || self.lacks_time(entry, progress) {
                return Ok(false);
            }
            let Some(trial) = self.run(entry, *repetition, progress)? else { return Ok(false) };
            (self.keep)(&trial);
            progress.trials.push(trial);
            progress.learn();
            if let Some(trial) = progress.trials.last() {
                self.observer.trial_ended(trial, &self.rows(progress));
            }
        }
        Ok(true)
    }

    /// One entry's run; None if the guard ended it.
    fn run(&self, entry: &Entry, repetition: u32, progress: &mut Progress) -> Result<Option<Trial>> {
        let occasion = |role| Occasion { role, repetition, compares: repetition == 1 };
        let predicted = match entry {
            Entry::Own(settings, _) if !settings.compression.is_auto() => Some(progress.model.predict(settings)),
            _ => None,
        };
        if let Some(why) = self.bench.guard.refuses(self.space_needed(entry, predicted.as_ref())) {
            self.say(progress, format!("{} was not run: {why}", self.name(entry)));
            return Ok(Some(Trial { failed: Some(why), predicted, ..self.not_run(entry, repetition) }));
        }
        self.observer.trial_begins(&format!("{} (run {repetition})", self.name(entry)));
        let run = || match entry {
            Entry::Baseline => self.bench.baseline(&self.defaults, occasion(role::BASELINE)),
            Entry::Own(settings, role) => self.bench.own(settings, 0, occasion(role)),
            Entry::WithParity(settings, count) => self.bench.own(settings, *count, occasion(role::PARITY)),
            Entry::Other(tool) => {
                self.bench.contestant(tool, self.place, occasion(role::CONTESTANT), self.source_bytes)
            }
        };
        let mut done = run();
        if let Ok(Trial { failed: Some(why), .. }) = &done
            && !matches!(entry, Entry::Other(_))
            && self.bench.guard.verdict().is_none()
        {
            self.say(progress, format!("{} failed and was run again: {why}", self.name(entry)));
            self.wait_for_server();
            done = run();
        }
        match (done, self.bench.guard.verdict()) {
            (_, Some(why)) => {
                self.say(progress, format!("the trials were stopped: {why}"));
                Ok(None)
            }
            (Ok(trial), None) => Ok(Some(Trial { predicted, ..trial })),
            (Err(error), None) => Err(error),
        }
    }

    /// A server that was restarted in the middle of a trial is back after a while.
    fn wait_for_server(&self) {
        let tries = SERVER_WAIT.as_millis() / SERVER_TRY_EVERY.as_millis();
        for _ in 0..tries {
            if self.bench.guard.stops() || Connection::connect(self.server).is_ok() {
                return;
            }
            pause(SERVER_TRY_EVERY);
        }
    }

    fn not_run(&self, entry: &Entry, repetition: u32) -> Trial {
        let (contestant, setting, settings, role) = match entry {
            Entry::Baseline => (rows::OWN_NAME, self.name(entry), None, role::BASELINE),
            Entry::Own(settings, role) => (rows::OWN_NAME, settings.to_string(), Some(settings.clone()), *role),
            Entry::WithParity(settings, count) => {
                (rows::OWN_NAME, setting_text(settings, *count), Some(settings.clone()), role::PARITY)
            }
            Entry::Other(tool) => (tool.name(), tool.setting(), None, role::CONTESTANT),
        };
        Trial {
            contestant: contestant.to_owned(),
            setting,
            settings,
            role: role.to_owned(),
            repetition,
            ..Trial::default()
        }
    }

    fn name(&self, entry: &Entry) -> String {
        match entry {
            Entry::Baseline => "NUL baseline".to_owned(),
            Entry::Own(settings, _) => settings.to_string(),
            Entry::WithParity(settings, count) => setting_text(settings, *count),
            Entry::Other(tool) => format!("{} {}", tool.name(), tool.setting()),
        }
    }

    /// The backup and the restored files lie there at the same time.
    fn space_needed(&self, entry: &Entry, predicted: Option<&Prediction>) -> u64 {
        match (entry, predicted) {
            (Entry::Baseline, _) => 0,
            (Entry::WithParity(settings, count), _) => {
                2 * self.source_bytes + self.source_bytes * u64::from(*count) / u64::from(settings.stripes)
            }
            (_, Some(predicted)) => self.source_bytes + predicted.stored_bytes,
            (_, None) => 2 * self.source_bytes,
        }
    }

    /// How often it has run, failed runs counted: what failed twice fails again.
    fn runs(&self, entry: &Entry, progress: &Progress) -> u32 {
        let own = self.not_run(entry, 1);
        let is_same = |trial: &&Trial| match entry {
            Entry::Baseline => trial.role == role::BASELINE,
            _ => trial.contestant == own.contestant && trial.setting == own.setting,
        };
        progress.trials.iter().filter(is_same).count() as u32
    }

    /// Whether the time left is too short for `entry`, by what it took before or what the model says.
    fn lacks_time(&self, entry: &Entry, progress: &mut Progress) -> bool {
        let Some(budget) = self.budget else { return false };
        // Without these two nothing can be said at all.
        let is_needed = |role| !progress.trials.iter().any(|trial| trial.role == role);
        let needed_s = match entry {
            Entry::Own(_, role::DEFAULT) if is_needed(role::DEFAULT) => return false,
            Entry::Baseline if is_needed(role::BASELINE) => return false,
            Entry::Own(settings, _) | Entry::WithParity(settings, _) => {
                // Of the adaptive level nothing is known but that it is no slower.
                let known = if settings.compression.is_auto() { &self.defaults } else { settings };
                let predicted = progress.model.predict(known);
                predicted.backup.wall_s + predicted.restore.wall_s
            }
            Entry::Baseline => 0.0,
            Entry::Other(_) => {
                let own = self.not_run(entry, 1);
                let before = progress
                    .trials
                    .iter()
                    .find(|trial| trial.contestant == own.contestant && trial.setting == own.setting);
                let walls = before.map(|trial| [&trial.backup, &trial.restore]);
                walls.map_or(0.0, |runs| runs.into_iter().flatten().map(|run| run.wall_s).sum())
            }
        };
        let left_s = budget.as_secs_f64() - self.started.elapsed().as_secs_f64();
        if needed_s <= left_s {
            return false;
        }
        self.say(progress, "the budget is used up; --budget gives it more".to_owned());
        true
    }

    /// Whether `share` of the budget is used.
    fn is_over(&self, share: f64) -> bool {
        self.budget.is_some_and(|budget| self.started.elapsed() > budget.mul_f64(share))
    }

    fn is_stopped(&self) -> bool {
        self.bench.guard.verdict().is_some()
    }

    fn say(&self, progress: &mut Progress, text: String) {
        if !progress.notes.contains(&text) {
            self.observer.note(&text);
            progress.notes.push(text);
        }
    }
}

fn candidate(settings: Settings) -> Entry {
    Entry::Own(settings, role::CANDIDATE)
}

fn once(entries: Vec<Entry>) -> Vec<(Entry, u32)> {
    entries.into_iter().map(|entry| (entry, 1)).collect()
}
