//! How pgBackRest is called: a stanza and a configuration of its own in the work directory.
//!
//! Settings are the best a user of the distribution's package can choose: bundles, a fast checkpoint, several
//! processes. Archiving is switched off, so its repository holds no WAL, while pagehaul and pg_basebackup store what
//! their backups need.

use std::path::{Path, PathBuf};

use pagehaul_engine::error::{Error, ErrorKind, Result};

use crate::measure::run_quietly;
use crate::results::Run;
use crate::setup::{Setup, tree_size, unwritable};

/// The name of the contestant.
pub(crate) const NAME: &str = "pgBackRest";
const STANZA: &str = "main";

/// One setting.
#[derive(Clone, Debug)]
pub(crate) struct BackRest {
    /// `zst` or `lz4`.
    pub(crate) compress_type: &'static str,
    pub(crate) level: u32,
    pub(crate) process_max: u16,
}

impl BackRest {
    /// As it stands in the tables.
    pub(crate) fn setting(&self) -> String {
        format!("{}:{} process-max {}", self.compress_type, self.level, self.process_max)
    }

    /// Whether it is installed.
    pub(crate) fn is_there(setup: &Setup) -> bool {
        run_quietly(setup.owner().command("pgbackrest", &setup.work).arg("version")).is_ok()
    }

    /// A full backup into a fresh repository.
    ///
    /// # Errors
    /// `Configuration` with its words.
    pub(crate) fn backup(&self, setup: &Setup) -> Result<Run> {
        let place = setup.empty_place("backrest")?;
        let config = self.write_config(setup, &place)?;
        run_quietly(self.command(setup, &config).arg("stanza-create"))?;
        let (cost, _) = setup.stopwatch.run(self.command(setup, &config).args(["--type=full", "backup"]))?;
        let stored_bytes = tree_size(&place.join("repo").join("backup")).0;
        Ok(Run { step: "backup", cost, stored_bytes, ..self.run(setup) })
    }

    /// A restore of it into an empty directory.
    ///
    /// # Errors
    /// `Configuration` with its words.
    pub(crate) fn restore(&self, setup: &Setup, target: &Path) -> Result<Run> {
        let config = setup.work.join("backrest").join("pgbackrest.conf");
        let to = format!("--pg1-path={}", target.display());
        let (cost, _) = setup.stopwatch.run(self.command(setup, &config).args([&to, "--type=none", "restore"]))?;
        Ok(Run { step: "restore", cost, ..self.run(setup) })
    }

    fn run(&self, setup: &Setup) -> Run {
        Run {
            contestant: NAME.to_owned(),
            setting: self.setting(),
            source_bytes: setup.files.bytes,
            file_count: setup.files.files.len() as u64,
            ..Run::default()
        }
    }

    fn command(&self, setup: &Setup, config: &Path) -> std::process::Command {
        let mut command = setup.owner().command("pgbackrest", &setup.work);
        command.arg(format!("--config={}", config.display())).arg(format!("--stanza={STANZA}"));
        command
    }

    fn write_config(&self, setup: &Setup, place: &Path) -> Result<PathBuf> {
        let Some(place_text) = place.to_str() else {
            return Err(Error::new(ErrorKind::Usage, "write pgBackRest's configuration", "the path is not UTF-8"));
        };
        let cluster = &setup.cluster;
        let text = format!(
            "[global]\nrepo1-path={place_text}/repo\nrepo1-retention-full=1\nrepo1-bundle=y\n\
             log-path={place_text}/log\nlock-path={place_text}/lock\nspool-path={place_text}/spool\n\
             log-level-console=warn\nlog-level-file=off\n\
             compress-type={}\ncompress-level={}\nprocess-max={}\nstart-fast=y\narchive-check=n\narchive-async=n\n\
             [{STANZA}]\npg1-path={}\npg1-port={}\npg1-socket-path={}\npg1-user=postgres\n",
            self.compress_type,
            self.level,
            self.process_max,
            cluster.pgdata.display(),
            cluster.port,
            cluster.socket_directory.display()
        );
        for name in ["repo", "log", "lock", "spool"] {
            setup.owner().create_directory(&place.join(name))?;
        }
        let config = place.join("pgbackrest.conf");
        std::fs::write(&config, text).map_err(|cause| unwritable(&config, cause))?;
        setup.owner().take(&config)?;
        Ok(config)
    }
}
