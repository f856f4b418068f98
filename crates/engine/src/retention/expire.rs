//! The verb: looks, decides, and, when that is confirmed, removes.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::facts::RetentionInventory;
use super::load::RepositoryShelf;
use super::plan::{Decisions, Fate, WalDecision, plan};
use super::policy::RetentionPolicy;
use super::report::{ExpireReport, Outcome, SetReport, WalReport};
use super::rules::BURIED;
use super::shelf::{Executed, Shelf, execute};
use crate::catalog::Repository;
use crate::catalog::proofs::remove_proofs_of_removed_sets;
use crate::catalog::signed_head::{refuse_unsigned, sign_without};
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::Observer;
use crate::storage::{Holder, Lease, Storage};
use crate::terms::SourceName;

/// Whose sets are looked at, by which rules.
#[derive(Clone, Debug)]
pub struct ExpireRequest {
    /// Whose; None if the repository has only one source.
    pub source: Option<SourceName>,
    /// Repository directory.
    pub repo: String,
    /// The rules.
    pub policy: RetentionPolicy,
    /// The day to decide for; None is now.
    pub at: Option<Timestamp>,
    /// False only says what would be done.
    pub confirm: bool,
}

/// What expire said, and the error that kept it from doing all of it.
#[derive(Debug)]
pub struct Expired {
    /// What was decided and done.
    pub report: ExpireReport,
    /// Why not all of it was done; the next expire goes on.
    pub failed: Option<Error>,
}

/// Decides which sets and which WAL go, and, if that is confirmed, removes them.
///
/// # Errors
/// `Usage` for rules that say nothing; `Conflict` if nothing restorable would be left or another expire runs;
/// `Interrupted`; those of the storage.
pub fn expire(request: &ExpireRequest, observer: &dyn Observer) -> Result<Expired> {
    request.policy.check()?;
    if request.confirm && request.at.is_some() {
        return Err(Error::new(ErrorKind::Usage, "use --at with --confirm", "another day can only be looked at")
            .hint("leave out --confirm to see what would go on that day, or --at to remove what goes today"));
    }
    let repository = Repository::open(&request.repo)?;
    let source = repository.source_or_only(request.source.as_ref())?;
    if repository.storage().list(source.as_str())?.is_empty() {
        let known: Vec<String> = repository.sources()?.iter().map(ToString::to_string).collect();
        return Err(Error::new(ErrorKind::Repository, format!("expire sets of {source}"), "the repository has none")
            .hint(format!("it has: {}", known.join(", "))));
    }
    let _turn = if request.confirm { Some(Turn::take(&repository, &source)?) } else { None };
    expire_in(&repository, &source, request, observer)
}

/// As [`expire`], in a repository that the caller opened, without taking turns with other expires.
pub(super) fn expire_in(
    repository: &Repository,
    source: &SourceName,
    request: &ExpireRequest,
    observer: &dyn Observer,
) -> Result<Expired> {
    let at = request.at.unwrap_or_else(Timestamp::now);
    let shelf = RepositoryShelf { repository, source, observer, at };
    observer.phase(&format!("look at the sets and the WAL of {source}"));
    let inventory = shelf.inventory()?;
    let decisions = plan(&inventory, &request.policy, at);
    if let Some(refusal) = &decisions.refusal {
        return Err(Error::new(ErrorKind::Conflict, format!("expire sets of {source}"), refusal)
            .hint("make a new full backup first; `pagehaul info` says what is wrong with the sets that are left"));
    }
    let executed = if request.confirm {
        refuse_unsigned(repository, source)?;
        let executed = execute(&shelf, &inventory, &decisions);
        // Those that went, whatever kept others from going.
        sign_without(repository, source, &shelf.gone(&decisions)?)?;
        let executed = executed?;
        shelf.sweep_empty()?;
        remove_proofs_of_removed_sets(repository, source)?;
        executed
    } else {
        Executed::default()
    };
    let report = render(source, request, at, &inventory, decisions, &executed);
    Ok(Expired { report, failed: executed.failed })
}

/// Expires of one source take turns: not for safety, which does not need it, but so that the second one's report says
/// what it did.
struct Turn<'a> {
    storage: &'a dyn Storage,
    name: String,
    _lease: Box<dyn Lease>,
}

