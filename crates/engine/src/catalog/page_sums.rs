//! The checksums of pages that lie in the stripes of a chain, found by the place of their frame.

use std::collections::BTreeMap;

use super::manifest_lock::check_key;
use super::open_set::OpenSet;
use super::repository::{Repository, set_prefix};
use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::sha256;
use crate::format::manifest::{Manifest, ObjectDigest};
use crate::format::object_digest::ObjectHasher;
use crate::format::page_sums::{
    PAGE_SUMS_BLOCK_BYTES, PAGE_SUMS_HEADER_BYTES, PageSumsHeader, SUMS_PER_BLOCK, page_sums_block,
    page_sums_size_bytes, read_page_sums_block,
};
use crate::format::stripe::FrameIndex;
use crate::storage::ObjectReader;
use crate::terms::{SetIndex, StripeIndex};

/// Blocks that one cursor keeps: those of 512 MiB with pages of 8 KiB.
const BLOCKS_KEPT: usize = 16;

/// The sums of all sets of a chain that have some.
pub struct ChainSums {
    page_size_bytes: u32,
    stripes: BTreeMap<(SetIndex, StripeIndex), StripeSums>,
}

struct StripeSums {
    name: String,
    object: Box<dyn ObjectReader>,
    /// How many sums lie before those of each frame; one more at the end.
    before_frame: Vec<u32>,
    /// SHA-256 of each block, if a signature says what they must be.
    blocks: Option<Vec<[u8; 32]>>,
}

impl ChainSums {
    /// Opens the objects of `set` and its priors; what is wrong with one is a note, and its sums are not known.
    pub fn open(repository: &Repository, set: &OpenSet, page_size_bytes: u32) -> (Self, Vec<String>) {
        let mut sums = ChainSums { page_size_bytes, stripes: BTreeMap::new() };
        let mut notes = Vec::new();
        for stripe in set.stripes.iter().flatten() {
            match open_one(repository, set.manifest_of(stripe.set), stripe.stripe, &stripe.index, page_size_bytes) {
                Ok(Some(opened)) => drop(sums.stripes.insert((stripe.set, stripe.stripe), opened)),
                Ok(None) => {}
                Err(error) => notes.push(format!("{}; pages of that stripe are stored again", error.message())),
            }
        }
        (sums, notes)
    }

    /// Reads every block. Of a stripe with one that does not read, no sum is known from here on; that is a note.
    ///
    /// For who leaves pages out without a look at them. Their sums are needed when nothing can be read instead any more.
    pub fn check_blocks(&mut self) -> Vec<String> {
        let (mut bytes, mut sums, mut notes) = (Vec::new(), Vec::new(), Vec::new());
        self.stripes.retain(|_, stripe| {
            let checked = stripe.check_blocks(&mut bytes, &mut sums);
            if let Err(error) = &checked {
                let (name, cause) = (&stripe.name, error.message());
                notes.push(format!("use page checksums {name}: {cause}; pages of that stripe are stored again"));
            }
            checked.is_ok()
        });
        notes
    }

    /// Whether the pages from `offset_in_frame` on have sums.
    pub fn covers(&self, set: SetIndex, stripe: StripeIndex, offset_in_frame: u32) -> bool {
        offset_in_frame.is_multiple_of(self.page_size_bytes) && self.stripes.contains_key(&(set, stripe))
    }

    /// Memory that it takes.
    pub fn memory_bytes(&self) -> u64 {
        let bytes = |stripe: &StripeSums| {
            let blocks = stripe.blocks.as_ref().map_or(0, |blocks| size_of_val(blocks.as_slice()));
            (stripe.before_frame.capacity() * size_of::<u32>() + blocks) as u64
        };
        self.stripes.values().map(bytes).sum()
    }

    /// Memory that one cursor takes.
    pub const CURSOR_BYTES: u64 = (BLOCKS_KEPT * SUMS_PER_BLOCK * 4 + PAGE_SUMS_BLOCK_BYTES) as u64;

    /// A place to read from.
    pub fn cursor(&self) -> SumsCursor<'_> {
        SumsCursor { sums: self, blocks: Vec::new(), next: 0, bytes: Vec::new() }
    }
}

impl StripeSums {
    fn count(&self) -> u64 {
        u64::from(self.before_frame.last().copied().unwrap_or(0))
    }

    fn check_blocks(&self, bytes: &mut Vec<u8>, sums: &mut Vec<u32>) -> Result<()> {
        let blocks = self.count().div_ceil(SUMS_PER_BLOCK as u64);
        (0..blocks).try_for_each(|block| self.read_block(block, bytes, sums))
    }

    /// Reads a block by way of `bytes` into `sums`.
    fn read_block(&self, block: u64, bytes: &mut Vec<u8>, sums: &mut Vec<u32>) -> Result<()> {
        self.read_bytes(block, bytes)?;
        if let Some(digests) = &self.blocks
            && digests.get(block as usize) != Some(&sha256(bytes))
        {
            let action = format!("use page checksums {}", self.name);
            return Err(Error::new(ErrorKind::Damage, action, NOT_SIGNED));
        }
        read_page_sums_block(bytes, sums)
    }

    fn read_bytes(&self, block: u64, bytes: &mut Vec<u8>) -> Result<()> {
        let (offset, length) = page_sums_block(block, self.count());
        bytes.resize(length, 0);
        self.object.read_at(bytes, offset)
    }

