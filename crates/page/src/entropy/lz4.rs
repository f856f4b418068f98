//! LZ4 blocks by the C library, its fast compressor. It keeps its table on the stack, 16 KiB.

use std::ffi::{c_char, c_int};

use super::repeats::{SAMPLED_FROM, repeats_within};

/// A length as the library counts; that of no frame is above it.
fn counted(length: usize) -> c_int {
    c_int::try_from(length).unwrap_or(c_int::MAX)
}

/// LZ4's `acceleration`, how far the search steps where nothing repeats, for texts that repeat. Those of histories and documents take a third to
/// a half less time than by its usual 1, for 4 to 36 % more bytes (bench/runs/2026-11-30-page-faster).
const ACCELERATION_MAX: usize = 16;
/// For each so many bytes of a text it is one: what repeats is found later by longer steps, and a short text ends before.
const BYTES_OF_ACCELERATION: usize = 4 << 10;

/// How many times as far the search steps where `repeats` of 16 places in a sample begin with what stood nearby before: next to nothing would
/// be found, and looking for it takes most of the time of such texts (bench/runs/2026-12-01-page-steps).
fn steps_for(repeats: usize) -> usize {
    match repeats {
        0..=1 => 16,
        2..=3 => 4,
        _ => 1,
    }
}

/// The block of `text`, written to the start of `room`; None if that is too short for it.
pub(super) fn pack<'a>(text: &[u8], room: &'a mut [u8]) -> Option<&'a [u8]> {
    let (source, target): (*const c_char, *mut c_char) = (text.as_ptr().cast(), room.as_mut_ptr().cast());
    let steps = if text.len() < SAMPLED_FROM { 1 } else { steps_for(repeats_within(text)) };
    let acceleration = ((text.len() / BYTES_OF_ACCELERATION).clamp(1, ACCELERATION_MAX) * steps) as c_int;
    // SAFETY: it reads as many bytes as `text` has and writes at most as many as `room` has.
    let length =
        unsafe { lz4_sys::LZ4_compress_fast(source, target, counted(text.len()), counted(room.len()), acceleration) };
    usize::try_from(length).ok().filter(|length| *length > 0).and_then(|length| room.get(..length))
}

/// Appends what `packed` is the block of to `text`; false, and nothing, if that are not `count` bytes.
pub(super) fn unpack(packed: &[u8], count: usize, text: &mut Vec<u8>) -> bool {
    let start = text.len();
    // Filled, since the library takes a match at distance 0, and then copies what stands there.
    text.resize(start + count, 0);
    let (source, target): (*const c_char, *mut c_char) = (packed.as_ptr().cast(), text[start..].as_mut_ptr().cast());
    // SAFETY: this function is made for hostile input: it reads at most as many bytes as `packed` has and writes at most `count`, which is
    // what `target` has.
    let length = unsafe { lz4_sys::LZ4_decompress_safe(source, target, counted(packed.len()), counted(count)) };
    let is_whole = usize::try_from(length) == Ok(count);
    if !is_whole {
        text.truncate(start);
    }
    is_whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_of_the_format_description_is_unpacked_behind_what_is_there() {
        // A literal, a match of 15 + 4 + 77 bytes at distance 1, five literals.
        let block = [0x1f, b'a', 1, 0, 77, 0x50, b'v', b'w', b'x', b'y', b'z'];
        let mut text = b"before".to_vec();
        assert!(unpack(&block, 102, &mut text));
        assert_eq!(text, [&b"before"[..], &[b'a'; 97], b"vwxyz"].concat());
    }

    #[test]
    fn a_lie_leaves_what_is_there() {
        let block = [0x1f, b'a', 1, 0, 77, 0x50, b'v', b'w', b'x', b'y', b'z'];
        let before = |distance| {
            let mut block = block;
            block[2] = distance;
            block
        };
        let mut text = b"before".to_vec();
        // Nothing, one byte less and more, bytes before the block's own, an end that is missing.
        for (lie, count) in [(&[][..], 1), (&block, 101), (&block, 103), (&before(2), 102), (&block[..10], 102)] {
            assert!(!unpack(lie, count, &mut text), "{lie:?} {count}");
            assert_eq!(text, b"before");
        }
        // A match at no distance is none, but the library may take it, as it does: what it copies nobody has said, and the digest tells.
        let is_whole = unpack(&before(0), 102, &mut text);
        assert!(text.starts_with(b"before") && text.len() == if is_whole { 108 } else { 6 });
    }

    #[test]
    fn a_room_that_is_too_short_gets_no_block() {
        let mut state = 1_u32;
        let noise = std::array::from_fn::<u8, 1000, _>(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        });
        assert_eq!(pack(&noise, &mut [0; 1000]), None);
        assert_eq!(pack(&[], &mut []), None);
        let mut room = [0; 1000];
        let block = pack(&[7; 1000], &mut room).unwrap();
        let mut back = Vec::new();
        assert!(block.len() < 20 && unpack(block, 1000, &mut back) && back == [7; 1000]);
    }

    #[test]
    fn the_fewer_repeats_the_longer_the_steps() {
        let mut state = 1_u32;
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let random: Vec<u8> = (0..SAMPLED_FROM).map(|_| noise()).collect();
        let phrases = b"no backup is one until it has been restored; ".repeat(SAMPLED_FROM / 45 + 1);
        assert_eq!([&random, &phrases].map(|text| steps_for(repeats_within(text))), [16, 1]);
        assert_eq!((0..=16).map(steps_for).collect::<Vec<_>>(), [[16; 2].as_slice(), &[4; 2], &[1; 13]].concat());
    }
}
