//! Text and all that is not understood: as it is, or through zstd or LZ4.
//!
//! zstd's frames have no magic number, no content size and no checksum: the stream says all three things itself.

use std::io::Cursor;
use std::ops::RangeInclusive;

use zstd_safe::zstd_sys::ZSTD_strategy;
use zstd_safe::{DCtx, DParameter, FrameFormat};

use super::finder::{self, Finder};
use super::lz4;
use super::reader::{Reader, put_varint};
use super::repeats::{SAMPLED_FROM, is_dense_within, repeats_within};
use super::zstd::{FORMAT, Parameter, ZstdContext};
use crate::error::{Damaged, Decoded, NO_MEMORY};

pub(super) const RAW: u8 = 0;
pub(super) const ZSTD: u8 = 1;
/// A block. The modes between are those of [`super::MixedCoder`].
pub(super) const LZ4: u8 = 8;

/// Packs texts, each alone; the context and its output buffer are kept.
pub(crate) struct TextCoder {
    /// zstd's. None if there was no memory for it or for the buffer: texts for zstd then stay as they are.
    context: Option<ZstdContext>,
    /// None: by LZ4.
    zstd_level: Option<i32>,
    packed: Vec<u8>,
    finder: Finder,
}

/// zstd's levels at which the way of looking for repeats is chosen by the text; and the highest one.
const CHOOSING_LEVELS: RangeInclusive<i32> = 1..=3;
const HIGHEST_LEVEL: i32 = 7;

/// How zstd looks for repeats. What is 0 is as the level has it, by the text's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Search {
    level: i32,
    strategy: i32,
    length_min: i32,
    hash_log: i32,
    chain_log: i32,
    window_log: i32,
}

/// As level 3 with smaller tables, which stay in the first caches: text of six databases takes 11 to 19 % less time for at most
/// 0.4 % more bytes, names and words for 1.7 %.
const USUAL: Search = Search { length_min: 5, hash_log: 16, chain_log: 14, ..Search::of_level(3) };
/// For text of which next to nothing is found again nearby, between levels 1 and 2, which makes 3 % more of it. What is dense, too, is
/// [`Finder`]'s; numbers and words have repeats of few bytes, close to each other, that it passes over.
const FEW_REPEATS: Search =
    Search { strategy: ZSTD_strategy::ZSTD_fast as i32, length_min: 6, hash_log: 16, ..Search::of_level(0) };
/// The highest level with a smaller table: heaps of commits take a sixth less time for 1 % more bytes, other databases 0.03 to 0.3 % more
/// (bench/runs/2026-11-30-page-pglz). Longer texts than [`HIGHEST_BYTES_MAX`] have more to find than it holds.
const HIGHEST: Search = Search { hash_log: 18, ..Search::of_level(HIGHEST_LEVEL) };
const HIGHEST_BYTES_MAX: usize = 1 << 20;
/// In its place for dense text of which next to nothing is found again nearby: level 4 with larger tables. Histories in TOAST as
/// they are take level 6 a third more time for 0.8 % fewer bytes, and repeats of four bytes a tenth more for 0.2 %
/// (bench/runs/2026-11-28-page-epyc, -30-page-faster).
const HIGHEST_DENSE: Search = Search { length_min: 5, hash_log: 18, chain_log: 19, ..Search::of_level(4) };
/// And for other text of that kind, such as the literals of pglz's: level 4 with tables that stay in the caches would take a seventh
/// more time for 0.5 % fewer bytes.
const HIGHEST_FEW_REPEATS: Search = Search { level: 2, length_min: 5, ..FEW_REPEATS };

impl Search {
    const fn of_level(level: i32) -> Self {
        Search { level, strategy: 0, length_min: 0, hash_log: 0, chain_log: 0, window_log: 0 }
    }

    fn for_text(length: usize, has_few_repeats: bool, is_dense: bool, level: i32) -> Self {
        match (has_few_repeats, level) {
            (true, HIGHEST_LEVEL) if is_dense => HIGHEST_DENSE,
            (true, HIGHEST_LEVEL) => HIGHEST_FEW_REPEATS,
            (true, _) => Search { level, ..FEW_REPEATS },
            (false, 3) if length >= SAMPLED_FROM => USUAL,
            (false, HIGHEST_LEVEL) if (SAMPLED_FROM..=HIGHEST_BYTES_MAX).contains(&length) => HIGHEST,
            _ => Search::of_level(level),
        }
    }

