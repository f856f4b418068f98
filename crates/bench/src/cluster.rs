//! The PostgreSQL cluster that is backed up: made once and kept, or a running one of somebody else.

use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::source::postgres::os_owner::user_and_group;
use pagehaul_engine::source::postgres::pg_install::PgInstall;

use pagehaul_tune::contestants::ServerAddress;
use pagehaul_tune::contestants::stopwatch::run_quietly;

/// Part of the socket's name; no TCP port is opened.
const PORT: u16 = 54_400;

/// What every cluster made here runs with.
const SETTINGS: &str = "\
listen_addresses = ''
shared_buffers = 1GB
max_wal_size = 8GB
checkpoint_timeout = 30min
wal_level = replica
archive_mode = on
archive_command = '/bin/true'
autovacuum = off
synchronous_commit = off
max_locks_per_transaction = 1024
";

/// Who may own a cluster: PostgreSQL refuses to run as root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner(Option<(u32, u32)>);

impl Owner {
    /// The user postgres when we are root, otherwise ourselves.
    ///
    /// # Errors
    /// `Configuration` if we are root and there is no such user.
    pub(crate) fn find() -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Owner(None));
        }
        let ids = user_and_group("postgres").ok_or_else(|| {
            Error::new(ErrorKind::Configuration, "run a server as the OS user postgres", "there is no such user")
        })?;
        Ok(Owner(Some(ids)))
    }

    /// User and group; None is ourselves.
    pub(crate) fn ids(self) -> Option<(u32, u32)> {
        self.0
    }

    /// A command that runs as the owner, in `directory`.
    pub(crate) fn command(self, program: impl AsRef<OsStr>, directory: &Path) -> Command {
        let mut command = Command::new(program);
        if let Owner(Some((uid, gid))) = self {
            command.uid(uid).gid(gid);
        }
        // Settings of our caller's environment must not lead elsewhere.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
            command.env_remove(name);
        }
        command.current_dir(directory).env("HOME", directory).env("LC_ALL", "C");
        command
    }

    /// Makes `path` and its parents, and gives it to the owner.
    ///
    /// # Errors
    /// `Target`, naming the path.
    pub(crate) fn create_directory(self, path: &Path) -> Result<()> {
        let failed = |cause| Error::new(ErrorKind::Target, format!("create {}", path.display()), cause);
        std::fs::create_dir_all(path).map_err(failed)?;
        self.take(path)
    }

    /// Gives `path` to the owner.
    ///
    /// # Errors
    /// `Target`, naming the path.
    pub(crate) fn take(self, path: &Path) -> Result<()> {
        let Owner(Some((uid, gid))) = self else { return Ok(()) };
        chown(path, Some(uid), Some(gid))
            .map_err(|cause| Error::new(ErrorKind::Target, format!("give {} to postgres", path.display()), cause))
    }
}

/// A running cluster; one that was started here is stopped when this is dropped.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) pgdata: PathBuf,
    pub(crate) socket_directory: PathBuf,
    pub(crate) port: u16,
    pub(crate) postmaster: u32,
    pub(crate) owner: Owner,
    pub(crate) install: PgInstall,
    started_here: bool,
}

impl Cluster {
    /// A running one: where it is and how to reach it stand in its postmaster.pid.
    ///
    /// # Errors
    /// `Configuration` if it is not running or nobody's we can be.
    pub(crate) fn adopt(pgdata: &Path) -> Result<Self> {
        let failed = |cause: &str| {
            Error::new(ErrorKind::Configuration, format!("use the cluster in {}", pgdata.display()), cause)
        };
        let text = std::fs::read_to_string(pgdata.join("postmaster.pid")).map_err(|_| failed("it is not running"))?;
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let (Some(pid), Some(port), Some(socket)) = (lines.first(), lines.get(3), lines.get(4)) else {
            return Err(failed("its postmaster.pid is not understood"));
        };
        let (Ok(postmaster), Ok(port)) = (pid.parse::<u32>(), port.parse()) else {
            return Err(failed("its postmaster.pid is not understood"));
        };
        if !Path::new(&format!("/proc/{postmaster}")).exists() {
            return Err(failed("it is not running"));
        }
        let owner = match std::fs::metadata(pgdata) {
            Ok(metadata) if rustix::process::geteuid().is_root() => Owner(Some((metadata.uid(), metadata.gid()))),
            _ => Owner(None),
        };
        let install = install_of(postmaster)?;
        let (pgdata, socket_directory) = (pgdata.to_owned(), PathBuf::from(socket));
        Ok(Cluster { pgdata, socket_directory, port, postmaster, owner, install, started_here: false })
    }

    /// How other tools reach it.
    pub(crate) fn address(&self) -> ServerAddress {
        ServerAddress {
            pgdata: self.pgdata.clone(),
            host: self.socket_directory.to_string_lossy().into_owned(),
            port: self.port,
            user: "postgres".to_owned(),
            bin_directory: self.install.bin_directory().to_owned(),
        }
    }

    /// The cluster `name` below `root`: as it was left, or made anew and filled by `fill`.
    ///
    /// # Errors
    /// `Configuration` with the words of the program that failed.
    pub(crate) fn open_or_make(root: &Path, name: &str, fill: impl FnOnce(&Cluster) -> Result<()>) -> Result<Self> {
        Self::open_or_make_with(&PgInstall::find(None)?, "", root, name, fill)
    }

