//! One run of the restore direction: stripes to files, or stripes to checks only.

use std::sync::Mutex;
use std::time::Instant;

use super::buffer_pool::{Buffer, BufferPool};
use super::control::{Control, Progress, RateLimit};
use super::decoder::{DamageSink, DecoderStage, FileTotals, FrameDamage};
use super::encode_run::{TICK, spawn};
use super::errands::Errand;
use super::file_writer::{FileWriterStage, WriteRoot};
use super::stats::{PipelineStats, StageMeter};
use super::stripe_reader::{BatchLimits, Cursor, StripeInput, StripeReaderStage};
use super::{LiveView, PipelineSettings, Tick};
use crate::error::Result;
use crate::format::file_table::FileTable;
use crate::terms::SetIndex;

/// What goes in.
pub struct DecodeInput<'a> {
    /// Counts and sizes; `writers` is the number of file writers.
    pub settings: PipelineSettings,
    /// The stripes of the set and of its priors.
    pub stripes: &'a [StripeInput],
    /// Its files.
    pub table: &'a FileTable,
    /// Where the files go; None to check only, and then every frame is read, wanted or not.
    pub target: Option<&'a WriteRoot>,
    /// Hears of each damaged frame; an error stops the run.
    pub on_damage: &'a (dyn Fn(FrameDamage) -> Result<()> + Sync),
    /// Counters for the display.
    pub progress: &'a Progress,
}

/// How many buffers may be filled with what one request brings, once it is decoded: what has become small would else be asked for
/// in many small requests. With more, the last decoders would work for longer while the others have nothing left.
const RAW_BUFFERS_PER_REQUEST: usize = 8;

/// What comes out, besides the files.
#[derive(Debug)]
pub struct DecodeOutcome {
    /// Bytes and digests of every file, to compare with the table.
    pub totals: FileTotals,
    /// Where the time went.
    pub stats: PipelineStats,
}

/// Reads, checks, decodes and writes everything.
///
/// # Errors
/// The first error of any stage, of `on_damage` or of `tick`. All threads have ended when this returns.
pub fn run_decode(input: &DecodeInput<'_>, tick: Tick<'_>) -> Result<DecodeOutcome> {
    let settings = &input.settings;
    let started = Instant::now();
    let writers = if input.target.is_some() { settings.writers } else { 0 };
    let thread_count = usize::from(settings.readers) + usize::from(settings.encoders) + usize::from(writers);
    let pool = BufferPool::new(settings.buffer_count as usize, settings.buffer_bytes(), settings.reserve())?;
    let control = Control::new(thread_count);
    let meters: [StageMeter; 3] = Default::default();
    let rate = settings.max_rate_bytes_per_s.map(RateLimit::new);
    let totals = FileTotals::new(input.table);
    let cursors: Vec<Mutex<Cursor>> = input.stripes.iter().map(|_| Mutex::default()).collect();
    let damage = DamageSink { on_damage: input.on_damage };
    let close = || pool.close();
    let stats = || PipelineStats {
        first: meters[0].stats(settings.readers),
        middle: meters[1].stats(settings.encoders),
        last: meters[2].stats(writers),
        elapsed_s: started.elapsed().as_secs_f64(),
    };
    let transfer_size = settings.transfer_size_bytes as usize;
    let is_remote = input.stripes.iter().any(|stripe| stripe.object.is_remote());
    let limits = BatchLimits {
        frame_raw_bytes: transfer_size,
        raw_bytes: if is_remote { RAW_BUFFERS_PER_REQUEST * transfer_size } else { transfer_size },
        stored_bytes: settings.buffer_bytes(),
        every_frame: input.target.is_none(),
    };
    let reader_stage = StripeReaderStage {
        stripes: input.stripes,
        cursors: &cursors,
        limits,
        pool: &pool,
        control: &control,
        meter: &meters[0],
        progress: input.progress,
        rate: rate.as_ref(),
        damage: &damage,
    };
    let decoder_stage = DecoderStage {
        stripes: input.stripes,
        raw_bytes: transfer_size,
        table: input.table,
        totals: &totals,
        pool: &pool,
        control: &control,
        meter: &meters[1],
        progress: input.progress,
        damage: &damage,
    };
    let stages =
        Stages { settings, reader: &reader_stage, decoder: &decoder_stage, target: input.target, meter: &meters[2] };
    stages.run(writers, &close, &mut || {
        let overdue = control.overdue(&|errand| text_of(errand, input));
        tick(&LiveView { progress: input.progress, stats: stats(), overdue })
    });
    let stats = stats();
    control.into_result()?;
    Ok(DecodeOutcome { totals, stats })
}

/// What a thread waits for; stripes have the numbers that they have in their sets.
fn text_of(errand: Errand, input: &DecodeInput<'_>) -> String {
    match errand {
        Errand::ReadStripe(place) => match input.stripes.get(usize::from(place)) {
            Some(stripe) if stripe.set != SetIndex::OWN => format!("read stripe {} of a prior set", stripe.stripe),
            Some(stripe) => format!("read stripe {}", stripe.stripe),
            None => errand.text(None),
        },
        _ => errand.text(Some(input.table)),
    }
}

/// The stages of one run.
struct Stages<'a> {
    settings: &'a PipelineSettings,
    reader: &'a StripeReaderStage<'a>,
    decoder: &'a DecoderStage<'a>,
    target: Option<&'a WriteRoot>,
    meter: &'a StageMeter,
}

impl Stages<'_> {
    /// Starts all threads and waits for their end.
    fn run(&self, writers: u16, close: &(dyn Fn() + Sync), tick: &mut dyn FnMut() -> Result<()>) {
        let control = self.reader.control;
        std::thread::scope(|scope| {
            let room = self.settings.buffer_count as usize;
            let (stored_in, stored_out) = crossbeam_channel::bounded::<Buffer>(room);
            let (raw_in, raw_out) = crossbeam_channel::bounded::<Buffer>(room);
            for number in 0..usize::from(self.settings.readers) {
                let (stage, stored_in) = (self.reader, stored_in.clone());
                spawn(scope, "stripe reader", control, close, move || stage.run(number, &stored_in));
            }
            for _ in 0..self.settings.encoders {
                let (stage, stored_out, raw_in) = (self.decoder, stored_out.clone(), raw_in.clone());
                let raw_in = self.target.map(|_| raw_in);
                spawn(scope, "decoder", control, close, move || stage.run(&stored_out, raw_in.as_ref()));
            }
            for _ in 0..writers {
                let Some(root) = self.target else { break };
                let (pool, table) = (self.reader.pool, self.decoder.table);
                let stage = FileWriterStage { root, table, pool, control, meter: self.meter };
                let raw_out = raw_out.clone();
                spawn(scope, "file writer", control, close, move || stage.run(&raw_out));
            }
            drop((stored_in, stored_out, raw_in, raw_out));
            control.supervise(TICK, close, tick);
        });
    }
}
