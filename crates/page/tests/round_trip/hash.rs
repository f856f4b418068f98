//! Pages of hash indexes. Layout: src/include/access/hash.h.

use pagehaul_page::ValueType::Integer;
use pagehaul_page::{RelationKind, RelationLayout};

use crate::btree::{OPAQUE_BYTES, row, tuple};
use crate::pages::{HEADER_BYTES, Manner, Placement, Pointer, page, room};
use crate::random::Random;
use crate::values::attribute;

/// `hasho_page_id`.
const PAGE_ID: u16 = 0xFF80;
const OVERFLOW: u16 = 1;
const BUCKET: u16 = 2;
const BITMAP: u16 = 4;
const META: u16 = 8;
const HAS_DEAD_TUPLES: u16 = 0x80;
/// Of `t_info`: the tuple came from another bucket.
const MOVED_BY_SPLIT: u16 = 0x2000;
const NO_BLOCK: u32 = u32::MAX;

/// An index of one column; what it keeps is the column's hash.
#[derive(Clone, Debug)]
pub(crate) struct HashIndex {
    pub(crate) page_size: usize,
    /// Tuples that were moved or are dead, and odd manners.
    pub(crate) is_untidy: bool,
    bucket: u32,
}

impl HashIndex {
    pub(crate) fn new(page_size: usize, is_untidy: bool) -> Self {
        HashIndex { page_size, is_untidy, bucket: 0 }
    }

    pub(crate) fn layout(&self) -> RelationLayout {
        RelationLayout {
            kind: RelationKind::Index,
            page_size_bytes: self.page_size as u32,
            attributes: vec![attribute(Integer, 4, 4)],
        }
    }

    pub(crate) fn any_page(&mut self, random: &mut Random, block: u32) -> Vec<u8> {
        match random.below(10) {
            0 => self.meta(random, block),
            1 => self.bitmap(random, block),
            2 => self.tuples(random, block, OVERFLOW),
            _ => self.tuples(random, block, BUCKET),
        }
    }

    pub(crate) fn bucket(&mut self, random: &mut Random, block: u32) -> Vec<u8> {
        self.tuples(random, block, BUCKET)
    }

    /// Tuples in the order of their hashes.
    fn tuples(&mut self, random: &mut Random, block: u32, kind: u16) -> Vec<u8> {
        self.bucket += u32::from(kind == BUCKET);
        let mut room_left = self.page_size - HEADER_BYTES - OPAQUE_BYTES;
        if self.is_untidy {
            room_left = room_left * random.within(0..=100) / 100;
        }
        let mut hashes: Vec<u32> = (0..room_left / 20).map(|_| random.next() as u32 & !1023 | self.bucket).collect();
        hashes.sort_unstable();
        let mut pointers: Vec<Pointer> = Vec::new();
        for hash in hashes {
            let moved = if self.is_untidy && random.chance(10) { MOVED_BY_SPLIT } else { 0 };
            let first = row(random.below(60_000) as u32, random.within(1..=180) as u16);
            let tuple = tuple(first, moved, u32::MAX, &hash.to_le_bytes(), &[]);
            let is_dead = self.is_untidy && random.chance(3);
            let pointer = if is_dead { Pointer::DeadTuple(tuple) } else { Pointer::Tuple(tuple) };
            let Some(rest) = room_left.checked_sub(room(&pointer)) else { break };
            room_left = rest;
            pointers.push(pointer);
        }
        let dead = if self.is_untidy && random.chance(20) { HAS_DEAD_TUPLES } else { 0 };
        let previous = if kind == BUCKET { self.bucket | 1023 } else { block.wrapping_sub(9) };
        let next = if random.chance(80) { NO_BLOCK } else { block.wrapping_add(40) };
        self.finish(random, block, &pointers, &opaque(previous, next, self.bucket, kind | dead))
    }

    fn meta(&self, random: &mut Random, block: u32) -> Vec<u8> {
        let mut page = self.finish(random, block, &[], &opaque(NO_BLOCK, NO_BLOCK, NO_BLOCK, META));
        for (field, value) in [0x0644_0640_u32, 4, 0, 0, 307 | 4096 << 16, 15, 1023].into_iter().enumerate() {
            page[HEADER_BYTES + 4 * field..][..4].copy_from_slice(&value.to_le_bytes());
        }
        page[12..14].copy_from_slice(&(HEADER_BYTES as u16 + 600).to_le_bytes());
        page
    }

    fn bitmap(&self, random: &mut Random, block: u32) -> Vec<u8> {
        let mut page = self.finish(random, block, &[], &opaque(NO_BLOCK, NO_BLOCK, NO_BLOCK, BITMAP));
        let end = HEADER_BYTES + self.page_size / 2;
        let used = random.below(self.page_size / 2);
        page[HEADER_BYTES + used..end].fill(0xFF);
        page[12..14].copy_from_slice(&(end as u16).to_le_bytes());
        page
    }

    fn finish(&self, random: &mut Random, block: u32, pointers: &[Pointer], opaque: &[u8]) -> Vec<u8> {
        let mut manner = if self.is_untidy {
            Manner::any(random, self.page_size)
        } else {
            Manner { placement: Placement::Shuffled, ..Manner::plain(self.page_size) }
        };
        manner.is_padding_used = false;
        page(random, manner, block, pointers, opaque)
    }
}

fn opaque(previous: u32, next: u32, bucket: u32, flags: u16) -> [u8; OPAQUE_BYTES] {
    let mut opaque = [0; OPAQUE_BYTES];
    for (at, field) in [(0, previous), (4, next), (8, bucket), (12, u32::from(flags) | u32::from(PAGE_ID) << 16)] {
        opaque[at..at + 4].copy_from_slice(&field.to_le_bytes());
    }
    opaque
}
