//! `pagehaul tune` as typed, and what it means.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::limits::{BUFFER_COUNT_MAX, PARITY_COUNT_MAX};
use pagehaul_engine::pipeline::machine_cores;
use pagehaul_tune::contestants::{self, Contestant};
use pagehaul_tune::objective::{Goal, Objective};
use pagehaul_tune::session::TuneRequest;
use pagehaul_tune::space::{
    Space, check_transfer_sizes, parse_compressions, parse_counts, parse_threads, with_deflate_engines,
};
use pagehaul_tune::trial::Targets;
use pagehaul_tune::what_if::WhatIf;

use super::{parse_rate, parse_size};

/// Flags of `tune`.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct TuneArgs {
    /// Something else than a measurement
    #[command(subcommand)]
    pub(crate) verb: Option<TuneVerb>,

    /// Name of the database system, for the history
    #[arg(value_name = "SOURCE", default_value = "main")]
    pub(crate) source: String,

    /// Data directory of the running PostgreSQL cluster; it is only read
    #[arg(long, value_name = "DIR", required = true, help_heading = "What")]
    pub(crate) pgdata: Option<PathBuf>,

    /// How to reach the server, as libpq writes it [default: the data directory's postmaster.pid]
    #[arg(long, value_name = "CONNINFO", help_heading = "What")]
    pub(crate) connection: Option<String>,

    /// Repository directory: trials are written to a directory of their own in it, and removed; for an object store
    /// throttle:write=...,read=...:DIR at its speed
    #[arg(long, value_name = "DIR", required = true, env = "PAGEHAUL_REPO", help_heading = "Whereto")]
    pub(crate) repo: Option<String>,

    /// Directory for stripes, as for `backup`; give it several times
    #[arg(long, value_name = "DIR", help_heading = "Whereto")]
    pub(crate) stripe_to: Vec<String>,

    /// Directory on the disk that a restore would go to [default: the repository, which may be another disk]
    #[arg(long, value_name = "DIR", help_heading = "Whereto")]
    pub(crate) target_dir: Option<String>,

    /// Codecs and levels: a list such as none,lz4,zstd:1-9,xpress [default: none to zstd:12, deflate:1,
    /// page:1-3 and auto]
    #[arg(long, value_name = "LIST", help_heading = SPACE)]
    pub(crate) compression: Option<String>,

    /// Engines to try each deflate of --compression with that names none: a list of isal, libdeflate and qat (QATzip), each a
    /// row of its own [default: the one that auto takes]
    #[arg(long, value_name = "LIST", help_heading = SPACE)]
    pub(crate) deflate_engine: Option<String>,

    /// Threads that read the source
    #[arg(long, value_name = "LIST", help_heading = SPACE)]
    pub(crate) readers: Option<String>,

    /// Threads that compress
    #[arg(long, value_name = "LIST", help_heading = SPACE)]
    pub(crate) encoders: Option<String>,

    /// Files the backup is written to in parallel
    #[arg(long, value_name = "LIST", help_heading = SPACE)]
    pub(crate) stripes: Option<String>,

    /// Transfer buffers [default: what the threads need, and twice that]
    #[arg(long, value_name = "LIST", help_heading = SPACE)]
    pub(crate) buffer_count: Option<String>,

    /// Sizes of one transfer buffer, such as 256KiB,1MiB,4MiB
    #[arg(long, value_name = "LIST", help_heading = SPACE)]
    pub(crate) transfer_size: Option<String>,

    /// Threads of a restore that read stripes
    #[arg(long, value_name = "LIST", help_heading = SPACE)]
    pub(crate) stripe_readers: Option<String>,

    /// Threads of a restore that decompress
    #[arg(long, value_name = "LIST", help_heading = SPACE)]
    pub(crate) decoders: Option<String>,

    /// Threads of a restore that write files
    #[arg(long, value_name = "LIST", help_heading = SPACE)]
    pub(crate) file_writers: Option<String>,

    /// Parity stripes to show the cost of, in time and size: with the best settings, a row for each number; 0 for none
    #[arg(long, value_name = "LIST", default_value = "1", help_heading = "How")]
    pub(crate) parity: String,

    /// Run every combination instead of searching
    #[arg(long, value_name = "WHICH", help_heading = SPACE)]
    pub(crate) grid: Option<Grid>,

    /// What is best: restore, backup, size, cpu, score [default: restore; score if a bound is given]
    #[arg(long, value_name = "GOAL", help_heading = "What is best")]
    pub(crate) objective: Option<String>,

    /// The restore may take this long, such as 30m
    #[arg(long, value_name = "TIME", help_heading = "What is best")]
    pub(crate) rto: Option<String>,

    /// The backup may take this long, such as 2h
    #[arg(long, value_name = "TIME", help_heading = "What is best")]
    pub(crate) window: Option<String>,

    /// Share of all CPUs that a backup may use, such as 50%
    #[arg(long, value_name = "SHARE", help_heading = "What is best")]
    pub(crate) max_cpu: Option<String>,

    /// Memory that a backup may take, such as 256MiB
    #[arg(long, value_name = "SIZE", help_heading = "What is best")]
    pub(crate) max_memory: Option<String>,

    /// What a backup may store, such as 500GB
    #[arg(long, value_name = "SIZE", help_heading = "What is best")]
    pub(crate) max_size: Option<String>,

    /// Time for all of it; of a full grid only if given [default: 10m]
    #[arg(long, value_name = "TIME", help_heading = "How")]
    pub(crate) budget: Option<String>,

    /// Runs of the best candidates, in turns
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100), help_heading = "How")]
    pub(crate) repeat: u32,

    /// Bytes of the database that codecs are measured on
    #[arg(long, value_name = "SIZE", default_value = "128MiB", help_heading = "How")]
    pub(crate) sample_size: String,

    /// Other tools to run beside: pg_basebackup, pgbackrest, or pg_basebackup-levels (gzip, lz4 and zstd at four levels each)
    #[arg(long, value_name = "TOOL,TOOL", value_delimiter = ',', help_heading = "How")]
    pub(crate) with: Vec<String>,

    /// Stop when the server takes longer than this for a small query, such as 50ms
    #[arg(long, value_name = "TIME", help_heading = "How")]
    pub(crate) max_impact: Option<String>,

    /// Drop the machine's page cache before reading is measured (as root); everybody's files are read from disk then
    #[arg(long, help_heading = "How")]
    pub(crate) cold: bool,

    /// Begin anew instead of going on with a run that was interrupted
    #[arg(long, help_heading = "How")]
    pub(crate) anew: bool,

    /// Show the table for a database of this size, such as 8TB, from what was measured here
    #[arg(long, value_name = "SIZE", help_heading = "What if")]
    pub(crate) at_size: Option<String>,

    /// What its disks would read, such as 2400MB/s [default: as here]
    #[arg(long, value_name = "RATE", help_heading = "What if")]
    pub(crate) read: Option<String>,

    /// What its backup targets would take [default: as here]
    #[arg(long, value_name = "RATE", help_heading = "What if")]
    pub(crate) write: Option<String>,

    /// Cores it would have [default: as here]
    #[arg(long, value_name = "N", help_heading = "What if")]
    pub(crate) cores: Option<u16>,

    /// Write a report to this file: one HTML page that opens without a network
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) report: Option<PathBuf>,

    /// Write the recommended settings into the settings file (--config, or ./pagehaul.toml)
    #[arg(long, help_heading = "Output")]
    pub(crate) apply: bool,

    /// Show what would be run, and the space, time and memory it needs; nothing is touched
    #[arg(long, help_heading = "Output")]
    pub(crate) dry_run: bool,

    /// Print everything that was measured as one JSON document on standard output
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

