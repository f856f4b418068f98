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
const CODECS: &[&str] = &["zstd:1", "page:1", "page:2", "auto"];
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

/// So many of the fastest backups of a peer run again, beside its smallest and its fastest restore: runs of a second vary,
/// and on the slower device another setting may be the fastest.
pub(super) const FASTEST_COUNT: usize = 3;
/// On so many databases a setting must have been left out before it is not tried on another.
pub(super) const LEFT_OUT_MAX: usize = 3;

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

/// What one setting is judged by: backup time, restore time, stored bytes.
type Figures = [f64; 3];

/// Settings of peers, and on how many databases they were left out.
pub(super) type LeftOut = BTreeMap<(&'static str, String), usize>;

/// Leaves out the settings of peers that are not among the best of theirs, by what ran so far to `target`, and those that
/// failed. pagehaul's stay.
pub(super) fn keep_the_best(
    contestants: &mut Vec<Contestant>,
    database: &str,
    target: &Target,
    results: &Results,
    left_out: &mut LeftOut,
) {
    let figures = |contestant: &Contestant| {
        let setting = target.label(database, &contestant.setting());
        let median = |step, figure: fn(&Run) -> f64| results.median((step, contestant.name(), &setting), figure);
        let backup_s = median("backup", |run| run.cost.wall_s)?;
        Some([backup_s, median("restore", |run| run.cost.wall_s)?, median("backup", |run| run.stored_bytes as f64)?])
    };
    let known: Vec<(&str, Figures)> =
        contestants.iter().filter_map(|contestant| Some((contestant.name(), figures(contestant)?))).collect();
    contestants.retain(|contestant| {
        let name = contestant.name();
        let of_same = known.iter().filter(|(other, _)| *other == name).map(|(_, figures)| *figures).collect::<Vec<_>>();
        let stays = name == pagehaul::NAME || figures(contestant).is_some_and(|own| is_among_the_best(own, &of_same));
        if !stays {
            *left_out.entry((name, contestant.setting())).or_default() += 1;
        }
        stays
    });
}

fn is_among_the_best(own: Figures, of_same: &[Figures]) -> bool {
    let better = |figure: usize| of_same.iter().filter(|other| other[figure] < own[figure]).count();
    better(0) < FASTEST_COUNT || better(1) == 0 || better(2) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_few_the_smallest_and_the_fastest_restored_stay() {
        let all = [
            [1.0, 2.0, 90.0],
            [1.1, 2.0, 80.0],
            [1.2, 2.0, 70.0],
            [1.3, 1.9, 70.0],
            [9.0, 9.0, 60.0],
            [1.4, 2.0, 70.0],
        ];
        let stay: Vec<bool> = all.iter().map(|own| is_among_the_best(*own, &all)).collect();
        assert_eq!(stay, [true, true, true, true, true, false]);
    }
}
