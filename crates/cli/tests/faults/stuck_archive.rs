//! WAL that cannot be archived: it stays in the cluster, the alarm says how long there is room for it, and nothing is lost
//! when there is none any more.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pagehaul_engine::source::postgres::scratch_server::StopMode;
use pagehaul_testkit::cluster::{Cluster, QUICK, default_install, work_directory};

use super::bench::Ran;
use super::full_disk::SmallDisk;
use super::strace;
use super::wal::Wal;
use super::wal_recovery::{
    archive_command, backup, give_to_server, pagehaul, recover_from_archive, start_archiving, wait_for,
};

/// More than what fills the disk.
const ROWS_MAX: u32 = 2_000;

/// How long a call hangs; the signal comes half-way.
const HANGS_FOR: Duration = Duration::from_millis(1500);

/// Moves pg_wal of a running cluster to a disk of its own.
fn move_wal(cluster: &mut Cluster, disk: &Path, settings: &[(&str, &str)]) {
    cluster.server.stop(StopMode::Fast).unwrap();
    let (from, to) = (cluster.server.data_directory().join("pg_wal"), disk.join("pg_wal"));
    pagehaul_testkit::damage::copy_tree(&from, &to);
    std::fs::remove_dir_all(&from).unwrap();
    std::os::unix::fs::symlink(&to, &from).unwrap();
    cluster.server.start(settings).unwrap();
}

/// Commits rows, each with much WAL, until the server can no more; gives how many were acknowledged.
fn write_until_full(cluster: &Cluster) -> u32 {
    let mut connection = cluster.connect();
    for number in 1..=ROWS_MAX {
        let sql = format!(
            "INSERT INTO ledger SELECT {number}, md5('{number}') \
             FROM pg_logical_emit_message(true, 'x', repeat(md5(random()::text), 6000))"
        );
        if connection.query(&sql).is_err() {
            return number - 1;
        }
    }
    panic!("the disk is never full");
}

#[test]
fn f18_a_full_pg_wal_is_foreseen_and_costs_nothing_that_was_committed() {
    let work = work_directory();
    let disk = work.path().join("wal-disk");
    let Some(small) = SmallDisk::mount(&disk, "size=48m,mode=0700") else { return };
    // After the disk, which can only go when the server has stopped.
    let mut cluster = start_archiving(&default_install(), work.path());
    cluster.run(&["CREATE TABLE ledger (n int PRIMARY KEY, x text)"]);
    backup(&cluster, work.path());
    give_to_server(&disk, cluster.server.data_directory());
    let command = archive_command(work.path());
    let settings = [QUICK, &[("archive_mode", "on"), ("archive_command", command.as_str())][..]].concat();
    move_wal(&mut cluster, &disk, &settings);
    let (repo, away) = (work.path().join("repo"), work.path().join("away"));
    let alarm = |cluster: &Cluster| {
        let server = cluster.server.connect_settings();
        let connection = format!("host={} port={} user={}", server.host, server.port, server.user);
        let away = away.display().to_string();
        pagehaul(work.path(), &["check", "main", "--no-marker", "--json", "--connection", &connection, "--repo", &away])
    };
    std::fs::rename(&repo, &away).unwrap();
    std::fs::write(&repo, b"not a directory").unwrap();
    for _ in 0..12 {
        cluster.run(&["SELECT pg_logical_emit_message(true, 'x', repeat('x', 1000))", "SELECT pg_switch_wal()"]);
    }
    // Their age in whole seconds is what the alarm reckons with.
    std::thread::sleep(Duration::from_millis(1100));
    assert_alarm(&alarm(&cluster));

    let acknowledged = write_until_full(&cluster);
    assert!(cluster.server.log_tail().contains("No space left on device"), "{}", cluster.server.log_tail());
    cluster.server.stop(StopMode::Immediate).ok();
    small.resize("size=256m");
    std::fs::remove_file(&repo).unwrap();
    std::fs::rename(&away, &repo).unwrap();
    cluster.server.start(&settings).unwrap();
    let kept: u32 = cluster.value("SELECT count(*) FROM ledger").parse().unwrap();
    assert!(kept >= acknowledged, "{kept} of {acknowledged} rows");
    cluster.run(&["SELECT pg_switch_wal()"]);
    wait_for(&cluster, "SELECT count(*) FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'", "0");
    let target = restore_newest(work.path(), &repo);
    recover_from_archive(work.path(), &target);
    let copy = cluster.adopt(&target);
    wait_for(&copy, "SELECT pg_is_in_recovery()", "f");
    let rows = "SELECT count(*) || ' ' || max(n) || ' ' || bool_and(x = md5(n::text)) FROM ledger";
    assert_eq!(copy.value(rows), format!("{kept} {kept} true"));
}

