//! What readers do next: files in order, cut into pieces that fill a transfer buffer. Nothing is allocated per buffer.
//!
//! A lane is one device; each reader starts at its own lane and helps with the others when it is done. Small files
//! come first and share frames; a file larger than half a frame starts a frame of its own, and a large one is cut at
//! multiples of the frame size, so that every reader can take a part of it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use super::buffer_pool::Piece;
use crate::format::file_table::{EntryKind, FileTable};
use crate::terms::FileId;

/// Small files whose size is a multiple of this come before the others, so that their pages lie aligned in shared frames
/// and a later backup can compare them one by one.
pub(super) const PAGES_BYTES: u64 = 8192;
/// Most files in one buffer, so that empty ones do not pile up in one.
const PIECES_PER_CLAIM_MAX: usize = 1024;

/// All work of one run.
#[derive(Debug)]
pub struct WorkFeed {
    lanes: Vec<Mutex<Lane>>,
    /// Small files that turned out to be longer than planned: they are taken whole, by themselves.
    grown: Mutex<Vec<Grown>>,
    /// Bytes of the lanes that nobody has claimed; what a file grew by is not in it.
    left_bytes: AtomicU64,
    /// Files of which only some parts are read.
    spans: BTreeMap<FileId, Vec<Span>>,
    frame_size_bytes: u64,
    transfer_size_bytes: u64,
}

/// A part of a file that is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where it starts.
    pub offset: u64,
    /// How long it is.
    pub size_bytes: u64,
}

#[derive(Debug)]
struct Lane {
    files: Vec<FileId>,
    next: usize,
    /// Which span of the next file, if only some parts of it are read.
    span: usize,
    /// How far the next file, or its next span, has been claimed.
    offset: u64,
}

/// A file whose planned length does not hold, and how far it has been claimed.
#[derive(Clone, Copy, Debug)]
struct Grown {
    file: FileId,
    offset: u64,
    size_bytes: u64,
}

/// What a claim found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The pieces are in the list.
    Work,
    /// Nothing is left.
    Done,
}

impl WorkFeed {
    /// Work over `files`, one lane a device, in the order given within each lane but small files first.
    pub fn new(table: &FileTable, lanes: Vec<Vec<FileId>>, frame_size_bytes: u32, transfer_size_bytes: u32) -> Self {
        Self::with_spans(table, lanes, BTreeMap::new(), frame_size_bytes, transfer_size_bytes)
    }

    /// As [`WorkFeed::new`], but only the spans given are read of the files that are in `spans`; they are in order.
    pub fn with_spans(
        table: &FileTable,
        lanes: Vec<Vec<FileId>>,
        spans: BTreeMap<FileId, Vec<Span>>,
        frame_size_bytes: u32,
        transfer_size_bytes: u32,
    ) -> Self {
        let frame_size_bytes = u64::from(frame_size_bytes);
        let bytes_of = |file: &FileId| match spans.get(file) {
            Some(spans) => spans.iter().map(|span| span.size_bytes).sum(),
            None if table.entry(*file).kind == EntryKind::File => table.entry(*file).size_bytes,
            None => 0,
        };
        let left_bytes = lanes.iter().flatten().map(bytes_of).sum();
        let lanes = lanes.into_iter().map(|mut files| {
            files.retain(|file| table.entry(*file).kind == EntryKind::File);
            files.sort_by_key(|file| {
                let size_bytes = table.entry(*file).size_bytes;
                let small = is_packed(size_bytes, frame_size_bytes);
                (!small, small && !size_bytes.is_multiple_of(PAGES_BYTES))
            });
            Mutex::new(Lane { files, next: 0, span: 0, offset: 0 })
        });
        let lanes: Vec<Mutex<Lane>> = lanes.collect();
        WorkFeed {
            left_bytes: AtomicU64::new(left_bytes),
            lanes,
            spans,
            grown: Mutex::default(),
            frame_size_bytes,
            transfer_size_bytes: u64::from(transfer_size_bytes),
        }
    }

    /// No work of its own: for content that comes as a stream of about `bytes`.
    pub fn of_stream(bytes: u64, frame_size_bytes: u32, transfer_size_bytes: u32) -> Self {
        let feed = Self::new(&FileTable::default(), Vec::new(), frame_size_bytes, transfer_size_bytes);
        feed.left_bytes.store(bytes, Relaxed);
        feed
    }

    /// Notes that a stream gave `bytes`.
    pub(crate) fn came(&self, bytes: u64) {
        self.left_bytes.fetch_update(Relaxed, Relaxed, |left| Some(left.saturating_sub(bytes))).ok();
    }

    /// Bytes that no reader has claimed yet, as far as files are as long as they were.
    pub fn left_bytes(&self) -> u64 {
        self.left_bytes.load(Relaxed)
    }

    /// Bytes of a full buffer.
    pub(crate) fn transfer_size_bytes(&self) -> u64 {
        self.transfer_size_bytes
    }

    /// Whether a file of this size is packed together with others.
    pub(crate) fn packs(&self, size_bytes: u64) -> bool {
        is_packed(size_bytes, self.frame_size_bytes)
    }

    /// Whether only some parts of the file are read.
    pub(crate) fn has_spans(&self, file: FileId) -> bool {
        self.spans.contains_key(&file)
    }

    /// Puts the next pieces into `pieces`, at most a transfer buffer of them; `reader` spreads readers over lanes.
    pub(crate) fn claim(&self, table: &FileTable, reader: usize, pieces: &mut Vec<Piece>) -> Claim {
        if self.claim_grown(pieces) {
            return Claim::Work;
        }
        for turn in 0..self.lanes.len() {
            let lane = &self.lanes[(reader + turn) % self.lanes.len()];
            let mut lane = lane.lock().unwrap_or_else(PoisonError::into_inner);
            self.fill(table, &mut lane, pieces);
            if !pieces.is_empty() {
                let claimed = pieces.iter().map(|piece| u64::from(piece.length)).sum();
                self.left_bytes.fetch_sub(claimed, Relaxed);
                return Claim::Work;
            }
        }
        Claim::Done
    }

