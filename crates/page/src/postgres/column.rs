//! One column of a layout: its values in streams, out of pages and back into them.

use std::cell::Cell;
use std::ops::Range;

use super::grid::{EXTERNAL_BYTES, EXTERNAL_TAG, find_fixed, find_variable, form};
use super::measure::{measure_fixed, measure_variable, measured, within_page};
use super::wire::{OUTSIDE, SHORT_BYTES, align, append, common_length, copy, put, put_bytes, u16_at, u32_at, u64_at};
use crate::error::{Damaged, Decoded};
use crate::layout::{Attribute, ValueType};
use crate::stream::{Stream, held_bytes};

/// The most first bytes that a key is told to share with the one before.
const SHARED_MAX: usize = u8::MAX as usize;

/// How much room for short values is made at once: it is filled before.
const ROOM_BYTES: usize = 1 << 10;

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
    pub(super) fn clear(&mut self) {
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

    /// The memory it keeps.
    pub(super) fn held_bytes(&self) -> usize {
        let longs = self.longs.iter().map(Stream::held_bytes).sum::<usize>();
        let pointers = self.pointers.iter().map(Stream::held_bytes).sum::<usize>();
        let bytes = self.bytes.held_bytes() + self.shared.held_bytes() + held_bytes(&self.text) + held_bytes(&self.key);
        let bytes = bytes + held_bytes(&self.key_before);
        longs + pointers + bytes + self.words.held_bytes()
    }
}

/// Where the next column of a tuple is, and where the tuple ends.
pub(super) type Cursor<'c> = (&'c Cell<u32>, usize);

