//! Flags that several verbs have: which backup is read, with how many threads, within which bounds.

use clap::Args;
use pagehaul_engine::error::Result;
use pagehaul_engine::terms::{BackupLabel, SourceName};

use super::{parse_label, parse_rate, parse_size, parse_size_u32};

/// Which backup a verb reads.
#[derive(Args, Clone, Debug)]
pub(crate) struct SetArgs {
    /// Name of the database system in the repository [default: the only one there is]
    #[arg(value_name = "SOURCE")]
    pub(crate) source: Option<String>,

    /// Repository: a directory, s3://BUCKET/PREFIX?endpoint=URL (gs://, azblob://), or throttle:read=200MB/s: before one
    /// of them to see how a slower device would do
    #[arg(long, value_name = "URL_OR_DIR", env = "PAGEHAUL_REPO", help_heading = "From")]
    pub(crate) repo: String,

    /// Directory to look for stripes that were moved; may be given several times. With throttle:read=200MB/s:DIR
    /// stripes in DIR are read as slowly, moved or not
    #[arg(long, value_name = "DIR", help_heading = "From")]
    pub(crate) stripe_from: Vec<String>,

    /// Which backup: a label of `pagehaul info`, or latest
    #[arg(long, value_name = "LABEL", default_value = "latest", help_heading = "From")]
    pub(crate) set: String,
}

impl SetArgs {
    /// The source; None is the only one there is.
    ///
    /// # Errors
    /// `Usage` if it is no name.
    pub(crate) fn source(&self) -> Result<Option<SourceName>> {
        self.source.as_deref().map(str::parse).transpose()
    }

    /// The set; None is the newest.
    ///
    /// # Errors
    /// `Usage` if it is no label.
    pub(crate) fn label(&self) -> Result<Option<BackupLabel>> {
        parse_label(&self.set)
    }
}

/// Threads of a verb that reads a backup.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct DecodeArgs {
    /// Threads that read stripes [default: by the number of cores]
    #[arg(long, value_name = "N", help_heading = "How")]
    pub(crate) readers: Option<u16>,

    /// Threads that decompress and check [default: one a core]
    #[arg(long, value_name = "N", help_heading = "How")]
    pub(crate) decoders: Option<u16>,
}

/// Where a backup is written to, and by how much machinery.
#[derive(Args, Clone, Debug)]
pub(crate) struct WriteArgs {
    /// Directory or object store for stripes, on a disk of its own at best; give it several times to use several disks or
    /// buckets; throttle:... as for --repo [default: in the repository]
    #[arg(long, value_name = "URL_OR_DIR", help_heading = "Whereto")]
    pub(crate) stripe_to: Vec<String>,

    /// Files the backup is written to in parallel [default: one for each --stripe-to]
    #[arg(long, value_name = "N", help_heading = "Whereto")]
    pub(crate) stripes: Option<u16>,

    /// Parity stripes: any so many stripes, or parity stripes, may be lost or damaged, and restore and verify go on; repair
    /// puts them back. Each is about as large as a stripe
    #[arg(long, value_name = "K", default_value_t = 0, help_heading = "Whereto")]
    pub(crate) parity: u16,

    /// Directory or object store for parity stripes, on a disk of its own at best; may be given several times [default: they
    /// take turns over the places of stripes, after these]
    #[arg(long, value_name = "URL_OR_DIR", help_heading = "Whereto")]
    pub(crate) parity_to: Vec<String>,

    /// Threads that read [default: by the number of cores]
    #[arg(long, value_name = "N", help_heading = "How")]
    pub(crate) readers: Option<u16>,

    /// Threads that compress [default: one a core]
    #[arg(long, value_name = "N", help_heading = "How")]
    pub(crate) encoders: Option<u16>,

    /// What makes DEFLATE: auto (ISA-L if it is installed, otherwise libdeflate), isal, libdeflate, or qat (QATzip); for
    /// deflate only, where --compression names no engine itself [default: auto]
    #[arg(long, value_name = "ENGINE", help_heading = "How")]
    pub(crate) deflate_engine: Option<String>,

    /// Transfer buffers [default: enough for all threads]
    #[arg(long, value_name = "N", help_heading = "How")]
    pub(crate) buffer_count: Option<u32>,

    /// Size of one transfer buffer [default: 1MiB, or the frame size; with auto 4MiB]
    #[arg(long, value_name = "SIZE", help_heading = "How")]
    pub(crate) transfer_size: Option<String>,

    /// Bytes of the source that are compressed as one piece, 64KiB to 4MiB [default: 1MiB, from zstd:3 and page:4 on
    /// 4MiB; synthesize: as in the largest backup of the chain, so that most pieces need not be compressed anew]
    #[arg(long, value_name = "SIZE", help_heading = "How")]
    pub(crate) frame_size: Option<String>,
}

impl WriteArgs {
    /// Bytes of `--transfer-size`.
    ///
    /// # Errors
    /// `Usage`, with examples.
    pub(crate) fn transfer_size_bytes(&self) -> Result<Option<u32>> {
        self.transfer_size.as_deref().map(|text| parse_size_u32("--transfer-size", text)).transpose()
    }

    /// Bytes of `--frame-size`.
    ///
    /// # Errors
    /// `Usage`, with examples.
    pub(crate) fn frame_size_bytes(&self) -> Result<Option<u32>> {
        self.frame_size.as_deref().map(|text| parse_size_u32("--frame-size", text)).transpose()
    }
}

/// Bounds of a run.
#[derive(Args, Clone, Debug)]
pub(crate) struct BoundArgs {
    /// Refuse to start if the memory ceiling is above this, such as 512MiB
    #[arg(long, value_name = "SIZE", help_heading = "How")]
    pub(crate) max_memory: Option<String>,

    /// Read no faster than this, such as 200MB/s: the source in a backup, the stripes otherwise
    #[arg(long, value_name = "RATE", help_heading = "How")]
    pub(crate) max_rate: Option<String>,
}

impl BoundArgs {
    /// Bytes of `--max-memory`.
    ///
    /// # Errors
    /// `Usage`, with examples.
    pub(crate) fn max_memory_bytes(&self) -> Result<Option<u64>> {
        self.max_memory.as_deref().map(|text| parse_size("--max-memory", text)).transpose()
    }

    /// Bytes a second of `--max-rate`.
    ///
    /// # Errors
    /// `Usage`, with examples.
    pub(crate) fn max_rate_bytes_per_s(&self) -> Result<Option<u64>> {
        self.max_rate.as_deref().map(|text| parse_rate("--max-rate", text)).transpose()
    }
}
