//! Columns that nobody told of.

use pagehaul_page::ValueType::{Float, Floats, Integer, Numeric, Opaque, Uuid, Varlena};
use pagehaul_page::{ATTRIBUTES_MAX, RelationKind};

use crate::btree::Index;
use crate::frames::{Codec, Content};
use crate::heap::Table;
use crate::random::{Random, with_seeds};
use crate::values::{Column, Habit, any_column, attribute};

fn column(value_type: pagehaul_page::ValueType, length: i16, alignment: u8, habit: Habit) -> Column {
    Column { attribute: attribute(value_type, length, alignment), habit, null_percent: 0 }
}

/// The bytes of some frames' content, where the columns are told of and where they are not.
fn sizes(level: u8, contents: &[Content]) -> (usize, usize) {
    let (mut told, mut untold) = (Codec::new(level), Codec::new(level));
    contents.iter().fold((0, 0), |(with, without), content| {
        let mut stripped = content.clone();
        stripped.parts.iter_mut().for_each(|part| part.layout.attributes.clear());
        (with + told.round_trip(content).len(), without + untold.round_trip(&stripped).len())
    })
}

/// As the second of [`sizes`], where nothing is looked for.
fn size_without_columns(contents: &[Content]) -> usize {
    let mut codec = Codec::new(2);
    contents
        .iter()
        .map(|content| {
            let mut content = content.clone();
            for part in &mut content.parts {
                // A column that no codec can take apart: neither these nor others are used.
                part.layout.attributes = vec![attribute(Opaque, 0, 1)];
            }
            codec.round_trip(&content).len()
        })
        .sum()
}

pub(crate) fn pages_of(table: &mut Table, random: &mut Random, frames: u32) -> Vec<Content> {
    (0..frames)
        .map(|frame| {
            let mut content = Content::default();
            content.push(table.layout(), frame * 32, 32, |block| table.page(random, block));
            content
        })
        .collect()
}

/// A table that refers to others by numbers and uuids that are not near to one another.
pub(crate) fn references() -> Vec<Column> {
    let long = [Integer, Float].map(|value_type| column(value_type, 8, 8, Habit::Hundreds(5)));
    [&[column(Integer, 4, 4, Habit::Serial(7))], &long[..], &[column(Uuid, 16, 1, Habit::Hundreds(5))]].concat()
}

/// Tables as people make them.
fn tables() -> Vec<(&'static str, Vec<Column>)> {
    let text = column(Varlena, -1, 4, Habit::Any);
    let few = column(Varlena, -1, 4, Habit::Few(9));
    let id = column(Integer, 4, 4, Habit::Serial(7));
    let big_id = column(Integer, 8, 8, Habit::Serial(1_000_000));
    let price = column(Float, 8, 8, Habit::Decimals(1));
    let flag = column(Integer, 1, 1, Habit::Constant(1));
    vec![
        ("numbers", vec![id, big_id, price, id]),
        ("texts", vec![id, text, few, text]),
        ("mixed", vec![big_id, flag, text, price, few, id, flag, id, text]),
        ("references", references()),
        (
            "shapes",
            vec![id, text, column(Floats, 32, 8, Habit::Decimals(1)), column(Floats, 16, 8, Habit::Decimals(1))],
        ),
        ("uuids", vec![column(Uuid, 16, 1, Habit::Any), id, text, column(Uuid, 16, 1, Habit::Few(3))]),
        ("numerics", vec![id, column(Numeric, -1, 4, Habit::Few(5)), text, column(Numeric, -1, 4, Habit::Any), id]),
        ("names", vec![id, column(Opaque, 64, 1, Habit::Few(4)), id, text]),
        ("arrays", vec![id, column(Varlena, -1, 8, Habit::Decimals(1)), price]),
    ]
}

#[test]
fn columns_are_found_as_if_they_had_been_told() {
    for (name, columns) in tables() {
        let mut random = Random::new(5);
        let contents = pages_of(&mut Table::new(8192, columns), &mut random, 3);
        // What the default level chooses by small samples of a column is worth a percent, too.
        for (level, percent) in [(2, 104), (3, 103)] {
            let (told, untold) = sizes(level, &contents);
            println!("{name}: {told} told, {untold} found, {} without", size_without_columns(&contents));
            assert!(untold * 100 <= told * percent, "{name}, level {level}: {told} told, {untold} found");
        }
    }
}

#[test]
fn pages_of_nobody_knows_what_are_seen_to_be_of_tables() {
    let (_, columns) = tables().swap_remove(2);
    let mut random = Random::new(5);
    let mut contents = pages_of(&mut Table::new(8192, columns), &mut random, 1);
    let (told, _) = sizes(2, &contents);
    contents.iter_mut().flat_map(|content| &mut content.parts).for_each(|part| part.layout.kind = RelationKind::Other);
    let (_, unknown) = sizes(2, &contents);
    assert!(unknown * 100 <= told * 103, "{told} told, {unknown} found");
}

#[test]
fn nulls_and_added_columns_do_not_hide_the_others() {
    for (name, mut columns) in tables() {
        let mut random = Random::new(6);
        for (number, column) in columns.iter_mut().enumerate() {
            column.null_percent = [0, 15, 40][number % 3];
        }
        // A column that was dropped long ago.
        columns.insert(1, Column { null_percent: 100, ..column(Integer, 8, 8, Habit::Any) });
        let mut contents = pages_of(&mut Table::new(8192, columns.clone()), &mut random, 2);
        // Rows from before the last column was added.
        columns.pop();
        let older = pages_of(&mut Table::new(8192, columns), &mut random, 1);
        contents[1].parts[0].length /= 2;
        contents[1].raw.truncate(16 * 8192);
        contents[1].raw.extend_from_slice(&older[0].raw[..8 * 8192]);
        contents[1].parts[0].length += 8 * 8192;
        let (told, untold) = sizes(2, &contents);
        println!("{name}: {told} told, {untold} found, {} without", size_without_columns(&contents));
        assert!(untold * 100 <= told * 108, "{name}: {told} told, {untold} found");
    }
}

