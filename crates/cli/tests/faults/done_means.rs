//! The whole way on the command line: a busy cluster, a striped backup, verify, restore, PostgreSQL's own checks, and
//! every row as it was.

use std::path::Path;
use std::process::Stdio;

use pagehaul_engine::source::postgres::scratch_server::InitOptions;
use pagehaul_testkit::cluster::{Cluster, QUICK, default_install, work_directory};
use pagehaul_testkit::damage::files_below;
use serde_json::Value;

use super::bench::{Place, Ran};

const BACKUP_KEYS: &[&str] = &[
    "label",
    "kind",
    "source",
    "elapsed_s",
    "source_bytes",
    "stored_bytes",
    "ratio",
    "throughput_bytes_per_s",
    "codec",
    "level",
    "stripes",
    "readers",
    "encoders",
    "writers",
    "buffer_count",
    "transfer_size_bytes",
    "memory_ceiling_bytes",
    "rss_bytes_max",
    "cpu_user_s",
    "cpu_system_s",
    "stages",
    "limit",
    "start_lsn",
    "stop_lsn",
    "timeline",
    "bad_pages",
    "lost_file_count",
    "lost_files",
];
const RESTORE_KEYS: &[&str] = &[
    "label",
    "source",
    "target_dir",
    "elapsed_s",
    "restored_bytes",
    "stored_bytes",
    "throughput_bytes_per_s",
    "readers",
    "decoders",
    "file_writers",
    "buffer_count",
    "transfer_size_bytes",
    "memory_ceiling_bytes",
    "rss_bytes_max",
    "cpu_user_s",
    "cpu_system_s",
    "stages",
    "limit",
    "stop_lsn",
    "timeline",
];
const STAGE_KEYS: &[&str] = &["busy_s", "wait_input_s", "wait_output_s", "bytes"];

fn assert_keys(value: &Value, keys: &[&str]) {
    for key in keys {
        assert!(!value[key].is_null(), "{key} is not in {value}");
    }
}

fn assert_stages(report: &Value, stages: &[&str]) {
    for stage in stages {
        assert_keys(&report["stages"][stage], STAGE_KEYS);
    }
    assert_keys(&report["limit"], &["stage", "share", "advice"]);
}

/// Runs a tool of PostgreSQL against `cluster` and expects it to be content.
fn tool(cluster: &Cluster, name: &str, arguments: &[&str]) {
    if !cluster.server.install().has_tool(name) {
        eprintln!("SKIPPED: {name} is not in {}", cluster.server.install().bin_directory().display());
        return;
    }
    let output = cluster.server.run_tool(name, arguments).unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
}

/// What pgbench keeps equal in every transaction: the sums of all three kinds of balances and of the history.
fn assert_ledger_is_consistent(copy: &Cluster) {
    let sums = copy.value(
        "SELECT (SELECT sum(abalance) FROM pgbench_accounts) || ' ' || (SELECT sum(bbalance) FROM pgbench_branches) || ' ' \
         || (SELECT sum(tbalance) FROM pgbench_tellers) || ' ' || (SELECT coalesce(sum(delta), 0) FROM pgbench_history)",
    );
    let mut sums = sums.split(' ');
    let first = sums.next().unwrap().to_owned();
    assert!(sums.all(|sum| sum == first), "accounts: {first}");
}

#[test]
fn a_busy_cluster_comes_back() {
    let place = Place::new("done_means");
    let work = work_directory();
    let cluster = Cluster::start_with(&default_install(), work.path(), &InitOptions::default(), QUICK);
    cluster.load_typed_tables(20_000);
    let still = cluster.digests();
    tool(&cluster, "pgbench", &["-i", "-q", "-s", "5", "postgres"]);
    let repo = place.repo().display().to_string();
    let [stripes_b, stripes_c] = place.stripe_directories().map(|directory| directory.display().to_string());
    let pgdata = cluster.server.data_directory().display().to_string();

    let stop = place.directory.join("stop");
    let ran = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.exists() {
                tool(&cluster, "pgbench", &["-n", "-c", "2", "-T", "1", "postgres"]);
            }
        });
        let words = [
            "backup",
            "--pgdata",
            &pgdata,
            "--connection",
            "user=postgres",
            "--repo",
            &repo,
            "--stripe-to",
            &stripes_b,
            "--stripe-to",
            &stripes_c,
            "--stripes",
            "4",
            "--compression",
            "zstd:3",
            "--max-rate",
            "60MB/s",
            "--description",
            "before the change",
            "--json",
        ];
        let ran = place.run(&words.map(str::to_owned));
        std::fs::write(&stop, "").unwrap();
        ran
    });
    assert_eq!(ran.code, Some(0), "{ran}");
    let report = ran.json();
    assert_keys(&report, BACKUP_KEYS);
    assert_stages(&report, &["readers", "encoders", "writers"]);
    assert_eq!((&report["codec"], &report["level"], &report["kind"]), (&"zstd".into(), &3.into(), &"full".into()));
    assert!(ran.stderr.contains("next: pagehaul") || ran.stderr.contains("pagehaul restore"), "{ran}");
    check_stripes(&report, &[&stripes_b, &stripes_c]);

    let verified = place.run_well(&["verify", "--repo", &repo, "--json"].map(str::to_owned)).json();
    assert_eq!(verified["sound"], true);
    check_info(&place, &report);

    let target = place.directory.join("target");
    let restored = place.run_well(&[place.restore_arguments(&target), vec!["--json".into()]].concat()).json();
    assert_keys(&restored, RESTORE_KEYS);
    assert_stages(&restored, &["stripe_readers", "decoders", "file_writers"]);
    place.assert_whole(&target);
    let copy = cluster.adopt(&target);
    let tables = copy.digests();
    for (table, digest) in &still {
        assert_eq!(tables.get(table), Some(digest), "{table}");
    }
    assert_ledger_is_consistent(&copy);
    copy.run(&["CREATE EXTENSION amcheck"]);
    tool(&copy, "pg_amcheck", &["--heapallindexed", "-d", "postgres"]);
}

