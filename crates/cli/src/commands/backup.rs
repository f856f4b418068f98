//! `pagehaul backup`.

use pagehaul_engine::backup::{BackupOutcome, BackupPlan, BackupReport, BackupRequest, RepositoryReport, backup};
use pagehaul_engine::encryption::Keys;
use pagehaul_engine::error::{ErrorKind, Result};

use super::record::Record;
use super::{cpu_text, listed, memory_text, repo_words, version_text};
use crate::args::BackupArgs;
use crate::exit_code::ExitCode;
use crate::output::figures::{bytes, count, duration, percent, rate, ratio};
use crate::output::table::block;
use crate::output::{self, red, timing};
use crate::progress::Console;

/// Backs up, or with --dry-run says what would be done.
pub(crate) fn run(args: &BackupArgs, record: &Record, console: &Console) -> Result<ExitCode> {
    let request = args.request()?;
    console.set_throttled(args.bounds.max_rate.is_some());
    if args.explain && !args.dry_run {
        explain(&request, console)?;
    }
    match backup(&request, console)? {
        BackupOutcome::Planned(plan) => {
            console.tell(&plan_text(&plan));
            if args.json {
                output::json(&*plan)?;
            }
            Ok(ExitCode::Done)
        }
        BackupOutcome::Done(report) => {
            console.tell(&report_text(&report, &request.repo));
            if args.json {
                output::json(&*report)?;
            }
            record.backup(&report, args.pgdata.as_deref(), console);
            if report.bad_page_count > 0 {
                console.warn(&bad_pages_text(&report));
            }
            if report.lost_file_count > 0 {
                console.warn(&lost_files_text(&report));
            }
            let failed = report.repositories.iter().filter(|one| one.error.is_some());
            let failed = failed.map(|one| console.warn(&left_out_text(one, &report))).count();
            Ok(match (report.source_is_damaged(), failed) {
                (true, _) => ExitCode::Failed(ErrorKind::Damage),
                (false, 0) => ExitCode::Done,
                _ => ExitCode::Failed(ErrorKind::Repository),
            })
        }
    }
}

/// The plan of the same backup, shown before it starts.
fn explain(request: &BackupRequest, console: &Console) -> Result<()> {
    let request = BackupRequest { dry_run: true, ..request.clone() };
    if let BackupOutcome::Planned(plan) = backup(&request, console)? {
        console.tell(&plan_text(&plan));
    }
    Ok(())
}

fn plan_text(plan: &BackupPlan) -> String {
    let lines = [
        ("read", format!("{}, {}", count(plan.file_count, "file"), bytes(plan.source_bytes))),
        ("threads", format!("{} readers, {} encoders, {} writers", plan.readers, plan.encoders, plan.stripes)),
        ("compression", format!("{}, frames of {}", plan.compression, bytes(plan.frame_size_bytes.into()))),
        ("buffers", format!("{} of {}", plan.buffer_count, bytes(plan.transfer_size_bytes.into()))),
        ("stripes", places_text(&plan.stripe_paths)),
        ("parity", if plan.parity == 0 { "none\n".to_owned() } else { places_text(&plan.parity_paths) }),
    ];
    format!("plan\n{}memory, at most\n{}", block(&lines), plan.memory_ceiling.explain())
}

/// Each directory once, with the number of stripes that go there.
fn places_text(paths: &[String]) -> String {
    let mut places: Vec<(&String, u64)> = Vec::new();
    for path in paths {
        match places.iter_mut().find(|(place, _)| *place == path) {
            Some((_, stripes)) => *stripes += 1,
            None => places.push((path, 1)),
        }
    }
    places.iter().map(|(path, stripes)| format!("{} in {path}\n", count(*stripes, "file"))).collect()
}

fn report_text(report: &BackupReport, repo: &str) -> String {
    let mut lines = Vec::new();
    lines.extend(prior_text(report).map(|text| ("kind", text)));
    lines.extend(figures(report, &compression_text(report)));
    if report.vanished_file_count > 0 {
        lines.push((
            "dropped",
            format!("{} that the server dropped meanwhile", count(report.vanished_file_count, "file")),
        ));
    }
    lines.extend(report.protected_until.iter().map(|until| ("protected", format!("until {until}"))));
    lines.extend(report.notes.iter().map(|note| ("note", note.clone())));
    set_text("backup", report, &lines, repo)
}

