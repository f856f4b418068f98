//! The trailer of a stripe: footer and index, as found and under checksums that hold.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagehaul_engine::format::checksum::{crc32c, xxh3};
use pagehaul_engine::format::stripe::{
    FOOTER_BYTES, Footer, FrameIndex, INDEX_HEADER_BYTES, INDEX_MAGIC, STRIPE_HEADER_BYTES, StripeHeader,
};
use pagehaul_engine::terms::{SetId, StripeIndex};

fuzz_target!(|data: &[u8]| {
    if let Some((index, footer)) = data.len().checked_sub(FOOTER_BYTES).map(|at| data.split_at(at)) {
        as_found(index, footer);
        let mut footer = footer.to_vec();
        let sum = crc32c(&footer[..FOOTER_BYTES - 4]);
        footer[FOOTER_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        as_found(index, &footer);
    }
    index_with_good_sums(data);
});

fn as_found(index: &[u8], footer: &[u8]) {
    for before in [0, STRIPE_HEADER_BYTES as u64] {
        let size_bytes = before + (index.len() + footer.len()) as u64;
        if let Ok(footer) = Footer::from_bytes(footer, size_bytes) {
            let _ignored = FrameIndex::from_bytes(index, &footer);
        }
    }
}

/// An index made of the input's bytes, described by a footer that is right about everything but the entries.
fn index_with_good_sums(entries: &[u8]) {
    let header =
        StripeHeader { set_id: SetId([1; 16]), stripe: StripeIndex(0), stripe_count: 1, frame_size_bytes: 65_536 };
    let count = entries.len() / 8;
    let mut bytes = INDEX_MAGIC.to_vec();
    bytes.extend_from_slice(&(count as u64).to_le_bytes());
    bytes.extend_from_slice(entries);
    let stored = entries
        .chunks_exact(8)
        .map(|entry| 64 + u64::from(u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]])));
    let index_offset = STRIPE_HEADER_BYTES as u64 + stored.sum::<u64>();
    let footer = Footer { header, index_offset, index_size_bytes: bytes.len() as u64, index_xxh3: xxh3(&bytes) };
    if let Ok(index) = FrameIndex::from_bytes(&bytes, &footer) {
        let trailer = index.to_trailer(&header);
        assert_eq!(trailer[..trailer.len() - FOOTER_BYTES], bytes);
        assert_eq!(bytes.len(), INDEX_HEADER_BYTES + 8 * count);
        let size_bytes = index_offset + trailer.len() as u64;
        assert_eq!(Footer::from_bytes(&trailer[trailer.len() - FOOTER_BYTES..], size_bytes).ok(), Some(footer));
    }
}
