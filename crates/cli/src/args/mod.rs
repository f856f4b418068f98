//! The command line as typed; each verb's file turns its part into the engine's request.

mod backup;
mod bak;
mod check;
mod copy;
mod demo;
mod expire;
mod extract_table;
mod head;
mod info;
mod keys;
mod metrics;
mod mssql;
mod mssql_backup;
mod mssql_restore;
mod mssql_tune;
mod pin;
mod protect;
mod prove;
mod recovery;
mod repair;
mod restore;
mod shared;
mod size;
mod synthesize;
mod tune;
mod verify;
mod wal;
mod wal_helper;
mod wal_receive;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind as ClapErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::terms::BackupLabel;

pub(crate) use backup::{BackupArgs, compression};
pub(crate) use bak::{
    BakChainArgs, BakExtractArgs, BakInspectArgs, BakRecompressArgs, BakUnpackArgs, BakVerb, BakVerifyArgs,
};
pub(crate) use check::CheckArgs;
pub(crate) use copy::CopyArgs;
pub(crate) use demo::DemoArgs;
pub(crate) use expire::ExpireArgs;
pub(crate) use extract_table::ExtractTableArgs;
pub(crate) use head::{HeadOfArgs, HeadSignArgs, HeadVerb};
pub(crate) use info::InfoArgs;
pub(crate) use keys::{KeyArgs, KeyNewArgs, KeyRotateArgs, KeyVerb};
pub(crate) use metrics::MetricsArgs;
pub(crate) use mssql::MssqlVerb;
pub(crate) use mssql_backup::MssqlBackupArgs;
pub(crate) use mssql_restore::{Look, MssqlRestoreArgs};
pub(crate) use mssql_tune::{MssqlImportArgs, MssqlScriptArgs, MssqlTuneArgs};
pub(crate) use pin::{PinArgs, UnpinArgs, WhichArgs};
pub(crate) use protect::ProtectArgs;
pub(crate) use prove::ProveArgs;
pub(crate) use repair::RepairArgs;
pub(crate) use restore::RestoreArgs;
pub(crate) use size::{parse_rate, parse_size, parse_size_u32};
pub(crate) use synthesize::SynthesizeArgs;
pub(crate) use tune::{HistoryArgs, TuneArgs, TuneVerb, parse_time};
pub(crate) use verify::VerifyArgs;
pub(crate) use wal::{WalAdoptArgs, WalGetArgs, WalListArgs, WalPushArgs, WalRecoveredArgs, WalVerb};
pub(crate) use wal_helper::HelperArgs;
pub(crate) use wal_receive::WalReceiveArgs;

use crate::config::{self, Choice};
use crate::exit_code::EXIT_CODES;
use crate::hooks::Hooks;

/// Everything that was typed.
#[derive(Parser, Debug)]
#[command(name = "pagehaul", version, max_term_width = 120, after_help = top_help(), subcommand_required = true)]
#[command(about = "Database backup at the speed of the hardware, and restores that are proven")]
pub(crate) struct Typed {
    /// Settings file [default: the first of ./pagehaul.toml and /etc/pagehaul/pagehaul.toml that exists]
    #[arg(long, value_name = "PATH", env = "PAGEHAUL_CONFIG", global = true, help_heading = "Everywhere")]
    pub(crate) config: Option<PathBuf>,

    /// File that keeps the figures of every run, or NUL for none [default: ~/.local/state/pagehaul/history.sqlite]
    #[arg(long, value_name = "FILE", env = "PAGEHAUL_HISTORY", global = true, help_heading = "Everywhere")]
    pub(crate) history: Option<PathBuf>,

    /// No progress and no report: only warnings, errors and data
    #[arg(long, short, global = true, help_heading = "Everywhere")]
    pub(crate) quiet: bool,

