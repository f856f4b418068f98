//! jsonb values put together.

use std::ops::Range;

use super::leaves::{Class, mode};
use super::{
    AS_IT_IS, BAD, COLUMNS_MAX, DEPTH_MAX, Documents, MIXED, ROOT, SHAPES_MAX, Shape, TAKEN, column_of, kind, value,
};
use crate::entropy::Reader;
use crate::error::Decoded;
use crate::postgres::{form, jsonb};
use crate::values::dictionary::Dictionary;
use crate::values::numbers::Split;
use crate::values::{Budget, Text, ValueDecoders};

/// The longest payload with a header of one byte.
const SHORT_BYTES_MAX: usize = 126;

/// Of a value as the server stores it.
pub(super) fn head_of(length: usize) -> u32 {
    (length as u32) << 2 | if length <= SHORT_BYTES_MAX { form::SHORT } else { form::LONG }
}

/// What is left of a column's texts.
#[derive(Clone, Debug)]
struct Texts {
    lengths: Lengths,
    text: Range<usize>,
}

#[derive(Clone, Debug)]
enum Lengths {
    Ended,
    Even(usize),
    /// What is left of heads in [`Sources::heads`].
    Heads(Range<usize>),
}

impl Default for Texts {
    fn default() -> Self {
        Texts { lengths: Lengths::Ended, text: 0..0 }
    }
}

/// What is left of a column.
#[derive(Clone, Debug, Default)]
struct Source {
    shapes: Range<usize>,
    counts: Range<usize>,
    bools: Range<usize>,
    strings: Texts,
    numerics: Texts,
}

/// The leaves of all columns.
#[derive(Debug, Default)]
pub(super) struct Sources {
    columns: Vec<Source>,
    flags: Vec<u8>,
    numbers: Vec<u32>,
    bools: Vec<u8>,
    heads: Vec<u32>,
}

impl Sources {
    pub(super) fn clear(&mut self) {
        self.columns.clear();
        self.flags.clear();
        self.numbers.clear();
        self.bools.clear();
        self.heads.clear();
    }

    /// Reads the leaves of `columns` columns.
    pub(super) fn read(
        &mut self,
        columns: usize,
        decoders: &mut ValueDecoders,
        input: &mut Reader<'_>,
        text: &mut Text,
    ) -> Decoded<()> {
        decoders.decode_bytes(input, &mut self.flags)?;
        if self.flags.len() != columns || columns > COLUMNS_MAX {
            return Err(BAD);
        }
        self.columns.resize(columns, Source::default());
        for class in Class::ALL {
            for column in 0..columns {
                if self.flags[column] & class.bit() == 0 {
                    continue;
                }
                match class {
                    Class::Shape => self.columns[column].shapes = self.read_numbers(decoders, input)?,
                    Class::Count => self.columns[column].counts = self.read_numbers(decoders, input)?,
                    Class::Bool => {
                        let start = self.bools.len();
                        decoders.decode_bytes(input, &mut self.bools)?;
                        self.columns[column].bools = start..self.bools.len();
                    }
                    Class::String => self.columns[column].strings = self.read_texts(decoders, input, text)?,
                    Class::Numeric => self.columns[column].numerics = self.read_texts(decoders, input, text)?,
                }
            }
        }
        Ok(())
    }

    fn read_numbers(&mut self, decoders: &mut ValueDecoders, input: &mut Reader<'_>) -> Decoded<Range<usize>> {
        let start = self.numbers.len();
        let count_max = decoders.budget.count(4);
        decoders.numbers.decode_u32(input, count_max, None, &mut self.numbers)?;
        decoders.budget.spend(self.numbers.len() - start, 4)?;
        Ok(start..self.numbers.len())
    }

    fn read_texts(&mut self, decoders: &mut ValueDecoders, input: &mut Reader<'_>, text: &mut Text) -> Decoded<Texts> {
        let start = self.heads.len();
        let heads = &mut self.heads;
        let (is_listed, lengths, text) = match input.u8()? {
            mode::ENDED => (false, Lengths::Ended, text.next(input)?),
            mode::EVEN => (false, Lengths::Even(input.count(usize::from(u16::MAX))?), text.next(input)?),
            mode::LENGTHS => {
                let count_max = decoders.budget.count(4);
                decoders.numbers.decode_u32(input, count_max, None, heads)?;
                decoders.budget.spend(heads.len() - start, 4)?;
                (true, Lengths::Ended, text.next(input)?)
            }
            mode::DICTIONARY => (true, Lengths::Ended, decoders.decode_stored::<Dictionary>(input, text, heads)?),
            mode::NUMBERS => (true, Lengths::Ended, decoders.decode_stored::<Split>(input, text, heads)?),
            _ => return Err(BAD),
        };
        let lengths = if is_listed { Lengths::Heads(start..self.heads.len()) } else { lengths };
        Ok(Texts { lengths, text })
    }

