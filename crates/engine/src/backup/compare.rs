//! Compares what is read with the prior set: a page goes into this set unless the prior surely has the same.
//!
//! A page is the same if WAL has not changed it since the prior began (its LSN), and its checksum is the prior's: what
//! changes without WAL (hint bits, free space maps, checksums switched on) changes the checksum. A file that is no
//! relation is the same if its time, size and checksum are.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock};

use super::prior::Prior;
use crate::catalog::page_sums::{ChainSums, FirstPage, SumsCursor};
use crate::catalog::{OpenSet, Repository};
use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::crc32c_of_zeros;
use crate::format::file_table::{EntryKind, FileTable, Place};
use crate::limits::MIB;
use crate::pipeline::ceiling::ComparisonFacts;
use crate::pipeline::{Examined, PipelineSettings, Selection, Selector};
use crate::source::postgres::incremental_file::is_followed_by_wal;
use crate::source::postgres::page::page_lsn;
use crate::source::postgres::path_class::{PathClass, classify, ends_with_its_sum};
use crate::terms::FileId;

/// Parts of a MiB that are stored one by one; if more of it has changed, what lies between is stored too.
const PARTS_PER_MIB: u64 = 8;
/// Runs that each MiB may make where pages are picked here.
const RUNS_PER_MIB: u64 = 6;

/// The prior set beside the files at hand, as far as they are known.
pub(super) struct Comparison<'a> {
    pub(super) prior: Prior<'a>,
    pub(super) sums: ChainSums,
    pub(super) page_size_bytes: u64,
    /// The prior's files, by path.
    by_path: Vec<FileId>,
    followed: RwLock<Vec<Followed>>,
    expected: Expected,
    /// Runs that comparing has made so far, and how many it may make: memory for them is in the ceiling.
    runs_made: AtomicU64,
    pub(super) run_budget: u64,
    zero_page_sum: u32,
}

/// How much is to be compared, about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    pub(super) file_count: u64,
    pub(super) content_bytes: u64,
    /// Runs that each MiB may make.
    pub(super) runs_per_mib: u64,
}

/// One of the files at hand.
#[derive(Debug)]
struct Followed {
    /// How much of it has been seen.
    seen_bytes: AtomicU64,
    /// The prior's file of the same path; `u32::MAX` for none.
    prior: u32,
    /// From this page on nothing is the prior's.
    page_limit: u32,
    is_relation: bool,
    /// It has the prior's time and size.
    looks_same: bool,
    /// The server itself left out what has not changed: what there is of it is stored.
    is_picked: bool,
}

impl<'a> Comparison<'a> {
    /// Opens the prior's checksums for a comparison with the files of `table`; what is wrong with them is a note.
    pub(super) fn new(
        repository: &Repository,
        prior: Prior<'a>,
        table: &FileTable,
        settings: &PipelineSettings,
        page_size_bytes: u32,
    ) -> (Self, Vec<String>) {
        let file_count = table.entries().len() as u64;
        let expected = Expected { file_count, content_bytes: table.content_bytes(), runs_per_mib: RUNS_PER_MIB };
        let (comparison, notes) = Self::of_stream(repository, prior, expected, settings, page_size_bytes);
        for file in table.ids().filter(|file| table.entry(*file).kind == EntryKind::File) {
            comparison.follow(table, file);
        }
        (comparison, notes)
    }

    /// As [`Comparison::new`], with files that are not known yet: [`Comparison::follow`] tells of each.
    pub(super) fn of_stream(
        repository: &Repository,
        prior: Prior<'a>,
        expected: Expected,
        settings: &PipelineSettings,
        page_size_bytes: u32,
    ) -> (Self, Vec<String>) {
        let (sums, notes) = ChainSums::open(repository, &prior.set, page_size_bytes);
        let mut by_path: Vec<FileId> = files_of(&prior.set.table).collect();
        by_path.sort_unstable_by(|a, b| prior.set.table.path(*a).cmp(prior.set.table.path(*b)));
        let unit = u64::from(settings.frame_size_bytes).min(MIB);
        let comparison = Comparison {
            sums,
            page_size_bytes: u64::from(page_size_bytes),
            by_path,
            followed: RwLock::default(),
            expected,
            runs_made: AtomicU64::new(0),
            run_budget: expected.runs_per_mib * (expected.content_bytes / unit) + 4 * expected.file_count + 65_536,
            zero_page_sum: crc32c_of_zeros(u64::from(page_size_bytes)),
            prior,
        };
        (comparison, notes)
    }

