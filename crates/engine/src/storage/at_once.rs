//! Questions to stores that are asked at the same time: each may wait long for its answer, and none for another's.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, scope};

use crate::error::{Error, ErrorKind, Result, guarded};

/// With answers after 50 ms these are 320 a second, on no more connections than the content of a set has.
const AT_ONCE: usize = 16;

/// What `work` makes of each of `items`, in their order; several are worked on at the same time, in threads that end before this
/// returns.
///
/// # Errors
/// The first one by the order of the items, `Bug` for a panic; after an error no other item is begun.
pub fn at_once<T: Send, R: Send>(items: Vec<T>, work: impl Fn(T) -> Result<R> + Sync) -> Result<Vec<R>> {
    let helper_count = items.len().min(AT_ONCE).saturating_sub(1);
    let left = Mutex::new(items.into_iter().enumerate());
    let has_failed = AtomicBool::new(false);
    let do_some = || {
        let mut done = Vec::new();
        while !has_failed.load(Relaxed) {
            let next = left.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((place, item)) = next else { break };
            let made = guarded(|| work(item));
            has_failed.fetch_or(made.is_err(), Relaxed);
            done.push((place, made));
        }
        done
    };
    let mut done = scope(|scope| {
        // Where the system gives no further thread there are fewer at work, and this one at least.
        let start = |_| Builder::new().name("asks stores".to_owned()).spawn_scoped(scope, do_some).ok();
        let helpers: Vec<_> = (0..helper_count).map_while(start).collect();
        let mut done = do_some();
        for helper in helpers {
            // What could panic is guarded; without what it had in hands the others' results would be no answer.
            let gone = |_| vec![(0, Err(Error::new(ErrorKind::Bug, "ask a store", "a thread is gone")))];
            done.extend(helper.join().unwrap_or_else(gone));
        }
        done
    });
    done.sort_unstable_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, made)| made).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn all_are_done_in_order_and_several_at_once() {
        for count in [0, 1, 2, AT_ONCE, AT_ONCE + 1, 5 * AT_ONCE] {
            // Nobody gets past it alone.
            let others = Barrier::new(count.clamp(1, 2));
            let met = AtomicUsize::new(0);
            let made = at_once((0..count).collect(), |item| {
                if met.fetch_add(1, Relaxed) < 2 {
                    others.wait();
                }
                Ok(item * 2)
            });
            assert_eq!(made.unwrap(), (0..count).map(|item| item * 2).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_first_error_by_order_ends_it() {
        let begun = AtomicUsize::new(0);
        let failed = at_once((0..1000).collect(), |item: usize| {
            begun.fetch_add(1, Relaxed);
            if item >= 3 { Err(Error::new(ErrorKind::Repository, format!("ask {item}"), "no answer")) } else { Ok(()) }
        });
        assert!(failed.unwrap_err().message().contains("ask 3:"));
        assert!(begun.into_inner() <= 3 + AT_ONCE);
    }

    #[test]
    fn a_panic_is_an_error() {
        for count in [1, 40] {
            let made =
                at_once((0..count).collect(), |item| if item == count - 1 { panic!("broken") } else { Ok(item) });
            assert_eq!(made.unwrap_err().kind(), ErrorKind::Bug);
        }
    }
}
