//! `check` against servers that archive, that do not, and that only say so.

use pagehaul_engine::source::postgres::scratch_server::StopMode;
use pagehaul_testkit::cluster::{QUICK, default_install};

use super::archived::{Archived, PROGRAM, Ran, run_program};

/// The line about one thing.
fn line<'a>(document: &'a serde_json::Value, what: &str) -> &'a serde_json::Value {
    let lines = document["lines"].as_array().unwrap();
    lines.iter().find(|line| line["what"] == what).unwrap_or_else(|| panic!("{what} is not in {document}"))
}

fn check(archived: &Archived, flags: &[&str]) -> Ran {
    archived.run(&[&["check", "main", "--json"], flags].concat())
}

/// Starts the server anew with this archive_command.
fn with_command(archived: &mut Archived, mode: &str, command: &str) {
    archived.cluster.server.stop(StopMode::Fast).unwrap();
    let mut settings = QUICK.to_vec();
    settings.extend([("archive_mode", mode), ("archive_command", command)]);
    archived.cluster.server.start(&settings).unwrap();
}

#[test]
fn f21_archiving_that_works_is_proven_with_a_marker() {
    let archived = Archived::start(&default_install());
    archived.backup();
    let ran = check(&archived, &[]);
    assert_eq!(ran.code, Some(0), "{}", ran.stdout);
    let document = ran.json();
    assert_eq!(document["ok"], true);
    for what in ["repository", "server", "identity", "settings", "archiver", "marker", "backups", "WAL"] {
        assert_eq!(line(&document, what)["state"], "ok", "{document}");
    }
    assert!(document["marker"]["lag_s"].as_f64().unwrap() < 60.0, "{document}");
    let plain = archived.run_well(&["check"]).stdout;
    assert!(plain.lines().count() >= 8 && plain.contains("was read back from the repository"), "{plain}");

    let before = archived.cluster.value("SELECT pg_current_wal_insert_lsn()");
    let quiet = check(&archived, &["--no-marker"]).json();
    assert_eq!(line(&quiet, "marker")["state"], "skipped", "{quiet}");
    assert_eq!(quiet["marker"], serde_json::Value::Null);
    let points = format!("SELECT pg_current_wal_insert_lsn() - '{before}'::pg_lsn < 1000");
    assert_eq!(archived.cluster.value(&points), "t", "--no-marker wrote WAL");
}

#[test]
fn f21_archiving_that_is_silently_off_is_found() {
    let mut archived = Archived::start(&default_install());
    archived.backup();
    archived.wait_until_archived(&archived.cluster);
    let expect = |archived: &Archived, code: i32, what: &str, part: &str| {
        let ran = check(archived, &["--timeout", "3s"]);
        assert_eq!(ran.code, Some(code), "{}", ran.stdout);
        let document = ran.json();
        let found = line(&document, what);
        assert_eq!(found["state"], "problem", "{document}");
        assert!(found["text"].as_str().unwrap().contains(part), "{part:?} is not in {found}");
        assert!(found["next"].is_string(), "{found}");
    };
    with_command(&mut archived, "off", "");
    expect(&archived, 20, "settings", "archive_mode is off");
    with_command(&mut archived, "on", "");
    expect(&archived, 20, "settings", "neither archive_command nor archive_library");
    with_command(&mut archived, "on", "false");
    expect(&archived, 30, "marker", "failed");
    with_command(&mut archived, "on", "sleep 600 && false");
    expect(&archived, 30, "marker", "did not arrive within 3 s");
    archived.cluster.crash();
    archived.cluster.server.start(&[QUICK, &[("archive_mode", "on"), ("archive_command", "true")]].concat()).unwrap();
    expect(&archived, 30, "marker", "is not in this repository");

    // What `true` let go is a gap now, and the next segments do arrive.
    archived.cluster.server.stop(StopMode::Fast).unwrap();
    archived.start_server();
    let ran = check(&archived, &[]);
    assert_eq!(ran.code, Some(30), "{}", ran.stdout);
    let document = ran.json();
    assert_eq!(line(&document, "marker")["state"], "ok", "{document}");
    assert!(line(&document, "backups")["text"].as_str().unwrap().contains("a gap begins"), "{document}");
    assert!(line(&document, "WAL")["text"].as_str().unwrap().contains("missing"), "{document}");
    archived.backup();
    assert_eq!(check(&archived, &[]).code, Some(0), "a new backup heals it");
}

#[test]
fn f11_another_cluster_under_this_name_is_a_conflict() {
    let one = Archived::start(&default_install());
    one.backup();
    let other = Archived::start(&default_install());
    let repo = one.repo.display().to_string();
    let arguments = ["check", "main", "--repo", &repo, "--no-marker", "--json"];
    let ran = run_program(&other.cluster.server, PROGRAM, &arguments);
    let document = ran.json();
    assert_eq!(ran.code, Some(50), "{document}");
    assert_eq!(line(&document, "identity")["state"], "problem", "{document}");
}

#[test]
fn a_standby_says_what_it_cannot_do() {
    let archived = Archived::start(&default_install());
    archived.backup();
    archived.wait_until_archived(&archived.cluster);
    let copy = archived.recover("standby", &["--type", "standby"]);
    let ran = archived.run_for(&copy.cluster.server, &["check", "main", "--json"]);
    let document = ran.json();
    assert_eq!(ran.code, Some(0), "{document}");
    assert_eq!(line(&document, "settings")["state"], "note", "{document}");
    let marker = line(&document, "marker");
    assert!(marker["text"].as_str().unwrap().contains("run the check on the primary"), "{marker}");
    let nowhere = ["check", "--repo", "/nonexistent", "--connection", "host=/nonexistent", "--json"];
    let ran = run_program(&archived.cluster.server, PROGRAM, &nowhere);
    let document = ran.json();
    assert_eq!(ran.code, Some(30), "{document}");
    assert_eq!(document["lines"].as_array().unwrap().len(), 2, "{document}");
}
