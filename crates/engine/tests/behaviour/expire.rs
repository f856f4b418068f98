//! Expire on real sets: what stays restores, what is used stays, and what was begun is finished.

mod planted;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use pagehaul_engine::backup::{BackupRequest, backup};
use pagehaul_engine::catalog::pin::{pin_set, unpin_set};
use pagehaul_engine::catalog::reader_lease::{hold, hold_to_read};
use pagehaul_engine::catalog::wal_inventory::{self, Detail, WalInventory};
use pagehaul_engine::catalog::{Repository, SetState, list_sets, newest_set, read_manifest};
use pagehaul_engine::error::ErrorKind;
use pagehaul_engine::pipeline::NoObserver;
use pagehaul_engine::restore::{RestoreRequest, restore};
use pagehaul_engine::retention::{ExpireReport, ExpireRequest, Fate, Outcome, RetentionPolicy, expire};
use pagehaul_engine::source::postgres::scratch_server::InitOptions;
use pagehaul_engine::storage::{Lease, LocalStorage, ObjectReader, ObjectWriter, Storage};
use pagehaul_engine::terms::{BackupLabel, SegmentNumber, SourceName, TimelineId, WalSegmentName};
use pagehaul_engine::verify::{VerifyRequest, verify};
use pagehaul_engine::wal;
use pagehaul_testkit::cluster::{Cluster, QUICK, default_install, work_directory};
use pagehaul_testkit::observer::At;

/// A small cluster with sets over stripes in the repository and in another directory.
struct Shelf {
    cluster: Cluster,
    request: BackupRequest,
    work: tempfile::TempDir,
}

impl Shelf {
    fn new() -> Self {
        let work = work_directory();
        let options = InitOptions { wal_segment_size_mib: Some(1), ..InitOptions::default() };
        let settings: Vec<_> = QUICK.iter().copied().filter(|(name, _)| *name != "max_wal_size").collect();
        let cluster = Cluster::start_with(&default_install(), work.path(), &options, &settings);
        let stripe_to = vec![cluster.repo(), work.path().join("stripes").display().to_string()];
        let request = BackupRequest { stripe_to, ..cluster.backup_request() };
        Shelf { cluster, request, work }
    }

    fn with_sets(count: usize) -> (Self, Vec<BackupLabel>) {
        let shelf = Self::new();
        let labels = (0..count).map(|_| shelf.back_up()).collect();
        (shelf, labels)
    }

    fn back_up(&self) -> BackupLabel {
        self.cluster.backup(&self.request).label
    }

    fn source(&self) -> SourceName {
        "main".parse().unwrap()
    }

    fn repository(&self) -> Repository {
        Repository::open(&self.cluster.repo()).unwrap_or_else(|error| panic!("{error}"))
    }

    fn set_directory(&self, label: &BackupLabel) -> PathBuf {
        Path::new(&self.cluster.repo()).join("main/sets").join(label.as_str())
    }

    fn expire_request(&self, keep_full: u32, confirm: bool) -> ExpireRequest {
        let policy = RetentionPolicy { keep_full: Some(keep_full), ..RetentionPolicy::default() };
        ExpireRequest { source: None, repo: self.cluster.repo(), policy, at: None, confirm }
    }

    fn expire(&self, keep_full: u32, confirm: bool) -> ExpireReport {
        let expired = expire(&self.expire_request(keep_full, confirm), &NoObserver);
        let expired = expired.unwrap_or_else(|error| panic!("{error}"));
        assert!(expired.failed.is_none(), "{:?}", expired.failed);
        expired.report
    }

    fn complete(&self) -> Vec<BackupLabel> {
        let sets = list_sets(&self.repository(), &self.source()).unwrap_or_else(|error| panic!("{error}"));
        let complete = sets.into_iter().filter(|set| matches!(set.state, SetState::Complete(_)));
        complete.map(|set| set.label).collect()
    }

