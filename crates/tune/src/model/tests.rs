//! The model: who limits what in clear cases, what always holds, and what trials teach.

use proptest::prelude::*;

use super::*;
use crate::figures::{
    CodecFigures, DeviceFacts, MachineFacts, RunFigures, SampleFacts, SourceFacts, SpeedAt, StageWaits,
};

const MB: f64 = 1e6;

fn device(threads: &[u16], mb_per_s: f64) -> Vec<SpeedAt> {
    let at = |threads: &u16| SpeedAt { threads: *threads, bytes_per_s: mb_per_s * MB, cpu_s_per_byte: 2e-10 };
    threads.iter().map(at).collect()
}

/// A machine of two cores with fast devices.
fn facts() -> Facts {
    let row = |compression: &str, frame_size_bytes, ratio, encode: f64, decode: f64| CodecFigures {
        compression: compression.to_owned(),
        frame_size_bytes,
        ratio,
        encode_bytes_per_s: encode * MB,
        decode_bytes_per_s: decode * MB,
    };
    let codecs = vec![
        row("none", 1 << 20, 1.1, 1e6, 1e6),
        row("lz4:1", 1 << 20, 2.9, 1300.0, 4000.0),
        row("zstd:1", 1 << 20, 4.4, 700.0, 1500.0),
        row("zstd:3", 4 << 20, 4.6, 500.0, 1400.0),
        row("zstd:19", 4 << 20, 5.5, 4.0, 1300.0),
    ];
    Facts {
        machine: MachineFacts { cores: 2, ..MachineFacts::default() },
        source: SourceFacts { source_bytes: 2_300_000_000, file_count: 1000, ..SourceFacts::default() },
        sample: SampleFacts { codecs, check_bytes_per_s: 14e9, hash_bytes_per_s: 24e9, ..SampleFacts::default() },
        devices: DeviceFacts {
            read: device(&[1, 2], 8000.0),
            write: device(&[1, 4], 2000.0),
            stripe_read: device(&[1, 4], 3000.0),
            restore_write: device(&[1, 2, 4], 2500.0),
            backup_fixed_s: 0.1,
            restore_fixed_s: 0.1,
            backup_file_s: 12e-6,
            restore_file_s: 80e-6,
            ..DeviceFacts::default()
        },
    }
}

fn settings(compression: &str) -> Settings {
    Settings {
        compression: compression.parse().unwrap(),
        readers: 2,
        encoders: 2,
        stripes: 4,
        buffer_count: 18,
        transfer_size_bytes: 4 << 20,
        stripe_readers: 2,
        decoders: 2,
        file_writers: 4,
    }
}

fn backup(facts: &Facts, settings: &Settings) -> PredictedRun {
    Model::new(facts.clone()).predict(settings).backup
}

#[test]
fn the_limit_is_named_in_clear_cases() {
    let limits = |facts: &Facts, compression: &str| {
        let said = Model::new(facts.clone()).predict(&settings(compression));
        (said.backup.limit, said.restore.limit)
    };
    let with = |change: &dyn Fn(&mut Facts)| {
        let mut facts = facts();
        change(&mut facts);
        facts
    };
    assert_eq!(limits(&facts(), "zstd:1").0, LimitKind::Cpu);
    let slow_source = with(&|facts| facts.devices.read = device(&[1], 100.0));
    assert_eq!(limits(&slow_source, "zstd:1").0, LimitKind::Reading);
    let slow_target = with(&|facts| facts.devices.write = device(&[1], 50.0));
    assert_eq!(limits(&slow_target, "zstd:1").0, LimitKind::Writing);
    assert_eq!(limits(&slow_target, "zstd:19").0, LimitKind::Cpu, "5 times fewer bytes, but 150 times slower");
    let slow_stripes = with(&|facts| facts.devices.stripe_read = device(&[1], 50.0));
    assert_eq!(limits(&slow_stripes, "zstd:1").1, LimitKind::Reading);
    let slow_restore = with(&|facts| facts.devices.restore_write = device(&[1], 50.0));
    assert_eq!(limits(&slow_restore, "zstd:1").1, LimitKind::Writing);
    let small = with(&|facts| facts.source.source_bytes = 1_000_000);
    assert_eq!(limits(&small, "zstd:1"), (LimitKind::Fixed, LimitKind::Fixed));
    let many_cores = with(&|facts| facts.machine.cores = 64);
    assert_eq!(limits(&many_cores, "zstd:19").0, LimitKind::Coding, "two encoders on 64 cores");
    let throttled = Model::new(facts()).with_max_rate(Some(50_000_000)).predict(&settings("zstd:1"));
    assert_eq!(throttled.backup.limit, LimitKind::MaxRate);
    assert!((throttled.backup.wall_s / 46.0 - 1.0).abs() < 0.02, "{}", throttled.backup.wall_s);
}

