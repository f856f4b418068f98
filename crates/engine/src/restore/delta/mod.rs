//! A restore over what is there already: only what differs from the set is read from it and written.
//!
//! pg_control is put aside before anything changes and written again last, so that a directory which is half old and
//! half new never starts. Then the tree is made to fit the set ([`tree`]), what is left of the old files is read and
//! summed, and each piece whose sum is that of its frame, told by the frame's header alone, stays as it is.

mod check;
mod tree;

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::io::Errno;
use serde::Serialize;

use super::plan::{SpecialFiles, TablespacePlace};
use super::target::{MARKER, Marker, Target, TargetLocks, fail, lock_marker, remove_half_written_markers};
use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::crc32c_of_zeros;
use crate::format::file_table::{EntryKind, FileTable, Place};
use crate::format::frame::{FRAME_HEADER_BYTES, FrameHeader};
use crate::format::stripe::STRIPE_HEADER_BYTES;
use crate::io;
use crate::pipeline::limit::Direction;
use crate::pipeline::{
    CompareInput, Extent, ExtentPiece, FileTotals, Observer, OldSums, PipelineSettings, Progress, StripeInput,
    WriteRoot, run_compare,
};
use crate::source::postgres::path_class::ends_with_its_sum;
use crate::terms::FileId;
pub(super) use check::DeltaCheck;
use check::{OldPlaces, Whose, refuse_running};
use tree::{Survey, Tree};

/// The old pg_control, until the new one is there.
pub(super) const ASIDE_NAME: &str = "pg_control.pagehaul-aside";

/// What a delta restore left alone and what it did not; keys of `restore --delta --json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DeltaReport {
    /// Bytes of old files that were read and summed.
    pub compared_bytes: u64,
    /// Wall time of that.
    pub compare_s: f64,
    /// Bytes that were right already.
    pub reused_bytes: u64,
    /// Bytes that were written, zeros included.
    pub rewritten_bytes: u64,
    /// Files and links that were removed because the set has none of that name.
    pub removed_count: u64,
    /// Their bytes.
    pub removed_bytes: u64,
}

/// A target that holds something.
#[derive(Debug)]
pub(super) struct OldTarget {
    places: OldPlaces,
}

impl OldTarget {
    /// Applies the rules of delta restores; None if all places are new or empty, so that any restore will do.
    ///
    /// # Errors
    /// `Target`, `Conflict`; nothing was changed.
    pub(super) fn check(check: &DeltaCheck<'_>) -> Result<(Target, Option<Self>)> {
        let (target, places) = check.run()?;
        let is_empty = places.0.iter().all(|(_, whose)| *whose == Whose::Nobodys);
        Ok((target, (!is_empty).then_some(OldTarget { places })))
    }

    /// Bytes of disk that the old files take on each file system, by device; they come free or are written over.
    pub(super) fn bytes_on(&self, device: u64) -> u64 {
        let places = self.places.0.iter().filter(|(path, _)| io::device_of(path).is_ok_and(|found| found == device));
        places.map(|(path, _)| io::disk_bytes_below(path)).sum()
    }

    /// Marks and locks the places, then makes pg_control unusable.
    ///
    /// # Errors
    /// `Conflict` if another restore is at work there, `Target`.
    pub(super) fn begin(
        &self,
        target: &Target,
        manifest: &crate::format::manifest::Manifest,
        group_access: bool,
    ) -> Result<TargetLocks> {
        let mode = rustix::fs::Mode::from_raw_mode(if group_access { 0o750 } else { 0o700 });
        let mut markers = Vec::new();
        for (path, whose) in &self.places.0 {
            io::create_directory_durable(path).map_err(|cause| fail("create", path, cause.into()))?;
            let text = Marker::text(manifest, &target.directory, *whose == Whose::Clusters)?;
            match io::write_new_durable(&path.join(MARKER), &text) {
                // One of an earlier restore says the same of what is beside it.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(cause) => return Err(fail("write the marker of", path, cause.into())),
            }
            markers.push(lock_marker(path)?);
            remove_half_written_markers(path).map_err(|cause| fail("clear", path, cause))?;
        }
        put_aside(&target.directory)?;
        for (path, _) in &self.places.0 {
            rustix::fs::chmod(path, mode).map_err(|cause| fail("set the mode of", path, cause.into()))?;
            if let Some((user, group)) = target.owner {
                std::os::unix::fs::chown(path, Some(user), Some(group))
                    .map_err(|cause| fail("change the owner of", path, cause))?;
            }
        }
        Ok(TargetLocks { _markers: markers })
    }
}

