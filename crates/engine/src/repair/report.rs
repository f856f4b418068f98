//! What a repair is asked for and what it says.

use serde::Serialize;

use crate::terms::{BackupLabel, SourceName};

/// Which set to repair; None means the default.
#[derive(Clone, Debug)]
pub struct RepairRequest {
    /// Whose backup; None if the repository has only one source.
    pub source: Option<SourceName>,
    /// Repository directory.
    pub repo: String,
    /// Further directories to look for moved stripes.
    pub stripe_from: Vec<String>,
    /// Which set; None is the newest complete one.
    pub label: Option<BackupLabel>,
    /// Refuse to start if the memory ceiling is above this.
    pub max_memory_bytes: Option<u64>,
    /// Bytes of stripes looked at, and of those put back, a second, at most.
    pub max_rate_bytes_per_s: Option<u64>,
}

impl RepairRequest {
    /// The newest set in `repo`, with every default.
    pub fn new(repo: impl Into<String>) -> Self {
        RepairRequest {
            source: None,
            repo: repo.into(),
            stripe_from: Vec::new(),
            label: None,
            max_memory_bytes: None,
            max_rate_bytes_per_s: None,
        }
    }
}

/// A set that was looked at: the one that was named, or one that it needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckedSet {
    /// Which.
    pub set: BackupLabel,
    /// Its stripes.
    pub stripes: u16,
    /// Its parity stripes; a set without any was not looked at, as nothing of it can be repaired.
    pub parity: u16,
    /// Bytes of both.
    pub bytes: u64,
}

/// A stripe or parity stripe that was put back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RepairedStripe {
    /// Of which set.
    pub set: BackupLabel,
    /// "stripe 2" or "parity stripe 0".
    pub name: String,
    /// What was wrong with it.
    pub cause: String,
    /// The new object.
    pub path: String,
    /// Its size.
    pub bytes: u64,
}

/// A stripe or parity stripe that cannot be put back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LostStripe {
    /// Of which set.
    pub set: BackupLabel,
    /// "stripe 2" or "parity stripe 0".
    pub name: String,
    /// Why.
    pub cause: String,
}

/// A finished repair; the keys of `repair --json`.
#[derive(Clone, Debug, Serialize)]
pub struct RepairReport {
    /// The set.
    pub label: BackupLabel,
    /// Whose.
    pub source: SourceName,
    /// Whether every stripe of all that was looked at is whole now.
    pub whole: bool,
    /// The set and those that it needs.
    pub sets: Vec<CheckedSet>,
    /// What was put back.
    pub repaired: Vec<RepairedStripe>,
    /// What cannot be put back.
    pub lost: Vec<LostStripe>,
    /// Wall time.
    pub elapsed_s: f64,
    /// Wall time of looking at every stripe.
    pub check_s: f64,
    /// Wall time of putting back.
    pub rebuild_s: f64,
    /// Bytes that were put back.
    pub rebuilt_bytes: u64,
    /// The stated ceiling.
    pub memory_ceiling_bytes: u64,
    /// What was really used at most.
    pub rss_bytes_max: u64,
    /// CPU time in our code.
    pub cpu_user_s: f64,
    /// CPU time in the kernel for us.
    pub cpu_system_s: f64,
}
