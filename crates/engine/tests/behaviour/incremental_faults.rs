//! What may happen to the sets that others build on: missing, damaged, being removed; and backups that die half-way.

use std::path::PathBuf;

use pagehaul_engine::backup::{BackupRequest, backup};
use pagehaul_engine::catalog::reader_lease::READER_PREFIX;
use pagehaul_engine::catalog::tombstone::TOMBSTONE_NAME;
use pagehaul_engine::catalog::{Repository, SetState, list_sets, newest_set};
use pagehaul_engine::error::{Error, ErrorKind};
use pagehaul_engine::format::file_table::FileTable;
use pagehaul_engine::format::manifest::{Manifest, hex64};
use pagehaul_engine::pipeline::NoObserver;
use pagehaul_engine::restore::{RestoreRequest, restore};
use pagehaul_engine::source::postgres::pg_install::PgInstall;
use pagehaul_engine::terms::{BackupKind, BackupLabel, SetIndex};
use pagehaul_engine::verify::{VerifyRequest, verify};
use pagehaul_testkit::cluster::{Cluster, default_install, work_directory};
use pagehaul_testkit::damage::{files_below, flip_bit};
use pagehaul_testkit::observer::{At, CRAWL_BYTES_PER_S};
use tempfile::TempDir;

use super::incremental::{assert_chain_equals_full, start, take};
use super::incremental_cases::both;

struct Chain {
    work: TempDir,
    cluster: Cluster,
    full: BackupLabel,
    incremental: BackupLabel,
}

impl Chain {
    /// A full set, and an incremental one on it.
    fn make() -> Self {
        Self::on(&default_install())
    }

    fn on(install: &PgInstall) -> Self {
        let work = work_directory();
        let cluster = start(install, work.path());
        cluster.load_typed_tables(15_000);
        let full = take(&cluster, BackupKind::Full).label;
        cluster.run(&["UPDATE typed SET number = -1 WHERE id < 3000"]);
        let incremental = take(&cluster, BackupKind::Incremental).label;
        cluster.run(&["UPDATE typed SET number = -2 WHERE id > 14500"]);
        Chain { work, cluster, full, incremental }
    }

    fn set(&self, label: &BackupLabel) -> PathBuf {
        self.work.path().join(format!("repo/main/sets/{label}"))
    }

    /// The checksums of the pages that a set has stored.
    fn sums(&self, label: &BackupLabel) -> PathBuf {
        self.set(label).join("pages-0000.sums")
    }

    /// The set that the next one is built on.
    fn newest(&self) -> BackupLabel {
        let repository = Repository::open(&self.cluster.repo()).unwrap();
        newest_set(&repository, &"main".parse().unwrap()).unwrap()
    }

    fn next(&self, kind: BackupKind) -> Result<pagehaul_engine::backup::BackupReport, Error> {
        let request = BackupRequest { kind, no_full: true, ..self.cluster.backup_request() };
        match backup(&request, &NoObserver)? {
            pagehaul_engine::backup::BackupOutcome::Done(report) => Ok(*report),
            pagehaul_engine::backup::BackupOutcome::Planned(_) => panic!("only planned"),
        }
    }

    fn restore(&self, label: &BackupLabel) -> Result<(), Error> {
        let target = self.work.path().join("restored");
        let request =
            RestoreRequest { label: Some(label.clone()), ..RestoreRequest::new(self.cluster.repo(), &target) };
        let restored = restore(&request, &NoObserver).map(drop);
        std::fs::remove_dir_all(&target).ok();
        restored
    }

    fn leases(&self) -> Vec<PathBuf> {
        let mut files = files_below(&self.work.path().join("repo"));
        files.retain(|path| path.file_name().unwrap().to_str().unwrap().starts_with(READER_PREFIX));
        files
    }
}

