//! The default search against every point of a grid, for each objective, on four databases of different kinds: does it
//! find what the grid finds, and in how much less time.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_tune::contestants::stopwatch::Cost;
use pagehaul_tune::figures::{Row, RunFigures, Trial, TuneReport};
use pagehaul_tune::objective::Goal;

use crate::cluster::Cluster;
use crate::load;
use crate::options::BenchOptions;
use crate::pagehaul;
use crate::results::{Results, Run};
use crate::setup::Setup;

const DATABASES: &[&str] = &["pgbench", "tpch", "text", "numbers"];
/// The grid, and what the search chooses from.
const SPACE: &str = "--compression lz4,zstd:-1,zstd:1,zstd:3,zstd:7 --readers 2 --encoders 1,2 --stripes 1,4 \
    --transfer-size 1MiB,4MiB --buffer-count 16 --stripe-readers 2 --decoders 2 --file-writers 2,4";
const GOALS: [Goal; 4] = [Goal::Restore, Goal::Backup, Goal::Size, Goal::Score];

/// One search beside the grid.
struct Outcome {
    database: &'static str,
    goal: Goal,
    best: (String, f64),
    found: (String, f64),
    grid_s: f64,
    search_s: f64,
    trials: usize,
    model_error: f64,
}

/// Runs everything; gives what the README says of the data.
///
/// # Errors
/// What keeps the bench from running.
pub(crate) fn run(options: &BenchOptions, results: &mut Results) -> Result<String> {
    let (mut data, mut outcomes) = (Vec::new(), Vec::new());
    for database in DATABASES.iter().copied() {
        if !options.only.is_empty() && !options.only.iter().any(|only| database.contains(only.as_str())) {
            continue;
        }
        let name = format!("tune-{database}");
        let cache = options.pgdata_root.join("databases");
        let cluster =
            Cluster::open_or_make(&options.pgdata_root, &name, |cluster| load::database(cluster, database, &cache))?;
        let setup = Setup::on(cluster, &BenchOptions { only: Vec::new(), ..options.clone() })?;
        data.push(format!("{database}: {}", setup.data_text()));
        one_database(&setup, database, options.repeat, results, &mut outcomes)?;
    }
    compare(&outcomes, results);
    Ok(data.join("; "))
}

fn one_database(
    setup: &Setup,
    database: &'static str,
    repeat: u32,
    results: &mut Results,
    outcomes: &mut Vec<Outcome>,
) -> Result<()> {
    let grid = tune(setup, &["--grid", "full", "--repeat", &repeat.to_string()])?;
    add_trials(&grid, &format!("grid, {database}"), results)?;
    let rows: BTreeMap<&str, &Row> = grid
        .rows
        .iter()
        .filter(|row| row.settings.is_some() && row.rank > 0)
        .map(|row| (row.setting.as_str(), row))
        .collect();
    for goal in GOALS {
        let search = tune(setup, &["--objective", goal.name()])?;
        add_trials(&search, &format!("search for {}, {database}", goal.name()), results)?;
        let Some(answer) = &search.recommendation else {
            results.failures.push(format!("{database}: the search for {} recommends nothing", goal.name()));
            continue;
        };
        // Judged by the grid's own figures: those of the search are of other runs.
        let best = rows.values().min_by(|a, b| figure(a, goal).total_cmp(&figure(b, goal)));
        let (Some(best), Some(found)) = (best, rows.get(answer.row.setting.as_str())) else {
            results.failures.push(format!("{database}: {} is not in the grid", answer.row.setting));
            continue;
        };
        outcomes.push(Outcome {
            database,
            goal,
            best: (best.setting.clone(), figure(best, goal)),
            found: (found.setting.clone(), figure(found, goal)),
            grid_s: grid.elapsed_s,
            search_s: search.elapsed_s,
            trials: search.trials.len(),
            model_error: search.model_error.median,
        });
    }
    Ok(())
}

/// One run of `tune`, with a history of its own.
fn tune(setup: &Setup, flags: &[&str]) -> Result<TuneReport> {
    let mut command = setup.owner().command(&setup.pagehaul, &setup.work);
    command.args(["tune", "--json", "--anew", "--quiet", "--connection", &setup.cluster.connection(), "--pgdata"]);
    command.arg(&setup.cluster.pgdata).arg("--repo").arg(setup.empty_place("repo")?);
    command.arg("--history").arg(setup.work.join("history.sqlite"));
    let (_, said) = setup.stopwatch.run(command.args(pagehaul::flags(SPACE)).args(flags))?;
    serde_json::from_str(&said).map_err(|cause| Error::new(ErrorKind::Bug, "understand tune's report", cause))
}

fn figure(row: &Row, goal: Goal) -> f64 {
    match goal {
        Goal::Restore => row.restore_s.unwrap_or(f64::INFINITY),
        Goal::Backup => row.backup_s,
        Goal::Size => row.stored_bytes as f64,
        Goal::Cpu => row.backup_cpu_s,
        Goal::Score => row.score,
    }
}

fn add_trials(report: &TuneReport, contestant: &str, results: &mut Results) -> Result<()> {
    for trial in &report.trials {
        for (step, run) in [("backup", &trial.backup), ("restore", &trial.restore)] {
            if let Some(run) = run {
                results.add(as_run(step, contestant, trial, run))?;
            }
        }
    }
    Ok(())
}

fn as_run(step: &'static str, contestant: &str, trial: &Trial, run: &RunFigures) -> Run {
    Run {
        step,
        contestant: contestant.to_owned(),
        setting: trial.setting.clone(),
        repetition: trial.repetition,
        cost: Cost {
            wall_s: run.wall_s,
            cpu_user_s: run.cpu_s,
            server_cpu_s: run.server_cpu_s,
            rss_bytes_max: run.rss_bytes_max,
            ..Cost::default()
        },
        source_bytes: trial.source_bytes,
        stored_bytes: trial.stored_bytes,
        limit: run.limit.clone(),
        ..Run::default()
    }
}

fn compare(outcomes: &[Outcome], results: &mut Results) {
    let mut text = "The best point of the grid by its own medians, and what the search recommends, judged by the grid's figures of that point. Seconds, for size bytes, for score the sum of normalised time and size.\n\n| database | goal | best of the grid | figure | found | figure | found / best | grid s | search s | share | trials | model error |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n".to_owned();
    for outcome in outcomes {
        let (database, goal) = (outcome.database, outcome.goal.name());
        let row = writeln!(
            text,
            "| {database} | {goal} | {} | {:.3} | {} | {:.3} | {:.3} | {:.0} | {:.0} | {:.1} % | {} | {:.1} % |",
            outcome.best.0,
            outcome.best.1,
            outcome.found.0,
            outcome.found.1,
            outcome.found.1 / outcome.best.1,
            outcome.grid_s,
            outcome.search_s,
            outcome.search_s / outcome.grid_s * 100.0,
            outcome.trials,
            outcome.model_error * 100.0
        );
        debug_assert!(row.is_ok(), "a String takes everything");
        let what = |what: &str| format!("{database}, {goal}: {what}");
        let (best, found) = (Some(outcome.best.1), Some(outcome.found.1));
        results.compare("tune-found", what("best of the grid / found"), best, found, String::new());
        let (grid, search) = (Some(outcome.grid_s), Some(outcome.search_s));
        results.compare("tune-time", what("time of the grid / of the search"), grid, search, String::new());
        let error = Some(outcome.model_error.max(1e-6));
        results.compare("tune-model", what("0.1 / median error of the model"), Some(0.1), error, String::new());
    }
    results.sections.push(("Search against grid".to_owned(), text));
}