    /// The prior set.
    pub(super) fn set(&self) -> &OpenSet {
        &self.prior.set
    }

    /// Compares `file` of `table` from here on.
    pub(super) fn follow(&self, table: &FileTable, file: FileId) {
        self.add_followed(table, file, |_| {});
    }

    /// Takes what comes of `file` as what has changed of it. It has `total_pages`, and what does not come of those before
    /// `page_limit` is the prior's. `part_count` is how many parts come.
    ///
    /// # Errors
    /// `Source` if all of it was to come, `Configuration` if there are more parts than there may be.
    pub(super) fn follow_picked(
        &self,
        table: &FileTable,
        file: FileId,
        total_pages: u32,
        page_limit: u32,
        part_count: u64,
    ) -> Result<()> {
        let bytes = u64::from(total_pages) * self.page_size_bytes;
        self.add_followed(table, file, |followed| {
            *followed = Followed { seen_bytes: bytes.into(), page_limit, is_picked: true, ..*followed };
        });
        let action = || format!("take what has changed of {}", table.path_text(file));
        if !self.prior_file(file).is_some_and(|prior| self.may_be_picked(prior)) {
            return Err(Error::new(ErrorKind::Source, action(), "it was not in the list that the server was given"));
        }
        self.take_runs(2 * part_count + 1);
        if self.has_too_many_runs() {
            let cause = "the changed pages lie in more places than the memory sum reckons with";
            return Err(Error::new(ErrorKind::Configuration, action(), cause).hint("make a full backup (--type full)"));
        }
        Ok(())
    }

    fn add_followed(&self, table: &FileTable, file: FileId, change: impl FnOnce(&mut Followed)) {
        let (path, entry) = (table.path(file), table.entry(file));
        let of_prior = &self.set().table;
        let prior = self.by_path.binary_search_by(|own| of_prior.path(*own).cmp(path)).ok().map(|at| self.by_path[at]);
        let looks_same = prior.is_some_and(|prior| {
            let then = of_prior.entry(prior);
            (entry.mtime_s, entry.size_bytes) == (then.mtime_s, then.size_bytes) && !ends_with_its_sum(path)
        });
        let is_relation = matches!(classify(path), PathClass::Relation { .. });
        let prior = prior.map_or(u32::MAX, |prior| prior.0);
        let mut own = Followed { prior, is_relation, looks_same, ..Followed::default() };
        change(&mut own);
        let mut followed = self.followed.write().unwrap_or_else(PoisonError::into_inner);
        let at = file.0 as usize;
        if followed.len() <= at {
            followed.resize_with(at + 1, Followed::default);
        }
        followed[at] = own;
    }

    fn of<T>(&self, file: FileId, ask: impl FnOnce(&Followed) -> T) -> Option<T> {
        let followed = self.followed.read().unwrap_or_else(PoisonError::into_inner);
        followed.get(file.0 as usize).map(ask)
    }

    /// The prior's file of the same path.
    pub(super) fn prior_file(&self, file: FileId) -> Option<FileId> {
        self.of(file, |followed| followed.prior).filter(|prior| *prior != u32::MAX).map(FileId)
    }

    /// How many bytes of a file may be the prior's.
    pub(super) fn prior_limit_bytes(&self, file: FileId) -> u64 {
        let pages = self.of(file, |followed| followed.page_limit).filter(|pages| *pages != u32::MAX);
        pages.map_or(u64::MAX, |pages| u64::from(pages) * self.page_size_bytes)
    }

    /// Raw bytes of a full frame of the prior's run.
    pub(super) fn frame_size_bytes(&self, run: &crate::format::file_table::Run) -> u64 {
        u64::from(self.set().manifest_of(run.set()).frame_size_bytes)
    }

    /// Notes that a file has at least so many bytes.
    pub(super) fn see(&self, file: FileId, end: u64) {
        self.of(file, |followed| followed.seen_bytes.fetch_max(end, Relaxed));
    }

    /// How many bytes of a file were seen; 0 for files that were not compared.
    pub(super) fn seen(&self, file: FileId) -> u64 {
        self.of(file, |followed| followed.seen_bytes.load(Relaxed)).unwrap_or(0)
    }

    /// Whether comparing made more runs than it may; only a server that picks pages itself can do that.
    pub(super) fn has_too_many_runs(&self) -> bool {
        self.runs_made.load(Relaxed) > self.run_budget
    }

