//! Columns of pages on which every tuple has the same columns of its layout and nothing else, as on most pages of most
//! relations.
//!
//! No tuple is asked whether it has a column: those of fixed length before the first one of variable length lie at the same
//! place in every tuple, and values of variable length are found and taken in one go.

use super::columns::{Column, Columns, Mark, measured, shares_keys, take_text, within_page};
use super::grid::{TupleSpan, find_fixed, find_variable, form};
use super::items::Item;
use super::wire::{OUTSIDE, SHORT_BYTES, align, append, is_padding, put, put_bytes, u16_at, u32_at, u64_at};
use crate::error::Decoded;
use crate::layout::{Attribute, ValueType};
use crate::stream::Stream;

/// Of the page at hand, kept and used again for every page.
#[derive(Debug, Default)]
pub(super) struct FullScratch {
    /// Of each column of the layout, whether the tuples have it.
    has: Vec<bool>,
    /// Where the next column of each tuple is; at the end, where its last one ends.
    pub(super) cursors: Vec<u32>,
    /// Where the values of a column behind the prefix are: while pages are taken apart on the page, of the column at hand;
    /// while they are made within their tuples, of all such columns.
    rows: Vec<u16>,
    marks: Vec<Mark>,
}

impl FullScratch {
    /// The tuples have all of the layout's columns.
    pub(super) fn set_all_columns(&mut self, column_count: usize) {
        self.has.clear();
        self.has.resize(column_count, true);
    }

    /// They have those that `tuple` has.
    pub(super) fn set_columns_of(&mut self, column_count: usize, tuple: &TupleSpan, bitmaps: &[u8]) {
        self.has.clear();
        self.has.extend((0..column_count).map(|column| tuple.has(column, bitmaps)));
    }
}

/// Those of a layout's columns that the tuples have.
fn present<'c>(
    attributes: &'c [Attribute],
    columns: &'c mut [Column],
    has: &'c [bool],
) -> impl Iterator<Item = (&'c Attribute, &'c mut Column)> {
    attributes.iter().zip(columns).zip(has).filter_map(|(column, has)| has.then_some(column))
}

impl Columns {
    /// Appends all values of `items`, whose columns start `header` bytes behind their places. False, and nothing is appended,
    /// if the layout does not fit one of them, or `ends` does not agree with where their columns end.
    pub(super) fn gather_full(
        &mut self,
        page: &[u8],
        items: &[Item],
        header: usize,
        scratch: &mut FullScratch,
        ends: impl Fn(&Item, u32) -> bool,
    ) -> bool {
        scratch.marks.clear();
        let columns = &mut self.columns[..self.attributes.len()];
        scratch.marks.extend(columns.iter_mut().zip(&self.attributes).map(|(column, of)| column.mark(*of)));
        let fits = self.try_gather(page, items, header, scratch)
            && items.iter().zip(&scratch.cursors).all(|(item, cursor)| ends(item, *cursor));
        if !fits {
            for ((column, attribute), mark) in self.columns.iter_mut().zip(&self.attributes).zip(&scratch.marks) {
                column.back_to(*mark, *attribute);
            }
        }
        fits
    }

    fn try_gather(&mut self, page: &[u8], items: &[Item], header: usize, scratch: &mut FullScratch) -> bool {
        let FullScratch { has, cursors, rows, .. } = scratch;
        let shortest = items.iter().map(|item| item.length).min().unwrap_or(0) as usize;
        let (mut end, mut is_open) = (header, true);
        for (attribute, column) in present(&self.attributes, &mut self.columns, has) {
            if is_open && attribute.length > 0 {
                let at = align(end, usize::from(attribute.alignment));
                let is_padded = |item: &Item| is_padding(page, item.at as usize + end, item.at as usize + at);
                if at + attribute.length as usize > shortest || at != end && !items.iter().all(is_padded) {
                    return false;
                }
                column.gather_at(page, *attribute, items.iter().map(|item| item.at as usize + at));
                end = at + attribute.length as usize;
                continue;
            }
            if is_open {
                begin_cursors(cursors, items, end);
                is_open = false;
            }
            if attribute.length < 0 {
                if !column.gather_variable_full(
                    page,
                    items,
                    cursors,
                    *attribute,
                    shares_keys(self.are_keys, *attribute),
                ) {
                    return false;
                }
                continue;
            }
            rows.clear();
            rows.resize(items.len(), 0);
            for ((item, cursor), row) in items.iter().zip(cursors.iter_mut()).zip(rows.iter_mut()) {
                let end = (item.at + item.length) as usize;
                let Some((at, next)) = find_fixed(page, *attribute, *cursor as usize, end) else { return false };
                (*row, *cursor) = (at as u16, next as u32);
            }
            column.gather_at(page, *attribute, rows.iter().map(|at| usize::from(*at)));
        }
        if is_open {
            begin_cursors(cursors, items, end);
        }
        true
    }

