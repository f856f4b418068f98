//! A directory as a store. Objects are written past the page cache where that is possible.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{Holder, Lease, ObjectReader, ObjectWriter, StagedObject, Storage};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{self, Locked, SequentialWriter, StagedFile};

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

    fn create(&self, name: &str, _largest_bytes: u64) -> Result<Box<dyn ObjectWriter>> {
        self.create_parent(name)?;
        let path = self.path(name);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::open(&path, flags, mode).map_err(|cause| self.error("create", name, cause))?;
        io::sync_parent(&path).map_err(|cause| self.error("create", name, cause))?;
        let content = SequentialWriter::new(file.as_fd())?;
        Ok(Box::new(LocalWriter { store: self.clone(), name: name.to_owned(), file, content }))
    }

    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        self.create_parent(name)?;
        match io::write_new_durable(&self.path(name), bytes) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(cause) => Err(self.error("write", name, cause)),
        }
    }

    fn stage(&self, name: &str, _largest_bytes: u64) -> Result<Box<dyn StagedObject>> {
        self.create_parent(name)?;
        let file = StagedFile::create(&self.path(name)).map_err(|cause| self.error("create", name, cause))?;
        let content = SequentialWriter::new(file.fd())?;
        Ok(Box::new(LocalStaged { store: self.clone(), name: name.to_owned(), file, content }))
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
        Ok(held.then(|| Box::new(Locked(file)) as Box<dyn Lease>))
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

struct LocalStaged {
    store: LocalStorage,
    name: String,
    file: StagedFile,
    content: SequentialWriter,
}

impl StagedObject for LocalStaged {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.content.append(self.file.fd(), bytes);
        written.map_err(|cause| self.store.error("write", &self.name, cause))
    }

    fn commit(mut self: Box<Self>) -> Result<bool> {
        self.content.finish(self.file.fd()).map_err(|cause| self.store.error("write", &self.name, cause))?;
        match self.file.name_new() {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(cause) => Err(self.store.error("make durable", &self.name, cause)),
        }
    }
}

/// The kernel drops the lock when the process ends, however it ends.
impl Lease for Locked {}

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

struct LocalWriter {
    store: LocalStorage,
    name: String,
    file: OwnedFd,
    content: SequentialWriter,
}

impl ObjectWriter for LocalWriter {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.content.append(self.file.as_fd(), bytes);
        written.map_err(|cause| self.store.error("write", &self.name, cause))
    }

    fn finish(mut self: Box<Self>) -> Result<u64> {
        let length = self.content.finish(self.file.as_fd());
        let length = length.map_err(|cause| self.store.error("write", &self.name, cause))?;
        io::sync_file(self.file.as_fd()).map_err(|cause| self.store.error("make durable", &self.name, cause))?;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use super::*;

    #[test]
    fn a_lease_is_free_when_it_is_given_back_though_a_copy_of_its_file_is_open() {
        let directory = tempfile::tempdir().unwrap();
        let storage = LocalStorage::new(directory.path());
        let file = File::create(directory.path().join("lease")).unwrap();
        assert_eq!(io::try_lock(&file), Ok(true));
        // As in a child between its start and its program's.
        let copy = file.try_clone().unwrap();
        let lease = Locked(file);
        assert!(storage.is_leased("lease").unwrap());
        drop(lease);
        assert!(!storage.is_leased("lease").unwrap() && storage.lease("lease").unwrap().is_some());
        drop(copy);
    }

    #[test]
    fn a_lease_is_free_when_it_is_given_back_while_children_are_started() {
        let directory = tempfile::tempdir().unwrap();
        let storage = LocalStorage::new(directory.path());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    Command::new("/bin/true").status().unwrap();
                }
            });
            for round in 0..2000 {
                let lease = storage.lease("lease").unwrap();
                let was_held = lease.is_some();
                drop(lease);
                let is_free = !storage.is_leased("lease").unwrap();
                if !was_held || !is_free {
                    stop.store(true, SeqCst);
                    panic!("round {round}: {was_held} {is_free}");
                }
            }
            stop.store(true, SeqCst);
        });
    }
}
