//! `pagehaul bak` as typed, and what it means.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use pagehaul_bak::bytes::BakFile;
use pagehaul_bak::sql::Guid;
use pagehaul_engine::error::Result;
use pagehaul_engine::pipeline::bundle::FrameSettings;
use pagehaul_engine::pipeline::machine_cores;
use pagehaul_engine::terms::SourceName;

use super::backup::compression;

/// The verbs of SQL Server's backup files.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum BakVerb {
    /// Show what backup files hold: media, sets, database files, as RESTORE LABELONLY, HEADERONLY and FILELISTONLY do
    #[command(after_help = INSPECT_HELP)]
    Inspect(BakInspectArgs),
    /// Read backup files and check every checksum in them
    #[command(after_help = VERIFY_HELP)]
    Verify(BakVerifyArgs),
    /// Order the backup files of a directory into chains that can be restored, and show what is missing
    #[command(after_help = CHAIN_HELP)]
    Chain(BakChainArgs),
    /// Write the plain MTF stream of a backup file, or images of the database files in backup sets
    #[command(after_help = UNPACK_HELP)]
    Unpack(BakUnpackArgs),
    /// Store backup files in a repository, compressed by Pagehaul's codecs
    #[command(after_help = RECOMPRESS_HELP)]
    Recompress(BakRecompressArgs),
    /// Give a stored backup file back, byte for byte; without a name, list what is stored
    #[command(after_help = EXTRACT_HELP)]
    Extract(BakExtractArgs),
}

pub(super) const BAK_HELP: &str = "\
No SQL Server is needed. Files of 2008 R2 (plain, striped, with checksums) and 2016 (MS_XPRESS) were tried; those of other \
versions follow the same rules. What is not known, such as backups compressed with QAT_DEFLATE or ZSTD and encrypted ones, is \
refused with flag and offset.

Examples:
  pagehaul bak inspect sales.bak
  pagehaul bak verify sales-1of2.bak sales-2of2.bak
  pagehaul bak chain /backups/sales";

const INSPECT_HELP: &str = "\
Files may be given in any order, and of several media sets. Ends with code 40 if headers are damaged or files of a media set \
are missing; pages are not looked at (pagehaul bak verify does).

Examples:
  pagehaul bak inspect sales.bak
  pagehaul bak inspect --json sales-*.bak";

const VERIFY_HELP: &str = "\
Checks the headers of blocks and streams, the checksums of compressed chunks, of pages (those in use, by PFS), and of WITH \
CHECKSUM sets, and whether all files of a media set are there. Ends with code 40 if anything is not right, and lists it with \
file, offset and page.

Examples:
  pagehaul bak verify sales.bak
  pagehaul bak verify --threads 4 --json sales-1of2.bak sales-2of2.bak";

const CHAIN_HELP: &str = "\
Differentials are matched to their base by its id and LSN, log by LSN and line of history. Ends with code 40 if log is missing \
in the middle, or a set fits nowhere.

Examples:
  pagehaul bak chain /backups/sales
  pagehaul bak chain --json /backups/sales";

const UNPACK_HELP: &str = "\
Images are NOT transactionally consistent: their pages are of different moments of the backup, and only a server that \
restores the backup with its log makes them a database. They are for tools that read pages. Everything that verify checks is \
checked on the way; with damage no image stays. The newest differential among the files is applied.

Examples:
  Images of the data files, of a full backup and of a full and a differential one:
    pagehaul bak unpack sales-1of2.bak sales-2of2.bak --to-dir /scratch
    pagehaul bak unpack full.bak differential.bak --to-dir /scratch
  A compressed file as the plain one that says the same:
    pagehaul bak unpack sales.bak --stream-to sales-plain.bak";

const RECOMPRESS_HELP: &str = "\
A file comes back byte for byte. Plain backup files shrink a lot. Compressed ones do not: what SQL Server has compressed \
cannot be made smaller as it is, and no other compressor gives the same bytes again. With --plain their content is stored \
uncompressed and compressed anew, by a third to a half smaller on the files that were tried; what comes back then is the \
plain backup that says the same, and not the same bytes. The stored file is read back before the command ends.

Examples:
  pagehaul bak recompress sales.bak --repo /backup
  pagehaul bak recompress sales-*.bak --repo /backup --compression zstd:9 --plain";

const EXTRACT_HELP: &str = "\
The digest of the whole is checked; if it is not right, no file stays.

Examples:
  pagehaul bak extract --repo /backup
  pagehaul bak extract sales.bak --repo /backup --to /restore/sales.bak";

impl BakVerb {
    /// Whether the user asked for a JSON document.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            BakVerb::Inspect(args) => args.json,
            BakVerb::Verify(args) => args.json,
            BakVerb::Chain(args) => args.json,
            BakVerb::Unpack(args) => args.json,
            BakVerb::Recompress(args) => args.json,
            BakVerb::Extract(args) => args.json,
        }
    }
}

/// Flags of `bak inspect`.
#[derive(Args, Clone, Debug)]
pub(crate) struct BakInspectArgs {
    /// Backup files.
    #[command(flatten)]
    pub(crate) files: FileArgs,

