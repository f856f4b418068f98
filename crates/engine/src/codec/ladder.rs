//! The levels that `auto` moves over, and an encoder that can take any of them for the next frame.
//!
//! A frame carries its codec, so a set may mix them and a reader need not know. What is cheap and small for pages of tables
//! and indexes is not so for other content, so there are two ladders, with the same scale of cost.

use super::lz4::{self, Lz4Decoder, Lz4Encoder};
use super::page::{self, PagesEncoder};
use super::zstd::{self, ZstdDecoder, ZstdEncoder};
use super::{CodecId, CodecSpec, Encoder, Part, Prover, check_frame_size};
use crate::error::Result;

/// One level of a ladder.
#[derive(Clone, Copy, Debug)]
pub struct Rung {
    /// Codec and level.
    pub spec: CodecSpec,
    /// What encoding a byte costs on the machine below. Only the relation between rungs counts.
    pub cost_ns_per_byte: f64,
}

const fn rung(codec: CodecId, level: i32, cost_ns_per_byte: f64) -> Rung {
    Rung { spec: CodecSpec::rung(codec, level), cost_ns_per_byte }
}

/// The rungs of all ladders, from the fastest to the slowest.
///
/// Frames that take turns between two levels lie on the line between them, so only levels below all such lines are
/// worth a rung. Changing the level from frame to frame costs no time that could be measured.
///
/// **Content without pages.** Measured on one core of a 2-core AMD EPYC machine, both cores at it, zstd 1.5.7, LZ4 1.10, frames
/// of 4 MiB, every eighth 4 MiB of a cluster of 2.3 GB (pgbench's tables and the typed ones of bench/load.sql). ns a byte,
/// stored %:
///
/// | lz4:1 | zstd:-3 | -1 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9 | 10 | 11 | 12 | 13 |
/// |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
/// | 0.78 | 0.88 | 1.15 | 1.34 | 1.89 | 2.70 | 4.07 | 7.96 | 9.61 | 11.7 | 13.1 | 16.7 | 21.4 | 28.9 | 29.7 | 69.8 |
/// | 34.9 | 32.7 | 27.0 | 22.9 | 22.1 | 22.1 | 22.1 | 21.9 | 21.0 | 21.0 | 20.1 | 20.1 | 20.0 | 20.0 | 20.0 | 20.0 |
///
/// zstd's negative levels lie on the line from LZ4 to zstd:1, 4 to 7 above that from 3 to 8. 3 is on
/// the line from 2 to 8 here and below it on other data (`ZSTD_NAMED_LEVELS`). 9 and 10 lie on the line to 11; 12 and
/// above cost twice the memory for nothing.
///
/// What decoding back adds (0.25 for LZ4, 0.55 for zstd at every level) is not in these numbers: it changes the relation of
/// neighbours by less than content does.
///
/// **Pages.** Means of the ten databases of bench/page, one thread, frames of 1 MiB (4 MiB from page:4 on), before page:1 and
/// page:2 became a quarter faster and page:1 a tenth larger (bench/runs/2026-11-23-page has them since). Costs are relative
/// to zstd:1's above, stored bytes relative to zstd:3's, %:
///
/// | lz4:1 | zstd:1 | page:1 | zstd:3 | page:2 | 3 | 4 | 5 | zstd:9 |
/// |---|---|---|---|---|---|---|---|---|
/// | 0.79 | 1.34 | 1.72 | 1.84 | 2.00 | 2.58 | 3.66 | 4.35 | 8.65 |
/// | 171 | 112 | 42.0 | 100 | 39.3 | 38.4 | 37.2 | 36.7 | 88.8 |
///
/// Since then page:3 has become what page:2 was, and page:2 a ninth faster and a twentieth larger
/// (bench/runs/2026-11-27-page-default), and page:1 a tenth faster and a seventh larger (bench/runs/2026-11-29-page-fast), then a
/// fifth faster and a fifth larger (bench/runs/2026-11-30-page-faster). The numbers below are those of the table still: content moves
/// them by more, and with page:2 any nearer to page:1 the level follows a change of content more slowly (`auto_level_tests.rs`).
///
/// All of the page codec's levels are below all lines, and nothing of zstd's is: turns of LZ4 and page:1 that cost what
/// zstd:1 does store 94 %. (In two of the ten databases, of JSON and of old revisions of texts, zstd:1 is below that
/// line.) Nothing is above page:5: zstd:19 stores twice as much.
pub const RUNGS: [Rung; 11] = [
    rung(CodecId::Lz4, 1, 0.78),
    rung(CodecId::Zstd, 1, 1.34),
    rung(CodecId::Page, 1, 1.72),
    rung(CodecId::Zstd, 2, 1.89),
    rung(CodecId::Page, 2, 2.00),
    rung(CodecId::Page, 3, 2.58),
    rung(CodecId::Zstd, 3, 2.70),
    rung(CodecId::Page, 4, 3.66),
    rung(CodecId::Page, 5, 4.35),
    rung(CodecId::Zstd, 8, 13.1),
    rung(CodecId::Zstd, 11, 28.9),
];

