//! A bundle's header and table of members, as found and under checksums that hold; what reads is written back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagehaul_engine::format::checksum::crc32c;
use pagehaul_engine::format::stripe::{FrameIndex, IndexEntry};
use pagehaul_engine::format::wal_bundle::{BUNDLE_HEADER_BYTES, BundleHeader, MEMBERS_MAGIC, MemberTable};
use pagehaul_engine::terms::SetId;

fuzz_target!(|data: &[u8]| {
    header(data);
    table(data);
    let mut named = data.to_vec();
    if let Some(start) = named.get_mut(..10) {
        start[..8].copy_from_slice(&MEMBERS_MAGIC);
        start[8..].copy_from_slice(&[1, 0]);
        table(&named);
    }
});

fn header(data: &[u8]) {
    let Some(bytes) = data.get(..BUNDLE_HEADER_BYTES) else { return };
    let mut bytes = bytes.to_vec();
    bytes[..8].copy_from_slice(b"PHBUNDLE");
    let sum = crc32c(&bytes[..BUNDLE_HEADER_BYTES - 4]);
    bytes[BUNDLE_HEADER_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
    if let Ok(header) = BundleHeader::from_bytes(&bytes) {
        assert_eq!(header.to_bytes()[..], bytes);
    }
}

fn table(data: &[u8]) {
    let Ok(table) = MemberTable::from_bytes(data) else { return };
    assert_eq!(table.to_bytes().ok().as_deref(), Some(data));
    let header = BundleHeader { bundle_id: SetId([1; 16]), frame_size_bytes: 65_536 };
    let mut index = FrameIndex::default();
    let frames: u64 = table.members.iter().map(|member| u64::from(member.frame_count)).sum();
    for _ in 0..frames.min(5) + 1 {
        index.push(IndexEntry { stored_size_bytes: 1, raw_size_bytes: 65_536 });
    }
    let _ignored = table.check_frames(&index, 65_536);
    let frame = table.to_frame(&header, frames).expect("it reads, so it can be written");
    let _ignored = MemberTable::from_frame(&frame, &header, &index);
}
