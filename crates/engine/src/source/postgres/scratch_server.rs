//! A server of our own, on a data directory of our own, that nobody else can reach: for demo, prove and the tests.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::client::Connection;
use super::conninfo::ConnectSettings;
use super::os_owner::OsOwner;
use super::pg_install::PgInstall;
use super::tls_settings::TlsSettings;
use crate::error::{Error, ErrorKind, Result};
use crate::secrets;
use crate::source::keepalive::Keepalive;

/// Part of the socket's name; no TCP port is opened.
const SOCKET_PORT: u16 = 5432;
/// The superuser of clusters made here.
const SUPERUSER: &str = "postgres";
/// How long pg_ctl waits; replay of much WAL takes its time.
const START_TIMEOUT_S: u32 = 600;
/// How much of the server's log an error quotes.
const LOG_TAIL_LINES: usize = 12;

/// How a scratch cluster is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitOptions {
    /// Whether pages get checksums.
    pub checksums: bool,
    /// Size of a WAL segment in MiB; the server's default (16) if none.
    pub wal_segment_size_mib: Option<u32>,
    /// Further arguments of initdb.
    pub extra_arguments: Vec<String>,
}

impl Default for InitOptions {
    fn default() -> Self {
        InitOptions { checksums: true, wal_segment_size_mib: None, extra_arguments: Vec::new() }
    }
}

/// How a server is stopped, as pg_ctl calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// Waits for clients to leave.
    Smart,
    /// Ends sessions, writes a checkpoint.
    Fast,
    /// As if it had crashed.
    Immediate,
}

/// A data directory and, while started, the server on it; dropping it stops the server.
#[derive(Debug)]
pub struct ScratchServer {
    install: PgInstall,
    owner: OsOwner,
    data_directory: PathBuf,
    /// Private directory of the socket and the server's log; short, because socket paths are limited to 107 bytes.
    socket_directory: PathBuf,
    superuser: String,
    hides_secrets: bool,
    is_running: bool,
}

impl ScratchServer {
    /// Makes a cluster in `data_directory`, which must not exist yet or be empty; does not start it.
    ///
    /// # Errors
    /// `Configuration` when no server may run here, `Target` with initdb's words when it fails.
    pub fn init(install: &PgInstall, data_directory: &Path, options: &InitOptions) -> Result<Self> {
        let owner = OsOwner::find()?;
        if let Err(cause) = std::fs::DirBuilder::new().mode(0o700).create(data_directory)
            && cause.kind() != std::io::ErrorKind::AlreadyExists
        {
            return Err(Error::new(ErrorKind::Target, format!("create {}", data_directory.display()), cause));
        }
        let server = Self::adopt(install, data_directory)?;
        owner.take_over(data_directory)?;
        let mut arguments = vec![
            "--auth=trust".to_owned(),
            format!("--username={SUPERUSER}"),
            "--encoding=UTF8".into(),
            "--locale=C".into(),
            "--no-sync".into(),
        ];
        match (options.checksums, install.major()) {
            (true, _) => arguments.push("--data-checksums".into()),
            // From 18 on checksums are the default.
            (false, 18..) => arguments.push("--no-data-checksums".into()),
            (false, _) => {}
        }
        arguments.extend(options.wal_segment_size_mib.map(|size| format!("--wal-segsize={size}")));
        arguments.extend_from_slice(&options.extra_arguments);
        arguments.extend(["-D".to_owned(), path_text(data_directory)?]);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        server.run_checked("initdb", &arguments, "make a scratch cluster")?;
        Ok(server)
    }

    /// Takes an existing data directory, a restored one say; does not start it and does not touch its files.
    ///
    /// # Errors
    /// `Configuration` when no server may run here, `Target` when no private directory can be made.
    pub fn adopt(install: &PgInstall, data_directory: &Path) -> Result<Self> {
        let owner = OsOwner::find()?;
        let socket_directory = make_private_directory()?;
        let server = ScratchServer {
            install: install.clone(),
            owner,
            data_directory: data_directory.to_owned(),
            socket_directory,
            superuser: SUPERUSER.to_owned(),
            hides_secrets: false,
            is_running: false,
        };
        owner.take_over(&server.socket_directory)?;
        Ok(server)
    }

    /// Its programs do not get the secrets of our environment: for a server that neither archives nor restores anything.
    #[must_use]
    pub fn without_secrets(mut self) -> Self {
        self.hides_secrets = true;
        self
    }

