//! What a protection is asked for and what it says.

use jiff::Timestamp;
use serde::Serialize;

use crate::error::Error;
use crate::storage::LockMode;
use crate::terms::{BackupLabel, SourceName};

/// What to protect, and for how long.
#[derive(Clone, Debug)]
pub struct ProtectRequest {
    /// Whose; None if the repository has only one source.
    pub source: Option<SourceName>,
    /// Repository in an object store.
    pub repo: String,
    /// These sets, each with those it needs; None is the newest complete one. Without any all that are complete.
    pub sets: Vec<Option<BackupLabel>>,
    /// The archived WAL, too.
    pub wal: bool,
    /// Until when, at least.
    pub until: Timestamp,
    /// How binding.
    pub mode: LockMode,
    /// Only looks.
    pub dry_run: bool,
}

/// What was protected, and what kept the rest from it.
#[derive(Debug)]
pub struct Protected {
    /// What was done.
    pub report: ProtectReport,
    /// Why a set could not be protected: it is not whole.
    pub failed: Option<Error>,
}

/// A set that was protected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProtectedSet {
    /// The set.
    pub label: BackupLabel,
    /// Its objects.
    pub object_count: u64,
    /// How many of them had less protection.
    pub changed_count: u64,
    /// Until when its manifest is protected now, and so the set; RFC 3339 in UTC. Null if it is not.
    pub protected_until: Option<String>,
    /// How binding that is.
    pub mode: Option<LockMode>,
}

/// Objects that belong to no set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProtectedObjects {
    /// How many there are.
    pub object_count: u64,
    /// How many of them had less protection.
    pub changed_count: u64,
}

/// The outcome; the keys of `protect --json`.
#[derive(Clone, Debug, Serialize)]
pub struct ProtectReport {
    /// Whose.
    pub source: SourceName,
    /// The repository.
    pub repo: String,
    /// Until when at least; RFC 3339 in UTC.
    pub until: String,
    /// How binding.
    pub mode: LockMode,
    /// True if nothing was done: what had less protection still has it.
    pub dry_run: bool,
    /// The sets, in the order in which they were protected.
    pub sets: Vec<ProtectedSet>,
    /// The marker of the repository, the identity of the source, its keys.
    pub shared: ProtectedObjects,
    /// The WAL archive; null if it was left out.
    pub wal: Option<ProtectedObjects>,
    /// What is worth knowing.
    pub notes: Vec<String>,
    /// How long it took.
    pub elapsed_s: f64,
}
