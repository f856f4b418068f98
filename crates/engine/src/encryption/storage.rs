//! A store whose large objects are encrypted: those that are begun and written, not the small ones that are put at once.

use std::sync::Arc;

use super::keys::Keys;
use super::object::{EncryptedWriter, MaybeEncrypted, begin};
use crate::error::{Error, ErrorKind, Result};
use crate::format::encrypted::EncryptedEnd;
use crate::storage::{Lease, ObjectLock, ObjectReader, ObjectWriter, StagedObject, Storage, Uploads, read_opened};

/// Over any store, with the keys of a process. Without recipients it writes as the store does; without keys it reads what
/// is not encrypted.
pub struct EncryptedStorage {
    inner: Arc<dyn Storage>,
    keys: Arc<Keys>,
    home: Arc<dyn Storage>,
}

impl EncryptedStorage {
    /// Over `inner`, a place of the repository whose own storage is `home`.
    pub fn new(inner: Arc<dyn Storage>, keys: Arc<Keys>, home: Arc<dyn Storage>) -> Self {
        EncryptedStorage { inner, keys, home }
    }
}

/// Documents are never encrypted as objects; what is private in them is encrypted inside.
fn is_document(name: &str) -> bool {
    name.ends_with(".json") || name.ends_with(".age")
}

impl Storage for EncryptedStorage {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn places(&self) -> Vec<String> {
        self.inner.places()
    }

    fn create(&self, name: &str, largest_bytes: u64) -> Result<Box<dyn ObjectWriter>> {
        let begun = begin(&self.keys, name)?;
        let mut inner = self.inner.create(name, largest_bytes)?;
        let Some((sealer, header)) = begun else { return Ok(inner) };
        inner.append(&header)?;
        Ok(Box::new(EncryptedWriter { inner, sealer, end: EncryptedEnd::default() }))
    }

    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        self.inner.put_new(name, bytes)
    }

    fn stage(&self, name: &str, largest_bytes: u64) -> Result<Box<dyn StagedObject>> {
        let begun = begin(&self.keys, name)?;
        let mut inner = self.inner.stage(name, largest_bytes)?;
        let Some((sealer, header)) = begun else { return Ok(inner) };
        inner.append(&header)?;
        Ok(Box::new(EncryptedWriter { inner, sealer, end: EncryptedEnd::default() }))
    }

    fn make_durable(&self, name: &str) -> Result<()> {
        self.inner.make_durable(name)
    }

    fn open(&self, name: &str) -> Result<Option<Box<dyn ObjectReader>>> {
        let Some(inner) = self.inner.open(name)? else { return Ok(None) };
        if is_document(name) {
            return Ok(Some(inner));
        }
        let object = MaybeEncrypted::open(inner, name, &self.keys, &self.home)?;
        // Histories from before encryption are never pushed again, and say only which segments follow which.
        let is_history = name.ends_with(".history.phw");
        if self.keys.require_encryption() && !object.is_encrypted() && !is_history {
            let cause = "it is not encrypted, and only what is encrypted may be read: somebody may have put it there";
            return Err(Error::new(ErrorKind::Damage, format!("open {name} in {}", self.describe()), cause)
                .hint("if it is from the time before encryption, leave --require-encryption out"));
        }
        Ok(Some(Box::new(object)))
    }

    fn read_small(&self, name: &str, most_bytes: u64) -> Result<Option<Vec<u8>>> {
        if is_document(name) {
            return self.inner.read_small(name, most_bytes);
        }
        read_opened(self, name, most_bytes)
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

    fn abandon(&self, prefix: &str) -> Result<u64> {
        self.inner.abandon(prefix)
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

    fn discards(&self) -> bool {
        self.inner.discards()
    }

    fn object_lock(&self) -> Option<&dyn ObjectLock> {
        self.inner.object_lock()
    }

    fn writer_bytes(&self, uploads: Uploads) -> u64 {
        self.inner.writer_bytes(uploads)
    }

    fn longest_bytes(&self, largest_bytes: u64) -> u64 {
        self.inner.longest_bytes(largest_bytes)
    }
}
