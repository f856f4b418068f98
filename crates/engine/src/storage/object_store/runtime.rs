//! The one place where futures run. Callers are the pipeline's threads: they wait, and the requests of one object go on
//! in the two threads here.

use std::future::Future;
use std::io;
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use async_scoped::TokioScope;
use tokio::runtime::{Builder, Runtime};

use crate::error::{Error, ErrorKind, NO_THREAD_HINT, Result};

/// TLS of a few GB/s and the bookkeeping of requests; more threads would take the encoders' cores.
const THREADS: usize = 2;

/// How long a thread that looked up a name waits for the next one: as long as the process lives. As long as there is one,
/// tokio lets names wait for it where the system gives no second one; without any it would panic.
const LOOKUPS_LIVE: Duration = Duration::from_secs(u32::MAX as u64);

/// The runtime, which lives as long as the process.
///
/// # Errors
/// `Configuration` if the system gives it no threads.
pub(super) fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<std::result::Result<Runtime, String>> = OnceLock::new();
    let made = RUNTIME.get_or_init(|| {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(THREADS).thread_name("object-store").thread_keep_alive(LOOKUPS_LIVE).enable_all();
        let built = try_threads(THREADS + 1).and_then(|()| builder.build());
        let built = built.inspect(|runtime| drop(runtime.spawn_blocking(|| ())));
        built.map_err(|cause| cause.to_string())
    });
    made.as_ref().map_err(|cause| {
        Error::new(ErrorKind::Configuration, "start the threads that speak to object stores", cause)
            .hint(NO_THREAD_HINT)
    })
}

/// Whether the system gives this process `count` threads at once. tokio, which gets fewer than it asks for, waits for ever for
/// those that it got, and its stacks are those that were given here.
fn try_threads(count: usize) -> io::Result<()> {
    let gate = Mutex::new(());
    thread::scope(|scope| {
        let _closed = gate.lock();
        (0..count).try_for_each(|_| thread::Builder::new().spawn_scoped(scope, || drop(gate.lock())).map(drop))
    })
}

/// Waits for `future`.
///
/// # Errors
/// As [`runtime`].
pub(super) fn wait<F: Future>(future: F) -> Result<F::Output> {
    Ok(runtime()?.block_on(future))
}

/// Waits for `future`, which one of the threads here runs: where it takes many pieces, each is taken by a thread that is awake, and
/// out of the caches of its core.
///
/// # Errors
/// As [`runtime`]; `Bug` if `future` panics.
pub(super) fn wait_aside<F>(future: F) -> Result<F::Output>
where
    F: Future + Send,
    F::Output: Send + 'static,
{
    let _inside = runtime()?.enter();
    let ((), mut results) = TokioScope::scope_and_block(|scope| scope.spawn(future));
    let result = results.pop().and_then(|result| result.ok());
    result.ok_or_else(|| Error::new(ErrorKind::Bug, "speak to an object store", "a request panicked, see above"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_panics_is_an_error_and_the_next_one_is_answered() {
        let mut taken = [0; 3];
        let panics = async {
            taken[0] = 1;
            assert_eq!(taken[0], 2, "this test asks for a panic");
        };
        let error = wait_aside(panics).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Bug);
        assert_eq!(wait_aside(async { taken[0] + 1 }).unwrap(), 2);
    }
}
