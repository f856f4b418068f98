//! A receiver that was away while the server's history changed: set back, removed, promoted.

use std::path::Path;
use std::process::Command;

use pagehaul_engine::catalog::Repository;
use pagehaul_engine::error::ErrorKind;
use pagehaul_engine::pipeline::NoObserver;
use pagehaul_engine::source::postgres::scratch_server::StopMode;
use pagehaul_engine::terms::{Lsn, SegmentNumber, TimelineId, WalSegmentName};
use pagehaul_engine::wal::{GetOutcome, GetRequest, PushRequest, ReceiveRequest, get, push};
use pagehaul_testkit::cluster::{Cluster, QUICK, work_directory};
use pagehaul_testkit::damage::files_below;

use super::wal_receive::{
    SEGMENT_BYTES, Watch, cluster, inventory, request, source, wait_until_received, while_receiving,
};
use super::wal_receive_pieces::pieces_below;

/// The server keeps its WAL by itself, long enough.
const KEEPS: &[(&str, &str)] = &[("wal_keep_size", "256MB")];

fn without_slot(cluster: &Cluster) -> ReceiveRequest {
    ReceiveRequest { slot: None, create_slot: false, ..request(cluster) }
}

/// Rows with `word` in them in so many segments.
fn write_segments(cluster: &Cluster, word: &str, count: u32) {
    for _ in 0..count {
        cluster.run(&[
            &format!(
                "INSERT INTO ledger SELECT n, '{word}' FROM (SELECT coalesce(max(n), 0) AS last FROM ledger) l, \
                 generate_series(last + 1, last + 500) AS n"
            ),
            "SELECT pg_switch_wal()",
        ]);
    }
}

