//! `pagehaul wal` as typed, and what it means.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use pagehaul_engine::catalog::wal_inventory::Detail;
use pagehaul_engine::codec::CodecSpec;
use pagehaul_engine::error::Result;
use pagehaul_engine::terms::SourceName;
use pagehaul_engine::wal::{GetRequest, PushRequest};

use super::WalReceiveArgs;
use super::backup::compression_or;
use super::wal_helper::HelperArgs;

/// The verbs of the WAL archive.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum WalVerb {
    /// Store WAL files: the server's archive_command
    #[command(after_help = PUSH_HELP)]
    Push(WalPushArgs),
    /// Deliver one file of the archive: the server's restore_command
    #[command(after_help = GET_HELP)]
    Get(WalGetArgs),
    /// Stream WAL from a server into the archive while it is written
    #[command(after_help = RECEIVE_HELP)]
    Receive(WalReceiveArgs),
    /// List what the archive has, and what is missing
    #[command(after_help = LIST_HELP)]
    List(WalListArgs),
    /// Make another cluster the owner of a source's name, as after pg_upgrade
    #[command(after_help = ADOPT_HELP)]
    Adopt(WalAdoptArgs),
    /// Recovery has ended: the recovery_end_command that a restore writes
    #[command(hide = true)]
    Recovered(WalRecoveredArgs),
    /// The helper that push and get start and ask
    #[command(hide = true)]
    Serve,
}

const PUSH_HELP: &str = "\
Ends with code 0 only when every file is durable in the repository. The same file again is code 0 too; other bytes under \
the same name are code 50: what is stored stays, and the server keeps its file. The repository must be there: the first \
`pagehaul backup` makes it, or `pagehaul wal adopt`.

Examples:
  In postgresql.conf:
    archive_mode = on
    archive_command = 'pagehaul wal push --repo /backup %p'
  Everything a stopped server still has to archive, in objects of several segments:
    cd /var/lib/postgresql/17/main/pg_wal
    pagehaul wal push --repo /backup --pgdata .. $(ls archive_status | sed -n 's/\\.ready$//p')";

const GET_HELP: &str = "\
Ends with code 0 when the file was delivered, 1 when it is surely not in the archive, and 126 when that could not be found \
out for any reason: the server then stops recovery instead of ending it early.

Examples:
  In postgresql.conf of a restored cluster:
    restore_command = 'pagehaul wal get --repo /backup %f %p'
  By hand:
    pagehaul wal get --repo /backup 0000000100000016000000B3 /tmp/0000000100000016000000B3";

const RECEIVE_HELP: &str = "\
Runs until a signal ends it (code 0); a server or store that is away is waited for. A lost server costs the WAL of the \
last --flush-every, or with --synchronous nothing that was committed. The role needs REPLICATION. Without --slot the \
server may remove WAL that was not received yet; with a slot it keeps it, so look after the receiver, or set \
max_slot_wal_keep_size.

Examples:
  pagehaul wal receive --connection \"host=db1 user=backup\" --repo /backup --slot pagehaul --create-slot
  No commit without the archive, with synchronous_standby_names = 'pagehaul' on the server:
    pagehaul wal receive --connection \"host=db1 user=backup\" --repo /backup --slot pagehaul --synchronous";

const LIST_HELP: &str = "\
Ends with code 40 if segments are missing in the middle, damaged, or there twice with different bytes.

Examples:
  pagehaul wal list --repo /backup
  pagehaul wal list --repo /backup --source main --names-only
  pagehaul wal list --repo /backup --json";

const ADOPT_HELP: &str = "\
Backups and WAL of the cluster before stay as they are. A repository that is not there yet is made.

Examples:
  pagehaul wal adopt --repo /backup --source main --pgdata /var/lib/postgresql/18/main";

/// What every verb of the archive has.
#[derive(Args, Clone, Debug)]
pub(crate) struct WalSharedArgs {
    /// Repository: a directory, or s3://BUCKET/PREFIX?endpoint=URL (gs://, azblob://)
    #[arg(long, value_name = "URL_OR_DIR", env = "PAGEHAUL_REPO")]
    pub(crate) repo: String,

    /// Print one JSON document on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// Flags of `wal push`.
#[derive(Args, Clone, Debug)]
pub(crate) struct WalPushArgs {
    /// The files, by path: segments, .partial, .history, .backup
    #[arg(value_name = "FILE", required = true)]
    pub(crate) file: Vec<PathBuf>,

    /// Where, and how it is reported.
    #[command(flatten)]
    pub(crate) shared: WalSharedArgs,

    /// Name of the database system in the repository
    #[arg(long, value_name = "SOURCE", default_value = "main")]
    pub(crate) source: String,

    /// Data directory the files are from [default: by their paths, as the server gives them]
    #[arg(long, value_name = "DIR")]
    pub(crate) pgdata: Option<PathBuf>,

    /// none, lz4[:1-12], deflate[:1-12], zstd[:1-22 or -1 to -7], zstd:low, zstd:medium, zstd:high,
    /// xpress[:1-2], or page[:1-5], which takes records of WAL apart [default: zstd:1]
    #[arg(long, value_name = "CODEC[:LEVEL]")]
    pub(crate) compression: Option<String>,

