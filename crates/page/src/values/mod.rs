//! From columns of values to coded streams and back: which coder each column gets.

mod dictionary;
mod distinct;
mod documents;
mod doubles;
mod geometries;
mod indices;
mod numbers;
mod pglz;
mod reference;
mod text;

use std::ops::Range;

use crate::entropy::{ByteCoder, ByteDecoder, Effort, FloatCoder, FloatDecoder, NumberCoder, NumberDecoder, Reader};
use crate::error::{Damaged, Decoded};
use crate::layout::{Attribute, ValueType};
use crate::postgres::{Column, Columns, shares_keys};
use crate::stream::Stream;

use dictionary::Dictionary;
use distinct::Distinct;
use documents::Documents;
use doubles::Doubles;
use geometries::Geometries;
use indices::{ENTRIES_MAX, NARROW_ENTRIES_MAX};
use numbers::Split;
use pglz::Pglz;
use reference::{pick, picked};

pub(crate) use text::Text;

/// Which streams of a column follow; one byte before them.
mod has {
    pub(super) const VALUES: u8 = 1;
    pub(super) const POINTERS: u8 = 2;
    /// Values of variable length are indices into a dictionary.
    pub(super) const DICTIONARY: u8 = 4;
    /// Numerics are numbers and decimal places.
    pub(super) const NUMBERS: u8 = 8;
    /// Values of variable length are headers and floats.
    pub(super) const DOUBLES: u8 = 16;
    /// jsonb is shapes, keys and leaves.
    pub(super) const DOCUMENTS: u8 = 32;
    /// PostGIS's geometries are shapes and coordinates.
    pub(super) const GEOMETRIES: u8 = 64;
    /// Values are pglz's groups, whose literals are apart from matches.
    pub(super) const PGLZ: u8 = 128;
    pub(super) const VALUES_BY_DICTIONARY: u8 = VALUES | DICTIONARY;
    pub(super) const VALUES_BY_NUMBERS: u8 = VALUES | NUMBERS;
    pub(super) const VALUES_BY_DOUBLES: u8 = VALUES | DOUBLES;
    pub(super) const VALUES_BY_DOCUMENTS: u8 = VALUES | DOCUMENTS;
    pub(super) const VALUES_BY_GEOMETRIES: u8 = VALUES | GEOMETRIES;
    pub(super) const VALUES_BY_PGLZ: u8 = VALUES | PGLZ;
}

/// All coders of one thread.
pub(crate) struct ValueCoders {
    effort: Effort,
    pub(crate) bytes: ByteCoder,
    pub(crate) numbers: NumberCoder,
    pub(crate) floats: FloatCoder,
    dictionary: Dictionary,
    distinct: Distinct,
    documents: Documents,
    doubles: Doubles,
    geometries: Geometries,
    pglz: Pglz,
    split: Split,
    trial: Vec<u8>,
}

/// All decoders of one thread, and how many bytes of values they may still make.
pub(crate) struct ValueDecoders {
    pub(crate) bytes: ByteDecoder,
    pub(crate) numbers: NumberDecoder,
    pub(crate) floats: FloatDecoder,
    dictionary: Dictionary,
    distinct: Distinct,
    documents: Documents,
    doubles: Doubles,
    geometries: Geometries,
    pglz: Pglz,
    split: Split,
    pub(crate) budget: Budget,
}

/// A way of storing values of variable length other than as heads and text. Its scratch is kept with the decoders.
trait Decode: Default {
    fn scratch(decoders: &mut ValueDecoders) -> &mut Self;

    /// Brings heads and text of all values back; tells where the text is.
    fn decode_into(
        &mut self,
        decoders: &mut ValueDecoders,
        input: &mut Reader<'_>,
        text: &mut Text,
        heads: &mut Vec<u32>,
    ) -> Decoded<Range<usize>>;
}

/// How many bytes of values a frame may still have: what bounds a decoder's memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Budget {
    left_bytes: usize,
}

