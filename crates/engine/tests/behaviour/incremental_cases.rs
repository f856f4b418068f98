//! What may happen to files between two backups, case by case: with WAL summaries and without.

use pagehaul_engine::backup::{BackupRequest, backup};
use pagehaul_engine::error::ErrorKind;
use pagehaul_engine::pipeline::NoObserver;
use pagehaul_engine::restore::{ArchiveMode, RecoveryTarget, RestoreRequest, TargetAction, restore};
use pagehaul_engine::source::postgres::pg_install::PgInstall;
use pagehaul_engine::source::postgres::scratch_server::{InitOptions, ScratchServer, StopMode};
use pagehaul_engine::terms::BackupKind;
use pagehaul_testkit::cluster::{Cluster, QUICK, default_install, installs, work_directory};
use pagehaul_testkit::damage::files_below;

use super::incremental::{assert_chain_equals_full, assert_same_trees, restore_set, settings, start, take};

/// A server that finds changes by checksums, and one that has WAL summaries.
pub(crate) fn both() -> Vec<PgInstall> {
    let newest = installs().pop().filter(|install| install.major() >= 17);
    std::iter::once(default_install()).chain(newest).collect()
}

/// Gives every file of the cluster one time, as a clock that was set back or a coarse one may. What is written later has
/// another one, and a file that nobody writes any more keeps it over all the backups.
fn stop_clock_of_files(cluster: &Cluster) {
    cluster.run(&["CHECKPOINT"]);
    let then = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_600_000_000);
    // WAL and its summaries keep their times: the server removes summaries that are days old.
    let wal = cluster.server.data_directory().join("pg_wal");
    for file in files_below(cluster.server.data_directory()).into_iter().filter(|file| !file.starts_with(&wal)) {
        // The server removes files at any time.
        if let Ok(file) = std::fs::File::open(&file) {
            file.set_modified(then).unwrap();
        }
    }
}

#[test]
fn f14_what_changed_is_found_while_file_times_stand_still() {
    // Cases stand together where they touch different files.
    let cases: &[(&str, &[&str])] = &[
        (
            "rewritten; logged now; a database by files; settings",
            &[
                "VACUUM FULL typed",
                "CLUSTER long_text USING long_text_key",
                "ALTER TABLE scratch SET LOGGED",
                "CREATE DATABASE copied TEMPLATE postgres",
                "ALTER SYSTEM SET work_mem = '5MB'",
            ],
        ),
        (
            "cut and grown again; a database dropped; settings of the same length",
            &[
                "DELETE FROM typed WHERE id > 100",
                "VACUUM typed",
                "INSERT INTO typed SELECT id + 1000, text_value, number, at, document, bytes, flag FROM typed",
                "DROP DATABASE copied",
                "ALTER SYSTEM SET work_mem = '6MB'",
            ],
        ),
        (
            "emptied and filled; dropped and made",
            &[
                "TRUNCATE typed",
                "INSERT INTO typed (id, text_value) SELECT i, md5(i::text) FROM generate_series(1, 9000) AS i",
                "DROP TABLE empty_table",
                "CREATE TABLE empty_table AS SELECT i FROM generate_series(1, 5000) AS i",
                "DROP SEQUENCE counter",
            ],
        ),
        (
            "free space and visibility",
            &[
                "VACUUM typed",
                "DELETE FROM typed WHERE id = 4500",
                "DELETE FROM long_text WHERE id % 2 = 0",
                "VACUUM long_text",
            ],
        ),
        ("nothing", &[]),
    ];
    for install in both() {
        let work = work_directory();
        let cluster = start(&install, work.path());
        cluster.load_typed_tables(15_000);
        cluster.run(&["CREATE INDEX long_text_key ON long_text (id)"]);
        stop_clock_of_files(&cluster);
        take(&cluster, BackupKind::Full);
        for (name, statements) in cases {
            for statement in *statements {
                let by_files = install.major() >= 15 && statement.starts_with("CREATE DATABASE");
                let statement =
                    if by_files { format!("{statement} STRATEGY file_copy") } else { (*statement).to_owned() };
                cluster.run(&[&statement]);
            }
            stop_clock_of_files(&cluster);
            let report = assert_chain_equals_full(&cluster, work.path(), &format!("{} {name}", install.major()));
            assert_eq!(report.notes, Vec::<String>::new(), "{name}");
        }
    }
}

