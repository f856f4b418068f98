//! A delta restore killed at any change it makes: the old cluster is untouched or never starts, and the same command
//! again ends byte for byte where a fresh restore ends.

use std::path::Path;

use pagehaul_testkit::damage::{copy_tree, cut, differences, files_below, overwrite, tree};

use super::bench::{Place, RESTORE_MARKER, Random, sample_size};
use super::kill_restore::assert_does_not_start;
use super::strace::{self, MUTATING};

#[test]
fn killed_on_the_way_over_an_old_cluster() {
    if !strace::is_usable("kill_delta") {
        return;
    }
    let place = Place::new("kill_delta");
    place.run_well(&[place.striped_backup_arguments(), ["--frame-size", "64KiB"].map(str::to_owned).into()].concat());
    let (fresh, old) = (place.directory.join("fresh"), place.directory.join("old"));
    place.run_well(&place.restore_arguments(&fresh));
    let expected = tree(&fresh);
    copy_tree(&fresh, &old);
    spoil(&old);
    let old_tree = tree(&old);
    let target = place.directory.join("target");
    let arguments = [place.restore_arguments(&target), vec!["--delta".to_owned()]].concat();
    copy_tree(&old, &target);
    let all = strace::places(&strace::trace(&place, MUTATING, &arguments), |_| true);
    expect_fresh("untouched by kills", &expected, &target);
    let all_count = all.len();
    let chosen = strace::sample(all, sample_size(24), &mut Random::for_test("kill_delta"));
    let (mut unfinished_count, mut untouched_count, mut finished_count) = (0, 0, 0);
    for at in &chosen {
        std::fs::remove_dir_all(&target).unwrap();
        copy_tree(&old, &target);
        if !strace::kill(&place, at, &arguments) {
            continue;
        }
        if target.join("global/pg_control").exists() {
            let mut found = tree(&target);
            found.retain(|path, _| !path.escape_ascii().to_string().contains(RESTORE_MARKER));
            if differences(&old_tree, &found).is_empty() {
                untouched_count += 1;
            } else {
                finished_count += 1;
                found.remove(b"global/pg_control.pagehaul-aside".as_slice());
                let difference = differences(&expected, &found);
                assert!(difference.is_empty(), "killed at {at}: half old, half new, and it starts: {difference:?}");
            }
        } else {
            unfinished_count += 1;
            assert_does_not_start(&place, &target);
        }
        let again = place.run(&arguments);
        assert_eq!(again.code, Some(0), "killed at {at}, then: {again}");
        expect_fresh(&format!("killed at {at}"), &expected, &target);
    }
    eprintln!(
        "kill_delta: {} of {all_count} places: {untouched_count} untouched, {unfinished_count} unfinished, \
         {finished_count} finished",
        chosen.len()
    );
    assert!(unfinished_count * 2 > chosen.len(), "most places are reached");
    place.assert_starts_whole(&target);
}

/// Changes of every kind.
fn spoil(old: &Path) {
    let mut files = files_below(&old.join("base"));
    files.sort_by_key(|file| std::fs::metadata(file).unwrap().len());
    for (number, file) in files.iter().rev().take(40).enumerate() {
        let length = std::fs::metadata(file).unwrap().len();
        match number % 5 {
            0 => overwrite(file, length / 2, b"flipped"),
            1 => cut(file, length / 3),
            2 => overwrite(file, length, &[1; 70_000]),
            3 => std::fs::remove_file(file).unwrap(),
            _ => std::fs::write(file.with_file_name(format!("extra{number}")), [2; 9000]).unwrap(),
        }
    }
    std::fs::remove_dir_all(old.join("pg_xact")).unwrap();
    std::fs::create_dir_all(old.join("pg_extra/deep")).unwrap();
    std::fs::write(old.join("pg_extra/deep/file"), b"x").unwrap();
    std::fs::write(old.join("recovery.signal"), b"").unwrap();
}

fn expect_fresh(what: &str, expected: &std::collections::BTreeMap<Vec<u8>, String>, target: &Path) {
    let difference = differences(expected, &tree(target));
    assert!(difference.is_empty(), "{what}: {difference:?}");
}
