//! A base backup that a server sends, as a stream of files for the data path: tar archives unpacked on the way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::compare::Comparison;
use super::sent_files::SentAs;
use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::{combine, crc32c};
use crate::format::file_table::{EntryKind, FileTable};
use crate::limits::MIB;
use crate::pipeline::{StreamPart, StreamSource};
use crate::source::postgres::base_backup::{BackupMessage, BaseBackup};
use crate::source::postgres::control_file::CONTROL_FILE_PATH;
use crate::source::postgres::data_directory::is_signal_file;
use crate::source::postgres::incremental_file::{FIXED_BYTES, FixedHead, original_path};
use crate::source::postgres::session::strip_backup_label;
use crate::source::postgres::tar::{BLOCK_BYTES, TarEntry, TarKind, padding, parse_header};
use crate::terms::{FileId, Lsn, TimelineId};

/// How often a reader that waits for the server looks whether the run was stopped.
const WAIT: Duration = Duration::from_millis(200);
/// Largest manifest of a server: 200 bytes a file, some millions of files.
const SERVER_MANIFEST_BYTES_MAX: usize = 1024 * MIB as usize;
/// Largest file that is kept in memory besides being stored: pg_control and the label.
const KEPT_BYTES_MAX: u64 = MIB;

/// The archives of a base backup, one file after the other.
pub struct ClusterStream<'a> {
    base: BaseBackup,
    table: &'a Mutex<FileTable>,
    compared: Compared<'a>,
    /// Directories and links that are in the table before the stream begins.
    known: BTreeSet<Vec<u8>>,
    /// Path of the tablespace whose archive this is, with a slash; empty for the data directory.
    prefix: Vec<u8>,
    chunk: Vec<u8>,
    used: usize,
    /// Bytes of the current file that are still to come, and its padding after that.
    left: u64,
    padding: usize,
    current: Vec<u8>,
    /// A block of zeros came: nothing but zeros may follow in this archive.
    is_over: bool,
    kept: Option<Vec<u8>>,
    /// Content of the current file that was written anew, and how much of it has been read.
    rewritten: Option<(Vec<u8>, usize)>,
    /// Blocks of the current file that come, if only some do.
    ranges: VecDeque<Range<u32>>,
    ranges_of: FileId,
    otherwise: BTreeMap<FileId, SentAs>,
    based_on: Option<Lsn>,
    backup_label: Vec<u8>,
    control_file: Vec<u8>,
    manifest: Vec<u8>,
    end: Option<StreamEnd>,
}

/// What the files of a stream are compared with.
#[derive(Clone, Copy)]
pub(super) enum Compared<'a> {
    /// With nothing.
    No,
    /// All files come whole, and what the prior has is left out here.
    Here(&'a Comparison<'a>),
    /// The server leaves out what has not changed, from files of at most so many blocks.
    ThereToo { comparison: &'a Comparison<'a>, segment_blocks: u32 },
}

impl<'a> Compared<'a> {
    pub(super) fn comparison(&self) -> Option<&'a Comparison<'a>> {
        match self {
            Compared::No => None,
            Compared::Here(comparison) | Compared::ThereToo { comparison, .. } => Some(comparison),
        }
    }
}

/// What the server said at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamEnd {
    /// Replaying up to here makes the copy consistent.
    pub stop_lsn: Lsn,
    /// The timeline of the end.
    pub timeline: TimelineId,
    /// Whether the server found wrong page checksums.
    pub has_bad_checksums: bool,
}

/// What a finished stream leaves besides the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// What the server said at the end.
    pub end: StreamEnd,
    /// The content of `backup_label`.
    pub backup_label: Vec<u8>,
    /// The content of `global/pg_control`.
    pub control_file: Vec<u8>,
    /// The server's own manifest.
    pub manifest: Vec<u8>,
    /// Files that are not stored as they were sent.
    pub(super) otherwise: BTreeMap<FileId, SentAs>,
    /// Where the backup began that the server has compared its files with.
    pub(super) based_on: Option<Lsn>,
}

/// What waiting for bytes came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pulled {
    Bytes,
    /// Another archive, the manifest, or the end.
    Boundary,
    Stopped,
}

/// What an entry of an archive brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entered {
    Part(StreamPart),
    /// No bytes to store, or those of the ranges that were noted.
    Nothing,
    Stopped,
}

impl<'a> ClusterStream<'a> {
    /// Puts the links to the tablespaces into the table: the server leaves them out, and sends their content first.
    ///
    /// # Errors
    /// Those of the table.
    pub fn new(base: BaseBackup, table: &'a Mutex<FileTable>) -> Result<Self> {
        Self::compared(base, table, Compared::No)
    }

