//! Which points to try next, and when to stop: from predictions and measured rows. Pure.

use crate::figures::{Prediction, Row};
use crate::objective::{Goal, Least, Objective, Outcome};
use crate::rows;
use crate::space::Settings;

/// An untried point must be predicted to be better than the best measured one by more than this share to be tried:
/// less cannot be told from the noise of a run.
pub(crate) const WORTH_TRYING: f64 = 0.02;
/// Points of one batch: enough to learn about several codecs before the model is corrected.
const BATCH: usize = 4;
/// Rows within this share of the best are finalists: they are repeated until the best is sure.
const FINALIST: f64 = 0.10;
/// At most this many finalists; a size repeats by itself, so that the smallest needs no rivals.
const FINALISTS_MAX: usize = 3;

/// The figures of a prediction.
pub fn predicted(prediction: &Prediction) -> Outcome {
    Outcome {
        backup_s: prediction.backup.wall_s,
        restore_s: prediction.restore.wall_s,
        stored_bytes: prediction.stored_bytes as f64,
        backup_cpu_s: prediction.backup.cpu_s,
        memory_bytes: prediction.memory_bytes as f64,
    }
}

/// What is known so far.
pub struct Known<'a> {
    /// Every point of the space, as the model sees it now.
    pub predictions: &'a [Prediction],
    /// Rows of what was measured.
    pub rows: &'a [Row],
    /// What is asked.
    pub objective: &'a Objective,
    /// Cores of the machine.
    pub cores: u16,
}

