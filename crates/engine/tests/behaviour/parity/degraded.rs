//! What is done with a degraded set: it is copied, counted, and repaired over a store that fails.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use pagehaul_engine::catalog::{Repository, open_set};
use pagehaul_engine::copy::{CopyRequest, copy};
use pagehaul_engine::error::{ErrorKind, Result};
use pagehaul_engine::format::checksum::xxh3;
use pagehaul_engine::pipeline::limit::Direction;
use pagehaul_engine::pipeline::{LiveView, NoObserver, Observer};
use pagehaul_engine::repair::{RepairReport, RepairRequest, repair, repair_in};
use pagehaul_engine::retention::{ExpireRequest, RetentionPolicy, expire};
use pagehaul_engine::storage::LocalStorage;
use pagehaul_engine::terms::{BackupLabel, SourceName};
use pagehaul_engine::verify::{VerifyRequest, verify};
use pagehaul_testkit::damage::{cut, files_below, flip_bit, overwrite};
use pagehaul_testkit::faulty::{Faults, FaultyStorage};

use super::{Case, PARITY, STRIPES, sets};

#[test]
fn f25_a_degraded_set_is_copied_whole_and_its_copy_has_parity() {
    let sets = sets();
    let case = sets.case();
    let originals = case.originals();
    std::fs::remove_file(case.member(2)).unwrap();
    flip_bit(&case.member(5), 700, 3);
    let table = case.rows().with_file_name("files.table");
    let table_bytes = std::fs::read(&table).unwrap();
    std::fs::remove_file(&table).unwrap();
    overwrite(&case.rows().with_file_name("manifest.json"), 40, b"damaged");
    let to = case.root.join("second").display().to_string();
    let request = CopyRequest {
        sets: vec![Some(sets.full.clone())],
        stripe_from: case.stripe_from(),
        ..CopyRequest::new(case.repo(), to.as_str())
    };
    let copied = copy(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}"));
    assert!(copied.failed.is_none());
    let below = Path::new(&to).join("main/sets").join(sets.full.as_str());
    for (member, original) in originals.iter().enumerate() {
        let name = case.member(member).file_name().unwrap().to_owned();
        assert_eq!(xxh3(&std::fs::read(below.join(name)).unwrap()), *original, "member {member}");
    }
    for name in ["files.table", "files-r1.table"] {
        assert!(std::fs::read(below.join(name)).unwrap() == table_bytes, "{name}");
    }
    assert_eq!(
        std::fs::read(below.join("manifest.json")).unwrap(),
        std::fs::read(below.join("manifest-r1.json")).unwrap()
    );
    let report = verify(&VerifyRequest::new(to.as_str()), &NoObserver).unwrap_or_else(|error| panic!("{error}"));
    assert!(report.sound, "{report:?}");
}

/// What is lost and can be given back is no reason to call a set flawed, and the parity goes with its set.
#[test]
fn f15_expire_counts_on_a_degraded_set_and_removes_parity_and_repaired_stripes() {
    let sets = sets();
    let case = sets.case();
    // In one place, as the recorded directories are those before the move.
    let repo = case.root.join("one-place").display().to_string();
    for label in [&sets.other, &sets.full] {
        let request = CopyRequest {
            sets: vec![Some(label.clone())],
            stripe_from: case.stripe_from(),
            wal: Some(false),
            ..CopyRequest::new(case.repo(), repo.as_str())
        };
        copy(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}"));
    }
    let of = |label: &BackupLabel| Path::new(&repo).join("main/sets").join(label.as_str());
    std::fs::remove_file(of(&sets.full).join("stripe-0001.phs")).unwrap();
    cut(&of(&sets.full).join("files.table"), 10);
    std::fs::remove_file(of(&sets.other).join("stripe-0000.phs")).unwrap();
    let report =
        repair(&RepairRequest { label: Some(sets.other.clone()), ..RepairRequest::new(repo.as_str()) }, &NoObserver);
    assert!(report.unwrap_or_else(|error| panic!("{error}")).whole);
    assert!(of(&sets.other).join("stripe-0000-r1.phs").exists());
    let policy = RetentionPolicy { keep_full: Some(1), ..RetentionPolicy::default() };
    let request = ExpireRequest { source: None, repo: repo.clone(), policy, at: None, confirm: true };
    let expired = expire(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}"));
    assert!(expired.report.notes.iter().all(|note| !note.contains("not whole")), "{:?}", expired.report.notes);
    assert!(!of(&sets.other).exists(), "{:?}", files_below(&of(&sets.other)));
    assert!(of(&sets.full).exists(), "the degraded set is the newest, and counts");
    let (repository, source) = (Repository::open(&repo).unwrap(), "main".parse::<SourceName>().unwrap());
    assert!(open_set(&repository, &source, &sets.full, &[]).unwrap().problems.iter().all(|problem| problem.by_parity));
}

