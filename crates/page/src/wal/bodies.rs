//! Bodies: the data of all records of one shape, or of one of its blocks. Those of one length are rows, and go by column.

use super::plan::Planner;
use crate::entropy::{Reader, put_varint};
use crate::error::{Damaged, Decoded};
use crate::postgres::wire::{put, u16_at, u32_at, u64_at};
use crate::stream::Stream;
use crate::values::{Text, ValueCoders, ValueDecoders};

/// Fewer rows of one length are left to the text.
const ROWS_MIN: usize = 8;
/// As are longer ones.
const ROW_BYTES_MAX: usize = 1024;
/// Bodies of different lengths have their first bytes in columns if there are so many.
const PREFIX_ROWS_MIN: usize = 32;
/// How many first bytes at most.
const PREFIX_BYTES_MAX: usize = 128;

/// Bodies in the order of their records.
#[derive(Debug, Default)]
pub(super) struct Bodies {
    pub(super) lengths: Stream<u32>,
    pub(super) data: Stream<u8>,
}

impl Bodies {
    pub(super) fn clear(&mut self) {
        self.lengths.clear();
        self.data.clear();
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.lengths.held_bytes() + self.data.held_bytes()
    }

    /// The next one.
    #[inline]
    pub(super) fn next(&mut self) -> Decoded<&[u8]> {
        let length = self.lengths.next()?;
        self.data.take(length as usize)
    }
}

/// Codes bodies, and decodes them; keeps its memory.
#[derive(Debug, Default)]
pub(super) struct BodyCoder {
    planner: Planner,
    /// Length x 2^32 + where it starts, of each body.
    order: Vec<u64>,
    /// Where the rows of the class at hand start.
    rows: Vec<u32>,
    bytes: Vec<u8>,
    words: Vec<u32>,
    longs: Vec<u64>,
    /// Of each length how many bodies have it, and then where the next one goes.
    counts: Vec<u32>,
    /// Which of `order` stay text: first x 2^32 + end, of each class.
    texts: Vec<u64>,
}

/// Lengths that differ by no more are counted instead of compared.
const COUNTED_MAX: usize = 4096;

/// In place of a plan: the rows of the class are text.
const AS_TEXT: u8 = 0xFF;

const TEXT_ENDS: Damaged = Damaged("bodies of records have less text than they need");

/// Whether so many bodies of one length may go by column.
fn is_class(length: usize, count: usize) -> bool {
    count >= ROWS_MIN && length <= ROW_BYTES_MAX
}

impl BodyCoder {
    /// Appends the coded streams of `bodies` to `out`, and their text to `text`.
    pub(super) fn encode(&mut self, bodies: &Bodies, coders: &mut ValueCoders, text: &mut Text, out: &mut Vec<u8>) {
        coders.numbers.encode_u32(&bodies.lengths.values, None, out);
        let data = &bodies.data.values[..];
        let prefix = self.encode_prefix(bodies, coders, text, out);
        self.sort(&bodies.lengths.values, prefix);
        let order = std::mem::take(&mut self.order);
        // What is left to the text, in order of length.
        self.bytes.clear();
        let mut left = std::mem::take(&mut self.bytes);
        for class in order.chunk_by(|one, other| one >> 32 == other >> 32) {
            let length = (class[0] >> 32) as usize;
            if length == 0 {
                continue;
            }
            self.rows.clear();
            self.rows.extend(class.iter().map(|at| *at as u32));
            if is_class(length, class.len()) {
                if self.planner.plan(data, &self.rows, length) {
                    self.encode_rows(data, coders, text, out);
                    continue;
                }
                out.push(AS_TEXT);
            }
            for row in &self.rows {
                left.extend_from_slice(&data[*row as usize..][..length]);
            }
        }
        text.store(&left, out);
        self.bytes = left;
        self.order = order;
    }

    /// Appends the columns of the first bytes of all bodies, where these are alike; how many bytes.
    fn encode_prefix(
        &mut self,
        bodies: &Bodies,
        coders: &mut ValueCoders,
        text: &mut Text,
        out: &mut Vec<u8>,
    ) -> usize {
        let lengths = &bodies.lengths.values;
        let least = lengths.iter().min().map_or(0, |least| *least as usize).min(PREFIX_BYTES_MAX);
        let is_even = lengths.iter().all(|length| *length == lengths[0]);
        let mut prefix = 0;
        if lengths.len() >= PREFIX_ROWS_MIN && least > 0 && !is_even {
            self.find_rows(lengths);
            prefix = self.planner.plan_prefix(&bodies.data.values, &self.rows, least);
        }
        put_varint(prefix as u64, out);
        if prefix > 0 {
            self.encode_rows(&bodies.data.values, coders, text, out);
        }
        prefix
    }

