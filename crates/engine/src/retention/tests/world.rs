//! A made-up source: its true history, what of it is stored, and everybody who touches that.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use pagehaul_testkit::random::Random;

use super::super::facts::{
    CompleteSet, HistoryFacts, RetentionInventory, SetContent, SetFacts, SourceDamage, WalObject,
};
use crate::terms::{BackupKind, BackupLabel, Lsn, TimelineId};

pub(super) const HOUR: i64 = 3600;
pub(super) const DAY: i64 = 24 * HOUR;
/// LSNs of the model are counted in segments.
pub(super) const SEGMENT: u64 = 16 << 20;
const BIG: u64 = 1_000_000;

/// A set as it really is.
#[derive(Clone, Debug)]
pub(super) struct Set {
    pub(super) label: BackupLabel,
    pub(super) kind: BackupKind,
    pub(super) line: Line,
    /// First and last segment.
    pub(super) start: u64,
    pub(super) stop: u64,
    pub(super) true_time: i64,
    pub(super) stamp: Option<i64>,
    pub(super) prior: Vec<BackupLabel>,
    pub(super) source_bytes: u64,
    pub(super) manifest: bool,
    pub(super) readable: bool,
    pub(super) stripes: bool,
    /// A stripe was lost by no fault of expire.
    pub(super) flawed: bool,
    /// Pages of the source that were damaged when it was made.
    pub(super) bad_pages: BTreeSet<u32>,
    pub(super) tombstone: bool,
    pub(super) pinned: bool,
    pub(super) leases: u32,
    pub(super) running: bool,
}

/// A stored segment.
#[derive(Clone, Debug)]
pub(super) struct Wal {
    pub(super) line: Line,
    pub(super) segment: u64,
    pub(super) time: i64,
}

/// A line of history: its cluster and its timeline.
pub(super) type Line = (u64, u32);
/// A place on a line: the segment.
pub(super) type Moment = (Line, u64);

#[derive(Clone, Debug, Default)]
pub(super) struct World {
    pub(super) now: i64,
    pub(super) sets: Vec<Set>,
    pub(super) wal: BTreeMap<String, Wal>,
    /// Where each line of history comes from: the line before and the segment in which it was left.
    pub(super) parents: BTreeMap<Line, Option<Moment>>,
    /// Lines whose history is in the archive.
    pub(super) archived_histories: BTreeSet<Line>,
    pub(super) clusters: Vec<u64>,
    /// All stamps are true, every set reads, is whole and large.
    pub(super) is_tidy: bool,
    pub(super) clock_error: i64,
    labels: u32,
}

impl World {
    /// A random history.
    pub(super) fn random(random: &mut Random, is_tidy: bool) -> Self {
        let mut world = World { is_tidy, now: 1_700_000_000, clusters: vec![1], ..World::default() };
        world.parents.insert((1, 1), None);
        let (mut line, mut segment) = ((1u64, 1u32), 10u64);
        for _ in 0..4 + random.below(12) {
            world.now += [HOUR, 5 * HOUR, DAY, 3 * DAY, 20 * DAY, 90 * DAY][random.below(6) as usize];
            for _ in 0..1 + random.below(3) {
                segment += 1;
                // One in eight is lost: a gap.
                if random.below(8) > 0 {
                    world.archive(line, segment);
                }
                world.now += HOUR;
            }
            match random.below(20) {
                0 => line = world.switch_timeline(random, line, &mut segment),
                1 if world.clusters.len() < 2 => {
                    line = (2, 1);
                    world.clusters.push(2);
                    world.parents.insert(line, None);
                    segment = 5;
                }
                _ => {}
            }
            if !is_tidy && random.below(6) == 0 {
                world.clock_error = [0, 0, -40 * DAY, 3 * DAY, 4000 * DAY][random.below(5) as usize];
            }
            world.back_up(random, line, &mut segment);
        }
        world.now += [HOUR, DAY, 30 * DAY][random.below(3) as usize];
        world
    }

    fn archive(&mut self, line: Line, segment: u64) {
        let name = format!("{}/{}/{segment}", line.0, line.1);
        self.wal.insert(name, Wal { line, segment, time: self.now });
    }

    /// Recovery to an earlier place, from a set that can reach it, and a new timeline from there.
    fn switch_timeline(&mut self, random: &mut Random, line: Line, segment: &mut u64) -> Line {
        let sets: Vec<&Set> = self.sets.iter().filter(|set| set.manifest && set.line.0 == line.0).collect();
        if sets.is_empty() {
            return line;
        }
        let from = sets[random.below(sets.len() as u64) as usize];
        let (left, at) = (from.line, from.stop + random.below(3));
        let highest =
            self.parents.keys().filter(|(cluster, _)| *cluster == line.0).map(|(_, timeline)| *timeline).max();
        let new = (line.0, highest.unwrap_or(0) + 1);
        self.parents.insert(new, Some((left, at)));
        if self.is_tidy || random.below(4) > 0 {
            self.archived_histories.insert(new);
        }
        *segment = at;
        new
    }

    /// The segments of each line on the way to `line`, from the first: (line, last segment on it).
    pub(super) fn way_to(&self, line: Line) -> Vec<Moment> {
        let mut way = vec![(line, u64::MAX)];
        let (mut at, mut most) = (line, u64::MAX);
        while let Some(Some((parent, left))) = self.parents.get(&at) {
            most = most.min(*left);
            way.push((*parent, most));
            at = *parent;
        }
        way.reverse();
        way
    }

