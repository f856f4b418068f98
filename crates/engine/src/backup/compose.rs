//! The whole content of a file from what this set stores and what prior sets hold, with its checksum, which is made from
//! those of its pages: nothing that has not changed is read.

use std::collections::BTreeSet;

use super::compare::Comparison;
use crate::catalog::page_sums::SumsCursor;
use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::{Appender, combine, crc32c_of_zeros};
use crate::format::file_table::{FileTable, Fill, Place, Run, StoredRun, ZeroFill};
use crate::format::manifest::Manifest;
use crate::terms::{FileId, SetIndex};

/// Pages whose checksums are looked up at once.
const PAGES_AT_ONCE: u64 = 4096;

/// A file table and the sets that its runs lie in, nearest first.
pub(super) struct Composed {
    pub(super) table: FileTable,
    pub(super) priors: Vec<Manifest>,
}

/// Puts together what was stored and what the prior has.
///
/// # Errors
/// `Damage` if the prior does not have what was left out.
pub(super) fn compose(
    planned: &FileTable,
    stored: Vec<StoredRun>,
    gone: &[FileId],
    frame_size_bytes: u32,
    comparison: Option<&Comparison<'_>>,
) -> Result<Composed> {
    let Some(comparison) = comparison else {
        let table = planned.with_content(stored, gone, &[frame_size_bytes], &mut ZeroFill)?;
        return Ok(Composed { table, priors: Vec::new() });
    };
    let chain: Vec<&Manifest> = comparison.set().chain().collect();
    let sizes: Vec<u32> = [frame_size_bytes].into_iter().chain(chain.iter().map(|set| set.frame_size_bytes)).collect();
    let mut fill = PriorFill {
        comparison,
        pages: Appender::new(comparison.page_size_bytes),
        cursor: comparison.sums.cursor(),
        sums: Vec::new(),
    };
    let mut table = planned.with_content(stored, gone, &sizes, &mut fill)?;
    // The set that was compared with always counts; of the others those that still hold something.
    let mut used: BTreeSet<SetIndex> = BTreeSet::from([SetIndex(1)]);
    for file in table.ids() {
        used.extend(table.runs(file).iter().map(Run::set).filter(|set| *set != SetIndex::OWN));
    }
    let used: Vec<SetIndex> = used.into_iter().collect();
    table.renumber_sets(|set| match used.binary_search(&set) {
        Ok(at) => SetIndex(at as u16 + 1),
        Err(_) => set,
    });
    let priors = used.iter().filter_map(|set| chain.get(usize::from(set.0) - 1)).map(|set| (*set).clone()).collect();
    Ok(Composed { table, priors })
}

/// What was not stored lies in the prior.
struct PriorFill<'a> {
    comparison: &'a Comparison<'a>,
    pages: Appender,
    cursor: SumsCursor<'a>,
    sums: Vec<Option<u32>>,
}

impl Fill for PriorFill<'_> {
    fn size_bytes(&self, file: FileId) -> u64 {
        self.comparison.seen(file)
    }

    fn fill(&mut self, file: FileId, from: u64, to: u64, runs: &mut Vec<Run>) -> Result<u32> {
        let Some(prior) = self.comparison.prior_file(file) else { return ZeroFill.fill(file, from, to, runs) };
        let entry = *self.comparison.set().table.entry(prior);
        let limit = self.comparison.prior_limit_bytes(file);
        if (from, to) == (0, entry.size_bytes) && to <= limit {
            self.push_runs(prior, from, to, runs)?;
            return Ok(entry.crc32c);
        }
        // Only whole pages are ever left out; around them the file was cut while it was read, and replay repairs it. What was
        // cut and grew again between the sets is zeros where nothing came.
        let page = self.comparison.page_size_bytes;
        let begin = from.next_multiple_of(page).min(to);
        let end = (to.min(entry.size_bytes).min(limit) / page * page).max(begin);
        let mut digest = zeros(from, begin, runs);
        digest = self.append_pages(prior, digest, begin, end, runs)?;
        let tail = zeros(end, to, runs);
        Ok(combine(digest, tail, to - end))
    }
}

fn zeros(from: u64, to: u64, runs: &mut Vec<Run>) -> u32 {
    if from == to {
        return 0;
    }
    runs.push(Run::new(from, to - from, Place::Zeros));
    crc32c_of_zeros(to - from)
}

impl PriorFill<'_> {
    /// Adds pages of the prior to `runs`, and their checksums to `digest`.
    fn append_pages(&mut self, prior: FileId, mut digest: u32, from: u64, to: u64, runs: &mut Vec<Run>) -> Result<u32> {
        let page = self.comparison.page_size_bytes;
        let (mut next, end) = (from / page, to / page);
        while next < end {
            let count = (end - next).min(PAGES_AT_ONCE);
            self.comparison.prior_sums(&mut self.cursor, prior, next, count, &mut self.sums);
            for sum in &self.sums {
                let sum = sum.ok_or_else(|| self.lost(prior, "the checksum of a page cannot be read"))?;
                digest = self.pages.append(digest, sum);
            }
            next += count;
        }
        self.push_runs(prior, from, to, runs)?;
        Ok(digest)
    }

    /// Adds the prior's runs of `from..to`, as this set counts sets: the prior is number 1.
    fn push_runs(&self, prior: FileId, from: u64, to: u64, runs: &mut Vec<Run>) -> Result<()> {
        let known = self.comparison.set().table.runs(prior);
        let start = known.partition_point(|run| run.end() <= from);
        for run in known[start..].iter().take_while(|run| run.file_offset < to) {
            let frame_size = self.comparison.frame_size_bytes(run);
            let part = run.part(run.file_offset.max(from), run.end().min(to), frame_size);
            if !self.frames_exist(&part, frame_size) {
                return Err(self.lost(prior, "its stripe has not the frames that hold it"));
            }
            runs.push(part.renumbered(|set| SetIndex(set.0 + 1)));
        }
        Ok(())
    }

    fn frames_exist(&self, run: &Run, frame_size: u64) -> bool {
        let Place::Frames { set, stripe, first_frame, offset_in_frame } = run.place() else { return true };
        let last = first_frame + (u64::from(offset_in_frame) + run.size_bytes - 1) / frame_size;
        let open = self.comparison.set().stripes.iter().flatten();
        let mut open = open.filter(|open| (open.set, open.stripe) == (set, stripe));
        open.next().is_some_and(|open| last < open.index.frame_count())
    }

    fn lost(&self, prior: FileId, cause: &str) -> Error {
        let set = self.comparison.set();
        let action = format!("use {} of set {}", set.table.path_text(prior), set.manifest.label);
        Error::new(ErrorKind::Damage, action, cause)
            .hint("make a full backup (--type full); `pagehaul verify` tells what of that set is damaged")
    }
}
