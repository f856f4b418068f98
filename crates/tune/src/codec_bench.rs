//! Stage a: ratio and speed of every codec, level and frame size on a sample, in memory, on one core.
//!
//! Time is the CPU time of the thread, so that a busy machine does not make a codec look slow. Each figure gets a share
//! of the budget and goes through as many pieces of the sample as that lasts for, at least one of each large relation. So
//! that few pieces are enough, every figure is a comparison: one reference codec has gone through the whole sample, and
//! what another one does to some pieces of a relation, relative to what the next lower level, or the reference, does to
//! the same pieces, holds for all of it. Tables differ in ratio by factors; levels next to each other, by little.
//!
//! Of the frame sizes asked for, each codec is measured at its default one, the smallest and the largest;
//! [`crate::codec_table`] has what lies between.

use std::collections::BTreeMap;
use std::time::Duration;

use pagehaul_engine::codec::{CodecId, CodecSpec};
use pagehaul_engine::error::Result;
use pagehaul_engine::format::checksum::{crc32c, xxh3};
use pagehaul_engine::limits::FRAME_SIZE_BYTES_DEFAULT;
use pagehaul_engine::source::postgres::page::PageJudge;
use pagehaul_engine::terms::Lsn;

use crate::codec_table::UNLIMITED_BYTES_PER_S;
use crate::coder::{Coder, Cost, is_zero};
use crate::figures::{CodecFigures, SampleFacts};
use crate::sample::{GROUP_SHARE_MIN, Group, Piece, Sample};
use crate::stratum::StratumKind;
use crate::threads::{interrupted, thread_cpu_s};

/// Default CPU time for all codecs together; very slow levels take more, as they need one piece at least.
pub const BUDGET_DEFAULT: Duration = Duration::from_secs(3);
/// A figure from less CPU time than this is noise; a small sample is gone through again and again.
const MEASURED_S_MIN: f64 = 0.06;
/// The same for frame sizes beside a codec's default.
const MEASURED_BESIDE_S_MIN: f64 = 0.03;
/// One piece of each large relation is gone through, unless that would take longer than so many seconds: what a codec
/// does relative to another differs from table to table by a third.
const GROUPS_S_MAX: f64 = 0.3;
/// The same for frame sizes beside a codec's default.
const GROUPS_BESIDE_S_MAX: f64 = 0.1;
/// A codec that took so long, in seconds, at its default frame size is not measured at further ones.
const HOPELESS_S: f64 = 0.45;
/// The ratio of nothing but zeros, which are not stored.
const RATIO_MAX: f64 = 1e6;
/// Fast enough to go through the whole sample, and alike enough to all others.
const REFERENCE: &str = "zstd:1";

/// What limits and watches a measurement.
pub struct BenchOptions<'a> {
    /// CPU time for all codecs together.
    pub budget: Duration,
    /// Hears of each figure, with how many are done and how many there will be.
    pub progress: &'a dyn Fn(&CodecFigures, usize, usize),
    /// Asked between pieces.
    pub cancelled: &'a dyn Fn() -> bool,
}

/// Measures `codecs` on the sample; takes about the budget's time, and half a second for the reference and the checks.
///
/// # Errors
/// `Interrupted`; what codecs return.
pub fn measure_codecs(
    sample: &Sample,
    codecs: &[CodecSpec],
    frame_sizes: &[u32],
    options: &BenchOptions<'_>,
) -> Result<SampleFacts> {
    let plan = Plan::new(codecs, frame_sizes);
    let mut bench = Bench { sample, options, references: Vec::new() };
    let mut facts = SampleFacts {
        sample_bytes: sample.bytes(),
        strata: sample.strata.clone(),
        check_bytes_per_s: bench.check_speed(),
        hash_bytes_per_s: bench.hash_speed(),
        codecs: Vec::new(),
    };
    let part_s = options.budget.as_secs_f64() / plan.parts();
    for (index, (spec, sizes)) in plan.codecs.iter().enumerate() {
        let before: usize = plan.codecs[..index].iter().map(|(_, sizes)| sizes.len()).sum();
        for (number, size) in sizes.iter().enumerate() {
            // The default comes first and gets twice the time of the others.
            let time = if number == 0 {
                Time { share_s: 2.0 * part_s, least_s: MEASURED_S_MIN, groups_s: GROUPS_S_MAX }
            } else {
                Time { share_s: part_s, least_s: MEASURED_BESIDE_S_MIN, groups_s: GROUPS_BESIDE_S_MAX }
            };
            let (figures, spent_s) = bench.measure(*spec, *size, &time)?;
            (options.progress)(&figures, before + number + 1, plan.figures());
            facts.codecs.push(figures);
            if spent_s > HOPELESS_S {
                break;
            }
        }
    }
    Ok(facts)
}

