//! Other tools, measured as whole processes beside us: how each is called for a backup and for a restore.

mod backrest;
mod basebackup;
mod proc;
pub mod stopwatch;

pub use backrest::BackRest;
pub use basebackup::BaseBackup;
pub use proc::server_cpu_s;

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use pagehaul_engine::error::{Error, ErrorKind, Result};

use stopwatch::{Cost, Stopwatch};

/// The server that is backed up, as other tools reach it.
#[derive(Clone, Debug, Default)]
pub struct ServerAddress {
    /// Its data directory.
    pub pgdata: PathBuf,
    /// Host name, or directory of its socket.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Who logs in.
    pub user: String,
    /// Where PostgreSQL's client programs are.
    pub bin_directory: PathBuf,
}

/// Where and as whom a tool runs.
pub struct Place<'a> {
    /// A directory that belongs to `owner`; every tool makes one of its own in it.
    pub work: &'a Path,
    /// The server.
    pub server: &'a ServerAddress,
    /// User and group to run as; None stays ourselves.
    pub owner: Option<(u32, u32)>,
    /// Measures the commands.
    pub stopwatch: &'a Stopwatch<'a>,
}

/// What a measured backup cost and stored.
#[derive(Clone, Copy, Debug, Default)]
pub struct BackupCost {
    /// Of the command.
    pub cost: Cost,
    /// Bytes of all files of the backup.
    pub stored_bytes: u64,
}

/// Another tool in one setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contestant {
    /// PostgreSQL's own.
    BaseBackup(BaseBackup),
    /// pgBackRest.
    BackRest(BackRest),
}

impl Contestant {
    /// The tool.
    pub fn name(&self) -> &'static str {
        match self {
            Contestant::BaseBackup(_) => BaseBackup::NAME,
            Contestant::BackRest(_) => BackRest::NAME,
        }
    }

    /// As it stands in the tables.
    pub fn setting(&self) -> String {
        match self {
            Contestant::BaseBackup(tool) => tool.setting(),
            Contestant::BackRest(tool) => tool.setting(),
        }
    }

    /// A full backup into a fresh place.
    ///
    /// # Errors
    /// `Configuration` with the tool's own words.
    pub fn backup(&self, place: &Place<'_>) -> Result<BackupCost> {
        match self {
            Contestant::BaseBackup(tool) => tool.backup(place),
            Contestant::BackRest(tool) => tool.backup(place),
        }
    }

    /// A restore of that backup into an empty directory, durable at the end.
    ///
    /// # Errors
    /// `Configuration` with the tool's own words.
    pub fn restore(&self, place: &Place<'_>, target: &Path) -> Result<Cost> {
        match self {
            Contestant::BaseBackup(tool) => tool.restore(place, target),
            Contestant::BackRest(tool) => tool.restore(place, target),
        }
    }

    /// The commands, for people.
    pub fn commands(&self) -> Vec<String> {
        match self {
            Contestant::BaseBackup(tool) => tool.commands(),
            Contestant::BackRest(tool) => tool.commands(),
        }
    }
}

/// Contestants by the names that `--with` takes, each in its usual and its best settings, on a machine of `cores`.
///
/// # Errors
/// `Usage` for a name that is not known.
pub fn by_name(name: &str, cores: u16) -> Result<Vec<Contestant>> {
    match name {
        "pg_basebackup" => Ok(BaseBackup::usual().into_iter().map(Contestant::BaseBackup).collect()),
        "pgbackrest" => Ok(BackRest::usual(cores).into_iter().map(Contestant::BackRest).collect()),
        "pg_basebackup-levels" => Ok(BaseBackup::published_levels().into_iter().map(Contestant::BaseBackup).collect()),
        _ => Err(Error::new(ErrorKind::Usage, format!("measure {name:?}"), "not a tool that tune can call").hint(
            "--with takes pg_basebackup, pgbackrest, and pg_basebackup-levels (every level of gzip, lz4 and zstd)",
        )),
    }
}

impl Place<'_> {
    /// A command that runs as the owner, here, without settings of our caller's environment that lead elsewhere.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        if let Some((user, group)) = self.owner {
            command.uid(user).gid(group);
        }
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_foreign(&name.to_string_lossy())) {
            command.env_remove(name);
        }
        command.current_dir(self.work).env("HOME", self.work).env("LC_ALL", "C");
        command
    }

    /// A program of PostgreSQL's, told how to reach the server.
    pub fn postgres_tool(&self, name: &str) -> Command {
        let server = self.server;
        let mut command = self.command(server.bin_directory.join(name));
        command
            .env("PGHOST", &server.host)
            .env("PGPORT", server.port.to_string())
            .env("PGUSER", &server.user)
            .env("PGDATABASE", "postgres");
        command
    }

    /// Where the cluster's tablespaces lie, those inside the data directory left out.
    ///
    /// # Errors
    /// `Source` if they cannot be listed.
    pub fn tablespaces(&self) -> Result<Vec<PathBuf>> {
        Ok(tablespaces(&self.server.pgdata)?.into_iter().map(|(_, place)| place).collect())
    }

    /// The directory `name` in the work directory: empty, private, the owner's.
    ///
    /// # Errors
    /// `Target`, naming it.
    pub fn empty_directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.work.join(name);
        remove_tree(&path)?;
        make_private(&path, self.owner)?;
        Ok(path)
    }
}

/// Name of the link and place of each tablespace of the cluster in `pgdata`; one inside the data directory is no link.
///
/// # Errors
/// `Source` if they cannot be listed.
pub fn tablespaces(pgdata: &Path) -> Result<Vec<(String, PathBuf)>> {
    let links = pgdata.join("pg_tblspc");
    let failed = |cause| Error::new(ErrorKind::Source, format!("look into {}", links.display()), cause);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&links).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if let Ok(place) = std::fs::read_link(entry.path()) {
            found.push((entry.file_name().to_string_lossy().into_owned(), place));
        }
    }
    Ok(found)
}

/// Settings of PostgreSQL and pgBackRest; a password file is none that leads elsewhere.
fn is_foreign(name: &str) -> bool {
    (name.starts_with("PG") && name != "PGPASSFILE") || name.starts_with("PGBACKREST_")
}

/// Removes a tree; one that is not there is fine.
///
/// # Errors
/// `Target`, naming it.
pub fn remove_tree(path: &Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::new(ErrorKind::Target, format!("remove {}", path.display()), cause))
        }
        _ => Ok(()),
    }
}

/// Makes a directory that only `owner` may enter.
///
/// # Errors
/// `Target`, naming it.
pub fn make_private(path: &Path, owner: Option<(u32, u32)>) -> Result<()> {
    use std::os::unix::fs::{DirBuilderExt, chown};
    let failed = |cause| Error::new(ErrorKind::Target, format!("create {}", path.display()), cause);
    std::fs::DirBuilder::new().mode(0o700).recursive(true).create(path).map_err(failed)?;
    match owner {
        Some((user, group)) => chown(path, Some(user), Some(group)).map_err(failed),
        None => Ok(()),
    }
}

/// Bytes of all files below `path`.
pub fn tree_bytes(path: &Path) -> u64 {
    let (mut todo, mut bytes) = (vec![path.to_owned()], 0);
    while let Some(path) = todo.pop() {
        let Ok(metadata) = std::fs::symlink_metadata(&path) else { continue };
        if metadata.is_dir() {
            todo.extend(std::fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        } else if metadata.is_file() {
            bytes += metadata.len();
        }
    }
    bytes
}
