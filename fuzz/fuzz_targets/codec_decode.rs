//! Decoders on hostile input, and round trips: a decoder fills exactly what it is given or fails.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagehaul_engine::codec::{CodecId, CodecSpec, DeflateEngine, new_decoder, new_deflate_decoder, new_encoder};

fuzz_target!(|data: &[u8]| {
    let Some(([low, high], stored)) = data.split_first_chunk::<2>() else { return };
    let raw_length = usize::from(u16::from_le_bytes([*low, *high]));
    for codec in CodecId::ALL {
        hostile(codec, stored, raw_length);
        round_trip(codec, stored);
    }
    if let Ok(mut decoder) = new_deflate_decoder(DeflateEngine::Libdeflate) {
        let mut raw = vec![0u8; raw_length];
        let _verdict = decoder.decode(stored, &mut raw);
    }
});

fn hostile(codec: CodecId, stored: &[u8], raw_length: usize) {
    let Ok(mut decoder) = new_decoder(codec) else { return };
    // Bytes behind the output that nobody may touch.
    let mut raw = vec![0xA5u8; raw_length + 64];
    let _verdict = decoder.decode(stored, &mut raw[..raw_length]);
    assert!(raw[raw_length..].iter().all(|byte| *byte == 0xA5));
}

fn round_trip(codec: CodecId, content: &[u8]) {
    let spec = CodecSpec::default_of(codec);
    let Ok(mut encoder) = new_encoder(spec, content.len().max(1)) else { panic!("no encoder for {spec}") };
    let mut stored = vec![0u8; content.len() + content.len() / 8 + 256];
    let Ok(Some(length)) = encoder.encode(content, &mut stored) else { return };
    let mut back = vec![0u8; content.len()];
    let decoded = new_decoder(codec).and_then(|mut decoder| decoder.decode(&stored[..length], &mut back));
    assert!(decoded.is_ok() && back == content, "{codec}");
}
