//! A full backup, a change to 1 % of the pages, an incremental backup of it, and both restored: pagehaul with and
//! without the server's WAL summaries, pgBackRest by files and by blocks, pg_basebackup and pg_combinebackup.

use std::fmt::Write as _;

use pagehaul_engine::codec::CodecSpec;
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::source::postgres::pg_install::PgInstall;
use pagehaul_tune::contestants::stopwatch::run_quietly;

use super::nothing_to_run;
use crate::changed_pages::PagePrints;
use crate::cluster::Cluster;
use crate::incremental_tools::{BACKREST, CODEC, Contestant, Kind, SUMMARIES_MAJOR, all_contestants, backrest_program};
use crate::load;
use crate::options::BenchOptions;
use crate::pagehaul;
use crate::results::{Results, Run};
use crate::setup::Setup;

/// The yardstick among the runs: changed pages, put together and compressed.
const YARDSTICK: (&str, &str, &str) = ("incr", "changed pages", "zstd:1, alone");
/// How often the server is asked whether it has taken a setting, at tenths of a second.
const SETTING_LOOKS: u32 = 100;

/// Runs everything; gives what the README says of the data.
///
/// # Errors
/// What keeps the bench from running.
pub(crate) fn run(options: &BenchOptions, results: &mut Results) -> Result<String> {
    let install = PgInstall::find(options.pg_bin.as_deref())?;
    let setup = Setup::on(cluster(options, &install)?, options)?;
    let contestants = contestants(&setup, results);
    if contestants.is_empty() {
        return Err(nothing_to_run());
    }
    let mut changed = Vec::new();
    for repetition in 1..=options.repeat {
        changed.push(round(&setup, &contestants, repetition, results)?);
    }
    compare(&contestants, results);
    results.sections.insert(0, ("Settings".to_owned(), settings_text(&setup)));
    results.sections.push(("Incremental backups".to_owned(), increments_text(&contestants, results)));
    Ok(format!("{}; changed in each round: {}", setup.data_text(), changed.join(", ")))
}

fn cluster(options: &BenchOptions, install: &PgInstall) -> Result<Cluster> {
    if let Some(pgdata) = &options.pgdata {
        return Cluster::adopt(pgdata);
    }
    let (root, scale) = (&options.pgdata_root, options.scale);
    let name = format!("incremental-{}-scale{scale}", install.major());
    let settings = if install.major() >= SUMMARIES_MAJOR { "summarize_wal = on\n" } else { "" };
    let script = root.join("load.sql");
    Cluster::open_or_make_with(install, settings, root, &name, |cluster| load::changeable_data(cluster, scale, &script))
}

fn contestants(setup: &Setup, results: &mut Results) -> Vec<Contestant> {
    let mut list = all_contestants();
    if setup.cluster.install.major() < SUMMARIES_MAJOR {
        results.failures.push(format!(
            "PostgreSQL before {SUMMARIES_MAJOR} has no WAL summaries: what needs them was left out (--pg-bin names another)"
        ));
        list.retain(|contestant| !contestant.needs_summaries());
    }
    match run_quietly(setup.place().command(backrest_program()).arg("version")) {
        Err(_) => {
            results.failures.push("pgBackRest is not installed: it was left out".to_owned());
            list.retain(|contestant| !matches!(contestant.kind, Kind::BackRest { .. }));
        }
        Ok(version) if !has_blocks(&version) => {
            results.failures.push(format!(
                "{} has no block incremental backups: they were left out ({BACKREST} names another pgBackRest)",
                version.trim()
            ));
            list.retain(|contestant| contestant.kind != Kind::BackRest { blocks: true });
        }
        Ok(_) => {}
    }
    list.retain(|contestant| setup.wanted(contestant.name, contestant.setting));
    list
}

/// "pgBackRest 2.46" is the first that has.
fn has_blocks(version: &str) -> bool {
    let digits = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u32>().ok();
    let minor = version.split_whitespace().last().and_then(|text| digits(text.split('.').nth(1)?));
    minor.is_some_and(|minor| minor >= 46)
}

