//! Bytes that go into a bundle: a file, or memory, without the zeros at the end.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};
use crate::io;

/// Bytes that are looked at at once when the end of the content is sought.
const LOOK_BYTES: u64 = 256 * 1024;

/// What a member is made of.
pub(super) enum Content<'a> {
    /// A file of the server's.
    File { file: File, path: PathBuf, size_bytes: u64 },
    /// Bytes at hand.
    Bytes(&'a [u8]),
}

impl Content<'_> {
    /// Opens a file of at most `most_bytes`.
    ///
    /// # Errors
    /// `Source` if it cannot be read, `Damage` if it is longer.
    pub(super) fn open(path: &Path, most_bytes: u64) -> Result<Self> {
        let failed = |cause: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Source, format!("read {}", path.display()), cause)
        };
        let file = File::open(path).map_err(|cause| failed(&cause))?;
        let metadata = file.metadata().map_err(|cause| failed(&cause))?;
        if !metadata.is_file() {
            return Err(failed(&"it is not a file"));
        }
        if metadata.len() > most_bytes {
            let cause = format!("it has {} bytes, more than {most_bytes}", metadata.len());
            return Err(Error::new(ErrorKind::Damage, format!("accept {}", path.display()), cause));
        }
        Ok(Content::File { file, path: path.to_owned(), size_bytes: metadata.len() })
    }

    pub(super) fn size_bytes(&self) -> u64 {
        match self {
            Content::File { size_bytes, .. } => *size_bytes,
            Content::Bytes(bytes) => bytes.len() as u64,
        }
    }

    /// Fills `into` from `offset`.
    ///
    /// # Errors
    /// `Source` if it cannot be read, or has become shorter.
    pub(super) fn read_at(&self, into: &mut [u8], offset: u64) -> Result<()> {
        match self {
            Content::Bytes(bytes) => {
                let end = offset as usize + into.len();
                let piece = bytes.get(offset as usize..end).ok_or_else(|| {
                    Error::new(ErrorKind::Bug, "read a piece of WAL", "it is shorter than it was")
                })?;
                into.copy_from_slice(piece);
                Ok(())
            }
            Content::File { file, path, .. } => {
                let failed = |cause: &dyn std::fmt::Display| {
                    Error::new(ErrorKind::Source, format!("read {}", path.display()), cause)
                };
                let count = io::read_full_at(file.as_fd(), into, offset).map_err(|cause| failed(&cause))?;
                if count == into.len() { Ok(()) } else { Err(failed(&"it became shorter while it was read")) }
            }
        }
    }

    /// The first bytes, as many as there are up to `count`.
    ///
    /// # Errors
    /// As [`Content::read_at`].
    pub(super) fn head(&self, count: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0u8; self.size_bytes().min(count as u64) as usize];
        self.read_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Where the zeros at the end begin.
    ///
    /// # Errors
    /// As [`Content::read_at`].
    pub(super) fn end_of_content(&self) -> Result<u64> {
        let mut buffer = Vec::new();
        let mut end = self.size_bytes();
        while end > 0 {
            let start = (end - 1) / LOOK_BYTES * LOOK_BYTES;
            buffer.resize((end - start) as usize, 0);
            self.read_at(&mut buffer, start)?;
            if let Some(last) = buffer.iter().rposition(|byte| *byte != 0) {
                return Ok(start + last as u64 + 1);
            }
            end = start;
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_at_the_end_are_found() {
        let mut bytes = vec![0u8; 3 * LOOK_BYTES as usize + 5];
        assert_eq!(Content::Bytes(&bytes).end_of_content().unwrap(), 0);
        for at in [0, 1, LOOK_BYTES as usize - 1, LOOK_BYTES as usize, 3 * LOOK_BYTES as usize + 4] {
            bytes[at] = 1;
            assert_eq!(Content::Bytes(&bytes).end_of_content().unwrap(), at as u64 + 1);
        }
        assert_eq!(Content::Bytes(&[]).end_of_content().unwrap(), 0);
    }

    #[test]
    fn a_file_is_read_and_a_directory_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"0123456789").unwrap();
        let content = Content::open(&path, 10).unwrap();
        assert_eq!(content.head(4).unwrap(), b"0123");
        assert_eq!(content.head(40).unwrap(), b"0123456789");
        assert_eq!(content.read_at(&mut [0; 4], 7).unwrap_err().kind(), ErrorKind::Source);
        assert_eq!(Content::open(&path, 9).err().unwrap().kind(), ErrorKind::Damage);
        assert_eq!(Content::open(dir.path(), 9).err().unwrap().kind(), ErrorKind::Source);
    }
}
