//! Hexadecimal digits in text: hashes, tokens, binary data.
//!
//! A digit tells four bits, and where nothing repeats that is all there is to say. zstd finds repeats of four or five digits
//! that are there by chance, several to a hash: it takes longer than for any other text, and its result is larger.

use super::mixed::BLOCK_BYTES;

/// Of a block of digits one byte in this many may be another: what stands between hashes.
const OTHER_SHARE: usize = 16;
/// Slots of marks by which repeats are found.
const SLOT_COUNT: usize = 1 << 12;
/// If one mark in this many was there before, digits are left to zstd.
const REPEAT_SHARE: usize = 16;

/// Marks of what stood before.
pub(super) struct Slots(Vec<u32>);

impl Default for Slots {
    fn default() -> Self {
        Slots(vec![0; SLOT_COUNT])
    }
}

impl Slots {
    /// Whether digits stood before more often than chance lets them, at any distance.
    pub(super) fn find_repeats(&mut self, digits: &[u8]) -> bool {
        self.0.fill(0);
        let (mut seen, mut again) = (0, 0);
        for (at, digit) in digits.iter().enumerate() {
            // Places are chosen by what stands there, so that a repeat is looked at both times.
            if *digit != b'7' {
                continue;
            }
            // Twelve digits tell 48 bits.
            let Some(place) = digits[at..].first_chunk::<13>() else { break };
            let [_, b0, b1, b2, b3, b4, b5, b6, b7, c @ ..] = *place;
            let word = u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, b7]) ^ u64::from(u32::from_le_bytes(c)) << 29;
            let hash = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mark = (hash >> 32) as u32 | 1;
            let slot = &mut self.0[(hash >> 20) as usize % SLOT_COUNT];
            seen += 1;
            again += usize::from(*slot == mark);
            *slot = mark;
        }
        again * REPEAT_SHARE > seen
    }
}

/// Whether nearly all bytes are digits, or the hyphens of a uuid.
pub(super) fn are_in(block: &[u8; BLOCK_BYTES]) -> bool {
    let (parts, _) = block.as_chunks::<64>();
    let mut others = 0;
    for part in parts {
        // Sums of 64 fit a byte, which lets sixteen and more be looked at at once.
        others += usize::from(part.iter().map(|byte| is_other(*byte)).fold(0, u8::wrapping_add));
        if others > BLOCK_BYTES / OTHER_SHARE {
            return false;
        }
    }
    true
}

#[inline(always)]
pub(super) fn is_other(byte: u8) -> u8 {
    let is_digit = byte.wrapping_sub(b'0') < 10;
    let is_letter = (byte | 0x20).wrapping_sub(b'a') < 6;
    u8::from(!(is_digit | is_letter | (byte == b'-')))
}
