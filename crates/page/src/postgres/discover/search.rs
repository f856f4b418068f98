//! The search for columns: what may follow one another so that all tuples of a sample end where they should.
//!
//! A place is where the next column of every tuple would start. What can follow a place does not depend on how it was
//! reached, so that it is found once; of all ways to a place by the same number of columns only the cheapest counts.

use super::cost::{Column, Price};
use super::sample::{Sample, TUPLES_MAX};
use crate::layout::{Attribute, RelationKind, ValueType};
use crate::postgres::grid::{find_fixed, find_variable};

/// How many places go on from column to column, and how many in a second try.
pub(super) const BEAM: usize = 96;
pub(super) const WIDE_BEAM: usize = 512;
/// The most places of a search: what bounds its memory.
const PLACES_MAX: usize = 2048;
/// The most ways of a search.
const STEPS_MAX: usize = 1 << 16;
/// The most work of a search: what bounds its time.
const WORK_MAX: u64 = 600_000;
/// Slots that find places by their key; a power of two, twice the places.
const SLOTS: usize = 2 * PLACES_MAX;
/// Bits that each further column of an index must save for each tuple, where nobody knows how many there are.
const BITS_PER_KEY: f32 = 1.5;

/// Length and alignment of a column, and bits that speak against each value: what is rare must be worth it.
struct Shape {
    length: i16,
    alignment: u8,
    penalty: f32,
}

const fn shape(length: i16, alignment: u8, penalty: f32) -> Shape {
    Shape { length, alignment, penalty }
}

/// Of PostgreSQL's types (pg_type.dat). Those of variable length stand first: where it is certain, no other is tried.
const SHAPES: [Shape; 13] = [
    shape(-1, 4, 0.0),
    shape(-1, 8, 0.5),
    shape(4, 4, 0.0),
    shape(8, 8, 0.25),
    shape(2, 2, 1.0),
    shape(1, 1, 0.75),
    shape(16, 8, 1.0),
    shape(16, 1, 1.5),
    shape(64, 1, 0.0),
    shape(32, 8, 0.0),
    shape(24, 8, 0.5),
    shape(12, 8, 3.0),
    shape(6, 4, 3.0),
];

type Cursors = [u16; TUPLES_MAX];

/// Where the next column of every tuple would start.
#[derive(Clone, Copy, Debug)]
struct Place {
    cursors: Cursors,
    key: u64,
    /// What the bytes before it cost as bytes alone.
    plain_bits: f32,
    /// Bytes behind it, of the tuple that has the fewest.
    room: u16,
    /// What follows it, for columns that the tuples of this mask have.
    present: u32,
    edges: (u32, u32),
    /// The column by which it was reached last, from 1, and its node there.
    level: u16,
    node: u32,
}

/// A column between two places.
#[derive(Clone, Copy, Debug)]
struct Edge {
    to: u32,
    bits: f32,
    shape: u8,
}

/// The cheapest way to a place by so many columns.
#[derive(Clone, Copy, Debug)]
struct Node {
    place: u32,
    bits: f32,
    /// What it is compared by.
    rank: f32,
    step: u32,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    before: u32,
    shape: u8,
}

const NO_STEP: u32 = u32::MAX;

/// Scratch of searches.
#[derive(Debug, Default)]
pub(super) struct Search {
    places: Vec<Place>,
    slots: Vec<u16>,
    edges: Vec<Edge>,
    nodes: Vec<Node>,
    next: Vec<Node>,
    steps: Vec<Step>,
    /// See [`Search::work`].
    work: u64,
}

impl Search {
    /// What the last search took, in steps of about 3 ns.
    pub(super) fn work(&self) -> u64 {
        self.work
    }

    /// Finds columns of `sample`, which has been measured, into `attributes`; gives what the tuples cost with them, in bits.
    ///
    /// `beam` places go on from column to column.
    pub(super) fn find(
        &mut self,
        content: &[u8],
        sample: &Sample,
        beam: usize,
        attributes: &mut Vec<Attribute>,
    ) -> Option<f32> {
        self.begin(sample);
        let work_max = self.work + WORK_MAX;
        let mut best: Option<(f32, u32)> = None;
        let mut left = Left::of(sample);
        for (column, present) in sample.present.iter().enumerate() {
            left.take(*present);
            self.advance(content, sample, column as u16 + 1, *present, left.least);
            if column + 1 == sample.present.len() || sample.kind == RelationKind::Index {
                let extra = if sample.kind == RelationKind::Index { BITS_PER_KEY * column as f32 } else { 0.0 };
                for node in &self.next {
                    let bits = node.bits + extra * sample.tuples.len() as f32;
                    if best.is_none_or(|(least, _)| bits < least) && self.is_end(content, sample, node) {
                        best = Some((bits, node.step));
                    }
                }
            }
            std::mem::swap(&mut self.nodes, &mut self.next);
            if self.nodes.len() > beam {
                self.nodes.select_nth_unstable_by(beam, |a, b| a.rank.total_cmp(&b.rank));
                self.nodes.truncate(beam);
            }
            if self.nodes.is_empty() || self.steps.len() > STEPS_MAX || self.work > work_max {
                break;
            }
        }
        self.trace(best?.1, attributes);
        price(content, sample, attributes)
    }

