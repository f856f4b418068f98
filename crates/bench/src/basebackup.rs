//! How pg_basebackup is called, and how a person gets a cluster back from what it wrote.

use std::path::Path;

use pagehaul_engine::error::Result;

use crate::measure::run_quietly;
use crate::results::Run;
use crate::setup::{Setup, tree_size};

/// The name of the contestant.
pub(crate) const NAME: &str = "pg_basebackup";

/// One setting.
#[derive(Clone, Debug)]
pub(crate) struct BaseBackup {
    /// Plain files instead of a tar archive.
    pub(crate) is_plain: bool,
    /// Of `--compress`: none, server-zstd:1, client-lz4:1, ...
    pub(crate) compress: &'static str,
}

impl BaseBackup {
    /// As it stands in the tables.
    pub(crate) fn setting(&self) -> String {
        format!("{} {}", if self.is_plain { "plain" } else { "tar" }, self.compress)
    }

    /// A backup into an empty directory, WAL included, synced (the tool's default).
    ///
    /// # Errors
    /// `Configuration` with its words.
    pub(crate) fn backup(&self, setup: &Setup) -> Result<Run> {
        let place = setup.empty_place("basebackup")?;
        let mut command = setup.cluster.tool("pg_basebackup", &setup.work);
        command.args(["--checkpoint=fast", "-D"]).arg(&place);
        if self.is_plain {
            command.args(["-Fp", "-X", "stream"]);
        } else {
            command.args(["-Ft", "-X", "fetch", &format!("--compress={}", self.compress)]);
        }
        let (cost, _) = setup.stopwatch.run(&mut command)?;
        Ok(Run { step: "backup", cost, stored_bytes: tree_size(&place).0, ..self.run(setup) })
    }

    /// The program that unpacks it; None where `tar` alone does.
    fn unpacker(&self) -> Option<(&'static str, &'static str)> {
        let kinds = [("zstd", ("zstd", "zst")), ("lz4", ("lz4", "lz4")), ("gzip", ("gzip", "gz"))];
        kinds.into_iter().find(|(kind, _)| self.compress.contains(kind)).map(|(_, unpacker)| unpacker)
    }

    /// Whether the program that unpacks it is installed.
    pub(crate) fn can_restore(&self, setup: &Setup) -> bool {
        self.unpacker().is_none_or(|(program, _)| {
            run_quietly(setup.owner().command(program, &setup.work).arg("--version")).is_ok()
        })
    }

    /// Unpacks it, or copies plain files, and syncs the file system.
    ///
    /// # Errors
    /// `Configuration` with what the commands said.
    pub(crate) fn restore(&self, setup: &Setup, target: &Path) -> Result<Run> {
        // The directories are arguments, so that the shell does not read them.
        let script = match self.unpacker() {
            _ if self.is_plain => "cp -a \"$0/.\" \"$1\"".to_owned(),
            Some((program, ending)) => format!("{program} -dc \"$0/base.tar.{ending}\" | tar x -C \"$1\""),
            None => "tar xf \"$0/base.tar\" -C \"$1\"".to_owned(),
        };
        let script = format!("set -e -o pipefail; {script}; sync -f \"$1\"");
        let mut command = setup.owner().command("bash", &setup.work);
        command.args(["-c", &script]).arg(setup.work.join("basebackup")).arg(target);
        let (cost, _) = setup.stopwatch.run(&mut command)?;
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
}
