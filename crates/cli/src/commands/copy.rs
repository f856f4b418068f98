//! `pagehaul copy`.

use pagehaul_engine::copy::{Copied, CopiedWal, CopyReport, SetOutcome, copy};
use pagehaul_engine::encryption::Keys;
use pagehaul_engine::error::Result;

use super::{cpu_text, listed, memory_text, repo_words};
use crate::args::CopyArgs;
use crate::exit_code::ExitCode;
use crate::output;
use crate::output::figures::{bytes, count, duration, rate_of};
use crate::output::table::block;
use crate::progress::Console;

/// Copies, and says what was copied; what could not be is the error, behind the report.
pub(crate) fn run(args: &CopyArgs, console: &Console) -> Result<ExitCode> {
    console.set_throttled(args.bounds.max_rate.is_some());
    let Copied { report, failed } = copy(&args.request()?, console)?;
    let text = report_text(&report);
    match failed {
        None => {
            console.tell(&text);
            if args.json {
                output::json(&report)?;
            }
            let (source, to) = (&report.source, repo_words(&args.to, &Keys::of_process()));
            console.tell(&format!("next: pagehaul verify {source} --repo {to}"));
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

fn report_text(report: &CopyReport) -> String {
    let mut lines = vec![("backups", sets_text(report))];
    match &report.wal {
        Some(wal) => lines.push(("WAL", wal_text(wal))),
        None => lines.push(("WAL", "only what is in the backups".to_owned())),
    }
    let copied_bytes = report.set_copied_bytes + report.wal.map_or(0, |wal| wal.copied_bytes);
    lines.extend([
        ("time", format!("{}, {}", duration(report.elapsed_s), rate_of(copied_bytes, report.elapsed_s))),
        ("CPU", cpu_text(report.cpu_user_s, report.cpu_system_s)),
        ("memory", memory_text(report.rss_bytes_max, report.memory_ceiling_bytes)),
    ]);
    lines.extend(report.notes.iter().map(|note| ("note", note.clone())));
    let copied: Vec<_> = report.sets.iter().filter(|set| set.outcome == SetOutcome::Copied).collect();
    let failed: Vec<_> = report.sets.iter().filter_map(|set| Some((set, failure(&set.outcome)?))).collect();
    format!(
        "copied {} from {} to {}\n{}{}{}",
        report.source,
        report.from,
        report.to,
        block(&lines),
        listed(&copied, copied.len() as u64, |set| set.label.to_string()),
        listed(&failed, failed.len() as u64, |(set, cause)| format!("{} NOT: {cause}", set.label)),
    )
}

fn failure(outcome: &SetOutcome) -> Option<&str> {
    match outcome {
        SetOutcome::Failed(cause) => Some(cause),
        SetOutcome::Copied | SetOutcome::Skipped | SetOutcome::Expired => None,
    }
}

fn sets_text(report: &CopyReport) -> String {
    let (copied, stored) = (count(report.set_copied_count, "backup"), bytes(report.set_copied_bytes));
    let mut text = format!("{copied} copied, {stored}; {} there before", report.set_skipped_count);
    if report.set_failed_count > 0 {
        text.push_str(&format!("; {} NOT copied", report.set_failed_count));
    }
    text
}

fn wal_text(wal: &CopiedWal) -> String {
    let (copied, stored) = (count(wal.copied_count, "object"), bytes(wal.copied_bytes));
    let mut text = format!("{copied} copied, {stored}; {} there before", wal.skipped_count);
    if wal.failed_count > 0 {
        text.push_str(&format!("; {} NOT copied", wal.failed_count));
    }
    text
}
