//! First stage of a backup whose content comes as one stream: fills transfer buffers in the order of arrival.
//!
//! One thread, because there is one stream. The rules of packing are those of files on disk: small files share frames,
//! larger ones are cut at multiples of the frame size. What is made of whole pages starts at a page of its frame, so that
//! a later backup can compare these.

use crossbeam_channel::Sender;

use super::buffer_pool::{Asker, Buffer, BufferPool, Piece};
use super::control::{Control, Progress, RateLimit};
use super::errands::Errand;
use super::file_reader::{push_frame, push_piece, push_whole_frame};
use super::stats::{Doing, StageClock, StageMeter};
use super::work::{PAGES_BYTES, WorkFeed};
use crate::error::Result;
use crate::terms::FileId;

/// A part of a file, or all of it, that comes next in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPart {
    /// Whose bytes.
    pub file: FileId,
    /// Where in the file they begin.
    pub file_offset: u64,
    /// How many there are.
    pub size_bytes: u64,
}

/// Files that come one after the other, each whole or in parts.
pub trait StreamSource: Send {
    /// What comes next; None at the end, or when `stopped` says that the run ends early.
    ///
    /// # Errors
    /// Of kind `Source`; they stop the run.
    fn next_part(&mut self, stopped: &dyn Fn() -> bool) -> Result<Option<StreamPart>>;

    /// Fills `into` with the next bytes of the current part; false when `stopped` says that the run ends early.
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

/// A part that is being read, and how much of it has been.
#[derive(Clone, Copy)]
struct Current {
    part: StreamPart,
    done: u64,
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
        let post = self.control.post();
        let mut current = None;
        while !self.control.stopped() {
            let Some(mut buffer) = self.pool.acquire(Asker::First) else { return };
            clock.mark(Doing::WaitOutput);
            let filled = match post.during(Errand::Receive, || self.fill(source, &mut current, &mut buffer)) {
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

    /// Reads into `buffer` until the next part, or the next frame of one, has no room in it.
    fn fill(&self, source: &mut dyn StreamSource, current: &mut Option<Current>, buffer: &mut Buffer) -> Result<Fill> {
        let stopped = || self.control.stopped();
        let room = self.feed.transfer_size_bytes() as usize;
        let (mut end, mut packing) = (0usize, false);
        loop {
            let mut reading = match current.take() {
                Some(reading) => reading,
                None => match source.next_part(&stopped)? {
                    Some(part) => Current { part, done: 0 },
                    None => return Ok(Fill::Ended),
                },
            };
            let part = reading.part;
            let left = part.size_bytes - reading.done;
            if left == 0 {
                continue;
            }
            let length = left.min(self.frame_size_bytes as u64) as usize;
            let packs = self.feed.packs(part.size_bytes);
            let shared = buffer.frames.last_mut().filter(|_| packs && packing);
            let gap = shared.as_ref().map_or(0, |frame| gap_before(frame.length, length));
            let shared = shared.filter(|frame| frame.length + gap + length <= self.frame_size_bytes);
            let gap = if shared.is_some() { gap } else { 0 };
            if end + gap + length > room {
                *current = Some(reading);
                return Ok(Fill::Full);
            }
            buffer.bytes[end..end + gap].fill(0);
            end += gap;
            if !source.read(&mut buffer.bytes[end..end + length], &stopped)? {
                return Ok(Fill::Ended);
            }
            match shared {
                Some(frame) => frame.length += gap,
                None if packs => push_frame(buffer, end),
                None => {}
            }
            let file_offset = part.file_offset + reading.done;
            let piece = Piece { file: part.file, file_offset, offset_in_frame: 0, length: length as u32, crc32c: 0 };
            match packs {
                true => push_piece(buffer, &piece, length),
                false => drop(push_whole_frame(buffer, &piece, end, length)),
            }
            packing = packs;
            end += length;
            reading.done += length as u64;
            if reading.done < part.size_bytes {
                *current = Some(reading);
            }
        }
    }
}

/// Bytes to leave out in a shared frame so that pages start where pages start.
fn gap_before(used: usize, length: usize) -> usize {
    let page = PAGES_BYTES as usize;
    if length.is_multiple_of(page) { used.next_multiple_of(page) - used } else { 0 }
}