#[test]
fn the_arithmetic_is_that_of_the_limit_law() {
    // Encoding alone: 1/700 + 1/14000 + 1/24000/4.4 us a byte on two cores, plus reading and writing on the same cores.
    let code = 1.0 / 700.0 + 1.0 / 14_000.0 + 1.0 / 24_000.0 / 4.4;
    let cpu_s = 2300.0 * (code + 0.0002 + 0.0002 / 4.4 + 15.0 / 4_194_304.0);
    let said = backup(&facts(), &settings("zstd:1"));
    assert!((said.wall_s / (cpu_s / 2.0 + 0.1 + 0.012) - 1.0).abs() < 0.01, "{} for {}", said.wall_s, cpu_s / 2.0);
    assert!((said.cpu_s / cpu_s - 1.0).abs() < 0.02, "{} for {cpu_s}", said.cpu_s);
}

#[test]
fn more_threads_than_cores_and_more_buffers_than_enough_gain_nothing() {
    let one = |change: &dyn Fn(&mut Settings)| {
        let mut settings = settings("zstd:3");
        change(&mut settings);
        backup(&facts(), &settings).wall_s
    };
    let usual = one(&|_| {});
    assert!(one(&|settings| settings.encoders = 1) > 1.5 * usual);
    assert!((one(&|settings| (settings.encoders, settings.buffer_count) = (8, 100)) / usual - 1.0).abs() < 0.02);
    assert_eq!(one(&|settings| settings.buffer_count = 500), usual);
    assert!(one(&|settings| settings.buffer_count = 4) > usual);
    assert!(one(&|settings| settings.buffer_count = 2) > one(&|settings| settings.buffer_count = 4));
}

#[test]
fn memory_is_the_engines_own_sum() {
    let memory = |settings: &Settings| Model::new(facts()).predict(settings).memory_bytes;
    let usual = memory(&settings("zstd:1"));
    assert!(usual > 18 * (4 << 20), "{usual}");
    assert!(memory(&Settings { buffer_count: 36, ..settings("zstd:1") }) > usual + 18 * (4 << 20));
    assert!(memory(&settings("zstd:19")) > usual, "its state is larger");
}

#[test]
fn an_unknown_codec_never_wins() {
    let mut facts = facts();
    facts.sample.codecs.retain(|figures| !figures.compression.starts_with("lz4"));
    assert!(backup(&facts, &settings("lz4:1")).wall_s > 100.0 * backup(&facts, &settings("zstd:3")).wall_s);
    facts.sample.codecs.clear();
    let nothing = Model::new(facts).predict(&settings("none"));
    assert!(nothing.stored_bytes > 0 && nothing.backup.wall_s < 5.0, "{nothing:?}");
    let empty = Model::new(Facts::default()).predict(&settings("zstd:1"));
    assert!(empty.backup.wall_s > 0.0 && empty.restore.cpu_s > 0.0);
}

