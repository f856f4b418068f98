//! A day in the life of a cluster, with the commands and the settings file of the guide (docs/guide/src/day.md): set up,
//! archived under load, a dropped table brought back, a failover, recovery across it, expiry, proofs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pagehaul_engine::source::postgres::scratch_server::{InitOptions, ScratchServer, StopMode};
use pagehaul_testkit::cluster::{Cluster, QUICK, default_install, work_directory};
use pagehaul_testkit::cluster_template::init_cluster;
use tempfile::TempDir;

use super::archived::{PROGRAM, Ran, run_program, wait_for};

/// The cluster that has the source's name now, and where all the rest lies.
struct Day {
    primary: Cluster,
    repo: PathBuf,
    config: PathBuf,
    // After the cluster: its files go when the server has stopped.
    work: TempDir,
}

impl Day {
    /// The settings file, the repository, and a server that archives into it.
    fn begin() -> Self {
        let work = work_directory();
        let options = InitOptions { wal_segment_size_mib: Some(1), ..InitOptions::default() };
        let server = init_cluster(&default_install(), &work.path().join("main"), &options);
        let primary = Cluster { server, directory: work.path().to_owned() };
        let (repo, config) = (primary.server_directory("backup"), work.path().join("pagehaul.toml"));
        primary.server_directory("restored");
        let mut day = Day { primary, repo, config, work };
        day.write_settings();
        day.run(&["wal", "adopt", "--source", "main"]);
        let command = day.archive_command();
        day.primary.server.start(&archiving(&command)).unwrap();
        day
    }

    fn write_settings(&self) {
        let (repo, pgdata) = (self.repo.display(), self.primary.server.data_directory().display());
        let text = format!(
            "[global]\nrepo = \"{repo}\"\n[sources.main]\npgdata = \"{pgdata}\"\n\
             [sources.main.expire]\nkeep-full = 1\n"
        );
        std::fs::write(&self.config, text).unwrap();
    }

    fn archive_command(&self) -> String {
        format!("{PROGRAM} --config {} wal push --source main %p", self.config.display())
    }

    /// Runs the command beside the primary, with nothing but the settings file, and expects it to do what it should.
    fn run(&self, arguments: &[&str]) -> Ran {
        let config = self.config.display().to_string();
        let ran = run_program(&self.primary.server, PROGRAM, &[&["--config", &config], arguments].concat());
        assert_eq!(ran.code, Some(0), "{arguments:?}: {}{}", ran.stdout, ran.stderr);
        ran
    }

    fn backup(&self, kind: &str) -> String {
        let made = self.run(&["backup", "main", "--type", kind, "--json"]).json();
        assert_eq!(made["kind"], if kind == "full" { "full" } else { "incremental" }, "{made}");
        made["label"].as_str().unwrap().to_owned()
    }

    /// Restores with these flags, and starts the copy with these settings.
    fn copy(&self, name: &str, flags: &[&str], settings: &[(&str, &str)]) -> (Cluster, serde_json::Value) {
        let target = self.work.path().join("restored").join(name);
        let target_text = target.display().to_string();
        let words = [&["restore", "main", "--target-dir", &target_text, "--json"], flags].concat();
        let report = self.run(&words).json();
        let mut server = ScratchServer::adopt(self.primary.server.install(), &target).unwrap();
        server.start(settings).unwrap_or_else(|error| panic!("{flags:?}: {error}"));
        (Cluster { server, directory: self.work.path().to_owned() }, report)
    }

    /// What a copy holds that was recovered to a point, as soon as it is open for writing.
    fn recovered(&self, name: &str, flags: &[&str]) -> (BTreeMap<String, String>, serde_json::Value) {
        let (copy, report) = self.copy(name, flags, QUICK);
        wait_for("the recovery target", || copy.value("SELECT pg_is_in_recovery()") == "f");
        (copy.digests(), report)
    }

    /// Some transactions.
    fn work_a_little(&self) {
        pgbench(&self.primary, &["-n", "-c", "2", "-t", "150"]);
    }

    /// Ends the current segment, and waits until all there is lies in the repository.
    fn archive_everything(&self) {
        self.primary.value("SELECT pg_switch_wal()");
        let waiting = "SELECT count(*) FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'";
        wait_for("the archiver", || self.primary.value(waiting) == "0");
    }

    fn labels(&self) -> Vec<String> {
        let info = self.run(&["info", "main", "--json"]).json();
        let sets = info[0]["sets"].as_array().unwrap_or_else(|| panic!("{info}"));
        sets.iter().map(|set| set["label"].as_str().unwrap().to_owned()).collect()
    }

