//! The WAL archive, copied object by object, oldest first: each is as whole in the other repository as it was here, or not
//! there at all.
//!
//! One log id is looked at at a time, so that what is known at once has a bound. What is pushed meanwhile comes with the next
//! copy; what expires meanwhile is left out.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use super::as_stored::{ShownEnds, transfer};
use super::checks::{ExpectedFrames, FramesCheck};
use super::failures::Failures;
use super::report::CopiedWal;
use crate::catalog::Repository;
use crate::catalog::wal_bundle::{OpenBundle, open_bundle_to_copy};
use crate::catalog::wal_inventory::clusters;
use crate::catalog::wal_names::{ObjectName, WalFileName, log_prefix, timeline_prefix, upper_hex, wal_prefix};
use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::xxh3;
use crate::format::manifest::hex64;
use crate::format::stripe::FOOTER_BYTES;
use crate::format::wal_bundle::{BUNDLE_HEADER_BYTES, Member};
use crate::pipeline::{CopyRun, Progress, Transfer, TransferTo, Transfers};
use crate::storage::{Storage, confirm, is_temporary_name};
use crate::terms::{SourceName, TimelineId, WalSegmentName};

/// From where to where, and by which threads.
pub(super) struct WalCopier<'a> {
    pub(super) from: &'a Repository,
    pub(super) to: &'a Repository,
    /// The same place, with no keys: what is put there is encrypted already.
    pub(super) to_as_stored: &'a Repository,
    pub(super) source: &'a SourceName,
    pub(super) run: &'a CopyRun<'a>,
    pub(super) progress: &'a Progress,
}

impl WalCopier<'_> {
    /// Copies what the other archive has not, of every cluster that has had the name. What is damaged, or there with other
    /// content, is in `failures`.
    ///
    /// # Errors
    /// `Interrupted`; those of the storages.
    pub(super) fn copy(&self, failures: &Failures) -> Result<CopiedWal> {
        let mut copied = CopiedWal::default();
        for system_identifier in clusters(self.from, self.source)? {
            self.copy_cluster(system_identifier, failures, &mut copied)?;
        }
        Ok(copied)
    }

    fn copy_cluster(&self, system_identifier: u64, failures: &Failures, copied: &mut CopiedWal) -> Result<()> {
        let storage = self.from.storage();
        let prefix = wal_prefix(self.source, system_identifier);
        let names = storage.list(&prefix)?;
        let history = |name: &String| match WalFileName::parse(name.strip_suffix(".phw")?)? {
            file @ WalFileName::History(_) => Some((name.clone(), WalObject::File(file))),
            _ => None,
        };
        // First, as they are pushed first: a timeline is of no use to who does not know where it began.
        let histories = names.iter().filter_map(history).collect();
        self.copy_list(&prefix, system_identifier, histories, failures, copied)?;
        for timeline in names.iter().filter_map(|name| upper_hex(name)).map(TimelineId) {
            for log_id in storage.list(&timeline_prefix(self.source, system_identifier, timeline))? {
                let Some(log_id) = upper_hex(&log_id) else { continue };
                let prefix = log_prefix(self.source, system_identifier, timeline, log_id);
                let object = |name: String| WalObject::parse(&name, timeline, log_id).map(|object| (name, object));
                let objects = storage.list(&prefix)?.into_iter().filter_map(object).collect();
                self.copy_list(&prefix, system_identifier, objects, failures, copied)?;
            }
        }
        Ok(())
    }

    /// Copies the objects below one prefix; `objects` are in the order of their names, which is that of WAL.
    fn copy_list(
        &self,
        prefix: &str,
        system_identifier: u64,
        objects: Vec<(String, WalObject)>,
        failures: &Failures,
        copied: &mut CopiedWal,
    ) -> Result<()> {
        let there = self.to.storage().list(prefix)?;
        if there.iter().any(|name| is_temporary_name(name)) {
            self.to.storage().sweep(prefix)?;
        }
        let list = WalTransfers {
            from: self.from,
            to: self.to,
            to_as_stored: (!self.to.keys().encrypts() || !self.to.keys().has_identities())
                .then(|| self.to_as_stored.storage()),
            prefix,
            system_identifier,
            content_bytes: objects.iter().map(|_| AtomicU64::new(0)).collect(),
            objects,
            there,
            progress: self.progress,
            failures,
            copied: Mutex::default(),
        };
        let done = self.run.run(&list);
        let of_list = list.copied.into_inner().unwrap_or_else(PoisonError::into_inner);
        copied.copied_count += of_list.copied_count;
        copied.skipped_count += of_list.skipped_count;
        copied.failed_count += of_list.failed_count;
        copied.copied_bytes += of_list.copied_bytes;
        done
    }
}

