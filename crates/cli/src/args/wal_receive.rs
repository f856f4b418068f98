//! `pagehaul wal receive` as typed, and what it means.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use pagehaul_engine::codec::CodecSpec;
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::wal::ReceiveRequest;

use super::backup::compression_or;

/// Longest time that WAL may wait before it is stored.
const FLUSH_EVERY_S_MAX: f64 = 3600.0;

/// Flags of `wal receive`.
#[derive(Args, Clone, Debug)]
pub(crate) struct WalReceiveArgs {
    /// Name of the database system in the repository
    #[arg(long, value_name = "SOURCE", default_value = "main", help_heading = "What")]
    pub(crate) source: String,

    /// How to reach the server, as libpq writes it: "host=db1 user=backup" [default: the PG* variables]
    #[arg(long, value_name = "CONNINFO", help_heading = "What")]
    pub(crate) connection: Option<String>,

    /// Physical replication slot that keeps WAL on the server while nobody receives it
    #[arg(long, value_name = "NAME", help_heading = "What")]
    pub(crate) slot: Option<String>,

    /// Create the slot if it is not there
    #[arg(long, requires = "slot", help_heading = "What")]
    pub(crate) create_slot: bool,

    /// Go on where the server can, though it has removed WAL that the archive does not have: take a backup then
    #[arg(long, help_heading = "What")]
    pub(crate) accept_gap: bool,

    /// Repository: a directory, or s3://BUCKET/PREFIX?endpoint=URL (gs://, azblob://); a backup makes it
    #[arg(long, value_name = "URL_OR_DIR", env = "PAGEHAUL_REPO", help_heading = "Whereto")]
    pub(crate) repo: String,

    /// Directory for the one segment that is being received [default: the system's for temporary files]
    #[arg(long, value_name = "DIR", help_heading = "Whereto")]
    pub(crate) spool_dir: Option<PathBuf>,

    /// Store WAL at once: commits may wait for it (synchronous_standby_names = 'pagehaul')
    #[arg(long, help_heading = "How")]
    pub(crate) synchronous: bool,

    /// Seconds that WAL may wait before it is stored, which is what a lost server costs
    #[arg(long, value_name = "SECONDS", default_value = "1", conflicts_with = "synchronous", help_heading = "How")]
    pub(crate) flush_every: f64,

    /// none, lz4[:1-12], deflate[:1-12], zstd[:1-22 or -1 to -7], xpress[:1-2], page[:1-5] (as for
    /// `pagehaul wal push`) [default: zstd:1]
    #[arg(long, value_name = "CODEC[:LEVEL]", help_heading = "How")]
    pub(crate) compression: Option<String>,

    /// What makes DEFLATE, for deflate only: auto, isal, libdeflate or qat, as for `pagehaul backup` [default: auto]
    #[arg(long, value_name = "ENGINE", help_heading = "How")]
    pub(crate) deflate_engine: Option<String>,

    /// Print the report as one JSON document on standard output, at the end
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

impl WalReceiveArgs {
    /// What was typed, as the engine takes it.
    ///
    /// # Errors
    /// `Usage`, with a hint that names what is valid.
    pub(crate) fn request(&self) -> Result<ReceiveRequest> {
        if !(0.0..=FLUSH_EVERY_S_MAX).contains(&self.flush_every) {
            let action = format!("use --flush-every {}", self.flush_every);
            return Err(Error::new(ErrorKind::Usage, action, "out of range").hint("0 to 3600 seconds"));
        }
        Ok(ReceiveRequest {
            connection: self.connection.clone(),
            slot: self.slot.clone(),
            create_slot: self.create_slot,
            synchronous: self.synchronous,
            flush_every: Duration::from_secs_f64(self.flush_every),
            accept_gap: self.accept_gap,
            compression: compression_or(
                CodecSpec::DEFAULT_OF_WAL,
                self.compression.as_deref(),
                self.deflate_engine.as_deref(),
            )?,
            spool_dir: self.spool_dir.clone(),
            ..ReceiveRequest::new(self.source.parse()?)
        })
    }
}
