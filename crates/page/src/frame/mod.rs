//! The content of a frame as streams, in the order in which a frame holds them.

mod maker;
mod taker;

use crate::layout::{ATTRIBUTES_MAX, PAGE_SIZES_BYTES, RelationKind, RelationLayout};
use crate::postgres::{Columns, PageStreams};
use crate::values::Text;
use crate::wal::WalStreams;

pub(crate) use maker::FrameMaker;
pub(crate) use taker::FrameTaker;

/// The most layouts of one frame; further ones are taken for pages of which nothing is known.
const LAYOUTS_MAX: usize = 4096;

/// The most columns of all layouts of one frame together; a layout that goes beyond is taken for bytes. A frame of 4 MiB
/// in which every page is of another relation has about half of them.
const COLUMNS_MAX: usize = 8192;

/// A run of content as a frame tells of it. Runs follow one another without gaps.
#[derive(Clone, Copy, Debug)]
struct Run {
    length: usize,
    first_page: u32,
    /// Which layout, from 1; 0 for bytes that are not pages.
    layout: usize,
}

/// A page, not of WAL, whose checksum was computed and is the one it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Computed {
    /// Where in the frame's content it starts.
    at: usize,
    /// The number it was computed with.
    block: u32,
    checksum: u16,
}

/// The layouts of one frame with the columns that were found by them; memory is kept from frame to frame.
#[derive(Debug, Default)]
struct Layouts {
    layouts: Vec<RelationLayout>,
    columns: Vec<Columns>,
    count: usize,
    /// Columns of all of them.
    column_count: usize,
}

/// The streams of one frame, between content and the bytes of a frame. Who proves a frame has them made again in the same
/// memory, which is near then.
#[derive(Debug)]
pub(crate) struct FrameStreams {
    runs: Vec<Run>,
    layouts: Layouts,
    pages: PageStreams,
    wal: WalStreams,
    text: Text,
    kept_bytes_max: usize,
}

/// Streams that frames leave behind, in bytes per byte of content: one frame's streams take up to twice its content, and
/// as much again in room to grow.
const KEPT_PER_CONTENT: usize = 4;

impl FrameStreams {
    /// How many columns the layouts of the last frame have together.
    pub(crate) fn column_count(&self) -> usize {
        self.layouts.column_count
    }

    /// Larger frames than those of `frame_size_bytes` have streams too; after them memory is given back.
    pub(crate) fn new(frame_size_bytes: usize) -> Self {
        FrameStreams {
            runs: Vec::new(),
            layouts: Layouts::default(),
            pages: PageStreams::default(),
            wal: WalStreams::default(),
            text: Text::default(),
            kept_bytes_max: KEPT_PER_CONTENT * frame_size_bytes,
        }
    }

    /// Starts a frame: nothing is in any stream. Those of earlier frames, which had other relations in other places, are given back
    /// when they keep too much: without that, memory would grow to the sum of all columns ever seen.
    fn begin(&mut self) {
        let columns = self.layouts.columns.iter().map(Columns::held_bytes).sum::<usize>();
        if columns + self.pages.held_bytes() + self.wal.held_bytes() > self.kept_bytes_max {
            self.layouts = Layouts::default();
            self.pages = PageStreams::default();
            self.wal = WalStreams::default();
        }
        self.runs.clear();
        self.layouts.count = 0;
        self.layouts.column_count = 0;
        self.pages.clear();
        self.wal.clear();
        self.text.clear();
    }

    /// What documents of earlier frames may keep.
    fn kept_documents_bytes_max(&self) -> usize {
        self.kept_bytes_max / 2
    }
}

impl Layouts {
    /// Whether a layout is that of WAL.
    fn have_wal(&self) -> bool {
        self.layouts[..self.count].iter().any(|layout| layout.kind == RelationKind::Wal)
    }

    /// The number of `layout`, from 1; 0 if there is no room for another one.
    fn number_of(&mut self, layout: &RelationLayout) -> usize {
        if let Some(known) = self.layouts[..self.count].iter().position(|known| known == layout) {
            return known + 1;
        }
        let column_count = self.column_count + layout.attributes.len();
        if self.count == LAYOUTS_MAX || column_count > COLUMNS_MAX {
            return 0;
        }
        self.column_count = column_count;
        if self.layouts.len() == self.count {
            self.layouts.push(RelationLayout::default());
            self.columns.push(Columns::default());
        }
        // Piece by piece: a clone of the whole would allocate its list anew.
        let RelationLayout { kind, page_size_bytes, attributes } = layout;
        let kept = &mut self.layouts[self.count];
        (kept.kind, kept.page_size_bytes) = (*kind, *page_size_bytes);
        kept.attributes.clone_from(attributes);
        self.columns[self.count].begin(&layout.attributes, layout.kind.is_index());
        self.count += 1;
        self.count
    }
}

