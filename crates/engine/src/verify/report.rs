//! What a verification is asked for and what it says.

use serde::Serialize;

use crate::pipeline::limit::Limit;
use crate::pipeline::stats::StageStats;
use crate::terms::{BackupLabel, SourceName};

/// Which set to verify, and how; None means the default.
#[derive(Clone, Debug)]
pub struct VerifyRequest {
    /// Whose backup; None if the repository has only one source.
    pub source: Option<SourceName>,
    /// Repository directory.
    pub repo: String,
    /// Further directories to look for moved stripes.
    pub stripe_from: Vec<String>,
    /// Which set; None is the newest complete one.
    pub label: Option<BackupLabel>,
    /// Stripe reader threads.
    pub readers: Option<u16>,
    /// Decoder threads.
    pub decoders: Option<u16>,
    /// Refuse to start if the memory ceiling is above this.
    pub max_memory_bytes: Option<u64>,
    /// Stored bytes a second, at most.
    pub max_rate_bytes_per_s: Option<u64>,
}

impl VerifyRequest {
    /// The newest set in `repo`, with every default.
    pub fn new(repo: impl Into<String>) -> Self {
        VerifyRequest {
            source: None,
            repo: repo.into(),
            stripe_from: Vec::new(),
            label: None,
            readers: None,
            decoders: None,
            max_memory_bytes: None,
            max_rate_bytes_per_s: None,
        }
    }
}

/// A frame that is not what was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DamagedFrame {
    /// Of which set: the one that was verified, or one that it needs.
    pub set: BackupLabel,
    /// On which stripe.
    pub stripe: u16,
    /// Where that stripe lies.
    pub path: String,
    /// Which frame of it, from 0.
    pub frame: u64,
    /// Where the frame starts on the stripe.
    pub offset: Option<u64>,
    /// What is wrong.
    pub cause: String,
    /// The files that lose bytes.
    pub files: Vec<String>,
}

/// A file that cannot be restored whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DamagedFile {
    /// Relative to the data directory.
    pub path: String,
    /// Why.
    pub cause: String,
}

/// A stripe that is missing, swapped, cut, or without its trailer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StripeProblem {
    /// Of which set: the one that was verified, or one that it needs.
    pub set: BackupLabel,
    /// Which stripe.
    pub stripe: u16,
    /// Where it lies or should lie.
    pub path: String,
    /// What is wrong.
    pub cause: String,
    /// Whether the set can be restored all the same.
    pub harmless: bool,
    /// Whether that is so thanks to parity, or it is parity itself that is hit: `pagehaul repair` puts it back.
    pub by_parity: bool,
}

/// The stages of a verification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct VerifyStages {
    /// Stripe readers.
    pub stripe_readers: StageStats,
    /// Decoders.
    pub decoders: StageStats,
}

/// A finished verification; the keys of `verify --json`.
#[derive(Clone, Debug, Serialize)]
pub struct VerifyReport {
    /// The set.
    pub label: BackupLabel,
    /// The sets that it needs, nearest first; what it needs of them was verified too.
    pub prior: Vec<BackupLabel>,
    /// Whose.
    pub source: SourceName,
    /// Whether every stripe is as it was written: it can be restored bit for bit, and from nothing but itself.
    pub sound: bool,
    /// Whether it can be restored bit for bit, perhaps thanks to parity.
    pub restorable: bool,
    /// Wall time.
    pub elapsed_s: f64,
    /// Bytes of all files.
    pub source_bytes: u64,
    /// Decoded bytes that were checked: zero pages are stored as nothing and have none.
    pub verified_bytes: u64,
    /// Bytes read from stripes.
    pub stored_bytes: u64,
    /// Entries of the file table.
    pub file_count: u64,
    /// Frames that there should be.
    pub frame_count: u64,
    /// Frames that are not what was written.
    pub damaged_frame_count: u64,
    /// Those, up to a bound.
    pub damaged_frames: Vec<DamagedFrame>,
    /// Frames that were lost and that parity gave back.
    pub repaired_frame_count: u64,
    /// Those of stripes that are there, up to a bound.
    pub repaired_frames: Vec<DamagedFrame>,
    /// Files that cannot be restored whole.
    pub damaged_file_count: u64,
    /// Those, up to a bound.
    pub damaged_files: Vec<DamagedFile>,
    /// Stripes with problems of their own.
    pub stripe_problems: Vec<StripeProblem>,
    /// The stated ceiling.
    pub memory_ceiling_bytes: u64,
    /// What was really used at most.
    pub rss_bytes_max: u64,
    /// CPU time in our code.
    pub cpu_user_s: f64,
    /// CPU time in the kernel for us.
    pub cpu_system_s: f64,
    /// Where the time went.
    pub stages: VerifyStages,
    /// What limited the run.
    pub limit: Limit,
}
