//! WAL, and what is wrong with it in all ways.

use pagehaul_page::RelationLayout;

use crate::frames::{Codec, Content};
use crate::heap::Table;
use crate::random::{Random, with_seeds};
use crate::segments::{Block, Image, Load, MAGICS, PAGE_SIZE, Record, Wal};

/// Content that is `bytes` of WAL.
fn content_of(bytes: Vec<u8>) -> Content {
    let mut content = Content::default();
    let mut bytes = Some(bytes);
    content.push(RelationLayout::wal(PAGE_SIZE as u32), 0, 1, |_| bytes.take().unwrap());
    content
}

/// Records as an UPDATE and its transaction's end write them: all that is not a number is alike.
fn updates(count: u32) -> Wal {
    let mut wal = Wal::new(0xD116, PAGE_SIZE);
    for number in 0..count {
        let relation = [1663, 5, 16_385];
        let data = [&[3, 0, 2, 8, 24][..], &(1000 + number).to_le_bytes(), &number.to_le_bytes()].concat();
        let block = Block { relation, number: number / 50, data: Some(data), ..Block::default() };
        let main = Some([&(700 + number).to_le_bytes()[..], &[1, 0, 0, 0, 0, 0, 0, 0, 2, 0]].concat());
        let update =
            Record { manager: 10, info: 0x40, xid: 700 + number, blocks: vec![block], main, ..Record::default() };
        wal.push(&update);
        let time = 750_000_000_000_000_u64 + u64::from(number) * 1000;
        let commit =
            Record { manager: 1, xid: 700 + number, main: Some(time.to_le_bytes().to_vec()), ..Record::default() };
        wal.push(&commit);
    }
    wal
}

/// The data of a block into which `count` tuples were inserted at once. The server does not clear what is between them.
fn inserted(random: &mut Random, count: usize) -> Vec<u8> {
    let mut data: Vec<u8> = Vec::new();
    let gap = random.pick(&[0, 0xFF]);
    for number in 0..count {
        data.resize(data.len().next_multiple_of(2), random.next() as u8 & gap);
        let length = 10 + random.below(4);
        data.extend_from_slice(&(length as u16).to_le_bytes());
        data.extend_from_slice(&[3, 0, 2, 8, 24]);
        data.extend((0..length).map(|at| if at < 6 { number as u8 } else { random.next() as u8 }));
    }
    data
}

fn multi_insert(random: &mut Random, number: u32, data: Vec<u8>) -> Record {
    let block = Block { relation: [1663, 5, 77], number, data: Some(data), ..Block::default() };
    let main = Some([0, 0, 5, 0, random.next() as u8].to_vec());
    Record { manager: 9, info: 0x50, xid: 800, blocks: vec![block], main, ..Record::default() }
}

/// A few pages with all that is taken apart.
pub(crate) fn wal_of_all_kinds(random: &mut Random) -> Content {
    let mut wal = Wal::new(0xD118, PAGE_SIZE);
    let mut load = Load::new(random, 4096);
    for number in 0..40 {
        let data = inserted(random, 3);
        wal.push(&multi_insert(random, number, data));
        let mut record = load.any(random, wal.magic);
        record.blocks.truncate(2);
        record.main.iter_mut().for_each(|main| main.truncate(300));
        record.blocks.iter_mut().for_each(|block| block.image = block.image.take().filter(|_| number == 20));
        wal.push(&record);
    }
    content_of(wal.finish())
}

#[test]
fn tuples_inserted_at_once_come_back_whatever_the_list_looks_like() {
    let mut codec = Codec::new(2);
    with_seeds(60, |random| {
        let mut wal = Wal::new(0xD116, PAGE_SIZE);
        for number in 0..100 {
            let count = random.within(0..=20);
            let mut data = inserted(random, count);
            match random.below(10) {
                0 => data.push(0),
                1 => data.truncate(random.below(data.len() + 1)),
                2 if !data.is_empty() => {
                    let at = random.below(data.len());
                    data[at] = random.next() as u8;
                }
                _ => {}
            }
            wal.push(&multi_insert(random, number, data));
        }
        codec.round_trip(&content_of(wal.finish()));
    });
}

