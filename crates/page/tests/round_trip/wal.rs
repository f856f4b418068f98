//! WAL, written record by record as the server does, and what is wrong with it in all ways.

use pagehaul_page::RelationLayout;

use crate::btree::Index;
use crate::frames::{Codec, Content};
use crate::heap::Table;
use crate::random::{Random, with_seeds};

/// XLOG_PAGE_MAGIC of versions 13 to 18.
const MAGICS: [u16; 6] = [0xD106, 0xD10D, 0xD110, 0xD113, 0xD116, 0xD118];
const MAGIC_14: u16 = 0xD10D;
pub(crate) const PAGE_SIZE: usize = 8192;

/// A block of a record.
#[derive(Clone, Debug, Default)]
pub(crate) struct Block {
    pub(crate) flags: u8,
    pub(crate) relation: [u32; 3],
    pub(crate) number: u32,
    pub(crate) data: Option<Vec<u8>>,
    pub(crate) image: Option<Image>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Image {
    pub(crate) flags: u8,
    pub(crate) bytes: Vec<u8>,
    pub(crate) hole_offset: u16,
    /// Of compressed images with a hole.
    pub(crate) hole_length: Option<u16>,
}

impl Image {
    /// As the server cuts the hole out of a page.
    pub(crate) fn of(page: &[u8], magic: u16) -> Self {
        let half = |at: usize| usize::from(u16::from_le_bytes([page[at], page[at + 1]]));
        let (lower, upper) = (half(12), half(14));
        let apply = if magic <= MAGIC_14 { 4 } else { 2 };
        if lower < 24 || lower >= upper || upper > page.len() {
            return Image { flags: apply, bytes: page.to_vec(), ..Image::default() };
        }
        let bytes = [&page[..lower], &page[upper..]].concat();
        Image { flags: apply | 1, bytes, hole_offset: lower as u16, hole_length: None }
    }
}

/// A record.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    pub(crate) manager: u8,
    pub(crate) info: u8,
    pub(crate) xid: u32,
    pub(crate) blocks: Vec<Block>,
    pub(crate) origin: Option<u16>,
    pub(crate) top_xid: Option<u32>,
    pub(crate) main: Option<Vec<u8>>,
}

impl Record {
    /// What follows the fixed header.
    fn rest(&self) -> Vec<u8> {
        let (mut heads, mut data) = (Vec::new(), Vec::new());
        let mut relation = None;
        for (block, id) in self.blocks.iter().zip(0u8..) {
            let same = relation == Some(block.relation);
            let mut flags = block.flags & 0x4F | if same { 0x80 } else { 0 };
            flags |= if block.data.is_some() { 0x20 } else { 0 } | if block.image.is_some() { 0x10 } else { 0 };
            let length = block.data.as_ref().map_or(0, Vec::len) as u16;
            heads.extend_from_slice(&[id, flags]);
            heads.extend_from_slice(&length.to_le_bytes());
            if let Some(image) = &block.image {
                heads.extend_from_slice(&(image.bytes.len() as u16).to_le_bytes());
                heads.extend_from_slice(&image.hole_offset.to_le_bytes());
                heads.push(image.flags);
                image.hole_length.iter().for_each(|length| heads.extend_from_slice(&length.to_le_bytes()));
                data.extend_from_slice(&image.bytes);
            }
            if !same {
                block.relation.iter().for_each(|number| heads.extend_from_slice(&number.to_le_bytes()));
            }
            relation = Some(block.relation);
            heads.extend_from_slice(&block.number.to_le_bytes());
            data.extend_from_slice(block.data.as_deref().unwrap_or_default());
        }
        if let Some(origin) = self.origin {
            heads.push(253);
            heads.extend_from_slice(&origin.to_le_bytes());
        }
        if let Some(xid) = self.top_xid {
            heads.push(252);
            heads.extend_from_slice(&xid.to_le_bytes());
        }
        if let Some(main) = &self.main {
            if main.len() < 256 {
                heads.extend_from_slice(&[255, main.len() as u8]);
            } else {
                heads.push(254);
                heads.extend_from_slice(&(main.len() as u32).to_le_bytes());
            }
            data.extend_from_slice(main);
        }
        [heads, data].concat()
    }
}

