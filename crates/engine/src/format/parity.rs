//! A parity stripe: a header, one frame a row without gaps, and a trailer whose index says which frames each row is of.
//!
//! A row has at most one frame of each stripe. All parity stripes of a set have the same rows, and so the same index.

use super::FORMAT_VERSION;
use super::checksum::{crc32c, xxh3};
use super::frame::{FRAME_HEADER_BYTES, FrameHeader, FrameKind};
use super::row_code::{BLOCK_BYTES, SHARDS_MAX};
use super::stripe::{
    FOOTER_BYTES, Footer, INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES, IndexEntry, STRIPE_HEADER_BYTES, StripeHeader,
};
use super::wire::{FieldReader, FieldWriter, damaged};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{FRAME_SIZE_BYTES_MAX, PARITY_COUNT_MAX};
use crate::terms::{SetId, StripeIndex};

/// First bytes of a parity stripe.
pub const PARITY_MAGIC: [u8; 8] = *b"PHPARITY";
/// First bytes of the index in its trailer.
pub const ROWS_MAGIC: [u8; 8] = *b"PHROWS\0\x01";
/// Bytes of one entry of the table at the start of a row.
pub const ROW_ENTRY_BYTES: usize = 16;
/// Most bytes that follow the header of a parity frame: the table and a whole frame.
pub const PARITY_BODY_BYTES_MAX: u32 =
    FRAME_SIZE_BYTES_MAX + (FRAME_HEADER_BYTES + SHARDS_MAX * ROW_ENTRY_BYTES) as u32;

// Sums are whole blocks, of which a header is one or several.
const _: () = assert!(
    FRAME_HEADER_BYTES.is_multiple_of(BLOCK_BYTES) && (FRAME_SIZE_BYTES_MAX as usize).is_multiple_of(BLOCK_BYTES)
);

/// The first 512 bytes of a parity stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParityHeader {
    /// The set it belongs to.
    pub set_id: SetId,
    /// Which parity stripe.
    pub parity: StripeIndex,
    /// Of how many.
    pub parity_count: u16,
    /// How many stripes its rows are of.
    pub stripe_count: u16,
    /// Raw size of a full frame of those.
    pub frame_size_bytes: u32,
}

impl ParityHeader {
    /// Its identity in the footer.
    pub fn as_stripe(&self) -> StripeHeader {
        StripeHeader {
            set_id: self.set_id,
            stripe: self.parity,
            stripe_count: self.stripe_count,
            frame_size_bytes: self.frame_size_bytes,
        }
    }

    /// The header's 512 bytes.
    pub fn to_bytes(&self) -> [u8; STRIPE_HEADER_BYTES] {
        let mut bytes = [0u8; STRIPE_HEADER_BYTES];
        FieldWriter::new(&mut bytes)
            .put(&PARITY_MAGIC)
            .u16(FORMAT_VERSION)
            .u16(self.parity.0)
            .u16(self.stripe_count)
            .u16(self.parity_count)
            .put(&self.set_id.0)
            .u32(self.frame_size_bytes);
        let sum = crc32c(&bytes[..STRIPE_HEADER_BYTES - 4]);
        bytes[STRIPE_HEADER_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads the header of a parity stripe.
    ///
    /// # Errors
    /// `Damage` if it is none, its checksum does not hold, or its version is not known.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        const WHAT: &str = "a parity stripe's header";
        let bytes = bytes.get(..STRIPE_HEADER_BYTES).ok_or_else(|| damaged(WHAT, "it ends too early"))?;
        let mut fields = FieldReader::new(bytes, WHAT);
        if fields.take(8)? != PARITY_MAGIC {
            return Err(damaged(WHAT, "it does not start with the magic of parity"));
        }
        let (body, sum) = bytes.split_at(STRIPE_HEADER_BYTES - 4);
        if crc32c(body).to_le_bytes() != sum {
            return Err(damaged(WHAT, "its checksum does not match"));
        }
        let version = fields.u16()?;
        if version != FORMAT_VERSION {
            let cause =
                format!("format version {version} is not known to this build, which reads version {FORMAT_VERSION}");
            return Err(Error::new(ErrorKind::Damage, "read a parity stripe's header", cause));
        }
        let parity = StripeIndex(fields.u16()?);
        let (stripe_count, parity_count) = (fields.u16()?, fields.u16()?);
        let set_id = SetId(fields.id()?);
        let frame_size_bytes = fields.u32()?;
        fields.reserved(STRIPE_HEADER_BYTES - 4 - 36)?;
        if stripe_count == 0
            || parity.0 >= parity_count
            || parity_count > PARITY_COUNT_MAX
            || usize::from(stripe_count) + usize::from(parity_count) > SHARDS_MAX
            || frame_size_bytes > FRAME_SIZE_BYTES_MAX
        {
            return Err(damaged(WHAT, "a count or size is out of bounds"));
        }
        Ok(ParityHeader { set_id, parity, parity_count, stripe_count, frame_size_bytes })
    }
}

/// The frame that a stripe has in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowShard {
    /// Its number on that stripe.
    pub sequence: u64,
    /// Its sizes.
    pub entry: IndexEntry,
}

