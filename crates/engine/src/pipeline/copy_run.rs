//! Objects copied as they are, from store to store: several lanes, each of a thread that reads and checks and one that
//! writes, so that neither side waits for the other.
//!
//! A lane has buffers of its own, which go round between its two threads. The reader waits for a free one or for the rate,
//! the writer for a full one, and either ends when the other has; so nobody can wait for ever.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::ceiling::Ceiling;
use super::control::{Control, Progress, RateLimit};
use super::encode_run::{STACK_BYTES, TICK, spawn};
use super::errands::{Errand, Post};
use super::limit::Direction;
use super::stats::{Doing, PipelineStats, StageClock, StageMeter};
use super::{LiveView, Observer};
use crate::error::{Error, Result};
use crate::storage::{ObjectReader, ObjectWriter, StagedObject};

/// Buffers of one lane: one that is read into, one that is written, two that wait between.
pub const BUFFERS_PER_LANE: usize = 4;

/// How much machinery copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopySettings {
    /// Objects that are copied at the same time.
    pub lanes: u16,
    /// Bytes of one buffer.
    pub transfer_size_bytes: u32,
    /// Bytes read a second, at most.
    pub max_rate_bytes_per_s: Option<u64>,
}

impl CopySettings {
    /// The memory that a run takes, when one object writer takes `writer_bytes`.
    pub fn ceiling(&self, writer_bytes: u64) -> Ceiling {
        let lanes = u64::from(self.lanes);
        let (buffers, size) = (lanes * BUFFERS_PER_LANE as u64, u64::from(self.transfer_size_bytes));
        let mut ceiling = Ceiling::default();
        ceiling.add(format!("{buffers} transfer buffers x {} KiB", size / 1024), buffers * size);
        // The next object of a lane is begun while the one before it is finished.
        let writers = 2 * lanes;
        ceiling.add(format!("writers of {writers} objects x {} KiB", writer_bytes / 1024), writers * writer_bytes);
        let threads = 2 * lanes;
        ceiling.add(format!("{threads} thread stacks x {} KiB", STACK_BYTES / 1024), threads * STACK_BYTES as u64);
        ceiling
    }
}

/// One object on its way.
pub struct Transfer {
    /// Where its bytes come from.
    pub from: Box<dyn ObjectReader>,
    /// Where they go.
    pub to: TransferTo,
    /// Looks at them on the way.
    pub check: Box<dyn TransferCheck>,
}

/// How an object comes to be.
pub enum TransferTo {
    /// Seen while it is written: its set is not complete yet.
    Created(Box<dyn ObjectWriter>),
    /// Seen when it is whole.
    Staged(Box<dyn StagedObject>),
    /// It is only read.
    Nowhere,
}

/// Checks the bytes of one object in their order; what passes it has every checksum that is stored with it.
pub trait TransferCheck: Send {
    /// The next bytes.
    ///
    /// # Errors
    /// `Damage`, with the place.
    fn take(&mut self, bytes: &[u8]) -> Result<()>;

    /// There are no more.
    ///
    /// # Errors
    /// `Damage` if there should be.
    fn end(self: Box<Self>) -> Result<()>;
}

/// A list of objects to copy; its functions are called by the lanes' threads.
pub trait Transfers: Sync {
    /// How many objects.
    fn count(&self) -> usize;

    /// Begins the object with this number; None if there is nothing to do for it.
    ///
    /// # Errors
    /// Handed to [`Transfers::failed`].
    fn begin(&self, number: usize) -> Result<Option<Transfer>>;

    /// The object is durable; not `is_new` if a staged one found that somebody else had put one of its name.
    ///
    /// # Errors
    /// Ends the run.
    fn done(&self, number: usize, is_new: bool, size_bytes: u64) -> Result<()>;

    /// The object cannot be read, or is not what it should be; nothing of it is left if it was staged.
    ///
    /// # Errors
    /// Ends the run; without one the next object is begun.
    fn failed(&self, number: usize, error: Error) -> Result<()>;
}

