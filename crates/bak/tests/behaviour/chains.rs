//! Sets of a directory as chains.

use pagehaul_bak::bytes::BakFile;
use pagehaul_bak::chain::{ChainReport, chains};
use pagehaul_bak::facts::SetKind;
use pagehaul_bak::fixture::{Database, Media, Set, write};
use pagehaul_bak::inspect::inspect;
use pagehaul_bak::sql::{Guid, SqlLsn};

/// Each set in a file of its own, in some order.
fn chains_of(sets: &[&Set]) -> ChainReport {
    let mut files = Vec::new();
    for (number, set) in (1u8..).zip(sets) {
        let media = Media { guid: Guid([number; 16]), is_compressed: number % 2 == 0, ..Media::plain() };
        let bytes = write(&media, &[(*set).clone()]).remove(0);
        files.push(BakFile::in_memory(&format!("{number}.bak"), bytes));
    }
    files.reverse();
    chains(&inspect(&files).unwrap())
}

fn full() -> Set {
    Set::full(Database::new(2))
}

fn kinds(report: &ChainReport, chain: usize) -> Vec<SetKind> {
    report.databases[0].chains[chain].steps.iter().map(|step| step.kind).collect()
}

#[test]
fn full_differential_and_log_make_a_chain() {
    let full = full();
    let differential = Set::differential(&full, full.database, vec![0]);
    let logs: Vec<Set> = [(150, 250), (250, 350), (350, 420), (420, 500)]
        .iter()
        .zip(0x80..)
        .map(|((from, to), number)| Set::log(&full, number, *from, *to))
        .collect();
    let report = chains_of(&[&logs[2], &full, &logs[0], &differential, &logs[3], &logs[1]]);
    assert!(report.is_whole, "{report:?}");
    assert_eq!(kinds(&report, 0), [SetKind::Full, SetKind::Differential, SetKind::Log, SetKind::Log]);
    assert_eq!(report.databases[0].chains[0].restorable_to_lsn, SqlLsn { log_file: 24, block: 500, record: 1 });
}

#[test]
fn a_gap_in_the_log_is_shown() {
    let full = full();
    let logs = [Set::log(&full, 0x80, 150, 250), Set::log(&full, 0x81, 300, 400)];
    let report = chains_of(&[&full, &logs[0], &logs[1]]);
    assert!(!report.is_whole);
    let gap = report.databases[0].chains[0].gap.unwrap();
    assert_eq!((gap.from_lsn.block, gap.to_lsn.block), (250, 300));
    let unusable = &report.databases[0].unusable;
    assert_eq!(unusable.len(), 1);
    assert!(unusable[0].cause.contains("log before it is missing"), "{}", unusable[0].cause);
}

/// F37: a full backup that somebody else made in between is the base of the differentials after it.
#[test]
fn f37_a_foreign_full_backup_breaks_the_base_of_a_differential() {
    let ours = full();
    let lsn = |block| SqlLsn { log_file: 24, block, record: 1 };
    let foreign = Set { guid: Guid([0xf0; 16]), first_lsn: lsn(210), last_lsn: lsn(260), ..full() };
    let differential = Set::differential(&foreign, ours.database, vec![0]);
    let report = chains_of(&[&ours, &differential]);
    assert!(!report.is_whole);
    assert_eq!(kinds(&report, 0), [SetKind::Full]);
    let cause = &report.databases[0].unusable[0].cause;
    assert!(cause.contains(&foreign.guid.to_string()) && cause.contains("another full backup was made"), "{cause}");
    // With that full backup there is a chain again; a copy-only one would not have broken it.
    assert!(chains_of(&[&ours, &differential, &foreign]).is_whole);
    let copy = Set { is_copy_only: true, ..foreign };
    let of_ours = Set::differential(&ours, ours.database, vec![0]);
    let report = chains_of(&[&ours, &copy, &of_ours]);
    assert!(report.is_whole, "{report:?}");
    assert_eq!(kinds(&report, 0), [SetKind::Full, SetKind::Differential]);
    // And nothing is ever built on a copy-only one.
    let report = chains_of(&[&ours, &copy, &differential]);
    assert!(report.databases[0].unusable[0].cause.contains("is a copy-only backup"));
}

/// F37: the base has the right id, but another LSN.
#[test]
fn f37_a_base_of_another_lsn_is_no_base() {
    let ours = full();
    let mut differential = Set::differential(&ours, ours.database, vec![0]);
    differential.base.1 = SqlLsn { log_file: 24, block: 101, record: 1 };
    let report = chains_of(&[&ours, &differential]);
    assert!(!report.is_whole);
    assert!(report.databases[0].unusable[0].cause.contains("is not of that LSN"));
}

/// F37: after a change of the recovery model, or a restore elsewhere, log goes on on another line.
#[test]
fn f37_log_of_another_line_of_history_is_not_replayed() {
    let ours = full();
    let log = Set { fork: Guid([0x3a; 16]), ..Set::log(&ours, 0x80, 150, 300) };
    let report = chains_of(&[&ours, &log]);
    assert_eq!(kinds(&report, 0), [SetKind::Full]);
    assert!(report.databases[0].unusable[0].cause.contains("line of history"));
}

/// F37: a set of which a stripe is missing is no part of a chain.
#[test]
fn f37_a_set_without_all_its_files_is_not_used() {
    let media = Media { family_count: 2, ..Media::plain() };
    let bytes = write(&media, &[full()]).remove(0);
    let report = chains(&inspect(&[BakFile::in_memory("1of2.bak", bytes)]).unwrap());
    assert!(!report.is_whole && report.databases[0].chains.is_empty());
    assert!(report.databases[0].unusable[0].cause.contains("not complete"));
}
