//! Leaves of a GIN index's tree of keys: each key once, with the rows that have it. Layout: src/include/access/ginblock.h,
//! src/backend/access/gin/ginentrypage.c and ginpostinglist.c.
//!
//! A list of rows is the first one, a count of bytes, and differences of row numbers (block x 2^11 + number), seven bits to a
//! byte. Pages of the trees that long lists have of their own go as shells.

use std::ops::Range;

use super::columns::Columns;
use super::grid::{Grid, NO_NULLS, TupleSpan};
use super::items::{Item, Items};
use super::streams::{ByteStream, NumberStream, PageStreams, flag};
use super::wire::{
    MAX_ALIGNMENT, OUTSIDE, align, block_at, block_bytes, fills_tuple, is_zero, put, put_bytes, u16_at, u32_at,
};
use crate::error::{Damaged, Decoded};

/// Bytes of the opaque area at the end of a page: the next page, a count that is zero here, flags.
pub(super) const OPAQUE_BYTES: usize = 8;
/// Flags of a leaf of the tree of keys.
const LEAF: u16 = 1 << 1;

/// Bytes of a tuple's header.
const HEADER_BYTES: usize = 8;
/// Of `t_info`: the size, and that the key has a variable length.
const SIZE_MASK: u16 = 0x1FFF;
const IS_VARIABLE: u16 = 0x4000;
/// In place of a block number where a list follows: with the list's place.
const IS_COMPRESSED: u32 = 1 << 31;
/// In place of a list's count: the rows are in a tree, and the block number says where.
const TREE_COUNT: u16 = 0xFFFF;
/// Bytes before a list's differences: the first row, and how many bytes follow.
const LIST_BYTES: usize = 8;
/// Bits of a row's number within its block.
const NUMBER_BITS: u32 = 11;
/// The most bytes of a difference.
const DIFFERENCE_BYTES_MAX: usize = 7;

/// A key and its rows, by number.
const ROWS: u8 = 0;
/// A key and its list, as bytes: rows so near to one another that they are shorter that way.
const BYTES: u8 = 1;
/// A key and the number of a tree's root.
const TREE: u8 = 2;
/// As it is.
const RAW: u8 = 3;

/// Whether the page's tuples can be taken apart.
pub(super) fn has_tuples(page: &[u8], special: usize, columns: &Columns) -> bool {
    columns.attributes.len() == 1
        && special + OPAQUE_BYTES == page.len()
        && u32_at(page, special + 4) == u32::from(LEAF) << 16
}

/// A row as one number, or none if its number is too large for that.
#[inline]
fn row_at(page: &[u8], at: usize) -> Option<u64> {
    let number = u64::from(u16_at(page, at + 4));
    (number >> NUMBER_BITS == 0).then_some(u64::from(block_at(page, at)) << NUMBER_BITS | number)
}

#[inline]
fn block_of(row: u64) -> u32 {
    (row >> NUMBER_BITS) as u32
}

#[inline]
fn number_of(row: u64) -> u32 {
    row as u32 & ((1 << NUMBER_BITS) - 1)
}

/// Takes the tuples of a leaf apart. Gives [`flag::TUPLE_STATES`] or nothing.
pub(super) fn store(
    page: &[u8],
    block: u32,
    items: &Items,
    columns: &mut Columns,
    grid: &mut Grid,
    streams: &mut PageStreams,
) -> u8 {
    let next = u32_at(page, page.len() - OPAQUE_BYTES);
    streams.number(NumberStream::Next).values.push(next.wrapping_sub(block));
    grid.clear();
    grid.tuples.extend(items.spans.iter().map(|item| span_of(page, *item)));
    columns.gather(page, grid, |tuple, end| fills_tuple(page, end as usize, tuple.end as usize));
    let start = streams.byte(ByteStream::TupleState).values.len();
    let mut states = 0;
    for (item, tuple) in items.spans.iter().zip(&grid.tuples) {
        let state = store_tuple(page, *item, tuple, streams);
        streams.byte(ByteStream::TupleState).values.push(state);
        states |= state;
    }
    if states == ROWS {
        streams.byte(ByteStream::TupleState).values.truncate(start);
        return 0;
    }
    flag::TUPLE_STATES
}

