//! A flipped bit in anything that a checksum covers is found, by the same entry point that people use.

use std::sync::atomic::{AtomicUsize, Ordering};

use pagehaul_bak::bytes::BakFile;
use pagehaul_bak::container::{FIRST_RECORD, RECORD_HEADER_BYTES, RecordHeader};
use pagehaul_bak::damage::Layer;
use pagehaul_bak::fixture::{Database, Dice, Media, Set, write};
use pagehaul_bak::mtf::{Block, BlockKind, StreamHeader, StreamKind};
use pagehaul_bak::verify::{VerifySettings, verify};

use crate::check_bytes;

/// Ranges of bytes that checksums cover, with what the layer is called.
pub(crate) type Covered = Vec<(std::ops::Range<usize>, &'static str)>;

/// Headers of blocks and streams of a plain file, and the content of streams with a checksum.
pub(crate) fn covered_of_plain(bytes: &[u8]) -> (Covered, Covered) {
    let (mut headers, mut content) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at + 52 <= bytes.len() {
        let Ok(block) = Block::parse_header(&bytes[at..at + 52]) else {
            at += 512;
            continue;
        };
        headers.push((at..at + 52, "block"));
        if block.kind == BlockKind::Filemark {
            at += 512;
            continue;
        }
        let mut stream_at = at + usize::from(block.stream_offset);
        while let Ok(stream) = StreamHeader::parse(&bytes[stream_at..stream_at + 22]) {
            headers.push((stream_at..stream_at + 22, "stream"));
            let begin = stream_at + 22;
            let end = begin + stream.size_bytes as usize;
            if stream.has_checksum() && stream.size_bytes > 0 {
                content.push((begin + 2..end, "backup checksum"));
            }
            if stream.kind == StreamKind::Checksum {
                content.push((begin..end, "backup checksum"));
            }
            stream_at = end.next_multiple_of(4);
            if stream.kind == StreamKind::Padding {
                break;
            }
        }
        at = stream_at;
    }
    (headers, content)
}

/// Headers of the records of a compressed file (but for the bytes that mean nothing), filemarks, and compressed bytes.
pub(crate) fn covered_of_compressed(bytes: &[u8]) -> (Covered, Covered) {
    let (mut headers, mut content) = (vec![(0..16, "container")], Vec::new());
    let mut at = FIRST_RECORD as usize;
    while at + RECORD_HEADER_BYTES <= bytes.len() {
        let Ok(header) = RecordHeader::parse(&bytes[at..at + RECORD_HEADER_BYTES]) else {
            at = at.next_multiple_of(512);
            while at + 52 <= bytes.len() && Block::parse_header(&bytes[at..at + 52]).is_err() {
                at += 512;
            }
            headers.push((at..at + 52, "filemark"));
            at += 512;
            continue;
        };
        headers.extend([(at..at + 4, "record"), (at + 20..at + 28, "record")]);
        let end = at + RECORD_HEADER_BYTES + header.stored_size_bytes;
        content.push((at + RECORD_HEADER_BYTES..end, "chunk"));
        at = end;
    }
    headers.retain(|(range, _)| range.end <= bytes.len());
    (headers, content)
}

/// Flips each of `bits` alone; every one must be found, near where it is.
pub(crate) fn each_is_found(bytes: &[u8], bits: &[usize], what: &str) {
    each_is_found_with(bytes, &[], bits, what);
}

/// The same in a file of a media set that has `others`, too.
pub(crate) fn each_is_found_with(bytes: &[u8], others: &[Vec<u8>], bits: &[usize], what: &str) {
    assert!(!bits.is_empty(), "{what}");
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut flipped = bytes.to_vec();
                while let Some(bit) = bits.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let byte = bit / 8;
                    flipped[byte] ^= 1 << (bit % 8);
                    is_found(&flipped, others, byte, &format!("{what}, bit {bit}"));
                    flipped[byte] ^= 1 << (bit % 8);
                }
            });
        }
    });
}

