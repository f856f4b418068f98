//! Pairs of floats of 64 bits in text: coordinates of shapes that are too large for a row, in TOAST chunks.
//!
//! Chunks cut a value anywhere, but follow one another, so that their text is the value again. Where its coordinates begin, their sign
//! and exponent tell: they hardly change from one point to the next.

use super::axes::FLOAT_BYTES;
use super::mixed::BLOCK_BYTES;
use super::vectors;

/// Bytes of two floats.
pub(super) const PAIR_BYTES: usize = 16;
/// Pairs of a run, of one behind a gap, and of all runs of a text, at least.
const RUN_MIN: usize = 8;
const NEXT_RUN_MIN: usize = 4;
const PAIRS_MIN: usize = 512;
/// A run and what stands before it have so many bytes at least.
pub(super) const RUN_BYTES_MIN: usize = NEXT_RUN_MIN * PAIR_BYTES;
/// Bytes between runs that are looked beyond, and the step: what tells of the next shape, or of the next value.
const GAP_MAX: usize = 64;
const GAP_STEP: usize = 4;
/// How many floats of a block are looked at, and every how many: an odd number, so that both of a pair are.
const SAMPLE_COUNT: usize = 16;
const SAMPLE_STEP: usize = 7;
/// Sign and exponent, and four bits more, are those of the float two places before in so many of them.
const ALIKE_MIN: usize = 12;
/// In so many at most the fourth byte may be one that the highest of a coordinate is; chance makes it one of 32.
const NARROW_MAX: usize = 4;

/// Appends to `runs` how many bytes of `text` stay, how many pairs follow, how many bytes stay, and so on. Whether there are enough pairs.
pub(super) fn find_runs(text: &[u8], runs: &mut Vec<u32>) -> bool {
    runs.clear();
    let (mut at, mut told, mut found) = (0, 0, 0);
    while let Some((block, _)) = text.get(at..).and_then(|rest| rest.split_first_chunk::<BLOCK_BYTES>()) {
        let mut next = first_place(block).and_then(|first| run_around(text, told, at + first));
        at += BLOCK_BYTES;
        while let Some((gap, pairs)) = next {
            runs.extend([gap as u32, pairs as u32]);
            found += pairs;
            told += gap + pairs * PAIR_BYTES;
            at = told;
            next = next_run(&text[told..]);
        }
    }
    found >= PAIRS_MIN
}

/// The run around `anchor`, where a float begins, behind `told`: how far behind, and its pairs. It has one behind `anchor`, too.
fn run_around(text: &[u8], told: usize, anchor: usize) -> Option<(usize, usize)> {
    let before = text[told..anchor].rchunks_exact(PAIR_BYTES).take_while(|pair| are_coordinates(pair)).count();
    let behind = leading_pairs(&text[anchor..]);
    (behind > 0 && before + behind >= RUN_MIN).then(|| (anchor - before * PAIR_BYTES - told, before + behind))
}

/// How far from the beginning of `text`, where a run ends, the next one is, and its pairs.
fn next_run(text: &[u8]) -> Option<(usize, usize)> {
    (GAP_STEP..=GAP_MAX).step_by(GAP_STEP).find_map(|gap| {
        let pairs = leading_pairs(text.get(gap..)?);
        (pairs >= NEXT_RUN_MIN).then_some((gap, pairs))
    })
}

fn leading_pairs(text: &[u8]) -> usize {
    text.chunks_exact(PAIR_BYTES).take_while(|pair| are_coordinates(pair)).count()
}

/// Where in `block`, modulo a float's bytes, its floats begin; None if it has none.
fn first_place(block: &[u8; BLOCK_BYTES]) -> Option<usize> {
    // Of eight places at a time: bits that the highest bytes of coordinates, were it these, would not have.
    let mut strange = 0;
    for at in sampled() {
        let highs = block[at + FLOAT_BYTES - 1..].first_chunk().map_or(0, |highs| u64::from_le_bytes(*highs));
        strange |= no_coordinates(highs);
        if strange.to_le_bytes().iter().all(|byte| *byte != 0) {
            return None;
        }
    }
    let places = strange.to_le_bytes();
    (0..FLOAT_BYTES).filter(|first| places[*first] == 0).find(|first| {
        let (mut high_bits, mut alike, mut narrow) = (0, 0, 0);
        for at in sampled().map(|at| first + at) {
            let (near, float) = (&block[at - PAIR_BYTES..][..FLOAT_BYTES], &block[at..][..FLOAT_BYTES]);
            high_bits |= float[3] | float[4];
            alike += usize::from(near[6..] == float[6..]);
            narrow += usize::from(no_coordinates(float[3].into()) & 0xFF == 0);
        }
        // Text in columns of eight has no high bits. Of boxes of f32, as indexes have them, every fourth byte is like this.
        alike >= ALIKE_MIN && high_bits & 0x80 != 0 && narrow <= NARROW_MAX
    })
}

/// Where the floats are that are looked at.
fn sampled() -> impl Iterator<Item = usize> {
    (0..SAMPLE_COUNT).map(|number| PAIR_BYTES + number * SAMPLE_STEP * FLOAT_BYTES)
}

/// Zero in each byte that may be the highest of a coordinate: from a ten-millionth on, up to hundreds of millions, it is 0x3E to 0x41
/// beside the sign.
fn no_coordinates(highs: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    ((highs & (0x7F * EACH)) + 2 * EACH) & (0xFC * EACH) ^ (0x40 * EACH)
}

fn are_coordinates(pair: &[u8]) -> bool {
    no_coordinates(u64::from(pair[7]) | (u64::from(pair[15]) << 8)) & 0xFFFF == 0
}

/// Whether points were there before, at any distance, in the same order.
pub(super) fn repeat(halves: &[Vec<u64>; 2]) -> bool {
    let points = halves[0].iter().zip(&halves[1]);
    vectors::repeat(points.map(|(first, second)| (first ^ second.rotate_left(16)) as u32))
}
