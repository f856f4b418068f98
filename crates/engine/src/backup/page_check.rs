//! Checks every page of every relation file on its way: checksum, LSN, header; notes pages that are all zeros.
//!
//! The server writes pages while we read them, so a page that looks wrong is read again until it is right or has
//! stayed wrong long enough to be no write in progress. What the server's own base backup leaves out is checked too:
//! pages that changed since the backup began, and pages whose LSN lies in the future.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::error::Result;
use crate::format::file_table::FileTable;
use crate::format::manifest::BadPage;
use crate::io;
use crate::limits::BAD_PAGES_LISTED_MAX;
use crate::pipeline::{ContentCheck, ReadRoot, pause};
use crate::source::postgres::page::{PageJudge, PageVerdict, SuspectReason};
use crate::source::postgres::path_class::{Fork, PathClass, classify};
use crate::source::postgres::session::BackupSession;
use crate::terms::{FileId, Lsn, PageNumber};

/// Pauses between re-reads of a suspect page. A write of one page takes microseconds; a writer that is scheduled away
/// in the middle of it comes back within these 1.4 seconds.
const REREAD_PAUSES_MS: [u64; 10] = [1, 2, 5, 10, 20, 50, 100, 200, 400, 600];
/// Re-reads that must all give the same wrong bytes before a page is called bad.
const SAME_READS_MIN: u32 = 6;
/// After this many bad pages the disk is damaged at large, and re-reading shortly is enough.
const PATIENT_PAGES_MAX: u64 = 64;

/// A run of all-zero pages in one file.
#[derive(Clone, Copy, Debug)]
pub(super) struct ZeroPages {
    pub(super) file: FileId,
    pub(super) first: PageNumber,
    pub(super) count: u32,
}

/// The check, shared by all readers.
pub(super) struct PageCheck<'a> {
    pub(super) judge: PageJudge,
    pub(super) block_size_bytes: u32,
    pub(super) blocks_per_segment: u32,
    pub(super) table: &'a FileTable,
    pub(super) root: &'a ReadRoot,
    /// None once the backup has been ended.
    pub(super) session: &'a Mutex<Option<BackupSession>>,
    /// A recent end of WAL.
    pub(super) lsn_limit: AtomicU64,
    /// Pages with an LSN below this prove that their file was not cut in front of them since.
    pub(super) old_lsn: Lsn,
    /// Per file: 1 + the highest page with such an LSN, 0 for none.
    pub(super) old_pages: Vec<AtomicU32>,
    pub(super) zeros: Mutex<Vec<ZeroPages>>,
    pub(super) bad: Mutex<BadPages>,
}

/// The damaged pages found so far.
#[derive(Debug, Default)]
pub(super) struct BadPages {
    pub(super) count: u64,
    pub(super) listed: Vec<BadPage>,
}

impl BadPages {
    /// Notes one more.
    pub(super) fn add(&mut self, path: String, page: u32, reason: String) {
        self.count += 1;
        if self.listed.len() < BAD_PAGES_LISTED_MAX {
            self.listed.push(BadPage { path, page, reason });
        }
    }
}

