//! `bak verify` of SQL Server's backup files: compressed ones against the XPRESS decoder alone with as many threads, plain
//! ones that are in no cache against a plain read. The files hold what the cluster's files hold, in pages of SQL Server.

use std::fs::File;
use std::path::{Path, PathBuf};

use pagehaul_bak::fixture::{Database, Media, Set, write};
use pagehaul_bak::page::EXTENT_BYTES;
use pagehaul_engine::error::{Error, ErrorKind, Result};
use rustix::fs::{Advice, fadvise};

use super::nothing_to_run;
use crate::options::BenchOptions;
use crate::pagehaul;
use crate::results::{Results, Run};
use crate::setup::{Setup, unwritable};
use crate::workload::{FileList, work_on};

/// Size of the database in the files at scale 1; at scale 0 a little one.
const DATABASE_BYTES: u64 = 2 << 30;
const LITTLE_BYTES: u64 = 16 << 20;
/// How much of the cluster's files fills the pages.
const CONTENT_BYTES: usize = 256 << 20;
const DECODER: &str = "decoder alone";
const READ: &str = "plain read";

/// A backup file, and the list of it for baseline processes.
struct Sample {
    step: &'static str,
    path: PathBuf,
    list: PathBuf,
    size_bytes: u64,
}

/// Runs everything; gives what the README says of the data.
///
/// # Errors
/// What keeps the bench from running.
pub(crate) fn run(options: &BenchOptions, results: &mut Results) -> Result<String> {
    let setup = Setup::usual(options)?;
    let bytes = DATABASE_BYTES * u64::from(options.scale);
    let extents = (bytes.max(LITTLE_BYTES) / EXTENT_BYTES as u64) as u32;
    let database = Database { content: content(&setup.files)?, ..Database::new(extents) };
    let compressed = sample(&setup, "compressed", &Media::compressed(), database)?;
    let plain = sample(&setup, "plain", &Media::plain(), database)?;
    let threads: Vec<u16> = [1, setup.cores].into_iter().filter(|&count| count == 1 || setup.cores > 1).collect();
    let wanted = |step: &str| setup.wanted(step, "");
    if !wanted(compressed.step) && !wanted(plain.step) {
        return Err(nothing_to_run());
    }
    for repetition in 1..=options.repeat {
        for &count in &threads {
            if wanted(compressed.step) {
                decode(&setup, &compressed, count, repetition, results)?;
                verify(&setup, &compressed, count, repetition, results)?;
            }
        }
        if wanted(plain.step) {
            read(&setup, &plain, repetition, results)?;
            verify(&setup, &plain, setup.cores, repetition, results)?;
        }
    }
    compare(&threads, &compressed, &plain, results);
    Ok(format!(
        "{}; {extents} extents of it as a compressed file of {:.1} MB and a plain one of {:.1} MB",
        setup.data_text(),
        compressed.size_bytes as f64 / 1e6,
        plain.size_bytes as f64 / 1e6
    ))
}

/// Bytes of every n-th part of the cluster's files; they stay until the process ends.
fn content(files: &FileList) -> Result<&'static [u8]> {
    let mut content = Vec::new();
    let step = (files.bytes as usize).div_ceil(CONTENT_BYTES).max(1);
    for path in files.files.iter().step_by(step) {
        let path = files.pgdata.join(String::from_utf8_lossy(path).as_ref());
        let bytes = std::fs::read(&path)
            .map_err(|cause| Error::new(ErrorKind::Source, format!("read {}", path.display()), cause))?;
        let room = CONTENT_BYTES - content.len();
        content.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
    Ok(content.leak())
}