    /// All bodies are rows.
    fn find_rows(&mut self, lengths: &[u32]) {
        self.rows.clear();
        let mut start = 0;
        for length in lengths {
            self.rows.push(start);
            start += length;
        }
    }

    /// Sorts what bodies have behind their first `prefix` bytes by length, otherwise in their order.
    fn sort(&mut self, lengths: &[u32], prefix: usize) {
        let BodyCoder { order, counts, .. } = self;
        let least = lengths.iter().min().map_or(0, |least| *least);
        let range = lengths.iter().max().map_or(0, |most| (*most - least) as usize);
        let is_counted = range > 0 && range <= COUNTED_MAX;
        counts.clear();
        order.clear();
        if is_counted {
            // Where the bodies of each length go.
            counts.resize(range + 2, 0);
            lengths.iter().for_each(|length| counts[(length - least) as usize + 1] += 1);
            (0..range).for_each(|length| counts[length + 1] += counts[length]);
            order.resize(lengths.len(), 0);
        }
        let mut start = prefix as u64;
        for length in lengths {
            let body = (u64::from(*length) - prefix as u64) << 32 | start;
            start += u64::from(*length);
            if is_counted {
                let place = &mut counts[(length - least) as usize];
                order[*place as usize] = body;
                *place += 1;
            } else {
                order.push(body);
            }
        }
        if !is_counted && range > 0 {
            order.sort_unstable();
        }
    }

    /// Appends the columns of the rows at hand, as the planner says.
    fn encode_rows(&mut self, data: &[u8], coders: &mut ValueCoders, text: &mut Text, out: &mut Vec<u8>) {
        let BodyCoder { planner, rows, words, longs, bytes, .. } = self;
        let first = &data[rows[0] as usize..];
        bytes.clear();
        let mut at = 0;
        for run in planner.widths.chunk_by(|one, other| *one == 0 && *other == 0) {
            out.push(run[0]);
            match run[0] {
                0 => {
                    put_varint(run.len() as u64, out);
                    bytes.extend_from_slice(&first[at..at + run.len()]);
                    at += run.len();
                }
                width => at += usize::from(width),
            }
        }
        text.store(bytes, out);
        let mut at = 0;
        for width in planner.widths.iter().map(|width| usize::from(*width)) {
            let places = rows.iter().map(|row| *row as usize + at);
            match width {
                0 => {}
                1 => {
                    bytes.clear();
                    bytes.extend(places.map(|at| data[at]));
                    coders.bytes.encode(bytes, out);
                }
                8 => {
                    longs.clear();
                    longs.extend(places.map(|at| u64_at(data, at)));
                    coders.numbers.encode_u64(longs, None, out);
                }
                width => {
                    words.clear();
                    if width == 2 {
                        words.extend(places.map(|at| u32::from(u16_at(data, at))));
                    } else {
                        words.extend(places.map(|at| u32_at(data, at)));
                    }
                    coders.numbers.encode_u32(words, None, out);
                }
            }
            at += width.max(1);
        }
    }

    /// Fills `bodies`, which were cleared.
    pub(super) fn decode(
        &mut self,
        bodies: &mut Bodies,
        decoders: &mut ValueDecoders,
        input: &mut Reader<'_>,
        text: &mut Text,
    ) -> Decoded<()> {
        decoders.decode_u32(input, None, &mut bodies.lengths.values)?;
        let lengths = &bodies.lengths.values;
        let total = lengths.iter().map(|length| u64::from(*length)).sum::<u64>();
        decoders.budget.spend(usize::try_from(total).unwrap_or(usize::MAX), 1)?;
        let least = lengths.iter().min().map_or(0, |least| *least as usize);
        let prefix = input.count(least)?;
        let data = &mut bodies.data.values;
        data.resize(total as usize, 0);
        if prefix > 0 {
            self.find_rows(lengths);
            self.decode_rows(prefix, data, decoders, input, text)?;
        }
        self.sort(lengths, prefix);
        let order = std::mem::take(&mut self.order);
        let decoded = self.decode_classes(&order, data, decoders, input, text);
        self.order = order;
        decoded
    }

