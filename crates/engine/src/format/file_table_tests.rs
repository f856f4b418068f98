//! The file table round-trips, merges runs, and refuses every flipped bit and every path that leaves the target.

use super::checksum::crc32c;
use super::file_table::*;
use super::object_digest::ObjectSums;
use crate::error::Result;
use crate::terms::{FileId, SetId, SetIndex, StripeIndex};
use proptest::prelude::*;

const SET: SetId = SetId([5; 16]);
const FRAME: u32 = 131_072;

fn stored(file: FileId, offset: u64, size: u64, frame: u64, at: u32) -> StoredRun {
    let place = Place::Frames { set: SetIndex::OWN, stripe: StripeIndex(0), first_frame: frame, offset_in_frame: at };
    StoredRun { file, run: Run::new(offset, size, place), crc32c: crc32c(&vec![frame as u8; size as usize]) }
}

fn write(table: &FileTable) -> (Vec<u8>, ObjectSums) {
    let mut bytes = Vec::new();
    let digest = table
        .write(SET, &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })
        .unwrap();
    (bytes, digest)
}

fn read(bytes: &[u8], set: SetId) -> Result<(FileTable, ObjectSums)> {
    let mut rest = bytes;
    FileTable::read(set, bytes.len() as u64, &mut |into| {
        let (head, tail) = rest.split_at(into.len());
        into.copy_from_slice(head);
        rest = tail;
        Ok(())
    })
}

fn sample() -> FileTable {
    let mut plan = FileTable::default();
    plan.push(b"base", b"", EntryKind::Directory, 0o700, 5, 0).unwrap();
    let big = plan.push(b"base/1", b"", EntryKind::File, 0o600, -5, 0).unwrap();
    let gone = plan.push(b"base/2", b"", EntryKind::File, 0o600, 5, 10).unwrap();
    let small = plan.push(b"odd \xFF\n name", b"", EntryKind::File, 0o640, 5, 0).unwrap();
    plan.push(b"pg_tblspc/16384", b"/somewhere/else", EntryKind::Symlink, 0o777, 5, 0).unwrap();
    let runs = vec![
        stored(small, 0, 100, 3, 77),
        stored(big, u64::from(FRAME), u64::from(FRAME), 1, 0),
        stored(big, 0, u64::from(FRAME), 0, 0),
        stored(big, u64::from(FRAME) * 4, 10, 2, 0),
        stored(gone, 0, 10, 4, 0),
    ];
    plan.with_content(runs, &[gone], &[FRAME], &mut ZeroFill).unwrap()
}

#[test]
fn round_trip_with_merged_runs_and_a_gap_of_zeros() {
    let table = sample();
    let (bytes, digest) = write(&table);
    let (back, digest_back) = read(&bytes, SET).unwrap();
    assert_eq!((digest, bytes.len() as u64), (digest_back, digest.size_bytes));
    assert_eq!(back.entries().len(), 4, "the vanished file is left out");
    let big = FileId(1);
    assert_eq!(back.path(big), b"base/1");
    let places: Vec<_> =
        back.runs(big).iter().map(|run| (run.file_offset, run.size_bytes, run.place() == Place::Zeros)).collect();
    let frame = u64::from(FRAME);
    assert_eq!(places, [(0, 2 * frame, false), (2 * frame, 2 * frame, true), (4 * frame, 10, false)]);
    let mut content = vec![0u8; FRAME as usize];
    content.extend(vec![1u8; FRAME as usize]);
    content.extend(vec![0u8; 2 * FRAME as usize]);
    content.extend([2u8; 10]);
    assert_eq!(back.entry(big).crc32c, crc32c(&content));
    assert_eq!(back.entry(big).mtime_s, -5);
    assert_eq!(back.path(FileId(2)), b"odd \xFF\n name");
    assert_eq!(back.target(FileId(3)), b"/somewhere/else");
}

#[test]
fn every_flipped_bit_and_every_cut_is_seen() {
    let (good, _) = write(&sample());
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(read(&bad, SET).is_err(), "bit {bit}");
    }
    for length in 0..good.len() {
        assert!(read(&good[..length], SET).is_err(), "cut to {length}");
    }
    let longer = [good.as_slice(), &[0]].concat();
    assert!(read(&longer, SET).is_err());
    assert!(read(&good, SetId([6; 16])).is_err(), "a table of another set");
}

#[test]
fn s03_paths_that_leave_the_target_are_refused() {
    let bad = [&b".."[..], b".", b"", b"\0", b"x\0y", b"..\0"];
    let good = [&b"base"[..], b"1", b"odd name", b"...", b"..a"];
    let mut corpus: Vec<Vec<u8>> = vec![b"/etc/passwd".to_vec(), b"/".to_vec(), b"base/".to_vec(), vec![b'/'; 300]];
    for first in bad.iter().chain(&good) {
        for second in bad.iter().chain(&good) {
            for third in bad.iter().chain(&good).take(4) {
                let parts = [*first, *second, *third];
                if parts.iter().any(|part| bad.contains(part)) {
                    corpus.push(parts.join(&b'/'));
                }
            }
        }
    }
    assert!(corpus.len() > 200);
    for hostile in &corpus {
        let mut plan = FileTable::default();
        plan.push(hostile, b"", EntryKind::File, 0o600, 0, 0).unwrap();
        let (bytes, _) = write(&plan);
        assert!(read(&bytes, SET).is_err(), "{hostile:?}");
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
        prop_assert!(read(&bytes, SET).is_err());
    }

    #[test]
    fn names_round_trip(names in proptest::collection::vec(proptest::collection::vec(1u8..=255, 1..255), 0..60)) {
        let mut plan = FileTable::default();
        let names: Vec<Vec<u8>> = names.into_iter().map(|name| name.iter().map(|b| if *b == b'/' || *b == b'.' { b'x' } else { *b }).collect()).collect();
        for name in &names {
            plan.push(name, b"", EntryKind::File, 0o600, 1, 0).unwrap();
        }
        let (bytes, _) = write(&plan);
        let (back, _) = read(&bytes, SET).unwrap();
        for (file, name) in back.ids().zip(&names) {
            prop_assert_eq!(back.path(file), name.as_slice());
        }
    }
}
