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
//! **What it moves.** One number, the logarithm of a place on the scale of the ladders (`codec/ladder.rs`): of what a byte may
//! cost in an encoder. A frame of pages has another ladder than one without. Between two levels frames take turns such
//! that their mean place is the wanted one, which lies closer to the best trade of time for size than any fixed level
//! does. Pages have no levels beyond a seventh of what the slowest one for other content costs, so the number goes no
//! further than the mean of the ends of the ladders of late frames: it would come back from there too late.
//!
//! **The law** is a PI controller with the transfer buffer as its clock: all delays in the loop (a decision shows when the
//! buffer is done) and the speed at which queues fill are proportional to the time a buffer takes, so gains per buffer time
//! need no tuning to the device. With N encoders a mismatch of cost by the factor e^d changes a queue by about N x d
//! buffers a buffer time; set points are 2 to 3 buffers for 2 encoders, so that slack changes by g = 0.7 to 1 d in it. With
//! `GAIN` = 0.7 and `GAIN_PER_BUFFER` = 0.04 the loop's damping, `GAIN` x sqrt(g) / (2 sqrt(`GAIN_PER_BUFFER`)), is about 1.6.
//! 1 would be as quick as it can be without swinging, if all content were alike and every frame took its time. Where
//! writers and encoders are nearly as fast as each other, content and the scheduler swing the queues, and a level that
//! swings with them pays twice: levels far apart, in turns, are larger and slower than the one between them. At the start
//! frames are fast, and so is the loop: from LZ4 to a level of ten times its cost takes 0.3 to 0.5 s with buffers of 4 MiB.
//! (Buffers of 1 MiB would pass many times within the `SLACK_MEAN_S` that make up for the scheduler: the loop would swing.)
//!
//! **The end.** The last buffers of a run have nothing behind them that would hide their time. When fewer are
//! left than encoders, a buffer may take its share of the time that the others need, and the last one `TAIL_S`.
//!
//! All state is atomics: encoders decide by themselves. Two that decide at once may both use the older state, which
//! is one frame's worth of imprecision.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::PipelineSettings;
use crate::codec::ladder::{Ladder, RUNGS, Turns};

/// Full slack at once makes a frame cost twice as much, or half.
const GAIN: f64 = 0.7;
/// What full slack adds for good in the time of one buffer; see above.
const GAIN_PER_BUFFER: f64 = 0.04;
/// What each stored buffer says before the first one has been written: a writer that has had one for as long as
/// encoders took for another is no faster than they are, and to wait for the set point would fill the queue of a slow
/// device with frames of the fastest levels.
const START_SLACK: f64 = 0.5;
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
const BUFFERS_PER_STEP_MAX: f64 = 2.0;
/// What the very last buffer may take: less than anybody notices, and enough for the fast levels on 4 MiB.
const TAIL_S: f64 = 0.02;
/// Weight of one frame in the mean speed of this machine, and in the mean of what frames could cost.
const FRAME_WEIGHT: f64 = 0.1;
/// Frames below this size say more about fixed costs than about speed.
const SPEED_SAMPLE_BYTES_MIN: usize = 64 * 1024;

/// How full queues should be; from the settings of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetPoints {
    encoders: f64,
    raw: f64,
    stored: f64,
    buffer_bytes: f64,
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
        let (encoders, buffer_bytes) = (f64::from(settings.encoders), f64::from(settings.transfer_size_bytes));
        SetPoints { encoders, raw, stored, buffer_bytes }
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

    /// Moves it towards `value`, by this share of what is between them.
    fn approach(&self, value: f64, share: f64) {
        let now = self.get();
        self.set(now + share * (value - now));
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
    /// This machine's cost of a byte over the rungs'.
    slowness: Shared,
    /// What a byte of the frames of late was to cost, on the mean.
    cost: Shared,
    /// The ends of the ladders of the frames of late, on the mean.
    scale_min: Shared,
    scale_max: Shared,
    /// Share of the CPUs that nobody uses.
    idle: Shared,
    raw_bytes: [AtomicU64; RUNGS.len()],
    kept_raw_bytes: AtomicU64,
}

