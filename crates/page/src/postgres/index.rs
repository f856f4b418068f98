//! Pages of index tuples: B-tree, hash and GiST. Layout: src/include/access/itup.h, nbtree.h, hash.h, gist.h.
//!
//! The three have 16 bytes of their own at the end, two numbers of 32 bits at least that are links or steady, and four bytes
//! of flags; the names are the B-tree's. Only it has several rows to a key.

use super::columns::Columns;
use super::grid::{Grid, NO_NULLS, TupleSpan};
use super::items::{Item, Items};
use super::streams::{ByteStream, NumberStream, PageStreams, flag};
use super::wire::{
    MAX_ALIGNMENT, OUTSIDE, align, block_at, block_bytes, fills_tuple, is_zero, put, put_bytes, u16_at, u32_at, u64_at,
};
use crate::error::{Damaged, Decoded};

/// Bytes of the opaque area at the end of a page.
pub(super) const OPAQUE_BYTES: usize = 16;
/// `btpo_flags` of pages that do not hold index tuples: deleted, meta; of hash indexes bitmap and meta. A GiST page with these
/// has dead tuples, and goes as a shell.
const FLAGS_WITHOUT_TUPLES: u16 = 1 << 2 | 1 << 3;

/// Bytes of a tuple's header.
const HEADER_BYTES: usize = 8;
/// Bytes of header and bitmap, aligned: room for 32 columns.
const HEADER_BYTES_WITH_NULLS: usize = 16;
/// Bytes of a row's address.
const ROW_BYTES: usize = 6;
/// Of `t_info`.
const SIZE_MASK: u16 = 0x1FFF;
const IS_SPECIAL: u16 = 0x2000;
const HAS_VARIABLE: u16 = 0x4000;
const HAS_NULLS: u16 = 0x8000;
/// Bits that a plain tuple without a bitmap may have besides its size: one is the access method's own.
const PLAIN_BITS: u32 = !(SIZE_MASK | IS_SPECIAL | HAS_NULLS) as u32;
/// Where `t_info` is.
const INFO: usize = 6;
/// Of the second half of the address of a special tuple.
const IS_LIST: u16 = 0x2000;
const LIST_COUNT_MASK: u16 = 0x0FFF;
/// A bitmap's room.
const COLUMNS_MAX: usize = 32;

/// One key, one row.
const PLAIN: u8 = 0;
/// One key, several rows (a posting list).
const LIST: u8 = 1;
/// Stored as it is: keys of inner pages and high keys, and what is not as it should be.
const RAW: u8 = 2;

/// The row before, against which the next one is stored.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastRow {
    block: u32,
    number: u16,
}

/// Whether the page's tuples can be taken apart.
pub(super) fn has_tuples(page: &[u8], special: usize) -> bool {
    special + OPAQUE_BYTES == page.len() && u16_at(page, special + 12) & FLAGS_WITHOUT_TUPLES == 0
}

/// Stores the opaque area.
pub(super) fn store_opaque(page: &[u8], block: u32, streams: &mut PageStreams) {
    let at = page.len() - OPAQUE_BYTES;
    for (stream, value) in [
        (NumberStream::Previous, u32_at(page, at).wrapping_sub(block)),
        (NumberStream::Next, u32_at(page, at + 4).wrapping_sub(block)),
        (NumberStream::TreeLevel, u32_at(page, at + 8)),
        (NumberStream::TreeFlags, u32::from(u16_at(page, at + 12))),
        (NumberStream::TreeCycle, u32::from(u16_at(page, at + 14))),
    ] {
        streams.number(stream).values.push(value);
    }
}

