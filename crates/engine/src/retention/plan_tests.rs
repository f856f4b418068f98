//! Decisions on small made-up sources, with their words.

use jiff::{SignedDuration, Timestamp};

use super::facts::{CompleteSet, HistoryFacts, RetentionInventory, SetContent, SetFacts, SourceDamage, WalObject};
use super::plan::{Decisions, Fate, plan};
use super::policy::{KeepWal, RetentionPolicy};
use crate::terms::{BackupKind, Lsn, TimelineId};

const GIB: u64 = 1 << 30;

/// A full set of timeline 1 and cluster 7, finished at `day` and LSN `at`; the letter of its label says its kind.
fn set(label: &str, day: &str, at: u64) -> SetFacts {
    let kind = if label.ends_with('F') { BackupKind::Full } else { BackupKind::Incremental };
    SetFacts {
        label: label.parse().unwrap(),
        kind,
        content: SetContent::Complete(Box::new(CompleteSet {
            system_identifier: 7,
            timeline: TimelineId(1),
            start_lsn: Lsn(at),
            stop_lsn: Lsn(at + 10),
            finished_at: Some(noon(day)),
            prior: Vec::new(),
            source_bytes: GIB,
            stored_bytes: 100,
            flaw: None,
            damage: SourceDamage::default(),
        })),
        pin: None,
        protected_until: None,
        is_expiring: false,
        is_leased: false,
    }
}

fn noon(day: &str) -> Timestamp {
    format!("{day}T12:00:00Z").parse().unwrap()
}

fn change(set: SetFacts, change: impl FnOnce(&mut CompleteSet)) -> SetFacts {
    let SetContent::Complete(mut complete) = set.content else { panic!("it is not complete") };
    change(&mut complete);
    SetFacts { content: SetContent::Complete(complete), ..set }
}

fn wal(object: &str, timeline: u32, start: u64, end: u64) -> WalObject {
    WalObject {
        object: object.to_owned(),
        system_identifier: 7,
        timeline: TimelineId(timeline),
        start_lsn: Lsn(start),
        end_lsn: Lsn(end),
        stored_bytes: 1,
        last_commit_at: None,
    }
}

fn decide(sets: Vec<SetFacts>, policy: &RetentionPolicy, today: &str) -> Decisions {
    decide_all(&RetentionInventory { sets, clusters: vec![7], ..RetentionInventory::default() }, policy, today)
}

fn decide_all(inventory: &RetentionInventory, policy: &RetentionPolicy, today: &str) -> Decisions {
    plan(inventory, policy, noon(today))
}

/// Checks each set's line: `label fate: reason`, with the fate as + keep, - remove, ~ later.
fn check(decisions: &Decisions, expected: &[&str]) {
    let line = |set: &super::plan::SetDecision| {
        let fate = match set.fate {
            Fate::Keep => '+',
            Fate::Later => '~',
            Fate::Remove => '-',
        };
        format!("{} {fate} {}", set.label, set.reasons.join("; "))
    };
    let lines: Vec<String> = decisions.sets.iter().map(line).collect();
    assert_eq!(lines, expected);
}

fn count(keep_full: u32) -> RetentionPolicy {
    RetentionPolicy { keep_full: Some(keep_full), ..RetentionPolicy::default() }
}

/// Barman counted incrementals as sets, and deletion left no restorable one.
#[test]
fn a_count_counts_full_sets_and_keeps_what_is_built_on_them() {
    let on = |label: &str, day: &str, at: u64, prior: &[&str]| {
        change(set(label, day, at), |set| set.prior = prior.iter().map(|prior| prior.parse().unwrap()).collect())
    };
    let sets = vec![
        set("20261101-000000F", "2026-11-01", 100),
        on("20261102-000000I", "2026-11-02", 200, &["20261101-000000F"]),
        set("20261103-000000F", "2026-11-03", 300),
        on("20261104-000000I", "2026-11-04", 400, &["20261103-000000F"]),
        on("20261105-000000I", "2026-11-05", 500, &["20261104-000000I", "20261103-000000F"]),
    ];
    check(
        &decide(sets, &count(1), "2026-11-06"),
        &[
            "20261101-000000F - no rule keeps it",
            "20261102-000000I - no rule keeps it",
            "20261103-000000F + never fewer than 1 restorable full; full 1 of the last 1",
            "20261104-000000I + built on 20261103-000000F, which is kept",
            "20261105-000000I + the newest set; built on 20261103-000000F, which is kept",
        ],
    );
}

