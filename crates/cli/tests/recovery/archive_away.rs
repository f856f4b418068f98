//! Archives that cannot be asked, that were told nothing, and what an earlier recovery left beside the next one.

use pagehaul_engine::source::postgres::scratch_server::{ScratchServer, StopMode};
use pagehaul_testkit::cluster::{Cluster, QUICK, default_install};
use pagehaul_testkit::damage::files_below;

use super::archived::{Archived, wait_for};
use super::ledger::Ledger;

/// A cluster with a set, and rows behind it in the archive.
fn with_rows_behind_a_set() -> (Archived, Ledger) {
    let archived = Archived::start(&default_install());
    let mut ledger = Ledger::create(&archived.cluster);
    ledger.write(&archived.cluster, 1, 5);
    archived.backup();
    for first in [100, 200, 300] {
        ledger.write(&archived.cluster, first, 10);
        archived.cluster.value("SELECT pg_switch_wal()");
    }
    archived.wait_until_archived(&archived.cluster);
    (archived, ledger)
}

/// A server that takes "I cannot ask" for "there is no more WAL" opens with commits missing.
#[test]
fn f44_a_server_that_cannot_ask_for_wal_stops_and_gets_to_the_end_when_it_can() {
    let (archived, ledger) = with_rows_behind_a_set();
    let target = archived.target("away");
    assert_eq!(archived.restore(&target, &["--type", "latest"]).code, Some(0));
    let away = archived.repo.with_file_name("repo-away");
    std::fs::rename(&archived.repo, &away).unwrap();
    let mut server = ScratchServer::adopt(archived.cluster.server.install(), &target).unwrap();
    // pg_ctl may see it up for a moment.
    server.start(QUICK).ok();
    wait_for("the server to give up", || !target.join("postmaster.pid").exists());
    assert!(target.join("recovery.signal").exists(), "it did not open");
    assert!(!target.join("pg_wal/00000002.history").exists(), "it did not take a timeline of its own");
    std::fs::rename(&away, &archived.repo).unwrap();
    server.start(QUICK).unwrap();
    let copy = Cluster { server, directory: target };
    wait_for("the end of WAL", || copy.value("SELECT pg_is_in_recovery()") == "f");
    ledger.assert_prefix(&copy, ledger.entries.len(), "after the archive came back");
}

