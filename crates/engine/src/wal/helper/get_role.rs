//! Fetching ahead: while recovery replays one segment, the next ones are decoded beside it.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::get_desk::{FetchJob, Found, GetDesk};
use super::message::{Answer, ErrorText};
use super::push_desk::{Slot, is_segment};
use super::serve::{Client, HelperRole};
use crate::error::{Error, ErrorKind, Result};
use crate::io;
use crate::limits::MIB;
use crate::pipeline::service::Board;

/// Where fetched files wait, below the server's `pg_wal`.
pub(in crate::wal) const PREFETCH_DIRECTORY: &str = "pagehaul-prefetch";
/// The look-ahead leaves this much of the disk to the server.
const DISK_LEFT_BYTES: u64 = 1024 * MIB;

/// Where files come from.
pub(super) trait GetArchive: Sync {
    /// Writes the file `name` to `to`, checked and durable, with at most `decoders` threads.
    fn get(&self, name: &str, to: &Path, decoders: u16) -> Result<Got>;
}

/// What the archive has of a file now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Got {
    /// All of it.
    Whole,
    /// The beginning of a segment that is still being streamed, and zeros.
    Unfinished,
    /// Nothing.
    NotThere,
}

/// The role of a helper that fetches.
pub(super) struct GetRole<'a> {
    archive: &'a dyn GetArchive,
    directory: PathBuf,
    decoders: u16,
    desk: Board<GetDesk>,
    count: AtomicU64,
}

impl<'a> GetRole<'a> {
    /// For the server whose WAL is in `wal_directory`; removes what a dead helper left there.
    ///
    /// # Errors
    /// `Target` if there is something of another kind in its place.
    pub(super) fn new(archive: &'a dyn GetArchive, wal_directory: &Path, decoders: u16) -> Result<Self> {
        let directory = wal_directory.join(PREFETCH_DIRECTORY);
        let role = GetRole { archive, directory, decoders, desk: Board::default(), count: AtomicU64::new(0) };
        role.remove_leftovers()?;
        Ok(role)
    }

    fn remove_leftovers(&self) -> Result<()> {
        match std::fs::symlink_metadata(&self.directory) {
            Ok(found) if found.is_dir() => {
                for entry in std::fs::read_dir(&self.directory).into_iter().flatten().flatten() {
                    // What cannot be removed costs space and nothing else.
                    std::fs::remove_file(entry.path()).ok();
                }
                Ok(())
            }
            Ok(_) => Err(self.refused(&"it is no directory")),
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(cause) => Err(self.refused(&cause)),
        }
    }

    fn refused(&self, cause: &dyn std::fmt::Display) -> Error {
        Error::new(ErrorKind::Target, format!("fetch ahead into {}", self.directory.display()), cause)
    }

    fn make_directory(&self) -> Result<()> {
        match std::fs::DirBuilder::new().mode(0o700).create(&self.directory) {
            Err(cause) if cause.kind() != std::io::ErrorKind::AlreadyExists => Err(self.refused(&cause)),
            _ => Ok(()),
        }
    }

    fn fetch(&self, job: &FetchJob) -> Result<Answer> {
        self.make_directory()?;
        // A name of its own: nobody ever writes a file that somebody was told of.
        let number = self.count.fetch_add(1, Relaxed);
        let file = self.directory.join(format!("{}.{}-{number}", job.name, std::process::id()));
        let decoders = if job.slot.is_some() { self.decoders } else { 1 };
        match self.archive.get(&job.name, &file, decoders)? {
            Got::Whole => Ok(Answer::Fetched(file)),
            Got::Unfinished if job.slot.is_some() => Ok(Answer::Fetched(file)),
            // There will be more of it by the time that it is asked for.
            Got::Unfinished => {
                remove_files(&[file]);
                Ok(Answer::NotThere)
            }
            Got::NotThere => Ok(Answer::NotThere),
        }
    }

    /// Plans what is fetched next, now that `file` is about to be delivered.
    fn look_ahead(&self, name: &str, file: &Path, waited: bool) {
        let Ok(size_bytes) = std::fs::metadata(file).map(|found| found.len()) else { return };
        let room_bytes = io::free_bytes(&self.directory).unwrap_or(0).saturating_sub(DISK_LEFT_BYTES);
        let dropped = self.desk.change(|desk| desk.plan(name, size_bytes, waited, room_bytes));
        remove_files(&dropped);
    }
}

fn remove_files(files: &[PathBuf]) {
    for file in files {
        // What cannot be removed now is removed by the next helper.
        std::fs::remove_file(file).ok();
    }
}

impl HelperRole for GetRole<'_> {
    fn answer(&self, name: &str, client: &mut Client) -> Option<Answer> {
        let slot = Slot::default();
        let mut waited = false;
        let file = loop {
            let found = self.desk.change(|desk| desk.ask(name, &slot));
            let found = match found {
                Some(found) => found,
                None => {
                    waited = true;
                    client.wait(&self.desk, |desk| desk.ask(name, &slot))?
                }
            };
            match found {
                // Somebody may have emptied the directory meanwhile: then it is fetched like any other.
                Found::Ready(file) if file.exists() => break file,
                Found::Ready(_) => {}
                Found::Asked => {
                    waited = true;
                    match client.wait(&self.desk, |_| slot.take())? {
                        Answer::Fetched(file) => break file,
                        answer => return Some(answer),
                    }
                }
            }
        };
        if is_segment(name) {
            self.look_ahead(name, &file, waited);
        }
        Some(Answer::Fetched(file))
    }

    /// A file that its client did not take is of no use: the next question is for another.
    fn client_left(&self, answer: &Answer) {
        if let Answer::Fetched(file) = answer {
            remove_files(std::slice::from_ref(file));
        }
    }

    fn work(&self, patience: Duration) -> bool {
        let Some(job) = self.desk.wait(patience, GetDesk::next) else { return false };
        let mut held = Held { desk: &self.desk, job, answer: None };
        let answer = self.fetch(&held.job).unwrap_or_else(|error| Answer::Failed(ErrorText::of(&error)));
        held.answer = Some(answer);
        true
    }

    fn is_busy(&self) -> bool {
        self.desk.change(|desk| desk.is_busy())
    }

    fn end(&self) {
        self.desk.change(GetDesk::end);
    }
}

impl Drop for GetRole<'_> {
    fn drop(&mut self) {
        self.remove_leftovers().ok();
        // Another helper may use it too.
        std::fs::remove_dir(&self.directory).ok();
    }
}

/// A job in a worker's hands, which is settled however that ends.
struct Held<'a> {
    desk: &'a Board<GetDesk>,
    job: FetchJob,
    answer: Option<Answer>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let answer = self.answer.take().unwrap_or_else(|| {
            Answer::Failed(ErrorText::of(&Error::new(ErrorKind::Bug, "fetch a file", "the helper's worker broke")))
        });
        let unused = self.desk.change(|desk| desk.settle(&self.job, answer));
        remove_files(unused.as_slice());
    }
}
