//! Facts of a real cluster: a sample, the devices, a prediction, and the backup and restore that it predicts.
//!
//! Nothing here asserts a speed: the machine may be busy. What is asserted are shares, limits, and factors.

#![allow(clippy::unwrap_used, reason = "what does not work fails the test")]

use std::path::Path;
use std::time::Duration;

use pagehaul_engine::backup::{BackupReport, BackupRequest};
use pagehaul_engine::codec::CodecSpec;
use pagehaul_engine::error::ErrorKind;
use pagehaul_engine::pipeline::{PipelineSettings, machine_cores};
use pagehaul_engine::restore::RestoreReport;
use pagehaul_engine::source::postgres::relation_layouts::read_from_catalog_files;
use pagehaul_engine::source::postgres::scratch_server::InitOptions;
use pagehaul_testkit::cluster::{Cluster, QUICK, default_install, disk_directory};
use pagehaul_tune::codec_bench::{BenchOptions, measure_codecs};
use pagehaul_tune::codec_table::figures_for;
use pagehaul_tune::device::page_cache::source_cache;
use pagehaul_tune::device::read::{measure_file_cost, measure_read};
use pagehaul_tune::device::restore_target::{self, measure_restore_target};
use pagehaul_tune::device::stripes::StripeBench;
use pagehaul_tune::device::{Bounds, fill_in_usual_costs};
use pagehaul_tune::figures::{CacheState, DeviceFacts, Facts, LimitKind, MachineFacts, RunFigures, SampleFacts, Trial};
use pagehaul_tune::model::{Model, model_error};
use pagehaul_tune::sample::{Sample, SampleOptions, take_sample};
use pagehaul_tune::source_files::SourceFiles;
use pagehaul_tune::space::Settings;
use pagehaul_tune::what_if::{WhatIf, scale};

const GO_ON: &(dyn Fn() -> bool + Sync) = &|| false;

/// Large enough that a backup is more than its fixed costs, small enough for a test.
fn loaded_cluster(directory: &Path) -> Cluster {
    // Segments that are mostly empty compress well, and are a good part of a set this small.
    let options = InitOptions { wal_segment_size_mib: Some(1), ..InitOptions::default() };
    let cluster = Cluster::start_with(&default_install(), directory, &options, QUICK);
    cluster.load_typed_tables(200_000);
    // Values of 6 kB that do not compress: a TOAST table of chunks.
    cluster.run(&[
        "CREATE TABLE documents (id int, body text)",
        "INSERT INTO documents SELECT i, (SELECT string_agg(md5((i * 1000 + j)::text), '') FROM generate_series(1, 190) AS j) \
         FROM generate_series(1, 3000) AS i",
        "CHECKPOINT",
    ]);
    cluster
}

fn sample_facts(sample: &Sample, codecs: &[&str]) -> SampleFacts {
    let codecs: Vec<CodecSpec> = codecs.iter().map(|codec| codec.parse().unwrap()).collect();
    let options = BenchOptions { budget: Duration::from_secs(1), progress: &|_, _, _| {}, cancelled: &|| false };
    measure_codecs(sample, &codecs, &[256 << 10, 1 << 20, 4 << 20], &options).unwrap()
}

fn device_facts(source: &SourceFiles, target: &Path) -> DeviceFacts {
    let bounds = Bounds { bytes_max: 64 << 20, time_max: Duration::from_millis(500) };
    let targets = [target.display().to_string()];
    let bench = StripeBench {
        targets: &targets,
        scratch_prefix: "tune-scratch",
        transfer_size_bytes: 1 << 20,
        bounds,
        cancelled: GO_ON,
    };
    let stripes = bench.measure(&[1, 2]).unwrap();
    let mut devices = DeviceFacts {
        read: measure_read(source, &[1, 2], 1 << 20, &bounds, GO_ON).unwrap(),
        read_cache: source_cache(source),
        write: stripes.write,
        stripe_read: stripes.read,
        restore_write: measure_restore_target(target, "tune-restore", &[1, 2, 4], 1 << 20, &bounds, GO_ON).unwrap(),
        backup_file_s: measure_file_cost(source).unwrap().unwrap_or_default(),
        restore_file_s: restore_target::measure_file_cost(target, "tune-files", GO_ON).unwrap(),
        ..DeviceFacts::default()
    };
    fill_in_usual_costs(&mut devices);
    devices
}

