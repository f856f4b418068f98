//! Who archives and fetches WAL in the bench `wal`, and the command of each.

use std::path::{Path, PathBuf};

use pagehaul_engine::error::Result;
use pagehaul_tune::contestants::stopwatch::{Cost, run_quietly};

use crate::pagehaul;
use crate::results::Run;
use crate::setup::{Setup, unwritable};
use crate::wal_source::SEGMENT_BYTES;

/// The codec in which contestants meet at replay.
pub(crate) const REPLAY_CODEC: &str = "zstd:1";

/// Who archives and fetches, and how.
#[derive(Clone, Debug)]
pub(crate) struct Contestant {
    pub(crate) name: &'static str,
    pub(crate) setting: String,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Pagehaul {
        codec: &'static str,
        flags: &'static str,
    },
    BackRest {
        compress_type: &'static str,
        is_async: bool,
    },
    /// The program, which pushes and fetches ahead by itself.
    WalG {
        program: String,
    },
    /// Commands with DIR for the archive, and the suffix of its files.
    Copy {
        push: &'static str,
        get: &'static str,
    },
}

/// Names a WAL-G program, which no distribution has; without it WAL-G is left out.
pub(crate) const WALG: &str = "PAGEHAUL_BENCH_WALG";
const COPY_PUSH: &str = "test ! -f DIR/%f && cp %p DIR/.%f && sync DIR/.%f && mv DIR/.%f DIR/%f && sync DIR";
const COPY_GET: &str = "cp DIR/%f %p";
/// The disk's own speed: nothing is encoded, and nothing goes through the page cache.
const DIRECT_PUSH: &str = "test ! -f DIR/%f && dd if=%p of=DIR/.%f bs=2M oflag=direct conv=fdatasync status=none \
    && mv DIR/.%f DIR/%f && sync DIR";
const DIRECT_GET: &str = "dd if=DIR/%f of=%p bs=2M oflag=direct conv=fdatasync status=none";
const ZSTD_PUSH: &str =
    "test ! -f DIR/%f && zstd -q -1 -c %p > DIR/.%f && sync DIR/.%f && mv DIR/.%f DIR/%f && sync DIR";
const ZSTD_GET: &str = "test -f DIR/%f && zstd -q -d -c DIR/%f > %p";

/// Everybody.
pub(crate) fn all_contestants() -> Vec<Contestant> {
    let own = |codec: &'static str, flags: &'static str| Contestant {
        name: pagehaul::NAME,
        setting: format!("{codec} {}", if flags.is_empty() { "helper" } else { "alone" }),
        kind: Kind::Pagehaul { codec, flags },
    };
    let other = |compress_type: &'static str, is_async: bool| Contestant {
        name: "pgBackRest",
        setting: format!("{compress_type}:1 {}", if is_async { "async" } else { "sync" }),
        kind: Kind::BackRest { compress_type, is_async },
    };
    let copy = |setting: &str, push, get| Contestant {
        name: "copy",
        setting: setting.to_owned(),
        kind: Kind::Copy { push, get },
    };
    let wal_g = std::env::var(WALG).map(|program| Contestant {
        name: "WAL-G",
        setting: "lz4".to_owned(),
        kind: Kind::WalG { program },
    });
    let list = vec![
        own("lz4", ""),
        own("zstd:1", ""),
        own("zstd:1", "--no-helper"),
        other("lz4", true),
        other("zst", true),
        other("zst", false),
        copy("cp", COPY_PUSH, COPY_GET),
        copy("dd past the page cache", DIRECT_PUSH, DIRECT_GET),
        copy("zstd -1", ZSTD_PUSH, ZSTD_GET),
    ];
    list.into_iter().chain(wal_g).collect()
}

impl Contestant {
    /// Whether it is compared with `own`: at the same codec, and plain copies at every one.
    pub(crate) fn meets(&self, own: &Contestant) -> bool {
        match (&self.kind, &own.kind) {
            (Kind::BackRest { compress_type, .. }, Kind::Pagehaul { codec, .. }) => codec.starts_with(compress_type),
            (Kind::WalG { .. }, Kind::Pagehaul { codec, .. }) => *codec == "lz4",
            (Kind::Copy { .. }, Kind::Pagehaul { .. }) => true,
            _ => false,
        }
    }

    /// Whether a server replays with it.
    pub(crate) fn replays(&self) -> bool {
        match self.kind {
            Kind::Pagehaul { codec, .. } => codec == REPLAY_CODEC,
            Kind::BackRest { compress_type, is_async } => compress_type == "zst" && is_async,
            Kind::Copy { .. } | Kind::WalG { .. } => true,
        }
    }

