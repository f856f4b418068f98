//! Line pointers, and where the tuples lie that they point to.

use multiversion::multiversion;

use super::streams::{ByteStream, NumberStream, PageStreams, flag};
use super::wire::{MAX_ALIGNMENT, OUTSIDE, align, padding, put, u32_at};
use crate::error::{Damaged, Decoded};

/// Bytes of a page header; the line pointers follow.
pub(super) const HEADER_BYTES: usize = 24;
/// Bytes of a line pointer.
pub(super) const POINTER_BYTES: usize = 4;

/// What a line pointer is; its number in the stream of states.
mod state {
    /// Never used: all bits zero.
    pub(super) const UNUSED: u8 = 0;
    /// Points to a tuple.
    pub(super) const NORMAL: u8 = 1;
    /// Points to another line pointer.
    pub(super) const REDIRECT: u8 = 2;
    /// Dead, and its tuple gone.
    pub(super) const DEAD: u8 = 3;
    /// Dead, with its tuple.
    pub(super) const DEAD_TUPLE: u8 = 4;
    /// Anything else, without a tuple.
    pub(super) const ODD: u8 = 5;
}

/// The tuples of the page at hand, in the order of their line pointers.
#[derive(Debug, Default)]
pub(super) struct Items {
    /// Where each starts, and its bytes.
    pub(super) spans: Vec<Item>,
    /// Every line pointer is normal, and tuples lie in their order: as [`Items::find`] saw.
    is_regular: bool,
    /// Spans by place on the page, from its end down.
    order: Vec<u32>,
    ranks: Vec<u32>,
}

/// A tuple's place.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Item {
    pub(super) at: u32,
    pub(super) length: u32,
    /// Number of its line pointer, from 1.
    pub(super) number: u32,
}

impl Item {
    /// What a line pointer says.
    #[inline]
    fn of(pointer: u32, number: u32) -> Self {
        Item { at: pointer & 0x7FFF, length: pointer >> 17, number }
    }

    /// Its bytes with the padding behind it.
    fn room(&self) -> u32 {
        align(self.length as usize, MAX_ALIGNMENT) as u32
    }
}

/// How tuples lie on the page, from its end down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placement {
    /// In the order of their line pointers.
    InOrder,
    /// The first is the last: the high key of a B-tree page that was built in one go.
    FirstIsLast,
    /// As a stream of ranks says.
    Ranks,
}

impl Items {
    /// Reads the line pointers of a page whose tuples fill it from `upper` to `special` with nothing between them; false
    /// if they do not.
    pub(super) fn find(&mut self, page: &[u8], pointer_count: usize, upper: usize, special: usize) -> bool {
        let pointers = &page[HEADER_BYTES..HEADER_BYTES + POINTER_BYTES * pointer_count];
        let pointers = pointers.as_chunks::<POINTER_BYTES>().0;
        self.find_normal(pointers, upper as u32, special as u32) || self.find_any(pointers, upper, special)
    }

    /// As [`Items::find`] where every pointer is normal, which is seen without a branch for each; false if one is not, or not
    /// as it should be.
    fn find_normal(&mut self, pointers: &[[u8; POINTER_BYTES]], upper: u32, special: u32) -> bool {
        let pointers_of = || pointers.iter().map(|pointer| u32::from_le_bytes(*pointer));
        if !are_normal(pointers, upper, special) {
            return false;
        }
        self.spans.clear();
        self.spans.extend(pointers_of().zip(1..).map(|(pointer, number)| Item::of(pointer, number)));
        self.is_regular = match (self.spans.first(), self.spans.last()) {
            (Some(first), Some(last)) => {
                let gap = |pair: &[Item; 2]| (pair[1].at + pair[1].room()) ^ pair[0].at;
                let gaps = self.spans.array_windows().fold(0, |all, pair| all | gap(pair));
                first.at + first.room() == special && last.at == upper && gaps == 0
            }
            _ => special == upper,
        };
        true
    }

    fn find_any(&mut self, pointers: &[[u8; POINTER_BYTES]], upper: usize, special: usize) -> bool {
        self.spans.clear();
        self.is_regular = false;
        for (pointer, number) in pointers.iter().zip(1..) {
            let pointer = u32::from_le_bytes(*pointer);
            let item = Item::of(pointer, number);
            // No tuple: neither normal nor dead, or dead without one.
            if item.length == 0 || pointer >> 15 & 1 == 0 {
                continue;
            }
            let (at, end) = (item.at as usize, (item.at + item.length) as usize);
            if at < upper || end > special || !at.is_multiple_of(MAX_ALIGNMENT) {
                return false;
            }
            self.spans.push(item);
        }
        true
    }

