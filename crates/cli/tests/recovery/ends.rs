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

/// A cluster whose ledger's file was changed under the stopped server between two sets; gives the labels.
fn with_changed_file(archived: &mut Archived, ledger: &mut Ledger, change: &dyn Fn(&std::path::Path)) -> [String; 2] {
    *ledger = Ledger::create(&archived.cluster);
    ledger.write(&archived.cluster, 1, 40);
    let before = archived.backup();
    ledger.write(&archived.cluster, 100, 10);
    let file = archived.cluster.value("SELECT pg_relation_filepath('ledger')");
    archived.cluster.server.stop(StopMode::Fast).unwrap();
    change(&archived.cluster.server.data_directory().join(file));
    archived.start_server();
    let pgdata = archived.cluster.server.data_directory().display().to_string();
    let after = archived.run(&["backup", "main", "--pgdata", &pgdata, "--json"]);
    assert!(matches!(after.code, Some(0 | 40)), "{after:?}");
    archived.cluster.run(&["CREATE TABLE later AS SELECT generate_series(1, 100) AS i"]);
    archived.cluster.value("SELECT pg_switch_wal()");
    archived.wait_until_archived(&archived.cluster);
    [before, after.json()["label"].as_str().unwrap().to_owned()]
}

#[test]
fn f24_a_page_that_was_damaged_in_the_source_is_whole_from_an_older_set() {
    let mut archived = Archived::start(&default_install());
    let mut ledger = Ledger::default();
    let flip = |file: &std::path::Path| pagehaul_testkit::damage::flip_bit(file, 8192 + 5000, 3);
    let [before, _] = with_changed_file(&mut archived, &mut ledger, &flip);
    // Each new set has the damaged page, and the rules want the newest one only.
    let pgdata = archived.cluster.server.data_directory().display().to_string();
    let again = archived.run(&["backup", "main", "--pgdata", &pgdata, "--json"]);
    assert!(matches!(again.code, Some(0 | 40)), "{again:?}");
    let after = again.json()["label"].as_str().unwrap().to_owned();
    let expired = archived.run_well(&["expire", "main", "--keep-full", "1", "--confirm"]);
    assert!(expired.stderr.contains("is whole in it and damaged since"), "{}", expired.stderr);
    let left = archived.run_well(&["info", "--json"]).json();
    let left: Vec<_> = left[0]["sets"].as_array().unwrap().iter().map(|set| set["label"].clone()).collect();
    assert_eq!(left, [before.as_str(), after.as_str()]);
    let damaged = archived.recover("damaged", &["--type", "latest"]);
    assert_eq!(damaged.report["label"], after.as_str());
    let notes = damaged.report["notes"].to_string();
    assert!(notes.contains("damaged") && notes.contains("--set"), "{notes}");
    assert!(damaged.cluster.connect().query("SELECT count(*) FROM ledger").is_err(), "the page is whole after all");
    damaged.remove();
    let whole = archived.recover("whole", &["--type", "latest", "--set", &before]);
    ledger.assert_prefix(&whole.cluster, 50, "the older set with all WAL");
    assert_eq!(whole.cluster.value("SELECT count(*) FROM later"), "100");
}

#[test]
fn f53_a_relation_file_that_was_lost_outside_of_sql_comes_back_from_an_older_set() {
    let mut archived = Archived::start(&default_install());
    let mut ledger = Ledger::default();
    let remove = |file: &std::path::Path| std::fs::remove_file(file).unwrap();
    let [before, _] = with_changed_file(&mut archived, &mut ledger, &remove);
    let whole = archived.recover("whole", &["--type", "latest", "--set", &before]);
    ledger.assert_prefix(&whole.cluster, 50, "the older set with all WAL");
    assert_eq!(whole.cluster.value("SELECT count(*) FROM later"), "100");
}
