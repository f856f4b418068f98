//! Where objects live: a trait with its contract in words, and the stores that keep it.
//!
//! An object is created once and never rewritten. Names are relative, with `/` between parts, and safe: they come
//! from labels and indexes, never from user text.
//!
//! A store is named by its target's text:
//!
//! ```text
//! target   = "NUL" | throttle | directory | object store      for the last see `object_store/target.rs`
//! throttle = "throttle:" rate ["," rate] ":" target      behind it no second throttle
//! rate     = ("read" | "write") "=" size "/s"            each once; size as in 100MB, 64MiB, 1G, without blanks
//! ```
//!
//! All that is opened by one `throttle:` text in one process is one device with one rate a direction (`throttled.rs`).
//! A set records directories and object stores and never rates: it is read at full speed unless the reader asks for a throttle too.

mod at_once;
mod holder;
mod local;
mod mirror;
mod nul;
mod object_lock;
mod object_store;
mod throttled;

pub use at_once::at_once;
pub use holder::Holder;
pub use local::LocalStorage;
pub use mirror::MirroredStorage;
pub use nul::NulStorage;
pub use object_lock::{LockMode, ObjectLock, Protection, object_lock_of};
pub use object_store::{ObjectStore, tell_of_waits};
pub(crate) use object_store::{PART_BYTES_LARGE, PARTS_NEEDED};
pub use throttled::ThrottledStorage;

pub use crate::io::is_temporary_name;

use std::ops::Range;

use crate::error::{Error, ErrorKind, Result};
use crate::io::AlignedBytes;
use crate::terms::{KeyId, OBJECT_STORE_SCHEMES, names_object_store};

/// A store of objects.
///
/// Contract, which the conformance suite tests:
/// - `create` fails if the object is there; nobody sees it as finished before `finish` returned.
/// - `finish` and `put_new` return only when content and name are durable.
/// - `put_new` is atomic: an object of that name is either absent or whole; the loser of a race gets `Ok(false)`.
/// - `stage` begins an object of any size that is as atomic as one of `put_new`: absent until `commit`, then whole and
///   durable. One that is dropped before leaves nothing.
/// - `make_durable` returns when an object that can be seen is durable, whoever wrote it: a writer that is killed or slow
///   between giving a name and syncing it leaves one that a power loss may still take away.
/// - `open` of an absent object is `Ok(None)`; any other failure is an error, never "absent".
/// - `list` gives the names one level below a prefix; an absent prefix is empty.
/// - `delete` of an absent object is fine.
/// - Errors are of kind `Repository` and name the object.
pub trait Storage: Send + Sync {
    /// What errors and reports call this store.
    fn describe(&self) -> String;

    /// Where it is, without the options that only say how it is spoken to, which may be others tomorrow: two texts name one store if they
    /// share a place. A store with several endpoints is at each of them.
    fn places(&self) -> Vec<String> {
        vec![self.describe()]
    }

    /// Begins an object of unknown size. If it may become large, `largest_bytes` says how large, as well as one can: a store may choose
    /// by it how to take the object. It is no limit; 0 for what stays below some ten GB.
    fn create(&self, name: &str, largest_bytes: u64) -> Result<Box<dyn ObjectWriter>>;

    /// Creates a small object at once; false if one of that name is there.
    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool>;

    /// As `create`, of an object that appears whole under its name, or not at all.
    fn stage(&self, name: &str, largest_bytes: u64) -> Result<Box<dyn StagedObject>>;

    /// Makes an object that is there durable, as its writer would have.
    fn make_durable(&self, name: &str) -> Result<()>;

    /// Opens an object.
    fn open(&self, name: &str) -> Result<Option<Box<dyn ObjectReader>>>;

    /// Reads a whole small object; None if it is absent.
    ///
    /// # Errors
    /// `Damage` if it is longer than `most_bytes`; those of the store.
    fn read_small(&self, name: &str, most_bytes: u64) -> Result<Option<Vec<u8>>> {
        read_opened(self, name, most_bytes)
    }

    /// Names of objects and prefixes directly below `prefix`, sorted.
    fn list(&self, prefix: &str) -> Result<Vec<String>>;

    /// Removes an object.
    fn delete(&self, name: &str) -> Result<()>;

    /// Removes what writers that died left directly below `prefix`, where the store can tell; gives how many.
    fn sweep(&self, prefix: &str) -> Result<u32>;

    /// Gives up what was begun below `prefix` and has no name yet, and is paid for in some stores; only where nobody writes any more. Gives how
    /// much it was: none where the store cannot tell, or does not tell it to these credentials.
    fn abandon(&self, _prefix: &str) -> Result<u64> {
        Ok(0)
    }

