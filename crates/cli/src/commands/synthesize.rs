//! `pagehaul synthesize`.

use pagehaul_engine::backup::{SynthesizeOutcome, SynthesizeReport, synthesize};
use pagehaul_engine::error::Result;
use pagehaul_engine::terms::{BackupLabel, SourceName};
use serde::Serialize;

use super::{cpu_text, memory_text, shell_word};
use crate::args::SynthesizeArgs;
use crate::exit_code::ExitCode;
use crate::output::figures::{bytes, count, duration, percent, rate, ratio};
use crate::output::table::block;
use crate::output::{self, timing};
use crate::progress::Console;

/// What `--json` says when there was nothing to do.
#[derive(Serialize)]
struct NothingToDo {
    label: BackupLabel,
    source: SourceName,
    state: &'static str,
}

/// Makes a full backup of a chain, or says that the backup needs no others.
pub(crate) fn run(args: &SynthesizeArgs, console: &Console) -> Result<ExitCode> {
    console.set_throttled(args.bounds.max_rate.is_some());
    match synthesize(&args.request()?, console)? {
        SynthesizeOutcome::AlreadyFull { source, label } => {
            console.tell(&format!("backup {label} of {source} is a full one already: nothing to do"));
            if args.json {
                output::json(&NothingToDo { label, source, state: "already full" })?;
            }
        }
        SynthesizeOutcome::Done(report) => {
            console.tell(&report_text(&report, &args.from.repo));
            if args.json {
                output::json(&*report)?;
            }
        }
    }
    Ok(ExitCode::Done)
}

fn report_text(report: &SynthesizeReport, repo: &str) -> String {
    let copied = percent(report.copied_bytes as f64 / report.source_bytes.max(1) as f64);
    let sets = count(report.chain_prior.len() as u64 + 1, "set");
    let mut lines = vec![
        ("made of", format!("{}, a chain of {sets}", report.synthesized_from)),
        ("data", format!("{}, {}", count(report.file_count, "file"), bytes(report.source_bytes))),
        (
            "stored",
            format!(
                "{} in {}, ratio {} ({copied} taken as it was, the rest {}:{})",
                bytes(report.stored_bytes),
                count(report.stripes.len() as u64, "stripe"),
                ratio(report.ratio),
                report.codec,
                report.level
            ),
        ),
        ("time", format!("{}, {}", duration(report.elapsed_s), rate(report.throughput_bytes_per_s))),
        ("CPU", cpu_text(report.cpu_user_s, report.cpu_system_s)),
        ("memory", memory_text(report.rss_bytes_max, report.memory_ceiling_bytes)),
        ("WAL", format!("{} to {}, timeline {}", report.start_lsn, report.stop_lsn, report.timeline)),
    ];
    if report.bad_page_count > 0 {
        let pages = count(report.bad_page_count, "page");
        lines.push(("damaged", format!("{pages} of the source were damaged when the chain was made, and are so here")));
    }
    lines.extend(report.notes.iter().map(|note| ("note", note.clone())));
    let stages = &report.stages;
    let stages = [("readers", &stages.readers), ("encoders", &stages.encoders), ("writers", &stages.writers)];
    format!(
        "full backup {} of {}: {}\n{}{}next: pagehaul verify {} --repo {} --set {}\n",
        report.label,
        report.source,
        report.state,
        block(&lines),
        timing::where_the_time_went(&stages, report.data_path_s, &report.limit),
        report.source,
        shell_word(repo),
        report.label
    )
}
