//! `pagehaul mssql tune`, `script` and `import` as typed, and what they mean.

use std::path::PathBuf;

use clap::Args;
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_tune::mssql::import::ImportRequest;
use pagehaul_tune::mssql::script::Places;
use pagehaul_tune::mssql::session::{MssqlRequest, SpaceWish};
use pagehaul_tune::objective::{Goal, Objective};

use super::mssql::ServerArgs;
use super::tune::{Grid, parse_share, parse_time};
use super::{parse_size, parse_size_u32};

const SPACE: &str = "Settings to choose from: a list such as 1,2,4; \"server\" leaves one to the server";

/// Flags of `mssql tune`.
#[derive(Args, Clone, Debug)]
pub(crate) struct MssqlTuneArgs {
    /// The server.
    #[command(flatten)]
    pub(crate) server: ServerArgs,

    /// Name of the database system, for the history
    #[arg(value_name = "SOURCE", default_value = "main")]
    pub(crate) source: String,

    /// Database; it is only read
    #[arg(long, value_name = "NAME", help_heading = "What")]
    pub(crate) database: String,

    /// Directory of the server, or URL, for trial backups; of several each takes its share of the files
    #[arg(long, value_name = "DIR", required = true, help_heading = "Whereto")]
    pub(crate) to: Vec<String>,

    /// Directory of the server for the scratch database's data [default: where the server makes databases]
    #[arg(long, value_name = "DIR", help_heading = "Whereto")]
    pub(crate) data_to: Option<String>,

    /// The same for its log
    #[arg(long, value_name = "DIR", help_heading = "Whereto")]
    pub(crate) log_to: Option<String>,

    /// Name of the scratch database [default: one of our own]
    #[arg(long, value_name = "NAME", help_heading = "Whereto")]
    pub(crate) scratch_database: Option<String>,

    /// Algorithms and levels, such as none,ms_xpress,zstd:low [default: all that the server has]
    #[arg(long, value_name = "LIST", help_heading = SPACE)]
    pub(crate) compression: Option<String>,

    /// Numbers of backup files [default: 1,2,4,8]
    #[arg(long, value_name = "LIST", help_heading = SPACE)]
    pub(crate) files: Option<String>,

    /// BUFFERCOUNT [default: server,25,50,100]
    #[arg(long, value_name = "LIST", help_heading = SPACE)]
    pub(crate) buffer_count: Option<String>,

    /// MAXTRANSFERSIZE [default: server,4MiB]
    #[arg(long, value_name = "LIST", help_heading = SPACE)]
    pub(crate) max_transfer_size: Option<String>,

    /// BLOCKSIZE [default: server]
    #[arg(long, value_name = "LIST", help_heading = SPACE)]
    pub(crate) block_size: Option<String>,

    /// Run every combination instead of walking to the best
    #[arg(long, value_name = "WHICH", help_heading = SPACE)]
    pub(crate) grid: Option<Grid>,

    /// Settings whose buffers would take more are left out [default: a sixteenth of the server's memory]
    #[arg(long, value_name = "SIZE", help_heading = SPACE)]
    pub(crate) max_buffer_memory: Option<String>,

    /// What is best.
    #[command(flatten)]
    pub(crate) best: BestArgs,

    /// Runs of each point of a grid, or of the best and the defaults
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100), help_heading = "How")]
    pub(crate) repeat: u32,

    /// Time for all of it; no trial is begun that would not fit
    #[arg(long, value_name = "TIME", help_heading = "How")]
    pub(crate) budget: Option<String>,

    /// A statement that takes longer is ended, and its trial has failed
    #[arg(long, value_name = "TIME", help_heading = "How")]
    pub(crate) statement_limit: Option<String>,

    /// Begin anew instead of going on with a run that was interrupted
    #[arg(long, help_heading = "How")]
    pub(crate) anew: bool,

    /// Write a report to this file: one HTML page that opens without a network
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) report: Option<PathBuf>,

    /// Print the whole T-SQL that would be run, on standard output, and do nothing
    #[arg(long, help_heading = "Output")]
    pub(crate) dry_run: bool,

    /// Print everything that was measured as one JSON document on standard output
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

/// What is best.
#[derive(Args, Clone, Debug)]
pub(crate) struct BestArgs {
    /// What is best: restore, backup, size, cpu, score [default: restore; score if a bound is given]
    #[arg(long, value_name = "GOAL", help_heading = "What is best")]
    pub(crate) objective: Option<String>,

    /// The restore may take this long, such as 30m
    #[arg(long, value_name = "TIME", help_heading = "What is best")]
    pub(crate) rto: Option<String>,

    /// The backup may take this long, such as 2h
    #[arg(long, value_name = "TIME", help_heading = "What is best")]
    pub(crate) window: Option<String>,

    /// Share of all CPUs of the server that a backup may use, such as 50%
    #[arg(long, value_name = "SHARE", help_heading = "What is best")]
    pub(crate) max_cpu: Option<String>,

    /// What a backup may store, such as 500GB
    #[arg(long, value_name = "SIZE", help_heading = "What is best")]
    pub(crate) max_size: Option<String>,
}

/// Flags of `mssql script`.
#[derive(Args, Clone, Debug)]
pub(crate) struct MssqlScriptArgs {
    /// The run.
    #[command(flatten)]
    pub(crate) tune: MssqlTuneArgs,

