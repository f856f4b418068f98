//! The segment that is being received: its bytes in the spool, and the pieces of it that are stored.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::ReceiveRequest;
use super::spool::Spool;
use crate::catalog::Repository;
use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::crc32c;
use crate::pipeline::Observer;
use crate::source::postgres::wal_header::{LONG_HEADER_SIZE_BYTES, SegmentHeader};
use crate::source::postgres::wal_records::WalWalker;
use crate::terms::{Lsn, WalSegmentName};
use crate::wal::piece::{Piece, put_piece};
use crate::wal::push::{PushRequest, push};
use crate::wal::stored::StoredLog;

/// What every segment is received with.
#[derive(Clone, Copy)]
pub(super) struct Archive<'a> {
    pub(super) repository: &'a Repository,
    pub(super) request: &'a ReceiveRequest,
    pub(super) observer: &'a dyn Observer,
    pub(super) spool: &'a Spool,
    pub(super) system_identifier: u64,
    pub(super) segment_size_bytes: u64,
}

/// A segment that is not whole yet.
pub(super) struct OpenSegment<'a> {
    archive: Archive<'a>,
    name: WalSegmentName,
    start_lsn: Lsn,
    path: PathBuf,
    file: File,
    header: Vec<u8>,
    /// Goes along the records; None before the header is there, or if it is none.
    walker: Option<WalWalker>,
    /// Bytes in the spool, from the segment's start.
    received: u64,
    /// Bytes in pieces of the repository, from the segment's start.
    stored: u64,
    /// Pieces that an earlier run stored, which must be what comes now: offset, length, CRC32C.
    earlier: Vec<(u64, u64, u32)>,
    /// What came and is in no piece.
    pending: Vec<u8>,
}

impl<'a> OpenSegment<'a> {
    /// Begins `name`; pieces of it that are stored already are found.
    ///
    /// # Errors
    /// Those of the storage; `Configuration` if the spool cannot be written.
    pub(super) fn begin(archive: Archive<'a>, name: WalSegmentName, start_lsn: Lsn) -> Result<Self> {
        let path = archive.spool.path(name.as_str());
        let file = spool_file(&path)?;
        let request = archive.request;
        let log = StoredLog::list(archive.repository, &request.source, archive.system_identifier, &name)?;
        let (mut stored, mut earlier) = (0, Vec::new());
        for piece in log.pieces(&name)? {
            let member = &piece.table.members[0];
            let offset = u64::from(member.piece_offset);
            // Whoever wrote it may have been killed before it was.
            archive.repository.storage().make_durable(&piece.name)?;
            earlier.push((offset, member.size_bytes, member.crc32c));
            if offset <= stored {
                stored = stored.max(offset + member.size_bytes);
            }
        }
        let header = Vec::with_capacity(LONG_HEADER_SIZE_BYTES);
        Ok(OpenSegment {
            archive,
            name,
            start_lsn,
            path,
            file,
            header,
            walker: None,
            received: 0,
            stored,
            earlier,
            pending: Vec::new(),
        })
    }

    /// Everything before this is durable; not before what earlier runs stored has been compared with what came again.
    pub(super) fn durable_lsn(&self) -> Lsn {
        let compared = if self.earlier.is_empty() { self.stored } else { 0 };
        Lsn(self.start_lsn.0 + compared)
    }

    /// Where the segment ends.
    pub(super) fn end_lsn(&self) -> Lsn {
        Lsn(self.start_lsn.0 + self.archive.segment_size_bytes)
    }

    /// Bytes that came and are in no piece.
    pub(super) fn pending_bytes(&self) -> u64 {
        self.pending.len() as u64
    }