    fn assert_sound(&self, label: &BackupLabel) {
        let request = VerifyRequest { label: Some(label.clone()), ..VerifyRequest::new(self.cluster.repo()) };
        assert!(verify(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}")).sound, "{label}");
    }

    fn restore_request(&self, label: &BackupLabel, name: &str) -> RestoreRequest {
        let target = self.work.path().join(name);
        RestoreRequest { label: Some(label.clone()), ..RestoreRequest::new(self.cluster.repo(), target) }
    }
}

fn decided(report: &ExpireReport) -> Vec<(BackupLabel, Fate, Vec<String>)> {
    report.sets.iter().map(|set| (set.label.clone(), set.decision, set.reasons.clone())).collect()
}

#[test]
fn a_dry_run_says_what_the_real_run_does_and_what_stays_restores() {
    let (shelf, labels) = Shelf::with_sets(4);
    pin_set(&shelf.repository(), &shelf.source(), &labels[0], Some("the first"))
        .unwrap_or_else(|error| panic!("{error}"));
    let dry = shelf.expire(2, false);
    assert_eq!(shelf.complete(), labels, "a dry run removes nothing");
    assert!(dry.to_free_bytes > 0 && dry.freed_bytes == 0);
    let real = shelf.expire(2, true);
    assert_eq!(decided(&dry), decided(&real));
    assert_eq!(real.freed_bytes, dry.to_free_bytes);
    assert_eq!(shelf.complete(), [labels[0].clone(), labels[2].clone(), labels[3].clone()]);
    let stripes = std::fs::read_dir(shelf.work.path().join("stripes/main/sets")).unwrap().flatten();
    let with_stripes: BTreeSet<String> = stripes.map(|entry| entry.file_name().into_string().unwrap()).collect();
    let kept: BTreeSet<String> = shelf.complete().iter().map(ToString::to_string).collect();
    assert_eq!(with_stripes, kept, "stripes elsewhere go with their set");
    for label in shelf.complete() {
        let request = shelf.restore_request(&label, label.as_str());
        restore(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}"));
        shelf.cluster.pg_verifybackup(&request.target_dir);
    }
    let again = shelf.expire(2, true);
    assert!(again.sets.iter().all(|set| set.decision == Fate::Keep), "{again:?}");
    unpin_set(&shelf.repository(), &shelf.source(), &labels[0]).unwrap_or_else(|error| panic!("{error}"));
    shelf.expire(2, true);
    assert_eq!(shelf.complete(), &labels[2..]);
}

/// An expire on another host deleted a running backup elsewhere.
#[test]
fn b09_an_expire_at_any_step_of_a_backup_leaves_the_backup_alone() {
    let (shelf, labels) = Shelf::with_sets(1);
    let mut newest = labels[0].clone();
    for phase in ["begin the backup", "list the files", "read, encode", "end the backup", "store WAL", "make the"] {
        let at = At::phase(phase, || drop(shelf.expire(1, true)));
        backup(&shelf.request, &at).unwrap_or_else(|error| panic!("{phase}: {error}"));
        assert!(at.done(), "{phase}");
        let complete = shelf.complete();
        assert_eq!((complete.len(), &complete[0]), (2, &newest), "{phase}");
        newest = complete[1].clone();
        shelf.assert_sound(&newest);
        shelf.expire(1, true);
        assert_eq!(shelf.complete(), std::slice::from_ref(&newest), "{phase}");
    }
}

#[test]
fn f29_what_is_restored_or_verified_stays_until_it_is_done_with() {
    let (shelf, labels) = Shelf::with_sets(3);
    let expire_all_but_one = |held: usize| {
        let report = shelf.expire(1, true);
        assert_eq!(report.sets[0].label, labels[held]);
        assert_eq!(report.sets[0].decision, Fate::Later, "{report:?}");
        assert!(shelf.set_directory(&labels[held]).join("manifest.json").exists());
    };
    let expires = |held: usize, phase: &'static str| At::phase(phase, move || expire_all_but_one(held));
    let no_lease = |label: &BackupLabel| {
        let files = std::fs::read_dir(shelf.set_directory(label)).unwrap().flatten();
        let left: Vec<_> = files.map(|entry| entry.file_name().into_string().unwrap()).collect();
        assert!(!left.iter().any(|name| name.starts_with("reader-")), "the lease is given back: {left:?}");
    };
    let pins =
        || pin_set(&shelf.repository(), &shelf.source(), &labels[1], None).unwrap_or_else(|error| panic!("{error}"));
    pins();
    let request = shelf.restore_request(&labels[0], "copy");
    let at = expires(0, "read, decode");
    restore(&request, &at).unwrap_or_else(|error| panic!("{error}"));
    assert!(at.done());
    drop(at);
    shelf.cluster.pg_verifybackup(&request.target_dir);
    no_lease(&labels[0]);
    assert_eq!(shelf.expire(1, true).sets[0].outcome, Some(Outcome::Removed));

    unpin_set(&shelf.repository(), &shelf.source(), &labels[1]).unwrap_or_else(|error| panic!("{error}"));
    let at = expires(1, "read");
    let request = VerifyRequest { label: Some(labels[1].clone()), ..VerifyRequest::new(shelf.cluster.repo()) };
    assert!(verify(&request, &at).unwrap_or_else(|error| panic!("{error}")).sound);
    assert!(at.done());
    drop(at);
    no_lease(&labels[1]);
    assert_eq!(shelf.expire(1, true).sets[0].outcome, Some(Outcome::Removed));
    assert_eq!(shelf.complete(), &labels[2..]);
}

#[test]
fn f29_a_set_with_a_tombstone_is_not_offered_and_goes_when_nobody_uses_it() {
    let (shelf, labels) = Shelf::with_sets(2);
    let (repository, source) = (shelf.repository(), shelf.source());
    let lease = hold(&repository, &source, &labels[..1]).unwrap_or_else(|error| panic!("{error}"));
    // As another expire would have left it that wrote its tombstone just before the lease was made.
    let tombstone = serde_json::json!({
        "format_version": 1, "label": labels[0], "set_id": "00000000000000000000000000000000",
        "expired_at": "2026-11-22T00:00:00Z", "reasons": ["no rule keeps it"],
        "stripe_directories": [shelf.work.path().join("stripes"), shelf.cluster.repo()], "stored_bytes": 1
    });
    std::fs::write(shelf.set_directory(&labels[0]).join("expired.json"), tombstone.to_string()).unwrap();
    assert_eq!(shelf.complete(), &labels[1..]);
    assert_eq!(newest_set(&repository, &source).unwrap(), labels[1]);
    let refused = restore(&shelf.restore_request(&labels[0], "copy"), &NoObserver).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    assert_eq!(hold(&repository, &source, &labels).err().unwrap().kind(), ErrorKind::Conflict);
    assert_eq!(pin_set(&repository, &source, &labels[0], None).unwrap_err().kind(), ErrorKind::Conflict);
    // A backup that clears away what others left leaves it alone.
    let third = shelf.back_up();
    assert!(shelf.set_directory(&labels[0]).join("manifest.json").exists());

    assert_eq!(shelf.expire(2, true).sets[0].decision, Fate::Later);
    assert!(shelf.set_directory(&labels[0]).join("manifest.json").exists(), "it is held");
    drop(lease);
    shelf.expire(2, true);
    assert!(!shelf.set_directory(&labels[0]).exists());
    assert_eq!(shelf.complete(), [labels[1].clone(), third]);
}

/// A lease whose holder died holds nothing, and its file is no obstacle.
#[test]
fn f42_dead_leases_hold_nothing() {
    let (shelf, labels) = Shelf::with_sets(2);
    std::fs::write(shelf.set_directory(&labels[0]).join("reader-0123456789abcdef"), "").unwrap();
    shelf.expire(1, true);
    assert_eq!(shelf.complete(), &labels[1..]);
    assert!(!shelf.set_directory(&labels[0]).exists());
}

/// Backups that were no backups have pushed out the good ones elsewhere.
#[test]
fn a_set_that_lost_a_stripe_pushes_nothing_out() {
    let (shelf, labels) = Shelf::with_sets(3);
    let stripe = shelf.work.path().join("stripes/main/sets").join(labels[2].as_str()).join("stripe-0001.phs");
    let size = std::fs::metadata(&stripe).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(&stripe).unwrap().set_len(size - 1).unwrap();
    let report = shelf.expire(1, true);
    assert_eq!(shelf.complete(), &labels[1..]);
    assert!(report.notes.iter().any(|note| note.contains("is not whole")), "{report:?}");
    shelf.assert_sound(&labels[1]);
    // A disk that is not mounted: none of its sets counts, so nothing may go.
    std::fs::rename(shelf.work.path().join("stripes"), shelf.work.path().join("unmounted")).unwrap();
    let unmounted = shelf.expire(1, true);
    assert!(unmounted.sets.iter().all(|set| set.decision == Fate::Keep), "{unmounted:?}");
}

#[test]
fn a_removal_stops_where_the_disk_of_its_stripes_is_not_mounted() {
    let (shelf, labels) = Shelf::with_sets(2);
    let (stripes, unmounted) = (shelf.work.path().join("stripes"), shelf.work.path().join("unmounted"));
    let tombstone = serde_json::json!({
        "format_version": 1, "label": labels[0], "set_id": "00000000000000000000000000000000",
        "expired_at": "2026-11-22T00:00:00Z", "reasons": [], "stripe_directories": [stripes], "stored_bytes": 1
    });
    std::fs::write(shelf.set_directory(&labels[0]).join("expired.json"), tombstone.to_string()).unwrap();
    std::fs::remove_file(shelf.set_directory(&labels[0]).join("manifest.json")).unwrap();
    // A set beside it that needs no other disk.
    let here = BackupRequest { stripe_to: Vec::new(), ..shelf.request.clone() };
    let here = shelf.cluster.backup(&here).label;
    std::fs::rename(&stripes, &unmounted).unwrap();
    let expired = expire(&shelf.expire_request(1, true), &NoObserver).unwrap_or_else(|error| panic!("{error}"));
    let failed = expired.failed.expect("the stripes cannot be removed");
    assert!(failed.to_string().contains("mount the disk"), "{failed}");
    assert!(shelf.set_directory(&labels[0]).exists());
    std::fs::rename(&unmounted, &stripes).unwrap();
    shelf.expire(1, true);
    assert_eq!(shelf.complete(), [here]);
    let left: Vec<_> =
        std::fs::read_dir(stripes.join("main/sets")).unwrap().flatten().map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "{left:?} of {labels:?}");
}

