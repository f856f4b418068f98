//! A piece of an MTF stream on its way from the file to who reads it.

use crate::checksum::{SECTOR_BYTES, sector_xor};

/// Consecutive bytes of an MTF stream: a part of a plain file, or what one compressed chunk holds.
#[derive(Debug, Default)]
pub struct Piece {
    /// Byte of the file where the piece, or the record that holds it, begins.
    pub file_offset: u64,
    /// Byte of the MTF stream where it begins.
    pub stream_offset: u64,
    /// The content; zeros stand for what could not be read.
    pub bytes: Vec<u8>,
    /// The exclusive or of each whole sector.
    pub xors: Vec<u32>,
    /// Whether bytes of the piece and of the file are the same.
    pub is_plain: bool,
    /// Why the content is made up, if it is.
    pub damage: Option<String>,
    /// Whether an unknown number of bytes is missing behind this piece.
    pub gap: bool,
}

impl Piece {
    /// The exclusive or of the sector that begins `at`, if one does.
    pub fn sector_xor(&self, at: usize) -> Option<u32> {
        if at.is_multiple_of(SECTOR_BYTES) { self.xors.get(at / SECTOR_BYTES).copied() } else { None }
    }

    /// Fills in the exclusive or of all sectors.
    pub fn take_xors(&mut self) {
        self.xors.clear();
        self.xors.extend(self.bytes.chunks_exact(SECTOR_BYTES).map(sector_xor));
    }
}
