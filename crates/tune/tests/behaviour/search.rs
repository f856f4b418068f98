//! The whole way: what was run, what is recommended, what the database felt of it.

use pagehaul_engine::backup::{BackupOutcome, BackupRequest, backup};
use pagehaul_engine::error::ErrorKind;
use pagehaul_engine::pipeline::NoObserver;
use pagehaul_tune::contestants;
use pagehaul_tune::figures::LimitKind;
use pagehaul_tune::history::{History, HistoryFilter};
use pagehaul_tune::objective::{Goal, Objective};
use pagehaul_tune::plan::plan;
use pagehaul_tune::rows::role;
use pagehaul_tune::session::{TuneRequest, tune};

use super::desk::{Desk, Watcher};

#[test]
fn a_search_measures_compares_recommends_and_leaves_nothing() {
    let desk = Desk::new(20_000);
    let space = desk.cluster.server_directory("space");
    desk.cluster.run(&[
        &format!("CREATE TABLESPACE elsewhere LOCATION '{}'", space.display()),
        "CREATE TABLE far TABLESPACE elsewhere AS SELECT i, md5(i::text) FROM generate_series(1, 1000) AS i",
    ]);
    let digests = desk.cluster.digests();
    let request =
        TuneRequest { contestants: contestants::by_name("pg_basebackup", 2).unwrap()[..2].to_vec(), ..desk.request() };
    let watcher = Watcher::default();
    let done = tune(&request, &watcher).unwrap();
    let of_role = |role: &str| done.trials.iter().filter(|trial| trial.role == role).count();
    assert_eq!(of_role(role::BASELINE), 2);
    assert_eq!(of_role(role::DEFAULT), 2);
    assert_eq!(of_role(role::CONTESTANT), 4);
    assert!(of_role(role::CANDIDATE) >= 3, "{:?}", done.rows);
    for trial in &done.trials {
        assert_eq!(trial.failed, None, "{trial:?}");
        // Read back and compared in the first round.
        let is_compared = trial.settings.is_some() && trial.repetition == 1;
        assert_eq!(trial.bytes_equal, is_compared.then_some(true), "{trial:?}");
    }
    let answer = done.recommendation.as_ref().unwrap();
    assert_eq!(Some(&answer.row), done.rows.iter().find(|row| row.settings.is_some() && row.rank > 0));
    assert!(answer.row.runs >= 2, "the recommended settings were repeated: {:?}", answer.row);
    assert_eq!(done.facts.sample.codecs.iter().filter(|codec| codec.compression == "lz4:1").count(), 1);
    assert!(!done.facts.devices.write.is_empty() && !done.facts.devices.restore_write.is_empty());
    assert!(watcher.stages.lock().unwrap().len() == 3);

    desk.assert_no_leftovers();
    assert_eq!(desk.cluster.digests(), digests);
    assert_eq!(desk.cluster.value("SELECT count(*) FROM pg_stat_progress_basebackup"), "0");
    assert_eq!(std::fs::read_dir(&space).unwrap().count(), 1, "the tablespace's own place was not restored over");
    let history = History::open(&request.history).unwrap();
    let rows = history.rows(&HistoryFilter::default()).unwrap();
    assert_eq!(rows.len(), done.trials.len());
}

#[test]
fn a_grid_runs_every_point_as_often_as_asked() {
    let desk = Desk::new(2_000);
    let mut request = TuneRequest { runs_grid: true, ..desk.request() };
    request.space.compressions.truncate(2);
    request.space.stripes.truncate(1);
    let done = tune(&request, &Watcher::default()).unwrap();
    let points = request.space.points();
    for point in &points {
        let runs = done.trials.iter().filter(|trial| trial.settings.as_ref() == Some(point)).count();
        assert_eq!(runs, 2, "{point}");
    }
    assert!(done.model_error.runs as usize >= points.len());
}

