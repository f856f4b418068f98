//! Verb: one foreign file stored as frames, and given back byte for byte.
//!
//! `<source>/files/<name>-<set id>.phs` is a stripe of its own, `<source>/files/<name>.json` says what it holds and is written
//! last.

use std::hash::Hasher;

use serde::Serialize;

use crate::catalog::Repository;
use crate::catalog::encryption_mark::keep_encrypted;
use crate::error::{Error, ErrorKind, Result};
use crate::format::FORMAT_VERSION;
use crate::format::checksum::{combine, crc32c};
use crate::format::kept_file::{KEPT_FILE_BYTES_MAX, KeptFile, is_kept_name};
use crate::format::stripe::{FOOTER_BYTES, Footer, FrameIndex, STRIPE_HEADER_BYTES, StripeHeader};
use crate::format::wal_bundle::{BundleHeader, Member, MemberFacts};
use crate::pipeline::bundle::{Filled, FrameSettings, decode_member, encode_frames};
use crate::storage::{ObjectReader, confirm};
use crate::terms::{SetId, SourceName};

/// What to keep.
#[derive(Clone, Debug)]
pub struct KeepRequest {
    /// Under whose name.
    pub source: SourceName,
    /// Its name in the repository.
    pub name: String,
    /// Where it was.
    pub original_path: String,
    /// What its content is.
    pub content_kind: String,
    /// Size of the file that the content is made of.
    pub original_bytes: u64,
    /// Codec, level, threads and frames.
    pub frames: FrameSettings,
}

/// What was kept.
#[derive(Clone, Debug, Serialize)]
pub struct KeepReport {
    /// The document.
    #[serde(flatten)]
    pub kept: KeptFile,
    /// Size of the content by that of what is stored.
    pub ratio: f64,
}

fn document_name(source: &SourceName, name: &str) -> String {
    format!("{source}/files/{name}.json")
}

/// With the id, so that a stripe whose document never came is in nobody's way.
fn stripe_name(source: &SourceName, name: &str, set_id: SetId) -> String {
    format!("{source}/files/{name}-{set_id}.phs")
}

/// Stores what `next` gives, and reads it back. `next` fills a buffer up to the length it has and says how much that was;
/// less is the end.
///
/// # Errors
/// `Usage` for a name that cannot be, `Conflict` if there is such a file; those of `next` and of the storage.
pub fn keep(
    repository: &Repository,
    request: &KeepRequest,
    next: &mut dyn FnMut(&mut [u8]) -> Result<usize>,
) -> Result<KeepReport> {
    let KeepRequest { source, name, frames, .. } = request;
    // There are no pages in it that the page codec would know.
    let frames = &FrameSettings { codec: frames.codec.without_pages(), ..*frames };
    let storage = repository.storage();
    let action = || format!("keep {name} of {source} in {}", storage.describe());
    if !is_kept_name(name) {
        let cause = "a name has 1 to 128 letters, digits, dots, dashes and underscores";
        return Err(Error::new(ErrorKind::Usage, action(), cause));
    }
    let taken = || {
        Error::new(ErrorKind::Conflict, action(), "there is a file of that name")
            .hint("choose another name with --name")
    };
    if storage.open(&document_name(source, name))?.is_some() {
        return Err(taken());
    }
    keep_encrypted(repository, source, repository.keys())?;
    let header = BundleHeader { bundle_id: SetId::random()?, frame_size_bytes: frames.frame_size_bytes };
    let mut content = Content::default();
    let mut index = FrameIndex::default();
    let stripe = stripe_name(source, name, header.bundle_id);
    let mut object = storage.stage(&stripe, request.original_bytes)?;
    object.append(&header.as_stripe().to_bytes())?;
    let mut read = |raw: &mut Vec<u8>| content.next_frame(raw, frames.frame_size_bytes as usize, next);
    encode_frames(frames, &header, &mut index, &mut read, &mut |frame| object.append(frame))?;
    let trailer = index.to_trailer(&header.as_stripe());
    object.append(&trailer)?;
    let kept = KeptFile {
        format_version: FORMAT_VERSION,
        engine_version: env!("CARGO_PKG_VERSION").to_owned(),
        source: source.clone(),
        name: name.clone(),
        original_path: request.original_path.clone(),
        content_kind: request.content_kind.clone(),
        original_bytes: request.original_bytes,
        content_bytes: content.bytes,
        content_crc32c: format!("{:08x}", content.crc32c),
        content_xxh3: format!("{:016x}", content.xxh3.finish()),
        kept_at: jiff::Timestamp::now().round(jiff::Unit::Second).unwrap_or_default().to_string(),
        compression: frames.codec.to_string(),
        set_id: header.bundle_id.to_string(),
        frame_size_bytes: frames.frame_size_bytes,
        frame_count: index.frame_count(),
        stored_bytes: index.end_offset() + trailer.len() as u64,
    };
    let document = kept.to_bytes()?;
    object.commit()?;
    if let Err(error) = read_back(repository, &kept, &stripe, frames.threads) {
        // Without a document it is rubbish; what cannot be removed now stays so.
        storage.delete(&stripe).ok();
        return Err(error);
    }
    // Of a document whose writing failed it is not known whether it is there: the stripe stays, for it may be its own.
    if !storage.put_new(&document_name(source, name), &document)? {
        storage.delete(&stripe).ok();
        return Err(taken());
    }
    let ratio = kept.original_bytes as f64 / kept.stored_bytes as f64;
    Ok(KeepReport { kept, ratio })
}

