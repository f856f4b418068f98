//! Several stores written as one: the same objects go to each, and one that fails is left out from then on.
//!
//! The first that works decides what is read and listed. What was written through the mirror is read back from every
//! copy, and must be the same.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::{Lease, ObjectReader, ObjectWriter, StagedObject, Storage, Uploads, at_once, read_opened};
use crate::error::{Error, ErrorKind, Result, guarded};

/// The stores, and which of them have failed. A clone is the same mirror.
#[derive(Clone)]
pub struct MirroredStorage {
    copies: Arc<Vec<Copy>>,
    /// Names of the objects that this mirror has begun.
    written: Arc<Mutex<BTreeSet<String>>>,
}

struct Copy {
    storage: Arc<dyn Storage>,
    failed: OnceLock<Error>,
}

impl MirroredStorage {
    /// Over these stores, of which there is at least one.
    pub fn new(stores: Vec<Arc<dyn Storage>>) -> Self {
        let copies = stores.into_iter().map(|storage| Copy { storage, failed: OnceLock::new() }).collect();
        MirroredStorage { copies: Arc::new(copies), written: Arc::default() }
    }

    /// Whether the copy of that index has not failed yet.
    pub fn works(&self, index: usize) -> bool {
        self.copies[index].failed.get().is_none()
    }

    /// Why the copy of that index was left out.
    pub fn failure(&self, index: usize) -> Option<&Error> {
        self.copies[index].failed.get()
    }

    /// Leaves the copy of that index out from now on; the first reason stays.
    pub fn fail(&self, index: usize, error: Error) {
        self.copies[index].failed.set(error).ok();
    }

    /// Does something with each copy that works; those that fail are left out.
    ///
    /// # Errors
    /// Those of the last copy that worked.
    pub fn each<T>(&self, mut work: impl FnMut(usize, &dyn Storage) -> Result<T>) -> Result<Vec<(usize, T)>> {
        let working = self.copies.iter().enumerate().filter(|(_, copy)| copy.failed.get().is_none());
        let done = working.map(|(index, copy)| (index, work(index, copy.storage.as_ref()))).collect();
        self.settle(done)
    }

    /// What came of it: the errors go to their copies, unless no copy would be left.
    fn settle<T>(&self, done: Vec<(usize, Result<T>)>) -> Result<Vec<(usize, T)>> {
        let mut good = Vec::with_capacity(done.len());
        let mut bad = Vec::new();
        for (index, result) in done {
            match result {
                Ok(value) => good.push((index, value)),
                Err(error) => bad.push((index, error)),
            }
        }
        if good.is_empty() {
            return Err(self.all_failed(bad));
        }
        bad.into_iter().for_each(|(index, error)| self.fail(index, error));
        Ok(good)
    }

    fn all_failed(&self, bad: Vec<(usize, Error)>) -> Error {
        let mut errors = bad.into_iter().map(|(_, error)| error);
        let mut first = errors.next().unwrap_or_else(|| {
            Error::new(ErrorKind::Repository, format!("use {}", self.describe()), "every copy has failed before")
        });
        errors.for_each(|later| first.attach(later));
        let before = self.copies.iter().filter_map(|copy| copy.failed.get());
        before.for_each(|error| first.attach(Error::new(error.kind(), error.action(), error.cause())));
        first
    }

    /// An object of the first copy that works, which goes on with another copy when that one fails. A document is read at
    /// once: of one name, each repository may have its own.
    fn open_one(&self, name: &str) -> Result<Option<Box<dyn ObjectReader>>> {
        self.ask_one(|index, storage| {
            let Some(object) = storage.open(name)? else { return Ok(None) };
            let size_bytes = object.size_bytes();
            if size_bytes <= DOCUMENT_BYTES_MAX {
                let mut bytes = vec![0; size_bytes as usize];
                object.read_at(&mut bytes, 0)?;
                return Ok(Some(Box::new(Document(bytes)) as Box<dyn ObjectReader>));
            }
            let current = Mutex::new((index, Arc::from(object)));
            Ok(Some(Box::new(ReaderOfOne { mirror: self.clone(), name: name.to_owned(), size_bytes, current })))
        })
    }

