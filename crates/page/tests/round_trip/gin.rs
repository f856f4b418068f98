//! Pages of GIN indexes. Layout: src/include/access/ginblock.h, src/backend/access/gin/ginpostinglist.c.

use pagehaul_page::{Attribute, RelationKind, RelationLayout, ValueType};

use crate::pages::{HEADER_BYTES, Manner, Pointer, page, room};
use crate::random::Random;
use crate::values::{attribute, put_value};

const OPAQUE_BYTES: usize = 8;
const DATA: u16 = 1;
const LEAF: u16 = 2;
const INCOMPLETE_SPLIT: u16 = 64;
const COMPRESSED: u16 = 128;
const NO_BLOCK: u32 = u32::MAX;

/// An index of integers or texts.
#[derive(Clone, Debug)]
pub(crate) struct GinIndex {
    pub(crate) page_size: usize,
    pub(crate) key: Attribute,
    /// How far one row of a key is from the next, about, where a block has 2048.
    pub(crate) step: usize,
    pub(crate) is_untidy: bool,
    pub(crate) next_key: u32,
}

impl GinIndex {
    pub(crate) fn new(page_size: usize, key: Attribute, step: usize) -> Self {
        GinIndex { page_size, key, step, is_untidy: false, next_key: 0 }
    }

    pub(crate) fn any(random: &mut Random, page_size: usize) -> Self {
        let key = random.pick(&[attribute(ValueType::Integer, 4, 4), attribute(ValueType::Varlena, -1, 4)]);
        let step = random.pick(&[1, 40, 3000, 1 << 20]);
        GinIndex { is_untidy: random.chance(60), ..GinIndex::new(page_size, key, step) }
    }

    pub(crate) fn layout(&self) -> RelationLayout {
        RelationLayout { kind: RelationKind::Gin, page_size_bytes: self.page_size as u32, attributes: vec![self.key] }
    }

    pub(crate) fn any_page(&mut self, random: &mut Random, block: u32) -> Vec<u8> {
        match random.below(8) {
            0 => self.tuples(random, block, 0),
            1 => self.tuples(random, block, LEAF | INCOMPLETE_SPLIT),
            2 => self.tuples(random, block, DATA | LEAF | COMPRESSED),
            _ => self.leaf(random, block),
        }
    }

    pub(crate) fn leaf(&mut self, random: &mut Random, block: u32) -> Vec<u8> {
        self.tuples(random, block, LEAF)
    }

    fn tuples(&mut self, random: &mut Random, block: u32, flags: u16) -> Vec<u8> {
        let mut left = self.page_size - HEADER_BYTES - OPAQUE_BYTES;
        let mut pointers = Vec::new();
        loop {
            let pointer = Pointer::Tuple(self.tuple(random));
            let Some(rest) = left.checked_sub(room(&pointer)) else { break };
            left = rest;
            pointers.push(pointer);
        }
        let mut manner =
            if self.is_untidy { Manner::any(random, self.page_size) } else { Manner::plain(self.page_size) };
        manner.is_padding_used = false;
        let next = if random.chance(30) { NO_BLOCK } else { block.wrapping_add(1) };
        let mut opaque = [0; OPAQUE_BYTES];
        opaque[..4].copy_from_slice(&next.to_le_bytes());
        opaque[4] = u8::from(self.is_untidy && random.chance(3));
        opaque[6..].copy_from_slice(&flags.to_le_bytes());
        page(random, manner, block, &pointers, &opaque)
    }

    /// A key with its rows; of an untidy index sometimes not as it should be.
    fn tuple(&mut self, random: &mut Random) -> Vec<u8> {
        let is_odd = self.is_untidy && random.chance(10);
        self.next_key += random.below(1 << 16) as u32;
        let mut tuple = vec![0; 8];
        let mut info = 0;
        if self.key.length < 0 {
            put_value(format!("{:08x}", self.next_key).as_bytes(), 4, &mut tuple);
            info = 0x4000;
        } else {
            tuple.extend_from_slice(&self.next_key.to_le_bytes());
        }
        tuple.resize(tuple.len().next_multiple_of(8), 0);
        let (mut place, mut count) = (tuple.len() as u32 | 1 << 31, random.pick(&[1, 1, 2, 5, 9, 40]));
        if random.chance(3) {
            // The rows are in a tree.
            (place, count) = (random.below(9999) as u32, 0xFFFF);
        } else {
            let list = self.list(random, count, is_odd);
            tuple.extend_from_slice(&list);
            tuple.resize(tuple.len().next_multiple_of(8), 0);
        }
        if is_odd {
            match random.below(6) {
                0 => count = random.pick(&[0, 1, 2, 0xFFFF]),
                1 => place = random.pick(&[0, 8, 16, 1 << 31, 1 << 31 | 8, 1 << 31 | 16, 1 << 31 | 200]),
                2 => info ^= random.pick(&[0x8000, 0x2000, 1]),
                3 => *tuple.last_mut().unwrap() ^= 1,
                4 => tuple.truncate(random.pick(&[8, 16])),
                _ => {}
            }
        }
        let halves = [(place >> 16) as u16, place as u16, count, info | tuple.len() as u16];
        tuple[..8].copy_from_slice(halves.map(u16::to_le_bytes).as_flattened());
        tuple
    }

    /// The first row, bytes of differences, and these.
    fn list(&self, random: &mut Random, count: u16, is_odd: bool) -> Vec<u8> {
        let number_max = if is_odd { 4000 } else { 200 };
        let row = (random.below(30_000) as u64, random.within(1..=number_max) as u16);
        let mut last = row.0 << 11 | u64::from(row.1);
        let mut bytes = Vec::new();
        for _ in 1..count {
            let mut next = last + 1 + random.below(2 * self.step) as u64;
            // Numbers of rows are small.
            next = (next & !0x700).max(last + 1);
            let mut left = next - last;
            while left > 0x7F {
                bytes.push(left as u8 | 0x80);
                left >>= 7;
            }
            bytes.push(left as u8);
            last = next;
        }
        if is_odd && random.chance(50) {
            bytes.extend_from_slice(random.pick(&[&[0][..], &[0x80, 0], &[0xFF; 8], &[0x80]]));
        }
        let mut list = Vec::new();
        list.extend_from_slice(&((row.0 >> 16) as u16).to_le_bytes());
        list.extend_from_slice(&(row.0 as u16).to_le_bytes());
        list.extend_from_slice(&row.1.to_le_bytes());
        list.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
        list.extend_from_slice(&bytes);
        list
    }
}
