//! The default search against every point of a grid, for each objective, on four databases of different kinds: does it
//! find what the grid finds, and in how much less time.
//!
//! The best of 80 noisy medians is better than it is: luck is what it was chosen for. So the point that the grid found
//! and the one that the search found are run against each other again, in turns, and judged by that.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_tune::contestants::stopwatch::Cost;
use pagehaul_tune::figures::{Row, RunFigures, Trial, TuneReport};
use pagehaul_tune::objective::{Goal, Least, Outcome};
use pagehaul_tune::recommend;
use pagehaul_tune::rows::{median, outcome};
use pagehaul_tune::space::Settings;
use pagehaul_tune::trial::Targets;

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
/// What backups are written to and restores read from. At the speed of the page cache these databases are restored in half
/// a second, and that repeats within a third: nothing could be told within the twentieth that is asked.
const DEVICE: &str = "throttle:write=200MB/s,read=200MB/s";
/// Runs of each of two points against each other.
const REMATCHES: u32 = 5;

/// One search beside the grid.
struct Verdict {
    database: &'static str,
    goal: Goal,
    best: Judged,
    found: Judged,
    grid_s: f64,
    search_s: f64,
    trials: usize,
    model_error: f64,
}

/// A point, its figure by the grid, and by the runs against the other one.
struct Judged {
    setting: String,
    by_grid: f64,
    again: f64,
}

/// Runs everything; gives what the README says of the data.
///
/// # Errors
/// What keeps the bench from running.
pub(crate) fn run(options: &BenchOptions, results: &mut Results) -> Result<String> {
    let (mut data, mut verdicts) = (Vec::new(), Vec::new());
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
        one_database(&setup, database, options.repeat, results, &mut verdicts)?;
    }
    compare(&verdicts, results);
    Ok(data.join("; "))
}

