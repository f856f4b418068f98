//! What the helper knows of files to archive: what is in whose hands, what is durable, what failed. No I/O.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::message::Answer;
use super::stamp::FileStamp;

/// Segments of one bundle that was not asked for as such.
pub(super) const BUNDLE_SEGMENTS_MAX: usize = 32;
/// So far behind a question the helper looks for more; what it remembers covers that with room.
pub(super) const HORIZON: usize = 1024;
/// Files remembered as durable.
const REMEMBERED_MAX: usize = 4096;
/// After so long the repository is asked again, whatever is remembered.
const REMEMBERED_FOR: Duration = Duration::from_secs(300);
/// A file that failed takes part in nothing but its own question for so long.
const SHUNNED_FOR: Duration = Duration::from_secs(60);

/// Where a client finds its answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Slot(Arc<Mutex<Option<Answer>>>);

impl Slot {
    pub(super) fn put(&self, answer: Answer) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
    }

    pub(super) fn take(&self) -> Option<Answer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether its client has left.
    pub(super) fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

/// One call of `push`.
#[derive(Debug)]
pub(super) struct PushJob {
    /// Names, in order; the slot waits for the first.
    pub(super) names: Vec<String>,
    pub(super) slot: Option<Slot>,
    /// Jobs that share the machine with it, itself included.
    pub(super) sharers: usize,
}

impl PushJob {
    fn new(name: &str, slot: Option<Slot>) -> Self {
        PushJob { names: vec![name.to_owned()], slot, sharers: 1 }
    }
}

#[derive(Debug)]
struct Remembered {
    stamp: FileStamp,
    since: Instant,
}

/// The state behind the role.
#[derive(Debug, Default)]
pub(super) struct PushDesk {
    queue: VecDeque<PushJob>,
    in_flight: BTreeSet<String>,
    running: usize,
    durable: BTreeMap<String, Remembered>,
    shunned: BTreeMap<String, Instant>,
    is_ending: bool,
}

impl PushDesk {
    /// Whether somebody has the file in hand.
    pub(super) fn is_in_flight(&self, name: &str) -> bool {
        self.in_flight.contains(name)
    }

    /// Whether the file is known to be durable as it is now.
    pub(super) fn is_durable(&self, name: &str, stamp: Option<FileStamp>, now: Instant) -> bool {
        self.durable.get(name).is_some_and(|known| {
            Some(known.stamp) == stamp && now.saturating_duration_since(known.since) < REMEMBERED_FOR
        })
    }

    /// Whether workers would have nothing to do next.
    pub(super) fn wants_more(&self, workers: usize) -> bool {
        !self.is_ending && self.queue.is_empty() && self.running < workers
    }

    /// Plans work: the file that a client waits for, if any, and what else is `ready`, cut for `workers`. False if the
    /// file has got into somebody's hands meanwhile; then nothing is planned.
    pub(super) fn plan(
        &mut self,
        asked: Option<(&str, Slot)>,
        behind: &str,
        ready: &[String],
        workers: usize,
        now: Instant,
    ) -> bool {
        if asked.as_ref().is_some_and(|(name, _)| self.is_in_flight(name)) {
            return false;
        }
        self.shunned.retain(|_, since| now.saturating_duration_since(*since) < SHUNNED_FOR);
        let is_free = |name: &&String| {
            !(self.is_in_flight(name) || self.durable.contains_key(*name) || self.shunned.contains_key(*name))
        };
        let mut jobs: Vec<PushJob> = Vec::new();
        if !self.is_ending {
            let asked = asked.as_ref().map(|(name, _)| *name);
            let histories = ready.iter().filter(|name| name.ends_with(".history") && Some(name.as_str()) != asked);
            let histories = histories.filter(is_free).map(|name| PushJob::new(name, None));
            jobs.extend(histories);
        }
        let mut followers: Vec<&String> = Vec::new();
        if !self.is_ending && is_segment(behind) {
            let is_later = |name: &&String| is_segment(name) && name[..8] == behind[..8] && name.as_str() > behind;
            followers = ready.iter().filter(is_later).collect();
            followers.sort_unstable();
            followers.truncate(HORIZON);
            followers.retain(is_free);
        }
        jobs.extend(cut(asked, &followers, workers));
        for job in jobs {
            self.in_flight.extend(job.names.iter().cloned());
            self.queue.push_back(job);
        }
        true
    }

    /// The next job, for a worker who will call [`PushDesk::settle`].
    pub(super) fn next(&mut self) -> Option<PushJob> {
        let mut job = self.queue.pop_front()?;
        self.running += 1;
        job.sharers = self.running + self.queue.len();
        Some(job)
    }

    /// A job was done: `durable` are the names that are durable, with their stamps if these may be remembered.
    pub(super) fn settle(&mut self, job: &PushJob, durable: &[(String, Option<FileStamp>)], now: Instant) {
        self.running -= 1;
        for name in &job.names {
            self.in_flight.remove(name);
            match durable.iter().find(|(done, _)| done == name) {
                Some((_, stamp)) => {
                    self.shunned.remove(name);
                    self.remember(name, *stamp, now);
                }
                None => {
                    self.shunned.insert(name.clone(), now);
                }
            }
        }
        while self.shunned.len() > REMEMBERED_MAX {
            self.shunned.pop_first();
        }
    }

