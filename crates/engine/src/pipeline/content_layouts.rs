//! What the frames of a run hold, as far as a codec wants to know it. The pipeline knows no database: it is told.

use super::buffer_pool::Piece;
use crate::codec::{Part, RelationLayout};
use crate::terms::FileId;

/// Knows what the pages of files hold.
pub trait ContentLayouts: Sync {
    /// What the pages of `file` hold, and the number of the page at `file_offset` within its relation's fork, over all
    /// segments; None if the file has no pages, if nobody knows, or if no page starts there.
    fn layout(&self, file: FileId, file_offset: u64) -> Option<(&RelationLayout, u32)>;
}

/// Puts what is known of a frame's pieces into `parts`, in place of what was there. Pieces without a page have no part.
pub(super) fn fill_parts<'a>(parts: &mut Vec<Part<'a>>, layouts: &'a dyn ContentLayouts, pieces: &[Piece]) {
    parts.clear();
    parts.extend(pieces.iter().filter_map(|piece| {
        let (layout, first_page) = layouts.layout(piece.file, piece.file_offset)?;
        let (start, length) = (piece.offset_in_frame as usize, piece.length as usize);
        (length >= layout.page_size_bytes as usize).then_some(Part { start, length, first_page, layout })
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Two(RelationLayout);

    impl ContentLayouts for Two {
        fn layout(&self, file: FileId, file_offset: u64) -> Option<(&RelationLayout, u32)> {
            (file.0 == 2 && file_offset.is_multiple_of(8192)).then_some((&self.0, 100 + (file_offset / 8192) as u32))
        }
    }

    #[test]
    fn parts_are_the_pieces_that_are_known_and_have_a_page() {
        let piece = |file, file_offset, offset_in_frame, length| Piece {
            file: FileId(file),
            file_offset,
            offset_in_frame,
            length,
            crc32c: 0,
        };
        let layouts = Two(RelationLayout::other(8192));
        let pieces = [
            piece(1, 0, 0, 8192),
            piece(2, 8192, 8192, 16_384),
            piece(2, 4096, 24_576, 8192),
            piece(2, 0, 32_768, 8191),
            piece(2, 0, 40_960, 8192),
        ];
        let mut parts = Vec::new();
        for _ in 0..2 {
            fill_parts(&mut parts, &layouts, &pieces);
            let seen: Vec<_> = parts.iter().map(|part| (part.start, part.length, part.first_page)).collect();
            assert_eq!(seen, [(8192, 16_384, 101), (40_960, 8192, 100)]);
        }
    }
}
