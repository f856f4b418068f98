//! Files made to harm the reader: lengths that lie, and content that grows.

use pagehaul_bak::bytes::{BakFile, ReadAt};
use pagehaul_bak::checksum::header_sum;
use pagehaul_bak::container::FIRST_RECORD;
use pagehaul_bak::fixture::{Database, Dice, Media, Set, write};
use pagehaul_bak::inspect::inspect;
use pagehaul_bak::verify::{VerifySettings, verify};

use crate::check_bytes;
use crate::kinds::find;

fn sound() -> Vec<u8> {
    write(&Media::plain(), &[Set::full(Database::new(2))]).remove(0)
}

/// Puts `bytes` at `at` of a header and mends its checksum.
fn forge(file: &mut [u8], header: usize, at: usize, bytes: &[u8], sum_at: usize) {
    file[header + at..header + at + bytes.len()].copy_from_slice(bytes);
    let sum = header_sum(&file[header..header + sum_at]);
    file[header + sum_at..header + sum_at + 2].copy_from_slice(&sum.to_le_bytes());
}

/// S07: no length that a file claims is allocated, or believed.
#[test]
fn s07_lengths_that_lie_are_found() {
    let bytes = sound();
    for tag in [b"RAID", b"MQCI", b"MQDA", b"MQTL", b"APAD", b"SPAD", b"TSMP"] {
        for length in [0, 1, 1 << 20, 1 << 31, 1 << 40, u64::MAX >> 1, u64::MAX] {
            let mut forged = bytes.clone();
            let at = find(&bytes, tag);
            forge(&mut forged, at, 8, &length.to_le_bytes(), 20);
            let file = BakFile::in_memory("forged", forged);
            let report = verify(&[file], VerifySettings { threads: 1 }, &mut |_| Ok(()));
            assert!(report.is_err() || !report.unwrap().sound, "{} of {length} bytes", String::from_utf8_lossy(tag));
        }
    }
    for tag in [b"TAPE", b"SSET", b"MSCI", b"MSDA", b"ESET"] {
        for offset in [0u16, 51, 52, 4000, u16::MAX] {
            let mut forged = bytes.clone();
            let at = find(&bytes, tag);
            forge(&mut forged, at, 8, &offset.to_le_bytes(), 50);
            let file = BakFile::in_memory("forged", forged);
            let report = verify(&[file], VerifySettings { threads: 1 }, &mut |_| Ok(()));
            assert!(report.is_err() || !report.unwrap().sound, "{} at {offset}", String::from_utf8_lossy(tag));
        }
    }
}

/// S07: any bytes in the description of a set end in an error or a report, never in a panic or much memory.
#[test]
fn s07_any_description_is_survived() {
    let bytes = sound();
    let at = find(&bytes, b"SCIN");
    let mut dice = Dice::new(5);
    for _ in 0..3000 {
        let mut forged = bytes.clone();
        for _ in 0..4 {
            let place = at + dice.below(2500) as usize;
            forged[place] = dice.roll() as u8;
        }
        check_bytes(forged.clone());
        inspect(&[BakFile::in_memory("forged", forged)]).ok();
    }
}

/// S07: the same for every byte of a small file, in both layouts.
#[test]
fn s07_any_bytes_are_survived() {
    let set = Set { log_pieces: 0, ..Set::full(Database::new(1)) };
    for media in [Media::plain(), Media::compressed()] {
        let bytes = write(&media, std::slice::from_ref(&set)).remove(0);
        let mut dice = Dice::new(6);
        for _ in 0..1500 {
            let mut forged = bytes.clone();
            for _ in 0..dice.below(20) {
                let place = dice.below(forged.len() as u64) as usize;
                forged[place] = dice.roll() as u8;
            }
            forged.truncate(dice.below(2 * forged.len() as u64) as usize);
            let file = [BakFile::in_memory("forged", forged)];
            verify(&file, VerifySettings { threads: 1 }, &mut |_| Ok(())).ok();
            inspect(&file).ok();
        }
    }
}

/// A file that is a head and then the same record for as long as one likes.
struct Endless {
    head: Vec<u8>,
    record: Vec<u8>,
    size_bytes: u64,
}

impl ReadAt for Endless {
    fn size_bytes(&self) -> std::io::Result<u64> {
        Ok(self.size_bytes)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
        let length = buffer.len().min(self.size_bytes.saturating_sub(offset) as usize);
        for (place, byte) in (offset as usize..).zip(&mut buffer[..length]) {
            *byte = match place.checked_sub(self.head.len()) {
                None => self.head[place],
                Some(behind) => self.record[behind % self.record.len()],
            };
        }
        Ok(length)
    }
}

