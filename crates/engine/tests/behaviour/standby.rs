//! Backups of a standby: consistent by themselves while it replays, refused when it is promoted or cannot be copied.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use pagehaul_engine::backup::{BackupRequest, backup};
use pagehaul_engine::error::ErrorKind;
use pagehaul_engine::pipeline::NoObserver;
use pagehaul_engine::restore::{RecoveryTarget, RestoreRequest, restore};
use pagehaul_engine::source::postgres::pg_install::PgInstall;
use pagehaul_engine::source::postgres::scratch_server::{InitOptions, StopMode};
use pagehaul_engine::terms::BackupKind;
use pagehaul_testkit::cluster::{Cluster, QUICK, default_install, some_installs, work_directory};
use pagehaul_testkit::observer::At;

use super::wal_of_a_set::assert_holds_its_wal;

/// Rows that are added one by one, and what changes pages without adding rows.
fn load(primary: &Cluster, stop: &AtomicBool, committed: &AtomicU64) {
    let mut connection = primary.connect();
    let mut number = 0;
    while !stop.load(SeqCst) {
        number += 1;
        let statements = [
            format!("INSERT INTO ledger VALUES ({number}, md5('{number}'))"),
            format!("UPDATE churn SET x = md5(x) WHERE i % 50 = {}", number % 50),
        ];
        for statement in statements {
            connection.query(&statement).unwrap_or_else(|error| panic!("{error:?}"));
        }
        if number % 100 == 0 {
            connection.query("CHECKPOINT").unwrap();
        }
        committed.store(number, SeqCst);
    }
}

fn primary(install: &PgInstall, directory: &std::path::Path) -> Cluster {
    let options = InitOptions { wal_segment_size_mib: Some(1), ..InitOptions::default() };
    let primary = Cluster::start_with(install, directory, &options, QUICK);
    primary.load_typed_tables(3000);
    primary.run(&[
        "CREATE TABLE ledger (n bigint PRIMARY KEY, x text)",
        "CREATE TABLE churn AS SELECT i, md5(i::text) AS x FROM generate_series(1, 5000) AS i",
        "CREATE INDEX ON churn (x)",
    ]);
    primary
}

/// The restored copy holds rows 1 to n of the ledger, n at least `at_least`, and every table and index is sound.
fn check_copy(copy: &Cluster, primary: &Cluster, at_least: u64) {
    let rows: u64 = copy.value("SELECT coalesce(max(n), 0) FROM ledger").parse().unwrap();
    assert!(rows >= at_least, "{rows} rows, {at_least} were replayed before the backup began");
    let digest = "SELECT count(*) || ' ' || coalesce(sum(hashtextextended(n || x, 0)::numeric), 0) FROM ledger";
    assert_eq!(copy.value(digest), primary.value(&format!("{digest} WHERE n <= {rows}")));
    assert_eq!(copy.value("SELECT count(*) FROM ledger"), rows.to_string(), "a row is missing in between");
    let (ours, theirs) = (copy.digests(), primary.digests());
    assert_eq!(ours["typed"], theirs["typed"]);
    assert_eq!(ours["long_text"], theirs["long_text"]);
    assert_eq!(copy.value("SELECT count(*) FROM churn"), "5000");
    if copy.server.install().has_tool("pg_amcheck") {
        let arguments = ["--all", "--install-missing", "--heapallindexed", "--no-dependent-toast"];
        let output = copy.server.run_tool("pg_amcheck", &arguments).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
    }
}

