//! What a copy is asked for and what is said when it is done.

use serde::Serialize;

use crate::error::Error;
use crate::pipeline::stats::StageStats;
use crate::terms::{BackupKind, BackupLabel, SourceName};

/// What to copy, whereto, and how; None means the default.
#[derive(Clone, Debug)]
pub struct CopyRequest {
    /// Whose backups; None if the repository has only one source.
    pub source: Option<SourceName>,
    /// The repository to copy from.
    pub repo: String,
    /// The repository to copy to; it is made if the place is new or empty.
    pub to: String,
    /// The sets to copy, each with its priors; None among them is the newest. Empty is all.
    pub sets: Vec<Option<BackupLabel>>,
    /// Whether to copy the WAL archive; None copies it with all sets, and not with chosen ones, which hold the WAL that
    /// they need themselves.
    pub wal: Option<bool>,
    /// Further directories to look for moved stripes.
    pub stripe_from: Vec<String>,
    /// Directories for the stripes of the copies; empty puts them beside the manifests.
    pub stripe_to: Vec<String>,
    /// Objects that are copied at the same time.
    pub readers: Option<u16>,
    /// Bytes of one transfer buffer.
    pub transfer_size_bytes: Option<u32>,
    /// Refuse to start if the memory ceiling is above this.
    pub max_memory_bytes: Option<u64>,
    /// Bytes read a second, at most.
    pub max_rate_bytes_per_s: Option<u64>,
}

impl CopyRequest {
    /// All of the only source in `repo`, with every default.
    pub fn new(repo: impl Into<String>, to: impl Into<String>) -> Self {
        CopyRequest {
            source: None,
            repo: repo.into(),
            to: to.into(),
            sets: Vec::new(),
            wal: None,
            stripe_from: Vec::new(),
            stripe_to: Vec::new(),
            readers: None,
            transfer_size_bytes: None,
            max_memory_bytes: None,
            max_rate_bytes_per_s: None,
        }
    }

    /// Whether the archive is wanted.
    pub(super) fn wants_wal(&self) -> bool {
        self.wal.unwrap_or(self.sets.is_empty())
    }
}

/// What became of one set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SetOutcome {
    /// It is in the other repository now.
    Copied,
    /// It was there.
    Skipped,
    /// It is in neither now: it expired, here or there, and is being removed.
    Expired,
    /// It could not be copied, because of this.
    Failed(String),
}

/// One set.
#[derive(Clone, Debug, Serialize)]
pub struct CopiedSet {
    /// Its label.
    pub label: BackupLabel,
    /// What kind, where that is known.
    pub kind: Option<BackupKind>,
    /// Bytes of all its objects but the manifest, where that is known.
    pub stored_bytes: Option<u64>,
    /// What became of it.
    pub outcome: SetOutcome,
}

/// What became of the WAL archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CopiedWal {
    /// Objects that are in the other repository now.
    pub copied_count: u64,
    /// Objects that were there.
    pub skipped_count: u64,
    /// Objects that could not be copied.
    pub failed_count: u64,
    /// Bytes of the objects that were copied.
    pub copied_bytes: u64,
}

/// A finished copy; the keys of `copy --json`.
#[derive(Clone, Debug, Serialize)]
pub struct CopyReport {
    /// Whose backups.
    pub source: SourceName,
    /// Where from.
    pub from: String,
    /// Where to.
    pub to: String,
    /// The sets that were looked at, oldest first.
    pub sets: Vec<CopiedSet>,
    /// How many were copied.
    pub set_copied_count: u64,
    /// How many were there.
    pub set_skipped_count: u64,
    /// How many could not be copied.
    pub set_failed_count: u64,
    /// Bytes of the objects of sets that were copied.
    pub set_copied_bytes: u64,
    /// The WAL archive; None if it was not wanted.
    pub wal: Option<CopiedWal>,
    /// Wall time.
    pub elapsed_s: f64,
    /// Bytes of sets and WAL a second.
    pub throughput_bytes_per_s: f64,
    /// The sum that was promised.
    pub memory_ceiling_bytes: u64,
    /// Peak memory of the process.
    pub rss_bytes_max: u64,
    /// CPU time in user mode.
    pub cpu_user_s: f64,
    /// CPU time in the kernel.
    pub cpu_system_s: f64,
    /// Where the time of the threads went.
    pub stages: CopyStages,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// The two stages.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CopyStages {
    /// Read and check.
    pub readers: StageStats,
    /// Write.
    pub writers: StageStats,
}

/// A copy that came to its end.
#[derive(Debug)]
pub struct Copied {
    /// What was done.
    pub report: CopyReport,
    /// The first set or WAL object that could not be copied, with later ones attached; all others were.
    pub failed: Option<Error>,
}
