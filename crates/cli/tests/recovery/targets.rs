//! Random points of every type on three timelines, each compared with what was committed up to there.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use pagehaul_testkit::cluster::default_install;
use pagehaul_testkit::random::Random;

use super::archived::{Archived, Copy};
use super::ledger::Ledger;

/// A cluster that was recovered twice to an earlier point and went on from there.
struct World {
    archived: Archived,
    /// What each timeline's path holds.
    paths: BTreeMap<u32, Ledger>,
    /// Rows of the first set: nothing before them can be reached.
    first_reachable: usize,
    _copies: Vec<Copy>,
}

/// Timeline 1 with two sets, 2 that leaves it between them and has one, 3 that leaves 2.
fn world(random: &mut Random) -> World {
    let mut archived = Archived::start(&default_install());
    let mut one = Ledger::create(&archived.cluster);
    one.write(&archived.cluster, 1, 30);
    archived.backup();
    let first_reachable = one.entries.len();
    write_marked(&mut one, &archived.cluster, 1_000, "one-early", random);
    let between_sets = one.entries.len();
    archived.backup();
    write_marked(&mut one, &archived.cluster, 2_000, "one-late", random);
    archived.cluster.server.stop(pagehaul_engine::source::postgres::scratch_server::StopMode::Fast).unwrap();

    let branch = first_reachable + 10 + random.below((between_sets - first_reachable - 20) as u64) as usize;
    let lsn = one.entries[branch - 1].lsn.to_string();
    let mut copy_two = archived.recover_as_source("two", &["--type", "lsn", "--target", &lsn]);
    one.assert_prefix(&copy_two.cluster, branch, "timeline 2 begins");
    let mut two = one.branch(branch);
    write_marked(&mut two, &copy_two.cluster, 3_000, "two-early", random);
    let before_set = two.entries.len();
    archived.backup_of(&copy_two.cluster.server);
    write_marked(&mut two, &copy_two.cluster, 4_000, "two-late", random);
    copy_two.cluster.server.stop(pagehaul_engine::source::postgres::scratch_server::StopMode::Fast).unwrap();

    let branch = before_set + 5 + random.below((two.entries.len() - before_set - 10) as u64) as usize;
    let xid = two.entries[branch - 1].xid.to_string();
    let copy_three = archived.recover_as_source("three", &["--type", "xid", "--target", &xid]);
    two.assert_prefix(&copy_three.cluster, branch, "timeline 3 begins");
    let mut three = two.branch(branch);
    write_marked(&mut three, &copy_three.cluster, 5_000, "three", random);
    copy_three.cluster.value("SELECT pg_switch_wal()");
    archived.wait_until_archived(&copy_three.cluster);
    let paths = BTreeMap::from([(1, one), (2, two), (3, three)]);
    World { archived, paths, first_reachable, _copies: vec![copy_two, copy_three] }
}

/// Rows with restore points among them, and segments that end early.
fn write_marked(
    ledger: &mut Ledger,
    cluster: &pagehaul_testkit::cluster::Cluster,
    first: u64,
    name: &str,
    random: &mut Random,
) {
    for part in 0..6u64 {
        ledger.write(cluster, first + part * 100, 5 + random.below(15));
        ledger.mark(cluster, &format!("{name}-{part}"));
        if random.below(3) == 0 {
            cluster.value("SELECT pg_switch_wal()");
        }
    }
    ledger.write(cluster, first + 600, 5);
}

/// Keeps a line of each target that was reached, where a file is asked for.
struct Raw(Option<Mutex<std::fs::File>>);

impl Raw {
    fn open() -> Self {
        let file = std::env::var_os("PAGEHAUL_TEST_RAW").map(|path| std::fs::File::create(path).unwrap());
        let raw = Raw(file.map(Mutex::new));
        raw.add("type,timeline,target,exclusive,action,commits_expected_and_found,restored_and_replayed_s");
        raw
    }

    fn add(&self, line: &str) {
        if let Some(file) = &self.0 {
            writeln!(file.lock().unwrap_or_else(PoisonError::into_inner), "{line}").unwrap();
        }
    }
}

