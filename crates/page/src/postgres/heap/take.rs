//! Tuples into streams.

use super::{
    COLUMN_COUNT_MASK, COMMAND_ID, DATA_AT, FIELDS, HAS_NULLS, NEXT_NUMBER, PLAIN, RAW, WITH_REST, bitmap_bytes,
    span_of,
};
use crate::postgres::columns::Columns;
use crate::postgres::grid::{Grid, NO_NULLS, TupleSpan};
use crate::postgres::items::{Item, Items};
use crate::postgres::streams::{ByteStream, NumberStream, PageStreams, flag};
use crate::postgres::wire::u64_at;

/// Takes the tuples of a heap page apart. Gives [`flag::TUPLE_STATES`] or nothing, and whether the headers are alike: then
/// they were stored once for all.
pub(in crate::postgres) fn store(
    page: &[u8],
    block: u32,
    items: &Items,
    columns: &mut Columns,
    grid: &mut Grid,
    streams: &mut PageStreams,
) -> (u8, bool) {
    let column_count = columns.attributes.len();
    if let Some(headers) = Headers::of(page, block, &items.spans, column_count) {
        grid.full.set_columns_of(column_count, &headers.tuple, page);
        let is_whole = |item: &Item, end: u32| end == item.at + item.length;
        if columns.gather_full(page, &items.spans, headers.length, &mut grid.full, is_whole) {
            headers.store(page, block, &items.spans, streams);
            return (0, headers.are_alike);
        }
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
    columns.gather(page, grid, |_, _| true);
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

/// The headers of tuples that all have the same columns.
struct Headers {
    first: [u64; 3],
    /// What the first one has, and where.
    tuple: TupleSpan,
    /// Where columns start in each.
    length: usize,
    /// They have every column and no bitmap, and nothing tells one from the other.
    are_alike: bool,
}

impl Headers {
    /// None if there is no tuple, or one that is not so.
    fn of(page: &[u8], block: u32, items: &[Item], column_count: usize) -> Option<Self> {
        let first_item = items.first()?;
        let tuple = span_of(page, *first_item);
        if tuple.is_raw || items.iter().any(|item| (item.length as usize) < DATA_AT) {
            return None;
        }
        let first = header_words(page, block, first_item);
        let are_full = tuple.nulls_at == NO_NULLS && usize::from(tuple.column_count) >= column_count;
        // The data's place, a byte of padding or of bitmap behind it, and whether there is one.
        let told = 0xFFFF << 48 | u64::from(HAS_NULLS) << 32;
        // Columns that the layout does not have tell nothing.
        let (told, least) =
            if are_full { (told, column_count as u16) } else { (told | u64::from(COLUMN_COUNT_MASK) << 16, 0) };
        let mut unlike = 0;
        for item in items {
            let words = header_words(page, block, item);
            if (words[2] ^ first[2]) & told != 0 || ((words[2] >> 16) as u16 & COLUMN_COUNT_MASK) < least {
                return None;
            }
            unlike |= (words[0] ^ first[0]) | (words[1] ^ first[1]) | (words[2] ^ first[2]);
        }
        let length = (tuple.data_at - first_item.at) as usize;
        // The bitmap's bytes behind its first one, and the padding behind them.
        let rest = |item: &Item| &page[item.at as usize + DATA_AT..item.at as usize + length];
        let has_one = |item: &Item| item.length as usize >= length && rest(item) == rest(first_item);
        let is_fit = length == DATA_AT || items.iter().all(has_one);
        is_fit.then_some(Headers { first, tuple, length, are_alike: are_full && unlike == 0 })
    }

    fn store(&self, page: &[u8], block: u32, items: &[Item], streams: &mut PageStreams) {
        if self.are_alike {
            for (stream, field) in FIELDS.into_iter().zip(fields_of(self.first)) {
                streams.number(stream).values.push(field);
            }
            return;
        }
        store_fields(page, block, items.iter(), items.len(), streams);
        if self.tuple.nulls_at != NO_NULLS {
            let at = self.tuple.nulls_at as usize;
            let bitmap = &page[at..at + bitmap_bytes(self.tuple.column_count)];
            let nulls = &mut streams.byte(ByteStream::Nulls).values;
            items.iter().for_each(|_| nulls.extend_from_slice(bitmap));
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
