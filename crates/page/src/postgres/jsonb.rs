//! How jsonb is stored. Layout: src/include/utils/jsonb.h and jsonb_util.c.
//!
//! A container is a word (count and kind), an entry of four bytes for each element (for an object: for each key, then for each
//! value), then their bytes. An entry is a type and a length; every 32nd has the end's offset instead. Numbers and
//! containers start at a multiple of four.

/// Of a container's word: how many elements, or pairs.
pub(crate) const COUNT_MASK: u32 = 0x0FFF_FFFF;
/// An array of one element that stands for the element.
pub(crate) const SCALAR: u32 = 0x5000_0000;
pub(crate) const OBJECT: u32 = 0x2000_0000;
pub(crate) const ARRAY: u32 = 0x4000_0000;

/// Of an entry: a length, or the end's offset.
pub(crate) const LENGTH_MASK: u32 = 0x0FFF_FFFF;
/// It is an offset.
pub(crate) const HAS_OFFSET: u32 = 0x8000_0000;
/// So many entries to one with an offset.
pub(crate) const OFFSET_STRIDE: usize = 32;
const TYPE_SHIFT: u32 = 28;

/// Types of entries.
pub(crate) mod entry {
    pub(crate) const STRING: u8 = 0;
    pub(crate) const NUMERIC: u8 = 1;
    pub(crate) const FALSE: u8 = 2;
    pub(crate) const TRUE: u8 = 3;
    pub(crate) const NULL: u8 = 4;
    pub(crate) const CONTAINER: u8 = 5;
}

/// The type of an entry.
#[inline]
pub(crate) fn type_of(entry: u32) -> u8 {
    (entry >> TYPE_SHIFT) as u8 & 7
}

/// Entry `number` of its container: of `length` bytes that end at `end`.
#[inline]
pub(crate) fn entry_of(number: usize, entry_type: u8, length: usize, end: usize) -> u32 {
    let has_offset = number.is_multiple_of(OFFSET_STRIDE);
    let (measure, flag) = if has_offset { (end, HAS_OFFSET) } else { (length, 0) };
    u32::from(entry_type) << TYPE_SHIFT | measure as u32 & LENGTH_MASK | flag
}

/// Where the bytes of entry `number` end that start at `start`; None if it does not say it as [`entry_of`] does.
#[inline]
pub(crate) fn end_of(number: usize, entry: u32, start: usize) -> Option<usize> {
    let measure = (entry & LENGTH_MASK) as usize;
    let has_offset = number.is_multiple_of(OFFSET_STRIDE);
    if has_offset != (entry & HAS_OFFSET != 0) {
        return None;
    }
    let end = if has_offset { measure } else { start + measure };
    (end >= start).then_some(end)
}
