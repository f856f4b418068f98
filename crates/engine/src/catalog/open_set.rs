//! One set, opened for reading: manifest, file table, stripes. What is wrong with it is found before a byte is used.

use std::sync::Arc;

use super::bound_stripe::{BYTES_PER_FRAME, BoundStripe, StripeDigests, frame_digests};
use super::manifest_lock::{check_key, check_unlocked, unlocked_if_possible};
use super::open_parity::open_with_parity;
use super::parity_set::{ParitySet, RebuiltFrame, parity_memory_bytes};
use super::rebuilder::RebuildRooms;
use super::repository::{MANIFEST_NAME, Repository, set_prefix};
use super::second_copies::sound_one;
use super::signed_head::check_manifest;
use super::stripe_index::{IndexFrom, index_hash, read_index};
use super::stripe_places::{FoundStripe, find_stripe, written_to};
use crate::encryption::ENCRYPTED_READER_BYTES;
use crate::error::{Error, ErrorKind, Result};
use crate::format::file_table::{FileTable, Place};
use crate::format::manifest::{Manifest, StripeRecord, hex64};
use crate::format::stripe::{FrameIndex, StripeHeader};
use crate::limits::MANIFEST_BYTES_MAX;
use crate::storage::{ObjectReader, at_once};
use crate::terms::{BackupLabel, SetId, SetIndex, SourceName, StripeIndex};

/// At 1 MiB a read and 30 ms an answer, 500 MB/s.
const REMOTE_READERS: u16 = 16;
/// A store takes about a millisecond of CPU for each answer, whatever its length: with 4 MiB instead of 1 MiB of content a
/// read, restores took 0.74 of the time, without compression and with lz4 (bench/runs/2026-11-24-stores-peers).
const REMOTE_TRANSFER_SIZE_BYTES: u32 = 4 << 20;

/// A set that can be read, perhaps with problems.
pub struct OpenSet {
    /// What it is.
    pub manifest: Manifest,
    /// The sets that it needs, nearest first.
    pub priors: Vec<Manifest>,
    /// Its files.
    pub table: FileTable,
    /// Its stripes in order, then those of each prior; one that cannot be read at all is None.
    pub stripes: Vec<Option<OpenStripe>>,
    /// What is wrong with it.
    pub problems: Vec<SetProblem>,
    /// The parity of each set of the chain, of those that have some.
    pub parity: Vec<Option<Arc<ParitySet>>>,
    /// How many frames are read against digests that were signed.
    pub bound_frame_count: u64,
}

/// A stripe that can be read.
pub struct OpenStripe {
    /// Which set of the chain it is of.
    pub set: SetIndex,
    /// That set's id.
    pub set_id: SetId,
    /// That set's raw bytes of a full frame.
    pub frame_size_bytes: u32,
    /// Its number.
    pub stripe: StripeIndex,
    /// Its bytes.
    pub object: Box<dyn ObjectReader>,
    /// Its frames.
    pub index: FrameIndex,
    /// Where it lies, for people.
    pub place: String,
}

/// Something wrong with a stripe, found without reading its frames.
#[derive(Debug)]
pub struct SetProblem {
    /// Which set of the chain.
    pub set: SetIndex,
    /// Which stripe.
    pub stripe: StripeIndex,
    /// Where it lies, for people.
    pub place: String,
    /// What is wrong.
    pub error: Error,
    /// Whether all its frames can be read all the same.
    pub harmless: bool,
    /// Whether that is so thanks to parity: the stripe should be repaired.
    pub by_parity: bool,
}

/// Reads and checks a set's manifest, or a copy of it if it is damaged.
///
/// # Errors
/// `Repository` if there is no such set or it was never finished, `Damage` if it does not read.
pub fn read_manifest(repository: &Repository, source: &SourceName, label: &BackupLabel) -> Result<Manifest> {
    let read = |object: &str| manifest_in(repository, source, label, object);
    sound_one(repository.storage(), &set_prefix(source, label), MANIFEST_NAME, &read).map(|(manifest, _)| manifest)
}

