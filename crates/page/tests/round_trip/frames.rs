//! Content of frames: runs of pages with what a caller tells of them.

use pagehaul_page::RelationKind::{Gin, Heap, Index as Indexed, NotPages, Other, SpGist, Wal};
use pagehaul_page::{Level, PageDecoder, PageEncoder, Part, RelationLayout};

use crate::btree::Index;
use crate::gin::GinIndex;
use crate::gist::GistIndex;
use crate::hash::HashIndex;
use crate::heap::Table;
use crate::pages::{HEADER_BYTES, PAGE_SIZES, map_page};
use crate::random::Random;
use crate::spgist::SpGistIndex;

/// What a frame holds at most in these tests.
pub(crate) const FRAME_SIZE_BYTES: usize = 1 << 20;

/// Up to this length content is tried as one text too.
const SHORT_FRAME_BYTES: usize = 128 << 10;
/// The first byte of a frame that is one text, and of one of pages that were taken apart.
pub(crate) const PLAIN: u8 = 1;
const PAGES: u8 = 2;

#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    pub(crate) raw: Vec<u8>,
    pub(crate) parts: Vec<OwnedPart>,
}

/// A [`Part`] with its layout.
#[derive(Clone, Debug)]
pub(crate) struct OwnedPart {
    pub(crate) start: usize,
    pub(crate) length: usize,
    pub(crate) first_page: u32,
    pub(crate) layout: RelationLayout,
}

impl Content {
    /// Appends pages that `page` makes.
    pub(crate) fn push(
        &mut self,
        layout: RelationLayout,
        first_page: u32,
        count: u32,
        mut page: impl FnMut(u32) -> Vec<u8>,
    ) {
        let start = self.raw.len();
        for block in 0..count {
            self.raw.extend_from_slice(&page(first_page.wrapping_add(block)));
        }
        self.parts.push(OwnedPart { start, length: self.raw.len() - start, first_page, layout });
    }

    /// One or many parts of any kind, with gaps and cut pages in some.
    pub(crate) fn any(random: &mut Random) -> Self {
        let mut content = Content::default();
        for _ in 0..random.pick(&[1, 1, 1, 2, 3, 8]) {
            content.push_any(random);
            if random.chance(20) {
                let cut = random.below(5000).min(content.raw.len());
                content.raw.truncate(content.raw.len() - cut);
                content.parts.retain(|part| part.start < content.raw.len());
                if let Some(last) = content.parts.last_mut() {
                    last.length = last.length.min(content.raw.len() - last.start);
                }
            }
            if random.chance(20) {
                let gap = random.below(9000);
                content.raw.extend_from_slice(&random.bytes(gap));
            }
        }
        content
    }

    fn push_any(&mut self, random: &mut Random) {
        let size = random.pick(&[PAGE_SIZES[0], PAGE_SIZES[1], PAGE_SIZES[1], PAGE_SIZES[2], PAGE_SIZES[3]]);
        let first = random.pick(&[0, 17, 131_071, u32::MAX - 2]);
        let count = random.within(1..=65536 / size) as u32;
        match random.below(15) {
            13 => {
                let mut index = SpGistIndex::any(random, size);
                self.push(index.layout(), first, count, |block| index.any_page(random, block));
            }
            12 => {
                let mut index = GinIndex::any(random, size);
                self.push(index.layout(), first, count, |block| index.any_page(random, block));
            }
            0 => {
                let layout = RelationLayout::other(size as u32);
                self.push(layout, first, count, |block| map_page(random, size, block));
            }
            1 => {
                let table = Table::any(random, size, 3);
                self.push(table.layout(), first, count, |_| vec![0; size]);
            }
            2 => self.push(RelationLayout::other(size as u32), first, count, |_| random.bytes(size)),
            3..=5 => {
                let mut index = Index::any(random, size);
                self.push(index.layout(), 1, count, |block| index.any_page(random, block));
            }
            6 => {
                let mut index = HashIndex::new(size, random.chance(70));
                self.push(index.layout(), first, count, |block| index.any_page(random, block));
            }
            7 => {
                let mut index = GistIndex::any(random, size);
                self.push(index.layout(), first, count, |block| index.any_page(random, block));
            }
            8 => self.push_wal(random, random.clone().within(1..=60_000)),
            _ => {
                let columns_max = random.pick(&[1, 5, 12, 40]);
                let mut table = Table::any(random, size, columns_max);
                self.push(table.layout(), first, count, |block| table.page(random, block));
            }
        }
    }

