//! The contract of stores against a real server, in a process that has its credentials, and what is told when one fails.

use pagehaul_testkit::foreign_stores::ForeignStore;
use pagehaul_testkit::forwarder::{Forwarder, Manner};
use pagehaul_testkit::s3_faults::S3Fault;
use pagehaul_testkit::s3_server::{S3Server, run_again, told_target};

use super::*;
use crate::storage::conformance::check_store;
use crate::storage::open_storage;

/// Runs a test of this module in a process that has the server's credentials in its environment.
fn run_with_credentials(test: &str, target: &str, server: &S3Server) {
    server.run_again(&format!("storage::object_store::tests::{test}"), target);
}

/// The store that [`run_with_credentials`] names; None in the process that is to call it.
fn store() -> Option<Box<dyn Storage>> {
    told_target().map(|target| open_storage(&target).unwrap())
}

#[test]
fn an_s3_server_keeps_the_contract() {
    if let Some(store) = store() {
        return check_store(store.as_ref());
    }
    let server = S3Server::start(&["bucket"]);
    run_with_credentials("an_s3_server_keeps_the_contract", &server.target("bucket/some/prefix"), &server);
}

/// Signatures, leases and uploads whose requests go over different endpoints.
#[test]
fn two_endpoints_of_a_store_keep_the_contract_together() {
    if let Some(store) = store() {
        check_store(store.as_ref());
        write_in_parts(store.as_ref());
        return;
    }
    let server = S3Server::start(&["bucket"]);
    let ways = [(); 2].map(|()| Forwarder::start(&server.endpoint(), &Manner::default()).unwrap());
    let [one, two] = ways.each_ref().map(|way| format!("endpoint=http://{}", way.address()));
    let target = format!("s3://bucket/p?{one}&{two}&part-size=5MiB&parallel=2");
    run_with_credentials("two_endpoints_of_a_store_keep_the_contract_together", &target, &server);
    let bytes = ways.each_ref().map(Forwarder::bytes);
    assert!(bytes.iter().all(|bytes| *bytes > 10_000_000), "{bytes:?}");
}

/// Parts that are refused are sent again; without fewer at once most of them would be refused again and again.
#[test]
fn f08_a_store_that_takes_two_requests_at_once_is_not_pressed() {
    if let Some(store) = store() {
        (0..4).for_each(|index| write_object(store.as_ref(), &format!("{index}.phs"), 80));
        return;
    }
    let server = S3Server::start(&["bucket"]);
    server.faults.arm(S3Fault::Crowded, 0..usize::MAX);
    let target = format!("{}&part-size=5MiB&parallel=8&retries=4", server.target("bucket"));
    run_with_credentials("f08_a_store_that_takes_two_requests_at_once_is_not_pressed", &target, &server);
    let refused = server.faults.refused.load(SeqCst);
    assert!((1..=64).contains(&refused), "{refused} of 64 parts and more");
}

/// The same with servers that others wrote.
#[test]
fn moto_and_azurite_keep_the_contract() {
    if let Some(store) = store() {
        check_store(store.as_ref());
        write_in_parts(store.as_ref());
        return;
    }
    let test = "storage::object_store::tests::moto_and_azurite_keep_the_contract";
    for server in [ForeignStore::moto(), ForeignStore::azurite()].into_iter().flatten() {
        let target = format!("{}&part-size=5MiB&parallel=2", server.target("some/prefix"));
        run_again(test, &target, server.environment());
    }
}

#[test]
fn f48_large_objects_are_sent_in_parts_of_bounded_memory() {
    if let Some(store) = store() {
        write_in_parts(store.as_ref());
        return;
    }
    let server = S3Server::start(&["bucket"]);
    let target = format!("{}&part-size=5MiB&parallel=2", server.target("bucket"));
    run_with_credentials("f48_large_objects_are_sent_in_parts_of_bounded_memory", &target, &server);
}

