//! Bad input: each answered with its exit code, an error that says what to do, and with --json a document.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::path::Path;
use std::process::{Command, Output};

/// The command without settings of whoever runs the tests, in `directory`.
fn pagehaul(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagehaul"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PAGEHAUL_")) {
        command.env_remove(name);
    }
    command.args(arguments).current_dir(directory).env("LC_ALL", "C").env("PAGEHAUL_HISTORY", "NUL");
    command
}

fn run(arguments: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    pagehaul(directory.path(), arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Checks exit code, error and hint of `output`.
fn check_refused(output: &Output, exit_code: i32, parts: &[&str]) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(exit_code), "{stderr}");
    assert!(stderr.contains("error: unable to "), "{stderr}");
    assert!(stderr.contains("\nhint: "), "{stderr}");
    for part in parts {
        assert!(stderr.contains(part), "{part:?} is not in {stderr}");
    }
}

/// As [`check_refused`], for a command with and without --json, which adds one document on standard output.
fn check_both_ways(arguments: &[&str], exit_code: i32, kind: &str, parts: &[&str]) {
    let plain = run(arguments);
    check_refused(&plain, exit_code, parts);
    assert!(plain.stdout.is_empty(), "{}", text(&plain.stdout));
    let json = run(&[arguments, &["--json"]].concat());
    check_refused(&json, exit_code, parts);
    let document: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(document["error"]["exit_code"], exit_code);
    assert_eq!(document["error"]["kind"], kind);
    assert!(document["error"]["message"].as_str().unwrap().starts_with("unable to "), "{document}");
    assert!(!document["error"]["hint"].as_str().unwrap().is_empty(), "{document}");
}

#[test]
fn a_repository_that_is_not_there() {
    for verb in ["info", "verify"] {
        check_both_ways(&[verb, "--repo", "/nonexistent/repo"], 30, "repository", &["/nonexistent/repo"]);
    }
    let restore = ["restore", "--repo", "/nonexistent/repo", "--target-dir", "new"];
    check_both_ways(&restore, 30, "repository", &["/nonexistent/repo"]);
}

#[test]
fn a_directory_that_is_no_repository() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("letter.txt"), "hello").unwrap();
    let repo = directory.path().to_str().unwrap();
    check_both_ways(&["info", "--repo", repo], 30, "repository", &["not a pagehaul repository"]);
    let backup = ["backup", "--repo", repo, "--pgdata", "/nonexistent"];
    check_both_ways(&backup, 30, "repository", &["not a pagehaul repository"]);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn values_that_mean_nothing() {
    let backup = |flag: &'static str, value: &'static str, parts: &[&str]| {
        check_both_ways(&["backup", "--repo", "r", flag, value], 2, "usage", parts);
    };
    backup("--compression", "zip", &["\"zip\" is not a codec", "zstd:medium"]);
    backup("--compression", "zstd:99", &["zstd has no level", "1 to 22"]);
    backup("--compression", "auto:3", &["\"auto\" is not a codec", "and auto"]);
    backup("--stripe-to", "throttle:write=fast:/x", &["\"fast\" is not a rate", "throttle:write=100MB/s"]);
    backup("--transfer-size", "big", &["--transfer-size", "1MiB"]);
    backup("--frame-size", "1KiB", &["--frame-size", "65536"]);
    backup("--max-rate", "fast", &["--max-rate", "200MB/s"]);
    backup("--readers", "0", &["--readers 0", "1 to"]);
    backup("--readers", "many", &["--readers", "invalid digit"]);
    check_both_ways(&["backup", "--repo", "r", "a/b"], 2, "usage", &["source name"]);
    check_both_ways(&["verify", "--repo", "r", "--set", "newest"], 2, "usage", &["pagehaul info"]);
    let tablespace = ["restore", "--repo", "r", "--target-dir", "t", "--tablespace-map", "x"];
    check_both_ways(&tablespace, 2, "usage", &["OLD=NEW"]);
    let restore = |flags: &[&str], parts: &[&str]| {
        check_both_ways(&[&["restore", "--repo", "r", "--target-dir", "t"], flags].concat(), 2, "usage", parts);
    };
    restore(&["--type", "never"], &["time, lsn, xid, name, immediate, latest, standby"]);
    restore(&["--type", "time"], &["needs a point", "--type time --target"]);
    restore(&["--type", "time", "--target", "yesterday"], &["no time of day", "Europe/Berlin"]);
    restore(&["--target", "0/1"], &["--type does not say"]);
    restore(&["--type", "latest", "--target-timeline", "x"], &["not a timeline", "0000001F"]);
    check_both_ways(&["check", "--repo", "r", "--timeout", "soon"], 2, "usage", &["60s"]);
    check_both_ways(&["info", "--repo", "nfs://host"], 2, "usage", &["kind nfs are not known", "s3://BUCKET"]);
    check_both_ways(&["tune", "--pgdata", "p", "--repo", "s3://bucket"], 2, "usage", &["directories", "throttle:"]);
    check_both_ways(&["info", "--repo", "throttle:/x"], 2, "usage", &["no `:TARGET`", "throttle:write=100MB/s"]);
}

