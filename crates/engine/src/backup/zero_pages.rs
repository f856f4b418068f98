//! Which all-zero pages were not always so. The server's own base backup takes every zero page for a new one.
//!
//! Two witnesses are asked. The prior set: the same page of the same file had content there. The visibility map: it
//! calls the page all-visible, which it never does for a page that was never set up, and its own page has not changed
//! since the backup began. Either counts only if a later page of the file has an old LSN: then the file was not cut and
//! extended meanwhile, which is the honest way for a page to become zero.

use std::os::fd::AsFd;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

use super::page_check::{PageCheck, ZeroPages};
use crate::catalog::{OpenSet, OpenStripe, Repository, open_set};
use crate::error::Result;
use crate::format::file_table::FileTable;
use crate::format::manifest::Manifest;
use crate::io;
use crate::pipeline::frame_reader::FrameReader;
use crate::pipeline::{Observer, ReadRoot, StripeInput};
use crate::source::postgres::page::{PageVerdict, visibility_bits};
use crate::source::postgres::path_class::{Fork, PathClass, classify};
use crate::terms::{FileId, Lsn};

/// Most zero pages that are looked at: beyond it a relation was extended in bulk, and nothing is wrong.
const LOOKED_AT_MAX: usize = 200_000;

/// Adds the zero pages that were lost to the bad ones.
///
/// # Errors
/// Only if the source cannot be read; a prior set that does not read is a note.
pub(super) fn find_lost_pages(
    check: &PageCheck<'_>,
    prior: Option<&Manifest>,
    repository: &Repository,
    start_lsn: Lsn,
    observer: &dyn Observer,
) -> Result<()> {
    let mut zeros = std::mem::take(&mut *check.zeros.lock().unwrap_or_else(PoisonError::into_inner));
    zeros.retain(|run| check.old_pages[run.file.0 as usize].load(Relaxed) > run.first.0);
    if zeros.is_empty() {
        return Ok(());
    }
    zeros.sort_unstable_by_key(|run| (run.file, run.first));
    let set = prior.and_then(|prior| match open_set(repository, &prior.source, &prior.label, &[]) {
        Ok(set) => Some(set),
        Err(error) => {
            observer.note(&format!("zero pages are not compared with set {}: {}", prior.label, error.message()));
            None
        }
    });
    let mut witness = set.map(PriorWitness::new);
    let mut map = VisibilityWitness { block_size_bytes: check.block_size_bytes, start_lsn, page: None };
    let mut looked_at = 0;
    for run in zeros {
        let below = check.old_pages[run.file.0 as usize].load(Relaxed);
        for page in (run.first.0..run.first.0 + run.count).take_while(|page| *page < below) {
            looked_at += 1;
            if looked_at > LOOKED_AT_MAX {
                observer.note(&format!("only the first {LOOKED_AT_MAX} zero pages were checked for lost content"));
                return Ok(());
            }
            let reason = match witness.as_mut().and_then(|witness| witness.had_content(check, run.file, page)) {
                Some(label) => Some(format!("all zeros; it had content in set {label}")),
                None => map
                    .says_lost(check, &run, page)?
                    .then(|| "all zeros; the visibility map knows it as a page in use".to_owned()),
            };
            if let Some(reason) = reason {
                let mut bad = check.bad.lock().unwrap_or_else(PoisonError::into_inner);
                bad.add(check.table.path_text(run.file), page, reason);
            }
        }
    }
    Ok(())
}

/// The set before this one.
struct PriorWitness {
    label: String,
    table: FileTable,
    reader: FrameReader,
    /// Files of the prior set, sorted by path.
    by_path: Vec<FileId>,
}

impl PriorWitness {
    fn new(set: OpenSet) -> Self {
        let stripes = set.stripes.into_iter().flatten();
        let stripes = stripes.map(|open| {
            let OpenStripe { set, set_id, frame_size_bytes, stripe, object, index, .. } = open;
            StripeInput { set, set_id, frame_size_bytes, stripe, object, index, extents: Vec::new() }
        });
        let mut by_path: Vec<FileId> = set.table.ids().collect();
        by_path.sort_unstable_by(|a, b| set.table.path(*a).cmp(set.table.path(*b)));
        PriorWitness {
            label: set.manifest.label.to_string(),
            reader: FrameReader::new(stripes.collect()),
            table: set.table,
            by_path,
        }
    }

    /// The set's label if the page had content there; None if it had not, or the set cannot say.
    fn had_content(&mut self, check: &PageCheck<'_>, file: FileId, page: u32) -> Option<String> {
        let path = check.table.path(file);
        let found = self.by_path.binary_search_by(|own| self.table.path(*own).cmp(path)).ok()?;
        let own = self.by_path[found];
        let mut bytes = vec![0u8; check.block_size_bytes as usize];
        let offset = u64::from(page) * u64::from(check.block_size_bytes);
        self.reader.read(&self.table, own, offset, &mut bytes).ok()?;
        bytes.iter().any(|byte| *byte != 0).then(|| self.label.clone())
    }
}

/// The visibility map of the relation; keeps the last page of it.
struct VisibilityWitness {
    block_size_bytes: u32,
    start_lsn: Lsn,
    page: Option<(FileId, u32, Vec<u8>)>,
}

impl VisibilityWitness {
    fn says_lost(&mut self, check: &PageCheck<'_>, run: &ZeroPages, page: u32) -> Result<bool> {
        let path = check.table.path(run.file);
        let PathClass::Relation { segment_number, fork: Fork::Main, .. } = classify(path) else { return Ok(false) };
        let heap_block = segment_number * check.blocks_per_segment + page;
        // Two bits a heap block, after the header of 24 bytes.
        let blocks_per_map_page = (self.block_size_bytes - 24) * 4;
        let map_page = heap_block / blocks_per_map_page;
        if self.page.as_ref().is_none_or(|(file, number, _)| (*file, *number) != (run.file, map_page)) {
            let bytes = read_map_page(check.root, path, map_page, self.block_size_bytes);
            self.page = Some((run.file, map_page, bytes));
        }
        let Some((_, _, bytes)) = &self.page else { return Ok(false) };
        let sound = matches!(check.judge.judge(bytes, map_page, self.start_lsn), PageVerdict::Good { .. });
        if !sound {
            // Torn or damaged: no witness.
            return Ok(false);
        }
        let bits = visibility_bits(bytes, self.block_size_bytes, heap_block % blocks_per_map_page);
        Ok(bits.is_some_and(|bits| bits.all_visible && bits.map_lsn < self.start_lsn))
    }
}

/// One page of the `_vm` fork of the relation whose main segment is at `path`; empty if there is none.
fn read_map_page(root: &ReadRoot, path: &[u8], map_page: u32, block_size_bytes: u32) -> Vec<u8> {
    let name_start = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let relation_end =
        path[name_start..].iter().position(|byte| *byte == b'.').map_or(path.len(), |dot| name_start + dot);
    let map_path = [&path[..relation_end], b"_vm"].concat();
    let mut bytes = vec![0u8; block_size_bytes as usize];
    let offset = u64::from(map_page) * u64::from(block_size_bytes);
    let Some(directory) = &root.directory else { return Vec::new() };
    let read = io::open_below(directory.as_fd(), &map_path)
        .and_then(|file| io::read_full_at(file.as_fd(), &mut bytes, offset));
    match read {
        Ok(length) if length == bytes.len() => bytes,
        _ => Vec::new(),
    }
}
