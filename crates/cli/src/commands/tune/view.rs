//! Tuning as it goes: on a terminal a table that is redrawn after every run, elsewhere a line a run.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pagehaul_engine::pipeline::limit::Direction;
use pagehaul_engine::pipeline::{LiveView, Observer};
use pagehaul_tune::figures::{Row, Trial};
use pagehaul_tune::rounds::TuneObserver;

use super::text::rows_table;
use crate::output::figures::{bytes, duration, percent};
use crate::progress::Console;

/// Rows that the live table shows.
const LIVE_ROWS: usize = 12;

/// Watches a run of `tune`.
pub(in crate::commands) struct View<'a> {
    console: &'a Console,
    started: Instant,
    live: Option<ProgressBar>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    table: String,
    doing: String,
}

impl<'a> View<'a> {
    pub(in crate::commands) fn new(console: &'a Console) -> Self {
        let live = console.has_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        View { console, started: Instant::now(), live, state: Mutex::default() }
    }

    fn draw(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        if let Some(live) = &self.live {
            let elapsed = duration(self.started.elapsed().as_secs_f64());
            live.set_message(format!("{}{elapsed}  {}", state.table, state.doing));
        }
    }

    /// A line that stays, above the table.
    fn say(&self, text: &str) {
        match &self.live {
            Some(live) => live.suspend(|| self.console.tell(text)),
            None => self.console.tell(text),
        }
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        if let Some(live) = &self.live {
            live.finish_and_clear();
        }
    }
}

impl Observer for View<'_> {
    fn phase(&self, _name: &str) {}

    fn note(&self, text: &str) {
        self.say(&format!("note: {text}"));
    }

    fn waiting(&self, text: &str) {
        self.say(&format!("waiting: {text}"));
    }

    fn progress(&self, direction: Direction, live: &LiveView<'_>) {
        use std::sync::atomic::Ordering::Relaxed;
        live.overdue.iter().for_each(|line| self.waiting(line));
        let (done, total) = (live.progress.done_bytes.load(Relaxed), live.progress.total_bytes.load(Relaxed));
        let share = percent(done as f64 / total.max(1) as f64);
        let way = if direction == Direction::Backup { "backup" } else { "restore" };
        self.draw(|state| {
            let what = state.doing.split(" | ").next().unwrap_or_default().to_owned();
            state.doing = format!("{what} | {way} {share} of {}", bytes(total));
        });
    }

    fn interrupted(&self) -> bool {
        self.console.interrupted()
    }
}

impl TuneObserver for View<'_> {
    fn stage(&self, name: &str) {
        self.say(&format!("== {name}"));
        self.draw(|state| state.doing = name.to_owned());
    }

    fn measured(&self, what: &str, done: usize, total: usize) {
        self.draw(|state| state.doing = format!("{done} of {total}: {what}"));
    }

    fn trial_begins(&self, what: &str) {
        self.draw(|state| state.doing = what.to_owned());
    }

    fn trial_ended(&self, trial: &Trial, rows: &[Row]) {
        if self.live.is_none() {
            self.console.tell(&trial_line(trial));
        }
        self.draw(|state| state.table = format!("{}\n", rows_table(rows, LIVE_ROWS)));
    }
}

/// One run on one line, for logs.
fn trial_line(trial: &Trial) -> String {
    let wall = |run: &Option<pagehaul_tune::figures::RunFigures>| {
        run.as_ref().map_or("-".to_owned(), |run| duration(run.wall_s))
    };
    let figures = match &trial.failed {
        Some(why) => format!("failed: {why}"),
        None => {
            format!("backup {}, restore {}, {}", wall(&trial.backup), wall(&trial.restore), bytes(trial.stored_bytes))
        }
    };
    format!("   #{} {} {}: {figures}", trial.repetition, trial.contestant, trial.setting)
}
