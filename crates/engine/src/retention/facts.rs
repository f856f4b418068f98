//! What retention decides on: plain facts of the sets and the WAL of one source, without any I/O.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::terms::{BackupKind, BackupLabel, Lsn, TimelineId};

/// All there is of one source.
#[derive(Clone, Debug, Default)]
pub struct RetentionInventory {
    /// Its sets, in any order.
    pub sets: Vec<SetFacts>,
    /// System identifiers of the clusters that have used its name, oldest first; empty if it is not recorded.
    pub clusters: Vec<u64>,
    /// Timelines of which the history is known.
    pub histories: Vec<HistoryFacts>,
    /// Its WAL objects but the histories, in any order.
    pub wal: Vec<WalObject>,
}

/// One set.
#[derive(Clone, Debug)]
pub struct SetFacts {
    /// Its name.
    pub label: BackupLabel,
    /// As its label says.
    pub kind: BackupKind,
    /// What is known of it.
    pub content: SetContent,
    /// It has a pin, with these words.
    pub pin: Option<String>,
    /// The store keeps it until then, whoever deletes it.
    pub protected_until: Option<Timestamp>,
    /// It has a tombstone and no pin: an earlier expire has decided that it goes.
    pub is_expiring: bool,
    /// Somebody reads it, or builds on it, or is just finishing it.
    pub is_leased: bool,
}

/// What is known of a set.
#[derive(Clone, Debug)]
pub enum SetContent {
    /// It has a manifest that reads.
    Complete(Box<CompleteSet>),
    /// It has one that does not read, for this reason.
    Unreadable(String),
    /// A backup is writing it.
    Running,
    /// A backup died, or its removal is nearly finished.
    Unfinished,
}

/// What the manifest of a set says, and whether it still has what that names.
#[derive(Clone, Debug)]
pub struct CompleteSet {
    /// The cluster.
    pub system_identifier: u64,
    /// Its timeline.
    pub timeline: TimelineId,
    /// Where replay begins.
    pub start_lsn: Lsn,
    /// Where it is consistent.
    pub stop_lsn: Lsn,
    /// By the clock of the machine that made it; None if that makes no sense.
    pub finished_at: Option<Timestamp>,
    /// The sets it needs, nearest first.
    pub prior: Vec<BackupLabel>,
    /// Bytes of all its files.
    pub source_bytes: u64,
    /// Bytes that it takes.
    pub stored_bytes: u64,
    /// An object of it that is missing or has another size.
    pub flaw: Option<String>,
    /// Pages of the source that were damaged when it was made.
    pub damage: SourceDamage,
}

/// Damaged pages of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceDamage {
    /// Each with its file and its number in that.
    pub pages: BTreeSet<(String, u32)>,
    /// There are more than could be listed: any page may be one of them.
    pub has_more: bool,
}

impl SourceDamage {
    /// Whether there may be any.
    pub fn is_some(&self) -> bool {
        self.has_more || !self.pages.is_empty()
    }
}

/// Where a timeline comes from.
#[derive(Clone, Debug)]
pub struct HistoryFacts {
    /// The cluster.
    pub system_identifier: u64,
    /// The timeline.
    pub timeline: TimelineId,
    /// The timelines before it, each with the place where it was left.
    pub branches: Vec<(TimelineId, Lsn)>,
}

/// One object of the WAL archive; it goes or stays as a whole.
#[derive(Clone, Debug)]
pub struct WalObject {
    /// Its name in the repository.
    pub object: String,
    /// The cluster.
    pub system_identifier: u64,
    /// The timeline.
    pub timeline: TimelineId,
    /// Where its first segment begins.
    pub start_lsn: Lsn,
    /// Where its last segment ends.
    pub end_lsn: Lsn,
    /// Bytes that it takes.
    pub stored_bytes: u64,
    /// The last commit in it; None if it has none; the end of time if that is not known.
    pub last_commit_at: Option<Timestamp>,
}

impl SetFacts {
    /// What its manifest says, if that reads.
    pub fn complete(&self) -> Option<&CompleteSet> {
        match &self.content {
            SetContent::Complete(complete) => Some(complete),
            _ => None,
        }
    }

    /// Bytes that it takes, as far as that is known.
    pub fn stored_bytes(&self) -> u64 {
        self.complete().map_or(0, |complete| complete.stored_bytes)
    }
}
