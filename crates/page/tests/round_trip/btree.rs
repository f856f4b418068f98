//! B-tree pages.

use pagehaul_page::{RelationKind, RelationLayout};

use crate::pages::{HEADER_BYTES, Manner, Placement, Pointer, page, room};
use crate::random::Random;
use crate::values::{Column, any_column, attributes};

const IS_SPECIAL: u16 = 0x2000;
const HAS_VARIABLE: u16 = 0x4000;
const HAS_NULLS: u16 = 0x8000;
pub(crate) const OPAQUE_BYTES: usize = 16;

const LEAF: u16 = 1;
const ROOT: u16 = 2;
const DELETED: u16 = 4;
const META: u16 = 8;

/// An index; of INCLUDE columns it has just more columns, which its inner tuples lack.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    pub(crate) page_size: usize,
    pub(crate) columns: Vec<Column>,
    pub(crate) key_count: usize,
    pub(crate) has_lists: bool,
    pub(crate) is_untidy: bool,
    /// The next row of the table.
    pub(crate) row: u32,
}

impl Index {
    pub(crate) fn new(page_size: usize, columns: Vec<Column>) -> Self {
        let key_count = columns.len();
        Index { page_size, columns, key_count, has_lists: false, is_untidy: false, row: 0 }
    }

    pub(crate) fn any(random: &mut Random, page_size: usize) -> Self {
        let count = random.within(1..=6);
        let mut columns: Vec<Column> = (0..count).map(|_| any_column(random)).collect();
        // A key of an index is shorter than a third of a page.
        columns.iter_mut().for_each(|column| column.attribute.length = column.attribute.length.min(64));
        Index {
            key_count: random.within(1..=count),
            has_lists: random.chance(50),
            is_untidy: random.chance(70),
            ..Index::new(page_size, columns)
        }
    }

    pub(crate) fn layout(&self) -> RelationLayout {
        RelationLayout {
            kind: RelationKind::Index,
            page_size_bytes: self.page_size as u32,
            attributes: attributes(&self.columns),
        }
    }

    /// A page of any kind.
    pub(crate) fn any_page(&mut self, random: &mut Random, block: u32) -> Vec<u8> {
        match random.below(10) {
            0 => self.inner(random, block),
            1 => self.meta(random, block),
            2 => self.deleted(random, block),
            _ => self.leaf(random, block),
        }
    }

    pub(crate) fn leaf(&mut self, random: &mut Random, block: u32) -> Vec<u8> {
        let is_rightmost = self.is_untidy && random.chance(20);
        let mut pointers = Vec::new();
        let mut left = self.page_size - HEADER_BYTES - OPAQUE_BYTES;
        if self.is_untidy {
            left = left * random.within(0..=100) / 100;
        }
        loop {
            let tuple = if pointers.is_empty() && !is_rightmost {
                self.pivot(random, 0)
            } else if self.has_lists && random.chance(30) {
                self.list(random)
            } else {
                self.plain(random)
            };
            let is_dead = self.is_untidy && random.chance(3);
            let pointer = if is_dead { Pointer::DeadTuple(tuple) } else { Pointer::Tuple(tuple) };
            let Some(rest) = left.checked_sub(room(&pointer)) else { break };
            left = rest;
            pointers.push(pointer);
        }
        let next = if is_rightmost { 0 } else { block + 1 };
        self.finish(random, block, &pointers, &opaque(block.wrapping_sub(1), next, 0, LEAF))
    }

    fn inner(&mut self, random: &mut Random, block: u32) -> Vec<u8> {
        let mut pointers = Vec::new();
        let mut left = self.page_size - HEADER_BYTES - OPAQUE_BYTES;
        for child in 1..200 {
            let tuple = if child == 2 { minus_infinity(child) } else { self.pivot(random, child) };
            let pointer = Pointer::Tuple(tuple);
            let Some(rest) = left.checked_sub(room(&pointer)) else { break };
            left = rest;
            pointers.push(pointer);
        }
        self.finish(random, block, &pointers, &opaque(0, 0, 1, ROOT))
    }

    fn meta(&self, random: &mut Random, block: u32) -> Vec<u8> {
        let mut page = page(random, Manner::plain(self.page_size), block, &[], &opaque(0, 0, 0, META));
        for (field, value) in [0x0005_3162_u32, 4, 3, 1, 3, 1].into_iter().enumerate() {
            page[HEADER_BYTES + 4 * field..][..4].copy_from_slice(&value.to_le_bytes());
        }
        page[12..14].copy_from_slice(&(HEADER_BYTES as u16 + 40).to_le_bytes());
        page
    }

    fn deleted(&self, random: &mut Random, block: u32) -> Vec<u8> {
        let pointers = [Pointer::Tuple(minus_infinity(9))];
        self.finish(random, block, &pointers, &opaque(block + 3, block + 4, 0, LEAF | DELETED))
    }

