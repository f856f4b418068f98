//! A throwaway PostgreSQL cluster with typed tables, and digests of every table to compare a restored one with it.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use pagehaul_engine::backup::{BackupOutcome, BackupReport, BackupRequest, backup};
use pagehaul_engine::pipeline::NoObserver;
use pagehaul_engine::restore::{RestoreReport, RestoreRequest, restore};
use pagehaul_engine::source::postgres::client::Connection;
use pagehaul_engine::source::postgres::pg_install::PgInstall;
use pagehaul_engine::source::postgres::scratch_server::{InitOptions, ScratchServer, StopMode};
use tempfile::TempDir;

use crate::cluster_template::init_cluster;

/// Where [`work_directory`] makes its directories, instead of a place that is found.
const PLACE_VARIABLE: &str = "PAGEHAUL_TEST_DIR";
/// Room that a place in memory must have: three tests at once, and none needs a gigabyte.
const MEMORY_PLACE_BYTES_MIN: u64 = 4 << 30;

/// A directory that the server's OS user may enter too: in `PAGEHAUL_TEST_DIR`, or in memory if there is room, or else on a
/// disk. A test makes and removes thousands of small files, and a disk's file system takes longer for that than all else.
pub fn work_directory() -> TempDir {
    static PLACE: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    directory_in(PLACE.get_or_init(|| {
        if let Some(named) = std::env::var_os(PLACE_VARIABLE) {
            return PathBuf::from(named);
        }
        let memory = Path::new("/dev/shm");
        let has_room = pagehaul_engine::io::free_bytes(memory).is_ok_and(|free| free >= MEMORY_PLACE_BYTES_MIN);
        if has_room { memory.to_owned() } else { PathBuf::from(DISK) }
    }))
}

const DISK: &str = "/var/tmp";

/// As [`work_directory`], always on a disk: for what a file system in memory does not do as a disk's does.
pub fn disk_directory() -> TempDir {
    directory_in(Path::new(DISK))
}

fn directory_in(place: &Path) -> TempDir {
    let directory = tempfile::Builder::new().prefix("pagehaul-test-").tempdir_in(place).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(directory.path(), open).unwrap();
    directory
}

/// Every PostgreSQL on this machine: Debian's, and those in `PAGEHAUL_TEST_PG_DIRS`.
pub fn installs() -> Vec<PgInstall> {
    let named = std::env::var("PAGEHAUL_TEST_PG_DIRS").unwrap_or_default();
    let mut installs: Vec<PgInstall> = named
        .split(':')
        .filter(|directory| !directory.is_empty())
        .map(|directory| PgInstall::at(&Path::new(directory).join("bin")).unwrap())
        .collect();
    installs.extend(PgInstall::find(None));
    installs.sort_by_key(PgInstall::major);
    installs.dedup_by_key(|install| install.major());
    assert!(!installs.is_empty(), "no PostgreSQL server on this machine: install postgresql");
    installs
}

/// Of [`installs`] the oldest and the newest: what differs in how a backup is made lies between them, and most tests use
/// one in the middle. For long tests that need not run on every one; in a long run they do.
pub fn some_installs() -> Vec<PgInstall> {
    let mut all = installs();
    if !is_long_run() && all.len() > 2 {
        all.drain(1..all.len() - 1);
    }
    all
}

/// Whether tests are to take the time they want: `PAGEHAUL_TEST_LONG` is set.
pub fn is_long_run() -> bool {
    std::env::var_os("PAGEHAUL_TEST_LONG").is_some()
}

/// The PostgreSQL that most tests use.
pub fn default_install() -> PgInstall {
    PgInstall::find(None).expect("no PostgreSQL server on this machine: install postgresql")
}

/// A running cluster below a work directory.
pub struct Cluster {
    /// The server.
    pub server: ScratchServer,
    /// Where everything of it lies.
    pub directory: PathBuf,
}

/// Settings that make a throwaway server quick.
pub const QUICK: &[(&str, &str)] =
    &[("fsync", "off"), ("autovacuum", "off"), ("max_wal_size", "4GB"), ("shared_buffers", "64MB")];

/// Makes the database that every cluster of initdb has and those of the tests do not (`cluster_template` says why).
pub const MAKE_TEMPLATE0: &str = "CREATE DATABASE template0 IS_TEMPLATE true ALLOW_CONNECTIONS false";

impl Cluster {
    /// An empty running cluster with checksums in `directory/pgdata`.
    pub fn start(install: &PgInstall, directory: &Path) -> Self {
        Self::start_with(install, directory, &InitOptions { checksums: true, ..InitOptions::default() }, QUICK)
    }

