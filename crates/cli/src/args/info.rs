//! `pagehaul info` as typed.

use clap::Args;

/// Flags of `info`.
#[derive(Args, Clone, Debug)]
pub(crate) struct InfoArgs {
    /// Only this database system [default: all of the repository]
    #[arg(value_name = "SOURCE")]
    pub(crate) source: Option<String>,

    /// Repository: a directory, or s3://BUCKET/PREFIX?endpoint=URL (gs://, azblob://)
    #[arg(long, value_name = "URL_OR_DIR", env = "PAGEHAUL_REPO")]
    pub(crate) repo: String,

    /// Show everything about one backup: its label, or latest
    #[arg(long, value_name = "LABEL")]
    pub(crate) set: Option<String>,

    /// Print one JSON document: an array of sources with their sets
    #[arg(long)]
    pub(crate) json: bool,
}
