//! A repository in a bucket with object lock: what is protected outlives everybody who may delete.

use std::process::{Command, Output};

use pagehaul_testkit::foreign_stores::ForeignStore;
use pagehaul_testkit::s3_server::{run_again, told_target};
use serde_json::Value;

use super::archived::{Archived, PROGRAM};

const TEST: &str = "object_lock::s19_what_is_protected_outlives_who_deletes_every_version";
/// Set in the process that looks at what is left.
const LEFT: &str = "PAGEHAUL_TEST_WHAT_IS_LEFT";

#[test]
fn s19_what_is_protected_outlives_who_deletes_every_version() {
    match told_target() {
        Some(target) if std::env::var_os(LEFT).is_some() => return look_at_what_is_left(&target),
        Some(target) => return make_and_protect(&target),
        None => {}
    }
    let Some(server) = ForeignStore::moto_with_object_lock() else { return };
    let target = server.target("some/prefix");
    run_again(TEST, &target, server.environment());
    let all = server.versions();
    let (gone, kept): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|(key, version)| server.delete_version(key, version));
    let has = |versions: &[(String, String)], end: &str| versions.iter().any(|(key, _)| key.ends_with(end));
    assert!(has(&kept, ".phw") && kept.iter().any(|(key, _)| key.starts_with("stripes/")), "{kept:?}");
    assert!(has(&gone, ".phs") && has(&gone, "manifest.json"), "the set that was not protected is gone: {gone:?}");
    let environment = [server.environment(), &[(LEFT, "1")]].concat();
    run_again(TEST, &target, &environment);
}

/// Two sets and WAL that are protected, and a third one that is not.
fn make_and_protect(target: &str) {
    let archived = Archived::start_to(target);
    archived.cluster.load_typed_tables(500);
    let pgdata = archived.cluster.server.data_directory().display().to_string();
    let stripes = target.replace("some/prefix", "stripes");
    let backup = |flags: &[&str]| -> String {
        let words = [&["backup", "main", "--pgdata", &pgdata, "--json"], flags].concat();
        archived.run_well(&words).json()["label"].as_str().unwrap().to_owned()
    };
    let full = backup(&["--stripes", "2", "--parity", "1", "--stripe-to", target, "--stripe-to", &stripes]);
    let incremental = backup(&["--type", "incr"]);
    archived.cluster.value("SELECT pg_switch_wal()");
    archived.wait_until_archived(&archived.cluster);
    let protect = |flags: &[&str]| archived.run_well(&[&["protect", "main", "--json"], flags].concat()).json();
    let until = |label: &str| protected_until(&archived.run_well(&["info", "main", "--json"]).json(), label);

    let looked = protect(&["--for", "2d", "--dry-run"]);
    assert_eq!(
        (&looked["sets"][0]["label"], &looked["sets"][0]["protected_until"]),
        (&full.as_str().into(), &Value::Null)
    );
    assert_eq!(until(&full), None, "it only looked");
    let named = protect(&["--set", &incremental, "--no-wal", "--until", "2036-12-31T00:00:00Z"]);
    assert_eq!(named["sets"].as_array().unwrap().len(), 2, "with what it needs: {named}");
    for set in named["sets"].as_array().unwrap() {
        assert_eq!(set["object_count"], set["changed_count"], "{named}");
        assert_eq!(set["protected_until"], "2036-12-31T00:00:00Z", "{named}");
    }
    // Three stripes, rows, sums of two, file table, manifest.
    assert!(named["sets"][0]["object_count"].as_u64().unwrap() >= 6, "{named}");
    assert_eq!(named["wal"], Value::Null);
    let all = protect(&["--for", "1d"]);
    assert!(all["sets"].as_array().unwrap().iter().all(|set| set["changed_count"] == 0), "never shortened: {all}");
    assert!(all["wal"]["changed_count"].as_u64().unwrap() > 0, "{all}");
    assert_eq!(all["wal"]["changed_count"], all["wal"]["object_count"], "{all}");
    assert_eq!(until(&full).as_deref(), Some("2036-12-31T00:00:00Z"));
    let listed = archived.run_well(&["info", "main", "--json"]).json();
    let wal = &listed[0]["wal_protection"];
    assert_eq!((&wal["object_count"], &wal["unprotected_count"]), (&all["wal"]["object_count"], &0.into()), "{wal}");
    let shown = archived.run_well(&["info", "main"]).stdout;
    assert!(shown.contains("WAL protected until "), "{shown}");
    archived.cluster.value("SELECT pg_switch_wal() FROM pg_create_restore_point('later')");
    archived.wait_until_archived(&archived.cluster);
    let shown = archived.run_well(&["info", "main"]).stdout;
    assert!(shown.contains("WAL protected in part") && shown.contains("not at all"), "{shown}");
    archived.run(&["protect", "main", "--for", "1d", "--mode", "compliance"]).assert_refused(10, &["--mode", "never"]);

    // WAL that no rule keeps, and that is protected.
    let expire = ["expire", "main", "--keep-full", "1", "--keep-wal", "sets", "--json"];
    let expired = archived.run_well(&[&expire[..], &["--confirm"]].concat()).json();
    let sum = |key: &str| expired["wal"].as_array().unwrap().iter().map(|wal| wal[key].as_u64().unwrap()).sum::<u64>();
    let goes = expired["wal"].as_array().unwrap().iter().any(|wal| wal["decision"] == "remove");
    assert_eq!((goes, sum("removed_count")), (true, 0), "{expired}");
    assert!(expired["notes"].to_string().contains("protected and stay"), "{expired}");

    let [third, fourth] = [(); 2].map(|()| backup(&[]));
    assert_eq!(until(&fourth), None);
    let shown = archived.run_well(&["info", "main", "--set", &full]).stdout;
    assert!(shown.contains("until 2036-12-31 00:00:00 UTC, governance mode"), "{shown}");
    // No rule wants the first two; the third would go. Moto lists prefixes of what is deleted, so that it cannot here.
    let expired = archived.run_well(&expire).json();
    let decision = |label: &str| {
        let sets = expired["sets"].as_array().unwrap().iter();
        sets.filter(|set| set["label"] == label).map(|set| set["decision"].as_str().unwrap()).collect::<String>()
    };
    let decided = [&full, &incremental, &third, &fourth].map(|label| decision(label));
    assert_eq!(decided, ["keep", "keep", "remove", "keep"], "{expired}");
    let restored = archived.target("restored").display().to_string();
    archived.run_well(&["restore", "main", "--set", &incremental, "--target-dir", &restored]);
}