    /// What encrypts and decrypts, signs and checks.
    #[command(flatten)]
    pub(crate) keys: KeyArgs,

    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The verbs.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Back up a running PostgreSQL cluster into a repository
    #[command(after_help = BACKUP_HELP)]
    Backup(Box<BackupArgs>),
    /// Restore a backup into a new directory
    #[command(after_help = RESTORE_HELP)]
    Restore(Box<RestoreArgs>),
    /// Make a full backup of a chain of incremental ones, inside the repository and without the server
    #[command(after_help = SYNTHESIZE_HELP)]
    Synthesize(Box<SynthesizeArgs>),
    /// Copy backups and WAL to another repository, checked on the way
    #[command(after_help = copy::COPY_HELP)]
    Copy(Box<CopyArgs>),
    /// Read a backup back and check every byte of it
    #[command(after_help = verify::VERIFY_HELP)]
    Verify(VerifyArgs),
    /// Put back what is lost or damaged of a backup with parity
    #[command(after_help = repair::REPAIR_HELP)]
    Repair(RepairArgs),
    /// Restore a backup to scratch, start it there, check it, and keep what came of it
    #[command(after_help = PROVE_HELP)]
    Prove(Box<ProveArgs>),
    /// Take one table out of a backup, as SQL
    #[command(after_help = EXTRACT_TABLE_HELP)]
    ExtractTable(Box<ExtractTableArgs>),
    /// List the backups of a repository
    #[command(after_help = INFO_HELP)]
    Info(InfoArgs),
    /// Figures for Prometheus: ages of backups and proofs, recovery windows, gaps
    #[command(after_help = metrics::METRICS_HELP)]
    Metrics(MetricsArgs),
    /// Prove that WAL of a server arrives in the repository
    #[command(after_help = CHECK_HELP)]
    Check(CheckArgs),
    /// Archive WAL, deliver it at recovery, list what is there
    #[command(subcommand, after_help = WAL_HELP)]
    Wal(WalVerb),
    /// SQL Server backup files without a server: show, verify, order into chains, unpack, store
    #[command(subcommand, after_help = bak::BAK_HELP)]
    Bak(BakVerb),
    /// Remove the backups and the WAL that no retention rule keeps; without --confirm only show which
    #[command(after_help = expire::EXPIRE_HELP)]
    Expire(ExpireArgs),
    /// Keep a backup from ever expiring
    #[command(after_help = pin::PIN_HELP)]
    Pin(PinArgs),
    /// Let a pinned backup expire again
    #[command(after_help = "Examples:\n  pagehaul unpin 20261121-201530F --repo /backup")]
    Unpin(UnpinArgs),
    /// Keep anybody from deleting backups and WAL before a time, in buckets with object lock
    #[command(after_help = protect::PROTECT_HELP)]
    Protect(ProtectArgs),
    /// Make and rotate the keys of encryption
    #[command(subcommand, after_help = keys::KEY_HELP)]
    Key(KeyVerb),
    /// Show and sign which backups there are
    #[command(subcommand, after_help = head::HEAD_HELP)]
    Head(HeadVerb),
    /// Find the best settings for this data on this hardware by measuring backups and restores
    #[command(after_help = TUNE_HELP)]
    Tune(Box<TuneArgs>),
    /// Drive SQL Server's own BACKUP and RESTORE, and find their best settings
    #[command(subcommand, after_help = mssql::MSSQL_HELP)]
    Mssql(MssqlVerb),
    /// Show all of it on a database made for the purpose: back up under load, destroy, restore, compare
    #[command(after_help = DEMO_HELP)]
    Demo(DemoArgs),
    /// Print the completion script of a shell
    #[command(after_help = COMPLETIONS_HELP)]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, of pagehaul or of one command, as roff
    #[command(after_help = "Examples:\n  pagehaul man | man -l -\n  pagehaul man backup > pagehaul-backup.1")]
    Man {
        /// Which command
        command: Option<String>,
    },
}

impl Command {
    /// Whether the user asked for a JSON document.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            Command::Backup(args) => args.json,
            Command::Restore(args) => args.json,
            Command::Synthesize(args) => args.json,
            Command::Copy(args) => args.json,
            Command::Verify(args) => args.json,
            Command::Repair(args) => args.json,
            Command::Prove(args) => args.json,
            Command::ExtractTable(args) => args.json,
            Command::Info(args) => args.json,
            Command::Check(args) => args.json,
            Command::Wal(verb) => verb.wants_json(),
            Command::Bak(verb) => verb.wants_json(),
            Command::Key(verb) => verb.wants_json(),
            Command::Head(verb) => verb.wants_json(),
            Command::Tune(args) => args.wants_json(),
            Command::Mssql(verb) => verb.wants_json(),
            Command::Demo(args) => args.json,
            Command::Expire(args) => args.json,
            Command::Protect(args) => args.json,
            Command::Metrics(_)
            | Command::Pin(_)
            | Command::Unpin(_)
            | Command::Completions { .. }
            | Command::Man { .. } => false,
        }
    }
}

