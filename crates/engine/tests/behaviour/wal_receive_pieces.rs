//! Pieces of segments that an earlier receiver left: those of whole segments go, and nothing is put behind wrong ones.

use std::path::Path;
use std::time::Duration;

use pagehaul_engine::catalog::Repository;
use pagehaul_engine::error::ErrorKind;
use pagehaul_engine::source::postgres::wal_header::SegmentHeader;
use pagehaul_engine::terms::{TimelineId, WalSegmentName};
use pagehaul_engine::wal::{Piece, put_piece};
use pagehaul_testkit::cluster::work_directory;

use super::wal_receive::{
    SEGMENT_BYTES, Watch, cluster, inventory, request, source, wait_until_received, while_receiving,
};

#[test]
fn what_a_receiver_left_that_died_behind_a_whole_segment_goes() {
    let work = work_directory();
    let cluster = cluster(work.path(), &[]);
    let (repo, request) = (cluster.repo(), request(&cluster));
    let receive_a_segment = || {
        let watch = Watch::default();
        while_receiving(&repo, &request, &watch, || {
            watch.wait_for_note("streaming WAL");
            cluster.run(&["INSERT INTO ledger SELECT coalesce(max(n), 0) + 1 FROM ledger", "SELECT pg_switch_wal()"]);
            wait_until_received(&cluster);
        })
        .unwrap();
    };
    receive_a_segment();
    let last = inventory(&repo).timelines[&TimelineId(1)].ranges.last().unwrap().last;
    let segment = WalSegmentName::new(TimelineId(1), last, SEGMENT_BYTES);
    let bytes = std::fs::read(cluster.server.data_directory().join("pg_wal").join(segment.as_str())).unwrap();
    let header = SegmentHeader::parse(&bytes, &segment).unwrap();
    let (source, bytes, compression) = (&source(), &bytes[..5000], "none".parse().unwrap());
    let piece = Piece { source, segment: &segment, header, offset: 0, bytes, facts: None, compression };
    assert!(put_piece(&Repository::open(&repo).unwrap(), &piece).unwrap());
    receive_a_segment();
    let left = inventory(&repo).timelines.remove(&TimelineId(1)).unwrap();
    assert!(left.ranges.last().unwrap().last > last && left.gaps().is_empty());
    assert!(left.pieces.iter().all(|piece| piece.segment > last), "{:?}", left.pieces);
}

/// The objects that are pieces.
pub(super) fn pieces_below(repo: &str) -> Vec<std::path::PathBuf> {
    let (mut found, mut directories) = (Vec::new(), vec![Path::new(repo).join("main/wal")]);
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap().flatten() {
            match entry.path() {
                path if path.is_dir() => directories.push(path),
                path if path.extension().is_some_and(|kind| kind == "php") => found.push(path),
                _ => {}
            }
        }
    }
    found
}

#[test]
fn what_follows_bytes_of_another_server_is_not_stored() {
    let work = work_directory();
    let cluster = cluster(work.path(), &[]);
    let (repo, request) = (cluster.repo(), request(&cluster));
    while_receiving(&repo, &request, &Watch::default(), || {
        cluster.run(&["INSERT INTO ledger SELECT n, repeat('x', 100) FROM generate_series(1, 100) n"]);
        wait_until_received(&cluster);
    })
    .unwrap();
    let last = inventory(&repo).timelines[&TimelineId(1)].pieces.last().unwrap().segment;
    let segment = WalSegmentName::new(TimelineId(1), last, SEGMENT_BYTES);
    let mut bytes = std::fs::read(cluster.server.data_directory().join("pg_wal").join(segment.as_str())).unwrap();
    let header = SegmentHeader::parse(&bytes, &segment).unwrap();
    bytes.truncate(4096);
    bytes[3000] ^= 1;
    pieces_below(&repo).iter().for_each(|path| std::fs::remove_file(path).unwrap());
    let (source, compression) = (&source(), "none".parse().unwrap());
    let piece = Piece { source, segment: &segment, header, offset: 0, bytes: &bytes, facts: None, compression };
    assert!(put_piece(&Repository::open(&repo).unwrap(), &piece).unwrap());
    let planted = pieces_below(&repo);
    let error = while_receiving(&repo, &request, &Watch::default(), || {
        cluster.run(&["INSERT INTO ledger SELECT n, repeat('y', 100) FROM generate_series(200, 300) n"]);
        std::thread::sleep(Duration::from_secs(2));
    })
    .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert_eq!(pieces_below(&repo), planted, "nothing was put behind it");
}
