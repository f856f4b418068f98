//! Orders backup sets into restorable chains: a full one, a differential on top, log without a gap; and says what is in
//! none of them, and why.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::facts::SetKind;
use crate::inspect::{InspectReport, InspectedSet};
use crate::mtf::MtfDate;
use crate::sql::{Guid, SqlLsn};

/// What can be restored of the databases in some files.
#[derive(Clone, Debug, Serialize)]
pub struct ChainReport {
    /// Whether every set is in a chain, and no chain has a gap.
    pub is_whole: bool,
    /// The databases.
    pub databases: Vec<DatabaseChains>,
}

/// One database.
#[derive(Clone, Debug, Serialize)]
pub struct DatabaseChains {
    /// Its name.
    pub database: String,
    /// The line of history that it began with.
    pub family_guid: Guid,
    /// One for each full set, oldest first.
    pub chains: Vec<Chain>,
    /// Sets that no chain can use.
    pub unusable: Vec<Unusable>,
}

/// A full set and what can be restored on top of it.
#[derive(Clone, Debug, Serialize)]
pub struct Chain {
    /// What to restore, in this order.
    pub steps: Vec<ChainStep>,
    /// Up to which log record.
    pub restorable_to_lsn: SqlLsn,
    /// When the last step was made, by the server's clock.
    pub restorable_to: MtfDate,
    /// The log that is missing behind the last step, if there are sets behind it.
    pub gap: Option<LogGap>,
}

/// One set of a chain.
#[derive(Clone, Debug, Serialize)]
pub struct ChainStep {
    /// What it holds.
    pub kind: SetKind,
    /// Its id.
    pub set_guid: Guid,
    /// FILE = n.
    pub position: u16,
    /// Its files.
    pub in_files: Vec<String>,
    /// First log record in it.
    pub first_lsn: SqlLsn,
    /// Log record behind the last one in it.
    pub last_lsn: SqlLsn,
    /// When it was made.
    pub started_at: MtfDate,
}

/// Log that no set has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LogGap {
    /// The first missing record.
    pub from_lsn: SqlLsn,
    /// The first one that is there again.
    pub to_lsn: SqlLsn,
}

/// A set that nothing can be restored with, and why.
#[derive(Clone, Debug, Serialize)]
pub struct Unusable {
    /// The set.
    pub set: ChainStep,
    /// Why.
    pub cause: String,
}

/// The chains of all sets in `report`.
pub fn chains(report: &InspectReport) -> ChainReport {
    let mut databases: BTreeMap<(String, Guid), Vec<&InspectedSet>> = BTreeMap::new();
    for set in &report.sets {
        let key = (set.server.database_name.clone(), set.server.family_guid);
        let sets = databases.entry(key).or_default();
        // The same backup under two names counts once; a whole one before one with missing files.
        match sets.iter_mut().find(|known| known.set_guid == set.set_guid) {
            Some(known) if !known.is_complete => *known = set,
            Some(_) => {}
            None => sets.push(set),
        }
    }
    let databases: Vec<DatabaseChains> =
        databases.into_iter().map(|((database, family), sets)| of_database(database, family, sets)).collect();
    let is_whole = databases
        .iter()
        .all(|database| database.unusable.is_empty() && database.chains.iter().all(|chain| chain.gap.is_none()));
    ChainReport { is_whole, databases }
}

fn of_database(database: String, family_guid: Guid, mut sets: Vec<&InspectedSet>) -> DatabaseChains {
    sets.sort_by_key(|set| (set.server.last_lsn, set.server.first_lsn, set.server.started_at));
    let of_kind = |kind: SetKind| sets.iter().copied().filter(move |set| set.is_complete && set.kind == kind);
    let logs: Vec<&InspectedSet> = of_kind(SetKind::Log).collect();
    let mut used = BTreeSet::new();
    let mut chains = Vec::new();
    for full in of_kind(SetKind::Full) {
        used.insert(full.set_guid);
        let on_top: Vec<&InspectedSet> = of_kind(SetKind::Differential).filter(|diff| is_base(full, diff)).collect();
        for start in std::iter::once(full).chain(on_top.iter().copied()) {
            used.insert(start.set_guid);
            used.extend(replay(start, &logs).0.iter().map(|log| log.set_guid));
        }
        chains.push(chain(full, on_top.last().copied(), &logs));
    }
    let unusable = sets.iter().filter(|set| !used.contains(&set.set_guid));
    let unusable = unusable.map(|set| Unusable { set: step(set), cause: why_unusable(set, &sets) }).collect();
    DatabaseChains { database, family_guid, chains, unusable }
}