/// Segments of other bytes under the names that this recovery asks for, as another cluster's recovery left them.
#[test]
fn f56_what_an_earlier_recovery_fetched_is_not_used_by_the_next_one() {
    let (archived, ledger) = with_rows_behind_a_set();
    for round in ["one", "two"] {
        let target = archived.target("spool");
        assert_eq!(archived.restore(&target, &["--type", "latest"]).code, Some(0));
        let spool = target.join("pg_wal/pagehaul-prefetch");
        archived.cluster.server.run_tool("/bin/mkdir", &["-p", &spool.display().to_string()]).unwrap();
        let first = ledger.entries[0].lsn.0 >> 20;
        for segment in first..first + 8 {
            let name = segment_name(segment);
            // With and without what the helper puts behind a name.
            for name in [name.clone(), format!("{name}.1-1")] {
                std::fs::write(spool.join(name), vec![0xA5; 1 << 20]).unwrap();
            }
        }
        let mut server = ScratchServer::adopt(archived.cluster.server.install(), &target).unwrap();
        server.start(QUICK).unwrap();
        let mut copy = Cluster { server, directory: target };
        wait_for("the end of WAL", || copy.value("SELECT pg_is_in_recovery()") == "f");
        ledger.assert_prefix(&copy, ledger.entries.len(), round);
        copy.server.stop(StopMode::Immediate).unwrap();
        // Whoever fetches there next empties it, and delivers what is in the archive.
        let name = segment_name(first + 1);
        let to = spool.with_file_name("RECOVERYXLOG");
        let ran = archived.run(&["wal", "get", &name, &to.display().to_string(), "--verbose", "--helper-idle", "1s"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(std::fs::read(&to).unwrap().first() != Some(&0xA5), "{ran:?}");
        let is_junk = |path: std::path::PathBuf| std::fs::read(path).is_ok_and(|bytes| bytes.first() == Some(&0xA5));
        // The helper does it when it comes up; the command does not wait for a slow one.
        wait_for("the spool to be emptied", || {
            !std::fs::read_dir(&spool).into_iter().flatten().flatten().any(|file| is_junk(file.path()))
        });
    }
}

fn segment_name(number: u64) -> String {
    format!("{:08X}{:08X}{:08X}", 1, number >> 12, number & 0xFFF)
}

/// A queue that was full dropped WAL elsewhere and told the server that it was archived.
#[test]
fn b10_wal_that_was_called_archived_and_dropped_is_a_gap_for_everybody_until_the_next_set() {
    let (mut archived, ledger) = with_rows_behind_a_set();
    archived.cluster.server.stop(StopMode::Fast).unwrap();
    archived.start_server_with(&[("archive_command", "true")]);
    let mut more = ledger.clone();
    for first in [1_000, 2_000] {
        more.write(&archived.cluster, first, 5);
        archived.cluster.value("SELECT pg_switch_wal()");
    }
    archived.wait_until_archived(&archived.cluster);
    archived.cluster.server.stop(StopMode::Fast).unwrap();
    archived.start_server();
    more.write(&archived.cluster, 3_000, 5);
    archived.cluster.value("SELECT pg_switch_wal()");
    archived.wait_until_archived(&archived.cluster);

    let info = archived.run_well(&["info"]).stdout;
    assert!(info.contains("GAP: "), "{info}");
    assert_eq!(archived.run(&["wal", "list"]).code, Some(40));
    let check = archived.run(&["check", "main", "--no-marker"]);
    assert!(check.code == Some(30) && check.stdout.contains("a gap begins"), "{check:?}");
    let metrics = archived.run_well(&["metrics"]).stdout;
    let gap = metrics.lines().find(|line| line.starts_with("pagehaul_wal_gap_segments{")).unwrap();
    assert!(!gap.ends_with(" 0"), "{gap}");
    let target = archived.target("across");
    archived.restore(&target, &["--type", "latest"]).assert_refused(30, &["the archive has a gap"]);
    assert!(!target.exists());
    let last = ledger.entries.last().unwrap().lsn.to_string();
    let copy = archived.recover("before", &["--type", "lsn", "--target", &last]);
    ledger.assert_prefix(&copy.cluster, ledger.entries.len(), "what lies before the gap");
    copy.remove();
    archived.backup();
    assert_eq!(archived.run(&["check", "main"]).code, Some(0), "a new set heals it");
    let copy = archived.recover("behind", &["--type", "latest"]);
    more.assert_prefix(&copy.cluster, more.entries.len(), "what lies behind the new set");
}

/// Nothing in an archive can say that its newest WAL was taken away: there is no gap. The server knows what it gave.
#[test]
fn s18_newest_wal_that_was_taken_away_is_noticed_where_the_server_is() {
    let (archived, _) = with_rows_behind_a_set();
    assert_eq!(archived.run(&["check", "main", "--no-marker"]).code, Some(0));
    let segments = files_below(&archived.repo.join("main/wal")).into_iter().filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.len() == "000000B3-0001.phw".len() && name.ends_with(".phw")
    });
    let newest = segments.max().unwrap();
    let last = archived.cluster.value("SELECT last_archived_wal FROM pg_stat_archiver");
    let assert_noticed = || {
        let check = archived.run(&["check", "main", "--no-marker", "--json"]);
        assert_eq!(check.code, Some(30), "{check:?}");
        let document = check.json();
        let lines = document["lines"].as_array().unwrap();
        let problems: Vec<_> = lines.iter().filter(|line| line["state"] == "problem").collect();
        assert!(problems.len() == 1 && problems[0]["what"] == "newest WAL", "{document}");
        assert!(problems[0]["text"].as_str().unwrap().contains(&last), "{document}");
        assert!(problems[0]["next"].as_str().unwrap().contains("make a backup now"), "{document}");
    };
    std::fs::remove_file(&newest).unwrap();
    assert_noticed();
    // With all of it no segment is left whose size could be asked.
    std::fs::remove_dir_all(archived.repo.join("main/wal")).unwrap();
    assert_noticed();
    // Behind a new set it is not wanted any more.
    archived.backup();
    assert_eq!(archived.run(&["check", "main", "--no-marker"]).code, Some(0));
}
