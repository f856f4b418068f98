//! The space of a page that no tuple uses, where it is not zero: maps of free space and of visibility, and what tuples
//! left that are gone. Most of it is zero even so.

use super::wire::{OUTSIDE, is_zero};
use crate::error::{Damaged, Decoded};
use crate::stream::Stream;

/// It is looked at by blocks of this many bytes, the last one may be shorter. A page of the map of a small table's free space
/// has thirteen bytes that are not zero, in eight blocks of 128.
const BLOCK_BYTES: usize = 64;

/// Appends `hole` to `out`. True if without its blocks of zeros: by turns how many blocks are zero and how
/// many are not, a byte each, and the latter ones.
pub(super) fn store(hole: &[u8], out: &mut Vec<u8>) -> bool {
    let start = out.len();
    let mut rest = hole;
    while !rest.is_empty() {
        let zero = leading_blocks(rest, true);
        rest = &rest[(zero * BLOCK_BYTES).min(rest.len())..];
        let filled = leading_blocks(rest, false);
        let (blocks, behind) = rest.split_at((filled * BLOCK_BYTES).min(rest.len()));
        out.extend_from_slice(&[zero as u8, filled as u8]);
        out.extend_from_slice(blocks);
        rest = behind;
    }
    let is_shorter = out.len() - start < hole.len();
    if !is_shorter {
        out.truncate(start);
        out.extend_from_slice(hole);
    }
    is_shorter
}

/// How many blocks at the start of `bytes` are zero, or how many are not; at most 255.
fn leading_blocks(bytes: &[u8], are_zero: bool) -> usize {
    bytes.chunks(BLOCK_BYTES).take(255).take_while(|block| is_zero(block) == are_zero).count()
}

/// Fills `hole`, which is zero, from what [`store`] made shorter.
pub(super) fn load(hole: &mut [u8], stream: &mut Stream<u8>) -> Decoded<()> {
    let mut at = 0;
    while at < hole.len() {
        let (zero, filled) = (usize::from(stream.next()?), usize::from(stream.next()?));
        if zero + filled == 0 {
            return Err(Damaged("free space of a page is told of in steps of nothing"));
        }
        let from = at + zero * BLOCK_BYTES;
        at = from + filled * BLOCK_BYTES;
        let end = at.min(hole.len());
        if filled > 0 {
            let place = hole.get_mut(from..end).ok_or(OUTSIDE)?;
            place.copy_from_slice(stream.take(place.len())?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn come_back(hole: &[u8]) -> Option<usize> {
        let mut stream = Stream::default();
        let is_shorter = store(hole, &mut stream.values);
        let length = stream.values.len();
        if !is_shorter {
            assert_eq!(stream.values, hole);
            return None;
        }
        let mut back = vec![0; hole.len()];
        load(&mut back, &mut stream).unwrap();
        assert!(back == hole && stream.next().is_err());
        // Cut anywhere, it is damage.
        for end in 0..length {
            let mut cut = Stream::default();
            cut.values.extend_from_slice(&stream.values[..end]);
            assert!(load(&mut vec![0; hole.len()], &mut cut).is_err());
        }
        Some(length)
    }

    #[test]
    fn holes_come_back_without_their_zeros() {
        // A map of free space of one page: the way from the root to the first leaf.
        let mut map = vec![0; 8168];
        (0..13).for_each(|level| map[4 + (1 << level) - 1] = 200);
        assert_eq!(come_back(&map), Some(8 * BLOCK_BYTES + 7 * 2));
        assert_eq!(come_back(&[7; 3000]), None);
        for length in [1_usize, 63, 64, 65, 128, 1000, 4000, 32_744] {
            for (at, count) in [(0, 1), (length / 2, 1), (length - 1, 1), (0, length), (length / 3, length.div_ceil(3))]
            {
                let mut hole = vec![0; length];
                hole[at..at + count].fill(7);
                let is_shorter = come_back(&hole).is_some();
                let zero_blocks = hole.chunks(BLOCK_BYTES).filter(|block| is_zero(block)).count();
                // One that is short itself may not pay for being told of.
                assert!(zero_blocks == 1 || is_shorter == (zero_blocks > 1), "{length} {at} {count}");
            }
        }
    }

    #[test]
    fn lies_about_holes_are_damage() {
        for lie in [&[0, 0, 1, 0][..], &[3, 1, 7], &[255, 1], &[1, 255], &[1]] {
            let mut stream = Stream::default();
            stream.values.extend_from_slice(lie);
            assert!(load(&mut [0; 150], &mut stream).is_err(), "{lie:?}");
        }
    }
}
