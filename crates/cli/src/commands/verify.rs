//! `pagehaul verify`.

use pagehaul_engine::encryption::Keys;
use pagehaul_engine::error::{ErrorKind, Result};
use pagehaul_engine::verify::{VerifyReport, verify};

use super::{cpu_text, listed, memory_text, repo_words};
use crate::args::VerifyArgs;
use crate::exit_code::ExitCode;
use crate::output::figures::{bytes, count, duration, rate_of};
use crate::output::table::block;
use crate::output::{self, red, timing};
use crate::progress::Console;

/// Files that the line about a damaged frame names.
const FILES_NAMED_MAX: usize = 5;

/// Reads a set back and says whether it is sound.
pub(crate) fn run(args: &VerifyArgs, console: &Console) -> Result<ExitCode> {
    console.set_throttled(args.bounds.max_rate.is_some());
    let report = verify(&args.request()?, console)?;
    console.tell(&report_text(&report));
    if args.json {
        output::json(&report)?;
    }
    let repo = repo_words(&args.from.repo, &Keys::of_process());
    if report.sound {
        let (source, label) = (&report.source, &report.label);
        console.tell(&format!("next: pagehaul restore {source} --repo {repo} --set {label} --target-dir DIR"));
        return Ok(ExitCode::Done);
    }
    console.warn(&if report.restorable { degraded_text(&report, &repo) } else { damage_text(&report, &repo) });
    Ok(ExitCode::Failed(ErrorKind::Damage))
}

fn report_text(report: &VerifyReport) -> String {
    let stored = bytes(report.stored_bytes);
    let lines = [
        ("files", format!("{}, {} without zero pages", count(report.file_count, "file"), bytes(report.verified_bytes))),
        ("read", format!("{stored} in {}", count(report.frame_count, "frame"))),
        ("time", format!("{}, {}", duration(report.elapsed_s), rate_of(report.verified_bytes, report.elapsed_s))),
        ("CPU", cpu_text(report.cpu_user_s, report.cpu_system_s)),
        ("memory", memory_text(report.rss_bytes_max, report.memory_ceiling_bytes)),
    ];
    let verdict = match (report.sound, report.restorable) {
        (true, _) => "sound, every byte is as it was written",
        (false, true) => "DEGRADED, it can be restored thanks to parity",
        (false, false) => "NOT SOUND",
    };
    let stages = [("stripe readers", &report.stages.stripe_readers), ("decoders", &report.stages.decoders)];
    format!(
        "backup {} of {}: {verdict}\n{}{}{}",
        report.label,
        report.source,
        block(&lines),
        timing::where_the_time_went(&stages, report.elapsed_s, &report.limit),
        harmless_text(report),
    )
}

/// What is wrong with stripes and yet costs nothing.
fn harmless_text(report: &VerifyReport) -> String {
    let harmless = report.stripe_problems.iter().filter(|problem| problem.harmless && !problem.by_parity);
    harmless
        .map(|problem| {
            format!("note: stripe {} at {}: {}; nothing is lost\n", problem.stripe, problem.path, problem.cause)
        })
        .collect()
}

/// The first few names; one frame may hold bytes of hundreds of small files.
fn few(names: &[String]) -> String {
    let shown = names.iter().take(FILES_NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    let left = names.len().saturating_sub(FILES_NAMED_MAX);
    if left > 0 { format!("{shown} and {left} more") } else { shown }
}

/// What parity gives back, and what is to be done about it.
fn degraded_text(report: &VerifyReport, repo: &str) -> String {
    let by_parity: Vec<_> = report.stripe_problems.iter().filter(|problem| problem.by_parity).collect();
    let mut text = format!("{} backup {} of {} lives on its parity\n", red("DEGRADED:"), report.label, report.source);
    text.push_str(&listed(&by_parity, by_parity.len() as u64, |problem| {
        // What lies beside the manifest is of no stripe.
        let what = match problem.path.contains('/') {
            true => format!("stripe {} at {}", problem.stripe, problem.path),
            false => problem.path.clone(),
        };
        format!("set {}, {what}: {}", problem.set, problem.cause)
    }));
    text.push_str(&listed(&report.repaired_frames, report.repaired_frames.len() as u64, |frame| {
        format!("set {}, frame {} of stripe {} ({}): {}", frame.set, frame.frame, frame.stripe, frame.path, frame.cause)
    }));
    text.push_str(&format!("next: pagehaul repair {} --repo {repo} --set {}", report.source, report.label));
    text
}

fn damage_text(report: &VerifyReport, repo: &str) -> String {
    let harmful: Vec<_> = report.stripe_problems.iter().filter(|problem| !problem.harmless).collect();
    let mut text =
        format!("{} backup {} of {} cannot be restored whole\n", red("DAMAGE:"), report.label, report.source);
    text.push_str(&listed(&harmful, harmful.len() as u64, |problem| {
        format!("stripe {} at {}: {}", problem.stripe, problem.path, problem.cause)
    }));
    text.push_str(&listed(&report.damaged_frames, report.damaged_frame_count, |frame| {
        let offset = frame.offset.map_or_else(String::new, |offset| format!(" at byte {offset}"));
        let files = few(&frame.files);
        format!(
            "set {}, frame {} of stripe {}{offset} ({}): {}; it holds bytes of {files}",
            frame.set, frame.frame, frame.stripe, frame.path, frame.cause
        )
    }));
    if report.damaged_file_count > 0 {
        text.push_str(&format!("{} cannot be restored whole:\n", count(report.damaged_file_count, "file")));
        text.push_str(&listed(&report.damaged_files, report.damaged_file_count, |file| {
            format!("{}: {}", file.path, file.cause)
        }));
    }
    text.push_str(&format!(
        "next: make a new backup now; look for an older one that is sound (pagehaul info --repo {repo}); if a stripe was \
         moved, name its directory with --stripe-from"
    ));
    text
}
