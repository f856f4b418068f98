//! The columns of one layout: values in streams by column, out of pages and back into them.

use std::ops::Range;

use super::grid::{EXTERNAL_BYTES, EXTERNAL_TAG, Grid, TupleSpan, fill, form};
use super::wire::{OUTSIDE, align, append, put, put_bytes, u16_at, u32_at, u64_at};
use crate::error::{Damaged, Decoded};
use crate::layout::{Attribute, ValueType};
use crate::stream::{Stream, held_bytes};

/// The most streams of eight bytes a column has.
pub(crate) const LONGS_MAX: usize = 4;

/// The values of one column. Which streams are in use follows from the attribute.
#[derive(Debug, Default)]
pub(crate) struct Column {
    /// Integers of one byte.
    pub(crate) bytes: Stream<u8>,
    /// Integers and floats of two and four bytes; of variable length: payload bytes x 4 + form.
    pub(crate) words: Stream<u32>,
    /// Integers and floats of eight bytes; of several floats each in its own stream; the first half of a uuid, as a
    /// big-endian number, and in the next stream its second half.
    pub(crate) longs: [Stream<u64>; LONGS_MAX],
    /// Payloads of variable length one after the other; values of fixed length with no meaning known.
    pub(crate) text: Vec<u8>,
    /// What is left of them in the text of the frame, while pages are made.
    pub(crate) text_left: Range<usize>,
    /// TOAST pointers by field.
    pub(crate) pointers: [Stream<u32>; 4],
    /// Of index keys of variable length: how many of its first bytes are those of the key before.
    pub(crate) shared: Stream<u8>,
    /// The key before, while pages are taken apart or put together.
    key: Vec<u8>,
    /// That key at the start of the page at hand.
    key_before: Vec<u8>,
    /// How many heads the page at hand took from `words`.
    page_heads: usize,
}

impl Column {
    fn clear(&mut self) {
        self.bytes.clear();
        self.words.clear();
        self.longs.iter_mut().for_each(Stream::clear);
        self.text.clear();
        self.text_left = 0..0;
        self.shared.clear();
        self.key.clear();
        self.page_heads = 0;
        self.pointers.iter_mut().for_each(Stream::clear);
    }
}

impl Column {
    fn held_bytes(&self) -> usize {
        let longs = self.longs.iter().map(Stream::held_bytes).sum::<usize>();
        let pointers = self.pointers.iter().map(Stream::held_bytes).sum::<usize>();
        let bytes = self.bytes.held_bytes() + self.shared.held_bytes() + held_bytes(&self.text) + held_bytes(&self.key);
        let bytes = bytes + held_bytes(&self.key_before);
        longs + pointers + bytes + self.words.held_bytes()
    }
}

/// How much a column held before the page at hand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    values: usize,
    text: usize,
    pointers: usize,
    shared: usize,
}

impl Column {
    /// What the column holds now.
    pub(super) fn mark(&mut self, attribute: Attribute) -> Mark {
        let values = match (attribute.value_type, attribute.length) {
            (ValueType::Integer, 1) => self.bytes.values.len(),
            (ValueType::Integer | ValueType::Float, 2 | 4) | (_, -1) => self.words.values.len(),
            _ => self.longs[0].values.len(),
        };
        let (text, pointers) = (self.text.len(), self.pointers[0].values.len());
        self.key_before.clone_from(&self.key);
        Mark { values, text, pointers, shared: self.shared.values.len() }
    }

    /// Forgets all values behind `mark`.
    pub(super) fn back_to(&mut self, mark: Mark, attribute: Attribute) {
        match (attribute.value_type, attribute.length) {
            (ValueType::Integer, 1) => self.bytes.values.truncate(mark.values),
            (ValueType::Integer | ValueType::Float, 2 | 4) | (_, -1) => self.words.values.truncate(mark.values),
            _ => self.longs.iter_mut().for_each(|stream| stream.values.truncate(mark.values)),
        }
        self.text.truncate(mark.text);
        self.pointers.iter_mut().for_each(|pointer| pointer.values.truncate(mark.pointers));
        self.shared.values.truncate(mark.shared);
        std::mem::swap(&mut self.key, &mut self.key_before);
    }
}

/// The columns of one layout in one frame.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) columns: Vec<Column>,
    /// Index keys come in order: text shares its beginning with the key before.
    pub(crate) are_keys: bool,
}

/// The values of `row` that are there.
fn present(row: &[u16]) -> impl Iterator<Item = usize> {
    row.iter().filter(|at| **at != 0).map(|at| usize::from(*at))
}

