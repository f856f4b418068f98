//! Values that PostgreSQL has compressed with pglz, and their chunks in TOAST: literals apart from matches.
//!
//! pglz has no code for single bytes, and what is left to code lies among its control bytes and matches. Its groups follow one another
//! without a mark, but whoever begins to read in the middle of one soon meets where one begins.

#[cfg(target_arch = "x86_64")]
mod at_once;
mod group;
mod groups;

use std::ops::Range;

use twox_hash::XxHash3_64;

use super::{Decode, Text, ValueDecoders};
use crate::entropy::{ByteCoder, NumberCoder, Reader, entropy, is_dense_within, repeats_within};
use crate::error::{Damaged, Decoded};
use crate::postgres::form;

use groups::{Groups, GroupsLeft, Left};

/// Columns with less, or with shorter values on the mean, are left as they are.
const TEXT_BYTES_MIN: usize = 4096;
const VALUE_BYTES_MIN: usize = 64;
/// Where in a piece it is looked whether one before had the same there, and how many bytes.
const MARKED: [usize; 3] = [64, 512, 1536];
const MARK_BYTES: usize = 32;
/// How many pieces are unpacked in thought to see whether they can be, and how much of each.
const SAMPLE_COUNT: usize = 16;
const BEGIN_BYTES: usize = 256;
/// How much is taken apart to see whether it pays, from the middle of a column.
const SAMPLE_BYTES: usize = 8192;
/// Before its groups a piece has how long it is when unpacked (va_tcinfo in src/include/varatt.h).
const SIZE_BYTES: usize = 4;

/// What of a column is a piece of pglz's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Pieces {
    /// Each value of the form that says so.
    #[default]
    Values = 0,
    /// All values, as chunks: one that is shorter than the longest is the last of a piece.
    Chunks = 1,
}

impl Pieces {
    fn of_column(heads: &[u32], length: usize) -> Self {
        let compressed = heads.iter().filter(|head| *head & 3 == form::COMPRESSED);
        let length_compressed = compressed.map(|head| form::payload_length(*head)).sum::<usize>();
        if 2 * length_compressed >= length { Pieces::Values } else { Pieces::Chunks }
    }

    fn from_u8(number: u8) -> Decoded<Self> {
        [Pieces::Values, Pieces::Chunks].into_iter().find(|pieces| *pieces as u8 == number).ok_or(BAD)
    }

    /// What follows one another in the text of a column, and whether each is a piece.
    fn ranges(self, heads: &[u32]) -> impl Iterator<Item = (Range<usize>, bool)> {
        let longest = heads.iter().map(|head| form::payload_length(*head)).max().unwrap_or_default();
        let (mut left, mut end) = (heads.iter(), 0);
        std::iter::from_fn(move || {
            let head = *left.next()?;
            let mut last = form::payload_length(head);
            let start = end;
            end += last;
            if self == Pieces::Values {
                return Some((start..end, head & 3 == form::COMPRESSED));
            }
            while last == longest
                && let Some(head) = left.next()
            {
                last = form::payload_length(*head);
                end += last;
            }
            Some((start..end, true))
        })
    }

    /// Whether every second piece of a sample begins as pglz's do. The first chunks of a frame are mostly the end of a piece.
    fn look_packed(self, heads: &[u32], text: &[u8]) -> bool {
        let begins = |range: &Range<usize>| self == Pieces::Values || range.start > 0;
        let pieces = self.ranges(heads).filter_map(|(range, is_piece)| (is_piece && begins(&range)).then_some(range));
        let (seen, found) = pieces
            .take(SAMPLE_COUNT)
            .fold((0, 0), |(seen, found), range| (seen + 1, found + usize::from(begins_packed(&text[range]))));
        2 * found > seen
    }

    /// Whether every second piece begins like one before it. The same bytes have the same groups, which are found more easily where they
    /// are together.
    fn come_again(self, heads: &[u32], text: &[u8]) -> bool {
        let mut slots = [0_u64; 1024];
        let (mut seen, mut again) = (0, 0);
        for (range, _) in self.ranges(heads).filter(|(_, is_piece)| *is_piece) {
            let piece = &text[range];
            for place in MARKED.iter().filter_map(|at| piece.get(*at..*at + MARK_BYTES)) {
                let mark = XxHash3_64::oneshot(place) | 1;
                let slot = &mut slots[(mark >> 32) as usize % 1024];
                seen += 1;
                again += usize::from(*slot == mark);
                *slot = mark;
            }
        }
        2 * again > seen
    }
}