/// Copies lists of objects, one list after the other, and sums up what that took.
pub struct CopyRun<'a> {
    settings: CopySettings,
    progress: &'a Progress,
    observer: &'a dyn Observer,
    rate: Option<RateLimit>,
    stopped: fn() -> Error,
    readers: StageMeter,
    writers: StageMeter,
    started: Instant,
}

impl<'a> CopyRun<'a> {
    /// Nothing is started before there is something to copy; `stopped` is the error if a signal asks to stop.
    pub fn new(
        settings: CopySettings,
        progress: &'a Progress,
        observer: &'a dyn Observer,
        stopped: fn() -> Error,
    ) -> Self {
        let rate = settings.max_rate_bytes_per_s.map(RateLimit::new);
        let (readers, writers) = Default::default();
        CopyRun { settings, progress, observer, rate, stopped, readers, writers, started: Instant::now() }
    }

    /// Where the time went so far.
    pub fn stats(&self) -> PipelineStats {
        PipelineStats {
            first: self.readers.stats(self.settings.lanes),
            last: self.writers.stats(self.settings.lanes),
            elapsed_s: self.started.elapsed().as_secs_f64(),
            ..PipelineStats::default()
        }
    }

    /// Copies the objects of a list, which are begun in its order.
    ///
    /// # Errors
    /// The first error that ends the run; `Interrupted`. All threads have ended when this returns.
    pub fn run(&self, list: &dyn Transfers) -> Result<()> {
        let lanes = usize::from(self.settings.lanes).min(list.count());
        let control = Control::new(2 * lanes);
        let next = AtomicUsize::new(0);
        let nothing_to_close = || {};
        std::thread::scope(|scope| {
            for _ in 0..lanes {
                let (to_writer, from_reader) = bounded(BUFFERS_PER_LANE + 2);
                let (give_back, free) = bounded(BUFFERS_PER_LANE);
                for _ in 0..BUFFERS_PER_LANE {
                    // There is room for all of them.
                    give_back.send(vec![0u8; self.settings.transfer_size_bytes as usize]).ok();
                }
                let (run, control, next) = (self, &control, &next);
                let reader = LaneReader { run, list, control, next, to_writer, free };
                let writer = LaneWriter { run, list, control, from_reader, give_back };
                spawn(scope, "copy reader", control, &nothing_to_close, move || reader.run());
                spawn(scope, "copy writer", control, &nothing_to_close, move || writer.run());
            }
            control.supervise(TICK, &nothing_to_close, &mut || self.tick(control.overdue(&|errand| errand.text(None))));
        });
        control.into_result()?;
        self.tick(Vec::new())
    }

    fn tick(&self, overdue: Vec<String>) -> Result<()> {
        let view = LiveView { progress: self.progress, stats: self.stats(), overdue };
        self.observer.progress(Direction::Backup, &view);
        if self.observer.interrupted() {
            return Err((self.stopped)());
        }
        Ok(())
    }
}

/// What a reader tells the writer of its lane.
enum Message {
    Begin(usize, TransferTo),
    Bytes(Vec<u8>, usize),
    /// All bytes were sent, and are what they should be.
    End,
    /// What was begun is not to be; with the buffer that was in use, if one was.
    Drop(Option<Vec<u8>>),
}

/// Why an object was not sent.
enum NotSent {
    /// It cannot be read, or is not what it should be.
    Failed(Error),
    /// The writer has ended, or the run is to: there is an error already.
    Stopped,
}

impl From<Error> for NotSent {
    fn from(error: Error) -> Self {
        NotSent::Failed(error)
    }
}

struct LaneReader<'a> {
    run: &'a CopyRun<'a>,
    list: &'a dyn Transfers,
    control: &'a Control,
    next: &'a AtomicUsize,
    to_writer: Sender<Message>,
    free: Receiver<Vec<u8>>,
}

