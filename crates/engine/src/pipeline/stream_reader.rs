//! First stage of a backup whose content comes as one stream: fills transfer buffers in the order of arrival.
//!
//! One thread, because there is one stream. The rules of packing are those of files on disk: small files share frames,
//! larger ones are cut at multiples of the frame size.

use crossbeam_channel::Sender;

use super::buffer_pool::{Asker, Buffer, BufferPool, Piece};
use super::control::{Control, Progress, RateLimit};
use super::file_reader::{push_frame, push_piece, push_whole_frame};
use super::stats::{Doing, StageClock, StageMeter};
use super::work::WorkFeed;
use crate::error::Result;
use crate::terms::FileId;

/// Files that come one after the other, each whole.
pub trait StreamSource: Send {
    /// The next file and its length; None at the end, or when `stopped` says that the run ends early.
    ///
    /// # Errors
    /// Of kind `Source`; they stop the run.
    fn next_file(&mut self, stopped: &dyn Fn() -> bool) -> Result<Option<(FileId, u64)>>;

    /// Fills `into` with the next bytes of the current file; false when `stopped` says that the run ends early.
    ///
    /// # Errors
    /// As above; a stream that ends too early is one.
    fn read(&mut self, into: &mut [u8], stopped: &dyn Fn() -> bool) -> Result<bool>;
}

/// The one reader of a stream.
pub(super) struct StreamStage<'a> {
    pub(super) feed: &'a WorkFeed,
    pub(super) pool: &'a BufferPool,
    pub(super) control: &'a Control,
    pub(super) meter: &'a StageMeter,
    pub(super) progress: &'a Progress,
    pub(super) rate: Option<&'a RateLimit>,
    pub(super) frame_size_bytes: usize,
}

/// A file that is being read.
#[derive(Clone, Copy)]
struct Current {
    file: FileId,
    size_bytes: u64,
    offset: u64,
}

/// What a turn of filling came to.
#[derive(PartialEq, Eq)]
enum Fill {
    Full,
    Ended,
}

impl StreamStage<'_> {
    /// Runs until the stream ends or the run stops.
    pub(super) fn run(&self, source: &mut dyn StreamSource, out: &Sender<Buffer>) {
        let mut clock = StageClock::start(self.meter);
        let mut current = None;
        while !self.control.stopped() {
            let Some(mut buffer) = self.pool.acquire(Asker::First) else { return };
            clock.mark(Doing::WaitOutput);
            let filled = match self.fill(source, &mut current, &mut buffer) {
                Ok(filled) => filled,
                Err(error) => return self.control.fail(error),
            };
            let bytes = buffer.content_bytes();
            if let Some(rate) = self.rate {
                rate.take(bytes, self.control);
            }
            clock.passed(bytes);
            self.feed.came(bytes);
            self.progress.done_bytes.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
            clock.mark(Doing::Busy);
            if buffer.frames.is_empty() {
                self.pool.release(buffer);
            } else if out.send(buffer).is_err() {
                // The encoders are gone after an error.
                return;
            }
            if filled == Fill::Ended {
                return;
            }
        }
    }

    /// Reads into `buffer` until the next file, or the next frame of one, has no room in it.
    fn fill(&self, source: &mut dyn StreamSource, current: &mut Option<Current>, buffer: &mut Buffer) -> Result<Fill> {
        let stopped = || self.control.stopped();
        let room = self.feed.transfer_size_bytes() as usize;
        let (mut end, mut packing) = (0usize, false);
        loop {
            let mut file = match current.take() {
                Some(file) => file,
                None => match source.next_file(&stopped)? {
                    Some((file, size_bytes)) => Current { file, size_bytes, offset: 0 },
                    None => return Ok(Fill::Ended),
                },
            };
            let left = file.size_bytes - file.offset;
            if left == 0 {
                continue;
            }
            let length = left.min(self.frame_size_bytes as u64) as usize;
            if end + length > room {
                *current = Some(file);
                return Ok(Fill::Full);
            }
            if !source.read(&mut buffer.bytes[end..end + length], &stopped)? {
                return Ok(Fill::Ended);
            }
            let piece = Piece {
                file: file.file,
                file_offset: file.offset,
                offset_in_frame: 0,
                length: length as u32,
                crc32c: 0,
            };
            if self.feed.packs(file.size_bytes) {
                let used = if packing { buffer.frames.last().map_or(0, |frame| frame.length) } else { 0 };
                if !packing || used + length > self.frame_size_bytes {
                    push_frame(buffer, end);
                    packing = true;
                }
                push_piece(buffer, &piece, length);
            } else {
                packing = false;
                push_whole_frame(buffer, &piece, end, length);
            }
            end += length;
            file.offset += length as u64;
            if file.offset < file.size_bytes {
                *current = Some(file);
            }
        }
    }
}
