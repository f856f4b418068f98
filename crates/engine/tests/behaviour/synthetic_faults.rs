//! What may happen while a full set is made of a chain: damage in the chain, an interrupt, a store that fails. The chain stays
//! as it was, and nothing that is not whole is ever taken for a set.

use std::path::Path;
use std::sync::{Arc, Mutex};

use pagehaul_engine::backup::{SynthesizeOutcome, SynthesizeReport, SynthesizeRequest, synthesize, synthesize_in};
use pagehaul_engine::catalog::reader_lease::READER_PREFIX;
use pagehaul_engine::catalog::{Repository, SetState, list_sets};
use pagehaul_engine::error::{Error, ErrorKind};
use pagehaul_engine::pipeline::{NoObserver, Observer};
use pagehaul_engine::retention::{ExpireRequest, RetentionPolicy, expire};
use pagehaul_engine::storage::LocalStorage;
use pagehaul_engine::terms::{BackupKind, BackupLabel};
use pagehaul_engine::verify::{VerifyRequest, verify};
use pagehaul_testkit::cluster::{Cluster, default_install, work_directory};
use pagehaul_testkit::damage::{files_below, flip_bit};
use pagehaul_testkit::faulty::{Faults, FaultyStorage};
use pagehaul_testkit::observer::{At, CRAWL_BYTES_PER_S};
use pagehaul_testkit::random::Random;
use tempfile::TempDir;

use super::incremental::{restore_set, start, take};

struct Chain {
    work: TempDir,
    cluster: Cluster,
    /// Oldest first.
    labels: Vec<BackupLabel>,
}

impl Chain {
    /// A full set and two incremental ones.
    fn make() -> Self {
        let work = work_directory();
        let cluster = start(&default_install(), work.path());
        cluster.load_typed_tables(12_000);
        let mut labels = vec![take(&cluster, BackupKind::Full).label];
        for part in 0..2 {
            cluster.run(&[&format!("UPDATE typed SET number = -{part} WHERE id % 40 = {part}")]);
            labels.push(take(&cluster, BackupKind::Incremental).label);
        }
        Chain { work, cluster, labels }
    }

    fn request(&self) -> SynthesizeRequest {
        SynthesizeRequest { stripes: Some(2), ..SynthesizeRequest::new(self.cluster.repo()) }
    }

    fn stripe_of(&self, set: usize) -> std::path::PathBuf {
        Path::new(&self.cluster.repo()).join("main/sets").join(self.labels[set].as_str()).join("stripe-0000.phs")
    }

    fn run(&self, request: &SynthesizeRequest, observer: &dyn Observer) -> Result<SynthesizeReport, Error> {
        synthesize(request, observer).map(done)
    }

    fn run_with(&self, faults: &Arc<Faults>) -> Result<SynthesizeReport, Error> {
        let storage = LocalStorage::new(Path::new(&self.cluster.repo()));
        let repository = Repository::over(Box::new(FaultyStorage::new(storage, Arc::clone(faults))));
        synthesize_in(&repository, &self.request(), &NoObserver).map(done)
    }

    fn complete(&self) -> Vec<BackupLabel> {
        let repository = Repository::open(&self.cluster.repo()).unwrap_or_else(|error| panic!("{error}"));
        let sets = list_sets(&repository, &"main".parse().unwrap()).unwrap_or_else(|error| panic!("{error}"));
        let complete = sets.into_iter().filter(|set| matches!(set.state, SetState::Complete(_)));
        complete.map(|set| set.label).collect()
    }

    fn is_sound(&self, label: &BackupLabel) -> bool {
        let request = VerifyRequest { label: Some(label.clone()), ..VerifyRequest::new(self.cluster.repo()) };
        verify(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}")).sound
    }

    fn leases(&self) -> usize {
        let is_lease = |path: &std::path::PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(READER_PREFIX))
        };
        files_below(Path::new(&self.cluster.repo())).iter().filter(|path| is_lease(path)).count()
    }
}

fn done(outcome: SynthesizeOutcome) -> SynthesizeReport {
    match outcome {
        SynthesizeOutcome::Done(report) => *report,
        SynthesizeOutcome::AlreadyFull { label, .. } => panic!("{label} is full"),
    }
}

#[test]
fn damage_in_any_set_of_the_chain_is_named_and_nothing_is_made() {
    let chain = Chain::make();
    let files = files_below(Path::new(&chain.cluster.repo()));
    for set in 0..3 {
        let stripe = chain.stripe_of(set);
        let size = std::fs::metadata(&stripe).unwrap().len();
        // The whole stripe but its ends is hit, so that some frame which the newest set needs is, too.
        let good = std::fs::read(&stripe).unwrap();
        for offset in (2_000..size - 30_000).step_by(20_000) {
            flip_bit(&stripe, offset, 3);
        }
        let error = chain.run(&chain.request(), &NoObserver).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damage, "{error}");
        let text = error.message();
        assert!(text.contains(&format!("of set {} (byte ", chain.labels[set])), "{text}");
        assert!(text.contains("frame ") && text.contains("which holds "), "{text}");
        assert!(error.hint_text().unwrap().contains("verify"), "{error}");
        assert_eq!(files_below(Path::new(&chain.cluster.repo())), files, "nothing is left of it");
        std::fs::write(&stripe, good).unwrap();
    }
    let stripe = chain.stripe_of(0);
    std::fs::rename(&stripe, chain.work.path().join("stripe-0000.phs")).unwrap();
    let error = chain.run(&chain.request(), &NoObserver).unwrap_err();
    assert!(error.message().contains(&format!("stripe 0 of set {}", chain.labels[0])), "{error}");
    let moved = SynthesizeRequest { stripe_from: vec![chain.work.path().display().to_string()], ..chain.request() };
    let report = chain.run(&moved, &NoObserver).unwrap_or_else(|error| panic!("{error}"));
    assert!(chain.is_sound(&report.set.label));
}

