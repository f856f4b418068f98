//! Tuning as people call it: killed and called again, its answer used by the next backup, its history, bad input.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::bench::{Place, Ran};

/// A trial has begun long before that, on any machine.
const TRIAL_BEGINS_WITHIN: Duration = Duration::from_secs(120);

/// A small search into the place's repository, with a history of its own.
fn arguments(place: &Place, more: &[&str]) -> Vec<String> {
    let backup = place.backup_arguments();
    let words = [
        "--compression",
        "none,lz4,zstd:3",
        "--readers",
        "2",
        "--encoders",
        "2",
        "--stripes",
        "1,2",
        "--transfer-size",
        "1MiB",
        "--stripe-readers",
        "2",
        "--decoders",
        "2",
        "--file-writers",
        "2",
        "--sample-size",
        "16MiB",
        "--repeat",
        "1",
    ];
    let history = ["--history".to_owned(), history(place).display().to_string()];
    let own = words.iter().chain(more).map(|word| (*word).to_owned());
    std::iter::once("tune".to_owned()).chain(backup.into_iter().skip(1)).chain(own).chain(history).collect()
}

fn history(place: &Place) -> PathBuf {
    place.directory.join("history.sqlite")
}

fn scratch_directories(place: &Place) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(place.repo()).into_iter().flatten().flatten();
    let is_scratch = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with(".pagehaul-tune-");
    entries.map(|entry| entry.path()).filter(is_scratch).collect()
}