fn facts(source: &SourceFiles, sample: SampleFacts, devices: DeviceFacts) -> Facts {
    let machine = MachineFacts { cores: machine_cores(), ..MachineFacts::default() };
    Facts { machine, source: source.facts(), sample, devices }
}

fn settings(compression: &str) -> Settings {
    let cores = machine_cores();
    let compression: CodecSpec = compression.parse().unwrap();
    Settings {
        compression,
        readers: cores,
        encoders: cores,
        stripes: 2,
        buffer_count: PipelineSettings::default_buffer_count(cores, cores, 2),
        transfer_size_bytes: compression.default_frame_size_bytes(),
        stripe_readers: cores.min(4),
        decoders: cores,
        file_writers: 4,
    }
}

fn backup_with(cluster: &Cluster, settings: &Settings, max_rate: Option<u64>) -> BackupReport {
    cluster.backup(&BackupRequest {
        compression: settings.compression,
        readers: Some(settings.readers),
        encoders: Some(settings.encoders),
        stripes: Some(settings.stripes),
        buffer_count: Some(settings.buffer_count),
        transfer_size_bytes: Some(settings.transfer_size_bytes),
        max_rate_bytes_per_s: max_rate,
        ..cluster.backup_request()
    })
}

fn trial(settings: &Settings, backup: &BackupReport, restore: &RestoreReport) -> Trial {
    let run = |wall_s, cpu_s| Some(RunFigures { wall_s, cpu_s, ..RunFigures::default() });
    Trial {
        contestant: "pagehaul".to_owned(),
        settings: Some(settings.clone()),
        source_bytes: backup.source_bytes,
        stored_bytes: backup.stored_bytes,
        backup: run(backup.elapsed_s, backup.cpu_user_s + backup.cpu_system_s),
        restore: run(restore.elapsed_s, restore.cpu_user_s + restore.cpu_system_s),
        ..Trial::default()
    }
}

fn factor(one: f64, two: f64) -> f64 {
    (one / two).max(two / one)
}

