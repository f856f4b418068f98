//! Text of which parts are not text at all: hexadecimal digits, arrays of floats. These parts are packed apart, by what they are.

use super::bytes::ByteCoder;
use super::bytes_decode::ByteDecoder;
use super::numbers::NumberCoder;
use super::numbers_decode::NumberDecoder;
use super::reader::{Reader, put_varint};
use super::text::{TextCoder, TextDecoder};
use super::{digits, vectors};
use crate::error::{Damaged, Decoded};

/// The mode of a text whose digits are apart; [`TextCoder`] has those before.
const DIGITS: u8 = 2;
/// The modes of texts whose floats are apart: from the first byte on, from the second, and so on.
const VECTORS: u8 = 3;
const VECTORS_LAST: u8 = VECTORS + 3;
/// Text is told apart by blocks of this many bytes.
pub(super) const BLOCK_BYTES: usize = 1024;

/// Packs texts, each alone. Floats are left to a zstd that hurries, which copies them three times as fast, for a sixth more bytes.
pub(crate) struct MixedCoder {
    text: TextCoder,
    /// How many blocks stay in the text, are apart, stay again, and so on.
    runs: Vec<u32>,
    digits: Vec<u8>,
    floats: Vec<u32>,
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
            rest: Vec::new(),
            slots: digits::Slots::default(),
        }
    }

    /// Packs what stays text at zstd's `level` from the next text on.
    pub(crate) fn set_level(&mut self, level: i32) {
        self.text.set_level(level);
    }

    /// Appends `text` to `out`.
    pub(crate) fn encode(&mut self, text: &[u8], bytes: &mut ByteCoder, numbers: &mut NumberCoder, out: &mut Vec<u8>) {
        let mode = self.take(text);
        give_back_unused(&mut self.digits, &mut self.floats, &mut self.rest);
        let Some(mode) = mode else { return self.text.encode(text, out) };
        put_varint(text.len() as u64, out);
        out.push(mode);
        put_varint(self.runs.len() as u64, out);
        self.runs.iter().for_each(|run| put_varint(u64::from(*run), out));
        if mode == DIGITS {
            bytes.encode(&self.digits, out);
        } else {
            numbers.encode_u32(&self.floats, None, out);
        }
        self.text.encode(&self.rest, out);
    }

    /// Takes apart what pays; gives the mode that says so, none if nothing does.
    fn take(&mut self, text: &[u8]) -> Option<u8> {
        self.digits.clear();
        self.floats.clear();
        self.rest.clear();
        if self.find_runs(text, digits::are_in) {
            take_apart(text, &self.runs, &mut self.rest, |block| self.digits.extend_from_slice(block));
            return (!self.slots.find_repeats(&self.digits)).then_some(DIGITS);
        }
        if self.text.hurries() {
            return None;
        }
        let first = vectors::first_place(text)?;
        let (before, text) = text.split_at(first);
        if !self.find_runs(text, vectors::are_in) || !vectors::are_enough(&self.runs) {
            return None;
        }
        self.rest.extend_from_slice(before);
        take_apart(text, &self.runs, &mut self.rest, |block| {
            self.floats.extend(block.as_chunks().0.iter().map(|float| u32::from_le_bytes(*float)));
        });
        (!vectors::repeat(&self.floats)).then_some(VECTORS + first as u8)
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
fn give_back_unused(digits: &mut Vec<u8>, floats: &mut Vec<u32>, rest: &mut Vec<u8>) {
    for bytes in [digits, rest] {
        if bytes.is_empty() {
            *bytes = Vec::new();
        }
    }
    if floats.is_empty() {
        *floats = Vec::new();
    }
}

/// Gives what is apart to `put`, and appends the others to `rest`.
fn take_apart(mut text: &[u8], runs: &[u32], rest: &mut Vec<u8>, mut put: impl FnMut(&[u8])) {
    for (number, run) in runs.iter().enumerate() {
        let (part, behind) = text.split_at(*run as usize * BLOCK_BYTES);
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
    rest: Vec<u8>,
}

impl MixedDecoder {
    pub(crate) fn new(text: TextDecoder) -> Self {
        MixedDecoder { text, runs: Vec::new(), digits: Vec::new(), floats: Vec::new(), rest: Vec::new() }
    }

    /// Appends the next text of `input`, of at most `count_max` bytes, to `text`.
    pub(crate) fn decode(
        &mut self,
        input: &mut Reader<'_>,
        count_max: usize,
        bytes: &mut ByteDecoder,
        numbers: &mut NumberDecoder,
        text: &mut Vec<u8>,
    ) -> Decoded<()> {
        let count = input.count(count_max)?;
        if count == 0 {
            return Ok(());
        }
        let mode = input.u8()?;
        self.digits.clear();
        self.floats.clear();
        self.rest.clear();
        if !(DIGITS..=VECTORS_LAST).contains(&mode) {
            give_back_unused(&mut self.digits, &mut self.floats, &mut self.rest);
            return self.text.decode_body(mode, input, count, text);
        }
        let first = usize::from(mode.saturating_sub(VECTORS));
        let apart = self.read_runs(input, count.checked_sub(first).ok_or(BAD)?)?;
        if mode == DIGITS {
            bytes.decode(input, apart, &mut self.digits)?;
        } else {
            numbers.decode_u32(input, apart / 4, None, &mut self.floats)?;
        }
        self.text.decode(input, count - apart, &mut self.rest)?;
        give_back_unused(&mut self.digits, &mut self.floats, &mut self.rest);
        if self.digits.len() + 4 * self.floats.len() + self.rest.len() != count {
            return Err(BAD);
        }
        text.reserve(count);
        if mode == DIGITS {
            let mut digits = &self.digits[..];
            return self.put_together(first, text, |length, text| {
                let (part, behind) = digits.split_at_checked(length)?;
                text.extend_from_slice(part);
                digits = behind;
                Some(())
            });
        }
        let mut floats = &self.floats[..];
        self.put_together(first, text, |length, text| {
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
    fn read_runs(&mut self, input: &mut Reader<'_>, count: usize) -> Decoded<usize> {
        self.runs.clear();
        let (mut left, mut apart) = (count, 0);
        // A run has a block, but for the first.
        for number in 0..input.count(count / BLOCK_BYTES + 1)? {
            let run = input.count(left / BLOCK_BYTES)?;
            left -= run * BLOCK_BYTES;
            apart += if number % 2 == 1 { run * BLOCK_BYTES } else { 0 };
            self.runs.push(run as u32);
        }
        Ok(apart)
    }

    /// `first` bytes stand before the first run. `put` appends so many of the bytes that are apart; None if there are not as many.
    fn put_together(
        &self,
        first: usize,
        text: &mut Vec<u8>,
        mut put: impl FnMut(usize, &mut Vec<u8>) -> Option<()>,
    ) -> Decoded<()> {
        let (before, mut rest) = self.rest.split_at_checked(first).ok_or(BAD)?;
        text.extend_from_slice(before);
        for (number, run) in self.runs.iter().enumerate() {
            let length = *run as usize * BLOCK_BYTES;
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
        MixedCoder::new(TextCoder::new(3, 1 << 16)).encode(text, &mut bytes, &mut numbers, &mut out);
        out
    }

    fn decode(reader: &mut Reader<'_>, count_max: usize) -> Decoded<Vec<u8>> {
        let mut text = b"before".to_vec();
        let (mut bytes, mut numbers) = (ByteDecoder::new(), NumberDecoder::new());
        MixedDecoder::new(TextDecoder::new()).decode(reader, count_max, &mut bytes, &mut numbers, &mut text)?;
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
