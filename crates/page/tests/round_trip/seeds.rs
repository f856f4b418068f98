//! Inputs to begin with for the fuzz target `page_frame`.

use std::path::Path;

use pagehaul_page::RelationLayout;

use crate::btree::Index;
use crate::frames::{Codec, Content};
use crate::gist::GistIndex;
use crate::hash::HashIndex;
use crate::heap::Table;
use crate::random::Random;

/// What the target reads as a layout.
fn layout(layout: &RelationLayout) -> Vec<u8> {
    let size = layout.page_size_bytes.trailing_zeros() as u8 - 12;
    let mut bytes = vec![layout.kind as u8 | size << 2, layout.attributes.len() as u8];
    for attribute in &layout.attributes {
        let alignment = attribute.alignment.trailing_zeros() as u8;
        bytes.extend_from_slice(&[attribute.value_type as u8 | alignment << 3, attribute.length as u8]);
    }
    bytes
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    let mut codec = Codec::new(2);
    for number in 0..12_u64 {
        let mut random = Random::new(number);
        let mut content = Content::default();
        let kind = if number == 8 {
            let mut index = HashIndex::new(4096, true);
            content.push(index.layout(), 7, 1, |block| index.bucket(&mut random, block));
            "hash"
        } else if number == 9 {
            let mut index = GistIndex::any(&mut random, 4096);
            content.push(index.layout(), 7, 1, |block| index.leaf(&mut random, block));
            "gist"
        } else if number % 2 == 0 {
            let mut table = Table::any(&mut random, 4096, 8);
            content.push(table.layout(), 7, 1, |block| table.page(&mut random, block));
            "heap"
        } else {
            let mut index = Index::any(&mut random, 4096);
            content.push(index.layout(), 7, 1, |block| index.any_page(&mut random, block));
            "btree"
        };
        // Mode and first page, or mode and length of the content.
        let mut whole = vec![1, 7, 0];
        whole.extend_from_slice(&layout(&content.parts[0].layout));
        whole.extend_from_slice(&content.raw);
        seeds.push((format!("content-{kind}-{number}"), whole));
        let mut frame = vec![0];
        frame.extend_from_slice(&(content.raw.len() as u16).to_le_bytes());
        frame.extend_from_slice(&codec.encode(&content));
        seeds.push((format!("frame-{kind}-{number}"), frame));
    }
    seeds
}

/// Writes them anew if `PAGEHAUL_WRITE_FUZZ_SEEDS` is set: to be done when frames change.
#[test]
fn fuzz_seeds_are_written() {
    if std::env::var_os("PAGEHAUL_WRITE_FUZZ_SEEDS").is_none() {
        eprintln!("skipped: PAGEHAUL_WRITE_FUZZ_SEEDS is not set");
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/page_frame");
    std::fs::create_dir_all(&folder).unwrap();
    for (name, bytes) in seeds() {
        std::fs::write(folder.join(name), bytes).unwrap();
    }
}
