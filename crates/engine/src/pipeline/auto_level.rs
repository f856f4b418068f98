//! `--compression auto`: chooses the level of every frame so that encoding is never what the run waits for, and no
//! time is left unused.
//!
//! **What it looks at.** Not at busy shares: with all cores in use a thread that waits for a core looks busy. It looks
//! at where the buffers are, which is the same thing without clocks. Buffers pile up in front of the stage that limits
//! the run and are missing behind it:
//!
//! - *raw* buffers wait for encoders and no *stored* ones wait for writers: encoding limits the run, go down;
//! - stored buffers wait for writers: the writers limit it, going up costs no time;
//! - no raw buffers wait and cores are idle: the readers limit it, going up costs no time;
//! - no raw buffers wait and no core is idle: readers, too, want the CPUs that encoders have, go down.
//!
//! So the slack is the larger of "stored above its set point" and "raw below its set point", each from -1 to 1, the
//! second no more than the idle share of the CPUs allows (`cpu_idle.rs`), unless --max-rate is what holds readers back. At slack 0 a writer finds its next buffer
//! and a reader finds a free one, and encoders work all the time.
//!
//! **What it moves.** One number, the logarithm of what a byte may cost in an encoder; levels are points on that scale
//! (`codec/ladder.rs`). Between two levels frames take turns such that their mean cost is the wanted one, which lies
//! closer to the best trade of time for size than any fixed level does.
//!
//! **The law** is a PI controller with the frame as its clock: all delays in the loop (a decision shows when the frame
//! is done) and the speed at which queues fill are proportional to the time a frame takes, so gains per frame time
//! need no tuning to the device. With N encoders a mismatch of cost by the factor e^d changes a queue by about N x d
//! buffers a frame time; set points are 2 to 3 buffers for 2 encoders, so that slack changes by g = 0.7 to 1 d a frame time. With
//! `GAIN` = 0.7 and `GAIN_PER_FRAME` = 0.04 the loop's damping, `GAIN` x sqrt(g) / (2 sqrt(`GAIN_PER_FRAME`)), is about 1.6.
//! 1 would be as quick as it can be without swinging, if all content were alike and every frame took its time. Where
//! writers and encoders are nearly as fast as each other, content and the scheduler swing the queues, and a level that
//! swings with them pays twice: levels far apart, in turns, are larger and slower than the one between them. At the start
//! frames are fast, and so is the loop: from LZ4 to a level of ten times its cost takes 0.3 to 0.5 s with frames of 4 MiB.
//!
//! **The end.** The last frames of a run have nothing behind them that would hide their time. When fewer frames are
//! left than encoders, a frame may take its share of the time that the others need, and the last one `TAIL_S`.
//!
//! All state is atomics: encoders decide by themselves. Two that decide at once may both use the older state, which
//! is one frame's worth of imprecision.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::PipelineSettings;
use crate::codec::ladder::LADDER;

/// Full slack at once makes a frame cost twice as much, or half.
const GAIN: f64 = 0.7;
/// What full slack adds for good in the time of one frame; see above.
const GAIN_PER_FRAME: f64 = 0.04;
/// What each stored buffer says before the first one has been written: a writer that has had one for as long as
/// encoders took for another is no faster than they are, and to wait for the set point would fill the queue of a slow
/// device with frames of the fastest levels.
const START_SLACK: f64 = 0.5;
/// Where a run starts: the first frames are to reach the writers at once, and zstd:1 takes 6 ms for 4 MiB.
const START_RUNG: usize = 1;
/// From this idle share on cores are free.
const IDLE_FREE: f64 = 0.35;
/// Below this idle share readers that come back from a disk often find all cores taken: a higher level then costs time
/// although not all of the CPUs' time is used. An eighth less of it makes frames less than 1 % larger.
const IDLE_NONE: f64 = 0.15;
/// Time over which slack is a mean: some of the scheduler's slices (3 to 10 ms), because a writer or reader that
/// waits for a core lets buffers pile up for that long, and less than a frame of a level that is worth a climb. All of it is
/// delay in the loop.
const SLACK_MEAN_S: f64 = 0.03;
/// Slack with no idle core: enough to end at the fastest level, and not so much that one wrong reading is felt.
const NO_CPU_SLACK: f64 = -0.3;
/// Time that passed without a decision counts for at most so many frames: then the run stood still for other reasons.
const FRAMES_PER_STEP_MAX: f64 = 2.0;
/// What the very last frame may take: less than anybody notices, and enough for zstd's fast levels on 4 MiB.
const TAIL_S: f64 = 0.02;
/// Weight of one frame in the mean speed of this machine.
const SPEED_WEIGHT: f64 = 0.1;
/// Frames below this size say more about fixed costs than about speed.
const SPEED_SAMPLE_BYTES_MIN: usize = 64 * 1024;

