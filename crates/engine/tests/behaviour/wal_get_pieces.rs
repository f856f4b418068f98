//! Segments of which there are pieces, while somebody else changes what is there, and for a server that has more itself.

use std::sync::Arc;

use pagehaul_engine::catalog::Repository;
use pagehaul_engine::pipeline::CodecSpec;
use pagehaul_engine::source::postgres::wal_header::SegmentHeader;
use pagehaul_engine::storage::{LocalStorage, Storage};
use pagehaul_engine::terms::WalSegmentName;
use pagehaul_engine::wal::{GetOutcome, GetRequest, Piece, get, put_piece};
use pagehaul_testkit::damage::files_below;
use pagehaul_testkit::faulty::{Faults, FaultyStorage};

use super::wal_archive::{Archive, source};

/// Stores a piece of the second segment that begins at its start.
fn put_first_piece(archive: &Archive, length: usize) -> (String, Vec<u8>) {
    let (name, bytes) = archive.segments[1].clone();
    let segment: WalSegmentName = name.parse().unwrap();
    let header = SegmentHeader::parse(&bytes, &segment).unwrap();
    let (source, compression, bytes_of_piece) = (source(), CodecSpec::default(), &bytes[..length]);
    let piece = Piece {
        source: &source,
        segment: &segment,
        header,
        offset: 0,
        bytes: bytes_of_piece,
        facts: None,
        compression,
    };
    assert!(put_piece(&archive.repository(), &piece).unwrap());
    (name, bytes)
}

/// What a receiver does when a segment is whole: it stores that, and removes the pieces then.
#[test]
fn a_segment_that_becomes_whole_while_it_is_looked_for_is_found() {
    let archive = Archive::new();
    archive.push_well(&[0]);
    let pieces = || {
        let mut files = files_below(&archive.repo());
        files.retain(|path| path.extension().is_some_and(|kind| kind == "php"));
        files
    };
    let destination = archive.work.path().join("got");
    let mut outcomes = [0; 2];
    for operation in 0.. {
        let (name, bytes) = put_first_piece(&archive, 20_000);
        let storage = LocalStorage::new(&archive.repo());
        let faults = Faults::none();
        std::thread::scope(|scope| {
            let (asked, told) = std::sync::mpsc::channel::<std::sync::mpsc::Sender<()>>();
            faults.call_at(operation, move || {
                let (done, wait) = std::sync::mpsc::channel();
                asked.send(done).unwrap();
                wait.recv().unwrap();
            });
            let (archive, pieces) = (&archive, &pieces);
            scope.spawn(move || {
                let Ok(done) = told.recv() else { return };
                archive.push_well(&[1]);
                pieces().iter().for_each(|path| std::fs::remove_file(path).unwrap());
                done.send(()).unwrap();
            });
            let changing = FaultyStorage::new(storage.clone(), Arc::clone(&faults));
            let repository = Repository::over(Box::new(changing));
            let request = GetRequest {
                source: source(),
                name: name.clone(),
                destination: destination.clone(),
                system_identifier: None,
                decoders: None,
            };
            let outcome = get(&repository, &request).unwrap_or_else(|error| panic!("operation {operation}: {error}"));
            assert_ne!(outcome, GetOutcome::NotThere, "operation {operation}");
            let (got, is_whole) = (std::fs::read(&destination).unwrap(), pieces().is_empty());
            // What it was before the change, or what it is after it.
            let whole = got == bytes;
            let beginning = got[..20_000] == bytes[..20_000] && got[20_000..].iter().all(|byte| *byte == 0);
            assert!(whole || beginning, "operation {operation}");
            outcomes[usize::from(whole && is_whole)] += 1;
            faults.forget_call();
        });
        if faults.operations() <= operation {
            break;
        }
        for path in files_below(&archive.repo()) {
            if path.file_name().unwrap().to_str().unwrap().starts_with(&name[16..]) {
                storage.delete(path.strip_prefix(archive.repo()).unwrap().to_str().unwrap()).unwrap();
            }
        }
    }
    assert!(outcomes[0] >= 1 && outcomes[1] >= 3, "{outcomes:?}: pieces and whole ones were to be met");
}

/// A restored server has the WAL of its set, which may reach further than what was streamed so far.
#[test]
fn a_server_that_has_more_of_a_segment_itself_is_not_given_less() {
    let archive = Archive::new();
    archive.push_well(&[0]);
    let (name, bytes) = put_first_piece(&archive, 20_000);
    let wal = tempfile::tempdir().unwrap();
    std::fs::create_dir(wal.path().join("archive_status")).unwrap();
    std::fs::create_dir(wal.path().join("pagehaul-prefetch")).unwrap();
    let is_given = || {
        let given = ["RECOVERYXLOG", "pagehaul-prefetch/fetched"].map(|destination| {
            let destination = wal.path().join(destination);
            let request = GetRequest {
                source: source(),
                name: name.clone(),
                destination: destination.clone(),
                system_identifier: None,
                decoders: None,
            };
            let outcome = get(&archive.repository(), &request).unwrap();
            assert_eq!(outcome != GetOutcome::NotThere, destination.exists());
            std::fs::remove_file(destination).is_ok()
        });
        assert_eq!(given[0], given[1]);
        given[0]
    };
    assert!(is_given(), "it has nothing of it");
    let own = wal.path().join(&name);
    let mut other = bytes.clone();
    other[19_999] ^= 1;
    for (content, expected, why) in [
        (&bytes[..], false, "it has more"),
        (&other[..], true, "a file that was recycled"),
        (&bytes[..30_000], true, "it is not whole"),
    ] {
        std::fs::write(&own, content).unwrap();
        assert_eq!(is_given(), expected, "{why}");
    }
}
