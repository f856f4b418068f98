//! Peak memory against the stated ceiling, for settings at their extremes, backup and restore.

use std::fmt::Write as _;

use pagehaul_engine::error::Result;

use super::nothing_to_run;
use crate::cluster::Cluster;
use crate::load;
use crate::options::BenchOptions;
use crate::pagehaul::{self, PROGRAM_ALLOWANCE_BYTES};
use crate::results::{Results, Run};
use crate::setup::Setup;

/// pgbench's scale for each step of --scale: 600 MB, enough to fill the largest pools below.
const PGBENCH_PER_SCALE: u32 = 40;

/// Flags of backup, and of the restore of what it made.
const GRID: &[(&str, &str)] = &[
    ("", ""),
    ("--compression none", ""),
    ("--compression lz4", ""),
    ("--compression lz4:12", ""),
    ("--compression deflate:1", ""),
    ("--compression deflate:12 --encoders 2", ""),
    ("--compression zstd:-7", ""),
    ("--compression zstd:3", ""),
    ("--compression zstd:9", ""),
    ("--compression zstd:19", ""),
    ("--compression auto", ""),
    ("--compression auto --encoders 8 --max-rate 100MB/s", ""),
    ("--compression zstd:19 --frame-size 4MiB --transfer-size 4MiB", ""),
    ("--compression zstd:22 --frame-size 64KiB", ""),
    ("--readers 1 --encoders 1", "--readers 1 --decoders 1 --file-writers 1"),
    ("--readers 16", "--readers 16"),
    ("--encoders 16", "--decoders 16"),
    ("--encoders 32 --compression zstd:3 --frame-size 4MiB --transfer-size 4MiB", "--decoders 32 --file-writers 16"),
    ("--stripes 4", "--readers 4"),
    ("--stripes 32", "--readers 32"),
    ("--readers 8 --encoders 8 --stripes 8", "--readers 8 --decoders 8 --file-writers 8"),
    ("--frame-size 64KiB", ""),
    ("--frame-size 4MiB --transfer-size 4MiB", ""),
    ("--frame-size 64KiB --transfer-size 64KiB", "--buffer-count 16"),
    ("--transfer-size 16MiB", "--transfer-size 16MiB"),
    ("--transfer-size 64MiB --readers 1 --encoders 1", "--transfer-size 64MiB --readers 1 --decoders 1"),
    ("--buffer-count 64", "--buffer-count 64"),
    ("--buffer-count 256", "--buffer-count 256"),
    ("--buffer-count 512 --compression none", "--buffer-count 512"),
];

/// Runs everything; gives what the README says of the data.
///
/// # Errors
/// What keeps the bench from running.
pub(crate) fn run(options: &BenchOptions, results: &mut Results) -> Result<String> {
    let cluster = match &options.pgdata {
        Some(pgdata) => Cluster::adopt(pgdata)?,
        None => {
            let scale = (PGBENCH_PER_SCALE * options.scale).max(1);
            let name = format!("memory-scale{}", options.scale);
            Cluster::open_or_make(&options.pgdata_root, &name, |cluster| load::pgbench(cluster, scale))?
        }
    };
    let setup = Setup::on(cluster, options)?;
    let grid: Vec<_> = GRID.iter().filter(|(backup, _)| setup.wanted(pagehaul::NAME, &setting(backup))).collect();
    if grid.is_empty() {
        return Err(nothing_to_run());
    }
    for repetition in 1..=options.repeat {
        for (backup, restore) in &grid {
            one(&setup, backup, restore, repetition, results)?;
        }
    }
    judge(results);
    Ok(setup.data_text())
}

/// Flags as they stand in the tables.
fn setting(flags: &str) -> String {
    if flags.is_empty() { "defaults".to_owned() } else { flags.replace("--", "") }
}

fn one(setup: &Setup, backup: &str, restore: &str, repetition: u32, results: &mut Results) -> Result<()> {
    let repo = setup.no_place("repo")?.to_string_lossy().into_owned();
    let run = pagehaul::backup(setup, &repo, &pagehaul::flags(backup));
    let worked = run.is_ok();
    let named = |run: Result<Run>, setting: String| run.map(|run| Run { repetition, setting, ..run });
    results.add_or_note(&format!("backup {backup}"), named(run, setting(backup)))?;
    if worked {
        let target = setup.empty_place("restored")?;
        let run = pagehaul::restore(setup, &repo, &target, &pagehaul::flags(restore));
        let from = format!("{}, of {}", setting(restore), setting(backup));
        results.add_or_note(&format!("restore {restore}"), named(run, from))?;
    }
    setup.no_place("repo")?;
    setup.no_place("restored").map(drop)
}

/// The largest excess over the ceiling of all runs, not of medians: the promise is about every run.
fn judge(results: &mut Results) {
    let excess = |run: &Run| run.cost.rss_bytes_max as i64 - run.memory_ceiling_bytes as i64;
    let mib = |bytes: f64| bytes / 1_048_576.0;
    let mut text = format!(
        "Excess is peak resident memory minus the stated ceiling; the program itself may take {:.0} MiB.\n\n| step | setting | ceiling MiB | peak MiB | excess MiB | holds |\n|---|---|---|---|---|---|\n",
        mib(PROGRAM_ALLOWANCE_BYTES as f64)
    );
    let mut worst: Vec<Run> = results.firsts().into_iter().cloned().collect();
    for worst in &mut worst {
        let same = results.runs.iter().filter(|run| run.key() == worst.key());
        if let Some(run) = same.max_by_key(|run| excess(run)).cloned() {
            *worst = run;
        }
    }
    for run in &worst {
        let holds = excess(run) <= PROGRAM_ALLOWANCE_BYTES as i64;
        let row = writeln!(
            text,
            "| {} | {} | {:.1} | {:.1} | {:.1} | {} |",
            run.step,
            run.setting,
            mib(run.memory_ceiling_bytes as f64),
            mib(run.cost.rss_bytes_max as f64),
            mib(excess(run) as f64),
            if holds { "yes" } else { "**no**" }
        );
        debug_assert!(row.is_ok(), "a String takes everything");
        if !holds {
            let excess_mib = mib(excess(run) as f64);
            results.failures.push(format!("{} {}: {excess_mib:.1} MiB above the ceiling", run.step, run.setting));
        }
    }
    for step in ["backup", "restore"] {
        let largest = worst.iter().filter(|run| run.step == step).max_by_key(|run| excess(run));
        let Some(run) = largest else { continue };
        let verdict = format!("Largest excess, {step}: {:.1} MiB ({})", mib(excess(run) as f64), run.setting);
        println!("{verdict}");
        text += &format!("\n{verdict}\n");
        let allowed = (run.memory_ceiling_bytes + PROGRAM_ALLOWANCE_BYTES) as f64;
        let what = format!("{step}: ceiling + 32 MiB / peak memory, {}", run.setting);
        let (peak, limit) = (run.cost.rss_bytes_max as f64, run.limit.clone());
        results.compare("memory", what, Some(allowed), Some(peak), limit);
    }
    results.sections.push(("Ceiling".to_owned(), text));
}