/// Good copies expired while each new backup had the damaged page.
#[test]
fn f24_the_last_set_in_which_a_page_is_whole_stays() {
    let bad = |label: &str, day: &str, at: u64, pages: &[u32]| {
        let pages = pages.iter().map(|page| ("base/5/16384".to_owned(), *page)).collect();
        change(set(label, day, at), |set| set.damage = SourceDamage { pages, has_more: false })
    };
    let on = |prior: &str, set: SetFacts| change(set, |set| set.prior = vec![prior.parse().unwrap()]);
    let mut sets = vec![
        set("20261101-000000F", "2026-11-01", 100),
        set("20261102-000000F", "2026-11-02", 200),
        bad("20261103-000000F", "2026-11-03", 300, &[7]),
        // Page 7 was left as it is in the set that this one is built on.
        on("20261103-000000F", set("20261104-000000I", "2026-11-04", 400)),
        bad("20261105-000000F", "2026-11-05", 500, &[7, 9]),
        bad("20261106-000000F", "2026-11-06", 600, &[7, 9]),
    ];
    let expected = [
        "20261101-000000F - no rule keeps it",
        "20261102-000000F + page 7 of base/5/16384 is whole in it and damaged since",
        "20261103-000000F + 20261104-000000I needs it",
        "20261104-000000I + page 9 of base/5/16384 is whole in it and damaged since",
        "20261105-000000F - no rule keeps it",
        "20261106-000000F + the newest set; never fewer than 1 restorable full; full 1 of the last 1",
    ];
    let decided = decide(sets.clone(), &count(1), "2026-11-07");
    check(&decided, &expected);
    assert!(decided.sets[1].anchors_wal, "with the WAL since then it is as good as the newest one");
    // More than could be listed: only a set without any damage is sure to have the page.
    sets[5] = change(sets[5].clone(), |set| set.damage.has_more = true);
    sets[4] = change(sets[4].clone(), |set| set.damage.has_more = true);
    let decided = decide(sets.clone(), &count(1), "2026-11-07");
    assert_eq!(decided.sets.iter().filter(|set| set.fate == Fate::Keep).count(), 4, "{decided:?}");
    // When the page is whole again the old copy is one like any other.
    sets.push(set("20261107-000000F", "2026-11-07", 700));
    let decided = decide(sets, &count(1), "2026-11-08");
    assert_eq!(decided.sets.iter().filter(|set| set.fate == Fate::Keep).count(), 1, "{decided:?}");
}

#[test]
fn periods_keep_the_newest_of_each_and_a_chain_as_a_whole() {
    let built = |label: &str, day: &str, at: u64| {
        change(set(label, day, at), |set| set.prior = vec!["20261228-000000F".parse().unwrap()])
    };
    let sets = vec![
        set("20251231-000000F", "2025-12-31", 50),
        set("20261228-000000F", "2026-12-28", 100),
        built("20261229-000000I", "2026-12-29", 200),
        built("20270102-000000I", "2027-01-02", 300),
        set("20270103-000000F", "2027-01-03", 400),
        set("20270104-000000F", "2027-01-04", 500),
    ];
    // 2 January 2027 is in ISO week 53 of 2026, with 28 December 2026.
    let policy = RetentionPolicy { keep_daily: 3, keep_weekly: 2, keep_yearly: 3, ..RetentionPolicy::default() };
    check(
        &decide(sets, &policy, "2027-01-05"),
        &[
            "20251231-000000F + yearly 2025",
            "20261228-000000F + 20270102-000000I needs it",
            "20261229-000000I + yearly 2026",
            "20270102-000000I + daily 2027-01-02",
            "20270103-000000F + daily 2027-01-03; weekly 2026-W53",
            "20270104-000000F + the newest set; never fewer than 1 restorable full; daily 2027-01-04; weekly 2027-W01; yearly 2027",
        ],
    );
}