    /// Takes the heads of the next `count` tuples, and finds where in its tuple each value will be. Columns start `header`
    /// bytes behind a tuple's place; the scratch's cursors then tell where they end.
    pub(super) fn measure_full(&mut self, count: usize, header: usize, scratch: &mut FullScratch) -> Decoded<()> {
        let FullScratch { has, cursors, rows, .. } = scratch;
        let there = self.attributes.iter().zip(has.iter()).filter_map(|(attribute, has)| has.then_some(attribute));
        let prefix = there.clone().take_while(|attribute| attribute.length > 0);
        let (length, end) = prefix.fold((0, header), |(number, end), attribute| {
            (number + 1, align(end, usize::from(attribute.alignment)) + attribute.length as usize)
        });
        let (_, end) = within_page(0, end)?;
        cursors.clear();
        cursors.resize(count, end);
        let needed = (there.count() - length) * count;
        if rows.len() < needed {
            rows.resize(needed, 0);
        }
        if count == 0 {
            return Ok(());
        }
        let columns = present(&self.attributes, &mut self.columns, has).skip(length);
        for ((attribute, column), row) in columns.zip(rows.chunks_exact_mut(count)) {
            let alignment = usize::from(attribute.alignment);
            if attribute.length > 0 {
                for (cursor, place) in cursors.iter_mut().zip(row) {
                    let at = align(*cursor as usize, alignment);
                    (*place, *cursor) = within_page(at, at + attribute.length as usize)?;
                }
                continue;
            }
            let heads = column.take_heads(count)?;
            for ((cursor, place), head) in cursors.iter_mut().zip(row).zip(heads) {
                let (at, next) = measured(*head, *cursor as usize, alignment);
                (*place, *cursor) = within_page(at, next)?;
            }
        }
        Ok(())
    }

    /// Puts all values of `items`, which [`Columns::measure_full`] measured and which have their places now.
    pub(super) fn scatter_full(
        &mut self,
        page: &mut [u8],
        items: &[Item],
        header: usize,
        scratch: &FullScratch,
        text: &[u8],
    ) -> Decoded<()> {
        if items.is_empty() {
            return Ok(());
        }
        let mut rows = scratch.rows.chunks_exact(items.len());
        let (mut end, mut is_open) = (header, true);
        for (attribute, column) in present(&self.attributes, &mut self.columns, &scratch.has) {
            is_open &= attribute.length > 0;
            if is_open {
                let at = align(end, usize::from(attribute.alignment));
                end = at + attribute.length as usize;
                column.scatter_at(page, *attribute, items.iter().map(|item| item.at as usize + at), text)?;
                continue;
            }
            let row = rows.next().ok_or(OUTSIDE)?;
            let places = items.iter().zip(row).map(|(item, at)| item.at as usize + usize::from(*at));
            if attribute.length > 0 {
                column.scatter_at(page, *attribute, places, text)?;
            } else {
                let mut left = text.get(column.text_left.clone()).ok_or(OUTSIDE)?;
                column.scatter_variable(page, places, &mut left, shares_keys(self.are_keys, *attribute))?;
                column.text_left.start = column.text_left.end - left.len();
            }
        }
        Ok(())
    }
}

fn begin_cursors(cursors: &mut Vec<u32>, items: &[Item], end: usize) {
    cursors.clear();
    cursors.extend(items.iter().map(|item| item.at + end as u32));
}

/// Puts the next values of a stream, `offset` behind their places.
#[inline]
fn put_all<T: Copy, const N: usize>(
    page: &mut [u8],
    places: impl ExactSizeIterator<Item = usize>,
    offset: usize,
    stream: &mut Stream<T>,
    bytes_of: impl Fn(T) -> [u8; N],
) -> Decoded<()> {
    let values = stream.take(places.len())?;
    for (at, value) in places.zip(values) {
        put(page, at + offset, bytes_of(*value))?;
    }
    Ok(())
}

