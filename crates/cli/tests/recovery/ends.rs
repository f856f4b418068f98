//! Where recovery ends when no point is named: the last commit before a shutdown, an idle server, a standby.

use pagehaul_engine::source::postgres::scratch_server::StopMode;
use pagehaul_testkit::cluster::default_install;

use super::archived::{Archived, wait_for};
use super::ledger::Ledger;

#[test]
fn b14_the_last_commit_before_a_clean_shutdown_is_archived_and_recovered() {
    let mut archived = Archived::start(&default_install());
    let mut ledger = Ledger::create(&archived.cluster);
    archived.backup();
    ledger.write(&archived.cluster, 1, 20);
    archived.cluster.server.stop(StopMode::Fast).unwrap();
    let copy = archived.recover("latest", &["--type", "latest"]);
    ledger.assert_prefix(&copy.cluster, 20, "latest after a shutdown");
}

#[test]
fn b13_a_backup_of_an_idle_server_is_whole_with_and_without_the_archive() {
    let archived = Archived::start(&default_install());
    let mut ledger = Ledger::create(&archived.cluster);
    ledger.write(&archived.cluster, 1, 5);
    // Nothing is written behind either of them.
    archived.backup();
    archived.backup();
    archived.wait_until_archived(&archived.cluster);
    for flags in [&[][..], &["--type", "immediate"], &["--type", "latest"]] {
        let copy = archived.recover("idle", flags);
        ledger.assert_prefix(&copy.cluster, 5, &format!("{flags:?}"));
        copy.remove();
    }
    let ran = archived.restore(&archived.target("idle"), &["--type", "time", "--target", "2100-01-01 00:00:00Z"]);
    ran.assert_refused(30, &["no transaction that ended after the set is archived"]);
}

#[test]
fn without_an_archive_only_the_set_itself_can_be_restored() {
    let archived = Archived::start(&default_install());
    let mut ledger = Ledger::create(&archived.cluster);
    ledger.write(&archived.cluster, 1, 5);
    archived.backup();
    archived.wait_until_archived(&archived.cluster);
    std::fs::remove_dir_all(archived.repo.join("main/wal")).unwrap();
    let ran = archived.restore(&archived.target("none"), &["--type", "latest"]);
    ran.assert_refused(30, &["no WAL is archived", "without --type"]);
    let copy = archived.recover("none", &[]);
    ledger.assert_prefix(&copy.cluster, 5, "the set alone");
    assert!(copy.report["recovery"].is_null() && copy.report["target"] == "none", "{}", copy.report);
}

#[test]
fn a_standby_replays_what_is_archived_from_then_on() {
    let archived = Archived::start(&default_install());
    let mut ledger = Ledger::create(&archived.cluster);
    archived.backup();
    archived.wait_until_archived(&archived.cluster);
    let copy = archived.recover("standby", &["--type", "standby"]);
    assert_eq!(copy.cluster.value("SELECT pg_is_in_recovery()"), "t");
    ledger.write(&archived.cluster, 1, 10);
    archived.cluster.value("SELECT pg_switch_wal()");
    wait_for("the standby", || copy.cluster.value("SELECT count(*) FROM ledger") == "10");
    ledger.assert_prefix(&copy.cluster, 10, "standby");
    copy.cluster.run(&["SELECT pg_promote()"]);
    assert_eq!(copy.cluster.value("SELECT pg_is_in_recovery()"), "f");
}

#[test]
fn a_server_that_is_to_stop_at_its_target_stops() {
    let archived = Archived::start(&default_install());
    let mut ledger = Ledger::create(&archived.cluster);
    archived.backup();
    ledger.write(&archived.cluster, 1, 10);
    archived.cluster.value("SELECT pg_switch_wal()");
    archived.wait_until_archived(&archived.cluster);
    let xid = ledger.entries[4].xid.to_string();
    let target = archived.target("stop");
    let flags = ["--type", "xid", "--target", &xid, "--target-action", "shutdown"];
    assert_eq!(archived.restore(&target, &flags).code, Some(0));
    let install = archived.cluster.server.install();
    let mut server = pagehaul_engine::source::postgres::scratch_server::ScratchServer::adopt(install, &target).unwrap();
    // pg_ctl may see it up for a moment, or not at all.
    server.start(pagehaul_testkit::cluster::QUICK).ok();
    wait_for("the shutdown", || !target.join("postmaster.pid").exists());
    // As the report says: it is opened at its target by another action.
    let mut settings = std::fs::OpenOptions::new().append(true).open(target.join("postgresql.auto.conf")).unwrap();
    std::io::Write::write_all(&mut settings, b"recovery_target_action = 'promote'\n").unwrap();
    server.start(pagehaul_testkit::cluster::QUICK).unwrap();
    let copy = pagehaul_testkit::cluster::Cluster { server, directory: target };
    wait_for("the promotion", || copy.value("SELECT pg_is_in_recovery()") == "f");
    ledger.assert_prefix(&copy, 5, "after its shutdown");
}
