//! First stage of a synthetic full: fills transfer buffers with the content of files as a chain of sets holds it.
//!
//! The rules of packing are those of files on disk. A piece that lies alone in a frame of the chain, and whose pages'
//! checksums are known, goes on as it is stored: its checksums are compared, and it is not decoded. All else is decoded
//! and put together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crossbeam_channel::Sender;

use super::buffer_pool::{Asker, Buffer, BufferPool, FrameSlot, Piece};
use super::control::{Control, Progress, RateLimit};
use super::decoder::{Decoders, FrameDamage};
use super::errands::Errand;
use super::file_reader::{push_frame, push_piece, push_whole_frame};
use super::frame_cache::FrameCache;
use super::frame_store::{FrameAt, FrameStore};
use super::stats::{Doing, StageClock, StageMeter};
use super::stripe_reader::StripeInput;
use super::work::{Claim, WorkFeed};
use crate::codec::CodecId;
use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::Appender;
use crate::format::file_table::{FileTable, Place, Run};
use crate::format::frame::FRAME_HEADER_BYTES;
use crate::terms::{FileId, SetIndex, StripeIndex};

/// Knows the checksums of the pages in a chain's frames.
pub trait KnownSums: Sync {
    /// A view for one thread.
    fn reader(&self) -> Box<dyn SumsReader + '_>;
}

/// One thread's view of known checksums.
pub trait SumsReader {
    /// Adds the CRC32C of each of a frame's first `pages` pages to `sums`; false if they are not known, and then `sums`
    /// may have got some of them.
    ///
    /// # Errors
    /// Those of the storage.
    fn read(
        &mut self,
        set: SetIndex,
        stripe: StripeIndex,
        sequence: u64,
        pages: u64,
        sums: &mut Vec<u32>,
    ) -> Result<bool>;
}

/// The content of a chain's newest set.
pub struct ChainSource<'a> {
    table: &'a FileTable,
    frames: FrameStore,
    cache: FrameCache,
    sums: Option<&'a dyn KnownSums>,
    on_damage: &'a (dyn Fn(FrameDamage) -> Error + Sync),
    copied_bytes: AtomicU64,
}

impl<'a> ChainSource<'a> {
    /// The files of `table` from the stripes of the set and its priors. Without `sums` no frame goes on as it is stored.
    /// `cached_frames` is how many decoded frames are kept; `on_damage` makes the error of a frame that is not what was
    /// written.
    pub fn new(
        table: &'a FileTable,
        stripes: Vec<StripeInput>,
        sums: Option<&'a dyn KnownSums>,
        cached_frames: usize,
        on_damage: &'a (dyn Fn(FrameDamage) -> Error + Sync),
    ) -> Self {
        let copied_bytes = AtomicU64::new(0);
        ChainSource {
            table,
            frames: FrameStore::new(stripes),
            cache: FrameCache::new(cached_frames),
            sums,
            on_damage,
            copied_bytes,
        }
    }

    /// Raw bytes of the frames that went on as they were stored.
    pub fn copied_bytes(&self) -> u64 {
        self.copied_bytes.load(Relaxed)
    }

    /// Memory of decoded frames that `readers` threads take, for the ceiling.
    pub fn memory_bytes(cached_frames: usize, frame_size_bytes: u32, readers: u16) -> u64 {
        let stored = u64::from(readers);
        (FrameCache::frames_in_memory_max(cached_frames, readers) + stored) * u64::from(frame_size_bytes)
    }

    /// Tells of damage where it is and what it hits; other errors stay as they are.
    fn located(&self, frame: FrameAt, file: FileId, error: Error) -> Error {
        if error.kind() != ErrorKind::Damage {
            return error;
        }
        let stripe = self.frames.stripe(frame.position);
        (self.on_damage)(FrameDamage {
            set: stripe.set,
            stripe: stripe.stripe,
            sequence: frame.sequence,
            offset: self.frames.offset(frame),
            cause: error.message(),
            files: vec![file],
        })
    }

    /// The frame that holds the piece and nothing else.
    fn own_frame(&self, piece: &Piece) -> Option<FrameAt> {
        let (from, to) = (piece.file_offset, piece.file_offset + u64::from(piece.length));
        let runs = self.table.runs(piece.file);
        let run = runs.get(runs.partition_point(|run| run.end() <= from)).filter(|run| to <= run.end())?;
        let Place::Frames { set, stripe, .. } = run.place() else { return None };
        let position = self.frames.position(set, stripe).ok()?;
        let part = run.part(from, to, self.frames.stripe(position).frame_size_bytes.into());
        let Place::Frames { first_frame, offset_in_frame: 0, .. } = part.place() else { return None };
        let frame = FrameAt { position, sequence: first_frame };
        self.frames.entry(frame).ok().filter(|entry| entry.raw_size_bytes == piece.length).map(|_| frame)
    }
}

