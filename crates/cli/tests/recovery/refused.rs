//! Points that cannot be reached are refused before the first byte, each with its reason and with what can be reached.

use std::path::PathBuf;

use pagehaul_testkit::cluster::default_install;

use super::archived::Archived;
use super::ledger::Ledger;

/// Two sets with rows before, between and behind them, all archived.
struct Stored {
    archived: Archived,
    ledger: Ledger,
    labels: Vec<String>,
    /// Rows in each set.
    counts: Vec<usize>,
}

fn stored() -> Stored {
    let archived = Archived::start(&default_install());
    let mut ledger = Ledger::create(&archived.cluster);
    let (mut labels, mut counts) = (Vec::new(), Vec::new());
    for part in 1..=2 {
        ledger.write(&archived.cluster, part * 100, 10);
        labels.push(archived.backup());
        counts.push(ledger.entries.len());
        ledger.write(&archived.cluster, part * 100 + 50, 10);
        ledger.mark(&archived.cluster, &format!("mark-{part}"));
        ledger.mark(&archived.cluster, "twice");
        archived.cluster.value("SELECT pg_switch_wal()");
    }
    ledger.write(&archived.cluster, 900, 10);
    archived.cluster.value("SELECT pg_switch_wal()");
    archived.wait_until_archived(&archived.cluster);
    Stored { archived, ledger, labels, counts }
}

impl Stored {
    /// The restore is refused for these reasons, and nothing is written.
    fn refuse(&self, code: i32, flags: &[&str], parts: &[&str]) {
        let target = self.archived.target("refused");
        let ran = self.archived.restore(&target, flags);
        ran.assert_refused(code, parts);
        assert!(!target.exists(), "{flags:?}: something was written");
    }

    /// The object that holds this segment.
    fn object_of(&self, segment: &str) -> PathBuf {
        let wal = self.archived.repo.join("main/wal");
        let files = pagehaul_testkit::damage::files_below(&wal);
        let index = u64::from_str_radix(&segment[16..], 16).unwrap();
        let holds = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap();
            let Some((first, rest)) = name.split_once('-') else { return false };
            let Some(count) = rest.strip_suffix(".phw").and_then(|count| count.parse::<u64>().ok()) else {
                return false;
            };
            let first = u64::from_str_radix(first, 16).unwrap();
            (first..first + count).contains(&index)
        };
        files.into_iter().find(holds).unwrap_or_else(|| panic!("{segment} is not archived"))
    }
}

#[test]
fn f22_what_cannot_be_reached_is_refused_and_never_becomes_latest() {
    let stored = stored();
    let entries = &stored.ledger.entries;
    let time = |row: usize| entries[row].at.to_string();
    let before = time(3);
    stored.refuse(
        30,
        &["--type", "time", "--target", &before],
        &["lies before", "first point there is", "nearest: --type time"],
    );
    let last = entries.last().unwrap();
    let at_last = last.at.to_string();
    stored.refuse(30, &["--type", "time", "--target", &at_last], &["no commit behind it is archived", &at_last]);
    stored.refuse(30, &["--type", "time", "--target", "2100-01-01T00:00:00Z"], &["no commit behind it", "nearest"]);
    stored.refuse(30, &["--type", "lsn", "--target", "0/100"], &["lies before", "nearest: --type lsn"]);
    stored.refuse(30, &["--type", "lsn", "--target", "FF/0"], &["archived WAL ends before it", "--type latest"]);
    stored.refuse(30, &["--type", "name", "--target", "nowhere"], &["none of that name", "mark-1, mark-2, twice"]);
    stored.refuse(30, &["--type", "name", "--target", "twice"], &["there are 2 of that name", "--set"]);
    let unknown = (last.xid + 1000).to_string();
    stored.refuse(30, &["--type", "xid", "--target", &unknown], &["no commit or rollback of it"]);
    stored.refuse(30, &["--type", "xid", "--target", &entries[2].xid.to_string()], &["lies before"]);
    let second = stored.labels[1].as_str();
    let between = time(stored.counts[0] + 5);
    stored.refuse(30, &["--type", "time", "--target", &between, "--set", second], &["lies before", second]);
    stored.refuse(30, &["--type", "latest", "--target-timeline", "7"], &["timeline 7", "neither WAL nor history"]);
    for flags in [
        ["--type", "time", "--target", "2026-11-21"],
        ["--type", "lsn", "--target", "here"],
        ["--type", "latest", "--target", "0/1"],
        ["--type", "latest", "--target-action", "pause"],
        ["--type", "immediate", "--target-timeline", "1"],
    ] {
        stored.refuse(2, &flags, &[]);
    }
    stored.refuse(2, &["--type", "name", "--target", "mark-1", "--exclusive"], &["--exclusive"]);
    stored.refuse(2, &["--target", "0/1"], &["--type"]);

    // The same points from which one may be reached.
    let copy = stored.archived.recover("twice", &["--type", "name", "--target", "twice", "--set", second]);
    let (_, count) = stored.ledger.points.last().unwrap();
    stored.ledger.assert_prefix(&copy.cluster, *count, "the second of two restore points");
    copy.remove();
    let copy = stored.archived.recover("between", &["--type", "time", "--target", &between]);
    assert_eq!(copy.report["label"], stored.labels[0].as_str(), "the older set is taken");
    stored.ledger.assert_prefix(&copy.cluster, stored.counts[0] + 6, "between the sets");
    copy.remove();
}