    fn decode_classes(
        &mut self,
        order: &[u64],
        data: &mut [u8],
        decoders: &mut ValueDecoders,
        input: &mut Reader<'_>,
        text: &mut Text,
    ) -> Decoded<()> {
        self.texts.clear();
        let mut at = 0;
        for class in order.chunk_by(|one, other| one >> 32 == other >> 32) {
            let length = (class[0] >> 32) as usize;
            let places = at..at + class.len();
            at = places.end;
            if length > 0 && is_class(length, class.len()) && input.rest().first() != Some(&AS_TEXT) {
                self.rows.clear();
                self.rows.extend(class.iter().map(|at| *at as u32));
                self.decode_rows(length, data, decoders, input, text)?;
            } else if length > 0 {
                if is_class(length, class.len()) {
                    input.u8()?;
                }
                self.texts.push((places.start as u64) << 32 | places.end as u64);
            }
        }
        let range = text.next(input)?;
        let mut left = text.bytes.get(range).unwrap_or_default();
        for places in &self.texts {
            for body in &order[(places >> 32) as usize..*places as u32 as usize] {
                let (start, length) = (*body as u32 as usize, (body >> 32) as usize);
                let (body, rest) = left.split_at_checked(length).ok_or(TEXT_ENDS)?;
                data[start..start + length].copy_from_slice(body);
                left = rest;
            }
        }
        if left.is_empty() { Ok(()) } else { Err(Damaged("bodies of records have more text than they need")) }
    }

    /// Fills the rows at hand.
    fn decode_rows(
        &mut self,
        length: usize,
        data: &mut [u8],
        decoders: &mut ValueDecoders,
        input: &mut Reader<'_>,
        text: &mut Text,
    ) -> Decoded<()> {
        let widths = &mut self.planner.widths;
        read_widths(input, length, widths)?;
        let range = text.next(input)?;
        let mut constants = text.bytes.get(range).unwrap_or_default();
        let mut at = 0;
        let mut number = 0;
        while number < widths.len() {
            let width = usize::from(widths[number]);
            if width == 0 {
                let run = widths[number..].iter().take_while(|width| **width == 0).count();
                let (bytes, rest) = constants.split_at_checked(run).ok_or(TEXT_ENDS)?;
                constants = rest;
                for row in &self.rows {
                    data[*row as usize + at..][..run].copy_from_slice(bytes);
                }
                (at, number) = (at + run, number + run);
                continue;
            }
            let rows = &self.rows[..];
            match width {
                1 => {
                    self.bytes.clear();
                    decoders.decode_bytes(input, &mut self.bytes)?;
                    scatter(data, rows, at, &self.bytes, |value| [value])?;
                }
                8 => {
                    self.longs.clear();
                    decoders.decode_u64(input, None, &mut self.longs)?;
                    scatter(data, rows, at, &self.longs, u64::to_le_bytes)?;
                }
                width => {
                    self.words.clear();
                    decoders.decode_u32(input, None, &mut self.words)?;
                    if width == 2 {
                        scatter(data, rows, at, &self.words, |value| (value as u16).to_le_bytes())?;
                    } else {
                        scatter(data, rows, at, &self.words, u32::to_le_bytes)?;
                    }
                }
            }
            (at, number) = (at + width, number + 1);
        }
        if constants.is_empty() { Ok(()) } else { Err(Damaged("a plan has more constants than it needs")) }
    }
}

/// Reads a plan of rows of `length` bytes.
fn read_widths(input: &mut Reader<'_>, length: usize, widths: &mut Vec<u8>) -> Decoded<()> {
    widths.clear();
    let mut left = length;
    while left > 0 {
        let width = input.u8()?;
        let bytes = match width {
            0 => {
                let run = input.count(left)?;
                widths.resize(widths.len() + run, 0);
                run
            }
            1 | 2 | 4 | 8 => {
                widths.push(width);
                usize::from(width)
            }
            _ => 0,
        };
        if bytes == 0 || bytes > left {
            return Err(Damaged("rows have columns that do not fit them"));
        }
        left -= bytes;
    }
    Ok(())
}

/// Puts a column's values into `rows`, `at` bytes behind their starts.
fn scatter<T: Copy, const N: usize>(
    data: &mut [u8],
    rows: &[u32],
    at: usize,
    values: &[T],
    bytes_of: impl Fn(T) -> [u8; N],
) -> Decoded<()> {
    if values.len() != rows.len() {
        return Err(Damaged("a column has more or fewer values than there are rows"));
    }
    rows.iter().zip(values).try_for_each(|(row, value)| put(data, *row as usize + at, bytes_of(*value)))
}
