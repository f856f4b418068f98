//! Text of which parts are not text at all: hexadecimal digits, arrays of floats. These parts are packed apart, by what they are.

use super::bytes::ByteCoder;
use super::bytes_decode::ByteDecoder;
use super::numbers::NumberCoder;
use super::numbers_decode::NumberDecoder;
use super::reader::{Reader, put_varint};
use super::text::{TextCoder, TextDecoder};
use super::{FloatCoder, FloatDecoder, apart, digits, pairs, together, vectors};
use crate::error::{Damaged, Decoded};

/// The mode of a text whose digits are apart; [`TextCoder`] has those before.
const DIGITS: u8 = 2;
/// The first of four modes of texts whose floats are apart: from the first byte on, from the second, and so on.
const VECTORS: u8 = 3;
/// The mode of texts whose pairs of floats of 64 bits are apart.
const PAIRS: u8 = 7;
/// Text is told apart by blocks of this many bytes.
pub(super) const BLOCK_BYTES: usize = 1024;

/// In how many bytes runs are told that stay in the text, and those that are apart.
type Units = [usize; 2];
const IN_BLOCKS: Units = [BLOCK_BYTES; 2];
const IN_PAIRS: Units = [1, pairs::PAIR_BYTES];

/// Packs texts, each alone. With LZ4 floats of 32 bits stay in the text, which copies them.
pub(crate) struct MixedCoder {
    text: TextCoder,
    /// How many blocks stay in the text, are apart, stay again, and so on.
    runs: Vec<u32>,
    digits: Vec<u8>,
    floats: Vec<u32>,
    pairs: [Vec<u64>; 2],
    rest: Vec<u8>,
    slots: digits::Slots,
}

impl MixedCoder {
    pub(crate) fn new(text: TextCoder) -> Self {
        MixedCoder {
            text,
            runs: Vec::new(),
            digits: Vec::new(),
            floats: Vec::new(),
            pairs: Default::default(),
            rest: Vec::new(),
            slots: digits::Slots::default(),
        }
    }

    /// Packs what stays text otherwise from the next text on.
    pub(crate) fn set_zstd_level(&mut self, zstd_level: Option<i32>) {
        self.text.set_zstd_level(zstd_level);
    }

    /// Appends `text` to `out`.
    pub(crate) fn encode(
        &mut self,
        text: &[u8],
        bytes: &mut ByteCoder,
        numbers: &mut NumberCoder,
        floats: &mut FloatCoder,
        out: &mut Vec<u8>,
    ) {
        let mode = self.take(text);
        give_back_unused(&mut self.digits, &mut self.floats, &mut self.pairs, &mut self.rest);
        let Some(mode) = mode else { return self.text.encode(text, out) };
        put_varint(text.len() as u64, out);
        out.push(mode);
        put_varint(self.runs.len() as u64, out);
        self.runs.iter().for_each(|run| put_varint(u64::from(*run), out));
        match mode {
            DIGITS => bytes.encode(&self.digits, out),
            PAIRS => self.pairs.iter().for_each(|half| floats.encode_f64(half, None, out)),
            _ => numbers.encode_u32(&self.floats, None, out),
        }
        self.text.encode(&self.rest, out);
    }

    /// Takes apart what pays; gives the mode that says so, none if nothing does.
    fn take(&mut self, text: &[u8]) -> Option<u8> {
        self.digits.clear();
        self.floats.clear();
        self.pairs.iter_mut().for_each(Vec::clear);
        self.rest.clear();
        if self.find_runs(text, digits::are_in) {
            take_apart(text, &self.runs, IN_BLOCKS, &mut self.rest, |block| self.digits.extend_from_slice(block));
            return (!self.slots.find_repeats(&self.digits)).then_some(DIGITS);
        }
        if pairs::find_runs(text, &mut self.runs) {
            take_apart(text, &self.runs, IN_PAIRS, &mut self.rest, |run| apart::<2>(run, &mut self.pairs));
            return (!pairs::repeat(&self.pairs)).then_some(PAIRS);
        }
        if self.text.is_lz4() {
            return None;
        }
        let first = vectors::first_place(text)?;
        let (before, text) = text.split_at(first);
        if !self.find_runs(text, vectors::are_in) || !vectors::are_enough(&self.runs) {
            return None;
        }
        self.rest.extend_from_slice(before);
        take_apart(text, &self.runs, IN_BLOCKS, &mut self.rest, |block| {
            self.floats.extend(block.as_chunks().0.iter().map(|float| u32::from_le_bytes(*float)));
        });
        (!vectors::repeat(self.floats.iter().copied())).then_some(VECTORS + first as u8)
    }

