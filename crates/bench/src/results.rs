//! Every single run, written down as it ends, and the figures made of them.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use pagehaul_engine::error::{Error, ErrorKind, Result};

use pagehaul_tune::contestants::stopwatch::Cost;
use pagehaul_tune::rows::median;

/// The columns of raw.csv and what they mean.
pub(crate) const COLUMNS: &[(&str, &str)] = &[
    ("bench", "the bench"),
    ("step", "what was done: backup, restore, read, encode, ..."),
    ("contestant", "who did it"),
    ("setting", "how"),
    ("repetition", "which round, from 1; in a round every contestant runs once"),
    ("wall_s", "wall time of the whole command; when it ends, its output is durable"),
    ("cpu_user_s", "CPU time of the command and all children it waited for, in user code"),
    ("cpu_system_s", "the same, in the kernel"),
    ("server_cpu_s", "CPU time of all processes of the PostgreSQL server during the run"),
    ("data_path_s", "wall time of the data path alone, as the contestant itself says; 0 where it does not say"),
    ("source_bytes", "bytes of the files that a backup holds"),
    ("stored_bytes", "bytes of all files of the backup (for discarded output: as pagehaul counts them)"),
    ("file_count", "files that a backup holds"),
    (
        "rss_bytes_max",
        "largest resident memory of a single process: what pagehaul itself reports, for others the kernel's account",
    ),
    ("rss_tree_bytes_max", "of all processes of the command together, sampled; shared pages count in each"),
    ("memory_ceiling_bytes", "pagehaul's stated ceiling, without the 32 MiB for the program itself"),
    ("limit", "what pagehaul's own report named as the limit of the run"),
    ("levels", "with --compression auto, the share of bytes at each level"),
];

/// One run of one contestant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    pub(crate) step: &'static str,
    pub(crate) contestant: String,
    pub(crate) setting: String,
    pub(crate) repetition: u32,
    pub(crate) cost: Cost,
    pub(crate) data_path_s: f64,
    pub(crate) source_bytes: u64,
    pub(crate) stored_bytes: u64,
    pub(crate) file_count: u64,
    pub(crate) memory_ceiling_bytes: u64,
    pub(crate) limit: String,
    pub(crate) levels: String,
    /// How pagehaul found what had changed since the backup before.
    pub(crate) changes_found_by: String,
    /// Raw buffers that went through the data path.
    pub(crate) buffers: u64,
}

impl Run {
    /// Who, doing what, how: runs with the same three are repetitions of each other.
    pub(crate) fn key(&self) -> (&'static str, &str, &str) {
        (self.step, &self.contestant, &self.setting)
    }

    /// Source bytes a second of the data path where it is known, otherwise of the whole command, in MB/s.
    pub(crate) fn data_path_mb_per_s(&self) -> f64 {
        mb_per_s(self.source_bytes, if self.data_path_s > 0.0 { self.data_path_s } else { self.cost.wall_s })
    }

    fn csv(&self, bench: &str) -> String {
        let cost = &self.cost;
        let mut line = String::new();
        for text in [bench, self.step, &self.contestant, &self.setting] {
            line.push_str(&quoted(text));
            line.push(',');
        }
        line.push_str(&self.repetition.to_string());
        for seconds in [cost.wall_s, cost.cpu_user_s, cost.cpu_system_s, cost.server_cpu_s, self.data_path_s] {
            line.push_str(&format!(",{seconds:.3}"));
        }
        for number in [
            self.source_bytes,
            self.stored_bytes,
            self.file_count,
            cost.rss_bytes_max,
            cost.rss_tree_bytes_max,
            self.memory_ceiling_bytes,
        ] {
            line.push_str(&format!(",{number}"));
        }
        line + "," + &quoted(&self.limit) + "," + &quoted(&self.levels) + "\n"
    }
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

/// Millions of bytes a second; 0 if no time passed.
pub(crate) fn mb_per_s(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 / 1e6 / seconds } else { 0.0 }
}

/// One comparison: pagehaul's figure over the other's.
#[derive(Clone, Debug)]
pub(crate) struct Ratio {
    /// Name of its target.
    pub(crate) target: &'static str,
    /// What is compared, in words.
    pub(crate) what: String,
    pub(crate) value: f64,
    /// What pagehaul named as the limit of its run.
    pub(crate) limit: String,
}

/// All runs of a bench.
#[derive(Debug)]
pub(crate) struct Results {
    bench: &'static str,
    /// How it was measured, where that is not as in the benches of whole commands.
    pub(crate) method: Option<String>,
    /// Where everything goes.
    pub(crate) directory: PathBuf,
    csv: File,
    pub(crate) runs: Vec<Run>,
    pub(crate) ratios: Vec<Ratio>,
    /// What did not work; the bench goes on without it.
    pub(crate) failures: Vec<String>,
    /// Further parts of the README: title and text.
    pub(crate) sections: Vec<(String, String)>,
}