    pub(super) fn new_label(&mut self, kind: BackupKind) -> BackupLabel {
        self.labels += 1;
        format!("20260101-{:06}{}", self.labels, kind.letter()).parse().unwrap()
    }

    fn back_up(&mut self, random: &mut Random, line: Line, segment: &mut u64) {
        let base = self.base_for(random, line);
        let kind = base.as_ref().map_or(BackupKind::Full, |_| BackupKind::Incremental);
        let label = self.new_label(kind);
        let start = *segment;
        *segment += random.below(2);
        let stop = *segment;
        for segment in start..=stop {
            self.archive(line, segment);
        }
        self.now += HOUR;
        let prior = base.map(|base| {
            let base = self.get(&base).unwrap();
            [&[base.label.clone()][..], &base.prior].concat()
        });
        let mut set = Set {
            label,
            kind,
            line,
            start,
            stop,
            true_time: self.now,
            stamp: Some(self.now + self.clock_error),
            prior: prior.unwrap_or_default(),
            source_bytes: BIG + random.below(BIG),
            manifest: true,
            readable: true,
            stripes: true,
            flawed: false,
            bad_pages: [&[][..], &[], &[], &[], &[1], &[2], &[1, 2]][random.below(7) as usize]
                .iter()
                .copied()
                .collect(),
            tombstone: false,
            pinned: random.below(12) == 0,
            leases: 0,
            running: false,
        };
        if !self.is_tidy {
            match random.below(24) {
                0 if set.kind == BackupKind::Full => set.source_bytes = random.below(BIG / 20),
                1 => set.flawed = true,
                2 if random.below(3) == 0 => set.readable = false,
                3 => (set.manifest, set.running) = (false, true),
                4 => set.manifest = false,
                5 => set.stamp = None,
                6 => set.prior.iter_mut().take(1).for_each(|prior| *prior = "20200101-000000F".parse().unwrap()),
                7 => set.leases = 1,
                _ => {}
            }
        }
        self.sets.push(set);
    }

    /// A set on the way to `line` that an incremental may be built on.
    pub(super) fn base_for(&self, random: &mut Random, line: Line) -> Option<BackupLabel> {
        if random.below(2) == 0 {
            return None;
        }
        let way = self.way_to(line);
        let on_way = |set: &&Set| way.iter().any(|(line, last)| set.line == *line && set.stop <= *last);
        let base = self.sets.iter().rev().filter(on_way).find(|set| self.is_intact(set) && !set.tombstone)?;
        Some(base.label.clone())
    }

    pub(super) fn get(&self, label: &BackupLabel) -> Option<&Set> {
        self.sets.iter().find(|set| set.label == *label)
    }

    pub(super) fn get_mut(&mut self, label: &BackupLabel) -> Option<&mut Set> {
        self.sets.iter_mut().find(|set| set.label == *label)
    }

    /// Whether a set and all it needs are there, whatever their tombstones.
    pub(super) fn is_intact(&self, set: &Set) -> bool {
        let is_there = |set: &Set| set.manifest && set.readable && set.stripes && !set.flawed;
        is_there(set) && set.prior.iter().all(|prior| self.get(prior).is_some_and(is_there))
    }

    pub(super) fn facts(&self) -> RetentionInventory {
        let stamp = |second: i64| Timestamp::from_second(second).unwrap();
        let sets = self.sets.iter().filter(|set| set.manifest || set.stripes || set.tombstone).map(|set| SetFacts {
            label: set.label.clone(),
            kind: set.kind,
            content: match set {
                set if set.manifest && set.readable => SetContent::Complete(Box::new(CompleteSet {
                    system_identifier: set.line.0,
                    timeline: TimelineId(set.line.1),
                    start_lsn: Lsn(set.start * SEGMENT + 40),
                    stop_lsn: Lsn(set.stop * SEGMENT + 80),
                    finished_at: set.stamp.map(stamp),
                    prior: set.prior.clone(),
                    source_bytes: set.source_bytes,
                    stored_bytes: 1,
                    flaw: set.flawed.then(|| "stripe-0000.phs is not there".to_owned()),
                    damage: SourceDamage {
                        pages: set.bad_pages.iter().map(|page| ("base/1/2".to_owned(), *page)).collect(),
                        has_more: false,
                    },
                })),
                set if set.manifest => SetContent::Unreadable("damaged".to_owned()),
                set if set.running => SetContent::Running,
                _ => SetContent::Unfinished,
            },
            pin: set.pinned.then(String::new),
            protected_until: None,
            is_expiring: set.tombstone && !set.pinned,
            is_leased: set.leases > 0,
        });
        let wal = self.wal.iter().map(|(name, wal)| WalObject {
            object: name.clone(),
            system_identifier: wal.line.0,
            timeline: TimelineId(wal.line.1),
            start_lsn: Lsn(wal.segment * SEGMENT),
            end_lsn: Lsn((wal.segment + 1) * SEGMENT),
            stored_bytes: 1,
            last_commit_at: Some(stamp(wal.time)),
        });
        let histories = self.archived_histories.iter().map(|line| HistoryFacts {
            system_identifier: line.0,
            timeline: TimelineId(line.1),
            branches: self
                .way_to(*line)
                .into_iter()
                .filter(|(before, _)| before != line)
                .map(|(before, last)| (TimelineId(before.1), Lsn(last * SEGMENT + SEGMENT / 2)))
                .collect(),
        });
        RetentionInventory {
            sets: sets.collect(),
            clusters: self.clusters.clone(),
            histories: histories.collect(),
            wal: wal.collect(),
        }
    }
}
