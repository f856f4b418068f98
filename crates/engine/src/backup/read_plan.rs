//! Which parts of the files an incremental backup reads: all of them, or, where the server's WAL summaries reach from
//! the prior's start to this backup's start, the pages that they name.
//!
//! Summaries tell only of main forks all that there is to know: free space maps are not in WAL, and a visibility map's
//! bits are cleared by records that do not name its pages. These and everything that is no relation are always read.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use super::compare::{Comparison, coalesce, push_joined};
use crate::catalog::page_sums::SumsCursor;
use crate::error::Result;
use crate::format::checksum::crc32c;
use crate::format::file_table::{EntryKind, FileTable};
use crate::io;
use crate::limits::MIB;
use crate::pipeline::{ReadRoot, Span, pause};
use crate::source::postgres::page::page_lsn;
use crate::source::postgres::path_class::{Fork, PathClass, classify, tablespace_oid};
use crate::source::postgres::session::BackupSession;
use crate::source::postgres::wal_summary::{ChangedBlocks, SummaryFile, WalStretch, covering, list_summaries};
use crate::terms::{FileId, Lsn};

/// How long the server's summarizer may be without progress. It sleeps up to 30 seconds between its looks.
const SUMMARIZER_STALL: Duration = Duration::from_secs(40);
const SUMMARIZER_PAUSE: Duration = Duration::from_millis(100);
/// Time for a write that was in progress to end.
const SAMPLE_PAUSE: Duration = Duration::from_millis(5);
/// Parts of a MiB that are read one by one.
const SPANS_PER_MIB: u64 = 8;
/// One page that is not to be read is looked at in each file, and one more for so many of them.
const PAGES_PER_SAMPLE: u64 = 16_384;

/// What is read, and how that was found.
#[derive(Debug, Default)]
pub(super) struct ReadPlan {
    /// Files of which only these parts are read.
    pub(super) spans: BTreeMap<FileId, Vec<Span>>,
    /// Whether WAL summaries say what has changed.
    pub(super) by_summaries: bool,
    pub(super) notes: Vec<String>,
}

impl ReadPlan {
    /// Memory that it takes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.spans.values().map(|spans| 64 + (spans.capacity() * size_of::<Span>()) as u64).sum()
    }
}

/// Where the files are.
pub(super) struct Place<'a> {
    pub(super) pgdata: &'a Path,
    pub(super) root: &'a ReadRoot,
    pub(super) table: &'a FileTable,
    pub(super) blocks_per_segment: u32,
    pub(super) data_checksums: bool,
    pub(super) start_lsn: Lsn,
}

/// Decides what to read.
///
/// # Errors
/// `Source` when the session is lost or a file cannot be read.
pub(super) fn plan(
    place: &Place<'_>,
    comparison: &mut Comparison<'_>,
    session: &mut BackupSession,
) -> Result<ReadPlan> {
    let mut plan = ReadPlan::default();
    if session.setting("summarize_wal")?.as_deref() != Some("on") {
        return Ok(plan);
    }
    // A server can be set back to an older copy of itself without a new timeline. Its summaries then tell of other WAL under
    // the same positions, and nothing in them shows it; but for that it must have been stopped.
    let started = session.facts().postmaster_start_us;
    if started.is_none() || started != comparison.set().manifest.postgres.postmaster_start_us {
        plan.notes.push("all pages are read: the server was started anew since the prior set".to_owned());
        return Ok(plan);
    }
    if comparison.set().manifest.postgres.data_checksums != place.data_checksums {
        plan.notes.push("all pages are read: page checksums were switched since the prior set".to_owned());
        return Ok(plan);
    }
    if comparison.set().manifest.page_sums.is_none() {
        plan.notes.push("all pages are read: the prior set has no page checksums".to_owned());
        return Ok(plan);
    }
    let changed = match find_summaries(place.pgdata, &comparison.prior.wal, session)? {
        // A server cuts its summaries where checkpoints begin. One that has no cut where the prior began was set back
        // since, and went on from there with other WAL.
        Ok(files) if files.first().is_some_and(|first| first.start != comparison.prior.wal[0].start) => {
            plan.notes.push("all pages are read: no WAL summary begins where the prior set began".to_owned());
            return Ok(plan);
        }
        Ok(files) => read_summaries(&files),
        Err(lost) => {
            plan.notes.push(format!("all pages are read: no WAL summary covers {lost}"));
            return Ok(plan);
        }
    };
    let changed = match changed {
        Ok(changed) => changed,
        Err(error) => {
            plan.notes.push(format!("all pages are read: {}", error.message()));
            return Ok(plan);
        }
    };
    plan.by_summaries = true;
    plan.notes.extend(comparison.sums.check_blocks());
    let comparison = &*comparison;
    let mut planner =
        Planner { place, comparison, changed: &changed, cursor: comparison.sums.cursor(), wrong: Vec::new() };
    for file in place.table.ids() {
        if let Some(spans) = planner.spans_of(file)? {
            comparison.see(file, place.table.entry(file).size_bytes);
            plan.spans.insert(file, spans);
        }
    }
    if let Some(first) = planner.wrong.first() {
        let count = planner.wrong.len();
        plan.notes.push(format!(
            "{count} files were read in full: pages that no WAL summary names are not those of the prior set (first: {first})"
        ));
    }
    Ok(plan)
}

