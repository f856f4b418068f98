//! One run of the backup direction: starts the threads of all stages, watches them, collects what they did.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

use super::auto_level::{AutoLevel, SetPoints};
use super::buffer_pool::{Buffer, BufferPool};
use super::chain_reader::{ChainSource, ChainStage};
use super::content_check::ContentCheck;
use super::content_layouts::ContentLayouts;
use super::control::{Control, Progress, RateLimit};
use super::cpu_idle::CpuIdle;
use super::encoder::EncoderStage;
use super::file_reader::{ReadRoot, ReaderStage};
use super::packer::Selection;
use super::parity_writer::Parity;
use super::stats::{PipelineStats, StageMeter};
use super::stream_reader::{StreamSource, StreamStage};
use super::stripe_writer::{Stripe, StripeLoad, StripeQueues, WriterStage};
use super::work::WorkFeed;
use super::{LiveView, PipelineSettings, Tick};
use crate::codec::CodecSpec;
use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::Appender;
use crate::format::file_table::FileTable;
use crate::terms::FileId;

/// How often the supervisor looks.
pub(super) const TICK: Duration = Duration::from_millis(100);

/// What goes in.
pub struct EncodeInput<'a> {
    /// Counts and sizes; `writers` is the number of stripes.
    pub settings: PipelineSettings,
    /// Codec and level.
    pub codec: CodecSpec,
    /// Where the level of `auto` stands; it moves on from one run of a backup to the next.
    pub level: &'a AutoLevel,
    /// Where content comes from.
    pub source: EncodeSource<'a>,
    /// What to read, in which order; for a stream only how much is to come.
    pub feed: &'a WorkFeed,
    /// Knows what the files' pages hold, for a codec that wants to know; None if it does not.
    pub layouts: Option<&'a dyn ContentLayouts>,
    /// Makes the checksums of pages; None if the stripes take none and nothing is selected.
    pub pages: Option<&'a Appender>,
    /// Leaves out what a prior set holds; None stores everything.
    pub selection: Option<&'a dyn Selection>,
    /// Takes every frame that is written, too; None if the set has no parity.
    pub parity: Option<&'a Parity>,
    /// Counters for the display.
    pub progress: &'a Progress,
}

/// Where content comes from.
pub enum EncodeSource<'a> {
    /// Files below a directory, by as many readers as the settings say.
    Files {
        /// The directory.
        root: &'a ReadRoot,
        /// The files.
        table: &'a FileTable,
        /// Looks at all content before it goes on.
        check: &'a dyn ContentCheck,
        /// What is done at the end of reading.
        at_end: Option<AtEnd<'a>>,
    },
    /// What a chain of sets holds, by as many readers as the settings say.
    Chain(&'a ChainSource<'a>),
    /// A stream; one reader.
    Stream {
        /// Gives the content.
        source: Mutex<&'a mut dyn StreamSource>,
        /// Looks at it, in the encoders.
        check: &'a dyn ContentCheck,
    },
}

/// What is done as soon as everything has been read and checked, while the last of it is still being encoded and written.
#[derive(Clone, Copy)]
pub struct AtEnd<'a> {
    /// Does it, once, in the thread of the last reader; not if the run is stopped. Its error stops the run.
    pub then: &'a (dyn Fn() -> Result<()> + Sync),
    /// So many buffers more than the settings have take the end of the content, so that there is time for it.
    pub ahead_buffers: u32,
}

impl EncodeSource<'_> {
    /// How large buffers are. Only what comes from a chain has headers in it; others are full with a transfer, so that stores can send
    /// them as they are.
    fn buffer_bytes(&self, settings: &PipelineSettings) -> usize {
        match self {
            EncodeSource::Files { .. } | EncodeSource::Stream { .. } => settings.transfer_size_bytes as usize,
            EncodeSource::Chain(_) => settings.buffer_bytes(),
        }
    }

    /// Buffers beyond those of the settings.
    fn ahead_buffers(&self) -> u32 {
        match self {
            EncodeSource::Files { at_end: Some(at_end), .. } => at_end.ahead_buffers,
            _ => 0,
        }
    }
}

