//! The program that has the storage take a snapshot: its own process group, a time limit, and nothing of ours but the
//! database's name.

use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::pipeline::{Observer, pause};
use pagehaul_engine::secrets;

use crate::output::figures::duration;
use crate::progress::Console;

/// It is looked at so often.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Runs `program`, which has `limit` to do it; after that, or on a signal, it is killed with all that it started.
///
/// # Errors
/// `Target` if it cannot be started, fails or is too slow; `Interrupted`.
pub(super) fn make_snapshot(program: &Path, database: &str, limit: Duration, console: &Console) -> Result<()> {
    let action = format!("make a snapshot with {}", program.display());
    let failed = |cause: String| Error::new(ErrorKind::Target, action.clone(), cause);
    let mut child = start(program, database).map_err(|cause| {
        failed(cause.to_string()).hint("--snapshot-command names a program that can be run as it is")
    })?;
    let until = Instant::now() + limit;
    loop {
        match child.try_wait().map_err(|cause| failed(cause.to_string()))? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => {
                return Err(
                    failed(format!("it ended with {status}")).hint("what it said is above; the database goes on")
                );
            }
            None if console.interrupted() => {
                end(&mut child);
                return Err(Error::new(ErrorKind::Interrupted, action, "a signal asked to stop"));
            }
            None if Instant::now() > until => {
                end(&mut child);
                return Err(failed(format!("it took longer than {}", duration(limit.as_secs_f64())))
                    .hint("--freeze-limit gives it more; the database stands still meanwhile"));
            }
            None => pause(LOOK_EVERY),
        }
    }
}

fn start(program: &Path, database: &str) -> std::io::Result<Child> {
    // Standard output is for our own document.
    let said = std::io::stderr().as_fd().try_clone_to_owned()?;
    secrets::keep_from(&mut Command::new(program))
        .env("PAGEHAUL_DATABASE", database)
        .stdin(Stdio::null())
        .stdout(said)
        .process_group(0)
        .spawn()
}

/// Kills the program and what it started, as far as that stayed in its process group.
fn end(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).ok();
    }
    child.kill().and_then(|()| child.wait()).ok();
}
