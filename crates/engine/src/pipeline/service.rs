//! A small resident service: the clients of a socket, a crew that works for them, and what both look at.
//!
//! It knows nothing of what is asked. Its threads are as many as the settings say, whatever the clients do.

use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::encode_run::STACK_BYTES;
use crate::error::{Error, ErrorKind, Result};

/// How often the service looks at what nobody wakes it for: signals, and how long it has been idle.
const TICK: Duration = Duration::from_millis(250);

/// A value that several threads change and wait for.
#[derive(Debug, Default)]
pub struct Board<T> {
    value: Mutex<T>,
    changed: Condvar,
}

impl<T> Board<T> {
    /// A board that shows `value`.
    pub fn new(value: T) -> Self {
        Board { value: Mutex::new(value), changed: Condvar::new() }
    }

    /// Changes the value; everybody who waits looks at it again.
    pub fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let changed = change(&mut self.lock());
        self.changed.notify_all();
        changed
    }

    /// Waits until `look` gives something, for `patience` at most; `look` may take something away that nobody waits for.
    pub fn wait<R>(&self, patience: Duration, mut look: impl FnMut(&mut T) -> Option<R>) -> Option<R> {
        let give_up = Instant::now() + patience;
        let mut value = self.lock();
        loop {
            if let Some(found) = look(&mut value) {
                return Some(found);
            }
            let left = give_up.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
            value = self.changed.wait_timeout(value, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a service does; every method may be called by several threads at once.
pub trait Service: Sync {
    /// Serves one client to its end, which must come: the service ends after its last client.
    fn serve(&self, client: UnixStream);

    /// Does one piece of work, and waits for it for `patience`; false if there was none.
    fn work(&self, patience: Duration) -> bool;

    /// Whether there is work that is not done.
    fn is_busy(&self) -> bool;

    /// The service ends: work that no client waits for is not to be begun any more.
    fn end(&self);
}

/// Bounds of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceSettings {
    /// Threads that work.
    pub workers: u16,
    /// Clients that are served at once; more of them wait until one leaves.
    pub clients_max: u16,
    /// Ends after so long without a client and without work.
    pub idle: Duration,
}

/// Serves the clients of `listener` until nobody came for a while or `stopped` says so; calls `hide` when no new client
/// should come, then serves those who came, and returns when all of its threads have ended.
///
/// # Errors
/// `Configuration` if the system gives no threads, or the listener fails.
pub fn run_service(
    listener: &UnixListener,
    settings: &ServiceSettings,
    service: &dyn Service,
    stopped: &dyn Fn() -> bool,
    hide: &dyn Fn(),
) -> Result<()> {
    let failed = |cause: &dyn std::fmt::Display| Error::new(ErrorKind::Configuration, "run a service", cause);
    listener.set_nonblocking(true).map_err(|cause| failed(&cause))?;
    let crew = Crew { service, clients: Board::new(0), is_over: Board::new(false) };
    std::thread::scope(|scope| {
        let mut outcome = Ok(());
        for _ in 0..settings.workers.max(1) {
            let worker = Builder::new().name("worker".into()).stack_size(STACK_BYTES);
            outcome = outcome.and(worker.spawn_scoped(scope, || crew.work()).map(drop));
        }
        let outcome = outcome.map_err(|cause| failed(&cause));
        if outcome.is_ok() {
            crew.welcome(scope, listener, settings, stopped);
        }
        hide();
        // Who found the name before it was hidden is a client as well.
        while let Ok((client, _)) = listener.accept() {
            crew.take(scope, client, settings.clients_max);
        }
        service.end();
        while crew.clients.wait(TICK, |clients| (*clients == 0).then_some(())).is_none() {}
        crew.is_over.change(|is_over| *is_over = true);
        outcome
    })
}

/// What the threads of a service share.
struct Crew<'a> {
    service: &'a dyn Service,
    /// How many there are now.
    clients: Board<u16>,
    is_over: Board<bool>,
}

impl Crew<'_> {
    /// A worker's life. A panic was shown by its hook, and costs one piece of work.
    fn work(&self) {
        loop {
            let worked = catch_unwind(AssertUnwindSafe(|| self.service.work(TICK))).unwrap_or(true);
            if !worked && self.is_over.change(|is_over| *is_over) {
                return;
            }
        }
    }

    /// Takes clients until it is time to end.
    fn welcome<'scope, 'env>(
        &'env self,
        scope: &'scope Scope<'scope, 'env>,
        listener: &UnixListener,
        settings: &ServiceSettings,
        stopped: &dyn Fn() -> bool,
    ) {
        let mut last_seen = Instant::now();
        while !stopped() {
            let has_room = |clients: &mut u16| (*clients < settings.clients_max).then_some(());
            if self.clients.wait(TICK, has_room).is_some()
                && wait_for_client(listener)
                && let Ok((client, _)) = listener.accept()
            {
                self.take(scope, client, settings.clients_max);
            }
            if self.clients.change(|clients| *clients > 0) || self.service.is_busy() {
                last_seen = Instant::now();
            } else if last_seen.elapsed() >= settings.idle {
                return;
            }
        }
    }

    /// Serves a client on a thread of its own; where there is none to be had, the client sees its connection closed.
    fn take<'scope, 'env>(&'env self, scope: &'scope Scope<'scope, 'env>, client: UnixStream, clients_max: u16) {
        while self.clients.wait(TICK, |clients| (*clients < clients_max).then(|| *clients += 1)).is_none() {}
        let serve = move || {
            let _leaves = Leaves(&self.clients);
            catch_unwind(AssertUnwindSafe(|| self.service.serve(client))).ok();
        };
        let begun = Builder::new().name("client".into()).stack_size(STACK_BYTES).spawn_scoped(scope, serve);
        if begun.is_err() {
            drop(Leaves(&self.clients));
        }
    }
}

