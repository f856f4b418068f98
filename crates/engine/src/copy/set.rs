//! One set, copied object by object under its own commit: the manifest comes last.

use std::sync::Arc;

use super::as_stored::transfer;
use super::checks::{DigestCheck, ExpectedFrames, FramesCheck};
use crate::catalog::new_set::{NewSet, StripePlace, withdraw_without_priors};
use crate::catalog::pin::{PIN_NAME, read_pin_object};
use crate::catalog::reader_lease::hold;
use crate::catalog::repository::{FILE_TABLE_NAME, LEASE_NAME, MANIFEST_NAME, set_prefix};
use crate::catalog::second_copies::sound_file_table;
use crate::catalog::stripe_places::repaired_name;
use crate::catalog::{
    FoundStripe, HealedStripe, ParitySet, Repository, StripeDigests, check_key, check_unlocked, find_stripe,
    frame_digests, keys_of, open_parity_set,
};
use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::{Manifest, ObjectDigest, ParityRecord, StripeRecord};
use crate::format::stripe::StripeHeader;
use crate::pipeline::{CopyRun, Observer, Transfer, TransferTo, Transfers, Unchecked, watched};
use crate::storage::{Holder, Lease, ObjectReader, refuse_too_large};
use crate::terms::StripeIndex;

/// From where to where, and by which threads.
pub(super) struct SetCopier<'a> {
    pub(super) from: &'a Repository,
    pub(super) to: &'a Repository,
    pub(super) stripe_from: &'a [String],
    pub(super) stripe_to: &'a [String],
    pub(super) run: &'a CopyRun<'a>,
    pub(super) observer: &'a dyn Observer,
}

