//! Frames of the page codec: hostile ones fill exactly what they are given or fail, any content comes back whatever the
//! encoder is told of it and is taken apart without a failing proof, and a frame that was changed behind the encoder's back
//! leaves the decoder fit for the next one.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use pagehaul_page::{
    Attribute, Level, PageDecoder, PageEncoder, Part, RelationKind, RelationLayout, ValueType, page_checksum,
};

const FRAME_SIZE_BYTES: usize = 1 << 18;
/// Longer than what the encoder always tries as one text, too.
const LONG_FRAME_BYTES: usize = 128 << 10;

/// One of every effort that the encoder knows.
const LEVELS: [Level; 3] = [Level::FAST, Level::DEFAULT, Level::MAX];

thread_local! {
    // Kept, as in a run: what one frame leaves behind must not reach the next one.
    static ENCODERS: RefCell<[PageEncoder; 3]> =
        RefCell::new(LEVELS.map(|level| PageEncoder::new(level, FRAME_SIZE_BYTES).expect("memory")));
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
    let _ = DECODER.with_borrow_mut(|decoder| decoder.decode(frame, &mut raw[..raw_length]));
    assert!(raw[raw_length..].iter().all(|byte| *byte == 0xA5));
}

/// Parts of what `input` says, changes to the frame if the mode says so, then content.
fn round_trip(input: &[u8], mode: u8, first_page: u32) {
    let mut input = input;
    let count = usize::from(mode >> 6) + 1;
    let Some(layouts) = (0..count).map(|_| read_layout(&mut input)).collect::<Option<Vec<_>>>() else { return };
    let changes = if mode & 16 == 0 { Vec::new() } else { read_changes(&mut input) };
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
    if mode & 32 != 0 {
        raw.resize(raw.len().max(LONG_FRAME_BYTES), 0);
    }
    let mut stored = vec![0; raw.len() * 2 + 4096];
    let level = first_page as usize % LEVELS.len();
    ENCODERS.with_borrow_mut(|encoders| {
        let length = encoders[level].encode(&raw, &parts, &mut stored);
        stored.truncate(length.expect("it is small enough").expect("it hardly grows"));
        assert_eq!(encoders[level].not_proven(), 0, "what was taken apart did not come back");
    });
    if !changes.is_empty() {
        decode_changed(stored.clone(), &changes, &raw);
    }
    let mut back = vec![0xA5; raw.len()];
    let decoded = DECODER.with_borrow_mut(|decoder| decoder.decode(&stored, &mut back));
    assert!(decoded.is_ok() && back == raw, "{decoded:?}");
}

/// Decodes `stored` with bytes in other places than where the encoder left them: this gets behind every check that the
/// fuzzer itself would hardly satisfy.
fn decode_changed(mut stored: Vec<u8>, changes: &[(usize, u8)], raw: &[u8]) {
    let digest_before = stored.get(1..9).map(<[u8]>::to_vec);
    for &(at, value) in changes {
        let length = stored.len();
        stored[at % length] ^= value;
    }
    let mut back = vec![0xA5; raw.len()];
    let decoded = DECODER.with_borrow_mut(|decoder| decoder.decode(&stored, &mut back));
    if decoded.is_ok() && stored.get(1..9).map(<[u8]>::to_vec) == digest_before {
        assert!(back == raw, "other bytes with the digest of the right ones");
    }
}

/// Up to 15 places with what is changed there.
fn read_changes(input: &mut &[u8]) -> Vec<(usize, u8)> {
    let Some((&count, mut rest)) = input.split_first() else { return Vec::new() };
    let mut changes = Vec::new();
    for _ in 0..count & 15 {
        let Some((&[low, high, value], behind)) = rest.split_first_chunk::<3>() else { break };
        rest = behind;
        changes.push((usize::from(u16::from_le_bytes([low, high])), value));
    }
    *input = rest;
    changes
}

/// Size and checksum of all pages, so that what is behind them is looked at.
fn mend(raw: &mut [u8], parts: &[Part<'_>]) {
    for part in parts {
        let size = part.layout.page_size_bytes as usize;
        let content = raw.get_mut(part.start..part.start + part.length).filter(|_| size >= 4096);
        let Some(content) = content else { continue };
        if part.layout.kind == RelationKind::Wal {
            mend_wal(content, size);
            continue;
        }
        for (page, block) in content.chunks_exact_mut(size).zip(0..) {
            page[18..20].copy_from_slice(&(size as u16 + 4).to_le_bytes());
            let checksum = page_checksum(page, part.first_page.wrapping_add(block));
            page[8..10].copy_from_slice(&checksum.to_le_bytes());
        }
    }
}

/// Headers of pages as servers write them, so that records are looked for; their CRCs need not be right.
fn mend_wal(content: &mut [u8], size: usize) {
    for (page, number) in content.chunks_exact_mut(size).zip(0u64..) {
        page[..2].copy_from_slice(&0xD116u16.to_le_bytes());
        page[3] = 0;
        page[8..16].copy_from_slice(&((1 << 32) + number * size as u64).to_le_bytes());
        page[17..20].fill(0);
    }
}

/// Kind (in bits 0, 1 and 4) and page size in one byte, the count of columns in the next, then two bytes a column.
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
    let kind = RelationKind::from_u8(packed & 3 | packed >> 2 & 4)?;
    Some(RelationLayout { kind, page_size_bytes, attributes })
}
