//! Who works on a session now: a lock on a small file beside the history, which the kernel drops with its process.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::io::{self, Locked};

use super::{History, Session};

/// A session that nobody else works on meanwhile; given back when this is dropped.
#[derive(Debug)]
pub struct SessionLock {
    _lock: Locked,
    path: PathBuf,
}

impl History {
    /// The open session with this key, or a new one for `request_json`, held for this process alone.
    ///
    /// # Errors
    /// `Conflict`, naming the process that works on it; `Repository` if the lock cannot be made; as [`History::add`].
    pub fn begin_alone(&self, key: &str, request_json: &str) -> Result<(Session, SessionLock)> {
        loop {
            let session = self.begin_or_resume(key, request_json)?;
            let lock = SessionLock::take(&self.lock_path(&session), &session)?;
            // Its holder may have finished it between the two.
            if self.is_open(&session)? {
                return Ok((session, lock));
            }
        }
    }

    fn is_open(&self, session: &Session) -> Result<bool> {
        let select = "SELECT finished_at IS NULL FROM session WHERE id = ?";
        let open = self.connection.query_row(select, [session.id], |row| row.get(0));
        open.map_err(|cause| self.error("read", &cause))
    }

    fn lock_path(&self, session: &Session) -> PathBuf {
        let mut name = self.path.as_os_str().to_owned();
        name.push(format!("-session-{}.lock", session.id));
        PathBuf::from(name)
    }
}

impl SessionLock {
    fn take(path: &Path, session: &Session) -> Result<Self> {
        let failed = |cause| Error::new(ErrorKind::Repository, format!("lock {}", path.display()), cause);
        loop {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let mut file = options.open(path).map_err(failed)?;
            if !io::try_lock(&file).map_err(|cause| failed(cause.into()))? {
                return Err(in_use(&mut file, session));
            }
            // The holder before us may have removed the file after we opened it: then the lock is on nothing.
            let own = file.metadata().map_err(failed)?.ino();
            if std::fs::metadata(path).is_ok_and(|there| there.ino() == own) {
                file.set_len(0).and_then(|()| write!(file, "{}", std::process::id())).map_err(failed)?;
                return Ok(SessionLock { _lock: Locked(file), path: path.to_owned() });
            }
        }
    }
}

impl Drop for SessionLock {
    fn drop(&mut self) {
        // One that stays is held by nobody.
        std::fs::remove_file(&self.path).ok();
    }
}

fn in_use(file: &mut File, session: &Session) -> Error {
    let mut pid = String::new();
    // A holder that has not written its number yet is another process all the same.
    file.read_to_string(&mut pid).ok();
    let holder = if pid.is_empty() { "another process".to_owned() } else { format!("process {pid}") };
    Error::new(
        ErrorKind::Conflict,
        "tune",
        format!("{holder} is at the same task, which was begun on {}", session.started_at),
    )
    .hint("wait for it or end it: the next run goes on where it stopped; other settings or targets are another task")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_held_by_one_and_free_when_that_one_ends() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history.sqlite");
        let (one, other) = (History::open(&path).unwrap(), History::open(&path).unwrap());
        let (session, lock) = one.begin_alone("a", "{}").unwrap();
        let error = other.begin_alone("a", "{}").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        let (different, _) = other.begin_alone("b", "{}").unwrap();
        assert_ne!(different.id, session.id);
        drop(lock);
        let (again, lock) = other.begin_alone("a", "{}").unwrap();
        assert!(again.resumed && again.id == session.id);
        other.finish(&again).unwrap();
        drop(lock);
        let (anew, _lock) = one.begin_alone("a", "{}").unwrap();
        assert!(!anew.resumed && anew.id != session.id);
        let locks = std::fs::read_dir(directory.path()).unwrap().flatten();
        let locks = locks.filter(|entry| entry.file_name().to_string_lossy().ends_with(".lock"));
        assert_eq!(locks.count(), 1, "locks that were given back are gone");
    }
}
