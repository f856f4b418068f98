//! Huffman decoding: one table look-up per byte, four streams of bits side by side.

use super::bits::{load, window};
use super::huffman::{
    FOUR_STREAMS_FROM, LENGTH_BEFORE, LENGTH_MAX, LENGTH_SMALL, Present, TABLE_BITMAP, TABLE_LIST, TABLE_SPAN,
    first_codes, reversed,
};
use super::reader::Reader;
use crate::error::{Damaged, Decoded};

const ENTRIES: usize = 1 << LENGTH_MAX;

/// The table of the stream being decoded: for the next bits the symbol, and from bit 8 on the length of its code.
pub(super) struct HuffmanDecoder {
    entries: Box<[u16; ENTRIES]>,
}

impl HuffmanDecoder {
    pub(super) fn new() -> Self {
        HuffmanDecoder { entries: Box::new([0; ENTRIES]) }
    }

    /// Fills `values` from `input`.
    pub(super) fn decode(&mut self, input: &mut Reader<'_>, values: &mut [u8]) -> Decoded<()> {
        let present = read_table(input)?;
        let length_max = self.fill(&present)?;
        if values.len() < FOUR_STREAMS_FROM {
            let size = input.count(usize::MAX)?;
            let mut lane = Lane::new(input.take(size)?);
            if length_max <= LENGTH_SMALL {
                lane.rest::<LENGTH_SMALL>(&self.entries, values);
            } else {
                lane.rest::<LENGTH_MAX>(&self.entries, values);
            }
            return lane.finish();
        }
        let mut sizes = [0; 4];
        for size in &mut sizes {
            *size = input.count(usize::MAX)?;
        }
        let mut lanes = [Lane::new(&[]), Lane::new(&[]), Lane::new(&[]), Lane::new(&[])];
        for (lane, size) in lanes.iter_mut().zip(sizes) {
            *lane = Lane::new(input.take(size)?);
        }
        if length_max <= LENGTH_SMALL {
            decode_four::<LENGTH_SMALL, 7>(&self.entries, lanes, values)
        } else {
            decode_four::<LENGTH_MAX, 5>(&self.entries, lanes, values)
        }
    }

    /// Fills the table, as much of it as the lengths need; the longest of them.
    fn fill(&mut self, present: &Present) -> Decoded<u32> {
        let mut used = 0_usize;
        let mut length_max = 0;
        for length in present.lengths() {
            let length = u32::from(*length);
            if length > LENGTH_MAX {
                return Err(Damaged("a Huffman code is too long"));
            }
            used += ENTRIES >> length;
            length_max = length_max.max(length);
        }
        if used != ENTRIES {
            return Err(Damaged("a Huffman code is not complete"));
        }
        let size = 1_usize << if length_max <= LENGTH_SMALL { LENGTH_SMALL } else { LENGTH_MAX };
        let entries = &mut self.entries[..size];
        let mut next = first_codes(present.lengths());
        for (symbol, length) in present.symbols().iter().zip(present.lengths()) {
            let code = reversed(next[usize::from(*length)], u32::from(*length)) as usize;
            next[usize::from(*length)] += 1;
            let entry = u16::from(*symbol) | u16::from(*length) << 8;
            entries[code..].iter_mut().step_by(1 << length).for_each(|place| *place = entry);
        }
        Ok(length_max)
    }
}

fn read_table(input: &mut Reader<'_>) -> Decoded<Present> {
    match input.u8()? {
        TABLE_LIST => {
            let count = usize::from(input.u8()?) + 1;
            let symbols = input.take(count)?;
            if symbols.windows(2).any(|pair| pair[0] >= pair[1]) {
                return Err(Damaged("the symbols of a Huffman table are not in order"));
            }
            read_differences(input, symbols.iter().copied())
        }
        TABLE_SPAN => {
            let (first, last) = (input.u8()?, input.u8()?);
            read_differences(input, (usize::from(first)..usize::from(last) + 1).map(|symbol| symbol as u8))
        }
        TABLE_BITMAP => {
            let bitmap = input.take(32)?;
            let present = (0..=255_u8).filter(|symbol| bitmap[usize::from(symbol >> 3)] >> (symbol & 7) & 1 == 1);
            read_differences(input, present)
        }
        _ => Err(Damaged("a Huffman table of an unknown form")),
    }
}

