//! A file that is written from its start to its end, past the page cache in aligned pieces: what is written for good
//! neither evicts what the database needs nor leaves a tail of dirty pages for the end, and costs no copy in the kernel.

use std::os::fd::BorrowedFd;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{ALIGNMENT_BYTES, AlignedBytes, IoResult, start_write_back, write_all_at};
use crate::error::Result;

/// Bytes that are gathered before a write: large enough that a write past the page cache keeps a disk busy.
pub const SEQUENTIAL_PIECE_BYTES: usize = 2 * 1024 * 1024;

/// Writes to one file, which every call is given; nothing is synced here.
#[derive(Debug)]
pub struct SequentialWriter {
    staging: AlignedBytes,
    staged_bytes: usize,
    written_bytes: u64,
    is_direct: bool,
}

impl SequentialWriter {
    /// For an empty `file`. One that cannot be written past the page cache (tmpfs, some network file systems) is written
    /// through it.
    ///
    /// # Errors
    /// Those of [`AlignedBytes::new`].
    pub fn new(file: BorrowedFd<'_>) -> Result<Self> {
        let staging = AlignedBytes::new(SEQUENTIAL_PIECE_BYTES)?;
        let is_direct = set_direct(file, true).is_ok();
        Ok(SequentialWriter { staging, staged_bytes: 0, written_bytes: 0, is_direct })
    }

    /// All bytes that were appended.
    pub fn length_bytes(&self) -> u64 {
        self.written_bytes + self.staged_bytes as u64
    }

    /// Appends `bytes`.
    pub fn append(&mut self, file: BorrowedFd<'_>, mut bytes: &[u8]) -> IoResult<()> {
        while !bytes.is_empty() {
            let (head, rest) = bytes.split_at(bytes.len().min(SEQUENTIAL_PIECE_BYTES - self.staged_bytes));
            self.staging[self.staged_bytes..self.staged_bytes + head.len()].copy_from_slice(head);
            self.staged_bytes += head.len();
            bytes = rest;
            if self.staged_bytes == SEQUENTIAL_PIECE_BYTES {
                self.write(file, 0, SEQUENTIAL_PIECE_BYTES)?;
                self.staged_bytes = 0;
            }
        }
        Ok(())
    }

    /// Writes what is left; gives the file's length. Only what is not a whole page goes through the page cache.
    pub fn finish(&mut self, file: BorrowedFd<'_>) -> IoResult<u64> {
        let aligned = self.staged_bytes / ALIGNMENT_BYTES * ALIGNMENT_BYTES;
        self.write(file, 0, aligned)?;
        if self.is_direct {
            self.leave_direct_mode(file)?;
        }
        self.write(file, aligned, self.staged_bytes)?;
        self.staged_bytes = 0;
        Ok(self.written_bytes)
    }

    /// Writes this part of what is staged.
    fn write(&mut self, file: BorrowedFd<'_>, start: usize, end: usize) -> IoResult<()> {
        if start == end {
            return Ok(());
        }
        let mut written = write_all_at(file, &self.staging[start..end], self.written_bytes);
        if self.is_direct && matches!(written, Err(Errno::INVAL)) {
            // The flag was accepted but this file system cannot write so: go through the page cache instead.
            self.leave_direct_mode(file)?;
            written = write_all_at(file, &self.staging[start..end], self.written_bytes);
        }
        written?;
        let length = (end - start) as u64;
        if !self.is_direct {
            start_write_back(file, self.written_bytes, length);
        }
        self.written_bytes += length;
        Ok(())
    }

    fn leave_direct_mode(&mut self, file: BorrowedFd<'_>) -> IoResult<()> {
        self.is_direct = false;
        set_direct(file, false)
    }
}

fn set_direct(file: BorrowedFd<'_>, is_wanted: bool) -> IoResult<()> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    rustix::fs::fcntl_setfl(file, if is_wanted { flags | OFlags::DIRECT } else { flags.difference(OFlags::DIRECT) })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn all_lengths_come_back_whatever_the_pieces() {
        let most = SEQUENTIAL_PIECE_BYTES;
        // A file system in memory, where there is one, has no direct writes or its own kind of them.
        let directories =
            [tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()];
        for directory in &directories {
            for (length, piece) in [
                (0, 1),
                (1, 1),
                (ALIGNMENT_BYTES, 100),
                (ALIGNMENT_BYTES + 1, 5000),
                (most - 1, most),
                (most, 70_000),
                (2 * most, 3 * most),
                (2 * most + 3 * ALIGNMENT_BYTES + 77, 1_000_003),
            ] {
                let path = directory.path().join(format!("{length}"));
                let file = std::fs::File::create(&path).unwrap();
                let bytes: Vec<u8> = (0..length).map(|at| (at * 31 / 7) as u8).collect();
                let mut writer = SequentialWriter::new(file.as_fd()).unwrap();
                for part in bytes.chunks(piece) {
                    writer.append(file.as_fd(), part).unwrap();
                }
                assert_eq!(writer.length_bytes(), length as u64);
                assert_eq!(writer.finish(file.as_fd()), Ok(length as u64), "{length} bytes by {piece}");
                assert!(std::fs::read(&path).unwrap() == bytes, "{length} bytes by {piece}");
            }
        }
    }

    #[test]
    fn an_error_is_the_callers() {
        let mut writer = SequentialWriter::new(std::fs::File::open("/dev/null").unwrap().as_fd()).unwrap();
        let readable = std::fs::File::open("/dev/null").unwrap();
        writer.append(readable.as_fd(), &[1; 10]).unwrap();
        assert_eq!(writer.finish(readable.as_fd()), Err(Errno::BADF));
    }
}