    /// Reads all of it, and keeps a digest of each block if all of it is what `signed` says.
    fn bind(&mut self, signed: &ObjectDigest) -> Result<()> {
        let (mut hasher, mut bytes) = (ObjectHasher::default(), vec![0u8; PAGE_SUMS_HEADER_BYTES]);
        self.object.read_at(&mut bytes, 0)?;
        hasher.update(&bytes);
        let mut blocks = Vec::new();
        for block in 0..self.count().div_ceil(SUMS_PER_BLOCK as u64) {
            self.read_bytes(block, &mut bytes)?;
            hasher.update(&bytes);
            blocks.push(sha256(&bytes));
        }
        if !signed.fits(&hasher.finish()) {
            return Err(Error::new(ErrorKind::Damage, format!("use page checksums {}", self.name), NOT_SIGNED));
        }
        self.blocks = Some(blocks);
        Ok(())
    }
}

const NOT_SIGNED: &str = "they are not what was signed: their SHA-256 is another one";

fn open_one(
    repository: &Repository,
    manifest: &Manifest,
    stripe: StripeIndex,
    index: &FrameIndex,
    page_size_bytes: u32,
) -> Result<Option<StripeSums>> {
    let Some(record) = &manifest.page_sums else { return Ok(None) };
    let Some(digest) = record.objects.get(usize::from(stripe.0)) else { return Ok(None) };
    if record.page_size_bytes != page_size_bytes {
        return Ok(None);
    }
    let name = format!("{}/{}", set_prefix(&manifest.source, &manifest.label), digest.name);
    let bad = |cause: &str| Error::new(ErrorKind::Damage, format!("use page checksums {name}"), cause);
    let object = repository.storage().open(&name)?.ok_or_else(|| bad("they are missing"))?;
    check_key(manifest, object.as_ref(), &name)?;
    let mut header = [0u8; PAGE_SUMS_HEADER_BYTES];
    object.read_at(&mut header, 0)?;
    let expected = PageSumsHeader { set_id: manifest.set_id()?, stripe, page_size_bytes };
    if PageSumsHeader::from_bytes(&header)? != expected {
        return Err(bad("they belong to another set or stripe"));
    }
    let mut before_frame = Vec::with_capacity(index.entries().len() + 1);
    let mut count = 0u32;
    before_frame.push(0);
    for entry in index.entries() {
        count = count.checked_add(entry.raw_size_bytes / page_size_bytes).ok_or_else(|| bad("there are too many"))?;
        before_frame.push(count);
    }
    if object.size_bytes() != page_sums_size_bytes(count.into()) || object.size_bytes() != digest.size_bytes {
        return Err(bad("their size does not fit the frames of the stripe"));
    }
    let mut sums = StripeSums { name, object, before_frame, blocks: None };
    // A page that is called unchanged is left out of a backup.
    if repository.keys().asks_for_signatures() && digest.sha256.is_some() {
        sums.bind(digest)?;
    }
    Ok(Some(sums))
}

struct CachedBlock {
    key: (SetIndex, StripeIndex, u64),
    sums: Vec<u32>,
}

/// Reads sums, and keeps the blocks read last.
pub struct SumsCursor<'a> {
    sums: &'a ChainSums,
    blocks: Vec<CachedBlock>,
    next: usize,
    bytes: Vec<u8>,
}

impl SumsCursor<'_> {
    /// Calls `take` for each page of `pages` from page `page_in_frame` of frame `frame` on, with its sum; the pages go on
    /// from frame to frame as a run does.
    ///
    /// # Errors
    /// `Damage` if the sums do not read or there are no such frames; those of the storage.
    pub fn read(&mut self, place: FirstPage, pages: u64, take: &mut dyn FnMut(u32)) -> Result<()> {
        let missing = || {
            Error::new(ErrorKind::Damage, format!("find page checksums of stripe {}", place.stripe), "there are none")
        };
        let key = (place.set, place.stripe);
        let stripe = self.sums.stripes.get(&key).ok_or_else(missing)?;
        let first = stripe.before_frame.get(place.frame as usize).ok_or_else(missing)?;
        let mut next = u64::from(*first) + u64::from(place.page_in_frame);
        let end = next + pages;
        if end > stripe.count() {
            return Err(missing());
        }
        while next < end {
            let number = next / SUMS_PER_BLOCK as u64;
            let from = (next % SUMS_PER_BLOCK as u64) as usize;
            let block =
                load(&mut self.blocks, &mut self.next, &mut self.bytes, stripe, (place.set, place.stripe, number))?;
            let block = &self.blocks[block].sums;
            let to = block.len().min(from + (end - next) as usize);
            block.get(from..to).ok_or_else(missing)?.iter().for_each(|sum| take(*sum));
            next += (to - from) as u64;
        }
        Ok(())
    }
}

/// Where a row of pages starts.
#[derive(Clone, Copy, Debug)]
pub struct FirstPage {
    /// Of which set.
    pub set: SetIndex,
    /// On which stripe.
    pub stripe: StripeIndex,
    /// In which frame.
    pub frame: u64,
    /// Which page of its raw bytes.
    pub page_in_frame: u32,
}

/// The position of a block among those kept, read if it is not there.
fn load(
    blocks: &mut Vec<CachedBlock>,
    next: &mut usize,
    bytes: &mut Vec<u8>,
    stripe: &StripeSums,
    key: (SetIndex, StripeIndex, u64),
) -> Result<usize> {
    if let Some(found) = blocks.iter().position(|block| block.key == key) {
        return Ok(found);
    }
    if blocks.len() < BLOCKS_KEPT {
        blocks.push(CachedBlock { key, sums: Vec::with_capacity(SUMS_PER_BLOCK) });
        *next = blocks.len() - 1;
    }
    let slot = *next;
    *next = (*next + 1) % BLOCKS_KEPT;
    // Not this block's before it has been read whole.
    blocks[slot].key = (key.0, key.1, u64::MAX);
    stripe.read_block(key.2, bytes, &mut blocks[slot].sums)?;
    blocks[slot].key = key;
    Ok(slot)
}