/// What all readers of a chain share.
pub(super) struct ChainStage<'a> {
    pub(super) source: &'a ChainSource<'a>,
    pub(super) feed: &'a WorkFeed,
    pub(super) pages: Option<&'a Appender>,
    pub(super) pool: &'a BufferPool,
    pub(super) control: &'a Control,
    pub(super) meter: &'a StageMeter,
    pub(super) progress: &'a Progress,
    pub(super) rate: Option<&'a RateLimit>,
    pub(super) frame_size_bytes: usize,
}

impl ChainStage<'_> {
    /// Runs until the feed is empty or the run stops.
    pub(super) fn run(&self, number: usize, out: &Sender<Buffer>) {
        let mut clock = StageClock::start(self.meter);
        let post = self.control.post();
        let mut reader = ChainReader::new(self);
        let mut planned = Vec::new();
        while !self.control.stopped() {
            let Some(mut buffer) = self.pool.acquire(Asker::First) else { return };
            clock.mark(Doing::WaitOutput);
            planned.clear();
            if self.feed.claim(self.source.table, number, &mut planned) == Claim::Done {
                self.pool.release(buffer);
                return;
            }
            reader.read_bytes = 0;
            if let Err(error) = post.during(Errand::ReadPriorSets, || reader.fill(&planned, &mut buffer)) {
                return self.control.fail(error);
            }
            clock.passed(reader.read_bytes);
            let raw: u64 = planned.iter().map(|piece| u64::from(piece.length)).sum();
            self.progress.done_bytes.fetch_add(raw, Relaxed);
            clock.mark(Doing::Busy);
            if let Some(rate) = self.rate {
                rate.take(reader.read_bytes, self.control);
                clock.mark(Doing::WaitOutput);
            }
            if out.send(buffer).is_err() {
                // The encoders are gone after an error.
                return;
            }
        }
    }
}

/// One thread's own state.
struct ChainReader<'a> {
    stage: &'a ChainStage<'a>,
    sums: Option<(Box<dyn SumsReader + 'a>, &'a Appender)>,
    decoders: Decoders,
    stored: Vec<u8>,
    /// Bytes read from stripes for the buffer at hand.
    read_bytes: u64,
}

impl<'a> ChainReader<'a> {
    fn new(stage: &'a ChainStage<'a>) -> Self {
        let sums = stage.source.sums.zip(stage.pages).map(|(sums, pages)| (sums.reader(), pages));
        ChainReader { stage, sums, decoders: Decoders::default(), stored: Vec::new(), read_bytes: 0 }
    }

    /// Puts the planned pieces into `buffer`, frame after frame.
    fn fill(&mut self, planned: &[Piece], buffer: &mut Buffer) -> Result<()> {
        let (mut end, mut packing) = (0usize, false);
        for piece in planned.iter().filter(|piece| piece.length > 0) {
            let length = piece.length as usize;
            if self.stage.feed.packs(self.stage.source.table.entry(piece.file).size_bytes) {
                self.read(piece.file, piece.file_offset, &mut buffer.bytes[end..end + length])?;
                let used = if packing { buffer.frames.last().map_or(0, |frame| frame.length) } else { 0 };
                if !packing || used + length > self.stage.frame_size_bytes {
                    push_frame(buffer, end);
                    packing = true;
                }
                push_piece(buffer, piece, length);
                end += length;
                continue;
            }
            packing = false;
            if let Some(taken) = self.take_as_stored(piece, buffer, end)? {
                end += taken;
                continue;
            }
            self.read(piece.file, piece.file_offset, &mut buffer.bytes[end..end + length])?;
            end += push_whole_frame(buffer, piece, end, length);
        }
        Ok(())
    }

