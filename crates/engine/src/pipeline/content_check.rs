//! What looks at content on its way into a backup, knowing what the database's pages should be.

use super::buffer_pool::Buffer;
use crate::error::Result;
use crate::terms::FileId;

/// Looks at content on its way.
pub trait ContentCheck: Sync {
    /// Checks the piece of `file` at `file_offset`; may replace `bytes` by what a second read gives.
    ///
    /// # Errors
    /// Only if the source cannot be read; a damaged page is recorded, not an error.
    fn check(&self, file: FileId, file_offset: u64, bytes: &mut [u8]) -> Result<()>;
}

/// Checks nothing.
#[derive(Debug)]
pub struct NoCheck;

impl ContentCheck for NoCheck {
    fn check(&self, _file: FileId, _file_offset: u64, _bytes: &mut [u8]) -> Result<()> {
        Ok(())
    }
}

/// Checks every piece of `raw`.
pub(super) fn check_pieces(check: &dyn ContentCheck, raw: &mut Buffer) -> Result<()> {
    let Buffer { bytes, frames, pieces, .. } = raw;
    for frame in frames {
        for piece in &pieces[frame.piece_start..frame.piece_end] {
            let start = frame.start + piece.offset_in_frame as usize;
            check.check(piece.file, piece.file_offset, &mut bytes[start..start + piece.length as usize])?;
        }
    }
    Ok(())
}
