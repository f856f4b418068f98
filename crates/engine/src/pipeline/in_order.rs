//! Work on a stream of items by several threads, with the results in the order of the items.

use std::collections::BTreeMap;
use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::encode_run::STACK_BYTES;
use crate::error::{Error, ErrorKind, Result, guarded};

/// What one thread does with an item; made in the thread that uses it.
pub type Work<'a, T, R> = Box<dyn FnMut(T) -> Result<R> + 'a>;

/// What the calling thread does besides feeding the others and taking what they made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Nothing: its own part is reading and writing, which must not wait for a calculation.
    Feeds,
    /// It is one of the threads: its own part is little, and it calculates while there is nothing to take.
    Calculates,
}

/// Items that are under way at once: one in each thread's hands, and two that wait, so that no thread does.
pub(super) fn items_under_way(threads: u16) -> usize {
    usize::from(threads) + 2
}

/// Gives the items of `next` to `threads` threads, and what they make of them to `sink`, in order.
///
/// `next` and `sink` run in the calling thread, and with [`Caller::Calculates`] it is one of the threads. With one thread
/// nothing is started at all.
///
/// # Errors
/// The first error of any of them; items that come later are not looked at.
pub fn in_order<T: Send, R: Send>(
    threads: u16,
    caller: Caller,
    next: &mut dyn FnMut() -> Result<Option<T>>,
    make_work: &(dyn Fn() -> Work<'static, T, R> + Sync),
    sink: &mut dyn FnMut(R) -> Result<()>,
) -> Result<()> {
    if threads <= 1 {
        let mut work = make_work();
        while let Some(item) = next()? {
            sink(work(item)?)?;
        }
        return Ok(());
    }
    let room = items_under_way(threads);
    thread::scope(|scope| {
        let (to_work, from_caller) = bounded::<Numbered<T>>(room);
        let (to_caller, from_work) = bounded::<Numbered<Result<R>>>(room);
        for number in u16::from(caller == Caller::Calculates)..threads {
            let (input, output) = (from_caller.clone(), to_caller.clone());
            let builder = thread::Builder::new().name(format!("ordered {number}")).stack_size(STACK_BYTES);
            let started = builder.spawn_scoped(scope, move || work_on(&input, &output, make_work));
            started.map_err(|cause| {
                Error::new(ErrorKind::Configuration, "start a thread", cause).hint("use fewer --encoders or --decoders")
            })?;
        }
        drop(to_caller);
        let own = match caller {
            Caller::Feeds => None,
            Caller::Calculates => Some(OwnWork { waiting: from_caller, work: make_work() }),
        };
        Passage { room, to_work, from_work, own }.run(next, sink)
    })
}

fn work_on<T, R>(
    input: &Receiver<Numbered<T>>,
    output: &Sender<Numbered<Result<R>>>,
    make_work: &(dyn Fn() -> Work<'static, T, R> + Sync),
) {
    let mut work = None;
    while let Ok((number, item)) = input.recv() {
        let done = guarded(|| work.get_or_insert_with(make_work)(item));
        if output.send((number, done)).is_err() {
            return;
        }
    }
}

/// An item with its number.
type Numbered<T> = (u64, T);

/// The calling thread's side.
struct Passage<'a, T, R> {
    room: usize,
    to_work: Sender<Numbered<T>>,
    from_work: Receiver<Numbered<Result<R>>>,
    /// How it calculates too, if it does.
    own: Option<OwnWork<'a, T, R>>,
}

/// How the calling thread calculates.
struct OwnWork<'a, T, R> {
    waiting: Receiver<Numbered<T>>,
    work: Work<'a, T, R>,
}

impl<T, R> Passage<'_, T, R> {
    fn run(mut self, next: &mut dyn FnMut() -> Result<Option<T>>, sink: &mut dyn FnMut(R) -> Result<()>) -> Result<()> {
        let (mut sent, mut received, mut ended) = (0u64, 0u64, false);
        let mut early = BTreeMap::new();
        loop {
            while !ended && ((sent - received) as usize) < self.room {
                match next()? {
                    Some(item) => self.to_work.send((sent, item)).map_err(|_| gone())?,
                    None => ended = true,
                }
                sent += u64::from(!ended);
            }
            if sent == received {
                return Ok(());
            }
            let (number, done) = self.one_done()?;
            early.insert(number, done);
            while let Some(done) = early.remove(&received) {
                sink(done?)?;
                received += 1;
            }
        }
    }

    /// What a thread made, if one has ended by now; otherwise of an item that no thread has begun; otherwise waits.
    fn one_done(&mut self) -> Result<Numbered<Result<R>>> {
        if let Some(OwnWork { waiting, work }) = &mut self.own {
            if let Ok(done) = self.from_work.try_recv() {
                return Ok(done);
            }
            if let Ok((number, item)) = waiting.try_recv() {
                return Ok((number, guarded(|| work(item))));
            }
        }
        self.from_work.recv().map_err(|_| gone())
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Bug, "go on", "all threads ended early")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLERS: [Caller; 2] = [Caller::Feeds, Caller::Calculates];

    fn squares(threads: u16, caller: Caller, fail_at: u64) -> Result<Vec<u64>> {
        let mut items = 0..200u64;
        let mut results = Vec::new();
        let make_work = move || -> Work<'static, u64, u64> {
            Box::new(move |item| {
                // Later items are quicker, so that they come early.
                thread::sleep(std::time::Duration::from_micros(200 - item));
                if item == fail_at { Err(Error::new(ErrorKind::Damage, "square", item)) } else { Ok(item * item) }
            })
        };
        in_order(threads, caller, &mut || Ok(items.next()), &make_work, &mut |square| {
            results.push(square);
            Ok(())
        })?;
        Ok(results)
    }

    #[test]
    fn results_come_in_order() {
        for (threads, caller) in [1, 2, 7].into_iter().flat_map(|threads| CALLERS.map(|caller| (threads, caller))) {
            let squares = squares(threads, caller, u64::MAX).unwrap();
            assert!(squares.into_iter().eq((0..200).map(|item| item * item)), "{threads} {caller:?}");
        }
    }

    #[test]
    fn the_first_error_ends_it() {
        for (threads, caller) in [1, 4].into_iter().flat_map(|threads| CALLERS.map(|caller| (threads, caller))) {
            assert!(squares(threads, caller, 57).unwrap_err().message().ends_with(": 57"));
            let none = in_order::<u64, u64>(
                threads,
                caller,
                &mut || Err(Error::new(ErrorKind::Source, "read", "no")),
                &|| Box::new(Ok),
                &mut |_| Ok(()),
            );
            assert_eq!(none.unwrap_err().kind(), ErrorKind::Source);
            let mut items = 0..9u64;
            let full = in_order::<u64, u64>(threads, caller, &mut || Ok(items.next()), &|| Box::new(Ok), &mut |_| {
                Err(Error::new(ErrorKind::Repository, "write", "full"))
            });
            assert_eq!(full.unwrap_err().kind(), ErrorKind::Repository);
        }
    }

    #[test]
    fn a_panic_is_an_error_and_nobody_waits_for_ever() {
        let make_work = || -> Work<'static, u64, u64> {
            Box::new(|item| if item == 9 { panic!("as the test wants it") } else { Ok(item) })
        };
        for caller in CALLERS {
            let mut items = 0..50u64;
            let error = in_order(3, caller, &mut || Ok(items.next()), &make_work, &mut |_| Ok(())).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Bug);
        }
    }
}
