//! Blocks of the specification, of real backups, and damaged ones.

use super::*;
use crate::error::ErrorKind;

/// A block of code lengths by symbol and the bytes behind them.
fn block(lengths: &[(usize, u8)], codes: &[u8]) -> Vec<u8> {
    let mut stored = vec![0; 256];
    for &(symbol, len) in lengths {
        stored[symbol / 2] |= len << (symbol % 2 * 4);
    }
    stored.extend_from_slice(codes);
    stored
}

/// The examples for LZ77 + Huffman in MS-XCA, section 3.2.
fn specification_examples() -> [(Vec<u8>, Vec<u8>); 2] {
    let mut letters: Vec<(usize, u8)> = (b'a'..=b'v').map(|letter| (usize::from(letter), 5)).collect();
    letters.extend((b'w'..=b'z').map(|letter| (usize::from(letter), 4)));
    letters.push((256, 4));
    let codes =
        [0xD8, 0x52, 0x3E, 0xD7, 0x94, 0x11, 0x5B, 0xE9, 0x19, 0x5F, 0xF9, 0xD6, 0x7C, 0xDF, 0x8D, 0x04, 0, 0, 0, 0];
    let repeated = [(97, 3), (98, 3), (99, 2), (256, 2), (287, 2)];
    [
        (block(&letters, &codes), (b'a'..=b'z').collect()),
        (block(&repeated, &[0xA8, 0xDC, 0, 0, 0xFF, 0x26, 0x01]), b"abc".repeat(100)),
    ]
}

/// Decodes into exactly `raw_len` bytes.
fn decode(stored: &[u8], raw_len: usize) -> crate::error::Result<(Vec<u8>, usize)> {
    let mut raw = vec![0xEE; raw_len];
    let used = decode_block(stored, &mut raw, &mut DecodeState::new())?;
    Ok((raw, used))
}

#[test]
fn the_examples_of_the_specification_decode() {
    for (stored, raw) in specification_examples() {
        assert_eq!(decode(&stored, raw.len()).unwrap(), (raw.clone(), stored.len()));
        // What follows the block is not of the block.
        let longer = [&stored[..], &[0xFF; 40]].concat();
        assert_eq!(decode(&longer, raw.len()).unwrap(), (raw, stored.len()));
    }
}

#[test]
fn a_block_cut_short_is_damage_with_its_place() {
    for (stored, raw) in specification_examples() {
        // Without the symbol at the end the first example needs one unit less.
        let needed = if raw.len() == 26 { stored.len() - 2 } else { stored.len() };
        for len in 0..needed {
            let error = decode(&stored[..len], raw.len()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Damage, "{len}");
            assert!(error.message().contains("stored byte"), "{error}");
        }
    }
}

#[test]
fn code_lengths_that_are_no_code_are_damage() {
    for lengths in [&[][..], &[(97, 1)], &[(97, 1), (98, 2)], &[(97, 1), (98, 1), (99, 1)], &[(1, 15), (2, 15)]] {
        let error = decode(&block(lengths, &[0; 8]), 3).unwrap_err();
        assert!(error.message().contains("not a complete prefix code"), "{error}");
    }
}

#[test]
fn matches_outside_the_block_are_damage() {
    // a = 0, match = 1; the match of symbol 272 + class has one bit of distance: 2 or 3.
    let with_match = |symbol, codes: &[u8]| block(&[(97, 1), (symbol, 1)], codes);
    let cases = [
        // First a, then 3 bytes from 3 before.
        (with_match(272, &[0, 0b0110_0000, 0, 0]), 4, "reaches back 3 bytes"),
        // First a, then 7 bytes from 1 before, where 6 fit.
        (with_match(260, &[0, 0b0100_0000, 0, 0]), 7, "a match of 7 bytes runs past its end"),
        // A length in two bytes that one byte could have held, and one of 4 GiB.
        (with_match(271, &[0, 0b0100_0000, 0, 0, 255, 14, 0]), 60, "said to have 17 bytes"),
        (with_match(271, &[0, 0b0100_0000, 0, 0, 255, 0, 0, 255, 255, 255, 255]), 60, "4294967298 bytes runs past"),
        (with_match(271, &[0, 0b0100_0000, 0, 0, 255, 0, 0, 255]), 60, "ends too early"),
    ];
    for (stored, raw_len, expected) in cases {
        let error = decode(&stored, raw_len).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damage);
        assert!(error.message().contains(expected), "{error}");
    }
}