    /// Stores how the tuples lie, their line pointers and the padding between them; nothing and false if they overlap or
    /// leave gaps. Gives the page's flags.
    pub(super) fn store(
        &mut self,
        page: &[u8],
        pointer_count: usize,
        upper: usize,
        special: usize,
        streams: &mut PageStreams,
    ) -> Option<u8> {
        let placement = self.placement(upper as u32, special as u32)?;
        let mut flags = match placement {
            Placement::InOrder => 0,
            Placement::FirstIsLast => flag::FIRST_IS_LAST,
            Placement::Ranks => {
                let ranks = &mut streams.number(NumberStream::Rank).values;
                let mut expected = 0u32;
                for rank in &self.ranks {
                    ranks.push(zigzag(rank.wrapping_sub(expected)));
                    expected = rank + 1;
                }
                flag::RANKS
            }
        };
        let padding_of =
            |item: &Item| padding(page, (item.at + item.length) as usize, (item.at + item.room()) as usize);
        let has_room = self.spans.iter().fold(0, |all, item| all | item.length) % MAX_ALIGNMENT as u32 != 0;
        if has_room && self.spans.iter().fold(0, |all, item| all | padding_of(item)) != 0 {
            flags |= flag::PADDING;
            for item in &self.spans {
                let padding = &page[(item.at + item.length) as usize..(item.at + item.room()) as usize];
                streams.byte(ByteStream::Padding).values.extend_from_slice(padding);
            }
        }
        if !self.is_regular && !store_states(page, pointer_count, self.spans.len(), streams) {
            flags |= flag::STATES;
        }
        Some(flags)
    }

    fn placement(&mut self, upper: u32, special: u32) -> Option<Placement> {
        if self.is_regular || lies_down(self.spans.iter(), upper, special) {
            return Some(Placement::InOrder);
        }
        let (first, rest) = self.spans.split_first()?;
        if lies_down(rest.iter().chain([first]), upper, special) {
            return Some(Placement::FirstIsLast);
        }
        self.order.clear();
        // Place above number: one key to sort by.
        self.order.extend(self.spans.iter().enumerate().map(|(number, item)| item.at << 16 | number as u32));
        self.order.sort_unstable_by(|a, b| b.cmp(a));
        self.ranks.clear();
        self.ranks.resize(self.spans.len(), 0);
        let spans = &self.spans;
        if !lies_down(self.order.iter().map(|key| &spans[(key & 0xFFFF) as usize]), upper, special) {
            return None;
        }
        for (rank, key) in self.order.iter().enumerate() {
            self.ranks[(key & 0xFFFF) as usize] = rank as u32;
        }
        Some(Placement::Ranks)
    }

    /// Reads the line pointers' states: puts the pointers without a tuple into `page` and lists the others as items whose
    /// place and length are not known yet.
    pub(super) fn load_states(
        &mut self,
        page: &mut [u8],
        pointer_count: usize,
        flags: u8,
        streams: &mut PageStreams,
    ) -> Decoded<()> {
        self.spans.clear();
        if flags & flag::STATES == 0 {
            self.spans.extend((1..=pointer_count as u32).map(|number| Item { at: 0, length: 0, number }));
            return Ok(());
        }
        for index in 0..pointer_count {
            let pointer = match streams.byte(ByteStream::ItemState).next()? {
                state::UNUSED => 0,
                state::REDIRECT => {
                    let target = streams.number(NumberStream::Redirect).next()?.wrapping_add(index as u32);
                    target & 0x7FFF | 2 << 15
                }
                state::DEAD => 3 << 15,
                state::ODD => streams.number(NumberStream::OddItem).next()?,
                kind @ (state::NORMAL | state::DEAD_TUPLE) => {
                    self.spans.push(Item { at: u32::from(kind), length: 0, number: index as u32 + 1 });
                    continue;
                }
                _ => return Err(Damaged("a line pointer has a state that does not exist")),
            };
            put(page, HEADER_BYTES + POINTER_BYTES * index, pointer.to_le_bytes())?;
        }
        Ok(())
    }

