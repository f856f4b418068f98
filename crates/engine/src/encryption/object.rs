//! Objects on their way to and from a store.

use std::sync::{Arc, OnceLock, PoisonError};

use super::chunks::{ObjectKey, Sealer};
use super::keys::Keys;
use crate::error::{Error, ErrorKind, Result};
use crate::format::encrypted::{
    CHUNK_BYTES, ENCRYPTED_END_BYTES, EncryptedEnd, EncryptedHeader, SHOWN_BYTES_MAX, TAG_BYTES, content_bytes,
};
use crate::storage::{Contents, ObjectReader, ObjectWriter, StagedObject, Storage, StoredBytes};
use crate::terms::KeyId;

/// Bytes that are asked for when an object is opened: the header of one with a few recipients.
const FIRST_BYTES: usize = 4096;
/// Chunks that are read and opened at once.
const PIECE_CHUNKS: usize = 24;
/// Memory of one reader of an encrypted object.
pub const ENCRYPTED_READER_BYTES: u64 = (PIECE_CHUNKS * (CHUNK_BYTES + TAG_BYTES)) as u64;

/// A sealer for the object `name`, and its header; None if nothing is to be encrypted.
pub(super) fn begin(keys: &Keys, name: &str) -> Result<Option<(Sealer, Vec<u8>)>> {
    let Some(own) = keys.own()? else { return Ok(None) };
    let mut salt = [0u8; 32];
    getrandom::fill(&mut salt).map_err(|cause| Error::new(ErrorKind::Configuration, "make a salt", cause))?;
    let header = EncryptedHeader { salt, key_id: own.id, name: name.to_owned(), wrapped_key: own.wrapped.clone() };
    let bytes = header.to_bytes()?;
    Ok(Some((Sealer::new(ObjectKey::derive(&own.key, &salt, &bytes)?), bytes)))
}

/// An object that is encrypted as it is written.
pub(super) struct EncryptedWriter<W> {
    pub(super) inner: W,
    pub(super) sealer: Sealer,
    pub(super) end: EncryptedEnd,
}

impl ObjectWriter for EncryptedWriter<Box<dyn ObjectWriter>> {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.sealer.append(bytes, &mut |sealed| self.inner.append(sealed))
    }

    fn finish(mut self: Box<Self>) -> Result<u64> {
        let content_bytes = self.sealer.finish(&mut |sealed| self.inner.append(sealed))?;
        self.inner.append(&self.end.to_bytes())?;
        self.inner.finish()?;
        Ok(content_bytes)
    }
}

impl StagedObject for EncryptedWriter<Box<dyn StagedObject>> {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.sealer.append(bytes, &mut |sealed| self.inner.append(sealed))
    }

    fn append_shown(&mut self, bytes: &[u8]) -> Result<()> {
        self.end.show(self.sealer.content_bytes(), bytes);
        self.append(bytes)
    }

    fn commit(mut self: Box<Self>) -> Result<bool> {
        self.sealer.finish(&mut |sealed| self.inner.append(sealed))?;
        self.inner.append(&self.end.to_bytes())?;
        self.inner.commit()
    }
}

/// What an encrypted object's header and end say.
struct Sealed {
    header: EncryptedHeader,
    header_bytes: Vec<u8>,
    content_bytes: u64,
    /// Bytes of the end; 0 if it does not read, as when the object was cut.
    end_bytes: u64,
    key: OnceLock<ObjectKey>,
    shown: OnceLock<EncryptedEnd>,
}

impl Sealed {
    /// From a header; `name` is what the object was asked for as.
    fn new(name: &str, header_bytes: Vec<u8>, object_bytes: u64, end_bytes: u64) -> Result<Self> {
        let header = EncryptedHeader::from_bytes(&header_bytes)?;
        if header.name != name && !header.name.ends_with(&format!("/{name}")) {
            let cause = format!("it was encrypted as {}: objects were swapped or renamed", header.name);
            return Err(Error::new(ErrorKind::Damage, format!("decrypt {name}"), cause));
        }
        let content_bytes = content_bytes(object_bytes.saturating_sub(header_bytes.len() as u64 + end_bytes));
        let (key, shown) = (OnceLock::new(), OnceLock::new());
        Ok(Sealed { header, header_bytes, content_bytes, end_bytes, key, shown })
    }

    fn chunk_count(&self) -> u64 {
        self.content_bytes.div_ceil(CHUNK_BYTES as u64).max(1)
    }