const SPACE: &str = "Settings to choose from: a list 1,2,6 or a range 1-8, which doubles";
/// Time for a search when nobody says otherwise.
const BUDGET_DEFAULT: Duration = Duration::from_secs(600);

/// What may follow `tune`.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum TuneVerb {
    /// List every run that was measured here: trials, and plain backups and restores
    #[command(
        after_help = "Examples:\n  pagehaul tune history\n  pagehaul tune history main --last 50 --csv > runs.csv"
    )]
    History(HistoryArgs),
}

/// Flags of `tune history`.
#[derive(Args, Clone, Debug)]
pub(crate) struct HistoryArgs {
    /// Only of this source
    #[arg(value_name = "SOURCE")]
    pub(crate) source: Option<String>,

    /// Only the last N runs
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) last: u32,

    /// As comma-separated values, all columns
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,

    /// As one JSON document, all columns
    #[arg(long)]
    pub(crate) json: bool,
}

/// What `--grid` takes.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grid {
    /// Every combination
    Full,
}

impl TuneArgs {
    /// Whether a JSON document is asked for.
    pub(crate) fn wants_json(&self) -> bool {
        match &self.verb {
            Some(TuneVerb::History(args)) => args.json,
            None => self.json,
        }
    }

    /// What was typed, as the tuner takes it; `command` is the command line for the report.
    ///
    /// # Errors
    /// `Usage`, with a hint that names what is valid.
    pub(crate) fn request(&self, command: String, history: PathBuf) -> Result<TuneRequest> {
        let missing = |flag: &str| Error::new(ErrorKind::Usage, "tune", format!("{flag} is missing"));
        let repo = self.repo.clone().ok_or_else(|| missing("--repo"))?;
        let pgdata = self.pgdata.clone().ok_or_else(|| missing("--pgdata"))?;
        if std::iter::once(&repo).chain(&self.stripe_to).any(|target| target.contains("://")) {
            return Err(Error::new(ErrorKind::Usage, "tune for an object store", "trials are written to directories")
                .hint("give throttle:write=100MB/s,read=200MB/s:DIR with what the store takes and gives"));
        }
        let runs_grid = self.grid == Some(Grid::Full);
        let budget = self.budget.as_deref().map(|text| parse_time("--budget", text)).transpose()?;
        Ok(TuneRequest {
            source: self.source.parse::<pagehaul_engine::terms::SourceName>()?.to_string(),
            targets: Targets {
                pgdata,
                connection: self.connection.clone(),
                restore_to: self.target_dir.clone().unwrap_or_else(|| repo.clone()),
                repo,
                stripe_to: self.stripe_to.clone(),
            },
            space: self.space()?,
            runs_grid,
            objective: self.objective()?,
            sample_size_bytes: parse_size("--sample-size", &self.sample_size)?,
            budget: if runs_grid { budget } else { Some(budget.unwrap_or(BUDGET_DEFAULT)) },
            parities: self.parities()?,
            repeat: self.repeat,
            contestants: self.contestants()?,
            max_impact: self.max_impact.as_deref().map(|text| parse_time("--max-impact", text)).transpose()?,
            drops_caches: self.cold,
            history,
            begins_anew: self.anew,
            command,
        })
    }