/// What the name of an object says that it holds.
enum WalObject {
    /// Segments with these names.
    Segments(Vec<WalSegmentName>),
    /// A piece of a segment.
    Piece(WalSegmentName),
    /// Another file.
    File(WalFileName),
}

impl WalObject {
    /// None for what is none of the archive's.
    fn parse(name: &str, timeline: TimelineId, log_id: u32) -> Option<Self> {
        let segment = |index| WalSegmentName::from_parts(timeline, log_id, index);
        Some(match ObjectName::parse(name)? {
            ObjectName::Bundle { first_index, count } => {
                WalObject::Segments((first_index..first_index + count).map(segment).collect())
            }
            ObjectName::Piece { index, .. } => WalObject::Piece(segment(index)),
            ObjectName::File(file) => WalObject::File(file),
        })
    }

    fn member_names(&self) -> Vec<String> {
        match self {
            WalObject::Segments(segments) => segments.iter().map(ToString::to_string).collect(),
            WalObject::Piece(segment) => vec![segment.to_string()],
            WalObject::File(file) => vec![file.to_string()],
        }
    }
}

/// The objects below one prefix.
struct WalTransfers<'a> {
    from: &'a Repository,
    to: &'a Repository,
    /// For encrypted objects; None if they are to be encrypted anew.
    to_as_stored: Option<&'a dyn Storage>,
    prefix: &'a str,
    system_identifier: u64,
    objects: Vec<(String, WalObject)>,
    /// Of each, once it is opened.
    content_bytes: Vec<AtomicU64>,
    /// What the other archive has below that prefix.
    there: Vec<String>,
    progress: &'a Progress,
    failures: &'a Failures,
    copied: Mutex<CopiedWal>,
}

/// Whose bytes an object is: the first bytes, which hold its random id, and its size.
type Identity = ([u8; BUNDLE_HEADER_BYTES], u64);

