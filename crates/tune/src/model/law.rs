//! The limit law: three stages, all CPUs, and buffers in number. Pure arithmetic on one run.

use crate::codec_table::UNLIMITED_BYTES_PER_S;
use crate::figures::{LimitKind, SpeedAt};

/// How sharply the slowest of three stages decides. Stages of equal speed hold each other up, because a finite number of
/// buffers does not even out all their ups and downs: three equal ones run at 0.87 of their speed with 8, and one that
/// is half as fast as the others loses 0.1 %. Infinity would be the plain minimum.
const SHARPNESS: f64 = 8.0;

/// CPU seconds that the pipeline takes for each transfer buffer beside all that counts by bytes: three hand-overs with
/// wake-ups, clock reads, the choice of a stripe.
const BUFFER_CPU_S: f64 = 15e-6;

/// One stage of a run; all its figures are per byte of the source.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stage {
    /// Bytes a second of all its threads together, with nothing else to do.
    pub(super) bytes_per_s: f64,
    /// CPU seconds a byte.
    pub(super) cpu_s_per_byte: f64,
}

/// A run as the law sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Brings bytes.
    pub(super) first: Stage,
    /// Encoders or decoders.
    pub(super) middle: Stage,
    /// Puts bytes down.
    pub(super) last: Stage,
    /// Cores of the machine.
    pub(super) cores: f64,
    /// Bytes of a transfer buffer.
    pub(super) transfer_size_bytes: f64,
    /// How far the stages overlap, 0 to 1: see [`Crew`].
    pub(super) overlap: f64,
    /// `--max-rate`, in bytes of the source a second.
    pub(super) max_rate_bytes_per_s: Option<f64>,
}

/// What the law says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verdict {
    /// Wall seconds a byte.
    pub(super) wall_s_per_byte: f64,
    /// CPU seconds a byte.
    pub(super) cpu_s_per_byte: f64,
    /// The slowest of all.
    pub(super) limit: LimitKind,
}

impl Load {
    /// Time and limit of each byte of the run.
    pub(super) fn verdict(&self) -> Verdict {
        let stages = [self.first, self.middle, self.last];
        let cpu_s_per_byte = stages.iter().map(|stage| stage.cpu_s_per_byte).sum::<f64>()
            + BUFFER_CPU_S / self.transfer_size_bytes.max(1.0);
        let cpus = self.cores.max(1.0) / cpu_s_per_byte.max(1.0 / UNLIMITED_BYTES_PER_S);
        let (first, middle, last) = (self.first.speed(), self.middle.speed(), self.last.speed());
        // The CPUs are the middle stage's other bound, not a stage beside it: they count once.
        let together = sharpest([first, middle.min(cpus), last]);
        let in_turn = 1.0 / (1.0 / first + 1.0 / middle + 1.0 / last);
        let overlap = self.overlap.clamp(0.0, 1.0);
        let mut wall_s_per_byte = overlap / together + (1.0 - overlap) / in_turn.min(together);
        let mut limits = vec![
            (first, LimitKind::Reading),
            (cpus, LimitKind::Cpu),
            (middle, LimitKind::Coding),
            (last, LimitKind::Writing),
        ];
        if let Some(rate) = self.max_rate_bytes_per_s {
            let rate = rate.max(1.0);
            wall_s_per_byte = wall_s_per_byte.max(1.0 / rate);
            limits.insert(0, (rate, LimitKind::MaxRate));
        }
        let least = limits.iter().min_by(|a, b| a.0.total_cmp(&b.0));
        Verdict { wall_s_per_byte, cpu_s_per_byte, limit: least.map_or(LimitKind::Cpu, |(_, limit)| *limit) }
    }
}

impl Stage {
    fn speed(&self) -> f64 {
        if self.bytes_per_s.is_finite() {
            self.bytes_per_s.clamp(1.0, UNLIMITED_BYTES_PER_S)
        } else {
            UNLIMITED_BYTES_PER_S
        }
    }
}

/// A soft minimum: never above the least, below it where others are as slow.
fn sharpest(speeds: [f64; 3]) -> f64 {
    let least = speeds.iter().copied().fold(f64::INFINITY, f64::min);
    least / speeds.iter().map(|speed| (least / speed).powf(SHARPNESS)).sum::<f64>().powf(1.0 / SHARPNESS)
}

