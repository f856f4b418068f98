//! Ratios and speeds as Markdown tables.

use super::frames::{Frame, Groups};
use super::list::FilesOfDatabase;
use super::measure::{Measured, OfCodec, Sum};
use crate::results::mb_per_s;

/// What sizes are compared with, and what speeds.
pub(crate) const SIZE_BASE: &str = "zstd:3";
pub(crate) const SPEED_BASES: [&str; 2] = ["zstd:1", "lz4:1"];
/// Relations that a table names.
const RELATIONS_MAX: usize = 30;

fn ratio(sum: &Sum) -> f64 {
    sum.raw_bytes as f64 / sum.stored_bytes.max(1) as f64
}

/// Whether a goal holds, as all tables say it.
pub(crate) fn verdict(holds: bool) -> &'static str {
    if holds { "yes" } else { "**no**" }
}

/// None if one is missing: a mean of fewer databases would be another figure.
pub(crate) fn geometric_mean(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let logs: Vec<f64> = values.map(|value| value.map(f64::ln)).collect::<Option<_>>()?;
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

pub(crate) fn cell(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| format!("{value:.3}"))
}

/// How much smaller than the base's is what `codec` stores, of the same frames; above 1 it is smaller.
pub(crate) fn gain(measured: &Measured, codec: &OfCodec, base: &str, frames: &[usize]) -> Option<f64> {
    let base = measured.codec(base)?;
    let own = measured.sum(codec, base, frames.iter().copied());
    let other = measured.sum(base, codec, frames.iter().copied());
    (own.stored_bytes > 0).then(|| other.stored_bytes as f64 / own.stored_bytes as f64)
}

/// Speed over the base's, of the same frames, by a time of the sums.
pub(crate) fn speedup(measured: &Measured, codec: &OfCodec, base: &str, time: fn(&Sum) -> f64) -> Option<f64> {
    let base = measured.codec(base)?;
    let (own, other) = (time(&measured.whole(codec, base)), time(&measured.whole(base, codec)));
    (own > 0.0).then(|| other / own)
}

/// One database, a line a codec.
pub(crate) fn database(list: &FilesOfDatabase, frames: &[Frame], measured: &Measured) -> String {
    let raw: u64 = measured.raw_bytes.iter().sum();
    let all: Vec<usize> = (0..frames.len()).collect();
    let mut text = format!(
        "{}: {:.1} MiB in {} frames\n\n| codec | ratio | smaller than {SIZE_BASE} | encode MB/s | decode MB/s | of raw MiB |\n|---|---|---|---|---|---|\n",
        list.database,
        raw as f64 / 1_048_576.0,
        frames.len()
    );
    for codec in &measured.codecs {
        let sum = measured.whole(codec, codec);
        text += &format!(
            "| {} | {:.3} | {} | {:.0} | {:.0} | {:.1} |\n",
            codec.name,
            ratio(&sum),
            cell(gain(measured, codec, SIZE_BASE, &all)),
            mb_per_s(sum.raw_bytes, sum.encode_s),
            mb_per_s(sum.raw_bytes, sum.decode_s),
            sum.raw_bytes as f64 / 1_048_576.0
        );
    }
    text + "\n"
}

/// Groups of frames, largest first: ratio, and encode and decode speed of each codec.
pub(crate) fn groups(title: &str, measured: &Measured, groups: &Groups) -> String {
    let raw = |frames: &Vec<usize>| frames.iter().map(|frame| measured.raw_bytes[*frame]).sum::<u64>();
    let mut sorted: Vec<_> = groups.iter().collect();
    sorted.sort_by_key(|(_, frames)| std::cmp::Reverse(raw(frames)));
    let names: Vec<&str> = measured.codecs.iter().map(|codec| codec.name.as_str()).collect();
    let mut text = format!(
        "Ratio @ encode / decode MB/s\n\n| {title} | MiB | {} |\n|---|---|{}\n",
        names.join(" | "),
        "---|".repeat(names.len())
    );
    for (name, frames) in sorted.into_iter().take(RELATIONS_MAX) {
        text += &format!("| {name} | {:.1} |", raw(frames) as f64 / 1_048_576.0);
        for codec in &measured.codecs {
            let sum = measured.sum(codec, codec, frames.iter().copied());
            text += &match sum.raw_bytes {
                0 => " |".to_owned(),
                bytes => format!(
                    " {:.2} @ {:.0} / {:.0} |",
                    ratio(&sum),
                    mb_per_s(bytes, sum.encode_s),
                    mb_per_s(bytes, sum.decode_s)
                ),
            };
        }
        text.push('\n');
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_geometric_and_of_all() {
        assert_eq!(geometric_mean([Some(2.0), Some(8.0)].into_iter()).map(f64::round), Some(4.0));
        assert_eq!(geometric_mean([Some(2.0), None].into_iter()), None);
    }
}
