//! A cluster whose tables are created, dropped, cut, rewritten and moved while backups run: each restores to its point.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use pagehaul_engine::backup::{BackupOutcome, BackupReport, BackupRequest, backup};
use pagehaul_engine::pipeline::NoObserver;
use pagehaul_engine::restore::{RestoreRequest, restore};
use pagehaul_engine::source::postgres::client::Connection;
use pagehaul_engine::source::postgres::conninfo::ConnectSettings;
use pagehaul_engine::source::postgres::scratch_server::{InitOptions, StopMode};
use pagehaul_testkit::cluster::{Cluster, MAKE_TEMPLATE0, QUICK, default_install, work_directory};
use pagehaul_testkit::observer::At;
use pagehaul_testkit::random::Random;

/// One round of definitions for connection `number`; anything may meet what the other one does.
const STORM: &[&str] = &[
    "CREATE TABLE made_N AS SELECT i, md5(i::text) AS x FROM generate_series(1, 3000) AS i",
    "CREATE INDEX made_index_N ON made_N (x)",
    "ALTER TABLE made_N SET TABLESPACE elsewhere",
    "INSERT INTO kept SELECT i, md5(i::text), N FROM generate_series(1, 500) AS i",
    "UPDATE kept SET x = md5(x) WHERE owner = N AND i % 3 = 0",
    "TRUNCATE made_N",
    "INSERT INTO made_N SELECT i, repeat('y', 300) FROM generate_series(1, 1000) AS i",
    "ALTER TABLE made_N SET TABLESPACE pg_default",
    "CLUSTER made_N USING made_index_N",
    "DELETE FROM kept WHERE owner = N AND i % 5 = 0",
    "VACUUM FULL kept_by_N",
    "VACUUM kept",
    "CREATE DATABASE base_N TEMPLATE template0",
    "CREATE TABLE short_lived_N AS SELECT generate_series(1, 2000) AS i",
    "DROP TABLE made_N",
    "DROP TABLE short_lived_N",
    "DROP DATABASE base_N",
    "CHECKPOINT",
];

/// Between two steps: without it an idle machine writes WAL several times as fast as the backup may store it, and 21 GB of it were seen.
const LULL: Duration = Duration::from_millis(30);

/// Starts every step until `stop`, while it `blows`; steps that meet each other may fail.
fn storm(cluster: &Cluster, number: u32, stop: &AtomicBool, blows: &AtomicBool, done: &AtomicU64) {
    let mut connection = cluster.connect();
    for step in STORM.iter().cycle() {
        loop {
            std::thread::sleep(LULL);
            if stop.load(SeqCst) {
                return;
            }
            if blows.load(SeqCst) {
                break;
            }
        }
        if connection.query(&step.replace('N', &number.to_string())).is_ok() {
            done.fetch_add(1, SeqCst);
        }
    }
}

/// Adds rows one by one; `committed` is the last number that the server acknowledged.
fn keep_ledger(cluster: &Cluster, stop: &AtomicBool, committed: &AtomicU64) {
    let mut connection = cluster.connect();
    let mut number = 0;
    while !stop.load(SeqCst) {
        number += 1;
        connection
            .query(&format!("INSERT INTO ledger VALUES ({number}, pg_current_wal_insert_lsn())"))
            .unwrap_or_else(|error| panic!("{error:?}"));
        committed.store(number, SeqCst);
    }
}

/// Slow enough that most of what is listed has changed when it is read.
fn storm_backup(cluster: &Cluster, number: usize, rate: u64, blows: &AtomicBool) -> BackupReport {
    let request = BackupRequest {
        source: format!("storm{number}").parse().unwrap(),
        max_rate_bytes_per_s: Some(rate),
        stripes: Some(2),
        ..cluster.backup_request()
    };
    blows.store(true, SeqCst);
    // From then on it would only add to the WAL of the next one.
    let calm = At::phase("end the backup", || blows.store(false, SeqCst));
    let report = match backup(&request, &calm) {
        Ok(BackupOutcome::Done(report)) => *report,
        other => panic!("{other:?}"),
    };
    assert!(calm.done());
    report
}

const LEDGER: &str =
    "SELECT count(*) || ' ' || max(n) || ' ' || sum(hashtextextended(n || '/' || lsn, 0)::numeric) FROM ledger";

