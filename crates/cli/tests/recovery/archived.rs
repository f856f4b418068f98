//! A cluster that archives its WAL with the command, and copies of it restored with the command.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pagehaul_engine::source::postgres::pg_install::PgInstall;
use pagehaul_engine::source::postgres::scratch_server::{InitOptions, ScratchServer, StopMode};
use pagehaul_testkit::cluster::{Cluster, QUICK, default_install, work_directory};
use pagehaul_testkit::cluster_template::init_cluster;
use serde_json::Value;
use tempfile::TempDir;

/// The command.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_pagehaul");
/// How long a server may take to reach its target, on a machine that is busy with other tests.
const REACHES_WITHIN: Duration = Duration::from_secs(120);

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// The document on standard output.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// It was refused with this code, and the error and its hint say all of `parts`.
    pub(crate) fn assert_refused(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for part in parts.iter().chain(&["error: unable to ", "\nhint: "]) {
            assert!(self.stderr.contains(part), "{part:?} is not in {}", self.stderr);
        }
    }
}

/// A cluster with `archive_mode = on`, its repository, and room for copies.
pub(crate) struct Archived {
    pub(crate) cluster: Cluster,
    pub(crate) repo: PathBuf,
    targets: PathBuf,
    program: String,
    /// Further words of archive_command.
    pub(crate) archive_flags: String,
    // After the cluster: its files go when the server has stopped.
    _work: TempDir,
}

impl Archived {
    /// A new cluster with segments of 1 MiB.
    pub(crate) fn start(install: &PgInstall) -> Self {
        Self::start_with(install, Some(1), "repo", PROGRAM)
    }

    /// A new cluster; its repository is in a directory of this name, and `program` is the command.
    pub(crate) fn start_with(install: &PgInstall, segment_mib: Option<u32>, repo_name: &str, program: &str) -> Self {
        let work = work_directory();
        let options = InitOptions { wal_segment_size_mib: segment_mib, ..InitOptions::default() };
        let server = init_cluster(install, &work.path().join("pgdata"), &options);
        let cluster = Cluster { server, directory: work.path().to_owned() };
        let repo = cluster.server_directory(repo_name);
        Self::begin(cluster, repo, program, work)
    }

    /// A new cluster with segments of 1 MiB that archives into the repository which `target` names.
    pub(crate) fn start_to(target: &str) -> Self {
        let work = work_directory();
        let options = InitOptions { wal_segment_size_mib: Some(1), ..InitOptions::default() };
        let server = init_cluster(&default_install(), &work.path().join("pgdata"), &options);
        let cluster = Cluster { server, directory: work.path().to_owned() };
        Self::begin(cluster, PathBuf::from(target), PROGRAM, work)
    }

    fn begin(cluster: Cluster, repo: PathBuf, program: &str, work: TempDir) -> Self {
        let targets = cluster.server_directory("targets");
        let mut archived =
            Archived { cluster, repo, targets, program: program.to_owned(), archive_flags: String::new(), _work: work };
        archived.start_server();
        archived
    }

    /// Starts the cluster's server with archiving.
    pub(crate) fn start_server(&mut self) {
        self.start_server_with(&[]);
    }

    /// The same, with further settings.
    pub(crate) fn start_server_with(&mut self, more: &[(&str, &str)]) {
        let command = self.archive_command();
        let settings = [&archiving_settings(&command)[..], more].concat();
        self.cluster.server.start(&settings).unwrap();
    }

    /// What archives into the repository.
    pub(crate) fn archive_command(&self) -> String {
        let word = |text: &str| format!("'{}'", text.replace('\'', r"'\''").replace('%', "%%"));
        let repo = word(&self.repo.display().to_string());
        format!("{} wal push --repo {repo} --source main {} %p", word(&self.program), self.archive_flags)
    }

