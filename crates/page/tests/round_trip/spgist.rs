//! Pages of SP-GiST indexes. Layout: src/include/access/spgist_private.h.

use pagehaul_page::ValueType::{Floats, Integer, Varlena};
use pagehaul_page::{RelationKind, RelationLayout};

use crate::btree::row;
use crate::pages::{HEADER_BYTES, Manner, Pointer, page, room};
use crate::random::Random;
use crate::values::{Column, Habit, attribute, attributes};

const OPAQUE_BYTES: usize = 8;
const PAGE_ID: u16 = 0xFF82;
const LEAF: u16 = 4;
const NULLS: u16 = 8;
/// States of tuples.
const REDIRECT: u32 = 1;
const DEAD: u32 = 2;
const PLACEHOLDER: u32 = 3;
const NO_ROW: [u8; 6] = [0xFF, 0xFF, 0xFF, 0xFF, 0, 0];

/// An index of points or texts, sometimes with columns that are only included.
#[derive(Clone, Debug)]
pub(crate) struct SpGistIndex {
    pub(crate) page_size: usize,
    pub(crate) columns: Vec<Column>,
    pub(crate) is_untidy: bool,
    /// The next row of the table.
    pub(crate) row: u32,
}

impl SpGistIndex {
    pub(crate) fn of_points(page_size: usize) -> Self {
        let column = Column { attribute: attribute(Floats, 16, 8), habit: Habit::Decimals(1), null_percent: 0 };
        SpGistIndex { page_size, columns: vec![column], is_untidy: false, row: 0 }
    }

    pub(crate) fn any(random: &mut Random, page_size: usize) -> Self {
        let mut index = SpGistIndex { is_untidy: random.chance(70), ..SpGistIndex::of_points(page_size) };
        if random.chance(60) {
            let habit = random.pick(&[Habit::Any, Habit::Few(5), Habit::Serial(7)]);
            index.columns[0] = Column { attribute: attribute(Varlena, -1, 4), habit, null_percent: 0 };
        }
        for _ in 0..random.pick(&[0, 0, 1, 3]) {
            let attribute = random.pick(&[attribute(Integer, 4, 4), attribute(Varlena, -1, 4)]);
            index.columns.push(Column { attribute, habit: Habit::Serial(3), null_percent: 0 });
        }
        index
    }

    pub(crate) fn layout(&self) -> RelationLayout {
        RelationLayout {
            kind: RelationKind::SpGist,
            page_size_bytes: self.page_size as u32,
            attributes: attributes(&self.columns),
        }
    }

    pub(crate) fn any_page(&mut self, random: &mut Random, block: u32) -> Vec<u8> {
        match random.below(8) {
            // An inner page, or the index's first one: what is there are not tuples of this kind.
            0 => {
                let flags = random.pick(&[0, 1]);
                self.tuples(random, block, flags)
            }
            1 => self.tuples(random, block, LEAF | NULLS),
            _ => self.leaf(random, block),
        }
    }

    pub(crate) fn leaf(&mut self, random: &mut Random, block: u32) -> Vec<u8> {
        self.tuples(random, block, LEAF)
    }

    fn tuples(&mut self, random: &mut Random, block: u32, flags: u16) -> Vec<u8> {
        let mut left = self.page_size - HEADER_BYTES - OPAQUE_BYTES;
        let (mut pointers, mut counts) = (Vec::new(), [0_u16; 4]);
        loop {
            let number = pointers.len() as u16 + 1;
            let (tuple, state) = match random.below(if self.is_untidy { 12 } else { 40 }) {
                0 => (dead_tuple(random, PLACEHOLDER), PLACEHOLDER),
                1 if self.is_untidy => (dead_tuple(random, REDIRECT), REDIRECT),
                2 if self.is_untidy => (dead_tuple(random, DEAD), DEAD),
                _ => (self.live_tuple(random, number, flags & NULLS != 0), 0),
            };
            let is_dead = self.is_untidy && random.chance(3);
            let pointer = if is_dead { Pointer::DeadTuple(tuple) } else { Pointer::Tuple(tuple) };
            let Some(rest) = left.checked_sub(room(&pointer)) else { break };
            left = rest;
            counts[state as usize] += 1;
            pointers.push(pointer);
        }
        let mut manner =
            if self.is_untidy { Manner::any(random, self.page_size) } else { Manner::plain(self.page_size) };
        manner.is_padding_used = false;
        let [_, redirections, _, placeholders] = counts;
        let id = if self.is_untidy && random.chance(3) { PAGE_ID - 1 } else { PAGE_ID };
        let opaque = [flags, redirections, placeholders, id].map(u16::to_le_bytes);
        page(random, manner, block, &pointers, opaque.as_flattened())
    }

    /// A row, mostly in a chain with the tuple before; of an untidy index sometimes not as it should be.
    fn live_tuple(&mut self, random: &mut Random, number: u16, is_null: bool) -> Vec<u8> {
        self.row += random.pick(&[1, 1, 1, 60]);
        let next = if random.chance(10) { 0 } else { number.saturating_sub(random.pick(&[1, 1, 1, 2, 9])) };
        let mut data = Vec::new();
        for column in &mut self.columns {
            if !is_null {
                column.put(random, &mut data);
            }
        }
        // Too long for an index.
        data.truncate(if self.is_untidy { 400 } else { 2000 });
        let mut tuple = vec![0; 16];
        tuple.extend_from_slice(&data);
        tuple.resize(tuple.len().next_multiple_of(8), 0);
        put_header(&mut tuple, 0, next, row(self.row / 100, (self.row % 100 + 1) as u16));
        if self.is_untidy && random.chance(10) {
            match random.below(6) {
                // Its own number, or flags beside it.
                0 => tuple[4..6].copy_from_slice(&number.to_le_bytes()),
                1 => tuple[5] |= random.pick(&[0x80, 0x40]),
                // A bitmap.
                2 => tuple[12] = 1,
                3 => tuple[0] ^= random.pick(&[1, 2, 4, 0x80]),
                4 => tuple.truncate(random.pick(&[8, 16])),
                _ => *tuple.last_mut().unwrap() ^= 1,
            }
        }
        tuple
    }
}

/// What is left of a tuple that went: where to, or nothing.
fn dead_tuple(random: &mut Random, state: u32) -> Vec<u8> {
    let mut tuple = vec![0; 16];
    put_header(&mut tuple, state, 0, if state == REDIRECT { row(random.below(900) as u32, 7) } else { NO_ROW });
    if state == REDIRECT {
        tuple[12..16].copy_from_slice(&(random.next() as u32).to_le_bytes());
    }
    tuple
}

fn put_header(tuple: &mut [u8], state: u32, next: u16, row: [u8; 6]) {
    let length = tuple.len() as u32;
    tuple[..4].copy_from_slice(&(length << 2 | state).to_le_bytes());
    tuple[4..6].copy_from_slice(&next.to_le_bytes());
    tuple[6..12].copy_from_slice(&row);
}
