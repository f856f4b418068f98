//! First stage of a backup: fills transfer buffers with pieces of files, and has their pages checked, while they can be read
//! again.
//!
//! Takes pieces from the feed, gives buffers to the encoders, waits for free buffers. A file that is not there any
//! more was dropped by the server and is noted as gone; any other failure stops the run and names the file.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::AcqRel;

use crossbeam_channel::Sender;
use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::buffer_pool::{Asker, Buffer, BufferPool, FrameSlot, Piece};
use super::content_check::{ContentCheck, check_pieces};
use super::control::{Control, Progress, RateLimit};
use super::encode_run::AtEnd;
use super::errands::{Errand, Post};
use super::stats::{Doing, StageClock, StageMeter};
use super::work::{Claim, WorkFeed};
use crate::error::{Error, ErrorKind, Result};
use crate::format::file_table::FileTable;
use crate::io;
use crate::terms::FileId;

/// Where content comes from.
#[derive(Debug)]
pub struct ReadRoot {
    /// The directory that all paths are relative to; None if nothing is read from a disk here.
    pub directory: Option<OwnedFd>,
    /// Content that is not read from disk, by file.
    pub memory: BTreeMap<FileId, Vec<u8>>,
    /// Files that may not be gone: PG_VERSION and the like.
    pub required: fn(&[u8]) -> bool,
}

impl ReadRoot {
    /// Opens a file; None if the server has dropped it.
    ///
    /// # Errors
    /// `Source`, naming the file.
    pub fn open(&self, table: &FileTable, file: FileId) -> Result<Option<OwnedFd>> {
        let opened = match &self.directory {
            Some(directory) => io::open_below(directory.as_fd(), table.path(file)),
            None => Err(Errno::NOENT),
        };
        match opened {
            Ok(descriptor) => Ok(Some(descriptor)),
            Err(Errno::NOENT) if !(self.required)(table.path(file)) => Ok(None),
            Err(cause) => Err(read_error(table, file, 0, cause)),
        }
    }

    /// Whether there is nothing at `path` below the directory, not even a link. What cannot be looked at is there.
    pub fn lacks(&self, path: &[u8]) -> bool {
        let look = |directory| rustix::fs::statat(directory, OsStr::from_bytes(path), AtFlags::SYMLINK_NOFOLLOW);
        self.directory.as_ref().is_some_and(|directory| look(directory).err() == Some(Errno::NOENT))
    }
}

fn read_error(table: &FileTable, file: FileId, offset: u64, cause: Errno) -> Error {
    let action = format!("read source file {} at byte {offset}", table.path_text(file));
    let error = Error::new(ErrorKind::Source, action, cause);
    match cause {
        Errno::ACCESS | Errno::PERM => {
            error.hint("run pagehaul as the operating system user that owns the data directory, usually postgres")
        }
        Errno::IO => error
            .hint("the disk under the data directory fails: look at the kernel log; earlier backups are not touched"),
        Errno::MFILE | Errno::NFILE => {
            error.hint("raise the limit of open files (ulimit -n), or use fewer --readers and --encoders")
        }
        _ => error,
    }
}

/// What all readers share.
pub(super) struct ReaderStage<'a> {
    pub(super) root: &'a ReadRoot,
    pub(super) table: &'a FileTable,
    pub(super) check: &'a dyn ContentCheck,
    pub(super) at_end: Option<AtEnd<'a>>,
    /// Readers that have not ended.
    pub(super) left: AtomicUsize,
    pub(super) feed: &'a WorkFeed,
    pub(super) pool: &'a BufferPool,
    pub(super) control: &'a Control,
    pub(super) meter: &'a StageMeter,
    pub(super) progress: &'a Progress,
    pub(super) rate: Option<&'a RateLimit>,
    pub(super) gone: &'a Mutex<Vec<FileId>>,
    pub(super) frame_size_bytes: usize,
}

/// One reader thread's own state.
struct Reader<'a> {
    stage: &'a ReaderStage<'a>,
    planned: Vec<Piece>,
    open: Option<(FileId, Option<OwnedFd>)>,
    /// Whether reads can leave the page cache alone.
    cache_neutral: bool,
}