#[test]
fn a_window_begins_with_the_newest_set_before_it_on_each_line_of_history() {
    let branch = |label: &str, day: &str, at: u64| change(set(label, day, at), |set| set.timeline = TimelineId(2));
    let sets = vec![
        set("20261101-000000F", "2026-11-01", 100),
        set("20261103-000000F", "2026-11-03", 300),
        set("20261105-000000F", "2026-11-05", 500),
        set("20261109-000000F", "2026-11-09", 900),
        // Recovery to LSN 400 on 10 November, and a new timeline from there.
        branch("20261111-000000F", "2026-11-11", 450),
    ];
    let mut on_old = wal("old", 1, 0, 1000);
    on_old.last_commit_at = Some(noon("2026-11-09"));
    let inventory = RetentionInventory {
        sets,
        clusters: vec![7],
        histories: vec![HistoryFacts {
            system_identifier: 7,
            timeline: TimelineId(2),
            branches: vec![(TimelineId(1), Lsn(400))],
        }],
        wal: vec![on_old, wal("first", 1, 0, 100), wal("new", 2, 400, 500)],
    };
    let policy =
        RetentionPolicy { keep_window: Some(SignedDuration::from_hours(24 * 6)), ..RetentionPolicy::default() };
    let decisions = decide_all(&inventory, &policy, "2026-11-12");
    check(
        &decisions,
        &[
            "20261101-000000F - no rule keeps it",
            "20261103-000000F + the newest before the window: recovery into it begins here",
            "20261105-000000F + the newest before the window: recovery into it begins here",
            "20261109-000000F + within the window",
            "20261111-000000F + the newest set; never fewer than 1 restorable full; within the window",
        ],
    );
    let fates: Vec<(&str, Fate)> = decisions.wal.iter().map(|wal| (wal.object.as_str(), wal.fate)).collect();
    assert_eq!(fates, [("first", Fate::Remove), ("old", Fate::Keep), ("new", Fate::Keep)]);
}

/// Dumps that failed and were called a success have pushed out the good ones elsewhere.
#[test]
fn what_is_empty_cut_or_of_the_future_pushes_nothing_out() {
    let sets = vec![
        set("20261101-000000F", "2026-11-01", 100),
        set("20261102-000000F", "2026-11-02", 200),
        change(set("20261103-000000F", "2026-11-03", 300), |set| set.source_bytes = GIB / 100),
        change(set("20261104-000000F", "2026-11-04", 400), |set| {
            set.flaw = Some("stripe-0000.phs is not in /r".into());
        }),
        change(set("20361105-000000F", "2036-11-05", 500), |_| {}),
        change(set("19700101-000000F", "1970-01-01", 600), |_| {}),
        change(set("20261107-000000I", "2026-11-07", 700), |set| set.prior = vec!["20200101-000000F".parse().unwrap()]),
        SetFacts { content: SetContent::Unfinished, ..set("20261108-000000F", "2026-11-08", 0) },
        SetFacts { content: SetContent::Running, ..set("20261109-000000F", "2026-11-09", 0) },
    ];
    let decisions = decide(sets, &count(1), "2026-11-10");
    let kept: Vec<&str> =
        decisions.sets.iter().filter(|set| set.fate == Fate::Keep).map(|set| set.label.as_str()).collect();
    assert!(!kept.contains(&"20261101-000000F"), "the rule is fulfilled by a newer good one: {kept:?}");
    assert!(kept.contains(&"20261102-000000F"), "the newest good one stays: {kept:?}");
    let text = format!("{decisions:?}");
    for why in
        ["an emptied directory", "stripe-0000.phs is not in /r", "lies in the future", "contradict", "is not there"]
    {
        assert!(text.contains(why), "{why} is not in {text}");
    }
}

#[test]
fn an_incremental_that_cannot_be_read_may_need_any_set() {
    let riddle = |label: &str| SetFacts {
        content: SetContent::Unreadable("damaged".to_owned()),
        ..set(label, "2026-11-03", 300)
    };
    let sets =
        |riddle| vec![set("20261101-000000F", "2026-11-01", 100), set("20261102-000000F", "2026-11-02", 200), riddle];
    let fate = |sets| decide(sets, &count(1), "2026-11-10").sets[0].fate;
    assert_eq!(fate(sets(riddle("20261103-000000I"))), Fate::Keep);
    assert_eq!(fate(sets(riddle("20261103-000000F"))), Fate::Remove);
}

