//! Restore targets: what is not empty is refused untouched, what was interrupted never starts and can be done again.

use std::path::{Path, PathBuf};

use pagehaul_engine::catalog::Repository;
use pagehaul_engine::error::{Error, ErrorKind};
use pagehaul_engine::pipeline::{NoObserver, Observer};
use pagehaul_engine::restore::{RestoreRequest, restore};
use pagehaul_engine::source::postgres::scratch_server::{ScratchServer, StopMode};
use pagehaul_testkit::cluster::{Cluster, default_install, work_directory};
use pagehaul_testkit::damage::{copy_tree, differences, files_below, flip_bit, tree};
use pagehaul_testkit::observer::{At, CRAWL_BYTES_PER_S};
use tempfile::TempDir;

const MARKER: &str = "pagehaul-restore-in-progress.json";

/// A stopped cluster with one tablespace and one set of it.
struct Stored {
    work: TempDir,
    cluster: Cluster,
    space: PathBuf,
}

fn stored() -> Stored {
    let work = work_directory();
    let mut cluster = Cluster::start(&default_install(), work.path());
    cluster.load_typed_tables(20_000);
    let space = cluster.server_directory("space");
    cluster.run(&[
        &format!("CREATE TABLESPACE elsewhere LOCATION '{}'", space.display()),
        "CREATE TABLE there TABLESPACE elsewhere AS SELECT i, md5(i::text) FROM generate_series(1, 20000) AS i",
    ]);
    cluster.backup(&cluster.backup_request());
    cluster.server.stop(StopMode::Fast).unwrap();
    Stored { work, cluster, space }
}

impl Stored {
    fn path(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }

    fn request(&self, target: &Path, space: &Path) -> RestoreRequest {
        RestoreRequest {
            tablespace_map: vec![(self.space.clone(), space.to_owned())],
            ..RestoreRequest::new(self.cluster.repo(), target)
        }
    }

    /// The restore is refused, and nothing below the work directory has changed.
    fn expect_refused(&self, what: &str, request: &RestoreRequest) -> Error {
        let before = tree(self.work.path());
        let error = match restore(request, &NoObserver) {
            Err(error) => error,
            Ok(report) => panic!("{what}: {}", report.state),
        };
        assert_eq!(error.kind(), ErrorKind::Target, "{what}: {error}");
        let difference = differences(&before, &tree(self.work.path()));
        assert!(difference.is_empty(), "{what}: {difference:?}");
        error
    }

    fn expect_interrupted(&self, request: &RestoreRequest, observer: &dyn Observer, kind: ErrorKind) {
        let error = match restore(request, observer) {
            Err(error) => error,
            Ok(report) => panic!("{}", report.state),
        };
        assert_eq!(error.kind(), kind, "{error}");
        assert!(request.target_dir.join(MARKER).exists(), "the target is marked");
        assert!(!request.target_dir.join("global/pg_control").exists(), "the target has no pg_control");
        let mut server = ScratchServer::adopt(&default_install(), &request.target_dir).unwrap();
        assert!(server.start(&[]).is_err(), "a half restored server starts");
    }
}

