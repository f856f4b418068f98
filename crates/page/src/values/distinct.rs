//! Values of eight or sixteen bytes of which there are few different ones in any order: keys of other tables, most often.
//!
//! Coders of numbers see how near values are to one another, and keys that are random, uuids or numbers of many bits, are not.

use super::ValueDecoders;
use super::dictionary::hash;
use super::indices::{BAD_ENTRY, ENTRIES_MAX, Indices, PROBES_MAX};
use crate::entropy::{ByteCoder, NumberCoder, Reader};
use crate::error::Decoded;
use crate::stream::Stream;

/// With fewer values a dictionary does not pay.
const VALUES_MIN: usize = 48;
/// How many values are looked at first, or half as many at least: of 8192 different ones in any order four to sixteen are the same as another.
const SAMPLE_COUNT: usize = 512;
const SAMPLE_AGAIN_MIN: usize = 3;
/// Whole numbers that lie nearer to one another take about as few bits as an index.
const RANGE_MIN: u64 = 1 << 20;
/// Slots of the table in which values are looked up: twice as many as entries. Of the sample's: four times.
const SLOT_COUNT: usize = 2 * ENTRIES_MAX;
const SAMPLE_SLOT_COUNT: usize = 4 * SAMPLE_COUNT;
/// A slot that is free.
const FREE: u16 = u16::MAX;

/// The different values of one column, and which one each value is. Values are of one stream or of two.
#[derive(Debug, Default)]
pub(super) struct Distinct {
    /// Of values of one stream only the first.
    entries: [Vec<u64>; 2],
    indices: Indices,
    slots: Vec<u16>,
}

impl Distinct {
    fn clear(&mut self) {
        self.entries.iter_mut().for_each(Vec::clear);
        self.indices.clear();
    }

    /// Takes all values in; false if they hardly ever return, or if it would not pay.
    pub(super) fn take(&mut self, streams: &[Stream<u64>]) -> bool {
        let first = &streams[0].values;
        if first.len() < VALUES_MIN || !may_return(first) {
            return false;
        }
        self.clear();
        self.slots.clear();
        self.slots.resize(SLOT_COUNT, FREE);
        // A value that stands twice on the mean saves nothing.
        let entries_max = ENTRIES_MAX.min(first.len() / 3);
        for place in 0..first.len() {
            let Some(index) = self.index_of(streams, place, entries_max) else { return false };
            self.indices.values.push(index);
        }
        true
    }

    /// The entry of the value at `place`, a new one if need be; None if there are too many, or if it takes too long to find it.
    #[inline]
    fn index_of(&mut self, streams: &[Stream<u64>], place: usize, entries_max: usize) -> Option<u32> {
        let mut slot = slot_of(streams[0].values[place], streams.get(1).map_or(0, |second| second.values[place]));
        let mut left = PROBES_MAX;
        loop {
            let entry = usize::from(self.slots[slot]);
            if entry == usize::from(FREE) {
                break;
            }
            if streams.iter().zip(&self.entries).all(|(stream, entries)| stream.values[place] == entries[entry]) {
                return Some(entry as u32);
            }
            slot = (slot + 1) % SLOT_COUNT;
            left = left.checked_sub(1)?;
        }
        let entry = self.entries[0].len();
        if entry == entries_max {
            return None;
        }
        self.slots[slot] = entry as u16;
        streams.iter().zip(&mut self.entries).for_each(|(stream, entries)| entries.push(stream.values[place]));
        Some(entry as u32)
    }

    /// Appends what was taken of so many streams.
    pub(super) fn encode(
        &mut self,
        stream_count: usize,
        bytes: &mut ByteCoder,
        numbers: &mut NumberCoder,
        out: &mut Vec<u8>,
    ) {
        for entries in &self.entries[..stream_count] {
            numbers.encode_u64(entries, None, out);
        }
        self.indices.encode(self.entries[0].len(), bytes, numbers, out);
    }

    /// Appends the next values of `input` to their streams.
    pub(super) fn decode(
        &mut self,
        decoders: &mut ValueDecoders,
        input: &mut Reader<'_>,
        streams: &mut [Stream<u64>],
    ) -> Decoded<()> {
        self.clear();
        let all_entries = &mut self.entries[..streams.len()];
        for entries in &mut *all_entries {
            decoders.numbers.decode_u64(input, ENTRIES_MAX, None, entries)?;
        }
        let count = all_entries[0].len();
        if all_entries.iter().any(|entries| entries.len() != count) {
            return Err(BAD_ENTRY);
        }
        self.indices.decode(count, decoders, input)?;
        let indices = &self.indices.values;
        decoders.budget.spend(indices.len(), 8 * streams.len())?;
        for (stream, entries) in streams.iter_mut().zip(all_entries) {
            stream.values.extend(indices.iter().map(|index| entries[*index as usize]));
        }
        Ok(())
    }
}

/// Where a value of one or two halves is looked for. Many values may have one half: uuids that begin with a time, or with whose they are.
#[inline]
fn slot_of(first: u64, second: u64) -> usize {
    hash(0, [first, second]) % SLOT_COUNT
}

