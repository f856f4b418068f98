//! What must be true, worked out from the true history by trying, without a look at how the rules are written.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::super::policy::{KeepWal, RetentionPolicy};
use super::world::{Line, Moment, Set, World};
use crate::terms::{BackupKind, BackupLabel};

/// The age of a set among all: cluster, timeline, place.
fn age(world: &World, set: &Set) -> (usize, u32, u64, u64, BackupLabel) {
    let cluster = world.clusters.iter().position(|cluster| *cluster == set.line.0).unwrap();
    (cluster, set.line.1, set.stop, set.start, set.label.clone())
}

/// Whether a set that is suspiciously small beside an older one takes a place of those that are counted. One expire never
/// lets it; when the larger ones have gone, nothing is left to doubt it by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Doubtful {
    NeverCount,
    MayCount,
}

fn is_offered(world: &World, set: &Set) -> bool {
    world.is_intact(set) && (!set.tombstone || set.pinned)
}

/// Sets that anybody would call good, newest first.
fn good(world: &World) -> Vec<&Set> {
    let largest = |set: &Set| {
        let older = world.sets.iter().filter(|other| other.line.0 == set.line.0 && age(world, other) < age(world, set));
        older.filter(|other| other.manifest && other.readable).map(|other| other.source_bytes).max().unwrap_or(0)
    };
    let is_good = |set: &&Set| {
        let is_small = set.kind == BackupKind::Full && set.source_bytes < largest(set) / 10;
        is_offered(world, set) && !is_small
    };
    newest_first(world, world.sets.iter().filter(is_good).collect())
}

fn newest_first<'a>(world: &World, mut sets: Vec<&'a Set>) -> Vec<&'a Set> {
    sets.sort_by_key(|set| std::cmp::Reverse(age(world, set)));
    sets
}

