//! Files of relations that were removed outside of SQL: each is an alarm with its name, and what SQL removes is none.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use pagehaul_engine::backup::{BackupReport, BackupRequest};
use pagehaul_engine::catalog::{Repository, read_manifest};
use pagehaul_engine::source::postgres::catalog_files::{RELATIONS_AT_ONCE, catalog_moment, relation_files};
use pagehaul_engine::source::postgres::catalog_pages::named_files::NamedFiles;
use pagehaul_engine::source::postgres::client::Connection;
use pagehaul_engine::source::postgres::conninfo::ConnectSettings;
use pagehaul_engine::source::postgres::scratch_server::InitOptions;
use pagehaul_engine::source::postgres::server_facts::shown_identifier;
use pagehaul_engine::terms::BackupKind;
use pagehaul_testkit::cluster::{Cluster, MAKE_TEMPLATE0, QUICK, default_install, installs, work_directory};

use super::remote::remote_request;

/// Path, and whose file it was, of everything that the backup misses.
fn lost(report: &BackupReport) -> BTreeMap<String, Option<String>> {
    assert_eq!(report.bad_page_count, 0, "{:?}", report.bad_pages);
    assert_eq!(report.lost_file_count, report.lost_files.len() as u64);
    report.lost_files.iter().map(|file| (file.path.clone(), file.relation.clone())).collect()
}

/// A backup whose output is of no interest.
fn discarded(cluster: &Cluster) -> BackupReport {
    cluster.backup(&BackupRequest { repo: "NUL".to_owned(), ..cluster.backup_request() })
}

fn incremental(cluster: &Cluster) -> BackupReport {
    let request = BackupRequest { kind: BackupKind::Incremental, no_full: true, ..cluster.backup_request() };
    cluster.backup(&request)
}

fn path_of(cluster: &Cluster, relation: &str) -> String {
    cluster.value(&format!("SELECT pg_relation_filepath('{relation}')"))
}

fn oid_of(cluster: &Cluster, database: &str) -> String {
    cluster.value(&format!("SELECT oid FROM pg_database WHERE datname = '{database}'"))
}

