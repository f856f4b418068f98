//! How pagehaul is called, and what of its reports is kept.

use std::path::Path;

use pagehaul_engine::error::{Error, ErrorKind, Result};
use serde_json::Value;

use crate::results::Run;
use crate::setup::Setup;
use pagehaul_tune::contestants::stopwatch::{Cost, run_quietly};
use pagehaul_tune::contestants::tree_bytes;
use pagehaul_tune::scratch::local_directory;

/// The name of the contestant.
pub(crate) const NAME: &str = "pagehaul";
/// What the program itself may take beside the ceiling.
pub(crate) const PROGRAM_ALLOWANCE_BYTES: u64 = pagehaul_engine::pipeline::ceiling::PROGRAM_ALLOWANCE_BYTES;

/// A repository that discards.
pub(crate) const NUL: &str = "NUL";

/// A full backup into `repo` with these further flags.
///
/// # Errors
/// `Configuration` with pagehaul's words.
pub(crate) fn backup(setup: &Setup, repo: &str, flags: &[String]) -> Result<Run> {
    let mut command = setup.owner().command(&setup.pagehaul, &setup.work);
    command.args(["backup", "--json", "--repo", repo, "--connection", &setup.cluster.connection(), "--pgdata"]);
    command.arg(&setup.cluster.pgdata).args(flags);
    let (cost, said) = setup.stopwatch.run(&mut command)?;
    let report = parse(&said)?;
    let discards = repo == NUL || repo.ends_with(":NUL");
    let stored_bytes = if discards { number(&report, "stored_bytes") } else { tree_bytes(&local_directory(repo)?) };
    Ok(Run { source_bytes: number(&report, "source_bytes"), stored_bytes, ..run("backup", flags, cost, &report) })
}

/// A restore of the newest set of `repo` into `target`.
///
/// # Errors
/// `Configuration` with pagehaul's words.
pub(crate) fn restore(setup: &Setup, repo: &str, target: &Path, flags: &[String]) -> Result<Run> {
    let mut command = setup.owner().command(&setup.pagehaul, &setup.work);
    command.args(["restore", "--json", "--repo", repo, "--target-dir"]).arg(target).args(flags);
    let (cost, said) = setup.stopwatch.run(&mut command)?;
    let report = parse(&said)?;
    Ok(Run {
        source_bytes: number(&report, "restored_bytes"),
        stored_bytes: number(&report, "stored_bytes"),
        ..run("restore", flags, cost, &report)
    })
}

/// Lets PostgreSQL's own tool compare a restored cluster with its manifest.
///
/// # Errors
/// `Configuration` with its words.
pub(crate) fn verify(setup: &Setup, restored: &Path) -> Result<()> {
    run_quietly(setup.cluster.tool("pg_verifybackup", &setup.work).arg("-q").arg(restored)).map(drop)
}

fn parse(said: &str) -> Result<Value> {
    serde_json::from_str(said).map_err(|cause| Error::new(ErrorKind::Bug, "understand pagehaul's report", cause))
}

fn number(report: &Value, key: &str) -> u64 {
    report[key].as_u64().unwrap_or_default()
}

fn run(step: &'static str, flags: &[String], cost: Cost, report: &Value) -> Run {
    let limit = &report["limit"];
    let cpu = if limit["cpu_bound"].as_bool() == Some(true) { ", CPUs used up" } else { "" };
    let share = limit["share"].as_f64().unwrap_or_default() * 100.0;
    Run {
        step,
        contestant: NAME.to_owned(),
        setting: flags.join(" ").replace("--", ""),
        cost: Cost { rss_bytes_max: number(report, "rss_bytes_max"), ..cost },
        data_path_s: report["data_path_s"].as_f64().unwrap_or_default(),
        file_count: number(report, "file_count"),
        memory_ceiling_bytes: number(report, "memory_ceiling_bytes"),
        levels: levels(report),
        changes_found_by: report["changes_found_by"].as_str().unwrap_or_default().to_owned(),
        buffers: report["stages"]["readers"]["buffers"].as_u64().unwrap_or_default(),
        limit: format!("{} busy {share:.0} %{cpu}", limit["stage"].as_str().unwrap_or("?")),
        ..Run::default()
    }
}

/// "2 % lz4:1, 98 % zstd:7"; empty without auto.
fn levels(report: &Value) -> String {
    let levels = report["levels"].as_array().map(Vec::as_slice).unwrap_or_default();
    let level = |level: &Value| {
        let share = level["share"].as_f64().unwrap_or_default() * 100.0;
        format!("{share:.1} % {}", level["compression"].as_str().unwrap_or("?"))
    };
    levels.iter().map(level).collect::<Vec<_>>().join(", ")
}

/// The words of a flag text.
pub(crate) fn flags(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}
