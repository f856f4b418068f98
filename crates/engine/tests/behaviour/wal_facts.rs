//! What is found in WAL, compared with pg_waldump of every PostgreSQL there is.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use pagehaul_engine::source::postgres::scratch_server::InitOptions;
use pagehaul_engine::source::postgres::wal_header::SegmentHeader;
use pagehaul_engine::source::postgres::wal_records::{WalPlace, WalWalker};
use pagehaul_engine::terms::{WalFacts, WalSegmentName, WalTime};
use pagehaul_testkit::cluster::{Cluster, QUICK, installs, work_directory};

/// The segments in a data directory that hold WAL, oldest first.
fn segments(pgdata: &Path) -> Vec<(WalSegmentName, PathBuf)> {
    let entries = std::fs::read_dir(pgdata.join("pg_wal")).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> =
        entries.filter_map(|path| Some((path.file_name()?.to_str()?.parse().ok()?, path))).collect();
    found.sort();
    found
}

fn walk(name: &WalSegmentName, bytes: &[u8], step: usize) -> Option<WalFacts> {
    // Segments that were made ahead have old content or none.
    let header = SegmentHeader::parse(bytes, name).ok()?;
    let place = WalPlace {
        start: header.address,
        page_magic: header.page_magic,
        block_size_bytes: header.block_size_bytes,
        segment_size_bytes: header.segment_size_bytes,
    };
    let mut walker = WalWalker::new(place);
    bytes.chunks(step).for_each(|piece| walker.feed(piece));
    Some(walker.finish())
}

/// Ids and times of ended transactions and names of restore points, as pg_waldump prints them.
#[derive(Debug, Default)]
struct Oracle {
    xids: BTreeSet<u32>,
    times: BTreeSet<i64>,
    points: Vec<String>,
}

fn ask_waldump(cluster: &Cluster, path: &Path) -> Oracle {
    let path = path.display().to_string();
    let output = cluster.server.run_tool("pg_waldump", &[&path]).unwrap();
    let mut oracle = Oracle::default();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Some((head, text)) = line.split_once(" desc: ") else { continue };
        let field = |name: &str| head.split_once(name).unwrap().1.trim_start().split([',', ' ']).next().unwrap();
        if let Some(name) = text.strip_prefix("RESTORE_POINT ") {
            oracle.points.push(name.to_owned());
        }
        let Some((what, rest)) = text.split_once(' ') else { continue };
        if field("rmgr:") != "Transaction" || !matches!(what, "COMMIT" | "ABORT" | "COMMIT_PREPARED" | "ABORT_PREPARED")
        {
            continue;
        }
        let (prepared, rest) = match rest.split_once(": ") {
            Some((xid, rest)) if what.ends_with("PREPARED") => (xid.parse::<u32>().ok(), rest),
            _ => (None, rest),
        };
        let xid = prepared.unwrap_or_else(|| field("tx:").parse().unwrap());
        oracle.xids.extend((xid != 0).then_some(xid));
        // `2026-11-22 04:05:06.789012 UTC` and perhaps more after a semicolon.
        let at = rest.split(" UTC").next().unwrap().replace(' ', "T") + "Z";
        oracle.times.insert(WalTime::from_timestamp(at.parse().unwrap()).0);
    }
    oracle
}

fn make_records_of_all_kinds(cluster: &Cluster) -> Vec<String> {
    cluster.load_typed_tables(20_000);
    let mut points = Vec::new();
    for round in 0..3 {
        let name = format!("point {round}");
        cluster.run(&[
            &format!("SELECT pg_create_restore_point('{name}')"),
            "BEGIN; CREATE TABLE gone (i int); SAVEPOINT a; INSERT INTO gone VALUES (1); SAVEPOINT b; \
             INSERT INTO gone VALUES (2); ROLLBACK",
            "BEGIN; CREATE TABLE prepared (i int); SAVEPOINT a; INSERT INTO prepared VALUES (1); \
             PREPARE TRANSACTION 'one'",
            "COMMIT PREPARED 'one'",
            "BEGIN; DROP TABLE prepared; CREATE TABLE other (i int PRIMARY KEY); PREPARE TRANSACTION 'two'",
            "ROLLBACK PREPARED 'two'",
            "BEGIN; DROP TABLE prepared; PREPARE TRANSACTION 'three'",
            "COMMIT PREPARED 'three'",
            // One record of several pages.
            "SELECT pg_logical_emit_message(true, 'x', repeat('large', 20000))",
            "INSERT INTO long_text SELECT * FROM long_text LIMIT 3000",
        ]);
        points.push(name);
        if round == 1 {
            cluster.run(&["SELECT pg_switch_wal()"]);
        }
    }
    cluster.run(&["CHECKPOINT", "SELECT pg_switch_wal()"]);
    points
}

