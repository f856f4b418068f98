//! A cluster of which nothing is known here but its address: backed up and its WAL received over the protocol.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use jiff::Timestamp;
use pagehaul_engine::source::postgres::scratch_server::StopMode;
use pagehaul_engine::terms::Lsn;
use pagehaul_testkit::cluster::default_install;

use super::archived::{Archived, PROGRAM, wait_for};
use super::ledger::Ledger;

fn receive(archived: &Archived, connection: &str, sign_key: &str) -> Child {
    let owner = std::fs::metadata(archived.cluster.server.data_directory()).unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(["--history", "NUL", "wal", "receive", "--connection", connection, "--flush-every", "0.1"]);
    command.args(["--sign-key", sign_key, "--slot", "pagehaul", "--create-slot", "--repo"]).arg(&archived.repo);
    command.stdin(Stdio::null()).stdout(Stdio::null()).env("HOME", "/nonexistent").current_dir("/");
    if owner.uid() != std::fs::metadata("/proc/self").unwrap().uid() {
        command.uid(owner.uid()).gid(owner.gid());
    }
    command.spawn().unwrap()
}

#[test]
fn a_remote_set_and_received_wal_reach_what_is_asked_for() {
    let mut archived = Archived::start(&default_install());
    let sign_key = archived.cluster.server_directory("keys").join("signer").display().to_string();
    let new = archived.run_program_well(&["key", "new", "--signing", "--output", &sign_key, "--json"]);
    let signer = new.json()["signer"].as_str().unwrap().to_owned();
    archived.cluster.server.stop(StopMode::Fast).unwrap();
    archived.archive_flags = format!("--sign-key {sign_key}");
    archived.start_server();
    let cluster = &archived.cluster;
    // Nothing comes by the way of the archiver.
    cluster.run(&["ALTER SYSTEM SET archive_command = '/bin/true'", "SELECT pg_reload_conf()"]);
    let server = cluster.server.connect_settings();
    let connection = format!("host={} port={} user={}", server.host, server.port, server.user);
    let mut ledger = Ledger::create(cluster);
    ledger.write(cluster, 1, 20);
    archived.run_well(&[
        "backup",
        "main",
        "--remote",
        "--connection",
        &connection,
        "--sign-key",
        &sign_key,
        "--known-heads",
        "NUL",
    ]);
    let mut receiver = receive(&archived, &connection, &sign_key);
    let streams = "SELECT count(*) FROM pg_stat_replication WHERE application_name = 'pagehaul'";
    wait_for("the receiver", || cluster.value(streams) == "1");

    let reachable = ledger.entries.len();
    ledger.write(cluster, 100, 30);
    ledger.mark(cluster, "half");
    ledger.write(cluster, 200, 30);
    let middle = reachable + 20;
    cluster.value("SELECT pg_switch_wal()");
    // The last rows are in a segment that is not whole, in many pieces.
    let whole = ledger.entries.len();
    for first in 0..6 {
        ledger.write(cluster, 300 + first * 10, 5);
        std::thread::sleep(std::time::Duration::from_millis(250));
    }
    ledger.mark(cluster, "open");
    ledger.write(cluster, 400, 5);
    let wanted = cluster.value("SELECT pg_current_wal_flush_lsn()");
    let is_durable = format!("SELECT coalesce(bool_or(flush_lsn >= '{wanted}'), false) FROM pg_stat_replication");
    wait_for("the archive", || cluster.value(&is_durable) == "t");
    Command::new("kill").args(["-s", "TERM", &receiver.id().to_string()]).status().unwrap();
    assert_eq!(receiver.wait().unwrap().code(), Some(0));

    let at = ledger.entries[middle - 1].at.to_string();
    let lsn = ledger.entries[middle - 1].lsn.to_string();
    for (flags, count) in [
        (["--type", "time", "--target", &at], middle),
        (["--type", "lsn", "--target", &lsn], middle),
        (["--type", "name", "--target", "half"], reachable + 30),
        (["--type", "latest", "--target-timeline", "latest"], ledger.entries.len()),
    ] {
        let copy = archived.recover("copy", &flags);
        ledger.assert_prefix(&copy.cluster, count, &format!("{flags:?}"));
        copy.remove();
    }
    recover_inside_pieces(&archived, &ledger, whole, &signer);
}

/// The rows from `whole` on are in pieces only, each of which is signed.
fn recover_inside_pieces(archived: &Archived, ledger: &Ledger, whole: usize, signer: &str) {
    let (last, inside) = (&ledger.entries[ledger.entries.len() - 1], &ledger.entries[whole + 12]);
    let info = archived.run_well(&["info", "main", "--json"]).json();
    let window = info[0]["wal"][0]["timelines"][0]["windows"][0].clone();
    let end: Lsn = window["end_lsn"].as_str().unwrap().parse().unwrap();
    assert!(end >= last.lsn, "{window}");
    let last_commit: Timestamp = window["last_commit_time"].as_str().unwrap().parse().unwrap();
    assert_eq!(last_commit, last.at, "{window}");

    let (at, lsn, xid) = (inside.at.to_string(), inside.lsn.to_string(), inside.xid.to_string());
    for (flags, count) in [
        (["--type", "time", "--target", &at], whole + 13),
        (["--type", "lsn", "--target", &lsn], whole + 13),
        (["--type", "xid", "--target", &xid], whole + 13),
        (["--type", "name", "--target", "open"], whole + 30),
    ] {
        let copy = archived.recover("copy", &[&flags[..], &["--signer", signer, "--known-heads", "NUL"]].concat());
        ledger.assert_prefix(&copy.cluster, count, &format!("inside pieces: {flags:?}"));
        copy.remove();
    }
    let behind = Lsn(end.0 + 8).to_string();
    let ran = archived.restore(&archived.target("behind"), &["--type", "lsn", "--target", &behind]);
    ran.assert_refused(30, &["the archived WAL ends before it, at"]);
    let ran = archived.restore(&archived.target("behind"), &["--type", "time", "--target", &last.at.to_string()]);
    ran.assert_refused(30, &["no commit behind it is archived"]);
}