/// Renames pg_control, durably, unless a server has come up meanwhile.
fn put_aside(directory: &Path) -> Result<()> {
    let path = directory.join("global/pg_control");
    let failed = |cause: Errno| fail("put aside", &path, cause.into());
    let top = io::open_directory(directory).map_err(failed)?;
    let global = match io::open_directory_below(top.as_fd(), b"global") {
        Ok(global) => global,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
        Err(cause) => return Err(failed(cause)),
    };
    match rustix::fs::renameat(&global, "pg_control", &global, ASIDE_NAME) {
        Ok(()) => {}
        Err(Errno::NOENT) => return Ok(()),
        Err(cause) => return Err(failed(cause)),
    }
    rustix::fs::fsync(&global).map_err(failed)?;
    refuse_running(directory).inspect_err(|_| {
        // Its server needs it; nothing else was changed.
        rustix::fs::renameat(&global, ASIDE_NAME, &global, "pg_control").ok();
    })
}

/// Removes the old pg_control: everything else is durable.
///
/// # Errors
/// `Target`.
pub(super) fn remove_aside(directory: &Path) -> Result<()> {
    let path = directory.join("global").join(ASIDE_NAME);
    match rustix::fs::unlink(&path) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(cause) => Err(fail("remove", &path, cause.into())),
    }
}

/// What a delta restore works on.
pub(super) struct Delta<'a> {
    pub(super) target: &'a Target,
    pub(super) root: &'a WriteRoot,
    pub(super) table: &'a FileTable,
    pub(super) special: &'a SpecialFiles,
    pub(super) places: &'a [TablespacePlace],
    pub(super) settings: PipelineSettings,
}