/// A set in one place, so that every operation goes through one store.
fn in_one_place(case: &Case<'_>, name: &str) -> String {
    let to = case.root.join(name).display().to_string();
    let sets = vec![Some(case.sets.full.clone())];
    let request = CopyRequest { sets, stripe_from: case.stripe_from(), ..CopyRequest::new(case.repo(), to.as_str()) };
    copy(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}"));
    to
}

/// A set in one place that has lost a stripe: the place, the set's directory, and what the stripe held.
fn without_last_stripe(case: &Case<'_>) -> (String, PathBuf, Vec<u8>) {
    let place = in_one_place(case, "place");
    let set = Path::new(&place).join("main/sets").join(case.sets.full.as_str());
    let stripe = set.join("stripe-0003.phs");
    let original = std::fs::read(&stripe).unwrap();
    std::fs::remove_file(stripe).unwrap();
    (place, set, original)
}

/// What is put back on a disk that is new there is claimed as what was there before; where another repository has the set's prefix since, it goes
/// beside the manifest.
#[test]
fn s19_what_is_put_back_in_a_place_that_others_share_is_claimed() {
    let sets = sets();
    for is_taken in [false, true] {
        let case = sets.case();
        let to = case.root.join("copied");
        let disks: Vec<PathBuf> = (0..STRIPES + PARITY).map(|disk| case.root.join(format!("disk{disk}"))).collect();
        let request = CopyRequest {
            sets: vec![Some(sets.full.clone())],
            stripe_from: case.stripe_from(),
            stripe_to: disks.iter().map(|disk| disk.display().to_string()).collect(),
            ..CopyRequest::new(case.repo(), to.display().to_string())
        };
        copy(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}"));
        let set = |place: &Path| place.join("main/sets").join(sets.full.as_str());
        let owner = std::fs::read_to_string(set(&disks[1]).join("owner.json")).unwrap();
        std::fs::remove_dir_all(disks[0].join("main")).unwrap();
        let here = set(&disks[0]);
        std::fs::create_dir_all(if is_taken { here.clone() } else { disks[0].join("lost+found") }).unwrap();
        if is_taken {
            std::fs::write(here.join("owner.json"), r#"{"owner": "another", "repository": "another"}"#).unwrap();
        }
        let repaired = repair(&RepairRequest::new(to.display().to_string()), &NoObserver);
        let repaired = repaired.unwrap_or_else(|error| panic!("{error}"));
        assert!(repaired.whole && repaired.repaired.len() == 1, "{repaired:?}");
        let place = if is_taken { set(&to) } else { here.clone() };
        assert!(place.join("stripe-0000-r1.phs").exists(), "{repaired:?}");
        let said = std::fs::read_to_string(here.join("owner.json")).unwrap();
        let repository = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap()["repository"].clone();
        assert_eq!(repository(&said) == repository(&owner), !is_taken, "{said}");
    }
}

/// Repairs over a store with faults.
fn repair_with(place: &str, faults: &Arc<Faults>, observer: &dyn Observer) -> Result<RepairReport> {
    let storage = FaultyStorage::new(LocalStorage::new(Path::new(place)), Arc::clone(faults));
    repair_in(&Repository::over(Box::new(storage)), &RepairRequest::new(place), observer)
}

#[test]
fn f25_a_repair_that_fails_or_dies_at_any_operation_leaves_the_set_restorable() {
    let sets = sets();
    let case = sets.case();
    let (place, set, original) = without_last_stripe(&case);
    std::fs::remove_file(set.join("rows.phs")).unwrap();
    let run = |faults: &Arc<Faults>| repair_with(&place, faults, &NoObserver);
    let mut number = 0;
    let mut wholes = 0;
    loop {
        for faults in [Faults::at_operation(number), Faults::from_operation(number)] {
            let outcome = run(&faults);
            let report =
                verify(&VerifyRequest::new(place.as_str()), &NoObserver).unwrap_or_else(|error| panic!("{error}"));
            assert!(report.restorable, "operation {number}: {report:?}");
            let is_whole = outcome.is_ok_and(|report| report.whole);
            assert!(!is_whole || report.sound, "operation {number}: {report:?}");
            // Whatever appeared is what it should be.
            for file in files_below(&set) {
                let name = file.file_name().unwrap().to_string_lossy().into_owned();
                if name.contains("-r") && name.starts_with("stripe") {
                    assert!(std::fs::read(&file).unwrap() == original, "operation {number}: {name}");
                    std::fs::remove_file(&file).unwrap();
                }
                if name.starts_with("rows-r") {
                    std::fs::remove_file(&file).unwrap();
                }
            }
            wholes += u32::from(is_whole);
        }
        if wholes > 6 {
            break;
        }
        number += 1;
    }
    assert!(number > 20, "{number} operations");
    assert!(run(&Faults::none()).unwrap_or_else(|error| panic!("{error}")).whole);
}

/// A signal that asks to stop once `asked` is set.
struct Signal<'a> {
    asked: &'a AtomicBool,
}

