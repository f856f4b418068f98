//! Opens one stripe: header, trailer, index; rebuilds the index by a scan when the trailer is lost.

use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::xxh3;
use crate::format::encrypted::CHUNK_BYTES;
use crate::format::frame::{FRAME_HEADER_BYTES, FRAME_MAGIC, FrameHeader};
use crate::format::stripe::{
    FOOTER_BYTES, Footer, FrameIndex, INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES, IndexEntry, STRIPE_HEADER_BYTES,
    StripeHeader,
};
use crate::storage::ObjectReader;

/// How an index was had.
pub(super) enum IndexFrom {
    /// Read from an intact trailer.
    Trailer(FrameIndex),
    /// Rebuilt from the frames, because of this damage.
    Scan(FrameIndex, Error),
}

/// Bytes read at once while scanning.
const SCAN_BYTES: usize = 1024 * 1024;
/// Most frames that one gap may stand for: a manifest that names more must not cost the memory to say so.
const LOST_FRAMES_MAX: u64 = 1 << 24;

/// Reads header and index of a stripe that must be `expected` and have `frame_count` frames.
///
/// # Errors
/// `Damage` if the stripe is another one (a swap); those of the storage. A lost trailer is not an error.
pub(super) fn read_index(object: &dyn ObjectReader, expected: &StripeHeader, frame_count: u64) -> Result<IndexFrom> {
    let header = read_header(object);
    if let Ok(header) = &header
        && header != expected
    {
        let whose = if header.set_id == expected.set_id {
            format!("it is stripe {} of {}", header.stripe, header.stripe_count)
        } else {
            format!("it belongs to set {}", header.set_id)
        };
        return Err(Error::new(ErrorKind::Damage, "open the stripe", whose));
    }
    match header.and_then(|_| read_trailer(object, expected, frame_count)) {
        Ok(index) => Ok(IndexFrom::Trailer(index)),
        Err(damage) => Ok(IndexFrom::Scan(scan(object, expected, frame_count)?, damage)),
    }
}

/// An object whose damaged parts read as zeros: one chunk of an encrypted object that does not open must not hide the frames
/// around it.
struct ZeroFilled<'a>(&'a dyn ObjectReader);

impl ObjectReader for ZeroFilled<'_> {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        match self.0.read_at(buffer, offset) {
            Err(error) if error.kind() == ErrorKind::Damage && self.0.key_id().is_some() => {}
            read => return read,
        }
        let chunk = CHUNK_BYTES as u64;
        let (mut at, mut rest) = (offset, buffer);
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at_mut(((chunk - at % chunk) as usize).min(rest.len()));
            match self.0.read_at(piece, at) {
                Err(error) if error.kind() == ErrorKind::Damage => piece.fill(0),
                read => read?,
            }
            (at, rest) = (at + piece.len() as u64, behind);
        }
        Ok(())
    }
}

fn read_header(object: &dyn ObjectReader) -> Result<StripeHeader> {
    let mut bytes = [0u8; STRIPE_HEADER_BYTES];
    object.read_at(&mut bytes, 0)?;
    StripeHeader::from_bytes(&bytes)
}

fn read_trailer(object: &dyn ObjectReader, expected: &StripeHeader, frame_count: u64) -> Result<FrameIndex> {
    let size = object.size_bytes();
    let mut bytes = [0u8; FOOTER_BYTES];
    object.read_at(&mut bytes, size.saturating_sub(FOOTER_BYTES as u64))?;
    let footer = Footer::from_bytes(&bytes, size)?;
    if footer.header != *expected {
        return Err(Error::new(ErrorKind::Damage, "read a stripe's trailer", "it belongs to another stripe"));
    }
    let expected_size = frame_count.saturating_mul(INDEX_ENTRY_BYTES as u64).saturating_add(INDEX_HEADER_BYTES as u64);
    if footer.index_size_bytes != expected_size {
        let cause = format!("its index has not the size of the {frame_count} frames that the manifest says");
        return Err(Error::new(ErrorKind::Damage, "read a stripe's trailer", cause));
    }
    let mut bytes = vec![0u8; footer.index_size_bytes as usize];
    object.read_at(&mut bytes, footer.index_offset)?;
    FrameIndex::from_bytes(&bytes, &footer)
}

/// XXH3-64 of an index as it lies in the trailer, to compare with the manifest.
pub(super) fn index_hash(index: &FrameIndex, header: &StripeHeader) -> u64 {
    let trailer = index.to_trailer(header);
    xxh3(&trailer[..trailer.len() - FOOTER_BYTES])
}

