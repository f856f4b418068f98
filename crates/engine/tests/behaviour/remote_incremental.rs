//! Incremental backups over the replication protocol: the server sends what has changed, and the set is as any other.

use std::path::Path;

use pagehaul_engine::backup::{BackupReport, BackupRequest, backup};
use pagehaul_engine::error::ErrorKind;
use pagehaul_engine::pipeline::NoObserver;
use pagehaul_engine::restore::{RecoveryTarget, RestoreRequest, restore};
use pagehaul_engine::source::postgres::os_owner::owner_of;
use pagehaul_engine::source::postgres::pg_install::PgInstall;
use pagehaul_engine::source::postgres::scratch_server::StopMode;
use pagehaul_engine::terms::BackupKind;
use pagehaul_engine::verify::{VerifyRequest, verify};
use pagehaul_testkit::cluster::{Cluster, MAKE_TEMPLATE0, installs, work_directory};

use super::incremental::{assert_same_trees, settings, start};
use super::incremental_cases::restored_server;
use super::remote::remote_request;

/// The servers that know what has changed.
fn knowing() -> Vec<PgInstall> {
    let found: Vec<PgInstall> = installs().into_iter().filter(|install| install.major() >= 17).collect();
    if found.is_empty() {
        eprintln!("SKIPPED: no PostgreSQL 17 or later");
    }
    found
}

fn take(cluster: &Cluster, kind: BackupKind) -> BackupReport {
    let report = cluster.backup(&BackupRequest { kind, ..remote_request(cluster) });
    assert_eq!((report.kind, report.bad_page_count), (kind, 0), "{:?} {:?}", report.notes, report.bad_pages);
    report
}

fn restore_set(cluster: &Cluster, report: &BackupReport, target: &Path, map: &[(&Path, &Path)]) {
    let owner = owner_of(cluster.server.data_directory()).filter(|owner| owner == "postgres");
    let request = RestoreRequest {
        label: Some(report.label.clone()),
        tablespace_map: map.iter().map(|(from, to)| (from.to_path_buf(), to.to_path_buf())).collect(),
        owner,
        ..RestoreRequest::new(cluster.repo(), target)
    };
    restore(&request, &NoObserver).unwrap_or_else(|error| panic!("{}: {error}", report.label));
}

/// Takes an incremental set with `take`, and a full one of the same moment; restores both, and compares every byte.
fn assert_equals_full(
    cluster: &Cluster,
    space: Option<&Path>,
    what: &str,
    take_one: impl Fn() -> BackupReport,
) -> BackupReport {
    // What backups' sessions look up sets hint bits: they are there before both.
    for request in [remote_request(cluster), cluster.backup_request()] {
        backup(&BackupRequest { repo: "NUL".into(), ..request }, &NoObserver).unwrap();
    }
    cluster.run(&["CHECKPOINT"]);
    let incremental = take_one();
    // In a repository of its own: it must not become a prior.
    let fresh =
        BackupRequest { repo: cluster.directory.join("fresh").display().to_string(), ..remote_request(cluster) };
    let full = cluster.backup(&fresh);
    let work = tempfile::Builder::new().prefix("both").tempdir_in(&cluster.directory).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(work.path(), open).unwrap();
    let (one, two) = (work.path().join("chain"), work.path().join("full"));
    let places = [work.path().join("chain-space"), work.path().join("full-space")];
    let maps = places.each_ref().map(|to| space.map(|from| (from, to.as_path())));
    restore_set(cluster, &incremental, &one, maps[0].as_slice());
    let owner = owner_of(cluster.server.data_directory()).filter(|owner| owner == "postgres");
    let request = RestoreRequest {
        label: Some(full.label),
        tablespace_map: maps[1].iter().map(|(from, to)| (from.to_path_buf(), to.to_path_buf())).collect(),
        owner,
        ..RestoreRequest::new(&fresh.repo, &two)
    };
    restore(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}"));
    cluster.pg_verifybackup(&one);
    // It names other places.
    for root in [&one, &two] {
        std::fs::rename(root.join("tablespace_map"), root.with_extension("map")).ok();
    }
    assert_same_trees(&one, &two, what);
    std::fs::rename(one.with_extension("map"), one.join("tablespace_map")).ok();
    let label = std::fs::read_to_string(one.join("backup_label")).unwrap();
    assert!(!label.contains("INCREMENTAL"), "{label}");
    let request = VerifyRequest { label: Some(incremental.label.clone()), ..VerifyRequest::new(cluster.repo()) };
    let verified = verify(&request, &NoObserver).unwrap();
    assert!(verified.sound, "{what}: {verified:?}");
    let mut copy = cluster.adopt(&one);
    assert_eq!(copy.digests(), cluster.digests(), "{what}");
    copy.server.stop(StopMode::Immediate).unwrap();
    incremental
}

