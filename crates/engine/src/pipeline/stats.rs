//! Where the time of each stage went: busy, waiting for input, waiting for output. Costs a few clock reads a buffer.
//!
//! Names that SQL Server's DBAs know: readers waiting for output is BACKUPBUFFER, readers busy is
//! ASYNC_IO_COMPLETION, writers busy is BACKUPIO, anybody waiting for input is BACKUPTHREAD.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::Serialize;

/// Counters that all threads of a stage share; added to once a buffer.
#[derive(Debug, Default)]
pub(crate) struct StageMeter {
    busy_ns: AtomicU64,
    wait_input_ns: AtomicU64,
    wait_output_ns: AtomicU64,
    cpu_ns: AtomicU64,
    bytes: AtomicU64,
    buffers: AtomicU64,
    ended: Mutex<Option<Instant>>,
}

/// What a thread was doing since the last mark.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Doing {
    /// Its work.
    Busy,
    /// Waiting for something to do.
    WaitInput,
    /// Waiting for a buffer, or throttled.
    WaitOutput,
}

/// One thread's clock; each `mark` charges the time since the last one.
#[derive(Debug)]
pub(crate) struct StageClock<'a> {
    meter: &'a StageMeter,
    last: Instant,
    cpu_ns: u64,
}

impl<'a> StageClock<'a> {
    pub(crate) fn start(meter: &'a StageMeter) -> Self {
        StageClock { meter, last: Instant::now(), cpu_ns: thread_cpu_ns() }
    }

    pub(crate) fn mark(&mut self, doing: Doing) {
        let now = Instant::now();
        let elapsed_ns = now.duration_since(self.last).as_nanos() as u64;
        self.last = now;
        let counter = match doing {
            Doing::Busy => &self.meter.busy_ns,
            Doing::WaitInput => &self.meter.wait_input_ns,
            Doing::WaitOutput => &self.meter.wait_output_ns,
        };
        counter.fetch_add(elapsed_ns, Relaxed);
    }

    /// Counts one buffer that went through.
    pub(crate) fn passed(&mut self, bytes: u64) {
        self.charge_cpu();
        self.meter.bytes.fetch_add(bytes, Relaxed);
        self.meter.buffers.fetch_add(1, Relaxed);
    }
}

impl StageClock<'_> {
    fn charge_cpu(&mut self) {
        let now = thread_cpu_ns();
        self.meter.cpu_ns.fetch_add(now - self.cpu_ns, Relaxed);
        self.cpu_ns = now;
    }
}

impl Drop for StageClock<'_> {
    fn drop(&mut self) {
        self.charge_cpu();
        let mut ended = self.meter.ended.lock().unwrap_or_else(PoisonError::into_inner);
        *ended = (*ended).max(Some(Instant::now()));
    }
}

fn thread_cpu_ns() -> u64 {
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64
}

impl StageMeter {
    /// When the last of its threads ended, of those that did.
    pub(crate) fn ended(&self) -> Option<Instant> {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sums so far, of a stage of `threads`.
    pub(crate) fn stats(&self, threads: u16) -> StageStats {
        let seconds = |counter: &AtomicU64| counter.load(Relaxed) as f64 / 1e9;
        StageStats {
            threads,
            busy_s: seconds(&self.busy_ns),
            wait_input_s: seconds(&self.wait_input_ns),
            wait_output_s: seconds(&self.wait_output_ns),
            cpu_s: seconds(&self.cpu_ns),
            bytes: self.bytes.load(Relaxed),
            buffers: self.buffers.load(Relaxed),
        }
    }
}

/// CPU seconds that one buffer's statistics cost in one stage: three marks and one count, which is what a reader or
/// an encoder does and a writer almost does. Measured here and now, over `rounds`.
pub fn seconds_per_buffer(rounds: u32) -> f64 {
    let meter = StageMeter::default();
    let mut clock = StageClock::start(&meter);
    let before_ns = thread_cpu_ns();
    for _ in 0..rounds {
        clock.mark(Doing::WaitInput);
        clock.mark(Doing::WaitOutput);
        clock.passed(1);
        clock.mark(Doing::Busy);
    }
    (thread_cpu_ns() - before_ns) as f64 / 1e9 / f64::from(rounds.max(1))
}

/// Sums over the threads of one stage, in thread-seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StageStats {
    /// How many threads.
    pub threads: u16,
    /// Working, system calls included.
    pub busy_s: f64,
    /// Waiting for the stage before.
    pub wait_input_s: f64,
    /// Waiting for a free buffer or for --max-rate.
    pub wait_output_s: f64,
    /// CPU time, system calls included.
    pub cpu_s: f64,
    /// Bytes that left the stage.
    pub bytes: u64,
    /// Buffers that left the stage.
    pub buffers: u64,
}

impl StageStats {
    /// Adds the sums of another run of the same stage.
    pub fn add(&mut self, other: &StageStats) {
        self.threads = self.threads.max(other.threads);
        self.busy_s += other.busy_s;
        self.wait_input_s += other.wait_input_s;
        self.wait_output_s += other.wait_output_s;
        self.cpu_s += other.cpu_s;
        self.bytes += other.bytes;
        self.buffers += other.buffers;
    }

    /// Share of the threads' time that was work, 0 to 1.
    pub fn busy_share(&self) -> f64 {
        let total = self.busy_s + self.wait_input_s + self.wait_output_s;
        if total > 0.0 { self.busy_s / total } else { 0.0 }
    }
}

/// The three stages of a run, in the order of the data path.
///
/// Backup: readers, encoders, writers. Restore: stripe readers, decoders, file writers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PipelineStats {
    /// Bring the bytes.
    pub first: StageStats,
    /// Change them.
    pub middle: StageStats,
    /// Put them down.
    pub last: StageStats,
    /// Wall time of the data path.
    pub elapsed_s: f64,
}

impl PipelineStats {
    /// Adds another run through the same stages.
    pub fn add(&mut self, other: &PipelineStats) {
        self.first.add(&other.first);
        self.middle.add(&other.middle);
        self.last.add(&other.last);
        self.elapsed_s += other.elapsed_s;
    }
}
