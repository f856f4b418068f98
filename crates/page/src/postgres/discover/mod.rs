//! Columns of tuples that nobody told of, found by looking at some of them.
//!
//! Where no catalog was read, the tuples still tell: how many columns they have, which of them are null, where values of
//! variable length end, that padding is zero. A sequence of lengths and alignments that takes every tuple of a sample to
//! its very end is most likely right; of several the one counts whose values cost least. It is a hint like any other: a
//! wrong one costs size, and never a byte.

mod cost;
mod sample;
mod search;

use crate::layout::{Attribute, RelationKind, RelationLayout};
use sample::Sample;
use search::Search;

/// How many layouts are remembered.
const KNOWN_MAX: usize = 64;
/// Tables with more columns are not looked at.
const COLUMNS_MAX: u16 = 256;
/// Searches of small parts may take one step (about 3 ns) for so many bytes of content, a twentieth of what else is done with
/// them; and at first this many steps, a tenth of a second, because most of a database's layouts come early.
const BYTES_PER_STEP: usize = 32;
const STEPS_AT_FIRST: i64 = 32 << 20;
/// Parts of this size may be searched whatever went before: their layouts are remembered, or given up.
const LARGE_PART_BYTES: usize = 512 << 10;
/// Remembered layouts may cost so many times what they cost when they were found; beyond that something else is there.
const WORSE_SHARE: f32 = 1.15;
/// After a search in vain so many large parts are passed over, then twice as many, up to the latter.
const PASSES_MIN: u32 = 2;
const PASSES_MAX: u32 = 256;

/// Columns of a heap that were found before.
#[derive(Debug, Default)]
struct Known {
    attributes: Vec<Attribute>,
    /// The most that a byte cost when they were found.
    bits_per_byte: f32,
    /// When they were used last.
    used: u64,
}

/// Searches in vain for tuples of so many columns.
#[derive(Clone, Copy, Debug, Default)]
struct Vain {
    column_count: u16,
    /// How many parts are still passed over, and how many were to be.
    left: u32,
    passes: u32,
}

/// Finds the columns of runs of pages, and remembers those of heaps from frame to frame.
#[derive(Debug)]
pub(crate) struct Discovery {
    sample: Sample,
    search: Search,
    known: Vec<Known>,
    vain: [Vain; 64],
    clock: u64,
    /// Steps that searches may take; less than none if they took more.
    credit: i64,
    trial: Vec<Attribute>,
    found: RelationLayout,
}

impl Default for Discovery {
    fn default() -> Self {
        Discovery {
            sample: Sample::default(),
            search: Search::default(),
            known: Vec::new(),
            vain: [Vain::default(); 64],
            clock: 0,
            credit: STEPS_AT_FIRST,
            trial: Vec::new(),
            found: RelationLayout::default(),
        }
    }
}

impl Discovery {
    /// A layout that fits a sample of the tuples of `content`, pages of a relation of `kind`; None if none was found.
    pub(crate) fn find(&mut self, content: &[u8], kind: RelationKind, page_size: u32) -> Option<&RelationLayout> {
        self.credit = (self.credit + (content.len() / BYTES_PER_STEP) as i64).min(STEPS_AT_FIRST);
        if !self.sample.take(content, kind, page_size as usize) || self.sample.column_count > COLUMNS_MAX {
            return None;
        }
        self.clock += 1;
        self.found.kind = kind;
        self.found.page_size_bytes = page_size;
        let is_found =
            if kind == RelationKind::Heap { self.find_heap(content) } else { self.search(content).is_some() };
        is_found.then_some(&self.found)
    }