/// The summaries that cover the WAL, waiting for the last of them; or the first position that none covers.
fn find_summaries(
    pgdata: &Path,
    wal: &[WalStretch],
    session: &mut BackupSession,
) -> Result<std::result::Result<Vec<SummaryFile>, Lsn>> {
    let (mut reached, mut since) = (Lsn(0), Instant::now());
    let last = wal.len().saturating_sub(1);
    loop {
        let files = list_summaries(pgdata)?;
        let mut chosen = Vec::new();
        let mut lost = None;
        for (number, stretch) in wal.iter().enumerate() {
            match covering(&files, stretch) {
                Ok(mut found) => chosen.append(&mut found),
                Err(position) => {
                    lost = Some((number, position));
                    break;
                }
            }
        }
        let Some((number, position)) = lost else { return Ok(Ok(chosen)) };
        // A gap in the past stays; at the end the summarizer may only be behind.
        let newer = files.iter().any(|file| file.timeline == wal[number].timeline && file.start > position);
        if number != last || newer {
            return Ok(Err(position));
        }
        if position > reached {
            (reached, since) = (position, Instant::now());
        } else if since.elapsed() > SUMMARIZER_STALL {
            return Ok(Err(position));
        }
        session.check_alive()?;
        pause(SUMMARIZER_PAUSE);
    }
}

fn read_summaries(files: &[SummaryFile]) -> Result<ChangedBlocks> {
    let mut changed = ChangedBlocks::default();
    files.iter().try_for_each(|file| changed.add_file(&file.path))?;
    Ok(changed)
}

struct Planner<'a> {
    place: &'a Place<'a>,
    comparison: &'a Comparison<'a>,
    changed: &'a ChangedBlocks,
    cursor: SumsCursor<'a>,
    /// Files whose sample was not what the summaries promise.
    wrong: Vec<String>,
}

