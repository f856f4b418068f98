//! Segments of WAL, written record by record as the server does.

use pagehaul_page::RelationLayout;

use crate::btree::Index;
use crate::frames::Content;
use crate::heap::Table;
use crate::random::Random;

/// XLOG_PAGE_MAGIC of versions 13 to 18.
pub(crate) const MAGICS: [u16; 6] = [0xD106, 0xD10D, 0xD110, 0xD113, 0xD116, 0xD118];
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
