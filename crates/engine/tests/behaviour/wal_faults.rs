//! Pushes to a store that lies, and pushes that race: what is acknowledged is there, and stays.

use std::sync::Arc;

use pagehaul_engine::catalog::Repository;
use pagehaul_engine::error::ErrorKind;
use pagehaul_engine::pipeline::{CodecSpec, NoObserver};
use pagehaul_engine::source::postgres::wal_header::SegmentHeader;
use pagehaul_engine::terms::WalSegmentName;
use pagehaul_engine::wal::{Piece, PushRequest, push, put_piece};
use pagehaul_testkit::lying::{LIES, LyingStorage};

use super::wal_archive::{Archive, SEGMENT, kind, source};

/// What the server has, WAL and the histories of timelines, was overwritten elsewhere by whoever came last.
#[test]
fn b12_of_two_pushes_of_other_bytes_at_once_one_at_most_is_acknowledged() {
    let archive = Archive::new();
    archive.push_well(&[0]);
    let repository = archive.repository();
    let (name, bytes) = archive.segments[1].clone();
    let round_trips = |round: u8, name: &str, versions: [Vec<u8>; 2]| {
        let paths = [0, 1].map(|side| {
            let directory = archive.work.path().join(format!("race-{round}-{side}"));
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join(name), &versions[side]).unwrap();
            directory.join(name)
        });
        let start = std::sync::Barrier::new(2);
        let outcomes = std::thread::scope(|scope| {
            let pushes = paths.each_ref().map(|path| {
                let (start, repository) = (&start, &repository);
                scope.spawn(move || {
                    start.wait();
                    let request = PushRequest::new(source(), vec![path.clone()]);
                    push(repository, &request, &NoObserver).unwrap().files.remove(0).outcome
                })
            });
            pushes.map(|push| push.join().unwrap())
        });
        let is_well = outcomes.each_ref().map(Result::is_ok);
        assert_ne!(is_well, [true, true], "round {round}: {name}");
        for outcome in outcomes.iter().filter(|outcome| outcome.is_err()) {
            assert_eq!(kind(outcome), ErrorKind::Conflict, "round {round}: {outcome:?}");
        }
        let delivered = archive.get_well(name).1;
        match is_well.iter().position(|is_well| *is_well) {
            Some(winner) => assert!(delivered == versions[winner], "round {round}: {name}"),
            None => assert!(versions.contains(&delivered), "round {round}: {name}"),
        }
        // Nobody gets a later version in.
        for (path, version) in paths.iter().zip(&versions) {
            let again = archive.push(std::slice::from_ref(path)).remove(0);
            assert_eq!(again.is_ok(), *version == delivered, "round {round}: {again:?}");
        }
        assert!(archive.get_well(name).1 == delivered, "round {round}: {name}");
        is_well.contains(&true)
    };
    let mut acknowledged = 0;
    for round in 0..20u8 {
        let mut other = bytes.clone();
        other[SEGMENT as usize / 2] ^= 1 + round;
        acknowledged += u32::from(round_trips(round, &name, [bytes.clone(), other]));
        let history = |reason: &str| format!("1\t0/{round}00000\t{reason}\n").into_bytes();
        round_trips(round, "00000002.history", [history("one"), history("two")]);
        archive.objects().iter().skip(1).for_each(|object| std::fs::remove_file(object).unwrap());
    }
    assert!(acknowledged > 0, "somebody gets through");
}

