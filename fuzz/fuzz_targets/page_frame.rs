//! Frames of the page codec: hostile ones fill exactly what they are given or fail, and any content comes back whatever the
//! encoder is told of it.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use pagehaul_page::{
    Attribute, Level, PageDecoder, PageEncoder, Part, RelationKind, RelationLayout, ValueType, page_checksum,
};

const FRAME_SIZE_BYTES: usize = 1 << 18;

thread_local! {
    // Kept, as in a run: what one frame leaves behind must not reach the next one.
    static ENCODER: RefCell<PageEncoder> = RefCell::new(PageEncoder::new(Level::FAST, FRAME_SIZE_BYTES).expect("memory"));
    static DECODER: RefCell<PageDecoder> = RefCell::new(PageDecoder::new().expect("memory"));
}

fuzz_target!(|data: &[u8]| {
    let Some((&[mode, low, high], rest)) = data.split_first_chunk::<3>() else { return };
    let number = usize::from(u16::from_le_bytes([low, high]));
    if mode & 1 == 0 {
        hostile(rest, number);
    } else {
        round_trip(rest, mode, number as u32);
    }
});

/// `frame` as it is, for `raw_length` bytes of content; the digest hides nothing, since it is compared last.
fn hostile(frame: &[u8], raw_length: usize) {
    let mut raw = vec![0xA5; raw_length + 64];
    DECODER.with_borrow_mut(|decoder| drop(decoder.decode(frame, &mut raw[..raw_length])));
    assert!(raw[raw_length..].iter().all(|byte| *byte == 0xA5));
}

/// Parts of what `input` says, then content.
fn round_trip(input: &[u8], mode: u8, first_page: u32) {
    let mut input = input;
    let count = usize::from(mode >> 6) + 1;
    let Some(layouts) = (0..count).map(|_| read_layout(&mut input)).collect::<Option<Vec<_>>>() else { return };
    let mut raw = input[..input.len().min(FRAME_SIZE_BYTES)].to_vec();
    let share = raw.len() / count;
    let mut parts = Vec::new();
    for (layout, number) in layouts.iter().zip(0..) {
        // One bit of the mode lets parts overlap, another leaves gaps.
        let start = (number * share + usize::from(mode >> 1 & 1) * 8).saturating_sub(usize::from(mode >> 2 & 1) * 16);
        let length = if number + 1 == count { raw.len().saturating_sub(start) } else { share };
        parts.push(Part { start, length, first_page, layout });
    }
    if mode & 8 != 0 {
        mend(&mut raw, &parts);
    }
    let mut stored = vec![0; raw.len() * 2 + 4096];
    let length = ENCODER.with_borrow_mut(|encoder| encoder.encode(&raw, &parts, &mut stored));
    let length = length.expect("it is small enough").expect("it hardly grows");
    let mut back = vec![0xA5; raw.len()];
    let decoded = DECODER.with_borrow_mut(|decoder| decoder.decode(&stored[..length], &mut back));
    assert!(decoded.is_ok() && back == raw, "{decoded:?}");
}

/// Size and checksum of all pages, so that what is behind them is looked at.
fn mend(raw: &mut [u8], parts: &[Part<'_>]) {
    for part in parts {
        let size = part.layout.page_size_bytes as usize;
        let Some(content) = raw.get_mut(part.start..part.start + part.length).filter(|_| size >= 4096) else { continue };
        for (page, block) in content.chunks_exact_mut(size).zip(0..) {
            page[18..20].copy_from_slice(&(size as u16 + 4).to_le_bytes());
            let checksum = page_checksum(page, part.first_page.wrapping_add(block));
            page[8..10].copy_from_slice(&checksum.to_le_bytes());
        }
    }
}

/// Kind and page size in one byte, the count of columns in the next, then two bytes a column.
fn read_layout(input: &mut &[u8]) -> Option<RelationLayout> {
    let (&[packed, count], mut rest) = input.split_first_chunk::<2>()?;
    let mut attributes = Vec::new();
    for _ in 0..count & 63 {
        let (&[packed, length], behind) = rest.split_first_chunk::<2>()?;
        rest = behind;
        let value_type = ValueType::from_u8(packed & 7)?;
        attributes.push(Attribute { value_type, length: i16::from(length as i8), alignment: 1 << (packed >> 3 & 3) });
    }
    *input = rest;
    let page_size_bytes = 4096 << (packed >> 2 & 3);
    Some(RelationLayout { kind: RelationKind::from_u8(packed & 3)?, page_size_bytes, attributes })
}