/// Brings the opaque area back.
pub(super) fn load_opaque(page: &mut [u8], block: u32, streams: &mut PageStreams) -> Decoded<()> {
    let at = page.len() - OPAQUE_BYTES;
    let mut next = |stream| streams.number(stream).next();
    let links = [next(NumberStream::Previous)?, next(NumberStream::Next)?].map(|link| link.wrapping_add(block));
    put(page, at, links[0].to_le_bytes())?;
    put(page, at + 4, links[1].to_le_bytes())?;
    put(page, at + 8, next(NumberStream::TreeLevel)?.to_le_bytes())?;
    put(page, at + 12, (next(NumberStream::TreeFlags)? as u16).to_le_bytes())?;
    put(page, at + 14, (next(NumberStream::TreeCycle)? as u16).to_le_bytes())
}

/// Takes the tuples of a page apart. Gives [`flag::TUPLE_STATES`] or nothing, and whether the first tuple, and no other one,
/// is stored as it is: then no states are.
pub(super) fn store(
    page: &[u8],
    items: &Items,
    columns: &mut Columns,
    grid: &mut Grid,
    streams: &mut PageStreams,
    last: &mut LastRow,
) -> (u8, bool) {
    let column_count = columns.attributes.len();
    let has_key = items.spans.first().is_some_and(|first| span_of(page, *first, column_count).is_raw);
    let (key, plain) = items.spans.split_at(usize::from(has_key));
    let is_whole = |item: &Item, end: u32| fills_tuple(page, end as usize, (item.at + item.length) as usize);
    grid.full.set_all_columns(column_count);
    if are_plain(page, plain, column_count) && columns.gather_full(page, plain, HEADER_BYTES, &mut grid.full, is_whole)
    {
        for item in key {
            store_raw(page, *item, streams);
        }
        store_plain(page, plain, streams, last);
        return (0, has_key);
    }
    (store_any(page, items, columns, grid, streams, last), false)
}

/// Whether there are tuples, and all are plain, without bitmaps.
fn are_plain(page: &[u8], items: &[Item], column_count: usize) -> bool {
    let is_plain = |item: &Item| {
        item.length as usize >= HEADER_BYTES
            && u32::from(u16_at(page, item.at as usize + INFO)) & !PLAIN_BITS == item.length
    };
    !items.is_empty() && (1..=COLUMNS_MAX).contains(&column_count) && items.iter().all(is_plain)
}

/// As [`store`], of tuples of any kind.
fn store_any(
    page: &[u8],
    items: &Items,
    columns: &mut Columns,
    grid: &mut Grid,
    streams: &mut PageStreams,
    last: &mut LastRow,
) -> u8 {
    grid.clear();
    let column_count = columns.attributes.len();
    grid.tuples.extend(items.spans.iter().map(|item| span_of(page, *item, column_count)));
    columns.gather(page, grid, |tuple, end| fills_tuple(page, end as usize, tuple.end as usize));
    let mut states = 0;
    for (item, tuple) in items.spans.iter().zip(&grid.tuples) {
        states |= store_tuple(page, *item, tuple, streams, last);
    }
    if states == PLAIN {
        return 0;
    }
    let state_of = |(item, tuple): (&Item, &TupleSpan)| match tuple {
        TupleSpan { is_raw: true, .. } => RAW,
        TupleSpan { end, .. } if *end < item.at + item.length => LIST,
        _ => PLAIN,
    };
    let of_tuples = items.spans.iter().zip(&grid.tuples).map(state_of);
    streams.byte(ByteStream::TupleState).values.extend(of_tuples);
    flag::TUPLE_STATES
}

