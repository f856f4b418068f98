//! What came of a script: the lines that server and script wrote, read into trials. Pure.
//!
//! The lines are the same whether they came over TDS or out of `sqlcmd`, so a run and an import are read alike.

use std::collections::BTreeMap;

use jiff::civil::DateTime;
use pagehaul_engine::source::mssql::questions::{FACTS, Line, OUTCOME};
use pagehaul_engine::source::mssql::said::processed;
use pagehaul_engine::source::mssql::server_message::ServerMessage;

use super::CONTESTANT;
use super::script::{BACKUP_AFTER, BACKUP_BEFORE, RESTORE_AFTER, RESTORE_BEFORE, TRIAL};
use crate::figures::{RunFigures, StageWaits, Trial};
use crate::rows::role;

/// A share of a run that one wait must have to be called its limit.
const LIMIT_SHARE_MIN: f64 = 0.3;
/// The share of all processors at which they are the limit.
const CPU_FULL: f64 = 0.85;

/// How an error is written: as `sqlcmd` does, on two lines.
pub fn error_lines(error: &ServerMessage) -> [String; 2] {
    [format!("Msg {}, Level {}, State {}", error.number, error.class, error.state), error.text.clone()]
}

/// One trial's lines.
#[derive(Debug, Default)]
struct Found {
    key: String,
    values: BTreeMap<(String, String), String>,
    /// What the server said of pages, backup and restore.
    pages: [Option<u64>; 2],
    errors: Vec<String>,
    moment: String,
}

/// All trials in `lines`, in their order, on a server with `cores` processors.
pub fn trials<'a>(lines: impl Iterator<Item = &'a str>, cores: u16) -> Vec<Trial> {
    let mut all: Vec<Found> = Vec::new();
    let mut header: Option<String> = None;
    for text in lines {
        let text = text.trim_end();
        if let Some(number) = header.take() {
            if let Some(found) = all.last_mut()
                && found.counts_errors()
            {
                found.errors.push(format!("{number}: {text}"));
            }
        } else if text.starts_with("Msg ") && text.contains(", Level ") {
            header = text.split(',').next().map(str::to_owned);
        } else if let Some(line) = Line::parse(text).filter(|line| line.moment != FACTS) {
            take_line(&mut all, &line);
        } else if let (Some(found), Some(said)) = (all.last_mut(), processed(text)) {
            found.pages[usize::from(!said.is_backup)] = Some(said.pages);
        }
    }
    all.iter().map(|found| found.trial(cores)).collect()
}

fn take_line(all: &mut Vec<Found>, line: &Line<'_>) {
    let is_new = line.moment == TRIAL && line.name == "setting";
    if is_new || all.last().is_none_or(|found| found.key != line.key) {
        all.push(Found { key: line.key.to_owned(), ..Found::default() });
    }
    if let Some(found) = all.last_mut() {
        line.moment.clone_into(&mut found.moment);
        found.values.insert((line.moment.to_owned(), line.name.to_owned()), line.value.to_owned());
    }
}

impl Found {
    /// Errors of the clean-up are nobody's failure.
    fn counts_errors(&self) -> bool {
        self.moment != RESTORE_AFTER && !(self.moment == OUTCOME && self.text(TRIAL, "role") == role::BASELINE)
    }

    fn text(&self, moment: &str, name: &str) -> &str {
        self.values.get(&(moment.to_owned(), name.to_owned())).map_or("", String::as_str)
    }

    fn number(&self, moment: &str, name: &str) -> Option<f64> {
        self.text(moment, name).trim().parse().ok().filter(|number: &f64| number.is_finite())
    }

    fn trial(&self, cores: u16) -> Trial {
        let role = self.text(TRIAL, "role");
        let is_baseline = role == role::BASELINE;
        let backup = self.run([BACKUP_BEFORE, BACKUP_AFTER], self.pages[0], cores);
        let restore = self.run([RESTORE_BEFORE, RESTORE_AFTER], self.pages[1], cores);
        let failed = self.failure(is_baseline, backup.is_some(), restore.is_some());
        let bytes = |name| self.number(OUTCOME, name).unwrap_or_default().max(0.0) as u64;
        Trial {
            contestant: CONTESTANT.to_owned(),
            setting: self.text(TRIAL, "setting").to_owned(),
            role: role.to_owned(),
            repetition: self.number(TRIAL, "repetition").unwrap_or(1.0) as u32,
            source_bytes: bytes("backup_size"),
            stored_bytes: if is_baseline { 0 } else { bytes("stored_size") },
            backup,
            restore: restore.filter(|_| !is_baseline),
            failed,
            ..Trial::default()
        }
    }

