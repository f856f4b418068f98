//! Chains of incremental sets restore to what a full one of the same moment restores to, byte for byte.

use std::collections::BTreeMap;
use std::path::Path;

use pagehaul_engine::backup::{BackupReport, BackupRequest, backup};
use pagehaul_engine::pipeline::NoObserver;
use pagehaul_engine::restore::{RestoreRequest, restore};
use pagehaul_engine::source::postgres::pg_install::PgInstall;
use pagehaul_engine::source::postgres::scratch_server::{InitOptions, StopMode};
use pagehaul_engine::terms::BackupKind;
use pagehaul_engine::verify::{VerifyRequest, verify};
use pagehaul_testkit::cluster::{Cluster, QUICK, installs, some_installs, work_directory};
use pagehaul_testkit::random::Random;

/// Settings with which the server says which blocks WAL has changed, where it can.
pub(crate) fn settings(install: &PgInstall) -> Vec<(&'static str, &'static str)> {
    let mut settings = QUICK.to_vec();
    if install.major() >= 17 {
        settings.push(("summarize_wal", "on"));
    }
    settings
}

pub(crate) fn start(install: &PgInstall, work: &Path) -> Cluster {
    let options = InitOptions { checksums: true, ..InitOptions::default() };
    Cluster::start_with(install, work, &options, &settings(install))
}

pub(crate) fn take(cluster: &Cluster, kind: BackupKind) -> BackupReport {
    take_with(cluster, kind, &BackupRequest::new("main".parse().unwrap(), "").compression.to_string())
}

fn take_with(cluster: &Cluster, kind: BackupKind, compression: &str) -> BackupReport {
    let compression = compression.parse().unwrap();
    let report = cluster.backup(&BackupRequest { kind, compression, ..cluster.backup_request() });
    assert_eq!((report.kind, report.bad_page_count), (kind, 0), "{:?} {:?}", report.notes, report.bad_pages);
    assert_eq!(report.lost_file_count, 0, "{:?}", report.lost_files);
    report
}

