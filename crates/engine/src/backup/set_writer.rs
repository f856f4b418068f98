//! The set that a backup writes: its label, its stripes, its file table.

use super::plan::{StripeDirectories, expected_bytes, largest_stripe_bytes};
use super::report::StripeReport;
use crate::catalog::encryption_mark::refuse_clear;
use crate::catalog::new_set::{NewSet, StripePlace};
use crate::catalog::repository::{
    FILE_TABLE_NAME, FRAME_DIGESTS_NAME, LEASE_NAME, ROWS_NAME, Repository, page_sums_name, parity_name, set_prefix,
    stripe_name,
};
use crate::catalog::signed_head::refuse_unsigned;
use crate::catalog::stripe_places::repaired_name;
use crate::error::{Error, ErrorKind, Result};
use crate::format::file_table::FileTable;
use crate::format::frame::FrameDigest;
use crate::format::manifest::{Manifest, ObjectDigest, ParityRecord, StripeRecord, hex64};
use crate::format::object_digest::{ObjectHasher, ObjectSums};
use crate::format::page_sums::PageSumsHeader;
use crate::format::parity::ParityHeader;
use crate::format::stripe::StripeHeader;
use crate::pipeline::{
    FinishedStripe, Observer, Parity, PipelineSettings, Progress, Stripe, SumsObject, pause, watched,
};
use crate::storage::{Lease, Storage, at_once, object_place};
use crate::terms::{BackupKind, BackupLabel, SetId, SourceName, StripeIndex};

/// How often a new label is tried: one a second, and a repository has few backups that start in one second.
const LABEL_ATTEMPTS: usize = 10;

/// A set that is not committed yet; dropping it removes everything that was written.
pub(super) struct SetWriter<'a> {
    storage: &'a dyn Storage,
    pub(super) source: SourceName,
    pub(super) label: BackupLabel,
    pub(super) set_id: SetId,
    set: NewSet<'a>,
    /// Of the places of the set so many are of stripes, the others of parity.
    stripe_count: u16,
    /// What a stripe may get.
    largest_bytes: u64,
    /// Whether its manifest, which is signed, is to name digests of its frames. Those of an encrypted set are bound to it by
    /// their key.
    has_digests: bool,
}

/// The stripes of a set and what else comes of writing them.
pub(super) struct StripesWritten {
    pub(super) stripes: Vec<StripeRecord>,
    /// One object for each stripe.
    pub(super) page_sums: Option<Vec<ObjectDigest>>,
    pub(super) frame_digests: Option<ObjectDigest>,
}

impl<'a> SetWriter<'a> {
    /// Takes a label nobody has, holds its lease, and notes where the stripes will be. The label is later than that of
    /// `behind`, even if the clock was set back since.
    ///
    /// # Errors
    /// Those of the storage; `Conflict` if no label is free.
    pub(super) fn begin(
        repository: &'a Repository,
        source: &SourceName,
        kind: BackupKind,
        directories: StripeDirectories,
        content_bytes: u64,
        behind: Option<&BackupLabel>,
    ) -> Result<Self> {
        let storage = repository.storage();
        repository.each(|copy| {
            refuse_clear(copy, source, repository.keys())?;
            refuse_unsigned(copy, source)
        })?;
        // Before the label: a directory that cannot be used must not leave a begun set behind.
        let stripe_count = directories.stripes.len() as u16;
        let places = StripePlace::open_all(repository, [directories.stripes, directories.parity].concat())?;
        let set_id = SetId::random()?;
        let (label, lease) = take_label(repository, source, kind, behind, &places)?;
        let set = NewSet::begin(repository, source, label.clone(), lease, places)?;
        let has_digests = repository.keys().bind_content();
        let largest_bytes = largest_stripe_bytes(expected_bytes(kind, content_bytes), stripe_count);
        Ok(SetWriter { storage, source: source.clone(), label, set_id, set, stripe_count, largest_bytes, has_digests })
    }

    fn name(&self, object: &str) -> String {
        self.set.name(object)
    }