/// Appends `read` of each place.
#[inline]
fn gather<T: Copy>(out: &mut Stream<T>, row: &[u16], is_full: bool, read: impl Fn(usize) -> T) {
    if is_full {
        out.values.extend(row.iter().map(|at| read(usize::from(*at))));
    } else {
        out.values.extend(present(row).map(read));
    }
}

impl Columns {
    /// Starts a frame with another layout; memory is kept.
    pub(crate) fn begin(&mut self, attributes: &[Attribute], are_keys: bool) {
        self.attributes.clear();
        self.attributes.extend_from_slice(attributes);
        self.are_keys = are_keys;
        if self.columns.len() < attributes.len() {
            self.columns.resize_with(attributes.len(), Column::default);
        }
        self.columns.iter_mut().for_each(Column::clear);
    }

    /// The memory they keep.
    pub(crate) fn held_bytes(&self) -> usize {
        held_bytes(&self.columns) + self.columns.iter().map(Column::held_bytes).sum::<usize>()
    }

    /// Appends all values that `grid` found in `page`.
    pub(super) fn gather(&mut self, page: &[u8], grid: &Grid) {
        for (number, (attribute, column)) in self.attributes.iter().zip(&mut self.columns).enumerate() {
            let (row, value_count) = (grid.row(number), grid.value_count(number));
            if value_count == 0 {
                continue;
            }
            let is_full = value_count == row.len();
            match (attribute.value_type, attribute.length) {
                (ValueType::Integer, 1) => gather(&mut column.bytes, row, is_full, |at| page[at]),
                (ValueType::Integer, 2) => gather(&mut column.words, row, is_full, |at| u32::from(u16_at(page, at))),
                (ValueType::Integer | ValueType::Float, 4) => {
                    gather(&mut column.words, row, is_full, |at| u32_at(page, at));
                }
                (ValueType::Integer | ValueType::Float, 8) => {
                    gather(&mut column.longs[0], row, is_full, |at| u64_at(page, at));
                }
                (ValueType::Floats, length) => {
                    for (number, stream) in column.longs[..length as usize / 8].iter_mut().enumerate() {
                        gather(stream, row, is_full, |at| u64_at(page, at + 8 * number));
                    }
                }
                (ValueType::Uuid, _) => {
                    gather(&mut column.longs[0], row, is_full, |at| u64_at(page, at).swap_bytes());
                    gather(&mut column.longs[1], row, is_full, |at| u64_at(page, at + 8));
                }
                (_, length) if length > 0 => {
                    let length = length as usize;
                    present(row).for_each(|at| append(&mut column.text, page, at, at + length));
                }
                _ => column.gather_variable(page, row, shares_keys(self.are_keys, *attribute)),
            }
        }
    }

    /// The values of the grid's tuples are measured: `cursors`, which start at the tuples' data, are moved behind the last
    /// column, and `value_at` tells where within the tuple each value will be.
    pub(super) fn measure(&mut self, grid: &mut Grid, bitmaps: &[u8]) -> Decoded<()> {
        let count = grid.tuples.len();
        grid.count_shared(self.attributes.len(), bitmaps);
        grid.value_at.clear();
        grid.value_at.resize(self.attributes.len() * count, 0);
        grid.counts.clear();
        if count == 0 {
            return Ok(());
        }
        let mut prefix = grid.open_prefix();
        let rows = grid.value_at.chunks_exact_mut(count);
        for (number, ((attribute, column), row)) in self.attributes.iter().zip(&mut self.columns).zip(rows).enumerate()
        {
            if prefix.advance(*attribute) {
                fill(row, &grid.tuples, prefix.at);
                grid.counts.push(count as u16);
                continue;
            }
            prefix.leave(&grid.tuples, &mut grid.cursors);
            let alignment = usize::from(attribute.alignment);
            let value_count = match number < grid.shared_count {
                true => count,
                false => grid.tuples.iter().filter(|tuple| tuple.has(number, bitmaps)).count(),
            };
            grid.counts.push(value_count as u16);
            if value_count == 0 {
                continue;
            }
            let has = |tuple: &TupleSpan| value_count == count || tuple.has(number, bitmaps);
            let there = grid.tuples.iter().zip(&mut grid.cursors).zip(row).filter(|((tuple, _), _)| has(tuple));
            if attribute.length > 0 {
                for ((_, cursor), place) in there {
                    let at = align(*cursor as usize, alignment);
                    (*place, *cursor) = within_page(at, at + attribute.length as usize)?;
                }
                continue;
            }
            let heads = column.take_heads(value_count)?;
            for (((_, cursor), place), head) in there.zip(heads) {
                let (at, next) = measured(*head, *cursor as usize, alignment);
                (*place, *cursor) = within_page(at, next)?;
            }
        }
        prefix.leave(&grid.tuples, &mut grid.cursors);
        Ok(())
    }