    /// Removes an empty prefix where the store has directories; not empty is an error.
    fn remove_prefix(&self, prefix: &str) -> Result<()>;

    /// Holds a lease: nobody else gets it until the holder drops it or dies. None if somebody holds it.
    fn lease(&self, name: &str) -> Result<Option<Box<dyn Lease>>>;

    /// Whether somebody holds the lease now; creates none, and nothing that is meant to stay.
    fn is_leased(&self, name: &str) -> Result<bool>;

    /// Bytes that may still be stored, where the store knows.
    fn free_bytes(&self) -> Option<u64>;

    /// True for the store that keeps nothing.
    fn discards(&self) -> bool {
        false
    }

    /// Memory that one object writer of this store takes, for the ceiling, while at least `uploads` go to stores; of what `append_from`
    /// keeps, two buffers come on top.
    fn writer_bytes(&self, _uploads: Uploads) -> u64 {
        OBJECT_WRITER_BYTES
    }

    /// The most bytes that an object gets which was begun with `largest_bytes`.
    fn longest_bytes(&self, _largest_bytes: u64) -> u64 {
        u64::MAX
    }

    /// What protects its objects from being deleted; None where nothing does that is known here.
    fn object_lock(&self) -> Option<&dyn ObjectLock> {
        None
    }
}

/// Objects that are sent to stores at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Uploads {
    /// How many.
    pub count: u64,
    /// Bytes of the largest.
    pub largest_bytes: u64,
}

/// A held lease; dropping it gives it back.
pub trait Lease: Send + Sync {
    /// Looks whether it is still held: a holder that was stopped for long may have lost it without knowing.
    ///
    /// # Errors
    /// `Conflict` if somebody else has it; those of the store.
    fn check_held(&self) -> Result<()> {
        Ok(())
    }
}

/// An object that is being written, in order.
pub trait ObjectWriter: Send {
    /// Appends `bytes`; they may be kept in a buffer of bounded size.
    fn append(&mut self, bytes: &[u8]) -> Result<()>;

    /// Appends `pieces` of `memory`. A writer that sends them from there keeps the memory, and leaves other of the same size in
    /// its place: what that holds is not said.
    fn append_from(&mut self, memory: &mut AlignedBytes, pieces: &[HeadedBytes]) -> Result<()> {
        append_each(self, memory, pieces)
    }

    /// Makes the object durable and gives its size.
    fn finish(self: Box<Self>) -> Result<u64>;
}

/// Bytes of a buffer, and the few that go before them: a frame and its header.
#[derive(Clone, Debug)]
pub struct HeadedBytes {
    /// What goes before.
    pub head: [u8; HEAD_BYTES],
    /// Where the others are.
    pub bytes: Range<usize>,
}

/// Bytes of a head.
pub const HEAD_BYTES: usize = 64;

fn append_each(object: &mut (impl ObjectWriter + ?Sized), memory: &[u8], pieces: &[HeadedBytes]) -> Result<()> {
    for piece in pieces {
        object.append(&piece.head)?;
        object.append(&memory[piece.bytes.clone()])?;
    }
    Ok(())
}

/// An object that nobody sees until it is whole.
pub trait StagedObject: Send {
    /// Appends `bytes`.
    fn append(&mut self, bytes: &[u8]) -> Result<()>;

    /// Appends `bytes`, which may be read without a key, too, if the object is encrypted.
    fn append_shown(&mut self, bytes: &[u8]) -> Result<()> {
        self.append(bytes)
    }

    /// Gives the object its name, durably; false if one of that name is there, and this one is gone then.
    fn commit(self: Box<Self>) -> Result<bool>;
}

/// An object that is read at any place, by several threads.
pub trait ObjectReader: Send + Sync {
    /// Its size.
    fn size_bytes(&self) -> u64;

    /// Fills `buffer` from `offset`; too few bytes are an error of kind `Damage`.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()>;

    /// True if each read waits for an answer from elsewhere, which is kept until it is whole: many at once are faster.
    fn is_remote(&self) -> bool {
        false
    }

    /// Whether a read failed because somebody elsewhere could not be asked: that tells nothing of what is there. (A disk that
    /// does not give a sector has lost it.)
    fn is_unanswered(&self, error: &Error) -> bool {
        self.is_remote() && error.kind() != ErrorKind::Damage
    }

    /// The data key that it is encrypted with; None if it is not encrypted.
    fn key_id(&self) -> Option<KeyId> {
        None
    }

