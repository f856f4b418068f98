//! Values of variable length of which there are few different ones.

use std::ops::Range;

use super::indices::{BAD_ENTRY, ENTRIES_MAX, Indices, PROBES_MAX};
use super::{Budget, Decode, Text, ValueDecoders};
use crate::entropy::{ByteCoder, NumberCoder, Reader};
use crate::error::Decoded;
use crate::postgres::SHORT_BYTES;

/// Entries that are allowed beyond two for every three values seen so far: a column whose values mostly differ shows that
/// soon, and one whose few thousand values come in any order does not.
const SPARE_ENTRIES: usize = 300;
/// Longer values are left to zstd.
const VALUE_BYTES_MAX: usize = 255;
/// Longer values are compared with the one before at first: these often come again at once, and take longer to be looked for.
const COMPARED_FROM: usize = 40;
/// With fewer values a dictionary does not pay.
const VALUES_MIN: usize = 48;
/// Slots of the table in which values are looked up, at first; a power of two. Twice as many as entries, at least.
const SLOT_COUNT_MIN: usize = 1024;
/// A slot that is free.
const FREE: u16 = u16::MAX;

/// The different values of one column, and which one each value is.
#[derive(Debug, Default)]
pub(super) struct Dictionary {
    heads: Vec<u32>,
    known: Vec<Known>,
    /// Of each entry where it starts in the text of the frame, and its head.
    entries: Vec<[u32; 2]>,
    text: Vec<u8>,
    indices: Indices,
    slots: Vec<u16>,
    /// The most there may be.
    entries_max: usize,
}

/// What tells an entry from most others.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// See [`marks`].
    marks: [u64; 2],
    head: u32,
    /// Where its value starts.
    start: u32,
}

impl Dictionary {
    fn clear(&mut self) {
        self.heads.clear();
        self.known.clear();
        self.entries.clear();
        self.text.clear();
        self.indices.clear();
        self.slots.clear();
        self.slots.resize(SLOT_COUNT_MIN, FREE);
    }

    /// Takes all values in; false if there are too many different ones for it to pay, or more than `entries_max`.
    pub(super) fn take(&mut self, heads: &[u32], text: &[u8], entries_max: usize) -> bool {
        if heads.len() < VALUES_MIN {
            return false;
        }
        self.clear();
        self.entries_max = entries_max;
        let mut start = 0;
        for (number, head) in heads.iter().enumerate() {
            let length = (head >> 2) as usize;
            if length > VALUE_BYTES_MAX {
                return false;
            }
            let is_again = length > COMPARED_FROM
                && number > 0
                && heads[number - 1] == *head
                && text[start - length..start] == text[start..start + length];
            let index =
                if is_again { self.indices.values.last().copied() } else { self.index_of(*head, &text[start..]) };
            let Some(index) = index else { return false };
            start += length;
            self.indices.values.push(index);
        }
        self.heads.len() * 3 <= heads.len() * 2
    }

    /// The entry of the value at the beginning of `text`, a new one if need be; None if there are too many, or if it takes too long
    /// to find it.
    fn index_of(&mut self, head: u32, text: &[u8]) -> Option<u32> {
        let value = &text[..(head >> 2) as usize];
        let marks = marks(text, value.len());
        let mask = self.slots.len() - 1;
        let mut slot = hash(head, marks) & mask;
        let mut left = PROBES_MAX;
        loop {
            let entry = usize::from(self.slots[slot]);
            if entry == usize::from(FREE) {
                break;
            }
            let known = &self.known[entry];
            // Without a call to compare what is in registers.
            let other_bits = (known.marks[0] ^ marks[0]) | (known.marks[1] ^ marks[1]) | u64::from(known.head ^ head);
            let is_same = other_bits == 0
                && (value.len() <= TOLD_BYTES || self.text[known.start as usize..][..value.len()] == *value);
            if is_same {
                return Some(entry as u32);
            }
            slot = (slot + 1) & mask;
            left = left.checked_sub(1)?;
        }
        let entry = self.heads.len();
        if entry == self.entries_max || entry > self.indices.values.len() * 2 / 3 + SPARE_ENTRIES {
            return None;
        }
        self.slots[slot] = entry as u16;
        self.heads.push(head);
        self.known.push(Known { marks, head, start: self.text.len() as u32 });
        self.text.extend_from_slice(value);
        if self.heads.len() * 2 > self.slots.len() {
            self.widen();
        }
        Some(entry as u32)
    }

