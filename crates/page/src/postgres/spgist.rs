//! Leaves of an SP-GiST index: each row with what the tree has left of its value, in chains. Layout:
//! src/include/access/spgist_private.h.
//!
//! Inner pages are few, and go as shells.

use super::columns::Columns;
use super::grid::{Grid, NO_NULLS, TupleSpan};
use super::index::LastRow;
use super::items::{Item, Items};
use super::streams::{ByteStream, NumberStream, PageStreams, flag};
use super::wire::{MAX_ALIGNMENT, OUTSIDE, align, fills_tuple, put, put_bytes, u16_at, u32_at};
use crate::error::{Damaged, Decoded};

/// Bytes of the opaque area at the end of a page: flags, counts of redirections and of placeholders, what page this is.
pub(super) const OPAQUE_BYTES: usize = 8;
/// What page this is.
const PAGE_ID: u16 = 0xFF82;
/// Of the flags.
const LEAF: u16 = 1 << 2;

/// Bytes of a tuple's header; a value follows, or nothing if it is null.
const HEADER_BYTES: usize = 16;
/// Bits of the first field: the tuple's state, of which 0 is a row's, below its bytes.
const STATE_BITS: u32 = 2;
/// Where the next one of the chain is, and the address of the row.
const NEXT: usize = 4;
const ROW: usize = 6;
/// Behind them: zeros, or a bitmap.
const END_OF_FIELDS: usize = 12;
/// Of the field at [`NEXT`]: others are flags.
const NEXT_MASK: u16 = 0x3FFF;
/// A tuple that keeps a line pointer's place and is nothing else: state 3, 16 bytes, no next one, no row, no transaction.
const PLACEHOLDER: [u8; HEADER_BYTES] = [0x43, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0, 0, 0];

/// A row with its value.
const VALUE: u8 = 0;
/// A row whose value is null.
const NULL: u8 = 1;
/// [`PLACEHOLDER`].
const PLACE: u8 = 2;
/// As it is: redirections, rows with a bitmap, and what is not as it should be.
const RAW: u8 = 3;

/// Whether the page's tuples can be taken apart.
pub(super) fn has_tuples(page: &[u8], special: usize, columns: &Columns) -> bool {
    !columns.attributes.is_empty()
        && special + OPAQUE_BYTES == page.len()
        && u16_at(page, special + 6) == PAGE_ID
        && u16_at(page, special) & LEAF != 0
}

/// The streams of the opaque area: flags, redirections, placeholders.
const OPAQUE: [NumberStream; 3] = [NumberStream::TreeFlags, NumberStream::TreeLevel, NumberStream::TreeCycle];

/// Takes the tuples of a leaf apart. Gives [`flag::TUPLE_STATES`] or nothing.
pub(super) fn store(
    page: &[u8],
    items: &Items,
    columns: &mut Columns,
    grid: &mut Grid,
    streams: &mut PageStreams,
    last: &mut LastRow,
) -> u8 {
    let opaque = page[page.len() - OPAQUE_BYTES..].as_chunks::<2>().0;
    for (stream, field) in OPAQUE.into_iter().zip(opaque) {
        streams.number(stream).values.push(u16::from_le_bytes(*field).into());
    }
    grid.clear();
    grid.tuples.extend(items.spans.iter().map(|item| span_of(page, *item, columns.attributes.len())));
    columns.gather(page, grid, |tuple, end| fills_tuple(page, end as usize, tuple.end as usize));
    let start = streams.byte(ByteStream::TupleState).values.len();
    let mut all = VALUE;
    for (item, tuple) in items.spans.iter().zip(&grid.tuples) {
        let state = store_tuple(page, *item, tuple, streams, last);
        streams.byte(ByteStream::TupleState).values.push(state);
        all |= state;
    }
    if all == VALUE {
        streams.byte(ByteStream::TupleState).values.truncate(start);
        return 0;
    }
    flag::TUPLE_STATES
}

/// Where a tuple's columns are, if all but them is in order.
fn span_of(page: &[u8], item: Item, column_count: usize) -> TupleSpan {
    let (at, length) = (item.at as usize, item.length as usize);
    if length < HEADER_BYTES || u32_at(page, at) != item.length << STATE_BITS {
        return TupleSpan::RAW;
    }
    let next = u16_at(page, at + NEXT);
    // A chain does not lead from a tuple to itself: that it stores as it stores its end.
    if next > NEXT_MASK || u32::from(next) == item.number || u32_at(page, at + END_OF_FIELDS) != 0 {
        return TupleSpan::RAW;
    }
    TupleSpan {
        data_at: (at + HEADER_BYTES) as u32,
        end: (at + length) as u32,
        column_count: if length == HEADER_BYTES { 0 } else { column_count as u16 },
        nulls_at: NO_NULLS,
        is_raw: false,
    }
}

