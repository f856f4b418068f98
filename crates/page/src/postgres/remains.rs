//! What moved tuples left behind them in the free space of a page.
//!
//! When tuples of a page go, the server moves those that stay towards the page's end, and nobody clears where they were
//! (compactify_tuples in src/backend/storage/page/bufpage.c). So nearly all that is not zero in the free space of a page whose rows were
//! updated or deleted stands a second time in its tuples, in the same order, at one distance from one that is gone to the next.

use super::bounds::Bounds;
use super::heap::{DATA_AT, NEXT_NUMBER};
use super::items::Item;
use super::streams::{NumberStream, PageStreams};
use super::wire::{MAX_ALIGNMENT, align, common_length, u16_at, u32_at, u64_at};
use crate::error::{Damaged, Decoded};

/// Bytes of the hole that are those of tuples, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TupleCopy {
    at: usize,
    length: usize,
    /// How much further up the tuples are.
    distance: usize,
}

/// Shorter ones stay where they are.
const COPY_BYTES_MIN: usize = 16;
/// A page with fewer bytes of copies has none.
const PAGE_BYTES_MIN: usize = 64;
/// The copies of the page at hand.
#[derive(Debug, Default)]
pub(super) struct Remains {
    copies: Vec<TupleCopy>,
    rest: Vec<u8>,
}

impl Remains {
    /// Finds copies of the tuples of `page` in its hole; false if there are next to none. `items` are its tuples if these name
    /// their line pointers, as those of heaps do.
    pub(super) fn find(&mut self, page: &[u8], bounds: Bounds, items: &[Item]) -> bool {
        self.copies.clear();
        let (mut at, mut distance, mut copied) = (align(bounds.lower, MAX_ALIGNMENT), 0, 0);
        // The tuple behind the last one that was found.
        let mut next = bounds.upper;
        while at + COPY_BYTES_MIN <= bounds.upper {
            if u64_at(page, at) == 0 {
                at += 8;
                continue;
            }
            // As far from where it was as the one before; or where the line pointer is that it names; or those between are gone; or here
            // begins what was left at another time.
            let is_there = |source: &usize| begins_alike(page, at, *source, bounds);
            let mut source = Some(at + distance).filter(is_there);
            if source.is_none()
                && let Some(moved) = moved_by(page, at, bounds, items)
            {
                distance = moved;
                source = Some(at + distance).filter(is_there);
            }
            let source = source.or_else(|| [next, bounds.upper].into_iter().find(is_there));
            let Some(source) = source else {
                at += 8;
                continue;
            };
            let length = common_length(&page[at..bounds.upper], &page[source..bounds.special]);
            distance = source - at;
            self.copies.push(TupleCopy { at, length, distance });
            copied += length;
            at = align(at + length, MAX_ALIGNMENT);
            next = at + distance;
        }
        copied >= PAGE_BYTES_MIN
    }

    /// Stores the copies that were found; gives what is left of the hole.
    pub(super) fn store(&mut self, page: &[u8], bounds: Bounds, streams: &mut PageStreams) -> &[u8] {
        self.rest.clear();
        streams.number(NumberStream::CopyCount).values.push(self.copies.len() as u32);
        let mut end = bounds.lower;
        for copy in &self.copies {
            self.rest.extend_from_slice(&page[end..copy.at]);
            for (stream, number) in COPY_STREAMS.into_iter().zip([copy.at - end, copy.length, copy.distance]) {
                streams.number(stream).values.push(number as u32);
            }
            end = copy.at + copy.length;
        }
        self.rest.extend_from_slice(&page[end..bounds.upper]);
        &self.rest
    }
}

/// Of each copy: bytes behind the copy before, or behind the line pointers; its bytes; how much further up they stand as well.
const COPY_STREAMS: [NumberStream; 3] = [NumberStream::CopySkip, NumberStream::CopyLength, NumberStream::CopyDistance];

/// Whether what stands at `at` in the hole begins like what stands at `source`, which may be anywhere, among the tuples.
#[inline]
fn begins_alike(page: &[u8], at: usize, source: usize, bounds: Bounds) -> bool {
    source >= bounds.upper
        && source + COPY_BYTES_MIN <= bounds.special
        && page[at..at + COPY_BYTES_MIN] == page[source..source + COPY_BYTES_MIN]
}

/// If a tuple stood at `at` that is on the page still: how far it was moved.
#[inline]
fn moved_by(page: &[u8], at: usize, bounds: Bounds, items: &[Item]) -> Option<usize> {
    if at + DATA_AT > bounds.upper {
        return None;
    }
    // Of its next version, which is itself as a rule (ItemPointerData in `t_ctid`).
    let number = u32::from(u16_at(page, at + NEXT_NUMBER));
    let guess = items.get((number as usize).wrapping_sub(1)).filter(|item| item.number == number);
    let item =
        guess.or_else(|| items.binary_search_by_key(&number, |item| item.number).ok().map(|found| &items[found]))?;
    // Whoever inserted it stays the same; what deleted it may have come later.
    let is_it = item.length as usize >= DATA_AT && u32_at(page, item.at as usize) == u32_at(page, at);
    is_it.then_some(item.at as usize - at)
}

