//! What becomes of files that are pushed.

use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};
use crate::format::wal_bundle::Member;

/// What became of each file, in the order of the request.
#[derive(Debug)]
pub struct PushReport {
    /// The files.
    pub files: Vec<PushedFile>,
}

impl PushReport {
    /// The first error, if any.
    pub fn first_error(&self) -> Option<&Error> {
        self.files.iter().find_map(|file| file.outcome.as_ref().err())
    }
}

/// What became of one file.
#[derive(Debug)]
pub struct PushedFile {
    /// Its path, as given.
    pub path: PathBuf,
    /// Its name.
    pub name: String,
    /// Stored, or why not.
    pub outcome: Result<Pushed>,
}

/// A file that is in the repository, durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// Whether it was there before.
    pub how: HowPushed,
    /// The object that has it.
    pub object: String,
    /// Its size.
    pub raw_bytes: u64,
    /// Its share of the object's size; 0 if it was there.
    pub stored_bytes: u64,
}

/// How a file came to be in the repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HowPushed {
    /// It was stored now.
    Stored,
    /// It was there, with the same bytes.
    WasThere,
}

impl PushReport {
    /// A path that was given twice has the outcome of its first mention.
    pub(super) fn outcome_of_twin(&self, path: &Path) -> Result<Pushed> {
        let twin = self.files.iter().find(|file| file.path == path).map(|file| &file.outcome);
        match twin {
            Some(Ok(pushed)) => Ok(pushed.clone()),
            Some(Err(error)) => Err(Error::new(error.kind(), format!("store {}", path.display()), error.message())),
            None => Err(Error::new(ErrorKind::Bug, format!("store {}", path.display()), "it was passed over")),
        }
    }
}

pub(super) fn has_bytes(member: &Member, crc: u32, size_bytes: u64) -> bool {
    member.crc32c == crc && member.size_bytes == size_bytes
}

pub(super) fn stored(member: &Member, object: &str, stored_bytes: u64) -> Pushed {
    Pushed { how: HowPushed::Stored, object: object.to_owned(), raw_bytes: member.size_bytes, stored_bytes }
}

pub(super) fn was_there(member: &Member, object: &str) -> Pushed {
    Pushed { how: HowPushed::WasThere, object: object.to_owned(), raw_bytes: member.size_bytes, stored_bytes: 0 }
}

pub(super) fn conflict(name: &str, object: &str) -> Error {
    Error::new(ErrorKind::Conflict, format!("store {name}"), format!("{object} has other bytes under that name")).hint(
        "two servers write the same WAL, such as a copy that was started beside its original: find out which one is \
         right; nothing was overwritten, and the server keeps its file",
    )
}

pub(super) fn vanished(name: &str, object: &str) -> Error {
    Error::new(ErrorKind::Repository, format!("store {name}"), format!("{object} was written and is not there"))
        .hint("does something else delete objects of this repository?")
}
