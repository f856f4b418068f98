//! Which set a recovery begins with and where it stops, decided before the first byte is written. Pure: the WAL is asked
//! through [`WalRecords`].
//!
//! A server that does not meet its target ends recovery with a fatal error, and one whose target lies before the point
//! of consistency too (PerformWalRecovery in src/backend/access/transam/xlogrecovery.c). So a plan exists only if the
//! record at which recovery stops is archived, with everything between the set and it; nothing here ever falls back to
//! another target.

use jiff::Timestamp;

use super::recovery_reach::{describe_windows, no_such_target};
use super::recovery_target::{RecoveryTarget, TargetTimeline};
use super::recovery_walk::{Stop, Unreached, WalRecords, Walked, archived_on, first_missing, segment_name, walk};
use crate::catalog::recoverable::{consistency_time, latest_end};
use crate::catalog::{ArchivedWal, SetPoint, TimelinePath, recovery_windows};
use crate::error::{Error, ErrorKind, Result};
use crate::terms::{BackupLabel, Lsn, RestorePoint, TimelineId, WalFacts, WalSegmentName};

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) target: &'a RecoveryTarget,
    pub(super) timeline: TargetTimeline,
    pub(super) is_inclusive: bool,
    pub(super) label: Option<&'a BackupLabel>,
}

/// What is known of sets and WAL.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known<'a> {
    /// Complete sets of one cluster.
    pub(super) sets: &'a [SetPoint],
    pub(super) wal: &'a ArchivedWal,
}

/// A recovery that a server will bring to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecoveryPlan {
    /// The set it begins with.
    pub(super) label: BackupLabel,
    /// The timeline that the server is told to follow.
    pub(super) timeline: TargetTimeline,
    /// The segment with the record at which recovery stops; none without a stop.
    pub(super) stops_in: Option<WalSegmentName>,
    /// What the user should know.
    pub(super) notes: Vec<String>,
}

/// The sets on the path of the target timeline, newest first; at least one.
#[derive(Clone, Debug)]
pub(super) struct Route<'a> {
    pub(super) path: TimelinePath,
    pub(super) sets: Vec<&'a SetPoint>,
}

/// Chooses set and timeline for a target that needs the archive.
///
/// # Errors
/// `Repository` if the target cannot be reached, with what can be; those of `records`.
pub(super) fn plan_recovery(
    wanted: Wanted<'_>,
    known: Known<'_>,
    records: &mut dyn WalRecords,
) -> Result<RecoveryPlan> {
    let route = find_route(wanted, known)?;
    match wanted.target {
        RecoveryTarget::Latest => plan_latest(wanted, known, &route, records),
        RecoveryTarget::Standby => Ok(plan_standby(known, &route)),
        RecoveryTarget::Name(name) => plan_name(name, wanted, known, &route, records),
        RecoveryTarget::Xid(xid) => plan_xid(*xid, wanted, known, &route, records),
        _ => plan_stop(wanted, known, &route, None, records),
    }
}

fn find_route<'a>(wanted: Wanted<'_>, known: Known<'a>) -> Result<Route<'a>> {
    let of_label = |set: &&SetPoint| wanted.label.is_none_or(|label| set.label == *label);
    let mut sets: Vec<&SetPoint> = known.sets.iter().filter(of_label).collect();
    sets.sort_by_key(|set| std::cmp::Reverse((set.timeline, set.stop_lsn, set.label.clone())));
    let Some(newest) = sets.first() else {
        let what = wanted.label.map_or_else(|| "a set to begin with".to_owned(), |label| format!("set {label}"));
        return Err(Error::new(
            ErrorKind::Repository,
            format!("find {what}"),
            "there is no complete one of this cluster",
        )
        .hint("`pagehaul info` lists the sets and their states"));
    };
    let timeline = target_timeline(wanted.timeline, newest, known)?;
    let path = TimelinePath::new(timeline, &known.wal.histories);
    let newest = *newest;
    sets.retain(|set| path.holds(set.timeline, set.stop_lsn));
    if sets.is_empty() {
        return Err(not_descended(wanted, &path, newest));
    }
    Ok(Route { path, sets })
}