/// Where the keys of a tuple of a leaf are, if its header is in order; behind them come the rows of a list.
// As in heap/mod.rs.
#[inline(always)]
pub(super) fn span_of(page: &[u8], item: Item, column_count: usize) -> TupleSpan {
    let (at, length) = (item.at as usize, item.length as usize);
    if length < HEADER_BYTES || column_count == 0 || column_count > COLUMNS_MAX {
        return TupleSpan::RAW;
    }
    let info = u16_at(page, at + INFO);
    let has_nulls = info & HAS_NULLS != 0;
    let data_at = if has_nulls { HEADER_BYTES_WITH_NULLS } else { HEADER_BYTES };
    if usize::from(info & SIZE_MASK) != length || length < data_at {
        return TupleSpan::RAW;
    }
    if has_nulls && !is_zero(&page[at + 12..at + 16]) {
        return TupleSpan::RAW;
    }
    let mut key_length = length;
    if info & IS_SPECIAL != 0 {
        let number = u16_at(page, at + 4);
        let rows_at = block_at(page, at) as usize;
        let count = usize::from(number & LIST_COUNT_MASK);
        if number & !LIST_COUNT_MASK != IS_LIST
            || count == 0
            || rows_at < data_at
            || align(rows_at + ROW_BYTES * count, MAX_ALIGNMENT) != length
            || !is_zero(&page[at + rows_at + ROW_BYTES * count..at + length])
        {
            return TupleSpan::RAW;
        }
        key_length = rows_at;
    }
    TupleSpan {
        data_at: (at + data_at) as u32,
        end: (at + key_length) as u32,
        column_count: column_count as u16,
        nulls_at: if has_nulls { (at + HEADER_BYTES) as u32 } else { NO_NULLS },
        is_raw: false,
    }
}

/// Whether a tuple says that it has a value of variable length.
pub(super) fn has_variable(page: &[u8], item: Item) -> bool {
    u16_at(page, item.at as usize + 6) & HAS_VARIABLE != 0
}

/// Of tuples that are all plain, without bitmaps: the streams of their headers.
const FIELDS: [NumberStream; 3] = [NumberStream::Info, NumberStream::RowBlock, NumberStream::RowNumber];

/// Stores the headers of tuples that are all plain, without bitmaps.
fn store_plain(page: &[u8], items: &[Item], streams: &mut PageStreams, last: &mut LastRow) {
    let [infos, blocks, numbers] = streams.extended(FIELDS, items.len());
    for (((item, info), block), number) in items.iter().zip(infos).zip(blocks).zip(numbers) {
        let header = u64_at(page, item.at as usize);
        (*block, *number) = last.next((header as u32).rotate_left(16), (header >> 32) as u16);
        *info = u32::from((header >> 48) as u16 & !SIZE_MASK);
    }
}

/// Stores a tuple as it is.
fn store_raw(page: &[u8], item: Item, streams: &mut PageStreams) {
    streams.number(NumberStream::RawLength).values.push(item.length);
    let tuple = &page[item.at as usize..(item.at + item.length) as usize];
    streams.byte(ByteStream::Raw).values.extend_from_slice(tuple);
}

/// Stores all of a tuple but its keys; gives its state.
fn store_tuple(page: &[u8], item: Item, tuple: &TupleSpan, streams: &mut PageStreams, last: &mut LastRow) -> u8 {
    let at = item.at as usize;
    if tuple.is_raw {
        store_raw(page, item, streams);
        return RAW;
    }
    let info = u16_at(page, at + INFO);
    streams.number(NumberStream::Info).values.push(u32::from(info & !SIZE_MASK));
    if tuple.nulls_at != NO_NULLS {
        let bitmap = &page[at + HEADER_BYTES..at + HEADER_BYTES + COLUMNS_MAX / 8];
        streams.byte(ByteStream::Nulls).values.extend_from_slice(bitmap);
    }
    if info & IS_SPECIAL == 0 {
        let (block, number) = last.store(page, at);
        streams.number(NumberStream::RowBlock).values.push(block);
        streams.number(NumberStream::RowNumber).values.push(number);
        return PLAIN;
    }
    let count = u32::from(u16_at(page, at + 4) & LIST_COUNT_MASK);
    streams.number(NumberStream::RowCount).values.push(count);
    let rows_at = tuple.end as usize;
    let (block, number) = last.store(page, rows_at);
    streams.number(NumberStream::RowBlock).values.push(block);
    streams.number(NumberStream::RowNumber).values.push(number);
    let rows = page[rows_at..][..ROW_BYTES * count as usize].as_chunks::<ROW_BYTES>().0;
    if let [_, .., end] = rows {
        let pairs = rows.iter().zip(&rows[1..]).map(|(before, row)| (LastRow::of(before), LastRow::of(row)));
        let blocks = pairs.clone().map(|(before, row)| row.block.wrapping_sub(before.block));
        streams.number(NumberStream::ListBlock).values.extend(blocks);
        let numbers = pairs.map(|(mut before, row)| before.next(row.block, row.number).1);
        streams.number(NumberStream::ListNumber).values.extend(numbers);
        *last = LastRow::of(end);
    }
    LIST
}

