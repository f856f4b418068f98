//! The shape of the published comparison of SQL Server's backup compression, on one set of data: XPRESS against DEFLATE
//! against zstd at three levels; size and CPU, backup and restore. And our XPRESS against the reference encoder, libwim.

use pagehaul_engine::codec::{CodecSpec, new_encoder};
use pagehaul_engine::error::Result;

use super::peers::Contestant;
use super::{nothing_to_run, on_all_cores};
use crate::options::{BenchOptions, Work};
use crate::pagehaul;
use crate::results::{Results, Run, mb_per_s};
use crate::setup::Setup;
use crate::workload;

/// The encoder of SQL Server's algorithms, as near as we have them, and who else could make the same bytes.
const CODECS: &[(&str, &str)] = &[
    ("none", "no compression"),
    ("xpress:1", "MS_XPRESS"),
    ("xpress:2", "MS_XPRESS, looking one place ahead"),
    ("deflate:1@isal", "QAT_DEFLATE in software: ISA-L"),
    ("deflate:1@libdeflate", "the same by libdeflate"),
    ("deflate:1@qat", "QAT_DEFLATE by QATzip"),
    ("zstd:low", "ZSTD, LEVEL = LOW"),
    ("zstd:medium", "ZSTD, LEVEL = MEDIUM"),
    ("zstd:high", "ZSTD, LEVEL = HIGH"),
];
/// The reference encoder, at its fastest level and some others; only alone, it is no codec of ours.
const REFERENCE: &[&str] = &["libwim:1", "libwim:20", "libwim:50"];
const ALONE: &str = "codec alone";
/// What is asked of the codec by itself, in MB/s of one core.
const ENCODE_MB_PER_S: f64 = 150.0;
const DECODE_MB_PER_S: f64 = 500.0;

/// Runs everything; gives what the README says of the data.
///
/// # Errors
/// What keeps the bench from running.
pub(crate) fn run(options: &BenchOptions, results: &mut Results) -> Result<String> {
    let setup = Setup::usual(options)?;
    let codecs = codecs_here(results);
    let alone: Vec<&str> = codecs.iter().copied().chain(REFERENCE.iter().copied()).collect();
    let alone: Vec<&str> = alone.into_iter().filter(|codec| *codec != "none" && setup.wanted(ALONE, codec)).collect();
    let whole: Vec<Contestant> = codecs
        .iter()
        .map(|codec| Contestant::Pagehaul { setting: (*codec).to_owned(), flags: on_all_cores(setup.cores, codec) })
        .filter(|contestant| setup.wanted(contestant.name(), &contestant.setting()))
        .collect();
    if alone.is_empty() && whole.is_empty() {
        return Err(nothing_to_run());
    }
    for repetition in 1..=options.repeat {
        for codec in &alone {
            codec_alone(&setup, codec, repetition, results)?;
        }
        for contestant in &whole {
            contestant.round(&setup, repetition, results)?;
        }
    }
    compare(results);
    let table = alone_table(&alone, results);
    results.sections.push(("Codec alone, one thread".to_owned(), table));
    let table = whole_table(&codecs, results);
    results.sections.push(("Whole backups and restores".to_owned(), table));
    Ok(setup.data_text())
}

/// The codecs that work here; the others are noted with the reason.
fn codecs_here(results: &mut Results) -> Vec<&'static str> {
    let works = |codec: &str| codec.parse::<CodecSpec>().and_then(|spec| new_encoder(spec, 64 << 10)).map(drop);
    let mut here = Vec::new();
    for (codec, _) in CODECS {
        match works(codec) {
            Ok(()) => here.push(*codec),
            Err(error) => results.sections.push((format!("Left out: {codec}"), format!("{}\n", error.message()))),
        }
    }
    here
}