    /// Its bytes as they lie in the store; None if they are its content.
    fn stored(&self) -> Option<StoredBytes> {
        None
    }
}

/// An encrypted object as it lies in the store.
pub struct StoredBytes {
    /// All its bytes.
    pub object: Box<dyn ObjectReader>,
    /// Makes its content of them as they pass; None without a key.
    pub contents: Option<Box<dyn Contents>>,
}

/// Decrypts the bytes of one object in their order.
pub trait Contents: Send {
    /// Takes the next bytes; what they come to goes to `content`.
    ///
    /// # Errors
    /// `Damage` with the place; those of `content`.
    fn take(&mut self, stored: &[u8], content: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>;
}

/// Opens the store that `target` names: a local directory, an object store, NUL, or one of them behind a throttle.
///
/// # Errors
/// `Usage` for a URL of a kind that this build does not know, or a throttle whose rates do not read.
pub fn open_storage(target: &str) -> Result<Box<dyn Storage>> {
    if target.eq_ignore_ascii_case("NUL") {
        return Ok(Box::new(NulStorage));
    }
    if target.starts_with(throttled::SCHEME) {
        return Ok(Box::new(ThrottledStorage::open(target)?));
    }
    if names_object_store(target) {
        return Ok(Box::new(ObjectStore::open(target)?));
    }
    if let Some((scheme, _)) = target.split_once("://") {
        let cause = format!("stores of kind {scheme} are not known");
        return Err(Error::new(ErrorKind::Usage, format!("open a store {scheme}://"), cause)
            .hint("give a local directory, s3://BUCKET/PREFIX, gs://, azblob://, or NUL to discard the output"));
    }
    refuse_half_address(target)?;
    let path =
        std::path::absolute(target).map_err(|cause| Error::new(ErrorKind::Usage, format!("open {target:?}"), cause))?;
    Ok(Box::new(LocalStorage::new(&path)))
}

/// `s3:/BUCKET` is meant to be a store and would be a directory of the working directory, where nobody looks for the backups.
fn refuse_half_address(target: &str) -> Result<()> {
    const FOREIGN: [&str; 9] = ["http", "https", "file", "gcs", "az", "azure", "sftp", "ssh", "webdav"];
    let Some((scheme, _)) = target.split_once(':') else { return Ok(()) };
    if !OBJECT_STORE_SCHEMES.iter().chain(&FOREIGN).any(|name| scheme.eq_ignore_ascii_case(name)) {
        return Ok(());
    }
    // Not repeated: it may have credentials in it.
    let cause = format!("it begins with {scheme}: and not with {scheme}://");
    Err(Error::new(ErrorKind::Usage, format!("open a store {scheme}:"), cause).hint(format!(
        "a store reads s3://BUCKET/PREFIX, gs:// or azblob://; a directory whose name begins so reads ./{scheme}:..."
    )))
}

/// The text that names the same store from every directory.
///
/// # Errors
/// `Usage` if the current directory is not known or not UTF-8.
pub fn absolute_target(target: &str) -> Result<String> {
    if target.eq_ignore_ascii_case("NUL") || target.contains("://") {
        return Ok(target.to_owned());
    }
    if let Some((rates, behind)) = target.strip_prefix(throttled::SCHEME).and_then(|text| text.split_once(':')) {
        return Ok(format!("{}{rates}:{}", throttled::SCHEME, absolute_target(behind)?));
    }
    refuse_half_address(target)?;
    let failed = |cause: &dyn std::fmt::Display| Error::new(ErrorKind::Usage, format!("open {target:?}"), cause);
    let path = std::path::absolute(target).map_err(|cause| failed(&cause))?;
    path.to_str().map(str::to_owned).ok_or_else(|| failed(&"the current directory is not UTF-8"))
}

/// Whether two stores are one, however each of them is spoken to.
pub fn is_same_store(one: &dyn Storage, other: &dyn Storage) -> bool {
    let places = other.places();
    one.places().iter().any(|place| places.contains(place))
}

/// Where an object of a store lies, for people: `s3://BUCKET/PREFIX/NAME?endpoint=...`, or a path.
pub fn object_place(store: &str, name: &str) -> String {
    match store.split_once('?') {
        Some((place, options)) if names_object_store(store) => format!("{place}/{name}?{options}"),
        _ => format!("{store}/{name}"),
    }
}

/// Memory that one object writer of a directory takes, for the ceiling.
pub const OBJECT_WRITER_BYTES: u64 = crate::io::SEQUENTIAL_PIECE_BYTES as u64;

/// The most memory that one object writer takes of the stores that `targets` name, while at least `uploads` go to
/// stores; targets that do not read count as directories, and are refused where they are opened.
pub fn writer_bytes_max<'t>(targets: impl Iterator<Item = &'t String>, uploads: Uploads) -> u64 {
    let bytes =
        |target: &String| open_storage(target).map_or(OBJECT_WRITER_BYTES, |storage| storage.writer_bytes(uploads));
    targets.map(bytes).max().unwrap_or(OBJECT_WRITER_BYTES)
}

