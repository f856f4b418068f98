//! Numerics of one column as numbers and decimal places.

use std::ops::Range;

use super::{Decode, Text, ValueDecoders};
use crate::entropy::{ByteCoder, NumberCoder, Reader};
use crate::error::{Damaged, Decoded};
use crate::postgres::{form, numeric};

/// So many values are made at once: there is room for all of them, and their bytes are counted together.
const TOGETHER: usize = 64;

/// In place of decimal places: the value stands as it is.
const AS_IT_IS: u8 = u8::MAX;

/// The values of one column.
#[derive(Debug, Default)]
pub(super) struct Split {
    scales: Vec<u8>,
    numbers: Vec<u64>,
    small: Vec<u32>,
    heads: Vec<u32>,
    text: Vec<u8>,
}

impl Split {
    fn clear(&mut self) {
        self.scales.clear();
        self.numbers.clear();
        self.small.clear();
        self.heads.clear();
        self.text.clear();
    }

    /// Takes all values in; false if less than half of them can be split.
    pub(super) fn take(&mut self, heads: &[u32], text: &[u8]) -> bool {
        self.clear();
        let mut start = 0;
        for head in heads {
            let value = &text[start..start + form::payload_length(*head)];
            start += value.len();
            let split = if head & 3 == form::SHORT { numeric::split(value) } else { None };
            match split {
                Some((number, scale)) => {
                    self.scales.push(scale);
                    self.numbers.push(number);
                }
                None => {
                    self.scales.push(AS_IT_IS);
                    self.heads.push(*head);
                    self.text.extend_from_slice(value);
                }
            }
        }
        self.numbers.len() >= self.heads.len()
    }

    /// Appends what was taken.
    pub(super) fn encode(
        &mut self,
        bytes: &mut ByteCoder,
        numbers: &mut NumberCoder,
        text: &mut Text,
        out: &mut Vec<u8>,
    ) {
        bytes.encode(&self.scales, out);
        let widest = self.numbers.iter().fold(0, |bits, number| bits | number);
        if u32::try_from(widest).is_ok() {
            out.push(4);
            self.small.extend(self.numbers.iter().map(|number| *number as u32));
            numbers.encode_u32(&self.small, None, out);
        } else {
            out.push(8);
            numbers.encode_u64(&self.numbers, None, out);
        }
        numbers.encode_u32(&self.heads, None, out);
        text.store(&self.text, out);
    }
}

impl Decode for Split {
    fn scratch(decoders: &mut ValueDecoders) -> &mut Self {
        &mut decoders.split
    }

    fn decode_into(
        &mut self,
        decoders: &mut ValueDecoders,
        input: &mut Reader<'_>,
        text: &mut Text,
        heads: &mut Vec<u32>,
    ) -> Decoded<Range<usize>> {
        self.clear();
        decoders.decode_bytes(input, &mut self.scales)?;
        match input.u8()? {
            4 => {
                decoders.decode_u32(input, None, &mut self.small)?;
                self.numbers.extend(self.small.iter().map(|number| u64::from(*number)));
            }
            8 => decoders.decode_u64(input, None, &mut self.numbers)?,
            _ => return Err(BAD),
        }
        decoders.decode_u32(input, None, &mut self.heads)?;
        let mut as_they_are = text.next(input)?;
        decoders.budget.spend(self.scales.len(), 4)?;
        let (mut numbers, mut whole) = (self.numbers.iter(), self.heads.iter());
        let start = text.bytes.len();
        heads.reserve(self.scales.len());
        for scales in self.scales.chunks(TOGETHER) {
            let before = text.bytes.len();
            let mut at = before;
            text.bytes.resize(before + TOGETHER * numeric::STORED_MAX, 0);
            for scale in scales {
                if *scale != AS_IT_IS {
                    let room = text.bytes[at..].first_chunk_mut().ok_or(BAD)?;
                    let length = numeric::put(*numbers.next().ok_or(BAD)?, *scale, room).ok_or(BAD)?;
                    heads.push((length as u32) << 2 | form::SHORT);
                    at += length;
                    continue;
                }
                let head = *whole.next().ok_or(BAD)?;
                let length = form::payload_length(head);
                if length > as_they_are.len() {
                    return Err(BAD);
                }
                // There is room for the others behind it as well.
                text.bytes.resize(text.bytes.len() + length, 0);
                text.bytes.copy_within(as_they_are.start..as_they_are.start + length, at);
                as_they_are.start += length;
                heads.push(head);
                at += length;
            }
            text.bytes.truncate(at);
            decoders.budget.spend(at - before, 1)?;
        }
        Ok(start..text.bytes.len())
    }
}

const BAD: Damaged = Damaged("a column of numerics is not what it says");
