//! `pagehaul tune history`.

use std::path::Path;

use pagehaul_engine::error::Result;
use pagehaul_tune::figures::RunFigures;
use pagehaul_tune::history::{History, HistoryFilter, HistoryRow, to_csv, to_json};
use pagehaul_tune::rows::OWN_NAME;

use crate::args::HistoryArgs;
use crate::exit_code::ExitCode;
use crate::output;
use crate::output::figures::{bytes, duration};
use crate::output::table::{Align, table};

/// Lists the last runs, oldest first.
pub(super) fn run(args: &HistoryArgs, path: &Path) -> Result<ExitCode> {
    let history = History::open(path)?;
    let filter = HistoryFilter { source: args.source.clone(), limit: Some(args.last), ..HistoryFilter::default() };
    let mut rows = history.rows(&filter)?;
    rows.reverse();
    if args.csv {
        output::data(&to_csv(&rows)?)?;
    } else if args.json {
        output::data(&to_json(&rows)?)?;
    } else {
        output::data(&as_table(&rows))?;
    }
    Ok(ExitCode::Done)
}

fn as_table(rows: &[HistoryRow]) -> String {
    if rows.is_empty() {
        return "no run was measured here yet\n".to_owned();
    }
    let header = [
        ("started (UTC)", Align::Left),
        ("source", Align::Left),
        ("what", Align::Left),
        ("settings", Align::Left),
        ("data", Align::Right),
        ("backup", Align::Right),
        ("restore", Align::Right),
        ("stored", Align::Right),
        ("limit", Align::Left),
    ];
    table(&header, &rows.iter().map(cells).collect::<Vec<_>>())
}

fn cells(row: &HistoryRow) -> Vec<String> {
    let wall = |run: &Option<RunFigures>| run.as_ref().map_or("-".to_owned(), |run| duration(run.wall_s));
    let limit = [&row.backup, &row.restore].into_iter().flatten().next().map(|run| run.limit.clone());
    let setting = match &row.failed {
        Some(why) => format!("{} failed: {}", row.setting, why.lines().next().unwrap_or_default()),
        None => row.setting.clone(),
    };
    vec![
        row.started_at.clone(),
        row.source.clone(),
        if row.contestant == OWN_NAME { row.role.clone() } else { row.contestant.clone() },
        setting,
        bytes(row.source_bytes),
        wall(&row.backup),
        wall(&row.restore),
        if row.stored_bytes > 0 { bytes(row.stored_bytes) } else { "-".to_owned() },
        limit.unwrap_or_default(),
    ]
}