    /// The next buffer of a file that is longer than was planned.
    fn claim_grown(&self, pieces: &mut Vec<Piece>) -> bool {
        let mut list = self.grown.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut grown) = list.pop() else { return false };
        let end = grown.size_bytes.min(grown.offset + self.transfer_size_bytes);
        while grown.offset < end {
            let length = (end - grown.offset).min(self.frame_size_bytes);
            pieces.push(planned(grown.file, grown.offset, length));
            grown.offset += length;
        }
        if end < grown.size_bytes {
            list.push(grown);
        }
        true
    }

    /// Gives back a small file that is now `size_bytes` long, more than was planned.
    pub(crate) fn give_back(&self, file: FileId, size_bytes: u64) {
        let grown = Grown { file, offset: 0, size_bytes };
        self.grown.lock().unwrap_or_else(PoisonError::into_inner).push(grown);
    }

    fn fill(&self, table: &FileTable, lane: &mut Lane, pieces: &mut Vec<Piece>) {
        let mut room = self.transfer_size_bytes;
        while pieces.len() < PIECES_PER_CLAIM_MAX {
            let Some(&file) = lane.files.get(lane.next) else { return };
            if let Some(spans) = self.spans.get(&file) {
                if !self.fill_from_spans(spans, lane, file, &mut room, pieces) {
                    return;
                }
                continue;
            }
            let size_bytes = table.entry(file).size_bytes;
            if self.packs(size_bytes) {
                if size_bytes > room {
                    return;
                }
                pieces.push(planned(file, 0, size_bytes));
                room -= size_bytes;
                lane.next += 1;
                continue;
            }
            while lane.offset < size_bytes {
                let length = (size_bytes - lane.offset).min(self.frame_size_bytes);
                if length > room {
                    return;
                }
                pieces.push(planned(file, lane.offset, length));
                lane.offset += length;
                room -= length;
            }
            lane.next += 1;
            lane.offset = 0;
        }
    }
}

impl WorkFeed {
    /// The next spans of a file, as far as there is room; false if some are left.
    fn fill_from_spans(
        &self,
        spans: &[Span],
        lane: &mut Lane,
        file: FileId,
        room: &mut u64,
        pieces: &mut Vec<Piece>,
    ) -> bool {
        while let Some(span) = spans.get(lane.span) {
            let length = (span.size_bytes - lane.offset).min(self.frame_size_bytes);
            if length > *room || pieces.len() >= PIECES_PER_CLAIM_MAX {
                return false;
            }
            pieces.push(planned(file, span.offset + lane.offset, length));
            *room -= length;
            lane.offset += length;
            if lane.offset == span.size_bytes {
                lane.offset = 0;
                lane.span += 1;
            }
        }
        lane.span = 0;
        lane.next += 1;
        true
    }
}

fn planned(file: FileId, file_offset: u64, length: u64) -> Piece {
    Piece { file, file_offset, offset_in_frame: 0, length: length as u32, crc32c: 0 }
}

/// Whether a file of this size is packed into frames together with others.
pub fn is_packed(size_bytes: u64, frame_size_bytes: u64) -> bool {
    size_bytes <= frame_size_bytes / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(sizes: &[u64]) -> (FileTable, Vec<FileId>) {
        let mut table = FileTable::default();
        let files = sizes.iter().enumerate().map(|(number, size)| {
            table.push(number.to_string().as_bytes(), b"", EntryKind::File, 0o600, 0, *size).unwrap()
        });
        let files = files.collect();
        (table, files)
    }

    proptest! {
        #[test]
        fn every_byte_is_claimed_once_and_no_buffer_overflows(sizes in proptest::collection::vec(prop_oneof![0u64..300_000, Just(0), 3_000_000u64..5_000_000], 0..40), lanes in 1usize..4) {
            let (table, files) = table(&sizes);
            let mut by_lane = vec![Vec::new(); lanes];
            for (position, file) in files.iter().enumerate() { by_lane[position % lanes].push(*file); }
            let feed = WorkFeed::new(&table, by_lane, 131_072, 1 << 20);
            let mut claimed = vec![0u64; sizes.len()];
            let mut times = vec![0; sizes.len()];
            loop {
                let mut pieces = Vec::new();
                if feed.claim(&table, 1, &mut pieces) == Claim::Done { break; }
                prop_assert!(pieces.iter().map(|piece| u64::from(piece.length)).sum::<u64>() <= 1 << 20);
                for piece in pieces {
                    prop_assert_eq!(piece.file_offset, claimed[piece.file.0 as usize]);
                    claimed[piece.file.0 as usize] += u64::from(piece.length);
                    times[piece.file.0 as usize] += 1;
                }
            }
            prop_assert_eq!(&claimed, &sizes);
            prop_assert_eq!(feed.left_bytes(), 0);
            prop_assert!(times.iter().all(|count| *count >= 1), "an empty file is visited too");
        }
    }

    #[test]
    fn small_files_come_first() {
        let (table, files) = table(&[1_000_000, 10, 500_000, 20]);
        let feed = WorkFeed::new(&table, vec![files], 131_072, 1 << 20);
        let mut pieces = Vec::new();
        feed.claim(&table, 0, &mut pieces);
        let order: Vec<u32> = pieces.iter().map(|piece| piece.file.0).collect();
        assert_eq!(&order[..3], [1, 3, 0]);
    }
}
