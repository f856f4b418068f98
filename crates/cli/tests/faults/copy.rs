//! `copy` on the command line: killed at any change it makes, refused, and into an object store and back.

use std::collections::BTreeSet;
use std::path::PathBuf;

use pagehaul_testkit::damage::{differences, files_below, flip_bit, tree};
use pagehaul_testkit::s3_server::S3Server;

use super::bench::{Place, Ran, Random, sample_size};
use super::strace::{self, MUTATING};

/// Where a copy goes.
fn places(place: &Place) -> [PathBuf; 2] {
    [place.directory.join("copy"), place.directory.join("copied-stripes")]
}

/// The arguments of a copy to these places.
fn arguments(place: &Place) -> Vec<String> {
    let [to, stripes] = places(place).map(|path| path.display().to_string());
    let repo = place.repo().display().to_string();
    ["copy", "main", "--repo", &repo, "--to", &to, "--stripe-to", &stripes, "--json"].map(str::to_owned).into()
}

/// What is stored, but for what readers leave that were killed, and for the marker or fence of one that was killed half-way:
/// both are in nobody's way.
fn stored(place: &Place) -> BTreeSet<PathBuf> {
    let all = places(place).into_iter().filter(|path| path.exists()).flat_map(|path| files_below(&path));
    let is_of_copy = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        !["reader-", ".pagehaul-repository", ".identity-"].iter().any(|begin| name.starts_with(begin))
    };
    all.filter(is_of_copy).collect()
}

fn start_over(place: &Place) {
    for path in places(place).iter().filter(|path| path.exists()) {
        std::fs::remove_dir_all(path).unwrap();
    }
}