/// How long one figure may take, in CPU seconds.
#[derive(Clone, Copy, Debug)]
struct Time {
    /// Its share of the budget.
    share_s: f64,
    /// At least so long.
    least_s: f64,
    /// At most so long for the sake of having seen every large relation.
    groups_s: f64,
}

impl Time {
    /// Every piece once.
    const ONCE: Time = Time { share_s: f64::INFINITY, least_s: 0.0, groups_s: 0.0 };
}

/// Which codec is measured at which frame sizes, the default one first.
struct Plan {
    codecs: Vec<(CodecSpec, Vec<u32>)>,
}

impl Plan {
    fn new(codecs: &[CodecSpec], frame_sizes: &[u32]) -> Self {
        let extremes = [frame_sizes.iter().min(), frame_sizes.iter().max()];
        let with_sizes = |spec: &CodecSpec| {
            let usual = spec.default_frame_size_bytes();
            let largest = frame_sizes.iter().max().copied().unwrap_or(usual);
            let mut sizes = vec![usual.min(largest)];
            if spec.codec() != CodecId::None {
                sizes.extend(extremes.into_iter().flatten().copied());
            }
            let mut seen = Vec::new();
            sizes.retain(|size| {
                !seen.contains(size) && {
                    seen.push(*size);
                    true
                }
            });
            (*spec, sizes)
        };
        Plan { codecs: codecs.iter().map(with_sizes).collect() }
    }

    fn figures(&self) -> usize {
        self.codecs.iter().map(|(_, sizes)| sizes.len()).sum()
    }

    /// Shares of the budget: two for each default frame size, one for each other.
    fn parts(&self) -> f64 {
        (self.figures() + self.codecs.len()).max(1) as f64
    }
}

/// What a codec did, or would have done, to every piece.
struct Reference {
    spec: CodecSpec,
    frame_size_bytes: u32,
    pieces: Vec<Cost>,
}

struct Bench<'a> {
    sample: &'a Sample,
    options: &'a BenchOptions<'a>,
    references: Vec<Reference>,
}