    /// Where it archives to.
    pub(crate) fn archive(&self, setup: &Setup) -> PathBuf {
        setup.work.join("archive")
    }

    /// An empty archive for the server in `pgdata`.
    ///
    /// # Errors
    /// `Target` if it cannot be made, `Configuration` with the tool's words.
    pub(crate) fn make_archive(&self, setup: &Setup, pgdata: &Path) -> Result<PathBuf> {
        // Asynchronous processes of the round before have ended: the archiver waited for them.
        setup.empty_place("archive")?;
        if let Kind::BackRest { compress_type, is_async } = self.kind {
            let at = setup.empty_place("backrest")?;
            for name in ["log", "lock", "spool"] {
                setup.owner().create_directory(&at.join(name))?;
            }
            let config = at.join("pgbackrest.conf");
            std::fs::write(&config, backrest_config(setup, &at, pgdata, compress_type, is_async))
                .map_err(|cause| unwritable(&config, cause))?;
            setup.owner().take(&config)?;
            run_quietly(self.backrest(setup).args(["--no-online", "stanza-create"]))?;
        }
        if let Kind::Pagehaul { .. } = self.kind {
            let mut adopt = setup.owner().command(&setup.pagehaul, &setup.work);
            adopt.args(["wal", "adopt", "--repo"]).arg(self.archive(setup)).arg("--pgdata").arg(pgdata);
            run_quietly(&mut adopt)?;
        }
        Ok(self.archive(setup))
    }

    fn backrest(&self, setup: &Setup) -> std::process::Command {
        let mut command = setup.place().command("pgbackrest");
        command.arg(format!("--config={}", backrest_place(setup).display())).arg("--stanza=main");
        command
    }

    /// archive_command or restore_command of the server in `pgdata`.
    pub(crate) fn command(&self, setup: &Setup, pgdata: &Path, is_push: bool) -> String {
        let archive = self.archive(setup);
        match &self.kind {
            Kind::Pagehaul { codec, flags } => {
                let (program, repo) = (setup.pagehaul.display(), archive.display());
                if is_push {
                    format!(
                        "{program} wal push %p --repo {repo} --source main --compression {codec} {HELPER_ENDS} {flags}"
                    )
                } else {
                    format!("{program} wal get %f %p --repo {repo} --source main {HELPER_ENDS} {flags}")
                }
            }
            Kind::BackRest { .. } => {
                let verb = if is_push { "archive-push %p" } else { "archive-get %f %p" };
                let (config, pgdata) = (backrest_place(setup), pgdata.display());
                format!("pgbackrest --config={} --pg1-path={pgdata} --stanza=main {verb}", config.display())
            }
            Kind::WalG { program } => {
                let verb = if is_push { "wal-push %p" } else { "wal-fetch %f %p" };
                let (archive, pgdata) = (archive.display(), pgdata.display());
                format!(
                    "WALG_FILE_PREFIX={archive} WALG_COMPRESSION_METHOD=lz4 PGDATA={pgdata} WALG_LOG_LEVEL=NORMAL {program} {verb}"
                )
            }
            Kind::Copy { push, get } => {
                (if is_push { push } else { get }).replace("DIR", &archive.display().to_string())
            }
        }
    }

    /// What a series of commands came to.
    pub(crate) fn run(&self, step: &'static str, count: usize, cost: Cost, stored_bytes: u64) -> Run {
        Run {
            step,
            contestant: self.name.to_owned(),
            setting: self.setting.clone(),
            cost,
            source_bytes: count as u64 * SEGMENT_BYTES,
            stored_bytes,
            file_count: count as u64,
            ..Run::default()
        }
    }
}

/// The bench waits for the helper's end, to count its CPU time.
const HELPER_ENDS: &str = "--helper-idle 1s";

fn backrest_place(setup: &Setup) -> PathBuf {
    setup.work.join("backrest").join("pgbackrest.conf")
}

fn backrest_config(setup: &Setup, at: &Path, pgdata: &Path, compress_type: &str, is_async: bool) -> String {
    let place = at.display();
    format!(
        "[global]\nrepo1-path={}\nlog-path={place}/log\nlock-path={place}/lock\nspool-path={place}/spool\n\
         log-level-console=warn\nlog-level-file=off\ncompress-type={compress_type}\ncompress-level=1\n\
         process-max={}\narchive-async={}\narchive-get-queue-max=1GiB\n[main]\npg1-path={}\n",
        setup.work.join("archive").display(),
        setup.cores,
        if is_async { "y" } else { "n" },
        pgdata.display()
    )
}
