//! `pagehaul pin` and `pagehaul unpin` as typed.

use clap::Args;
use pagehaul_engine::error::Result;
use pagehaul_engine::terms::{BackupLabel, SourceName};

/// For `pin --help`.
pub(crate) const PIN_HELP: &str = "\
Examples:
  pagehaul pin 20261121-201530F --repo /backup --reason \"before the upgrade to 18\"
  pagehaul pin 20261121-201530F --source shop";

/// Flags of `pin`.
#[derive(Args, Clone, Debug)]
pub(crate) struct PinArgs {
    /// Which backup.
    #[command(flatten)]
    pub(crate) which: WhichArgs,

    /// Why, for those who list the backups later
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

/// Flags of `unpin`.
#[derive(Args, Clone, Debug)]
pub(crate) struct UnpinArgs {
    /// Which backup.
    #[command(flatten)]
    pub(crate) which: WhichArgs,
}

/// The backup that is pinned or unpinned.
#[derive(Args, Clone, Debug)]
pub(crate) struct WhichArgs {
    /// Its label
    #[arg(value_name = "LABEL")]
    pub(crate) label: String,

    /// Name of the database system in the repository [default: the only one there is]
    #[arg(long, value_name = "SOURCE")]
    pub(crate) source: Option<String>,

    /// Repository: a directory, or s3://BUCKET/PREFIX?endpoint=URL (gs://, azblob://)
    #[arg(long, value_name = "URL_OR_DIR", env = "PAGEHAUL_REPO")]
    pub(crate) repo: String,

    /// Print the outcome as one JSON document on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

impl WhichArgs {
    /// The label.
    ///
    /// # Errors
    /// `Usage` if it is none.
    pub(crate) fn label(&self) -> Result<BackupLabel> {
        self.label.parse()
    }

    /// The source; None is the only one there is.
    ///
    /// # Errors
    /// `Usage` if it is no name.
    pub(crate) fn source(&self) -> Result<Option<SourceName>> {
        self.source.as_deref().map(str::parse).transpose()
    }
}
