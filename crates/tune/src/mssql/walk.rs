//! Which point comes next: along one setting after the other, from the best point so far. Pure.

use super::point::Point;

/// The settings along which is walked, those first that matter most.
const AXES: [Axis; 5] = [Axis::Compression, Axis::Files, Axis::Transfer, Axis::Buffers, Axis::Block];

#[derive(Clone, Copy, Debug)]
enum Axis {
    Compression,
    Files,
    Transfer,
    Buffers,
    Block,
}

impl Axis {
    /// `point` with this setting taken from `other`.
    fn moved(self, point: &Point, other: &Point) -> Point {
        let mut moved = *point;
        match self {
            Axis::Compression => moved.compression = other.compression,
            Axis::Files => moved.files = other.files,
            Axis::Transfer => moved.transfer_size = other.transfer_size,
            Axis::Buffers => moved.buffer_count = other.buffer_count,
            Axis::Block => moved.block_size = other.block_size,
        }
        moved
    }
}

/// The next point of `points` to run: one that differs from `best` in one setting only and was not run; None when there
/// is none left, and so no neighbour is better. A setting along which was walked already is walked to its end first.
pub fn next(points: &[Point], best: &Point, tried: &[Point]) -> Option<Point> {
    let line = |axis: &Axis| -> Vec<Point> {
        let along = points.iter().map(|other| axis.moved(best, other));
        along.filter(|point| point != best && points.contains(point)).collect()
    };
    let mut axes = AXES;
    axes.sort_by_key(|axis| std::cmp::Reverse(line(axis).iter().filter(|point| tried.contains(point)).count().min(1)));
    axes.iter().find_map(|axis| line(axis).into_iter().find(|point| !tried.contains(point)))
}

/// Where the walk begins: the point of the space that leaves most to the server.
pub fn start(points: &[Point]) -> Option<Point> {
    let said = |point: &&Point| {
        let counted = [point.buffer_count.is_some(), point.transfer_size.is_some(), point.block_size.is_some()];
        (point.files, counted.iter().filter(|is_said| **is_said).count())
    };
    points.iter().min_by_key(said).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_walk_ends_at_a_point_without_better_neighbours() {
        let texts = ["none", "ms_xpress", "zstd:low", "zstd:high"];
        let points: Vec<Point> = texts
            .iter()
            .flat_map(|text| {
                [1, 2, 4].map(|files| format!("{text} f{files}")).map(|text| text.parse::<Point>().unwrap())
            })
            .collect();
        let cost = |point: &Point| {
            let codec = texts.iter().position(|text| point.compression.to_string() == *text).unwrap() as f64;
            (codec - 2.0).powi(2) + 8.0 / f64::from(point.files)
        };
        let mut tried = vec![start(&points).unwrap()];
        assert_eq!(tried[0].to_string(), "none f1");
        loop {
            let best = *tried.iter().min_by(|a, b| cost(a).total_cmp(&cost(b))).unwrap();
            match next(&points, &best, &tried) {
                Some(point) => tried.push(point),
                None => {
                    assert_eq!(best.to_string(), "zstd:low f4");
                    assert!(tried.len() < points.len(), "{tried:?}");
                    return;
                }
            }
        }
    }
}
