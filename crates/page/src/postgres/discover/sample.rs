//! Some tuples of a run of pages, for a search that must not look at all of them.

use crate::layout::RelationKind;
use crate::postgres::grid::{NO_NULLS, TupleSpan};
use crate::postgres::items::{HEADER_BYTES, Item, POINTER_BYTES};
use crate::postgres::wire::{align, is_padding, u16_at, u32_at};
use crate::postgres::{heap, index};

/// How many tuples a layout must fit.
pub(super) const TUPLES_MAX: usize = 32;
/// How many neighbours are taken together: differences between them tell of columns that count.
const GROUP: usize = 4;
/// How many places of a run are looked at.
const PLACES_MAX: usize = 16;
/// Fewer tuples tell too little.
const TUPLES_MIN: usize = 6;
/// The most columns of an index that are looked for.
const KEYS_MAX: u16 = 6;

/// A tuple of a sample.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tuple {
    /// Where its columns start and end within the run.
    pub(super) at: usize,
    pub(super) length: u16,
    column_count: u16,
    nulls_at: Option<usize>,
    /// Its neighbour stands before it in the sample.
    follows: bool,
    has_variable: bool,
}

/// Tuples that are alike, and which of their columns are there.
#[derive(Debug, Default)]
pub(super) struct Sample {
    seen: Vec<Tuple>,
    pub(super) tuples: Vec<Tuple>,
    /// How many columns heap tuples have; of index tuples the most that are looked for.
    pub(super) column_count: u16,
    /// Of each column a bit for each tuple that has it.
    pub(super) present: Vec<u32>,
    /// A bit for each tuple whose neighbour stands before it.
    pub(super) follows: u32,
    pub(super) kind: RelationKind,
    /// Bytes of columns.
    pub(super) total_bytes: usize,
    plain: PlainCost,
    /// Whether any of them may have a value of variable length; of index tuples they say so.
    pub(super) any_variable: bool,
}

impl Sample {
    /// Takes tuples of `content`; false if there are too few that are alike.
    pub(super) fn take(&mut self, content: &[u8], kind: RelationKind, page_size: usize) -> bool {
        self.kind = kind;
        self.see(content, page_size);
        self.pick();
        if self.tuples.len() < TUPLES_MIN || self.column_count == 0 {
            return false;
        }
        self.present.clear();
        for column in 0..self.column_count {
            let has = |tuple: &Tuple| {
                tuple.nulls_at.is_none_or(|at| content[at + usize::from(column / 8)] >> (column % 8) & 1 != 0)
            };
            let bits = self.tuples.iter().enumerate().map(|(number, tuple)| u32::from(has(tuple)) << number);
            self.present.push(bits.fold(0, |all, bit| all | bit));
        }
        true
    }

    /// Finds what the tuples cost as bytes alone.
    pub(super) fn measure(&mut self, content: &[u8]) {
        self.plain.measure(content, &self.tuples);
    }

    /// What the first `cursor` bytes of tuple `number` cost as bytes alone.
    pub(super) fn plain_bits(&self, number: usize, cursor: u16) -> f32 {
        self.plain.bits(number, cursor)
    }

    /// Fills `seen` from places all over the run.
    fn see(&mut self, content: &[u8], page_size: usize) {
        self.seen.clear();
        let pages = content.len() / page_size;
        for place in 0..PLACES_MAX {
            let number = place * pages / PLACES_MAX;
            let Some(page) = content.get(number * page_size..(number + 1) * page_size) else { continue };
            let Some(pointer_count) = pointer_count(page) else { continue };
            // Another part of each page, so that a run of one page is seen whole.
            let start = place * 5 % PLACES_MAX * pointer_count / PLACES_MAX;
            let mut follows = false;
            for index in start..(start + GROUP).min(pointer_count) {
                let tuple = self.tuple(page, index);
                if let Some(tuple) = tuple {
                    let shift = number * page_size;
                    let nulls_at = tuple.nulls_at.map(|at| at + shift);
                    self.seen.push(Tuple { at: tuple.at + shift, nulls_at, follows, ..tuple });
                }
                follows = tuple.is_some();
            }
        }
    }

