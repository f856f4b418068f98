//! The stripe: a header, frames without gaps, and a trailer whose index gives every frame's place and size.

use super::FORMAT_VERSION;
use super::checksum::{crc32c, xxh3};
use super::frame::{FRAME_HEADER_BYTES, FrameHeader};
use super::wire::{FieldReader, FieldWriter, damaged};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{FRAME_SIZE_BYTES_MAX, STRIPE_COUNT_MAX};
use crate::terms::{SetId, StripeIndex};

/// First bytes of a stripe.
pub const STRIPE_MAGIC: [u8; 8] = *b"PHSTRIPE";
/// First bytes of the index in the trailer.
pub const INDEX_MAGIC: [u8; 8] = *b"PHINDEX\x01";
/// First bytes of the footer, the last structure of a stripe.
pub const FOOTER_MAGIC: [u8; 8] = *b"PHEND\0\0\x01";
/// Bytes of a stripe header.
pub const STRIPE_HEADER_BYTES: usize = 512;
/// Bytes of a footer.
pub const FOOTER_BYTES: usize = 64;
/// Bytes of the index before its entries.
pub const INDEX_HEADER_BYTES: usize = 16;
/// Bytes of one index entry.
pub const INDEX_ENTRY_BYTES: usize = 8;

/// The first 512 bytes of a stripe: which set, which stripe of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeHeader {
    /// The set it belongs to.
    pub set_id: SetId,
    /// Which stripe.
    pub stripe: StripeIndex,
    /// Of how many.
    pub stripe_count: u16,
    /// Raw size of a full frame.
    pub frame_size_bytes: u32,
}

impl StripeHeader {
    /// The header's 512 bytes; the reserved part will hold the encryption header and the parity geometry.
    pub fn to_bytes(&self) -> [u8; STRIPE_HEADER_BYTES] {
        let mut bytes = [0u8; STRIPE_HEADER_BYTES];
        FieldWriter::new(&mut bytes)
            .put(&STRIPE_MAGIC)
            .u16(FORMAT_VERSION)
            .u16(self.stripe.0)
            .u16(self.stripe_count)
            .u16(0) // parity stripes: reserved
            .put(&self.set_id.0)
            .u32(self.frame_size_bytes);
        let sum = crc32c(&bytes[..STRIPE_HEADER_BYTES - 4]);
        bytes[STRIPE_HEADER_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a stripe header.
    ///
    /// # Errors
    /// `Damage` if it is not a stripe, its checksum does not hold, or its version is not known.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        const WHAT: &str = "a stripe header";
        let bytes = bytes.get(..STRIPE_HEADER_BYTES).ok_or_else(|| damaged(WHAT, "it ends too early"))?;
        let mut fields = FieldReader::new(bytes, WHAT);
        if fields.take(8)? != STRIPE_MAGIC {
            return Err(damaged(WHAT, "it does not start with the stripe magic"));
        }
        let (body, sum) = bytes.split_at(STRIPE_HEADER_BYTES - 4);
        if crc32c(body).to_le_bytes() != sum {
            return Err(damaged(WHAT, "its checksum does not match"));
        }
        let version = fields.u16()?;
        if version != FORMAT_VERSION {
            let cause =
                format!("format version {version} is not known to this build, which reads version {FORMAT_VERSION}");
            return Err(Error::new(ErrorKind::Damage, "read a stripe header", cause));
        }
        let stripe = StripeIndex(fields.u16()?);
        let stripe_count = fields.u16()?;
        fields.reserved(2)?;
        let set_id = SetId(fields.id()?);
        let frame_size_bytes = fields.u32()?;
        fields.reserved(STRIPE_HEADER_BYTES - 4 - 36)?;
        if stripe_count == 0
            || stripe_count > STRIPE_COUNT_MAX
            || stripe.0 >= stripe_count
            || frame_size_bytes > FRAME_SIZE_BYTES_MAX
        {
            return Err(damaged(WHAT, "a count or size is out of bounds"));
        }
        Ok(StripeHeader { set_id, stripe, stripe_count, frame_size_bytes })
    }
}

/// Where the frames of one stripe are: sizes in order of sequence; places follow because frames have no gaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameIndex {
    entries: Vec<IndexEntry>,
}

/// Sizes of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Bytes after the frame's header.
    pub stored_size_bytes: u32,
    /// Bytes after decoding.
    pub raw_size_bytes: u32,
}

impl IndexEntry {
    /// Header and stored bytes.
    pub fn size_on_stripe_bytes(self) -> u64 {
        FRAME_HEADER_BYTES as u64 + u64::from(self.stored_size_bytes)
    }
}