    /// Four times as many slots.
    #[cold]
    fn widen(&mut self) {
        let count = self.slots.len() * 4;
        self.slots.clear();
        self.slots.resize(count, FREE);
        for (entry, known) in (0..).zip(&self.known) {
            let mut slot = hash(known.head, known.marks) & (count - 1);
            while self.slots[slot] != FREE {
                slot = (slot + 1) & (count - 1);
            }
            self.slots[slot] = entry;
        }
    }

    /// Appends what was taken.
    pub(super) fn encode(
        &mut self,
        bytes: &mut ByteCoder,
        numbers: &mut NumberCoder,
        text: &mut Text,
        out: &mut Vec<u8>,
    ) {
        numbers.encode_u32(&self.heads, None, out);
        text.store(&self.text, out);
        self.indices.encode(self.heads.len(), bytes, numbers, out);
    }
}

impl Decode for Dictionary {
    fn scratch(decoders: &mut ValueDecoders) -> &mut Self {
        &mut decoders.dictionary
    }

    fn decode_into(
        &mut self,
        decoders: &mut ValueDecoders,
        input: &mut Reader<'_>,
        text: &mut Text,
        heads: &mut Vec<u32>,
    ) -> Decoded<Range<usize>> {
        self.clear();
        decoders.numbers.decode_u32(input, ENTRIES_MAX, None, &mut self.heads)?;
        let range = text.next(input)?;
        let (mut at, end) = (position(range.start)?, position(range.end)?);
        for head in &self.heads {
            self.entries.push([at, *head]);
            at = at.checked_add(head >> 2).ok_or(BAD_ENTRY)?;
        }
        if at != end {
            return Err(BAD_ENTRY);
        }
        let start = text.bytes.len();
        self.indices.decode(self.heads.len(), decoders, input)?;
        self.put_values(&mut decoders.budget, heads, &mut text.bytes)?;
        Ok(start..text.bytes.len())
    }
}

impl Dictionary {
    /// Appends head and value of each index to `heads` and `text`, in which the entries' values stand.
    fn put_values(&self, budget: &mut Budget, heads: &mut Vec<u32>, text: &mut Vec<u8>) -> Decoded<()> {
        let indices = &self.indices.values;
        budget.spend(indices.len(), 4)?;
        let entry = |index: &u32| self.entries[*index as usize];
        let before = heads.len();
        heads.extend(indices.iter().map(|index| entry(index)[1]));
        let total = heads[before..].iter().map(|head| (head >> 2) as usize).sum();
        budget.spend(total, 1)?;
        let end = text.len() + total;
        text.resize(end + SHORT_BYTES, 0);
        let (values, room) = text.split_at_mut(end - total);
        let mut at = 0;
        for [start, head] in indices.iter().map(entry) {
            let (start, length) = (start as usize, (head >> 2) as usize);
            let value = values[start..].first_chunk::<SHORT_BYTES>().filter(|_| length <= SHORT_BYTES);
            match (value, room[at..].first_chunk_mut::<SHORT_BYTES>()) {
                // What is too much is written over.
                (Some(value), Some(room)) => *room = *value,
                _ => room[at..at + length].copy_from_slice(&values[start..start + length]),
            }
            at += length;
        }
        text.truncate(end);
        Ok(())
    }
}

