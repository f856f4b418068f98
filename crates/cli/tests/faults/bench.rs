//! What all tests of this binary share: one running cluster, places of their own beside it, the command, its checks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use pagehaul_engine::source::postgres::scratch_server::InitOptions;
use pagehaul_testkit::cluster::{Cluster, QUICK, default_install, work_directory};
use pagehaul_testkit::damage::files_below;
use serde_json::Value;
use tempfile::TempDir;

/// How long the server may take to notice that a client is gone.
const SERVER_NOTICES_WITHIN: Duration = Duration::from_secs(10);
/// Left in a target when the command was killed after pg_control was put in place.
pub(crate) const RESTORE_MARKER: &str = "pagehaul-restore-in-progress.json";

/// A small cluster that runs as long as a test uses it.
pub(crate) struct Bench {
    pub(crate) cluster: Cluster,
    pub(crate) digests: BTreeMap<String, String>,
    // After the cluster: its files go when the server has stopped.
    work: TempDir,
}

impl Bench {
    /// The one of this process; a new one if no test uses it now.
    pub(crate) fn shared() -> Arc<Bench> {
        // A static value would never be dropped, and its server would outlive the tests.
        static SHARED: Mutex<Weak<Bench>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bench) = shared.upgrade() {
            return bench;
        }
        let bench = Arc::new(Bench::start());
        *shared = Arc::downgrade(&bench);
        bench
    }

    fn start() -> Self {
        let work = work_directory();
        let options = InitOptions { wal_segment_size_mib: Some(1), ..InitOptions::default() };
        // Roles that may not have a slot make backups, too, while the other tests switch segments and make checkpoints.
        let settings = [QUICK, &[("wal_keep_size", "256MB")]].concat();
        let cluster = Cluster::start_with(&default_install(), work.path(), &options, &settings);
        cluster.load_typed_tables(5_000);
        let digests = cluster.digests();
        Bench { cluster, digests, work }
    }
}

/// One test's part of the bench: a directory, and a role by which the server knows its sessions.
pub(crate) struct Place {
    pub(crate) bench: Arc<Bench>,
    pub(crate) directory: PathBuf,
    role: String,
}

impl Place {
    /// A new one; `name` must be an SQL name.
    pub(crate) fn new(name: &str) -> Self {
        let bench = Bench::shared();
        bench.cluster.run(&[&format!("CREATE ROLE {name} SUPERUSER LOGIN")]);
        let directory = bench.work.path().join(name);
        std::fs::create_dir(&directory).unwrap();
        Place { bench, directory, role: name.to_owned() }
    }

    /// The repository.
    pub(crate) fn repo(&self) -> PathBuf {
        self.directory.join("repo")
    }

    /// Directories for stripes outside the repository.
    pub(crate) fn stripe_directories(&self) -> [PathBuf; 2] {
        [self.directory.join("stripes-b"), self.directory.join("stripes-c")]
    }

    /// The command in this place.
    pub(crate) fn pagehaul(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pagehaul"));
        command.args(arguments);
        self.tidy_environment(&mut command);
        command
    }

    /// Nothing of whoever runs the tests changes what the command does.
    pub(crate) fn tidy_environment(&self, command: &mut Command) {
        let inherited = std::env::vars_os().map(|(name, _)| name);
        for name in inherited.filter(|name| name.to_string_lossy().starts_with("PAGEHAUL_")) {
            command.env_remove(name);
        }
        // The figures of tests are nobody's history.
        command.env("PAGEHAUL_HISTORY", "NUL");
        command.current_dir(&self.directory).env("LC_ALL", "C").stdin(std::process::Stdio::null());
    }

    /// Arguments of a backup into [`Place::repo`].
    pub(crate) fn backup_arguments(&self) -> Vec<String> {
        self.backup_arguments_to(&self.repo().display().to_string())
    }

    /// Arguments of a backup into the repository that `repo` names.
    pub(crate) fn backup_arguments_to(&self, repo: &str) -> Vec<String> {
        let pgdata = self.bench.cluster.server.data_directory().display().to_string();
        let words = ["backup", "main", "--pgdata", &pgdata, "--connection", &format!("user={}", self.role), "--repo"];
        let mut arguments: Vec<String> = words.map(str::to_owned).into();
        arguments.push(repo.to_owned());
        arguments
    }

    /// The same, over three stripes in two directories.
    pub(crate) fn striped_backup_arguments(&self) -> Vec<String> {
        let mut arguments = self.backup_arguments();
        for directory in self.stripe_directories() {
            arguments.extend(["--stripe-to".to_owned(), directory.display().to_string()]);
        }
        arguments.extend(["--stripes", "3"].map(str::to_owned));
        arguments
    }

    /// The same with a parity stripe, and so with two copies of what is read first.
    pub(crate) fn parity_backup_arguments(&self) -> Vec<String> {
        [self.striped_backup_arguments(), ["--parity", "1"].map(str::to_owned).into()].concat()
    }