impl Delta<'_> {
    /// Makes an empty tree where nothing is, or prepares what is there: see [`Delta::prepare`]; None for the first.
    ///
    /// # Errors
    /// As [`Delta::prepare`].
    pub(super) fn begin(&self, old: Option<&OldTarget>, observer: &dyn Observer) -> Result<Option<Reuse>> {
        match old {
            Some(old) => self.prepare(old, observer).map(Some),
            None => self.target.create_tree(self.root, self.table, self.places, self.special).map(|()| None),
        }
    }

    /// Makes the old tree fit the set, and finds out which pieces of its files are right already.
    ///
    /// When it returns, every file that does not come whole is there with its length, and zeros are zeros.
    ///
    /// # Errors
    /// `Target`, naming the path; `Interrupted`.
    fn prepare(&self, old: &OldTarget, observer: &dyn Observer) -> Result<Reuse> {
        observer.phase("remove what is not in the backup");
        let tree = Tree {
            root: self.root,
            table: self.table,
            special: self.special,
            places: self.places,
            target: self.target,
            old,
        };
        let mut survey = tree.correct()?;
        observer.phase("compare what is there with the backup");
        let (sums, compare_s, compared_bytes) = self.compare(&survey, observer)?;
        let mut reuse = Reuse {
            kept: vec![Kept::None; self.table.entries().len()],
            report: DeltaReport {
                compared_bytes,
                compare_s,
                removed_count: survey.removed_count,
                removed_bytes: survey.removed_bytes,
                ..DeltaReport::default()
            },
            notes: std::mem::take(&mut survey.notes),
            sums,
        };
        for file in self.table.ids().filter(|file| self.is_content(*file)) {
            reuse.kept[file.0 as usize] = self.settle(&tree, &survey, &reuse.sums, file)?;
        }
        Ok(reuse)
    }

    fn is_content(&self, file: FileId) -> bool {
        self.table.entry(file).kind == EntryKind::File && !self.special.contains(file)
    }

    fn compare(&self, survey: &Survey, observer: &dyn Observer) -> Result<(OldSums, f64, u64)> {
        let started = Instant::now();
        let files: Vec<FileId> =
            self.table.ids().filter(|file| self.is_content(*file) && survey.present[file.0 as usize]).collect();
        let compared_bytes = files.iter().map(|file| self.table.entry(*file).size_bytes).sum();
        // Only what is on the disk can be forgotten by the page cache and read again from the disk.
        for place in std::iter::once(&self.root.directory).chain(self.root.mounts.iter().map(|mount| &mount.directory))
        {
            io::sync_file_system(place.as_fd())
                .map_err(|cause| Error::new(ErrorKind::Target, "make what is in the target durable", cause))?;
        }
        let progress = Progress::default();
        progress.set_total(compared_bytes);
        // Pieces of the smallest frames of the chain: those of larger ones are made of them.
        let settings = PipelineSettings { frame_size_bytes: self.root.frame_size_bytes, ..self.settings };
        let input = CompareInput { settings, root: self.root, table: self.table, files, progress: &progress };
        let sums = run_compare(&input, &mut |live| {
            observer.progress(Direction::Restore, live);
            if observer.interrupted() {
                return Err(Error::new(ErrorKind::Interrupted, "finish the restore", "a signal asked to stop")
                    .hint("the target cannot be started; running the restore again with --delta goes on"));
            }
            Ok(())
        })?;
        Ok((sums, started.elapsed().as_secs_f64(), compared_bytes))
    }

    /// What of a file stays; makes it ready for what does not.
    fn settle(&self, tree: &Tree<'_>, survey: &Survey, sums: &OldSums, file: FileId) -> Result<Kept> {
        let (entry, number) = (self.table.entry(file), file.0 as usize);
        if !survey.present[number] {
            self.root.create_large(self.table, file)?;
            return Ok(Kept::None);
        }
        // Old maps of file numbers have the sums of new ones.
        let is_comparable = survey.same_size[number] && !ends_with_its_sum(self.table.path(file));
        if is_comparable && sums.whole(self.table, file) == Some(entry.crc32c) {
            return Ok(Kept::Whole);
        }
        let runs = self.table.runs(file);
        let only_zeros = runs.iter().all(|run| run.place() == Place::Zeros);
        if self.root.comes_whole(self.table, file) || only_zeros {
            tree.unlink(file)?;
            self.root.create_large(self.table, file)?;
            return Ok(Kept::None);
        }
        let path = self.table.path(file);
        let failed = |cause: Errno| tree.fail("make room in", path, cause);
        let opened = self.root.open_for_write(path).map_err(failed)?;
        rustix::fs::ftruncate(&opened, entry.size_bytes).map_err(failed)?;
        io::preallocate(opened.as_fd(), entry.size_bytes).map_err(failed)?;
        for run in runs.iter().filter(|run| run.place() == Place::Zeros) {
            let is_zero =
                sums.range(self.table, file, run.file_offset, run.size_bytes) == Some(crc32c_of_zeros(run.size_bytes));
            if !is_zero {
                io::zero_range(opened.as_fd(), run.file_offset, run.size_bytes).map_err(failed)?;
            }
        }
        Ok(Kept::Pieces)
    }
}

/// What of an old file is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    None,
    /// Perhaps some pieces.
    Pieces,
    Whole,
}

/// What need not be read from the set.
pub(super) struct Reuse {
    kept: Vec<Kept>,
    sums: OldSums,
    report: DeltaReport,
    pub(super) notes: Vec<String>,
}