    /// Tells blocks apart by `is_apart`; whether there is one that is.
    fn find_runs(&mut self, text: &[u8], is_apart: impl Fn(&[u8; BLOCK_BYTES]) -> bool) -> bool {
        self.runs.clear();
        let mut run = 0;
        for block in text.as_chunks().0 {
            if is_apart(block) == (self.runs.len() % 2 == 1) {
                run += 1;
            } else {
                self.runs.push(run);
                run = 1;
            }
        }
        // What stays behind the last that is apart need not be told.
        if self.runs.len() % 2 == 1 {
            self.runs.push(run);
        }
        self.runs.len() >= 2
    }
}

/// Gives back what texts of other kinds left: the next one is most often like the last, and needs what that has filled.
fn give_back_unused(digits: &mut Vec<u8>, floats: &mut Vec<u32>, pairs: &mut [Vec<u64>; 2], rest: &mut Vec<u8>) {
    for bytes in [digits, rest] {
        if bytes.is_empty() {
            *bytes = Vec::new();
        }
    }
    if floats.is_empty() {
        *floats = Vec::new();
    }
    if pairs[0].is_empty() {
        *pairs = Default::default();
    }
}

/// Gives what is apart to `put`, and appends the others to `rest`.
fn take_apart(mut text: &[u8], runs: &[u32], units: Units, rest: &mut Vec<u8>, mut put: impl FnMut(&[u8])) {
    for (number, run) in runs.iter().enumerate() {
        let (part, behind) = text.split_at(*run as usize * units[number % 2]);
        if number % 2 == 1 {
            put(part);
        } else {
            rest.extend_from_slice(part);
        }
        text = behind;
    }
    rest.extend_from_slice(text);
}

/// Unpacks what [`MixedCoder`] packed.
pub(crate) struct MixedDecoder {
    text: TextDecoder,
    runs: Vec<u32>,
    digits: Vec<u8>,
    floats: Vec<u32>,
    pairs: [Vec<u64>; 2],
    rest: Vec<u8>,
}

impl MixedDecoder {
    pub(crate) fn new(text: TextDecoder) -> Self {
        MixedDecoder {
            text,
            runs: Vec::new(),
            digits: Vec::new(),
            floats: Vec::new(),
            pairs: Default::default(),
            rest: Vec::new(),
        }
    }

    /// Appends the next text of `input`, of at most `count_max` bytes, to `text`.
    pub(crate) fn decode(
        &mut self,
        input: &mut Reader<'_>,
        count_max: usize,
        bytes: &mut ByteDecoder,
        numbers: &mut NumberDecoder,
        floats: &mut FloatDecoder,
        text: &mut Vec<u8>,
    ) -> Decoded<()> {
        let count = input.count(count_max)?;
        if count == 0 {
            return Ok(());
        }
        let mode = input.u8()?;
        self.digits.clear();
        self.floats.clear();
        self.pairs.iter_mut().for_each(Vec::clear);
        self.rest.clear();
        if !(DIGITS..=PAIRS).contains(&mode) {
            give_back_unused(&mut self.digits, &mut self.floats, &mut self.pairs, &mut self.rest);
            return self.text.decode_body(mode, input, count, text);
        }
        let first = if mode == PAIRS { 0 } else { usize::from(mode.saturating_sub(VECTORS)) };
        let units = if mode == PAIRS { IN_PAIRS } else { IN_BLOCKS };
        let apart = self.read_runs(input, units, count.checked_sub(first).ok_or(BAD)?)?;
        match mode {
            DIGITS => bytes.decode(input, apart, &mut self.digits)?,
            PAIRS => {
                for half in &mut self.pairs {
                    floats.decode_f64(input, apart / pairs::PAIR_BYTES, None, half)?;
                }
            }
            _ => numbers.decode_u32(input, apart / 4, None, &mut self.floats)?,
        }
        self.text.decode(input, count - apart, &mut self.rest)?;
        give_back_unused(&mut self.digits, &mut self.floats, &mut self.pairs, &mut self.rest);
        let of_pairs = self.pairs.iter().map(|half| 8 * half.len()).sum::<usize>();
        if self.digits.len() + 4 * self.floats.len() + of_pairs + self.rest.len() != count {
            return Err(BAD);
        }
        text.reserve(count);
        if mode == DIGITS {
            let mut digits = &self.digits[..];
            return self.put_together(first, units, text, |length, text| {
                let (part, behind) = digits.split_at_checked(length)?;
                text.extend_from_slice(part);
                digits = behind;
                Some(())
            });
        }
        if mode == PAIRS {
            let mut halves = self.pairs.each_ref().map(|half| &half[..]);
            return self.put_together(first, units, text, |length, text| {
                together::<2>(length / pairs::PAIR_BYTES, &mut halves, text)
            });
        }
        let mut floats = &self.floats[..];
        self.put_together(first, units, text, |length, text| {
            let (part, behind) = floats.split_at_checked(length / 4)?;
            let start = text.len();
            text.resize(start + length, 0);
            for (place, float) in text[start..].as_chunks_mut().0.iter_mut().zip(part) {
                *place = float.to_le_bytes();
            }
            floats = behind;
            Some(())
        })
    }

