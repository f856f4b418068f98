//! A base backup that a server sends, as a stream of files for the data path: tar archives unpacked on the way.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::format::file_table::{EntryKind, FileTable};
use crate::limits::MIB;
use crate::pipeline::StreamSource;
use crate::source::postgres::base_backup::{BackupMessage, BaseBackup};
use crate::source::postgres::control_file::CONTROL_FILE_PATH;
use crate::source::postgres::data_directory::is_signal_file;
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
    backup_label: Vec<u8>,
    control_file: Vec<u8>,
    manifest: Vec<u8>,
    end: Option<StreamEnd>,
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
}

/// What waiting for bytes came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pulled {
    Bytes,
    /// Another archive, the manifest, or the end.
    Boundary,
    Stopped,
}

impl<'a> ClusterStream<'a> {
    /// Puts the links to the tablespaces into the table: the server leaves them out, and sends their content first.
    ///
    /// # Errors
    /// Those of the table.
    pub fn new(base: BaseBackup, table: &'a Mutex<FileTable>) -> Result<Self> {
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
            known,
            prefix: Vec::new(),
            chunk: Vec::new(),
            used: 0,
            left: 0,
            padding: 0,
            current: Vec::new(),
            is_over: false,
            kept: None,
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
        Ok(Received { end, backup_label: self.backup_label, control_file: self.control_file, manifest: self.manifest })
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

    /// Notes an entry; gives the file whose content follows.
    fn enter(&mut self, entry: &TarEntry) -> Result<Option<(FileId, u64)>> {
        let path = [self.prefix.as_slice(), &entry.path].concat();
        self.left = entry.size_bytes;
        self.padding = padding(entry.size_bytes);
        self.current.clone_from(&path);
        self.kept = None;
        if self.known.contains(&path) && entry.kind != TarKind::File {
            return Ok(None);
        }
        if is_signal_file(&path) {
            return Ok(None);
        }
        if path == b"backup_label" || path == CONTROL_FILE_PATH.as_bytes() {
            if entry.size_bytes > KEPT_BYTES_MAX {
                return Err(refuse(&format!("{} is {} bytes long", path.escape_ascii(), entry.size_bytes)));
            }
            self.kept = Some(Vec::new());
        }
        let (kind, target) = match &entry.kind {
            TarKind::File => (EntryKind::File, &[][..]),
            TarKind::Directory => (EntryKind::Directory, &[][..]),
            TarKind::Symlink { target } => (EntryKind::Symlink, target.as_slice()),
        };
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let file = table.push(&path, target, kind, entry.mode, entry.mtime_s, entry.size_bytes)?;
        Ok((kind == EntryKind::File).then_some((file, entry.size_bytes)))
    }

    fn cut(&self) -> Error {
        refuse(&format!("the archive ends in the middle of {}", self.current.escape_ascii()))
    }
}

impl StreamSource for ClusterStream<'_> {
    fn next_file(&mut self, stopped: &dyn Fn() -> bool) -> Result<Option<(FileId, u64)>> {
        loop {
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
                Some(entry) => {
                    if let Some(file) = self.enter(&entry)? {
                        return Ok(Some(file));
                    }
                }
            }
        }
    }

    fn read(&mut self, into: &mut [u8], stopped: &dyn Fn() -> bool) -> Result<bool> {
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