impl LastRow {
    #[inline]
    fn of(row: &[u8; ROW_BYTES]) -> Self {
        LastRow { block: block_at(row, 0), number: u16_at(row, 4) }
    }

    /// The row at `at`: its block, and its number, less the number before if that is in the same block.
    #[inline]
    pub(super) fn store(&mut self, page: &[u8], at: usize) -> (u32, u32) {
        self.next(block_at(page, at), u16_at(page, at + 4))
    }

    /// As [`LastRow::store`], of a row that has been read.
    #[inline]
    fn next(&mut self, block: u32, number: u16) -> (u32, u32) {
        let stored = if block == self.block { number.wrapping_sub(self.number) } else { number };
        *self = LastRow { block, number };
        (block, u32::from(stored))
    }

    /// The row that was stored as these two.
    #[inline]
    pub(super) fn load(&mut self, block: u32, stored: u32) -> [u8; ROW_BYTES] {
        let [a, b, c, d, e, f, ..] = self.load_word(block, stored).to_le_bytes();
        [a, b, c, d, e, f]
    }

    /// As [`LastRow::load`], the six bytes as the lowest of a number.
    #[inline]
    fn load_word(&mut self, block: u32, stored: u32) -> u64 {
        let number = if block == self.block { self.number.wrapping_add(stored as u16) } else { stored as u16 };
        *self = LastRow { block, number };
        u64::from(u32::from_le_bytes(block_bytes(block))) | u64::from(number) << 32
    }
}

/// Scratch of [`IndexPage::load`].
#[derive(Debug, Default)]
pub(super) struct IndexScratch {
    states: Vec<u8>,
    infos: Vec<u16>,
    counts: Vec<u32>,
}

/// What is put together of a page.
pub(super) struct IndexPage<'a> {
    pub(super) lower: usize,
    pub(super) special: usize,
    pub(super) flags: u8,
    /// The first tuple is stored as it is, the others are plain.
    pub(super) has_key: bool,
    pub(super) items: &'a mut Items,
    pub(super) columns: &'a mut Columns,
    pub(super) grid: &'a mut Grid,
    /// The text of the frame.
    pub(super) text: &'a [u8],
    pub(super) streams: &'a mut PageStreams,
    pub(super) scratch: &'a mut IndexScratch,
    pub(super) last: &'a mut LastRow,
}

