//! Where the values of a page's tuples lie: columns by tuples, found one column at a time.
//!
//! Column at a time because then what a column is like (length, alignment, whether anything is missing) is asked once for
//! a page and not once for a value.

use super::full::FullScratch;
use super::wire::{align, is_padding, u32_at};
use crate::layout::Attribute;

/// The tuples of one page, in the order of their line pointers; kept and used again for every page.
#[derive(Debug, Default)]
pub(super) struct Grid {
    /// What is known of each tuple before its columns are looked at.
    pub(super) tuples: Vec<TupleSpan>,
    /// Where the next column of each tuple is looked for.
    pub(super) cursors: Vec<u32>,
    /// Of column `c` of tuple `t`: `value_at[c * tuples.len() + t]`; 0 if the tuple does not have it.
    pub(super) value_at: Vec<u16>,
    /// Of each column, how many tuples have it.
    pub(super) counts: Vec<u16>,
    /// So many first columns every tuple has: all of them, or those before the first one that is null somewhere. In system
    /// catalogs, and in most tables, columns that may be null come last.
    pub(super) shared_count: usize,
    /// Of pages on which that is seen at once, in place of all above.
    pub(super) full: FullScratch,
}

/// One tuple's share of the page.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TupleSpan {
    /// Where its first column would be.
    pub(super) data_at: u32,
    /// Where it ends.
    pub(super) end: u32,
    /// How many columns it says it has.
    pub(super) column_count: u16,
    /// Where its bitmap of columns that are not null is, in whatever holds the bitmaps; `NO_NULLS` if it has none.
    pub(super) nulls_at: u32,
    /// It is not what the layout says, and goes as it is.
    pub(super) is_raw: bool,
}

/// A tuple without a bitmap.
pub(super) const NO_NULLS: u32 = u32::MAX;

impl TupleSpan {
    /// A tuple that is not taken apart.
    pub(super) const RAW: TupleSpan =
        TupleSpan { data_at: 0, end: 0, column_count: 0, nulls_at: NO_NULLS, is_raw: true };

    /// Whether it has column `column`; `bitmaps` is what `nulls_at` points into.
    #[inline]
    pub(super) fn has(&self, column: usize, bitmaps: &[u8]) -> bool {
        column < usize::from(self.column_count)
            && (self.nulls_at == NO_NULLS || bitmaps[self.nulls_at as usize + column / 8] >> (column % 8) & 1 != 0)
    }

    /// How many columns it has before the first one that it has not.
    fn leading_count(&self, bitmaps: &[u8]) -> usize {
        let column_count = usize::from(self.column_count);
        if self.nulls_at == NO_NULLS {
            return column_count;
        }
        let bitmap = bitmaps.get(self.nulls_at as usize..).unwrap_or_default();
        let whole = bitmap.iter().take(column_count / 8).take_while(|byte| **byte == u8::MAX).count();
        let rest = bitmap.get(whole).map_or(0, |byte| byte.trailing_ones() as usize);
        column_count.min(8 * whole + rest)
    }
}

/// How a value of variable length is stored; the low two bits of its head.
pub(crate) mod form {
    /// A header of one byte.
    pub(crate) const SHORT: u32 = 0;
    /// A header of four bytes.
    pub(crate) const LONG: u32 = 1;
    /// A header of four bytes, and compressed.
    pub(crate) const COMPRESSED: u32 = 2;
    /// A pointer to a value elsewhere.
    pub(crate) const EXTERNAL: u32 = 3;

    /// Bytes of the payload of a value with this head.
    pub(crate) fn payload_length(head: u32) -> usize {
        if head & 3 == EXTERNAL { 0 } else { (head >> 2) as usize }
    }
}

/// Bytes of a pointer to a TOAST value, with its two bytes of header (varatt_external in src/include/varatt.h).
pub(super) const EXTERNAL_BYTES: usize = 18;
/// Its tag, VARTAG_ONDISK.
pub(super) const EXTERNAL_TAG: u8 = 18;

impl Grid {
    /// Starts a page.
    pub(super) fn clear(&mut self) {
        self.tuples.clear();
    }

    /// Finds every column of every tuple in `page`; a tuple that the layout does not fit becomes raw. Bitmaps lie in the
    /// page too. Afterwards `cursors` tell where the last column of each ended.
    pub(super) fn find(&mut self, page: &[u8], attributes: &[Attribute]) {
        let count = self.tuples.len();
        self.count_shared(attributes.len(), page);
        self.cursors.clear();
        self.cursors.extend(self.tuples.iter().map(|tuple| tuple.data_at));
        self.value_at.clear();
        self.value_at.resize(attributes.len() * count, 0);
        self.counts.clear();
        if count == 0 {
            return;
        }
        let mut any_raw = self.tuples.iter().any(|tuple| tuple.is_raw);
        let mut prefix = self.prefix();
        for (column, (attribute, row)) in attributes.iter().zip(self.value_at.chunks_exact_mut(count)).enumerate() {
            let (tuples, cursors) = (&mut self.tuples, &mut self.cursors);
            if prefix.advance(*attribute) {
                let (before, at) = (prefix.before, prefix.at);
                let is_padded =
                    |tuple: &TupleSpan| is_padding(page, tuple.data_at as usize + before, tuple.data_at as usize + at);
                if before == at || tuples.iter().all(is_padded) {
                    fill(row, tuples, at);
                    self.counts.push(count as u16);
                    continue;
                }
                prefix.end = before;
            }
            prefix.leave(tuples, cursors);
            let is_shared = column < self.shared_count;
            let mut value_count = 0;
            for ((tuple, cursor), place) in tuples.iter_mut().zip(cursors).zip(row) {
                if !is_shared && !tuple.has(column, page) {
                    continue;
                }
                let found = if attribute.length > 0 {
                    find_fixed(page, *attribute, *cursor as usize, tuple.end as usize)
                } else {
                    find_variable(page, *attribute, *cursor as usize, tuple.end as usize)
                };
                match found {
                    Some((at, next)) => {
                        *place = at as u16;
                        *cursor = next as u32;
                        value_count += 1;
                    }
                    None => {
                        *tuple = TupleSpan::RAW;
                        any_raw = true;
                    }
                }
            }
            self.counts.push(value_count);
        }
        prefix.leave(&self.tuples, &mut self.cursors);
        if any_raw {
            self.forget_raw();
        }
    }

