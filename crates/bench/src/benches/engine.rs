//! The data path against its limits: a plain read of the same files, the codec alone on all cores, and the sum of what
//! reading, encoding and checking cost one after the other (the roofline). Output is discarded, the source is warm.

use std::fmt::Write as _;

use pagehaul_engine::error::Result;

use super::on_all_cores;
use crate::options::{BenchOptions, Work};
use crate::pagehaul::{self, NUL};
use crate::results::{Results, Run, mb_per_s};
use crate::setup::Setup;
use crate::workload::{self, WorkDone};
use pagehaul_tune::contestants::stopwatch::Cost;
use pagehaul_tune::rows::median;

const CODECS: &[&str] = &["lz4", "zstd:1", "zstd:3", "zstd:6", "deflate:1"];
const READ: &str = "plain read";
const CODEC: &str = "codec alone";
/// Which of the codec's baselines encodes what the backup encodes.
const ALL_DATA: &str = "all data, all cores";
const CHECKS: &str = "checks alone";

/// What the baselines said, over the repetitions.
#[derive(Default)]
struct Baselines {
    /// Wall speed, and speed that the CPU cost alone would allow, of the plain read.
    read: Vec<(f64, f64)>,
    /// Page checks with CRC32C, and XXH3.
    checks: Vec<(f64, f64)>,
    /// Codec, kind, speed, ratio.
    codecs: Vec<(String, &'static str, f64, f64)>,
    parts: Vec<(String, f64)>,
}

impl Baselines {
    fn codec(&self, codec: &str, kind: &str) -> Option<f64> {
        self.codec_figure(codec, kind, |entry| entry.2)
    }