fn top_help() -> String {
    format!(
        "{EXIT_CODES}\n\n\
         Every flag can also be set in pagehaul.toml (tables [global] and [backup], [restore] and so on; the keys are the \
         long names of the flags) or as an environment variable: --max-rate is PAGEHAUL_MAX_RATE. Flags win over the \
         environment, and that wins over the file. Several database systems have tables [sources.NAME] and \
         [sources.NAME.backup] and so on, which win over the others; NAME is then the SOURCE of the command. [hooks] and \
         [sources.NAME.hooks] have programs to run: before-backup = [\"/usr/bin/logger\", \"it begins\"], after-backup, \
         failed-backup, and the same for restore, verify, repair, synthesize, copy, protect, expire, prove, check and extract-table; no shell runs \
         them, and PAGEHAUL_VERB, PAGEHAUL_SOURCE, PAGEHAUL_LABEL and PAGEHAUL_EXIT_CODE tell them of the run.\n\n\
         Examples:\n  \
         pagehaul demo\n  \
         pagehaul backup --pgdata /var/lib/postgresql/17/main --repo /backup\n  \
         pagehaul info --repo /backup\n  \
         pagehaul tune --pgdata /var/lib/postgresql/17/main --repo /backup --report tune.html\n  \
         pagehaul verify --repo /backup\n  \
         pagehaul restore --repo /backup --target-dir /var/lib/postgresql/17/restored"
    )
}

const BACKUP_HELP: &str = "\
A backup with damaged pages, or of a server that has lost files, is complete and kept; the command ends with code 40 and lists them.

Examples:
  Back up the local server, as the OS user postgres:
    pagehaul backup --pgdata /var/lib/postgresql/17/main --repo /backup
  Four stripes on two disks, smaller at the same speed if CPUs are free:
    pagehaul backup --repo /backup --stripe-to /disk1/pagehaul --stripe-to /disk2/pagehaul --stripes 4 --compression zstd:medium
  On five disks, of which any one may be lost:
    pagehaul backup --repo /backup --stripe-to /d1 --stripe-to /d2 --stripe-to /d3 --stripe-to /d4 --parity 1 --parity-to /d5
  What would be read, and how much memory it takes:
    pagehaul backup --repo /backup --dry-run --explain
  To a bucket, and to a disk here from the same read (keys come from the environment or ~/.aws):
    pagehaul backup --repo 's3://backups/prod?region=eu-central-1' --repo /backup
  To a bucket with object lock, where nobody can delete it for 30 days, nor what it needs:
    pagehaul backup --repo 's3://backups/prod?region=eu-central-1' --type incr --protect-for 30d
  As small as costs no time, whatever the devices are; and how it would be on a slower disk:
    pagehaul backup --repo /backup --compression auto
    pagehaul backup --repo throttle:write=60MB/s:/scratch/trial --compression auto
  How fast the source alone can be read:
    pagehaul backup --repo NUL --compression none
  A standby spares the primary; --pgdata and --connection name the standby:
    pagehaul backup --pgdata /var/lib/postgresql/17/standby --repo /backup
  A server on another machine, by a role with REPLICATION; root names whose the restored files will be:
    pagehaul backup --connection \"host=db1 user=backup\" --repo /backup
    pagehaul restore --repo /backup --target-dir /restore/main --owner postgres

Sizes are 1MiB, 64K, 1G (binary) or 10MB (decimal); rates are 200MB/s. Passwords come from ~/.pgpass or PGPASSFILE.";

const RESTORE_HELP: &str = "\
The target must be new or empty, on every tablespace too, unless --delta says to write over it. Nothing is started: \
the last line says how.

Without --type the server replays the WAL inside the backup, to the backup's own end, and needs no archive. --type \
latest replays all archived WAL; time, lsn, xid and name stop at a point of it, and take by themselves the newest \
backup from which that point can be reached. A point that cannot be reached is refused before anything is written, \
with what can be. A time counts by commit times: the server stops before the first later commit, so there must be one.

Examples:
  The newest backup:
    pagehaul restore --repo /backup --target-dir /var/lib/postgresql/17/main
  A certain one, whose tablespace goes elsewhere:
    pagehaul restore main --repo /backup --set 20261121-201530F --target-dir /restore/main --tablespace-map /disk1/fast=/restore/fast
  All archived WAL; and up to a moment:
    pagehaul restore --repo /backup --target-dir /restore/main --type latest
    pagehaul restore --repo /backup --target-dir /restore/main --type time --target \"2026-11-21 20:15:30+01:00\"
  Just before transaction 4711, along timeline 2:
    pagehaul restore --repo /backup --target-dir /restore/main --type xid --target 4711 --exclusive --target-timeline 2
  Back to the backup, in place, as little as possible read and written:
    pagehaul restore --repo /backup --target-dir /var/lib/postgresql/17/main --delta
  One database of many:
    pagehaul restore --repo /backup --target-dir /restore/main --include-database app
  Would it work, and is there room:
    pagehaul restore --repo /backup --target-dir /restore/main --dry-run";