impl FrameIndex {
    /// Adds the next frame's sizes.
    pub fn push(&mut self, entry: IndexEntry) {
        self.entries.push(entry);
    }

    /// The entries in order of sequence.
    pub fn entries(&self) -> &[IndexEntry] {
        &self.entries
    }

    /// How many frames.
    pub fn frame_count(&self) -> u64 {
        self.entries.len() as u64
    }

    /// The position of the first byte after the last frame: where the trailer starts.
    pub fn end_offset(&self) -> u64 {
        self.entries.iter().map(|entry| entry.size_on_stripe_bytes()).sum::<u64>() + STRIPE_HEADER_BYTES as u64
    }

    /// The trailer: index, then footer. `header` is that of the stripe.
    pub fn to_trailer(&self, header: &StripeHeader) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(INDEX_HEADER_BYTES + self.entries.len() * INDEX_ENTRY_BYTES + FOOTER_BYTES);
        bytes.extend_from_slice(&INDEX_MAGIC);
        bytes.extend_from_slice(&self.frame_count().to_le_bytes());
        for entry in &self.entries {
            bytes.extend_from_slice(&entry.stored_size_bytes.to_le_bytes());
            bytes.extend_from_slice(&entry.raw_size_bytes.to_le_bytes());
        }
        let footer = Footer {
            header: *header,
            index_offset: self.end_offset(),
            index_size_bytes: bytes.len() as u64,
            index_xxh3: xxh3(&bytes),
        };
        bytes.extend_from_slice(&footer.to_bytes());
        bytes
    }

    /// Reads the index that `footer` describes.
    ///
    /// # Errors
    /// `Damage` if its checksum, count or a size bound does not hold.
    pub fn from_bytes(bytes: &[u8], footer: &Footer) -> Result<Self> {
        const WHAT: &str = "a stripe's index";
        if bytes.len() as u64 != footer.index_size_bytes || xxh3(bytes) != footer.index_xxh3 {
            return Err(damaged(WHAT, "its checksum does not match"));
        }
        let mut fields = FieldReader::new(bytes, WHAT);
        if fields.take(8)? != INDEX_MAGIC {
            return Err(damaged(WHAT, "it does not start with the index magic"));
        }
        let count = fields.u64()?;
        let entry_bytes = (bytes.len() - INDEX_HEADER_BYTES) as u64;
        if count.checked_mul(INDEX_ENTRY_BYTES as u64) != Some(entry_bytes) {
            return Err(damaged(WHAT, "its count does not match its size"));
        }
        let mut index = FrameIndex { entries: Vec::with_capacity(count as usize) };
        for _ in 0..count {
            let entry = IndexEntry { stored_size_bytes: fields.u32()?, raw_size_bytes: fields.u32()? };
            if entry.raw_size_bytes > FRAME_SIZE_BYTES_MAX || entry.stored_size_bytes > entry.raw_size_bytes {
                return Err(damaged(WHAT, "a frame size is out of bounds"));
            }
            index.push(entry);
        }
        if index.end_offset() != footer.index_offset {
            return Err(damaged(WHAT, "its frame sizes do not add up to its place"));
        }
        Ok(index)
    }
}

/// The last 64 bytes of a stripe: where the index is and what it must hash to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footer {
    /// The same identity as the stripe header.
    pub header: StripeHeader,
    /// Where the index starts.
    pub index_offset: u64,
    /// How long it is.
    pub index_size_bytes: u64,
    /// XXH3-64 of it.
    pub index_xxh3: u64,
}

