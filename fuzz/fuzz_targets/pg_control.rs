//! pg_control: as found, and under a checksum that holds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagehaul_engine::format::checksum::crc32c;
use pagehaul_engine::source::postgres::control_file::{ParsedControlFile, parse};

fuzz_target!(|data: &[u8]| {
    let _as_found = parse(data);
    for (version, crc_offset) in [(1300u32, 288), (1700, 288), (1800, 292)] {
        let mut bytes = data.to_vec();
        bytes.resize(bytes.len().max(crc_offset + 4), 0);
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        let sum = crc32c(&bytes[..crc_offset]);
        bytes[crc_offset..crc_offset + 4].copy_from_slice(&sum.to_le_bytes());
        if let Ok(parsed) = parse(&bytes) {
            let ParsedControlFile::Sound(control) = parsed else { panic!("the checksum holds") };
            assert!(control.block_size_bytes.is_power_of_two() && control.segment_blocks > 0);
        }
    }
});
