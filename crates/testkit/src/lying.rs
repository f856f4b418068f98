//! A store that says that an object is stored, durably, and has nothing of it, or a part: an upload whose last answer
//! was misread, or a disk that lies.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use pagehaul_engine::error::Result;
use pagehaul_engine::storage::{Lease, LocalStorage, ObjectReader, ObjectWriter, StagedObject, Storage};

/// What becomes of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// It is not there.
    Absent,
    /// It has no byte.
    Empty,
    /// Its second half is missing.
    Half,
}

/// Every lie.
pub const LIES: [Lie; 3] = [Lie::Absent, Lie::Empty, Lie::Half];

/// A directory whose store lies about one of the objects that it is given.
pub struct LyingStorage {
    inner: LocalStorage,
    lies: Arc<Lies>,
}

struct Lies {
    directory: PathBuf,
    /// The object, in the order in which they are finished.
    at: u64,
    lie: Lie,
    finished: Arc<AtomicU64>,
}

impl LyingStorage {
    /// The store in `directory`, which lies about the object that is finished as number `at`, from 0. `finished` counts.
    pub fn new(directory: &Path, at: u64, lie: Lie, finished: Arc<AtomicU64>) -> Self {
        let lies = Lies { directory: directory.to_owned(), at, lie, finished };
        LyingStorage { inner: LocalStorage::new(directory), lies: Arc::new(lies) }
    }
}

impl Lies {
    fn finished(&self, name: &str) {
        if self.finished.fetch_add(1, SeqCst) != self.at {
            return;
        }
        let path = self.directory.join(name);
        if self.lie == Lie::Absent {
            std::fs::remove_file(path).unwrap();
            return;
        }
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        let length = if self.lie == Lie::Half { file.metadata().unwrap().len() / 2 } else { 0 };
        file.set_len(length).unwrap();
    }
}

struct LyingWriter {
    inner: Box<dyn ObjectWriter>,
    name: String,
    lies: Arc<Lies>,
}

impl ObjectWriter for LyingWriter {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.inner.append(bytes)
    }

    fn finish(self: Box<Self>) -> Result<u64> {
        let size_bytes = self.inner.finish()?;
        self.lies.finished(&self.name);
        Ok(size_bytes)
    }
}

struct LyingStaged {
    inner: Box<dyn StagedObject>,
    name: String,
    lies: Arc<Lies>,
}

impl StagedObject for LyingStaged {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.inner.append(bytes)
    }

    fn commit(self: Box<Self>) -> Result<bool> {
        let is_new = self.inner.commit()?;
        self.lies.finished(&self.name);
        Ok(is_new)
    }
}

impl Storage for LyingStorage {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn create(&self, name: &str, largest_bytes: u64) -> Result<Box<dyn ObjectWriter>> {
        let (inner, name) = (self.inner.create(name, largest_bytes)?, name.to_owned());
        Ok(Box::new(LyingWriter { inner, name, lies: Arc::clone(&self.lies) }))
    }

    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        let is_new = self.inner.put_new(name, bytes)?;
        if is_new {
            self.lies.finished(name);
        }
        Ok(is_new)
    }

    fn stage(&self, name: &str, largest_bytes: u64) -> Result<Box<dyn StagedObject>> {
        let (inner, name) = (self.inner.stage(name, largest_bytes)?, name.to_owned());
        Ok(Box::new(LyingStaged { inner, name, lies: Arc::clone(&self.lies) }))
    }

    fn make_durable(&self, name: &str) -> Result<()> {
        self.inner.make_durable(name)
    }

    fn open(&self, name: &str) -> Result<Option<Box<dyn ObjectReader>>> {
        self.inner.open(name)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        self.inner.list(prefix)
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.inner.delete(name)
    }

    fn sweep(&self, prefix: &str) -> Result<u32> {
        self.inner.sweep(prefix)
    }

    fn remove_prefix(&self, prefix: &str) -> Result<()> {
        self.inner.remove_prefix(prefix)
    }

    fn lease(&self, name: &str) -> Result<Option<Box<dyn Lease>>> {
        self.inner.lease(name)
    }

    fn is_leased(&self, name: &str) -> Result<bool> {
        self.inner.is_leased(name)
    }

    fn free_bytes(&self) -> Option<u64> {
        self.inner.free_bytes()
    }
}
