//! Heap tuples: their headers by field, their columns through [`Columns`]. Layout: src/include/access/htup_details.h.

use super::columns::Columns;
use super::grid::{Grid, NO_NULLS, TupleSpan};
use super::items::{Item, Items};
use super::streams::{ByteStream, NumberStream, PageStreams, flag};
use super::wire::{MAX_ALIGNMENT, OUTSIDE, align, is_padding, put, put_bytes, u16_at, u64_at};
use crate::error::{Damaged, Decoded};

/// Bytes of a tuple header before the bitmap.
const HEADER_BYTES: usize = 23;
/// Where fields are; xmin and xmax come first, the next version's block behind the command id.
const COMMAND_ID: usize = 8;
const NEXT_NUMBER: usize = 16;
const INFOMASK2: usize = 18;
const INFOMASK: usize = 20;
const DATA_OFFSET: usize = 22;
/// Of `t_infomask2`: how many columns.
const COLUMN_COUNT_MASK: u16 = 0x07FF;
/// Of `t_infomask`: there is a bitmap.
const HAS_NULLS: u16 = 0x0001;

/// The tuple is taken apart.
const PLAIN: u8 = 0;
/// It is stored as it is.
const RAW: u8 = 1;
/// It is taken apart, and has bytes behind its last known column.
const WITH_REST: u8 = 2;

/// Takes the tuples of a heap page apart. Gives [`flag::TUPLE_STATES`] or nothing.
pub(super) fn store(
    page: &[u8],
    block: u32,
    items: &Items,
    columns: &mut Columns,
    grid: &mut Grid,
    streams: &mut PageStreams,
) -> u8 {
    grid.clear();
    grid.tuples.extend(items.spans.iter().map(|item| span_of(page, *item)));
    grid.find(page, &columns.attributes);
    columns.gather(page, grid);
    store_fields(page, block, items, grid, streams);
    store_nulls(page, grid, streams);
    let ends = grid.tuples.iter().zip(&grid.cursors);
    if ends.clone().all(|(tuple, cursor)| !tuple.is_raw && *cursor == tuple.end) {
        return 0;
    }
    for ((tuple, cursor), item) in ends.zip(&items.spans) {
        let (state, start) = match tuple {
            TupleSpan { is_raw: true, .. } => (RAW, item.at),
            TupleSpan { end, .. } if end == cursor => (PLAIN, *end),
            _ => (WITH_REST, *cursor),
        };
        streams.byte(ByteStream::TupleState).values.push(state);
        let length = item.at + item.length - start;
        match state {
            RAW => streams.number(NumberStream::RawLength).values.push(length),
            WITH_REST => streams.number(NumberStream::RestLength).values.push(length),
            _ => {}
        }
        let rest = &page[start as usize..(start + length) as usize];
        streams.byte(ByteStream::Raw).values.extend_from_slice(rest);
    }
    flag::TUPLE_STATES
}

/// Where the columns of a tuple are, if its header is in order.
fn span_of(page: &[u8], item: Item) -> TupleSpan {
    let (at, length) = (item.at as usize, item.length as usize);
    if length <= HEADER_BYTES {
        return TupleSpan::RAW;
    }
    let column_count = u16_at(page, at + INFOMASK2) & COLUMN_COUNT_MASK;
    let has_nulls = u16_at(page, at + INFOMASK) & HAS_NULLS != 0;
    let bitmap_bytes = if has_nulls { bitmap_bytes(column_count) } else { 0 };
    let data_offset = align(HEADER_BYTES + bitmap_bytes, MAX_ALIGNMENT);
    if usize::from(page[at + DATA_OFFSET]) != data_offset
        || data_offset > length
        || !is_padding(page, at + HEADER_BYTES + bitmap_bytes, at + data_offset)
    {
        return TupleSpan::RAW;
    }
    TupleSpan {
        data_at: (at + data_offset) as u32,
        end: (at + length) as u32,
        column_count,
        nulls_at: if has_nulls { (at + HEADER_BYTES) as u32 } else { NO_NULLS },
        is_raw: false,
    }
}

const fn bitmap_bytes(column_count: u16) -> usize {
    (column_count as usize).div_ceil(8)
}

/// The streams of a tuple's header, in the order of its fields.
const FIELDS: [NumberStream; 7] = [
    NumberStream::Xmin,
    NumberStream::Xmax,
    NumberStream::CommandId,
    NumberStream::NextBlock,
    NumberStream::NextNumber,
    NumberStream::Infomask2,
    NumberStream::Infomask,
];