/// The manifest that this object of a set has.
pub(super) fn manifest_in(
    repository: &Repository,
    source: &SourceName,
    label: &BackupLabel,
    object: &str,
) -> Result<Manifest> {
    let name = format!("{}/{object}", set_prefix(source, label));
    let bytes = repository.storage().read_small(&name, MANIFEST_BYTES_MAX)?.ok_or_else(|| {
        let action = format!("open set {label} of {source}");
        Error::new(ErrorKind::Repository, action, NOT_FINISHED).hint("`pagehaul info` lists the sets")
    })?;
    check_manifest(repository, source, label, &bytes)?;
    let manifest = Manifest::from_bytes(&bytes, &name)?;
    if manifest.label != *label || manifest.source != *source {
        let cause = format!("it is the manifest of set {} of {}", manifest.label, manifest.source);
        return Err(Error::new(ErrorKind::Damage, format!("open set {label} of {source}"), cause));
    }
    if manifest.encryption.is_none() && repository.keys().require_encryption() {
        let cause = "it is not encrypted, and only what is encrypted may be read: somebody may have put it there";
        return Err(Error::new(ErrorKind::Damage, format!("open set {label} of {source}"), cause)
            .hint("if it is from the time before encryption, leave --require-encryption out"));
    }
    unlocked_if_possible(repository, manifest)
}

impl OpenSet {
    /// The manifest of the set itself or of one of its priors.
    pub fn manifest_of(&self, set: SetIndex) -> &Manifest {
        match set.0 {
            0 => &self.manifest,
            prior => self.priors.get(usize::from(prior) - 1).unwrap_or(&self.manifest),
        }
    }

    /// How many stripes each set of the chain has.
    pub fn stripe_counts(&self) -> Vec<usize> {
        self.chain().map(|manifest| manifest.stripes.len()).collect()
    }

    /// The set itself, then its priors.
    pub fn chain(&self) -> impl Iterator<Item = &Manifest> {
        std::iter::once(&self.manifest).chain(&self.priors)
    }

    /// Raw bytes of a full frame, the smallest and the largest of the chain.
    pub fn frame_sizes_bytes(&self) -> (u32, u32) {
        self.chain().fold((u32::MAX, 0), |(least, most), manifest| {
            (least.min(manifest.frame_size_bytes), most.max(manifest.frame_size_bytes))
        })
    }

    /// Whether frames of the page codec may be among the chain's. A set that was made of another chain may have taken some
    /// from there, whatever its own codec.
    pub fn may_hold_page_frames(&self) -> bool {
        let may = |compression: &str| compression == "auto" || compression.starts_with("page:");
        self.chain().any(|manifest| manifest.synthesized_from.is_some() || may(&manifest.compression))
    }

    /// How many threads read its stripes if nobody says otherwise, on a machine of `cores`.
    pub fn default_readers(&self, cores: u16) -> u16 {
        if self.is_remote() { REMOTE_READERS } else { cores.min(4) }
    }

    /// Whether reads of its stripes wait for answers from elsewhere.
    pub fn is_remote(&self) -> bool {
        self.stripes.iter().flatten().any(|stripe| stripe.object.is_remote())
    }

    /// A transfer size that is good for every stripe of the chain: that of its backups, more where each read is a request
    /// unless memory is short (`max_memory_bytes`).
    pub fn transfer_size_bytes(&self, max_memory_bytes: Option<u64>) -> u32 {
        let own = self.chain().map(|manifest| manifest.transfer_size_bytes.max(manifest.frame_size_bytes)).max();
        let least = if self.is_remote() && max_memory_bytes.is_none() { REMOTE_TRANSFER_SIZE_BYTES } else { 0 };
        own.unwrap_or(0).max(least)
    }