    fn codec_figure(
        &self,
        codec: &str,
        kind: &str,
        figure: fn(&(String, &'static str, f64, f64)) -> f64,
    ) -> Option<f64> {
        median(self.codecs.iter().filter(|entry| entry.0 == codec && entry.1 == kind).map(figure).collect())
    }
}

/// Runs everything; gives what the README says of the data.
///
/// # Errors
/// What keeps the bench from running.
pub(crate) fn run(options: &BenchOptions, results: &mut Results) -> Result<String> {
    let setup = Setup::usual(options)?;
    let mut baselines = Baselines::default();
    for repetition in 1..=options.repeat {
        one_round(&setup, repetition, &mut baselines, results)?;
    }
    compare(&setup, &baselines, results);
    roofline(&setup, &baselines, results);
    Ok(setup.data_text())
}

fn one_round(setup: &Setup, repetition: u32, baselines: &mut Baselines, results: &mut Results) -> Result<()> {
    let threads = setup.cores;
    let (cost, done) = workload::read(setup, threads)?;
    let cpu_bound = mb_per_s(done.bytes, done.cpu_s / f64::from(threads));
    baselines.read.push((done.mb_per_s, cpu_bound));
    results.add(baseline_run("read", READ, format!("{threads} threads"), repetition, cost, &done))?;
    backup(setup, "none", repetition, results)?;
    let (cost, done) = workload::work(setup, Work::Check, threads, &[])?;
    let part = |name: &str| done.parts_mb_per_s.iter().find(|part| part.0 == name).map_or(0.0, |part| part.1);
    baselines.checks.push((part("page checks and CRC32C"), part("XXH3")));
    baselines.parts.extend(done.parts_mb_per_s.iter().cloned());
    results.add(baseline_run("check", CHECKS, format!("sample, {threads} threads"), repetition, cost, &done))?;
    for codec in CODECS.iter().filter(|codec| setup.wanted(pagehaul::NAME, codec)) {
        for (kind, work, threads) in [
            ("sample, all cores", Work::EncodeSample, threads),
            ("sample, one thread", Work::EncodeSample, 1),
            (ALL_DATA, Work::EncodeAll, threads),
        ] {
            let more = ["--compression".to_owned(), (*codec).to_owned()];
            let (cost, done) = workload::work(setup, work, threads, &more)?;
            let ratio = done.bytes as f64 / done.stored_bytes.max(1) as f64;
            baselines.codecs.push(((*codec).to_owned(), kind, done.mb_per_s, ratio));
            results.add(baseline_run("encode", CODEC, format!("{codec}, {kind}"), repetition, cost, &done))?;
        }
        backup(setup, codec, repetition, results)?;
    }
    Ok(())
}

/// The run of a baseline; its data path time is such that the speed is that of the timed part on all threads.
fn baseline_run(
    step: &'static str,
    contestant: &str,
    setting: String,
    repetition: u32,
    cost: Cost,
    done: &WorkDone,
) -> Run {
    let data_path_s = done.bytes as f64 / 1e6 / done.mb_per_s.max(1e-9);
    let (source_bytes, stored_bytes, contestant) = (done.bytes, done.stored_bytes, contestant.to_owned());
    Run { step, contestant, setting, repetition, cost, data_path_s, source_bytes, stored_bytes, ..Run::default() }
}

fn backup(setup: &Setup, codec: &str, repetition: u32, results: &mut Results) -> Result<()> {
    let run = pagehaul::backup(setup, NUL, &on_all_cores(setup.cores, codec)).map(|run| Run {
        setting: codec.to_owned(),
        repetition,
        ..run
    });
    results.add_or_note(&format!("pagehaul {codec}"), run)
}

fn data_path(results: &Results, codec: &str) -> Option<f64> {
    results.median(("backup", pagehaul::NAME, codec), Run::data_path_mb_per_s)
}

fn compare(setup: &Setup, baselines: &Baselines, results: &mut Results) {
    let limit = |results: &Results, codec: &str| results.limit(("backup", pagehaul::NAME, codec));
    let read = median(baselines.read.iter().map(|read| read.0).collect());
    let what = format!("data path, no codec / plain read, {} threads", setup.cores);
    results.compare("engine-read", what, data_path(results, "none"), read, limit(results, "none"));
    let setting = format!("{} threads", setup.cores);
    let whole_read = results.median(("read", READ, &setting), |run| mb_per_s(run.source_bytes, run.cost.wall_s));
    let whole = results.median(("backup", pagehaul::NAME, "none"), |run| mb_per_s(run.source_bytes, run.cost.wall_s));
    let what = "whole process, no codec / plain read".to_owned();
    results.compare("engine-whole", what, whole, whole_read, limit(results, "none"));
    for codec in CODECS {
        let ours = data_path(results, codec);
        let what = format!("data path {codec} / codec alone, same data, {} cores at once", setup.cores);
        let alone = baselines.codec(codec, ALL_DATA);
        results.compare("engine-codec", what, ours, alone, limit(results, codec));
        let what = format!("data path {codec} / codec alone, sample in memory, {} cores at once", setup.cores);
        let alone = baselines.codec(codec, "sample, all cores");
        results.compare("engine-codec", what, ours, alone, limit(results, codec));
    }
}

/// The codec alone on all cores, in MB/s.
fn speed(baselines: &Baselines, codec: &str) -> f64 {
    baselines.codec(codec, ALL_DATA).unwrap_or_default()
}

/// What every byte costs on its way, and what the pipeline makes of it.
fn roofline(setup: &Setup, baselines: &Baselines, results: &mut Results) {
    let read = median(baselines.read.iter().map(|read| read.1).collect()).unwrap_or_default();
    let check = median(baselines.checks.iter().map(|check| check.0).collect()).unwrap_or_default();
    let xxh3 = median(baselines.checks.iter().map(|check| check.1).collect()).unwrap_or_default();
    let mut text = format!(
        "Speeds in MB/s with {} cores doing nothing else. Reading: what the CPU cost of the plain read allows. Checks: page checks and CRC32C over raw bytes, XXH3 over stored bytes. The roofline is the speed at which every byte goes through all of them one after the other on the same cores: 1 / (1/read + 1/codec + 1/checks). What is left between it and the data path is the pipeline's own.\n\n| codec | read | codec, all data | codec, one thread x cores | checks | roofline | data path | data path / roofline |\n|---|---|---|---|---|---|---|---|\n",
        setup.cores
    );
    for codec in std::iter::once(&"none").chain(CODECS) {
        let Some(ours) = data_path(results, codec) else { continue };
        // Without a codec encoding costs nothing and everything is stored.
        let encode = if *codec == "none" { f64::INFINITY } else { speed(baselines, codec) };
        let ratio = baselines.codec_figure(codec, ALL_DATA, |entry| entry.3).unwrap_or(1.0);
        let checks = 1.0 / (1.0 / check + 1.0 / (xxh3 * ratio));
        let roof = 1.0 / (1.0 / read + 1.0 / encode + 1.0 / checks);
        let single = baselines.codec(codec, "sample, one thread").unwrap_or_default() * f64::from(setup.cores);
        let row = writeln!(
            text,
            "| {codec} | {read:.0} | {encode:.0} | {single:.0} | {checks:.0} | {roof:.0} | {ours:.0} | {:.3} |",
            ours / roof
        );
        debug_assert!(row.is_ok(), "a String takes everything");
        let limit = results.limit(("backup", pagehaul::NAME, codec));
        results.compare("engine-roofline", format!("data path {codec} / roofline"), Some(ours), Some(roof), limit);
    }
    text += "\nThe checks alone, one by one:\n\n| check | MB/s |\n|---|---|\n";
    for name in ["page checks", "CRC32C", "XXH3", "page checks and CRC32C"] {
        let rates = baselines.parts.iter().filter(|part| part.0 == name).map(|part| part.1).collect();
        text += &format!("| {name} | {:.0} |\n", median(rates).unwrap_or_default());
    }
    results.sections.push(("Roofline".to_owned(), text));
}