    /// The column in whose streams leaves of a class are that belong to `column`.
    #[inline]
    fn of(&mut self, class: Class, column: usize) -> &mut Source {
        let own = if self.flags[column] & class.bit() != 0 { column } else { MIXED };
        &mut self.columns[own]
    }

    #[inline]
    fn next_shape(&mut self, column: usize) -> Decoded<u32> {
        let place = self.of(Class::Shape, column).shapes.next().ok_or(BAD)?;
        Ok(self.numbers[place])
    }

    #[inline]
    fn next_count(&mut self, column: usize) -> Decoded<u32> {
        let place = self.of(Class::Count, column).counts.next().ok_or(BAD)?;
        Ok(self.numbers[place])
    }

    #[inline]
    fn next_bool(&mut self, column: usize) -> Decoded<bool> {
        let place = self.of(Class::Bool, column).bools.next().ok_or(BAD)?;
        Ok(self.bools[place] != 0)
    }

    /// Where the next string or number of `column` is in `text`.
    #[inline]
    fn next_text(&mut self, class: Class, column: usize, text: &[u8]) -> Decoded<Range<usize>> {
        let own = if self.flags[column] & class.bit() != 0 { column } else { MIXED };
        let source = &mut self.columns[own];
        let texts = if class == Class::String { &mut source.strings } else { &mut source.numerics };
        let start = texts.text.start;
        let (length, next) = match &mut texts.lengths {
            Lengths::Ended => {
                let left = text.get(texts.text.clone()).ok_or(BAD)?;
                let length = zero_at(left).ok_or(BAD)?;
                (length, start + length + 1)
            }
            Lengths::Even(length) => (*length, start + *length),
            Lengths::Heads(heads) => {
                let length = form::payload_length(self.heads[heads.next().ok_or(BAD)?]);
                (length, start + length)
            }
        };
        if next > texts.text.end {
            return Err(BAD);
        }
        texts.text.start = next;
        Ok(start..start + length)
    }
}

/// Where the first zero byte is.
#[inline]
fn zero_at(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let (words, rest) = bytes.as_chunks::<8>();
    for (number, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        // The lowest bit that is set is exact, higher ones may not be.
        let zeros = word.wrapping_sub(ONES) & !word & (ONES << 7);
        if zeros != 0 {
            return Some(8 * number + zeros.trailing_zeros() as usize / 8);
        }
    }
    rest.iter().position(|byte| *byte == 0).map(|at| 8 * words.len() + at)
}

/// A document while it is made, at the end of the text.
struct Making<'a> {
    text: &'a mut Vec<u8>,
    budget: &'a mut Budget,
    /// Where it starts.
    start: usize,
}

impl Making<'_> {
    fn align(&mut self) {
        let length = (self.text.len() - self.start).next_multiple_of(4);
        self.text.resize(self.start + length, 0);
    }

    /// Appends a part of the text.
    #[inline]
    fn repeat(&mut self, range: Range<usize>) -> Decoded<()> {
        self.budget.spend(range.len(), 1)?;
        self.text.extend_from_within(range);
        Ok(())
    }
}

impl Documents {
    pub(super) fn read_shapes(
        &mut self,
        decoders: &mut ValueDecoders,
        input: &mut Reader<'_>,
        text: &mut Text,
    ) -> Decoded<()> {
        let key_range = text.next(input)?;
        let mut keys = text.bytes.get(key_range.clone()).ok_or(BAD)?;
        decoders.budget.spend(keys.iter().filter(|byte| **byte == 0).count(), 4)?;
        let mut end = key_range.start;
        while let Some(length) = zero_at(keys) {
            keys = &keys[length + 1..];
            end += length + 1;
            self.key_ends.push(end as u32);
        }
        if !keys.is_empty() {
            return Err(BAD);
        }
        let mut kinds = std::mem::take(&mut self.coder.scratch);
        let mut counts = std::mem::take(&mut self.coder.numbers);
        kinds.clear();
        counts.clear();
        let read = self.read_shape_streams(&mut kinds, &mut counts, decoders, input);
        let made =
            read.and_then(|()| self.make_shapes(&kinds, &counts, key_range.start, &mut decoders.budget, &text.bytes));
        self.coder.scratch = kinds;
        self.coder.numbers = counts;
        made
    }

