//! Watches over the machine while trials run: stops before a disk is full, memory is short, or the server answers its
//! users more slowly than allowed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use pagehaul_engine::pipeline::ceiling::MachineMemory;
use pagehaul_engine::pipeline::limit::Direction;
use pagehaul_engine::pipeline::{LiveView, Observer};
use pagehaul_engine::source::postgres::client::Connection;
use pagehaul_engine::source::postgres::conninfo::ConnectSettings;

use crate::scratch::Scratch;

/// Free bytes that a trial must leave on every file system: the server may share it.
pub const FREE_BYTES_MIN: u64 = 512 << 20;
/// Memory that must stay available on the machine.
pub const MEMORY_BYTES_MIN: u64 = 256 << 20;
/// How often the probe query runs.
const PROBE_EVERY: Duration = Duration::from_millis(250);
/// So many slow answers one after the other are no accident.
const SLOW_PROBES: u32 = 3;
/// What the probe asks: a short look into a shared catalog, as every session does.
const PROBE: &str = "SELECT count(*) FROM pg_catalog.pg_database";

/// What is watched, and whether it is still well.
pub struct Guard<'a> {
    user: &'a dyn Observer,
    scratch: &'a Scratch,
    max_impact: Option<Duration>,
    /// The slowest answer of the probe so far.
    slowest_us: AtomicU64,
    tripped: Mutex<Option<String>>,
    is_tripped: AtomicBool,
    ended: AtomicBool,
}

impl<'a> Guard<'a> {
    /// Watches `scratch`; with `max_impact` the server too, once [`Guard::start_probe`] was called.
    pub fn new(user: &'a dyn Observer, scratch: &'a Scratch, max_impact: Option<Duration>) -> Self {
        Guard {
            user,
            scratch,
            max_impact,
            slowest_us: AtomicU64::new(0),
            tripped: Mutex::new(None),
            is_tripped: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    /// Asks the server again and again, on a thread that ends with [`Guard::end`].
    pub fn start_probe<'scope>(
        &'scope self,
        scope: &'scope std::thread::Scope<'scope, '_>,
        server: &ConnectSettings,
    ) -> Option<ScopedJoinHandle<'scope, ()>> {
        let max_impact = self.max_impact?;
        let server = server.clone();
        Some(scope.spawn(move || self.probe(&server, max_impact)))
    }

    fn probe(&self, server: &ConnectSettings, max_impact: Duration) {
        let mut slow = 0;
        let mut connection = None;
        while !self.ended.load(Relaxed) {
            // A server that is being restarted does not answer; that is the trial's matter.
            connection = connection.or_else(|| Connection::connect(server).ok());
            if let Some(live) = &mut connection {
                let asked = Instant::now();
                match live.query_value(PROBE) {
                    Ok(_) => {
                        let took = asked.elapsed();
                        self.slowest_us.fetch_max(took.as_micros() as u64, Relaxed);
                        slow = if took > max_impact { slow + 1 } else { 0 };
                        if slow >= SLOW_PROBES {
                            self.trip(format!(
                                "the server took {:.1} ms for a probe query, {SLOW_PROBES} times running; --max-impact allows {:.1} ms",
                                took.as_secs_f64() * 1e3,
                                max_impact.as_secs_f64() * 1e3
                            ));
                        }
                    }
                    Err(_) => connection = None,
                }
            }
            std::thread::park_timeout(PROBE_EVERY);
        }
    }

    /// Ends the probe.
    pub fn end(&self) {
        self.ended.store(true, Relaxed);
    }

    /// Why it stopped the trials; None while all is well.
    pub fn verdict(&self) -> Option<String> {
        self.tripped.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The slowest answer of the probe so far, in seconds.
    pub fn slowest_probe_s(&self) -> f64 {
        self.slowest_us.load(Relaxed) as f64 / 1e6
    }

    /// Whether a trial that stores about `bytes` may start; if not, why.
    pub fn refuses(&self, bytes: u64) -> Option<String> {
        let free = self.scratch.free_bytes()?;
        (free < bytes.saturating_add(FREE_BYTES_MIN)).then(|| {
            format!(
                "{:.1} MB are free where the trials are stored, {:.1} MB are needed and {:.1} MB must stay free",
                free as f64 / 1e6,
                bytes as f64 / 1e6,
                FREE_BYTES_MIN as f64 / 1e6
            )
        })
    }

    /// Whether work should stop, because of the user or the machine.
    pub fn stops(&self) -> bool {
        self.check();
        self.is_tripped.load(Relaxed) || self.user.interrupted()
    }

    fn check(&self) {
        if let Some(free) = self.scratch.free_bytes().filter(|free| *free < FREE_BYTES_MIN / 2) {
            self.trip(format!("only {:.1} MB are left free where the trials are stored", free as f64 / 1e6));
        }
        let memory = MachineMemory::now();
        if memory.available_bytes < MEMORY_BYTES_MIN {
            self.trip(format!("{} is down to {:.1} MB", memory.whose, memory.available_bytes as f64 / 1e6));
        }
    }

    fn trip(&self, why: String) {
        let mut tripped = self.tripped.lock().unwrap_or_else(PoisonError::into_inner);
        tripped.get_or_insert(why);
        self.is_tripped.store(true, Relaxed);
    }
}

impl Observer for Guard<'_> {
    fn phase(&self, name: &str) {
        self.user.phase(name);
    }

    fn note(&self, text: &str) {
        self.user.note(text);
    }

    fn progress(&self, direction: Direction, live: &LiveView<'_>) {
        self.check();
        self.user.progress(direction, live);
    }

    fn interrupted(&self) -> bool {
        self.is_tripped.load(Relaxed) || self.user.interrupted()
    }
}
