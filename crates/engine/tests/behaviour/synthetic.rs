//! A full set made of a chain restores to what the chain restores to, needs nothing of it, and is built on.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pagehaul_engine::backup::{
    BackupRequest, SynthesizeOutcome, SynthesizeReport, SynthesizeRequest, backup, synthesize,
};
use pagehaul_engine::catalog::{Repository, SetState, list_sets, newest_set, read_manifest};
use pagehaul_engine::pipeline::NoObserver;
use pagehaul_engine::retention::{ExpireRequest, RetentionPolicy, expire};
use pagehaul_engine::source::postgres::pg_install::PgInstall;
use pagehaul_engine::source::postgres::scratch_server::StopMode;
use pagehaul_engine::terms::{BackupKind, BackupLabel};
use pagehaul_engine::verify::{VerifyRequest, verify};
use pagehaul_testkit::cluster::{Cluster, installs, work_directory};
use pagehaul_testkit::damage::{files_below, flip_bit};
use tempfile::TempDir;

use super::incremental::{restore_set, start, take};

/// Makes a full set of the newest chain.
pub(crate) fn make(cluster: &Cluster, request: &SynthesizeRequest) -> SynthesizeReport {
    let request = SynthesizeRequest { repo: cluster.repo(), ..request.clone() };
    match synthesize(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}")) {
        SynthesizeOutcome::Done(report) => *report,
        SynthesizeOutcome::AlreadyFull { label, .. } => panic!("{label} is full"),
    }
}

/// One without WAL summaries, and one with them.
fn both() -> Vec<PgInstall> {
    let mut installs = installs();
    let newest = installs.pop();
    installs.retain(|install| install.major() == 15);
    installs.extend(newest);
    installs
}

/// Everything of a tree: kind, mode, time and content of files, targets of links.
fn whole_tree(root: &Path) -> BTreeMap<PathBuf, (u32, i64, Vec<u8>)> {
    fn walk(root: &Path, below: &Path, found: &mut BTreeMap<PathBuf, (u32, i64, Vec<u8>)>) {
        for entry in std::fs::read_dir(below).unwrap() {
            let path = entry.unwrap().path();
            let meta = std::fs::symlink_metadata(&path).unwrap();
            let (content, time) = if meta.is_symlink() {
                (std::fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes(), 0)
            } else if meta.is_dir() {
                (Vec::new(), 0)
            } else {
                (std::fs::read(&path).unwrap(), meta.mtime())
            };
            // Written by the restore itself, at its own time.
            let is_ours = ["backup_manifest", "postgresql.auto.conf", "tablespace_map", "pg_control"]
                .iter()
                .any(|name| path.file_name().is_some_and(|own| own == *name));
            let is_ours = is_ours || path.extension().is_some_and(|end| end == "done");
            let time = if is_ours { 0 } else { time };
            found.insert(path.strip_prefix(root).unwrap().to_owned(), (meta.mode(), time, content));
            if meta.is_dir() {
                walk(root, &path, found);
            }
        }
    }
    let mut found = BTreeMap::new();
    walk(root, root, &mut found);
    found
}

/// A cluster with a tablespace, and a chain over everything that happens to tables.
struct World {
    cluster: Cluster,
    space: PathBuf,
    newest: BackupLabel,
    work: TempDir,
}

impl World {
    fn make(install: &PgInstall) -> Self {
        let work = work_directory();
        let cluster = start(install, work.path());
        let space = cluster.server_directory("space");
        cluster.load_typed_tables(20_000);
        cluster.run(&[
            &format!("CREATE TABLESPACE elsewhere LOCATION '{}'", space.display()),
            "CREATE TABLE in_space TABLESPACE elsewhere AS SELECT i, md5(i::text) AS x FROM generate_series(1, 20000) AS i",
            "CREATE TABLE goes AS SELECT i, md5(i::text) AS x FROM generate_series(1, 9000) AS i",
        ]);
        take(&cluster, BackupKind::Full);
        let rounds: &[(BackupKind, &[&str])] = &[
            (BackupKind::Incremental, &["UPDATE typed SET number = number + 1 WHERE id % 97 = 3"]),
            (
                BackupKind::Differential,
                &["TRUNCATE long_text", "DROP TABLE goes", "UPDATE in_space SET x = reverse(x) WHERE i % 500 = 0"],
            ),
            (
                BackupKind::Incremental,
                &[
                    "CREATE TABLE comes AS SELECT i, md5(i::text) AS x FROM generate_series(1, 30000) AS i",
                    "INSERT INTO long_text SELECT i, repeat(md5(i::text), 99) FROM generate_series(1, 500) AS i",
                    "DELETE FROM typed WHERE id > 15000",
                    "VACUUM (TRUNCATE) typed",
                ],
            ),
            (BackupKind::Incremental, &["UPDATE comes SET x = 'x' WHERE i % 1000 = 1", "VACUUM FULL in_space"]),
        ];
        let mut newest = None;
        for (kind, statements) in rounds {
            cluster.run(statements);
            newest = Some(take(&cluster, *kind).label);
        }
        World { cluster, space, newest: newest.unwrap(), work }
    }

