//! The part of `pagehaul info` that says which points can be reached: windows, WAL, gaps.

use jiff::Timestamp;
use pagehaul_engine::catalog::wal_inventory::clusters;
use pagehaul_engine::catalog::{ArchiveFacts, Repository, TimedWindow, set_points, timed_windows};
use pagehaul_engine::error::Result;
use pagehaul_engine::terms::{Lsn, SegmentNumber, SourceName, TimelineId, WalSegmentName};
use serde::Serialize;

use crate::output::figures::{count, duration};

/// The WAL of one cluster, with what can be reached by it.
#[derive(Debug, Serialize)]
pub(super) struct WalInfo {
    pub(super) system_identifier: String,
    segment_size_bytes: u64,
    pub(super) timelines: Vec<TimelineInfo>,
    pub(super) newest_point: Option<PointInfo>,
}

#[derive(Debug, Serialize)]
pub(super) struct TimelineInfo {
    pub(super) timeline: TimelineId,
    parent: Option<BranchInfo>,
    ranges: Vec<RangeInfo>,
    pub(super) gaps: Vec<RangeInfo>,
    pub(super) windows: Vec<WindowInfo>,
}

#[derive(Debug, Serialize)]
struct BranchInfo {
    timeline: TimelineId,
    lsn: Lsn,
}

