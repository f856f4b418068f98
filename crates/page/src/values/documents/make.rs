//! jsonb values put together.

use std::ops::Range;

use super::sources::zero_at;
use super::{AS_IT_IS, BAD, DEPTH_MAX, Documents, MIXED, ROOT, SHAPES_MAX, Shape, TAKEN, column_of, kind, value};
use crate::entropy::Reader;
use crate::error::Decoded;
use crate::postgres::{form, jsonb};
use crate::values::{Budget, Text, ValueDecoders};

/// The longest payload with a header of one byte.
const SHORT_BYTES_MAX: usize = 126;

/// Of a value as the server stores it.
pub(super) fn head_of(length: usize) -> u32 {
    (length as u32) << 2 | if length <= SHORT_BYTES_MAX { form::SHORT } else { form::LONG }
}

/// A document while it is made, at the end of the text.
struct Making<'a> {
    text: &'a mut Vec<u8>,
    budget: &'a mut Budget,
    /// Where it starts.
    start: usize,
}

impl Making<'_> {
    #[inline]
    fn align(&mut self) {
        let length = (self.text.len() - self.start).next_multiple_of(4);
        self.text.resize(self.start + length, 0);
    }

    /// Appends a part of the text. No part is appended twice: what the text may be bounds it.
    #[inline]
    fn repeat(&mut self, range: Range<usize>) {
        const SHORT: usize = 32;
        match self.text.get(range.start..).and_then(|from| from.first_chunk::<SHORT>()) {
            // A copy of fixed length is two moves; what is too much is cut off.
            Some(bytes) if range.len() <= SHORT => {
                let (bytes, end) = (*bytes, self.text.len() + range.len());
                self.text.extend_from_slice(&bytes);
                self.text.truncate(end);
            }
            _ => self.text.extend_from_within(range),
        }
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
        for (value_type, column) in self.types.iter().zip(&mut self.columns) {
            *column = self.sources.own_of_type(*value_type, usize::from(*column)) as u16;
        }
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
                    making.repeat(as_they_are.start..as_they_are.start + length);
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
        let same_own = self.sources.own_of_type(shape.kind.saturating_sub(kind::SAME), column);
        for number in 0..count {
            let start = making.text.len();
            let (value_type, inner) = match shape.kind {
                kind::OBJECT => {
                    let place = shape.first as usize + number;
                    (self.types[place], usize::from(self.columns[place]))
                }
                same if same >= kind::SAME => (same - kind::SAME, same_own),
                _ => {
                    let value_type = self.types[shape.first as usize + number];
                    (value_type, self.sources.own_of_type(value_type, column))
                }
            };
            let entry_type = self.make_value(making, value_type, inner, depth)?;
            let end = making.text.len();
            let entry = jsonb::entry_of(first_number + number, entry_type, end - start, end - base);
            making.text[entries_at + 4 * number..][..4].copy_from_slice(&entry.to_le_bytes());
        }
        Ok(())
    }

    /// Appends a value; its type is the entry's. `own` is what [`Sources::own_of_type`] says.
    #[inline]
    fn make_value(&mut self, making: &mut Making<'_>, value_type: u8, own: usize, depth: u32) -> Decoded<u8> {
        match value_type {
            jsonb::entry::STRING => {
                let range = self.sources.next_string(own, making.text)?;
                making.repeat(range);
            }
            jsonb::entry::NUMERIC => {
                let range = self.sources.next_numeric(own, making.text)?;
                making.align();
                making.text.extend_from_slice(&((range.len() as u32 + 4) << 2).to_le_bytes());
                making.repeat(range);
            }
            jsonb::entry::CONTAINER => {
                making.align();
                self.make_container(making, own, depth + 1)?;
            }
            value::BOOL if self.sources.next_bool(own)? => return Ok(jsonb::entry::TRUE),
            _ => {}
        }
        Ok(value_type)
    }
}