/// Stores all of a tuple but its columns; gives its state.
fn store_tuple(page: &[u8], item: Item, tuple: &TupleSpan, streams: &mut PageStreams, last: &mut LastRow) -> u8 {
    let at = item.at as usize;
    if tuple.is_raw {
        let bytes = &page[at..at + item.length as usize];
        if bytes == PLACEHOLDER {
            return PLACE;
        }
        streams.number(NumberStream::RawLength).values.push(item.length);
        streams.byte(ByteStream::Raw).values.extend_from_slice(bytes);
        return RAW;
    }
    let next = u16_at(page, at + NEXT);
    let step = if next == 0 { 0 } else { (item.number as u16).wrapping_sub(next) };
    let (block, number) = last.store(page, at + ROW);
    streams.number(NumberStream::Info).values.push(step.into());
    streams.number(NumberStream::RowBlock).values.push(block);
    streams.number(NumberStream::RowNumber).values.push(number);
    if tuple.column_count == 0 { NULL } else { VALUE }
}

/// Scratch of [`SpGistPage::load`].
#[derive(Debug, Default)]
pub(super) struct SpGistScratch {
    states: Vec<u8>,
}

/// What is put together of a leaf.
pub(super) struct SpGistPage<'a> {
    pub(super) lower: usize,
    pub(super) special: usize,
    pub(super) flags: u8,
    pub(super) items: &'a mut Items,
    pub(super) columns: &'a mut Columns,
    pub(super) grid: &'a mut Grid,
    /// The text of the frame.
    pub(super) text: &'a [u8],
    pub(super) streams: &'a mut PageStreams,
    pub(super) scratch: &'a mut SpGistScratch,
    pub(super) last: &'a mut LastRow,
}

impl SpGistPage<'_> {
    /// Puts all tuples into `page`, whose states of line pointers have been read. Gives where the lowest starts.
    pub(super) fn load(&mut self, page: &mut [u8]) -> Decoded<usize> {
        for (stream, at) in OPAQUE.into_iter().zip((self.special..).step_by(2)) {
            put(page, at, (self.streams.number(stream).next()? as u16).to_le_bytes())?;
        }
        put(page, self.special + 6, PAGE_ID.to_le_bytes())?;
        self.read_states()?;
        self.measure()?;
        let upper = self.items.place(page, self.lower, self.special, self.flags, self.streams)?;
        self.columns.scatter(page, self.grid, &self.items.spans, self.text)?;
        (0..self.items.spans.len()).try_for_each(|index| self.put_tuple(page, index))?;
        Ok(upper)
    }

    fn read_states(&mut self) -> Decoded<()> {
        let count = self.items.spans.len();
        let states = &mut self.scratch.states;
        states.clear();
        if self.flags & flag::TUPLE_STATES == 0 {
            states.resize(count, VALUE);
        } else {
            states.extend_from_slice(self.streams.byte(ByteStream::TupleState).take(count)?);
        }
        let column_count = self.columns.attributes.len() as u16;
        let data_at = HEADER_BYTES as u32;
        let tuple_of = |column_count| TupleSpan { data_at, end: 0, column_count, nulls_at: NO_NULLS, is_raw: false };
        self.grid.clear();
        for state in &*states {
            self.grid.tuples.push(match *state {
                VALUE => tuple_of(column_count),
                NULL => tuple_of(0),
                PLACE | RAW => TupleSpan::RAW,
                _ => return Err(Damaged("an SP-GiST tuple has a state that does not exist")),
            });
        }
        self.grid.cursors.clear();
        self.grid.cursors.extend(self.grid.tuples.iter().map(|tuple| tuple.data_at));
        Ok(())
    }

    /// Sets the items' lengths.
    fn measure(&mut self) -> Decoded<()> {
        self.columns.measure(self.grid, &[])?;
        let tuples = self.scratch.states.iter().zip(&self.grid.cursors);
        for (item, (state, end)) in self.items.spans.iter_mut().zip(tuples) {
            item.length = match *state {
                PLACE => HEADER_BYTES as u32,
                RAW => self.streams.number(NumberStream::RawLength).next()?,
                _ => align(*end as usize, MAX_ALIGNMENT) as u32,
            };
            // What a line pointer can say.
            if item.length > 0x7FFF {
                return Err(OUTSIDE);
            }
        }
        Ok(())
    }

    /// Puts everything of a tuple but its columns.
    fn put_tuple(&mut self, page: &mut [u8], index: usize) -> Decoded<()> {
        let item = self.items.spans[index];
        let at = item.at as usize;
        match self.scratch.states[index] {
            PLACE => put(page, at, PLACEHOLDER),
            RAW => put_bytes(page, at, self.streams.byte(ByteStream::Raw).take(item.length as usize)?),
            _ => {
                let step = self.streams.number(NumberStream::Info).next()? as u16;
                let block = self.streams.number(NumberStream::RowBlock).next()?;
                let number = self.streams.number(NumberStream::RowNumber).next()?;
                let next = if step == 0 { 0 } else { (item.number as u16).wrapping_sub(step) };
                put(page, at, (item.length << STATE_BITS).to_le_bytes())?;
                put(page, at + NEXT, next.to_le_bytes())?;
                put(page, at + ROW, self.last.load(block, number))
            }
        }
    }
}
