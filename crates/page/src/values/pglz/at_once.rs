//! A group's items told apart, and put together again, by a look into a table.
//!
//! Which of eight items are matches nobody can foretell: a branch for each takes twice the time (bench/runs/2026-11-30-page-pglz).

use std::arch::x86_64::{__m128i, _mm_extract_epi64, _mm_set_epi64x, _mm_shuffle_epi8};

#[cfg(doc)]
use super::group;
use super::group::{Counts, ITEMS, Items};

/// Bytes of a group that are looked at together: items without long matches take at most as many.
const WINDOW_BYTES: usize = 16;
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

/// The bytes of `window` that `places` name, 0 for none.
#[target_feature(enable = "avx2")]
#[inline]
fn chosen(window: u128, places: &[u8; WINDOW_BYTES]) -> u128 {
    let loaded = |value: u128| -> __m128i { _mm_set_epi64x((value >> 64) as i64, value as i64) };
    let bytes = _mm_shuffle_epi8(loaded(window), loaded(u128::from_le_bytes(*places)));
    (_mm_extract_epi64::<1>(bytes) as u64 as u128) << 64 | _mm_extract_epi64::<0>(bytes) as u64 as u128
}

/// Of a whole group.
fn counts_of(match_count: usize, thirds: usize) -> Counts {
    Counts { literals: ITEMS - match_count, firsts: match_count, seconds: match_count, thirds }
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

/// As [`group::items_in`], of a group that is whole and takes no more than a window; None of any other.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
pub(super) fn items_in(control: u8, bytes: &[u8]) -> Option<(Items, Counts)> {
    let bytes: &[u8; WINDOW_BYTES + 1] = bytes.first_chunk()?;
    let places = &PLACES[usize::from(control)];
    let match_count = control.count_ones() as usize;
    let mut window = u128::from_le_bytes(*bytes.first_chunk()?);
    let mut apart = chosen(window, &places.apart);
    let mut longs = long_ones((apart >> 64) as u64);
    let (mut thirds, mut third_count) = (0, 0);
    // Once whether there is a long match or not, which nobody can foretell; that there are more is rare.
    loop {
        let number = longs.trailing_zeros() as usize / 8;
        let place = usize::from(places.third[number]);
        thirds |= u64::from(bytes[place + third_count]) << (8 * third_count);
        third_count += usize::from(longs != 0);
        // Without this byte what follows lies where it would behind a short match.
        window = chosen(window, &CHANGES[place].removed);
        apart = chosen(window, &places.apart);
        longs = long_ones((apart >> 64) as u64) & !low(number + 1);
        if match_count + third_count > WINDOW_BYTES - ITEMS {
            return None;
        }
        if longs == 0 {
            break;
        }
    }
    let seconds = (chosen(window >> 8, &places.apart) >> 64) as u64;
    let items = Items { literals: apart as u64, firsts: (apart >> 64) as u64, seconds, thirds };
    Some((items, counts_of(match_count, third_count)))
}

/// As [`group::put_items`], of such a group, whatever is put behind it.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
pub(super) fn put_items(control: u8, items: Items, bytes: &mut [u8]) -> Option<Counts> {
    let bytes: &mut [u8; WINDOW_BYTES] = bytes.first_chunk_mut()?;
    let places = &PLACES[usize::from(control)];
    let match_count = control.count_ones() as usize;
    let mut longs = long_ones(items.firsts) & low(match_count);
    let counts = counts_of(match_count, longs.count_ones() as usize);
    if counts.total() > WINDOW_BYTES {
        return None;
    }
    let known = u128::from(items.literals) | u128::from(items.firsts) << 64;
    let mut window = chosen(known, &places.together) | chosen(items.seconds.into(), &places.second);
    let (mut thirds, mut before_it) = (items.thirds, 0);
    // As above.
    loop {
        let number = longs.trailing_zeros() as usize / 8;
        let change = &CHANGES[usize::from(places.third[number]) + before_it];
        window = chosen(window, &change.moved) | chosen(thirds.into(), &change.put);
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
    fn places_are_where_items_are() {
        for (control, places) in PLACES.iter().enumerate() {
            let named = |places: &[u8]| places.iter().filter(|place| **place != NOWHERE).count();
            let match_count = control.count_ones() as usize;
            assert_eq!(named(&places.apart), ITEMS);
            assert_eq!((named(&places.together), named(&places.second)), (ITEMS, match_count));
            for (third, first) in places.third.iter().zip(&places.apart[ITEMS..]).take(match_count) {
                assert_eq!(*third, first + 2);
            }
            assert!(places.third[match_count..].iter().all(|place| usize::from(*place) == WINDOW_BYTES));
        }
    }
}
