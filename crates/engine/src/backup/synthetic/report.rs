//! What a synthetic full is asked for and what is said when it is done.

use serde::Serialize;

use super::super::report::BackupReport;
use crate::pipeline::CodecSpec;
use crate::terms::{BackupLabel, SourceName};

/// Which chain, whereto, and how; None means the default.
#[derive(Clone, Debug)]
pub struct SynthesizeRequest {
    /// Whose backup; None if the repository has only one source.
    pub source: Option<SourceName>,
    /// Repository directory.
    pub repo: String,
    /// The set whose content the full one is to have; None is the newest complete one.
    pub label: Option<BackupLabel>,
    /// Further directories to look for moved stripes of the chain.
    pub stripe_from: Vec<String>,
    /// Directories for the stripes; empty puts them beside the manifest.
    pub stripe_to: Vec<String>,
    /// Number of stripes.
    pub stripes: Option<u16>,
    /// Number of parity stripes: so many stripes may be lost.
    pub parity: u16,
    /// Directories for those; empty puts them where the stripes go.
    pub parity_to: Vec<String>,
    /// Codec and level that everything is encoded with anew; None takes frames as they are stored where they can be, and
    /// encodes the others as the chain's largest set was.
    pub compression: Option<CodecSpec>,
    /// Threads that read and decode the chain.
    pub readers: Option<u16>,
    /// Encoder threads.
    pub encoders: Option<u16>,
    /// Transfer buffers.
    pub buffer_count: Option<u32>,
    /// Bytes of one transfer buffer.
    pub transfer_size_bytes: Option<u32>,
    /// Raw bytes of a full frame.
    pub frame_size_bytes: Option<u32>,
    /// Refuse to start if the memory ceiling is above this.
    pub max_memory_bytes: Option<u64>,
    /// Bytes read from stripes a second, at most.
    pub max_rate_bytes_per_s: Option<u64>,
    /// Free text, kept in the manifest; None keeps that of the set whose content it has.
    pub description: Option<String>,
}

impl SynthesizeRequest {
    /// A full set of the newest chain in `repo`, with every default.
    pub fn new(repo: impl Into<String>) -> Self {
        SynthesizeRequest {
            source: None,
            repo: repo.into(),
            label: None,
            stripe_from: Vec::new(),
            stripe_to: Vec::new(),
            stripes: None,
            parity: 0,
            parity_to: Vec::new(),
            compression: None,
            readers: None,
            encoders: None,
            buffer_count: None,
            transfer_size_bytes: None,
            frame_size_bytes: None,
            max_memory_bytes: None,
            max_rate_bytes_per_s: None,
            description: None,
        }
    }
}

/// What came of it.
#[derive(Clone, Debug)]
pub enum SynthesizeOutcome {
    /// The set needs no other one: there was nothing to do.
    AlreadyFull {
        /// Whose.
        source: SourceName,
        /// The set.
        label: BackupLabel,
    },
    /// A full set was made.
    Done(Box<SynthesizeReport>),
}

/// A finished synthetic full; the keys of `synthesize --json`.
#[derive(Clone, Debug, Serialize)]
pub struct SynthesizeReport {
    /// The set whose content the new one has.
    pub synthesized_from: BackupLabel,
    /// The sets that that one needs, nearest first.
    pub chain_prior: Vec<BackupLabel>,
    /// Bytes of files whose frames were taken as they were stored.
    pub copied_bytes: u64,
    /// The new set, as a backup reports it: what it read are stripes of the chain, and the codec is that of what was
    /// encoded anew.
    #[serde(flatten)]
    pub set: BackupReport,
}