    fn begin(&mut self, sample: &Sample) {
        self.places.clear();
        self.edges.clear();
        self.nodes.clear();
        self.steps.clear();
        self.slots.clear();
        self.slots.resize(SLOTS, 0);
        self.work = (SLOTS + sample.total_bytes) as u64 / 16;
        if let Some(place) = self.intern(sample, &[0; TUPLES_MAX]) {
            self.nodes.push(Node { place, bits: 0.0, rank: 0.0, step: NO_STEP });
        }
    }

    /// The number of a place; None if there is no room for another one.
    fn intern(&mut self, sample: &Sample, cursors: &Cursors) -> Option<u32> {
        let key = key_of(cursors);
        let mut slot = (key >> 40) as usize % SLOTS;
        while let Some(number) = self.slots[slot].checked_sub(1) {
            let place = &self.places[usize::from(number)];
            if place.key == key && place.cursors == *cursors {
                return Some(number.into());
            }
            slot = (slot + 1) % SLOTS;
        }
        if self.places.len() == PLACES_MAX {
            return None;
        }
        let number = self.places.len() as u32;
        self.slots[slot] = number as u16 + 1;
        let tuples = cursors[..sample.tuples.len()].iter().enumerate();
        let plain_bits = tuples.map(|(number, cursor)| sample.plain_bits(number, *cursor)).sum();
        let rooms = sample.tuples.iter().zip(cursors).map(|(tuple, cursor)| tuple.length - cursor);
        let room = rooms.min().unwrap_or(0);
        self.places.push(Place {
            cursors: *cursors,
            key,
            plain_bits,
            room,
            present: 0,
            edges: (0, 0),
            level: 0,
            node: 0,
        });
        Some(number)
    }

    /// Goes on from all nodes by column `level`, from 1. Of tuples that have the fewest columns left behind it there are
    /// `left`.
    fn advance(&mut self, content: &[u8], sample: &Sample, level: u16, present: u32, left: u16) {
        self.next.clear();
        let least_room = if sample.kind == RelationKind::Heap { left } else { 0 };
        for number in 0..self.nodes.len() {
            let node = self.nodes[number];
            let (first, last) = self.edges_of(content, sample, node.place, present);
            for at in first..last {
                let edge = self.edges[at as usize];
                let place = &mut self.places[edge.to as usize];
                if place.room < least_room {
                    continue;
                }
                let bits = node.bits + edge.bits;
                let step = self.steps.len() as u32;
                if place.level == level {
                    let same = &mut self.next[place.node as usize];
                    if same.bits <= bits {
                        continue;
                    }
                    (same.rank, same.bits, same.step) = (same.rank - same.bits + bits, bits, step);
                } else {
                    (place.level, place.node) = (level, self.next.len() as u32);
                    let rank = bits - place.plain_bits;
                    self.next.push(Node { place: edge.to, bits, rank, step });
                }
                self.steps.push(Step { before: node.step, shape: edge.shape });
            }
        }
    }

    /// What can follow a place.
    fn edges_of(&mut self, content: &[u8], sample: &Sample, number: u32, present: u32) -> (u32, u32) {
        let place = &self.places[number as usize];
        if place.edges.1 > 0 && place.present == present {
            return place.edges;
        }
        let cursors = place.cursors;
        let first = self.edges.len() as u32;
        if present == 0 {
            // Nobody has the column: any shape is as good.
            self.edges.push(Edge { to: number, bits: 0.0, shape: 0 });
        }
        for (shape_number, shape) in SHAPES.iter().enumerate().filter(|_| present != 0) {
            if shape.length < 0 && !sample.any_variable {
                continue;
            }
            self.work += 4;
            let Some(placed) = place_all(content, sample, present, &cursors, shape.attribute()) else { continue };
            let count = present.count_ones();
            self.work += 4 * u64::from(count);
            let (price, is_certain) = if shape.length < 0 {
                placed.column.variable(content)
            } else {
                (placed.column.fixed(content, shape.length as usize), false)
            };
            let bits = price.bits + shape.penalty * count as f32;
            let to = if bits.is_finite() { self.intern(sample, &placed.cursors) } else { None };
            let is_new = |edge: &Edge| Some(edge.to) != to || edge.bits > bits;
            if let Some(to) = to
                && self.edges[first as usize..].iter().all(is_new)
            {
                self.edges.push(Edge { to, bits, shape: shape_number as u8 });
            }
            if is_certain {
                break;
            }
        }
        let edges = (first, self.edges.len() as u32);
        let place = &mut self.places[number as usize];
        (place.present, place.edges) = (present, edges);
        edges
    }