    /// Takes bytes up to the segment's end; gives how many, and whether it is whole now.
    ///
    /// # Errors
    /// `Conflict` if an earlier piece has other bytes; `Configuration` if the spool cannot be written.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<(usize, bool)> {
        let taken = (self.archive.segment_size_bytes - self.received).min(bytes.len() as u64) as usize;
        let bytes = &bytes[..taken];
        self.file.write_all_at(bytes, self.received).map_err(|cause| spool_error(&self.path, &cause))?;
        // What earlier runs stored is not stored again.
        let known = self.stored.saturating_sub(self.received).min(taken as u64) as usize;
        self.walk(&bytes[..known]);
        if let Some(walker) = &mut self.walker
            && known > 0
        {
            // Their pieces say it.
            walker.take_facts();
        }
        self.walk(&bytes[known..]);
        self.received += taken as u64;
        // Before anything behind it may become a piece: it may be another server's.
        self.compare_earlier()?;
        self.pending.extend_from_slice(&bytes[known..]);
        Ok((taken, self.received == self.archive.segment_size_bytes))
    }

    /// Takes the segment's header off what comes, and follows its records.
    fn walk(&mut self, bytes: &[u8]) {
        let wanted = (LONG_HEADER_SIZE_BYTES - self.header.len()).min(bytes.len());
        let (head, rest) = bytes.split_at(wanted);
        self.header.extend_from_slice(head);
        if wanted > 0 && self.header.len() == LONG_HEADER_SIZE_BYTES {
            // One that does not read is told when something is to be stored.
            let header = SegmentHeader::parse(&self.header, &self.name).ok();
            self.walker = header.map(|header| WalWalker::new(header.place(0)));
            self.walker.iter_mut().for_each(|walker| walker.feed(&self.header));
        }
        self.walker.iter_mut().for_each(|walker| walker.feed(rest));
    }

    fn compare_earlier(&mut self) -> Result<()> {
        let received = self.received;
        while let Some(at) = self.earlier.iter().position(|(offset, length, _)| offset + length <= received) {
            let (offset, length, crc) = self.earlier.swap_remove(at);
            let mut bytes = vec![0u8; length as usize];
            self.file.read_exact_at(&mut bytes, offset).map_err(|cause| spool_error(&self.path, &cause))?;
            if crc32c(&bytes) != crc {
                let cause = format!("the stored piece at byte {offset} has other bytes than the server sends now");
                return Err(Error::new(ErrorKind::Conflict, format!("go on with WAL segment {}", self.name), cause)
                    .hint("two servers write the same WAL: find out which one is right; nothing was overwritten"));
            }
        }
        Ok(())
    }

    /// Stores what is pending as a piece; gives whether there was something.
    ///
    /// # Errors
    /// `Conflict` if somebody else stores pieces of the same segment; those of the storage.
    pub(super) fn flush(&mut self) -> Result<bool> {
        if self.pending.is_empty() || self.header.len() < LONG_HEADER_SIZE_BYTES {
            return Ok(false);
        }
        let Archive { repository, request, .. } = self.archive;
        let piece = Piece {
            source: &request.source,
            segment: &self.name,
            header: SegmentHeader::parse(&self.header, &self.name)?,
            offset: self.stored as u32,
            bytes: &self.pending,
            facts: self.walker.as_mut().map(WalWalker::take_facts),
            compression: request.compression,
        };
        if !put_piece(repository, &piece)? {
            let action = format!("store what came of WAL segment {}", self.name);
            return Err(Error::new(ErrorKind::Conflict, action, "somebody else has stored a piece of it meanwhile")
                .hint("does another receiver run under the same source name?"));
        }
        self.stored += self.pending.len() as u64;
        self.pending.clear();
        Ok(true)
    }

    /// Stores the whole segment, and then removes its pieces; gives the segment's end, up to where all is durable now.
    ///
    /// # Errors
    /// `Conflict` if the archive has other bytes under its name; those of the storage.
    pub(super) fn store_whole(self) -> Result<Lsn> {
        let Archive { repository, request, observer, .. } = self.archive;
        push_one(&self.archive, self.path.clone())?;
        let log = StoredLog::list(repository, &request.source, self.archive.system_identifier, &self.name)?;
        for piece in log.piece_names(&self.name) {
            // One that stays is of no harm, and the next receiver removes it.
            if let Err(error) = repository.storage().delete(&piece) {
                observer.note(&error.message());
            }
        }
        Ok(self.end_lsn())
    }
}

impl Drop for OpenSegment<'_> {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).ok();
    }
}

impl Archive<'_> {
    /// Stores a timeline history file as the server has it.
    ///
    /// # Errors
    /// As a push.
    pub(super) fn store_history(&self, name: &str, content: &[u8]) -> Result<()> {
        let path = self.spool.path(name);
        spool_file(&path)?.write_all_at(content, 0).map_err(|cause| spool_error(&path, &cause))?;
        let stored = push_one(self, path.clone());
        std::fs::remove_file(&path).ok();
        stored
    }
}

fn push_one(archive: &Archive<'_>, path: PathBuf) -> Result<()> {
    let request = PushRequest {
        compression: archive.request.compression,
        ..PushRequest::new(archive.request.source.clone(), vec![path])
    };
    let report = push(archive.repository, &request, archive.observer)?;
    match report.files.into_iter().next() {
        Some(file) => file.outcome.map(drop),
        None => Err(Error::new(ErrorKind::Bug, "store a file of WAL", "it has no outcome")),
    }
}

/// An empty file of the spool; what lies there is never needed after a crash, so nothing is synced.
fn spool_file(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true);
    options.open(path).map_err(|cause| spool_error(path, &cause))
}

fn spool_error(path: &Path, cause: &std::io::Error) -> Error {
    Error::new(ErrorKind::Configuration, format!("write {}", path.display()), cause)
        .hint("the directory for the segment that is being received needs room for one segment; see --spool-dir")
}
