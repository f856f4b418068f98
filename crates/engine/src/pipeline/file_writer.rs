//! Last stage of a restore: puts raw bytes into files below the target directory.
//!
//! Small files are created, written and closed in one go; larger ones were created and preallocated before the run
//! and are opened once per writer. Nothing is durable before the verb syncs the file systems.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use crossbeam_channel::Receiver;
use rustix::io::Errno;

use super::buffer_pool::{Buffer, BufferPool, FrameSlot, Piece};
use super::control::Control;
use super::errands::{Errand, Post};
use super::machine_cores;
use super::stats::{Doing, StageClock, StageMeter};
use crate::error::{Error, ErrorKind, Result};
use crate::format::file_table::{FileEntry, FileTable, Place, Run};
use crate::io;
use crate::terms::FileId;

/// Shortest piece that is written past the page cache.
const DIRECT_WRITE_BYTES_MIN: usize = 64 * 1024;

/// Most threads that create files at the same time.
const CREATORS_MAX: u16 = 4;

/// Where files go.
#[derive(Debug)]
pub struct WriteRoot {
    /// The directory that all paths are relative to.
    pub directory: OwnedFd,
    /// Directories that stand for a path below it, such as a tablespace's; nothing is written through any other link.
    pub mounts: Vec<Mount>,
    /// Owner of everything, if it is not this process's user.
    pub owner: Option<(u32, u32)>,
    /// Raw size of a full frame: the smallest of the set and its priors.
    pub frame_size_bytes: u32,
    /// Whether files of nothing but zeros become holes instead of reserved disk space.
    pub zeros_are_holes: bool,
}

/// A directory elsewhere that holds what is below `path`.
#[derive(Debug)]
pub struct Mount {
    /// Path relative to the root.
    pub path: Vec<u8>,
    /// The directory.
    pub directory: OwnedFd,
}

impl WriteRoot {
    /// The directory that really holds `path`, and the path relative to it.
    pub fn locate<'a>(&'a self, path: &'a [u8]) -> (BorrowedFd<'a>, &'a [u8]) {
        for mount in &self.mounts {
            if let Some(below) = path.strip_prefix(mount.path.as_slice()).and_then(|rest| rest.strip_prefix(b"/")) {
                return (mount.directory.as_fd(), below);
            }
        }
        (self.directory.as_fd(), path)
    }

    /// Opens a file that was created before, to write into it.
    ///
    /// # Errors
    /// The system's.
    pub fn open_for_write(&self, path: &[u8]) -> io::IoResult<OwnedFd> {
        let (directory, path) = self.locate(path);
        io::open_below_for_write(directory, path)
    }

    /// Whether a file comes in one piece of one frame; all others are created before the run.
    pub fn comes_whole(&self, table: &FileTable, file: FileId) -> bool {
        match table.runs(file) {
            [run] => whole_in_frame(run, self.frame_size_bytes),
            _ => false,
        }
    }

    /// Creates a file that does not come whole, with its disk space reserved; does nothing for the others.
    ///
    /// # Errors
    /// `Target`, naming the file.
    pub fn create_large(&self, table: &FileTable, file: FileId) -> Result<()> {
        if self.comes_whole(table, file) {
            return Ok(());
        }
        let entry = table.entry(file);
        let is_hole = self.zeros_are_holes && table.runs(file).iter().all(|run| run.place() == Place::Zeros);
        let created = self.create(table, file).and_then(|descriptor| match entry.size_bytes {
            0 => Ok(()),
            size_bytes if is_hole => rustix::fs::ftruncate(&descriptor, size_bytes),
            size_bytes => io::preallocate(descriptor.as_fd(), size_bytes),
        });
        created.map_err(|cause| write_error(table, file, "create", cause))
    }

    /// The same of many files, by several threads: to reserve their room takes a request each where the disk is elsewhere, and
    /// in memory as much work as decoding them.
    ///
    /// # Errors
    /// `Target`, naming the file.
    pub fn create_all_large(&self, table: &FileTable, files: &[FileId]) -> Result<()> {
        let next = AtomicUsize::new(0);
        let create = || {
            while let Some(file) = files.get(next.fetch_add(1, Relaxed)) {
                self.create_large(table, *file).inspect_err(|_| next.store(files.len(), Relaxed))?;
            }
            Ok(())
        };
        let threads = usize::from(machine_cores().min(CREATORS_MAX)).min(files.len());
        thread::scope(|scope| {
            // Fewer threads do the same.
            let start = |_| thread::Builder::new().name("create".to_owned()).spawn_scoped(scope, create).ok();
            let others: Vec<_> = (1..threads).filter_map(start).collect();
            let gone = || Error::new(ErrorKind::Bug, "create the target files", "a thread has panicked");
            others.into_iter().fold(create(), |all, other| all.and(other.join().unwrap_or_else(|_| Err(gone()))))
        })
    }

    fn create(&self, table: &FileTable, file: FileId) -> io::IoResult<OwnedFd> {
        let entry: &FileEntry = table.entry(file);
        let (directory, path) = self.locate(table.path(file));
        let descriptor = io::create_below(directory, path, entry.mode)?;
        rustix::fs::fchmod(&descriptor, rustix::fs::Mode::from_raw_mode(entry.mode))?;
        if let Some((user, group)) = self.owner {
            rustix::fs::fchown(
                &descriptor,
                Some(rustix::fs::Uid::from_raw(user)),
                Some(rustix::fs::Gid::from_raw(group)),
            )?;
        }
        Ok(descriptor)
    }
}

