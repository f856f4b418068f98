//! Values of variable length that are arrays of floats: paths and polygons, float8[], shapes of extensions.
//!
//! Nobody has to say which columns these are: floats that are short decimal numbers look like nothing else. A value is taken as
//! a few bytes of header, so that the rest is a multiple of eight, and then floats; those of even and of odd place are apart,
//! because most such arrays are pairs.

use std::ops::Range;

use super::{Decode, Text, ValueDecoders};
use crate::entropy::{FloatCoder, NumberCoder, Reader};
use crate::error::{Damaged, Decoded};
use crate::postgres::form;

/// Shorter values are left as they are.
const VALUE_BYTES_MIN: usize = 24;
/// TOAST_MAX_CHUNK_SIZE of pages of 8 KiB.
const TOAST_CHUNK_BYTES: usize = 1996;
/// How many values are looked at.
const SAMPLE_COUNT: usize = 64;
/// Decimal places that are tried.
const PLACES: [i32; 5] = [2, 4, 6, 9, 12];
/// Beyond this not every whole number is a float.
const WHOLE_MAX: f64 = (1u64 << 51) as f64;

/// The values of one column.
#[derive(Debug, Default)]
pub(super) struct Doubles {
    rest: Vec<u8>,
    floats: [Vec<u64>; 2],
    /// Whether this frame has any.
    are_used: bool,
}

/// Bytes before the floats of a value; all of it if there are none.
fn header_length(head: u32) -> usize {
    let length = form::payload_length(head);
    let has_floats = matches!(head & 3, form::SHORT | form::LONG) && length >= VALUE_BYTES_MIN;
    if has_floats { length % 8 } else { length }
}

impl Doubles {
    fn clear(&mut self) {
        self.rest.clear();
        self.floats.iter_mut().for_each(Vec::clear);
    }

    /// Starts a frame. Its memory is given back if the last one had no such values.
    pub(super) fn give_back_unused(&mut self) {
        if !std::mem::take(&mut self.are_used) {
            *self = Doubles::default();
        }
    }

    /// Takes all values in; false if they do not look like arrays of floats.
    pub(super) fn take(&mut self, heads: &[u32], text: &[u8]) -> bool {
        if text.len() < VALUE_BYTES_MIN * heads.len() || !looks_like_floats(heads, text) {
            return false;
        }
        self.clear();
        self.are_used = true;
        let mut start = 0;
        for head in heads {
            let value = &text[start..start + form::payload_length(*head)];
            start += value.len();
            let (header, floats) = value.split_at(header_length(*head));
            self.rest.extend_from_slice(header);
            let (pairs, odd) = floats.as_chunks::<8>().0.as_chunks::<2>();
            let [evens, odds] = &mut self.floats;
            evens.extend(pairs.iter().map(|pair| u64::from_le_bytes(pair[0])));
            odds.extend(pairs.iter().map(|pair| u64::from_le_bytes(pair[1])));
            evens.extend(odd.iter().map(|float| u64::from_le_bytes(*float)));
        }
        true
    }

    /// Appends what was taken, whose heads are `heads`.
    pub(super) fn encode(
        &self,
        heads: &[u32],
        numbers: &mut NumberCoder,
        floats: &mut FloatCoder,
        text: &mut Text,
        out: &mut Vec<u8>,
    ) {
        numbers.encode_u32(heads, None, out);
        text.store(&self.rest, out);
        for stream in &self.floats {
            floats.encode_f64(stream, None, out);
        }
    }
}

impl Decode for Doubles {
    fn scratch(decoders: &mut ValueDecoders) -> &mut Self {
        &mut decoders.doubles
    }

    fn decode_into(
        &mut self,
        decoders: &mut ValueDecoders,
        input: &mut Reader<'_>,
        text: &mut Text,
        heads: &mut Vec<u32>,
    ) -> Decoded<Range<usize>> {
        self.clear();
        self.are_used = true;
        decoders.decode_u32(input, None, heads)?;
        let mut rest = text.next(input)?;
        for stream in &mut self.floats {
            decoders.decode_f64(input, None, stream)?;
        }
        let [mut even, mut odd] = self.floats.each_ref().map(|stream| stream.iter());
        let start = text.bytes.len();
        for head in heads.iter() {
            let header = header_length(*head);
            if header > rest.len() {
                return Err(BAD);
            }
            text.bytes.extend_from_within(rest.start..rest.start + header);
            rest.start += header;
            let count = (form::payload_length(*head) - header) / 8;
            decoders.budget.spend(header + 8 * count, 1)?;
            for place in 0..count {
                let float = if place % 2 == 0 { even.next() } else { odd.next() };
                text.bytes.extend_from_slice(&float.ok_or(BAD)?.to_le_bytes());
            }
        }
        Ok(start..text.bytes.len())
    }
}

const BAD: Damaged = Damaged("a column of arrays of floats is not what it says");

/// Whether as many floats of a sample are short decimal numbers as the coder of floats wants, 11 of 12, and most values are
/// not chunks of larger ones: those are cut anywhere, so that floats lie differently in each.
fn looks_like_floats(heads: &[u32], text: &[u8]) -> bool {
    let step = heads.len().div_ceil(SAMPLE_COUNT).max(1);
    let (mut start, mut seen, mut found, mut chunks) = (0, 0usize, 0usize, 0usize);
    for (number, head) in heads.iter().enumerate() {
        let value = &text[start..start + form::payload_length(*head)];
        start += value.len();
        chunks += usize::from(value.len() == TOAST_CHUNK_BYTES);
        let floats = value[header_length(*head)..].as_chunks::<8>().0;
        if number % step != 0 || floats.is_empty() {
            continue;
        }
        for quarter in 0..4 {
            // From another place in each value, so that headers count as much as they are.
            let place = (number * 31 + quarter * floats.len() / 4) % floats.len();
            seen += 1;
            found += usize::from(is_short_decimal(f64::from_le_bytes(floats[place])));
        }
    }
    seen > 0 && found * 12 >= seen * 11 && chunks * 2 < heads.len()
}

pub(super) fn is_short_decimal(value: f64) -> bool {
    value != 0.0
        && PLACES.iter().any(|places| {
            let power = 10f64.powi(*places);
            let whole = (value * power).round();
            whole.abs() < WHOLE_MAX && whole / power == value
        })
}
