//! Checks the pages of a cluster that the server itself reads and sends: nothing can be read a second time here.
//!
//! So a page that looks wrong is only noted, and judged when the end of the backup is known. A page with an LSN between
//! start and end of the backup may be torn, and replay writes it again. What is left is bad: a wrong page whose LSN says
//! that it rested all the time (the server read it twice before it sent it), and an LSN beyond the end of all WAL.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use super::page_check::BadPages;
use crate::error::Result;
use crate::format::file_table::FileTable;
use crate::pipeline::ContentCheck;
use crate::source::postgres::page::{PageHeader, PageJudge, PageVerdict, SuspectReason};
use crate::source::postgres::path_class::{PathClass, classify};
use crate::terms::{FileId, Lsn};

/// Suspects that are kept; beyond it the source is damaged at large, and its pages are counted only.
const SUSPECTS_MAX: usize = 1_000_000;

#[derive(Clone, Copy, Debug)]
struct Suspect {
    file: FileId,
    page: u32,
    lsn: Lsn,
    reason: SuspectReason,
}

/// The check, shared by all encoders.
pub(super) struct StreamPages<'a> {
    judge: PageJudge,
    block_size_bytes: u32,
    blocks_per_segment: u32,
    start_lsn: Lsn,
    table: &'a Mutex<FileTable>,
    /// A recent end of WAL: pages beyond it are kept in mind.
    lsn_limit: AtomicU64,
    suspects: Mutex<Vec<Suspect>>,
}

impl<'a> StreamPages<'a> {
    /// For a backup that began at `start_lsn`.
    pub(super) fn new(
        block_size_bytes: u32,
        blocks_per_segment: u32,
        data_checksums: bool,
        start_lsn: Lsn,
        table: &'a Mutex<FileTable>,
    ) -> Self {
        StreamPages {
            judge: PageJudge::new(block_size_bytes, data_checksums, start_lsn),
            block_size_bytes,
            blocks_per_segment,
            start_lsn,
            table,
            lsn_limit: AtomicU64::new(start_lsn.0),
            suspects: Mutex::default(),
        }
    }

    /// Notes a newer end of WAL.
    pub(super) fn set_lsn_limit(&self, lsn: Lsn) {
        self.lsn_limit.fetch_max(lsn.0, Relaxed);
    }

    /// The pages that are bad, now that the backup ended at `stop_lsn`.
    pub(super) fn bad_pages(self, stop_lsn: Lsn) -> BadPages {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let mut suspects = self.suspects.into_inner().unwrap_or_else(PoisonError::into_inner);
        suspects.sort_unstable_by_key(|suspect| (suspect.file, suspect.page));
        let mut bad = BadPages::default();
        for suspect in suspects {
            let rewritten_by_wal = suspect.lsn >= self.start_lsn && suspect.lsn <= stop_lsn;
            if !rewritten_by_wal {
                bad.add(table.path_text(suspect.file), suspect.page, suspect.reason.to_string());
            }
        }
        bad
    }
}

impl ContentCheck for StreamPages<'_> {
    fn check(&self, file: FileId, file_offset: u64, bytes: &mut [u8]) -> Result<()> {
        let class = classify(self.table.lock().unwrap_or_else(PoisonError::into_inner).path(file));
        let PathClass::Relation { segment_number, .. } = class else { return Ok(()) };
        let first_page = (file_offset / u64::from(self.block_size_bytes)) as u32;
        let first_block = segment_number.wrapping_mul(self.blocks_per_segment).wrapping_add(first_page);
        // A tail shorter than a page is a file being extended: replay writes it again.
        for (number, page) in (0u32..).zip(bytes.chunks_exact(self.block_size_bytes as usize)) {
            let limit = Lsn(self.lsn_limit.load(Relaxed));
            let PageVerdict::Suspect(reason) = self.judge.judge(page, first_block.wrapping_add(number), limit) else {
                continue;
            };
            let lsn = PageHeader::parse(page).map_or(Lsn(0), |header| header.lsn);
            let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
            if suspects.len() < SUSPECTS_MAX {
                suspects.push(Suspect { file, page: first_page + number, lsn, reason });
            }
        }
        Ok(())
    }
}
