//! The file table: every file of a set with its mode, time, size, digest, and the runs of frames that hold it.
//!
//! In memory it is compact (one arena for all paths, fixed-size records), because a cluster may have millions of
//! files. At rest it is a stream of compressed blocks (`file_table_stream.rs`).

use super::checksum::{combine, crc32c_of_zeros};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{FILE_COUNT_MAX, PATH_BYTES_MAX, STRIPE_COUNT_MAX};
use crate::terms::{FileId, SetIndex, StripeIndex};

/// What stands for "zeros, stored as nothing" in the place of a stripe's number.
pub(super) const ZEROS: u16 = u16::MAX;
const _: () = assert!(STRIPE_COUNT_MAX < ZEROS);

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A symbolic link; the entry has a target.
    Symlink,
}

/// One file, directory or link.
#[derive(Clone, Copy, Debug)]
pub struct FileEntry {
    pub(super) path_start: usize,
    pub(super) path_len: u16,
    pub(super) target_len: u16,
    /// What it is.
    pub kind: EntryKind,
    /// Permission bits.
    pub mode: u32,
    /// Modification time, seconds since 1970.
    pub mtime_s: i64,
    /// Length of the content.
    pub size_bytes: u64,
    /// CRC32C of the content.
    pub crc32c: u32,
    pub(super) run_count: u32,
    pub(super) run_start: usize,
}

/// Where the bytes of a run are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nowhere: the bytes are zeros.
    Zeros,
    /// In consecutive frames of a stripe; all but the last one are full.
    Frames {
        /// Whose stripe.
        set: SetIndex,
        /// Which stripe of that set.
        stripe: StripeIndex,
        /// Sequence of the first frame.
        first_frame: u64,
        /// Where in the first frame's decoded bytes the run starts.
        offset_in_frame: u32,
    },
}

/// A range of a file's content and the place of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where in the file it starts.
    pub file_offset: u64,
    /// How long it is.
    pub size_bytes: u64,
    pub(super) first_frame: u64,
    pub(super) offset_in_frame: u32,
    pub(super) stripe: u16,
    pub(super) set: u16,
}

const _: () = assert!(size_of::<Run>() == 32);

impl Run {
    /// A run of `size_bytes` at `file_offset`.
    pub fn new(file_offset: u64, size_bytes: u64, place: Place) -> Self {
        match place {
            Place::Zeros => Run { file_offset, size_bytes, first_frame: 0, offset_in_frame: 0, stripe: ZEROS, set: 0 },
            Place::Frames { set, stripe, first_frame, offset_in_frame } => {
                Run { file_offset, size_bytes, first_frame, offset_in_frame, stripe: stripe.0, set: set.0 }
            }
        }
    }

    /// Where the bytes are.
    pub fn place(&self) -> Place {
        if self.stripe == ZEROS {
            Place::Zeros
        } else {
            let (set, stripe) = (SetIndex(self.set), StripeIndex(self.stripe));
            Place::Frames { set, stripe, first_frame: self.first_frame, offset_in_frame: self.offset_in_frame }
        }
    }

    /// The set whose stripes hold the bytes; the set itself for zeros.
    pub fn set(&self) -> SetIndex {
        SetIndex(self.set)
    }

    /// The part of the run from `from` to `to`, offsets in the file within the run; `frame_size_bytes` is that of the
    /// run's set.
    #[must_use]
    pub fn part(&self, from: u64, to: u64, frame_size_bytes: u64) -> Run {
        let mut part = Run { file_offset: from, size_bytes: to - from, ..*self };
        if self.stripe != ZEROS {
            let position = u64::from(self.offset_in_frame) + from - self.file_offset;
            part.first_frame = self.first_frame + position / frame_size_bytes;
            part.offset_in_frame = (position % frame_size_bytes) as u32;
        }
        part
    }

    /// The same run as a table says it that counts sets as `set_of` does.
    #[must_use]
    pub fn renumbered(&self, set_of: impl Fn(SetIndex) -> SetIndex) -> Run {
        match self.stripe {
            ZEROS => *self,
            _ => Run { set: set_of(self.set()).0, ..*self },
        }
    }

    /// Where in the file it ends.
    pub fn end(&self) -> u64 {
        self.file_offset + self.size_bytes
    }