impl ReaderStage<'_> {
    /// Runs until the feed is empty or the run stops. The last reader does what is to be done when everything has been read.
    pub(super) fn run(&self, number: usize, out: Sender<Buffer>) {
        self.read(number, &out);
        // The encoders need not wait for what follows.
        drop(out);
        let is_last = self.left.fetch_sub(1, AcqRel) == 1;
        if let Some(at_end) = self.at_end.filter(|_| is_last && !self.control.stopped())
            && let Err(error) = (at_end.then)()
        {
            self.control.fail(error);
        }
    }

    fn read(&self, number: usize, out: &Sender<Buffer>) {
        let mut clock = StageClock::start(self.meter);
        let post = self.control.post();
        let mut reader = Reader { stage: self, planned: Vec::new(), open: None, cache_neutral: true };
        // With so much left, all of it has a place in the buffers for the end.
        let ahead = self.at_end.map_or(0, |at_end| u64::from(at_end.ahead_buffers));
        let ahead_bytes = ahead * self.feed.transfer_size_bytes();
        let mut reads_ahead = false;
        while !self.control.stopped() {
            if !reads_ahead && self.feed.left_bytes() <= ahead_bytes {
                reads_ahead = true;
                self.pool.read_ahead();
            }
            let Some(mut buffer) = self.pool.acquire(Asker::First) else { return };
            clock.mark(Doing::WaitOutput);
            reader.planned.clear();
            if self.feed.claim(self.table, number, &mut reader.planned) == Claim::Done {
                self.pool.release(buffer);
                return;
            }
            if let Some(rate) = self.rate {
                rate.take(reader.planned.iter().map(|piece| u64::from(piece.length)).sum(), self.control);
                clock.mark(Doing::WaitOutput);
            }
            let filled = reader.fill(&mut buffer, &post).and_then(|()| check_pieces(self.check, &mut buffer));
            if let Err(error) = filled {
                self.control.fail(error);
                return;
            }
            let bytes = buffer.content_bytes();
            clock.passed(bytes);
            self.progress.done_bytes.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
            clock.mark(Doing::Busy);
            // The queue has room for every buffer there is; it only fails when the encoders are gone after an error.
            if out.send(buffer).is_err() {
                return;
            }
        }
    }
}