    fn place(&self, stripe: usize) -> &dyn Storage {
        self.set.place(stripe)
    }

    /// Creates all stripes, each with an object for the checksums of its pages if these have a size.
    ///
    /// # Errors
    /// Those of the storages.
    pub(super) fn create_stripes(&self, frame_size_bytes: u32, page_size_bytes: Option<u32>) -> Result<Vec<Stripe>> {
        let stripe_count = self.stripe_count;
        let create = |number: u16| {
            let object =
                self.place(usize::from(number)).create(&self.name(&stripe_name(number)), self.largest_bytes)?;
            let header =
                StripeHeader { set_id: self.set_id, stripe: StripeIndex(number), stripe_count, frame_size_bytes };
            let sums = page_size_bytes.map(|page_size_bytes| {
                let header = PageSumsHeader { set_id: self.set_id, stripe: StripeIndex(number), page_size_bytes };
                SumsObject::begin(&header, self.storage.create(&self.name(&page_sums_name(number)), 0)?)
            });
            let stripe = Stripe::begin(header, object, sums.transpose()?)?;
            Ok(if self.has_digests { stripe.with_digests() } else { stripe })
        };
        at_once((0..stripe_count).collect(), create)
    }

    /// Creates the parity stripes; None if the set has none.
    ///
    /// # Errors
    /// Those of the storages.
    pub(super) fn create_parity(&self, settings: &PipelineSettings) -> Result<Option<Parity>> {
        let parity_count = self.set.place_count() - self.stripe_count;
        if parity_count == 0 {
            return Ok(None);
        }
        let create = |number: u16| {
            self.parity_place(usize::from(number)).create(&self.name(&parity_name(number)), self.largest_bytes)
        };
        let objects = at_once((0..parity_count).collect(), create)?;
        let first = ParityHeader {
            set_id: self.set_id,
            parity: StripeIndex(0),
            parity_count,
            stripe_count: self.stripe_count,
            frame_size_bytes: settings.frame_size_bytes,
        };
        Parity::begin(first, objects, settings).map(Some)
    }

    fn parity_place(&self, parity: usize) -> &dyn Storage {
        self.place(usize::from(self.stripe_count) + parity)
    }

    /// Finishes the parity stripes: from here on they are durable.
    ///
    /// # Errors
    /// Those of the storages.
    pub(super) fn finish_parity(
        &self,
        parity: Option<Parity>,
        observer: &dyn Observer,
    ) -> Result<Option<ParityRecord>> {
        let Some(parity) = parity else { return Ok(None) };
        let record = |(number, finished): (usize, FinishedStripe)| StripeRecord {
            name: parity_name(number as u16),
            directory: self.set.directory(usize::from(self.stripe_count) + number),
            size_bytes: finished.size_bytes,
            frame_count: finished.frame_count,
            index_xxh3: hex64(finished.index_xxh3),
        };
        let (finished, trailer) = watched(observer, "make the parity stripes durable", || parity.finish())?;
        let mut object = self.storage.create(&self.name(ROWS_NAME), 0)?;
        object.append(&trailer)?;
        object.finish()?;
        let rows = ObjectDigest::new(ROWS_NAME.to_owned(), &ObjectSums::of(&trailer));
        Ok(Some(ParityRecord { rows, stripes: finished.into_iter().enumerate().map(record).collect() }))
    }

    /// Where each of the finished parity stripes lies, and its size.
    fn parity_reports(&self, stripes: &[StripeRecord]) -> Vec<StripeReport> {
        let report = |(parity, record): (usize, &StripeRecord)| StripeReport {
            path: object_place(&self.parity_place(parity).describe(), &self.name(&record.name)),
            bytes: record.size_bytes,
        };
        stripes.iter().enumerate().map(report).collect()
    }

