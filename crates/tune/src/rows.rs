//! From trials to the table: medians over repetitions, scores, the Pareto front, ranks. Pure.

use crate::figures::{Row, RunFigures, Trial};
use crate::objective::{Least, Objective, Outcome};

/// Roles of trials and rows.
pub mod role {
    /// A point that the search or the grid chose.
    pub const CANDIDATE: &str = "candidate";
    /// What the product does when nobody tells it anything.
    pub const DEFAULT: &str = "default";
    /// Output discarded, no codec: the read side.
    pub const BASELINE: &str = "baseline";
    /// The best settings with parity stripes: what the protection costs. It competes with nobody.
    pub const PARITY: &str = "parity";
    /// Another tool.
    pub const CONTESTANT: &str = "contestant";
}

/// The name of our own rows.
pub const OWN_NAME: &str = "pagehaul";

/// The table of `trials`, best first by `objective`; baselines and failed rows last.
pub fn table(trials: &[Trial], objective: &Objective, cores: u16) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for trial in trials {
        let key = (trial.contestant.as_str(), trial.setting.as_str());
        if !seen.contains(&key) {
            seen.push(key);
            let own: Vec<&Trial> =
                trials.iter().filter(|other| (other.contestant.as_str(), other.setting.as_str()) == key).collect();
            rows.push(row(&own));
        }
    }
    judge(&mut rows, objective, cores);
    rows
}

/// One row from the trials of one contestant in one setting.
fn row(trials: &[&Trial]) -> Row {
    let good: Vec<&&Trial> = trials.iter().filter(|trial| trial.failed.is_none()).collect();
    let backups: Vec<&RunFigures> = good.iter().filter_map(|trial| trial.backup.as_ref()).collect();
    let restores: Vec<&RunFigures> = good.iter().filter_map(|trial| trial.restore.as_ref()).collect();
    let walls = |runs: &[&RunFigures]| runs.iter().map(|run| run.wall_s).collect::<Vec<_>>();
    let cpus = |runs: &[&RunFigures]| median(runs.iter().map(|run| run.cpu_s + run.server_cpu_s).collect());
    let last = |runs: &[&RunFigures]| runs.last().map(|run| run.limit.clone()).unwrap_or_default();
    let first = trials[0];
    let stored = median(good.iter().map(|trial| trial.stored_bytes as f64).collect()).unwrap_or_default();
    let source = median(good.iter().map(|trial| trial.source_bytes as f64).collect()).unwrap_or_default();
    let predicted = good.iter().rev().find_map(|trial| trial.predicted.as_ref());
    // A role that says more than "candidate" stays, whichever trial had it.
    let role = trials.iter().map(|trial| trial.role.as_str()).find(|role| *role != role::CANDIDATE);
    Row {
        contestant: first.contestant.clone(),
        setting: first.setting.clone(),
        settings: first.settings.clone(),
        role: role.unwrap_or(&first.role).to_owned(),
        runs: good.len() as u32,
        stored_bytes: stored as u64,
        ratio: if stored > 0.0 { source / stored } else { 0.0 },
        backup_s: median(walls(&backups)).unwrap_or_default(),
        restore_s: median(walls(&restores)),
        backup_spread: spread(&walls(&backups)),
        restore_spread: spread(&walls(&restores)),
        backup_cpu_s: cpus(&backups).unwrap_or_default(),
        restore_cpu_s: cpus(&restores).unwrap_or_default(),
        rss_bytes_max: backups.iter().map(|run| run.rss_bytes_max).max().unwrap_or_default(),
        backup_limit: last(&backups),
        restore_limit: last(&restores),
        predicted_backup_s: predicted.map(|predicted| predicted.backup.wall_s),
        predicted_restore_s: predicted.map(|predicted| predicted.restore.wall_s),
        failed: if good.is_empty() { trials.iter().rev().find_map(|trial| trial.failed.clone()) } else { None },
        ..Row::default()
    }
}

/// The figures of a row that took part; None for a baseline, for what parity costs and for what failed.
pub fn outcome(row: &Row) -> Option<Outcome> {
    let takes_part = row.failed.is_none() && row.stored_bytes > 0 && row.role != role::PARITY;
    let restore_s = row.restore_s.filter(|_| takes_part)?;
    Some(Outcome {
        backup_s: row.backup_s,
        restore_s,
        stored_bytes: row.stored_bytes as f64,
        backup_cpu_s: row.backup_cpu_s,
        memory_bytes: row.rss_bytes_max as f64,
    })
}