#[test]
fn pins_leases_and_tombstones() {
    let mut sets: Vec<SetFacts> =
        (1..=5).map(|day| set(&format!("2026110{day}-000000F"), &format!("2026-11-0{day}"), day * 100)).collect();
    sets[0].pin = Some("before the upgrade".to_owned());
    sets[1].is_leased = true;
    sets[2].is_expiring = true;
    check(
        &decide(sets, &count(1), "2026-11-06"),
        &[
            "20261101-000000F + pinned: before the upgrade",
            "20261102-000000F ~ no rule keeps it, but somebody uses it now: a later expire removes it",
            "20261103-000000F - an earlier expire decided so",
            "20261104-000000F - no rule keeps it",
            "20261105-000000F + the newest set; never fewer than 1 restorable full; full 1 of the last 1",
        ],
    );
}

/// The store would keep their bytes anyway: they are not hidden either.
#[test]
fn s19_sets_that_are_protected_stay_with_what_they_need() {
    let mut sets: Vec<SetFacts> =
        (1..=3).map(|day| set(&format!("2026110{day}-000000F"), &format!("2026-11-0{day}"), day * 100)).collect();
    let incremental = set("20261101-120000I", "2026-11-01", 150);
    sets.insert(1, change(incremental, |set| set.prior = vec!["20261101-000000F".parse().unwrap()]));
    sets[1].protected_until = Some(noon("2026-12-24"));
    check(
        &decide(sets, &count(1), "2026-11-06"),
        &[
            "20261101-000000F + 20261101-120000I needs it",
            "20261101-120000I + protected until 2026-12-24T12:00:00Z",
            "20261102-000000F - no rule keeps it",
            "20261103-000000F + the newest set; never fewer than 1 restorable full; full 1 of the last 1",
        ],
    );
}

#[test]
fn the_last_restorable_set_is_not_removed_though_it_has_a_tombstone() {
    let mut only = set("20261101-000000F", "2026-11-01", 100);
    only.is_expiring = true;
    let broken = change(set("20261102-000000F", "2026-11-02", 200), |set| set.flaw = Some("a stripe is gone".into()));
    let decisions = decide(vec![only, broken], &count(1), "2026-11-06");
    assert!(decisions.sets.iter().all(|set| set.fate == Fate::Keep), "{decisions:?}");
}

/// Whoever may back up can put a tombstone into any set: it hides the set, and costs nobody a set or its WAL.
#[test]
fn s19_a_tombstone_is_no_reason_for_a_set_to_go_that_the_rules_keep() {
    let sets = |buried: &[usize]| -> Vec<SetFacts> {
        let full = |day: u64| set(&format!("2026110{day}-000000F"), &format!("2026-11-0{day}"), day * 100);
        let mut sets: Vec<SetFacts> = (1..=5).map(full).collect();
        buried.iter().for_each(|place| sets[*place].is_expiring = true);
        sets
    };
    check(
        &decide(sets(&[0, 4]), &count(2), "2026-11-06"),
        &[
            "20261101-000000F - an earlier expire decided so",
            "20261102-000000F - no rule keeps it",
            "20261103-000000F + full 2 of the last 2",
            "20261104-000000F + the newest set; never fewer than 1 restorable full; full 1 of the last 2; full 2 of the last 2",
            "20261105-000000F + it has a tombstone that these rules do not want: the newest set; \
             never fewer than 1 restorable full; full 1 of the last 2",
        ],
    );
    // Whatever has one: what is kept without them is kept.
    for buried in 0..1_u32 << 5 {
        let places: Vec<usize> = (0..5).filter(|place| buried >> place & 1 == 1).collect();
        for keep in 1..=3 {
            let (without, with) =
                (decide(sets(&[]), &count(keep), "2026-11-06"), decide(sets(&places), &count(keep), "2026-11-06"));
            for (set, same) in without.sets.iter().zip(&with.sets) {
                assert!(set.fate != Fate::Keep || same.fate == Fate::Keep && same.anchors_wal, "{places:?} {same:?}");
            }
        }
    }
}