    /// How many bytes are apart.
    fn read_runs(&mut self, input: &mut Reader<'_>, units: Units, count: usize) -> Decoded<usize> {
        self.runs.clear();
        let (mut left, mut apart) = (count, 0);
        // A run has a block, but for the first; two runs have some pairs.
        let count_max = if units == IN_PAIRS { count / pairs::RUN_BYTES_MIN * 2 } else { count / BLOCK_BYTES + 1 };
        for number in 0..input.count(count_max)? {
            let unit = units[number % 2];
            let run = input.count(left / unit)?;
            left -= run * unit;
            apart += if number % 2 == 1 { run * unit } else { 0 };
            self.runs.push(run as u32);
        }
        Ok(apart)
    }

    /// `first` bytes stand before the first run. `put` appends so many of the bytes that are apart; None if there are not as many.
    fn put_together(
        &self,
        first: usize,
        units: Units,
        text: &mut Vec<u8>,
        mut put: impl FnMut(usize, &mut Vec<u8>) -> Option<()>,
    ) -> Decoded<()> {
        let (before, mut rest) = self.rest.split_at_checked(first).ok_or(BAD)?;
        text.extend_from_slice(before);
        for (number, run) in self.runs.iter().enumerate() {
            let length = *run as usize * units[number % 2];
            if number % 2 == 1 {
                put(length, text).ok_or(BAD)?;
                continue;
            }
            let (part, behind) = rest.split_at_checked(length).ok_or(BAD)?;
            text.extend_from_slice(part);
            rest = behind;
        }
        text.extend_from_slice(rest);
        Ok(())
    }
}

const BAD: Damaged = Damaged("what is apart of a text is not where it says");

#[cfg(test)]
mod tests {
    use super::super::Effort;
    use super::*;

