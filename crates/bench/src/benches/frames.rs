//! Frame sizes of the usual codecs, and transfer sizes and buffer counts with zstd:1: what a larger frame gains in size
//! and speed, and what it costs whoever wants one page of it. The default frame sizes stand on these tables.

use pagehaul_engine::error::Result;

use super::{nothing_to_run, on_all_cores};
use crate::options::{BenchOptions, Work};
use crate::pagehaul::{self, NUL};
use crate::results::{Results, Run};
use crate::setup::Setup;
use crate::workload;

const CODECS: &[&str] = &["lz4", "zstd:1", "zstd:3", "zstd:10"];
/// The codec of the grid.
const CODEC: &str = "zstd:1";
const FRAMES_KIB: &[u32] = &[64, 128, 256, 512, 1024, 2048, 4096];
const TRANSFERS_KIB: &[u32] = &[256, 1024, 4096];
/// Transfer buffers; the default on two cores is 12.
const BUFFER_COUNTS: &[u32] = &[12, 24, 48];
/// PostgreSQL's page: what a mount wants of a frame.
const PAGE_BYTES: f64 = 8192.0;

/// Runs everything; gives what the README says of the data.
///
/// # Errors
/// What keeps the bench from running.
pub(crate) fn run(options: &BenchOptions, results: &mut Results) -> Result<String> {
    let setup = Setup::usual(options)?;
    let grid: Vec<(u32, u32, u32)> = grid()
        .filter(|(frame, transfer, buffers)| setup.wanted(pagehaul::NAME, &setting(*frame, *transfer, *buffers)))
        .collect();
    if grid.is_empty() {
        return Err(nothing_to_run());
    }
    let mut alone = Vec::new();
    for repetition in 1..=options.repeat {
        for (frame, transfer, buffers) in &grid {
            let mut flags = on_all_cores(setup.cores, CODEC);
            flags.extend(pagehaul::flags(&format!(
                "--frame-size {frame}KiB --transfer-size {transfer}KiB --buffer-count {buffers}"
            )));
            let setting = setting(*frame, *transfer, *buffers);
            let run =
                pagehaul::backup(&setup, NUL, &flags).map(|run| Run { setting: setting.clone(), repetition, ..run });
            results.add_or_note(&setting, run)?;
        }
        for (codec, frame_kib) in CODECS.iter().flat_map(|codec| FRAMES_KIB.iter().map(move |frame| (*codec, *frame))) {
            alone.push((codec, frame_kib, codec_alone(&setup, codec, frame_kib, repetition, results)?));
        }
    }
    results.sections.push(("Frame sizes, codec alone".to_owned(), alone_table(&alone)));
    results.sections.push(("Frame sizes x transfer sizes x buffer counts".to_owned(), grid_table(&grid, results)));
    Ok(setup.data_text())
}

fn grid() -> impl Iterator<Item = (u32, u32, u32)> {
    FRAMES_KIB.iter().flat_map(|frame| {
        TRANSFERS_KIB
            .iter()
            .filter(move |transfer| *transfer >= frame)
            .flat_map(move |transfer| BUFFER_COUNTS.iter().map(move |buffers| (*frame, *transfer, *buffers)))
    })
}

fn setting(frame_kib: u32, transfer_kib: u32, buffers: u32) -> String {
    format!("{CODEC} frame {frame_kib} KiB transfer {transfer_kib} KiB buffers {buffers}")
}

/// What one frame size gives without a pipeline around it.
#[derive(Clone, Copy)]
struct Alone {
    encode_mb_per_s: f64,
    decode_mb_per_s: f64,
    frame_us: f64,
    ratio: f64,
}

fn codec_alone(setup: &Setup, codec: &str, frame_kib: u32, repetition: u32, results: &mut Results) -> Result<Alone> {
    let more = pagehaul::flags(&format!("--compression {codec} --frame-size {}", u64::from(frame_kib) * 1024));
    let (cost, done) = workload::work(setup, Work::EncodeSample, setup.cores, &more)?;
    results.add(Run {
        step: "encode",
        contestant: "codec alone".to_owned(),
        setting: format!("{codec} frame {frame_kib} KiB, sample, all cores"),
        repetition,
        cost,
        data_path_s: done.bytes as f64 / 1e6 / done.mb_per_s.max(1e-9),
        source_bytes: done.bytes,
        stored_bytes: done.stored_bytes,
        ..Run::default()
    })?;
    Ok(Alone {
        encode_mb_per_s: done.mb_per_s,
        decode_mb_per_s: done.undo_mb_per_s,
        frame_us: done.undo_frame_us,
        ratio: done.bytes as f64 / done.stored_bytes.max(1) as f64,
    })
}

fn alone_table(alone: &[(&str, u32, Alone)]) -> String {
    let mut text = "A sample in memory, all cores. The last column is what one page of 8 KiB costs whoever reads a single page: the time to decode its whole frame.\n\n| codec | frame KiB | ratio | encode MB/s | decode MB/s | bytes decoded for a page | time to a page, us |\n|---|---|---|---|---|---|---|\n".to_owned();
    for (codec, frame_kib) in CODECS.iter().flat_map(|codec| FRAMES_KIB.iter().map(move |frame| (codec, frame))) {
        let of = |figure: fn(&Alone) -> f64| {
            let own = alone.iter().filter(|entry| entry.0 == *codec && entry.1 == *frame_kib);
            pagehaul_tune::rows::median(own.map(|entry| figure(&entry.2)).collect()).unwrap_or_default()
        };
        text += &format!(
            "| {codec} | {frame_kib} | {:.4} | {:.0} | {:.0} | x{:.0} | {:.0} |\n",
            of(|alone| alone.ratio),
            of(|alone| alone.encode_mb_per_s),
            of(|alone| alone.decode_mb_per_s),
            f64::from(*frame_kib) * 1024.0 / PAGE_BYTES,
            of(|alone| alone.frame_us)
        );
    }
    text
}

fn grid_table(grid: &[(u32, u32, u32)], results: &Results) -> String {
    let mut text = "Output discarded, medians. A row is a frame and a transfer size, a column a buffer count.\n\n| frame KiB | transfer KiB | ratio |".to_owned();
    for buffers in BUFFER_COUNTS {
        text += &format!(" MB/s, {buffers} buffers | peak MiB |");
    }
    text += &format!("\n|---|---|---|{}\n", "---|---|".repeat(BUFFER_COUNTS.len()));
    let mut rows: Vec<(u32, u32)> = grid.iter().map(|(frame, transfer, _)| (*frame, *transfer)).collect();
    rows.dedup();
    for (frame, transfer) in rows {
        let median = |buffers: u32, figure: fn(&Run) -> f64| {
            results.median(("backup", pagehaul::NAME, &setting(frame, transfer, buffers)), figure)
        };
        let ratio = |run: &Run| run.source_bytes as f64 / run.stored_bytes.max(1) as f64;
        let first = BUFFER_COUNTS.iter().find_map(|buffers| median(*buffers, ratio));
        text += &format!("| {frame} | {transfer} | {:.4} |", first.unwrap_or_default());
        for buffers in BUFFER_COUNTS {
            let speed = median(*buffers, Run::data_path_mb_per_s).unwrap_or_default();
            let peak = median(*buffers, |run| run.cost.rss_bytes_max as f64 / 1_048_576.0).unwrap_or_default();
            text += &format!(" {speed:.0} | {peak:.1} |");
        }
        text.push('\n');
    }
    text
}