#[test]
fn long_lengths_of_every_form_are_read() {
    let cases: [(&[u8], usize); 5] = [
        (&[0], 18),
        (&[254], 272),
        (&[255, 0x0F, 0], 18),
        (&[255, 0xFC, 0xFF], 0xFFFF),
        (&[255, 0, 0, 0x08, 0x01, 0, 0], 267),
    ];
    for (bytes, len) in cases {
        let stored = block(&[(97, 1), (271, 1)], &[&[0, 0b0100_0000, 0, 0], bytes].concat());
        assert_eq!(decode(&stored, 1 + len).unwrap(), (vec![97; 1 + len], stored.len()), "{len}");
    }
}

#[test]
fn a_block_holds_64_kib_at_most() {
    let (stored, _) = &specification_examples()[0];
    let error = decode(stored, BLOCK_SIZE_BYTES_MAX + 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damage);
    assert!(error.message().contains("more than the 65536 of a block"), "{error}");
}

/// The chunks of a `MSSQLBAK` file of one backup set: stored bytes and raw length.
fn chunks_of(file: &[u8]) -> Vec<(&[u8], usize)> {
    const HEADER_SIZE_BYTES: usize = 28;
    let mut chunks = Vec::new();
    let mut at = 0x1E0;
    while at + HEADER_SIZE_BYTES <= file.len() {
        if file[at] != 0x21 || file[at + 1] == 0 {
            // Zeroes up to a block border, or a plain block between two groups of chunks.
            at = (at + 1).next_multiple_of(512);
            continue;
        }
        let raw_len = usize::from(file[at + 1]) * 512;
        let stored_len = usize::from(u16::from_le_bytes([file[at + 2], file[at + 3]]));
        let stored = &file[at + HEADER_SIZE_BYTES..][..stored_len];
        chunks.push((stored, raw_len));
        at += HEADER_SIZE_BYTES + stored_len;
    }
    chunks
}

/// The compressed sample, if the samples are here.
fn sample_file() -> Option<Vec<u8>> {
    let Some(directory) = std::env::var_os("PAGEHAUL_TEST_BAK_SAMPLES") else {
        eprintln!("skipped: PAGEHAUL_TEST_BAK_SAMPLES names no directory with real .bak files");
        return None;
    };
    Some(std::fs::read(std::path::Path::new(&directory).join("tutorialdb-2016-full-compressed.bak")).unwrap())
}

#[test]
fn chunks_of_a_real_backup_decode_and_end_where_they_should() {
    let Some(file) = sample_file() else { return };
    let chunks = chunks_of(&file);
    assert_eq!(chunks.len(), 54);
    let mut state = DecodeState::new();
    let mut stream = Vec::new();
    for (number, (stored, raw_len)) in chunks.into_iter().enumerate() {
        let mut raw = vec![0xEE; raw_len];
        let used = decode_block(stored, &mut raw, &mut state).unwrap_or_else(|error| panic!("{number}: {error}"));
        assert_eq!(used, stored.len(), "chunk {number}");
        stream.extend_from_slice(&raw);
    }
    // The stream of the tape format within: descriptor blocks and the pages of the data file.
    assert!(stream.starts_with(b"TAPE"), "{:?}", &stream[..4]);
    for block in [b"SSET", b"VOLB", b"MSCI", b"MSDA"] {
        assert!(stream.chunks(512).any(|sector| sector.starts_with(block)), "{block:?}");
    }
}

