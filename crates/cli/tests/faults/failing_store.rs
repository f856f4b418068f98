//! Whichever request to an object store fails, for once or for good: each kind of fault at places by chance, or at all of them.

use std::path::PathBuf;

use pagehaul_testkit::s3_faults::{S3_FAULTS, S3Fault};

use super::bench::{Random, first_place, is_tried, sample_size};
use super::object_store::{DEAD_AFTER, Stored, label};

#[test]
fn f08_f34_a_request_that_fails_for_once_costs_no_backup() {
    let (stored, earlier, request_count) = Stored::counted("bad_day");
    let mut random = Random::for_test("bad_day");
    for fault in S3_FAULTS.into_iter().filter(is_tried) {
        for round in first_place()..sample_size(2).min(request_count) {
            // All of them in turn, or so many by chance.
            let at = if sample_size(2) < request_count { random.below(request_count) } else { round };
            let what = format!("{fault:?} at request {at} of {request_count}");
            stored.server.faults.arm(fault, at..at + 1);
            eprintln!("{what}");
            let ran = stored.backup();
            stored.server.faults.disarm();
            assert_eq!(ran.code, Some(0), "{what}: {ran}");
            stored.check(&what, &earlier, &ran);
            stored.forget_all_but(&earlier);
        }
    }
    stored.assert_sound(&earlier);
}

#[test]
fn f08_b02_a_store_that_fails_for_good_fails_the_backup_and_nothing_else() {
    // Each with a store of its own: a store that stalls is waited for, for a minute and more.
    std::thread::scope(|scope| {
        for fault in S3_FAULTS.into_iter().filter(is_tried) {
            scope.spawn(move || fails_for_good(fault));
        }
    });
}

fn fails_for_good(fault: S3Fault) {
    let name = format!("bad_times_{fault:?}").to_lowercase();
    let (stored, earlier, request_count) = Stored::counted(&name);
    let mut random = Random::for_test(&name);
    for round in first_place()..sample_size(1).min(request_count) {
        // As above.
        let at = if sample_size(1) < request_count { random.below(request_count) } else { round };
        let what = format!("{fault:?} from request {at} of {request_count}");
        eprintln!("{what}");
        stored.server.faults.arm(fault, at..usize::MAX);
        let ran = stored.backup();
        stored.server.faults.disarm();
        stored.check(&what, &earlier, &ran);
        // What it left is removed by the next one as soon as its lease is dead.
        stored.server.age(DEAD_AFTER);
        let next = label(&stored.backup());
        stored.assert_sound(&next);
        let complete = stored.labels("complete");
        assert_eq!(stored.leftovers(&complete), Vec::<PathBuf>::new(), "{what}: {complete:?}");
        assert_eq!(stored.labels("unfinished"), Vec::<String>::new(), "{what}");
        stored.forget_all_but(&earlier);
    }
    stored.assert_sound(&earlier);
}
