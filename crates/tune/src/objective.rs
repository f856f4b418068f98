//! What "best" means: the bounds that must hold, and what is made small among the points that keep them. Pure.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use pagehaul_engine::error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// What is made small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// The time until the data is back: what an outage waits for.
    #[default]
    Restore,
    /// The time of the backup.
    Backup,
    /// The bytes stored.
    Size,
    /// The CPU time of the backup.
    Cpu,
    /// Normalised time + normalised size.
    Score,
}

impl Goal {
    /// All of them.
    pub const ALL: [Goal; 5] = [Goal::Restore, Goal::Backup, Goal::Size, Goal::Cpu, Goal::Score];

    /// As people type it.
    pub fn name(self) -> &'static str {
        match self {
            Goal::Restore => "restore",
            Goal::Backup => "backup",
            Goal::Size => "size",
            Goal::Cpu => "cpu",
            Goal::Score => "score",
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Goal::Restore => "the shortest restore",
            Goal::Backup => "the shortest backup",
            Goal::Size => "the smallest backup",
            Goal::Cpu => "the least CPU time",
            Goal::Score => "the smallest sum of normalised time and normalised size",
        })
    }
}

impl FromStr for Goal {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Goal::ALL.into_iter().find(|goal| goal.name() == text).ok_or_else(|| {
            let names: Vec<_> = Goal::ALL.iter().map(|goal| goal.name()).collect();
            Error::new(ErrorKind::Usage, format!("use {text:?} for --objective"), "not an objective")
                .hint(format!("objectives are {}", names.join(", ")))
        })
    }
}

/// Bounds, and the goal among the points that keep them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Objective {
    /// What is made small.
    pub goal: Goal,
    /// The restore may take this long (`--rto`).
    pub restore_s_max: Option<f64>,
    /// The backup may take this long (`--window`).
    pub backup_s_max: Option<f64>,
    /// Share of all cores a backup may use, 0 to 1 (`--max-cpu`).
    pub cpu_share_max: Option<f64>,
    /// Memory a backup may take (`--max-memory`).
    pub memory_bytes_max: Option<u64>,
    /// Bytes a backup may store (`--max-size`).
    pub stored_bytes_max: Option<u64>,
}

/// The figures that an objective looks at, measured or predicted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Wall time of the backup.
    pub backup_s: f64,
    /// Wall time of the restore.
    pub restore_s: f64,
    /// Bytes stored.
    pub stored_bytes: f64,
    /// CPU time of the backup.
    pub backup_cpu_s: f64,
    /// Memory of the backup.
    pub memory_bytes: f64,
}

/// The smallest of each figure over all rows: what scores are normalised by.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Least {
    /// Backup and restore together.
    pub both_s: f64,
    /// Bytes stored.
    pub stored_bytes: f64,
}

impl Least {
    /// Over `outcomes`.
    pub fn of(outcomes: impl Iterator<Item = Outcome>) -> Self {
        outcomes.fold(Least { both_s: f64::INFINITY, stored_bytes: f64::INFINITY }, |least, outcome| Least {
            both_s: least.both_s.min(outcome.backup_s + outcome.restore_s),
            stored_bytes: least.stored_bytes.min(outcome.stored_bytes),
        })
    }

    /// Normalised time + normalised size: 2 for a point that is the best in both.
    pub fn score(&self, outcome: &Outcome) -> f64 {
        (outcome.backup_s + outcome.restore_s) / self.both_s.max(1e-9)
            + outcome.stored_bytes / self.stored_bytes.max(1.0)
    }
}

/// Between points that are equal within the noise the rest decides: a backup twice as fast or half as large is worth
/// this share of the goal's figure.
const TIE_WEIGHT: f64 = 0.02;

impl Objective {
    /// The figure that is made small; comparable between points of one run only.
    pub fn value(&self, outcome: &Outcome, least: &Least) -> f64 {
        let backup = outcome.backup_s.max(1e-9);
        let restore = outcome.restore_s.max(1e-9);
        let stored = outcome.stored_bytes.max(1.0);
        let halvings = |figures: [f64; 2]| TIE_WEIGHT * figures.iter().map(|figure| figure.log2()).sum::<f64>();
        match self.goal {
            Goal::Restore => restore.ln() + halvings([backup, stored]),
            Goal::Backup => backup.ln() + halvings([restore, stored]),
            Goal::Size => stored.ln() + halvings([backup, restore]) / 4.0,
            Goal::Cpu => outcome.backup_cpu_s.max(1e-9).ln() + halvings([restore, stored]),
            Goal::Score => least.score(outcome).ln(),
        }
    }

    /// How far `outcome` is from keeping the bounds: 0 if it keeps all, else the sum of how much each is exceeded.
    pub fn excess(&self, outcome: &Outcome, cores: u16) -> f64 {
        self.bounds(outcome, cores).map(|(_, is, most)| (is / most.max(1e-9) - 1.0).max(0.0)).sum()
    }

    /// The bounds that are not kept, in words.
    pub fn missed(&self, outcome: &Outcome, cores: u16) -> Vec<String> {
        self.bounds(outcome, cores)
            .filter(|(_, is, most)| is > most)
            .map(|(bound, is, most)| bound.missed(is, most))
            .collect()
    }

    /// Whether a bound is set.
    pub fn has_bounds(&self) -> bool {
        self.restore_s_max.is_some()
            || self.backup_s_max.is_some()
            || self.cpu_share_max.is_some()
            || self.memory_bytes_max.is_some()
            || self.stored_bytes_max.is_some()
    }

