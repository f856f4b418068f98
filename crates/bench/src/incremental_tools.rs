//! Who makes a full backup and an incremental one on top of it in the bench `incremental`, and brings both back.

use std::path::{Path, PathBuf};

use pagehaul_engine::error::Result;
use pagehaul_tune::contestants::stopwatch::{Cost, run_quietly};
use pagehaul_tune::contestants::tree_bytes;

use crate::pagehaul;
use crate::results::Run;
use crate::setup::{Setup, unwritable};

/// The codec of everybody who compresses.
pub(crate) const CODEC: &str = "zstd:1";
/// Names another pgBackRest than the one on the PATH: block incremental backups came with 2.46, after what many
/// distributions have.
pub(crate) const BACKREST: &str = "PAGEHAUL_BENCH_PGBACKREST";
/// The first version of PostgreSQL with WAL summaries.
pub(crate) const SUMMARIES_MAJOR: u32 = 17;

/// The pgBackRest that is measured.
pub(crate) fn backrest_program() -> String {
    std::env::var(BACKREST).unwrap_or_else(|_| "pgbackrest".to_owned())
}

/// One contestant; its repository is its own, so that all have their full backups at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contestant {
    pub(crate) name: &'static str,
    pub(crate) setting: &'static str,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Pagehaul { by_summaries: bool },
    BackRest { blocks: bool },
    BaseBackup { is_tar: bool },
}

/// Everybody; who needs WAL summaries first, so that the server makes them only for these.
pub(crate) fn all_contestants() -> Vec<Contestant> {
    let of = |name, setting, kind| Contestant { name, setting, kind };
    vec![
        of(pagehaul::NAME, "zstd:1 WAL summaries", Kind::Pagehaul { by_summaries: true }),
        of("pg_basebackup", "plain none", Kind::BaseBackup { is_tar: false }),
        of("pg_basebackup", "tar server-zstd:1", Kind::BaseBackup { is_tar: true }),
        of(pagehaul::NAME, "zstd:1 page checksums", Kind::Pagehaul { by_summaries: false }),
        of("pgBackRest", "zst:1 files", Kind::BackRest { blocks: false }),
        of("pgBackRest", "zst:1 blocks", Kind::BackRest { blocks: true }),
    ]
}

impl Contestant {
    /// Whether the server must make WAL summaries for it.
    pub(crate) fn needs_summaries(&self) -> bool {
        matches!(self.kind, Kind::Pagehaul { by_summaries: true } | Kind::BaseBackup { .. })
    }

    /// The name of its place in the work directory.
    pub(crate) fn place(&self) -> String {
        format!("{}-{}", self.name, self.setting).replace([' ', ':'], "-")
    }

    fn directory(&self, setup: &Setup) -> PathBuf {
        setup.work.join(self.place())
    }

    /// A full backup into a fresh place.
    ///
    /// # Errors
    /// `Configuration` with the tool's words.
    pub(crate) fn full(&self, setup: &Setup) -> Result<Run> {
        let directory = setup.empty_place(&self.place())?;
        match self.kind {
            Kind::Pagehaul { .. } => self.own_backup(setup, "full"),
            Kind::BackRest { blocks } => {
                self.write_backrest_config(setup, &directory, blocks)?;
                run_quietly(self.backrest(setup).arg("stanza-create"))?;
                self.backrest_backup(setup, "full")
            }
            Kind::BaseBackup { is_tar } => self.base_backup(setup, "full", is_tar, None),
        }
    }

    /// An incremental backup on top of it.
    ///
    /// # Errors
    /// `Configuration` with the tool's words.
    pub(crate) fn incremental(&self, setup: &Setup) -> Result<Run> {
        match self.kind {
            Kind::Pagehaul { .. } => self.own_backup(setup, "incr"),
            Kind::BackRest { .. } => self.backrest_backup(setup, "incr"),
            Kind::BaseBackup { is_tar } => {
                let manifest = self.directory(setup).join("full").join("backup_manifest");
                self.base_backup(setup, "incr", is_tar, Some(&manifest))
            }
        }
    }

    /// Both into an empty directory.
    ///
    /// # Errors
    /// `Configuration` with the tool's words.
    pub(crate) fn restore(&self, setup: &Setup, target: &Path) -> Result<Run> {
        let cost = match self.kind {
            Kind::Pagehaul { .. } => {
                let repo = self.directory(setup).join("repo");
                let run = pagehaul::restore(setup, &repo.to_string_lossy(), target, &[])?;
                return Ok(Run { setting: self.setting.to_owned(), ..run });
            }
            Kind::BackRest { .. } => {
                let to = format!("--pg1-path={}", target.display());
                setup.stopwatch.run(self.backrest(setup).args([&to, "--type=none", "restore"]))?.0
            }
            Kind::BaseBackup { is_tar: false } => {
                let (directory, mut command) = (self.directory(setup), setup.place().postgres_tool("pg_combinebackup"));
                command.arg(directory.join("full")).arg(directory.join("incr")).arg("-o").arg(target);
                setup.stopwatch.run(&mut command)?.0
            }
            Kind::BaseBackup { is_tar: true } => {
                let mut command = setup.place().command("bash");
                command.args(["-c", COMBINE_TAR]).arg(self.directory(setup)).arg(target);
                command.arg(setup.server.bin_directory.join("pg_combinebackup"));
                setup.stopwatch.run(&mut command)?.0
            }
        };
        Ok(self.run(setup, "restore", cost, 0))
    }

