//! Plans against a small model of PostgreSQL's recovery: a plan is made exactly if a server would reach the target.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::catalog::SegmentFacts;
use crate::catalog::timeline_path::Ancestors;
use crate::restore::recovery_target::TargetTime;
use crate::terms::{RestorePoint, WalTime};

#[path = "recovery_plan_case_tests.rs"]
mod cases;

const SEGMENT: u64 = 64;
/// 2000-01-01, where WAL's time begins.
const EPOCH_S: i64 = 946_684_800;

/// One WAL record.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    start: u64,
    end: u64,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    /// Transaction and its time in seconds.
    End(u32, i64),
    Point(&'static str),
}

/// All that ever was written, and what of it is archived.
#[derive(Clone, Debug)]
struct World {
    /// Of each timeline the records of its whole path.
    records: BTreeMap<TimelineId, Vec<Record>>,
    sets: Vec<SetPoint>,
    wal: ArchivedWal,
}

impl World {
    /// Where the WAL ends that is archived of a segment.
    fn end_of(&self, stop: Stop) -> u64 {
        let tail = self.wal.tails.get(&(stop.timeline, stop.number)).map(|end| end.0);
        let is_there = self.wal.has(stop.timeline, stop.number) || tail.is_some();
        assert!(is_there, "{stop:?} is not archived");
        tail.unwrap_or((stop.number + 1) * SEGMENT)
    }

    fn of(&self, stop: Stop) -> impl Iterator<Item = &Record> {
        let (begin, end) = (stop.number * SEGMENT, self.end_of(stop));
        self.records[&stop.timeline].iter().filter(move |record| begin <= record.start && record.end <= end)
    }
}

fn facts_of<'a>(records: impl Iterator<Item = &'a Record>) -> WalFacts {
    let mut facts = WalFacts { whole: true, ..WalFacts::default() };
    for record in records {
        facts.end_lsn = Lsn(record.end);
        match record.kind {
            Kind::Plain => {}
            Kind::End(xid, at) => facts.note_end(xid, WalTime(at * 1_000_000)),
            Kind::Point(name) => {
                facts.restore_points.push(RestorePoint { name: name.into(), lsn: Lsn(record.end), at: WalTime(0) });
            }
        }
    }
    facts
}

impl SegmentFacts for &World {
    fn facts(&mut self, timeline: TimelineId, number: u64) -> Result<WalFacts> {
        let stop = Stop { timeline, number };
        let end = self.end_of(stop);
        let mut facts = facts_of(self.of(stop));
        // The last record that ends in a segment may have begun before.
        let ends_here = |record: &&Record| record.end > number * SEGMENT && record.end <= end;
        facts.end_lsn = self.records[&timeline].iter().rev().find(ends_here).map_or(Lsn(0), |record| Lsn(record.end));
        Ok(facts)
    }
}

impl WalRecords for &World {
    fn crossing(&mut self, stop: Stop, next: Stop) -> Result<WalFacts> {
        let (boundary, end) = (next.number * SEGMENT, self.end_of(next));
        assert!(stop.number + 1 == next.number, "{stop:?} {next:?}");
        if self.end_of(stop) < boundary {
            return Ok(WalFacts::default());
        }
        let crosses = |record: &&Record| record.start < boundary && boundary < record.end && record.end <= end;
        Ok(facts_of(self.records[&next.timeline].iter().filter(crosses)))
    }

    fn end_of_transaction(&mut self, stop: Stop, xid: u32) -> Result<Option<Lsn>> {
        let ended = self.of(stop).find(|record| matches!(record.kind, Kind::End(other, _) if other == xid));
        Ok(ended.map(|record| Lsn(record.end)))
    }

    fn record_from(&mut self, stop: Stop, lsn: Lsn) -> Result<Option<(Lsn, bool)>> {
        let end = self.end_of(stop);
        let begin = lsn.0.max(stop.number * SEGMENT);
        let mut from = self.records[&stop.timeline].iter().filter(|record| begin <= record.start && record.start < end);
        Ok(from.next().map(|record| (Lsn(record.start), record.end <= end)))
    }
}

/// The records from `branch` on of a new timeline, each of (length / 8, kind).
fn written(begin: u64, script: &[(u64, u8)], next_xid: &mut u32, clock: &mut i64) -> Vec<Record> {
    let mut at = begin;
    let record = |(length, kind): &(u64, u8)| {
        let start = at;
        at += length * 8;
        let kind = match kind {
            0..3 => {
                *next_xid += 1;
                // Commit times go back now and then.
                *clock += if *kind == 0 { -1 } else { 2 };
                Kind::End(*next_xid, *clock)
            }
            3 => Kind::Point("a"),
            4 => Kind::Point("b"),
            _ => Kind::Plain,
        };
        Record { start, end: at, kind }
    };
    script.iter().map(record).collect()
}

