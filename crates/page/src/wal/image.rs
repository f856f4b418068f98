//! Images of pages in records: put together with their hole, they go through the model of pages.

use super::record::{Block, HAS_HOLE, ImageForm};
use super::streams::{WalBytes, WalNumber, WalStreams};
use crate::error::{Damaged, Decoded};
use crate::layout::{PAGE_SIZES_BYTES, RelationKind};
use crate::postgres::wire::{is_zero, put_bytes, u16_at};
use crate::postgres::{Columns, PageMaker, PageSource, PageStreams, PageTaker, kind_of_page};
use crate::prefetch::Ahead;

/// SizeOfPageHeaderData.
const PAGE_HEADER_BYTES: usize = 24;

/// The number in the stream of image kinds of one that is stored as it is; others are the kind of their page.
const AS_IT_IS: u8 = RelationKind::NotPages as u8;

/// What taking and making images need beside the streams; keeps its memory.
#[derive(Debug, Default)]
pub(super) struct Images {
    page: Vec<u8>,
    /// No columns, but a page asks for some: of pages of tables and other pages, and of pages of indexes.
    table: Columns,
    index: Columns,
}

/// Where the hole of a page is, as the server cuts it out.
fn hole_of(page: &[u8]) -> Option<(usize, usize)> {
    let (lower, upper) = (usize::from(u16_at(page, 12)), usize::from(u16_at(page, 14)));
    (lower >= PAGE_HEADER_BYTES && lower < upper && upper <= page.len()).then_some((lower, upper))
}

impl Images {
    pub(super) fn begin(&mut self) {
        self.table.begin(&[], false);
        self.index.begin(&[], true);
    }

    fn columns(&mut self, kind: RelationKind) -> &mut Columns {
        if kind == RelationKind::Index { &mut self.index } else { &mut self.table }
    }

    /// Appends `image` of `block` to the streams.
    pub(super) fn take(
        &mut self,
        image: &[u8],
        block: &Block,
        wal: &mut WalStreams,
        pages: &mut PageTaker,
        page_streams: &mut PageStreams,
    ) {
        if !self.put_together(image, block, &mut wal.image_page_size) {
            wal.byte(WalBytes::ImageKind).values.push(AS_IT_IS);
            wal.byte(WalBytes::RawImage).values.extend_from_slice(image);
            wal.number(WalNumber::ImageLength).values.push(image.len() as u32);
            wal.number(WalNumber::HoleOffset).values.push(block.hole_offset.into());
            if block.has_hole_length() {
                wal.number(WalNumber::HoleLength).values.push(block.hole_length.into());
            }
            return;
        }
        let kind = kind_of_page(&self.page);
        wal.byte(WalBytes::ImageKind).values.push(kind as u8);
        let page = std::mem::take(&mut self.page);
        pages.take(&page, block.number, kind, self.columns(kind), page_streams);
        self.page = page;
    }

    /// Whether `image` is of a page of `page_size`, or of the first one met, and its hole is where that page says.
    fn put_together(&mut self, image: &[u8], block: &Block, page_size: &mut usize) -> bool {
        if block.form != ImageForm::Plain || image.len() < PAGE_HEADER_BYTES {
            return false;
        }
        let has_hole = block.image_flags & HAS_HOLE != 0;
        let size = if has_hole { usize::from(u16_at(image, 18) & 0xFF00) } else { image.len() };
        let is_size = PAGE_SIZES_BYTES.contains(&(size as u32)) && (*page_size == 0 || *page_size == size);
        if !is_size || image.len() > size {
            return false;
        }
        let start = usize::from(block.hole_offset);
        let end = start + size - image.len();
        if has_hole {
            let is_of_page = start >= PAGE_HEADER_BYTES && start < end && end <= size;
            // The bounds as `hole_of` reads them, and in order, so that the model of pages does not keep the hole.
            let special = usize::from(u16_at(image, 16));
            let bounds = [u16_at(image, 12), u16_at(image, 14)].map(usize::from);
            let is_in_order = bounds == [start, end] && end <= special && special <= size;
            if !is_of_page || !is_in_order || usize::from(u16_at(image, 18)) != size + 4 {
                return false;
            }
        } else if start != 0 {
            return false;
        }
        *page_size = size;
        self.page.clear();
        if has_hole {
            self.page.extend_from_slice(&image[..start]);
            self.page.resize(end, 0);
            self.page.extend_from_slice(&image[start..]);
        } else {
            self.page.extend_from_slice(image);
        }
        true
    }

    /// Puts the next image, of `block`, at `at` of the body; sets what its header says. Its length.
    pub(super) fn make(
        &mut self,
        at: usize,
        block: &mut Block,
        wal: &mut WalStreams,
        pages: &mut PageMaker,
        page_streams: &mut PageStreams,
        text: &[u8],
    ) -> Decoded<usize> {
        let kind = wal.byte(WalBytes::ImageKind).next()?;
        if kind == AS_IT_IS {
            let length = wal.number(WalNumber::ImageLength).next()?;
            block.image_length = u16::try_from(length).map_err(|_| BAD_IMAGE)?;
            block.hole_offset = wal.number(WalNumber::HoleOffset).next()? as u16;
            if block.has_hole_length() {
                block.hole_length = wal.number(WalNumber::HoleLength).next()? as u16;
            }
            let (streams, body) = (&mut wal.bytes, &mut wal.body);
            put_bytes(body, at, streams[WalBytes::RawImage as usize].take(length as usize)?)?;
            return Ok(length as usize);
        }
        // Those that `kind_of_page` tells.
        let is_told =
            |kind: &RelationKind| matches!(kind, RelationKind::Other | RelationKind::Heap | RelationKind::Index);
        let kind = RelationKind::from_u8(kind).filter(is_told).ok_or(BAD_IMAGE)?;
        if wal.image_page_size == 0 || block.form != ImageForm::Plain {
            return Err(BAD_IMAGE);
        }
        let mut page = std::mem::take(&mut self.page);
        page.resize(wal.image_page_size, 0);
        let columns = self.columns(kind);
        let source = PageSource {
            block: block.number,
            kind,
            columns,
            streams: page_streams,
            text,
            right_checksum: None,
            ahead: Ahead::default(),
        };
        let made = pages.make(&mut page, source);
        self.page = page;
        made?;
        let (start, end) = match block.image_flags & HAS_HOLE {
            0 => (0, 0),
            _ => hole_of(&self.page).filter(|(start, end)| is_zero(&self.page[*start..*end])).ok_or(BAD_IMAGE)?,
        };
        block.hole_offset = start as u16;
        let length = self.page.len() - (end - start);
        block.image_length = u16::try_from(length).map_err(|_| BAD_IMAGE)?;
        put_bytes(&mut wal.body, at, &self.page[..start])?;
        put_bytes(&mut wal.body, at + start, &self.page[end..])?;
        Ok(length)
    }
}

const BAD_IMAGE: Damaged = Damaged("an image in a record is not one of a page");
