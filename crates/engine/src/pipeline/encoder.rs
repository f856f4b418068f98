//! Middle stage of a backup: hashes, encodes. One frame at a time, while its bytes are in the CPU's cache.
//!
//! Takes raw buffers, gives buffers of stored frames to the stripe that is least behind. Without a codec the raw
//! buffer itself goes on: nothing is copied.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crossbeam_channel::Receiver;

use super::auto_level::{AutoLevel, Fill, SetPoints};
use super::buffer_pool::{Asker, Buffer, BufferPool, FrameSlot, Piece};
use super::content_check::{ContentCheck, check_pieces};
use super::content_layouts::{ContentLayouts, fill_parts};
use super::control::{Control, RateLimit};
use super::packer::{Packer, Selection};
use super::stats::{Doing, StageClock, StageMeter};
use super::stripe_writer::StripeQueues;
use super::work::WorkFeed;
use crate::codec::ladder::{Ladder, LadderEncoder, RUNGS};
use crate::codec::{CodecId, CodecSpec, Encoder, Part, new_encoder};
use crate::error::Result;
use crate::format::checksum::{Appender, combine, crc32c, xxh3};

/// What all encoders share.
pub(super) struct EncoderStage<'a> {
    pub(super) codec: CodecSpec,
    pub(super) frame_size_bytes: usize,
    /// Chooses the level of each frame if the codec is `auto`.
    pub(super) level: &'a AutoLevel,
    pub(super) points: SetPoints,
    pub(super) feed: &'a WorkFeed,
    pub(super) rate: Option<&'a RateLimit>,
    /// Of a stream, whose one reader has enough to do: what looks at content here.
    pub(super) check: Option<&'a dyn ContentCheck>,
    /// Knows what the files' pages hold; None if the codec does not want to know.
    pub(super) layouts: Option<&'a dyn ContentLayouts>,
    /// Makes the checksum of each page, and those of larger parts from them; None if nobody wants them.
    pub(super) pages: Option<&'a Appender>,
    /// Leaves out what a prior set holds; it needs the pages' checksums.
    pub(super) selection: Option<&'a dyn Selection>,
    pub(super) pool: &'a BufferPool,
    pub(super) control: &'a Control,
    pub(super) meter: &'a StageMeter,
    /// Frames that did not decode to their content, and were stored as they are.
    pub(super) not_proven: &'a AtomicU64,
}

impl EncoderStage<'_> {
    /// Runs until the readers are gone and their queue is empty, or the run stops.
    pub(super) fn run(&self, input: &Receiver<Buffer>, output: &StripeQueues<'_>) {
        let mut clock = StageClock::start(self.meter);
        let mut encoder = match FrameEncoder::new(self) {
            Ok(encoder) => encoder,
            Err(error) => return self.control.fail(error),
        };
        let mut packer = self.selection.zip(self.pages).map(|(selection, pages)| Packer::new(self, selection, pages));
        while let Ok(mut raw) = input.recv() {
            clock.mark(Doing::WaitInput);
            if self.control.stopped() {
                return;
            }
            let raw_bytes = raw.content_bytes();
            if let Err(error) = self.examine(&mut raw) {
                return self.control.fail(error);
            }
            clock.mark(Doing::Busy);
            if let Some(packer) = &mut packer {
                let fill = || self.fill(input, output);
                let stored = packer.store(&raw, &mut encoder, &fill, output);
                self.pool.release(raw);
                match stored {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(error) => return self.control.fail(error),
                }
                clock.passed(raw_bytes);
                clock.mark(Doing::Busy);
                continue;
            }
            let is_done = |frame: &FrameSlot| frame.zeros || frame.is_stored;
            let stored = if self.codec.codec() == CodecId::None || raw.frames.iter().all(is_done) {
                keep_raw(&mut raw);
                raw
            } else {
                let Some(mut stored) = self.pool.acquire(Asker::Middle) else { return };
                clock.mark(Doing::WaitOutput);
                let fill = || self.fill(input, output);
                let encoded = encode_frames(&mut encoder, &fill, &mut raw, &mut stored);
                self.pool.release(raw);
                if let Err(error) = encoded {
                    return self.control.fail(error);
                }
                stored
            };
            clock.passed(raw_bytes);
            clock.mark(Doing::Busy);
            output.send(stored);
        }
        if let Some(packer) = &mut packer
            && !self.control.stopped()
            && let Err(error) = packer.finish(&mut encoder, &|| self.fill(input, output), output)
        {
            self.control.fail(error);
        }
        self.not_proven.fetch_add(encoder.not_proven(), Relaxed);
    }

    /// Where the buffers are now.
    fn fill(&self, input: &Receiver<Buffer>, output: &StripeQueues<'_>) -> Fill {
        let raw = input.len();
        let waiting_bytes = raw as u64 * self.feed.transfer_size_bytes();
        Fill {
            raw,
            stored: output.waiting_buffers(),
            any_written: output.any_written(),
            readers_held: self.rate.is_some_and(RateLimit::holds_back),
            left_bytes: self.feed.left_bytes() + waiting_bytes,
        }
    }

    /// Checks and hashes every frame's raw bytes.
    fn examine(&self, raw: &mut Buffer) -> Result<()> {
        if let Some(check) = self.check {
            check_pieces(check, raw)?;
        }
        let Buffer { bytes, frames, pieces, sums, .. } = raw;
        for frame in frames.iter_mut().filter(|frame| !frame.is_stored) {
            let content = &bytes[frame.start..frame.start + frame.length];
            let own = &mut pieces[frame.piece_start..frame.piece_end];
            frame.zeros = is_zero(content);
            digest_frame(self.pages, frame, content, own, sums);
        }
        Ok(())
    }
}

