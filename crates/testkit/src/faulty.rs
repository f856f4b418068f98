//! A store whose n-th operation fails or comes after something else, or that has no room after so many bytes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::storage::{Lease, ObjectReader, ObjectWriter, StagedObject, Storage};

/// What comes before an operation.
struct Call(Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a call")
    }
}

/// When to fail.
#[derive(Debug, Default)]
pub struct Faults {
    operations: AtomicU64,
    written_bytes: AtomicU64,
    fail_at_operation: AtomicU64,
    fail_for_ever: AtomicBool,
    loses_answers: AtomicBool,
    room_bytes: AtomicU64,
    call: Mutex<Option<(u64, Call)>>,
}

impl Faults {
    /// Nothing fails.
    pub fn none() -> Arc<Self> {
        Arc::new(Faults {
            fail_at_operation: AtomicU64::new(u64::MAX),
            room_bytes: AtomicU64::new(u64::MAX),
            ..Faults::default()
        })
    }

    /// The operation with this number, from 0, fails.
    pub fn at_operation(number: u64) -> Arc<Self> {
        let faults = Self::none();
        faults.fail_at_operation.store(number, SeqCst);
        faults
    }

    /// The operation with this number fails, and all after it: the store is gone.
    pub fn from_operation(number: u64) -> Arc<Self> {
        let faults = Self::at_operation(number);
        faults.fail_for_ever.store(true, SeqCst);
        faults
    }

    /// As [`Faults::at_operation`], but an object that is put in one step is there: only the answer is lost.
    pub fn lost_answer_at(number: u64) -> Arc<Self> {
        let faults = Self::at_operation(number);
        faults.loses_answers.store(true, SeqCst);
        faults
    }

    /// There is room for so many bytes.
    pub fn room(bytes: u64) -> Arc<Self> {
        let faults = Self::none();
        faults.room_bytes.store(bytes, SeqCst);
        faults
    }

    /// The next operation fails, and all after it.
    pub fn fail_from_now(&self) {
        self.fail_for_ever.store(true, SeqCst);
        self.fail_at_operation.store(self.operations(), SeqCst);
    }

    /// There is no room for anything more.
    pub fn full_from_now(&self) {
        self.room_bytes.store(self.written_bytes(), SeqCst);
    }

    /// Before the operation with this number, from 0, `call` is called.
    pub fn call_at(&self, number: u64, call: impl FnOnce() + Send + 'static) {
        *self.call.lock().unwrap() = Some((number, Call(Box::new(call))));
    }

    /// Nothing is called any more.
    pub fn forget_call(&self) {
        self.call.lock().unwrap().take();
    }

    /// How many operations there were.
    pub fn operations(&self) -> u64 {
        self.operations.load(SeqCst)
    }

    /// How many bytes were written.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes.load(SeqCst)
    }

    fn step(&self, what: &str) -> Result<()> {
        let call = self.call.lock().unwrap().take_if(|(at, _)| *at == self.operations.load(SeqCst));
        if let Some((_, call)) = call {
            (call.0)();
        }
        let (number, fails) = (self.operations.fetch_add(1, SeqCst), self.fail_at_operation.load(SeqCst));
        if number == fails || (number > fails && self.fail_for_ever.load(SeqCst)) {
            return Err(Error::new(ErrorKind::Repository, what, "injected I/O error"));
        }
        Ok(())
    }

    fn write(&self, what: &str, bytes: u64) -> Result<()> {
        self.step(what)?;
        if self.written_bytes.fetch_add(bytes, SeqCst) + bytes > self.room_bytes.load(SeqCst) {
            return Err(Error::new(ErrorKind::Repository, what, "No space left on device (os error 28)"));
        }
        Ok(())
    }
}

/// A store over another one, with faults.
pub struct FaultyStorage<S> {
    inner: S,
    faults: Arc<Faults>,
}

impl<S> FaultyStorage<S> {
    /// `inner` with `faults`.
    pub fn new(inner: S, faults: Arc<Faults>) -> Self {
        FaultyStorage { inner, faults }
    }
}

struct FaultyWriter {
    inner: Box<dyn ObjectWriter>,
    faults: Arc<Faults>,
}

impl ObjectWriter for FaultyWriter {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.faults.write("append", bytes.len() as u64)?;
        self.inner.append(bytes)
    }

    fn finish(self: Box<Self>) -> Result<u64> {
        self.faults.step("finish")?;
        self.inner.finish()
    }
}

struct FaultyStaged {
    inner: Box<dyn StagedObject>,
    faults: Arc<Faults>,
}

impl StagedObject for FaultyStaged {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.faults.write("append", bytes.len() as u64)?;
        self.inner.append(bytes)
    }

    fn commit(self: Box<Self>) -> Result<bool> {
        self.faults.step("commit")?;
        self.inner.commit()
    }
}

impl<S: Storage> Storage for FaultyStorage<S> {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn create(&self, name: &str, largest_bytes: u64) -> Result<Box<dyn ObjectWriter>> {
        self.faults.step(name)?;
        Ok(Box::new(FaultyWriter { inner: self.inner.create(name, largest_bytes)?, faults: Arc::clone(&self.faults) }))
    }

    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        let told = self.faults.write(name, bytes.len() as u64);
        if self.faults.loses_answers.load(SeqCst) {
            let is_new = self.inner.put_new(name, bytes)?;
            return told.map(|()| is_new);
        }
        told?;
        self.inner.put_new(name, bytes)
    }

    fn stage(&self, name: &str, largest_bytes: u64) -> Result<Box<dyn StagedObject>> {
        self.faults.step(name)?;
        Ok(Box::new(FaultyStaged { inner: self.inner.stage(name, largest_bytes)?, faults: Arc::clone(&self.faults) }))
    }

    fn make_durable(&self, name: &str) -> Result<()> {
        self.faults.step(name)?;
        self.inner.make_durable(name)
    }

    fn open(&self, name: &str) -> Result<Option<Box<dyn ObjectReader>>> {
        self.faults.step(name)?;
        self.inner.open(name)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        self.faults.step(prefix)?;
        self.inner.list(prefix)
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.faults.step(name)?;
        self.inner.delete(name)
    }

    fn sweep(&self, prefix: &str) -> Result<u32> {
        self.faults.step(prefix)?;
        self.inner.sweep(prefix)
    }

    fn remove_prefix(&self, prefix: &str) -> Result<()> {
        self.faults.step(prefix)?;
        self.inner.remove_prefix(prefix)
    }

    fn lease(&self, name: &str) -> Result<Option<Box<dyn Lease>>> {
        self.faults.step(name)?;
        self.inner.lease(name)
    }

    fn is_leased(&self, name: &str) -> Result<bool> {
        self.faults.step(name)?;
        self.inner.is_leased(name)
    }

    fn free_bytes(&self) -> Option<u64> {
        self.inner.free_bytes()
    }
}