fn worlds() -> impl Strategy<Value = World> {
    let script = || prop::collection::vec((1u64..6, 0u8..12), 10..30);
    let timelines = prop::collection::vec((script(), any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..4);
    let lost = prop::collection::btree_set((1u32..4, 0u64..12), 0..4);
    let sets = prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..4);
    // Of segments that are lost as a whole, or were never finished.
    let pieces = prop::collection::btree_map((1u32..4, 0u64..14), 1..SEGMENT, 0..8);
    (timelines, lost, sets, pieces).prop_map(|(timelines, lost, sets, pieces)| {
        let (mut xid, mut clock) = (100, 1000);
        let mut records: BTreeMap<TimelineId, Vec<Record>> = BTreeMap::new();
        let mut histories: BTreeMap<TimelineId, Ancestors> = BTreeMap::new();
        for (number, (script, parent, branch)) in timelines.iter().enumerate() {
            let timeline = TimelineId(number as u32 + 1);
            let mut path = Vec::new();
            if number > 0 {
                let parent = TimelineId(parent.index(number) as u32 + 1);
                path.clone_from(&records[&parent]);
                path.truncate(branch.index(path.len()) + 1);
                let mut ancestors = histories.get(&parent).cloned().unwrap_or_default();
                let at = path.last().unwrap().end;
                // A recovery never goes back behind the branch of the timeline that it follows.
                ancestors.retain(|(_, branch)| branch.0 <= at);
                ancestors.push((parent, Lsn(at)));
                histories.insert(timeline, ancestors);
            }
            let begin = path.last().map_or(SEGMENT, |last| last.end);
            path.extend(written(begin, script, &mut xid, &mut clock));
            records.insert(timeline, path);
        }
        let ranges = records.iter().map(|(timeline, path)| {
            let branch = histories.get(timeline).and_then(|list| list.last()).map_or(SEGMENT, |last| last.1.0);
            let all = branch / SEGMENT..path.last().unwrap().end / SEGMENT;
            (*timeline, ranges_of(all.filter(|number| !lost.contains(&(timeline.0, *number)))))
        });
        let ranges = ranges.collect();
        let mut wal = ArchivedWal { segment_size_bytes: SEGMENT, ranges, histories, ..ArchivedWal::default() };
        add_pieces(&mut wal, &records, pieces);
        let choose = |(timeline, stop): &(prop::sample::Index, prop::sample::Index)| {
            let timeline = TimelineId(timeline.index(records.len()) as u32 + 1);
            // Only what the timeline wrote itself can be backed up on it.
            let branch = wal.histories.get(&timeline).and_then(|list| list.last()).map_or(0, |last| last.1.0);
            let own: Vec<&Record> = records[&timeline].iter().filter(|record| branch <= record.start).collect();
            let at = stop.index(own.len());
            (timeline, own[at.saturating_sub(2)].start, own[at].end)
        };
        let chosen: Vec<(TimelineId, u64, u64)> = sets.iter().map(choose).collect();
        // The last record of a backup is its own.
        for record in records.values_mut().flatten() {
            if chosen.iter().any(|(_, _, stop)| record.end == *stop) {
                record.kind = Kind::Plain;
            }
        }
        let sets = chosen.into_iter().enumerate().map(|(number, (timeline, start, stop))| {
            let before = records[&timeline].iter().filter(|record| record.end <= stop);
            let times = before.filter_map(|record| match record.kind {
                Kind::End(_, at) => Some(at),
                _ => None,
            });
            SetPoint {
                label: format!("20260101-{number:06}F").parse().unwrap(),
                timeline,
                start_lsn: Lsn(start),
                stop_lsn: Lsn(stop),
                stop_time: Some(moment(times.max().unwrap_or(0))),
            }
        });
        World { sets: sets.collect(), records, wal }
    })
}

/// Adds pieces, by length, of segments that are not there as a whole.
fn add_pieces(wal: &mut ArchivedWal, records: &BTreeMap<TimelineId, Vec<Record>>, pieces: BTreeMap<(u32, u64), u64>) {
    for ((timeline, number), length) in pieces {
        let timeline = TimelineId(timeline);
        let Some(end) = records.get(&timeline).and_then(|path| path.last()).map(|last| last.end) else { continue };
        let branch = wal.histories.get(&timeline).and_then(|list| list.last()).map_or(SEGMENT, |last| last.1.0);
        if (branch / SEGMENT..end.div_ceil(SEGMENT)).contains(&number) && !wal.has(timeline, number) {
            wal.tails.insert((timeline, number), Lsn((number * SEGMENT + length).min(end)));
        }
    }
}