#[test]
fn f19_the_last_restorable_set_and_another_expire_are_refused() {
    let (shelf, labels) = Shelf::with_sets(1);
    let tombstone = serde_json::json!({
        "format_version": 1, "label": labels[0], "set_id": "00000000000000000000000000000000",
        "expired_at": "2026-11-22T00:00:00Z", "reasons": [], "stripe_directories": [], "stored_bytes": 1
    });
    std::fs::write(shelf.set_directory(&labels[0]).join("expired.json"), tombstone.to_string()).unwrap();
    for confirm in [false, true] {
        let kept = shelf.expire(1, confirm);
        assert_eq!(kept.sets[0].decision, Fate::Keep, "{kept:?}");
        assert!(kept.notes.iter().any(|note| note.contains("is kept and not offered")), "{kept:?}");
    }
    let storage = LocalStorage::new(Path::new(&shelf.cluster.repo()));
    let turn = storage.lease("main/expire-in-progress").unwrap();
    let refused = expire(&shelf.expire_request(1, true), &NoObserver).err().unwrap();
    let holder = format!("another expire is running: process {} on ", std::process::id());
    assert!(refused.to_string().contains(&holder), "{refused}");
    drop(turn);
}

/// A store that can only be read.
struct ReadOnly(LocalStorage);

