//! What a backup of a standby needs beyond that of a primary: pg_control decides where the copy is consistent.
//!
//! The rule: do_pg_backup_stop in src/backend/access/transam/xlog.c. A standby writes no end-of-backup record. Before it
//! writes a page it moves pg_control's minimum recovery point past the page's LSN; so a pg_control that is read after
//! all pages names a position that covers them all, and replay from the set must reach it.

use crate::error::{Error, ErrorKind, Result};
use crate::source::postgres::control_file::{ClusterState, ControlFile};
use crate::terms::{Lsn, TimelineId};

/// Whether the copied pg_control, read last, lets a server that is restored from it know when it is consistent.
///
/// # Errors
/// `Source` if the standby was promoted or changed its timeline, or its minimum recovery point is outside the backup.
pub(super) fn check_control_file(
    control_file: &ControlFile,
    start_lsn: Lsn,
    stop_lsn: Lsn,
    timeline: TimelineId,
) -> Result<()> {
    let refuse = |cause: String| {
        Err(Error::new(ErrorKind::Source, "end the backup of the standby", cause)
            .hint("begin a new backup; if the standby was promoted it will be one of the new primary"))
    };
    if control_file.state != ClusterState::InArchiveRecovery {
        return refuse(format!("its pg_control says {:?} instead of InArchiveRecovery", control_file.state));
    }
    if control_file.min_recovery_timeline != timeline {
        return refuse(format!(
            "it follows timeline {} now, and the backup began on {timeline}",
            control_file.min_recovery_timeline
        ));
    }
    let consistent_at = control_file.min_recovery_lsn;
    if consistent_at < start_lsn || consistent_at > stop_lsn {
        return refuse(format!(
            "its minimum recovery point {consistent_at} is not between {start_lsn}, where the backup began, and {stop_lsn}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standby() -> ControlFile {
        ControlFile {
            system_identifier: 1,
            control_version: 1300,
            catalog_version: 1,
            state: ClusterState::InArchiveRecovery,
            checkpoint_lsn: Lsn(100),
            checkpoint_redo_lsn: Lsn(90),
            timeline: TimelineId(1),
            min_recovery_lsn: Lsn(150),
            min_recovery_timeline: TimelineId(1),
            max_prepared_transactions: 0,
            max_locks_per_transaction: 64,
            block_size_bytes: 8192,
            segment_blocks: 131_072,
            wal_block_size_bytes: 8192,
            wal_segment_size_bytes: 16 << 20,
            checksum_version: 1,
        }
    }

    #[test]
    fn only_a_standby_that_stayed_one_passes() {
        let check = |control_file: &ControlFile| check_control_file(control_file, Lsn(90), Lsn(160), TimelineId(1));
        check(&standby()).unwrap();
        for bad in [
            ControlFile { state: ClusterState::InProduction, ..standby() },
            ControlFile { min_recovery_timeline: TimelineId(2), ..standby() },
            ControlFile { min_recovery_lsn: Lsn(0), ..standby() },
            ControlFile { min_recovery_lsn: Lsn(161), ..standby() },
        ] {
            assert_eq!(check(&bad).unwrap_err().kind(), ErrorKind::Source, "{bad:?}");
        }
    }
}