impl SetCopier<'_> {
    /// Copies the set of `manifest`, whose priors are in the other repository, and which a lease keeps in this one.
    ///
    /// When it returns, the copy is durable and complete. When it fails, nothing of it is left.
    ///
    /// # Errors
    /// `Damage` with object and place; `Conflict` if somebody else writes that set, or its stripes would meet others, or a
    /// prior goes; `Interrupted`; those of the storages.
    pub(super) fn copy(&self, manifest: &Manifest) -> Result<()> {
        // For recipients it is encrypted anew; an encrypted set that cannot be read, or without recipients, stays what it is.
        let keys = self.to.keys();
        if manifest.encryption.is_none() || (keys.encrypts() && keys.has_identities()) {
            check_unlocked(self.from, manifest)?;
            let to = self.to.with_keys(Arc::new(keys.that_write_anew()));
            return self.copy_to(&to, &Manifest { encryption: None, ..manifest.clone() }, (manifest, false));
        }
        match keys_of(self.from, manifest) {
            // Then what parity has healed is encrypted like the rest.
            Ok(own) => self.copy_to(&self.to.with_keys(own), manifest, (manifest, false)),
            Err(error) if error.kind() == ErrorKind::Configuration => {
                let signs = Arc::new(self.to.keys().that_only_sign());
                self.copy_to(&self.to.with_keys(signs), manifest, (manifest, true))
            }
            Err(error) => Err(error),
        }
    }

    /// Copies to `to`, whose manifest will be `copy` but for where its stripes lie; its objects as they lie there, if so said.
    fn copy_to(&self, to: &Repository, copy: &Manifest, of: (&Manifest, bool)) -> Result<()> {
        let (manifest, as_stored) = of;
        let (source, label) = (&manifest.source, &manifest.label);
        self.observer.phase(&format!("copy set {label}"));
        let _priors = hold(to, source, &manifest.prior)?;
        let places = self.places(to, manifest)?;
        let lease = self.take_lease(manifest)?;
        let set = NewSet::begin(to, source, label.clone(), lease, places)?;
        // As it lies there, an encrypted set cannot be healed: what rows give back would have to be encrypted anew.
        let digests = frame_digests(self.from, manifest)?;
        let parity = match as_stored {
            true => None,
            false => open_parity_set(self.from, manifest, self.stripe_from, digests.clone(), false)?
                .map(|(parity, _)| parity),
        };
        // Through parity, every frame is compared as it is read.
        let digests = digests.filter(|_| parity.is_none());
        let (parity, digests) = (parity.as_ref(), digests.as_deref());
        let objects = SetObjects { copier: self, to, manifest, set: &set, parity, digests, as_stored };
        self.run.run(&objects.stripes_and_sums())?;
        self.run.run(&objects.file_tables()?)?;
        self.copy_pin(manifest, &set)?;
        let records = manifest.all_stripes().enumerate();
        let mut stripes: Vec<StripeRecord> = records
            .map(|(number, record)| StripeRecord { directory: set.directory(number), ..record.clone() })
            .collect();
        let parities = stripes.split_off(manifest.stripes.len());
        let parity = manifest.parity.clone().map(|parity| ParityRecord { stripes: parities, ..parity });
        let copy = Manifest { stripes, parity, ..copy.clone() };
        set.confirm_objects(copy.all_stripes(), objects.digests())?;
        watched(self.observer, "commit the copy", || set.commit(&copy))?;
        withdraw_without_priors(to, &copy)
    }

    /// Where the stripes go. What a set's removal finds beside them would go with them, so nothing may be there: the stripes
    /// of the set that is copied may be, if the directory is one of theirs.
    fn places(&self, to: &Repository, manifest: &Manifest) -> Result<Vec<StripePlace>> {
        let directory = |stripe: usize| match self.stripe_to.len() {
            0 => None,
            count => Some(self.stripe_to[stripe % count].clone()),
        };
        let places = StripePlace::open_all(to, (0..manifest.all_stripes().count()).map(directory).collect())?;
        let prefix = set_prefix(&manifest.source, &manifest.label);
        for storage in places.iter().filter_map(StripePlace::storage) {
            if let Some(object) = storage.list(&prefix)?.first() {
                let action = format!("put stripes of set {} into {}", manifest.label, storage.describe());
                let cause = format!("{prefix}/{object} is there already");
                return Err(Error::new(ErrorKind::Conflict, action, cause)
                    .hint("give --stripe-to a directory that has no stripes of the same set"));
            }
        }
        Ok(places)
    }

    /// The lease of a set that is being written, in a place where nothing else is.
    fn take_lease(&self, manifest: &Manifest) -> Result<Box<dyn Lease>> {
        let storage = self.to.storage();
        let prefix = set_prefix(&manifest.source, &manifest.label);
        let name = format!("{prefix}/{LEASE_NAME}");
        let conflict = |cause: String| {
            let action = format!("copy set {} of {} to {}", manifest.label, manifest.source, storage.describe());
            Error::new(ErrorKind::Conflict, action, cause).hint("wait for the other one; then the same command goes on")
        };
        let lease = storage.lease(&name).inspect_err(|_| {
            // It goes if it is empty.
            storage.remove_prefix(&prefix).ok();
        })?;
        let Some(lease) = lease else {
            let holder = Holder::of_lease(storage, &name);
            return Err(conflict(format!("somebody else writes it now{}", Holder::suffix(holder.as_ref()))));
        };
        let objects = storage.list(&prefix)?;
        match objects.iter().find(|object| !object.starts_with(LEASE_NAME)) {
            None => Ok(lease),
            Some(object) => {
                if object == MANIFEST_NAME {
                    storage.delete(&name).ok();
                }
                Err(conflict(format!("{prefix}/{object} has come to be there")))
            }
        }
    }

    /// A pin goes along, and before the commit: a set that is to stay must not be without one for a moment.
    fn copy_pin(&self, manifest: &Manifest, set: &NewSet<'_>) -> Result<()> {
        if let Some(bytes) = read_pin_object(self.from, &manifest.source, &manifest.label)? {
            self.to.storage().put_new(&set.name(PIN_NAME), &bytes)?;
        }
        Ok(())
    }
}

/// The objects of one set.
#[derive(Clone, Copy)]
struct SetObjects<'a> {
    copier: &'a SetCopier<'a>,
    to: &'a Repository,
    manifest: &'a Manifest,
    set: &'a NewSet<'a>,
    as_stored: bool,
    /// Its stripes are read through it.
    parity: Option<&'a Arc<ParitySet>>,
    /// What the frames of each stripe must be, if a signature says so.
    digests: Option<&'a [StripeDigests]>,
}

