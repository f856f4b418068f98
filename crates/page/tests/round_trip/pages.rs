//! Pages of PostgreSQL, put together as the server does: header, line pointers, free space, tuples, special area.

use pagehaul_page::page_checksum;

use crate::random::Random;

pub(crate) const PAGE_SIZES: [usize; 4] = [4096, 8192, 16384, 32768];
pub(crate) const HEADER_BYTES: usize = 24;

/// A line pointer with what it points to.
#[derive(Clone, Debug)]
pub(crate) enum Pointer {
    Unused,
    Redirect(u16),
    Dead,
    DeadTuple(Vec<u8>),
    Tuple(Vec<u8>),
    /// Bits without a tuple that no server writes.
    Odd(u32),
}

/// How tuples lie from the page's end down.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Placement {
    InOrder,
    FirstIsLast,
    Shuffled,
}

/// What is not the tuples' own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    pub(crate) size: usize,
    pub(crate) placement: Placement,
    pub(crate) is_hole_used: bool,
    pub(crate) is_padding_used: bool,
    pub(crate) checksum: Checksum,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Checksum {
    Right,
    Zero,
    Wrong,
}

impl Manner {
    /// What a server mostly does.
    pub(crate) fn plain(size: usize) -> Self {
        Manner {
            size,
            placement: Placement::InOrder,
            is_hole_used: false,
            is_padding_used: false,
            checksum: Checksum::Right,
        }
    }

    pub(crate) fn any(random: &mut Random, size: usize) -> Self {
        use Placement::{FirstIsLast, InOrder, Shuffled};
        Manner {
            size,
            placement: random.pick(&[InOrder, InOrder, FirstIsLast, Shuffled]),
            is_hole_used: random.chance(25),
            is_padding_used: random.chance(15),
            checksum: random.pick(&[Checksum::Right, Checksum::Right, Checksum::Zero, Checksum::Wrong]),
        }
    }
}

/// How many bytes of a page `pointer` needs.
pub(crate) fn room(pointer: &Pointer) -> usize {
    4 + match pointer {
        Pointer::Tuple(tuple) | Pointer::DeadTuple(tuple) => tuple.len().next_multiple_of(8),
        _ => 0,
    }
}

/// A page with these line pointers, which fit, and this special area.
pub(crate) fn page(random: &mut Random, manner: Manner, block: u32, pointers: &[Pointer], special: &[u8]) -> Vec<u8> {
    let size = manner.size;
    let mut page = vec![0; size];
    let lower = HEADER_BYTES + 4 * pointers.len();
    let special_at = size - special.len();
    page[special_at..].copy_from_slice(special);
    let mut order: Vec<usize> = (0..pointers.len()).collect();
    match manner.placement {
        Placement::InOrder => {}
        Placement::FirstIsLast => order.rotate_left(1.min(pointers.len())),
        Placement::Shuffled => (1..order.len()).for_each(|last| order.swap(last, random.below(last + 1))),
    }
    let mut upper = special_at;
    for index in order {
        let bits = match &pointers[index] {
            Pointer::Unused => 0,
            Pointer::Redirect(to) => u32::from(*to) | 2 << 15,
            Pointer::Dead => 3 << 15,
            Pointer::Odd(bits) => *bits,
            Pointer::Tuple(tuple) | Pointer::DeadTuple(tuple) => {
                let end = upper;
                upper -= tuple.len().next_multiple_of(8);
                page[upper..upper + tuple.len()].copy_from_slice(tuple);
                if manner.is_padding_used {
                    page[upper + tuple.len()..end].fill_with(|| random.next() as u8);
                }
                let kind = if matches!(pointers[index], Pointer::Tuple(_)) { 1 } else { 3 };
                upper as u32 | kind << 15 | (tuple.len() as u32) << 17
            }
        };
        page[HEADER_BYTES + 4 * index..][..4].copy_from_slice(&bits.to_le_bytes());
    }
    assert!(lower <= upper, "the tuples do not fit");
    if manner.is_hole_used {
        // All of it, or what is left of some tuples.
        let hole = upper - lower;
        for _ in 0..random.pick(&[1, 1, 2, 3, 9]) {
            let length = if random.chance(40) { hole } else { random.within(0..=hole.min(300)) };
            let start = lower + random.within(0..=hole - length);
            page[start..start + length].fill_with(|| if random.chance(30) { random.next() as u8 } else { 0 });
        }
        if random.chance(50) {
            leave_remains(random, &mut page, lower, upper, special_at);
        }
    }
    put_header(random, &mut page, lower, upper, special_at);
    put_checksum(&mut page, manner.checksum, block);
    page
}

