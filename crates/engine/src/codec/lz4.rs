//! LZ4 blocks by the C library: level 1 is the fast compressor, 2 to 12 are LZ4HC's levels.
//!
//! Decoding costs the same for all levels, so higher levels suit sets that are written once and restored often.

use std::ffi::{c_char, c_int, c_void};

use super::state_memory::{OutputAnchor, StateMemory, anchored};
use super::{CodecId, Decoder, Encoder, check_raw_len, damaged_frame, wrong_length};
use crate::error::Result;

/// The lowest level of LZ4HC; below it the fast compressor works.
const HC_LEVEL_MIN: i32 = 2;

/// From this level on LZ4HC parses optimally.
const HC_OPTIMAL_LEVEL_MIN: i32 = 10;

/// What the optimal parser takes from the heap during a call and gives back: 4096 + 3 entries of 16 bytes, rounded up.
/// It is the one allocation per call left in any codec; the library has no way around it.
const HC_OPTIMAL_TABLE_SIZE_BYTES: u64 = 68 * 1024;

// In the library that lz4-sys links, but not among its bindings.
unsafe extern "C" {
    /// Bytes of state for `LZ4_compress_fast_extState`.
    safe fn LZ4_sizeofState() -> c_int;
    /// Bytes of state for `LZ4_compress_HC_extStateHC`.
    safe fn LZ4_sizeofStateHC() -> c_int;
    fn LZ4_compress_fast_extState(
        state: *mut c_void,
        raw: *const c_char,
        stored: *mut c_char,
        raw_len: c_int,
        stored_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_compress_HC_extStateHC(
        state: *mut c_void,
        raw: *const c_char,
        stored: *mut c_char,
        raw_len: c_int,
        stored_capacity: c_int,
        level: c_int,
    ) -> c_int;
}

/// The state the compressor of `level` needs.
fn state_size_bytes(level: i32) -> usize {
    let size = if level < HC_LEVEL_MIN { LZ4_sizeofState() } else { LZ4_sizeofStateHC() };
    // The library's constant, far from negative.
    usize::try_from(size).unwrap_or(0)
}

/// What an encoder of `level` holds, including what the library takes from the heap during a call.
pub(super) fn encoder_state_size_bytes(level: i32) -> u64 {
    let call = if level < HC_OPTIMAL_LEVEL_MIN { 0 } else { HC_OPTIMAL_TABLE_SIZE_BYTES };
    StateMemory::size_bytes_for(state_size_bytes(level)) as u64 + call
}

/// A length as the library counts; longer ones are cut, which only makes less of a buffer usable.
fn clamped(len: usize) -> c_int {
    c_int::try_from(len).unwrap_or(c_int::MAX)
}

/// Compresses with one state, which the library clears at each call.
pub(super) struct Lz4Encoder {
    level: i32,
    state: StateMemory,
    frame_size_bytes: usize,
}

impl Lz4Encoder {
    pub(super) fn new(level: i32, frame_size_bytes: usize) -> Self {
        Lz4Encoder { level, state: StateMemory::new(state_size_bytes(level)), frame_size_bytes }
    }
}

impl Encoder for Lz4Encoder {
    fn encode(&mut self, raw: &[u8], stored: &mut [u8]) -> Result<Option<usize>> {
        check_raw_len(CodecId::Lz4, raw, self.frame_size_bytes)?;
        // No codec has an empty result, and no library has to show that it knows.
        if stored.is_empty() {
            return Ok(None);
        }
        let raw = anchored(raw);
        let state = self.state.as_mut_ptr();
        let (source, target) = (raw.as_ptr().cast(), stored.as_mut_ptr().cast());
        let (raw_len, capacity) = (clamped(raw.len()), clamped(stored.len()));
        let stored_len = if self.level < HC_LEVEL_MIN {
            // SAFETY: the state has the size the library asked for and is aligned; it reads `raw_len` bytes of `raw`
            // and writes at most `capacity` bytes of `stored`, and neither is larger than its slice.
            unsafe { LZ4_compress_fast_extState(state, source, target, raw_len, capacity, 1) }
        } else {
            // SAFETY: as above.
            unsafe { LZ4_compress_HC_extStateHC(state, source, target, raw_len, capacity, self.level) }
        };
        // Even an empty block has one byte: 0 means that the block does not fit.
        Ok(usize::try_from(stored_len).ok().filter(|&len| len > 0))
    }
}

/// Decompresses; LZ4 needs no state for that.
pub(super) struct Lz4Decoder;

impl Decoder for Lz4Decoder {
    fn decode(&mut self, stored: &[u8], raw: &mut [u8]) -> Result<()> {
        let (Ok(stored_len), Ok(raw_len)) = (c_int::try_from(stored.len()), c_int::try_from(raw.len())) else {
            return Err(damaged_frame(CodecId::Lz4, "the frame is larger than LZ4 blocks can be"));
        };
        let (stored, mut anchor) = (anchored(stored), OutputAnchor::new());
        let raw = anchor.hold(raw);
        let (source, target) = (stored.as_ptr().cast(), raw.as_mut_ptr().cast());
        // SAFETY: this function is made for hostile input: it reads at most `stored_len` bytes of `stored` and writes
        // at most `raw_len` bytes of `raw`, which are the lengths of the slices.
        let result = unsafe { lz4_sys::LZ4_decompress_safe(source, target, stored_len, raw_len) };
        match usize::try_from(result) {
            Ok(len) if len == raw.len() => Ok(()),
            // A block ends where its input ends, so nothing can be left over.
            Ok(len) => Err(wrong_length(CodecId::Lz4, 0, len, raw.len())),
            Err(_) => Err(damaged_frame(CodecId::Lz4, format!("the block is not valid (LZ4 result {result})"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_of_the_format_description_decodes() {
        // Token 0x1F: 1 literal, then a match of 15 + 4 + 77 bytes at distance 1; 5 literals end the block.
        let stored = [0x1F, b'a', 1, 0, 77, 0x50, b'v', b'w', b'x', b'y', b'z'];
        let mut raw = [0u8; 102];
        Lz4Decoder.decode(&stored, &mut raw).unwrap();
        assert!(raw[..97].iter().all(|&byte| byte == b'a'));
        assert_eq!(&raw[97..], b"vwxyz");
    }

    #[test]
    fn the_state_is_as_large_as_promised() {
        for level in 1..=12 {
            let encoder = Lz4Encoder::new(level, 1);
            assert!(encoder.state.size_bytes() >= state_size_bytes(level));
            assert!(encoder.state.size_bytes() as u64 <= encoder_state_size_bytes(level));
            assert!(state_size_bytes(level) >= 16 * 1024, "the library answered nonsense");
        }
    }
}