    /// Print the batch whose output --facts reads
    #[arg(long, help_heading = "Without a connection")]
    pub(crate) questions: bool,

    /// File with what that batch printed; nobody is asked then
    #[arg(long, value_name = "FILE", conflicts_with = "questions", help_heading = "Without a connection")]
    pub(crate) facts: Option<PathBuf>,
}

/// Flags of `mssql import`.
#[derive(Args, Clone, Debug)]
pub(crate) struct MssqlImportArgs {
    /// What the script printed, all of it
    #[arg(value_name = "RESULTS")]
    pub(crate) results: PathBuf,

    /// Name of the database system, for the history
    #[arg(long = "for", value_name = "SOURCE", default_value = "main")]
    pub(crate) source: String,

    /// Database
    #[arg(long, value_name = "NAME")]
    pub(crate) database: String,

    /// What is best.
    #[command(flatten)]
    pub(crate) best: BestArgs,

    /// Write a report to this file: one HTML page that opens without a network
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) report: Option<PathBuf>,

    /// Print everything that was measured as one JSON document on standard output
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

impl BestArgs {
    fn objective(&self) -> Result<Objective> {
        let seconds = |flag: &str, text: &Option<String>| {
            text.as_deref().map(|text| parse_time(flag, text).map(|time| time.as_secs_f64())).transpose()
        };
        let bounds = Objective {
            goal: Goal::Restore,
            restore_s_max: seconds("--rto", &self.rto)?,
            backup_s_max: seconds("--window", &self.window)?,
            cpu_share_max: self.max_cpu.as_deref().map(|text| parse_share("--max-cpu", text)).transpose()?,
            memory_bytes_max: None,
            stored_bytes_max: self.max_size.as_deref().map(|text| parse_size("--max-size", text)).transpose()?,
        };
        let goal = match &self.objective {
            Some(text) => text.parse()?,
            None if bounds.has_bounds() => Goal::Score,
            None => Goal::Restore,
        };
        Ok(Objective { goal, ..bounds })
    }
}

/// The values of a list; "server" is None.
fn list<T>(flag: &str, text: Option<&String>, parse: impl Fn(&str) -> Result<T>) -> Result<Option<Vec<Option<T>>>> {
    let Some(text) = text else { return Ok(None) };
    let value = |word: &str| if word == "server" { Ok(None) } else { parse(word).map(Some) };
    let values: Vec<Option<T>> = text.split(',').map(str::trim).map(value).collect::<Result<_>>()?;
    if values.is_empty() {
        return Err(Error::new(ErrorKind::Usage, format!("use {text:?} for {flag}"), "the list is empty"));
    }
    Ok(Some(values))
}

fn number<T: std::str::FromStr>(flag: &str, text: &str) -> Result<T> {
    text.parse().map_err(|_| {
        Error::new(ErrorKind::Usage, format!("use {text:?} for {flag}"), "not a number").hint("an example is 1,2,4")
    })
}

impl MssqlTuneArgs {
    /// What was typed, as the tuner takes it.
    ///
    /// # Errors
    /// `Usage`, with a hint that names what is valid.
    pub(crate) fn request(&self, command: String, history: PathBuf) -> Result<MssqlRequest> {
        let compressions = self
            .compression
            .as_ref()
            .map(|text| text.split(',').map(|word| word.trim().parse()).collect())
            .transpose()?;
        let files = list("--files", self.files.as_ref(), |text| number("--files", text))?;
        let time = |flag: &str, text: &Option<String>| text.as_deref().map(|text| parse_time(flag, text)).transpose();
        Ok(MssqlRequest {
            source: self.source.parse::<pagehaul_engine::terms::SourceName>()?.to_string(),
            database: self.database.clone(),
            places: Places {
                backup_to: self.to.clone(),
                data_to: self.data_to.clone(),
                log_to: self.log_to.clone(),
                scratch_database: self.scratch_database.clone(),
            },
            space: SpaceWish {
                compressions,
                files: files.map(|files| files.into_iter().map(|count| count.unwrap_or(1)).collect()),
                buffer_counts: list("--buffer-count", self.buffer_count.as_ref(), |text| {
                    number("--buffer-count", text)
                })?,
                transfer_sizes: list("--max-transfer-size", self.max_transfer_size.as_ref(), |text| {
                    parse_size_u32("--max-transfer-size", text)
                })?,
                block_sizes: list("--block-size", self.block_size.as_ref(), |text| {
                    parse_size_u32("--block-size", text)
                })?,
            },
            runs_grid: self.grid == Some(Grid::Full),
            objective: self.best.objective()?,
            repeat: self.repeat,
            budget: time("--budget", &self.budget)?,
            statement_limit: time("--statement-limit", &self.statement_limit)?,
            buffer_bytes_max: self
                .max_buffer_memory
                .as_deref()
                .map(|text| parse_size("--max-buffer-memory", text))
                .transpose()?,
            history,
            begins_anew: self.anew,
            command,
        })
    }
}

impl MssqlImportArgs {
    /// What was typed, as the importer takes it.
    ///
    /// # Errors
    /// `Usage`.
    pub(crate) fn request(&self, command: String, history: PathBuf) -> Result<ImportRequest> {
        Ok(ImportRequest {
            source: self.source.parse::<pagehaul_engine::terms::SourceName>()?.to_string(),
            database: self.database.clone(),
            objective: self.best.objective()?,
            history,
            command,
        })
    }
}
