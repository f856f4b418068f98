//! `pagehaul verify` as typed, and what it means.

use clap::Args;
use pagehaul_engine::error::Result;
use pagehaul_engine::verify::VerifyRequest;

use super::shared::{BoundArgs, DecodeArgs, SetArgs};

/// What follows the flags of `verify --help`.
pub(crate) const VERIFY_HELP: &str = "\
Ends with code 40 if anything is not as it was written, also where parity gives it back: then the backup can be restored, \
and should be repaired.

Examples:
  pagehaul verify --repo /backup
  pagehaul verify main --repo /backup --set 20261121-201530F --max-rate 100MB/s";

/// Flags of `verify`.
#[derive(Args, Clone, Debug)]
pub(crate) struct VerifyArgs {
    /// Which backup.
    #[command(flatten)]
    pub(crate) from: SetArgs,

    /// Threads.
    #[command(flatten)]
    pub(crate) decode: DecodeArgs,

    /// Bounds.
    #[command(flatten)]
    pub(crate) bounds: BoundArgs,

    /// Print the report as one JSON document on standard output
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

impl VerifyArgs {
    /// What was typed, as the engine takes it.
    ///
    /// # Errors
    /// `Usage`, with a hint that names what is valid.
    pub(crate) fn request(&self) -> Result<VerifyRequest> {
        Ok(VerifyRequest {
            source: self.from.source()?,
            repo: self.from.repo.clone(),
            stripe_from: self.from.stripe_from.clone(),
            label: self.from.label()?,
            readers: self.decode.readers,
            decoders: self.decode.decoders,
            max_memory_bytes: self.bounds.max_memory_bytes()?,
            max_rate_bytes_per_s: self.bounds.max_rate_bytes_per_s()?,
        })
    }
}
