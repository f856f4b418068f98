//! One bundle opened: header, index and table of members checked; no frame is decoded.
//!
//! Where somebody said whose signatures count, only bundles that these have signed open, and no byte of a frame is given
//! that was not signed.

use std::sync::Arc;

use super::bound_stripe::{BoundStripe, StripeDigests};
use super::repository::Repository;
use crate::encryption::Signed;
use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::sha256;
use crate::format::frame::FrameDigest;
use crate::format::stripe::{FOOTER_BYTES, Footer, FrameIndex, INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES};
use crate::format::wal_bundle::{
    BUNDLE_FRAMES_MAX, BUNDLE_HEADER_BYTES, BundleHeader, MEMBER_TABLE_BYTES_MAX, MemberTable,
};
use crate::storage::ObjectReader;

/// What is read of an object's end at once: index and table of a bundle of a few segments.
const TAIL_BYTES: u64 = 8 * 1024;

/// A bundle that can be read.
pub struct OpenBundle {
    /// Its name in the repository.
    pub name: String,
    /// The object.
    pub object: Box<dyn ObjectReader>,
    /// Its header.
    pub header: BundleHeader,
    /// Where its frames are.
    pub index: FrameIndex,
    /// What it holds.
    pub table: MemberTable,
    /// SHA-256 of its frames, that of the table too, as they were signed; None where nobody asks for signatures.
    pub digests: Option<StripeDigests>,
}

/// Opens the bundle `name`; None if there is no such object.
///
/// # Errors
/// `Damage` if header, index or table do not read, or if signatures are asked for and it is not signed; those of the storage.
pub fn open_bundle(repository: &Repository, name: &str) -> Result<Option<OpenBundle>> {
    let Some(bundle) = open_bundle_to_copy(repository, name)? else { return Ok(None) };
    let object: Box<dyn ObjectReader> = match &bundle.digests {
        Some(digests) => Box::new(BoundStripe::new(bundle.object, &bundle.index, Arc::clone(digests))),
        None => bundle.object,
    };
    Ok(Some(OpenBundle { object, ..bundle }))
}

/// As [`open_bundle`], for who compares the frames with `digests` as they go by: the object itself does not.
///
/// # Errors
/// As [`open_bundle`].
pub fn open_bundle_to_copy(repository: &Repository, name: &str) -> Result<Option<OpenBundle>> {
    let storage = repository.storage();
    let Some(object) = storage.open(name)? else { return Ok(None) };
    let action = || format!("open {name} in {}", storage.describe());
    let read = read(object.as_ref());
    let (header, index, table, table_digest) = read.map_err(|error| match error.kind() {
        // Whatever is archived shows these to everybody.
        ErrorKind::Configuration => Error::new(ErrorKind::Damage, action(), "it is encrypted and shows no table")
            .hint("the object was put there by something else"),
        ErrorKind::Damage => Error::new(ErrorKind::Damage, action(), error.message())
            .hint("the object is damaged: WAL in it is lost unless another copy of the repository has it"),
        _ => error,
    })?;
    let digests = signed_digests(repository, name, &header, &table, table_digest)?;
    Ok(Some(OpenBundle { name: name.to_owned(), object, header, index, table, digests }))
}

/// SHA-256 of all frames as somebody signed them whose signatures count; None if nobody asks.
fn signed_digests(
    repository: &Repository,
    name: &str,
    header: &BundleHeader,
    table: &MemberTable,
    table_digest: FrameDigest,
) -> Result<Option<StripeDigests>> {
    if !repository.keys().names_signers() {
        return Ok(None);
    }
    let bad = |cause: String| {
        let action = format!("trust {name} in {}", repository.storage().describe());
        Error::new(ErrorKind::Damage, action, cause)
            .hint("WAL that was stored before anybody signed is taken without --signer; all other may be forged")
    };
    let seal = table.seal.as_ref().ok_or_else(|| bad("it is not signed".to_owned()))?;
    let signed = table.signed_bytes(header, seal);
    repository.keys().signing().check(Signed::Wal, &signed, &seal.signer, &seal.signature).map_err(bad)?;
    Ok(Some(Arc::new(seal.frame_digests.iter().copied().chain([table_digest]).collect())))
}