#[test]
fn a_backup_of_a_standby_under_load_restores_to_an_exact_prefix() {
    for install in some_installs() {
        eprintln!("PostgreSQL {}", install.major());
        let work = work_directory();
        let mut primary = primary(&install, work.path());
        let mut standby = primary.standby("standby");
        let (stop, committed) = (AtomicBool::new(false), AtomicU64::new(0));
        let before = std::thread::scope(|scope| {
            let (shared, stop, committed) = (&primary, &stop, &committed);
            scope.spawn(move || load(shared, stop, committed));
            let run = || {
                for _ in 0..3000 {
                    if committed.load(SeqCst) >= 150 {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
                assert!(committed.load(SeqCst) >= 150, "only {} rows in a minute", committed.load(SeqCst));
                standby.catch_up(shared);
                let before: u64 = standby.value("SELECT max(n) FROM ledger").parse().unwrap();
                // Slow enough that replay changes what is read.
                let request = BackupRequest { max_rate_bytes_per_s: Some(16 << 20), ..standby.backup_request() };
                let report = standby.backup(&request);
                assert_eq!(report.bad_page_count, 0, "{:?}", report.bad_pages);
                assert_eq!(report.lost_file_count, 0, "{:?}", report.lost_files);
                assert!(report.stop_lsn >= report.start_lsn);
                before
            };
            let before = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            stop.store(true, SeqCst);
            before.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        assert!(committed.load(SeqCst) > before, "nothing was written during the backup");
        // By the WAL of the set alone, to its end and to the first consistent moment.
        for (name, target) in [("end", RecoveryTarget::SetEnd), ("immediate", RecoveryTarget::Immediate)] {
            let restored = work.path().join(name);
            let request = RestoreRequest { target, ..RestoreRequest::new(standby.repo(), &restored) };
            restore(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}"));
            standby.pg_verifybackup(&restored);
            assert!(!restored.join("standby.signal").exists());
            let mut copy = standby.adopt(&restored);
            copy.wait_until_recovered();
            check_copy(&copy, &primary, before);
            copy.crash();
        }
        standby.crash();
        primary.crash();
    }
}

#[test]
fn f02_an_idle_standby_that_archives_nothing_is_backed_up_whole() {
    let work = work_directory();
    let primary = primary(&default_install(), work.path());
    let mut standby = primary.standby("standby");
    // With this setting a standby archives nothing, and a wait for its archiver would never end.
    standby.server.stop(StopMode::Fast).unwrap();
    let settings = [QUICK, &[("archive_mode", "on"), ("archive_command", "false")][..]].concat();
    standby.server.start(&settings).unwrap();
    standby.catch_up(&primary);
    for round in ["one", "two"] {
        let report = standby.backup(&standby.backup_request());
        let restored = work.path().join(round);
        standby.restore_to(&restored);
        // Of a standby's set a server does not miss what WAL is missing at the end.
        assert_holds_its_wal(&restored, &report);
        check_copy(&standby.adopt(&restored), &primary, 0);
    }
}

#[test]
fn f28_a_standby_that_is_promoted_meanwhile_gives_no_set() {
    let work = work_directory();
    let primary = primary(&default_install(), work.path());
    for (number, phase) in ["list the files", "read, encode", "end the backup"].into_iter().enumerate() {
        let standby = primary.standby(&format!("standby-{number}"));
        standby.catch_up(&primary);
        let observer = At::phase(phase, || assert_eq!(standby.value("SELECT pg_promote()"), "t"));
        let request = BackupRequest { max_rate_bytes_per_s: Some(32 << 20), ..standby.backup_request() };
        let error = backup(&request, &observer).err().unwrap_or_else(|| panic!("{phase}: there is a set"));
        assert!(observer.done());
        assert_eq!(error.kind(), ErrorKind::Source, "{phase}: {error}");
        assert!(error.message().contains("promoted"), "{phase}: {error}");
        let sets = std::fs::read_dir(work.path().join("repo/main/sets")).map_or(0, Iterator::count);
        assert_eq!(sets, 0, "{phase}: something is left of a backup that is of no use");
    }
}

#[test]
fn wal_without_full_pages_is_refused_before_anything_is_read() {
    let work = work_directory();
    let mut primary = primary(&default_install(), work.path());
    primary.server.stop(StopMode::Fast).unwrap();
    primary.server.start(&[QUICK, &[("full_page_writes", "off")]].concat()).unwrap();
    let standby = primary.standby("standby");
    primary.run(&["UPDATE churn SET x = md5(x)", "CHECKPOINT"]);
    standby.catch_up(&primary);
    let error = backup(&standby.backup_request(), &NoObserver).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Source, "{error}");
    assert!(error.message().contains("full_page_writes"), "{error}");
    assert!(error.hint_text().unwrap().contains("switch it on there"), "{error}");
}

#[test]
fn an_incremental_of_a_standby_builds_on_what_the_standby_has_passed() {
    let work = work_directory();
    let primary = primary(&default_install(), work.path());
    let standby = primary.standby("standby");
    standby.catch_up(&primary);
    let incremental = BackupRequest { kind: BackupKind::Incremental, ..standby.backup_request() };
    let full = standby.backup(&standby.backup_request());
    // No checkpoint since: it begins before the full one ends.
    let unmoved = standby.backup(&incremental);
    assert_eq!(unmoved.kind, BackupKind::Full);
    assert!(unmoved.notes.iter().any(|note| note.contains("restart point")), "{:?}", unmoved.notes);

    primary.run(&["UPDATE churn SET x = md5(x) WHERE i % 7 = 0", "INSERT INTO ledger VALUES (1, 'one')", "CHECKPOINT"]);
    standby.catch_up(&primary);
    let report = standby.backup(&incremental);
    assert_eq!((report.kind, report.prior), (BackupKind::Incremental, vec![unmoved.label]));
    assert!(full.stop_lsn < report.start_lsn);
    let restored = work.path().join("restored");
    standby.restore_to(&restored);
    standby.pg_verifybackup(&restored);
    check_copy(&standby.adopt(&restored), &primary, 1);
}

/// Rows that a standby had replayed were missing from incremental backups elsewhere.
#[test]
fn b18_incrementals_of_a_standby_that_lags_hold_every_row_that_it_had_replayed() {
    let work = work_directory();
    let primary = primary(&default_install(), work.path());
    let standby = primary.standby("standby");
    let write = |first: u32| {
        // Pages are written on the primary while the standby stands still, so that their LSNs are old when they come.
        primary.run(&[
            &format!("INSERT INTO ledger SELECT n, md5(n::text) FROM generate_series({first}, {}) AS n", first + 499),
            &format!("UPDATE churn SET x = md5(x) WHERE i % 9 = {}", first % 9),
            "CHECKPOINT",
        ]);
    };
    write(1);
    standby.catch_up(&primary);
    standby.backup(&standby.backup_request());
    let request = BackupRequest { kind: BackupKind::Incremental, ..standby.backup_request() };
    let mut kinds = Vec::new();
    for round in 1..=4u32 {
        standby.run(&["SELECT pg_wal_replay_pause()"]);
        write(1000 * round);
        // In every other round half of it comes through.
        if round % 2 == 0 {
            standby.run(&["SELECT pg_wal_replay_resume()"]);
            standby.catch_up(&primary);
            standby.run(&["CHECKPOINT", "SELECT pg_wal_replay_pause()"]);
            write(1000 * round + 500);
        }
        let replayed: u64 = standby.value("SELECT max(n) FROM ledger").parse().unwrap();
        let written: u64 = primary.value("SELECT max(n) FROM ledger").parse().unwrap();
        assert!(replayed < written, "it lags");
        kinds.push(standby.backup(&request).kind);
        let restored = work.path().join(format!("restored-{round}"));
        standby.restore_to(&restored);
        standby.pg_verifybackup(&restored);
        let copy = standby.adopt(&restored);
        let rows: u64 = copy.value("SELECT max(n) FROM ledger").parse().unwrap();
        assert!(rows >= replayed, "{rows} rows, {replayed} were replayed before the backup began");
        let count = |cluster: &Cluster| cluster.value(&format!("SELECT count(*) FROM ledger WHERE n <= {rows}"));
        assert_eq!(count(&copy), count(&primary), "round {round}: a row is missing in between");
        let sums = "SELECT sum(hashtextextended(i || x, 0)::numeric) FROM churn";
        assert_eq!(copy.value(sums), standby.value(sums), "round {round}");
        standby.run(&["SELECT pg_wal_replay_resume()"]);
        standby.catch_up(&primary);
    }
    assert!(kinds.contains(&BackupKind::Incremental), "{kinds:?}");
}
