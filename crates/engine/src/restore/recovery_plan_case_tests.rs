//! Plans in a small world: what refusals say, and where one moment or one name is there twice.

use std::collections::BTreeSet;

use super::*;

fn at(seconds: i64) -> RecoveryTarget {
    RecoveryTarget::Time(TargetTime { at: moment(seconds), assumed_zone: None })
}

/// One timeline of ten records of 16 bytes from 64 on; every second one ends a transaction, 101 at 10 s, 102 at 20 s, ...
fn plain_world(sets: &[(u64, i64)]) -> World {
    let record = |number: u64| Record {
        start: 64 + number * 16,
        end: 80 + number * 16,
        kind: if number % 2 == 1 {
            Kind::End(101 + number as u32 / 2, 10 + number as i64 / 2 * 10)
        } else {
            Kind::Plain
        },
    };
    let set = |(number, (stop, time)): (usize, &(u64, i64))| SetPoint {
        label: format!("20260101-{number:06}F").parse().unwrap(),
        timeline: TimelineId(1),
        start_lsn: Lsn(stop - 16),
        stop_lsn: Lsn(*stop),
        stop_time: Some(moment(*time)),
    };
    let wal = ArchivedWal {
        segment_size_bytes: SEGMENT,
        ranges: BTreeMap::from([(TimelineId(1), vec![1..6])]),
        ..ArchivedWal::default()
    };
    World {
        records: BTreeMap::from([(TimelineId(1), (0..20).map(record).collect())]),
        sets: sets.iter().enumerate().map(set).collect(),
        wal,
    }
}

fn refused(world: &World, target: &RecoveryTarget) -> Error {
    let wanted = Wanted { target, timeline: TargetTimeline::Latest, is_inclusive: true, label: None };
    let known = Known { sets: &world.sets, wal: &world.wal };
    plan_recovery(wanted, known, &mut &*world).unwrap_err()
}

#[test]
fn each_refusal_says_what_is_wrong_and_what_can_be_reached() {
    let mut world = plain_world(&[(112, 15), (192, 35)]);
    let check = |world: &World, target: &RecoveryTarget, cause: &str, hint: &str| {
        let error = refused(world, target);
        assert!(error.message().contains(cause), "{error}");
        assert!(error.hint_text().unwrap().contains(hint), "{error}");
    };
    check(&world, &at(5), "before 0/70, where set 20260101-000000F is consistent", "nearest: --type time");
    check(
        &world,
        &at(100),
        "the last one is of 2000-01-01T00:01:40Z",
        "nearest: --type time --target \"2000-01-01T00:01:39.999999Z\"",
    );
    check(&world, &RecoveryTarget::Lsn(Lsn(0x10)), "before 0/70", "nearest: --type lsn --target 0/70");
    check(&world, &RecoveryTarget::Lsn(Lsn(0x9999)), "archived WAL ends before it", "--type latest");
    check(&world, &RecoveryTarget::Xid(999), "no commit or rollback of it", "from about 101 to 110");
    check(&world, &RecoveryTarget::Xid(101), "before 0/70", "on timeline 1 can be reached from 0/70");
    check(&world, &RecoveryTarget::Name("x".into()), "none of that name", "no restore point");
    world.wal.ranges = BTreeMap::from([(TimelineId(1), vec![1..4, 5..6])]);
    check(&world, &at(95), "the archive has a gap: WAL segment 000000010000000000000004", "where the WAL has a gap");
    check(&world, &RecoveryTarget::Latest, "the archive has a gap", "from 0/70");
    world.wal.ranges.clear();
    check(&world, &RecoveryTarget::Latest, "no WAL is archived", "without --type");
}

#[test]
fn commits_of_one_moment_stay_together() {
    let mut world = plain_world(&[(112, 15)]);
    for record in world.records.get_mut(&TimelineId(1)).unwrap() {
        if let Kind::End(_, at) = &mut record.kind {
            *at = (*at / 50) * 50;
        }
    }
    world.sets[0].stop_time = Some(moment(0));
    let target = at(50);
    let label = |is_inclusive| {
        let wanted = Wanted { target: &target, timeline: TargetTimeline::Latest, is_inclusive, label: None };
        plan_recovery(wanted, Known { sets: &world.sets, wal: &world.wal }, &mut &world).unwrap().stops_in.unwrap()
    };
    // 50 s to 90 s are one moment now: before it, or after it.
    assert_eq!(label(false).as_str(), "000000010000000000000003");
    assert_eq!(label(true).as_str(), "000000010000000000000005");
}

#[test]
fn a_name_that_is_there_twice_needs_a_set() {
    let mut world = plain_world(&[(112, 15), (192, 35)]);
    let path = world.records.get_mut(&TimelineId(1)).unwrap();
    path[4].kind = Kind::Point("here");
    path[12].kind = Kind::Point("here");
    let target = RecoveryTarget::Name("here".into());
    assert!(refused(&world, &target).message().contains("there are 2 of that name"));
    let known = Known { sets: &world.sets, wal: &world.wal };
    let labels: BTreeSet<_> = world.sets.iter().map(|set| set.label.clone()).collect();
    let stops = labels.iter().map(|label| {
        let wanted =
            Wanted { target: &target, timeline: TargetTimeline::Latest, is_inclusive: true, label: Some(label) };
        plan_recovery(wanted, known, &mut &world).unwrap().stops_in.unwrap().to_string()
    });
    assert_eq!(stops.collect::<Vec<_>>(), ["000000010000000000000002", "000000010000000000000004"]);
}