/// Whether the first groups of `piece` are such that pglz could unpack them: no match is of bytes before the first.
fn begins_packed(piece: &[u8]) -> bool {
    let Some((size, groups)) = piece.split_first_chunk::<SIZE_BYTES>() else { return false };
    let size = u32::from_le_bytes(*size) as usize;
    // What is packed is smaller; the two highest bits are another way of packing it.
    if size <= piece.len() || size >= 1 << 30 {
        return false;
    }
    let (mut left, mut made) = (groups.iter(), 0);
    while made < BEGIN_BYTES
        && let Some(control) = left.next()
    {
        for item in 0..8 {
            let Some(first) = left.next() else { return made > 0 };
            if control >> item & 1 == 0 {
                made += 1;
                continue;
            }
            let Some(second) = left.next() else { return made > 0 };
            let distance = usize::from(first >> 4) << 8 | usize::from(*second);
            if distance == 0 || distance > made {
                return false;
            }
            let more = if first & 0xf == 0xf { left.next().copied().unwrap_or_default() } else { 0 };
            made += usize::from(first & 0xf) + 3 + usize::from(more);
        }
    }
    true
}

/// The values of one column.
#[derive(Debug, Default)]
pub(super) struct Pglz {
    sizes: Vec<u32>,
    groups: Groups,
    pieces: Pieces,
    /// Decoded streams: control bytes, first, second and third bytes.
    streams: [Vec<u8>; 4],
    /// Whether this frame may have any.
    are_used: bool,
}

impl Pglz {
    /// Starts a frame. Its memory is given back if the last one had no such values.
    pub(super) fn give_back_unused(&mut self) {
        if !std::mem::take(&mut self.are_used) {
            *self = Pglz::default();
        }
    }

    /// Takes all values in; false if it does not pay.
    pub(super) fn take(&mut self, heads: &[u32], text: &[u8]) -> bool {
        if text.len() < TEXT_BYTES_MIN.max(VALUE_BYTES_MIN * heads.len())
            || !is_dense_within(text)
            || repeats_within(text) > 0
        {
            return false;
        }
        let pieces = Pieces::of_column(heads, text.len());
        if !pieces.look_packed(heads, text) || pieces.come_again(heads, text) || !self.pays(pieces, heads, text) {
            return false;
        }
        self.groups.clear();
        self.sizes.clear();
        self.pieces = pieces;
        for (range, is_piece) in pieces.ranges(heads) {
            let piece = &text[range];
            match piece.split_first_chunk::<SIZE_BYTES>() {
                Some((size, groups)) if is_piece => {
                    self.sizes.push(u32::from_le_bytes(*size));
                    self.groups.take(groups);
                }
                _ => self.groups.literals.extend(piece),
            }
        }
        true
    }

    /// Whether a code for single bytes makes a twentieth less of a sample if it is apart.
    fn pays(&mut self, pieces: Pieces, heads: &[u32], text: &[u8]) -> bool {
        let first = (text.len() / 2).saturating_sub(SAMPLE_BYTES / 2);
        let sample = first..text.len().min(first + SAMPLE_BYTES);
        self.groups.clear();
        self.are_used = true;
        for (range, _) in pieces.ranges(heads).filter(|(_, is_piece)| *is_piece) {
            let within = range.start.max(sample.start)..range.end.min(sample.end);
            self.groups.take(text.get(within).unwrap_or_default());
        }
        let Groups { controls, literals, firsts, seconds, thirds } = &self.groups;
        let streams = [controls, literals, firsts, seconds, thirds].map(groups::Bytes::values);
        let mut all = [0; 256];
        let mut total = 0;
        let mut apart = 0;
        for stream in streams {
            let mut counts = [0; 256];
            stream.iter().for_each(|value| counts[usize::from(*value)] += 1);
            apart += entropy(&counts, stream.len() as u32).0;
            total += stream.len();
            all.iter_mut().zip(counts).for_each(|(all, count)| *all += count);
        }
        apart * 20 < entropy(&all, total as u32).0 * 19
    }

