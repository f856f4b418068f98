//! A RESTORE as data.

use super::backup::{OnPageError, Part};
use crate::source::mssql::device::Device;

/// RESTORE of data, of a log, or of what describes a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreStatement {
    /// What it does.
    pub kind: RestoreKind,
    /// All files of the media set, in any order.
    pub from: Vec<Device>,
    /// Everything behind WITH.
    pub options: RestoreOptions,
}

/// What a RESTORE does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreKind {
    /// A database, under this name.
    Database(String),
    /// Files and filegroups of it.
    Parts(String, Vec<Part>),
    /// Single pages, as (file, page): up to 1000.
    Pages(String, Vec<(u16, u32)>),
    /// Its log.
    Log(String),
    /// Shows the sets on the media.
    HeaderOnly,
    /// Shows the files of a set.
    FileListOnly,
    /// Shows the media.
    LabelOnly,
    /// Reads a set and looks whether it is whole; it does not look into pages without CHECKSUM.
    VerifyOnly,
    /// Splits a snapshot of several databases into one set each, in files of the server's (2022 and later).
    BackupSetOnly,
    /// Rewinds a tape and gives it back.
    RewindOnly,
}

/// What a database is after a restore.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Recovery {
    /// Open.
    #[default]
    Recovery,
    /// Waiting for more.
    NoRecovery,
    /// Readable and waiting, with this file for what is undone.
    Standby(String),
}

/// Where replaying stops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopAt {
    /// At, or before.
    pub stop: Stop,
    /// A time, or a mark, or `lsn:N`.
    pub place: String,
    /// The first mark of the name behind this time.
    pub after: Option<String>,
}

/// Which stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// At a time.
    Time,
    /// With a mark or LSN.
    AtMark,
    /// Before it.
    BeforeMark,
}

/// Everything behind WITH.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreOptions {
    /// Which set on the media, from 1.
    pub file: Option<u32>,
    /// Logical names of files, and where they go.
    pub moves: Vec<(String, String)>,
    /// Over a database of another kind, or over files that are there.
    pub replace: bool,
    /// What the database is afterwards.
    pub recovery: Option<Recovery>,
    /// Begins a piecemeal restore.
    pub partial: bool,
    /// Where replaying stops.
    pub stop_at: Option<StopAt>,
    /// Only administrators get in afterwards.
    pub restricted_user: bool,
    /// Settings of replication stay.
    pub keep_replication: bool,
    /// Change data capture stays.
    pub keep_cdc: bool,
    /// Transfer buffers.
    pub buffer_count: Option<u32>,
    /// Bytes of one.
    pub max_transfer_size: Option<u32>,
    /// Bytes of a physical block.
    pub block_size: Option<u32>,
    /// Whether the backup's checksums are checked.
    pub checksum: Option<bool>,
    /// What a wrong page does.
    pub on_page_error: Option<OnPageError>,
    /// Credential of an Azure page blob.
    pub credential: Option<String>,
    /// The media set must have this name.
    pub media_name: Option<String>,
    /// The metadata of a snapshot whose files are there already.
    pub metadata_only: bool,
    /// Which database of a group's or server's snapshot.
    pub database_in_snapshot: Option<String>,
    /// The set is noted in msdb when it is verified.
    pub load_history: bool,
    /// A message every so many per cent.
    pub stats: Option<u32>,
}

impl RestoreKind {
    pub(super) fn reads_data(&self) -> bool {
        matches!(self, RestoreKind::Database(_) | RestoreKind::Parts(..) | RestoreKind::Pages(..) | RestoreKind::Log(_))
    }
}

impl RestoreStatement {
    /// A RESTORE that asks for nothing.
    pub fn new(kind: RestoreKind, from: Vec<Device>) -> Self {
        RestoreStatement { kind, from, options: RestoreOptions::default() }
    }
}