#[test]
fn command_lines_that_are_not_understood() {
    check_both_ways(&["backup"], 2, "usage", &["--repo"]);
    check_both_ways(&["backup", "--repo", "r", "--reader", "2"], 2, "usage", &["--readers"]);
    check_both_ways(&["back-up"], 2, "usage", &["backup"]);
    check_both_ways(&[], 2, "usage", &["--help"]);
    check_refused(&run(&["man", "nothing"]), 2, &["nothing"]);
}

#[test]
fn a_password_on_the_command_line() {
    for connection in ["host=/x password=hunter2", "postgresql://u:hunter2@localhost/db"] {
        let arguments = ["backup", "--repo", "r", "--connection", connection];
        check_both_ways(&arguments, 2, "usage", &["pgpass", "PGPASSFILE"]);
        assert!(!text(&run(&arguments).stderr).contains("hunter2"));
    }
}

#[test]
fn settings_files() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pagehaul.toml");
    let check = |content: &str, parts: &[&str]| {
        std::fs::write(&file, content).unwrap();
        let output = pagehaul(directory.path(), &["info"]).output().unwrap();
        check_refused(&output, 10, &[&["pagehaul.toml"], parts].concat());
        let named = run(&["info", "--config", file.to_str().unwrap()]);
        check_refused(&named, 10, parts);
    };
    check("[backup]\nreader = 2\n", &["\"reader\" in [backup]", "readers"]);
    check("[backup]\nreaders = \"x\"\n", &["readers = \"x\""]);
    check("[backup\n", &["TOML"]);
    check("[backup]\nconnection = \"password=x\"\n", &["chmod 600"]);
    check_refused(&run(&["info", "--config", "/nonexistent.toml"]), 10, &["/nonexistent.toml"]);
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let settings = "[global]\nrepo = \"/from-file\"\n[info]\njson = true\n";
    std::fs::write(directory.path().join("pagehaul.toml"), settings).unwrap();
    let repo_named = |command: &mut Command| {
        let output = command.output().unwrap();
        // `json = true` of the file holds as well.
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        document["error"]["message"].as_str().unwrap().to_owned()
    };
    let mut plain = pagehaul(directory.path(), &["info"]);
    assert!(repo_named(&mut plain).contains("/from-file"));
    assert!(repo_named(plain.env("PAGEHAUL_REPO", "/from-environment")).contains("/from-environment"));
    let mut flag = pagehaul(directory.path(), &["info", "--repo", "/from-flag"]);
    assert!(repo_named(flag.env("PAGEHAUL_REPO", "/from-environment")).contains("/from-flag"));
    let mut switched_off = pagehaul(directory.path(), &["info"]);
    let output = switched_off.env("PAGEHAUL_JSON", "no").output().unwrap();
    assert!(output.stdout.is_empty() && output.status.code() == Some(30), "{output:?}");
}

#[test]
fn an_empty_repository_is_no_error() {
    let directory = tempfile::tempdir().unwrap();
    let marker = r#"{"format_version": 1, "repository_id": "00000000000000000000000000000000"}"#;
    std::fs::write(directory.path().join("pagehaul-repository.json"), marker).unwrap();
    let repo = directory.path().to_str().unwrap();
    let info = run(&["info", "--repo", repo]);
    assert_eq!(info.status.code(), Some(0), "{info:?}");
    assert!(text(&info.stdout).contains("no backup yet"), "{info:?}");
    let json = run(&["info", "--repo", repo, "--json"]);
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&json.stdout).unwrap(), serde_json::json!([]));
    check_both_ways(&["info", "--repo", repo, "main"], 30, "repository", &["no backup yet"]);
    check_both_ways(&["info", "--repo", repo, "--set", "latest"], 30, "repository", &["latest"]);
}

#[test]
fn completions_and_manual_pages() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        assert!(output.status.success() && text(&output.stdout).contains("tablespace-map"), "{shell}");
    }
    let page = run(&["man"]);
    assert!(page.status.success() && text(&page.stdout).contains(".TH pagehaul"));
    let page = run(&["man", "restore"]);
    assert!(page.status.success() && text(&page.stdout).contains("tablespace\\-map"));
}

#[test]
fn help_lists_exit_codes_and_examples() {
    let help = run(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    let help = text(&help.stdout);
    for code in ["0  done", "2  usage", "10  ", "20  ", "30  ", "40  damage", "50  ", "60  ", "70  ", "130  "] {
        assert!(help.contains(code), "{code} is not in {help}");
    }
    for verb in ["backup", "restore", "verify", "info", "demo", "bak"] {
        let help = run(&[verb, "--help"]);
        assert!(help.status.success() && text(&help.stdout).contains("Example"), "{verb}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = pagehaul(directory.path(), &["completions", "bash"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command.stdout(writer).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}