#[test]
fn a_sample_has_the_sources_strata_and_predicts_its_ratio() {
    let directory = disk_directory();
    let cluster = loaded_cluster(directory.path());
    let source = SourceFiles::list(cluster.server.data_directory()).unwrap();
    let layouts = Some(read_from_catalog_files(cluster.server.data_directory()).unwrap());
    let options = SampleOptions { sample_size_bytes: 24 << 20, layouts, ..SampleOptions::default() };
    let sample = take_sample(&source, &options, &|| false).unwrap();
    let again = take_sample(&source, &options, &|| false).unwrap();
    assert!(again.pieces.iter().map(|piece| &piece.bytes).eq(sample.pieces.iter().map(|piece| &piece.bytes)));
    assert!(source.bytes > 60 << 20, "{} bytes", source.bytes);
    assert!(sample.read_bytes <= 24 << 20 && sample.bytes() > 16 << 20, "{} and {}", sample.read_bytes, sample.bytes());
    assert_eq!(sample.strata.iter().map(|stratum| stratum.source_bytes).sum::<u64>(), source.bytes);
    let stratum =
        |name: &str| sample.strata.iter().find(|stratum| stratum.name == name).unwrap_or_else(|| panic!("no {name}"));
    for name in ["heap", "btree", "toast", "other index"] {
        let (share, taken) = (
            stratum(name).source_bytes as f64 / source.bytes as f64,
            stratum(name).sample_bytes as f64 / sample.bytes() as f64,
        );
        assert!((share - taken).abs() < 0.1, "{name} is {share} of the source and {taken} of the sample");
    }
    let truth = |sql: &str| cluster.value(sql).parse::<u64>().unwrap();
    let size_of = |kind: &str| {
        format!("SELECT sum(pg_relation_size(c.oid)) FROM pg_class c LEFT JOIN pg_am a ON a.oid = c.relam WHERE {kind}")
    };
    let toast = truth(&size_of("c.relkind = 't'"));
    assert!(
        stratum("toast").source_bytes >= 18 << 20 && factor(stratum("toast").source_bytes as f64, toast as f64) < 1.1
    );
    let other = truth(&size_of("c.relkind = 'i' AND a.amname <> 'btree'"));
    assert_eq!(stratum("other index").source_bytes, other);

    let codecs = ["none", "lz4:1", "zstd:1", "zstd:9", "page:1"];
    let facts = sample_facts(&sample, &codecs);
    for codec in codecs {
        let spec: CodecSpec = codec.parse().unwrap();
        let figures = figures_for(&facts, spec, spec.default_frame_size_bytes()).unwrap();
        let report = backup_with(&cluster, &settings(codec), None);
        // The set has WAL beside what was sampled: one segment or two, mostly zeros, which are not stored.
        let wal_bytes = report.wal_segment_count << 20;
        let ratio = (report.source_bytes - wal_bytes) as f64 / report.stored_bytes as f64;
        assert!(factor(figures.ratio, ratio) < 1.25, "{codec}: {} sampled, {ratio} stored", figures.ratio);
    }
    let whole = take_sample(&source, &SampleOptions::default(), &|| false).unwrap();
    assert!(whole.bytes() == source.bytes, "a source that is smaller is taken whole");
}

#[test]
fn a_fresh_cluster_works_and_a_tiny_sample_is_refused() {
    let directory = disk_directory();
    let cluster = Cluster::start(&default_install(), directory.path());
    let source = SourceFiles::list(cluster.server.data_directory()).unwrap();
    let tiny = SampleOptions { sample_size_bytes: 1000, ..SampleOptions::default() };
    let error = take_sample(&source, &tiny, &|| false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.hint_text().is_some());
    let small = SampleOptions { sample_size_bytes: 1 << 20, ..SampleOptions::default() };
    let sample = take_sample(&source, &small, &|| false).unwrap();
    assert!(sample.read_bytes <= 1 << 20 && sample.bytes() > 0);
    let facts = sample_facts(&sample, &["zstd:1", "zstd:19"]);
    assert!(facts.codecs.iter().all(|figures| figures.ratio > 1.0), "{facts:?}");
    let stopped = take_sample(&source, &small, &|| true).unwrap_err();
    assert_eq!(stopped.kind(), ErrorKind::Interrupted);
}