impl WalTransfers<'_> {
    fn name(&self, number: usize) -> String {
        format!("{}/{}", self.prefix, self.objects[number].0)
    }

    fn count_in(&self, add: impl FnOnce(&mut CopiedWal)) {
        add(&mut self.copied.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Opens an object and looks whether it is what its name says; None if it is gone.
    fn open(&self, repository: &Repository, number: usize) -> Result<Option<OpenBundle>> {
        let Some(bundle) = open_bundle_to_copy(repository, &self.name(number))? else { return Ok(None) };
        bundle.check_holds(self.system_identifier, self.objects[number].1.member_names().into_iter())?;
        Ok(Some(bundle))
    }

    /// An object of this name is there: it must have the same content. Whole members are compared by their checksums, so
    /// that one which was pushed there by somebody else is as good.
    fn compare(&self, number: usize) -> Result<()> {
        let name = self.name(number);
        let identity = |storage: &dyn Storage| -> Result<Option<Identity>> {
            let Some(object) = storage.open(&name)? else { return Ok(None) };
            let mut first_bytes = [0u8; BUNDLE_HEADER_BYTES];
            if object.size_bytes() < first_bytes.len() as u64 {
                return Ok(Some((first_bytes, object.size_bytes())));
            }
            object.read_at(&mut first_bytes, 0)?;
            Ok(Some((first_bytes, object.size_bytes())))
        };
        let (Some(ours), Some(theirs)) = (identity(self.from.storage())?, identity(self.to.storage())?) else {
            return Ok(());
        };
        if ours != theirs
            && let (Some(ours), Some(theirs)) = (self.open(self.from, number)?, self.open(self.to, number)?)
            && !has_same_content(&ours.table.members, &theirs.table.members)
            && !self.are_of_other_length(number, &ours, &theirs)
        {
            return Err(self.conflict(&name, &name));
        }
        self.count_in(|copied| copied.skipped_count += 1);
        Ok(())
    }

    /// Two receivers cut a segment into pieces of their own, which say nothing of each other.
    fn are_of_other_length(&self, number: usize, ours: &OpenBundle, theirs: &OpenBundle) -> bool {
        let size_bytes = |bundle: &OpenBundle| bundle.table.members.first().map(|member| member.size_bytes);
        matches!(self.objects[number].1, WalObject::Piece(_)) && size_bytes(ours) != size_bytes(theirs)
    }

    /// Other bundles there may have some of the segments: these must be the same ones.
    fn check_overlaps(&self, number: usize, bundle: &OpenBundle) -> Result<()> {
        let (name, WalObject::Segments(segments)) = &self.objects[number] else { return Ok(()) };
        let (Some(first), Some(last)) = (segments.first(), segments.last()) else { return Ok(()) };
        for other in self.there.iter().filter(|other| *other != name) {
            let Some(WalObject::Segments(of_other)) = WalObject::parse(other, first.timeline(), first.log_id()) else {
                continue;
            };
            if of_other.first().is_none_or(|begin| begin > last) || of_other.last().is_none_or(|end| end < first) {
                continue;
            }
            let other = format!("{}/{other}", self.prefix);
            let Some(other) = open_bundle_to_copy(self.to, &other)? else { continue };
            for member in &bundle.table.members {
                let same = |theirs: &&Member| theirs.name == member.name;
                if let Some(theirs) = other.table.members.iter().find(same)
                    && !has_same_content(std::slice::from_ref(member), std::slice::from_ref(theirs))
                {
                    return Err(self.conflict(&bundle.name, &other.name));
                }
            }
        }
        Ok(())
    }

    fn conflict(&self, name: &str, other: &str) -> Error {
        let action = format!("copy {name} of {}", self.from.storage().describe());
        let cause = format!("{other} of {} has other content", self.to.storage().describe());
        Error::new(ErrorKind::Conflict, action, cause).hint(
            "two servers wrote WAL of the same name: find out which one is right (`pagehaul wal list` for both), and copy to \
             a repository of its own; nothing was overwritten",
        )
    }

    fn start(&self, number: usize) -> Result<Option<Transfer>> {
        if self.there.binary_search(&self.objects[number].0).is_ok() {
            return self.compare(number).map(|()| None);
        }
        let Some(bundle) = self.open(self.from, number)? else { return Ok(None) };
        self.check_overlaps(number, &bundle)?;
        let as_stored = self.to_as_stored.filter(|_| bundle.object.key_id().is_some());
        let to = match as_stored {
            Some(to) => TransferTo::Staged(to.stage(&bundle.name, 0)?),
            None => TransferTo::Staged(ShownEnds::around(self.to.storage().stage(&bundle.name, 0)?, &bundle)),
        };
        let check = FramesCheck::begin(expected(self.from.storage(), &bundle), bundle.object.size_bytes())?;
        self.progress.total_bytes.fetch_add(bundle.object.size_bytes(), Relaxed);
        self.content_bytes[number].store(bundle.object.size_bytes(), Relaxed);
        transfer(bundle.object, to, Box::new(check), as_stored.is_some()).map(Some)
    }
}

impl Transfers for WalTransfers<'_> {
    fn count(&self) -> usize {
        self.objects.len()
    }

    fn begin(&self, number: usize) -> Result<Option<Transfer>> {
        self.start(number)
    }

    fn done(&self, number: usize, is_new: bool, size_bytes: u64) -> Result<()> {
        if !is_new {
            return self.compare(number).or_else(|error| self.failed(number, error));
        }
        confirm(self.to.storage(), &self.name(number), self.content_bytes[number].load(Relaxed))?;
        self.count_in(|copied| {
            copied.copied_count += 1;
            copied.copied_bytes += size_bytes;
        });
        Ok(())
    }

    fn failed(&self, number: usize, error: Error) -> Result<()> {
        if !matches!(error.kind(), ErrorKind::Damage | ErrorKind::Conflict | ErrorKind::Repository) {
            return Err(error);
        }
        // One that expire removes while it is read.
        match self.from.storage().open(&self.name(number)) {
            Ok(None) => return Ok(()),
            Ok(Some(_)) => {}
            Err(again) if again.kind() == ErrorKind::Damage => {}
            Err(again) => return Err(again),
        }
        if error.kind() == ErrorKind::Repository {
            return Err(error);
        }
        self.count_in(|copied| copied.failed_count += 1);
        self.failures.note(error);
        Ok(())
    }
}

fn has_same_content(ours: &[Member], theirs: &[Member]) -> bool {
    let content = |member: &Member| (member.size_bytes, member.piece_offset, member.crc32c);
    ours.iter().map(content).eq(theirs.iter().map(content))
}

fn expected(storage: &dyn Storage, bundle: &OpenBundle) -> ExpectedFrames {
    let header = bundle.header.as_stripe();
    let trailer = bundle.index.to_trailer(&header);
    ExpectedFrames {
        action: format!("copy {} of {}", bundle.name, storage.describe()),
        hint: "the object is damaged: WAL in it is lost unless another copy of the repository has it; all other WAL goes on \
               to be copied"
            .to_owned(),
        first_bytes: bundle.header.to_bytes(),
        header,
        frame_count: bundle.index.frame_count(),
        index_xxh3: hex64(xxh3(&trailer[..trailer.len() - FOOTER_BYTES])),
        size_bytes: bundle.index.end_offset() + trailer.len() as u64,
        digests: bundle.digests.clone(),
    }
}