    fn remember(&mut self, name: &str, stamp: Option<FileStamp>, now: Instant) {
        match stamp {
            Some(stamp) => self.durable.insert(name.to_owned(), Remembered { stamp, since: now }),
            None => self.durable.remove(name),
        };
        // The archiver asks in the order of names, so the first is the one that it asked for already.
        while self.durable.len() > REMEMBERED_MAX {
            self.durable.pop_first();
        }
    }

    /// Whether there is work.
    pub(super) fn is_busy(&self) -> bool {
        self.running > 0 || !self.queue.is_empty()
    }

    /// Drops what nobody waits for, for good.
    pub(super) fn end(&mut self) {
        self.is_ending = true;
        let (asked, ahead): (VecDeque<_>, VecDeque<_>) = self.queue.drain(..).partition(|job| job.slot.is_some());
        self.queue = asked;
        for name in ahead.iter().flat_map(|job| &job.names) {
            self.in_flight.remove(name);
        }
    }
}

/// Whether it is the name of a whole segment.
pub(super) fn is_segment(name: &str) -> bool {
    name.len() == 24 && name.bytes().all(|byte| byte.is_ascii_digit() || (b'A'..=b'F').contains(&byte))
}

/// Cuts what is asked and its followers into jobs of consecutive segments of one log id, so many that all workers have
/// one, the file that is asked first of all.
fn cut(asked: Option<(&str, Slot)>, followers: &[&String], workers: usize) -> Vec<PushJob> {
    let backlog = followers.len() + usize::from(asked.is_some());
    let share = backlog.div_ceil(workers.max(1)).clamp(1, BUNDLE_SEGMENTS_MAX);
    let mut jobs = Vec::new();
    if let Some((name, slot)) = asked {
        jobs.push(PushJob::new(name, Some(slot)));
    }
    for name in followers {
        let open = jobs.last_mut().map(|job| &mut job.names);
        if let Some(names) =
            open.filter(|names| names.len() < share && names.last().is_some_and(|last| follows(last, name)))
        {
            names.push((*name).clone());
        } else if jobs.len() < 2 * workers.max(1) {
            jobs.push(PushJob::new(name, None));
        } else {
            // More than a round ahead is left to the next question: by then the backlog is another one.
            break;
        }
    }
    jobs
}