/// The readers of files or of a chain, or the one of a stream.
enum FirstStage<'i, 's> {
    Files(ReaderStage<'i>),
    Chain(ChainStage<'i>),
    Stream { stage: StreamStage<'i>, source: &'i Mutex<&'s mut dyn StreamSource> },
}

/// What the first stage shares with the run.
struct Shared<'i> {
    pool: &'i BufferPool,
    control: &'i Control,
    meter: &'i StageMeter,
    rate: Option<&'i RateLimit>,
    gone: &'i Mutex<Vec<FileId>>,
}

impl<'i, 's> FirstStage<'i, 's> {
    fn new(input: &'i EncodeInput<'s>, shared: &Shared<'i>) -> Self {
        let Shared { pool, control, meter, rate, gone } = *shared;
        let (feed, progress) = (input.feed, input.progress);
        let frame_size_bytes = input.settings.frame_size_bytes as usize;
        match &input.source {
            EncodeSource::Files { root, table, check, at_end } => FirstStage::Files(ReaderStage {
                root,
                table,
                check: *check,
                at_end: *at_end,
                left: AtomicUsize::new(input.settings.readers.into()),
                feed,
                pool,
                control,
                meter,
                progress,
                rate,
                gone,
                frame_size_bytes,
            }),
            EncodeSource::Chain(source) => {
                let pages = input.pages;
                let stage = ChainStage { source, feed, pages, pool, control, meter, progress, rate, frame_size_bytes };
                FirstStage::Chain(stage)
            }
            EncodeSource::Stream { source, .. } => {
                let stage = StreamStage { feed, pool, control, meter, progress, rate, frame_size_bytes };
                FirstStage::Stream { stage, source }
            }
        }
    }

    fn run(&self, number: usize, out: crossbeam_channel::Sender<Buffer>) {
        match self {
            FirstStage::Files(stage) => stage.run(number, out),
            FirstStage::Chain(stage) => stage.run(number, &out),
            FirstStage::Stream { stage, source } => {
                let mut source = source.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                stage.run(&mut **source, &out);
            }
        }
    }
}

/// What comes out, besides the stripes.
#[derive(Debug, Default)]
pub struct EncodeOutcome {
    /// Files that the server dropped meanwhile, sorted.
    pub gone: Vec<FileId>,
    /// Where the time went.
    pub stats: PipelineStats,
    /// Frames that did not decode to their content right after they were encoded. They are stored as they are.
    pub not_proven_frames: u64,
}

/// What to tell people if so many frames did not come back; None if all did.
pub(crate) fn not_proven_note(frames: u64) -> Option<String> {
    let what = if frames == 1 { "1 frame".to_owned() } else { format!("{frames} frames") };
    (frames > 0).then(|| {
        format!(
            "{what} did not decode to the content right after encoding, stored without a codec: the backup is whole, but the memory or the \
             CPU of this machine, or a library, is not to be trusted: test them before the next backup"
        )
    })
}

/// Reads, encodes and writes everything in the feed to `stripes`.
///
/// # Errors
/// The first error of any stage or of `tick`; later ones are attached. All threads have ended when this returns.
pub fn run_encode(input: &EncodeInput<'_>, stripes: &mut [Stripe], tick: Tick<'_>) -> Result<EncodeOutcome> {
    let (settings, started) = (&input.settings, Instant::now());
    let readers = match input.source {
        EncodeSource::Files { .. } | EncodeSource::Chain(_) => settings.readers,
        EncodeSource::Stream { .. } => 1,
    };
    let parities = input.parity.map_or(0, Parity::stripe_count);
    let thread_count = usize::from(readers) + usize::from(settings.encoders) + stripes.len() + parities;
    let buffer_bytes = input.source.buffer_bytes(settings);
    let (buffers, ahead) = (settings.buffer_count as usize, input.source.ahead_buffers() as usize);
    let pool = BufferPool::with_ahead(buffers, ahead, buffer_bytes, settings.reserve())?;
    let control = Control::new(thread_count);
    let meters: [StageMeter; 3] = Default::default();
    let rate = settings.max_rate_bytes_per_s.map(RateLimit::new);
    let (gone, not_proven) = (Mutex::new(Vec::new()), AtomicU64::new(0));
    let loads: Vec<StripeLoad> = stripes.iter().map(|_| StripeLoad::default()).collect();
    let close = || pool.close();
    let counts = [readers, settings.encoders, stripes.len() as u16];
    let stats = || PipelineStats {
        first: meters[0].stats(counts[0]),
        middle: meters[1].stats(counts[1]),
        last: meters[2].stats(counts[2]),
        // What is done at the end of reading may take longer, and is no work of the data path.
        elapsed_s: meters[2].ended().unwrap_or_else(Instant::now).duration_since(started).as_secs_f64(),
    };
    let shared = Shared { pool: &pool, control: &control, meter: &meters[0], rate: rate.as_ref(), gone: &gone };
    let first_stage = FirstStage::new(input, &shared);
    let encoder_stage = encoder_stage(input, rate.as_ref(), (&pool, &control), (&meters[1], &not_proven));
    let (meter, progress, parity) = (&meters[2], input.progress, input.parity);
    let writer_stage = WriterStage { pool: &pool, control: &control, meter, progress, parity };
    if let Some(parity) = parity {
        parity.begin_run(stripes.len());
    }
    std::thread::scope(|scope| {
        let room = buffers + ahead;
        let (raw_in, raw_out) = crossbeam_channel::bounded::<Buffer>(room);
        let mut senders = Vec::with_capacity(stripes.len());
        for (stripe, load) in stripes.iter_mut().zip(&loads) {
            let (sender, receiver) = crossbeam_channel::bounded::<Buffer>(room);
            senders.push(sender);
            let stage = &writer_stage;
            spawn(scope, "writer", &control, &close, move || stage.run(stripe, &receiver, load));
        }
        for number in 0..parities {
            let (parity, control, progress) = (input.parity, &control, input.progress);
            let write = move || parity.into_iter().for_each(|parity| parity.write_rows(number, control, progress));
            spawn(scope, "parity writer", control, &close, write);
        }
        let queues = StripeQueues { senders, loads: &loads, by_frames: parity.is_some() };
        for _ in 0..settings.encoders {
            let (queues, raw_out) = (queues.clone(), raw_out.clone());
            let stage = &encoder_stage;
            spawn(scope, "encoder", &control, &close, move || stage.run(&raw_out, &queues));
        }
        for number in 0..usize::from(readers) {
            let raw_in = raw_in.clone();
            let stage = &first_stage;
            spawn(scope, "reader", &control, &close, move || stage.run(number, raw_in));
        }
        drop((raw_in, raw_out, queues));
        watch(input, &control, &close, &stats, tick);
    });
    let stats = stats();
    control.into_result()?;
    Ok(EncodeOutcome { gone: sorted(gone), stats, not_proven_frames: not_proven.into_inner() })
}

fn encoder_stage<'a>(
    input: &'a EncodeInput<'_>,
    rate: Option<&'a RateLimit>,
    (pool, control): (&'a BufferPool, &'a Control),
    (meter, not_proven): (&'a StageMeter, &'a AtomicU64),
) -> EncoderStage<'a> {
    EncoderStage {
        codec: input.codec,
        frame_size_bytes: input.settings.frame_size_bytes as usize,
        level: input.level,
        points: SetPoints::new(&input.settings),
        feed: input.feed,
        rate,
        check: match &input.source {
            EncodeSource::Stream { check, .. } => Some(*check),
            EncodeSource::Files { .. } | EncodeSource::Chain(_) => None,
        },
        layouts: input.layouts,
        pages: input.pages,
        selection: input.selection,
        pool,
        control,
        meter,
        not_proven,
    }
}

