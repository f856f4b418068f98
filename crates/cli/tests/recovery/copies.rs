//! Copies of a cluster that start with the settings of the original, its archive_command among them.

use std::path::PathBuf;

use pagehaul_engine::source::postgres::scratch_server::{ScratchServer, StopMode};
use pagehaul_testkit::cluster::{Cluster, QUICK, default_install};
use pagehaul_testkit::damage::{copy_tree, files_below};

use super::archived::{Archived, wait_for};
use super::ledger::Ledger;

/// An archiving cluster whose data directory says how it archives, so that each copy of it knows too.
fn with_settings_inside() -> Archived {
    let archived = Archived::start(&default_install());
    let command = archived.archive_command().replace('\'', "''");
    archived.cluster.run(&[
        "ALTER SYSTEM SET archive_mode = 'on'",
        &format!("ALTER SYSTEM SET archive_command = '{command}'"),
        "ALTER SYSTEM SET track_commit_timestamp = 'on'",
    ]);
    archived
}

fn archived_objects(archived: &Archived) -> Vec<PathBuf> {
    files_below(&archived.repo.join("main/wal"))
}

/// Fills and ends some segments.
fn write_segments(cluster: &Cluster, table: &str) {
    for number in 0..3 {
        cluster.run(&[
            &format!("CREATE TABLE {table}_{number} AS SELECT generate_series(1, 500) AS i"),
            "SELECT pg_switch_wal()",
        ]);
    }
}

#[test]
fn f12_a_copy_that_is_started_writes_nothing_into_the_originals_archive() {
    let archived = with_settings_inside();
    let mut ledger = Ledger::create(&archived.cluster);
    ledger.write(&archived.cluster, 1, 10);
    archived.backup();
    archived.wait_until_archived(&archived.cluster);
    let before = archived_objects(&archived);
    let copy = archived.recover("copy", &[]);
    assert_eq!(copy.cluster.value("SHOW archive_mode"), "off");
    write_segments(&copy.cluster, "of_copy");
    assert_eq!(
        copy.cluster.value("SELECT count(*) FROM pg_stat_archiver WHERE archived_count + failed_count > 0"),
        "0"
    );
    assert_eq!(archived_objects(&archived), before, "a copy has archived");
    ledger.assert_prefix(&copy.cluster, 10, "the copy");
    copy.remove();

    // One that is told to go on archiving has a timeline of its own, and the original does not notice it.
    let heir = archived.recover("heir", &["--type", "immediate", "--archive-mode", "preserve"]);
    assert_eq!(heir.cluster.value("SHOW archive_mode"), "on", "the settings are not those of the original");
    write_segments(&heir.cluster, "of_heir");
    write_segments(&archived.cluster, "of_original");
    for server in [&heir.cluster, &archived.cluster] {
        archived.wait_until_archived(server);
        assert_eq!(server.value("SELECT failed_count FROM pg_stat_archiver"), "0");
    }
    let timelines = archived.run_well(&["wal", "list", "--json"]).json()[0]["clusters"][0]["timelines"].clone();
    let timelines: Vec<_> = timelines.as_array().unwrap().iter().map(|each| each["timeline"].clone()).collect();
    assert_eq!(timelines, [1, 2]);
    let copy = archived.recover("latest", &["--type", "latest", "--target-timeline", "1"]);
    assert_eq!(
        copy.cluster.value("SELECT to_regclass('of_heir_2') IS NULL AND to_regclass('of_original_2') IS NOT NULL"),
        "t"
    );
}

/// Two servers that both take themselves for the original: a copy by `cp`, which no restore has told that it is one.
#[test]
fn f11_of_two_servers_that_archive_the_same_segments_only_one_is_acknowledged() {
    let mut archived = with_settings_inside();
    let mut ledger = Ledger::create(&archived.cluster);
    ledger.write(&archived.cluster, 1, 10);
    archived.backup();
    archived.cluster.server.stop(StopMode::Fast).unwrap();
    let target = archived.target("twin");
    copy_tree(archived.cluster.server.data_directory(), &target);
    archived.start_server();
    let mut server = ScratchServer::adopt(archived.cluster.server.install(), &target).unwrap();
    server.start(QUICK).unwrap();
    let twin = Cluster { server, directory: archived.cluster.directory.clone() };
    ledger.write(&archived.cluster, 100, 10);
    archived.cluster.value("SELECT pg_switch_wal()");
    archived.wait_until_archived(&archived.cluster);
    let before = archived_objects(&archived);
    let stored: Vec<Vec<u8>> = before.iter().map(|path| std::fs::read(path).unwrap()).collect();

    write_segments(&twin, "of_twin");
    wait_for("the twin's failure", || twin.value("SELECT failed_count > 0 FROM pg_stat_archiver") == "t");
    assert!(twin.server.log_tail().contains("has other bytes"), "{}", twin.server.log_tail());
    let first_failed = twin.value("SELECT last_failed_wal FROM pg_stat_archiver");
    assert!(target.join("pg_wal").join(&first_failed).exists(), "the twin keeps its own segment");
    let after: Vec<Vec<u8>> = before.iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(after == stored && archived_objects(&archived) == before, "what was archived has changed");
    // The original goes on, and what it wrote is what comes back.
    ledger.write(&archived.cluster, 200, 10);
    archived.cluster.value("SELECT pg_switch_wal()");
    archived.wait_until_archived(&archived.cluster);
    assert_eq!(archived.cluster.value("SELECT failed_count FROM pg_stat_archiver"), "0");
    let copy = archived.recover("latest", &["--type", "latest"]);
    ledger.assert_prefix(&copy.cluster, 30, "the original's rows");
    assert_eq!(copy.cluster.value("SELECT to_regclass('of_twin_0') IS NULL"), "t");
}