/// Threads of the three stages, and what so many buffers let them do.
///
/// At work a reader holds one buffer, an encoder two and a writer one (`buffer_pool.rs`): with fewer, that share of the
/// threads works. The engine's default count adds what waits between the stages: from two buffers, where everything
/// happens in turn, up to the default the stages overlap more and more. Beyond the default nothing is gained.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crew {
    pub(super) first: f64,
    pub(super) middle: f64,
    pub(super) last: f64,
    /// How far the stages overlap, 0 to 1.
    pub(super) overlap: f64,
}

impl Crew {
    pub(super) fn new(first: u16, middle: u16, last: u16, buffers: u32, buffers_enough: u32) -> Self {
        let [first, middle, last] = [first, middle, last].map(|threads| f64::from(threads.max(1)));
        let (buffers, enough) = (f64::from(buffers.max(2)), f64::from(buffers_enough.max(3)));
        let share = (buffers / (first + 2.0 * middle + last)).min(1.0);
        let working = |threads: f64| (threads * share).max(1.0);
        Crew {
            first: working(first),
            middle: working(middle),
            last: working(last),
            overlap: ((buffers - 2.0) / (enough - 2.0)).clamp(0.0, 1.0),
        }
    }
}

/// What a device does with so many threads, from what it did with some.
///
/// Between measured numbers speed lies on a line, below the least it falls with the threads, above the most it stays. A
/// number of threads is as fast as any smaller one: a lower figure for more of them is noise, or can be had by using
/// fewer. A device that was not measured is unlimited.
pub(super) fn at_threads(speeds: &[SpeedAt], threads: f64) -> SpeedAt {
    let sound = |speed: &&SpeedAt| speed.bytes_per_s.is_finite() && speed.bytes_per_s > 0.0 && speed.threads > 0;
    let mut known: Vec<SpeedAt> = speeds.iter().filter(sound).copied().collect();
    known.sort_by_key(|speed| speed.threads);
    let mut best = 0.0f64;
    for speed in &mut known {
        best = best.max(speed.bytes_per_s);
        speed.bytes_per_s = best;
    }
    let above = known.partition_point(|speed| f64::from(speed.threads) < threads);
    let at = |bytes_per_s: f64, cpu_s_per_byte: f64| SpeedAt { threads: threads as u16, bytes_per_s, cpu_s_per_byte };
    match (above.checked_sub(1).and_then(|below| known.get(below)), known.get(above)) {
        (Some(few), Some(many)) => {
            let share = (threads - f64::from(few.threads)) / f64::from(many.threads - few.threads);
            let mix = |one: f64, two: f64| one + (two - one) * share;
            at(mix(few.bytes_per_s, many.bytes_per_s), mix(few.cpu_s_per_byte, many.cpu_s_per_byte))
        }
        (None, Some(least)) => {
            at(least.bytes_per_s * (threads / f64::from(least.threads)).min(1.0), least.cpu_s_per_byte)
        }
        (Some(most), None) => at(most.bytes_per_s, most.cpu_s_per_byte),
        (None, None) => at(UNLIMITED_BYTES_PER_S, 0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speed(threads: u16, bytes_per_s: f64) -> SpeedAt {
        SpeedAt { threads, bytes_per_s, cpu_s_per_byte: 1e-9 }
    }

    #[test]
    fn speeds_between_and_beyond_what_was_measured() {
        let speeds = [speed(4, 300.0), speed(2, 200.0), speed(8, 250.0)];
        let at = |threads| at_threads(&speeds, threads).bytes_per_s;
        assert_eq!([at(1.0), at(2.0), at(3.0), at(4.0), at(8.0), at(64.0)], [100.0, 200.0, 250.0, 300.0, 300.0, 300.0]);
        assert_eq!(at_threads(&[], 4.0).bytes_per_s, UNLIMITED_BYTES_PER_S);
    }

    #[test]
    fn few_buffers_leave_threads_idle_and_stages_in_turn() {
        let crew = |buffers| Crew::new(2, 2, 4, buffers, 18);
        assert_eq!((crew(18).middle, crew(18).overlap), (2.0, 1.0));
        assert_eq!((crew(100).last, crew(100).overlap), (4.0, 1.0));
        assert_eq!((crew(10).middle, crew(10).overlap), (2.0, 0.5));
        assert_eq!((crew(5).last, crew(5).first), (2.0, 1.0));
        assert_eq!((crew(2).middle, crew(2).overlap), (1.0, 0.0));
    }

    #[test]
    fn the_soft_minimum_is_a_minimum() {
        assert!((sharpest([100.0, 1e9, 1e9]) - 100.0).abs() < 1e-6);
        assert!((0.86..0.88).contains(&sharpest([1.0, 1.0, 1.0])));
        assert!(sharpest([1.0, 2.0, 2.0]) > 0.998);
    }
}
