//! Segments of which there are pieces, while somebody else changes what is there, and for a server that has more itself.

use std::path::PathBuf;
use std::sync::Arc;

use pagehaul_engine::catalog::Repository;
use pagehaul_engine::catalog::wal_inventory::{Detail, WalInventory, clusters};
use pagehaul_engine::pipeline::CodecSpec;
use pagehaul_engine::source::postgres::wal_header::SegmentHeader;
use pagehaul_engine::storage::{LocalStorage, Storage};
use pagehaul_engine::terms::{TimelineId, WalSegmentName};
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

fn stored_pieces(archive: &Archive) -> Vec<PathBuf> {
    let mut files = files_below(&archive.repo());
    files.retain(|path| path.extension().is_some_and(|kind| kind == "php"));
    files
}

/// Calls `look` with an archive that has the first piece of the second segment. Before the storage operation of that
/// number a receiver does what it does when a segment is whole: it stores that, and removes the pieces then.
///
/// Gives whether there was such an operation.
fn while_it_becomes_whole(archive: &Archive, operation: u64, look: impl FnOnce(&Repository, &str, &[u8])) -> bool {
    let (name, bytes) = put_first_piece(archive, 20_000);
    let storage = LocalStorage::new(&archive.repo());
    let faults = Faults::none();
    std::thread::scope(|scope| {
        let (asked, told) = std::sync::mpsc::channel::<std::sync::mpsc::Sender<()>>();
        faults.call_at(operation, move || {
            let (done, wait) = std::sync::mpsc::channel();
            asked.send(done).unwrap();
            wait.recv().unwrap();
        });
        scope.spawn(move || {
            let Ok(done) = told.recv() else { return };
            archive.push_well(&[1]);
            stored_pieces(archive).iter().for_each(|path| std::fs::remove_file(path).unwrap());
            done.send(()).unwrap();
        });
        let repository = Repository::over(Box::new(FaultyStorage::new(storage.clone(), Arc::clone(&faults))));
        let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| look(&repository, &name, &bytes)));
        // Or its thread would wait for ever.
        faults.forget_call();
        looked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    for path in files_below(&archive.repo()) {
        if path.file_name().unwrap().to_str().unwrap().starts_with(&name[16..]) {
            storage.delete(path.strip_prefix(archive.repo()).unwrap().to_str().unwrap()).unwrap();
        }
    }
    faults.operations() > operation
}

#[test]
fn a_segment_that_becomes_whole_while_it_is_looked_for_is_found() {
    let archive = Archive::new();
    archive.push_well(&[0]);
    let destination = archive.work.path().join("got");
    let mut outcomes = [0; 2];
    for operation in 0.. {
        let was_reached = while_it_becomes_whole(&archive, operation, |repository, name, bytes| {
            let request = GetRequest {
                source: source(),
                name: name.to_owned(),
                destination: destination.clone(),
                system_identifier: None,
                decoders: None,
            };
            let outcome = get(repository, &request).unwrap_or_else(|error| panic!("operation {operation}: {error}"));
            assert_ne!(outcome, GetOutcome::NotThere, "operation {operation}");
            let (got, is_whole) = (std::fs::read(&destination).unwrap(), stored_pieces(&archive).is_empty());
            // What it was before the change, or what it is after it.
            let whole = got == bytes;
            let beginning = got[..20_000] == bytes[..20_000] && got[20_000..].iter().all(|byte| *byte == 0);
            assert!(whole || beginning, "operation {operation}");
            outcomes[usize::from(whole && is_whole)] += 1;
        });
        if !was_reached {
            break;
        }
    }
    assert!(outcomes[0] >= 1 && outcomes[1] >= 3, "{outcomes:?}: pieces and whole ones were to be met");
}

/// A listing is no moment: the whole segment may be missed as it was not there yet, and its pieces as they are gone.
#[test]
fn a_segment_that_becomes_whole_while_the_archive_is_listed_is_listed() {
    let archive = Archive::new();
    archive.push_well(&[0]);
    let mut met = [0; 2];
    for operation in 0.. {
        let was_reached = while_it_becomes_whole(&archive, operation, |repository, name, _| {
            let cluster = clusters(repository, &source()).unwrap()[0];
            let inventory = WalInventory::load(repository, &source(), cluster, Detail::Members).unwrap();
            let wal = &inventory.timelines[&TimelineId(1)];
            let number = name.parse::<WalSegmentName>().unwrap().number(1 << 20).unwrap();
            let is_whole = wal.ranges.iter().any(|range| range.first <= number && number <= range.last);
            assert!(is_whole || wal.pieces.iter().any(|piece| piece.segment == number), "operation {operation}");
            met[usize::from(is_whole)] += 1;
        });
        if !was_reached {
            break;
        }
    }
    assert!(met[0] >= 1 && met[1] >= 3, "{met:?}: pieces and whole ones were to be met");
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