    /// Tells something wrong of the content, as a caller with a bug or an old catalog would.
    pub(crate) fn mislead(&mut self, random: &mut Random) {
        let others: Vec<RelationLayout> = self.parts.iter().map(|part| part.layout.clone()).collect();
        for part in &mut self.parts {
            match random.below(9) {
                0 => part.layout = Table::any(random, PAGE_SIZES[1], 12).layout(),
                1 => part.layout = others[random.below(others.len())].clone(),
                2 => part.layout.kind = random.pick(&[Heap, Indexed, Gin, SpGist, Other, Wal]),
                3 => part.layout.page_size_bytes = random.pick(&[0, 512, 4096, 8192, 32768, u32::MAX]),
                4 => part.start = random.pick(&[part.start + 4096, part.start / 2, usize::MAX, part.start + 1]),
                5 => part.length = random.pick(&[usize::MAX, part.length + 8192, part.length / 3, 0]),
                6 => part.first_page = random.next() as u32,
                7 => part.layout.attributes.reverse(),
                _ => {}
            }
        }
        if random.chance(20) {
            let again = self.parts[random.below(self.parts.len())].clone();
            self.parts.insert(random.below(self.parts.len()), again);
        }
    }

    /// Changes up to 20 bytes, mostly where they steer the codec.
    pub(crate) fn spoil(&mut self, random: &mut Random) {
        for _ in 0..random.within(0..=20) {
            let part = &self.parts[random.below(self.parts.len())];
            let size = part.layout.page_size_bytes as usize;
            if part.length < size || size == 0 {
                continue;
            }
            let page_at = part.start + random.below(part.length / size) * size;
            let page = &self.raw[page_at..page_at + size];
            let half = |at: usize| usize::from(u16::from_le_bytes([page[at], page[at + 1]]));
            let pointers = (half(12).clamp(HEADER_BYTES, size) - HEADER_BYTES) / 4;
            let pointer_at = HEADER_BYTES + 4 * random.below(pointers.max(1));
            let tuple_at = (half(pointer_at) & 0x7FFF).min(size - 64);
            let at = match random.below(10) {
                0 => random.below(HEADER_BYTES),
                1 | 2 => pointer_at + random.below(4),
                3 | 4 => tuple_at + random.below(8),
                5 | 6 => tuple_at + random.below(32),
                7 => tuple_at + random.below(64),
                8 => size - 1 - random.below(16),
                _ => random.below(size),
            };
            let byte = &mut self.raw[page_at + at];
            *byte = match random.below(4) {
                0 => *byte ^ 1 << random.below(8),
                1 => byte.wrapping_add(1),
                2 => random.pick(&[0, 1, 0xFF, 0x80]),
                _ => random.next() as u8,
            };
        }
    }

    pub(crate) fn parts(&self) -> Vec<Part<'_>> {
        let told = |part: &'_ OwnedPart| (part.start, part.length, part.first_page);
        self.parts
            .iter()
            .map(|part| {
                let (start, length, first_page) = told(part);
                Part { start, length, first_page, layout: &part.layout }
            })
            .collect()
    }
}

/// An encoder and a decoder that see frame after frame.
pub(crate) struct Codec {
    pub(crate) encoder: PageEncoder,
    pub(crate) decoder: PageDecoder,
}

impl Codec {
    pub(crate) fn new(level: u8) -> Self {
        Codec {
            encoder: PageEncoder::new(Level::new(level).unwrap(), FRAME_SIZE_BYTES).unwrap(),
            decoder: PageDecoder::new().unwrap(),
        }
    }

    /// Of the lowest level whose frames may have every kind of stream: levels below do not take apart what pglz has packed.
    pub(crate) fn of_all_streams() -> Self {
        Codec::new(4)
    }

    pub(crate) fn encode(&mut self, content: &Content) -> Vec<u8> {
        let mut stored = vec![0; content.raw.len() + content.raw.len() / 2 + 4096];
        let length = self.encoder.encode(&content.raw, &content.parts(), &mut stored).unwrap();
        stored.truncate(length.expect("a frame is hardly larger than its content"));
        stored
    }

    /// The same within a frame too long to be tried as one text, and behind it nothing that repeats: pages that were taken apart and
    /// did not come back out of the proof, which an encoder hides, are seen here.
    pub(crate) fn round_trip_apart(&mut self, content: &Content) {
        let mut long = content.clone();
        let missing = (SHORT_FRAME_BYTES + 1).saturating_sub(long.raw.len());
        long.raw.extend_from_slice(&Random::new(1).bytes(missing));
        let stored = self.round_trip(&long);
        let end = content.raw.len();
        let has_pages = content.parts.iter().any(|part| {
            let is_within = part.length > 0 && part.start.checked_add(part.length).is_some_and(|to| to <= end);
            is_within && part.layout.kind != NotPages && PAGE_SIZES.contains(&(part.layout.page_size_bytes as usize))
        });
        assert!(!has_pages || stored[0] == PAGES, "pages were taken apart, and did not come back");
    }

    /// The frame of `content`, which has been seen to come back.
    pub(crate) fn round_trip(&mut self, content: &Content) -> Vec<u8> {
        let stored = self.encode(content);
        let mut back = vec![0xA5; content.raw.len()];
        self.decoder.decode(&stored, &mut back).expect("what was encoded can be decoded");
        assert!(back == content.raw, "other bytes came back");
        stored
    }
}
