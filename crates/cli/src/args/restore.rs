//! `pagehaul restore` as typed, and what it means.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::restore::{ArchiveMode, RestoreRequest};

use super::parse_size_u32;
use super::recovery::RecoveryArgs;
use super::shared::{BoundArgs, DecodeArgs, SetArgs};

/// Flags of `restore`.
#[derive(Args, Clone, Debug)]
pub(crate) struct RestoreArgs {
    /// Which backup.
    #[command(flatten)]
    pub(crate) from: SetArgs,

    /// Directory to restore into: new or empty, or with --delta one to write over
    #[arg(long, value_name = "DIR", help_heading = "Whereto")]
    pub(crate) target_dir: PathBuf,

    /// Put the tablespace that was at OLD to NEW; may be given several times
    #[arg(long, value_name = "OLD=NEW", help_heading = "Whereto")]
    pub(crate) tablespace_map: Vec<String>,

    /// Write over the stopped cluster, or the interrupted restore, in the target: only what differs is read from the
    /// backup and written, and what the backup does not have is removed
    #[arg(long, help_heading = "Whereto")]
    pub(crate) delta: bool,

    /// With --delta: write over the directory of another cluster too, or of one whose pg_control does not read
    #[arg(long, requires = "delta", help_heading = "Whereto")]
    pub(crate) force: bool,

    /// Restore this database only, and those that every cluster has; by name or OID; may be given several times. The
    /// others come back as holes and can only be dropped
    #[arg(long, value_name = "NAME", help_heading = "From")]
    pub(crate) include_database: Vec<String>,

    /// Owner of the restored files, when run as root [default: found out]
    #[arg(long, value_name = "USER[:GROUP]", help_heading = "Whereto")]
    pub(crate) owner: Option<String>,

    /// How far.
    #[command(flatten)]
    pub(crate) recovery: RecoveryArgs,

    /// Whether the restored cluster archives its WAL: auto is as configured in the original place and off anywhere
    /// else, so that a copy never archives into its original's archive
    #[arg(long, value_name = "MODE", value_enum, default_value = "auto", help_heading = "Recovery")]
    pub(crate) archive_mode: TypedArchiveMode,

    /// Threads.
    #[command(flatten)]
    pub(crate) decode: DecodeArgs,

    /// Threads that write files [default: by the number of cores]
    #[arg(long, value_name = "N", help_heading = "How")]
    pub(crate) file_writers: Option<u16>,

    /// Transfer buffers [default: enough for all threads]
    #[arg(long, value_name = "N", help_heading = "How")]
    pub(crate) buffer_count: Option<u32>,

    /// Size of one transfer buffer [default: that of the backup]
    #[arg(long, value_name = "SIZE", help_heading = "How")]
    pub(crate) transfer_size: Option<String>,

    /// Bounds.
    #[command(flatten)]
    pub(crate) bounds: BoundArgs,

    /// Check everything and write nothing
    #[arg(long, help_heading = "Output")]
    pub(crate) dry_run: bool,

    /// Print the report as one JSON document on standard output
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

/// Values of `--archive-mode`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum TypedArchiveMode {
    Auto,
    Preserve,
    Off,
}

impl RestoreArgs {
    /// What was typed, as the engine takes it.
    ///
    /// # Errors
    /// `Usage`, with a hint that names what is valid.
    pub(crate) fn request(&self) -> Result<RestoreRequest> {
        let transfer_size = self.transfer_size.as_deref();
        let mut request = RestoreRequest {
            source: self.from.source()?,
            stripe_from: self.from.stripe_from.clone(),
            label: self.from.label()?,
            tablespace_map: self.tablespace_map.iter().map(|text| tablespace(text)).collect::<Result<_>>()?,
            archive_mode: match self.archive_mode {
                TypedArchiveMode::Auto => ArchiveMode::Auto,
                TypedArchiveMode::Preserve => ArchiveMode::Preserve,
                TypedArchiveMode::Off => ArchiveMode::Off,
            },
            owner: self.owner.clone(),
            readers: self.decode.readers,
            decoders: self.decode.decoders,
            file_writers: self.file_writers,
            buffer_count: self.buffer_count,
            transfer_size_bytes: transfer_size.map(|text| parse_size_u32("--transfer-size", text)).transpose()?,
            max_memory_bytes: self.bounds.max_memory_bytes()?,
            max_rate_bytes_per_s: self.bounds.max_rate_bytes_per_s()?,
            include_databases: self.include_database.clone(),
            delta: self.delta,
            force: self.force,
            dry_run: self.dry_run,
            wal_get_program: std::env::current_exe().ok(),
            ..RestoreRequest::new(self.from.repo.clone(), self.target_dir.clone())
        };
        self.recovery.apply(&mut request)?;
        Ok(request)
    }
}

fn tablespace(text: &str) -> Result<(PathBuf, PathBuf)> {
    match text.split_once('=') {
        Some((old, new)) if old.starts_with('/') && new.starts_with('/') => Ok((old.into(), new.into())),
        _ => Err(Error::new(ErrorKind::Usage, format!("use {text:?} for --tablespace-map"), "not of the form OLD=NEW")
            .hint("both are absolute paths: --tablespace-map /disk1/fast=/restore/fast")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tablespaces_are_two_absolute_paths() {
        assert_eq!(tablespace("/a=/b").unwrap(), (PathBuf::from("/a"), PathBuf::from("/b")));
        for bad in ["", "/a", "a=/b", "/a=b", "="] {
            assert_eq!(tablespace(bad).unwrap_err().kind(), ErrorKind::Usage, "{bad}");
        }
    }
}