/// Where the key of a tuple is, if all but the key is in order: up to the list, or up to the tuple's end if there is none.
fn span_of(page: &[u8], item: Item) -> TupleSpan {
    let (at, length) = (item.at as usize, item.length as usize);
    if length < HEADER_BYTES {
        return TupleSpan::RAW;
    }
    let (info, count, place) = (u16_at(page, at + 6), u16_at(page, at + 4), block_at(page, at));
    if usize::from(info & SIZE_MASK) != length || info & !(SIZE_MASK | IS_VARIABLE) != 0 || count == 0 {
        return TupleSpan::RAW;
    }
    let mut end = length;
    if count != TREE_COUNT {
        end = (place & !IS_COMPRESSED) as usize;
        let has_list = place & IS_COMPRESSED != 0 && end >= HEADER_BYTES && end + LIST_BYTES <= length;
        if !has_list {
            return TupleSpan::RAW;
        }
        let list_end = end + LIST_BYTES + usize::from(u16_at(page, at + end + 6));
        let has_end = align(list_end, MAX_ALIGNMENT) == length;
        if !has_end || !is_zero(&page[at + list_end..at + length]) {
            return TupleSpan::RAW;
        }
    }
    TupleSpan {
        data_at: (at + HEADER_BYTES) as u32,
        end: (at + end) as u32,
        column_count: 1,
        nulls_at: NO_NULLS,
        is_raw: false,
    }
}

/// Stores all of a tuple but its key; gives its state.
fn store_tuple(page: &[u8], item: Item, tuple: &TupleSpan, streams: &mut PageStreams) -> u8 {
    let (at, end) = (item.at as usize, (item.at + item.length) as usize);
    if tuple.is_raw {
        streams.number(NumberStream::RawLength).values.push(item.length);
        streams.byte(ByteStream::Raw).values.extend_from_slice(&page[at..end]);
        return RAW;
    }
    let count = u16_at(page, at + 4);
    streams.number(NumberStream::Info).values.push(u32::from(u16_at(page, at + 6) & !SIZE_MASK));
    if count == TREE_COUNT {
        streams.number(NumberStream::Previous).values.push(block_at(page, at));
        return TREE;
    }
    let list_at = tuple.end as usize;
    let list = &page[list_at + LIST_BYTES..][..usize::from(u16_at(page, list_at + 6))];
    streams.number(NumberStream::RowCount).values.push(count.into());
    streams.number(NumberStream::RowBlock).values.push(block_at(page, list_at));
    streams.number(NumberStream::RowNumber).values.push(u16_at(page, list_at + 4).into());
    let rows = usize::from(count) - 1;
    // Two numbers of four bytes a row: a decoder allows four bytes a byte.
    if list.len() >= 2 * rows
        && let Some(first) = row_at(page, list_at)
        && store_rows(page, list_at + LIST_BYTES..list_at + LIST_BYTES + list.len(), first, rows, streams)
    {
        return ROWS;
    }
    streams.number(NumberStream::RawLength).values.push(list.len() as u32);
    streams.byte(ByteStream::Raw).values.extend_from_slice(list);
    BYTES
}

/// Stores the `count` rows of the list at `list` in `page` behind the first; false, and nothing, if it is not what [`put_rows`]
/// would make.
fn store_rows(page: &[u8], list: Range<usize>, first: u64, count: usize, streams: &mut PageStreams) -> bool {
    let [blocks, numbers] = streams.extended([NumberStream::ListBlock, NumberStream::ListNumber], count);
    let (mut at, mut row) = (list.start, first);
    let is_stored = blocks.iter_mut().zip(numbers).all(|(block, number)| {
        // There are eight bytes: behind any list is the opaque area.
        let Some(bytes) = page[at..].first_chunk().filter(|_| at < list.end) else { return false };
        let Some((difference, length)) = difference_in(u64::from_le_bytes(*bytes)) else { return false };
        at += length;
        let next = row + difference;
        (*block, *number) = (block_of(next).wrapping_sub(block_of(row)), number_of(next));
        if *block == 0 {
            *number = number_of(next).wrapping_sub(number_of(row));
        }
        row = next;
        row >> (32 + NUMBER_BITS) == 0
    });
    if is_stored && at == list.end {
        return true;
    }
    for stream in [NumberStream::ListBlock, NumberStream::ListNumber] {
        let values = &mut streams.number(stream).values;
        values.truncate(values.len() - count);
    }
    false
}

/// The highest bit of each byte: another byte of the difference follows.
const MORE: u64 = 0x8080_8080_8080_8080;

/// The difference that begins a word, and of how many bytes it is, if these are as few as possible. All bytes at once: how many there are
/// is different from row to row, and nothing that a processor could foresee.
#[inline]
fn difference_in(word: u64) -> Option<(u64, usize)> {
    let ends = !word & MORE;
    let length = ends.trailing_zeros() as usize / 8 + 1;
    // All bits up to the last byte's.
    let bits = word & (ends ^ ends.wrapping_sub(1));
    let is_shortest = length <= DIFFERENCE_BYTES_MAX && bits >> (8 * (length - 1)) != 0;
    let pairs = bits & 0x007f_007f_007f_007f | (bits & 0x7f00_7f00_7f00_7f00) >> 1;
    let halves = pairs & 0x0000_3fff_0000_3fff | (pairs & 0x3fff_0000_3fff_0000) >> 2;
    let difference = halves & 0x0fff_ffff | halves >> 32 << 28;
    is_shortest.then_some((difference, length))
}