impl Budget {
    /// For a frame of `frame_length` bytes of content. Real relations need up to twice their size; empty texts without a
    /// byte of payload would need more, and such a frame is stored as one text.
    pub(crate) fn of(frame_length: usize) -> Self {
        Budget { left_bytes: 4 * frame_length + 4096 }
    }

    /// The most values of `size` bytes that are left.
    pub(crate) fn count(&self, size: usize) -> usize {
        self.left_bytes / size
    }

    /// Takes `count` values of `size` bytes.
    pub(crate) fn spend(&mut self, count: usize, size: usize) -> Decoded<()> {
        let bytes = count.checked_mul(size).ok_or(OVERDRAWN)?;
        self.left_bytes = self.left_bytes.checked_sub(bytes).ok_or(OVERDRAWN)?;
        Ok(())
    }
}

const OVERDRAWN: Damaged = Damaged("the streams hold more values than content of this length can have");

impl ValueCoders {
    pub(crate) fn new(effort: Effort) -> Self {
        ValueCoders {
            effort,
            bytes: ByteCoder::new(effort),
            numbers: NumberCoder::new(effort),
            floats: FloatCoder::new(effort),
            dictionary: Dictionary::default(),
            distinct: Distinct::default(),
            documents: Documents::default(),
            doubles: Doubles::default(),
            geometries: Geometries::default(),
            pglz: Pglz::default(),
            split: Split::default(),
            trial: Vec::new(),
        }
    }

    pub(crate) fn set_effort(&mut self, effort: Effort) {
        self.effort = effort;
        self.bytes.set_effort(effort);
        self.numbers.set_effort(effort);
        self.floats.set_effort(effort);
    }

    /// Starts a frame. What documents of earlier frames left is given back if it is more than `kept_bytes_max`, and what arrays of
    /// floats left if the last frame had none.
    pub(crate) fn begin(&mut self, kept_bytes_max: usize) {
        if self.documents.held_bytes() > kept_bytes_max {
            self.documents = Documents::default();
        }
        self.doubles.give_back_unused();
        self.geometries.give_back_unused();
        self.pglz.give_back_unused();
    }

    /// Appends the coded streams of all columns to `out`, and their text to `text`.
    pub(crate) fn encode(&mut self, columns: &Columns, text: &mut Text, out: &mut Vec<u8>) {
        for number in 0..columns.attributes.len() {
            let (attribute, column) = (columns.attributes[number], &columns.columns[number]);
            if attribute.is_variable() {
                self.encode_variable(attribute, column, columns.are_keys, text, out);
                continue;
            }
            if is_empty(column) {
                out.push(0);
                continue;
            }
            let start = out.len();
            out.push(has::VALUES);
            match (attribute.value_type, attribute.length) {
                (ValueType::Integer, 1) => self.bytes.encode(&column.bytes.values, out),
                (ValueType::Integer, 8) => {
                    let before = pick(columns, number, |column| &column.longs[0].values, out);
                    self.numbers.encode_u64(&column.longs[0].values, before, out);
                }
                (ValueType::Integer, _) => {
                    let before = pick(columns, number, |column| &column.words.values, out);
                    self.numbers.encode_u32(&column.words.values, before, out);
                }
                (ValueType::Float, 8) => self.floats.encode_f64(&column.longs[0].values, None, out),
                (ValueType::Floats, length) => {
                    let streams = &column.longs[..length as usize / 8];
                    for (number, stream) in streams.iter().enumerate() {
                        self.floats.encode_f64(&stream.values, other_corner(&streams[..number]), out);
                    }
                }
                (ValueType::Float, _) => self.floats.encode_f32(&column.words.values, out),
                (ValueType::Uuid, _) => {
                    self.numbers.encode_u64(&column.longs[0].values, None, out);
                    self.numbers.encode_u64(&column.longs[1].values, None, out);
                }
                _ => text.store(&column.text, out),
            }
            if let Some(count) = streams_of_keys(attribute) {
                self.try_distinct(&column.longs[..count], start, out);
            }
        }
    }

