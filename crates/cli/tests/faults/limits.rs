//! Limits of the process: open files, file size, memory, threads.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use pagehaul_engine::source::postgres::scratch_server::InitOptions;
use pagehaul_testkit::cluster::{Cluster, QUICK, default_install, work_directory};
use pagehaul_testkit::s3_server::CREDENTIALS;
use serde_json::Value;

use super::bench::{Place, Ran};
use super::object_store::{Stored, label};

/// What the program itself takes, beside the ceiling.
const PROGRAM_ALLOWANCE_BYTES: u64 = 32 * 1024 * 1024;

fn limited(place: &Place, limit: &str, arguments: &[String]) -> Option<Ran> {
    let mut command = Command::new("prlimit");
    command.arg(limit).arg(env!("CARGO_BIN_EXE_pagehaul")).args(arguments).envs(CREDENTIALS);
    place.tidy_environment(&mut command);
    match command.output() {
        Ok(output) => Some(Ran::from(output)),
        Err(cause) => {
            eprintln!("SKIPPED: prlimit: {cause}: limits of open files and file size are not tested");
            None
        }
    }
}

#[test]
fn few_open_files() {
    let place = Place::new("limit_files");
    let target = place.directory.join("target");
    let arguments = place.striped_backup_arguments();
    let earlier = place.backup_label(&arguments);
    for count in [4, 8, 12, 16, 24, 32, 48, 64] {
        let limit = format!("--nofile={count}:{count}");
        let Some(ran) = limited(&place, &limit, &arguments) else { return };
        assert!(ran.code == Some(0) || count < 32, "{count} files are enough: {ran}");
        if ran.code != Some(0) {
            // Too few for the libraries: then the program has not even begun.
            assert!(ran.code == Some(127) || matches!(ran.code, Some(20 | 30)), "{ran}");
            if ran.code != Some(127) {
                ran.assert_error_text();
                assert!(ran.stderr.contains("hint: ") && ran.stderr.contains("ulimit -n"), "{count}: {ran}");
            }
        }
        place.assert_no_leftovers();
        let Some(ran) = limited(&place, &limit, &place.restore_arguments(&target)) else { return };
        assert!(ran.code == Some(0) || count < 32, "{count} files are enough: {ran}");
        if ran.code == Some(0) {
            place.assert_whole(&target);
        } else if ran.code != Some(127) {
            assert!(matches!(ran.code, Some(30 | 60)), "{ran}");
            ran.assert_error_text();
            assert!(ran.stderr.contains("hint: ") && ran.stderr.contains("ulimit -n"), "{count}: {ran}");
        }
        std::fs::remove_dir_all(&target).ok();
        let verify = ["verify".to_owned(), "--repo".to_owned(), place.repo().display().to_string()];
        let Some(ran) = limited(&place, &limit, &verify) else { return };
        // What could not be opened is not damaged.
        assert!(matches!(ran.code, Some(0 | 30 | 127)), "{count}: {ran}");
        place.forget_sets_but(Some(&earlier));
    }
    place.assert_sound(&earlier);
    place.assert_server_is_free();
}

#[test]
fn files_of_limited_size() {
    let place = Place::new("limit_size");
    let arguments = place.backup_arguments();
    let earlier = place.backup_label(&arguments);
    // The stripe of a new cluster has 1.07 MiB.
    for size in [0, 100, 4096, 100_000, 1 << 19, 1_000_000] {
        let Some(ran) = limited(&place, &format!("--fsize={size}:{size}"), &arguments) else { return };
        ran.assert_error(30, &["File too large", "\nhint: ", "ulimit -f"]);
        place.assert_no_leftovers();
        assert_eq!(place.complete_sets(), std::slice::from_ref(&earlier));
    }
    let target = place.directory.join("target");
    for size in [0, 4096, 100_000] {
        let limit = format!("--fsize={size}:{size}");
        let Some(ran) = limited(&place, &limit, &place.restore_arguments(&target)) else { return };
        ran.assert_error(60, &["File too large", "\nhint: ", "ulimit -f"]);
    }
    place.run_well(&place.restore_arguments(&target));
    place.assert_whole(&target);
}