#[test]
fn f10_a_gap_splits_what_can_be_reached() {
    let stored = stored();
    let entries = &stored.ledger.entries;
    // The segment of a row behind the first set is lost.
    let row = stored.counts[0] + 4;
    let lsn = entries[row].lsn;
    let segment = stored.archived.cluster.value(&format!("SELECT pg_walfile_name('{lsn}')"));
    std::fs::remove_file(stored.object_of(&segment)).unwrap();
    let first = stored.labels[0].as_str();
    let gap = ["the archive has a gap", segment.as_str(), "where the WAL has a gap"];
    stored.refuse(30, &["--type", "lsn", "--target", &entries[row + 3].lsn.to_string()], &gap);
    stored.refuse(30, &["--type", "latest", "--set", first], &gap);
    stored.refuse(30, &["--type", "name", "--target", "mark-1"], &["the archive has"]);

    let info = stored.archived.run_well(&["info"]).stdout;
    assert!(info.contains(&format!("GAP: {segment}")), "{info}");
    assert_eq!(info.matches("can be reached").count(), 2, "{info}");
    let document = stored.archived.run_well(&["info", "--json"]).json();
    let timeline = &document[0]["wal"][0]["timelines"][0];
    assert_eq!(timeline["gaps"][0]["first"], segment.as_str(), "{timeline}");
    assert_eq!(timeline["windows"].as_array().unwrap().len(), 2, "{timeline}");
    assert_eq!(timeline["windows"][1]["sets"][0], stored.labels[1].as_str(), "{timeline}");

    // What lies behind the second set is as good as before.
    let copy = stored.archived.recover("latest", &["--type", "latest"]);
    stored.ledger.assert_prefix(&copy.cluster, entries.len(), "latest behind the gap");
    copy.remove();
}

#[test]
fn f22_a_time_without_a_zone_is_local_and_said_to_be() {
    let stored = stored();
    let row = stored.counts[0] + 5;
    let at = stored.ledger.entries[row].at;
    let Ok(zone) = jiff::tz::TimeZone::get("Asia/Tokyo") else {
        eprintln!("SKIPPED: this machine has no time zone files");
        return;
    };
    let local = at.to_zoned(zone).strftime("%Y-%m-%d %H:%M:%S.%6f").to_string();
    let target = stored.archived.target("local").display().to_string();
    let repo = stored.archived.repo.display().to_string();
    let restore = format!(
        "TZ=Asia/Tokyo '{}' --history NUL restore main --repo '{repo}' --target-dir '{target}' --type time --target '{local}' --json",
        super::archived::PROGRAM
    );
    let output = stored.archived.cluster.server.run_tool("/bin/sh", &["-c", &restore]).unwrap();
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{words}");
    assert!(words.contains("Asia/Tokyo (+09:00) was assumed"), "{words}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["recovery"]["assumed_time_zone"], "Asia/Tokyo (+09:00)");
    let expected = at.to_zoned(jiff::tz::TimeZone::UTC).strftime("%Y-%m-%d %H:%M:%S.%6f+00").to_string();
    assert_eq!(report["recovery"]["target"], expected.as_str());
    let settings = std::fs::read_to_string(format!("{target}/postgresql.auto.conf")).unwrap();
    assert!(settings.contains(&format!("recovery_target_time = '{expected}'")), "{settings}");
}
