//! Full backup to a local directory and restore into an empty one: pagehaul, pgBackRest, pg_basebackup.

use pagehaul_engine::error::Result;
use pagehaul_tune::contestants::stopwatch::{Cost, run_quietly};
use pagehaul_tune::contestants::{BackRest, BaseBackup, Contestant as Peer};

use super::{nothing_to_run, on_all_cores};
use crate::options::BenchOptions;
use crate::pagehaul;
use crate::results::{Results, Run};
use crate::setup::Setup;

/// Codecs as pagehaul and as pgBackRest call them; the peers' levels are the same.
const CODECS: &[(&str, &str, u32)] = &[("lz4", "lz4", 1), ("zstd:1", "zst", 1), ("zstd:3", "zst", 3)];
/// Also with the largest frames: what that gains in size.
const LARGE_FRAMES: &str = "lz4";
const STRIPES: &[u16] = &[1, 4];
const BASEBACKUP: &[(bool, &str)] = &[
    (true, "none"),
    (false, "none"),
    (false, "server-lz4:1"),
    (false, "server-zstd:1"),
    (false, "server-zstd:3"),
    (false, "client-lz4:1"),
    (false, "client-zstd:1"),
    (false, "client-zstd:3"),
];

/// One contestant in one setting.
#[derive(Clone, Debug)]
pub(super) enum Contestant {
    Pagehaul { setting: String, flags: Vec<String> },
    Peer(Peer),
}

/// Runs everything; gives what the README says of the data.
///
/// # Errors
/// What keeps the bench from running.
pub(crate) fn run(options: &BenchOptions, results: &mut Results) -> Result<String> {
    let setup = Setup::usual(options)?;
    let contestants = contestants(&setup, results);
    if contestants.is_empty() {
        return Err(nothing_to_run());
    }
    for repetition in 1..=options.repeat {
        for contestant in &contestants {
            contestant.round(&setup, repetition, results)?;
        }
    }
    compare(&setup, &contestants, results);
    let note = "pagehaul ran with one encoder a core; pgBackRest (repo-bundle=y, start-fast=y, archive-check=n, archive-async=n, everything else its default) with one process and with one a core; pg_basebackup with --checkpoint=fast and its other defaults, tar with WAL fetched, plain with WAL streamed. pgBackRest's repository holds no WAL here, the others' backups hold what they need. Restored: pagehaul and pgBackRest by their own command, tar archives by the codec's command and tar, plain files by cp -a, each followed by a sync of the file system. pg_verifybackup read every cluster that pagehaul restored in the first round.\n\nFor each codec the ratio compares wall times: the peer's over pagehaul's.\n";
    results.sections.insert(0, ("Settings".to_owned(), note.to_owned()));
    Ok(setup.data_text())
}

fn contestants(setup: &Setup, results: &mut Results) -> Vec<Contestant> {
    let mut list = Vec::new();
    for (codec, _, _) in CODECS {
        for stripes in STRIPES {
            let mut flags = on_all_cores(setup.cores, codec);
            flags.extend(pagehaul::flags(&format!("--stripes {stripes}")));
            list.push(Contestant::Pagehaul { setting: own_setting(codec, *stripes), flags });
        }
    }
    let mut flags = on_all_cores(setup.cores, LARGE_FRAMES);
    flags.extend(pagehaul::flags("--frame-size 4MiB"));
    list.push(Contestant::Pagehaul { setting: format!("{LARGE_FRAMES} frames of 4 MiB"), flags });
    let types: Vec<_> = CODECS.iter().map(|(_, compress_type, level)| (*compress_type, *level)).collect();
    list.extend(backrests(setup, &types, results));
    list.extend(
        BASEBACKUP
            .iter()
            .map(|(is_plain, compress)| BaseBackup { is_plain: *is_plain, compress: (*compress).to_owned() })
            .map(|peer| Contestant::Peer(Peer::BaseBackup(peer))),
    );
    list.retain(|contestant| setup.wanted(contestant.name(), &contestant.setting()));
    list
}

/// One process and one a core, of each codec; none and a note if it is not installed.
pub(super) fn backrests(setup: &Setup, types: &[(&str, u32)], results: &mut Results) -> Vec<Contestant> {
    if run_quietly(setup.place().command("pgbackrest").arg("version")).is_err() {
        results.failures.push("pgBackRest is not installed: it was left out".to_owned());
        return Vec::new();
    }
    let mut processes = vec![1, setup.cores];
    processes.dedup();
    let of_type = |(compress_type, level): &(&str, u32)| {
        let (compress_type, level) = ((*compress_type).to_owned(), *level);
        let with =
            |process_max: &u16| BackRest { compress_type: compress_type.clone(), level, process_max: *process_max };
        processes.iter().map(with).map(|peer| Contestant::Peer(Peer::BackRest(peer))).collect::<Vec<_>>()
    };
    types.iter().flat_map(of_type).collect()
}

