//! What a restore is asked for and what it says when it is done.

use std::path::PathBuf;

use serde::Serialize;

use super::databases::LeftOutDatabase;
use super::delta::DeltaReport;
use super::recovery_target::{RecoveryTarget, TargetAction, TargetTimeline};
use crate::pipeline::limit::Limit;
use crate::pipeline::stats::StageStats;
use crate::terms::{BackupLabel, Lsn, SourceName, TimelineId};

/// Whether the restored cluster archives its WAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ArchiveMode {
    /// As configured when restored to the original data directory; off anywhere else, so that a copy never archives
    /// into the original's archive.
    Auto,
    /// As configured.
    Preserve,
    /// Off.
    Off,
}

/// Which set goes where, and how; None means the default.
#[derive(Clone, Debug)]
pub struct RestoreRequest {
    /// Whose backup; None if the repository has only one source.
    pub source: Option<SourceName>,
    /// Repository directory.
    pub repo: String,
    /// Further directories to look for moved stripes.
    pub stripe_from: Vec<String>,
    /// Which set; None is the newest complete one, or the newest that leads to the recovery target.
    pub label: Option<BackupLabel>,
    /// An empty or new directory.
    pub target_dir: PathBuf,
    /// Tablespace locations to change, as (old, new).
    pub tablespace_map: Vec<(PathBuf, PathBuf)>,
    /// How far to replay.
    pub target: RecoveryTarget,
    /// Along which timeline.
    pub target_timeline: TargetTimeline,
    /// Whether the transaction or record of the target itself is left out.
    pub exclude_target: bool,
    /// What the server does there.
    pub target_action: TargetAction,
    /// The program that the restored server calls as `PROGRAM wal get ...`; None is the one that runs now.
    pub wal_get_program: Option<PathBuf>,
    /// Whether the restored cluster archives.
    pub archive_mode: ArchiveMode,
    /// Owner of the files when run as root, as USER or USER:GROUP; None finds it out.
    pub owner: Option<String>,
    /// Stripe reader threads.
    pub readers: Option<u16>,
    /// Decoder threads.
    pub decoders: Option<u16>,
    /// File writer threads.
    pub file_writers: Option<u16>,
    /// Transfer buffers.
    pub buffer_count: Option<u32>,
    /// Bytes of one transfer buffer.
    pub transfer_size_bytes: Option<u32>,
    /// Refuse to start if the memory ceiling is above this.
    pub max_memory_bytes: Option<u64>,
    /// Stored bytes a second, at most.
    pub max_rate_bytes_per_s: Option<u64>,
    /// Restore these databases only, by name or OID, with the templates and `postgres`; empty means all.
    pub include_databases: Vec<String>,
    /// Write over what is in the target, and only what differs.
    pub delta: bool,
    /// With `delta`: another cluster's directory may be written over too.
    pub force: bool,
    /// Check everything and write nothing.
    pub dry_run: bool,
}

impl RestoreRequest {
    /// The newest set in `repo` into `target_dir`, with every default.
    pub fn new(repo: impl Into<String>, target_dir: impl Into<PathBuf>) -> Self {
        RestoreRequest {
            source: None,
            repo: repo.into(),
            stripe_from: Vec::new(),
            label: None,
            target_dir: target_dir.into(),
            tablespace_map: Vec::new(),
            target: RecoveryTarget::SetEnd,
            target_timeline: TargetTimeline::Latest,
            exclude_target: false,
            target_action: TargetAction::Promote,
            wal_get_program: None,
            archive_mode: ArchiveMode::Auto,
            owner: None,
            readers: None,
            decoders: None,
            file_writers: None,
            buffer_count: None,
            transfer_size_bytes: None,
            max_memory_bytes: None,
            max_rate_bytes_per_s: None,
            include_databases: Vec::new(),
            delta: false,
            force: false,
            dry_run: false,
        }
    }
}

/// The stages of a restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct RestoreStages {
    /// Stripe readers.
    pub stripe_readers: StageStats,
    /// Decoders.
    pub decoders: StageStats,
    /// File writers.
    pub file_writers: StageStats,
}

/// A finished restore, or with `--dry-run` one that could be done; the keys of `restore --json`.
#[derive(Clone, Debug, Serialize)]
pub struct RestoreReport {
    /// The set.
    pub label: BackupLabel,
    /// Whose.
    pub source: SourceName,
    /// "restored" or "planned".
    pub state: &'static str,
    /// Where it went.
    pub target_dir: String,
    /// Wall time from start to durable.
    pub elapsed_s: f64,
    /// Wall time of the data path.
    pub data_path_s: f64,
    /// Wall time of making everything durable.
    pub sync_s: f64,
    /// Bytes of all files.
    pub restored_bytes: u64,
    /// Bytes read from stripes.
    pub stored_bytes: u64,
    /// restored_bytes / elapsed_s.
    pub throughput_bytes_per_s: f64,
    /// Files.
    pub file_count: u64,
    /// Stripe reader threads.
    pub readers: u16,
    /// Decoder threads.
    pub decoders: u16,
    /// File writer threads.
    pub file_writers: u16,
    /// Transfer buffers.
    pub buffer_count: u32,
    /// Bytes of one.
    pub transfer_size_bytes: u32,
    /// The stated ceiling.
    pub memory_ceiling_bytes: u64,
    /// What was really used at most.
    pub rss_bytes_max: u64,
    /// CPU time in our code.
    pub cpu_user_s: f64,
    /// CPU time in the kernel for us.
    pub cpu_system_s: f64,
    /// Frames that were lost and that parity gave back.
    pub repaired_frame_count: u64,
    /// Where the time went.
    pub stages: RestoreStages,
    /// What limited the run.
    pub limit: Limit,
    /// How far the server replays: the value of --type, or none.
    pub target: &'static str,
    /// More of it; null if the server replays the set's own WAL to its end.
    pub recovery: Option<RecoveryReport>,
    /// Where the cluster is consistent.
    pub stop_lsn: Lsn,
    /// Timeline of the backup.
    pub timeline: TimelineId,
    /// Whether archiving was switched off for the copy.
    pub archiving_off: bool,
    /// Free bytes needed, with what each file system has; only in a plan.
    pub space: Vec<SpaceNeed>,
    /// Databases whose files are zeros now; they can only be dropped.
    pub left_out_databases: Vec<LeftOutDatabase>,
    /// What was left alone and what was not; only of a delta restore into a target that held something.
    pub delta: Option<DeltaReport>,
    /// Configuration files that lay outside of the source's data directory: they were not in the backup.
    pub external_files: Vec<String>,
    /// Problems that did not stop the restore, such as a rebuilt trailer.
    pub notes: Vec<String>,
}

/// What the restored server will do when it is started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecoveryReport {
    /// The point, as the server reads it: times in UTC.
    pub target: Option<String>,
    /// The time zone that a time was read in because it named none.
    pub assumed_time_zone: Option<String>,
    /// Whether the transaction or record at the target is replayed.
    pub inclusive: bool,
    /// The timeline it follows; null is the newest there is at that time.
    pub timeline: Option<TimelineId>,
    /// What it does there.
    pub action: TargetAction,
    /// The WAL segment in which it stops.
    pub stops_in: Option<String>,
    /// The command that fetches WAL; null if none is needed.
    pub restore_command: Option<String>,
}

/// What one file system must hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SpaceNeed {
    /// A directory on it.
    pub directory: String,
    /// Bytes that will be written there.
    pub needed_bytes: u64,
    /// Bytes it has.
    pub free_bytes: u64,
}
