//! Values as pglz packs them.

use crate::random::Random;

/// The most of a value that a row of a TOAST table has, of pages of 8 KiB.
const CHUNK_BYTES: usize = 1996;

/// How long it is unpacked, and groups of words in which little returns; cut at `length` bytes.
pub(crate) fn packed(random: &mut Random, length: usize) -> Vec<u8> {
    let mut bytes = (16 * length.max(64) as u32).to_le_bytes().to_vec();
    let mut made = 0;
    while bytes.len() < length {
        let control = if made < 64 { 0 } else { random.next() as u8 };
        bytes.push(control);
        for item in 0..8 {
            if control >> item & 1 == 0 {
                bytes.push(b"etaoin shrdlu-0123"[random.below(18)]);
                made += 1;
                continue;
            }
            let distance = random.within(1..=made.min(4095));
            let match_length = random.pick(&[3, 3, 3, 4, 5, 9, 17, 18, 40]);
            bytes.push((distance >> 8 << 4) as u8 | (match_length - 3).min(15) as u8);
            bytes.push(distance as u8);
            bytes.extend((match_length >= 18).then(|| (match_length - 18) as u8));
            made += match_length;
        }
    }
    bytes.truncate(length);
    bytes
}

/// A chunk in TOAST: every second one begins a value, and some are the last of one.
pub(crate) fn packed_chunk(random: &mut Random) -> Vec<u8> {
    let length = random.pick(&[CHUNK_BYTES, CHUNK_BYTES, 300, 1200]);
    let whole = packed(random, 2 * CHUNK_BYTES);
    let start = random.pick(&[0, 0, 0, CHUNK_BYTES]);
    whole[start..start + length].to_vec()
}
