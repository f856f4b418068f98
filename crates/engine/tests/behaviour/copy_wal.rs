//! The WAL archive in another repository: everything once, nothing over anything else, and no damage taken along.

use std::path::{Path, PathBuf};

use pagehaul_engine::catalog::Repository;
use pagehaul_engine::copy::{Copied, CopiedWal, CopyRequest, copy};
use pagehaul_engine::error::{Error, ErrorKind};
use pagehaul_engine::pipeline::{NoObserver, Observer};
use pagehaul_engine::source::postgres::wal_header::SegmentHeader;
use pagehaul_engine::wal::{Piece, PushRequest, push, put_piece};
use pagehaul_testkit::damage::{differences, files_below, flip_bit, tree};
use pagehaul_testkit::observer::At;

use super::wal_archive::{Archive, SEGMENT, source};

fn other(archive: &Archive) -> PathBuf {
    archive.work.path().join("other")
}

fn run(archive: &Archive, observer: &dyn Observer) -> (CopiedWal, Option<Error>) {
    let request = CopyRequest::new(archive.repo().display().to_string(), other(archive).display().to_string());
    let Copied { report, failed } = copy(&request, observer).unwrap_or_else(|error| panic!("{error}"));
    (report.wal.unwrap(), failed)
}

fn run_well(archive: &Archive) -> (u64, u64) {
    let (wal, failed) = run(archive, &NoObserver);
    assert!(failed.is_none() && wal.failed_count == 0, "{failed:?}");
    (wal.copied_count, wal.skipped_count)
}

/// What lies in both archives.
fn trees(archive: &Archive) -> [std::collections::BTreeMap<Vec<u8>, String>; 2] {
    [archive.repo(), other(archive)].map(|repo| tree(&repo.join("main/wal")))
}

fn push_there(archive: &Archive, files: Vec<PathBuf>) {
    let repository = Repository::open_or_create(&other(archive).display().to_string()).unwrap();
    let report = push(&repository, &PushRequest::new(source(), files), &NoObserver).unwrap();
    assert!(report.first_error().is_none());
}

#[test]
fn an_archive_is_copied_once_and_what_comes_later_with_the_next_copy() {
    let archive = Archive::new();
    archive.push_well(&[0]);
    archive.push_well(&[1, 2]);
    let history = archive.file("00000002.history", b"1\t0/3000000\tno recovery target specified\n");
    assert!(archive.push(&[history])[0].is_ok());
    let (name, bytes) = archive.segments[4].clone();
    let (of, segment) = (source(), name.parse().unwrap());
    let piece = Piece {
        source: &of,
        segment: &segment,
        header: SegmentHeader::parse(&bytes, &segment).unwrap(),
        offset: 0,
        bytes: &bytes[..3 * 8192],
        facts: None,
        compression: "lz4".parse().unwrap(),
    };
    assert!(put_piece(&archive.repository(), &piece).unwrap());
    let count = archive.objects().len() as u64;
    assert_eq!(count, 4, "{:?}", archive.objects());
    assert_eq!(run_well(&archive), (count, 0));
    let [ours, theirs] = trees(&archive);
    assert_eq!(differences(&ours, &theirs), Vec::<String>::new(), "byte for byte");
    assert_eq!(run_well(&archive), (0, count));

    // One that is pushed while a copy runs comes with it or with the next, and what a dead writer left goes.
    let is_bundle = |path: &PathBuf| path.to_string_lossy().ends_with("-0001.phw");
    let bundle = files_below(&other(&archive)).into_iter().find(is_bundle).unwrap();
    let left = bundle.with_file_name(".00000003-0001.phw.999999999-0.new");
    std::fs::write(&left, b"half").unwrap();
    let observer = At::phase("copy the WAL archive", || drop(archive.push_well(&[3])));
    let (wal, failed) = run(&archive, &observer);
    assert!(failed.is_none() && observer.done(), "{failed:?}");
    let (next, _) = run_well(&archive);
    assert_eq!((wal.copied_count + next, wal.copied_bytes > 0), (1, wal.copied_count == 1));
    assert!(!left.exists());
    let [ours, theirs] = trees(&archive);
    assert_eq!(differences(&ours, &theirs), Vec::<String>::new());
}

#[test]
fn f15_damaged_wal_is_named_and_left_out_and_all_other_is_copied() {
    let archive = Archive::new();
    for place in 0..4 {
        archive.push_well(&[place]);
    }
    let objects = archive.objects();
    let damaged = &objects[1];
    for at in [100, 700, std::fs::metadata(damaged).unwrap().len() - 20] {
        flip_bit(damaged, at, 2);
        let (wal, failed) = run(&archive, &NoObserver);
        let failed = failed.unwrap_or_else(|| panic!("flipped at {at}: {wal:?}"));
        assert_eq!((failed.kind(), wal.failed_count), (ErrorKind::Damage, 1), "{failed}");
        let name = damaged.file_name().unwrap().to_str().unwrap();
        assert!(failed.message().contains(name), "{failed}");
        if at == 700 {
            assert!(failed.message().contains("frame 0 at byte 512"), "{failed}");
        }
        assert!(!is_there(&archive, damaged), "flipped at {at}");
        assert_eq!(objects.iter().filter(|object| is_there(&archive, object)).count(), objects.len() - 1);
        flip_bit(damaged, at, 2);
    }
    assert_eq!(run_well(&archive), (1, objects.len() as u64 - 1));
}

fn is_there(archive: &Archive, object: &Path) -> bool {
    other(archive).join(object.strip_prefix(archive.repo()).unwrap()).exists()
}

#[test]
fn b12_other_wal_under_the_same_name_is_never_overwritten() {
    let archive = Archive::new();
    archive.push_well(&[0]);
    archive.push_well(&[1]);
    archive.push_well(&[2, 3]);
    // The same WAL, stored there by a server itself: as good as a copy, whatever its id and its bundles.
    push_there(&archive, vec![archive.path(0)]);
    push_there(&archive, vec![archive.path(2)]);
    // Another version of the next segment.
    let (name, mut bytes) = archive.segments[1].clone();
    bytes[SEGMENT as usize / 2] ^= 1;
    push_there(&archive, vec![archive.file(&name, &bytes)]);
    let before = tree(&other(&archive).join("main/wal"));
    let (wal, failed) = run(&archive, &NoObserver);
    let failed = failed.unwrap_or_else(|| panic!("{wal:?}"));
    assert_eq!(failed.kind(), ErrorKind::Conflict, "{failed}");
    assert_eq!((wal.copied_count, wal.skipped_count, wal.failed_count), (1, 1, 1), "{wal:?}");
    let mut after = tree(&other(&archive).join("main/wal"));
    after.retain(|path, _| before.contains_key(path));
    assert_eq!(differences(&before, &after), Vec::<String>::new());

    // A bundle that holds another version of one that is there by itself is not put beside it.
    let archive = Archive::new();
    archive.push_well(&[0, 1]);
    let (name, mut bytes) = archive.segments[1].clone();
    bytes[SEGMENT as usize / 2] ^= 1;
    push_there(&archive, vec![archive.file(&name, &bytes)]);
    let (wal, failed) = run(&archive, &NoObserver);
    assert_eq!((failed.map(|error| error.kind()), wal.failed_count), (Some(ErrorKind::Conflict), 1));
    assert_eq!(files_below(&other(&archive).join("main/wal")).len(), 1);
}
