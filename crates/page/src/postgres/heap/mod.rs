//! Heap tuples: their headers by field, their columns through [`Columns`]. Layout: src/include/access/htup_details.h.

mod make;
mod take;

pub(super) use make::{HeapPage, HeapScratch};
pub(super) use take::store;

use super::grid::{NO_NULLS, TupleSpan};
use super::items::Item;
use super::streams::NumberStream;
use super::wire::{MAX_ALIGNMENT, align, is_padding, u16_at};

/// Bytes of a tuple header before the bitmap.
const HEADER_BYTES: usize = 23;
/// Where fields are; xmin and xmax come first, the next version's block behind the command id.
const COMMAND_ID: usize = 8;
pub(super) const NEXT_NUMBER: usize = 16;
const INFOMASK2: usize = 18;
const INFOMASK: usize = 20;
const DATA_OFFSET: usize = 22;
/// Where data starts without a bitmap.
pub(super) const DATA_AT: usize = align(HEADER_BYTES, MAX_ALIGNMENT);
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

/// Where the columns of a tuple are, if its header is in order.
// Returned from a call it would be copied before its parts have been written: that waits for them, for each tuple.
#[inline(always)]
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