    /// The object's key; asked for when the first byte is read, so that who has no key can still see sizes.
    fn key(&self, keys: &Keys, home: &dyn Storage) -> Result<&ObjectKey> {
        if self.key.get().is_none() {
            let data_key = keys.unwrap(&self.header, home)?;
            drop(self.key.set(ObjectKey::derive(&data_key, &self.header.salt, &self.header_bytes)?));
        }
        let lost = || Error::new(ErrorKind::Bug, "keep the key of an object", "it is not there");
        self.key.get().ok_or_else(lost)
    }

    /// Opens a chunk in place.
    fn open<'b>(&self, key: &ObjectKey, number: u64, sealed: &'b mut [u8]) -> Result<&'b mut [u8]> {
        key.open(number, number + 1 == self.chunk_count(), sealed).ok_or_else(|| {
            let at = self.header_bytes.len() as u64 + number * (CHUNK_BYTES + TAG_BYTES) as u64;
            let cause = format!("chunk {number} (byte {at} of the object) is damaged, or was put there from elsewhere");
            Error::new(ErrorKind::Damage, format!("decrypt {}", self.header.name), cause)
        })
    }
}

/// An object that may be encrypted: its first bytes tell.
pub(super) struct MaybeEncrypted {
    inner: Arc<dyn ObjectReader>,
    keys: Arc<Keys>,
    /// The repository's own storage, where keys that were wrapped later are.
    home: Arc<dyn Storage>,
    /// None if it is not encrypted.
    sealed: Option<Arc<Sealed>>,
    /// The beginning of one that is not encrypted, so that looking costs no request of its own.
    first: Vec<u8>,
}

impl MaybeEncrypted {
    /// An object of that name.
    ///
    /// # Errors
    /// `Damage` if its header does not read or it is of another name; those of the store.
    pub(super) fn open(
        inner: Box<dyn ObjectReader>,
        name: &str,
        keys: &Arc<Keys>,
        home: &Arc<dyn Storage>,
    ) -> Result<Self> {
        let mut first = vec![0u8; inner.size_bytes().min(FIRST_BYTES as u64) as usize];
        inner.read_at(&mut first, 0)?;
        let sealed = match whole_header(inner.as_ref(), &mut first)? {
            None => None,
            Some(header) => {
                let end_bytes = end_bytes(inner.as_ref())?;
                Some(Arc::new(Sealed::new(name, header, inner.size_bytes(), end_bytes)?))
            }
        };
        let (keys, home) = (Arc::clone(keys), Arc::clone(home));
        Ok(MaybeEncrypted { inner: inner.into(), keys, home, sealed, first })
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.sealed.is_some()
    }

    fn read_sealed(&self, sealed: &Sealed, buffer: &mut [u8], offset: u64) -> Result<()> {
        let name = &sealed.header.name;
        let end = offset.checked_add(buffer.len() as u64).filter(|end| *end <= sealed.content_bytes);
        let Some(end) = end else {
            let cause = format!("it ends at byte {}", sealed.content_bytes);
            return Err(Error::new(ErrorKind::Damage, format!("read {name} from byte {offset}"), cause));
        };
        let key = match sealed.key(&self.keys, self.home.as_ref()) {
            Ok(key) => key,
            Err(locked) if locked.kind() == ErrorKind::Configuration => {
                return if self.read_shown(sealed, buffer, offset)? { Ok(()) } else { Err(locked) };
            }
            Err(error) => return Err(error),
        };
        let chunk = CHUNK_BYTES as u64;
        let mut scratch = self.keys.take_scratch(buffer.len().min(PIECE_CHUNKS * CHUNK_BYTES));
        let mut done = offset;
        // That there is nothing has to be proven, too.
        let mut result = match sealed.content_bytes {
            0 => self.read_chunks((sealed, key), (0, 0), &mut scratch, &mut [], 0),
            _ => Ok(()),
        };
        while done < end && result.is_ok() {
            let first = done / chunk;
            let last = ((end - 1) / chunk).min(first + PIECE_CHUNKS as u64 - 1);
            let to = end.min((last + 1) * chunk);
            let part = &mut buffer[(done - offset) as usize..(to - offset) as usize];
            result = self.read_chunks((sealed, key), (first, last), &mut scratch, part, done);
            done = to;
        }
        self.keys.scratch.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
        result
    }

