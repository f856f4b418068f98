//! The table for a machine that is not here: the same codecs, other disks, cores and sizes, by the limit law.

use pagehaul_tune::figures::{LimitKind, Prediction, TuneReport};
use pagehaul_tune::model::Model;
use pagehaul_tune::space::{Settings, Space};
use pagehaul_tune::what_if::{WhatIf, scale};

use crate::output::figures::{bytes, duration, rate_of, ratio};
use crate::output::table::{Align, table};

/// For each codec the best point of the space on that machine: what it would take, and what would hold it back.
pub(super) fn text(done: &TuneReport, space: &Space, what_if: &WhatIf) -> String {
    let facts = scale(&done.facts, what_if);
    let source_bytes = facts.source.source_bytes;
    let cores = facts.machine.cores;
    let model = Model::new(facts);
    let targets = space.stripes.iter().max().copied().unwrap_or(1);
    let wide = Space {
        compressions: space.compressions.clone(),
        stripes: space.stripes.clone(),
        transfer_sizes: space.transfer_sizes.clone(),
        ..Space::of_machine(cores, usize::from(targets))
    };
    let points = wide.points();
    let best = |codec| {
        let own =
            points.iter().filter(|point: &&Settings| point.compression == codec).map(|point| model.predict(point));
        own.min_by(|a, b| both_s(a).total_cmp(&both_s(b)))
    };
    let rows: Vec<Vec<String>> = space
        .compressions
        .iter()
        .filter_map(|codec| best(*codec))
        .map(|point| {
            vec![
                point.settings.compression.to_string(),
                duration(point.backup.wall_s),
                limit(point.backup.limit).to_owned(),
                duration(point.restore.wall_s),
                limit(point.restore.limit).to_owned(),
                bytes(point.stored_bytes),
                ratio(source_bytes as f64 / point.stored_bytes.max(1) as f64),
                rate_of(source_bytes, point.backup.wall_s),
                point.settings.to_string(),
            ]
        })
        .collect();
    let header = [
        ("codec", Align::Left),
        ("backup", Align::Right),
        ("held back by", Align::Left),
        ("restore", Align::Right),
        ("held back by", Align::Left),
        ("size", Align::Right),
        ("ratio", Align::Right),
        ("speed", Align::Right),
        ("with", Align::Left),
    ];
    format!(
        "\nwhat if: {} on {cores} cores (predicted from the codec speeds measured here; not measured)\n{}\
         the law: a backup moves at the smallest of what the source reads, what the encoders encode, what the targets \
         write times the ratio, and what all CPUs do together\n",
        bytes(source_bytes),
        table(&header, &rows)
    )
}

fn both_s(point: &Prediction) -> f64 {
    point.backup.wall_s + point.restore.wall_s
}

fn limit(kind: LimitKind) -> &'static str {
    match kind {
        LimitKind::Reading => "reading",
        LimitKind::Coding => "too few threads",
        LimitKind::Cpu => "CPUs",
        LimitKind::Writing => "writing",
        LimitKind::MaxRate => "--max-rate",
        LimitKind::Fixed => "begin and end",
    }
}
