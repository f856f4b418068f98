//! Streams: a header of 22 bytes, then `length` bytes, then up to three bytes of padding.

use serde::Serialize;

use crate::checksum::header_sum;
use crate::sql::Guid;
use crate::wire::{Fields, Parsed, tag_text};

/// Bytes of a stream header.
pub const STREAM_HEADER_BYTES: usize = 22;

/// The bit of `media_attributes` that says: a CSUM stream with this one's checksum follows.
const HAS_CHECKSUM: u16 = 0x0100;

/// What a stream holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum StreamKind {
    /// Padding up to the next descriptor block.
    Padding,
    /// Padding so that the next stream's pages begin at a sector.
    Alignment,
    /// Which media set and family the file is of.
    MediaFamily,
    /// Server, database and files, in SQL Server's own records.
    Configuration,
    /// Extents of pages.
    Pages,
    /// Pieces of log.
    Log,
    /// Checksum of the stream before.
    Checksum,
    /// Catalogs that only tapes need.
    Catalog,
}

const KINDS: &[([u8; 4], StreamKind)] = &[
    (*b"SPAD", StreamKind::Padding),
    (*b"APAD", StreamKind::Alignment),
    (*b"RAID", StreamKind::MediaFamily),
    (*b"MQCI", StreamKind::Configuration),
    (*b"MQDA", StreamKind::Pages),
    (*b"MQTL", StreamKind::Log),
    (*b"CSUM", StreamKind::Checksum),
    (*b"OTCP", StreamKind::Catalog),
    (*b"TSMP", StreamKind::Catalog),
];

/// The header of a stream whose checksum is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamHeader {
    /// The four letters.
    pub tag: [u8; 4],
    /// What it holds.
    pub kind: StreamKind,
    /// Bits of the medium's format.
    pub media_attributes: u16,
    /// Bytes of content.
    pub size_bytes: u64,
}

impl StreamHeader {
    /// The header in `bytes`.
    ///
    /// # Errors
    /// A wrong checksum; a kind, compression or encryption that is not known.
    pub fn parse(bytes: &[u8]) -> Parsed<Self> {
        let fields = Fields(bytes);
        let tag = fields.tag(0)?;
        let (stored, right) = (fields.u16(20)?, header_sum(fields.bytes(0, 20)?));
        if stored != right {
            let tag = tag_text(tag);
            return Err(format!("header of stream {tag} has checksum {stored:#06x}, its bytes have {right:#06x}"));
        }
        let Some((_, kind)) = KINDS.iter().find(|(known, _)| *known == tag) else {
            return Err(format!("stream of the unknown kind {}", tag_text(tag)));
        };
        let (encryption, compression) = (fields.u16(16)?, fields.u16(18)?);
        if encryption != 0 || compression != 0 {
            let tag = tag_text(tag);
            return Err(format!("stream {tag} has encryption {encryption} and compression {compression}: not known"));
        }
        Ok(StreamHeader { tag, kind: *kind, media_attributes: fields.u16(6)?, size_bytes: fields.u64(8)? })
    }

    /// Whether a CSUM stream follows.
    pub fn has_checksum(&self) -> bool {
        self.media_attributes & HAS_CHECKSUM != 0
    }

    /// The four letters as text.
    pub fn name(&self) -> String {
        tag_text(self.tag)
    }
}

/// Content of a RAID stream: which file of which media set this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct MediaFamily {
    /// The same in all files of a media set.
    pub media_set_guid: Guid,
    /// Files of the media set.
    pub family_count: u16,
    /// This file, from 1.
    pub family_number: u16,
}

impl MediaFamily {
    /// The content of a RAID stream.
    ///
    /// # Errors
    /// Too few bytes, or a number beyond the count.
    pub fn parse(bytes: &[u8]) -> Parsed<Self> {
        let fields = Fields(bytes);
        let family = MediaFamily {
            media_set_guid: Guid::parse(fields, 0)?,
            family_count: fields.u16(20)?,
            family_number: fields.u16(24)?,
        };
        let MediaFamily { family_count, family_number, .. } = family;
        if family_number == 0 || family_number > family_count {
            return Err(format!("family {family_number} of {family_count} cannot be"));
        }
        Ok(family)
    }
}