    /// Counts the first columns that every tuple has, of `column_count`.
    pub(super) fn count_shared(&mut self, column_count: usize, bitmaps: &[u8]) {
        let leading = self.tuples.iter().map(|tuple| tuple.leading_count(bitmaps));
        self.shared_count = leading.fold(column_count, usize::min);
    }

    /// The columns that lie at the same place in every tuple, none yet.
    fn prefix(&self) -> Prefix {
        let room = self.tuples.iter().map(|tuple| tuple.end.saturating_sub(tuple.data_at)).min().unwrap_or(0);
        Prefix::new(self.shared_count, room as usize)
    }

    /// As [`Grid::prefix`], of tuples whose ends are not known yet.
    pub(super) fn open_prefix(&self) -> Prefix {
        Prefix::new(self.shared_count, usize::from(u16::MAX) / 2)
    }

    /// A raw tuple has no columns.
    pub(super) fn forget_raw(&mut self) {
        let count = self.tuples.len();
        for (row, value_count) in self.value_at.chunks_exact_mut(count).zip(&mut self.counts) {
            for (place, tuple) in row.iter_mut().zip(&self.tuples) {
                if tuple.is_raw {
                    *place = 0;
                }
            }
            *value_count = row.iter().filter(|place| **place != 0).count() as u16;
        }
    }

    /// How many tuples have `column`.
    #[inline]
    pub(super) fn value_count(&self, column: usize) -> usize {
        self.counts.get(column).map_or(0, |count| usize::from(*count))
    }

    /// Where the values of `column` are, by tuple; 0 where there is none.
    pub(super) fn row(&self, column: usize) -> &[u16] {
        let count = self.tuples.len();
        &self.value_at[column * count..(column + 1) * count]
    }
}

/// The columns before the first one of variable length, and the first one that some tuple has not: they lie at the same place
/// in each, so that nothing has to be found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefix {
    is_open: bool,
    /// Columns that are left of those that every tuple has.
    shared_left: usize,
    /// Bytes of the shortest tuple's data.
    room: usize,
    /// Where the column before ends, from the tuples' data on.
    before: usize,
    /// Where the column at hand lies.
    pub(super) at: usize,
    end: usize,
}

impl Prefix {
    fn new(shared_count: usize, room: usize) -> Self {
        Prefix { is_open: true, shared_left: shared_count, room, before: 0, at: 0, end: 0 }
    }

    /// Goes on to a column; false if it does not belong to the prefix.
    #[inline]
    pub(super) fn advance(&mut self, attribute: Attribute) -> bool {
        if !self.is_open || attribute.length < 0 || self.shared_left == 0 {
            return false;
        }
        self.shared_left -= 1;
        self.before = self.end;
        self.at = align(self.before, usize::from(attribute.alignment));
        let end = self.at + attribute.length as usize;
        if end > self.room {
            return false;
        }
        self.end = end;
        true
    }

    /// Ends the prefix: from here on each tuple has its own cursor.
    #[inline]
    pub(super) fn leave(&mut self, tuples: &[TupleSpan], cursors: &mut [u32]) {
        if self.is_open {
            self.is_open = false;
            for (cursor, tuple) in cursors.iter_mut().zip(tuples) {
                *cursor = tuple.data_at + self.end as u32;
            }
        }
    }
}

/// The same place in every tuple.
#[inline]
pub(super) fn fill(row: &mut [u16], tuples: &[TupleSpan], at: usize) {
    for (place, tuple) in row.iter_mut().zip(tuples) {
        *place = (tuple.data_at as usize + at) as u16;
    }
}

/// Place and end of a value of fixed length that is looked for from `cursor` on; None if it or its padding is not as it
/// should be.
#[inline]
pub(super) fn find_fixed(page: &[u8], attribute: Attribute, cursor: usize, end: usize) -> Option<(usize, usize)> {
    let at = align(cursor, usize::from(attribute.alignment));
    let next = at + attribute.length as usize;
    (next <= end && is_padding(page, cursor, at)).then_some((at, next))
}

/// As [`find_fixed`], of a value that tells its own length.
#[inline]
pub(super) fn find_variable(page: &[u8], attribute: Attribute, cursor: usize, end: usize) -> Option<(usize, usize)> {
    let first = *page.get(cursor)?;
    if first & 1 == 1 {
        let size = if first == 1 {
            (*page.get(cursor + 1)? == EXTERNAL_TAG).then_some(EXTERNAL_BYTES)?
        } else {
            usize::from(first >> 1)
        };
        return (cursor + size <= end).then_some((cursor, cursor + size));
    }
    let at = align(cursor, usize::from(attribute.alignment));
    if at + 4 > end || !is_padding(page, cursor, at) {
        return None;
    }
    let header = u32_at(page, at);
    let next = at + (header >> 2) as usize;
    // A short header behind padding would come back without it.
    (header & 1 == 0 && header >> 2 >= 4 && next <= end).then_some((at, next))
}