fn no() -> pagehaul_engine::error::Error {
    pagehaul_engine::error::Error::new(ErrorKind::Repository, "write", "Read-only file system (os error 30)")
}

impl Storage for ReadOnly {
    fn describe(&self) -> String {
        self.0.describe()
    }
    fn create(&self, _name: &str, _largest_bytes: u64) -> pagehaul_engine::error::Result<Box<dyn ObjectWriter>> {
        Err(no())
    }
    fn stage(
        &self,
        _name: &str,
        _largest_bytes: u64,
    ) -> pagehaul_engine::error::Result<Box<dyn pagehaul_engine::storage::StagedObject>> {
        Err(no())
    }
    fn put_new(&self, _name: &str, _bytes: &[u8]) -> pagehaul_engine::error::Result<bool> {
        Err(no())
    }
    fn make_durable(&self, _name: &str) -> pagehaul_engine::error::Result<()> {
        Err(no())
    }
    fn open(&self, name: &str) -> pagehaul_engine::error::Result<Option<Box<dyn ObjectReader>>> {
        self.0.open(name)
    }
    fn list(&self, prefix: &str) -> pagehaul_engine::error::Result<Vec<String>> {
        self.0.list(prefix)
    }
    fn delete(&self, _name: &str) -> pagehaul_engine::error::Result<()> {
        Err(no())
    }
    fn remove_prefix(&self, _prefix: &str) -> pagehaul_engine::error::Result<()> {
        Err(no())
    }
    fn sweep(&self, _prefix: &str) -> pagehaul_engine::error::Result<u32> {
        Err(no())
    }
    fn lease(&self, _name: &str) -> pagehaul_engine::error::Result<Option<Box<dyn Lease>>> {
        Err(no())
    }
    fn is_leased(&self, name: &str) -> pagehaul_engine::error::Result<bool> {
        self.0.is_leased(name)
    }
    fn free_bytes(&self) -> Option<u64> {
        None
    }
}

