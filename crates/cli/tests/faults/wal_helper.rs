//! The helper as a process of its own: started, killed, stopped, refused; under a real server that archives and recovers.

use std::collections::BTreeSet;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use pagehaul_engine::catalog::Repository;
use pagehaul_engine::source::postgres::scratch_server::{InitOptions, StopMode};
use pagehaul_testkit::cluster::{Cluster, QUICK, default_install, work_directory};
use pagehaul_testkit::program::copy_program;
use tempfile::TempDir;

use super::bench::{Ran, Random};

/// A server of one test, with segments of 1 MiB, that archives with the helper.
struct Archiving {
    cluster: Cluster,
    /// As the server's user sees it.
    repo: PathBuf,
    program: PathBuf,
    /// XDG_RUNTIME_DIR of all that the test calls itself.
    runtime: PathBuf,
    work: TempDir,
}

impl Archiving {
    fn start(idle: &str) -> Self {
        let work = work_directory();
        let options = InitOptions { wal_segment_size_mib: Some(1), ..InitOptions::default() };
        let (repo, program) = (work.path().join("repo"), work.path().join("pagehaul"));
        copy_program(Path::new(env!("CARGO_BIN_EXE_pagehaul")), &program);
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        let command = format!("{} wal push --repo {} --helper-idle {idle} %p", program.display(), repo.display());
        let mut settings = QUICK.to_vec();
        settings.extend([("archive_mode", "on"), ("archive_command", command.as_str()), ("wal_keep_size", "4GB")]);
        let cluster = Cluster::start_with(&default_install(), work.path(), &options, &settings);
        let runtime = cluster.server_directory("runtime");
        std::fs::set_permissions(&runtime, PermissionsExt::from_mode(0o700)).unwrap();
        let archiving = Archiving { cluster, repo, program, runtime, work };
        Repository::open_or_create(&archiving.repo.display().to_string()).unwrap();
        archiving.give_to_server(&archiving.repo);
        archiving.give_to_server(&archiving.repo.join("pagehaul-repository.json"));
        archiving
    }

    fn pgdata(&self) -> &Path {
        self.cluster.server.data_directory()
    }

    fn give_to_server(&self, path: &Path) {
        use std::os::unix::fs::MetadataExt;
        let data = std::fs::metadata(self.pgdata()).unwrap();
        chown(path, Some(data.uid()), Some(data.gid())).unwrap();
    }

    /// The command as the server would call it: its user, its directory.
    fn pagehaul(&self, arguments: &[&str]) -> Command {
        use std::os::unix::fs::MetadataExt;
        use std::os::unix::process::CommandExt;
        let data = std::fs::metadata(self.pgdata()).unwrap();
        let mut command = Command::new(&self.program);
        command.args(arguments).uid(data.uid()).gid(data.gid()).current_dir(self.pgdata());
        command.env("XDG_RUNTIME_DIR", &self.runtime).env("PAGEHAUL_HISTORY", "NUL").env("LC_ALL", "C");
        command
    }

    fn push(&self, name: &str, flags: &[&str]) -> Ran {
        let (repo, file) = (self.repo.display().to_string(), format!("pg_wal/{name}"));
        Ran::of(&mut self.pagehaul(&[&["wal", "push", "--verbose", "--repo", &repo, &file], flags].concat()))
    }

    fn get(&self, name: &str, flags: &[&str]) -> Ran {
        let repo = self.repo.display().to_string();
        let words = ["wal", "get", "--verbose", "--repo", &repo, name, "pg_wal/RECOVERYXLOG"];
        Ran::of(&mut self.pagehaul(&[&words, flags].concat()))
    }

    /// Makes `count` segments of WAL.
    fn make_wal(&self, count: u32) {
        for _ in 0..count {
            self.cluster.run(&[
                "SELECT pg_logical_emit_message(true, 'x', repeat(md5(random()::text), 9000))",
                "SELECT pg_switch_wal()",
            ]);
        }
    }

    /// What the server takes for archived.
    fn acknowledged(&self) -> BTreeSet<String> {
        let entries = std::fs::read_dir(self.pgdata().join("pg_wal/archive_status")).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        names.filter_map(|name| name.strip_suffix(".done").map(str::to_owned)).collect()
    }