/// Two objects of different names have the segment: that of one command, and that of one which had two files.
#[test]
fn b12_of_two_pushes_in_bundles_that_overlap_one_at_most_is_acknowledged() {
    let archive = Archive::new();
    archive.push_well(&[0]);
    let repository = archive.repository();
    let [(name, bytes), (next, next_bytes)] = [&archive.segments[1], &archive.segments[2]];
    for round in 0..20u8 {
        let mut other = bytes.clone();
        other[SEGMENT as usize / 2] ^= 1 + round;
        let directory = archive.work.path().join(format!("bundle-{round}"));
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join(name), &other).unwrap();
        std::fs::write(directory.join(next), next_bytes).unwrap();
        let pushes = [vec![archive.path(1)], vec![directory.join(name), directory.join(next)]];
        let start = std::sync::Barrier::new(2);
        let outcomes = std::thread::scope(|scope| {
            let pushes = pushes.each_ref().map(|files| {
                let (start, repository) = (&start, &repository);
                scope.spawn(move || {
                    start.wait();
                    let request = PushRequest::new(source(), files.clone());
                    push(repository, &request, &NoObserver).unwrap().files.remove(0).outcome
                })
            });
            pushes.map(|push| push.join().unwrap())
        });
        let winner = match outcomes.each_ref().map(Result::is_ok) {
            [true, true] => panic!("round {round}: both are acknowledged"),
            is_well => is_well.iter().position(|is_well| *is_well),
        };
        for outcome in outcomes.iter().filter(|outcome| outcome.is_err()) {
            assert_eq!(kind(outcome), ErrorKind::Conflict, "round {round}: {outcome:?}");
        }
        // Where both are there, neither is delivered: nobody can tell which one is right.
        match archive.try_get(name) {
            Ok((_, delivered)) => {
                let acknowledged = winner.map(|winner| [bytes, &other][winner]);
                assert!(delivered.as_ref() == acknowledged, "round {round}");
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "round {round}: {error}"),
        }
        archive.objects().iter().skip(1).for_each(|object| std::fs::remove_file(object).unwrap());
    }
}

/// A push was acknowledged elsewhere, the object had no byte, and the server recycled the only copy.
#[test]
fn b01_a_store_that_says_stored_and_has_nothing_or_half_acknowledges_nothing() {
    let archive = Archive::new();
    archive.push_well(&[0]);
    let files = [
        archive.path(1),
        archive.file("00000003.history", b"1\t0/500000\tno reason\n2\t0/600000\tno reason\n"),
        archive.file(&format!("{}.00000028.backup", archive.segments[1].0), b"START WAL LOCATION: 0/28\n"),
        archive.file(&format!("{}.partial", archive.segments[2].0), &archive.segments[2].1),
    ];
    let known = archive.objects();
    let forget = || {
        for object in archive.objects().into_iter().filter(|object| !known.contains(object)) {
            std::fs::remove_file(object).unwrap();
        }
    };
    for (lie, file) in LIES.into_iter().flat_map(|lie| files.iter().map(move |file| (lie, file))) {
        let storage = LyingStorage::new(&archive.repo(), 0, lie, Arc::default());
        let request = PushRequest::new(source(), vec![file.clone()]);
        let report = push(&Repository::over(Box::new(storage)), &request, &NoObserver).unwrap();
        let error = report.first_error().unwrap_or_else(|| panic!("{lie:?}: {} is acknowledged", file.display()));
        assert_eq!(error.kind(), ErrorKind::Repository, "{lie:?}: {error}");
        forget();
        assert!(archive.push(std::slice::from_ref(file))[0].is_ok(), "{lie:?}: {}", file.display());
        forget();
    }
    // A piece of a segment that is received: the server is told that it is durable.
    let (name, bytes) = &archive.segments[1];
    let segment: WalSegmentName = name.parse().unwrap();
    let header = SegmentHeader::parse(bytes, &segment).unwrap();
    let (source, compression) = (&source(), CodecSpec::default());
    let piece = Piece { source, segment: &segment, header, offset: 0, bytes: &bytes[..8192], facts: None, compression };
    for lie in LIES {
        let storage = LyingStorage::new(&archive.repo(), 0, lie, Arc::default());
        let error = put_piece(&Repository::over(Box::new(storage)), &piece).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Repository, "{lie:?}: {error}");
        forget();
    }
}