    /// Memory that parity takes at most while the set is read; 0 if no set of the chain has parity.
    pub fn parity_memory_bytes(&self) -> u64 {
        let sets: u64 = self.chain().map(parity_memory_bytes).sum();
        let parities = self.chain().map(|manifest| manifest.parity_stripes().len()).max().unwrap_or_default();
        let rooms = RebuildRooms::memory_bytes(parities, self.frame_sizes_bytes().1, self.is_remote());
        if sets == 0 { 0 } else { sets + rooms }
    }

    /// Memory that the digests of frames take; 0 if there are none.
    pub fn digests_bytes(&self) -> u64 {
        BYTES_PER_FRAME * self.bound_frame_count
    }

    /// What a thread that reads the chain takes to decrypt; 0 if nothing is encrypted.
    pub fn decryption_bytes(&self) -> u64 {
        if self.chain().any(|manifest| manifest.encryption.is_some()) { ENCRYPTED_READER_BYTES } else { 0 }
    }

    /// How many frames were rebuilt from parity so far, and those of stripes that are there, up to a bound.
    pub fn rebuilt(&self) -> (u64, Vec<RebuiltFrame>) {
        let mut all = (0, Vec::new());
        for (count, frames) in self.parity.iter().flatten().map(|parity| parity.rebuilt()) {
            all.0 += count;
            all.1.extend(frames);
        }
        all
    }

    /// How many frames all stripes of the chain have.
    pub fn frame_count(&self) -> u64 {
        self.chain().flat_map(|manifest| &manifest.stripes).map(|stripe| stripe.frame_count).sum()
    }
}

/// Reads the manifests of the sets that a set needs, nearest first.
///
/// # Errors
/// `Damage` if one is not there, does not read, or is another set than the one that was needed.
pub fn read_priors(repository: &Repository, manifest: &Manifest) -> Result<Vec<Manifest>> {
    let ids = manifest.prior_ids()?;
    let read = |(label, id): (&BackupLabel, SetId)| {
        let action = || format!("open set {} of {}", manifest.label, manifest.source);
        let hint = format!("set {label} must be brought back, or another set be used: `pagehaul info` lists them");
        let prior = read_manifest(repository, &manifest.source, label).map_err(|error| match error.kind() {
            // Not there: that is a loss, whereas a store that does not answer says nothing.
            ErrorKind::Repository if error.message().contains(NOT_FINISHED) => {
                Error::new(ErrorKind::Damage, action(), format!("it needs set {label}, which is not there"))
                    .hint(hint.clone())
            }
            _ => error,
        })?;
        if prior.set_id()? != id {
            let cause = format!("it needs set {label}, and another set has that label now");
            return Err(Error::new(ErrorKind::Damage, action(), cause).hint(hint));
        }
        Ok(prior)
    };
    at_once(manifest.prior.iter().zip(ids).collect(), read)
}

/// Opens a set with the sets it needs; `stripe_from` are further directories to look for stripes that are not where they
/// were written.
///
/// # Errors
/// `Damage` if the file table does not read or a prior is missing; problems of stripes are listed in the set, not errors.
pub fn open_set(
    repository: &Repository,
    source: &SourceName,
    label: &BackupLabel,
    stripe_from: &[String],
) -> Result<OpenSet> {
    let manifest = read_manifest(repository, source, label)?;
    let priors = read_priors(repository, &manifest)?;
    std::iter::once(&manifest).chain(&priors).try_for_each(|manifest| check_unlocked(repository, manifest))?;
    let table = read_file_table(repository, &manifest)?;
    let mut set = OpenSet {
        manifest,
        priors,
        table,
        stripes: Vec::new(),
        problems: Vec::new(),
        parity: Vec::new(),
        bound_frame_count: 0,
    };
    set.open_stripes(repository, stripe_from)?;
    set.check_references()?;
    Ok(set)
}