/// `cursors` as those of some of the tuples are moved.
pub(super) fn cells(cursors: &mut [u32]) -> &[Cell<u32>] {
    Cell::from_mut(cursors).as_slice_of_cells()
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
    /// What the column holds now, at the start of a page.
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
    /// Finds the next value of each tuple and appends it; false if there is none. `row` is scratch.
    #[inline]
    pub(super) fn gather<'c>(
        &mut self,
        page: &[u8],
        attribute: Attribute,
        tuples: impl ExactSizeIterator<Item = Cursor<'c>>,
        are_keys: bool,
        row: &mut Vec<u16>,
    ) -> bool {
        if attribute.length < 0 {
            let gather = if are_keys { Self::gather_keys } else { Self::gather_variable };
            return gather(self, page, attribute, tuples);
        }
        row.clear();
        row.resize(tuples.len(), 0);
        for ((cursor, end), place) in tuples.zip(row.iter_mut()) {
            let Some((at, next)) = find_fixed(page, attribute, cursor.get() as usize, end) else { return false };
            *place = at as u16;
            cursor.set(next as u32);
        }
        self.gather_at(page, attribute, row.iter().map(|at| usize::from(*at)));
        true
    }

    /// Appends the values of fixed length at `places`.
    #[inline]
    pub(super) fn gather_at(
        &mut self,
        page: &[u8],
        attribute: Attribute,
        places: impl ExactSizeIterator<Item = usize> + Clone,
    ) {
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

    /// Finds where in its tuple the next value of each will be, for which it may take their heads; cursors are moved behind it.
    #[inline]
    pub(super) fn measure<'c>(
        &mut self,
        attribute: Attribute,
        cursors: impl ExactSizeIterator<Item = &'c Cell<u32>>,
        row: &mut [u16],
    ) -> Decoded<()> {
        let alignment = usize::from(attribute.alignment);
        if attribute.length > 0 {
            for (cursor, place) in cursors.zip(row) {
                let at = align(cursor.get() as usize, alignment);
                let (at, next) = within_page(at, at + attribute.length as usize)?;
                *place = at;
                cursor.set(next);
            }
            return Ok(());
        }
        self.page_heads = cursors.len();
        let heads = self.words.take(cursors.len())?;
        for ((cursor, place), head) in cursors.zip(row).zip(heads) {
            let (at, next) = measured(*head, cursor.get(), u32::from(attribute.alignment));
            let (at, next) = within_page(at as usize, next as usize)?;
            *place = at;
            cursor.set(next);
        }
        Ok(())
    }

    /// As [`Column::measure`], of tuples side by side.
    #[inline]
    pub(super) fn measure_all(&mut self, attribute: Attribute, cursors: &mut [u32], row: &mut [u16]) -> Decoded<()> {
        let alignment = u32::from(attribute.alignment);
        let ends = if attribute.length > 0 {
            measure_fixed(attribute.length as u32, alignment, cursors, row)
        } else {
            self.page_heads = cursors.len();
            measure_variable(self.words.take(cursors.len())?, alignment, cursors, row)
        };
        if ends > u32::from(u16::MAX) { Err(OUTSIDE) } else { Ok(()) }
    }

    /// Puts the next values at `places`; those of variable length have been measured.
    #[inline]
    pub(super) fn scatter(
        &mut self,
        page: &mut [u8],
        attribute: Attribute,
        places: impl ExactSizeIterator<Item = usize> + Clone,
        text: &[u8],
        are_keys: bool,
    ) -> Decoded<()> {
        if attribute.length > 0 {
            return self.scatter_fixed(page, attribute, places, text);
        }
        let mut left = text.get(self.text_left.clone()).ok_or(OUTSIDE)?;
        self.scatter_variable(page, places, &mut left, are_keys)?;
        self.text_left.start = self.text_left.end - left.len();
        Ok(())
    }

    /// Puts the next values of fixed length at `places`.
    #[inline]
    fn scatter_fixed(
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
    fn gather_variable<'c>(
        &mut self,
        page: &[u8],
        attribute: Attribute,
        tuples: impl ExactSizeIterator<Item = Cursor<'c>>,
    ) -> bool {
        let (start, count) = (self.words.values.len(), tuples.len());
        self.words.values.resize(start + count, 0);
        // Behind the text lies room for short values, so that each is two moves and no more.
        let mut text_end = self.text.len();
        for (place, (cursor, end)) in (start..).zip(tuples) {
            let at = cursor.get() as usize;
            if let Some((length, value)) = short_value(page, at, end) {
                if text_end + SHORT_BYTES > self.text.len() {
                    self.text.resize(text_end + ROOM_BYTES, 0);
                }
                self.text[text_end..text_end + SHORT_BYTES].copy_from_slice(value);
                text_end += length;
                cursor.set((at + length + 1) as u32);
                self.words.values[place] = (length as u32) << 2 | form::SHORT;
                continue;
            }
            self.text.truncate(text_end);
            let Some((at, next)) = find_variable(page, attribute, at, end) else { return false };
            cursor.set(next as u32);
            self.words.values[place] = self.gather_one(page, at, next);
            text_end = self.text.len();
        }
        self.text.truncate(text_end);
        true
    }

    /// As [`Column::gather_variable`], of keys, which are stored as what they do not share with the one before.
    fn gather_keys<'c>(
        &mut self,
        page: &[u8],
        attribute: Attribute,
        tuples: impl ExactSizeIterator<Item = Cursor<'c>>,
    ) -> bool {
        let mut before = None;
        for (cursor, end) in tuples {
            let Some((at, next)) = find_variable(page, attribute, cursor.get() as usize, end) else { return false };
            cursor.set(next as u32);
            self.gather_key(page, at, next, &mut before);
        }
        self.keep_key(before);
        true
    }

    /// Appends all of the key from `at` to `end`. `before` is the key before if that lies on this page, too; it becomes this one.
    #[inline]
    fn gather_key<'p>(&mut self, page: &'p [u8], at: usize, end: usize, before: &mut Option<&'p [u8]>) {
        let Some((kind, start)) = self.form_of(page, at) else { return self.words.values.push(form::EXTERNAL) };
        let key = &page[start..end];
        let shared = common_length(before.unwrap_or(&self.key), &key[..key.len().min(SHARED_MAX)]);
        self.shared.values.push(shared as u8);
        append(&mut self.text, page, start + shared, end);
        self.words.values.push((key.len() as u32) << 2 | kind);
        *before = Some(key);
    }

    /// Keeps the last key of a page, if there was one, for the next page.
    fn keep_key(&mut self, last: Option<&[u8]>) {
        if let Some(key) = last {
            self.key.clear();
            self.key.extend_from_slice(key);
        }
    }

    /// Appends the values of variable length at the places of `row`.
    pub(super) fn gather_variable_at(&mut self, page: &[u8], row: &[u16], are_keys: bool) {
        let mut before = None;
        for at in row.iter().map(|at| usize::from(*at)) {
            let first = page[at];
            let next = match first {
                1 => at + EXTERNAL_BYTES,
                _ if first & 1 == 1 => at + usize::from(first >> 1),
                _ => at + (u32_at(page, at) >> 2) as usize,
            };
            if are_keys {
                self.gather_key(page, at, next, &mut before);
            } else {
                let head = self.gather_one(page, at, next);
                self.words.values.push(head);
            }
        }
        self.keep_key(before);
    }

    /// Appends all of the value from `at` to `end` but its head, which it gives.
    #[inline]
    fn gather_one(&mut self, page: &[u8], at: usize, end: usize) -> u32 {
        let Some((kind, start)) = self.form_of(page, at) else { return form::EXTERNAL };
        append(&mut self.text, page, start, end);
        ((end - start) as u32) << 2 | kind
    }

    /// How the value at `at` is stored and where its payload starts; a pointer to a value elsewhere is appended, and has none.
    #[inline]
    fn form_of(&mut self, page: &[u8], at: usize) -> Option<(u32, usize)> {
        let first = page[at];
        if first == 1 {
            for (field, pointer) in self.pointers.iter_mut().enumerate() {
                pointer.values.push(u32_at(page, at + 2 + 4 * field));
            }
            return None;
        }
        Some(match first & 3 {
            1 | 3 => (form::SHORT, at + 1),
            0 => (form::LONG, at + 4),
            _ => (form::COMPRESSED, at + 4),
        })
    }

    /// Puts the values of a page at `places`; [`Column::measure`] took their heads. Not inlined: among
    /// all columns' loops this one would keep what it needs on the stack.
    #[inline(never)]
    fn scatter_variable(
        &mut self,
        page: &mut [u8],
        places: impl Iterator<Item = usize>,
        text: &mut &[u8],
        are_keys: bool,
    ) -> Decoded<()> {
        let heads = self.words.taken(self.page_heads)?;
        for (at, head) in places.zip(heads) {
            let length = (head >> 2) as usize;
            if !are_keys && head & 3 == form::SHORT && put_short(page, at, length, text).is_some() {
                continue;
            }
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

/// Puts the next value of `text`, of `length` bytes, with its header of one byte at `at`. None, and nothing is put, if it has more than
/// [`SHORT_BYTES`], or so many are not left of the text or of the page: then it is for the caller.
#[inline]
fn put_short(page: &mut [u8], at: usize, length: usize, text: &mut &[u8]) -> Option<()> {
    let value: &[u8; SHORT_BYTES] = text.first_chunk()?;
    let (header, place) = page.get_mut(at..)?.split_first_mut()?;
    let place: &mut [u8; SHORT_BYTES] = place.first_chunk_mut()?;
    copy(place.get_mut(..length)?, value.get(..length)?);
    *header = ((length + 1) << 1 | 1) as u8;
    *text = &text[length..];
    Some(())
}

/// The next `length` bytes of `text`.
#[inline]
fn take_text<'t>(text: &mut &'t [u8], length: usize) -> Decoded<&'t [u8]> {
    let (value, rest) = text.split_at_checked(length).ok_or(Damaged("a column has less text than its values need"))?;
    *text = rest;
    Ok(value)
}

const TOO_LONG: Damaged = Damaged("a value with a short header is too long for it");

/// The value with a header of one byte that is at `at` and ends before `end`, if there is one of at most [`SHORT_BYTES`]: its
/// length, and its bytes with what lies behind them.
#[inline]
fn short_value(page: &[u8], at: usize, end: usize) -> Option<(usize, &[u8; SHORT_BYTES])> {
    let (header, value) = page.get(at..)?.split_first()?;
    let length = usize::from(header >> 1).wrapping_sub(1);
    let is_short = header & 1 == 1 && length <= SHORT_BYTES && at + 1 + length <= end;
    value.first_chunk().filter(|_| is_short).map(|value| (length, value))
}
