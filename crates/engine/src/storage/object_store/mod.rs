//! Object stores: S3 and what speaks it, Google Cloud Storage, Azure Blob.
//!
//! What is created is created only if it is absent, and by the store: two writers never overwrite each other. An answer
//! that is lost is asked for again, and where the store has done what it could not tell, the object's mark says so.

mod addresses;
mod client;
mod credentials;
mod errors;
mod lease;
mod object_lock;
mod parts;
#[cfg(test)]
mod parts_tests;
mod patience;
mod runtime;
mod signed;
mod target;
#[cfg(test)]
mod tests;
mod traffic;
mod transport;
mod unfinished;
mod upload;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use futures::TryStreamExt as _;
use opendal::{ErrorKind as Answer, Metadata, Operator};

use self::object_lock::S3Lock;
pub use self::patience::tell_of_waits;
use self::runtime::{wait, wait_aside};
use self::target::Target;
pub(crate) use self::target::{PART_BYTES_LARGE, PARTS_NEEDED};
use self::upload::Upload;
use super::{Lease, ObjectLock, ObjectReader, ObjectWriter, StagedObject, Storage, Uploads, read_opened, too_long};
use crate::error::{Error, ErrorKind, Result};

/// A bucket or container, or a prefix in it.
pub struct ObjectStore {
    store: Arc<Store>,
    /// None where there is none that we speak.
    object_lock: Option<S3Lock>,
}

struct Store {
    target: Target,
    operator: Operator,
    /// The same with no time-outs and retries of its own yet.
    bare: Operator,
    /// Whether the bucket has shown itself: until then an object that is not found may be a bucket that is not there.
    is_seen: AtomicBool,
    /// Whether the store was seen to refuse a second object of one name.
    refuses_seconds: AtomicBool,
}

impl ObjectStore {
    /// The store that `text` names; nothing is asked of it yet.
    ///
    /// # Errors
    /// `Usage` if the text does not read, `Configuration` if its settings do not fit each other.
    pub fn open(text: &str) -> Result<Self> {
        let target = Target::parse(text)?;
        let bare = client::connect(&target)?;
        let operator = client::layered(&bare, &target, target.timeout);
        let object_lock = S3Lock::of(&target)?;
        let (is_seen, refuses_seconds) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(ObjectStore { store: Arc::new(Store { target, operator, bare, is_seen, refuses_seconds }), object_lock })
    }
}

impl Store {
    fn describe(&self) -> String {
        self.target.to_text()
    }

    /// What sends parts of `part_size` bytes: larger ones have more time.
    fn sender(&self, part_size: u64) -> Operator {
        let timeout = self.target.part_timeout(part_size);
        if timeout == self.target.timeout {
            return self.operator.clone();
        }
        client::layered(&self.bare, &self.target, timeout)
    }

    fn error(&self, verb: &str, name: &str, answer: &opendal::Error) -> Error {
        errors::error(&self.describe(), verb, name, answer)
    }

    fn taken(&self, name: &str) -> Error {
        let action = format!("create {name} in {}", self.describe());
        Error::new(ErrorKind::Repository, action, "an object of that name is there; objects are never overwritten")
    }

    /// Names directly below `prefix`, those of prefixes with a `/` behind them.
    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let path = format!("{}/", prefix.trim_end_matches('/'));
        let entries = match wait(self.operator.list(&path))? {
            Ok(entries) => entries,
            Err(answer) if answer.kind() == Answer::NotFound => {
                self.check_bucket()?;
                Vec::new()
            }
            Err(answer) => return Err(self.error("list", if prefix.is_empty() { "objects" } else { prefix }, &answer)),
        };
        self.is_seen.store(true, SeqCst);
        let own = path.trim_start_matches('/');
        Ok(entries
            .iter()
            .filter_map(|entry| entry.path().strip_prefix(own))
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect())
    }

    /// Looks at the bucket itself, as something in it was not found: without the bucket nothing can be said to be absent.
    fn check_bucket(&self) -> Result<()> {
        if !self.is_seen.load(SeqCst) {
            let first = opendal::options::ListOptions { limit: Some(1), ..Default::default() };
            wait(self.operator.list_options("/", first))?.map_err(|answer| self.error("list", "objects", &answer))?;
            self.is_seen.store(true, SeqCst);
        }
        Ok(())
    }

    fn delete(&self, name: &str) -> Result<()> {
        wait(self.operator.delete(name))?.map_err(|answer| self.error("delete", name, &answer))
    }

    /// Copies what the store gives of `range` as it comes, while it is in the processor's caches; collected before, all of an answer
    /// would lie in memory of its own. Gives how many bytes came, of which no more were taken than fit.
    async fn fill(&self, name: &str, range: Range<u64>, buffer: &mut [u8]) -> opendal::Result<usize> {
        let mut answer = self.operator.reader(name).await?.into_stream(range).await?;
        let mut given = 0;
        while let Some(bytes) = answer.try_next().await? {
            for piece in bytes {
                let end = given + piece.len();
                match buffer.get_mut(given..end) {
                    Some(room) => room.copy_from_slice(&piece),
                    None => return Ok(end),
                }
                given = end;
            }
        }
        Ok(given)
    }

    /// All of an object in one request; of one that is longer than `most_bytes`, some more than those.
    async fn whole(&self, name: &str, most_bytes: u64) -> opendal::Result<Vec<u8>> {
        let mut answer = self.operator.reader(name).await?.into_stream(..).await?;
        let mut bytes = Vec::new();
        while let Some(pieces) = answer.try_next().await? {
            pieces.for_each(|piece| bytes.extend_from_slice(&piece));
            if bytes.len() as u64 > most_bytes {
                break;
            }
        }
        Ok(bytes)
    }

    fn stat(&self, name: &str) -> Result<Option<Metadata>> {
        let found = wait(is_there(&self.operator, name))?.map_err(|answer| self.error("look at", name, &answer))?;
        if found.is_none() {
            self.check_bucket()?;
        }
        Ok(found)
    }
}

