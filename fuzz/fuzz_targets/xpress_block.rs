//! XPRESS blocks: a decoder fills exactly what it is given or fails, within the block; what is encoded comes back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagehaul_engine::codec::xpress::{BLOCK_SIZE_BYTES_MAX, DecodeState, EncodeState, decode_block, encode_block};

fuzz_target!(|data: &[u8]| {
    let Some(([low, high], rest)) = data.split_first_chunk::<2>() else { return };
    let raw_length = usize::from(u16::from_le_bytes([*low, *high])) + 1;
    hostile(rest, raw_length);
    // Any bytes behind code lengths that are a code: all symbols with 9 bits.
    hostile(&[&[0x99; 256][..], rest].concat(), raw_length);
    for level in [1, 2] {
        round_trip(level, &rest[..rest.len().min(BLOCK_SIZE_BYTES_MAX)]);
    }
});

fn hostile(stored: &[u8], raw_length: usize) {
    // Bytes behind the output that nobody may touch.
    let mut raw = vec![0xA5u8; raw_length + 64];
    if let Ok(used) = decode_block(stored, &mut raw[..raw_length], &mut DecodeState::new()) {
        assert!(used <= stored.len());
    }
    assert!(raw[raw_length..].iter().all(|byte| *byte == 0xA5));
}

fn round_trip(level: i32, content: &[u8]) {
    let mut stored = vec![0u8; content.len() * 2 + 1024];
    let Some(length) = encode_block(content, &mut stored, &mut EncodeState::new(level)) else {
        assert!(content.is_empty(), "it fits");
        return;
    };
    let mut back = vec![0u8; content.len()];
    let used = decode_block(&stored[..length], &mut back, &mut DecodeState::new());
    assert!(used.is_ok_and(|used| used == length) && back == content, "level {level}");
    // One byte less than it takes is too little.
    assert!(encode_block(content, &mut stored[..length - 1], &mut EncodeState::new(level)).is_none());
}
