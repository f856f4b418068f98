//! WAL received and a server backed up over the replication protocol, by the command as people type it.

use std::process::{Command, Stdio};
use std::time::Duration;

use pagehaul_engine::catalog::Repository;
use pagehaul_testkit::cluster::{Cluster, default_install, work_directory};
use serde_json::Value;

fn pagehaul(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagehaul"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PAGEHAUL_")) {
        command.env_remove(name);
    }
    command.args(arguments).env("PAGEHAUL_HISTORY", "NUL").stdin(Stdio::null());
    command
}

fn conninfo(cluster: &Cluster) -> String {
    let server = cluster.server.connect_settings();
    format!("host={} port={} user={}", server.host, server.port, server.user)
}

#[test]
fn a_signal_ends_a_receiver_when_everything_is_stored() {
    let work = work_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    cluster.run(&["CREATE TABLE t (i int)"]);
    let (repo, connection) = (cluster.repo(), conninfo(&cluster));
    let spool = work.path().display().to_string();
    let arguments = ["wal", "receive", "--connection", &connection, "--repo", &repo, "--spool-dir", &spool, "--json"];
    let homeless = pagehaul(&arguments).output().unwrap();
    assert_eq!(homeless.status.code(), Some(30), "{homeless:?}");
    assert!(!std::path::Path::new(&repo).exists(), "a receiver makes no repository");
    Repository::open_or_create(&repo).unwrap();
    let refused = pagehaul(&[&arguments[..], &["--slot", "pagehaul"]].concat()).output().unwrap();
    assert_eq!(refused.status.code(), Some(20), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--create-slot"), "{refused:?}");

    let child = pagehaul(&[&arguments[..], &["--slot", "pagehaul", "--create-slot", "--flush-every", "0.1"]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    cluster.run(&["INSERT INTO t SELECT generate_series(1, 10000)"]);
    let wanted = cluster.value("SELECT pg_current_wal_flush_lsn()");
    let is_durable = format!("SELECT coalesce(bool_or(flush_lsn >= '{wanted}'), false) FROM pg_stat_replication");
    for _ in 0..300 {
        if cluster.value(&is_durable) == "t" {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let is_behind = format!("SELECT '{}'::pg_lsn < '{wanted}'::pg_lsn", report["durable_lsn"].as_str().unwrap());
    assert_eq!(cluster.value(&is_behind), "f", "{report}");
    assert!(report["piece_count"].as_u64().unwrap() > 0, "{report}");
    assert!(!work.path().join("pagehaul-receive-main").exists(), "the spool is left");
}

#[test]
fn a_remote_backup_is_a_set_like_any_other() {
    let work = work_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    cluster.load_typed_tables(2000);
    let (repo, connection) = (cluster.repo(), conninfo(&cluster));
    let output =
        pagehaul(&["backup", "--remote", "--connection", &connection, "--repo", &repo, "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["state"], "complete");
    let verified = pagehaul(&["verify", "--repo", &repo]).output().unwrap();
    assert_eq!(verified.status.code(), Some(0), "{verified:?}");
    let planned = pagehaul(&["backup", "--remote", "--connection", &connection, "--repo", &repo, "--dry-run"]).output();
    assert_eq!(planned.unwrap().status.code(), Some(2));
}