    /// Puts all values into `page`, where `place` says for each tuple what to add to its places of `value_at`.
    pub(super) fn scatter(&mut self, page: &mut [u8], grid: &Grid, places: &[u32], text: &[u8]) -> Decoded<()> {
        for (number, (attribute, column)) in self.attributes.iter().zip(&mut self.columns).enumerate() {
            let (row, value_count) = (grid.row(number), grid.value_count(number));
            if value_count == 0 {
                continue;
            }
            let target = Target { row, places, value_count };
            match (attribute.value_type, attribute.length) {
                (ValueType::Integer, 1) => target.put(page, 0, &mut column.bytes, |value| [value])?,
                (ValueType::Integer, 2) => {
                    target.put(page, 0, &mut column.words, |value| (value as u16).to_le_bytes())?;
                }
                (ValueType::Integer | ValueType::Float, 4) => {
                    target.put(page, 0, &mut column.words, u32::to_le_bytes)?;
                }
                (ValueType::Integer | ValueType::Float, 8) => {
                    target.put(page, 0, &mut column.longs[0], u64::to_le_bytes)?;
                }
                (ValueType::Floats, length) => {
                    for (number, stream) in column.longs[..length as usize / 8].iter_mut().enumerate() {
                        target.put(page, 8 * number, stream, u64::to_le_bytes)?;
                    }
                }
                (ValueType::Uuid, _) => {
                    let [first, second, ..] = &mut column.longs;
                    target.put(page, 0, first, u64::to_be_bytes)?;
                    target.put(page, 8, second, u64::to_le_bytes)?;
                }
                (_, length) => {
                    let mut left = text.get(column.text_left.clone()).ok_or(OUTSIDE)?;
                    if length > 0 {
                        let mut places = target.all();
                        places.try_for_each(|at| put_bytes(page, at, take_text(&mut left, length as usize)?))?;
                    } else {
                        let are_keys = shares_keys(self.are_keys, *attribute);
                        column.scatter_variable(page, target.all(), &mut left, are_keys)?;
                    }
                    column.text_left.start = column.text_left.end - left.len();
                }
            }
        }
        Ok(())
    }
}

/// Whether values are stored as what they do not share with the one before. Numbers have better ways.
pub(crate) fn shares_keys(are_keys: bool, attribute: Attribute) -> bool {
    are_keys && attribute.value_type == ValueType::Varlena
}

/// Where the values of one column go on a page.
struct Target<'a> {
    /// Within their tuples; 0 where there is none.
    row: &'a [u16],
    /// What is to be added.
    places: &'a [u32],
    value_count: usize,
}

impl Target<'_> {
    /// All places.
    fn all(&self) -> impl Iterator<Item = usize> {
        let all = self.row.iter().zip(self.places).filter(|(at, _)| **at != 0);
        all.map(|(at, place)| usize::from(*at) + *place as usize)
    }

    /// Puts the next values of a stream, `offset` behind their places.
    #[inline]
    fn put<T: Copy, const N: usize>(
        &self,
        page: &mut [u8],
        offset: usize,
        stream: &mut Stream<T>,
        bytes_of: impl Fn(T) -> [u8; N],
    ) -> Decoded<()> {
        let values = stream.take(self.value_count)?;
        if self.value_count == self.row.len() {
            let all = self.row.iter().zip(self.places).zip(values);
            for ((at, place), value) in all {
                put(page, usize::from(*at) + *place as usize + offset, bytes_of(*value))?;
            }
            return Ok(());
        }
        self.all().zip(values).try_for_each(|(at, value)| put(page, at + offset, bytes_of(*value)))
    }
}

impl Column {
    fn gather_variable(&mut self, page: &[u8], row: &[u16], are_keys: bool) {
        for at in present(row) {
            let first = page[at];
            let next = match first {
                1 => at + EXTERNAL_BYTES,
                _ if first & 1 == 1 => at + usize::from(first >> 1),
                _ => at + (u32_at(page, at) >> 2) as usize,
            };
            let head = self.gather_one(page, at, next, are_keys);
            self.words.values.push(head);
        }
    }