    /// Reads some chunks and puts what is wanted of them, from `offset` on, into `buffer`.
    fn read_chunks(
        &self,
        (sealed, key): (&Sealed, &ObjectKey),
        (first, last): (u64, u64),
        scratch: &mut Vec<u8>,
        buffer: &mut [u8],
        offset: u64,
    ) -> Result<()> {
        let whole = (CHUNK_BYTES + TAG_BYTES) as u64;
        let start = sealed.header_bytes.len() as u64 + first * whole;
        let end = (start + (last + 1 - first) * whole).min(self.inner.size_bytes().saturating_sub(sealed.end_bytes));
        scratch.resize(end.saturating_sub(start).max(1) as usize, 0);
        self.inner.read_at(scratch, start)?;
        let mut into = buffer;
        for (number, chunk) in (first..=last).zip(scratch.chunks_mut(whole as usize)) {
            let content = sealed.open(key, number, chunk)?;
            let from = offset.saturating_sub(number * CHUNK_BYTES as u64) as usize;
            let wanted = content.get(from..).unwrap_or_default();
            let (now, later) = into.split_at_mut(wanted.len().min(into.len()));
            now.copy_from_slice(&wanted[..now.len()]);
            into = later;
        }
        Ok(())
    }

    /// Fills `buffer` from what is shown to everybody; false if that is not shown.
    fn read_shown(&self, sealed: &Sealed, buffer: &mut [u8], offset: u64) -> Result<bool> {
        if sealed.shown.get().is_none() {
            let mut bytes = vec![0u8; sealed.end_bytes as usize];
            self.inner.read_at(&mut bytes, self.inner.size_bytes() - sealed.end_bytes)?;
            drop(sealed.shown.set(EncryptedEnd::from_bytes(&bytes)?));
        }
        let shown = sealed.shown.get().and_then(|end| end.bytes_at(offset, buffer.len()));
        shown.inspect(|shown| buffer.copy_from_slice(shown));
        Ok(shown.is_some())
    }
}

/// The header of an encrypted object whose beginning is `first`; None if it is not encrypted.
fn whole_header(object: &dyn ObjectReader, first: &mut Vec<u8>) -> Result<Option<Vec<u8>>> {
    let Some(header_bytes) = EncryptedHeader::announced_bytes(first)? else { return Ok(None) };
    let had = first.len().min(header_bytes);
    first.resize(header_bytes, 0);
    object.read_at(&mut first[had..], had as u64)?;
    Ok(Some(std::mem::take(first)))
}

/// The header of an object as it lies in a store; None if it is not encrypted.
///
/// # Errors
/// `Damage` if it does not read; those of the store.
pub(super) fn read_header(object: &dyn ObjectReader) -> Result<Option<EncryptedHeader>> {
    let mut first = vec![0u8; object.size_bytes().min(FIRST_BYTES as u64) as usize];
    object.read_at(&mut first, 0)?;
    whole_header(object, &mut first)?.map(|header| EncryptedHeader::from_bytes(&header)).transpose()
}

/// Bytes of an object's end; 0 if it does not read.
fn end_bytes(object: &dyn ObjectReader) -> Result<u64> {
    let size_bytes = object.size_bytes();
    let mut last = [0u8; ENCRYPTED_END_BYTES];
    let Some(at) = size_bytes.checked_sub(last.len() as u64) else { return Ok(0) };
    object.read_at(&mut last, at)?;
    let announced = EncryptedEnd::announced_bytes(&last).filter(|bytes| *bytes <= SHOWN_BYTES_MAX.min(size_bytes));
    Ok(announced.unwrap_or(0))
}

impl ObjectReader for MaybeEncrypted {
    fn size_bytes(&self) -> u64 {
        self.sealed.as_ref().map_or_else(|| self.inner.size_bytes(), |sealed| sealed.content_bytes)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        if let Some(sealed) = &self.sealed {
            return self.read_sealed(sealed, buffer, offset);
        }
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        match self.first.get(at..at.saturating_add(buffer.len())) {
            Some(known) => {
                buffer.copy_from_slice(known);
                Ok(())
            }
            None => self.inner.read_at(buffer, offset),
        }
    }

    fn is_remote(&self) -> bool {
        self.inner.is_remote()
    }

    fn key_id(&self) -> Option<KeyId> {
        self.sealed.as_ref().map(|sealed| sealed.header.key_id)
    }

    fn stored(&self) -> Option<StoredBytes> {
        let sealed = self.sealed.as_ref()?;
        let contents: Option<Box<dyn Contents>> = match sealed.key(&self.keys, self.home.as_ref()) {
            Ok(_) => {
                let header_left = sealed.header_bytes.len();
                let chunk = Vec::with_capacity(CHUNK_BYTES + TAG_BYTES);
                Some(Box::new(Opener { sealed: Arc::clone(sealed), chunk, number: 0, header_left }))
            }
            Err(locked) if locked.kind() == ErrorKind::Configuration => None,
            Err(error) => Some(Box::new(NotOpened(Some(error)))),
        };
        Some(StoredBytes { object: Box::new(AsStored(Arc::clone(&self.inner))), contents })
    }
}

