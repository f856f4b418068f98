//! Leaves by column: sorted and encoded.

use crate::entropy::put_varint;
use crate::postgres::append;
use crate::stream::held_bytes;
use crate::values::indices::ENTRIES_MAX;
use crate::values::{Text, ValueCoders};

use super::MIXED;

/// With fewer leaves of a class a column has no stream of its own.
const OWN_MIN: u32 = 64;

/// What leaves are; the number is a bit of a column's flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// 0 for a shape that was not there before, or 1 + the number of the shape.
    Shape,
    /// How many elements an array has whose shape does not tell.
    Count,
    Bool,
    String,
    Numeric,
}

impl Class {
    pub(super) const COUNT: usize = 5;
    pub(super) const ALL: [Class; Class::COUNT] =
        [Class::Shape, Class::Count, Class::Bool, Class::String, Class::Numeric];

    pub(super) fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// One leaf; of strings and numbers `value` is where they start in the column's text.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Leaf {
    pub(super) value: u32,
    pub(super) column: u16,
    pub(super) length: u16,
}

/// How texts of a column are stored.
pub(super) mod mode {
    /// Each ends with a zero byte.
    pub(in crate::values::documents) const ENDED: u8 = 0;
    /// All have one length.
    pub(in crate::values::documents) const EVEN: u8 = 1;
    /// Heads and texts.
    pub(in crate::values::documents) const LENGTHS: u8 = 2;
    pub(in crate::values::documents) const DICTIONARY: u8 = 3;
    /// Numbers and decimal places.
    pub(in crate::values::documents) const NUMBERS: u8 = 4;
}

/// Scratch for sorting and encoding.
#[derive(Debug, Default)]
pub(super) struct LeafCoder {
    sorted: Vec<Leaf>,
    /// Of each column and class how many leaves there are; while a class is sorted where its next leaf goes.
    counts: [Vec<u32>; Class::COUNT],
    flags: Vec<u8>,
    pub(super) scratch: Vec<u8>,
    pub(super) numbers: Vec<u32>,
}

impl LeafCoder {
    pub(super) fn held_bytes(&self) -> usize {
        let counts = self.counts.iter().map(held_bytes).sum::<usize>();
        let scratch = held_bytes(&self.flags) + held_bytes(&self.scratch) + held_bytes(&self.numbers);
        held_bytes(&self.sorted) + counts + scratch
    }

    /// Appends all leaves of `columns` columns.
    pub(super) fn encode(
        &mut self,
        leaves: &[Vec<Leaf>; Class::COUNT],
        columns: usize,
        source: &[u8],
        coders: &mut ValueCoders,
        text: &mut Text,
        out: &mut Vec<u8>,
    ) {
        self.count(leaves, columns);
        coders.bytes.encode(&self.flags, out);
        for class in Class::ALL {
            self.sort(class, &leaves[class as usize]);
            let mut start = 0;
            for column in 0..columns {
                if self.flags[column] & class.bit() == 0 {
                    continue;
                }
                // Sorting has moved each count to the end of its column.
                let end = self.counts[class as usize][column] as usize;
                self.encode_column(class, start..end, source, coders, text, out);
                start = end;
            }
        }
    }

    /// Counts the leaves of each column, and says which columns have streams of their own.
    fn count(&mut self, leaves: &[Vec<Leaf>; Class::COUNT], columns: usize) {
        self.flags.clear();
        self.flags.resize(columns, 0);
        for class in Class::ALL {
            let counts = &mut self.counts[class as usize];
            counts.clear();
            counts.resize(columns, 0);
            for leaf in &leaves[class as usize] {
                counts[usize::from(leaf.column)] += 1;
            }
            for (column, &count) in counts.iter().enumerate() {
                let is_own = column == MIXED || count >= OWN_MIN;
                let target = if is_own { column } else { MIXED };
                if count > 0 {
                    self.flags[target] |= class.bit();
                }
            }
        }
    }

    /// Puts the leaves of a class in the order of their columns.
    fn sort(&mut self, class: Class, leaves: &[Leaf]) {
        let (counts, flags) = (&mut self.counts[class as usize], &self.flags);
        let target = |column: u16| {
            let column = usize::from(column);
            if flags[column] & class.bit() != 0 { column } else { MIXED }
        };
        let mixed = counts.iter().zip(flags).filter(|(_, flags)| **flags & class.bit() == 0).map(|(count, _)| *count);
        let mixed: u32 = mixed.sum();
        let mut start = 0;
        for (column, count) in counts.iter_mut().enumerate() {
            let own = if flags[column] & class.bit() != 0 { *count } else { 0 };
            let all = if column == MIXED && own + mixed > 0 { own + mixed } else { own };
            *count = start;
            start += all;
        }
        self.sorted.clear();
        self.sorted.resize(leaves.len(), Leaf::default());
        for leaf in leaves {
            let place = &mut counts[target(leaf.column)];
            self.sorted[*place as usize] = *leaf;
            *place += 1;
        }
    }

    fn encode_column(
        &mut self,
        class: Class,
        range: std::ops::Range<usize>,
        source: &[u8],
        coders: &mut ValueCoders,
        text: &mut Text,
        out: &mut Vec<u8>,
    ) {
        let leaves = &self.sorted[range];
        self.scratch.clear();
        self.numbers.clear();
        match class {
            Class::Shape | Class::Count => {
                self.numbers.extend(leaves.iter().map(|leaf| leaf.value));
                coders.numbers.encode_u32(&self.numbers, None, out);
            }
            Class::Bool => {
                self.scratch.extend(leaves.iter().map(|leaf| leaf.value as u8));
                coders.bytes.encode(&self.scratch, out);
            }
            Class::String | Class::Numeric => {
                for leaf in leaves {
                    let start = leaf.value as usize;
                    self.numbers.push(u32::from(leaf.length) << 2);
                    append(&mut self.scratch, source, start, start + usize::from(leaf.length));
                }
                self.encode_texts(class == Class::Numeric, coders, text, out);
            }
        }
    }

    /// Appends the texts at hand, each with a head as values of variable length have.
    fn encode_texts(&mut self, are_numeric: bool, coders: &mut ValueCoders, text: &mut Text, out: &mut Vec<u8>) {
        let (heads, texts) = (&self.numbers, &self.scratch);
        let first = heads.first().copied().unwrap_or_default();
        if are_numeric && coders.split.take(heads, texts) {
            out.push(mode::NUMBERS);
            coders.split.encode(&mut coders.bytes, &mut coders.numbers, text, out);
        } else if coders.dictionary.take(heads, texts, ENTRIES_MAX) {
            out.push(mode::DICTIONARY);
            coders.dictionary.encode(&mut coders.bytes, &mut coders.numbers, text, out);
        } else if first > 0 && heads.iter().all(|head| *head == first) {
            out.push(mode::EVEN);
            put_varint(u64::from(first >> 2), out);
            text.store(texts, out);
        } else if are_numeric || texts.contains(&0) {
            out.push(mode::LENGTHS);
            coders.numbers.encode_u32(heads, None, out);
            text.store(texts, out);
        } else {
            out.push(mode::ENDED);
            text.store_ended(heads, texts, out);
        }
    }
}
