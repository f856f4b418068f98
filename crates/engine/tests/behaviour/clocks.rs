//! Clocks that are years off order nothing: not the sets, not what is built on them, not what expires.

use std::path::Path;

use jiff::{SignedDuration, Timestamp};
use pagehaul_engine::backup::BackupRequest;
use pagehaul_engine::catalog::{Repository, list_sets, newest_set, read_manifest};
use pagehaul_engine::pipeline::NoObserver;
use pagehaul_engine::restore::{RestoreRequest, restore};
use pagehaul_engine::retention::{ExpireRequest, RetentionPolicy, expire};
use pagehaul_engine::terms::{BackupKind, BackupLabel, SourceName};
use pagehaul_testkit::cluster::{Cluster, default_install, work_directory};

const YEARS: i64 = 365 * 24;

fn source() -> SourceName {
    "main".parse().unwrap()
}

fn labels(cluster: &Cluster) -> Vec<BackupLabel> {
    let sets = list_sets(&Repository::open(&cluster.repo()).unwrap(), &source()).unwrap();
    sets.into_iter().map(|set| set.label).collect()
}

/// Writes another value, and a full set of it.
fn value_and_set(cluster: &Cluster, value: u32) -> BackupLabel {
    cluster.run(&[&format!("UPDATE ledger SET value = {value}")]);
    cluster.backup(&cluster.backup_request()).label
}

/// Makes a set as it would be if its host's and server's clocks had been so many hours off.
fn put_off(cluster: &Cluster, label: &BackupLabel, hours: i64) -> BackupLabel {
    let mut manifest = read_manifest(&Repository::open(&cluster.repo()).unwrap(), &source(), label).unwrap();
    let moved = |text: &str| text.parse::<Timestamp>().unwrap() + SignedDuration::from_hours(hours);
    let start = moved(&manifest.started_at);
    (manifest.started_at, manifest.finished_at) = (start.to_string(), moved(&manifest.finished_at).to_string());
    manifest.postgres.stop_time = manifest.postgres.stop_time.map(|time| moved(&time).to_string());
    manifest.label = BackupLabel::new(start, manifest.kind);
    let sets = Path::new(&cluster.repo()).join("main/sets");
    std::fs::rename(sets.join(label.as_str()), sets.join(manifest.label.as_str())).unwrap();
    let path = sets.join(manifest.label.as_str()).join("manifest.json");
    std::fs::write(path, manifest.to_bytes().unwrap()).unwrap();
    manifest.label
}

/// The value in a copy that was restored from a set, or from the newest.
fn restored_value(cluster: &Cluster, label: Option<&BackupLabel>, target: &Path) -> String {
    let request = RestoreRequest { label: label.cloned(), ..RestoreRequest::new(cluster.repo(), target) };
    restore(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}"));
    let mut copy = cluster.adopt(target);
    let value = copy.value("SELECT value FROM ledger");
    copy.crash();
    value
}

#[test]
fn f41_clocks_that_are_ten_years_off_change_neither_the_newest_set_nor_what_expires() {
    let work = work_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    cluster.run(&["CREATE TABLE ledger AS SELECT 0 AS value"]);
    let (one, two) = (value_and_set(&cluster, 1), value_and_set(&cluster, 2));
    let ahead = value_and_set(&cluster, 3);
    let ahead = put_off(&cluster, &ahead, 10 * YEARS);
    let behind = value_and_set(&cluster, 4);
    let behind = put_off(&cluster, &behind, -10 * YEARS);
    assert!(behind < one && two < ahead, "by their names they would be in another order");
    assert_eq!(labels(&cluster), [one.clone(), two.clone(), ahead, behind.clone()]);
    let repository = Repository::open(&cluster.repo()).unwrap();
    assert_eq!(newest_set(&repository, &source()).unwrap(), behind);
    assert_eq!(restored_value(&cluster, None, &work.path().join("newest")), "4");

    // The one of the future, the newest by its stamp, is no reason to let go of the last one whose time makes sense.
    let policy = RetentionPolicy { keep_full: Some(1), ..RetentionPolicy::default() };
    let request = ExpireRequest { source: None, repo: cluster.repo(), policy, at: None, confirm: true };
    let expired = expire(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}"));
    assert!(expired.failed.is_none(), "{:?}", expired.failed);
    let left = labels(&cluster);
    assert!(left.contains(&two) && left.contains(&behind) && !left.contains(&one), "{:?}", expired.report);

    cluster.run(&["UPDATE ledger SET value = 5"]);
    let request = BackupRequest { kind: BackupKind::Incremental, no_full: true, ..cluster.backup_request() };
    let report = cluster.backup(&request);
    assert_eq!(report.prior[0], behind, "{:?}", report.notes);
    assert_eq!(restored_value(&cluster, None, &work.path().join("chain")), "5");
    assert_eq!(restored_value(&cluster, Some(&two), &work.path().join("two")), "2");
}

#[test]
fn f41_backups_of_one_second_have_labels_of_their_own() {
    let work = work_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    let request = cluster.backup_request();
    let made: Vec<BackupLabel> = std::thread::scope(|scope| {
        let backups: Vec<_> = (0..3).map(|_| scope.spawn(|| cluster.backup(&request).label)).collect();
        backups.into_iter().map(|backup| backup.join().unwrap()).collect()
    });
    let mut listed = labels(&cluster);
    assert_eq!(listed.len(), 3, "{made:?}");
    listed.sort();
    listed.dedup();
    assert_eq!(listed.len(), 3, "{made:?}");
}