    /// None: the repeats of `text` have been found. Tables as small as they can be.
    fn of_found(text: &[u8], level: i32) -> Self {
        let window_log = text.len().max(1 << 10).next_power_of_two().ilog2() as i32;
        Search { level, length_min: finder::LENGTH_MIN as i32, hash_log: 6, window_log, ..FEW_REPEATS }
    }

    fn parameters(self) -> [(Parameter, i32); 6] {
        [
            (Parameter::ZSTD_c_compressionLevel, self.level),
            (Parameter::ZSTD_c_strategy, self.strategy),
            (Parameter::ZSTD_c_minMatch, self.length_min),
            (Parameter::ZSTD_c_hashLog, self.hash_log),
            (Parameter::ZSTD_c_chainLog, self.chain_log),
            (Parameter::ZSTD_c_windowLog, self.window_log),
        ]
    }
}

/// A context of no parameters but these; None if zstd refuses, which it never does between two texts.
fn configured(mut context: ZstdContext, level: Option<i32>) -> Option<ZstdContext> {
    context.reset()?;
    let parameters = [
        (Parameter::ZSTD_c_compressionLevel, level.unwrap_or_default()),
        (Parameter::ZSTD_c_contentSizeFlag, 0),
        (Parameter::ZSTD_c_checksumFlag, 0),
        (FORMAT, FrameFormat::Magicless as i32),
    ];
    context.set_all(&parameters)?;
    Some(context)
}

impl TextCoder {
    /// Without a level of zstd by LZ4. Texts of up to `size_max` bytes will allocate no output any more.
    pub(crate) fn new(zstd_level: Option<i32>, size_max: usize) -> Self {
        let mut packed = Vec::new();
        let has_room = packed.try_reserve_exact(zstd_safe::compress_bound(size_max)).is_ok();
        let context =
            has_room.then(ZstdContext::try_create).flatten().and_then(|context| configured(context, zstd_level));
        TextCoder { context, zstd_level, packed, finder: Finder::default() }
    }

    /// Packs otherwise from the next text on; without a context texts stay as they are.
    pub(crate) fn set_zstd_level(&mut self, zstd_level: Option<i32>) {
        if zstd_level != self.zstd_level {
            self.zstd_level = zstd_level;
            self.context = self.context.take().and_then(|context| configured(context, zstd_level));
        }
    }

    /// Whether there was memory for a context.
    pub(crate) fn has_context(&self) -> bool {
        self.context.is_some()
    }

    /// Whether texts are packed by LZ4.
    pub(super) fn is_lz4(&self) -> bool {
        self.zstd_level.is_none()
    }

    /// Appends `text` to `out`, whichever is smaller of raw and packed.
    pub(crate) fn encode(&mut self, text: &[u8], out: &mut Vec<u8>) {
        put_varint(text.len() as u64, out);
        if text.is_empty() {
            return;
        }
        let packed = match self.zstd_level {
            Some(level) => self.pack_text(text, level).map(|packed| (ZSTD, packed)),
            None => {
                if self.packed.len() < text.len() {
                    self.packed.resize(text.len(), 0);
                }
                lz4::pack(text, &mut self.packed[..text.len()]).map(|packed| (LZ4, packed))
            }
        };
        match packed {
            Some((mode, packed)) if packed.len() + 4 < text.len() => {
                out.push(mode);
                put_varint(packed.len() as u64, out);
                out.extend_from_slice(packed);
            }
            _ => {
                out.push(RAW);
                out.extend_from_slice(text);
            }
        }
    }

    /// As [`TextCoder::pack`], the way of looking for repeats chosen by the text.
    fn pack_text(&mut self, text: &[u8], level: i32) -> Option<&[u8]> {
        if !CHOOSING_LEVELS.contains(&level) && level != HIGHEST_LEVEL {
            return self.pack(text);
        }
        let has_few_repeats = text.len() >= SAMPLED_FROM && repeats_within(text) == 0;
        let is_dense = has_few_repeats && is_dense_within(text);
        let context = self.context.as_mut()?;
        if is_dense
            && level != HIGHEST_LEVEL
            && let Some(sequences) = self.finder.find(text)
            && context.set_all(&Search::of_found(text, level).parameters()).is_some()
            && context.compress_sequences(sequences, text, &mut self.packed).is_some()
        {
            return Some(&self.packed);
        }
        context.set_all(&Search::for_text(text.len(), has_few_repeats, is_dense, level).parameters())?;
        self.pack(text)
    }

    /// One zstd frame of `text`.
    pub(super) fn pack(&mut self, text: &[u8]) -> Option<&[u8]> {
        self.context.as_mut()?.compress(text, &mut self.packed)?;
        Some(&self.packed)
    }
}

