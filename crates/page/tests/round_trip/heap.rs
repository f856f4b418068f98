//! Heap pages.

use pagehaul_page::{RelationKind, RelationLayout};

use crate::pages::{HEADER_BYTES, Manner, Pointer, page, room};
use crate::random::Random;
use crate::values::{Column, any_column, attributes, put_value};

/// A table: its columns, and how untidy its pages are.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) page_size: usize,
    pub(crate) columns: Vec<Column>,
    /// Line pointers without tuples, update chains, rows with fewer or more columns, odd manners.
    pub(crate) is_untidy: bool,
    /// Rows have so many of the columns: the others were added later.
    pub(crate) row_columns: usize,
    /// The next transaction.
    pub(crate) xid: u32,
}

/// A place in a table.
pub(crate) struct Place {
    pub(crate) block: u32,
    pub(crate) number: u16,
}

impl Table {
    pub(crate) fn new(page_size: usize, columns: Vec<Column>) -> Self {
        Table { page_size, row_columns: columns.len(), columns, is_untidy: false, xid: 740 }
    }

    /// A table of up to `columns_max` columns of any kind.
    pub(crate) fn any(random: &mut Random, page_size: usize, columns_max: usize) -> Self {
        let count = random.within(0..=columns_max);
        let columns = (0..count).map(|_| any_column(random)).collect();
        Table { is_untidy: random.chance(70), ..Table::new(page_size, columns) }
    }

    pub(crate) fn layout(&self) -> RelationLayout {
        RelationLayout {
            kind: RelationKind::Heap,
            page_size_bytes: self.page_size as u32,
            attributes: attributes(&self.columns),
        }
    }

    pub(crate) fn page(&mut self, random: &mut Random, block: u32) -> Vec<u8> {
        let manner = if self.is_untidy { Manner::any(random, self.page_size) } else { Manner::plain(self.page_size) };
        let share = if self.is_untidy { random.within(0..=100) } else { 100 };
        let mut left = (self.page_size - HEADER_BYTES) * share / 100;
        let mut pointers = Vec::new();
        loop {
            let place = Place { block, number: pointers.len() as u16 + 1 };
            let pointer = self.pointer(random, &place);
            let Some(rest) = left.checked_sub(room(&pointer)) else { break };
            left = rest;
            pointers.push(pointer);
            if pointers.len() >= self.page_size / 28 {
                break;
            }
        }
        page(random, manner, block, &pointers, &[])
    }

    /// A page of as many of `values` as fit, each the only column of its row.
    pub(crate) fn page_of(
        &mut self,
        random: &mut Random,
        block: u32,
        values: &mut std::iter::Peekable<impl Iterator<Item = Vec<u8>>>,
    ) -> Vec<u8> {
        let mut left = self.page_size - HEADER_BYTES;
        let mut pointers = Vec::new();
        while let Some(value) = values.peek() {
            let number = pointers.len() as u16 + 1;
            let mut tuple = self.header(random, &Place { block, number }, 1, &[]);
            put_value(value, 4, &mut tuple);
            let pointer = Pointer::Tuple(tuple);
            let Some(rest) = left.checked_sub(room(&pointer)) else { break };
            left = rest;
            pointers.push(pointer);
            values.next();
        }
        assert!(!pointers.is_empty(), "a value does not fit into a page");
        page(random, Manner::plain(self.page_size), block, &pointers, &[])
    }

    fn pointer(&mut self, random: &mut Random, place: &Place) -> Pointer {
        if !self.is_untidy || random.chance(80) {
            return Pointer::Tuple(self.tuple(random, place));
        }
        match random.below(6) {
            0 => Pointer::Unused,
            1 => Pointer::Redirect(random.within(1..=200) as u16),
            2 => Pointer::Dead,
            3 => Pointer::DeadTuple(self.tuple(random, place)),
            4 => Pointer::Odd(random.pick(&[5, 2 << 15 | 7 << 17, 1 << 15, 3 << 15 | 9])),
            _ => Pointer::Tuple(self.tuple(random, place)),
        }
    }

    /// A tuple as it lies on a page.
    fn tuple(&mut self, random: &mut Random, place: &Place) -> Vec<u8> {
        let known = self.columns.len();
        let (mut count, mut extra) = (self.row_columns, 0);
        if self.is_untidy && random.chance(20) {
            if random.chance(50) {
                count = random.within(0..=known);
            } else {
                extra = random.within(1..=3);
            }
        }
        let mut data = Vec::new();
        let mut bitmap = vec![0_u8; (count + extra).div_ceil(8)];
        let mut any_null = false;
        for (number, column) in self.columns[..count].iter_mut().enumerate() {
            if random.chance(column.null_percent) {
                any_null = true;
                continue;
            }
            bitmap[number / 8] |= 1 << (number % 8);
            column.put(random, &mut data);
        }
        for number in count..count + extra {
            bitmap[number / 8] |= 1 << (number % 8);
            data.extend_from_slice(&random.bytes(4));
        }
        self.xid += u32::from(random.chance(5));
        let bitmap = if any_null { &bitmap[..] } else { &[] };
        let mut tuple = self.header(random, place, (count + extra) as u16, bitmap);
        tuple.extend_from_slice(&data);
        tuple
    }

    fn header(&self, random: &mut Random, place: &Place, count: u16, bitmap: &[u8]) -> Vec<u8> {
        let is_updated = self.is_untidy && random.chance(20);
        let (mut block, mut number, mut xmax) = (place.block, place.number, 0_u32);
        if is_updated {
            xmax = self.xid + 5;
            number = random.within(1..=100) as u16;
            block = if random.chance(70) { block } else { random.next() as u32 };
        }
        let mut header = Vec::new();
        header.extend_from_slice(&self.xid.to_le_bytes());
        header.extend_from_slice(&xmax.to_le_bytes());
        header.extend_from_slice(&0_u32.to_le_bytes());
        header.extend_from_slice(&block.rotate_left(16).to_le_bytes());
        header.extend_from_slice(&number.to_le_bytes());
        let flags2 = if is_updated { 0x4000 } else { 0 };
        header.extend_from_slice(&(count | flags2).to_le_bytes());
        let mask: u16 = if is_updated { 0x0500 } else { 0x0900 } | u16::from(!bitmap.is_empty());
        header.extend_from_slice(&mask.to_le_bytes());
        header.push((23 + bitmap.len()).next_multiple_of(8) as u8);
        header.extend_from_slice(bitmap);
        header.resize(header.len().next_multiple_of(8), 0);
        header
    }
}
