//! Leases where nothing is locked and no object is rewritten.
//!
//! Holders of a lease are numbered: whoever creates the object of the next number holds it, and of two the store tells one
//! that it was second. A holder shows that it lives by new objects, beats. It is dead when its newest object is older
//! than a lease's life *by the store's clock*, which an object that was just written tells: clocks of machines decide
//! nothing. One that was away too long finds the next number taken.
//!
//! ```text
//! NAME.lease/00000007              the seventh holder: who it is, in words
//! NAME.lease/00000007-beat-0000002a  its 42nd beat
//! NAME.lease/00000007-end          it has given the lease back
//! NAME.lease/probe-<16 hex>        somebody asks for the store's time
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use jiff::Timestamp;
use opendal::Metadata;
use tokio::sync::Notify;

use super::runtime::runtime;
use super::upload::{mark, mark_of, put, put_marked};
use super::{Store, is_there};
use crate::error::{Error, ErrorKind, Result};
use crate::storage::{Holder, Lease};

/// What a lease's objects lie below, behind its name.
const SUFFIX: &str = ".lease";
/// A holder without a beat for so long is dead.
const LIFE: Duration = Duration::from_secs(60);
/// Three may fail before a holder counts as dead.
const BEAT_EVERY: Duration = Duration::from_secs(15);

/// Whether an object of that name can be a lease: all others have an extension.
pub(super) fn may_be(name: &str) -> bool {
    name.rsplit('/').next().is_some_and(|last| !last.contains('.'))
}

/// The name that a listing shows for an entry of a store.
pub(super) fn shown(entry: &str) -> &str {
    let name = entry.trim_end_matches('/');
    if entry.ends_with('/') { name.strip_suffix(SUFFIX).unwrap_or(name) } else { name }
}

fn directory(name: &str) -> String {
    format!("{name}{SUFFIX}")
}

fn number_name(directory: &str, number: u32) -> String {
    format!("{directory}/{number:08}")
}

/// The newest holder, as its objects' names tell.
struct Newest {
    number: u32,
    has_ended: bool,
    /// The object that was written last.
    last: String,
}

/// Objects of the holders, each with whether it is an end mark.
fn holders(store: &Store, directory: &str) -> Result<BTreeMap<u32, Vec<String>>> {
    let mut found: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for name in store.list(directory)? {
        let number = name.get(..8).and_then(|number| number.parse().ok());
        found.entry(number.unwrap_or(0)).or_default().push(name);
    }
    Ok(found)
}

fn newest(store: &Store, directory: &str) -> Result<Option<Newest>> {
    let mut holders = holders(store, directory)?;
    // Number 0 is nobody: those are probes.
    holders.remove(&0);
    Ok(holders.pop_last().map(|(number, mut names)| {
        let has_ended = names.iter().any(|name| name.ends_with("-end"));
        names.sort_unstable();
        let last = names.pop().unwrap_or_default();
        Newest { number, has_ended, last: format!("{directory}/{last}") }
    }))
}

/// Whether the newest holder has shown life lately; asked of the store's clock.
fn lives(store: &Store, directory: &str, newest: &Newest) -> Result<bool> {
    if newest.has_ended {
        return Ok(false);
    }
    let Some(last) = store.stat(&newest.last)? else {
        // Its beat was replaced by the next one, or it is given back at this moment.
        return Ok(true);
    };
    let now = store_time(store, directory)?;
    let Some((shown, now)) = modified(&last).zip(now) else { return Ok(true) };
    Ok(now.duration_since(shown).unsigned_abs() < LIFE || shown > now)
}

fn modified(object: &Metadata) -> Option<Timestamp> {
    object.last_modified().map(Timestamp::from)
}

/// The store's time; None if it lets us write nothing, or does not tell.
fn store_time(store: &Store, directory: &str) -> Result<Option<Timestamp>> {
    let probe = format!("{directory}/probe-{}", &mark()?[..16]);
    if put(store, &probe, b"").is_err() {
        return Ok(None);
    }
    let found = store.stat(&probe)?;
    // One that may not be deleted is rubbish, and a lease's objects go with it.
    store.delete(&probe).ok();
    Ok(found.as_ref().and_then(modified))
}

/// Takes the lease, if nobody who lives has it.
pub(super) fn take(store: &Arc<Store>, name: &str) -> Result<Option<Box<dyn Lease>>> {
    let directory = directory(name);
    let before = newest(store, &directory)?;
    if let Some(before) = &before
        && lives(store, &directory, before)?
    {
        return Ok(None);
    }
    let number = before.as_ref().map_or(0, |before| before.number) + 1;
    let mark = mark()?;
    if !put_marked(store, &number_name(&directory, number), Holder::here().to_text().as_bytes(), &mark)? {
        return Ok(None);
    }
    let held = Held { store: Arc::clone(store), directory, number, mark, stop: Arc::new(Stop::default()) };
    held.begin_beating()?;
    if let Some(before) = before {
        // Only rubbish now; a store that keeps it loses nothing by it.
        held.remove(|number| number <= before.number).ok();
    }
    Ok(Some(Box::new(held)))
}

/// Whether somebody who lives holds the lease.
pub(super) fn is_held(store: &Store, name: &str) -> Result<bool> {
    let directory = directory(name);
    newest(store, &directory)?.map_or(Ok(false), |newest| lives(store, &directory, &newest))
}