/// A cluster that took the place of another one under the same name, as after an upgrade: one order, the newer last.
#[test]
fn sets_of_an_earlier_cluster_are_older_whatever_their_positions() {
    let newer = |label: &str, day: &str, at: u64| change(set(label, day, at), |set| set.system_identifier = 8);
    let sets = vec![
        set("20261101-000000F", "2026-11-01", 90_000),
        set("20261102-000000F", "2026-11-02", 95_000),
        newer("20261103-000000F", "2026-11-03", 100),
    ];
    let wal_of = |cluster: u64, object: &str, start: u64| WalObject {
        system_identifier: cluster,
        ..wal(object, 1, start, start + 100)
    };
    let inventory = |clusters: &[u64]| RetentionInventory {
        sets: sets.clone(),
        clusters: clusters.to_vec(),
        histories: Vec::new(),
        wal: vec![wal_of(7, "old", 80_000), wal_of(7, "last", 95_000), wal_of(8, "new", 100), wal_of(9, "stranger", 1)],
    };
    let decisions = decide_all(&inventory(&[7, 8]), &count(2), "2026-11-06");
    let fates: Vec<Fate> = decisions.sets.iter().map(|set| set.fate).collect();
    assert_eq!(fates, [Fate::Remove, Fate::Keep, Fate::Keep], "the old cluster stays restorable as long as it counts");
    let wal: Vec<(&str, Fate)> = decisions.wal.iter().map(|wal| (wal.object.as_str(), wal.fate)).collect();
    assert_eq!(wal, [("old", Fate::Remove), ("last", Fate::Keep), ("new", Fate::Keep), ("stranger", Fate::Keep)]);
    let decisions = decide_all(&inventory(&[7, 8]), &count(1), "2026-11-06");
    let going: Vec<&str> =
        decisions.wal.iter().filter(|wal| wal.fate == Fate::Remove).map(|wal| wal.object.as_str()).collect();
    assert_eq!(going, ["old", "last"], "no kept set of that cluster is left");
}

/// WAL-G's `delete retain` purged all WAL of a bucket.
#[test]
fn wal_is_kept_from_where_it_is_said_to_be() {
    let mut sets: Vec<SetFacts> =
        (1..=3).map(|day| set(&format!("2026110{day}-000000F"), &format!("2026-11-0{day}"), day * 100)).collect();
    sets[0].pin = Some(String::new());
    let objects = || vec![wal("a", 1, 50, 100), wal("b", 1, 100, 150), wal("c", 1, 150, 250), wal("d", 1, 250, 350)];
    let going = |keep_wal: KeepWal, wal: Vec<WalObject>, sets: Vec<SetFacts>| -> Vec<String> {
        let inventory = RetentionInventory { sets, clusters: vec![7], histories: Vec::new(), wal };
        let decisions = decide_all(&inventory, &RetentionPolicy { keep_wal, ..count(2) }, "2026-11-06");
        decisions.wal.into_iter().filter(|wal| wal.fate == Fate::Remove).map(|wal| wal.object).collect()
    };
    assert_eq!(going(KeepWal::All, objects(), sets.clone()), ["a"]);
    assert_eq!(going(KeepWal::Window, objects(), sets.clone()), ["a", "b"], "c holds the start of the second set");
    assert_eq!(going(KeepWal::Sets, objects(), sets.clone()), ["a", "b", "c"]);
    assert_eq!(going(KeepWal::Sets, objects(), Vec::new()), [""; 0], "without a set nothing says what is needed");
    // A timeline of which no history says where it comes from, and one that is newer than every set.
    let strange = vec![wal("unknown", 2, 50, 100), wal("newest", 9, 50, 100)];
    assert_eq!(going(KeepWal::Window, strange, sets), [""; 0]);
}

#[test]
fn rules_that_say_nothing_are_refused() {
    let refused = |policy: RetentionPolicy, part: &str| {
        let error = policy.check().unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    };
    refused(RetentionPolicy::default(), "there are none");
    refused(RetentionPolicy { min_sets: 0, ..count(1) }, "--min-sets 0");
    refused(count(0), "--keep-full 0");
    let window = Some(SignedDuration::from_hours(24));
    refused(RetentionPolicy { keep_window: window, keep_wal: KeepWal::Sets, ..count(1) }, "--keep-wal sets");
    refused(RetentionPolicy { keep_window: Some(SignedDuration::ZERO), ..RetentionPolicy::default() }, "--keep-window");
    assert!(count(1).check().is_ok());
}
