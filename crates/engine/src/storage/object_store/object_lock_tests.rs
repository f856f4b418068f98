//! Object lock against a server that has it, and what is told where there is none.

use jiff::{SignedDuration, Timestamp};
use pagehaul_testkit::foreign_stores::ForeignStore;
use pagehaul_testkit::s3_faults::S3Fault;
use pagehaul_testkit::s3_server::{S3Server, run_again, told_target};

use crate::error::ErrorKind;
use crate::storage::{LockMode, Protection, Storage, object_lock_of, open_storage};

const MODULE: &str = "storage::object_store::object_lock::tests";

fn in_hours(hours: i64, mode: LockMode) -> Protection {
    Protection::new(Timestamp::now() + SignedDuration::from_hours(hours), mode)
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn s19_what_is_protected_cannot_be_deleted_and_is_never_protected_less() {
    if let Some(target) = told_target() {
        return protect_in(open_storage(&target).unwrap().as_ref());
    }
    let Some(server) = ForeignStore::moto_with_object_lock() else { return };
    let test = format!("{MODULE}::s19_what_is_protected_cannot_be_deleted_and_is_never_protected_less");
    run_again(&test, &server.target("some/prefix"), server.environment());
    let versions = server.versions();
    assert_eq!(versions.len(), 4, "{versions:?}");
    for (key, version) in versions {
        let is_refused = !server.delete_version(&key, &version);
        assert_eq!(is_refused, !key.ends_with("free.json"), "{key}");
    }
}

fn protect_in(store: &dyn Storage) {
    let all = names(&["a/one.json", "a/with a blank+.json", "two.json"]);
    for name in all.iter().chain(&names(&["free.json"])) {
        assert!(store.put_new(name, b"{}").unwrap());
    }
    let lock = object_lock_of(store).unwrap();
    assert_eq!(lock.protections(&all).unwrap(), [None; 3]);
    let (day, two_days) = (in_hours(24, LockMode::Governance), in_hours(48, LockMode::Governance));
    assert_eq!(lock.protect(&all[..1], two_days).unwrap(), 1);
    assert_eq!(lock.protect(&all, day).unwrap(), 2, "the first one has more");
    assert_eq!(lock.protections(&all).unwrap(), [Some(two_days), Some(day), Some(day)]);
    assert_eq!(lock.protect(&all, two_days).unwrap(), 2);
    assert_eq!(lock.protections(&all).unwrap(), [Some(two_days); 3]);
    // Neither mode is carried into the other for longer than was asked.
    let error = lock.protect(&all, in_hours(24, LockMode::Compliance)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
    assert!(error.message().contains("in governance mode until"), "{error}");
    let compliance = in_hours(72, LockMode::Compliance);
    assert_eq!(lock.protect(&all, compliance).unwrap(), 3);
    assert_eq!(lock.protect(&all, in_hours(96, LockMode::Governance)).unwrap_err().kind(), ErrorKind::Configuration);
    assert_eq!(lock.protections(&all).unwrap(), [Some(compliance); 3]);
    let error = lock.protect(&names(&["nothing.json"]), day).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Repository);
    assert!(error.message().contains("nothing.json") && error.message().contains("not there"), "{error}");
    // A throttle is no way around it, and no way to lose it.
    let throttled = open_storage(&format!("throttle:read=1GB/s:{}", store.describe())).unwrap();
    let lock = object_lock_of(throttled.as_ref()).unwrap();
    assert_eq!(lock.protections(&all[..1]).unwrap(), [Some(compliance)]);
}

/// A server that does not know the request would take it for the object: nothing may be sent to it.
#[test]
fn s19_stores_without_object_lock_are_told_apart_and_not_touched() {
    let test = format!("{MODULE}::s19_stores_without_object_lock_are_told_apart_and_not_touched");
    if let Some(target) = told_target() {
        let store = open_storage(&target).unwrap();
        assert!(store.put_new("a/one.json", b"as it was").unwrap());
        let error = object_lock_of(store.as_ref()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
        let words = error.to_string();
        assert!(words.contains("object lock") && words.contains("hint: "), "{words}");
        if let Some(lock) = store.object_lock() {
            let error = lock.protect(&names(&["a/one.json"]), in_hours(24, LockMode::Compliance)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
        }
        assert_eq!(store.read_small("a/one.json", 100).unwrap().unwrap(), b"as it was");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    run_again(&test, &directory.path().display().to_string(), &[]);
    let server = S3Server::start(&["bucket"]);
    server.run_again(&test, &server.target("bucket"));
    for server in [ForeignStore::moto(), ForeignStore::azurite()].into_iter().flatten() {
        run_again(&test, &server.target("some/prefix"), server.environment());
    }
}

#[test]
fn f08_requests_of_object_lock_are_sent_again_and_those_that_fail_for_good_named() {
    let test = "f08_requests_of_object_lock_are_sent_again_and_those_that_fail_for_good_named";
    if let Some(target) = told_target() {
        let store = open_storage(&target).unwrap();
        let found = store.object_lock().unwrap().protections(&names(&["one.json"]));
        if target.contains("/well") {
            assert_eq!(found.unwrap(), [None]);
            return;
        }
        let error = found.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Repository);
        assert!(error.message().contains("one.json") && error.hint_text().is_some(), "{error}");
        return;
    }
    let server = S3Server::start(&["bucket"]);
    let directory = server.bucket_directory("bucket").join("well");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("one.json"), b"{}").unwrap();
    for fault in [S3Fault::SlowDown, S3Fault::Reset, S3Fault::Stall] {
        server.faults.arm(fault, 0..2);
        let target = format!("{}&timeout=2s&retries=2", server.target("bucket/well"));
        server.run_again(&format!("{MODULE}::{test}"), &target);
        assert_eq!(server.faults.disarm(), 3, "{fault:?}: two in vain and one that was answered");
        server.faults.arm(fault, 0..usize::MAX);
        let target = format!("{}&timeout=1s&retries=1", server.target("bucket/ill"));
        server.run_again(&format!("{MODULE}::{test}"), &target);
        assert_eq!(server.faults.disarm(), 2, "{fault:?}");
    }
}
