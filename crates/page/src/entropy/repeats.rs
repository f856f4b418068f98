//! Whether bytes repeat at a distance, which a code for single bytes cannot see.

use multiversion::multiversion;

use super::cost::{BIT, Histogram, entropy};

/// How much of a stream is looked at: a quarter of it, within these limits.
const WINDOW_MIN: usize = 768;
const WINDOW_MAX: usize = 2048;
const SLOTS: usize = 1024;
/// Shorter texts are not sampled: what a choice could spare there is less than the sample takes.
pub(super) const SAMPLED_FROM: usize = 32 << 10;
/// How much of a long text is looked at: so many windows, so long.
const WINDOWS: usize = 3;
const WINDOW_BYTES: usize = 2048;
/// In no window are more places.
const PLACES_MAX: usize = WINDOW_MAX;
const _: () = assert!(WINDOW_BYTES <= PLACES_MAX && PLACES_MAX.is_power_of_two());

/// Of 16 places, how many begin with bytes that stood before, more than chance lets them; 0 to 16.
///
/// `size` is what a code for single bytes makes of `values`: the more a byte tells, the fewer make a repeat.
pub(super) fn repeats(values: &[u8], size: usize) -> usize {
    // Bytes that tell 32 bits together: by chance one of these is met again in 2^20 places or so.
    let length = (values.len() * 4 / size.max(1) + 1).clamp(4, 32);
    let window = &values[..values.len().min((values.len() / 4).clamp(WINDOW_MIN, WINDOW_MAX))];
    let [seen, again] = marks(window, length);
    (again * 16).checked_div(seen).unwrap_or(0)
}

/// As [`repeats`], of a few places in a long text, each alone.
pub(crate) fn repeats_within(text: &[u8]) -> usize {
    let [total, size] = sizes_within(text);
    let length = (total * 4 / size.max(1) + 1).clamp(4, 32);
    let [seen, again] =
        windows_of(text).map(|window| marks(window, length)).fold([0; 2], |[a, b], [c, d]| [a + c, b + d]);
    (again * 16).checked_div(seen).unwrap_or(0)
}

/// Whether a code for single bytes leaves more than six of eight bits of the same places. Of what PostgreSQL has compressed it leaves
/// 6.6 and more, of numbers and words 5.6 at most.
pub(crate) fn is_dense_within(text: &[u8]) -> bool {
    let [total, size] = sizes_within(text);
    size * 8 > total * 6
}

fn windows_of(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let stride = text.len() / WINDOWS;
    text.chunks_exact(stride.max(1)).map(move |part| &part[stride / 2..(stride / 2 + WINDOW_BYTES).min(stride)])
}

/// The bytes in all windows of a text, and what a code for single bytes makes of them.
fn sizes_within(text: &[u8]) -> [usize; 2] {
    let mut counts = [0; 256];
    let mut total = 0;
    for window in windows_of(text) {
        counts.iter_mut().zip(Histogram::of(window).counts).for_each(|(sum, count)| *sum += count);
        total += window.len();
    }
    [total, (entropy(&counts, total as u32).0 / (8 * BIT)) as usize]
}

/// How many places were looked at, and how many of them begin with `length` bytes, 4 or more, that stood before.
fn marks(window: &[u8], length: usize) -> [usize; 2] {
    let mut slots = [0_u32; SLOTS];
    let mut places = [0; PLACES_MAX];
    let seen = choose(&window[..(window.len() + 4).saturating_sub(length)], &mut places);
    let mut again = 0;
    for at in &places[..seen] {
        let place = &window[usize::from(*at)..][..length];
        let mut hash = 0_u64;
        let (words, rest) = place.as_chunks::<4>();
        for word in words {
            hash = mixed(hash, u64::from(u32::from_be_bytes(*word)));
        }
        if !rest.is_empty() {
            hash = mixed(hash, rest.iter().fold(0, |part: u64, byte| part << 8 | u64::from(*byte)));
        }
        let slot = &mut slots[hash as usize % SLOTS];
        let mark = (hash >> 32) as u32 | 1;
        again += usize::from(*slot == mark);
        *slot = mark;
    }
    [seen, again]
}

/// Chooses one place in four by the four bytes that stand there, so that a repeat is looked at both times; how many they are.
/// Without a branch: it would be guessed wrong for each of them.
#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt"))]
fn choose(window: &[u8], places: &mut [u16; PLACES_MAX]) -> usize {
    let mut chosen = 0;
    for (head, at) in window.array_windows::<4>().zip(0..) {
        places[chosen % PLACES_MAX] = at;
        let head = u32::from_le_bytes(*head);
        chosen += usize::from((head ^ 0x5555_5555).wrapping_mul(0x9e37_79b1) >> 30 == 0);
    }
    chosen
}

#[inline(always)]
fn mixed(hash: u64, part: u64) -> u64 {
    let hash = (hash ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ hash >> 29
}
