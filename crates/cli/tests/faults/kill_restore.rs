//! A restore killed at any change it makes: the target either does not start or is whole, and running the restore
//! again brings it to its end.

use std::path::Path;

use super::bench::{Place, RESTORE_MARKER, Ran, Random, sample_size};
use super::strace::{self, MUTATING};

#[test]
fn killed_on_the_way_into_an_empty_directory() {
    if !strace::is_usable("kill_restore") {
        return;
    }
    let place = Place::new("kill_restore");
    place.run_well(&place.striped_backup_arguments());
    let target = place.directory.join("target");
    let arguments = place.restore_arguments(&target);
    let all = strace::places(&strace::trace(&place, MUTATING, &arguments), |_| true);
    let all_count = all.len();
    let chosen = strace::sample(all, sample_size(24), &mut Random::for_test("kill_restore"));
    let (mut unfinished_count, mut finished_count) = (0, 0);
    for at in &chosen {
        std::fs::remove_dir_all(&target).ok();
        if !strace::kill(&place, at, &arguments) {
            continue;
        }
        let again = if target.join("global/pg_control").exists() {
            finished_count += 1;
            place.assert_whole(&target);
            assert_refused_or_done(&place.run(&arguments), &target);
            place.assert_starts_whole(&target);
            continue;
        } else {
            unfinished_count += 1;
            assert_does_not_start(&place, &target);
            place.run(&arguments)
        };
        assert_eq!(again.code, Some(0), "killed at {at}, then: {again}");
        place.assert_whole(&target);
        assert!(!target.join(RESTORE_MARKER).exists(), "killed at {at}: the marker is still there");
    }
    eprintln!(
        "kill_restore: {} of {all_count} places: {unfinished_count} unfinished, {finished_count} finished",
        chosen.len()
    );
    assert!(unfinished_count * 2 > chosen.len(), "most places are reached");
}

fn assert_refused_or_done(again: &Ran, target: &Path) {
    if again.code != Some(0) {
        again.assert_error(60, &[&target.display().to_string(), "hint: "]);
    }
}

/// The server itself refuses the directory.
pub(crate) fn assert_does_not_start(place: &Place, target: &Path) {
    assert!(!target.join("global/pg_control").exists(), "{} has pg_control", target.display());
    let server = &place.bench.cluster.server;
    let program = server.install().bin_directory().join("postgres").display().to_string();
    // The time limit is for a server that starts after all.
    let output = server.run_tool("/usr/bin/timeout", &["20", &program, "-D", &target.display().to_string()]).unwrap();
    let code = output.status.code();
    assert!(!output.status.success() && code != Some(124), "a server starts on {}", target.display());
}