/// Reads the stripe back, with every check there is.
fn read_back(repository: &Repository, kept: &KeptFile, stripe: &str, threads: u16) -> Result<()> {
    let storage = repository.storage();
    confirm(storage, stripe, kept.stored_bytes)?;
    if storage.discards() {
        return Ok(());
    }
    read_content(repository, kept, threads, &mut |_| Ok(()))
}

/// What has been read so far.
struct Content {
    bytes: u64,
    crc32c: u32,
    xxh3: twox_hash::XxHash3_64,
    is_over: bool,
}

impl Default for Content {
    fn default() -> Self {
        Content { bytes: 0, crc32c: 0, xxh3: twox_hash::XxHash3_64::with_seed(0), is_over: false }
    }
}

impl Content {
    fn take(&mut self, raw: &[u8]) -> u32 {
        let crc = crc32c(raw);
        self.crc32c = combine(self.crc32c, crc, raw.len() as u64);
        self.bytes += raw.len() as u64;
        self.xxh3.write(raw);
        crc
    }

    fn next_frame(
        &mut self,
        raw: &mut Vec<u8>,
        frame_size: usize,
        next: &mut dyn FnMut(&mut [u8]) -> Result<usize>,
    ) -> Result<Option<Filled>> {
        raw.resize(frame_size, 0);
        let mut filled = 0;
        while filled < frame_size && !self.is_over {
            let count = next(&mut raw[filled..])?;
            self.is_over = count == 0;
            filled += count;
        }
        raw.truncate(filled);
        Ok(if filled == 0 { None } else { Some(Filled { crc32c: self.take(raw), pages: None }) })
    }
}

/// The documents of all files that are kept of `source`, by name.
///
/// # Errors
/// `Damage` if one does not read; those of the storage.
pub fn kept_files(repository: &Repository, source: &SourceName) -> Result<Vec<KeptFile>> {
    let names = repository.storage().list(&format!("{source}/files"))?;
    let names = names.iter().filter_map(|name| name.strip_suffix(".json"));
    names.map(|name| kept_file(repository, source, name)).collect()
}

/// Who has kept files, and how many.
///
/// # Errors
/// Those of the storage.
pub fn kept_counts(repository: &Repository) -> Result<Vec<(SourceName, usize)>> {
    let storage = repository.storage();
    let mut counts = Vec::new();
    for source in storage.list("")?.iter().filter_map(|name| name.parse::<SourceName>().ok()) {
        let count = storage.list(&format!("{source}/files"))?.iter().filter(|name| name.ends_with(".json")).count();
        if count > 0 {
            counts.push((source, count));
        }
    }
    Ok(counts)
}