/// The newest `count` full sets that are good.
fn counted<'a>(world: &'a World, good: &[&'a Set], doubtful: Doubtful, count: u32) -> Vec<&'a Set> {
    let all = match doubtful {
        Doubtful::NeverCount => good.to_vec(),
        Doubtful::MayCount => newest_first(world, world.sets.iter().filter(|set| is_offered(world, set)).collect()),
    };
    let full = all.into_iter().filter(|set| set.kind == BackupKind::Full).take(count as usize);
    full.filter(|set| good.iter().any(|good| good.label == set.label)).collect()
}

/// Every moment, as a place on a line of history with its time, that can be recovered from a set that is offered.
pub(super) fn recoverable(world: &World, since: i64) -> BTreeSet<Moment> {
    let archived: BTreeSet<Moment> = world.wal.values().map(|wal| (wal.line, wal.segment)).collect();
    let mut moments: Vec<Moment> =
        world.wal.values().filter(|wal| wal.time > since).map(|wal| (wal.line, wal.segment)).collect();
    moments.sort_unstable();
    moments.dedup();
    let can_reach = |set: &Set, (line, segment): Moment| {
        let way = world.way_to(line);
        // The set lies on the way to the moment, and each segment behind it is there, on the last line that has it.
        let Some(begin) = way.iter().position(|(on, last)| *on == set.line && set.stop <= *last) else { return false };
        if set.line == line && set.stop > segment {
            return false;
        }
        (set.stop..=segment).all(|wanted| {
            let lines = &way[begin..];
            let first = lines.iter().position(|(_, last)| wanted <= *last).unwrap();
            // The segment in which a line was left is copied to the next one.
            let copies = lines[first..].iter().take_while(|(_, last)| *last == wanted).count();
            let is_in_set = lines[first].0 == set.line && (set.start..=set.stop).contains(&wanted);
            is_in_set || lines[first..].iter().take(copies + 1).any(|(on, _)| archived.contains(&(*on, wanted)))
        })
    };
    let offered: Vec<&Set> = world.sets.iter().filter(|set| is_offered(world, set)).collect();
    moments.into_iter().filter(|moment| offered.iter().any(|set| can_reach(set, *moment))).collect()
}

/// The sets that must stay, whatever happens.
pub(super) fn must_stay(world: &World, policy: &RetentionPolicy, doubtful: Doubtful) -> BTreeSet<BackupLabel> {
    let good = good(world);
    let mut stay: BTreeSet<BackupLabel> = BTreeSet::new();
    stay.extend(world.sets.iter().filter(|set| set.pinned && set.manifest).map(|set| set.label.clone()));
    let of_rule = counted(world, &good, doubtful, policy.keep_full.unwrap_or(0));
    stay.extend(of_rule.iter().map(|set| set.label.clone()));
    stay.extend(counted(world, &good, doubtful, policy.min_sets).iter().map(|set| set.label.clone()));
    let built_on =
        good.iter().filter(|set| set.prior.last().is_some_and(|base| of_rule.iter().any(|full| full.label == *base)));
    stay.extend(built_on.map(|set| set.label.clone()));
    if world.is_tidy {
        stay.extend(good.first().map(|set| set.label.clone()));
        stay.extend(of_periods(&good, policy));
        stay.extend(of_pages(world, &good));
        if let Some(window) = policy.keep_window {
            stay.extend(of_window(world, &good, world.now - window.as_secs()));
        }
    }
    close(world, &mut stay);
    stay
}

fn close(world: &World, stay: &mut BTreeSet<BackupLabel>) {
    let needed: Vec<BackupLabel> =
        stay.iter().filter_map(|label| world.get(label)).flat_map(|set| set.prior.clone()).collect();
    stay.extend(needed);
}

/// For each page that is damaged in the newest set, or in one that it is built on: the last set without that damage from
/// which recovery leads to the newest one.
fn of_pages(world: &World, good: &[&Set]) -> BTreeSet<BackupLabel> {
    let Some(newest) = good.first() else { return BTreeSet::new() };
    let way = world.way_to(newest.line);
    let may_have = |set: &Set, page: u32| {
        let chain = set.prior.iter().filter_map(|prior| world.get(prior));
        std::iter::once(set).chain(chain).any(|set| set.bad_pages.contains(&page))
    };
    let pages = [1, 2].into_iter().filter(|page| may_have(newest, *page));
    let last_whole = |page: u32| {
        let leads = |set: &&&Set| way.iter().any(|(on, last)| *on == set.line && set.stop <= *last);
        good[1..].iter().filter(leads).find(|set| !may_have(set, page))
    };
    pages.filter_map(last_whole).map(|set| set.label.clone()).collect()
}

fn of_periods(good: &[&Set], policy: &RetentionPolicy) -> BTreeSet<BackupLabel> {
    let date = |set: &Set| Timestamp::from_second(set.true_time).unwrap().to_zoned(TimeZone::UTC).date();
    let mut stay = BTreeSet::new();
    let mut keep = |count: u32, key: &dyn Fn(&Set) -> (i16, i16)| {
        let mut newest: BTreeMap<(i16, i16), &Set> = BTreeMap::new();
        for set in good {
            newest.entry(key(set)).or_insert(set);
        }
        stay.extend(newest.values().rev().take(count as usize).map(|set| set.label.clone()));
    };
    keep(policy.keep_daily, &|set| (date(set).year(), date(set).day_of_year()));
    keep(policy.keep_weekly, &|set| (date(set).iso_week_date().year(), i16::from(date(set).iso_week_date().week())));
    keep(policy.keep_monthly, &|set| (date(set).year(), i16::from(date(set).month())));
    keep(policy.keep_yearly, &|set| (date(set).year(), 0));
    stay
}

/// For each line with a set or WAL of the window, and for the present one: the newest set on the way there from before
/// the window; and every set of the window.
fn of_window(world: &World, good: &[&Set], start: i64) -> BTreeSet<BackupLabel> {
    let mut stay: BTreeSet<BackupLabel> =
        good.iter().filter(|set| set.true_time > start).map(|set| set.label.clone()).collect();
    let mut lines: BTreeSet<Line> = good.iter().filter(|set| set.true_time > start).map(|set| set.line).collect();
    lines.extend(world.wal.values().filter(|wal| wal.time > start).map(|wal| wal.line));
    if let Some(newest) = good.first() {
        let on_cluster = world.sets.iter().filter(|set| set.manifest).map(|set| set.line);
        let all = on_cluster.chain(world.wal.values().map(|wal| wal.line));
        lines.extend(all.filter(|line| line.0 == newest.line.0).max());
    }
    for line in lines {
        let way = world.way_to(line);
        let leads = |set: &&&Set| way.iter().any(|(on, last)| *on == set.line && set.stop <= *last);
        let on_line: Vec<&&Set> = good.iter().filter(leads).collect();
        let anchor = on_line.iter().position(|set| set.true_time <= start);
        // Newest first: what lies behind the anchor is older than the window.
        stay.extend(on_line[..anchor.map_or(on_line.len(), |anchor| anchor + 1)].iter().map(|set| set.label.clone()));
    }
    stay
}

/// Moments that a policy promises: those of the window, if WAL is kept for it.
pub(super) fn promised(world: &World, policy: &RetentionPolicy) -> BTreeSet<Moment> {
    match policy.keep_window {
        Some(window) if world.is_tidy && policy.keep_wal != KeepWal::Sets => {
            recoverable(world, world.now - window.as_secs())
        }
        _ => BTreeSet::new(),
    }
}