/// Four stripes in turn over the two directories, each as large as the report says.
fn check_stripes(report: &Value, directories: &[&str]) {
    let stripes = report["stripes"].as_array().unwrap();
    assert_eq!(stripes.len(), 4);
    for (number, stripe) in stripes.iter().enumerate() {
        let path = stripe["path"].as_str().unwrap();
        assert!(path.starts_with(directories[number % 2]), "{path}");
        assert_eq!(std::fs::metadata(path).unwrap().len(), stripe["bytes"].as_u64().unwrap(), "{path}");
    }
}

fn check_info(place: &Place, report: &Value) {
    let repo = place.repo().display().to_string();
    let table = Ran::of(&mut place.pagehaul(&["info", "--repo", &repo]));
    let label = report["label"].as_str().unwrap();
    assert!(table.code == Some(0) && table.stdout.contains(label) && table.stdout.contains("main"), "{table}");
    let document = Ran::of(&mut place.pagehaul(&["info", "--repo", &repo, "--json"])).json();
    let set = &document[0]["sets"][0];
    assert_eq!((&set["label"], &set["state"]), (&report["label"], &"complete".into()));
    for key in ["stored_bytes", "source_bytes", "start_lsn", "stop_lsn", "timeline", "stripes", "bad_page_count"] {
        assert_eq!(set[key], report[key], "{key}");
    }
    assert_eq!(set["description"], "before the change");
}

#[test]
fn an_output_that_is_discarded() {
    let place = Place::new("done_nul");
    let mut arguments = place.backup_arguments();
    *arguments.last_mut().unwrap() = "NUL".to_owned();
    let ran = place.run_well(&[arguments, vec!["--json".to_owned()]].concat());
    assert_eq!(ran.json()["state"], "discarded");
    assert_keys(&ran.json(), BACKUP_KEYS);
    assert_eq!(files_below(&place.directory), Vec::<std::path::PathBuf>::new());
    place.assert_server_is_free();
}

#[test]
fn dry_runs_write_nothing() {
    let place = Place::new("done_dry");
    let dry = || vec!["--dry-run".to_owned(), "--json".to_owned()];
    let plan = place.run_well(&[place.striped_backup_arguments(), dry()].concat()).json();
    assert_keys(&plan, &["file_count", "source_bytes", "memory_ceiling_bytes", "stripe_paths", "compression"]);
    assert_eq!(std::fs::read_dir(&place.directory).unwrap().count(), 0);
    place.run_well(&place.backup_arguments());
    let before = place.stored_paths();
    let target = place.directory.join("target");
    let plan = place.run_well(&[place.restore_arguments(&target), dry()].concat()).json();
    assert_eq!(plan["state"], "planned");
    assert_keys(&plan["space"][0], &["directory", "needed_bytes", "free_bytes"]);
    assert!(!target.exists());
    assert_eq!(place.stored_paths(), before);
}

#[test]
fn two_backups_at_once_and_two_sources_in_one_repository() {
    let place = Place::new("done_twice");
    let children: Vec<_> = (0..2)
        .map(|_| {
            let arguments = place.backup_arguments();
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            place.pagehaul(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for child in children {
        let ran = Ran::from(child.wait_with_output().unwrap());
        assert_eq!(ran.code, Some(0), "{ran}");
    }
    assert_eq!(place.complete_sets().len(), 2);
    place.assert_no_leftovers();
    place.complete_sets().iter().for_each(|label| place.assert_sound(label));
    let mut other = place.backup_arguments();
    "second".clone_into(&mut other[1]);
    place.run_well(&other);
    let target = place.directory.join("target");
    place.run(&place.restore_arguments(&target)).assert_error(2, &["main, second", "\nhint: "]);
    assert!(!Path::new(&target).exists());
}