#[test]
fn read_only_media_can_be_read_and_say_that_nothing_holds_the_set() {
    let (shelf, labels) = Shelf::with_sets(1);
    let repository = Repository::over(Box::new(ReadOnly(LocalStorage::new(Path::new(&shelf.cluster.repo())))));
    let reading = hold_to_read(&repository, &shelf.source(), &labels[0]).unwrap_or_else(|error| panic!("{error}"));
    assert!(reading.note.as_ref().unwrap().contains("nothing keeps `pagehaul expire`"), "{:?}", reading.note);
    assert!(hold(&repository, &shelf.source(), &labels).is_err(), "who builds on a set must hold it");
}

#[test]
fn another_day_can_be_looked_at_and_not_acted_upon() {
    let (shelf, labels) = Shelf::with_sets(2);
    let policy =
        RetentionPolicy { keep_window: Some(jiff::SignedDuration::from_hours(24)), ..RetentionPolicy::default() };
    let later = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(48);
    let request = ExpireRequest { policy, at: Some(later), ..shelf.expire_request(1, false) };
    let report = expire(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}")).report;
    assert_eq!(report.sets[0].decision, Fate::Remove);
    let confirmed = expire(&ExpireRequest { confirm: true, ..request.clone() }, &NoObserver).err().unwrap();
    assert_eq!(confirmed.kind(), ErrorKind::Usage);
    let today = expire(&ExpireRequest { at: None, ..request }, &NoObserver).unwrap_or_else(|error| panic!("{error}"));
    assert!(today.report.sets.iter().all(|set| set.decision == Fate::Keep));
    assert_eq!(shelf.complete(), labels);
}

