//! Whatever goes in comes out again.

use pagehaul_page::{Error, Level, PageEncoder, RelationKind, RelationLayout, ValueType};

use crate::frames::{Codec, Content, FRAME_SIZE_BYTES, OwnedPart, PLAIN};
use crate::heap::Table;
use crate::random::{Random, with_seeds};
use crate::values::{Column, Habit, any_column, attribute};

#[test]
fn valid_pages_come_back_and_take_no_more_room_than_they_had() {
    let mut codecs = [1, 2, 3].map(Codec::new);
    with_seeds(300, |random| {
        let content = Content::any(random);
        let stored = random.pick(&[0, 1, 2]);
        let stored = codecs[stored].round_trip(&content);
        // Kind, digest, count and mode, and what noise that looks like pages may lose.
        let room = content.raw.len() + content.raw.len() / 50 + 256;
        assert!(stored.len() <= room, "{} of {}", stored.len(), content.raw.len());
    });
}

#[test]
fn high_levels_bring_pages_back() {
    let mut codecs = [4, 5].map(Codec::new);
    with_seeds(16, |random| {
        let content = Content::any(random);
        codecs.iter_mut().for_each(|codec| drop(codec.round_trip(&content)));
    });
}

/// Nothing of a level stays behind in an encoder whose level moves.
#[test]
fn a_moving_level_gives_what_each_level_gives_alone() {
    let levels: Vec<Level> = (1..=Level::MAX.number()).filter_map(Level::new).collect();
    let mut alone: Vec<Codec> = levels.iter().map(|level| Codec::new(level.number())).collect();
    let mut moving = Codec::new(2);
    with_seeds(8, |random| {
        // Texts on both sides of the lengths for which one level of zstd gets parameters of its own.
        let size = random.pick(&[20 << 10, 160 << 10, 300 << 10]);
        let (words, mut text) = (random.bytes(4000), Vec::new());
        while text.len() < size {
            text.extend_from_slice(&words[random.below(500) * 7..][..random.within(2..=9)]);
        }
        for content in [Content::any(random), Content { raw: text, parts: Vec::new() }, Content::any(random)] {
            let number = random.below(levels.len());
            moving.encoder.set_level(levels[number]);
            let (moved, own) = (moving.round_trip(&content), alone[number].encode(&content));
            assert!(moved == own, "level {}: {} bytes, alone {}", levels[number], moved.len(), own.len());
        }
    });
}

#[test]
fn wrong_hints_cost_no_byte() {
    let mut codec = Codec::new(1);
    with_seeds(300, |random| {
        let mut content = Content::any(random);
        if content.parts.is_empty() {
            return;
        }
        content.mislead(random);
        codec.round_trip(&content);
    });
}

#[test]
fn f52_spoilt_pages_come_back() {
    let mut codec = Codec::new(1);
    with_seeds(500, |random| {
        let mut content = Content::any(random);
        if content.parts.is_empty() {
            return;
        }
        content.spoil(random);
        codec.round_trip_apart(&content);
        if random.chance(30) {
            content.mislead(random);
            codec.round_trip_apart(&content);
        }
    });
}

/// Columns that no row of a page has: null in all of them, or added later. One row that differs, in any byte, changes nothing.
#[test]
fn rows_that_miss_the_same_columns_come_back() {
    let mut codec = Codec::new(1);
    with_seeds(300, |random| {
        let (page_size, columns_max) = (random.pick(&[4096, 8192, 32768]), random.pick(&[3, 12, 40]));
        let mut table = Table { is_untidy: random.chance(10), ..Table::any(random, page_size, columns_max) };
        for column in &mut table.columns {
            column.null_percent = random.pick(&[0, 0, 100]);
        }
        if random.chance(30) {
            table.row_columns = random.within(0..=table.columns.len());
        }
        let mut content = Content::default();
        content.push(table.layout(), 7, 3, |block| table.page(random, block));
        codec.round_trip_apart(&content);
        content.spoil(random);
        codec.round_trip_apart(&content);
    });
}

