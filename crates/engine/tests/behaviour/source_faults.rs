//! Trouble with the source: every one fails the backup with its object named, and leaves nothing behind.

use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use pagehaul_engine::backup::{BackupOutcome, BackupReport, BackupRequest, backup};
use pagehaul_engine::catalog::{Repository, SetState, identity, list_sets};
use pagehaul_engine::error::{Error, ErrorKind};
use pagehaul_engine::pipeline::{NoObserver, Observer};
use pagehaul_engine::restore::{RestoreRequest, restore};
use pagehaul_engine::source::postgres::scratch_server::StopMode;
use pagehaul_engine::terms::BackupKind;
use pagehaul_engine::verify::{VerifyRequest, verify};
use pagehaul_engine::wal::cluster_of_data_directory;
use pagehaul_testkit::cluster::{Cluster, QUICK, default_install, installs, some_installs, work_directory};
use pagehaul_testkit::observer::{At, CRAWL_BYTES_PER_S};

const READING: &str = "read, encode and write";

fn try_backup(request: &BackupRequest, observer: &dyn Observer) -> Result<BackupReport, Error> {
    match backup(request, observer)? {
        BackupOutcome::Done(report) => Ok(*report),
        BackupOutcome::Planned(plan) => panic!("only planned: {plan:?}"),
    }
}

fn refused(request: &BackupRequest, observer: &dyn Observer) -> Error {
    match try_backup(request, observer) {
        Err(error) => error,
        Ok(report) => panic!("it was called {}", report.state),
    }
}

/// The repository holds one complete set, nothing unfinished, and the set is sound.
fn expect_only_the_earlier_set(cluster: &Cluster) {
    let repository = Repository::open(&cluster.repo()).unwrap_or_else(|error| panic!("{error}"));
    let sets = list_sets(&repository, &"main".parse().unwrap()).unwrap_or_else(|error| panic!("{error}"));
    assert!(matches!(&sets[..], [only] if matches!(only.state, SetState::Complete(_))), "{sets:?}");
    let report = verify(&VerifyRequest::new(cluster.repo()), &NoObserver).unwrap_or_else(|error| panic!("{error}"));
    assert!(report.sound, "{report:?}");
}

fn path_of(cluster: &Cluster, table: &str) -> std::path::PathBuf {
    cluster.server.data_directory().join(cluster.value(&format!("SELECT pg_relation_filepath('{table}')")))
}

#[test]
fn only_a_dropped_file_counts_as_vanished() {
    let work = work_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    cluster.run(&["CREATE TABLE victim AS SELECT generate_series(1, 1000) AS i", "CHECKPOINT"]);
    let request = cluster.backup_request();
    cluster.backup(&request);
    let victim = path_of(&cluster, "victim");
    let aside = work.path().join("aside");

    let loops = At::phase(READING, || {
        std::fs::rename(&victim, &aside).unwrap();
        std::os::unix::fs::symlink(&victim, &victim).unwrap();
    });
    let error = refused(&request, &loops);
    assert!(loops.done());
    let name = victim.file_name().unwrap().to_str().unwrap();
    assert_eq!(error.kind(), ErrorKind::Source, "{error}");
    assert!(error.message().contains(name), "{error}");
    std::fs::remove_file(&victim).unwrap();
    expect_only_the_earlier_set(&cluster);

    let directory = At::phase(READING, || std::fs::create_dir(&victim).unwrap());
    std::fs::copy(&aside, &victim).unwrap();
    std::fs::remove_file(&victim).unwrap();
    let report = try_backup(&request, &directory).unwrap_or_else(|error| panic!("a directory made meanwhile: {error}"));
    assert_eq!(report.state, "complete");
    std::fs::remove_dir(&victim).unwrap();

    std::fs::rename(&aside, &victim).unwrap();
    let becomes_directory = At::phase(READING, || {
        std::fs::rename(&victim, &aside).unwrap();
        std::fs::create_dir(&victim).unwrap();
    });
    let error = refused(&request, &becomes_directory);
    assert_eq!(error.kind(), ErrorKind::Source, "{error}");
    assert!(error.message().contains(name), "{error}");
    std::fs::remove_dir(&victim).unwrap();
    std::fs::rename(&aside, &victim).unwrap();

    let dropped = At::phase(READING, || {
        cluster.run(&["DROP TABLE victim", "CHECKPOINT"]);
        assert!(!victim.exists());
    });
    let report = try_backup(&request, &dropped).unwrap_or_else(|error| panic!("a dropped table: {error}"));
    assert_eq!((report.vanished_file_count, report.bad_page_count), (1, 0));
}

#[test]
fn a_file_that_the_server_never_drops_may_not_vanish() {
    let work = work_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    let request = cluster.backup_request();
    cluster.backup(&request);
    let (path, aside) = (cluster.server.data_directory().join("global/pg_filenode.map"), work.path().join("aside"));
    let vanishes = At::phase(READING, || std::fs::rename(&path, &aside).unwrap());
    let error = refused(&request, &vanishes);
    assert_eq!(error.kind(), ErrorKind::Source, "{error}");
    assert!(error.message().contains("global/pg_filenode.map"), "{error}");
    std::fs::rename(&aside, &path).unwrap();
    expect_only_the_earlier_set(&cluster);
}

