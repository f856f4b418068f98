//! Restores of some databases: replay does not miss the others, and what is left of them can be dropped.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pagehaul_engine::backup::BackupRequest;
use pagehaul_engine::pipeline::NoObserver;
use pagehaul_engine::restore::{ArchiveMode, RestoreRequest, restore};
use pagehaul_engine::source::keepalive::Keepalive;
use pagehaul_engine::source::postgres::client::Connection;
use pagehaul_engine::source::postgres::conninfo::ConnectSettings;
use pagehaul_engine::source::postgres::scratch_server::StopMode;
use pagehaul_engine::source::postgres::tls_settings::TlsSettings;
use pagehaul_testkit::cluster::{Cluster, QUICK, some_installs, work_directory};
use pagehaul_testkit::damage::{files_below, tree};

#[test]
fn other_databases_stay_out_and_can_be_dropped() {
    for install in some_installs() {
        let major = install.major();
        let work = work_directory();
        let cluster = Cluster::start(&install, work.path());
        cluster.run(&["CREATE DATABASE app", "CREATE DATABASE other", "CREATE TABLE kept AS SELECT 7 AS seven"]);
        let space = cluster.server_directory("space");
        cluster.run(&[&format!("CREATE TABLESPACE elsewhere LOCATION '{}'", space.display())]);
        let in_database = |database: &str| {
            let mut settings = cluster.server.connect_settings();
            settings.database = database.to_owned();
            Connection::connect(&settings).unwrap()
        };
        for (database, tablespace) in [("app", ""), ("other", ""), ("other", "TABLESPACE elsewhere")] {
            let name = if tablespace.is_empty() { "t" } else { "there" };
            in_database(database)
                .query(&format!("CREATE TABLE public.{name} {tablespace} AS SELECT i, md5(i::text) AS text FROM generate_series(1, 40000) AS i"))
                .unwrap();
            in_database(database).query(&format!("CREATE INDEX ON public.{name} (i)")).unwrap();
        }
        // Writers in the database that is left out, while the backup runs: replay meets what is not there.
        let mut writer = Writer::start(&cluster, "other");
        let report =
            cluster.backup(&BackupRequest { max_rate_bytes_per_s: Some(40 << 20), ..cluster.backup_request() });
        writer.stop();
        let (target, place) = (work.path().join("restored"), work.path().join("restored-space"));
        let request = RestoreRequest {
            include_databases: vec!["app".to_owned()],
            tablespace_map: vec![(space.clone(), place.clone())],
            archive_mode: ArchiveMode::Off,
            ..RestoreRequest::new(cluster.repo(), &target)
        };
        let restored = restore(&request, &NoObserver).unwrap_or_else(|error| panic!("{major}: {error}"));
        let names: Vec<_> = restored.left_out_databases.iter().map(|left| left.name.clone().unwrap()).collect();
        assert_eq!(names, ["other"], "{major}");
        let left_bytes = restored.left_out_databases[0].bytes;
        assert!(left_bytes > 4 << 20 && restored.restored_bytes + left_bytes == report.source_bytes, "{major}");
        // Holes take no room.
        let oid = restored.left_out_databases[0].oid;
        let blocks: u64 = files_below(&target.join(format!("base/{oid}"))).iter().map(|file| blocks_of(file)).sum();
        assert!(blocks * 512 < left_bytes / 10, "{major}: {blocks} blocks");
        cluster.pg_verifybackup(&target);
        let copy = cluster.adopt(&target);
        assert_eq!(copy.value("SELECT seven FROM kept"), "7", "{major}");
        let mut settings = copy.server.connect_settings();
        settings.database = "app".to_owned();
        let mut app = Connection::connect(&settings).unwrap();
        assert_eq!(app.query_value("SELECT count(text) FROM public.t WHERE i > 0").unwrap(), "40000", "{major}");
        drop(app);
        copy.run(&["DROP DATABASE other", "CHECKPOINT"]);
        assert!(!target.join(format!("base/{oid}")).exists(), "{major}");
        // Nothing but what every cluster of the tests has and what was asked for is left, and it starts again.
        assert_eq!(
            copy.value("SELECT string_agg(datname, ',' ORDER BY datname) FROM pg_database"),
            "app,postgres,template1"
        );
        let mut copy = copy;
        copy.server.stop(StopMode::Fast).unwrap();
        copy.server.start(QUICK).unwrap();
        assert_eq!(copy.value("SELECT seven FROM kept"), "7", "{major}");
        drop(copy);
        expect_delta_brings_it_back(major, &request, &target);
    }
}

/// A delta restore of all brings the other database back, one of some takes it away again.
fn expect_delta_brings_it_back(major: u32, request: &RestoreRequest, target: &Path) {
    let whole = RestoreRequest { include_databases: Vec::new(), delta: true, ..request.clone() };
    restore(&whole, &NoObserver).unwrap_or_else(|error| panic!("{major}: {error}"));
    let all = tree(target);
    let again = RestoreRequest { delta: true, ..request.clone() };
    restore(&again, &NoObserver).unwrap_or_else(|error| panic!("{major}: {error}"));
    restore(&whole, &NoObserver).unwrap_or_else(|error| panic!("{major}: {error}"));
    assert_eq!(tree(target), all, "{major}");
}

fn blocks_of(file: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(file).unwrap())
}

/// Somebody who writes all the time.
struct Writer(std::process::Child);

impl Writer {
    fn start(cluster: &Cluster, database: &str) -> Self {
        let settings = cluster.server.connect_settings();
        let program = pagehaul_writer_program();
        let child = Command::new(&program[0])
            .args(&program[1..])
            .env("WRITER_HOST", &settings.host)
            .env("WRITER_USER", &settings.user)
            .env("WRITER_DATABASE", database)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Writer(child)
    }

    fn stop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// This test program again, as a writer: small installations of PostgreSQL have no psql.
fn pagehaul_writer_program() -> Vec<PathBuf> {
    let own = std::env::current_exe().unwrap();
    vec![own, "--exact".into(), "selective::writes_when_asked_to".into(), "--nocapture".into()]
}

#[test]
fn writes_when_asked_to() {
    let Ok(database) = std::env::var("WRITER_DATABASE") else { return };
    let settings = ConnectSettings {
        host: std::env::var("WRITER_HOST").unwrap(),
        port: 5432,
        user: std::env::var("WRITER_USER").unwrap(),
        database,
        password: None,
        tls: TlsSettings::off(),
        connect_timeout_s: 10,
        keepalive: Keepalive::default(),
    };
    let mut connection = Connection::connect(&settings).unwrap();
    for round in 0.. {
        let from = round * 97 % 39_000;
        let done = connection
            .query(&format!("UPDATE public.t SET text = text || 'x' WHERE i BETWEEN {from} AND {}", from + 300))
            .and_then(|_| {
                connection.query(&format!("UPDATE public.there SET text = '{round}' WHERE i % 400 = {}", round % 400))
            })
            .and_then(|_| {
                connection.query(&format!("CREATE TABLE public.new_{round} AS SELECT * FROM public.t WHERE i < 2000"))
            })
            .and_then(|_| connection.query(&format!("DELETE FROM public.t WHERE i = {from}")))
            .and_then(|_| connection.query(if round % 5 == 4 { "VACUUM public.t" } else { "SELECT 1" }));
        if done.is_err() {
            return;
        }
    }
}
