//! Checksums of the pages in a stripe's frames, at rest: what tells a later backup which pages have changed.
//!
//! One object for each stripe: a header, then blocks of sums, each behind its hash. Frame after frame of the stripe,
//! there is one CRC32C for each whole page of its raw bytes, so that a sum's place follows from the stripe's index.
//! Nothing is compressed: checksums are as good as random, and blocks of one size are found without an index.

use super::FORMAT_VERSION;
use super::checksum::{crc32c, xxh3};
use super::object_digest::{ObjectHasher, ObjectSums};
use super::wire::{FieldReader, FieldWriter, damaged};
use crate::error::Result;
use crate::terms::{SetId, StripeIndex};

/// First bytes of an object of page sums.
pub const PAGE_SUMS_MAGIC: [u8; 8] = *b"PHSUMS\0\x01";
/// Bytes of its header.
pub const PAGE_SUMS_HEADER_BYTES: usize = 64;
/// Sums of one block: those of 32 MiB with pages of 8 KiB.
pub const SUMS_PER_BLOCK: usize = 4096;
const SUM_BYTES: usize = 4;
const BLOCK_HASH_BYTES: usize = 8;
/// Bytes of a full block with its hash.
pub const PAGE_SUMS_BLOCK_BYTES: usize = BLOCK_HASH_BYTES + SUMS_PER_BLOCK * SUM_BYTES;
const WHAT: &str = "page checksums";

/// Whose sums an object holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSumsHeader {
    /// The set.
    pub set_id: SetId,
    /// The stripe.
    pub stripe: StripeIndex,
    /// Raw bytes that one sum is of.
    pub page_size_bytes: u32,
}

