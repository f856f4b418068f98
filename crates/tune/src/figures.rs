//! What tuning measures and says: facts about data and devices, predictions, trials, and the whole report.
//!
//! Plain data with stable keys: the document of `tune --json`, what the history keeps, and what the report draws.

use serde::{Deserialize, Serialize};

use crate::space::Settings;

/// Whether the source was read from the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheState {
    /// At least nine tenths of the bytes were in the page cache before the run.
    Warm,
    /// At most one tenth was.
    Cold,
    /// Something between.
    Mixed,
    /// The system does not tell.
    #[default]
    Unknown,
}

/// The machine and what runs on it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineFacts {
    /// Host name.
    pub host: String,
    /// Processor as the kernel calls it.
    pub processor: String,
    /// Cores this process may use.
    pub cores: u16,
    /// Memory of the machine or its control group.
    pub memory_bytes: u64,
    /// Operating system and kernel.
    pub system: String,
    /// Version of pagehaul.
    pub pagehaul: String,
    /// Version of the server.
    pub server: String,
}

/// What is backed up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SourceFacts {
    /// Data directory.
    pub pgdata: String,
    /// The cluster's own id, so that two clusters are never mixed up.
    pub system_identifier: u64,
    /// Bytes of all files that a backup holds.
    pub source_bytes: u64,
    /// Their number.
    pub file_count: u64,
}

/// One codec, level and frame size on the sample, on one core with nothing else to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CodecFigures {
    /// Codec and level.
    pub compression: String,
    /// Raw bytes of a frame.
    pub frame_size_bytes: u32,
    /// Raw over stored.
    pub ratio: f64,
    /// Raw bytes encoded in a second by one core.
    pub encode_bytes_per_s: f64,
    /// Raw bytes decoded in a second by one core.
    pub decode_bytes_per_s: f64,
}

/// The sample the codecs were measured on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SampleFacts {
    /// Bytes in it.
    pub sample_bytes: u64,
    /// Its strata, as (name, share of the source's bytes, bytes in the sample): heap, btree, toast, other, ...
    pub strata: Vec<Stratum>,
    /// Page checks and CRC32C: raw bytes a second on one core.
    pub check_bytes_per_s: f64,
    /// XXH3: stored bytes a second on one core.
    pub hash_bytes_per_s: f64,
    /// Every codec, level and frame size.
    pub codecs: Vec<CodecFigures>,
}

/// One kind of content.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stratum {
    /// heap, btree, toast, other index, map, not pages.
    pub name: String,
    /// Bytes of the source that are of this kind.
    pub source_bytes: u64,
    /// Bytes of them in the sample.
    pub sample_bytes: u64,
}

/// A speed at a number of threads (readers, stripes, file writers).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpeedAt {
    /// Threads at once.
    pub threads: u16,
    /// Bytes a second of all of them together, everything durable where it is written.
    pub bytes_per_s: f64,
    /// CPU seconds a byte.
    pub cpu_s_per_byte: f64,
}

/// What the devices do alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceFacts {
    /// Reading the source, output discarded: the NUL baseline.
    pub read: Vec<SpeedAt>,
    /// Whether that came from the page cache.
    pub read_cache: CacheState,
    /// Writing stripes to the targets, synced.
    pub write: Vec<SpeedAt>,
    /// Reading stripes back.
    pub stripe_read: Vec<SpeedAt>,
    /// Writing restored files, synced.
    pub restore_write: Vec<SpeedAt>,
    /// What a backup takes beside its data path: checkpoint, begin and end, WAL, commit.
    pub backup_fixed_s: f64,
    /// What a restore takes beside its data path.
    pub restore_fixed_s: f64,
    /// Seconds that each file costs a backup.
    pub backup_file_s: f64,
    /// Seconds that each file costs a restore.
    pub restore_file_s: f64,
}

/// Everything the model predicts from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// The machine.
    pub machine: MachineFacts,
    /// The source.
    pub source: SourceFacts,
    /// The sample and the codecs.
    pub sample: SampleFacts,
    /// The devices.
    pub devices: DeviceFacts,
}

/// What holds a run back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// The source device (backup) or the stripes' devices (restore).
    Reading,
    /// The threads of the middle stage, with CPUs free.
    Coding,
    /// All CPUs together.
    Cpu,
    /// The stripes' devices (backup) or the restore target (restore).
    Writing,
    /// `--max-rate`.
    MaxRate,
    /// Begin, end, checkpoint, sync: nothing that scales with bytes.
    Fixed,
}

/// One way of a prediction: a backup or a restore.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PredictedRun {
    /// Wall time.
    pub wall_s: f64,
    /// CPU time of this process.
    pub cpu_s: f64,
    /// What holds it back.
    pub limit: LimitKind,
}

/// What the model says of one point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The point.
    pub settings: Settings,
    /// The backup.
    pub backup: PredictedRun,
    /// The restore.
    pub restore: PredictedRun,
    /// Bytes stored.
    pub stored_bytes: u64,
    /// Memory ceiling of the backup.
    pub memory_bytes: u64,
}

/// Where the time of one stage went, in seconds of all its threads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageWaits {
    /// readers, encoders, writers; stripe readers, decoders, file writers.
    pub stage: String,
    /// Threads.
    pub threads: u16,
    /// Working.
    pub busy_s: f64,
    /// Waiting for the stage before.
    pub wait_input_s: f64,
    /// Waiting for the stage after.
    pub wait_output_s: f64,
}

