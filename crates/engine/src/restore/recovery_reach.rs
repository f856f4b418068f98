//! Words for what can be reached and what cannot.

use jiff::{SignedDuration, Timestamp};

use super::recovery_plan::{Known, Route, Wanted};
use super::recovery_target::RecoveryTarget;
use super::recovery_walk::{Stop, Unreached, WalRecords, segment_name};
use crate::catalog::{RecoveryWindow, SegmentFacts, TimedWindow, timed_windows};
use crate::error::{Error, ErrorKind};
use crate::terms::Lsn;

/// The error of a target that no set leads to: why, the nearest point that can be reached, and all windows.
pub(super) fn no_such_target(
    wanted: Wanted<'_>,
    known: Known<'_>,
    route: &Route<'_>,
    why: &Unreached,
    records: &mut dyn WalRecords,
) -> Error {
    let windows = windows_of_route(known, route, records);
    let cause = cause(wanted, known, route, why, &windows);
    let nearest = nearest(wanted.target, &windows).map_or_else(String::new, |nearest| format!("nearest: {nearest}; "));
    let action = format!("recover to {}", target_words(wanted.target));
    Error::new(ErrorKind::Repository, action, cause).hint(format!("{nearest}{}", windows_text(&windows)))
}

/// What can be reached on the way of `route`, in a sentence.
pub(super) fn describe_windows(known: Known<'_>, route: &Route<'_>, records: &mut dyn WalRecords) -> String {
    windows_text(&windows_of_route(known, route, records))
}

/// The windows of the sets of `route`; times that cannot be read are left out, because an error is under way already.
fn windows_of_route(known: Known<'_>, route: &Route<'_>, records: &mut dyn WalRecords) -> Vec<TimedWindow> {
    let sets: Vec<_> = route.sets.iter().map(|set| (*set).clone()).collect();
    let records: &mut dyn SegmentFacts = records;
    timed_windows(route.path.timeline(), &sets, known.wal, records).unwrap_or_default()
}

/// As people call the target.
pub(super) fn target_words(target: &RecoveryTarget) -> String {
    match target {
        RecoveryTarget::SetEnd => "the end of the set".to_owned(),
        RecoveryTarget::Immediate => "the set's point of consistency".to_owned(),
        RecoveryTarget::Latest => "the end of the archived WAL".to_owned(),
        RecoveryTarget::Standby => "a standby".to_owned(),
        RecoveryTarget::Time(time) => time.at.to_string(),
        RecoveryTarget::Lsn(lsn) => lsn.to_string(),
        RecoveryTarget::Xid(xid) => format!("transaction {xid}"),
        RecoveryTarget::Name(name) => format!("restore point {name:?}"),
    }
}

fn cause(wanted: Wanted<'_>, known: Known<'_>, route: &Route<'_>, why: &Unreached, windows: &[TimedWindow]) -> String {
    let first = route.sets[route.sets.len() - 1];
    let name = |stop: &Stop| segment_name(*stop, known.wal);
    match why {
        Unreached::BeforeSet => {
            let begin_time = windows.first().and_then(|first| first.begin_time);
            let time = begin_time.map_or_else(String::new, |time| format!(" ({time})"));
            format!(
                "it lies before {}, where set {} is consistent{time}{}",
                first.stop_lsn,
                first.label,
                if wanted.label.is_some() { "" } else { ", and that is the first point there is" }
            )
        }
        Unreached::UnknownTime => {
            format!(
                "set {} is of a version that did not note when it was consistent, and its WAL is not archived",
                first.label
            )
        }
        Unreached::Missing(stop, _) if known.wal.conflicts.contains(&(stop.timeline, stop.number)) => format!(
            "WAL segment {} is archived twice with different bytes, and nobody can tell which one is right",
            name(stop)
        ),
        Unreached::Missing(stop, true) => format!(
            "the archive has a gap: WAL segment {} of timeline {} is missing, and there is WAL behind it",
            name(stop),
            stop.timeline
        ),
        Unreached::Missing(stop, false) => end_of_archive(wanted.target, known, stop, windows),
        Unreached::BreaksOff(stop, lsn) => {
            format!("the WAL breaks off at {lsn}, in the middle of segment {}", name(stop))
        }
    }
}

fn end_of_archive(target: &RecoveryTarget, known: Known<'_>, stop: &Stop, windows: &[TimedWindow]) -> String {
    match target {
        RecoveryTarget::Time(_) => match windows.iter().filter_map(|window| window.end_time).max() {
            Some(last) => format!(
                "no commit behind it is archived: the last one is of {last}, and a server stops only in front of a later one"
            ),
            None => "no transaction that ended after the set is archived".to_owned(),
        },
        RecoveryTarget::Latest => format!(
            "the archive has the history of timeline {} and no WAL of it: segment {} comes first",
            stop.timeline,
            segment_name(*stop, known.wal)
        ),
        _ => match known.wal.tails.get(&(stop.timeline, stop.number)) {
            Some(end) => {
                format!("the archived WAL ends before it, at {end} in segment {}", segment_name(*stop, known.wal))
            }
            None => format!("the archived WAL ends before it: segment {} is not there", segment_name(*stop, known.wal)),
        },
    }
}

/// The point that can be reached and is nearest to a time or position.
fn nearest(target: &RecoveryTarget, windows: &[TimedWindow]) -> Option<String> {
    match target {
        RecoveryTarget::Time(time) => {
            let before_end = |end: Timestamp| end.checked_sub(SignedDuration::from_micros(1)).ok();
            let bounds = windows.iter().filter(|window| window.end_time.is_some());
            let bounds = bounds.flat_map(|window| [window.begin_time, window.end_time.and_then(before_end)]);
            let nearest = bounds.flatten().min_by_key(|bound| bound.duration_since(time.at).abs())?;
            Some(format!("--type time --target \"{nearest}\""))
        }
        RecoveryTarget::Lsn(lsn) => {
            let begins = windows.iter().filter(|timed| timed.window.has_archived_wal());
            let nearest = begins.map(|timed| timed.window.begin_lsn).min_by_key(|begin| begin.0.abs_diff(lsn.0))?;
            let end = windows.last().filter(|last| last.window.end_lsn <= *lsn);
            Some(match end {
                Some(_) => "--type latest".to_owned(),
                None => format!("--type lsn --target {nearest}"),
            })
        }
        _ => None,
    }
}

fn windows_text(windows: &[TimedWindow]) -> String {
    let texts: Vec<String> = windows.iter().map(window_text).collect();
    match windows.first() {
        None => "no set leads to any point of that timeline".to_owned(),
        Some(first) => format!("on timeline {} can be reached {}", first.window.timeline, texts.join("; ")),
    }
}

fn window_text(timed: &TimedWindow) -> String {
    let RecoveryWindow { begin_lsn, end_lsn, ends_in_gap, sets, .. } = &timed.window;
    let with_time = |lsn: &Lsn, time: Option<Timestamp>, word: &str| match time {
        Some(time) => format!("{lsn} ({word}{time})"),
        None => lsn.to_string(),
    };
    let label = sets.first().map_or_else(String::new, |set| set.label.to_string());
    if !timed.window.has_archived_wal() {
        return format!("{} alone, the end of set {label}", with_time(begin_lsn, timed.begin_time, ""));
    }
    format!(
        "from {} with set {label} to {}{}",
        with_time(begin_lsn, timed.begin_time, ""),
        with_time(end_lsn, timed.end_time, "last commit "),
        if *ends_in_gap { ", where the WAL has a gap" } else { "" }
    )
}
