//! Compares what is read with the prior set: a page goes into this set unless the prior surely has the same.
//!
//! A page is the same if WAL has not changed it since the prior began (its LSN), and its checksum is the prior's: what
//! changes without WAL (hint bits, free space maps, checksums switched on) changes the checksum. A file that is no
//! relation is the same if its time, size and checksum are.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::prior::Prior;
use crate::catalog::page_sums::{ChainSums, FirstPage, SumsCursor};
use crate::catalog::{OpenSet, Repository};
use crate::error::Result;
use crate::format::checksum::crc32c_of_zeros;
use crate::format::file_table::{EntryKind, FileTable, Place};
use crate::limits::MIB;
use crate::pipeline::ceiling::ComparisonFacts;
use crate::pipeline::{Examined, PipelineSettings, Selection, Selector};
use crate::source::postgres::page::page_lsn;
use crate::source::postgres::path_class::{PathClass, classify};
use crate::terms::FileId;

/// Parts of a MiB that are stored one by one; if more of it has changed, what lies between is stored too.
const PARTS_PER_MIB: u64 = 8;

/// The prior set beside the list of files at hand.
pub(super) struct Comparison<'a> {
    pub(super) prior: Prior<'a>,
    pub(super) sums: ChainSums,
    pub(super) page_size_bytes: u64,
    /// The prior's file of the same path; `u32::MAX` for none.
    prior_of: Vec<u32>,
    /// How much of each file has been seen.
    seen_bytes: Vec<AtomicU64>,
    /// Runs that comparing has made so far, and how many it may make: memory for them is in the ceiling.
    runs_made: AtomicU64,
    pub(super) run_budget: u64,
    zero_page_sum: u32,
}

impl<'a> Comparison<'a> {
    /// Opens the prior's checksums; what is wrong with them is a note.
    pub(super) fn new(
        repository: &Repository,
        prior: Prior<'a>,
        table: &FileTable,
        settings: &PipelineSettings,
        page_size_bytes: u32,
    ) -> (Self, Vec<String>) {
        let (sums, notes) = ChainSums::open(repository, &prior.set, page_size_bytes);
        let mut by_path: Vec<FileId> = files_of(&prior.set.table).collect();
        by_path.sort_unstable_by(|a, b| prior.set.table.path(*a).cmp(prior.set.table.path(*b)));
        let find = |file: FileId| {
            let path = table.path(file);
            let found = by_path.binary_search_by(|own| prior.set.table.path(*own).cmp(path));
            found.map_or(u32::MAX, |at| by_path[at].0)
        };
        let is_file = |file: FileId| table.entry(file).kind == EntryKind::File;
        let prior_of = table.ids().map(|file| if is_file(file) { find(file) } else { u32::MAX }).collect();
        let unit = u64::from(settings.frame_size_bytes).min(MIB);
        let comparison = Comparison {
            sums,
            page_size_bytes: u64::from(page_size_bytes),
            prior_of,
            seen_bytes: table.ids().map(|_| AtomicU64::new(0)).collect(),
            runs_made: AtomicU64::new(0),
            run_budget: 6 * (table.content_bytes() / unit) + 4 * table.entries().len() as u64 + 65_536,
            zero_page_sum: crc32c_of_zeros(u64::from(page_size_bytes)),
            prior,
        };
        (comparison, notes)
    }

    /// The prior set.
    pub(super) fn set(&self) -> &OpenSet {
        &self.prior.set
    }

    /// The prior's file of the same path.
    pub(super) fn prior_file(&self, file: FileId) -> Option<FileId> {
        self.prior_of.get(file.0 as usize).filter(|found| **found != u32::MAX).map(|found| FileId(*found))
    }

    /// Raw bytes of a full frame of the prior's run.
    pub(super) fn frame_size_bytes(&self, run: &crate::format::file_table::Run) -> u64 {
        u64::from(self.set().manifest_of(run.set()).frame_size_bytes)
    }

    /// Notes that a file has at least so many bytes.
    pub(super) fn see(&self, file: FileId, end: u64) {
        self.seen_bytes[file.0 as usize].fetch_max(end, Relaxed);
    }

    /// How many bytes of a file were seen; 0 for files that were not compared.
    pub(super) fn seen(&self, file: FileId) -> u64 {
        self.seen_bytes.get(file.0 as usize).map_or(0, |bytes| bytes.load(Relaxed))
    }

    /// Takes from the budget; how many runs are made already.
    pub(super) fn take_runs(&self, count: u64) -> u64 {
        self.runs_made.fetch_add(count, Relaxed)
    }

    /// What it holds, for the ceiling; `planned_bytes` is the memory of the list of what is to be read.
    pub(super) fn facts(&self, planned_bytes: u64) -> ComparisonFacts {
        let (set, files) = (self.set(), self.prior_of.len() as u64);
        let indexes = 8 * set.frame_count() + self.sums.memory_bytes();
        ComparisonFacts {
            prior_bytes: set.table.memory_bytes() + indexes + files * 12 + planned_bytes,
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

/// The comparison of one list of files, for the data path.
pub(super) struct Changed<'a> {
    pub(super) comparison: &'a Comparison<'a>,
    pub(super) table: &'a FileTable,
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
        let Changed { comparison, table } = self.shared;
        let length = piece.bytes.len();
        comparison.see(piece.file, piece.file_offset + length as u64);
        let Some(prior) = comparison.prior_file(piece.file) else {
            changed.push(0..length);
            return Ok(());
        };
        let is_relation = matches!(classify(table.path(piece.file)), PathClass::Relation { .. });
        if !is_relation {
            let (now, then) = (table.entry(piece.file), comparison.set().table.entry(prior));
            if (now.mtime_s, now.size_bytes) != (then.mtime_s, then.size_bytes) {
                changed.push(0..length);
                return Ok(());
            }
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
