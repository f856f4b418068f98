//! `pagehaul tune`: measures, shows the table as it grows, answers.

mod apply;
mod history;
mod plan;
pub(super) mod text;
pub(super) mod view;
mod what_if;

use std::path::Path;

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::io;
use pagehaul_tune::figures::TuneReport;
use pagehaul_tune::{report, session};

use super::record::Record;
use crate::args::{TuneArgs, TuneVerb};
use crate::exit_code::ExitCode;
use crate::output;
use crate::progress::Console;
use view::View;

/// Measures, or shows what was measured.
pub(crate) fn run(args: &TuneArgs, config: Option<&Path>, record: &Record, console: &Console) -> Result<ExitCode> {
    if let Some(TuneVerb::History(args)) = &args.verb {
        return history::run(args, &record.path()?);
    }
    let command: Vec<String> = std::env::args().map(|word| super::shell_word(&word)).collect();
    let request = args.request(command.join(" "), record.path()?)?;
    let what_if = args.what_if()?;
    if args.dry_run {
        return plan::show(&request, args.json, console);
    }
    if let Some(report) = &args.report {
        // Better now than after ten minutes of measuring.
        check_writable(report)?;
    }
    let done = session::tune(&request, &View::new(console))?;
    console.tell(&text::report(&done));
    if let Some(what_if) = what_if {
        console.tell(&what_if::text(&done, &request.space, &what_if));
    }
    if let Some(path) = &args.report {
        write_report(path, &done)?;
        console.tell(&format!("report: {}\n", path.display()));
    }
    if args.apply {
        apply_recommendation(&done, &request.targets, config, console)?;
    }
    if args.json {
        output::json(&done)?;
    }
    match &done.recommendation {
        Some(_) => Ok(ExitCode::Done),
        None => Err(Error::new(ErrorKind::Source, "recommend settings", "no trial of ours succeeded")
            .hint("the table says why each failed; with a longer --budget more of them run")),
    }
}

fn apply_recommendation(
    done: &TuneReport,
    targets: &pagehaul_tune::trial::Targets,
    config: Option<&Path>,
    console: &Console,
) -> Result<()> {
    let Some(settings) = done.recommendation.as_ref().and_then(|answer| answer.settings.as_ref()) else {
        return Ok(());
    };
    let path = config.unwrap_or(Path::new("pagehaul.toml"));
    apply::write(path, settings, targets)?;
    console.tell(&format!("the next backup and restore take these settings from {}\n", path.display()));
    Ok(())
}

pub(super) fn check_writable(path: &Path) -> Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if directory.is_dir() && !path.is_dir() {
        return Ok(());
    }
    let cause = if path.is_dir() { "it is a directory" } else { "its directory is not there" };
    Err(Error::new(ErrorKind::Usage, format!("write the report to {}", path.display()), cause))
}

pub(super) fn write_report(path: &Path, done: &TuneReport) -> Result<()> {
    let failed = |cause| Error::new(ErrorKind::Target, format!("write the report to {}", path.display()), cause);
    io::replace_durable(path, report::html(done)?.as_bytes()).map_err(failed)
}
