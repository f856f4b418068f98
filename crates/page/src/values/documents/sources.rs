//! The leaves of all columns while values are put together, and what is left of each.

use std::ops::Range;

use super::leaves::{Class, mode};
use super::{BAD, COLUMNS_MAX, MIXED, value};
use crate::entropy::Reader;
use crate::error::Decoded;
use crate::postgres::{form, jsonb};
use crate::stream::held_bytes;
use crate::values::dictionary::Dictionary;
use crate::values::numbers::Split;
use crate::values::{Text, ValueDecoders};

/// What is left of a column's texts: where, and how long each is.
#[derive(Clone, Copy, Debug, Default)]
struct Texts {
    at: u32,
    end: u32,
    /// [`mode::ENDED`], [`mode::EVEN`], or [`mode::LENGTHS`].
    mode: u8,
    /// Of even ones the length, otherwise where the next head is in [`Sources::heads`].
    next: u32,
    next_end: u32,
}

/// What is left of a column's numbers.
#[derive(Clone, Copy, Debug, Default)]
struct Numbers {
    at: u32,
    end: u32,
}

impl Numbers {
    fn of(range: Range<usize>) -> Self {
        Numbers { at: range.start as u32, end: range.end as u32 }
    }

    #[inline]
    fn next(&mut self) -> Decoded<usize> {
        if self.at == self.end {
            return Err(BAD);
        }
        self.at += 1;
        Ok(self.at as usize - 1)
    }
}

/// What is left of a column.
#[derive(Clone, Copy, Debug, Default)]
struct Source {
    shapes: Numbers,
    counts: Numbers,
    bools: Numbers,
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

    pub(super) fn held_bytes(&self) -> usize {
        let bytes = held_bytes(&self.flags) + held_bytes(&self.bools);
        held_bytes(&self.columns) + held_bytes(&self.numbers) + held_bytes(&self.heads) + bytes
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
                        self.columns[column].bools = Numbers::of(start..self.bools.len());
                    }
                    Class::String => self.columns[column].strings = self.read_texts(decoders, input, text)?,
                    Class::Numeric => self.columns[column].numerics = self.read_texts(decoders, input, text)?,
                }
            }
        }
        Ok(())
    }

    fn read_numbers(&mut self, decoders: &mut ValueDecoders, input: &mut Reader<'_>) -> Decoded<Numbers> {
        let start = self.numbers.len();
        let count_max = decoders.budget.count(4);
        decoders.numbers.decode_u32(input, count_max, None, &mut self.numbers)?;
        decoders.budget.spend(self.numbers.len() - start, 4)?;
        Ok(Numbers::of(start..self.numbers.len()))
    }

    fn read_texts(&mut self, decoders: &mut ValueDecoders, input: &mut Reader<'_>, text: &mut Text) -> Decoded<Texts> {
        let start = self.heads.len();
        let heads = &mut self.heads;
        let how = input.u8()?;
        let mut even = 0;
        let range = match how {
            mode::ENDED => text.next(input)?,
            mode::EVEN => {
                even = input.count(usize::from(u16::MAX))?;
                text.next(input)?
            }
            mode::LENGTHS => {
                let count_max = decoders.budget.count(4);
                decoders.numbers.decode_u32(input, count_max, None, heads)?;
                decoders.budget.spend(heads.len() - start, 4)?;
                text.next(input)?
            }
            mode::DICTIONARY => decoders.decode_stored::<Dictionary>(input, text, heads)?,
            mode::NUMBERS => decoders.decode_stored::<Split>(input, text, heads)?,
            _ => return Err(BAD),
        };
        let (at, end) = (range.start as u32, range.end as u32);
        let (mode, next, next_end) = match how {
            mode::ENDED | mode::EVEN => (how, even as u32, 0),
            _ => (mode::LENGTHS, start as u32, heads.len() as u32),
        };
        Ok(Texts { at, end, mode, next, next_end })
    }

    /// The column in whose streams leaves of a class are that belong to `column`.
    #[inline]
    fn own(&self, class: Class, column: usize) -> usize {
        if self.flags[column] & class.bit() != 0 { column } else { MIXED }
    }

    /// As [`Sources::own`], for values of a type.
    pub(super) fn own_of_type(&self, value_type: u8, column: usize) -> usize {
        match value_type {
            jsonb::entry::STRING => self.own(Class::String, column),
            jsonb::entry::NUMERIC => self.own(Class::Numeric, column),
            value::BOOL => self.own(Class::Bool, column),
            // The column tells of more than one class then.
            _ => column,
        }
    }

    #[inline]
    pub(super) fn next_shape(&mut self, column: usize) -> Decoded<u32> {
        let own = self.own(Class::Shape, column);
        Ok(self.numbers[self.columns[own].shapes.next()?])
    }

    #[inline]
    pub(super) fn next_count(&mut self, column: usize) -> Decoded<u32> {
        let own = self.own(Class::Count, column);
        Ok(self.numbers[self.columns[own].counts.next()?])
    }

    /// The next boolean of the column that has its own.
    #[inline]
    pub(super) fn next_bool(&mut self, own: usize) -> Decoded<bool> {
        Ok(self.bools[self.columns[own].bools.next()?] != 0)
    }

    /// Where the next string of the column that has its own is in `text`.
    #[inline]
    pub(super) fn next_string(&mut self, own: usize, text: &[u8]) -> Decoded<Range<usize>> {
        next_text(&mut self.columns[own].strings, &self.heads, text)
    }

    /// As [`Sources::next_string`] for numbers.
    #[inline]
    pub(super) fn next_numeric(&mut self, own: usize, text: &[u8]) -> Decoded<Range<usize>> {
        next_text(&mut self.columns[own].numerics, &self.heads, text)
    }
}

/// Where the next text is in `text`.
#[inline]
fn next_text(texts: &mut Texts, heads: &[u32], text: &[u8]) -> Decoded<Range<usize>> {
    let (start, end) = (texts.at as usize, texts.end as usize);
    let (length, next) = match texts.mode {
        mode::ENDED => {
            let length = zero_at(text.get(start..end).ok_or(BAD)?).ok_or(BAD)?;
            (length, start + length + 1)
        }
        mode::EVEN => (texts.next as usize, start + texts.next as usize),
        _ => {
            if texts.next == texts.next_end {
                return Err(BAD);
            }
            let length = form::payload_length(heads[texts.next as usize]);
            texts.next += 1;
            (length, start + length)
        }
    };
    if next > end {
        return Err(BAD);
    }
    texts.at = next as u32;
    Ok(start..start + length)
}

/// Where the first zero byte is.
#[inline]
pub(super) fn zero_at(bytes: &[u8]) -> Option<usize> {
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