impl IndexPage<'_> {
    /// Puts all tuples into `page`, whose states of line pointers have been read. Gives where the lowest starts.
    pub(super) fn load(&mut self, page: &mut [u8]) -> Decoded<usize> {
        if self.has_key || self.flags & flag::TUPLE_STATES == 0 && self.has_no_bitmap(self.items.spans.len())? {
            return self.load_full(page);
        }
        self.read_headers()?;
        self.measure()?;
        let upper = self.items.place(page, self.lower, self.special, self.flags, self.streams)?;
        self.columns.scatter(page, self.grid, &self.items.spans, self.text)?;
        for index in 0..self.items.spans.len() {
            self.put_tuple(page, index)?;
        }
        Ok(upper)
    }

    /// Whether none of the next `count` tuples has a bitmap.
    fn has_no_bitmap(&self, count: usize) -> Decoded<bool> {
        let infos = self.streams.numbers[NumberStream::Info as usize].coming(count)?;
        Ok(infos.iter().fold(0, |all, info| all | *info as u16) & HAS_NULLS == 0)
    }

    /// As [`IndexPage::load`], of tuples that are all plain, without bitmaps, but for the first if that is a key as it is.
    fn load_full(&mut self, page: &mut [u8]) -> Decoded<usize> {
        let (key, plain) =
            self.items.spans.split_at_mut_checked(usize::from(self.has_key)).ok_or(Damaged("a page has no key"))?;
        for item in key {
            item.length = self.streams.number(NumberStream::RawLength).next()?;
        }
        let count = plain.len();
        let full = &mut self.grid.full;
        full.set_all_columns(self.columns.attributes.len());
        self.columns.measure_full(count, HEADER_BYTES, full)?;
        for (item, end) in plain.iter_mut().zip(&full.cursors) {
            item.length = align(*end as usize, MAX_ALIGNMENT) as u32;
        }
        if !self.has_no_bitmap(count)? || self.items.spans.iter().any(|item| item.length > 0x7FFF) {
            return Err(OUTSIDE);
        }
        let upper = self.items.place(page, self.lower, self.special, self.flags, self.streams)?;
        let (key, plain) = self.items.spans.split_at(usize::from(self.has_key));
        for item in key {
            let tuple = self.streams.bytes[ByteStream::Raw as usize].take(item.length as usize)?;
            put_bytes(page, item.at as usize, tuple)?;
        }
        self.columns.scatter_full(page, plain, HEADER_BYTES, &mut self.grid.full, self.text)?;
        for stream in FIELDS {
            self.streams.number(stream).take(count)?;
        }
        let taken = |stream: NumberStream| self.streams.numbers[stream as usize].taken(count);
        let rows = taken(NumberStream::RowBlock)?.iter().zip(taken(NumberStream::RowNumber)?);
        for ((item, info), (block, number)) in plain.iter().zip(taken(NumberStream::Info)?).zip(rows) {
            let info = *info as u16 & !SIZE_MASK | item.length as u16 & SIZE_MASK;
            let header = self.last.load_word(*block, *number) | u64::from(info) << (8 * INFO);
            put(page, item.at as usize, header.to_le_bytes())?;
        }
        Ok(upper)
    }

    fn read_headers(&mut self) -> Decoded<()> {
        let count = self.items.spans.len();
        let scratch = &mut *self.scratch;
        scratch.states.clear();
        if self.flags & flag::TUPLE_STATES == 0 {
            scratch.states.resize(count, PLAIN);
        } else {
            scratch.states.extend_from_slice(self.streams.byte(ByteStream::TupleState).take(count)?);
        }
        scratch.infos.clear();
        scratch.counts.clear();
        self.grid.clear();
        self.grid.cursors.clear();
        let column_count = self.columns.attributes.len() as u16;
        let mut bitmaps = 0;
        for state in &scratch.states {
            if *state == RAW {
                scratch.infos.push(0);
                scratch.counts.push(self.streams.number(NumberStream::RawLength).next()?);
                self.grid.tuples.push(TupleSpan::RAW);
                self.grid.cursors.push(0);
                continue;
            }
            let info = self.streams.number(NumberStream::Info).next()? as u16;
            let has_nulls = info & HAS_NULLS != 0;
            let data_at = if has_nulls { HEADER_BYTES_WITH_NULLS } else { HEADER_BYTES } as u32;
            let nulls_at = if has_nulls { bitmaps } else { NO_NULLS };
            bitmaps += if has_nulls { (COLUMNS_MAX / 8) as u32 } else { 0 };
            scratch.infos.push(info);
            scratch.counts.push(match *state {
                PLAIN => 0,
                LIST => self.streams.number(NumberStream::RowCount).next()?,
                _ => return Err(Damaged("an index tuple has a state that does not exist")),
            });
            self.grid.tuples.push(TupleSpan { data_at, end: 0, column_count, nulls_at, is_raw: false });
            self.grid.cursors.push(data_at);
        }
        Ok(())
    }

    /// Sets the items' lengths.
    fn measure(&mut self) -> Decoded<()> {
        let with_nulls = self.grid.tuples.iter().filter(|tuple| tuple.nulls_at != NO_NULLS).count();
        let nulls = &mut self.streams.bytes[ByteStream::Nulls as usize];
        let bitmaps = nulls.take(with_nulls * COLUMNS_MAX / 8)?;
        self.columns.measure(self.grid, bitmaps)?;
        for (tuple, (bitmap, place)) in self
            .grid
            .tuples
            .iter_mut()
            .filter(|tuple| tuple.nulls_at != NO_NULLS)
            .zip(bitmaps.as_chunks::<4>().0.iter().zip(0u32..))
        {
            // From here on the bitmap itself is what is needed, and it fits.
            tuple.nulls_at = place;
            tuple.end = u32::from_le_bytes(*bitmap);
        }
        let lengths = self.grid.tuples.iter().zip(&self.grid.cursors).zip(&self.scratch.counts);
        for (item, ((tuple, end), count)) in self.items.spans.iter_mut().zip(lengths) {
            let length = if tuple.is_raw {
                *count as usize
            } else {
                align(align(*end as usize, MAX_ALIGNMENT) + ROW_BYTES * *count as usize, MAX_ALIGNMENT)
            };
            item.length = u32::try_from(length).ok().filter(|length| *length <= 0x7FFF).ok_or(OUTSIDE)?;
        }
        Ok(())
    }

    fn put_tuple(&mut self, page: &mut [u8], index: usize) -> Decoded<()> {
        let (item, tuple) = (self.items.spans[index], self.grid.tuples[index]);
        let at = item.at as usize;
        if tuple.is_raw {
            return put_bytes(page, at, self.streams.bytes[ByteStream::Raw as usize].take(item.length as usize)?);
        }
        if tuple.nulls_at != NO_NULLS {
            put(page, at + HEADER_BYTES, tuple.end.to_le_bytes())?;
        }
        let info = self.scratch.infos[index] & !SIZE_MASK | item.length as u16 & SIZE_MASK;
        put(page, at + INFO, info.to_le_bytes())?;
        let block = self.streams.number(NumberStream::RowBlock).next()?;
        let number = self.streams.number(NumberStream::RowNumber).next()?;
        let first = self.last.load(block, number);
        if self.scratch.states[index] == PLAIN {
            return put(page, at, first);
        }
        let rows_at = align(self.grid.cursors[index] as usize, MAX_ALIGNMENT);
        put(page, at + rows_at, first)?;
        let count = self.scratch.counts[index] as usize;
        let rest = count.saturating_sub(1);
        let [blocks, numbers] = [NumberStream::ListBlock, NumberStream::ListNumber];
        self.streams.number(blocks).take(rest)?;
        self.streams.number(numbers).take(rest)?;
        let blocks = self.streams.numbers[blocks as usize].taken(rest)?;
        let numbers = self.streams.numbers[numbers as usize].taken(rest)?;
        let start = at + rows_at + ROW_BYTES;
        let rows = page.get_mut(start..start + ROW_BYTES * rest).ok_or(OUTSIDE)?;
        for ((row, block), number) in rows.as_chunks_mut::<ROW_BYTES>().0.iter_mut().zip(blocks).zip(numbers) {
            *row = self.last.load(block.wrapping_add(self.last.block), *number);
        }
        put(page, at, block_bytes(rows_at as u32))?;
        put(page, at + 4, (count as u16 | IS_LIST).to_le_bytes())
    }
}
