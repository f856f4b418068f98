//! Where the values of a page's tuples lie: columns by tuples, found one column at a time.
//!
//! Column at a time because then what a column is like (length, alignment, whether anything is missing) is asked once for
//! a page and not once for a value.

use super::full::FullScratch;
use super::presence::{Presence, Share};
use super::wire::{align, is_padding, u32_at};
use crate::layout::Attribute;

/// The tuples of one page, in the order of their line pointers; kept and used again for every page.
#[derive(Debug, Default)]
pub(super) struct Grid {
    /// What is known of each tuple before its columns are looked at.
    pub(super) tuples: Vec<TupleSpan>,
    /// Where the next column of each tuple is looked for.
    pub(super) cursors: Vec<u32>,
    /// Which tuples have which columns.
    pub(super) presence: Presence,
    /// Where values are: column after column, and of each the tuples that have it.
    value_at: Vec<u16>,
    /// Where the columns' shares of that end.
    row_ends: Vec<u32>,
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

    /// Which of the 64 columns from `8 * byte` on it has, a bit each.
    #[inline]
    pub(super) fn columns_from(&self, byte: usize, bitmaps: &[u8]) -> u64 {
        let left = usize::from(self.column_count).saturating_sub(8 * byte);
        let said = if left < 64 { (1 << left) - 1 } else { u64::MAX };
        if self.nulls_at == NO_NULLS {
            return said;
        }
        let bitmap = bitmaps.get(self.nulls_at as usize + byte..).unwrap_or_default();
        let bits = bitmap.first_chunk().copied().unwrap_or_else(|| {
            let mut bits = [0; 8];
            bits[..bitmap.len()].copy_from_slice(bitmap);
            bits
        });
        said & u64::from_le_bytes(bits)
    }

    /// How many columns it has before the first one that it has not.
    pub(super) fn leading_count(&self, bitmaps: &[u8]) -> usize {
        let mut count = 0;
        for first in (0..usize::from(self.column_count)).step_by(64) {
            let leading = self.columns_from(first / 8, bitmaps).trailing_ones() as usize;
            count += leading;
            if leading < 64 {
                break;
            }
        }
        count
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

    /// Looks which tuples have which of `column_count` columns; no places of values are known.
    pub(super) fn begin(&mut self, column_count: usize, bitmaps: &[u8]) {
        self.presence.begin(&self.tuples, column_count, bitmaps);
        self.value_at.clear();
        self.row_ends.clear();
    }

    /// Finds every column of every tuple in `page`; a tuple becomes raw that the layout does not fit, or for which `ends` does
    /// not agree with where its columns end. Bitmaps lie in the page too. Afterwards `cursors` tell where the last column of
    /// each ended.
    pub(super) fn find(&mut self, page: &[u8], attributes: &[Attribute], ends: impl Fn(&TupleSpan, u32) -> bool) {
        self.cursors.clear();
        self.cursors.extend(self.tuples.iter().map(|tuple| tuple.data_at));
        let mut prefix = self.prefix();
        for (column, attribute) in attributes.iter().enumerate() {
            if prefix.advance(*attribute) {
                if prefix.is_padded(page, &self.tuples[self.presence.all.clone()]) {
                    self.add_same_place(prefix.at);
                    continue;
                }
                prefix.end = prefix.before;
            }
            self.leave(&mut prefix);
            let RowParts { tuples, cursors, share, row } = self.add_row(column);
            match share {
                Share::All(all) => find_column(page, *attribute, all, tuples, cursors, row),
                Share::Some(members) => find_column(page, *attribute, members, tuples, cursors, row),
            }
        }
        self.leave(&mut prefix);
        for (tuple, cursor) in self.tuples.iter_mut().zip(&self.cursors) {
            if !tuple.is_raw && !ends(tuple, *cursor) {
                *tuple = TupleSpan::RAW;
            }
        }
        if self.tuples.iter().any(|tuple| tuple.is_raw) {
            self.forget_raw();
        }
    }

    /// The next column lies at the same place in every tuple.
    pub(super) fn add_same_place(&mut self, at: usize) {
        let tuples = self.tuples[self.presence.all.clone()].iter();
        self.value_at.extend(tuples.map(|tuple| (tuple.data_at as usize + at) as u16));
        self.row_ends.push(self.value_at.len() as u32);
    }

    /// Room for the places of the next column, which is `column`, and what they are found by.
    pub(super) fn add_row(&mut self, column: usize) -> RowParts<'_> {
        let share = self.presence.share(column);
        let start = self.value_at.len();
        self.value_at.resize(start + share.count(), 0);
        self.row_ends.push(self.value_at.len() as u32);
        let (tuples, cursors, row) = (&mut self.tuples[..], &mut self.cursors[..], &mut self.value_at[start..]);
        RowParts { tuples, cursors, share, row }
    }

