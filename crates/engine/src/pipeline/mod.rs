//! THE DATA PATH: all threads live here; it knows no database.
//!
//! ```text
//! backup   files -> file_reader xN -> encoder xN (packer) -> stripe_writer, one a stripe -> stripes
//!          or a server's stream -> stream_reader x1 -> ...
//!          or a chain's stripes -> chain_reader xN -> ...
//! restore  stripes -> stripe_reader xN -> decoder xN -> file_writer xN -> files
//! copy     objects -> copy reader xN (checks) -> copy writer xN -> objects of another store
//! ```
//!
//! Between the stages move transfer buffers of one fixed pool (`buffer_pool.rs`). Queues have room for every buffer
//! there is, so nobody waits to send: stages wait for input, or for a free buffer. The first error stops all threads
//! and is the result (`control.rs`). What each stage did with its time is in `stats.rs`, what a thread waits for too long
//! in `errands.rs`, the verdict in `limit.rs`, the memory ceiling in `ceiling.rs`, the level of `--compression auto` in
//! `auto_level.rs`.

mod auto_level;
mod beside;
mod buffer_pool;
pub mod bundle;
pub mod ceiling;
mod chain_reader;
mod compare_run;
mod content_check;
mod content_layouts;
mod control;
mod copy_run;
mod cpu_idle;
mod decode_run;
mod decoder;
mod encode_run;
mod encoder;
mod errands;
mod file_reader;
mod file_writer;
mod frame_cache;
pub mod frame_reader;
mod frame_store;
pub mod in_order;
pub mod limit;
mod observer;
mod packer;
mod parity_writer;
mod read_through;
pub mod service;
pub mod stats;
mod stream_reader;
mod stripe_reader;
mod stripe_writer;
pub mod usage;
mod work;

pub use crate::codec::{CodecId, CodecSpec, DeflateEngine, RelationLayout, deflate_engine_at_work};
pub use auto_level::{AutoLevel, LevelShare};
pub use beside::beside;
pub use chain_reader::{ChainSource, KnownSums, SumsReader};
pub use compare_run::{CompareInput, OldSums, run_compare};
pub use content_check::{ContentCheck, NoCheck};
pub use content_layouts::ContentLayouts;
pub use control::{Progress, pause};
pub use copy_run::{BUFFERS_PER_LANE, CopyRun, CopySettings, Transfer, TransferCheck, TransferTo, Transfers};
pub use decode_run::{DecodeInput, DecodeOutcome, run_decode};
pub use decoder::{FileTotals, FrameDamage};
pub use encode_run::{AtEnd, EncodeInput, EncodeOutcome, EncodeSource, run_encode};
pub(crate) use encode_run::{STACK_BYTES, not_proven_note};
pub(crate) use errands::watched;
pub use file_reader::ReadRoot;
pub use file_writer::{Mount, WriteRoot};
pub use observer::{NoObserver, Observer};
pub use packer::{Examined, Selection, Selector};
pub use parity_writer::Parity;
pub use read_through::{Unchecked, read_through};
pub use stream_reader::{StreamPart, StreamSource};
pub use stripe_reader::{Extent, ExtentPiece, StripeInput};
pub use stripe_writer::{FinishedStripe, Stripe, SumsObject};
pub use work::{Span, WorkFeed, is_packed};

use crate::error::{Error, ErrorKind, Result};
use crate::limits::{
    BUFFER_COUNT_MAX, FRAME_SIZE_BYTES_MAX, FRAME_SIZE_BYTES_MIN, STAGE_THREADS_MAX, TRANSFER_SIZE_BYTES_MAX,
};

/// Counts and sizes of one run; every one of them may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipelineSettings {
    /// Threads of the first stage.
    pub readers: u16,
    /// Threads of the middle stage: encoders or decoders.
    pub encoders: u16,
    /// Threads of the last stage: stripes, or file writers.
    pub writers: u16,
    /// Transfer buffers.
    pub buffer_count: u32,
    /// Bytes of one transfer buffer.
    pub transfer_size_bytes: u32,
    /// Raw bytes of a full frame.
    pub frame_size_bytes: u32,
    /// Source bytes a second, at most.
    pub max_rate_bytes_per_s: Option<u64>,
}

