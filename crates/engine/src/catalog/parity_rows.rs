//! The rows of a set's parity: which frames each one is of. Read from the trailer of any parity stripe, or put together
//! from the rows themselves where no trailer is left.

use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::xxh3;
use crate::format::frame::{FRAME_HEADER_BYTES, FRAME_MAGIC, FrameHeader, FrameKind};
use crate::format::manifest::{StripeRecord, hex64};
use crate::format::parity::{ParityHeader, RowIndex, RowShard, read_row_table, row_body_bytes};
use crate::format::stripe::{
    FOOTER_BYTES, Footer, FrameIndex, INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES, STRIPE_HEADER_BYTES,
};
use crate::storage::ObjectReader;

/// Bytes that are searched at once for the next row.
const SEARCH_BYTES: u64 = 1024 * 1024;
/// No row: of a frame that is in none, as far as is known.
const NO_ROW: u32 = u32::MAX;

/// The rows of a set.
pub(super) struct Rows {
    stripe_count: usize,
    shards: Vec<Option<RowShard>>,
    /// Where each row's frame starts on every parity stripe, and where the trailer does; of a row that is lost on all of them
    /// it is not known.
    offsets: Vec<Option<u64>>,
    /// For each stripe the row of each of its frames.
    row_of: Vec<Vec<u32>>,
    /// The index if every row is known.
    index: Option<RowIndex>,
}

impl Rows {
    /// Bytes that the rows of a set take: `frame_count` of all its stripes.
    pub(super) fn memory_bytes(row_count: u64, stripe_count: u64, frame_count: u64) -> u64 {
        let row = stripe_count * (size_of::<Option<RowShard>>() + INDEX_ENTRY_BYTES) as u64 + 16;
        row_count * row + frame_count * size_of::<u32>() as u64
    }

    /// Reads them from their `own` object, or from the parity stripes that are there; `records` are those of the manifest,
    /// of all parity stripes, and `first` is the header of the first.
    ///
    /// # Errors
    /// `Damage` if nothing is known of any row.
    pub(super) fn read(
        own: Option<&dyn ObjectReader>,
        objects: &[(ParityHeader, &dyn ObjectReader)],
        records: &[StripeRecord],
        first: &ParityHeader,
        frame_counts: &[u64],
    ) -> Result<Self> {
        let row_count = records.first().map_or(0, |record| record.frame_count);
        // What a manifest claims must not cost the memory to say so.
        let most = objects.iter().map(|(_, object)| *object).chain(own).map(ObjectReader::size_bytes).max();
        if row_count > most.unwrap_or_default() / INDEX_ENTRY_BYTES as u64
            || frame_counts.iter().any(|count| *count > row_count)
        {
            return Err(lost("its rows are not there, or fewer than there must be"));
        }
        if let Some(Ok(index)) = own.map(|own| read_own(own, first, &records[0])) {
            return Ok(Rows::of_index(index, frame_counts));
        }
        for (header, object) in objects {
            let record = &records[usize::from(header.parity.0)];
            if let Ok(index) = read_trailer(*object, header, record) {
                return Ok(Rows::of_index(index, frame_counts));
            }
        }
        let mut found = Found::new(frame_counts.len(), row_count);
        for (header, object) in objects {
            found.scan(*object, header);
        }
        let rows = found.finish(frame_counts);
        match (objects.first(), &rows.index) {
            (Some((header, _)), Some(index))
                if hex64(index.hash(header)) != records[usize::from(header.parity.0)].index_xxh3 =>
            {
                Err(lost("its rows are not those that the manifest names"))
            }
            _ if row_count > 0 && rows.shards.iter().all(Option::is_none) => Err(lost("no row of parity can be read")),
            _ => Ok(rows),
        }
    }