/// What tells how each of hundreds of columns is coded takes more than rows that repeat do as they are.
#[test]
fn rows_of_very_many_columns_that_repeat_are_one_text() {
    with_seeds(5, |random| {
        let table_of = |step: u64| {
            let attribute = attribute(ValueType::Integer, 8, 8);
            let column = |number| Column { attribute, habit: Habit::Constant(number % 8 * step), null_percent: 0 };
            Table::new(8192, (0..900_u64).map(column).collect())
        };
        let (mut usual, mut other) = (table_of(7), table_of(11));
        let mut content = Content::default();
        content.push(usual.layout(), 0, 128, |block| {
            if random.chance(5) { other.page(random, block) } else { usual.page(random, block) }
        });
        for level in [2, 3] {
            let stored = Codec::new(level).round_trip(&content);
            assert!(
                stored[0] == PLAIN && stored.len() < 15_000,
                "level {level}: kind {}, {} bytes",
                stored[0],
                stored.len()
            );
        }
    });
}

#[test]
fn noise_comes_back() {
    let mut codec = Codec::new(2);
    with_seeds(60, |random| {
        let length = random.below(70_000);
        let mut content = Content { raw: random.bytes(length), parts: Vec::new() };
        codec.round_trip(&content);
        let layout = Table::any(random, 8192, 9).layout();
        content.parts.push(OwnedPart { start: 0, length, first_page: 3, layout });
        codec.round_trip(&content);
        // Headers that let the codec look further.
        for page in content.raw.chunks_exact_mut(8192) {
            let lower = 24 + 4 * random.below(500) as u16;
            let bounds = [lower, random.within(usize::from(lower)..=8192) as u16, 8192, 8192 + 4];
            page[12..20].copy_from_slice(bounds.map(u16::to_le_bytes).as_flattened());
        }
        codec.round_trip(&content);
    });
}

#[test]
fn short_and_empty_frames_come_back() {
    let mut codec = Codec::new(2);
    let layout = RelationLayout { kind: RelationKind::Heap, page_size_bytes: 4096, attributes: Vec::new() };
    for length in (0..40).chain([4095, 4096, 4097, 8191, FRAME_SIZE_BYTES]) {
        for parts in [vec![], vec![OwnedPart { start: 0, length, first_page: 0, layout: layout.clone() }]] {
            let content = Content { raw: vec![7; length], parts };
            codec.round_trip(&content);
        }
    }
}

#[test]
fn more_layouts_than_a_frame_has_room_for_come_back() {
    let mut codec = Codec::new(1);
    let mut random = Random::new(5);
    let mut content = Content::default();
    for number in 0..5000_u32 {
        let layout = Table::new(4096, vec![any_column(&mut random)]).layout();
        let start = content.raw.len();
        content.raw.extend_from_slice(&[number as u8; 150]);
        content.parts.push(OwnedPart { start, length: 150, first_page: number, layout });
    }
    codec.round_trip(&content);
    content.parts.iter_mut().zip(1_i16..).for_each(|(part, number)| {
        part.layout.attributes[0].value_type = pagehaul_page::ValueType::Opaque;
        part.layout.attributes[0].length = number;
    });
    codec.round_trip(&content);
}

#[test]
fn the_same_content_gives_the_same_bytes_whatever_came_before() {
    let mut used = Codec::new(2);
    with_seeds(40, |random| {
        let content = Content::any(random);
        let first = used.encode(&content);
        used.encode(&Content::any(random));
        assert!(used.encode(&content) == first, "another frame in between changed the bytes");
        assert!(Codec::new(2).encode(&content) == first, "a new encoder makes other bytes");
    });
}

#[test]
fn a_result_that_does_not_fit_is_told_and_too_much_content_refused() {
    let mut random = Random::new(1);
    let mut table = Table::any(&mut random, 8192, 5);
    let mut content = Content::default();
    content.push(table.layout(), 0, 4, |block| table.page(&mut random, block));
    let mut codec = Codec::new(2);
    let stored = codec.encode(&content);
    let mut encode = |room: usize| codec.encoder.encode(&content.raw, &content.parts(), &mut vec![0; room]);
    assert_eq!(encode(stored.len()), Ok(Some(stored.len())));
    for room in [0, 8, 9, stored.len() - 1] {
        assert_eq!(encode(room), Ok(None));
    }
    let mut small = PageEncoder::new(Level::DEFAULT, 8192).unwrap();
    let refused = small.encode(&content.raw, &[], &mut [0; 64]);
    assert_eq!(refused, Err(Error::FrameTooLarge { length: 4 * 8192, length_max: 8192 }));
}