/// One measured backup or restore.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunFigures {
    /// When it started, UTC.
    pub started_at: String,
    /// Wall time, output durable at the end.
    pub wall_s: f64,
    /// CPU time of the tool and its children.
    pub cpu_s: f64,
    /// CPU time of the server meanwhile, where it was measured.
    pub server_cpu_s: f64,
    /// Largest resident memory.
    pub rss_bytes_max: u64,
    /// Where its threads' time went; empty for other tools.
    pub stages: Vec<StageWaits>,
    /// What limited it, as the run itself says; empty for other tools.
    pub limit: String,
    /// Whether the source (backup) or the stripes (restore) were cached.
    pub cache: CacheState,
}

/// One measured run: a backup and, unless its output was discarded, the restore of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// pagehaul, pg_basebackup, pgBackRest.
    pub contestant: String,
    /// As a row of a table says it.
    pub setting: String,
    /// The point, for pagehaul.
    pub settings: Option<Settings>,
    /// Why it was run: candidate, default, baseline, contestant, grid.
    pub role: String,
    /// Which round, from 1.
    pub repetition: u32,
    /// Bytes of the files that were backed up.
    pub source_bytes: u64,
    /// Bytes stored; 0 where the output was discarded.
    pub stored_bytes: u64,
    /// The backup.
    pub backup: Option<RunFigures>,
    /// The restore.
    pub restore: Option<RunFigures>,
    /// Whether the restored bytes were those that were read from the source; None where that was not compared.
    pub bytes_equal: Option<bool>,
    /// What the model, as it was then, had said.
    pub predicted: Option<Prediction>,
    /// Why it failed; such a row takes part in nothing.
    pub failed: Option<String>,
}

/// Medians over the repetitions of one contestant in one setting.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// pagehaul, pg_basebackup, pgBackRest.
    pub contestant: String,
    /// As a row of a table says it.
    pub setting: String,
    /// The point, for pagehaul.
    pub settings: Option<Settings>,
    /// Why it was run.
    pub role: String,
    /// How often.
    pub runs: u32,
    /// Bytes stored.
    pub stored_bytes: u64,
    /// Source over stored.
    pub ratio: f64,
    /// Median wall time of the backup.
    pub backup_s: f64,
    /// The same of the restore.
    pub restore_s: Option<f64>,
    /// (largest - smallest) / median, over the repetitions.
    pub backup_spread: f64,
    /// The same of the restore.
    pub restore_spread: f64,
    /// CPU seconds, tool and server together.
    pub backup_cpu_s: f64,
    /// The same of the restore.
    pub restore_cpu_s: f64,
    /// Peak memory of the backup.
    pub rss_bytes_max: u64,
    /// What limited the backup.
    pub backup_limit: String,
    /// The same of the restore.
    pub restore_limit: String,
    /// Predicted wall time of the backup.
    pub predicted_backup_s: Option<f64>,
    /// The same of the restore.
    pub predicted_restore_s: Option<f64>,
    /// Normalised time + normalised size: each over the smallest of all rows; smaller is better.
    pub score: f64,
    /// Whether no other row is smaller and faster both ways.
    pub on_pareto_front: bool,
    /// Place by the objective, from 1; 0 for what takes no part.
    pub rank: u32,
    /// Why it failed.
    pub failed: Option<String>,
}

/// A next step from the recommendation: what one wish more costs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// smaller, faster restore, faster backup, less CPU, less memory.
    pub wish: String,
    /// The settings that fulfil it.
    pub setting: String,
    /// What it gains and costs, in words.
    pub text: String,
}

/// What is recommended, and how sure that is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recommendation {
    /// The point.
    pub settings: Option<Settings>,
    /// Its measured figures.
    pub row: Row,
    /// The objective in words.
    pub objective: String,
    /// Whether any bound was given.
    pub has_bounds: bool,
    /// Whether every bound (--rto, --window, ...) is met; if not, the best that is possible is shown.
    pub bounds_met: bool,
    /// Bounds that are not met, in words.
    pub bounds_missed: Vec<String>,
    /// Why this one, in sentences.
    pub why: Vec<String>,
    /// What limits it now.
    pub limit: String,
    /// How sure: the gap to the next row against the spread over the repetitions.
    pub sureness: String,
    /// What the next steps cost.
    pub steps: Vec<Step>,
    /// Lines of pagehaul.toml.
    pub config: String,
    /// The command lines, backup then restore.
    pub commands: Vec<String>,
}

/// How well the model said what was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelError {
    /// Median of |predicted - measured| / measured over the trials' backups and restores.
    pub median: f64,
    /// The largest.
    pub worst: f64,
    /// How many runs.
    pub runs: u32,
}

/// The document of `tune --json`, and the data of the report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TuneReport {
    /// When it started, UTC.
    pub started_at: String,
    /// How long it took.
    pub elapsed_s: f64,
    /// The command line.
    pub command: String,
    /// What everything was predicted from.
    pub facts: Facts,
    /// Every measured run.
    pub trials: Vec<Trial>,
    /// Medians, best first.
    pub rows: Vec<Row>,
    /// What is recommended; None if nothing could be measured.
    pub recommendation: Option<Recommendation>,
    /// How good the model was.
    pub model_error: ModelError,
    /// Predictions of points that were not run, for the plots: the best of each codec and the buffer grid.
    pub predictions: Vec<Prediction>,
    /// Things worth knowing: budget used up, contestants left out, guard stops.
    pub notes: Vec<String>,
}
