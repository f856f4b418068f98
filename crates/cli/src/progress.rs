//! Watches a verb: a bar on a terminal, a plain line now and then elsewhere, nothing when asked to be quiet.
//!
//! Everything is drawn from the engine's own ticks; there is no thread here.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::pipeline::limit::{Direction, find_limit};
use pagehaul_engine::pipeline::stats::{PipelineStats, StageStats};
use pagehaul_engine::pipeline::{LiveView, Observer, machine_cores};
use pagehaul_engine::storage::tell_of_waits;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};

use crate::exit_code::ExitCode;
use crate::output::{self, figures};

/// How often a line is written where no bar can be drawn.
const LINE_INTERVAL: Duration = Duration::from_secs(10);
/// Rate and limit are those of the last while, this long.
const WINDOW: Duration = Duration::from_secs(1);

/// What a person may see of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Show {
    Bar,
    Lines,
    Nothing,
}

/// The observer of every verb.
pub(crate) struct Console {
    show: Show,
    /// Put before each phase; the demo's phases are steps of its own.
    phase_mark: &'static str,
    interrupted: Arc<AtomicBool>,
    /// Whether --max-rate holds the work back.
    throttled: AtomicBool,
    watch: Mutex<Option<Watch>>,
    drawn: Arc<Drawn>,
}

/// The bar that is on the terminal now, beside which lines are written.
type Drawn = Mutex<Option<ProgressBar>>;

/// One run of the data path.
struct Watch {
    started: Instant,
    bar: Option<ProgressBar>,
    window: Moment,
    said: Instant,
    /// Shown until the next window is full.
    recent: String,
}

/// The counters at one time.
struct Moment {
    at: Instant,
    done_bytes: u64,
    stats: PipelineStats,
}

impl Console {
    /// Watches, and listens to signals: the first asks the work to stop, the second ends the process.
    ///
    /// # Errors
    /// `Bug` if the handlers cannot be installed.
    pub(crate) fn new(quiet: bool) -> Result<Self> {
        let show = match (quiet, std::io::stderr().is_terminal()) {
            (true, _) => Show::Nothing,
            (false, true) => Show::Bar,
            (false, false) => Show::Lines,
        };
        let interrupted = Arc::new(AtomicBool::new(false));
        listen(&interrupted).map_err(|cause| Error::new(ErrorKind::Bug, "listen to signals", cause))?;
        let drawn = Arc::<Drawn>::default();
        let beside = Arc::clone(&drawn);
        tell_of_waits(move |text| say_waiting(&beside, text));
        let (throttled, watch) = (AtomicBool::new(false), Mutex::default());
        Ok(Console { show, phase_mark: "==", interrupted, throttled, watch, drawn })
    }

    /// The same with another mark before its phases.
    #[must_use]
    pub(crate) fn with_phase_mark(mut self, mark: &'static str) -> Self {
        self.phase_mark = mark;
        self
    }

    /// Says whether --max-rate was given, so that it can be named as the limit.
    pub(crate) fn set_throttled(&self, throttled: bool) {
        self.throttled.store(throttled, Relaxed);
    }

    /// Whether something can be drawn and redrawn.
    pub(crate) fn has_terminal(&self) -> bool {
        self.show == Show::Bar
    }

    /// Text for people that is no warning; not when quiet.
    pub(crate) fn tell(&self, text: &str) {
        self.end_watch();
        if self.show != Show::Nothing {
            output::say(text);
        }
    }

    /// Text that people must see.
    pub(crate) fn warn(&self, text: &str) {
        self.end_watch();
        output::say(text);
    }

    /// An error if a signal asked to stop while `action` was due.
    ///
    /// # Errors
    /// `Interrupted`.
    pub(crate) fn stop_if_interrupted(&self, action: &str) -> Result<()> {
        if self.interrupted() {
            return Err(Error::new(ErrorKind::Interrupted, action, "a signal asked to stop"));
        }
        Ok(())
    }

    /// Takes the bar away.
    fn end_watch(&self) {
        if let Some(bar) = lock(&self.watch).take().and_then(|watch| watch.bar) {
            self.clear(&bar);
        }
    }

