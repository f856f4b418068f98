//! `pagehaul backup` as typed, and what it means.

use std::path::PathBuf;

use clap::Args;
use pagehaul_engine::backup::{BackupRequest, ProtectFor};
use pagehaul_engine::codec::{CodecSpec, DeflateEngine};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::source::postgres::conninfo::ConnectSettings;
use pagehaul_engine::terms::BackupKind;

use super::protect::{TypedLockMode, parse_span};
use super::shared::{BoundArgs, WriteArgs};

/// Flags of `backup`.
#[derive(Args, Clone, Debug)]
pub(crate) struct BackupArgs {
    /// Name of the database system in the repository
    #[arg(value_name = "SOURCE", default_value = "main")]
    pub(crate) source: String,

    /// Data directory of the PostgreSQL cluster [default: ask the server]
    #[arg(long, value_name = "DIR", help_heading = "What")]
    pub(crate) pgdata: Option<PathBuf>,

    /// How to reach the server, as libpq writes it: "host=/run/postgresql port=5432 user=backup" [default: the PG*
    /// variables and the data directory's postmaster.pid]
    #[arg(long, value_name = "CONNINFO", help_heading = "What")]
    pub(crate) connection: Option<String>,

    /// The server reads its files and sends them over the replication protocol, so that nothing of its machine is
    /// needed here [default: if --connection names another machine and --pgdata is not given]
    #[arg(long, conflicts_with = "pgdata", help_heading = "What")]
    pub(crate) remote: bool,
    /// full; diff: what has changed since the last full one; incr: since the last one of any kind. Without a backup to
    /// build on a full one is made, and said so
    #[arg(long = "type", value_name = "TYPE", default_value = "full", help_heading = "What")]
    pub(crate) kind: String,

    /// Fail rather than make a full backup where diff or incr has nothing to build on
    #[arg(long, help_heading = "What")]
    pub(crate) no_full: bool,

    /// on or off: keep a checksum of each page, 0.05 % of the data, so that later backups can tell what has changed
    #[arg(long, value_name = "on|off", default_value = "on", help_heading = "How")]
    pub(crate) page_sums: String,

    /// on: decode every compressed piece again before it is written, and compare, so that a fault of memory, of a CPU or of a
    /// library is found now and not by a restore. off: faster where the CPU is the limit; page decodes back all the same
    #[arg(long, value_name = "on|off", default_value = "on", help_heading = "How")]
    pub(crate) decode_back: String,

    /// Further directory to look for stripes of the backups that this one builds on, if they were moved
    #[arg(long, value_name = "DIR", help_heading = "What")]
    pub(crate) stripe_from: Vec<String>,

    /// Keep anybody from deleting this backup and those it needs for so long from its end on, such as 30d, in buckets with
    /// object lock
    #[arg(long, value_name = "TIME", help_heading = "Whereto")]
    pub(crate) protect_for: Option<String>,

    /// Who may end that before its time: those with a right of their own, or nobody
    #[arg(long, value_name = "MODE", value_enum, default_value = "governance", help_heading = "Whereto")]
    pub(crate) protect_mode: TypedLockMode,

    /// Free text that is kept with the backup
    #[arg(long, value_name = "TEXT", help_heading = "What")]
    pub(crate) description: Option<String>,

    /// Wait for a spread checkpoint instead of asking for an immediate one: gentler, and minutes slower
    #[arg(long, help_heading = "What")]
    pub(crate) spread_checkpoint: bool,

    /// Repository: a directory (made if it is new or empty), an object store (s3://BUCKET/PREFIX?endpoint=URL, gs://,
    /// azblob://; credentials from the environment), NUL to discard the output, or throttle:write=100MB/s,read=200MB/s:
    /// before one of them to see how a slower device would do. Give it several times for several copies from one read: one
    /// that fails does not fail the others, and the exit code is then that of its failure
    #[arg(long, value_name = "URL_OR_DIR", env = "PAGEHAUL_REPO", required = true, help_heading = "Whereto")]
    pub(crate) repo: Vec<String>,

    /// none, lz4[:1-12], deflate[:1-12], zstd[:1-22 or -1 to -7], zstd:low, zstd:medium, zstd:high, xpress[:1-2],
    /// page[:1-5] or page:fast, page:max: takes PostgreSQL's pages apart, smaller than zstd, or auto: as small as the devices leave time for, never slower [default: page]
    #[arg(long, value_name = "CODEC[:LEVEL]", help_heading = "How")]
    pub(crate) compression: Option<String>,

    /// Stripes, threads and buffers.
    #[command(flatten)]
    pub(crate) write: WriteArgs,