    /// Gives every item, whose length is known now, its place from `special` down, and puts its line pointer and padding
    /// into `page`. The result is where the lowest starts; nothing is below `lower`.
    pub(super) fn place(
        &mut self,
        page: &mut [u8],
        lower: usize,
        special: usize,
        flags: u8,
        streams: &mut PageStreams,
    ) -> Decoded<usize> {
        let count = self.spans.len();
        let cursor = if flags & (flag::STATES | flag::RANKS) == 0 {
            // There is a pointer for each item, in their order.
            let pointers = page[HEADER_BYTES..].as_chunks_mut::<POINTER_BYTES>().0;
            let pointers = pointers.get_mut(..count).ok_or(OUTSIDE)?;
            let turned = if flags & flag::FIRST_IS_LAST == 0 { 0 } else { count.min(1) };
            let (first_pointers, pointers) = pointers.split_at_mut(turned);
            let (first, rest) = self.spans.split_at_mut(turned);
            let cursor = put_normal(pointers, rest, special as i64);
            let cursor = put_normal(first_pointers, first, cursor);
            usize::try_from(cursor).ok().filter(|at| *at >= lower).ok_or(OUTSIDE)?
        } else {
            self.place_by_order(page, lower, special, flags, streams)?
        };
        if flags & flag::PADDING != 0 {
            for item in &self.spans {
                let padding = streams.byte(ByteStream::Padding).take((item.room() - item.length) as usize)?;
                super::wire::put_bytes(page, (item.at + item.length) as usize, padding)?;
            }
        }
        Ok(cursor)
    }

    /// As [`Items::place`], padding apart, of tuples that lie in an order of their own, or of pointers not all of which are normal.
    fn place_by_order(
        &mut self,
        page: &mut [u8],
        lower: usize,
        special: usize,
        flags: u8,
        streams: &mut PageStreams,
    ) -> Decoded<usize> {
        let count = self.spans.len();
        self.order.clear();
        if flags & flag::RANKS != 0 {
            self.order.resize(count, u32::MAX);
            let mut expected = 0u32;
            for (index, step) in streams.number(NumberStream::Rank).take(count)?.iter().enumerate() {
                let rank = expected.wrapping_add(unzigzag(*step));
                let slot = self.order.get_mut(rank as usize).filter(|slot| **slot == u32::MAX);
                *slot.ok_or(Damaged("two tuples have one place"))? = index as u32;
                expected = rank.wrapping_add(1);
            }
        } else if flags & flag::FIRST_IS_LAST != 0 && count > 0 {
            self.order.extend((1..count as u32).chain([0]));
        } else {
            self.order.extend(0..count as u32);
        }
        let mut cursor = special;
        for index in &self.order {
            let item = &mut self.spans[*index as usize];
            cursor = cursor.checked_sub(item.room() as usize).filter(|at| *at >= lower).ok_or(OUTSIDE)?;
            // Until here `at` was the state, if states were told.
            let kind = if item.at == u32::from(state::DEAD_TUPLE) { 3 } else { 1 };
            item.at = cursor as u32;
            let pointer = item.at | kind << 15 | item.length << 17;
            put(page, HEADER_BYTES + POINTER_BYTES * (item.number as usize - 1), pointer.to_le_bytes())?;
        }
        Ok(cursor)
    }
}

/// Whether every pointer is that of a tuple between `upper` and `special`.
#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt"))]
fn are_normal(pointers: &[[u8; POINTER_BYTES]], upper: u32, special: u32) -> bool {
    const SIGN: u32 = 1 << 31;
    const ALIGNED: u32 = MAX_ALIGNMENT as u32 - 1;
    let odd = pointers.iter().fold(0, |odd, pointer| {
        let pointer = u32::from_le_bytes(*pointer);
        let Item { at, length, .. } = Item::of(pointer, 0);
        // Numbers of fewer than 17 bits: what is below zero has the sign.
        let below = length.wrapping_sub(1) | at.wrapping_sub(upper) | special.wrapping_sub(at + length);
        odd | (pointer >> 15 & 3 ^ 1) | (at & ALIGNED) | (below & SIGN)
    });
    odd == 0
}

/// Gives `items` their places from `cursor` down, and their line pointers. Gives where the last one starts, which may be beyond
/// the page's beginning: nothing that was put is of use then.
#[inline]
fn put_normal(pointers: &mut [[u8; POINTER_BYTES]], items: &mut [Item], mut cursor: i64) -> i64 {
    for (item, pointer) in items.iter_mut().zip(pointers) {
        cursor -= i64::from(item.room());
        item.at = cursor as u32;
        *pointer = (item.at | 1 << 15 | item.length << 17).to_le_bytes();
    }
    cursor
}