/// An encrypted object's own bytes.
struct AsStored(Arc<dyn ObjectReader>);

impl ObjectReader for AsStored {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.0.read_at(buffer, offset)
    }

    fn is_remote(&self) -> bool {
        self.0.is_remote()
    }
}

/// Contents of an object whose key could not be had for another reason than that nobody has it.
struct NotOpened(Option<Error>);

impl Contents for NotOpened {
    fn take(&mut self, _stored: &[u8], _content: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.0.take().map_or(Ok(()), Err)
    }
}

/// Opens the chunks of an object as its bytes pass.
struct Opener {
    sealed: Arc<Sealed>,
    /// What has come of the next chunk.
    chunk: Vec<u8>,
    number: u64,
    header_left: usize,
}

impl Contents for Opener {
    fn take(&mut self, stored: &[u8], content: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let sealed = Arc::clone(&self.sealed);
        let Some(key) = sealed.key.get() else { return Ok(()) };
        let header = stored.len().min(self.header_left);
        self.header_left -= header;
        let mut stored = &stored[header..];
        while !stored.is_empty() && self.number < sealed.chunk_count() {
            let left = sealed.content_bytes - self.number * CHUNK_BYTES as u64;
            let wanted = left.min(CHUNK_BYTES as u64) as usize + TAG_BYTES;
            let (now, later) = stored.split_at(stored.len().min(wanted - self.chunk.len()));
            self.chunk.extend_from_slice(now);
            stored = later;
            if self.chunk.len() == wanted {
                content(sealed.open(key, self.number, &mut self.chunk)?)?;
                self.number += 1;
                self.chunk.clear();
            }
        }
        Ok(())
    }
}

/// `bytes` as an encrypted object; None if nothing is to be encrypted.
///
/// # Errors
/// `Configuration` if no key can be made.
pub fn encrypt_bytes(keys: &Keys, name: &str, bytes: &[u8]) -> Result<Option<(KeyId, Vec<u8>)>> {
    let Some((mut sealer, mut object)) = begin(keys, name)? else { return Ok(None) };
    let key_id = EncryptedHeader::from_bytes(&object)?.key_id;
    let mut out = |sealed: &[u8]| {
        object.extend_from_slice(sealed);
        Ok(())
    };
    sealer.append(bytes, &mut out)?;
    sealer.finish(&mut out)?;
    object.extend_from_slice(&EncryptedEnd::default().to_bytes());
    Ok(Some((key_id, object)))
}

/// What [`encrypt_bytes`] was given, and the id of the key.
///
/// # Errors
/// `Configuration` without the right key; `Damage` if it is not what was encrypted under that name.
pub fn decrypt_bytes(keys: &Keys, home: &dyn Storage, name: &str, object: &[u8]) -> Result<(KeyId, Vec<u8>)> {
    let damaged = |cause: &str| Error::new(ErrorKind::Damage, format!("decrypt {name}"), cause);
    let header_bytes = EncryptedHeader::announced_bytes(object)?.ok_or_else(|| damaged("it is not encrypted"))?;
    let header = object.get(..header_bytes).ok_or_else(|| damaged("it was cut"))?;
    let end_bytes = EncryptedEnd::default().to_bytes().len() as u64;
    let sealed = Sealed::new(name, header.to_vec(), object.len() as u64, end_bytes)?;
    let key = sealed.key(keys, home)?;
    let mut content = Vec::with_capacity(sealed.content_bytes as usize);
    let mut chunks = object[header_bytes..].to_vec();
    chunks.truncate(chunks.len().saturating_sub(end_bytes as usize));
    for (number, chunk) in chunks.chunks_mut(CHUNK_BYTES + TAG_BYTES).enumerate() {
        content.extend_from_slice(sealed.open(key, number as u64, chunk)?);
    }
    if content.len() as u64 != sealed.content_bytes {
        return Err(damaged("it was cut"));
    }
    Ok((sealed.header.key_id, content))
}

/// Keys that write as `object` was written: with the same data key, for the same recipients.
///
/// # Errors
/// `Configuration` without its key; `Damage` if its header does not read.
pub fn keys_of_object(keys: &Keys, home: &dyn Storage, object: &[u8]) -> Result<Keys> {
    let header_bytes = EncryptedHeader::announced_bytes(object)?.unwrap_or_default();
    let header = EncryptedHeader::from_bytes(object.get(..header_bytes).unwrap_or_default())?;
    keys.that_write_as(&header, home)
}
