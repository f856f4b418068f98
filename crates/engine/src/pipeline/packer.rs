//! What an incremental backup stores of a buffer: the parts that a prior set does not hold, packed into shared frames.
//!
//! One packer belongs to one encoder. Frames that have changed as a whole go on as they are; single pages of many files
//! are gathered until they fill a frame. Its memory is one frame, made before the run and counted in the ceiling.

use std::ops::Range;

use super::auto_level::Fill;
use super::buffer_pool::{Asker, Buffer, FrameSlot, Piece};
use super::encoder::{EncoderStage, FrameEncoder, digest_frame, encode_frame, is_zero};
use super::stripe_writer::StripeQueues;
use crate::error::Result;
use crate::format::checksum::Appender;
use crate::terms::FileId;

/// A piece of a file that was read, with its checksums.
#[derive(Clone, Copy, Debug)]
pub struct Examined<'a> {
    /// Whose bytes.
    pub file: FileId,
    /// Where in the file.
    pub file_offset: u64,
    /// The bytes.
    pub bytes: &'a [u8],
    /// CRC32C of all of them.
    pub crc32c: u32,
    /// CRC32C of each whole page from the first byte on; None if the piece does not start at a page of its frame.
    pub page_sums: Option<&'a [u32]>,
}

/// Tells what of a file a prior set does not hold; one thread's view of it.
pub trait Selector {
    /// Adds the parts of the piece that must be stored to `changed`: byte ranges, in order, of whole pages but for the
    /// end of a file.
    ///
    /// # Errors
    /// If the prior set cannot be asked.
    fn select(&mut self, piece: &Examined<'_>, changed: &mut Vec<Range<usize>>) -> Result<()>;
}

/// Knows what prior sets hold.
pub trait Selection: Sync {
    /// A view for one thread.
    fn selector(&self) -> Box<dyn Selector + '_>;
}

/// One encoder's packing.
pub(super) struct Packer<'a> {
    stage: &'a EncoderStage<'a>,
    selector: Box<dyn Selector + 'a>,
    pages: &'a Appender,
    /// The frame that is being gathered.
    bytes: Vec<u8>,
    pieces: Vec<Piece>,
    sums: Vec<u32>,
    /// What has changed in the frame at hand: piece, and range of it.
    changed: Vec<(usize, Range<usize>)>,
    ranges: Vec<Range<usize>>,
    /// The buffer of stored frames that is being filled; sent before the next input is awaited.
    output: Option<Buffer>,
    output_bytes: usize,
}

/// What encoding needs, handed through.
struct Path<'e, 'a, 'q> {
    encoder: &'e mut FrameEncoder<'a>,
    fill: &'e dyn Fn() -> Fill,
    queues: &'e StripeQueues<'q>,
}

impl<'a> Packer<'a> {
    pub(super) fn new(stage: &'a EncoderStage<'a>, selection: &'a dyn Selection, pages: &'a Appender) -> Self {
        Packer {
            stage,
            selector: selection.selector(),
            pages,
            bytes: Vec::with_capacity(stage.frame_size_bytes),
            pieces: Vec::new(),
            sums: Vec::new(),
            changed: Vec::new(),
            ranges: Vec::new(),
            output: None,
            output_bytes: 0,
        }
    }

    /// Stores what is new of an examined buffer; false if the run has stopped.
    ///
    /// # Errors
    /// Those of the selection and the codec.
    pub(super) fn store(
        &mut self,
        raw: &Buffer,
        encoder: &mut FrameEncoder<'a>,
        fill: &dyn Fn() -> Fill,
        queues: &StripeQueues<'_>,
    ) -> Result<bool> {
        let path = &mut Path { encoder, fill, queues };
        for frame in &raw.frames {
            let content = &raw.bytes[frame.start..frame.start + frame.length];
            let own = &raw.pieces[frame.piece_start..frame.piece_end];
            let sums = &raw.sums[frame.sums_start..frame.sums_start + frame.length / self.page()];
            let changed_bytes = self.select(content, own, sums)?;
            let stays_whole = changed_bytes == frame.length && 2 * frame.length >= self.stage.frame_size_bytes;
            let going_on = if stays_whole {
                self.emit(path, content, frame, own, sums)?
            } else {
                let changed = std::mem::take(&mut self.changed);
                let mut going_on = true;
                for (piece, range) in &changed {
                    going_on = going_on && self.gather(path, content, &own[*piece], range)?;
                }
                self.changed = changed;
                going_on
            };
            if !going_on {
                return Ok(false);
            }
        }
        self.send(queues);
        Ok(true)
    }

    /// Stores what is gathered, after the last buffer.
    ///
    /// # Errors
    /// Those of the codec.
    pub(super) fn finish(
        &mut self,
        encoder: &mut FrameEncoder<'a>,
        fill: &dyn Fn() -> Fill,
        queues: &StripeQueues<'_>,
    ) -> Result<()> {
        self.flush(&mut Path { encoder, fill, queues })?;
        self.send(queues);
        Ok(())
    }

    fn page(&self) -> usize {
        self.pages.part_bytes() as usize
    }

