//! Recovery to points behind a full backup that was made of a chain, when the chain is gone.

use pagehaul_testkit::cluster::default_install;

use super::archived::Archived;
use super::ledger::Ledger;

#[test]
fn points_behind_a_chain_are_reached_from_what_was_made_of_it() {
    let archived = Archived::start(&default_install());
    let mut ledger = Ledger::create(&archived.cluster);
    archived.backup();
    ledger.write(&archived.cluster, 1, 10);
    let pgdata = archived.cluster.server.data_directory().display().to_string();
    let backup = ["backup", "main", "--pgdata", &pgdata, "--type", "incr", "--json"];
    let chain_end = archived.run_well(&backup).json()["label"].as_str().unwrap().to_owned();
    let before = ledger.entries.len();
    ledger.write(&archived.cluster, 100, 10);
    ledger.mark(&archived.cluster, "behind");
    ledger.write(&archived.cluster, 200, 10);
    archived.cluster.value("SELECT pg_switch_wal()");
    archived.wait_until_archived(&archived.cluster);
    let made = archived.run_well(&["synthesize", "main", "--json"]).json()["label"].as_str().unwrap().to_owned();

    // With both there, the one that needs no other is taken.
    let copy = archived.recover("both", &["--type", "name", "--target", "behind"]);
    assert_eq!(copy.report["label"], *made, "not {chain_end}");
    copy.remove();
    archived.run_well(&["expire", "main", "--keep-full", "1", "--confirm"]);
    let sets = archived.run_well(&["info", "main", "--json"]).json();
    assert_eq!(sets[0]["sets"].as_array().unwrap().len(), 1, "{sets}");
    let copy = archived.recover("name", &["--type", "name", "--target", "behind"]);
    ledger.assert_prefix(&copy.cluster, before + 10, "a restore point");
    copy.remove();
    let lsn = ledger.entries[before + 4].lsn.to_string();
    let copy = archived.recover("lsn", &["--type", "lsn", "--target", &lsn]);
    ledger.assert_prefix(&copy.cluster, before + 5, "a position in WAL");
    copy.remove();
    let copy = archived.recover("latest", &["--type", "latest"]);
    ledger.assert_prefix(&copy.cluster, ledger.entries.len(), "all of it");
    copy.remove();
    let early = ledger.entries[1].lsn.to_string();
    let target = archived.target("early");
    archived.restore(&target, &["--type", "lsn", "--target", &early]).assert_refused(30, &[&made]);
}