/// Runs the command with less and less address space, which bounds memory and threads alike, for root as well, until the program cannot
/// even begin. Each run does what it is to do or says what there was not enough of; whether both were seen.
fn with_less_and_less_memory(place: &Place, arguments: &[String], mut then: impl FnMut(&Ran)) -> Option<[bool; 2]> {
    let (mut any_done, mut any_told) = (false, false);
    for mib in [2048u64, 1024, 512, 256, 192, 160, 128, 112, 96, 80, 64, 56, 48, 40, 32, 24, 16, 8] {
        let limit = format!("--as={0}:{0}", mib << 20);
        if limited(place, &limit, &["--version".to_owned()])?.code != Some(0) {
            break;
        }
        let ran = limited(place, &limit, arguments)?;
        if ran.code == Some(0) {
            any_done = true;
        } else {
            assert!(ran.signal.is_none() && ran.code != Some(70), "{mib} MiB: {ran}");
            ran.assert_error_text();
            assert!(ran.stderr.contains("hint: "), "{mib} MiB: {ran}");
            any_told |= ran.code == Some(10) && ran.stderr.contains("memory");
        }
        then(&ran);
    }
    Some([any_done, any_told])
}

#[test]
fn f38_whoever_gets_no_memory_says_so_and_harms_nothing() {
    let place = Place::new("limit_address");
    let earlier = place.backup_label(&place.backup_arguments());
    for codec in ["page", "zstd:16"] {
        let arguments = [place.backup_arguments(), ["--compression", codec].map(str::to_owned).to_vec()].concat();
        let seen = with_less_and_less_memory(&place, &arguments, |ran| {
            // Whatever it is that could not be had: no set that is not whole.
            assert_eq!(place.complete_sets().len(), 1 + usize::from(ran.code == Some(0)), "{ran}");
            place.assert_server_is_free();
            place.forget_sets_but(Some(&earlier));
        });
        let Some(seen) = seen else { return };
        assert_eq!(seen, [true; 2], "backups with {codec} that were made, and that had no memory");
    }
    place.assert_sound(&earlier);
    let target = place.directory.join("target");
    let seen = with_less_and_less_memory(&place, &place.restore_arguments(&target), |ran| {
        if ran.code == Some(0) {
            place.assert_whole(&target);
        }
        std::fs::remove_dir_all(&target).ok();
    });
    assert_eq!(seen, Some([true; 2]), "restores");
    let verify = ["verify".to_owned(), "--repo".to_owned(), place.repo().display().to_string()];
    assert_eq!(with_less_and_less_memory(&place, &verify, |_| ()), Some([true; 2]), "verifications");
    place.run_well(&place.backup_arguments());
    // Who ended at once while it read the earlier set has left its lease, which does not hold it any more.
    let repo = place.repo().display().to_string();
    place.run_well(&["expire", "main", "--repo", &repo, "--keep-full", "1", "--confirm"].map(str::to_owned));
    place.assert_no_leftovers();
}

#[test]
fn f38_who_gets_no_memory_for_a_store_says_so_and_makes_no_set() {
    let stored = Stored::new("limit_upload");
    let earlier = label(&stored.backup());
    let seen = with_less_and_less_memory(&stored.place, &stored.backup_arguments(), |ran| {
        stored.check("an upload without memory", &earlier, ran);
        assert_eq!(stored.labels("complete").len(), 1 + usize::from(ran.code == Some(0)), "{ran}");
        // What is left is of a run that may be alive yet, as after a kill: nobody waits for that here.
        stored.forget_all_but(&earlier);
    });
    let Some(seen) = seen else { return };
    assert_eq!(seen, [true; 2], "uploads that were made, and that had no memory");
    let target = stored.place.directory.join("target");
    let from = ["--repo".to_owned(), stored.target("repo")];
    let to = ["restore", "main", "--target-dir", &target.display().to_string()].map(str::to_owned);
    for arguments in [[&["verify".to_owned()], &from[..]].concat(), [&to[..], &from].concat()] {
        let seen = with_less_and_less_memory(&stored.place, &arguments, |ran| {
            if ran.code == Some(0) && target.exists() {
                stored.place.assert_whole(&target);
            }
            std::fs::remove_dir_all(&target).ok();
        });
        assert_eq!(seen, Some([true; 2]), "downloads: {arguments:?}");
    }
    stored.assert_sound(&earlier);
    label(&stored.backup());
}

