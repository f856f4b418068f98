//! `pagehaul synthesize` as typed, and what it means.

use clap::Args;
use pagehaul_engine::backup::SynthesizeRequest;
use pagehaul_engine::error::Result;

use super::parse_size_u32;
use super::shared::{BoundArgs, SetArgs};

/// Flags of `synthesize`.
#[derive(Args, Clone, Debug)]
pub(crate) struct SynthesizeArgs {
    /// Which backup.
    #[command(flatten)]
    pub(crate) from: SetArgs,

    /// Directory for stripes, on a disk of its own at best; give it several times to use several disks [default: in the
    /// repository]
    #[arg(long, value_name = "DIR", help_heading = "Whereto")]
    pub(crate) stripe_to: Vec<String>,

    /// Files the backup is written to in parallel [default: one for each --stripe-to]
    #[arg(long, value_name = "N", help_heading = "Whereto")]
    pub(crate) stripes: Option<u16>,

    /// Free text that is kept with the backup [default: that of the backup it is made of]
    #[arg(long, value_name = "TEXT", help_heading = "Whereto")]
    pub(crate) description: Option<String>,

    /// Compress everything anew, as for backup [default: take compressed pieces as they are where they are wanted whole]
    #[arg(long, value_name = "CODEC[:LEVEL]", help_heading = "How")]
    pub(crate) compression: Option<String>,

    /// Threads that read and decompress stripes [default: by the number of cores]
    #[arg(long, value_name = "N", help_heading = "How")]
    pub(crate) readers: Option<u16>,

    /// Threads that compress [default: one a core]
    #[arg(long, value_name = "N", help_heading = "How")]
    pub(crate) encoders: Option<u16>,

    /// Transfer buffers [default: enough for all threads]
    #[arg(long, value_name = "N", help_heading = "How")]
    pub(crate) buffer_count: Option<u32>,

    /// Size of one transfer buffer [default: 1MiB, or the frame size]
    #[arg(long, value_name = "SIZE", help_heading = "How")]
    pub(crate) transfer_size: Option<String>,

    /// Bytes of the source that are compressed as one piece, 64KiB to 4MiB [default: as in the largest backup of the
    /// chain, so that most pieces need not be compressed anew]
    #[arg(long, value_name = "SIZE", help_heading = "How")]
    pub(crate) frame_size: Option<String>,

    /// Bounds.
    #[command(flatten)]
    pub(crate) bounds: BoundArgs,

    /// Print the report as one JSON document on standard output
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

impl SynthesizeArgs {
    /// What was typed, as the engine takes it.
    ///
    /// # Errors
    /// `Usage`, with a hint that names what is valid.
    pub(crate) fn request(&self) -> Result<SynthesizeRequest> {
        let size_u32 = |flag, text: &Option<String>| text.as_deref().map(|text| parse_size_u32(flag, text)).transpose();
        Ok(SynthesizeRequest {
            source: self.from.source()?,
            repo: self.from.repo.clone(),
            label: self.from.label()?,
            stripe_from: self.from.stripe_from.clone(),
            stripe_to: self.stripe_to.clone(),
            stripes: self.stripes,
            compression: self.compression.as_deref().map(str::parse).transpose()?,
            readers: self.readers,
            encoders: self.encoders,
            buffer_count: self.buffer_count,
            transfer_size_bytes: size_u32("--transfer-size", &self.transfer_size)?,
            frame_size_bytes: size_u32("--frame-size", &self.frame_size)?,
            max_memory_bytes: self.bounds.max_memory_bytes()?,
            max_rate_bytes_per_s: self.bounds.max_rate_bytes_per_s()?,
            description: self.description.clone(),
        })
    }
}