    fn noise(count: usize) -> impl Iterator<Item = usize> {
        let mut state = 1_u64;
        std::iter::repeat_with(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as usize
        })
        .take(count)
    }

    fn hashes(count: usize) -> Vec<u8> {
        noise(count).map(|at| b"0123456789abcdef"[at % 16]).collect()
    }

    fn encoded(text: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let (mut bytes, mut numbers) = (ByteCoder::new(Effort::Default), NumberCoder::new(Effort::Default));
        let mut floats = FloatCoder::new(Effort::Default);
        MixedCoder::new(TextCoder::new(Some(3), 1 << 16)).encode(text, &mut bytes, &mut numbers, &mut floats, &mut out);
        out
    }

    fn decode(reader: &mut Reader<'_>, count_max: usize) -> Decoded<Vec<u8>> {
        let mut text = b"before".to_vec();
        let (mut bytes, mut numbers, mut floats) = (ByteDecoder::new(), NumberDecoder::new(), FloatDecoder::new());
        let mut decoder = MixedDecoder::new(TextDecoder::new());
        decoder.decode(reader, count_max, &mut bytes, &mut numbers, &mut floats, &mut text)?;
        Ok(text.split_off(6))
    }

    fn decoded(stored: &[u8], count_max: usize) -> Decoded<Vec<u8>> {
        let mut reader = Reader::new(stored);
        let text = decode(&mut reader, count_max)?;
        assert!(reader.is_empty());
        Ok(text)
    }

    /// `text` and nothing else; what is told shorter, or is cut, is damage.
    fn comes_back(stored: &[u8], text: &[u8], step: usize) {
        assert!(decoded(stored, text.len()).is_ok_and(|back| back == text));
        assert!(decoded(stored, text.len() - 1).is_err());
        for end in (0..stored.len()).step_by(step) {
            assert!(decoded(&stored[..end], text.len()).is_err());
        }
    }

    fn mode(stored: &[u8]) -> u8 {
        stored[stored.iter().position(|byte| *byte < 0x80).unwrap() + 1]
    }

    #[test]
    fn digits_take_half_a_byte_and_come_back_from_among_other_text() {
        let prose = "the quick brown fox jumps over the lazy dog; ".repeat(100).into_bytes();
        let long = hashes(20_000);
        let texts = [
            long.clone(),
            [&prose[..], &long].concat(),
            [&long[..], &prose].concat(),
            [&prose[..], &long, &prose, &long.to_ascii_uppercase()[..9_999], b"?"].concat(),
            [&long[..8192], &prose[..3]].concat(),
            long.chunks(40).flat_map(|hash| [hash, b"\n"].concat()).collect(),
        ];
        for text in texts {
            let stored = encoded(&text);
            assert_eq!(mode(&stored), DIGITS);
            let digits = text.iter().filter(|byte| digits::is_other(**byte) == 0).count();
            assert!(stored.len() < digits * 17 / 32 + 800, "{} {digits}", stored.len());
            comes_back(&stored, &text, 7);
        }
    }

    #[test]
    fn digits_that_return_and_other_text_are_left_to_zstd() {
        let long = hashes(20_000);
        let short = &long[..BLOCK_BYTES - 1];
        let other: Vec<u8> = noise(20_000).map(|at| b"0123456789abcdefghijklmnopqrstuv"[at % 32]).collect();
        // Children that name their parents: in any order, at any place.
        let mut parents: Vec<&[u8]> = long.chunks(40).collect();
        parents.reverse();
        for text in [[&long[..], &parents.concat()].concat(), short.to_vec(), other, Vec::new()] {
            let stored = encoded(&text);
            assert!(text.is_empty() || mode(&stored) != DIGITS);
            assert_eq!(decoded(&stored, text.len()), Ok(text));
        }
    }

    /// Of a model: between -0.5 and 0.5, with as many digits as there are.
    fn vector(count: usize) -> Vec<u8> {
        noise(count).flat_map(|at| ((at & 0xff_ffff) as f32 / 16_777_216.0 - 0.5).to_le_bytes()).collect()
    }

    #[test]
    fn floats_take_what_is_noise_in_them_wherever_they_begin() {
        let prose = "the quick brown fox jumps over the lazy dog; ".repeat(100).into_bytes();
        let long = vector(20_000);
        let with_heads = long.chunks(4 * 384).flat_map(|array| [&[1, 0, 0, 0, 0, 0, 0, 0], array].concat()).collect();
        for (text, first) in [
            (long.clone(), 0),
            ([&prose[..], &long].concat(), 0),
            ([&b"?"[..], &long[..40_000], &prose, &long[40_000..], b"??"].concat(), 1),
            ([&b"???"[..], &long].concat(), 3),
            (with_heads, 0),
            // Few of them, far behind.
            ([&prose.repeat(30)[..], &b"!!"[..], &long[..12 << 10]].concat(), 2),
        ] {
            let stored = encoded(&text);
            assert_eq!(mode(&stored), VECTORS + first);
            assert!(stored.len() < 20_000 * 7 / 2 + 1200, "{}", stored.len());
            comes_back(&stored, &text, 97);
        }
    }

    #[test]
    fn floats_that_return_and_few_or_other_numbers_are_left_to_zstd() {
        let long = vector(20_000);
        let apart: Vec<u8> = long.chunks(2048).flat_map(|part| [part, &[7; 2048]].concat()).collect();
        let doubles = noise(5000).flat_map(|at| (at as f64 / 1e5).to_le_bytes()).collect();
        let counted = (0..20_000_u32).flat_map(u32::to_le_bytes).collect();
        for text in [[&long[..], &long].concat(), long[..7 << 10].to_vec(), apart, doubles, counted] {
            let stored = encoded(&text);
            assert!(mode(&stored) < DIGITS);
            assert_eq!(decoded(&stored, text.len()), Ok(text));
        }
    }

    /// A line whose points are near one another, in degrees of five decimal places.
    fn line(count: usize) -> Vec<u8> {
        let mut point = [1_234_567, 4_812_345];
        let mut step = noise(2 * count).map(|at| at as i64 % 4000 - 2000);
        let points = (0..count).flat_map(|_| {
            point = point.map(|axis| axis + step.next().unwrap_or(0));
            point.map(|axis| (axis as f64 / 1e5).to_le_bytes())
        });
        points.flatten().collect()
    }

    #[test]
    fn coordinates_take_their_differences_wherever_they_begin() {
        let prose = "the quick brown fox jumps over the lazy dog; ".repeat(100).into_bytes();
        let long = line(4000);
        let lines = long.chunks(16 * 25).flat_map(|line| [&[2, 0, 0, 0, 25, 0, 0, 0], line].concat()).collect();
        let values = long.chunks(16 * 500).flat_map(|line| [&[7; 28], line].concat()).collect();
        for text in [long.clone(), [&prose[..], &long, b"?", &prose].concat(), lines, values, long[5..].to_vec()] {
            let stored = encoded(&text);
            assert_eq!(mode(&stored), PAIRS, "{}", text.len());
            assert!(stored.len() < 4000 * 4 + 1000, "{}", stored.len());
            comes_back(&stored, &text, 41);
        }
    }

    #[test]
    fn coordinates_that_return_and_few_or_other_floats_are_left_to_zstd() {
        let long = line(4000);
        let far: Vec<u8> = noise(8000).flat_map(|at| (2.5_f64.powi(at as i32 % 40 - 20)).to_le_bytes()).collect();
        let columns = "1234567A".repeat(2000).into_bytes();
        for text in [[&long[..], &long].concat(), long[..7 << 10].to_vec(), far, columns] {
            let stored = encoded(&text);
            assert!(mode(&stored) < DIGITS, "{} {}", text.len(), mode(&stored));
            assert_eq!(decoded(&stored, text.len()), Ok(text));
        }
        // Boxes of f32, as indexes have them, are floats of another kind.
        let boxes: Vec<u8> = noise(8000).flat_map(|at| (8.0 + (at % 90_000) as f32 / 1e5).to_le_bytes()).collect();
        assert_ne!(mode(&encoded(&boxes)), PAIRS);
    }

    #[test]
    fn lies_about_coordinates_are_damage() {
        let text = [&line(4000)[..], b"and so on"].concat();
        let stored = encoded(&text);
        let at = stored.iter().position(|byte| *byte < 0x80).unwrap() + 1;
        // Two runs, no bytes and then 4000 pairs.
        assert_eq!(stored[at..at + 5], [PAIRS, 2, 0, 0xA0, 0x1F]);
        let lies = [(1, 1), (1, 3), (2, 10), (3, 0x9F), (3, 0xA1), (4, 0x1E), (4, 0x7F), (0, DIGITS), (0, VECTORS)];
        for (place, byte) in lies {
            let mut lie = stored.clone();
            lie[at + place] = byte;
            assert!(decode(&mut Reader::new(&lie), text.len()).is_err(), "{place} {byte}");
        }
    }

    #[test]
    fn lies_are_damage() {
        let behind = b"and so on, and so forth";
        for (apart, kind, blocks) in [(hashes(4096), DIGITS, 4), (vector(4096), VECTORS, 16)] {
            let text = [&apart[..], behind].concat();
            let stored = encoded(&text);
            let at = stored.iter().position(|byte| *byte < 0x80).unwrap() + 1;
            // Two runs, none and then blocks.
            assert_eq!(stored[at..at + 4], [kind, 2, 0, blocks]);
            let lies = [(1, 1), (1, 3), (2, 1), (3, blocks - 1), (3, blocks + 1), (0, DIGITS + VECTORS - kind), (0, 9)];
            for (place, byte) in lies.map(|(place, byte)| (at + place, byte)).into_iter().chain([(0, stored[0] ^ 1)]) {
                let mut lie = stored.clone();
                lie[place] = byte;
                let mut reader = Reader::new(&lie);
                let decoded = decode(&mut reader, 1 << 20);
                assert!(decoded.is_err() || !reader.is_empty(), "{kind} {place} {byte}");
            }
        }
    }
}
