//! `pagehaul expire` as typed, and what it means.

use clap::{Args, ValueEnum};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Span, SpanRelativeTo, Timestamp};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::retention::{ExpireRequest, KeepWal, RetentionPolicy};

/// Flags of `expire`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ExpireArgs {
    /// Name of the database system in the repository [default: the only one there is]
    #[arg(value_name = "SOURCE")]
    pub(crate) source: Option<String>,

    /// Every source of pagehaul.toml, each by its own rules
    #[arg(long, conflicts_with = "source")]
    pub(crate) all: bool,

    /// Repository: a directory, or s3://BUCKET/PREFIX?endpoint=URL (gs://, azblob://)
    #[arg(long, value_name = "URL_OR_DIR", env = "PAGEHAUL_REPO")]
    pub(crate) repo: String,

    /// Remove what no rule keeps. Without it nothing is removed and the decisions are only shown
    #[arg(long)]
    pub(crate) confirm: bool,

    /// Show what would go on another day, such as 2026-12-24 or 2026-12-24T18:00:00Z
    #[arg(long, value_name = "DATE", conflicts_with = "confirm")]
    pub(crate) at: Option<String>,

    /// Keep the newest N full backups, each with what is built on it
    #[arg(long, value_name = "N", help_heading = "Rules")]
    pub(crate) keep_full: Option<u32>,

    /// Keep every moment of the time before now recoverable, such as 14d, 8w, 12h: the newest backup from before that
    /// time, all backups since, and the WAL from there on
    #[arg(long, value_name = "TIME", help_heading = "Rules")]
    pub(crate) keep_window: Option<String>,

    /// Keep the newest backup of each of the last N days that have one, in UTC
    #[arg(long, value_name = "N", help_heading = "Rules")]
    pub(crate) keep_daily: Option<u32>,

    /// The same of ISO weeks
    #[arg(long, value_name = "N", help_heading = "Rules")]
    pub(crate) keep_weekly: Option<u32>,

    /// The same of months
    #[arg(long, value_name = "N", help_heading = "Rules")]
    pub(crate) keep_monthly: Option<u32>,

    /// The same of years
    #[arg(long, value_name = "N", help_heading = "Rules")]
    pub(crate) keep_yearly: Option<u32>,

    /// Keep at least the newest N full backups that can be restored, whatever the rules say [default: 1]
    #[arg(long, value_name = "N", help_heading = "Rules")]
    pub(crate) min_sets: Option<u32>,

    /// From where on archived WAL is kept: from the oldest backup on that is kept at all, from the oldest one that
    /// count, window or minimum keep (older ones have the WAL of their own end inside), or from the newest one on
    #[arg(long, value_name = "FROM", value_enum, default_value = "window", help_heading = "Rules")]
    pub(crate) keep_wal: TypedKeepWal,

    /// Print the decisions as one JSON document on standard output; with --all an array of them
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

/// `--keep-wal` as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TypedKeepWal {
    /// From the oldest backup on that is kept
    All,
    /// From the oldest backup on that count, window or minimum keep
    Window,
    /// From the newest backup on
    Sets,
}

impl ExpireArgs {
    /// What was typed, as the engine takes it.
    ///
    /// # Errors
    /// `Usage`, with a hint that names what is valid.
    pub(crate) fn request(&self) -> Result<ExpireRequest> {
        let count = |typed: Option<u32>| typed.unwrap_or(0);
        let policy = RetentionPolicy {
            keep_full: self.keep_full,
            keep_window: self.keep_window.as_deref().map(|text| parse_window("--keep-window", text)).transpose()?,
            keep_daily: count(self.keep_daily),
            keep_weekly: count(self.keep_weekly),
            keep_monthly: count(self.keep_monthly),
            keep_yearly: count(self.keep_yearly),
            min_sets: self.min_sets.unwrap_or(1),
            keep_wal: match self.keep_wal {
                TypedKeepWal::All => KeepWal::All,
                TypedKeepWal::Window => KeepWal::Window,
                TypedKeepWal::Sets => KeepWal::Sets,
            },
        };
        Ok(ExpireRequest {
            source: self.source.as_deref().map(str::parse).transpose()?,
            repo: self.repo.clone(),
            policy,
            at: self.at.as_deref().map(parse_day).transpose()?,
            confirm: self.confirm,
        })
    }
}

/// A span of time before or from now on; days have 24 hours.
///
/// # Errors
/// `Usage`, with examples.
pub(super) fn parse_window(flag: &str, text: &str) -> Result<SignedDuration> {
    let bad = |cause: &str| {
        Error::new(ErrorKind::Usage, format!("use {text:?} for {flag}"), cause)
            .hint("examples are 14d, 8w, 36h, 1w3d; months and years are not spans, as they differ in length")
    };
    let span: Span = text.parse().map_err(|_| bad("not a span of time"))?;
    span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| bad("months and years differ in length"))
}

/// A day means its end in UTC.
fn parse_day(text: &str) -> Result<Timestamp> {
    if let Ok(timestamp) = text.parse::<Timestamp>() {
        return Ok(timestamp);
    }
    let end_of = |date: Date| date.at(23, 59, 59, 0).to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp());
    text.parse::<Date>().ok().and_then(end_of).ok_or_else(|| {
        Error::new(ErrorKind::Usage, format!("use {text:?} for --at"), "not a day and not a time with its zone")
            .hint("examples are 2026-12-24 (its end, in UTC) and 2026-12-24T18:00:00Z")
    })
}

/// Help of `expire`.
pub(crate) const EXPIRE_HELP: &str = "\
A backup is kept if any rule wants it, if it is pinned, or if one that is kept is built on it. One that is not whole, has a \
stamp that cannot be right or far less data than an older one does not count, and pushes nothing out. The newest backup and \
the newest full ones of --min-sets always stay; if no restorable one would be left, the command ends with code 50.

Examples:
  What would go:
    pagehaul expire main --repo /backup --keep-full 4
  Every moment of two weeks, then one backup a week and a month; removed:
    pagehaul expire main --repo /backup --keep-window 14d --keep-weekly 8 --keep-monthly 12 --confirm
  What would go at Christmas:
    pagehaul expire main --repo /backup --keep-window 14d --at 2026-12-24
  Every source of pagehaul.toml by its own rules:
    pagehaul expire --all --confirm";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_and_days_as_people_type_them() {
        for (text, hours) in [("14d", 336), ("8w", 1344), ("36h", 36), ("1w3d", 240), ("P2D", 48)] {
            assert_eq!(parse_window("--keep-window", text).unwrap(), SignedDuration::from_hours(hours), "{text}");
        }
        for text in ["", "14", "d", "2 months", "1y", "14 d 3"] {
            assert!(parse_window("--keep-window", text).unwrap_err().hint_text().unwrap().contains("14d"), "{text}");
        }
        assert_eq!(parse_day("2026-12-24").unwrap().to_string(), "2026-12-24T23:59:59Z");
        assert_eq!(parse_day("2026-12-24T18:00:00+01:00").unwrap().to_string(), "2026-12-24T17:00:00Z");
        assert!(parse_day("tomorrow").is_err());
    }
}