/// Counts a client out, however its thread ends.
struct Leaves<'a>(&'a Board<u16>);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.change(|clients| *clients -= 1);
    }
}

/// Whether somebody knocks within a tick; a signal ends the wait.
fn wait_for_client(listener: &UnixListener) -> bool {
    let mut events = [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
    let tick = Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
    matches!(poll(&mut events, Some(&tick)), Ok(count) if count > 0)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

    use super::*;

    /// Doubles numbers; the work is done by the crew.
    #[derive(Default)]
    struct Doubler {
        asked: Board<Vec<u8>>,
        done: Board<Vec<u8>>,
        most_at_once: AtomicUsize,
        at_once: AtomicUsize,
        ended: AtomicBool,
    }

    impl Service for Doubler {
        fn serve(&self, mut client: UnixStream) {
            let here = self.at_once.fetch_add(1, SeqCst) + 1;
            self.most_at_once.fetch_max(here, SeqCst);
            let mut number = [0u8];
            if client.read_exact(&mut number).is_ok() {
                assert_ne!(number[0], 99, "a client that makes its thread panic");
                self.asked.change(|asked| asked.push(number[0]));
                let twice = number[0] * 2;
                while self.done.wait(TICK, |done| done.contains(&twice).then_some(())).is_none() {}
                client.write_all(&[twice]).unwrap();
            }
            self.at_once.fetch_sub(1, SeqCst);
        }

        fn work(&self, patience: Duration) -> bool {
            let Some(number) = self.asked.wait(patience, Vec::pop) else { return false };
            std::thread::sleep(Duration::from_millis(20));
            self.done.change(|done| done.push(number * 2));
            true
        }

        fn is_busy(&self) -> bool {
            self.asked.change(|asked| !asked.is_empty())
        }

        fn end(&self) {
            self.ended.store(true, SeqCst);
        }
    }

    fn ask(path: &std::path::Path, number: u8) -> Option<u8> {
        let mut stream = UnixStream::connect(path).ok()?;
        stream.write_all(&[number]).ok()?;
        let mut answer = [0u8];
        stream.read_exact(&mut answer).ok().map(|()| answer[0])
    }

    fn settings(idle: Duration) -> ServiceSettings {
        ServiceSettings { workers: 2, clients_max: 3, idle }
    }

    #[test]
    fn all_clients_are_served_a_few_at_once_and_the_idle_service_ends() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let service = Doubler::default();
        std::thread::scope(|scope| {
            let clients: Vec<_> = (1..20)
                .map(|number| {
                    scope.spawn({
                        let path = path.clone();
                        move || ask(&path, number)
                    })
                })
                .collect();
            let begun = Instant::now();
            let hide = || std::fs::remove_file(&path).unwrap();
            run_service(&listener, &settings(Duration::from_millis(300)), &service, &|| false, &hide).unwrap();
            assert!(begun.elapsed() >= Duration::from_millis(300));
            for (client, number) in clients.into_iter().zip(1..) {
                assert_eq!(client.join().unwrap(), Some(number * 2));
            }
        });
        assert!(service.ended.load(SeqCst) && !path.exists());
        assert_eq!(service.most_at_once.load(SeqCst), 3);
    }

    #[test]
    fn a_stopped_service_still_answers_who_has_come() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let service = Doubler::default();
        let clients: Vec<_> = (1..10).map(|_| UnixStream::connect(&path).unwrap()).collect();
        std::thread::scope(|scope| {
            for (mut client, number) in clients.into_iter().zip(1u8..) {
                scope.spawn(move || {
                    client.write_all(&[number]).unwrap();
                    let mut answer = [0u8];
                    client.read_exact(&mut answer).unwrap();
                    assert_eq!(answer[0], number * 2);
                });
            }
            run_service(&listener, &settings(Duration::from_secs(60)), &service, &|| true, &|| {}).unwrap();
        });
    }

    #[test]
    fn a_panic_costs_one_client() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let service = Doubler::default();
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| [99, 99, 99, 99, 7].map(|number| ask(&path, number)));
            run_service(&listener, &settings(Duration::from_millis(500)), &service, &|| false, &|| {}).unwrap();
            assert_eq!(asked.join().unwrap(), [None, None, None, None, Some(14)]);
        });
    }

    #[test]
    fn a_wait_on_a_board_ends_in_time() {
        let board = Board::new(0);
        let begun = Instant::now();
        assert_eq!(board.wait(Duration::from_millis(30), |value| (*value > 0).then_some(*value)), None);
        assert!(begun.elapsed() >= Duration::from_millis(30));
        board.change(|value| *value = 5);
        assert_eq!(board.wait(Duration::ZERO, |value| (*value > 0).then_some(*value)), Some(5));
    }
}
