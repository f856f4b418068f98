//! MSSQLBAK, the container of backups WITH COMPRESSION.
//!
//! ```text
//! 0      "MSSQLBAK", u32 2, u32 3; the rest up to 0x1e0 means nothing
//! 0x1e0  record, record, ...            pieces of the MTF stream up to its next filemark, compressed
//!        bytes without meaning up to the next multiple of 512
//!        filemark of the MTF stream, as it is
//!        record, record, ...
//! ```
//!
//! A record is a header of 28 bytes and the compressed bytes: flag u8, size of the content in sectors u8, size of the
//! compressed bytes u16, 16 bytes without meaning, 4 zero bytes, checksum of the compressed bytes u32.

use pagehaul_engine::codec::xpress::{BLOCK_SIZE_BYTES_MAX, DecodeState, decode_block};

use crate::checksum::{SECTOR_BYTES, chunk_sum};
use crate::wire::{Fields, Parsed};

/// The first bytes of the container.
pub const MAGIC: [u8; 8] = *b"MSSQLBAK";
/// Where the first record begins.
pub const FIRST_RECORD: u64 = 0x1e0;
/// Bytes of a record's header.
pub const RECORD_HEADER_BYTES: usize = 28;

/// The two version numbers behind the magic.
const VERSIONS: (u32, u32) = (2, 3);
/// The flag of a record whose content is one XPRESS block.
pub(crate) const FLAG_XPRESS: u8 = 0x21;

/// Whether a file that begins with `head` is a container.
///
/// # Errors
/// A version that is not known.
pub fn recognize(head: &[u8]) -> Parsed<bool> {
    if !head.starts_with(&MAGIC) {
        return Ok(false);
    }
    let fields = Fields(head);
    let versions = (fields.u32(8)?, fields.u32(12)?);
    if versions != VERSIONS {
        let (first, second) = versions;
        return Err(format!(
            "MSSQLBAK version {first}/{second} at byte 8 is not known (known is {}/{})",
            VERSIONS.0, VERSIONS.1
        ));
    }
    Ok(true)
}

/// What stands before a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Bytes of the MTF stream in the chunk: 512 to 65,536.
    pub raw_size_bytes: usize,
    /// Compressed bytes that follow.
    pub stored_size_bytes: usize,
    /// Their checksum.
    pub stored_sum: u32,
}

impl RecordHeader {
    /// The header in `bytes`.
    ///
    /// # Errors
    /// An unknown flag (another algorithm, or damage), or sizes that cannot be.
    pub fn parse(bytes: &[u8]) -> Parsed<Self> {
        let fields = Fields(bytes);
        let flag = fields.u8(0)?;
        if flag != FLAG_XPRESS {
            return Err(format!(
                "chunk flag {flag:#04x} is not known (known is {FLAG_XPRESS:#04x}, MS_XPRESS): another algorithm, \
                 encryption, or damage"
            ));
        }
        let raw_size_bytes = usize::from(fields.u8(1)?) * SECTOR_BYTES;
        let stored_size_bytes = usize::from(fields.u16(2)?);
        if raw_size_bytes == 0 || raw_size_bytes > BLOCK_SIZE_BYTES_MAX || stored_size_bytes == 0 {
            return Err(format!("chunk of {stored_size_bytes} bytes that hold {raw_size_bytes} cannot be"));
        }
        let zero = fields.u32(20)?;
        if zero != 0 {
            return Err(format!("chunk header has {zero:#010x} in a field of which only 0 is known"));
        }
        Ok(RecordHeader { raw_size_bytes, stored_size_bytes, stored_sum: fields.u32(24)? })
    }
}

/// Bytes of the file behind a chunk that tell whether its size cuts it: as long as the symbol that ends a block.
pub(crate) const TAIL_BYTES: usize = 4;

/// Fills `raw`, whose length the record's header gave, with the content of a chunk; behind the chunk there may be bytes
/// that follow it in the file.
///
/// # Errors
/// A wrong checksum, or bytes that are not one block of that size.
pub fn decode_chunk(
    header: RecordHeader,
    chunk_and_tail: &[u8],
    raw: &mut [u8],
    state: &mut DecodeState,
) -> Parsed<()> {
    let stored = Fields(chunk_and_tail).bytes(0, header.stored_size_bytes)?;
    // Decoding reads the bytes slowly enough for the memory to keep up; what the sum reads behind it is in the cache.
    let decoded = decode_block(chunk_and_tail, raw, state);
    let sum = chunk_sum(stored);
    if sum != header.stored_sum {
        return Err(format!("chunk has checksum {:#010x}, its bytes have {sum:#010x}", header.stored_sum));
    }
    let used = decoded.map_err(|error| error.cause().to_owned())?;
    if used != stored.len() {
        return Err(format!("chunk should have {} bytes, but its content ends at byte {used}", stored.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(flag: u8, sectors: u8, stored: u16, zero: u32) -> Vec<u8> {
        let mut bytes = vec![flag, sectors];
        bytes.extend(stored.to_le_bytes());
        bytes.extend([0xee; 16]);
        bytes.extend(zero.to_le_bytes());
        bytes.extend(7u32.to_le_bytes());
        bytes
    }

    #[test]
    fn what_is_not_known_is_refused() {
        let known = RecordHeader { raw_size_bytes: 65536, stored_size_bytes: 300, stored_sum: 7 };
        assert_eq!(RecordHeader::parse(&header(0x21, 128, 300, 0)), Ok(known));
        assert!(
            RecordHeader::parse(&header(0x41, 128, 300, 0)).unwrap_err().starts_with("chunk flag 0x41 is not known")
        );
        for (sectors, stored, zero) in [(0, 300, 0), (129, 300, 0), (128, 0, 0), (128, 300, 1)] {
            assert!(RecordHeader::parse(&header(0x21, sectors, stored, zero)).is_err());
        }
        assert!(RecordHeader::parse(&header(0x21, 128, 300, 0)[..27]).is_err());
    }

    #[test]
    fn containers_are_known_by_magic_and_version() {
        let head = |first: u32, second: u32| [&MAGIC[..], &first.to_le_bytes(), &second.to_le_bytes()].concat();
        assert_eq!(recognize(&head(2, 3)), Ok(true));
        assert_eq!(recognize(b"TAPE"), Ok(false));
        assert!(recognize(&head(2, 4)).unwrap_err().contains("version 2/4"));
        assert!(recognize(&MAGIC).is_err());
    }
}
