//! `heads/<counter>.json`: signed lists of a source's sets, each with the digest of the one before.
//!
//! Who may write to a repository can add sets, change manifests, or put an old state of all of it back. A reader that knows
//! whose signatures count takes only sets that the newest head lists, with the very bytes of their manifests; and one that
//! remembers the newest head which it has seen takes nothing older.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use super::known_heads::KnownHeads;
use super::repository::{LEASE_NAME, MANIFEST_NAME, Repository, set_prefix, sets_prefix};
use super::tombstone::is_expiring;
use crate::encryption::Signed;
use crate::error::{Error, ErrorKind, Result};
use crate::format::FORMAT_VERSION;
use crate::format::checksum::sha256_hex;
use crate::format::head::{HEAD_BYTES_MAX, Head, SignedSet};
use crate::limits::MANIFEST_BYTES_MAX;
use crate::terms::{BackupLabel, SourceName};

/// How often another process may take the next counter first.
const ATTEMPTS_MAX: u32 = 100;
const ADOPT_HINT: &str = "if you know where it comes from, `pagehaul head sign --confirm` takes it in";

/// A head, and the digest of its bytes.
#[derive(Debug)]
pub struct FoundHead {
    /// What it says.
    pub head: Head,
    /// SHA-256 of its object, in hexadecimal.
    pub sha256: String,
}

/// What `head sign` changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeadChange {
    /// Sets that were not in the head before.
    pub added: Vec<BackupLabel>,
    /// Sets whose manifests are others than before.
    pub changed: Vec<BackupLabel>,
    /// Sets that are not there any more.
    pub removed: Vec<BackupLabel>,
    /// The new head's counter; None if nothing was signed.
    pub counter: Option<u64>,
}

type Manifests = BTreeMap<BackupLabel, String>;

fn prefix(source: &SourceName) -> String {
    format!("{source}/heads")
}

fn name(source: &SourceName, counter: u64) -> String {
    format!("{}/{counter:010}.json", prefix(source))
}

/// The newest head of a source as it lies there, whoever signed it; None if there is none.
///
/// # Errors
/// `Damage` if it does not read; those of the storage.
pub fn newest_head(repository: &Repository, source: &SourceName) -> Result<Option<FoundHead>> {
    let names = repository.stored().list(&prefix(source))?;
    let counter = |name: String| name.strip_suffix(".json")?.parse::<u64>().ok();
    let Some(mut counter) = names.into_iter().filter_map(counter).max() else { return read(repository, source, 1) };
    let listed = read(repository, source, counter)?;
    let mut newest = listed.ok_or_else(|| {
        let action = format!("read {} in {}", name(source, counter), repository.stored().describe());
        Error::new(ErrorKind::Damage, action, "it is listed, and it is not there")
    })?;
    // A list that leaves some out is not the last word: what follows is asked for by its name.
    while let Some(next) = read(repository, source, counter + 1)? {
        (newest, counter) = (next, counter + 1);
    }
    Ok(Some(newest))
}

fn read(repository: &Repository, source: &SourceName, counter: u64) -> Result<Option<FoundHead>> {
    let name = name(source, counter);
    let Some(bytes) = repository.stored().read_small(&name, HEAD_BYTES_MAX)? else { return Ok(None) };
    let head = Head::from_bytes(&bytes, &name)?;
    if head.counter != counter || head.source != *source {
        let cause = format!("it is head {} of {}", head.counter, head.source);
        return Err(Error::new(ErrorKind::Damage, format!("read {name}"), cause));
    }
    Ok(Some(FoundHead { head, sha256: sha256_hex(&bytes) }))
}

/// The newest head, if the process asks for signatures: it is signed by somebody who counts, and follows what was seen before.
///
/// # Errors
/// `Damage` if it does not; those of the storage.
pub fn trusted_head(repository: &Repository, source: &SourceName) -> Result<Option<Arc<FoundHead>>> {
    if !repository.keys().asks_for_signatures() || repository.storage().discards() {
        return Ok(None);
    }
    let found = newest_head(repository, source)?;
    if let Some(found) = &found {
        check_signature(repository, found)?;
    }
    check_follows_known(repository, source, found.as_ref())?;
    let found = found.map(Arc::new);
    let mut seen = repository.heads().lock().unwrap_or_else(PoisonError::into_inner);
    match &found {
        Some(found) => drop(seen.insert(source.clone(), Arc::clone(found))),
        None => drop(seen.remove(source)),
    }
    Ok(found)
}

