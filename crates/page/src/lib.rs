//! The page codec: takes the pages of a database file apart, packs like with like, and brings back the same bytes.
//!
//! A frame is decoded alone. What the encoder is told of its content ([`Part`], [`RelationLayout`]) is a hint: whatever does
//! not look as the hint says is stored as it is. Where columns are not told, they are looked for, first among those found in
//! earlier frames. Every frame is decoded again before the encoder lets it go, and a digest of the content is checked after
//! every decode.
//!
//! Pure bytes to bytes: no files, no threads, no database. FORMAT.md describes every stream.

mod checksum;
mod codec;
mod entropy;
mod error;
mod frame;
mod layout;
mod level;
mod postgres;
mod prefetch;
mod stream;
mod values;
mod wal;

pub use checksum::page_checksum;
pub use codec::{
    Error, FRAME_SIZE_BYTES_MAX, PageDecoder, PageEncoder, decoder_state_size_bytes, encoder_state_size_bytes,
};
pub use layout::{ATTRIBUTES_MAX, Attribute, PAGE_SIZES_BYTES, RelationKind, RelationLayout, ValueType};
pub use level::Level;

/// A run of bytes within a frame that comes from one place of one file.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Where it starts in the frame's content.
    pub start: usize,
    /// How many bytes.
    pub length: usize,
    /// The number of its first page within the relation's fork, over all segments; it is part of the page's checksum.
    /// Pages of WAL have no such number.
    pub first_page: u32,
    /// What the pages hold.
    pub layout: &'a RelationLayout,
}
