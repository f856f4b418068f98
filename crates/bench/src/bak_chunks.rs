//! The chunks of a compressed backup file of SQL Server, decoded and nothing else.

use std::path::Path;

use pagehaul_bak::container::{FIRST_RECORD, RECORD_HEADER_BYTES, RecordHeader};
use pagehaul_bak::mtf::BlockKind;
use pagehaul_engine::codec::xpress::{BLOCK_SIZE_BYTES_MAX, DecodeState, decode_block};
use pagehaul_engine::error::{Error, ErrorKind, Result};

/// Bytes of a sector, to which filemarks are aligned.
const SECTOR_BYTES: usize = 512;

/// A file in memory, and where its chunks are.
pub(crate) struct Chunks {
    file: Vec<u8>,
    chunks: Vec<(usize, RecordHeader)>,
}

impl Chunks {
    /// Reads a file that is known to be sound.
    ///
    /// # Errors
    /// `Source` if it cannot be read, `Bug` if it has no chunks.
    pub(crate) fn load(path: &Path) -> Result<Self> {
        let failed = |cause| Error::new(ErrorKind::Source, format!("read {}", path.display()), cause);
        let file = std::fs::read(path).map_err(failed)?;
        let (mut chunks, mut at) = (Vec::new(), FIRST_RECORD as usize);
        while at < file.len() {
            if let Ok(header) = RecordHeader::parse(&file[at..]) {
                chunks.push((at + RECORD_HEADER_BYTES, header));
                at += RECORD_HEADER_BYTES + header.stored_size_bytes;
                continue;
            }
            // Behind the last chunk its writer left what it had in hand, up to the filemark.
            let aligned = at.next_multiple_of(SECTOR_BYTES);
            if !file.get(aligned..).is_some_and(|behind| behind.starts_with(&BlockKind::Filemark.tag())) {
                let cause = format!("byte {at} begins neither a chunk nor a filemark");
                return Err(Error::new(ErrorKind::Bug, format!("find the chunks of {}", path.display()), cause));
            }
            at = aligned + SECTOR_BYTES;
        }
        Ok(Chunks { file, chunks })
    }

    /// Compressed bytes of all chunks.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.chunks.iter().map(|(_, header)| header.stored_size_bytes as u64).sum()
    }

    /// Decodes every `step`-th chunk from `first` on; gives the bytes that came out.
    ///
    /// # Errors
    /// `Damage` if a chunk is no block.
    pub(crate) fn decode(&self, first: usize, step: usize) -> Result<u64> {
        let mut state = DecodeState::new();
        let mut raw = vec![0; BLOCK_SIZE_BYTES_MAX];
        let mut bytes = 0;
        for (at, header) in self.chunks.iter().skip(first).step_by(step) {
            let stored = &self.file[*at..at + header.stored_size_bytes];
            decode_block(stored, &mut raw[..header.raw_size_bytes], &mut state)?;
            bytes += header.raw_size_bytes as u64;
        }
        Ok(bytes)
    }
}
