//! A directory as a store. Large objects are written past the page cache in aligned pieces, so that a backup neither
//! evicts what the database needs nor leaves a tail of dirty pages for the end.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{Holder, Lease, ObjectReader, ObjectWriter, StagedObject, Storage};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{self, ALIGNMENT_BYTES, AlignedBytes, StagedFile};

/// Bytes that one writer gathers before a write: large enough that a write past the page cache keeps a disk busy.
pub(super) const STAGING_BYTES: usize = 2 * 1024 * 1024;

/// How often a lease is tried, and the pause between.
const LOCK_ATTEMPTS: u32 = 5;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// A store in a local directory.
#[derive(Clone, Debug)]
pub struct LocalStorage {
    root: PathBuf,
}

impl LocalStorage {
    /// The store below `root`, which need not exist yet.
    pub fn new(root: &Path) -> Self {
        LocalStorage { root: root.to_owned() }
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn error(&self, verb: &str, name: &str, cause: Errno) -> Error {
        let object = self.path(name);
        let error = Error::new(ErrorKind::Repository, format!("{verb} {}", object.display()), cause);
        match cause {
            Errno::NOSPC | Errno::DQUOT => error.hint(format!(
                "the disk under {} is full: free space or use another --repo or --stripe-to; earlier backups are not touched",
                self.root.display()
            )),
            Errno::ACCESS | Errno::PERM => error.hint(format!("give this user the right to read and write below {}", self.root.display())),
            _ => error,
        }
    }

    fn create_parent(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        let parent = path.parent().unwrap_or(&self.root);
        io::create_directory_durable(parent).map_err(|cause| self.error("create the directory of", name, cause))
    }
}

impl Storage for LocalStorage {
    fn describe(&self) -> String {
        self.root.display().to_string()
    }

    fn create(&self, name: &str) -> Result<Box<dyn ObjectWriter>> {
        self.create_parent(name)?;
        let path = self.path(name);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        // File systems without direct writes (tmpfs, some network ones) refuse the flag with EINVAL.
        let (file, direct) = match rustix::fs::open(&path, flags | OFlags::DIRECT, mode) {
            Err(Errno::INVAL) => (rustix::fs::open(&path, flags.difference(OFlags::EXCL), mode), false),
            other => (other, true),
        };
        let file = file.map_err(|cause| self.error("create", name, cause))?;
        io::sync_parent(&path).map_err(|cause| self.error("create", name, cause))?;
        Ok(Box::new(LocalWriter {
            store: self.clone(),
            name: name.to_owned(),
            file,
            direct,
            staging: AlignedStaging::new(),
            written_bytes: 0,
        }))
    }

    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        self.create_parent(name)?;
        match io::write_new_durable(&self.path(name), bytes) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(cause) => Err(self.error("write", name, cause)),
        }
    }

    fn stage(&self, name: &str) -> Result<Box<dyn StagedObject>> {
        self.create_parent(name)?;
        let file = StagedFile::create(&self.path(name)).map_err(|cause| self.error("create", name, cause))?;
        Ok(Box::new(LocalStaged { store: self.clone(), name: name.to_owned(), file, written_bytes: 0 }))
    }

    fn make_durable(&self, name: &str) -> Result<()> {
        // Content is synced before it has a name; the directories may be as new as the name.
        let path = self.path(name);
        let mut entries = path.ancestors().take_while(|entry| *entry != self.root);
        entries.try_for_each(io::sync_parent).map_err(|cause| self.error("make durable", name, cause))
    }

    fn open(&self, name: &str) -> Result<Option<Box<dyn ObjectReader>>> {
        let file = match rustix::fs::open(self.path(name), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(cause) => return Err(self.error("open", name, cause)),
        };
        let size_bytes = io::size_bytes(file.as_fd()).map_err(|cause| self.error("open", name, cause))?;
        Ok(Some(Box::new(LocalReader { file, size_bytes, path: self.path(name) })))
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let path = self.path(prefix);
        let entries = match std::fs::read_dir(&path) {
            Ok(entries) => entries,
            // An object is not a prefix of anything.
            Err(cause) if matches!(cause.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
                return Ok(Vec::new());
            }
            Err(cause) => return Err(Error::new(ErrorKind::Repository, format!("list {}", path.display()), cause)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry =
                entry.map_err(|cause| Error::new(ErrorKind::Repository, format!("list {}", path.display()), cause))?;
            // A name that is not UTF-8 is none of ours.
            names.extend(entry.file_name().into_string());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn delete(&self, name: &str) -> Result<()> {
        match rustix::fs::unlink(self.path(name)) {
            Ok(()) => io::sync_parent(&self.path(name)).map_err(|cause| self.error("delete", name, cause)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(cause) => Err(self.error("delete", name, cause)),
        }
    }

    fn sweep(&self, prefix: &str) -> Result<u32> {
        let names = self.list(prefix)?;
        io::remove_dead_temporaries(&self.path(prefix), &names).map_err(|cause| self.error("sweep", prefix, cause))
    }

    fn remove_prefix(&self, prefix: &str) -> Result<()> {
        match rustix::fs::rmdir(self.path(prefix)) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(cause) => Err(self.error("remove", prefix, cause)),
        }
    }

    fn lease(&self, name: &str) -> Result<Option<Box<dyn Lease>>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let mut attempts = LOCK_ATTEMPTS;
        let file = loop {
            self.create_parent(name)?;
            // Whoever may list it may see whether it is held, whoever made it.
            match rustix::fs::open(self.path(name), flags, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH) {
                Ok(file) => break File::from(file),
                // Somebody removed the directory while it was empty.
                Err(Errno::NOENT) if attempts > 1 => attempts -= 1,
                Err(cause) => return Err(self.error("open the lease", name, cause)),
            }
        };
        // Somebody who only looks holds the lock for a moment; a holder keeps it.
        let mut held = false;
        for _ in 0..LOCK_ATTEMPTS {
            held = io::try_lock(&file).map_err(|cause| self.error("lock", name, cause))?;
            if held {
                break;
            }
            std::thread::sleep(LOCK_PAUSE);
        }
        // The holder before may have removed the file between our open and our lock: then we hold nothing.
        let held = held && io::is_same_file(&file, &self.path(name));
        if held {
            // For people only: a disk without room for these words keeps nobody from holding a lease.
            file.set_len(0).and_then(|()| (&file).write_all(Holder::here().to_text().as_bytes())).ok();
        }
        Ok(held.then(|| Box::new(LocalLease { file }) as Box<dyn Lease>))
    }

    fn is_leased(&self, name: &str) -> Result<bool> {
        match File::open(self.path(name)) {
            Ok(file) => {
                let is_free = io::try_lock(&file).map_err(|cause| self.error("look at the lease", name, cause))?;
                if is_free {
                    io::unlock(&file);
                }
                Ok(!is_free)
            }
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(cause) => Err(Error::new(ErrorKind::Repository, format!("open {}", self.path(name).display()), cause)),
        }
    }

    fn free_bytes(&self) -> Option<u64> {
        let existing = self.root.ancestors().find(|ancestor| ancestor.exists())?;
        io::free_bytes(existing).ok()
    }
}

/// Bytes are written as they come: what is staged is small beside a backup's stripes.
struct LocalStaged {
    store: LocalStorage,
    name: String,
    file: StagedFile,
    written_bytes: u64,
}

impl StagedObject for LocalStaged {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        io::write_all_at(self.file.fd(), bytes, self.written_bytes)
            .map_err(|cause| self.store.error("write", &self.name, cause))?;
        self.written_bytes += bytes.len() as u64;
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<bool> {
        match self.file.name_new() {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(cause) => Err(self.store.error("make durable", &self.name, cause)),
        }
    }
}

/// The kernel drops the lock when the process ends, however it ends.
struct LocalLease {
    file: File,
}

impl Lease for LocalLease {}

impl Drop for LocalLease {
    fn drop(&mut self) {
        io::unlock(&self.file);
    }
}

struct LocalReader {
    file: OwnedFd,
    size_bytes: u64,
    path: PathBuf,
}

impl ObjectReader for LocalReader {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let wanted = buffer.len();
        let action = || format!("read {wanted} bytes at {offset} of {}", self.path.display());
        match io::read_full_at(self.file.as_fd(), buffer, offset) {
            Ok(count) if count == wanted => Ok(()),
            Ok(count) => {
                Err(Error::new(ErrorKind::Damage, action(), format!("it ends after {count} bytes: it was cut short")))
            }
            Err(cause) => Err(Error::new(ErrorKind::Repository, action(), cause)),
        }
    }
}

