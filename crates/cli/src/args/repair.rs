//! `pagehaul repair` as typed, and what it means.

use clap::Args;
use pagehaul_engine::error::Result;
use pagehaul_engine::repair::RepairRequest;

use super::shared::{BoundArgs, SetArgs};

/// What follows the flags of `repair --help`.
pub(crate) const REPAIR_HELP: &str = "\
Reads every stripe and parity stripe of the backup, and of those that it needs, and puts back what is lost or damaged as \
new files, stripe-0002-r1.phs for stripe-0002.phs: where the stripe was, or in the repository if that place is gone. \
Nothing that is there is changed, and the backup can be restored at every moment as it could before. Only backups that \
were made with --parity can be repaired. Ends with code 40 if something cannot be put back.

Examples:
  pagehaul repair --repo /backup
  pagehaul repair main --repo /backup --set 20261121-201530F --json";

/// Flags of `repair`.
#[derive(Args, Clone, Debug)]
pub(crate) struct RepairArgs {
    /// Which backup.
    #[command(flatten)]
    pub(crate) from: SetArgs,

    /// Bounds.
    #[command(flatten)]
    pub(crate) bounds: BoundArgs,

    /// Print the report as one JSON document on standard output
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

impl RepairArgs {
    /// What was typed, as the engine takes it.
    ///
    /// # Errors
    /// `Usage`, with a hint that names what is valid.
    pub(crate) fn request(&self) -> Result<RepairRequest> {
        Ok(RepairRequest {
            source: self.from.source()?,
            repo: self.from.repo.clone(),
            stripe_from: self.from.stripe_from.clone(),
            label: self.from.label()?,
            max_memory_bytes: self.bounds.max_memory_bytes()?,
            max_rate_bytes_per_s: self.bounds.max_rate_bytes_per_s()?,
        })
    }
}
