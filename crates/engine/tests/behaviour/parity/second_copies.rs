//! Manifest and file table of a set with parity are there twice.

use std::path::{Path, PathBuf};

use pagehaul_engine::error::ErrorKind;
use pagehaul_testkit::damage::flip_bit;
use pagehaul_testkit::random::Random;

use super::{Case, sets};

/// The objects of the set that have second copies.
fn copied_objects(case: &Case<'_>) -> [PathBuf; 2] {
    let home = case.rows().parent().unwrap().to_owned();
    [home.join("manifest.json"), home.join("files.table")]
}

fn copy_number(path: &Path, number: u32) -> PathBuf {
    let (stem, extension) = path.to_str().unwrap().rsplit_once('.').unwrap();
    PathBuf::from(format!("{stem}-r{number}.{extension}"))
}

/// A bit anywhere in what says what the set is, or in its second copy: nothing is lost, and verify tells.
#[test]
fn f25_a_bit_flipped_in_the_manifest_or_the_file_table_is_harmless() {
    let sets = sets();
    let case = sets.case();
    let mut random = Random::new("a flipped bit in what says what the set is");
    for object in copied_objects(&case) {
        assert!(
            std::fs::read(&object).unwrap() == std::fs::read(copy_number(&object, 1)).unwrap(),
            "{}",
            object.display()
        );
        for path in [object.clone(), copy_number(&object, 1)] {
            let size = std::fs::metadata(&path).unwrap().len();
            for byte in (0..size).step_by(size as usize / 40 + 1).chain([size - 1]) {
                let bit = random.below(8) as u8;
                flip_bit(&path, byte, bit);
                let report = case.verify();
                let what = format!("bit {bit} of byte {byte} of {}: {report:?}", path.display());
                assert!(!report.sound && report.restorable, "{what}");
                let [problem] = &report.stripe_problems[..] else { panic!("{what}") };
                assert!(
                    problem.by_parity && problem.cause.contains(path.file_name().unwrap().to_str().unwrap()),
                    "{what}"
                );
                flip_bit(&path, byte, bit);
            }
        }
    }
    assert!(case.verify().sound);
}

#[test]
fn f25_a_damaged_manifest_and_file_table_are_read_from_their_copies_and_repaired() {
    let sets = sets();
    for which in [&[0][..], &[1], &[0, 1]] {
        let case = sets.case();
        let originals: Vec<Vec<u8>> = copied_objects(&case).iter().map(|path| std::fs::read(path).unwrap()).collect();
        let hit: Vec<PathBuf> = which.iter().map(|which| copied_objects(&case)[*which].clone()).collect();
        for path in &hit {
            std::fs::write(path, b"{}").unwrap();
        }
        // Stripes too: parity is read by way of the copies.
        std::fs::remove_file(case.member(1)).unwrap();
        case.expect_degraded("read from the copies");
        let report = case.repair();
        assert!(report.whole && report.repaired.len() == hit.len() + 1, "{report:?}");
        for (path, which) in hit.iter().zip(which) {
            assert!(std::fs::read(copy_number(path, 2)).unwrap() == originals[*which]);
        }
        let report = case.verify();
        assert!(report.sound && report.stripe_problems.is_empty(), "{report:?}");
        case.expect_restored("after the repair");
        assert!(case.repair().repaired.is_empty(), "there is nothing left to repair");
        // Now the first copy may go as well.
        for path in &hit {
            std::fs::write(copy_number(path, 1), b"").unwrap();
        }
        case.expect_degraded("read from the second copies");
    }
}

#[test]
fn f25_a_manifest_or_file_table_without_a_sound_copy_is_damage_and_one_that_is_gone_is_no_set() {
    let sets = sets();
    for which in 0..2 {
        let case = sets.case();
        let path = copied_objects(&case)[which].clone();
        std::fs::write(&path, b"{}").unwrap();
        std::fs::write(copy_number(&path, 1), b"{}").unwrap();
        let error = case.restore().unwrap_err();
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(error.kind() == ErrorKind::Damage && error.message().contains(name), "{error}");
    }
    // A copy alone commits nothing: an expire that was interrupted must not bring a set back.
    let case = sets.case();
    std::fs::remove_file(&copied_objects(&case)[0]).unwrap();
    assert_eq!(case.restore().unwrap_err().kind(), ErrorKind::Repository);
}