/// A rung of a ladder.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Step {
    /// Its number among [`RUNGS`].
    rung: usize,
    /// What its cost is divided by to have its place on the scale.
    stored: f64,
}

const fn step(rung: usize, stored: f64) -> Step {
    Step { rung, stored }
}

/// The rungs for one kind of content, from the fastest to the smallest result.
///
/// Rungs have places on a *scale* that all ladders share, and on which the law of `auto` moves (`pipeline/auto_level.rs`). For
/// content without pages that is the cost. From LZ4 to page:1 the cost is doubled, and a quarter of the bytes is left, so
/// queues would turn five times as fast as cost moves, and the level would swing: there the scale is cost over stored bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ladder {
    steps: &'static [Step; 6],
    /// What brings page:1 to where zstd:1 is: by the tables above these are the first that are worth their time.
    factor: f64,
    /// Where a run begins on the scale.
    start: f64,
}

/// Two neighbours on a ladder that take turns, or one rung alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Turns {
    /// Of all rungs, the lower one.
    pub low: usize,
    /// And the upper one.
    pub high: usize,
    /// Of all frames, those of the upper one; below 1.
    pub high_share: f64,
    /// What a byte costs on the mean.
    pub cost_ns_per_byte: f64,
}

impl Ladder {
    /// For whatever has no pages, or pages that the page codec has no model of. It begins at zstd:1, which takes 6 ms for
    /// 4 MiB, since the first frames are to reach the writers at once.
    pub const PLAIN: Ladder = Ladder {
        steps: &[step(0, 1.0), step(1, 1.0), step(3, 1.0), step(6, 1.0), step(9, 1.0), step(10, 1.0)],
        factor: 1.0,
        start: 1.34,
    };
    /// For pages of tables and indexes. Stored bytes are those of the table above over its zstd:3's times four and a half;
    /// LZ4's are 0.376, and 0.23 here, with which a run between fast devices is at LZ4 a twentieth of a second earlier and
    /// nothing swings yet (`auto_level_tests.rs`). It begins with three frames of page:1 to one of LZ4.
    pub const PAGES: Ladder = Ladder {
        steps: &[step(0, 0.23), step(2, 0.0924), step(4, 0.0864), step(5, 0.0844), step(7, 0.0818), step(8, 0.0808)],
        factor: 0.072,
        start: 0.953,
    };

