//! Files that appear under their name when they are whole, or not at all.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{IoResult, Locked, durable_rename_new, is_same_file, sync_file, sync_parent, try_lock, write_all_at};

/// A file that is written under a temporary name beside its own, which it gets when it is whole; dropped before, it is
/// removed. While it is open it is locked, so that one whose writer died can be told; under its name it is free for others' locks.
#[derive(Debug)]
pub struct StagedFile {
    file: Locked,
    path: PathBuf,
    temporary: PathBuf,
    is_named: bool,
}

impl StagedFile {
    /// Begins the file that will be `path`, with mode 0600.
    pub fn create(path: &Path) -> IoResult<Self> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        loop {
            let temporary = temporary_name(path);
            let file = rustix::fs::open(&temporary, flags, Mode::RUSR | Mode::WUSR)?;
            // Where the file system has no locks, nobody can take one and think it dead either.
            let is_locked = rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).is_ok();
            // Whoever sweeps may have locked and removed it before we did: then another one is made.
            if !is_locked || is_same_file(&file, &temporary) {
                return Ok(StagedFile {
                    file: Locked(File::from(file)),
                    path: path.to_owned(),
                    temporary,
                    is_named: false,
                });
            }
        }
    }

    /// The open file.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.0.as_fd()
    }

    /// Makes content and name durable; `EXIST` if there is a file of that name, which stays.
    pub fn name_new(mut self) -> IoResult<()> {
        sync_file(self.fd())?;
        durable_rename_new(&self.temporary, &self.path)?;
        self.is_named = true;
        Ok(())
    }

    /// Makes content and name durable; a file of that name is replaced and its mode kept.
    pub fn replace(mut self) -> IoResult<()> {
        sync_file(self.fd())?;
        if let Ok(old) = rustix::fs::stat(&self.path) {
            rustix::fs::chmod(&self.temporary, Mode::from_raw_mode(old.st_mode))?;
        }
        rustix::fs::rename(&self.temporary, &self.path)?;
        self.is_named = true;
        sync_parent(&self.path)
    }
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        if !self.is_named {
            // The name is ours alone; what is left of it has no meaning.
            rustix::fs::unlink(&self.temporary).ok();
        }
    }
}

/// Creates `path` with `bytes`, all or nothing, durable; fails with `EXIST` if it is there already.
pub fn write_new_durable(path: &Path, bytes: &[u8]) -> IoResult<()> {
    let staged = StagedFile::create(path)?;
    write_all_at(staged.fd(), bytes, 0)?;
    staged.name_new()
}

/// Gives `path` the content `bytes`, all or nothing, durable; a file that is there is replaced and its mode kept.
pub fn replace_durable(path: &Path, bytes: &[u8]) -> IoResult<()> {
    let staged = StagedFile::create(path)?;
    write_all_at(staged.fd(), bytes, 0)?;
    staged.replace()
}

/// Removes temporary files in `directory` whose writers died; gives how many there were.
///
/// Whose writer lives is locked; whose file system has no locks stays.
pub fn remove_dead_temporaries(directory: &Path, names: &[String]) -> IoResult<u32> {
    let mut removed = 0;
    for name in names.iter().filter(|name| is_temporary_name(name)) {
        let path = directory.join(name);
        let file = match rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => continue,
            Err(error) => return Err(error),
        };
        if try_lock(&file) == Ok(true) && is_same_file(&file, &path) {
            rustix::fs::unlink(&path)?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// A name beside `path` that nobody else uses: `.NAME.PID-COUNT.new`.
fn temporary_name(path: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}-{}.new", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    path.with_file_name(name)
}

/// Whether `name` is one of a file that never got its own name.
pub fn is_temporary_name(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(".new")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_is_whole_or_not_there_and_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("object");
        write_new_durable(&path, b"one").unwrap();
        assert_eq!(write_new_durable(&path, b"two"), Err(Errno::EXIST));
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn what_a_dead_writer_left_is_told_from_what_a_living_one_writes() {
        let dir = tempfile::tempdir().unwrap();
        let living = StagedFile::create(&dir.path().join("living")).unwrap();
        write_all_at(living.fd(), b"half", 0).unwrap();
        std::fs::write(dir.path().join(".dead.7-0.new"), b"half").unwrap();
        std::fs::write(dir.path().join("object"), b"whole").unwrap();
        let names =
            || std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let listed: Vec<String> = names().collect();
        assert_eq!(remove_dead_temporaries(dir.path(), &listed), Ok(1));
        living.name_new().unwrap();
        let mut left: Vec<String> = names().collect();
        left.sort();
        assert_eq!(left, ["living", "object"]);
    }

    #[test]
    fn a_file_with_its_name_is_free_though_a_child_has_a_copy_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("object");
        let staged = StagedFile::create(&path).unwrap();
        // As in a child between its start and its program's.
        let copy = staged.fd().try_clone_to_owned().unwrap();
        staged.name_new().unwrap();
        assert_eq!(try_lock(&File::open(&path).unwrap()), Ok(true));
        drop(copy);
    }
}