impl RowShard {
    /// Header and stored bytes.
    pub fn size_bytes(&self) -> usize {
        self.entry.size_on_stripe_bytes() as usize
    }
}

/// Bytes of the table at the start of a row of so many stripes.
pub fn row_table_bytes(stripe_count: usize) -> usize {
    stripe_count * ROW_ENTRY_BYTES
}

/// Puts the table of a row at the start of `body`.
pub fn put_row_table(body: &mut [u8], shards: &[Option<RowShard>]) {
    let mut fields = FieldWriter::new(body);
    for shard in shards {
        match shard {
            Some(RowShard { sequence, entry }) => {
                fields.u64(*sequence).u32(entry.stored_size_bytes).u32(entry.raw_size_bytes)
            }
            None => fields.reserved(ROW_ENTRY_BYTES),
        };
    }
}

/// Reads the table of a row.
///
/// # Errors
/// `Damage` if `body` is too short or a size is out of bounds.
pub fn read_row_table(body: &[u8], stripe_count: usize) -> Result<Vec<Option<RowShard>>> {
    let mut fields = FieldReader::new(body, "a row of parity");
    let mut shard = || {
        let (sequence, stored_size_bytes, raw_size_bytes) = (fields.u64()?, fields.u32()?, fields.u32()?);
        let entry = IndexEntry { stored_size_bytes, raw_size_bytes };
        check_entry(entry)?;
        Ok((raw_size_bytes > 0).then_some(RowShard { sequence, entry }))
    };
    (0..stripe_count).map(|_| shard()).collect()
}

fn check_entry(entry: IndexEntry) -> Result<()> {
    if entry.raw_size_bytes > FRAME_SIZE_BYTES_MAX || entry.stored_size_bytes > entry.raw_size_bytes {
        return Err(damaged("a row of parity", "a frame size is out of bounds"));
    }
    Ok(())
}

/// The header of a row's frame; `body` is its table and its sums.
pub fn row_frame_header(header: &ParityHeader, row: u64, body: &[u8]) -> [u8; FRAME_HEADER_BYTES] {
    let frame = FrameHeader {
        set_id: header.set_id,
        stripe: header.parity,
        sequence: row,
        codec: 0,
        raw_size_bytes: body.len() as u32,
        stored_size_bytes: body.len() as u32,
        raw_crc32c: crc32c(body),
        stored_xxh3: xxh3(body),
    };
    frame.to_bytes_of(FrameKind::ParityRow)
}

/// Which frames each row is of: for each row and stripe their sizes. A stripe's frames are in the rows in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowIndex {
    stripe_count: usize,
    /// A raw size of 0 says that the stripe has no frame in the row.
    entries: Vec<IndexEntry>,
}

const ABSENT: IndexEntry = IndexEntry { stored_size_bytes: 0, raw_size_bytes: 0 };

impl RowIndex {
    /// Without rows.
    pub fn new(stripe_count: usize) -> Self {
        RowIndex { stripe_count, entries: Vec::new() }
    }

    /// Adds a row.
    pub fn push(&mut self, shards: &[Option<RowShard>]) {
        self.entries.extend(shards.iter().map(|shard| shard.map_or(ABSENT, |shard| shard.entry)));
    }

    /// How many rows.
    pub fn row_count(&self) -> u64 {
        (self.entries.len() / self.stripe_count.max(1)) as u64
    }

    /// For each row the sizes of each stripe's frame, if it has one there.
    pub fn rows(&self) -> impl Iterator<Item = impl Iterator<Item = Option<IndexEntry>> + '_> + '_ {
        let shards = |row| -> &[IndexEntry] { row };
        let rows = self.entries.chunks_exact(self.stripe_count.max(1)).map(shards);
        rows.map(|row| row.iter().map(|entry| (entry.raw_size_bytes > 0).then_some(*entry)))
    }

    /// Where the trailer starts.
    pub fn end_offset(&self) -> u64 {
        let sizes = self.rows().map(|row| (FRAME_HEADER_BYTES + row_body_bytes(self.stripe_count, row)) as u64);
        sizes.sum::<u64>() + STRIPE_HEADER_BYTES as u64
    }

