//! Pages of GiST indexes. Layout: src/include/access/gist.h.

use pagehaul_page::ValueType::{Floats, Varlena};
use pagehaul_page::{RelationKind, RelationLayout};

use crate::btree::{OPAQUE_BYTES, row, tuple};
use crate::pages::{HEADER_BYTES, Manner, Pointer, page, room};
use crate::random::Random;
use crate::values::{Column, Habit, attribute, attributes};

/// `gist_page_id`.
const PAGE_ID: u16 = 0xFF81;
const LEAF: u16 = 1;
const DELETED: u16 = 2;
const TUPLES_DELETED: u16 = 4;
const FOLLOW_RIGHT: u16 = 8;
const HAS_GARBAGE: u16 = 16;
/// The second half of the address of a tuple that leads to a child.
const IS_CHILD: u16 = 0xFFFF;
const NO_BLOCK: u32 = u32::MAX;

/// An index of shapes, mostly: its keys are boxes around them.
#[derive(Clone, Debug)]
pub(crate) struct GistIndex {
    pub(crate) page_size: usize,
    pub(crate) columns: Vec<Column>,
    pub(crate) is_untidy: bool,
    /// The next row of the table.
    row: u32,
}

impl GistIndex {
    /// Of one column of boxes.
    pub(crate) fn of_boxes(page_size: usize) -> Self {
        let column = Column { attribute: attribute(Floats, 32, 8), habit: Habit::Decimals(1), null_percent: 0 };
        GistIndex { page_size, columns: vec![column], is_untidy: false, row: 0 }
    }

    pub(crate) fn any(random: &mut Random, page_size: usize) -> Self {
        let mut index = GistIndex { is_untidy: random.chance(70), ..GistIndex::of_boxes(page_size) };
        for _ in 0..random.below(3) {
            let attribute =
                random.pick(&[attribute(Floats, 16, 8), attribute(Floats, 24, 8), attribute(Varlena, -1, 4)]);
            let habit = random.pick(&[Habit::Decimals(1), Habit::Few(7), Habit::Constant(99)]);
            index.columns.push(Column { attribute, habit, null_percent: random.pick(&[0, 10]) });
        }
        index
    }

    pub(crate) fn layout(&self) -> RelationLayout {
        RelationLayout {
            kind: RelationKind::Index,
            page_size_bytes: self.page_size as u32,
            attributes: attributes(&self.columns),
        }
    }

    pub(crate) fn any_page(&mut self, random: &mut Random, block: u32) -> Vec<u8> {
        match random.below(10) {
            0 => self.deleted(random, block),
            1 => self.tuples(random, block, 0),
            2 => self.tuples(random, block, LEAF | TUPLES_DELETED),
            3 => {
                let also = random.pick(&[FOLLOW_RIGHT, HAS_GARBAGE]);
                self.tuples(random, block, LEAF | also)
            }
            _ => self.leaf(random, block),
        }
    }

    pub(crate) fn leaf(&mut self, random: &mut Random, block: u32) -> Vec<u8> {
        self.tuples(random, block, LEAF)
    }

    fn tuples(&mut self, random: &mut Random, block: u32, flags: u16) -> Vec<u8> {
        let mut room_left = self.page_size - HEADER_BYTES - OPAQUE_BYTES;
        if self.is_untidy {
            room_left = room_left * random.within(0..=100) / 100;
        }
        let mut pointers = Vec::new();
        loop {
            let tuple = self.tuple(random, flags & LEAF != 0);
            let is_dead = self.is_untidy && random.chance(3);
            let pointer = if is_dead { Pointer::DeadTuple(tuple) } else { Pointer::Tuple(tuple) };
            let Some(rest) = room_left.checked_sub(room(&pointer)) else { break };
            room_left = rest;
            pointers.push(pointer);
        }
        let next = if random.chance(30) { NO_BLOCK } else { block.wrapping_add(1) };
        self.finish(random, block, &pointers, next, flags)
    }

    fn tuple(&mut self, random: &mut Random, is_leaf: bool) -> Vec<u8> {
        self.row += if self.is_untidy { random.below(50) as u32 } else { 1 };
        let first = if is_leaf { row(self.row / 100, (self.row % 100 + 1) as u16) } else { row(self.row, IS_CHILD) };
        let (mut bitmap, mut data) = (0, Vec::new());
        let mut any_null = false;
        for (number, column) in self.columns.iter_mut().enumerate() {
            let before = data.len();
            if !random.chance(column.null_percent) {
                column.put(random, &mut data);
            }
            // Too long for an index.
            if data.len() > 400 {
                data.truncate(before);
            }
            if data.len() > before {
                bitmap |= 1 << number;
            } else {
                any_null = true;
            }
        }
        tuple(first, 0, if any_null { bitmap } else { u32::MAX }, &data, &[])
    }

    /// The transaction that deleted it stands where line pointers would.
    fn deleted(&self, random: &mut Random, block: u32) -> Vec<u8> {
        let mut page = self.finish(random, block, &[], block.wrapping_add(3), LEAF | DELETED);
        page[HEADER_BYTES..HEADER_BYTES + 8].copy_from_slice(&(random.next() >> 40).to_le_bytes());
        page[12..14].copy_from_slice(&(HEADER_BYTES as u16 + 8).to_le_bytes());
        page
    }

    fn finish(&self, random: &mut Random, block: u32, pointers: &[Pointer], next: u32, flags: u16) -> Vec<u8> {
        let mut manner =
            if self.is_untidy { Manner::any(random, self.page_size) } else { Manner::plain(self.page_size) };
        manner.is_padding_used = false;
        let lsn = 0x4000_0000 + random.below(1 << 20) as u32;
        page(random, manner, block, pointers, &opaque(lsn, next, flags))
    }
}

/// The number of the node's last split, which is an LSN, comes first.
fn opaque(lsn: u32, next: u32, flags: u16) -> [u8; OPAQUE_BYTES] {
    let mut opaque = [0; OPAQUE_BYTES];
    for (at, field) in [(0, 3), (4, lsn), (8, next), (12, u32::from(flags) | u32::from(PAGE_ID) << 16)] {
        opaque[at..at + 4].copy_from_slice(&field.to_le_bytes());
    }
    opaque
}