fn chain(full: &InspectedSet, differential: Option<&InspectedSet>, logs: &[&InspectedSet]) -> Chain {
    let start = differential.unwrap_or(full);
    let (replayed, gap) = replay(start, logs);
    let last = replayed.last().copied().unwrap_or(start);
    let sets = std::iter::once(full).chain(differential).chain(replayed.iter().copied());
    let finished_at = last.server.finished_at;
    Chain {
        steps: sets.map(step).collect(),
        restorable_to_lsn: last.server.last_lsn,
        restorable_to: if finished_at.is_none() { last.server.started_at } else { finished_at },
        gap,
    }
}

/// Whether `diff` was built on `full`: its files name that set, and the checkpoint that it began with.
pub fn is_base(full: &InspectedSet, diff: &InspectedSet) -> bool {
    !full.is_copy_only
        && diff.base_guid == full.set_guid
        && (diff.base_lsn.is_none() || diff.base_lsn == full.server.checkpoint_lsn)
}

/// The log sets that follow `start` without a gap, and the gap behind them if there is more log.
fn replay<'a>(start: &InspectedSet, logs: &[&'a InspectedSet]) -> (Vec<&'a InspectedSet>, Option<LogGap>) {
    let fork = start.server.recovery_fork_guid;
    let mut at = start.server.last_lsn;
    let mut replayed = Vec::new();
    let on_line: Vec<&InspectedSet> =
        logs.iter().copied().filter(|log| log.server.recovery_fork_guid == fork).collect();
    loop {
        let follows = |log: &&&InspectedSet| log.server.first_lsn <= at && log.server.last_lsn > at;
        let Some(next) = on_line.iter().filter(follows).max_by_key(|log| log.server.last_lsn) else { break };
        at = next.server.last_lsn;
        replayed.push(*next);
    }
    let beyond = on_line.iter().filter(|log| log.server.first_lsn > at).map(|log| log.server.first_lsn).min();
    (replayed, beyond.map(|to_lsn| LogGap { from_lsn: at, to_lsn }))
}

fn step(set: &InspectedSet) -> ChainStep {
    ChainStep {
        kind: set.kind,
        set_guid: set.set_guid,
        position: set.position,
        in_files: set.in_files.clone(),
        first_lsn: set.server.first_lsn,
        last_lsn: set.server.last_lsn,
        started_at: set.server.started_at,
    }
}

fn why_unusable(set: &InspectedSet, sets: &[&InspectedSet]) -> String {
    if !set.is_complete {
        return "it is not complete: files of its media set are missing, or it has no end".to_owned();
    }
    match set.kind {
        SetKind::Differential => foreign_base(set, sets),
        SetKind::Log => log_without_start(set, sets),
        _ => "backups of parts of a database are not put into chains".to_owned(),
    }
}

/// Why a differential has no base here.
fn foreign_base(diff: &InspectedSet, sets: &[&InspectedSet]) -> String {
    let base = sets.iter().find(|set| set.set_guid == diff.base_guid);
    if let Some(base) = base {
        let what = if base.is_copy_only { "is a copy-only backup" } else { "is not complete, or is not of that LSN" };
        return format!("its base {} {what}", diff.base_guid);
    }
    let before = |set: &&&InspectedSet| set.kind == SetKind::Full && set.server.last_lsn <= diff.server.last_lsn;
    let nearest = sets.iter().filter(before).max_by_key(|set| set.server.last_lsn);
    let not_that = nearest.map_or_else(String::new, |full| {
        format!(
            "; the full backup before it, {}, is not its base: another full backup was made after that one",
            full.set_guid
        )
    });
    format!("its base {} (LSN {}) is not here{not_that}", diff.base_guid, diff.base_lsn)
}

/// Why nothing leads to a log set.
fn log_without_start(log: &InspectedSet, sets: &[&InspectedSet]) -> String {
    let fork = log.server.recovery_fork_guid;
    let mut starts = sets.iter().filter(|set| set.is_complete && set.kind == SetKind::Full);
    if !starts.clone().any(|full| full.server.recovery_fork_guid == fork) {
        return format!("no full backup here is on its line of history {fork}");
    }
    if starts.all(|full| full.server.last_lsn >= log.server.last_lsn) {
        return "it is older than every full backup here".to_owned();
    }
    format!("log before it is missing: no chain reaches LSN {}", log.server.first_lsn)
}