    fn parities(&self) -> Result<Vec<u16>> {
        let counts = parse_counts("--parity", &self.parity, 0, PARITY_COUNT_MAX.into())?;
        Ok(counts.into_iter().filter(|count| *count > 0).map(|count| count as u16).collect())
    }

    fn space(&self) -> Result<Space> {
        let usual = Space::of_machine(machine_cores(), self.stripe_to.len());
        let threads = |flag: &str, text: &Option<String>, usual: Vec<u16>| {
            text.as_deref().map_or(Ok(usual), |text| parse_threads(flag, text))
        };
        let sizes =
            |text: &str| text.split(',').map(|size| parse_size("--transfer-size", size)).collect::<Result<Vec<_>>>();
        let counts = |text: &String| {
            let counts = parse_counts("--buffer-count", text, 2, BUFFER_COUNT_MAX.into())?;
            Ok::<_, Error>(counts.into_iter().map(|count| count as u32).collect())
        };
        Ok(Space {
            compressions: with_deflate_engines(
                self.compression.as_deref().map_or(Ok(usual.compressions), parse_compressions)?,
                self.deflate_engine.as_deref(),
            )?,
            readers: threads("--readers", &self.readers, usual.readers)?,
            encoders: threads("--encoders", &self.encoders, usual.encoders)?,
            stripes: threads("--stripes", &self.stripes, usual.stripes)?,
            buffer_counts: self.buffer_count.as_ref().map_or(Ok(usual.buffer_counts), counts)?,
            transfer_sizes: match &self.transfer_size {
                Some(text) => check_transfer_sizes(&sizes(text)?)?,
                None => usual.transfer_sizes,
            },
            stripe_readers: threads("--stripe-readers", &self.stripe_readers, usual.stripe_readers)?,
            decoders: threads("--decoders", &self.decoders, usual.decoders)?,
            file_writers: threads("--file-writers", &self.file_writers, usual.file_writers)?,
        })
    }