    /// Logs in as `superuser` instead of `postgres`.
    #[must_use]
    pub fn with_superuser(mut self, superuser: &str) -> Self {
        superuser.clone_into(&mut self.superuser);
        self
    }

    /// Gives the data directory and all below it to the OS user who will run the server; nothing unless we are root.
    ///
    /// # Errors
    /// `Target` naming the path.
    pub fn take_over_data_directory(&self) -> Result<()> {
        self.owner.take_over_tree(&self.data_directory)
    }

    /// Starts the server with `settings` on its command line and waits until it accepts connections.
    ///
    /// # Errors
    /// `Target` with the end of the server's log when it does not start.
    pub fn start(&mut self, settings: &[(&str, &str)]) -> Result<()> {
        let socket_directory = path_text(&self.socket_directory)?;
        let port = SOCKET_PORT.to_string();
        let fixed = [
            ("listen_addresses", ""),
            ("unix_socket_directories", socket_directory.as_str()),
            ("port", port.as_str()),
            ("logging_collector", "off"),
        ];
        let options: Vec<String> = settings
            .iter()
            .chain(&fixed)
            .map(|(name, value)| format!("-c {}", shell_quote(&format!("{name}={value}"))))
            .collect();
        let (options, log, timeout) = (options.join(" "), path_text(&self.log_path())?, START_TIMEOUT_S.to_string());
        let data_directory = path_text(&self.data_directory)?;
        let arguments = ["start", "-w", "-s", "-t", &timeout, "-D", &data_directory, "-l", &log, "-o", &options];
        // A failed start may leave a server behind that is still replaying: stop it on drop as well.
        self.is_running = true;
        self.run_checked("pg_ctl", &arguments, "start the scratch server").map(drop)
    }

    /// Stops the server and waits until it is gone.
    ///
    /// # Errors
    /// `Target` with pg_ctl's words.
    pub fn stop(&mut self, mode: StopMode) -> Result<()> {
        let mode = match mode {
            StopMode::Smart => "smart",
            StopMode::Fast => "fast",
            StopMode::Immediate => "immediate",
        };
        let data_directory = path_text(&self.data_directory)?;
        self.run_checked(
            "pg_ctl",
            &["stop", "-w", "-s", "-D", &data_directory, "-m", mode],
            "stop the scratch server",
        )?;
        self.is_running = false;
        Ok(())
    }

    /// Kills the server and all its processes with SIGKILL, as a power failure would, and waits until they are gone.
    ///
    /// # Errors
    /// `Target` when it is not running.
    pub fn kill9(&mut self) -> Result<()> {
        let failed = |cause: &dyn std::fmt::Display| Error::new(ErrorKind::Target, "kill the scratch server", cause);
        let pid_file = self.data_directory.join("postmaster.pid");
        let text = std::fs::read_to_string(&pid_file).map_err(|cause| failed(&cause))?;
        let postmaster: i32 = text
            .lines()
            .next()
            .and_then(|line| line.trim().parse().ok())
            .ok_or_else(|| failed(&"postmaster.pid has no process id"))?;
        kill_all_of(postmaster).map_err(|cause| failed(&cause))?;
        // Under an init that does not collect dead processes the next start would take the zombie for a live server.
        let socket_lock = self.socket_directory.join(format!(".s.PGSQL.{SOCKET_PORT}.lock"));
        for lock_file in [pid_file, socket_lock] {
            std::fs::remove_file(lock_file).map_err(|cause| failed(&cause))?;
        }
        self.is_running = false;
        Ok(())
    }

    /// A session as superuser.
    ///
    /// # Errors
    /// As [`Connection::connect`].
    pub fn connect(&self) -> Result<Connection> {
        Connection::connect(&self.connect_settings())
    }

    /// How to connect as superuser.
    pub fn connect_settings(&self) -> ConnectSettings {
        ConnectSettings {
            host: self.socket_directory.display().to_string(),
            port: SOCKET_PORT,
            user: self.superuser.clone(),
            database: "postgres".into(),
            password: None,
            tls: TlsSettings::off(),
            connect_timeout_s: 10,
            keepalive: Keepalive::default(),
        }
    }

