//! Writes extents into images, and checks all that verifying checks on the way.

use std::collections::BTreeMap;

use pagehaul_engine::error::Result;

use super::image::Images;
use crate::bytes::BakFile;
use crate::facts::FileFacts;
use crate::ledger::{PageLedger, place_of};
use crate::mtf::{Block, MtfSink, Place, Sector, StreamHeader, StreamKind, Want};
use crate::page::{EXTENT_PAGES, PageCheck};
use crate::verify::SetKey;
use crate::verify::set_check::VerifySink;
use crate::walk::FileSink;

/// One file of the set.
pub(super) struct ImageSink<'a> {
    verify: VerifySink<'a>,
    position: u16,
    images: &'a mut Images,
    pages: Vec<PageCheck>,
    content: Vec<u8>,
    /// The first thing that went wrong with an image.
    failure: Result<()>,
}

impl<'a> ImageSink<'a> {
    /// Takes set `position` out of `file`, which is number `index` of the set's files.
    pub(super) fn new(
        file: &BakFile,
        index: usize,
        position: u16,
        ledgers: &'a mut BTreeMap<SetKey, PageLedger>,
        images: &'a mut Images,
    ) -> Result<Self> {
        let verify = VerifySink::new(file, index, ledgers)?;
        Ok(ImageSink { verify, position, images, pages: Vec::new(), content: Vec::new(), failure: Ok(()) })
    }

    /// What the file's blocks said, and what is damaged.
    ///
    /// # Errors
    /// If an image could not be written.
    pub(super) fn finish(self) -> Result<FileFacts> {
        self.failure?;
        Ok(self.verify.finish().facts)
    }

    fn take(&mut self, sector: Sector<'_>) {
        if self.pages.last().is_none_or(PageCheck::is_whole) {
            self.pages.push(PageCheck::default());
        }
        if let Some(page) = self.pages.last_mut() {
            page.add(sector.bytes, sector.xor, sector.is_lost);
        }
        self.content.extend_from_slice(sector.bytes);
        if self.pages.len() == EXTENT_PAGES && self.pages.last().is_some_and(PageCheck::is_whole) {
            self.place();
        }
    }

    /// Writes the extent at hand to where its pages say; fillers and extents without a place belong nowhere.
    fn place(&mut self) {
        let verdicts: Vec<_> = self.pages.iter().map(PageCheck::verdict).collect();
        if let Some((base, _)) = place_of(&self.pages, &verdicts)
            && self.failure.is_ok()
        {
            self.failure = self.images.write(base, self.verify.data_ordinal(), &self.content);
        }
        self.pages.clear();
        self.content.clear();
    }
}

impl MtfSink for ImageSink<'_> {
    fn block(&mut self, at: Place, block: &Block) {
        self.verify.block(at, block);
    }

    fn stream(&mut self, at: Place, stream: &StreamHeader) -> Want {
        self.verify.stream(at, stream)
    }

    fn gathered(&mut self, at: Place, stream: &StreamHeader, content: &[u8]) {
        self.verify.gathered(at, stream, content);
    }

    fn sector(&mut self, at: Place, sector: Sector<'_>) {
        if self.verify.is_in_data_of(self.position) {
            self.take(sector);
        }
        self.verify.sector(at, sector);
    }

    fn stream_end(&mut self, at: Place, stream: &StreamHeader, is_cut: bool) {
        if stream.kind == StreamKind::Pages && !self.pages.is_empty() {
            self.place();
        }
        self.verify.stream_end(at, stream, is_cut);
    }

    fn damage(&mut self, at: Place, cause: String) {
        self.verify.damage(at, cause);
    }
}

impl FileSink for ImageSink<'_> {
    fn chunk_damage(&mut self, at: Place, cause: String) {
        self.verify.chunk_damage(at, cause);
    }
}
