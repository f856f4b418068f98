//! What the demo says at its end.

use pagehaul_engine::backup::BackupReport;
use pagehaul_engine::restore::RestoreReport;
use pagehaul_engine::verify::VerifyReport;
use serde::Serialize;

use super::check::Check;
use super::places::Places;
use crate::commands::{backup, restore, version_text};
use crate::output::figures::{bytes, count, duration, rate_of, ratio};
use crate::output::table::{Align, table};

/// One phase of the story.
#[derive(Debug, Serialize)]
pub(super) struct Phase {
    /// What was done.
    pub(super) name: &'static str,
    /// How long it took.
    pub(super) elapsed_s: f64,
    /// Bytes of the database that went through, if they did.
    pub(super) bytes: Option<u64>,
}

/// The whole demo; the keys of `demo --json`.
#[derive(Debug, Serialize)]
pub(super) struct DemoReport {
    /// Whether every check held.
    pub(super) passed: bool,
    /// The phases in order.
    pub(super) phases: Vec<Phase>,
    /// The checks in order.
    pub(super) checks: Vec<Check>,
    /// From the destroyed cluster to the one that accepts writes.
    pub(super) recovery_time_s: f64,
    /// What the backup said.
    pub(super) backup: BackupReport,
    /// What the verification said.
    pub(super) verify: VerifyReport,
    /// What the restore said.
    pub(super) restore: RestoreReport,
    /// Where everything is, if it was kept.
    pub(super) kept_in: Option<String>,
}

impl DemoReport {
    /// The report for people.
    pub(super) fn text(&self, places: &Places) -> String {
        let header = [("phase", Align::Left), ("time", Align::Right), ("data", Align::Right), ("rate", Align::Right)];
        let rows: Vec<_> = self.phases.iter().map(phase_row).collect();
        let mut text = table(&header, &rows);
        text.push_str(&format!("\nbackup: {}", backup::time_text(&self.backup)));
        text.push_str(&format!("\nrestore: {}\n", restore::time_text(&self.restore)));
        let header = [("check", Align::Left), ("result", Align::Left), ("evidence", Align::Left)];
        let row = |check: &Check| vec![check.name.clone(), check.state.to_owned(), check.detail.clone()];
        text.push_str(&table(&header, &self.checks.iter().map(row).collect::<Vec<_>>()));
        text.push('\n');
        if self.kept_in.is_some() {
            let repository = places.repository.display();
            text.push_str(&format!(
                "kept in {}; look around: pagehaul info --repo {repository}\n",
                places.root.display()
            ));
        }
        text.push_str(&self.verdict());
        text
    }

    fn verdict(&self) -> String {
        let failed = self.checks.iter().filter(|check| check.failed()).count() as u64;
        if failed > 0 {
            return format!("demo FAILED: {} did not hold\n", count(failed, "check"));
        }
        let backup = &self.backup;
        format!(
            "demo passed: {} of PostgreSQL {} backed up under load at {}, ratio {}; destroyed, and open again after {}, \
             nothing lost\n",
            bytes(backup.source_bytes),
            version_text(backup.postgres_version_num),
            rate_of(backup.source_bytes, backup.elapsed_s),
            ratio(backup.ratio),
            duration(self.recovery_time_s),
        )
    }
}

fn phase_row(phase: &Phase) -> Vec<String> {
    let dash = || "-".to_owned();
    vec![
        phase.name.to_owned(),
        duration(phase.elapsed_s),
        phase.bytes.map_or_else(dash, bytes),
        phase.bytes.map_or_else(dash, |count| rate_of(count, phase.elapsed_s)),
    ]
}
