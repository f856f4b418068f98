//! Says that a store is waited for: a request that fails is tried again for half a minute, and one without an answer for minutes.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use opendal::layers::RetryEvent;

use super::errors::cause;

/// Most failures are over by then, and nobody needs to hear of them.
const ATTEMPT_TOLD: u32 = 3;
/// Hundreds of requests may fail at once, all for the same reason.
const QUIET: Duration = Duration::from_secs(10);

struct Teller {
    tell: Box<dyn Fn(&str) + Send>,
    told: Option<Instant>,
}

static TELLER: Mutex<Option<Teller>> = Mutex::new(None);

/// From now on `tell` hears of it when a store of this process is waited for, once in ten seconds at most; whoever heard of it before does not
/// any more.
pub fn tell_of_waits(tell: impl Fn(&str) + Send + 'static) {
    *TELLER.lock().unwrap_or_else(PoisonError::into_inner) = Some(Teller { tell: Box::new(tell), told: None });
}

/// Tells of a request to `store` that failed and is sent again, unless it may be the next moment's success.
pub(super) fn tell_of(store: &str, retries: usize, event: &RetryEvent<'_>) {
    let words = cause(event.err);
    // The first of those took a minute.
    let was_long = words.contains("timeout");
    if event.attempt < ATTEMPT_TOLD && !was_long {
        return;
    }
    let mut teller = TELLER.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(teller) = teller.as_mut() else { return };
    if teller.told.is_none_or(|told| told.elapsed() >= QUIET) {
        (teller.tell)(&format!("{store} is asked again ({} of {retries}), after {words}", event.attempt));
        teller.told = Some(Instant::now());
    }
}
