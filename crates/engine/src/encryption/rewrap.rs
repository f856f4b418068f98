//! Data keys wrapped for other recipients, without a change to what they encrypt.

use std::collections::BTreeSet;

use super::keys::Keys;
use super::object::read_header;
use crate::error::Result;
use crate::format::encrypted::EncryptedHeader;
use crate::storage::{ObjectReader, Storage};
use crate::terms::KeyId;

/// Wraps each data key that it meets once.
pub struct Rewrapping<'a> {
    keys: &'a Keys,
    home: &'a dyn Storage,
    done: BTreeSet<KeyId>,
}

impl<'a> Rewrapping<'a> {
    /// With the recipients and identities of `keys`, into `home`, the repository's own storage.
    pub fn new(keys: &'a Keys, home: &'a dyn Storage) -> Self {
        Rewrapping { keys, home, done: BTreeSet::new() }
    }

    /// Wraps the key of an object as it lies in the store; nothing for one that is not encrypted.
    ///
    /// # Errors
    /// `Configuration` if no key at hand opens it; `Usage` without recipients; those of the storage.
    pub fn object(&mut self, object: &dyn ObjectReader) -> Result<()> {
        read_header(object)?.map_or(Ok(()), |header| self.wrap(&header))
    }

    /// The same of an object that is at hand.
    ///
    /// # Errors
    /// As [`Rewrapping::object`].
    pub fn bytes(&mut self, object: &[u8]) -> Result<()> {
        let header = EncryptedHeader::announced_bytes(object)?.and_then(|bytes| object.get(..bytes));
        header.map_or(Ok(()), |header| self.wrap(&EncryptedHeader::from_bytes(header)?))
    }

    fn wrap(&mut self, header: &EncryptedHeader) -> Result<()> {
        if !self.done.contains(&header.key_id) {
            self.keys.rewrap(header, self.home)?;
            self.done.insert(header.key_id);
        }
        Ok(())
    }

    /// How many keys were wrapped.
    pub fn key_count(&self) -> u64 {
        self.done.len() as u64
    }
}
