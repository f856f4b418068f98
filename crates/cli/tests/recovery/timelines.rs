//! A cluster that was promoted three times: each of its timelines is reached, by way of those before it.

use pagehaul_engine::source::postgres::scratch_server::StopMode;
use pagehaul_testkit::cluster::default_install;

use super::archived::{Archived, Copy, wait_for};
use super::ledger::Ledger;

#[test]
fn f28_a_chain_of_four_timelines_is_recovered_from_one_set() {
    let mut archived = Archived::start(&default_install());
    let mut ledger = Ledger::create(&archived.cluster);
    archived.backup();
    ledger.write(&archived.cluster, 1, 20);
    archived.cluster.server.stop(StopMode::Fast).unwrap();
    // What was committed on the way to the end of each.
    let mut lines: Vec<Ledger> = Vec::new();
    let mut copies: Vec<Copy> = Vec::new();
    for timeline in 2..=4u32 {
        // As after a failover: some of the rows of the old timeline never came over.
        let left_after = ledger.entries.len() - 5;
        let lsn = ledger.entries[left_after - 1].lsn.to_string();
        let mut copy = archived.recover_as_source(&format!("line-{timeline}"), &["--type", "lsn", "--target", &lsn]);
        let branch = ledger.branch(left_after);
        lines.push(std::mem::replace(&mut ledger, branch));
        let first_row = u64::from(timeline) * 1000;
        ledger.write(&copy.cluster, first_row, 20);
        assert_history_is_archived_first(&archived, &copy, timeline);
        if timeline < 4 {
            copy.cluster.server.stop(StopMode::Fast).unwrap();
        } else {
            copy.cluster.value("SELECT pg_switch_wal()");
            archived.wait_until_archived(&copy.cluster);
        }
        copies.push(copy);
    }
    lines.push(ledger);

    // By default the newest; each of the others by its number. Rows that were left behind are only on their own.
    let newest = archived.recover("newest", &["--type", "latest"]);
    lines[3].assert_prefix(&newest.cluster, lines[3].entries.len(), "the newest timeline");
    newest.remove();
    for (place, line) in lines[..3].iter().enumerate() {
        let number = (place + 1).to_string();
        let copy = archived.recover("one", &["--type", "latest", "--target-timeline", &number]);
        line.assert_prefix(&copy.cluster, line.entries.len(), &format!("timeline {number}"));
        copy.remove();
    }

    // Without its history nobody knows what a timeline comes from.
    let history = archived.repo.join("main/wal");
    let history = pagehaul_testkit::damage::files_below(&history);
    let history = history.iter().find(|path| path.ends_with("00000004.history.phw")).unwrap();
    std::fs::remove_file(history).unwrap();
    let target = archived.target("no-history");
    let ran = archived.restore(&target, &["--type", "latest", "--target-timeline", "4"]);
    ran.assert_refused(30, &["timeline 4"]);
    assert!(!target.exists(), "something was written");
}

/// No segment of a timeline is of use before its history is there.
fn assert_history_is_archived_first(archived: &Archived, copy: &Copy, timeline: u32) {
    let name = format!("{timeline:08X}.history");
    copy.cluster.value("SELECT pg_switch_wal()");
    // Not what is only on its way to its name.
    let stored = || {
        let mut files = pagehaul_testkit::damage::files_below(&archived.repo.join("main/wal"));
        files.retain(|path| path.extension().is_some_and(|end| end == "phw"));
        files
    };
    let segments = format!("/{timeline:08X}/");
    wait_for("the first segment", || stored().iter().any(|path| path.to_string_lossy().contains(&segments)));
    let history = stored().into_iter().find(|path| path.to_string_lossy().ends_with(&format!("{name}.phw")));
    let history = history.unwrap_or_else(|| panic!("{name} is not archived, and WAL of its timeline is"));
    let first = stored().into_iter().filter(|path| path.to_string_lossy().contains(&segments)).min().unwrap();
    let written_at = |path: &std::path::Path| std::fs::metadata(path).unwrap().modified().unwrap();
    assert!(written_at(&history) <= written_at(&first), "{name} came after the first segment");
}
