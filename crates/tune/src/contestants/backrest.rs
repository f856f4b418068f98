//! How pgBackRest is called: a stanza and a configuration of its own in the work directory.
//!
//! Settings are the best a user of a distribution's package can choose: bundles, a fast checkpoint, several processes.
//! Archiving is switched off, so its repository holds no WAL, while pagehaul and pg_basebackup store what their backups
//! need.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use pagehaul_engine::error::{Error, ErrorKind, Result};

use super::stopwatch::{Cost, run_quietly};
use super::{BackupCost, Place, make_private, tree_bytes};

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackRest {
    /// `zst`, `lz4` or `gz`.
    pub compress_type: String,
    /// Level in that codec's numbers.
    pub level: u32,
    /// Processes.
    pub process_max: u16,
}

const STANZA: &str = "main";
/// Its place in the work directory.
const DIRECTORY: &str = "backrest";
const CONFIG: &str = "pgbackrest.conf";

impl BackRest {
    /// The name of the contestant.
    pub const NAME: &str = "pgBackRest";

    /// Its default, and its fastest on a machine of `cores`.
    pub fn usual(cores: u16) -> Vec<Self> {
        let with = |compress_type: &str, level, process_max| BackRest {
            compress_type: compress_type.to_owned(),
            level,
            process_max,
        };
        vec![with("gz", 6, 1), with("lz4", 1, cores), with("zst", 1, cores), with("zst", 3, cores)]
    }

    /// As it stands in the tables.
    pub fn setting(&self) -> String {
        format!("{}:{} process-max {}", self.compress_type, self.level, self.process_max)
    }

    /// A full backup into a fresh repository.
    ///
    /// # Errors
    /// `Configuration` with its words.
    pub fn backup(&self, place: &Place<'_>) -> Result<BackupCost> {
        let directory = place.empty_directory(DIRECTORY)?;
        self.write_config(place, &directory)?;
        run_quietly(self.command(place).arg("stanza-create"))?;
        let (cost, _) = place.stopwatch.run(self.command(place).args(["--type=full", "backup"]))?;
        Ok(BackupCost { cost, stored_bytes: tree_bytes(&directory.join("repo").join("backup")) })
    }

    /// A restore of it into an empty directory.
    ///
    /// # Errors
    /// `Configuration` with its words.
    pub fn restore(&self, place: &Place<'_>, target: &Path) -> Result<Cost> {
        let to = format!("--pg1-path={}", target.display());
        let mut command = self.command(place);
        command.args([&to, "--type=none"]);
        if !place.tablespaces()?.is_empty() {
            // Never into their own places, which are in use.
            let beside = format!("{}-tablespaces", target.display());
            command.arg(format!("--tablespace-map-all={beside}"));
        }
        Ok(place.stopwatch.run(command.arg("restore"))?.0)
    }

    /// The commands, for people.
    pub fn commands(&self) -> Vec<String> {
        let flags = format!(
            "--compress-type={} --compress-level={} --process-max={}",
            self.compress_type, self.level, self.process_max
        );
        vec![
            format!("pgbackrest --stanza={STANZA} {flags} --repo1-bundle --start-fast --type=full backup"),
            format!(
                "pgbackrest --stanza={STANZA} --process-max={} --pg1-path=TARGET --type=none restore",
                self.process_max
            ),
        ]
    }

    fn command(&self, place: &Place<'_>) -> std::process::Command {
        let mut command = place.command("pgbackrest");
        let config = place.work.join(DIRECTORY).join(CONFIG);
        command.arg(format!("--config={}", config.display())).arg(format!("--stanza={STANZA}"));
        command
    }

    fn write_config(&self, place: &Place<'_>, directory: &Path) -> Result<PathBuf> {
        let Some(at) = directory.to_str() else {
            return Err(Error::new(ErrorKind::Usage, "write pgBackRest's configuration", "the path is not UTF-8"));
        };
        let server = place.server;
        // A host that is no socket directory would mean "over SSH" to it; the data directory is here.
        let socket =
            if server.host.starts_with('/') { format!("pg1-socket-path={}\n", server.host) } else { String::new() };
        let text = format!(
            "[global]\nrepo1-path={at}/repo\nrepo1-retention-full=1\nrepo1-bundle=y\n\
             log-path={at}/log\nlock-path={at}/lock\nspool-path={at}/spool\n\
             log-level-console=warn\nlog-level-file=off\n\
             compress-type={}\ncompress-level={}\nprocess-max={}\nstart-fast=y\narchive-check=n\narchive-async=n\n\
             [{STANZA}]\npg1-path={}\npg1-port={}\n{socket}pg1-user={}\n",
            self.compress_type,
            self.level,
            self.process_max,
            server.pgdata.display(),
            server.port,
            server.user
        );
        for name in ["repo", "log", "lock", "spool"] {
            make_private(&directory.join(name), place.owner)?;
        }
        let config = directory.join(CONFIG);
        let failed = |cause| Error::new(ErrorKind::Target, format!("write {}", config.display()), cause);
        std::fs::write(&config, text).map_err(failed)?;
        if let Some((user, group)) = place.owner {
            chown(&config, Some(user), Some(group)).map_err(failed)?;
        }
        Ok(config)
    }
}
