//! Says that a store is waited for: a request that fails is tried again for half a minute, and one without an answer for minutes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Two seconds have passed by then. Most failures are over, and nobody needs to hear of them.
const ATTEMPT_TOLD: usize = 4;
/// Hundreds of requests may fail at once, all for the same reason.
const QUIET: Duration = Duration::from_secs(10);

type Tell = Arc<dyn Fn(&str) + Send + Sync>;

static TELL: Mutex<Option<Tell>> = Mutex::new(None);
/// When each store was told of.
static TOLD: Mutex<BTreeMap<String, Instant>> = Mutex::new(BTreeMap::new());
static IS_TELLING: AtomicBool = AtomicBool::new(false);

/// From now on `tell` hears of it when a store of this process is waited for, of each store once in ten seconds at most; whoever heard of it before does
/// not any more.
pub fn tell_of_waits(tell: impl Fn(&str) + Send + Sync + 'static) {
    *TELL.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(tell));
}

/// Tells of a request to `store` that failed for the `attempt`th time, for what `words` say, and is sent again, unless it may be the next
/// moment's success.
///
/// It waits for nobody: who reads what is told may be slow, and the threads of the runtime, which ask here, keep leases alive.
pub(super) fn tell_of(store: &str, attempt: usize, retries: usize, words: &str) {
    // Each of those took a minute.
    let was_long = words.contains("timeout") || words.contains("no answer within");
    if attempt < ATTEMPT_TOLD && !was_long {
        return;
    }
    let Some(tell) = TELL.lock().unwrap_or_else(PoisonError::into_inner).clone() else { return };
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    let is_due = told.get(store).is_none_or(|told| told.elapsed() >= QUIET);
    if !is_due || IS_TELLING.swap(true, SeqCst) {
        return;
    }
    told.insert(store.to_owned(), Instant::now());
    let text = format!("{store} is asked again ({attempt} of {retries}), after {words}");
    let say = move || {
        tell(&text);
        IS_TELLING.store(false, SeqCst);
    };
    if Builder::new().name("tells".to_owned()).spawn(say).is_err() {
        IS_TELLING.store(false, SeqCst);
    }
}
