//! Behaviour of the crate on files that its own writer made, and on real ones where there are some.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod chains;
mod damage;
mod flips;
mod hostile;
mod kinds;
mod media;
mod samples;
mod unpack;

use pagehaul_bak::bytes::BakFile;
use pagehaul_bak::fixture::{Media, Set, write};
use pagehaul_bak::verify::{VerifyReport, VerifySettings, verify};

/// The files of a media set, named `<name>-<family>`.
fn files(name: &str, media: &Media, sets: &[Set]) -> Vec<BakFile> {
    let families = write(media, sets);
    (1..).zip(families).map(|(family, bytes)| BakFile::in_memory(&format!("{name}-{family}"), bytes)).collect()
}

/// The report on `files`.
fn check(files: &[BakFile]) -> VerifyReport {
    verify(files, VerifySettings { threads: 1 }, &mut |_| Ok(())).unwrap()
}

/// The report on one file.
fn check_bytes(bytes: Vec<u8>) -> VerifyReport {
    check(&[BakFile::in_memory("file", bytes)])
}

/// All causes of a report, one a line.
fn causes(report: &VerifyReport) -> String {
    report.damage.iter().map(|damage| format!("{damage}\n")).collect()
}
