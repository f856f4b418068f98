//! `pagehaul synthesize` as typed, and what it means.

use clap::Args;
use pagehaul_engine::backup::SynthesizeRequest;
use pagehaul_engine::error::Result;

use super::compression;
use super::shared::{BoundArgs, SetArgs, WriteArgs};

/// Flags of `synthesize`.
#[derive(Args, Clone, Debug)]
pub(crate) struct SynthesizeArgs {
    /// Which backup.
    #[command(flatten)]
    pub(crate) from: SetArgs,

    /// Free text that is kept with the backup [default: that of the backup it is made of]
    #[arg(long, value_name = "TEXT", help_heading = "Whereto")]
    pub(crate) description: Option<String>,

    /// Compress everything anew, as for backup [default: take compressed pieces as they are where they are wanted whole]
    #[arg(long, value_name = "CODEC[:LEVEL]", help_heading = "How")]
    pub(crate) compression: Option<String>,

    /// Stripes, threads and buffers.
    #[command(flatten)]
    pub(crate) write: WriteArgs,

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
        Ok(SynthesizeRequest {
            source: self.from.source()?,
            repo: self.from.repo.clone(),
            label: self.from.label()?,
            stripe_from: self.from.stripe_from.clone(),
            stripe_to: self.write.stripe_to.clone(),
            stripes: self.write.stripes,
            parity: self.write.parity,
            parity_to: self.write.parity_to.clone(),
            compression: match &self.compression {
                Some(text) => Some(compression(Some(text), self.write.deflate_engine.as_deref())?),
                None => None,
            },
            readers: self.write.readers,
            encoders: self.write.encoders,
            buffer_count: self.write.buffer_count,
            transfer_size_bytes: self.write.transfer_size_bytes()?,
            frame_size_bytes: self.write.frame_size_bytes()?,
            max_memory_bytes: self.bounds.max_memory_bytes()?,
            max_rate_bytes_per_s: self.bounds.max_rate_bytes_per_s()?,
            description: self.description.clone(),
        })
    }
}
