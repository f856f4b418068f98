//! Records of a compressed backup file: header, checksum, content; the checksum is mended.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagehaul_bak::checksum::chunk_sum;
use pagehaul_bak::container::{RECORD_HEADER_BYTES, RecordHeader, decode_chunk, recognize};
use pagehaul_engine::codec::xpress::DecodeState;

fuzz_target!(|data: &[u8]| {
    let _is_container = recognize(data);
    let Some((head, stored)) = data.split_at_checked(RECORD_HEADER_BYTES) else { return };
    let Ok(header) = RecordHeader::parse(head) else { return };
    assert!(header.raw_size_bytes <= 65_536 && header.stored_size_bytes <= 65_535);
    let Some(chunk) = stored.get(..header.stored_size_bytes) else { return };
    let header = RecordHeader { stored_sum: chunk_sum(chunk), ..header };
    // Bytes behind the output that nobody may touch.
    let mut raw = vec![0xa5; header.raw_size_bytes + 64];
    let (inside, _) = raw.split_at_mut(header.raw_size_bytes);
    let _verdict = decode_chunk(header, stored, inside, &mut DecodeState::new());
    assert!(raw[header.raw_size_bytes..].iter().all(|byte| *byte == 0xa5));
});
