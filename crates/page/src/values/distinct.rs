//! Values of eight or sixteen bytes of which there are few different ones in any order: keys of other tables, most often.
//!
//! Coders of numbers see how near values are to one another, and keys that are random, uuids or numbers of many bits, are not.

use super::{Budget, ValueDecoders};
use crate::entropy::{ByteCoder, NumberCoder, Reader};
use crate::error::{Damaged, Decoded};

/// The most entries.
const ENTRIES_MAX: usize = 8192;
/// Up to this many entries an index is a byte, as in dictionaries of texts.
const NARROW_ENTRIES_MAX: usize = 255;
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

/// The different values of one column, and which one each value is.
#[derive(Debug, Default)]
pub(super) struct Distinct {
    /// Of values of eight bytes only the first.
    entries: [Vec<u64>; 2],
    indices: Vec<u32>,
    /// The indices of at most [`NARROW_ENTRIES_MAX`] entries.
    narrow: Vec<u8>,
    slots: Vec<u16>,
}

impl Distinct {
    fn clear(&mut self) {
        self.entries.iter_mut().for_each(Vec::clear);
        self.indices.clear();
        self.narrow.clear();
    }

    /// Takes all values in, one stream or two; false if they hardly ever return, or if it would not pay.
    pub(super) fn take(&mut self, streams: &[&[u64]]) -> bool {
        let first = streams[0];
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
            self.indices.push(index);
        }
        true
    }

    /// The entry of the value at `place`, a new one if need be; None if there are too many.
    #[inline]
    fn index_of(&mut self, streams: &[&[u64]], place: usize, entries_max: usize) -> Option<u32> {
        let value = streams[0][place];
        let mut slot = hash(value) % SLOT_COUNT;
        loop {
            let entry = usize::from(self.slots[slot]);
            if entry == usize::from(FREE) {
                break;
            }
            if streams.iter().zip(&self.entries).all(|(stream, entries)| stream[place] == entries[entry]) {
                return Some(entry as u32);
            }
            slot = (slot + 1) % SLOT_COUNT;
        }
        let entry = self.entries[0].len();
        if entry == entries_max {
            return None;
        }
        self.slots[slot] = entry as u16;
        streams.iter().zip(&mut self.entries).for_each(|(stream, entries)| entries.push(stream[place]));
        Some(entry as u32)
    }

    fn is_narrow(&self) -> bool {
        self.entries[0].len() <= NARROW_ENTRIES_MAX
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
        if self.is_narrow() {
            self.narrow.extend(self.indices.iter().map(|index| *index as u8));
            bytes.encode(&self.narrow, out);
        } else {
            numbers.encode_u32(&self.indices, None, out);
        }
    }

    /// Appends the next values of `input` to as many streams as they have.
    pub(super) fn decode(
        &mut self,
        decoders: &mut ValueDecoders,
        input: &mut Reader<'_>,
        streams: &mut [&mut Vec<u64>],
    ) -> Decoded<()> {
        self.clear();
        for entries in &mut self.entries[..streams.len()] {
            decoders.numbers.decode_u64(input, ENTRIES_MAX, None, entries)?;
        }
        if self.is_narrow() {
            decoders.decode_bytes(input, &mut self.narrow)?;
            self.put_values(&self.narrow, &mut decoders.budget, streams)
        } else {
            decoders.numbers.decode_u32(input, decoders.budget.count(4), None, &mut self.indices)?;
            self.put_values(&self.indices, &mut decoders.budget, streams)
        }
    }

    fn put_values<I: Copy + Ord + Into<u32>>(
        &self,
        indices: &[I],
        budget: &mut Budget,
        streams: &mut [&mut Vec<u64>],
    ) -> Decoded<()> {
        let Some(most) = indices.iter().copied().max() else { return Ok(()) };
        budget.spend(indices.len(), 8 * streams.len())?;
        for (stream, entries) in streams.iter_mut().zip(&self.entries) {
            let entries = entries.get(..=most.into() as usize).ok_or(BAD_ENTRY)?;
            stream.extend(indices.iter().map(|index| entries[(*index).into() as usize]));
        }
        Ok(())
    }
}

const BAD_ENTRY: Damaged = Damaged("a dictionary of numbers does not have the entries that it says");

fn hash(value: u64) -> usize {
    (value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize
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
        let slot = &mut slots[hash(*value) % SAMPLE_SLOT_COUNT];
        // Of long runs there are few numbers anyway.
        again += usize::from(*slot == *value && *value != last);
        (*slot, last) = (*value, *value);
    }
    again >= SAMPLE_AGAIN_MIN
}

#[cfg(test)]
mod tests {
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

    fn stored(streams: &[&[u64]]) -> Option<Vec<u8>> {
        let (mut distinct, mut out) = (Distinct::default(), Vec::new());
        let (mut bytes, mut numbers) = (ByteCoder::new(Effort::Default), NumberCoder::new(Effort::Default));
        distinct.take(streams).then(|| {
            distinct.encode(streams.len(), &mut bytes, &mut numbers, &mut out);
            out
        })
    }

    fn decode(stored: &[u8], count: usize, streams: &mut [&mut Vec<u64>]) -> Decoded<()> {
        let mut decoders = ValueDecoders::new();
        decoders.budget = Budget::of(count * 8);
        Distinct::default().decode(&mut decoders, &mut Reader::new(stored), streams)
    }

    #[test]
    fn keys_that_return_are_stored_once() {
        for different in [2, 200, 255, 256, 3000, 8000] {
            let first = keys(40_000, different);
            let second: Vec<u64> = first.iter().map(|key| !key).collect();
            let (mut one, mut two) = (Vec::new(), Vec::new());
            let single = stored(&[&first]).expect("they return");
            assert!(single.len() < 40_000 * 2 + different as usize * 8, "{different} {}", single.len());
            decode(&single, 40_000, &mut [&mut one]).unwrap();
            assert!(one == first);
            one.clear();
            let double = stored(&[&first, &second]).expect("they return");
            decode(&double, 40_000, &mut [&mut one, &mut two]).unwrap();
            assert!(one == first && two == second);
            assert!(decode(&double, 10_000, &mut [&mut one, &mut two]).is_err());
            for end in (0..double.len()).step_by(97) {
                assert!(decode(&double[..end], 40_000, &mut [&mut one, &mut two]).is_err());
            }
        }
    }

    #[test]
    fn halves_that_are_alike_do_not_make_values_alike() {
        let first = keys(1000, 3);
        let second = keys(1000, 1 << 30);
        assert_eq!(stored(&[&first, &second]), None);
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
    fn an_index_beyond_the_entries_is_damage() {
        for (entries, index) in [(200_u32, 200), (300, 300)] {
            let (mut numbers, mut out) = (NumberCoder::new(Effort::Default), Vec::new());
            numbers.encode_u64(&vec![4; entries as usize], None, &mut out);
            match u8::try_from(index) {
                Ok(index) => ByteCoder::new(Effort::Default).encode(&[0, index, 1], &mut out),
                Err(_) => numbers.encode_u32(&[0, index, 1], None, &mut out),
            }
            assert_eq!(decode(&out, 1000, &mut [&mut Vec::new()]), Err(BAD_ENTRY));
        }
    }
}