impl World {
    /// Restores to a random point of this type and compares; false for a point that no set reaches, which is no try.
    fn try_one(&self, kind: &str, number: u64, random: &mut Random, raw: &Raw) -> bool {
        let timeline = 1 + random.below(3) as u32;
        let ledger = &self.paths[&timeline];
        // Not the last rows: a time needs a later commit to stop at, and an LSN a later record.
        let choices = ledger.entries.len() - 2 - self.first_reachable;
        let count = self.first_reachable + 1 + random.below(choices as u64) as usize;
        let entry = &ledger.entries[count - 1];
        let exclusive = kind != "name" && random.below(3) == 0;
        let (target, expected) = match kind {
            "lsn" => (entry.lsn.to_string(), count),
            "xid" => (entry.xid.to_string(), if exclusive { count - 1 } else { count }),
            "name" => {
                let points: Vec<_> =
                    ledger.points.iter().filter(|(_, before)| *before > self.first_reachable).collect();
                points[random.below(points.len() as u64) as usize].clone()
            }
            _ => {
                let next = ledger.entries[count].at;
                let gap_us = (next.as_microsecond() - entry.at.as_microsecond()).max(1);
                let at = entry.at.as_microsecond() + random.below(gap_us as u64) as i64;
                let target = jiff::Timestamp::from_microsecond(at).unwrap();
                let before = |other: &&super::ledger::Entry| {
                    if exclusive { other.at < target } else { other.at <= target }
                };
                (target.to_string(), ledger.entries.iter().filter(before).count())
            }
        };
        if expected <= self.first_reachable {
            return false;
        }
        let timeline_text = timeline.to_string();
        let action = if random.below(2) == 0 { "promote" } else { "pause" };
        let mut flags = vec!["--type", kind, "--target", &target, "--target-action", action];
        if exclusive {
            flags.push("--exclusive");
        }
        // 3 is the newest: it needs no word.
        if timeline != 3 || random.below(2) == 0 {
            flags.extend(["--target-timeline", &timeline_text]);
        }
        let why = format!("{kind} {number}: {flags:?}");
        let began = Instant::now();
        let copy = self.archived.recover(&format!("{kind}-{number}"), &flags);
        let recovered_s = began.elapsed().as_secs_f64();
        ledger.assert_prefix(&copy.cluster, expected, &why);
        assert_eq!(copy.cluster.value("SHOW archive_mode"), "off", "{why}: a copy archives");
        copy.remove();
        raw.add(&format!("{kind},{timeline},{target},{exclusive},{action},{expected},{recovered_s:.3}"));
        true
    }
}

impl World {
    /// No commit is overlooked, also not one whose record lies in two segments.
    fn plan_every_commit(&self) {
        let target = self.archived.target("planned");
        let ledger = &self.paths[&3];
        for entry in &ledger.entries[self.first_reachable + 1..] {
            let ran =
                self.archived.restore(&target, &["--type", "xid", "--target", &entry.xid.to_string(), "--dry-run"]);
            assert_eq!(ran.code, Some(0), "{entry:?}: {}", ran.stderr);
            let report = ran.json();
            assert_eq!(report["state"], "planned");
            let stops_in = report["recovery"]["stops_in"].as_str().unwrap();
            let number = u64::from_str_radix(&stops_in[16..], 16).unwrap();
            // Segments of 1 MiB in the first 4 GiB of WAL: the name's end is the number, and the commit ends by then.
            let end = entry.lsn.0 - 1;
            assert!(number <= end >> 20 && number + 1 >= end >> 20, "{entry:?} in {stops_in}");
        }
    }
}

#[test]
fn f22_every_random_target_is_reached_exactly() {
    let mut random = Random::new("targets");
    let world = world(&mut random);
    let raw = Raw::open();
    let count = std::env::var("PAGEHAUL_TEST_TARGETS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    // Each copy is a server of its own, and starting one is half of it waiting.
    std::thread::scope(|scope| {
        for kind in ["time", "lsn", "xid", "name"] {
            let (world, raw) = (&world, &raw);
            let mut random = Random::fixed(random.next_u64());
            scope.spawn(move || {
                let mut tried = 0;
                while tried < count {
                    tried += u64::from(world.try_one(kind, tried, &mut random, raw));
                }
                eprintln!("{kind}: {count} targets");
            });
        }
    });
    world.plan_every_commit();
    for (timeline, ledger) in &world.paths {
        let copy = world.archived.recover("latest", &["--type", "latest", "--target-timeline", &timeline.to_string()]);
        ledger.assert_prefix(&copy.cluster, ledger.entries.len(), &format!("latest of timeline {timeline}"));
        copy.remove();
    }
}
