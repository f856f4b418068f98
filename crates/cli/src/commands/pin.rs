//! `pagehaul pin` and `pagehaul unpin`.

use pagehaul_engine::catalog::Repository;
use pagehaul_engine::catalog::pin::{pin_set, read_pin, unpin_set};
use pagehaul_engine::error::Result;
use pagehaul_engine::terms::{BackupLabel, SourceName};
use serde::Serialize;

use crate::args::{PinArgs, UnpinArgs, WhichArgs};
use crate::exit_code::ExitCode;
use crate::output;
use crate::progress::Console;

/// The keys of `pin --json` and `unpin --json`.
#[derive(Serialize)]
struct PinReport<'a> {
    source: &'a SourceName,
    label: &'a BackupLabel,
    /// From now on.
    pinned: bool,
    /// False if it was so before.
    changed: bool,
    /// What was said when it was pinned first.
    reason: Option<String>,
}

/// Pins a backup: it never expires.
pub(crate) fn pin(args: &PinArgs, console: &Console) -> Result<ExitCode> {
    let (repository, source) = open(&args.which)?;
    let label = args.which.label()?;
    let is_new = pin_set(&repository, &source, &label, args.reason.as_deref())?;
    console.tell(&if is_new {
        format!("backup {label} of {source} is pinned: it does not expire before `pagehaul unpin {label}`")
    } else {
        format!("backup {label} of {source} was pinned before, and stays so")
    });
    if args.which.json {
        let reason = read_pin(&repository, &source, &label).and_then(|pin| pin.reason);
        output::json(&PinReport { source: &source, label: &label, pinned: true, changed: is_new, reason })?;
    }
    Ok(ExitCode::Done)
}

/// Takes the pin off a backup.
pub(crate) fn unpin(args: &UnpinArgs, console: &Console) -> Result<ExitCode> {
    let (repository, source) = open(&args.which)?;
    let label = args.which.label()?;
    let was_pinned = unpin_set(&repository, &source, &label)?;
    console.tell(&if was_pinned {
        format!("backup {label} of {source} is not pinned any more: the rules decide on it")
    } else {
        format!("backup {label} of {source} was not pinned")
    });
    if args.which.json {
        let report = PinReport { source: &source, label: &label, pinned: false, changed: was_pinned, reason: None };
        output::json(&report)?;
    }
    Ok(ExitCode::Done)
}

fn open(which: &WhichArgs) -> Result<(Repository, SourceName)> {
    let repository = Repository::open(&which.repo)?;
    let source = repository.source_or_only(which.source()?.as_ref())?;
    Ok((repository, source))
}
