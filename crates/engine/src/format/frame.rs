//! The frame: the unit on a stripe, decodable alone. 64 bytes of header, then the stored bytes.

use super::checksum::crc32c;
use super::parity::PARITY_BODY_BYTES_MAX;
use super::wire::{FieldReader, FieldWriter, damaged};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::FRAME_SIZE_BYTES_MAX;
use crate::terms::{SetId, StripeIndex};

/// First bytes of each frame; a scan looks for them.
pub const FRAME_MAGIC: [u8; 4] = *b"PHF\x01";
/// Bytes of a frame header.
pub const FRAME_HEADER_BYTES: usize = 64;

/// SHA-256 of a frame: its header and the stored bytes behind it.
pub type FrameDigest = [u8; 32];

/// What one frame says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The set it belongs to.
    pub set_id: SetId,
    /// The stripe it is on.
    pub stripe: StripeIndex,
    /// Its number on that stripe, from 0, without gaps.
    pub sequence: u64,
    /// Codec of the stored bytes, see FORMAT.md; 0 is none.
    pub codec: u8,
    /// Bytes after decoding.
    pub raw_size_bytes: u32,
    /// Bytes that follow the header.
    pub stored_size_bytes: u32,
    /// CRC32C of the decoded bytes.
    pub raw_crc32c: u32,
    /// XXH3-64 of the stored bytes.
    pub stored_xxh3: u64,
}

/// What the stored bytes of a frame are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// Content.
    Data = 0,
    /// A row of parity; its number on the stripe is that of the row.
    ParityRow = 1,
}

impl FrameHeader {
    /// The header's 64 bytes, its own CRC32C last.
    pub fn to_bytes(&self) -> [u8; FRAME_HEADER_BYTES] {
        self.to_bytes_of(FrameKind::Data)
    }

    /// The same for a frame of that kind.
    pub fn to_bytes_of(&self, kind: FrameKind) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = [0u8; FRAME_HEADER_BYTES];
        FieldWriter::new(&mut bytes)
            .put(&FRAME_MAGIC)
            .u8(kind as u8)
            .u8(self.codec)
            .u16(self.stripe.0)
            .put(&self.set_id.0)
            .u64(self.sequence)
            .u32(self.raw_size_bytes)
            .u32(self.stored_size_bytes)
            .u32(self.raw_crc32c)
            .u32(0) // flags: bit 0 is reserved for encryption
            .u64(self.stored_xxh3)
            .reserved(4);
        let sum = crc32c(&bytes[..FRAME_HEADER_BYTES - 4]);
        bytes[FRAME_HEADER_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a header; `bytes` starts at the frame.
    ///
    /// # Errors
    /// `Damage` if the magic, the header's checksum, a reserved field or a size bound does not hold.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        Self::from_bytes_of(bytes, FrameKind::Data)
    }

    /// The same for a frame of that kind.
    ///
    /// # Errors
    /// As [`FrameHeader::from_bytes`], and if it is of another kind.
    pub fn from_bytes_of(bytes: &[u8], kind: FrameKind) -> Result<Self> {
        const WHAT: &str = "a frame header";
        let bytes = bytes.get(..FRAME_HEADER_BYTES).ok_or_else(|| damaged(WHAT, "it ends too early"))?;
        let mut fields = FieldReader::new(bytes, WHAT);
        if fields.take(4)? != FRAME_MAGIC {
            return Err(damaged(WHAT, "it does not start with the frame magic"));
        }
        let (body, sum) = bytes.split_at(FRAME_HEADER_BYTES - 4);
        if crc32c(body).to_le_bytes() != sum {
            return Err(damaged(WHAT, "its checksum does not match"));
        }
        if fields.u8()? != kind as u8 {
            return Err(damaged(WHAT, "it is of another kind of frame"));
        }
        let codec = fields.u8()?;
        let stripe = StripeIndex(fields.u16()?);
        let set_id = SetId(fields.id()?);
        let header = FrameHeader {
            set_id,
            stripe,
            sequence: fields.u64()?,
            codec,
            raw_size_bytes: fields.u32()?,
            stored_size_bytes: fields.u32()?,
            raw_crc32c: fields.u32()?,
            stored_xxh3: {
                fields.reserved(4)?;
                fields.u64()?
            },
        };
        fields.reserved(4)?;
        header.check_sizes(match kind {
            FrameKind::Data => FRAME_SIZE_BYTES_MAX,
            FrameKind::ParityRow => PARITY_BODY_BYTES_MAX,
        })?;
        Ok(header)
    }

    /// Sizes within the bounds that every reader may allocate for.
    fn check_sizes(&self, most: u32) -> Result<()> {
        if self.raw_size_bytes == 0 || self.raw_size_bytes > most || self.stored_size_bytes > self.raw_size_bytes {
            let cause =
                format!("sizes {} raw, {} stored are out of bounds", self.raw_size_bytes, self.stored_size_bytes);
            return Err(Error::new(ErrorKind::Damage, "read a frame header", cause));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> FrameHeader {
        FrameHeader {
            set_id: SetId([7; 16]),
            stripe: StripeIndex(3),
            sequence: 0x1_0000_0001,
            codec: 3,
            raw_size_bytes: 131_072,
            stored_size_bytes: 9_999,
            raw_crc32c: 0xDEAD_BEEF,
            stored_xxh3: 0x0123_4567_89AB_CDEF,
        }
    }

    #[test]
    fn round_trip() {
        assert_eq!(FrameHeader::from_bytes(&sample().to_bytes()).unwrap(), sample());
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let good = sample().to_bytes();
        for bit in 0..FRAME_HEADER_BYTES * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(FrameHeader::from_bytes(&bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn sizes_are_bounded() {
        for (raw, stored) in [(0, 0), (FRAME_SIZE_BYTES_MAX + 1, 1), (100, 101)] {
            let header = FrameHeader { raw_size_bytes: raw, stored_size_bytes: stored, ..sample() };
            assert!(FrameHeader::from_bytes(&header.to_bytes()).is_err(), "{raw} {stored}");
        }
    }
}
