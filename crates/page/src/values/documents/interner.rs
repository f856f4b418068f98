//! Byte strings by number: each different one once.

use super::super::indices::PROBES_MAX;
use crate::stream::held_bytes;

/// A slot that is free.
const FREE: u32 = u32::MAX;
/// Slots at first; a power of two.
const SLOTS_MIN: usize = 256;

/// What was seen, numbered from 0.
#[derive(Debug, Default)]
pub(super) struct Interner {
    bytes: Vec<u8>,
    /// Where each string ends in `bytes`, and its hash.
    ends: Vec<(u32, u32)>,
    /// At least twice as many as strings.
    slots: Vec<u32>,
}

impl Interner {
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.slots.fill(FREE);
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The memory it keeps.
    pub(super) fn held_bytes(&self) -> usize {
        held_bytes(&self.bytes) + held_bytes(&self.ends) + held_bytes(&self.slots)
    }

    /// The number of `string`, and whether it is a new one. None: it takes too long to find it.
    pub(super) fn number_of(&mut self, string: &[u8]) -> Option<(usize, bool)> {
        if self.slots.len() < 2 * (self.ends.len() + 1) {
            self.grow();
        }
        let hash = hash(string);
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        let mut left = PROBES_MAX;
        loop {
            let number = self.slots[slot];
            if number == FREE {
                break;
            }
            if self.ends[number as usize].1 == hash && self.string(number as usize) == string {
                return Some((number as usize, false));
            }
            slot = (slot + 1) & mask;
            left = left.checked_sub(1)?;
        }
        let number = self.ends.len();
        self.slots[slot] = number as u32;
        self.bytes.extend_from_slice(string);
        self.ends.push((self.bytes.len() as u32, hash));
        Some((number, true))
    }

    fn string(&self, number: usize) -> &[u8] {
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before].0);
        &self.bytes[start as usize..self.ends[number].0 as usize]
    }

    /// Forgets all but the first `count`.
    pub(super) fn truncate(&mut self, count: usize) {
        // Last in, first out: no string that stays was put behind one that goes.
        let mask = self.slots.len().wrapping_sub(1);
        while self.ends.len() > count {
            let number = self.ends.len() as u32 - 1;
            let Some((_, hash)) = self.ends.pop() else { return };
            let mut slot = hash as usize & mask;
            while self.slots[slot] != number {
                slot = (slot + 1) & mask;
            }
            self.slots[slot] = FREE;
        }
        self.bytes.truncate(self.ends.last().map_or(0, |(end, _)| *end as usize));
    }

    fn grow(&mut self) {
        let count = (2 * self.slots.len()).max(SLOTS_MIN);
        self.slots.clear();
        self.slots.resize(count, FREE);
        for (number, (_, hash)) in self.ends.iter().enumerate() {
            let mut slot = *hash as usize & (count - 1);
            while self.slots[slot] != FREE {
                slot = (slot + 1) & (count - 1);
            }
            self.slots[slot] = number as u32;
        }
    }
}

#[inline]
fn hash(string: &[u8]) -> u32 {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let (words, rest) = string.as_chunks::<8>();
    let mut mixed = string.len() as u64;
    for word in words {
        mixed = (mixed.rotate_left(23) ^ u64::from_le_bytes(*word)).wrapping_mul(FACTOR);
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mixed = (mixed.rotate_left(23) ^ u64::from_le_bytes(last)).wrapping_mul(FACTOR);
    (mixed >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_keep_their_numbers_and_forgotten_ones_get_new_ones() {
        let mut interner = Interner::default();
        interner.clear();
        let strings: Vec<String> = (0..2000).map(|number| "x".repeat(number % 37) + &number.to_string()).collect();
        for round in 0..3 {
            for (number, string) in strings.iter().enumerate() {
                let known = (round == 1 && number < 2000) || (round == 2 && number < 700);
                assert_eq!(interner.number_of(string.as_bytes()), Some((number, !known)), "{round}");
            }
            if round == 1 {
                interner.truncate(700);
                assert_eq!(interner.len(), 700);
            }
        }
        assert_eq!(interner.bytes, strings.concat().as_bytes());
        interner.truncate(0);
        assert_eq!(interner.number_of(b""), Some((0, true)));
        assert_eq!(interner.number_of(b""), Some((0, false)));
    }
    /// Words that differ by a rotation and what it leaves cancel out: all these strings have one hash.
    #[test]
    fn strings_of_one_hash_are_given_up() {
        const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
        let mut interner = Interner::default();
        let first_of = |word: u64| (16u64.rotate_left(23) ^ word).wrapping_mul(FACTOR).rotate_left(23);
        let found = (0..1000u64).filter(|word| {
            let string = [word.to_le_bytes(), first_of(*word).to_le_bytes()].concat();
            assert_eq!(hash(&string), hash(&[0u64.to_le_bytes(), first_of(0).to_le_bytes()].concat()));
            interner.number_of(&string).is_some()
        });
        assert_eq!(found.count(), PROBES_MAX + 1);
        assert_eq!(interner.number_of(b"another"), Some((PROBES_MAX + 1, true)));
        interner.truncate(3);
        assert_eq!(interner.len(), 3);
    }
}