/// Whether a sample of values from all over the column has some more than once, in any order and far from one another.
fn may_return(values: &[u64]) -> bool {
    let step = values.len().div_ceil(SAMPLE_COUNT);
    let sample = || values.iter().step_by(step);
    let (least, most) = sample().fold((u64::MAX, 0), |(least, most), value| (least.min(*value), most.max(*value)));
    if most - least < RANGE_MIN {
        return false;
    }
    let mut slots = [0_u64; SAMPLE_SLOT_COUNT];
    let (mut again, mut last) = (0, values[0]);
    for value in sample() {
        let slot = &mut slots[slot_of(*value, 0) % SAMPLE_SLOT_COUNT];
        // Of long runs there are few numbers anyway.
        again += usize::from(*slot == *value && *value != last);
        (*slot, last) = (*value, *value);
    }
    again >= SAMPLE_AGAIN_MIN
}

#[cfg(test)]
mod tests {
    use super::super::Budget;
    use super::*;
    use crate::entropy::Effort;

    fn keys(count: usize, different: u64) -> Vec<u64> {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        (0..count).map(|_| (next() % different + 1).wrapping_mul(0xd129_0d3b_3a8e_47f5)).collect()
    }

    fn streams(values: &[&[u64]]) -> Vec<Stream<u64>> {
        let stream_of = |values: &&[u64]| {
            let mut stream = Stream::default();
            stream.values.extend_from_slice(values);
            stream
        };
        values.iter().map(stream_of).collect()
    }

    fn stored(values: &[&[u64]]) -> Option<Vec<u8>> {
        let (mut distinct, mut out) = (Distinct::default(), Vec::new());
        let (mut bytes, mut numbers) = (ByteCoder::new(Effort::Default), NumberCoder::new(Effort::Default));
        distinct.take(&streams(values)).then(|| {
            distinct.encode(values.len(), &mut bytes, &mut numbers, &mut out);
            out
        })
    }

    /// The values of `stream_count` streams, one behind the other, of a frame that may have `count` of them.
    fn decode(stored: &[u8], count: usize, stream_count: usize) -> Decoded<Vec<Vec<u64>>> {
        let mut decoders = ValueDecoders::new();
        decoders.budget = Budget::of(count * 8);
        let mut streams = streams(&[&[][..]; 2][..stream_count]);
        Distinct::default().decode(&mut decoders, &mut Reader::new(stored), &mut streams)?;
        Ok(streams.into_iter().map(|stream| stream.values).collect())
    }

    #[test]
    fn keys_that_return_are_stored_once() {
        for different in [2, 200, 255, 256, 3000, 8000] {
            let first = keys(40_000, different);
            let second: Vec<u64> = first.iter().map(|key| !key).collect();
            let single = stored(&[&first]).expect("they return");
            assert!(single.len() < 40_000 * 2 + different as usize * 8, "{different} {}", single.len());
            assert_eq!(decode(&single, 40_000, 1), Ok(vec![first.clone()]));
            let double = stored(&[&first, &second]).expect("they return");
            assert_eq!(decode(&double, 40_000, 2), Ok(vec![first, second]));
            assert!(decode(&double, 10_000, 2).is_err());
            for end in (0..double.len()).step_by(97) {
                assert!(decode(&double[..end], 40_000, 2).is_err());
            }
        }
    }

    #[test]
    fn halves_that_are_alike_do_not_make_values_alike() {
        let first = keys(1000, 3);
        let second = keys(1000, 1 << 30);
        assert_eq!(stored(&[&first, &second]), None);
    }

    /// Otherwise each is looked for behind all that share the half.
    #[test]
    fn values_with_one_half_in_common_are_looked_for_in_different_places() {
        for half in [0, 7, u64::MAX, 0x0190_1234_5678_7000] {
            for other in [keys(4000, 1 << 30), (0..4000).collect(), (0..4000).map(|at| at << 44).collect()] {
                let places = |slot: &dyn Fn(u64) -> usize| {
                    let mut slots: Vec<usize> = other.iter().map(|other| slot(*other)).collect();
                    slots.sort_unstable();
                    slots.dedup();
                    slots.len()
                };
                assert!(places(&|other| slot_of(half, other)) > 2000, "{half:x}");
                assert!(places(&|other| slot_of(other, half)) > 2000, "{half:x}");
            }
        }
    }

    #[test]
    fn values_that_do_not_return_are_near_or_run_are_none() {
        let runs: Vec<u64> = keys(100, 1 << 30).iter().flat_map(|key| [*key; 100]).collect();
        let near = (0..10_000).map(|at: u64| at.wrapping_mul(0x9e37_79b9) % 5000).collect();
        for values in [keys(10_000, 1 << 30), runs, near, keys(VALUES_MIN - 1, 2), vec![7; 1000], Vec::new()] {
            assert_eq!(stored(&[&values]), None);
        }
    }

    #[test]
    fn an_index_beyond_the_entries_and_halves_without_others_are_damage() {
        for (entries, index) in [(200_u32, 200), (300, 300)] {
            let (mut numbers, mut out) = (NumberCoder::new(Effort::Default), Vec::new());
            numbers.encode_u64(&vec![4; entries as usize], None, &mut out);
            match u8::try_from(index) {
                Ok(index) => ByteCoder::new(Effort::Default).encode(&[0, index, 1], &mut out),
                Err(_) => numbers.encode_u32(&[0, index, 1], None, &mut out),
            }
            assert_eq!(decode(&out, 1000, 1), Err(BAD_ENTRY));
            let (mut halves, mut bytes) = (Vec::new(), ByteCoder::new(Effort::Default));
            numbers.encode_u64(&[4; 9], None, &mut halves);
            numbers.encode_u64(&[4; 8], None, &mut halves);
            bytes.encode(&[0, 1], &mut halves);
            assert_eq!(decode(&halves, 1000, 2), Err(BAD_ENTRY));
        }
    }
}