    /// Restores a set to always the same places, and gives all that is there.
    fn restored(&self, label: &BackupLabel) -> BTreeMap<PathBuf, (u32, i64, Vec<u8>)> {
        let (target, space) = (self.work.path().join("restored"), self.work.path().join("restored-space"));
        for directory in [&target, &space] {
            std::fs::remove_dir_all(directory).ok();
        }
        restore_set(&self.cluster, label.as_str(), &target, &[(&self.space, &space)]);
        let mut all = whole_tree(&target);
        all.extend(whole_tree(&space).into_iter().map(|(path, what)| (Path::new("space").join(path), what)));
        all
    }

    /// The set restores to this, and a server starts on it.
    fn assert_restores_to(&self, label: &BackupLabel, expected: &BTreeMap<PathBuf, (u32, i64, Vec<u8>)>, what: &str) {
        let restored = self.restored(label);
        let names = |tree: &BTreeMap<PathBuf, (u32, i64, Vec<u8>)>| tree.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&restored), names(expected), "{what}");
        for (path, found) in &restored {
            assert!(found == &expected[path], "{what}: {} is not the same", path.display());
        }
        self.cluster.pg_verifybackup(&self.work.path().join("restored"));
    }

    fn assert_last_restored_starts(&self) {
        let mut copy = self.cluster.adopt(&self.work.path().join("restored"));
        assert_eq!(copy.digests(), self.cluster.digests());
        copy.server.stop(StopMode::Immediate).unwrap();
    }

    fn repository(&self) -> Repository {
        Repository::open(&self.cluster.repo()).unwrap_or_else(|error| panic!("{error}"))
    }

    fn complete(&self) -> Vec<BackupLabel> {
        let sets = list_sets(&self.repository(), &"main".parse().unwrap()).unwrap_or_else(|error| panic!("{error}"));
        let complete = sets.into_iter().filter(|set| matches!(set.state, SetState::Complete(_)));
        complete.map(|set| set.label).collect()
    }

    fn assert_sound(&self, label: &BackupLabel) {
        let request = VerifyRequest { label: Some(label.clone()), ..VerifyRequest::new(self.cluster.repo()) };
        let verified = verify(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}"));
        assert!(verified.sound && verified.stripe_problems.is_empty(), "{verified:?}");
    }
}

#[test]
fn it_restores_like_the_chain_is_built_on_and_outlives_it() {
    for install in both() {
        let what = format!("PostgreSQL {}", install.major());
        let world = World::make(&install);
        let expected = world.restored(&world.newest);
        let report = make(&world.cluster, &SynthesizeRequest { stripes: Some(2), ..SynthesizeRequest::new("") });
        let (label, of) = (report.set.label.clone(), world.newest.clone());
        assert_eq!((report.synthesized_from, report.chain_prior.len()), (of.clone(), 3), "{what}");
        assert!(report.copied_bytes > 4 << 20, "{what}: {} bytes were taken", report.copied_bytes);
        assert!(report.copied_bytes < report.set.source_bytes, "{what}: something had to be put together");
        let source = "main".parse().unwrap();
        let newest = newest_set(&world.repository(), &source).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(newest, label, "{what}: it is the newest one, though it ends where its chain ends");
        let read = |label| read_manifest(&world.repository(), &source, label).unwrap_or_else(|error| panic!("{error}"));
        let (made, from) = (read(&label), read(&of));
        assert_eq!((made.kind, made.prior.len()), (BackupKind::Full, 0));
        assert_eq!(serde_json::to_value(&made.postgres).unwrap(), serde_json::to_value(&from.postgres).unwrap());
        assert_eq!((&made.started_at, &made.finished_at), (&from.started_at, &from.finished_at));
        world.assert_sound(&label);
        world.assert_restores_to(&label, &expected, &what);
        world.assert_last_restored_starts();

        world.cluster.run(&["UPDATE typed SET number = -7 WHERE id % 50 = 0", "DROP TABLE comes"]);
        let next = take(&world.cluster, BackupKind::Incremental);
        assert_eq!((next.prior, next.notes), (vec![label.clone()], Vec::<String>::new()), "{what}");
        assert!(next.changed_bytes < next.source_bytes / 4, "{what}: {} bytes changed", next.changed_bytes);
        let by = if install.major() >= 17 { "wal summaries" } else { "page checksums" };
        assert_eq!(next.changes_found_by, Some(by), "{what}");
        let differential = take(&world.cluster, BackupKind::Differential);
        assert_eq!(differential.prior, std::slice::from_ref(&label), "{what}: it is the last full one");
        let after = world.restored(&differential.label);
        world.assert_last_restored_starts();

        let policy = RetentionPolicy { keep_full: Some(1), ..RetentionPolicy::default() };
        let request = ExpireRequest { source: None, repo: world.cluster.repo(), policy, at: None, confirm: true };
        let expired = expire(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}"));
        assert!(expired.failed.is_none(), "{:?}", expired.failed);
        assert_eq!(world.complete(), [label.clone(), next.label, differential.label.clone()], "{what}");
        world.assert_restores_to(&label, &expected, &what);
        world.assert_restores_to(&differential.label, &after, &what);
    }
}