    /// The ladder for a frame of `raw_bytes` of which `parts` are known: that of pages if most of it is pages that the page
    /// codec has a model of.
    pub fn of_frame(raw_bytes: usize, parts: &[Part<'_>]) -> Self {
        let modelled = parts.iter().filter(|part| part.layout.kind.has_columns());
        let modelled: usize = modelled.map(|part| part.length).sum();
        if 2 * modelled > raw_bytes { Ladder::PAGES } else { Ladder::PLAIN }
    }

    /// Its rungs, as numbers of [`RUNGS`].
    pub fn rungs(self) -> impl ExactSizeIterator<Item = usize> + DoubleEndedIterator {
        self.steps.iter().map(|step| step.rung)
    }

    /// The highest rung of those that cost no more than `cost_ns_per_byte`, or the lowest.
    pub fn below_cost(self, cost_ns_per_byte: f64) -> usize {
        self.rungs().rfind(|rung| RUNGS[*rung].cost_ns_per_byte <= cost_ns_per_byte).unwrap_or(self.steps[0].rung)
    }

    /// Where the rung at `place`, from 0, is on the scale; beyond the ladder's end its last.
    pub fn scale(self, place: usize) -> f64 {
        let step = self.steps[place.min(self.steps.len() - 1)];
        self.factor * RUNGS[step.rung].cost_ns_per_byte / step.stored
    }

    /// Where a run begins on the scale.
    pub fn start(self) -> f64 {
        self.start
    }

    /// The ends of the ladder on the scale.
    pub fn scale_ends(self) -> [f64; 2] {
        [self.scale(0), self.scale(self.steps.len() - 1)]
    }

    /// What gives the place `wanted` on the scale; beyond the ladder's ends these.
    pub fn turns(self, wanted: f64) -> Turns {
        let place = (0..self.steps.len()).rfind(|place| self.scale(*place) <= wanted);
        let low = self.steps[place.unwrap_or(0)];
        let high = place.and_then(|place| self.steps.get(place + 1)).copied().unwrap_or(low);
        let [low_cost, high_cost] = [low, high].map(|step| self.factor * RUNGS[step.rung].cost_ns_per_byte);
        // Of n frames (1 - x) n are of the lower: (low_cost + x (high_cost - low_cost)) / (low.stored + x (...)) is wanted.
        let bytes = wanted * low.stored - low_cost;
        let high_share = bytes / (high_cost - low_cost + wanted * (low.stored - high.stored));
        let high_share = if high == low { 0.0 } else { high_share.clamp(0.0, 1.0) };
        let cost_ns_per_byte = (low_cost + high_share * (high_cost - low_cost)) / self.factor;
        Turns { low: low.rung, high: high.rung, high_share, cost_ns_per_byte }
    }
}

fn levels_of(codec: CodecId) -> impl Iterator<Item = CodecSpec> {
    RUNGS.iter().map(|rung| rung.spec).filter(move |spec| spec.codec() == codec)
}

/// What one encoder of all rungs holds at most: the state of LZ4, and one zstd context and one page encoder as large as their
/// largest level; and what LZ4's and zstd's frames are decoded back with. Whether there will be pages is not known before.
pub(super) fn encoder_state_size_bytes(frame_size_bytes: usize, decodes_back: bool) -> u64 {
    let lz4 = levels_of(CodecId::Lz4).map(|spec| lz4::encoder_state_size_bytes(spec.level())).max();
    let zstd =
        levels_of(CodecId::Zstd).map(|spec| zstd::encoder_state_size_bytes(spec.level(), frame_size_bytes)).max();
    let page =
        levels_of(CodecId::Page).map(|spec| page::encoder_state_size_bytes(spec.level(), frame_size_bytes)).max();
    let proof = decodes_back.then(|| zstd::decoder_state_size_bytes() + Prover::state_size_bytes(frame_size_bytes));
    [lz4, zstd, page, proof].into_iter().flatten().sum()
}

/// Makes frames smaller, each at the rung its caller names; one per thread, kept for the whole run.
pub struct LadderEncoder {
    lz4: Lz4Encoder,
    zstd: ZstdEncoder,
    zstd_level: i32,
    /// Made for the first frame of pages: it is larger than all the rest, and some content has none.
    page: Option<PagesEncoder>,
    /// For what does not prove itself; None if nothing is decoded back.
    proof: Option<(ZstdDecoder, Prover)>,
    frame_size_bytes: usize,
}

impl LadderEncoder {
    /// For frames of up to `frame_size_bytes`, with all its memory taken but that for pages; each is decoded again and compared
    /// if it `decodes_back`, those of pages always.
    ///
    /// # Errors
    /// As [`super::new_encoder`].
    pub fn new(frame_size_bytes: usize, decodes_back: bool) -> Result<Self> {
        check_frame_size(frame_size_bytes)?;
        let size = |spec: &CodecSpec| zstd::encoder_state_size_bytes(spec.level(), frame_size_bytes);
        let zstd_level = levels_of(CodecId::Zstd).max_by_key(size).map_or(1, CodecSpec::level);
        let zstd = ZstdEncoder::new(zstd_level, frame_size_bytes)?;
        let lz4 = Lz4Encoder::new(RUNGS[0].spec.level(), frame_size_bytes);
        let proof = match decodes_back {
            true => Some((ZstdDecoder::new()?, Prover::new(frame_size_bytes))),
            false => None,
        };
        Ok(LadderEncoder { lz4, zstd, zstd_level, page: None, proof, frame_size_bytes })
    }