#[test]
fn f31_a_prior_that_lost_a_stripe_is_not_built_on_until_it_is_found() {
    let chain = Chain::make();
    let stripe = chain.set(&chain.full).join("stripe-0000.phs");
    let moved = chain.work.path().join("elsewhere");
    std::fs::create_dir(&moved).unwrap();
    std::fs::rename(&stripe, moved.join("stripe-0000.phs")).unwrap();
    let error = chain.next(BackupKind::Incremental).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damage, "{error}");
    assert!(error.hint_text().unwrap().contains("--type full"), "{error}");
    assert_eq!(chain.leases(), Vec::<PathBuf>::new());
    let error = chain.restore(&chain.incremental).unwrap_err();
    assert!(error.message().contains(&format!("of prior set {}", chain.full)), "{error}");
    let request = BackupRequest {
        kind: BackupKind::Incremental,
        no_full: true,
        stripe_from: vec![moved.display().to_string()],
        ..chain.cluster.backup_request()
    };
    chain.cluster.backup(&request);
    let target = chain.work.path().join("found");
    let request = RestoreRequest {
        stripe_from: vec![moved.display().to_string()],
        ..RestoreRequest::new(chain.cluster.repo(), &target)
    };
    restore(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(chain.cluster.adopt(&target).digests(), chain.cluster.digests());
}

#[test]
fn a_damaged_frame_of_a_prior_names_the_sets_and_files_it_hits() {
    let chain = Chain::make();
    flip_bit(&chain.set(&chain.full).join("stripe-0000.phs"), 1_000_000, 3);
    let request =
        |label: &BackupLabel| VerifyRequest { label: Some(label.clone()), ..VerifyRequest::new(chain.cluster.repo()) };
    let of_full = verify(&request(&chain.full), &NoObserver).unwrap();
    assert_eq!(of_full.damaged_frames.len(), 1, "{of_full:?}");
    let of_chain = verify(&request(&chain.incremental), &NoObserver).unwrap();
    let frames: Vec<_> = of_chain.damaged_frames.iter().map(|frame| (&frame.set, frame.frame)).collect();
    assert_eq!(frames, [(&chain.full, of_full.damaged_frames[0].frame)]);
    assert!(!of_chain.sound && !of_chain.damaged_files.is_empty(), "{of_chain:?}");
    let error = chain.restore(&chain.incremental).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damage);
    assert!(error.message().contains(&format!("of prior set {}", chain.full)), "{error}");
}

#[test]
fn a_prior_that_is_gone_is_told_and_a_full_set_heals() {
    let chain = Chain::make();
    std::fs::remove_dir_all(chain.set(&chain.full)).unwrap();
    let error = chain.restore(&chain.incremental).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damage, "{error}");
    assert!(error.message().contains(&format!("needs set {}", chain.full)), "{error}");
    let error = chain.next(BackupKind::Differential).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Repository, "{error}");
    let full = take(&chain.cluster, BackupKind::Full);
    chain.restore(&full.label).unwrap();
    assert_eq!(chain.next(BackupKind::Incremental).unwrap().prior, [full.label]);
}

#[test]
fn f31_lost_or_stale_page_checksums_cost_bytes_and_nothing_else() {
    for install in both() {
        let chain = Chain::on(&install);
        let usual = chain.next(BackupKind::Incremental).unwrap();
        // The next set and a full one, built on a prior whose checksums are of no use.
        let costs = |what: &str, prior: &BackupLabel| {
            let what = format!("{} {what}", install.major());
            let report = assert_chain_equals_full(&chain.cluster, chain.work.path(), &what);
            assert_eq!(report.prior.first(), Some(prior), "{what}: another set was built on");
            assert!(report.changed_bytes > 3 * usual.changed_bytes, "{what}: {report:?}");
            report.notes.join("\n")
        };
        std::fs::remove_file(chain.sums(&chain.full)).unwrap();
        assert!(costs("no checksums", &usual.label).contains("page checksums"));
        // From here on a full set is the newest one.
        let first = chain.newest();
        let sound = std::fs::read(chain.sums(&first)).unwrap();
        flip_bit(&chain.sums(&first), 5_000, 1);
        costs("damaged checksums", &first);
        // Whole, and of another set: as an older copy of a directory has it.
        let second = chain.newest();
        std::fs::write(chain.sums(&second), &sound).unwrap();
        assert!(costs("checksums of another set", &second).contains("they belong to another set"));
    }
}

#[test]
fn a_set_without_page_checksums_can_be_built_on_by_whole_files() {
    let chain = Chain::make();
    let request = BackupRequest { page_sums: false, ..chain.cluster.backup_request() };
    let full = chain.cluster.backup(&request);
    assert!(!chain.set(&full.label).join("pages-0000.sums").exists());
    let report = assert_chain_equals_full(&chain.cluster, chain.work.path(), "no checksums");
    assert_eq!(report.prior, [full.label]);
}

