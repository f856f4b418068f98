//! `pagehaul tune history`.

use pagehaul_engine::error::Result;
use pagehaul_tune::history::{History, HistoryFilter, HistoryRow, to_csv, to_json};

use crate::args::HistoryArgs;
use crate::exit_code::ExitCode;
use crate::output;
use crate::output::figures::{bytes, duration, ratio};
use crate::output::table::{Align, table};

/// Lists the last runs, oldest first.
pub(super) fn run(args: &HistoryArgs) -> Result<ExitCode> {
    let history = History::open(&History::default_path()?)?;
    let filter = HistoryFilter { source: args.source.clone(), limit: Some(args.last), ..HistoryFilter::default() };
    let rows = history.rows(&filter)?;
    if args.csv {
        output::data(&to_csv(&rows)?)?;
    } else if args.json {
        output::data(&to_json(&rows)?)?;
    } else {
        output::data(&as_table(&rows))?;
    }
    Ok(ExitCode::Done)
}

fn as_table(_rows: &[HistoryRow]) -> String {
    String::new()
}
