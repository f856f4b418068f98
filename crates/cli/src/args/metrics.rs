//! `pagehaul metrics` as typed.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

/// Flags of `metrics`.
#[derive(Args, Clone, Debug)]
pub(crate) struct MetricsArgs {
    /// Only this database system [default: all of the repository]
    #[arg(value_name = "SOURCE")]
    pub(crate) source: Option<String>,

    /// Repository: a directory, or s3://BUCKET/PREFIX?endpoint=URL (gs://, azblob://)
    #[arg(long, value_name = "URL_OR_DIR", env = "PAGEHAUL_REPO")]
    pub(crate) repo: String,

    /// Write them to this file, for node_exporter's textfile collector: all or nothing, readable by everybody
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    pub(crate) textfile: Option<PathBuf>,

    /// Answer HTTP at this address, path /metrics, until a signal comes; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: Option<SocketAddr>,
}

/// Help of `metrics`.
pub(super) const METRICS_HELP: &str = "\
OpenMetrics text. Times are seconds since 1970, so that an alarm is an age: \
time() - pagehaul_last_set_timestamp_seconds > 90000. A repository that does not read is an error (over HTTP: code 503), \
and a file of figures stays as it was: pagehaul_collected_timestamp_seconds tells its age.

Examples:
  To look at:
    pagehaul metrics --repo /backup
  For the textfile collector of node_exporter, by a timer:
    pagehaul metrics main --repo /backup --textfile /var/lib/prometheus/node-exporter/pagehaul-main.prom
  For Prometheus itself:
    pagehaul metrics --repo /backup --listen 127.0.0.1:9817";