/// As the table of entries has it.
fn position(at: usize) -> Decoded<u32> {
    u32::try_from(at).map_err(|_| BAD_ENTRY)
}

/// Up to this many bytes [`marks`] and the length tell a value.
const TOLD_BYTES: usize = 16;
/// 2^64 by the golden ratio.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// The first eight bytes of the `length` bytes at the beginning of `text`, and the next eight, of which there may be fewer; of longer
/// values a mix of all behind the first.
#[inline]
fn marks(text: &[u8], length: usize) -> [u64; 2] {
    if length <= TOLD_BYTES {
        // What stands behind a value is read, too, and taken away: lengths come in any order, and branches would be guessed wrong.
        let words = text.first_chunk().map_or_else(|| at_the_end(text), |words| u128::from_le_bytes(*words));
        let words = words & MASKS[length];
        return [words as u64, (words >> 64) as u64];
    }
    let value = &text[..length];
    let (words, _) = value.as_chunks::<8>();
    let last = value.last_chunk().map_or(0, |last| u64::from_le_bytes(*last));
    let behind = words[1..].iter().fold(last, |mixed, word| {
        let mixed = (mixed ^ u64::from_le_bytes(*word)).wrapping_mul(MULTIPLIER);
        mixed ^ mixed >> 29
    });
    [u64::from_le_bytes(words[0]), behind]
}

/// All of a text that is shorter than what is read at once.
#[cold]
fn at_the_end(text: &[u8]) -> u128 {
    text.iter().rev().fold(0, |words, byte| words << 8 | u128::from(*byte))
}

/// By length, the bits that are of a value.
static MASKS: [u128; TOLD_BYTES + 1] = {
    let mut masks = [0; TOLD_BYTES + 1];
    let mut length = 1;
    while length <= TOLD_BYTES {
        masks[length] = u128::MAX >> (8 * (TOLD_BYTES - length));
        length += 1;
    }
    masks
};