    /// As `start`, with options.
    pub fn start_with(install: &PgInstall, directory: &Path, options: &InitOptions, settings: &[(&str, &str)]) -> Self {
        let mut server = init_cluster(install, &directory.join("pgdata"), options);
        server.start(settings).unwrap();
        Cluster { server, directory: directory.to_owned() }
    }

    /// A connection that creates tables in `public`, as people do.
    pub fn connect(&self) -> Connection {
        let mut connection = self.server.connect().unwrap();
        connection.query("SET search_path = public").unwrap();
        connection
    }

    /// Runs statements, one by one.
    pub fn run(&self, statements: &[&str]) {
        let mut connection = self.connect();
        for statement in statements {
            connection.query(statement).unwrap_or_else(|error| panic!("{statement}: {error:?}"));
        }
    }

    /// The first value of a query.
    pub fn value(&self, sql: &str) -> String {
        self.connect().query_value(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"))
    }

    /// Tables of many types with about `rows` rows each, indexes of every kind, and an unlogged one.
    pub fn load_typed_tables(&self, rows: u32) {
        self.run(&[
            &format!(
                "CREATE TABLE typed AS SELECT i AS id, md5(i::text) AS text_value, (i * 1.37)::numeric(12,2) AS number, \
                 timestamptz '2020-01-01' + i * interval '1 minute' AS at, \
                 jsonb_build_object('key', i % 100, 'tags', array[i, i + 1]) AS document, \
                 decode(md5(i::text), 'hex') AS bytes, i % 2 = 0 AS flag FROM generate_series(1, {rows}) AS i"
            ),
            "CREATE UNIQUE INDEX ON typed (id)",
            "CREATE INDEX ON typed USING gin (document)",
            "CREATE INDEX ON typed USING brin (at)",
            "CREATE INDEX ON typed USING hash (text_value)",
            &format!("CREATE TABLE long_text AS SELECT i AS id, repeat(md5(i::text), 200) AS body FROM generate_series(1, {}) AS i", rows / 20 + 1),
            &format!("CREATE UNLOGGED TABLE scratch AS SELECT i FROM generate_series(1, {rows}) AS i"),
            "CREATE TABLE empty_table (id int PRIMARY KEY, note text)",
            "CREATE SEQUENCE counter",
            "SELECT nextval('counter')",
        ]);
    }

    /// Row count and order-independent digest of every ordinary logged table of the database.
    pub fn digests(&self) -> BTreeMap<String, String> {
        let mut connection = self.connect();
        let tables = connection
            .query(
                "SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                 WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND n.nspname NOT IN ('pg_catalog', 'information_schema')",
            )
            .unwrap();
        let mut digests = BTreeMap::new();
        for row in tables {
            let table = String::from_utf8(row[0].clone().unwrap()).unwrap();
            let sql = format!(
                "SELECT count(*) || ':' || coalesce(sum(hashtextextended(t::text, 0)::numeric), 0) FROM {table} t"
            );
            digests.insert(table, connection.query_value(&sql).unwrap());
        }
        digests
    }

    /// A new empty directory beside the data directory that the server may use, for a tablespace.
    pub fn server_directory(&self, name: &str) -> PathBuf {
        let path = self.directory.join(name);
        std::fs::create_dir(&path).unwrap();
        let data = std::fs::metadata(self.server.data_directory()).unwrap();
        std::os::unix::fs::chown(&path, Some(data.uid()), Some(data.gid())).unwrap();
        path
    }

    /// A request for a backup of this cluster into `directory/repo`.
    pub fn backup_request(&self) -> BackupRequest {
        let mut request = BackupRequest::new("main".parse().unwrap(), self.repo());
        request.pgdata = Some(self.server.data_directory().to_owned());
        request.connection = Some(format!("user={}", self.server.connect_settings().user));
        request
    }

    /// The repository that `backup_request` names.
    pub fn repo(&self) -> String {
        self.directory.join("repo").display().to_string()
    }

    /// Backs up, and expects it to work.
    pub fn backup(&self, request: &BackupRequest) -> BackupReport {
        match backup(request, &NoObserver) {
            Ok(BackupOutcome::Done(report)) => *report,
            Ok(BackupOutcome::Planned(plan)) => panic!("only planned: {plan:?}"),
            Err(error) => panic!("{error}"),
        }
    }

    /// Restores the newest set of this cluster's repository into `target`, and expects it to work.
    pub fn restore_to(&self, target: &Path) -> RestoreReport {
        restore(&RestoreRequest::new(self.repo(), target), &NoObserver).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts a second server on a restored directory.
    pub fn adopt(&self, target: &Path) -> Cluster {
        let mut server = ScratchServer::adopt(self.server.install(), target).unwrap();
        server.start(QUICK).unwrap();
        Cluster { server, directory: self.directory.clone() }
    }

    /// A hot standby that streams from this cluster, in `directory/name`, made from a backup of ours.
    pub fn standby(&self, name: &str) -> Cluster {
        let (seed, target) = (self.directory.join(format!("{name}-seed")), self.directory.join(name));
        // There is no slot: the standby is not there yet, or is slow.
        self.run(&["ALTER SYSTEM SET wal_keep_size = '256MB'", "SELECT pg_reload_conf()"]);
        self.backup(&BackupRequest { repo: seed.display().to_string(), ..self.backup_request() });
        restore(&RestoreRequest::new(seed.display().to_string(), &target), &NoObserver)
            .unwrap_or_else(|error| panic!("{error}"));
        self.follow(&target)
    }

    /// Starts the server on `target`, a copy of this cluster, as a standby of it.
    pub fn follow(&self, target: &Path) -> Cluster {
        let primary = self.server.connect_settings();
        let auto_conf = target.join("postgresql.auto.conf");
        let mut settings = std::fs::read_to_string(&auto_conf).unwrap();
        settings.push_str(&format!(
            "primary_conninfo = 'host={} port={} user={}'\n",
            primary.host, primary.port, primary.user
        ));
        std::fs::write(&auto_conf, settings).unwrap();
        std::fs::write(target.join("standby.signal"), "").unwrap();
        let mut server = ScratchServer::adopt(self.server.install(), target).unwrap();
        server.take_over_data_directory().unwrap();
        server.start(QUICK).unwrap();
        Cluster { server, directory: self.directory.clone() }
    }

    /// Waits until this standby has replayed everything that `primary` has written so far.
    pub fn catch_up(&self, primary: &Cluster) {
        let wanted = primary.value("SELECT pg_current_wal_insert_lsn()");
        let sql = format!("SELECT pg_last_wal_replay_lsn() >= '{wanted}'");
        for _ in 0..600 {
            if self.value(&sql) == "t" {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        panic!("the standby does not reach {wanted}: {}", self.server.log_tail());
    }

    /// From here on a commit waits for `standby`, which must come or be there, and must not answer faster than a server can be
    /// asked. The end of a reload is not enough: backends wait when the checkpointer, too, has read the setting.
    pub fn commits_wait_for(&self, standby: &str) {
        let setting = format!("ALTER SYSTEM SET synchronous_standby_names = '{standby}'");
        self.run(&[&setting, "SELECT pg_reload_conf()"]);
        let is_seen = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let commits = scope.spawn(|| {
                let started = std::time::Instant::now();
                while !is_seen.load(SeqCst) && started.elapsed().as_secs() < 60 {
                    self.run(&["SELECT pg_logical_emit_message(true, 'a commit', 'that waits')"]);
                }
            });
            while !commits.is_finished() && !is_seen.load(SeqCst) {
                let waits = self.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'");
                is_seen.store(waits != "0", SeqCst);
            }
        });
        assert!(is_seen.into_inner(), "no commit waits for {standby}: {}", self.server.log_tail());
    }

    /// Expects that no replication slot is left, as soon as the server has seen that its session is gone.
    pub fn assert_no_slot(&self, what: &str) {
        let started = std::time::Instant::now();
        while self.value("SELECT count(*) FROM pg_replication_slots") != "0" {
            assert!(started.elapsed().as_secs() < 20, "{what}: a slot is left");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// Removes all WAL summaries as soon as they reach the last checkpoint (17 and later, with summarize_wal).
    pub fn lose_wal_summaries(&self) {
        let behind =
            "SELECT summarized_lsn < (SELECT redo_lsn FROM pg_control_checkpoint()) FROM pg_get_wal_summarizer_state()";
        while self.value(behind) == "t" {
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        for entry in std::fs::read_dir(self.server.data_directory().join("pg_wal/summaries")).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }

    /// Waits until recovery has ended and the server writes.
    pub fn wait_until_recovered(&self) {
        while self.value("SELECT pg_is_in_recovery()") == "t" {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    /// Runs pg_verifybackup on a restored directory, where the installation has it; panics with its words.
    pub fn pg_verifybackup(&self, target: &Path) {
        if !self.server.install().has_tool("pg_verifybackup") {
            eprintln!("SKIPPED: pg_verifybackup is not in {}", self.server.install().bin_directory().display());
            return;
        }
        let target = target.display().to_string();
        let output = self.server.run_tool("pg_verifybackup", &[&target]).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Stops the server as a crash would.
    pub fn crash(&mut self) {
        self.server.stop(StopMode::Immediate).unwrap();
    }
}
