//! Places that are one, or inside each other, by whatever names: refused before anything is written.

use std::path::Path;

use pagehaul_engine::backup::{BackupRequest, backup};
use pagehaul_engine::error::{Error, ErrorKind};
use pagehaul_engine::pipeline::NoObserver;
use pagehaul_engine::restore::{RestoreRequest, restore};
use pagehaul_engine::source::postgres::scratch_server::StopMode;
use pagehaul_testkit::cluster::{Cluster, default_install, work_directory};
use pagehaul_testkit::damage::{differences, tree};

/// A copy into its own source removed the source's pg_control elsewhere.
#[test]
fn b17_source_repository_stripes_and_target_are_never_in_each_other() {
    let work = work_directory();
    let mut cluster = Cluster::start(&default_install(), work.path());
    let space = cluster.server_directory("space");
    cluster.run(&[
        &format!("CREATE TABLESPACE space LOCATION '{}'", space.display()),
        "CREATE TABLE there TABLESPACE space AS SELECT 1 AS i",
    ]);
    let stripes = work.path().join("stripes");
    let stripe_to = vec![stripes.display().to_string(), cluster.repo()];
    cluster.backup(&BackupRequest { stripe_to, ..cluster.backup_request() });
    cluster.server.stop(StopMode::Fast).unwrap();
    let data = cluster.server.data_directory().to_owned();
    let alias = work.path().join("alias");
    std::os::unix::fs::symlink(work.path(), &alias).unwrap();
    let before = tree(work.path());
    let expect = |what: &str, kind: ErrorKind, outcome: Result<(), Error>| {
        let error = outcome.expect_err(what);
        assert_eq!(error.kind(), kind, "{what}: {error}");
        let difference = differences(&before, &tree(work.path()));
        assert!(difference.is_empty(), "{what}: {difference:?}");
    };

    let in_alias = |path: &Path| alias.join(path.strip_prefix(work.path()).unwrap());
    for place in [data.clone(), data.join("repo"), in_alias(&data).join("base/new"), space.clone(), space.join("a/b")] {
        let target = place.display().to_string();
        let repo = BackupRequest { repo: target.clone(), ..cluster.backup_request() };
        let stripe_to = BackupRequest { stripe_to: vec![cluster.repo(), target.clone()], ..cluster.backup_request() };
        for (what, request) in [("the repository", repo), ("a stripe", stripe_to)] {
            for dry_run in [true, false] {
                let outcome = backup(&BackupRequest { dry_run, ..request.clone() }, &NoObserver).map(drop);
                expect(&format!("{what} in {target}"), ErrorKind::Usage, outcome);
            }
        }
    }

    let repo = Path::new(&cluster.repo()).to_owned();
    let free = work.path().join("free");
    let restores: [(&str, &Path, &Path); 8] = [
        ("the source", &data, &free),
        ("the source by another name", &in_alias(&data), &free),
        ("inside the repository", &repo.join("main/copy"), &free),
        ("inside the repository by another name", &in_alias(&repo).join("copy"), &free),
        ("beside a stripe", &stripes.join("main/sets"), &free),
        ("the tablespace's own place", &free, &space),
        ("the tablespace inside the repository", &free, &repo.join("space")),
        ("the tablespace inside the target by another name", &free, &in_alias(&free).join("space")),
    ];
    for (what, target, space_to) in restores {
        let tablespace_map = vec![(space.clone(), space_to.to_owned())];
        let request = RestoreRequest { tablespace_map, ..RestoreRequest::new(cluster.repo(), target) };
        expect(what, ErrorKind::Target, restore(&request, &NoObserver).map(drop));
        // The stopped source itself is what a delta restore is for.
        if !what.starts_with("the source") && !what.starts_with("the tablespace's own") {
            let outcome = restore(&RestoreRequest { delta: true, ..request }, &NoObserver).map(drop);
            expect(&format!("{what}, delta"), ErrorKind::Target, outcome);
        }
    }
    cluster.server.start(pagehaul_testkit::cluster::QUICK).unwrap();
    assert_eq!(cluster.value("SELECT i FROM there"), "1");
}
