//! One row of the history, and how trials, backups and restores become one.

use jiff::{SignedDuration, Timestamp};
use pagehaul_engine::backup::BackupReport;
use pagehaul_engine::restore::RestoreReport;
use serde::{Deserialize, Serialize};

use super::columns::time_text;
use crate::figures::{MachineFacts, RunFigures, Trial};
use crate::space::{Settings, size_text};
use crate::trial::{of_backup, of_restore};

/// One measured run: a backup, a restore, or a trial that is both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HistoryRow {
    /// Its number in the file; 0 before it is added.
    pub id: i64,
    /// The tuning session it was part of.
    pub session: Option<i64>,
    /// When it started, UTC.
    pub started_at: String,
    /// backup, restore, or for a trial why it was run: candidate, default, baseline, contestant, grid.
    pub role: String,
    /// Name of the source.
    pub source: String,
    /// Data directory; for a restore where it went.
    pub pgdata: String,
    /// The cluster's own id; 0 where it is not known.
    pub system_identifier: u64,
    /// pagehaul, pg_basebackup, pgBackRest.
    pub contestant: String,
    /// The settings in a line.
    pub setting: String,
    /// The settings one by one, as far as the run had them.
    pub settings: RunSettings,
    /// Which round of a session, from 1.
    pub repetition: u32,
    /// The backup set, for backups and restores that were no trials.
    pub label: Option<String>,
    /// Bytes of the files.
    pub source_bytes: u64,
    /// Bytes stored, or for a restore read; 0 where the output was discarded.
    pub stored_bytes: u64,
    /// The backup's figures.
    pub backup: Option<RunFigures>,
    /// The restore's figures.
    pub restore: Option<RunFigures>,
    /// Whether the restored bytes were those that were read; None where that was not compared.
    pub bytes_equal: Option<bool>,
    /// Where it ran, and the versions.
    pub machine: MachineFacts,
    /// Why it failed.
    pub failed: Option<String>,
}

/// Settings as far as a run has them: a backup knows no decoders, another tool perhaps nothing of all this.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSettings {
    /// Codec and level.
    pub compression: Option<String>,
    /// Reader threads.
    pub readers: Option<u16>,
    /// Encoder threads.
    pub encoders: Option<u16>,
    /// Stripes.
    pub stripes: Option<u16>,
    /// Transfer buffers.
    pub buffer_count: Option<u32>,
    /// Bytes of one.
    pub transfer_size_bytes: Option<u32>,
    /// Stripe reader threads.
    pub stripe_readers: Option<u16>,
    /// Decoder threads.
    pub decoders: Option<u16>,
    /// File writer threads.
    pub file_writers: Option<u16>,
}

impl From<&Settings> for RunSettings {
    fn from(settings: &Settings) -> Self {
        RunSettings {
            compression: Some(settings.compression.to_string()),
            readers: Some(settings.readers),
            encoders: Some(settings.encoders),
            stripes: Some(settings.stripes),
            buffer_count: Some(settings.buffer_count),
            transfer_size_bytes: Some(settings.transfer_size_bytes),
            stripe_readers: Some(settings.stripe_readers),
            decoders: Some(settings.decoders),
            file_writers: Some(settings.file_writers),
        }
    }
}

/// What a run's own figures do not say: whose it was and where it ran.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Origin {
    /// Name of the source.
    pub source: String,
    /// Data directory.
    pub pgdata: String,
    /// The cluster's own id; 0 if it is not known.
    pub system_identifier: u64,
    /// The machine; an empty `server` is filled in from a backup's report.
    pub machine: MachineFacts,
}

