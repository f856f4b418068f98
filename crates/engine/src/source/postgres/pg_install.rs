//! Finding the programs of a PostgreSQL server on this machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, ErrorKind, Result};
use crate::secrets;

/// Where distributions put one directory per major version.
const VERSIONED_ROOTS: &[&str] = &["/usr/lib/postgresql"];

/// The programs of one PostgreSQL version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PgInstall {
    bin_directory: PathBuf,
    major: u32,
}

impl PgInstall {
    /// The programs in `explicit` (the directory of the programs), or else those of `PATH`, or else the newest of
    /// `/usr/lib/postgresql/*/bin`.
    ///
    /// # Errors
    /// `Configuration` when there are none.
    pub fn find(explicit: Option<&Path>) -> Result<Self> {
        if let Some(bin_directory) = explicit {
            return Self::at(bin_directory);
        }
        let on_path = std::env::var_os("PATH").and_then(|path| {
            std::env::split_paths(&path)
                .filter(|directory| is_bin_directory(directory))
                .find_map(|directory| Self::at(&directory).ok())
        });
        on_path.or_else(|| versioned_installs().into_iter().max_by_key(PgInstall::major)).ok_or_else(|| {
            Error::new(
                ErrorKind::Configuration,
                "find PostgreSQL's server programs",
                "initdb and postgres are neither in PATH nor in /usr/lib/postgresql/*/bin",
            )
            .hint("install the server package, or name the directory of its programs")
        })
    }

    /// The programs of major version `major`, from `PATH` or `/usr/lib/postgresql`.
    ///
    /// # Errors
    /// `Configuration` when there are none of that version.
    pub fn find_major(major: u32) -> Result<Self> {
        let found = versioned_installs().into_iter().find(|install| install.major == major);
        let found = found.or_else(|| Self::find(None).ok().filter(|install| install.major == major));
        found.ok_or_else(|| {
            Error::new(
                ErrorKind::Configuration,
                format!("find the server programs of PostgreSQL {major}"),
                "they are neither in PATH nor in /usr/lib/postgresql",
            )
            .hint("install that version's server package, or name the directory of its programs")
        })
    }

    /// The programs in `bin_directory`.
    ///
    /// # Errors
    /// `Configuration` when it has no server programs, or they do not run.
    pub fn at(bin_directory: &Path) -> Result<Self> {
        let action = || format!("use the server programs in {}", bin_directory.display());
        let error = |cause: String| Error::new(ErrorKind::Configuration, action(), cause);
        if !is_bin_directory(bin_directory) {
            return Err(error("it has no initdb, pg_ctl and postgres".into()));
        }
        let output = secrets::keep_from(&mut Command::new(bin_directory.join("postgres")))
            .arg("--version")
            .output()
            .map_err(|cause| error(cause.to_string()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let major = parse_major(&text).ok_or_else(|| error(format!("postgres --version says {:?}", text.trim())))?;
        // A directory of links, such as /usr/local/bin, has some of the programs; the real one has them all.
        let real = bin_directory.join("postgres").canonicalize().ok().and_then(|path| Some(path.parent()?.to_owned()));
        let bin_directory = real.filter(|real| is_bin_directory(real)).unwrap_or_else(|| bin_directory.to_owned());
        Ok(PgInstall { bin_directory, major })
    }

    /// The directory of the programs.
    pub fn bin_directory(&self) -> &Path {
        &self.bin_directory
    }

    /// The major version.
    pub fn major(&self) -> u32 {
        self.major
    }

    /// Whether it has the program `name`; small installs have no pg_verifybackup, pgbench, ...
    pub fn has_tool(&self, name: &str) -> bool {
        self.bin_directory.join(name).is_file()
    }
}

fn is_bin_directory(directory: &Path) -> bool {
    ["initdb", "pg_ctl", "postgres"].iter().all(|name| directory.join(name).is_file())
}

fn versioned_installs() -> Vec<PgInstall> {
    let entries = VERSIONED_ROOTS.iter().filter_map(|root| std::fs::read_dir(root).ok()).flatten().flatten();
    entries.filter_map(|entry| PgInstall::at(&entry.path().join("bin")).ok()).collect()
}

/// `postgres (PostgreSQL) 15.20 (Debian ...)`, `18beta1`.
fn parse_major(version_line: &str) -> Option<u32> {
    let version = version_line.split_whitespace().nth(2)?;
    let digits_end = version.find(|character: char| !character.is_ascii_digit()).unwrap_or(version.len());
    version[..digits_end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_lines() {
        assert_eq!(parse_major("postgres (PostgreSQL) 15.20 (Debian 15.20-0+deb12u1)\n"), Some(15));
        assert_eq!(parse_major("postgres (PostgreSQL) 18beta1"), Some(18));
        assert_eq!(parse_major("nonsense"), None);
    }

    #[test]
    fn a_directory_without_programs_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(PgInstall::find(Some(directory.path())).unwrap_err().kind(), ErrorKind::Configuration);
    }
}