    fn prove(&self) -> String {
        let bin = self.primary.server.install().bin_directory().display().to_string();
        let scratch = self.work.path().join("restored").display().to_string();
        let query = "SELECT count(*) = 100000 FROM pgbench_accounts";
        let places = ["--pg-bin", &bin, "--scratch-dir", &scratch];
        let words = [&["prove", "main", "--query", query, "--json"], &places[..]].concat();
        let proof = self.run(&words).json()["proofs"][0].clone();
        assert_eq!(proof["result"], "proven", "{proof}");
        proof["object"].as_str().unwrap().to_owned()
    }
}

fn archiving(command: &str) -> Vec<(&str, &str)> {
    let mut settings: Vec<_> = QUICK.iter().copied().filter(|(name, _)| *name != "max_wal_size").collect();
    settings.extend([("archive_mode", "on"), ("archive_command", command), ("wal_level", "replica")]);
    settings
}

fn pgbench(cluster: &Cluster, arguments: &[&str]) {
    let output = cluster.server.run_tool("pgbench", &[arguments, &["postgres"]].concat()).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_day_in_the_life() {
    let mut day = Day::begin();
    // Once.
    pgbench(&day.primary, &["-i", "-q", "-s", "1"]);
    day.run(&["check", "main"]);
    let full = std::thread::scope(|scope| {
        let load = scope.spawn(|| day.work_a_little());
        let full = day.backup("full");
        load.join().unwrap();
        full
    });
    let first_proof = day.prove();
    // By itself.
    day.work_a_little();
    let first = day.backup("incr");
    day.work_a_little();
    let second = day.backup("incr");
    assert_eq!(day.labels(), [full, first, second]);

    bring_a_dropped_table_back(&day);
    let everything = fail_over(&mut day);

    // Recovery across the switch, by a set from before it.
    let (found, report) = day.recovered("across", &["--type", "latest"]);
    assert_eq!((report["timeline"].as_u64(), report["recovery"]["timeline"].as_u64()), (Some(1), Some(2)), "{report}");
    assert_eq!(found, everything);

    // What is not needed any more goes, when that is confirmed.
    let newest = day.backup("full");
    day.archive_everything();
    let dry = day.run(&["expire", "main", "--json"]).json();
    assert_eq!((dry["confirmed"].as_bool(), day.labels().len()), (Some(false), 4), "{dry}");
    day.run(&["expire", "main", "--confirm"]);
    assert_eq!(day.labels(), std::slice::from_ref(&newest));
    let object = |name: &str| day.repo.join(name);
    assert!(!object(&first_proof).exists(), "the proof of a set that is no more");
    let proof = day.prove();
    assert!(object(&proof).exists() && proof.contains(&newest), "{proof}");
    let (found, _) = day.recovered("newest", &["--type", "latest"]);
    assert_eq!(found, everything);
    day.run(&["verify", "main"]);
    day.run(&["check", "main"]);
}

/// 14:07: somebody dropped a table.
fn bring_a_dropped_table_back(day: &Day) {
    day.primary
        .run(&["CREATE TABLE orders AS SELECT aid, md5(aid::text) AS body FROM pgbench_accounts WHERE aid <= 5000"]);
    let before = day.primary.digests();
    let moment = day.primary.value(
        "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || 'Z' FROM pg_sleep(0.02)",
    );
    day.primary.run(&["SELECT pg_sleep(0.02)", "DROP TABLE orders"]);
    day.work_a_little();
    day.archive_everything();
    let (found, report) = day.recovered("before", &["--type", "time", "--target", &moment]);
    assert_eq!(found, before, "{report}");
    assert!(found.contains_key("orders") && !day.primary.digests().contains_key("orders"));
    assert_eq!(report["archiving_off"], true, "{report}");
}

/// The standby is promoted, and goes on archiving under the same name; gives what it holds at the end.
fn fail_over(day: &mut Day) -> BTreeMap<String, String> {
    let command = day.archive_command();
    let flags = ["--type", "standby", "--archive-mode", "preserve"];
    let (standby, _) = day.copy("standby", &flags, &archiving(&command));
    day.work_a_little();
    let last = day.primary.digests();
    day.primary.server.stop(StopMode::Fast).unwrap();
    // A server that stops archives its last segment.
    wait_for("the standby", || standby.digests() == last);
    assert_eq!(standby.value("SELECT pg_promote()"), "t");
    day.primary = standby;
    day.write_settings();
    day.work_a_little();
    day.archive_everything();
    expect_history(&day.repo);
    let everything = day.primary.digests();
    assert_ne!(everything, last);
    everything
}

/// The new timeline's history is archived.
fn expect_history(repo: &Path) {
    let archives: Vec<PathBuf> = std::fs::read_dir(repo.join("main/wal")).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(archives.iter().any(|archive| archive.join("00000002.history.phw").exists()), "{archives:?}");
}
