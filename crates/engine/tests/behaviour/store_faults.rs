//! A store that fails at any operation, for once or for ever, or is full: no false success, no harm to what was there.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pagehaul_engine::backup::{BackupReport, BackupRequest, backup_into};
use pagehaul_engine::catalog::{Repository, SetListing, SetState, list_sets};
use pagehaul_engine::error::{Error, ErrorKind};
use pagehaul_engine::pipeline::{NoObserver, Observer};
use pagehaul_engine::restore::{RestoreRequest, restore};
use pagehaul_engine::source::postgres::scratch_server::InitOptions;
use pagehaul_engine::storage::LocalStorage;
use pagehaul_engine::terms::BackupLabel;
use pagehaul_engine::verify::{VerifyRequest, verify};
use pagehaul_testkit::cluster::{Cluster, QUICK, default_install, disk_directory};
use pagehaul_testkit::damage::flip_bit;
use pagehaul_testkit::faulty::{Faults, FaultyStorage};
use pagehaul_testkit::lying::{LIES, Lie, LyingStorage};
use pagehaul_testkit::observer::At;
use pagehaul_testkit::random::Random;

/// A cluster with one set in its repository.
struct Stored {
    cluster: Cluster,
    request: BackupRequest,
    earlier: BackupLabel,
    _work: tempfile::TempDir,
}

fn stored() -> Stored {
    let work = disk_directory();
    let options = InitOptions { wal_segment_size_mib: Some(1), ..InitOptions::default() };
    let settings: Vec<_> = QUICK.iter().copied().filter(|(name, _)| *name != "max_wal_size").collect();
    let cluster = Cluster::start_with(&default_install(), work.path(), &options, &settings);
    let request = BackupRequest { stripes: Some(2), frame_size_bytes: Some(1 << 20), ..cluster.backup_request() };
    let earlier = cluster.backup(&request).label;
    Stored { cluster, request, earlier, _work: work }
}

impl Stored {
    fn backup_with(&self, faults: &Arc<Faults>) -> Result<BackupReport, Error> {
        self.observed_backup_with(faults, &NoObserver)
    }

    fn observed_backup_with(&self, faults: &Arc<Faults>, observer: &dyn Observer) -> Result<BackupReport, Error> {
        let storage = LocalStorage::new(Path::new(&self.cluster.repo()));
        let repository = Repository::over(Box::new(FaultyStorage::new(storage, Arc::clone(faults))));
        backup_into(&repository, &self.request, observer)
    }

    fn sets(&self) -> Vec<SetListing> {
        let repository = Repository::open(&self.cluster.repo()).unwrap_or_else(|error| panic!("{error}"));
        list_sets(&repository, &"main".parse().unwrap()).unwrap_or_else(|error| panic!("{error}"))
    }

    fn is_sound(&self, label: &BackupLabel) -> bool {
        let request = VerifyRequest { label: Some(label.clone()), ..VerifyRequest::new(self.cluster.repo()) };
        verify(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}")).sound
    }

    /// Success means a sound set; failure means that none was added. The earlier set and the server are unharmed.
    fn check(&self, what: &str, outcome: &Result<BackupReport, Error>) {
        let complete: Vec<BackupLabel> = self
            .sets()
            .into_iter()
            .filter_map(|set| matches!(set.state, SetState::Complete(_)).then_some(set.label))
            .collect();
        match outcome {
            Ok(report) => {
                assert!(complete.contains(&report.label) && self.is_sound(&report.label), "{what}: {}", report.label);
                let set = Path::new(&self.cluster.repo()).join("main/sets").join(report.label.as_str());
                std::fs::remove_dir_all(set).unwrap();
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Repository, "{what}: {error}");
                assert_eq!(complete, std::slice::from_ref(&self.earlier), "{what}: {error}");
            }
        }
        self.cluster.assert_no_slot(what);
    }

    /// Without faults it works again, and nothing unfinished is left.
    fn check_next_backup(&self, what: &str) {
        assert!(self.is_sound(&self.earlier), "{what}: the earlier set");
        let report = self.backup_with(&Faults::none()).unwrap_or_else(|error| panic!("{what}: {error}"));
        let unfinished = self.sets().into_iter().filter(|set| !matches!(set.state, SetState::Complete(_))).count();
        assert_eq!(unfinished, 0, "{what}: leftovers are removed");
        self.check(what, &Ok(report));
    }
}

#[test]
fn b02_whichever_operation_fails_there_is_no_false_success() {
    let mut random = Random::new("failing operations");
    let stored = stored();
    let faults = Faults::none();
    let report = stored.backup_with(&faults);
    stored.check("without faults", &report);
    let count = faults.operations();
    assert!(count > 30, "{count} operations");
    let mut numbers: Vec<u64> = (0..10).chain(count - 10..count).chain((0..25).map(|_| random.below(count))).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let mut successes = Vec::new();
    for (turn, number) in numbers.into_iter().enumerate() {
        let for_ever = turn % 4 == 3;
        let faults = if for_ever { Faults::from_operation(number) } else { Faults::at_operation(number) };
        let outcome = stored.backup_with(&faults);
        let what = format!("{faults:?} of {count}");
        // Only a second look at the manifest and tidying up, after the commit, may fail without failing the backup.
        if outcome.is_ok() {
            successes.push(number);
        }
        stored.check(&what, &outcome);
        // What a store that is gone keeps us from removing is removed by the next backup, which has more to do then.
        if for_ever {
            stored.check_next_backup(&what);
        }
    }
    assert!(successes.iter().all(|number| *number >= count - 4), "{successes:?} of {count}");
    stored.check_next_backup("at the end");
}