impl OpenSet {
    /// Opens the stripes of all sets of the chain, those without parity at the same time.
    fn open_stripes(&mut self, repository: &Repository, stripe_from: &[String]) -> Result<()> {
        let sets: Vec<(SetIndex, Manifest)> = (0..).map(SetIndex).zip(self.chain().cloned()).collect();
        let digests = at_once(sets.iter().collect(), |(_, manifest)| frame_digests(repository, manifest))?;
        let plain = sets.iter().filter(|(_, manifest)| manifest.parity.is_none());
        let stripes = plain.flat_map(|(set, manifest)| {
            let records = (0..).map(StripeIndex).zip(&manifest.stripes);
            records.map(move |(stripe, record)| (*set, manifest, stripe, record))
        });
        let opened = at_once(stripes.collect(), |(set, manifest, stripe, record)| {
            Ok(open_stripe(repository, manifest, set, stripe, record, stripe_from))
        })?;
        let mut opened = opened.into_iter();
        let rooms = RebuildRooms::new();
        for ((set, manifest), digests) in sets.iter().zip(digests) {
            self.bound_frame_count += digests.iter().flatten().map(|stripe| stripe.len() as u64).sum::<u64>();
            if manifest.parity.is_some() {
                let opened = open_with_parity(repository, manifest, *set, stripe_from, digests, &rooms);
                self.stripes.extend(opened.stripes);
                self.problems.extend(opened.problems);
                self.parity.push(opened.parity);
                continue;
            }
            self.parity.push(None);
            let first = self.stripes.len();
            for (stripe, opened) in (0..).map(StripeIndex).zip(opened.by_ref().take(manifest.stripes.len())) {
                self.take_stripe(*set, stripe, opened);
            }
            self.bind(first, digests.unwrap_or_default());
        }
        Ok(())
    }

    /// Takes the next stripe of a set without parity, and what is wrong with it.
    fn take_stripe(&mut self, set: SetIndex, stripe: StripeIndex, opened: Opened) {
        let (stripe_there, problem) = match opened {
            Ok((open, None)) => (Some(open), None),
            Ok((open, Some((error, harmless)))) => {
                let place = open.place.clone();
                (Some(open), Some((place, error, harmless)))
            }
            Err(failed) => (None, Some((failed.0, failed.1, false))),
        };
        self.stripes.push(stripe_there);
        let problem = problem.map(|(place, error, harmless)| SetProblem {
            set,
            stripe,
            place,
            error,
            harmless,
            by_parity: false,
        });
        self.problems.extend(problem);
    }

    /// Binds the stripes from the one at `first` on to the digests of their frames.
    fn bind(&mut self, first: usize, digests: Vec<StripeDigests>) {
        for (stripe, digests) in self.stripes[first..].iter_mut().zip(digests) {
            *stripe = stripe.take().map(|open| {
                let object = Box::new(BoundStripe::new(open.object, &open.index, digests));
                OpenStripe { object, ..open }
            });
        }
    }

    /// Every run must lie in a set and on a stripe that there is.
    fn check_references(&self) -> Result<()> {
        let counts = self.stripe_counts();
        let is_known = |place: Place| match place {
            Place::Zeros => true,
            Place::Frames { set, stripe, .. } => {
                counts.get(usize::from(set.0)).is_some_and(|count| usize::from(stripe.0) < *count)
            }
        };
        let lost = self.table.ids().find(|file| !self.table.runs(*file).iter().all(|run| is_known(run.place())));
        lost.map_or(Ok(()), |file| {
            let action = format!("find the bytes of {} in set {}", self.table.path_text(file), self.manifest.label);
            Err(Error::new(ErrorKind::Damage, action, "its place is a set or a stripe that the manifest does not name"))
        })
    }
}

/// What [`read_manifest`] says of a set that is not there.
const NOT_FINISHED: &str = "there is no finished backup of that label";

/// Reads and checks a set's file table, or a copy of it if it is damaged.
///
/// # Errors
/// `Damage` if it does not read.
pub fn read_file_table(repository: &Repository, manifest: &Manifest) -> Result<FileTable> {
    let read = |object: &str| table_in(repository, manifest, object);
    let prefix = set_prefix(&manifest.source, &manifest.label);
    sound_one(repository.storage(), &prefix, &manifest.file_table.name, &read).map(|(table, _)| table)
}

