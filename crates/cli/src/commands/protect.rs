//! `pagehaul protect`.

use pagehaul_engine::error::Result;
use pagehaul_engine::protect::{ProtectReport, Protected, ProtectedObjects, protect};

use crate::args::ProtectArgs;
use crate::exit_code::ExitCode;
use crate::output;
use crate::output::figures::{count, duration};
use crate::output::table::block;
use crate::progress::Console;

/// Protects, and says what; what could not be is the error, behind the report.
pub(crate) fn run(args: &ProtectArgs, console: &Console) -> Result<ExitCode> {
    let Protected { report, failed } = protect(&args.request()?, console)?;
    let text = report_text(&report);
    match failed {
        None => {
            console.tell(&text);
            if args.json {
                output::json(&report)?;
            }
            Ok(ExitCode::Done)
        }
        Some(error) => {
            // The document on standard output is that of the error, and the report is for people.
            if args.json {
                console.warn(&text);
            } else {
                console.tell(&text);
            }
            Err(error)
        }
    }
}

fn report_text(report: &ProtectReport) -> String {
    let objects = |all: u64, changed: u64| match report.dry_run {
        true => format!("{}, {changed} with less protection", count(all, "object")),
        false => format!("{}, {changed} with less protection before", count(all, "object")),
    };
    let others = |others: ProtectedObjects| objects(others.object_count, others.changed_count);
    let set_count = count(report.sets.len() as u64, "backup");
    let of_sets = |each: fn(&pagehaul_engine::protect::ProtectedSet) -> u64| report.sets.iter().map(each).sum::<u64>();
    let in_sets = objects(of_sets(|set| set.object_count), of_sets(|set| set.changed_count));
    let mut lines = vec![
        ("until", format!("{}, {} mode; what was protected for longer stays so", report.until, report.mode)),
        ("backups", format!("{set_count}: {in_sets}")),
        ("besides", others(report.shared)),
        ("WAL", report.wal.map_or_else(|| "left out".to_owned(), others)),
        ("time", duration(report.elapsed_s)),
    ];
    lines.extend(report.notes.iter().map(|note| ("note", note.clone())));
    let verdict = if report.dry_run { "nothing was changed: protection of" } else { "protected" };
    format!("{verdict} {} in {}\n{}", report.source, report.repo, block(&lines))
}