fn judge(rows: &mut [Row], objective: &Objective, cores: u16) {
    let outcomes: Vec<Option<Outcome>> = rows.iter().map(outcome).collect();
    let least = Least::of(outcomes.iter().flatten().copied());
    for (row, own) in rows.iter_mut().zip(&outcomes) {
        let Some(own) = own else { continue };
        row.score = least.score(own);
        row.on_pareto_front = !outcomes.iter().flatten().any(|other| is_better_throughout(other, own));
    }
    rows.sort_by(|a, b| match (outcome(a), outcome(b)) {
        (Some(a), Some(b)) => objective.compare(&a, &b, &least, cores),
        (a, b) => b.is_some().cmp(&a.is_some()),
    });
    let mut rank = 0;
    for row in rows.iter_mut().filter(|row| outcome(row).is_some()) {
        rank += 1;
        row.rank = rank;
    }
}

/// Whether `a` is at least as good in backup, restore and size, and better in one.
fn is_better_throughout(a: &Outcome, b: &Outcome) -> bool {
    let pairs = [(a.backup_s, b.backup_s), (a.restore_s, b.restore_s), (a.stored_bytes, b.stored_bytes)];
    pairs.iter().all(|(a, b)| a <= b) && pairs.iter().any(|(a, b)| a < b)
}

/// The middle of `values`; of an even number the mean of the middle two. None of none.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

/// (largest - smallest) / median; 0 for fewer than two values.
fn spread(values: &[f64]) -> f64 {
    let largest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let smallest = values.iter().copied().fold(f64::INFINITY, f64::min);
    match median(values.to_vec()) {
        Some(median) if median > 0.0 => (largest - smallest) / median,
        _ => 0.0,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn trial(setting: &str, backup_s: f64, restore_s: f64, stored_bytes: u64) -> Trial {
        let run = |wall_s| Some(RunFigures { wall_s, cpu_s: wall_s, ..RunFigures::default() });
        Trial {
            contestant: OWN_NAME.to_owned(),
            setting: setting.to_owned(),
            role: role::CANDIDATE.to_owned(),
            source_bytes: 1_000_000_000,
            stored_bytes,
            backup: run(backup_s),
            restore: run(restore_s),
            ..Trial::default()
        }
    }

    #[test]
    fn rows_are_medians_and_ranked() {
        let trials = [
            trial("a", 10.0, 9.0, 500),
            trial("b", 8.0, 12.0, 400),
            trial("a", 12.0, 7.0, 500),
            trial("a", 11.0, 8.0, 500),
            Trial { role: role::DEFAULT.to_owned(), ..trial("c", 13.0, 13.0, 600) },
            Trial { role: role::BASELINE.to_owned(), restore: None, ..trial("nul", 1.0, 0.0, 0) },
            Trial { failed: Some("no space".to_owned()), backup: None, restore: None, ..trial("d", 0.0, 0.0, 0) },
        ];
        let rows = table(&trials, &Objective::default(), 2);
        let names: Vec<_> = rows.iter().map(|row| (row.setting.as_str(), row.rank)).collect();
        assert_eq!(names[..3], [("a", 1), ("b", 2), ("c", 3)]);
        assert!(rows[3..].iter().all(|row| row.rank == 0));
        assert_eq!((rows[0].backup_s, rows[0].restore_s, rows[0].runs), (11.0, Some(8.0), 3));
        assert!((rows[0].restore_spread - 0.25).abs() < 1e-9);
        assert_eq!(rows[2].role, role::DEFAULT);
        assert_eq!([rows[0].on_pareto_front, rows[1].on_pareto_front, rows[2].on_pareto_front], [true, true, false]);
        // The shortest sum of both is 19 s, the smallest size 400.
        assert!((rows[1].score - (20.0 / 19.0 + 1.0)).abs() < 1e-9, "{}", rows[1].score);
        assert!(rows.iter().any(|row| row.failed.as_deref() == Some("no space")));
    }
}