fn whole_in_frame(run: &Run, frame_size_bytes: u32) -> bool {
    match run.place() {
        Place::Zeros => false,
        Place::Frames { offset_in_frame, .. } => {
            u64::from(offset_in_frame) + run.size_bytes <= u64::from(frame_size_bytes)
        }
    }
}

/// The error of a file that cannot be written.
pub(super) fn write_error(table: &FileTable, file: FileId, verb: &str, cause: Errno) -> Error {
    let error = Error::new(ErrorKind::Target, format!("{verb} target file {}", table.path_text(file)), cause);
    match cause {
        Errno::NOSPC | Errno::DQUOT => error.hint("the disk under the target directory is full: free space and run the restore again; it starts over by itself"),
        Errno::MFILE | Errno::NFILE => error.hint("raise the limit of open files (ulimit -n), or use fewer --file-writers"),
        Errno::ACCESS | Errno::PERM => error.hint("run pagehaul as a user who may write to the target directory"),
        _ => error,
    }
}

/// What all file writers share.
pub(super) struct FileWriterStage<'a> {
    pub(super) root: &'a WriteRoot,
    pub(super) table: &'a FileTable,
    pub(super) pool: &'a BufferPool,
    pub(super) control: &'a Control,
    pub(super) meter: &'a StageMeter,
}

impl FileWriterStage<'_> {
    /// Runs until the decoders are gone and the queue is empty, or the run stops.
    pub(super) fn run(&self, input: &Receiver<Buffer>) {
        let mut clock = StageClock::start(self.meter);
        let post = self.control.post();
        let mut open: Option<OpenFile> = None;
        while let Ok(buffer) = input.recv() {
            clock.mark(Doing::WaitInput);
            if self.control.stopped() {
                return;
            }
            if let Err(error) = self.write(&buffer, &mut open, &post) {
                return self.control.fail(error);
            }
            clock.passed(buffer.content_bytes());
            self.pool.release(buffer);
            clock.mark(Doing::Busy);
        }
    }

    fn write(&self, buffer: &Buffer, open: &mut Option<OpenFile>, post: &Post<'_>) -> Result<()> {
        let mut frames = buffer.frames.as_slice();
        while let Some(frame) = frames.first() {
            let pieces = &buffer.pieces[frame.piece_start..frame.piece_end];
            let mut taken = 1;
            match pieces {
                [piece] if is_whole_frame(piece, frame) && !self.root.comes_whole(self.table, piece.file) => {
                    // Consecutive frames of one file lie one after the other in the buffer: one call writes them all.
                    taken = contiguous(buffer, frames);
                    let last = &frames[taken - 1];
                    let bytes = &buffer.bytes[frame.start..last.start + last.length];
                    post.during(Errand::WriteTargetFile(piece.file), || self.write_part(piece, bytes, open))?;
                }
                _ => {
                    for piece in pieces {
                        let start = frame.start + piece.offset_in_frame as usize;
                        let bytes = &buffer.bytes[start..start + piece.length as usize];
                        post.during(Errand::WriteTargetFile(piece.file), || self.write_piece(piece, bytes, open))?;
                    }
                }
            }
            frames = &frames[taken..];
        }
        Ok(())
    }

    fn write_piece(&self, piece: &Piece, bytes: &[u8], open: &mut Option<OpenFile>) -> Result<()> {
        if !self.root.comes_whole(self.table, piece.file) {
            return self.write_part(piece, bytes, open);
        }
        let written = self.root.create(self.table, piece.file).and_then(|file| {
            io::write_all_at(file.as_fd(), bytes, piece.file_offset)?;
            set_times(&file, self.table.entry(piece.file).mtime_s)
        });
        written.map_err(|cause| write_error(self.table, piece.file, "write", cause))
    }

    fn write_part(&self, piece: &Piece, bytes: &[u8], open: &mut Option<OpenFile>) -> Result<()> {
        let failed = |cause| write_error(self.table, piece.file, "write", cause);
        if open.as_ref().is_none_or(|open| open.file != piece.file) {
            *open = Some(OpenFile::open(self.root, self.table, piece.file).map_err(failed)?);
        }
        match open {
            Some(open) => open.write(bytes, piece.file_offset).map_err(failed),
            None => Ok(()),
        }
    }
}