    /// Puts a dictionary of a column's values in place of what `out` has of it from `start` on, if it is smaller.
    fn try_distinct(&mut self, longs: &[Stream<u64>], start: usize, out: &mut Vec<u8>) {
        // What takes two bytes a value is hardly smaller as an index; of a uuid there may be two indices.
        if out.len() - start < 2 * longs[0].values.len() / longs.len() || !self.distinct.take(longs) {
            return;
        }
        self.trial.clear();
        self.trial.push(has::VALUES_BY_DICTIONARY);
        self.distinct.encode(longs.len(), &mut self.bytes, &mut self.numbers, &mut self.trial);
        if self.trial.len() < out.len() - start {
            out.truncate(start);
            out.extend_from_slice(&self.trial);
        }
    }

    fn encode_variable(
        &mut self,
        attribute: Attribute,
        column: &Column,
        are_keys: bool,
        text: &mut Text,
        out: &mut Vec<u8>,
    ) {
        let heads = &column.words.values;
        let has_pointers = !column.pointers[0].values.is_empty();
        let kind_at = out.len();
        let mut kind = if heads.is_empty() { 0 } else { has::VALUES };
        kind |= if has_pointers { has::POINTERS } else { 0 };
        out.push(kind);
        if kind == 0 {
            return;
        }
        let is_shared = shares_keys(are_keys, attribute);
        if attribute.value_type == ValueType::Numeric && self.split.take(heads, &column.text) {
            out[kind_at] |= has::NUMBERS;
            self.split.encode(&mut self.bytes, &mut self.numbers, text, out);
        } else if !is_shared && self.dictionary.take(heads, &column.text, entries_max(self.effort)) {
            out[kind_at] |= has::DICTIONARY;
            self.dictionary.encode(&mut self.bytes, &mut self.numbers, text, out);
        } else if self.effort.takes_documents()
            && attribute.value_type == ValueType::Jsonb
            && self.documents.take(heads, &column.text)
        {
            out[kind_at] |= has::DOCUMENTS;
            let mut documents = std::mem::take(&mut self.documents);
            documents.encode(&column.text, self, text, out);
            self.documents = documents;
        } else if !is_shared && self.geometries.take(heads, &column.text) {
            out[kind_at] |= has::GEOMETRIES;
            self.geometries.encode(heads, &mut self.bytes, &mut self.numbers, &mut self.floats, text, out);
        } else if !is_shared && self.doubles.take(heads, &column.text) {
            out[kind_at] |= has::DOUBLES;
            self.doubles.encode(heads, &mut self.numbers, &mut self.floats, text, out);
        } else if !is_shared && self.effort.takes_pglz() && self.pglz.take(heads, &column.text) {
            out[kind_at] |= has::PGLZ;
            self.pglz.encode(heads, &mut self.bytes, &mut self.numbers, text, out);
        } else {
            self.numbers.encode_u32(heads, None, out);
            text.store(&column.text, out);
            if is_shared {
                self.bytes.encode(&column.shared.values, out);
            }
        }
        if has_pointers {
            for pointer in &column.pointers {
                self.numbers.encode_u32(&pointer.values, None, out);
            }
        }
    }
}

/// The most entries of a dictionary. Where speed is all an index has to be a byte: to find a value among more takes 2 % of all time, for
/// 1 % of the bytes (bench/runs/2026-11-30-page-faster).
fn entries_max(effort: Effort) -> usize {
    if effort == Effort::Fast { NARROW_ENTRIES_MAX } else { ENTRIES_MAX }
}

