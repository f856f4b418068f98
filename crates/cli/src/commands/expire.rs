//! `pagehaul expire`: the decisions as a table, and what was done about them.

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::retention::{ExpireReport, Expired, Fate, Outcome, SetReport, WalReport, expire};

use crate::args::{Command, ExpireArgs, Run};
use crate::exit_code::ExitCode;
use crate::hooks::Told;
use crate::output;
use crate::output::figures::{bytes, count};
use crate::output::table::{Align, table};
use crate::progress::Console;

/// Decides for one source, and removes if that is confirmed.
pub(crate) fn run(args: &ExpireArgs, console: &Console) -> Result<ExitCode> {
    if args.all {
        return Err(Error::new(ErrorKind::Usage, "use --all", "there are no sources in a settings file")
            .hint("write tables [sources.NAME] into pagehaul.toml, or name one source"));
    }
    let report = run_one(args, console, args.json)?;
    if args.json {
        output::json(&report)?;
    }
    Ok(ExitCode::Done)
}

/// Shows and gives the report; what could not be removed is the error, behind a document if one is wanted.
fn run_one(args: &ExpireArgs, console: &Console, as_json: bool) -> Result<ExpireReport> {
    let Expired { report, failed } = expire(&args.request()?, console)?;
    console.tell(&report_text(&report));
    match failed {
        None => Ok(report),
        Some(error) => {
            // Then the document on standard output is that of the error, and the report is for people.
            if as_json {
                console.warn(&report_text(&report));
            }
            Err(error)
        }
    }
}

/// The same for each source of the settings file; what goes wrong with one does not keep the others from their turn.
pub(crate) fn run_each(runs: &[Run]) -> Result<ExitCode> {
    let mut reports = Vec::new();
    let mut first: Option<Error> = None;
    let mut as_json = false;
    for run in runs {
        let console = Console::new(run.typed.quiet)?;
        let Command::Expire(args) = &run.typed.command else { continue };
        as_json |= args.json;
        let told = Told { verb: "expire", source: args.source.clone().unwrap_or_default(), label: String::new() };
        let mut report = None;
        let mut verb = || {
            report = Some(run_one(args, &console, false)?);
            Ok(ExitCode::Done)
        };
        let done = if args.confirm { run.hooks.around(told, &console, verb, || None) } else { verb() };
        reports.extend(report);
        match (done, &mut first) {
            (Ok(_), _) => {}
            (Err(error), Some(first)) => first.attach(error),
            (Err(error), None) => first = Some(error),
        }
    }
    if let Some(error) = first {
        return Err(error);
    }
    if as_json {
        output::json(&reports)?;
    }
    Ok(ExitCode::Done)
}

const SET_COLUMNS: [(&str, Align); 6] = [
    ("label", Align::Left),
    ("kind", Align::Left),
    ("finished (UTC)", Align::Left),
    ("stored", Align::Right),
    ("decision", Align::Left),
    ("why", Align::Left),
];

const WAL_COLUMNS: [(&str, Align); 6] = [
    ("timeline", Align::Right),
    ("WAL", Align::Left),
    ("objects", Align::Right),
    ("stored", Align::Right),
    ("decision", Align::Left),
    ("why", Align::Left),
];

fn report_text(report: &ExpireReport) -> String {
    let day = report.at.get(..16).unwrap_or(&report.at).replace('T', " ");
    let mut text = format!("expire of {}, {day} UTC\n", report.source);
    if report.sets.is_empty() {
        text.push_str("  there are no backups\n");
    } else {
        text.push_str(&table(&SET_COLUMNS, &report.sets.iter().map(set_row).collect::<Vec<_>>()));
    }
    if !report.wal.is_empty() {
        text.push_str(&table(&WAL_COLUMNS, &report.wal.iter().map(wal_row).collect::<Vec<_>>()));
    }
    text.extend(report.notes.iter().map(|note| format!("note: {note}\n")));
    text.push_str(&summary(report));
    text
}

fn set_row(set: &SetReport) -> Vec<String> {
    vec![
        set.label.to_string(),
        set.kind.clone(),
        set.finished_at
            .as_deref()
            .map_or("-".to_owned(), |time| time.chars().take(19).collect::<String>().replace('T', " ")),
        bytes(set.stored_bytes),
        match (&set.outcome, set.decision) {
            (Some(Outcome::Removed), _) => "removed",
            (Some(Outcome::Failed(_)), _) => "FAILED",
            (Some(Outcome::Postponed(_)), _) | (None, Fate::Later) => "later",
            (None, Fate::Remove) => "remove",
            (None, Fate::Keep) => "keep",
        }
        .to_owned(),
        set.reasons.join("; "),
    ]
}

fn wal_row(wal: &WalReport) -> Vec<String> {
    let decision = match wal.decision {
        Fate::Remove if wal.removed_count > 0 => "removed",
        Fate::Remove => "remove",
        Fate::Keep | Fate::Later => "keep",
    };
    vec![
        wal.timeline.to_string(),
        format!("{}..{}", wal.start_lsn, wal.end_lsn),
        wal.object_count.to_string(),
        bytes(wal.stored_bytes),
        decision.to_owned(),
        wal.reason.clone(),
    ]
}

fn summary(report: &ExpireReport) -> String {
    let sets = |wanted: &dyn Fn(&SetReport) -> bool| report.sets.iter().filter(|set| wanted(set)).count() as u64;
    let going = sets(&|set| set.decision == Fate::Remove);
    let wal: u64 = report.wal.iter().filter(|wal| wal.decision == Fate::Remove).map(|wal| wal.object_count).sum();
    if report.confirmed {
        let removed = sets(&|set| set.outcome == Some(Outcome::Removed));
        let wal_removed: u64 = report.wal.iter().map(|wal| wal.removed_count).sum();
        return format!(
            "removed {} and {}: {} freed\n",
            count(removed, "backup"),
            count(wal_removed, "WAL object"),
            bytes(report.freed_bytes)
        );
    }
    if going == 0 && wal == 0 {
        return "nothing would go\n".to_owned();
    }
    format!(
        "{} and {} would go, {}; nothing was removed\nnext: the same command with --confirm removes them\n",
        count(going, "backup"),
        count(wal, "WAL object"),
        bytes(report.to_free_bytes)
    )
}
