//! Threads that measure: so many at once, with the CPU time that each of them used.

use std::time::Instant;

use pagehaul_engine::error::{Error, ErrorKind, Result};

use crate::figures::SpeedAt;

/// CPU seconds that the calling thread has used, system calls included.
pub(crate) fn thread_cpu_s() -> f64 {
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9
}

/// What threads did together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    pub(crate) threads: u16,
    pub(crate) bytes: u64,
    pub(crate) cpu_s: f64,
    pub(crate) elapsed_s: f64,
}

impl Done {
    /// The speed, with `more_s` seconds of work that came after the threads.
    pub(crate) fn speed(&self, more_s: f64) -> SpeedAt {
        let elapsed_s = (self.elapsed_s + more_s).max(1e-9);
        SpeedAt {
            threads: self.threads,
            bytes_per_s: self.bytes as f64 / elapsed_s,
            cpu_s_per_byte: self.cpu_s / self.bytes.max(1) as f64,
        }
    }
}

/// Runs `work` in `threads` threads, each with its number from 0; `work` gives the bytes it moved.
///
/// # Errors
/// The first error of any thread; `Configuration` if a thread cannot be started, `Bug` if one panicked.
pub(crate) fn in_threads(threads: u16, work: impl Fn(usize) -> Result<u64> + Sync) -> Result<Done> {
    let started = Instant::now();
    let timed = |number: usize| {
        let before = thread_cpu_s();
        work(number).map(|bytes| (bytes, thread_cpu_s() - before))
    };
    let shares = std::thread::scope(|scope| {
        let timed = &timed;
        let spawn = |number| std::thread::Builder::new().spawn_scoped(scope, move || timed(number));
        let handles: Vec<_> = (0..usize::from(threads)).map(spawn).collect();
        let join = |handle: std::io::Result<std::thread::ScopedJoinHandle<'_, Result<(u64, f64)>>>| {
            let handle =
                handle.map_err(|cause| Error::new(ErrorKind::Configuration, "start a measuring thread", cause))?;
            let panicked = || Err(Error::new(ErrorKind::Bug, "run a measuring thread", "it panicked"));
            handle.join().unwrap_or_else(|_| panicked())
        };
        // All are joined before the first error is returned.
        handles.into_iter().map(join).collect::<Vec<_>>()
    });
    let mut done = Done { threads, elapsed_s: started.elapsed().as_secs_f64(), ..Done::default() };
    for share in shares {
        let (bytes, cpu_s) = share?;
        done.bytes += bytes;
        done.cpu_s += cpu_s;
    }
    Ok(done)
}

/// The error of a measurement that was asked to stop.
pub(crate) fn interrupted(what: &str) -> Error {
    Error::new(ErrorKind::Interrupted, what, "asked to stop")
}

/// Random bytes that no codec makes smaller; the same for the same seed (SplitMix64).
pub(crate) fn fill_random(bytes: &mut [u8], seed: u64) {
    let mut state = seed;
    for chunk in bytes.chunks_mut(8) {
        let word = next_random(&mut state).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

/// The next number of SplitMix64.
pub(crate) fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_cpu_time_of_all_threads_are_added() {
        let done = in_threads(3, |number| {
            let mut bytes = vec![0u8; 1 << 20];
            fill_random(&mut bytes, number as u64);
            assert!(bytes.iter().any(|byte| *byte != 0));
            Ok(1 << number)
        });
        let done = done.unwrap();
        assert_eq!((done.threads, done.bytes), (3, 7));
        assert!(done.cpu_s > 0.0 && done.elapsed_s > 0.0);
        assert!(done.speed(1.0).bytes_per_s < done.speed(0.0).bytes_per_s);
    }

    #[test]
    fn an_error_of_one_thread_is_the_result_and_a_panic_is_a_bug() {
        let failed = in_threads(4, |number| if number == 2 { Err(interrupted("count")) } else { Ok(1) });
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Interrupted);
        let panicked = in_threads(2, |number| if number == 1 { panic!("on purpose") } else { Ok(1) });
        assert_eq!(panicked.unwrap_err().kind(), ErrorKind::Bug);
    }
}