/// Rows of a COPY, of odd lengths, and what is between them.
fn copied(gap: impl Fn(u32) -> u8) -> Content {
    let mut random = Random::new(29);
    let mut wal = Wal::new(0xD116, PAGE_SIZE);
    let mut row = 0;
    for number in 0..120 {
        let mut data: Vec<u8> = Vec::new();
        for _ in 0..40 {
            row += 1;
            if !data.len().is_multiple_of(2) {
                data.push(gap(row));
            }
            let text = format!("note {}", row % 7).repeat(1 + row as usize % 3);
            let tuple = [&row.to_le_bytes()[..], &(row / 9 * 86_400).to_le_bytes(), text.as_bytes()].concat();
            data.extend_from_slice(&(tuple.len() as u16).to_le_bytes());
            data.extend_from_slice(&[3, 0, 2, 8, 24]);
            data.extend_from_slice(&tuple);
        }
        wal.push(&multi_insert(&mut random, number, data));
    }
    content_of(wal.finish())
}

#[test]
fn rows_inserted_at_once_are_taken_apart_whatever_is_between_them() {
    let mut codec = Codec::new(2);
    let [cleared, left] = [copied(|_| 0), copied(|row| row.wrapping_mul(2_654_435_761) as u8)];
    let gaps = cleared.raw.iter().zip(&left.raw).filter(|(one, other)| one != other).count();
    let [cleared, left] = [cleared, left].map(|content| codec.round_trip(&content).len());
    assert!(gaps > 1500, "{gaps}");
    // The CRCs are others as well, and follow from the rest.
    assert!(left < cleared + gaps + gaps / 20, "{cleared} {left} {gaps}");
}

#[test]
fn regular_records_take_less_than_their_checksums_alone() {
    let mut codec = Codec::new(2);
    let count = 3000;
    let content = content_of(updates(count).finish());
    let stored = codec.round_trip(&content);
    assert!(stored.len() < count as usize, "{} bytes for {count} updates", stored.len());
    // The same from the middle of a record on.
    let later = content_of(content.raw[3 * PAGE_SIZE..].to_vec());
    assert!(codec.round_trip(&later).len() < count as usize);
}

/// LZ4's blocks of what is left of records were larger than zstd's level 1 makes the segments.
#[test]
fn the_fastest_level_takes_wal_as_the_default_does_and_only_wal() {
    let mut random = Random::new(19);
    let wal = wal_of_all_kinds(&mut random);
    let mut table = Table::any(&mut random, 8192, 9);
    let mut rows = Content::default();
    rows.push(table.layout(), 3, 40, |block| table.page(&mut random, block));
    let [mut fast, mut default] = [1, 2].map(Codec::new);
    let expected = [fast.encode(&rows), default.encode(&wal)];
    assert_ne!(expected[0], default.encode(&rows));
    for _ in 0..2 {
        assert_eq!(fast.round_trip(&wal), expected[1]);
        assert_eq!(fast.round_trip(&rows), expected[0]);
    }
}

#[test]
fn a_wrong_checksum_costs_little_more_than_itself() {
    let mut codec = Codec::new(2);
    let mut content = content_of(updates(1000).finish());
    let sound = codec.round_trip(&content).len();
    // The CRC of the first record, behind the long header.
    content.raw[40 + 20] ^= 1;
    let stored = codec.round_trip(&content).len();
    assert!((sound + 4..sound + 40).contains(&stored), "{stored} bytes instead of {sound}");
}

#[test]
fn images_are_taken_apart_as_pages_are() {
    let mut random = Random::new(5);
    let mut codec = Codec::new(2);
    let mut table = Table::any(&mut random, PAGE_SIZE, 3);
    let pages: Vec<Vec<u8>> = (0..60).map(|block| table.page(&mut random, block)).collect();
    let mut as_pages = Content::default();
    let layout = RelationLayout { attributes: Vec::new(), ..table.layout() };
    as_pages.push(layout, 0, 60, |block| pages[block as usize].clone());
    let of_pages = codec.round_trip(&as_pages).len();
    for magic in MAGICS {
        let mut wal = Wal::new(magic, PAGE_SIZE);
        for (page, number) in pages.iter().zip(0..) {
            let image = Some(Image::of(page, magic));
            let block = Block { relation: [1663, 5, 9], number, image, ..Block::default() };
            wal.push(&Record { manager: 0, info: 0xB0, blocks: vec![block], ..Record::default() });
        }
        let stored = codec.round_trip(&content_of(wal.finish())).len();
        // Of pages the columns are found, of images they are not.
        assert!(stored < of_pages + of_pages / 10, "{magic:x}: {stored} bytes, as pages {of_pages}");
    }
}

