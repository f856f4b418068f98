//! Plays PostgreSQL's archiver and recovering server: one command a segment, one after the other, through a shell, in
//! the data directory. A process of its own, so that what its commands leave running is counted too.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use clap::{Args, ValueEnum};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::setup::unwritable;

/// What is played.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// archive_command, with every segment ready from the start
    Burst,
    /// archive_command, with each segment ready when the one before is archived
    Singly,
    /// restore_command
    Get,
}

/// Options of the process.
#[derive(Args, Clone, Debug)]
pub(crate) struct ArchiverOptions {
    /// What to play
    pub(crate) part: Part,
    /// The data directory
    #[arg(long)]
    pub(crate) pgdata: PathBuf,
    /// The names of the segments, one a line, in order
    #[arg(long)]
    pub(crate) list: PathBuf,
    /// The command, with %p and %f
    #[arg(long)]
    pub(crate) command: String,
    /// Where segments that were fetched go
    #[arg(long)]
    pub(crate) fetched: Option<PathBuf>,
}

/// What it says.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Played {
    /// From the first command's start to the last one's end.
    pub(crate) elapsed_s: f64,
    /// Of each command, in order.
    pub(crate) latencies_ms: Vec<f64>,
}

/// The command for one segment, as PostgreSQL makes it.
fn command_for(template: &str, name: &str, path: &str) -> String {
    template.replace("%p", path).replace("%f", name)
}

/// Plays it and prints what came of it.
///
/// # Errors
/// `Configuration` with the words of a command that failed.
pub(crate) fn run(options: &ArchiverOptions) -> Result<()> {
    let text = std::fs::read_to_string(&options.list)
        .map_err(|cause| Error::new(ErrorKind::Configuration, "read the list of segments", cause))?;
    let names: Vec<&str> = text.lines().collect();
    let status = Status { directory: options.pgdata.join("pg_wal").join("archive_status") };
    adopt_orphans()?;
    if options.part == Part::Burst {
        names.iter().try_for_each(|name| status.make_ready(name))?;
    }
    let started = Instant::now();
    let mut played = Played::default();
    for name in &names {
        if options.part == Part::Singly {
            status.make_ready(name)?;
        }
        let begun = Instant::now();
        if options.part == Part::Get {
            run_one(options, name, "pg_wal/RECOVERYXLOG")?;
        } else {
            run_one(options, name, &format!("pg_wal/{name}"))?;
        }
        played.latencies_ms.push(begun.elapsed().as_secs_f64() * 1000.0);
        match &options.fetched {
            // As the server does: it takes what was fetched away at once.
            Some(fetched) => {
                let from = options.pgdata.join("pg_wal").join("RECOVERYXLOG");
                std::fs::rename(&from, fetched.join(name)).map_err(|cause| unwritable(&from, cause))?;
            }
            None => status.make_done(name)?,
        }
    }
    played.elapsed_s = started.elapsed().as_secs_f64();
    wait_for_orphans();
    let text = serde_json::to_string(&played).map_err(|cause| Error::new(ErrorKind::Bug, "write a report", cause))?;
    println!("{text}");
    Ok(())
}

fn run_one(options: &ArchiverOptions, name: &str, path: &str) -> Result<()> {
    let words = command_for(&options.command, name, path);
    let failed = |cause: String| Error::new(ErrorKind::Configuration, format!("run {words}"), cause);
    let mut shell = Command::new("sh");
    shell.args(["-c", &words]).current_dir(&options.pgdata).stdin(Stdio::null()).stdout(Stdio::null());
    let status = shell.status().map_err(|cause| failed(cause.to_string()))?;
    if status.success() { Ok(()) } else { Err(failed(status.to_string())) }
}

/// What the server notes of the archiver's work.
struct Status {
    directory: PathBuf,
}

impl Status {
    fn file(&self, name: &str, state: &str) -> PathBuf {
        self.directory.join(format!("{name}.{state}"))
    }

    fn make_ready(&self, name: &str) -> Result<()> {
        let file = self.file(name, "ready");
        std::fs::write(&file, b"").map_err(|cause| unwritable(&file, cause))
    }

    fn make_done(&self, name: &str) -> Result<()> {
        let file = self.file(name, "ready");
        std::fs::rename(&file, self.file(name, "done")).map_err(|cause| unwritable(&file, cause))
    }
}

/// What the commands leave running becomes ours, so that its CPU time is counted when it ends.
fn adopt_orphans() -> Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|cause| Error::new(ErrorKind::Configuration, "adopt what commands leave running", cause))
}

/// The helper ends when it was idle, the other tool's when its queue is empty.
fn wait_for_orphans() {
    while let Ok(Some(_)) = rustix::process::wait(rustix::process::WaitOptions::empty()) {}
}

/// The files of `names` in `fetched` must be those in `original`.
///
/// # Errors
/// `Damage`, naming the first that is not.
pub(crate) fn compare(names: &[String], original: &Path, fetched: &Path) -> Result<()> {
    for name in names {
        let read = |directory: &Path| std::fs::read(directory.join(name)).map_err(|cause| unwritable(directory, cause));
        if read(original)? != read(fetched)? {
            return Err(Error::new(ErrorKind::Damage, format!("compare {name}"), "other bytes came back"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_made_as_the_server_makes_them() {
        assert_eq!(command_for("cp %p /a/%f && true", "X", "pg_wal/X"), "cp pg_wal/X /a/X && true");
    }
}
