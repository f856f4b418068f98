//! What expire says: every decision with its reasons, and what was done about it.

use serde::Serialize;

use super::plan::Fate;
use super::policy::RetentionPolicy;
use crate::terms::{BackupLabel, Lsn, SourceName, TimelineId};

/// What became of a set that was to go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "outcome", content = "cause")]
pub enum Outcome {
    /// It is gone.
    Removed,
    /// It is not offered any more; a later expire removes it. Why not now.
    Postponed(String),
    /// It could not be removed; a later expire tries again.
    Failed(String),
}

/// One set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SetReport {
    /// Its name.
    pub label: BackupLabel,
    /// Full, differential or incremental.
    pub kind: String,
    /// When it was finished, as its manifest says; None if it has none that reads.
    pub finished_at: Option<String>,
    /// Bytes that it takes.
    pub stored_bytes: u64,
    /// What was decided.
    pub decision: Fate,
    /// Why, in words.
    pub reasons: Vec<String>,
    /// Whether WAL is kept from its start on.
    pub anchors_wal: bool,
    /// What was done; None in a dry run, and for what stays.
    #[serde(flatten)]
    pub outcome: Option<Outcome>,
}

/// WAL objects that lie together and share a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WalReport {
    /// The cluster.
    pub system_identifier: String,
    /// The timeline.
    pub timeline: TimelineId,
    /// Where the first object begins.
    pub start_lsn: Lsn,
    /// Where the last one ends.
    pub end_lsn: Lsn,
    /// How many objects.
    pub object_count: u64,
    /// Bytes that they take.
    pub stored_bytes: u64,
    /// What was decided.
    pub decision: Fate,
    /// Why.
    pub reason: String,
    /// How many of them were removed.
    pub removed_count: u64,
}

/// What expire decided and did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExpireReport {
    /// Whose sets.
    pub source: SourceName,
    /// The day on which it was decided, or that was simulated, RFC 3339 in UTC.
    pub at: String,
    /// False in a dry run.
    pub confirmed: bool,
    /// The rules.
    pub policy: RetentionPolicy,
    /// Seconds of the window, if there is one.
    pub keep_window_s: Option<i64>,
    /// The sets in order, those without a manifest at the end.
    pub sets: Vec<SetReport>,
    /// The WAL in order.
    pub wal: Vec<WalReport>,
    /// Bytes that what is to go takes.
    pub to_free_bytes: u64,
    /// Bytes that were freed.
    pub freed_bytes: u64,
    /// What a person should know.
    pub notes: Vec<String>,
}