/// Everybody's full backup, one change for all, everybody's incremental, everybody's restore; gives how much changed.
fn round(setup: &Setup, contestants: &[Contestant], repetition: u32, results: &mut Results) -> Result<String> {
    let mut working = Vec::new();
    for contestant in contestants {
        let run = contestant.full(setup);
        if note(contestant, "full", run, repetition, results)? {
            working.push(contestant);
        }
    }
    let before = PagePrints::of(&setup.cluster.pgdata)?;
    let rows = load::change_one_percent(&setup.cluster)?;
    let after = PagePrints::of(&setup.cluster.pgdata)?;
    let changed = before.changed(&after, CODEC.parse::<CodecSpec>()?)?;
    results.add(Run {
        step: YARDSTICK.0,
        contestant: YARDSTICK.1.to_owned(),
        setting: YARDSTICK.2.to_owned(),
        repetition,
        source_bytes: changed.bytes(),
        stored_bytes: changed.stored_bytes,
        ..Run::default()
    })?;
    incrementals(setup, &mut working, repetition, results)?;
    for contestant in &working {
        let target = setup.empty_place("restored")?;
        let run = contestant.restore(setup, &target);
        if note(contestant, "restore", run, repetition, results)? && repetition == 1 {
            verify(setup, contestant, &after, results)?;
        }
        setup.no_place("restored")?;
    }
    for contestant in contestants {
        setup.no_place(&contestant.place())?;
    }
    let share = changed.pages as f64 * 100.0 / changed.all_pages.max(1) as f64;
    Ok(format!("{} of {} pages ({share:.2} %) by {rows} rows", changed.pages, changed.all_pages))
}

/// The incremental backups; the server makes WAL summaries only while those run that need them. Who failed is out.
fn incrementals(setup: &Setup, working: &mut Vec<&Contestant>, repetition: u32, results: &mut Results) -> Result<()> {
    let (mut on, mut worked) = (true, Vec::new());
    let has_summaries = setup.cluster.install.major() >= SUMMARIES_MAJOR;
    for contestant in working.iter().copied() {
        if has_summaries && contestant.needs_summaries() != on {
            on = contestant.needs_summaries();
            summarize(setup, on)?;
        }
        let run = contestant.incremental(setup);
        if note(contestant, "incr", run, repetition, results)? {
            worked.push(contestant);
        }
    }
    *working = worked;
    if on { Ok(()) } else { summarize(setup, true) }
}

/// Switches WAL summaries and waits until the server has heard of it.
fn summarize(setup: &Setup, on: bool) -> Result<()> {
    let value = if on { "on" } else { "off" };
    setup.cluster.sql(&format!("ALTER SYSTEM SET summarize_wal = {value}"))?;
    setup.cluster.sql("SELECT pg_reload_conf()")?;
    for _ in 0..SETTING_LOOKS {
        if setup.cluster.sql("SELECT current_setting('summarize_wal') FROM pg_sleep(0.1)")? == value {
            return Ok(());
        }
    }
    Err(Error::new(ErrorKind::Configuration, format!("set summarize_wal to {value}"), "the server does not take it"))
}

/// Writes a run down, or that there is none; gives whether there is one.
fn note(
    contestant: &Contestant,
    step: &'static str,
    run: Result<Run>,
    repetition: u32,
    results: &mut Results,
) -> Result<bool> {
    let worked = run.is_ok();
    let what = format!("{} {}, {step}", contestant.name, contestant.setting);
    if let (Kind::Pagehaul { by_summaries }, Ok(run), "incr") = (contestant.kind, &run, step) {
        let expected = if by_summaries { "wal summaries" } else { "page checksums" };
        if run.changes_found_by != expected {
            results.failures.push(format!("{what}: changes were found by {:?}", run.changes_found_by));
        }
    }
    results.add_or_note(&what, run.map(|run| Run { repetition, ..run }))?;
    Ok(worked)
}

/// Every user's page must be back as it was when the incremental backup began; a manifest is checked by PostgreSQL.
fn verify(setup: &Setup, contestant: &Contestant, after: &PagePrints, results: &mut Results) -> Result<()> {
    let restored = setup.work.join("restored");
    let who = format!("{} {}", contestant.name, contestant.setting);
    let missing = after.missing_in(&PagePrints::of(&restored)?);
    if missing > 0 {
        results.failures.push(format!("{who}: {missing} pages of the restored cluster are not those of the source"));
    }
    if matches!(contestant.kind, Kind::Pagehaul { .. })
        && let Err(error) = pagehaul::verify(setup, &restored)
    {
        results.failures.push(format!("{who}: what was restored is wrong: {}", error.message()));
    }
    Ok(())
}

