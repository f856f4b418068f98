//! What every codec promises, run against every codec at several levels and against every pair of DEFLATE engines.
//!
//! A new codec is done when it is in [`contestants`] and this passes. Random data comes from fixed seeds, so a failure
//! repeats; property tests print theirs.

use std::cell::RefCell;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use self::sample_data::{Random, noise, pages, text};
use super::isal::Isal;
use super::*;

/// A small frame size: more frames, slow levels stay bearable.
const FRAME_SIZE_BYTES: usize = 32 << 10;

/// The largest input of the suite is a little over three frames.
const INPUT_SIZE_BYTES_MAX: usize = 3 * FRAME_SIZE_BYTES + 1;

/// Bytes around every output that nobody may touch.
const GUARD: [u8; 64] = [0xA5; 64];

/// An encoder and a decoder that have to understand each other.
struct Contestant {
    name: String,
    codec: CodecId,
    encoder: Box<dyn Encoder>,
    decoder: Box<dyn Decoder>,
}

/// Every codec at its edges and typical levels; every DEFLATE engine with every other one's decoder.
fn contestants() -> Vec<Contestant> {
    let specs = "none lz4:1 lz4:2 lz4:3 lz4:9 lz4:10 lz4:12 deflate:1 deflate:6 deflate:12 \
        zstd:-7 zstd:-1 zstd:1 zstd:3 zstd:6 zstd:9 zstd:13 zstd:19 xpress:1 xpress:2 page:1 page:2 page:3 page:4 page:5";
    let mut all: Vec<Contestant> = specs
        .split_whitespace()
        .map(|text| {
            let spec: CodecSpec = text.parse().unwrap();
            Contestant {
                name: text.to_owned(),
                codec: spec.codec(),
                encoder: new_encoder(spec, INPUT_SIZE_BYTES_MAX).unwrap(),
                decoder: new_decoder(spec.codec()).unwrap(),
            }
        })
        .collect();
    let engines = deflate_engines();
    for (encoder, levels) in &engines {
        for (decoder, _) in &engines {
            all.extend(levels.iter().map(|&level| Contestant {
                name: format!("deflate:{level} {encoder:?} to {decoder:?}"),
                codec: CodecId::Deflate,
                encoder: new_deflate_encoder(*encoder, level, INPUT_SIZE_BYTES_MAX).unwrap(),
                decoder: new_deflate_decoder(*decoder).unwrap(),
            }));
        }
    }
    all
}

/// The engines of this machine with the levels to test.
fn deflate_engines() -> Vec<(DeflateEngine, Vec<i32>)> {
    let mut engines = vec![(DeflateEngine::Libdeflate, vec![1, 3, 9])];
    if Isal::installed().is_some() {
        engines.push((DeflateEngine::Isal, vec![1, 2, 3]));
    } else {
        eprintln!("skipped: the ISA-L engine, because no usable libisal.so.2 is installed");
    }
    engines
}

impl Contestant {
    /// Encodes into exactly `capacity` bytes between guards.
    fn encode(&mut self, raw: &[u8], capacity: usize) -> Option<Vec<u8>> {
        let mut memory = guarded(capacity);
        let stored = &mut memory[GUARD.len()..GUARD.len() + capacity];
        let stored_len = self.encoder.encode(raw, stored).unwrap();
        check_guards(&memory, &self.name);
        stored_len.map(|len| memory[GUARD.len()..][..len].to_vec())
    }

    /// Encodes with room for the worst case.
    fn encode_all(&mut self, raw: &[u8]) -> Vec<u8> {
        self.encode(raw, raw.len() + raw.len() / 128 + 64).unwrap()
    }

    /// Decodes into exactly `raw_len` bytes between guards.
    fn decode(&mut self, stored: &[u8], raw_len: usize) -> Result<Vec<u8>> {
        let mut memory = guarded(raw_len);
        let result = self.decoder.decode(stored, &mut memory[GUARD.len()..GUARD.len() + raw_len]);
        check_guards(&memory, &self.name);
        result.map(|()| memory[GUARD.len()..][..raw_len].to_vec())
    }

