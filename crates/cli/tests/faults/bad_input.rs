//! What a database administrator gets wrong, each answered with its exit code, one clear error and the next step.

use std::path::Path;

use pagehaul_engine::source::postgres::scratch_server::{InitOptions, StopMode};
use pagehaul_testkit::cluster::{Cluster, QUICK, default_install, work_directory};

use super::bench::{Place, Ran};

/// Refused with `code`, one error and a hint; nothing was made.
fn check(place: &Place, arguments: &[String], code: i32, parts: &[&str]) {
    let ran = place.run(arguments);
    ran.assert_error(code, parts);
    assert_one_error(&ran);
    assert!(!place.repo().join("main/sets").exists() || place.sets().is_empty(), "{ran}");
    place.assert_server_is_free();
}

fn assert_one_error(ran: &Ran) {
    assert_eq!(ran.stderr.matches("error: ").count(), 1, "{ran}");
    assert_eq!(ran.stderr.matches("hint: ").count(), 1, "{ran}");
}

fn with(mut arguments: Vec<String>, flag: &str, value: &str) -> Vec<String> {
    match arguments.iter().position(|argument| argument == flag) {
        Some(at) => value.clone_into(&mut arguments[at + 1]),
        None => arguments.extend([flag.to_owned(), value.to_owned()]),
    }
    arguments
}

#[test]
fn no_server_there() {
    let place = Place::new("bad_server");
    let work = work_directory();
    let mut cluster = Cluster::start_with(&default_install(), work.path(), &InitOptions::default(), QUICK);
    let pgdata = cluster.server.data_directory().display().to_string();
    let elsewhere = with(place.backup_arguments(), "--pgdata", &pgdata);
    let bench = &place.bench.cluster.server;
    let of_bench = format!("host={} port=5432 user=postgres", bench.connect_settings().host);
    check(&place, &with(elsewhere.clone(), "--connection", &of_bench), 20, &["not the one of the server that answers"]);
    cluster.server.stop(StopMode::Fast).unwrap();
    check(&place, &with(elsewhere, "--connection", "user=postgres"), 20, &["connect"]);
    for conninfo in ["host=127.0.0.1 port=1 user=postgres", "host=/nonexistent user=postgres"] {
        check(&place, &with(place.backup_arguments(), "--connection", conninfo), 20, &["connect"]);
    }
    let empty = work.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let arguments = with(place.backup_arguments(), "--pgdata", &empty.display().to_string());
    check(&place, &arguments, 20, &["PG_VERSION"]);
    check(&place, &with(place.backup_arguments(), "--pgdata", "/nonexistent"), 20, &["/nonexistent"]);
}

#[test]
fn a_role_without_rights() {
    let place = Place::new("bad_role");
    place.bench.cluster.run(&["CREATE ROLE weak LOGIN"]);
    let arguments = with(place.backup_arguments(), "--connection", "user=weak");
    check(&place, &arguments, 20, &["GRANT", "weak"]);
    check(&place, &with(arguments, "--connection", "user=nobody_here"), 20, &["nobody_here"]);
}

#[test]
fn a_role_with_the_rights_that_the_hints_name() {
    let place = Place::new("good_role");
    let cluster = &place.bench.cluster;
    cluster.run(&["CREATE ROLE grown LOGIN"]);
    let arguments = with(place.backup_arguments(), "--connection", "user=grown");
    for _ in 0..8 {
        let ran = place.run(&arguments);
        if ran.code == Some(0) {
            place.assert_no_leftovers();
            return;
        }
        ran.assert_error(20, &["GRANT"]);
        // The hint can be pasted.
        let hint = ran.stderr.lines().filter(|line| line.contains("GRANT ")).collect::<String>();
        let statements = &hint[hint.find("GRANT ").unwrap()..];
        for statement in statements.split(';').map(str::trim).filter(|text| text.starts_with("GRANT ")) {
            cluster.run(&[statement]);
        }
    }
    panic!("the rights that the hints name are not enough: {}", place.run(&arguments));
}

#[test]
fn words_that_mean_nothing() {
    let place = Place::new("bad_words");
    let backup = |flag: &str, value: &str, code, parts: &[&str]| {
        check(&place, &with(place.backup_arguments(), flag, value), code, parts);
    };
    backup("--compression", "brotli", 2, &["brotli", "zstd"]);
    backup("--compression", "zstd:23", 2, &["zstd", "22"]);
    backup("--transfer-size", "1KiB", 2, &["--frame-size", "65536"]);
    backup("--transfer-size", "5GiB", 2, &["--transfer-size"]);
    backup("--stripes", "0", 2, &["--stripes"]);
    backup("--max-memory", "2MiB", 10, &["ceiling"]);
    let mut named = place.backup_arguments();
    "No Such Name!".clone_into(&mut named[1]);
    check(&place, &named, 2, &["source name"]);
    check(&place, &[place.backup_arguments(), vec!["--type".into(), "sometimes".into()]].concat(), 2, &["--type"]);
    let target = place.directory.join("target");
    let restore = with(place.restore_arguments(&target), "--type", "yesterday");
    check(&place, &restore, 2, &["yesterday", "immediate"]);
}

#[test]
fn repositories_sets_and_targets_that_are_not_there() {
    let place = Place::new("bad_places");
    let target = place.directory.join("target");
    std::fs::create_dir(place.repo()).unwrap();
    std::fs::write(place.repo().join("letter.txt"), "hello").unwrap();
    check(&place, &place.backup_arguments(), 30, &["not a pagehaul repository"]);
    check(&place, &place.restore_arguments(&target), 30, &["not a pagehaul repository"]);
    assert_eq!(std::fs::read_dir(place.repo()).unwrap().count(), 1);
    std::fs::remove_file(place.repo().join("letter.txt")).unwrap();
    let label = place.backup_label(&place.backup_arguments());
    let refused = |arguments: &[String], code, parts: &[&str]| {
        let ran = place.run(arguments);
        ran.assert_error(code, parts);
        assert_one_error(&ran);
    };
    let restore = place.restore_arguments(&target);
    refused(&with(restore.clone(), "--set", "20200101-000000F"), 30, &["20200101-000000F", "pagehaul info"]);
    let mut other = restore.clone();
    other.insert(1, "other".into());
    refused(&other, 30, &["other"]);
    assert!(!target.exists());
    std::fs::create_dir(&target).unwrap();
    std::fs::write(target.join("letter.txt"), "hello").unwrap();
    refused(&restore, 60, &["not empty", "letter.txt", "nothing was changed"]);
    let running = place.bench.cluster.server.data_directory();
    refused(&place.restore_arguments(running), 60, &["postmaster.pid"]);
    refused(&place.restore_arguments(Path::new("/proc/nothing/here")), 60, &["/proc"]);
    place.assert_sound(&label);
}