    /// Notes what has changed in a frame; gives how many bytes that are.
    fn select(&mut self, content: &[u8], own: &[Piece], sums: &[u32]) -> Result<usize> {
        self.changed.clear();
        let page = self.page();
        let mut changed_bytes = 0;
        for (number, piece) in own.iter().enumerate() {
            let (start, length) = (piece.offset_in_frame as usize, piece.length as usize);
            let aligned = start.is_multiple_of(page);
            let examined = Examined {
                file: piece.file,
                file_offset: piece.file_offset,
                bytes: &content[start..start + length],
                crc32c: piece.crc32c,
                page_sums: aligned.then(|| &sums[start / page..start / page + length / page]),
            };
            self.ranges.clear();
            self.selector.select(&examined, &mut self.ranges)?;
            changed_bytes += self.ranges.iter().map(Range::len).sum::<usize>();
            self.changed.extend(self.ranges.drain(..).map(|range| (number, range)));
        }
        Ok(changed_bytes)
    }

    /// Adds a part of a piece to the frame that is being gathered.
    fn gather(
        &mut self,
        path: &mut Path<'_, 'a, '_>,
        content: &[u8],
        piece: &Piece,
        part: &Range<usize>,
    ) -> Result<bool> {
        let first = piece.offset_in_frame as usize;
        let mut rest = &content[first + part.start..first + part.end];
        let mut file_offset = piece.file_offset + part.start as u64;
        if is_zero(rest) {
            return self.emit_zeros(path, piece.file, file_offset, rest.len());
        }
        while !rest.is_empty() {
            let (head, tail) = rest.split_at(rest.len().min(self.stage.frame_size_bytes - self.bytes.len()));
            self.pieces.push(Piece {
                file: piece.file,
                file_offset,
                offset_in_frame: self.bytes.len() as u32,
                length: head.len() as u32,
                crc32c: 0,
            });
            self.bytes.extend_from_slice(head);
            // What follows starts at a page again, or the next backup could not compare it.
            self.bytes.resize(self.bytes.len().next_multiple_of(self.page()), 0);
            file_offset += head.len() as u64;
            rest = tail;
            if self.bytes.len() == self.stage.frame_size_bytes && !self.flush(path)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Stores the gathered frame.
    fn flush(&mut self, path: &mut Path<'_, 'a, '_>) -> Result<bool> {
        if self.bytes.is_empty() {
            return Ok(true);
        }
        let (bytes, mut pieces, mut sums) =
            (std::mem::take(&mut self.bytes), std::mem::take(&mut self.pieces), std::mem::take(&mut self.sums));
        let mut frame = FrameSlot { length: bytes.len(), raw_length: bytes.len(), ..FrameSlot::default() };
        digest_frame(Some(self.pages), &mut frame, &bytes, &mut pieces, &mut sums);
        let going_on = self.emit(path, &bytes, &frame, &pieces, &sums);
        (self.bytes, self.pieces, self.sums) = (bytes, pieces, sums);
        self.bytes.clear();
        self.pieces.clear();
        self.sums.clear();
        going_on
    }

    fn emit_zeros(
        &mut self,
        path: &mut Path<'_, 'a, '_>,
        file: FileId,
        file_offset: u64,
        length: usize,
    ) -> Result<bool> {
        let crc32c = crate::format::checksum::crc32c_of_zeros(length as u64);
        let piece = Piece { file, file_offset, offset_in_frame: 0, length: length as u32, crc32c };
        let frame = FrameSlot { raw_length: length, zeros: true, ..FrameSlot::default() };
        self.emit(path, &[], &frame, &[piece], &[])
    }

    /// Encodes a frame into the output; false if the run has stopped.
    fn emit(
        &mut self,
        path: &mut Path<'_, 'a, '_>,
        content: &[u8],
        frame: &FrameSlot,
        pieces: &[Piece],
        sums: &[u32],
    ) -> Result<bool> {
        if self.output_bytes + content.len() > self.stage.feed.transfer_size_bytes() as usize {
            self.send(path.queues);
        }
        let output = match &mut self.output {
            Some(output) => output,
            None => match self.stage.pool.acquire(Asker::Middle) {
                Some(buffer) => self.output.insert(buffer),
                None => return Ok(false),
            },
        };
        let (start, piece_start, sums_start) = (self.output_bytes, output.pieces.len(), output.sums.len());
        output.pieces.extend_from_slice(pieces);
        output.sums.extend_from_slice(sums);
        let piece_end = output.pieces.len();
        let mut slot = FrameSlot { start, length: 0, piece_start, piece_end, sums_start, ..*frame };
        if !frame.zeros {
            let stored = &mut output.bytes[start..start + content.len()];
            encode_frame(path.encoder, path.fill, (content, pieces), &mut slot, stored)?;
            self.output_bytes += slot.length;
        }
        output.frames.push(slot);
        Ok(true)
    }

    fn send(&mut self, queues: &StripeQueues<'_>) {
        if let Some(output) = self.output.take() {
            queues.send(output);
        }
        self.output_bytes = 0;
    }
}
