//! The store that keeps nothing: what a backup costs without its target, the read-side baseline.

use super::{Lease, ObjectReader, ObjectWriter, StagedObject, Storage};
use crate::error::Result;

/// Discards every object; nothing can be restored from it.
#[derive(Debug, Default)]
pub struct NulStorage;

struct NulWriter(u64);
struct NulLease;

impl Lease for NulLease {}

impl ObjectWriter for NulWriter {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.0 += bytes.len() as u64;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<u64> {
        Ok(self.0)
    }
}

impl StagedObject for NulWriter {
    fn append(&mut self, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<bool> {
        Ok(true)
    }
}

impl Storage for NulStorage {
    fn describe(&self) -> String {
        "NUL".to_owned()
    }

    fn create(&self, _name: &str, _largest_bytes: u64) -> Result<Box<dyn ObjectWriter>> {
        Ok(Box::new(NulWriter(0)))
    }

    fn put_new(&self, _name: &str, _bytes: &[u8]) -> Result<bool> {
        Ok(true)
    }

    fn stage(&self, _name: &str, _largest_bytes: u64) -> Result<Box<dyn StagedObject>> {
        Ok(Box::new(NulWriter(0)))
    }

    fn make_durable(&self, _name: &str) -> Result<()> {
        Ok(())
    }

    fn open(&self, _name: &str) -> Result<Option<Box<dyn ObjectReader>>> {
        Ok(None)
    }

    fn list(&self, _prefix: &str) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn delete(&self, _name: &str) -> Result<()> {
        Ok(())
    }

    fn sweep(&self, _prefix: &str) -> Result<u32> {
        Ok(0)
    }

    fn remove_prefix(&self, _prefix: &str) -> Result<()> {
        Ok(())
    }

    fn lease(&self, _name: &str) -> Result<Option<Box<dyn Lease>>> {
        Ok(Some(Box::new(NulLease)))
    }

    fn is_leased(&self, _name: &str) -> Result<bool> {
        Ok(false)
    }

    fn free_bytes(&self) -> Option<u64> {
        None
    }

    fn discards(&self) -> bool {
        true
    }
}
