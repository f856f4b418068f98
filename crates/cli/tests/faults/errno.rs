//! System calls that fail: the command never claims success, its exit code says whose fault it is, and nothing of a
//! failed set stays.

use std::path::Path;

use super::bench::{Place, Ran, Random, sample_size};
use super::kill_restore::assert_does_not_start;
use super::strace::{self, At, MUTATING, inject};

/// What may go wrong in a call: errors that a disk gives for it.
fn errors_of(call: &str) -> &'static [&'static str] {
    match call {
        "pwrite64" | "fallocate" | "openat" | "mkdir" | "mkdirat" | "renameat2" | "symlinkat" => {
            &["ENOSPC", "EDQUOT", "EIO"]
        }
        _ => &["EIO"],
    }
}

/// One failure to try.
#[derive(Clone, Debug)]
struct Failure {
    at: At,
    errno: &'static str,
    /// Whether all later calls fail as well, as on a disk that stays full.
    stays: bool,
}

impl Failure {
    fn number(&self) -> String {
        format!("{}{}", self.at.number, if self.stays { "+" } else { "" })
    }

    fn run(&self, place: &Place, arguments: &[String]) -> Ran {
        inject(place, &self.at.call, &format!("error={}", self.errno), &self.number(), arguments)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} fails with {} at {}", self.at.call, self.errno, self.number())
    }
}

/// How the dynamic loader ends a process whose libraries it cannot read.
const LOADER_FAILED: i32 = 127;

/// Calls on files below `directories` and all calls that only such files get; reads as well.
fn failures(place: &Place, arguments: &[String], directories: &[&Path], random: &mut Random) -> Vec<Failure> {
    // `write` is for the terminal and `writev` is not used: those who fail are looked at elsewhere.
    let mut calls: Vec<&str> = MUTATING.iter().copied().filter(|call| !matches!(*call, "write" | "writev")).collect();
    calls.extend(["openat", "pread64"]);
    let trace = strace::trace(place, &calls, arguments);
    let is_ours =
        |line: &str| !line.contains("openat(") || directories.iter().any(|directory| strace::names(line, directory));
    let all = strace::places(&trace, is_ours);
    let (syncs, others): (Vec<At>, Vec<At>) = all.into_iter().partition(|at| at.call.contains("sync"));
    let count = sample_size(30);
    let chosen = [strace::sample(syncs, count / 3, random), strace::sample(others, count - count / 3, random)].concat();
    let failure = |at: At| {
        let errors = errors_of(&at.call);
        let errno = errors[random.below(errors.len())];
        Failure { at, errno, stays: errno != "EIO" && random.below(2) == 0 }
    };
    chosen.into_iter().map(failure).collect()
}

fn assert_says_full(ran: &Ran, failure: &Failure) {
    if failure.errno != "EIO" {
        assert!(ran.stderr.contains("\nhint: ") && ran.stderr.contains("full"), "{failure}: no hint: {ran}");
    }
}

#[test]
fn a_backup_whose_calls_fail() {
    if !strace::is_usable("errno_backup") {
        return;
    }
    let place = Place::new("errno_backup");
    let arguments = place.parity_backup_arguments();
    let earlier = place.backup_label(&arguments);
    let stored = place.stripe_directories();
    let directories = [place.repo(), stored[0].clone(), stored[1].clone()];
    let directories: Vec<&Path> = directories.iter().map(std::path::PathBuf::as_path).collect();
    let mut random = Random::for_test("errno_backup");
    let chosen = failures(&place, &arguments, &directories, &mut random);
    place.forget_sets_but(Some(&earlier));
    let mut failed_count = 0;
    for failure in &chosen {
        let ran = failure.run(&place, &arguments);
        let new_sets: Vec<String> = place.complete_sets().into_iter().filter(|label| *label != earlier).collect();
        match ran.code {
            Some(0) => new_sets.iter().for_each(|label| place.assert_sound(label)),
            // Counted for each thread alone, the first calls are also those of the loader: the command never began.
            Some(LOADER_FAILED) => {}
            Some(code) => {
                failed_count += 1;
                // Other threads open and read files of the source with the same numbers.
                let may_be_source = matches!(failure.at.call.as_str(), "openat" | "pread64");
                assert!(code == 30 || may_be_source && code == 20, "{failure}: {ran}");
                ran.assert_error_text();
                if code == 30 {
                    assert_says_full(&ran, failure);
                }
                assert!(new_sets.is_empty(), "{failure}: listed as complete: {new_sets:?}");
                // What cannot be removed, or of which it cannot be read whose it is, is left to the next backup.
                if matches!(failure.at.call.as_str(), "unlink" | "rmdir" | "fsync" | "openat" | "flock" | "pread64") {
                    place.backup_label(&arguments);
                }
                place.assert_no_leftovers_after(&format!("{failure}: {ran}"));
            }
            None => panic!("{failure}: {ran}"),
        }
        if matches!(failure.at.call.as_str(), "fdatasync" | "pwrite64") {
            assert!(ran.code != Some(0) || !new_sets.is_empty(), "{failure}: neither an error nor a set: {ran}");
        }
        place.assert_server_is_free();
        place.forget_sets_but(Some(&earlier));
    }
    eprintln!("errno_backup: {failed_count} of {} failed", chosen.len());
    place.assert_sound(&earlier);
    place.backup_label(&arguments);
    place.assert_no_leftovers();
}

