//! What all threads of a run share: the stop flag, the first error, the progress counters, the rate limit.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::errands::{Errand, Errands, Post};
use crate::error::{Error, ErrorKind, Result};

/// Later errors of a run that are kept beside the first one.
const ATTACHED_ERRORS_MAX: usize = 8;

/// Shared state of one run.
#[derive(Debug)]
pub(crate) struct Control {
    stopped: AtomicBool,
    error: Mutex<Option<(Error, usize)>>,
    active: Mutex<usize>,
    ended: Condvar,
    errands: Errands,
}

impl Control {
    /// For a run of `threads` threads.
    pub(crate) fn new(threads: usize) -> Self {
        Control {
            stopped: AtomicBool::new(false),
            error: Mutex::new(None),
            active: Mutex::new(threads),
            ended: Condvar::new(),
            errands: Errands::new(threads),
        }
    }

    /// Records an error and stops the run; the first one is reported, later ones are attached to it.
    pub(crate) fn fail(&self, error: Error) {
        let mut slot = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        match slot.as_mut() {
            None => *slot = Some((error, 0)),
            Some((first, attached)) if *attached < ATTACHED_ERRORS_MAX => {
                first.attach(error);
                *attached += 1;
            }
            Some(_) => {}
        }
        self.stopped.store(true, Relaxed);
    }

    /// Whether the run is to end early.
    pub(crate) fn stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    /// Where the thread that asks says what it waits for.
    pub(super) fn post(&self) -> Post<'_> {
        self.errands.post()
    }

    /// A line for people of whatever a thread has waited for too long since the last call.
    pub(super) fn overdue(&self, text: &dyn Fn(Errand) -> String) -> Vec<String> {
        self.errands.overdue(text)
    }

    /// The first error, if any.
    pub(crate) fn into_result(self) -> Result<()> {
        match self.error.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some((error, _)) => Err(error),
            None => Ok(()),
        }
    }

    /// A guard for a thread: when it ends, however it ends, the supervisor hears of it.
    pub(crate) fn thread_guard<'a>(&'a self, on_stop: &'a (dyn Fn() + Sync)) -> ThreadGuard<'a> {
        ThreadGuard { control: self, on_stop }
    }

    /// Waits until all threads ended; calls `tick` every `interval`, whose error stops the run.
    pub(crate) fn supervise(&self, interval: Duration, on_stop: &dyn Fn(), tick: &mut dyn FnMut() -> Result<()>) {
        let mut active = self.active.lock().unwrap_or_else(PoisonError::into_inner);
        while *active > 0 {
            let (guard, timeout) = self.ended.wait_timeout(active, interval).unwrap_or_else(PoisonError::into_inner);
            active = guard;
            if *active > 0 && timeout.timed_out() && !self.stopped() {
                drop(active);
                if let Err(error) = tick() {
                    self.fail(error);
                }
                active = self.active.lock().unwrap_or_else(PoisonError::into_inner);
            }
            if self.stopped() {
                on_stop();
            }
        }
    }
}

/// Tells the supervisor that a thread ended.
pub(crate) struct ThreadGuard<'a> {
    control: &'a Control,
    on_stop: &'a (dyn Fn() + Sync),
}

impl Drop for ThreadGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.control.fail(Error::new(ErrorKind::Bug, "go on", "a thread of the data path panicked, see above"));
        }
        if self.control.stopped() {
            (self.on_stop)();
        }
        *self.control.active.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.control.ended.notify_all();
    }
}

/// How far a run is; read at any time by the progress display.
#[derive(Debug, Default)]
pub struct Progress {
    /// Raw bytes that went through.
    pub done_bytes: AtomicU64,
    /// Raw bytes there are.
    pub total_bytes: AtomicU64,
    /// Bytes put on stripes or read from them.
    pub stored_bytes: AtomicU64,
}

impl Progress {
    /// Sets the raw bytes that there are.
    pub fn set_total(&self, total_bytes: u64) {
        self.total_bytes.store(total_bytes, Relaxed);
    }
}

/// What a rate gives at once after a pause: about the time by which a sleep or a turn on a busy core comes late, which
/// would be lost for the rate otherwise.
const RATE_BURST: Duration = Duration::from_millis(20);

/// A token bucket over bytes, shared by all readers.
#[derive(Debug)]
pub(crate) struct RateLimit {
    bytes_per_s: u64,
    state: Mutex<Instant>,
}

impl RateLimit {
    pub(crate) fn new(bytes_per_s: u64) -> Self {
        RateLimit { bytes_per_s: bytes_per_s.max(1), state: Mutex::new(Instant::now()) }
    }

    /// Whether somebody who asked now would have to wait.
    pub(crate) fn holds_back(&self) -> bool {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) > Instant::now()
    }

    /// Sleeps until `bytes` more may pass, or the run stops.
    pub(crate) fn take(&self, bytes: u64, control: &Control) {
        let cost = Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64);
        let due = {
            let mut next = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            let due = (*next).max(now.checked_sub(RATE_BURST).unwrap_or(now));
            *next = due + cost;
            due
        };
        while let Some(left) = due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            if control.stopped() {
                return;
            }
            std::thread::sleep(left.min(Duration::from_millis(100)));
        }
    }
}

/// Waits for `duration`; the only sleep that the rest of the engine may use.
pub fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
