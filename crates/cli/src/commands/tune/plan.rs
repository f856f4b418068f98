//! `tune --dry-run`: every command that would be run, and what it needs. Nothing is touched.

use pagehaul_engine::error::Result;
use pagehaul_tune::plan::{Plan, plan};
use pagehaul_tune::session::TuneRequest;

use crate::exit_code::ExitCode;
use crate::output;
use crate::output::figures::{bytes, count, duration};
use crate::output::table::block;
use crate::progress::Console;

/// Shows the plan.
pub(super) fn show(request: &TuneRequest, as_json: bool, console: &Console) -> Result<ExitCode> {
    let plan = plan(request)?;
    console.tell(&text(&plan));
    if as_json {
        output::json(&plan)?;
    }
    Ok(ExitCode::Done)
}

fn text(plan: &Plan) -> String {
    let lines = [
        ("data", format!("{}, {}", count(plan.file_count, "file"), bytes(plan.source_bytes))),
        ("space", plan.space.join("\n")),
        ("memory", format!("at most {} at a time", bytes(plan.memory_bytes_max))),
        ("time", plan.time.clone()),
        ("points", count(plan.point_count, "combination")),
        ("budget", plan.budget_s.map_or("none".to_owned(), duration)),
    ];
    let commands: String =
        plan.commands.iter().enumerate().map(|(at, line)| format!("{:>5}  {line}\n", at + 1)).collect();
    format!("tune would run, in this order (nothing was touched):\n{commands}\n{}", block(&lines))
}