/// Sets the checksums of a frame and its pieces, and adds those of its whole pages to `sums`.
pub(super) fn digest_frame(
    pages: Option<&Appender>,
    frame: &mut FrameSlot,
    content: &[u8],
    own: &mut [Piece],
    sums: &mut Vec<u32>,
) {
    let Some(pages) = pages else {
        frame.raw_crc32c = crc32c(content);
        return digest_pieces(frame, own, |start, end| crc32c(&content[start..end]));
    };
    let page = pages.part_bytes() as usize;
    frame.sums_start = sums.len();
    sums.extend(content.chunks_exact(page).map(crc32c));
    let of_pages = &sums[frame.sums_start..];
    // Bytes that were hashed page by page are not hashed again.
    let digest = |start: usize, end: usize| {
        if !start.is_multiple_of(page) {
            return crc32c(&content[start..end]);
        }
        let whole = pages.sum(&of_pages[start / page..end / page]);
        let tail = &content[end / page * page..end];
        if tail.is_empty() { whole } else { combine(whole, crc32c(tail), tail.len() as u64) }
    };
    let whole = digest(0, content.len());
    frame.raw_crc32c = whole;
    digest_pieces(frame, own, digest);
}

fn digest_pieces(frame: &FrameSlot, own: &mut [Piece], digest: impl Fn(usize, usize) -> u32) {
    match own {
        [piece] if piece.length as usize == frame.length => piece.crc32c = frame.raw_crc32c,
        _ => {
            for piece in own {
                let start = piece.offset_in_frame as usize;
                piece.crc32c = digest(start, start + piece.length as usize);
            }
        }
    }
}

/// One thread's encoder: of one level, or of all levels of the ladder.
pub(super) enum FrameEncoder<'a> {
    Fixed { codec: CodecId, encoder: Box<dyn Encoder>, hints: Option<Hints<'a>> },
    Auto { ladder: Box<LadderEncoder>, level: &'a AutoLevel, points: SetPoints, hints: Option<Hints<'a>> },
}

/// Tells a codec what is in a frame.
pub(super) struct Hints<'a> {
    layouts: &'a dyn ContentLayouts,
    /// Those of the frame at hand.
    parts: Vec<Part<'a>>,
}

impl<'a> Hints<'a> {
    /// What is known of `pieces`.
    fn of_frame(&mut self, pieces: &[Piece]) -> &[Part<'a>] {
        fill_parts(&mut self.parts, self.layouts, pieces);
        &self.parts
    }
}

impl<'a> FrameEncoder<'a> {
    fn new(stage: &EncoderStage<'a>) -> Result<Self> {
        let hints = stage.layouts.map(|layouts| Hints { layouts, parts: Vec::new() });
        if stage.codec.is_auto() {
            let ladder = Box::new(LadderEncoder::new(stage.frame_size_bytes, stage.codec.decodes_back())?);
            return Ok(FrameEncoder::Auto { ladder, level: stage.level, points: stage.points, hints });
        }
        let encoder = new_encoder(stage.codec, stage.frame_size_bytes)?;
        Ok(FrameEncoder::Fixed { codec: stage.codec.codec(), encoder, hints })
    }

