//! A server on content that nobody has vouched for: a backup that is tried out.
//!
//! A restored cluster is code: its settings name commands and libraries, its jobs and subscriptions reach for other
//! machines. So none of its settings files is used but what recovery needs; the rest is on the command line, which wins
//! over everything. It listens on one socket in a private directory, has no workers, no jobs, no archiving, no
//! replication, an empty environment, and no network where the kernel lets us take it away.

use std::fs::File;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use rustix::process::{Pid, Signal};

use super::client::Connection;
use super::conninfo::ConnectSettings;
use super::control_file::ControlFile;
use super::os_owner::OsOwner;
use super::pg_install::PgInstall;
use super::scratch_server::kill_all_of;
use super::tls_settings::TlsSettings;
use crate::error::{Error, ErrorKind, Result};
use crate::io;
use crate::source::keepalive::Keepalive;

/// Part of the socket's name; no TCP port is opened.
const SOCKET_PORT: u16 = 5432;
/// Longest path of a socket that Linux takes, without the final zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// How much of the server's log an error quotes.
const LOG_TAIL_LINES: usize = 12;
/// Libraries that exist to start jobs or to talk to other servers; a trial needs none of them.
const JOB_LIBRARIES: [&str; 7] =
    ["pg_cron", "pg_partman_bgw", "pg_squeeze", "pglogical", "pglogical_output", "bdr", "pg_net"];
/// What of our own environment a server and its tools get.
const ENVIRONMENT: [&str; 3] = ["PATH", "LD_LIBRARY_PATH", "TZ"];

/// How far a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// Replaying, or not yet that far.
    Starting,
    /// Takes connections.
    Ready,
    /// Gone.
    Ended(ExitStatus),
}

/// A stopped or running server in its sandbox; dropping it kills it.
#[derive(Debug)]
pub struct Sandbox {
    install: PgInstall,
    owner: OsOwner,
    data_directory: PathBuf,
    /// Socket, log and settings files.
    private_directory: PathBuf,
    superuser: String,
    without_network: bool,
    child: Option<Child>,
}

/// Name of the operating system user that a sandboxed server runs as, if it is not our own: the files must be its.
///
/// # Errors
/// `Configuration` if there is none.
pub fn server_user() -> Result<Option<&'static str>> {
    Ok(match OsOwner::find()? {
        OsOwner::Ourselves => None,
        OsOwner::Postgres { .. } => Some("postgres"),
    })
}

