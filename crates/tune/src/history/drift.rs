//! Drift: how the last plain full backup of a source compares with earlier ones in the same settings. Pure.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::row::HistoryRow;

/// Fewer earlier backups than this say nothing about what is usual.
const EARLIER_MIN: usize = 3;
/// More than these are not looked at: what was usual a year ago is not what the last backup drifts from.
const EARLIER_MAX: usize = 20;
/// A change below this share is not told, however steady the earlier backups were.
const NOTABLE_SHARE: f64 = 0.10;
/// A change is told if it is this many times the usual distance from the median (the median absolute deviation; 3 of
/// them are two standard deviations of values that scatter normally).
const NOTABLE_DEVIATIONS: f64 = 3.0;

/// One figure of the last backup against the median of the earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Change {
    /// Of the last backup.
    pub last: f64,
    /// Median of the earlier ones.
    pub median: f64,
    /// last / median - 1.
    pub share: f64,
    /// Whether it is more than the earlier backups differ among themselves.
    pub notable: bool,
}

/// The last plain backup of a source against the earlier ones with the same settings on the same machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Drift {
    /// Name of the source.
    pub source: String,
    /// The settings in a line.
    pub setting: String,
    /// When the last backup started, UTC.
    pub last_started_at: String,
    /// How many earlier ones the medians are of.
    pub earlier: usize,
    /// Source bytes a second, from start to commit.
    pub throughput_bytes_per_s: Change,
    /// Source over stored; None where the output was discarded.
    pub ratio: Option<Change>,
}

/// For each source in `rows` its last plain backup against up to 20 earlier ones; sources with fewer than 3 are left
/// out, as are trials, restores and failed runs. The order of the rows does not matter.
pub fn drift(rows: &[HistoryRow]) -> Vec<Drift> {
    let mut by_source: BTreeMap<&str, Vec<&HistoryRow>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.role == "backup" && row.failed.is_none()) {
        if throughput(row).is_some() {
            by_source.entry(&row.source).or_default().push(row);
        }
    }
    by_source.into_values().filter_map(drift_of).collect()
}

fn drift_of(mut rows: Vec<&HistoryRow>) -> Option<Drift> {
    rows.sort_by(|a, b| (&b.started_at, b.id).cmp(&(&a.started_at, a.id)));
    let (last, earlier) = rows.split_first()?;
    let earlier: Vec<&HistoryRow> =
        earlier.iter().copied().filter(|row| is_comparable(row, last)).take(EARLIER_MAX).collect();
    if earlier.len() < EARLIER_MIN {
        return None;
    }
    Some(Drift {
        source: last.source.clone(),
        setting: last.setting.clone(),
        last_started_at: last.started_at.clone(),
        earlier: earlier.len(),
        throughput_bytes_per_s: change(throughput(last)?, &earlier, throughput)?,
        ratio: ratio(last).and_then(|last| change(last, &earlier, ratio)),
    })
}

fn is_comparable(a: &HistoryRow, b: &HistoryRow) -> bool {
    a.settings == b.settings
        && a.machine.host == b.machine.host
        && a.system_identifier == b.system_identifier
        && (a.stored_bytes == 0) == (b.stored_bytes == 0)
}

fn throughput(row: &HistoryRow) -> Option<f64> {
    let wall_s = row.backup.as_ref()?.wall_s;
    (wall_s > 0.0 && row.source_bytes > 0).then(|| row.source_bytes as f64 / wall_s)
}

fn ratio(row: &HistoryRow) -> Option<f64> {
    (row.stored_bytes > 0).then(|| row.source_bytes as f64 / row.stored_bytes as f64)
}

fn change(last: f64, earlier: &[&HistoryRow], figure: impl Fn(&HistoryRow) -> Option<f64>) -> Option<Change> {
    let values: Vec<f64> = earlier.iter().filter_map(|row| figure(row)).collect();
    let usual = median(values.clone())?;
    let deviation = median(values.iter().map(|value| (value - usual).abs()).collect())?;
    let share = last / usual - 1.0;
    let notable = share.abs() >= NOTABLE_SHARE.max(NOTABLE_DEVIATIONS * deviation / usual);
    Some(Change { last, median: usual, share, notable })
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(if values.len() % 2 == 1 { upper } else { (values[middle - 1] + upper) / 2.0 })
}