impl Default for AutoLevel {
    fn default() -> Self {
        AutoLevel {
            started: Instant::now(),
            // These are set with the first frame.
            base: Shared::new(0.0),
            cost: Shared::new(1.0),
            scale_min: Shared::new(1.0),
            scale_max: Shared::new(1.0),
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

impl AutoLevel {
    /// Takes note of the share of the CPUs that was idle lately.
    pub(crate) fn set_idle(&self, share: f64) {
        self.idle.set(share);
    }

    /// The rung, of all rungs, for the next frame; it is one of `ladder`, which is the right one for what the frame holds.
    pub(crate) fn choose(&self, points: &SetPoints, fill: Fill, ladder: Ladder) -> usize {
        self.choose_at(points, fill, ladder, self.started.elapsed())
    }

    fn choose_at(&self, points: &SetPoints, fill: Fill, ladder: Ladder, now: Duration) -> usize {
        let is_first = self.moved_ns.load(Relaxed) == 0;
        if is_first {
            self.base.set(ladder.start().ln());
        }
        let weight = if is_first { 1.0 } else { FRAME_WEIGHT };
        for (mean, end) in [&self.scale_min, &self.scale_max].into_iter().zip(ladder.scale_ends()) {
            mean.approach(end, weight);
        }
        self.integrate(points, slack(points, fill, self.idle.get()), now);
        let turns = ladder.turns(self.bounded(self.base.get() + GAIN * self.slack.get()).exp());
        self.cost.approach(turns.cost_ns_per_byte, weight);
        let tail_cost = self.tail_cost(points, fill, turns.cost_ns_per_byte);
        // No turns there: of few frames none may be the one that takes longer.
        if tail_cost < turns.cost_ns_per_byte { ladder.below_cost(tail_cost) } else { self.take_turns(turns) }
    }

    /// Moves mean slack and base by what the slack now says about the time since they were last moved.
    fn integrate(&self, points: &SetPoints, slack_now: f64, now: Duration) {
        let now_ns = now.as_nanos() as u64;
        let moved_ns = self.moved_ns.load(Relaxed);
        if now_ns <= moved_ns || self.moved_ns.compare_exchange(moved_ns, now_ns, Relaxed, Relaxed).is_err() {
            return;
        }
        let weight = 1.0 - (-((now_ns - moved_ns) as f64 * 1e-9) / SLACK_MEAN_S).exp();
        self.slack.approach(slack_now, weight);
        let buffer_ns = self.slowness.get() * self.cost.get() * points.buffer_bytes;
        let buffers = ((now_ns - moved_ns) as f64 / buffer_ns).min(BUFFERS_PER_STEP_MAX);
        self.base.set(self.bounded(self.base.get() + GAIN_PER_BUFFER * self.slack.get() * buffers));
    }

    /// The logarithm of a place on the scale that frames of late can have.
    fn bounded(&self, log_scale: f64) -> f64 {
        log_scale.clamp(self.scale_min.get().ln(), self.scale_max.get().ln())
    }

    /// What a byte may cost when little is left behind the buffer that it is in.
    fn tail_cost(&self, points: &SetPoints, fill: Fill, wanted: f64) -> f64 {
        let buffers_left = fill.left_bytes as f64 / points.buffer_bytes;
        let own_s = TAIL_S / (points.buffer_bytes * self.slowness.get() * 1e-9);
        own_s + wanted * buffers_left / points.encoders
    }

    /// One of the two, each as often as it is to be used.
    fn take_turns(&self, turns: Turns) -> usize {
        let step = (turns.high_share * f64::from(u32::MAX)) as u32;
        let before = self.turn.fetch_add(step, Relaxed);
        if before.checked_add(step).is_none() { turns.high } else { turns.low }
    }

    /// Takes note of a frame of `raw_bytes` that was encoded, or kept raw, in `took`.
    pub(crate) fn note(&self, rung: usize, raw_bytes: usize, shrank: bool, took: Duration) {
        let count = if shrank { &self.raw_bytes[rung] } else { &self.kept_raw_bytes };
        count.fetch_add(raw_bytes as u64, Relaxed);
        if raw_bytes >= SPEED_SAMPLE_BYTES_MIN {
            let nominal_s = RUNGS[rung].cost_ns_per_byte * raw_bytes as f64 * 1e-9;
            self.slowness.approach(took.as_secs_f64() / nominal_s, FRAME_WEIGHT);
        }
    }

    /// How much was stored at each level that was used, from the fastest; frames that no level made smaller are `none`.
    pub fn shares(&self) -> Vec<LevelShare> {
        let kept = ("none".to_owned(), self.kept_raw_bytes.load(Relaxed));
        let rungs = RUNGS.iter().zip(&self.raw_bytes);
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