    /// What the first copy says that works; one that cannot say is left out if there is another.
    fn ask_one<T>(&self, ask: impl Fn(usize, &dyn Storage) -> Result<T>) -> Result<T> {
        let mut failed = Vec::new();
        for (index, copy) in self.copies.iter().enumerate().filter(|(_, copy)| copy.failed.get().is_none()) {
            match ask(index, copy.storage.as_ref()) {
                Ok(answer) => {
                    failed.into_iter().for_each(|(index, error)| self.fail(index, error));
                    return Ok(answer);
                }
                Err(error) => failed.push((index, error)),
            }
        }
        Err(self.all_failed(failed))
    }

    /// A copy from which something cannot be removed is none the worse for it.
    fn remove_from_each(&self, remove: impl Fn(&dyn Storage) -> Result<()>) -> Result<()> {
        let working = self.copies.iter().filter(|copy| copy.failed.get().is_none());
        let mut first = Ok(());
        for copy in working {
            first = first.and(remove(copy.storage.as_ref()));
        }
        first
    }

    /// The first copy that works.
    fn lead(&self) -> &dyn Storage {
        let working = self.copies.iter().find(|copy| copy.failed.get().is_none());
        working.unwrap_or(&self.copies[0]).storage.as_ref()
    }

    fn begin<W: ?Sized>(
        &self,
        name: &str,
        begin: impl Fn(&dyn Storage) -> Result<Box<W>>,
    ) -> Result<MirroredObject<W>> {
        let parts = self.each(|_, storage| begin(storage))?;
        self.written.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
        Ok(MirroredObject { mirror: self.clone(), name: name.to_owned(), parts })
    }

    fn was_written(&self, name: &str) -> bool {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }

    /// The copies of a new object of which some say that the name was taken: those fail unless they have the same bytes.
    fn settle_names(&self, name: &str, named: &[(usize, bool)], bytes: Option<&[u8]>) -> Result<bool> {
        if named.iter().all(|(_, is_ours)| !is_ours) {
            return Ok(false);
        }
        for (index, _) in named.iter().filter(|(_, is_ours)| !is_ours) {
            let storage = self.copies[*index].storage.as_ref();
            let has_same = bytes.is_some_and(|bytes| {
                storage.read_small(name, bytes.len() as u64).is_ok_and(|found| found.as_deref() == Some(bytes))
            });
            if !has_same {
                let action = format!("create {name} in {}", storage.describe());
                self.fail(*index, Error::new(ErrorKind::Conflict, action, "an object of that name is there"));
            }
        }
        Ok(true)
    }
}

impl Storage for MirroredStorage {
    fn describe(&self) -> String {
        self.lead().describe()
    }

    fn places(&self) -> Vec<String> {
        self.lead().places()
    }

