//! What each thread waits for outside of this process, and since when: a disk, a mount or a store that hangs is named while
//! it is waited for, and not only after hours without progress.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::{Builder, scope};
use std::time::{Duration, Instant};

use super::observer::Observer;
use crate::format::file_table::FileTable;
use crate::terms::FileId;

/// Told of after this long, and again each time it has doubled. A store's request is given up after a minute; a disk that
/// takes half of that for a buffer is broken, far too busy, or not there.
const PATIENCE: Duration = Duration::from_secs(30);

/// A piece of work that the world outside may take any time for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Errand {
    ReadSourceFile(FileId),
    ReadPriorSets,
    Receive,
    WriteStripe(u16),
    WriteParityStripe(u16),
    /// By its place in the list of all stripes that a restore reads.
    ReadStripe(u16),
    WriteTargetFile(FileId),
    ReadTargetFile(FileId),
    ReadCopied,
    WriteCopy,
}

impl Errand {
    fn to_bits(self) -> u64 {
        let (kind, number) = match self {
            Errand::ReadSourceFile(file) => (0, file.0),
            Errand::ReadPriorSets => (1, 0),
            Errand::Receive => (2, 0),
            Errand::WriteStripe(stripe) => (3, stripe.into()),
            Errand::WriteParityStripe(stripe) => (4, stripe.into()),
            Errand::ReadStripe(stripe) => (5, stripe.into()),
            Errand::WriteTargetFile(file) => (6, file.0),
            Errand::ReadTargetFile(file) => (7, file.0),
            Errand::ReadCopied => (8, 0),
            Errand::WriteCopy => (9, 0),
        };
        kind << 32 | u64::from(number)
    }

    fn from_bits(bits: u64) -> Self {
        let (file, stripe) = (FileId(bits as u32), bits as u16);
        match bits >> 32 {
            0 => Errand::ReadSourceFile(file),
            1 => Errand::ReadPriorSets,
            2 => Errand::Receive,
            3 => Errand::WriteStripe(stripe),
            4 => Errand::WriteParityStripe(stripe),
            5 => Errand::ReadStripe(stripe),
            6 => Errand::WriteTargetFile(file),
            7 => Errand::ReadTargetFile(file),
            8 => Errand::ReadCopied,
            _ => Errand::WriteCopy,
        }
    }

    /// "write stripe 3", with the names of `table`'s files.
    pub(super) fn text(self, table: Option<&FileTable>) -> String {
        let named = |verb: &str, file: FileId| match table {
            Some(table) => format!("{verb} {}", table.path_text(file)),
            None => verb.to_owned(),
        };
        match self {
            Errand::ReadSourceFile(file) => named("read source file", file),
            Errand::ReadPriorSets => "read the sets that this one is made of".to_owned(),
            Errand::Receive => "receive from the server".to_owned(),
            Errand::WriteStripe(stripe) => format!("write stripe {stripe}"),
            Errand::WriteParityStripe(stripe) => format!("write parity stripe {stripe}"),
            Errand::ReadStripe(stripe) => format!("read stripe {stripe}"),
            Errand::WriteTargetFile(file) => named("write target file", file),
            Errand::ReadTargetFile(file) => named("read target file", file),
            Errand::ReadCopied => "read what is copied".to_owned(),
            Errand::WriteCopy => "write the copy".to_owned(),
        }
    }
}

/// One thread's errand.
#[derive(Debug, Default)]
struct Slot {
    /// Milliseconds from the start of the run on, plus one; 0 if there is none.
    since_ms: AtomicU64,
    errand: AtomicU64,
    /// How often it was told of.
    told: AtomicU64,
}

/// The errands of all threads of a run.
#[derive(Debug)]
pub(super) struct Errands {
    started: Instant,
    patience: Duration,
    slots: Box<[Slot]>,
    posts: AtomicUsize,
}

/// Where one thread says what it waits for.
pub(super) struct Post<'a> {
    errands: &'a Errands,
    slot: Option<&'a Slot>,
}

impl Errands {
    pub(super) fn new(threads: usize) -> Self {
        Self::with_patience(threads, PATIENCE)
    }

    fn with_patience(threads: usize, patience: Duration) -> Self {
        let slots = (0..threads).map(|_| Slot::default()).collect();
        Errands { started: Instant::now(), patience, slots, posts: AtomicUsize::new(0) }
    }

    /// For the thread that asks; there is one for each of the run.
    pub(super) fn post(&self) -> Post<'_> {
        Post { errands: self, slot: self.slots.get(self.posts.fetch_add(1, Relaxed)) }
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// A line for people of each errand that has become overdue since the last call; `text` says what an errand is.
    pub(super) fn overdue(&self, text: &dyn Fn(Errand) -> String) -> Vec<String> {
        let now_ms = self.now_ms();
        let told_of = |slot: &Slot| {
            let since_ms = slot.since_ms.load(Relaxed).checked_sub(1)?;
            let waited_ms = now_ms.saturating_sub(since_ms);
            let told = slot.told.load(Relaxed);
            let due_ms = (self.patience.as_millis() as u64).checked_shl(told as u32)?;
            if waited_ms < due_ms {
                return None;
            }
            slot.told.store(told + 1, Relaxed);
            let what = text(Errand::from_bits(slot.errand.load(Relaxed)));
            Some(overdue_text(waited_ms / 1000, &what))
        };
        self.slots.iter().filter_map(told_of).collect()
    }
}