    fn draw(&self, bar: &ProgressBar) {
        *lock(&self.drawn) = Some(bar.clone());
    }

    fn clear(&self, bar: &ProgressBar) {
        bar.finish_and_clear();
        *lock(&self.drawn) = None;
    }
}

fn lock<T>(slot: &Mutex<T>) -> MutexGuard<'_, T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Also when quiet: nobody may have to guess why nothing goes on.
fn say_waiting(drawn: &Drawn, text: &str) {
    say_beside_bar(drawn, &format!("waiting: {text}"));
}

fn say_beside_bar(drawn: &Drawn, text: &str) {
    match lock(drawn).as_ref() {
        Some(bar) => bar.suspend(|| output::say(text)),
        None => output::say(text),
    }
}

/// A bar of bytes for work that is no run of the data path; nothing where no bar can be drawn.
pub(crate) struct ByteBar<'a> {
    console: &'a Console,
    bar: Option<ProgressBar>,
}

impl<'a> ByteBar<'a> {
    /// A bar that is full at `total_bytes`.
    pub(crate) fn new(console: &'a Console, total_bytes: u64) -> Self {
        let bar = console.has_terminal().then(|| ProgressBar::new(total_bytes));
        let style = ProgressStyle::with_template("[{bar:30}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} to go");
        if let (Some(bar), Ok(style)) = (&bar, style) {
            bar.set_style(style);
            console.draw(bar);
        }
        ByteBar { console, bar }
    }

    /// So many bytes more are done.
    pub(crate) fn add(&self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(bytes);
        }
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            self.console.clear(bar);
        }
    }
}

impl Drop for ByteBar<'_> {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.end_watch();
    }
}

impl Observer for Console {
    fn phase(&self, name: &str) {
        self.tell(&format!("{} {name}", self.phase_mark));
    }

    fn note(&self, text: &str) {
        if self.show != Show::Nothing {
            say_beside_bar(&self.drawn, &format!("note: {text}"));
        }
    }

    fn waiting(&self, text: &str) {
        say_waiting(&self.drawn, text);
    }

    fn progress(&self, direction: Direction, live: &LiveView<'_>) {
        live.overdue.iter().for_each(|line| self.waiting(line));
        if self.show == Show::Nothing {
            return;
        }
        let mut slot = lock(&self.watch);
        let watch = slot.get_or_insert_with(|| {
            let watch = Watch::new(self.show);
            watch.bar.iter().for_each(|bar| self.draw(bar));
            watch
        });
        watch.tick(direction, live, self.throttled.load(Relaxed));
    }

    fn interrupted(&self) -> bool {
        self.interrupted.load(Relaxed)
    }
}

impl Watch {
    fn new(show: Show) -> Self {
        let now = Instant::now();
        let bar = (show == Show::Bar).then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            // The template is a constant; should it ever be wrong, indicatif's own will do.
            let style = ProgressStyle::with_template("[{bar:24}] {wide_msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("##."));
            bar
        });
        let window = Moment { at: now, done_bytes: 0, stats: PipelineStats::default() };
        Watch { started: now, bar, window, said: now, recent: String::new() }
    }

    fn tick(&mut self, direction: Direction, live: &LiveView<'_>, throttled: bool) {
        let done = live.progress.done_bytes.load(Relaxed);
        let total = live.progress.total_bytes.load(Relaxed).max(done);
        let stored = live.progress.stored_bytes.load(Relaxed);
        let now = Instant::now();
        if now.duration_since(self.window.at) >= WINDOW {
            let moment = Moment { at: now, done_bytes: done, stats: live.stats };
            self.close_window(moment, direction, throttled);
        }
        let elapsed_s = now.duration_since(self.started).as_secs_f64();
        let text = || line(done, total, stored, elapsed_s, &self.recent);
        match &self.bar {
            Some(bar) => {
                bar.set_length(total);
                bar.set_position(done);
                bar.set_message(text());
            }
            None if now.duration_since(self.said) >= LINE_INTERVAL => {
                output::say(&format!("   {}", text()));
                self.said = now;
            }
            None => {}
        }
    }

    fn close_window(&mut self, now: Moment, direction: Direction, throttled: bool) {
        let seconds = now.at.duration_since(self.window.at).as_secs_f64();
        let recent = since(&now.stats, &self.window.stats, seconds);
        let limit = find_limit(direction, None, &recent, f64::from(machine_cores()), throttled);
        let rate = figures::rate_of(now.done_bytes.saturating_sub(self.window.done_bytes), seconds);
        self.recent = format!("{rate}  limit: {}", limit.stage);
        self.window = now;
    }
}

