//! Archiving and fetching WAL, a segment a command as PostgreSQL does it: pagehaul with and without its helper,
//! pgBackRest with and without its background processes, and plain copies; and replay of a real server.

use std::fmt::Write as _;
use std::path::PathBuf;

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_tune::contestants::stopwatch::{Cost, run_quietly};
use pagehaul_tune::contestants::tree_bytes;

use super::nothing_to_run;
use crate::archiver::{self, Played};
use crate::options::BenchOptions;
use crate::pagehaul;
use crate::results::{Results, Run};
use crate::setup::{Setup, unwritable};
use crate::wal_source::{self, SEGMENT_BYTES, WalSource};
use crate::wal_tools::{Contestant, Kind, REPLAY_CODEC, WALG, all_contestants};

/// Segments of a burst, archived one by one, and replayed, for each step of --scale.
const COUNTS: [usize; 3] = [500, 40, 128];
/// The same to try the bench.
const COUNTS_TINY: [usize; 3] = [12, 3, 6];
/// How often a replaying server's log is read; the time of the replay is the server's own.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_millis(100);

/// Everything of one run of the bench.
struct Stage<'a> {
    setup: &'a Setup,
    source: &'a WalSource,
    counts: [usize; 3],
    latencies: Vec<(String, Vec<f64>)>,
}

/// Runs everything; gives what the README says of the data.
///
/// # Errors
/// What keeps the bench from running.
pub(crate) fn run(options: &BenchOptions, results: &mut Results) -> Result<String> {
    let counts = if options.scale == 0 { COUNTS_TINY } else { COUNTS.map(|count| count * options.scale as usize) };
    let (cluster, source) = wal_source::open_or_make(&options.pgdata_root, counts[0])?;
    let setup = Setup::on(cluster, options)?;
    for name in &source.names {
        let path = source.directory.join(name);
        std::fs::read(&path).map_err(|cause| unwritable(&path, cause))?;
    }
    let mut contestants = all_contestants();
    if run_quietly(setup.place().command("pgbackrest").arg("version")).is_err() {
        results.failures.push("pgBackRest is not installed: it was left out".to_owned());
        contestants.retain(|contestant| !matches!(contestant.kind, Kind::BackRest { .. }));
    }
    contestants.retain(|contestant| setup.wanted(contestant.name, &contestant.setting));
    if contestants.is_empty() {
        return Err(nothing_to_run());
    }
    let mut stage = Stage { setup: &setup, source: &source, counts, latencies: Vec::new() };
    for repetition in 1..=options.repeat {
        for contestant in &contestants {
            stage.round(contestant, repetition, results)?;
        }
    }
    compare(&contestants, results);
    results.sections.insert(0, ("Settings".to_owned(), settings_text(counts)));
    results.sections.push(("Segments a second".to_owned(), rates_text(results)));
    results.sections.push(("Time of one command".to_owned(), latencies_text(&stage.latencies)));
    Ok(format!("{} segments of 16 MiB: single rows, whole pages after checkpoints, whole tables", source.names.len()))
}