#[test]
fn a_chain_that_the_server_sends_restores_like_a_full_set_of_the_same_moment() {
    for install in knowing() {
        let major = install.major();
        let work = work_directory();
        let cluster = start(&install, work.path());
        cluster.load_typed_tables(20_000);
        let space = cluster.server_directory("space");
        cluster.run(&[
            &format!("CREATE TABLESPACE elsewhere LOCATION '{}'", space.display()),
            "CREATE TABLE there TABLESPACE elsewhere AS SELECT i, md5(i::text) AS x FROM generate_series(1, 20000) AS i",
            "CREATE TABLE shrinking AS SELECT i, repeat('x', 500) AS x FROM generate_series(1, 20000) AS i",
            // All-visible bits, which are cleared later without a word in WAL about their page.
            "VACUUM",
        ]);
        let full = take(&cluster, BackupKind::Full);
        let rounds: &[&[&str]] = &[
            &[
                "UPDATE typed SET number = number + 1 WHERE id % 97 = 3",
                "DELETE FROM there WHERE i = 17",
                "CREATE TABLE made AS SELECT i, md5(i::text) AS x FROM generate_series(1, 9000) AS i",
                "CREATE INDEX ON made (x)",
                "DELETE FROM shrinking WHERE i > 12000",
                "VACUUM (TRUNCATE) shrinking",
                "INSERT INTO shrinking SELECT i, repeat('y', 500) FROM generate_series(20001, 22000) AS i",
            ],
            &[
                "TRUNCATE long_text",
                "INSERT INTO long_text SELECT i, repeat(md5(i::text), 99) FROM generate_series(1, 300) AS i",
                "UPDATE there SET x = md5(x) WHERE i % 50 = 1",
                "DROP TABLE made",
                "ALTER TABLE scratch SET LOGGED",
                "DELETE FROM shrinking WHERE i > 5000",
                "VACUUM (TRUNCATE) shrinking",
            ],
            &[
                "VACUUM FULL typed",
                "ALTER TABLE there SET TABLESPACE pg_default",
                "CREATE TABLE there_again TABLESPACE elsewhere AS SELECT * FROM there",
                "CREATE DATABASE copied STRATEGY file_copy",
                "DELETE FROM there_again WHERE i % 9 = 0",
            ],
        ];
        for (number, statements) in rounds.iter().enumerate() {
            cluster.run(statements);
            let what = format!("PostgreSQL {major} round {number}");
            let report = assert_equals_full(&cluster, Some(&space), &what, || take(&cluster, BackupKind::Incremental));
            assert_eq!((report.changes_found_by, report.notes.len()), (Some("wal summaries"), 0), "{:?}", report.notes);
            // The last round rewrites a table and copies a database.
            let most = if number == 2 { full.read_bytes } else { full.read_bytes / 2 };
            assert!(report.read_bytes < most, "{} of {}", report.read_bytes, full.read_bytes);
            eprintln!(
                "{what}: {} read, {} changed, {} in all",
                report.read_bytes, report.changed_bytes, report.source_bytes
            );
        }
        // One made here goes on from one that was sent, and the other way round.
        cluster.run(&["UPDATE typed SET number = -number WHERE id % 31 = 3"]);
        let here = assert_equals_full(&cluster, Some(&space), &format!("{major} made here"), || {
            cluster.backup(&BackupRequest { kind: BackupKind::Incremental, ..cluster.backup_request() })
        });
        assert_eq!((here.prior.len(), here.notes.len()), (4, 0), "{:?}", here.notes);
        assert_eq!(here.changes_found_by, Some("wal summaries"));
        cluster.run(&["UPDATE there_again SET x = reverse(x) WHERE i % 31 = 3", "VACUUM there_again"]);
        let sent = assert_equals_full(&cluster, Some(&space), &format!("{major} sent on top"), || {
            take(&cluster, BackupKind::Incremental)
        });
        assert_eq!((&sent.prior[0], sent.notes.len()), (&here.label, 0), "{:?}", sent.notes);
        cluster.assert_no_slot("a remote incremental");
    }
}

