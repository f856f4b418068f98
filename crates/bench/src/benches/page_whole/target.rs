//! One backup and one restore of a contestant, to the disk or behind the device.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_tune::contestants::stopwatch::Cost;
use pagehaul_tune::contestants::{BaseBackup, Contestant as Peer, Place, tree_bytes};

use crate::benches::peers::Contestant;
use crate::cluster::remove_tree;
use crate::page::device::{self, BYTES_PER_S};
use crate::pagehaul;
use crate::results::{Results, Run};
use crate::setup::Setup;

/// pagehaul's own throttle, where there is no slow device.
const THROTTLE: &str = "throttle:write=200MB/s,read=200MB/s";
/// The archive behind the slow pipe.
const ARCHIVE: &str = "basebackup.tar.zst";
/// What contestants leave beside each other.
const PLACES: &[&str] = &["repo", "backrest", "basebackup"];

/// What stands between a contestant and its repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Plain,
    /// A device of 200 MB/s, for everybody.
    Device,
    /// No such device: pagehaul's own throttle, and a slow pipe for pg_basebackup.
    Throttled,
}

/// Where backups go.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) way: Way,
    pub(super) repositories: PathBuf,
    /// The restored cluster.
    pub(super) restored: PathBuf,
}

impl Target {
    /// Title of its section.
    pub(super) fn title(&self) -> &'static str {
        match self.way {
            Way::Plain => "To the disk",
            Way::Device | Way::Throttled => "To a device of 200 MB/s",
        }
    }

    /// How a setting stands in raw.csv.
    pub(super) fn label(&self, database: &str, setting: &str) -> String {
        let behind = if self.way == Way::Plain { "" } else { ", device 200 MB/s" };
        format!("{database}: {setting}{behind}")
    }

    /// Backs up, restores, and cleans up after the contestant; what does not work is noted.
    pub(super) fn round(
        &self,
        setup: &Setup,
        database: &str,
        contestant: &Contestant,
        repetition: u32,
        results: &mut Results,
    ) -> Result<()> {
        let (name, setting) = (contestant.name(), self.label(database, &contestant.setting()));
        // What a run that was killed left would count as the first contestant's.
        self.clear()?;
        touch_memory(setup)?;
        let Some(backup) = self.backup(setup, contestant) else { return Ok(()) };
        let ours = |step, run: Result<Run>| {
            let (contestant, setting) = (name.to_owned(), setting.clone());
            run.map(|run| Run { step, contestant, setting, repetition, ..run })
        };
        let worked = backup.is_ok();
        results.add_or_note(&format!("{name} {setting}, backup"), ours("backup", backup))?;
        if worked {
            let restored = self.restore(setup, contestant);
            let worked = restored.is_ok();
            results.add_or_note(&format!("{name} {setting}, restore"), ours("restore", restored))?;
            if worked && repetition == 1 && name == pagehaul::NAME {
                // By PostgreSQL's own tool, with the manifest that pagehaul wrote.
                if let Err(error) = pagehaul::verify(setup, &self.restored) {
                    results.failures.push(format!("{setting} came back wrong: {}", error.message()));
                }
            }
        }
        self.clear()
    }

    /// Removes what contestants make.
    fn clear(&self) -> Result<()> {
        for place in PLACES {
            remove_tree(&self.repositories.join(place))?;
        }
        remove_tree(&self.restored)
    }

    /// None for a contestant that cannot run this way.
    fn backup(&self, setup: &Setup, contestant: &Contestant) -> Option<Result<Run>> {
        match (contestant, self.way) {
            (Contestant::Pagehaul { flags, .. }, _) => Some(pagehaul::backup(setup, &self.own_repository(), flags)),
            (Contestant::Peer(Peer::BaseBackup(peer)), Way::Throttled) if peer.compress.contains("zstd") => {
                Some(self.piped_backup(setup, &peer.compress))
            }
            (Contestant::Peer(_), Way::Throttled) => None,
            (Contestant::Peer(peer), _) => {
                let done = peer.backup(&self.place(setup));
                Some(done.map(|done| of_peer(setup, done.cost, done.stored_bytes)))
            }
        }
    }

    fn restore(&self, setup: &Setup, contestant: &Contestant) -> Result<Run> {
        setup.empty_directory(&self.restored)?;
        touch_memory(setup)?;
        if self.way == Way::Device {
            rustix::fs::sync();
            device::forget(&self.repositories)?;
        }
        match (contestant, self.way) {
            (Contestant::Pagehaul { .. }, _) => pagehaul::restore(setup, &self.own_repository(), &self.restored, &[]),
            (Contestant::Peer(_), Way::Throttled) => self.piped_restore(setup),
            (Contestant::Peer(peer), _) => {
                peer.restore(&self.place(setup), &self.restored).map(|cost| of_peer(setup, cost, 0))
            }
        }
    }

    fn own_repository(&self) -> String {
        let path = self.repositories.join("repo").display().to_string();
        if self.way == Way::Throttled { format!("{THROTTLE}:{path}") } else { path }
    }

    fn place<'a>(&'a self, setup: &'a Setup) -> Place<'a> {
        Place { work: &self.repositories, ..setup.place() }
    }

    /// pg_basebackup to a pipe of limited speed.
    fn piped_backup(&self, setup: &Setup, compress: &str) -> Result<Run> {
        let directory = self.repositories.join("basebackup");
        setup.empty_directory(&directory)?;
        // To a pipe the server's compression goes with no manifest.
        let script = "set -e -o pipefail; \"$0\" --checkpoint=fast --no-manifest -Ft -X fetch --compress=\"$1\" -D - | \"$2\" limited --rate \"$3\" --to \"$4\"; sync -f \"$4\"";
        let mut command = setup.owner().command("bash", &setup.work);
        let server = &setup.server;
        command.env("PGHOST", &server.host).env("PGPORT", server.port.to_string()).env("PGUSER", &server.user);
        command.args(["-c", script]).arg(server.bin_directory.join(BaseBackup::NAME)).arg(compress);
        command.arg(&setup.own_program).arg(BYTES_PER_S.to_string()).arg(directory.join(ARCHIVE));
        let (cost, _) = setup.stopwatch.run(&mut command)?;
        Ok(of_peer(setup, cost, tree_bytes(&directory)))
    }

    /// The archive through a pipe of limited speed into an empty directory.
    fn piped_restore(&self, setup: &Setup) -> Result<Run> {
        let script = "set -e -o pipefail; \"$0\" limited --rate \"$1\" --from \"$2\" | zstd -dc | tar x -C \"$3\"; sync -f \"$3\"";
        let mut command = setup.owner().command("bash", &setup.work);
        command.args(["-c", script]).arg(&setup.own_program).arg(BYTES_PER_S.to_string());
        command.arg(self.repositories.join("basebackup").join(ARCHIVE)).arg(&self.restored);
        let (cost, _) = setup.stopwatch.run(&mut command)?;
        Ok(of_peer(setup, cost, 0))
    }
}

/// What a run writes into memory must not be the first to touch it: a virtual machine gives what is free back to its host, and
/// then waits for it, for a second in each GB. So as much as the cluster has, and some, is written and removed again.
fn touch_memory(setup: &Setup) -> Result<()> {
    let path = setup.work.join("touched");
    let zeros = vec![0; 1 << 20];
    let mut left = setup.files.bytes * 9 / 8;
    let written = File::create(&path).and_then(|mut file| {
        while left > 0 {
            let piece = left.min(zeros.len() as u64);
            file.write_all(&zeros[..piece as usize])?;
            left -= piece;
        }
        Ok(())
    });
    let removed = std::fs::remove_file(&path);
    written.and(removed).map_err(|cause| {
        Error::new(ErrorKind::Configuration, format!("write {} and remove it", path.display()), cause.to_string())
    })
}

fn of_peer(setup: &Setup, cost: Cost, stored_bytes: u64) -> Run {
    let (source_bytes, file_count) = (setup.files.bytes, setup.files.files.len() as u64);
    Run { cost, stored_bytes, source_bytes, file_count, ..Run::default() }
}