/// A trial of `settings` that took so long both ways.
fn trial(settings: &Settings, wall_s: f64, cpu_s: f64, beside_s: f64) -> Trial {
    let stages = vec![StageWaits {
        stage: "encoders".to_owned(),
        threads: 2,
        busy_s: 2.0 * (wall_s - beside_s),
        ..StageWaits::default()
    }];
    let run = RunFigures { wall_s, cpu_s, stages, ..RunFigures::default() };
    Trial {
        contestant: "pagehaul".to_owned(),
        settings: Some(settings.clone()),
        source_bytes: 2_300_000_000,
        stored_bytes: 520_000_000,
        backup: Some(run.clone()),
        restore: Some(run),
        ..Trial::default()
    }
}

#[test]
fn tried_points_are_met_and_neighbours_learn_from_them() {
    let mut model = Model::new(facts());
    let tried = settings("zstd:1");
    let (before, next) = (model.predict(&tried), model.predict(&settings("zstd:3")));
    let measured_s = 1.5 * before.backup.wall_s;
    model.correct(&[trial(&tried, measured_s, 1.4 * before.backup.cpu_s, 0.1)]);
    let after = model.predict(&tried);
    for run in [after.backup, after.restore] {
        assert!((run.wall_s / measured_s - 1.0).abs() < 0.03, "{} for {measured_s}", run.wall_s);
    }
    assert!((after.backup.cpu_s / before.backup.cpu_s - 1.4).abs() < 0.05);
    let factor = model.predict(&settings("zstd:3")).backup.wall_s / next.backup.wall_s;
    assert!((1.2..1.5).contains(&factor), "a neighbour follows, not quite as far: {factor}");
    assert!((after.stored_bytes as f64 / 520e6 - 1.0).abs() < 0.01, "{}", after.stored_bytes);
}

#[test]
fn what_is_beside_the_data_path_is_learned_from_the_stages_clocks() {
    let mut model = Model::new(facts());
    let trials: Vec<Trial> = (0..4).map(|_| trial(&settings("lz4:1"), 3.0, 3.0, 1.2)).collect();
    model.correct(&trials);
    assert!((model.beside_s(Direction::Backup) - 1.2).abs() < 0.2, "{}", model.beside_s(Direction::Backup));
    assert!((model.predict(&settings("lz4:1")).backup.wall_s - 3.0).abs() < 0.1);
}

#[test]
fn only_own_finished_kept_runs_teach() {
    let mut model = Model::new(facts());
    let before = model.predict(&settings("zstd:1"));
    let good = trial(&settings("zstd:1"), 30.0, 30.0, 0.1);
    let failed = Trial { failed: Some("no space".to_owned()), ..good.clone() };
    let other = Trial { contestant: "pgBackRest".to_owned(), ..good.clone() };
    let without = Trial { settings: None, ..good.clone() };
    model.correct(&[failed.clone(), other, without]);
    assert_eq!(model.predict(&settings("zstd:1")), before);
    let discarded = Trial { stored_bytes: 0, restore: None, ..good.clone() };
    model.correct(&[discarded]);
    assert_eq!(model.predict(&settings("zstd:1")), before);
    model.correct(&[good]);
    model.correct(&[]);
    assert_eq!(model.predict(&settings("zstd:1")), before, "what was learned is replaced");
    assert_eq!(model_error(&[failed]), crate::figures::ModelError::default());
}

#[test]
fn the_error_is_that_of_what_was_said_before() {
    let said = |wall_s: f64| {
        let mut prediction = Model::new(facts()).predict(&settings("zstd:1"));
        prediction.backup.wall_s = wall_s;
        prediction.restore.wall_s = 2.0;
        Trial { predicted: Some(prediction), ..trial(&settings("zstd:1"), 2.0, 2.0, 0.1) }
    };
    let error = model_error(&[said(2.2), said(1.0), said(2.0)]);
    assert_eq!(error.runs, 6);
    assert!((error.median - 0.0).abs() < 1e-9 && (error.worst - 0.5).abs() < 1e-9, "{error:?}");
    let error = model_error(&[Trial { restore: None, ..said(2.2) }]);
    assert!((error.median - 0.1).abs() < 1e-9 && error.runs == 1);
}