#[test]
fn a_sync_of_stored_bytes_that_fails_is_never_tried_again() {
    if !strace::is_usable("errno_sync") {
        return;
    }
    let place = Place::new("errno_sync");
    let arguments = place.backup_arguments();
    let earlier = place.backup_label(&arguments);
    // Each object is synced once by the thread that commits: the n-th of them fails, the ones after it would work.
    let trace = strace::trace(&place, &["fdatasync"], &arguments);
    for at in strace::places(&trace, |_| true) {
        place.forget_sets_but(Some(&earlier));
        let ran = inject(&place, &at.call, "error=EIO", &at.number.to_string(), &arguments);
        ran.assert_error(30, &["Input/output error"]);
        assert_eq!(place.complete_sets(), std::slice::from_ref(&earlier), "{at}");
        place.assert_no_leftovers();
    }
}

#[test]
fn a_restore_whose_calls_fail() {
    if !strace::is_usable("errno_restore") {
        return;
    }
    let place = Place::new("errno_restore");
    let label = place.backup_label(&place.striped_backup_arguments());
    let target = place.directory.join("target");
    let arguments = place.restore_arguments(&target);
    let mut random = Random::for_test("errno_restore");
    let chosen = failures(&place, &arguments, &[&target, &place.repo()], &mut random);
    let mut failed_count = 0;
    for failure in &chosen {
        std::fs::remove_dir_all(&target).ok();
        let ran = failure.run(&place, &arguments);
        match ran.code {
            Some(0) => place.assert_whole(&target),
            // Counted for each thread alone, the first calls are also those of the loader: the command never began.
            Some(LOADER_FAILED) => {}
            Some(code) => {
                failed_count += 1;
                let may_be_repository = matches!(failure.at.call.as_str(), "openat" | "pread64" | "flock");
                assert!(code == 60 || may_be_repository && code == 30, "{failure}: {ran}");
                ran.assert_error_text();
                if code == 60 {
                    assert_says_full(&ran, failure);
                }
                if target.join("global/pg_control").exists() {
                    // Only the very end may fail after pg_control: the sync of its name, and the marker's removal.
                    place.assert_whole(&target);
                } else {
                    place.run_well(&arguments);
                    place.assert_whole(&target);
                }
            }
            None => panic!("{failure}: {ran}"),
        }
    }
    eprintln!("errno_restore: {failed_count} of {} failed", chosen.len());
    place.assert_sound(&label);
}

#[test]
fn a_restore_whose_write_back_fails_has_no_control_file() {
    if !strace::is_usable("errno_syncfs") {
        return;
    }
    let place = Place::new("errno_syncfs");
    place.run_well(&place.backup_arguments());
    let target = place.directory.join("target");
    let arguments = place.restore_arguments(&target);
    let ran = inject(&place, "syncfs", "error=EIO", "1", &arguments);
    ran.assert_error(60, &["Input/output error", &target.display().to_string(), "\nhint: "]);
    assert_does_not_start(&place, &target);
    place.run_well(&arguments);
    place.assert_whole(&target);
}
