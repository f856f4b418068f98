//! Flags about signed heads.

use clap::{Args, Subcommand};

/// The verbs about signed heads.
#[derive(Subcommand, Debug)]
pub(crate) enum HeadVerb {
    /// Show the newest head, who signed it, and whether the backups that are there are those that it lists
    #[command(after_help = "Examples:\n  pagehaul head show main --repo /backup --signer /safe/signer.pub")]
    Show(HeadShowArgs),
    /// Sign the backups that are there now, whoever put them there; without --confirm only show what would change
    #[command(after_help = "Examples:\n  pagehaul head sign main --repo /backup --sign-key /safe/signer --confirm")]
    Sign(HeadSignArgs),
}

impl HeadVerb {
    /// Whether the user asked for a JSON document.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            HeadVerb::Show(args) => args.which.json,
            HeadVerb::Sign(args) => args.which.json,
        }
    }
}

/// Whose head.
#[derive(Args, Clone, Debug)]
pub(crate) struct HeadOfArgs {
    /// Name of the database system in the repository [default: the only one there is]
    #[arg(value_name = "SOURCE")]
    pub(crate) source: Option<String>,

    /// Repository: a directory, or s3://BUCKET/PREFIX?endpoint=URL (gs://, azblob://)
    #[arg(long, value_name = "URL_OR_DIR", env = "PAGEHAUL_REPO")]
    pub(crate) repo: String,

    /// Print the outcome as one JSON document on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// Flags of `head show`.
#[derive(Args, Clone, Debug)]
pub(crate) struct HeadShowArgs {
    /// Whose.
    #[command(flatten)]
    pub(crate) which: HeadOfArgs,
}

/// Flags of `head sign`.
#[derive(Args, Clone, Debug)]
pub(crate) struct HeadSignArgs {
    /// Whose.
    #[command(flatten)]
    pub(crate) which: HeadOfArgs,

    /// Sign; without it nothing is written
    #[arg(long)]
    pub(crate) confirm: bool,
}

/// Help of `head`.
pub(crate) const HEAD_HELP: &str = "\
With --sign-key, every backup, copy and expire adds a signed list of the backups that there are, and each list has the \
digest of the one before. Whoever gives --signer takes only backups that the newest list has, as it has them, and \
remembers how far the lists had come: a repository that was put back to an old state is refused. WAL is signed object by \
object, and so taken or refused.

Examples:
  pagehaul key new --signing --output /etc/pagehaul/signer > /etc/pagehaul/signer.pub
  pagehaul backup --repo /backup --sign-key /etc/pagehaul/signer
  pagehaul restore --repo /backup --target-dir /restore/main --signer /safe/signer.pub";
