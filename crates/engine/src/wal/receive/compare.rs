//! Whether a server's WAL is that of the archive, where the archive ends with a whole segment: a server that was set back
//! writes other WAL under the same timeline and the same positions, and nothing in what it sends from there on says so.

use super::Trouble;
use super::link::{Link, Outcome, WAIT};
use super::open_segment::Archive;
use super::place::Place;
use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::{combine, crc32c};
use crate::source::postgres::replication::{Replication, WalEvent};
use crate::terms::{Lsn, WalSegmentName};
use crate::wal::stored::StoredLog;

impl Link<'_> {
    /// Has the server send the whole segment before `place` once more, and compares it with what is archived.
    ///
    /// A server that has removed that segment is not compared: it says so, and the stream goes on.
    pub(super) fn compare_last(
        &mut self,
        replication: &mut Replication,
        archive: &Archive<'_>,
        place: Place,
    ) -> Outcome<()> {
        let size = archive.segment_size_bytes;
        let Some(start) = place.start_lsn.0.checked_sub(size) else { return Ok(()) };
        let name = WalSegmentName::containing(place.timeline, Lsn(start), size);
        let sums = self.archived_sums(archive, &name)?;
        if sums.is_empty() {
            return Ok(());
        }
        self.check_not_behind(replication, place)?;
        match self.sum_at_server(replication, Place { start_lsn: Lsn(start), ..place }, size) {
            Ok(Some(sum)) if sums.iter().any(|archived| *archived != sum) => {
                let cause = "the server sends other bytes than the archive has of it";
                Err(set_back(&name, cause.to_owned()).into())
            }
            Ok(_) => Ok(()),
            Err(Trouble::Removed(_)) => {
                self.observer.note(&format!("the server has removed {name}: it is not compared with what is archived"));
                Ok(())
            }
            Err(trouble) => Err(trouble),
        }
    }

    /// CRC32C of the whole segment in each object that has it.
    fn archived_sums(&self, archive: &Archive<'_>, name: &WalSegmentName) -> Result<Vec<u32>> {
        let log = StoredLog::list(self.repository, &self.request.source, archive.system_identifier, name)?;
        match log.covering(name) {
            Ok(covering) => Ok(covering.iter().map(|covering| covering.member().crc32c).collect()),
            Err(error) if error.kind() == ErrorKind::Damage => {
                self.observer.note(&error.message());
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        }
    }

    /// A primary whose WAL ends before that of the archive was set back; a standby may only be late.
    fn check_not_behind(&mut self, replication: &mut Replication, place: Place) -> Result<()> {
        if self.server_end >= place.start_lsn {
            return Ok(());
        }
        // Somebody else may have archived since the server was asked.
        self.server_end = replication.identify_system()?.flush_lsn;
        let end_lsn = self.server_end;
        if end_lsn >= place.start_lsn {
            return Ok(());
        }
        let cause = format!("the archive has WAL of timeline {} up to {}", place.timeline, place.start_lsn);
        // Servers before 14 do not tell what they are.
        if replication.show("in_hot_standby").is_ok_and(|text| text == "off") {
            let action = format!("receive WAL of a server whose own ends at {end_lsn}");
            return Err(Error::new(ErrorKind::Conflict, action, cause).hint(SET_BACK_HINT));
        }
        let action = format!("receive WAL of a server that has it up to {end_lsn}");
        Err(Error::new(ErrorKind::Source, action, cause)
            .hint("a standby that is late catches up; a server that was set back must not archive under the same name"))
    }

    /// CRC32C of the `size` bytes from `place` on; None if the stream ends before, or a signal asks to stop.
    fn sum_at_server(&mut self, replication: &mut Replication, place: Place, size: u64) -> Outcome<Option<u32>> {
        let Place { timeline, start_lsn } = place;
        // Without the slot: it must neither go back nor keep anybody else away.
        let mut stream =
            replication.start_streaming(None, start_lsn, timeline).map_err(|error| self.refused(error, start_lsn))?;
        let (mut sum, mut taken) = (0, 0u64);
        while taken < size && !self.observer.interrupted() {
            match stream.next(WAIT).map_err(|error| self.refused(error, start_lsn))? {
                WalEvent::End => break,
                WalEvent::Quiet | WalEvent::Keepalive { .. } => {}
                WalEvent::Wal { start_lsn: at, .. } if at.0 != start_lsn.0 + taken => {
                    let cause = format!("WAL from {at} came, expected was {}", Lsn(start_lsn.0 + taken));
                    return Err(Error::new(ErrorKind::Source, "receive WAL", cause).into());
                }
                WalEvent::Wal { bytes, .. } => {
                    let length = (size - taken).min(bytes.len() as u64);
                    sum = combine(sum, crc32c(&bytes[..length as usize]), length);
                    taken += length;
                }
            }
        }
        stream.end()?;
        Ok((taken == size).then_some(sum))
    }
}

const SET_BACK_HINT: &str = "the server was set back to an earlier state, or two servers write the same WAL: find out which \
                             one is right; nothing was overwritten; promote a restored copy to a timeline of its own, or \
                             archive it under another --source";

fn set_back(name: &WalSegmentName, cause: String) -> Error {
    Error::new(ErrorKind::Conflict, format!("go on behind WAL segment {name}"), cause).hint(SET_BACK_HINT)
}