    fn create(&self, name: &str, largest_bytes: u64) -> Result<Box<dyn ObjectWriter>> {
        Ok(Box::new(self.begin(name, |storage| storage.create(name, largest_bytes))?))
    }

    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        let named = self.each(|_, storage| storage.put_new(name, bytes))?;
        self.written.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
        self.settle_names(name, &named, Some(bytes))
    }

    fn stage(&self, name: &str, largest_bytes: u64) -> Result<Box<dyn StagedObject>> {
        Ok(Box::new(self.begin(name, |storage| storage.stage(name, largest_bytes))?))
    }

    fn make_durable(&self, name: &str) -> Result<()> {
        self.each(|_, storage| storage.make_durable(name)).map(drop)
    }

    fn open(&self, name: &str) -> Result<Option<Box<dyn ObjectReader>>> {
        if !self.was_written(name) {
            return self.open_one(name);
        }
        let opened = self.each(|_, storage| storage.open(name))?;
        let Some(size_bytes) = opened.iter().find_map(|(_, object)| Some(object.as_ref()?.size_bytes())) else {
            return Ok(None);
        };
        let checked = opened.into_iter().map(|(index, object)| {
            let is_same = object.as_ref().is_some_and(|object| object.size_bytes() == size_bytes);
            (index, object.filter(|_| is_same).ok_or_else(|| self.differs(index, name)))
        });
        let parts = self.settle(checked.collect())?;
        Ok(Some(Box::new(MirroredReader { mirror: self.clone(), name: name.to_owned(), size_bytes, parts })))
    }

    fn read_small(&self, name: &str, most_bytes: u64) -> Result<Option<Vec<u8>>> {
        if self.was_written(name) {
            return read_opened(self, name, most_bytes);
        }
        self.ask_one(|_, storage| storage.read_small(name, most_bytes))
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        self.ask_one(|_, storage| storage.list(prefix))
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.remove_from_each(|storage| storage.delete(name))
    }

    fn sweep(&self, prefix: &str) -> Result<u32> {
        Ok(self.each(|_, storage| storage.sweep(prefix))?.into_iter().map(|(_, count)| count).sum())
    }

    fn abandon(&self, prefix: &str) -> Result<u64> {
        let count = AtomicU64::new(0);
        self.remove_from_each(|storage| {
            count.fetch_add(storage.abandon(prefix)?, SeqCst);
            Ok(())
        })?;
        Ok(count.into_inner())
    }

    fn remove_prefix(&self, prefix: &str) -> Result<()> {
        self.remove_from_each(|storage| storage.remove_prefix(prefix))
    }

    fn lease(&self, name: &str) -> Result<Option<Box<dyn Lease>>> {
        let taken = self.each(|_, storage| storage.lease(name))?;
        let held: Option<Vec<_>> = taken.into_iter().map(|(index, lease)| Some((index, lease?))).collect();
        Ok(held.map(|parts| Box::new(MirroredLease { mirror: self.clone(), parts }) as Box<dyn Lease>))
    }

    fn is_leased(&self, name: &str) -> Result<bool> {
        Ok(self.each(|_, storage| storage.is_leased(name))?.into_iter().any(|(_, is_leased)| is_leased))
    }

    fn free_bytes(&self) -> Option<u64> {
        let working = self.copies.iter().filter(|copy| copy.failed.get().is_none());
        working.filter_map(|copy| copy.storage.free_bytes()).min()
    }

    fn writer_bytes(&self, uploads: Uploads) -> u64 {
        self.copies.iter().map(|copy| copy.storage.writer_bytes(uploads)).sum()
    }

    fn longest_bytes(&self, largest_bytes: u64) -> u64 {
        self.copies.iter().map(|copy| copy.storage.longest_bytes(largest_bytes)).min().unwrap_or(u64::MAX)
    }
}

impl MirroredStorage {
    fn differs(&self, index: usize, name: &str) -> Error {
        let action = format!("store {name} in {}", self.copies[index].storage.describe());
        Error::new(ErrorKind::Repository, action, "the store does not give back what it was given")
            .hint("the store does not keep what it says it keeps, or something else changes objects of this repository")
    }
}

/// An object on its way to each copy.
struct MirroredObject<W: ?Sized> {
    mirror: MirroredStorage,
    name: String,
    parts: Vec<(usize, Box<W>)>,
}

impl<W: Send + ?Sized> MirroredObject<W> {
    /// Gives bytes to all copies at the same time: the slowest sets the pace, not their sum.
    fn append_to_all(&mut self, append: impl Fn(&mut W) -> Result<()> + Sync) -> Result<()> {
        let written = at_once(self.take_working(), |(index, mut part)| {
            Ok((index, guarded(|| append(part.as_mut())).map(|()| part)))
        })?;
        self.parts = self.mirror.settle(written)?;
        Ok(())
    }

    fn take_working(&mut self) -> Vec<(usize, Box<W>)> {
        self.parts.drain(..).filter(|(index, _)| self.mirror.works(*index)).collect()
    }
}

