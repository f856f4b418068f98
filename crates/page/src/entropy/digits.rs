//! Text of which parts are hexadecimal digits: hashes, tokens, binary data in text.
//!
//! A digit tells four bits, and where nothing repeats that is all there is to say. zstd finds repeats of four or five digits
//! that are there by chance, several to a hash: it takes longer than for any other text, and its result is larger.

use super::bytes::ByteCoder;
use super::bytes_decode::ByteDecoder;
use super::reader::{Reader, put_varint};
use super::text::{TextCoder, TextDecoder};
use crate::error::{Damaged, Decoded};

/// The mode of a text whose digits are apart; the others are [`TextCoder`]'s.
const DIGITS: u8 = 2;
/// Text is told apart by blocks of this many bytes.
const BLOCK_BYTES: usize = 1024;
/// Of a block of digits one byte in this many may be another: what stands between hashes.
const OTHER_SHARE: usize = 16;
/// Slots of marks by which repeats are found.
const SLOT_COUNT: usize = 1 << 12;
/// If one mark in this many was there before, digits are left to zstd.
const REPEAT_SHARE: usize = 16;

/// Packs texts, each alone, digits and all else apart.
pub(crate) struct DigitCoder {
    text: TextCoder,
    /// How many blocks are none of digits, are of digits, are none again, and so on.
    runs: Vec<u32>,
    digits: Vec<u8>,
    rest: Vec<u8>,
    slots: Vec<u32>,
}

impl DigitCoder {
    pub(crate) fn new(text: TextCoder) -> Self {
        DigitCoder { text, runs: Vec::new(), digits: Vec::new(), rest: Vec::new(), slots: vec![0; SLOT_COUNT] }
    }

    /// Packs what is not digits at zstd's `level` from the next text on.
    pub(crate) fn set_level(&mut self, level: i32) {
        self.text.set_level(level);
    }

    /// Appends `text` to `out`.
    pub(crate) fn encode(&mut self, text: &[u8], bytes: &mut ByteCoder, out: &mut Vec<u8>) {
        self.find_runs(text);
        if self.runs.len() < 2 {
            return self.text.encode(text, out);
        }
        self.take_apart(text);
        if self.repeats() {
            return self.text.encode(text, out);
        }
        put_varint(text.len() as u64, out);
        out.push(DIGITS);
        put_varint(self.runs.len() as u64, out);
        self.runs.iter().for_each(|run| put_varint(u64::from(*run), out));
        bytes.encode(&self.digits, out);
        self.text.encode(&self.rest, out);
    }

    fn find_runs(&mut self, text: &[u8]) {
        self.runs.clear();
        let mut run = 0;
        for block in text.as_chunks::<BLOCK_BYTES>().0 {
            if is_digits(block) == (self.runs.len() % 2 == 1) {
                run += 1;
            } else {
                self.runs.push(run);
                run = 1;
            }
        }
        // What comes behind the last digits need not be told.
        if self.runs.len() % 2 == 1 {
            self.runs.push(run);
        }
    }

    fn take_apart(&mut self, text: &[u8]) {
        self.digits.clear();
        self.rest.clear();
        let mut text = text;
        for (number, run) in self.runs.iter().enumerate() {
            let (part, behind) = text.split_at(*run as usize * BLOCK_BYTES);
            let to = if number % 2 == 1 { &mut self.digits } else { &mut self.rest };
            to.extend_from_slice(part);
            text = behind;
        }
        self.rest.extend_from_slice(text);
    }

    /// Whether digits stood before more often than chance lets them, at any distance.
    fn repeats(&mut self) -> bool {
        self.slots.fill(0);
        let (mut seen, mut again) = (0, 0);
        for (at, digit) in self.digits.iter().enumerate() {
            // Places are chosen by what stands there, so that a repeat is looked at both times.
            if *digit != b'7' {
                continue;
            }
            // Twelve digits tell 48 bits.
            let Some(place) = self.digits[at..].first_chunk::<13>() else { break };
            let [_, b0, b1, b2, b3, b4, b5, b6, b7, c @ ..] = *place;
            let word = u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, b7]) ^ u64::from(u32::from_le_bytes(c)) << 29;
            let hash = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mark = (hash >> 32) as u32 | 1;
            let slot = &mut self.slots[(hash >> 20) as usize % SLOT_COUNT];
            seen += 1;
            again += usize::from(*slot == mark);
            *slot = mark;
        }
        again * REPEAT_SHARE > seen
    }
}

/// Whether nearly all bytes are digits, or the hyphens of a uuid.
fn is_digits(block: &[u8; BLOCK_BYTES]) -> bool {
    let (parts, _) = block.as_chunks::<64>();
    let mut others = 0;
    for part in parts {
        // Sums of 64 fit a byte, which lets sixteen and more be looked at at once.
        others += usize::from(part.iter().map(|byte| is_other(*byte)).fold(0, u8::wrapping_add));
        if others > BLOCK_BYTES / OTHER_SHARE {
            return false;
        }
    }
    true
}