fn store_fields(page: &[u8], block: u32, items: &Items, grid: &Grid, streams: &mut PageStreams) {
    let plain = items.spans.iter().zip(&grid.tuples).filter(|(_, tuple)| !tuple.is_raw).map(|(item, _)| item);
    let count = grid.tuples.iter().filter(|tuple| !tuple.is_raw).count();
    let [xmin, xmax, command_id, next_block, next_number, infomask2, infomask] = streams.extended(FIELDS, count);
    let transactions = xmin.iter_mut().zip(xmax);
    let versions = command_id.iter_mut().zip(next_block).zip(next_number);
    let masks = infomask2.iter_mut().zip(infomask);
    for (((item, transactions), versions), masks) in plain.zip(transactions).zip(versions).zip(masks) {
        let header = &page[item.at as usize..][..HEADER_BYTES];
        let (two, next) = (u64_at(header, 0), u64_at(header, COMMAND_ID));
        let ((command_id, next_block), next_number) = versions;
        (*transactions.0, *transactions.1) = (two as u32, (two >> 32) as u32);
        *command_id = next as u32;
        *next_block = ((next >> 32) as u32).rotate_left(16).wrapping_sub(block);
        *next_number = u32::from(u16_at(header, NEXT_NUMBER).wrapping_sub(item.number as u16));
        (*masks.0, *masks.1) = (u16_at(header, INFOMASK2).into(), u16_at(header, INFOMASK).into());
    }
}

fn store_nulls(page: &[u8], grid: &Grid, streams: &mut PageStreams) {
    let nulls = &mut streams.byte(ByteStream::Nulls).values;
    for tuple in grid.tuples.iter().filter(|tuple| tuple.nulls_at != NO_NULLS) {
        let at = tuple.nulls_at as usize;
        nulls.extend_from_slice(&page[at..at + bitmap_bytes(tuple.column_count)]);
    }
}

/// Scratch of [`HeapPage::load`].
#[derive(Debug, Default)]
pub(super) struct HeapScratch {
    states: Vec<u8>,
    bitmaps: Vec<u8>,
    places: Vec<u32>,
    rest_lengths: Vec<u32>,
}

/// What is put together of a page: the tuples' measures first, then their places, then their bytes.
pub(super) struct HeapPage<'a> {
    pub(super) block: u32,
    pub(super) lower: usize,
    pub(super) special: usize,
    pub(super) flags: u8,
    pub(super) items: &'a mut Items,
    pub(super) columns: &'a mut Columns,
    pub(super) grid: &'a mut Grid,
    /// The text of the frame.
    pub(super) text: &'a [u8],
    pub(super) streams: &'a mut PageStreams,
    pub(super) scratch: &'a mut HeapScratch,
}