/// Receives what is there, and what `work` makes.
fn receive_and(cluster: &Cluster, work: impl FnOnce()) {
    let watch = Watch::default();
    while_receiving(&cluster.repo(), &without_slot(cluster), &watch, || {
        watch.wait_for_note("streaming WAL");
        work();
        wait_until_received(cluster);
    })
    .unwrap();
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

#[test]
fn a_server_that_was_set_back_does_not_go_on_behind_what_is_archived() {
    let work = work_directory();
    let mut cluster = cluster(work.path(), KEEPS);
    Repository::open_or_create(&cluster.repo()).unwrap();
    write_segments(&cluster, "before", 2);
    cluster.server.stop(StopMode::Fast).unwrap();
    let (pgdata, earlier) = (cluster.server.data_directory().to_owned(), work.path().join("earlier"));
    copy(&pgdata, &earlier);
    let start = |cluster: &mut Cluster| cluster.server.start(&[QUICK, KEEPS].concat()).unwrap();
    start(&mut cluster);
    receive_and(&cluster, || write_segments(&cluster, "true", 3));
    // It ends with a whole segment.
    pieces_below(&cluster.repo()).iter().for_each(|path| std::fs::remove_file(path).unwrap());
    let archived = files_below(Path::new(&cluster.repo()));

    cluster.server.stop(StopMode::Fast).unwrap();
    std::fs::remove_dir_all(&pgdata).unwrap();
    copy(&earlier, &pgdata);
    start(&mut cluster);
    for (words, segments) in [("whose own ends at", 0), ("go on behind WAL segment", 6)] {
        write_segments(&cluster, "other", segments);
        let outcome = while_receiving(&cluster.repo(), &without_slot(&cluster), &Watch::default(), || {
            std::thread::sleep(std::time::Duration::from_secs(3));
        });
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        assert!(error.message().contains(words), "{error}");
        assert_eq!(files_below(Path::new(&cluster.repo())), archived, "nothing is put behind it, nothing goes");
    }
}

#[test]
fn a_gap_is_accepted_only_where_the_server_has_one() {
    let work = work_directory();
    let cluster = cluster(work.path(), KEEPS);
    receive_and(&cluster, || write_segments(&cluster, "before", 2));
    write_segments(&cluster, "away", 4);
    let watch = Watch::default();
    let goes_on = ReceiveRequest { accept_gap: true, ..without_slot(&cluster) };
    while_receiving(&cluster.repo(), &goes_on, &watch, || wait_until_received(&cluster)).unwrap();
    assert!(!watch.notes().iter().any(|note| note.contains("may be lost")), "{:?}", watch.notes());
    let inventory = inventory(&cluster.repo());
    assert_eq!(inventory.timelines[&TimelineId(1)].gaps(), [], "the server had it all");
}

fn get_segment(cluster: &Cluster, name: &WalSegmentName) -> Vec<u8> {
    let destination = cluster.directory.join("got");
    let request = GetRequest {
        source: source(),
        name: name.to_string(),
        destination: destination.clone(),
        system_identifier: None,
        decoders: None,
    };
    let repository = Repository::open(&cluster.repo()).unwrap();
    assert!(matches!(get(&repository, &request).unwrap(), GetOutcome::Delivered(_)), "{name}");
    std::fs::read(destination).unwrap()
}

#[test]
fn a_receiver_that_was_away_over_a_promotion_fetches_the_end_of_the_old_timeline() {
    let work = work_directory();
    let primary = cluster(work.path(), KEEPS);
    let standby = primary.standby("standby");
    standby.catch_up(&primary);
    let (repo, request) = (standby.repo(), without_slot(&standby));
    receive_and(&standby, || {
        write_segments(&primary, "received", 2);
        standby.catch_up(&primary);
    });

    write_segments(&primary, "away", 3);
    primary.run(&["INSERT INTO ledger VALUES (-1, 'in the segment that is left open')"]);
    standby.catch_up(&primary);
    assert_eq!(standby.value("SELECT pg_promote()"), "t");
    write_segments(&standby, "new", 2);
    // As the promoted server's own archive_command does, at once.
    let end: Lsn = standby.value("SELECT pg_current_wal_flush_lsn()").parse().unwrap();
    let path = standby.server.data_directory().join("pg_wal");
    let names = std::fs::read_dir(&path).unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap());
    let last = WalSegmentName::containing(TimelineId(2), end, SEGMENT_BYTES).to_string();
    let whole = names.filter(|name| name.len() == 24 && name.starts_with("00000002") && *name < last);
    let files = whole.chain(["00000002.history".to_owned()]).map(|name| path.join(name));
    let pushed = PushRequest::new(source(), files.collect());
    let report = push(&Repository::open(&repo).unwrap(), &pushed, &NoObserver).unwrap();
    assert!(report.files.iter().all(|file| file.outcome.is_ok()), "{report:?}");

    let watch = Watch::default();
    while_receiving(&repo, &request, &watch, || wait_until_received(&standby)).unwrap();
    let there = inventory(&repo);
    let (old, new) = (&there.timelines[&TimelineId(1)], &there.timelines[&TimelineId(2)]);
    let left_at = new.history.as_ref().unwrap().parent().unwrap().end_lsn;
    let open = SegmentNumber(left_at.0 / SEGMENT_BYTES);
    assert!(old.gaps().is_empty() && old.ranges.last().unwrap().last.0 == open.0 - 1, "{:?} {left_at}", old.ranges);
    let name = |timeline| WalSegmentName::new(TimelineId(timeline), open, SEGMENT_BYTES);
    let until = (left_at.0 % SEGMENT_BYTES) as usize;
    let (ours, theirs) = (get_segment(&standby, &name(1)), std::fs::read(path.join(name(2).as_str())).unwrap());
    assert!(until > 0 && ours[..until] == theirs[..until], "the end of the old timeline differs");
    assert!(watch.notes().iter().any(|note| note.starts_with("streaming WAL of timeline 1 ")), "{:?}", watch.notes());

    let again = Watch::default();
    while_receiving(&repo, &request, &again, || wait_until_received(&standby)).unwrap();
    assert!(!again.notes().iter().any(|note| note.contains("timeline 1 ")), "once is enough: {:?}", again.notes());
}