    fn failure(&self, is_baseline: bool, has_backup: bool, has_restore: bool) -> Option<String> {
        if !self.errors.is_empty() {
            return Some(self.errors.join("; "));
        }
        let missing = if !has_backup {
            "of the backup there is no whole record"
        } else if !is_baseline && !has_restore {
            "of the restore there is no whole record"
        } else if self.number(OUTCOME, "backup_size").is_none() {
            "msdb has no row of it"
        } else if self.text(OUTCOME, "is_damaged").trim() == "1" {
            "the server calls the set damaged"
        } else if self.text(OUTCOME, "is_copy_only").trim() != "1" {
            "it was no COPY_ONLY backup: differentials would be built on it"
        } else {
            return None;
        };
        Some(missing.to_owned())
    }

    /// The figures between two probes; None without both, or without the server's last word.
    fn run(&self, moments: [&str; 2], pages: Option<u64>, cores: u16) -> Option<RunFigures> {
        pages?;
        let [before, after] = moments;
        let time = |moment| self.text(moment, "time_utc").trim().parse::<DateTime>().ok();
        let (start, end) = (time(before)?, time(after)?);
        let wall_s = end.duration_since(start).as_secs_f64();
        let delta = |name: &str| {
            let ms = self.number(after, name).unwrap_or_default() - self.number(before, name).unwrap_or_default();
            (ms / 1e3).max(0.0)
        };
        let server_cpu_s = delta("cpu_ms");
        let is_backup = before == BACKUP_BEFORE;
        let waits = Waits {
            read_s: delta("ASYNC_IO_COMPLETION"),
            write_s: delta("BACKUPIO"),
            buffer_s: delta("BACKUPBUFFER"),
            thread_s: delta("BACKUPTHREAD"),
        };
        Some(RunFigures {
            started_at: format!("{start:.0}Z"),
            wall_s,
            server_cpu_s,
            rss_bytes_max: self.number(TRIAL, "buffer_bytes").unwrap_or_default() as u64,
            stages: waits.stages(is_backup),
            limit: waits.limit(is_backup, wall_s, server_cpu_s, cores),
            ..RunFigures::default()
        })
    }
}

/// What the server's threads waited for meanwhile.
struct Waits {
    read_s: f64,
    write_s: f64,
    buffer_s: f64,
    thread_s: f64,
}

impl Waits {
    fn stages(&self, is_backup: bool) -> Vec<StageWaits> {
        let names = if is_backup { ["readers", "writers"] } else { ["stripe readers", "file writers"] };
        let stage = |name: &str, busy_s, wait_input_s, wait_output_s| StageWaits {
            stage: name.to_owned(),
            threads: 1,
            busy_s,
            wait_input_s,
            wait_output_s,
        };
        vec![stage(names[0], self.read_s, 0.0, self.buffer_s), stage(names[1], self.write_s, self.thread_s, 0.0)]
    }