/// Fills tables as a server may that writes as little WAL as it can: new files and emptied ones go by without a record.
fn write_without_wal(cluster: &mut Cluster, settings: &[(&str, &str)]) {
    let minimal: &[(&str, &str)] = &[("wal_level", "minimal"), ("max_wal_senders", "0"), ("wal_skip_threshold", "0")];
    cluster.server.stop(StopMode::Fast).unwrap();
    cluster.server.start(&[QUICK, minimal].concat()).unwrap();
    let mut connection = cluster.connect();
    for statement in [
        "BEGIN",
        "CREATE TABLE skipped AS SELECT i, md5(i::text) AS x FROM generate_series(1, 20000) AS i",
        "CREATE INDEX ON skipped (x)",
        "TRUNCATE long_text",
        "INSERT INTO long_text SELECT i, repeat(md5(i::text), 50) FROM generate_series(1, 5000) AS i",
        "COMMIT",
        "VACUUM FULL typed",
    ] {
        connection.query(statement).unwrap_or_else(|error| panic!("{statement}: {error:?}"));
    }
    drop(connection);
    cluster.server.stop(StopMode::Fast).unwrap();
    cluster.server.start(settings).unwrap();
}

#[test]
fn f14_what_no_wal_tells_of_is_found() {
    for install in both() {
        let work = work_directory();
        let options = InitOptions { checksums: false, ..InitOptions::default() };
        let mut cluster = Cluster::start_with(&install, work.path(), &options, &settings(&install));
        cluster.load_typed_tables(15_000);
        take(&cluster, BackupKind::Full);
        // Reading sets hint bits, which no WAL tells of on this server.
        cluster.run(&["SELECT count(*) FROM typed", "SELECT count(*) FROM long_text"]);
        // With summaries an old page without the hints is as good, so trees differ; without, every byte is compared.
        if install.major() < 17 {
            assert_chain_equals_full(&cluster, work.path(), "hint bits");
        }
        let before = take(&cluster, BackupKind::Incremental);
        cluster.server.stop(StopMode::Fast).unwrap();
        let data = cluster.server.data_directory().display().to_string();
        if !cluster.server.install().has_tool("pg_checksums") {
            eprintln!("SKIPPED: pg_checksums is not there");
            continue;
        }
        let output = cluster.server.run_tool("pg_checksums", &["--enable", "-D", &data]).unwrap();
        assert!(output.status.success(), "{output:?}");
        cluster.server.start(&settings(&install)).unwrap();
        backup(&BackupRequest { repo: "NUL".into(), ..cluster.backup_request() }, &NoObserver).unwrap();
        let after = take(&cluster, BackupKind::Incremental);
        assert!(after.changed_bytes > before.changed_bytes * 2, "{after:?}");
        assert_eq!(after.changes_found_by, Some("page checksums"));
        write_without_wal(&mut cluster, &settings(&install));
        assert_chain_equals_full(&cluster, work.path(), "checksums switched on, and WAL left out");
    }
}

#[test]
fn tablespaces_come_and_go_and_databases_move_between_them() {
    for install in both() {
        let work = work_directory();
        let cluster = start(&install, work.path());
        cluster.load_typed_tables(3_000);
        let space = cluster.server_directory("space");
        cluster
            .run(&[&format!("CREATE TABLESPACE elsewhere LOCATION '{}'", space.display()), "CREATE DATABASE moving"]);
        take(&cluster, BackupKind::Full);
        let rounds: &[&[&str]] = &[
            &["ALTER TABLE typed SET TABLESPACE elsewhere", "ALTER DATABASE moving SET TABLESPACE elsewhere"],
            &["UPDATE typed SET number = number + 1 WHERE id % 3 = 0"],
            &["ALTER TABLE typed SET TABLESPACE pg_default", "ALTER DATABASE moving SET TABLESPACE pg_default"],
            &["DROP TABLESPACE elsewhere"],
        ];
        for (number, statements) in rounds.iter().enumerate() {
            cluster.run(statements);
            backup(&BackupRequest { repo: "NUL".into(), ..cluster.backup_request() }, &NoObserver).unwrap();
            let incremental = take(&cluster, BackupKind::Incremental);
            let full = take(&cluster, BackupKind::Full);
            let (one, two) = (work.path().join(format!("one{number}")), work.path().join(format!("two{number}")));
            let places = [work.path().join(format!("a{number}")), work.path().join(format!("b{number}"))];
            let maps = places.each_ref().map(|to| [(space.as_path(), to.as_path())]);
            let moved = usize::from(number < 3);
            restore_set(&cluster, incremental.label.as_str(), &one, &maps[0][..moved]);
            restore_set(&cluster, full.label.as_str(), &two, &maps[1][..moved]);
            for root in [&one, &two] {
                std::fs::remove_file(root.join("tablespace_map")).ok();
            }
            assert_same_trees(&one, &two, &format!("{} round {number}", install.major()));
        }
    }
}