    /// The same, run by the programs of `install` and, if it is made anew, with `more_settings`.
    ///
    /// # Errors
    /// As [`Cluster::open_or_make`].
    pub(crate) fn open_or_make_with(
        install: &PgInstall,
        more_settings: &str,
        root: &Path,
        name: &str,
        fill: impl FnOnce(&Cluster) -> Result<()>,
    ) -> Result<Self> {
        let owner = Owner::find()?;
        let initialize = |half_made: &Path| {
            let path = half_made.to_string_lossy().into_owned();
            let arguments = ["-k", "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8", "-A", "trust", "-D", &path];
            run_quietly(owner.command(install.bin_directory().join("initdb"), root).args(arguments)).map(drop)
        };
        Self::open_or_lay(install, more_settings, root, name, initialize, fill)
    }

    /// The same, but for what it is made of: `lay` puts a data directory in order where it is told to.
    ///
    /// # Errors
    /// As [`Cluster::open_or_make`], and those of `lay`.
    pub(crate) fn open_or_lay(
        install: &PgInstall,
        more_settings: &str,
        root: &Path,
        name: &str,
        lay: impl FnOnce(&Path) -> Result<()>,
        fill: impl FnOnce(&Cluster) -> Result<()>,
    ) -> Result<Self> {
        let owner = Owner::find()?;
        let (pgdata, half_made) = (root.join(name), root.join(format!("{name}.new")));
        owner.create_directory(root)?;
        if pgdata.join("PG_VERSION").exists() {
            return Self::start(install, owner, root, &pgdata);
        }
        println!("making the cluster {name}; it is kept for later runs");
        remove_tree(&half_made)?;
        lay(&half_made)?;
        let config = half_made.join("postgresql.auto.conf");
        let settings =
            format!("{SETTINGS}{more_settings}port = {PORT}\nunix_socket_directories = '{}'\n", root.display());
        std::fs::write(&config, settings)
            .map_err(|cause| Error::new(ErrorKind::Target, format!("write {}", config.display()), cause))?;
        let cluster = Self::start(install, owner, root, &half_made)?;
        fill(&cluster)?;
        // A cluster has its final name only when it is filled: one that was interrupted is made anew.
        drop(cluster);
        std::fs::rename(&half_made, &pgdata)
            .map_err(|cause| Error::new(ErrorKind::Target, format!("rename {}", half_made.display()), cause))?;
        Self::start(install, owner, root, &pgdata)
    }

    fn start(install: &PgInstall, owner: Owner, root: &Path, pgdata: &Path) -> Result<Self> {
        if let Ok(running) = Self::adopt(pgdata) {
            return Ok(running);
        }
        let (data, log) = (pgdata.to_string_lossy(), root.join("server.log"));
        let log = log.to_string_lossy();
        let arguments = ["start", "-w", "-s", "-t", "600", "-D", &data, "-l", &log];
        // Not run_quietly: the server would keep its pipes open for ever.
        let program = install.bin_directory().join("pg_ctl");
        let status = owner.command(program, root).args(arguments).status();
        match status {
            Ok(status) if status.success() => {
                let mut cluster = Self::adopt(pgdata)?;
                cluster.started_here = true;
                Ok(cluster)
            }
            Ok(_) => Err(Error::new(ErrorKind::Configuration, "start a server", "pg_ctl failed")
                .hint(format!("its log is {log}"))),
            Err(cause) => Err(Error::new(ErrorKind::Configuration, "run pg_ctl", cause)),
        }
    }

    /// A program of this cluster's PostgreSQL, as its owner, told how to reach it.
    pub(crate) fn tool(&self, name: &str, directory: &Path) -> Command {
        let mut command = self.owner.command(self.install.bin_directory().join(name), directory);
        command
            .env("PGHOST", &self.socket_directory)
            .env("PGPORT", self.port.to_string())
            .env("PGUSER", "postgres")
            .env("PGDATABASE", "postgres");
        command
    }

    /// Runs SQL text and returns unaligned rows.
    ///
    /// # Errors
    /// `Configuration` with psql's words.
    pub(crate) fn sql(&self, text: &str) -> Result<String> {
        let arguments = ["-XAtq", "-v", "ON_ERROR_STOP=1", "-c", text];
        Ok(run_quietly(self.tool("psql", Path::new("/")).args(arguments))?.trim().to_owned())
    }

    /// How pagehaul reaches it.
    pub(crate) fn connection(&self) -> String {
        format!("host={} port={} user=postgres", self.socket_directory.display(), self.port)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.started_here {
            let program = self.install.bin_directory().join("pg_ctl");
            let data = self.pgdata.to_string_lossy();
            let arguments = ["stop", "-w", "-s", "-t", "600", "-m", "fast", "-D", &data];
            if let Err(error) = run_quietly(self.owner.command(program, Path::new("/")).args(arguments)) {
                eprintln!("{error}");
            }
        }
    }
}

/// The programs beside the one that process runs.
fn install_of(postmaster: u32) -> Result<PgInstall> {
    let program = std::fs::read_link(format!("/proc/{postmaster}/exe")).ok();
    PgInstall::find(program.as_deref().and_then(Path::parent))
}

/// Removes a directory and all below it, if it is there.
///
/// # Errors
/// `Target`, naming it.
pub(crate) fn remove_tree(path: &Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::new(ErrorKind::Target, format!("remove {}", path.display()), cause))
        }
        _ => Ok(()),
    }
}