impl Planner<'_> {
    /// The parts of a file to read; None for all of it.
    fn spans_of(&mut self, file: FileId) -> Result<Option<Vec<Span>>> {
        let table = self.place.table;
        let (entry, path) = (table.entry(file), table.path(file));
        let (PathClass::Relation { database_oid, file_number, fork: Fork::Main, segment_number }, Some(prior)) =
            (classify(path), self.comparison.prior_file(file))
        else {
            return Ok(None);
        };
        let page = self.comparison.page_size_bytes;
        let then = *self.comparison.set().table.entry(prior);
        let tablespace = tablespace_oid(path).unwrap_or_default();
        if entry.kind != EntryKind::File
            || !entry.size_bytes.is_multiple_of(page)
            || !then.size_bytes.is_multiple_of(page)
            || self.changed.database_is_new(tablespace, database_oid)
        {
            return Ok(None);
        }
        let first_block = segment_number.wrapping_mul(self.place.blocks_per_segment);
        let changes = self.changed.relation((tablespace, database_oid, file_number));
        let limit = changes.map_or(u32::MAX, |changes| changes.limit()).saturating_sub(first_block);
        let pages = entry.size_bytes / page;
        // Pages of which the prior may have the same.
        let common = pages.min(then.size_bytes / page).min(u64::from(limit));
        let mut read = Vec::new();
        if let Some(changes) = changes {
            for block in changes.blocks(first_block, first_block.saturating_add(common as u32)) {
                let start = u64::from(block - first_block) * page;
                push_joined(&mut read, start as usize..(start + page) as usize);
            }
        }
        if common < pages {
            push_joined(&mut read, (common * page) as usize..(pages * page) as usize);
        }
        self.check_and_take(file, prior, pages, read)
    }

    /// Checks that what is not read is what the prior has, and takes the parts from the budget of runs.
    fn check_and_take(
        &mut self,
        file: FileId,
        prior: FileId,
        pages: u64,
        mut read: Vec<std::ops::Range<usize>>,
    ) -> Result<Option<Vec<Span>>> {
        let page = self.comparison.page_size_bytes;
        let parts = (SPANS_PER_MIB * pages * page / MIB).max(SPANS_PER_MIB);
        coalesce(&mut read, parts as usize, page as usize);
        let bytes: usize = read.iter().map(std::ops::Range::len).sum();
        if 2 * bytes as u64 > pages * page || !self.comparison.knows_pages(prior, pages) {
            return Ok(None);
        }
        let made = self.comparison.take_runs(2 * read.len() as u64);
        if made > self.comparison.run_budget / 4 || !self.sample_is_right(file, prior, pages, &read)? {
            return Ok(None);
        }
        let span = |range: std::ops::Range<usize>| Span { offset: range.start as u64, size_bytes: range.len() as u64 };
        Ok(Some(read.into_iter().map(span).collect()))
    }

    /// Looks at some pages that no summary names.
    fn sample_is_right(
        &mut self,
        file: FileId,
        prior: FileId,
        pages: u64,
        read: &[std::ops::Range<usize>],
    ) -> Result<bool> {
        let page = self.comparison.page_size_bytes;
        let samples = 1 + pages / PAGES_PER_SAMPLE;
        let Some(descriptor) = self.place.root.open(self.place.table, file)? else { return Ok(true) };
        let mut bytes = vec![0u8; page as usize];
        let mut sums = Vec::new();
        for number in 0..samples {
            // Other pages each time: the start of the backup moves them.
            let wanted =
                (self.place.start_lsn.0 / 8 + number * PAGES_PER_SAMPLE).wrapping_mul(0x9E37_79B9) % pages.max(1);
            let is_read = |at: u64| read.iter().any(|range| range.contains(&((at * page) as usize)));
            let Some(sample) = (wanted..pages).chain(0..wanted).take(64).find(|at| !is_read(*at)) else { continue };
            self.comparison.prior_sums(&mut self.cursor, prior, sample, 1, &mut sums);
            let matches = |bytes: &mut [u8]| -> Result<bool> {
                match io::read_full_at(descriptor.as_fd(), bytes, sample * page) {
                    Ok(length) if length == bytes.len() => Ok(sums.first().copied().flatten() == Some(crc32c(bytes))
                        || page_lsn(bytes) >= self.place.start_lsn),
                    // Cut meanwhile: WAL of this backup says so.
                    Ok(_) => Ok(true),
                    Err(_) => Ok(false),
                }
            };
            // The second look is for a page that was being written at the first.
            if !matches(&mut bytes)? && {
                pause(SAMPLE_PAUSE);
                !matches(&mut bytes)?
            } {
                self.wrong.push(format!("{} page {sample}", self.place.table.path_text(file)));
                return Ok(false);
            }
        }
        Ok(true)
    }
}