    /// Appends what was taken, whose heads are `heads`.
    pub(super) fn encode(
        &self,
        heads: &[u32],
        bytes: &mut ByteCoder,
        numbers: &mut NumberCoder,
        text: &mut Text,
        out: &mut Vec<u8>,
    ) {
        numbers.encode_u32(heads, None, out);
        out.push(self.pieces as u8);
        numbers.encode_u32(&self.sizes, None, out);
        let Groups { controls, literals, firsts, seconds, thirds } = &self.groups;
        for stream in [controls, firsts, seconds, thirds] {
            bytes.encode(stream.values(), out);
        }
        text.store(literals.values(), out);
    }
}

impl Decode for Pglz {
    fn scratch(decoders: &mut ValueDecoders) -> &mut Self {
        &mut decoders.pglz
    }

    fn decode_into(
        &mut self,
        decoders: &mut ValueDecoders,
        input: &mut Reader<'_>,
        text: &mut Text,
        heads: &mut Vec<u32>,
    ) -> Decoded<Range<usize>> {
        self.are_used = true;
        decoders.decode_u32(input, None, heads)?;
        let pieces = Pieces::from_u8(input.u8()?)?;
        self.sizes.clear();
        decoders.decode_u32(input, None, &mut self.sizes)?;
        for stream in &mut self.streams {
            stream.clear();
            decoders.decode_bytes(input, stream)?;
        }
        let rest = text.next(input)?;
        let length = heads.iter().map(|head| form::payload_length(*head)).sum::<usize>();
        decoders.budget.spend(length, 1)?;
        let start = text.bytes.len();
        text.bytes.resize(start + length, 0);
        let (literals, place) = text.bytes.split_at_mut(start);
        let literals = Left::new(&literals[rest.start..], rest.len());
        self.make(pieces, heads, literals, place).ok_or(BAD)?;
        Ok(start..start + length)
    }
}

impl Pglz {
    /// Fills `place` with all values; None if the streams have too little or too much for that.
    fn make(&mut self, pieces: Pieces, heads: &[u32], literals: Option<Left<'_>>, place: &mut [u8]) -> Option<()> {
        let lengths = self.streams.each_ref().map(Vec::len);
        // Whatever eight bytes follow the last.
        self.streams.iter_mut().for_each(|stream| stream.extend([0; 8]));
        let [controls, firsts, seconds, thirds] =
            std::array::from_fn(|number| Left::new(&self.streams[number], lengths[number]));
        let mut left = GroupsLeft {
            controls: controls?,
            literals: literals?,
            firsts: firsts?,
            seconds: seconds?,
            thirds: thirds?,
        };
        let mut sizes = self.sizes.iter();
        for (range, is_piece) in pieces.ranges(heads) {
            let piece = &mut place[range];
            match piece.split_first_chunk_mut::<SIZE_BYTES>() {
                Some((size, groups)) if is_piece => {
                    *size = sizes.next()?.to_le_bytes();
                    left.make(groups)?;
                }
                _ => left.literals.fill(piece)?,
            }
        }
        (left.are_spent() && sizes.len() == 0).then_some(())
    }
}

const BAD: Damaged = Damaged("a column of values that PostgreSQL has compressed is not what it says");

#[cfg(test)]
mod tests {
    use super::super::Budget;
    use super::*;
    use crate::entropy::Effort;