#[test]
fn leases_are_held_and_an_interrupt_leaves_everything_as_it_was() {
    let chain = Chain::make();
    let before = files_below(Path::new(&chain.cluster.repo()));
    let crawling = SynthesizeRequest { max_rate_bytes_per_s: Some(CRAWL_BYTES_PER_S), ..chain.request() };
    let error = chain.run(&crawling, &At::interrupt_after(3)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
    assert_eq!(files_below(Path::new(&chain.cluster.repo())), before);
    let slowly = SynthesizeRequest { max_rate_bytes_per_s: Some(4 << 20), ..chain.request() };
    let held = Mutex::new(0);
    let observer = At::progress(0, || *held.lock().unwrap() = chain.leases());
    let report = chain.run(&slowly, &observer).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(*held.lock().unwrap(), 3, "a lease in each set of the chain");
    assert_eq!(chain.leases(), 0);
    assert!(chain.is_sound(&report.set.label));
    for label in &chain.labels {
        assert!(chain.is_sound(label));
    }
}

#[test]
fn an_expire_meanwhile_waits_for_the_chain() {
    let chain = Chain::make();
    // The newest full set stands alone then, so that no rule wants the chain.
    chain.cluster.run(&["CREATE TABLE later ()"]);
    let full = take(&chain.cluster, BackupKind::Full).label;
    let policy = RetentionPolicy { keep_full: Some(1), ..RetentionPolicy::default() };
    let request = ExpireRequest { source: None, repo: chain.cluster.repo(), policy, at: None, confirm: true };
    let expire_now = || drop(expire(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}")));
    let observer = At::phase("make the stripes durable", expire_now);
    let of = SynthesizeRequest { label: chain.labels.last().cloned(), ..chain.request() };
    let report = chain.run(&of, &observer).unwrap_or_else(|error| panic!("{error}"));
    assert!(observer.done());
    assert!(chain.is_sound(&report.set.label));
    let complete = chain.complete();
    assert!(complete.contains(&full) && complete.contains(&report.set.label), "{complete:?}");
    assert_eq!(complete.last(), Some(&full), "what was made of an older set is no newer one");
    expire_now();
    assert_eq!(chain.complete(), [full]);
}

#[test]
fn whichever_operation_of_the_store_fails_there_is_no_false_success() {
    let mut random = Random::new("failing operations of a synthetic full");
    let chain = Chain::make();
    let faults = Faults::none();
    let report = chain.run_with(&faults).unwrap_or_else(|error| panic!("{error}"));
    let remove = |label: &BackupLabel| {
        let set = Path::new(&chain.cluster.repo()).join("main/sets").join(label.as_str());
        std::fs::remove_dir_all(set).unwrap();
    };
    remove(&report.set.label);
    let count = faults.operations();
    assert!(count > 30, "{count} operations");
    let mut numbers: Vec<u64> = (0..8).chain(count - 10..count).chain((0..20).map(|_| random.below(count))).collect();
    numbers.sort_unstable();
    numbers.dedup();
    for (turn, number) in numbers.into_iter().enumerate() {
        let for_ever = turn % 4 == 3;
        let faults = if for_ever { Faults::from_operation(number) } else { Faults::at_operation(number) };
        let what = format!("{faults:?} of {count}");
        match chain.run_with(&faults) {
            Ok(report) => {
                assert!(chain.is_sound(&report.set.label), "{what}");
                remove(&report.set.label);
            }
            Err(error) => {
                assert!([ErrorKind::Repository, ErrorKind::Damage].contains(&error.kind()), "{what}: {error}");
            }
        }
        assert_eq!(chain.complete(), chain.labels, "{what}");
    }
    // What is left over goes with the next one.
    let report = chain.run_with(&Faults::none()).unwrap_or_else(|error| panic!("{error}"));
    let repository = Repository::open(&chain.cluster.repo()).unwrap_or_else(|error| panic!("{error}"));
    let sets = list_sets(&repository, &"main".parse().unwrap()).unwrap_or_else(|error| panic!("{error}"));
    assert!(sets.iter().all(|set| matches!(set.state, SetState::Complete(_))), "{sets:?}");
    let target = chain.work.path().join("restored");
    restore_set(&chain.cluster, report.set.label.as_str(), &target, &[]);
    assert_eq!(chain.cluster.adopt(&target).digests(), chain.cluster.digests());
}
