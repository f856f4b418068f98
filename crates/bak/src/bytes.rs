//! Where the bytes of a backup file come from.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use pagehaul_engine::error::{Error, ErrorKind, Result};

/// A file, or something that can be read like one.
pub trait ReadAt: Send + Sync {
    /// Its length in bytes.
    ///
    /// # Errors
    /// Of the system.
    fn size_bytes(&self) -> io::Result<u64>;

    /// Reads some bytes at `offset`; 0 only at the end.
    ///
    /// # Errors
    /// Of the system.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl ReadAt for File {
    fn size_bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }
}

impl ReadAt for Vec<u8> {
    fn size_bytes(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(self.len());
        let length = buffer.len().min(self.len() - from);
        buffer[..length].copy_from_slice(&self[from..from + length]);
        Ok(length)
    }
}

/// One backup file and what it is called.
pub struct BakFile {
    /// Its path, for people.
    pub name: String,
    /// Its content.
    pub bytes: Box<dyn ReadAt>,
}

impl BakFile {
    /// Opens a file.
    ///
    /// # Errors
    /// `Source` if it cannot be opened or is no regular file.
    pub fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let failed = |cause: String| Error::new(ErrorKind::Source, format!("open {name}"), cause);
        let file = File::open(path).map_err(|cause| failed(cause.to_string()))?;
        let kind = file.metadata().map_err(|cause| failed(cause.to_string()))?.file_type();
        if !kind.is_file() {
            return Err(failed("it is not a regular file".to_owned()));
        }
        Ok(BakFile { name, bytes: Box::new(file) })
    }

    /// A file whose content is in memory.
    pub fn in_memory(name: &str, content: Vec<u8>) -> Self {
        BakFile { name: name.to_owned(), bytes: Box::new(content) }
    }

    /// Its length.
    ///
    /// # Errors
    /// `Source` if the system does not say.
    pub fn size_bytes(&self) -> Result<u64> {
        self.bytes.size_bytes().map_err(|cause| self.failed(0, &cause))
    }

    /// Fills `buffer` from `offset` on as far as the file goes; gives how many bytes there were.
    ///
    /// # Errors
    /// `Source` if the system cannot read.
    pub fn read_full_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.bytes.read_at(&mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(self.failed(offset + filled as u64, &cause)),
            }
        }
        Ok(filled)
    }

    fn failed(&self, offset: u64, cause: &io::Error) -> Error {
        Error::new(ErrorKind::Source, format!("read {} at byte {offset}", self.name), cause)
    }
}
