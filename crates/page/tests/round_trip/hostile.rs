//! Frames that no encoder made: refused, or the right bytes; never a panic, never more memory than the limit.

use pagehaul_page::ValueType::{Float, Floats, Jsonb, Numeric, Varlena};
use pagehaul_page::{Error, FRAME_SIZE_BYTES_MAX, PageDecoder};

use crate::frames::{Codec, Content};
use crate::gin::GinIndex;
use crate::gist::GistIndex;
use crate::hash::HashIndex;
use crate::heap::Table;
use crate::memory::{Measured, measured};
use crate::random::{Random, with_seeds};
use crate::spgist::SpGistIndex;
use crate::values::{Column, Habit, attribute};
use crate::wal::wal_of_all_kinds;

/// What decoding hostile bytes may allocate: bounded by content and frame, whatever the frame says.
fn memory_max(stored_length: usize, raw_length: usize) -> usize {
    16 * raw_length + 16 * stored_length + (6 << 20)
}

/// Decodes with a decoder of its own, so that all of its memory is seen.
fn decode_measured(stored: &[u8], raw: &mut [u8]) -> Result<(), Error> {
    let (decoded, Measured { peak }) = measured(|| PageDecoder::new().and_then(|mut one| one.decode(stored, raw)));
    let most = memory_max(stored.len(), raw.len());
    assert!(peak <= most, "{peak} bytes for a frame of {} with {}", stored.len(), raw.len());
    decoded
}

fn small_content(random: &mut Random) -> Content {
    loop {
        let content = Content::any(random);
        if (1..40_000).contains(&content.raw.len()) && !content.parts.is_empty() {
            return content;
        }
    }
}

/// Flips every bit of the frame of `content`, one by one.
fn flip_every_bit(codec: &mut Codec, content: &Content, random: &mut Random) {
    let mut stored = codec.round_trip(content);
    let mut back = vec![0; content.raw.len()];
    for at in 0..stored.len() {
        let right = stored[at];
        for flipped in (0..8).map(|bit| right ^ 1 << bit).chain([random.next() as u8]) {
            stored[at] = flipped;
            if codec.decoder.decode(&stored, &mut back).is_ok() {
                assert!(back == content.raw, "byte {at} as {flipped:#x} gives other bytes");
            }
        }
        stored[at] = right;
    }
    assert_eq!(codec.decoder.decode(&stored, &mut back), Ok(()), "the decoder can be used again");
    assert!(back == content.raw);
}

#[test]
fn s07_every_changed_byte_is_refused_or_harmless() {
    let mut codec = Codec::of_all_streams();
    with_seeds(4, |random| {
        let content = loop {
            let content = small_content(random);
            if codec.round_trip(&content).len() < 6000 {
                break content;
            }
        };
        flip_every_bit(&mut codec, &content, random);
    });
}

/// Streams that random content seldom has: two pages of each.
#[test]
fn every_changed_byte_of_shapes_arrays_numerics_documents_hash_gist_and_gin_is_refused_or_harmless() {
    let mut codec = Codec::of_all_streams();
    let mut random = Random::new(41);
    let column = |value_type, length, alignment, habit| Column {
        attribute: attribute(value_type, length, alignment),
        habit,
        null_percent: 5,
    };
    let columns = [
        column(Floats, 32, 8, Habit::Decimals(1)),
        column(Floats, 16, 8, Habit::Any),
        column(Float, 8, 8, Habit::Decimals(1)),
        column(Varlena, -1, 4, Habit::Decimals(1)),
        column(Numeric, -1, 4, Habit::Any),
        column(Jsonb, -1, 4, Habit::Any),
    ];
    let mut contents = vec![Content::default(); columns.len() + 6];
    let count = columns.len();
    for (content, column) in contents.iter_mut().zip(columns) {
        let mut table = Table::new(4096, vec![column]);
        content.push(table.layout(), 5, 2, |block| table.page(&mut random, block));
    }
    let (mut hash, mut gist) = (HashIndex::new(4096, true), GistIndex::of_boxes(4096));
    let indexes = &mut contents[count..];
    indexes[0].push(hash.layout(), 3, 2, |block| hash.bucket(&mut random, block));
    indexes[1].push(gist.layout(), 3, 2, |block| gist.leaf(&mut random, block));
    for (contents, is_untidy) in contents[count + 2..].chunks_exact_mut(2).zip([false, true]) {
        let mut gin = GinIndex { is_untidy, ..GinIndex::new(4096, attribute(Varlena, -1, 4), 300) };
        contents[0].push(gin.layout(), 3, 2, |block| gin.leaf(&mut random, block));
        let mut spgist = SpGistIndex { is_untidy, ..SpGistIndex::of_points(4096) };
        contents[1].push(spgist.layout(), 3, 2, |block| spgist.leaf(&mut random, block));
    }
    for content in &contents {
        flip_every_bit(&mut codec, content, &mut random);
    }
}