fn must(request: &RestoreRequest) {
    restore(request, &NoObserver).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn f12_a_target_that_is_not_empty_is_refused_untouched() {
    let mut stored = stored();
    let free_space = stored.path("free");
    let file = stored.path("directory-with-a-file");
    std::fs::create_dir(&file).unwrap();
    std::fs::write(file.join("note"), b"mine").unwrap();
    stored.expect_refused("a file in it", &stored.request(&file, &free_space));

    let hidden = stored.path("directory-with-a-hidden-file");
    std::fs::create_dir(&hidden).unwrap();
    std::fs::write(hidden.join(".note"), b"mine").unwrap();
    stored.expect_refused("a hidden file in it", &stored.request(&hidden, &free_space));

    stored.expect_refused("a file in its place", &stored.request(&file.join("note"), &free_space));
    stored.expect_refused("below a file", &stored.request(&file.join("note/below"), &free_space));

    let own = stored.cluster.server.data_directory().to_owned();
    stored.expect_refused("the cluster's own stopped directory", &stored.request(&own, &free_space));
    let link = stored.path("link");
    std::os::unix::fs::symlink(&own, &link).unwrap();
    stored.expect_refused("a link to it", &stored.request(&link, &free_space));

    let new = stored.path("new");
    let error = stored.expect_refused("a tablespace in its place", &RestoreRequest::new(stored.cluster.repo(), &new));
    assert!(error.hint_text().unwrap().contains("--tablespace-map"), "{error}");
    stored.expect_refused("a tablespace over a file", &stored.request(&new, &file));
    stored.expect_refused("a tablespace inside the target", &stored.request(&new, &new.join("space")));
    stored.expect_refused("the target inside a tablespace", &stored.request(&new.join("data"), &new));
    stored.expect_refused("both in one", &stored.request(&new, &new));

    // A running server writes all the time; only the refusal and its reason are looked at.
    stored.cluster.server.start(&[]).unwrap();
    let error = restore(&stored.request(&own, &free_space), &NoObserver).expect_err("a running server");
    assert_eq!(error.kind(), ErrorKind::Target);
    assert!(error.message().contains("postmaster.pid"), "{error}");
    assert_eq!(stored.cluster.value("SELECT count(*) FROM there"), "20000");
}

#[test]
fn a_dry_run_writes_nothing() {
    let stored = stored();
    let before = tree(stored.work.path());
    let request = RestoreRequest { dry_run: true, ..stored.request(&stored.path("target"), &stored.path("free")) };
    let report = restore(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(report.state, "planned");
    assert!(report.space.iter().map(|need| need.needed_bytes).sum::<u64>() >= report.restored_bytes);
    let difference = differences(&before, &tree(stored.work.path()));
    assert!(difference.is_empty(), "{difference:?}");
}

#[test]
fn an_interrupted_restore_never_starts_and_can_be_done_again() {
    let stored = stored();
    let (target, space) = (stored.path("target"), stored.path("new-space"));
    let request = stored.request(&target, &space);
    must(&request);
    let (expected, expected_space) = (tree(&target), tree(&space));
    // The last one comes after 1.6 s, when half of it is there.
    for number in [0, 6, 15] {
        std::fs::remove_dir_all(&target).unwrap();
        std::fs::remove_dir_all(&space).unwrap();
        let slow = RestoreRequest { max_rate_bytes_per_s: Some(2 * CRAWL_BYTES_PER_S), ..request.clone() };
        stored.expect_interrupted(&slow, &At::interrupt_after(number), ErrorKind::Interrupted);
        must(&request);
        let difference = [differences(&expected, &tree(&target)), differences(&expected_space, &tree(&space))].concat();
        assert!(difference.is_empty(), "{number}: {difference:?}");
    }
    let mut server = ScratchServer::adopt(&default_install(), &target).unwrap();
    server.start(&[]).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn a_restore_that_met_damage_can_be_done_again_from_a_good_copy() {
    let stored = stored();
    let (target, space, damaged) = (stored.path("target"), stored.path("new-space"), stored.path("damaged"));
    copy_tree(Path::new(&stored.cluster.repo()), &damaged);
    let stripe =
        files_below(&damaged).into_iter().find(|path| path.extension().is_some_and(|kind| kind == "phs")).unwrap();
    let late = std::fs::metadata(&stripe).unwrap().len() * 9 / 10;
    flip_bit(&stripe, late, 2);
    let good = stored.request(&target, &space);
    let bad = RestoreRequest { repo: damaged.display().to_string(), ..good.clone() };
    stored.expect_interrupted(&bad, &NoObserver, ErrorKind::Damage);
    must(&good);
    let again = stored.request(&stored.path("target-2"), &stored.path("new-space-2"));
    must(&again);
    let difference = differences(&tree(&target.join("base")), &tree(&again.target_dir.join("base")));
    assert!(difference.is_empty(), "{difference:?}");
}

#[test]
fn f19_two_restores_never_share_a_place() {
    let stored = stored();
    let (target, space) = (stored.path("target"), stored.path("new-space"));
    let request = RestoreRequest { max_rate_bytes_per_s: Some(3 << 20), ..stored.request(&target, &space) };
    let same_target = stored.request(&target, &stored.path("other-space"));
    let same_space = stored.request(&stored.path("other-target"), &space);
    let others = At::progress(0, || {
        for second in [&same_target, &same_space] {
            let error = restore(second, &NoObserver).expect_err("two restores at once");
            assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
            assert!(error.message().contains(&format!("process {} on ", std::process::id())), "{error}");
        }
    });
    restore(&request, &others).unwrap_or_else(|error| panic!("{error}"));
    assert!(others.done());
    stored.expect_refused("after the first one ended", &same_space);
    must(&stored.request(&stored.path("compare"), &stored.path("compare-space")));
    let difference = differences(&tree(&space), &tree(&stored.path("compare-space")));
    assert!(difference.is_empty(), "{difference:?}");
}

#[test]
fn a_tablespace_in_use_is_not_taken_for_the_rest_of_a_restore() {
    let stored = stored();
    let (target, space) = (stored.path("target"), stored.path("new-space"));
    let request = stored.request(&target, &space);
    let slow = RestoreRequest { max_rate_bytes_per_s: Some(CRAWL_BYTES_PER_S), ..request.clone() };
    stored.expect_interrupted(&slow, &At::interrupt_after(2), ErrorKind::Interrupted);
    let marker = std::fs::read(space.join(MARKER)).unwrap();
    must(&request);
    // As if the machine had died after pg_control was written and before the marker was removed.
    std::fs::write(space.join(MARKER), marker).unwrap();
    stored.expect_refused("a tablespace in use", &stored.request(&stored.path("other"), &space));

    // Once the target is gone nothing uses the tablespace any more.
    std::fs::remove_dir_all(&target).unwrap();
    must(&stored.request(&stored.path("other"), &space));
}

#[test]
fn a_repository_is_not_changed_by_a_restore() {
    let stored = stored();
    let repo = PathBuf::from(stored.cluster.repo());
    let before = tree(&repo);
    must(&stored.request(&stored.path("target"), &stored.path("new-space")));
    assert!(Repository::open(&stored.cluster.repo()).is_ok());
    let difference = differences(&before, &tree(&repo));
    assert!(difference.is_empty(), "{difference:?}");
}