fn peer_run(setup: &Setup, step: &'static str, peer: &Peer, cost: Cost) -> Run {
    Run {
        step,
        contestant: peer.name().to_owned(),
        setting: peer.setting(),
        cost,
        source_bytes: setup.files.bytes,
        file_count: setup.files.files.len() as u64,
        ..Run::default()
    }
}

fn own_setting(codec: &str, stripes: u16) -> String {
    format!("{codec} stripes {stripes}")
}

impl Contestant {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Contestant::Pagehaul { .. } => pagehaul::NAME,
            Contestant::Peer(peer) => peer.name(),
        }
    }

    pub(super) fn setting(&self) -> String {
        match self {
            Contestant::Pagehaul { setting, .. } => setting.clone(),
            Contestant::Peer(peer) => peer.setting(),
        }
    }

    /// Backs up, restores, and cleans up after itself; what does not work is noted.
    pub(super) fn round(&self, setup: &Setup, repetition: u32, results: &mut Results) -> Result<()> {
        let (name, setting) = (self.name(), self.setting());
        let ours = |run: Result<Run>| run.map(|run| Run { repetition, setting: setting.clone(), ..run });
        let repo = setup.no_place("repo")?;
        let backup = match self {
            Contestant::Pagehaul { flags, .. } => pagehaul::backup(setup, &repo.to_string_lossy(), flags),
            Contestant::Peer(peer) => peer
                .backup(&setup.place())
                .map(|done| Run { stored_bytes: done.stored_bytes, ..peer_run(setup, "backup", peer, done.cost) }),
        };
        let worked = backup.is_ok();
        results.add_or_note(&format!("{name} {setting}, backup"), ours(backup))?;
        if worked {
            let restored = self.restore(setup, &repo.to_string_lossy());
            let worked = restored.is_ok();
            results.add_or_note(&format!("{name} {setting}, restore"), ours(restored))?;
            if worked && repetition == 1 {
                self.verify(setup, results);
            }
        }
        for place in ["repo", "backrest", "basebackup", "restored"] {
            setup.no_place(place)?;
        }
        Ok(())
    }

    fn restore(&self, setup: &Setup, repo: &str) -> Result<Run> {
        let target = setup.empty_place("restored")?;
        match self {
            Contestant::Pagehaul { .. } => pagehaul::restore(setup, repo, &target, &[]),
            Contestant::Peer(peer) => {
                peer.restore(&setup.place(), &target).map(|cost| peer_run(setup, "restore", peer, cost))
            }
        }
    }

    /// Has what pagehaul restored read by PostgreSQL's own tool.
    fn verify(&self, setup: &Setup, results: &mut Results) {
        if let Contestant::Pagehaul { setting, .. } = self
            && let Err(error) = pagehaul::verify(setup, &setup.work.join("restored"))
        {
            results.failures.push(format!("what pagehaul restored from {setting} is wrong: {}", error.message()));
        }
    }
}

fn compare(setup: &Setup, contestants: &[Contestant], results: &mut Results) {
    for (codec, backrest_type, level) in CODECS {
        let backrest_words = format!("{backrest_type}:{level}");
        let basebackup_words = if *codec == "lz4" { "lz4:1" } else { codec };
        for peer in contestants {
            let setting = peer.setting();
            let same_codec = match peer {
                Contestant::Pagehaul { .. } => false,
                Contestant::Peer(Peer::BackRest(_)) => setting.starts_with(&backrest_words),
                Contestant::Peer(Peer::BaseBackup(peer)) => peer.compress.ends_with(basebackup_words),
            };
            // Against output that is not compressed the default codec stands.
            let plain = *codec == "zstd:1" && setting.ends_with("none");
            if same_codec || plain {
                compare_with(setup, codec, (peer.name(), &setting), results);
            }
        }
    }
}

fn compare_with(setup: &Setup, codec: &str, peer: (&str, &str), results: &mut Results) {
    for stripes in STRIPES {
        let own = own_setting(codec, *stripes);
        for (step, target) in [("backup", "peer-backup"), ("restore", "peer-restore")] {
            let speed = |results: &Results, name: &str, setting: &str| {
                results.median((step, name, setting), |run| run.cost.wall_s).map(|wall_s| 1.0 / wall_s.max(1e-9))
            };
            let ours = speed(results, pagehaul::NAME, &own);
            let theirs = speed(results, peer.0, peer.1);
            let limit = results.limit((step, pagehaul::NAME, &own));
            let what = format!("{step}: {own}, {} encoders / {} {}", setup.cores, peer.0, peer.1);
            results.compare(target, what, ours, theirs, limit);
        }
    }
    let own = own_setting(codec, STRIPES[0]);
    let stored = |results: &Results, name: &str, setting: &str| {
        results.median(("backup", name, setting), |run| run.stored_bytes as f64)
    };
    let (theirs, ours) = (stored(results, peer.0, peer.1), stored(results, pagehaul::NAME, &own));
    results.compare("peer-size", format!("size: {} {} / {own}", peer.0, peer.1), theirs, ours, String::new());
}