/// The bytes of a difference of up to 49 bits, and how many they are: what [`difference_in`] reads.
#[inline]
fn difference_bytes(difference: u64) -> (u64, usize) {
    let length = (70 - (difference | 1).leading_zeros() as usize) / 7;
    let halves = difference & 0x0fff_ffff | difference >> 28 << 32;
    let pairs = halves & 0x0000_3fff_0000_3fff | (halves & 0x0fff_c000_0fff_c000) << 2;
    let bytes = pairs & 0x007f_007f_007f_007f | (pairs & 0x3f80_3f80_3f80_3f80) << 1;
    (bytes | MORE & ((1 << (8 * (length - 1))) - 1), length)
}

/// Scratch of [`GinPage::load`].
#[derive(Debug, Default)]
pub(super) struct GinScratch {
    states: Vec<u8>,
    infos: Vec<u16>,
    /// Lengths of raw tuples, roots of trees, counts of lists.
    counts: Vec<u32>,
    /// Where the list of each tuple ends.
    list_ends: Vec<u32>,
    /// Lists as they stand in tuples, and raw tuples.
    lists: Vec<u8>,
}

/// What is put together of a leaf.
pub(super) struct GinPage<'a> {
    pub(super) lower: usize,
    pub(super) special: usize,
    pub(super) flags: u8,
    pub(super) items: &'a mut Items,
    pub(super) columns: &'a mut Columns,
    pub(super) grid: &'a mut Grid,
    /// The text of the frame.
    pub(super) text: &'a [u8],
    pub(super) streams: &'a mut PageStreams,
    pub(super) scratch: &'a mut GinScratch,
}

impl GinPage<'_> {
    /// Puts all tuples into `page`, number `block`, whose states of line pointers have been read. Gives where the lowest
    /// starts.
    pub(super) fn load(&mut self, page: &mut [u8], block: u32) -> Decoded<usize> {
        let next = self.streams.number(NumberStream::Next).next()?.wrapping_add(block);
        put(page, self.special, next.to_le_bytes())?;
        put(page, self.special + 6, LEAF.to_le_bytes())?;
        self.read_tuples()?;
        self.measure()?;
        let upper = self.items.place(page, self.lower, self.special, self.flags, self.streams)?;
        self.columns.scatter(page, self.grid, &self.items.spans, self.text)?;
        (0..self.items.spans.len()).try_for_each(|index| self.put_tuple(page, index))?;
        Ok(upper)
    }

    fn read_tuples(&mut self) -> Decoded<()> {
        let count = self.items.spans.len();
        let (scratch, streams) = (&mut *self.scratch, &mut *self.streams);
        scratch.states.clear();
        if self.flags & flag::TUPLE_STATES == 0 {
            scratch.states.resize(count, ROWS);
        } else {
            scratch.states.extend_from_slice(streams.byte(ByteStream::TupleState).take(count)?);
        }
        scratch.infos.clear();
        scratch.counts.clear();
        scratch.list_ends.clear();
        scratch.lists.clear();
        self.grid.clear();
        self.grid.cursors.clear();
        for state in &scratch.states {
            let data_at = HEADER_BYTES as u32;
            let mut tuple = TupleSpan { data_at, end: 0, column_count: 1, nulls_at: NO_NULLS, is_raw: false };
            let mut info = 0;
            if *state == RAW {
                tuple = TupleSpan::RAW;
            } else {
                info = streams.number(NumberStream::Info).next()? as u16;
            }
            scratch.infos.push(info);
            scratch.counts.push(match *state {
                ROWS | BYTES => read_list(*state, &mut scratch.lists, streams)?,
                TREE => streams.number(NumberStream::Previous).next()?,
                RAW => {
                    let length = streams.number(NumberStream::RawLength).next()?;
                    scratch.lists.extend_from_slice(streams.byte(ByteStream::Raw).take(length as usize)?);
                    length
                }
                _ => return Err(Damaged("a GIN tuple has a state that does not exist")),
            });
            scratch.list_ends.push(scratch.lists.len() as u32);
            self.grid.cursors.push(tuple.data_at);
            self.grid.tuples.push(tuple);
        }
        Ok(())
    }

    /// Sets the items' lengths.
    fn measure(&mut self) -> Decoded<()> {
        self.columns.measure(self.grid, &[])?;
        let mut list_start = 0;
        for (index, item) in self.items.spans.iter_mut().enumerate() {
            let list_length = (self.scratch.list_ends[index] - list_start) as usize;
            list_start = self.scratch.list_ends[index];
            let end = self.grid.cursors[index] as usize;
            let length = match self.scratch.states[index] {
                RAW => self.scratch.counts[index] as usize,
                TREE => align(end, MAX_ALIGNMENT),
                _ => align(align(end, MAX_ALIGNMENT) + list_length, MAX_ALIGNMENT),
            };
            if length > usize::from(SIZE_MASK) {
                return Err(OUTSIDE);
            }
            item.length = length as u32;
        }
        Ok(())
    }

    /// Puts everything of a tuple but its key.
    fn put_tuple(&mut self, page: &mut [u8], index: usize) -> Decoded<()> {
        let (scratch, item) = (&*self.scratch, self.items.spans[index]);
        let (at, count) = (item.at as usize, scratch.counts[index]);
        let list_start = index.checked_sub(1).map_or(0, |before| scratch.list_ends[before]);
        let list = &scratch.lists[list_start as usize..scratch.list_ends[index] as usize];
        let (place, count) = match scratch.states[index] {
            RAW => return put_bytes(page, at, list),
            TREE => (count, TREE_COUNT),
            _ => {
                let list_at = align(self.grid.cursors[index] as usize, MAX_ALIGNMENT);
                put_bytes(page, at + list_at, list)?;
                (list_at as u32 | IS_COMPRESSED, count as u16)
            }
        };
        put(page, at, block_bytes(place))?;
        put(page, at + 4, count.to_le_bytes())?;
        put(page, at + 6, (scratch.infos[index] & !SIZE_MASK | item.length as u16).to_le_bytes())
    }
}