/// The last thing is the SHA-256 of the frame that has the table.
fn read(object: &dyn ObjectReader) -> Result<(BundleHeader, FrameIndex, MemberTable, FrameDigest)> {
    let mut header = [0u8; BUNDLE_HEADER_BYTES];
    object.read_at(&mut header, 0)?;
    let header = BundleHeader::from_bytes(&header)?;
    let tail = Tail::read(object)?;
    let footer =
        Footer::from_bytes(&tail.bytes(tail.size_bytes - FOOTER_BYTES as u64, FOOTER_BYTES as u64)?, tail.size_bytes)?;
    let bad = |cause: &str| Error::new(ErrorKind::Damage, "read a bundle's trailer", cause);
    if footer.header != header.as_stripe() {
        return Err(bad("it belongs to another object"));
    }
    if footer.index_size_bytes > INDEX_HEADER_BYTES as u64 + BUNDLE_FRAMES_MAX * INDEX_ENTRY_BYTES as u64 {
        return Err(bad("it has more frames than a bundle can have"));
    }
    let index = FrameIndex::from_bytes(&tail.bytes(footer.index_offset, footer.index_size_bytes)?, &footer)?;
    let last = index.entries().last().ok_or_else(|| bad("it has no frames"))?;
    if last.raw_size_bytes as usize > MEMBER_TABLE_BYTES_MAX {
        return Err(bad("its table of members is too long"));
    }
    let frame_bytes = last.size_on_stripe_bytes();
    let frame = tail.bytes(footer.index_offset - frame_bytes, frame_bytes)?;
    let table = MemberTable::from_frame(&frame, &header, &index)?;
    Ok((header, index, table, sha256(&frame)))
}

/// The end of an object, read once; what lies before it is read when it is asked for.
struct Tail<'a> {
    object: &'a dyn ObjectReader,
    size_bytes: u64,
    bytes: Vec<u8>,
}

impl<'a> Tail<'a> {
    fn read(object: &'a dyn ObjectReader) -> Result<Self> {
        let size_bytes = object.size_bytes();
        let length = size_bytes.min(TAIL_BYTES);
        let mut bytes = vec![0u8; length as usize];
        match object.read_at(&mut bytes, size_bytes - length) {
            // Of an encrypted one only table and index themselves are shown to who has no key: they are read one by one.
            Err(error) if error.kind() == ErrorKind::Configuration => bytes.clear(),
            read => read?,
        }
        if size_bytes < (BUNDLE_HEADER_BYTES + FOOTER_BYTES) as u64 {
            return Err(Error::new(ErrorKind::Damage, "read a bundle's trailer", "the object is too short"));
        }
        Ok(Tail { object, size_bytes, bytes })
    }

    /// `length` bytes at `offset`, which lie in the object.
    fn bytes(&self, offset: u64, length: u64) -> Result<std::borrow::Cow<'_, [u8]>> {
        let start = self.size_bytes - self.bytes.len() as u64;
        if let Some(from) = offset.checked_sub(start)
            && let Some(bytes) = self.bytes.get(from as usize..(from + length) as usize)
        {
            return Ok(bytes.into());
        }
        let mut bytes = vec![0u8; length as usize];
        self.object.read_at(&mut bytes, offset)?;
        Ok(bytes.into())
    }
}

impl OpenBundle {
    /// Checks that it is of this cluster and holds just the files that its name says.
    ///
    /// # Errors
    /// `Damage` if another object lies under its name.
    pub fn check_holds(&self, system_identifier: u64, names: impl Iterator<Item = String>) -> Result<()> {
        let is_right = self.table.system_identifier == system_identifier
            && self.table.members.iter().map(|member| member.name.as_str()).eq(names.collect::<Vec<_>>());
        if is_right {
            return Ok(());
        }
        let held: Vec<&str> = self.table.members.iter().take(3).map(|member| member.name.as_str()).collect();
        let cause = format!("it holds {} of cluster {}", held.join(", "), self.table.system_identifier);
        Err(Error::new(ErrorKind::Damage, format!("use {} for what its name says", self.name), cause)
            .hint("an object was moved or renamed in the repository"))
    }
}
