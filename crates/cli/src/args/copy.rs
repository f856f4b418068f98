//! `pagehaul copy` as typed, and what it means.

use clap::Args;
use pagehaul_engine::copy::CopyRequest;
use pagehaul_engine::error::Result;

use super::shared::BoundArgs;
use super::{parse_label, parse_size_u32};

/// For `--help`.
pub(crate) const COPY_HELP: &str = "\
Everything is checked on the way without being decompressed, and what is there is not copied again. Copies have the label of \
the original and restore to the same bytes. What is damaged is not copied: the command copies all the rest, names \
the damage, and ends with code 40. FROM is only read. Let TO keep its backups at least as long as FROM does, or what has \
expired there comes back.

Examples:
  Every night, behind the backup:
    pagehaul copy main --repo /backup --to /mnt/elsewhere/backup
  Off the site, without taking the line from everybody else:
    pagehaul copy main --repo /backup --to s3://company-backup/main --max-rate 40MB/s
  One backup with what it needs, to take away:
    pagehaul copy main --repo /backup --to /media/disk --set 20261121-201530I
  A site is lost:
    pagehaul restore main --repo s3://company-backup/main --target-dir /restore/main --type latest";

/// Flags of `copy`.
#[derive(Args, Clone, Debug)]
pub(crate) struct CopyArgs {
    /// Name of the database system in the repository [default: the only one there is]
    #[arg(value_name = "SOURCE")]
    pub(crate) source: Option<String>,

    /// Repository to copy from: a directory or an object store
    #[arg(long, value_name = "FROM", env = "PAGEHAUL_REPO", help_heading = "From")]
    pub(crate) repo: String,

    /// Directory to look for stripes that were moved; may be given several times
    #[arg(long, value_name = "DIR", help_heading = "From")]
    pub(crate) stripe_from: Vec<String>,

    /// Copy this backup and those it needs: a label of `pagehaul info`, or latest; may be given several times [default:
    /// all that are not there]
    #[arg(long, value_name = "LABEL", help_heading = "From")]
    pub(crate) set: Vec<String>,

    /// Copy the WAL archive, too [default: yes, unless --set is given]
    #[arg(long, overrides_with = "no_wal", help_heading = "From")]
    pub(crate) wal: bool,

    /// Copy no WAL but what is in the backups
    #[arg(long, overrides_with = "wal", help_heading = "From")]
    pub(crate) no_wal: bool,

    /// Repository to copy to: a directory or an object store; it is made if the place is new or empty
    #[arg(long, value_name = "TO", help_heading = "Whereto")]
    pub(crate) to: String,

    /// Directory for stripes of the copies; may be given several times, and they take turns [default: in the repository]
    #[arg(long, value_name = "DIR", help_heading = "Whereto")]
    pub(crate) stripe_to: Vec<String>,

    /// Objects that are copied at the same time [default: 4]
    #[arg(long, value_name = "N", help_heading = "How")]
    pub(crate) readers: Option<u16>,

    /// Size of one transfer buffer; each object under way has four [default: 1MiB]
    #[arg(long, value_name = "SIZE", help_heading = "How")]
    pub(crate) transfer_size: Option<String>,

    /// Bounds.
    #[command(flatten)]
    pub(crate) bounds: BoundArgs,

    /// Print the report as one JSON document on standard output
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

impl CopyArgs {
    /// What was typed, as the engine takes it.
    ///
    /// # Errors
    /// `Usage`, with a hint that names what is valid.
    pub(crate) fn request(&self) -> Result<CopyRequest> {
        let size = self.transfer_size.as_deref();
        Ok(CopyRequest {
            source: self.source.as_deref().map(str::parse).transpose()?,
            repo: self.repo.clone(),
            to: self.to.clone(),
            sets: self.set.iter().map(|label| parse_label(label)).collect::<Result<_>>()?,
            wal: (self.wal || self.no_wal).then_some(self.wal),
            stripe_from: self.stripe_from.clone(),
            stripe_to: self.stripe_to.clone(),
            readers: self.readers,
            transfer_size_bytes: size.map(|text| parse_size_u32("--transfer-size", text)).transpose()?,
            max_memory_bytes: self.bounds.max_memory_bytes()?,
            max_rate_bytes_per_s: self.bounds.max_rate_bytes_per_s()?,
        })
    }
}
