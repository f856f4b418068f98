//! The measured figures of codecs by codec, level and frame size, with what lies between the measured points.

use std::collections::BTreeMap;

use pagehaul_engine::codec::{CodecId, CodecSpec};

use crate::figures::{CodecFigures, SampleFacts};

/// "As fast as you like": a codec that is not called, a device that was not measured. Bytes a second.
pub const UNLIMITED_BYTES_PER_S: f64 = 1e12;

/// What a codec does with the data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coding {
    /// Raw over stored.
    pub ratio: f64,
    /// Raw bytes a second of one core.
    pub encode_bytes_per_s: f64,
    /// Raw bytes a second of one core.
    pub decode_bytes_per_s: f64,
}

impl Coding {
    /// A share of the way, 0 to 1, from one to the other, on a scale of logarithms.
    fn between(&self, other: &Coding, share: f64) -> Coding {
        let mix = |one: f64, two: f64| (one.ln() * (1.0 - share) + two.ln() * share).exp();
        Coding {
            ratio: mix(self.ratio, other.ratio),
            encode_bytes_per_s: mix(self.encode_bytes_per_s, other.encode_bytes_per_s),
            decode_bytes_per_s: mix(self.decode_bytes_per_s, other.decode_bytes_per_s),
        }
    }
}

/// All figures of a sample, ready to be asked often.
#[derive(Clone, Debug, Default)]
pub struct CodecTable {
    by_codec: BTreeMap<CodecId, BTreeMap<i32, Vec<(u32, Coding)>>>,
}

impl CodecTable {
    /// The table of `facts`; rows that no codec of this version fits are left out.
    pub fn new(facts: &SampleFacts) -> Self {
        let mut table = CodecTable::default();
        for figures in &facts.codecs {
            let Ok(spec) = figures.compression.parse::<CodecSpec>() else { continue };
            let Some(coding) = sound(figures) else { continue };
            let levels = table.by_codec.entry(spec.codec()).or_default();
            levels.entry(spec.level()).or_default().push((figures.frame_size_bytes.max(1), coding));
        }
        for frames in table.by_codec.values_mut().flat_map(BTreeMap::values_mut) {
            frames.sort_by_key(|(frame_size_bytes, _)| *frame_size_bytes);
            frames.dedup_by_key(|(frame_size_bytes, _)| *frame_size_bytes);
        }
        table
    }

    /// What `spec` does with frames of this size; None if nothing of its codec was measured.
    ///
    /// Between two measured frame sizes, or levels, figures lie on a line over the logarithm of the frame size, or
    /// over the level; beyond the measured ones they are those of the nearest. A codec gains from larger frames less
    /// and less, so the line errs low by a few thousandths of the ratio between 256 KiB and 4 MiB.
    pub fn get(&self, spec: CodecSpec, frame_size_bytes: u32) -> Option<Coding> {
        let levels = self.by_codec.get(&spec.codec())?;
        let below = levels.range(..=spec.level()).next_back();
        let above = levels.range(spec.level()..).next();
        let at = |frames: &[(u32, Coding)]| at_frame_size(frames, frame_size_bytes);
        match (below, above) {
            (Some((low, one)), Some((high, two))) if low < high => {
                let share = f64::from(spec.level() - low) / f64::from(high - low);
                Some(at(one)?.between(&at(two)?, share))
            }
            (Some((_, frames)), _) | (None, Some((_, frames))) => at(frames),
            (None, None) => None,
        }
    }
}

/// Figures of `spec` with frames of this size, measured or between measured ones; see [`CodecTable::get`].
pub fn figures_for(facts: &SampleFacts, spec: CodecSpec, frame_size_bytes: u32) -> Option<CodecFigures> {
    let coding = CodecTable::new(facts).get(spec, frame_size_bytes)?;
    Some(CodecFigures {
        compression: spec.to_string(),
        frame_size_bytes,
        ratio: coding.ratio,
        encode_bytes_per_s: coding.encode_bytes_per_s,
        decode_bytes_per_s: coding.decode_bytes_per_s,
    })
}