fn check_signature(repository: &Repository, found: &FoundHead) -> Result<()> {
    let head = &found.head;
    let checked = repository.keys().signing().check(Signed::Head, &head.signed_bytes()?, &head.signer, &head.signature);
    checked.map_err(|cause| {
        let action = format!("trust {} in {}", name(&head.source, head.counter), repository.stored().describe());
        Error::new(ErrorKind::Damage, action, cause)
            .hint("give --signer the public key of who may sign; if this one may not, somebody else writes there")
    })
}

/// Whether the head is the one that was seen last, or comes after it by its own chain; if so, it is remembered.
fn check_follows_known(repository: &Repository, source: &SourceName, found: Option<&FoundHead>) -> Result<()> {
    let Some(memory) = KnownHeads::of(repository, source)? else { return Ok(()) };
    let known = memory.newest()?;
    let went_back = |cause: String| {
        let action = format!("trust the repository {} with sets of {source}", repository.stored().describe());
        Err(Error::new(ErrorKind::Damage, action, cause).hint(format!(
            "use another copy of the repository; if you put an old state back yourself, remove {} and sign what is there \
             with `pagehaul head sign --confirm`",
            memory.describe()
        )))
    };
    for known in &known {
        let seen = known.counter;
        let Some(found) = found else {
            return went_back(format!("it went back: head {seen} was there, and now there is none"));
        };
        let has = found.head.counter;
        if has < seen {
            return went_back(format!("it went back: head {seen} was there, and now head {has} is the newest"));
        }
        if !follows(repository, source, found, &(seen, &known.sha256))? {
            return went_back(format!(
                "its history is another one: head {has} does not follow from head {seen} as it was"
            ));
        }
    }
    found.map_or(Ok(()), |found| memory.remember(found.head.counter, &found.sha256))
}

fn follows(repository: &Repository, source: &SourceName, found: &FoundHead, known: &(u64, &String)) -> Result<bool> {
    if found.head.counter == known.0 {
        return Ok(found.sha256 == *known.1);
    }
    let mut previous = found.head.previous_sha256.clone();
    for counter in (known.0 + 1..found.head.counter).rev() {
        match read(repository, source, counter)? {
            Some(older) if previous.as_ref() == Some(&older.sha256) => previous = older.head.previous_sha256,
            _ => return Ok(false),
        }
    }
    Ok(previous.as_ref() == Some(known.1))
}

/// Checks that the newest head lists this manifest, if the process asks for signatures.
///
/// # Errors
/// `Damage` if it does not; as [`trusted_head`].
pub(super) fn check_manifest(
    repository: &Repository,
    source: &SourceName,
    label: &BackupLabel,
    bytes: &[u8],
) -> Result<()> {
    if !repository.keys().asks_for_signatures() {
        return Ok(());
    }
    let sha256 = sha256_hex(bytes);
    let is_listed = |found: &FoundHead| found.head.manifest_sha256(label) == Some(&sha256);
    let seen = |copy: &Repository| {
        let seen = copy.heads().lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(source).is_some_and(|seen| is_listed(seen))
    };
    if repository.any_copy(|copy| Ok(seen(copy)))? {
        return Ok(());
    }
    // One that was committed since is in a later head.
    let found = repository.any_copy(|copy| trusted_head(copy, source))?;
    let bad = |cause: String| {
        Err(Error::new(ErrorKind::Damage, format!("trust set {label} of {source}"), cause).hint(ADOPT_HINT))
    };
    match &found {
        Some(found) if is_listed(found) => Ok(()),
        Some(found) if found.head.manifest_sha256(label).is_some() => {
            bad(format!("its manifest is not the one that head {} lists: it was changed", found.head.counter))
        }
        Some(found) => bad(format!("it is not signed: head {} does not list it", found.head.counter)),
        // The first head is about to be signed.
        None if !repository.keys().names_signers() => Ok(()),
        None => bad("it is not signed: there is no head".to_owned()),
    }
}

