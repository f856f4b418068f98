//! Arrays of floats of 32 bits in text: vectors of models, in rows, in TOAST chunks, in indexes.
//!
//! Of a measured float sign and exponent tell little and the digits are noise: zstd finds nothing to repeat and codes all bytes by
//! one table. Where floats stand as numbers of 32 bits, only what tells little is coded, and the noise is copied.

use super::mixed::BLOCK_BYTES;

/// Bytes of a float, and the one with its sign and most of its exponent.
const FLOAT_BYTES: usize = 4;
const EXPONENTS_PLACE: usize = 3;
/// A block's floats.
const WORDS: usize = BLOCK_BYTES / FLOAT_BYTES;
/// How many of a block are looked at, of those that look like floats by the first of these.
const FEW: usize = 16;
const MORE: usize = 64;
/// Different bytes at the place of sign and exponent, at most; vectors of models have ten to twenty in all.
const EXPONENTS_MAX: [u32; 2] = [9, 20];
/// Different bytes at the other places, at least, in two of three: of random ones there are 15 or 16, and 57, give or take 2.
const DIGITS_MIN: [u32; 2] = [13, 48];
/// Blocks of a text, and of a run of them on the mean, at least.
const BLOCKS_MIN: usize = 8;
const BLOCKS_MIN_A_RUN: usize = 3;
/// One block in this many is looked at for whether there are any: most texts have none, and are looked through to their end.
const BLOCKS_STEP: usize = 4;
/// Slots of marks by which repeats are found, and of how many floats one is looked at.
const SLOTS: usize = 1 << 12;
const LOOKED_AT: u32 = 64;
/// If one mark in this many was there before, floats are left to zstd. What stands before the floats of each array returns, too.
const REPEAT_SHARE: usize = 4;

/// Whether a block is floats of 32 bits, the first of which begins with it: few values where sign and exponent are, and nearly all
/// at two of the three other places.
pub(super) fn are_in(block: &[u8; BLOCK_BYTES]) -> bool {
    exponents_place(block) == Some(EXPONENTS_PLACE)
}

/// How many bytes of `text` stand before the first of its floats, modulo their size; None if there are none, or hardly any.
pub(super) fn first_place(text: &[u8]) -> Option<usize> {
    let mut found = [0; FLOAT_BYTES];
    for place in text.as_chunks().0.iter().step_by(BLOCKS_STEP).filter_map(exponents_place) {
        found[place] += 1;
        if found[place] == BLOCKS_MIN / BLOCKS_STEP {
            return Some((place + FLOAT_BYTES - EXPONENTS_PLACE) % FLOAT_BYTES);
        }
    }
    None
}

/// The place of sign and exponent in each four bytes of a block of floats; None if it is none.
fn exponents_place(block: &[u8; BLOCK_BYTES]) -> Option<usize> {
    place_in::<FEW>(block, EXPONENTS_MAX[0], DIGITS_MIN[0])?;
    place_in::<MORE>(block, EXPONENTS_MAX[1], DIGITS_MIN[1])
}

/// By `COUNT` of its floats, from all of it, since a block may begin with something else.
fn place_in<const COUNT: usize>(block: &[u8; BLOCK_BYTES], exponents_max: u32, digits_min: u32) -> Option<usize> {
    let mut seen = [[0_u64; 4]; FLOAT_BYTES];
    let words = block.as_chunks::<FLOAT_BYTES>().0;
    for at in 0..COUNT {
        // An odd step: what repeats after 8, 16 or 32 bytes does not hide from it.
        for (seen, byte) in seen.iter_mut().zip(words[at * (WORDS / COUNT + 1) % WORDS]) {
            seen[usize::from(byte >> 6)] |= 1 << (byte & 63);
        }
    }
    let different = seen.map(|seen| seen.iter().map(|part| part.count_ones()).sum::<u32>());
    let of_digits = different.iter().filter(|count| **count >= digits_min).count();
    // Of halves of floats the second in turn.
    let place = different.iter().rposition(|count| *count <= exponents_max)?;
    (of_digits >= 2).then_some(place)
}

/// Whether so many blocks of floats, of [`MixedCoder`](super::MixedCoder)'s runs, pay: a few among others may be anything.
pub(super) fn are_enough(runs: &[u32]) -> bool {
    let floats = || runs.iter().skip(1).step_by(2);
    let blocks = floats().sum::<u32>() as usize;
    blocks >= BLOCKS_MIN && blocks >= BLOCKS_MIN_A_RUN * floats().count()
}

/// Whether two floats that stand together stood so before, at any distance, more often than chance lets them.
pub(super) fn repeat(floats: impl Iterator<Item = u32> + Clone) -> bool {
    let mut slots = [0_u32; SLOTS];
    let (mut seen, mut again) = (0, 0);
    for (float, next) in floats.clone().zip(floats.skip(1)) {
        // Places are chosen by what stands there, so that a repeat is looked at both times.
        let mixed = (float ^ 0x5555_5555).wrapping_mul(0x9e37_79b1);
        if mixed >> 14 & (LOOKED_AT - 1) != 0 {
            continue;
        }
        let mark = next | 1;
        let slot = &mut slots[(mixed >> 20) as usize % SLOTS];
        seen += 1;
        again += usize::from(*slot == mark);
        *slot = mark;
    }
    again * REPEAT_SHARE > seen
}
