//! What the engine reports of a backup or restore becomes a row of the history with all its figures.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use jiff::Timestamp;
use pagehaul_engine::backup::{BackupReport, BackupStages};
use pagehaul_engine::pipeline::limit::Limit;
use pagehaul_engine::pipeline::stats::StageStats;
use pagehaul_engine::restore::{RestoreReport, RestoreStages};
use pagehaul_engine::terms::{BackupKind, Lsn, TimelineId};
use pagehaul_tune::figures::MachineFacts;
use pagehaul_tune::history::{History, HistoryFilter, HistoryRow, Origin};

fn stage(threads: u16, busy_s: f64) -> StageStats {
    StageStats { threads, busy_s, wait_input_s: 2.0, wait_output_s: 3.0, ..StageStats::default() }
}

fn limit() -> Limit {
    Limit { stage: "encoders".to_owned(), share: 0.9, cpu_bound: false, advice: String::new() }
}

fn backup() -> BackupReport {
    BackupReport {
        label: "20261121-201530F".parse().unwrap(),
        kind: BackupKind::Full,
        prior: Vec::new(),
        changes_found_by: None,
        changed_bytes: 3_000_000_000,
        read_bytes: 3_000_000_000,
        notes: Vec::new(),
        source: "main".parse().unwrap(),
        state: "complete",
        protected_until: None,
        elapsed_s: 90.5,
        data_path_s: 88.0,
        source_bytes: 3_000_000_000,
        stored_bytes: 1_000_000_000,
        ratio: 3.0,
        throughput_bytes_per_s: 33.1e6,
        codec: "zstd".to_owned(),
        deflate_engine: None,
        level: 3,
        levels: Vec::new(),
        repositories: Vec::new(),
        stripes: Vec::new(),
        parity_stripes: Vec::new(),
        readers: 1,
        encoders: 2,
        writers: 3,
        buffer_count: 4,
        transfer_size_bytes: 1 << 20,
        frame_size_bytes: 1 << 20,
        memory_ceiling_bytes: 0,
        rss_bytes_max: 77,
        cpu_user_s: 10.0,
        cpu_system_s: 1.5,
        stages: BackupStages { readers: stage(1, 5.0), encoders: stage(2, 6.0), writers: stage(3, 7.0) },
        limit: limit(),
        start_lsn: Lsn(1),
        stop_lsn: Lsn(2),
        timeline: TimelineId(1),
        postgres_version_num: 150_014,
        file_count: 5,
        vanished_file_count: 0,
        wal_segment_count: 1,
        bad_page_count: 0,
        bad_pages: Vec::new(),
        lost_file_count: 0,
        lost_files: Vec::new(),
    }
}

fn restore() -> RestoreReport {
    RestoreReport {
        label: "20261121-201530F".parse().unwrap(),
        source: "main".parse().unwrap(),
        state: "restored",
        delta: None,
        left_out_databases: Vec::new(),
        repaired_frame_count: 0,
        target_dir: "/restore/main".to_owned(),
        elapsed_s: 60.25,
        data_path_s: 55.0,
        sync_s: 5.0,
        restored_bytes: 3_000_000_000,
        stored_bytes: 1_000_000_000,
        throughput_bytes_per_s: 50e6,
        file_count: 5,
        readers: 6,
        decoders: 7,
        file_writers: 8,
        buffer_count: 9,
        transfer_size_bytes: 512 << 10,
        memory_ceiling_bytes: 0,
        rss_bytes_max: 88,
        cpu_user_s: 20.0,
        cpu_system_s: 2.5,
        stages: RestoreStages { stripe_readers: stage(6, 5.0), decoders: stage(7, 6.0), file_writers: stage(8, 7.0) },
        limit: limit(),
        target: "none",
        recovery: None,
        stop_lsn: Lsn(2),
        timeline: TimelineId(1),
        archiving_off: true,
        space: Vec::new(),
        external_files: Vec::new(),
        notes: Vec::new(),
    }
}

