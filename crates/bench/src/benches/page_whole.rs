//! Whole backups and restores of the cluster with the databases of `page`: to the disk, and to a device of 200 MB/s.

use pagehaul_engine::codec::CodecSpec;
use pagehaul_engine::error::Result;
use pagehaul_tune::contestants::stopwatch::Cost;
use pagehaul_tune::contestants::{BaseBackup, Contestant as Peer, tree_bytes};

use super::peers::{Contestant, backrests};
use super::{nothing_to_run, on_all_cores};
use crate::page::databases;
use crate::page::options::PageOptions;
use crate::pagehaul;
use crate::results::{Results, Run};
use crate::setup::Setup;

const CODECS: &[&str] = &["page:1", "page:2", "zstd:1", "zstd:3"];
/// pgBackRest's, with a process a core.
const BACKREST: &[(&str, u32)] = &[("lz4", 1), ("zst", 1), ("zst", 3)];
const BASEBACKUP: &[&str] = &["server-lz4:1", "server-zstd:1", "server-zstd:3"];
/// pagehaul's own throttle, and the same for a pipe.
const DEVICE: &str = "throttle:write=200MB/s,read=200MB/s";
const DEVICE_BYTES_PER_S: u64 = 200_000_000;
const BEHIND: &str = "device 200 MB/s";
/// The archive behind the slow pipe, in the work directory.
const ARCHIVE: &str = "basebackup.tar.zst";

/// Runs everything; gives what the README says of the data.
///
/// # Errors
/// What keeps the bench from running.
pub(super) fn run(options: &PageOptions, results: &mut Results) -> Result<String> {
    let cluster = databases::make(options, &databases::wanted(options)?)?;
    let setup = Setup::on(cluster, &options.bench)?;
    let mut contestants: Vec<Contestant> = own_codecs(results)
        .into_iter()
        .map(|codec| Contestant::Pagehaul { setting: codec.to_owned(), flags: on_all_cores(setup.cores, codec) })
        .collect();
    let all_cores = format!("process-max {}", setup.cores);
    contestants.extend(
        backrests(&setup, BACKREST, results)
            .into_iter()
            .filter(|peer| matches!(peer, Contestant::Peer(Peer::BackRest(peer)) if peer.process_max == setup.cores)),
    );
    contestants.extend(BASEBACKUP.iter().map(|compress| {
        Contestant::Peer(Peer::BaseBackup(BaseBackup { is_plain: false, compress: (*compress).to_owned() }))
    }));
    contestants.retain(|contestant| setup.wanted(contestant.name(), &contestant.setting()));
    if contestants.is_empty() {
        return Err(nothing_to_run());
    }
    for repetition in 1..=options.bench.repeat {
        for contestant in &contestants {
            contestant.round(&setup, repetition, results)?;
            behind_device(&setup, contestant, repetition, results)?;
        }
    }
    let note = format!(
        "The whole cluster. pagehaul with one encoder a core, pgBackRest with {all_cores}, pg_basebackup --checkpoint=fast -Ft -X fetch. \
         `{BEHIND}` is pagehaul's own throttle ({DEVICE}); for pg_basebackup a pipe of that speed, without a manifest (the server's compression has none there), into one file that is synced, and \
         back through `zstd -dc | tar x`. pgBackRest writes its repository itself and has no limit for it: it is left out there.\n"
    );
    results.sections.insert(0, ("Settings".to_owned(), note));
    Ok(setup.data_text())
}

/// Those that this pagehaul has; the others are noted.
fn own_codecs(results: &mut Results) -> Vec<&'static str> {
    let mut codecs = Vec::new();
    for codec in CODECS {
        match codec.parse::<CodecSpec>() {
            Ok(_) => codecs.push(*codec),
            Err(error) => results.failures.push(format!("{codec} was left out: {}", error.message())),
        }
    }
    codecs
}

/// One contestant with its backup behind the slow device.
fn behind_device(setup: &Setup, contestant: &Contestant, repetition: u32, results: &mut Results) -> Result<()> {
    let setting = format!("{}, {BEHIND}", contestant.setting());
    let (place, target) = (setup.no_place("repo")?, setup.empty_place("restored")?);
    let own_repo = format!("{DEVICE}:{}", place.display());
    let backup = match contestant {
        Contestant::Pagehaul { flags, .. } => pagehaul::backup(setup, &own_repo, flags),
        Contestant::Peer(Peer::BaseBackup(peer)) if peer.compress.contains("zstd") => {
            piped_backup(setup, &peer.compress)
        }
        Contestant::Peer(_) => return Ok(()),
    };
    let name = contestant.name();
    let named = |step, run: Result<Run>| {
        let (contestant, setting) = (name.to_owned(), setting.clone());
        run.map(|run| Run { step, contestant, setting, repetition, ..run })
    };
    let worked = backup.is_ok();
    results.add_or_note(&format!("{name} {setting}, backup"), named("backup", backup))?;
    if worked {
        let restore = match contestant {
            Contestant::Pagehaul { .. } => pagehaul::restore(setup, &own_repo, &target, &[]),
            Contestant::Peer(_) => piped_restore(setup, &target),
        };
        results.add_or_note(&format!("{name} {setting}, restore"), named("restore", restore))?;
    }
    for place in ["repo", "restored"] {
        setup.no_place(place)?;
    }
    Ok(())
}

/// pg_basebackup to a pipe of limited speed.
fn piped_backup(setup: &Setup, compress: &str) -> Result<Run> {
    let directory = setup.empty_place("repo")?;
    // To a pipe the server's compression goes with no manifest.
    let script = "set -e -o pipefail; \"$0\" --checkpoint=fast --no-manifest -Ft -X fetch --compress=\"$1\" -D - | \"$2\" limited --rate \"$3\" --to \"$4\"; sync -f \"$4\"";
    let mut command = setup.owner().command("bash", &setup.work);
    let server = &setup.server;
    command.env("PGHOST", &server.host).env("PGPORT", server.port.to_string()).env("PGUSER", &server.user);
    command.args(["-c", script]);
    command.arg(server.bin_directory.join(BaseBackup::NAME)).arg(compress).arg(&setup.own_program);
    command.arg(DEVICE_BYTES_PER_S.to_string()).arg(directory.join(ARCHIVE));
    let (cost, _) = setup.stopwatch.run(&mut command)?;
    Ok(piped_run(setup, cost, tree_bytes(&directory)))
}

/// The archive through a pipe of limited speed into an empty directory.
fn piped_restore(setup: &Setup, target: &std::path::Path) -> Result<Run> {
    let script =
        "set -e -o pipefail; \"$0\" limited --rate \"$1\" --from \"$2\" | zstd -dc | tar x -C \"$3\"; sync -f \"$3\"";
    let mut command = setup.owner().command("bash", &setup.work);
    command.args(["-c", script]).arg(&setup.own_program).arg(DEVICE_BYTES_PER_S.to_string());
    command.arg(setup.work.join("repo").join(ARCHIVE)).arg(target);
    let (cost, _) = setup.stopwatch.run(&mut command)?;
    Ok(piped_run(setup, cost, 0))
}

fn piped_run(setup: &Setup, cost: Cost, stored_bytes: u64) -> Run {
    Run {
        cost,
        stored_bytes,
        source_bytes: setup.files.bytes,
        file_count: setup.files.files.len() as u64,
        ..Run::default()
    }
}