/// One thread encodes and decodes the sample; two rows.
fn codec_alone(setup: &Setup, codec: &str, repetition: u32, results: &mut Results) -> Result<()> {
    let done = workload::work(setup, Work::EncodeSample, 1, &pagehaul::flags(&format!("--compression {codec}")));
    let (cost, done) = match done {
        Ok(done) => done,
        Err(error) => {
            results.failures.push(format!("{ALONE} {codec}: {}", error.message()));
            return Ok(());
        }
    };
    for (step, speed) in [("encode", done.mb_per_s), ("decode", done.undo_mb_per_s)] {
        results.add(Run {
            step,
            contestant: ALONE.to_owned(),
            setting: codec.to_owned(),
            repetition,
            cost,
            data_path_s: done.bytes as f64 / 1e6 / speed.max(1e-9),
            source_bytes: done.bytes,
            stored_bytes: done.stored_bytes,
            ..Run::default()
        })?;
    }
    Ok(())
}

fn speed(results: &Results, step: &'static str, codec: &str) -> Option<f64> {
    results.median((step, ALONE, codec), Run::data_path_mb_per_s)
}

fn stored_share(results: &Results, step: &'static str, contestant: &str, codec: &str) -> Option<f64> {
    results.median((step, contestant, codec), |run| run.stored_bytes as f64 / run.source_bytes.max(1) as f64)
}

fn compare(results: &mut Results) {
    for codec in ["xpress:1", "xpress:2"] {
        let share = |codec| stored_share(results, "encode", ALONE, codec);
        let (theirs, ours) = (share(REFERENCE[0]), share(codec));
        results.compare("xpress-size", format!("size: {} / {codec}", REFERENCE[0]), theirs, ours, String::new());
        for (step, target, asked) in
            [("encode", "xpress-encode", ENCODE_MB_PER_S), ("decode", "xpress-decode", DECODE_MB_PER_S)]
        {
            let ours = speed(results, step, codec);
            results.compare(target, format!("{step}: {codec}, MB/s / {asked}"), ours, Some(asked), String::new());
        }
    }
}

fn alone_table(codecs: &[&str], results: &Results) -> String {
    let mut text = "Of a sample in memory. Speeds are millions of raw bytes a second of one thread, which it had to itself but for what else the machine did.\n\n| codec | what it stands for | stored, % | encode MB/s | decode MB/s |\n|---|---|---|---|---|\n".to_owned();
    for codec in codecs {
        let meaning = CODECS
            .iter()
            .find(|(name, _)| name == codec)
            .map_or("the reference XPRESS encoder", |(_, meaning)| meaning);
        let share = stored_share(results, "encode", ALONE, codec).unwrap_or_default() * 100.0;
        let (encode, decode) = (speed(results, "encode", codec), speed(results, "decode", codec));
        text += &format!(
            "| {codec} | {meaning} | {share:.2} | {:.0} | {:.0} |\n",
            encode.unwrap_or_default(),
            decode.unwrap_or_default()
        );
    }
    text
}

fn whole_table(codecs: &[&str], results: &Results) -> String {
    let mut text = "The whole command, output durable, one encoder and one decoder a core. CPU is of pagehaul alone, all threads, in seconds for each GB of the source.\n\n| codec | stored, % | backup MB/s | backup CPU s/GB | restore MB/s | restore CPU s/GB |\n|---|---|---|---|---|---|\n".to_owned();
    let cpu = |run: &Run| (run.cost.cpu_user_s + run.cost.cpu_system_s) / (run.source_bytes.max(1) as f64 / 1e9);
    for codec in codecs {
        let of =
            |step, figure: fn(&Run) -> f64| results.median((step, pagehaul::NAME, codec), figure).unwrap_or_default();
        let rate = |run: &Run| mb_per_s(run.source_bytes, run.cost.wall_s);
        let share = stored_share(results, "backup", pagehaul::NAME, codec).unwrap_or_default() * 100.0;
        text += &format!(
            "| {codec} | {share:.2} | {:.0} | {:.2} | {:.0} | {:.2} |\n",
            of("backup", rate),
            of("backup", cpu),
            of("restore", rate),
            of("restore", cpu)
        );
    }
    text
}
