//! A backup with parity, seen from the command line: a stripe is lost, and everything goes on.

use std::path::PathBuf;

use pagehaul_testkit::cluster::default_install;

use super::archived::Archived;
use super::ledger::Ledger;

/// The command ends with the code of damage, and says all of `parts`.
fn told(archived: &Archived, arguments: &[&str], parts: &[&str]) {
    let ran = archived.run(arguments);
    assert_eq!(ran.code, Some(40), "{ran:?}");
    parts.iter().for_each(|part| assert!(ran.stderr.contains(part), "{part:?} is not in {ran:?}"));
}

#[test]
fn f25_a_lost_stripe_is_told_recovered_from_and_repaired() {
    let archived = Archived::start(&default_install());
    let mut ledger = Ledger::create(&archived.cluster);
    ledger.write(&archived.cluster, 1, 10);
    let pgdata = archived.cluster.server.data_directory().display().to_string();
    let backup = ["backup", "main", "--pgdata", &pgdata, "--stripes", "4", "--parity", "1", "--json"];
    let report = archived.run_well(&backup).json();
    assert_eq!(report["stripes"].as_array().unwrap().len(), 4, "{report}");
    assert_eq!(report["parity_stripes"].as_array().unwrap().len(), 1, "{report}");
    let plan = archived.run_well(&[&backup[..8], &["--dry-run"]].concat());
    assert!(plan.stderr.contains("rows and writers of 1 parity stripes"), "{plan:?}");
    let info = archived.run_well(&["info", "main"]);
    assert!(info.stdout.contains("4+1"), "{info:?}");
    ledger.write(&archived.cluster, 100, 10);
    archived.cluster.value("SELECT pg_switch_wal()");
    archived.wait_until_archived(&archived.cluster);

    let lost = PathBuf::from(report["stripes"][2]["path"].as_str().unwrap());
    let bytes = std::fs::read(&lost).unwrap();
    std::fs::remove_file(&lost).unwrap();
    told(&archived, &["verify", "main"], &["DEGRADED", "stripe 2", "pagehaul repair main"]);
    let copy = archived.recover("degraded", &["--type", "latest"]);
    assert!(copy.report["repaired_frame_count"].as_u64() > Some(0), "{}", copy.report);
    ledger.assert_prefix(&copy.cluster, ledger.entries.len(), "all of it");
    copy.remove();
    // What is built on it goes on.
    let incremental = ["backup", "main", "--pgdata", &pgdata, "--type", "incr", "--parity", "1", "--json"];
    let incremental = archived.run_well(&incremental).json();
    assert_eq!(incremental["kind"], "incremental", "{incremental}");

    // A set in clear stays one, whatever is encrypted from now on.
    let identity = archived.cluster.server_directory("keys").join("identity").display().to_string();
    let key = archived.run_program_well(&["key", "new", "--output", &identity, "--json"]).json();
    let repair = ["repair", "main", "--json", "--recipient", key["recipient"].as_str().unwrap()];
    let repaired = archived.run_well(&repair).json();
    let path = repaired["repaired"][0]["path"].as_str().unwrap();
    assert!(path.ends_with("stripe-0002-r1.phs"), "{repaired}");
    assert_eq!(std::fs::read(path).unwrap(), bytes);
    archived.run_well(&["verify", "main"]);
    std::fs::remove_file(report["stripes"][0]["path"].as_str().unwrap()).unwrap();
    std::fs::remove_file(report["stripes"][1]["path"].as_str().unwrap()).unwrap();
    told(&archived, &["verify", "main"], &["cannot be restored whole", "stripe 0", "stripe 1"]);
    told(&archived, &["repair", "main"], &["not everything", "stripe 0", "stripe 1"]);
    let target = archived.target("refused");
    archived.restore(&target, &[]).assert_refused(40, &["stripe 0, stripe 1", "parity gives back 1"]);

    // Without parity there is nothing to repair with.
    let plain = archived.run_well(&["backup", "plain", "--pgdata", &pgdata, "--json"]);
    drop(plain);
    archived.run(&["repair", "plain"]).assert_refused(2, &["parity", "--parity"]);
}