impl Observer for Signal<'_> {
    fn phase(&self, _name: &str) {}
    fn note(&self, _text: &str) {}
    fn progress(&self, _direction: Direction, _live: &LiveView<'_>) {}
    fn interrupted(&self) -> bool {
        self.asked.load(SeqCst)
    }
}

/// Readers prefer what a repair put there: what it had no time to read back does not stay.
#[test]
fn f25_a_repair_that_is_interrupted_at_any_operation_leaves_nothing_that_it_did_not_read_back() {
    let sets = sets();
    let case = sets.case();
    let (place, set, original) = without_last_stripe(&case);
    let repaired = set.join("stripe-0003-r1.phs");
    let mut taken_away = 0;
    for number in 0.. {
        let (faults, asked, was_there) =
            (Faults::none(), Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (ask, saw, path) = (Arc::clone(&asked), Arc::clone(&was_there), repaired.clone());
        faults.call_at(number, move || {
            ask.store(true, SeqCst);
            saw.store(path.exists(), SeqCst);
        });
        let outcome = repair_with(&place, &faults, &Signal { asked: &asked });
        if let Err(error) = &outcome {
            assert_eq!(error.kind(), ErrorKind::Interrupted, "operation {number}: {error}");
        }
        let report = verify(&VerifyRequest::new(place.as_str()), &NoObserver).unwrap_or_else(|error| panic!("{error}"));
        assert!(report.restorable, "operation {number}: {report:?}");
        if repaired.exists() {
            assert!(std::fs::read(&repaired).unwrap() == original, "operation {number}");
            std::fs::remove_file(&repaired).unwrap();
        } else {
            assert!(outcome.is_err(), "operation {number}: nothing was put back");
            taken_away += u32::from(was_there.load(SeqCst));
        }
        if !asked.load(SeqCst) {
            break;
        }
    }
    assert!(taken_away > 0, "no interrupt came while the stripe was read back");
    let report = repair(&RepairRequest::new(place.as_str()), &NoObserver);
    assert!(report.unwrap_or_else(|error| panic!("{error}")).whole);
}

/// A store that does not answer says nothing of its stripes: they are not lost, and no parity is used for them.
#[test]
fn f25_a_store_that_does_not_answer_is_an_error_and_no_lost_stripe() {
    let sets = sets();
    let case = sets.case();
    let nowhere = "s3://bucket/x?endpoint=http://127.0.0.1:9".to_owned();
    let request =
        VerifyRequest { label: Some(sets.full.clone()), stripe_from: vec![nowhere], ..VerifyRequest::new(case.repo()) };
    let error = verify(&request, &NoObserver).expect_err("the store is not there");
    assert_ne!(error.kind(), ErrorKind::Damage, "{error}");
}

/// Whoever may add objects can add what looks like a stripe that was put back: its header, its trailer, its size, and nothing of it between them.
#[test]
fn s19_what_only_looks_like_a_stripe_that_was_put_back_hides_none() {
    let sets = sets();
    for lost in [None, Some(1)] {
        let case = sets.case();
        for member in 0..STRIPES + PARITY {
            let original = case.member(member);
            let name = original.file_name().unwrap().to_str().unwrap().replace(".phs", "-r1.phs");
            let planted = original.with_file_name(name);
            std::fs::copy(&original, &planted).unwrap();
            let offsets = case.frame_offsets(member);
            let (first, end) = (offsets[0], offsets[offsets.len() - 1]);
            overwrite(&planted, first, &vec![0x5a; (end - first) as usize]);
            if lost == Some(member) {
                std::fs::remove_file(&original).unwrap();
            }
        }
        case.expect_restored(&format!("planted everywhere, {lost:?} lost"));
    }
}
