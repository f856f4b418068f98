//! Little-endian fields within a page. Reads are of offsets that were checked; writes check theirs.

use crate::error::{Damaged, Decoded};

#[inline]
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let field = &bytes[at..at + 4];
    u32::from_le_bytes([field[0], field[1], field[2], field[3]])
}

#[inline]
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let field = &bytes[at..at + 8];
    u64::from_le_bytes([field[0], field[1], field[2], field[3], field[4], field[5], field[6], field[7]])
}

/// A block number as tuples hold it: two halves of 16 bits, the high one first.
#[inline]
pub(crate) fn block_at(bytes: &[u8], at: usize) -> u32 {
    u32_at(bytes, at).rotate_left(16)
}

/// `block` as [`block_at`] reads it.
#[inline]
pub(crate) fn block_bytes(block: u32) -> [u8; 4] {
    block.rotate_left(16).to_le_bytes()
}

/// Puts `field` at `at`.
#[inline]
pub(crate) fn put<const N: usize>(page: &mut [u8], at: usize, field: [u8; N]) -> Decoded<()> {
    let place = page.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<N>());
    *place.ok_or(OUTSIDE)? = field;
    Ok(())
}

/// Puts `bytes` at `at`.
#[inline]
pub(crate) fn put_bytes(page: &mut [u8], at: usize, bytes: &[u8]) -> Decoded<()> {
    let end = at.checked_add(bytes.len()).ok_or(OUTSIDE)?;
    copy(page.get_mut(at..end).ok_or(OUTSIDE)?, bytes);
    Ok(())
}

/// Copies `from` to `to`, which is as long. Most values are short: two moves that overlap are less than a call.
#[inline]
pub(crate) fn copy(to: &mut [u8], from: &[u8]) {
    let is_copied = copy_ends::<16>(to, from)
        || copy_ends::<8>(to, from)
        || copy_ends::<4>(to, from)
        || copy_ends::<2>(to, from)
        || copy_ends::<1>(to, from);
    if !is_copied {
        to.copy_from_slice(from);
    }
}

/// Copies the first and the last `N` bytes; false if that is not all.
#[inline]
fn copy_ends<const N: usize>(to: &mut [u8], from: &[u8]) -> bool {
    if from.len() > 2 * N {
        return false;
    }
    if let (Some(to), Some(from)) = (to.first_chunk_mut::<N>(), from.first_chunk::<N>()) {
        *to = *from;
    }
    match (to.last_chunk_mut::<N>(), from.last_chunk::<N>()) {
        (Some(to), Some(from)) => {
            *to = *from;
            true
        }
        _ => false,
    }
}

/// Values of up to this many bytes are copied with what lies behind them: a copy of fixed length is two moves.
pub(crate) const SHORT_BYTES: usize = 32;

/// Appends `page[start..end]` to `out`.
#[inline]
pub(crate) fn append(out: &mut Vec<u8>, page: &[u8], start: usize, end: usize) {
    let length = out.len() + (end - start);
    match page[start..].first_chunk::<SHORT_BYTES>() {
        // What is too much is cut off.
        Some(bytes) if end - start <= SHORT_BYTES => {
            out.extend_from_slice(bytes);
            out.truncate(length);
        }
        _ => out.extend_from_slice(&page[start..end]),
    }
}

pub(crate) const OUTSIDE: Damaged = Damaged("a tuple does not fit into its page");

/// The next multiple of `alignment`, which is a power of two.
#[inline]
pub(crate) const fn align(at: usize, alignment: usize) -> usize {
    (at + alignment - 1) & !(alignment - 1)
}

/// PostgreSQL's MAXALIGN on all machines that this codec models.
pub(crate) const MAX_ALIGNMENT: usize = 8;

/// Whether the bytes from `from` to `to`, fewer than 8 and not at the page's start, are zero.
#[inline]
pub(crate) fn is_padding(page: &[u8], from: usize, to: usize) -> bool {
    to == from || padding(page, from, to) == 0
}

/// These bytes as a number. Without a branch: how many there are comes in any order, and it would be guessed wrong.
#[inline]
pub(crate) fn padding(page: &[u8], from: usize, to: usize) -> u64 {
    // In two steps, since a number cannot be moved by all of its bits.
    u64_at(page, to - 8) >> 1 >> (63 - 8 * (to - from))
}

/// Whether what ends at `end` fills its tuple, which ends at `tuple_end` behind zeros up to a multiple of 8.
#[inline]
pub(crate) fn fills_tuple(page: &[u8], end: usize, tuple_end: usize) -> bool {
    align(end, MAX_ALIGNMENT) == tuple_end && is_padding(page, end, tuple_end)
}

/// How many first bytes are the same.
#[inline]
pub(crate) fn common_length(one: &[u8], other: &[u8]) -> usize {
    let length = one.len().min(other.len());
    let (one, other) = (&one[..length], &other[..length]);
    let words = one.as_chunks::<8>().0.iter().zip(other.as_chunks::<8>().0);
    for (number, (word, other)) in words.enumerate() {
        let unlike = u64::from_le_bytes(*word) ^ u64::from_le_bytes(*other);
        if unlike != 0 {
            return 8 * number + unlike.trailing_zeros() as usize / 8;
        }
    }
    let words = length & !7;
    words + one[words..].iter().zip(&other[words..]).take_while(|(one, other)| one == other).count()
}

/// Whether all bytes are zero.
#[inline]
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(512).all(|block| block.iter().fold(0, |seen, byte| seen | byte) == 0)
}