impl Drift {
    /// Whether there is anything to tell.
    pub fn is_notable(&self) -> bool {
        self.throughput_bytes_per_s.notable || self.ratio.is_some_and(|ratio| ratio.notable)
    }
}

impl fmt::Display for Drift {
    /// One line: `main: 212 MB/s, 31 % slower than the median of 8 earlier backups (308 MB/s); ratio 2.91, as usual`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let speed = self.throughput_bytes_per_s;
        let (source, last, usual, earlier) = (&self.source, speed.last / 1e6, speed.median / 1e6, self.earlier);
        let percent = |change: &Change| (change.share * 100.0).abs().round();
        if speed.notable {
            let word = if speed.share < 0.0 { "slower" } else { "faster" };
            let percent = percent(&speed);
            write!(
                f,
                "{source}: {last:.0} MB/s, {percent} % {word} than the median of {earlier} earlier backups ({usual:.0} MB/s)"
            )?;
        } else {
            write!(f, "{source}: {last:.0} MB/s, as usual (median of {earlier} earlier backups {usual:.0} MB/s)")?;
        }
        match &self.ratio {
            Some(ratio) if ratio.notable => {
                let word = if ratio.share < 0.0 { "below" } else { "above" };
                write!(f, "; ratio {:.2}, {} % {word} the usual {:.2}", ratio.last, percent(ratio), ratio.median)
            }
            Some(ratio) => write!(f, "; ratio {:.2}, as usual", ratio.last),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::RunFigures;

    fn backup(day: u32, wall_s: f64, stored_bytes: u64) -> HistoryRow {
        HistoryRow {
            id: i64::from(day),
            started_at: format!("2026-11-{day:02}T01:00:00.000000Z"),
            role: "backup".to_owned(),
            source: "main".to_owned(),
            setting: "zstd:1".to_owned(),
            source_bytes: 1_000_000_000,
            stored_bytes,
            backup: Some(RunFigures { wall_s, ..RunFigures::default() }),
            ..HistoryRow::default()
        }
    }

    fn check(rows: &[HistoryRow], expected: &[&str]) {
        let found: Vec<String> = drift(rows).iter().map(ToString::to_string).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_slower_last_backup_is_told_in_any_order_of_rows() {
        let mut rows: Vec<_> =
            [10.0, 10.2, 9.9, 10.1].into_iter().zip(1..).map(|(s, day)| backup(day, s, 1 << 28)).collect();
        rows.push(backup(9, 14.0, 1 << 29));
        let told = "main: 71 MB/s, 28 % slower than the median of 4 earlier backups (100 MB/s); ratio 1.86, 50 % below the usual 3.73";
        check(&rows, &[told]);
        rows.reverse();
        check(&rows, &[told]);
        assert!(drift(&rows)[0].is_notable());
    }

    #[test]
    fn what_is_within_the_usual_scatter_is_not_told() {
        let rows: Vec<_> =
            [8.0, 12.0, 10.0, 9.0, 12.0].into_iter().zip(1..).map(|(s, day)| backup(day, s, 0)).collect();
        check(&rows, &["main: 83 MB/s, as usual (median of 4 earlier backups 106 MB/s)"]);
        assert!(!drift(&rows)[0].is_notable());
    }

    #[test]
    fn only_plain_backups_with_the_same_settings_count() {
        let mut rows: Vec<_> = (1..=4).map(|day| backup(day, 10.0, 0)).collect();
        check(&rows, &["main: 100 MB/s, as usual (median of 3 earlier backups 100 MB/s)"]);
        rows[0].failed = Some("disk full".to_owned());
        check(&rows, &[]);
        rows[0] = HistoryRow {
            settings: super::super::RunSettings { readers: Some(8), ..Default::default() },
            ..backup(1, 10.0, 0)
        };
        check(&rows, &[]);
        rows[0] = HistoryRow { role: "candidate".to_owned(), ..backup(1, 10.0, 0) };
        check(&rows, &[]);
        check(&[], &[]);
    }
}