#[test]
fn servers_that_do_not_know_what_has_changed_are_refused() {
    for install in installs() {
        let work = work_directory();
        let cluster = Cluster::start(&install, work.path());
        let request = BackupRequest { kind: BackupKind::Incremental, ..remote_request(&cluster) };
        let error = backup(&request, &NoObserver).unwrap_err();
        let (kind, word) = match install.major() {
            ..17 => (ErrorKind::Usage, format!("it is PostgreSQL {}", install.major())),
            _ => (ErrorKind::Source, "summarize_wal is off".to_owned()),
        };
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(&word), "{error}");
        assert!(error.hint_text().is_some_and(|hint| hint.contains("--type")), "{error}");
    }
}

#[test]
fn where_summaries_cannot_be_trusted_all_pages_are_sent_and_compared_here() {
    for install in knowing() {
        let work = work_directory();
        let mut cluster = start(&install, work.path());
        cluster.load_typed_tables(15_000);
        take(&cluster, BackupKind::Full);
        let take_all = |cluster: &Cluster, reason: &str| {
            cluster.run(&["UPDATE typed SET number = number + 1 WHERE id < 500", "CHECKPOINT"]);
            let report = assert_equals_full(cluster, None, reason, || take(cluster, BackupKind::Incremental));
            assert_eq!(report.changes_found_by, Some("page checksums"));
            assert!(report.notes.iter().any(|note| note.contains(reason)), "{:?}", report.notes);
            assert!(report.changed_bytes * 4 < report.source_bytes, "{report:?}");
        };
        cluster.server.stop(StopMode::Fast).unwrap();
        cluster.server.start(&settings(&install)).unwrap();
        take_all(&cluster, "started anew");

        // The server itself misses a summary.
        cluster.run(&["UPDATE typed SET number = -3 WHERE id < 2000", "CHECKPOINT"]);
        cluster.lose_wal_summaries();
        take_all(&cluster, "WAL summaries are required");

        // A role that may log in for replication only.
        cluster.run(&["CREATE ROLE mover LOGIN REPLICATION", "REVOKE CONNECT ON DATABASE postgres FROM public"]);
        let server = cluster.server.connect_settings();
        let connection = Some(format!("host={} port={} user=mover", server.host, server.port));
        let request = BackupRequest { kind: BackupKind::Incremental, connection, ..remote_request(&cluster) };
        let report = cluster.backup(&request);
        assert!(report.notes.iter().any(|note| note.contains("with SQL")), "{:?}", report.notes);
        assert_eq!((report.kind, report.changes_found_by), (BackupKind::Incremental, Some("page checksums")));
        // That set does not say since when the server ran.
        take_all(&cluster, "the prior set does not say");
        let report = take(&cluster, BackupKind::Incremental);
        assert_eq!(report.changes_found_by, Some("wal summaries"));
    }
}