impl HeapPage<'_> {
    /// Puts all tuples into `page`, whose states of line pointers have been read. Gives where the lowest starts.
    pub(super) fn load(&mut self, page: &mut [u8]) -> Decoded<usize> {
        self.read_states()?;
        self.measure()?;
        let upper = self.items.place(page, self.lower, self.special, self.flags, self.streams)?;
        self.scratch.places.clear();
        self.scratch.places.extend(self.items.spans.iter().map(|item| item.at));
        self.put_fields(page)?;
        self.columns.scatter(page, self.grid, &self.scratch.places, self.text)?;
        self.put_rests(page)?;
        Ok(upper)
    }

    fn read_states(&mut self) -> Decoded<()> {
        let count = self.items.spans.len();
        let scratch = &mut *self.scratch;
        scratch.states.clear();
        scratch.rest_lengths.clear();
        if self.flags & flag::TUPLE_STATES == 0 {
            scratch.states.resize(count, PLAIN);
            scratch.rest_lengths.resize(count, 0);
            return Ok(());
        }
        scratch.states.extend_from_slice(self.streams.byte(ByteStream::TupleState).take(count)?);
        for state in &scratch.states {
            scratch.rest_lengths.push(match *state {
                PLAIN => 0,
                RAW => self.streams.number(NumberStream::RawLength).next()?,
                WITH_REST => self.streams.number(NumberStream::RestLength).next()?,
                _ => return Err(Damaged("a tuple has a state that does not exist")),
            });
        }
        Ok(())
    }

    /// Sets the items' lengths.
    fn measure(&mut self) -> Decoded<()> {
        let scratch = &mut *self.scratch;
        let plain = scratch.states.iter().filter(|state| **state != RAW).count();
        for stream in FIELDS {
            self.streams.number(stream).take(plain)?;
        }
        let taken = |stream: NumberStream| self.streams.numbers[stream as usize].taken(plain);
        let mut fields = taken(NumberStream::Infomask)?.iter().zip(taken(NumberStream::Infomask2)?);
        self.grid.clear();
        self.grid.cursors.clear();
        scratch.bitmaps.clear();
        let mut bitmap_total = 0;
        for state in &scratch.states {
            if *state == RAW {
                self.grid.tuples.push(TupleSpan::RAW);
                self.grid.cursors.push(0);
                continue;
            }
            let (mask, mask2) = fields.next().ok_or(OUTSIDE)?;
            let column_count = *mask2 as u16 & COLUMN_COUNT_MASK;
            let has_nulls = *mask as u16 & HAS_NULLS != 0;
            let bitmap = if has_nulls { bitmap_bytes(column_count) } else { 0 };
            let nulls_at = if has_nulls { bitmap_total as u32 } else { NO_NULLS };
            bitmap_total += bitmap;
            let data_at = align(HEADER_BYTES + bitmap, MAX_ALIGNMENT) as u32;
            self.grid.tuples.push(TupleSpan { data_at, end: 0, column_count, nulls_at, is_raw: false });
            self.grid.cursors.push(data_at);
        }
        let bitmaps = self.streams.bytes[ByteStream::Nulls as usize].take(bitmap_total)?;
        scratch.bitmaps.extend_from_slice(bitmaps);
        self.columns.measure(self.grid, &scratch.bitmaps)?;
        let ends = self.grid.cursors.iter().zip(&scratch.rest_lengths);
        for (item, (end, rest)) in self.items.spans.iter_mut().zip(ends) {
            item.length = end.checked_add(*rest).filter(|length| *length <= 0x7FFF).ok_or(OUTSIDE)?;
        }
        Ok(())
    }

    /// Puts the headers, whose fields [`HeapPage::measure`] took from their streams.
    fn put_fields(&mut self, page: &mut [u8]) -> Decoded<()> {
        let plain = self.items.spans.iter().zip(&self.grid.tuples).filter(|(_, tuple)| !tuple.is_raw);
        let count = self.grid.tuples.iter().filter(|tuple| !tuple.is_raw).count();
        let taken = |stream: NumberStream| self.streams.numbers[stream as usize].taken(count);
        let transactions = taken(NumberStream::Xmin)?.iter().zip(taken(NumberStream::Xmax)?);
        let next = taken(NumberStream::NextBlock)?.iter().zip(taken(NumberStream::NextNumber)?);
        let versions = taken(NumberStream::CommandId)?.iter().zip(next);
        let masks = taken(NumberStream::Infomask2)?.iter().zip(taken(NumberStream::Infomask)?);
        for ((((item, tuple), (xmin, xmax)), (command_id, next)), masks) in
            plain.zip(transactions).zip(versions).zip(masks)
        {
            let (next_block, next_number) = (next.0.wrapping_add(self.block), next.1.wrapping_add(item.number));
            let first = u128::from(*xmin)
                | u128::from(*xmax) << 32
                | u128::from(*command_id) << 64
                | u128::from(next_block.rotate_left(16)) << 96;
            let last = u64::from(next_number as u16)
                | u64::from(*masks.0 as u16) << 16
                | u64::from(*masks.1 as u16) << 32
                | u64::from(tuple.data_at as u8) << 48;
            let mut header = [0; HEADER_BYTES + 1];
            header[..NEXT_NUMBER].copy_from_slice(&first.to_le_bytes());
            header[NEXT_NUMBER..].copy_from_slice(&last.to_le_bytes());
            let at = item.at as usize;
            // Its last byte is the bitmap's first or padding, and the tuple has it: `data_at` is beyond.
            put(page, at, header)?;
            if tuple.nulls_at != NO_NULLS {
                let start = tuple.nulls_at as usize;
                let bitmap = &self.scratch.bitmaps[start..start + bitmap_bytes(tuple.column_count)];
                put_bytes(page, at + HEADER_BYTES, bitmap)?;
            }
        }
        Ok(())
    }

    fn put_rests(&mut self, page: &mut [u8]) -> Decoded<()> {
        if self.flags & flag::TUPLE_STATES == 0 {
            return Ok(());
        }
        for (item, length) in self.items.spans.iter().zip(&self.scratch.rest_lengths) {
            let rest = self.streams.bytes[ByteStream::Raw as usize].take(*length as usize)?;
            put_bytes(page, (item.at + item.length - length) as usize, rest)?;
        }
        Ok(())
    }
}
