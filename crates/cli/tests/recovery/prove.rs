//! `prove` with a recovery target: the scratch server stops there, and the proof says so.

use pagehaul_testkit::cluster::default_install;

use super::archived::{Archived, Ran};
use super::ledger::Ledger;

/// A cluster with 10 rows before the set and 20 behind it, all archived.
fn archived_ledger() -> (Archived, Ledger, String) {
    let archived = Archived::start(&default_install());
    let mut ledger = Ledger::create(&archived.cluster);
    ledger.write(&archived.cluster, 1, 10);
    let label = archived.backup();
    ledger.write(&archived.cluster, 100, 10);
    ledger.mark(&archived.cluster, "here");
    ledger.write(&archived.cluster, 200, 10);
    archived.cluster.value("SELECT pg_switch_wal()");
    archived.wait_until_archived(&archived.cluster);
    (archived, ledger, label)
}

fn prove(archived: &Archived, flags: &[&str], rows: usize) -> Ran {
    let bin = archived.cluster.server.install().bin_directory().display().to_string();
    let scratch = archived.cluster.directory.join("targets").display().to_string();
    let query = format!("SELECT count(*) = {rows} FROM ledger");
    let words = ["prove", "main", "--json", "--pg-bin", &bin, "--scratch-dir", &scratch, "--query", &query];
    archived.run(&[&words, flags].concat())
}

#[test]
fn a_proof_goes_up_to_the_target_and_says_so() {
    let (archived, ledger, label) = archived_ledger();
    let (time, lsn) = (ledger.entries[14].at.to_string(), ledger.entries[14].lsn.to_string());
    let cases: [(&[&str], usize, &str); 5] = [
        (&[], 10, "end of the set"),
        (&["--type", "time", "--target", &time], 15, "time "),
        (&["--type", "lsn", "--target", &lsn, "--target-timeline", "current"], 15, "lsn "),
        (&["--type", "name", "--target", "here", "--set", &label], 20, "name here"),
        (&["--type", "latest"], 30, "all archived WAL"),
    ];
    for (flags, rows, words) in cases {
        let ran = prove(&archived, flags, rows);
        assert_eq!(ran.code, Some(0), "{flags:?}: {}{}", ran.stdout, ran.stderr);
        let document = ran.json();
        let proof = &document["proofs"][0];
        assert_eq!((&proof["result"], &proof["label"]), (&"proven".into(), &label.as_str().into()), "{proof}");
        let target = proof["recovery_target"].as_str().unwrap();
        assert!(target.starts_with(words), "{target}");
        assert_eq!(target.contains("along timeline 1"), words != "end of the set", "{target}");
        let stops = proof["checks"].as_array().unwrap().iter().find(|check| check["name"] == STOPPED);
        assert_eq!(stops.is_some(), ["time ", "lsn ", "name here"].contains(&words), "{proof}");
        assert!(stops.is_none_or(|check| check["state"] == "passed"), "{proof}");
    }
    let info = archived.run_well(&["info", "main", "--json"]).json();
    let text = info.to_string();
    assert!(text.contains("\"recovery_target\":\"all archived WAL, along timeline 1\""), "the last one counts: {text}");
    let left = std::fs::read_dir(archived.cluster.directory.join("targets")).unwrap().count();
    assert_eq!(left, 0, "a scratch directory is left");
    // A query that the target's data does not meet.
    let broken = prove(&archived, &["--type", "time", "--target", &time], 16);
    assert_eq!((broken.code, broken.json()["proofs"][0]["result"].as_str()), (Some(40), Some("broken")));
}

/// The check that a target adds.
const STOPPED: &str = "recovery stopped at its target";

#[test]
fn targets_that_cannot_be_reached_or_proven_are_refused_and_nothing_is_kept() {
    let (archived, ledger, label) = archived_ledger();
    let never = ["--type", "time", "--target", "2100-01-01 00:00:00Z"];
    prove(&archived, &never, 0).assert_refused(30, &["no commit behind it is archived"]);
    prove(&archived, &["--type", "standby"], 0).assert_refused(2, &["a standby's recovery never ends"]);
    prove(&archived, &["--target", "here"], 0).assert_refused(2, &["--type"]);
    let time = ledger.entries[3].at.to_string();
    let too_old = prove(&archived, &["--set", &label, "--type", "time", "--target", &time], 4);
    assert_eq!(too_old.code, Some(30), "{too_old:?}");
    let all = prove(&archived, &["--all-unproven", "--type", "latest"], 0);
    assert_eq!(all.code, Some(2), "{all:?}");
    assert!(!archived.repo.join("main/proofs").exists(), "something was kept");
}