    /// Finishes all stripes, their pages' checksums and their frames' digests: from here on they are durable.
    ///
    /// # Errors
    /// Those of the storages.
    pub(super) fn finish_stripes(&self, stripes: Vec<Stripe>, observer: &dyn Observer) -> Result<StripesWritten> {
        let (mut sums, mut digests) = (Vec::new(), Vec::new());
        let record = |(number, finished): (usize, FinishedStripe)| {
            sums.push(finished.sums.map(|sums| ObjectDigest::new(page_sums_name(number as u16), &sums)));
            digests.push(finished.digests);
            StripeRecord {
                name: stripe_name(number as u16),
                directory: self.set.directory(number),
                size_bytes: finished.size_bytes,
                frame_count: finished.frame_count,
                index_xxh3: hex64(finished.index_xxh3),
            }
        };
        let finished = watched(observer, "make the stripes durable", || Stripe::finish_all(stripes))?;
        let stripes = finished.into_iter().enumerate().map(record).collect();
        let digests: Option<Vec<Vec<FrameDigest>>> = digests.into_iter().collect();
        let frame_digests = digests.map(|digests| self.write_frame_digests(&digests)).transpose()?;
        Ok(StripesWritten { stripes, page_sums: sums.into_iter().collect(), frame_digests })
    }

    /// Writes the digests of all frames, stripe by stripe.
    fn write_frame_digests(&self, digests: &[Vec<FrameDigest>]) -> Result<ObjectDigest> {
        let mut object = self.storage.create(&self.name(FRAME_DIGESTS_NAME), 0)?;
        let mut hasher = ObjectHasher::default();
        for digests in digests {
            let bytes = digests.as_flattened();
            hasher.update(bytes);
            object.append(bytes)?;
        }
        object.finish()?;
        Ok(ObjectDigest::new(FRAME_DIGESTS_NAME.to_owned(), &hasher.finish()))
    }

    /// Where a stripe lies, for people.
    pub(super) fn stripe_path(&self, stripe: usize) -> String {
        object_place(&self.place(stripe).describe(), &self.name(&stripe_name(stripe as u16)))
    }

    /// Where each of the finished stripes lies, and its size.
    fn stripe_reports(&self, stripes: &[StripeRecord]) -> Vec<StripeReport> {
        let report = |(stripe, record): (usize, &StripeRecord)| StripeReport {
            path: self.stripe_path(stripe),
            bytes: record.size_bytes,
        };
        stripes.iter().enumerate().map(report).collect()
    }

    /// Where each of the finished stripes lies, and its size; and the same of parity stripes.
    pub(super) fn all_reports(&self, manifest: &Manifest) -> (Vec<StripeReport>, Vec<StripeReport>) {
        (self.stripe_reports(&manifest.stripes), self.parity_reports(manifest.parity_stripes()))
    }

    /// Opens a finished stripe to read it back; None with a store that keeps nothing.
    ///
    /// # Errors
    /// Those of the storage.
    pub(super) fn open_stripe(&self, stripe: usize) -> Result<Option<Box<dyn crate::storage::ObjectReader>>> {
        self.place(stripe).open(&self.name(&stripe_name(stripe as u16)))
    }

    /// Writes the file table, twice if the set has parity, and looks whether the store has it.
    ///
    /// # Errors
    /// Those of the storage.
    pub(super) fn write_file_table(&self, table: &FileTable, has_parity: bool) -> Result<ObjectDigest> {
        let mut names = vec![FILE_TABLE_NAME.to_owned()];
        names.extend(has_parity.then(|| repaired_name(FILE_TABLE_NAME, 1)));
        let write = |name: String| {
            let mut object = self.storage.create(&self.name(&name), 0)?;
            let sums = table.write(self.set_id, &mut |bytes| object.append(bytes))?;
            object.finish()?;
            Ok(ObjectDigest::new(name, &sums))
        };
        let mut written = names.into_iter().map(write).collect::<Result<Vec<_>>>()?;
        self.confirm_objects(std::iter::empty(), &written)?;
        Ok(written.swap_remove(0))
    }

