//! Where the demo works, and how it clears up.

use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::path::{Path, PathBuf};

use pagehaul_engine::error::{Error, ErrorKind, Result};

/// The directories of one demo.
pub(super) struct Places {
    /// All of it is below this one.
    pub(super) root: PathBuf,
    /// Data directory that is backed up and destroyed.
    pub(super) source: PathBuf,
    /// A tablespace of it.
    pub(super) tablespace: PathBuf,
    /// The repository.
    pub(super) repository: PathBuf,
    /// Two directories for stripes, as if they were two disks.
    pub(super) disks: [PathBuf; 2],
    /// Data directory that is restored.
    pub(super) restored: PathBuf,
    /// Where its tablespace goes.
    pub(super) restored_tablespace: PathBuf,
    root_is_ours: bool,
    keep: bool,
}

impl Places {
    /// Makes the directory to work in: `wanted`, which must be new or empty, or one under /var/tmp.
    ///
    /// # Errors
    /// `Target` if it is not empty or cannot be made.
    pub(super) fn make(wanted: Option<&Path>, keep: bool) -> Result<Self> {
        let root = match wanted {
            Some(path) => std::path::absolute(path).map_err(|cause| failed("use", path, cause))?,
            // Not /tmp, which is memory on many machines.
            None => PathBuf::from(format!("/var/tmp/pagehaul-demo-{}", std::process::id())),
        };
        let root_is_ours = !root.exists();
        if root_is_ours {
            // The OS user postgres must be able to enter it.
            let made = std::fs::DirBuilder::new().recursive(wanted.is_some()).mode(0o755).create(&root);
            made.map_err(|cause| failed("create", &root, cause))?;
        } else if std::fs::read_dir(&root).map_err(|cause| failed("read", &root, cause))?.next().is_some() {
            return Err(Error::new(
                ErrorKind::Target,
                format!("use {} for the demo", root.display()),
                "it is not empty",
            )
            .hint("give --dir a new or empty directory, or leave it out"));
        }
        Ok(Places {
            source: root.join("source"),
            tablespace: root.join("source-tablespace"),
            repository: root.join("repository"),
            disks: [root.join("disk-1"), root.join("disk-2")],
            restored: root.join("restored"),
            restored_tablespace: root.join("restored-tablespace"),
            root,
            root_is_ours,
            keep,
        })
    }

    /// Makes the tablespace's directory for whoever owns the data directory.
    ///
    /// # Errors
    /// `Target`, naming the path.
    pub(super) fn make_tablespace(&self) -> Result<()> {
        let path = &self.tablespace;
        std::fs::DirBuilder::new().mode(0o700).create(path).map_err(|cause| failed("create", path, cause))?;
        let owner = std::fs::metadata(&self.source).map_err(|cause| failed("look at", &self.source, cause))?;
        chown(path, Some(owner.uid()), Some(owner.gid())).map_err(|cause| failed("change the owner of", path, cause))
    }

    /// Removes the source cluster for good.
    ///
    /// # Errors
    /// `Target`, naming the path.
    pub(super) fn destroy_source(&self) -> Result<()> {
        remove(&self.source)?;
        remove(&self.tablespace)
    }

    /// Removes everything, unless it is to be kept.
    ///
    /// # Errors
    /// `Target`, naming the path.
    pub(super) fn clear(&self) -> Result<()> {
        if self.keep {
            return Ok(());
        }
        let all = [&self.source, &self.tablespace, &self.repository, &self.disks[0], &self.disks[1], &self.restored];
        all.into_iter().chain([&self.restored_tablespace]).try_for_each(|path| remove(path))?;
        if self.root_is_ours { remove(&self.root) } else { Ok(()) }
    }
}

impl Drop for Places {
    /// After a panic too nothing stays behind.
    fn drop(&mut self) {
        self.clear().ok();
    }
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => Err(failed("remove", path, cause)),
        _ => Ok(()),
    }
}

fn failed(verb: &str, path: &Path, cause: std::io::Error) -> Error {
    Error::new(ErrorKind::Target, format!("{verb} {}", path.display()), cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_with_something_in_it_is_refused_and_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("x"), "y").unwrap();
        assert!(Places::make(Some(directory.path()), false).is_err());
        assert!(directory.path().join("x").exists());
    }

    #[test]
    fn what_was_made_is_removed_and_what_was_there_stays() {
        let directory = tempfile::tempdir().unwrap();
        let new = directory.path().join("a");
        let places = Places::make(Some(&new), false).unwrap();
        std::fs::create_dir(&places.repository).unwrap();
        places.clear().unwrap();
        assert!(!new.exists());
        drop(places);
        drop(Places::make(Some(directory.path()), false).unwrap());
        assert!(directory.path().exists());
        drop(Places::make(Some(&new), true).unwrap());
        assert!(new.exists());
    }
}
