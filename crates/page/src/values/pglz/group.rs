//! Groups of pglz's: a control byte, and for each of its bits, from the lowest on, an item. 0 is a literal byte; 1 a match of two bytes,
//! or of three if the low four bits of its first one are all set (src/common/pg_lzcompress.c).
//!
//! Which bit is what nobody can foretell, so that a branch for each takes most of the time: a group's items are told apart, and put together
//! again, by one look into a table (bench/runs/2026-11-30-page-pglz).

/// Bytes of a group that are looked at together: items without long matches take at most as many.
pub(super) const WINDOW_BYTES: usize = 16;
pub(super) const ITEMS: usize = 8;
/// What a place is that there is not.
const NOWHERE: u8 = 0x80;

/// Where the items of a group without long matches are, by its control byte.
struct Places {
    /// In its bytes: of literals, then of the first bytes of matches.
    apart: [u8; WINDOW_BYTES],
    /// Of each of its bytes: in the eight literals and the eight first bytes behind them.
    together: [u8; WINDOW_BYTES],
    /// Of each of its bytes: in the eight second bytes.
    second: [u8; WINDOW_BYTES],
    /// Where behind a match its third byte would be; behind the window where there is no such match.
    third: [u8; ITEMS + 1],
}

static PLACES: [Places; 256] = {
    const NONE: Places = Places {
        apart: [NOWHERE; WINDOW_BYTES],
        together: [NOWHERE; WINDOW_BYTES],
        second: [NOWHERE; WINDOW_BYTES],
        third: [WINDOW_BYTES as u8; ITEMS + 1],
    };
    let mut table = [NONE; 256];
    let mut control = 0;
    while control < table.len() {
        let places = &mut table[control];
        let (mut at, mut item, mut matches) = (0, 0, 0);
        while item < ITEMS {
            if control >> item & 1 == 0 {
                let literal = item - matches;
                places.apart[literal] = at as u8;
                places.together[at] = literal as u8;
                at += 1;
            } else {
                places.apart[ITEMS + matches] = at as u8;
                places.together[at] = (ITEMS + matches) as u8;
                places.second[at + 1] = matches as u8;
                places.third[matches] = at as u8 + 2;
                matches += 1;
                at += 2;
            }
            item += 1;
        }
        control += 1;
    }
    table
};

/// By the place of a byte: what a window is without it, and with another one put before it. Behind the window it changes nothing.
struct Change {
    removed: [u8; WINDOW_BYTES],
    moved: [u8; WINDOW_BYTES],
    /// Where the first byte of another window is to be.
    put: [u8; WINDOW_BYTES],
}

static CHANGES: [Change; WINDOW_BYTES + 1] = {
    const NONE: Change =
        Change { removed: [NOWHERE; WINDOW_BYTES], moved: [NOWHERE; WINDOW_BYTES], put: [NOWHERE; WINDOW_BYTES] };
    let mut table = [NONE; WINDOW_BYTES + 1];
    let mut place = 0;
    while place < table.len() {
        let mut at = 0;
        while at < WINDOW_BYTES {
            let from = if at < place { at } else { at + 1 };
            table[place].removed[at] = if from < WINDOW_BYTES { from as u8 } else { NOWHERE };
            if at == place {
                table[place].put[at] = 0;
            } else {
                table[place].moved[at] = if at < place { at as u8 } else { at as u8 - 1 };
            }
            at += 1;
        }
        place += 1;
    }
    table
};

/// A group's items by what they are, the first one lowest. Behind them stands whatever there was.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Items {
    pub(super) literals: u64,
    pub(super) firsts: u64,
    pub(super) seconds: u64,
    pub(super) thirds: u64,
}

/// How many items there are of each kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) literals: usize,
    pub(super) firsts: usize,
    pub(super) seconds: usize,
    pub(super) thirds: usize,
}

impl Counts {
    /// Of a whole group.
    fn of(match_count: usize, thirds: usize) -> Self {
        Counts { literals: ITEMS - match_count, firsts: match_count, seconds: match_count, thirds }
    }

    pub(super) fn total(self) -> usize {
        self.literals + self.firsts + self.seconds + self.thirds
    }
}

/// The bytes of `window` that `places` name, 0 for none.
pub(super) fn chosen(window: u128, places: &[u8; WINDOW_BYTES]) -> u128 {
    let bytes = window.to_le_bytes();
    u128::from_le_bytes(places.map(|place| bytes.get(usize::from(place)).copied().unwrap_or(0)))
}

/// As [`chosen`], in one instruction.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn chosen_at_once(window: u128, places: &[u8; WINDOW_BYTES]) -> u128 {
    use std::arch::x86_64::{__m128i, _mm_extract_epi64, _mm_set_epi64x, _mm_shuffle_epi8};
    let loaded = |value: u128| -> __m128i { _mm_set_epi64x((value >> 64) as i64, value as i64) };
    let bytes = _mm_shuffle_epi8(loaded(window), loaded(u128::from_le_bytes(*places)));
    (_mm_extract_epi64::<1>(bytes) as u64 as u128) << 64 | _mm_extract_epi64::<0>(bytes) as u64 as u128
}

/// One bit for each byte whose low four are all set.
fn long_ones(firsts: u64) -> u64 {
    const ONES: u64 = u64::MAX / 255;
    ((firsts & (0xf * ONES)) + ONES) & (0x10 * ONES)
}

/// The lowest `count` bytes.
fn low(count: usize) -> u64 {
    !u64::MAX.checked_shl(8 * count as u32).unwrap_or(0)
}

