//! `pagehaul protect` as typed, and what it means.

use clap::{Args, ValueEnum};
use jiff::{SignedDuration, Timestamp};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::protect::ProtectRequest;
use pagehaul_engine::storage::LockMode;

use super::expire::parse_window;
use super::parse_label;

/// For `--help`.
pub(crate) const PROTECT_HELP: &str = "\
The bucket must have been made with object lock. Every object of the backups, of those that they need and of the archived \
WAL is protected, at least until that time; what is protected for longer stays so, and nothing is ever shortened. The \
manifest of a backup comes last: what `pagehaul info` shows as protected is. Backups that are protected do not expire. \
In governance mode who has the right s3:BypassGovernanceRetention can end it; in compliance mode nobody can, nor can you.

Examples:
  All backups and WAL, every night behind the backup; the time moves on with each run:
    pagehaul protect main --repo s3://backups/prod --for 30d
  One backup for ten years, with what it needs and without the archive:
    pagehaul protect main --repo s3://backups/prod --set 20261121-201530F --no-wal --mode compliance --until 2036-12-31T00:00:00Z
  How much there is to protect:
    pagehaul protect main --repo s3://backups/prod --for 30d --dry-run";

/// Flags of `protect`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ProtectArgs {
    /// Name of the database system in the repository [default: the only one there is]
    #[arg(value_name = "SOURCE")]
    pub(crate) source: Option<String>,

    /// Repository in S3 or what speaks it: s3://BUCKET/PREFIX?endpoint=URL
    #[arg(long, value_name = "URL", env = "PAGEHAUL_REPO")]
    pub(crate) repo: String,

    /// From now on for so long, such as 30d, 8w, 36h
    #[arg(long = "for", value_name = "TIME", conflicts_with = "until")]
    pub(crate) span: Option<String>,

    /// Until this moment, such as 2026-12-24T18:00:00Z
    #[arg(long, value_name = "TIME")]
    pub(crate) until: Option<String>,

    /// Protect this backup and those it needs: a label of `pagehaul info`, or latest; may be given several times [default:
    /// all that are complete]
    #[arg(long, value_name = "LABEL")]
    pub(crate) set: Vec<String>,

    /// Leave out the WAL archive; every backup has the WAL of its own end inside
    #[arg(long)]
    pub(crate) no_wal: bool,

    /// Who may end it before its time: those with a right of their own, or nobody
    #[arg(long, value_name = "MODE", value_enum, default_value = "governance")]
    pub(crate) mode: TypedLockMode,

    /// Only look how much has less protection
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Print the report as one JSON document on standard output
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

/// `--mode` as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TypedLockMode {
    /// Who has a right of its own may end it
    Governance,
    /// Nobody may end it
    Compliance,
}

impl TypedLockMode {
    /// As the engine takes it.
    pub(super) fn meant(self) -> LockMode {
        match self {
            TypedLockMode::Governance => LockMode::Governance,
            TypedLockMode::Compliance => LockMode::Compliance,
        }
    }
}

/// A span from now on that has a length; days have 24 hours.
///
/// # Errors
/// `Usage`, with examples.
pub(super) fn parse_span(flag: &str, text: &str) -> Result<SignedDuration> {
    let span = parse_window(flag, text)?;
    if span > SignedDuration::ZERO {
        return Ok(span);
    }
    Err(Error::new(ErrorKind::Usage, format!("use {text:?} for {flag}"), "it does not end after now")
        .hint(format!("an example is {flag} 30d")))
}

impl ProtectArgs {
    /// What was typed, as the engine takes it.
    ///
    /// # Errors
    /// `Usage`, with a hint that names what is valid.
    pub(crate) fn request(&self) -> Result<ProtectRequest> {
        Ok(ProtectRequest {
            source: self.source.as_deref().map(str::parse).transpose()?,
            repo: self.repo.clone(),
            sets: self.set.iter().map(|label| parse_label(label)).collect::<Result<_>>()?,
            wal: !self.no_wal,
            until: self.until(Timestamp::now())?,
            mode: self.mode.meant(),
            dry_run: self.dry_run,
        })
    }

    fn until(&self, now: Timestamp) -> Result<Timestamp> {
        let bad = |text: &str, flag: &str, cause: &str| {
            Error::new(ErrorKind::Usage, format!("use {text:?} for {flag}"), cause)
                .hint("examples are --for 30d and --until 2026-12-24T18:00:00Z")
        };
        // A moment that is typed wins over a span in the settings.
        match (&self.until, &self.span) {
            (Some(text), _) => text.parse().map_err(|_| bad(text, "--until", "not a time with its zone")),
            (None, Some(text)) => {
                let span = parse_span("--for", text)?;
                now.checked_add(span).map_err(|_| bad(text, "--for", "it does not end in time"))
            }
            (None, None) => Err(Error::new(ErrorKind::Usage, "protect backups", "it is not said for how long")
                .hint("give --for 30d, or --until 2026-12-24T18:00:00Z")),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Command, Typed};

    fn until(words: &[&str]) -> Result<String> {
        let words = [&["pagehaul", "protect", "--repo", "s3://b"], words].concat();
        let Command::Protect(args) = Typed::try_parse_from(words).unwrap().command else { panic!("another command") };
        args.until("2026-11-21T20:15:30Z".parse().unwrap()).map(|until| until.to_string())
    }

    #[test]
    fn for_how_long_as_people_type_it() {
        assert_eq!(until(&["--for", "30d"]).unwrap(), "2026-12-21T20:15:30Z");
        assert_eq!(until(&["--until", "2026-12-24T18:00:00+01:00"]).unwrap(), "2026-12-24T17:00:00Z");
        for bad in [&[][..], &["--for", "1y"], &["--for=-3d"], &["--for", "0d"], &["--until", "Christmas"]] {
            let error = until(bad).unwrap_err();
            assert!(error.kind() == ErrorKind::Usage && error.hint_text().unwrap().contains("d"), "{bad:?}: {error}");
        }
        assert!(
            Typed::try_parse_from(["pagehaul", "protect", "--for", "1d", "--until", "x", "--repo", "s3://b"]).is_err()
        );
    }
}