    /// As [`Encoder::encode_parts`], at `RUNGS[rung]`.
    ///
    /// # Errors
    /// As [`Encoder::encode`]; `Configuration` if there is no memory for pages.
    pub fn encode_parts(
        &mut self,
        rung: usize,
        raw: &[u8],
        parts: &[Part<'_>],
        stored: &mut [u8],
    ) -> Result<Option<usize>> {
        let spec = RUNGS[rung].spec;
        let length = match spec.codec() {
            CodecId::Page => return self.page_encoder(spec.level())?.encode_parts(raw, parts, stored),
            CodecId::Lz4 => self.lz4.encode(raw, stored)?,
            _ => {
                if spec.level() != self.zstd_level {
                    self.zstd.set_level(spec.level())?;
                    self.zstd_level = spec.level();
                }
                self.zstd.encode(raw, stored)?
            }
        };
        match (&mut self.proof, length) {
            (Some((_, prover)), Some(length)) if spec.codec() == CodecId::Lz4 => {
                prover.proven(&mut Lz4Decoder, raw, stored, length)
            }
            (Some((zstd, prover)), Some(length)) => prover.proven(zstd, raw, stored, length),
            _ => Ok(length),
        }
    }

    /// As [`Encoder::not_proven`].
    pub fn not_proven(&self) -> u64 {
        let own = self.proof.as_ref().map_or(0, |(_, prover)| prover.not_proven());
        own + self.page.as_ref().map_or(0, Encoder::not_proven)
    }

    fn page_encoder(&mut self, level: i32) -> Result<&mut PagesEncoder> {
        let encoder = match self.page.take() {
            Some(mut encoder) => {
                encoder.set_level(level);
                encoder
            }
            None => PagesEncoder::new(level, self.frame_size_bytes)?,
        };
        Ok(self.page.insert(encoder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::conformance::sample_data::{Random, pages};
    use crate::codec::{RelationKind, RelationLayout, new_decoder, new_encoder};

    const FRAME_SIZE_BYTES: usize = 1 << 18;

    fn layout(kind: RelationKind) -> RelationLayout {
        RelationLayout { kind, ..RelationLayout::other(8192) }
    }

    fn part(length: usize, layout: &RelationLayout) -> Part<'_> {
        Part { start: 0, length, first_page: 0, layout }
    }

    #[test]
    fn the_ladders_go_up_by_levels_that_there_are() {
        for rung in &RUNGS {
            assert_eq!(CodecSpec::new(rung.spec.codec(), rung.spec.level()).unwrap(), rung.spec);
        }
        assert!(RUNGS.is_sorted_by(|low, high| low.cost_ns_per_byte < high.cost_ns_per_byte));
        // One state serves LZ4's rungs.
        assert_eq!(levels_of(CodecId::Lz4).count(), 1);
        let mut all: Vec<usize> = Vec::new();
        for (ladder, codec) in [(Ladder::PLAIN, CodecId::Zstd), (Ladder::PAGES, CodecId::Page)] {
            let rungs: Vec<usize> = ladder.rungs().collect();
            assert!(rungs[0] == 0 && rungs.is_sorted_by(|low, high| low < high), "{ladder:?}");
            assert!(rungs[1..].iter().all(|rung| RUNGS[*rung].spec.codec() == codec), "{ladder:?}");
            assert!((0..5).all(|place| ladder.scale(place) < ladder.scale(place + 1)), "{ladder:?}");
            assert!((ladder.scale(0)..=ladder.scale(1)).contains(&ladder.start()), "{ladder:?}");
            all.extend(rungs);
        }
        all.sort_unstable();
        all.dedup();
        assert_eq!(all, Vec::from_iter(0..RUNGS.len()));
    }

    #[test]
    fn turns_give_the_wanted_place_on_the_scale() {
        for ladder in [Ladder::PLAIN, Ladder::PAGES] {
            let [least, most] = ladder.scale_ends();
            let stored = |rung: usize| ladder.steps.iter().find(|step| step.rung == rung).unwrap().stored;
            for part in 0..=1000 {
                let wanted = (least.ln() + f64::from(part) / 1000.0 * (most / least).ln()).exp();
                let turns = ladder.turns(wanted);
                let mean = |low: f64, high: f64| low + turns.high_share * (high - low);
                let cost = mean(RUNGS[turns.low].cost_ns_per_byte, RUNGS[turns.high].cost_ns_per_byte);
                assert!((cost - turns.cost_ns_per_byte).abs() < 1e-9, "{turns:?}");
                let place = ladder.factor * cost / mean(stored(turns.low), stored(turns.high));
                assert!((place / wanted - 1.0).abs() < 1e-6, "{wanted} {place} {turns:?}");
            }
            let alone = |wanted| (ladder.turns(wanted).low, ladder.turns(wanted).high_share);
            assert_eq!(alone(0.0), (0, 0.0));
            assert_eq!(alone(1e9), (ladder.rungs().last().unwrap(), 0.0));
            assert_eq!(ladder.below_cost(0.0), 0);
            assert_eq!(ladder.below_cost(1.8), ladder.rungs().nth(1).unwrap());
        }
        let ends = [Ladder::PLAIN, Ladder::PAGES].map(|ladder| ladder.scale(1));
        assert!((ends[0] / ends[1] - 1.0).abs() < 0.01, "{ends:?}");
    }

    #[test]
    fn most_of_a_frame_decides_about_its_ladder() {
        let [heap, index, other] = [RelationKind::Heap, RelationKind::Index, RelationKind::Other].map(layout);
        let of = |parts: &[Part<'_>]| Ladder::of_frame(65_536, parts);
        assert_eq!(of(&[]), Ladder::PLAIN);
        assert_eq!(of(&[part(65_536, &other)]), Ladder::PLAIN);
        assert_eq!(of(&[part(32_768, &heap)]), Ladder::PLAIN);
        assert_eq!(of(&[part(40_960, &index)]), Ladder::PAGES);
        assert_eq!(of(&[part(24_576, &heap), part(24_576, &index), part(16_384, &other)]), Ladder::PAGES);
    }

    #[test]
    fn levels_in_any_order_decode_and_never_take_more_memory_than_promised() {
        let (raw, layout) = (pages(FRAME_SIZE_BYTES), layout(RelationKind::Heap));
        let parts = [part(raw.len(), &layout)];
        let mut encoder = LadderEncoder::new(FRAME_SIZE_BYTES, true).unwrap();
        let promise = super::encoder_state_size_bytes(FRAME_SIZE_BYTES, true);
        // What the page encoder takes is seen by its own crate's tests.
        let page = page::encoder_state_size_bytes(5, FRAME_SIZE_BYTES);
        let (mut stored, mut back) = (vec![0u8; raw.len()], vec![0u8; raw.len()]);
        let mut random = Random(7);
        // Long enough for zstd to give back what it has not used for 128 frames.
        let rungs = (0..60).map(|_| random.below(RUNGS.len())).chain([1; 140]).chain([RUNGS.len() - 1, 0, 1, 2]);
        for rung in rungs {
            let spec = RUNGS[rung].spec;
            let length = encoder.encode_parts(rung, &raw, &parts, &mut stored).unwrap().unwrap();
            new_decoder(spec.codec()).unwrap().decode(&stored[..length], &mut back).unwrap();
            assert!(back == raw, "{spec}");
            let held = encoder.zstd.memory_bytes() + lz4::encoder_state_size_bytes(1) + page;
            assert!(held <= promise, "{spec}: {held} > {promise}");
        }
    }

    #[test]
    fn a_level_gives_what_it_gives_alone() {
        let (raw, layout) = (pages(FRAME_SIZE_BYTES), layout(RelationKind::Heap));
        let parts = [part(raw.len(), &layout)];
        let (mut mixed, mut alone) = (vec![0u8; raw.len()], vec![0u8; raw.len()]);
        let mut encoder = LadderEncoder::new(raw.len(), true).unwrap();
        for rung in [10, 8, 2, 3, 0, 6, 3, 4, 7, 5, 9, 1] {
            let spec = RUNGS[rung].spec;
            let length = encoder.encode_parts(rung, &raw, &parts, &mut mixed).unwrap().unwrap();
            let mut own = new_encoder(spec, raw.len()).unwrap();
            let own_length = own.encode_parts(&raw, &parts, &mut alone).unwrap().unwrap();
            assert!(mixed[..length] == alone[..own_length], "{spec}");
        }
    }

    #[test]
    fn no_page_encoder_is_made_before_there_are_pages() {
        let (raw, mut stored) = (pages(FRAME_SIZE_BYTES), vec![0u8; FRAME_SIZE_BYTES]);
        let mut encoder = LadderEncoder::new(raw.len(), true).unwrap();
        for rung in Ladder::PLAIN.rungs() {
            encoder.encode_parts(rung, &raw, &[], &mut stored).unwrap();
        }
        assert!(encoder.page.is_none());
        encoder.encode_parts(2, &raw, &[], &mut stored).unwrap();
        assert!(encoder.page.is_some());
    }
}
