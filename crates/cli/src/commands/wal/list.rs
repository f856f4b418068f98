//! `pagehaul wal list`: ranges and gaps as a table, or as JSON.

use pagehaul_engine::catalog::Repository;
use pagehaul_engine::error::{ErrorKind, Result};
use pagehaul_engine::wal::{ClusterListing, NamedRange, TimelineListing, WalListing, list};

use crate::args::WalListArgs;
use crate::exit_code::ExitCode;
use crate::output;
use crate::output::figures::{bytes, count};
use crate::output::table::{Align, table};

/// Lists what the archive has.
pub(super) fn run(args: &WalListArgs) -> Result<ExitCode> {
    let repository = Repository::open(&args.shared.repo)?;
    let listings = list(&repository, args.source()?.as_ref(), args.detail())?;
    if args.shared.json {
        output::json(&listings)?;
    } else {
        output::data(&listings.iter().map(text).collect::<String>())?;
    }
    let is_sound = !listings.iter().any(WalListing::has_faults);
    Ok(if is_sound { ExitCode::Done } else { ExitCode::Failed(ErrorKind::Damage) })
}

fn text(listing: &WalListing) -> String {
    let owner = listing.system_identifier.as_deref();
    let mut text = format!("source {}, cluster {}\n", listing.source, owner.unwrap_or("not known yet"));
    if listing.clusters.is_empty() {
        text.push_str("no WAL\n");
    }
    for cluster in &listing.clusters {
        if owner != Some(&cluster.system_identifier) {
            text.push_str(&format!("of cluster {}, which wrote under that name before:\n", cluster.system_identifier));
        }
        text.push_str(&ranges_text(cluster));
        cluster.timelines.iter().for_each(|timeline| text.push_str(&remarks(timeline)));
    }
    text
}

fn ranges_text(cluster: &ClusterListing) -> String {
    let header = [
        ("timeline", Align::Right),
        ("from", Align::Left),
        ("to", Align::Left),
        ("segments", Align::Right),
        ("LSN", Align::Left),
        ("", Align::Left),
    ];
    let mut rows = Vec::new();
    for timeline in &cluster.timelines {
        let mut all: Vec<(&NamedRange, &str)> = timeline.ranges.iter().map(|range| (range, "")).collect();
        all.extend(timeline.gaps.iter().map(|gap| (gap, "MISSING")));
        all.sort_by_key(|(range, _)| range.start_lsn);
        rows.extend(all.iter().map(|(range, remark)| {
            vec![
                timeline.timeline.to_string(),
                range.first.to_string(),
                range.last.to_string(),
                range.segment_count.to_string(),
                format!("{} to {}", range.start_lsn, range.end_lsn),
                (*remark).to_owned(),
            ]
        }));
    }
    table(&header, &rows)
}

fn remarks(timeline: &TimelineListing) -> String {
    let mut lines = Vec::new();
    if let (Some(parent), Some(lsn)) = (timeline.parent, timeline.branch_lsn) {
        lines.push(format!("branched off timeline {parent} at {lsn}"));
    }
    if let Some(stored_bytes) = timeline.stored_bytes {
        lines.push(format!("{} of WAL in {}", bytes(timeline.raw_bytes), bytes(stored_bytes)));
    }
    if let (Some(earliest), Some(latest)) = (timeline.earliest_end_at, timeline.latest_end_at) {
        lines.push(format!("transactions ended from {earliest} to {latest}"));
    }
    lines.extend(timeline.restore_points.iter().map(|point| {
        format!("restore point {:?} at {}, {}", point.name, point.lsn, point.at)
    }));
    lines.extend(timeline.partials.iter().map(|name| format!("{name}, which ends early")));
    if timeline.piece_count > 0 {
        lines.push(format!("{} of segments", count(timeline.piece_count, "piece")));
    }
    lines.extend(timeline.broken_segments.iter().map(|segment| {
        format!("{} segment {segment}: its records cannot be followed to the end", output::red("BROKEN:"))
    }));
    lines.extend(timeline.conflicts.iter().map(|conflict| {
        format!("{} segment {} differs: {}", output::red("CONFLICT:"), conflict.segment, conflict.objects.join(", "))
    }));
    lines.extend(timeline.damaged.iter().map(|object| format!("{} {}", output::red("DAMAGED:"), object.cause)));
    lines.iter().map(|line| format!("  timeline {}: {line}\n", timeline.timeline)).collect()
}