/// A world that is not the law's: its CPUs are dearer for one codec, its writes slower than measured, its costs beside
/// the data path other ones, and every run is off by a few hundredths.
fn made_up_world(settings: &Settings, noise: f64) -> Trial {
    let mut world = facts();
    world.devices.write = device(&[1, 4], 900.0);
    world.devices.restore_write = device(&[1, 2, 4], 1400.0);
    world.devices.backup_fixed_s = 0.3;
    world.sample.check_bytes_per_s = 6e9;
    for figures in &mut world.sample.codecs {
        let factor = if figures.compression.starts_with("zstd") { 0.75 } else { 0.9 };
        figures.encode_bytes_per_s *= factor;
        figures.decode_bytes_per_s *= factor;
    }
    let truth = Model::new(world).predict(settings);
    let mut trial = trial(settings, truth.backup.wall_s * noise, truth.backup.cpu_s * noise, 0.3);
    let run = RunFigures {
        wall_s: truth.restore.wall_s * noise,
        cpu_s: truth.restore.cpu_s * noise,
        ..RunFigures::default()
    };
    trial.restore = Some(run);
    trial.stored_bytes = truth.stored_bytes;
    trial
}

#[test]
fn a_dozen_trials_make_predictions_good_to_a_tenth() {
    let points = || {
        let codecs = ["none", "lz4:1", "zstd:1", "zstd:3"].into_iter();
        codecs.flat_map(|codec| {
            [(1, 1, 1), (2, 2, 1), (2, 2, 4), (1, 2, 4), (2, 1, 2), (2, 4, 8)].map(|(readers, encoders, stripes)| {
                let settings = Settings { readers, encoders, stripes, ..settings(codec) };
                Settings { stripe_readers: readers, decoders: encoders, file_writers: stripes, ..settings }
            })
        })
    };
    let noise = |index: usize| 1.0 + 0.03 * ((index * 7 % 5) as f64 - 2.0) / 2.0;
    let mut model = Model::new(facts());
    let (mut seen, mut first): (Vec<Trial>, Vec<Trial>) = (Vec::new(), Vec::new());
    for (index, point) in points().step_by(2).enumerate() {
        let mut trial = made_up_world(&point, noise(index));
        trial.predicted = Some(model.predict(&point));
        first.push(Trial { predicted: Some(Model::new(facts()).predict(&point)), ..trial.clone() });
        seen.push(trial);
        model.correct(&seen);
    }
    let uncorrected = model_error(&first);
    let while_learning = model_error(&seen);
    let untried = |point: Settings| Trial { predicted: Some(model.predict(&point)), ..made_up_world(&point, 1.0) };
    let after = model_error(&points().skip(1).step_by(2).map(untried).collect::<Vec<_>>());
    assert!(uncorrected.median > 0.15, "the worlds differ: {uncorrected:?}");
    assert!(while_learning.median < 0.10, "{while_learning:?}");
    assert!(after.median < 0.08, "{after:?}");
}

fn any_settings() -> impl Strategy<Value = Settings> {
    let codec = prop::sample::select(vec!["none", "lz4:1", "lz4:9", "zstd:-3", "zstd:1", "zstd:3", "zstd:19"]);
    let threads = || 1u16..40;
    (codec, (threads(), threads(), threads()), (threads(), threads(), threads()), 2u32..600, 16u32..27).prop_map(
        |(codec, (readers, encoders, stripes), (stripe_readers, decoders, file_writers), buffer_count, transfer)| {
            Settings {
                compression: codec.parse().unwrap(),
                readers,
                encoders,
                stripes,
                buffer_count,
                transfer_size_bytes: 1 << transfer,
                stripe_readers,
                decoders,
                file_writers,
            }
        },
    )
}