/// One object of a set.
enum SetObject<'a> {
    Stripe(usize, &'a StripeRecord),
    Whole(&'a ObjectDigest),
    /// What the rows of parity are of; made anew.
    Rows(&'a ObjectDigest),
    /// The file table or its copy, by this name.
    Table(String),
}

impl<'a> SetObjects<'a> {
    /// All but stripes and manifest.
    fn digests(&self) -> impl Iterator<Item = &'a ObjectDigest> + use<'a> {
        self.manifest.other_objects()
    }

    fn stripes_and_sums(self) -> SetTransfers<'a> {
        let stripes = self.manifest.all_stripes().enumerate().map(|(number, record)| SetObject::Stripe(number, record));
        let sums = self.manifest.page_sums.iter().flat_map(|sums| &sums.objects);
        let sums = sums.chain(&self.manifest.frame_digests).map(SetObject::Whole);
        let rows = self.manifest.parity.iter().map(|parity| SetObject::Rows(&parity.rows));
        SetTransfers { of: self, objects: stripes.chain(sums).chain(rows).collect() }
    }

    /// The file table and its copy.
    fn file_tables(self) -> Result<SetTransfers<'a>> {
        let mut objects = vec![SetObject::Table(FILE_TABLE_NAME.to_owned())];
        // As it lies there, it has to be there; a set of an older version has none, and gets one where it can be read.
        let copy = repaired_name(FILE_TABLE_NAME, 1);
        let is_there = || self.copier.from.storage().open(&self.set.name(&copy)).map(|object| object.is_some());
        if self.manifest.parity.is_some() && (!self.as_stored || is_there()?) {
            objects.push(SetObject::Table(copy));
        }
        Ok(SetTransfers { of: self, objects })
    }

    fn hint(&self) -> String {
        let label = &self.manifest.label;
        format!(
            "nothing of set {label} was kept there; `pagehaul verify --set {label}` lists all damage of the original"
        )
    }

    fn stripe(&self, number: usize, record: &StripeRecord) -> Result<Transfer> {
        let stripe = StripeIndex(number as u16);
        let SetCopier { from, stripe_from, .. } = self.copier;
        let (object, place): (Box<dyn ObjectReader>, String) = match self.parity {
            None => self.not_repaired(find_stripe(from, self.manifest, stripe, record, stripe_from)?, record)?,
            Some(parity) => {
                let place = parity.place_of(number).unwrap_or("rebuilt from parity").to_owned();
                let label = &self.manifest.label;
                let healed = HealedStripe::new(parity, number).map_err(|error| {
                    let action = format!("copy {} of set {label}", parity.name_of(number));
                    Error::new(error.kind(), action, error.cause()).hint(self.hint())
                })?;
                (Box::new(healed), place)
            }
        };
        refuse_too_large(self.set.place(number), &record.name, record.size_bytes)?;
        if number >= self.manifest.stripes.len() {
            // Each of its frames was checked as it was read, or made anew.
            let to = self.set.place(number).create(&self.set.name(&record.name), record.size_bytes)?;
            return transfer(object, TransferTo::Created(to), Box::new(Unchecked), self.as_stored);
        }
        let header = StripeHeader {
            set_id: self.manifest.set_id()?,
            stripe,
            stripe_count: self.manifest.stripes.len() as u16,
            frame_size_bytes: self.manifest.frame_size_bytes,
        };
        let expected = ExpectedFrames {
            action: format!("copy stripe {stripe} of set {} ({place})", self.manifest.label),
            hint: self.hint(),
            first_bytes: header.to_bytes(),
            header,
            frame_count: record.frame_count,
            index_xxh3: record.index_xxh3.clone(),
            size_bytes: record.size_bytes,
            digests: self.digests.and_then(|digests| digests.get(number)).cloned(),
        };
        let check = FramesCheck::begin(expected, object.size_bytes())?;
        let to = self.set.place(number).create(&self.set.name(&record.name), record.size_bytes)?;
        transfer(object, TransferTo::Created(to), Box::new(check), self.as_stored)
    }

    /// An encrypted stripe cannot have another name than the one that it was encrypted with.
    fn not_repaired(&self, found: FoundStripe, record: &StripeRecord) -> Result<(Box<dyn ObjectReader>, String)> {
        if !self.as_stored || found.name.ends_with(&record.name) {
            return Ok((found.object, found.place));
        }
        let action = format!("copy {} of set {}", record.name, self.manifest.label);
        Err(Error::new(ErrorKind::Configuration, action, "it was repaired, and to copy it takes the key of the set")
            .hint("give --identity FILE, --key-command or --passphrase-file of one of its recipients"))
    }

    fn rows(&self, digest: &ObjectDigest) -> Result<Transfer> {
        if self.as_stored {
            return self.whole(digest, &digest.name, &digest.name);
        }
        let bytes = self.parity.map(|parity| parity.rows_bytes()).transpose()?.unwrap_or_default();
        let name = self.set.name(&digest.name);
        let action = format!("copy {name} of {}", self.copier.from.storage().describe());
        let check = DigestCheck::begin(digest.clone(), action, self.hint(), bytes.len() as u64)?;
        let to = self.to.storage().create(&name, digest.size_bytes)?;
        transfer(Box::new(InMemory(bytes)), TransferTo::Created(to), Box::new(check), false)
    }

    /// From whichever is sound; an encrypted one cannot have another name than the one that it was encrypted with.
    fn table(&self, name: &str) -> Result<Transfer> {
        let has_copies = self.manifest.parity.is_some() && !self.as_stored;
        let sound = match has_copies {
            true => sound_file_table(self.copier.from, self.manifest).map_err(|error| error.hint(self.hint()))?,
            false => name.to_owned(),
        };
        self.whole(&self.manifest.file_table, &sound, name)
    }

    fn whole(&self, digest: &ObjectDigest, from: &str, to: &str) -> Result<Transfer> {
        let (storage, name) = (self.copier.from.storage(), self.set.name(from));
        let action = format!("copy {name} of {}", storage.describe());
        let missing = || Error::new(ErrorKind::Damage, action.clone(), "it is missing").hint(self.hint());
        let object = storage.open(&name)?.ok_or_else(missing)?;
        check_key(self.manifest, object.as_ref(), &name)?;
        let check = DigestCheck::begin(digest.clone(), action, self.hint(), object.size_bytes())?;
        let to = self.to.storage().create(&self.set.name(to), digest.size_bytes)?;
        transfer(object, TransferTo::Created(to), Box::new(check), self.as_stored)
    }
}

