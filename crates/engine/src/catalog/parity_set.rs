//! The stripes of one set with its parity stripes, and what follows of one from the others.
//!
//! A *member* is a stripe or a parity stripe, numbered in this order. A frame that is lost is rebuilt from its row: from the
//! frames of the other stripes, each of which is checked, and from as many parity frames as there are lost ones.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::bound_stripe::{StripeDigests, check_signed};
use super::parity_rows::Rows;
use super::rebuilder::RebuildRooms;
use super::repository::Repository;
use crate::encryption::ENCRYPTED_READER_BYTES;
use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::xxh3;
use crate::format::frame::{FRAME_HEADER_BYTES, FrameHeader, FrameKind};
use crate::format::manifest::{Manifest, StripeRecord, hex64};
use crate::format::parity::{ParityHeader, row_table_bytes};
use crate::format::stripe::{FrameIndex, INDEX_ENTRY_BYTES, STRIPE_HEADER_BYTES, StripeHeader};
use crate::storage::ObjectReader;
use crate::terms::{SetId, SetIndex, StripeIndex, is_elsewhere};

/// Frames that were rebuilt and are listed one by one; beyond it they are only counted.
const LISTED_MAX: usize = 1000;

/// A stripe or parity stripe that was found.
pub(super) struct Member {
    pub(super) object: Box<dyn ObjectReader>,
    /// Where it lies, for people.
    pub(super) place: String,
    /// If it was put back: what it was put back for, and what was put back before. Where it is wrong they are read, for whoever may add objects can
    /// add one that only looks like it.
    pub(super) older: Vec<Box<dyn ObjectReader>>,
}

impl Member {
    pub(super) fn new(object: Box<dyn ObjectReader>, place: String) -> Self {
        Member { object, place, older: Vec::new() }
    }
}

/// A frame that was rebuilt.
#[derive(Clone, Debug)]
pub struct RebuiltFrame {
    /// Of which set of the chain.
    pub set: SetIndex,
    /// On which stripe.
    pub stripe: StripeIndex,
    /// Which frame of it.
    pub sequence: u64,
    /// What is wrong with it.
    pub cause: String,
}

/// Where the frames of a member lie, and what is before and behind them.
pub(super) struct Layout {
    pub(super) header: [u8; STRIPE_HEADER_BYTES],
    /// Where each frame starts, then where the trailer does.
    pub(super) offsets: Vec<u64>,
    pub(super) trailer: Vec<u8>,
}

/// The stripes and parity stripes of one set.
pub struct ParitySet {
    set: SetIndex,
    set_id: SetId,
    frame_size_bytes: u32,
    stripe_count: usize,
    parity_count: usize,
    records: Vec<StripeRecord>,
    members: Vec<Option<Member>>,
    /// What the frames of each stripe must be, if a signature says so.
    digests: Option<Vec<StripeDigests>>,
    /// The object that says what the rows are of.
    own_rows: Option<Member>,
    /// Of each stripe whose own trailer is sound.
    indexes: Vec<Option<FrameIndex>>,
    /// What the rows are, or why that is not known.
    rows: OnceLock<std::result::Result<Rows, String>>,
    offsets: Vec<OnceLock<Option<Vec<u64>>>>,
    rooms: Arc<RebuildRooms>,
    rebuilt: Mutex<Rebuilt>,
    /// Only where somebody wants to know.
    sound: OnceLock<Vec<Sound>>,
}

/// A bit for each frame of a member's own object that was found to be what it should be.
struct Sound(Vec<AtomicU64>);

