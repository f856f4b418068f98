//! What verifying does with blocks, streams and sectors of one file.

use std::collections::BTreeMap;

use pagehaul_engine::error::Result;

use super::SetKey;
use super::extent::ExtentCheck;
use crate::bytes::BakFile;
use crate::checksum::SectorSum;
use crate::damage::Layer;
use crate::facts::{FactsSink, FileFacts};
use crate::ledger::{Origin, PageLedger};
use crate::mtf::{Block, BlockKind, MtfSink, Place, Sector, StreamHeader, StreamKind, Want};
use crate::source::Layout;
use crate::walk::FileSink;
use crate::wire::Fields;

/// The sum of a stream, until the stream with what it should be comes.
#[derive(Clone, Copy, Debug)]
struct StreamSum {
    sum: SectorSum,
    is_lost: bool,
    is_checked: bool,
    at: Place,
}

/// What one file came to.
pub(crate) struct Outcome {
    pub(crate) facts: FileFacts,
    pub(crate) stream_bytes: u64,
    pub(crate) backup_checksum_count: u64,
}

/// Checks one file.
pub(crate) struct VerifySink<'a> {
    facts: FactsSink,
    file: usize,
    ledgers: &'a mut BTreeMap<SetKey, PageLedger>,
    extent: ExtentCheck,
    /// Which data block it is of its set, from 0: a later one has newer copies.
    data_ordinal: u32,
    sum: StreamSum,
    /// The stream before said that its checksum follows.
    wants_checksum: Option<Place>,
    backup_checksum_count: u64,
    last_at: u64,
}

impl<'a> VerifySink<'a> {
    pub(crate) fn new(
        file: &BakFile,
        index: usize,
        ledgers: &'a mut BTreeMap<SetKey, PageLedger>,
    ) -> Result<VerifySink<'a>> {
        Ok(VerifySink {
            facts: FactsSink::new(file)?,
            file: index,
            ledgers,
            extent: ExtentCheck::default(),
            data_ordinal: 0,
            sum: StreamSum { sum: SectorSum::default(), is_lost: false, is_checked: false, at: Place::default() },
            wants_checksum: None,
            backup_checksum_count: 0,
            last_at: 0,
        })
    }

    pub(crate) fn finish(mut self) -> Outcome {
        self.checksum_is_missing();
        Outcome {
            facts: self.facts.finish(),
            stream_bytes: self.last_at,
            backup_checksum_count: self.backup_checksum_count,
        }
    }

    /// Which data block of its set the one at hand is, from 0.
    pub(crate) fn data_ordinal(&self) -> u32 {
        self.data_ordinal
    }

    /// Whether pages of set `position` come now.
    pub(crate) fn is_in_data_of(&self, position: u16) -> bool {
        self.facts.block == Some(BlockKind::Data) && self.facts.set_number() == Some(position)
    }

    /// A stream said that its checksum follows, and something else did.
    fn checksum_is_missing(&mut self) {
        if let Some(at) = self.wants_checksum.take() {
            self.facts.tell(Layer::BackupChecksum, Some(at), "the stream's checksum is missing".to_owned());
        }
    }

    fn hand_over_extent(&mut self) {
        let family = self.facts.facts.family.map(|family| family.media_set_guid);
        let key = (family.unwrap_or_default(), self.facts.set_number().unwrap_or_default());
        let ledger = self.ledgers.entry(key).or_default();
        let origin = Origin {
            file: self.file,
            at: Place::default(),
            ordinal: self.data_ordinal,
            is_plain: self.facts.facts.layout == Layout::Plain,
        };
        let facts = &mut self.facts;
        self.extent.hand_over(origin, ledger, &mut |at, cause| facts.tell(Layer::Page, Some(at), cause));
    }

    fn checksum(&mut self, at: Place, content: &[u8]) {
        self.wants_checksum = None;
        let StreamSum { sum, is_lost, is_checked, at: begin } = self.sum;
        self.sum.is_checked = false;
        if is_lost || !is_checked {
            return;
        }
        match Fields(content).u32(0) {
            Ok(stored) if stored == sum.value() => self.backup_checksum_count += 1,
            Ok(stored) => {
                let cause = format!(
                    "backup checksum is {stored:#010x}, but the stream from byte {} to here has {:#010x}",
                    begin.file_offset,
                    sum.value()
                );
                self.facts.tell(Layer::BackupChecksum, Some(at), cause);
            }
            Err(cause) => self.facts.tell(Layer::BackupChecksum, Some(at), cause),
        }
    }
}

impl MtfSink for VerifySink<'_> {
    fn block(&mut self, at: Place, block: &Block) {
        self.checksum_is_missing();
        self.last_at = at.stream_offset + block.bytes.len() as u64;
        match block.kind {
            BlockKind::SetStart => self.data_ordinal = 0,
            BlockKind::Data if self.facts.facts.sets.last().is_some_and(|set| set.has_data) => self.data_ordinal += 1,
            _ => {}
        }
        self.facts.block(at, block);
    }

    fn stream(&mut self, at: Place, stream: &StreamHeader) -> Want {
        if stream.kind != StreamKind::Checksum {
            self.checksum_is_missing();
        }
        match stream.kind {
            StreamKind::Pages | StreamKind::Log if stream.size_bytes > 0 => {
                self.sum = StreamSum { sum: SectorSum::default(), is_lost: false, is_checked: true, at };
                if stream.kind == StreamKind::Pages && stream.size_bytes % 8192 != 2 {
                    let cause = format!("stream {} of {} bytes is no whole pages", stream.name(), stream.size_bytes);
                    self.facts.tell(Layer::Structure, Some(at), cause);
                }
                Want::Sectors
            }
            StreamKind::Checksum => Want::Gather,
            _ => self.facts.stream(at, stream),
        }
    }

    fn gathered(&mut self, at: Place, stream: &StreamHeader, content: &[u8]) {
        if stream.kind == StreamKind::Checksum {
            return self.checksum(at, content);
        }
        self.facts.gathered(at, stream, content);
    }

    fn sector(&mut self, at: Place, sector: Sector<'_>) {
        self.sum.sum.add(sector.xor);
        self.sum.is_lost |= sector.is_lost;
        let is_data = self.facts.block == Some(BlockKind::Data);
        if is_data && self.extent.add(at, sector) {
            self.hand_over_extent();
        }
    }

    fn stream_end(&mut self, at: Place, stream: &StreamHeader, is_cut: bool) {
        self.last_at = at.stream_offset;
        if stream.kind == StreamKind::Pages {
            self.hand_over_extent();
        }
        self.sum.is_lost |= is_cut;
        if stream.has_checksum() && !is_cut {
            self.wants_checksum = Some(at);
        }
    }

    fn damage(&mut self, at: Place, cause: String) {
        self.wants_checksum = None;
        self.facts.damage(at, cause);
    }
}

impl FileSink for VerifySink<'_> {
    fn chunk_damage(&mut self, at: Place, cause: String) {
        // What was to follow may be what was lost.
        self.wants_checksum = None;
        self.facts.chunk_damage(at, cause);
    }
}