    /// Arguments of a restore of the newest set.
    pub(crate) fn restore_arguments(&self, target: &Path) -> Vec<String> {
        let (repo, target) = (self.repo().display().to_string(), target.display().to_string());
        ["restore", "--repo", &repo, "--target-dir", &target].map(str::to_owned).into()
    }

    /// Runs the command to its end.
    pub(crate) fn run(&self, arguments: &[String]) -> Ran {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Ran::of(&mut self.pagehaul(&arguments))
    }

    /// Runs the command and expects exit code 0.
    pub(crate) fn run_well(&self, arguments: &[String]) -> Ran {
        let ran = self.run(arguments);
        assert_eq!(ran.code, Some(0), "{arguments:?}: {ran}");
        ran
    }

    /// Makes a backup and gives its label.
    pub(crate) fn backup_label(&self, arguments: &[String]) -> String {
        let ran = self.run_well(&[arguments, &["--json".to_owned()]].concat());
        ran.json()["label"].as_str().unwrap().to_owned()
    }

    /// All sets as `info` lists them, with their states; none if there is no repository yet.
    pub(crate) fn sets(&self) -> Vec<(String, String)> {
        let repo = self.repo().display().to_string();
        let ran = Ran::of(&mut self.pagehaul(&["info", "--json", "--repo", &repo]));
        if ran.code == Some(30) && ran.stderr.contains("not a pagehaul repository") {
            return Vec::new();
        }
        assert_eq!(ran.code, Some(0), "{ran}");
        let sources = ran.json();
        let sets = sources.as_array().unwrap().iter().flat_map(|source| source["sets"].as_array().unwrap().clone());
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        sets.map(|set| (text(&set["label"]), text(&set["state"]))).collect()
    }

    /// Labels of the sets that are listed as complete.
    pub(crate) fn complete_sets(&self) -> Vec<String> {
        self.sets().into_iter().filter(|(_, state)| state == "complete").map(|(label, _)| label).collect()
    }

    /// Whether every byte of a set reads back.
    pub(crate) fn assert_sound(&self, label: &str) {
        let repo = self.repo().display().to_string();
        let ran = Ran::of(&mut self.pagehaul(&["verify", "main", "--repo", &repo, "--set", label]));
        assert_eq!(ran.code, Some(0), "set {label}: {ran}");
    }