/// The file table that this object of a set has.
fn table_in(repository: &Repository, manifest: &Manifest, object: &str) -> Result<FileTable> {
    let name = format!("{}/{object}", set_prefix(&manifest.source, &manifest.label));
    let missing = || Error::new(ErrorKind::Damage, format!("open {name}"), "the set's file table is missing");
    let object = repository.storage().open(&name)?.ok_or_else(missing)?;
    if object.size_bytes() != manifest.file_table.size_bytes {
        let cause =
            format!("it has {} bytes where the manifest says {}", object.size_bytes(), manifest.file_table.size_bytes);
        return Err(Error::new(ErrorKind::Damage, format!("open {name}"), cause));
    }
    check_key(manifest, object.as_ref(), &name)?;
    let mut offset = 0u64;
    let (table, sums) = FileTable::read(manifest.set_id()?, object.size_bytes(), &mut |into| {
        object.read_at(into, offset)?;
        offset += into.len() as u64;
        Ok(())
    })?;
    if !manifest.file_table.fits(&sums) {
        let cause = "it is not the file table that the manifest names";
        return Err(Error::new(ErrorKind::Damage, format!("open {name}"), cause));
    }
    Ok(table)
}

/// A stripe with what is wrong with it and whether that is harmless; or its place and why it cannot be read.
type Opened = std::result::Result<(OpenStripe, Option<(Error, bool)>), Box<(String, Error)>>;

/// Opens a stripe of a set without parity.
fn open_stripe(
    repository: &Repository,
    manifest: &Manifest,
    set: SetIndex,
    stripe: StripeIndex,
    record: &StripeRecord,
    stripe_from: &[String],
) -> Opened {
    let fail = |error: Error| Box::new((written_to(repository, manifest, record), error));
    let set_id = manifest.set_id().map_err(fail)?;
    let FoundStripe { object, place, .. } =
        find_stripe(repository, manifest, stripe, record, stripe_from).map_err(fail)?;
    let header = header_of(manifest, set_id, stripe);
    let (index, problem) = match look_at_index(object.as_ref(), &header, record) {
        Ok(looked) => looked,
        Err(error) => return Err(Box::new((place, error))),
    };
    let frame_size_bytes = manifest.frame_size_bytes;
    Ok((OpenStripe { set, set_id, frame_size_bytes, stripe, object, index, place }, problem))
}

/// The header that a stripe of a set must have.
pub(super) fn header_of(manifest: &Manifest, set_id: SetId, stripe: StripeIndex) -> StripeHeader {
    StripeHeader {
        set_id,
        stripe,
        stripe_count: manifest.stripes.len() as u16,
        frame_size_bytes: manifest.frame_size_bytes,
    }
}

/// The index of a stripe, and what is wrong with it and whether that is harmless.
///
/// # Errors
/// `Damage` if it is another stripe; those of the storage.
pub(super) fn look_at_index(
    object: &dyn ObjectReader,
    header: &StripeHeader,
    record: &StripeRecord,
) -> Result<(FrameIndex, Option<(Error, bool)>)> {
    let size_bytes = object.size_bytes();
    let (index, damage) = match read_index(object, header, record.frame_count)? {
        IndexFrom::Trailer(index) => (index, None),
        IndexFrom::Scan(index, damage) => (index, Some(damage)),
    };
    let same_index = hex64(index_hash(&index, header)) == record.index_xxh3;
    let problem = match damage {
        // The last frame's header may be there and its bytes not.
        Some(damage) => Some((damage, same_index && index.end_offset() <= size_bytes)),
        None if !same_index || size_bytes != record.size_bytes => {
            let cause = "its index or size is not the one that the manifest names";
            Some((Error::new(ErrorKind::Damage, format!("open stripe {}", header.stripe), cause), false))
        }
        None => None,
    };
    Ok((index, problem))
}