impl Sound {
    fn new(frame_count: u64) -> Self {
        Sound((0..frame_count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    fn word(&self, sequence: u64) -> Option<(&AtomicU64, u64)> {
        Some((self.0.get((sequence / 64) as usize)?, 1 << (sequence % 64)))
    }
}

#[derive(Default)]
struct Rebuilt {
    frames: BTreeSet<(usize, u64)>,
    listed: Vec<RebuiltFrame>,
}

impl ParitySet {
    /// Over what was found of the members of `manifest`, which has parity.
    pub(super) fn new(
        set: SetIndex,
        manifest: &Manifest,
        members: Vec<Option<Member>>,
        own_rows: Option<Member>,
        indexes: Vec<Option<FrameIndex>>,
        digests: Option<Vec<StripeDigests>>,
        rooms: Arc<RebuildRooms>,
    ) -> Result<Self> {
        let stripe_count = manifest.stripes.len();
        Ok(ParitySet {
            set,
            set_id: manifest.set_id()?,
            frame_size_bytes: manifest.frame_size_bytes,
            stripe_count,
            parity_count: manifest.parity_stripes().len(),
            records: manifest.all_stripes().cloned().collect(),
            members,
            digests,
            own_rows,
            indexes,
            rows: OnceLock::new(),
            offsets: (0..stripe_count).map(|_| OnceLock::new()).collect(),
            rooms,
            rebuilt: Mutex::default(),
            sound: OnceLock::new(),
        })
    }

    /// Which set of its chain it is.
    pub(super) fn index(&self) -> SetIndex {
        self.set
    }

    /// How many stripes, and how many of parity.
    pub fn counts(&self) -> (usize, usize) {
        (self.stripe_count, self.parity_count)
    }

    /// What the manifest says of a member.
    pub fn record(&self, member: usize) -> &StripeRecord {
        &self.records[member]
    }

    /// "stripe 2" or "parity stripe 0".
    pub fn name_of(&self, member: usize) -> String {
        match member.checked_sub(self.stripe_count) {
            None => format!("stripe {member}"),
            Some(parity) => format!("parity stripe {parity}"),
        }
    }

    /// Whether a member was found.
    pub fn is_there(&self, member: usize) -> bool {
        self.members[member].is_some()
    }

    /// Where a member lies, for people, if it was found.
    pub fn place_of(&self, member: usize) -> Option<&str> {
        self.members[member].as_ref().map(|member| member.place.as_str())
    }

    pub(super) fn member(&self, member: usize) -> Option<&dyn ObjectReader> {
        self.members[member].as_ref().map(|member| member.object.as_ref())
    }

    /// Other objects of the member, which are read where it is wrong.
    pub(super) fn older(&self, member: usize) -> impl Iterator<Item = &dyn ObjectReader> {
        self.members[member].iter().flat_map(|member| &member.older).map(AsRef::as_ref)
    }

    /// Whether reads wait for answers from elsewhere.
    pub(super) fn is_remote(&self) -> bool {
        self.members.iter().flatten().any(|member| member.object.is_remote())
    }

    /// The header that a parity stripe must have.
    pub(super) fn parity_header(&self, parity: usize) -> ParityHeader {
        ParityHeader {
            set_id: self.set_id,
            parity: StripeIndex(parity as u16),
            parity_count: self.parity_count as u16,
            stripe_count: self.stripe_count as u16,
            frame_size_bytes: self.frame_size_bytes,
        }
    }

    /// The header that a stripe must have.
    pub(super) fn stripe_header(&self, stripe: usize) -> StripeHeader {
        StripeHeader {
            set_id: self.set_id,
            stripe: StripeIndex(stripe as u16),
            stripe_count: self.stripe_count as u16,
            frame_size_bytes: self.frame_size_bytes,
        }
    }

    /// What its rows are of.
    ///
    /// # Errors
    /// `Damage` if that is not known.
    pub(super) fn rows(&self) -> Result<&Rows> {
        let rows = self.rows.get_or_init(|| {
            let parities = (0..self.parity_count)
                .filter_map(|parity| Some((self.parity_header(parity), self.member(self.stripe_count + parity)?)));
            let frame_counts: Vec<u64> =
                self.records[..self.stripe_count].iter().map(|record| record.frame_count).collect();
            let parities: Vec<_> = parities.collect();
            let own = self.own_rows.as_ref().map(|rows| rows.object.as_ref());
            let records = &self.records[self.stripe_count..];
            Rows::read(own, &parities, records, &self.parity_header(0), &frame_counts)
                .map_err(|error| error.cause().to_owned())
        });
        rows.as_ref().map_err(|cause| Error::new(ErrorKind::Damage, "read the parity of the set", cause))
    }

    /// The index of a stripe as the rows give it.
    ///
    /// # Errors
    /// `Damage` if they do not, or it is not the one that the manifest names.
    pub(super) fn index_from_rows(&self, stripe: usize) -> Result<FrameIndex> {
        let bad = |cause| Error::new(ErrorKind::Damage, format!("rebuild the index of stripe {stripe}"), cause);
        let index = self.rows()?.index_of(stripe).ok_or_else(|| bad("not every row of parity can be read"))?;
        let hash = super::stripe_index::index_hash(&index, &self.stripe_header(stripe));
        if hex64(hash) == self.records[stripe].index_xxh3 {
            Ok(index)
        } else {
            Err(bad("the rows of parity are not of the stripe that the manifest names"))
        }
    }

    /// Where the frames of a stripe start, and where its trailer does.
    pub(super) fn stripe_offsets(&self, stripe: usize) -> Option<&[u64]> {
        let offsets = self.offsets[stripe].get_or_init(|| {
            let index = self.indexes[stripe].clone().or_else(|| self.index_from_rows(stripe).ok())?;
            Some(offsets_of(&index))
        });
        offsets.as_deref()
    }

    /// Where everything of a member must lie.
    ///
    /// # Errors
    /// `Damage` if that is not known.
    pub(super) fn layout(&self, member: usize) -> Result<Layout> {
        if member < self.stripe_count {
            let header = self.stripe_header(member);
            let index = match &self.indexes[member] {
                Some(index) => index.clone(),
                None => self.index_from_rows(member)?,
            };
            let (offsets, trailer) = (offsets_of(&index), index.to_trailer(&header));
            return Ok(Layout { header: header.to_bytes(), offsets, trailer });
        }
        let header = self.parity_header(member - self.stripe_count);
        let (index, offsets) = match self.rows()?.whole() {
            Some((index, offsets)) => (index.clone(), offsets),
            None => return Err(self.lost_rows()),
        };
        Ok(Layout { header: header.to_bytes(), offsets, trailer: index.to_trailer(&header) })
    }

    /// What the object that says what the rows are of must hold.
    ///
    /// # Errors
    /// `Damage` if that is not known any more.
    pub fn rows_bytes(&self) -> Result<Vec<u8>> {
        let whole = self.rows()?.whole();
        whole.map(|(index, _)| index.to_trailer(&self.parity_header(0))).ok_or_else(|| self.lost_rows())
    }

    /// What is wrong with that object, for people; None if nothing is.
    pub fn what_is_wrong_with_rows(&self) -> Option<String> {
        let Some(member) = &self.own_rows else { return Some("it is missing".to_owned()) };
        let wanted = match self.rows_bytes() {
            Ok(wanted) => wanted,
            Err(error) => return Some(error.message()),
        };
        let mut bytes = vec![0u8; wanted.len()];
        match member.object.read_at(&mut bytes, 0) {
            Err(error) => Some(error.message()),
            Ok(()) if bytes != wanted || member.object.size_bytes() != wanted.len() as u64 => {
                Some("it is not what was written".to_owned())
            }
            Ok(()) => None,
        }
    }

    fn lost_rows(&self) -> Error {
        let cause = "rows of every parity stripe are lost, and which frames they were of is not known";
        Error::new(ErrorKind::Damage, "rebuild a parity stripe", cause)
    }

    /// Looks whether `bytes` are frame `sequence` of a member.
    ///
    /// # Errors
    /// `Damage` if not.
    pub(super) fn check_frame(&self, member: usize, sequence: u64, bytes: &[u8]) -> Result<()> {
        let bad = |cause: &str| Err(Error::new(ErrorKind::Damage, "read a frame", cause));
        let (kind, stripe) = match member.checked_sub(self.stripe_count) {
            None => (FrameKind::Data, member),
            Some(parity) => (FrameKind::ParityRow, parity),
        };
        let header = FrameHeader::from_bytes_of(bytes, kind)?;
        if header.set_id != self.set_id {
            return bad("it belongs to another backup set");
        }
        if usize::from(header.stripe.0) != stripe || header.sequence != sequence {
            return bad(&format!("it is frame {} of stripe {}, in the wrong place", header.sequence, header.stripe));
        }
        let stored = &bytes[FRAME_HEADER_BYTES..];
        if header.stored_size_bytes as usize != stored.len() {
            return bad("its sizes are not those of the index");
        }
        if xxh3(stored) != header.stored_xxh3 {
            return bad("the checksum of its stored bytes does not match");
        }
        // A parity frame has none: what is rebuilt with it has.
        let digests = self.digests.as_ref().and_then(|stripes| stripes.get(member));
        digests.map_or(Ok(()), |digests| check_signed(digests, sequence as usize, bytes))
    }

    /// Room to rebuild frames in; waits for it.
    pub(super) fn rooms(&self) -> &RebuildRooms {
        &self.rooms
    }

    /// From here on it is noted which frames were found to be what they should be.
    pub fn keep_sound(&self) {
        // What a manifest claims must not cost the memory to say so.
        let frames = |record: &StripeRecord, member: &Option<Member>| {
            let bytes = member.as_ref().map_or(0, |member| member.object.size_bytes());
            Sound::new(record.frame_count.min(bytes / FRAME_HEADER_BYTES as u64))
        };
        self.sound
            .get_or_init(|| self.records.iter().zip(&self.members).map(|(of, member)| frames(of, member)).collect());
    }

    fn sound(&self, member: usize, sequence: u64) -> Option<(&AtomicU64, u64)> {
        self.sound.get()?[member].word(sequence)
    }

    /// Notes that a frame of a member's own object is what it should be.
    pub(super) fn note_sound(&self, member: usize, sequence: u64) {
        if let Some((word, bit)) = self.sound(member, sequence) {
            word.fetch_or(bit, Relaxed);
        }
    }

    /// Whether that was noted.
    pub(super) fn is_sound(&self, member: usize, sequence: u64) -> bool {
        self.sound(member, sequence).is_some_and(|(word, bit)| word.load(Relaxed) & bit != 0)
    }

    /// Notes that a frame was rebuilt, and why.
    pub(super) fn note_rebuilt(&self, member: usize, sequence: u64, cause: &Error) {
        let mut rebuilt = self.rebuilt.lock().unwrap_or_else(PoisonError::into_inner);
        if member < self.stripe_count
            && rebuilt.frames.insert((member, sequence))
            && self.is_there(member)
            && rebuilt.listed.len() < LISTED_MAX
        {
            let stripe = StripeIndex(member as u16);
            rebuilt.listed.push(RebuiltFrame { set: self.set, stripe, sequence, cause: cause.message() });
        }
    }

    /// How many frames of stripes were rebuilt so far, and those of stripes that are there, up to a bound.
    pub fn rebuilt(&self) -> (u64, Vec<RebuiltFrame>) {
        let rebuilt = self.rebuilt.lock().unwrap_or_else(PoisonError::into_inner);
        (rebuilt.frames.len() as u64, rebuilt.listed.clone())
    }
}

fn offsets_of(index: &FrameIndex) -> Vec<u64> {
    let mut offset = STRIPE_HEADER_BYTES as u64;
    let mut offsets = Vec::with_capacity(index.entries().len() + 1);
    offsets.push(offset);
    for entry in index.entries() {
        offset += entry.size_on_stripe_bytes();
        offsets.push(offset);
    }
    offsets
}

/// Memory that parity takes while a set is read, beside its indexes: its rows, and where its frames start.
pub(super) fn parity_memory_bytes(manifest: &Manifest) -> u64 {
    let Some(parity) = manifest.parity_stripes().first() else { return 0 };
    let frames: u64 = manifest.stripes.iter().map(|stripe| stripe.frame_count).sum();
    let sound = (frames + manifest.parity_stripes().len() as u64 * parity.frame_count) / 8;
    // Offsets of the reader and of who rebuilds, the index, and its trailer.
    Rows::memory_bytes(parity.frame_count, manifest.stripes.len() as u64, frames) + frames * 32 + sound
}

/// The same of who reads stripes of the set in parts, so many at a time.
pub fn healed_memory_bytes(repository: &Repository, manifest: &Manifest, stripe_from: &[String], readers: u16) -> u64 {
    if manifest.parity.is_none() {
        return 0;
    }
    let frame_size_bytes = manifest.frame_size_bytes;
    let is_remote = may_be_elsewhere(repository, manifest, stripe_from);
    let decryption = if manifest.encryption.is_some() { ENCRYPTED_READER_BYTES } else { 0 };
    let parts = u64::from(readers) * (u64::from(frame_size_bytes) + row_table_bytes(256) as u64 + decryption);
    let rooms = RebuildRooms::memory_bytes(manifest.parity_stripes().len(), frame_size_bytes, is_remote);
    parity_memory_bytes(manifest) + rooms + parts
}

/// Whether reads of the set's stripes may wait for answers from elsewhere.
pub fn may_be_elsewhere(repository: &Repository, manifest: &Manifest, stripe_from: &[String]) -> bool {
    let directories = manifest.all_stripes().filter_map(|stripe| stripe.directory.as_ref());
    is_elsewhere(&repository.storage().describe()) || directories.chain(stripe_from).any(|target| is_elsewhere(target))
}

/// Memory that the layouts of all members of a set take at the same time, while their ends are compared with what lies there.
pub fn layouts_memory_bytes(manifest: &Manifest) -> u64 {
    let Some(parity) = manifest.parity_stripes().first() else { return 0 };
    let frames: u64 = manifest.stripes.iter().map(|stripe| stripe.frame_count).sum();
    let (parities, entry, offset) = (manifest.parity_stripes().len() as u64, INDEX_ENTRY_BYTES as u64, 8);
    let stripes = frames * (offset + entry);
    // The trailer of a parity stripe has an entry for each stripe in each row.
    let rows = parity.frame_count * (offset + entry * manifest.stripes.len() as u64);
    2 * (stripes + parities * rows)
}
