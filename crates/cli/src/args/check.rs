//! `pagehaul check` as typed, and what it means.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use pagehaul_engine::check::CheckRequest;
use pagehaul_engine::error::{Error, ErrorKind, Result};

/// Flags of `check`.
#[derive(Args, Clone, Debug)]
pub(crate) struct CheckArgs {
    /// Name of the database system in the repository
    #[arg(value_name = "SOURCE", default_value = "main")]
    pub(crate) source: String,

    /// Data directory of the PostgreSQL cluster, to find its server
    #[arg(long, value_name = "DIR")]
    pub(crate) pgdata: Option<PathBuf>,

    /// How to reach the server, as libpq writes it [default: the PG* variables and the data directory's postmaster.pid]
    #[arg(long, value_name = "CONNINFO")]
    pub(crate) connection: Option<String>,

    /// Repository: a directory, or s3://BUCKET/PREFIX?endpoint=URL (gs://, azblob://)
    #[arg(long, value_name = "URL_OR_DIR", env = "PAGEHAUL_REPO")]
    pub(crate) repo: String,

    /// How long the marker may take, such as 60s or 5m
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub(crate) timeout: String,

    /// Only ask: write no marker into WAL and switch no segment
    #[arg(long)]
    pub(crate) no_marker: bool,

    /// Print the report as one JSON document on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

impl CheckArgs {
    /// What was typed, as the engine takes it.
    ///
    /// # Errors
    /// `Usage`, with a hint that names what is valid.
    pub(crate) fn request(&self) -> Result<CheckRequest> {
        Ok(CheckRequest {
            source: self.source.parse()?,
            repo: self.repo.clone(),
            connection: self.connection.clone(),
            pgdata: self.pgdata.clone(),
            timeout: timeout(&self.timeout)?,
            with_marker: !self.no_marker,
        })
    }
}

/// "90", "90s", "5m", "1h30m".
fn timeout(text: &str) -> Result<Duration> {
    let bad = || {
        Error::new(ErrorKind::Usage, format!("use {text:?} for --timeout"), "not a length of time")
            .hint("give it as 60s, 5m or 1h")
    };
    if let Ok(seconds) = text.trim().parse::<u32>() {
        return Ok(Duration::from_secs(seconds.into()));
    }
    let time = text.trim().parse::<jiff::SignedDuration>().map_err(|_| bad())?;
    Duration::try_from(time).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_units() {
        let seconds = |text| timeout(text).map(|time| time.as_secs());
        assert_eq!([seconds("90").unwrap(), seconds("60s").unwrap(), seconds("5m").unwrap()], [90, 60, 300]);
        for bad in ["", "soon", "-5s", "1.5.2"] {
            assert_eq!(seconds(bad).unwrap_err().kind(), ErrorKind::Usage, "{bad}");
        }
    }
}
