//! What a synthetic full is asked for and what is said when it is done.

use std::time::Instant;

use serde::Serialize;

use super::super::report::{BackupStages, StripeReport};
use super::plan::Plan;
use super::store::Stored;
use crate::format::manifest::{BadPage, Manifest};
use crate::pipeline::ceiling::Ceiling;
use crate::pipeline::limit::{Direction, Limit, find_limit};
use crate::pipeline::usage::ProcessUsage;
use crate::pipeline::{CodecSpec, LevelShare, machine_cores};
use crate::terms::{BackupKind, BackupLabel, Lsn, SourceName, TimelineId};

/// Which chain, whereto, and how; None means the default.
#[derive(Clone, Debug)]
pub struct SynthesizeRequest {
    /// Whose backup; None if the repository has only one source.
    pub source: Option<SourceName>,
    /// Repository directory.
    pub repo: String,
    /// The set whose content the full one is to have; None is the newest complete one.
    pub label: Option<BackupLabel>,
    /// Further directories to look for moved stripes of the chain.
    pub stripe_from: Vec<String>,
    /// Directories for the stripes; empty puts them beside the manifest.
    pub stripe_to: Vec<String>,
    /// Number of stripes.
    pub stripes: Option<u16>,
    /// Codec and level that everything is encoded with anew; None takes frames as they are stored where they can be, and
    /// encodes the others as the chain's largest set was.
    pub compression: Option<CodecSpec>,
    /// Threads that read and decode the chain.
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
    /// Bytes read from stripes a second, at most.
    pub max_rate_bytes_per_s: Option<u64>,
    /// Free text, kept in the manifest; None keeps that of the set whose content it has.
    pub description: Option<String>,
}

impl SynthesizeRequest {
    /// A full set of the newest chain in `repo`, with every default.
    pub fn new(repo: impl Into<String>) -> Self {
        SynthesizeRequest {
            source: None,
            repo: repo.into(),
            label: None,
            stripe_from: Vec::new(),
            stripe_to: Vec::new(),
            stripes: None,
            compression: None,
            readers: None,
            encoders: None,
            buffer_count: None,
            transfer_size_bytes: None,
            frame_size_bytes: None,
            max_memory_bytes: None,
            max_rate_bytes_per_s: None,
            description: None,
        }
    }
}

/// What came of it.
#[derive(Clone, Debug)]
pub enum SynthesizeOutcome {
    /// The set needs no other one: there was nothing to do.
    AlreadyFull {
        /// Whose.
        source: SourceName,
        /// The set.
        label: BackupLabel,
    },
    /// A full set was made.
    Done(Box<SynthesizeReport>),
}

/// A finished synthetic full; the keys of `synthesize --json`.
#[derive(Clone, Debug, Serialize)]
pub struct SynthesizeReport {
    /// Name of the new set.
    pub label: BackupLabel,
    /// Full.
    pub kind: BackupKind,
    /// "complete".
    pub state: &'static str,
    /// Whose backup.
    pub source: SourceName,
    /// The set whose content it has.
    pub synthesized_from: BackupLabel,
    /// The sets that that one needs, nearest first.
    pub chain_prior: Vec<BackupLabel>,
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
    /// Bytes of files whose frames were taken as they were stored.
    pub copied_bytes: u64,
    /// Bytes read from stripes of the chain.
    pub read_bytes: u64,
    /// Codec of what was encoded anew, or auto.
    pub codec: String,
    /// Its level, 0 for none and auto.
    pub level: i32,
    /// With auto, how much was encoded at which level; otherwise empty.
    pub levels: Vec<LevelShare>,
    /// The stripes.
    pub stripes: Vec<StripeReport>,
    /// Threads that read and decode.
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
    /// Timeline.
    pub timeline: TimelineId,
    /// `server_version_num`.
    pub postgres_version_num: u32,
    /// Files in the set.
    pub file_count: u64,
    /// WAL segments in the set.
    pub wal_segment_count: u64,
    /// How many pages were damaged in the source.
    pub bad_page_count: u64,
    /// The damaged pages, up to a bound.
    pub bad_pages: Vec<BadPage>,
    /// What should be known of how it was made.
    pub notes: Vec<String>,
}

/// What the report is made of.
pub(super) struct Made<'a> {
    pub(super) manifest: Manifest,
    pub(super) stripes: Vec<StripeReport>,
    pub(super) stored: Stored,
    pub(super) plan: &'a Plan,
    pub(super) ceiling: &'a Ceiling,
    pub(super) started: Instant,
    pub(super) usage: &'a ProcessUsage,
    pub(super) notes: Vec<String>,
}

impl Made<'_> {
    pub(super) fn report(self) -> SynthesizeReport {
        let Made { manifest, stored, plan, .. } = self;
        let (settings, stats) = (&plan.settings, &stored.stats);
        let elapsed_s = self.started.elapsed().as_secs_f64();
        let used = ProcessUsage::now().since(self.usage);
        let (synthesized_from, chain_prior) =
            manifest.synthesized_from.map_or((manifest.label.clone(), Vec::new()), |from| (from.label, from.prior));
        SynthesizeReport {
            label: manifest.label,
            kind: manifest.kind,
            state: "complete",
            source: manifest.source,
            synthesized_from,
            chain_prior,
            elapsed_s,
            data_path_s: stats.elapsed_s,
            source_bytes: manifest.source_bytes,
            stored_bytes: manifest.stored_bytes,
            ratio: manifest.source_bytes as f64 / manifest.stored_bytes.max(1) as f64,
            throughput_bytes_per_s: manifest.source_bytes as f64 / elapsed_s.max(1e-9),
            copied_bytes: stored.copied_bytes,
            read_bytes: stats.first.bytes,
            codec: plan.codec.name().to_owned(),
            level: plan.codec.level(),
            levels: stored.levels,
            stripes: self.stripes,
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
            limit: find_limit(
                Direction::Backup,
                stats,
                f64::from(machine_cores()),
                settings.max_rate_bytes_per_s.is_some(),
            ),
            start_lsn: manifest.postgres.start_lsn,
            stop_lsn: manifest.postgres.stop_lsn,
            timeline: manifest.postgres.timeline,
            postgres_version_num: manifest.postgres.version_num,
            file_count: manifest.file_count,
            wal_segment_count: manifest.postgres.wal_segments.len() as u64,
            bad_page_count: manifest.bad_page_count,
            bad_pages: manifest.bad_pages,
            notes: self.notes,
        }
    }
}
