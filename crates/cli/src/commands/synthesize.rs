//! `pagehaul synthesize`.

use pagehaul_engine::backup::{SynthesizeOutcome, SynthesizeReport, synthesize};
use pagehaul_engine::error::Result;
use pagehaul_engine::terms::{BackupLabel, SourceName};
use serde::Serialize;

use super::backup::{compression_text, figures, set_text};
use super::record::Record;
use crate::args::SynthesizeArgs;
use crate::exit_code::ExitCode;
use crate::output;
use crate::output::figures::{count, percent};
use crate::progress::Console;

/// What `--json` says when there was nothing to do.
#[derive(Serialize)]
struct NothingToDo {
    label: BackupLabel,
    source: SourceName,
    state: &'static str,
}

/// Makes a full backup of a chain, or says that the backup needs no others.
pub(crate) fn run(args: &SynthesizeArgs, record: &Record, console: &Console) -> Result<ExitCode> {
    console.set_throttled(args.bounds.max_rate.is_some());
    match synthesize(&args.request()?, console)? {
        SynthesizeOutcome::AlreadyFull { source, label } => {
            console.tell(&format!("backup {label} of {source} is a full one already: nothing to do"));
            if args.json {
                output::json(&NothingToDo { label, source, state: "already full" })?;
            }
        }
        SynthesizeOutcome::Done(report) => {
            record.set(&report.set.label);
            console.tell(&report_text(&report, &args.from.repo));
            if args.json {
                output::json(&*report)?;
            }
        }
    }
    Ok(ExitCode::Done)
}

fn report_text(report: &SynthesizeReport, repo: &str) -> String {
    let set = &report.set;
    let copied = percent(report.copied_bytes as f64 / set.source_bytes.max(1) as f64);
    let sets = count(report.chain_prior.len() as u64 + 1, "set");
    let stored = format!("{copied} taken as it was, the rest {}", compression_text(set));
    let mut lines = vec![("made of", format!("{}, a chain of {sets}", report.synthesized_from))];
    lines.extend(figures(set, &stored));
    if set.bad_page_count > 0 {
        let pages = count(set.bad_page_count, "page");
        lines.push(("damaged", format!("{pages} of the source were damaged when the chain was made, and are so here")));
    }
    lines.extend(set.notes.iter().map(|note| ("note", note.clone())));
    set_text("full backup", set, &lines, repo)
}