/// How full queues should be; from the settings of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetPoints {
    encoders: f64,
    raw: f64,
    stored: f64,
    frame_size_bytes: f64,
}

impl SetPoints {
    /// Of what is not in somebody's hands, a buffer for each encoder, and up to three for each stripe: the one that is
    /// being written, and two behind it, because encoders finish in any order, and because content that suddenly
    /// shrinks more empties the queue faster than the level can follow. More would have faster levels fill it.
    pub(crate) fn new(settings: &PipelineSettings) -> Self {
        let in_hands = u32::from(settings.readers) + 2 * u32::from(settings.encoders);
        let spare = f64::from(settings.buffer_count.saturating_sub(in_hands).max(2));
        let raw = f64::from(settings.encoders).min((spare / 3.0).floor()).max(1.0);
        let stored = (3.0 * f64::from(settings.writers)).min(spare - raw).max(1.0);
        let (encoders, frame_size_bytes) = (f64::from(settings.encoders), f64::from(settings.frame_size_bytes));
        SetPoints { encoders, raw, stored, frame_size_bytes }
    }
}

/// Where the buffers are.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fill {
    /// Buffers that wait for encoders.
    pub(crate) raw: usize,
    /// Buffers that wait for writers, with those that are being written.
    pub(crate) stored: usize,
    /// Whether any buffer has been written yet.
    pub(crate) any_written: bool,
    /// Whether --max-rate holds the readers back, so that they want no CPU.
    pub(crate) readers_held: bool,
    /// Raw bytes that no encoder has taken yet.
    pub(crate) left_bytes: u64,
}

/// A number that encoders share.
#[derive(Debug)]
struct Shared(AtomicU64);

impl Shared {
    fn new(value: f64) -> Self {
        Shared(AtomicU64::new(value.to_bits()))
    }

    fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Relaxed))
    }

    fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Relaxed);
    }
}

/// The level of a backup, over all its runs of the pipeline.
#[derive(Debug)]
pub struct AutoLevel {
    started: Instant,
    /// The logarithm of the wanted cost, without what the present slack adds.
    base: Shared,
    /// The mean slack of late.
    slack: Shared,
    /// When these were last moved, since `started`.
    moved_ns: AtomicU64,
    /// What of a turn the upper of two levels has, in 2^-32.
    turn: AtomicU32,
    /// This machine's cost of a byte over the ladder's.
    slowness: Shared,
    /// Share of the CPUs that nobody uses.
    idle: Shared,
    raw_bytes: [AtomicU64; LADDER.len()],
    kept_raw_bytes: AtomicU64,
}

impl Default for AutoLevel {
    fn default() -> Self {
        AutoLevel {
            started: Instant::now(),
            base: Shared::new(log_cost(START_RUNG)),
            slack: Shared::new(0.0),
            moved_ns: AtomicU64::new(0),
            turn: AtomicU32::new(0),
            slowness: Shared::new(1.0),
            // Neither up nor down until it is known.
            idle: Shared::new(IDLE_NONE),
            raw_bytes: Default::default(),
            kept_raw_bytes: AtomicU64::new(0),
        }
    }
}

/// How much of a backup was stored at one level.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LevelShare {
    /// Codec and level.
    pub compression: String,
    /// Share of all raw bytes that were encoded, 0 to 1.
    pub share: f64,
}

fn log_cost(rung: usize) -> f64 {
    LADDER[rung].cost_ns_per_byte.ln()
}

const TOP: usize = LADDER.len() - 1;

/// The highest rung that costs no more than `cost`, or the lowest.
fn below(cost: f64) -> usize {
    LADDER.iter().rposition(|rung| rung.cost_ns_per_byte <= cost).unwrap_or(0)
}

impl AutoLevel {
    /// Takes note of the share of the CPUs that was idle lately.
    pub(crate) fn set_idle(&self, share: f64) {
        self.idle.set(share);
    }

    /// The rung for the next frame, which has `frame_bytes`.
    pub(crate) fn choose(&self, points: &SetPoints, fill: Fill, frame_bytes: usize) -> usize {
        self.choose_at(points, fill, frame_bytes, self.started.elapsed())
    }

    fn choose_at(&self, points: &SetPoints, fill: Fill, frame_bytes: usize, now: Duration) -> usize {
        self.integrate(points, slack(points, fill, self.idle.get()), now);
        let wanted = (self.base.get() + GAIN * self.slack.get()).clamp(log_cost(0), log_cost(TOP));
        let cost = wanted.exp();
        let tail_cost = self.tail_cost(points, fill, frame_bytes, cost);
        // No turns there: of few frames none may be the one that takes longer.
        if tail_cost < cost { below(tail_cost) } else { self.take_turns(cost) }
    }