    /// Decodes what must not decode.
    fn expect_damage(&mut self, stored: &[u8], raw_len: usize, what: &str) {
        match self.decode(stored, raw_len) {
            Ok(_) => panic!("{}: {what} was not noticed", self.name),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Damage, "{}: {error}", self.name),
        }
    }

    /// There and back again, twice, because contexts are kept.
    fn round_trip(&mut self, raw: &[u8]) -> Vec<u8> {
        let stored = self.encode_all(raw);
        assert_eq!(self.encode_all(raw), stored, "{}: the same input gave other bytes", self.name);
        for _ in 0..2 {
            assert!(self.decode(&stored, raw.len()).unwrap() == raw, "{}: {} bytes differ", self.name, raw.len());
        }
        stored
    }
}

/// Memory for `len` bytes with a guard on each side.
fn guarded(len: usize) -> Vec<u8> {
    [&GUARD[..], &vec![0xC3; len], &GUARD].concat()
}

/// Panics if a guard was written to.
fn check_guards(memory: &[u8], name: &str) {
    assert!(memory.starts_with(&GUARD), "{name}: wrote before the output");
    assert!(memory.ends_with(&GUARD), "{name}: wrote behind the output");
}

/// Inputs of all kinds and lengths.
fn inputs() -> Vec<Vec<u8>> {
    let mut inputs = vec![Vec::new(), vec![0], vec![0xFF; 2], b"abcabcabc".to_vec()];
    for frames in 0..=3usize {
        for len in
            [(frames * FRAME_SIZE_BYTES).saturating_sub(1), frames * FRAME_SIZE_BYTES, frames * FRAME_SIZE_BYTES + 1]
        {
            inputs.extend([vec![0; len], noise(len), text(len), pages(len)]);
        }
    }
    inputs
}

#[test]
fn every_input_comes_back() {
    for mut contestant in contestants() {
        for raw in inputs() {
            contestant.round_trip(&raw);
        }
    }
}

#[test]
fn every_short_length_comes_back() {
    let source = pages(400);
    for mut contestant in contestants() {
        for len in 0..source.len() {
            contestant.round_trip(&source[..len]);
        }
    }
}

#[test]
fn compressible_data_shrinks() {
    for mut contestant in contestants().into_iter().filter(|contestant| contestant.codec != CodecId::None) {
        assert!(contestant.encode_all(&vec![0; FRAME_SIZE_BYTES]).len() < 600, "{}", contestant.name);
        assert!(contestant.encode_all(&pages(FRAME_SIZE_BYTES)).len() < FRAME_SIZE_BYTES / 2, "{}", contestant.name);
    }
}

#[test]
fn empty_slices_need_no_real_address() {
    for mut contestant in contestants() {
        let stored = contestant.encode_all(&[]);
        contestant.decoder.decode(&stored, &mut []).unwrap();
        assert!(contestant.decoder.decode(&[], &mut [0]).is_err());
        assert!(contestant.encoder.encode(b"page", &mut []).unwrap().is_none());
    }
}

#[test]
fn what_does_not_fit_is_none() {
    let (noise, pages) = (noise(FRAME_SIZE_BYTES), pages(FRAME_SIZE_BYTES));
    for mut contestant in contestants() {
        assert!(contestant.encode(&noise, noise.len() - 1).is_none(), "{}", contestant.name);
        assert!(contestant.encode(&noise, 0).is_none(), "{}", contestant.name);
        let stored = contestant.encode_all(&pages);
        for capacity in [0, 1, 2, 7, 8, 9, stored.len() / 2, stored.len().saturating_sub(100)] {
            assert!(contestant.encode(&pages, capacity).is_none(), "{} capacity {capacity}", contestant.name);
        }
        // Close to the exact length a library may give up early, but what it gives must be whole.
        for capacity in stored.len() - 20..stored.len() + 20 {
            if let Some(again) = contestant.encode(&pages, capacity) {
                assert!(contestant.decode(&again, pages.len()).unwrap() == pages, "{}", contestant.name);
            }
        }
        assert_eq!(contestant.encode_all(&pages), stored, "{}: reuse after None", contestant.name);
    }
}

#[test]
fn frames_beyond_the_promised_size_are_our_bug() {
    for mut contestant in contestants() {
        let raw = vec![0; INPUT_SIZE_BYTES_MAX + 1];
        let error = contestant.encoder.encode(&raw, &mut [0; 4096]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Bug);
    }
}

