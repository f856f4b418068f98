//! Real backup files, where PAGEHAUL_TEST_BAK_SAMPLES names a directory with them; elsewhere these tests say that they
//! are skipped.

use std::path::PathBuf;

use pagehaul_bak::bytes::BakFile;
use pagehaul_bak::verify::{VerifySettings, verify};

use crate::check_bytes;
use crate::flips::{all_bits, covered_of_compressed, covered_of_plain, each_is_found, some_bits};

/// The paths of all samples.
fn samples() -> Option<Vec<PathBuf>> {
    let Some(directory) = std::env::var_os("PAGEHAUL_TEST_BAK_SAMPLES") else {
        eprintln!("skipped: PAGEHAUL_TEST_BAK_SAMPLES names no directory with real backup files");
        return None;
    };
    let entries = std::fs::read_dir(directory).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "bak"));
    paths.sort();
    assert!(!paths.is_empty());
    Some(paths)
}

#[test]
fn samples_verify_without_a_false_alarm() {
    let Some(paths) = samples() else { return };
    for threads in [1, 3] {
        let files: Vec<BakFile> = paths.iter().map(|path| BakFile::open(path).unwrap()).collect();
        let mut read = 0;
        let report = verify(&files, VerifySettings { threads }, &mut |bytes| {
            read += bytes;
            Ok(())
        })
        .unwrap();
        for damage in &report.damage {
            eprintln!("{damage}");
        }
        eprintln!("{:#?}", report.sets);
        assert!(report.sound);
        assert!(report.sets.iter().all(|set| set.pages.sound > 0 && set.pages.damaged == 0 && set.pages.unjudged == 0));
    }
}

/// Flips in the files that have checksums for it; a striped one is read alone.
#[test]
fn flipped_bits_of_samples_are_found() {
    let Some(paths) = samples() else { return };
    for path in paths {
        let bytes = std::fs::read(&path).unwrap();
        let is_compressed = bytes.starts_with(b"MSSQLBAK");
        let covered = if is_compressed { covered_of_compressed(&bytes) } else { covered_of_plain(&bytes) };
        if check_bytes(bytes.clone()).sound {
            each_is_found(&bytes, &all_bits(&covered.0), &path.display().to_string());
            each_is_found(&bytes, &some_bits(&covered.1, 10_000, 4), &path.display().to_string());
        }
    }
}
