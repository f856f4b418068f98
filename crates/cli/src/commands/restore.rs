//! `pagehaul restore`.

use pagehaul_engine::error::Result;
use pagehaul_engine::restore::{DeltaReport, LeftOutDatabase, RecoveryReport, RestoreReport, TargetAction, restore};

use super::record::Record;
use super::{cpu_text, memory_text, shell_word};
use crate::args::RestoreArgs;
use crate::exit_code::ExitCode;
use crate::output;
use crate::output::figures::{bytes, count, duration, rate};
use crate::output::table::block;
use crate::output::timing;
use crate::progress::Console;

/// Restores, or with --dry-run says whether it could be done.
pub(crate) fn run(args: &RestoreArgs, record: &Record, console: &Console) -> Result<ExitCode> {
    console.set_throttled(args.bounds.max_rate.is_some());
    let report = restore(&args.request()?, console)?;
    console.tell(&if args.dry_run { plan_text(&report) } else { report_text(&report) });
    if args.json {
        output::json(&report)?;
    }
    if !args.dry_run {
        record.restore(&report, console);
    }
    Ok(ExitCode::Done)
}

fn plan_text(report: &RestoreReport) -> String {
    let space: Vec<String> = report
        .space
        .iter()
        .map(|need| format!("{}: {} needed, {} free", need.directory, bytes(need.needed_bytes), bytes(need.free_bytes)))
        .collect();
    let lines = [
        ("data", format!("{}, {}", count(report.file_count, "file"), bytes(report.restored_bytes))),
        ("space", space.join("\n")),
        ("replay", replay_text(report)),
        ("threads", threads_text(report)),
        ("memory", format!("at most {}", bytes(report.memory_ceiling_bytes))),
        ("left out", left_out_text(report)),
        ("notes", report.notes.join("\n")),
    ];
    let (label, source) = (&report.label, &report.source);
    format!("restore {label} of {source} into {}: can be done\n{}", report.target_dir, block(&lines))
}

fn delta_text(delta: &DeltaReport) -> String {
    let removed = match delta.removed_count {
        0 => "nothing removed".to_owned(),
        removed => format!("{} with {} removed", count(removed, "file"), bytes(delta.removed_bytes)),
    };
    format!(
        "{} compared in {}, {} reused, {} rewritten, {removed}",
        bytes(delta.compared_bytes),
        duration(delta.compare_s),
        bytes(delta.reused_bytes),
        bytes(delta.rewritten_bytes)
    )
}

fn left_out_text(report: &RestoreReport) -> String {
    let line = |database: &LeftOutDatabase| {
        let name = database.name.as_deref().unwrap_or("database");
        format!("{name} (OID {}), {}: it can only be dropped", database.oid, bytes(database.bytes))
    };
    report.left_out_databases.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn threads_text(report: &RestoreReport) -> String {
    format!("{} readers, {} decoders, {} file writers", report.readers, report.decoders, report.file_writers)
}

fn report_text(report: &RestoreReport) -> String {
    let synced = format!("{} of it to make everything durable", duration(report.sync_s));
    let archiving = if report.archiving_off {
        "off, so that the copy does not archive into its original's archive"
    } else {
        "as configured"
    };
    let lines = [
        ("data", format!("{}, {}", count(report.file_count, "file"), bytes(report.restored_bytes))),
        ("read", format!("{} of stripes", bytes(report.stored_bytes))),
        ("delta", report.delta.as_ref().map_or_else(String::new, delta_text)),
        ("time", format!("{}, {}; {synced}", duration(report.elapsed_s), rate(report.throughput_bytes_per_s))),
        ("CPU", cpu_text(report.cpu_user_s, report.cpu_system_s)),
        ("memory", memory_text(report.rss_bytes_max, report.memory_ceiling_bytes)),
        ("replay", replay_text(report)),
        ("archiving", archiving.to_owned()),
        ("left out", left_out_text(report)),
        ("notes", report.notes.join("\n")),
    ];
    let mut text =
        format!("restored {} of {} into {}\n{}", report.label, report.source, report.target_dir, block(&lines));
    text.push_str(&time_text(report));
    text.push_str(&format!("next, as the owner of the files: {}\n", start_command(report)));
    text
}

/// What starts the server: as on Debian its settings may lie elsewhere, and name the directory and the pid file of the
/// original.
fn start_command(report: &RestoreReport) -> String {
    let directory = shell_word(&report.target_dir);
    let start = format!("pg_ctl start -D {directory} -l logfile");
    let Some(settings) = report.external_files.iter().find(|path| path.ends_with("/postgresql.conf")) else {
        return start;
    };
    let options = format!("-c config_file={settings} -c data_directory={} -c external_pid_file=", report.target_dir);
    format!(
        "{start} -o {}\n      (its settings were not in the backup: {settings} must be there)",
        shell_word(&options)
    )
}

/// How far the server will replay.
fn replay_text(report: &RestoreReport) -> String {
    let Some(recovery) = &report.recovery else {
        return format!("all WAL of the backup, at least to {}", report.stop_lsn);
    };
    let point = recovery.target.as_deref().unwrap_or_default();
    let mut text = match report.target {
        "immediate" => format!("until consistent at {}", report.stop_lsn),
        "latest" => "all archived WAL".to_owned(),
        "standby" => "as a standby, whatever is archived".to_owned(),
        kind => {
            let kind = if kind == "name" { "restore point" } else { kind };
            format!("up to {kind} {point}, {}", if recovery.inclusive { "included" } else { "excluded" })
        }
    };
    if let Some(zone) = &recovery.assumed_time_zone {
        text.push_str(&format!("\nthe time had no zone: {zone} was assumed, and {point} is UTC"));
    }
    if let Some(timeline) = recovery.timeline {
        text.push_str(&format!("\nalong timeline {timeline}, from {}", report.stop_lsn));
    }
    text.push_str(&stop_text(recovery, report.target));
    text
}

fn stop_text(recovery: &RecoveryReport, kind: &str) -> String {
    let action = match recovery.action {
        _ if matches!(kind, "latest" | "standby") => return String::new(),
        TargetAction::Pause => "stays read-only until pg_wal_replay_resume()",
        TargetAction::Promote => "opens for writing on a new timeline",
        // Without recovery.signal it would replay what lies in pg_wal, beyond the target.
        TargetAction::Shutdown => "shuts down; with recovery_target_action = 'promote' the next start opens it there",
    };
    let segment = recovery.stops_in.as_deref().map_or_else(String::new, |segment| format!(" in WAL segment {segment}"));
    format!("\nthere{segment} it {action}")
}

/// Where the time of a restore went.
pub(super) fn time_text(report: &RestoreReport) -> String {
    let stages = &report.stages;
    let stages = [
        ("stripe readers", &stages.stripe_readers),
        ("decoders", &stages.decoders),
        ("file writers", &stages.file_writers),
    ];
    timing::where_the_time_went(&stages, report.data_path_s, &report.limit)
}