/// S06: chunks that grow two hundredfold pass through in bounded memory: what is kept does not grow with them.
#[test]
fn s06_a_bomb_of_chunks_is_read_in_bounded_memory() {
    // In a process of its own: other tests take memory meanwhile.
    const ALONE: &str = "PAGEHAUL_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let name = "hostile::s06_a_bomb_of_chunks_is_read_in_bounded_memory";
        let alone = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(ALONE, "yes")
            .output()
            .unwrap();
        assert!(alone.status.success(), "{}", String::from_utf8_lossy(&alone.stderr));
        return;
    }
    let bytes = write(&Media::compressed(), &[Set { log_pieces: 0, ..Set::full(Database::new(1)) }]).remove(0);
    let record = pagehaul_bak::fixture::compress(&[0; 65536], &[], 512)[FIRST_RECORD as usize..].to_vec();
    assert!(record.len() < 400, "{}", record.len());
    let chunks = crate::flips::covered_of_compressed(&bytes).1;
    let head = bytes[..chunks[2].0.start - 28].to_vec();
    let before = resident_bytes();
    // 1 GiB of zeros in 6 MB: an extent of one page in front of them, the stream's length forged by none.
    let size_bytes = head.len() as u64 + record.len() as u64 * 16384;
    let file = BakFile { name: "bomb".to_owned(), bytes: Box::new(Endless { head, record, size_bytes }) };
    let report = verify(&[file], VerifySettings { threads: 2 }, &mut |_| Ok(())).unwrap();
    assert!(!report.sound);
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes more than before");
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// S08: nothing in the crate starts a program.
#[test]
fn s08_no_program_is_ever_started() {
    fn look(directory: &std::path::Path) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                look(&path);
            } else {
                let text = std::fs::read_to_string(&path).unwrap();
                assert!(!text.contains("process::Command") && !text.contains("unsafe"), "{}", path.display());
            }
        }
    }
    look(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
}

/// The seeds of the fuzz targets are what the writer writes; PAGEHAUL_WRITE_FUZZ_SEEDS writes them anew.
#[test]
fn seeds_of_the_fuzz_targets_are_up_to_date() {
    let seeds = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds");
    for (target, name, bytes) in seeds_of_targets() {
        let path = seeds.join(target).join(name);
        if std::env::var_os("PAGEHAUL_WRITE_FUZZ_SEEDS").is_some() {
            std::fs::create_dir_all(seeds.join(target)).unwrap();
            std::fs::write(&path, &bytes).unwrap();
        }
        assert!(
            std::fs::read(&path).unwrap() == bytes,
            "{target}/{name} is old: PAGEHAUL_WRITE_FUZZ_SEEDS=1 writes it"
        );
    }
}

/// Target, name, content.
fn seeds_of_targets() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let sets = |letter: char| {
        let mut set = Set {
            log_pieces: 0,
            has_checksum: letter == 'D',
            ..Set::full(Database { has_stale_pages: false, ..Database::new(1) })
        };
        if letter == 'L' {
            set = Set { log_pieces: 1, ..Set::log(&set, 9, 100, 200) };
        }
        [set]
    };
    let of_page = Media { block_bytes: 4096, ..Media::compressed() };
    let files = [
        ("compressed_full", Media::compressed(), 'D'),
        ("compressed_log", Media::compressed(), 'L'),
        ("compressed_4096", of_page, 'D'),
    ];
    let mut seeds: Vec<_> =
        files.map(|(name, media, letter)| ("bak_file", name, write(&media, &sets(letter)).remove(0))).into();
    assert!(seeds.iter().all(|(_, _, bytes)| check_bytes(bytes.clone()).sound));
    let log = seeds[1].2.clone();
    let chunks = crate::flips::covered_of_compressed(&log).1;
    // The first one has the descriptions of the medium, the longest one log.
    let longest = chunks.iter().max_by_key(|(range, _)| range.len()).unwrap();
    for (name, (range, _)) in [("medium", &chunks[0]), ("log", longest)] {
        seeds.push(("bak_chunk", name, log[range.start - 28..range.end + 4].to_vec()));
    }
    for (name, letter) in [("full", 'D'), ("log", 'L')] {
        let plain = write(&Media::plain(), &sets(letter)).remove(0);
        let at = find(&plain, b"SCIN");
        let size = u64::from_le_bytes(plain[at - 14..at - 6].try_into().unwrap()) as usize;
        seeds.push(("bak_description", name, plain[at..at + size].to_vec()));
    }
    seeds
}