    /// Whether `next` continues this run without a break, in the file and on the stripe.
    pub fn continues_with(&self, next: &Run, frame_size_bytes: u64) -> bool {
        if self.end() != next.file_offset || self.stripe != next.stripe || self.set != next.set {
            return false;
        }
        let in_frames = u64::from(self.offset_in_frame) + self.size_bytes;
        self.stripe == ZEROS
            || (next.offset_in_frame == 0
                && in_frames.is_multiple_of(frame_size_bytes)
                && self.first_frame + in_frames / frame_size_bytes == next.first_frame)
    }
}

/// A run that the data path has stored, with the digest of its bytes.
#[derive(Clone, Copy, Debug)]
pub struct StoredRun {
    /// Whose bytes.
    pub file: FileId,
    /// Which bytes, and where they are.
    pub run: Run,
    /// CRC32C of the bytes.
    pub crc32c: u32,
}

/// All files of a set.
#[derive(Debug, Default)]
pub struct FileTable {
    pub(super) paths: Vec<u8>,
    pub(super) entries: Vec<FileEntry>,
    pub(super) runs: Vec<Run>,
}

impl FileTable {
    /// Adds an entry; its content is not known yet.
    ///
    /// # Errors
    /// `Source` if the path is too long or there are too many files.
    pub fn push(
        &mut self,
        path: &[u8],
        target: &[u8],
        kind: EntryKind,
        mode: u32,
        mtime_s: i64,
        size_bytes: u64,
    ) -> Result<FileId> {
        if path.len() > PATH_BYTES_MAX || target.len() > PATH_BYTES_MAX || self.entries.len() as u64 >= FILE_COUNT_MAX {
            let object = String::from_utf8_lossy(path).into_owned();
            return Err(Error::new(
                ErrorKind::Source,
                format!("list file {object:?}"),
                "its path is too long, or there are too many files",
            ));
        }
        let id = FileId(self.entries.len() as u32);
        self.entries.push(FileEntry {
            path_start: self.paths.len(),
            path_len: path.len() as u16,
            target_len: target.len() as u16,
            kind,
            mode,
            mtime_s,
            size_bytes,
            crc32c: 0,
            run_count: 0,
            run_start: self.runs.len(),
        });
        self.paths.extend_from_slice(path);
        self.paths.extend_from_slice(target);
        Ok(id)
    }

    /// The entries in the order of their ids.
    pub fn entries(&self) -> &[FileEntry] {
        &self.entries
    }

    /// One entry.
    pub fn entry(&self, file: FileId) -> &FileEntry {
        &self.entries[file.0 as usize]
    }

    /// Ids of all entries.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = FileId> + use<> {
        (0..self.entries.len() as u32).map(FileId)
    }

    /// The entry's path, relative to the data directory.
    pub fn path(&self, file: FileId) -> &[u8] {
        let entry = self.entry(file);
        &self.paths[entry.path_start..entry.path_start + usize::from(entry.path_len)]
    }

    /// The path for people: invalid UTF-8 and control characters are escaped.
    pub fn path_text(&self, file: FileId) -> String {
        self.path(file).escape_ascii().to_string()
    }

    /// Where a link points.
    pub fn target(&self, file: FileId) -> &[u8] {
        let entry = self.entry(file);
        let start = entry.path_start + usize::from(entry.path_len);
        &self.paths[start..start + usize::from(entry.target_len)]
    }

    /// The file's runs, in order, without gaps.
    pub fn runs(&self, file: FileId) -> &[Run] {
        let entry = self.entry(file);
        &self.runs[entry.run_start..entry.run_start + entry.run_count as usize]
    }

    /// How many runs all files have.
    pub fn run_count(&self) -> u64 {
        self.runs.len() as u64
    }

    /// Bytes of all files.
    pub fn content_bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.size_bytes).sum()
    }

    /// Bytes of all paths and link targets.
    pub fn path_bytes(&self) -> u64 {
        self.paths.len() as u64
    }

    /// Bytes of memory that the table takes.
    pub fn memory_bytes(&self) -> u64 {
        (self.paths.capacity()
            + self.entries.capacity() * size_of::<FileEntry>()
            + self.runs.capacity() * size_of::<Run>()) as u64
    }

    /// Replaces every file's runs, size and digest by what the data path stored, and leaves out the files in `gone`.
    ///
    /// `fill` says what lies between the stored runs. `frame_size_bytes` has one size for each set of the chain.
    ///
    /// # Errors
    /// Those of `fill`.
    pub fn with_content(
        &self,
        mut stored: Vec<StoredRun>,
        gone: &[FileId],
        frame_size_bytes: &[u32],
        fill: &mut dyn Fill,
    ) -> Result<FileTable> {
        stored.sort_unstable_by_key(|stored| (stored.file, stored.run.file_offset));
        let mut table = FileTable::default();
        table.paths.reserve_exact(self.paths.len());
        table.entries.reserve_exact(self.entries.len());
        let mut rest = stored.as_slice();
        for file in self.ids() {
            let count = rest.iter().take_while(|stored| stored.file == file).count();
            let (own, others) = rest.split_at(count);
            rest = others;
            if gone.binary_search(&file).is_ok() {
                continue;
            }
            let entry = self.entry(file);
            let id = table.push(self.path(file), self.target(file), entry.kind, entry.mode, entry.mtime_s, 0)?;
            let mut content = ContentOf { table: &mut table, file: id, frame_size_bytes, size: 0, digest: 0 };
            let mut between = Vec::new();
            for stored in own {
                content.fill_up_to(stored.run.file_offset, file, fill, &mut between)?;
                content.add(stored.run, stored.crc32c);
            }
            content.fill_up_to(fill.size_bytes(file), file, fill, &mut between)?;
            content.finish();
        }
        Ok(table)
    }

    /// The same table with other numbers for the sets that hold the bytes.
    pub fn renumber_sets(&mut self, set_of: impl Fn(SetIndex) -> SetIndex) {
        for run in &mut self.runs {
            *run = run.renumbered(&set_of);
        }
    }
}