impl Known<'_> {
    /// The next points to try, best first; empty when no untried point promises to be better than the best row.
    ///
    /// The first batch, with nothing of ours measured, takes the best points of different codecs, so that the model
    /// learns what each of them really does; later ones take what is promising, at most two of one codec.
    pub fn next_batch(&self) -> Vec<Settings> {
        let least = self.least();
        let mut order: Vec<(&Prediction, Outcome)> =
            self.predictions.iter().map(|prediction| (prediction, predicted(prediction))).collect();
        order.sort_by(|a, b| self.objective.compare(&a.1, &b.1, &least, self.cores));
        let best = self.best_measured(&least);
        let candidates_tried = self.rows.iter().any(|row| row.role == rows::role::CANDIDATE);
        let of_one_codec = if candidates_tried { 2 } else { 1 };
        let mut batch: Vec<&Settings> = Vec::new();
        for (prediction, outcome) in order {
            if batch.len() == BATCH {
                break;
            }
            let settings = &prediction.settings;
            if self.is_tried(settings) || (candidates_tried && !self.promises(&outcome, best.as_ref(), &least)) {
                continue;
            }
            let is_similar = |other: &&&Settings| other.compression == settings.compression;
            if batch.iter().filter(is_similar).count() < of_one_codec {
                batch.push(settings);
            }
        }
        batch.into_iter().cloned().collect()
    }

    /// The rows to repeat, best first: ours, within a tenth of the best by the goal.
    pub fn finalists(&self) -> Vec<Settings> {
        let least = self.least();
        let own: Vec<(&Row, Outcome)> = self
            .rows
            .iter()
            .filter(|row| row.settings.is_some())
            .filter_map(|row| Some((row, rows::outcome(row)?)))
            .collect();
        let Some((_, best)) = own.first() else { return Vec::new() };
        let value = |outcome: &Outcome| self.objective.value(outcome, &least);
        let excess = |outcome: &Outcome| self.objective.excess(outcome, self.cores);
        let most = if self.objective.goal == Goal::Size { 1 } else { FINALISTS_MAX };
        own.iter()
            .filter(|(_, outcome)| excess(outcome) <= excess(best) && value(outcome) - value(best) <= FINALIST)
            .take(most)
            .filter_map(|(row, _)| row.settings.clone())
            .collect()
    }

    fn least(&self) -> Least {
        let measured = self.rows.iter().filter_map(rows::outcome);
        Least::of(self.predictions.iter().map(predicted).chain(measured))
    }

    fn best_measured(&self, least: &Least) -> Option<Outcome> {
        let own = self.rows.iter().filter(|row| row.settings.is_some()).filter_map(rows::outcome);
        own.min_by(|a, b| self.objective.compare(a, b, least, self.cores))
    }

    fn is_tried(&self, settings: &Settings) -> bool {
        self.rows.iter().any(|row| row.settings.as_ref() == Some(settings))
    }

    /// Whether `outcome` would be better than `best` by more than noise.
    fn promises(&self, outcome: &Outcome, best: Option<&Outcome>, least: &Least) -> bool {
        let Some(best) = best else { return true };
        let excess = |outcome: &Outcome| self.objective.excess(outcome, self.cores);
        let (own, of_best) = (excess(outcome), excess(best));
        if own != of_best {
            return own < of_best;
        }
        // Values are logarithms, so a difference is a share.
        self.objective.value(best, least) - self.objective.value(outcome, least) > WORTH_TRYING
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{LimitKind, PredictedRun, Trial};
    use crate::space::Space;

    /// A machine that the search does not know: the time of a point, and what a model that is wrong says of it.
    fn truth(settings: &Settings) -> Outcome {
        let level = f64::from(settings.compression.level());
        let stored = 1e9 / (2.0 + level.max(0.0).sqrt());
        let encode_s = (3.0 + level.max(0.0).powi(2) / 4.0) / f64::from(settings.encoders.min(2));
        let write_s = stored / 1e8 / f64::from(settings.stripes.min(2));
        let decode_s = 2.0 / f64::from(settings.decoders.min(2));
        let restore_s = decode_s.max(8.0 / f64::from(settings.file_writers.min(3))) + stored / 5e8;
        let backup_s = encode_s.max(write_s) + 0.5;
        Outcome { backup_s, restore_s, stored_bytes: stored, backup_cpu_s: encode_s * 2.0, memory_bytes: 1e7 }
    }

    fn prediction(settings: &Settings, bias: &dyn Fn(&Settings) -> f64) -> Prediction {
        let truth = truth(settings);
        let run = |wall_s: f64| PredictedRun { wall_s: wall_s * bias(settings), cpu_s: wall_s, limit: LimitKind::Cpu };
        Prediction {
            settings: settings.clone(),
            backup: run(truth.backup_s),
            restore: run(truth.restore_s),
            stored_bytes: truth.stored_bytes as u64,
            memory_bytes: 10_000_000,
        }
    }

    fn measured(settings: &Settings) -> Trial {
        let truth = truth(settings);
        let trial = crate::rows::tests::trial(
            &settings.to_string(),
            truth.backup_s,
            truth.restore_s,
            truth.stored_bytes as u64,
        );
        Trial { settings: Some(settings.clone()), ..trial }
    }

    #[test]
    fn with_a_model_that_is_wrong_by_codec_the_search_still_ends_near_the_best() {
        let space = Space::of_machine(2, 1);
        let points = space.points();
        for goal in [Goal::Restore, Goal::Backup, Goal::Size, Goal::Score] {
            let objective = Objective { goal, ..Objective::default() };
            let bias = |settings: &Settings| 0.8 + f64::from(settings.compression.level().rem_euclid(5)) / 10.0;
            let mut trials = vec![measured(&Space::defaults(2, 1))];
            trials[0].role = rows::role::DEFAULT.to_owned();
            let mut known: std::collections::HashMap<String, f64> = std::collections::HashMap::new();
            for _ in 0..50 {
                let corrected = |settings: &Settings| {
                    known.get(&settings.compression.to_string()).copied().unwrap_or_else(|| bias(settings))
                };
                let predictions: Vec<_> = points.iter().map(|point| prediction(point, &corrected)).collect();
                let rows = rows::table(&trials, &objective, 2);
                let batch =
                    Known { predictions: &predictions, rows: &rows, objective: &objective, cores: 2 }.next_batch();
                if batch.is_empty() {
                    break;
                }
                for point in batch {
                    known.insert(point.compression.to_string(), 1.0);
                    trials.push(measured(&point));
                }
            }
            let least = Least::of(points.iter().map(truth));
            let value = |settings: &Settings| objective.value(&truth(settings), &least);
            let best = points.iter().map(value).fold(f64::INFINITY, f64::min);
            let found =
                trials.iter().filter_map(|trial| trial.settings.as_ref()).map(value).fold(f64::INFINITY, f64::min);
            assert!(found - best < 0.05, "{goal}: {found} against {best} after {} trials", trials.len());
            assert!(trials.len() * 10 < points.len(), "{goal}: {} trials of {}", trials.len(), points.len());
        }
    }

    #[test]
    fn finalists_are_near_the_best_and_keep_the_bounds() {
        let points = Space::of_machine(2, 1).points();
        let trials: Vec<Trial> = points.iter().step_by(97).map(measured).collect();
        let objective = Objective { goal: Goal::Size, restore_s_max: Some(6.0), ..Objective::default() };
        let rows = rows::table(&trials, &objective, 2);
        let known = Known { predictions: &[], rows: &rows, objective: &objective, cores: 2 };
        let finalists = known.finalists();
        assert!((1..=FINALISTS_MAX).contains(&finalists.len()));
        assert_eq!(Some(&finalists[0]), rows[0].settings.as_ref());
        assert!(finalists.iter().all(|settings| truth(settings).restore_s <= 6.0));
    }
}
