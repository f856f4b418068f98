//! What the helper knows of files to fetch: which are at hand, which are on their way, how far it looks ahead. No I/O.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;

use super::message::Answer;
use super::push_desk::{Slot, is_segment};
use crate::limits::MIB;

/// Most segments, and most bytes, that are fetched ahead.
pub(super) const AHEAD_SEGMENTS_MAX: u64 = 32;
const AHEAD_BYTES_MAX: u64 = 1024 * MIB;
/// The look-ahead never goes below this.
const AHEAD_SEGMENTS_MIN: u64 = 2;
/// After so many questions in a row with everything at hand, one segment less will do.
const CALM_QUESTIONS: u32 = 32;

/// A file to fetch.
#[derive(Debug)]
pub(super) struct FetchJob {
    pub(super) name: String,
    /// Somebody waits for it.
    pub(super) slot: Option<Slot>,
}

/// Where a file is.
#[derive(Debug, PartialEq, Eq)]
enum State {
    /// Somebody waits for it, whose it will be.
    Asked,
    /// To be fetched ahead.
    Queued,
    /// Being fetched ahead; not wanted any more if recovery went elsewhere.
    Running { is_wanted: bool },
    /// Fetched ahead, in this file.
    Ready(PathBuf),
}

/// What a question finds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It was at hand, in this file, which is the client's now.
    Ready(PathBuf),
    /// It will be in the slot.
    Asked,
}

/// The state behind the role.
#[derive(Debug, Default)]
pub(super) struct GetDesk {
    files: BTreeMap<String, State>,
    asked: VecDeque<FetchJob>,
    /// In the order of recovery.
    ahead: VecDeque<String>,
    running: usize,
    look_ahead: LookAhead,
    is_ending: bool,
}

/// How many segments are to be at hand.
#[derive(Debug, Default)]
struct LookAhead {
    segments: u64,
    calm_questions: u32,
    /// The name behind the last segment that was delivered.
    expected: Option<String>,
}

impl GetDesk {
    /// Takes a question; None while the file is on its way without somebody who owns it.
    pub(super) fn ask(&mut self, name: &str, slot: &Slot) -> Option<Found> {
        match self.files.get(name) {
            Some(State::Asked | State::Running { .. }) => return None,
            Some(State::Ready(_)) => {
                if let Some(State::Ready(file)) = self.files.remove(name) {
                    return Some(Found::Ready(file));
                }
            }
            Some(State::Queued) => self.ahead.retain(|queued| queued != name),
            None => {}
        }
        self.files.insert(name.to_owned(), State::Asked);
        self.asked.push_back(FetchJob { name: name.to_owned(), slot: Some(slot.clone()) });
        Some(Found::Asked)
    }

    /// A segment of `size_bytes` was delivered, and its client `waited` for it: plans what is fetched ahead, where there
    /// is `room_bytes` for it. Gives files that are of no use any more.
    pub(super) fn plan(&mut self, name: &str, size_bytes: u64, waited: bool, room_bytes: u64) -> Vec<PathBuf> {
        let most = (AHEAD_BYTES_MAX / size_bytes.max(1)).clamp(1, AHEAD_SEGMENTS_MAX);
        let window = following(name, size_bytes, most);
        let Some(next) = window.first() else { return Vec::new() };
        let at_hand = window.iter().filter(|name| matches!(self.files.get(*name), Some(State::Ready(_)))).count();
        self.look_ahead.adapt(name, waited, at_hand as u64, most);
        self.look_ahead.expected = Some(next.clone());
        let dropped = self.drop_all_but(&window);
        let wanted = self.look_ahead.segments.min(room_bytes / size_bytes);
        if !self.is_ending {
            for name in window.into_iter().take(wanted as usize) {
                if !self.files.contains_key(&name) {
                    self.files.insert(name.clone(), State::Queued);
                    self.ahead.push_back(name);
                }
            }
        }
        dropped
    }

