//! Sets and WAL in another repository: as good as the original when that is gone, and never half there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use pagehaul_engine::backup::BackupRequest;
use pagehaul_engine::catalog::identity::{self, ClusterFacts};
use pagehaul_engine::catalog::pin::{pin_set, read_pin};
use pagehaul_engine::catalog::reader_lease::READER_PREFIX;
use pagehaul_engine::catalog::tombstone::Tombstone;
use pagehaul_engine::catalog::{Repository, SetState, list_sets, read_manifest};
use pagehaul_engine::copy::{Copied, CopyReport, CopyRequest, SetOutcome, copy, copy_between};
use pagehaul_engine::error::{Error, ErrorKind};
use pagehaul_engine::pipeline::{NoObserver, Observer};
use pagehaul_engine::restore::{RestoreRequest, restore};
use pagehaul_engine::retention::{ExpireRequest, RetentionPolicy, expire};
use pagehaul_engine::storage::LocalStorage;
use pagehaul_engine::terms::{BackupKind, BackupLabel, SourceName};
use pagehaul_engine::verify::{VerifyRequest, verify};
use pagehaul_testkit::cluster::{Cluster, default_install, work_directory};
use pagehaul_testkit::damage::{differences, files_below, flip_bit, tree};
use pagehaul_testkit::faulty::{Faults, FaultyStorage};
use pagehaul_testkit::observer::{At, CRAWL_BYTES_PER_S};
use pagehaul_testkit::random::Random;
use tempfile::TempDir;

use super::incremental::start;

struct Original {
    work: TempDir,
    cluster: Cluster,
    /// A full set with three stripes in two directories of their own, and an incremental one with two beside its manifest.
    labels: [BackupLabel; 2],
}

impl Original {
    fn make() -> Self {
        let work = work_directory();
        let cluster = start(&default_install(), work.path());
        cluster.load_typed_tables(8_000);
        let directory = |name: &str| work.path().join(name).display().to_string();
        let full = BackupRequest {
            stripe_to: vec![directory("disk-a"), directory("disk-b")],
            stripes: Some(3),
            ..cluster.backup_request()
        };
        let full = cluster.backup(&full).label;
        cluster.run(&["UPDATE typed SET number = -1 WHERE id % 40 = 0"]);
        let incremental = BackupRequest { kind: BackupKind::Incremental, stripes: Some(2), ..cluster.backup_request() };
        let incremental = cluster.backup(&incremental).label;
        Original { work, cluster, labels: [full, incremental] }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }

    fn request(&self, to: &str) -> CopyRequest {
        CopyRequest::new(self.cluster.repo(), self.path(to).display().to_string())
    }

    fn set(&self, set: usize) -> PathBuf {
        Path::new(&self.cluster.repo()).join("main/sets").join(self.labels[set].as_str())
    }

    /// Everything that is stored of the original.
    fn stored(&self) -> Vec<BTreeMap<Vec<u8>, String>> {
        let places = [PathBuf::from(self.cluster.repo()), self.path("disk-a"), self.path("disk-b")];
        places.iter().map(|place| tree(place)).collect()
    }

    fn complete(&self, to: &str) -> Vec<BackupLabel> {
        complete(&open(&self.path(to)))
    }

    fn is_sound(&self, to: &str, label: &BackupLabel) -> bool {
        let repo = self.path(to).display().to_string();
        let request = VerifyRequest { label: Some(label.clone()), ..VerifyRequest::new(repo) };
        verify(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}")).sound
    }

    /// Restores the newest set of a copy and compares what it holds.
    fn assert_restores(&self, to: &str) {
        let target = self.path("restored");
        let request = RestoreRequest::new(self.path(to).display().to_string(), &target);
        restore(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}"));
        self.cluster.pg_verifybackup(&target);
        let mut restored = self.cluster.adopt(&target);
        assert_eq!(restored.digests(), self.cluster.digests());
        restored.crash();
        std::fs::remove_dir_all(&target).unwrap();
    }

    fn leases(&self) -> usize {
        let is_lease =
            |path: &&PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(READER_PREFIX));
        files_below(Path::new(&self.cluster.repo())).iter().filter(is_lease).count()
    }
}