impl PageSumsHeader {
    /// The header's 64 bytes.
    pub fn to_bytes(&self) -> [u8; PAGE_SUMS_HEADER_BYTES] {
        let mut bytes = [0u8; PAGE_SUMS_HEADER_BYTES];
        FieldWriter::new(&mut bytes)
            .put(&PAGE_SUMS_MAGIC)
            .u16(FORMAT_VERSION)
            .u16(self.stripe.0)
            .u32(self.page_size_bytes)
            .put(&self.set_id.0);
        let sum = crc32c(&bytes[..PAGE_SUMS_HEADER_BYTES - 4]);
        bytes[PAGE_SUMS_HEADER_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// `Damage` if it is none, its checksum does not hold, or its version is not known.
    pub fn from_bytes(bytes: &[u8; PAGE_SUMS_HEADER_BYTES]) -> Result<Self> {
        let mut fields = FieldReader::new(bytes, WHAT);
        if fields.take(8)? != PAGE_SUMS_MAGIC {
            return Err(damaged(WHAT, "they do not start with their magic"));
        }
        let (body, sum) = bytes.split_at(PAGE_SUMS_HEADER_BYTES - 4);
        if crc32c(body).to_le_bytes() != sum {
            return Err(damaged(WHAT, "the checksum of their header does not match"));
        }
        let version = fields.u16()?;
        if version != FORMAT_VERSION {
            return Err(damaged(WHAT, &format!("format version {version} is not known to this build")));
        }
        let (stripe, page_size_bytes) = (StripeIndex(fields.u16()?), fields.u32()?);
        let header = PageSumsHeader { set_id: SetId(fields.id()?), stripe, page_size_bytes };
        fields.reserved(PAGE_SUMS_HEADER_BYTES - 4 - 32)?;
        Ok(header)
    }
}

/// Writes the sums of one stripe, in the order of its frames; holds one block.
pub struct PageSumsWriter {
    block: Vec<u8>,
    hasher: ObjectHasher,
}

impl PageSumsWriter {
    /// Writes the header to `sink`.
    ///
    /// # Errors
    /// Those of `sink`.
    pub fn begin(header: &PageSumsHeader, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<Self> {
        let mut block = Vec::with_capacity(PAGE_SUMS_BLOCK_BYTES);
        block.resize(BLOCK_HASH_BYTES, 0);
        let mut writer = PageSumsWriter { block, hasher: ObjectHasher::default() };
        writer.emit(&header.to_bytes(), sink)?;
        Ok(writer)
    }

    /// Adds the sums of the next frame.
    ///
    /// # Errors
    /// Those of `sink`.
    pub fn push(&mut self, sums: &[u32], sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        for sum in sums {
            self.block.extend_from_slice(&sum.to_le_bytes());
            if self.block.len() == PAGE_SUMS_BLOCK_BYTES {
                self.close_block(sink)?;
            }
        }
        Ok(())
    }

    /// Writes what is left; gives size and hash of the whole object.
    ///
    /// # Errors
    /// Those of `sink`.
    pub fn finish(mut self, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<ObjectSums> {
        if self.block.len() > BLOCK_HASH_BYTES {
            self.close_block(sink)?;
        }
        Ok(self.hasher.finish())
    }

    fn close_block(&mut self, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut block = std::mem::take(&mut self.block);
        let hash = xxh3(&block[BLOCK_HASH_BYTES..]);
        block[..BLOCK_HASH_BYTES].copy_from_slice(&hash.to_le_bytes());
        self.emit(&block, sink)?;
        block.truncate(BLOCK_HASH_BYTES);
        self.block = block;
        Ok(())
    }

    fn emit(&mut self, bytes: &[u8], sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.hasher.update(bytes);
        sink(bytes)
    }
}

/// Bytes of an object that holds `sum_count` sums.
pub fn page_sums_size_bytes(sum_count: u64) -> u64 {
    let blocks = sum_count.div_ceil(SUMS_PER_BLOCK as u64);
    PAGE_SUMS_HEADER_BYTES as u64 + blocks * BLOCK_HASH_BYTES as u64 + sum_count * SUM_BYTES as u64
}

/// Where block `block` of an object with `sum_count` sums lies: offset and length in bytes.
pub fn page_sums_block(block: u64, sum_count: u64) -> (u64, usize) {
    let before = block * SUMS_PER_BLOCK as u64;
    let count = sum_count.saturating_sub(before).min(SUMS_PER_BLOCK as u64) as usize;
    let offset = PAGE_SUMS_HEADER_BYTES as u64 + block * PAGE_SUMS_BLOCK_BYTES as u64;
    (offset, BLOCK_HASH_BYTES + count * SUM_BYTES)
}

/// The sums in a block as it lies in the object, into `sums`.
///
/// # Errors
/// `Damage` if its hash does not match.
pub fn read_page_sums_block(bytes: &[u8], sums: &mut Vec<u32>) -> Result<()> {
    let (hash, body) = bytes.split_at_checked(BLOCK_HASH_BYTES).ok_or_else(|| damaged(WHAT, "they end too early"))?;
    if xxh3(body).to_le_bytes() != hash {
        return Err(damaged(WHAT, "the hash of a block does not match"));
    }
    sums.clear();
    sums.extend(body.chunks_exact(SUM_BYTES).map(|sum| u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]])));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: PageSumsHeader =
        PageSumsHeader { set_id: SetId([7; 16]), stripe: StripeIndex(3), page_size_bytes: 8192 };

    fn object(sums: &[u32]) -> (Vec<u8>, ObjectSums) {
        let mut bytes = Vec::new();
        let mut sink = |piece: &[u8]| {
            bytes.extend_from_slice(piece);
            Ok(())
        };
        let mut writer = PageSumsWriter::begin(&HEADER, &mut sink).unwrap();
        for frame in sums.chunks(128) {
            writer.push(frame, &mut sink).unwrap();
        }
        let digest = writer.finish(&mut sink).unwrap();
        (bytes, digest)
    }

    #[test]
    fn every_sum_is_found_again() {
        for count in [0usize, 1, SUMS_PER_BLOCK - 1, SUMS_PER_BLOCK, SUMS_PER_BLOCK + 1, 3 * SUMS_PER_BLOCK + 77] {
            let sums: Vec<u32> = (0..count as u32).map(|number| number.wrapping_mul(0x9E37_79B9)).collect();
            let (bytes, digest) = object(&sums);
            assert_eq!(bytes.len() as u64, page_sums_size_bytes(count as u64));
            assert_eq!(digest, ObjectSums::of(&bytes));
            let header = bytes[..PAGE_SUMS_HEADER_BYTES].try_into().unwrap();
            assert_eq!(PageSumsHeader::from_bytes(header).unwrap(), HEADER);
            let (mut back, mut block) = (Vec::new(), Vec::new());
            for number in 0..count.div_ceil(SUMS_PER_BLOCK) as u64 {
                let (offset, length) = page_sums_block(number, count as u64);
                read_page_sums_block(&bytes[offset as usize..offset as usize + length], &mut block).unwrap();
                back.extend_from_slice(&block);
            }
            assert_eq!(back, sums);
        }
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let (good, _) = object(&[1, 2, 3]);
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let header = PageSumsHeader::from_bytes(bad[..PAGE_SUMS_HEADER_BYTES].try_into().unwrap());
            let block = read_page_sums_block(&bad[PAGE_SUMS_HEADER_BYTES..], &mut Vec::new());
            assert!(header.is_err() || block.is_err(), "bit {bit}");
        }
    }
}