/// All WAL of a bucket was purged elsewhere by "keep the last".
#[test]
fn b11_wal_goes_in_whole_objects_and_only_before_the_oldest_set_that_is_kept() {
    let shelf = Shelf::new();
    shelf.cluster.run(&["ALTER SYSTEM SET wal_keep_size = '512MB'", "SELECT pg_reload_conf()"]);
    let fill = || {
        for round in 0..4 {
            shelf.cluster.run(&[
                &format!("CREATE TABLE t{}_{round} AS SELECT generate_series(1, 20000)", next_number()),
                "SELECT pg_switch_wal()",
            ]);
        }
    };
    let mut labels = Vec::new();
    for _ in 0..3 {
        fill();
        labels.push(shelf.back_up());
    }
    fill();
    let repository = shelf.repository();
    let pg_wal = shelf.cluster.server.data_directory().join("pg_wal");
    let current = shelf.cluster.value("SELECT pg_walfile_name(pg_current_wal_lsn())");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&pg_wal).unwrap().flatten().map(|entry| entry.path()).collect();
    files.retain(|path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.len() == 24 && name < current.as_str() || name.ends_with(".backup")
    });
    files.sort();
    // Bundles of several segments: one holds what is needed and what is not.
    let request =
        wal::PushRequest { bundle_bytes_max: 3 << 20, ..wal::PushRequest::new(shelf.source(), files.clone()) };
    let pushed = wal::push(&repository, &request, &NoObserver).unwrap_or_else(|error| panic!("{error}"));
    assert!(pushed.files.iter().all(|file| file.outcome.is_ok()), "{pushed:?}");
    let inventory = || {
        let cluster = wal_inventory::clusters(&repository, &shelf.source()).unwrap()[0];
        let mut wal = WalInventory::load(&repository, &shelf.source(), cluster, Detail::Members).unwrap();
        wal.timelines.remove(&TimelineId(1)).unwrap()
    };
    let before = inventory();
    assert!(before.bundles.len() > 4 && before.ranges.len() == 1, "{:?}", before.ranges);

    let dry = shelf.expire(2, false);
    let report = shelf.expire(2, true);
    let removed = |report: &ExpireReport| -> Vec<(Fate, u64)> {
        report.wal.iter().map(|range| (range.decision, range.object_count)).collect()
    };
    assert_eq!(removed(&dry), removed(&report));
    assert!(report.wal.iter().any(|range| range.removed_count > 0), "{:?}", report.wal);
    let after = inventory();
    let manifest = read_manifest(&repository, &shelf.source(), &labels[1]).unwrap();
    let first_needed = manifest.postgres.start_lsn.0 >> 20;
    assert_eq!(after.ranges.len(), 1, "no gap: {:?}", after.ranges);
    assert!(after.ranges[0].first.0 <= first_needed && after.ranges[0].last == before.ranges[0].last);
    assert!(first_needed - after.ranges[0].first.0 < 3, "not more than one object's worth too much");
    for segment in after.ranges[0].first.0..=after.ranges[0].last.0 {
        let number = SegmentNumber(segment);
        let name = WalSegmentName::new(TimelineId(1), number, 1 << 20);
        let target = shelf.work.path().join("segment");
        let request = wal::GetRequest {
            source: shelf.source(),
            name: name.to_string(),
            destination: target.clone(),
            system_identifier: None,
            decoders: None,
        };
        let got = wal::get(&repository, &request);
        assert!(matches!(got, Ok(wal::GetOutcome::Delivered(_))), "{name}: {got:?}");
        assert!(std::fs::read(&target).unwrap() == std::fs::read(pg_wal.join(name.as_str())).unwrap(), "{name}");
    }
    assert_eq!(shelf.expire(2, true).wal.iter().map(|range| range.removed_count).sum::<u64>(), 0);
}

/// A new part of a table's name.
fn next_number() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}