    /// Runs a program of this install (pg_amcheck, pgbench, ...) against this server and returns what it said.
    ///
    /// # Errors
    /// `Configuration` when the program is not there; its own failure is in the returned status.
    pub fn run_tool(&self, name: &str, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(self.install.bin_directory().join(name));
        // Settings of our caller's environment must not lead elsewhere.
        let inherited: Vec<_> =
            std::env::vars_os().map(|(name, _)| name).filter(|name| name.to_string_lossy().starts_with("PG")).collect();
        for name in inherited {
            command.env_remove(name);
        }
        if self.hides_secrets {
            secrets::keep_from(&mut command);
        }
        command
            .args(arguments)
            .env("PGHOST", &self.socket_directory)
            .env("PGPORT", SOCKET_PORT.to_string())
            .env("PGUSER", &self.superuser)
            .env("PGDATABASE", "postgres")
            .env("LC_ALL", "C")
            .current_dir("/")
            .stdin(Stdio::null());
        self.owner.apply(&mut command);
        command.output().map_err(|cause| {
            let program = self.install.bin_directory().join(name);
            Error::new(ErrorKind::Configuration, format!("run {}", program.display()), cause)
        })
    }

    /// The data directory.
    pub fn data_directory(&self) -> &Path {
        &self.data_directory
    }

    /// The programs it runs with.
    pub fn install(&self) -> &PgInstall {
        &self.install
    }

    /// The end of the server's log.
    pub fn log_tail(&self) -> String {
        let log = std::fs::read(self.log_path()).unwrap_or_default();
        let text = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }

    fn log_path(&self) -> PathBuf {
        self.socket_directory.join("log")
    }

    fn run_checked(&self, program: &str, arguments: &[&str], action: &str) -> Result<Output> {
        let output = self.run_tool(program, arguments)?;
        if output.status.success() {
            return Ok(output);
        }
        let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let log = self.log_tail();
        let log = if log.is_empty() { log } else { format!("\nend of the server's log:\n{log}") };
        Err(Error::new(ErrorKind::Target, action, format!("{program}: {words}{log}")))
    }
}

impl Drop for ScratchServer {
    fn drop(&mut self) {
        if self.is_running {
            self.stop(StopMode::Immediate).ok();
        }
        std::fs::remove_dir_all(&self.socket_directory).ok();
    }
}

/// A new directory for nobody but us, with a path short enough for a socket.
fn make_private_directory() -> Result<PathBuf> {
    let failed = |cause: &dyn std::fmt::Display| {
        Error::new(ErrorKind::Target, "make a private directory for a server's socket", cause)
    };
    let mut random = [0u8; 6];
    getrandom::fill(&mut random).map_err(|cause| failed(&cause))?;
    let name: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    // Not TMPDIR: its path may be too long.
    let path = Path::new("/tmp").join(format!("pagehaul-{name}"));
    std::fs::DirBuilder::new().mode(0o700).create(&path).map_err(|cause| failed(&cause))?;
    Ok(path)
}

/// SIGKILL for a postmaster and its processes; waits until they are gone.
pub(super) fn kill_all_of(postmaster: i32) -> std::result::Result<(), rustix::io::Errno> {
    // Listed before the first kill: once the postmaster is gone they have another parent.
    let mut processes = vec![postmaster];
    processes.extend(children_of(postmaster));
    processes.into_iter().try_for_each(kill_and_wait)
}

/// Ids of the processes whose parent is `parent`.
fn children_of(parent: i32) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| parent_of(*pid) == Some(parent)).collect()
}

/// The fourth field of /proc/PID/stat; the second, a name in parentheses, may hold anything.
fn parent_of(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// SIGKILL, then waits for the end through a pidfd, which cannot mean another process of the same number.
fn kill_and_wait(pid: i32) -> std::result::Result<(), rustix::io::Errno> {
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
    let Some(pid) = Pid::from_raw(pid) else { return Ok(()) };
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => process,
        // Gone already.
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    match pidfd_send_signal(&process, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(errno) => return Err(errno),
    }
    let mut events = [PollFd::new(&process, PollFlags::IN)];
    while let Err(rustix::io::Errno::INTR) = poll(&mut events, None) {}
    Ok(())
}

/// pg_ctl hands its `-o` to a shell.
fn shell_quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn path_text(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).ok_or_else(|| {
        Error::new(ErrorKind::Usage, format!("run a scratch server on {}", path.display()), "the path is not UTF-8")
    })
}
