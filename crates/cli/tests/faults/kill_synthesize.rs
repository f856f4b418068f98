//! `synthesize` on the command line, and killed at any change it makes: the chain stays, nothing unfinished is listed as
//! complete, and the next one needs no hands.

use pagehaul_testkit::damage::files_below;

use super::bench::{Place, Random, sample_size};
use super::strace::{self, MUTATING};

/// A full set and an incremental one; the arguments of `synthesize` with stripes in other directories, and the labels.
fn chain(place: &Place) -> (Vec<String>, [String; 2]) {
    let backup = place.striped_backup_arguments();
    let incremental = [&backup[..], &["--type", "incr"].map(str::to_owned)].concat();
    let full = place.backup_label(&backup);
    place.bench.cluster.run(&[&format!("CREATE TABLE {} AS SELECT generate_series(1, 20000) AS i", table(place))]);
    let labels = [full, place.backup_label(&incremental)];
    place.bench.cluster.run(&[&format!("DROP TABLE {}", table(place))]);
    let words = ["synthesize", "main", "--repo", &place.repo().display().to_string(), "--stripes", "2", "--json"];
    let mut arguments: Vec<String> = words.map(str::to_owned).into();
    for directory in place.stripe_directories() {
        arguments.extend(["--stripe-to".to_owned(), directory.display().to_string()]);
    }
    (arguments, labels)
}

fn table(place: &Place) -> String {
    format!("of_{}", place.directory.file_name().unwrap().to_string_lossy())
}

#[test]
fn a_full_set_is_made_and_shown() {
    let place = Place::new("synthesize");
    let (arguments, labels) = chain(&place);
    let report = place.run_well(&arguments).json();
    let label = report["label"].as_str().unwrap().to_owned();
    assert!(label.ends_with('F') && report["kind"] == "full" && report["state"] == "complete", "{report}");
    assert_eq!(report["synthesized_from"], *labels[1]);
    assert_eq!(report["chain_prior"][0], *labels[0]);
    for key in ["elapsed_s", "source_bytes", "stored_bytes", "copied_bytes", "stages", "limit", "memory_ceiling_bytes"]
    {
        assert!(!report[key].is_null(), "{key} is not in {report}");
    }
    assert!(report["rss_bytes_max"].as_u64() < report["memory_ceiling_bytes"].as_u64().map(|sum| sum + (32 << 20)));
    let repo = place.repo().display().to_string();
    let info = |more: &[&str]| {
        let words = [&["info", "main", "--repo", &repo], more].concat();
        place.run_well(&words.into_iter().map(str::to_owned).collect::<Vec<_>>())
    };
    let listed = info(&["--json"]).json();
    let made = listed[0]["sets"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((made["label"].as_str(), made["kind"].as_str()), (Some(label.as_str()), Some("full")));
    assert_eq!(made["synthesized_from"]["label"], *labels[1]);
    assert!(info(&[]).stdout.contains("synthetic full"));
    assert!(info(&["--set", "latest"]).stdout.contains(&labels[1]));
    let again = place.run_well(&arguments);
    assert_eq!(again.json()["state"], "already full");
    assert_eq!(place.complete_sets().len(), 3);
    let expire = ["expire", "main", "--repo", &repo, "--keep-full", "1", "--confirm"].map(str::to_owned);
    place.run_well(&expire);
    assert_eq!(place.complete_sets(), std::slice::from_ref(&label));
    place.assert_no_leftovers();
    place.assert_restores(&label);
    let quiet = place.run_well(&[&arguments[..arguments.len()], &["--quiet".to_owned()]].concat());
    assert_eq!(quiet.stderr, "", "{quiet}");
    let mut wrong = arguments;
    wrong.extend(["--compression".to_owned(), "zip".to_owned()]);
    place.run(&wrong).assert_error(2, &["zip"]);
}

#[test]
fn killed_while_it_is_made() {
    if !strace::is_usable("kill_synthesize") {
        return;
    }
    let place = Place::new("kill_synthesize");
    let (arguments, labels) = chain(&place);
    let trace = strace::trace(&place, MUTATING, &arguments);
    start_over(&place, &labels);
    let all = strace::places(&trace, |_| true);
    let all_count = all.len();
    let chosen = strace::sample(all, sample_size(16), &mut Random::for_test("kill_synthesize"));
    let mut killed_count = 0;
    for at in &chosen {
        killed_count += usize::from(strace::kill(&place, at, &arguments));
        let complete = place.complete_sets();
        assert!(labels.iter().all(|label| complete.contains(label)), "killed at {at}: {complete:?}");
        for label in complete.iter().filter(|label| !labels.contains(label)) {
            // Killed after the commit.
            place.assert_sound(label);
        }
        let by_label = [&arguments[..], &["--set".to_owned(), labels[1].clone()]].concat();
        let made = place.run_well(&by_label).json()["label"].as_str().unwrap().to_owned();
        place.assert_sound(&made);
        // The lease of a reader that was killed is held by nobody, and goes with its set.
        for lease in files_below(&place.repo()) {
            if lease.file_name().is_some_and(|name| name.to_string_lossy().starts_with("reader-")) {
                std::fs::remove_file(lease).unwrap();
            }
        }
        place.assert_no_leftovers_after(&format!("killed at {at}"));
        start_over(&place, &labels);
    }
    eprintln!("kill_synthesize: {killed_count} kills at {} of {all_count} places", chosen.len());
    assert!(killed_count * 2 > chosen.len(), "most places are reached");
    for label in &labels {
        place.assert_sound(label);
    }
    place.assert_restores(&labels[1]);
}

/// Removes the sets that were made.
fn start_over(place: &Place, kept: &[String]) {
    for directory in place.stripe_directories().into_iter().chain([place.repo()]) {
        for entry in std::fs::read_dir(directory.join("main/sets")).into_iter().flatten().flatten() {
            if !kept.iter().any(|label| entry.file_name() == **label) {
                std::fs::remove_dir_all(entry.path()).unwrap();
            }
        }
    }
}