#[test]
fn killed_in_a_trial_and_called_again_and_never_twice_at_once() {
    let place = Place::new("tune_kill");
    let earlier = place.backup_label(&place.backup_arguments());
    let words = arguments(&place, &[]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut child = place.pagehaul(&words).stderr(std::process::Stdio::null()).spawn().unwrap();
    let started = Instant::now();
    while !scratch_directories(&place).iter().any(|scratch| scratch.join("repo").exists()) {
        assert!(started.elapsed() < TRIAL_BEGINS_WITHIN, "no trial began");
        assert!(child.try_wait().unwrap().is_none(), "it ended before a trial began");
        std::thread::sleep(Duration::from_millis(5));
    }
    // At the same task a second one would write into the same session: it is told who is there.
    let second = place.run(&arguments(&place, &[]));
    assert_eq!(second.code, Some(50), "{second}");
    assert!(second.stderr.contains(&format!("process {} is at the same task", child.id())), "{second}");
    let anew = place.run(&arguments(&place, &["--anew"]));
    assert_eq!(anew.code, Some(50), "{anew}");
    assert!(child.try_wait().unwrap().is_none(), "the first one ended before the second was refused");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(scratch_directories(&place).len(), 1, "what a killed run leaves");
    place.assert_server_is_free();
    place.assert_sound(&earlier);
    let ran = place.run_well(&arguments(&place, &[]));
    assert!(ran.stderr.contains("left by a run that was killed"), "{ran}");
    assert!(ran.stderr.contains("going on with the run"), "{ran}");
    assert!(ran.stderr.contains("recommended"), "{ran}");
    assert!(scratch_directories(&place).is_empty());
    place.assert_no_leftovers();
    place.assert_sound(&earlier);
}

#[test]
fn what_is_applied_is_used_by_the_next_backup() {
    let place = Place::new("tune_apply");
    let config = place.directory.join("own.toml");
    std::fs::write(&config, "# kept\n[backup]\ndescription = \"nightly\"\n").unwrap();
    let config = config.display().to_string();
    let report = place.directory.join("tune.html");
    let more =
        ["--objective", "size", "--apply", "--config", &config, "--report", &report.display().to_string(), "--json"];
    let mut arguments = arguments(&place, &more);
    // Smaller than the default, which is measured, too.
    arguments
        .iter_mut()
        .filter(|word| *word == "none,lz4,zstd:3")
        .for_each(|word| *word = "none,lz4,page:3".to_owned());
    let ran = place.run_well(&arguments);
    let done = ran.json();
    assert_eq!(done["recommendation"]["settings"]["compression"], "page:3", "the smallest of them");
    assert!(
        std::fs::read_to_string(&report).unwrap().to_lowercase().starts_with("<!doctype html>"),
        "the report is a page"
    );
    let text = std::fs::read_to_string(&config).unwrap();
    assert!(text.starts_with("# kept\n") && text.contains("nightly"), "{text}");
    let backup = [place.backup_arguments(), ["--config", &config, "--json"].map(str::to_owned).to_vec()].concat();
    let ran = place.run_well(&backup);
    let made = ran.json();
    let settings = &done["recommendation"]["settings"];
    assert_eq!((made["codec"].as_str(), made["level"].as_i64()), (Some("page"), Some(3)));
    assert_eq!(made["stripes"].as_array().unwrap().len() as u64, settings["stripes"].as_u64().unwrap());
    assert_eq!(made["buffer_count"], settings["buffer_count"]);
}

#[test]
fn every_run_is_in_the_history_and_none_depends_on_it() {
    let place = Place::new("tune_history");
    let file = history(&place).display().to_string();
    let with = |words: Vec<String>, file: &str| [words, vec!["--history".to_owned(), file.to_owned()]].concat();
    place.run_well(&with(place.backup_arguments(), &file));
    let target = place.directory.join("restored");
    place.run_well(&with(place.restore_arguments(&target), &file));
    let listed = place.run_well(&with(["tune", "history", "--csv"].map(str::to_owned).to_vec(), &file));
    let lines: Vec<&str> = listed.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{listed}");
    assert!(lines[1].contains("backup") && lines[2].contains("restore"), "{listed}");
    let table = place.run_well(&with(["tune", "history", "main"].map(str::to_owned).to_vec(), &file));
    assert_eq!(table.stdout.lines().count(), 3, "{table}");
    // A directory where the file should be.
    let ran = place.run_well(&with(place.backup_arguments(), &place.directory.display().to_string()));
    assert!(ran.stderr.contains("not in the history"), "{ran}");
    assert_eq!(place.complete_sets().len(), 2);
}

#[test]
fn bad_input_is_refused_before_anything_is_measured() {
    let place = Place::new("tune_input");
    let ran = place.run_well(&arguments(&place, &["--dry-run"]));
    assert!(ran.stderr.contains("nothing was touched") && !place.repo().exists(), "{ran}");
    for (words, part) in [
        (["--readers", "8-1"], "--readers"),
        (["--compression", "gzip:1"], "gzip"),
        (["--transfer-size", "1000"], "--transfer-size"),
        (["--rto", "soon"], "--rto"),
        (["--max-cpu", "200%"], "--max-cpu"),
        (["--objective", "fast"], "--objective"),
        (["--with", "tar"], "tar"),
        (["--grid", "half"], "half"),
        (["--sample-size", "1K"], "sample"),
    ] {
        let ran = Ran::of(&mut place.pagehaul(&[&["tune", "--repo", "r", "--pgdata", "p"], &words[..]].concat()));
        // The sample is looked at when there is a source.
        let ran = if words[0] == "--sample-size" { place.run(&arguments_with(&place, &words)) } else { ran };
        assert_eq!(ran.code, Some(2), "{words:?}: {ran}");
        assert!(ran.stderr.contains(part) && ran.stderr.contains("hint: "), "{words:?}: {ran}");
    }
    let ran = place.run(
        &["tune", "--repo", "NUL", "--pgdata"]
            .map(str::to_owned)
            .into_iter()
            .chain([pgdata(&place)])
            .collect::<Vec<_>>(),
    );
    assert_eq!(ran.code, Some(2), "{ran}");
}

fn pgdata(place: &Place) -> String {
    place.backup_arguments()[3].clone()
}

/// The usual arguments with one value replaced.
fn arguments_with(place: &Place, words: &[&str; 2]) -> Vec<String> {
    let mut all = arguments(place, &[]);
    let at = all.iter().position(|word| word == words[0]).unwrap();
    all[at + 1] = words[1].to_owned();
    all
}
