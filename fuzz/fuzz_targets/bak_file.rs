//! A whole backup file: every checksum of it that stands in a header is mended, so that what is behind it is reached.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagehaul_bak::bytes::BakFile;
use pagehaul_bak::checksum::header_sum;
use pagehaul_bak::inspect::inspect;
use pagehaul_bak::mtf::BlockKind;
use pagehaul_bak::verify::{VerifySettings, verify};

fuzz_target!(|data: &[u8]| {
    look(data.to_vec());
    look(mended(data.to_vec()));
});

fn look(bytes: Vec<u8>) {
    let file = [BakFile::in_memory("fuzz", bytes)];
    let report = verify(&file, VerifySettings { threads: 1 }, &mut |_| Ok(()));
    let inspected = inspect(&file);
    if let (Ok(report), Ok(inspected)) = (report, inspected) {
        // What verifying finds sound, inspecting has nothing to say against.
        assert!(!report.sound || inspected.damage.is_empty());
    }
}

/// Whatever looks like a block or a stream gets a right checksum.
fn mended(mut bytes: Vec<u8>) -> Vec<u8> {
    for at in (0..bytes.len().saturating_sub(52)).step_by(4) {
        let tag = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        let covered = if BlockKind::from_tag(tag).is_some() {
            50
        } else if matches!(&tag, b"SPAD" | b"APAD" | b"RAID" | b"MQCI" | b"MQDA" | b"MQTL" | b"CSUM" | b"TSMP" | b"OTCP") {
            20
        } else {
            continue;
        };
        let sum = header_sum(&bytes[at..at + covered]);
        bytes[at + covered..at + covered + 2].copy_from_slice(&sum.to_le_bytes());
    }
    bytes
}