    /// Print the report as one JSON document on standard output
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

/// Flags of `bak verify`.
#[derive(Args, Clone, Debug)]
pub(crate) struct BakVerifyArgs {
    /// Backup files.
    #[command(flatten)]
    pub(crate) files: FileArgs,

    /// Threads.
    #[command(flatten)]
    pub(crate) threads: ThreadArgs,

    /// Print the report as one JSON document on standard output
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

/// Flags of `bak chain`.
#[derive(Args, Clone, Debug)]
pub(crate) struct BakChainArgs {
    /// Directory with backup files; all files in it and below that begin like one are read
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,

    /// Print the report as one JSON document on standard output
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

/// Flags of `bak unpack`.
#[derive(Args, Clone, Debug)]
pub(crate) struct BakUnpackArgs {
    /// Backup files.
    #[command(flatten)]
    pub(crate) files: FileArgs,

    /// Write images of the data files into this directory
    #[arg(long, value_name = "DIR", required_unless_present = "stream_to")]
    pub(crate) to_dir: Option<PathBuf>,

    /// Write the MTF stream of the one FILE into this new file
    #[arg(long, value_name = "PATH", conflicts_with_all = ["to_dir", "set", "no_differential", "keep_damaged"])]
    pub(crate) stream_to: Option<PathBuf>,

    /// The full backup by its id, where there are several (pagehaul bak inspect shows ids)
    #[arg(long, value_name = "GUID", value_parser = guid)]
    pub(crate) set: Option<Guid>,

    /// Leave differential backups out
    #[arg(long)]
    pub(crate) no_differential: bool,

    /// Keep images of damaged backups
    #[arg(long)]
    pub(crate) keep_damaged: bool,

    /// Threads.
    #[command(flatten)]
    pub(crate) threads: ThreadArgs,

    /// Print the report as one JSON document on standard output
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

/// Flags of `bak recompress`.
#[derive(Args, Clone, Debug)]
pub(crate) struct BakRecompressArgs {
    /// Backup files.
    #[command(flatten)]
    pub(crate) files: FileArgs,

    /// Where files are kept.
    #[command(flatten)]
    pub(crate) place: KeptArgs,

    /// Name in the repository, for one FILE [default: the file's own name]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Store compressed files uncompressed, so that they shrink; they do not come back as the same bytes
    #[arg(long)]
    pub(crate) plain: bool,

    /// none, lz4, deflate, xpress or zstd, each with :LEVEL; page:1 to 5 is zstd:1, 1, 3, 6 or 7 here [default: zstd:3]
    #[arg(long, value_name = "SPEC", help_heading = "Speed")]
    pub(crate) compression: Option<String>,

    /// Threads.
    #[command(flatten)]
    pub(crate) threads: ThreadArgs,

    /// Print the report as one JSON document on standard output
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

impl BakRecompressArgs {
    /// How frames are made.
    ///
    /// # Errors
    /// `Usage` for a codec that is not known.
    pub(crate) fn frames(&self) -> Result<FrameSettings> {
        let codec = compression(Some(self.compression.as_deref().unwrap_or("zstd:3")), None)?;
        Ok(FrameSettings { codec, threads: self.threads.count(), frame_size_bytes: 1 << 20 })
    }
}

/// Flags of `bak extract`.
#[derive(Args, Clone, Debug)]
pub(crate) struct BakExtractArgs {
    /// Which file; without it, what is stored is listed
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Where files are kept.
    #[command(flatten)]
    pub(crate) place: KeptArgs,

    /// Write it into this new file
    #[arg(long, value_name = "PATH", requires = "name")]
    pub(crate) to: Option<PathBuf>,

    /// Threads.
    #[command(flatten)]
    pub(crate) threads: ThreadArgs,

    /// Print the report as one JSON document on standard output
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

/// Where files are kept.
#[derive(Args, Clone, Debug)]
pub(crate) struct KeptArgs {
    /// Repository: a directory
    #[arg(long, value_name = "URL_OR_DIR")]
    pub(crate) repo: String,

    /// Name of the database system that the files are of
    #[arg(long, value_name = "NAME", default_value = "mssql")]
    pub(crate) source: String,
}

impl KeptArgs {
    /// The source's name.
    ///
    /// # Errors
    /// `Usage` if it cannot be one.
    pub(crate) fn source(&self) -> Result<SourceName> {
        self.source.parse()
    }
}

fn guid(text: &str) -> std::result::Result<Guid, String> {
    text.parse()
}

/// Backup files, in any order.
#[derive(Args, Clone, Debug)]
pub(crate) struct FileArgs {
    /// Backup files, in any order
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
}

impl FileArgs {
    /// The files, opened.
    ///
    /// # Errors
    /// `Source` for the first one that does not open.
    pub(crate) fn open(&self) -> Result<Vec<BakFile>> {
        self.files.iter().map(|path| BakFile::open(path)).collect()
    }
}

/// How many threads decode.
#[derive(Args, Clone, Debug)]
pub(crate) struct ThreadArgs {
    /// Threads that decode and check [default: one a core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256), help_heading = "Speed")]
    pub(crate) threads: Option<u16>,
}

impl ThreadArgs {
    /// The number.
    pub(crate) fn count(&self) -> u16 {
        self.threads.unwrap_or_else(machine_cores)
    }
}
