//! Whole backups and restores of one database at a time, each in a cluster of its own: to the disk, and to a device of 200
//! MB/s; pagehaul with its page codec against each peer at its best.
//!
//! - `target`: one backup and one restore of a contestant, to the disk or behind the device;
//! - `contestants`: who runs in which settings, and which of them go on after the first round;
//! - `best`: the tables.

mod best;
mod contestants;
mod target;

use std::path::PathBuf;

use pagehaul_engine::error::Result;

use super::nothing_to_run;
use crate::cluster::remove_tree;
use crate::page::device::Device;
use crate::page::options::{PageOptions, WholeTarget};
use crate::page::{databases, single};
use crate::readme::DURABLE;
use crate::results::Results;
use crate::setup::{Setup, work_directory};
use best::Row;
use contestants::LeftOut;
use target::{Target, Way};

/// In `--restore-to`: a directory of its own, because it is removed at the end.
const RESTORED: &str = "pagehaul-bench-restored";

/// How the contestants of one database run; what stands in [`DURABLE`] comes after it.
const METHOD: &str = "\
Database by database, contestants ran in turns (A B C A B C), each after a `sync` of all file systems. All of them ran as the \
OS user that owns the cluster. All source files of a database were read once before its first run, so that the source was in \
the page cache. To the disk nothing was dropped between runs: a restore read a repository that had just been written (a warm \
repository). To the device the repository was taken out of the page cache before each restore, for all contestants alike. Before every \
run as much memory as the cluster has, and an eighth more, was written and given back, because a virtual machine waits for memory that it \
touches for the first time.
";

/// Runs everything; gives what the README says of the data.
///
/// # Errors
/// What keeps the bench from running.
pub(super) fn run(options: &PageOptions, results: &mut Results) -> Result<String> {
    let names = databases::wanted(options)?;
    results.method = Some(format!("{METHOD}\n{DURABLE}"));
    for name in &names {
        // All are made before anything is measured.
        drop(single::cluster(options, name)?);
    }
    let restored = match &options.restore_to {
        Some(directory) => directory.join(RESTORED),
        None => work_directory(&options.bench).join("restored"),
    };
    let device = device(options, results);
    let mut targets = Vec::new();
    if options.to.contains(&WholeTarget::Disk) {
        targets.push(Target {
            way: Way::Plain,
            repositories: work_directory(&options.bench),
            restored: restored.clone(),
        });
    }
    if options.to.contains(&WholeTarget::Device) {
        targets.push(behind(options, device.as_ref(), restored.clone()));
    }
    let (mut data, mut rows, mut left_out) = (Vec::new(), Vec::new(), LeftOut::new());
    for name in &names {
        let setup = Setup::on(single::cluster(options, name)?, &options.bench)?;
        data.push(format!("{name}: {}", setup.data_text()));
        rows.push(one_database(options, name, &setup, &targets, &mut left_out, results)?);
    }
    remove_tree(&restored)?;
    sections(&targets, &rows, device.as_ref(), options, results);
    Ok(data.join("; "))
}

/// The slow device, if it is asked for; that it cannot be made is noted.
fn device(options: &PageOptions, results: &mut Results) -> Option<Device> {
    if !options.to.contains(&WholeTarget::Device) {
        return None;
    }
    match Device::make(&databases::root(options).join("device")) {
        Ok(device) => Some(device),
        Err(error) => {
            let instead =
                "pagehaul's own throttle and a slow pipe for pg_basebackup stand for it, pgBackRest is left out";
            results.failures.push(format!("no slow device: {}; {instead}", error.message()));
            None
        }
    }
}

fn behind(options: &PageOptions, device: Option<&Device>, restored: PathBuf) -> Target {
    match device {
        Some(device) => Target { way: Way::Device, repositories: device.directory.join("repositories"), restored },
        None => Target { way: Way::Throttled, repositories: work_directory(&options.bench), restored },
    }
}

/// All rounds of one database; gives its rows, one a target.
fn one_database(
    options: &PageOptions,
    database: &str,
    setup: &Setup,
    targets: &[Target],
    left_out: &mut LeftOut,
    results: &mut Results,
) -> Result<Vec<Row>> {
    let mut all = contestants::all(setup, results);
    all.retain(|contestant| {
        let times = left_out.get(&(contestant.name(), contestant.setting())).copied().unwrap_or_default();
        setup.wanted(contestant.name(), &contestant.setting()) && times < contestants::LEFT_OUT_MAX
    });
    let mut contestants = all.clone();
    if all.is_empty() {
        return Err(nothing_to_run());
    }
    let repeat = |target: &Target| match (target.way, options.device_repeat) {
        (Way::Plain, _) | (_, None) => options.bench.repeat,
        (_, Some(repeat)) => repeat,
    };
    for repetition in 1..=targets.iter().map(repeat).max().unwrap_or_default() {
        for (number, target) in targets.iter().enumerate().filter(|(_, target)| repetition <= repeat(target)) {
            if target.way == Way::Device {
                setup.owner().create_directory(&target.repositories)?;
            }
            for contestant in &contestants {
                target.round(setup, database, contestant, repetition, results)?;
            }
            if number == 0 {
                contestants::keep_the_best(&mut contestants, database, target, results, left_out);
            }
        }
    }
    Ok(targets.iter().map(|target| Row::of(database, target, &all, results)).collect())
}

fn sections(
    targets: &[Target],
    rows: &[Vec<Row>],
    device: Option<&Device>,
    options: &PageOptions,
    results: &mut Results,
) {
    let mut sections = vec![("Settings".to_owned(), settings(device, options))];
    for (number, target) in targets.iter().enumerate() {
        let rows: Vec<&Row> = rows.iter().filter_map(|rows| rows.get(number)).collect();
        let text = best::text(&rows);
        print!("{}\n{text}", target.title());
        sections.push((target.title().to_owned(), text));
    }
    results.sections.splice(0..0, sections);
}

fn settings(device: Option<&Device>, options: &PageOptions) -> String {
    let mut text = format!(
        "Each database is in a cluster of its own. pagehaul runs with one encoder a core; pgBackRest (repo-bundle=y, start-fast=y, \
         archive-check=n, everything else its default) with one process and with one a core; pg_basebackup with --checkpoint=fast \
         -Ft -X fetch, restored through its codec's command and tar. A setting of a peer runs again \
         if it was, by what ran to the first target so far, among the {} fastest backups of that peer, or its smallest, or its fastest restore; \
         one that was left out on {} databases is not tried on another. Rounds of different contestants alternate.\n\nRestored \
         clusters went to {}. ",
        contestants::FASTEST_COUNT,
        contestants::LEFT_OUT_MAX,
        match &options.restore_to {
            Some(directory) if directory.starts_with("/dev/shm") => "a tmpfs in memory, for all contestants alike",
            Some(_) => "another directory than the repositories, for all contestants alike",
            None => "the same disk as the repositories, for all contestants alike",
        }
    );
    if let Some(device) = device {
        text += &format!(
            "\n\nThe device of 200 MB/s is a loop device with ext4 over a file in memory, limited by the kernel's block layer (blkio) to \
             200,000,000 bytes a second each way, with at most 32 MiB waiting to be written. A plain write with a sync at its end got {:.0} \
             MB/s. Every contestant has its repository there.",
            device.write_mb_per_s
        );
    }
    text + "\n"
}