impl Footer {
    pub(super) fn to_bytes(self) -> [u8; FOOTER_BYTES] {
        let mut bytes = [0u8; FOOTER_BYTES];
        FieldWriter::new(&mut bytes)
            .put(&FOOTER_MAGIC)
            .put(&self.header.set_id.0)
            .u16(self.header.stripe.0)
            .u16(self.header.stripe_count)
            .u32(self.header.frame_size_bytes)
            .u64(self.index_offset)
            .u64(self.index_size_bytes)
            .u64(self.index_xxh3);
        let mut sums = FieldWriter::new(&mut bytes[56..]);
        sums.u32(0); // reserved
        let sum = crc32c(&bytes[..FOOTER_BYTES - 4]);
        bytes[FOOTER_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a footer from a stripe's last 64 bytes; `stripe_size_bytes` bounds what it may point at.
    ///
    /// # Errors
    /// `Damage` if it is not a footer, its checksum does not hold, or its index would lie outside the stripe.
    pub fn from_bytes(bytes: &[u8], stripe_size_bytes: u64) -> Result<Self> {
        const WHAT: &str = "a stripe's trailer";
        let bytes = bytes.get(..FOOTER_BYTES).ok_or_else(|| damaged(WHAT, "it ends too early"))?;
        let mut fields = FieldReader::new(bytes, WHAT);
        if fields.take(8)? != FOOTER_MAGIC {
            return Err(damaged(WHAT, "the stripe does not end with a footer: it was cut short or never finished"));
        }
        let (body, sum) = bytes.split_at(FOOTER_BYTES - 4);
        if crc32c(body).to_le_bytes() != sum {
            return Err(damaged(WHAT, "its checksum does not match"));
        }
        let set_id = SetId(fields.id()?);
        let header = StripeHeader {
            set_id,
            stripe: StripeIndex(fields.u16()?),
            stripe_count: fields.u16()?,
            frame_size_bytes: fields.u32()?,
        };
        let footer =
            Footer { header, index_offset: fields.u64()?, index_size_bytes: fields.u64()?, index_xxh3: fields.u64()? };
        fields.reserved(4)?;
        let end = footer
            .index_offset
            .checked_add(footer.index_size_bytes)
            .and_then(|end| end.checked_add(FOOTER_BYTES as u64));
        if end != Some(stripe_size_bytes) || footer.index_size_bytes < INDEX_HEADER_BYTES as u64 {
            return Err(damaged(WHAT, "its index does not lie where the stripe ends: the stripe was cut or extended"));
        }
        Ok(footer)
    }
}

/// Rebuilds an index from the frames themselves, when a trailer is lost.
///
/// Feed frame headers in order; a gap in the sequence or a foreign frame is an error.
#[derive(Debug)]
pub struct IndexRebuild {
    set_id: SetId,
    stripe: StripeIndex,
    index: FrameIndex,
}

impl IndexRebuild {
    /// For the stripe with this identity.
    pub fn new(set_id: SetId, stripe: StripeIndex) -> Self {
        IndexRebuild { set_id, stripe, index: FrameIndex::default() }
    }

    /// Takes the next frame's header.
    ///
    /// # Errors
    /// `Damage` if the frame is of another set or stripe, or not the next in sequence.
    pub fn push(&mut self, header: &FrameHeader) -> Result<()> {
        if header.set_id != self.set_id || header.stripe != self.stripe || header.sequence != self.index.frame_count() {
            return Err(damaged("a frame header", "it belongs to another set, stripe or position"));
        }
        self.index
            .push(IndexEntry { stored_size_bytes: header.stored_size_bytes, raw_size_bytes: header.raw_size_bytes });
        Ok(())
    }

    /// The index of all frames that were fed.
    pub fn finish(self) -> FrameIndex {
        self.index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> StripeHeader {
        StripeHeader { set_id: SetId([9; 16]), stripe: StripeIndex(1), stripe_count: 4, frame_size_bytes: 131_072 }
    }

    fn index() -> FrameIndex {
        let mut index = FrameIndex::default();
        for raw in [131_072, 131_072, 500] {
            index.push(IndexEntry { stored_size_bytes: raw / 3, raw_size_bytes: raw });
        }
        index
    }

    fn read_trailer(trailer: &[u8], size: u64) -> Result<FrameIndex> {
        let (index_bytes, footer) = trailer.split_at(trailer.len() - FOOTER_BYTES);
        FrameIndex::from_bytes(index_bytes, &Footer::from_bytes(footer, size)?)
    }

    #[test]
    fn header_and_trailer_round_trip() {
        assert_eq!(StripeHeader::from_bytes(&header().to_bytes()).unwrap(), header());
        let trailer = index().to_trailer(&header());
        let size = index().end_offset() + trailer.len() as u64;
        assert_eq!(read_trailer(&trailer, size).unwrap(), index());
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let good = header().to_bytes();
        for bit in 0..good.len() * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(StripeHeader::from_bytes(&bad).is_err(), "header bit {bit}");
        }
        let good = index().to_trailer(&header());
        let size = index().end_offset() + good.len() as u64;
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(read_trailer(&bad, size).is_err(), "trailer bit {bit}");
        }
    }

    #[test]
    fn a_cut_or_extended_stripe_is_seen() {
        let trailer = index().to_trailer(&header());
        let size = index().end_offset() + trailer.len() as u64;
        assert!(read_trailer(&trailer, size - 1).is_err());
        assert!(read_trailer(&trailer, size + 1).is_err());
    }

    #[test]
    fn a_newer_version_is_refused_loudly() {
        let mut bytes = header().to_bytes();
        bytes[8] = 2;
        let sum = crc32c(&bytes[..STRIPE_HEADER_BYTES - 4]);
        bytes[STRIPE_HEADER_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        let error = StripeHeader::from_bytes(&bytes).unwrap_err();
        assert!(error.message().contains("format version 2"), "{error}");
    }
}