/// Refuses to change the sets of a source that are signed without signing.
///
/// # Errors
/// `Configuration` if there is a head and no key that signs; those of the storage.
pub fn refuse_unsigned(repository: &Repository, source: &SourceName) -> Result<()> {
    let storage = repository.stored();
    if repository.keys().signs() || storage.discards() || storage.list(&prefix(source))?.is_empty() {
        return Ok(());
    }
    let action = format!("change the sets of {source} in {}", storage.describe());
    let cause = "they are signed, and there is no key to sign what comes next";
    Err(Error::new(ErrorKind::Configuration, action, cause)
        .hint(format!("give --sign-key FILE; to go on without signatures, remove {} by hand", prefix(source))))
}

/// Signs that a set with this manifest is there from now on, if the process signs.
///
/// # Errors
/// `Conflict` if others are always faster; as [`trusted_head`].
pub(super) fn sign_set(repository: &Repository, source: &SourceName, label: &BackupLabel, bytes: &[u8]) -> Result<()> {
    let sha256 = sha256_hex(bytes);
    let signed = change(repository, source, |sets| drop(sets.insert(label.clone(), sha256.clone())));
    signed.map_err(|error| error.more_hint(&format!("set {label} is complete, but not signed: {ADOPT_HINT}")))
}

/// Signs that these sets are not there any more, if the process signs and there is a head.
///
/// # Errors
/// As [`sign_set`].
pub fn sign_without(repository: &Repository, source: &SourceName, labels: &[BackupLabel]) -> Result<()> {
    let is_listed = |found: &FoundHead| labels.iter().any(|label| found.head.manifest_sha256(label).is_some());
    if !repository.keys().signs() || !newest_head(repository, source)?.is_some_and(|found| is_listed(&found)) {
        return Ok(());
    }
    change(repository, source, |sets| sets.retain(|label, _| !labels.contains(label)))
}

fn change(repository: &Repository, source: &SourceName, edit: impl Fn(&mut Manifests)) -> Result<()> {
    if !repository.keys().signs() || repository.storage().discards() {
        return Ok(());
    }
    for _ in 0..ATTEMPTS_MAX {
        let before = trusted_head(repository, source)?;
        let mut sets = match &before {
            Some(before) => manifests_of(&before.head),
            // Whoever begins to sign takes what is there, unless somebody says whose sets count.
            None if !repository.keys().names_signers() => all_manifests(repository, source)?,
            None => Manifests::new(),
        };
        edit(&mut sets);
        if put_next(repository, source, before.as_deref(), sets)?.is_some() {
            return trusted_head(repository, source).map(drop);
        }
    }
    let action = format!("sign the sets of {source} in {}", repository.stored().describe());
    Err(Error::new(ErrorKind::Conflict, action, "others sign them all the time"))
}

/// Puts the head after `before`; its counter, or None if somebody else has put one there.
fn put_next(
    repository: &Repository,
    source: &SourceName,
    before: Option<&FoundHead>,
    sets: Manifests,
) -> Result<Option<u64>> {
    let counter = before.map_or(0, |before| before.head.counter) + 1;
    let mut head = Head {
        format_version: FORMAT_VERSION,
        source: source.clone(),
        counter,
        previous_sha256: before.map(|before| before.sha256.clone()),
        signed_at: jiff::Timestamp::now().to_string(),
        sets: sets.into_iter().map(|(label, manifest_sha256)| SignedSet { label, manifest_sha256 }).collect(),
        signer: String::new(),
        signature: String::new(),
    };
    let (signer, signature) = repository
        .keys()
        .signing()
        .sign(Signed::Head, |signer| Head { signer: signer.to_owned(), ..head.clone() }.signed_bytes())?;
    (head.signer, head.signature) = (signer, signature);
    Ok(repository.stored().put_new(&name(source, counter), &head.to_bytes()?)?.then_some(counter))
}

fn manifests_of(head: &Head) -> Manifests {
    head.sets.iter().map(|set| (set.label.clone(), set.manifest_sha256.clone())).collect()
}

/// The manifests that are there, whoever wrote them, of sets that expire does not remove.
fn all_manifests(repository: &Repository, source: &SourceName) -> Result<Manifests> {
    let storage = repository.stored();
    let mut manifests = Manifests::new();
    for label in storage.list(&sets_prefix(source))? {
        let Ok(label) = label.parse::<BackupLabel>() else { continue };
        let set = set_prefix(source, &label);
        if is_expiring(&storage.list(&set)?) {
            continue;
        }
        if let Some(bytes) = storage.read_small(&format!("{set}/{MANIFEST_NAME}"), MANIFEST_BYTES_MAX)? {
            manifests.insert(label, sha256_hex(&bytes));
        }
    }
    Ok(manifests)
}

