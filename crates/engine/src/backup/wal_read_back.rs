//! Reads the stored WAL back from the finished stripes: a set is complete only if every segment from start to stop is
//! in it and is what its name says.

use super::set_writer::SetWriter;
use crate::error::{Error, ErrorKind, Result};
use crate::format::file_table::FileTable;
use crate::format::manifest::StripeRecord;
use crate::format::stripe::{FOOTER_BYTES, Footer, FrameIndex};
use crate::pipeline::StripeInput;
use crate::pipeline::frame_reader::FrameReader;
use crate::source::postgres::wal::{WalExpectation, WalSegmentCheck, page_magic};
use crate::source::postgres::wal_records::{MappedDatabase, WalPlace, WalWalker};
use crate::storage::at_once;
use crate::terms::{Lsn, SetIndex, StripeIndex};

/// How much is checked at once.
const READ_BYTES: usize = 1024 * 1024;

/// Which WAL must be there.
pub(super) struct WalReadBack {
    pub(super) expectation: WalExpectation,
    pub(super) start_lsn: Lsn,
    pub(super) stop_lsn: Lsn,
}

/// Opens the finished stripes of `set` again, to read what is really in them.
///
/// # Errors
/// `Repository` if one is not there, `Damage` if its trailer is not what was written.
pub(super) fn reopen(set: &SetWriter<'_>, records: &[StripeRecord], frame_size_bytes: u32) -> Result<FrameReader> {
    let stripes = at_once((0..records.len()).collect(), |number| {
        let missing =
            || Error::new(ErrorKind::Repository, format!("read back {}", set.stripe_path(number)), "it is not there");
        let object = set.open_stripe(number)?.ok_or_else(missing)?;
        let mut footer = [0u8; FOOTER_BYTES];
        object.read_at(&mut footer, object.size_bytes().saturating_sub(FOOTER_BYTES as u64))?;
        let footer = Footer::from_bytes(&footer, object.size_bytes())?;
        let mut bytes = vec![0u8; footer.index_size_bytes as usize];
        object.read_at(&mut bytes, footer.index_offset)?;
        let index = FrameIndex::from_bytes(&bytes, &footer)?;
        let (set_id, stripe) = (set.set_id, StripeIndex(number as u16));
        Ok(StripeInput { set: SetIndex::OWN, set_id, frame_size_bytes, stripe, object, index, extents: Vec::new() })
    })?;
    Ok(FrameReader::new(stripes))
}

/// Says of damage that it was found in time.
fn does_not_come_back(error: Error) -> Error {
    if error.kind() != ErrorKind::Damage {
        return error;
    }
    let hint = error.hint_text().map_or_else(
        || "run it again; if that happens again, test memory, CPU and what encodes, and do not switch --decode-back off".to_owned(),
        str::to_owned,
    );
    Error::new(ErrorKind::Damage, "read the WAL of the set back before it is committed", error.message())
        .hint(format!("nothing of this set is kept, and earlier ones are not touched: {hint}"))
}

impl WalReadBack {
    /// Reads and checks each segment; gives the databases whose map of relations is written anew from the start on.
    ///
    /// # Errors
    /// `Repository` if a stripe does not read, `Damage` if a segment is missing or not the right one.
    pub(super) fn check(&self, reader: &mut FrameReader, table: &FileTable) -> Result<Vec<MappedDatabase>> {
        self.check_segments(reader, table).map_err(does_not_come_back)
    }

    fn check_segments(&self, reader: &mut FrameReader, table: &FileTable) -> Result<Vec<MappedDatabase>> {
        let segment_size = self.expectation.segment_size_bytes;
        let first = self.start_lsn.0 / segment_size * segment_size;
        let mut buffer = vec![0u8; READ_BYTES];
        let mut mapped = Vec::new();
        let mut walker = self.walker(first);
        for segment_start in (first..self.stop_lsn.0).step_by(segment_size as usize) {
            let mut check = WalSegmentCheck::new(self.expectation, Lsn(segment_start), self.stop_lsn)?;
            let path = format!("pg_wal/{}", check.name());
            let lost = || Error::new(ErrorKind::Damage, format!("find {path} in the set"), "it was not stored");
            let file = table.ids().rfind(|file| table.path(*file) == path.as_bytes()).ok_or_else(lost)?;
            let size_bytes = table.entry(file).size_bytes;
            let mut offset = 0;
            while offset < size_bytes {
                let length = (size_bytes - offset).min(buffer.len() as u64) as usize;
                reader.read(table, file, offset, &mut buffer[..length])?;
                check.feed(&buffer[..length])?;
                walker.feed(&buffer[..length]);
                offset += length as u64;
            }
            check.finish()?;
            // Behind a segment that ends early the next one begins anew.
            if walker.take_facts().ends_with_switch {
                mapped.extend_from_slice(walker.mapped_databases());
                walker = self.walker(segment_start + segment_size);
            }
        }
        mapped.extend_from_slice(walker.mapped_databases());
        mapped.retain(|database| database.at >= self.start_lsn);
        Ok(mapped)
    }

    fn walker(&self, start: u64) -> WalWalker {
        let WalExpectation { major, segment_size_bytes, block_size_bytes, .. } = self.expectation;
        WalWalker::new(WalPlace {
            start: Lsn(start),
            page_magic: page_magic(major).unwrap_or_default(),
            block_size_bytes,
            segment_size_bytes: segment_size_bytes as u32,
        })
    }
}