/// The number of the timeline to follow.
fn target_timeline(wanted: TargetTimeline, newest: &SetPoint, known: Known<'_>) -> Result<TimelineId> {
    let Known { sets, wal } = known;
    // A server wants the history of any timeline but the first; that of a set's own timeline lies in the set.
    let is_known = |timeline: &TimelineId| {
        timeline.0 == 1 || wal.histories.contains_key(timeline) || sets.iter().any(|set| set.timeline == *timeline)
    };
    let timelines: Vec<TimelineId> = wal.timelines(sets).into_iter().filter(is_known).collect();
    match wanted {
        TargetTimeline::Current => Ok(newest.timeline),
        TargetTimeline::Latest => Ok(timelines.last().copied().unwrap_or(newest.timeline)),
        TargetTimeline::Number(timeline) if timelines.contains(&timeline) => Ok(timeline),
        TargetTimeline::Number(timeline) => {
            let names: Vec<String> = timelines.iter().map(ToString::to_string).collect();
            let cause = if wal.ranges.contains_key(&timeline) {
                "its history file is not archived"
            } else {
                "the archive has neither WAL nor history of it"
            };
            Err(Error::new(ErrorKind::Repository, format!("recover along timeline {timeline}"), cause)
                .hint(format!("timelines in the repository: {}", names.join(", "))))
        }
    }
}

fn not_descended(wanted: Wanted<'_>, path: &TimelinePath, set: &SetPoint) -> Error {
    let timeline = path.timeline();
    let cause = match path.branch(set.timeline) {
        Some(branch) => format!(
            "timeline {timeline} left timeline {} at {branch}, and set {} is consistent only at {}",
            set.timeline, set.label, set.stop_lsn
        ),
        None => format!("timeline {timeline} does not descend from timeline {} of set {}", set.timeline, set.label),
    };
    let hint = match wanted.label {
        Some(_) => "follow the set's own timeline with --target-timeline current, or leave --set out",
        None => "name a timeline that a set leads to with --target-timeline; `pagehaul info` shows them",
    };
    Error::new(ErrorKind::Repository, format!("recover along timeline {timeline}"), cause).hint(hint)
}

/// All archived WAL on the path: nothing of it may be missing or broken.
fn plan_latest(
    wanted: Wanted<'_>,
    known: Known<'_>,
    route: &Route<'_>,
    records: &mut dyn WalRecords,
) -> Result<RecoveryPlan> {
    let wal = known.wal;
    if wal.ranges.values().all(Vec::is_empty) && wal.tails.is_empty() {
        return Err(Error::new(ErrorKind::Repository, "recover to the end of the archived WAL", "no WAL is archived")
            .hint("without --type a set is restored to its own end, which needs no archive"));
    }
    let (set, path) = (route.sets[0], &route.path);
    let own_first = path.own_first_segment(wal.segment_size_bytes);
    let mut notes = Vec::new();
    match walk(set, path, wal, records, &mut |_, _, _| Ok(false))? {
        Walked::Found(_) => {}
        Walked::Not(Unreached::Missing(stop, false))
            if stop.number > own_first
                || set.timeline == path.timeline()
                || wal.has_tail(stop.timeline, stop.number) =>
        {
            let first = set.stop_lsn.0 / wal.segment_size_bytes;
            if stop.number == first && wal.tail_behind(stop.timeline, first, set.stop_lsn).is_none() {
                notes.push(format!("no WAL behind the end of set {} is archived yet", set.label));
            }
        }
        // Where the WAL of the last segment ends is where all of it ends.
        Walked::Not(Unreached::BreaksOff(stop, _))
            if !path.has_wal_from(stop.number + 1, &wal.ranges, wal.segment_size_bytes) => {}
        Walked::Not(why) => return Err(no_such_target(wanted, known, route, &why, records)),
    }
    Ok(RecoveryPlan {
        label: set.label.clone(),
        timeline: TargetTimeline::Number(path.timeline()),
        stops_in: None,
        notes,
    })
}

/// A standby takes what there is, and waits for the rest.
fn plan_standby(known: Known<'_>, route: &Route<'_>) -> RecoveryPlan {
    let set = route.sets[0];
    let windows = recovery_windows(route.path.timeline(), std::slice::from_ref(set), known.wal);
    let notes = windows.iter().filter(|window| window.ends_in_gap).map(|window| {
        format!("the archive has a gap at {}: the standby stops there unless it streams", window.end_lsn)
    });
    RecoveryPlan { label: set.label.clone(), timeline: TargetTimeline::Latest, stops_in: None, notes: notes.collect() }
}

/// A restore point: the server stops at the first one of that name, so there must be no doubt which one is meant.
fn plan_name(
    name: &str,
    wanted: Wanted<'_>,
    known: Known<'_>,
    route: &Route<'_>,
    records: &mut dyn WalRecords,
) -> Result<RecoveryPlan> {
    let found = restore_points(name, &route.path, known.wal, records)?;
    // From a named set the server meets the first one behind its start.
    let start = wanted.label.map_or(Lsn(0), |_| route.sets[0].start_lsn);
    let Some((point, stop)) = found.iter().find(|(point, _)| start < point.lsn) else {
        return Err(unknown_name(name, wanted, known, route, records));
    };
    if wanted.label.is_none() && found.len() > 1 {
        let list: Vec<String> = found.iter().map(|(point, _)| format!("{} of {}", point.lsn, point.at)).collect();
        let cause = format!("there are {} of that name: at {}", found.len(), list.join(", at "));
        return Err(Error::new(ErrorKind::Repository, format!("recover to restore point {name:?}"), cause)
            .hint("name the set to begin with (--set): recovery stops at the first one behind it; or use --type lsn"));
    }
    let mut plan = plan_stop(wanted, known, route, Some((*stop, point.lsn)), records)?;
    plan.notes.push(format!("restore point {name:?} is of {}, at {}", point.at, point.lsn));
    Ok(plan)
}