    fn finish(&self, random: &mut Random, block: u32, pointers: &[Pointer], opaque: &[u8]) -> Vec<u8> {
        let mut manner = if self.is_untidy {
            Manner::any(random, self.page_size)
        } else {
            Manner { placement: Placement::FirstIsLast, ..Manner::plain(self.page_size) }
        };
        // Padding belongs to index tuples and is zero.
        manner.is_padding_used = false;
        page(random, manner, block, pointers, opaque)
    }

    /// Bitmap (0 if nothing is missing) and columns.
    fn keys(&mut self, random: &mut Random, count: usize) -> (u32, Vec<u8>) {
        let (mut bitmap, mut data) = (0, Vec::new());
        let mut any_null = false;
        for (number, column) in self.columns[..count].iter_mut().enumerate() {
            if random.chance(column.null_percent) {
                any_null = true;
                continue;
            }
            bitmap |= 1 << number;
            let before = data.len();
            column.put(random, &mut data);
            if data.len() > 300 {
                // Too long for an index: the shortest text instead.
                data.truncate(before);
                data.extend_from_slice(&[5, b'k'][..]);
                if column.attribute.length > 0 {
                    any_null = true;
                    bitmap &= !(1 << number);
                    data.truncate(before);
                }
            }
        }
        (if any_null { bitmap } else { u32::MAX }, data)
    }

    fn next_row(&mut self, random: &mut Random) -> [u8; 6] {
        self.row += if self.is_untidy { random.below(50) as u32 } else { 1 };
        row(self.row / 100, (self.row % 100 + 1) as u16)
    }

    fn plain(&mut self, random: &mut Random) -> Vec<u8> {
        let (bitmap, data) = self.keys(random, self.columns.len());
        let first = self.next_row(random);
        tuple(first, 0, bitmap, &data, &[])
    }

    fn list(&mut self, random: &mut Random) -> Vec<u8> {
        let (bitmap, data) = self.keys(random, self.columns.len());
        let count = random.within(2..=30);
        let rows: Vec<u8> = (0..count).flat_map(|_| self.next_row(random)).collect();
        let header = if bitmap == u32::MAX { 8 } else { 16 };
        let at = (header + data.len()).next_multiple_of(8) as u32;
        tuple(row(at, count as u16 | 0x2000), IS_SPECIAL, bitmap, &data, &rows)
    }

    /// A high key or the key of a child: fewer columns, and how many.
    fn pivot(&mut self, random: &mut Random, child: u32) -> Vec<u8> {
        let count = random.within(1..=self.key_count);
        let (bitmap, data) = self.keys(random, count);
        tuple(row(child, count as u16), IS_SPECIAL, bitmap, &data, &[])
    }
}

fn minus_infinity(child: u32) -> Vec<u8> {
    tuple(row(child, 0), IS_SPECIAL, u32::MAX, &[], &[])
}

pub(crate) fn row(block: u32, number: u16) -> [u8; 6] {
    let ([a, b, c, d], [e, f]) = (block.rotate_left(16).to_le_bytes(), number.to_le_bytes());
    [a, b, c, d, e, f]
}

/// An index tuple: `bitmap` of all ones says that nothing is missing.
pub(crate) fn tuple(first: [u8; 6], flags: u16, bitmap: u32, data: &[u8], rows: &[u8]) -> Vec<u8> {
    let mut tuple = first.to_vec();
    tuple.extend_from_slice(&[0; 2]);
    let has_nulls = bitmap != u32::MAX;
    if has_nulls {
        tuple.extend_from_slice(&bitmap.to_le_bytes());
        tuple.extend_from_slice(&[0; 4]);
    }
    tuple.extend_from_slice(data);
    tuple.resize(tuple.len().next_multiple_of(8), 0);
    tuple.extend_from_slice(rows);
    tuple.resize(tuple.len().next_multiple_of(8), 0);
    let nulls = if has_nulls { HAS_NULLS } else { 0 };
    let info = tuple.len() as u16 | flags | nulls | if data.len() > 20 { HAS_VARIABLE } else { 0 };
    tuple[6..8].copy_from_slice(&info.to_le_bytes());
    tuple
}

fn opaque(previous: u32, next: u32, level: u32, flags: u16) -> [u8; OPAQUE_BYTES] {
    let mut opaque = [0; OPAQUE_BYTES];
    opaque[..4].copy_from_slice(&previous.to_le_bytes());
    opaque[4..8].copy_from_slice(&next.to_le_bytes());
    opaque[8..12].copy_from_slice(&level.to_le_bytes());
    opaque[12..14].copy_from_slice(&flags.to_le_bytes());
    opaque
}
