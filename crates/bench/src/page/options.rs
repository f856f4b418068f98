//! The command lines of `page` and `page-sample`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::options::BenchOptions;

/// What is measured, and how.
#[derive(Args, Clone, Debug)]
pub(crate) struct Measuring {
    /// Codecs and levels; `page:2 without proof` and the like do not decode their frames before they let them go
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "lz4:1,zstd:1,zstd:3,zstd:9,zstd:13,zstd:19,page:1,page:2,page:3,page:4,page:5,page:1 without proof,page:2 without proof,page:5 without proof"
    )]
    pub(crate) compression: Vec<String>,
    /// Bytes of a frame
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20,
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(8192..=1 << 26))]
    pub(crate) frame_size: usize,
    /// Only every n-th 8 MiB of each file, about so many MiB of a database
    #[arg(long, value_name = "MIB")]
    pub(crate) sample: Option<u64>,
    /// Rounds; in each every codec runs once, and the best counts
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
}

/// Options of `page`.
#[derive(Args, Clone, Debug)]
pub(crate) struct PageOptions {
    #[command(flatten)]
    pub(crate) bench: BenchOptions,
    #[command(flatten)]
    pub(crate) measuring: Measuring,
    /// Only these databases
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    pub(crate) database: Vec<String>,
    /// What a database is made of instead of packages: a git directory for history, json, csv; a directory for json, csv, geo
    #[arg(long, value_name = "NAME=PATH")]
    pub(crate) data: Vec<String>,
    /// Whole backups and restores of each database, against the peers
    #[arg(long)]
    pub(crate) whole: bool,
    /// Where whole backups go
    #[arg(long, value_enum, value_name = "TARGET,TARGET", value_delimiter = ',', default_values = ["disk", "device"])]
    pub(crate) to: Vec<WholeTarget>,
    /// Runs of every contestant to the device [default: --repeat]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) device_repeat: Option<u32>,
    /// Where whole backups are restored, such as /dev/shm: its files cost alike for everybody [default: --work]
    // Commands run elsewhere.
    #[arg(long, value_name = "DIR", value_parser = |text: &str| std::path::absolute(text))]
    pub(crate) restore_to: Option<PathBuf>,
}

/// Where whole backups go.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WholeTarget {
    /// The work directory
    Disk,
    /// A device of 200 MB/s
    Device,
}

/// Options of `page-sample`.
#[derive(Args, Clone, Debug)]
pub(crate) struct PageSampleOptions {
    /// The files of one database, as bench/page/files.sql lists them
    #[arg(long, value_name = "FILE")]
    pub(crate) list: PathBuf,
    #[command(flatten)]
    pub(crate) measuring: Measuring,
    /// Also by what the pages hold
    #[arg(long)]
    pub(crate) kinds: bool,
    /// Also by relation, largest first
    #[arg(long)]
    pub(crate) relations: bool,
}