/// Whether `next` is the segment behind `last` in the same log id.
fn follows(last: &str, next: &str) -> bool {
    let index = |name: &str| u32::from_str_radix(name.get(16..)?, 16).ok();
    is_segment(last)
        && last[..16] == next[..16]
        && index(last).zip(index(next)).is_some_and(|(last, next)| last.checked_add(1) == Some(next))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(log: u32, index: u32) -> String {
        format!("{:08X}{log:08X}{index:08X}", 1)
    }

    fn names(jobs: &VecDeque<PushJob>) -> Vec<(usize, String)> {
        jobs.iter().map(|job| (job.names.len(), job.names[0].clone())).collect()
    }

    fn stamp_of(text: &str) -> FileStamp {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        FileStamp::of(file.path()).unwrap()
    }

    /// A desk that was asked for the first of `ready`.
    fn asked(ready: &[String], workers: usize) -> (PushDesk, Slot) {
        let (mut desk, slot) = (PushDesk::default(), Slot::default());
        assert!(desk.plan(Some((&ready[0], slot.clone())), &ready[0], ready, workers, Instant::now()));
        (desk, slot)
    }

    #[test]
    fn a_lone_segment_goes_alone_and_a_backlog_is_shared_by_all_workers() {
        for (backlog, workers, expected) in [
            (1u32, 2, vec![1usize]),
            (2, 2, vec![1, 1]),
            (5, 2, vec![3, 2]),
            (64, 2, vec![32, 32]),
            (200, 2, vec![32, 32, 32, 32]),
            (9, 4, vec![3, 3, 3]),
        ] {
            let ready: Vec<String> = (0..backlog).map(|index| segment(0, index)).collect();
            let (desk, _) = asked(&ready, workers);
            let sizes: Vec<usize> = names(&desk.queue).iter().map(|(size, _)| *size).collect();
            assert_eq!(sizes, expected, "{backlog} segments");
            assert_eq!(desk.queue[0].names[0], ready[0]);
            assert!(desk.queue[0].slot.is_some() && desk.queue.iter().skip(1).all(|job| job.slot.is_none()));
        }
    }

    #[test]
    fn a_bundle_ends_at_a_gap_and_at_a_log_id() {
        let ready = [segment(0, 253), segment(0, 254), segment(0, 255), segment(1, 0), segment(1, 2), segment(1, 3)];
        let (desk, _) = asked(&ready, 1);
        assert_eq!(names(&desk.queue), [(3, segment(0, 253)), (1, segment(1, 0))], "two jobs for one worker");
        let (desk, _) = asked(&ready, 2);
        assert_eq!(
            names(&desk.queue),
            [(3, segment(0, 253)), (1, segment(1, 0)), (2, segment(1, 2))],
            "what is not consecutive is in bundles of its own"
        );
    }

    #[test]
    fn histories_go_first_and_only_later_segments_of_the_timeline_follow() {
        let other_timeline = format!("{:08X}{:016X}", 2, 9);
        let partial = segment(0, 6) + ".partial";
        let ready =
            [segment(0, 5), segment(0, 1), segment(0, 6), "00000002.history".to_owned(), other_timeline, partial];
        let (desk, _) = asked(&ready, 2);
        assert_eq!(names(&desk.queue), [(1, "00000002.history".to_owned()), (1, segment(0, 5)), (1, segment(0, 6))]);
        let (desk, slot) = asked(&["00000002.history".to_owned(), segment(0, 5)], 2);
        assert_eq!(names(&desk.queue), [(1, "00000002.history".to_owned())], "nothing follows what is no segment");
        desk.queue[0].slot.as_ref().unwrap().put(Answer::Pushed);
        assert_eq!(slot.take(), Some(Answer::Pushed));
    }

    #[test]
    fn nothing_is_in_two_hands() {
        let ready: Vec<String> = (0..4).map(|index| segment(0, index)).collect();
        let (mut desk, _) = asked(&ready, 2);
        let now = Instant::now();
        assert!(desk.is_in_flight(&ready[3]));
        assert!(!desk.plan(Some((&ready[3], Slot::default())), &ready[3], &ready, 2, now), "it is in hand");
        assert!(desk.plan(None, &ready[0], &ready, 2, now));
        assert_eq!(desk.queue.len(), 2, "nothing was planned twice");
        let job = desk.next().unwrap();
        assert!(desk.is_busy() && !desk.wants_more(2), "the queue is not empty");
        let durable: Vec<_> = job.names.iter().map(|name| (name.clone(), Some(stamp_of("x")))).collect();
        desk.settle(&job, &durable, now);
        assert!(!desk.is_in_flight(&ready[0]) && desk.is_in_flight(&ready[2]));
    }

    #[test]
    fn memory_is_bound_to_the_file_and_ends() {
        let ready: Vec<String> = (0..2).map(|index| segment(0, index)).collect();
        let (mut desk, _) = asked(&ready, 1);
        let (job, now) = (desk.next().unwrap(), Instant::now());
        let stamp = stamp_of("content");
        desk.settle(&job, &[(ready[0].clone(), Some(stamp)), (ready[1].clone(), None)], now);
        assert!(desk.is_durable(&ready[0], Some(stamp), now));
        assert!(!desk.is_durable(&ready[0], Some(stamp_of("content")), now), "another file");
        assert!(!desk.is_durable(&ready[0], None, now), "no file");
        assert!(!desk.is_durable(&ready[0], Some(stamp), now + REMEMBERED_FOR));
        assert!(!desk.is_durable(&ready[1], Some(stamp), now), "a stamp that proves nothing is not kept");
        for index in 0..2 * REMEMBERED_MAX as u32 {
            desk.remember(&segment(1 + index / 256, index % 256), Some(stamp), now);
        }
        assert_eq!(desk.durable.len(), REMEMBERED_MAX);
        assert!(desk.is_durable(&segment(2 * REMEMBERED_MAX as u32 / 256, 255), Some(stamp), now), "the last one");
    }

    #[test]
    fn a_failure_keeps_a_file_out_of_bundles_for_a_while() {
        let ready: Vec<String> = (0..3).map(|index| segment(0, index)).collect();
        let (mut desk, _) = asked(&ready, 1);
        let (job, now) = (desk.next().unwrap(), Instant::now());
        desk.settle(&job, &[(ready[0].clone(), Some(stamp_of("x"))), (ready[2].clone(), Some(stamp_of("x")))], now);
        desk.plan(None, &ready[0], &ready, 1, now);
        assert!(!desk.is_busy(), "one failed, the others are durable");
        assert!(desk.plan(Some((&ready[1], Slot::default())), &ready[1], &ready, 1, now), "its own question is heard");
        assert_eq!(names(&desk.queue), [(1, ready[1].clone())]);
        let job = desk.next().unwrap();
        desk.settle(&job, &[], now);
        desk.plan(None, &ready[0], &ready, 1, now + SHUNNED_FOR);
        assert_eq!(names(&desk.queue), [(1, ready[1].clone())], "after a while it is tried again");
    }

    #[test]
    fn the_end_keeps_what_a_client_waits_for() {
        let ready: Vec<String> = (0..8).map(|index| segment(0, index)).collect();
        let (mut desk, _) = asked(&ready, 2);
        desk.end();
        assert_eq!(names(&desk.queue), [(4, ready[0].clone())]);
        assert!(!desk.is_in_flight(&ready[7]) && !desk.wants_more(2));
        assert!(desk.plan(Some((&ready[6], Slot::default())), &ready[6], &ready, 2, Instant::now()));
        assert_eq!(names(&desk.queue)[1], (1, ready[6].clone()), "without followers");
    }
}
