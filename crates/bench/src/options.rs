//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::archiver::ArchiverOptions;
use crate::page::limited::LimitedOptions;
use crate::page::options::{PageOptions, PageSampleOptions};

/// Measures pagehaul against baselines and peers.
#[derive(Parser, Debug)]
#[command(name = "pagehaul-bench", version)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) asked: Asked,
}

/// What there is to measure.
#[derive(Subcommand, Debug)]
pub(crate) enum Asked {
    /// The data path against a plain read and against the codec alone, output discarded
    Engine(BenchOptions),
    /// `--compression auto` against every fixed level of its ladders, with devices of several speeds
    Auto(BenchOptions),
    /// Frame sizes, transfer sizes and buffer counts: size and speed
    Frames(BenchOptions),
    /// Full backup and restore: pagehaul, pgBackRest, pg_basebackup
    Peers(BenchOptions),
    /// The cost of a file: clusters with 1, 10,000 and 100,000 tables
    Files(BenchOptions),
    /// The default search of `tune` against a whole grid, on four databases
    Tune(BenchOptions),
    /// Peak memory against the stated ceiling
    Memory(BenchOptions),
    /// Archiving and fetching WAL: pagehaul, pgBackRest, plain copies
    Wal(BenchOptions),
    /// Incremental backups of 1 % changed pages: pagehaul, pgBackRest, pg_basebackup
    Incremental(BenchOptions),
    /// XPRESS against DEFLATE and zstd, codec alone and whole backups and restores, and against the reference encoder
    Xpress(BenchOptions),
    /// `bak verify` of compressed files against the XPRESS decoder alone, and of plain files against a plain read
    Bak(BenchOptions),
    /// The page codec against zstd and lz4 on the files of ten databases, codec alone, or whole backups against the peers
    Page(PageOptions),
    /// The same on one list of files, with no server and no results to keep
    PageSample(PageSampleOptions),
    /// PostgreSQL's part in `wal`; called by it
    #[command(hide = true)]
    Archiver(ArchiverOptions),
    /// A pipe of limited speed; called by `page --whole`
    #[command(hide = true)]
    Limited(LimitedOptions),
    /// One baseline in a process of its own; called by the benches
    #[command(hide = true)]
    Worker(WorkerOptions),
}

/// Options of every bench.
#[derive(Args, Clone, Debug)]
pub(crate) struct BenchOptions {
    /// The pagehaul to measure
    #[arg(long, value_name = "FILE", env = "PAGEHAUL_BENCH_PROGRAM", default_value = "target/release/pagehaul")]
    pub(crate) pagehaul: PathBuf,
    /// Where clusters are made and kept
    #[arg(long, value_name = "DIR", default_value = "/var/tmp/pagehaul-bench")]
    pub(crate) pgdata_root: PathBuf,
    /// Programs of the PostgreSQL that runs the cluster of `incremental` [default: PATH, or the newest installed]
    #[arg(long, value_name = "DIR")]
    pub(crate) pg_bin: Option<PathBuf>,
    /// Use this running cluster instead, and leave it running
    #[arg(long, value_name = "DIR")]
    pub(crate) pgdata: Option<PathBuf>,
    /// Where repositories and restored clusters go, in a directory that is removed at the end [default: --pgdata-root]
    #[arg(long, value_name = "DIR")]
    pub(crate) work: Option<PathBuf>,
    /// Size of the cluster: about N x 2 GiB; 0 makes a tiny one, to try the bench
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) scale: u32,
    /// Runs of every contestant
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) repeat: u32,
    /// Where raw.csv and README.md go [default: bench/runs/DATE-NAME]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Numbers of tables of the clusters of `files`
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [1, 10_000, 100_000])]
    pub(crate) tables: Vec<u32>,
    /// Only contestants and settings whose `NAME SETTING` holds one of these texts
    #[arg(long, value_name = "TEXT,TEXT", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Another target for a ratio, such as peer-backup=2 (see the README of a run for the names)
    #[arg(long = "target", value_name = "NAME=RATIO")]
    pub(crate) targets: Vec<String>,
}

/// Options of a baseline process.
#[derive(Args, Clone, Debug)]
pub(crate) struct WorkerOptions {
    /// What to do
    pub(crate) work: Work,
    /// The files: first line the data directory, then a path below it a line
    #[arg(long)]
    pub(crate) list: PathBuf,
    /// Threads, all at once
    #[arg(long)]
    pub(crate) threads: u16,
    /// Codec and level
    #[arg(long, default_value = "zstd:1")]
    pub(crate) compression: String,
    /// Bytes of a frame [default: the codec's]
    #[arg(long)]
    pub(crate) frame_size: Option<usize>,
}

/// The baselines.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Reads all files in pieces of 1 MiB and does nothing with them
    Read,
    /// Encodes a sample that lies in memory
    EncodeSample,
    /// Reads everything and encodes it; only encoding is timed
    EncodeAll,
    /// Page checks and checksums over a sample that lies in memory
    Check,
    /// Decodes all chunks of one compressed backup file, which lies in memory
    DecodeChunks,
}
