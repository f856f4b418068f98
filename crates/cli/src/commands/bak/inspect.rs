//! `pagehaul bak inspect`.

use pagehaul_bak::inspect::{InspectReport, InspectedFile, InspectedSet, inspect};
use pagehaul_bak::source::Layout;
use pagehaul_engine::error::Result;

use super::verdict;
use crate::args::BakInspectArgs;
use crate::exit_code::ExitCode;
use crate::output;
use crate::output::figures::bytes;
use crate::output::table::{Align, block, table};
use crate::progress::Console;

/// Shows what files hold.
pub(super) fn run(args: &BakInspectArgs, console: &Console) -> Result<ExitCode> {
    let report = inspect(&args.files.open()?)?;
    if args.json {
        output::json(&report)?;
    } else {
        output::data(&text(&report))?;
    }
    Ok(verdict(&report.damage, report.damage.len() as u64, console))
}

fn text(report: &InspectReport) -> String {
    let header = [
        ("file", Align::Left),
        ("size", Align::Right),
        ("layout", Align::Left),
        ("family", Align::Left),
        ("media set", Align::Left),
        ("sets", Align::Right),
        ("formatted", Align::Left),
    ];
    let rows: Vec<Vec<String>> = report.files.iter().map(file_row).collect();
    let mut text = table(&header, &rows);
    for set in &report.sets {
        text.push('\n');
        text.push_str(&set_text(set));
    }
    text
}

fn file_row(file: &InspectedFile) -> Vec<String> {
    let layout = if file.layout == Layout::Compressed { "compressed" } else { "plain" };
    vec![
        file.file.clone(),
        bytes(file.size_bytes),
        layout.to_owned(),
        format!("{} of {}", file.family_number, file.family_count),
        file.media_set_guid.to_string(),
        file.set_count.to_string(),
        file.written_at.to_string(),
    ]
}

fn set_text(set: &InspectedSet) -> String {
    let server = &set.server;
    let mut lines = vec![
        (
            "database",
            format!(
                "{}, version {}, compatibility {}",
                server.database_name, server.database_version, server.compatibility_level
            ),
        ),
        ("server", format!("{} {}", server.server_name, set.server_version)),
        ("made", made(set)),
        ("set", format!("{}, FILE = {}", set.set_guid, set.position)),
        ("size", format!("{} before compression", bytes(server.backup_size_bytes))),
        ("checksums", if set.has_backup_checksums { "yes (WITH CHECKSUM)" } else { "no backup checksums" }.to_owned()),
        (
            "LSNs",
            format!(
                "first {}, last {}, checkpoint {}, full backup before {}",
                server.first_lsn, server.last_lsn, server.checkpoint_lsn, server.database_backup_lsn
            ),
        ),
        ("history", format!("fork {}, began with {}", server.recovery_fork_guid, server.family_guid)),
    ];
    if !set.base_guid.is_none() {
        lines.push(("base", format!("{}, LSN {}", set.base_guid, set.base_lsn)));
    }
    for (name, value) in [("name", &set.name), ("description", &set.description), ("user", &set.user_name)] {
        if !value.is_empty() {
            lines.push((name, value.clone()));
        }
    }
    let copy = if set.is_copy_only { ", copy only" } else { "" };
    let whole = if set.is_complete { "" } else { ", NOT COMPLETE" };
    format!(
        "{} backup{copy}{whole} in {}\n{}{}",
        set.kind.name(),
        set.in_files.join(", "),
        block(&lines),
        files_text(set)
    )
}

fn made(set: &InspectedSet) -> String {
    let (from, to) = (set.server.started_at, set.server.finished_at);
    if to.is_none() { from.to_string() } else { format!("{from} to {to}, by the server's clock") }
}

fn files_text(set: &InspectedSet) -> String {
    let header = [
        ("    database file", Align::Left),
        ("id", Align::Right),
        ("holds", Align::Left),
        ("size", Align::Right),
        ("in this set", Align::Right),
        ("path on the server", Align::Left),
    ];
    let rows: Vec<Vec<String>> = set
        .server
        .files
        .iter()
        .map(|file| {
            let in_set = if file.is_log() { String::new() } else { bytes(file.backup_size_bytes) };
            vec![
                format!("    {}", file.logical_name),
                file.file_id.to_string(),
                if file.is_log() { "log" } else { "data" }.to_owned(),
                bytes(file.size_bytes),
                in_set,
                file.physical_path.clone(),
            ]
        })
        .collect();
    table(&header, &rows)
}
