//! Which sets and which WAL go, and why: decided from plain facts, before anything is touched.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::Serialize;

use super::facts::{RetentionInventory, SetContent, SetFacts, WalObject};
use super::judge::{Judged, judge};
use super::policy::{KeepWal, RetentionPolicy};
use super::rules::{BURIED, Wanted, ask};
use super::timelines::Timelines;
use super::wal_plan::Anchors;
use crate::terms::{BackupKind, BackupLabel, Lsn, TimelineId};

/// What becomes of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Fate {
    /// It stays.
    Keep,
    /// It goes, but not while it is used.
    Later,
    /// It goes.
    Remove,
}

/// What becomes of everything.
#[derive(Clone, Debug, Default)]
pub struct Decisions {
    /// Of each set: in order, those without a manifest at the end.
    pub sets: Vec<SetDecision>,
    /// Of each WAL object, by cluster, timeline and place.
    pub wal: Vec<WalDecision>,
    /// Why none of it may be done, if so.
    pub refusal: Option<String>,
}

/// What becomes of a set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SetDecision {
    /// The set.
    pub label: BackupLabel,
    /// What becomes of it.
    pub fate: Fate,
    /// Why, in words, the strongest reason first.
    pub reasons: Vec<String>,
    /// Whether WAL is kept from its start on.
    pub anchors_wal: bool,
    /// Bytes that it takes.
    pub stored_bytes: u64,
}

/// What becomes of a WAL object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalDecision {
    /// Its name.
    pub object: String,
    /// The cluster.
    pub system_identifier: u64,
    /// The timeline.
    pub timeline: TimelineId,
    /// Where its first segment begins.
    pub start_lsn: Lsn,
    /// Where its last one ends.
    pub end_lsn: Lsn,
    /// Keep or remove.
    pub fate: Fate,
    /// Why.
    pub reason: String,
    /// Bytes that it takes.
    pub stored_bytes: u64,
}

/// Decides. Pure: the same facts, rules and time give the same decisions.
pub fn plan(inventory: &RetentionInventory, policy: &RetentionPolicy, at: Timestamp) -> Decisions {
    let judged = judge(inventory, at);
    let timelines = Timelines::new(inventory);
    let mut wanted = ask(&judged, policy, &timelines, at);
    add_wanted_in_spite_of_tombstones(inventory, policy, at, &mut wanted);
    let sets = decide_sets(inventory, &judged, policy, wanted);
    let refusal = refusal(&judged, &sets);
    let anchors = sets.iter().filter(|set| set.anchors_wal).map(|set| &set.label).collect();
    let wal = plan_wal(inventory, &anchors);
    Decisions { sets, wal, refusal }
}

/// A tombstone is a small object that whoever may back up can put there, and no reason for a set to go: what the rules would keep if there were none
/// stays as well, as what they keep because it does not count.
fn add_wanted_in_spite_of_tombstones(
    inventory: &RetentionInventory,
    policy: &RetentionPolicy,
    at: Timestamp,
    wanted: &mut Wanted,
) {
    let is_buried = |set: &SetFacts| set.is_expiring && set.complete().is_some();
    if !inventory.sets.iter().any(is_buried) {
        return;
    }
    let mut unburied = inventory.clone();
    unburied.sets.iter_mut().filter(|set| is_buried(set)).for_each(|set| set.is_expiring = false);
    // In the same order, which tombstones do not change.
    let judged = judge(&unburied, at);
    let buried: BTreeSet<&BackupLabel> =
        inventory.sets.iter().filter(|set| is_buried(set)).map(|set| &set.label).collect();
    let other = ask(&judged, policy, &Timelines::new(&unburied), at);
    for (place, (set, reasons)) in judged.sets.iter().zip(other.reasons).enumerate() {
        let is_buried = buried.contains(&set.facts.label);
        for reason in reasons {
            let is_first = is_buried && !std::mem::replace(&mut wanted.in_spite_of_tombstone[place], true);
            let reason = if is_first { format!("{BURIED}: {reason}") } else { reason };
            wanted.add(place, other.for_recovery[place], reason);
        }
    }
}

/// Which WAL goes if it is kept from the start of each of these sets on.
pub(super) fn plan_wal(inventory: &RetentionInventory, anchors: &BTreeSet<&BackupLabel>) -> Vec<WalDecision> {
    let timelines = Timelines::new(inventory);
    let sets = inventory.sets.iter().filter(|set| anchors.contains(&set.label));
    let sets = sets.filter_map(|set| Some((&set.label, set.complete()?)));
    let anchors = Anchors::new(&timelines, inventory, sets);
    let mut wal: Vec<WalDecision> = inventory.wal.iter().map(|object| decide_wal(&anchors, object)).collect();
    wal.sort_by(|one, other| wal_order(one).cmp(&wal_order(other)));
    wal
}

fn wal_order(decision: &WalDecision) -> (u64, TimelineId, Lsn, &str) {
    (decision.system_identifier, decision.timeline, decision.start_lsn, &decision.object)
}

fn decide_wal(anchors: &Anchors<'_>, object: &WalObject) -> WalDecision {
    let (fate, reason) = match anchors.judge(object) {
        Ok(reason) => (Fate::Keep, reason),
        Err(reason) => (Fate::Remove, reason),
    };
    WalDecision {
        object: object.object.clone(),
        system_identifier: object.system_identifier,
        timeline: object.timeline,
        start_lsn: object.start_lsn,
        end_lsn: object.end_lsn,
        fate,
        reason,
        stored_bytes: object.stored_bytes,
    }
}