/// Records of all kinds, tuples and an image among them.
#[test]
fn every_changed_byte_of_wal_is_refused_or_harmless() {
    let mut codec = Codec::new(2);
    let mut random = Random::new(43);
    flip_every_bit(&mut codec, &wal_of_all_kinds(&mut random), &mut random);
}

#[test]
fn frames_cut_short_or_continued_or_of_another_length_are_refused() {
    let mut codec = Codec::new(2);
    with_seeds(10, |random| {
        let content = small_content(random);
        let mut stored = codec.round_trip(&content);
        let mut back = vec![0; content.raw.len() + 1];
        let length = content.raw.len();
        for end in (0..stored.len()).rev().take(4000).chain(0..stored.len().min(2000)) {
            assert!(codec.decoder.decode(&stored[..end], &mut back[..length]).is_err(), "cut at {end}");
        }
        assert!(codec.decoder.decode(&stored, &mut back[..length - 1]).is_err());
        assert!(codec.decoder.decode(&stored, &mut back[..length + 1]).is_err());
        assert!(codec.decoder.decode(&stored, &mut []).is_err());
        stored.push(0);
        assert!(codec.decoder.decode(&stored, &mut back[..length]).is_err());
    });
}

#[test]
fn s07_noise_behind_a_valid_beginning_is_refused() {
    with_seeds(1500, |random| {
        let length = random.within(0..=3000);
        let mut stored = random.bytes(length);
        if let Some(kind) = stored.first_mut() {
            *kind = random.pick(&[1, 2, 2, 2]);
        }
        // Small numbers: counts that are believed.
        for byte in stored.iter_mut().skip(9) {
            *byte = if random.chance(60) { *byte & 15 } else { *byte };
        }
        let mut raw = vec![0; random.pick(&[0, 1, 100, 8192, 65536])];
        assert!(decode_measured(&stored, &mut raw).is_err());
    });
}

#[test]
fn s06_spoilt_frames_take_no_more_memory_than_the_limit() {
    let mut codec = Codec::new(1);
    with_seeds(300, |random| {
        let content = small_content(random);
        let mut stored = codec.encode(&content);
        for _ in 0..random.within(1..=6) {
            // Counts and lengths stand at the beginning.
            let within = if random.chance(60) { stored.len().min(200) } else { stored.len() };
            let at = 9 + random.below(within - 9);
            stored[at] = random.pick(&[0, 1, 0xFF, 0x7F, random.clone().next() as u8]);
        }
        let mut back = vec![0; content.raw.len()];
        if decode_measured(&stored, &mut back).is_ok() {
            assert!(back == content.raw);
        }
    });
}

#[test]
fn s06_a_frame_of_many_wide_layouts_takes_no_more_memory_than_the_limit() {
    // Two bytes of frame for each column; the first one's length tells the layouts apart.
    let mut stored = vec![2, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x08];
    for number in 0..1024_u32 {
        stored.extend_from_slice(&[2, 13, 0xC0, 0x0C]);
        stored.extend_from_slice(&[0x00, (number & 127) as u8 | 0x80, (number >> 7) as u8 + 1]);
        (1..1600).for_each(|_| stored.extend_from_slice(&[0x21, 5]));
    }
    assert!(decode_measured(&stored, &mut [0; 8192]).is_err());
}

#[test]
fn s06_a_frame_of_many_record_shapes_takes_no_more_memory_than_the_limit() {
    for block_count in [33, 255] {
        // How many empty streams stand before the shapes is not for this test to know.
        for empty in 30..60 {
            let mut stored = vec![2, 0, 0, 0, 0, 0, 0, 0, 0];
            // One layout, of WAL; one run of 8192 bytes.
            stored.extend_from_slice(&[1, 4, 13, 0, 1, 0x80, 0x40, 1, 0]);
            stored.resize(stored.len() + empty, 0);
            stored.extend_from_slice(&[13, 0xFF, 0x01]);
            for number in 0..255 {
                stored.extend_from_slice(&[number, 0, 0, block_count, 0]);
                (0..block_count).for_each(|id| stored.extend_from_slice(&[id, 0x20, 0, 0]));
            }
            assert!(decode_measured(&stored, &mut [0; 8192]).is_err());
        }
    }
}

#[test]
fn content_beyond_the_largest_frame_is_refused() {
    let mut raw = vec![0; FRAME_SIZE_BYTES_MAX + 1];
    let refused = PageDecoder::new().unwrap().decode(&[1; 20], &mut raw);
    assert_eq!(
        refused,
        Err(Error::FrameTooLarge { length: FRAME_SIZE_BYTES_MAX + 1, length_max: FRAME_SIZE_BYTES_MAX })
    );
}
