//! Records of WAL, fed in pieces of any size: what is found must not depend on how the bytes were cut. And histories.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagehaul_engine::source::postgres::timeline_history;
use pagehaul_engine::source::postgres::wal_records::{WalPlace, WalWalker};
use pagehaul_engine::terms::{Lsn, TimelineId, WalFacts};

const BLOCK_SIZE_BYTES: u32 = 1024;

fuzz_target!(|data: &[u8]| {
    let Some(([step, patch, timeline], bytes)) = data.split_first_chunk::<3>() else { return };
    if let Ok(history) = timeline_history::parse(TimelineId(u32::from(*timeline)), bytes) {
        assert!(history.parent().is_some());
    }
    let start = Lsn(5 << 20);
    let mut bytes = bytes.to_vec();
    if patch & 1 == 1 {
        for (number, page) in bytes.chunks_mut(BLOCK_SIZE_BYTES as usize).enumerate() {
            let Some(header) = page.get_mut(..16) else { break };
            header[..2].copy_from_slice(&0xD116u16.to_le_bytes());
            header[2] &= 0x0F;
            header[3] = 0;
            header[8..].copy_from_slice(&(start.0 + number as u64 * u64::from(BLOCK_SIZE_BYTES)).to_le_bytes());
        }
    }
    let whole = walk(start, &bytes, bytes.len().max(1));
    assert_eq!(whole, walk(start, &bytes, usize::from(*step).max(1)));
});

fn walk(start: Lsn, bytes: &[u8], step: usize) -> WalFacts {
    let place = WalPlace { start, page_magic: 0xD116, block_size_bytes: BLOCK_SIZE_BYTES, segment_size_bytes: 1 << 20 };
    let mut walker = WalWalker::new(place);
    bytes.chunks(step).for_each(|piece| walker.feed(piece));
    walker.finish()
}
