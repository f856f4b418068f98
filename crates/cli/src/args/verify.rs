//! `pagehaul verify` as typed, and what it means.

use clap::Args;
use pagehaul_engine::error::Result;
use pagehaul_engine::verify::VerifyRequest;

use super::{parse_label, parse_rate, parse_size};

/// Flags of `verify`.
#[derive(Args, Clone, Debug)]
pub(crate) struct VerifyArgs {
    /// Name of the database system in the repository [default: the only one there is]
    #[arg(value_name = "SOURCE")]
    pub(crate) source: Option<String>,

    /// Repository directory, or throttle:read=200MB/s:DIR to see how a slower device would do
    #[arg(long, value_name = "DIR", env = "PAGEHAUL_REPO", help_heading = "From")]
    pub(crate) repo: String,

    /// Directory to look for stripes that were moved; may be given several times. With throttle:read=200MB/s:DIR
    /// stripes in DIR are read as slowly, moved or not
    #[arg(long, value_name = "DIR", help_heading = "From")]
    pub(crate) stripe_from: Vec<String>,

    /// Which backup: a label of `pagehaul info`, or latest
    #[arg(long, value_name = "LABEL", default_value = "latest", help_heading = "From")]
    pub(crate) set: String,

    /// Threads that read stripes [default: by the number of cores]
    #[arg(long, value_name = "N", help_heading = "How")]
    pub(crate) readers: Option<u16>,

    /// Threads that decompress and check [default: one a core]
    #[arg(long, value_name = "N", help_heading = "How")]
    pub(crate) decoders: Option<u16>,

    /// Refuse to start if the memory ceiling is above this, such as 512MiB
    #[arg(long, value_name = "SIZE", help_heading = "How")]
    pub(crate) max_memory: Option<String>,

    /// Read the stripes no faster than this, such as 200MB/s
    #[arg(long, value_name = "RATE", help_heading = "How")]
    pub(crate) max_rate: Option<String>,

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
            source: self.source.as_deref().map(str::parse).transpose()?,
            repo: self.repo.clone(),
            stripe_from: self.stripe_from.clone(),
            label: parse_label(&self.set)?,
            readers: self.readers,
            decoders: self.decoders,
            max_memory_bytes: self.max_memory.as_deref().map(|text| parse_size("--max-memory", text)).transpose()?,
            max_rate_bytes_per_s: self.max_rate.as_deref().map(|text| parse_rate("--max-rate", text)).transpose()?,
        })
    }
}
