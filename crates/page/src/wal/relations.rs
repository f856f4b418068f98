//! The relations of a frame, numbered, and the blocks of them that were last referred to.

use super::record::Relation;

/// The most relations of a frame; a record with a further one is stored as it is.
pub(super) const RELATIONS_MAX: usize = 1 << 12;
/// Slots of the table in which relations are looked up: at least twice as many.
const SLOT_COUNT: usize = 1 << 13;
/// Forks have their blocks numbered each by itself.
const FORK_COUNT: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Relations {
    pub(super) list: Vec<Relation>,
    /// Of each relation and fork the block that was last referred to.
    last_blocks: Vec<[u32; FORK_COUNT]>,
    /// Number + 1 of a relation, 0 for none.
    slots: Vec<u16>,
}

impl Relations {
    pub(super) fn clear(&mut self) {
        for relation in &self.list {
            if let Some(slot) = self.slots.get_mut(slot_of(relation)) {
                *slot = 0;
            }
        }
        // Those that did not get their own slot.
        if self.list.len() > 1 {
            self.slots.fill(0);
        }
        self.list.clear();
        self.last_blocks.clear();
    }

    /// The number of `relation`; None if there is no room for another one.
    pub(super) fn number_of(&mut self, relation: &Relation) -> Option<u32> {
        if self.slots.is_empty() {
            self.slots.resize(SLOT_COUNT, 0);
        }
        let mut slot = slot_of(relation);
        loop {
            match self.slots[slot] {
                0 if self.list.len() < RELATIONS_MAX => {
                    self.push(*relation);
                    self.slots[slot] = self.list.len() as u16;
                    return Some(self.list.len() as u32 - 1);
                }
                0 => return None,
                number if self.list[usize::from(number) - 1] == *relation => return Some(u32::from(number) - 1),
                _ => slot = (slot + 1) % SLOT_COUNT,
            }
        }
    }

    pub(super) fn push(&mut self, relation: Relation) {
        self.list.push(relation);
        self.last_blocks.push([0; FORK_COUNT]);
    }

    /// The block that was last referred to, of the relation with this number, which there is, and of the fork that
    /// `flags` of a block say.
    #[inline]
    pub(super) fn last_block(&mut self, number: u32, flags: u8) -> &mut u32 {
        &mut self.last_blocks[number as usize][usize::from(flags) % FORK_COUNT]
    }
}

fn slot_of(relation: &Relation) -> usize {
    let mixed = u64::from(relation[2]) << 32 | u64::from(relation[1].wrapping_add(relation[0].rotate_left(16)));
    (mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 51) as usize
}