    /// Takes the frame that holds just this piece as it is; gives how many bytes of the buffer that took, None if there is
    /// no such frame or the checksums of its pages are not known.
    fn take_as_stored(&mut self, piece: &Piece, buffer: &mut Buffer, end: usize) -> Result<Option<usize>> {
        let source = self.stage.source;
        let Some((sums, pages)) = &mut self.sums else { return Ok(None) };
        // What is behind the last whole page has no checksum.
        if !u64::from(piece.length).is_multiple_of(pages.part_bytes()) {
            return Ok(None);
        }
        let Some(frame) = source.own_frame(piece) else { return Ok(None) };
        let sums_start = buffer.sums.len();
        let (set, stripe) = (source.frames.stripe(frame.position).set, source.frames.stripe(frame.position).stripe);
        let count = u64::from(piece.length) / pages.part_bytes();
        let is_known = sums.read(set, stripe, frame.sequence, count, &mut buffer.sums)?;
        let entry = source.frames.entry(frame)?;
        let bytes = &mut buffer.bytes[end..end + entry.size_on_stripe_bytes() as usize];
        let (header, stored) = match is_known {
            true => source.frames.read(frame, bytes).map_err(|error| source.located(frame, piece.file, error))?,
            false => {
                buffer.sums.truncate(sums_start);
                return Ok(None);
            }
        };
        self.read_bytes += entry.size_on_stripe_bytes();
        // Checksums of other pages would hide changes from the next incremental; a codec that is not known is an error where
        // it is decoded.
        let are_right = pages.sum(&buffer.sums[sums_start..]) == header.raw_crc32c;
        if !are_right || CodecId::from_u8(header.codec).is_err() {
            buffer.sums.truncate(sums_start);
            return Ok(None);
        }
        let piece_start = buffer.pieces.len();
        let slot = FrameSlot {
            start: end + FRAME_HEADER_BYTES,
            length: stored.len(),
            raw_length: piece.length as usize,
            piece_start,
            piece_end: piece_start + 1,
            sums_start,
            codec: header.codec,
            is_stored: true,
            raw_crc32c: header.raw_crc32c,
            stored_xxh3: header.stored_xxh3,
            ..FrameSlot::default()
        };
        buffer.pieces.push(Piece { offset_in_frame: 0, crc32c: header.raw_crc32c, ..*piece });
        buffer.frames.push(slot);
        source.copied_bytes.fetch_add(piece.length.into(), Relaxed);
        Ok(Some(FRAME_HEADER_BYTES + slot.length))
    }

    /// Fills `into` with the bytes of `file` from `offset`.
    fn read(&mut self, file: FileId, offset: u64, into: &mut [u8]) -> Result<()> {
        let table = self.stage.source.table;
        let runs = table.runs(file);
        let first = runs.partition_point(|run| run.end() <= offset);
        let (mut done, end) = (0usize, offset + into.len() as u64);
        for run in runs[first..].iter().take_while(|run| run.file_offset < end) {
            let from = offset + done as u64;
            let length = (run.end().min(end) - from) as usize;
            self.read_run(file, run, from, &mut into[done..done + length])?;
            done += length;
        }
        if done == into.len() {
            return Ok(());
        }
        let action = format!("read byte {} of {}", offset + done as u64, table.path_text(file));
        Err(Error::new(ErrorKind::Damage, action, "the stored file is shorter"))
    }

    /// Fills `into` from the run's bytes that start at `from` in the file.
    fn read_run(&mut self, file: FileId, run: &Run, from: u64, into: &mut [u8]) -> Result<()> {
        let source = self.stage.source;
        let Place::Frames { set, stripe, .. } = run.place() else {
            into.fill(0);
            return Ok(());
        };
        let position = source.frames.position(set, stripe)?;
        let frame_size = source.frames.stripe(position).frame_size_bytes.into();
        let part = run.part(from, from + into.len() as u64, frame_size);
        let Place::Frames { first_frame, offset_in_frame, .. } = part.place() else { return Ok(()) };
        let (mut start, mut rest) = (offset_in_frame as usize, into);
        for sequence in first_frame.. {
            let frame = FrameAt { position, sequence };
            let raw_size = source.frames.entry(frame).map(|entry| entry.raw_size_bytes as usize);
            let raw_size = raw_size.map_err(|error| source.located(frame, file, error))?;
            let count = rest.len().min(raw_size.saturating_sub(start));
            if count == 0 {
                let cause = "the file table points behind the frame's end";
                let error = Error::new(ErrorKind::Damage, "find a file's bytes", cause);
                return Err(source.located(frame, file, error));
            }
            let (now, later) = rest.split_at_mut(count);
            let read = self.read_frame(frame, start, raw_size, now);
            read.map_err(|error| source.located(frame, file, error))?;
            if later.is_empty() {
                break;
            }
            (start, rest) = (0, later);
        }
        Ok(())
    }

    /// Fills `into` with what the frame holds from `start` on.
    fn read_frame(&mut self, frame: FrameAt, start: usize, raw_size: usize, into: &mut [u8]) -> Result<()> {
        if into.len() == raw_size {
            return self.decode(frame, into);
        }
        let raw = match self.stage.source.cache.get(frame) {
            Some(raw) => raw,
            None => self.load(frame, raw_size)?,
        };
        into.copy_from_slice(&raw[start..start + into.len()]);
        Ok(())
    }

    fn load(&mut self, frame: FrameAt, raw_size: usize) -> Result<Arc<Vec<u8>>> {
        let mut raw = self.stage.source.cache.take_room();
        raw.resize(raw_size, 0);
        self.decode(frame, &mut raw)?;
        Ok(self.stage.source.cache.keep(frame, raw))
    }

    fn decode(&mut self, frame: FrameAt, raw: &mut [u8]) -> Result<()> {
        self.stage.source.frames.decode(frame, &mut self.decoders, &mut self.stored, raw)?;
        self.read_bytes += self.stored.len() as u64;
        Ok(())
    }
}
