//! Freeze, snapshot, thaw: a backup whose data a storage system copies in no time.
//!
//! ```text
//! guard session:  WAITFOR DELAY 'limit' ; thaw            (the dead man's switch, waiting on the server)
//! own session:    freeze -> the snapshot is made -> BACKUP ... WITH METADATA_ONLY, which thaws and notes the set
//!                        \-> it fails, or takes too long: thaw
//! ```
//!
//! Whoever dies in between, the database goes on: when this process does, its sessions end and the server thaws what
//! they froze; when it only stands still, the guard's time runs out on the server.

use std::time::Duration;

use super::client::{Connection, NoWatch, Watch};
use super::edition::{Dialect, MajorVersion};
use super::quote::{identifier, plain_literal};
use super::server_message::StopReason;
use super::statement::BackupStatement;
use crate::error::{Error, ErrorKind, Result};

/// A database may be frozen for so long.
const LIMITS: std::ops::RangeInclusive<u64> = 1..=3600;

/// The statements of one snapshot, in the order of their use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotScript {
    /// On a session of its own, before all else; its answer is not waited for.
    pub guard: String,
    /// Writes stop.
    pub freeze: String,
    /// The metadata are stored, and writes go on.
    pub backup: String,
    /// Writes go on, and there is no backup.
    pub thaw: String,
}

impl SnapshotScript {
    /// The statements that freeze the database of `statement` (METADATA_ONLY) for at most `limit`.
    ///
    /// # Errors
    /// `Usage` for a statement or limit that does not do.
    pub fn new(statement: &BackupStatement, dialect: &Dialect, limit: Duration) -> Result<Self> {
        let refused =
            |cause: &str, hint: &str| Err(Error::new(ErrorKind::Usage, "make a snapshot backup", cause).hint(hint));
        if dialect.version < MajorVersion::V2022 {
            return refused("snapshots came with SQL Server 2022", "back the data up, or take a later server");
        }
        if !LIMITS.contains(&limit.as_secs()) {
            return refused("the time limit is out of range", "it is 1 s to 1 h");
        }
        let Some(database) = statement.contents.database().filter(|_| statement.options.metadata_only) else {
            return refused("the backup is not of one database's metadata", "it goes with METADATA_ONLY");
        };
        let name = identifier(database)?;
        // What is frozen without this clears the differential bitmap, and no word of BACKUP brings it back.
        let mode = if statement.options.copy_only { " (MODE = COPY_ONLY)" } else { "" };
        let thaw = format!("ALTER DATABASE {name} SET SUSPEND_FOR_SNAPSHOT_BACKUP = OFF;");
        let seconds = limit.as_secs();
        let delay = format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
        let is_frozen =
            format!("DATABASEPROPERTYEX({}, 'IsDatabaseSuspendedForSnapshotBackup') = 1", plain_literal(database));
        Ok(SnapshotScript {
            guard: format!("WAITFOR DELAY '{delay}';\nIF {is_frozen}\n    {thaw}"),
            freeze: format!("ALTER DATABASE {name} SET SUSPEND_FOR_SNAPSHOT_BACKUP = ON{mode};"),
            backup: statement.sql(dialect)?,
            thaw,
        })
    }
}

/// Takes a snapshot: `own` freezes, `make` has the storage copy the volumes, `own` stores the metadata; `guard` is a
/// second session that thaws when the time is over. Whatever fails, the database is thawed.
///
/// # Errors
/// `Source` if the server refuses, and whatever `make` says.
pub fn take_snapshot(
    own: &mut Connection,
    guard: &mut Connection,
    script: &SnapshotScript,
    watch: &mut dyn Watch,
    make: &mut dyn FnMut() -> Result<()>,
) -> Result<()> {
    guard.begin(&script.guard)?;
    let done = own.ask(&script.freeze, "freeze the database for a snapshot").and_then(|_| {
        let made = make().and_then(|()| {
            own.run(&script.backup, watch).map_err(|error| error.into_error("store the snapshot's metadata"))
        });
        made.map(drop).map_err(|mut error| {
            // Thawing what thawed already is an error that nobody needs to hear of.
            if let Err(also) = own.run(&script.thaw, &mut NoWatch) {
                error.attach(also.into_error("thaw the database: look at sys.dm_server_suspend_status"));
            }
            error
        })
    });
    // It waits no longer; if it cannot be told, its session ends with it.
    guard.finish(&mut EndNow).ok();
    done
}

/// Ends a statement at once.
struct EndNow;

impl Watch for EndNow {
    fn message(&mut self, _message: &super::server_message::ServerMessage) {}

    fn stop(&mut self) -> Option<StopReason> {
        Some(StopReason::Interrupted)
    }
}