#[inline(always)]
fn is_other(byte: u8) -> u8 {
    let is_digit = byte.wrapping_sub(b'0') < 10;
    let is_letter = (byte | 0x20).wrapping_sub(b'a') < 6;
    u8::from(!(is_digit | is_letter | (byte == b'-')))
}

/// Unpacks what [`DigitCoder`] packed.
pub(crate) struct DigitDecoder {
    text: TextDecoder,
    runs: Vec<u32>,
    digits: Vec<u8>,
    rest: Vec<u8>,
}

impl DigitDecoder {
    pub(crate) fn new(text: TextDecoder) -> Self {
        DigitDecoder { text, runs: Vec::new(), digits: Vec::new(), rest: Vec::new() }
    }

    /// Appends the next text of `input`, of at most `count_max` bytes, to `text`.
    pub(crate) fn decode(
        &mut self,
        input: &mut Reader<'_>,
        count_max: usize,
        bytes: &mut ByteDecoder,
        text: &mut Vec<u8>,
    ) -> Decoded<()> {
        let count = input.count(count_max)?;
        if count == 0 {
            return Ok(());
        }
        let mode = input.u8()?;
        if mode != DIGITS {
            return self.text.decode_body(mode, input, count, text);
        }
        self.runs.clear();
        let mut left = count;
        let mut digit_count = 0;
        // A run has a block, but for the first.
        for number in 0..input.count(count / BLOCK_BYTES + 1)? {
            let run = input.count(left / BLOCK_BYTES)?;
            left -= run * BLOCK_BYTES;
            digit_count += if number % 2 == 1 { run * BLOCK_BYTES } else { 0 };
            self.runs.push(run as u32);
        }
        self.digits.clear();
        bytes.decode(input, digit_count, &mut self.digits)?;
        self.rest.clear();
        self.text.decode(input, count - digit_count, &mut self.rest)?;
        if self.digits.len() + self.rest.len() != count {
            return Err(BAD);
        }
        self.put_together(text)
    }

    fn put_together(&self, text: &mut Vec<u8>) -> Decoded<()> {
        let (mut digits, mut rest) = (&self.digits[..], &self.rest[..]);
        text.reserve(digits.len() + rest.len());
        for (number, run) in self.runs.iter().enumerate() {
            let from = if number % 2 == 1 { &mut digits } else { &mut rest };
            let (part, behind) = from.split_at_checked(*run as usize * BLOCK_BYTES).ok_or(BAD)?;
            text.extend_from_slice(part);
            *from = behind;
        }
        text.extend_from_slice(rest);
        Ok(())
    }
}

const BAD: Damaged = Damaged("a text's digits are not where it says");

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
        let mut bytes = ByteCoder::new(Effort::Default);
        DigitCoder::new(TextCoder::new(3, 1 << 16)).encode(text, &mut bytes, &mut out);
        out
    }

    fn decoded(stored: &[u8], count_max: usize) -> Decoded<Vec<u8>> {
        let mut reader = Reader::new(stored);
        let mut text = b"before".to_vec();
        let mut decoder = DigitDecoder::new(TextDecoder::new());
        decoder.decode(&mut reader, count_max, &mut ByteDecoder::new(), &mut text)?;
        assert!(reader.is_empty());
        Ok(text.split_off(6))
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
            let digits = text.iter().filter(|byte| is_other(**byte) == 0).count();
            assert!(stored.len() < digits * 17 / 32 + 800, "{} {digits}", stored.len());
            assert_eq!(decoded(&stored, text.len()).as_ref(), Ok(&text));
            assert!(decoded(&stored, text.len() - 1).is_err());
            for end in (0..stored.len()).step_by(7) {
                assert!(decoded(&stored[..end], text.len()).is_err());
            }
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

    #[test]
    fn lies_are_damage() {
        let text = [hashes(4096), b"and so on, and so forth".to_vec()].concat();
        let stored = encoded(&text);
        // Length 2, mode, and then: two runs, none and four blocks.
        assert_eq!(stored[2..6], [DIGITS, 2, 0, 4]);
        for (at, byte) in [(3, 1), (3, 3), (4, 1), (5, 3), (5, 5), (0, stored[0] ^ 1), (2, 9)] {
            let mut lie = stored.clone();
            lie[at] = byte;
            let mut decoder = DigitDecoder::new(TextDecoder::new());
            let mut reader = Reader::new(&lie);
            let decoded = decoder.decode(&mut reader, 1 << 20, &mut ByteDecoder::new(), &mut Vec::new());
            assert!(decoded.is_err() || !reader.is_empty(), "{at} {byte}");
        }
    }
}