impl PipelineSettings {
    /// The buffers that this many threads use when nobody says otherwise: one line per holder.
    pub fn default_buffer_count(readers: u16, encoders: u16, writers: u16) -> u32 {
        let (readers, encoders, writers) = (u32::from(readers), u32::from(encoders), u32::from(writers));
        readers // being filled
            + 2 * encoders // waiting to be encoded
            + 2 * encoders // in the encoders' hands: input and output
            + 2 * writers // being written, and waiting behind it
    }

    /// What `auto` uses beyond that when nobody says otherwise: it steers by how full the queues are, most of all those
    /// of the writers, which are to be neither empty nor full.
    pub fn default_buffers_for_auto(encoders: u16, writers: u16) -> u32 {
        u32::from(encoders) + 3 * u32::from(writers)
    }

    /// Buffers that first-stage threads must leave to the middle stage.
    pub(crate) fn reserve(&self) -> usize {
        usize::from(self.encoders).min(self.buffer_count as usize - 1)
    }

    /// Bytes of memory of one buffer: a transfer of frames with their headers.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.transfer_size_bytes as usize + FRAMES_SLACK_BYTES
    }

    /// Checks every value against its bounds.
    ///
    /// # Errors
    /// `Usage`, with the valid range.
    pub fn check(&self) -> Result<()> {
        let range = |name: &str, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            let action = format!("use {name} {value}");
            Err(Error::new(ErrorKind::Usage, action, "out of range").hint(format!("{name} may be {least} to {most}")))
        };
        let threads = u64::from(STAGE_THREADS_MAX);
        range("--readers", self.readers.into(), 1, threads)?;
        range("--encoders", self.encoders.into(), 1, threads)?;
        range("--stripes or --file-writers", self.writers.into(), 1, threads)?;
        range("--buffer-count", self.buffer_count.into(), 2, BUFFER_COUNT_MAX.into())?;
        range("--frame-size", self.frame_size_bytes.into(), FRAME_SIZE_BYTES_MIN.into(), FRAME_SIZE_BYTES_MAX.into())?;
        range(
            "--transfer-size",
            self.transfer_size_bytes.into(),
            self.frame_size_bytes.into(),
            TRANSFER_SIZE_BYTES_MAX.into(),
        )?;
        if !self.frame_size_bytes.is_multiple_of(64 * 1024) {
            return Err(Error::new(
                ErrorKind::Usage,
                format!("use --frame-size {}", self.frame_size_bytes),
                "not a multiple of 64 KiB",
            ));
        }
        Ok(())
    }
}

/// Room for frame headers beside a transfer's worth of stored bytes.
const FRAMES_SLACK_BYTES: usize = 64 * 1024;

/// Called by the supervisor ten times a second; an error stops the run.
pub type Tick<'a> = &'a mut dyn FnMut(&LiveView<'_>) -> Result<()>;

/// What a tick may look at.
pub struct LiveView<'a> {
    /// Counters.
    pub progress: &'a Progress,
    /// The stages so far.
    pub stats: stats::PipelineStats,
    /// What a thread has waited for too long since the last tick, a line for people each; mostly none.
    pub overdue: Vec<String>,
}

/// Fails for a codec whose engine was named and cannot work here, before anything begins.
///
/// # Errors
/// `Configuration`, with what is missing.
pub fn check_codec(codec: CodecSpec, frame_size_bytes: u32) -> Result<()> {
    match codec.engine() {
        DeflateEngine::Auto => Ok(()),
        _ => crate::codec::new_encoder(codec, frame_size_bytes as usize).map(drop),
    }
}

/// State of one encoder, for the ceiling.
pub fn encoder_state_bytes(codec: CodecSpec, frame_size_bytes: u32) -> u64 {
    crate::codec::encoder_state_size_bytes(codec, frame_size_bytes as usize)
}

/// State of one decoder thread that may meet every codec, for the ceiling; without `may_meet_pages` every one but the page
/// codec, whose decoder is as large as a hundred others and is made for the first frame that needs it.
pub fn decoder_state_bytes(may_meet_pages: bool) -> u64 {
    let met = CodecId::ALL.into_iter().filter(|codec| may_meet_pages || *codec != CodecId::Page);
    met.map(crate::codec::decoder_state_size_bytes).sum()
}

/// Cores that this process may use.
pub fn machine_cores() -> u16 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(usize::from(STAGE_THREADS_MAX)) as u16)
}