/// Somebody has deleted every version that the store let go.
fn look_at_what_is_left(target: &str) {
    let listed = run(&["info", "main", "--json"], target);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    // Of the others Moto still lists the prefix.
    let is_complete = |set: &&Value| set["state"] == "complete";
    let sets: Vec<&Value> = listed[0]["sets"].as_array().unwrap().iter().filter(is_complete).collect();
    assert_eq!(sets.len(), 2, "{listed}");
    for set in sets {
        let label = set["label"].as_str().unwrap();
        assert!(protected_until(&listed, label).is_some(), "{listed}");
        run(&["verify", "main", "--set", label], target);
    }
}

fn protected_until(listed: &Value, label: &str) -> Option<String> {
    let set = listed[0]["sets"].as_array().unwrap().iter().find(|set| set["label"] == label).unwrap();
    set["protected_until"].as_str().map(str::to_owned)
}

fn run(words: &[&str], target: &str) -> Output {
    let words = [words, &["--repo", target, "--history", "NUL"]].concat();
    let output = Command::new(PROGRAM).args(&words).env("HOME", "/nonexistent").output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn s19_a_directory_has_no_object_lock_and_says_so() {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("pagehaul-repository.json"), "{\"format_version\":1,\"repository_id\":\"00\"}")
        .unwrap();
    let repo = place.path().display().to_string();
    let output = Command::new(PROGRAM).args(["protect", "main", "--for", "1d", "--repo", &repo]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(10), "{said}");
    assert!(said.contains(&repo) && said.contains("object lock") && said.contains("\nhint: "), "{said}");
}

#[test]
fn s19_a_backup_that_is_to_be_protected_is_before_it_is_complete() {
    let test = "object_lock::s19_a_backup_that_is_to_be_protected_is_before_it_is_complete";
    let Some(target) = told_target() else {
        let Some(server) = ForeignStore::moto_with_object_lock() else { return };
        run_again(test, &server.target("some/prefix"), server.environment());
        // What a set consists of is kept, whichever set it is: each of them was to be protected.
        let ends = [".phs", ".sums", "files.table", "manifest.json"];
        let is_of_set = |(key, _): &(String, String)| ends.iter().any(|end| key.ends_with(end));
        let of_sets: Vec<_> = server.versions().into_iter().filter(is_of_set).collect();
        assert!(of_sets.len() >= 10, "{of_sets:?}");
        for (key, version) in of_sets {
            assert!(!server.delete_version(&key, &version), "{key} is not protected");
        }
        return;
    };
    let archived = Archived::start_to(&target);
    archived.cluster.load_typed_tables(100);
    let pgdata = archived.cluster.server.data_directory().display().to_string();
    let stripes = target.replace("some/prefix", "stripes");
    let words = ["backup", "main", "--pgdata", &pgdata, "--json", "--protect-for"];
    let backup = |flags: &[&str]| archived.run_well(&[&words[..], flags].concat()).json();
    let until = |label: &Value| {
        protected_until(&archived.run_well(&["info", "main", "--json"]).json(), label.as_str().unwrap())
    };
    let full = backup(&["2d", "--parity", "1", "--stripes", "2", "--stripe-to", &stripes]);
    assert!(full["protected_until"].is_string(), "{full}");
    assert_eq!(until(&full["label"]).as_deref(), full["protected_until"].as_str());
    let incremental = backup(&["5d", "--type", "incr", "--no-full"]);
    for label in [&full["label"], &incremental["label"]] {
        assert_eq!(until(label).as_deref(), incremental["protected_until"].as_str(), "what it needs, too");
    }
    // A prior that is bound otherwise is told before the data is read, and nothing is left of the backup.
    let refused = archived.run(&[&words[..], &["1d", "--type", "incr", "--protect-mode", "compliance"]].concat());
    assert_eq!(refused.code, Some(10), "{refused:?}");
    assert!(refused.stdout.contains("in governance mode until"), "{refused:?}");
    let listed = archived.run_well(&["info", "main", "--json"]).json();
    let complete = listed[0]["sets"].as_array().unwrap().iter().filter(|set| set["state"] == "complete");
    assert_eq!(complete.count(), 2, "{listed}");
}

/// Before anything is written or asked of the server.
#[test]
fn s19_a_backup_is_not_begun_where_it_cannot_be_protected() {
    let place = tempfile::tempdir().unwrap();
    let repo = place.path().join("repo").display().to_string();
    let words =
        ["backup", "main", "--pgdata", "/nonexistent", "--protect-for", "1d", "--repo", &repo, "--history", "NUL"];
    let output = Command::new(PROGRAM).args(words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(10), "{said}");
    assert!(said.contains(&repo) && said.contains("object lock") && said.contains("\nhint: "), "{said}");
    assert!(!std::path::Path::new(&repo).exists(), "nothing is made");
}
