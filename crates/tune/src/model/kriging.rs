//! Interpolation of what trials said over what the law said, from tried points to points that resemble them.
//!
//! Each residual (a logarithm of measured over predicted) is taken as a sum of five parts that points share or not: with
//! everything, with runs of the same limit, of the same codec, of a near level, and with settings near by; and of noise.
//! The best linear guess at another point is then a weighted sum of the residuals (kriging). A tried point is met nearly
//! exactly, repeated trials are averaged, a neighbour gets most of it, and a stranger only what all have in common.

use pagehaul_engine::codec::CodecSpec;

use crate::figures::LimitKind;

/// How much the parts of a residual vary: standard deviations of the logarithm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    pub(super) all: f64,
    pub(super) limit: f64,
    pub(super) codec: f64,
    pub(super) level: f64,
    pub(super) near: f64,
    pub(super) noise: f64,
}

/// Wall time beside what it depends on by the law; noise is what repeated runs differ by on a machine with neighbours.
pub(super) const WALL: Spread = Spread { all: 0.25, limit: 0.15, codec: 0.10, level: 0.10, near: 0.12, noise: 0.05 };
/// CPU time, which repeats better; a codec in a pipeline is its own matter.
pub(super) const CPU: Spread = Spread { all: 0.20, limit: 0.0, codec: 0.15, level: 0.10, near: 0.08, noise: 0.05 };
/// The ratio, which repeats exactly but for the WAL in the set.
pub(super) const RATIO: Spread = Spread { all: 0.03, limit: 0.0, codec: 0.02, level: 0.02, near: 0.01, noise: 0.001 };

/// A point as far as residuals depend on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Place {
    pub(super) limit: LimitKind,
    pub(super) codec: CodecSpec,
    /// Logarithms to base 2 of thread counts, buffers and sizes: one doubling is one step.
    pub(super) steps: [f64; 5],
}

/// Levels that are this far apart have a third of a level's part in common.
const LEVEL_REACH: f64 = 3.0;
/// So many doublings apart, likewise, for the part that settings near by share.
const STEP_REACH: f64 = 1.0;

impl Spread {
    /// What the residuals of two places have in common.
    fn shared(&self, one: &Place, two: &Place) -> f64 {
        let same_limit = f64::from(u8::from(one.limit == two.limit));
        let same_codec = f64::from(u8::from(one.codec.codec() == two.codec.codec()));
        let level_distance = f64::from(one.codec.level() - two.codec.level()) / LEVEL_REACH;
        let near_level = same_codec * (-level_distance.abs()).exp();
        let distance: f64 =
            one.steps.iter().zip(&two.steps).map(|(a, b)| ((a - b) / STEP_REACH).powi(2)).sum::<f64>().sqrt();
        let near = near_level * (-distance).exp();
        self.all.powi(2)
            + self.limit.powi(2) * same_limit
            + self.codec.powi(2) * same_codec
            + self.level.powi(2) * near_level
            + self.near.powi(2) * near
    }
}

/// Residuals that were learned; without any it says 0 everywhere.
#[derive(Clone, Debug)]
pub(super) struct Kriging {
    spread: Spread,
    places: Vec<Place>,
    weights: Vec<f64>,
}

impl Kriging {
    /// Learns from residuals; those that are no numbers are left out.
    pub(super) fn new(spread: Spread, residuals: &[(Place, f64)]) -> Self {
        let sound: Vec<&(Place, f64)> = residuals.iter().filter(|(_, residual)| residual.is_finite()).collect();
        let places: Vec<Place> = sound.iter().map(|(place, _)| *place).collect();
        let values: Vec<f64> = sound.iter().map(|(_, residual)| *residual).collect();
        let row = |index: usize| -> Vec<f64> {
            let noise = |other: usize| if index == other { spread.noise.powi(2) } else { 0.0 };
            places
                .iter()
                .enumerate()
                .map(|(other, place)| spread.shared(&places[index], place) + noise(other))
                .collect()
        };
        let weights = solve((0..places.len()).map(row).collect(), values);
        Kriging { spread, places, weights }
    }

    /// The residual to expect at a place.
    pub(super) fn at(&self, place: &Place) -> f64 {
        let terms = self.places.iter().zip(&self.weights);
        terms.map(|(known, weight)| weight * self.spread.shared(known, place)).sum()
    }
}

/// Solves a symmetric positive definite system by Cholesky's factors; noise on the diagonal keeps it one.
fn solve(mut matrix: Vec<Vec<f64>>, mut values: Vec<f64>) -> Vec<f64> {
    let count = values.len();
    for column in 0..count {
        for row in column..count {
            let done: f64 = (0..column).map(|other| matrix[row][other] * matrix[column][other]).sum();
            let rest = matrix[row][column] - done;
            matrix[row][column] = if row == column { rest.max(1e-12).sqrt() } else { rest / matrix[column][column] };
        }
    }
    for row in 0..count {
        let done: f64 = (0..row).map(|other| matrix[row][other] * values[other]).sum();
        values[row] = (values[row] - done) / matrix[row][row];
    }
    for row in (0..count).rev() {
        let done: f64 = (row + 1..count).map(|other| matrix[other][row] * values[other]).sum();
        values[row] = (values[row] - done) / matrix[row][row];
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(codec: &str, limit: LimitKind, step: f64) -> Place {
        Place { limit, codec: codec.parse().unwrap(), steps: [step, 0.0, 0.0, 0.0, 0.0] }
    }

    #[test]
    fn tried_points_are_met_and_neighbours_follow_more_than_strangers() {
        let tried = place("zstd:1", LimitKind::Cpu, 0.0);
        let model = Kriging::new(WALL, &[(tried, 0.3)]);
        let next = model.at(&place("zstd:1", LimitKind::Cpu, 1.0));
        let other_level = model.at(&place("zstd:9", LimitKind::Cpu, 0.0));
        let stranger = model.at(&place("lz4:1", LimitKind::Writing, 3.0));
        assert!((model.at(&tried) - 0.3).abs() < 0.02);
        assert!(
            0.3 > next && next > other_level && other_level > stranger && stranger > 0.1,
            "{next} {other_level} {stranger}"
        );
    }

    #[test]
    fn repeated_trials_are_averaged_and_different_points_kept_apart() {
        let (one, two) = (place("zstd:1", LimitKind::Cpu, 0.0), place("zstd:1", LimitKind::Cpu, 2.0));
        let model = Kriging::new(WALL, &[(one, 0.10), (one, 0.14), (two, -0.05), (two, -0.05)]);
        assert!((model.at(&one) - 0.12).abs() < 0.02, "{}", model.at(&one));
        assert!((model.at(&two) + 0.05).abs() < 0.02, "{}", model.at(&two));
    }

    #[test]
    fn nothing_learned_says_nothing() {
        let point = place("lz4:1", LimitKind::Cpu, 0.0);
        assert_eq!(Kriging::new(WALL, &[]).at(&point), 0.0);
        assert_eq!(Kriging::new(WALL, &[(point, f64::NAN)]).at(&point), 0.0);
    }
}