    fn not_proven(&self) -> u64 {
        match self {
            FrameEncoder::Fixed { encoder, .. } => encoder.not_proven(),
            FrameEncoder::Auto { ladder, .. } => ladder.not_proven(),
        }
    }

    /// Codec and stored length of `raw`, which holds `pieces`; None if it does not fit into `stored`.
    fn encode(
        &mut self,
        raw: &[u8],
        pieces: &[Piece],
        stored: &mut [u8],
        fill: &dyn Fn() -> Fill,
    ) -> Result<Option<(CodecId, usize)>> {
        match self {
            FrameEncoder::Fixed { codec, encoder, hints } => {
                let parts = hints.as_mut().map_or(&[][..], |hints| hints.of_frame(pieces));
                let length = encoder.encode_parts(raw, parts, stored)?;
                Ok(length.map(|length| (*codec, length)))
            }
            FrameEncoder::Auto { ladder, level, points, hints } => {
                let parts = hints.as_mut().map_or(&[][..], |hints| hints.of_frame(pieces));
                let rung = level.choose(points, fill(), Ladder::of_frame(raw.len(), parts));
                let started = Instant::now();
                let length = ladder.encode_parts(rung, raw, parts, stored)?;
                level.note(rung, raw.len(), length.is_some(), started.elapsed());
                Ok(length.map(|length| (RUNGS[rung].spec.codec(), length)))
            }
        }
    }
}

/// Whether all bytes are zero; stops at the first block that is not.
pub(super) fn is_zero(bytes: &[u8]) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    bytes.chunks(ZEROS.len()).all(|block| *block == ZEROS[..block.len()])
}

/// Frames that stay as they are.
fn keep_raw(raw: &mut Buffer) {
    let Buffer { bytes, frames, .. } = raw;
    for frame in frames.iter_mut().filter(|frame| !frame.zeros && !frame.is_stored) {
        frame.codec = CodecId::None as u8;
        frame.stored_xxh3 = xxh3(&bytes[frame.start..frame.start + frame.length]);
    }
}

/// Encodes each frame of `raw` into `stored`; a frame that does not get smaller is copied as it is.
fn encode_frames(
    encoder: &mut FrameEncoder<'_>,
    fill: &dyn Fn() -> Fill,
    raw: &mut Buffer,
    stored: &mut Buffer,
) -> Result<()> {
    std::mem::swap(&mut raw.pieces, &mut stored.pieces);
    std::mem::swap(&mut raw.sums, &mut stored.sums);
    let Buffer { bytes, frames, pieces, .. } = stored;
    let mut end = 0;
    for frame in &raw.frames {
        let mut slot = FrameSlot { start: end, ..*frame };
        if frame.zeros {
            slot.length = 0;
        } else if frame.is_stored {
            bytes[end..end + frame.length].copy_from_slice(&raw.bytes[frame.start..frame.start + frame.length]);
            end += frame.length;
        } else {
            let content = &raw.bytes[frame.start..frame.start + frame.length];
            let own = &pieces[frame.piece_start..frame.piece_end];
            encode_frame(encoder, fill, (content, own), &mut slot, &mut bytes[end..end + frame.length])?;
            end += slot.length;
        }
        frames.push(slot);
    }
    Ok(())
}

/// Encodes one frame's content and what pieces it is of into `stored`, which has as many bytes; `slot` gets codec, length
/// and hash.
pub(super) fn encode_frame(
    encoder: &mut FrameEncoder<'_>,
    fill: &dyn Fn() -> Fill,
    (content, pieces): (&[u8], &[Piece]),
    slot: &mut FrameSlot,
    stored: &mut [u8],
) -> Result<()> {
    // One byte less than the content: a frame that does not get smaller is better stored raw.
    match encoder.encode(content, pieces, &mut stored[..content.len() - 1], fill)? {
        Some((codec, length)) => {
            slot.length = length;
            slot.codec = codec as u8;
        }
        None => {
            stored.copy_from_slice(content);
            slot.length = content.len();
            slot.codec = CodecId::None as u8;
        }
    }
    slot.stored_xxh3 = xxh3(&stored[..slot.length]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_seen_to_the_last_byte() {
        for length in [0usize, 1, 7, 8, 1023, 1024, 1025, 9000] {
            let mut bytes = vec![0u8; length];
            assert!(is_zero(&bytes));
            if let Some(last) = bytes.last_mut() {
                *last = 1;
                assert!(!is_zero(&bytes), "{length}");
            }
        }
    }
}