#[test]
fn any_records_of_any_version_come_back() {
    for level in [1, 2, 5] {
        let mut codec = Codec::new(level);
        with_seeds(120, |random| {
            let mut content = Content::default();
            for _ in 0..random.pick(&[1, 1, 2]) {
                let length = random.pick(&[100, 5000, 40_000, 150_000]);
                content.push_wal(random, length);
            }
            codec.round_trip(&content);
        });
    }
}

/// Ends that were torn, pages of older segments, zeros, bytes changed anywhere: as it is.
#[test]
fn spoilt_wal_comes_back_bit_for_bit() {
    let mut codec = Codec::new(1);
    with_seeds(400, |random| {
        let mut bytes = updates(random.within(50..=900) as u32).finish();
        let older = updates(400).finish();
        for _ in 0..random.within(1..=4) {
            let at = random.below(bytes.len());
            let page = at / PAGE_SIZE * PAGE_SIZE;
            match random.below(7) {
                0 => bytes[at..].fill(0),
                1 => bytes[page..].fill(0),
                2 => {
                    let length = older.len().min(bytes.len()) - page.min(older.len());
                    let from = older.len() - length;
                    let length = length.min(bytes.len() - page);
                    bytes[page..page + length].copy_from_slice(&older[from..from + length]);
                }
                3 => bytes[page..page + PAGE_SIZE].fill_with(|| random.next() as u8),
                4 => bytes[page + random.below(24)] ^= 1 << random.below(8),
                5 => bytes[at] = bytes[at].wrapping_add(1),
                _ => {
                    let end = bytes.len().min(at + random.below(300));
                    bytes[at..end].fill_with(|| random.next() as u8);
                }
            }
        }
        codec.round_trip(&content_of(bytes));
    });
}

#[test]
fn a_record_header_changed_in_any_byte_comes_back() {
    let mut codec = Codec::new(1);
    let mut random = Random::new(8);
    let mut load = Load::new(&mut random, PAGE_SIZE);
    let mut wal = Wal::new(0xD118, PAGE_SIZE);
    let mut starts = Vec::new();
    while wal.bytes.len() < 20_000 {
        let mut record = load.any(&mut random, wal.magic);
        record.blocks.truncate(3);
        starts.push(wal.push(&record));
    }
    let content = content_of(wal.finish());
    for start in starts {
        for at in start..content.raw.len().min(start + 60) {
            let mut spoilt = content.clone();
            spoilt.raw[at] = random.pick(&[0, 0xFF, spoilt.raw[at] ^ 0x10, spoilt.raw[at].wrapping_add(1)]);
            codec.round_trip(&spoilt);
        }
    }
}

#[test]
fn more_shapes_and_relations_than_a_frame_has_room_for_come_back() {
    let mut codec = Codec::new(1);
    let mut wal = Wal::new(0xD116, PAGE_SIZE);
    for number in 0..6000_u32 {
        let block = Block { relation: [1663, 5, number], number, ..Block::default() };
        let (manager, info) = ((number % 20) as u8, (number / 20) as u8);
        wal.push(&Record { manager, info, blocks: vec![block], main: Some(vec![7; 3]), ..Record::default() });
    }
    codec.round_trip(&content_of(wal.finish()));
}

/// A frame's worth of the shortest records there are, for who counts what they take.
pub(crate) fn short_records(size: usize) -> Content {
    let mut wal = Wal::new(0xD116, PAGE_SIZE);
    let mut number = 0_u32;
    while wal.bytes.len() + 2 * PAGE_SIZE < size {
        number += 1;
        let number = number.wrapping_mul(2_654_435_761);
        wal.push(&Record { manager: 1, xid: number, main: Some(vec![number as u8; 1]), ..Record::default() });
    }
    content_of(wal.finish())
}
