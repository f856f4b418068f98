//! Where the history lies, and opening it: made private, brought to today's schema, refused if it is not ours.

use std::ffi::OsString;
use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pagehaul_engine::error::{Error, ErrorKind, Result};
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::{History, error, schema};

/// How long one process waits for another's write; a write takes milliseconds, on a busy disk a second.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two attempts where SQLite itself does not wait.
const BUSY_PAUSE: Duration = Duration::from_millis(10);

impl History {
    /// Opens the history at `path`; makes it (0600) and its directory (0700) where they are not there.
    ///
    /// # Errors
    /// `Repository` if it cannot be made or written, `Damage` if it is no SQLite file or a broken one,
    /// `Configuration` if a newer pagehaul or another program made it. All name the file and the next step.
    pub fn open(path: &Path) -> Result<History> {
        make_private(path)?;
        let failed = |cause: rusqlite::Error| error("open", path, &cause);
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(path, flags).map_err(failed)?;
        connection.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
        schema::check(&connection, path)?;
        write_ahead(&connection).map_err(failed)?;
        // A run takes minutes: the sync after each, which survives a loss of power, costs nothing beside it.
        connection.pragma_update(None, "synchronous", "FULL").map_err(failed)?;
        connection.pragma_update(None, "foreign_keys", true).map_err(failed)?;
        schema::migrate(&mut connection, path)?;
        Ok(History { connection, path: path.to_owned() })
    }

    /// $PAGEHAUL_HISTORY, else $XDG_STATE_HOME/pagehaul/history.sqlite, else ~/.local/state/pagehaul/history.sqlite.
    ///
    /// # Errors
    /// `Configuration` if none of these variables, nor $HOME, is set.
    pub fn default_path() -> Result<PathBuf> {
        path_from(|name| std::env::var_os(name))
    }
}

fn path_from(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(named) = set("PAGEHAUL_HISTORY") {
        return Ok(named);
    }
    // The XDG base directory specification: a relative path there is to be ignored.
    let state = set("XDG_STATE_HOME").filter(|path| path.is_absolute());
    let state = state.or_else(|| set("HOME").map(|home| home.join(".local/state")));
    state.map(|state| state.join("pagehaul/history.sqlite")).ok_or_else(|| {
        Error::new(ErrorKind::Configuration, "find the history", "neither HOME nor XDG_STATE_HOME is set")
            .hint("name the file with PAGEHAUL_HISTORY")
    })
}

/// Makes the file, empty, and its directory; leaves alone what is there. SQLite gives its side files the same mode.
fn make_private(path: &Path) -> Result<()> {
    let failed = |cause: io::Error| {
        Error::new(ErrorKind::Repository, format!("make the history {}", path.display()), cause)
            .hint("let this user write to the directory, or name another file with PAGEHAUL_HISTORY")
    };
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
    }
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(()),
        Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(cause) => Err(failed(cause)),
    }
}

/// Lets readers and one writer work at once. File systems that cannot do that keep SQLite's rollback journal, which is
/// as safe.
fn write_ahead(connection: &Connection) -> rusqlite::Result<()> {
    let start = Instant::now();
    loop {
        let mode: rusqlite::Result<String> =
            connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0));
        match mode {
            Ok(_) => return Ok(()),
            // Two processes that open a new file at once: SQLite does not wait here, whatever the busy timeout.
            Err(cause) if is_busy(&cause) && start.elapsed() < BUSY_TIMEOUT => std::thread::sleep(BUSY_PAUSE),
            Err(cause) => return Err(cause),
        }
    }
}

fn is_busy(cause: &rusqlite::Error) -> bool {
    matches!(cause.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(variables: &[(&str, &str)], expected: Option<&str>) {
        let found = path_from(|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()));
        assert_eq!(found.ok(), expected.map(PathBuf::from), "{variables:?}");
    }

    #[test]
    fn the_path_follows_the_variables() {
        let home = ("HOME", "/home/a");
        check(&[home], Some("/home/a/.local/state/pagehaul/history.sqlite"));
        check(&[home, ("XDG_STATE_HOME", "/s")], Some("/s/pagehaul/history.sqlite"));
        check(&[home, ("XDG_STATE_HOME", "s")], Some("/home/a/.local/state/pagehaul/history.sqlite"));
        check(&[home, ("XDG_STATE_HOME", "/s"), ("PAGEHAUL_HISTORY", "h.sqlite")], Some("h.sqlite"));
        check(&[home, ("PAGEHAUL_HISTORY", "")], Some("/home/a/.local/state/pagehaul/history.sqlite"));
        check(&[], None);
    }
}