/// Walks from frame to frame; where a frame header is damaged, looks for the next good one of this stripe. Frames in
/// between get a place in the index, so that those behind keep their numbers; reading them will show the damage.
fn scan(object: &dyn ObjectReader, expected: &StripeHeader, frame_count: u64) -> Result<FrameIndex> {
    let mut index = FrameIndex::default();
    let mut offset = STRIPE_HEADER_BYTES as u64;
    let object = &ZeroFilled(object);
    let mut walker = Walker { object, start: 0, bytes: Vec::new() };
    while index.frame_count() < frame_count {
        match walker.frame_at(offset, expected)? {
            Some(header) if header.sequence == index.frame_count() => {
                let entry =
                    IndexEntry { stored_size_bytes: header.stored_size_bytes, raw_size_bytes: header.raw_size_bytes };
                index.push(entry);
                offset += entry.size_on_stripe_bytes();
            }
            _ => {
                let next = walker.next_frame(offset + 1, expected, index.frame_count())?;
                // A header that claims more frames than fit into the gap lies.
                let fits = |(found, sequence): &(u64, u64)| {
                    let headers = (sequence - index.frame_count()).saturating_mul(FRAME_HEADER_BYTES as u64);
                    *sequence < frame_count && headers <= found - offset
                };
                let next = next.filter(fits);
                let (found, sequence) = next.unwrap_or((object.size_bytes().max(offset), frame_count));
                if sequence - index.frame_count() > LOST_FRAMES_MAX {
                    break;
                }
                add_lost_frames(&mut index, sequence, found - offset, expected.frame_size_bytes);
                offset = found;
            }
        }
    }
    Ok(index)
}

/// Places for the frames up to `sequence` in a gap of `gap` bytes; each gets the room that a frame can have, so that
/// no place is larger than a transfer buffer.
fn add_lost_frames(index: &mut FrameIndex, sequence: u64, gap: u64, frame_size_bytes: u32) {
    let lost = sequence - index.frame_count();
    let mut room = gap.saturating_sub(lost * FRAME_HEADER_BYTES as u64);
    for _ in 0..lost {
        let stored_size_bytes = room.min(u64::from(frame_size_bytes)) as u32;
        room -= u64::from(stored_size_bytes);
        index.push(IndexEntry { stored_size_bytes, raw_size_bytes: frame_size_bytes });
    }
}

/// A window over a stripe.
struct Walker<'a> {
    object: &'a dyn ObjectReader,
    start: u64,
    bytes: Vec<u8>,
}

impl Walker<'_> {
    /// The bytes from `offset`, at least `least` of them unless the stripe ends.
    fn window(&mut self, offset: u64, least: usize) -> Result<&[u8]> {
        let inside = offset >= self.start && offset + least as u64 <= self.start + self.bytes.len() as u64;
        if !inside {
            let length = self.object.size_bytes().saturating_sub(offset).min(SCAN_BYTES as u64) as usize;
            self.bytes.resize(length, 0);
            self.start = offset;
            self.object.read_at(&mut self.bytes, offset)?;
        }
        Ok(&self.bytes[(offset - self.start) as usize..])
    }

    fn frame_at(&mut self, offset: u64, expected: &StripeHeader) -> Result<Option<FrameHeader>> {
        let header = FrameHeader::from_bytes(self.window(offset, FRAME_HEADER_BYTES)?).ok();
        Ok(header.filter(|header| header.set_id == expected.set_id && header.stripe == expected.stripe))
    }

    /// Place and number of the first frame of this stripe from `offset` on whose number is at least `sequence`.
    fn next_frame(&mut self, mut offset: u64, expected: &StripeHeader, sequence: u64) -> Result<Option<(u64, u64)>> {
        loop {
            let window = self.window(offset, FRAME_HEADER_BYTES)?;
            if window.len() < FRAME_HEADER_BYTES {
                return Ok(None);
            }
            let window_length = window.len();
            match window.windows(FRAME_MAGIC.len()).position(|bytes| bytes == FRAME_MAGIC) {
                Some(position) => {
                    offset += position as u64;
                    let header = self.frame_at(offset, expected)?;
                    if let Some(header) = header.filter(|header| header.sequence >= sequence) {
                        return Ok(Some((offset, header.sequence)));
                    }
                    offset += 1;
                }
                None => offset += (window_length - FRAME_MAGIC.len() + 1) as u64,
            }
        }
    }
}