/// CRC32C, bit by bit: independent of what the codec uses.
fn crc32c(parts: &[&[u8]]) -> u32 {
    let mut sum = u32::MAX;
    for byte in parts.iter().flat_map(|part| part.iter()) {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = sum >> 1 ^ 0x82F6_3B78 & 0u32.wrapping_sub(sum & 1);
        }
    }
    !sum
}

/// Writes WAL.
#[derive(Clone, Debug)]
pub(crate) struct Wal {
    pub(crate) bytes: Vec<u8>,
    pub(crate) magic: u16,
    page_size: usize,
    start: u64,
    previous: u64,
    is_removable: bool,
}

impl Wal {
    pub(crate) fn new(magic: u16, page_size: usize) -> Self {
        Wal { bytes: Vec::new(), magic, page_size, start: 0x3_4500_0000, previous: 0x3_44FF_F000, is_removable: true }
    }

    fn lsn(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Begins a page if one is full; `rest` bytes of a record are still to come.
    fn begin_page(&mut self, rest: usize) {
        if !self.bytes.len().is_multiple_of(self.page_size) {
            return;
        }
        let is_first = self.bytes.is_empty();
        let info = u16::from(rest > 0) | if is_first { 2 } else { 0 } | if self.is_removable { 4 } else { 0 };
        let address = self.lsn();
        for field in [&self.magic.to_le_bytes()[..], &info.to_le_bytes(), &7u32.to_le_bytes(), &address.to_le_bytes()] {
            self.bytes.extend_from_slice(field);
        }
        self.bytes.extend_from_slice(&(rest as u64).to_le_bytes());
        if is_first {
            self.bytes.extend_from_slice(&0x6ABC_DEF0_1234_5678_u64.to_le_bytes());
            self.bytes.extend_from_slice(&(1u32 << 24).to_le_bytes());
            self.bytes.extend_from_slice(&(self.page_size as u32).to_le_bytes());
        }
    }

    /// Appends `record`; where it starts.
    pub(crate) fn push(&mut self, record: &Record) -> usize {
        let rest = record.rest();
        self.begin_page(0);
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&(24 + rest.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&record.xid.to_le_bytes());
        bytes.extend_from_slice(&self.previous.to_le_bytes());
        bytes.extend_from_slice(&[record.info, record.manager, 0, 0]);
        let crc = crc32c(&[&rest, &bytes]);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes.extend_from_slice(&rest);
        self.previous = self.lsn();
        let start = self.bytes.len();
        let mut left = &bytes[..];
        while !left.is_empty() {
            self.begin_page(left.len());
            let room = self.page_size - self.bytes.len() % self.page_size;
            let (now, later) = left.split_at(room.min(left.len()));
            self.bytes.extend_from_slice(now);
            left = later;
        }
        while !self.bytes.len().is_multiple_of(8) {
            self.bytes.push(0);
        }
        start
    }

    /// Fills the last page with zeros.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len().next_multiple_of(self.page_size), 0);
        self.bytes
    }
}

/// What a busy server writes, more or less.
pub(crate) struct Load {
    table: Table,
    index: Index,
    xid: u32,
    block: u32,
}

impl Load {
    pub(crate) fn new(random: &mut Random, page_size: usize) -> Self {
        let table = Table::any(random, page_size, 6);
        Load { table, index: Index::any(random, page_size), xid: 700 + random.below(1000) as u32, block: 0 }
    }

    fn page(&mut self, random: &mut Random, block: u32) -> Vec<u8> {
        if random.chance(60) { self.table.page(random, block) } else { self.index.any_page(random, block.min(1 << 20)) }
    }

