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
/// Where data starts without a bitmap.
const DATA_AT: usize = align(HEADER_BYTES, MAX_ALIGNMENT);
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

/// Takes the tuples of a heap page apart. Gives [`flag::TUPLE_STATES`] or nothing, and whether the headers are alike: then
/// they were stored once for all.
pub(super) fn store(
    page: &[u8],
    block: u32,
    items: &Items,
    columns: &mut Columns,
    grid: &mut Grid,
    streams: &mut PageStreams,
) -> (u8, bool) {
    if let Some(headers) = Headers::of(page, block, &items.spans, columns.attributes.len())
        && columns.gather_full(page, &items.spans, DATA_AT, &mut grid.full, |item, end| end == item.at + item.length)
    {
        headers.store(page, block, &items.spans, streams);
        return (0, headers.are_alike);
    }
    (store_any(page, block, items, columns, grid, streams), false)
}

/// As [`store`], of tuples of any kind.
fn store_any(
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
    let plain = items.spans.iter().zip(&grid.tuples).filter(|(_, tuple)| !tuple.is_raw).map(|(item, _)| item);
    let count = grid.tuples.iter().filter(|tuple| !tuple.is_raw).count();
    store_fields(page, block, plain, count, streams);
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
pub(super) fn span_of(page: &[u8], item: Item) -> TupleSpan {
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

/// A tuple's header without a bitmap as numbers: transactions; command id and the next version's block; its number, masks, and
/// where data starts. The next version is told from the tuple's own page and line pointer.
#[inline]
fn header_words(page: &[u8], block: u32, item: &Item) -> [u64; 3] {
    let header = &page[item.at as usize..][..DATA_AT];
    let [first, second, third] = [0, COMMAND_ID, NEXT_NUMBER].map(|at| u64_at(header, at));
    let next_block = ((second >> 32) as u32).rotate_left(16).wrapping_sub(block);
    let next_number = (third as u16).wrapping_sub(item.number as u16);
    [first, second & 0xFFFF_FFFF | u64::from(next_block) << 32, third & !0xFFFF | u64::from(next_number)]
}

/// The header's fields, in the order of [`FIELDS`].
#[inline]
fn fields_of([first, second, third]: [u64; 3]) -> [u32; FIELDS.len()] {
    [
        first as u32,
        (first >> 32) as u32,
        second as u32,
        (second >> 32) as u32,
        u32::from(third as u16),
        u32::from((third >> 16) as u16),
        u32::from((third >> 32) as u16),
    ]
}

/// The headers of tuples that all have every column and no bitmap.
struct Headers {
    first: [u64; 3],
    are_alike: bool,
}

impl Headers {
    /// None if there is no tuple, or one that is not so.
    fn of(page: &[u8], block: u32, items: &[Item], column_count: usize) -> Option<Self> {
        let first_item = items.first()?;
        if items.iter().any(|item| (item.length as usize) < DATA_AT) {
            return None;
        }
        let first = header_words(page, block, first_item);
        let mut unlike = 0;
        for item in items {
            let words = header_words(page, block, item);
            // The data's place, and a byte of padding behind it.
            if words[2] >> 48 != DATA_AT as u64
                || words[2] >> 32 & u64::from(HAS_NULLS) != 0
                || ((words[2] >> 16) as u16 & COLUMN_COUNT_MASK) < column_count as u16
            {
                return None;
            }
            unlike |= (words[0] ^ first[0]) | (words[1] ^ first[1]) | (words[2] ^ first[2]);
        }
        Some(Headers { first, are_alike: unlike == 0 })
    }

    fn store(&self, page: &[u8], block: u32, items: &[Item], streams: &mut PageStreams) {
        if self.are_alike {
            for (stream, field) in FIELDS.into_iter().zip(fields_of(self.first)) {
                streams.number(stream).values.push(field);
            }
        } else {
            store_fields(page, block, items.iter(), items.len(), streams);
        }
    }
}

/// Stores the headers of `count` tuples that are taken apart.
fn store_fields<'i>(
    page: &[u8],
    block: u32,
    items: impl Iterator<Item = &'i Item>,
    count: usize,
    streams: &mut PageStreams,
) {
    let [xmin, xmax, command_id, next_block, next_number, infomask2, infomask] = streams.extended(FIELDS, count);
    let transactions = xmin.iter_mut().zip(xmax);
    let versions = command_id.iter_mut().zip(next_block).zip(next_number);
    let masks = infomask2.iter_mut().zip(infomask);
    for (((item, transactions), versions), masks) in items.zip(transactions).zip(versions).zip(masks) {
        let ((command_id, next_block), next_number) = versions;
        [*transactions.0, *transactions.1, *command_id, *next_block, *next_number, *masks.0, *masks.1] =
            fields_of(header_words(page, block, item));
    }
}

fn store_nulls(page: &[u8], grid: &Grid, streams: &mut PageStreams) {
    let nulls = &mut streams.byte(ByteStream::Nulls).values;
    for tuple in grid.tuples.iter().filter(|tuple| tuple.nulls_at != NO_NULLS) {
        let at = tuple.nulls_at as usize;
        nulls.extend_from_slice(&page[at..at + bitmap_bytes(tuple.column_count)]);
    }
}

/// A tuple's header of the fields in the order of [`FIELDS`], and a zero behind it.
#[inline]
fn header_of(fields: [u32; FIELDS.len()], block: u32, number: u32, data_at: u8) -> [u8; HEADER_BYTES + 1] {
    let [xmin, xmax, command_id, next_block, next_number, infomask2, infomask] = fields;
    let first = u128::from(xmin)
        | u128::from(xmax) << 32
        | u128::from(command_id) << 64
        | u128::from(next_block.wrapping_add(block).rotate_left(16)) << 96;
    let last = u64::from(next_number.wrapping_add(number) as u16)
        | u64::from(infomask2 as u16) << 16
        | u64::from(infomask as u16) << 32
        | u64::from(data_at) << 48;
    let mut header = [0; HEADER_BYTES + 1];
    header[..NEXT_NUMBER].copy_from_slice(&first.to_le_bytes());
    header[NEXT_NUMBER..].copy_from_slice(&last.to_le_bytes());
    header
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
    /// The tuples' headers are alike, and stored once.
    pub(super) are_alike: bool,
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
        if self.are_alike || self.flags & flag::TUPLE_STATES == 0 && self.are_full()? {
            return self.load_full(page);
        }
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

    /// Whether all tuples of the page have every column and no bitmap.
    fn are_full(&self) -> Decoded<bool> {
        let count = self.items.spans.len();
        let masks = self.streams.numbers[NumberStream::Infomask as usize].coming(count)?;
        let masks2 = self.streams.numbers[NumberStream::Infomask2 as usize].coming(count)?;
        let all_masks = masks.iter().fold(0, |all, mask| all | mask);
        let least = masks2.iter().fold(COLUMN_COUNT_MASK, |least, mask| least.min(*mask as u16 & COLUMN_COUNT_MASK));
        Ok(all_masks as u16 & HAS_NULLS == 0 && usize::from(least) >= self.columns.attributes.len())
    }

    /// As [`HeapPage::load`], of tuples that all have every column, no bitmap and nothing else.
    fn load_full(&mut self, page: &mut [u8]) -> Decoded<usize> {
        let count = self.items.spans.len();
        for stream in FIELDS {
            self.streams.number(stream).take(if self.are_alike { 1 } else { count })?;
        }
        let full = &mut self.grid.full;
        self.columns.measure_full(count, DATA_AT, full)?;
        for (item, end) in self.items.spans.iter_mut().zip(&full.cursors) {
            item.length = Some(*end).filter(|length| *length <= 0x7FFF).ok_or(OUTSIDE)?;
        }
        let upper = self.items.place(page, self.lower, self.special, self.flags, self.streams)?;
        if self.are_alike {
            self.put_alike(page)?;
        } else {
            self.put_full_fields(page)?;
        }
        self.columns.scatter_full(page, &self.items.spans, DATA_AT, &self.grid.full, self.text)?;
        Ok(upper)
    }

    /// Puts headers that are alike, whose fields have been taken from their streams.
    fn put_alike(&mut self, page: &mut [u8]) -> Decoded<()> {
        let mut fields = [0; FIELDS.len()];
        for (field, stream) in fields.iter_mut().zip(FIELDS) {
            *field = self.streams.numbers[stream as usize].taken(1)?[0];
        }
        let has_nulls = fields[6] as u16 & HAS_NULLS != 0;
        if has_nulls || usize::from(fields[5] as u16 & COLUMN_COUNT_MASK) < self.columns.attributes.len() {
            return Err(Damaged("tuples that are alike do not have every column"));
        }
        let header = header_of(fields, self.block, 0, DATA_AT as u8);
        for item in &self.items.spans {
            let mut header = header;
            let number = (fields[4] as u16).wrapping_add(item.number as u16);
            header[NEXT_NUMBER..INFOMASK2].copy_from_slice(&number.to_le_bytes());
            put(page, item.at as usize, header)?;
        }
        Ok(())
    }

    /// Puts headers whose fields have been taken from their streams.
    fn put_full_fields(&mut self, page: &mut [u8]) -> Decoded<()> {
        let count = self.items.spans.len();
        let taken = |stream: NumberStream| self.streams.numbers[stream as usize].taken(count);
        let transactions = taken(NumberStream::Xmin)?.iter().zip(taken(NumberStream::Xmax)?);
        let next = taken(NumberStream::NextBlock)?.iter().zip(taken(NumberStream::NextNumber)?);
        let versions = taken(NumberStream::CommandId)?.iter().zip(next);
        let masks = taken(NumberStream::Infomask2)?.iter().zip(taken(NumberStream::Infomask)?);
        for (((item, (xmin, xmax)), (command_id, next)), masks) in
            self.items.spans.iter().zip(transactions).zip(versions).zip(masks)
        {
            let fields = [*xmin, *xmax, *command_id, *next.0, *next.1, *masks.0, *masks.1];
            put(page, item.at as usize, header_of(fields, self.block, item.number, DATA_AT as u8))?;
        }
        Ok(())
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
            let fields = [*xmin, *xmax, *command_id, *next.0, *next.1, *masks.0, *masks.1];
            let header = header_of(fields, self.block, item.number, tuple.data_at as u8);
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
