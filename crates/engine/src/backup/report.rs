//! What a backup is asked for and what it says when it is done.

use std::path::PathBuf;
use std::time::Instant;

use serde::Serialize;

use super::protected::ProtectFor;
use crate::format::manifest::{BadPage, LostFile, Manifest};
use crate::pipeline::ceiling::Ceiling;
use crate::pipeline::limit::{Direction, Limit, find_limit};
use crate::pipeline::stats::{PipelineStats, StageStats};
use crate::pipeline::usage::ProcessUsage;
use crate::pipeline::{CodecSpec, LevelShare, PipelineSettings, deflate_engine_at_work, machine_cores};
use crate::terms::{BackupKind, BackupLabel, Lsn, SourceName, TimelineId};

/// What to back up, whereto, and how; None means the default.
#[derive(Clone, Debug)]
pub struct BackupRequest {
    /// Name of the source in the repository.
    pub source: SourceName,
    /// Data directory; None asks the server.
    pub pgdata: Option<PathBuf>,
    /// libpq-style connection string; None uses the PG* variables and the data directory's postmaster.pid.
    pub connection: Option<String>,
    /// The server reads its files and sends them over the replication protocol, from whatever machine it runs on.
    pub remote: bool,
    /// Repository directory, or NUL.
    pub repo: String,
    /// Further repositories that get the same set from the same read; one that fails does not fail the others.
    pub more_repos: Vec<String>,
    /// Directories for the stripes; empty puts them beside the manifest.
    pub stripe_to: Vec<String>,
    /// Number of stripes.
    pub stripes: Option<u16>,
    /// Number of parity stripes: so many stripes may be lost.
    pub parity: u16,
    /// Directories for those; empty puts them where the stripes go.
    pub parity_to: Vec<String>,
    /// Codec and level.
    pub compression: CodecSpec,
    /// Reader threads.
    pub readers: Option<u16>,
    /// Encoder threads.
    pub encoders: Option<u16>,
    /// Transfer buffers.
    pub buffer_count: Option<u32>,
    /// Bytes of one transfer buffer.
    pub transfer_size_bytes: Option<u32>,
    /// Raw bytes of a full frame.
    pub frame_size_bytes: Option<u32>,
    /// Refuse to start if the memory ceiling is above this.
    pub max_memory_bytes: Option<u64>,
    /// Source bytes a second, at most.
    pub max_rate_bytes_per_s: Option<u64>,
    /// Free text, kept in the manifest.
    pub description: Option<String>,
    /// Begin with an immediate checkpoint instead of waiting for a spread one.
    pub fast_checkpoint: bool,
    /// Full, or what has changed since the last full set (differential) or the last one of any kind (incremental).
    pub kind: BackupKind,
    /// Fail rather than make a full backup where an incremental one has no prior.
    pub no_full: bool,
    /// Further directories to look for stripes of the prior sets.
    pub stripe_from: Vec<String>,
    /// Keep checksums of all pages, which a later incremental backup is compared with.
    pub page_sums: bool,
    /// Protect the set, and those it needs, with the object lock of their stores.
    pub protect: Option<ProtectFor>,
    /// Look and plan only: no checkpoint, no backup mode, nothing written.
    pub dry_run: bool,
}

impl BackupRequest {
    /// A backup of `source` into `repo` with every default.
    pub fn new(source: SourceName, repo: impl Into<String>) -> Self {
        BackupRequest {
            source,
            pgdata: None,
            connection: None,
            remote: false,
            repo: repo.into(),
            more_repos: Vec::new(),
            stripe_to: Vec::new(),
            stripes: None,
            parity: 0,
            parity_to: Vec::new(),
            compression: CodecSpec::default(),
            readers: None,
            encoders: None,
            buffer_count: None,
            transfer_size_bytes: None,
            frame_size_bytes: None,
            max_memory_bytes: None,
            max_rate_bytes_per_s: None,
            description: None,
            fast_checkpoint: true,
            kind: BackupKind::Full,
            no_full: false,
            stripe_from: Vec::new(),
            page_sums: true,
            protect: None,
            dry_run: false,
        }
    }
}

/// What became of the set in one of several repositories.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RepositoryReport {
    /// The repository.
    pub repo: String,
    /// "complete" or "failed".
    pub state: &'static str,
    /// Why it failed.
    pub error: Option<String>,
    /// What to do then.
    pub hint: Option<String>,
}