#[test]
fn facts_predict_a_backup_and_a_restore_and_a_trial_corrects_them() {
    let directory = disk_directory();
    let cluster = loaded_cluster(directory.path());
    let source = SourceFiles::list(cluster.server.data_directory()).unwrap();
    let sample = take_sample(&source, &SampleOptions::default(), &|| false).unwrap();
    let targets = cluster.server_directory("targets");
    let facts = facts(&source, sample_facts(&sample, &["lz4:1", "zstd:1", "zstd:3"]), device_facts(&source, &targets));
    assert_eq!(std::fs::read_dir(&targets).unwrap().count(), 0, "nothing is left in the targets");
    assert_eq!(facts.devices.read_cache, CacheState::Warm, "the server wrote it a moment ago");
    let mut model = Model::new(facts);
    let mut trials = Vec::new();
    for codec in ["zstd:1", "lz4:1", "zstd:3", "zstd:1"] {
        let settings = settings(codec);
        let said = model.predict(&settings);
        let backup = backup_with(&cluster, &settings, None);
        let target = directory.path().join(format!("restored-{}", trials.len()));
        let restore = cluster.restore_to(&target);
        std::fs::remove_dir_all(&target).unwrap();
        eprintln!(
            "{codec}: backup {:.3} s predicted, {:.3} measured; restore {:.3} and {:.3}; {} and {} stored",
            said.backup.wall_s,
            backup.elapsed_s,
            said.restore.wall_s,
            restore.elapsed_s,
            said.stored_bytes,
            backup.stored_bytes
        );
        assert!(factor(said.stored_bytes as f64, backup.stored_bytes as f64) < 1.5);
        assert!(
            said.memory_bytes >= backup.memory_ceiling_bytes / 2
                && said.memory_bytes <= 2 * backup.memory_ceiling_bytes
        );
        trials.push(Trial { predicted: Some(said), ..trial(&settings, &backup, &restore) });
        model.correct(&trials);
    }
    // After the first trial of each kind; before it a busy machine may be off by any factor.
    let error = model_error(&trials);
    assert_eq!(error.runs, 8);
    for trial in &trials[2..3] {
        let again = model.predict(trial.settings.as_ref().unwrap());
        let measured = trial.backup.as_ref().unwrap().wall_s;
        assert!(factor(again.backup.wall_s, measured) < 1.5, "{} for {measured}", again.backup.wall_s);
    }
}

#[test]
fn a_throttled_reader_is_the_limit_until_it_is_faster_than_the_codec() {
    let directory = disk_directory();
    let cluster = loaded_cluster(directory.path());
    let source = SourceFiles::list(cluster.server.data_directory()).unwrap();
    let sample = take_sample(&source, &SampleOptions::default(), &|| false).unwrap();
    let targets = cluster.server_directory("targets");
    let measured = facts(&source, sample_facts(&sample, &["lz4:1", "zstd:9"]), device_facts(&source, &targets));

    // Four seconds' worth a backup, far below what lz4 does and far above what zstd:9 does on any machine.
    let rate = source.bytes / 4;
    let slow_source = scale(&measured, &WhatIf { read_bytes_per_s: Some(rate as f64), ..WhatIf::default() });
    let said = Model::new(slow_source).predict(&settings("lz4:1"));
    let throttled = Model::new(measured.clone()).with_max_rate(Some(rate)).predict(&settings("lz4:1"));
    let real = backup_with(&cluster, &settings("lz4:1"), Some(rate));
    assert_eq!((said.backup.limit, throttled.backup.limit), (LimitKind::Reading, LimitKind::MaxRate));
    assert_eq!(real.limit.stage, "max-rate", "{:?}", real.limit);
    assert!(factor(said.backup.wall_s, real.elapsed_s) < 1.5, "{} for {}", said.backup.wall_s, real.elapsed_s);
    assert!(factor(throttled.backup.wall_s, real.elapsed_s) < 1.5);

    let slow_codec = Model::new(measured).with_max_rate(Some(100 * rate)).predict(&settings("zstd:9"));
    let real = backup_with(&cluster, &settings("zstd:9"), Some(100 * rate));
    assert!(matches!(slow_codec.backup.limit, LimitKind::Cpu | LimitKind::Coding), "{slow_codec:?}");
    // Of its own threads: what the report says is the process', in which other tests run.
    let cpu_s: f64 =
        [real.stages.readers, real.stages.encoders, real.stages.writers].iter().map(|stage| stage.cpu_s).sum();
    eprintln!(
        "zstd:9: {:.2} s of CPU predicted, {cpu_s:.2} measured; wall {:.2} and {:.2}",
        slow_codec.backup.cpu_s, slow_codec.backup.wall_s, real.elapsed_s
    );
    assert_eq!(real.limit.stage, "encoders", "{:?}", real.limit);
    // CPU time, because a busy machine stretches the wall time of what wants all cores.
    assert!(factor(slow_codec.backup.cpu_s, cpu_s) < 3.0, "{} for {cpu_s}", slow_codec.backup.cpu_s);
}