    /// Forgets what was fetched ahead outside of `window`; gives the files that are of no use any more.
    fn drop_all_but(&mut self, window: &[String]) -> Vec<PathBuf> {
        let mut dropped = Vec::new();
        self.ahead.retain(|name| window.contains(name));
        self.files.retain(|name, state| {
            if window.contains(name) {
                return true;
            }
            match state {
                State::Asked => true,
                State::Queued => false,
                State::Running { is_wanted } => {
                    *is_wanted = false;
                    true
                }
                State::Ready(file) => {
                    dropped.push(std::mem::take(file));
                    false
                }
            }
        });
        dropped
    }

    /// The next file to fetch, for a worker who will call [`GetDesk::settle`].
    pub(super) fn next(&mut self) -> Option<FetchJob> {
        let job = self.asked.pop_front().or_else(|| {
            let name = self.ahead.pop_front()?;
            self.files.insert(name.clone(), State::Running { is_wanted: true });
            Some(FetchJob { name, slot: None })
        })?;
        self.running += 1;
        Some(job)
    }

    /// A file was fetched or not; gives it back if nobody has use for it.
    pub(super) fn settle(&mut self, job: &FetchJob, answer: Answer) -> Option<PathBuf> {
        self.running -= 1;
        let state = self.files.remove(&job.name);
        let file = match &answer {
            Answer::Fetched(file) => Some(file.clone()),
            _ => None,
        };
        if let Some(slot) = &job.slot {
            let is_abandoned = slot.is_abandoned();
            slot.put(answer);
            return file.filter(|_| is_abandoned);
        }
        match (state, file) {
            (Some(State::Running { is_wanted: true }), Some(file)) if !self.is_ending => {
                self.files.insert(job.name.clone(), State::Ready(file));
                None
            }
            (_, Some(file)) => Some(file),
            // The archive ends here, or cannot be read: the next question will tell.
            (_, None) => {
                self.stop_looking_ahead();
                None
            }
        }
    }

    fn stop_looking_ahead(&mut self) {
        self.ahead.clear();
        self.files.retain(|_, state| *state != State::Queued);
    }

    /// Whether there is work.
    pub(super) fn is_busy(&self) -> bool {
        self.running > 0 || !self.asked.is_empty() || !self.ahead.is_empty()
    }

    /// Looks no further ahead, for good.
    pub(super) fn end(&mut self) {
        self.is_ending = true;
        self.stop_looking_ahead();
    }
}

impl LookAhead {
    /// Learns from a question whether recovery is faster than what is at hand lasts.
    fn adapt(&mut self, name: &str, waited: bool, at_hand: u64, most: u64) {
        let least = AHEAD_SEGMENTS_MIN.min(most);
        if self.expected.as_deref() != Some(name) {
            // The first question, or a jump: it says nothing about the pace.
            self.calm_questions = 0;
        } else if waited {
            self.segments *= 2;
            self.calm_questions = 0;
        } else if at_hand + 1 >= self.segments {
            self.calm_questions += 1;
            if self.calm_questions >= CALM_QUESTIONS {
                self.segments -= 1;
                self.calm_questions = 0;
            }
        }
        self.segments = self.segments.clamp(least, most);
    }
}