fn read_differences(input: &mut Reader<'_>, symbols: impl Iterator<Item = u8>) -> Decoded<Present> {
    let bytes = input.rest();
    let mut bit = 0;
    let mut length = LENGTH_BEFORE as u8;
    let mut present = Present::new();
    for symbol in symbols {
        let next = window(bytes, bit);
        let (change, bits) = match next & 7 {
            0b111 => (((next >> 3 & 15) as u8).wrapping_sub(length), 7),
            0b011 => (255, 3),
            0b001 | 0b101 => (1, 2),
            _ => (0, 1),
        };
        length = length.wrapping_add(change) & 15;
        bit += bits;
        present.push(symbol, length);
    }
    input.take(bit.div_ceil(8)).map(|_| present)
}

/// One stream of bits.
struct Lane<'a> {
    bytes: &'a [u8],
    at: usize,
    bits: u64,
    have: u32,
}

impl<'a> Lane<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Lane { bytes, at: 0, bits: 0, have: 0 }
    }

    /// At least 56 bits afterwards; zeros beyond the end.
    #[inline(always)]
    fn refill(&mut self) {
        self.bits |= load(self.bytes, self.at) << self.have;
        self.at += ((63 - self.have) >> 3) as usize;
        self.have |= 56;
    }

    #[inline(always)]
    fn next<const LENGTH: u32>(&mut self, entries: &[u16; ENTRIES]) -> u8 {
        let entry = entries[(self.bits & ((1 << LENGTH) - 1)) as usize];
        let length = u32::from(entry >> 8);
        self.bits >>= length & 63;
        self.have = self.have.wrapping_sub(length) & 63;
        entry as u8
    }

    fn rest<const LENGTH: u32>(&mut self, entries: &[u16; ENTRIES], values: &mut [u8]) {
        for value in values {
            self.refill();
            *value = self.next::<LENGTH>(entries);
        }
    }

    /// All bits must have been used, and no more.
    fn finish(self) -> Decoded<()> {
        let used = self.at * 8 - self.have as usize;
        if used.div_ceil(8) == self.bytes.len() { Ok(()) } else { Err(Damaged("a Huffman stream has another length")) }
    }
}

fn decode_four<const LENGTH: u32, const PER: usize>(
    entries: &[u16; ENTRIES],
    lanes: [Lane<'_>; 4],
    values: &mut [u8],
) -> Decoded<()> {
    let [mut one, mut two, mut three, mut four] = lanes;
    let quarter = values.len().div_ceil(4);
    let (first, rest) = values.split_at_mut(quarter);
    let (second, rest) = rest.split_at_mut(quarter);
    let (third, fourth) = rest.split_at_mut(quarter);
    let (ones, first) = first.as_chunks_mut::<PER>();
    let (twos, second) = second.as_chunks_mut::<PER>();
    let (threes, third) = third.as_chunks_mut::<PER>();
    let (fours, fourth) = fourth.as_chunks_mut::<PER>();
    let together = fours.len();
    let (ones, first_groups) = ones.split_at_mut(together);
    let (twos, second_groups) = twos.split_at_mut(together);
    let (threes, third_groups) = threes.split_at_mut(together);
    for (((a, b), c), d) in ones.iter_mut().zip(twos).zip(threes).zip(fours) {
        one.refill();
        two.refill();
        three.refill();
        four.refill();
        for at in 0..PER {
            a[at] = one.next::<LENGTH>(entries);
            b[at] = two.next::<LENGTH>(entries);
            c[at] = three.next::<LENGTH>(entries);
            d[at] = four.next::<LENGTH>(entries);
        }
    }
    one.rest::<LENGTH>(entries, first_groups.as_flattened_mut());
    one.rest::<LENGTH>(entries, first);
    two.rest::<LENGTH>(entries, second_groups.as_flattened_mut());
    two.rest::<LENGTH>(entries, second);
    three.rest::<LENGTH>(entries, third_groups.as_flattened_mut());
    three.rest::<LENGTH>(entries, third);
    four.rest::<LENGTH>(entries, fourth);
    for lane in [one, two, three, four] {
        lane.finish()?;
    }
    Ok(())
}