fn is_found(flipped: &[u8], others: &[Vec<u8>], byte: usize, what: &str) {
    let other = |(number, bytes): (usize, &Vec<u8>)| BakFile::in_memory(&format!("other {number}"), bytes.clone());
    let mut files: Vec<BakFile> = others.iter().enumerate().map(other).collect();
    files.push(BakFile::in_memory("flipped", flipped.to_vec()));
    let Ok(report) = verify(&files, VerifySettings { threads: 1 }, &mut |_| Ok(())) else {
        assert!(byte < 52, "{what}: only what begins the file makes it no backup file");
        return;
    };
    assert!(!report.sound, "{what} (byte {byte}) is not found");
    // A chunk or a stream is up to so long, and the damage is at its begin or its end.
    let is_near = report.damage.iter().filter(|damage| damage.file == "flipped").any(|damage| {
        let distance = damage.offset.unwrap_or_default().abs_diff(byte as u64);
        // A backup checksum is of a whole stream, which its cause names.
        distance < 70_000 || damage.layer == Layer::BackupChecksum
    });
    assert!(is_near, "{what} (byte {byte}) is not located: {:?}", report.damage);
}

/// All bits of the ranges.
pub(crate) fn all_bits(covered: &Covered) -> Vec<usize> {
    covered.iter().flat_map(|(range, _)| range.start * 8..range.end * 8).collect()
}

/// So many bits of the ranges.
pub(crate) fn some_bits(covered: &Covered, count: usize, seed: u64) -> Vec<usize> {
    let total: u64 = covered.iter().map(|(range, _)| range.len() as u64 * 8).sum();
    let mut dice = Dice::new(seed);
    let pick = |mut bit: u64| {
        for (range, _) in covered {
            if bit < range.len() as u64 * 8 {
                return Some(range.start * 8 + bit as usize);
            }
            bit -= range.len() as u64 * 8;
        }
        None
    };
    (0..count).filter_map(|_| pick(dice.below(total))).collect()
}

/// Bytes of pages in use of a plain file, each of which has a checksum.
fn covered_pages(bytes: &[u8], set: &Set) -> Covered {
    let mut covered = Covered::new();
    for extent in &set.extents {
        let content = set.database.extent(*extent);
        let at = crate::kinds::find(bytes, &content);
        for index in (0..8).filter(|index| set.database.is_used(extent * 8 + index)) {
            let begin = at + index as usize * 8192;
            covered.push((begin..begin + 8192, "page"));
        }
    }
    covered
}

#[test]
fn each_flipped_bit_of_a_header_is_found() {
    let set = Set { has_checksum: true, ..Set::full(Database::new(2)) };
    let plain = write(&Media::plain(), std::slice::from_ref(&set)).remove(0);
    let (headers, _) = covered_of_plain(&plain);
    assert!(headers.len() > 30, "{}", headers.len());
    each_is_found(&plain, &all_bits(&headers), "plain");
    let compressed = write(&Media::compressed(), &[set]).remove(0);
    let (headers, _) = covered_of_compressed(&compressed);
    assert!(headers.len() > 12, "{}", headers.len());
    each_is_found(&compressed, &all_bits(&headers), "compressed");
}

#[test]
fn flipped_bits_of_pages_chunks_and_backup_checksums_are_found() {
    let set = Set::full(Database::new(3));
    let plain = write(&Media::plain(), std::slice::from_ref(&set)).remove(0);
    let pages = covered_pages(&plain, &set);
    each_is_found(&plain, &some_bits(&pages, 5000, 1), "page");
    // The numbers and flags in the headers of pages decide what is compared with what.
    let page_headers = pages.iter().map(|(range, what)| (range.start..range.start + 64, *what)).collect();
    each_is_found(&plain, &all_bits(&page_headers), "page header");
    let with_checksum = Set { has_checksum: true, ..set.clone() };
    let plain = write(&Media::plain(), &[with_checksum]).remove(0);
    each_is_found(&plain, &some_bits(&covered_of_plain(&plain).1, 2500, 2), "WITH CHECKSUM");
    let compressed = write(&Media::compressed(), &[set]).remove(0);
    each_is_found(&compressed, &some_bits(&covered_of_compressed(&compressed).1, 2500, 3), "chunk");
}

#[test]
fn bytes_that_mean_nothing_are_no_damage() {
    let set = Set::full(Database::new(2));
    let mut compressed = write(&Media::compressed(), &[set]).remove(0);
    // The rest of the container's header, and 16 bytes of each record's.
    compressed[0x10..0x1e0].fill(0xa5);
    compressed[0x1e4..0x1f4].fill(0x5a);
    assert!(check_bytes(compressed).sound);
}