#[test]
fn truncated_frames_are_damage() {
    for mut contestant in contestants() {
        let small = contestant.encode_all(&pages(700));
        for len in 0..small.len() {
            contestant.expect_damage(&small[..len], 700, &format!("the first {len} of {} bytes", small.len()));
        }
        let large = contestant.encode_all(&text(FRAME_SIZE_BYTES));
        let mut random = Random(7);
        for _ in 0..200 {
            contestant.expect_damage(&large[..random.below(large.len())], FRAME_SIZE_BYTES, "a cut");
        }
        // Not even a frame of nothing is nothing, unless it is stored as it is.
        if contestant.codec != CodecId::None {
            contestant.expect_damage(&[], 0, "an absent empty frame");
        }
    }
}

#[test]
fn bytes_after_the_end_are_damage() {
    for mut contestant in contestants() {
        for raw in [Vec::new(), pages(700), noise(700), text(FRAME_SIZE_BYTES), vec![0; FRAME_SIZE_BYTES]] {
            let stored = contestant.encode_all(&raw);
            for tail in [&[0u8][..], &[0xFF], &[0; 8], &[1; 300], &stored].into_iter().filter(|tail| !tail.is_empty()) {
                contestant.expect_damage(&[&stored, tail].concat(), raw.len(), &format!("a tail of {}", tail.len()));
            }
        }
    }
}

#[test]
fn other_lengths_than_promised_are_damage() {
    for mut contestant in contestants() {
        for raw in [Vec::new(), vec![1], pages(700), noise(701), text(FRAME_SIZE_BYTES), vec![0; FRAME_SIZE_BYTES]] {
            let stored = contestant.encode_all(&raw);
            for len in [0, raw.len() / 2, raw.len().wrapping_sub(1), raw.len() + 1, raw.len() + 1000] {
                if len != raw.len() && len != usize::MAX {
                    contestant.expect_damage(&stored, len, &format!("length {len} instead of {}", raw.len()));
                }
            }
        }
    }
}

#[test]
fn s06_what_unfolds_to_a_thousand_times_the_promise_is_damage() {
    for mut contestant in contestants() {
        let bomb = contestant.encode_all(&vec![0; FRAME_SIZE_BYTES]);
        // What is behind the promised bytes is guarded.
        contestant.expect_damage(&bomb, FRAME_SIZE_BYTES / 1000, "a bomb");
    }
}

#[test]
fn flipped_bits_never_escape_the_output() {
    for mut contestant in contestants() {
        for raw in [pages(3000), noise(500), text(FRAME_SIZE_BYTES)] {
            let stored = contestant.encode_all(&raw);
            let mut random = Random(11);
            for _ in 0..400 {
                let mut flipped = stored.clone();
                for _ in 0..1 + random.below(3) {
                    flipped[random.below(stored.len())] ^= 1 << random.below(8);
                }
                if let Err(error) = contestant.decode(&flipped, raw.len()) {
                    assert_eq!(error.kind(), ErrorKind::Damage);
                }
            }
            // And the decoder is as good as new.
            assert!(contestant.decode(&stored, raw.len()).unwrap() == raw, "{}", contestant.name);
        }
    }
}

#[test]
fn properties_hold_for_generated_input() {
    // Runs of bytes: what compressors find worth their while, and what they do not.
    let runs = prop::collection::vec((any::<u8>(), 1..40usize), 0..300);
    let garbage = prop::collection::vec(any::<u8>(), 0..400);
    for contestant in contestants() {
        let contestant = RefCell::new(contestant);
        let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(48) });
        let outcome = runner.run(&(&runs, &garbage, 0..5000usize), |(runs, garbage, raw_len)| {
            let raw: Vec<u8> = runs.iter().flat_map(|&(byte, count)| std::iter::repeat_n(byte, count)).collect();
            let mut contestant = contestant.borrow_mut();
            contestant.round_trip(&raw);
            if let Some(stored) = contestant.encode(&raw, raw.len() / 2) {
                prop_assert!(stored.len() <= raw.len() / 2);
            }
            // Any bytes are either an error or some output of the right length, and both every time.
            let first = contestant.decode(&garbage, raw_len).ok();
            let second = contestant.decode(&garbage, raw_len).ok();
            prop_assert_eq!(first, second);
            Ok(())
        });
        outcome.unwrap_or_else(|failure| panic!("{}: {failure}", contestant.borrow().name));
    }
}

