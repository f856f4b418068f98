//! The private directory where the open segment lies while it is received. What is in it is never needed again: after a
//! crash the stream begins at the start of the segment.

use std::fs::{DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};
use crate::io::{self, Locked};
use crate::storage::Holder;
use crate::terms::SourceName;

/// Says who has the directory.
const HOLDER_NAME: &str = "holder";

/// The directory, held by one process at a time.
#[derive(Debug)]
pub(super) struct Spool {
    directory: PathBuf,
    /// Holds the lock.
    _lock: Locked,
}

impl Spool {
    /// Makes and takes the directory of `source` below `parent`, and empties it.
    ///
    /// # Errors
    /// `Conflict` if another receiver has it; `Configuration` if it cannot be made or is not ours.
    pub(super) fn make(parent: Option<&Path>, source: &SourceName) -> Result<Self> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
        let directory = parent.join(format!("pagehaul-receive-{source}"));
        let action = || format!("make the directory {} for the segment that is being received", directory.display());
        let failed = |cause: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Configuration, action(), cause).hint("name another place with --spool-dir")
        };
        match DirBuilder::new().mode(0o700).create(&directory) {
            Err(cause) if cause.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed(&cause)),
            _ => {}
        }
        // In a directory for everybody the name may be somebody else's, or a link.
        let metadata = std::fs::symlink_metadata(&directory).map_err(|cause| failed(&cause))?;
        if !metadata.is_dir() || metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(failed(&"it is not a directory of ours"));
        }
        let lock = File::open(&directory).map_err(|cause| failed(&cause))?;
        if io::try_lock(&lock) != Ok(true) {
            let holder = std::fs::read(directory.join(HOLDER_NAME)).ok().and_then(|text| Holder::parse(&text));
            let cause = format!("another receiver of this source holds it{}", Holder::suffix(holder.as_ref()));
            return Err(Error::new(ErrorKind::Conflict, action(), cause)
                .hint("one receiver is enough; a second one of the same name needs another --spool-dir"));
        }
        for entry in std::fs::read_dir(&directory).map_err(|cause| failed(&cause))?.flatten() {
            std::fs::remove_file(entry.path()).map_err(|cause| failed(&cause))?;
        }
        io::replace_durable(&directory.join(HOLDER_NAME), Holder::here().to_text().as_bytes())
            .map_err(|cause| failed(&cause))?;
        Ok(Spool { directory, _lock: Locked(lock) })
    }

    /// Where the file `name` lies.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.directory).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_receiver_at_a_time_and_nothing_of_a_dead_one() {
        let parent = tempfile::tempdir().unwrap();
        let source: SourceName = "main".parse().unwrap();
        let spool = Spool::make(Some(parent.path()), &source).unwrap();
        let error = Spool::make(Some(parent.path()), &source).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        let holder = format!("holds it: process {} on ", std::process::id());
        assert!(error.to_string().contains(&holder), "{error}");
        let left = spool.path("000000010000000000000001");
        drop(spool);
        std::fs::create_dir(left.parent().unwrap()).unwrap();
        std::fs::write(&left, "rubbish").unwrap();
        let _spool = Spool::make(Some(parent.path()), &source).unwrap();
        assert!(!left.exists());
    }
}
