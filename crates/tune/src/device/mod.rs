//! Stage b: what the devices do alone, at growing numbers of threads.
//!
//! Each measurement is bounded in bytes and in time. A short one comes first; it tells how many bytes fit into the time,
//! so that neither a slow disk takes for ever nor a fast one is judged by its first moment. What is written is durable
//! when the clock stops, and is removed however the measurement ends.

pub mod page_cache;
pub mod read;
pub mod restore_target;
pub mod stripes;

use std::time::{Duration, Instant};

use pagehaul_engine::error::{Error, ErrorKind, Result};

use crate::figures::{DeviceFacts, SpeedAt};
use crate::threads::interrupted;

/// What bounds one measurement.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Most bytes.
    pub bytes_max: u64,
    /// Most time; a device that takes longer for one piece is waited for.
    pub time_max: Duration,
}

impl Default for Bounds {
    /// 256 MiB or a second.
    fn default() -> Self {
        Bounds { bytes_max: 256 << 20, time_max: Duration::from_secs(1) }
    }
}

impl Bounds {
    /// For reading, which may come from memory: 1 GiB or two seconds.
    pub fn for_reading() -> Self {
        Bounds { bytes_max: 1 << 30, time_max: Duration::from_secs(2) }
    }

    /// Bytes of the short measurement that comes first.
    fn first_bytes(&self) -> u64 {
        self.bytes_max.min(FIRST_BYTES)
    }

    /// Bytes that fit into the time at the speed that was seen; None if that was measured well enough already.
    fn next_bytes(&self, seen: &SpeedAt, spent: Duration) -> Option<u64> {
        let left_s = self.time_max.saturating_sub(spent).as_secs_f64();
        let bytes = self.bytes_max.min((seen.bytes_per_s * left_s) as u64);
        (self.bytes_max > self.first_bytes() && bytes > self.first_bytes()).then_some(bytes)
    }
}

/// Bytes of a first look at a device.
const FIRST_BYTES: u64 = 16 << 20;

/// Measures with few bytes, and again with as many as the bounds allow at that speed.
fn grow(bounds: &Bounds, mut measure: impl FnMut(u64) -> Result<SpeedAt>) -> Result<SpeedAt> {
    let started = Instant::now();
    let seen = measure(bounds.first_bytes())?;
    match bounds.next_bytes(&seen, started.elapsed()) {
        Some(bytes) => measure(bytes),
        None => Ok(seen),
    }
}

/// Tells measuring threads when to end.
struct Watch<'a> {
    deadline: Instant,
    cancelled: &'a (dyn Fn() -> bool + Sync),
    what: &'static str,
}

impl<'a> Watch<'a> {
    fn new(bounds: &Bounds, cancelled: &'a (dyn Fn() -> bool + Sync), what: &'static str) -> Self {
        Watch { deadline: Instant::now() + bounds.time_max, cancelled, what }
    }

    /// Whether to go on; the first piece is always done.
    fn goes_on(&self, done_bytes: u64) -> Result<bool> {
        if (self.cancelled)() {
            return Err(interrupted(self.what));
        }
        Ok(done_bytes == 0 || Instant::now() < self.deadline)
    }
}

/// Least free space beside what is written, so that a measurement never fills a disk that the server needs.
const FREE_BYTES_KEPT: u64 = 256 << 20;

/// The bytes that may be written to a place with `free_bytes`: at most a quarter of what is there.
///
/// # Errors
/// Of `kind`, naming the place, if not even a short measurement fits.
fn allowed_bytes(wanted: u64, free_bytes: Option<u64>, place: &str, kind: ErrorKind) -> Result<u64> {
    let Some(free) = free_bytes else { return Ok(wanted) };
    let room = free.saturating_sub(FREE_BYTES_KEPT) / 4;
    if room >= wanted.min(FIRST_BYTES) {
        return Ok(wanted.min(room));
    }
    let cause = format!("only {} MiB are free there", free >> 20);
    Err(Error::new(kind, format!("measure the speed of {place}"), cause)
        .hint("free space there, or give another directory"))
}

/// Seconds that a file costs a backup where it was not measured: opening, a small read, its place in the table. From
/// `cargo xtask bench files` (25,000 and 250,000 empty tables, two cores).
pub const BACKUP_FILE_S_USUAL: f64 = 12e-6;
/// The same for a restore: creating it, owner, times, and its part of the sync.
pub const RESTORE_FILE_S_USUAL: f64 = 80e-6;
/// Seconds of a backup beside its data path: an immediate checkpoint of an idle server, begin, end, one WAL segment.
pub const BACKUP_FIXED_S_USUAL: f64 = 0.15;
/// The same for a restore: opening the set, pg_control, syncs.
pub const RESTORE_FIXED_S_USUAL: f64 = 0.10;

/// Fills in the usual figure wherever a cost was not measured; trials correct them.
pub fn fill_in_usual_costs(devices: &mut DeviceFacts) {
    let usual = [
        (&mut devices.backup_file_s, BACKUP_FILE_S_USUAL),
        (&mut devices.restore_file_s, RESTORE_FILE_S_USUAL),
        (&mut devices.backup_fixed_s, BACKUP_FIXED_S_USUAL),
        (&mut devices.restore_fixed_s, RESTORE_FIXED_S_USUAL),
    ];
    for (value, usual) in usual {
        if *value <= 0.0 {
            *value = usual;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(bytes_per_s: f64) -> SpeedAt {
        SpeedAt { threads: 1, bytes_per_s, cpu_s_per_byte: 0.0 }
    }

    #[test]
    fn slow_devices_are_measured_with_few_bytes_and_fast_ones_with_many() {
        let bounds = Bounds::default();
        let mut asked = Vec::new();
        let mut run = |speed: f64| {
            asked.clear();
            grow(&bounds, |bytes| {
                asked.push(bytes);
                Ok(at(speed))
            })
            .unwrap();
            asked.clone()
        };
        assert_eq!(run(10e6), [FIRST_BYTES]);
        assert_eq!(run(1e12), [FIRST_BYTES, 256 << 20]);
        let middle = run(100e6);
        assert_eq!(middle[0], FIRST_BYTES);
        assert!((90_000_000..=100_000_000).contains(&middle[1]), "{middle:?}");
    }

    #[test]
    fn a_full_disk_is_left_alone() {
        let ask = |wanted, free| allowed_bytes(wanted, free, "here", ErrorKind::Repository);
        assert_eq!(ask(256 << 20, None).unwrap(), 256 << 20);
        assert_eq!(ask(256 << 20, Some(100 << 30)).unwrap(), 256 << 20);
        assert_eq!(ask(256 << 20, Some(512 << 20)).unwrap(), 64 << 20);
        let error = ask(256 << 20, Some(300 << 20)).unwrap_err();
        assert!(error.message().contains("300 MiB"), "{error}");
    }

    #[test]
    fn measured_costs_stay() {
        let mut devices = DeviceFacts { backup_fixed_s: 2.0, ..DeviceFacts::default() };
        fill_in_usual_costs(&mut devices);
        assert_eq!((devices.backup_fixed_s, devices.restore_file_s), (2.0, RESTORE_FILE_S_USUAL));
    }
}