fn ranges_of(numbers: impl Iterator<Item = u64>) -> Vec<std::ops::Range<u64>> {
    let mut ranges: Vec<std::ops::Range<u64>> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some(last) if last.end == number => last.end += 1,
            _ => ranges.push(number..number + 1),
        }
    }
    ranges
}

fn moment(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds + EPOCH_S).unwrap()
}

/// What a server does with a set, a target and a timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    /// All records before this position are replayed; it stopped because of a record that ends in this segment.
    Reached(u64, Stop),
    /// It ends with a fatal error.
    Fatal,
    /// It read WAL that is not of the timeline it follows.
    Astray,
}

/// Recovery as the server does it. It takes a file of an older timeline when that of the right one is missing, unless
/// `is_strict`; and it has the set's own segments.
fn recover(world: &World, set: &SetPoint, wanted: Wanted<'_>, timeline: TimelineId, is_strict: bool) -> Outcome {
    let path = TimelinePath::new(timeline, &world.wal.histories);
    if !path.holds(set.timeline, set.stop_lsn) {
        return Outcome::Fatal;
    }
    let mut is_consistent = false;
    for record in world.records[&timeline].iter().filter(|record| set.start_lsn.0 <= record.start) {
        for number in record.start / SEGMENT..=(record.end - 1) / SEGMENT {
            match readable(world, set, &path, (number, record.end), is_strict) {
                Some(true) => {}
                Some(false) => return Outcome::Astray,
                None => return Outcome::Fatal,
            }
        }
        let stop =
            Stop { timeline: path.owner((record.end - 1) / SEGMENT, SEGMENT), number: (record.end - 1) / SEGMENT };
        let reached =
            |lsn| if is_consistent || lsn >= set.stop_lsn.0 { Outcome::Reached(lsn, stop) } else { Outcome::Fatal };
        if stops_before(record, wanted) {
            return reached(record.start);
        }
        is_consistent |= record.end >= set.stop_lsn.0;
        if stops_after(record, wanted) {
            return if is_consistent { Outcome::Reached(record.end, stop) } else { Outcome::Fatal };
        }
    }
    Outcome::Fatal
}

/// Whether the part of a record that ends at `end` can be read from segment `number`; false if it is not of the path.
fn readable(
    world: &World,
    set: &SetPoint,
    path: &TimelinePath,
    (number, end): (u64, u64),
    is_strict: bool,
) -> Option<bool> {
    let owner = path.owner(number, SEGMENT);
    let own = set.start_lsn.0 / SEGMENT..=(set.stop_lsn.0 - 1) / SEGMENT;
    if world.wal.has(owner, number) {
        return Some(true);
    }
    // The set's last segment is whole only up to its stop; the walk past it needs the archive's.
    if own.contains(&number) && owner == set.timeline && number < set.stop_lsn.0 / SEGMENT {
        return Some(true);
    }
    // Zeros follow. A server that has more than this itself is not given it.
    if let Some(tail) = world.wal.tails.get(&(owner, number)) {
        return (end.min((number + 1) * SEGMENT) <= tail.0).then_some(true);
    }
    let older = (1..owner.0).any(|older| {
        let older = TimelineId(older);
        path.branch(older).is_some() && (world.wal.has(older, number) || world.wal.has_tail(older, number))
    });
    (older && !is_strict).then_some(false)
}

fn stops_before(record: &Record, wanted: Wanted<'_>) -> bool {
    match (wanted.target, &record.kind) {
        (RecoveryTarget::Lsn(lsn), _) => !wanted.is_inclusive && record.start >= lsn.0,
        (RecoveryTarget::Xid(xid), Kind::End(ended, _)) => !wanted.is_inclusive && ended == xid,
        (RecoveryTarget::Time(time), Kind::End(_, at)) => {
            let at = moment(*at);
            if wanted.is_inclusive { at > time.at } else { at >= time.at }
        }
        _ => false,
    }
}

fn stops_after(record: &Record, wanted: Wanted<'_>) -> bool {
    match (wanted.target, &record.kind) {
        (RecoveryTarget::Lsn(lsn), _) => wanted.is_inclusive && record.start >= lsn.0,
        (RecoveryTarget::Xid(xid), Kind::End(ended, _)) => wanted.is_inclusive && ended == xid,
        (RecoveryTarget::Name(name), Kind::Point(point)) => name == point,
        _ => false,
    }
}

fn targets() -> impl Strategy<Value = RecoveryTarget> {
    prop_oneof![
        (40u64..700).prop_map(|lsn| RecoveryTarget::Lsn(Lsn(lsn))),
        (95u32..150).prop_map(RecoveryTarget::Xid),
        (990i64..1060).prop_map(|at| RecoveryTarget::Time(TargetTime { at: moment(at), assumed_zone: None })),
        prop::sample::select(vec!["a", "b"]).prop_map(|name| RecoveryTarget::Name(name.to_owned())),
    ]
}

