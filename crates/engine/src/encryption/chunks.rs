//! Chunks of one object: sealed and opened with the object's own key, each at its place.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf;

use super::keys::DataKey;
use crate::error::{Error, ErrorKind, Result};
use crate::format::encrypted::{CHUNK_BYTES, EncryptedHeader, TAG_BYTES};

const WHAT: &[u8] = b"pagehaul encrypted object 1";

/// The key of one object. It is used for nothing else, so a chunk's number is a nonce that is never used twice.
pub(super) struct ObjectKey(LessSafeKey);

impl ObjectKey {
    /// The key of the object with this header, all its bytes.
    ///
    /// # Errors
    /// `Bug` if the library refuses.
    pub(super) fn derive(data_key: &DataKey, salt: &[u8; 32], header: &[u8]) -> Result<Self> {
        let pseudo_random_key = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(data_key.bytes());
        let refused = |_| Error::new(ErrorKind::Bug, "derive the key of an object", "the library refuses");
        let parts = [WHAT, EncryptedHeader::bound_part(header)];
        let key = pseudo_random_key.expand(&parts, &AES_256_GCM).map_err(refused)?;
        Ok(ObjectKey(LessSafeKey::new(UnboundKey::from(key))))
    }

    fn nonce(number: u64, is_last: bool) -> Nonce {
        let mut nonce = [0u8; NONCE_LEN];
        nonce[..8].copy_from_slice(&number.to_be_bytes());
        nonce[8] = u8::from(is_last);
        Nonce::assume_unique_for_key(nonce)
    }

    /// Seals `chunk` in place; its tag is added.
    fn seal(&self, number: u64, is_last: bool, chunk: &mut Vec<u8>) -> Result<()> {
        let refused = |_| Error::new(ErrorKind::Bug, "encrypt a chunk", "the library refuses");
        self.0.seal_in_place_append_tag(Self::nonce(number, is_last), Aad::empty(), chunk).map_err(refused)
    }

    /// Opens `chunk` in place and gives its content; None if it is not what was sealed at this place.
    pub(super) fn open<'b>(&self, number: u64, is_last: bool, chunk: &'b mut [u8]) -> Option<&'b mut [u8]> {
        self.0.open_in_place(Self::nonce(number, is_last), Aad::empty(), chunk).ok()
    }
}

/// Cuts what is written into chunks and seals them.
pub(super) struct Sealer {
    key: ObjectKey,
    /// What is not sealed yet: a chunk is held back until it is known whether another follows.
    chunk: Vec<u8>,
    number: u64,
    content_bytes: u64,
}

impl Sealer {
    pub(super) fn new(key: ObjectKey) -> Self {
        Sealer { key, chunk: Vec::with_capacity(CHUNK_BYTES + TAG_BYTES), number: 0, content_bytes: 0 }
    }

    /// Bytes of content so far.
    pub(super) fn content_bytes(&self) -> u64 {
        self.content_bytes
    }

    /// Takes content; sealed chunks go to `out`.
    pub(super) fn append(&mut self, mut bytes: &[u8], out: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.content_bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            if self.chunk.len() == CHUNK_BYTES {
                self.emit(false, out)?;
            }
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK_BYTES - self.chunk.len()));
            self.chunk.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    /// Seals the last chunk; gives how many bytes of content there were.
    pub(super) fn finish(&mut self, out: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<u64> {
        self.emit(true, out)?;
        Ok(self.content_bytes)
    }

    fn emit(&mut self, is_last: bool, out: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.key.seal(self.number, is_last, &mut self.chunk)?;
        self.number += 1;
        out(&self.chunk)?;
        self.chunk.clear();
        Ok(())
    }
}