    /// Whether the server has no session of ours any more, and with it no slot and no backup mode.
    pub(crate) fn assert_server_is_free(&self) {
        let sql = format!(
            "SELECT (SELECT count(*) FROM pg_stat_activity WHERE usename = '{}') + \
             (SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'pagehaul%' AND NOT active)",
            self.role
        );
        let started = Instant::now();
        while self.bench.cluster.value(&sql) != "0" {
            assert!(
                started.elapsed() < SERVER_NOTICES_WITHIN,
                "the server still has a session or a slot of {}",
                self.role
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Every path in the repository and the stripe directories, relative to the place.
    pub(crate) fn stored_paths(&self) -> Vec<PathBuf> {
        let stripes = self.stripe_directories();
        let all = stripes.into_iter().chain([self.repo()]).filter(|directory| directory.exists());
        all.flat_map(|directory| files_below(&directory))
            .map(|path| path.strip_prefix(&self.directory).unwrap().to_owned())
            .collect()
    }

    /// Nothing is stored but whole sets and the repository's marker.
    pub(crate) fn assert_no_leftovers(&self) {
        self.assert_no_leftovers_after("");
    }

    /// The same, and names what happened before.
    pub(crate) fn assert_no_leftovers_after(&self, why: &str) {
        let sets = self.sets();
        assert!(sets.iter().all(|(_, state)| state == "complete"), "{why}: {sets:?}, {:?}", self.stored_paths());
        for path in self.stored_paths() {
            let name = path.file_name().unwrap().to_string_lossy();
            let is_of_set = sets.iter().any(|(label, _)| path.components().any(|part| part.as_os_str() == &**label));
            let is_object = ["manifest.json", "manifest-r1.json", "files.table", "files-r1.table", "owner.json"]
                .contains(&&*name)
                || [".phs", ".sums"].iter().any(|end| name.ends_with(end));
            // The marker of the repository, or one that was killed half-way: it is in nobody's way.
            let is_marker = path.parent() == Some(Path::new("repo")) && name.contains("pagehaul-repository.json");
            // Whose name it is stays, whether a backup came of it or not.
            let is_fence = path.parent() == Some(Path::new("repo/main")) && name.contains("identity-0001.json");
            assert!(
                is_of_set && is_object || is_marker || is_fence,
                "{why}: left over: {} beside {sets:?}",
                path.display()
            );
        }
        for directory in self.stripe_directories().into_iter().chain([self.repo()]) {
            let listed = std::fs::read_dir(directory.join("main/sets")).into_iter().flatten().flatten();
            for entry in listed {
                let name = entry.file_name().into_string().unwrap();
                assert!(sets.iter().any(|(label, _)| *label == name), "{why}: left over: {}", entry.path().display());
            }
        }
    }

    /// Removes sets by hand, so that a sweep does not grow.
    pub(crate) fn forget_sets_but(&self, kept: Option<&str>) {
        for directory in self.stripe_directories().into_iter().chain([self.repo()]) {
            for entry in std::fs::read_dir(directory.join("main/sets")).into_iter().flatten().flatten() {
                if kept.is_none_or(|kept| entry.file_name() != *kept) {
                    std::fs::remove_dir_all(entry.path()).unwrap();
                }
            }
        }
    }

    /// Restores into a new directory and compares every file with PostgreSQL's manifest.
    pub(crate) fn assert_restores(&self, label: &str) {
        let target = self.directory.join("proof");
        let arguments = [self.restore_arguments(&target), vec!["--set".to_owned(), label.to_owned()]].concat();
        self.run_well(&arguments);
        self.assert_whole(&target);
        std::fs::remove_dir_all(&target).unwrap();
    }

    /// pg_verifybackup finds nothing wrong, the marker of an unfinished restore aside.
    pub(crate) fn assert_whole(&self, target: &Path) {
        let target = target.display().to_string();
        let arguments = ["-i", RESTORE_MARKER, target.as_str()];
        let output = self.bench.cluster.server.run_tool("pg_verifybackup", &arguments).unwrap();
        assert!(output.status.success(), "{target}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Starts the copy and compares its tables with those of the original.
    pub(crate) fn assert_starts_whole(&self, target: &Path) {
        let mut copy = self.bench.cluster.adopt(target);
        assert_eq!(copy.digests(), self.bench.digests, "{}", target.display());
        copy.crash();
    }
}

/// How a command ended.
pub(crate) struct Ran {
    /// None after a signal.
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// Runs `command` to its end.
    pub(crate) fn of(command: &mut Command) -> Self {
        Self::from(command.output().unwrap_or_else(|cause| panic!("{command:?}: {cause}")))
    }

    /// The document on standard output.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|cause| panic!("{cause}: {self}"))
    }

    /// The command refused or failed with this code, said why, and did not panic.
    pub(crate) fn assert_error(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self}");
        self.assert_error_text();
        for part in parts {
            assert!(self.stderr.contains(part), "{part:?} is not in: {self}");
        }
    }

    /// The error says what could not be done.
    pub(crate) fn assert_error_text(&self) {
        assert!(self.stderr.contains("error: unable to "), "{self}");
        assert!(!self.stderr.contains("panicked"), "{self}");
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        use std::os::unix::process::ExitStatusExt;
        Ran {
            code: output.status.code(),
            signal: output.status.signal(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl std::fmt::Display for Ran {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "exit code {:?}, signal {:?}\n{}\n{}", self.code, self.signal, self.stderr, self.stdout)
    }
}

/// How many places a sweep tries.
pub(crate) fn sample_size(default: usize) -> usize {
    match std::env::var("PAGEHAUL_TEST_KILLS") {
        Ok(text) if text == "all" => usize::MAX,
        Ok(text) => text.parse().expect("PAGEHAUL_TEST_KILLS is a number or `all`"),
        Err(_) => default,
    }
}

/// The first place of a sweep that tries every one: 0, or `PAGEHAUL_TEST_FROM`, so that a long one can be gone on with.
pub(crate) fn first_place() -> usize {
    std::env::var("PAGEHAUL_TEST_FROM").map_or(0, |text| text.parse().expect("PAGEHAUL_TEST_FROM is a number"))
}

/// Whether a sweep tries this kind of fault: each, or the one that `PAGEHAUL_TEST_FAULT` names.
pub(crate) fn is_tried(kind: &impl std::fmt::Debug) -> bool {
    std::env::var("PAGEHAUL_TEST_FAULT").map_or(true, |named| format!("{kind:?}") == named)
}

/// Random numbers that a printed seed repeats.
pub(crate) struct Random(u64);

impl Random {
    /// Seeded by `PAGEHAUL_TEST_SEED` or the clock.
    pub(crate) fn for_test(name: &str) -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().subsec_nanos();
        let seed = std::env::var("PAGEHAUL_TEST_SEED").map_or(u64::from(now), |text| text.parse().unwrap());
        eprintln!("{name}: PAGEHAUL_TEST_SEED={seed}");
        Random(seed | 1 << 40)
    }

    /// Below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }

    /// Moves a random choice to the front and keeps `count`.
    pub(crate) fn choose<T>(&mut self, mut items: Vec<T>, count: usize) -> Vec<T> {
        let count = count.min(items.len());
        for place in 0..count {
            let from = place + self.below(items.len() - place);
            items.swap(place, from);
        }
        items.truncate(count);
        items
    }
}
