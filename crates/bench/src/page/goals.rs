//! What the project wants of the codec, by measured figures: asked, measured, and whether it holds.

use super::coder::UNPROVEN;
use super::measure::{Measured, Sum};
use super::tables::{self, geometric_mean, verdict};
use crate::results::mb_per_s;

/// A database, and what was measured on it.
pub(crate) type Measurement<'a> = (&'a str, &'a Measured);

/// How the figures of the databases become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    /// The geometric mean: every database counts alike.
    Mean,
    /// The worst of them.
    Every,
}

/// What is measured on one database.
#[derive(Clone, Copy, Debug)]
enum Figure {
    /// Stored bytes over the other's.
    Size,
    /// Encode speed over the other's.
    EncodeSpeed,
    /// MB/s; there is no other.
    DecodeMbPerS,
}

/// One goal.
struct Goal {
    codec: &'static str,
    figure: Figure,
    other: &'static str,
    over: Over,
    asked: f64,
}

const fn goal(codec: &'static str, figure: Figure, other: &'static str, over: Over, asked: f64) -> Goal {
    Goal { codec, figure, other, over, asked }
}

const GOALS: &[Goal] = &[
    goal("page:2", Figure::Size, "zstd:3", Over::Mean, 0.5),
    goal("page:2", Figure::Size, "zstd:13", Over::Mean, 0.6),
    goal("page:2", Figure::Size, "zstd:3", Over::Every, 1.0),
    goal("page:2", Figure::EncodeSpeed, "zstd:1", Over::Mean, 1.0),
    goal("page:2", Figure::DecodeMbPerS, "", Over::Mean, 1000.0),
    goal("page:1", Figure::EncodeSpeed, "lz4:1", Over::Mean, 1.0),
    goal("page:1", Figure::Size, "lz4:1", Over::Mean, 0.6),
    goal("page:5", Figure::Size, "zstd:19", Over::Every, 1.0),
    goal("page:5", Figure::EncodeSpeed, "zstd:19", Over::Every, 20.0),
];

impl Goal {
    /// On one database; None if one of both codecs did not run.
    fn measured(&self, measured: &Measured, codec: &str) -> Option<f64> {
        let own = measured.codec(codec)?;
        match self.figure {
            Figure::Size => {
                let all: Vec<usize> = (0..measured.raw_bytes.len()).collect();
                tables::gain(measured, own, self.other, &all).map(|gain| 1.0 / gain)
            }
            Figure::EncodeSpeed => tables::speedup(measured, own, self.other, |sum: &Sum| sum.encode_s),
            Figure::DecodeMbPerS => {
                let sum = measured.whole(own, own);
                Some(mb_per_s(sum.raw_bytes, sum.decode_s))
            }
        }
    }

    fn is_met_by(&self, value: f64) -> bool {
        if matches!(self.figure, Figure::Size) { value <= self.asked } else { value >= self.asked }
    }

    /// Over all databases: the figure, and the database that is the worst.
    fn over_all<'a>(&self, of: &[Measurement<'a>], codec: &str) -> Option<(f64, f64, &'a str)> {
        let values: Vec<(f64, &str)> =
            of.iter().map(|(name, measured)| Some((self.measured(measured, codec)?, *name))).collect::<Option<_>>()?;
        let mean = geometric_mean(values.iter().map(|(value, _)| Some(*value)))?;
        let order = |one: &(f64, &str), two: &(f64, &str)| one.0.total_cmp(&two.0);
        let values = values.into_iter();
        let (worst, name) =
            if matches!(self.figure, Figure::Size) { values.max_by(order)? } else { values.min_by(order)? };
        Some((mean, worst, name))
    }

    fn words(&self) -> (String, String) {
        let what = match self.figure {
            Figure::Size => format!("size over that of {}", self.other),
            Figure::EncodeSpeed => format!("encode speed over that of {}", self.other),
            Figure::DecodeMbPerS => "decode, MB/s".to_owned(),
        };
        let over = if self.over == Over::Mean { "mean of all databases" } else { "every database" };
        let sign = if matches!(self.figure, Figure::Size) { "at most" } else { "at least" };
        (what, format!("{over}: {sign} {}", self.asked))
    }

    /// A row a codec: the goal's, and for encode speeds also the codec without the proof, which is no goal.
    fn rows(&self, of: &[Measurement<'_>]) -> String {
        let (what, asked) = self.words();
        let row = |codec: &str, asked: &str, is_goal: bool| {
            let Some((mean, worst, name)) = self.over_all(of, codec) else { return String::new() };
            let value = if self.over == Over::Mean { mean } else { worst };
            let digits = if matches!(self.figure, Figure::DecodeMbPerS) { 0 } else { 3 };
            let holds = if is_goal { verdict(self.is_met_by(value)) } else { "" };
            format!("| {codec} | {what} | {asked} | {mean:.digits$} | {worst:.digits$} ({name}) | {holds} |\n")
        };
        let unproven = match self.figure {
            Figure::EncodeSpeed => row(&format!("{}{UNPROVEN}", self.codec), "no goal, for comparison", false),
            _ => String::new(),
        };
        row(self.codec, &asked, true) + &unproven
    }
}

/// The table of all goals whose codecs ran.
pub(crate) fn table(of: &[Measurement<'_>]) -> String {
    let rows: String = GOALS.iter().map(|goal| goal.rows(of)).collect();
    format!(
        "Every frame is decoded again before the encoder lets it go, and encode speeds include that; `without proof` leaves it out, \
         which only the bench can.\n\n| codec | what | asked | mean (geometric) | worst database | holds |\n|---|---|---|---|---|---|\n{rows}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::measure::{OfCodec, Took};

    fn measured(codecs: &[(&str, u64, f64)]) -> Measured {
        let codec = |(name, stored_bytes, encode_s): &(&str, u64, f64)| OfCodec {
            name: (*name).to_owned(),
            frames: vec![Some(Took { stored_bytes: *stored_bytes, encode_s: *encode_s, decode_s: 0.001 })],
            is_sampled: false,
        };
        Measured { raw_bytes: vec![2_000_000], codecs: codecs.iter().map(codec).collect() }
    }

    #[test]
    fn goals_are_judged_by_the_mean_or_by_the_worst() {
        let one = measured(&[("zstd:3", 100, 0.01), ("zstd:1", 110, 0.02), ("page:2", 20, 0.01)]);
        let two = measured(&[
            ("zstd:3", 100, 0.01),
            ("zstd:1", 110, 0.01),
            ("page:2", 125, 0.04),
            ("page:2 without proof", 125, 0.02),
        ]);
        let text = table(&[("one", &one), ("two", &two)]);
        for line in [
            "| page:2 | size over that of zstd:3 | mean of all databases: at most 0.5 | 0.500 | 1.250 (two) | yes |",
            "| page:2 | size over that of zstd:3 | every database: at most 1 | 0.500 | 1.250 (two) | **no** |",
            "| page:2 | encode speed over that of zstd:1 | mean of all databases: at least 1 | 0.707 | 0.250 (two) | **no** |",
            "| page:2 | decode, MB/s | mean of all databases: at least 1000 | 2000 | 2000 (one) | yes |",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("page:1") && !text.contains("page:2 without"), "not measured on all databases: {text}");
        assert!(table(&[("two", &two)]).contains("| page:2 without proof | encode speed over that of zstd:1 | no goal, for comparison | 0.500 | 0.500 (two) |  |"));
    }
}
