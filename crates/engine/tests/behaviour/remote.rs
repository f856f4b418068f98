//! Backups over the replication protocol: ordinary sets of servers whose files nobody here can read.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use pagehaul_engine::backup::{BackupRequest, backup};
use pagehaul_engine::catalog::Repository;
use pagehaul_engine::error::ErrorKind;
use pagehaul_engine::pipeline::NoObserver;
use pagehaul_engine::restore::{RestoreRequest, restore};
use pagehaul_engine::source::postgres::os_owner::owner_of;
use pagehaul_engine::source::postgres::scratch_server::{InitOptions, StopMode};
use pagehaul_engine::terms::BackupKind;
use pagehaul_testkit::cluster::{Cluster, QUICK, default_install, installs, work_directory};
use pagehaul_testkit::observer::{At, CRAWL_BYTES_PER_S};

pub(crate) fn remote_request(cluster: &Cluster) -> BackupRequest {
    let server = cluster.server.connect_settings();
    BackupRequest {
        pgdata: None,
        connection: Some(format!("host={} port={} user={}", server.host, server.port, server.user)),
        remote: true,
        ..cluster.backup_request()
    }
}

/// Restores; the set does not know whose the files are to be, so root must say it.
fn restore_remote(cluster: &Cluster, request: RestoreRequest) -> Cluster {
    let owner = owner_of(cluster.server.data_directory()).filter(|owner| owner == "postgres");
    let request = RestoreRequest { owner, ..request };
    restore(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}"));
    cluster.pg_verifybackup(&request.target_dir);
    cluster.adopt(&request.target_dir)
}