    /// The columns that lie at the same place in every tuple, none yet.
    pub(super) fn prefix(&self) -> Prefix {
        let tuples = self.tuples[self.presence.all.clone()].iter();
        let room = tuples.map(|tuple| tuple.end.saturating_sub(tuple.data_at)).min().unwrap_or(0);
        Prefix::new(self.presence.shared_count, room as usize)
    }

    /// Ends `prefix`: from here on each tuple has its own cursor.
    pub(super) fn leave(&mut self, prefix: &mut Prefix) {
        let all = self.presence.all.clone();
        prefix.leave(&self.tuples[all.clone()], &mut self.cursors[all]);
    }

    /// As [`Grid::prefix`], of tuples whose ends are not known yet.
    pub(super) fn open_prefix(&self) -> Prefix {
        Prefix::new(self.presence.shared_count, usize::from(u16::MAX) / 2)
    }

    /// A raw tuple has no columns.
    fn forget_raw(&mut self) {
        let (mut start, mut kept) = (0, 0);
        for (column, row_end) in self.row_ends.iter_mut().enumerate() {
            let row = start..*row_end as usize;
            start = row.end;
            let mut keep = |at: usize, member: usize| {
                self.value_at[kept] = self.value_at[at];
                kept += usize::from(!self.tuples[member].is_raw);
            };
            match self.presence.share(column) {
                Share::All(all) => row.zip(all).for_each(|(at, member)| keep(at, member)),
                Share::Some(members) => row.zip(members).for_each(|(at, member)| keep(at, member)),
            }
            *row_end = kept as u32;
        }
    }

    /// Where the values of `column` are, of each tuple that has it.
    pub(super) fn row(&self, column: usize) -> &[u16] {
        let start = column.checked_sub(1).map_or(0, |before| self.row_ends[before]);
        &self.value_at[start as usize..self.row_ends[column] as usize]
    }
}

/// A column's places, and what they are found by.
pub(super) struct RowParts<'g> {
    tuples: &'g mut [TupleSpan],
    pub(super) cursors: &'g mut [u32],
    pub(super) share: Share<'g>,
    /// One place for each tuple of the share.
    pub(super) row: &'g mut [u16],
}

/// Finds a column of the tuples of `members`.
fn find_column(
    page: &[u8],
    attribute: Attribute,
    members: impl Iterator<Item = usize>,
    tuples: &mut [TupleSpan],
    cursors: &mut [u32],
    row: &mut [u16],
) {
    for (member, place) in members.zip(row) {
        let (tuple, cursor) = (&mut tuples[member], &mut cursors[member]);
        let found = if attribute.length > 0 {
            find_fixed(page, attribute, *cursor as usize, tuple.end as usize)
        } else {
            find_variable(page, attribute, *cursor as usize, tuple.end as usize)
        };
        match found {
            Some((at, next)) => (*place, *cursor) = (at as u16, next as u32),
            None => *tuple = TupleSpan::RAW,
        }
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

    /// Whether what lies before the column at hand is padding in all of `tuples`.
    #[inline]
    pub(super) fn is_padded(&self, page: &[u8], tuples: &[TupleSpan]) -> bool {
        let is_padded = |at: usize| is_padding(page, at + self.before, at + self.at);
        self.before == self.at || tuples.iter().all(|tuple| is_padded(tuple.data_at as usize))
    }

    #[inline]
    fn leave(&mut self, tuples: &[TupleSpan], cursors: &mut [u32]) {
        if self.is_open {
            self.is_open = false;
            for (cursor, tuple) in cursors.iter_mut().zip(tuples) {
                *cursor = tuple.data_at + self.end as u32;
            }
        }
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