/// What a set holds and what it took; `stored` says how it is stored.
pub(super) fn figures(report: &BackupReport, stored: &str) -> [(&'static str, String); 6] {
    let version = version_text(report.postgres_version_num);
    let files = count(report.file_count, "file");
    let stripes = match report.parity_stripes.len() {
        0 => count(report.stripes.len() as u64, "stripe"),
        parity => format!("{}+{parity} stripes", report.stripes.len()),
    };
    let segments = count(report.wal_segment_count, "segment");
    let sealed = if Keys::of_process().encrypts() { ", encrypted" } else { "" };
    [
        ("data", format!("{files}, {} (PostgreSQL {version})", bytes(report.source_bytes))),
        (
            "stored",
            format!("{} in {stripes}, ratio {} ({stored}){sealed}", bytes(report.stored_bytes), ratio(report.ratio)),
        ),
        ("time", format!("{}, {}", duration(report.elapsed_s), rate(report.throughput_bytes_per_s))),
        ("CPU", cpu_text(report.cpu_user_s, report.cpu_system_s)),
        ("memory", memory_text(report.rss_bytes_max, report.memory_ceiling_bytes)),
        ("WAL", format!("{} to {}, timeline {}, {segments}", report.start_lsn, report.stop_lsn, report.timeline)),
    ]
}

/// The report of a new set: title, `lines`, where the time went, what to do next.
pub(super) fn set_text(what: &str, report: &BackupReport, lines: &[(&str, String)], repo: &str) -> String {
    let mut text = format!("{what} {} of {}: {}\n{}", report.label, report.source, report.state, block(lines));
    text.push_str(&time_text(report));
    // Nothing is there to verify if the output was discarded.
    if report.state == "complete" {
        let repo = repo_words(repo, &Keys::of_process());
        text.push_str(&format!("next: pagehaul verify {} --repo {repo} --set {}\n", report.source, report.label));
    }
    text
}

/// What an incremental backup builds on, and how much it left out.
fn prior_text(report: &BackupReport) -> Option<String> {
    let prior = report.prior.first()?;
    let chain = match report.prior.len() {
        1 => String::new(),
        more => format!(" and {} before it", count(more as u64 - 1, "set")),
    };
    Some(format!(
        "{} on {prior}{chain}: {} changed, {} read (found by {})",
        report.kind,
        bytes(report.changed_bytes),
        bytes(report.read_bytes),
        report.changes_found_by.unwrap_or_default()
    ))
}

/// "zstd:3", or "auto: 2 % lz4:1, 98 % zstd:7".
pub(super) fn compression_text(report: &BackupReport) -> String {
    if report.levels.is_empty() {
        let engine = report.deflate_engine.as_ref().map_or(String::new(), |engine| format!(" by {engine}"));
        return format!("{}:{}{engine}", report.codec, report.level);
    }
    let levels = report.levels.iter().map(|level| format!("{} {}", percent(level.share), level.compression));
    format!("{}: {}", report.codec, levels.collect::<Vec<_>>().join(", "))
}

/// Where the time of a backup went.
pub(super) fn time_text(report: &BackupReport) -> String {
    let stages = &report.stages;
    let stages = [("readers", &stages.readers), ("encoders", &stages.encoders), ("writers", &stages.writers)];
    timing::where_the_time_went(&stages, report.data_path_s, &report.limit)
}

fn left_out_text(one: &RepositoryReport, report: &BackupReport) -> String {
    let (label, repo) = (&report.label, &one.repo);
    let error = one.error.as_deref().unwrap_or_default();
    let hint = one.hint.as_ref().map_or_else(String::new, |hint| format!("\nhint: {hint}"));
    format!(
        "{} set {label} is not surely in {repo}; it is complete in the others: {error}{hint}",
        red("REPOSITORY LEFT OUT:")
    )
}

fn bad_pages_text(report: &BackupReport) -> String {
    let pages = count(report.bad_page_count, "page");
    let list = listed(&report.bad_pages, report.bad_page_count, |page| {
        format!("{} page {}: {}", page.path, page.page, page.reason)
    });
    let path = report.bad_pages.first().map_or("base/...", |page| page.path.as_str());
    format!(
        "{} {pages} of the source {} damaged\n{list}\
         The backup is complete and kept, and holds these pages as they are; everything else in it is sound.\n\
         next: find the table, in its own database:\n  \
         SELECT oid::regclass FROM pg_class WHERE pg_relation_filepath(oid) = '{path}';\n\
         Keep older backups until it is mended: they may hold the pages from before.",
        red("DAMAGED PAGES:"),
        if report.bad_page_count == 1 { "is" } else { "are" },
    )
}

fn lost_files_text(report: &BackupReport) -> String {
    let files = count(report.lost_file_count, "file");
    let list = listed(&report.lost_files, report.lost_file_count, |file| {
        let whose = file.relation.as_ref().map_or_else(String::new, |relation| format!(" of {relation}"));
        format!("{}{whose}: {}", file.path, file.reason)
    });
    format!(
        "{} {files} that the source should have {} not there\n{list}\
         The backup is complete and kept, and is without them; everything else in it is sound.\n\
         next: restore an older set (--set) with archived WAL beside the server, and bring the relations back from there.\n\
         Keep older backups until then: they may be the only place where the files are.",
        red("LOST FILES:"),
        if report.lost_file_count == 1 { "is" } else { "are" },
    )
}