/// "1.20 GiB of 3.40 GiB  ETA 5.1 s  ratio 3.02  412 MiB/s  limit: encoders".
fn line(done: u64, total: u64, stored: u64, elapsed_s: f64, recent: &str) -> String {
    let mut text = format!("{} of {}", figures::bytes(done), figures::bytes(total));
    if done > 0 && elapsed_s >= 1.0 {
        let left_s = (total - done) as f64 * elapsed_s / done as f64;
        text.push_str(&format!("  {:.0} s left", left_s.ceil()));
    }
    if stored > 0 {
        text.push_str(&format!("  ratio {}", figures::ratio(done as f64 / stored as f64)));
    }
    if !recent.is_empty() {
        text.push_str(&format!("  {recent}"));
    }
    text
}

fn since(now: &PipelineStats, before: &PipelineStats, elapsed_s: f64) -> PipelineStats {
    PipelineStats {
        first: stage_since(&now.first, &before.first),
        middle: stage_since(&now.middle, &before.middle),
        last: stage_since(&now.last, &before.last),
        elapsed_s,
    }
}

fn stage_since(now: &StageStats, before: &StageStats) -> StageStats {
    StageStats {
        threads: now.threads,
        busy_s: now.busy_s - before.busy_s,
        wait_input_s: now.wait_input_s - before.wait_input_s,
        wait_output_s: now.wait_output_s - before.wait_output_s,
        cpu_s: now.cpu_s - before.cpu_s,
        bytes: now.bytes.saturating_sub(before.bytes),
        buffers: now.buffers.saturating_sub(before.buffers),
    }
}

/// The first SIGINT, SIGTERM or SIGHUP sets the flag; the next SIGINT or SIGTERM ends the process at once.
fn listen(interrupted: &Arc<AtomicBool>) -> std::io::Result<()> {
    let code = i32::from(ExitCode::Failed(ErrorKind::Interrupted).number());
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal must find the flag unset.
        signal_hook::flag::register_conditional_shutdown(signal, code, Arc::clone(interrupted))?;
        signal_hook::flag::register(signal, Arc::clone(interrupted))?;
    }
    if !hangups_are_ignored() {
        signal_hook::flag::register(SIGHUP, Arc::clone(interrupted))?;
    }
    // A write beyond the limit of a file's size fails with an error of its own; without a handler it kills.
    signal_hook::flag::register(SIGXFSZ, Arc::default())?;
    Ok(())
}

/// Under nohup a backup goes on when the terminal is closed.
fn hangups_are_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & (1 << (SIGHUP - 1)) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_far_how_fast_and_what_limits() {
        let text = line(1 << 30, 3 << 30, 512 << 20, 10.0, "102 MiB/s  limit: encoders");
        assert_eq!(text, "1.00 GiB of 3.00 GiB  20 s left  ratio 2.00  102 MiB/s  limit: encoders");
        assert_eq!(line(0, 0, 0, 0.0, ""), "0 B of 0 B");
    }

    #[test]
    fn the_limit_is_that_of_the_last_while() {
        let stage = |busy_s, wait_s| StageStats { threads: 1, busy_s, wait_input_s: wait_s, ..StageStats::default() };
        // Encoders were the limit for ten seconds; in the last one it is the writers.
        let before =
            PipelineStats { first: stage(1.0, 9.0), middle: stage(10.0, 0.0), last: stage(1.0, 9.0), elapsed_s: 10.0 };
        let now =
            PipelineStats { first: stage(1.1, 9.9), middle: stage(10.1, 0.9), last: stage(2.0, 9.0), elapsed_s: 11.0 };
        let recent = since(&now, &before, 1.0);
        assert_eq!(find_limit(Direction::Backup, None, &recent, 8.0, false).stage, "writers");
    }
}