#[test]
fn f42_a_holder_that_was_away_finds_that_its_lease_is_lost() {
    if let Some(store) = store() {
        let lease = store.lease("a/in-progress").unwrap().unwrap();
        lease.check_held().unwrap();
        // What another process does that finds no sign of life for long: it takes the next number.
        assert!(store.put_new("a/in-progress.lease/00000002", b"{}").unwrap());
        assert_eq!(lease.check_held().unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(store.list("a").unwrap(), ["in-progress"]);
        assert!(crate::storage::Holder::of_lease(store.as_ref(), "a/in-progress").is_none(), "its words are {{}}");
        store.delete("a/in-progress").unwrap();
        // Whoever comes then has the same number, and is not mistaken for the one that was away, nor ended by it.
        let next = store.lease("a/in-progress").unwrap().unwrap();
        assert_eq!(lease.check_held().unwrap_err().kind(), ErrorKind::Conflict);
        drop(lease);
        next.check_held().unwrap();
        assert!(store.is_leased("a/in-progress").unwrap(), "the next holder keeps it");
        store.delete("a/in-progress").unwrap();
        drop(next);
        assert_eq!(store.list("a").unwrap(), [""; 0], "nothing comes back");
        store.remove_prefix("a").unwrap();
        return;
    }
    let server = S3Server::start(&["bucket"]);
    run_with_credentials("f42_a_holder_that_was_away_finds_that_its_lease_is_lost", &server.target("bucket"), &server);
}

#[test]
fn a_document_is_read_in_one_request() {
    const TIMES: usize = 20;
    if let Some(store) = store() {
        assert!(store.put_new("a.json", b"{}").unwrap());
        (0..TIMES).for_each(|_| assert_eq!(store.read_small("a.json", 2).unwrap().unwrap(), b"{}"));
        assert_eq!(store.read_small("a.json", 1).unwrap_err().kind(), ErrorKind::Damage);
        return;
    }
    let server = S3Server::start(&["bucket"]);
    run_with_credentials("a_document_is_read_in_one_request", &server.target("bucket"), &server);
    let count = server.faults.disarm();
    // What is new is put, and put again: a store that takes both keeps nothing safe.
    assert!((TIMES..TIMES + 6).contains(&count), "{count} requests");
}

#[test]
fn a_store_that_overwrites_what_should_be_new_is_refused() {
    if let Some(store) = store() {
        let error = store.put_new("a.json", b"{}").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
        assert_eq!(store.lease("in-progress").err().unwrap().kind(), ErrorKind::Configuration);
        return;
    }
    let server = S3Server::start(&["bucket"]);
    server.faults.arm(S3Fault::Overwrites, 0..usize::MAX);
    run_with_credentials("a_store_that_overwrites_what_should_be_new_is_refused", &server.target("bucket"), &server);
}

#[test]
fn missing_buckets_wrong_keys_and_servers_that_are_not_there_are_explained() {
    if let Some(store) = store() {
        for error in [
            store.create("a.json", 0).err().unwrap(),
            store.list("a").err().unwrap(),
            store.read_small("a.json", 10).err().unwrap(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Repository, "{error}");
            let words = format!("{} {}", error.message(), error.hint_text().unwrap_or_default());
            assert!(
                words.contains("credentials") || words.contains("bucket") || words.contains("the way to it"),
                "{words}"
            );
        }
        return;
    }
    let test = "missing_buckets_wrong_keys_and_servers_that_are_not_there_are_explained";
    let server = S3Server::start(&["bucket"]);
    run_with_credentials(test, &server.target("other"), &server);
    let nobody = "s3://bucket?endpoint=http://127.0.0.1:9&timeout=1s&retries=1";
    run_with_credentials(test, nobody, &server);
}

fn piece() -> Vec<u8> {
    (0..1_000_003_u32).map(|i| (i * 7 % 253) as u8).collect()
}

/// An object of so many pieces.
fn write_object(store: &dyn Storage, name: &str, count: u64) {
    let mut writer = store.create(name, 0).unwrap();
    let piece = piece();
    (0..count).for_each(|_| writer.append(&piece).unwrap());
    assert_eq!(writer.finish().unwrap(), count * 1_000_003);
}

/// Two parts at once of the smallest size.
fn write_in_parts(store: &dyn Storage) {
    write_object(store, "large.phs", 40);
    let piece = piece();
    let reader = store.open("large.phs").unwrap().unwrap();
    let mut read = vec![0u8; 40_000_120];
    reader.read_at(&mut read, 0).unwrap();
    assert!(read.chunks(piece.len()).all(|found| found == piece));
    assert_eq!(store.writer_bytes(Uploads { count: 1, largest_bytes: 40_000_120 }), 4 * (5 << 20) * 17 / 16);
}

#[test]
fn f48_what_is_known_to_be_too_large_for_its_store_is_refused_before_it_is_sent() {
    const GB: u64 = 1_000_000_000;
    let refusal = |options: &str, gigabytes| {
        let store = ObjectStore::open(&format!("s3://b?region=eu-1{options}")).unwrap();
        crate::storage::refuse_too_large(&store, "main/sets/one/stripe-0001.phs", gigabytes * GB).err()
    };
    assert!(refusal("", 400).is_none() && refusal("", 10_000).is_none());
    let error = refusal("&part-size=8MiB", 400).unwrap();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.message().contains("create main/sets/one/stripe-0001.phs in s3://b?region=eu-1"), "{error}");
    assert!(error.message().contains("400000000000 bytes, and the store takes 335544320000"), "{error}");
    assert!(error.hint_text().unwrap().contains("leave out the option part-size"));
    assert!(refusal("", 11_000).is_some());
}

/// What a writer that is killed leaves in the store, which shows it to nobody who does not ask for it.
#[test]
fn f08_uploads_that_nobody_will_finish_are_ended_and_no_others() {
    const BEGUN: [&str; 3] =
        ["a/set one/stripe-0000.phs", "a/set one/stripe-0001.phs", "a/set one+more/stripe-0000.phs"];
    if let Some(store) = store() {
        // Moto has no right to refuse; a server that lists no uploads has none to end.
        let has_them = told_target().unwrap().contains("some/prefix");
        assert_eq!(store.abandon("a/set one").unwrap(), 0);
        for name in BEGUN {
            let upload = Box::leak(store.create(name, 0).unwrap());
            upload.append(&vec![7; 20 << 20]).unwrap();
        }
        // Parts are sent on the side.
        std::thread::sleep(std::time::Duration::from_secs(1));
        let ended = if has_them { [2, 0, 1] } else { [0; 3] };
        assert_eq!(["a/set one", "a/set one", "a/set one+more"].map(|prefix| store.abandon(prefix).unwrap()), ended);
        assert!(store.list("a").unwrap().is_empty());
        return;
    }
    let test = "f08_uploads_that_nobody_will_finish_are_ended_and_no_others";
    let server = S3Server::start(&["bucket"]);
    run_with_credentials(test, &format!("{}&part-size=5MiB", server.target("bucket")), &server);
    if let Some(server) = ForeignStore::moto() {
        let target = format!("{}&part-size=5MiB", server.target("some/prefix"));
        run_again(&format!("storage::object_store::tests::{test}"), &target, server.environment());
    }
}
