//! Recovery from a copy of the repository when the original is gone.

use pagehaul_testkit::cluster::default_install;

use super::archived::Archived;
use super::ledger::Ledger;

#[test]
fn every_point_is_reached_from_a_copy_when_the_original_is_gone() {
    let mut archived = Archived::start(&default_install());
    let mut ledger = Ledger::create(&archived.cluster);
    let full = archived.backup();
    ledger.write(&archived.cluster, 1, 10);
    let pgdata = archived.cluster.server.data_directory().display().to_string();
    let incremental = ["backup", "main", "--pgdata", &pgdata, "--type", "incr", "--json"];
    let incremental = archived.run_well(&incremental).json()["label"].as_str().unwrap().to_owned();
    let second = archived.cluster.server_directory("second");
    let to = second.display().to_string();
    let copy = ["copy", "main", "--to", &to, "--json"];
    let report = archived.run_well(&copy).json();
    assert_eq!(
        (report["set_copied_count"].as_u64(), report["set_skipped_count"].as_u64()),
        (Some(2), Some(0)),
        "{report}"
    );
    let before = ledger.entries.len();
    ledger.write(&archived.cluster, 100, 10);
    ledger.mark(&archived.cluster, "behind");
    ledger.write(&archived.cluster, 200, 10);
    archived.cluster.value("SELECT pg_switch_wal()");
    archived.wait_until_archived(&archived.cluster);
    // The WAL since then.
    let report = archived.run_well(&copy).json();
    assert_eq!(
        (report["set_copied_count"].as_u64(), report["set_skipped_count"].as_u64()),
        (Some(0), Some(2)),
        "{report}"
    );
    assert!(report["wal"]["copied_count"].as_u64() > Some(0), "{report}");
    let report = archived.run_well(&copy).json();
    assert_eq!(report["wal"]["copied_count"].as_u64(), Some(0), "{report}");
    for key in ["elapsed_s", "throughput_bytes_per_s", "memory_ceiling_bytes", "stages", "from", "to"] {
        assert!(!report[key].is_null(), "{key} is not in {report}");
    }

    std::fs::remove_dir_all(&archived.repo).unwrap();
    archived.repo = second;
    for label in [&full, &incremental] {
        archived.run_well(&["verify", "main", "--set", label]);
    }
    let copy = archived.recover("latest", &["--type", "latest"]);
    assert_eq!(copy.report["label"], *incremental);
    ledger.assert_prefix(&copy.cluster, ledger.entries.len(), "all of it");
    assert_eq!(copy.cluster.digests(), archived.cluster.digests());
    copy.remove();
    let copy = archived.recover("name", &["--type", "name", "--target", "behind"]);
    ledger.assert_prefix(&copy.cluster, before + 10, "a restore point");
    copy.remove();
    // A moment before the incremental set, from the full one.
    let lsn = ledger.entries[2].lsn.to_string();
    let copy = archived.recover("lsn", &["--type", "lsn", "--target", &lsn]);
    assert_eq!(copy.report["label"], *full);
    ledger.assert_prefix(&copy.cluster, 3, "a position in WAL");
    copy.remove();

    // The copy is the repository from now on: the next set builds on what was copied.
    let next = ["backup", "main", "--pgdata", &pgdata, "--type", "incr", "--json"];
    let next = archived.run_well(&next).json();
    assert_eq!(
        (next["kind"].as_str(), next["prior"][0].as_str()),
        (Some("incremental"), Some(&*incremental)),
        "{next}"
    );
    archived.run_well(&["verify", "main"]);
}