const SYNTHESIZE_HELP: &str = "\
The full backup restores to what the newest one of the chain restores to, and needs no other: the ones that it was made of \
may expire, and the next incremental builds on it. If the backup is a full one already, there is nothing to do, and the \
command ends with code 0.

Examples:
  Of the newest backup and all it needs; then the old chain may go:
    pagehaul synthesize main --repo /backup
    pagehaul expire main --repo /backup --keep-full 1 --confirm
  Of a certain one, compressed anew, onto other disks:
    pagehaul synthesize main --repo /backup --set 20261121-201530I --compression zstd:high --stripe-to /disk1 --stripe-to /disk2";

const CHECK_HELP: &str = "\
Puts a restore point with a random name into WAL, has the server finish the segment, and waits until that segment is \
read back from the repository with the name in it. Ends with the code of the first problem: 20 the server or its \
settings, 30 the repository or a marker that did not arrive, 50 another cluster archives under this name.

Examples:
  pagehaul check --repo /backup --pgdata /var/lib/postgresql/17/main
  pagehaul check main --repo /backup --connection \"host=/run/postgresql\" --timeout 5m
  pagehaul check --repo /backup --no-marker --json";

const PROVE_HELP: &str = "\
The server runs in a sandbox: no port, no archiving, no jobs, no replication, none of the cluster's own settings, and \
no network where the kernel allows it. Needs PostgreSQL's programs of the backup's major version and room for the \
restored cluster. Ends with code 40 if the backup is broken; info shows what came of it, and how long a recovery takes.

Examples:
  The newest backup:
    pagehaul prove --repo /backup
  With a question to the data, and more room:
    pagehaul prove main --repo /backup --scratch-dir /scratch --query-database app --query 'SELECT count(*) > 0 FROM orders'
  Every backup that was never tried out:
    pagehaul prove --repo /backup --all-unproven";

const EXTRACT_TABLE_HELP: &str = "\
Restores the table's database to scratch, starts it as `pagehaul prove` does, and dumps the table with pg_dump.

Examples:
  pagehaul extract-table --repo /backup --table app.public.orders --output orders.sql
  pagehaul extract-table --repo /backup --set 20261121-201530F --table 'app.public.\"Odd.Name\"' --output - | psql app";

const INFO_HELP: &str = "\
Examples:
  pagehaul info --repo /backup
  pagehaul info main --repo /backup --set latest
  pagehaul info --repo /backup --json";

const WAL_HELP: &str = "\
Examples, in postgresql.conf:
  archive_command = 'pagehaul wal push --repo /backup %p'
  restore_command = 'pagehaul wal get --repo /backup %f %p'
Or without archive_command, from any machine:
  pagehaul wal receive --connection \"host=db1 user=backup\" --repo /backup --slot pagehaul --create-slot";

const TUNE_HELP: &str = "\
Reads the database and never writes to it. Backups and restores are tried for real in directories of their own below \
--repo, --stripe-to and --target-dir, which are removed; the disks must hold one backup and one restored copy. A run \
that was interrupted goes on where it ended when the same command is given again.

Examples:
  What would be run, and what it needs:
    pagehaul tune --pgdata /var/lib/postgresql/17/main --repo /backup --dry-run
  The shortest restore, beside the other tools, with a report:
    pagehaul tune --pgdata /var/lib/postgresql/17/main --repo /backup --target-dir /var/lib/postgresql --with pg_basebackup,pgbackrest --report tune.html
  The smallest sum of time and size that keeps the bounds, written into pagehaul.toml:
    pagehaul tune --pgdata /var/lib/postgresql/17/main --repo /backup --rto 30m --window 2h --max-cpu 50% --apply
  The same data, larger, on another machine:
    pagehaul tune --pgdata /var/lib/postgresql/17/main --repo /backup --at-size 8TB --read 2400MB/s --write 2400MB/s --cores 64";

const DEMO_HELP: &str = "\
Needs PostgreSQL's server programs and pgbench on this machine, and no server of yours: it makes its own and opens no \
port. Run as root it uses the OS user postgres. Ends with code 0 only if every check held.

Examples:
  pagehaul demo
  pagehaul demo --scale 100 --compression zstd:medium --keep";

const COMPLETIONS_HELP: &str = "\
Examples:
  pagehaul completions bash > /etc/bash_completion.d/pagehaul
  pagehaul completions zsh > ~/.zfunc/_pagehaul";