    fn image(&mut self, random: &mut Random, block: u32, magic: u16) -> Image {
        match random.below(6) {
            0 => {
                // Compressed, with and without a hole.
                let length = random.within(30..=900);
                let flag = if magic <= MAGIC_14 { 2 } else { random.pick(&[4, 8, 16]) };
                let hole_length = random.chance(50).then_some(random.next() as u16);
                let flags = flag | u8::from(hole_length.is_some());
                Image { flags, bytes: random.bytes(length), hole_offset: random.below(8000) as u16, hole_length }
            }
            1 => Image { flags: 2 * u8::from(magic > MAGIC_14), bytes: self.page(random, block), ..Image::default() },
            2 => {
                let length = random.within(0..=100);
                Image { flags: 1, bytes: random.bytes(length), hole_offset: random.next() as u16, hole_length: None }
            }
            _ => Image::of(&self.page(random, block), magic),
        }
    }

    /// Any record.
    pub(crate) fn any(&mut self, random: &mut Random, magic: u16) -> Record {
        self.xid += u32::from(random.chance(30));
        let mut record = Record {
            manager: random.pick(&[10, 10, 10, 11, 1, 0]),
            info: random.pick(&[0, 0x20, 0x40, 0x80]),
            xid: self.xid,
            ..Record::default()
        };
        let relation = |random: &mut Random| [1663, 5, 16_384 + random.below(5) as u32];
        for _ in 0..random.pick(&[0, 1, 1, 1, 1, 2, 3, 33]) {
            self.block += random.below(3) as u32;
            let same = record.blocks.last().filter(|_| random.chance(40)).map(|last: &Block| last.relation);
            let length = random.pick(&[0, 5, 12, 12, 40, 41, 200]);
            let mut block = Block {
                flags: random.pick(&[0, 0, 0, 1, 2, 3, 0x40]),
                relation: same.unwrap_or_else(|| relation(random)),
                number: random.pick(&[self.block, self.block, 0, u32::MAX]),
                data: random.chance(60).then(|| random.bytes(length)),
                image: None,
            };
            if random.chance(10) {
                block.image = Some(self.image(random, block.number, magic));
            }
            record.blocks.push(block);
        }
        record.origin = random.chance(5).then_some(3);
        record.top_xid = random.chance(5).then_some(self.xid - 1);
        let length = random.pick(&[0, 3, 14, 14, 14, 32, 255, 256, 3000]);
        record.main =
            random.chance(90).then(|| (0..length).map(|at| (at / 3 * 7) as u8 ^ random.below(3) as u8).collect());
        record
    }
}

impl Content {
    /// WAL of about `length` bytes, in whole pages or with the last one cut.
    pub(crate) fn push_wal(&mut self, random: &mut Random, length: usize) {
        let page_size = random.pick(&[4096, PAGE_SIZE, PAGE_SIZE, PAGE_SIZE, 16384]);
        let mut wal = Wal::new(random.pick(&MAGICS), page_size);
        let image_page_size = random.pick(&[4096, PAGE_SIZE, PAGE_SIZE, 32768]);
        let mut load = Load::new(random, image_page_size);
        while wal.bytes.len() < length {
            let record = load.any(random, wal.magic);
            wal.push(&record);
        }
        let mut bytes = wal.finish();
        // A frame is seldom the first one of a segment.
        let first = random.below(bytes.len() / page_size) * page_size;
        bytes.drain(..if random.chance(50) { first } else { 0 });
        if random.chance(30) {
            bytes.truncate(bytes.len() - random.below(bytes.len()));
        }
        self.push(RelationLayout::wal(page_size as u32), 0, 1, |_| std::mem::take(&mut bytes));
    }
}

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

/// The data of a block into which `count` tuples were inserted at once.
fn inserted(random: &mut Random, count: usize) -> Vec<u8> {
    let mut data: Vec<u8> = Vec::new();
    for number in 0..count {
        data.resize(data.len().next_multiple_of(2), 0);
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
