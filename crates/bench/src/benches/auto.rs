//! `--compression auto` against every fixed level of its ladders, with devices of several speeds: is it as fast as the
//! best of them, and as small as those that take no longer? And what do the statistics cost that it steers by?
//!
//! Output is discarded behind a throttle, the source is warm: the devices are exactly as fast as a setting says.

use std::fmt::Write as _;

use pagehaul_engine::codec::ladder::RUNGS;
use pagehaul_engine::error::Result;
use pagehaul_engine::pipeline::stats::seconds_per_buffer;

use super::{nothing_to_run, on_all_cores};
use crate::options::BenchOptions;
use crate::pagehaul::{self, NUL};
use crate::results::{Results, Run};
use crate::setup::Setup;

const AUTO: &str = "auto";
/// Name, repository, further flags.
const DEVICES: &[(&str, &str, &str)] = &[
    ("writer 60 MB/s", "throttle:write=60MB/s:NUL", ""),
    ("writer 250 MB/s", "throttle:write=250MB/s:NUL", ""),
    ("reader 300 MB/s", NUL, "--max-rate 300MB/s"),
    ("unthrottled", NUL, ""),
];
/// A fixed level that took this much longer than the best so far is not run again, nor is any above it: they are no
/// rivals, and the highest take minutes.
const HOPELESS: f64 = 1.5;
/// Rounds of the statistics' own cost: well above what a clock resolves.
const STATISTICS_ROUNDS: u32 = 200_000;
/// Share of CPU time that the statistics may take.
const STATISTICS_SHARE: f64 = 0.01;
/// Stages that every buffer passes.
const STAGES: f64 = 3.0;

/// Runs everything; gives what the README says of the data.
///
/// # Errors
/// What keeps the bench from running.
pub(crate) fn run(options: &BenchOptions, results: &mut Results) -> Result<String> {
    let setup = Setup::usual(options)?;
    let levels: Vec<String> = RUNGS.iter().map(|rung| rung.spec.to_string()).chain([AUTO.to_owned()]).collect();
    let wanted = |device: &str, level: &str| setup.wanted(pagehaul::NAME, &setting(device, level));
    if !DEVICES.iter().any(|device| levels.iter().any(|level| wanted(device.0, level))) {
        return Err(nothing_to_run());
    }
    for repetition in 1..=options.repeat {
        for (device, repo, flags) in DEVICES {
            for level in levels.iter().filter(|level| wanted(device, level)) {
                if is_hopeless(results, device, level) {
                    continue;
                }
                let mut all = on_all_cores(setup.cores, level);
                all.extend(pagehaul::flags(flags));
                let setting = setting(device, level);
                let run =
                    pagehaul::backup(&setup, repo, &all).map(|run| Run { setting: setting.clone(), repetition, ..run });
                results.add_or_note(&setting, run)?;
            }
        }
    }
    let mut text = String::new();
    for (device, _, _) in DEVICES {
        text += &judge(device, results);
    }
    results.sections.push(("Auto and the fixed levels".to_owned(), text));
    statistics(results);
    Ok(setup.data_text())
}

fn setting(device: &str, level: &str) -> String {
    format!("{device} {level}")
}

fn time_s(results: &Results, device: &str, level: &str) -> Option<f64> {
    results.median(("backup", pagehaul::NAME, &setting(device, level)), |run| run.data_path_s)
}

fn stored_bytes(results: &Results, device: &str, level: &str) -> Option<f64> {
    results.median(("backup", pagehaul::NAME, &setting(device, level)), |run| run.stored_bytes as f64)
}

/// The median times of the fixed levels that ran.
fn fixed_times(results: &Results, device: &str) -> Vec<(String, f64)> {
    let levels = RUNGS.iter().map(|rung| rung.spec.to_string());
    levels.filter_map(|level| time_s(results, device, &level).map(|time_s| (level, time_s))).collect()
}

