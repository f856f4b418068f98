//! Damaged pages of the source: each is found with its file and number, and pages under heavy writing give no alarm.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pagehaul_engine::backup::{BackupReport, BackupRequest};
use pagehaul_engine::source::postgres::page::page_checksum;
use pagehaul_engine::source::postgres::scratch_server::{InitOptions, StopMode};
use pagehaul_testkit::cluster::{Cluster, QUICK, default_install, is_long_run, work_directory};
use pagehaul_testkit::damage::{cut, overwrite};
use pagehaul_testkit::random::Random;

const PAGE_BYTES: usize = 8192;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    FlippedBit,
    /// Base backups of the server skip pages with an LSN after their start.
    FlippedBitAndFutureLsn,
    FutureLsn,
    /// Base backups of the server skip pages of zeros.
    Zeroed,
}

/// Damages a page of a relation file of a stopped server; `block` is its number in the relation.
fn plant(path: &Path, page: u32, block: u32, damage: Damage) {
    let start = page as usize * PAGE_BYTES;
    let mut content = std::fs::read(path).unwrap()[start..start + PAGE_BYTES].to_vec();
    assert!(content.iter().any(|byte| *byte != 0), "page {page} of {} holds something", path.display());
    let far = [0, 0, 0, 0x70, 1, 2, 3, 4];
    match damage {
        Damage::FlippedBit => content[5000] ^= 0x10,
        Damage::FlippedBitAndFutureLsn => {
            content[..8].copy_from_slice(&far);
            content[5000] ^= 0x10;
        }
        Damage::FutureLsn => {
            content[..8].copy_from_slice(&far);
            let checksum = page_checksum(&content, block);
            content[8..10].copy_from_slice(&checksum.to_le_bytes());
        }
        Damage::Zeroed => content.fill(0),
    }
    overwrite(path, start as u64, &content);
}

fn relation(cluster: &Cluster, name: &str) -> String {
    cluster.value(&format!("SELECT pg_relation_filepath('{name}')"))
}

fn file(cluster: &Cluster, relative: &str) -> PathBuf {
    cluster.server.data_directory().join(relative)
}

fn pages(path: &Path) -> u32 {
    (std::fs::metadata(path).unwrap().len() / PAGE_BYTES as u64) as u32
}

fn found(report: &BackupReport) -> BTreeSet<(String, u32)> {
    assert_eq!(report.state, "complete");
    assert_eq!(report.bad_page_count, report.bad_pages.len() as u64);
    report.bad_pages.iter().map(|page| (page.path.clone(), page.page)).collect()
}

/// Stops the server, lets `plant` work on its files, starts it again.
fn while_stopped(cluster: &mut Cluster, plant: impl FnOnce()) {
    cluster.server.stop(StopMode::Fast).unwrap();
    plant();
    cluster.server.start(QUICK).unwrap();
}

#[test]
fn heavy_writing_is_no_damage() {
    let work = work_directory();
    let settings = [
        ("fsync", "off"),
        ("shared_buffers", "1MB"),
        ("bgwriter_delay", "10ms"),
        ("bgwriter_lru_maxpages", "1000"),
        ("max_wal_size", "4GB"),
    ];
    let cluster = Cluster::start_with(&default_install(), work.path(), &InitOptions::default(), &settings);
    cluster.run(&[
        "CREATE TABLE busy AS SELECT i AS id, repeat('x', 400) AS filler, 0 AS changes FROM generate_series(1, 20000) AS i",
        "CREATE UNIQUE INDEX ON busy (id)",
        "CREATE INDEX ON busy (changes)",
    ]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let (cluster, stop) = (&cluster, &stop);
            scope.spawn(move || {
                let mut connection = cluster.connect();
                let sql = "UPDATE busy SET changes = changes + 1 WHERE id IN \
                           (SELECT (random() * 20000)::int FROM generate_series(1, 300))";
                while !stop.load(Relaxed) {
                    // Two writers may meet in a deadlock; the loser goes on.
                    connection.query(sql).ok();
                    if writer == 0 {
                        connection.query("CREATE TABLE IF NOT EXISTS grows AS SELECT * FROM busy LIMIT 0").unwrap();
                        connection.query("INSERT INTO grows SELECT * FROM busy LIMIT 500").unwrap();
                        connection.query("TRUNCATE grows").unwrap();
                    }
                }
            });
        }
        let request = BackupRequest { repo: "NUL".into(), ..cluster.backup_request() };
        let within = Duration::from_secs(if is_long_run() { 45 } else { 20 });
        let (started, mut count) = (Instant::now(), 0);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            while count < 100 && started.elapsed() < within {
                let report = cluster.backup(&request);
                assert_eq!(report.bad_page_count, 0, "backup {count}: {:?}", report.bad_pages);
                count += 1;
            }
        }));
        stop.store(true, Relaxed);
        eprintln!("{count} backups in {:.1} s", started.elapsed().as_secs_f64());
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
    assert_ne!(cluster.value("SELECT max(changes) FROM busy"), "0");
}