#[test]
fn everything_may_be_encoded_anew_and_put_elsewhere() {
    let world = World::make(&both().remove(0));
    let expected = world.restored(&world.newest);
    let elsewhere = world.work.path().join("elsewhere").display().to_string();
    let anew = SynthesizeRequest {
        compression: Some("zstd:3".parse().unwrap()),
        frame_size_bytes: Some(128 << 10),
        stripe_to: vec![elsewhere.clone()],
        description: Some("for the archive".into()),
        ..SynthesizeRequest::new("")
    };
    let report = make(&world.cluster, &anew);
    assert_eq!((report.copied_bytes, report.set.frame_size_bytes, report.set.level), (0, 128 << 10, 3));
    assert!(report.set.stripes.iter().all(|stripe| stripe.path.starts_with(&elsewhere)), "{:?}", report.set.stripes);
    world.assert_sound(&report.set.label);
    world.assert_restores_to(&report.set.label, &expected, "encoded anew");

    let paged = SynthesizeRequest {
        label: Some(world.newest.clone()),
        compression: Some("page:1".parse().unwrap()),
        ..SynthesizeRequest::new("")
    };
    let paged = make(&world.cluster, &paged);
    assert_eq!((paged.copied_bytes, paged.set.codec.as_str()), (0, "page"));
    world.assert_restores_to(&paged.set.label, &expected, "encoded anew by the page codec");

    // One more of the same set, from the label; without a codec nothing is encoded.
    let of = SynthesizeRequest {
        label: Some(world.newest.clone()),
        compression: Some("none".parse().unwrap()),
        ..SynthesizeRequest::new("")
    };
    let second = make(&world.cluster, &of);
    assert!(second.set.label > report.set.label && second.set.stored_bytes > second.set.source_bytes / 2);
    world.assert_restores_to(&second.set.label, &expected, "without a codec");
    // Frames without a codec are taken as they are, too.
    world.cluster.run(&["UPDATE typed SET number = -1 WHERE id % 900 = 0"]);
    let next = take(&world.cluster, BackupKind::Incremental);
    assert_eq!(next.prior, std::slice::from_ref(&second.set.label));
    let after = world.restored(&next.label);
    let third = make(&world.cluster, &SynthesizeRequest::new(""));
    assert!(third.copied_bytes > 0 && third.set.codec == "none", "{third:?}");
    world.assert_restores_to(&third.set.label, &after, "of a set that was made");
}

#[test]
fn of_a_full_set_there_is_nothing_to_make() {
    let work = work_directory();
    let cluster = start(&both().remove(0), work.path());
    let full = take(&cluster, BackupKind::Full).label;
    let before = files_below(Path::new(&cluster.repo()));
    let outcome = synthesize(&SynthesizeRequest::new(cluster.repo()), &NoObserver);
    match outcome.unwrap_or_else(|error| panic!("{error}")) {
        SynthesizeOutcome::AlreadyFull { label, .. } => assert_eq!(label, full),
        SynthesizeOutcome::Done(report) => panic!("{report:?}"),
    }
    assert_eq!(files_below(Path::new(&cluster.repo())), before);
}

#[test]
fn damaged_or_missing_page_checksums_are_made_anew() {
    let world = World::make(&both().pop().unwrap());
    let expected = world.restored(&world.newest);
    let sets = Path::new(&world.cluster.repo()).join("main/sets");
    let full = world.complete().remove(0);
    flip_bit(&sets.join(full.as_str()).join("pages-0000.sums"), 5_000, 1);
    std::fs::remove_file(sets.join(world.newest.as_str()).join("pages-0000.sums")).unwrap();
    let report = make(&world.cluster, &SynthesizeRequest::new(""));
    assert!(!report.set.notes.is_empty(), "the missing object is told");
    world.assert_sound(&report.set.label);
    world.assert_restores_to(&report.set.label, &expected, "with damaged sums");
    backup(&BackupRequest { repo: "NUL".into(), ..world.cluster.backup_request() }, &NoObserver).unwrap();
    let next = take(&world.cluster, BackupKind::Incremental);
    assert!(next.changed_bytes < next.source_bytes / 4, "{next:?}");
    let restored = world.restored(&next.label);
    assert!(!restored.is_empty());
    world.assert_last_restored_starts();
}
