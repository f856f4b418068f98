//! `pagehaul extract-table`: one table out of a backup, as SQL.

use pagehaul_engine::drill::{ExtractReport, ScratchTarget, extract_table};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::restore::{RestoreRequest, restore};
use pagehaul_engine::terms::BackupLabel;

use super::prove::scratch_restore;
use crate::args::ExtractTableArgs;
use crate::exit_code::ExitCode;
use crate::output;
use crate::output::figures::{bytes, duration};
use crate::output::table::block;
use crate::progress::Console;

/// Restores the table's database to scratch and dumps the table.
pub(crate) fn run(args: &ExtractTableArgs, console: &Console) -> Result<ExitCode> {
    let request = args.request()?;
    if args.json && request.output.is_none() {
        return Err(Error::new(ErrorKind::Usage, "use --json with --output -", "both would be on standard output"));
    }
    console.set_throttled(args.scratch.bounds.max_rate.is_some());
    let mut restorer = |label: &BackupLabel, to: &ScratchTarget| {
        let restoring = RestoreRequest {
            include_databases: vec![request.table.database.clone()],
            ..args.scratch.restore(&args.from, Some(label), to)?
        };
        Ok(scratch_restore(&restore(&restoring, console)?))
    };
    let report = extract_table(&request, &mut restorer, console)?;
    console.tell(&report_text(&report, &args.table));
    if args.json {
        output::json(&report)?;
    }
    Ok(ExitCode::Done)
}

fn report_text(report: &ExtractReport, table: &str) -> String {
    let lines = [
        ("output", report.output.clone().unwrap_or_else(|| "standard output".to_owned())),
        ("size", report.output_bytes.map_or_else(String::new, bytes)),
        (
            "time",
            format!(
                "{}: {} to restore {}, {} to start and replay, {} to dump",
                duration(report.elapsed_s),
                duration(report.restore_s),
                bytes(report.restored_bytes),
                duration(report.replay_s),
                duration(report.dump_s)
            ),
        ),
        ("notes", report.notes.join("\n")),
    ];
    format!("{table} of backup {} of {}\n{}", report.label, report.source, block(&lines))
}