/// Mixes length and marks of a value.
#[inline]
pub(super) fn hash(head: u32, [first, last]: [u64; 2]) -> usize {
    let mixed = (first ^ last.rotate_left(29) ^ u64::from(head)).wrapping_mul(MULTIPLIER);
    (mixed >> 50) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entropy::Effort;

    /// Of each number a head and a value: of every form, empty to longer than what is copied without a call.
    fn column(numbers: impl Iterator<Item = u32>) -> (Vec<u32>, Vec<u8>) {
        let (mut heads, mut text) = (Vec::new(), Vec::new());
        for number in numbers {
            let value = format!("{number}, {}", "long ".repeat(number as usize % 12));
            let value = if number == 0 { "" } else { &value[..value.len() - 2] };
            heads.push((value.len() as u32) << 2 | (number % 3));
            text.extend_from_slice(value.as_bytes());
        }
        (heads, text)
    }

    fn come_back(heads: &[u32], text: &[u8]) -> usize {
        let mut dictionary = Dictionary::default();
        assert!(dictionary.take(heads, text, ENTRIES_MAX));
        let (mut stored_text, mut out) = (Text::default(), Vec::new());
        let (mut bytes, mut numbers) = (ByteCoder::new(Effort::Default), NumberCoder::new(Effort::Default));
        dictionary.encode(&mut bytes, &mut numbers, &mut stored_text, &mut out);
        stored_text.seal();
        let mut decoders = ValueDecoders::new();
        decoders.budget = Budget::of(heads.len() * 8 + text.len());
        let (mut reader, mut back) = (Reader::new(&out), Vec::new());
        let range = Dictionary::default().decode_into(&mut decoders, &mut reader, &mut stored_text, &mut back).unwrap();
        assert!(reader.is_empty() && back == heads && stored_text.bytes[range] == *text);
        out.len() + dictionary.text.len()
    }

    #[test]
    fn values_that_return_are_stored_once() {
        for entries in [2, 200, 255, 256, 600, 3000, 8192_u32] {
            // A new one, and two that were there.
            let numbers = (0..3 * entries + 100).map(|at| match at % 3 {
                0 => at / 3 % entries,
                _ => at.wrapping_mul(2_654_435_761) % (at / 3 + 1).min(entries),
            });
            let (heads, text) = column(numbers);
            assert!(come_back(&heads, &text) < text.len(), "{entries}");
        }
    }

    /// Otherwise each is looked for behind all others: names in paths and in addresses.
    #[test]
    fn values_that_begin_and_end_alike_are_looked_for_in_different_places() {
        for (before, behind) in
            [("https://example.org/", "/index.html"), ("identical", ""), ("", "identical and longer")]
        {
            let mut slots: Vec<usize> = (0..4000)
                .map(|number| format!("{before}{number:06}{behind}"))
                .map(|value| hash(value.len() as u32, marks(value.as_bytes(), value.len())))
                .collect();
            slots.sort_unstable();
            slots.dedup();
            assert!(slots.len() > 2000, "{before} {behind} {}", slots.len());
        }
    }

    /// What the multiplication makes of the first eight bytes is made undone by the last.
    #[test]
    fn values_of_one_hash_are_given_up() {
        let numbers = (0..2000_u64).map(|first| [first, first.rotate_right(29)].map(u64::to_le_bytes).concat());
        let text = numbers.flatten().collect::<Vec<u8>>().repeat(3);
        assert!(!Dictionary::default().take(&vec![16 << 2; 6000], &text, ENTRIES_MAX));
    }

    /// Whatever stands behind a value, and whether it came right before, it is the same one.
    #[test]
    fn each_value_has_one_entry() {
        let values: Vec<Vec<u8>> = (0..60).flat_map(|length| [vec![b'a'; length], vec![b'b'; length]]).collect();
        let order = (0..3000_usize).map(|at| if at % 5 < 2 { at / 5 % 120 } else { at * 7 % 120 }).chain(0..120);
        for last in 0..120 {
            let order: Vec<usize> = order.clone().chain([last]).collect();
            let heads: Vec<u32> = order.iter().map(|number| (values[*number].len() as u32) << 2 | 1).collect();
            let text: Vec<u8> = order.iter().flat_map(|number| values[*number].iter().copied()).collect();
            let mut dictionary = Dictionary::default();
            assert!(dictionary.take(&heads, &text, ENTRIES_MAX));
            // Of the two that have no byte there is one.
            assert_eq!(dictionary.heads.len(), 119);
        }
    }

    #[test]
    fn values_that_differ_are_none() {
        for entries in [100, 2000, 100_000_u32] {
            let (heads, text) = column(0..entries);
            assert!(!Dictionary::default().take(&heads, &text, ENTRIES_MAX));
            let (heads, text) = column((0..entries).chain(0..entries / 3));
            assert!(!Dictionary::default().take(&heads, &text, ENTRIES_MAX));
        }
    }

    #[test]
    fn an_index_beyond_the_entries_is_damage() {
        for (entries, index) in [(200_u32, 200), (300, 300)] {
            let mut numbers = NumberCoder::new(Effort::Default);
            let mut out = Vec::new();
            numbers.encode_u32(&vec![4; entries as usize], None, &mut out);
            let mut text = Text::default();
            text.store(&vec![b'x'; entries as usize], &mut out);
            text.seal();
            match u8::try_from(index) {
                Ok(index) => ByteCoder::new(Effort::Default).encode(&[0, index, 1], &mut out),
                Err(_) => numbers.encode_u32(&[0, index, 1], None, &mut out),
            }
            let mut decoders = ValueDecoders::new();
            decoders.budget = Budget::of(1000);
            let decoded =
                Dictionary::default().decode_into(&mut decoders, &mut Reader::new(&out), &mut text, &mut Vec::new());
            assert_eq!(decoded, Err(BAD_ENTRY));
        }
    }
}
