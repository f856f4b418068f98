//! Who runs in which settings, and which of them go on after the first round.

use std::collections::BTreeMap;

use pagehaul_engine::codec::CodecSpec;
use pagehaul_tune::contestants::{BaseBackup, Contestant as Peer};

use super::target::Target;
use crate::benches::on_all_cores;
use crate::benches::peers::{Contestant, backrests};
use crate::pagehaul;
use crate::results::{Results, Run};
use crate::setup::Setup;

/// pagehaul's; only those of the page codec are compared with the peers.
const CODECS: &[&str] = &["page:1", "page:2", "auto"];
/// pgBackRest's, with one process and with one a core.
const BACKREST: &[(&str, u32)] = &[("lz4", 1), ("zst", 1), ("zst", 3)];
/// pg_basebackup's; {} is the number of cores.
const BASEBACKUP: &[&str] = &[
    "none",
    "server-lz4:1",
    "client-lz4:1",
    "server-zstd:1",
    "server-zstd:3",
    "client-zstd:1",
    "client-zstd:3",
    "server-zstd:level=1,workers={}",
    "server-zstd:level=3,workers={}",
    "client-zstd:level=1,workers={}",
    "client-zstd:level=3,workers={}",
];

/// A setting is slower than another only if it took more than this many times as long: runs of a second vary that much.
pub(super) const TIME_ALLOWANCE: f64 = 1.15;
/// And larger only if it stored more than this many times as much: with several workers zstd's output is a little larger.
pub(super) const SIZE_ALLOWANCE: f64 = 1.01;
/// On so many databases a setting must have been beaten before it is not tried on another.
pub(super) const BEATEN_ENOUGH: usize = 2;

/// Everybody; what this pagehaul or this machine does not have is noted.
pub(super) fn all(setup: &Setup, results: &mut Results) -> Vec<Contestant> {
    let mut list = Vec::new();
    for codec in CODECS {
        match codec.parse::<CodecSpec>() {
            Ok(_) => {
                let (setting, flags) = ((*codec).to_owned(), on_all_cores(setup.cores, codec));
                list.push(Contestant::Pagehaul { setting, flags });
            }
            Err(error) => results.failures.push(format!("{codec} was left out: {}", error.message())),
        }
    }
    list.extend(backrests(setup, BACKREST, results));
    list.extend(BASEBACKUP.iter().map(|compress| {
        let compress = compress.replace("{}", &setup.cores.to_string());
        Contestant::Peer(Peer::BaseBackup(BaseBackup { is_plain: false, compress }))
    }));
    list
}

/// Backup time, restore time and stored bytes of one setting, by which it is judged.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Figures {
    backup_s: f64,
    restore_s: f64,
    stored_bytes: f64,
}

impl Figures {
    /// Whether `other` is better in everything, even if this was unlucky.
    fn is_beaten_by(self, other: Figures) -> bool {
        other.backup_s * TIME_ALLOWANCE < self.backup_s
            && other.restore_s <= self.restore_s * TIME_ALLOWANCE
            && other.stored_bytes <= self.stored_bytes * SIZE_ALLOWANCE
    }
}

/// Settings of peers, and on how many databases they were beaten.
pub(super) type Beaten = BTreeMap<(&'static str, String), usize>;

/// Leaves out the settings of peers that cannot be the best of theirs, by what ran so far to `target`. pagehaul's stay.
pub(super) fn keep_the_best(
    contestants: &mut Vec<Contestant>,
    database: &str,
    target: &Target,
    results: &Results,
    beaten: &mut Beaten,
) {
    let figures = |contestant: &Contestant| {
        let setting = target.label(database, &contestant.setting());
        let median = |step, figure: fn(&Run) -> f64| results.median((step, contestant.name(), &setting), figure);
        Some(Figures {
            backup_s: median("backup", |run| run.cost.wall_s)?,
            restore_s: median("restore", |run| run.cost.wall_s)?,
            stored_bytes: median("backup", |run| run.stored_bytes as f64)?,
        })
    };
    let known: Vec<(&str, Option<Figures>)> =
        contestants.iter().map(|contestant| (contestant.name(), figures(contestant))).collect();
    contestants.retain(|contestant| {
        // One that failed is in the list of failures; it would fail again.
        let Some(own) = figures(contestant) else { return false };
        let name = contestant.name();
        let mut rivals = known.iter().filter(|(other, _)| *other == name).filter_map(|(_, figures)| *figures);
        let stays = name == pagehaul::NAME || !rivals.any(|other| own.is_beaten_by(other));
        if !stays {
            *beaten.entry((name, contestant.setting())).or_default() += 1;
        }
        stays
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_cannot_be_the_best_is_left_out() {
        let one = Figures { backup_s: 1.0, restore_s: 1.0, stored_bytes: 100.0 };
        assert!(!one.is_beaten_by(one));
        assert!(!one.is_beaten_by(Figures { backup_s: 0.9, ..one }), "within the allowance");
        assert!(one.is_beaten_by(Figures { backup_s: 0.8, ..one }));
        assert!(!one.is_beaten_by(Figures { backup_s: 0.8, stored_bytes: 102.0, ..one }), "it is smaller");
        assert!(!one.is_beaten_by(Figures { backup_s: 0.8, restore_s: 1.2, ..one }), "it is restored faster");
    }
}
