//! Two things at the same time, where one of them waits for somebody else.

use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, scope};

use crate::error::{Error, ErrorKind, Result, guarded};

/// What `here` and `aside` give. `aside` runs in a thread that ends before this returns, or after `here` where the system gives no
/// further thread.
///
/// # Errors
/// That of `here` before that of `aside`; `Bug` for a panic in `aside`.
pub fn beside<H, A: Send>(
    here: impl FnOnce() -> Result<H>,
    aside: impl FnOnce() -> Result<A> + Send,
) -> Result<(H, A)> {
    let aside = Mutex::new(Some(aside));
    let run_aside = || aside.lock().unwrap_or_else(PoisonError::into_inner).take().map(|aside| guarded(aside));
    let (here, before) = scope(|scope| {
        let helper = Builder::new().name("beside".to_owned()).spawn_scoped(scope, run_aside).ok();
        (here(), helper.and_then(|helper| helper.join().ok()).flatten())
    });
    let here = here?;
    // What could panic is guarded: whoever took it has given an answer.
    let gone = || Err(Error::new(ErrorKind::Bug, "do two things at once", "a thread is gone"));
    before.or_else(run_aside).unwrap_or_else(gone).map(|aside| (here, aside))
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn both_are_done_at_once_and_errors_come_in_order() {
        // Neither goes on without the other.
        let (meet, count) = (Barrier::new(2), |number: u32| Ok(number));
        let done = beside(|| count(meet.wait().is_leader().into()), || count(meet.wait().is_leader().into())).unwrap();
        assert_eq!(done.0 + done.1, 1);
        let failed = |text: &'static str| Err::<(), _>(Error::new(ErrorKind::Source, "do it", text));
        let message = |done: Result<((), ())>| done.unwrap_err().message();
        assert_eq!(message(beside(|| failed("here"), || failed("aside"))), "unable to do it: here");
        assert_eq!(message(beside(|| Ok(()), || failed("aside"))), "unable to do it: aside");
        let error = beside(|| Ok(()), || -> Result<()> { panic!("aside") }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Bug);
    }
}