    /// Whether a server may leave out pages of the prior's `file`: WAL says all that there is to know of it, and the
    /// checksums of its pages are known.
    pub(super) fn may_be_picked(&self, file: FileId) -> bool {
        let (table, page) = (&self.set().table, self.page_size_bytes);
        let size_bytes = table.entry(file).size_bytes;
        is_followed_by_wal(table.path(file))
            && size_bytes.is_multiple_of(page)
            && self.knows_pages(file, size_bytes / page)
    }

    /// Whether the checksums of all pages of the prior's `file` before page `pages` are known.
    pub(super) fn knows_pages(&self, file: FileId, pages: u64) -> bool {
        let page = self.page_size_bytes;
        let runs = self.set().table.runs(file);
        runs.iter().take_while(|run| run.file_offset < pages * page).all(|run| match run.place() {
            Place::Zeros => run.file_offset.is_multiple_of(page) && run.size_bytes.is_multiple_of(page),
            Place::Frames { set, stripe, offset_in_frame, .. } => {
                run.file_offset.is_multiple_of(page)
                    && run.size_bytes.is_multiple_of(page)
                    && self.sums.covers(set, stripe, offset_in_frame)
            }
        })
    }

    /// Takes from the budget; how many runs are made already.
    pub(super) fn take_runs(&self, count: u64) -> u64 {
        self.runs_made.fetch_add(count, Relaxed)
    }

    /// What it holds, for the ceiling; `planned_bytes` is the memory of the list of what is to be read.
    pub(super) fn facts(&self, planned_bytes: u64) -> ComparisonFacts {
        let set = self.set();
        let files = self.expected.file_count * size_of::<Followed>() as u64
            + self.by_path.len() as u64 * size_of::<FileId>() as u64;
        let indexes = 8 * set.frame_count() + set.digests_bytes() + self.sums.memory_bytes();
        ComparisonFacts {
            prior_bytes: set.table.memory_bytes() + indexes + files + planned_bytes + set.parity_memory_bytes(),
            prior_run_count: set.table.run_count(),
            run_budget: self.run_budget,
            cursor_bytes: ChainSums::CURSOR_BYTES,
        }
    }

    /// Puts the checksums of `count` pages of the prior's `file` from page `first` on into `sums`; None where the prior
    /// has no such page or does not know its checksum.
    pub(super) fn prior_sums(
        &self,
        cursor: &mut SumsCursor<'_>,
        file: FileId,
        first: u64,
        count: u64,
        sums: &mut Vec<Option<u32>>,
    ) {
        let page = self.page_size_bytes;
        sums.clear();
        sums.resize(count as usize, None);
        let (from, to) = (first * page, (first + count) * page);
        let runs = self.set().table.runs(file);
        let start = runs.partition_point(|run| run.end() <= from);
        for run in runs[start..].iter().take_while(|run| run.file_offset < to) {
            let whole = |offset: u64| offset.div_ceil(page) * page;
            let (begin, end) = (whole(run.file_offset.max(from)), run.end().min(to) / page * page);
            if begin >= end {
                continue;
            }
            let slots = &mut sums[((begin - from) / page) as usize..((end - from) / page) as usize];
            match run.part(begin, end, self.frame_size_bytes(run)).place() {
                Place::Zeros => slots.fill(Some(self.zero_page_sum)),
                Place::Frames { set, stripe, first_frame, offset_in_frame } => {
                    if !self.sums.covers(set, stripe, offset_in_frame) {
                        continue;
                    }
                    let page_in_frame = offset_in_frame / page as u32;
                    let place = FirstPage { set, stripe, frame: first_frame, page_in_frame };
                    let mut next = slots.iter_mut();
                    let read = cursor.read(place, (end - begin) / page, &mut |sum| {
                        if let Some(slot) = next.next() {
                            *slot = Some(sum);
                        }
                    });
                    // What does not read is not known: these pages are stored again.
                    if read.is_err() {
                        slots.fill(None);
                    }
                }
            }
        }
    }
}

fn files_of(table: &FileTable) -> impl Iterator<Item = FileId> + '_ {
    table.ids().filter(|file| table.entry(*file).kind == EntryKind::File)
}

impl Default for Followed {
    fn default() -> Self {
        Followed {
            seen_bytes: AtomicU64::new(0),
            prior: u32::MAX,
            page_limit: u32::MAX,
            is_relation: false,
            looks_same: false,
            is_picked: false,
        }
    }
}

/// The comparison, for the data path.
pub(super) struct Changed<'a> {
    pub(super) comparison: &'a Comparison<'a>,
}

