//! The order in which a backup reads files: what shares a frame, and what comes first.

use crate::format::file_table::{EntryKind, FileTable};
use crate::pipeline::is_packed;
use crate::source::postgres::path_class::{PathClass, classify};
use crate::terms::FileId;

/// The files of each device, in the order of reading: what a server needs to start comes first, then [`Twins`].
///
/// `lane_of_tablespace` maps the path below a link in pg_tblspc to a lane from 1; everything else is lane 0.
pub(super) fn lanes(
    table: &FileTable,
    lane_of_tablespace: &[(Vec<u8>, usize)],
    frame_size_bytes: u32,
) -> Vec<Vec<FileId>> {
    let lane_count = lane_of_tablespace.iter().map(|(_, lane)| lane + 1).max().unwrap_or(1);
    let mut lanes = vec![Vec::new(); lane_count];
    for file in table.ids().filter(|file| table.entry(*file).kind == EntryKind::File) {
        let path = table.path(file);
        let own = lane_of_tablespace.iter().find(|(prefix, _)| path.starts_with(prefix));
        lanes[own.map_or(0, |(_, lane)| *lane)].push(file);
    }
    for lane in &mut lanes {
        let mut twins = Twins::default();
        lane.sort_by_cached_key(|file| {
            let path = table.path(*file);
            let size_bytes = table.entry(*file).size_bytes;
            let twin = if is_packed(size_bytes, frame_size_bytes.into()) { twins.key(path) } else { None };
            (!needed_at_start(path), twin)
        });
    }
    lanes
}

/// So many databases share frames at most: who reads the small files of one of them reads those of the others too.
const TWINS_MAX: usize = 8;

/// Small files with one number in several databases, which are most often the same catalog with much the same content:
/// beside each other in a frame they take a fraction of the space and of the encoder's time.
#[derive(Default)]
struct Twins<'t> {
    /// Directories of databases, in the order of the files.
    directories: Vec<&'t [u8]>,
}

impl<'t> Twins<'t> {
    /// Group of databases, file number, name and database of a relation's file; None for any other.
    fn key(&mut self, path: &'t [u8]) -> Option<(usize, u32, &'t [u8], usize)> {
        let file_number = match classify(path) {
            PathClass::Relation { database_oid, file_number, .. } if database_oid != 0 => file_number,
            _ => return None,
        };
        let at = path.iter().rposition(|byte| *byte == b'/')?;
        let (directory, name) = (&path[..at], &path[at + 1..]);
        // Files of a directory follow each other.
        if self.directories.last() != Some(&directory) {
            self.directories.push(directory);
        }
        let database = self.directories.len() - 1;
        Some((database / TWINS_MAX, file_number, name, database))
    }
}

/// Shared catalogs and what lies directly in the data directory.
fn needed_at_start(path: &[u8]) -> bool {
    path.starts_with(b"global/") || !path.contains(&b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn startup_files_come_first_in_their_lane() {
        let mut table = FileTable::default();
        for path in ["base/1/1", "base/1/2", "global/1260", "PG_VERSION", "pg_tblspc/7/PG_15/1/2"] {
            table.push(path.as_bytes(), b"", EntryKind::File, 0o600, 0, 1).unwrap();
        }
        let lanes = lanes(&table, &[(b"pg_tblspc/7/".to_vec(), 1)], 1 << 20);
        let paths: Vec<Vec<_>> =
            lanes.iter().map(|lane| lane.iter().map(|file| table.path_text(*file)).collect()).collect();
        assert_eq!(paths[0], ["global/1260", "PG_VERSION", "base/1/1", "base/1/2"]);
        assert_eq!(paths[1], ["pg_tblspc/7/PG_15/1/2"]);
    }

    #[test]
    fn small_files_of_one_number_in_up_to_eight_databases_lie_beside_each_other() {
        let mut table = FileTable::default();
        for database in 1..=9 {
            for (name, size_bytes) in [("1247", 8192), ("1249", 1 << 20), ("2600_fsm", 8192), ("PG_VERSION", 3)] {
                let path = format!("base/{database}/{name}");
                table.push(path.as_bytes(), b"", EntryKind::File, 0o600, 0, size_bytes).unwrap();
            }
        }
        let lanes = lanes(&table, &[], 1 << 20);
        let paths: Vec<_> = lanes[0].iter().map(|file| table.path_text(*file)).collect();
        let of = |databases: std::ops::RangeInclusive<u32>, name| databases.map(move |id| format!("base/{id}/{name}"));
        // Large files and what is no relation's stay in the order of paths.
        let alone = (1..=9).flat_map(|id| ["1249", "PG_VERSION"].map(|name| format!("base/{id}/{name}")));
        let together =
            of(1..=8, "1247").chain(of(1..=8, "2600_fsm")).chain(of(9..=9, "1247")).chain(of(9..=9, "2600_fsm"));
        assert_eq!(paths, Vec::from_iter(alone.chain(together)));
    }
}