fn complete(place: &Place) -> Vec<String> {
    let to = places(place)[0].display().to_string();
    let ran = Ran::of(&mut place.pagehaul(&["info", "main", "--json", "--repo", &to]));
    if ran.code != Some(0) {
        return Vec::new();
    }
    let sources = ran.json();
    let sets = sources.as_array().unwrap().iter().flat_map(|source| source["sets"].as_array().unwrap().clone());
    sets.filter(|set| set["state"] == "complete").map(|set| set["label"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn f06_a_copy_that_is_killed_anywhere_leaves_no_set_that_looks_complete() {
    if !strace::is_usable("kill_copy") {
        return;
    }
    let place = Place::new("kill_copy");
    let backup = place.striped_backup_arguments();
    let labels = [
        place.backup_label(&backup),
        place.backup_label(&[&backup[..], &["--type", "incr"].map(str::to_owned)].concat()),
    ];
    let originals = place.stored_paths();
    let arguments = arguments(&place);
    let trace = strace::trace(&place, MUTATING, &arguments);
    let whole = stored(&place);
    assert_eq!(complete(&place), labels);
    start_over(&place);
    let all = strace::places(&trace, |_| true);
    let all_count = all.len();
    let chosen = strace::sample(all, sample_size(16), &mut Random::for_test("kill_copy"));
    let mut killed_count = 0;
    for at in &chosen {
        killed_count += usize::from(strace::kill(&place, at, &arguments));
        let to = places(&place)[0].display().to_string();
        for label in complete(&place) {
            let verify = ["verify", "main", "--repo", &to, "--set", &label].map(str::to_owned);
            place.run_well(&verify);
        }
        let report = place.run_well(&arguments).json();
        let done = [&report["set_copied_count"], &report["set_skipped_count"]].map(|count| count.as_u64().unwrap());
        assert_eq!(done.iter().sum::<u64>(), 2, "killed at {at}: {report}");
        assert_eq!(stored(&place), whole, "killed at {at}");
        start_over(&place);
    }
    eprintln!("kill_copy: {killed_count} kills at {} of {all_count} places", chosen.len());
    assert!(killed_count * 2 > chosen.len(), "most places are reached");
    let is_lease = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("reader-");
    let left: Vec<_> = place.stored_paths().into_iter().filter(|path| !is_lease(path)).collect();
    assert_eq!(left, originals, "the original is as it was");
    labels.iter().for_each(|label| place.assert_sound(label));
}

#[test]
fn what_is_wrong_with_a_copy_is_an_error_with_a_code() {
    let place = Place::new("copy_refused");
    place.backup_label(&place.backup_arguments());
    let repo = place.repo().display().to_string();
    let run = |more: &[&str]| {
        let words = [&["copy", "main", "--repo", &repo], more].concat();
        place.run(&words.into_iter().map(str::to_owned).collect::<Vec<_>>())
    };
    run(&[]).assert_error(2, &["--to"]);
    run(&["--to", &repo]).assert_error(2, &["the same repository", "hint: "]);
    run(&["--to", "NUL"]).assert_error(2, &["it keeps nothing"]);
    run(&["--to", "other", "--set", "20200101-000000F"]).assert_error(30, &["20200101-000000F"]);
    run(&["--to", "other", "--max-memory", "1MiB"]).assert_error(10, &["transfer buffers"]);
    let copied = run(&["--to", "other", "--no-wal", "--json"]);
    assert_eq!(copied.code, Some(0), "{copied}");
    let report = copied.json();
    assert!(report["wal"].is_null() && report["set_copied_count"] == 1, "{report}");
    let ceiling = report["memory_ceiling_bytes"].as_u64().unwrap();
    assert!(report["rss_bytes_max"].as_u64().unwrap() < ceiling + (32 << 20), "{report}");
    let quiet = run(&["--to", "other", "--quiet"]);
    assert_eq!((quiet.code, quiet.stderr.as_str(), quiet.stdout.as_str()), (Some(0), "", ""), "{quiet}");
    // Damage found is code 40, and the report tells what was copied all the same.
    let label = place.complete_sets()[0].clone();
    let stripe = place.repo().join("main/sets").join(label).join("stripe-0000.phs");
    flip_bit(&stripe, 3_000, 1);
    let damaged = run(&["--to", "third"]);
    damaged.assert_error(40, &["frame 0 at byte 512", "hint: ", "0 backups copied", "1 NOT copied"]);
    assert!(
        !place.directory.join("third/main/sets").exists()
            || files_below(&place.directory.join("third/main/sets")).is_empty()
    );
}

#[test]
fn a_copy_goes_into_an_object_store_and_back() {
    let place = Place::new("copy_s3");
    let server = S3Server::start(&["bucket"]);
    let run = |words: &[&str]| {
        let ran = Ran::of(place.pagehaul(words).envs(server.environment()));
        assert_eq!(ran.code, Some(0), "{words:?}: {ran}");
        ran
    };
    let backup = place.backup_arguments();
    place.backup_label(&backup);
    place.backup_label(&[&backup[..], &["--type", "incr", "--stripes", "2"].map(str::to_owned)].concat());
    let cluster = &place.bench.cluster;
    let name = cluster.value("SELECT pg_walfile_name(pg_current_wal_insert_lsn())");
    cluster.run(&["SELECT pg_create_restore_point('here')", "SELECT pg_switch_wal()"]);
    // Outside of pg_wal no helper is asked.
    let segment = place.directory.join(&name);
    std::fs::copy(cluster.server.data_directory().join("pg_wal").join(&name), &segment).unwrap();
    let (repo, segment) = (place.repo().display().to_string(), segment.display().to_string());
    run(&["wal", "push", "--repo", &repo, "--source", "main", &segment]);

    let bucket = server.target("bucket/some/prefix");
    let counts = |words: &[&str]| {
        let report = run(words).json();
        let counts = ["set_copied_count", "set_skipped_count"].map(|key| report[key].as_u64().unwrap());
        (counts, ["copied_count", "skipped_count"].map(|key| report["wal"][key].as_u64().unwrap()))
    };
    let there = ["copy", "main", "--repo", &repo, "--to", &bucket, "--json"];
    assert_eq!(counts(&there), ([2, 0], [1, 0]));
    assert_eq!(counts(&there), ([0, 2], [0, 1]));
    run(&["verify", "main", "--repo", &bucket]);
    let back = place.directory.join("back").display().to_string();
    let from = ["copy", "main", "--repo", &bucket, "--to", &back, "--json"];
    assert_eq!(counts(&from), ([2, 0], [1, 0]));
    let [one, two] = ["repo/main", "back/main"].map(|path| tree(&place.directory.join(path)));
    let differ: Vec<_> = differences(&one, &two).into_iter().filter(|line| !line.starts_with("identity-")).collect();
    assert_eq!(differ, Vec::<String>::new(), "all came back byte for byte");
}
