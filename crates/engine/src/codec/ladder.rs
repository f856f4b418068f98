//! The levels that `auto` moves over, and an encoder that can take any of them for the next frame.
//!
//! A frame carries its codec, so a set may mix them and a reader need not know.

use super::lz4::{self, Lz4Encoder};
use super::zstd::{self, ZstdEncoder};
use super::{CodecId, CodecSpec, Encoder, check_frame_size};
use crate::error::Result;

/// One level of the ladder.
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

/// From the fastest to the smallest result.
///
/// Measured on one core of a 2-core AMD EPYC machine, both cores at it, zstd 1.5.7, LZ4 1.10, frames of 4 MiB, every
/// eighth 4 MiB of a cluster of 2.3 GB (pgbench's tables and the typed ones of bench/load.sql). ns a byte, stored %:
///
/// | lz4:1 | zstd:-3 | -1 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9 | 10 | 11 | 12 | 13 |
/// |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
/// | 0.78 | 0.88 | 1.15 | 1.34 | 1.89 | 2.70 | 4.07 | 7.96 | 9.61 | 11.7 | 13.1 | 16.7 | 21.4 | 28.9 | 29.7 | 69.8 |
/// | 34.9 | 32.7 | 27.0 | 22.9 | 22.1 | 22.1 | 22.1 | 21.9 | 21.0 | 21.0 | 20.1 | 20.1 | 20.0 | 20.0 | 20.0 | 20.0 |
///
/// Frames that take turns between two levels lie on the line between them, so only levels below all such lines are
/// worth a rung: zstd's negative levels lie on the line from LZ4 to zstd:1, 4 to 7 above that from 3 to 8. 3 is on
/// the line from 2 to 8 here and below it on other data (`ZSTD_NAMED_LEVELS`). 9 and 10 lie on the line to 11; 12 and
/// above cost twice the memory for nothing. Changing the level from frame to frame costs no time that could be measured.
pub const LADDER: [Rung; 6] = [
    rung(CodecId::Lz4, 1, 0.78),
    rung(CodecId::Zstd, 1, 1.34),
    rung(CodecId::Zstd, 2, 1.89),
    rung(CodecId::Zstd, 3, 2.70),
    rung(CodecId::Zstd, 8, 13.1),
    rung(CodecId::Zstd, 11, 28.9),
];

/// What one encoder of the ladder holds at most: the state of LZ4, and one zstd context as large as its largest level.
pub(super) fn encoder_state_size_bytes(frame_size_bytes: usize) -> u64 {
    let of = |codec| LADDER.iter().map(|rung| rung.spec).filter(move |spec: &CodecSpec| spec.codec() == codec);
    let lz4 = of(CodecId::Lz4).map(|spec| lz4::encoder_state_size_bytes(spec.level())).max();
    let zstd = of(CodecId::Zstd).map(|spec| zstd::encoder_state_size_bytes(spec.level(), frame_size_bytes)).max();
    lz4.unwrap_or(0) + zstd.unwrap_or(0)
}

/// Makes frames smaller, each at the rung its caller names; one per thread, kept for the whole run.
pub struct LadderEncoder {
    lz4: Lz4Encoder,
    zstd: ZstdEncoder,
    zstd_level: i32,
}

impl LadderEncoder {
    /// For frames of up to `frame_size_bytes`, with all its memory taken.
    ///
    /// # Errors
    /// As [`super::new_encoder`].
    pub fn new(frame_size_bytes: usize) -> Result<Self> {
        check_frame_size(frame_size_bytes)?;
        let levels = LADDER.iter().map(|rung| rung.spec).filter(|spec| spec.codec() == CodecId::Zstd);
        let largest = levels.max_by_key(|spec| zstd::encoder_state_size_bytes(spec.level(), frame_size_bytes));
        let zstd_level = largest.map_or(1, CodecSpec::level);
        let zstd = ZstdEncoder::new(zstd_level, frame_size_bytes)?;
        Ok(LadderEncoder { lz4: Lz4Encoder::new(LADDER[0].spec.level(), frame_size_bytes), zstd, zstd_level })
    }

    /// As [`Encoder::encode`], at `LADDER[rung]`.
    ///
    /// # Errors
    /// As [`Encoder::encode`].
    pub fn encode(&mut self, rung: usize, raw: &[u8], stored: &mut [u8]) -> Result<Option<usize>> {
        let spec = LADDER[rung].spec;
        if spec.codec() == CodecId::Lz4 {
            return self.lz4.encode(raw, stored);
        }
        if spec.level() != self.zstd_level {
            self.zstd.set_level(spec.level())?;
            self.zstd_level = spec.level();
        }
        self.zstd.encode(raw, stored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::conformance::sample_data::{Random, pages};
    use crate::codec::new_decoder;

    #[test]
    fn the_ladder_goes_up_by_levels_that_there_are() {
        for rung in &LADDER {
            assert_eq!(CodecSpec::new(rung.spec.codec(), rung.spec.level()).unwrap(), rung.spec);
        }
        assert!(LADDER.is_sorted_by(|low, high| low.cost_ns_per_byte < high.cost_ns_per_byte));
        // One state serves LZ4's rungs.
        assert!(LADDER[1..].iter().all(|rung| rung.spec.codec() == CodecId::Zstd));
    }

    #[test]
    fn levels_in_any_order_decode_and_never_take_more_memory_than_promised() {
        const FRAME_SIZE_BYTES: usize = 1 << 18;
        let raw = pages(FRAME_SIZE_BYTES);
        let mut encoder = LadderEncoder::new(FRAME_SIZE_BYTES).unwrap();
        let promise = super::encoder_state_size_bytes(FRAME_SIZE_BYTES);
        let (mut stored, mut back) = (vec![0u8; raw.len()], vec![0u8; raw.len()]);
        let mut random = Random(7);
        // Long enough for zstd to give back what it has not used for 128 frames.
        let rungs = (0..60).map(|_| random.below(LADDER.len())).chain([1; 140]).chain([LADDER.len() - 1, 0, 1]);
        for rung in rungs {
            let length = encoder.encode(rung, &raw, &mut stored).unwrap().unwrap();
            let mut decoder = new_decoder(LADDER[rung].spec.codec()).unwrap();
            decoder.decode(&stored[..length], &mut back).unwrap();
            assert!(back == raw, "{}", LADDER[rung].spec);
            let held = encoder.zstd.memory_bytes() + lz4::encoder_state_size_bytes(1);
            assert!(held <= promise, "{}: {held} > {promise}", LADDER[rung].spec);
        }
    }

    #[test]
    fn a_level_gives_what_it_gives_alone() {
        let raw = pages(1 << 17);
        let (mut mixed, mut alone) = (vec![0u8; raw.len()], vec![0u8; raw.len()]);
        let mut encoder = LadderEncoder::new(raw.len()).unwrap();
        for rung in [LADDER.len() - 1, 2, 0, 3, 2] {
            let length = encoder.encode(rung, &raw, &mut mixed).unwrap().unwrap();
            let mut own = crate::codec::new_encoder(LADDER[rung].spec, raw.len()).unwrap();
            let own_length = own.encode(&raw, &mut alone).unwrap().unwrap();
            assert!(mixed[..length] == alone[..own_length], "{}", LADDER[rung].spec);
        }
    }
}
