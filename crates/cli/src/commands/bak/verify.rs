//! `pagehaul bak verify`.

use std::time::Instant;

use pagehaul_bak::facts::SetKind;
use pagehaul_bak::verify::{SetReport, VerifyReport, VerifySettings, verify};
use pagehaul_engine::error::Result;

use super::{step, total_bytes, verdict};
use crate::args::BakVerifyArgs;
use crate::exit_code::ExitCode;
use crate::output::figures::{bytes, count, duration, rate_of};
use crate::output::table::{Align, table};
use crate::output::{self, red};
use crate::progress::{ByteBar, Console};

/// Checks every byte that a checksum covers.
pub(super) fn run(args: &BakVerifyArgs, console: &Console) -> Result<ExitCode> {
    let files = args.files.open()?;
    let bar = ByteBar::new(console, total_bytes(&files)?);
    let begun = Instant::now();
    let settings = VerifySettings { threads: args.threads.count() };
    let report = verify(&files, settings, &mut |bytes| step(&bar, console, "verify backup files", bytes))?;
    bar.finish();
    if args.json {
        output::json(&report)?;
    } else {
        output::data(&text(&report, begun.elapsed().as_secs_f64()))?;
    }
    Ok(verdict(&report.damage, report.damage_count, console))
}

fn text(report: &VerifyReport, elapsed_s: f64) -> String {
    let verdict = if report.sound { "sound".to_owned() } else { red("NOT SOUND") };
    let stream: u64 = report.files.iter().map(|file| file.stream_bytes).sum();
    let header = [
        ("database", Align::Left),
        ("backup", Align::Left),
        ("FILE", Align::Right),
        ("pages", Align::Right),
        ("checked", Align::Right),
        ("unprotected", Align::Right),
        ("stale", Align::Right),
        ("not judged", Align::Right),
        ("damaged", Align::Right),
    ];
    let rows: Vec<Vec<String>> = report.sets.iter().map(set_row).collect();
    let unjudged: String = report.sets.iter().filter_map(unjudged_text).collect();
    format!(
        "{}, {} ({} uncompressed): {verdict}\n{}{unjudged}{} compared; {}, {}\n",
        count(report.files.len() as u64, "file"),
        bytes(report.read_bytes),
        bytes(stream),
        table(&header, &rows),
        count(report.backup_checksum_count, "backup checksum"),
        duration(elapsed_s),
        rate_of(report.read_bytes, elapsed_s),
    )
}

/// That pages of a set were not judged, and what would help.
fn unjudged_text(set: &SetReport) -> Option<String> {
    let pages = set.pages.unjudged;
    let help =
        if set.kind == Some(SetKind::Differential) { ": give the full backup that it is built on as well" } else { "" };
    (pages > 0).then(|| {
        format!(
            "not judged in set {}: {} with wrong checksums, and nothing here says whether they are in use{help}\n",
            set.position,
            count(pages, "page")
        )
    })
}

fn set_row(set: &SetReport) -> Vec<String> {
    let pages = &set.pages;
    vec![
        set.database.clone().unwrap_or_else(|| "not known".to_owned()),
        set.kind.map_or("not known", SetKind::name).to_owned(),
        set.position.to_string(),
        pages.pages.to_string(),
        (pages.sound + pages.not_torn).to_string(),
        (pages.unprotected + pages.filler).to_string(),
        pages.stale.to_string(),
        pages.unjudged.to_string(),
        pages.damaged.to_string(),
    ]
}
