//! Directories for trials beside the real targets: made at the start, removed at the end, and swept by the next run if
//! a run was killed.
//!
//! Each has a lock that the kernel drops with its process; a directory whose lock is free belongs to nobody.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pagehaul_engine::catalog::repository::SCRATCH_PREFIX;
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::io::{self, Locked};
use pagehaul_engine::terms::SetId;

use crate::contestants::{make_private, remove_tree};

const LOCK_NAME: &str = "lock";
/// Where emptied files of earlier trials stay until the end.
const EMPTIED_NAME: &str = "emptied";
/// At most so many; more are removed at once.
const EMPTIED_FILES_MAX: u64 = 200_000;

/// One run's directories; they go when this is dropped.
#[derive(Debug)]
pub struct Scratch {
    name: String,
    owner: Option<(u32, u32)>,
    made: Vec<(PathBuf, Locked)>,
    /// Files and trees that were emptied so far.
    emptied_files: AtomicU64,
    emptied_trees: AtomicU64,
}

impl Scratch {
    /// Makes a directory below each of `targets` (directories as `--repo` and `--stripe-to` take them), after
    /// removing what killed runs left there; gives what was removed too.
    ///
    /// # Errors
    /// `Usage` for a target that is no directory on this machine, `Target` if one cannot be made.
    pub fn create(targets: &[String], owner: Option<(u32, u32)>) -> Result<(Self, Vec<PathBuf>)> {
        let name = format!("{SCRATCH_PREFIX}{}", &SetId::random()?.to_string()[..12]);
        let mut scratch = Scratch {
            name,
            owner,
            made: Vec::new(),
            emptied_files: AtomicU64::new(0),
            emptied_trees: AtomicU64::new(0),
        };
        let mut swept = Vec::new();
        for target in targets {
            let base = local_directory(target)?;
            swept.extend(sweep(&base)?);
            let directory = base.join(&scratch.name);
            if scratch.made.iter().any(|(made, _)| *made == directory) {
                continue;
            }
            make_private(&directory, owner)?;
            let failed = |cause| Error::new(ErrorKind::Target, format!("lock {}", directory.display()), cause);
            let path = directory.join(LOCK_NAME);
            let lock = OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(failed)?;
            if !io::try_lock(&lock).map_err(|cause| failed(cause.into()))? {
                return Err(Error::new(
                    ErrorKind::Conflict,
                    format!("lock {}", directory.display()),
                    "somebody holds it",
                ));
            }
            scratch.made.push((directory, Locked(lock)));
        }
        Ok((scratch, swept))
    }

    /// `target` with this run's directory in it, as the engine takes targets.
    pub fn below(&self, target: &str) -> String {
        format!("{}/{}", target.trim_end_matches('/'), self.name)
    }

    /// An empty directory `name` below `target`, the owner's.
    ///
    /// # Errors
    /// As [`local_directory`]; `Target` if it cannot be made.
    pub fn empty_directory(&self, target: &str, name: &str) -> Result<PathBuf> {
        let path = self.path(target)?.join(name);
        remove_tree(&path)?;
        make_private(&path, self.owner)?;
        Ok(path)
    }

    /// Where this run's directory below `target` is.
    ///
    /// # Errors
    /// As [`local_directory`].
    pub fn path(&self, target: &str) -> Result<PathBuf> {
        Ok(local_directory(target)?.join(&self.name))
    }

    /// Frees everything that a trial left.
    ///
    /// Files are emptied and only removed at the end: ext4 does not give out an inode again for some seconds and looks
    /// at every one that was freed, so that the next restore would be timed with seconds that no restore has.
    ///
    /// # Errors
    /// `Target`, naming what cannot be removed.
    pub fn clear(&self) -> Result<()> {
        for (directory, _) in &self.made {
            let failed = |cause| Error::new(ErrorKind::Target, format!("clear {}", directory.display()), cause);
            for entry in std::fs::read_dir(directory).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                if entry.file_name() != LOCK_NAME && entry.file_name() != EMPTIED_NAME {
                    self.empty(directory, &entry.path())?;
                }
            }
        }
        Ok(())
    }

    fn empty(&self, directory: &Path, tree: &Path) -> Result<()> {
        let failed = |cause| Error::new(ErrorKind::Target, format!("empty {}", tree.display()), cause);
        let more = empty_files(tree).map_err(failed)?;
        if self.emptied_files.fetch_add(more, Relaxed) + more > EMPTIED_FILES_MAX {
            return remove_tree(tree);
        }
        let number = self.emptied_trees.fetch_add(1, Relaxed);
        let emptied = directory.join(EMPTIED_NAME);
        std::fs::create_dir_all(&emptied).map_err(failed)?;
        std::fs::rename(tree, emptied.join(number.to_string())).map_err(failed)
    }

    /// The smallest number of free bytes of the file systems in use.
    pub fn free_bytes(&self) -> Option<u64> {
        self.made.iter().filter_map(|(directory, _)| io::free_bytes(directory).ok()).min()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for (directory, _) in &self.made {
            // What stays has a free lock, so the next run sweeps it.
            drop(remove_tree(directory));
        }
    }
}