impl ContentCheck for PageCheck<'_> {
    fn check(&self, file: FileId, file_offset: u64, bytes: &mut [u8]) -> Result<()> {
        let PathClass::Relation { segment_number, fork, .. } = classify(self.table.path(file)) else { return Ok(()) };
        let block_size = self.block_size_bytes as usize;
        let first_page = (file_offset / u64::from(self.block_size_bytes)) as u32;
        let first_block = segment_number.wrapping_mul(self.blocks_per_segment).wrapping_add(first_page);
        let (mut highest_old, mut zeros): (u32, Option<ZeroPages>) = (0, None);
        // A tail shorter than a page is a file being extended: replay writes it again.
        for (number, page) in bytes.chunks_exact_mut(block_size).enumerate() {
            let (page_number, block) = (first_page + number as u32, first_block.wrapping_add(number as u32));
            let verdict = match self.judge.judge(page, block, Lsn(self.lsn_limit.load(Relaxed))) {
                PageVerdict::Suspect(reason) => self.look_again(file, page_number, block, page, reason)?,
                verdict => verdict,
            };
            match verdict {
                PageVerdict::Good { lsn } if lsn.0 != 0 && lsn < self.old_lsn => highest_old = page_number + 1,
                PageVerdict::Zero if fork == Fork::Main => match &mut zeros {
                    Some(run) if run.first.0 + run.count == page_number => run.count += 1,
                    _ => {
                        self.note_zeros(zeros.take());
                        zeros = Some(ZeroPages { file, first: PageNumber(page_number), count: 1 });
                    }
                },
                _ => {}
            }
        }
        self.note_zeros(zeros);
        self.old_pages[file.0 as usize].fetch_max(highest_old, Relaxed);
        Ok(())
    }
}

impl PageCheck<'_> {
    fn note_zeros(&self, zeros: Option<ZeroPages>) {
        if let Some(zeros) = zeros {
            self.zeros.lock().unwrap_or_else(PoisonError::into_inner).push(zeros);
        }
    }

    /// Asks the server where WAL ends now; after the backup's end, what it said last.
    pub(super) fn refresh_lsn_limit(&self) -> Result<Lsn> {
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(session) = &mut *session else { return Ok(Lsn(self.lsn_limit.load(Relaxed))) };
        let lsn = session.current_insert_lsn()?;
        self.lsn_limit.fetch_max(lsn.0, Relaxed);
        Ok(lsn)
    }

    /// Reads a suspect page again until it is right, gone, or surely bad; `page` gets what was read last.
    fn look_again(
        &self,
        file: FileId,
        page_number: u32,
        block: u32,
        page: &mut [u8],
        reason: SuspectReason,
    ) -> Result<PageVerdict> {
        let mut verdict = PageVerdict::Suspect(reason);
        if let SuspectReason::FutureLsn { .. } = reason {
            // Most often the page is right and our idea of the end of WAL is old.
            self.refresh_lsn_limit()?;
            verdict = self.judge.judge(page, block, Lsn(self.lsn_limit.load(Relaxed)));
        }
        let patient = self.bad.lock().unwrap_or_else(PoisonError::into_inner).count < PATIENT_PAGES_MAX;
        let mut same_reads = 0;
        let mut again = vec![0u8; page.len()];
        for (attempt, pause_ms) in REREAD_PAUSES_MS.iter().enumerate() {
            if !matches!(verdict, PageVerdict::Suspect(_)) || (!patient && attempt >= 3) {
                break;
            }
            pause(Duration::from_millis(if patient { *pause_ms } else { 1 }));
            // Dropped by the server meanwhile: the page is not part of any relation any more.
            let Some(descriptor) = self.root.open(self.table, file)? else {
                return Ok(PageVerdict::Good { lsn: Lsn(0) });
            };
            let offset = u64::from(page_number) * u64::from(self.block_size_bytes);
            let Ok(length) = io::read_full_at(descriptor.as_fd(), &mut again, offset) else { break };
            if length < again.len() {
                // Cut off by the server meanwhile: the page is not part of the relation any more.
                return Ok(PageVerdict::Good { lsn: Lsn(0) });
            }
            same_reads = if again == page { same_reads + 1 } else { 0 };
            page.copy_from_slice(&again);
            verdict = self.judge.judge(page, block, self.refresh_lsn_limit()?);
            if same_reads >= SAME_READS_MIN {
                break;
            }
        }
        if let PageVerdict::Suspect(reason) = verdict {
            let mut bad = self.bad.lock().unwrap_or_else(PoisonError::into_inner);
            bad.add(self.table.path_text(file), page_number, reason.to_string());
        }
        Ok(verdict)
    }
}
