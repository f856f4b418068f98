//! The directory of a trial: made below the one that the user names, locked, and removed at the end.
//!
//! A trial that is killed leaves its directory and perhaps a running server. The lock on it is free then, so the next
//! trial in the same place ends the server and removes both.

use std::fs::File;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::ScratchTarget;
use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::Manifest;
use crate::io::{self, Locked};
use crate::pipeline::pause;
use crate::source::postgres::sandbox::{kill_leftover_server, server_user};

/// Begins the name of every scratch directory.
const PREFIX: &str = "pagehaul-scratch-";
/// Its lock; without it a directory of that name is none of ours.
const LOCK_NAME: &str = "pagehaul-scratch.lock";

/// How often, and after which pauses, a tree is tried again in which something is still being written.
const REMOVE_ATTEMPTS: u32 = 100;
const REMOVE_PAUSE: Duration = Duration::from_millis(20);

/// One scratch directory; dropping it removes it.
#[derive(Debug)]
pub(super) struct Scratch {
    root: PathBuf,
    _lock: Locked,
}

impl Scratch {
    /// Removes what killed trials left in `parent`, then makes a directory of its own there.
    ///
    /// # Errors
    /// `Target`, naming the path.
    pub(super) fn make(parent: &Path, notes: &mut Vec<String>) -> Result<Self> {
        let parent = std::path::absolute(parent).map_err(|cause| failed("use", parent, cause))?;
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&parent)
            .map_err(|cause| failed("create", &parent, cause))?;
        remove_leftovers(&parent, notes)?;
        let mut random = [0u8; 4];
        getrandom::fill(&mut random)
            .map_err(|cause| Error::new(ErrorKind::Configuration, "draw a random number", cause))?;
        let name: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let root = parent.join(format!("{PREFIX}{name}"));
        // The server's user must get through to what is its own in there.
        std::fs::DirBuilder::new().mode(0o711).create(&root).map_err(|cause| failed("create", &root, cause))?;
        let lock = File::create_new(root.join(LOCK_NAME)).map_err(|cause| failed("lock", &root, cause))?;
        match io::try_lock(&lock) {
            Ok(true) => Ok(Scratch { root, _lock: Locked(lock) }),
            Ok(false) => Err(failed("lock", &root, std::io::Error::other("another process has it"))),
            Err(cause) => Err(failed("lock", &root, cause.into())),
        }
    }

    /// Where the server's private files go.
    pub(super) fn private(&self) -> PathBuf {
        self.root.join("s")
    }

    /// Where a set is restored to, all of it in here.
    ///
    /// # Errors
    /// `Configuration` if no server may run here.
    pub(super) fn target(&self, manifest: &Manifest) -> Result<ScratchTarget> {
        let spaces = manifest.postgres.tablespaces.iter().filter(|space| Path::new(&space.location).is_absolute());
        Ok(ScratchTarget {
            directory: self.root.join("data"),
            tablespace_map: spaces
                .map(|space| (PathBuf::from(&space.location), self.root.join(format!("t{}", space.oid))))
                .collect(),
            owner: server_user()?.map(str::to_owned),
        })
    }

    /// Removes it.
    ///
    /// # Errors
    /// `Target`, naming the path.
    pub(super) fn remove(self) -> Result<()> {
        remove(&self.root)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        remove(&self.root).ok();
    }
}

/// Removes the trial's directory, its lock last.
fn remove(root: &Path) -> Result<()> {
    let entries = match std::fs::read_dir(root) {
        Ok(entries) => entries,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(cause) => return Err(failed("remove", root, cause)),
    };
    for entry in entries {
        let entry = entry.map_err(|cause| failed("remove", root, cause))?;
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_directory {
            remove_tree(&entry.path())?;
        } else if entry.file_name() != LOCK_NAME {
            std::fs::remove_file(entry.path()).map_err(|cause| failed("remove", &entry.path(), cause))?;
        }
    }
    std::fs::remove_dir_all(root).map_err(|cause| failed("remove", root, cause))
}

/// Removes a tree in which a helper that fetched WAL for the trial's server may still be finishing a file.
fn remove_tree(path: &Path) -> Result<()> {
    let mut attempts = 0;
    loop {
        match std::fs::remove_dir_all(path) {
            Ok(()) => return Ok(()),
            Err(cause) if cause.kind() == std::io::ErrorKind::DirectoryNotEmpty && attempts < REMOVE_ATTEMPTS => {
                attempts += 1;
                pause(REMOVE_PAUSE);
            }
            Err(cause) => return Err(failed("remove", path, cause)),
        }
    }
}

fn remove_leftovers(parent: &Path, notes: &mut Vec<String>) -> Result<()> {
    for entry in std::fs::read_dir(parent).map_err(|cause| failed("list", parent, cause))? {
        let path = entry.map_err(|cause| failed("list", parent, cause))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_ours = name.strip_prefix(PREFIX).is_some_and(|end| end.len() == 8)
            && std::fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir());
        if !is_ours {
            continue;
        }
        // Without a lock it was killed before it began, or is no trial's: only an empty one can go.
        let Ok(lock) = File::open(path.join(LOCK_NAME)) else {
            std::fs::remove_dir(&path).ok();
            continue;
        };
        if !io::try_lock(&lock).map_err(|cause| failed("look at the lock of", &path, cause.into()))? {
            continue;
        }
        let had_server = kill_leftover_server(&path.join("data"))?;
        remove(&path)?;
        let server = if had_server { " and its server ended" } else { "" };
        notes.push(format!("{} of a trial that was killed was removed{server}", path.display()));
    }
    Ok(())
}

fn failed(verb: &str, path: &Path, cause: std::io::Error) -> Error {
    Error::new(ErrorKind::Target, format!("{verb} the scratch directory {}", path.display()), cause)
        .hint("--scratch-dir names a directory with room for the restored cluster")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_go_and_what_is_in_use_or_not_ours_stays() {
        let parent = tempfile::tempdir().unwrap();
        let mut notes = Vec::new();
        let in_use = Scratch::make(parent.path(), &mut notes).unwrap();
        std::fs::create_dir(in_use.root.join("data")).unwrap();
        let killed = parent.path().join(format!("{PREFIX}01234567"));
        std::fs::create_dir_all(killed.join("data/base/1")).unwrap();
        std::fs::write(killed.join(LOCK_NAME), b"").unwrap();
        std::fs::create_dir(parent.path().join(format!("{PREFIX}89abcdef"))).unwrap();
        let not_ours = parent.path().join(format!("{PREFIX}00000000"));
        std::fs::create_dir(&not_ours).unwrap();
        std::fs::write(not_ours.join("letters"), b"dear").unwrap();
        let next = Scratch::make(parent.path(), &mut notes).unwrap();
        assert!(notes.len() == 1 && notes[0].contains("01234567"), "{notes:?}");
        let mut left: Vec<PathBuf> =
            std::fs::read_dir(parent.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        left.sort();
        let mut expected = vec![not_ours, in_use.root.clone(), next.root.clone()];
        expected.sort();
        assert_eq!(left, expected);
        let root = in_use.root.clone();
        in_use.remove().unwrap();
        drop(next);
        assert!(!root.exists());
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 1);
    }
}