/// Runs `SELECT` in another database.
fn value_in(cluster: &Cluster, database: &str, sql: &str) -> String {
    let mut connection = Connection::connect(&connect_settings(cluster, database)).unwrap();
    connection.query_value(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"))
}

fn remove(cluster: &Cluster, path: &str) {
    std::fs::remove_file(cluster.server.data_directory().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
}

/// Makes it look as if the server had written a file at that time.
fn write_at(cluster: &Cluster, path: &str, at: SystemTime) {
    let file = File::options().write(true).open(cluster.server.data_directory().join(path)).unwrap();
    file.set_modified(at).unwrap();
}

fn long_ago() -> SystemTime {
    SystemTime::now() - Duration::from_secs(60)
}

/// A time that is never long ago, however slow the machine is.
fn to_come() -> SystemTime {
    SystemTime::now() + Duration::from_secs(3600)
}

fn connect_settings(cluster: &Cluster, database: &str) -> ConnectSettings {
    ConnectSettings { database: database.to_owned(), ..cluster.server.connect_settings() }
}

#[test]
fn f53_every_lost_file_is_an_alarm_with_its_relation_on_every_version() {
    for install in installs() {
        let work = work_directory();
        let cluster = Cluster::start(&install, work.path());
        cluster.load_typed_tables(500);
        let space = cluster.server_directory("space");
        cluster.run(&[
            &format!("CREATE TABLESPACE space LOCATION '{}'", space.display()),
            "CREATE TABLE \"in \n space\" TABLESPACE space AS SELECT 1 AS i",
            "CREATE DATABASE shop",
            "CREATE DATABASE moved TABLESPACE space",
            "CHECKPOINT",
        ]);
        let whole = cluster.backup(&cluster.backup_request());
        assert_eq!(lost(&whole), BTreeMap::new(), "PostgreSQL {}", install.major());
        let in_shop = value_in(&cluster, "shop", "SELECT pg_relation_filepath('pg_catalog.pg_depend_depender_index')");
        let in_moved =
            value_in(&cluster, "moved", "SELECT pg_relation_filepath('pg_catalog.pg_depend_reference_index')");
        assert!(in_moved.starts_with("pg_tblspc/"), "{in_moved}");
        let expected = BTreeMap::from([
            (path_of(&cluster, "typed"), Some("public.typed in postgres".to_owned())),
            (path_of(&cluster, "typed_at_idx"), Some("public.typed_at_idx in postgres".to_owned())),
            (path_of(&cluster, "\"in \n space\""), Some("public.\"in \\n space\" in postgres".to_owned())),
            (format!("{}_init", path_of(&cluster, "scratch")), Some("public.scratch in postgres".to_owned())),
            // Shared, and mapped.
            (path_of(&cluster, "pg_shdescription"), Some("pg_catalog.pg_shdescription in postgres".to_owned())),
            (in_shop, Some("pg_catalog.pg_depend_depender_index in shop".to_owned())),
            (in_moved, Some("pg_catalog.pg_depend_reference_index in moved".to_owned())),
        ]);
        cluster.run(&["CHECKPOINT"]);
        expected.keys().for_each(|path| remove(&cluster, path));
        let mut found = lost(&cluster.backup(&cluster.backup_request()));
        // Shared catalogs are seen from the first database that answers.
        let shared = path_of(&cluster, "pg_shdescription");
        let whose = found.get_mut(&shared).unwrap().as_mut().unwrap();
        *whose = whose.replace(" in template1", " in postgres");
        assert_eq!(found, expected, "PostgreSQL {}", install.major());
        // What a server sends is compared with what its catalogs name, but for the mapped ones.
        let mut expected = expected;
        expected.remove(&shared);
        assert_eq!(lost(&cluster.backup(&remote_request(&cluster))), expected, "PostgreSQL {}", install.major());
    }
}

#[test]
fn f53_a_lost_file_is_in_the_manifest_and_a_restore_says_so() {
    let work = work_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    cluster.run(&["CREATE TABLE victim AS SELECT 1 AS i", "CHECKPOINT"]);
    let path = path_of(&cluster, "victim");
    remove(&cluster, &path);
    let report = cluster.backup(&cluster.backup_request());
    let repository = Repository::open(&cluster.repo()).unwrap();
    let manifest = read_manifest(&repository, &"main".parse().unwrap(), &report.label).unwrap();
    assert_eq!((manifest.lost_file_count, &manifest.lost_files), (1, &report.lost_files));
    assert_eq!(manifest.lost_files[0].path, path);
    let restored = cluster.restore_to(&work.path().join("restored"));
    assert!(restored.notes.iter().any(|note| note.contains("1 files of the source were lost")), "{:?}", restored.notes);
}

/// Segments are known by those behind them, and by the prior.
#[test]
fn f53_lost_segments_are_found_though_the_first_one_is_there() {
    let work = work_directory();
    // Without checksums a page may lie anywhere.
    let options = InitOptions { checksums: false, ..InitOptions::default() };
    let cluster = Cluster::start_with(&default_install(), work.path(), &options, QUICK);
    cluster.run(&["CREATE TABLE large AS SELECT 1 AS i", "CREATE TABLE cut AS SELECT 1 AS i", "CHECKPOINT"]);
    let (large, cut) = (path_of(&cluster, "large"), path_of(&cluster, "cut"));
    let add = |path: &str, bytes: &[u8]| {
        std::fs::write(cluster.server.data_directory().join(path), bytes).unwrap();
    };
    let [first, second] = [1, 2].map(|number| format!("{large}.{number}"));
    let page = std::fs::read(cluster.server.data_directory().join(&large)).unwrap();
    for path in [&first, &second, &format!("{cut}.1")] {
        add(path, &page);
    }
    assert_eq!(lost(&cluster.backup(&cluster.backup_request())), BTreeMap::new());
    let whose = Some("public.large in postgres".to_owned());
    remove(&cluster, &first);
    assert_eq!(lost(&discarded(&cluster)), BTreeMap::from([(first.clone(), whose.clone())]));
    add(&first, &page);
    remove(&cluster, &second);
    assert_eq!(lost(&discarded(&cluster)), BTreeMap::new(), "without a prior nothing tells of a last segment");
    // As the server leaves it when a relation becomes shorter.
    add(&format!("{cut}.1"), b"");
    let report = incremental(&cluster);
    assert_eq!(lost(&report), BTreeMap::from([(second, whose)]));
    assert!(report.lost_files[0].reason.contains("was in set"), "{:?}", report.lost_files);
    // The relation goes, and all its segments but the first go with it at once.
    cluster.run(&["DROP TABLE cut"]);
    let cut = cluster.server.data_directory().join(cut);
    assert!(cut.exists() && !cut.with_extension("1").exists());
    assert_eq!(lost(&incremental(&cluster)), BTreeMap::new());
}

#[test]
fn f53_databases_that_cannot_be_asked_are_looked_at_as_far_as_files_tell() {
    let work = work_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    cluster.run(&[
        MAKE_TEMPLATE0,
        "CREATE DATABASE closed",
        "CREATE DATABASE broken",
        "CREATE DATABASE gone",
        "CREATE ROLE plain LOGIN REPLICATION",
        "GRANT EXECUTE ON FUNCTION pg_catalog.pg_backup_start, pg_catalog.pg_backup_stop TO plain",
        "REVOKE CONNECT ON DATABASE closed FROM PUBLIC",
        "CHECKPOINT",
    ]);
    let request = BackupRequest { connection: Some("user=plain".to_owned()), ..cluster.backup_request() };
    let map_of = |database: &str| value_in(&cluster, database, "SELECT pg_relation_filepath('pg_catalog.pg_class')");
    let (closed, broken) = (map_of("closed"), map_of("broken"));
    // One whose catalog stands still need not be asked.
    cluster.run(&["CHECKPOINT"]);
    write_at(&cluster, &closed, to_come());
    let report = cluster.backup(&request);
    assert_eq!(lost(&report), BTreeMap::new());
    let notes: Vec<_> = report.notes.iter().filter(|note| note.contains("could not be asked")).collect();
    assert!(notes.len() == 1 && notes[0].contains("closed (") && notes[0].contains("permission denied"), "{notes:?}");

    let template0 = oid_of(&cluster, "template0");
    let of_template = value_in(&cluster, "template1", "SELECT pg_relation_filepath('pg_catalog.pg_description')");
    let of_template = format!("base/{template0}/{}", of_template.rsplit('/').next().unwrap());
    cluster.run(&["CHECKPOINT"]);
    [&closed, &broken, &of_template].into_iter().for_each(|path| remove(&cluster, path));
    let gone = format!("base/{}", oid_of(&cluster, "gone"));
    let gone_directory = cluster.server.data_directory().join(&gone);
    std::fs::rename(&gone_directory, work.path().join("aside")).unwrap();
    let request = BackupRequest { kind: BackupKind::Incremental, no_full: true, ..request };
    let report = cluster.backup(&request);
    std::fs::rename(work.path().join("aside"), &gone_directory).unwrap();
    let expected = BTreeMap::from([
        (closed, Some("catalog 1259 in closed".to_owned())),
        (broken.clone(), Some("catalog 1259 in broken".to_owned())),
        (Path::new(&broken).parent().unwrap().display().to_string(), None),
        (of_template, None),
        (gone, None),
    ]);
    assert_eq!(lost(&report), expected, "{:?}", report.lost_files);
    let reason = |path: &str| &report.lost_files.iter().find(|file| file.path == path).unwrap().reason;
    assert!(reason(&format!("base/{}", oid_of(&cluster, "broken"))).contains("cannot open database broken"));
}

#[test]
fn f53_what_a_catalogs_own_file_names_is_what_the_server_names_on_every_version() {
    for install in installs() {
        let work = work_directory();
        let cluster = Cluster::start(&install, work.path());
        cluster.load_typed_tables(50);
        let space = cluster.server_directory("space");
        cluster.run(&[
            &format!("CREATE TABLESPACE space LOCATION '{}'", space.display()),
            "CREATE TABLE in_space TABLESPACE space AS SELECT 1 AS i",
            "CREATE DATABASE moved TABLESPACE space",
            "CREATE TABLE rewritten AS SELECT 1 AS i",
            "VACUUM FULL rewritten",
            "VACUUM FULL pg_class",
            "CREATE TABLE rolled_back (i int)",
            "DROP TABLE rolled_back",
        ]);
        let run_in = |database: &str, sql: &str| {
            Connection::connect(&connect_settings(&cluster, database)).unwrap().query(sql).unwrap();
        };
        run_in("moved", "CREATE TABLE public.back_home (i int) TABLESPACE pg_default");
        cluster.run(&["VACUUM pg_class", "CHECKPOINT"]);
        let start_lsn = cluster.value("SELECT pg_current_wal_insert_lsn()").parse().unwrap();
        let identifier = cluster.value("SELECT system_identifier FROM pg_control_system()");
        let identifier = shown_identifier(&identifier, "ask").unwrap();
        let moment = catalog_moment(&cluster.server.connect_settings(), identifier).unwrap();
        let pgdata = cluster.server.data_directory();
        let named = NamedFiles { pgdata, major: install.major(), block_size_bytes: 8192, start_lsn };
        let mut seen = 0;
        for database in moment.databases.iter().filter(|database| database.allows_connections) {
            let name = database.shown();
            let catalog = value_in(&cluster, &name, "SELECT pg_relation_filepath('pg_catalog.pg_class')");
            write_at(&cluster, &catalog, long_ago());
            let mut by_file = Vec::new();
            let whole = named.are_there(database, &mut |relation| {
                by_file.push(relation.clone());
                true
            });
            by_file.sort_by_key(|relation| relation.oid);
            let asked = relation_files(&cluster.server.connect_settings(), database, 0, true, None).unwrap();
            assert!(whole && asked.len() < RELATIONS_AT_ONCE, "PostgreSQL {}, {name}", install.major());
            assert_eq!(by_file, asked, "PostgreSQL {}, {name}", install.major());
            seen += 1;
        }
        assert_eq!(seen, 3);
    }
}

/// A role that may not connect to the database `still`.
const MAKE_STILL: [&str; 5] = [
    "CREATE DATABASE still",
    "CREATE ROLE plain LOGIN REPLICATION",
    "GRANT EXECUTE ON FUNCTION pg_catalog.pg_backup_start, pg_catalog.pg_backup_stop TO plain",
    "REVOKE CONNECT ON DATABASE still FROM PUBLIC",
    "CHECKPOINT",
];

/// Whether a backup by that role asked the database, and was refused, if its `pg_class` was written then.
fn is_asked(cluster: &Cluster, catalog: &str, written_at: SystemTime) -> bool {
    write_at(cluster, catalog, written_at);
    let plain = Some("user=plain".to_owned());
    let request = BackupRequest { repo: "NUL".to_owned(), connection: plain, ..cluster.backup_request() };
    let report = cluster.backup(&request);
    assert_eq!(lost(&report), BTreeMap::new());
    report.notes.iter().any(|note| note.contains("could not be asked") && note.contains("still ("))
}

#[test]
fn f53_a_database_whose_catalog_stands_still_is_not_asked_unless_a_file_is_missing() {
    let work = work_directory();
    let primary = Cluster::start(&default_install(), work.path());
    primary.run(&MAKE_STILL);
    let mut connection = Connection::connect(&connect_settings(&primary, "still")).unwrap();
    for sql in
        ["CREATE UNLOGGED TABLE public.fleeting (i int)", "CREATE TABLE public.victim AS SELECT 1 AS i", "CHECKPOINT"]
    {
        connection.query(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
    drop(connection);
    let path_in = |name: &str| value_in(&primary, "still", &format!("SELECT pg_relation_filepath('{name}')"));
    let (catalog, victim) = (path_in("pg_catalog.pg_class"), path_in("public.victim"));
    // There a restart point takes the place of the checkpoint, and unlogged tables have init forks only.
    let mut standby = primary.standby("standby");
    // Who reads rows leaves hints on their pages, and with checksums these are in the WAL.
    primary.run(&["CHECKPOINT"]);
    standby.catch_up(&primary);
    standby.run(&["CHECKPOINT"]);
    for cluster in [&primary, &standby] {
        let is_standby = cluster.value("SELECT pg_is_in_recovery()");
        assert!(!is_asked(cluster, &catalog, long_ago()), "its catalog stands still (standby: {is_standby})");
        assert!(is_asked(cluster, &catalog, to_come()), "its catalog may be being written (standby: {is_standby})");
        remove(cluster, &victim);
        assert!(is_asked(cluster, &catalog, long_ago()), "a file is missing");
        write_at(cluster, &catalog, long_ago());
        let found = lost(&discarded(cluster));
        assert_eq!(found, BTreeMap::from([(victim.clone(), Some("public.victim in still".to_owned()))]));
    }
    standby.crash();
}

#[test]
fn f53_where_a_remote_server_cannot_be_asked_that_is_said() {
    let work = work_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    cluster.run(&["CREATE ROLE streamer LOGIN REPLICATION", "REVOKE CONNECT ON DATABASE postgres FROM PUBLIC"]);
    let remote = remote_request(&cluster);
    let connection = remote.connection.as_deref().unwrap().replace("user=", "user=streamer application_name=");
    let report = cluster.backup(&BackupRequest { connection: Some(connection), ..remote });
    assert_eq!(lost(&report), BTreeMap::new());
    let notes: Vec<_> = report.notes.iter().filter(|note| note.contains("whether files were lost")).collect();
    assert!(notes.len() == 1 && notes[0].contains("permission denied"), "{:?}", report.notes);
}

/// What the server removes while it is looked for is asked about twice.
#[test]
fn f53_what_sql_removes_meanwhile_is_no_alarm() {
    let work = work_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    let tables: Vec<String> = (0..200).map(|number| format!("CREATE UNLOGGED TABLE t{number} (i int)")).collect();
    cluster.run(&tables.iter().map(String::as_str).collect::<Vec<_>>());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for first in [0, 100] {
            let (cluster, tables, stop) = (&cluster, &tables, &stop);
            // All forks but the main one go at once.
            scope.spawn(move || {
                let mut connection = cluster.connect();
                for number in (first..first + 100).cycle().take_while(|_| !stop.load(Relaxed)) {
                    let truncate = format!("TRUNCATE t{number}");
                    let drop = format!("DROP TABLE t{number}");
                    for sql in [&truncate, &truncate, &drop, &tables[number]] {
                        connection.query(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
                    }
                }
            });
        }
        scope.spawn(|| {
            let mut connection = cluster.connect();
            while !stop.load(Relaxed) {
                // The first segment of a dropped relation goes with the next checkpoint.
                connection.query("CHECKPOINT").unwrap();
                connection.query("CREATE DATABASE passing").unwrap();
                connection.query("DROP DATABASE passing").unwrap();
            }
        });
        let remote = BackupRequest { repo: "NUL".to_owned(), ..remote_request(&cluster) };
        let run = || {
            (0..12).for_each(|_| assert_eq!(lost(&discarded(&cluster)), BTreeMap::new()));
            (0..6).for_each(|_| assert_eq!(lost(&cluster.backup(&remote)), BTreeMap::new(), "sent by the server"));
        };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        stop.store(true, Relaxed);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}