    fn wait_until_archived(&self) {
        let begun = Instant::now();
        let is_ready = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().ends_with(".ready");
        while std::fs::read_dir(self.pgdata().join("pg_wal/archive_status")).unwrap().flatten().any(is_ready) {
            assert!(
                begun.elapsed() < Duration::from_secs(120),
                "archiving does not get on: {}",
                self.cluster.server.log_tail()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Every segment that the server takes for archived reads back with its bytes.
    fn assert_acknowledged_is_there(&self, why: &str) -> usize {
        let names = self.acknowledged();
        let segments = names.iter().filter(|name| name.len() == 24);
        for name in segments.clone() {
            let ran = self.get(name, &["--no-helper"]);
            assert_eq!(ran.code, Some(0), "{why}: {name}: {ran}");
            let wal = self.pgdata().join("pg_wal");
            assert!(
                std::fs::read(wal.join("RECOVERYXLOG")).unwrap() == std::fs::read(wal.join(name)).unwrap(),
                "{why}: other bytes came back for {name}"
            );
        }
        segments.count()
    }

    /// The helpers of this test's program.
    fn helpers(&self) -> Vec<i32> {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let is_helper = |pid: &i32| {
            let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            program.starts_with(self.work.path()) && words.windows(9).any(|words| words == b"wal\0serve")
        };
        pids.filter(is_helper).collect()
    }

    fn signal(&self, signal: &str, pid: i32) {
        Command::new("kill").args(["-s", signal, &pid.to_string()]).status().unwrap();
    }

    /// The one helper; of two that were started at once, the one that finds the other goes within a moment.
    fn one_helper(&self) -> i32 {
        let begun = Instant::now();
        loop {
            match self.helpers()[..] {
                [helper] => return helper,
                ref helpers => assert!(begun.elapsed() < Duration::from_secs(5), "{helpers:?}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Archiving {
    fn drop(&mut self) {
        for helper in self.helpers() {
            self.signal("KILL", helper);
        }
    }
}

fn peak_rss_kib(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_burst_is_archived_whole_within_bounded_memory_and_the_helper_goes() {
    let archiving = Archiving::start("2s");
    archiving.make_wal(120);
    let helper = archiving.one_helper();
    archiving.wait_until_archived();
    assert!(archiving.assert_acknowledged_is_there("burst") >= 120);
    assert_eq!(archiving.cluster.value("SELECT failed_count FROM pg_stat_archiver"), "0");
    if let Some(peak) = archiving.helpers().first().map(|pid| peak_rss_kib(*pid)) {
        // The program's own 32 MiB, and for each of at most 4 threads an encoder with its frames.
        assert!(peak < 128 * 1024, "{peak} KiB");
    }
    let begun = Instant::now();
    while !archiving.helpers().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(20), "the idle helper {helper} stays");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_helper_killed_at_any_moment_loses_nothing_that_was_acknowledged() {
    let archiving = Archiving::start("60s");
    let mut random = Random::for_test("helper_kill");
    let mut kills = 0;
    for round in 0..12 {
        archiving.make_wal(8);
        std::thread::sleep(Duration::from_millis(random.below(120) as u64));
        for helper in archiving.helpers() {
            archiving.signal("KILL", helper);
            kills += 1;
        }
        if round % 4 == 3 {
            archiving.assert_acknowledged_is_there(&format!("after {kills} kills"));
        }
    }
    archiving.wait_until_archived();
    assert!(archiving.assert_acknowledged_is_there("at the end") >= 96);
    assert!(kills >= 6, "only {kills} helpers were met");
    let failed: u32 = archiving.cluster.value("SELECT failed_count FROM pg_stat_archiver").parse().unwrap();
    assert_eq!(failed, 0, "a call whose helper dies does the work itself");
}

#[test]
fn a_stopped_helper_is_left_alone_and_its_later_work_harms_nothing() {
    let mut archiving = Archiving::start("60s");
    archiving.make_wal(3);
    archiving.wait_until_archived();
    archiving.cluster.server.stop(StopMode::Fast).unwrap();
    let names: Vec<String> = archiving.acknowledged().into_iter().filter(|name| name.len() == 24).collect();
    for helper in archiving.helpers() {
        archiving.signal("KILL", helper);
    }
    assert_eq!(archiving.get(&names[0], &[]).code, Some(0));
    let helper = archiving.one_helper();
    archiving.signal("STOP", helper);
    let begun = Instant::now();
    let ran = archiving.get(&names[1], &[]);
    assert_eq!(ran.code, Some(0), "{ran}");
    assert!(ran.stderr.contains("done without the helper"), "{ran}");
    assert!(begun.elapsed() < Duration::from_secs(15));
    let wal = archiving.pgdata().join("pg_wal");
    let delivered = std::fs::read(wal.join("RECOVERYXLOG")).unwrap();
    archiving.signal("CONT", helper);
    std::thread::sleep(Duration::from_millis(700));
    assert!(std::fs::read(wal.join("RECOVERYXLOG")).unwrap() == delivered, "the helper never writes there itself");
    assert_eq!(archiving.get("000000010000000F00000001", &[]).code, Some(1));
    assert_eq!(archiving.get("no-wal-name", &[]).code, Some(126));
}

#[test]
fn no_safe_place_for_a_socket_means_no_helper() {
    let mut archiving = Archiving::start("60s");
    archiving.make_wal(2);
    archiving.wait_until_archived();
    archiving.cluster.server.stop(StopMode::Fast).unwrap();
    let names: Vec<String> = archiving.acknowledged().into_iter().filter(|name| name.len() == 24).collect();
    for helper in archiving.helpers() {
        archiving.signal("KILL", helper);
    }
    let sockets = archiving.runtime.join("pagehaul");
    std::fs::create_dir(&sockets).unwrap();
    let refused = |why: &str| {
        for ran in [archiving.push(&names[0], &[]), archiving.get(&names[0], &[])] {
            assert_eq!(ran.code, Some(0), "{why}: {ran}");
            assert!(ran.stderr.contains("done without the helper") && ran.stderr.contains(why), "{why}: {ran}");
        }
        assert!(archiving.helpers().is_empty());
    };
    if std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0) {
        std::fs::set_permissions(&sockets, PermissionsExt::from_mode(0o700)).unwrap();
        refused("it belongs to user 0");
        archiving.give_to_server(&sockets);
    } else {
        eprintln!("SKIPPED: only root can give a directory away");
    }
    std::fs::set_permissions(&sockets, PermissionsExt::from_mode(0o755)).unwrap();
    refused("others may enter");
    std::fs::set_permissions(&sockets, PermissionsExt::from_mode(0o700)).unwrap();
    let ran = archiving.push(&names[0], &[]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran}");
    archiving.one_helper();
}

#[test]
fn an_upgraded_program_starts_a_helper_of_its_own() {
    let mut archiving = Archiving::start("60s");
    archiving.make_wal(1);
    archiving.wait_until_archived();
    archiving.cluster.server.stop(StopMode::Fast).unwrap();
    let name = archiving.acknowledged().into_iter().find(|name| name.len() == 24).unwrap();
    for helper in archiving.helpers() {
        archiving.signal("KILL", helper);
    }
    assert_eq!(archiving.push(&name, &[]).code, Some(0));
    let old = archiving.one_helper();
    assert_eq!(archiving.push(&name, &[]).code, Some(0));
    assert_eq!(archiving.one_helper(), old);
    let new = archiving.work.path().join("pagehaul.new");
    copy_program(&archiving.program, &new);
    std::fs::rename(&new, &archiving.program).unwrap();
    let ran = archiving.push(&name, &[]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran}");
    assert_eq!(archiving.helpers().len(), 2);
    // What it was told is nobody else's: not in its arguments, and its socket is the user's alone.
    let words = String::from_utf8(std::fs::read(format!("/proc/{old}/cmdline")).unwrap()).unwrap();
    assert_eq!(words, "pagehaul\0wal\0serve\0");
    for entry in std::fs::read_dir(archiving.runtime.join("pagehaul")).unwrap().flatten() {
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o077, 0, "{}", entry.path().display());
    }
    // Nobody of another user is answered, not even root.
    if std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0) {
        use std::io::{Read, Write};
        let sockets = std::fs::read_dir(archiving.runtime.join("pagehaul")).unwrap().flatten();
        let socket =
            sockets.map(|entry| entry.path()).find(|path| path.extension().is_some_and(|kind| kind == "socket"));
        let mut stream = UnixStream::connect(socket.unwrap()).unwrap();
        let question = format!("{{\"name\":\"{name}\"}}");
        stream.write_all(&[&(question.len() as u32).to_le_bytes()[..], question.as_bytes()].concat()).ok();
        assert!(!matches!(stream.read(&mut [0u8; 64]), Ok(1..)));
    }
}

/// A server that recovers with the helper has the same rows as the original.
#[test]
fn recovery_with_look_ahead_gives_the_same_database() {
    let archiving = Archiving::start("60s");
    let base = archiving.work.path().join("base");
    std::fs::create_dir(&base).unwrap();
    std::fs::set_permissions(&base, std::fs::Permissions::from_mode(0o700)).unwrap();
    archiving.give_to_server(&base);
    let base_text = base.display().to_string();
    let made =
        archiving.cluster.server.run_tool("pg_basebackup", &["-D", &base_text, "-X", "none", "-c", "fast"]).unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    archiving.cluster.load_typed_tables(20_000);
    archiving.make_wal(20);
    archiving.wait_until_archived();
    let digests = archiving.cluster.digests();
    for flags in ["", "--no-helper"] {
        let target = archiving.work.path().join(format!("copy{flags}"));
        let copied = Command::new("cp").arg("-a").arg(&base).arg(&target).status().unwrap();
        assert!(copied.success());
        let command =
            format!("{} wal get --repo {} %f %p {flags}", archiving.program.display(), archiving.repo.display());
        let config = target.join("postgresql.auto.conf");
        std::fs::write(&config, format!("restore_command = '{command}'\narchive_mode = off\n")).unwrap();
        std::fs::write(target.join("recovery.signal"), "").unwrap();
        archiving.give_to_server(&config);
        archiving.give_to_server(&target.join("recovery.signal"));
        let mut copy = archiving.cluster.adopt(&target);
        copy.wait_until_recovered();
        assert_eq!(copy.digests(), digests, "restore_command {command}");
        copy.server.stop(StopMode::Fast).unwrap();
    }
}