fn any_facts() -> impl Strategy<Value = Facts> {
    let device = || {
        proptest::collection::vec((1u16..20, 1e5..2e10f64, 0.0..5e-9f64), 0..4).prop_map(|rows| {
            let at = |(threads, bytes_per_s, cpu_s_per_byte)| SpeedAt { threads, bytes_per_s, cpu_s_per_byte };
            rows.into_iter().map(at).collect::<Vec<_>>()
        })
    };
    (device(), device(), device(), device(), 1u16..100, 0u64..10_000_000_000_000, 0u64..1_000_000).prop_map(
        |(read, write, stripe_read, restore_write, cores, source_bytes, file_count)| {
            let mut facts = facts();
            facts.machine.cores = cores;
            facts.source = SourceFacts { source_bytes, file_count, ..facts.source };
            facts.devices = DeviceFacts { read, write, stripe_read, restore_write, ..facts.devices };
            facts
        },
    )
}

/// Tells apart less than rounding does.
fn not_slower(one: PredictedRun, two: PredictedRun) -> bool {
    one.wall_s <= two.wall_s * (1.0 + 1e-9)
}

proptest! {
    #[test]
    fn predictions_are_numbers(facts in any_facts(), settings in any_settings()) {
        let said = Model::new(facts).predict(&settings);
        for run in [said.backup, said.restore] {
            prop_assert!(run.wall_s.is_finite() && run.wall_s > 0.0 && run.cpu_s.is_finite() && run.cpu_s > 0.0);
        }
        prop_assert!(said.memory_bytes > 0);
    }

    #[test]
    fn a_faster_device_never_makes_it_slower(facts in any_facts(), settings in any_settings(), which in 0usize..4, entry in 0usize..4, factor in 1.0..20.0f64) {
        let mut faster = facts.clone();
        let devices = &mut faster.devices;
        let device = [&mut devices.read, &mut devices.write, &mut devices.stripe_read, &mut devices.restore_write];
        if let Some(speed) = device.into_iter().nth(which).and_then(|device| device.get_mut(entry)) {
            speed.bytes_per_s *= factor;
        }
        let (before, after) = (Model::new(facts).predict(&settings), Model::new(faster).predict(&settings));
        prop_assert!(not_slower(after.backup, before.backup) && not_slower(after.restore, before.restore));
    }

    #[test]
    fn more_bytes_are_never_faster_and_more_buffers_never_slower(facts in any_facts(), settings in any_settings(), more in 0u64..1_000_000_000_000, buffers in 0u32..100) {
        let mut larger = facts.clone();
        larger.source.source_bytes += more;
        let before = Model::new(facts.clone()).predict(&settings);
        let after = Model::new(larger).predict(&settings);
        prop_assert!(not_slower(before.backup, after.backup) && not_slower(before.restore, after.restore));
        let roomy = Settings { buffer_count: settings.buffer_count + buffers, ..settings };
        prop_assert!(not_slower(Model::new(facts).predict(&roomy).backup, before.backup));
    }

    #[test]
    fn a_trial_moves_the_prediction_towards_it(facts in any_facts(), settings in any_settings(), factor in 0.2..5.0f64, cpu_factor in 0.5..2.0f64) {
        let mut model = Model::new(facts);
        let before = model.predict(&settings);
        let measured = |run: PredictedRun| RunFigures { wall_s: run.wall_s * factor, cpu_s: run.cpu_s * cpu_factor, ..RunFigures::default() };
        let trial = Trial {
            contestant: "pagehaul".to_owned(),
            settings: Some(settings.clone()),
            stored_bytes: before.stored_bytes.max(1),
            backup: Some(measured(before.backup)),
            restore: Some(measured(before.restore)),
            ..Trial::default()
        };
        model.correct(std::slice::from_ref(&trial));
        let after = model.predict(&settings);
        for (before, after, measured) in [(before.backup, after.backup, trial.backup), (before.restore, after.restore, trial.restore)] {
            let wall_s = measured.unwrap().wall_s;
            let off = |run: PredictedRun| (run.wall_s / wall_s).ln().abs();
            prop_assert!(off(after) <= off(before) + 0.03, "{before:?} {after:?} {wall_s}");
        }
    }
}