impl Bench<'_> {
    fn measure(&mut self, spec: CodecSpec, frame_size_bytes: u32, time: &Time) -> Result<(CodecFigures, f64)> {
        let own = self.go_through(spec, frame_size_bytes, time)?;
        let spent_s = own.iter().map(Cost::spent_s).sum();
        let reference = self.reference(spec, frame_size_bytes)?;
        let pieces = self.estimate(&own, &reference);
        let per_byte = |of: fn(&Cost) -> f64| self.per_source_byte(&pieces, of);
        let speed = |seconds: f64| match seconds {
            _ if spec.codec() == CodecId::None => UNLIMITED_BYTES_PER_S,
            seconds if seconds > 0.0 => (1.0 / seconds).min(UNLIMITED_BYTES_PER_S),
            _ => UNLIMITED_BYTES_PER_S,
        };
        let figures = CodecFigures {
            compression: spec.to_string(),
            frame_size_bytes,
            ratio: if own.is_empty() { 1.0 } else { (1.0 / per_byte(|cost| cost.stored_bytes)).min(RATIO_MAX) },
            encode_bytes_per_s: speed(per_byte(|cost| cost.encode_s)),
            decode_bytes_per_s: speed(per_byte(|cost| cost.decode_s)),
        };
        self.references.push(Reference { spec, frame_size_bytes, pieces });
        Ok((figures, spent_s))
    }

    /// What to compare with: the nearest lower level of the same codec, or else the one codec that goes through the whole
    /// sample for it.
    fn reference(&mut self, spec: CodecSpec, frame_size_bytes: u32) -> Result<Vec<Cost>> {
        let base: CodecSpec = REFERENCE.parse()?;
        let alike = self.references.iter().filter(|known| known.frame_size_bytes == frame_size_bytes);
        let lower =
            alike.clone().filter(|known| known.spec.codec() == spec.codec() && known.spec.level() < spec.level());
        if let Some(known) =
            lower.max_by_key(|known| known.spec.level()).or_else(|| alike.clone().find(|known| known.spec == base))
        {
            return Ok(known.pieces.clone());
        }
        let pieces = self.go_through(base, frame_size_bytes, &Time::ONCE)?;
        self.references.push(Reference { spec: base, frame_size_bytes, pieces: pieces.clone() });
        Ok(pieces)
    }

    /// Costs of every piece of the sample: those measured, and for the others what the reference took, times what the codec
    /// took relative to the reference for pieces of the same group, or of the same kind, or for all.
    fn estimate(&self, own: &[Cost], reference: &[Cost]) -> Vec<Cost> {
        let pieces = &self.sample.pieces;
        // Pieces that were gone through several times count with their mean.
        let rounds = own.len().div_ceil(pieces.len().max(1)).max(1);
        let mean = |index: usize| {
            let mut sum = Cost::default();
            let times = own.iter().skip(index).step_by(pieces.len().max(1)).inspect(|cost| sum.add(cost)).count();
            sum.times(1.0 / times.max(1) as f64)
        };
        if rounds > 1 || own.len() == pieces.len() {
            return (0..pieces.len()).map(mean).collect();
        }
        let estimate = |index: usize| {
            let group = pieces[index].group();
            let candidates: [&dyn Fn(Group) -> bool; 3] =
                [&|other| other == group, &|other| other.0 == group.0, &|_| true];
            let factor = |of: fn(&Cost) -> f64| {
                let compare = |wanted: &&dyn Fn(Group) -> bool| {
                    let compared = of(&self.sum_of(&reference[..own.len()], wanted));
                    (compared > 0.0).then(|| of(&self.sum_of(own, wanted)) / compared)
                };
                candidates.iter().find_map(compare).unwrap_or(1.0)
            };
            Cost {
                raw_bytes: reference[index].raw_bytes,
                stored_bytes: reference[index].stored_bytes * factor(|cost| cost.stored_bytes),
                encode_s: reference[index].encode_s * factor(|cost| cost.encode_s),
                decode_s: reference[index].decode_s * factor(|cost| cost.decode_s),
            }
        };
        (0..pieces.len()).map(|index| own.get(index).copied().unwrap_or_else(|| estimate(index))).collect()
    }

    /// One kind of cost per byte of the source: each stratum with its share of the source. One too small for the sample
    /// is the average of the others.
    fn per_source_byte(&self, pieces: &[Cost], of: fn(&Cost) -> f64) -> f64 {
        let (mut cost_sum, mut share_sum) = (0.0, 0.0);
        for kind in StratumKind::ALL {
            let own = self.sum_of(pieces, |group| group.0 == kind);
            if own.raw_bytes > 0.0 {
                cost_sum += self.sample.share(kind) * of(&own) / own.raw_bytes;
                share_sum += self.sample.share(kind);
            }
        }
        if share_sum > 0.0 { cost_sum / share_sum } else { 0.0 }
    }

    /// The sum over the pieces of the wanted groups; `costs` are those of the sample's first pieces.
    fn sum_of(&self, costs: &[Cost], wanted: impl Fn(Group) -> bool) -> Cost {
        let mut sum = Cost::default();
        let own = costs.iter().zip(&self.sample.pieces).filter(|(_, piece)| wanted(piece.group()));
        own.for_each(|(cost, _)| sum.add(cost));
        sum
    }

    /// Costs of piece after piece, the first ones again after the last, until the time is used; see [`Time`].
    fn go_through(&self, spec: CodecSpec, frame_size_bytes: u32, time: &Time) -> Result<Vec<Cost>> {
        let mut coder = Coder::new(spec, frame_size_bytes)?;
        // Without a codec nothing is timed, and looking for zeros is soon done.
        let time = if coder.is_none { &Time::ONCE } else { time };
        let (pieces, mut costs) = (&self.sample.pieces, Vec::new());
        // Touches what is touched later: tables, code, the scratch memory.
        if let Some(piece) = pieces.first() {
            coder.warm_up(piece)?;
        }
        let mut spent_s = 0.0;
        let large = self.large_groups();
        loop {
            for piece in pieces {
                if (self.options.cancelled)() {
                    return Err(interrupted("measure the codecs"));
                }
                let cost = coder.cost_of(piece)?;
                spent_s += cost.spent_s();
                costs.push(cost);
                let all_seen = costs.len() >= large || spent_s >= time.groups_s;
                if all_seen && spent_s >= time.share_s && spent_s >= time.least_s {
                    return Ok(costs);
                }
            }
            // All of it once is enough, unless that was too short to be timed.
            if spent_s <= 0.0 || coder.is_none || spent_s >= time.least_s {
                return Ok(costs);
            }
        }
    }

    /// How many of the first pieces are one of each large group.
    fn large_groups(&self) -> usize {
        let total: usize = self.sample.pieces.iter().map(|piece| piece.bytes.len()).sum();
        let mut groups: BTreeMap<Group, usize> = BTreeMap::new();
        for piece in &self.sample.pieces {
            *groups.entry(piece.group()).or_default() += piece.bytes.len();
        }
        groups.values().filter(|bytes| **bytes as f64 >= GROUP_SHARE_MIN * total as f64).count()
    }

    /// Bytes a second of the checks of raw bytes: zeros, pages, CRC32C.
    fn check_speed(&self) -> f64 {
        let judge = PageJudge::new(self.sample.block_size_bytes, self.sample.data_checksums, Lsn(0));
        let page_size = self.sample.block_size_bytes as usize;
        self.speed_of(|piece| {
            let mut seen = 0u32;
            for frame in piece.frames(FRAME_SIZE_BYTES_DEFAULT) {
                let bytes = &piece.bytes[frame];
                seen ^= u32::from(is_zero(bytes)) ^ crc32c(bytes);
            }
            let mut start = 0;
            for segment in &piece.segments {
                let pages = piece.bytes[start..start + segment.length].chunks_exact(page_size);
                for (block, page) in segment.first_block.into_iter().flat_map(|first| first..).zip(pages) {
                    std::hint::black_box(judge.judge(page, block, Lsn(u64::MAX)));
                }
                start += segment.length;
            }
            seen
        })
    }

    /// Bytes a second of the checksum of stored bytes.
    fn hash_speed(&self) -> f64 {
        self.speed_of(|piece| {
            let frames = piece.frames(FRAME_SIZE_BYTES_DEFAULT).into_iter();
            frames.map(|frame| xxh3(&piece.bytes[frame]) as u32).fold(0, |seen, sum| seen ^ sum)
        })
    }

    fn speed_of(&self, work: impl Fn(&Piece) -> u32) -> f64 {
        let (mut bytes, started) = (0, thread_cpu_s());
        while bytes == 0 || thread_cpu_s() - started < MEASURED_S_MIN {
            for piece in &self.sample.pieces {
                std::hint::black_box(work(piece));
                bytes += piece.bytes.len();
                if thread_cpu_s() - started >= MEASURED_S_MIN {
                    break;
                }
            }
            if bytes == 0 {
                return UNLIMITED_BYTES_PER_S;
            }
        }
        bytes as f64 / (thread_cpu_s() - started).max(1e-9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Stratum;
    use crate::sample::Segment;
    use crate::threads::fill_random;

    /// Two strata: text-like heap, and noise; a third of all is zeros.
    fn sample(pieces: usize) -> Sample {
        let piece = |number: usize| {
            let mut bytes = vec![0u8; 3 << 20];
            let kind = if number.is_multiple_of(2) { StratumKind::Heap } else { StratumKind::Toast };
            fill_random(&mut bytes[..2 << 20], number as u64);
            if kind == StratumKind::Heap {
                bytes[..2 << 20].iter_mut().for_each(|byte| *byte = b'a' + *byte % 8);
            }
            let segments =
                vec![Segment { length: bytes.len(), is_whole_file: false, first_block: Some(0), layout: None }];
            Piece { kind, relation: None, bytes, segments }
        };
        let stratum = |name: &str, source_bytes| Stratum { name: name.to_owned(), source_bytes, sample_bytes: 0 };
        Sample {
            pieces: (0..pieces).map(piece).collect(),
            strata: vec![stratum("heap", 900), stratum("toast", 100)],
            read_bytes: 0,
            block_size_bytes: 8192,
            data_checksums: true,
        }
    }

    fn measure(sample: &Sample, codecs: &[&str], budget_ms: u64) -> SampleFacts {
        let codecs: Vec<CodecSpec> = codecs.iter().map(|codec| codec.parse().unwrap()).collect();
        let budget = Duration::from_millis(budget_ms);
        let options = BenchOptions { budget, progress: &|_, _, _| {}, cancelled: &|| false };
        measure_codecs(sample, &codecs, &[256 << 10, 1 << 20], &options).unwrap()
    }

    #[test]
    fn strata_weigh_what_they_do_in_the_source() {
        let facts = measure(&sample(4), &["zstd:1", "lz4:1", "none"], 200);
        assert_eq!(facts.codecs.len(), 5, "two frame sizes each, but for none");
        for figures in &facts.codecs {
            assert!(figures.ratio.is_finite() && figures.encode_bytes_per_s > 0.0 && figures.decode_bytes_per_s > 0.0);
        }
        // Nine tenths are letters of three bits, of which two thirds are not zeros; one tenth is noise likewise.
        let expected = 1.0 / (0.9 * 2.0 / 3.0 * 3.0 / 8.0 + 0.1 * 2.0 / 3.0);
        let zstd = &facts.codecs[0];
        assert!((zstd.ratio / expected - 1.0).abs() < 0.1, "{} for {expected}", zstd.ratio);
        let none = facts.codecs.iter().find(|figures| figures.compression == "none").unwrap();
        assert!((none.ratio - 1.5).abs() < 0.01, "zeros are not stored: {}", none.ratio);
        assert_eq!(none.encode_bytes_per_s, UNLIMITED_BYTES_PER_S);
        assert!(facts.check_bytes_per_s > zstd.encode_bytes_per_s && facts.hash_bytes_per_s > 0.0);
    }

    #[test]
    fn a_part_of_the_sample_says_the_same_as_all_of_it() {
        let sample = sample(8);
        let (little, much) = (measure(&sample, &["zstd:6"], 1), measure(&sample, &["zstd:6"], 4000));
        let (little, much) = (&little.codecs[0], &much.codecs[0]);
        assert!((little.ratio / much.ratio - 1.0).abs() < 0.1, "{} and {}", little.ratio, much.ratio);
    }

    #[test]
    fn nearly_nothing_and_nothing_work() {
        let mut small = sample(1);
        small.pieces[0].bytes = b"15\n".to_vec();
        small.pieces[0].segments[0].length = 3;
        assert!(measure(&small, &["zstd:1", "zstd:19"], 10).codecs.iter().all(|figures| figures.ratio > 0.0));
        let empty = measure(&sample(0), &["lz4:1"], 10);
        assert_eq!(empty.codecs[0].ratio, 1.0);
        let mut zeros = sample(1);
        zeros.pieces[0].bytes.fill(0);
        assert_eq!(measure(&zeros, &["lz4:1"], 10).codecs[0].ratio, RATIO_MAX);
    }

    #[test]
    fn it_stops_when_asked() {
        let options = BenchOptions { budget: BUDGET_DEFAULT, progress: &|_, _, _| {}, cancelled: &|| true };
        let error = measure_codecs(&sample(1), &[CodecSpec::default()], &[], &options).unwrap_err();
        assert_eq!(error.kind(), pagehaul_engine::error::ErrorKind::Interrupted);
    }
}
