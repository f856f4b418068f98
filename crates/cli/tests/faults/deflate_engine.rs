//! Who makes DEFLATE, through the command: each engine by flag, variable and file, and QATzip's refusals. QATzip is a
//! library of the tests' own; nothing here ran on its hardware.

use std::path::{Path, PathBuf};

use pagehaul_testkit::qatzip_stand_in::{QatzipBehaviour, build_qatzip};

use super::bench::{Place, Ran};

/// Runs with the stand-in where the loader finds it.
fn run_beside(place: &Place, library: Option<&Path>, arguments: &[&str]) -> Ran {
    let mut all = place.backup_arguments();
    all.extend(arguments.iter().map(|word| (*word).to_owned()));
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let mut command = place.pagehaul(&all);
    if let Some(library) = library {
        command.env("LD_LIBRARY_PATH", library.parent().unwrap());
    }
    Ran::of(&mut command)
}

fn stand_in(place: &Place, behaviour: QatzipBehaviour) -> Option<PathBuf> {
    let directory = place.directory.join(format!("{behaviour:?}"));
    std::fs::create_dir(&directory).unwrap();
    build_qatzip(&directory, behaviour)
}

fn engine_of(ran: &Ran) -> String {
    assert_eq!(ran.code, Some(0), "{ran}");
    ran.json()["deflate_engine"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn qatzip_makes_what_every_restore_reads() {
    let place = Place::new("deflate_qat");
    let Some(library) = stand_in(&place, QatzipBehaviour::Hardware) else { return };
    let asked = ["--compression", "deflate:1", "--deflate-engine", "qat", "--json"];
    let ran = run_beside(&place, Some(&library), &asked);
    assert_eq!(engine_of(&ran), "qat (hardware)");
    // Restored where there is no QATzip.
    let label = ran.json()["label"].as_str().unwrap().to_owned();
    place.assert_restores(&label);
    let repo = place.repo().display().to_string();
    let info = place.run_well(&["info", "--repo", &repo].map(str::to_owned));
    assert!(info.stdout.contains("deflate:1@qat"), "{info}");

    // Auto does not take it, though it is there.
    let ran = run_beside(&place, Some(&library), &["--compression", "deflate:1", "--json"]);
    assert!(["isal", "libdeflate"].contains(&engine_of(&ran).as_str()), "{ran}");
    // QATzip in software says so, to people too.
    let library = stand_in(&place, QatzipBehaviour::Software).unwrap();
    let ran = run_beside(&place, Some(&library), &["--compression", "deflate:9@qat"]);
    assert_eq!(ran.code, Some(0), "{ran}");
    let text = "deflate:9 by qat (QATzip's own software: no QAT device was found (QATzip status 11))";
    assert!(ran.stderr.contains(text), "{ran}");
}

#[test]
fn an_engine_that_cannot_work_stops_the_backup_before_it_begins() {
    let place = Place::new("deflate_refused");
    let asked = ["--compression", "deflate:1", "--deflate-engine", "qat"];
    let hint = "--deflate-engine auto";
    let ran = run_beside(&place, None, &asked);
    if ran.code != Some(0) {
        ran.assert_error(10, &["use QATzip for deflate", "libqatzip.so.3", hint]);
    }
    if let Some(library) = stand_in(&place, QatzipBehaviour::NoDevice) {
        let ran = run_beside(&place, Some(&library), &asked);
        ran.assert_error(10, &["no QAT device was found (QATzip status -101)", hint]);
        let library = stand_in(&place, QatzipBehaviour::Refuses).unwrap();
        let ran = run_beside(&place, Some(&library), &asked);
        ran.assert_error(10, &["it refuses the parameters (QATzip status -1)", hint]);
    }
    let ran = run_beside(&place, None, &["--compression", "deflate:10", "--deflate-engine", "qat"]);
    ran.assert_error(10, &["QATzip has no level 10", "use level 1 to 9, or libdeflate"]);
    let ran = run_beside(&place, None, &["--deflate-engine", "zlib"]);
    ran.assert_error(2, &["\"zlib\" as DEFLATE engine", "valid are auto", "isal, libdeflate and qat"]);
    assert!(place.complete_sets().is_empty());
    place.assert_server_is_free();
}

#[test]
fn the_engine_is_a_setting_like_any_other() {
    let place = Place::new("deflate_setting");
    let settings = place.directory.join("pagehaul.toml");
    std::fs::write(&settings, "[backup]\ncompression = \"deflate:1\"\ndeflate-engine = \"libdeflate\"\n").unwrap();
    let settings = settings.display().to_string();
    let by_file = run_beside(&place, None, &["--config", &settings, "--json"]);
    assert_eq!(engine_of(&by_file), "libdeflate");
    // What --compression names itself wins, and codecs without engines go their own way.
    let named = run_beside(&place, None, &["--config", &settings, "--json", "--compression", "lz4"]);
    assert_eq!(engine_of(&named), "");
}

/// A device that gets bits wrong costs no backup: what it made is decoded before it is written.
#[test]
fn f54_a_device_that_gets_bits_wrong_is_told_and_costs_nothing() {
    let place = Place::new("f54_wrong_bits");
    let Some(library) = stand_in(&place, QatzipBehaviour::WrongBits) else { return };
    let asked = ["--compression", "deflate:1@qat", "--json"];
    let ran = run_beside(&place, Some(&library), &asked);
    assert_eq!(ran.code, Some(0), "{ran}");
    let report = ran.json();
    let notes = report["notes"].to_string();
    assert!(notes.contains("did not decode to the content") && notes.contains("test them"), "{ran}");
    let label = report["label"].as_str().unwrap();
    place.assert_sound(label);
    place.assert_restores(label);
    // So it was no harmless device: who does without is not warned, and has lost data.
    let trust = || run_beside(&place, Some(&library), &[&asked[..], &["--decode-back", "off"]].concat());
    // The WAL alone is read back before the commit, and it may be that which was hit.
    let is_found = |ran: &Ran| {
        ran.code == Some(40) && {
            ran.assert_error(40, &["read the WAL of the set back", "\nhint: nothing of this set is kept"]);
            true
        }
    };
    let trusting = (0..30).map(|_| trust()).find(|ran| !is_found(ran)).expect("the WAL is not hit each time");
    assert_eq!(trusting.code, Some(0), "{trusting}");
    let label = trusting.json()["label"].as_str().unwrap().to_owned();
    let repo = place.repo().display().to_string();
    let verified = place.run(&["verify", "main", "--set", &label, "--repo", &repo].map(str::to_owned));
    assert!(verified.code == Some(40) && verified.stderr.contains("cannot be restored whole"), "{verified}");
}