/// Removes everything of the lease, and an object of its name.
pub(super) fn delete(store: &Store, name: &str) -> Result<()> {
    let directory = directory(name);
    for object in holders(store, &directory)?.into_values().flatten() {
        store.delete(&format!("{directory}/{object}"))?;
    }
    store.delete(name)
}

/// The object in which the newest holder says who it is.
pub(super) fn words(store: &Store, name: &str) -> Result<Option<(String, Metadata)>> {
    if !may_be(name) {
        return Ok(None);
    }
    let directory = directory(name);
    let Some(newest) = newest(store, &directory)? else { return Ok(None) };
    let object = number_name(&directory, newest.number);
    Ok(store.stat(&object)?.map(|found| (object, found)))
}

#[derive(Default)]
struct Stop {
    asked: AtomicBool,
    wake: Notify,
}

struct Held {
    store: Arc<Store>,
    directory: String,
    number: u32,
    /// Of the object of that number: when all objects of a lease were removed, the next holder begins with 1 again.
    mark: String,
    stop: Arc<Stop>,
}

/// Shows that the holder whose object is `own` lives. A new object, like all others: a bucket may take nothing else.
async fn beat(store: &Store, own: &str, number: u32, mark: &str) -> opendal::Result<()> {
    let name = |number: u32| format!("{own}-beat-{number:08}");
    store.operator.write_options(&name(number), Vec::<u8>::new(), store.write_options(mark, 1)).await?;
    if number > 1 {
        store.operator.delete(&name(number - 1)).await?;
    }
    Ok(())
}

impl Held {
    fn begin_beating(&self) -> Result<()> {
        let (store, stop) = (Arc::clone(&self.store), Arc::clone(&self.stop));
        let (own, mark) = (number_name(&self.directory, self.number), self.mark.clone());
        runtime()?.spawn(async move {
            for number in 1.. {
                tokio::select! {
                    () = tokio::time::sleep(BEAT_EVERY) => {}
                    () = stop.wake.notified() => {}
                }
                if stop.asked.load(SeqCst) {
                    return;
                }
                // A lease that was deleted must not come back as a beat, nor somebody else's be kept alive by it.
                let found = is_there(&store.operator, &own).await;
                if found.is_ok_and(|found| found.as_ref().and_then(mark_of) != Some(&mark)) {
                    return;
                }
                beat(&store, &own, number, &mark).await.ok();
            }
        });
        Ok(())
    }

    /// Whether the object of our number is there and ours.
    fn has_own(&self) -> Result<bool> {
        let found = self.store.stat(&number_name(&self.directory, self.number))?;
        Ok(found.as_ref().and_then(mark_of) == Some(&self.mark))
    }

    /// Removes the objects of the holders that `which` names.
    fn remove(&self, which: impl Fn(u32) -> bool) -> Result<()> {
        for (number, names) in holders(&self.store, &self.directory)? {
            // The one that says who is first in line goes last: without it the number would be free again.
            let mut names = names;
            names.sort_unstable_by_key(|name| std::cmp::Reverse(name.len()));
            for name in names.iter().filter(|_| number > 0 && which(number)) {
                self.store.delete(&format!("{}/{name}", self.directory))?;
            }
        }
        Ok(())
    }
}

impl Lease for Held {
    fn check_held(&self) -> Result<()> {
        let lost = |cause: &str| {
            Error::new(ErrorKind::Conflict, format!("go on with {}", self.directory.trim_end_matches(SUFFIX)), cause)
                .hint("this process was away for longer than a lease lives; run it again")
        };
        match newest(&self.store, &self.directory)? {
            Some(newest) if newest.number == self.number && self.has_own()? => Ok(()),
            _ => Err(lost("somebody else has taken the lease meanwhile")),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.stop.asked.store(true, SeqCst);
        self.stop.wake.notify_one();
        // Without the end mark others wait until the beats are old. A lease that was deleted needs none, and one that is
        // somebody else's by now must not get it.
        if self.has_own().unwrap_or(false) {
            put(&self.store, &format!("{}-end", number_name(&self.directory, self.number)), b"").ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use pagehaul_testkit::s3_faults::S3Fault;
    use pagehaul_testkit::s3_server::{S3Server, told_target};

    use super::super::ObjectStore;
    use super::super::runtime::wait;
    use super::*;

    #[test]
    fn s19_a_lease_is_kept_where_only_new_objects_are_taken() {
        if let Some(target) = told_target() {
            let store = ObjectStore::open(&target).unwrap().store;
            let lease = take(&store, "a/in-progress").unwrap().unwrap();
            let own = "a/in-progress.lease/00000001";
            // The second may not remove the first.
            for number in [1, 2] {
                let removed = wait(beat(&store, own, number, "mark")).unwrap();
                assert_eq!(removed.is_ok(), number == 1);
            }
            let newest = newest(&store, "a/in-progress.lease").unwrap().unwrap();
            assert_eq!(newest.last, format!("{own}-beat-00000002"));
            lease.check_held().unwrap();
            assert!(is_held(&store, "a/in-progress").unwrap());
            drop(lease);
            assert!(!is_held(&store, "a/in-progress").unwrap());
            return;
        }
        let server = S3Server::start(&["bucket"]);
        server.faults.arm(S3Fault::OnlyNew, 0..usize::MAX);
        let test = "storage::object_store::lease::tests::s19_a_lease_is_kept_where_only_new_objects_are_taken";
        server.run_again(test, &server.target("bucket"));
    }
}