    /// As [`ClusterStream::new`], with files that are compared with those of a prior set.
    pub(super) fn compared(base: BaseBackup, table: &'a Mutex<FileTable>, compared: Compared<'a>) -> Result<Self> {
        let mut known = BTreeSet::new();
        let mut list = table.lock().unwrap_or_else(PoisonError::into_inner);
        let now = jiff::Timestamp::now().as_second();
        for space in &base.tablespaces {
            let Some(oid) = space.oid else { continue };
            if known.insert(b"pg_tblspc".to_vec()) {
                list.push(b"pg_tblspc", b"", EntryKind::Directory, 0o700, now, 0)?;
            }
            let path = format!("pg_tblspc/{oid}").into_bytes();
            // A tablespace inside the data directory has a relative place.
            match space.location.starts_with(b"/") {
                true => list.push(&path, &space.location, EntryKind::Symlink, 0o777, now, 0)?,
                false => list.push(&path, b"", EntryKind::Directory, 0o700, now, 0)?,
            };
            known.insert(path);
        }
        drop(list);
        Ok(ClusterStream {
            base,
            table,
            compared,
            known,
            prefix: Vec::new(),
            chunk: Vec::new(),
            used: 0,
            left: 0,
            padding: 0,
            current: Vec::new(),
            is_over: false,
            kept: None,
            rewritten: None,
            ranges: VecDeque::new(),
            ranges_of: FileId(0),
            otherwise: BTreeMap::new(),
            based_on: None,
            backup_label: Vec::new(),
            control_file: Vec::new(),
            manifest: Vec::new(),
            end: None,
        })
    }

    /// What is left when every file has come.
    ///
    /// # Errors
    /// `Source` if label or pg_control did not come.
    pub fn finish(self) -> Result<Received> {
        let Some(end) = self.end else { return Err(refuse("it ended too early")) };
        if self.backup_label.is_empty() || self.control_file.is_empty() {
            return Err(refuse("backup_label or pg_control is not in it"));
        }
        let ClusterStream { backup_label, control_file, manifest, otherwise, based_on, .. } = self;
        Ok(Received { end, backup_label, control_file, manifest, otherwise, based_on })
    }

    /// Waits until there are unused bytes in the chunk, or the archive ends.
    fn pull(&mut self, stopped: &dyn Fn() -> bool) -> Result<Pulled> {
        if self.used < self.chunk.len() {
            return Ok(Pulled::Bytes);
        }
        if self.end.is_some() {
            return Ok(Pulled::Boundary);
        }
        loop {
            if stopped() {
                return Ok(Pulled::Stopped);
            }
            match self.base.next(WAIT)? {
                BackupMessage::Quiet => {}
                BackupMessage::ArchiveData(bytes) if bytes.is_empty() => {}
                BackupMessage::ArchiveData(bytes) => {
                    self.chunk = bytes;
                    self.used = 0;
                    return Ok(Pulled::Bytes);
                }
                BackupMessage::Archive { oid } => {
                    self.prefix = self.prefix_of(oid)?;
                    self.is_over = false;
                    return Ok(Pulled::Boundary);
                }
                BackupMessage::ManifestData(bytes) => {
                    if self.manifest.len() + bytes.len() > SERVER_MANIFEST_BYTES_MAX {
                        return Err(refuse("its manifest is larger than 1 GiB"));
                    }
                    self.manifest.extend_from_slice(&bytes);
                    return Ok(Pulled::Boundary);
                }
                BackupMessage::End { stop_lsn, timeline, has_bad_checksums } => {
                    self.end = Some(StreamEnd { stop_lsn, timeline, has_bad_checksums });
                    return Ok(Pulled::Boundary);
                }
            }
        }
    }

    fn prefix_of(&self, oid: Option<u32>) -> Result<Vec<u8>> {
        let Some(oid) = oid else { return Ok(Vec::new()) };
        match self.base.tablespaces.iter().any(|space| space.oid == Some(oid)) {
            true => Ok(format!("pg_tblspc/{oid}/").into_bytes()),
            false => Err(refuse(&format!("an archive of tablespace {oid} came, which was not announced"))),
        }
    }

    /// Takes `count` bytes of the archive and forgets them; false if the run stops.
    fn skip(&mut self, mut count: u64, stopped: &dyn Fn() -> bool) -> Result<bool> {
        while count > 0 {
            match self.pull(stopped)? {
                Pulled::Bytes => {}
                Pulled::Boundary => return Err(self.cut()),
                Pulled::Stopped => return Ok(false),
            }
            let taken = ((self.chunk.len() - self.used) as u64).min(count);
            self.used += taken as usize;
            count -= taken;
        }
        Ok(true)
    }