/// How many streams of eight bytes the values of a column are that may be keys; None if they may not.
fn streams_of_keys(attribute: Attribute) -> Option<usize> {
    match (attribute.value_type, attribute.length) {
        (ValueType::Integer | ValueType::Float, 8) => Some(1),
        (ValueType::Uuid, _) => Some(2),
        _ => None,
    }
}

/// Of the streams before one of a shape, that of the same axis: a box in an index of points has both corners in one place.
fn other_corner(before: &[Stream<u64>]) -> Option<&[u64]> {
    before.len().checked_sub(2).map(|place| &before[place].values[..])
}

fn is_empty(column: &Column) -> bool {
    column.bytes.values.is_empty()
        && column.words.values.is_empty()
        && column.longs[0].values.is_empty()
        && column.text.is_empty()
}

impl ValueDecoders {
    pub(crate) fn new() -> Self {
        ValueDecoders {
            bytes: ByteDecoder::new(),
            numbers: NumberDecoder::new(),
            floats: FloatDecoder::new(),
            dictionary: Dictionary::default(),
            distinct: Distinct::default(),
            documents: Documents::default(),
            doubles: Doubles::default(),
            geometries: Geometries::default(),
            pglz: Pglz::default(),
            split: Split::default(),
            budget: Budget::default(),
        }
    }

    /// Starts a frame of `frame_length` bytes of content. What earlier ones left is given back as encoders do.
    pub(crate) fn begin(&mut self, frame_length: usize, kept_bytes_max: usize) {
        self.budget = Budget::of(frame_length);
        if self.documents.held_bytes() > kept_bytes_max {
            self.documents = Documents::default();
        }
        self.doubles.give_back_unused();
        self.geometries.give_back_unused();
        self.pglz.give_back_unused();
    }

    /// The next stream of bytes.
    pub(crate) fn decode_bytes(&mut self, input: &mut Reader<'_>, values: &mut Vec<u8>) -> Decoded<()> {
        self.bytes.decode(input, self.budget.count(1), values)?;
        self.budget.spend(values.len(), 1)
    }

    /// The next stream of numbers of 32 bits.
    pub(crate) fn decode_u32(
        &mut self,
        input: &mut Reader<'_>,
        before: Option<&[u32]>,
        values: &mut Vec<u32>,
    ) -> Decoded<()> {
        self.numbers.decode_u32(input, self.budget.count(4), before, values)?;
        self.budget.spend(values.len(), 4)
    }

    /// The next stream of numbers of 64 bits.
    pub(crate) fn decode_u64(
        &mut self,
        input: &mut Reader<'_>,
        before: Option<&[u64]>,
        values: &mut Vec<u64>,
    ) -> Decoded<()> {
        self.numbers.decode_u64(input, self.budget.count(8), before, values)?;
        self.budget.spend(values.len(), 8)
    }

    /// The next stream of floats of 64 bits.
    fn decode_f64(&mut self, input: &mut Reader<'_>, reference: Option<&[u64]>, values: &mut Vec<u64>) -> Decoded<()> {
        self.floats.decode_f64(input, self.budget.count(8), reference, values)?;
        self.budget.spend(values.len(), 8)
    }

