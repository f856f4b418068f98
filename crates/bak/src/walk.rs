//! A whole file walked: its pieces through the parser, to who wants to know.

use pagehaul_engine::error::Result;

use crate::bytes::BakFile;
use crate::mtf::{MtfParser, MtfSink, Place};
use crate::piece::Piece;
use crate::source::{PieceReader, Progress, read_pieces};

/// As [`MtfSink`], and hears of chunks that could not be read.
pub trait FileSink: MtfSink {
    /// A chunk, or more than one, could not be read.
    fn chunk_damage(&mut self, at: Place, cause: String);
}

/// Reads all of `file`, with `threads` that decode; `progress` hears of bytes that were read.
///
/// # Errors
/// `Damage` if it is no backup file, `Source` if it cannot be read.
pub fn walk_all(file: &BakFile, threads: u16, progress: Progress<'_>, sink: &mut dyn FileSink) -> Result<()> {
    let mut parser = MtfParser::default();
    read_pieces(file, threads, progress, &mut |piece| {
        take(&mut parser, piece, sink);
        Ok(())
    })?;
    parser.finish(sink);
    Ok(())
}

/// Reads as little of `file` as it takes to see all blocks and what `sink` gathers.
///
/// # Errors
/// As [`walk_all`].
pub fn walk_headers(file: &BakFile, sink: &mut dyn FileSink) -> Result<()> {
    let mut parser = MtfParser::default();
    let mut reader = PieceReader::new(file)?;
    loop {
        let skippable = parser.skippable_bytes();
        if skippable > 0 {
            let skipped = reader.skip(skippable)?;
            parser.skip(skipped);
        }
        let Some(piece) = reader.next_piece()? else { break };
        take(&mut parser, piece, sink);
    }
    parser.finish(sink);
    Ok(())
}

fn take(parser: &mut MtfParser, piece: &Piece, sink: &mut dyn FileSink) {
    if let Some(cause) = &piece.damage {
        let at = Place { file_offset: piece.file_offset, stream_offset: piece.stream_offset };
        sink.chunk_damage(at, cause.clone());
    }
    if piece.gap {
        parser.lose_track(sink);
    } else {
        parser.feed(piece, sink);
    }
}