    fn is_end(&self, content: &[u8], sample: &Sample, node: &Node) -> bool {
        let cursors = &self.places[node.place as usize].cursors;
        sample.tuples.iter().zip(cursors).all(|(tuple, cursor)| sample.is_end(content, tuple, *cursor))
    }

    fn trace(&self, last: u32, attributes: &mut Vec<Attribute>) {
        attributes.clear();
        let mut at = last;
        while let Some(step) = self.steps.get(at as usize) {
            attributes.push(SHAPES[usize::from(step.shape)].attribute());
            at = step.before;
        }
        attributes.reverse();
    }
}

/// How many columns tuples have behind the one at hand.
struct Left {
    counts: Cursors,
    count: usize,
    least: u16,
}

impl Left {
    fn of(sample: &Sample) -> Self {
        let mut counts = [0; TUPLES_MAX];
        for (number, count) in counts.iter_mut().enumerate() {
            *count = sample.present.iter().filter(|present| *present >> number & 1 != 0).count() as u16;
        }
        Left { counts, count: sample.tuples.len(), least: 0 }
    }

    fn take(&mut self, present: u32) {
        for (number, count) in self.counts.iter_mut().enumerate() {
            *count -= (present >> number & 1) as u16;
        }
        self.least = self.counts[..self.count].iter().copied().min().unwrap_or(0);
    }
}

impl Shape {
    fn attribute(&self) -> Attribute {
        let value_type = if self.length < 0 { ValueType::Varlena } else { ValueType::Opaque };
        Attribute { value_type, length: self.length, alignment: self.alignment }
    }
}

/// A column of all tuples, and where the next one starts.
struct Placed {
    cursors: Cursors,
    column: Column,
}

/// Where the next column of every tuple is, if it can be an `attribute`.
fn place_all(content: &[u8], sample: &Sample, present: u32, cursors: &Cursors, attribute: Attribute) -> Option<Placed> {
    let mut placed = Placed { cursors: *cursors, column: Column::new() };
    for (number, (tuple, cursor)) in sample.tuples.iter().zip(&mut placed.cursors).enumerate() {
        if present >> number & 1 == 0 {
            continue;
        }
        let (from, end) = (tuple.at + usize::from(*cursor), tuple.at + usize::from(tuple.length));
        let (start, next) = if attribute.length > 0 {
            find_fixed(content, attribute, from, end)?
        } else {
            find_variable(content, attribute, from, end)?
        };
        *cursor = (next - tuple.at) as u16;
        placed.column.push(start, next, sample, number, present);
    }
    Some(placed)
}

/// What the tuples cost with these columns, in bits; their types are set. None if they do not fit all of them.
pub(super) fn price(content: &[u8], sample: &Sample, attributes: &mut [Attribute]) -> Option<f32> {
    let mut cursors = [0; TUPLES_MAX];
    let mut bits = 0.0;
    for (number, attribute) in attributes.iter_mut().enumerate() {
        let present = *sample.present.get(number)?;
        if present == 0 {
            continue;
        }
        let placed = place_all(content, sample, present, &cursors, *attribute)?;
        let Price { bits: of_column, value_type } = if attribute.length > 0 {
            placed.column.fixed(content, attribute.length as usize)
        } else {
            placed.column.variable(content).0
        };
        bits += of_column;
        attribute.value_type = value_type;
        cursors = placed.cursors;
    }
    let mut ends = sample.tuples.iter().zip(&cursors);
    ends.all(|(tuple, cursor)| sample.is_end(content, tuple, *cursor)).then_some(bits)
}

fn key_of(cursors: &Cursors) -> u64 {
    cursors.as_chunks::<4>().0.iter().fold(0, |key: u64, four| {
        let word = four.iter().fold(0u64, |word, cursor| word << 16 | u64::from(*cursor));
        (key.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    })
}
