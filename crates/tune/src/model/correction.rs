//! What trials say over what the law says: CPU costs, what a run takes beside its data path, and what is left.
//!
//! In this order, each with what was learned before: the ratio; CPU seconds (what a codec costs in the pipeline rather
//! than alone); seconds beside the data path, which the stages' clocks tell apart; and the rest of the wall time. Backup
//! and restore learn apart.

use super::kriging::{CPU, Kriging, Place, RATIO, WALL};
use super::{Direction, Model, place};
use crate::figures::{LimitKind, ModelError, RunFigures, Trial};
use crate::space::Settings;

/// Factors beyond e^3 are no correction of a model but a broken measurement.
const RESIDUAL_MAX: f64 = 3.0;
/// CPU times below this are a few ticks of the kernel's clock: they say nothing.
const CPU_S_MIN: f64 = 0.03;
/// What the facts say of costs beside the data path weighs as much as so many trials.
const FACTS_WEIGHT: f64 = 0.5;
/// At least this share of a run is its data path, at most the rest lies beside it.
const DATA_SHARE_MIN: f64 = 0.1;

/// What is known of one direction from trials.
#[derive(Clone, Debug)]
pub(super) struct Correction {
    cpu: Kriging,
    wall: Kriging,
    /// Median seconds beside the data path, and of how many runs.
    beside: Option<(f64, f64)>,
    /// No run was shorter than this.
    shortest_s: f64,
}

impl Default for Correction {
    /// Corrects nothing.
    fn default() -> Self {
        Correction {
            cpu: Kriging::new(CPU, &[]),
            wall: Kriging::new(WALL, &[]),
            beside: None,
            shortest_s: f64::INFINITY,
        }
    }
}

impl Correction {
    pub(super) fn cpu_factor(&self, place: &Place) -> f64 {
        self.cpu.at(place).clamp(-RESIDUAL_MAX, RESIDUAL_MAX).exp()
    }

    pub(super) fn wall_factor(&self, place: &Place) -> f64 {
        self.wall.at(place).clamp(-RESIDUAL_MAX, RESIDUAL_MAX).exp()
    }

    /// Seconds beside the data path, where the facts say `by_facts`.
    pub(super) fn beside_s(&self, by_facts: f64) -> f64 {
        let learned = match self.beside {
            Some((median, runs)) => (median * runs + by_facts * FACTS_WEIGHT) / (runs + FACTS_WEIGHT),
            None => by_facts,
        };
        learned.min((1.0 - DATA_SHARE_MIN) * self.shortest_s)
    }
}

/// The runs of one direction that can teach something; a backup whose output was discarded wrote nothing.
fn runs<'a>(direction: Direction, trials: &[&'a Trial]) -> Vec<(&'a Settings, &'a RunFigures)> {
    let run = |trial: &&'a Trial| {
        let run = match direction {
            Direction::Backup => trial.backup.as_ref().filter(|_| trial.stored_bytes > 0),
            Direction::Restore => trial.restore.as_ref(),
        }?;
        let settings = trial.settings.as_ref()?;
        (run.wall_s.is_finite() && run.wall_s > 0.0).then_some((settings, run))
    };
    trials.iter().filter_map(run).collect()
}

/// What `trials` teach of one direction, to a model that has not learned anything of it.
pub(super) fn learn(model: &Model, direction: Direction, trials: &[&Trial]) -> Correction {
    let runs = runs(direction, trials);
    let mut model = model.clone();
    let source_bytes = model.facts.source.source_bytes as f64;
    let file_costs_s = model.file_costs_s(direction);
    let cpu: Vec<(Place, f64)> = runs
        .iter()
        .filter(|(_, run)| run.cpu_s > CPU_S_MIN)
        .map(|(settings, run)| {
            let verdict = model.load(direction, settings, &model.coding(settings), 1.0).verdict();
            let predicted_s = source_bytes * verdict.cpu_s_per_byte + file_costs_s;
            (place(direction, settings, verdict.limit), (run.cpu_s / predicted_s).ln())
        })
        .collect();
    let correction = Correction {
        cpu: Kriging::new(CPU, &cpu),
        wall: Kriging::new(WALL, &[]),
        beside: median(runs.iter().filter_map(|(_, run)| seconds_beside(run)).collect()),
        shortest_s: runs.iter().map(|(_, run)| run.wall_s).fold(f64::INFINITY, f64::min),
    };
    *model.correction_mut(direction) = correction.clone();
    let beside_s = model.beside_s(direction);
    let wall: Vec<(Place, f64)> = runs
        .iter()
        .map(|(settings, run)| {
            let verdict = model.verdict(direction, settings, &model.coding(settings));
            let data_s = (run.wall_s - beside_s).max(DATA_SHARE_MIN * run.wall_s);
            let predicted_s = source_bytes * verdict.wall_s_per_byte;
            (place(direction, settings, verdict.limit), (data_s / predicted_s).ln())
        })
        .collect();
    Correction { wall: Kriging::new(WALL, &wall), ..correction }
}

/// What `trials` teach of ratios: of what was stored to what the facts know of the source, so that the WAL of a set,
/// which is in what was stored and compresses in its own way, is a part of it.
pub(super) fn learn_ratio(model: &Model, trials: &[&Trial]) -> Kriging {
    let source_bytes = model.facts.source.source_bytes as f64;
    let stored = trials.iter().filter(|trial| trial.stored_bytes > 0 && source_bytes > 0.0);
    let residuals: Vec<(Place, f64)> = stored
        .filter_map(|trial| {
            let settings = trial.settings.as_ref()?;
            let ratio = source_bytes / trial.stored_bytes as f64;
            let residual = (ratio / model.measured_coding(settings).ratio).ln();
            Some((place(Direction::Backup, settings, LimitKind::Fixed), residual))
        })
        .collect();
    Kriging::new(RATIO, &residuals)
}

/// Wall time that was not the data path's, as its stages' clocks tell; None where a run did not say.
fn seconds_beside(run: &RunFigures) -> Option<f64> {
    let clocks = run.stages.iter().filter(|stage| stage.threads > 0);
    let longest = clocks
        .map(|stage| (stage.busy_s + stage.wait_input_s + stage.wait_output_s) / f64::from(stage.threads))
        .fold(0.0, f64::max);
    (longest > 0.0).then_some((run.wall_s - longest).max(0.0))
}

/// The median, and of how many.
fn median(mut values: Vec<f64>) -> Option<(f64, f64)> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = values.get(middle)?;
    let lower = if values.len().is_multiple_of(2) { values[middle - 1] } else { *upper };
    Some((f64::midpoint(lower, *upper), values.len() as f64))
}

/// How well the model, as it was before each trial, said what the trial then measured.
pub fn model_error(trials: &[Trial]) -> ModelError {
    let mut errors: Vec<f64> = Vec::new();
    for trial in trials.iter().filter(|trial| trial.failed.is_none()) {
        let Some(predicted) = &trial.predicted else { continue };
        let pairs = [(&trial.backup, &predicted.backup), (&trial.restore, &predicted.restore)];
        let measured = pairs.into_iter().filter_map(|(run, predicted)| Some((run.as_ref()?.wall_s, predicted.wall_s)));
        errors
            .extend(measured.filter(|(wall_s, _)| *wall_s > 0.0).map(|(wall_s, said)| (said - wall_s).abs() / wall_s));
    }
    let worst = errors.iter().copied().fold(0.0, f64::max);
    match median(errors) {
        Some((median, runs)) => ModelError { median, worst, runs: runs as u32 },
        None => ModelError::default(),
    }
}