#[test]
fn a_remote_server_that_was_set_back_is_never_compared_with_what_it_lost() {
    for install in knowing() {
        let work = work_directory();
        let cluster = start(&install, work.path());
        cluster.load_typed_tables(15_000);
        // One that knows whose the files are to be.
        let first = cluster.backup(&cluster.backup_request());
        cluster.run(&["UPDATE typed SET number = -1 WHERE id < 3000", "CHECKPOINT"]);
        let lost = take(&cluster, BackupKind::Incremental);
        let copy = restored_server(&cluster, first.label.as_str(), &work.path().join("back"), RecoveryTarget::SetEnd);
        copy.run(&["UPDATE typed SET number = -2 WHERE id > 14000", "CHECKPOINT"]);
        for kind in [BackupKind::Full, BackupKind::Incremental] {
            let refused = backup(&BackupRequest { kind, ..remote_request(&copy) }, &NoObserver).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
            assert!(refused.to_string().contains("set back") && refused.to_string().contains(lost.label.as_str()));
        }
        // Beyond the lost set's end its positions no longer betray it; that it was started since does.
        while copy.value(&format!("SELECT pg_current_wal_flush_lsn() > '{}'", lost.stop_lsn)) == "f" {
            copy.run(&["UPDATE long_text SET body = body || 'y'", "CHECKPOINT"]);
        }
        let report = assert_equals_full(&copy, None, "set back", || take(&copy, BackupKind::Incremental));
        assert_eq!(report.changes_found_by, Some("page checksums"), "{:?}", report.notes);
    }
}

#[test]
fn a_standby_sends_what_has_changed_too() {
    let Some(install) = knowing().pop() else { return };
    let work = work_directory();
    let primary = start(&install, work.path());
    primary.load_typed_tables(15_000);
    primary.run(&[MAKE_TEMPLATE0, "ALTER SYSTEM SET summarize_wal = on"]);
    let standby = primary.standby("standby");
    let step = |statement: &str| {
        primary.run(&[statement, "CHECKPOINT"]);
        standby.catch_up(&primary);
        standby.run(&["CHECKPOINT"]);
    };
    step("UPDATE typed SET number = 0 WHERE id < 100");
    let full = take(&standby, BackupKind::Full);
    // Nothing has happened since: the standby would begin where it began before.
    let again = standby.backup(&BackupRequest { kind: BackupKind::Incremental, ..remote_request(&standby) });
    assert_eq!(again.kind, BackupKind::Full, "{:?}", again.notes);
    assert!(again.notes.iter().any(|note| note.contains("restart point")), "{:?}", again.notes);
    step("UPDATE typed SET number = 1 WHERE id < 100");
    step("UPDATE typed SET number = 2 WHERE id < 100");
    let report = take(&standby, BackupKind::Incremental);
    assert_eq!(report.changes_found_by, Some("wal summaries"), "{:?}", report.notes);
    assert!(report.read_bytes * 2 < full.read_bytes);
    let target = work.path().join("restored");
    restore_set(&standby, &report, &target, &[]);
    standby.pg_verifybackup(&target);
    let copy = standby.adopt(&target);
    copy.wait_until_recovered();
    assert_eq!(copy.digests(), primary.digests());
}

#[test]
fn without_a_set_to_build_on_a_full_one_is_made_and_said_so() {
    let Some(install) = knowing().pop() else { return };
    let work = work_directory();
    let cluster = start(&install, work.path());
    let request = BackupRequest { kind: BackupKind::Incremental, ..remote_request(&cluster) };
    let error = backup(&BackupRequest { no_full: true, ..request.clone() }, &NoObserver).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Repository, "{error}");
    let report = cluster.backup(&request);
    assert_eq!(report.kind, BackupKind::Full);
    assert!(report.notes[0].contains("FULL backup is made instead"), "{:?}", report.notes);
    cluster.run(&["CREATE TABLE later AS SELECT 1 AS i"]);
    let differential = BackupRequest { kind: BackupKind::Differential, ..request };
    let report = cluster.backup(&differential);
    assert_eq!((report.kind, report.changes_found_by), (BackupKind::Differential, Some("wal summaries")));
}