fn origin() -> Origin {
    let machine = MachineFacts { host: "db1".to_owned(), cores: 8, ..MachineFacts::default() };
    Origin { source: "unused".to_owned(), pgdata: "/pg".to_owned(), system_identifier: 7, machine }
}

fn ended_at() -> Timestamp {
    "2026-11-21T20:17:00.5Z".parse().unwrap()
}

/// The row after it went through a file: nothing of it may be lost there.
fn kept(row: &HistoryRow) -> HistoryRow {
    let place = tempfile::tempdir().unwrap();
    let history = History::open(&place.path().join("history.sqlite")).unwrap();
    let id = history.add(row).unwrap();
    let back = history.rows(&HistoryFilter::default()).unwrap().remove(0);
    assert_eq!(back, HistoryRow { id, ..row.clone() });
    back
}

#[test]
fn a_backup_becomes_a_row() {
    let row = kept(&HistoryRow::from_backup(&backup(), &origin(), ended_at()));
    assert_eq!((row.role.as_str(), row.source.as_str(), row.pgdata.as_str()), ("backup", "main", "/pg"));
    assert_eq!(row.started_at, "2026-11-21T20:15:30.000000Z");
    assert_eq!(row.setting, "zstd:3 r1 e2 s3 b4 1MiB");
    let settings = &row.settings;
    assert_eq!(settings.compression.as_deref(), Some("zstd:3"));
    assert_eq!(
        (settings.readers, settings.encoders, settings.stripes, settings.buffer_count),
        (Some(1), Some(2), Some(3), Some(4))
    );
    assert_eq!((settings.decoders, row.restore.as_ref()), (None, None));
    let run = row.backup.as_ref().unwrap();
    assert_eq!((run.wall_s, run.cpu_s, run.rss_bytes_max), (90.5, 11.5, 77));
    assert!(run.limit.starts_with("encoders busy "), "{}", run.limit);
    let stages: Vec<_> = run.stages.iter().map(|stage| (stage.stage.as_str(), stage.threads, stage.busy_s)).collect();
    assert_eq!(stages, [("readers", 1, 5.0), ("encoders", 2, 6.0), ("writers", 3, 7.0)]);
    assert_eq!((row.source_bytes, row.stored_bytes), (3_000_000_000, 1_000_000_000));
    assert_eq!((row.machine.server.as_str(), row.machine.host.as_str()), ("15.14", "db1"));
    assert_eq!(row.label.as_deref(), Some("20261121-201530F"));
    let uncompressed = BackupReport { codec: "none".to_owned(), level: 0, ..backup() };
    let row = HistoryRow::from_backup(&uncompressed, &origin(), ended_at());
    assert_eq!(row.settings.compression.as_deref(), Some("none"));
}

#[test]
fn a_restore_becomes_a_row() {
    let row = kept(&HistoryRow::from_restore(&restore(), &origin(), ended_at()));
    assert_eq!((row.role.as_str(), row.source.as_str(), row.pgdata.as_str()), ("restore", "main", "/restore/main"));
    assert_eq!(row.started_at, "2026-11-21T20:16:00.250000Z");
    assert_eq!(row.setting, "r6 d7 w8 b9 512KiB");
    let settings = &row.settings;
    assert_eq!((settings.stripe_readers, settings.decoders, settings.file_writers), (Some(6), Some(7), Some(8)));
    assert_eq!((settings.compression.as_ref(), settings.readers, row.backup.as_ref()), (None, None, None));
    let run = row.restore.as_ref().unwrap();
    assert_eq!((run.wall_s, run.cpu_s, run.rss_bytes_max), (60.25, 22.5, 88));
    assert_eq!(run.stages.iter().map(|stage| stage.threads).collect::<Vec<_>>(), [6, 7, 8]);
    assert_eq!(row.source_bytes, 3_000_000_000);
}