impl Stage<'_> {
    fn pgdata(&self) -> PathBuf {
        self.setup.work.join("server")
    }

    fn round(&mut self, contestant: &Contestant, repetition: u32, results: &mut Results) -> Result<()> {
        let named = |run: Result<Run>| run.map(|run| Run { repetition, ..run });
        let [burst, singly, replay] = self.counts;
        let what = |step: &str| format!("{step} {} {}", contestant.name, contestant.setting);
        let run = self.play(contestant, "push-burst", burst);
        let worked = run.is_ok();
        results.add_or_note(&what("push-burst"), named(run))?;
        if worked {
            let run = self.play(contestant, "get-burst", burst);
            results.add_or_note(&what("get-burst"), named(run))?;
            let run = self.play(contestant, "push-singly", singly);
            results.add_or_note(&what("push-singly"), named(run))?;
            if contestant.replays() {
                let run = self.replay(contestant, replay);
                results.add_or_note(&what("replay"), named(run))?;
            }
        }
        Ok(())
    }

    /// One series of commands.
    fn play(&mut self, contestant: &Contestant, step: &'static str, count: usize) -> Result<Run> {
        let pgdata = self.pgdata();
        let (part, is_push) = match step {
            "push-burst" => ("burst", true),
            "push-singly" => ("singly", true),
            _ => ("get", false),
        };
        self.source.data_directory(&pgdata, if is_push { count } else { 0 })?;
        let archive =
            if is_push { contestant.make_archive(self.setup, &pgdata)? } else { contestant.archive(self.setup) };
        let list = self.setup.work.join("logs").join("segments.txt");
        std::fs::write(&list, self.source.names[..count].join("\n")).map_err(|cause| unwritable(&list, cause))?;
        let command = contestant.command(self.setup, &pgdata, is_push);
        let mut worker = self.setup.owner().command(&self.setup.own_program, &self.setup.work);
        worker.args(["archiver", part, "--command", &command, "--pgdata"]).arg(&pgdata).arg("--list").arg(&list);
        let fetched = self.setup.work.join("fetched");
        if !is_push {
            self.setup.empty_place("fetched")?;
            worker.arg("--fetched").arg(&fetched);
        }
        let (cost, said) = self.setup.stopwatch.run(&mut worker)?;
        let played: Played = serde_json::from_str(&said)
            .map_err(|cause| Error::new(ErrorKind::Bug, "understand the archiver's report", cause))?;
        if !is_push {
            archiver::compare(&self.source.names[..count], &self.source.directory, &fetched)?;
            self.setup.no_place("fetched")?;
        }
        let key = format!("{step} | {} | {}", contestant.name, contestant.setting);
        match self.latencies.iter_mut().find(|(known, _)| *known == key) {
            Some((_, latencies)) => latencies.extend(&played.latencies_ms),
            None => self.latencies.push((key, played.latencies_ms)),
        }
        let cost = Cost { wall_s: played.elapsed_s, ..cost };
        Ok(contestant.run(step, count, cost, tree_bytes(&archive)))
    }

    /// A server replays the first segments, which are archived anew for that.
    fn replay(&mut self, contestant: &Contestant, count: usize) -> Result<Run> {
        self.play(contestant, "push-burst", count)?;
        let target = self.setup.work.join("replay");
        let command = contestant.command(self.setup, &target, false);
        self.source.recovering_copy(&target, &self.setup.work, &command)?;
        let log = self.setup.work.join("logs").join("replay.log");
        std::fs::remove_file(&log).or_else(|cause| match cause.kind() {
            std::io::ErrorKind::NotFound => Ok(()),
            _ => Err(unwritable(&log, cause)),
        })?;
        let pg_ctl = |arguments: &[&str]| {
            let mut command = self.setup.cluster.tool("pg_ctl", &self.setup.work);
            command.args(arguments).arg("-D").arg(&target);
            command
        };
        rustix::fs::sync();
        // Not run_quietly: the server would keep its pipes open for ever.
        let status = pg_ctl(&["start", "-w", "-s", "-t", "3600", "-l", &log.to_string_lossy()]).status();
        let status = status.map_err(|cause| Error::new(ErrorKind::Configuration, "run pg_ctl", cause))?;
        // pg_ctl counts a server that recovers as started.
        let mut text = String::new();
        let goes_on =
            |text: &str| !text.contains("ready to accept connections") && target.join("postmaster.pid").exists();
        while status.success() && goes_on(&text) {
            std::thread::sleep(LOOK_EVERY);
            text = std::fs::read_to_string(&log).unwrap_or_default();
        }
        let stopped = run_quietly(&mut pg_ctl(&["stop", "-w", "-s", "-m", "immediate"]));
        self.setup.no_place("replay")?;
        let replayed_s = replay_seconds(&text).filter(|_| status.success()).ok_or_else(|| {
            let end: Vec<&str> = text.lines().rev().take(8).collect();
            Error::new(ErrorKind::Configuration, "replay", end.join(" / "))
        })?;
        stopped?;
        let archive = contestant.archive(self.setup);
        let cost = Cost { wall_s: replayed_s, ..Cost::default() };
        Ok(contestant.run("replay", count, cost, tree_bytes(&archive)))
    }
}

/// The time between the first and the last record, by the server's own account: "redo done at 0/5 system usage: CPU:
/// user: 1.00 s, system: 0.50 s, elapsed: 2.00 s".
fn replay_seconds(log: &str) -> Option<f64> {
    let line = log.lines().find(|line| line.contains("redo done at"))?;
    line.rsplit_once("elapsed: ")?.1.split_once(" s")?.0.parse().ok()
}

