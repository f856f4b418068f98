//! The content of a frame as streams, in the order in which a frame holds them.

mod maker;
mod taker;

use crate::layout::{ATTRIBUTES_MAX, PAGE_SIZES_BYTES, RelationKind, RelationLayout};
use crate::postgres::{Columns, PageStreams};
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

/// The layouts of one frame with the columns that were found by them; memory is kept from frame to frame.
#[derive(Debug, Default)]
struct Layouts {
    layouts: Vec<RelationLayout>,
    columns: Vec<Columns>,
    count: usize,
    /// Columns of all of them.
    column_count: usize,
}

/// Starts a frame. Streams of earlier frames, which had other relations in other places, are given back when they keep
/// more than `kept_bytes_max`: without that, memory would grow to the sum of all columns ever seen.
fn begin_frame(layouts: &mut Layouts, streams: &mut PageStreams, wal: &mut WalStreams, kept_bytes_max: usize) {
    let columns = layouts.columns.iter().map(Columns::held_bytes).sum::<usize>();
    if columns + streams.held_bytes() + wal.held_bytes() > kept_bytes_max {
        *layouts = Layouts::default();
        *streams = PageStreams::default();
        *wal = WalStreams::default();
    }
    wal.clear();
    layouts.count = 0;
    layouts.column_count = 0;
    streams.clear();
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
        self.layouts[self.count].clone_from(layout);
        self.columns[self.count]
            .begin(&layout.attributes, matches!(layout.kind, RelationKind::Index | RelationKind::Gin));
        self.count += 1;
        self.count
    }
}

/// Streams that frames leave behind, in bytes per byte of content: one frame's streams take up to twice its content, and
/// as much again in room to grow.
pub(crate) const KEPT_PER_CONTENT: usize = 4;

/// Whether pages of such a layout can be taken apart.
fn is_known(layout: &RelationLayout) -> bool {
    layout.kind != RelationKind::NotPages
        && PAGE_SIZES_BYTES.contains(&layout.page_size_bytes)
        && layout.attributes.len() <= ATTRIBUTES_MAX
}