/// Every restore point of that name on the path, in the order of replay.
fn restore_points(
    name: &str,
    path: &TimelinePath,
    wal: &ArchivedWal,
    records: &mut dyn WalRecords,
) -> Result<Vec<(RestorePoint, Stop)>> {
    let mut found = Vec::new();
    let stops = archived_on(path, wal);
    for (place, stop) in stops.iter().enumerate() {
        let stop = *stop;
        let facts = records.facts(stop.timeline, stop.number)?;
        if facts.restore_points_cut {
            let cause = format!("segment {} has more restore points than are listed", segment_name(stop, wal));
            return Err(Error::new(ErrorKind::Repository, format!("find restore point {name:?}"), cause)
                .hint("use --type lsn with the position that pg_create_restore_point gave"));
        }
        let of_name = |facts: WalFacts| facts.restore_points.into_iter().filter(|point| point.name == name);
        found.extend(of_name(facts).map(|point| (point, stop)));
        if let Some(next) = stops.get(place + 1).filter(|next| next.number == stop.number + 1) {
            found.extend(of_name(records.crossing(stop, *next)?).map(|point| (point, *next)));
        }
    }
    Ok(found)
}

fn unknown_name(
    name: &str,
    wanted: Wanted<'_>,
    known: Known<'_>,
    route: &Route<'_>,
    records: &mut dyn WalRecords,
) -> Error {
    let path = &route.path;
    let mut names = std::collections::BTreeSet::new();
    for stop in archived_on(path, known.wal) {
        let facts = records.facts(stop.timeline, stop.number).unwrap_or_default();
        names.extend(facts.restore_points.into_iter().map(|point| point.name));
    }
    let names: Vec<String> = names.into_iter().take(20).collect();
    let cause = match wanted.label {
        Some(label) => format!("behind the start of set {label} the archived WAL has none of that name"),
        None => format!("the archived WAL of timeline {} has none of that name", path.timeline()),
    };
    let hint =
        if names.is_empty() { "it has no restore point".to_owned() } else { format!("it has: {}", names.join(", ")) };
    Error::new(ErrorKind::Repository, format!("recover to restore point {name:?}"), cause).hint(hint)
}

fn plan_xid(
    xid: u32,
    wanted: Wanted<'_>,
    known: Known<'_>,
    route: &Route<'_>,
    records: &mut dyn WalRecords,
) -> Result<RecoveryPlan> {
    let path = &route.path;
    let stops = archived_on(path, known.wal);
    let mut span: Option<(u32, u32)> = None;
    // The newest first: numbers come again after four billion transactions.
    for stop in stops.iter().rev() {
        let Some((smallest, largest)) = records.facts(stop.timeline, stop.number)?.ended_xids else { continue };
        span = Some((smallest, span.map_or(largest, |(_, newest)| newest)));
        if xid.wrapping_sub(smallest) > largest.wrapping_sub(smallest) {
            continue;
        }
        if let Some(lsn) = records.end_of_transaction(*stop, xid)? {
            return plan_stop(wanted, known, route, Some((*stop, lsn)), records);
        }
    }
    // It may have ended with one of the few records that are in two segments.
    for pair in stops.windows(2).rev().filter(|pair| pair[0].number + 1 == pair[1].number) {
        let facts = records.crossing(pair[0], pair[1])?;
        if facts.ended_xids.is_some_and(|(ended, _)| ended == xid) {
            return plan_stop(wanted, known, route, Some((pair[1], facts.end_lsn)), records);
        }
    }
    let action = format!("recover to transaction {xid}");
    let cause = format!("the archived WAL of timeline {} has no commit or rollback of it", path.timeline());
    let ended = span.map_or_else(
        || "no transaction ended there".to_owned(),
        |(smallest, largest)| format!("transactions that ended there are from about {smallest} to {largest}"),
    );
    let windows = describe_windows(known, route, records);
    Err(Error::new(ErrorKind::Repository, action, cause).hint(format!("{ended}; {windows}")))
}