    fn own_backup(&self, setup: &Setup, step: &'static str) -> Result<Run> {
        let repo = self.directory(setup).join("repo");
        let before_bytes = tree_bytes(&repo);
        let flags = pagehaul::flags(&format!("--type {step} --compression {CODEC} --encoders {}", setup.cores));
        let run = pagehaul::backup(setup, &repo.to_string_lossy(), &flags)?;
        let stored_bytes = run.stored_bytes - before_bytes;
        Ok(Run { step, setting: self.setting.to_owned(), stored_bytes, ..run })
    }

    fn backrest(&self, setup: &Setup) -> std::process::Command {
        let mut command = setup.place().command(backrest_program());
        let config = self.directory(setup).join("pgbackrest.conf");
        command.arg(format!("--config={}", config.display())).arg("--stanza=main");
        command
    }

    fn backrest_backup(&self, setup: &Setup, step: &'static str) -> Result<Run> {
        let backups = self.directory(setup).join("repo").join("backup");
        let before_bytes = tree_bytes(&backups);
        let kind = format!("--type={step}");
        let (cost, _) = setup.stopwatch.run(self.backrest(setup).args([&kind, "backup"]))?;
        Ok(self.run(setup, step, cost, tree_bytes(&backups) - before_bytes))
    }

    fn write_backrest_config(&self, setup: &Setup, directory: &Path, blocks: bool) -> Result<()> {
        for name in ["repo", "log", "lock", "spool"] {
            setup.owner().create_directory(&directory.join(name))?;
        }
        let (at, server) = (directory.display(), &setup.server);
        let text = format!(
            "[global]\nrepo1-path={at}/repo\nrepo1-retention-full=1\nrepo1-bundle=y\n{}log-path={at}/log\n\
             lock-path={at}/lock\nspool-path={at}/spool\nlog-level-console=warn\nlog-level-file=off\n\
             compress-type=zst\ncompress-level=1\nprocess-max={}\nstart-fast=y\narchive-check=n\narchive-async=n\n\
             [main]\npg1-path={}\npg1-port={}\npg1-socket-path={}\npg1-user={}\n",
            if blocks { "repo1-block=y\n" } else { "" },
            setup.cores,
            server.pgdata.display(),
            server.port,
            server.host,
            server.user
        );
        let config = directory.join("pgbackrest.conf");
        std::fs::write(&config, text).map_err(|cause| unwritable(&config, cause))?;
        setup.owner().take(&config)
    }

    fn base_backup(&self, setup: &Setup, step: &'static str, is_tar: bool, prior: Option<&Path>) -> Result<Run> {
        let directory = self.directory(setup).join(step);
        let mut command = setup.place().postgres_tool("pg_basebackup");
        let form: &[&str] =
            if is_tar { &["-Ft", "-X", "fetch", "--compress=server-zstd:1"] } else { &["-Fp", "-X", "stream"] };
        command.arg("--checkpoint=fast").args(form).arg("-D").arg(&directory);
        if let Some(manifest) = prior {
            command.arg("--incremental").arg(manifest);
        }
        let (cost, _) = setup.stopwatch.run(&mut command)?;
        Ok(self.run(setup, step, cost, tree_bytes(&directory)))
    }

    fn run(&self, setup: &Setup, step: &'static str, cost: Cost, stored_bytes: u64) -> Run {
        Run {
            step,
            contestant: self.name.to_owned(),
            setting: self.setting.to_owned(),
            cost,
            source_bytes: setup.files.bytes,
            stored_bytes,
            file_count: setup.files.files.len() as u64,
            ..Run::default()
        }
    }
}

/// pg_combinebackup reads plain files only: $0 is the contestant's directory, $1 the target, $2 the program.
const COMBINE_TAR: &str = "set -e -o pipefail; cd \"$0\"; for s in full incr; do mkdir -m 700 \"$s-plain\"; \
     zstd -dc \"$s/base.tar.zst\" | tar x -C \"$s-plain\"; cp \"$s/backup_manifest\" \"$s-plain\"; done; \
     \"$2\" full-plain incr-plain -o \"$1\"";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contestant_has_a_place_and_those_with_summaries_come_first() {
        let all = all_contestants();
        let mut places: Vec<String> = all.iter().map(Contestant::place).collect();
        assert!(places.iter().all(|place| !place.contains([' ', ':', '/'])), "{places:?}");
        places.sort();
        places.dedup();
        assert_eq!(places.len(), all.len());
        assert!(all.is_sorted_by_key(|contestant| !contestant.needs_summaries()));
    }
}
