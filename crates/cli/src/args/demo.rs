//! `pagehaul demo` as typed.

use std::path::PathBuf;

use clap::Args;

/// Flags of `demo`.
#[derive(Args, Clone, Debug)]
pub(crate) struct DemoArgs {
    /// A new or empty directory to work in; the OS user postgres must be able to enter it [default: a new one under
    /// /var/tmp]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,

    /// Size of the database: about 30 MB a step
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) scale: u32,

    /// Leave everything in place at the end, for a look around
    #[arg(long)]
    pub(crate) keep: bool,

    /// Codec and level, as for `pagehaul backup` [default: page]
    #[arg(long, value_name = "CODEC[:LEVEL]")]
    pub(crate) compression: Option<String>,

    /// Print the report as one JSON document on standard output
    #[arg(long)]
    pub(crate) json: bool,
}