    /// Looks whether the store has every object of the set with all its bytes, before anything says that it is complete.
    ///
    /// # Errors
    /// `Repository`, naming the object; those of the storages.
    pub(super) fn confirm_objects<'o>(
        &self,
        stripes: impl IntoIterator<Item = &'o StripeRecord>,
        others: impl IntoIterator<Item = &'o ObjectDigest>,
    ) -> Result<()> {
        self.set.confirm_objects(stripes, others)
    }

    /// Writes the manifest: the set exists from here on.
    ///
    /// # Errors
    /// Those of the storage, and if it does not have what it said to have stored; `Conflict` if the label was taken by
    /// somebody else.
    pub(super) fn commit(self, manifest: &Manifest, observer: &dyn Observer) -> Result<()> {
        watched(observer, "commit the set", || self.set.commit(manifest))
    }
}

/// A label whose lease we hold and whose places are empty.
fn take_label(
    repository: &Repository,
    source: &SourceName,
    kind: BackupKind,
    behind: Option<&BackupLabel>,
    places: &[StripePlace],
) -> Result<(BackupLabel, Box<dyn Lease>)> {
    let storage = repository.storage();
    let before = behind.and_then(BackupLabel::moment);
    for attempt in 0..LABEL_ATTEMPTS {
        let now = jiff::Timestamp::now();
        let later = jiff::SignedDuration::from_secs(1 + attempt as i64);
        let least = before.and_then(|before| before.checked_add(later).ok());
        let label = BackupLabel::new(least.map_or(now, |least| least.max(now)), kind);
        let prefix = set_prefix(source, &label);
        let mut is_free = StripePlace::are_free(repository, places, &prefix)?;
        // In each of several repositories: a set of this second may be in one of them only.
        repository.each(|one| {
            is_free &= one.storage().list(&prefix)?.is_empty();
            Ok(())
        })?;
        if is_free {
            let lease = storage.lease(&format!("{prefix}/{LEASE_NAME}")).inspect_err(|_| {
                // Nobody else is in this prefix: another backup's lease would have been a None. It goes if it is empty.
                storage.remove_prefix(&prefix).ok();
            })?;
            if let Some(lease) = lease {
                return Ok((label, lease));
            }
        }
        pause(std::time::Duration::from_millis(1100));
    }
    Err(Error::new(ErrorKind::Conflict, format!("take a label for {source}"), "other backups take every one of them"))
}

/// Says how much room the whole set would have taken, going by what was stored so far.
pub(super) fn with_space_needed(progress: &Progress, content_bytes: u64, error: Error) -> Error {
    use std::sync::atomic::Ordering::Relaxed;
    let (done, stored) = (progress.done_bytes.load(Relaxed), progress.stored_bytes.load(Relaxed));
    let is_full = |errno: rustix::io::Errno| error.message().contains(&errno.to_string());
    if done == 0 || !(is_full(rustix::io::Errno::NOSPC) || is_full(rustix::io::Errno::DQUOT)) {
        return error;
    }
    let needed = stored as f64 / done as f64 * content_bytes as f64;
    error.more_hint(&format!("the whole set needs about {:.0} MiB", (needed / (1024.0 * 1024.0)).ceil()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_behind_the_one_it_is_to_follow_whatever_the_clock_says() {
        let work = tempfile::tempdir().unwrap();
        let repository = Repository::open_or_create(&work.path().display().to_string()).unwrap();
        let source = "main".parse().unwrap();
        let future: BackupLabel = "29991231-235959I".parse().unwrap();
        let begin = |behind: Option<&BackupLabel>| {
            let directories = StripeDirectories { stripes: vec![None], parity: Vec::new() };
            SetWriter::begin(&repository, &source, BackupKind::Full, directories, 0, behind).unwrap()
        };
        let first = begin(Some(&future));
        let second = begin(Some(&future));
        assert_eq!((first.label.as_str(), second.label.as_str()), ("30000101-000000F", "30000101-000001F"));
        let past: BackupLabel = "20010101-000000I".parse().unwrap();
        let now = BackupLabel::new(jiff::Timestamp::now(), BackupKind::Full);
        assert!(begin(Some(&past)).label >= now && begin(None).label >= now);
    }
}
