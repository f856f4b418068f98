//! Flags about the helper of `wal push` and `wal get`.

use clap::Args;
use pagehaul_engine::error::Result;

use super::tune::parse_time;

/// Whether a helper is used, and for how long it stays.
#[derive(Args, Clone, Debug)]
pub(crate) struct HelperArgs {
    /// Work without the helper that is started to archive or fetch ahead
    #[arg(long)]
    pub(crate) no_helper: bool,

    /// The helper ends after so long without a call
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub(crate) helper_idle: String,

    /// Say why no helper was used
    #[arg(long)]
    pub(crate) verbose: bool,
}

impl HelperArgs {
    /// Whole seconds of `--helper-idle`, at least one.
    ///
    /// # Errors
    /// `Usage`, with examples.
    pub(crate) fn idle_s(&self) -> Result<u64> {
        Ok(parse_time("--helper-idle", &self.helper_idle)?.as_secs().max(1))
    }
}