    /// Appends all of the value from `at` to `end` but its head, which it gives.
    #[inline]
    pub(super) fn gather_one(&mut self, page: &[u8], at: usize, end: usize, are_keys: bool) -> u32 {
        let first = page[at];
        let (kind, start) = if first == 1 {
            for (field, pointer) in self.pointers.iter_mut().enumerate() {
                pointer.values.push(u32_at(page, at + 2 + 4 * field));
            }
            return form::EXTERNAL;
        } else if first & 1 == 1 {
            (form::SHORT, at + 1)
        } else {
            (if first & 2 == 0 { form::LONG } else { form::COMPRESSED }, at + 4)
        };
        if are_keys {
            let value = &page[start..end];
            let shared = shared_length(&self.key, value);
            self.shared.values.push(shared as u8);
            self.text.extend_from_slice(&value[shared..]);
            self.key.truncate(shared);
            self.key.extend_from_slice(&value[shared..]);
        } else {
            append(&mut self.text, page, start, end);
        }
        ((end - start) as u32) << 2 | kind
    }

    /// The heads of the page's next `count` values.
    pub(super) fn take_heads(&mut self, count: usize) -> Decoded<&[u32]> {
        self.page_heads = count;
        self.words.take(count)
    }

    /// Puts the values of a page at `places`; [`Columns::measure`] took their heads.
    pub(super) fn scatter_variable(
        &mut self,
        page: &mut [u8],
        places: impl Iterator<Item = usize>,
        text: &mut &[u8],
        are_keys: bool,
    ) -> Decoded<()> {
        let heads = self.words.taken(self.page_heads)?;
        for (at, head) in places.zip(heads) {
            let length = (head >> 2) as usize;
            let header = match head & 3 {
                form::EXTERNAL => {
                    put(page, at, [1, EXTERNAL_TAG])?;
                    for (field, pointer) in self.pointers.iter_mut().enumerate() {
                        put(page, at + 2 + 4 * field, pointer.next()?.to_le_bytes())?;
                    }
                    continue;
                }
                form::SHORT => {
                    let header = u8::try_from((length + 1) << 1 | 1).map_err(|_| TOO_LONG)?;
                    put(page, at, [header])?;
                    1
                }
                kind => {
                    let header = (length as u32 + 4) << 2 | if kind == form::COMPRESSED { 2 } else { 0 };
                    put(page, at, header.to_le_bytes())?;
                    4
                }
            };
            if !are_keys {
                put_bytes(page, at + header, take_text(text, length)?)?;
                continue;
            }
            let shared = usize::from(self.shared.next()?);
            if shared > length || shared > self.key.len() {
                return Err(Damaged("an index key shares more than the key before it has"));
            }
            self.key.truncate(shared);
            self.key.extend_from_slice(take_text(text, length - shared)?);
            put_bytes(page, at + header, &self.key)?;
        }
        Ok(())
    }
}

/// Place and end of a value of variable length, looked for from `cursor` on.
#[inline]
pub(super) fn measured(head: u32, cursor: usize, alignment: usize) -> (usize, usize) {
    let length = (head >> 2) as usize;
    match head & 3 {
        form::SHORT => (cursor, cursor + 1 + length),
        form::EXTERNAL => (cursor, cursor + EXTERNAL_BYTES),
        _ => {
            let at = align(cursor, alignment);
            (at, at + 4 + length)
        }
    }
}

/// The two as a grid has them; no tuple is larger than a page, and no page than 32 KiB.
#[inline]
pub(super) fn within_page(at: usize, next: usize) -> Decoded<(u16, u32)> {
    if next > usize::from(u16::MAX) { Err(OUTSIDE) } else { Ok((at as u16, next as u32)) }
}

/// The next `length` bytes of `text`.
#[inline]
pub(super) fn take_text<'t>(text: &mut &'t [u8], length: usize) -> Decoded<&'t [u8]> {
    let (value, rest) = text.split_at_checked(length).ok_or(Damaged("a column has less text than its values need"))?;
    *text = rest;
    Ok(value)
}

const TOO_LONG: Damaged = Damaged("a value with a short header is too long for it");

/// How many first bytes `value` shares with `key`, at most 255.
#[inline]
fn shared_length(key: &[u8], value: &[u8]) -> usize {
    key.iter().zip(value).take(255).take_while(|(a, b)| a == b).count()
}