    /// Runs the command as the server's user, for this cluster's repository.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        self.run_for(&self.cluster.server, arguments)
    }

    /// The same, with `server` as the one that answers.
    pub(crate) fn run_for(&self, server: &ScratchServer, arguments: &[&str]) -> Ran {
        let repo = self.repo.display().to_string();
        run_program(server, &self.program, &[arguments, &["--repo", &repo]].concat())
    }

    /// Runs the command and expects it to do what it should.
    pub(crate) fn run_well(&self, arguments: &[&str]) -> Ran {
        let ran = self.run(arguments);
        assert_eq!(ran.code, Some(0), "{arguments:?}: {}{}", ran.stdout, ran.stderr);
        ran
    }

    /// Runs the command with these words alone.
    pub(crate) fn run_program_well(&self, arguments: &[&str]) -> Ran {
        let ran = run_program(&self.cluster.server, &self.program, arguments);
        assert_eq!(ran.code, Some(0), "{arguments:?}: {}{}", ran.stdout, ran.stderr);
        ran
    }

    /// Backs up and gives the label.
    pub(crate) fn backup(&self) -> String {
        self.backup_of(&self.cluster.server)
    }

    /// Backs `server` up, another timeline of this cluster.
    pub(crate) fn backup_of(&self, server: &ScratchServer) -> String {
        let pgdata = server.data_directory().display().to_string();
        let ran = self.run_for(server, &["backup", "main", "--pgdata", &pgdata, "--compression", "lz4", "--json"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.json()["label"].as_str().unwrap().to_owned()
    }

    /// A place for a copy; what was there is removed.
    pub(crate) fn target(&self, name: &str) -> PathBuf {
        let path = self.targets.join(name);
        if path.exists() {
            std::fs::remove_dir_all(&path).unwrap();
        }
        path
    }

    /// Runs `restore` with these flags into `target`.
    pub(crate) fn restore(&self, target: &Path, flags: &[&str]) -> Ran {
        let target = target.display().to_string();
        let mut words = vec!["restore", "main", "--target-dir", &target, "--json"];
        words.extend(flags);
        self.run(&words)
    }

    /// Restores with these flags and starts the copy, without archiving; it has reached its target when this returns.
    pub(crate) fn recover(&self, name: &str, flags: &[&str]) -> Copy {
        self.recover_with(name, flags, QUICK)
    }

    /// The same, as the one that goes on archiving on its new timeline. It archives from the first moment, as otherwise
    /// the history of its timeline would never be archived.
    pub(crate) fn recover_as_source(&self, name: &str, flags: &[&str]) -> Copy {
        self.recover_with(name, flags, &archiving_settings(&self.archive_command()))
    }

    fn recover_with(&self, name: &str, flags: &[&str], settings: &[(&str, &str)]) -> Copy {
        let target = self.target(name);
        let ran = self.restore(&target, flags);
        assert_eq!(ran.code, Some(0), "{flags:?}: {}", ran.stderr);
        let mut server = ScratchServer::adopt(self.cluster.server.install(), &target).unwrap();
        server.start(settings).unwrap_or_else(|error| panic!("{flags:?}: {error}"));
        let copy = Copy { cluster: Cluster { server, directory: self.targets.clone() }, report: ran.json() };
        copy.wait_until_reached();
        copy
    }

    /// Waits until all finished segments of `server` are archived.
    pub(crate) fn wait_until_archived(&self, server: &Cluster) {
        let waiting = "SELECT count(*) FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'";
        let failed = "SELECT failed_count > 2 FROM pg_stat_archiver";
        wait_for("the archiver", || {
            assert_eq!(server.value(failed), "f", "{}", server.server.log_tail());
            server.value(waiting) == "0"
        });
    }
}

/// Runs `program` as the user of `server`, who has no home: that of whoever runs the tests is none of its business.
pub(crate) fn run_program(server: &ScratchServer, program: &str, arguments: &[&str]) -> Ran {
    let words = [&["HOME=/nonexistent", program, "--history", "NUL"], arguments].concat();
    let output = server.run_tool("/usr/bin/env", &words).unwrap();
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn archiving_settings(command: &str) -> Vec<(&str, &str)> {
    let mut settings = QUICK.to_vec();
    settings.extend([
        ("archive_mode", "on"),
        ("archive_command", command),
        ("track_commit_timestamp", "on"),
        ("wal_level", "replica"),
        // The least for segments of 64 MiB.
        ("max_wal_size", "256MB"),
        ("min_wal_size", "128MB"),
    ]);
    settings
}

/// A restored cluster.
pub(crate) struct Copy {
    pub(crate) cluster: Cluster,
    pub(crate) report: Value,
}

impl Copy {
    /// Until it is promoted or paused at its target.
    fn wait_until_reached(&self) {
        let sql = "SELECT CASE WHEN pg_is_in_recovery() THEN pg_is_wal_replay_paused() ELSE true END";
        if self.report["target"] != "standby" {
            wait_for("the recovery target", || self.cluster.value(sql) == "t");
        }
    }

    /// Stops it and removes its files.
    pub(crate) fn remove(mut self) {
        self.cluster.server.stop(StopMode::Immediate).unwrap();
        let path = self.cluster.server.data_directory().to_owned();
        drop(self.cluster);
        std::fs::remove_dir_all(path).unwrap();
    }
}

/// Looks again and again, until it is so.
pub(crate) fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < REACHES_WITHIN, "waiting for {what}");
        std::thread::sleep(Duration::from_millis(30));
    }
}