#[test]
fn f31_a_set_that_is_being_removed_is_not_built_on() {
    let chain = Chain::make();
    let tombstone = |label: &BackupLabel| std::fs::write(chain.set(label).join(TOMBSTONE_NAME), "{}").unwrap();
    tombstone(&chain.incremental);
    let report = chain.next(BackupKind::Incremental).unwrap();
    assert_eq!(report.prior, std::slice::from_ref(&chain.full));
    assert!(report.notes[0].contains("it has expired"), "{:?}", report.notes);
    tombstone(&chain.full);
    let error = chain.next(BackupKind::Incremental).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Repository, "{error}");
    let request = BackupRequest { kind: BackupKind::Incremental, ..chain.cluster.backup_request() };
    let report = chain.cluster.backup(&request);
    assert_eq!((report.kind, report.label.as_str().ends_with('F')), (BackupKind::Full, true));
    assert!(report.notes.iter().any(|note| note.starts_with("A FULL backup")), "{:?}", report.notes);
    assert_eq!(chain.leases(), Vec::<PathBuf>::new());
}

#[test]
fn the_priors_are_held_while_a_backup_runs_and_survive_its_death() {
    let chain = Chain::make();
    let held = std::sync::Mutex::new(0);
    let observer = At::phase("read, encode", || *held.lock().unwrap() = chain.leases().len());
    let request = BackupRequest {
        kind: BackupKind::Incremental,
        max_rate_bytes_per_s: Some(8 << 20),
        ..chain.cluster.backup_request()
    };
    backup(&request, &observer).unwrap();
    assert_eq!(*held.lock().unwrap(), 2, "a lease in the full set and in the incremental one");
    let before = files_below(&chain.work.path().join("repo"));
    let crawling = BackupRequest { max_rate_bytes_per_s: Some(CRAWL_BYTES_PER_S), ..request };
    let error = backup(&crawling, &At::interrupt_after(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    assert_eq!(files_below(&chain.work.path().join("repo")), before, "nothing of it is left, nothing else is gone");
    chain.restore(&chain.incremental).unwrap();
    chain.restore(&chain.full).unwrap();
}

#[test]
fn f42_a_prior_that_goes_before_the_commit_takes_the_backup_with_it() {
    let chain = Chain::make();
    let manifest = chain.set(&chain.incremental).join("manifest.json");
    // As by an expire that did not see the lease.
    let observer = At::phase("make the stripes durable, read WAL back, commit", || {
        std::fs::remove_file(&manifest).unwrap();
    });
    let request = BackupRequest { kind: BackupKind::Incremental, ..chain.cluster.backup_request() };
    let error = backup(&request, &observer).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(error.to_string().contains("withdrawn"), "{error}");
    let repository = Repository::open(&chain.cluster.repo()).unwrap();
    let complete = list_sets(&repository, &"main".parse().unwrap()).unwrap();
    let complete = complete.into_iter().filter(|set| matches!(set.state, SetState::Complete(_)));
    assert_eq!(complete.map(|set| set.label).collect::<Vec<_>>(), std::slice::from_ref(&chain.full));
    chain.restore(&chain.full).unwrap();
}

/// An expire that did not see the lease has looked who needs the prior before there was a manifest that names it.
#[test]
fn a_prior_that_an_expire_begins_to_remove_before_the_commit_takes_the_backup_with_it() {
    let chain = Chain::make();
    for prior in [&chain.incremental, &chain.full] {
        let tombstone = chain.set(prior).join(TOMBSTONE_NAME);
        let observer = At::phase("make the stripes durable, read WAL back, commit", || {
            chain.leases().iter().for_each(|lease| std::fs::remove_file(lease).unwrap());
            std::fs::write(&tombstone, "{}").unwrap();
        });
        let request = BackupRequest { kind: BackupKind::Incremental, ..chain.cluster.backup_request() };
        let error = backup(&request, &observer).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        assert!(error.to_string().contains("withdrawn"), "{error}");
        std::fs::remove_file(&tombstone).unwrap();
    }
    let repository = Repository::open(&chain.cluster.repo()).unwrap();
    let complete = list_sets(&repository, &"main".parse().unwrap()).unwrap();
    let complete = complete.into_iter().filter(|set| matches!(set.state, SetState::Complete(_)));
    assert_eq!(complete.map(|set| set.label).collect::<Vec<_>>(), [chain.full, chain.incremental]);
}

#[test]
fn differential_sets_build_on_the_last_full_one() {
    let chain = Chain::make();
    let one = chain.next(BackupKind::Differential).unwrap();
    assert_eq!((one.prior, one.label.as_str().ends_with('D')), (vec![chain.full.clone()], true));
    let two = chain.next(BackupKind::Incremental).unwrap();
    assert_eq!(two.prior[0], one.label);
    assert!(two.prior.contains(&chain.full) && !two.prior.contains(&chain.incremental));
    chain.restore(&two.label).unwrap();
}

/// A resumed backup took files of the same size for the same elsewhere. Nothing is resumed here, and what a prior has is
/// compared.
#[test]
fn b04_after_a_backup_that_died_files_of_the_same_size_and_time_are_read() {
    let chain = Chain::make();
    let request = BackupRequest { max_rate_bytes_per_s: Some(CRAWL_BYTES_PER_S), ..chain.cluster.backup_request() };
    backup(&request, &At::interrupt_after(2)).unwrap_err();
    let data = chain.cluster.server.data_directory();
    let table = data.join(chain.cluster.value("SELECT pg_relation_filepath('typed')"));
    let settings = data.join("pg_ident.conf");
    let times = [&table, &settings].map(|path| std::fs::metadata(path).unwrap().modified().unwrap());
    chain.cluster.run(&["UPDATE typed SET flag = NOT flag WHERE id = 7", "CHECKPOINT"]);
    let size = std::fs::metadata(&settings).unwrap().len();
    std::fs::write(&settings, "#".repeat(size as usize)).unwrap();
    for (path, time) in [&table, &settings].into_iter().zip(times) {
        std::fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    }
    assert_chain_equals_full(&chain.cluster, chain.work.path(), "the same sizes and times");
    let target = chain.work.path().join("restored");
    restore(&RestoreRequest::new(chain.cluster.repo(), &target), &NoObserver).unwrap();
    assert_eq!(std::fs::read(target.join("pg_ident.conf")).unwrap(), "#".repeat(size as usize).as_bytes());
}

/// Which blocks lie in which set was lost from a manifest elsewhere; the backup was of no use, and a verification found
/// nothing to say.
#[test]
fn b07_a_file_table_that_leads_to_the_wrong_set_is_no_sound_one() {
    let chain = Chain::make();
    let directory = chain.set(&chain.incremental);
    let manifest_path = directory.join("manifest.json");
    let mut manifest = Manifest::from_bytes(&std::fs::read(&manifest_path).unwrap(), "it").unwrap();
    let set_id = manifest.set_id().unwrap();
    let bytes = std::fs::read(directory.join("files.table")).unwrap();
    let mut rest = &bytes[..];
    let read = FileTable::read(set_id, bytes.len() as u64, &mut |into| {
        let (head, tail) = rest.split_at(into.len());
        into.copy_from_slice(head);
        rest = tail;
        Ok(())
    });
    let (mut table, _) = read.unwrap_or_else(|error| panic!("{error}"));
    assert!(table.ids().any(|file| table.runs(file).iter().any(|run| run.set() != SetIndex::OWN)));
    table.renumber_sets(|_| SetIndex::OWN);
    // Every checksum of what describes the set holds.
    let mut changed = Vec::new();
    let digest = table.write(set_id, &mut |piece| {
        changed.extend_from_slice(piece);
        Ok(())
    });
    let digest = digest.unwrap_or_else(|error| panic!("{error}"));
    manifest.file_table.size_bytes = digest.size_bytes;
    manifest.file_table.xxh3 = hex64(digest.xxh3);
    std::fs::write(directory.join("files.table"), &changed).unwrap();
    std::fs::write(&manifest_path, manifest.to_bytes().unwrap()).unwrap();

    let request = VerifyRequest { label: Some(chain.incremental.clone()), ..VerifyRequest::new(chain.cluster.repo()) };
    match verify(&request, &NoObserver) {
        Ok(report) => assert!(!report.sound && !report.damaged_files.is_empty(), "{report:?}"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Damage, "{error}"),
    }
    chain.restore(&chain.incremental).expect_err("a restore by references that lead elsewhere");
    chain.restore(&chain.full).unwrap();
}