/// The names of the `count` segments of `size_bytes` behind `name`, on its timeline; none if that is no segment.
fn following(name: &str, size_bytes: u64, count: u64) -> Vec<String> {
    let is_size = size_bytes.is_power_of_two() && (MIB..=1024 * MIB).contains(&size_bytes);
    if !is_segment(name) || !is_size {
        return Vec::new();
    }
    let part = |range: std::ops::Range<usize>| u64::from_str_radix(&name[range], 16).unwrap_or(u64::MAX);
    let per_log = (1 << 32) / size_bytes;
    let (log, index) = (part(8..16), part(16..24));
    if index >= per_log {
        return Vec::new();
    }
    let number = log * per_log + index;
    let numbers = (1..=count).map(|ahead| number + ahead).filter(|number| number / per_log <= u64::from(u32::MAX));
    numbers.map(|number| format!("{}{:08X}{:08X}", &name[..8], number / per_log, number % per_log)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 16 * MIB;
    const ROOM: u64 = u64::MAX;

    fn segment(index: u64) -> String {
        format!("{:08X}{:08X}{:08X}", 1, index / 256, index % 256)
    }

    fn file_of(name: &str) -> PathBuf {
        PathBuf::from(format!("/prefetch/{name}"))
    }

    /// Lets workers fetch all that is planned; those from `end` on are not in the archive.
    fn work(desk: &mut GetDesk, end: u64) -> Vec<String> {
        let mut fetched = Vec::new();
        while let Some(job) = desk.next() {
            fetched.push(job.name.clone());
            let answer = if job.name < segment(end) { Answer::Fetched(file_of(&job.name)) } else { Answer::NotThere };
            assert_eq!(desk.settle(&job, answer), None);
        }
        fetched
    }

    /// A question and its answer; whether the client waited.
    fn get(desk: &mut GetDesk, name: &str, end: u64) -> Option<bool> {
        let slot = Slot::default();
        let waited = desk.ask(name, &slot).unwrap() == Found::Asked;
        if waited {
            work(desk, end);
            match slot.take().unwrap() {
                Answer::Fetched(file) => assert_eq!(file, file_of(name)),
                answer => {
                    assert_eq!(answer, Answer::NotThere);
                    return None;
                }
            }
        }
        desk.plan(name, SIZE, waited, ROOM);
        Some(waited)
    }

    #[test]
    fn names_go_on_over_log_ids_and_end_with_the_last() {
        assert_eq!(following(&segment(254), SIZE, 3), [segment(255), segment(256), segment(257)]);
        let name = "0000000A00000001000000FE";
        assert_eq!(following(name, SIZE, 2), ["0000000A00000001000000FF", "0000000A0000000200000000"]);
        assert_eq!(following("000000010000000000000003", 1024 * MIB, 1), ["000000010000000100000000"]);
        assert!(following("00000001FFFFFFFF000000FF", SIZE, 2).is_empty());
        for (name, size) in
            [("00000002.history", SIZE), (name, 0), (name, SIZE - 1), (name, 2048 * MIB), (name, MIB / 2)]
        {
            assert!(following(name, size, 2).is_empty(), "{name} {size}");
        }
        assert!(following(&segment(0), 1024 * MIB, 2).len() == 2 && following(name, 1024 * MIB, 2).is_empty());
    }

    #[test]
    fn what_recovery_asks_next_is_at_hand() {
        let mut desk = GetDesk::default();
        assert_eq!(get(&mut desk, &segment(1), 100), Some(true));
        for index in 2..50 {
            work(&mut desk, 100);
            assert_eq!(get(&mut desk, &segment(index), 100), Some(false), "segment {index}");
        }
    }

    #[test]
    fn the_look_ahead_grows_when_recovery_waits_and_shrinks_when_it_does_not() {
        let mut desk = GetDesk::default();
        let mut widths = Vec::new();
        for index in 1..8 {
            // Nothing gets done between the questions.
            desk.ahead.clear();
            desk.files.clear();
            assert_eq!(get(&mut desk, &segment(index), 1000), Some(true));
            widths.push(desk.look_ahead.segments);
        }
        assert_eq!(widths, [2, 4, 8, 16, 32, 32, 32]);
        for index in 8..8 + 2 * u64::from(CALM_QUESTIONS) {
            work(&mut desk, 1000);
            assert_eq!(get(&mut desk, &segment(index), 1000), Some(false));
        }
        assert_eq!(desk.look_ahead.segments, 30);
        for index in 100..100 + 40 * u64::from(CALM_QUESTIONS) {
            work(&mut desk, 10_000);
            get(&mut desk, &segment(index), 10_000);
        }
        assert_eq!(desk.look_ahead.segments, AHEAD_SEGMENTS_MIN);
    }

    #[test]
    fn the_end_of_the_archive_is_not_remembered() {
        let mut desk = GetDesk::default();
        assert_eq!(get(&mut desk, &segment(1), 2), Some(true));
        assert_eq!(work(&mut desk, 2), [segment(2)], "it ends there, and nothing behind it is asked for");
        assert_eq!(get(&mut desk, &segment(2), 2), None, "asked anew");
        assert_eq!(get(&mut desk, &segment(2), 2), None, "and again");
        assert_eq!(get(&mut desk, &segment(2), 4), Some(true), "it has come");
        assert_eq!(work(&mut desk, 4), [segment(3), segment(4)], "and the look-ahead goes on");
    }

    #[test]
    fn recovery_that_goes_elsewhere_leaves_nothing_behind() {
        let mut desk = GetDesk::default();
        get(&mut desk, &segment(1), 100);
        let running = desk.next().unwrap();
        let second = desk.next().unwrap();
        assert_eq!(desk.settle(&second, Answer::Fetched(file_of(&second.name))), None);
        let elsewhere = format!("{:08X}{:016X}", 2, 9);
        let slot = Slot::default();
        desk.ask(&elsewhere, &slot).unwrap();
        let dropped = desk.plan(&elsewhere, SIZE, true, ROOM);
        assert_eq!(dropped, [file_of(&segment(3))]);
        let unwanted = desk.settle(&running, Answer::Fetched(file_of(&running.name)));
        assert_eq!(unwanted, Some(file_of(&segment(2))), "what was on its way is of no use");
        assert!(matches!(desk.files.get(&elsewhere), Some(State::Asked)), "a question is never dropped");
    }

    #[test]
    fn two_clients_and_one_that_left() {
        let mut desk = GetDesk::default();
        get(&mut desk, &segment(1), 100);
        let job = desk.next().unwrap();
        assert_eq!(desk.ask(&job.name, &Slot::default()), None, "it is on its way");
        desk.settle(&job, Answer::Fetched(file_of(&job.name)));
        assert_eq!(desk.ask(&job.name, &Slot::default()), Some(Found::Ready(file_of(&job.name))));
        let slot = Slot::default();
        assert_eq!(desk.ask(&job.name, &slot), Some(Found::Asked), "the file was the first one's");
        drop(slot);
        let job = desk.next().unwrap();
        assert_eq!(desk.settle(&job, Answer::Fetched(file_of(&job.name))), Some(file_of(&job.name)), "nobody waits");
    }

    #[test]
    fn a_full_disk_and_large_segments_bound_the_look_ahead() {
        let mut desk = GetDesk::default();
        desk.plan(&segment(1), SIZE, true, SIZE - 1);
        assert!(!desk.is_busy(), "no room for one");
        desk.plan(&segment(1), SIZE, true, SIZE);
        assert_eq!(work(&mut desk, 100), [segment(2)]);
        let mut desk = GetDesk::default();
        let first = "000000010000000000000000";
        for _ in 0..5 {
            desk.look_ahead.expected = Some(first.to_owned());
            desk.plan(first, 512 * MIB, true, ROOM);
        }
        assert_eq!(desk.ahead, ["000000010000000000000001", "000000010000000000000002"]);
    }

    #[test]
    fn the_end_keeps_questions() {
        let mut desk = GetDesk::default();
        get(&mut desk, &segment(1), 100);
        let running = desk.next().unwrap();
        let slot = Slot::default();
        desk.ask(&segment(9), &slot).unwrap();
        desk.end();
        let asked = desk.next().unwrap();
        assert_eq!(asked.name, segment(9));
        assert!(desk.next().is_none());
        assert_eq!(desk.settle(&running, Answer::Fetched(file_of("x"))), Some(file_of("x")), "not kept");
        desk.settle(&asked, Answer::NotThere);
        assert_eq!(slot.take(), Some(Answer::NotThere));
        assert!(!desk.is_busy());
    }
}