fn source() -> SourceName {
    "main".parse().unwrap()
}

fn open(path: &Path) -> Repository {
    Repository::open(&path.display().to_string()).unwrap_or_else(|error| panic!("{error}"))
}

fn complete(repository: &Repository) -> Vec<BackupLabel> {
    let sets = list_sets(repository, &source()).unwrap_or_else(|error| panic!("{error}"));
    sets.into_iter().filter(|set| matches!(set.state, SetState::Complete(_))).map(|set| set.label).collect()
}

fn run(request: &CopyRequest, observer: &dyn Observer) -> Result<CopyReport, Error> {
    let Copied { report, failed } = copy(request, observer)?;
    failed.map_or(Ok(report), Err)
}

fn run_well(request: &CopyRequest) -> CopyReport {
    run(request, &NoObserver).unwrap_or_else(|error| panic!("{error}"))
}

fn counts(report: &CopyReport) -> (u64, u64, u64) {
    (report.set_copied_count, report.set_skipped_count, report.set_failed_count)
}

#[test]
fn a_copy_restores_to_the_same_bytes_when_the_original_is_gone() {
    let original = Original::make();
    let repo = PathBuf::from(original.cluster.repo());
    let (from, [full, incremental]) = (open(&repo), original.labels.clone());
    pin_set(&from, &source(), &full, Some("for ever")).unwrap_or_else(|error| panic!("{error}"));
    let before = original.stored();
    let disks = ["disk-c", "disk-d"].map(|name| original.path(name).display().to_string());
    let request = CopyRequest { stripe_to: disks.to_vec(), readers: Some(3), ..original.request("copy") };
    let report = run_well(&request);
    assert_eq!(counts(&report), (2, 0, 0), "{report:?}");
    assert_eq!(report.wal.map(|wal| (wal.copied_count, wal.failed_count)), Some((0, 0)));
    let stored = |label| read_manifest(&from, &source(), label).unwrap().stored_bytes;
    assert_eq!(report.set_copied_bytes, stored(&full) + stored(&incremental));
    assert_eq!(report.stages.writers.bytes, report.set_copied_bytes);
    assert!(report.rss_bytes_max > 0 && report.memory_ceiling_bytes < 64 << 20, "{report:?}");

    let to = open(&original.path("copy"));
    for (label, stripes) in [(&full, 3), (&incremental, 2)] {
        let (one, two) =
            (read_manifest(&from, &source(), label).unwrap(), read_manifest(&to, &source(), label).unwrap());
        assert_eq!((&one.set_id, &one.prior, one.stored_bytes), (&two.set_id, &two.prior, two.stored_bytes));
        let found: Vec<_> = two.stripes.iter().map(|stripe| stripe.directory.clone().unwrap()).collect();
        let expected: Vec<_> = disks.iter().cycle().take(stripes).cloned().collect();
        assert_eq!(found, expected, "set {label}");
    }
    assert_eq!(read_pin(&to, &source(), &full).and_then(|pin| pin.reason).as_deref(), Some("for ever"));
    assert!(read_pin(&to, &source(), &incremental).is_none());
    assert_eq!(original.stored(), before, "the original is as it was, and no lease is left");

    let there = tree(&original.path("copy"));
    let report = run_well(&request);
    assert_eq!(counts(&report), (0, 2, 0));
    assert_eq!(report.stages.readers.bytes, 0);
    assert_eq!(differences(&there, &tree(&original.path("copy"))), Vec::<String>::new());

    for gone in [repo, original.path("disk-a"), original.path("disk-b")] {
        std::fs::remove_dir_all(gone).unwrap();
    }
    for label in &original.labels {
        assert!(original.is_sound("copy", label));
    }
    original.assert_restores("copy");
    // And a copy of the copy, everything in one place.
    let again =
        CopyRequest::new(original.path("copy").display().to_string(), original.path("second").display().to_string());
    assert_eq!(counts(&run_well(&again)), (2, 0, 0));
    for gone in ["copy", "disk-c", "disk-d"] {
        std::fs::remove_dir_all(original.path(gone)).unwrap();
    }
    original.assert_restores("second");
}