    fn noise(seed: u64) -> impl FnMut() -> u64 {
        let mut state = seed;
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 40
        }
    }

    /// Groups as of words in which little returns: a fourth of the items are matches, once there is something before them.
    fn packed(length: usize, seed: u64) -> Vec<u8> {
        let mut next = noise(seed);
        let (mut out, mut made) = (vec![0, 0, 1, 0], 0);
        while out.len() < length {
            let control = if made < 64 { 0 } else { next() as u8 & next() as u8 };
            out.push(control);
            for item in 0..8 {
                if control >> item & 1 == 0 {
                    out.push(b"etaoinsrhldcumfg"[(next() % 16) as usize]);
                    made += 1;
                    continue;
                }
                let distance = next() as usize % made.min(4095) + 1;
                let first = (distance >> 8 << 4) as u8 | next() as u8 & 15;
                out.extend([first, distance as u8]);
                out.extend((first & 15 == 15).then_some(next() as u8));
                made += usize::from(first & 15) + 3;
            }
        }
        out.truncate(length);
        out
    }

    fn heads(values: &[(u32, Vec<u8>)]) -> Vec<u32> {
        values.iter().map(|(form, value)| (value.len() as u32) << 2 | form).collect()
    }

    fn joined(values: &[(u32, Vec<u8>)]) -> Vec<u8> {
        values.iter().flat_map(|(_, value)| value.iter().copied()).collect()
    }

    /// Of values that are chunks, each piece's in order.
    fn chunks(pieces: &[Vec<u8>]) -> Vec<(u32, Vec<u8>)> {
        pieces.iter().flat_map(|piece| piece.chunks(1996)).map(|chunk| (form::LONG, chunk.to_vec())).collect()
    }

    fn stored(values: &[(u32, Vec<u8>)]) -> Option<(Text, Vec<u8>)> {
        let (mut pglz, mut out, mut text) = (Pglz::default(), Vec::new(), Text::default());
        let (mut bytes, mut numbers) = (ByteCoder::new(Effort::Default), NumberCoder::new(Effort::Default));
        pglz.take(&heads(values), &joined(values)).then(|| {
            pglz.encode(&heads(values), &mut bytes, &mut numbers, &mut text, &mut out);
            (text, out)
        })
    }

    fn restored(text: &[u8], stored: &[u8]) -> Decoded<(Vec<u32>, Vec<u8>)> {
        let mut decoders = ValueDecoders::new();
        decoders.budget = Budget::of(1 << 20);
        let mut whole = Text::default();
        whole.bytes.extend_from_slice(text);
        whole.seal();
        let mut heads = Vec::new();
        let range = Pglz::default().decode_into(&mut decoders, &mut Reader::new(stored), &mut whole, &mut heads)?;
        Ok((heads, whole.bytes[range].to_vec()))
    }

    fn come_back(values: &[(u32, Vec<u8>)]) {
        let (text, out) = stored(values).unwrap();
        assert!(restored(&text.bytes, &out).unwrap() == (heads(values), joined(values)));
        assert!(text.bytes.len() < joined(values).len() * 4 / 5);
    }

    #[test]
    fn chunks_and_values_come_back() {
        let pieces: Vec<Vec<u8>> = (0..20).map(|at| packed(900 * at + at * at, at as u64)).collect();
        come_back(&chunks(&pieces));
        // The frame begins in the middle of a piece, and one ends with a full chunk.
        come_back(&chunks(&[pieces[15][1001..].to_vec(), packed(2 * 1996, 99), packed(7000, 98)]));
        let mut values: Vec<(u32, Vec<u8>)> =
            pieces.iter().map(|piece| (form::COMPRESSED, piece[..piece.len().min(2000)].to_vec())).collect();
        values.insert(3, (form::SHORT, b"as it is".to_vec()));
        values.insert(9, (form::EXTERNAL, Vec::new()));
        values.push((form::COMPRESSED, vec![1, 2, 3]));
        come_back(&values);
    }

    #[test]
    fn what_is_no_smaller_apart_is_left() {
        let mut next = noise(1);
        let random: Vec<Vec<u8>> = (0..20).map(|_| (0..1996).map(|_| next() as u8).collect()).collect();
        assert!(stored(&chunks(&random)).is_none());
        let again = packed(3000, 5);
        assert!(stored(&chunks(&vec![again; 30])).is_none());
        assert!(stored(&chunks(&[b"some words of a text that is none of pglz's; ".repeat(300)])).is_none());
        assert!(stored(&chunks(&[packed(3000, 6)])).is_none());
        // Nobody packed these: their matches are of bytes before the first.
        let mut others: Vec<Vec<u8>> = (0..20).map(|seed| packed(3000, seed)).collect();
        assert!(stored(&chunks(&others)).is_some());
        others.iter_mut().for_each(|piece| piece[4..12].fill(0xff));
        assert!(stored(&chunks(&others)).is_none());
        others.iter_mut().for_each(|piece| piece[..12].copy_from_slice(&[0, 0, 0, 0x80, 0, 1, 2, 3, 4, 5, 6, 7]));
        assert!(stored(&chunks(&others)).is_none());
    }

    #[test]
    fn lies_are_refused() {
        let values = chunks(&(0..5).map(|at| packed(3000, at)).collect::<Vec<_>>());
        let (text, out) = stored(&values).unwrap();
        for at in 0..out.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut changed = out.clone();
                changed[at] = value;
                if let Ok((heads, values)) = restored(&text.bytes, &changed) {
                    assert_eq!(heads.iter().map(|head| form::payload_length(*head)).sum::<usize>(), values.len());
                }
            }
            assert!(restored(&text.bytes, &out[..at]).is_err(), "{at}");
        }
        assert!(restored(&text.bytes[..text.bytes.len() - 1], &out).is_err());
    }
}