/// What zstd's context takes at `zstd_level`, at most, in bytes, for texts of any size.
///
/// Numbers: ZSTD_estimateCCtxSize of 1.5.7 for sizes of 64 KiB to 64 MiB, rounded up; the test compares them with what a
/// context says of itself.
pub(crate) fn text_context_size_bytes(zstd_level: Option<i32>) -> u64 {
    const MIB: u64 = 1 << 20;
    match zstd_level {
        // Made, but without its tables.
        None => MIB / 64,
        Some(..=1) => MIB * 3 / 4,
        Some(2..=3) => MIB * 3 / 2,
        _ => 7 * MIB,
    }
}

/// Unpacks what [`TextCoder`] packed.
pub(crate) struct TextDecoder {
    /// None if there was no memory for one.
    context: Option<DCtx<'static>>,
}

impl TextDecoder {
    pub(crate) fn new() -> Self {
        let context = DCtx::try_create().and_then(|mut context| {
            context.set_parameter(DParameter::Format(FrameFormat::Magicless)).is_ok().then_some(context)
        });
        TextDecoder { context }
    }

    /// Whether there was memory for a context.
    pub(crate) fn has_context(&self) -> bool {
        self.context.is_some()
    }

    /// Appends the next text of `input`, of at most `count_max` bytes, to `text`.
    pub(crate) fn decode(&mut self, input: &mut Reader<'_>, count_max: usize, text: &mut Vec<u8>) -> Decoded<()> {
        let count = input.count(count_max)?;
        if count == 0 {
            return Ok(());
        }
        let mode = input.u8()?;
        self.decode_body(mode, input, count, text)
    }

    /// As [`TextDecoder::decode`], of a text whose length and mode have been read.
    pub(super) fn decode_body(
        &mut self,
        mode: u8,
        input: &mut Reader<'_>,
        count: usize,
        text: &mut Vec<u8>,
    ) -> Decoded<()> {
        match mode {
            RAW => text.extend_from_slice(input.take(count)?),
            ZSTD => {
                let length = input.count(usize::MAX)?;
                self.unpack(input.take(length)?, count, text)?;
            }
            LZ4 => {
                let length = input.count(usize::MAX)?;
                if !lz4::unpack(input.take(length)?, count, text) {
                    return Err(Damaged("an LZ4 block is not what its stream says"));
                }
            }
            _ => return Err(Damaged("a text of an unknown mode")),
        }
        Ok(())
    }