fn decide_sets(
    inventory: &RetentionInventory,
    judged: &Judged<'_>,
    policy: &RetentionPolicy,
    wanted: Wanted,
) -> Vec<SetDecision> {
    // An incremental that cannot be read may need any of the others.
    let riddle = inventory.sets.iter().find(|set| {
        set.kind != BackupKind::Full && !set.is_expiring && matches!(set.content, SetContent::Unreadable(_))
    });
    let mut decided: Vec<(Fate, Vec<String>)> = Vec::with_capacity(judged.sets.len());
    for (set, mut reasons) in judged.sets.iter().zip(wanted.reasons) {
        if let Some(pin) = &set.facts.pin {
            reasons.insert(0, if pin.is_empty() { "pinned".to_owned() } else { format!("pinned: {pin}") });
        }
        if let Some(until) = set.facts.protected_until {
            reasons.insert(0, format!("protected until {until}"));
        }
        let fate = match (reasons.is_empty(), riddle) {
            (false, _) => Fate::Keep,
            (true, Some(riddle)) => {
                reasons.push(format!("the manifest of {} does not read, and it may need this one", riddle.label));
                Fate::Keep
            }
            (true, None) if set.facts.is_leased => {
                reasons.push("no rule keeps it, but somebody uses it now: a later expire removes it".to_owned());
                Fate::Later
            }
            (true, None) => {
                reasons.push(why_removed(&set.counts, set.facts.is_expiring));
                Fate::Remove
            }
        };
        decided.push((fate, reasons));
    }
    keep_what_is_needed(judged, &mut decided);
    let newest = judged.sets.iter().rposition(|set| set.counts.is_ok());
    let anchors = |place: usize, fate: Fate| {
        let set = &judged.sets[place];
        // One that cannot be restored just now, as its disk is not mounted, is kept with its WAL too.
        let is_kept = fate == Fate::Keep && (!set.facts.is_expiring || wanted.in_spite_of_tombstone[place]);
        // A set that is kept for its reader's sake is kept with the WAL that its reader may want.
        let by_rule = match policy.keep_wal {
            KeepWal::All => is_kept,
            KeepWal::Window => is_kept && wanted.for_recovery[place],
            KeepWal::Sets => is_kept && newest.is_none_or(|newest| place >= newest),
        };
        by_rule || set.facts.is_leased && fate != Fate::Remove
    };
    let with_manifest =
        judged.sets.iter().enumerate().zip(decided).map(|((place, set), (fate, reasons))| SetDecision {
            label: set.facts.label.clone(),
            fate,
            reasons,
            anchors_wal: anchors(place, fate),
            stored_bytes: set.facts.stored_bytes(),
        });
    let without = inventory.sets.iter().filter(|set| set.complete().is_none()).map(decide_without_manifest);
    with_manifest.chain(without).collect()
}

fn why_removed(counts: &Result<Timestamp, String>, is_expiring: bool) -> String {
    match counts {
        _ if is_expiring => "an earlier expire decided so".to_owned(),
        Ok(_) => "no rule keeps it".to_owned(),
        Err(doubt) => format!("older than all that the rules keep, and {doubt}"),
    }
}

/// A set stays as long as one that stays needs it. One look is enough: priors are listed in full, nearest first.
fn keep_what_is_needed(judged: &Judged<'_>, decided: &mut [(Fate, Vec<String>)]) {
    // What a prior is compared with may itself have priors that hold nothing of the first: they stay too, because a
    // set is only removed when no manifest names it.
    let mut again = true;
    while again {
        again = false;
        for place in (0..judged.sets.len()).rev() {
            let (fate, label) = (decided[place].0, &judged.sets[place].facts.label);
            if fate == Fate::Remove {
                continue;
            }
            for prior in &judged.sets[place].complete.prior {
                let Some(needed) = judged.index.get(prior).map(|prior| &mut decided[*prior]) else { continue };
                if needed.0 == Fate::Keep || needed.0 == fate {
                    continue;
                }
                // The reason why it was to go holds no more.
                needed.1 = vec![format!("{label} needs it")];
                needed.0 = fate;
                again = true;
            }
        }
    }
}

fn decide_without_manifest(set: &SetFacts) -> SetDecision {
    let (fate, reason) = match &set.content {
        _ if set.is_expiring && set.is_leased => {
            (Fate::Later, "an earlier expire decided so, but somebody uses it now")
        }
        _ if set.is_expiring => (Fate::Remove, "an earlier expire decided so"),
        SetContent::Unreadable(_) => (Fate::Keep, "its manifest does not read: nothing is decided on it"),
        SetContent::Running => (Fate::Keep, "a backup is writing it"),
        _ => (Fate::Keep, "a backup died before its end: the next backup removes it"),
    };
    SetDecision {
        label: set.label.clone(),
        fate,
        reasons: vec![reason.to_owned()],
        anchors_wal: false,
        stored_bytes: 0,
    }
}

/// Nothing may go if no full set that counts would stay.
fn refusal(judged: &Judged<'_>, sets: &[SetDecision]) -> Option<String> {
    let kept: BTreeSet<&BackupLabel> = sets.iter().filter(|set| set.fate == Fate::Keep).map(|set| &set.label).collect();
    let stays = judged.sets.iter().any(|set| set.is_full() && set.counts.is_ok() && kept.contains(&set.facts.label));
    let goes = sets.iter().filter(|set| set.fate == Fate::Remove).count();
    (goes > 0 && !stays).then(|| "no restorable full set would be left".to_owned())
}