#[test]
fn f15_damage_is_named_with_its_place_and_no_copy_of_it_is_made() {
    let original = Original::make();
    let [full, incremental] = original.labels.clone();
    let (stripe, sums, table) = ("stripe-0001.phs", "pages-0000.sums", "files.table");
    for object in [stripe, sums, table] {
        let path = original.set(1).join(object);
        let at = std::fs::metadata(&path).unwrap().len() / 2;
        flip_bit(&path, at, 5);
        let Copied { report, failed } = copy(&original.request("copy"), &NoObserver).unwrap_or_else(|e| panic!("{e}"));
        let failed = failed.unwrap_or_else(|| panic!("{object}: {report:?}"));
        assert_eq!(failed.kind(), ErrorKind::Damage, "{failed}");
        assert_eq!(report.set_failed_count, 1, "{report:?}");
        let text = failed.message();
        assert!(text.contains(object) && text.contains(incremental.as_str()), "{text}");
        if object == stripe {
            let place = text.split(" at byte ").nth(1).and_then(|rest| rest.split(':').next()).unwrap();
            let start: u64 = place.parse().unwrap();
            assert!(text.contains("frame ") && start <= at, "{text}: flipped at {at}");
        }
        assert!(failed.hint_text().unwrap().contains("verify"), "{failed}");
        assert_eq!(original.complete("copy"), std::slice::from_ref(&full));
        assert!(!original.path("copy/main/sets").join(incremental.as_str()).exists(), "nothing of it is there");
        assert!(original.is_sound("copy", &full));
        flip_bit(&path, at, 5);
    }
    // What needs a set that is damaged is not copied without it.
    let damaged = original.path("disk-a/main/sets").join(full.as_str()).join("stripe-0000.phs");
    flip_bit(&damaged, 5_000, 1);
    let Copied { report, failed } = copy(&original.request("other"), &NoObserver).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(counts(&report), (0, 0, 2), "{report:?}");
    let failed = failed.unwrap();
    assert!(failed.message().contains("frame 0 at byte 512"), "{failed}");
    let needs = failed.attached()[0].message();
    assert!(needs.contains(&format!("it needs set {full}, which could not be copied")), "{needs}");
    assert!(original.complete("other").is_empty());
    let chosen = CopyRequest { sets: vec![None], ..original.request("other") };
    assert_eq!(copy(&chosen, &NoObserver).unwrap_err().kind(), ErrorKind::Damage);
    flip_bit(&damaged, 5_000, 1);
    // A chosen set brings what it needs, and no archive.
    let report = run_well(&chosen);
    let labels: Vec<_> = report.sets.iter().map(|set| set.label.clone()).collect();
    assert_eq!((counts(&report), labels, report.wal), ((2, 0, 0), vec![full, incremental], None));
    assert_eq!(counts(&run_well(&original.request("copy"))), (1, 1, 0));
    original.assert_restores("copy");
}

#[test]
fn f47_the_name_of_another_cluster_or_set_is_not_taken() {
    let original = Original::make();
    let to = Repository::open_or_create(&original.path("copy").display().to_string()).unwrap();
    let other = ClusterFacts { system_identifier: 4711, pg_version_num: 170_000 };
    identity::check_or_create(&to, &source(), &other).unwrap();
    let error = run(&original.request("copy"), &NoObserver).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(error.message().contains("4711"), "{error}");
    assert!(complete(&to).is_empty() && !original.path("copy/main/sets").exists());

    // Another set under a label that both have.
    run_well(&original.request("second"));
    let [full, incremental] = &original.labels;
    let second = open(&original.path("second"));
    let mut manifest = read_manifest(&second, &source(), incremental).unwrap();
    let id = std::mem::replace(&mut manifest.set_id, "0123456789abcdef0123456789abcdef".to_owned());
    let path = original.path("second/main/sets").join(incremental.as_str()).join("manifest.json");
    std::fs::write(&path, manifest.to_bytes().unwrap()).unwrap();
    let Copied { report, failed } = copy(&original.request("second"), &NoObserver).unwrap();
    let failed = failed.unwrap();
    assert_eq!((failed.kind(), counts(&report)), (ErrorKind::Conflict, (0, 1, 1)), "{failed}");
    assert!(failed.message().contains(&id) && failed.message().contains(&manifest.set_id), "{failed}");
    assert!(original.is_sound("second", full));
}