#[test]
fn b06_every_backup_under_a_storm_of_definitions_restores_to_an_exact_prefix() {
    let mut random = Random::new("storm");
    let work = work_directory();
    let options = InitOptions { wal_segment_size_mib: Some(4), ..InitOptions::default() };
    let mut cluster = Cluster::start_with(&default_install(), work.path(), &options, QUICK);
    let space = cluster.server_directory("space");
    cluster.run(&[
        MAKE_TEMPLATE0,
        &format!("CREATE TABLESPACE elsewhere LOCATION '{}'", space.display()),
        "CREATE TABLE ledger (n bigint PRIMARY KEY, lsn pg_lsn)",
        "CREATE TABLE kept (i int, x text, owner int)",
        "CREATE INDEX ON kept (x)",
        "CREATE TABLE kept_by_1 AS SELECT i, md5(i::text) FROM generate_series(1, 5000) AS i",
        "CREATE TABLE kept_by_2 AS SELECT i, md5(i::text) FROM generate_series(1, 5000) AS i",
    ]);
    let (stop, blows) = (AtomicBool::new(false), AtomicBool::new(true));
    let (committed, steps) = (AtomicU64::new(0), AtomicU64::new(0));
    let reports = std::thread::scope(|scope| {
        let (shared, stop, blows, committed, steps) = (&cluster, &stop, &blows, &committed, &steps);
        scope.spawn(move || keep_ledger(shared, stop, committed));
        for number in [1, 2] {
            scope.spawn(move || storm(shared, number, stop, blows, steps));
        }
        let rates = [0; 3].map(|_| (12 << 20) + random.below(8 << 20));
        let run = |(number, rate)| (committed.load(SeqCst), storm_backup(shared, number, rate, blows));
        let all = || rates.into_iter().enumerate().map(run).collect::<Vec<_>>();
        let reports = std::panic::catch_unwind(std::panic::AssertUnwindSafe(all));
        stop.store(true, SeqCst);
        reports.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let vanished: u64 = reports.iter().map(|(_, report)| report.vanished_file_count).sum();
    eprintln!("{} steps, {} rows, {vanished} files vanished", steps.load(SeqCst), committed.load(SeqCst));
    assert!(vanished > 0, "no file was dropped between list and read: the storm is too weak");
    let mut last = 0;
    for (number, (before, report)) in reports.into_iter().enumerate() {
        assert_eq!(report.bad_page_count, 0, "{:?}", report.bad_pages);
        assert_eq!(report.lost_file_count, 0, "{:?}", report.lost_files);
        let (target, new_space) = (work.path().join("restored"), work.path().join("restored-space"));
        let request = RestoreRequest {
            source: Some(report.source),
            tablespace_map: vec![(space.clone(), new_space.clone())],
            ..RestoreRequest::new(cluster.repo(), &target)
        };
        restore(&request, &NoObserver).unwrap_or_else(|error| panic!("{number}: {error}"));
        cluster.pg_verifybackup(&target);
        let mut copy = cluster.adopt(&target);
        let ledger = copy.value(LEDGER);
        let rows: u64 = ledger.split(' ').nth(1).unwrap().parse().unwrap();
        assert!(rows >= before && rows >= last, "{number}: {rows} rows, {before} were committed before it began");
        let expected = cluster.value(&format!("{LEDGER} WHERE n <= {rows}"));
        assert_eq!(ledger, expected, "{number}: not the same rows");
        assert_eq!(ledger.split(' ').next().unwrap(), rows.to_string(), "{number}: a row is missing in between");
        last = rows;
        check_indexes(&copy);
        copy.server.stop(StopMode::Immediate).unwrap();
        drop(copy);
        std::fs::remove_dir_all(&target).unwrap();
        std::fs::remove_dir_all(&new_space).unwrap();
    }
    cluster.crash();
}

/// Replay meets new maps of relations of databases whose directories were gone before anything was listed. pg_basebackup's copy of
/// such a moment does not start.
#[test]
fn b06_databases_that_are_dropped_while_a_backup_begins_do_not_end_its_replay() {
    let work = work_directory();
    let mut cluster = Cluster::start(&default_install(), work.path());
    let space = cluster.server_directory("space");
    let (here, there) =
        ("CREATE DATABASE gone_here TEMPLATE template1", "CREATE DATABASE gone_there TEMPLATE template1");
    cluster.run(&[
        &format!("CREATE TABLESPACE elsewhere LOCATION '{}'", space.display()),
        "CREATE TABLE kept TABLESPACE elsewhere AS SELECT generate_series(1, 1000) AS i",
        here,
        &format!("{there} TABLESPACE elsewhere"),
    ]);
    let directory = |name: &str, base: &str| {
        format!("{base}/{}", cluster.value(&format!("SELECT oid FROM pg_database WHERE datname = '{name}'")))
    };
    let spaces = cluster.value("SELECT 'pg_tblspc/' || oid FROM pg_tablespace WHERE spcname = 'elsewhere'");
    let version = std::fs::read_dir(&space).unwrap().next().unwrap().unwrap().file_name();
    let gone =
        [directory("gone_here", "base"), directory("gone_there", &format!("{spaces}/{}", version.to_str().unwrap()))];
    // Their new files are there before the backup begins; their maps are written when it has begun.
    let open = ["gone_here", "gone_there"].map(|name| {
        let settings = ConnectSettings { database: name.to_owned(), ..cluster.server.connect_settings() };
        let mut connection = Connection::connect(&settings).unwrap();
        connection.query("BEGIN").unwrap();
        connection.query("REINDEX INDEX pg_class_oid_index").unwrap();
        connection
    });
    let observer = At::phase("list the files", || {
        for mut connection in open {
            connection.query("COMMIT").unwrap();
        }
        cluster.run(&["DROP DATABASE gone_here WITH (FORCE)", "DROP DATABASE gone_there WITH (FORCE)"]);
    });
    let report = backup(&cluster.backup_request(), &observer);
    assert!(observer.done() && matches!(report, Ok(BackupOutcome::Done(_))));
    drop(observer);
    let (target, new_space) = (work.path().join("restored"), work.path().join("restored-space"));
    let request =
        RestoreRequest { tablespace_map: vec![(space, new_space)], ..RestoreRequest::new(cluster.repo(), &target) };
    restore(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}"));
    let present = || gone.iter().filter(|path| target.join(path).exists()).count();
    assert_eq!(present(), gone.len(), "{gone:?}");
    let copy = cluster.adopt(&target);
    assert_eq!(copy.value("SELECT count(*) FROM kept"), "1000");
    // Replay dropped them again.
    assert_eq!(present(), 0, "{gone:?}");
    cluster.crash();
}

/// Every index of every database fits its table.
fn check_indexes(copy: &Cluster) {
    if !copy.server.install().has_tool("pg_amcheck") {
        copy.run(&["REINDEX DATABASE postgres"]);
        return;
    }
    let arguments = ["--all", "--install-missing", "--heapallindexed", "--no-dependent-toast"];
    let output = copy.server.run_tool("pg_amcheck", &arguments).unwrap();
    let words = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&words));
}
