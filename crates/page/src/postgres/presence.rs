//! Which tuples of a page have which columns.
//!
//! Bitmaps tell it tuple by tuple, and columns are gone through one after the other. So the bitmaps are turned: then a column
//! costs what values it has, and no question is asked of a tuple that lacks it.

use std::ops::Range;

use super::grid::TupleSpan;

/// Kept and used again for every page.
#[derive(Debug, Default)]
pub(super) struct Presence {
    /// The tuples that columns are looked for in: all but raw ones at the beginning, as the high key of a B-tree page is.
    pub(super) all: Range<usize>,
    /// So many first columns each of these has: all of them, or those before the first one that is null somewhere.
    pub(super) shared_count: usize,
    /// Of each column from [`Presence::first`] on a bit for every tuple, in so many words.
    bits: Vec<u64>,
    stride: usize,
}

impl Presence {
    /// Starts a page of these tuples; `bitmaps` is what they point into.
    pub(super) fn begin(&mut self, tuples: &[TupleSpan], column_count: usize, bitmaps: &[u8]) {
        self.all = tuples.iter().take_while(|tuple| tuple.is_raw).count()..tuples.len();
        let leading = tuples[self.all.clone()].iter().map(|tuple| tuple.leading_count(bitmaps));
        self.shared_count = leading.fold(column_count, usize::min);
        self.stride = tuples.len().div_ceil(64);
        self.bits.clear();
        if self.shared_count == column_count {
            return;
        }
        let (first, bytes) = (self.first() / 8, column_count.div_ceil(8));
        self.bits.resize((bytes - first) * 8 * self.stride, 0);
        for (number, eight) in tuples.chunks(8).enumerate() {
            let (word, shift) = (number / 8, number % 8 * 8);
            for (sixty_four, columns) in self.bits.chunks_mut(64 * self.stride).enumerate() {
                let mut rows = [0; 8];
                for (row, tuple) in rows.iter_mut().zip(eight) {
                    *row = tuple.columns_from(first + 8 * sixty_four, bitmaps);
                }
                for (byte, columns) in columns.chunks_exact_mut(8 * self.stride).enumerate() {
                    let square = rows.iter().rev().fold(0, |square, row| square << 8 | row >> (8 * byte) & 0xFF);
                    let turned = turned(square).to_le_bytes();
                    for (bits, column) in turned.into_iter().zip(columns.chunks_exact_mut(self.stride)) {
                        column[word] |= u64::from(bits) << shift;
                    }
                }
            }
        }
    }

    /// The column of the first bits.
    fn first(&self) -> usize {
        self.shared_count & !7
    }

    /// The tuples that have `column`.
    #[inline]
    pub(super) fn share(&self, column: usize) -> Share<'_> {
        let all = Share::All(self.all.clone());
        if column < self.shared_count {
            return all;
        }
        let words = &self.bits[(column - self.first()) * self.stride..][..self.stride];
        let count = words.iter().map(|word| word.count_ones() as usize).sum();
        if count == self.all.len() {
            all
        } else {
            Share::Some(Members { rest: words, word: 0, next_first: 0, left: count })
        }
    }
}

/// The tuples that have a column, by their numbers.
pub(super) enum Share<'p> {
    All(Range<usize>),
    /// Not all of them, and maybe none.
    Some(Members<'p>),
}

impl Share<'_> {
    #[inline]
    pub(super) fn count(&self) -> usize {
        match self {
            Share::All(all) => all.len(),
            Share::Some(members) => members.left,
        }
    }
}

/// Numbers of tuples, in order.
#[derive(Clone)]
pub(super) struct Members<'p> {
    rest: &'p [u64],
    word: u64,
    /// The tuple of the lowest bit of the word that comes next.
    next_first: usize,
    left: usize,
}

impl Iterator for Members<'_> {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        while self.word == 0 {
            let (word, rest) = self.rest.split_first()?;
            (self.word, self.rest) = (*word, rest);
            self.next_first += 64;
        }
        let bit = self.word.trailing_zeros() as usize;
        self.word &= self.word - 1;
        self.left -= 1;
        Some(self.next_first - 64 + bit)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Members<'_> {}

/// Eight rows of eight bits, the first one lowest, as eight columns (Warren, Hacker's Delight, 7-3).
#[inline]
fn turned(mut rows: u64) -> u64 {
    for (distance, mask) in [(7, 0x00AA_00AA_00AA_00AA), (14, 0x0000_CCCC_0000_CCCC), (28, 0x0000_0000_F0F0_F0F0)] {
        let unlike = (rows ^ rows >> distance) & mask;
        rows ^= unlike ^ unlike << distance;
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::super::grid::NO_NULLS;
    use super::*;

    #[test]
    fn every_column_has_the_tuples_that_say_so() {
        let mut state = 1_u32;
        let mut random = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % below
        };
        let mut presence = Presence::default();
        for round in 0..300 {
            let (column_count, tuple_count) =
                (random(150) as usize, random(if round < 200 { 20 } else { 300 }) as usize);
            let bitmaps: Vec<u8> = (0..400).map(|at| if at < 100 { 255 } else { random(256) as u8 }).collect();
            let mut tuples: Vec<TupleSpan> = std::iter::repeat_with(|| TupleSpan {
                column_count: if round % 2 == 0 { column_count as u16 } else { random(160) as u16 },
                nulls_at: if random(3) == 0 { NO_NULLS } else { random(370) },
                is_raw: false,
                ..TupleSpan::RAW
            })
            .take(tuple_count)
            .collect();
            if round % 3 == 0 && tuple_count > 0 {
                tuples[0] = TupleSpan::RAW;
            }
            presence.begin(&tuples, column_count, &bitmaps);
            for column in 0..column_count {
                let has: Vec<usize> = (0..tuple_count).filter(|tuple| tuples[*tuple].has(column, &bitmaps)).collect();
                let share = presence.share(column);
                assert_eq!(share.count(), has.len());
                match share {
                    Share::All(all) => assert!(all.eq(has)),
                    Share::Some(members) => {
                        assert_eq!(members.len(), members.clone().count());
                        assert!(members.eq(has));
                    }
                }
            }
        }
    }
}