    /// The next block of the archive; None at its end (`Boundary`) or when the run stops.
    fn block(&mut self, stopped: &dyn Fn() -> bool) -> Result<(Pulled, [u8; BLOCK_BYTES])> {
        let mut block = [0u8; BLOCK_BYTES];
        let mut filled = 0;
        while filled < BLOCK_BYTES {
            match self.pull(stopped)? {
                Pulled::Bytes => {}
                Pulled::Boundary if filled > 0 => return Err(self.cut()),
                other => return Ok((other, block)),
            }
            let taken = (self.chunk.len() - self.used).min(BLOCK_BYTES - filled);
            block[filled..filled + taken].copy_from_slice(&self.chunk[self.used..self.used + taken]);
            self.used += taken;
            filled += taken;
        }
        Ok((Pulled::Bytes, block))
    }

    /// Notes an entry; says what of its content follows.
    fn enter(&mut self, entry: &TarEntry, stopped: &dyn Fn() -> bool) -> Result<Entered> {
        let path = [self.prefix.as_slice(), &entry.path].concat();
        self.left = entry.size_bytes;
        self.padding = padding(entry.size_bytes);
        self.current.clone_from(&path);
        (self.kept, self.rewritten) = (None, None);
        if (self.known.contains(&path) && entry.kind != TarKind::File) || is_signal_file(&path) {
            return Ok(Entered::Nothing);
        }
        let picked = match self.compared {
            Compared::ThereToo { comparison, segment_blocks } if entry.kind == TarKind::File => {
                original_path(&path).map(|original| (original, comparison, segment_blocks))
            }
            _ => None,
        };
        if let Some((original, comparison, segment_blocks)) = picked {
            return self.enter_picked(entry, &original, comparison, segment_blocks, stopped);
        }
        if path == b"backup_label" || path == CONTROL_FILE_PATH.as_bytes() {
            if entry.size_bytes > KEPT_BYTES_MAX {
                return Err(refuse(&format!("{} is {} bytes long", path.escape_ascii(), entry.size_bytes)));
            }
            self.kept = Some(Vec::new());
        }
        let mut sent_as = None;
        if path == b"backup_label" && matches!(self.compared, Compared::ThereToo { .. }) {
            let Some(sent) = self.rewrite_label(stopped)? else { return Ok(Entered::Stopped) };
            sent_as = Some(sent);
        }
        let size_bytes = self.rewritten.as_ref().map_or(entry.size_bytes, |(content, _)| content.len() as u64);
        let file = self.push(&path, entry, size_bytes)?;
        if let Some(sent) = sent_as {
            self.otherwise.insert(file, sent);
        }
        let part = StreamPart { file, file_offset: 0, size_bytes };
        Ok(if entry.kind == TarKind::File { Entered::Part(part) } else { Entered::Nothing })
    }

    /// Adds an entry to the table, and to what is compared.
    fn push(&self, path: &[u8], entry: &TarEntry, size_bytes: u64) -> Result<FileId> {
        let (kind, target) = match &entry.kind {
            TarKind::File => (EntryKind::File, &[][..]),
            TarKind::Directory => (EntryKind::Directory, &[][..]),
            TarKind::Symlink { target } => (EntryKind::Symlink, target.as_slice()),
        };
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let file = table.push(path, target, kind, entry.mode, entry.mtime_s, size_bytes)?;
        if let Some(comparison) = self.compared.comparison().filter(|_| kind == EntryKind::File) {
            comparison.follow(&table, file);
        }
        Ok(file)
    }