/// One stripe of a finished backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StripeReport {
    /// Where it lies.
    pub path: String,
    /// Its size.
    pub bytes: u64,
}

/// The stages of a backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct BackupStages {
    /// File readers.
    pub readers: StageStats,
    /// Encoders.
    pub encoders: StageStats,
    /// Stripe writers.
    pub writers: StageStats,
}

/// A finished backup; the keys of `backup --json`.
#[derive(Clone, Debug, Serialize)]
pub struct BackupReport {
    /// Name of the set.
    pub label: BackupLabel,
    /// Full, differential or incremental; full if there was no prior for what was asked for.
    pub kind: BackupKind,
    /// The sets that it needs, nearest first.
    pub prior: Vec<BackupLabel>,
    /// How it was found what has changed: "wal summaries" or "page checksums"; null for a full backup.
    pub changes_found_by: Option<&'static str>,
    /// Bytes of files that are stored in this set itself.
    pub changed_bytes: u64,
    /// Bytes of files that were read.
    pub read_bytes: u64,
    /// What should be known of how it was made.
    pub notes: Vec<String>,
    /// Whose backup.
    pub source: SourceName,
    /// "complete", or "discarded" with --repo NUL.
    pub state: &'static str,
    /// Until when nobody can delete the set nor what it needs, RFC 3339 in UTC; null if that was not asked for.
    pub protected_until: Option<String>,
    /// Wall time from start to commit.
    pub elapsed_s: f64,
    /// Wall time of the data path alone.
    pub data_path_s: f64,
    /// Bytes of all files.
    pub source_bytes: u64,
    /// Bytes of all stripes and the file table.
    pub stored_bytes: u64,
    /// source_bytes / stored_bytes.
    pub ratio: f64,
    /// source_bytes / elapsed_s.
    pub throughput_bytes_per_s: f64,
    /// Codec name, or auto.
    pub codec: String,
    /// Its level, 0 for none and auto.
    pub level: i32,
    /// With deflate, who made it: isal, libdeflate, or qat and whether its hardware did.
    pub deflate_engine: Option<String>,
    /// With auto, how much was stored at which level, from the fastest; otherwise empty.
    pub levels: Vec<LevelShare>,
    /// The stripes.
    pub stripes: Vec<StripeReport>,
    /// The parity stripes.
    pub parity_stripes: Vec<StripeReport>,
    /// With several repositories, what became of the set in each; otherwise empty.
    pub repositories: Vec<RepositoryReport>,
    /// Reader threads.
    pub readers: u16,
    /// Encoder threads.
    pub encoders: u16,
    /// Writer threads: one a stripe.
    pub writers: u16,
    /// Transfer buffers.
    pub buffer_count: u32,
    /// Bytes of one.
    pub transfer_size_bytes: u32,
    /// Raw bytes of a full frame.
    pub frame_size_bytes: u32,
    /// The stated ceiling.
    pub memory_ceiling_bytes: u64,
    /// What was really used at most.
    pub rss_bytes_max: u64,
    /// CPU time in our code.
    pub cpu_user_s: f64,
    /// CPU time in the kernel for us.
    pub cpu_system_s: f64,
    /// Where the time went.
    pub stages: BackupStages,
    /// What limited the run.
    pub limit: Limit,
    /// Where replay starts.
    pub start_lsn: Lsn,
    /// Where the cluster is consistent.
    pub stop_lsn: Lsn,
    /// Timeline of the backup.
    pub timeline: TimelineId,
    /// `server_version_num`.
    pub postgres_version_num: u32,
    /// Files in the set.
    pub file_count: u64,
    /// Files that the server dropped meanwhile.
    pub vanished_file_count: u64,
    /// WAL segments in the set.
    pub wal_segment_count: u64,
    /// How many pages of the source are damaged.
    pub bad_page_count: u64,
    /// The damaged pages, up to a bound.
    pub bad_pages: Vec<BadPage>,
    /// How many files the catalogs named that the source no longer had.
    pub lost_file_count: u64,
    /// Those files, up to a bound.
    pub lost_files: Vec<LostFile>,
}

impl BackupReport {
    /// Whether the set is a faithful copy of a source that was not whole itself.
    pub fn source_is_damaged(&self) -> bool {
        self.bad_page_count > 0 || self.lost_file_count > 0
    }
}

