//! What a mirror does when one of its stores does not.

use super::*;
use crate::storage::LocalStorage;

/// A store that finds what is there and cannot read it.
struct Unreadable(LocalStorage);

impl ObjectReader for Unreadable {
    fn size_bytes(&self) -> u64 {
        7
    }

    fn read_at(&self, _: &mut [u8], _: u64) -> Result<()> {
        Err(Error::new(ErrorKind::Repository, "read an object", "the store has a bad day"))
    }
}

impl Storage for Unreadable {
    fn describe(&self) -> String {
        self.0.describe()
    }
    fn create(&self, name: &str, largest_bytes: u64) -> Result<Box<dyn ObjectWriter>> {
        self.0.create(name, largest_bytes)
    }
    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        self.0.put_new(name, bytes)
    }
    fn stage(&self, name: &str, largest_bytes: u64) -> Result<Box<dyn StagedObject>> {
        self.0.stage(name, largest_bytes)
    }
    fn make_durable(&self, name: &str) -> Result<()> {
        self.0.make_durable(name)
    }
    fn open(&self, _: &str) -> Result<Option<Box<dyn ObjectReader>>> {
        Ok(Some(Box::new(Unreadable(self.0.clone()))))
    }
    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        self.0.list(prefix)
    }
    fn delete(&self, name: &str) -> Result<()> {
        self.0.delete(name)
    }
    fn sweep(&self, prefix: &str) -> Result<u32> {
        self.0.sweep(prefix)
    }
    fn remove_prefix(&self, prefix: &str) -> Result<()> {
        self.0.remove_prefix(prefix)
    }
    fn lease(&self, name: &str) -> Result<Option<Box<dyn Lease>>> {
        self.0.lease(name)
    }
    fn is_leased(&self, name: &str) -> Result<bool> {
        self.0.is_leased(name)
    }
    fn free_bytes(&self) -> Option<u64> {
        self.0.free_bytes()
    }
}

#[test]
fn a_document_that_one_copy_cannot_read_is_that_of_the_other_whatever_its_length() {
    let directories = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [one, two] = directories.each_ref().map(|directory| LocalStorage::new(directory.path()));
    two.put_new("document.json", b"longer than the other one").unwrap();
    let mirror = MirroredStorage::new(vec![Arc::new(Unreadable(one)), Arc::new(two)]);
    let read = mirror.read_small("document.json", 100).unwrap();
    assert_eq!(read.unwrap(), b"longer than the other one");
    assert!(!mirror.works(0) && mirror.works(1), "the first one is left out");
    assert_eq!(mirror.read_small("document.json", 10).unwrap_err().kind(), ErrorKind::Damage);
}
