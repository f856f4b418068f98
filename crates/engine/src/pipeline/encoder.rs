//! Middle stage of a backup: checks pages, hashes, encodes. One frame at a time, while its bytes are in the CPU's cache.
//!
//! Takes raw buffers, gives buffers of stored frames to the stripe that is least behind. Without a codec the raw
//! buffer itself goes on: nothing is copied.

use std::time::Instant;

use crossbeam_channel::Receiver;

use super::auto_level::{AutoLevel, Fill, SetPoints};
use super::buffer_pool::{Asker, Buffer, BufferPool, FrameSlot};
use super::control::{Control, RateLimit};
use super::stats::{Doing, StageClock, StageMeter};
use super::stripe_writer::StripeQueues;
use super::work::WorkFeed;
use crate::codec::ladder::{LADDER, LadderEncoder};
use crate::codec::{CodecId, CodecSpec, Encoder, new_encoder};
use crate::error::Result;
use crate::format::checksum::{crc32c, xxh3};
use crate::terms::FileId;

/// Looks at content on its way, knowing what the database's pages should be.
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

/// What all encoders share.
pub(super) struct EncoderStage<'a> {
    pub(super) codec: CodecSpec,
    pub(super) frame_size_bytes: usize,
    /// Chooses the level of each frame if the codec is `auto`.
    pub(super) level: &'a AutoLevel,
    pub(super) points: SetPoints,
    pub(super) feed: &'a WorkFeed,
    pub(super) rate: Option<&'a RateLimit>,
    pub(super) check: &'a dyn ContentCheck,
    pub(super) pool: &'a BufferPool,
    pub(super) control: &'a Control,
    pub(super) meter: &'a StageMeter,
}

impl EncoderStage<'_> {
    /// Runs until the readers are gone and their queue is empty, or the run stops.
    pub(super) fn run(&self, input: &Receiver<Buffer>, output: &StripeQueues<'_>) {
        let mut clock = StageClock::start(self.meter);
        let mut encoder = match FrameEncoder::new(self) {
            Ok(encoder) => encoder,
            Err(error) => return self.control.fail(error),
        };
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
            let stored = if self.codec.codec() == CodecId::None || raw.frames.iter().all(|frame| frame.zeros) {
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
        let Buffer { bytes, frames, pieces, .. } = raw;
        for frame in frames {
            let content = &mut bytes[frame.start..frame.start + frame.length];
            let own = &mut pieces[frame.piece_start..frame.piece_end];
            for piece in own.iter() {
                let start = piece.offset_in_frame as usize;
                self.check.check(piece.file, piece.file_offset, &mut content[start..start + piece.length as usize])?;
            }
            frame.zeros = is_zero(content);
            frame.raw_crc32c = crc32c(content);
            match own {
                [piece] => piece.crc32c = frame.raw_crc32c,
                _ => {
                    for piece in own {
                        let start = piece.offset_in_frame as usize;
                        piece.crc32c = crc32c(&content[start..start + piece.length as usize]);
                    }
                }
            }
        }
        Ok(())
    }
}

/// One thread's encoder: of one level, or of all levels of the ladder.
enum FrameEncoder<'a> {
    Fixed { codec: CodecId, encoder: Box<dyn Encoder> },
    Auto { ladder: Box<LadderEncoder>, level: &'a AutoLevel, points: SetPoints },
}

impl<'a> FrameEncoder<'a> {
    fn new(stage: &EncoderStage<'a>) -> Result<Self> {
        if stage.codec.is_auto() {
            let ladder = Box::new(LadderEncoder::new(stage.frame_size_bytes)?);
            return Ok(FrameEncoder::Auto { ladder, level: stage.level, points: stage.points });
        }
        let encoder = new_encoder(stage.codec, stage.frame_size_bytes)?;
        Ok(FrameEncoder::Fixed { codec: stage.codec.codec(), encoder })
    }

    /// Codec and stored length of `raw`; None if it does not fit into `stored`.
    fn encode(&mut self, raw: &[u8], stored: &mut [u8], fill: &dyn Fn() -> Fill) -> Result<Option<(CodecId, usize)>> {
        match self {
            FrameEncoder::Fixed { codec, encoder } => Ok(encoder.encode(raw, stored)?.map(|length| (*codec, length))),
            FrameEncoder::Auto { ladder, level, points } => {
                let rung = level.choose(points, fill(), raw.len());
                let started = Instant::now();
                let length = ladder.encode(rung, raw, stored)?;
                level.note(rung, raw.len(), length.is_some(), started.elapsed());
                Ok(length.map(|length| (LADDER[rung].spec.codec(), length)))
            }
        }
    }
}

/// Whether all bytes are zero; stops at the first block that is not.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(1024).all(|block| block.iter().fold(0, |seen, byte| seen | byte) == 0)
}

/// Frames that stay as they are.
fn keep_raw(raw: &mut Buffer) {
    let Buffer { bytes, frames, .. } = raw;
    for frame in frames.iter_mut().filter(|frame| !frame.zeros) {
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
    let mut end = 0;
    for frame in &raw.frames {
        let mut slot = FrameSlot { start: end, ..*frame };
        if frame.zeros {
            slot.length = 0;
        } else {
            let content = &raw.bytes[frame.start..frame.start + frame.length];
            // One byte less than the content: a frame that does not get smaller is better stored raw.
            let room = &mut stored.bytes[end..end + frame.length - 1];
            match encoder.encode(content, room, fill)? {
                Some((codec, length)) => {
                    slot.length = length;
                    slot.codec = codec as u8;
                }
                None => {
                    stored.bytes[end..end + frame.length].copy_from_slice(content);
                    slot.codec = CodecId::None as u8;
                }
            }
            slot.stored_xxh3 = xxh3(&stored.bytes[end..end + slot.length]);
            end += slot.length;
        }
        stored.frames.push(slot);
    }
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