    /// Bounds.
    #[command(flatten)]
    pub(crate) bounds: BoundArgs,

    /// Look and plan only: nothing is written, and the server is not put into backup mode
    #[arg(long, help_heading = "Output")]
    pub(crate) dry_run: bool,

    /// Show the plan and the memory sum before the backup starts
    #[arg(long, help_heading = "Output")]
    pub(crate) explain: bool,

    /// Print the report as one JSON document on standard output
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

impl BackupArgs {
    /// What was typed, as the engine takes it.
    ///
    /// # Errors
    /// `Usage`, with a hint that names what is valid.
    pub(crate) fn request(&self) -> Result<BackupRequest> {
        Ok(BackupRequest {
            source: self.source.parse()?,
            pgdata: self.pgdata.clone(),
            connection: self.connection.clone(),
            remote: self.remote || self.names_another_machine()?,
            repo: self.repo.first().cloned().unwrap_or_default(),
            more_repos: self.repo.iter().skip(1).cloned().collect(),
            stripe_to: self.write.stripe_to.clone(),
            stripes: self.write.stripes,
            parity: self.write.parity,
            parity_to: self.write.parity_to.clone(),
            compression: self.codec()?,
            readers: self.write.readers,
            encoders: self.write.encoders,
            buffer_count: self.write.buffer_count,
            transfer_size_bytes: self.write.transfer_size_bytes()?,
            frame_size_bytes: self.write.frame_size_bytes()?,
            max_memory_bytes: self.bounds.max_memory_bytes()?,
            max_rate_bytes_per_s: self.bounds.max_rate_bytes_per_s()?,
            description: self.description.clone(),
            kind: kind(&self.kind)?,
            no_full: self.no_full,
            stripe_from: self.stripe_from.clone(),
            page_sums: on_or_off("--page-sums", &self.page_sums)?,
            fast_checkpoint: !self.spread_checkpoint,
            protect: self.protect_for()?,
            dry_run: self.dry_run,
        })
    }
}

impl BackupArgs {
    fn codec(&self) -> Result<CodecSpec> {
        let codec = compression(self.compression.as_deref(), self.write.deflate_engine.as_deref())?;
        Ok(if on_or_off("--decode-back", &self.decode_back)? { codec } else { codec.without_decode_back() })
    }

    fn protect_for(&self) -> Result<Option<ProtectFor>> {
        let span = self.protect_for.as_deref().map(|text| parse_span("--protect-for", text)).transpose()?;
        Ok(span.map(|span| ProtectFor { span, mode: self.protect_mode.meant() }))
    }

    /// Without --pgdata a server that is reached over the network is taken for one on another machine.
    fn names_another_machine(&self) -> Result<bool> {
        match (&self.connection, &self.pgdata) {
            (Some(connection), None) => Ok(!ConnectSettings::parse(connection)?.is_this_machine()),
            _ => Ok(false),
        }
    }
}

fn kind(text: &str) -> Result<BackupKind> {
    match text {
        "full" => Ok(BackupKind::Full),
        "diff" | "differential" => Ok(BackupKind::Differential),
        "incr" | "incremental" => Ok(BackupKind::Incremental),
        _ => Err(Error::new(ErrorKind::Usage, format!("use --type {text}"), "not a type of backup")
            .hint("--type is full, diff or incr")),
    }
}

fn on_or_off(flag: &str, text: &str) -> Result<bool> {
    match text {
        "on" | "true" | "yes" => Ok(true),
        "off" | "false" | "no" => Ok(false),
        _ => Err(Error::new(ErrorKind::Usage, format!("use {flag} {text}"), "neither on nor off")
            .hint(format!("{flag} is on or off"))),
    }
}

/// Read here and not while the command line is parsed, so that the codec's own hint reaches the user.
///
/// `engine` holds for deflate where `text` names none.
///
/// # Errors
/// `Usage`, with all codecs and levels, or all engines.
pub(crate) fn compression(text: Option<&str>, engine: Option<&str>) -> Result<CodecSpec> {
    compression_or(CodecSpec::default(), text, engine)
}

/// As [`compression`], with a default of its own.
///
/// # Errors
/// As [`compression`].
pub(crate) fn compression_or(default: CodecSpec, text: Option<&str>, engine: Option<&str>) -> Result<CodecSpec> {
    let codec: CodecSpec = text.map_or(Ok(default), str::parse)?;
    let engine: DeflateEngine = engine.map_or(Ok(DeflateEngine::Auto), str::parse)?;
    Ok(if codec.engine() == DeflateEngine::Auto { codec.with_engine(engine) } else { codec })
}
