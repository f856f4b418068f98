//! Text and all that is not understood: as it is, or through zstd or LZ4.
//!
//! zstd's frames have no magic number, no content size and no checksum: the stream says all three things itself.

use std::io::Cursor;
use std::ops::RangeInclusive;

use zstd_safe::{CCtx, CParameter, DCtx, DParameter, FrameFormat, ResetDirective, Strategy};

use super::lz4;
use super::reader::{Reader, put_varint};
use super::repeats::repeats_within;
use crate::error::{Damaged, Decoded, NO_MEMORY};

pub(super) const RAW: u8 = 0;
pub(super) const ZSTD: u8 = 1;
/// A block. The modes between are those of [`super::MixedCoder`].
pub(super) const LZ4: u8 = 8;

/// Packs texts, each alone; the context and its output buffer are kept.
pub(crate) struct TextCoder {
    /// zstd's. None if there was no memory for it or for the buffer: texts for zstd then stay as they are.
    context: Option<CCtx<'static>>,
    /// None: by LZ4.
    zstd_level: Option<i32>,
    packed: Vec<u8>,
}

/// zstd's levels at which the way of looking for repeats is chosen by the text.
const CHOOSING_LEVELS: RangeInclusive<i32> = 1..=3;
/// Shorter texts take what zstd has for their length.
const CHOSEN_FROM: usize = 32 << 10;

/// The highest level, and what is in its place for text of which next to nothing is found again nearby: level 4 with larger tables
/// and shorter repeats. Histories in TOAST take level 6 a quarter more time for 0.6 % fewer bytes, and then are not twenty times as fast as
/// zstd's 19 on every machine (bench/runs/2026-11-28-page-epyc).
const HIGHEST_LEVEL: i32 = 7;
const HIGHEST_LEVEL_FEW_REPEATS: i32 = 4;
const HIGHEST_FEW_REPEATS: Search =
    Search { strategy: Strategy::ZSTD_dfast, length_min: 4, hash_log: 19, chain_log: 18 };

/// How zstd looks for repeats.
#[derive(Clone, Copy)]
struct Search {
    strategy: Strategy,
    length_min: u32,
    hash_log: u32,
    chain_log: u32,
}

/// As level 3 with smaller tables, which stay in the first caches: text of six databases takes 11 to 19 % less time for at most
/// 0.4 % more bytes, names and words for 1.7 %.
const USUAL: Search = Search { strategy: Strategy::ZSTD_dfast, length_min: 5, hash_log: 16, chain_log: 14 };
/// Between levels 1 and 2, for text of which next to nothing is found again nearby: in TOAST values, which are compressed
/// already, level 3 takes three times as long for 5 % fewer bytes, and level 1 stores 3 % more, which is more than level 3 makes of
/// their pages as they are. A table of half the size was 0.2 % above that, too (bench/runs/2026-11-27-page-documents).
const FEW_REPEATS: Search = Search { strategy: Strategy::ZSTD_fast, length_min: 6, hash_log: 16, chain_log: 0 };

impl Search {
    /// What the level says, by the text's length.
    const fn of_level(level: i32) -> Self {
        let strategy = if level < 3 { Strategy::ZSTD_fast } else { Strategy::ZSTD_dfast };
        Search { strategy, length_min: 0, hash_log: 0, chain_log: 0 }
    }

    fn for_text(text: &[u8], level: i32) -> Self {
        if text.len() < CHOSEN_FROM {
            Search::of_level(level)
        } else if repeats_within(text) == 0 {
            FEW_REPEATS
        } else if level < 3 {
            Search::of_level(level)
        } else {
            USUAL
        }
    }

    /// All but the strategy.
    fn tables(self) -> [CParameter; 3] {
        [
            CParameter::MinMatch(self.length_min),
            CParameter::HashLog(self.hash_log),
            CParameter::ChainLog(self.chain_log),
        ]
    }
}

/// A context of no parameters but these; None if zstd refuses, which it never does between two texts.
fn configured(mut context: CCtx<'static>, level: Option<i32>) -> Option<CCtx<'static>> {
    let parameters = [
        CParameter::CompressionLevel(level.unwrap_or_default()),
        CParameter::ContentSizeFlag(false),
        CParameter::ChecksumFlag(false),
        CParameter::Format(FrameFormat::Magicless),
    ];
    context.reset(ResetDirective::Parameters).ok()?;
    parameters.into_iter().all(|parameter| context.set_parameter(parameter).is_ok()).then_some(context)
}

impl TextCoder {
    /// Without a level of zstd by LZ4. Texts of up to `size_max` bytes will allocate no output any more.
    pub(crate) fn new(zstd_level: Option<i32>, size_max: usize) -> Self {
        let mut packed = Vec::new();
        let has_room = packed.try_reserve_exact(zstd_safe::compress_bound(size_max)).is_ok();
        let context = has_room.then(CCtx::try_create).flatten().and_then(|context| configured(context, zstd_level));
        TextCoder { context, zstd_level, packed }
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
        let context = self.context.as_mut()?;
        let chosen = if CHOOSING_LEVELS.contains(&level) {
            let search = Search::for_text(text, level);
            Some((CParameter::Strategy(search.strategy), search))
        } else if level == HIGHEST_LEVEL {
            let has_few = text.len() >= CHOSEN_FROM && repeats_within(text) == 0;
            let level = if has_few { HIGHEST_LEVEL_FEW_REPEATS } else { HIGHEST_LEVEL };
            let search = if has_few { HIGHEST_FEW_REPEATS } else { Search::of_level(level) };
            Some((CParameter::CompressionLevel(level), search))
        } else {
            None
        };
        if let Some((way, search)) = chosen {
            for parameter in [way].into_iter().chain(search.tables()) {
                context.set_parameter(parameter).ok()?;
            }
        }
        self.pack(text)
    }

    /// One zstd frame of `text`.
    pub(super) fn pack(&mut self, text: &[u8]) -> Option<&[u8]> {
        let context = self.context.as_mut()?;
        self.packed.clear();
        self.packed.reserve(zstd_safe::compress_bound(text.len()));
        context.compress2(&mut self.packed, text).ok()?;
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
                let held = coder.context.as_ref().unwrap().sizeof() as u64;
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
        assert_eq!(Search::for_text(&words, 3).hash_log, USUAL.hash_log);
        assert_eq!(Search::for_text(&words, 1).hash_log, 0);
        for level in CHOOSING_LEVELS {
            assert_eq!(Search::for_text(&dense, level).length_min, FEW_REPEATS.length_min);
            assert_eq!(Search::for_text(&words[..1000], level).length_min, 0);
        }
        // One context packs them in any order, and a text comes out the same whatever was before it.
        let mut coder = TextCoder::new(None, words.len());
        for level in CHOOSING_LEVELS.chain([HIGHEST_LEVEL]) {
            coder.set_zstd_level(Some(level));
            let alone = TextCoder::new(Some(level), words.len()).pack_text(&words, level).unwrap().to_vec();
            for text in [&dense, &words, &dense, &words[..1000].to_vec(), &words] {
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
        let mut coder = TextCoder { context: None, zstd_level: Some(1), packed: Vec::new() };
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