    fn limit(&self, is_backup: bool, wall_s: f64, cpu_s: f64, cores: u16) -> String {
        let share = cpu_s / (wall_s.max(1e-9) * f64::from(cores.max(1)));
        if share > CPU_FULL {
            return format!("the processors ({:.0} % busy)", share * 100.0);
        }
        let (reading, writing) = if is_backup {
            ("reading the data files", "writing the backup")
        } else {
            ("reading the backup", "writing the data files")
        };
        let waits = [
            (self.read_s, "ASYNC_IO_COMPLETION", reading),
            (self.write_s, "BACKUPIO", writing),
            // Where reading waits for buffers and neither disk is busy, packing is slow or the buffers are few.
            (self.buffer_s, "BACKUPBUFFER", "packing, or too few buffers"),
        ];
        let largest = waits.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
        match largest.filter(|(seconds, _, _)| *seconds >= wall_s * LIMIT_SHARE_MIN) {
            Some((seconds, wait, what)) => format!("{what} ({wait} {seconds:.1} s)"),
            None => "nothing most of the time".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
pagehaul|k #1|trial|setting|zstd:low f4
pagehaul|k #1|trial|role|candidate
pagehaul|k #1|trial|repetition|1
pagehaul|k #1|trial|buffer_bytes|23068672
pagehaul|k #1|backup-before|time_utc|2026-11-22T20:00:00.5000000
pagehaul|k #1|backup-before|cpu_ms|1000
pagehaul|k #1|backup-before|BACKUPIO|100
10 percent processed.
Processed 1254 pages for database 'shop', file 'x' on file 1.
BACKUP DATABASE successfully processed 1254 pages in 9.000 seconds (79.600 MB/sec).
pagehaul|k #1|backup-after|time_utc|2026-11-22T20:00:10.7500000
pagehaul|k #1|backup-after|cpu_ms|9000
pagehaul|k #1|backup-after|BACKUPIO|9100
pagehaul|k #1|outcome|backup_size|10272768
pagehaul|k #1|outcome|stored_size|3000000
pagehaul|k #1|outcome|is_copy_only|1
pagehaul|k #1|outcome|is_damaged|0
pagehaul|k #1|restore-before|time_utc|2026-11-22T23:59:59.0000000
RESTORE DATABASE successfully processed 1254 pages in 1.000 seconds (79.600 MB/sec).
pagehaul|k #1|restore-after|time_utc|2026-11-23T00:00:01.0000000
Msg 22049, Level 16, State 1, Line 1
the file cannot be deleted";

    #[test]
    fn a_record_becomes_a_trial() {
        let trials = trials(GOOD.lines(), 8);
        let [trial] = trials.as_slice() else { panic!("{trials:?}") };
        assert_eq!((trial.setting.as_str(), &trial.failed), ("zstd:low f4", &None));
        assert_eq!((trial.source_bytes, trial.stored_bytes), (10_272_768, 3_000_000));
        let backup = trial.backup.as_ref().unwrap();
        assert!((backup.wall_s - 10.25).abs() < 1e-6 && (backup.server_cpu_s - 8.0).abs() < 1e-6, "{backup:?}");
        assert_eq!(backup.limit, "writing the backup (BACKUPIO 9.0 s)");
        assert_eq!((backup.rss_bytes_max, backup.started_at.as_str()), (23_068_672, "2026-11-22T20:00:00Z"));
        assert!((trial.restore.as_ref().unwrap().wall_s - 2.0).abs() < 1e-6, "midnight is passed");
    }

    #[test]
    fn what_is_not_whole_or_not_right_is_a_failure() {
        let failure = |text: String| trials(text.lines(), 8)[0].failed.clone().unwrap_or_default();
        let errors =
            "Msg 701, Level 17, State 123, Server X, Line 1\nno memory\nMsg 3013, Level 16, State 1\nterminating";
        let text =
            GOOD.replace("BACKUP DATABASE successfully processed 1254 pages in 9.000 seconds (79.600 MB/sec).", errors);
        assert_eq!(failure(text), "Msg 701: no memory; Msg 3013: terminating");
        assert!(failure(GOOD.replace("RESTORE DATABASE succ", "x")).contains("restore there is no whole record"));
        assert!(failure(GOOD.replace("backup_size|10272768", "backup_size|")).contains("msdb"));
        assert!(failure(GOOD.replace("is_copy_only|1", "is_copy_only|0")).contains("COPY_ONLY"));
        assert!(failure(GOOD.replace("is_damaged|0", "is_damaged|1")).contains("damaged"));
        let cut: String = GOOD.lines().take(9).map(|line| format!("{line}\n")).collect();
        assert!(failure(cut).contains("backup there is no whole record"));
    }

    #[test]
    fn a_baseline_needs_no_restore() {
        let text: String = GOOD.lines().take(17).map(|line| format!("{line}\n")).collect();
        let found = trials(text.replace("role|candidate", "role|baseline").lines(), 8);
        assert_eq!((&found[0].failed, found[0].stored_bytes), (&None, 0));
        assert!(trials("nothing\nMsg 1, Level 2\n".lines(), 1).is_empty());
    }
}