impl Reader<'_> {
    /// Reads the planned pieces into `buffer`, frame after frame.
    fn fill(&mut self, buffer: &mut Buffer, post: &Post<'_>) -> Result<()> {
        let planned = std::mem::take(&mut self.planned);
        let mut end = 0usize;
        let mut packing = false;
        for piece in &planned {
            end = post.during(Errand::ReadSourceFile(piece.file), || {
                if self.stage.feed.has_spans(piece.file) {
                    self.read_span(buffer, piece, end, &mut packing)
                } else if self.stage.feed.packs(u64::from(piece.length)) && piece.file_offset == 0 {
                    self.read_small(buffer, piece, end, &mut packing)
                } else {
                    packing = false;
                    self.read_large(buffer, piece, end)
                }
            })?;
        }
        self.planned = planned;
        Ok(())
    }

    /// A whole small file: into the open frame if it fits, otherwise into the next one.
    fn read_small(&mut self, buffer: &mut Buffer, piece: &Piece, end: usize, packing: &mut bool) -> Result<usize> {
        let stage = self.stage;
        let frame_size = stage.frame_size_bytes;
        let used = if *packing { buffer.frames.last().map_or(0, |frame| frame.length) } else { 0 };
        let memory = stage.root.memory.get(&piece.file).map(Vec::as_slice);
        let descriptor = match memory {
            Some(_) => None,
            None => match stage.root.open(stage.table, piece.file)? {
                Some(descriptor) => Some(descriptor),
                None => {
                    self.note_gone(piece.file);
                    return Ok(end);
                }
            },
        };
        let size = match (&descriptor, memory) {
            (Some(descriptor), _) => {
                io::size_bytes(descriptor.as_fd()).map_err(|cause| read_error(stage.table, piece.file, 0, cause))?
            }
            (None, Some(bytes)) => bytes.len() as u64,
            (None, None) => 0,
        };
        // The buffer was planned for the old size. A relation that grew is rebuilt by WAL replay, but a configuration
        // file is not: it is read whole, later, with a buffer of its own.
        if size > u64::from(piece.length) {
            stage.feed.give_back(piece.file, size);
            return Ok(end);
        }
        let into = &mut buffer.bytes[end..end + size as usize];
        let length = match (&descriptor, memory) {
            (Some(descriptor), _) => io::read_full_at(descriptor.as_fd(), into, 0)
                .map_err(|cause| read_error(stage.table, piece.file, 0, cause))?,
            (None, Some(bytes)) => {
                into.copy_from_slice(bytes);
                bytes.len()
            }
            (None, None) => 0,
        };
        if length == 0 {
            return Ok(end);
        }
        if !*packing || used + length > frame_size {
            push_frame(buffer, end);
            *packing = true;
        }
        push_piece(buffer, piece, length);
        Ok(end + length)
    }

    /// One frame's worth of a large file.
    fn read_large(&mut self, buffer: &mut Buffer, piece: &Piece, end: usize) -> Result<usize> {
        let stage = self.stage;
        let into_length = piece.length as usize;
        if let Some(bytes) = stage.root.memory.get(&piece.file) {
            let from = (piece.file_offset as usize).min(bytes.len());
            let to = (from + into_length).min(bytes.len());
            buffer.bytes[end..end + to - from].copy_from_slice(&bytes[from..to]);
            return Ok(end + push_whole_frame(buffer, piece, end, to - from));
        }
        if self.open.as_ref().is_none_or(|(file, _)| *file != piece.file) {
            self.open = Some((piece.file, stage.root.open(stage.table, piece.file)?));
        }
        let Some((_, Some(descriptor))) = &self.open else {
            self.note_gone(piece.file);
            return Ok(end);
        };
        let into = &mut buffer.bytes[end..end + into_length];
        let file = descriptor.as_fd();
        let length = io::read_full_at_cache_neutral(file, into, piece.file_offset, &mut self.cache_neutral)
            .map_err(|cause| read_error(stage.table, piece.file, piece.file_offset, cause))?;
        Ok(end + push_whole_frame(buffer, piece, end, length))
    }

    /// A part of a file of which not all is read: spans share frames as small files do.
    fn read_span(&mut self, buffer: &mut Buffer, piece: &Piece, end: usize, packing: &mut bool) -> Result<usize> {
        let stage = self.stage;
        if self.open.as_ref().is_none_or(|(file, _)| *file != piece.file) {
            self.open = Some((piece.file, stage.root.open(stage.table, piece.file)?));
        }
        let Some((_, Some(descriptor))) = &self.open else {
            self.note_gone(piece.file);
            return Ok(end);
        };
        let into = &mut buffer.bytes[end..end + piece.length as usize];
        let file = descriptor.as_fd();
        let length = io::read_full_at_cache_neutral(file, into, piece.file_offset, &mut self.cache_neutral)
            .map_err(|cause| read_error(stage.table, piece.file, piece.file_offset, cause))?;
        if length == 0 {
            return Ok(end);
        }
        let used = if *packing { buffer.frames.last().map_or(0, |frame| frame.length) } else { 0 };
        if !*packing || used + length > stage.frame_size_bytes {
            push_frame(buffer, end);
        }
        push_piece(buffer, piece, length);
        // Behind a part that was cut short meanwhile, pages would not lie aligned.
        *packing = length == piece.length as usize;
        Ok(end + length)
    }

    fn note_gone(&self, file: FileId) {
        self.stage.gone.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(file);
    }
}

pub(super) fn push_frame(buffer: &mut Buffer, start: usize) {
    let piece_start = buffer.pieces.len();
    buffer.frames.push(FrameSlot { start, piece_start, piece_end: piece_start, ..FrameSlot::default() });
}

/// Adds the bytes just read to the last frame.
pub(super) fn push_piece(buffer: &mut Buffer, piece: &Piece, length: usize) {
    if let Some(frame) = buffer.frames.last_mut() {
        buffer.pieces.push(Piece { offset_in_frame: frame.length as u32, length: length as u32, ..*piece });
        frame.length += length;
        frame.raw_length = frame.length;
        frame.piece_end += 1;
    }
}

pub(super) fn push_whole_frame(buffer: &mut Buffer, piece: &Piece, start: usize, length: usize) -> usize {
    if length > 0 {
        push_frame(buffer, start);
        push_piece(buffer, piece, length);
    }
    length
}