/// Content of all files but those that differ between any two backups.
pub(crate) fn tree(root: &Path) -> BTreeMap<String, Vec<u8>> {
    fn walk(root: &Path, below: &Path, files: &mut BTreeMap<String, Vec<u8>>) {
        for entry in std::fs::read_dir(below).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            if path.is_dir() {
                files.insert(format!("{name}/"), Vec::new());
                walk(root, &path, files);
            } else {
                files.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    let mut files = BTreeMap::new();
    walk(root, root, &mut files);
    let differs = |name: &str| {
        ["backup_label", "backup_manifest", "global/pg_control"].contains(&name) || name.starts_with("pg_wal/")
    };
    files.retain(|name, _| !differs(name));
    files
}

pub(crate) fn assert_same_trees(one: &Path, two: &Path, what: &str) {
    let (one, two) = (tree(one), tree(two));
    let names: Vec<_> = one.keys().filter(|name| !two.contains_key(*name)).collect();
    assert!(names.is_empty(), "{what}: only in the first: {names:?}");
    let names: Vec<_> = two.keys().filter(|name| !one.contains_key(*name)).collect();
    assert!(names.is_empty(), "{what}: only in the second: {names:?}");
    for (name, content) in &one {
        let other = &two[name];
        let pages = content.chunks(8192).zip(other.chunks(8192)).enumerate();
        let differ: Vec<_> = pages.filter(|(_, (a, b))| a != b).map(|(page, _)| page).take(10).collect();
        assert!(content == other, "{what}: {name}: {} and {} bytes, pages {differ:?}", content.len(), other.len());
    }
}

pub(crate) fn restore_set(cluster: &Cluster, label: &str, target: &Path, map: &[(&Path, &Path)]) {
    let request = RestoreRequest {
        label: Some(label.parse().unwrap()),
        tablespace_map: map.iter().map(|(from, to)| (from.to_path_buf(), to.to_path_buf())).collect(),
        ..RestoreRequest::new(cluster.repo(), target)
    };
    restore(&request, &NoObserver).unwrap_or_else(|error| panic!("{label}: {error}"));
}

/// Takes an incremental and a full set of the same moment, restores both, and compares every byte.
pub(crate) fn assert_chain_equals_full(cluster: &Cluster, work: &Path, what: &str) -> BackupReport {
    // What a backup's session looks up sets hint bits: they are there before both.
    backup(&BackupRequest { repo: "NUL".into(), ..cluster.backup_request() }, &NoObserver).unwrap();
    cluster.run(&["CHECKPOINT"]);
    let incremental = take(cluster, BackupKind::Incremental);
    let full = take(cluster, BackupKind::Full);
    let (one, two) = (work.join("chain"), work.join("full"));
    restore_set(cluster, incremental.label.as_str(), &one, &[]);
    restore_set(cluster, full.label.as_str(), &two, &[]);
    assert_same_trees(&one, &two, what);
    cluster.pg_verifybackup(&one);
    let request = VerifyRequest { label: Some(incremental.label.clone()), ..VerifyRequest::new(cluster.repo()) };
    let verified = verify(&request, &NoObserver).unwrap();
    assert!(verified.sound, "{what}: {verified:?}");
    let mut copy = cluster.adopt(&one);
    assert_eq!(copy.digests(), cluster.digests(), "{what}");
    copy.server.stop(StopMode::Immediate).unwrap();
    drop(copy);
    std::fs::remove_dir_all(&one).unwrap();
    std::fs::remove_dir_all(&two).unwrap();
    incremental
}

/// One of the things that people do to tables.
fn disturb(cluster: &Cluster, random: &mut Random, round: u64) {
    let some = random.below(1000);
    let statements: Vec<String> = match random.below(9) {
        0 => vec![format!("UPDATE typed SET number = number + 1 WHERE id % 97 = {}", some % 97)],
        1 => vec![format!("DELETE FROM typed WHERE id % 53 = {}", some % 53), "VACUUM typed".into()],
        2 => vec![
            // Now and then two rows get the same number.
            format!("INSERT INTO typed SELECT * FROM typed LIMIT {some} ON CONFLICT DO NOTHING")
                .replace("*", "id + 1000000 + (random() * 1e8)::int, text_value, number, at, document, bytes, flag"),
        ],
        3 => vec!["VACUUM FULL typed".into()],
        4 => vec![
            "TRUNCATE long_text".into(),
            format!("INSERT INTO long_text SELECT i, repeat(md5(i::text), 99) FROM generate_series(1, {some}) AS i"),
        ],
        5 => vec![
            format!("DROP TABLE IF EXISTS made_{round}"),
            format!(
                "CREATE TABLE made_{round} AS SELECT i, md5(i::text) AS x FROM generate_series(1, {}) AS i",
                10 * some
            ),
            format!("CREATE INDEX ON made_{round} (x)"),
        ],
        6 => vec![format!("DROP TABLE IF EXISTS made_{}", random.below(round + 1))],
        7 => vec!["DELETE FROM typed WHERE id > 15000".into(), "VACUUM (TRUNCATE) typed".into()],
        _ => vec![
            format!("UPDATE long_text SET body = body || 'x' WHERE id % 7 = {}", some % 7),
            "SELECT count(*) FROM typed".into(),
        ],
    };
    cluster.run(&statements.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn f14_a_chain_of_ten_restores_like_a_full_set_of_the_same_moment() {
    for install in some_installs() {
        let mut random = Random::new(&format!("chain of ten on {}", install.major()));
        let work = work_directory();
        let cluster = start(&install, work.path());
        cluster.load_typed_tables(20_000);
        take(&cluster, BackupKind::Full);
        let mut found_by = None;
        for round in 0..10 {
            for _ in 0..3 {
                disturb(&cluster, &mut random, round);
            }
            // A chain may have sets of several codecs.
            let compression = if round % 2 == 0 { "page:1" } else { "zstd:1" };
            let report = take_with(&cluster, BackupKind::Incremental, compression);
            assert!(report.label.as_str().ends_with('I'));
            assert_eq!(report.notes, Vec::<String>::new());
            found_by = report.changes_found_by;
        }
        let expected = if install.major() >= 17 { "wal summaries" } else { "page checksums" };
        assert_eq!(found_by, Some(expected), "PostgreSQL {}", install.major());
        disturb(&cluster, &mut random, 10);
        let last = assert_chain_equals_full(&cluster, work.path(), &format!("PostgreSQL {}", install.major()));
        eprintln!(
            "PostgreSQL {}: {} sets, {} of {} bytes read, {} changed, {} stored",
            install.major(),
            last.prior.len() + 1,
            last.read_bytes,
            last.source_bytes,
            last.changed_bytes,
            last.stored_bytes
        );
    }
}

#[test]
fn one_percent_of_the_pages_costs_little_more_than_these_pages_alone() {
    let work = work_directory();
    let install = installs().pop().unwrap();
    let cluster = start(&install, work.path());
    // Rows of about a page, so that a page is changed by one row.
    cluster.run(&[
        "CREATE TABLE wide (id int PRIMARY KEY, body text) WITH (fillfactor = 50)",
        "ALTER TABLE wide ALTER body SET STORAGE PLAIN",
        "INSERT INTO wide SELECT i, (SELECT string_agg(md5((i * j)::text), '') FROM generate_series(1, 100) AS j) FROM generate_series(1, 12000) AS i",
        "VACUUM wide",
        "CHECKPOINT",
    ]);
    take(&cluster, BackupKind::Full);
    let quiet = take(&cluster, BackupKind::Incremental);
    cluster.run(&["UPDATE wide SET body = reverse(body) WHERE id % 100 = 7", "CHECKPOINT"]);
    let report = take(&cluster, BackupKind::Incremental);
    let table: u64 = cluster.value("SELECT pg_relation_size('wide')").parse().unwrap();
    eprintln!("table {table}; quiet: {quiet:?}\n changed: {report:?}");
    let changed = report.changed_bytes - quiet.changed_bytes;
    assert!(changed < table * 3 / 100, "{changed} bytes of {table} were stored for one percent");
    let extra = report.stored_bytes as f64 - quiet.stored_bytes as f64;
    // The hexadecimal text halves under the codec.
    assert!(extra < 0.8 * changed as f64, "{extra} bytes stored for {changed}");
}