fn sorted(gone: Mutex<Vec<FileId>>) -> Vec<FileId> {
    let mut gone = gone.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    gone.sort_unstable();
    gone.dedup();
    gone
}

/// Waits for all threads, and tells `tick`, and `auto` how idle the CPUs are, ten times a second.
fn watch(
    input: &EncodeInput<'_>,
    control: &Control,
    close: &dyn Fn(),
    stats: &dyn Fn() -> PipelineStats,
    tick: Tick<'_>,
) {
    let mut cpu_idle = input.codec.is_auto().then(CpuIdle::start);
    let table = match input.source {
        EncodeSource::Files { table, .. } => Some(table),
        EncodeSource::Chain(_) | EncodeSource::Stream { .. } => None,
    };
    control.supervise(TICK, close, &mut || {
        if let Some(cpu_idle) = &mut cpu_idle {
            input.level.set_idle(cpu_idle.share());
        }
        let overdue = control.overdue(&|errand| errand.text(table));
        tick(&LiveView { progress: input.progress, stats: stats(), overdue })
    });
}

/// Stack of a data path thread: the deepest is a codec's, and none of them needs a tenth of this. The page codec needs 48 KiB
/// while it is made; in a build without any optimisation 64 KiB.
pub(crate) const STACK_BYTES: usize = 512 * 1024;

/// Starts a named thread of a stage; a thread that cannot be started stops the run.
pub(super) fn spawn<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    name: &str,
    control: &'scope Control,
    close: &'scope (dyn Fn() + Sync),
    work: impl FnOnce() + Send + 'scope,
) {
    let guard = control.thread_guard(close);
    let job = move || {
        let _guard = guard;
        work();
    };
    let builder = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
    if let Err(cause) = builder.spawn_scoped(scope, job) {
        let error = Error::new(ErrorKind::Configuration, format!("start the {name} threads"), cause);
        control.fail(
            error.hint("use fewer --readers, --encoders or --stripes, or raise the limit of processes (ulimit -u)"),
        );
        close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_did_not_come_back_are_told() {
        assert_eq!(not_proven_note(0), None);
        assert!(not_proven_note(1).unwrap().starts_with("1 frame did not"));
        assert!(not_proven_note(20).unwrap().starts_with("20 frames did not"));
    }
}