impl<'a> Turn<'a> {
    fn take(repository: &'a Repository, source: &SourceName) -> Result<Self> {
        let (storage, name) = (repository.storage(), format!("{source}/expire-in-progress"));
        match storage.lease(&name)? {
            Some(lease) => {
                let turn = Turn { storage, name, _lease: lease };
                // Tombstones of sets that cannot be removed would hide them for nothing. Nothing has this name: a store
                // refuses it all the same to those who may not delete.
                storage.delete(&format!("{source}/expire-may-delete"))?;
                Ok(turn)
            }
            None => {
                let holder = Holder::of_lease(storage, &name);
                let cause = format!("another expire is running{}", Holder::suffix(holder.as_ref()));
                Err(Error::new(ErrorKind::Conflict, format!("expire sets of {source}"), cause)
                    .hint("wait for it, or run without --confirm to see what would go"))
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // One that stays is held by nobody.
        self.storage.delete(&self.name).ok();
    }
}

fn render(
    source: &SourceName,
    request: &ExpireRequest,
    at: Timestamp,
    inventory: &RetentionInventory,
    decisions: Decisions,
    executed: &Executed,
) -> ExpireReport {
    let facts: BTreeMap<_, _> = inventory.sets.iter().map(|set| (&set.label, set)).collect();
    let sets: Vec<SetReport> = decisions
        .sets
        .into_iter()
        .map(|decision| {
            let set = facts.get(&decision.label);
            let finished_at = set.and_then(|set| set.complete()).and_then(|complete| complete.finished_at);
            SetReport {
                kind: set.map(|set| set.kind.to_string()).unwrap_or_default(),
                finished_at: finished_at.map(|time| time.to_string()),
                stored_bytes: decision.stored_bytes,
                decision: decision.fate,
                reasons: decision.reasons,
                anchors_wal: decision.anchors_wal,
                outcome: executed.sets.get(&decision.label).cloned(),
                label: decision.label,
            }
        })
        .collect();
    let wal = join_ranges(&decisions.wal, &executed.wal);
    let goes = |decision: Fate| decision == Fate::Remove;
    let to_free_bytes = sets.iter().filter(|set| goes(set.decision)).map(|set| set.stored_bytes).sum::<u64>()
        + decisions.wal.iter().filter(|wal| goes(wal.fate)).map(|wal| wal.stored_bytes).sum::<u64>();
    let freed_bytes =
        sets.iter().filter(|set| set.outcome == Some(Outcome::Removed)).map(|set| set.stored_bytes).sum::<u64>()
            + decisions
                .wal
                .iter()
                .filter(|wal| executed.wal.contains(&wal.object))
                .map(|wal| wal.stored_bytes)
                .sum::<u64>();
    ExpireReport {
        source: source.clone(),
        at: at.to_string(),
        confirmed: request.confirm,
        policy: request.policy.clone(),
        keep_window_s: request.policy.keep_window.map(|window| window.as_secs()),
        notes: notes(inventory, &sets, executed),
        sets,
        wal,
        to_free_bytes,
        freed_bytes,
    }
}

/// Neighbours with the same decision for the same reason are one line.
fn join_ranges(decisions: &[WalDecision], removed: &[String]) -> Vec<WalReport> {
    let mut ranges: Vec<WalReport> = Vec::new();
    for decision in decisions {
        let system_identifier = decision.system_identifier.to_string();
        let removed_count = u64::from(removed.contains(&decision.object));
        if let Some(last) = ranges.last_mut()
            && last.system_identifier == system_identifier
            && last.timeline == decision.timeline
            && last.decision == decision.fate
            && last.reason == decision.reason
            && decision.start_lsn <= last.end_lsn
        {
            last.end_lsn = last.end_lsn.max(decision.end_lsn);
            last.object_count += 1;
            last.stored_bytes += decision.stored_bytes;
            last.removed_count += removed_count;
            continue;
        }
        ranges.push(WalReport {
            system_identifier,
            timeline: decision.timeline,
            start_lsn: decision.start_lsn,
            end_lsn: decision.end_lsn,
            object_count: 1,
            stored_bytes: decision.stored_bytes,
            decision: decision.fate,
            reason: decision.reason.clone(),
            removed_count,
        });
    }
    ranges
}

fn notes(inventory: &RetentionInventory, sets: &[SetReport], executed: &Executed) -> Vec<String> {
    let mut notes: Vec<String> = inventory
        .sets
        .iter()
        .filter_map(|set| match &set.content {
            super::facts::SetContent::Unreadable(cause) => Some(format!("set {}: {cause}", set.label)),
            super::facts::SetContent::Complete(complete) => {
                complete.flaw.as_ref().map(|flaw| format!("set {} is not whole: {flaw}", set.label))
            }
            _ => None,
        })
        .collect();
    notes.extend(sets.iter().filter(|set| set.reasons.iter().any(|reason| reason.starts_with(BURIED))).map(|set| {
        format!(
            "set {} is kept and not offered: it has an expired.json, which no expire with these rules writes. An expire with other rules did, or somebody \
             else who may write there: remove that file, and the set is offered again",
            set.label
        )
    }));
    notes.extend(sets.iter().filter_map(|set| match &set.outcome {
        Some(Outcome::Postponed(why)) => {
            Some(format!("set {} is not offered any more and goes later: {why}", set.label))
        }
        _ => None,
    }));
    if executed.protected_wal_count > 0 {
        notes.push(format!(
            "{} objects of WAL are protected and stay: an expire after that time removes them",
            executed.protected_wal_count
        ));
    }
    notes
}
