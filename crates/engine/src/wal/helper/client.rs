//! A command's side: one question to the helper, and the decision to work alone.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags};

use super::message::{Answer, Line, Question};
use super::place::HelperPlace;
use super::{HelperSettings, START_MAX};
use crate::error::{Error, ErrorKind, Result};
use crate::io;

/// What came of asking a helper.
#[derive(Debug)]
pub enum Heard<T> {
    /// Its answer, which is as good as one's own.
    Answer(Result<T>),
    /// There is no helper to be had, or it did not answer: why. Nothing is known, and the caller does the work.
    Alone(Error),
}

/// Starts a helper and waits until it can be asked.
pub type Start<'a> = &'a dyn Fn(&HelperSettings) -> Result<()>;

/// Has the helper archive the file `name` of its directory; the answer is good when that is durable in the repository.
pub fn push(settings: &HelperSettings, name: &str, start: Start<'_>) -> Heard<()> {
    HelperPlace::of(settings).map_or_else(Heard::Alone, |place| push_at(&place, name, &|| start(settings)))
}

/// Has the helper fetch the file `name` and makes it `destination`, which lies in the helper's directory; false if the
/// archive has no such file now.
pub fn get(settings: &HelperSettings, name: &str, destination: &Path, start: Start<'_>) -> Heard<bool> {
    let place = HelperPlace::of(settings);
    place.map_or_else(Heard::Alone, |place| get_at(&place, name, destination, &|| start(settings)))
}

pub(super) fn push_at(place: &HelperPlace, name: &str, start: &dyn Fn() -> Result<()>) -> Heard<()> {
    match ask(place, name, start) {
        Ok((Answer::Pushed, _)) => Heard::Answer(Ok(())),
        other => not_done(other),
    }
}

pub(super) fn get_at(
    place: &HelperPlace,
    name: &str,
    destination: &Path,
    start: &dyn Fn() -> Result<()>,
) -> Heard<bool> {
    match ask(place, name, start) {
        // The line is closed when the file was taken: until then the helper keeps it.
        Ok((Answer::Fetched(file), _line)) => match take(&file, destination) {
            Ok(()) => Heard::Answer(Ok(true)),
            Err(error) => Heard::Alone(error),
        },
        Ok((Answer::NotThere, _)) => Heard::Answer(Ok(false)),
        other => not_done(other),
    }
}

/// What is left: an error that is as good as one's own, a helper that broke and so knows nothing, or no answer at all.
fn not_done<T>(asked: Result<(Answer, Line)>) -> Heard<T> {
    match asked {
        Ok((Answer::Failed(text), _)) => match text.into_error() {
            error if error.kind() == ErrorKind::Bug => Heard::Alone(error),
            error => Heard::Answer(Err(error)),
        },
        Ok((answer, _)) => Heard::Alone(unexpected(&answer)),
        Err(error) => Heard::Alone(error),
    }
}

/// The file is whole and synced; now its name is.
fn take(file: &Path, destination: &Path) -> Result<()> {
    let renamed = io::rename_over(file, destination).and_then(|()| io::sync_parent(destination));
    renamed.map_err(|cause| Error::new(ErrorKind::Target, format!("rename {}", file.display()), cause))
}

fn unexpected(answer: &Answer) -> Error {
    Error::new(ErrorKind::Configuration, "understand the helper", format!("{answer:?} is no answer to this question"))
}

fn ask(place: &HelperPlace, name: &str, start: &dyn Fn() -> Result<()>) -> Result<(Answer, Line)> {
    let connect = || UnixStream::connect(&place.socket);
    let stream = match connect() {
        Ok(stream) => stream,
        Err(_) => {
            start()?;
            connect().map_err(|cause| Error::new(ErrorKind::Configuration, "connect to the helper", cause))?
        }
    };
    let mut line = Line::new(stream)?;
    line.send(&Question { name: name.to_owned() })?;
    Ok((line.receive()?, line))
}

/// Starts this very program as a helper: `pagehaul wal serve`, told its settings through a pipe.
///
/// # Errors
/// `Configuration` if it does not come in time.
pub fn start_program(settings: &HelperSettings) -> Result<()> {
    let failed = |cause: &dyn std::fmt::Display| Error::new(ErrorKind::Configuration, "start a helper", cause);
    keep_own_files();
    let settings = serde_json::to_vec(settings).map_err(|cause| failed(&cause))?;
    // The file that runs now, even if another one has taken its name.
    let mut helper = Command::new("/proc/self/exe");
    helper.arg0("pagehaul").args(["wal", "serve"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut helper = helper.spawn().map_err(|cause| failed(&cause))?;
    let (Some(mut input), Some(output)) = (helper.stdin.take(), helper.stdout.take()) else {
        return Err(failed(&"it has no pipes"));
    };
    input.write_all(&settings).map_err(|cause| failed(&cause))?;
    drop(input);
    // Its whole output is one line, so that a byte is enough; its end without one means that it gave up.
    let mut events = [PollFd::from_borrowed_fd(output.as_fd(), PollFlags::IN)];
    let patience = Timespec { tv_sec: START_MAX.as_secs() as i64, tv_nsec: 0 };
    match poll(&mut events, Some(&patience)) {
        Ok(0) => Err(failed(&format!("it is not ready after {} s", START_MAX.as_secs()))),
        Ok(_) if events[0].revents().contains(PollFlags::IN) => Ok(()),
        Ok(_) => Err(failed(&"it ended at once")),
        Err(cause) => Err(failed(&cause)),
    }
}

/// Has files that our parent left open closed in programs that we start: the helper outlives a server whose pipe or
/// socket that may be.
fn keep_own_files() {
    for entry in std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        let number = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        if let Some(number) = number.filter(|number| *number > 2) {
            close_in_children(number);
        }
    }
}

fn close_in_children(number: i32) {
    // SAFETY: the number is not negative, and the borrow ends with this call, which neither closes nor reads it; a
    // number that is no open file any more (the one the list itself was read by) is an error that is of no interest.
    let file = unsafe { BorrowedFd::borrow_raw(number) };
    match rustix::io::fcntl_getfd(file) {
        Ok(flags) => rustix::io::fcntl_setfd(file, flags | FdFlags::CLOEXEC).ok(),
        Err(Errno::BADF) | Err(_) => None,
    };
}