/// Whether `items` fill the page from `special` down to `upper`.
#[inline]
fn lies_down<'a>(items: impl Iterator<Item = &'a Item>, upper: u32, special: u32) -> bool {
    let mut cursor = special;
    for item in items {
        if item.at + item.room() != cursor {
            return false;
        }
        cursor = item.at;
    }
    cursor == upper
}

/// Stores the states of the line pointers; true and nothing if all are normal.
fn store_states(page: &[u8], pointer_count: usize, tuple_count: usize, streams: &mut PageStreams) -> bool {
    let pointer_of = |index: usize| u32_at(page, HEADER_BYTES + POINTER_BYTES * index);
    if tuple_count == pointer_count && (0..pointer_count).all(|index| pointer_of(index) >> 15 & 3 == 1) {
        return true;
    }
    for index in 0..pointer_count {
        let pointer = pointer_of(index);
        let (at, kind, length) = (pointer & 0x7FFF, pointer >> 15 & 3, pointer >> 17);
        let stored = match (kind, length) {
            (0, 0) if at == 0 => state::UNUSED,
            (1, 1..) => state::NORMAL,
            (2, 0) => {
                streams.number(NumberStream::Redirect).values.push(at.wrapping_sub(index as u32));
                state::REDIRECT
            }
            (3, 0) if at == 0 => state::DEAD,
            (3, 1..) => state::DEAD_TUPLE,
            _ => {
                streams.number(NumberStream::OddItem).values.push(pointer);
                state::ODD
            }
        };
        streams.byte(ByteStream::ItemState).values.push(stored);
    }
    false
}

/// A signed number so that small ones of either sign are small.
#[inline]
pub(super) const fn zigzag(value: u32) -> u32 {
    value << 1 ^ ((value as i32) >> 31) as u32
}

/// The number that [`zigzag`] was given.
#[inline]
pub(super) const fn unzigzag(value: u32) -> u32 {
    value >> 1 ^ (value & 1).wrapping_neg()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UPPER: u32 = 4000;
    const SPECIAL: u32 = 8000;

    fn pointer(at: u32, kind: u32, length: u32) -> u32 {
        at | kind << 15 | length << 17
    }

    /// What [`Items::find_normal`] tells of these line pointers, and whether they are regular.
    fn find(pointers: &[u32], upper: u32) -> Option<bool> {
        let pointers: Vec<_> = pointers.iter().map(|pointer| pointer.to_le_bytes()).collect();
        let mut items = Items::default();
        items.find_normal(&pointers, upper, SPECIAL).then_some(items.is_regular)
    }

    #[test]
    fn a_pointer_that_is_not_normal_is_seen_among_any_number_of_others() {
        let odd = [
            pointer(UPPER, 0, 8),
            pointer(UPPER, 2, 8),
            pointer(UPPER, 3, 8),
            pointer(UPPER, 1, 0),
            pointer(UPPER - 8, 1, 8),
            pointer(UPPER + 4, 1, 8),
            pointer(UPPER + 1, 1, 8),
            pointer(SPECIAL, 1, 1),
            pointer(SPECIAL - 8, 1, 9),
            pointer(UPPER, 1, 0x7FFF),
            pointer(0x7FF8, 1, 0x7FFF),
            0,
            u32::MAX,
        ];
        for count in [1, 2, 7, 8, 9, 33] {
            let normal: Vec<u32> = (1..=count).map(|number| pointer(SPECIAL - 40 * number, 1, 37)).collect();
            let upper = SPECIAL - 40 * count;
            assert_eq!(find(&normal, upper), Some(true), "{count}");
            assert_eq!(find(&normal, upper - 8), Some(false), "{count}");
            for place in 0..normal.len() {
                for odd in odd {
                    let mut pointers = normal.clone();
                    pointers[place] = odd;
                    assert_eq!(find(&pointers, UPPER), None, "{count} {place} {odd:x}");
                }
                // Normal, but not where it belongs.
                for other in [pointer(SPECIAL - 40 * (place as u32 + 1), 1, 30), pointer(UPPER, 1, 37)] {
                    let mut pointers = normal.clone();
                    pointers[place] = other;
                    assert_eq!(find(&pointers, UPPER), Some(false), "{count} {place}");
                }
            }
        }
        assert_eq!(find(&[], SPECIAL), Some(true));
        assert_eq!(find(&[], UPPER), Some(false));
    }
}