impl Reuse {
    /// Leaves only those extents to read that hold something which is not right yet.
    pub(super) fn leave_out(&mut self, table: &FileTable, stripe: &mut StripeInput) {
        let extents = std::mem::take(&mut stripe.extents);
        let frame_size_bytes = stripe.frame_size_bytes;
        let mut headers = Headers { stripe, offsets: Vec::new() };
        let kept = &self.kept;
        let sums = &mut self.sums;
        stripe.extents = Extent::only(&extents, frame_size_bytes, |piece| match kept[piece.file.0 as usize] {
            Kept::None => true,
            Kept::Whole => false,
            Kept::Pieces => {
                let old = sums.range(table, piece.file, piece.file_offset, piece.length);
                let is_right = old.is_some() && old == headers.raw_crc32c(piece);
                if is_right {
                    sums.keep(table, piece.file, piece.file_offset, piece.length);
                }
                !is_right
            }
        });
    }

    /// Adds the kept pieces of files to the sums of what was decoded.
    pub(super) fn add_to(&self, totals: &FileTotals, table: &FileTable) {
        for file in table.ids().filter(|file| self.kept[file.0 as usize] == Kept::Pieces) {
            for (offset, length, crc) in self.sums.kept_pieces(table, file) {
                totals.add_known(table, file, offset, length, crc);
            }
        }
    }

    /// Whether the whole file was right.
    pub(super) fn is_whole(&self, file: FileId) -> bool {
        self.kept[file.0 as usize] == Kept::Whole
    }

    /// Bytes that need not be written.
    pub(super) fn reused_bytes(&self, table: &FileTable) -> u64 {
        let of_file = |file: FileId| match self.kept[file.0 as usize] {
            Kept::None => 0,
            Kept::Pieces => self.sums.kept_pieces(table, file).map(|(_, length, _)| length).sum(),
            Kept::Whole => table.entry(file).size_bytes,
        };
        table.ids().map(of_file).sum()
    }

    /// The figures.
    pub(super) fn report(&self, table: &FileTable) -> DeltaReport {
        let reused_bytes = self.reused_bytes(table);
        DeltaReport { reused_bytes, rewritten_bytes: table.content_bytes() - reused_bytes, ..self.report.clone() }
    }
}

/// Frame headers of one stripe, read one by one.
struct Headers<'a> {
    stripe: &'a StripeInput,
    /// Where each frame starts; empty until the first is asked for.
    offsets: Vec<u64>,
}

impl Headers<'_> {
    /// CRC32C of the raw bytes of a piece, if the frame holds nothing else and its header is sound.
    fn raw_crc32c(&mut self, piece: &ExtentPiece) -> Option<u32> {
        let entry = self.stripe.index.entries().get(piece.frame as usize)?;
        if piece.offset_in_frame != 0 || piece.length != u64::from(entry.raw_size_bytes) {
            return None;
        }
        if self.offsets.is_empty() {
            let mut offset = STRIPE_HEADER_BYTES as u64;
            self.offsets.extend(self.stripe.index.entries().iter().map(|entry| {
                let start = offset;
                offset += entry.size_on_stripe_bytes();
                start
            }));
        }
        let mut bytes = [0u8; FRAME_HEADER_BYTES];
        // What does not read is no longer left out, and the data path tells what is wrong with it.
        self.stripe.object.read_at(&mut bytes, self.offsets[piece.frame as usize]).ok()?;
        let header = FrameHeader::from_bytes(&bytes).ok()?;
        let is_it = header.set_id == self.stripe.set_id
            && header.stripe == self.stripe.stripe
            && header.sequence == piece.frame
            && header.raw_size_bytes == entry.raw_size_bytes;
        is_it.then_some(header.raw_crc32c)
    }
}

/// Files and directories that a set is read from, as far as they are local.
pub(super) fn read_from(set: &crate::catalog::OpenSet, repository: &str, stripe_from: &[String]) -> Vec<PathBuf> {
    let stripes = set.stripes.iter().flatten().map(|stripe| PathBuf::from(&stripe.place));
    let stripes = stripes.filter_map(|file| file.parent().map(Path::to_owned));
    let named = std::iter::once(repository).chain(stripe_from.iter().map(String::as_str)).map(PathBuf::from);
    let mut all: Vec<PathBuf> = named.chain(stripes).filter(|path| path.is_absolute() && path.exists()).collect();
    all.sort();
    all.dedup();
    all
}