/// What `--dry-run` and `--explain` show.
#[derive(Clone, Debug, Serialize)]
pub struct BackupPlan {
    /// Files that would be read.
    pub file_count: u64,
    /// Their bytes.
    pub source_bytes: u64,
    /// Reader threads.
    pub readers: u16,
    /// Encoder threads.
    pub encoders: u16,
    /// Stripes.
    pub stripes: u16,
    /// Where they would go.
    pub stripe_paths: Vec<String>,
    /// Parity stripes.
    pub parity: u16,
    /// Where those would go.
    pub parity_paths: Vec<String>,
    /// Transfer buffers.
    pub buffer_count: u32,
    /// Bytes of one.
    pub transfer_size_bytes: u32,
    /// Raw bytes of a full frame.
    pub frame_size_bytes: u32,
    /// Codec and level.
    pub compression: String,
    /// The sum.
    pub memory_ceiling: Ceiling,
    /// Its total.
    pub memory_ceiling_bytes: u64,
}

/// What `backup` gives.
#[derive(Clone, Debug)]
pub enum BackupOutcome {
    /// With --dry-run.
    Planned(Box<BackupPlan>),
    /// A finished set.
    Done(Box<BackupReport>),
}

/// A finished set and the run that made it: what its report is drawn from.
pub(super) struct Made<'a> {
    pub(super) manifest: Manifest,
    pub(super) state: &'static str,
    pub(super) changes_found_by: Option<&'static str>,
    pub(super) changed_bytes: u64,
    pub(super) notes: Vec<String>,
    pub(super) stripes: Vec<StripeReport>,
    pub(super) parity_stripes: Vec<StripeReport>,
    pub(super) repositories: Vec<RepositoryReport>,
    pub(super) codec: CodecSpec,
    pub(super) levels: Vec<LevelShare>,
    pub(super) settings: &'a PipelineSettings,
    pub(super) stats: &'a PipelineStats,
    pub(super) ceiling: &'a Ceiling,
    pub(super) started: Instant,
    pub(super) usage: &'a ProcessUsage,
}

impl Made<'_> {
    pub(super) fn report(self) -> BackupReport {
        let Made { manifest, settings, stats, .. } = self;
        let elapsed_s = self.started.elapsed().as_secs_f64();
        let used = ProcessUsage::now().since(self.usage);
        let bounded = settings.max_rate_bytes_per_s.is_some();
        BackupReport {
            label: manifest.label,
            kind: manifest.kind,
            prior: manifest.prior,
            changes_found_by: self.changes_found_by,
            changed_bytes: self.changed_bytes,
            read_bytes: stats.first.bytes,
            notes: self.notes,
            source: manifest.source,
            state: self.state,
            protected_until: None,
            elapsed_s,
            data_path_s: stats.elapsed_s,
            source_bytes: manifest.source_bytes,
            stored_bytes: manifest.stored_bytes,
            ratio: manifest.source_bytes as f64 / manifest.stored_bytes.max(1) as f64,
            throughput_bytes_per_s: manifest.source_bytes as f64 / elapsed_s.max(1e-9),
            codec: self.codec.name().to_owned(),
            level: self.codec.level(),
            deflate_engine: deflate_engine_at_work(self.codec).unwrap_or_default(),
            levels: self.levels,
            stripes: self.stripes,
            parity_stripes: self.parity_stripes,
            repositories: self.repositories,
            readers: settings.readers,
            encoders: settings.encoders,
            writers: settings.writers,
            buffer_count: settings.buffer_count,
            transfer_size_bytes: settings.transfer_size_bytes,
            frame_size_bytes: settings.frame_size_bytes,
            memory_ceiling_bytes: self.ceiling.total_bytes(),
            rss_bytes_max: used.rss_bytes_max,
            cpu_user_s: used.cpu_user_s,
            cpu_system_s: used.cpu_system_s,
            stages: BackupStages { readers: stats.first, encoders: stats.middle, writers: stats.last },
            limit: find_limit(Direction::Backup, Some(self.codec), stats, f64::from(machine_cores()), bounded),
            start_lsn: manifest.postgres.start_lsn,
            stop_lsn: manifest.postgres.stop_lsn,
            timeline: manifest.postgres.timeline,
            postgres_version_num: manifest.postgres.version_num,
            file_count: manifest.file_count,
            vanished_file_count: manifest.vanished_file_count,
            wal_segment_count: manifest.postgres.wal_segments.len() as u64,
            bad_page_count: manifest.bad_page_count,
            bad_pages: manifest.bad_pages,
            lost_file_count: manifest.lost_file_count,
            lost_files: manifest.lost_files,
        }
    }
}