    /// Moves mean slack and base by what the slack now says about the time since they were last moved.
    fn integrate(&self, points: &SetPoints, slack_now: f64, now: Duration) {
        let now_ns = now.as_nanos() as u64;
        let moved_ns = self.moved_ns.load(Relaxed);
        if now_ns <= moved_ns || self.moved_ns.compare_exchange(moved_ns, now_ns, Relaxed, Relaxed).is_err() {
            return;
        }
        let weight = 1.0 - (-((now_ns - moved_ns) as f64 * 1e-9) / SLACK_MEAN_S).exp();
        let slack = self.slack.get() + weight * (slack_now - self.slack.get());
        self.slack.set(slack);
        let base = self.base.get();
        let frame_ns = self.slowness.get() * base.exp() * points.frame_size_bytes;
        let frames = ((now_ns - moved_ns) as f64 / frame_ns).min(FRAMES_PER_STEP_MAX);
        self.base.set((base + GAIN_PER_FRAME * slack * frames).clamp(log_cost(0), log_cost(TOP)));
    }

    /// What a byte of this frame may cost when little is left behind it.
    fn tail_cost(&self, points: &SetPoints, fill: Fill, frame_bytes: usize, cost: f64) -> f64 {
        let frames_left = fill.left_bytes as f64 / points.frame_size_bytes;
        let own_s = TAIL_S / (frame_bytes.max(1) as f64 * self.slowness.get() * 1e-9);
        own_s + cost * frames_left / points.encoders
    }

    /// The rung below or above `cost`, each as often as it takes for the mean to be `cost`.
    fn take_turns(&self, cost: f64) -> usize {
        let below = below(cost);
        let above = (below + 1).min(TOP);
        let (low, high) = (LADDER[below].cost_ns_per_byte, LADDER[above].cost_ns_per_byte);
        if above == below || cost <= low {
            return below;
        }
        let share = (cost - low) / (high - low);
        let step = (share * f64::from(u32::MAX)) as u32;
        let before = self.turn.fetch_add(step, Relaxed);
        if before.checked_add(step).is_none() { above } else { below }
    }

    /// Takes note of a frame of `raw_bytes` that was encoded, or kept raw, in `took`.
    pub(crate) fn note(&self, rung: usize, raw_bytes: usize, shrank: bool, took: Duration) {
        let count = if shrank { &self.raw_bytes[rung] } else { &self.kept_raw_bytes };
        count.fetch_add(raw_bytes as u64, Relaxed);
        if raw_bytes >= SPEED_SAMPLE_BYTES_MIN {
            let nominal_s = LADDER[rung].cost_ns_per_byte * raw_bytes as f64 * 1e-9;
            let slowness = self.slowness.get();
            self.slowness.set(slowness + SPEED_WEIGHT * (took.as_secs_f64() / nominal_s - slowness));
        }
    }

    /// How much was stored at each level that was used, from the fastest; frames that no level made smaller are `none`.
    pub fn shares(&self) -> Vec<LevelShare> {
        let kept = ("none".to_owned(), self.kept_raw_bytes.load(Relaxed));
        let rungs = LADDER.iter().zip(&self.raw_bytes);
        let rungs = rungs.map(|(rung, bytes)| (rung.spec.to_string(), bytes.load(Relaxed)));
        let used: Vec<(String, u64)> = [kept].into_iter().chain(rungs).filter(|(_, bytes)| *bytes > 0).collect();
        let all: u64 = used.iter().map(|(_, bytes)| bytes).sum();
        let share = |(compression, bytes)| LevelShare { compression, share: bytes as f64 / all as f64 };
        used.into_iter().map(share).collect()
    }
}

/// From -1, the run waits for encoders, to 1, encoders wait.
fn slack(points: &SetPoints, fill: Fill, idle: f64) -> f64 {
    let writers = (fill.stored as f64 - points.stored) / points.stored;
    let readers = (points.raw - fill.raw as f64) / points.raw;
    let readers = if fill.readers_held { readers } else { readers.min(cpu_slack(idle)) };
    let slack = writers.max(readers).clamp(-1.0, 1.0);
    if fill.any_written { slack } else { slack.max(START_SLACK * fill.stored as f64).min(1.0) }
}

/// How much the idle share of the CPUs allows.
fn cpu_slack(idle: f64) -> f64 {
    if idle < IDLE_NONE {
        NO_CPU_SLACK * (1.0 - idle / IDLE_NONE)
    } else {
        ((idle - IDLE_NONE) / (IDLE_FREE - IDLE_NONE)).min(1.0)
    }
}

#[cfg(test)]
#[path = "auto_level_tests.rs"]
mod tests;