/// Whether pages of such a layout can be taken apart.
fn is_known(layout: &RelationLayout) -> bool {
    layout.kind != RelationKind::NotPages
        && PAGE_SIZES_BYTES.contains(&layout.page_size_bytes)
        && layout.attributes.len() <= ATTRIBUTES_MAX
}

#[cfg(test)]
mod tests {
    use twox_hash::XxHash3_64;

    use super::*;
    use crate::checksum::{CHECKSUM_OFFSET, page_checksum};
    use crate::{Level, Part};

    /// Pages without tuples, whose header and checksum are in order.
    fn pages(count: u32) -> Vec<u8> {
        let page = |block| {
            let mut page = vec![0; 8192];
            for (at, field) in [(12, 24u16), (14, 8000), (16, 8192), (18, 8196)] {
                page[at..at + 2].copy_from_slice(&field.to_le_bytes());
            }
            page[8000..].fill(7);
            let checksum = page_checksum(&page, block);
            page[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 2].copy_from_slice(&checksum.to_le_bytes());
            page
        };
        (0..count).flat_map(page).collect()
    }

    #[test]
    fn f54_a_checksum_that_was_computed_proves_its_own_page_only() {
        let mut raw = pages(4);
        let layout = RelationLayout { kind: RelationKind::Heap, page_size_bytes: 8192, attributes: Vec::new() };
        let part = Part { start: 0, length: raw.len(), first_page: 0, layout: &layout };
        raw.extend(b"and bytes that are no page");
        let mut taker = FrameTaker::new(Level::DEFAULT, raw.len()).unwrap();
        let mut maker = FrameMaker::new().unwrap();
        let streams = &mut FrameStreams::new(raw.len());
        let mut coded = Vec::new();
        assert!(taker.take(&raw, &[part], streams, &mut coded));
        let computed = taker.computed_checksums();
        assert_eq!((computed.len(), computed[3].at, computed[3].block), (4, 3 * 8192, 3));
        let digest = maker.proves(&coded, streams, &raw, computed).unwrap();
        let mut back = vec![0; raw.len()];
        assert_eq!(maker.make(&coded, streams, &mut back).ok(), digest);
        assert!(digest == Some(XxHash3_64::oneshot(&raw)) && back == raw);
        // Memory changes a bit of a checksum that was found right.
        raw[8192 + CHECKSUM_OFFSET] ^= 1;
        assert_eq!(maker.proves(&coded, streams, &raw, computed), Ok(None));
        raw[8192 + CHECKSUM_OFFSET] ^= 1;
        // As a bug would: the pages come back as others of their relation, with other checksums and nothing else.
        let head = [1, RelationKind::Heap as u8, 13, 0, 2, 0x80, 0x80, 2, 1, 0];
        assert_eq!(coded[..head.len()], head);
        coded[head.len() - 1] = 1;
        maker.make(&coded, streams, &mut back).unwrap();
        assert!(back != raw);
        assert_eq!(maker.proves(&coded, streams, &raw, computed), Ok(None));
        // Who computed it is taken at their word.
        let elsewhere: Vec<Computed> =
            computed.iter().map(|page| Computed { block: page.block + 1, ..*page }).collect();
        assert_ne!(maker.proves(&coded, streams, &raw, &elsewhere), Ok(None));
    }

    #[test]
    fn f54_streams_that_a_frame_was_taken_apart_into_prove_nothing_of_its_bytes() {
        let raw = pages(4);
        let other: Vec<u8> = raw.iter().map(|byte| if *byte == 7 { 9 } else { *byte }).collect();
        let layout = RelationLayout { kind: RelationKind::Heap, page_size_bytes: 8192, attributes: Vec::new() };
        let part = Part { start: 0, length: raw.len(), first_page: 0, layout: &layout };
        let mut taker = FrameTaker::new(Level::DEFAULT, raw.len()).unwrap();
        let mut maker = FrameMaker::new().unwrap();
        let streams = &mut FrameStreams::new(raw.len());
        let mut taken = |raw: &[u8], streams: &mut FrameStreams| {
            let mut coded = Vec::new();
            assert!(taker.take(raw, &[part], streams, &mut coded));
            coded
        };
        let coded_other = taken(&other, streams);
        let coded = taken(&raw, streams);
        // Each time all streams of `raw` are there, as they are when its frame is proven.
        for end in 0..coded.len() {
            assert_eq!(taken(&raw, streams), coded);
            assert!(maker.proves(&coded[..end], streams, &raw, &[]).is_err(), "{end}");
        }
        assert_eq!(taken(&raw, streams), coded);
        assert_eq!(maker.proves(&coded_other, streams, &raw, &[]), Ok(None));
        assert_eq!(maker.proves(&coded, streams, &raw, &[]), Ok(Some(XxHash3_64::oneshot(&raw))));
    }
}