/// Goes through a group of `control` of at most `room` bytes, item by item: `one` is told what each byte is and how many there were before it,
/// and gives the byte.
#[cold]
fn walk(control: u8, room: usize, mut one: impl FnMut(Kind, &Counts) -> u8) -> Counts {
    let mut counts = Counts::default();
    for item in 0..ITEMS {
        if counts.total() == room {
            break;
        }
        if control >> item & 1 == 0 {
            one(Kind::Literal, &counts);
            counts.literals += 1;
            continue;
        }
        let first = one(Kind::First, &counts);
        counts.firsts += 1;
        if counts.total() == room {
            break;
        }
        one(Kind::Second, &counts);
        counts.seconds += 1;
        if first & 0xf == 0xf && counts.total() < room {
            one(Kind::Third, &counts);
            counts.thirds += 1;
        }
    }
    counts
}

enum Kind {
    Literal,
    First,
    Second,
    Third,
}

/// The group of `control` at the beginning of `bytes`, which may end in it.
#[cold]
pub(super) fn items_in(control: u8, bytes: &[u8]) -> (Items, Counts) {
    let mut items = Items::default();
    let counts = walk(control, bytes.len(), |kind, counts| {
        let value = bytes[counts.total()];
        let (word, place) = match kind {
            Kind::Literal => (&mut items.literals, counts.literals),
            Kind::First => (&mut items.firsts, counts.firsts),
            Kind::Second => (&mut items.seconds, counts.seconds),
            Kind::Third => (&mut items.thirds, counts.thirds),
        };
        *word |= u64::from(value) << (8 * place);
        value
    });
    (items, counts)
}

/// Puts the group of `control` at the beginning of `bytes`, as much of it as there is room for.
#[cold]
pub(super) fn put_items(control: u8, items: Items, bytes: &mut [u8]) -> Counts {
    walk(control, bytes.len(), |kind, counts| {
        let (word, place) = match kind {
            Kind::Literal => (items.literals, counts.literals),
            Kind::First => (items.firsts, counts.firsts),
            Kind::Second => (items.seconds, counts.seconds),
            Kind::Third => (items.thirds, counts.thirds),
        };
        let value = (word >> (8 * place)) as u8;
        bytes[counts.total()] = value;
        value
    })
}

/// As [`items_in`], of a group that is whole and in `window`; None if it is longer.
#[inline(always)]
pub(super) fn items_at_once(
    control: u8,
    bytes: &[u8; WINDOW_BYTES + 1],
    choose: impl Fn(u128, &[u8; WINDOW_BYTES]) -> u128,
) -> Option<(Items, Counts)> {
    let places = &PLACES[usize::from(control)];
    let match_count = control.count_ones() as usize;
    let mut window = u128::from_le_bytes(*bytes.first_chunk()?);
    let mut apart = choose(window, &places.apart);
    let mut longs = long_ones((apart >> 64) as u64);
    let (mut thirds, mut third_count) = (0, 0);
    // Once whether there is a long match or not, which nobody can foretell; that there are more is rare.
    loop {
        let number = longs.trailing_zeros() as usize / 8;
        let place = usize::from(places.third[number]);
        thirds |= u64::from(bytes[place + third_count]) << (8 * third_count);
        third_count += usize::from(longs != 0);
        // Without this byte what follows lies where it would behind a short match.
        window = choose(window, &CHANGES[place].removed);
        apart = choose(window, &places.apart);
        longs = long_ones((apart >> 64) as u64) & !low(number + 1);
        if match_count + third_count > WINDOW_BYTES - ITEMS {
            return None;
        }
        if longs == 0 {
            break;
        }
    }
    let seconds = (choose(window >> 8, &places.apart) >> 64) as u64;
    let items = Items { literals: apart as u64, firsts: (apart >> 64) as u64, seconds, thirds };
    Some((items, Counts::of(match_count, third_count)))
}

/// As [`put_items`], of a group that is whole and leaves no more of `bytes` than that; None if it is longer.
#[inline(always)]
pub(super) fn put_at_once(
    control: u8,
    items: Items,
    bytes: &mut [u8; WINDOW_BYTES],
    choose: impl Fn(u128, &[u8; WINDOW_BYTES]) -> u128,
) -> Option<Counts> {
    let places = &PLACES[usize::from(control)];
    let match_count = control.count_ones() as usize;
    let mut longs = long_ones(items.firsts) & low(match_count);
    let counts = Counts::of(match_count, longs.count_ones() as usize);
    if counts.total() > WINDOW_BYTES {
        return None;
    }
    let known = u128::from(items.literals) | u128::from(items.firsts) << 64;
    let mut window = choose(known, &places.together) | choose(items.seconds.into(), &places.second);
    let (mut thirds, mut before_it) = (items.thirds, 0);
    // As above.
    loop {
        let number = longs.trailing_zeros() as usize / 8;
        let change = &CHANGES[usize::from(places.third[number]) + before_it];
        window = choose(window, &change.moved) | choose(thirds.into(), &change.put);
        thirds >>= 8;
        before_it += 1;
        longs &= longs.wrapping_sub(1);
        if longs == 0 {
            break;
        }
    }
    *bytes = window.to_le_bytes();
    Some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_and_the_one_instruction_choose_the_same() {
        let mut window = 1_u128;
        for places in &PLACES {
            window = window.wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645).wrapping_add(0x9e37_79b9);
            for places in [&places.apart, &places.together, &places.second] {
                let by_table = chosen(window, places);
                #[cfg(target_arch = "x86_64")]
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: the CPU has it.
                    assert_eq!(by_table, unsafe { chosen_at_once(window, places) });
                }
                let named = places.iter().filter(|place| **place != NOWHERE).count();
                assert!(by_table.count_ones() <= 8 * named as u32);
            }
        }
    }
}