fn one_database(
    setup: &Setup,
    database: &'static str,
    repeat: u32,
    results: &mut Results,
    verdicts: &mut Vec<Verdict>,
) -> Result<()> {
    let grid = tune(setup, &["--grid", "full", "--repeat", &repeat.to_string()])?;
    add_trials(&grid, &format!("grid, {database}"), results)?;
    let rows: BTreeMap<&str, &Row> = grid
        .rows
        .iter()
        .filter(|row| row.settings.is_some() && row.rank > 0)
        .map(|row| (row.setting.as_str(), row))
        .collect();
    let least = Least::of(grid.rows.iter().filter_map(outcome));
    for goal in GOALS {
        let search = tune(setup, &["--objective", goal.name()])?;
        add_trials(&search, &format!("search for {}, {database}", goal.name()), results)?;
        let Some(answer) = &search.recommendation else {
            results.failures.push(format!("{database}: the search for {} recommends nothing", goal.name()));
            continue;
        };
        let of_row = |row: &Row| outcome(row).map_or(f64::INFINITY, |outcome| figure(&outcome, goal, &least));
        let best = rows.values().min_by(|a, b| of_row(a).total_cmp(&of_row(b)));
        let (Some(best), Some(found)) = (best, rows.get(answer.row.setting.as_str())) else {
            results.failures.push(format!("{database}: {} is not in the grid", answer.row.setting));
            continue;
        };
        let [of_best, of_found] = match (&best.settings, &found.settings) {
            // What is stored does not depend on luck.
            (Some(one), Some(two)) if one != two && goal != Goal::Size => {
                rematch(setup, database, [one, two], results)?.map(|outcome| figure(&outcome, goal, &least))
            }
            _ => [of_row(best), of_row(found)],
        };
        verdicts.push(Verdict {
            database,
            goal,
            best: Judged { setting: best.setting.clone(), by_grid: of_row(best), again: of_best },
            found: Judged { setting: found.setting.clone(), by_grid: of_row(found), again: of_found },
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
    command.arg(&setup.cluster.pgdata).arg("--repo").arg(device(&setup.empty_place("repo")?));
    command.arg("--history").arg(setup.work.join("history.sqlite"));
    let (_, said) = setup.stopwatch.run(command.args(pagehaul::flags(SPACE)).args(flags))?;
    serde_json::from_str(&said).map_err(|cause| Error::new(ErrorKind::Bug, "understand tune's report", cause))
}

/// Two points, backup and restore in turns: the medians of each.
fn rematch(setup: &Setup, database: &str, points: [&Settings; 2], results: &mut Results) -> Result<[Outcome; 2]> {
    let mut costs: [[Vec<f64>; 3]; 2] = Default::default();
    let mut names = Vec::new();
    for repetition in 1..=REMATCHES {
        for (point, costs) in points.iter().zip(&mut costs) {
            let [backup_flags, restore_flags] =
                recommend::flags(point, &Targets::default()).map(|text| pagehaul::flags(&text));
            let repo = device(&setup.empty_place("rematch")?);
            // Each into a place of its own: files are slow to make where some were removed a moment ago.
            names.push(format!("restored-{}", names.len()));
            let target = setup.no_place(&names[names.len() - 1])?;
            let backup = pagehaul::backup(setup, &repo, &backup_flags)?;
            let restore = pagehaul::restore(setup, &repo, &target, &restore_flags)?;
            let figures = [backup.cost.wall_s, restore.cost.wall_s, backup.stored_bytes as f64];
            for (all, own) in costs.iter_mut().zip(figures) {
                all.push(own);
            }
            for run in [backup, restore] {
                let contestant = format!("again, {database}");
                results.add(Run { contestant, setting: point.to_string(), repetition, ..run })?;
            }
        }
    }
    for name in names {
        setup.no_place(&name)?;
    }
    Ok(costs.map(|costs| {
        let [backup_s, restore_s, stored_bytes] = costs.map(|figures| median(figures).unwrap_or_default());
        Outcome { backup_s, restore_s, stored_bytes, ..Outcome::default() }
    }))
}

/// The place behind the device.
fn device(place: &Path) -> String {
    format!("{DEVICE}:{}", place.display())
}

fn figure(outcome: &Outcome, goal: Goal, least: &Least) -> f64 {
    match goal {
        Goal::Restore => outcome.restore_s,
        Goal::Backup => outcome.backup_s,
        Goal::Size => outcome.stored_bytes,
        Goal::Cpu => outcome.backup_cpu_s,
        Goal::Score => least.score(outcome),
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

fn compare(verdicts: &[Verdict], results: &mut Results) {
    let mut text = format!(
        "Behind a device of 200 MB/s each way. The best point of the grid by its own medians, and what the search recommends. Where these are two points, both \
         were run again, {REMATCHES} times in turns, because the best of many noisy medians is partly luck; \"again\" are \
         medians of that, and the ratio is of these. Seconds, for size bytes, for score the sum of normalised time and \
         size.\n\n| database | goal | best of the grid | figure | again | found | figure | again | found / best | grid s \
         | search s | share | trials | model error |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n"
    );
    for verdict in verdicts {
        let (database, goal) = (verdict.database, verdict.goal.name());
        let (best, found) = (&verdict.best, &verdict.found);
        let row = writeln!(
            text,
            "| {database} | {goal} | {} | {:.3} | {:.3} | {} | {:.3} | {:.3} | {:.3} | {:.0} | {:.0} | {:.1} % | {} | {:.1} % |",
            best.setting,
            best.by_grid,
            best.again,
            found.setting,
            found.by_grid,
            found.again,
            found.again / best.again,
            verdict.grid_s,
            verdict.search_s,
            verdict.search_s / verdict.grid_s * 100.0,
            verdict.trials,
            verdict.model_error * 100.0
        );
        debug_assert!(row.is_ok(), "a String takes everything");
        let what = |what: &str| format!("{database}, {goal}: {what}");
        let (best, found) = (Some(best.again), Some(found.again));
        results.compare("tune-found", what("best of the grid / found"), best, found, String::new());
        let (grid, search) = (Some(verdict.grid_s), Some(verdict.search_s));
        results.compare("tune-time", what("time of the grid / of the search"), grid, search, String::new());
        let error = Some(verdict.model_error.max(1e-6));
        results.compare("tune-model", what("0.1 / median error of the model"), Some(0.1), error, String::new());
    }
    results.sections.push(("Search against grid".to_owned(), text));
}