fn choices() -> impl Strategy<Value = (World, RecoveryTarget, TargetTimeline, bool, Option<prop::sample::Index>)> {
    let timelines = prop_oneof![
        3 => Just(TargetTimeline::Latest),
        1 => Just(TargetTimeline::Current),
        2 => (1u32..4).prop_map(|number| TargetTimeline::Number(TimelineId(number))),
    ];
    let set = prop::option::weighted(0.3, any::<prop::sample::Index>());
    (worlds(), targets(), timelines, any::<bool>(), set)
}

/// The timeline that is meant, and the sets that may be taken.
fn meant(world: &World, timeline: TargetTimeline, label: Option<&BackupLabel>) -> Option<(TimelineId, Vec<SetPoint>)> {
    let sets: Vec<SetPoint> =
        world.sets.iter().filter(|set| label.is_none_or(|label| set.label == *label)).cloned().collect();
    let newest = sets.iter().max_by_key(|set| (set.timeline, set.stop_lsn, set.label.clone()))?.timeline;
    let timeline = match timeline {
        TargetTimeline::Latest => *world.records.keys().last()?,
        TargetTimeline::Current => newest,
        TargetTimeline::Number(timeline) => timeline,
    };
    world.records.contains_key(&timeline).then_some((timeline, sets))
}

/// Whether a plan may leave out a set though a server would reach the target from it: the set holds more than is asked
/// for (commits that are later than the time, because the clock went back; the last record of the backup itself), or
/// nobody can look for a second restore point of that name in its own WAL.
fn is_passed_over(world: &World, set: &SetPoint, wanted: Wanted<'_>, timeline: TimelineId) -> bool {
    match (wanted.target, set.stop_time) {
        (RecoveryTarget::Time(time), Some(stop)) => stop > time.at || stop == time.at && !wanted.is_inclusive,
        (RecoveryTarget::Lsn(lsn), _) => *lsn < set.stop_lsn,
        (RecoveryTarget::Name(_), _) => {
            first_missing(set, &TimelinePath::new(timeline, &world.wal.histories), &world.wal).is_some()
        }
        _ => false,
    }
}

#[test]
fn a_plan_is_made_exactly_if_a_server_reaches_the_target() {
    let config = ProptestConfig { cases: 20_000, max_shrink_iters: 20_000, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let planned = std::cell::Cell::new(0u32);
    let outcome = runner.run(&choices(), |(world, target, timeline, is_inclusive, set)| {
        let label = set.map(|set| world.sets[set.index(world.sets.len())].label.clone());
        let is_inclusive = is_inclusive || !target.may_exclude();
        let wanted = Wanted { target: &target, timeline, is_inclusive, label: label.as_ref() };
        let known = Known { sets: &world.sets, wal: &world.wal };
        let meant = meant(&world, timeline, label.as_ref());
        match plan_recovery(wanted, known, &mut &world) {
            Ok(plan) => {
                planned.set(planned.get() + 1);
                let TargetTimeline::Number(followed) = plan.timeline else { panic!("{plan:?}") };
                let set = world.sets.iter().find(|set| set.label == plan.label).unwrap();
                let Outcome::Reached(lsn, stop) = recover(&world, set, wanted, followed, false) else {
                    panic!("{plan:?}: {:?}", recover(&world, set, wanted, followed, false));
                };
                // What is replayed is what the asked-for timeline has up to there, whatever the server was told.
                let (meant, sets) = meant.unwrap();
                let asked = recover(&world, set, wanted, meant, true);
                prop_assert_eq!(&asked, &Outcome::Reached(lsn, Stop { timeline: stop.timeline, ..stop }));
                // No newer set would do.
                let newer =
                    |other: &&SetPoint| other.stop_lsn > set.stop_lsn && !is_passed_over(&world, other, wanted, meant);
                for other in sets.iter().filter(newer) {
                    let outcome = recover(&world, other, wanted, meant, true);
                    prop_assert_eq!(outcome, Outcome::Fatal, "{:?} is newer than {:?}", other, set);
                }
            }
            Err(error) => {
                prop_assert_eq!(error.kind(), ErrorKind::Repository);
                prop_assert!(error.hint_text().is_some());
                let is_ambiguous = error.message().contains("of that name: at");
                for (meant, sets) in meant.into_iter().filter(|_| !is_ambiguous) {
                    for set in sets.iter().filter(|set| !is_passed_over(&world, set, wanted, meant)) {
                        let outcome = recover(&world, set, wanted, meant, true);
                        prop_assert_eq!(outcome, Outcome::Fatal, "{:?}: {}", set, error);
                    }
                }
            }
        }
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
    // Targets lie on both sides of what can be reached.
    assert!((2_000..18_000).contains(&planned.get()), "{} of 20000 were planned", planned.get());
}