fn sample(setup: &Setup, step: &'static str, media: &Media, database: Database) -> Result<Sample> {
    let directory = setup.empty_place(step)?;
    let (path, list) = (directory.join("sample.bak"), directory.join("list.txt"));
    let set = Set { has_checksum: true, ..Set::full(database) };
    let bytes = write(media, &[set]).swap_remove(0);
    std::fs::write(&path, &bytes).map_err(|cause| unwritable(&path, cause))?;
    let size_bytes = bytes.len() as u64;
    let files = FileList { pgdata: directory, files: vec![b"sample.bak".to_vec()], bytes: size_bytes };
    files.write(&list)?;
    setup.owner().take(&path)?;
    setup.owner().take(&list)?;
    Ok(Sample { step, path, list, size_bytes })
}

fn setting(threads: u16) -> String {
    format!("{threads} thread{}", if threads == 1 { "" } else { "s" })
}

fn decode(setup: &Setup, sample: &Sample, threads: u16, repetition: u32, results: &mut Results) -> Result<()> {
    let (cost, done) = work_on(setup, "decode-chunks", threads, &sample.list, &[])?;
    results.add(Run {
        step: sample.step,
        contestant: DECODER.to_owned(),
        setting: setting(threads),
        repetition,
        cost,
        data_path_s: done.bytes as f64 / 1e6 / done.mb_per_s.max(1e-9),
        source_bytes: done.bytes,
        stored_bytes: done.stored_bytes,
        ..Run::default()
    })
}

fn read(setup: &Setup, sample: &Sample, repetition: u32, results: &mut Results) -> Result<()> {
    forget(&sample.path)?;
    let (cost, done) = work_on(setup, "read", 1, &sample.list, &[])?;
    let source_bytes = done.bytes;
    let (contestant, setting) = (READ.to_owned(), setting(1));
    results.add(Run { step: sample.step, contestant, setting, repetition, cost, source_bytes, ..Run::default() })
}

fn verify(setup: &Setup, sample: &Sample, threads: u16, repetition: u32, results: &mut Results) -> Result<()> {
    if sample.step == "plain" {
        forget(&sample.path)?;
    }
    let mut command = setup.owner().command(&setup.pagehaul, &setup.work);
    command.args(["bak", "verify", "--json", "--threads", &threads.to_string()]).arg(&sample.path);
    let (cost, said) = setup.stopwatch.run(&mut command)?;
    let report: serde_json::Value =
        serde_json::from_str(&said).map_err(|cause| Error::new(ErrorKind::Bug, "understand bak verify", cause))?;
    if report["sound"] != true {
        return Err(Error::new(ErrorKind::Bug, "verify a sound file", &report["damage"]));
    }
    results.add(Run {
        step: sample.step,
        contestant: pagehaul::NAME.to_owned(),
        setting: setting(threads),
        repetition,
        cost,
        source_bytes: report["files"][0]["stream_bytes"].as_u64().unwrap_or(0),
        stored_bytes: sample.size_bytes,
        ..Run::default()
    })
}

/// Brings the file out of the page cache.
fn forget(path: &Path) -> Result<()> {
    let file = File::open(path).map_err(|cause| unwritable(path, cause))?;
    file.sync_all().map_err(|cause| unwritable(path, cause))?;
    fadvise(&file, 0, None, Advice::DontNeed).map_err(|cause| unwritable(path, cause.into()))
}

fn compare(threads: &[u16], compressed: &Sample, plain: &Sample, results: &mut Results) {
    for &count in threads {
        let speed = |who| results.median((compressed.step, who, &setting(count)), Run::data_path_mb_per_s);
        let (ours, alone) = (speed(pagehaul::NAME), speed(DECODER));
        let what = format!("verify, compressed, {}: pagehaul / {DECODER}", setting(count));
        results.compare("bak-verify", what, ours, alone, String::new());
    }
    let last = threads.last().copied().unwrap_or(1);
    let ours = results.median((plain.step, pagehaul::NAME, &setting(last)), Run::data_path_mb_per_s);
    let read = results.median((plain.step, READ, &setting(1)), Run::data_path_mb_per_s);
    let what = format!("verify, plain, not cached: pagehaul / {READ}");
    results.compare("bak-verify-disk", what, ours, read, String::new());
}
