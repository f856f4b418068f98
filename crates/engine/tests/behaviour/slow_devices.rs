//! Throttled stores end to end, and the level that moves with them.

use std::path::Path;
use std::time::Instant;

use pagehaul_engine::backup::BackupReport;
use pagehaul_engine::pipeline::NoObserver;
use pagehaul_engine::restore::{RestoreRequest, restore};
use pagehaul_engine::verify::{VerifyRequest, verify};
use pagehaul_testkit::cluster::{Cluster, default_install, disk_directory};

/// Restores `repo` and checks that every table is as it was.
fn check_restored(cluster: &Cluster, request: &RestoreRequest) {
    restore(request, &NoObserver).unwrap_or_else(|error| panic!("{error}"));
    cluster.pg_verifybackup(&request.target_dir);
    let mut copy = cluster.adopt(&request.target_dir);
    assert_eq!(copy.digests(), cluster.digests());
    copy.crash();
}

/// What of a backup was stored by the levels whose name begins like that.
fn share(report: &BackupReport, compression: &str) -> f64 {
    report.levels.iter().filter(|level| level.compression.starts_with(compression)).map(|level| level.share).sum()
}

#[test]
fn stripes_and_repository_on_slow_devices_hold_the_same_backup() {
    let work = disk_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    cluster.load_typed_tables(20_000);
    let directory = |name: &str| work.path().join(name).display().to_string();
    let slow = |name: &str| format!("throttle:write=40MB/s,read=80MB/s:{}", directory(name));
    let mut request = cluster.backup_request();
    request.repo = slow("repo");
    request.stripe_to = vec![slow("disk1"), slow("disk2")];
    let started = Instant::now();
    let report = cluster.backup(&request);
    // Both stripes take as long as the longer of them takes at that rate; a throttle is never faster.
    let longest = report.stripes.iter().map(|stripe| stripe.bytes).max().unwrap();
    assert!(started.elapsed().as_secs_f64() > longest as f64 / 40e6 * 0.9, "{:?} {longest}", started.elapsed());
    for (stripe, disk) in report.stripes.iter().zip(["disk1", "disk2"]) {
        assert!(stripe.path.starts_with(&directory(disk)) && Path::new(&stripe.path).exists(), "{}", stripe.path);
    }
    // The set knows directories, not rates: it reads through the throttle, and without it.
    for (number, (repo, stripe_from)) in
        [(directory("repo"), vec![]), (slow("repo"), vec![slow("disk1"), slow("disk2")])].into_iter().enumerate()
    {
        let mut verification = VerifyRequest::new(&repo);
        verification.stripe_from = stripe_from.clone();
        let started = Instant::now();
        let verified = verify(&verification, &NoObserver).unwrap();
        assert!(verified.sound, "{verified:?}");
        if !stripe_from.is_empty() {
            assert!(started.elapsed().as_secs_f64() > longest as f64 / 80e6 * 0.9, "{:?}", started.elapsed());
        }
        let mut back = RestoreRequest::new(&repo, work.path().join(format!("restored{number}")));
        back.stripe_from = stripe_from;
        check_restored(&cluster, &back);
    }
}

#[test]
fn a_moving_level_leaves_a_set_of_several_levels_that_restores() {
    let work = disk_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    cluster.load_typed_tables(150_000);
    let repo = |name: &str| work.path().join(name).display().to_string();
    let backup_at = |name: &str, throttle: &str| {
        let mut request = cluster.backup_request();
        request.repo = format!("{throttle}{}", repo(name));
        request.compression = "auto".parse().unwrap();
        // Small frames: enough of them in a small cluster for the level to get anywhere.
        request.frame_size_bytes = Some(128 * 1024);
        request.transfer_size_bytes = Some(256 * 1024);
        let report = cluster.backup(&request);
        assert_eq!((report.codec.as_str(), report.level), ("auto", 0));
        let all: f64 = report.levels.iter().map(|level| level.share).sum();
        assert!((all - 1.0).abs() < 1e-9, "{:?}", report.levels);
        report
    };
    let slow = backup_at("slow", "throttle:write=2MB/s:");
    assert!(slow.levels.len() > 1, "the level moved: {:?}", slow.levels);
    assert!(share(&slow, "page") > 0.5, "time was left for more than LZ4, and most is tables: {:?}", slow.levels);
    assert!(share(&slow, "zstd") > 0.0, "maps of free space are no tables: {:?}", slow.levels);
    let free = backup_at("free", "");
    assert!(slow.stored_bytes < free.stored_bytes, "{:?} {:?}", slow.levels, free.levels);
    for name in ["slow", "free"] {
        let verified = verify(&VerifyRequest::new(repo(name)), &NoObserver).unwrap();
        assert!(verified.sound, "{verified:?}");
        check_restored(&cluster, &RestoreRequest::new(repo(name), work.path().join(format!("restored-{name}"))));
    }
}