impl Column {
    /// Appends the values of fixed length at `places`.
    #[inline]
    fn gather_at(&mut self, page: &[u8], attribute: Attribute, places: impl ExactSizeIterator<Item = usize> + Clone) {
        match (attribute.value_type, attribute.length) {
            (ValueType::Integer, 1) => self.bytes.values.extend(places.map(|at| page[at])),
            (ValueType::Integer, 2) => self.words.values.extend(places.map(|at| u32::from(u16_at(page, at)))),
            (ValueType::Integer | ValueType::Float, 4) => {
                self.words.values.extend(places.map(|at| u32_at(page, at)));
            }
            (ValueType::Integer | ValueType::Float, 8) => {
                self.longs[0].values.extend(places.map(|at| u64_at(page, at)));
            }
            (ValueType::Floats, length) => {
                for (number, stream) in self.longs[..length as usize / 8].iter_mut().enumerate() {
                    stream.values.extend(places.clone().map(|at| u64_at(page, at + 8 * number)));
                }
            }
            (ValueType::Uuid, _) => {
                self.longs[0].values.extend(places.clone().map(|at| u64_at(page, at).swap_bytes()));
                self.longs[1].values.extend(places.map(|at| u64_at(page, at + 8)));
            }
            (_, length) => places.for_each(|at| append(&mut self.text, page, at, at + length as usize)),
        }
    }

    /// Puts the next values of fixed length at `places`.
    #[inline]
    fn scatter_at(
        &mut self,
        page: &mut [u8],
        attribute: Attribute,
        mut places: impl ExactSizeIterator<Item = usize> + Clone,
        text: &[u8],
    ) -> Decoded<()> {
        match (attribute.value_type, attribute.length) {
            (ValueType::Integer, 1) => put_all(page, places, 0, &mut self.bytes, |value| [value]),
            (ValueType::Integer, 2) => put_all(page, places, 0, &mut self.words, |value| (value as u16).to_le_bytes()),
            (ValueType::Integer | ValueType::Float, 4) => put_all(page, places, 0, &mut self.words, u32::to_le_bytes),
            (ValueType::Integer | ValueType::Float, 8) => {
                put_all(page, places, 0, &mut self.longs[0], u64::to_le_bytes)
            }
            (ValueType::Floats, length) => {
                let streams = self.longs[..length as usize / 8].iter_mut().enumerate();
                for (number, stream) in streams {
                    put_all(page, places.clone(), 8 * number, stream, u64::to_le_bytes)?;
                }
                Ok(())
            }
            (ValueType::Uuid, _) => {
                let [first, second, ..] = &mut self.longs;
                put_all(page, places.clone(), 0, first, u64::to_be_bytes)?;
                put_all(page, places, 8, second, u64::to_le_bytes)
            }
            (_, length) => {
                let mut left = text.get(self.text_left.clone()).ok_or(OUTSIDE)?;
                places.try_for_each(|at| put_bytes(page, at, take_text(&mut left, length as usize)?))?;
                self.text_left.start = self.text_left.end - left.len();
                Ok(())
            }
        }
    }

    /// Finds the next value of variable length of each tuple and appends it; false if there is none.
    fn gather_variable_full(
        &mut self,
        page: &[u8],
        items: &[Item],
        cursors: &mut [u32],
        attribute: Attribute,
        are_keys: bool,
    ) -> bool {
        let start = self.words.values.len();
        self.words.values.resize(start + items.len(), 0);
        // Behind the text lies room for short values, so that each is two moves and no more.
        let mut text_end = self.text.len();
        for (place, (item, cursor)) in (start..).zip(items.iter().zip(cursors)) {
            let end = (item.at + item.length) as usize;
            if !are_keys && let Some((length, value)) = short_value(page, *cursor as usize, end) {
                if text_end + SHORT_BYTES > self.text.len() {
                    self.text.resize(text_end + items.len() * SHORT_BYTES, 0);
                }
                self.text[text_end..text_end + SHORT_BYTES].copy_from_slice(value);
                text_end += length;
                *cursor += length as u32 + 1;
                self.words.values[place] = (length as u32) << 2 | form::SHORT;
                continue;
            }
            self.text.truncate(text_end);
            let Some((at, next)) = find_variable(page, attribute, *cursor as usize, end) else { return false };
            *cursor = next as u32;
            self.words.values[place] = self.gather_one(page, at, next, are_keys);
            text_end = self.text.len();
        }
        self.text.truncate(text_end);
        true
    }
}

/// The value with a header of one byte that is at `at` and ends before `end`, if there is one of at most [`SHORT_BYTES`]: its
/// length, and its bytes with what lies behind them.
#[inline]
fn short_value(page: &[u8], at: usize, end: usize) -> Option<(usize, &[u8; SHORT_BYTES])> {
    let (header, value) = page.get(at..)?.split_first()?;
    let length = usize::from(header >> 1).wrapping_sub(1);
    let is_short = header & 1 == 1 && length <= SHORT_BYTES && at + 1 + length <= end;
    value.first_chunk().filter(|_| is_short).map(|value| (length, value))
}
