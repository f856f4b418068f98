//! Streams into tuples.

use super::{
    COLUMN_COUNT_MASK, DATA_AT, FIELDS, HAS_NULLS, HEADER_BYTES, INFOMASK2, NEXT_NUMBER, PLAIN, RAW, WITH_REST,
    bitmap_bytes,
};
use crate::error::{Damaged, Decoded};
use crate::postgres::columns::Columns;
use crate::postgres::grid::{Grid, NO_NULLS, TupleSpan};
use crate::postgres::items::Items;
use crate::postgres::streams::{ByteStream, NumberStream, PageStreams, flag};
use crate::postgres::wire::{MAX_ALIGNMENT, OUTSIDE, align, put, put_bytes};

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
pub(in crate::postgres) struct HeapScratch {
    states: Vec<u8>,
    bitmaps: Vec<u8>,
    rest_lengths: Vec<u32>,
}

/// What is put together of a page: the tuples' measures first, then their places, then their bytes.
pub(in crate::postgres) struct HeapPage<'a> {
    pub(in crate::postgres) block: u32,
    pub(in crate::postgres) lower: usize,
    pub(in crate::postgres) special: usize,
    pub(in crate::postgres) flags: u8,
    /// The tuples' headers are alike, and stored once.
    pub(in crate::postgres) are_alike: bool,
    pub(in crate::postgres) items: &'a mut Items,
    pub(in crate::postgres) columns: &'a mut Columns,
    pub(in crate::postgres) grid: &'a mut Grid,
    /// The text of the frame.
    pub(in crate::postgres) text: &'a [u8],
    pub(in crate::postgres) streams: &'a mut PageStreams,
    pub(in crate::postgres) scratch: &'a mut HeapScratch,
}

impl HeapPage<'_> {
    /// Puts all tuples into `page`, whose states of line pointers have been read. Gives where the lowest starts.
    pub(in crate::postgres) fn load(&mut self, page: &mut [u8]) -> Decoded<usize> {
        if let Some(data_at) = self.find_shared_columns()? {
            return self.load_full(page, data_at);
        }
        self.read_states()?;
        self.measure()?;
        let upper = self.items.place(page, self.lower, self.special, self.flags, self.streams)?;
        self.put_fields(page)?;
        self.columns.scatter(page, self.grid, &self.items.spans, self.text)?;
        self.put_rests(page)?;
        Ok(upper)
    }

    /// Where columns start in all tuples, if all have the same ones, which the grid is told; their bitmap is in the scratch.
    fn find_shared_columns(&mut self) -> Decoded<Option<usize>> {
        let (count, column_count) = (self.items.spans.len(), self.columns.attributes.len());
        let full = &mut self.grid.full;
        self.scratch.bitmaps.clear();
        if self.are_alike {
            full.set_all_columns(column_count);
            return Ok(Some(DATA_AT));
        }
        if self.flags & flag::TUPLE_STATES != 0 {
            return Ok(None);
        }
        let masks = self.streams.numbers[NumberStream::Infomask as usize].coming(count)?;
        let masks2 = self.streams.numbers[NumberStream::Infomask2 as usize].coming(count)?;
        let (all, any) = masks.iter().fold((u32::MAX, 0), |(all, any), mask| (all & mask, any | mask));
        let counts = masks2.iter().map(|mask| *mask as u16 & COLUMN_COUNT_MASK);
        let (least, most) = counts.fold((COLUMN_COUNT_MASK, 0), |(least, most), of| (least.min(of), most.max(of)));
        let has_nulls = any as u16 & HAS_NULLS != 0;
        if !has_nulls && usize::from(least) >= column_count {
            full.set_all_columns(column_count);
            return Ok(Some(DATA_AT));
        }
        if least != most || has_nulls && all as u16 & HAS_NULLS == 0 {
            return Ok(None);
        }
        let bitmap = if has_nulls { bitmap_bytes(least) } else { 0 };
        let bitmaps = self.streams.bytes[ByteStream::Nulls as usize].coming(count * bitmap)?;
        let first = &bitmaps[..bitmap];
        if bitmap > 0 && !bitmaps.chunks_exact(bitmap).all(|of| of == first) {
            return Ok(None);
        }
        self.scratch.bitmaps.extend_from_slice(first);
        let data_at = align(HEADER_BYTES + bitmap, MAX_ALIGNMENT);
        let nulls_at = if has_nulls { 0 } else { NO_NULLS };
        let tuple = TupleSpan { data_at: data_at as u32, end: 0, column_count: least, nulls_at, is_raw: false };
        full.set_columns_of(column_count, &tuple, &self.scratch.bitmaps);
        Ok(Some(data_at))
    }

    /// As [`HeapPage::load`], of tuples that all have the same columns and nothing else; these start at `data_at`.
    fn load_full(&mut self, page: &mut [u8], data_at: usize) -> Decoded<usize> {
        let count = self.items.spans.len();
        for stream in FIELDS {
            self.streams.number(stream).take(if self.are_alike { 1 } else { count })?;
        }
        self.streams.byte(ByteStream::Nulls).take(count * self.scratch.bitmaps.len())?;
        let full = &mut self.grid.full;
        self.columns.measure_full(count, data_at, full)?;
        for (item, end) in self.items.spans.iter_mut().zip(&full.cursors) {
            item.length = Some(*end).filter(|length| *length <= 0x7FFF).ok_or(OUTSIDE)?;
        }
        let upper = self.items.place(page, self.lower, self.special, self.flags, self.streams)?;
        if self.are_alike {
            self.put_alike(page)?;
        } else {
            self.put_full_fields(page, data_at)?;
        }
        self.columns.scatter_full(page, &self.items.spans, data_at, &mut self.grid.full, self.text)?;
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
    fn put_full_fields(&mut self, page: &mut [u8], data_at: usize) -> Decoded<()> {
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
            put(page, item.at as usize, header_of(fields, self.block, item.number, data_at as u8))?;
        }
        if !self.scratch.bitmaps.is_empty() {
            for item in &self.items.spans {
                put_bytes(page, item.at as usize + HEADER_BYTES, &self.scratch.bitmaps)?;
            }
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