impl Sandbox {
    /// A sandbox for `data_directory`; makes `private_directory`. `may_use_network` leaves it the network.
    ///
    /// # Errors
    /// `Usage` if the path is too long for a socket, `Configuration` if no server may run here, `Target`.
    pub fn new(
        install: &PgInstall,
        data_directory: &Path,
        private_directory: &Path,
        superuser: &str,
        may_use_network: bool,
    ) -> Result<Self> {
        let owner = OsOwner::find()?;
        let socket = private_directory.join(format!(".s.PGSQL.{SOCKET_PORT}"));
        if socket.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            let cause = format!("a socket's path has at most {SOCKET_PATH_BYTES_MAX} bytes");
            return Err(Error::new(ErrorKind::Usage, format!("use {}", socket.display()), cause)
                .hint("give --scratch-dir a shorter path"));
        }
        let failed = |cause: std::io::Error| {
            Error::new(ErrorKind::Target, format!("create {}", private_directory.display()), cause)
        };
        std::fs::DirBuilder::new().mode(0o700).create(private_directory).map_err(failed)?;
        let mut sandbox = Sandbox {
            install: install.clone(),
            owner,
            data_directory: data_directory.to_owned(),
            private_directory: private_directory.to_owned(),
            superuser: superuser.to_owned(),
            without_network: false,
            child: None,
        };
        sandbox.write_private_file("postgresql.conf", "# all settings are on the command line\n")?;
        sandbox.write_private_file("pg_hba.conf", "local all all trust\n")?;
        sandbox.write_private_file("pg_ident.conf", "")?;
        owner.take_over_tree(private_directory)?;
        sandbox.without_network = !may_use_network && sandbox.can_take_network_away();
        Ok(sandbox)
    }

    fn write_private_file(&self, name: &str, text: &str) -> Result<()> {
        let path = self.private_directory.join(name);
        io::write_new_durable(&path, text.as_bytes())
            .map_err(|cause| Error::new(ErrorKind::Target, format!("write {}", path.display()), cause))
    }

    /// Whether the server has no network at all, and not only no port.
    pub fn is_without_network(&self) -> bool {
        self.without_network
    }

    /// Kernels and containers differ in whom they let make namespaces: it is tried.
    fn can_take_network_away(&self) -> bool {
        let output = self.command_of(&["unshare", "--user", "--map-current-user", "--net", "true"]).output();
        output.is_ok_and(|output| output.status.success())
    }

    /// Starts the server without waiting for it; `further` settings win over the sandbox's own.
    ///
    /// # Errors
    /// `Configuration` if the program does not run.
    pub fn launch(&mut self, control_file: &ControlFile, libraries: &[String], further: &[(&str, &str)]) -> Result<()> {
        let failed = |cause: std::io::Error| {
            let program = self.install.bin_directory().join("postgres");
            Error::new(ErrorKind::Configuration, format!("start {}", program.display()), cause)
        };
        let program = path_text(&self.install.bin_directory().join("postgres"))?;
        let mut words = Vec::new();
        if self.without_network {
            words.extend(["unshare", "--user", "--map-current-user", "--net", "--"].map(str::to_owned));
        }
        words.extend([program, "-D".to_owned(), path_text(&self.data_directory)?]);
        let settings = self.settings(control_file, libraries)?;
        for (name, value) in settings.iter().map(|(name, value)| (*name, value.as_str())).chain(further.iter().copied())
        {
            words.extend(["-c".to_owned(), format!("{name}={value}")]);
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let log = File::options().create(true).append(true).open(self.log_path()).map_err(failed)?;
        let mut command = self.command_of(&words);
        command.stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().map_err(failed)?);
        Ok(())
    }

    fn settings(&self, control_file: &ControlFile, libraries: &[String]) -> Result<Vec<(&'static str, String)>> {
        let private = path_text(&self.private_directory)?;
        let mut settings = vec![
            ("config_file", format!("{private}/postgresql.conf")),
            ("hba_file", format!("{private}/pg_hba.conf")),
            ("ident_file", format!("{private}/pg_ident.conf")),
            // The cluster's own settings may name another place, where a live server is.
            ("data_directory", path_text(&self.data_directory)?),
            ("unix_socket_directories", private),
            ("shared_preload_libraries", libraries.join(",")),
            ("max_prepared_transactions", control_file.max_prepared_transactions.to_string()),
            ("max_locks_per_transaction", control_file.max_locks_per_transaction.max(64).to_string()),
        ];
        let major = self.install.major();
        let fixed = FIXED_SETTINGS.iter().filter(|(since, _, _)| major >= *since);
        settings.extend(fixed.map(|(_, name, value)| (*name, (*value).to_owned())));
        Ok(settings)
    }

    /// The libraries of the cluster's shared_preload_libraries that are on this machine and start no jobs, and those
    /// that are left out.
    pub fn preload_libraries(&self) -> (Vec<String>, Vec<String>) {
        let directory = self.data_directory.display().to_string();
        // Only prints; without a settings file, or with one that does not read here, there are none.
        let own_place = format!("data_directory={directory}");
        let arguments = ["-D", directory.as_str(), "-c", own_place.as_str(), "-C", "shared_preload_libraries"];
        let said = self.tool("postgres", &arguments).ok().filter(|output| output.status.success());
        let said = said.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        let named = said.split(',').map(|name| name.trim().trim_matches(['"', '\'']).to_owned());
        named.filter(|name| !name.is_empty()).partition(|name| !is_job_library(name) && self.has_library(name))
    }

    fn has_library(&self, name: &str) -> bool {
        let name = name.strip_prefix("$libdir/").unwrap_or(name);
        let name = name.strip_suffix(".so").unwrap_or(name);
        let lib = self.install.bin_directory().join("../lib");
        [lib.join("postgresql"), lib].iter().any(|directory| directory.join(format!("{name}.so")).is_file())
    }

    /// How far the server is.
    ///
    /// # Errors
    /// `Bug` if it was never started.
    pub fn state(&mut self) -> Result<ServerState> {
        let failed = |cause: &dyn std::fmt::Display| Error::new(ErrorKind::Bug, "look after the scratch server", cause);
        let child = self.child.as_mut().ok_or_else(|| failed(&"it was not started"))?;
        if let Some(status) = child.try_wait().map_err(|cause| failed(&cause))? {
            self.child = None;
            return Ok(ServerState::Ended(status));
        }
        let pid_file = std::fs::read_to_string(self.data_directory.join("postmaster.pid")).unwrap_or_default();
        // The eighth line says how far it is (src/include/utils/pidfile.h).
        let is_ready = pid_file.lines().nth(7).is_some_and(|line| line.trim() == "ready");
        Ok(if is_ready { ServerState::Ready } else { ServerState::Starting })
    }

    /// Stops the server as an administrator would, and waits until it is gone.
    ///
    /// # Errors
    /// `Target` if it did not end well, with the end of its log.
    pub fn stop(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let failed = |cause: String| Error::new(ErrorKind::Target, "stop the scratch server", cause);
        if let Some(pid) = Pid::from_raw(child.id() as i32) {
            rustix::process::kill_process(pid, Signal::INT).map_err(|cause| failed(cause.to_string()))?;
        }
        let status = child.wait().map_err(|cause| failed(cause.to_string()))?;
        if status.success() { Ok(()) } else { Err(failed(format!("{status}; {}", self.log_tail()))) }
    }

    /// A session as superuser.
    ///
    /// # Errors
    /// As [`Connection::connect`].
    pub fn connect(&self, database: &str) -> Result<Connection> {
        Connection::connect(&ConnectSettings {
            host: self.private_directory.display().to_string(),
            port: SOCKET_PORT,
            user: self.superuser.clone(),
            database: database.to_owned(),
            password: None,
            tls: TlsSettings::off(),
            connect_timeout_s: 30,
            keepalive: Keepalive::default(),
        })
    }

    /// A program of the server's installation, to be run against this server.
    pub fn tool_command(&self, name: &str, arguments: &[&str]) -> Command {
        let program = self.install.bin_directory().join(name).display().to_string();
        let mut command = self.command_of(&[&[program.as_str()], arguments].concat());
        command
            .env("PGHOST", &self.private_directory)
            .env("PGPORT", SOCKET_PORT.to_string())
            .env("PGUSER", &self.superuser)
            .env("PGDATABASE", "postgres");
        command
    }

    /// Runs such a program; its own failure is in the returned status.
    ///
    /// # Errors
    /// `Configuration` if it is not there.
    pub fn tool(&self, name: &str, arguments: &[&str]) -> Result<Output> {
        self.tool_command(name, arguments).output().map_err(|cause| {
            let program = self.install.bin_directory().join(name);
            Error::new(ErrorKind::Configuration, format!("run {}", program.display()), cause)
        })
    }

    fn command_of(&self, words: &[&str]) -> Command {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env_clear();
        command.envs(ENVIRONMENT.iter().filter_map(|name| Some((*name, std::env::var_os(name)?))));
        command.env("LC_ALL", "C").current_dir("/").stdin(Stdio::null());
        self.owner.apply(&mut command);
        command
    }

    /// The programs it runs with.
    pub fn install(&self) -> &PgInstall {
        &self.install
    }

    /// The data directory.
    pub fn data_directory(&self) -> &Path {
        &self.data_directory
    }

    /// The whole log of the server.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.log_path()).unwrap_or_default()).into_owned()
    }

    /// The end of it.
    pub fn log_tail(&self) -> String {
        let text = self.log();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }

    fn log_path(&self) -> PathBuf {
        self.private_directory.join("log")
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            kill_all_of(child.id() as i32).ok();
            child.wait().ok();
        }
    }
}