/// What lies between the runs that the data path stored.
pub trait Fill {
    /// Bytes of the file, if there are more of them than its stored runs say; 0 otherwise.
    fn size_bytes(&self, file: FileId) -> u64;

    /// Adds runs for all bytes of the file `from..to`, in order, to `runs`; gives the CRC32C of these bytes.
    ///
    /// # Errors
    /// If it cannot be known what lies there.
    fn fill(&mut self, file: FileId, from: u64, to: u64, runs: &mut Vec<Run>) -> Result<u32>;
}

/// A gap is zeros: the file was cut and grew again while it was read, and WAL replay rebuilds it.
#[derive(Clone, Copy, Debug)]
pub struct ZeroFill;

impl Fill for ZeroFill {
    fn size_bytes(&self, _file: FileId) -> u64 {
        0
    }

    fn fill(&mut self, _file: FileId, from: u64, to: u64, runs: &mut Vec<Run>) -> Result<u32> {
        runs.push(Run::new(from, to - from, Place::Zeros));
        Ok(crc32c_of_zeros(to - from))
    }
}

/// One file of a table whose runs are being added.
struct ContentOf<'a> {
    table: &'a mut FileTable,
    file: FileId,
    frame_size_bytes: &'a [u32],
    size: u64,
    digest: u32,
}

impl ContentOf<'_> {
    fn fill_up_to(&mut self, end: u64, planned: FileId, fill: &mut dyn Fill, runs: &mut Vec<Run>) -> Result<()> {
        if end <= self.size {
            return Ok(());
        }
        runs.clear();
        let (from, digest) = (self.size, fill.fill(planned, self.size, end, runs)?);
        for run in runs.iter() {
            self.add_run(*run);
        }
        self.digest = combine(self.digest, digest, end - from);
        Ok(())
    }

    fn add(&mut self, run: Run, crc32c: u32) {
        self.digest = combine(self.digest, crc32c, run.size_bytes);
        self.add_run(run);
    }

    fn add_run(&mut self, run: Run) {
        debug_assert_eq!(run.file_offset, self.size);
        let run_start = self.table.entry(self.file).run_start;
        let frame_size = self.frame_size_bytes.get(usize::from(run.set)).copied().unwrap_or(u32::MAX);
        match self.table.runs[run_start..].last_mut() {
            Some(last) if last.continues_with(&run, u64::from(frame_size)) => last.size_bytes += run.size_bytes,
            _ => self.table.runs.push(run),
        }
        self.size = run.end();
    }

    fn finish(self) {
        let run_count = self.table.runs.len();
        let entry = &mut self.table.entries[self.file.0 as usize];
        entry.size_bytes = self.size;
        entry.crc32c = self.digest;
        entry.run_count = (run_count - entry.run_start) as u32;
    }
}
