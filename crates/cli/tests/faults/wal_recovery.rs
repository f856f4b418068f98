//! Real servers that archive with `wal push` and recover with `wal get`: nothing that was committed is lost.

use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use pagehaul_engine::catalog::Repository;
use pagehaul_engine::source::postgres::scratch_server::{InitOptions, StopMode};
use pagehaul_testkit::cluster::{Cluster, QUICK, default_install, installs, work_directory};
use pagehaul_testkit::program::copy_program;

use super::bench::Ran;

/// The program where the server's OS user can run it.
fn program(directory: &Path) -> PathBuf {
    let copy = directory.join("pagehaul");
    if !copy.exists() {
        copy_program(Path::new(env!("CARGO_BIN_EXE_pagehaul")), &copy);
        std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    copy
}

/// A directory of the server's OS user.
fn directory_of_server(work: &Path, name: &str, like: &Path) -> PathBuf {
    let path = work.join(name);
    std::fs::create_dir_all(&path).unwrap();
    give_to_server(&path, like);
    path
}

pub(crate) fn give_to_server(path: &Path, like: &Path) {
    let owner = std::fs::metadata(like).unwrap();
    std::os::unix::fs::chown(path, Some(owner.uid()), Some(owner.gid())).unwrap();
}

pub(crate) fn pagehaul(directory: &Path, words: &[&str]) -> Ran {
    let mut command = Command::new(program(directory));
    command.args(words).env("PAGEHAUL_HISTORY", "NUL").env("LC_ALL", "C").current_dir(directory);
    Ran::of(&mut command)
}

/// Backs up as the server's OS user, who archives into the same repository.
pub(crate) fn backup(cluster: &Cluster, work: &Path) {
    let pgdata = cluster.server.data_directory().display().to_string();
    let connection = format!("user={}", cluster.server.connect_settings().user);
    let repo = work.join("repo");
    let owner = std::fs::metadata(&repo).unwrap();
    let mut command = Command::new(program(work));
    command.args(["backup", "main", "--pgdata", &pgdata, "--connection", &connection, "--repo"]).arg(&repo);
    command
        .env("PAGEHAUL_HISTORY", "NUL")
        .env("LC_ALL", "C")
        .env("HOME", work)
        .current_dir("/")
        .uid(owner.uid())
        .gid(owner.gid());
    let ran = Ran::of(&mut command);
    assert_eq!(ran.code, Some(0), "{ran}");
}

pub(crate) fn archive_command(work: &Path) -> String {
    let (program, repo) = (program(work), work.join("repo"));
    format!("{} wal push --quiet --repo {} %p", program.display(), repo.display())
}

pub(crate) fn start_archiving(
    install: &pagehaul_engine::source::postgres::pg_install::PgInstall,
    work: &Path,
) -> Cluster {
    let options = InitOptions { wal_segment_size_mib: Some(1), ..InitOptions::default() };
    let command = archive_command(work);
    let settings = [QUICK, &[("archive_mode", "on"), ("archive_command", command.as_str())][..]].concat();
    let cluster = Cluster::start_with(install, work, &options, &settings);
    let repo = directory_of_server(work, "repo", cluster.server.data_directory());
    Repository::open_or_create(&repo.display().to_string()).unwrap();
    give_to_server(&repo.join("pagehaul-repository.json"), cluster.server.data_directory());
    cluster
}

/// Makes a restored directory recover from the archive to the end of WAL.
pub(crate) fn recover_from_archive(work: &Path, target: &Path) {
    let (program, repo) = (program(work), work.join("repo"));
    let text = format!("\nrestore_command = '{} wal get --repo {} %f %p'\n", program.display(), repo.display());
    let auto_conf = target.join("postgresql.auto.conf");
    std::fs::OpenOptions::new().append(true).open(auto_conf).unwrap().write_all(text.as_bytes()).unwrap();
    let signal = target.join("recovery.signal");
    std::fs::write(&signal, b"").unwrap();
    give_to_server(&signal, target);
}

pub(crate) fn wait_for(cluster: &Cluster, sql: &str, expected: &str) {
    let started = Instant::now();
    while cluster.value(sql) != expected {
        assert!(started.elapsed() < Duration::from_secs(60), "{sql} is {}", cluster.value(sql));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn everything_committed_before_a_shutdown_is_recovered_from_the_archive() {
    let all = installs();
    // The oldest and the newest there are, and the usual one.
    let mut chosen = vec![all[0].clone(), all[all.len() - 1].clone(), default_install()];
    chosen.dedup_by_key(|install| install.major());
    for install in chosen {
        let work = work_directory();
        let mut cluster = start_archiving(&install, work.path());
        cluster.load_typed_tables(5_000);
        let repo = work.path().join("repo").display().to_string();
        backup(&cluster, work.path());
        cluster.run(&["CREATE TABLE ledger (i int PRIMARY KEY, note text)"]);
        for round in 0..20 {
            cluster.run(&[
                &format!(
                    "INSERT INTO ledger SELECT i, md5(i::text) FROM generate_series({0}, {0} + 999) i",
                    round * 1000
                ),
                "UPDATE typed SET flag = NOT flag WHERE id % 7 = 3",
            ]);
        }
        let digests = cluster.digests();
        assert_eq!(cluster.value("SELECT failed_count FROM pg_stat_archiver"), "0", "{}", cluster.server.log_tail());
        // The last segment is archived on the way down.
        cluster.server.stop(StopMode::Fast).unwrap();

        let target = work.path().join("restored");
        let restore =
            pagehaul(work.path(), &["restore", "--repo", &repo, "--target-dir", &target.display().to_string()]);
        assert_eq!(restore.code, Some(0), "{restore}");
        recover_from_archive(work.path(), &target);
        let restored = cluster.adopt(&target);
        wait_for(&restored, "SELECT pg_is_in_recovery()", "f");
        assert_eq!(restored.digests(), digests, "PostgreSQL {}", install.major());
        assert_eq!(restored.value("SELECT count(*) FROM ledger"), "20000");
        let list = pagehaul(work.path(), &["wal", "list", "--repo", &repo]);
        assert_eq!(list.code, Some(0), "{list}");
    }
}

#[test]
fn f18_a_failed_archive_keeps_wal_in_the_cluster_and_goes_on_by_itself() {
    let work = work_directory();
    let cluster = start_archiving(&default_install(), work.path());
    cluster.load_typed_tables(1_000);
    cluster.run(&["SELECT pg_switch_wal()"]);
    wait_for(&cluster, "SELECT archived_count > 0 FROM pg_stat_archiver", "t");
    // The repository goes away, as a mount does.
    let (repo, away) = (work.path().join("repo"), work.path().join("away"));
    std::fs::rename(&repo, &away).unwrap();
    std::fs::write(&repo, b"not a directory").unwrap();
    cluster.run(&["INSERT INTO long_text SELECT * FROM long_text", "SELECT pg_switch_wal()"]);
    wait_for(&cluster, "SELECT failed_count > 0 FROM pg_stat_archiver", "t");
    std::fs::remove_file(&repo).unwrap();
    std::fs::rename(&away, &repo).unwrap();
    let segment = cluster.value("SELECT pg_walfile_name(pg_current_wal_lsn())");
    cluster.run(&["INSERT INTO long_text SELECT * FROM long_text LIMIT 5", "SELECT pg_switch_wal()"]);
    wait_for(&cluster, &format!("SELECT coalesce(last_archived_wal, '') >= '{segment}' FROM pg_stat_archiver"), "t");
    let list = pagehaul(work.path(), &["wal", "list", "--repo", &repo.display().to_string()]);
    assert_eq!(list.code, Some(0), "{list}");
}

#[test]
fn a_promoted_copy_archives_its_own_timeline_beside_the_old_one() {
    let work = work_directory();
    let cluster = start_archiving(&default_install(), work.path());
    cluster.load_typed_tables(1_000);
    let repo = work.path().join("repo").display().to_string();
    backup(&cluster, work.path());
    cluster.run(&["INSERT INTO long_text SELECT * FROM long_text LIMIT 5", "SELECT pg_switch_wal()"]);
    wait_for(&cluster, "SELECT count(*) FROM pg_ls_dir('pg_wal/archive_status') AS f WHERE f LIKE '%.ready'", "0");
    let target = work.path().join("restored");
    let words =
        ["restore", "--repo", &repo, "--target-dir", &target.display().to_string(), "--archive-mode", "preserve"];
    let restore = pagehaul(work.path(), &words);
    assert_eq!(restore.code, Some(0), "{restore}");
    recover_from_archive(work.path(), &target);
    let command = archive_command(work.path());
    let mut restored =
        pagehaul_engine::source::postgres::scratch_server::ScratchServer::adopt(cluster.server.install(), &target)
            .unwrap();
    let settings = [QUICK, &[("archive_mode", "on"), ("archive_command", command.as_str())][..]].concat();
    restored.start(&settings).unwrap();
    let restored = Cluster { server: restored, directory: work.path().to_owned() };
    wait_for(&restored, "SELECT pg_is_in_recovery()", "f");
    restored.run(&["INSERT INTO long_text SELECT * FROM long_text LIMIT 9", "SELECT pg_switch_wal()"]);
    wait_for(&restored, "SELECT coalesce(last_archived_wal, '') LIKE '00000002%' FROM pg_stat_archiver", "t");
    // The original goes on as well: another timeline, no conflict.
    cluster.run(&["INSERT INTO long_text SELECT * FROM long_text LIMIT 7", "SELECT pg_switch_wal()"]);
    wait_for(&cluster, "SELECT count(*) FROM pg_ls_dir('pg_wal/archive_status') AS f WHERE f LIKE '%.ready'", "0");
    let list = pagehaul(work.path(), &["wal", "list", "--repo", &repo, "--json"]);
    assert_eq!(list.code, Some(0), "{list}");
    let timelines = list.json()[0]["clusters"][0]["timelines"].clone();
    assert_eq!((timelines[0]["timeline"].clone(), timelines[1]["timeline"].clone()), (1.into(), 2.into()));
    assert_eq!(timelines[1]["parent"], 1);
}