/// Refuses an object of known size that its store cannot take, before any of it is sent.
///
/// # Errors
/// `Configuration`.
pub fn refuse_too_large(storage: &dyn Storage, name: &str, size_bytes: u64) -> Result<()> {
    let longest = storage.longest_bytes(size_bytes);
    if size_bytes <= longest {
        return Ok(());
    }
    let cause = format!("it has {size_bytes} bytes, and the store takes {longest} of one object");
    Err(Error::new(ErrorKind::Configuration, format!("create {name} in {}", storage.describe()), cause)
        .hint("leave out the option part-size of the store, so that parts are as large as they have to be; or keep it elsewhere"))
}

/// Looks whether an object that was just written is there with all its bytes: a store may say so and be wrong.
///
/// # Errors
/// `Repository` if it is absent, or of another size; those of the store.
pub fn confirm(storage: &dyn Storage, name: &str, size_bytes: u64) -> Result<()> {
    if storage.discards() {
        return Ok(());
    }
    let cause = match storage.open(name)?.map(|object| object.size_bytes()) {
        Some(found) if found == size_bytes => return Ok(()),
        Some(found) => format!("it was written with {size_bytes} bytes and has {found}"),
        None => "it was written and is not there".to_owned(),
    };
    Err(Error::new(ErrorKind::Repository, format!("store {name} in {}", storage.describe()), cause)
        .hint("the store does not keep what it says it keeps, or something else changes objects of this repository"))
}

/// Reads a whole small object of any store: looks how long it is, then reads it.
pub(crate) fn read_opened(storage: &(impl Storage + ?Sized), name: &str, most_bytes: u64) -> Result<Option<Vec<u8>>> {
    let Some(object) = storage.open(name)? else { return Ok(None) };
    if object.size_bytes() > most_bytes {
        return Err(too_long(storage, name, most_bytes));
    }
    let mut bytes = vec![0u8; object.size_bytes() as usize];
    object.read_at(&mut bytes, 0)?;
    Ok(Some(bytes))
}

fn too_long(storage: &(impl Storage + ?Sized), name: &str, most_bytes: u64) -> Error {
    let cause = format!("it has more than {most_bytes} bytes");
    Error::new(ErrorKind::Damage, format!("read {name} in {}", storage.describe()), cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_targets_name_the_same_store() {
        let here = std::env::current_dir().unwrap();
        let absolute = format!("{}/backup", here.display());
        for (target, expected) in [
            ("NUL", "NUL".to_owned()),
            ("s3://bucket/a", "s3://bucket/a".to_owned()),
            ("/backup", "/backup".to_owned()),
            ("backup", absolute.clone()),
            ("throttle:write=1MB/s,read=2MB/s:backup", format!("throttle:write=1MB/s,read=2MB/s:{absolute}")),
            ("throttle:read=2MB/s:NUL", "throttle:read=2MB/s:NUL".to_owned()),
        ] {
            assert_eq!(absolute_target(target).unwrap(), expected);
        }
        assert!(absolute_target("").is_err());
    }

    #[test]
    fn half_an_address_is_no_directory() {
        for target in ["s3:/bucket/a", "S3:bucket", "azblob:/c", "https:/host/b", "throttle:read=2MB/s:gs:/bucket"] {
            for refused in [open_storage(target).err(), absolute_target(target).err()] {
                assert_eq!(refused.unwrap().kind(), ErrorKind::Usage, "{target}");
            }
        }
        assert!(absolute_target("./s3:/bucket").unwrap().ends_with("/s3:/bucket"));
        assert!(open_storage("backup:2026").is_ok());
    }

    #[test]
    fn where_an_object_lies_is_told_as_its_store_names_it() {
        for (store, place) in [
            ("/back?up", "/back?up/main/a.phs"),
            ("s3://bucket/a", "s3://bucket/a/main/a.phs"),
            ("s3://bucket/a?endpoint=http://host", "s3://bucket/a/main/a.phs?endpoint=http://host"),
        ] {
            assert_eq!(object_place(store, "main/a.phs"), place);
        }
    }
}

#[cfg(test)]
mod conformance;