/// Brings a hole back whose copies are stored. `put_rest` puts what is left of it, which is not nothing, into the room it is given.
pub(super) fn load(
    page: &mut [u8],
    bounds: Bounds,
    streams: &mut PageStreams,
    put_rest: impl FnOnce(&mut [u8], &mut PageStreams) -> Decoded<()>,
) -> Decoded<()> {
    let Bounds { lower, upper, special } = bounds;
    let count = streams.number(NumberStream::CopyCount).next()? as usize;
    let mut sums = [0_u64; COPY_STREAMS.len()];
    for (stream, sum) in COPY_STREAMS.into_iter().zip(&mut sums) {
        *sum = streams.number(stream).take(count)?.iter().map(|number| u64::from(*number)).sum();
    }
    let [skipped, copied, _] = sums;
    let size = upper.checked_sub(lower).filter(|size| skipped + copied <= *size as u64).ok_or(BAD)?;
    let rest = size - copied as usize;
    if rest > 0 {
        put_rest(page.get_mut(lower..lower + rest).ok_or(BAD)?, streams)?;
    }
    // What is left stands together at the hole's start: from the last copy on, each part moves up to where it belongs.
    let (mut from, mut to, mut behind) = (lower + rest, upper, rest - skipped as usize);
    let taken = |stream: NumberStream| streams.numbers[stream as usize].taken(count);
    let [skips, lengths, distances] = COPY_STREAMS.map(taken);
    for ((skip, length), distance) in skips?.iter().zip(lengths?).zip(distances?).rev() {
        page.copy_within(from - behind..from, to - behind);
        (from, to) = (from - behind, to - behind - *length as usize);
        let source = to + *distance as usize;
        if source < upper || source + *length as usize > special {
            return Err(BAD);
        }
        page.copy_within(source..source + *length as usize, to);
        behind = *skip as usize;
    }
    Ok(())
}

const BAD: Damaged = Damaged("copies of tuples in the free space of a page do not fit");

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { lower: 60, upper: 600, special: 1000 };

    /// A page of tuples of 100 bytes in a row, with all that a header tells, and random bytes.
    fn page() -> (Vec<u8>, Vec<Item>) {
        let mut state = 7_u32;
        let mut page: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .take(BOUNDS.special)
        .collect();
        page[..BOUNDS.upper].fill(0);
        // The second and the third line pointer have no tuple.
        let items = [(896, 1), (792, 4), (696, 5), (600, 6)];
        let items = items.map(|(at, number)| Item { at, length: 90, number }).to_vec();
        for item in &items {
            page[item.at as usize + NEXT_NUMBER..][..2].copy_from_slice(&(item.number as u16).to_le_bytes());
        }
        (page, items)
    }

    /// Stores the hole and brings it back; how many copies there were, and how many bytes were left.
    fn come_back(page: &[u8], items: &[Item]) -> Option<(usize, usize)> {
        let (mut remains, mut streams) = (Remains::default(), PageStreams::default());
        if !remains.find(page, BOUNDS, items) {
            return None;
        }
        let rest = remains.store(page, BOUNDS, &mut streams).to_vec();
        let mut back = page.to_vec();
        back[BOUNDS.lower..BOUNDS.upper].fill(0);
        load(&mut back, BOUNDS, &mut streams, |room, _| {
            room.copy_from_slice(&rest);
            Ok(())
        })
        .unwrap();
        assert_eq!(back, page);
        assert!(load(&mut back, BOUNDS, &mut streams, |_, _| Ok(())).is_err(), "all of the streams is used");
        Some((remains.copies.len(), rest.len()))
    }

    #[test]
    fn what_tuples_left_is_copied_from_where_they_are() {
        let (mut page, items) = page();
        assert_eq!(come_back(&page, &items), None);
        // Before two tuples of 104 bytes went, the last three were lower by that.
        page.copy_within(600..808, 392);
        assert_eq!(come_back(&page, &items), Some((1, 540 - 208)));
        let clean = page.clone();
        // A hint that came after the move.
        page[392 + 20] ^= 1;
        assert_eq!(come_back(&page, &items), Some((2, 540 - 208 + 4)));
        // A deletion that did; of the header too little is left alike.
        page.clone_from(&clean);
        page[392 + 4] ^= 1;
        assert_eq!(come_back(&page, &items), Some((1, 540 - 208 + 8)));
        // Something else in between, and below; line pointers that are gone, which end at no multiple of 8.
        page.clone_from(&clean);
        page[60..72].fill(9);
        page[440..450].fill(9);
        assert_eq!(come_back(&page, &items), Some((2, 540 - 208 + 16)));
        // Another tuple went first, so that they were moved by different lengths.
        page.clone_from(&clean);
        page.copy_within(696..792, 384);
        let (copies, rest) = come_back(&page, &items).unwrap();
        assert!(copies == 2 && rest <= 540 - 208, "{copies} {rest}");
    }

    #[test]
    fn lies_about_copies_are_found_out() {
        let (page, _) = page();
        let bring = |skip: u32, length: u32, distance: u32| {
            let mut streams = PageStreams::default();
            streams.number(NumberStream::CopyCount).values.push(1);
            for (stream, number) in COPY_STREAMS.into_iter().zip([skip, length, distance]) {
                streams.number(stream).values.push(number);
            }
            load(&mut page.clone(), BOUNDS, &mut streams, |_, _| Ok(()))
        };
        assert_eq!(bring(440, 100, 100), Ok(()));
        assert_eq!(bring(440, 100, 400), Ok(()));
        for (skip, length, distance) in [
            (440, 101, 100),
            (441, 100, 100),
            (440, 100, 99),
            (440, 100, 401),
            (0, 540, 539),
            (u32::MAX, 100, 100),
            (440, u32::MAX, 100),
            (440, 100, u32::MAX),
        ] {
            assert_eq!(bring(skip, length, distance), Err(BAD), "{skip} {length} {distance}");
        }
        let mut streams = PageStreams::default();
        streams.number(NumberStream::CopyCount).values.push(u32::MAX);
        assert!(load(&mut page.clone(), BOUNDS, &mut streams, |_, _| Ok(())).is_err());
    }
}