/// Runs the command as a user of no other process, who may have one thread, two, and so on; root has no such limit. Each run does
/// what it is to do or says that it got too few; whether both were seen.
fn with_more_and_more_threads(place: &Place, arguments: &[String], mut then: impl FnMut(&Ran)) -> Option<[bool; 2]> {
    const THREADS_ENOUGH: usize = 24;
    // Tests run side by side.
    static USERS: AtomicU32 = AtomicU32::new(0);
    let user = (200_000 + std::process::id() % 100_000 * 10 + USERS.fetch_add(1, Relaxed)).to_string();
    // What root may: files are not what is tried here.
    let rights = "+dac_override,+dac_read_search,+fowner,+chown";
    let (mut any_done, mut any_told) = (false, false);
    for count in 1..=THREADS_ENOUGH {
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".to_owned()]);
        command.args([format!("--inh-caps={rights}"), format!("--ambient-caps={rights}")]);
        command.args(["prlimit", &format!("--nproc={count}:{count}"), env!("CARGO_BIN_EXE_pagehaul")]);
        command.args(arguments).envs(CREDENTIALS);
        place.tidy_environment(&mut command);
        let output = command.output().ok();
        let Some(ran) = output.map(Ran::from).filter(|ran| !ran.stderr.starts_with("setpriv: ")) else {
            eprintln!("SKIPPED: no setpriv, or not root: limits of threads are not tested");
            return None;
        };
        any_done |= ran.code == Some(0);
        if ran.code != Some(0) {
            ran.assert_error(10, &["thread", "\nhint: ", "ulimit -u"]);
            assert!(count < THREADS_ENOUGH, "{count} threads: {ran}");
            any_told = true;
        }
        then(&ran);
    }
    Some([any_done, any_told])
}

#[test]
fn f38_whoever_gets_no_thread_says_so_and_harms_nothing() {
    let place = Place::new("limit_threads");
    let earlier = place.backup_label(&place.backup_arguments());
    let seen = with_more_and_more_threads(&place, &place.striped_backup_arguments(), |ran| {
        assert_eq!(place.complete_sets().len(), 1 + usize::from(ran.code == Some(0)), "{ran}");
        place.assert_server_is_free();
        place.assert_no_leftovers();
        place.forget_sets_but(Some(&earlier));
    });
    let Some(seen) = seen else { return };
    assert_eq!(seen, [true; 2], "backups");
    place.assert_sound(&earlier);
    let target = place.directory.join("target");
    let seen = with_more_and_more_threads(&place, &place.restore_arguments(&target), |ran| {
        if ran.code == Some(0) {
            // The check runs as the cluster's owner, who has nothing of that user.
            let owner = format!("--reference={}", place.bench.cluster.server.data_directory().display());
            assert!(Command::new("chown").arg("-R").arg(owner).arg(&target).status().unwrap().success());
            place.assert_whole(&target);
        }
        std::fs::remove_dir_all(&target).ok();
    });
    assert_eq!(seen, Some([true; 2]), "restores");
    let verify = ["verify".to_owned(), "--repo".to_owned(), place.repo().display().to_string()];
    assert_eq!(with_more_and_more_threads(&place, &verify, |_| ()), Some([true; 2]), "verifications");
}

#[test]
fn f38_who_gets_no_thread_for_a_store_says_so_and_makes_no_set() {
    let stored = Stored::new("limit_upload_threads");
    let earlier = label(&stored.backup());
    let seen = with_more_and_more_threads(&stored.place, &stored.backup_arguments(), |ran| {
        stored.check("an upload without threads", &earlier, ran);
        assert_eq!(stored.labels("complete").len(), 1 + usize::from(ran.code == Some(0)), "{ran}");
        stored.forget_all_but(&earlier);
    });
    let Some(seen) = seen else { return };
    assert_eq!(seen, [true; 2], "uploads");
    let verify = ["verify".to_owned(), "--repo".to_owned(), stored.target("repo")];
    assert_eq!(with_more_and_more_threads(&stored.place, &verify, |_| ()), Some([true; 2]), "verifications");
    stored.assert_sound(&earlier);
}