/// The server has ended the backup, or is about to, while the last frames are still written.
#[test]
fn b02_a_store_that_fails_while_the_server_ends_the_backup_gives_no_set() {
    let stored = stored();
    for fail in [Faults::fail_from_now as fn(&Faults), Faults::full_from_now] {
        let faults = Faults::none();
        let at = At::phase("end the backup", || fail(&faults));
        let outcome = stored.observed_backup_with(&faults, &at);
        assert!(at.done() && outcome.is_err(), "{outcome:?}");
        stored.check("while the server ends the backup", &outcome);
        stored.check_next_backup("after it");
    }
}

/// The last answer of an upload was misread elsewhere: files and WAL were missing from backups that were called complete.
#[test]
fn b03_a_store_that_says_stored_and_has_nothing_or_half_gives_no_set() {
    let stored = stored();
    let repo = stored.cluster.repo();
    let backup = |at: u64, lie: Lie| {
        let finished = Arc::new(AtomicU64::new(0));
        let storage = LyingStorage::new(Path::new(&repo), at, lie, Arc::clone(&finished));
        let outcome = backup_into(&Repository::over(Box::new(storage)), &stored.request, &NoObserver);
        (outcome, finished.load(Relaxed))
    };
    let (honest, count) = backup(u64::MAX, Lie::Absent);
    stored.check("an honest store", &honest);
    // The plan, two stripes with the sums of their pages, the file table, the manifest.
    assert_eq!(count, 7);
    for at in 0..count {
        for lie in LIES {
            let what = format!("{lie:?} of object {at}");
            let (outcome, _) = backup(at, lie);
            // Only the plan is of no use to a set that is complete.
            assert_eq!(outcome.is_ok(), at == 0, "{what}");
            stored.check(&what, &outcome);
        }
    }
    stored.check_next_backup("at the end");
}

/// A host that lost its lease, or was taken for dead: another one removed what it had stored so far.
#[test]
fn f42_a_backup_whose_place_was_taken_away_does_not_commit() {
    let stored = stored();
    let sets = Path::new(&stored.cluster.repo()).join("main/sets");
    let taken = || {
        for entry in std::fs::read_dir(&sets).unwrap().flatten() {
            if entry.file_name() != *stored.earlier.as_str() {
                std::fs::remove_dir_all(entry.path()).unwrap();
            }
        }
    };
    for phase in ["read, encode", "end the backup", "make the stripes durable"] {
        let at = At::phase(phase, taken);
        let outcome = backup_into(&Repository::open(&stored.cluster.repo()).unwrap(), &stored.request, &at);
        assert!(at.done() && outcome.is_err(), "{phase}: {outcome:?}");
        drop(at);
        stored.check(phase, &outcome);
    }
    // Somebody else has finished a set of that label meanwhile.
    let at = At::phase("make the stripes durable", || {
        let running =
            std::fs::read_dir(&sets).unwrap().flatten().find(|set| set.file_name() != *stored.earlier.as_str());
        std::fs::write(running.unwrap().path().join("manifest.json"), "another's").unwrap();
    });
    let error = backup_into(&Repository::open(&stored.cluster.repo()).unwrap(), &stored.request, &at).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    drop(at);
    taken();
    stored.check_next_backup("at the end");
}

#[test]
fn a_full_store_fails_the_backup_and_says_how_much_it_needs() {
    let stored = stored();
    let faults = Faults::none();
    let report = stored.backup_with(&faults);
    stored.check("without faults", &report);
    let whole = faults.written_bytes();
    for part in 0..20 {
        let room = whole * part / 20;
        let outcome = stored.backup_with(&Faults::room(room));
        let what = format!("room for {room} of {whole} bytes");
        let error = outcome.as_ref().expect_err(&what);
        assert!(error.message().contains("No space left"), "{what}: {error}");
        stored.check(&what, &outcome);
        if part >= 10 {
            let hint = error.hint_text().unwrap_or_default();
            let needed = hint.split("needs about ").nth(1).unwrap_or_else(|| panic!("{what}: {error}"));
            let needed: f64 = needed.split(' ').next().unwrap().parse().unwrap();
            let truth = whole as f64 / (1024.0 * 1024.0);
            assert!(needed > truth / 3.0 && needed < truth * 3.0 + 1.0, "{what}: {needed} MiB, really {truth}");
        }
    }
    stored.check_next_backup("after a full store");
}

#[test]
fn an_older_set_is_never_taken_for_a_damaged_newest_one() {
    let stored = stored();
    let newest = stored.cluster.backup(&stored.request).label;
    let manifest = Path::new(&stored.cluster.repo()).join("main/sets").join(newest.as_str()).join("manifest.json");
    flip_bit(&manifest, 100, 4);
    let error = verify(&VerifyRequest::new(stored.cluster.repo()), &NoObserver).expect_err("a verification");
    assert_eq!(error.kind(), ErrorKind::Damage, "{error}");
    let target = stored.cluster.directory.join("restored");
    let error = restore(&RestoreRequest::new(stored.cluster.repo(), &target), &NoObserver).expect_err("a restore");
    assert_eq!(error.kind(), ErrorKind::Damage, "{error}");
    assert!(error.hint_text().unwrap().contains(stored.earlier.as_str()), "{error}");
    assert!(!target.exists());
    assert!(stored.is_sound(&stored.earlier), "named, it can be used");
    stored.cluster.backup(&stored.request);
    assert!(verify(&VerifyRequest::new(stored.cluster.repo()), &NoObserver).unwrap().sound, "a newer good one counts");
}