/// Kills the server that a killed process left on `data_directory`, if there is one; whether there was one.
///
/// # Errors
/// `Conflict` if a process has the directory that may not be looked at.
pub fn kill_leftover_server(data_directory: &Path) -> Result<bool> {
    let text = std::fs::read_to_string(data_directory.join("postmaster.pid")).unwrap_or_default();
    let Some(pid) = text.lines().next().and_then(|line| line.trim().parse::<i32>().ok()) else { return Ok(false) };
    let failed = |cause: &dyn std::fmt::Display| {
        Error::new(ErrorKind::Conflict, format!("end the server on {}", data_directory.display()), cause)
    };
    match std::fs::read_link(format!("/proc/{pid}/cwd")) {
        // A server works in its data directory; any other process got the number later.
        Ok(cwd) if data_directory.canonicalize().is_ok_and(|real| real == cwd) => {
            kill_all_of(pid).map_err(|cause| failed(&cause))?;
            Ok(true)
        }
        Ok(_) => Ok(false),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(cause) => Err(failed(&cause)),
    }
}

/// Since which major version, name, value.
const FIXED_SETTINGS: [(u32, &str, &str); 42] = [
    // Nobody from outside, and nobody to the outside.
    (13, "listen_addresses", ""),
    (13, "port", "5432"),
    (13, "unix_socket_permissions", "0700"),
    (13, "ssl", "off"),
    (13, "primary_conninfo", ""),
    (13, "primary_slot_name", ""),
    (13, "max_wal_senders", "0"),
    (13, "wal_level", "replica"),
    (13, "max_logical_replication_workers", "0"),
    (13, "synchronous_standby_names", ""),
    (17, "sync_replication_slots", "off"),
    (17, "summarize_wal", "off"),
    // No commands and no code of the cluster's choice.
    (13, "archive_mode", "off"),
    (13, "archive_command", ""),
    (15, "archive_library", ""),
    (13, "archive_cleanup_command", ""),
    (13, "recovery_end_command", ""),
    (13, "session_preload_libraries", ""),
    (13, "local_preload_libraries", ""),
    (13, "max_worker_processes", "0"),
    (13, "max_parallel_workers", "0"),
    (13, "autovacuum", "off"),
    (17, "event_triggers", "off"),
    (13, "jit", "off"),
    // Writable as soon as the target is reached.
    (13, "hot_standby", "off"),
    (13, "recovery_target_action", "promote"),
    // Small, and all it says goes to our log.
    (13, "max_connections", "50"),
    (13, "superuser_reserved_connections", "3"),
    (13, "shared_buffers", "128MB"),
    (13, "huge_pages", "try"),
    (13, "logging_collector", "off"),
    (13, "log_destination", "stderr"),
    (13, "log_min_messages", "warning"),
    (13, "lc_messages", "C"),
    (13, "external_pid_file", ""),
    (13, "cluster_name", "pagehaul-scratch"),
    (13, "restart_after_crash", "off"),
    (13, "default_tablespace", ""),
    (13, "temp_tablespaces", ""),
    (13, "statement_timeout", "0"),
    (13, "default_transaction_read_only", "off"),
    (13, "ignore_invalid_pages", "off"),
];

fn is_job_library(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or(name);
    JOB_LIBRARIES.contains(&name.strip_suffix(".so").unwrap_or(name))
}

fn path_text(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).ok_or_else(|| {
        Error::new(ErrorKind::Usage, format!("run a scratch server on {}", path.display()), "the path is not UTF-8")
    })
}