#[derive(Debug, Serialize)]
pub(super) struct RangeInfo {
    first: WalSegmentName,
    last: WalSegmentName,
    pub(super) segment_count: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct WindowInfo {
    begin_lsn: Lsn,
    pub(super) begin_time: Option<String>,
    end_lsn: Lsn,
    pub(super) last_commit_time: Option<String>,
    ends_in_gap: bool,
    sets: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct PointInfo {
    timeline: TimelineId,
    lsn: Lsn,
    pub(super) time: Option<String>,
    age_s: Option<f64>,
}

/// The WAL of every cluster that has any under the name of `source`.
///
/// # Errors
/// Those of the store; `Damage` if an object that must be looked into does not read.
pub(super) fn load(repository: &Repository, source: &SourceName, now: Timestamp) -> Result<Vec<WalInfo>> {
    clusters(repository, source)?.into_iter().map(|cluster| load_cluster(repository, source, cluster, now)).collect()
}

fn load_cluster(repository: &Repository, source: &SourceName, cluster: u64, now: Timestamp) -> Result<WalInfo> {
    let sets = set_points(repository, source, cluster)?;
    let mut archive = ArchiveFacts::load(repository, source, cluster)?;
    let wal = archive.wal().clone();
    let mut timelines = Vec::new();
    let mut newest: Option<(TimelineId, TimedWindow)> = None;
    for timeline in wal.timelines(&sets) {
        let windows = timed_windows(timeline, &sets, &wal, &mut archive)?;
        if let Some(last) = windows.last() {
            newest = Some((timeline, last.clone()));
        }
        let ranges = wal.ranges.get(&timeline).map_or(&[][..], Vec::as_slice);
        let range = |range: &std::ops::Range<u64>| {
            let name = |number| WalSegmentName::new(timeline, SegmentNumber(number), wal.segment_size_bytes);
            RangeInfo { first: name(range.start), last: name(range.end - 1), segment_count: range.end - range.start }
        };
        let parent = wal.histories.get(&timeline).and_then(|ancestors| ancestors.last());
        timelines.push(TimelineInfo {
            timeline,
            parent: parent.map(|(timeline, lsn)| BranchInfo { timeline: *timeline, lsn: *lsn }),
            ranges: ranges.iter().map(range).collect(),
            gaps: wal.gaps(timeline).iter().map(range).collect(),
            windows: windows.iter().map(window).collect(),
        });
    }
    let newest_point = newest.map(|(timeline, timed)| {
        let time = timed.end_time.or(timed.begin_time);
        PointInfo {
            timeline,
            lsn: timed.window.end_lsn,
            time: time.map(|time| time.to_string()),
            age_s: time.map(|time| now.duration_since(time).as_secs_f64().max(0.0)),
        }
    });
    let segment_size_bytes = wal.segment_size_bytes;
    Ok(WalInfo { system_identifier: cluster.to_string(), segment_size_bytes, timelines, newest_point })
}

fn window(timed: &TimedWindow) -> WindowInfo {
    let text = |time: Option<Timestamp>| time.map(|time| time.to_string());
    WindowInfo {
        begin_lsn: timed.window.begin_lsn,
        begin_time: text(timed.begin_time),
        end_lsn: timed.window.end_lsn,
        last_commit_time: text(timed.end_time),
        ends_in_gap: timed.window.ends_in_gap,
        sets: timed.window.sets.iter().map(|set| set.label.to_string()).collect(),
    }
}

/// A few lines for the overview.
pub(super) fn text(clusters: &[WalInfo]) -> String {
    let mut text = String::new();
    for wal in clusters {
        let of = if clusters.len() > 1 { format!(" of cluster {}", wal.system_identifier) } else { String::new() };
        for timeline in &wal.timelines {
            text.push_str(&timeline_text(timeline, &of));
        }
        if let Some(point) = &wal.newest_point {
            let time = match (&point.time, point.age_s) {
                (Some(time), Some(age_s)) => format!("{} UTC, {} ago", short(time), duration(age_s)),
                _ => "of unknown time".to_owned(),
            };
            text.push_str(&format!("newest point{of}: {time} ({}, timeline {})\n", point.lsn, point.timeline));
        }
    }
    text
}

fn timeline_text(info: &TimelineInfo, of: &str) -> String {
    let timeline = info.timeline;
    let segments: u64 = info.ranges.iter().map(|range| range.segment_count).sum();
    let mut text = String::new();
    if let (Some(first), Some(last)) = (info.ranges.first(), info.ranges.last()) {
        let parent = info.parent.as_ref();
        let parent =
            parent.map_or_else(String::new, |from| format!(", from timeline {} at {}", from.timeline, from.lsn));
        let segments = count(segments, "segment");
        text.push_str(&format!("WAL{of}, timeline {timeline}{parent}: {} to {}, {segments}\n", first.first, last.last));
    }
    for gap in &info.gaps {
        let missing = count(gap.segment_count, "segment");
        text.push_str(&format!("  GAP: {} to {} ({missing}) are missing\n", gap.first, gap.last));
    }
    for window in &info.windows {
        text.push_str(&format!("  can be reached: {}\n", window_text(window)));
    }
    text
}

fn window_text(window: &WindowInfo) -> String {
    let at = |lsn: &Lsn, time: &Option<String>| match time {
        Some(time) => format!("{} UTC ({lsn})", short(time)),
        None => lsn.to_string(),
    };
    let label = window.sets.first().map_or("", String::as_str);
    let begin = at(&window.begin_lsn, &window.begin_time);
    if window.begin_lsn == window.end_lsn {
        return format!("{begin} alone, the end of {label}");
    }
    let gap = if window.ends_in_gap { ", where a gap begins" } else { "" };
    format!("{begin}, with {label}, to {}{gap}", at(&window.end_lsn, &window.last_commit_time))
}

/// "2026-11-21T20:15:30.123456Z" is "2026-11-21 20:15:30".
fn short(time: &str) -> String {
    time.chars().take(19).collect::<String>().replace('T', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_and_gaps_are_told_in_lines() {
        let name = |number| WalSegmentName::new(TimelineId(2), SegmentNumber(number), 16 << 20);
        let range = |first, last| RangeInfo { first: name(first), last: name(last), segment_count: last - first + 1 };
        let window = WindowInfo {
            begin_lsn: Lsn(0x300_0100),
            begin_time: Some("2026-11-21T20:15:30.123456Z".to_owned()),
            end_lsn: Lsn(0x500_0000),
            last_commit_time: Some("2026-11-21T21:00:00Z".to_owned()),
            ends_in_gap: true,
            sets: vec!["20261121-201500F".to_owned()],
        };
        let info = TimelineInfo {
            timeline: TimelineId(2),
            parent: Some(BranchInfo { timeline: TimelineId(1), lsn: Lsn(0x200_0000) }),
            ranges: vec![range(2, 4), range(6, 9)],
            gaps: vec![range(5, 5)],
            windows: vec![window],
        };
        let point = PointInfo {
            timeline: TimelineId(2),
            lsn: Lsn(0x500_0000),
            time: Some("2026-11-21T21:00:00Z".to_owned()),
            age_s: Some(125.0),
        };
        let wal = WalInfo {
            system_identifier: "7".to_owned(),
            segment_size_bytes: 16 << 20,
            timelines: vec![info],
            newest_point: Some(point),
        };
        assert_eq!(
            text(&[wal]),
            "WAL, timeline 2, from timeline 1 at 0/2000000: 000000020000000000000002 to 000000020000000000000009, 7 segments\n  \
             GAP: 000000020000000000000005 to 000000020000000000000005 (1 segment) are missing\n  \
             can be reached: 2026-11-21 20:15:30 UTC (0/3000100), with 20261121-201500F, to 2026-11-21 21:00:00 UTC \
             (0/5000000), where a gap begins\n\
             newest point: 2026-11-21 21:00:00 UTC, 2 min 05 s ago (0/5000000, timeline 2)\n"
        );
    }
}
