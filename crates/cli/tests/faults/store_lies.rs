//! An object store that says it has done what it has not, and archivers that write the same file at once.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use pagehaul_testkit::damage::{files_below, flip_bit};
use pagehaul_testkit::s3_faults::S3_LIES;
use pagehaul_testkit::s3_server::S3Server;

use super::bench::{Ran, Random, sample_size};
use super::object_store::Stored;
use super::wal::Wal;

/// A set that is said to be there is there, whatever the store claims to have done.
#[test]
fn f08_f34_what_a_store_only_claims_to_have_done_is_no_backup() {
    let (stored, earlier, request_count) = Stored::counted("lies");
    let mut random = Random::for_test("lies");
    for fault in S3_LIES {
        let mut refused = 0;
        for round in 0..sample_size(6).min(request_count) {
            let at = if sample_size(6) < request_count { random.below(request_count) } else { round };
            let what = format!("{fault:?} at request {at} of {request_count}");
            eprintln!("{what}");
            stored.server.faults.arm(fault, at..at + 1);
            let ran = stored.backup();
            stored.server.faults.disarm();
            stored.check(&what, &earlier, &ran);
            refused += usize::from(ran.code != Some(0));
            stored.forget_all_but(&earlier);
        }
        // And all of them: there is nothing that it could be believed.
        stored.server.faults.arm(fault, 0..usize::MAX);
        let ran = stored.backup();
        stored.server.faults.disarm();
        assert_ne!(ran.code, Some(0), "{fault:?}: {ran}");
        stored.check(&format!("{fault:?} for good"), &earlier, &ran);
        stored.forget_all_but(&earlier);
        eprintln!("{fault:?}: {refused} refused");
    }
    stored.assert_sound(&earlier);
}

/// An archive with nothing in it yet, and finished files of WAL.
fn archive(name: &str) -> (Stored, Vec<PathBuf>) {
    let wal = Wal::new(name);
    let stored = Stored { server: S3Server::start(&["repo"]), place: wal.place };
    let pgdata = stored.place.bench.cluster.server.data_directory().display().to_string();
    let adopted = stored.run(&["wal", "adopt", "--source", "main", "--pgdata", &pgdata]);
    assert_eq!(adopted.code, Some(0), "{adopted}");
    (stored, wal.segments)
}

fn push(stored: &Stored, file: &Path) -> Ran {
    stored.run(&["wal", "push", "--source", "main", &file.display().to_string()])
}

/// Both at the same time.
fn push_both(stored: &Stored, files: [&Path; 2]) -> [Ran; 2] {
    let repo = stored.target("repo");
    let start = |file: &Path| {
        let file = file.display().to_string();
        let mut command = stored.place.pagehaul(&["wal", "push", "--repo", &repo, "--source", "main", &file]);
        command.envs(stored.server.environment()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let running = files.map(start);
    running.map(|child| Ran::from(child.wait_with_output().unwrap()))
}

/// What `wal get` gives of a file; None if it is not there.
fn delivered(stored: &Stored, segment: &Path) -> Option<Vec<u8>> {
    let destination = stored.place.directory.join("RECOVERYXLOG");
    std::fs::remove_file(&destination).ok();
    let name = segment.file_name().unwrap().to_str().unwrap();
    let got = stored.run(&["wal", "get", "--source", "main", name, &destination.display().to_string()]);
    (got.code == Some(0)).then(|| std::fs::read(&destination).unwrap())
}

/// What is acknowledged is there, whatever the store claims to have done.
#[test]
fn f07_f08_a_push_is_not_done_because_a_store_says_so() {
    let (stored, segments) = archive("push_lies");
    stored.server.faults.disarm();
    let pushed = push(&stored, &segments[0]);
    assert_eq!(pushed.code, Some(0), "{pushed}");
    let request_count = stored.server.faults.disarm();
    let before = files_below(&stored.server.bucket_directory("repo"));
    for fault in S3_LIES {
        for at in 0..request_count {
            let what = format!("{fault:?} at request {at} of {request_count}");
            stored.server.faults.arm(fault, at..at + 1);
            let pushed = push(&stored, &segments[1]);
            stored.server.faults.disarm();
            let there = delivered(&stored, &segments[1]);
            match pushed.code {
                Some(0) => assert!(there == Some(std::fs::read(&segments[1]).unwrap()), "{what}: {pushed}"),
                _ => pushed.assert_error_text(),
            }
            let mut objects = files_below(&stored.server.bucket_directory("repo"));
            objects.retain(|path| !before.contains(path));
            objects.iter().for_each(|path| std::fs::remove_file(path).unwrap());
        }
    }
}

/// Two servers that both think they are the primary: one file has one content, and whoever has the other is told.
#[test]
fn f42_of_two_archivers_that_push_other_bytes_of_a_name_one_is_refused() {
    let (stored, segments) = archive("two_archivers");
    let elsewhere = stored.place.directory.join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    for (round, segment) in segments.iter().enumerate() {
        let other = elsewhere.join(segment.file_name().unwrap());
        std::fs::copy(segment, &other).unwrap();
        flip_bit(&other, 9_000 + round as u64, 3);
        let [one, two] = push_both(&stored, [segment, &other]);
        let (winner, loser) = if one.code == Some(0) { (segment, &two) } else { (&other, &one) };
        assert!([one.code, two.code].contains(&Some(0)), "{one}{two}");
        assert_ne!(loser.code, Some(0), "{one}{two}");
        loser.assert_error_text();
        let there = delivered(&stored, segment).expect("it is there");
        assert!(there == std::fs::read(winner).unwrap(), "what was acknowledged is what is there: {one}{two}");
    }
}

/// The same file from both, as from a helper and the server itself: both may say that it is done.
#[test]
fn f42_two_archivers_that_push_the_same_file_are_both_right() {
    let (stored, segments) = archive("twin_archivers");
    for segment in &segments {
        for ran in push_both(&stored, [segment, segment]) {
            assert_eq!(ran.code, Some(0), "{ran}");
        }
        assert!(delivered(&stored, segment) == Some(std::fs::read(segment).unwrap()));
    }
}