/// Appends a tuple's list to `lists`; gives the count of its rows.
fn read_list(state: u8, lists: &mut Vec<u8>, streams: &mut PageStreams) -> Decoded<u32> {
    let count = streams.number(NumberStream::RowCount).next()?;
    let block = streams.number(NumberStream::RowBlock).next()?;
    let number = streams.number(NumberStream::RowNumber).next()?;
    let start = lists.len();
    lists.extend_from_slice(&block_bytes(block));
    lists.extend_from_slice(&(number as u16).to_le_bytes());
    lists.extend_from_slice(&[0; 2]);
    if state == BYTES {
        let length = streams.number(NumberStream::RawLength).next()? as usize;
        lists.extend_from_slice(streams.byte(ByteStream::Raw).take(length)?);
    } else {
        let rows = count.checked_sub(1).ok_or(Damaged("a GIN list has no row"))? as usize;
        let [list_block, list_number] = [NumberStream::ListBlock, NumberStream::ListNumber];
        let first = u64::from(block) << NUMBER_BITS | u64::from(number);
        streams.number(list_block).take(rows)?;
        streams.number(list_number).take(rows)?;
        let blocks = streams.numbers[list_block as usize].taken(rows)?;
        put_rows(first, blocks.iter().zip(streams.numbers[list_number as usize].taken(rows)?), lists)?;
    }
    let length = lists.len() - start - LIST_BYTES;
    let length = u16::try_from(length).map_err(|_| OUTSIDE)?;
    lists[start + 6..start + LIST_BYTES].copy_from_slice(&length.to_le_bytes());
    Ok(count)
}

/// Appends the differences of rows that [`store_rows`] stored.
fn put_rows<'a>(first: u64, rows: impl Iterator<Item = (&'a u32, &'a u32)>, lists: &mut Vec<u8>) -> Decoded<()> {
    let mut row = first;
    for (block, number) in rows {
        let number = if *block == 0 { number.wrapping_add(number_of(row)) } else { *number };
        let next = u64::from(block_of(row).wrapping_add(*block)) << NUMBER_BITS | u64::from(number);
        let difference = next.checked_sub(row).ok_or(Damaged("the rows of a GIN list are not in order"))?;
        let (bytes, length) = difference_bytes(difference);
        let end = lists.len() + length;
        lists.extend_from_slice(&bytes.to_le_bytes());
        lists.truncate(end);
        row = next;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_of_all_lengths_come_back() {
        for bits in 0..49 {
            for difference in [1 << bits, (1 << bits) + 1, (2 << bits) - 1, 0x0001_5a5a_c3c3_9669 >> (48 - bits)] {
                let (bytes, length) = difference_bytes(difference);
                // What stands behind it does not matter.
                for behind in [0, u64::MAX << (8 * length)] {
                    assert_eq!(difference_in(bytes | behind), Some((difference, length)), "{difference:x}");
                }
                assert_eq!(length, (bits / 7 + 1).max(difference.ilog2() / 7 + 1) as usize);
            }
        }
        assert_eq!(difference_bytes(0), (0, 1));
    }

    #[test]
    fn differences_of_too_many_bytes_are_none() {
        for word in [0, 0x0080, 0x00_8080, 0x01_80_80_80_80_80_80_80, u64::MAX, MORE] {
            assert_eq!(difference_in(word), None, "{word:x}");
        }
    }
}