    fn read_shape_streams(
        &mut self,
        kinds: &mut Vec<u8>,
        counts: &mut Vec<u32>,
        decoders: &mut ValueDecoders,
        input: &mut Reader<'_>,
    ) -> Decoded<()> {
        decoders.decode_bytes(input, kinds)?;
        decoders.decode_u32(input, None, counts)?;
        decoders.decode_bytes(input, &mut self.types)?;
        decoders.decode_u32(input, None, &mut self.key_codes)?;
        let is_type = |one: &u8| *one < value::END;
        if kinds.len() <= SHAPES_MAX && self.types.iter().all(is_type) { Ok(()) } else { Err(BAD) }
    }

    fn make_shapes(
        &mut self,
        kinds: &[u8],
        counts: &[u32],
        keys_at: usize,
        budget: &mut Budget,
        text: &[u8],
    ) -> Decoded<()> {
        let (mut counts, mut first, mut keys_seen) = (counts.iter(), 0, 0);
        let codes = std::mem::take(&mut self.key_codes);
        let mut codes_left = codes.iter();
        for kind in kinds {
            let mut shape = Shape { kind: *kind, first, ..Shape::default() };
            if *kind < kind::SAME {
                shape.count = *counts.next().ok_or(BAD)?;
                first = first.checked_add(shape.count).filter(|end| *end as usize <= self.types.len()).ok_or(BAD)?;
            }
            match *kind {
                kind::OBJECT => {
                    let codes = codes_left.as_slice().get(..shape.count as usize).ok_or(BAD)?;
                    codes_left = codes_left.as_slice()[shape.count as usize..].iter();
                    shape.template = self.make_template(codes, &mut keys_seen, keys_at, budget, text)?;
                }
                kind::ARRAY => self.columns.resize(first as usize, MIXED as u16),
                kind::SCALAR if shape.count == 1 => self.columns.resize(first as usize, MIXED as u16),
                same if (kind::SAME..kind::SAME + value::END).contains(&same) => {}
                _ => return Err(BAD),
            }
            self.shapes.push(shape);
        }
        self.key_codes = codes;
        if keys_seen == self.key_ends.len() { Ok(()) } else { Err(BAD) }
    }

    /// What all objects of a shape begin with: word, entries (those of values are filled in later) and keys.
    fn make_template(
        &mut self,
        codes: &[u32],
        keys_seen: &mut usize,
        keys_at: usize,
        budget: &mut Budget,
        text: &[u8],
    ) -> Decoded<(u32, u32)> {
        let start = self.templates.len();
        budget.spend(4 + 10 * codes.len(), 1)?;
        self.templates.extend_from_slice(&(jsonb::OBJECT | codes.len() as u32).to_le_bytes());
        self.templates.resize(start + 4 + 8 * codes.len(), 0);
        let keys_start = self.templates.len();
        for (number, code) in codes.iter().enumerate() {
            let key = match code.checked_sub(1) {
                Some(known) if (known as usize) < *keys_seen => known as usize,
                None if *keys_seen < self.key_ends.len() => {
                    *keys_seen += 1;
                    *keys_seen - 1
                }
                _ => return Err(BAD),
            };
            let key_start = key.checked_sub(1).map_or(keys_at, |before| self.key_ends[before] as usize);
            let key_text = &text[key_start..self.key_ends[key] as usize - 1];
            budget.spend(key_text.len(), 1)?;
            self.templates.extend_from_slice(key_text);
            let end = self.templates.len() - keys_start;
            let entry = jsonb::entry_of(number, jsonb::entry::STRING, key_text.len(), end);
            self.templates[start + 4 + 4 * number..][..4].copy_from_slice(&entry.to_le_bytes());
            self.columns.push(column_of(key) as u16);
        }
        Ok((start as u32, self.templates.len() as u32))
    }

