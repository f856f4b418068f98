//! `pagehaul check`.

use pagehaul_engine::check::{CheckLine, CheckReport, CheckState, check};
use pagehaul_engine::error::Result;

use crate::args::CheckArgs;
use crate::exit_code::ExitCode;
use crate::output::{self, red};
use crate::progress::Console;

/// Checks that WAL arrives in the repository; the exit code is that of the first problem.
pub(crate) fn run(args: &CheckArgs, console: &Console) -> Result<ExitCode> {
    let report = check(&args.request()?, console)?;
    if args.json {
        output::json(&report)?;
    } else {
        output::data(&text(&report))?;
    }
    Ok(report.problem_kind().map_or(ExitCode::Done, ExitCode::Failed))
}

fn text(report: &CheckReport) -> String {
    let width = report.lines.iter().map(|line| line.what.len()).max().unwrap_or(0);
    report.lines.iter().map(|line| line_text(line, width)).collect()
}

fn line_text(line: &CheckLine, width: usize) -> String {
    let CheckLine { what, state, text, next, .. } = line;
    let word = match state {
        CheckState::Ok => "ok     ".to_owned(),
        CheckState::Note => "note   ".to_owned(),
        CheckState::Skipped => "skipped".to_owned(),
        CheckState::Problem => red("PROBLEM"),
    };
    let next = next.as_ref().map_or_else(String::new, |next| format!("{:width$}           next: {next}\n", ""));
    format!("{what:width$}  {word}  {text}\n{next}")
}
