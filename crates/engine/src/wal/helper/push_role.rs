//! Archiving ahead: while the archiver asks for one file, all that is ready goes into the repository.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use super::ARCHIVE_STATUS;
use super::message::{Answer, ErrorText};
use super::push_desk::{HORIZON, PushDesk, PushJob, Slot};
use super::serve::{Client, HelperRole};
use super::stamp::FileStamp;
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::service::Board;

/// Where files go.
pub(super) trait PushArchive: Sync {
    /// Stores `files` with at most `encoders` threads; when it returns, each `Ok` is durable. One outcome a file.
    fn push(&self, files: &[PathBuf], encoders: u16) -> Result<Vec<Result<()>>>;
}

/// The role of a helper that archives.
pub(super) struct PushRole<'a> {
    archive: &'a dyn PushArchive,
    directory: PathBuf,
    workers: u16,
    encoders: u16,
    desk: Board<PushDesk>,
    /// Whether the last file that was asked for is stored, and nothing was in conflict since. Only then is anything pushed
    /// that nobody has asked for: a server that went another way than the one whose WAL is stored must not add to it what
    /// comes behind the conflict.
    agrees: AtomicBool,
}

impl<'a> PushRole<'a> {
    /// For the files of `directory`, by so many workers with so many encoders together.
    pub(super) fn new(archive: &'a dyn PushArchive, directory: &Path, workers: u16, encoders: u16) -> Self {
        let (directory, desk) = (directory.to_owned(), Board::default());
        PushRole { archive, directory, workers, encoders, desk, agrees: AtomicBool::new(false) }
    }

    fn stamp(&self, name: &str) -> Option<FileStamp> {
        FileStamp::of(&self.directory.join(name))
    }

    /// Has followers of a file that is done with already archived, if workers have time.
    fn go_on_behind(&self, name: &str) {
        let workers = usize::from(self.workers);
        if self.desk.change(|desk| desk.wants_more(workers)) {
            let ready = self.ready_behind(name);
            self.desk.change(|desk| desk.plan(None, name, &ready, workers, Instant::now()));
        }
    }

    /// What the server wants archived: histories, and the next files behind `name`. What cannot be read now is seen at
    /// the next question.
    fn ready_behind(&self, name: &str) -> Vec<String> {
        let mut ready = BTreeSet::new();
        if !self.agrees.load(SeqCst) {
            return Vec::new();
        }
        let entries = std::fs::read_dir(self.directory.join(ARCHIVE_STATUS)).into_iter().flatten().flatten();
        for entry in entries {
            let Ok(file) = entry.file_name().into_string() else { continue };
            let Some(file) = file.strip_suffix(".ready") else { continue };
            if super::is_plain_name(file) && (file > name || file.ends_with(".history")) {
                ready.insert(file.to_owned());
            }
            if ready.len() > 2 * HORIZON {
                ready.pop_last();
            }
        }
        ready.into_iter().collect()
    }

    fn run(&self, job: PushJob) {
        if job.slot.is_none() && !self.agrees.load(SeqCst) {
            self.desk.change(|desk| desk.settle(&job, &[], Instant::now()));
            return;
        }
        let asked = job.slot.is_some().then(|| job.names.first().cloned()).flatten();
        let mut held = Held { desk: &self.desk, job, durable: Vec::new(), answer: None };
        let names = &held.job.names;
        let files: Vec<PathBuf> = names.iter().map(|name| self.directory.join(name)).collect();
        let before: Vec<_> = names.iter().map(|name| self.stamp(name).filter(FileStamp::is_settled)).collect();
        let sharers = held.job.sharers.clamp(1, usize::from(self.workers)) as u16;
        let encoders = (self.encoders / sharers).max(1);
        let mut outcomes = self.archive.push(&files, encoders).unwrap_or_else(|error| vec![Err(error)]);
        if files.len() > 1 && outcomes.first().is_none_or(Result::is_err) {
            // Whatever it was, the others may be the reason.
            let alone = self.archive.push(&files[..1], self.encoders).map(|mut outcomes| outcomes.pop());
            outcomes.splice(..1.min(outcomes.len()), alone.unwrap_or_else(|error| Some(Err(error))));
        }
        for ((name, before), outcome) in names.iter().zip(before).zip(&outcomes) {
            if outcome.is_ok() {
                held.durable.push((name.clone(), before.filter(|before| self.stamp(name) == Some(*before))));
            }
        }
        let is_conflict =
            outcomes.iter().any(|outcome| outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Conflict));
        let is_stored = outcomes.first().is_some_and(Result::is_ok);
        if is_conflict || asked.is_some() {
            self.agrees.store(is_stored && !is_conflict, SeqCst);
        }
        held.answer = outcomes.into_iter().next().map(|outcome| match outcome {
            Ok(()) => Answer::Pushed,
            Err(error) => Answer::Failed(ErrorText::of(&error)),
        });
        drop(held);
        if let Some(asked) = asked {
            self.go_on_behind(&asked);
        }
    }
}

impl HelperRole for PushRole<'_> {
    fn answer(&self, name: &str, client: &mut Client) -> Option<Answer> {
        let workers = usize::from(self.workers);
        loop {
            client.wait(&self.desk, |desk| (!desk.is_in_flight(name)).then_some(()))?;
            let stamp = self.stamp(name);
            if self.desk.change(|desk| desk.is_durable(name, stamp, Instant::now())) {
                self.go_on_behind(name);
                return Some(Answer::Pushed);
            }
            let (slot, ready) = (Slot::default(), self.ready_behind(name));
            let asked = Some((name, slot.clone()));
            let plan = |desk: &mut PushDesk| {
                let now = Instant::now();
                // Another worker may have been done with it since.
                !desk.is_durable(name, stamp, now) && desk.plan(asked, name, &ready, workers, now)
            };
            if self.desk.change(plan) {
                return client.wait(&self.desk, |_| slot.take());
            }
        }
    }

    fn work(&self, patience: Duration) -> bool {
        let job = self.desk.wait(patience, PushDesk::next);
        job.map(|job| self.run(job)).is_some()
    }

    fn is_busy(&self) -> bool {
        self.desk.change(|desk| desk.is_busy())
    }

    fn end(&self) {
        self.desk.change(PushDesk::end);
    }
}

/// A job in a worker's hands, which is settled however that ends.
struct Held<'a> {
    desk: &'a Board<PushDesk>,
    job: PushJob,
    durable: Vec<(String, Option<FileStamp>)>,
    answer: Option<Answer>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let answer = self.answer.take().unwrap_or_else(|| {
            Answer::Failed(ErrorText::of(&Error::new(ErrorKind::Bug, "archive a file", "the helper's worker broke")))
        });
        self.desk.change(|desk| {
            desk.settle(&self.job, &self.durable, Instant::now());
            if let Some(slot) = &self.job.slot {
                slot.put(answer);
            }
        });
    }
}