/// Gathers bytes into aligned pieces; only the last piece is written through the page cache, as it has any length.
struct LocalWriter {
    store: LocalStorage,
    name: String,
    file: OwnedFd,
    direct: bool,
    staging: AlignedStaging,
    written_bytes: u64,
}

impl LocalWriter {
    fn write_staged(&mut self) -> Result<()> {
        let bytes = self.staging.filled();
        let end = self.written_bytes + bytes.len() as u64;
        if self.direct && !bytes.len().is_multiple_of(ALIGNMENT_BYTES) {
            self.leave_direct_mode()?;
        }
        let mut written = io::write_all_at(self.file.as_fd(), self.staging.filled(), self.written_bytes);
        if self.direct && matches!(written, Err(Errno::INVAL)) {
            // The flag was accepted at open but this file system cannot write so: go through the page cache instead.
            self.leave_direct_mode()?;
            written = io::write_all_at(self.file.as_fd(), self.staging.filled(), self.written_bytes);
        }
        written.map_err(|cause| self.store.error("write", &self.name, cause))?;
        if !self.direct {
            io::start_write_back(self.file.as_fd(), self.written_bytes, end - self.written_bytes);
        }
        self.written_bytes = end;
        self.staging.clear();
        Ok(())
    }

    fn leave_direct_mode(&mut self) -> Result<()> {
        self.direct = false;
        rustix::fs::fcntl_getfl(&self.file)
            .and_then(|flags| rustix::fs::fcntl_setfl(&self.file, flags.difference(OFlags::DIRECT)))
            .map_err(|cause| self.store.error("write", &self.name, cause))
    }
}

impl ObjectWriter for LocalWriter {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = self.staging.take_from(rest);
            if self.staging.is_full() {
                self.write_staged()?;
            }
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<u64> {
        if !self.staging.filled().is_empty() {
            self.write_staged()?;
        }
        io::sync_file(self.file.as_fd()).map_err(|cause| self.store.error("make durable", &self.name, cause))?;
        Ok(self.written_bytes)
    }
}

/// An aligned buffer and how much of it is filled.
struct AlignedStaging {
    bytes: AlignedBytes,
    length: usize,
}

impl AlignedStaging {
    fn new() -> Self {
        AlignedStaging { bytes: AlignedBytes::new(STAGING_BYTES), length: 0 }
    }

    fn filled(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn is_full(&self) -> bool {
        self.length == STAGING_BYTES
    }

    fn clear(&mut self) {
        self.length = 0;
    }

    /// Copies what fits and gives back the rest.
    fn take_from<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let count = bytes.len().min(STAGING_BYTES - self.length);
        let (head, rest) = bytes.split_at(count);
        self.bytes[self.length..self.length + count].copy_from_slice(head);
        self.length += count;
        rest
    }
}
