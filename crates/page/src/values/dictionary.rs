//! Values of variable length of which there are few different ones.

use std::ops::Range;

use super::{Decode, Text, ValueDecoders};
use crate::entropy::{ByteCoder, NumberCoder, Reader};
use crate::error::{Damaged, Decoded};

/// The most entries: an index is a byte.
const ENTRIES_MAX: usize = 255;
/// Longer values are left to zstd.
const VALUE_BYTES_MAX: usize = 255;
/// With fewer values a dictionary does not pay.
const VALUES_MIN: usize = 48;
/// Slots of the table in which values are looked up; a power of two.
const SLOT_COUNT: usize = 1024;
/// A slot that is free.
const FREE: u16 = u16::MAX;

/// The different values of one column, and which one each value is.
#[derive(Debug, Default)]
pub(super) struct Dictionary {
    heads: Vec<u32>,
    /// First and last bytes of each entry, see [`ends`].
    ends: Vec<[u64; 2]>,
    /// Where each entry starts in `text`, and where the last one ends.
    starts: Vec<u32>,
    text: Vec<u8>,
    indices: Vec<u8>,
    slots: Vec<u16>,
}

impl Dictionary {
    fn clear(&mut self) {
        self.heads.clear();
        self.ends.clear();
        self.starts.clear();
        self.text.clear();
        self.indices.clear();
        self.slots.clear();
        self.slots.resize(SLOT_COUNT, FREE);
        self.starts.push(0);
    }

    /// Takes all values in; false if there are too many different ones for it to pay.
    pub(super) fn take(&mut self, heads: &[u32], text: &[u8]) -> bool {
        if heads.len() < VALUES_MIN {
            return false;
        }
        self.clear();
        let mut start = 0;
        for (number, head) in heads.iter().enumerate() {
            let length = (head >> 2) as usize;
            if length > VALUE_BYTES_MAX {
                return false;
            }
            let value = &text[start..start + length];
            start += length;
            let Some(index) = self.index_of(*head, value) else { return false };
            self.indices.push(index);
            // A column whose values mostly differ shows that soon.
            if number == VALUES_MIN && self.heads.len() > VALUES_MIN * 2 / 3 {
                return false;
            }
        }
        self.heads.len() * 4 <= heads.len()
    }

    /// The entry of a value, a new one if need be; None if there are too many.
    fn index_of(&mut self, head: u32, value: &[u8]) -> Option<u8> {
        let ends = ends(value);
        let mut slot = hash(head, ends) & (SLOT_COUNT - 1);
        loop {
            let entry = usize::from(self.slots[slot]);
            if entry == usize::from(FREE) {
                break;
            }
            let is_known = self.heads[entry] == head
                && self.ends[entry] == ends
                && (value.len() <= ENDS_BYTES
                    || self.text[self.starts[entry] as usize..self.starts[entry + 1] as usize] == *value);
            if is_known {
                return Some(entry as u8);
            }
            slot = (slot + 1) & (SLOT_COUNT - 1);
        }
        let entry = self.heads.len();
        if entry == ENTRIES_MAX {
            return None;
        }
        self.slots[slot] = entry as u16;
        self.heads.push(head);
        self.ends.push(ends);
        self.text.extend_from_slice(value);
        self.starts.push(self.text.len() as u32);
        Some(entry as u8)
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
        bytes.encode(&self.indices, out);
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
        let entries = text.next(input)?;
        let mut end = 0u32;
        for head in &self.heads {
            end = end.checked_add(head >> 2).ok_or(BAD_ENTRY)?;
            self.starts.push(end);
        }
        if end as usize != entries.len() {
            return Err(BAD_ENTRY);
        }
        decoders.decode_bytes(input, &mut self.indices)?;
        decoders.budget.spend(self.indices.len(), 4)?;
        let most = self.indices.iter().copied().max().map_or(0, usize::from);
        if most >= self.heads.len() && !self.indices.is_empty() {
            return Err(BAD_ENTRY);
        }
        let mut table = [0u32; ENTRIES_MAX + 1];
        table[..self.heads.len()].copy_from_slice(&self.heads);
        heads.extend(self.indices.iter().map(|index| table[usize::from(*index)]));
        let total = self.indices.iter().map(|index| (table[usize::from(*index)] >> 2) as usize).sum();
        decoders.budget.spend(total, 1)?;
        let start = text.bytes.len();
        self.append_values(entries.start, total, &mut text.bytes);
        Ok(start..text.bytes.len())
    }
}

impl Dictionary {
    /// Appends the value of each index, `total` bytes, to `text`, in which the entries stand from `entries_at` on.
    fn append_values(&self, entries_at: usize, total: usize, text: &mut Vec<u8>) {
        let mut short = [([0u8; SHORT_BYTES], SHORT_BYTES + 1); ENTRIES_MAX + 1];
        for ((value, length), place) in short.iter_mut().zip(self.starts.windows(2)) {
            *length = (place[1] - place[0]) as usize;
            if *length <= SHORT_BYTES {
                let start = entries_at + place[0] as usize;
                value[..*length].copy_from_slice(&text[start..start + *length]);
            }
        }
        text.reserve(total + SHORT_BYTES);
        for index in &self.indices {
            let entry = usize::from(*index);
            let (value, length) = &short[entry];
            if *length <= SHORT_BYTES {
                // A copy of fixed length is two moves; what is too much is cut off.
                let end = text.len() + length;
                text.extend_from_slice(value);
                text.truncate(end);
            } else {
                let start = entries_at + self.starts[entry] as usize;
                text.extend_from_within(start..start + length);
            }
        }
    }
}

/// Up to this many bytes a value is copied without a call.
const SHORT_BYTES: usize = 32;

const BAD_ENTRY: Damaged = Damaged("a dictionary does not have the entries that it says");

/// Up to this many bytes [`ends`] and the length tell a value.
const ENDS_BYTES: usize = 16;

/// The first and the last eight bytes of a value, of which there may be fewer.
#[inline]
fn ends(value: &[u8]) -> [u64; 2] {
    if let (Some(first), Some(last)) = (value.first_chunk::<8>(), value.last_chunk::<8>()) {
        return [u64::from_le_bytes(*first), u64::from_le_bytes(*last)];
    }
    if let (Some(first), Some(last)) = (value.first_chunk::<4>(), value.last_chunk::<4>()) {
        return [u64::from(u32::from_le_bytes(*first)), u64::from(u32::from_le_bytes(*last))];
    }
    [value.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)), 0]
}

/// Mixes length and ends of a value: what differs between the values of a column mostly differs there.
#[inline]
fn hash(head: u32, [first, last]: [u64; 2]) -> usize {
    let mixed = (first ^ last.rotate_left(29) ^ u64::from(head)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 50) as usize
}
