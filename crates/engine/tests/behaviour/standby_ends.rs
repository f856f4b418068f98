//! Recovery that ends with the set of a standby whose WAL ends exactly where the copy is consistent.

use std::path::Path;
use std::time::{Duration, Instant};

use pagehaul_engine::backup::BackupRequest;
use pagehaul_engine::error::ErrorKind;
use pagehaul_engine::pipeline::NoObserver;
use pagehaul_engine::restore::{RecoveryTarget, RestoreRequest, TargetAction, restore};
use pagehaul_engine::source::postgres::os_owner::owner_of;
use pagehaul_engine::source::postgres::pg_install::PgInstall;
use pagehaul_engine::source::postgres::scratch_server::{InitOptions, ScratchServer, StopMode};
use pagehaul_testkit::cluster::{Cluster, QUICK, default_install, installs, work_directory};

use super::remote::remote_request;

const ROWS: &str = "SELECT count(*) || ' ' || sum(n) FROM ledger";

fn primary(install: &PgInstall, directory: &Path) -> Cluster {
    let options = InitOptions { wal_segment_size_mib: Some(1), ..InitOptions::default() };
    let primary = Cluster::start_with(install, directory, &options, QUICK);
    primary.run(&["CREATE TABLE ledger AS SELECT generate_series(1, 500) AS n"]);
    primary
}

/// Whether a restart point is all that this standby knows: its minimum recovery point is the end of its WAL.
fn ends_with_its_restart_point(standby: &Cluster) -> bool {
    standby.run(&["CHECKPOINT"]);
    let sql = "SELECT min_recovery_end_lsn = pg_last_wal_replay_lsn() AND pg_last_wal_replay_lsn() = \
               coalesce(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) FROM pg_control_recovery()";
    standby.value(sql) == "t"
}

/// Takes the primary away behind a checkpoint, which is then the last record that the standby has.
fn leave_with_a_checkpoint(primary: &mut Cluster, standby: &Cluster) {
    for _ in 0..5 {
        primary.run(&["INSERT INTO ledger VALUES (0)", "CHECKPOINT"]);
        standby.catch_up(primary);
        primary.crash();
        if ends_with_its_restart_point(standby) {
            return;
        }
        // Every 15 seconds the background writer logs which transactions run.
        primary.server.start(QUICK).unwrap();
    }
    panic!("the primary logs something behind each checkpoint");
}

/// Takes the primary away with its last checkpoint, at which replay of a backup begins.
fn leave_with_a_shutdown(primary: &mut Cluster, standby: &Cluster) {
    // A primary does not wait for a standby that has not come yet.
    primary.run(&["INSERT INTO ledger VALUES (0)"]);
    standby.catch_up(primary);
    primary.server.stop(StopMode::Fast).unwrap();
    let started = Instant::now();
    while !ends_with_its_restart_point(standby) {
        assert!(started.elapsed() < Duration::from_secs(60), "{}", standby.server.log_tail());
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn immediate(standby: &Cluster, target: &Path, target_action: TargetAction) -> RestoreRequest {
    // A set that a server sent does not know whose the files are to be.
    let owner = owner_of(standby.server.data_directory()).filter(|owner| owner == "postgres");
    let request = RestoreRequest::new(standby.repo(), target);
    RestoreRequest { target: RecoveryTarget::Immediate, target_action, owner, ..request }
}

/// Restores up to the set's point of consistency, and gives the running copy.
fn copy(standby: &Cluster, name: &str, target_action: TargetAction) -> Cluster {
    let target = standby.directory.join(name);
    restore(&immediate(standby, &target, target_action), &NoObserver).unwrap_or_else(|error| panic!("{error}"));
    standby.pg_verifybackup(&target);
    standby.adopt(&target)
}

fn check_promoted(standby: &Cluster, copy: &Cluster) {
    copy.wait_until_recovered();
    assert_eq!(copy.value(ROWS), standby.value(ROWS));
    copy.run(&["INSERT INTO ledger VALUES (0)", "CHECKPOINT"]);
    assert_eq!(copy.value("SELECT timeline_id FROM pg_control_checkpoint()"), "2");
}

/// Makes a set, and gives how much WAL it needs.
fn wal_bytes(standby: &Cluster, request: &BackupRequest) -> u64 {
    let report = standby.backup(request);
    report.stop_lsn.0 - report.start_lsn.0
}

#[test]
fn a_standby_that_ends_with_a_checkpoint_gives_sets_that_end_where_they_are_consistent() {
    for install in installs() {
        eprintln!("PostgreSQL {}", install.major());
        let work = work_directory();
        let mut primary = primary(&install, work.path());
        let standby = primary.standby("standby");
        leave_with_a_checkpoint(&mut primary, &standby);
        assert!(wal_bytes(&standby, &standby.backup_request()) > 160, "there is a record to stop at");
        check_promoted(&standby, &copy(&standby, "promoted", TargetAction::Promote));
    }
}

#[test]
fn a_standby_of_a_stopped_primary_gives_sets_without_a_record_to_replay() {
    for install in installs() {
        eprintln!("PostgreSQL {}", install.major());
        let work = work_directory();
        let mut primary = primary(&install, work.path());
        let standby = primary.standby("standby");
        leave_with_a_shutdown(&mut primary, &standby);
        let bytes = wal_bytes(&standby, &standby.backup_request());
        assert!(bytes <= 120, "the checkpoint alone: {bytes}");
        check_promoted(&standby, &copy(&standby, "promoted", TargetAction::Promote));
        let end = standby.directory.join("end");
        standby.restore_to(&end);
        assert_eq!(standby.adopt(&end).value(ROWS), standby.value(ROWS));
        for action in [TargetAction::Pause, TargetAction::Shutdown] {
            let target = standby.directory.join("refused");
            let error = restore(&immediate(&standby, &target, action), &NoObserver).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
            assert!(error.message().contains("no record of WAL"), "{error}");
            assert!(!target.exists(), "something was written");
        }
    }
}

#[test]
fn a_server_stops_at_the_end_of_such_a_set_in_each_way() {
    let work = work_directory();
    let mut primary = primary(&default_install(), work.path());
    let standby = primary.standby("standby");
    leave_with_a_checkpoint(&mut primary, &standby);
    // What a server sends ends where the backup does, and zeros follow.
    for (name, request) in [("local", standby.backup_request()), ("remote", remote_request(&standby))] {
        assert!(wal_bytes(&standby, &request) > 160);
        let paused = copy(&standby, &format!("{name}-pause"), TargetAction::Pause);
        let started = Instant::now();
        while paused.value("SELECT pg_is_wal_replay_paused()") != "t" {
            assert!(started.elapsed() < Duration::from_secs(60), "{}", paused.server.log_tail());
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(paused.value(ROWS), standby.value(ROWS));
        paused.run(&["SELECT pg_wal_replay_resume()"]);
        check_promoted(&standby, &paused);

        let target = standby.directory.join(format!("{name}-shutdown"));
        restore(&immediate(&standby, &target, TargetAction::Shutdown), &NoObserver).unwrap();
        let mut server = ScratchServer::adopt(standby.server.install(), &target).unwrap();
        // It may take a connection at the very end, or be gone before.
        server.start(QUICK).ok();
        let started = Instant::now();
        while !server.log_tail().contains("database system is shut down") {
            assert!(started.elapsed() < Duration::from_secs(60), "{}", server.log_tail());
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(server.log_tail().contains("shutdown at recovery target"), "{}", server.log_tail());
    }
}