/// Parts of the tuples stand a second time in the space below them, as where they were before they were moved; some have changed since.
fn leave_remains(random: &mut Random, page: &mut [u8], lower: usize, upper: usize, special: usize) {
    for _ in 0..random.pick(&[1, 2, 5]) {
        let length = random.within(0..=(special - upper).min(upper - lower));
        let source = upper + random.within(0..=special - upper - length);
        let target = lower + random.within(0..=upper - lower - length);
        let target = if random.chance(80) { (source - (source - target) / 8 * 8).min(upper - length) } else { target };
        page.copy_within(source..source + length, target);
        for _ in 0..random.pick(&[0, 0, 1, 4]).min(length) {
            page[target + random.below(length)] ^= 1 << random.below(8);
        }
    }
}

/// The page after those tuples are gone whose line pointers' indices `is_gone` picks: the others move towards its end, and where they
/// were nobody clears. Line pointers stay, unless those behind are to close up.
pub(crate) fn vacuum(page: &mut [u8], block: u32, is_closing_up: bool, is_gone: impl Fn(usize) -> bool) {
    let bound = |page: &[u8], at: usize| usize::from(u16::from_le_bytes([page[at], page[at + 1]]));
    let (lower, special) = (bound(page, 12), bound(page, 16));
    let pointers: Vec<u32> =
        page[HEADER_BYTES..lower].as_chunks().0.iter().map(|bits| u32::from_le_bytes(*bits)).collect();
    let mut stay: Vec<(usize, u32)> =
        pointers.iter().copied().enumerate().filter(|(index, _)| !is_gone(*index)).collect();
    let new_lower = HEADER_BYTES + 4 * if is_closing_up { stay.len() } else { pointers.len() };
    page[HEADER_BYTES..new_lower].fill(0);
    if is_closing_up {
        stay.iter_mut().enumerate().for_each(|(new, (index, _))| *index = new);
    }
    stay.sort_by_key(|(_, bits)| std::cmp::Reverse(bits & 0x7FFF));
    let mut upper = special;
    for (index, bits) in stay {
        let (at, room) = ((bits & 0x7FFF) as usize, ((bits >> 17) as usize).next_multiple_of(8));
        upper -= room;
        page.copy_within(at..at + room, upper);
        page[HEADER_BYTES + 4 * index..][..4].copy_from_slice(&(bits & !0x7FFF | upper as u32).to_le_bytes());
    }
    page[12..14].copy_from_slice(&(new_lower as u16).to_le_bytes());
    page[14..16].copy_from_slice(&(upper as u16).to_le_bytes());
    put_checksum(page, Checksum::Right, block);
}

/// The page without anything between its line pointers and its tuples.
pub(crate) fn clear_hole(page: &mut [u8], block: u32) {
    let bound = |at: usize| usize::from(u16::from_le_bytes([page[at], page[at + 1]]));
    let hole = bound(12)..bound(14);
    page[hole].fill(0);
    put_checksum(page, Checksum::Right, block);
}

fn put_header(random: &mut Random, page: &mut [u8], lower: usize, upper: usize, special: usize) {
    let lsn = 0x0000_0003_4000_0000_u64 + (random.next() & 0xFF_FFFF);
    page[0..4].copy_from_slice(&((lsn >> 32) as u32).to_le_bytes());
    page[4..8].copy_from_slice(&(lsn as u32).to_le_bytes());
    page[10..12].copy_from_slice(&random.pick(&[0_u16, 1, 4, 5]).to_le_bytes());
    for (at, bound) in [(12, lower), (14, upper), (16, special), (18, page.len() + 4)] {
        page[at..at + 2].copy_from_slice(&(bound as u16).to_le_bytes());
    }
    let prune = random.pick(&[0_u32, 0, 900]);
    page[20..24].copy_from_slice(&prune.to_le_bytes());
}

fn put_checksum(page: &mut [u8], checksum: Checksum, block: u32) {
    let right = page_checksum(page, block);
    let stored = match checksum {
        Checksum::Right => right,
        Checksum::Zero => 0,
        Checksum::Wrong => right ^ 0x5A5A,
    };
    page[8..10].copy_from_slice(&stored.to_le_bytes());
}

/// A page of a fork without tuples, as free space maps and visibility maps are: a header and bytes.
pub(crate) fn map_page(random: &mut Random, size: usize, block: u32) -> Vec<u8> {
    let mut page = vec![0; size];
    put_header(random, &mut page, HEADER_BYTES, size, size);
    let filled = random.below(size - HEADER_BYTES);
    let level = random.next() as u8;
    page[HEADER_BYTES..HEADER_BYTES + filled].fill(level);
    if random.chance(50) {
        page[12..14].copy_from_slice(&(size as u16).to_le_bytes());
    }
    put_checksum(&mut page, Checksum::Right, block);
    page
}