    /// Best first: points that keep the bounds before those that do not, then by the goal.
    pub fn compare(&self, a: &Outcome, b: &Outcome, least: &Least, cores: u16) -> Ordering {
        let key = |outcome: &Outcome| (self.excess(outcome, cores), self.value(outcome, least));
        let (a, b) = (key(a), key(b));
        a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
    }

    /// What is asked, in words.
    pub fn describe(&self) -> String {
        let mut text = self.goal.to_string();
        let most = Outcome::default();
        let bounds: Vec<String> = self.bounds(&most, 1).map(|(bound, _, most)| bound.asked(most)).collect();
        if !bounds.is_empty() {
            text.push_str(&format!(" with {}", bounds.join(", ")));
        }
        text
    }

    fn bounds(&self, outcome: &Outcome, cores: u16) -> impl Iterator<Item = (Bound, f64, f64)> {
        let cpu_share = outcome.backup_cpu_s / (outcome.backup_s.max(1e-9) * f64::from(cores.max(1)));
        [
            (Bound::Restore, outcome.restore_s, self.restore_s_max),
            (Bound::Backup, outcome.backup_s, self.backup_s_max),
            (Bound::Cpu, cpu_share, self.cpu_share_max),
            (Bound::Memory, outcome.memory_bytes, self.memory_bytes_max.map(|bytes| bytes as f64)),
            (Bound::Size, outcome.stored_bytes, self.stored_bytes_max.map(|bytes| bytes as f64)),
        ]
        .into_iter()
        .filter_map(|(bound, is, most)| Some((bound, is, most?)))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    Restore,
    Backup,
    Cpu,
    Memory,
    Size,
}

impl Bound {
    fn figure(self, value: f64) -> String {
        match self {
            Bound::Restore | Bound::Backup => format!("{value:.1} s"),
            Bound::Cpu => format!("{:.0} % of the CPUs", value * 100.0),
            Bound::Memory | Bound::Size => format!("{:.1} MB", value / 1e6),
        }
    }

    fn asked(self, most: f64) -> String {
        let what = match self {
            Bound::Restore => "a restore within",
            Bound::Backup => "a backup within",
            Bound::Cpu => "at most",
            Bound::Memory => "memory of at most",
            Bound::Size => "a size of at most",
        };
        format!("{what} {}", self.figure(most))
    }

    fn missed(self, is: f64, most: f64) -> String {
        let (flag, what) = match self {
            Bound::Restore => ("--rto", "the restore takes"),
            Bound::Backup => ("--window", "the backup takes"),
            Bound::Cpu => ("--max-cpu", "the backup uses"),
            Bound::Memory => ("--max-memory", "the backup holds"),
            Bound::Size => ("--max-size", "the backup stores"),
        };
        format!("{flag} {}: {what} {}", self.figure(most), self.figure(is))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(backup_s: f64, restore_s: f64, stored_bytes: f64) -> Outcome {
        Outcome { backup_s, restore_s, stored_bytes, backup_cpu_s: backup_s, memory_bytes: 1e6 }
    }

    #[test]
    fn the_goal_decides_and_ties_go_to_the_rest() {
        let (quick, small) = (outcome(10.0, 10.0, 500e6), outcome(20.0, 12.0, 300e6));
        let least = Least::of([quick, small].into_iter());
        let best = |goal| {
            let objective = Objective { goal, ..Objective::default() };
            objective.compare(&quick, &small, &least, 2) == Ordering::Less
        };
        assert!(best(Goal::Restore) && best(Goal::Backup) && best(Goal::Cpu));
        assert!(!best(Goal::Size));
        // 1 + 5/3 against 32/20 + 1.
        assert!(!best(Goal::Score));
        let objective = Objective::default();
        let (same, smaller) = (outcome(10.0, 10.0, 500e6), outcome(10.0, 10.05, 250e6));
        assert_eq!(objective.compare(&same, &smaller, &least, 2), Ordering::Greater, "half the size decides a tie");
        let slower = outcome(10.0, 10.5, 250e6);
        assert_eq!(objective.compare(&same, &slower, &least, 2), Ordering::Less, "5 % is no tie");
    }

    #[test]
    fn bounds_come_first_and_are_explained() {
        let (quick, small) = (outcome(10.0, 10.0, 500e6), outcome(20.0, 40.0, 300e6));
        let least = Least::of([quick, small].into_iter());
        let objective = Objective { goal: Goal::Size, restore_s_max: Some(30.0), ..Objective::default() };
        assert_eq!(objective.compare(&quick, &small, &least, 2), Ordering::Less);
        assert_eq!(objective.missed(&small, 2), ["--rto 30.0 s: the restore takes 40.0 s"]);
        assert!(objective.missed(&quick, 2).is_empty());
        assert_eq!(objective.describe(), "the smallest backup with a restore within 30.0 s");
        let impossible = Objective { restore_s_max: Some(1.0), ..objective };
        assert_eq!(impossible.compare(&quick, &small, &least, 2), Ordering::Less, "the nearest is the best possible");
        let cpu = Objective { cpu_share_max: Some(0.4), ..Objective::default() };
        assert_eq!(cpu.missed(&quick, 2), ["--max-cpu 40 % of the CPUs: the backup uses 50 % of the CPUs"]);
    }

    #[test]
    fn names_are_read() {
        for goal in Goal::ALL {
            assert_eq!(goal.name().parse::<Goal>().unwrap(), goal);
        }
        assert!("fast".parse::<Goal>().unwrap_err().hint_text().unwrap().contains("score"));
    }
}