#[test]
fn each_kind_of_damage_is_found_with_its_place() {
    for (damage, with_prior) in [
        (Damage::FlippedBit, false),
        (Damage::FlippedBitAndFutureLsn, false),
        (Damage::FutureLsn, false),
        (Damage::Zeroed, false),
        (Damage::Zeroed, true),
    ] {
        let work = work_directory();
        let mut cluster = Cluster::start(&default_install(), work.path());
        cluster.run(&["CREATE TABLE victim AS SELECT i, repeat('x', 500) AS x FROM generate_series(1, 3000) AS i"]);
        let path = relation(&cluster, "victim");
        if with_prior {
            // Without VACUUM there is no visibility map: only the set can know.
            assert_eq!(found(&cluster.backup(&cluster.backup_request())), BTreeSet::new());
        } else {
            cluster.run(&["VACUUM victim"]);
        }
        let victim = file(&cluster, &path);
        while_stopped(&mut cluster, || {
            assert!(pages(&victim) >= 64);
            plant(&victim, 70, 70, damage);
        });
        let report = cluster.backup(&cluster.backup_request());
        assert_eq!(found(&report), BTreeSet::from([(path, 70)]), "{damage:?}, {with_prior}: {:?}", report.bad_pages);
    }
}

#[test]
fn hundreds_of_damaged_pages_are_found_and_no_others() {
    let mut random = Random::new("damaged pages");
    let work = work_directory();
    let mut cluster = Cluster::start(&default_install(), work.path());
    cluster.run(&[
        "CREATE TABLE one AS SELECT i, repeat('x', 500) AS x FROM generate_series(1, 6000) AS i",
        "CREATE TABLE two AS SELECT i, md5(i::text) AS x FROM generate_series(1, 40000) AS i",
        "CREATE TABLE good AS SELECT * FROM two",
        "CREATE INDEX two_x ON two (x)",
    ]);
    assert_eq!(found(&cluster.backup(&cluster.backup_request())), BTreeSet::new());
    let names = ["one", "two", "two_x"].map(|name| relation(&cluster, name));
    let mut planted = BTreeSet::new();
    let paths: Vec<PathBuf> = names.iter().map(|name| file(&cluster, name)).collect();
    while_stopped(&mut cluster, || {
        while planted.len() < 400 {
            let number = random.below(3) as usize;
            // The last pages stay good: they witness that the file was not cut.
            let page = random.below(u64::from(pages(&paths[number]) - 8)) as u32;
            if planted.insert((names[number].clone(), page)) {
                let kinds = [Damage::FlippedBit, Damage::FutureLsn, Damage::Zeroed];
                plant(&paths[number], page, page, kinds[random.below(3) as usize]);
            }
        }
    });
    let report = cluster.backup(&cluster.backup_request());
    let found = found(&report);
    let missed: Vec<_> = planted.difference(&found).collect();
    let invented: Vec<_> = found.difference(&planted).collect();
    assert!(missed.is_empty() && invented.is_empty(), "missed {missed:?}, invented {invented:?}");
}

#[test]
fn pages_of_later_segments_have_their_numbers_in_the_relation() {
    let work = work_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    cluster.run(&["CREATE TABLE model AS SELECT i FROM generate_series(1, 10000) AS i", "CHECKPOINT"]);
    let model = relation(&cluster, "model");
    let mut content = std::fs::read(file(&cluster, &model)).unwrap();
    // A relation that the server does not know: a first segment full of holes, and a second one.
    let directory = file(&cluster, &model).parent().unwrap().to_owned();
    let segment_blocks = 131_072u32;
    for (page, bytes) in content.chunks_exact_mut(PAGE_BYTES).enumerate() {
        let block = if page == 7 { 7 } else { segment_blocks + page as u32 };
        let checksum = page_checksum(bytes, block);
        bytes[8..10].copy_from_slice(&checksum.to_le_bytes());
    }
    std::fs::write(directory.join("99999.1"), &content).unwrap();
    let report = cluster.backup(&cluster.backup_request());
    let relative = Path::new(&model).with_file_name("99999.1").display().to_string();
    assert_eq!(found(&report), BTreeSet::from([(relative, 7)]));
}

#[test]
fn pages_that_were_never_used_are_no_damage() {
    let work = work_directory();
    let mut cluster = Cluster::start(&default_install(), work.path());
    cluster.run(&[
        "CREATE TABLE cut AS SELECT i, repeat('x', 500) AS x FROM generate_series(1, 3000) AS i",
        "CREATE TABLE grown AS SELECT i, repeat('x', 500) AS x FROM generate_series(1, 3000) AS i",
        "VACUUM cut",
        "VACUUM grown",
    ]);
    assert_eq!(found(&cluster.backup(&cluster.backup_request())), BTreeSet::new());
    cluster.run(&["DELETE FROM cut WHERE i > 100", "VACUUM cut"]);
    let paths = ["cut", "grown"].map(|name| file(&cluster, &relation(&cluster, name)));
    while_stopped(&mut cluster, || {
        // As a crash right after extending the file leaves it, where rows had been before it was cut.
        for path in &paths {
            cut(path, std::fs::metadata(path).unwrap().len() + 100 * PAGE_BYTES as u64);
        }
    });
    assert_eq!(found(&cluster.backup(&cluster.backup_request())), BTreeSet::new());
    cluster.run(&["INSERT INTO cut SELECT i, repeat('y', 500) FROM generate_series(1, 5000) AS i", "CHECKPOINT"]);
    assert_eq!(found(&cluster.backup(&cluster.backup_request())), BTreeSet::new(), "zero pages before new ones");
}