fn settings_text(counts: [usize; 3]) -> String {
    let [burst, singly, replay] = counts;
    format!(
        "A process plays PostgreSQL's archiver: `sh -c` with the contestant's command for one segment, and the next one when \
         it ended with 0. push-burst: {burst} segments that were all ready before the first command. push-singly: {singly} \
         segments, each ready only when the one before was archived, so that nothing can be done ahead. get-burst: the \
         {burst} segments back, as fast as the commands give them; every file was compared with the original. replay: a \
         server recovers from a base backup over {replay} segments with the contestant's restore_command; the time is the \
         one the server itself logs for its redo. CPU time holds what the commands left running too, up to its own end. \
         pgBackRest: process-max one a core, archive-get-queue-max 1GiB, everything else its default; it syncs every \
         file. copy: cp, dd or zstd -1 into a file, then sync of the file, rename, sync of the directory; get by cp or zstd \
         syncs nothing. WAL-G, where one was named by {WALG}: its defaults and lz4; it syncs nothing and writes into the \
         final name, so an archived segment is neither durable nor whole for sure when its command ends.\n"
    )
}

fn rates_text(results: &Results) -> String {
    let mut text =
        "| step | contestant | setting | segments/s | MB/s | stored, share of raw |\n|---|---|---|---|---|---|\n"
            .to_owned();
    for first in results.firsts() {
        let figure = |figure: &dyn Fn(&Run) -> f64| results.median(first.key(), figure).unwrap_or_default();
        let rate = figure(&|run| run.file_count as f64 / run.cost.wall_s.max(1e-9));
        let row = writeln!(
            text,
            "| {} | {} | {} | {rate:.1} | {:.0} | {:.3} |",
            first.step,
            first.contestant,
            first.setting,
            rate * SEGMENT_BYTES as f64 / 1e6,
            figure(&|run| run.stored_bytes as f64 / run.source_bytes.max(1) as f64)
        );
        debug_assert!(row.is_ok(), "a String takes everything");
    }
    text
}

fn latencies_text(latencies: &[(String, Vec<f64>)]) -> String {
    let mut text =
        "| step | contestant | setting | median ms | 95 % ms | longest ms |\n|---|---|---|---|---|---|\n".to_owned();
    for (key, latencies) in latencies {
        let mut sorted = latencies.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| sorted.get(((sorted.len() - 1) as f64 * share) as usize).copied().unwrap_or_default();
        let row = writeln!(text, "| {key} | {:.1} | {:.1} | {:.1} |", at(0.5), at(0.95), at(1.0));
        debug_assert!(row.is_ok(), "a String takes everything");
    }
    text
}

/// Against every other tool with the same codec, and against what fetching alone delivers.
fn compare(contestants: &[Contestant], results: &mut Results) {
    let speed = |results: &Results, step: &str, name: &str, setting: &str| {
        results.median((step, name, setting), |run| run.file_count as f64 / run.cost.wall_s.max(1e-9))
    };
    let others: Vec<_> = contestants.iter().filter(|other| other.name != pagehaul::NAME).collect();
    for (step, target) in
        [("push-burst", "wal-push"), ("get-burst", "wal-get"), ("push-singly", "wal-singly"), ("replay", "wal-replay")]
    {
        for own in contestants.iter().filter(|own| own.name == pagehaul::NAME && own.setting.ends_with("helper")) {
            for other in others.iter().filter(|other| other.meets(own)) {
                let ours = speed(results, step, own.name, &own.setting);
                let theirs = speed(results, step, other.name, &other.setting);
                let what = format!("{step}: {} / {} {}", own.setting, other.name, other.setting);
                let is_copy = matches!(other.kind, Kind::Copy { .. }) && target != "wal-replay";
                results.compare(if is_copy { "wal-copy" } else { target }, what, ours, theirs, String::new());
            }
        }
    }
    let own = format!("{REPLAY_CODEC} helper");
    let replayed = speed(results, "replay", pagehaul::NAME, &own);
    let alone = speed(results, "get-burst", pagehaul::NAME, &own);
    results.compare("wal-delivery", format!("get-burst / replay: {own}"), alone, replayed, String::new());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_own_account_is_understood() {
        let log = "x\n2026-01-01 LOG:  redo done at 0/5000028 system usage: CPU: user: 0.10 s, system: 0.02 s, elapsed: 12.34 s\n";
        assert_eq!(replay_seconds(log), Some(12.34));
        assert_eq!(replay_seconds("LOG:  redo is not required"), None);
    }

    #[test]
    fn latencies_are_ranked() {
        let text = latencies_text(&[("push | a | b".to_owned(), vec![3.0, 1.0, 2.0])]);
        assert!(text.ends_with("| push | a | b | 2.0 | 2.0 | 3.0 |\n"), "{text}");
    }
}
