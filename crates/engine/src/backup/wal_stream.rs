//! The WAL of a remote backup, from start to stop, as a stream of files for the data path.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::format::file_table::{EntryKind, FileTable};
use crate::pipeline::{StreamPart, StreamSource};
use crate::source::postgres::replication::{HistoryFile, WalEvent, WalStream};
use crate::terms::{FileId, Lsn, WalSegmentName, WalTime};

const WAIT: Duration = Duration::from_millis(200);

/// Timeline history files, then segments of one timeline.
pub(super) struct WalFiles<'a> {
    stream: WalStream<'a>,
    table: &'a Mutex<FileTable>,
    segment_size_bytes: u64,
    histories: VecDeque<HistoryFile>,
    segments: VecDeque<WalSegmentName>,
    /// The history that is read now.
    content: Option<(Vec<u8>, usize)>,
    /// Bytes that came and are not given on yet; the first one is at `position`.
    chunk: Vec<u8>,
    used: usize,
    position: Lsn,
    stop_lsn: Lsn,
    /// The server's clock when it sent the first bytes, which is after the backup ended.
    begun_at: Option<WalTime>,
}

impl<'a> WalFiles<'a> {
    /// The segments from the one at which `stream` began, `position`, up to the one that holds `stop_lsn`.
    pub(super) fn new(
        stream: WalStream<'a>,
        table: &'a Mutex<FileTable>,
        histories: Vec<HistoryFile>,
        segments: Vec<WalSegmentName>,
        segment_size_bytes: u64,
        position: Lsn,
        stop_lsn: Lsn,
    ) -> Self {
        WalFiles {
            stream,
            table,
            segment_size_bytes,
            histories: histories.into(),
            segments: segments.into(),
            content: None,
            chunk: Vec::new(),
            used: 0,
            position,
            stop_lsn,
            begun_at: None,
        }
    }

    /// A time of the server's after the end of the backup, RFC 3339 in UTC; none if its clock makes no sense.
    pub(super) fn stop_time(&self) -> Option<String> {
        Some(self.begun_at?.to_timestamp()?.to_string())
    }

    /// Waits for bytes at `position`; false when the run stops.
    fn pull(&mut self, stopped: &dyn Fn() -> bool) -> Result<bool> {
        let refuse = |cause: String| Error::new(ErrorKind::Source, "receive the WAL of the backup", cause);
        while self.used == self.chunk.len() {
            if stopped() {
                return Ok(false);
            }
            match self.stream.next(WAIT).map_err(|error| error.into_error("receive the WAL of the backup"))? {
                WalEvent::Wal { start_lsn, bytes, sent_at, .. } => {
                    if start_lsn != self.position {
                        return Err(refuse(format!("WAL from {start_lsn} came, expected was {}", self.position)));
                    }
                    self.begun_at.get_or_insert(sent_at);
                    self.chunk = bytes;
                    self.used = 0;
                }
                WalEvent::Keepalive { .. } | WalEvent::Quiet => {}
                WalEvent::End => {
                    let cause = format!("the stream ended at {}, the backup at {}", self.position, self.stop_lsn);
                    return Err(refuse(cause));
                }
            }
        }
        Ok(true)
    }

    fn push(&self, name: &str, size_bytes: u64) -> Result<FileId> {
        let now = jiff::Timestamp::now().as_second();
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.push(format!("pg_wal/{name}").as_bytes(), b"", EntryKind::File, 0o600, now, size_bytes)
    }
}

impl StreamSource for WalFiles<'_> {
    fn next_part(&mut self, _stopped: &dyn Fn() -> bool) -> Result<Option<StreamPart>> {
        if let Some(history) = self.histories.pop_front() {
            let size_bytes = history.content.len() as u64;
            let file = self.push(&history.name, size_bytes)?;
            self.content = Some((history.content, 0));
            return Ok(Some(StreamPart { file, file_offset: 0, size_bytes }));
        }
        self.content = None;
        let Some(name) = self.segments.pop_front() else { return Ok(None) };
        let size_bytes = self.segment_size_bytes;
        Ok(Some(StreamPart { file: self.push(name.as_str(), size_bytes)?, file_offset: 0, size_bytes }))
    }

    fn read(&mut self, into: &mut [u8], stopped: &dyn Fn() -> bool) -> Result<bool> {
        if let Some((content, at)) = &mut self.content {
            into.copy_from_slice(&content[*at..*at + into.len()]);
            *at += into.len();
            return Ok(true);
        }
        let mut filled = 0;
        while filled < into.len() {
            if self.position >= self.stop_lsn && self.used == self.chunk.len() {
                // Replay needs no byte behind the end of the backup; zeros end it there.
                into[filled..].fill(0);
                return Ok(true);
            }
            if !self.pull(stopped)? {
                return Ok(false);
            }
            let taken = (self.chunk.len() - self.used).min(into.len() - filled);
            into[filled..filled + taken].copy_from_slice(&self.chunk[self.used..self.used + taken]);
            self.used += taken;
            filled += taken;
            self.position = Lsn(self.position.0 + taken as u64);
        }
        Ok(true)
    }
}