/// Takes the newest set that leads to the stop; `located` is the segment and end of the record at which to stop, where
/// that does not depend on the set.
fn plan_stop(
    wanted: Wanted<'_>,
    known: Known<'_>,
    route: &Route<'_>,
    located: Option<(Stop, Lsn)>,
    records: &mut dyn WalRecords,
) -> Result<RecoveryPlan> {
    let mut why_newest: Option<Unreached> = None;
    for set in &route.sets {
        match reach(wanted, known.wal, set, &route.path, located, records)? {
            Walked::Found(stop) => {
                return Ok(RecoveryPlan {
                    label: set.label.clone(),
                    // Where recovery stops is where the server's own new timeline branches off.
                    timeline: TargetTimeline::Number(stop.timeline),
                    stops_in: Some(segment_name(stop, known.wal)),
                    notes: Vec::new(),
                });
            }
            // What keeps a set that could come first from the target tells more than that others come too late.
            Walked::Not(why) if why_newest.as_ref().is_none_or(|newest| *newest == Unreached::BeforeSet) => {
                why_newest = Some(why);
            }
            Walked::Not(_) => {}
        }
    }
    Err(no_such_target(wanted, known, route, &why_newest.unwrap_or(Unreached::BeforeSet), records))
}

fn reach(
    wanted: Wanted<'_>,
    wal: &ArchivedWal,
    set: &SetPoint,
    path: &TimelinePath,
    located: Option<(Stop, Lsn)>,
    records: &mut dyn WalRecords,
) -> Result<Walked> {
    if let Some((stop, lsn)) = located {
        if lsn <= set.stop_lsn {
            return Ok(Walked::Not(Unreached::BeforeSet));
        }
        if matches!(wanted.target, RecoveryTarget::Name(_))
            && let Some(missing) = first_missing(set, path, wal)
        {
            // A restore point of that name in there would end recovery too early, and nobody can look.
            return Ok(Walked::Not(Unreached::Missing(missing, true)));
        }
        return walk(set, path, wal, records, &mut |at, _, _| Ok(at == stop));
    }
    match wanted.target {
        RecoveryTarget::Lsn(lsn) if *lsn < set.stop_lsn => Ok(Walked::Not(Unreached::BeforeSet)),
        RecoveryTarget::Lsn(lsn) => reach_lsn(*lsn, wal, set, path, records),
        RecoveryTarget::Time(time) => reach_time(time.at, wanted.is_inclusive, wal, set, path, records),
        _ => Ok(Walked::Not(Unreached::BeforeSet)),
    }
}

/// The server stops at the first record that begins at or behind the target, so there must be one, and all of it.
fn reach_lsn(
    lsn: Lsn,
    wal: &ArchivedWal,
    set: &SetPoint,
    path: &TimelinePath,
    records: &mut dyn WalRecords,
) -> Result<Walked> {
    let mut begun: Option<Stop> = None;
    walk(set, path, wal, records, &mut |stop, facts, records| {
        if begun.is_some() {
            // The record that began in an earlier segment ends in this one, or goes on.
            return Ok(facts.end_lsn.0 > stop.number * wal.segment_size_bytes);
        }
        if (stop.number + 1).saturating_mul(wal.segment_size_bytes) <= lsn.0 {
            return Ok(false);
        }
        let record = records.record_from(stop, lsn)?;
        begun = record.map(|_| stop);
        Ok(record.is_some_and(|(_, is_whole)| is_whole))
    })
}

/// The server stops before the first commit or abort that is later than the target (or as late, if it is excluded).
fn reach_time(
    at: Timestamp,
    is_inclusive: bool,
    wal: &ArchivedWal,
    set: &SetPoint,
    path: &TimelinePath,
    records: &mut dyn WalRecords,
) -> Result<Walked> {
    let Some(consistent_at) = consistency_time(set, path, wal, records)? else {
        return Ok(Walked::Not(Unreached::UnknownTime));
    };
    if consistent_at > at || consistent_at == at && !is_inclusive {
        return Ok(Walked::Not(Unreached::BeforeSet));
    }
    let is_later =
        |facts: &WalFacts| latest_end(facts).is_some_and(|latest| latest > at || latest == at && !is_inclusive);
    let walked = walk(set, path, wal, records, &mut |_, facts, _| Ok(is_later(facts)))?;
    if matches!(walked, Walked::Found(_)) {
        return Ok(walked);
    }
    // The only later one may be a record that lies in two segments.
    let mut before: Option<Stop> = None;
    walk(set, path, wal, records, &mut |stop, _, records| match before.replace(stop) {
        Some(before) => Ok(is_later(&records.crossing(before, stop)?)),
        None => Ok(false),
    })
}

#[cfg(test)]
#[path = "recovery_plan_tests.rs"]
mod tests;