    fn objective(&self) -> Result<Objective> {
        let seconds = |flag: &str, text: &Option<String>| {
            text.as_deref().map(|text| parse_time(flag, text).map(|time| time.as_secs_f64())).transpose()
        };
        let size = |flag: &str, text: &Option<String>| text.as_deref().map(|text| parse_size(flag, text)).transpose();
        let bounds = Objective {
            goal: Goal::Restore,
            restore_s_max: seconds("--rto", &self.rto)?,
            backup_s_max: seconds("--window", &self.window)?,
            cpu_share_max: self.max_cpu.as_deref().map(|text| parse_share("--max-cpu", text)).transpose()?,
            memory_bytes_max: size("--max-memory", &self.max_memory)?,
            stored_bytes_max: size("--max-size", &self.max_size)?,
        };
        let goal = match &self.objective {
            Some(text) => text.parse()?,
            None if bounds.has_bounds() => Goal::Score,
            None => Goal::Restore,
        };
        Ok(Objective { goal, ..bounds })
    }

    fn contestants(&self) -> Result<Vec<Contestant>> {
        let all: Result<Vec<_>> =
            self.with.iter().map(|name| contestants::by_name(name.trim(), machine_cores())).collect();
        Ok(all?.concat())
    }

    /// The other machine that is asked about, if any.
    ///
    /// # Errors
    /// `Usage`, with examples.
    pub(crate) fn what_if(&self) -> Result<Option<WhatIf>> {
        let rate = |flag: &str, text: &Option<String>| {
            let rate = text.as_deref().map(|text| parse_rate(flag, text)).transpose()?;
            Ok::<_, Error>(rate.map(|rate| rate as f64))
        };
        let (read, write) = (rate("--read", &self.read)?, rate("--write", &self.write)?);
        let size = self.at_size.as_deref().map(|text| parse_size("--at-size", text)).transpose()?;
        if size.is_none() && read.is_none() && write.is_none() && self.cores.is_none() {
            return Ok(None);
        }
        Ok(Some(WhatIf {
            source_bytes: size,
            read_bytes_per_s: read,
            write_bytes_per_s: write,
            cores: self.cores,
            ..WhatIf::default()
        }))
    }
}

/// The time that `text`, the value of `flag`, means: `30m`, `2h`, `1h30m`, `50ms`.
///
/// # Errors
/// `Usage`, with examples.
pub(crate) fn parse_time(flag: &str, text: &str) -> Result<Duration> {
    let bad = || {
        Error::new(ErrorKind::Usage, format!("use {text:?} for {flag}"), "not a time")
            .hint("examples are 90s, 30m, 2h, 1h30m, 50ms")
    };
    let time = text.trim().parse::<jiff::SignedDuration>().map_err(|_| bad())?;
    Duration::try_from(time).ok().filter(|time| !time.is_zero()).ok_or_else(bad)
}

/// A share of one: `50%`.
pub(super) fn parse_share(flag: &str, text: &str) -> Result<f64> {
    let number = text.trim().strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    number.filter(|percent| *percent > 0.0 && *percent <= 100.0).map(|percent| percent / 100.0).ok_or_else(|| {
        Error::new(ErrorKind::Usage, format!("use {text:?} for {flag}"), "not a share")
            .hint("an example is 50%, at most 100%")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_shares_are_read() {
        assert_eq!(parse_time("--rto", "1h30m").unwrap(), Duration::from_secs(5400));
        assert_eq!(parse_time("--max-impact", "50ms").unwrap(), Duration::from_millis(50));
        for bad in ["", "30", "-5m", "0s", "soon", "1y"] {
            assert_eq!(parse_time("--rto", bad).unwrap_err().kind(), ErrorKind::Usage, "{bad}");
        }
        assert_eq!(parse_share("--max-cpu", "50%").unwrap(), 0.5);
        for bad in ["50", "0%", "150%", "x%"] {
            assert!(parse_share("--max-cpu", bad).is_err(), "{bad}");
        }
    }
}
