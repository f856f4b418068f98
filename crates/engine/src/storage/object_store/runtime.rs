//! The one place where futures run. Callers are the pipeline's threads: they wait, and the requests of one object go on
//! in the two threads here.

use std::future::Future;
use std::sync::OnceLock;

use tokio::runtime::{Builder, Runtime};

use crate::error::{Error, ErrorKind, Result};

/// TLS of a few GB/s and the bookkeeping of requests; more threads would take the encoders' cores.
const THREADS: usize = 2;

/// The runtime, which lives as long as the process.
///
/// # Errors
/// `Configuration` if the system gives it no threads.
pub(super) fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<std::result::Result<Runtime, String>> = OnceLock::new();
    let made = RUNTIME.get_or_init(|| {
        let built =
            Builder::new_multi_thread().worker_threads(THREADS).thread_name("object-store").enable_all().build();
        built.map_err(|cause| cause.to_string())
    });
    made.as_ref()
        .map_err(|cause| Error::new(ErrorKind::Configuration, "start the threads that speak to object stores", cause))
}

/// Waits for `future`.
///
/// # Errors
/// As [`runtime`].
pub(super) fn wait<F: Future>(future: F) -> Result<F::Output> {
    Ok(runtime()?.block_on(future))
}
