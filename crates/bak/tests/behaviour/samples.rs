//! Real backup files, where PAGEHAUL_TEST_BAK_SAMPLES names a directory with them; elsewhere these tests say that they
//! are skipped.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use pagehaul_bak::bytes::BakFile;
use pagehaul_bak::facts::read_facts;
use pagehaul_bak::mtf::StreamHeader;
use pagehaul_bak::verify::{VerifySettings, verify};

use crate::flips::{Covered, all_bits, covered_of_compressed, covered_of_plain, each_is_found_with, some_bits};

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

/// A sample, and the other files of its media set.
struct Sample {
    name: String,
    bytes: Vec<u8>,
    others: Vec<Vec<u8>>,
}

/// All samples; those of one media set have each other.
fn media_sets() -> Option<Vec<Sample>> {
    let read: Vec<(String, Vec<u8>)> =
        samples()?.into_iter().map(|path| (path.display().to_string(), std::fs::read(path).unwrap())).collect();
    let family = |bytes: &Vec<u8>| {
        let facts = read_facts(&BakFile::in_memory("file", bytes.clone())).unwrap();
        facts.family.unwrap().media_set_guid
    };
    let sample = |(name, bytes): &(String, Vec<u8>)| {
        let is_other = |other: &&(String, Vec<u8>)| other.0 != *name && family(&other.1) == family(bytes);
        let others = read.iter().filter(is_other).map(|(_, bytes)| bytes.clone()).collect();
        Sample { name: name.clone(), bytes: bytes.clone(), others }
    };
    Some(read.iter().map(sample).collect())
}

/// Every bit of every header, and 10,000 bits of what checksums cover: chunks, pages in use, streams WITH CHECKSUM.
#[test]
fn flipped_bits_of_samples_are_found() {
    let Some(samples) = media_sets() else { return };
    assert!(samples.iter().any(|sample| !sample.others.is_empty()), "a striped one is among them");
    for sample in &samples {
        let Sample { name, bytes, others } = sample;
        let (headers, mut content) =
            if bytes.starts_with(b"MSSQLBAK") { covered_of_compressed(bytes) } else { covered_of_plain(bytes) };
        content.extend(pages_in_use(bytes, others));
        let covered_bytes: usize = content.iter().map(|(range, _)| range.len()).sum();
        eprintln!("{name}: {} headers, {covered_bytes} of {} bytes covered", headers.len(), bytes.len());
        assert!(covered_bytes > bytes.len() / 2, "{name}");
        each_is_found_with(bytes, others, &all_bits(&headers), name);
        each_is_found_with(bytes, others, &some_bits(&content, 10_000, 4), name);
    }
}

/// Pages of a plain file that have a right checksum and are in use, found without the code that is tested: by their
/// streams, and the PFS pages of all files of the media set.
fn pages_in_use(bytes: &[u8], others: &[Vec<u8>]) -> Covered {
    let number = |page: &[u8]| u32::from_le_bytes(page[32..36].try_into().unwrap());
    let pfs_of = |page: u32| if page < 8088 { 1 } else { page / 8088 * 8088 };
    let mut pfs = BTreeMap::new();
    for bytes in others.iter().map(Vec::as_slice).chain([bytes]) {
        for range in pages(bytes) {
            let page = &bytes[range];
            if number(page) == pfs_of(number(page)) && page[1] == 11 {
                pfs.insert(number(page), page.to_vec());
            }
        }
    }
    let is_used = |page: u32| pfs[&pfs_of(page)][100 + (page % 8088) as usize] & 0x40 != 0;
    let has_sum = |page: &[u8]| {
        let word = |at: usize| u32::from_le_bytes(page[at..at + 4].try_into().unwrap());
        let sectors = page
            .chunks(512)
            .map(|sector| sector.chunks(4).fold(0, |sum, word| sum ^ u32::from_le_bytes(word.try_into().unwrap())));
        let sum = sectors
            .enumerate()
            .fold(0u32, |sum, (index, sector)| sum.rotate_left(1) ^ sector ^ if index == 0 { word(60) } else { 0 });
        page[5] & 2 != 0 && sum == word(60)
    };
    let is_covered = |range: &Range<usize>| has_sum(&bytes[range.clone()]) && is_used(number(&bytes[range.clone()]));
    pages(bytes).into_iter().filter(is_covered).map(|range| (range, "page")).collect()
}

/// Where the pages of a plain file are; none of a compressed one.
fn pages(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    for at in (0..bytes.len().saturating_sub(22)).step_by(4).filter(|at| bytes[*at..].starts_with(b"MQDA")) {
        let Ok(stream) = StreamHeader::parse(&bytes[at..at + 22]) else { continue };
        let pages = (stream.size_bytes as usize).saturating_sub(2) / 8192;
        found.extend((0..pages).map(|page| at + 24 + page * 8192..at + 24 + (page + 1) * 8192));
    }
    found
}