#[test]
fn facts_agree_with_pg_waldump_of_every_version() {
    for install in installs() {
        if !install.has_tool("pg_waldump") {
            eprintln!("SKIPPED: pg_waldump of PostgreSQL {} is not there", install.major());
            continue;
        }
        let work = work_directory();
        let options = InitOptions { wal_segment_size_mib: Some(1), ..InitOptions::default() };
        let more = [("max_prepared_transactions", "5"), ("log_timezone", "UTC"), ("wal_keep_size", "512MB")];
        let settings = [QUICK, &more[..]].concat();
        let cluster = Cluster::start_with(&install, work.path(), &options, &settings);
        let points = make_records_of_all_kinds(&cluster);
        let position = cluster.value("SELECT pg_walfile_name(pg_current_wal_insert_lsn())");
        let (mut compared, mut ended, mut found_points, mut switched) = (0, 0, Vec::new(), 0);
        let all = segments(cluster.server.data_directory());
        for (name, path) in all.iter().filter(|(name, _)| name.as_str() < position.as_str()) {
            let bytes = std::fs::read(path).unwrap();
            let Some(facts) = walk(name, &bytes, bytes.len()) else { continue };
            // In pieces that are shorter than a record's header no record is passed over by a look at it.
            for step in [4093, 20] {
                assert_eq!(walk(name, &bytes, step).as_ref(), Some(&facts), "in pieces of {step}");
            }
            let oracle = ask_waldump(&cluster, path);
            let major = install.major();
            assert!(facts.whole, "PostgreSQL {major}, {name}: {facts:?}");
            let xids = oracle.xids.first().copied().zip(oracle.xids.last().copied());
            assert_eq!(facts.ended_xids, xids, "PostgreSQL {major}, {name}");
            let times = oracle.times.first().copied().zip(oracle.times.last().copied());
            assert_eq!(facts.ended_at.map(|(a, b)| (a.0, b.0)), times, "PostgreSQL {major}, {name}");
            let names: Vec<_> = facts.restore_points.iter().map(|point| point.name.clone()).collect();
            assert_eq!(names, oracle.points, "PostgreSQL {major}, {name}");
            found_points.extend(names);
            compared += 1;
            ended += oracle.xids.len();
            switched += usize::from(facts.ends_with_switch);
        }
        assert!(
            compared >= 5 && ended >= 20 && switched >= 2,
            "{compared} segments, {ended} ends, {switched} switches"
        );
        assert_eq!(found_points, points);
    }
}

#[test]
fn the_lsn_of_a_restore_point_is_the_one_the_server_gave() {
    for install in installs() {
        let work = work_directory();
        let cluster = Cluster::start(&install, work.path());
        let lsn = cluster.value("SELECT pg_create_restore_point('here')");
        let file = cluster.value(&format!("SELECT pg_walfile_name('{lsn}')"));
        cluster.run(&["CHECKPOINT"]);
        let path = cluster.server.data_directory().join("pg_wal").join(&file);
        let bytes = std::fs::read(path).unwrap();
        let facts = walk(&file.parse().unwrap(), &bytes, 1 << 20).unwrap();
        assert_eq!(facts.restore_points.len(), 1);
        assert_eq!(facts.restore_points[0].lsn.to_string(), lsn, "PostgreSQL {}", install.major());
        assert!(!facts.whole, "the segment is still being written");
        let end = cluster.value("SELECT pg_current_wal_flush_lsn()").parse().unwrap();
        assert!(facts.end_lsn <= end && facts.end_lsn >= lsn.parse().unwrap(), "{facts:?}, {end}");
    }
}
