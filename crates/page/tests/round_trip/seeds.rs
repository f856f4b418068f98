//! Inputs to begin with for the fuzz target `page_frame`.

use std::path::Path;

use pagehaul_page::{RelationLayout, ValueType};

use crate::btree::Index;
use crate::frames::{Codec, Content, OwnedPart};
use crate::gin::GinIndex;
use crate::gist::GistIndex;
use crate::hash::HashIndex;
use crate::heap::Table;
use crate::random::Random;
use crate::real::real_files;
use crate::spgist::SpGistIndex;
use crate::values::{Column, Habit, attribute};

/// What the target reads as a layout.
fn layout(layout: &RelationLayout) -> Vec<u8> {
    let size = layout.page_size_bytes.trailing_zeros() as u8 - 12;
    let kind = layout.kind as u8;
    let mut bytes = vec![kind & 3 | (kind & 4) << 2 | size << 2, layout.attributes.len() as u8];
    for attribute in &layout.attributes {
        let alignment = attribute.alignment.trailing_zeros() as u8;
        bytes.extend_from_slice(&[attribute.value_type as u8 | alignment << 3, attribute.length as u8]);
    }
    bytes
}

/// Pages and their frame, as the target reads them.
fn both_seeds(codec: &mut Codec, name: &str, content: &Content) -> [(String, Vec<u8>); 2] {
    let part = &content.parts[0];
    // Mode and first page, or mode and length of the content.
    let mut whole = vec![1, part.first_page as u8, (part.first_page >> 8) as u8];
    whole.extend_from_slice(&layout(&part.layout));
    whole.extend_from_slice(&content.raw);
    let mut frame = vec![0];
    frame.extend_from_slice(&(content.raw.len() as u16).to_le_bytes());
    frame.extend_from_slice(&codec.encode(content));
    [(format!("content-{name}"), whole), (format!("frame-{name}"), frame)]
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    let mut codec = Codec::of_all_streams();
    for number in 0..16_u64 {
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
        } else if number == 10 {
            let mut index = GinIndex::any(&mut random, 4096);
            content.push(index.layout(), 7, 1, |block| index.leaf(&mut random, block));
            "gin"
        } else if number == 11 {
            let mut index = SpGistIndex::any(&mut random, 4096);
            content.push(index.layout(), 7, 1, |block| index.leaf(&mut random, block));
            "spgist"
        } else if number >= 14 {
            let habit = if number == 14 { Habit::PackedChunks } else { Habit::Packed };
            let columns = vec![Column { attribute: attribute(ValueType::Varlena, -1, 4), habit, null_percent: 0 }];
            let mut table = Table::new(8192, columns);
            content.push(table.layout(), 7, 7, |block| table.page(&mut random, block));
            "packed"
        } else if number % 2 == 0 {
            let mut table = Table::any(&mut random, 4096, 8);
            content.push(table.layout(), 7, 1, |block| table.page(&mut random, block));
            "heap"
        } else {
            let mut index = Index::any(&mut random, 4096);
            content.push(index.layout(), 7, 1, |block| index.any_page(&mut random, block));
            "btree"
        };
        seeds.extend(both_seeds(&mut codec, &format!("{kind}-{number}"), &content));
    }
    seeds
}

/// Pages at the beginning and in the middle of the files that a list names, as far as the target can say their layouts.
fn real_seeds(list: &str) -> Vec<(String, Vec<u8>)> {
    let mut codec = Codec::of_all_streams();
    let mut seeds = Vec::new();
    for (number, (path, first_page, layout)) in real_files(list).enumerate() {
        let Ok(file) = std::fs::read(path) else { continue };
        let page_bytes = layout.page_size_bytes as usize;
        let pages = file.len() / page_bytes;
        // The target tells the length of content in two bytes.
        let is_too_large = page_bytes * 7 > usize::from(u16::MAX);
        if pages == 0
            || is_too_large
            || layout.attributes.len() > 63
            || layout.attributes.iter().any(|one| one.length > 127)
        {
            continue;
        }
        for (page, count) in [(0, 1), (pages / 2, 2), (pages / 3, 7)] {
            let raw = file[page * page_bytes..(page + count).min(pages) * page_bytes].to_vec();
            let (length, first_page, layout) = (raw.len(), first_page + page as u32, layout.clone());
            let content = Content { raw, parts: vec![OwnedPart { start: 0, length, first_page, layout }] };
            seeds.extend(both_seeds(&mut codec, &format!("real-{number}-{count}"), &content));
        }
    }
    seeds
}

/// Writes them anew if `PAGEHAUL_WRITE_FUZZ_SEEDS` is set: to be done when frames change. What `PAGEHAUL_PAGE_FILES` gives
/// besides goes to where a run keeps its inputs, not to the seeds that everybody gets.
#[test]
fn fuzz_seeds_are_written() {
    if std::env::var_os("PAGEHAUL_WRITE_FUZZ_SEEDS").is_none() {
        eprintln!("skipped: PAGEHAUL_WRITE_FUZZ_SEEDS is not set");
        return;
    }
    let write = |folder: &str, seeds: Vec<(String, Vec<u8>)>| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz").join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        for (name, bytes) in seeds {
            std::fs::write(folder.join(name), bytes).unwrap();
        }
    };
    write("seeds/page_frame", seeds());
    if let Some(list) = std::env::var_os("PAGEHAUL_PAGE_FILES") {
        write("corpus/page_frame", real_seeds(&std::fs::read_to_string(list).unwrap()));
    }
}