/// What the store knows of an object; None if it is absent.
async fn is_there(operator: &Operator, name: &str) -> opendal::Result<Option<Metadata>> {
    match operator.stat(name).await {
        Ok(found) => Ok(Some(found)),
        Err(answer) if answer.kind() == Answer::NotFound => Ok(None),
        Err(answer) => Err(answer),
    }
}

impl Storage for ObjectStore {
    fn describe(&self) -> String {
        self.store.describe()
    }

    fn places(&self) -> Vec<String> {
        self.store.target.places()
    }

    fn create(&self, name: &str, largest_bytes: u64) -> Result<Box<dyn ObjectWriter>> {
        // Told before hours of writing; the store looks again when the object is committed.
        if self.store.stat(name)?.is_some() {
            return Err(self.store.taken(name));
        }
        Ok(Box::new(Upload::begin(&self.store, name, largest_bytes)?))
    }

    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        upload::put(&self.store, name, bytes)
    }

    fn stage(&self, name: &str, largest_bytes: u64) -> Result<Box<dyn StagedObject>> {
        Ok(Box::new(Upload::begin(&self.store, name, largest_bytes)?))
    }

    fn make_durable(&self, name: &str) -> Result<()> {
        // What a store shows is durable.
        self.store.stat(name).map(drop)
    }

    fn open(&self, name: &str) -> Result<Option<Box<dyn ObjectReader>>> {
        let found = match self.store.stat(name)? {
            Some(found) => Some((name.to_owned(), found)),
            None => lease::words(&self.store, name)?,
        };
        let reader = |(name, found): (String, Metadata)| {
            let size_bytes = found.content_length();
            Box::new(StoredObject { store: Arc::clone(&self.store), name, size_bytes }) as Box<dyn ObjectReader>
        };
        Ok(found.map(reader))
    }

    fn read_small(&self, name: &str, most_bytes: u64) -> Result<Option<Vec<u8>>> {
        if lease::may_be(name) {
            return read_opened(self, name, most_bytes);
        }
        match wait(self.store.whole(name, most_bytes))? {
            Ok(bytes) if bytes.len() as u64 > most_bytes => Err(too_long(self, name, most_bytes)),
            Ok(bytes) => Ok(Some(bytes)),
            Err(answer) if answer.kind() == Answer::NotFound => self.store.check_bucket().map(|()| None),
            // The library wants to know how long a whole answer is, which some proxies do not tell; of a part they do.
            Err(answer) if answer.kind() == Answer::Unexpected && !answer.is_persistent() => {
                read_opened(self, name, most_bytes)
            }
            Err(answer) => Err(self.store.error("read", name, &answer)),
        }
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let mut names: Vec<String> =
            self.store.list(prefix)?.iter().map(|name| lease::shown(name).to_owned()).collect();
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    fn delete(&self, name: &str) -> Result<()> {
        if lease::may_be(name) {
            return lease::delete(&self.store, name);
        }
        self.store.delete(name)
    }

    fn sweep(&self, _prefix: &str) -> Result<u32> {
        // Uploads that were never finished have no names, and it cannot be told whose they are.
        Ok(0)
    }

    fn abandon(&self, prefix: &str) -> Result<u64> {
        wait(unfinished::abort_below(&self.store.target, prefix))?
    }

    fn remove_prefix(&self, prefix: &str) -> Result<()> {
        let left = self.list(prefix)?;
        match left.first() {
            None => Ok(()),
            Some(first) => {
                let action = format!("remove {prefix} in {}", self.describe());
                Err(Error::new(ErrorKind::Repository, action, format!("{first} is still there")))
            }
        }
    }

    fn lease(&self, name: &str) -> Result<Option<Box<dyn Lease>>> {
        lease::take(&self.store, name)
    }

    fn is_leased(&self, name: &str) -> Result<bool> {
        lease::is_held(&self.store, name)
    }

    fn free_bytes(&self) -> Option<u64> {
        None
    }

    fn writer_bytes(&self, uploads: Uploads) -> u64 {
        self.store.target.upload_bytes(uploads)
    }

    fn longest_bytes(&self, largest_bytes: u64) -> u64 {
        self.store.target.longest_bytes(largest_bytes)
    }

    fn object_lock(&self) -> Option<&dyn ObjectLock> {
        self.object_lock.as_ref().map(|lock| lock as &dyn ObjectLock)
    }
}

struct StoredObject {
    store: Arc<Store>,
    name: String,
    size_bytes: u64,
}

impl ObjectReader for StoredObject {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let length = buffer.len();
        let end = offset.saturating_add(length as u64);
        let action = || format!("read {length} bytes at {offset} of {} in {}", self.name, self.store.describe());
        if end > self.size_bytes {
            let cause = format!("it ends after {} bytes: it was cut short", self.size_bytes);
            return Err(Error::new(ErrorKind::Damage, action(), cause));
        }
        if buffer.is_empty() {
            return Ok(());
        }
        let given = wait_aside(self.store.fill(&self.name, offset..end, buffer))?;
        let given = given.map_err(|answer| self.store.error("read", &self.name, &answer))?;
        if given != length {
            let cause = format!("the store gave {given} bytes");
            return Err(Error::new(ErrorKind::Repository, action(), cause));
        }
        Ok(())
    }
}