fn compare(contestants: &[Contestant], results: &mut Results) {
    let is_own = |contestant: &&Contestant| matches!(contestant.kind, Kind::Pagehaul { .. });
    let stored = |results: &Results, key| results.median(key, |run| run.stored_bytes as f64);
    for own in contestants.iter().filter(is_own) {
        let key = ("incr", own.name, own.setting);
        let (alone, ours) = (stored(results, YARDSTICK), stored(results, key));
        let what = format!("size: changed pages compressed / {}", own.setting);
        results.compare("incr-size", what, alone, ours, String::new());
        for peer in contestants.iter().filter(|peer| !is_own(peer)) {
            for (step, target) in [("incr", "incr-backup"), ("restore", "incr-restore")] {
                let speed = |results: &Results, who: &Contestant| {
                    let key = (step, who.name, who.setting);
                    results.median(key, |run| run.cost.wall_s).map(|wall_s| 1.0 / wall_s.max(1e-9))
                };
                let (ours, theirs) = (speed(results, own), speed(results, peer));
                let limit = results.limit((step, own.name, own.setting));
                let what = format!("{step}: {} / {} {}", own.setting, peer.name, peer.setting);
                results.compare(target, what, ours, theirs, limit);
            }
        }
    }
}

fn increments_text(contestants: &[Contestant], results: &Results) -> String {
    let median = |key, figure: fn(&Run) -> f64| results.median(key, figure).unwrap_or_default();
    let (raw, alone) =
        (median(YARDSTICK, |run| run.source_bytes as f64), median(YARDSTICK, |run| run.stored_bytes as f64));
    let mut text = format!(
        "The changed pages are {:.2} MB, and {:.3} MB put together and compressed with {CODEC} in frames of pagehaul's \
         default size.\n\n| contestant | setting | full s | incremental s | restore of both s | stored MB | over the changed pages \
         compressed |\n|---|---|---|---|---|---|---|\n",
        raw / 1e6,
        alone / 1e6
    );
    for contestant in contestants {
        let wall = |step| median((step, contestant.name, contestant.setting), |run| run.cost.wall_s);
        let stored = median(("incr", contestant.name, contestant.setting), |run| run.stored_bytes as f64);
        let row = writeln!(
            text,
            "| {} | {} | {:.2} | {:.2} | {:.2} | {:.3} | x{:.3} |",
            contestant.name,
            contestant.setting,
            wall("full"),
            wall("incr"),
            wall("restore"),
            stored / 1e6,
            stored / alone.max(1.0)
        );
        debug_assert!(row.is_ok(), "a String takes everything");
    }
    text
}

fn settings_text(setup: &Setup) -> String {
    format!(
        "In each round every contestant makes a full backup into a place of its own; then one row changes in every \
         hundredth page of the large tables (other pages in each round; no index is touched, and the new version of the row \
         stays in its page), a checkpoint follows, every contestant makes an incremental backup, and every contestant \
         restores both. Rows of `incr` and `full` are timed alike; MB/s are bytes of the whole cluster over wall time. \
         Stored bytes of an incremental backup are what it added to its repository; pagehaul's and pg_basebackup's hold the \
         WAL that they need, pgBackRest's does not. WAL summaries: the server makes them (summarize_wal) while the \
         full backups are made, the pages change, and pg_basebackup and pagehaul's first row run; it is switched off before \
         the others' incremental backups, so that pagehaul's second row reads and compares every page. pagehaul: one \
         encoder a core ({cores}). pgBackRest: repo-bundle=y, process-max={cores}, start-fast=y, archive-check=n, \
         compress-type=zst, compress-level=1; \"blocks\" with repo-block=y, \"files\" without. pg_basebackup: \
         --checkpoint=fast; plain with WAL streamed, tar with WAL fetched. Restored: pagehaul and pgBackRest by their own \
         command, plain files by pg_combinebackup (which syncs), archives by zstd and tar, then pg_combinebackup. In the first \
         round each page of users' tables and indexes in every restored cluster was compared with the source's, and \
         pg_verifybackup read what pagehaul restored.\n",
        cores = setup.cores
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_incremental_came_with_2_46() {
        assert!(!has_blocks("pgBackRest 2.45\n"));
        assert!(has_blocks("pgBackRest 2.46"));
        assert!(has_blocks("pgBackRest 2.58.0"));
        assert!(!has_blocks("nonsense"));
    }
}