#[test]
fn codecs_move_between_threads() {
    let raw = pages(FRAME_SIZE_BYTES);
    std::thread::scope(|scope| {
        for mut contestant in contestants() {
            let raw = &raw;
            scope.spawn(move || contestant.round_trip(raw));
        }
    });
}

#[test]
fn state_sizes_are_known_for_every_level() {
    for spec in CodecId::ALL.into_iter().flat_map(CodecSpec::all_of) {
        let small = encoder_state_size_bytes(spec, 64 << 10);
        let large = encoder_state_size_bytes(spec, 4 << 20);
        assert!(small <= large, "{spec}");
        assert_eq!(large == 0, spec.codec() == CodecId::None, "{spec}");
        assert!(large < 256 << 20, "{spec}: {large}");
    }
    for codec in CodecId::ALL {
        // The page codec holds a frame's streams, and text in pieces.
        let most = if codec == CodecId::Page { 64 << 20 } else { 256 << 10 };
        assert!(decoder_state_size_bytes(codec) < most, "{codec}: {}", decoder_state_size_bytes(codec));
    }
}

/// Inputs that look like what is backed up; the same on every run.
pub(super) mod sample_data {
    /// A small generator of numbers that look random (splitmix64).
    pub(in crate::codec) struct Random(pub(in crate::codec) u64);

    impl Random {
        /// The next 64 bits.
        pub(in crate::codec) fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            mixed ^ (mixed >> 31)
        }

        /// A number below `end`, which is not 0.
        pub(in crate::codec) fn below(&mut self, end: usize) -> usize {
            (self.next() % end as u64) as usize
        }
    }

    /// Bytes no codec can shrink.
    pub(in crate::codec) fn noise(len: usize) -> Vec<u8> {
        let mut random = Random(3);
        (0..len).map(|_| random.next() as u8).collect()
    }

    /// Words.
    pub(in crate::codec) fn text(len: usize) -> Vec<u8> {
        const WORDS: [&str; 8] = ["page ", "stripe ", "frame ", "the ", "restore ", "of ", "segment ", "timeline "];
        let mut random = Random(5);
        let mut text = Vec::with_capacity(len + 16);
        while text.len() < len {
            text.extend_from_slice(WORDS[random.below(WORDS.len())].as_bytes());
        }
        text.truncate(len);
        text
    }

    /// Pages like a table's: header, line pointers, a hole, rows from the end with counters, text and padding.
    pub(in crate::codec) fn pages(len: usize) -> Vec<u8> {
        const PAGE_SIZE_BYTES: usize = 8192;
        const ROW_SIZE_BYTES: usize = 96;
        let mut random = Random(9);
        let mut data = vec![0u8; len.next_multiple_of(PAGE_SIZE_BYTES)];
        for (number, page) in data.chunks_exact_mut(PAGE_SIZE_BYTES).enumerate() {
            page[..8].copy_from_slice(&(0x1_6B37_4D84 + random.next() % 4096).to_le_bytes());
            page[8..10].copy_from_slice(&(random.next() as u16).to_le_bytes());
            for row in 0..78 {
                let start = PAGE_SIZE_BYTES - (row + 1) * ROW_SIZE_BYTES;
                let pointer = (start | ROW_SIZE_BYTES << 17 | 1 << 15) as u32;
                page[24 + row * 4..28 + row * 4].copy_from_slice(&pointer.to_le_bytes());
                let body = &mut page[start..start + ROW_SIZE_BYTES];
                body[..4].copy_from_slice(&771u32.to_le_bytes());
                body[24..32].copy_from_slice(&((number * 78 + row) as u64).to_le_bytes());
                body[32..36].copy_from_slice(&(random.next() as u32 % 50_000).to_le_bytes());
                body[40..56].copy_from_slice(b"status: shipped ");
            }
        }
        data.truncate(len);
        data
    }
}