/// Makes a block of `raw` with room for the worst case.
fn encode(raw: &[u8], level: i32) -> Vec<u8> {
    let mut stored = vec![0xEE; 2 * raw.len() + 1024];
    let len = encode_block(raw, &mut stored, &mut EncodeState::new(level)).expect("there is room");
    stored.truncate(len);
    stored
}

#[test]
fn the_examples_of_the_specification_are_what_is_made() {
    for (stored, raw) in specification_examples() {
        assert_eq!(encode(&raw, 1), stored);
        assert_eq!(encode(&raw, 2), stored);
    }
}

#[test]
fn blocks_of_every_kind_come_back_from_exactly_their_bytes() {
    let mut state = DecodeState::new();
    for level in [1, 2] {
        for raw in sample_blocks() {
            let stored = encode(&raw, level);
            let mut back = vec![0xEE; raw.len()];
            assert_eq!(decode_block(&stored, &mut back, &mut state).unwrap(), stored.len());
            assert!(back == raw, "{} bytes", raw.len());
        }
    }
}

/// Every small length, and large blocks of all kinds.
pub(super) fn sample_blocks() -> Vec<Vec<u8>> {
    use crate::codec::conformance::sample_data::{noise, pages, text};

    let short = pages(600);
    let mut blocks: Vec<Vec<u8>> = (1..short.len()).map(|len| short[..len].to_vec()).collect();
    for len in [4095, 32_768, BLOCK_SIZE_BYTES_MAX - 1, BLOCK_SIZE_BYTES_MAX] {
        blocks.extend([vec![0; len], noise(len), text(len), pages(len)]);
        // Patterns of every short length, each to the end, and one that reaches back as far as it can.
        blocks.extend((1..40).map(|period| noise(period).repeat(len.div_ceil(period))[..len].to_vec()));
        blocks.push([noise(len - 300), noise(300)].concat());
        // Literals whose code is as long as it can be.
        let rare = (0..17u32).flat_map(|byte| std::iter::repeat_n(byte as u8, 1 << byte));
        let mut rare: Vec<u8> = rare.take(len).collect();
        shuffle(&mut rare);
        blocks.push(rare);
    }
    blocks
}

fn shuffle(bytes: &mut [u8]) {
    let mut random = crate::codec::conformance::sample_data::Random(13);
    for place in (1..bytes.len()).rev() {
        bytes.swap(place, random.below(place + 1));
    }
}

#[test]
fn a_block_takes_the_room_it_has_and_not_a_byte_more() {
    for level in [1, 2] {
        let mut state = EncodeState::new(level);
        for raw in sample_blocks().into_iter().filter(|raw| raw.len() > 500) {
            let whole = encode(&raw, level);
            let mut exact = vec![0xEE; whole.len()];
            assert_eq!(encode_block(&raw, &mut exact, &mut state), Some(whole.len()));
            assert!(exact == whole, "the same input gave other bytes");
            assert_eq!(encode_block(&raw, &mut exact[1..], &mut state), None);
        }
    }
}

#[test]
fn nothing_and_too_much_are_no_blocks() {
    let mut stored = vec![0; 3 * BLOCK_SIZE_BYTES_MAX];
    for len in [0, BLOCK_SIZE_BYTES_MAX + 1] {
        assert_eq!(encode_block(&vec![0; len], &mut stored, &mut EncodeState::new(1)), None);
    }
}

#[test]
fn blocks_are_smaller_than_those_of_a_real_backup() {
    let Some(file) = sample_file() else { return };
    let mut sums = [0; 3];
    for (stored, raw_len) in chunks_of(&file) {
        let (raw, _) = decode(stored, raw_len).unwrap();
        sums[0] += stored.len();
        sums[1] += encode(&raw, 1).len();
        sums[2] += encode(&raw, 2).len();
    }
    assert!(sums[2] < sums[1] && sums[1] < sums[0], "{sums:?}");
}