#[test]
fn memory_above_what_is_allowed() {
    let place = Place::new("limit_memory");
    let more = ["--max-memory", "1MiB"].map(str::to_owned).to_vec();
    let target = place.directory.join("target");
    let ran = place.run(&[place.backup_arguments(), more.clone()].concat());
    ran.assert_error(10, &["1.0 MiB", "transfer buffers", "file list", "ceiling", "--buffer-count"]);
    assert!(place.sets().is_empty());
    place.assert_server_is_free();
    place.run_well(&place.backup_arguments());
    place.assert_no_leftovers();
    let ran = place.run(&[place.restore_arguments(&target), more].concat());
    ran.assert_error(10, &["1.0 MiB", "transfer buffers", "file list", "ceiling", "--buffer-count"]);
    assert!(!target.exists());
}

fn assert_memory(report: &Value, what: &str) {
    let bytes = |key: &str| report[key].as_u64().unwrap();
    let (used, ceiling) = (bytes("rss_bytes_max"), bytes("memory_ceiling_bytes"));
    eprintln!("{what}: {} MiB of {} MiB + 32 MiB", used >> 20, ceiling >> 20);
    assert!(used <= ceiling + PROGRAM_ALLOWANCE_BYTES, "{what}: {used} bytes, the ceiling was {ceiling}");
}

#[test]
fn the_ceiling_holds_with_many_tables_and_with_a_big_one() {
    let place = Place::new("limit_ceiling");
    let work = work_directory();
    let options = InitOptions { wal_segment_size_mib: Some(16), ..InitOptions::default() };
    let cluster = Cluster::start_with(&default_install(), work.path(), &options, QUICK);
    cluster.run(&[
        "DO $$ BEGIN FOR i IN 1..2000 LOOP EXECUTE format('CREATE TABLE small_%s (id int PRIMARY KEY, note text)', i); \
         IF i % 200 = 0 THEN COMMIT; END IF; END LOOP; END $$",
        "CREATE TABLE big AS SELECT i AS id, md5(i::text) || md5((i * 7)::text) AS note FROM generate_series(1, 1200000) AS i",
    ]);
    let settings: &[&[&str]] = &[
        &[],
        &["--buffer-count", "3", "--transfer-size", "256KiB", "--readers", "1", "--encoders", "1"],
        &["--compression", "zstd:9", "--frame-size", "4MiB", "--transfer-size", "4MiB"],
        &["--compression", "none", "--stripes", "8", "--buffer-count", "64"],
        &["--compression", "deflate:1", "--readers", "4", "--encoders", "4"],
    ];
    let pgdata = cluster.server.data_directory().display().to_string();
    let repo = place.repo().display().to_string();
    let target = place.directory.join("target");
    for settings in settings {
        let words = ["backup", "--pgdata", &pgdata, "--connection", "user=postgres", "--repo", &repo, "--json"];
        let arguments: Vec<String> = words.iter().chain(*settings).map(|word| (*word).to_owned()).collect();
        assert_memory(&place.run_well(&arguments).json(), &format!("backup {settings:?}"));
        let few = ["--buffer-count", "3", "--readers", "1", "--decoders", "1", "--file-writers", "1"];
        for more in [&["--json"][..], &[&["--json"][..], &few].concat()] {
            let more: Vec<String> = more.iter().map(|word| (*word).to_owned()).collect();
            let report = place.run_well(&[place.restore_arguments(&target), more.clone()].concat()).json();
            assert_memory(&report, &format!("restore {settings:?} {more:?}"));
            std::fs::remove_dir_all(&target).unwrap();
        }
        let report = place.run_well(&["verify", "--repo", &repo, "--json"].map(str::to_owned)).json();
        assert_memory(&report, &format!("verify {settings:?}"));
        place.forget_sets_but(None);
    }
}