    /// Fills the columns, which have been cleared and have their attributes.
    pub(crate) fn decode(&mut self, input: &mut Reader<'_>, columns: &mut Columns, text: &mut Text) -> Decoded<()> {
        for number in 0..columns.attributes.len() {
            let attribute = columns.attributes[number];
            let are_keys = columns.are_keys;
            let (before, rest) = columns.columns.split_at_mut(number);
            let column = &mut rest[0];
            let kind = input.u8()?;
            if attribute.is_variable() {
                self.decode_variable(kind, attribute, column, are_keys, input, text)?;
                continue;
            }
            match kind {
                0 => continue,
                has::VALUES => {}
                has::VALUES_BY_DICTIONARY if let Some(count) = streams_of_keys(attribute) => {
                    self.decode_distinct(input, &mut column.longs[..count])?;
                    continue;
                }
                _ => return Err(Damaged("a column has streams that its type does not have")),
            }
            match (attribute.value_type, attribute.length) {
                (ValueType::Integer, 1) => self.decode_bytes(input, &mut column.bytes.values)?,
                (ValueType::Integer, 8) => {
                    let near = picked(before, input, |column| &column.longs[0].values)?;
                    self.decode_u64(input, near, &mut column.longs[0].values)?;
                }
                (ValueType::Integer, _) => {
                    let near = picked(before, input, |column| &column.words.values)?;
                    self.decode_u32(input, near, &mut column.words.values)?;
                }
                (ValueType::Float, 8) => self.decode_f64(input, None, &mut column.longs[0].values)?,
                (ValueType::Floats, length) => {
                    for number in 0..length as usize / 8 {
                        let (before, rest) = column.longs.split_at_mut(number);
                        self.decode_f64(input, other_corner(before), &mut rest[0].values)?;
                    }
                }
                (ValueType::Float, _) => {
                    self.floats.decode_f32(input, self.budget.count(4), &mut column.words.values)?;
                    self.budget.spend(column.words.values.len(), 4)?;
                }
                (ValueType::Uuid, _) => {
                    self.decode_u64(input, None, &mut column.longs[0].values)?;
                    self.decode_u64(input, None, &mut column.longs[1].values)?;
                }
                _ => column.text_left = text.next(input)?,
            }
        }
        Ok(())
    }

    fn decode_distinct(&mut self, input: &mut Reader<'_>, longs: &mut [Stream<u64>]) -> Decoded<()> {
        let mut distinct = std::mem::take(&mut self.distinct);
        let decoded = distinct.decode(self, input, longs);
        self.distinct = distinct;
        decoded
    }

    fn decode_stored<D: Decode>(
        &mut self,
        input: &mut Reader<'_>,
        text: &mut Text,
        heads: &mut Vec<u32>,
    ) -> Decoded<Range<usize>> {
        let mut scratch = std::mem::take(D::scratch(self));
        let decoded = scratch.decode_into(self, input, text, heads);
        *D::scratch(self) = scratch;
        decoded
    }

    fn decode_variable(
        &mut self,
        kind: u8,
        attribute: Attribute,
        column: &mut Column,
        are_keys: bool,
        input: &mut Reader<'_>,
        text: &mut Text,
    ) -> Decoded<()> {
        let is_shared = shares_keys(are_keys, attribute);
        match kind & !has::POINTERS {
            0 => {}
            has::VALUES => {
                self.decode_u32(input, None, &mut column.words.values)?;
                column.text_left = text.next(input)?;
                if is_shared {
                    self.decode_bytes(input, &mut column.shared.values)?;
                }
            }
            has::VALUES_BY_NUMBERS => {
                column.text_left = self.decode_stored::<Split>(input, text, &mut column.words.values)?;
            }
            has::VALUES_BY_DICTIONARY => {
                column.text_left = self.decode_stored::<Dictionary>(input, text, &mut column.words.values)?;
            }
            has::VALUES_BY_DOUBLES => {
                column.text_left = self.decode_stored::<Doubles>(input, text, &mut column.words.values)?;
            }
            has::VALUES_BY_GEOMETRIES => {
                column.text_left = self.decode_stored::<Geometries>(input, text, &mut column.words.values)?;
            }
            has::VALUES_BY_PGLZ => {
                column.text_left = self.decode_stored::<Pglz>(input, text, &mut column.words.values)?;
            }
            has::VALUES_BY_DOCUMENTS => {
                column.text_left = self.decode_stored::<Documents>(input, text, &mut column.words.values)?;
            }
            _ => return Err(Damaged("a column has streams that its type does not have")),
        }
        if kind & has::POINTERS != 0 {
            for pointer in &mut column.pointers {
                self.decode_u32(input, None, &mut pointer.values)?;
            }
        }
        Ok(())
    }
}