/// Whether this level took far longer than the best, or a level of its codec between the best and it did: beyond the best,
/// higher levels of a codec only take longer.
fn is_hopeless(results: &Results, device: &str, level: &str) -> bool {
    let fixed = fixed_times(results, device);
    let position = |level: &str| RUNGS.iter().position(|rung| rung.spec.to_string() == level);
    let best = fixed.iter().min_by(|a, b| a.1.total_cmp(&b.1));
    let (Some(own), Some((best, best_s))) = (position(level), best) else { return false };
    fixed.iter().filter(|(_, time_s)| *time_s > HOPELESS * best_s).any(|(slow, _)| {
        let Some(slow) = position(slow) else { return false };
        let is_same_codec = RUNGS[slow].spec.codec() == RUNGS[own].spec.codec();
        slow == own || (is_same_codec && position(best) < Some(slow) && slow < own)
    })
}

/// Compares auto with the fastest level, and with the smallest of those that took no longer than auto.
fn judge(device: &str, results: &mut Results) -> String {
    let fixed = fixed_times(results, device);
    let Some((auto_s, auto_bytes)) = time_s(results, device, AUTO).zip(stored_bytes(results, device, AUTO)) else {
        return String::new();
    };
    let key = setting(device, AUTO);
    let limit = results.limit(("backup", pagehaul::NAME, &key));
    if let Some((best, best_s)) = fixed.iter().min_by(|a, b| a.1.total_cmp(&b.1)) {
        let what = format!("speed of auto / of {best}, the fastest level, {device}");
        results.compare("auto-time", what, Some(1.0 / auto_s), Some(1.0 / best_s), limit.clone());
        let rivals = fixed.iter().filter(|(_, time_s)| *time_s <= auto_s);
        let rivals = rivals.filter_map(|(level, _)| Some((level, stored_bytes(results, device, level)?)));
        if let Some((smallest, bytes)) = rivals.min_by(|a, b| a.1.total_cmp(&b.1)) {
            let what = format!("stored bytes of {smallest}, the smallest that took no longer / of auto, {device}");
            results.compare("auto-size", what, Some(bytes), Some(auto_bytes), limit);
        }
    }
    let no_rival = if fixed.iter().any(|(_, time_s)| *time_s <= auto_s) {
        ""
    } else {
        "Every fixed level took longer than auto.\n\n"
    };
    let mut text = format!(
        "### {device}\n\n| level | data path s | time / auto | stored MB | stored / auto |\n|---|---|---|---|---|\n"
    );
    for (level, time_s) in fixed.iter().cloned().chain([(AUTO.to_owned(), auto_s)]) {
        let bytes = stored_bytes(results, device, &level).unwrap_or_default();
        let row = writeln!(
            text,
            "| {level} | {time_s:.2} | {:.3} | {:.1} | {:.3} |",
            time_s / auto_s,
            bytes / 1e6,
            bytes / auto_bytes
        );
        debug_assert!(row.is_ok(), "a String takes everything");
    }
    let used = results.runs.iter().rev().find(|run| run.setting == key).map_or("", |run| run.levels.as_str());
    text + &format!("\n{no_rival}Levels of the last run of auto: {used}\n\n")
}

/// What the clock reads of a run cost: as many buffers as it had, times what one costs when only that is measured.
fn statistics(results: &mut Results) {
    let buffer_s = seconds_per_buffer(STATISTICS_ROUNDS);
    let share = |run: &Run| run.buffers as f64 * STAGES * buffer_s / (run.cost.cpu_user_s + run.cost.cpu_system_s);
    let Some(worst) = results.runs.iter().max_by(|a, b| share(a).total_cmp(&share(b))).cloned() else { return };
    let share = share(&worst);
    let what = format!("1 % of CPU time / what the statistics take of it, {}, the worst case", worst.setting);
    results.compare("auto-statistics", what, Some(STATISTICS_SHARE), Some(share), worst.limit.clone());
    let text = format!(
        "The clock reads and counts of one buffer in one stage take {:.2} us of CPU time, measured by themselves. The \
         run where they weigh most, {}, passed {} buffers through {STAGES} stages: {:.3} % of its {:.2} s of CPU time.\n",
        buffer_s * 1e6,
        worst.setting,
        worst.buffers,
        share * 100.0,
        worst.cost.cpu_user_s + worst.cost.cpu_system_s
    );
    results.sections.push(("The statistics' own cost".to_owned(), text));
}