    /// Reads the head of a file of which only some blocks come.
    fn enter_picked(
        &mut self,
        entry: &TarEntry,
        original: &[u8],
        comparison: &Comparison<'_>,
        segment_blocks: u32,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Entered> {
        let page = comparison.page_size_bytes as u32;
        let bad = |cause: &str| refuse(&format!("{}: {cause}", original.escape_ascii()));
        let mut fixed = [0u8; FIXED_BYTES];
        if entry.size_bytes < FIXED_BYTES as u64 {
            return Err(bad("it is too short for an incremental file"));
        }
        if !self.take(&mut fixed, stopped)? {
            return Ok(Entered::Stopped);
        }
        let head = FixedHead::parse(&fixed, segment_blocks).map_err(|error| bad(&error.message()))?;
        let mut rest = vec![0u8; head.rest_bytes(page)];
        let (head_bytes, stored_bytes) = ((FIXED_BYTES + rest.len()) as u64, head.content_bytes(page));
        if head_bytes + stored_bytes != entry.size_bytes {
            return Err(bad("its size is not that of its blocks"));
        }
        if !self.take(&mut rest, stopped)? {
            return Ok(Entered::Stopped);
        }
        let head_crc32c = combine(crc32c(&fixed), crc32c(&rest), rest.len() as u64);
        let head = head.with_blocks(&rest, segment_blocks).map_err(|error| bad(&error.message()))?;
        let file = self.push(original, entry, u64::from(head.total_blocks()) * u64::from(page))?;
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let (total, shared, parts) = (head.total_blocks(), head.shared_blocks, head.ranges.len() as u64);
        comparison.follow_picked(&table, file, total, shared, parts)?;
        drop(table);
        let sent = SentAs { path: self.current.clone(), head_bytes, head_crc32c, stored_bytes };
        self.otherwise.insert(file, sent);
        (self.ranges, self.ranges_of) = (head.ranges.into(), file);
        Ok(Entered::Nothing)
    }

    /// Takes from the backup label what makes it that of an incremental backup; says how it was sent, or None if the run
    /// stops.
    fn rewrite_label(&mut self, stopped: &dyn Fn() -> bool) -> Result<Option<SentAs>> {
        let mut label = vec![0u8; self.left as usize];
        if !self.take(&mut label, stopped)? {
            return Ok(None);
        }
        let (head_bytes, head_crc32c) = (label.len() as u64, crc32c(&label));
        let (stripped, based_on) = strip_backup_label(&label);
        (self.rewritten, self.based_on) = (Some((stripped, 0)), based_on);
        Ok(Some(SentAs { path: self.current.clone(), head_bytes, head_crc32c, stored_bytes: 0 }))
    }

    /// The next blocks of the current file, if it comes in parts.
    fn next_range(&mut self) -> Option<StreamPart> {
        let page = self.compared.comparison()?.page_size_bytes;
        let range = self.ranges.pop_front()?;
        let (file_offset, size_bytes) = (u64::from(range.start) * page, range.len() as u64 * page);
        Some(StreamPart { file: self.ranges_of, file_offset, size_bytes })
    }

    /// Fills `into` with the next bytes of the entry; false if the run stops.
    fn take(&mut self, into: &mut [u8], stopped: &dyn Fn() -> bool) -> Result<bool> {
        let mut filled = 0;
        while filled < into.len() {
            match self.pull(stopped)? {
                Pulled::Bytes => {}
                Pulled::Boundary => return Err(self.cut()),
                Pulled::Stopped => return Ok(false),
            }
            let taken = (self.chunk.len() - self.used).min(into.len() - filled);
            into[filled..filled + taken].copy_from_slice(&self.chunk[self.used..self.used + taken]);
            self.used += taken;
            filled += taken;
        }
        self.left = self.left.saturating_sub(into.len() as u64);
        Ok(true)
    }

    fn cut(&self) -> Error {
        refuse(&format!("the archive ends in the middle of {}", self.current.escape_ascii()))
    }
}

impl StreamSource for ClusterStream<'_> {
    fn next_part(&mut self, stopped: &dyn Fn() -> bool) -> Result<Option<StreamPart>> {
        loop {
            if let Some(part) = self.next_range() {
                return Ok(Some(part));
            }
            let rest = std::mem::take(&mut self.left) + std::mem::take(&mut self.padding) as u64;
            if !self.skip(rest, stopped)? {
                return Ok(None);
            }
            let (pulled, block) = self.block(stopped)?;
            match pulled {
                Pulled::Stopped => return Ok(None),
                Pulled::Boundary if self.end.is_some() => return Ok(None),
                Pulled::Boundary => continue,
                Pulled::Bytes => {}
            }
            match parse_header(&block)? {
                None => self.is_over = true,
                Some(_) if self.is_over => return Err(refuse("an entry follows the end of the archive")),
                Some(entry) => match self.enter(&entry, stopped)? {
                    Entered::Part(part) => return Ok(Some(part)),
                    Entered::Nothing => {}
                    Entered::Stopped => return Ok(None),
                },
            }
        }
    }

    fn read(&mut self, into: &mut [u8], stopped: &dyn Fn() -> bool) -> Result<bool> {
        if let Some((content, at)) = &mut self.rewritten {
            into.copy_from_slice(&content[*at..*at + into.len()]);
            *at += into.len();
        } else if !self.take(into, stopped)? {
            return Ok(false);
        }
        if let Some(kept) = &mut self.kept {
            kept.extend_from_slice(into);
            let whole = if self.current == b"backup_label" { &mut self.backup_label } else { &mut self.control_file };
            whole.clone_from(kept);
        }
        Ok(true)
    }
}

fn refuse(cause: &str) -> Error {
    Error::new(ErrorKind::Source, "receive the base backup", cause)
}
