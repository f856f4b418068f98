//! Frame and stripe headers: what reads must be written back the same; nothing panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagehaul_engine::format::checksum::crc32c;
use pagehaul_engine::format::frame::{FRAME_HEADER_BYTES, FrameHeader};
use pagehaul_engine::format::stripe::{STRIPE_HEADER_BYTES, StripeHeader};

fuzz_target!(|data: &[u8]| {
    check(data);
    // The same bytes under a checksum that holds, so that the checks behind it are reached.
    for length in [FRAME_HEADER_BYTES, STRIPE_HEADER_BYTES] {
        let mut bytes = data.to_vec();
        bytes.resize(length, 0);
        let sum = crc32c(&bytes[..length - 4]);
        bytes[length - 4..].copy_from_slice(&sum.to_le_bytes());
        check(&bytes);
    }
});

fn check(bytes: &[u8]) {
    if let Ok(header) = FrameHeader::from_bytes(bytes) {
        assert_eq!(header.to_bytes(), bytes[..FRAME_HEADER_BYTES]);
    }
    if let Ok(header) = StripeHeader::from_bytes(bytes) {
        assert_eq!(header.to_bytes(), bytes[..STRIPE_HEADER_BYTES]);
    }
}