/// What the command line asks for.
#[derive(Debug)]
pub(crate) enum Asked {
    /// A verb.
    Run(Box<Run>),
    /// A verb, once for each source of the settings file; never none.
    Each(Vec<Run>),
    /// Help or version, to be printed as it is.
    Text(String),
}

/// One run of a verb.
#[derive(Debug)]
pub(crate) struct Run {
    /// The command line with every default.
    pub(crate) typed: Typed,
    /// What runs before and after it.
    pub(crate) hooks: Hooks,
}

/// Reads the command line, with the environment and the settings file behind it.
///
/// # Errors
/// `Usage` for the command line, `Configuration` for the settings file.
pub(crate) fn parse(arguments: &[OsString]) -> Result<Asked> {
    let arguments = &mssql::as_meant(arguments);
    let command = config::with_environment(Typed::command());
    let Some(file) = config::find(arguments)? else { return parse_one(command, arguments, Hooks::default()) };
    let parse_for = |source: Option<&str>| {
        let command = config::with_defaults(command.clone(), &file, source)?;
        parse_one(command, arguments, config::hooks_of(&file, source)?)
    };
    // What is wrong in the file is told before what is missing on the command line.
    config::with_defaults(command.clone(), &file, None)?;
    match config::choose(&command, &file, arguments)? {
        Choice::Plain => parse_for(None),
        Choice::One(source) => parse_for(Some(&source)),
        Choice::Each(sources) => {
            let mut runs = Vec::new();
            for source in sources {
                match parse_for(Some(&source))? {
                    Asked::Run(run) => runs.push(*run),
                    text => return Ok(text),
                }
            }
            Ok(Asked::Each(runs))
        }
    }
}

fn parse_one(command: clap::Command, arguments: &[OsString], hooks: Hooks) -> Result<Asked> {
    let matches = match command.try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) => return not_a_command(&error),
    };
    refuse_visible_password(&matches)?;
    match Typed::from_arg_matches(&matches) {
        Ok(typed) => Ok(Asked::Run(Box::new(Run { typed, hooks }))),
        Err(error) => not_a_command(&error),
    }
}

/// Help and version are texts to print; anything else is an error in our own shape.
fn not_a_command(error: &clap::Error) -> Result<Asked> {
    let text = error.render();
    if !error.use_stderr() {
        return Ok(Asked::Text(text.ansi().to_string()));
    }
    let text = text.to_string();
    if error.kind() == ClapErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        || error.kind() == ClapErrorKind::MissingSubcommand
    {
        return Err(Error::new(ErrorKind::Usage, "understand the command line", "no command is given")
            .hint("try `pagehaul --help`, or `pagehaul demo`"));
    }
    let mut parts = text.split("\n\n").map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
    let cause = parts.next().unwrap_or_default();
    let cause = cause.strip_prefix("error: ").unwrap_or(&cause).to_owned();
    let hints: Vec<String> = parts
        .filter(|part| !part.is_empty() && !part.starts_with("For more"))
        .map(|part| part.trim_start_matches("tip: ").replace("Usage: ", "usage: "))
        .collect();
    let help = "`--help` after the command says more".to_owned();
    let hints: Vec<String> = hints.into_iter().chain([help]).collect();
    Err(Error::new(ErrorKind::Usage, "understand the command line", cause).hint(hints.join("; ")))
}

/// A password on the command line is shown to every user of the machine by `ps`.
fn refuse_visible_password(matches: &ArgMatches) -> Result<()> {
    let verb = match matches.subcommand() {
        Some(("backup" | "check" | "tune", verb)) => verb,
        Some(("wal", group)) => match group.subcommand() {
            Some(("receive", verb)) => verb,
            _ => return Ok(()),
        },
        _ => return Ok(()),
    };
    let typed = verb.value_source("connection") == Some(ValueSource::CommandLine);
    match verb.get_one::<String>("connection") {
        Some(connection) if typed && config::holds_password(connection) => Err(Error::new(
            ErrorKind::Usage,
            "use the password in --connection",
            "everybody on this machine can read command lines",
        )
        .hint("put it into ~/.pgpass, or name such a file with PGPASSFILE, and leave it out here")),
        _ => Ok(()),
    }
}

/// The label that `--set` names; None is the newest.
///
/// # Errors
/// `Usage` if it is no label.
pub(crate) fn parse_label(text: &str) -> Result<Option<BackupLabel>> {
    if text == "latest" { Ok(None) } else { text.parse().map(Some) }
}