impl LaneReader<'_> {
    fn run(self) {
        let mut clock = StageClock::start(&self.run.readers);
        let post = self.control.post();
        while !self.control.stopped() {
            let number = self.next.fetch_add(1, Relaxed);
            if number >= self.list.count() {
                return;
            }
            match self.copy(number, &mut clock, &post) {
                Ok(()) => {}
                Err(NotSent::Stopped) => return,
                Err(NotSent::Failed(error)) => {
                    if let Err(error) = self.list.failed(number, error) {
                        return self.control.fail(error);
                    }
                }
            }
            clock.mark(Doing::Busy);
        }
    }

    fn send(&self, message: Message) -> std::result::Result<(), NotSent> {
        self.to_writer.send(message).map_err(|_| NotSent::Stopped)
    }

    fn copy(&self, number: usize, clock: &mut StageClock<'_>, post: &Post<'_>) -> std::result::Result<(), NotSent> {
        let Some(Transfer { from, to, mut check }) = self.list.begin(number)? else { return Ok(()) };
        self.send(Message::Begin(number, to))?;
        let size_bytes = from.size_bytes();
        let mut offset = 0u64;
        while offset < size_bytes {
            clock.mark(Doing::Busy);
            let mut buffer = self.free.recv().map_err(|_| NotSent::Stopped)?;
            let length = (size_bytes - offset).min(buffer.len() as u64) as usize;
            if let Some(rate) = &self.run.rate {
                rate.take(length as u64, self.control);
            }
            clock.mark(Doing::WaitOutput);
            if self.control.stopped() {
                return Err(NotSent::Stopped);
            }
            let part = &mut buffer[..length];
            let read = post.during(Errand::ReadCopied, || from.read_at(part, offset));
            if let Err(error) = read.and_then(|()| check.take(part)) {
                self.send(Message::Drop(Some(buffer)))?;
                return Err(error.into());
            }
            offset += length as u64;
            self.run.progress.done_bytes.fetch_add(length as u64, Relaxed);
            clock.passed(length as u64);
            self.send(Message::Bytes(buffer, length))?;
        }
        match check.end() {
            Ok(()) => self.send(Message::End),
            Err(error) => {
                self.send(Message::Drop(None))?;
                Err(error.into())
            }
        }
    }
}

struct LaneWriter<'a> {
    run: &'a CopyRun<'a>,
    list: &'a dyn Transfers,
    control: &'a Control,
    from_reader: Receiver<Message>,
    give_back: Sender<Vec<u8>>,
}

impl LaneWriter<'_> {
    fn run(self) {
        let mut clock = StageClock::start(&self.run.writers);
        if let Err(error) = self.write_all(&mut clock) {
            self.control.fail(error);
        }
    }

    fn write_all(&self, clock: &mut StageClock<'_>) -> Result<()> {
        let mut current: Option<(usize, TransferTo, u64)> = None;
        let post = self.control.post();
        loop {
            clock.mark(Doing::Busy);
            // Without a reader what is begun stays unfinished.
            let Ok(message) = self.from_reader.recv() else { return Ok(()) };
            clock.mark(Doing::WaitInput);
            match message {
                Message::Begin(number, to) => current = Some((number, to, 0)),
                Message::Bytes(buffer, length) => {
                    if let Some((_, to, size_bytes)) = &mut current {
                        post.during(Errand::WriteCopy, || to.append(&buffer[..length]))?;
                        *size_bytes += length as u64;
                    }
                    clock.passed(length as u64);
                    // A reader that has ended needs none.
                    self.give_back.send(buffer).ok();
                }
                Message::End => {
                    if let Some((number, to, size_bytes)) = current.take() {
                        let is_new = post.during(Errand::WriteCopy, || to.finish())?;
                        self.list.done(number, is_new, size_bytes)?;
                    }
                }
                Message::Drop(buffer) => {
                    current = None;
                    buffer.into_iter().for_each(|buffer| drop(self.give_back.send(buffer)));
                }
            }
        }
    }
}

impl TransferTo {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            TransferTo::Created(object) => object.append(bytes),
            TransferTo::Staged(object) => object.append(bytes),
            TransferTo::Nowhere => Ok(()),
        }
    }

    /// Makes it durable; false if it was staged and somebody else has put one of its name.
    fn finish(self) -> Result<bool> {
        match self {
            TransferTo::Created(object) => object.finish().map(|_| true),
            TransferTo::Staged(object) => object.commit(),
            TransferTo::Nowhere => Ok(true),
        }
    }
}