    /// Makes all values; those that stand as they are are in `as_they_are` of the text.
    pub(super) fn make(
        &mut self,
        mut as_they_are: Range<usize>,
        decoders: &mut ValueDecoders,
        text: &mut Text,
        heads: &mut Vec<u32>,
    ) -> Decoded<Range<usize>> {
        decoders.budget.spend(self.states.len(), 4)?;
        heads.reserve(self.states.len());
        let begin = text.bytes.len();
        let states = std::mem::take(&mut self.states);
        let whole = std::mem::take(&mut self.heads);
        let mut whole_left = whole.iter();
        for state in &states {
            let start = text.bytes.len();
            let mut making = Making { text: &mut text.bytes, budget: &mut decoders.budget, start };
            match *state {
                TAKEN => {
                    self.make_container(&mut making, ROOT, 0)?;
                    heads.push(head_of(text.bytes.len() - start));
                }
                AS_IT_IS => {
                    let head = *whole_left.next().ok_or(BAD)?;
                    let length = form::payload_length(head);
                    if length > as_they_are.len() {
                        return Err(BAD);
                    }
                    making.repeat(as_they_are.start..as_they_are.start + length)?;
                    as_they_are.start += length;
                    heads.push(head);
                }
                _ => return Err(BAD),
            }
        }
        self.states = states;
        self.heads = whole;
        Ok(begin..text.bytes.len())
    }

    fn next_shape(&mut self, column: usize) -> Decoded<Shape> {
        let known = match self.sources.next_shape(column)?.checked_sub(1) {
            None => {
                self.shapes_seen += 1;
                self.shapes_seen - 1
            }
            Some(known) => known as usize,
        };
        self.shapes.get(known).copied().ok_or(BAD)
    }

    fn make_container(&mut self, making: &mut Making<'_>, column: usize, depth: u32) -> Decoded<()> {
        if depth > DEPTH_MAX {
            return Err(BAD);
        }
        let shape = self.next_shape(column)?;
        let at = making.text.len();
        let (count, entries_at) = if shape.kind == kind::OBJECT {
            let template = &self.templates[shape.template.0 as usize..shape.template.1 as usize];
            making.budget.spend(template.len(), 1)?;
            making.text.extend_from_slice(template);
            (shape.count as usize, at + 4 + 4 * shape.count as usize)
        } else {
            let is_same = shape.kind >= kind::SAME;
            let count = if is_same { self.sources.next_count(column)? } else { shape.count };
            let kind = if shape.kind == kind::SCALAR { jsonb::SCALAR } else { jsonb::ARRAY };
            making.budget.spend(count as usize + 1, 4)?;
            making.text.extend_from_slice(&(kind | count & jsonb::COUNT_MASK).to_le_bytes());
            making.text.resize(at + 4 + 4 * count as usize, 0);
            (count as usize, at + 4)
        };
        let first_number = (entries_at - at) / 4 - 1;
        let base = entries_at + 4 * count;
        for number in 0..count {
            let start = making.text.len();
            let (value_type, inner) = match shape.kind {
                kind::OBJECT => {
                    let place = shape.first as usize + number;
                    (self.types[place], usize::from(self.columns[place]))
                }
                same if same >= kind::SAME => (same - kind::SAME, column),
                _ => (self.types[shape.first as usize + number], column),
            };
            let entry_type = self.make_value(making, value_type, inner, depth)?;
            let end = making.text.len();
            let entry = jsonb::entry_of(first_number + number, entry_type, end - start, end - base);
            making.text[entries_at + 4 * number..][..4].copy_from_slice(&entry.to_le_bytes());
        }
        Ok(())
    }

    /// Appends a value; its type is the entry's.
    #[inline]
    fn make_value(&mut self, making: &mut Making<'_>, value_type: u8, column: usize, depth: u32) -> Decoded<u8> {
        match value_type {
            jsonb::entry::STRING => {
                let range = self.sources.next_text(Class::String, column, making.text)?;
                making.repeat(range)?;
            }
            jsonb::entry::NUMERIC => {
                let range = self.sources.next_text(Class::Numeric, column, making.text)?;
                making.align();
                making.budget.spend(8, 1)?;
                making.text.extend_from_slice(&((range.len() as u32 + 4) << 2).to_le_bytes());
                making.repeat(range)?;
            }
            jsonb::entry::CONTAINER => {
                making.align();
                self.make_container(making, column, depth + 1)?;
            }
            value::BOOL if self.sources.next_bool(column)? => return Ok(jsonb::entry::TRUE),
            _ => {}
        }
        Ok(value_type)
    }
}