fn overdue_text(waited_s: u64, what: &str) -> String {
    format!(
        "{waited_s} s so far to {what}: its disk, network or store does not answer or is far too slow; look there and at \
         the system's log"
    )
}

/// Does `work`, which is to `what`, outside of the data path, and tells of it as of an errand.
pub(crate) fn watched<T>(observer: &dyn Observer, what: &str, work: impl FnOnce() -> T) -> T {
    watched_with(PATIENCE, observer, what, work)
}

fn watched_with<T>(patience: Duration, observer: &dyn Observer, what: &str, work: impl FnOnce() -> T) -> T {
    let (working, end) = channel::<()>();
    let watch = move || {
        let (started, mut due) = (Instant::now(), patience);
        while end.recv_timeout(due.saturating_sub(started.elapsed())) == Err(RecvTimeoutError::Timeout) {
            observer.waiting(&overdue_text(started.elapsed().as_secs(), what));
            due *= 2;
        }
    };
    scope(|scope| {
        // Work without a watch is as good as before.
        drop(Builder::new().name("watch".to_owned()).spawn_scoped(scope, watch));
        let done = work();
        drop(working);
        done
    })
}

impl Post<'_> {
    /// Does `work`, which is `errand`.
    #[inline]
    pub(super) fn during<T>(&self, errand: Errand, work: impl FnOnce() -> T) -> T {
        let Some(slot) = self.slot else { return work() };
        slot.errand.store(errand.to_bits(), Relaxed);
        slot.told.store(0, Relaxed);
        slot.since_ms.store(self.errands.now_ms() + 1, Relaxed);
        let done = work();
        slot.since_ms.store(0, Relaxed);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_errand_keeps_its_number() {
        let file = FileId(70_000);
        for errand in [
            Errand::ReadSourceFile(file),
            Errand::ReadPriorSets,
            Errand::Receive,
            Errand::WriteStripe(9),
            Errand::WriteParityStripe(9),
            Errand::ReadStripe(9),
            Errand::WriteTargetFile(file),
            Errand::ReadTargetFile(file),
            Errand::ReadCopied,
            Errand::WriteCopy,
        ] {
            assert_eq!(Errand::from_bits(errand.to_bits()), errand);
        }
    }

    #[test]
    fn who_waits_too_long_is_told_once_and_again_when_the_time_has_doubled() {
        let errands = Errands::with_patience(2, Duration::from_millis(20));
        let text = |errand: Errand| errand.text(None);
        let waiting = errands.post();
        let idle = errands.post();
        idle.during(Errand::Receive, || ());
        waiting.during(Errand::WriteStripe(3), || {
            assert_eq!(errands.overdue(&text), Vec::<String>::new());
            let mut told = Vec::new();
            while told.len() < 3 {
                told.extend(errands.overdue(&text));
                std::thread::yield_now();
            }
            assert!(told.iter().all(|line| line.contains("write stripe 3")), "{told:?}");
            assert!(errands.now_ms() >= 80, "the third time is after four times as long");
        });
        assert_eq!(errands.overdue(&text), Vec::<String>::new(), "it has come back");
        // The next one has its own time.
        waiting.during(Errand::WriteStripe(4), || assert_eq!(errands.overdue(&text), Vec::<String>::new()));
        // A thread that nobody counted works all the same.
        assert_eq!(errands.post().during(Errand::Receive, || 7), 7);
    }

    #[test]
    fn work_outside_of_the_data_path_is_told_of_too() {
        struct Told(std::sync::Mutex<Vec<String>>);
        impl Observer for Told {
            fn phase(&self, _name: &str) {}
            fn note(&self, text: &str) {
                self.0.lock().unwrap().push(text.to_owned());
            }
            fn progress(&self, _: crate::pipeline::limit::Direction, _: &crate::pipeline::LiveView<'_>) {}
            fn interrupted(&self) -> bool {
                false
            }
        }
        let told = Told(std::sync::Mutex::default());
        let texts = || told.0.lock().unwrap().clone();
        assert_eq!(watched(&told, "sleep", || 7), 7);
        assert_eq!(texts(), Vec::<String>::new());
        watched_with(Duration::from_millis(10), &told, "sync /restored", || {
            while texts().len() < 3 {
                std::thread::yield_now();
            }
        });
        assert!(texts().iter().all(|text| text.contains("s so far to sync /restored: ")), "{:?}", texts());
    }
}
