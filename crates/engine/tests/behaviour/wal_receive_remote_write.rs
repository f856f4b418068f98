//! Synchronous commits that wait only until WAL is written on the standby: what is not durable is not written either.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use pagehaul_engine::catalog::Repository;
use pagehaul_engine::terms::{Lsn, TimelineId};
use pagehaul_engine::wal::ReceiveRequest;
use pagehaul_testkit::cluster::{Cluster, work_directory};

use super::wal_receive::{SEGMENT_BYTES, StopAtEnd, Watch, cluster, inventory, request, while_receiving};

/// Where the WAL ends that is in the archive now.
fn archived_end(cluster: &Cluster) -> Lsn {
    let mut inventory = inventory(&cluster.repo());
    let Some(wal) = inventory.timelines.remove(&TimelineId(1)) else { return Lsn(0) };
    let whole = wal.ranges.last().map_or(0, |range| (range.last.0 + 1) * SEGMENT_BYTES);
    let pieces = wal.pieces.iter().map(|piece| {
        let size_bytes = piece.member.as_ref().unwrap().size_bytes;
        piece.segment.0 * SEGMENT_BYTES + u64::from(piece.offset) + size_bytes
    });
    Lsn(pieces.max().unwrap_or(0).max(whole))
}

/// The server is never told that something is written which is not in the archive.
fn watch_positions(cluster: &Cluster, stop: &AtomicBool) -> u32 {
    let mut seen = 0;
    while !stop.load(SeqCst) {
        let sql = "SELECT coalesce(max(write_lsn), '0/0') FROM pg_stat_replication";
        let written: Lsn = cluster.value(sql).parse().unwrap();
        if written > Lsn(0) {
            let archived = archived_end(cluster);
            assert!(written <= archived, "{written} is told as written, and {archived} is archived");
            seen += 1;
        }
    }
    seen
}

#[test]
fn what_is_not_durable_is_not_told_as_written() {
    for synchronous in [false, true] {
        let work = work_directory();
        let cluster = cluster(work.path(), &[]);
        Repository::open_or_create(&cluster.repo()).unwrap();
        // So slow that what came lies in memory for a while.
        let repo = format!("throttle:write=100kB/s:{}", cluster.repo());
        let request = ReceiveRequest {
            synchronous,
            flush_every: Duration::from_millis(500),
            compression: "none".parse().unwrap(),
            ..request(&cluster)
        };
        let watch = Watch::default();
        while_receiving(&repo, &request, &watch, || {
            watch.wait_for_note("streaming WAL");
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let _stop = StopAtEnd(&stop);
                let watcher = scope.spawn(|| watch_positions(&cluster, &stop));
                // Without a receiver a commit would wait for ever.
                scope.spawn(|| {
                    while !watch.has_ended() && !stop.load(SeqCst) {
                        std::thread::sleep(Duration::from_millis(100));
                    }
                    cluster.run(&["ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()"]);
                });
                cluster.commits_wait_for("pagehaul");
                let mut connection = cluster.connect();
                connection.query("SET synchronous_commit = remote_write").unwrap();
                for number in 0..10 {
                    connection.query("BEGIN").unwrap();
                    let sql = format!("INSERT INTO ledger VALUES ({number}, repeat(md5('{number}'), 20))");
                    connection.query(&sql).unwrap();
                    let begun: Lsn =
                        connection.query_value("SELECT pg_current_wal_insert_lsn()").unwrap().parse().unwrap();
                    connection.query("COMMIT").unwrap();
                    let archived = archived_end(&cluster);
                    assert!(archived > begun, "committed behind {begun}, archived up to {archived}");
                }
                stop.store(true, SeqCst);
                assert!(watcher.join().unwrap() > 3);
            });
        })
        .unwrap();
    }
}