#[test]
fn what_the_server_may_remove_while_a_backup_runs_fails_no_backup() {
    let work = work_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    cluster.run(&["CREATE DATABASE short_lived"]);
    let old_transactions = cluster.server.data_directory().join("pg_xact/0FFF");
    std::fs::write(&old_transactions, [0u8; 8192]).unwrap();
    let meanwhile = At::phase(READING, || {
        cluster.run(&["DROP DATABASE short_lived", "CHECKPOINT"]);
        // As VACUUM does when no row needs them any more.
        std::fs::remove_file(&old_transactions).unwrap();
    });
    let report = try_backup(&cluster.backup_request(), &meanwhile).unwrap_or_else(|error| panic!("{error}"));
    assert!(report.vanished_file_count > 100, "the files of a whole database: {}", report.vanished_file_count);
    let target = work.path().join("restored");
    cluster.restore_to(&target);
    let copy = cluster.adopt(&target);
    assert_eq!(copy.value("SELECT count(*) FROM pg_database WHERE datname = 'short_lived'"), "0");
}

/// What happens to the server, and whether it comes up again before the backup looks.
const STOPS: &[(&str, StopMode, bool)] = &[
    ("list the files", StopMode::Immediate, false),
    ("list the files", StopMode::Fast, true),
    (READING, StopMode::Immediate, false),
    (READING, StopMode::Fast, false),
    (READING, StopMode::Fast, true),
    ("end the backup", StopMode::Immediate, false),
    ("end the backup", StopMode::Immediate, true),
];

#[test]
fn f20_a_server_that_stops_or_restarts_fails_the_backup_at_once() {
    let work = work_directory();
    let mut cluster = Cluster::start(&default_install(), work.path());
    cluster.load_typed_tables(5_000);
    cluster.backup(&cluster.backup_request());
    // Reading takes longer than the server needs to restart.
    let request = BackupRequest { max_rate_bytes_per_s: Some(4 << 20), ..cluster.backup_request() };
    for (phase, mode, restarts) in STOPS {
        let why = format!("{mode:?} stop at {phase:?}, restart: {restarts}");
        let stopped_at = Mutex::new(None);
        let server = Mutex::new(&mut cluster.server);
        let stops = At::phase(phase, || {
            let mut server = server.lock().unwrap();
            server.stop(*mode).unwrap();
            if *restarts {
                server.start(QUICK).unwrap();
            }
            *stopped_at.lock().unwrap() = Some(Instant::now());
        });
        let error = refused(&request, &stops);
        drop(stops);
        let waited = stopped_at.lock().unwrap().expect("the server was stopped").elapsed();
        assert_eq!(error.kind(), ErrorKind::Source, "{why}: {error}");
        assert!(waited < Duration::from_secs(4), "{why}: noticed after {waited:?}");
        expect_only_the_earlier_set(&cluster);
        if !restarts {
            cluster.server.start(QUICK).unwrap_or_else(|error| panic!("{why}: {error}"));
        }
        assert_eq!(cluster.value("SELECT count(*) FROM pg_replication_slots"), "0", "{why}");
    }
    // The next one needs no hands.
    cluster.backup(&cluster.backup_request());
}

/// Ends the session that is in backup mode, not the slot's.
fn kill_session(cluster: &Cluster) {
    cluster.run(&["SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() \
                   AND backend_type = 'client backend' \
                   AND pid NOT IN (SELECT active_pid FROM pg_replication_slots WHERE active)"]);
}

#[test]
fn f45_a_lost_session_fails_the_backup_and_leaves_no_slot() {
    for install in some_installs() {
        let work = work_directory();
        let cluster = Cluster::start(&install, work.path());
        let request = BackupRequest { max_rate_bytes_per_s: Some(CRAWL_BYTES_PER_S), ..cluster.backup_request() };
        let kill = At::progress(2, || kill_session(&cluster));
        let error = refused(&request, &kill);
        assert!(kill.done());
        assert_eq!(error.kind(), ErrorKind::Source, "{error}");
        cluster.assert_no_slot("a lost session");
        assert_eq!(std::fs::read_dir(Path::new(&cluster.repo()).join("main/sets")).unwrap().count(), 0);
    }
}

/// The server ends the backup while its catalogs are asked: whichever of the two fails, there is no set.
#[test]
fn f45_what_fails_while_the_server_ends_the_backup_leaves_no_set_and_no_slot() {
    let work = work_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    cluster.backup(&cluster.backup_request());
    const END: &str = "end the backup";
    let (signal, kill) = (At::interrupt_at(END), At::phase(END, || kill_session(&cluster)));
    for (observer, kind) in [(&signal, ErrorKind::Interrupted), (&kill, ErrorKind::Source)] {
        let error = refused(&cluster.backup_request(), observer);
        assert_eq!(error.kind(), kind, "{error}");
        cluster.assert_no_slot(END);
        expect_only_the_earlier_set(&cluster);
    }
    assert!(kill.done());
    cluster.backup(&cluster.backup_request());
}