/// The directory on this machine that `target` means, with or without a throttle before it.
///
/// # Errors
/// `Usage` for NUL and for stores that are no directory here.
pub fn local_directory(target: &str) -> Result<PathBuf> {
    let path = match target.strip_prefix("throttle:") {
        Some(rest) => rest.split_once(':').map_or("", |(_, path)| path),
        None => target,
    };
    let refuse = |cause: &str| {
        Error::new(ErrorKind::Usage, format!("try settings on {target:?}"), cause)
            .hint("give directories on this machine; backups are written there for the trials, and removed")
    };
    if path.is_empty() || path.eq_ignore_ascii_case("NUL") {
        return Err(refuse("it keeps nothing, so nothing could be restored"));
    }
    if path.contains("://") {
        return Err(refuse("only directories can be measured yet"));
    }
    std::path::absolute(path).map_err(|cause| refuse(&cause.to_string()))
}

/// Cuts every regular file below `tree` to nothing; gives their number. Links are not followed.
fn empty_files(tree: &Path) -> std::io::Result<u64> {
    let metadata = std::fs::symlink_metadata(tree)?;
    if metadata.is_dir() {
        return std::fs::read_dir(tree)?.map(|entry| empty_files(&entry?.path())).sum();
    }
    if metadata.is_file() {
        OpenOptions::new().write(true).truncate(true).open(tree)?;
    }
    Ok(1)
}

/// Removes scratch directories below `base` that no process holds.
fn sweep(base: &Path) -> Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(base) {
        Ok(entries) => entries,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(Error::new(ErrorKind::Target, format!("look into {}", base.display()), cause)),
    };
    let mut swept = Vec::new();
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(SCRATCH_PREFIX) && is_free(&entry.path()) {
            remove_tree(&entry.path())?;
            swept.push(entry.path());
        }
    }
    Ok(swept)
}

fn is_free(directory: &Path) -> bool {
    match File::open(directory.join(LOCK_NAME)) {
        Ok(lock) => io::try_lock(&lock).unwrap_or(false),
        // Killed before it had a lock.
        Err(cause) => cause.kind() == std::io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_holds_is_swept_and_what_is_held_stays() {
        let base = tempfile::tempdir().unwrap();
        let target = base.path().to_string_lossy().into_owned();
        let (held, _) = Scratch::create(std::slice::from_ref(&target), None).unwrap();
        let dead = base.path().join(format!("{SCRATCH_PREFIX}dead"));
        std::fs::create_dir_all(dead.join("repo")).unwrap();
        let bystander = base.path().join("main");
        std::fs::create_dir(&bystander).unwrap();
        let (own, swept) = Scratch::create(&[target.clone(), target.clone()], None).unwrap();
        assert_eq!(swept, std::slice::from_ref(&dead));
        assert!(!dead.exists() && bystander.exists() && held.path(&target).unwrap().exists());
        let trial = own.empty_directory(&target, "repo").unwrap();
        std::fs::write(trial.join("x"), b"1").unwrap();
        let outside = base.path().join("outside");
        std::fs::write(&outside, b"1").unwrap();
        std::os::unix::fs::symlink(&outside, trial.join("link")).unwrap();
        own.clear().unwrap();
        assert!(!trial.exists());
        assert_eq!(std::fs::read(&outside).unwrap(), b"1", "what a link leads to stays");
        let place = own.path(&target).unwrap();
        drop(own);
        assert!(!place.exists() && held.path(&target).unwrap().exists());
    }

    #[test]
    fn targets_are_directories() {
        assert_eq!(local_directory("/b/x").unwrap(), Path::new("/b/x"));
        assert_eq!(local_directory("throttle:write=10MB/s:/b/x").unwrap(), Path::new("/b/x"));
        for bad in ["NUL", "s3://bucket/x", "throttle:write=10MB/s", ""] {
            assert_eq!(local_directory(bad).unwrap_err().kind(), ErrorKind::Usage, "{bad}");
        }
    }
}