    fn of_index(index: RowIndex, frame_counts: &[u64]) -> Self {
        let stripe_count = frame_counts.len();
        let mut next = vec![0u64; stripe_count];
        let mut shards = Vec::with_capacity(index.row_count() as usize * stripe_count);
        let (mut offset, mut offsets) =
            (STRIPE_HEADER_BYTES as u64, Vec::with_capacity(index.row_count() as usize + 1));
        for row in index.rows() {
            offsets.push(Some(offset));
            let start = shards.len();
            shards.extend(row.enumerate().map(|(stripe, entry)| {
                entry.map(|entry| {
                    let sequence = next[stripe];
                    next[stripe] += 1;
                    RowShard { sequence, entry }
                })
            }));
            let entries = shards[start..].iter().map(|shard: &Option<RowShard>| shard.map(|shard| shard.entry));
            offset += (FRAME_HEADER_BYTES + row_body_bytes(stripe_count, entries)) as u64;
        }
        offsets.push(Some(offset));
        let row_of = rows_of(&shards, stripe_count, frame_counts);
        Rows { stripe_count, shards, offsets, row_of, index: Some(index) }
    }

    /// What each stripe has in a row.
    pub(super) fn shards(&self, row: u64) -> &[Option<RowShard>] {
        let start = row as usize * self.stripe_count;
        self.shards.get(start..start + self.stripe_count).unwrap_or_default()
    }

    /// Where the row's frame lies on each parity stripe; with its size.
    pub(super) fn place(&self, row: u64) -> Option<(u64, usize)> {
        let offset = (*self.offsets.get(row as usize)?)?;
        let entries = self.shards(row).iter().map(|shard| shard.map(|shard| shard.entry));
        Some((offset, FRAME_HEADER_BYTES + row_body_bytes(self.stripe_count, entries)))
    }

    /// The row that a stripe's frame is in.
    pub(super) fn row_of(&self, stripe: usize, sequence: u64) -> Option<u64> {
        let row = *self.row_of.get(stripe)?.get(sequence as usize)?;
        (row != NO_ROW).then_some(row.into())
    }

    /// The index of a stripe, if every row is known.
    pub(super) fn index_of(&self, stripe: usize) -> Option<FrameIndex> {
        self.index.as_ref()?;
        let mut index = FrameIndex::default();
        let own = self.shards.iter().skip(stripe).step_by(self.stripe_count).flatten();
        own.for_each(|shard| index.push(shard.entry));
        Some(index)
    }

    /// The index of the parity stripes, and where each row and the trailer start, if every row is known.
    pub(super) fn whole(&self) -> Option<(&RowIndex, Vec<u64>)> {
        let offsets: Option<Vec<u64>> = self.offsets.iter().copied().collect();
        Some((self.index.as_ref()?, offsets?))
    }
}

fn lost(cause: &str) -> Error {
    Error::new(ErrorKind::Damage, "read the parity of the set", cause)
}

fn rows_of(shards: &[Option<RowShard>], stripe_count: usize, frame_counts: &[u64]) -> Vec<Vec<u32>> {
    let mut row_of: Vec<Vec<u32>> = frame_counts.iter().map(|count| vec![NO_ROW; *count as usize]).collect();
    for (row, shards) in shards.chunks_exact(stripe_count.max(1)).enumerate() {
        for (stripe, shard) in shards.iter().enumerate() {
            if let Some(place) = shard.and_then(|shard| row_of[stripe].get_mut(shard.sequence as usize)) {
                *place = row as u32;
            }
        }
    }
    row_of
}

fn read_trailer(object: &dyn ObjectReader, header: &ParityHeader, record: &StripeRecord) -> Result<RowIndex> {
    let footer = read_footer(object, header, record, object.size_bytes())?;
    let mut bytes = vec![0u8; footer.index_size_bytes as usize];
    object.read_at(&mut bytes, footer.index_offset)?;
    RowIndex::from_bytes(&bytes, &footer)
}

/// The same of an object that has nothing but the trailer of the first parity stripe.
fn read_own(object: &dyn ObjectReader, header: &ParityHeader, record: &StripeRecord) -> Result<RowIndex> {
    let footer = read_footer(object, header, record, record.size_bytes)?;
    let mut bytes = vec![0u8; footer.index_size_bytes as usize];
    object.read_at(&mut bytes, 0)?;
    RowIndex::from_bytes(&bytes, &footer)
}