#[test]
fn a_directory_that_is_not_the_servers_is_refused() {
    let work = work_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    let other_directory = work.path().join("other");
    std::fs::create_dir(&other_directory).unwrap();
    let mut other = Cluster::start(&default_install(), &other_directory);
    let settings = cluster.server.connect_settings();
    let connection = Some(format!("host={} port={} user={}", settings.host, settings.port, settings.user));
    let with = |pgdata: &Path| BackupRequest {
        pgdata: Some(pgdata.to_owned()),
        connection: connection.clone(),
        ..cluster.backup_request()
    };
    let error = refused(&with(other.server.data_directory()), &NoObserver);
    assert_eq!(error.kind(), ErrorKind::Source, "{error}");
    assert!(error.message().contains("not the one of the server that answers"), "{error}");

    let copy = work.path().join("copy");
    pagehaul_testkit::damage::copy_tree(cluster.server.data_directory(), &copy);
    let error = refused(&with(&copy), &NoObserver);
    assert!(error.message().contains("the server runs on"), "a copy has the same identity: {error}");

    let error = refused(&with(work.path()), &NoObserver);
    assert_eq!(error.kind(), ErrorKind::Source, "{error}");
    assert!(error.message().contains("no PG_VERSION"), "{error}");

    other.server.stop(StopMode::Fast).unwrap();
    let stopped = other.backup_request();
    let error = refused(&stopped, &NoObserver);
    assert_eq!(error.kind(), ErrorKind::Source, "{error}");
    assert!(error.message().contains("postmaster.pid"), "{error}");
    cluster.assert_no_slot("at the end");
}

/// A new initdb, or a new major version, in the place of a cluster.
#[test]
fn f47_another_cluster_of_the_same_name_is_refused_until_it_is_adopted_and_the_old_sets_stay() {
    let work = work_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    let old = cluster.backup(&cluster.backup_request()).label;
    let other_directory = work.path().join("other");
    std::fs::create_dir(&other_directory).unwrap();
    let newest = installs().pop().unwrap();
    let other = Cluster::start(&newest, &other_directory);
    let request = BackupRequest { repo: cluster.repo(), kind: BackupKind::Incremental, ..other.backup_request() };
    let error = refused(&request, &NoObserver);
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(error.hint_text().unwrap().contains("pagehaul wal adopt"), "{error}");
    expect_only_the_earlier_set(&cluster);

    let repository = Repository::open(&cluster.repo()).unwrap();
    let facts = cluster_of_data_directory(other.server.data_directory()).unwrap();
    identity::adopt(&repository, &request.source, &facts).unwrap_or_else(|error| panic!("{error}"));
    let report = try_backup(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(report.kind, BackupKind::Full, "it builds on nothing of the old cluster");
    assert!(report.notes.iter().any(|note| note.contains("another cluster")), "{:?}", report.notes);
    let error = refused(&cluster.backup_request(), &NoObserver);
    assert_eq!(error.kind(), ErrorKind::Conflict, "the old one is the other one now: {error}");
    for (label, source) in [(&old, &cluster), (&report.label, &other)] {
        let target = work.path().join(label.as_str());
        let request = RestoreRequest { label: Some(label.clone()), ..RestoreRequest::new(cluster.repo(), &target) };
        restore(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}"));
        source.pg_verifybackup(&target);
        let version = std::fs::read_to_string(target.join("PG_VERSION")).unwrap();
        assert_eq!(version.trim(), source.server.install().major().to_string());
    }
}

#[test]
fn a_role_without_rights_is_told_the_exact_grants_and_they_suffice() {
    let work = work_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    cluster.run(&["CREATE ROLE \"back up\" LOGIN"]);
    let request = BackupRequest { connection: Some("user='back up'".into()), ..cluster.backup_request() };
    let error = refused(&request, &NoObserver);
    assert_eq!(error.kind(), ErrorKind::Source, "{error}");
    let hint = error.hint_text().expect("a hint");
    let grants: Vec<&str> = hint.split([';', '\n']).filter_map(|line| Some(&line[line.find("GRANT ")?..])).collect();
    assert!(grants.len() >= 2, "{hint}");
    cluster.run(&grants);
    let noted = At::interrupt_after(u64::MAX);
    let report = try_backup(&request, &noted).unwrap_or_else(|error| panic!("after {grants:?}: {error}"));
    assert_eq!(report.state, "complete");
    assert!(noted.notes().iter().any(|note| note.contains("not held by a slot")), "{:?}", noted.notes());
}

#[test]
fn a_stripe_directory_that_cannot_be_used_leaves_no_begun_set() {
    let work = work_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    cluster.backup(&cluster.backup_request());
    let file = work.path().join("a-file");
    std::fs::write(&file, b"").unwrap();
    for place in ["none://bucket".to_owned(), file.display().to_string()] {
        let request = BackupRequest { stripe_to: vec![place.clone()], ..cluster.backup_request() };
        refused(&request, &NoObserver);
        expect_only_the_earlier_set(&cluster);
    }
}