#[test]
fn what_parity_costs_is_a_row_that_competes_with_none() {
    let desk = Desk::new(20_000);
    let request = TuneRequest { parities: vec![1, 2], ..desk.request() };
    let done = tune(&request, &Watcher::default()).unwrap();
    let best = done.recommendation.unwrap().row;
    for (parity, row) in [1.0, 2.0].iter().zip(done.rows.iter().filter(|row| row.role == role::PARITY)) {
        assert_eq!((row.rank, row.runs, &row.failed), (0, 2, &None), "{row:?}");
        assert_eq!(row.setting, format!("{}, parity {parity}", best.setting));
        // A row of parity is as long as the longest of its frames: with frames of one length a stripe of parity is as large as
        // a stripe, with one long frame in each row (a small cluster may be so) as large as all of them.
        let stripes = row.settings.as_ref().map_or(0.0, |settings| f64::from(settings.stripes));
        let (least, most) = (0.8 * (1.0 + parity / stripes), 1.3 * (1.0 + parity));
        let factor = row.stored_bytes as f64 / best.stored_bytes as f64;
        assert!((least..most).contains(&factor), "{row:?} has {factor} of the bytes without parity");
    }
    assert_eq!(done.trials.iter().filter(|trial| trial.role == role::PARITY).count(), 4);
    assert!(done.trials.iter().all(|trial| trial.role != role::PARITY || trial.predicted.is_none()));
}

#[test]
fn the_recommended_settings_are_those_of_a_backup_that_works() {
    let desk = Desk::new(2_000);
    let objective = Objective { goal: Goal::Size, ..Objective::default() };
    let done = tune(&TuneRequest { objective, ..desk.request() }, &Watcher::default()).unwrap();
    let settings = done.recommendation.unwrap().settings.unwrap();
    assert_eq!(settings.compression.to_string(), "page:2", "the default is smaller than the three");
    let request = BackupRequest {
        compression: settings.compression,
        stripes: Some(settings.stripes),
        ..desk.cluster.backup_request()
    };
    match backup(&request, &NoObserver).unwrap() {
        BackupOutcome::Done(report) => assert_eq!(report.codec, "page"),
        BackupOutcome::Planned(_) => panic!("only planned"),
    }
}

#[test]
fn a_bound_that_nobody_meets_gives_the_best_that_is_possible() {
    let desk = Desk::new(2_000);
    let objective = Objective { restore_s_max: Some(1e-6), ..Objective::default() };
    let request = TuneRequest { objective, repeat: 1, ..desk.request() };
    let answer = tune(&request, &Watcher::default()).unwrap().recommendation.unwrap();
    assert!(!answer.bounds_met && answer.settings.is_some());
    assert!(answer.bounds_missed[0].starts_with("--rto"), "{:?}", answer.bounds_missed);
    assert!(answer.why.iter().any(|why| why.contains("Not possible here")), "{:?}", answer.why);
}

#[test]
fn a_plan_touches_nothing() {
    let desk = Desk::new(0);
    let request = TuneRequest { runs_grid: true, ..desk.request() };
    let plan = plan(&request).unwrap();
    assert!(!desk.repo().exists() && !request.history.exists());
    let points = request.space.points().len();
    assert_eq!(plan.point_count as usize, points);
    let backups = plan.commands.iter().filter(|line| line.starts_with("pagehaul backup")).count();
    assert!(backups > points, "every point, the defaults and the baseline: {:?}", plan.commands);
    assert!(plan.memory_bytes_max > 0 && plan.source_bytes > 0 && !plan.space.is_empty());
}

#[test]
fn an_empty_database_is_tuned_and_a_sample_that_is_too_small_is_refused() {
    let desk = Desk::new(0);
    let request = TuneRequest { repeat: 1, ..desk.request() };
    assert!(tune(&request, &Watcher::default()).unwrap().recommendation.is_some());
    let request = TuneRequest { sample_size_bytes: 1000, begins_anew: true, ..desk.request() };
    let error = tune(&request, &Watcher::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.hint_text().is_some(), "{error}");
    desk.assert_no_leftovers();
}

#[test]
fn a_slow_target_is_named_as_the_limit_by_the_model_and_by_the_run() {
    let desk = Desk::new(20_000);
    let mut request = TuneRequest { repeat: 1, ..desk.request() };
    let slow = format!("throttle:write=8MB/s:{}", request.targets.repo);
    request.targets = pagehaul_tune::trial::Targets { repo: slow, ..request.targets };
    request.space.compressions.truncate(1);
    request.space.stripes.truncate(1);
    request.space.file_writers.truncate(1);
    let done = tune(&request, &Watcher::default()).unwrap();
    let plain = done.trials.iter().find(|trial| trial.role == role::CANDIDATE).unwrap();
    assert_eq!(plain.failed, None);
    let limit = &plain.backup.as_ref().unwrap().limit;
    assert!(limit.starts_with("writers busy"), "{limit}");
    assert_eq!(plain.predicted.as_ref().unwrap().backup.limit, LimitKind::Writing);
    desk.assert_no_leftovers();
}