/// The figures, if they are numbers to calculate with.
fn sound(figures: &CodecFigures) -> Option<Coding> {
    let positive = |value: f64| (value.is_finite() && value > 0.0).then_some(value);
    Some(Coding {
        ratio: positive(figures.ratio)?,
        encode_bytes_per_s: positive(figures.encode_bytes_per_s)?,
        decode_bytes_per_s: positive(figures.decode_bytes_per_s)?,
    })
}

fn at_frame_size(frames: &[(u32, Coding)], frame_size_bytes: u32) -> Option<Coding> {
    let above = frames.partition_point(|(size, _)| *size < frame_size_bytes);
    match (above.checked_sub(1).and_then(|below| frames.get(below)), frames.get(above)) {
        (Some((small, one)), Some((large, two))) => {
            let position = |size: u32| f64::from(size.max(1)).ln();
            let share = (position(frame_size_bytes) - position(*small)) / (position(*large) - position(*small));
            Some(one.between(two, share))
        }
        (None, Some((_, only))) | (Some((_, only)), None) => Some(*only),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(rows: &[(&str, u32, f64, f64)]) -> SampleFacts {
        let codecs = rows.iter().map(|(compression, frame_size_bytes, ratio, speed)| CodecFigures {
            compression: (*compression).to_owned(),
            frame_size_bytes: *frame_size_bytes,
            ratio: *ratio,
            encode_bytes_per_s: *speed,
            decode_bytes_per_s: 2.0 * speed,
        });
        SampleFacts { codecs: codecs.collect(), ..SampleFacts::default() }
    }

    fn get(facts: &SampleFacts, spec: &str, frame_size_bytes: u32) -> Option<(f64, f64)> {
        let figures = figures_for(facts, spec.parse().unwrap(), frame_size_bytes)?;
        Some(((figures.ratio * 1000.0).round() / 1000.0, figures.encode_bytes_per_s.round()))
    }

    #[test]
    fn measured_points_are_exact_and_others_lie_between() {
        let facts = facts(&[
            ("zstd:3", 4 << 20, 4.4, 500.0),
            ("zstd:1", 1 << 20, 4.0, 800.0),
            ("zstd:1", 256 << 10, 3.6, 900.0),
            ("zstd:9", 4 << 20, 5.0, 100.0),
        ]);
        assert_eq!(get(&facts, "zstd:1", 1 << 20), Some((4.0, 800.0)));
        assert_eq!(get(&facts, "zstd:1", 4 << 20), Some((4.0, 800.0)), "the nearest");
        assert_eq!(get(&facts, "zstd:1", 64 << 10), Some((3.6, 900.0)));
        assert_eq!(get(&facts, "zstd:1", 512 << 10), Some((3.795, 849.0)), "half way");
        let (ratio, speed) = get(&facts, "zstd:6", 4 << 20).unwrap();
        assert!((4.4..5.0).contains(&ratio) && (100.0..500.0).contains(&speed), "{ratio} {speed}");
        assert_eq!(get(&facts, "zstd:19", 1 << 20), Some((5.0, 100.0)));
        assert_eq!(get(&facts, "zstd:-5", 1 << 20), Some((4.0, 800.0)));
        assert_eq!(get(&facts, "lz4:1", 1 << 20), None);
    }

    #[test]
    fn rows_that_make_no_sense_are_left_out() {
        let facts = facts(&[
            ("zstd:1", 1 << 20, 0.0, 800.0),
            ("brotli:1", 1 << 20, 4.0, 800.0),
            ("lz4:1", 1 << 20, 2.0, f64::NAN),
        ]);
        assert_eq!(get(&facts, "zstd:1", 1 << 20), None);
        assert_eq!(get(&facts, "lz4:1", 1 << 20), None);
    }
}
