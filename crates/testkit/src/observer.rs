//! Observers that act at a given moment of a verb, which makes races with it repeatable.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use pagehaul_engine::pipeline::limit::Direction;
use pagehaul_engine::pipeline::{LiveView, Observer};

/// A rate for runs that something stops on the way: none of the tests' clusters is read at it before the tenth progress
/// call, however late a busy machine makes the calls.
pub const CRAWL_BYTES_PER_S: u64 = 512 << 10;

type Action<'a> = Box<dyn FnOnce() + Send + 'a>;

/// Does something once, when a phase begins or at a progress call, and keeps what the verb noted.
#[derive(Default)]
pub struct At<'a> {
    phase: Option<(&'static str, Mutex<Option<Action<'a>>>)>,
    progress: Option<(u64, Mutex<Option<Action<'a>>>)>,
    interrupt_after: Option<u64>,
    interrupt_at: Option<&'static str>,
    is_interrupted: AtomicBool,
    calls: AtomicU64,
    notes: Mutex<Vec<String>>,
}

impl<'a> At<'a> {
    /// When the first phase whose name starts with `phase` begins.
    pub fn phase(phase: &'static str, action: impl FnOnce() + Send + 'a) -> Self {
        At { phase: Some((phase, Mutex::new(Some(Box::new(action))))), ..At::default() }
    }

    /// At the progress call with this number, from 0.
    pub fn progress(number: u64, action: impl FnOnce() + Send + 'a) -> Self {
        At { progress: Some((number, Mutex::new(Some(Box::new(action))))), ..At::default() }
    }

    /// Asks to stop from the progress call with this number on.
    pub fn interrupt_after(number: u64) -> Self {
        At { interrupt_after: Some(number), ..At::default() }
    }

    /// Asks to stop from the first phase on whose name starts with `phase`.
    pub fn interrupt_at(phase: &'static str) -> Self {
        At { interrupt_at: Some(phase), ..At::default() }
    }

    /// What the verb noted.
    pub fn notes(&self) -> Vec<String> {
        self.notes.lock().unwrap().clone()
    }

    /// Whether the action was done.
    pub fn done(&self) -> bool {
        let actions = [self.phase.as_ref().map(|(_, action)| action), self.progress.as_ref().map(|(_, action)| action)];
        actions.into_iter().flatten().all(|action| action.lock().unwrap().is_none())
    }
}

fn act(action: &Mutex<Option<Action<'_>>>) {
    let taken = action.lock().unwrap().take();
    if let Some(taken) = taken {
        taken();
    }
}

impl Observer for At<'_> {
    fn phase(&self, name: &str) {
        if let Some((phase, action)) = &self.phase
            && name.starts_with(phase)
        {
            act(action);
        }
        if self.interrupt_at.is_some_and(|phase| name.starts_with(phase)) {
            self.is_interrupted.store(true, SeqCst);
        }
    }

    fn note(&self, text: &str) {
        self.notes.lock().unwrap().push(text.to_owned());
    }

    fn progress(&self, _direction: Direction, _live: &LiveView<'_>) {
        let number = self.calls.fetch_add(1, SeqCst);
        if let Some((at, action)) = &self.progress
            && number >= *at
        {
            act(action);
        }
    }

    fn interrupted(&self) -> bool {
        self.is_interrupted.load(SeqCst) || self.interrupt_after.is_some_and(|number| self.calls.load(SeqCst) > number)
    }
}