/// A copy of a set that a server runs on, in place of the first server.
pub(crate) fn restored_server(
    cluster: &Cluster,
    label: &str,
    target: &std::path::Path,
    recovery: RecoveryTarget,
) -> Cluster {
    let request = RestoreRequest {
        label: Some(label.parse().unwrap()),
        target: recovery,
        target_action: TargetAction::Promote,
        archive_mode: ArchiveMode::Preserve,
        ..RestoreRequest::new(cluster.repo(), target)
    };
    restore(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}"));
    let mut server = ScratchServer::adopt(cluster.server.install(), target).unwrap();
    server.start(&settings(cluster.server.install())).unwrap();
    let copy = Cluster { server, directory: cluster.directory.clone() };
    copy.wait_until_recovered();
    copy
}

#[test]
fn f14_a_server_that_was_set_back_is_never_compared_with_what_it_lost() {
    for install in both() {
        let work = work_directory();
        let cluster = start(&install, work.path());
        cluster.load_typed_tables(15_000);
        let first = take(&cluster, BackupKind::Full);
        // What only the lost history has: rows that the new one leaves alone.
        cluster.run(&["UPDATE typed SET number = -1 WHERE id < 3000", "CHECKPOINT"]);
        let lost = take(&cluster, BackupKind::Incremental);
        let copy = restored_server(&cluster, first.label.as_str(), &work.path().join("back"), RecoveryTarget::SetEnd);
        copy.run(&["UPDATE typed SET number = -2 WHERE id > 14000", "CHECKPOINT"]);
        // Beside a set of the lost history that ends later it would not be the newest one.
        let refused = backup(&copy.backup_request(), &NoObserver).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
        assert!(refused.to_string().contains("set back") && refused.to_string().contains(lost.label.as_str()));
        // Beyond the lost set's end its positions no longer betray it.
        while copy.value(&format!("SELECT pg_current_wal_insert_lsn() > '{}'", lost.stop_lsn)) == "f" {
            copy.run(&["UPDATE long_text SET body = body || 'y'", "CHECKPOINT"]);
        }
        let report = assert_chain_equals_full(&copy, work.path(), &format!("{}", install.major()));
        eprintln!("{}: {:?} on {:?}", install.major(), report.notes, report.prior);
    }
}

#[test]
fn a_chain_goes_on_over_a_promotion() {
    for install in both() {
        let work = work_directory();
        let cluster = start(&install, work.path());
        cluster.load_typed_tables(15_000);
        let first = take(&cluster, BackupKind::Full);
        let copy = restored_server(&cluster, first.label.as_str(), &work.path().join("new"), RecoveryTarget::Immediate);
        copy.run(&["UPDATE typed SET number = -2 WHERE id > 14000"]);
        // Sets of the timeline that was left are none of its past.
        cluster.run(&["UPDATE typed SET number = -1 WHERE id < 3000"]);
        take(&cluster, BackupKind::Incremental);
        let report = assert_chain_equals_full(&copy, work.path(), &format!("{}", install.major()));
        assert_eq!((report.timeline.0, &report.prior[..]), (2, &[first.label][..]), "{:?}", report.notes);
        eprintln!("{}: {:?} {:?}", install.major(), report.changes_found_by, report.notes);
    }
}

#[test]
fn summaries_that_have_a_gap_are_not_believed() {
    let Some(install) = installs().pop().filter(|install| install.major() >= 17) else {
        eprintln!("SKIPPED: no PostgreSQL 17 or later");
        return;
    };
    let work = work_directory();
    let mut cluster = start(&install, work.path());
    cluster.load_typed_tables(15_000);
    take(&cluster, BackupKind::Full);
    cluster.server.stop(StopMode::Fast).unwrap();
    cluster.server.start(QUICK).unwrap();
    cluster.run(&[
        "UPDATE typed SET number = -1 WHERE id < 3000",
        "CHECKPOINT",
        "SELECT pg_switch_wal()",
        "CHECKPOINT",
    ]);
    let report = take(&cluster, BackupKind::Incremental);
    assert_eq!((report.changes_found_by, report.notes.len()), (Some("page checksums"), 0), "summaries are off");
    cluster.server.stop(StopMode::Fast).unwrap();
    cluster.server.start(&settings(&install)).unwrap();
    let report = take(&cluster, BackupKind::Incremental);
    eprintln!("{:?} {:?}", report.changes_found_by, report.notes);
    // A summary is lost.
    cluster.run(&["UPDATE typed SET number = -3 WHERE id < 2000", "CHECKPOINT"]);
    cluster.lose_wal_summaries();
    let report = assert_chain_equals_full(&cluster, work.path(), "lost summaries");
    assert_eq!(report.changes_found_by, Some("page checksums"));
    assert!(report.notes[0].contains("no WAL summary"), "{:?}", report.notes);
}