/// The newest head, whoever signed it, and in what the sets that are there differ from it.
///
/// # Errors
/// As [`newest_head`].
pub fn changes_since_head(repository: &Repository, source: &SourceName) -> Result<(Option<FoundHead>, HeadChange)> {
    let before = newest_head(repository, source)?;
    let change = changes(before.as_ref(), &all_manifests(repository, source)?);
    Ok((before, change))
}

fn changes(before: Option<&FoundHead>, new: &Manifests) -> HeadChange {
    let old = before.map(|before| manifests_of(&before.head)).unwrap_or_default();
    let missing_in = |sets: &Manifests, labels: &Manifests| -> Vec<BackupLabel> {
        labels.keys().filter(|label| !sets.contains_key(*label)).cloned().collect()
    };
    let is_changed = |(label, sha256): (&BackupLabel, &String)| {
        old.get(label).is_some_and(|before| before != sha256).then(|| label.clone())
    };
    let changed = new.iter().filter_map(is_changed).collect();
    HeadChange { added: missing_in(&old, new), changed, removed: missing_in(new, &old), counter: None }
}

/// Signs the sets as they are there now, whoever put them there; or only says what would change.
///
/// # Errors
/// `Configuration` without a key that signs; `Damage` if the head is signed by somebody else; those of the storage.
pub fn sign_all(repository: &Repository, source: &SourceName, confirm: bool) -> Result<HeadChange> {
    let before = newest_head(repository, source)?;
    if let Some(before) = &before {
        check_signature(repository, before)?;
    }
    let new = all_manifests(repository, source)?;
    let mut change = changes(before.as_ref(), &new);
    if confirm && (before.is_none() || change != HeadChange::default()) {
        change.counter = put_next(repository, source, before.as_ref(), new)?;
        if change.counter.is_none() {
            let action = format!("sign the sets of {source} in {}", repository.stored().describe());
            return Err(Error::new(ErrorKind::Conflict, action, "somebody else has signed them meanwhile")
                .hint("look again what would change"));
        }
        trusted_head(repository, source)?;
    }
    Ok(change)
}

/// The sets that the head lists and that are not among `there`, each as what is wrong.
///
/// # Errors
/// `Repository` if one is there all the same: then the store's list is not the last word, and nothing may be decided by it;
/// those of the storage.
pub(super) fn missing_sets(
    repository: &Repository,
    found: &FoundHead,
    there: &[&BackupLabel],
) -> Result<Vec<(BackupLabel, Error)>> {
    let Head { counter, source, sets, .. } = &found.head;
    let is_missing = |set: &&SignedSet| !there.contains(&&set.label);
    let mut missing = Vec::new();
    for set in sets.iter().filter(is_missing) {
        let label = &set.label;
        if repository.stored().open(&format!("{}/{MANIFEST_NAME}", set_prefix(source, label)))?.is_some() {
            let action = format!("list the sets of {source} in {}", repository.stored().describe());
            let cause = format!("the store's list leaves out {label}, which is there, and which head {counter} lists");
            return Err(Error::new(ErrorKind::Repository, action, cause)
                .hint("nothing was decided by that list; try again, and ask the store's makers if it stays so"));
        }
        let cause = format!("head {counter} lists it, and it is not there");
        let hint = "somebody removed it; if you did, `pagehaul head sign --confirm` says so to everybody";
        let error = Error::new(ErrorKind::Damage, format!("open set {label} of {source}"), cause).hint(hint);
        missing.push((label.clone(), error));
    }
    Ok(missing)
}

/// Whether a set that is not signed is only on its way to be: who commits it still holds it.
pub(super) fn may_become_signed(repository: &Repository, prefix: &str) -> Result<bool> {
    Ok(repository.keys().asks_for_signatures() && repository.storage().is_leased(&format!("{prefix}/{LEASE_NAME}"))?)
}

#[cfg(test)]
#[path = "signed_head_tests.rs"]
mod tests;