impl HistoryRow {
    /// A trial's row; one that failed before anything was measured counts as started now.
    pub fn from_trial(trial: &Trial, origin: &Origin) -> HistoryRow {
        let first = trial.backup.as_ref().or(trial.restore.as_ref()).map(|run| run.started_at.clone());
        HistoryRow {
            started_at: first.filter(|start| !start.is_empty()).unwrap_or_else(|| time_text(Timestamp::now())),
            role: trial.role.clone(),
            contestant: trial.contestant.clone(),
            setting: trial.setting.clone(),
            settings: trial.settings.as_ref().map(RunSettings::from).unwrap_or_default(),
            repetition: trial.repetition,
            source_bytes: trial.source_bytes,
            stored_bytes: trial.stored_bytes,
            backup: trial.backup.clone(),
            restore: trial.restore.clone(),
            bytes_equal: trial.bytes_equal,
            failed: trial.failed.clone(),
            ..HistoryRow::of(origin)
        }
    }

    /// A backup's row; it ended at `ended_at`.
    pub fn from_backup(report: &BackupReport, origin: &Origin, ended_at: Timestamp) -> HistoryRow {
        let run = RunFigures { started_at: started(ended_at, report.elapsed_s), ..of_backup(report) };
        let mut compression =
            if report.level == 0 { report.codec.clone() } else { format!("{}:{}", report.codec, report.level) };
        // QATzip is always asked for by name.
        if report.deflate_engine.as_ref().is_some_and(|engine| engine.starts_with("qat")) {
            compression.push_str("@qat");
        }
        let stripes = report.writers;
        let mut row = HistoryRow {
            started_at: run.started_at.clone(),
            role: "backup".to_owned(),
            source: report.source.to_string(),
            contestant: "pagehaul".to_owned(),
            setting: format!(
                "{compression} r{} e{} s{stripes} b{} {}",
                report.readers,
                report.encoders,
                report.buffer_count,
                size_text(report.transfer_size_bytes)
            ),
            settings: RunSettings {
                compression: Some(compression),
                readers: Some(report.readers),
                encoders: Some(report.encoders),
                stripes: Some(stripes),
                buffer_count: Some(report.buffer_count),
                transfer_size_bytes: Some(report.transfer_size_bytes),
                ..RunSettings::default()
            },
            repetition: 1,
            label: Some(report.label.to_string()),
            source_bytes: report.source_bytes,
            stored_bytes: report.stored_bytes,
            backup: Some(run),
            ..HistoryRow::of(origin)
        };
        if row.machine.server.is_empty() {
            let version = report.postgres_version_num;
            row.machine.server = format!("{}.{}", version / 10_000, version % 10_000);
        }
        row
    }

    /// A restore's row; it ended at `ended_at`. Its data directory is where it went.
    pub fn from_restore(report: &RestoreReport, origin: &Origin, ended_at: Timestamp) -> HistoryRow {
        let run = RunFigures { started_at: started(ended_at, report.elapsed_s), ..of_restore(report) };
        HistoryRow {
            started_at: run.started_at.clone(),
            role: "restore".to_owned(),
            source: report.source.to_string(),
            pgdata: report.target_dir.clone(),
            contestant: "pagehaul".to_owned(),
            setting: format!(
                "r{} d{} w{} b{} {}",
                report.readers,
                report.decoders,
                report.file_writers,
                report.buffer_count,
                size_text(report.transfer_size_bytes)
            ),
            settings: RunSettings {
                stripe_readers: Some(report.readers),
                decoders: Some(report.decoders),
                file_writers: Some(report.file_writers),
                buffer_count: Some(report.buffer_count),
                transfer_size_bytes: Some(report.transfer_size_bytes),
                ..RunSettings::default()
            },
            repetition: 1,
            label: Some(report.label.to_string()),
            source_bytes: report.restored_bytes,
            stored_bytes: report.stored_bytes,
            restore: Some(run),
            ..HistoryRow::of(origin)
        }
    }

    fn of(origin: &Origin) -> HistoryRow {
        HistoryRow {
            source: origin.source.clone(),
            pgdata: origin.pgdata.clone(),
            system_identifier: origin.system_identifier,
            machine: origin.machine.clone(),
            ..HistoryRow::default()
        }
    }
}

fn started(ended_at: Timestamp, elapsed_s: f64) -> String {
    let elapsed = SignedDuration::try_from_secs_f64(elapsed_s).unwrap_or_default();
    time_text(ended_at.checked_sub(elapsed).unwrap_or(ended_at))
}