fn restore_newest(work: &Path, repo: &Path) -> PathBuf {
    let target = work.join("restored");
    let words = ["restore", "--repo", &repo.display().to_string(), "--target-dir", &target.display().to_string()];
    let ran = pagehaul(work, &words);
    assert_eq!(ran.code, Some(0), "{ran}");
    target
}

/// It names the archiver, and how long there is room.
fn assert_alarm(ran: &Ran) {
    assert_eq!(ran.code, Some(20), "{ran}");
    let document = ran.json();
    let lines = document["lines"].as_array().unwrap();
    let archiver = lines.iter().find(|line| line["what"] == "archiver").unwrap_or_else(|| panic!("{ran}"));
    assert_eq!(archiver["state"], "problem", "{archiver}");
    let text = archiver["text"].as_str().unwrap();
    assert!(text.contains("segments wait") && text.contains("is full in about"), "{text}");
}

/// A push that takes long at one of its calls, as on a disk that hangs, and is asked to end meanwhile.
fn stopped_half_way(wal: &Wal, call: &str, segment: &Path) -> Ran {
    let pid_file = wal.place.directory.join("pid");
    std::fs::remove_file(&pid_file).ok();
    let mut command = Command::new("strace");
    let delay = format!("inject={call}:delay_enter={}:when=1", HANGS_FOR.as_micros());
    let filter = format!("trace={call}");
    command.args(["-f", "-qq", "-o", "/dev/null", "-e", &filter, "-e", &delay, "sh", "-c"]);
    command.args(["echo $$ > pid; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_pagehaul")]);
    command.args(wal.push_arguments(&[segment]));
    wal.place.tidy_environment(&mut command);
    let started = Instant::now();
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    while std::fs::read_to_string(&pid_file).map_or(0, |pid| pid.len()) < 2 {
        assert!(started.elapsed() < Duration::from_secs(20), "it does not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(700));
    let pid = std::fs::read_to_string(&pid_file).unwrap();
    Command::new("kill").args(["-s", "TERM", pid.trim()]).status().unwrap();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    let mut output = child.wait_with_output().unwrap();
    output.stderr = said.into_bytes();
    assert!(started.elapsed() > HANGS_FOR, "it never came to {call}");
    assert!(started.elapsed() < Duration::from_secs(20), "{call}: it goes on after the signal");
    Ran::from(output)
}

#[test]
fn f18_a_push_that_hangs_and_is_stopped_is_not_acknowledged() {
    if !strace::is_usable("wal_term") {
        return;
    }
    let wal = Wal::with_repository("wal_term");
    for (call, segment) in ["pwrite64", "fdatasync", "renameat2", "fsync"].into_iter().zip(&wal.segments) {
        let ran = stopped_half_way(&wal, call, segment);
        if ran.code == Some(0) {
            wal.assert_delivers(segment);
        }
        let again = wal.push(&[segment]);
        assert_eq!(again.code, Some(0), "{call}: {again}");
        wal.assert_delivers(segment);
    }
}
