//! The files of a cluster as a backup would hold them, for those who sample or time the reading of them.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::io;
use pagehaul_engine::source::postgres::control_file::{ControlFile, read_control_file};
use pagehaul_engine::source::postgres::data_directory::{EntryKind, scan};
use pagehaul_engine::source::postgres::path_class::PathClass;
use rustix::io::Errno;

use crate::figures::SourceFacts;

/// One file of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// Relative to the data directory.
    pub path: Vec<u8>,
    /// Size at the time of the scan.
    pub size_bytes: u64,
    /// What it holds, told from its name.
    pub class: PathClass,
}

/// The files of a cluster, tablespaces included; WAL is not among them.
#[derive(Debug)]
pub struct SourceFiles {
    /// Data directory.
    pub pgdata: PathBuf,
    /// In the order of names.
    pub files: Vec<SourceFile>,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Block size, checksums and the cluster's own id.
    pub control_file: ControlFile,
    directory: OwnedFd,
}

impl SourceFiles {
    /// Lists what a backup of `pgdata` holds; needs no server.
    ///
    /// # Errors
    /// `Source` if it cannot be read.
    pub fn list(pgdata: &Path) -> Result<Self> {
        let (_, control_file) = read_control_file(pgdata)?;
        let directory = io::open_directory(pgdata).map_err(|cause| {
            Error::new(ErrorKind::Source, format!("open data directory {}", pgdata.display()), cause)
        })?;
        let (mut files, mut bytes) = (Vec::new(), 0);
        scan(pgdata, &mut |entry| {
            if entry.kind == EntryKind::File {
                bytes += entry.size_bytes;
                files.push(SourceFile { path: entry.path, size_bytes: entry.size_bytes, class: entry.class });
            }
            Ok(())
        })?;
        Ok(SourceFiles { pgdata: pgdata.to_owned(), files, bytes, control_file, directory })
    }

    /// The source as reports name it.
    pub fn facts(&self) -> SourceFacts {
        SourceFacts {
            pgdata: self.pgdata.display().to_string(),
            system_identifier: self.control_file.system_identifier,
            source_bytes: self.bytes,
            file_count: self.files.len() as u64,
        }
    }

    /// Opens a file; None if the server dropped it meanwhile.
    ///
    /// # Errors
    /// `Source`, naming the file.
    pub(crate) fn open(&self, file: usize) -> Result<Option<OwnedFd>> {
        match io::open_below(self.directory.as_fd(), &self.files[file].path) {
            Ok(descriptor) => Ok(Some(descriptor)),
            Err(Errno::NOENT) => Ok(None),
            Err(cause) => Err(self.read_error(file, cause)),
        }
    }

    /// The error of a file that cannot be read.
    pub(crate) fn read_error(&self, file: usize, cause: Errno) -> Error {
        let path = String::from_utf8_lossy(&self.files[file].path);
        let error = Error::new(ErrorKind::Source, format!("read source file {path}"), cause);
        match cause {
            Errno::ACCESS | Errno::PERM => {
                error.hint("run pagehaul as the operating system user that owns the data directory, usually postgres")
            }
            _ => error,
        }
    }
}