/// The document of a kept file.
///
/// # Errors
/// `Repository` if there is none, `Damage` if it does not read or is of another file; those of the storage.
pub fn kept_file(repository: &Repository, source: &SourceName, name: &str) -> Result<KeptFile> {
    let storage = repository.storage();
    let action = || format!("open {name} of {source} in {}", storage.describe());
    if !is_kept_name(name) {
        return Err(Error::new(ErrorKind::Usage, action(), "no kept file has such a name"));
    }
    let document = storage.read_small(&document_name(source, name), KEPT_FILE_BYTES_MAX)?;
    let document = document.ok_or_else(|| Error::new(ErrorKind::Repository, action(), "there is no such file"))?;
    let kept = KeptFile::from_bytes(&document)?;
    if kept.name != name || kept.source != *source {
        return Err(Error::new(ErrorKind::Damage, action(), format!("it is {} of {}", kept.name, kept.source)));
    }
    Ok(kept)
}

/// Gives the content of a kept file to `sink`, with every check there is. What `sink` got before an error must not be used.
///
/// # Errors
/// `Damage` if it is not what was stored; those of the storage and of `sink`.
pub fn read_content(
    repository: &Repository,
    kept: &KeptFile,
    threads: u16,
    sink: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let storage = repository.storage();
    let action = format!("read {} of {} in {}", kept.name, kept.source, storage.describe());
    let bad = |cause: &str| Error::new(ErrorKind::Damage, action.clone(), cause);
    let set_id = kept.set_id.parse().map_err(|_| bad("its document has no id"))?;
    let name = stripe_name(&kept.source, &kept.name, set_id);
    let object = storage.open(&name)?.ok_or_else(|| bad("it is not there"))?;
    let (header, index) = open_stripe(object.as_ref(), kept, &bad)?;
    let member = Member {
        name: kept.name.clone(),
        size_bytes: kept.content_bytes,
        content_bytes: kept.content_bytes,
        crc32c: u32::from_str_radix(&kept.content_crc32c, 16).map_err(|_| bad("its document has no checksum"))?,
        first_frame: 0,
        frame_count: kept.frame_count as u32,
        piece_offset: 0,
        facts: MemberFacts::None,
    };
    let mut content = Content::default();
    decode_member(object.as_ref(), &header, &index, &member, threads, &mut |raw| {
        content.bytes += raw.len() as u64;
        content.xxh3.write(raw);
        sink(raw)
    })?;
    if content.bytes != kept.content_bytes || format!("{:016x}", content.xxh3.finish()) != kept.content_xxh3 {
        return Err(bad("the digest of the whole does not match"));
    }
    Ok(())
}

fn open_stripe(
    object: &dyn ObjectReader,
    kept: &KeptFile,
    bad: &dyn Fn(&str) -> Error,
) -> Result<(BundleHeader, FrameIndex)> {
    let size = object.size_bytes();
    if size != kept.stored_bytes || size < (STRIPE_HEADER_BYTES + FOOTER_BYTES) as u64 {
        return Err(bad("it has not the size that its document says"));
    }
    let mut bytes = [0; STRIPE_HEADER_BYTES];
    object.read_at(&mut bytes, 0)?;
    let stripe = StripeHeader::from_bytes(&bytes)?;
    let mut footer = [0; FOOTER_BYTES];
    object.read_at(&mut footer, size - FOOTER_BYTES as u64)?;
    let footer = Footer::from_bytes(&footer, size)?;
    let header = BundleHeader { bundle_id: stripe.set_id, frame_size_bytes: stripe.frame_size_bytes };
    let is_of_document = stripe.set_id.to_string() == kept.set_id && stripe.frame_size_bytes == kept.frame_size_bytes;
    if footer.header != stripe || header.as_stripe() != stripe || !is_of_document {
        return Err(bad("it is of another file"));
    }
    let mut index = vec![0; footer.index_size_bytes as usize];
    object.read_at(&mut index, footer.index_offset)?;
    let index = FrameIndex::from_bytes(&index, &footer)?;
    if index.frame_count() != kept.frame_count {
        return Err(bad("it has not the frames that its document says"));
    }
    Ok((header, index))
}

#[cfg(test)]
mod tests;
