//! `pagehaul wal receive`.

use pagehaul_engine::catalog::Repository;
use pagehaul_engine::error::Result;
use pagehaul_engine::wal::{ReceiveReport, receive};

use crate::args::WalReceiveArgs;
use crate::exit_code::ExitCode;
use crate::output;
use crate::output::figures::{bytes, count};
use crate::progress::Console;

/// Receives until a signal ends it, which is how it is meant to end.
pub(crate) fn run(args: &WalReceiveArgs, console: &Console) -> Result<ExitCode> {
    let request = args.request()?;
    // Never makes one, as a push: beside the archive of a disk that is not mounted, WAL would be lost for it.
    let repository = Repository::open(&args.repo)?;
    let report = receive(&repository, &request, console)?;
    console.tell(&report_text(&report));
    if args.json {
        output::json(&report)?;
    }
    Ok(ExitCode::Done)
}

fn report_text(report: &ReceiveReport) -> String {
    let (segments, pieces) = (count(report.segment_count, "segment"), count(report.piece_count, "piece"));
    let received = bytes(report.received_bytes);
    match (report.durable_lsn, report.timeline) {
        (Some(lsn), Some(timeline)) => {
            format!("{received} of WAL: {segments}, {pieces}; durable up to {lsn} on timeline {timeline}")
        }
        _ => format!("{received} of WAL: {segments}, {pieces}"),
    }
}