/// Bytes that are read from memory.
struct InMemory(Vec<u8>);

impl ObjectReader for InMemory {
    fn size_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let missing = || Error::new(ErrorKind::Bug, "read bytes in memory", "they end before");
        let bytes = self.0.get(offset as usize..).and_then(|bytes| bytes.get(..buffer.len())).ok_or_else(missing)?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }
}

/// Some objects of a set; the first that fails fails the set.
struct SetTransfers<'a> {
    of: SetObjects<'a>,
    objects: Vec<SetObject<'a>>,
}

impl Transfers for SetTransfers<'_> {
    fn count(&self) -> usize {
        self.objects.len()
    }

    fn begin(&self, number: usize) -> Result<Option<Transfer>> {
        match &self.objects[number] {
            SetObject::Stripe(stripe, record) => self.of.stripe(*stripe, record),
            SetObject::Whole(digest) => self.of.whole(digest, &digest.name, &digest.name),
            SetObject::Table(name) => self.of.table(name),
            SetObject::Rows(digest) => self.of.rows(digest),
        }
        .map(Some)
    }

    fn done(&self, _number: usize, _is_new: bool, _size_bytes: u64) -> Result<()> {
        Ok(())
    }

    fn failed(&self, _number: usize, error: Error) -> Result<()> {
        Err(error)
    }
}
