//! Stores a piece of a segment that is still being streamed.

use super::bundle_writer::{BundleFacts, Look, NewMember, write_bundle};
use super::content::Content;
use crate::catalog::Repository;
use crate::catalog::wal_names::piece_name;
use crate::error::{Error, ErrorKind, Result};
use crate::format::wal_bundle::BundleKind;
use crate::pipeline::CodecSpec;
use crate::pipeline::bundle::FrameSettings;
use crate::source::postgres::wal_header::SegmentHeader;
use crate::terms::{SourceName, WalSegmentName};

/// Some bytes of a segment.
#[derive(Clone, Debug)]
pub struct Piece<'a> {
    /// The name of the cluster in the repository.
    pub source: &'a SourceName,
    /// The segment.
    pub segment: &'a WalSegmentName,
    /// The header of the segment's first page: whose it is, and its sizes.
    pub header: SegmentHeader,
    /// Where the piece begins; anywhere, because a piece is never rewritten and the next one begins where it ends.
    pub offset: u32,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// Codec and level.
    pub compression: CodecSpec,
}

/// Stores a piece; false if one with that offset is there, which stays.
///
/// The caller has checked the fence of the source.
///
/// # Errors
/// `Bug` if the piece does not fit into its segment; those of the storage.
pub fn put_piece(repository: &Repository, piece: &Piece<'_>) -> Result<bool> {
    let header = &piece.header;
    let end = u64::from(piece.offset) + piece.bytes.len() as u64;
    if end > u64::from(header.segment_size_bytes) {
        let action = format!("store a piece of {}", piece.segment);
        return Err(Error::new(ErrorKind::Bug, action, format!("offset {} does not fit", piece.offset)));
    }
    // Where a piece begins in the middle of a page, its records cannot be found.
    let look = match piece.offset.is_multiple_of(header.block_size_bytes) {
        true => Look::Wal(header.place(piece.offset)),
        false => Look::Nothing,
    };
    let member = NewMember {
        name: piece.segment.to_string(),
        content: Content::Bytes(piece.bytes),
        piece_offset: piece.offset,
        look,
    };
    let settings = FrameSettings {
        codec: piece.compression,
        threads: 1,
        frame_size_bytes: piece.compression.default_frame_size_bytes(),
    };
    let facts =
        BundleFacts { kind: BundleKind::Piece, system_identifier: header.system_identifier, header: Some(*header) };
    let name = piece_name(piece.source, header.system_identifier, piece.segment, piece.offset);
    Ok(write_bundle(repository.storage(), &name, &settings, &facts, &[member])?.is_new)
}