    /// Threads that compress [default: one a core, four at most]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) encoders: Option<u16>,

    /// What makes DEFLATE, for deflate only: auto, isal, libdeflate or qat, as for `pagehaul backup` [default: auto]
    #[arg(long, value_name = "ENGINE")]
    pub(crate) deflate_engine: Option<String>,

    /// Who does the work.
    #[command(flatten)]
    pub(crate) helper: HelperArgs,
}

impl WalPushArgs {
    /// What was typed, as the engine takes it.
    ///
    /// # Errors
    /// `Usage`, with a hint that names what is valid.
    pub(crate) fn request(&self) -> Result<PushRequest> {
        let mut request = PushRequest::new(self.source.parse()?, self.file.clone());
        request.pgdata.clone_from(&self.pgdata);
        request.encoders = self.encoders;
        request.compression =
            compression_or(CodecSpec::DEFAULT_OF_WAL, self.compression.as_deref(), self.deflate_engine.as_deref())?;
        Ok(request)
    }
}

/// Flags of `wal get`.
#[derive(Args, Clone, Debug)]
pub(crate) struct WalGetArgs {
    /// The file's name (%f)
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// Where to write it (%p); a file that is there is replaced
    #[arg(value_name = "DESTINATION")]
    pub(crate) destination: PathBuf,

    /// Where, and how it is reported.
    #[command(flatten)]
    pub(crate) shared: WalSharedArgs,

    /// Name of the database system in the repository
    #[arg(long, value_name = "SOURCE", default_value = "main")]
    pub(crate) source: String,

    /// System identifier of the cluster whose WAL is wanted [default: the cluster that writes under that name now]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) system_identifier: Option<u64>,

    /// A segment that is missing while later ones of its timeline are there is an error (126) and not the end of WAL
    /// (1); for recovery, not for standbys
    #[arg(long)]
    pub(crate) fail_in_gap: bool,

    /// Deliver timeline histories and nothing else (1): for a recovery that ends with its backup, so that a promoted
    /// server takes a timeline that nobody has yet
    #[arg(long, conflicts_with = "fail_in_gap")]
    pub(crate) only_histories: bool,

    /// Threads that decompress [default: one a core, four at most]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) decoders: Option<u16>,

    /// Who does the work.
    #[command(flatten)]
    pub(crate) helper: HelperArgs,
}

impl WalGetArgs {
    /// What was typed, as the engine takes it.
    ///
    /// # Errors
    /// `Usage` if the source is no name.
    pub(crate) fn request(&self) -> Result<GetRequest> {
        Ok(GetRequest {
            source: self.source.parse()?,
            name: self.name.clone(),
            destination: self.destination.clone(),
            system_identifier: self.system_identifier,
            decoders: self.decoders,
        })
    }
}

/// Flags of `wal list`.
#[derive(Args, Clone, Debug)]
pub(crate) struct WalListArgs {
    /// Where, and how it is reported.
    #[command(flatten)]
    pub(crate) shared: WalSharedArgs,

    /// Only this database system [default: all of the repository]
    #[arg(long, value_name = "SOURCE")]
    pub(crate) source: Option<String>,

    /// Look at names only: quick, without sizes and times
    #[arg(long)]
    pub(crate) names_only: bool,
}

impl WalListArgs {
    /// The source; None is all of them.
    ///
    /// # Errors
    /// `Usage` if it is no name.
    pub(crate) fn source(&self) -> Result<Option<SourceName>> {
        self.source.as_deref().map(str::parse).transpose()
    }

    /// How much is looked at.
    pub(crate) fn detail(&self) -> Detail {
        if self.names_only { Detail::Listing } else { Detail::Members }
    }
}

/// Flags of `wal adopt`.
#[derive(Args, Clone, Debug)]
pub(crate) struct WalAdoptArgs {
    /// Where, and how it is reported.
    #[command(flatten)]
    pub(crate) shared: WalSharedArgs,

    /// Name of the database system in the repository
    #[arg(long, value_name = "SOURCE", default_value = "main")]
    pub(crate) source: String,

    /// Data directory of the cluster that is to own the name
    #[arg(long, value_name = "DIR")]
    pub(crate) pgdata: PathBuf,
}

/// Flags of `wal recovered`.
#[derive(Args, Clone, Debug)]
pub(crate) struct WalRecoveredArgs {
    /// The mark that the restore left
    #[arg(value_name = "MARK")]
    pub(crate) mark: String,

    /// Where, and how it is reported.
    #[command(flatten)]
    pub(crate) shared: WalSharedArgs,

    /// Name of the database system in the repository
    #[arg(long, value_name = "SOURCE", default_value = "main")]
    pub(crate) source: String,

    /// The set that was restored
    #[arg(long, value_name = "LABEL")]
    pub(crate) set: String,
}

impl WalVerb {
    /// Whether the user asked for a JSON document.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            WalVerb::Push(args) => args.shared.json,
            WalVerb::Get(args) => args.shared.json,
            WalVerb::Receive(args) => args.json,
            WalVerb::List(args) => args.shared.json,
            WalVerb::Adopt(args) => args.shared.json,
            WalVerb::Recovered(args) => args.shared.json,
            WalVerb::Serve => false,
        }
    }
}
