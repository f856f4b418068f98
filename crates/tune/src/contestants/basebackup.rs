//! How pg_basebackup is called, and how a person gets a cluster back from what it wrote.

use std::path::Path;

use pagehaul_engine::error::{Error, ErrorKind, Result};

use super::stopwatch::{Cost, run_quietly};
use super::{BackupCost, Place, tree_bytes};

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseBackup {
    /// Plain files instead of a tar archive.
    pub is_plain: bool,
    /// Of `--compress`: none, server-zstd:1, client-lz4:1, ...
    pub compress: String,
}

/// The archive's place in the work directory.
const DIRECTORY: &str = "basebackup";

impl BaseBackup {
    /// The name of the contestant.
    pub const NAME: &str = "pg_basebackup";

    /// Its default, and its fastest compressions.
    pub fn usual() -> Vec<Self> {
        let tar = |compress: &str| BaseBackup { is_plain: false, compress: compress.to_owned() };
        let plain = BaseBackup { is_plain: true, compress: "none".to_owned() };
        vec![plain, tar("server-lz4:1"), tar("server-zstd:1"), tar("client-zstd:1")]
    }

    /// The levels of a published comparison of its server-side compression.
    pub fn published_levels() -> Vec<Self> {
        let levels: [(&str, [u32; 4]); 3] = [("gzip", [1, 3, 5, 7]), ("lz4", [1, 3, 5, 7]), ("zstd", [1, 5, 9, 13])];
        let of_method = |(method, levels): (&str, [u32; 4])| {
            levels.map(|level| BaseBackup { is_plain: false, compress: format!("server-{method}:{level}") })
        };
        levels.into_iter().flat_map(of_method).collect()
    }

    /// As it stands in the tables.
    pub fn setting(&self) -> String {
        format!("{} {}", if self.is_plain { "plain" } else { "tar" }, self.compress)
    }

    /// A backup into an empty directory, WAL included, synced (the tool's default).
    ///
    /// # Errors
    /// `Configuration` with its words.
    pub fn backup(&self, place: &Place<'_>) -> Result<BackupCost> {
        let directory = place.empty_directory(DIRECTORY)?;
        let mut command = place.postgres_tool(Self::NAME);
        command.args(self.flags()).arg("-D").arg(&directory);
        if self.is_plain {
            // Plain tablespaces would go to their own places, which are in use; an equals sign is escaped.
            for (old, number) in place.tablespaces()?.iter().zip(0..) {
                let old = old.display().to_string().replace('=', "\\=");
                let new = place.empty_directory(&format!("{DIRECTORY}-tablespace-{number}"))?.display().to_string();
                command.arg("--tablespace-mapping").arg(format!("{old}={}", new.replace('=', "\\=")));
            }
        }
        let (cost, _) = place.stopwatch.run(&mut command)?;
        let tablespaces = place.tablespaces()?.len();
        let beside =
            (0..tablespaces).map(|number| tree_bytes(&place.work.join(format!("{DIRECTORY}-tablespace-{number}"))));
        Ok(BackupCost { cost, stored_bytes: tree_bytes(&directory) + beside.sum::<u64>() })
    }

    fn flags(&self) -> Vec<String> {
        let words = if self.is_plain {
            "-Fp -X stream".to_owned()
        } else {
            format!("-Ft -X fetch --compress={}", self.compress)
        };
        std::iter::once("--checkpoint=fast").chain(words.split(' ')).map(str::to_owned).collect()
    }

    /// The commands, for people.
    pub fn commands(&self) -> Vec<String> {
        vec![
            format!("{} {} -D DIR", Self::NAME, self.flags().join(" ")),
            self.restore_script().replace("$0", "DIR").replace("$1", "TARGET"),
        ]
    }

    /// The program that unpacks it; None where `tar` alone does.
    fn unpacker(&self) -> Option<(&'static str, &'static str)> {
        let kinds = [("zstd", ("zstd", "zst")), ("lz4", ("lz4", "lz4")), ("gzip", ("gzip", "gz"))];
        kinds.into_iter().find(|(kind, _)| self.compress.contains(kind)).map(|(_, unpacker)| unpacker)
    }

    /// Unpacks it, or copies plain files, and syncs the file system.
    ///
    /// # Errors
    /// `Configuration` with what the commands said, or if the program that unpacks it is not installed.
    pub fn restore(&self, place: &Place<'_>, target: &Path) -> Result<Cost> {
        if let Some((program, _)) = self.unpacker()
            && run_quietly(place.command(program).arg("--version")).is_err()
        {
            return Err(Error::new(
                ErrorKind::Configuration,
                "unpack the archive",
                format!("{program} is not installed"),
            ));
        }
        let mut command = place.command("bash");
        // The directories are arguments, so that the shell does not read them.
        command.args(["-c", &self.restore_script()]).arg(place.work.join(DIRECTORY)).arg(target);
        Ok(place.stopwatch.run(&mut command)?.0)
    }

    fn restore_script(&self) -> String {
        // An archive a tablespace, beside base.tar.
        let archives = |ending: &str, unpack: &str| {
            format!(
                "for a in \"$0\"/*.tar{ending}; do n=$(basename \"$a\" .tar{ending}); \
                 if [ \"$n\" = base ]; then to=\"$1\"; else to=\"$1-$n\"; mkdir \"$to\"; fi; {unpack}; done"
            )
        };
        let script = match self.unpacker() {
            _ if self.is_plain => "cp -a \"$0/.\" \"$1\"; for t in \"$0\"-tablespace-*; do [ -d \"$t\" ] || continue; \
                                   cp -a \"$t\" \"$1-${t##*-}\"; done"
                .to_owned(),
            Some((program, ending)) => {
                archives(&format!(".{ending}"), &format!("{program} -dc \"$a\" | tar x -C \"$to\""))
            }
            None => archives("", "tar xf \"$a\" -C \"$to\""),
        };
        format!("set -e -o pipefail; {script}; sync -f \"$1\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_levels_are_twelve() {
        let levels = BaseBackup::published_levels();
        assert_eq!(levels.len(), 12);
        assert_eq!(levels[11].setting(), "tar server-zstd:13");
        assert_eq!(
            levels[0].commands()[0],
            "pg_basebackup --checkpoint=fast -Ft -X fetch --compress=server-gzip:1 -D DIR"
        );
        assert!(levels[4].commands()[1].contains("lz4 -dc \"$a\" | tar x -C \"$to\""), "{:?}", levels[4].commands());
    }
}