    /// Appends the `count` bytes of a zstd frame.
    pub(super) fn unpack(&mut self, packed: &[u8], count: usize, text: &mut Vec<u8>) -> Decoded<()> {
        let context = self.context.as_mut().ok_or(NO_MEMORY)?;
        let start = text.len();
        // Behind what is there, into room that nobody has to fill before.
        text.reserve(count);
        let mut room = Cursor::new(std::mem::take(text));
        room.set_position(start as u64);
        let written = context.decompress(&mut room, packed);
        *text = room.into_inner();
        if written == Ok(count) {
            return Ok(());
        }
        text.truncate(start);
        Err(Damaged("a zstd frame is not what its stream says"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_take_what_is_told() {
        let mut state = 1_u32;
        let text: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            b'a' + (state >> 24) as u8 % 11
        })
        .take(1 << 22)
        .collect();
        for level in (1..=5).filter_map(crate::Level::new) {
            for size in [1000, 1 << 16, 100_000, 1 << 17, 150_000, 1 << 18, 700_000, 1 << 20, 1_100_000, 1 << 22] {
                let mut coder = TextCoder::new(level.zstd_level(), size);
                coder.encode(&text[..size], &mut Vec::new());
                let told = text_context_size_bytes(level.zstd_level());
                let held = coder.context.as_ref().unwrap().size_bytes() as u64;
                assert!(held <= told, "{level} {size}: {held} {told}");
            }
        }
    }

    #[test]
    fn the_search_is_by_the_text() {
        let words = "the quick brown fox jumps over the lazy dog; ".repeat(2000).into_bytes();
        let mut state = 1_u32;
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let dense: Vec<u8> = (0..100_000).map(|_| noise()).collect();
        // Five bytes of six return, and the sixth does not follow a rule.
        let numbers: Vec<u8> =
            (0..20_000_u32).flat_map(|at| [0xff, 2, b' ', b'2', b'v', ((at * at) >> 7) as u8]).collect();
        assert_eq!([&words, &dense].map(|text| repeats_within(text) == 0), [false, true]);
        assert_eq!([&words, &dense, &numbers].map(|text| is_dense_within(text)), [false, true, false]);
        let usual = |level| Search::for_text(100_000, false, false, level);
        assert_eq!((usual(3), usual(1).hash_log, usual(HIGHEST_LEVEL)), (USUAL, 0, HIGHEST));
        for level in CHOOSING_LEVELS {
            assert_eq!(Search::for_text(100_000, true, true, level).length_min, FEW_REPEATS.length_min);
            assert_eq!(Search::for_text(SAMPLED_FROM - 1, false, false, level), Search::of_level(level));
        }
        for length in [SAMPLED_FROM - 1, HIGHEST_BYTES_MAX + 1] {
            assert_eq!(Search::for_text(length, false, true, HIGHEST_LEVEL), Search::of_level(HIGHEST_LEVEL));
        }
        let few_repeats = [true, false].map(|is_dense| Search::for_text(100_000, true, is_dense, HIGHEST_LEVEL));
        assert_eq!(few_repeats, [HIGHEST_DENSE, HIGHEST_FEW_REPEATS]);
        // One context packs them in any order, and a text comes out the same whatever was before it.
        let mut coder = TextCoder::new(None, words.len());
        for level in CHOOSING_LEVELS.chain([HIGHEST_LEVEL]) {
            coder.set_zstd_level(Some(level));
            let alone = TextCoder::new(Some(level), words.len()).pack_text(&words, level).unwrap().to_vec();
            for text in [&dense, &words, &dense, &numbers, &words[..1000].to_vec(), &words] {
                let packed = coder.pack_text(text, level).unwrap().to_vec();
                let mut back = Vec::new();
                TextDecoder::new().unpack(&packed, text.len(), &mut back).unwrap();
                assert!(back == *text);
                assert!(text != &words || packed == alone);
            }
        }
    }

    #[test]
    fn without_memory_texts_stay_as_they_are_and_packed_ones_are_no_damage() {
        let text = [7u8; 500];
        let mut packed = Vec::new();
        TextCoder::new(Some(1), 500).encode(&text, &mut packed);
        let mut decoder = TextDecoder { context: None };
        assert_eq!(decoder.decode(&mut Reader::new(&packed), 500, &mut Vec::new()), Err(NO_MEMORY));
        let (mut raw, mut back) = (Vec::new(), Vec::new());
        let mut coder = TextCoder { context: None, ..TextCoder::new(Some(1), 500) };
        assert!(!coder.has_context());
        coder.encode(&text, &mut raw);
        decoder.decode(&mut Reader::new(&raw), 500, &mut back).unwrap();
        assert_eq!(back, text);
    }

    #[test]
    fn texts_come_back_and_lies_do_not() {
        [None, Some(1), Some(3), Some(6)].into_iter().for_each(come_back_and_lies_do_not);
    }

    fn come_back_and_lies_do_not(zstd_level: Option<i32>) {
        let mut coder = TextCoder::new(zstd_level, 1 << 16);
        let mut decoder = TextDecoder::new();
        let prose = "the quick brown fox jumps over the lazy dog; ".repeat(100).into_bytes();
        let noise: Vec<u8> = (0..1000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for text in [&[][..], b"a", &prose, &noise] {
            let mut out = Vec::new();
            coder.encode(text, &mut out);
            let mut back = b"before".to_vec();
            let mut reader = Reader::new(&out);
            assert_eq!(decoder.decode(&mut reader, text.len(), &mut back), Ok(()));
            assert!(reader.is_empty());
            assert_eq!(&back[6..], text);
            for end in 0..out.len() {
                assert!(decoder.decode(&mut Reader::new(&out[..end]), text.len(), &mut back).is_err());
            }
            assert_eq!(back.len(), 6 + text.len());
        }
        let mut out = Vec::new();
        coder.encode(&prose, &mut out);
        assert_eq!(out[2], if zstd_level.is_some() { ZSTD } else { LZ4 });
        assert!(out.len() < prose.len() / 20);
        assert!(decoder.decode(&mut Reader::new(&out), prose.len() - 1, &mut Vec::new()).is_err());
        // A count that is not that of the frame or block, below and above.
        for count in [prose.len() - 1, prose.len() + 1] {
            let mut lie = Vec::new();
            put_varint(count as u64, &mut lie);
            lie.extend_from_slice(&out[2..]);
            assert!(decoder.decode(&mut Reader::new(&lie), 1 << 20, &mut Vec::new()).is_err());
        }
    }
}