#[test]
fn keys_of_indexes_are_found() {
    let id = column(Integer, 4, 4, Habit::Serial(7));
    let big_id = column(Integer, 8, 8, Habit::Serial(1 << 40));
    for (name, columns) in [("one", vec![id]), ("big", vec![big_id]), ("two", vec![id, big_id])] {
        let mut random = Random::new(8);
        let mut index = Index::new(8192, columns);
        let mut content = Content::default();
        content.push(index.layout(), 1, 64, |block| index.leaf(&mut random, block));
        let (told, untold) = sizes(2, &[content]);
        println!("{name}: {told} told, {untold} found");
        assert!(untold * 100 <= told * 103, "{name}: {told} told, {untold} found");
    }
}

#[test]
fn what_was_found_is_remembered_and_changes_with_the_table() {
    let mut random = Random::new(9);
    let mut codec = Codec::new(2);
    let mut told = Codec::new(2);
    let (mut with, mut without) = (0, 0);
    // The same count of columns and the same length, with other columns in it.
    let first = vec![column(Integer, 4, 4, Habit::Serial(1)), column(Float, 8, 8, Habit::Decimals(1))];
    let second = vec![column(Float, 8, 8, Habit::Decimals(1)), column(Integer, 8, 8, Habit::Few(3))];
    for columns in [&first, &first, &second, &first, &second, &second] {
        for mut content in pages_of(&mut Table::new(8192, columns.clone()), &mut random, 2) {
            with += told.round_trip(&content).len();
            content.parts[0].layout.attributes.clear();
            without += codec.round_trip(&content).len();
        }
    }
    assert!(without * 100 <= with * 103, "{with} told, {without} found");
}

#[test]
fn pages_without_layouts_come_back_whatever_they_hold() {
    let mut codecs = [1, 2, 3].map(Codec::new);
    with_seeds(300, |random| {
        let mut content = Content::any(random);
        if content.parts.is_empty() {
            return;
        }
        for part in &mut content.parts {
            part.layout.attributes.clear();
            if random.chance(20) {
                part.layout.kind = random.pick(&[RelationKind::Heap, RelationKind::Index]);
            }
        }
        let codec = &mut codecs[random.below(3)];
        codec.round_trip(&content);
        content.spoil(random);
        codec.round_trip(&content);
    });
}

#[test]
fn tables_of_any_columns_come_back_and_are_seldom_larger_than_without() {
    let mut codec = Codec::new(2);
    let (mut found, mut without) = (0, 0);
    with_seeds(60, |random| {
        let count = random.pick(&[1, 3, 8, 30, 120]);
        let columns = (0..count).map(|_| any_column(random)).collect();
        let mut table = Table { is_untidy: random.chance(50), ..Table::new(8192, columns) };
        let mut contents = pages_of(&mut table, random, 1);
        without += size_without_columns(&contents);
        contents[0].parts[0].layout.attributes.clear();
        found += codec.round_trip(&contents[0]).len();
    });
    println!("{found} found, {without} without");
    assert!(found < without, "{found} found, {without} without");
}

/// Tuples that tell of columns that are not there, of all counts, with bitmaps and lengths of any kind.
#[test]
fn tuples_of_noise_come_back() {
    let mut codec = Codec::new(1);
    with_seeds(200, |random| {
        let count = random.pick(&[0, 1, 2, 7, 255, 256, 257, ATTRIBUTES_MAX, 2047]) as u16;
        let habit = random.pick(&[Habit::Any, Habit::Constant(0), Habit::Constant(u64::MAX), Habit::Constant(0x0303)]);
        let length = random.within(1..=400) as i16;
        let mut table = Table::new(8192, vec![column(Opaque, length, 1, habit)]);
        let mut content = Content::default();
        content.push(table.layout(), 0, random.within(1..=20) as u32, |block| {
            let mut page = table.page(random, block);
            for pointer in 0..(usize::from(page[12]) + 256 * usize::from(page[13]) - 24) / 4 {
                let at = usize::from(u16::from_le_bytes([page[24 + 4 * pointer], page[25 + 4 * pointer]]) & 0x7FFF);
                page[at + 18..at + 20].copy_from_slice(&count.to_le_bytes());
                if random.chance(30) {
                    page[at + 20] |= 1;
                    page[at + 22] = (23 + count.div_ceil(8)).next_multiple_of(8) as u8;
                }
            }
            page
        });
        content.parts[0].layout.attributes.clear();
        codec.round_trip(&content);
    });
}

#[test]
fn rows_of_very_many_columns_are_text_at_page_1() {
    let sizes_of = |columns, level| {
        let column = column(Integer, 4, 4, Habit::Serial(7));
        sizes(level, &pages_of(&mut Table::new(8192, vec![column; columns]), &mut Random::new(1), 1))
    };
    for level in [1, 2] {
        let [(few, few_found), (many, many_found)] = [128, 129].map(|columns| sizes_of(columns, level));
        let are_apart = |size: usize| size < 2 * few;
        assert_eq!(
            [few_found, many, many_found].map(are_apart),
            [true, level == 2, level == 2],
            "{level}: {few}, {many}"
        );
    }
}