    /// The tuple of a line pointer, if its header is in order.
    fn tuple(&self, page: &[u8], pointer: usize) -> Option<Tuple> {
        let bits = u32_at(page, HEADER_BYTES + POINTER_BYTES * pointer);
        let (at, state, length) = (bits & 0x7FFF, bits >> 15 & 3, bits >> 17);
        if state != 1 || length == 0 || !at.is_multiple_of(8) || (at + length) as usize > page.len() {
            return None;
        }
        let item = Item { at, length, number: pointer as u32 + 1 };
        let span = match self.kind {
            RelationKind::Heap => heap::span_of(page, item),
            _ => index::span_of(page, item, usize::from(KEYS_MAX)),
        };
        let TupleSpan { data_at, end, column_count, nulls_at, is_raw } = span;
        (!is_raw).then(|| Tuple {
            at: data_at as usize,
            length: (end - data_at) as u16,
            column_count,
            nulls_at: (nulls_at != NO_NULLS).then_some(nulls_at as usize),
            follows: false,
            has_variable: self.kind == RelationKind::Heap || index::has_variable(page, item),
        })
    }

    /// Picks those with the most frequent number of columns.
    fn pick(&mut self) {
        let count_of = |count: u16| self.seen.iter().filter(|tuple| tuple.column_count == count).count();
        let counts = self.seen.iter().map(|tuple| tuple.column_count);
        self.column_count = counts.max_by_key(|count| (count_of(*count), *count)).unwrap_or(0);
        self.tuples.clear();
        self.follows = 0;
        self.total_bytes = 0;
        self.any_variable = false;
        let mut is_neighbour = false;
        for tuple in &self.seen {
            if tuple.column_count != self.column_count || self.tuples.len() == TUPLES_MAX {
                is_neighbour = false;
                continue;
            }
            self.follows |= u32::from(tuple.follows && is_neighbour) << self.tuples.len();
            self.total_bytes += usize::from(tuple.length);
            self.any_variable |= tuple.has_variable;
            self.tuples.push(*tuple);
            is_neighbour = true;
        }
    }

    /// Whether tuples are whole when their columns have ended at `cursor`.
    pub(super) fn is_end(&self, content: &[u8], tuple: &Tuple, cursor: u16) -> bool {
        if self.kind == RelationKind::Heap {
            return cursor == tuple.length;
        }
        let (from, to) = (tuple.at + usize::from(cursor), tuple.at + usize::from(tuple.length));
        align(from, 8) == to && is_padding(content, from, to)
    }
}

/// What real columns cost of what their bytes cost alone; with 0.4 and with 0.8 more layouts are missed.
const PLAIN_WEIGHT: f32 = 0.6;
/// What rare bytes cost less at most.
const NOISE_LESS_BITS: f32 = 1.2;
/// How much of each tuple [`PlainCost`] knows byte by byte.
const PLAIN_BYTES_MAX: usize = 1024;

/// What tuples cost as bytes that have nothing to do with one another: what every hypothesis must beat.
#[derive(Debug, Default)]
struct PlainCost {
    /// Of each tuple the bits of its first bytes, of none of them first.
    sums: Vec<f32>,
    starts: Vec<usize>,
    mean: f32,
}

impl PlainCost {
    fn measure(&mut self, content: &[u8], tuples: &[Tuple]) {
        let known = |tuple: &Tuple| &content[tuple.at..tuple.at + usize::from(tuple.length).min(PLAIN_BYTES_MAX)];
        let mut counts = [0u32; 256];
        tuples.iter().flat_map(known).for_each(|byte| counts[usize::from(*byte)] += 1);
        let total = counts.iter().sum::<u32>() as f32;
        let bits = counts.map(|count| (total / count.max(1) as f32).log2());
        // Real columns cost less, noise does not. Measured on bench/page's tables.
        let bits = bits.map(|bits| (PLAIN_WEIGHT * bits).max(bits - NOISE_LESS_BITS));
        self.sums.clear();
        self.starts.clear();
        let mut all = 0.0;
        for tuple in tuples {
            self.starts.push(self.sums.len());
            let mut sum = 0.0;
            self.sums.push(sum);
            for byte in known(tuple) {
                sum += bits[usize::from(*byte)];
                self.sums.push(sum);
            }
            all += sum;
        }
        self.mean = all / total.max(1.0);
    }

    fn bits(&self, number: usize, cursor: u16) -> f32 {
        let known = usize::from(cursor).min(PLAIN_BYTES_MAX);
        self.sums[self.starts[number] + known] + self.mean * (usize::from(cursor) - known) as f32
    }
}

/// How many line pointers a page has whose header is in order.
fn pointer_count(page: &[u8]) -> Option<usize> {
    let lower = usize::from(u16_at(page, 12));
    let count = lower.checked_sub(HEADER_BYTES)? / POINTER_BYTES;
    (lower <= page.len() && count > 0).then_some(count)
}