#[test]
fn b17_a_copy_never_meets_its_original() {
    let original = Original::make();
    let repo = PathBuf::from(original.cluster.repo());
    let before = original.stored();
    std::os::unix::fs::symlink(&repo, original.path("alias")).unwrap();
    let to_alias = original.request("alias");
    let to_itself = CopyRequest::new(original.cluster.repo(), original.cluster.repo());
    for request in [to_alias, to_itself] {
        let error = run(&request, &NoObserver).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        assert!(error.message().contains("the same repository"), "{error}");
    }
    std::fs::remove_file(original.path("alias")).unwrap();
    // Stripes of the copy where those of the original lie: they would be removed with a copy that fails.
    for place in [original.path("disk-b"), repo] {
        let stripe_to = vec![place.display().to_string()];
        let request = CopyRequest { stripe_to, sets: vec![None], ..original.request("copy") };
        let error = run(&request, &NoObserver).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        assert!(error.message().contains("is there already"), "{error}");
    }
    assert_eq!(original.stored(), before);
    let nul = CopyRequest::new(original.cluster.repo(), "NUL");
    assert_eq!(run(&nul, &NoObserver).unwrap_err().kind(), ErrorKind::Usage);
}

#[test]
fn f29_leases_are_held_an_expire_waits_and_an_interrupt_leaves_no_set() {
    let original = Original::make();
    original.cluster.run(&["CREATE TABLE later ()"]);
    let newest = original.cluster.backup(&original.cluster.backup_request()).label;
    let slowly = CopyRequest {
        max_rate_bytes_per_s: Some(4 << 20),
        sets: vec![Some(original.labels[1].clone())],
        ..original.request("copy")
    };
    let crawling = CopyRequest { max_rate_bytes_per_s: Some(CRAWL_BYTES_PER_S), ..slowly.clone() };
    let error = run(&crawling, &At::interrupt_after(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
    assert!(original.complete("copy").is_empty() && original.leases() == 0);
    assert!(!original.path("copy/main/sets").join(original.labels[0].as_str()).exists());

    let policy = RetentionPolicy { keep_full: Some(1), ..RetentionPolicy::default() };
    let request = ExpireRequest { source: None, repo: original.cluster.repo(), policy, at: None, confirm: true };
    let expire_now = || drop(expire(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}")));
    let held = Mutex::new(0);
    let observer = At::progress(0, || {
        *held.lock().unwrap() = original.leases();
        expire_now();
    });
    let report = run(&slowly, &observer).unwrap_or_else(|error| panic!("{error}"));
    assert!(observer.done());
    assert_eq!((*held.lock().unwrap(), counts(&report)), (2, (2, 0, 0)), "a lease in each set of the chain");
    for label in &original.labels {
        assert!(original.is_sound("copy", label));
    }
    // Nobody reads them any more; what has expired is not copied.
    expire_now();
    let report = run_well(&original.request("other"));
    assert_eq!(original.complete("other"), std::slice::from_ref(&newest), "{report:?}");
    assert!(report.sets.iter().all(|set| set.outcome == SetOutcome::Copied));
}

#[test]
fn what_is_being_removed_there_is_left_alone_and_nothing_is_built_on_it() {
    let original = Original::make();
    let [full, incremental] = original.labels.clone();
    run_well(&CopyRequest { sets: vec![Some(full.clone())], ..original.request("copy") });
    let to = open(&original.path("copy"));
    let manifest = read_manifest(&to, &source(), &full).unwrap();
    let tombstone = Tombstone::new(&manifest, "2026-11-21T00:00:00Z".parse().unwrap(), Vec::new());
    assert!(tombstone.put(&to, &source()).unwrap());
    let Copied { report, failed } = copy(&original.request("copy"), &NoObserver).unwrap_or_else(|e| panic!("{e}"));
    let outcomes: Vec<_> = report.sets.iter().map(|set| (&set.label, &set.outcome)).collect();
    assert_eq!((outcomes[0], counts(&report)), ((&full, &SetOutcome::Expired), (0, 0, 1)), "{report:?}");
    let failed = failed.unwrap();
    assert_eq!(failed.kind(), ErrorKind::Conflict, "{failed}");
    assert!(failed.message().contains(incremental.as_str()) && failed.message().contains(full.as_str()), "{failed}");
    let chosen = CopyRequest { sets: vec![Some(full)], ..original.request("copy") };
    assert_eq!(run(&chosen, &NoObserver).unwrap_err().kind(), ErrorKind::Conflict);
    // Two copies do not write one set.
    std::fs::remove_dir_all(original.path("copy")).unwrap();
    let second = Mutex::new(None);
    let slowly = CopyRequest { max_rate_bytes_per_s: Some(4 << 20), ..original.request("copy") };
    let observer = At::progress(0, || *second.lock().unwrap() = Some(run(&original.request("copy"), &NoObserver)));
    let first = run(&slowly, &observer).unwrap_or_else(|error| panic!("{error}"));
    let second = second.lock().unwrap().take().unwrap().unwrap_err();
    assert_eq!((counts(&first), second.kind()), ((2, 0, 0), ErrorKind::Conflict), "{second}");
    assert!(second.message().contains("somebody else writes it now"), "{second}");
    original.assert_restores("copy");
}

#[test]
fn b02_whichever_operation_fails_no_set_looks_complete_that_is_not() {
    let mut random = Random::new("failing operations of a copy");
    let original = Original::make();
    let over = |path: &Path, faults: &Arc<Faults>| {
        Repository::over(Box::new(FaultyStorage::new(LocalStorage::new(path), Arc::clone(faults))))
    };
    let attempt = |faults: [&Arc<Faults>; 2]| {
        let to = original.path("copy");
        let _ = open_or_create(&to);
        let from = over(Path::new(&original.cluster.repo()), faults[0]);
        copy_between(&from, &over(&to, faults[1]), &original.request("copy"), &NoObserver)
            .and_then(|Copied { report, failed }| failed.map_or(Ok(report), Err))
    };
    let clean = [Faults::none(), Faults::none()];
    attempt([&clean[0], &clean[1]]).unwrap_or_else(|error| panic!("{error}"));
    let whole: BTreeSet<Vec<u8>> = tree(&original.path("copy")).into_keys().collect();
    for (side, faults_of_side) in clean.iter().enumerate() {
        let count = faults_of_side.operations();
        assert!(count > 20, "{count} operations");
        let mut numbers: Vec<u64> =
            (0..4).chain(count - 6..count).chain((0..12).map(|_| random.below(count))).collect();
        numbers.sort_unstable();
        numbers.dedup();
        for (turn, number) in numbers.into_iter().enumerate() {
            std::fs::remove_dir_all(original.path("copy")).unwrap();
            let failing = if turn % 3 == 2 { Faults::from_operation(number) } else { Faults::at_operation(number) };
            let (none, what) = (Faults::none(), format!("side {side}, {failing:?} of {count}"));
            let done = attempt(if side == 0 { [&failing, &none] } else { [&none, &failing] });
            if let Err(error) = &done {
                assert!([ErrorKind::Repository, ErrorKind::Damage].contains(&error.kind()), "{what}: {error}");
            }
            let complete = original.complete("copy");
            assert!(done.is_err() || complete == original.labels, "{what}: {complete:?}");
            for label in &complete {
                assert!(original.is_sound("copy", label), "{what}: {label}");
            }
            attempt([&none, &Faults::none()]).unwrap_or_else(|error| panic!("{what}: {error}"));
            let found: BTreeSet<Vec<u8>> = tree(&original.path("copy")).into_keys().collect();
            let is_lease = |path: &&Vec<u8>| !String::from_utf8_lossy(path).contains(READER_PREFIX);
            let more: Vec<_> =
                found.difference(&whole).filter(is_lease).map(|path| path.escape_ascii().to_string()).collect();
            assert!(whole.is_subset(&found) && more.is_empty(), "{what}: {more:?}");
        }
    }
    original.assert_restores("copy");
}

fn open_or_create(path: &Path) -> Repository {
    Repository::open_or_create(&path.display().to_string()).unwrap_or_else(|error| panic!("{error}"))
}
