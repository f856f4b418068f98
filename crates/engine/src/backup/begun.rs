//! What a backup begins with and what ends it, wherever its files come from: a directory here, or a server elsewhere.

use std::path::PathBuf;

use crate::pipeline::ReadRoot;
use crate::source::postgres::relation_layouts::RelationLayouts;
use crate::source::postgres::replication::Replication;
use crate::source::postgres::server_facts::ServerFacts;
use crate::source::postgres::session::{BackupSession, WalHold};
use crate::terms::{Lsn, TimelineId};

/// Whose files these are, as far as the manifest and the checks want to know.
pub(super) struct Origin {
    /// The server's data directory; empty if it did not tell.
    pub(super) data_directory: PathBuf,
    /// The OS user that owns it, by name.
    pub(super) owner: Option<String>,
    /// Pages in one segment file of a relation.
    pub(super) segment_blocks: u32,
    /// Size of a page of WAL.
    pub(super) wal_block_size_bytes: u32,
}

/// What a run begins with.
pub(super) struct Begun {
    pub(super) origin: Origin,
    pub(super) facts: ServerFacts,
    pub(super) start_lsn: Lsn,
    pub(super) timeline: TimelineId,
    /// None if the server itself reads its files and sends them.
    pub(super) session: Option<BackupSession>,
    pub(super) root: ReadRoot,
    /// What the relations' pages hold; None if the codec does not want to know.
    pub(super) relations: Option<RelationLayouts>,
}

/// Where the backup ended, and what keeps the server's WAL until it is read back.
pub(super) struct Stop {
    pub(super) stop_lsn: Lsn,
    /// The server's clock at that moment or a little later, RFC 3339 in UTC.
    pub(super) stop_time: Option<String>,
    #[expect(dead_code, reason = "held for its drop: the server's replication slot lives as long")]
    pub(super) hold: Hold,
}

/// A connection with a temporary replication slot.
#[expect(dead_code, reason = "held for its drop")]
pub(super) enum Hold {
    Session(WalHold),
    Stream(Replication),
}