#[test]
fn every_version_sends_a_set_that_restores_under_load() {
    for install in installs() {
        eprintln!("PostgreSQL {}", install.major());
        let work = work_directory();
        let options = InitOptions { wal_segment_size_mib: Some(1), ..InitOptions::default() };
        let mut cluster = Cluster::start_with(&install, work.path(), &options, QUICK);
        let space = cluster.server_directory("space");
        cluster.load_typed_tables(20_000);
        cluster.run(&[
            &format!("CREATE TABLESPACE elsewhere LOCATION '{}'", space.display()),
            "CREATE TABLE there TABLESPACE elsewhere AS SELECT i, md5(i::text) AS x FROM generate_series(1, 20000) AS i",
            "CREATE TABLE ledger (n bigint PRIMARY KEY, x text)",
        ]);
        let stop = AtomicBool::new(false);
        let report = std::thread::scope(|scope| {
            let (shared, stop) = (&cluster, &stop);
            scope.spawn(move || {
                let mut connection = shared.connect();
                let mut number = 0;
                while !stop.load(SeqCst) {
                    number += 1;
                    connection.query(&format!("INSERT INTO ledger VALUES ({number}, md5('{number}'))")).unwrap();
                    connection.query(&format!("UPDATE there SET x = md5(x) WHERE i % 100 = {}", number % 100)).unwrap();
                }
            });
            let request = BackupRequest {
                max_rate_bytes_per_s: Some(20 << 20),
                stripes: Some(2),
                compression: "page:1".parse().unwrap(),
                ..remote_request(shared)
            };
            let run = || shared.backup(&request);
            let report = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            stop.store(true, SeqCst);
            report.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        assert_eq!(report.bad_page_count, 0, "{:?}", report.bad_pages);
        assert!(report.wal_segment_count > 0 && report.file_count > 600);
        let new_space = work.path().join("restored-space");
        let copy = restore_remote(
            &cluster,
            RestoreRequest {
                tablespace_map: vec![(space.clone(), new_space)],
                ..RestoreRequest::new(cluster.repo(), work.path().join("restored"))
            },
        );
        let rows = copy.value("SELECT coalesce(max(n), 0) FROM ledger");
        assert_eq!(copy.value("SELECT count(*) FROM ledger"), rows);
        assert_eq!(copy.value("SELECT count(*) FROM there"), "20000");
        let (ours, theirs) = (copy.digests(), cluster.digests());
        assert_eq!((&ours["typed"], &ours["long_text"]), (&theirs["typed"], &theirs["long_text"]));
        drop(copy);
        // Nothing of ours stays on the server.
        cluster.assert_no_slot("a remote backup");
        cluster.crash();
    }
}

#[test]
fn a_standby_sends_its_files_too() {
    let work = work_directory();
    let primary = Cluster::start(&default_install(), work.path());
    primary.load_typed_tables(5000);
    let standby = primary.standby("standby");
    standby.catch_up(&primary);
    standby.backup(&remote_request(&standby));
    let request = RestoreRequest::new(standby.repo(), work.path().join("restored"));
    let copy = restore_remote(&standby, request);
    copy.wait_until_recovered();
    assert_eq!(copy.digests(), primary.digests());
}

#[test]
fn a_server_that_dies_in_the_middle_leaves_nothing() {
    let work = work_directory();
    let mut cluster = Cluster::start(&default_install(), work.path());
    cluster.load_typed_tables(20_000);
    let earlier = cluster.backup(&remote_request(&cluster));
    let request = BackupRequest { max_rate_bytes_per_s: Some(CRAWL_BYTES_PER_S), ..remote_request(&cluster) };
    {
        let server = std::sync::Mutex::new(&mut cluster.server);
        let observer = At::progress(2, || server.lock().unwrap().stop(StopMode::Immediate).unwrap());
        let error = backup(&request, &observer).unwrap_err();
        assert!(observer.done());
        assert_eq!(error.kind(), ErrorKind::Source, "{error}");
    }
    assert_eq!(std::fs::read_dir(work.path().join("repo/main/sets")).unwrap().count(), 1);
    let repository = Repository::open(&cluster.repo()).unwrap();
    let newest = pagehaul_engine::catalog::newest_complete(&repository, &"main".parse().unwrap()).unwrap().unwrap();
    assert_eq!(newest.label, earlier.label);
}

#[test]
fn damaged_pages_are_listed_and_the_backup_goes_on() {
    let work = work_directory();
    let mut cluster = Cluster::start(&default_install(), work.path());
    cluster.run(&["CREATE TABLE hurt AS SELECT i, repeat('x', 200) AS x FROM generate_series(1, 20000) AS i"]);
    let path = cluster.value("SELECT pg_relation_filepath('hurt')");
    cluster.server.stop(StopMode::Fast).unwrap();
    let file = cluster.server.data_directory().join(&path);
    let mut bytes = std::fs::read(&file).unwrap();
    // A flipped bit, and one beside an LSN far in the future, which the server's own check does not look at.
    bytes[3 * 8192 + 5000] ^= 1;
    bytes[7 * 8192..7 * 8192 + 4].copy_from_slice(&0x7FFFu32.to_le_bytes());
    std::fs::write(&file, bytes).unwrap();
    cluster.server.start(QUICK).unwrap();
    let report = cluster.backup(&remote_request(&cluster));
    let bad: Vec<u32> = report.bad_pages.iter().map(|page| page.page).collect();
    assert_eq!(bad, [3, 7], "{:?}", report.bad_pages);
    assert!(report.bad_pages.iter().all(|page| page.path == path));
}

#[test]
fn an_incremental_on_the_servers_own_machine_builds_on_a_remote_set() {
    let work = work_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    cluster.load_typed_tables(5000);
    let full = cluster.backup(&remote_request(&cluster));
    let repository = Repository::open(&cluster.repo()).unwrap();
    let manifest = pagehaul_engine::catalog::newest_complete(&repository, &"main".parse().unwrap()).unwrap().unwrap();
    let postgres = manifest.postgres;
    assert_eq!((postgres.databases, postgres.bootstrap_role), (None, None));
    let ended_at: jiff::Timestamp = postgres.stop_time.unwrap().parse().unwrap();
    let (began_at, finished_at): (jiff::Timestamp, jiff::Timestamp) =
        (manifest.started_at.parse().unwrap(), manifest.finished_at.parse().unwrap());
    assert!(began_at < ended_at && ended_at < finished_at, "{began_at} {ended_at} {finished_at}");
    assert!(manifest.page_sums.is_some());

    cluster.run(&["CREATE TABLE later AS SELECT generate_series(1, 1000) AS i", "CHECKPOINT"]);
    let report = cluster.backup(&BackupRequest { kind: BackupKind::Incremental, ..cluster.backup_request() });
    assert_eq!((report.kind, report.prior), (BackupKind::Incremental, vec![full.label]));
    assert!(report.changed_bytes * 2 < report.source_bytes, "{} of {}", report.changed_bytes, report.source_bytes);
    let restored = work.path().join("restored");
    cluster.restore_to(&restored);
    cluster.pg_verifybackup(&restored);
    assert_eq!(cluster.adopt(&restored).digests(), cluster.digests());
}