/// The footer at the end of an object; it is of a parity stripe of `size_bytes`.
fn read_footer(
    object: &dyn ObjectReader,
    header: &ParityHeader,
    record: &StripeRecord,
    size_bytes: u64,
) -> Result<Footer> {
    let mut bytes = [0u8; FOOTER_BYTES];
    object.read_at(&mut bytes, object.size_bytes().saturating_sub(FOOTER_BYTES as u64))?;
    let footer = Footer::from_bytes(&bytes, size_bytes)?;
    let entries = record.frame_count.saturating_mul(u64::from(header.stripe_count));
    let expected_size = entries.saturating_mul(INDEX_ENTRY_BYTES as u64).saturating_add(INDEX_HEADER_BYTES as u64);
    if footer.header != header.as_stripe()
        || footer.index_size_bytes != expected_size
        || hex64(footer.index_xxh3) != record.index_xxh3
    {
        return Err(lost("a trailer is not the one that the manifest names"));
    }
    Ok(footer)
}

/// What is known of the rows while they are looked for.
struct Found {
    stripe_count: usize,
    shards: Vec<Option<RowShard>>,
    /// Where a row's frame starts, of those that were found.
    offsets: Vec<Option<u64>>,
    /// Where the last row ends.
    end: Option<u64>,
}

impl Found {
    fn new(stripe_count: usize, row_count: u64) -> Self {
        let rows = row_count as usize;
        Found { stripe_count, shards: vec![None; rows * stripe_count], offsets: vec![None; rows], end: None }
    }

    /// Walks from row to row; after damage it looks for the next sound header of this parity stripe.
    fn scan(&mut self, object: &dyn ObjectReader, header: &ParityHeader) {
        let (mut offset, mut body) = (STRIPE_HEADER_BYTES as u64, Vec::new());
        let mut row = 0;
        while (row as usize) < self.offsets.len() {
            let Some(frame) = frame_at(object, offset, header).filter(|frame| frame.sequence >= row) else {
                match next_magic(object, offset + 1) {
                    Some(next) => offset = next,
                    None => return,
                }
                continue;
            };
            let size = frame.stored_size_bytes as usize;
            body.resize(size, 0);
            if object.read_at(&mut body, offset + FRAME_HEADER_BYTES as u64).is_ok() && xxh3(&body) == frame.stored_xxh3
            {
                self.take(frame.sequence, offset, &body);
            }
            offset += (FRAME_HEADER_BYTES + size) as u64;
            row = frame.sequence + 1;
        }
        self.end = Some(offset);
    }

    fn take(&mut self, row: u64, offset: u64, body: &[u8]) {
        let (row, count) = (row as usize, self.stripe_count);
        if let (Some(place), Ok(table)) = (self.offsets.get_mut(row), read_row_table(body, count)) {
            *place = Some(offset);
            self.shards[row * count..(row + 1) * count].copy_from_slice(&table);
        }
    }

    fn finish(self, frame_counts: &[u64]) -> Rows {
        let Found { stripe_count, shards, mut offsets, end } = self;
        let is_whole = end.is_some() && offsets.iter().all(Option::is_some);
        let index = is_whole.then(|| {
            let mut index = RowIndex::new(stripe_count);
            shards.chunks_exact(stripe_count.max(1)).for_each(|row| index.push(row));
            index
        });
        offsets.push(end);
        let row_of = rows_of(&shards, stripe_count, frame_counts);
        Rows { stripe_count, shards, offsets, row_of, index }
    }
}

fn frame_at(object: &dyn ObjectReader, offset: u64, header: &ParityHeader) -> Option<FrameHeader> {
    let mut bytes = [0u8; FRAME_HEADER_BYTES];
    object.read_at(&mut bytes, offset).ok()?;
    let frame = FrameHeader::from_bytes_of(&bytes, FrameKind::ParityRow).ok()?;
    (frame.set_id == header.set_id && frame.stripe == header.parity).then_some(frame)
}

/// Where the magic of a frame next stands from `offset` on; what cannot be read is passed over.
fn next_magic(object: &dyn ObjectReader, mut offset: u64) -> Option<u64> {
    let mut bytes = Vec::new();
    loop {
        let length = object.size_bytes().saturating_sub(offset).min(SEARCH_BYTES);
        if length < FRAME_HEADER_BYTES as u64 {
            return None;
        }
        bytes.resize(length as usize, 0);
        if object.read_at(&mut bytes, offset).is_ok()
            && let Some(found) = bytes.windows(FRAME_MAGIC.len()).position(|window| window == FRAME_MAGIC)
        {
            return Some(offset + found as u64);
        }
        offset += length - (FRAME_MAGIC.len() - 1) as u64;
    }
}