    /// Finds columns of a heap, in memory first.
    fn find_heap(&mut self, content: &[u8]) -> bool {
        let remembered = self.remembered(content);
        let total_bytes = self.sample.total_bytes as f32;
        if let Some((number, bits)) = remembered {
            let known = &mut self.known[number];
            known.used = self.clock;
            // Columns without a value in the sample have no bits to compare.
            // A small part is most likely of another table, and there may be a better layout for it.
            let is_other = content.len() < LARGE_PART_BYTES && self.credit > STEPS_AT_FIRST / 2;
            if !is_other && bits <= known.bits_per_byte * total_bytes * WORSE_SHARE + 64.0 {
                return true;
            }
            self.trial.clone_from(&self.found.attributes);
        }
        match (self.search_unless_vain(content), remembered) {
            (None, None) => false,
            (Some(bits), None) => {
                self.remember(bits / total_bytes);
                true
            }
            (found, Some((number, bits))) => {
                if found.is_some_and(|found| found < bits) {
                    self.remember(found.unwrap_or(bits) / total_bytes);
                } else {
                    self.found.attributes.clone_from(&self.trial);
                    let known = &mut self.known[number];
                    known.bits_per_byte = known.bits_per_byte.max(bits / total_bytes);
                }
                true
            }
        }
    }

    /// The cheapest of the layouts that are remembered and fit; its types are as they suit the sample.
    fn remembered(&mut self, content: &[u8]) -> Option<(usize, f32)> {
        let mut best: Option<(usize, f32)> = None;
        for (number, known) in self.known.iter().enumerate() {
            if known.attributes.len() != usize::from(self.sample.column_count) {
                continue;
            }
            self.trial.clone_from(&known.attributes);
            let bits = search::price(content, &self.sample, &mut self.trial);
            if let Some(bits) = bits.filter(|bits| best.is_none_or(|(_, least)| *bits < least)) {
                best = Some((number, bits));
                std::mem::swap(&mut self.found.attributes, &mut self.trial);
            }
        }
        best
    }

    /// Searches for columns, if there is time.
    fn search(&mut self, content: &[u8]) -> Option<f32> {
        if self.credit <= 0 && content.len() < LARGE_PART_BYTES {
            return None;
        }
        self.sample.measure(content);
        let mut bits = None;
        for beam in [search::BEAM, search::WIDE_BEAM] {
            bits = self.search.find(content, &self.sample, beam, &mut self.found.attributes);
            self.credit = (self.credit - self.search.work() as i64).max(-STEPS_AT_FIRST);
            // Most small parts without a result have none.
            if bits.is_some() || content.len() < LARGE_PART_BYTES {
                break;
            }
        }
        bits
    }

    /// As [`Discovery::search`]; less and less often in large parts with tuples like those for which nothing was found.
    fn search_unless_vain(&mut self, content: &[u8]) -> Option<f32> {
        if content.len() < LARGE_PART_BYTES {
            return self.search(content);
        }
        let column_count = self.sample.column_count;
        let slot = usize::from(column_count) % self.vain.len();
        if self.vain[slot].column_count != column_count {
            self.vain[slot] = Vain { column_count, left: 0, passes: PASSES_MIN };
        }
        if self.vain[slot].left > 0 {
            self.vain[slot].left -= 1;
            return None;
        }
        let found = self.search(content);
        let vain = &mut self.vain[slot];
        if found.is_some() {
            vain.passes = PASSES_MIN;
        } else {
            vain.left = vain.passes;
            vain.passes = (2 * vain.passes).min(PASSES_MAX);
        }
        found
    }

    /// Keeps what was found, in place of what has not been used for longest.
    fn remember(&mut self, bits_per_byte: f32) {
        let is_same = |known: &Known| {
            let shapes = known.attributes.iter().map(|attribute| (attribute.length, attribute.alignment));
            shapes.eq(self.found.attributes.iter().map(|attribute| (attribute.length, attribute.alignment)))
        };
        let number = match self.known.iter().position(is_same) {
            Some(number) => number,
            None if self.known.len() < KNOWN_MAX => {
                self.known.push(Known::default());
                self.known.len() - 1
            }
            None => {
                let oldest = self.known.iter().enumerate().min_by_key(|(_, known)| known.used);
                let number = oldest.map_or(0, |(number, _)| number);
                self.known[number].bits_per_byte = 0.0;
                number
            }
        };
        let known = &mut self.known[number];
        known.attributes.clone_from(&self.found.attributes);
        known.bits_per_byte = known.bits_per_byte.max(bits_per_byte);
        known.used = self.clock;
    }
}