impl ObjectWriter for MirroredObject<dyn ObjectWriter> {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.append_to_all(|part| part.append(bytes))
    }

    fn finish(mut self: Box<Self>) -> Result<u64> {
        let finished = at_once(self.take_working(), |(index, part)| Ok((index, guarded(|| part.finish()))))?;
        let sizes = self.mirror.settle(finished)?;
        Ok(sizes.first().map_or(0, |(_, size)| *size))
    }
}

impl StagedObject for MirroredObject<dyn StagedObject> {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.append_to_all(|part| part.append(bytes))
    }

    fn commit(mut self: Box<Self>) -> Result<bool> {
        let committed = self.take_working().into_iter().map(|(index, part)| (index, part.commit())).collect();
        let named = self.mirror.settle(committed)?;
        self.mirror.settle_names(&self.name, &named, None)
    }
}

/// An object that was written here: every read is one of each copy, and they agree.
struct MirroredReader {
    mirror: MirroredStorage,
    name: String,
    size_bytes: u64,
    parts: Vec<(usize, Box<dyn ObjectReader>)>,
}

impl ObjectReader for MirroredReader {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let working: Vec<_> = self.parts.iter().filter(|(index, _)| self.mirror.works(*index)).collect();
        let mut other = vec![0u8; if working.len() > 1 { buffer.len() } else { 0 }];
        let mut done = Vec::with_capacity(working.len());
        let mut has_read = false;
        for (index, part) in working {
            let result = if has_read { part.read_at(&mut other, offset) } else { part.read_at(buffer, offset) };
            let is_same = !has_read || other == buffer;
            has_read |= result.is_ok();
            done.push((
                *index,
                result.and_then(|()| is_same.then_some(()).ok_or_else(|| self.mirror.differs(*index, &self.name))),
            ));
        }
        self.mirror.settle(done).map(drop)
    }
}

/// Far more than any document has; larger objects belong to sets, and are the same in each repository.
const DOCUMENT_BYTES_MAX: u64 = 1 << 20;

/// A small object, all of which has been read.
struct Document(Vec<u8>);

impl ObjectReader for Document {
    fn size_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = self.0.get(start..).and_then(|rest| rest.get(..buffer.len())).ok_or_else(|| {
            let action = format!("read {} bytes at byte {offset} of an object", buffer.len());
            Error::new(ErrorKind::Damage, action, format!("it has {} bytes", self.0.len()))
        })?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }
}

/// An object that was there before, read from one copy as long as that works.
struct ReaderOfOne {
    mirror: MirroredStorage,
    name: String,
    size_bytes: u64,
    current: Mutex<(usize, Arc<dyn ObjectReader>)>,
}

impl ObjectReader for ReaderOfOne {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        loop {
            let (index, object) = self.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let Err(error) = object.read_at(buffer, offset) else { return Ok(()) };
            // Damaged or out of reach, this copy is not to be built on; another may be whole.
            let others = |other: &usize| *other != index && self.mirror.works(*other);
            let Some(next) = (0..self.mirror.copies.len()).find(others) else { return Err(error) };
            self.mirror.fail(index, error);
            let storage = self.mirror.copies[next].storage.as_ref();
            let found = storage.open(&self.name)?.filter(|found| found.size_bytes() == self.size_bytes);
            let found = found.ok_or_else(|| {
                let action = format!("go on reading {} in {}", self.name, storage.describe());
                Error::new(ErrorKind::Repository, action, "it is not there as it is in the other repository")
            })?;
            *self.current.lock().unwrap_or_else(PoisonError::into_inner) = (next, Arc::from(found));
        }
    }
}

struct MirroredLease {
    mirror: MirroredStorage,
    parts: Vec<(usize, Box<dyn Lease>)>,
}

impl Lease for MirroredLease {
    fn check_held(&self) -> Result<()> {
        let working = self.parts.iter().filter(|(index, _)| self.mirror.works(*index));
        self.mirror.settle(working.map(|(index, lease)| (*index, lease.check_held())).collect()).map(drop)
    }
}

#[cfg(test)]
#[path = "mirror_tests.rs"]
mod tests;
