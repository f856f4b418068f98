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
use crate::terms::{SourceName, WalFacts, WalSegmentName};

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
    /// What the records say that end in it; None has the first piece looked into, and no other.
    pub facts: Option<WalFacts>,
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
    let look = match &piece.facts {
        Some(facts) => Look::Walked(facts.clone()),
        None if piece.offset == 0 => Look::Wal(header.place(0)),
        None => Look::Nothing,
    };
    let member = NewMember {
        name: piece.segment.to_string(),
        content: Content::Bytes(piece.bytes),
        piece_offset: piece.offset,
        look,
    };
    let codec = piece.compression;
    let settings = FrameSettings { codec, threads: 1, frame_size_bytes: codec.default_frame_size_bytes() };
    let facts =
        BundleFacts { kind: BundleKind::Piece, system_identifier: header.system_identifier, header: Some(*header) };
    let name = piece_name(piece.source, header.system_identifier, piece.segment, piece.offset);
    Ok(write_bundle(repository, &name, &settings, &facts, &[member])?.is_new)
}