impl Selection for Changed<'_> {
    fn selector(&self) -> Box<dyn Selector + '_> {
        Box::new(ChangedSelector { shared: self, cursor: self.comparison.sums.cursor(), sums: Vec::new() })
    }
}

struct ChangedSelector<'a> {
    shared: &'a Changed<'a>,
    cursor: SumsCursor<'a>,
    sums: Vec<Option<u32>>,
}

impl Selector for ChangedSelector<'_> {
    fn select(&mut self, piece: &Examined<'_>, changed: &mut Vec<Range<usize>>) -> Result<()> {
        let Changed { comparison } = self.shared;
        let length = piece.bytes.len();
        comparison.see(piece.file, piece.file_offset + length as u64);
        let known = comparison.of(piece.file, |followed| {
            let Followed { is_relation, looks_same, is_picked, .. } = *followed;
            let is_compared = !is_picked && (is_relation || looks_same);
            (followed.prior != u32::MAX && is_compared).then_some((FileId(followed.prior), is_relation))
        });
        let Some((prior, is_relation)) = known.flatten() else {
            changed.push(0..length);
            return Ok(());
        };
        if !is_relation {
            let then = comparison.set().table.entry(prior);
            if piece.file_offset == 0 && length as u64 == then.size_bytes {
                if piece.crc32c != then.crc32c {
                    changed.push(0..length);
                }
                return Ok(());
            }
        }
        self.select_pages(piece, prior, is_relation, changed);
        Ok(())
    }
}

impl ChangedSelector<'_> {
    fn select_pages(
        &mut self,
        piece: &Examined<'_>,
        prior: FileId,
        is_relation: bool,
        changed: &mut Vec<Range<usize>>,
    ) {
        let comparison = self.shared.comparison;
        let (page, length) = (comparison.page_size_bytes as usize, piece.bytes.len());
        let aligned = piece.page_sums.filter(|_| piece.file_offset.is_multiple_of(page as u64));
        let Some(own_sums) = aligned else {
            changed.push(0..length);
            return;
        };
        let first = piece.file_offset / page as u64;
        comparison.prior_sums(&mut self.cursor, prior, first, own_sums.len() as u64, &mut self.sums);
        let old = comparison.set().manifest.postgres.start_lsn;
        let pages = piece.bytes.chunks_exact(page).zip(own_sums.iter().zip(&self.sums));
        for (number, (bytes, (own, then))) in pages.enumerate() {
            if *then != Some(*own) || (is_relation && page_lsn(bytes) >= old) {
                push_joined(changed, number * page..(number + 1) * page);
            }
        }
        // The end of a file that is no whole page has no checksum to compare.
        let whole = own_sums.len() * page;
        if whole < length {
            push_joined(changed, whole..length);
        }
        if !changed.is_empty() {
            let made = comparison.take_runs(2 * changed.len() as u64 + 1);
            let spare = made < comparison.run_budget / 2;
            let parts = if spare { (PARTS_PER_MIB * length as u64 / MIB).max(1) } else { 1 };
            coalesce(changed, parts as usize, page);
        }
    }
}

/// Adds a range, as part of the last one where it continues that.
pub(super) fn push_joined(ranges: &mut Vec<Range<usize>>, next: Range<usize>) {
    match ranges.last_mut() {
        Some(last) if last.end == next.start => last.end = next.end,
        _ => ranges.push(next),
    }
}

/// Joins ranges over the smallest gaps until there are at most `count`.
pub(super) fn coalesce(ranges: &mut Vec<Range<usize>>, count: usize, page: usize) {
    let mut gap = page;
    while ranges.len() > count {
        let mut joined: usize = 0;
        for at in 1..ranges.len() {
            if ranges[at].start - ranges[joined].end <= gap {
                ranges[joined].end = ranges[at].end;
            } else {
                joined += 1;
                ranges[joined] = ranges[at].clone();
            }
        }
        ranges.truncate(joined + 1);
        gap *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_small_changes_become_few_parts_that_cover_them() {
        let scattered: Vec<Range<usize>> = (0..128).step_by(3).map(|page| page * 8192..(page + 1) * 8192).collect();
        for count in [1, 2, 8, 40, 1000] {
            let mut ranges = scattered.clone();
            coalesce(&mut ranges, count, 8192);
            assert!(ranges.len() <= count.max(1), "{count}: {}", ranges.len());
            for old in &scattered {
                assert!(ranges.iter().any(|new| new.start <= old.start && old.end <= new.end));
            }
            assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
        }
    }
}