impl Results {
    /// Begins `raw.csv` in `directory`.
    ///
    /// # Errors
    /// `Target` if it cannot be written.
    pub(crate) fn begin(bench: &'static str, directory: &Path) -> Result<Self> {
        let path = directory.join("raw.csv");
        let failed = |cause| Error::new(ErrorKind::Target, format!("write {}", path.display()), cause);
        let mut csv = std::fs::create_dir_all(directory).and_then(|()| File::create(&path)).map_err(failed)?;
        let names: Vec<&str> = COLUMNS.iter().map(|(name, _)| *name).collect();
        writeln!(csv, "{}", names.join(",")).map_err(failed)?;
        let (runs, ratios, failures, sections) = Default::default();
        let directory = directory.to_owned();
        Ok(Results { bench, method: None, directory, csv, runs, ratios, failures, sections })
    }

    /// Writes a run down and shows it.
    ///
    /// # Errors
    /// `Target` if raw.csv cannot be written.
    pub(crate) fn add(&mut self, run: Run) -> Result<()> {
        let write = self.csv.write_all(run.csv(self.bench).as_bytes());
        write.map_err(|cause| Error::new(ErrorKind::Target, "write raw.csv", cause))?;
        println!(
            "#{} {:<8} {:<14} {:<34} {:>8.2} s {:>8.1} MB/s  cpu {:.1}+{:.1} s  {} {}",
            run.repetition,
            run.step,
            run.contestant,
            run.setting,
            run.cost.wall_s,
            run.data_path_mb_per_s(),
            run.cost.cpu_user_s + run.cost.cpu_system_s,
            run.cost.server_cpu_s,
            run.limit,
            run.levels
        );
        self.runs.push(run);
        Ok(())
    }

    /// Takes a run, or notes that it failed and goes on.
    ///
    /// # Errors
    /// As [`Results::add`].
    pub(crate) fn add_or_note(&mut self, what: &str, run: Result<Run>) -> Result<()> {
        match run {
            Ok(run) => self.add(run),
            Err(error) => {
                println!("{what}: {error}");
                self.failures.push(format!("{what}: {}", error.message()));
                Ok(())
            }
        }
    }

    /// One run of each key, in the order of their first appearance.
    pub(crate) fn firsts(&self) -> Vec<&Run> {
        let mut firsts: Vec<&Run> = Vec::new();
        for run in &self.runs {
            if !firsts.iter().any(|first| first.key() == run.key()) {
                firsts.push(run);
            }
        }
        firsts
    }

    /// The median of `figure` over the repetitions of a contestant; None if it never ran.
    pub(crate) fn median(&self, key: (&str, &str, &str), figure: impl Fn(&Run) -> f64) -> Option<f64> {
        median(self.runs.iter().filter(|run| run.key() == key).map(figure).collect())
    }

    /// What pagehaul named as the limit in the last run of this key.
    pub(crate) fn limit(&self, key: (&str, &str, &str)) -> String {
        self.runs.iter().rev().find(|run| run.key() == key).map_or_else(String::new, |run| run.limit.clone())
    }

    /// Adds a comparison if both figures are there.
    pub(crate) fn compare(
        &mut self,
        target: &'static str,
        what: String,
        ours: Option<f64>,
        other: Option<f64>,
        limit: String,
    ) {
        if let (Some(ours), Some(other)) = (ours, other)
            && other > 0.0
        {
            self.ratios.push(Ratio { target, what, value: ours / other, limit });
        }
    }

    /// The table of medians, as Markdown.
    pub(crate) fn medians_table(&self) -> String {
        let mut table = "| step | contestant | setting | runs | wall s | min-max s | MB/s | data path MB/s | client CPU s | server CPU s | stored MB | ratio | peak MiB | limit |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n".to_owned();
        for first in self.firsts() {
            let key = first.key();
            let figure = |figure: fn(&Run) -> f64| self.median(key, figure).unwrap_or_default();
            let walls = self.runs.iter().filter(|run| run.key() == key).map(|run| run.cost.wall_s);
            let (low, high) = walls.clone().fold((f64::MAX, 0.0), |(low, high), wall| (wall.min(low), wall.max(high)));
            let wall_s = figure(|run| run.cost.wall_s);
            let stored = figure(|run| run.stored_bytes as f64);
            let source = figure(|run| run.source_bytes as f64);
            let ratio = if stored > 0.0 { format!("{:.3}", source / stored) } else { String::new() };
            let row = writeln!(
                table,
                "| {} | {} | {} | {} | {wall_s:.2} | {low:.2}-{high:.2} | {:.0} | {:.0} | {:.2} | {:.2} | {:.1} | {ratio} | {:.1} | {} |",
                key.0,
                key.1,
                key.2,
                walls.count(),
                source / 1e6 / wall_s.max(1e-9),
                figure(Run::data_path_mb_per_s),
                figure(|run| run.cost.cpu_user_s + run.cost.cpu_system_s),
                figure(|run| run.cost.server_cpu_s),
                stored / 1e6,
                figure(|run| run.cost.rss_bytes_max as f64) / 1_048_576.0,
                self.limit(key)
            );
            debug_assert!(row.is_ok(), "a String takes everything");
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn a_line_has_every_column_and_quotes_what_needs_it() {
        let run = Run { step: "backup", contestant: "a,b".into(), limit: "say \"x\"".into(), ..Run::default() };
        let line = run.csv("peers");
        assert!(line.starts_with("peers,backup,\"a,b\",,0,0.000"), "{line}");
        assert!(line.ends_with(",\"say \"\"x\"\"\",\n"), "{line}");
        assert_eq!(line.matches(',').count(), COLUMNS.len(), "one comma is inside quotes: {line}");
    }
}