/// The file that a writer is at. Aligned pieces go past the page cache: copying them there costs more CPU than decoding
/// them, and a restore of a large cluster would push out everything else.
struct OpenFile {
    file: FileId,
    cached: OwnedFd,
    direct: Option<OwnedFd>,
}

impl OpenFile {
    fn open(root: &WriteRoot, table: &FileTable, file: FileId) -> io::IoResult<Self> {
        let (directory, path) = root.locate(table.path(file));
        let cached = io::open_below_for_write(directory, path)?;
        Ok(OpenFile { file, cached, direct: io::open_below_for_direct_write(directory, path) })
    }

    fn write(&mut self, bytes: &[u8], offset: u64) -> io::IoResult<()> {
        // Single pages of an incremental set are gathered by the page cache: past it, each would wait for the disk.
        let direct = self.direct.as_ref().filter(|_| bytes.len() >= DIRECT_WRITE_BYTES_MIN);
        if let Some(direct) = direct.filter(|_| io::is_aligned(bytes, offset)) {
            match io::write_all_at(direct.as_fd(), bytes, offset) {
                // The flag was accepted at open, but this file system cannot write so.
                Err(Errno::INVAL) => self.direct = None,
                other => return other,
            }
        }
        io::write_all_at(self.cached.as_fd(), bytes, offset)?;
        io::start_write_back(self.cached.as_fd(), offset, bytes.len() as u64);
        Ok(())
    }
}

/// Whether the frame holds this piece and nothing else.
fn is_whole_frame(piece: &Piece, frame: &FrameSlot) -> bool {
    piece.offset_in_frame == 0 && piece.length as usize == frame.length
}

/// How many frames at the head of `frames` continue one file, in the file and in the buffer.
fn contiguous(buffer: &Buffer, frames: &[FrameSlot]) -> usize {
    let follows = |pair: &[FrameSlot]| {
        let [first, second] = pair else { return false };
        let one = &buffer.pieces[first.piece_start..first.piece_end];
        let two = &buffer.pieces[second.piece_start..second.piece_end];
        match (one, two) {
            ([a], [b]) => {
                a.file == b.file
                    && a.file_offset + u64::from(a.length) == b.file_offset
                    && is_whole_frame(b, second)
                    && first.start + first.length == second.start
            }
            _ => false,
        }
    };
    1 + frames.windows(2).take_while(|pair| follows(pair)).count()
}

/// Sets a file's modification time; its access time too, for want of a better one.
fn set_times(file: &OwnedFd, mtime_s: i64) -> io::IoResult<()> {
    let time = rustix::fs::Timespec { tv_sec: mtime_s, tv_nsec: 0 };
    rustix::fs::futimens(file, &rustix::fs::Timestamps { last_access: time, last_modification: time })
}
