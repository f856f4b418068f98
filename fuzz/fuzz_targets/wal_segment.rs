//! WAL segments: fed in pieces of any size; the verdict must not depend on how the bytes were cut.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagehaul_engine::source::postgres::wal::{WalExpectation, WalSegmentCheck, page_magic};
use pagehaul_engine::terms::{Lsn, TimelineId};

const SEGMENT_SIZE_BYTES: u64 = 4096;
const BLOCK_SIZE_BYTES: u32 = 512;

fuzz_target!(|data: &[u8]| {
    let Some(([major, timeline, step, patch, start @ ..], bytes)) = data.split_first_chunk::<12>() else { return };
    let expectation = WalExpectation {
        major: 12 + u32::from(*major % 8),
        system_identifier: 7,
        segment_size_bytes: SEGMENT_SIZE_BYTES,
        block_size_bytes: BLOCK_SIZE_BYTES,
        timeline: TimelineId(u32::from(*timeline)),
    };
    // A WAL position is far below the end of its 64 bits: at a terabyte a day it takes fifty thousand years.
    let start = Lsn(u64::from_le_bytes(*start) >> 8);
    let mut bytes = bytes.to_vec();
    if patch & 1 == 1 {
        make_plausible(&mut bytes, &expectation, start, *patch);
    }
    let whole = verdict(&expectation, start, &bytes, bytes.len().max(1));
    let pieces = verdict(&expectation, start, &bytes, usize::from(*step).max(1));
    assert_eq!(whole, pieces);
});

fn verdict(expectation: &WalExpectation, start: Lsn, bytes: &[u8], step: usize) -> Option<String> {
    let mut check = match WalSegmentCheck::new(*expectation, start, Lsn(u64::MAX)) {
        Ok(check) => check,
        Err(error) => return Some(error.message()),
    };
    for piece in bytes.chunks(step) {
        if let Err(error) = check.feed(piece) {
            return Some(error.message());
        }
    }
    check.finish().err().map(|error| error.message())
}

/// Puts headers into the input that are right but for what the input's own bits say, to get behind the first check.
fn make_plausible(bytes: &mut Vec<u8>, expectation: &WalExpectation, start: Lsn, patch: u8) {
    if patch & 2 == 2 {
        bytes.resize(SEGMENT_SIZE_BYTES as usize, 0);
    }
    let magic = page_magic(expectation.major).unwrap_or(0);
    let first = start.0 / SEGMENT_SIZE_BYTES * SEGMENT_SIZE_BYTES;
    for (number, page) in bytes.chunks_mut(BLOCK_SIZE_BYTES as usize).enumerate() {
        let Some(header) = page.get_mut(..40) else { return };
        header[..2].copy_from_slice(&magic.to_le_bytes());
        header[8..16].copy_from_slice(&(first + number as u64 * u64::from(BLOCK_SIZE_BYTES)).to_le_bytes());
        if number == 0 {
            header[2] |= 2;
            header[24..32].copy_from_slice(&expectation.system_identifier.to_le_bytes());
            header[32..36].copy_from_slice(&(SEGMENT_SIZE_BYTES as u32).to_le_bytes());
            header[36..40].copy_from_slice(&BLOCK_SIZE_BYTES.to_le_bytes());
        }
        if patch & 4 == 4 {
            header[2..8].copy_from_slice(&[u8::from(number == 0) * 2, 0, expectation.timeline.0 as u8, 0, 0, 0]);
        }
    }
}
