//! `pagehaul repair`.

use pagehaul_engine::encryption::Keys;
use pagehaul_engine::error::{ErrorKind, Result};
use pagehaul_engine::repair::{CheckedSet, RepairReport, repair};

use super::{cpu_text, memory_text, repo_words};
use crate::args::RepairArgs;
use crate::exit_code::ExitCode;
use crate::output::figures::{bytes, count, duration, rate_of};
use crate::output::table::block;
use crate::output::{self, red};
use crate::progress::Console;

/// Puts back what is lost of a backup.
pub(crate) fn run(args: &RepairArgs, console: &Console) -> Result<ExitCode> {
    console.set_throttled(args.bounds.max_rate.is_some());
    let report = repair(&args.request()?, console)?;
    console.tell(&report_text(&report));
    if args.json {
        output::json(&report)?;
    }
    let repo = repo_words(&args.from.repo, &Keys::of_process());
    if report.whole {
        let (source, label) = (&report.source, &report.label);
        console.tell(&format!("next: pagehaul verify {source} --repo {repo} --set {label}"));
        return Ok(ExitCode::Done);
    }
    console.warn(&lost_text(&report, &repo));
    Ok(ExitCode::Failed(ErrorKind::Damage))
}

fn report_text(report: &RepairReport) -> String {
    let verdict = match (report.whole, report.repaired.is_empty()) {
        (true, true) => "whole, there was nothing to repair",
        (true, false) => "whole again",
        (false, _) => "NOT WHOLE",
    };
    let set = |set: &CheckedSet| match set.parity {
        0 => format!("{}: not looked at, it has no parity", set.set),
        parity => format!("{}: {}+{parity} stripes, {}", set.set, set.stripes, bytes(set.bytes)),
    };
    let put_back: Vec<String> = report
        .repaired
        .iter()
        .map(|stripe| format!("{} of {}: {}\nput back as {}", stripe.name, stripe.set, stripe.cause, stripe.path))
        .collect();
    let rebuilt = match report.repaired.len() {
        0 => String::new(),
        objects => format!(
            "{} in {}, {}, {}",
            bytes(report.rebuilt_bytes),
            count(objects as u64, "file"),
            duration(report.rebuild_s),
            rate_of(report.rebuilt_bytes, report.rebuild_s)
        ),
    };
    let lines = [
        ("sets", report.sets.iter().map(set).collect::<Vec<_>>().join("\n")),
        ("repaired", put_back.join("\n")),
        ("rebuilt", rebuilt),
        ("time", format!("{}, {} of it to look", duration(report.elapsed_s), duration(report.check_s))),
        ("CPU", cpu_text(report.cpu_user_s, report.cpu_system_s)),
        ("memory", memory_text(report.rss_bytes_max, report.memory_ceiling_bytes)),
    ];
    let lines: Vec<_> = lines.into_iter().filter(|(_, text)| !text.is_empty()).collect();
    format!("repair of backup {} of {}: {verdict}\n{}", report.label, report.source, block(&lines))
}

fn lost_text(report: &RepairReport, repo: &str) -> String {
    let mut text = format!("{} not everything of backup {} can be put back\n", red("DAMAGE:"), report.label);
    for lost in &report.lost {
        text.push_str(&format!("  {} of {}: {}\n", lost.name, lost.set, lost.cause));
    }
    text + &format!(
        "next: pagehaul verify --repo {repo} --set {} lists the files that are hit; if a stripe was moved, name its directory \
         with --stripe-from",
        report.label
    )
}