    /// The trailer: index, then footer.
    pub fn to_trailer(&self, header: &ParityHeader) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(INDEX_HEADER_BYTES + self.entries.len() * INDEX_ENTRY_BYTES + FOOTER_BYTES);
        bytes.extend_from_slice(&ROWS_MAGIC);
        bytes.extend_from_slice(&self.row_count().to_le_bytes());
        for entry in &self.entries {
            bytes.extend_from_slice(&entry.stored_size_bytes.to_le_bytes());
            bytes.extend_from_slice(&entry.raw_size_bytes.to_le_bytes());
        }
        let footer = Footer {
            header: header.as_stripe(),
            index_offset: self.end_offset(),
            index_size_bytes: bytes.len() as u64,
            index_xxh3: xxh3(&bytes),
        };
        bytes.extend_from_slice(&footer.to_bytes());
        bytes
    }

    /// XXH3-64 of the index as it lies in the trailer.
    pub fn hash(&self, header: &ParityHeader) -> u64 {
        let trailer = self.to_trailer(header);
        xxh3(&trailer[..trailer.len() - FOOTER_BYTES])
    }

    /// Reads the index that `footer` describes.
    ///
    /// # Errors
    /// `Damage` if its checksum, count or a size bound does not hold.
    pub fn from_bytes(bytes: &[u8], footer: &Footer) -> Result<Self> {
        const WHAT: &str = "a parity stripe's index";
        if bytes.len() as u64 != footer.index_size_bytes || xxh3(bytes) != footer.index_xxh3 {
            return Err(damaged(WHAT, "its checksum does not match"));
        }
        let mut fields = FieldReader::new(bytes, WHAT);
        if fields.take(8)? != ROWS_MAGIC {
            return Err(damaged(WHAT, "it does not start with the magic of rows"));
        }
        let (rows, stripe_count) = (fields.u64()?, usize::from(footer.header.stripe_count));
        let count = rows.checked_mul(stripe_count as u64);
        let entry_bytes = (bytes.len() - INDEX_HEADER_BYTES) as u64;
        if count.and_then(|count| count.checked_mul(INDEX_ENTRY_BYTES as u64)) != Some(entry_bytes) {
            return Err(damaged(WHAT, "its count does not match its size"));
        }
        let mut index = RowIndex { stripe_count, entries: Vec::with_capacity(bytes.len() / INDEX_ENTRY_BYTES) };
        for _ in 0..count.unwrap_or_default() {
            let entry = IndexEntry { stored_size_bytes: fields.u32()?, raw_size_bytes: fields.u32()? };
            check_entry(entry)?;
            index.entries.push(entry);
        }
        if index.end_offset() != footer.index_offset {
            return Err(damaged(WHAT, "its rows do not add up to its place"));
        }
        Ok(index)
    }
}

/// Bytes that follow the header of a row's frame.
pub fn row_body_bytes(stripe_count: usize, entries: impl Iterator<Item = Option<IndexEntry>>) -> usize {
    let longest = entries.flatten().map(|entry| entry.size_on_stripe_bytes() as usize).max();
    row_table_bytes(stripe_count) + longest.unwrap_or_default().next_multiple_of(BLOCK_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> ParityHeader {
        let (parity, set_id) = (StripeIndex(1), SetId([5; 16]));
        ParityHeader { set_id, parity, parity_count: 2, stripe_count: 3, frame_size_bytes: 65_536 }
    }

    fn rows() -> Vec<Vec<Option<RowShard>>> {
        let shard = |sequence, stored_size_bytes| {
            Some(RowShard { sequence, entry: IndexEntry { stored_size_bytes, raw_size_bytes: 65_536 } })
        };
        vec![vec![shard(0, 10), shard(0, 65_536), shard(0, 7)], vec![None, shard(1, 9), None]]
    }

    #[test]
    fn header_row_and_trailer_round_trip_and_every_flipped_bit_is_seen() {
        let good = header().to_bytes();
        assert_eq!(ParityHeader::from_bytes(&good).unwrap(), header());
        for bit in 0..good.len() * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(ParityHeader::from_bytes(&bad).is_err(), "header bit {bit}");
        }
        let mut index = RowIndex::new(3);
        for row in rows() {
            let mut body = vec![9u8; 100];
            put_row_table(&mut body, &row);
            assert_eq!(read_row_table(&body, 3).unwrap(), row);
            index.push(&row);
        }
        let trailer = index.to_trailer(&header());
        let size = index.end_offset() + trailer.len() as u64;
        let read = |trailer: &[u8]| {
            let (index, footer) = trailer.split_at(trailer.len() - FOOTER_BYTES);
            let footer = Footer::from_bytes(footer, size)?;
            if footer.header != header().as_stripe() {
                return Err(damaged("it", "another identity"));
            }
            RowIndex::from_bytes(index, &footer)
        };
        assert_eq!(read(&trailer).unwrap(), index);
        assert_eq!(size, 512 + 64 + 48 + 64 + 65_536 + 64 + 48 + 128 + 16 + 6 * 8 + 64);
        for bit in 0..trailer.len() * 8 {
            let mut bad = trailer.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&bad).is_err(), "trailer bit {bit}");
        }
    }
}
