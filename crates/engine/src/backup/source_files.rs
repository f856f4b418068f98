//! The files of a cluster as a file table, and what is read last: pg_control, labels, WAL.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::error::{Error, ErrorKind, Result};
use crate::format::file_table::{EntryKind, FileEntry, FileTable};
use crate::io;
use crate::pipeline::{Observer, ReadRoot};
use crate::source::postgres::data_directory::{EntryKind as ScanKind, scan};
use crate::source::postgres::path_class::{is_database_directory, tablespace_oid};
use crate::source::postgres::wal_records::MappedDatabase;
use crate::terms::{FileId, WalSegmentName};

/// Lists everything that belongs into a backup of `pgdata`.
///
/// # Errors
/// `Source`, naming what cannot be read.
pub(super) fn list_files(pgdata: &Path, observer: &dyn Observer) -> Result<FileTable> {
    let mut table = FileTable::default();
    let report = scan(pgdata, &mut |entry| {
        let (kind, target) = match &entry.kind {
            ScanKind::Directory => (EntryKind::Directory, &[][..]),
            ScanKind::File => (EntryKind::File, &[][..]),
            ScanKind::Symlink { target } => (EntryKind::Symlink, target.as_slice()),
        };
        table.push(&entry.path, target, kind, entry.mode, entry.mtime_s, entry.size_bytes).map(drop)
    })?;
    for link in table.ids().filter(|file| table.entry(*file).kind == EntryKind::Symlink) {
        note_link(&table, link, observer)?;
    }
    for path in &report.skipped_special {
        observer.note(&format!("not a file, directory or link, left out: {}", path.escape_ascii()));
    }
    Ok(table)
}

/// What lies behind a link that is not a tablespace is not in the set: said aloud, and refused for relations.
fn note_link(table: &FileTable, link: FileId, observer: &dyn Observer) -> Result<()> {
    let path = table.path(link);
    if path.starts_with(b"pg_tblspc/") {
        return Ok(());
    }
    let target = table.target(link).escape_ascii();
    if path.starts_with(b"base/") || path.starts_with(b"global/") {
        let action = format!("back up {}", table.path_text(link));
        let cause = format!("it is a link to {target}, whose content would not be in the set");
        return Err(Error::new(ErrorKind::Source, action, cause)
            .hint("move relations to other disks with tablespaces, not with links"));
    }
    observer.note(&format!(
        "{} is stored as a link; what it points to ({target}) is not in the set",
        table.path_text(link)
    ));
    Ok(())
}

/// The mode that the cluster gives its files: 0640 with group access, otherwise 0600.
fn file_mode(table: &FileTable) -> u32 {
    let version = table.ids().find(|file| table.path(*file) == b"PG_VERSION");
    version.map_or(0o600, |file| table.entry(file).mode & 0o640)
}

/// The tablespaces' path prefixes and lanes: one lane for each device other than the data directory's.
pub(super) fn tablespace_lanes(pgdata: &Path, table: &FileTable) -> Vec<(Vec<u8>, usize)> {
    let Ok(home) = io::device_of(pgdata) else { return Vec::new() };
    let mut devices = vec![home];
    let mut lanes = Vec::new();
    for link in table.ids().filter(|file| table.entry(*file).kind == EntryKind::Symlink) {
        let path = table.path(link);
        let inside = pgdata.join(std::ffi::OsStr::from_bytes(path));
        let Ok(device) = io::device_of(&inside) else { continue };
        let lane = devices.iter().position(|known| *known == device).unwrap_or_else(|| {
            devices.push(device);
            devices.len() - 1
        });
        lanes.push(([path, b"/"].concat(), lane));
    }
    lanes
}

/// Opens the data directory for the readers.
///
/// # Errors
/// `Source` if it cannot be opened.
pub(super) fn read_root(pgdata: &Path) -> Result<ReadRoot> {
    let directory = io::open_directory(pgdata)
        .map_err(|cause| Error::new(ErrorKind::Source, format!("open data directory {}", pgdata.display()), cause))?;
    Ok(ReadRoot { directory: Some(directory), memory: BTreeMap::new(), required: is_required })
}

/// No directory at all: the files come over the network.
pub(super) fn no_root() -> ReadRoot {
    ReadRoot { directory: None, memory: BTreeMap::new(), required: is_required }
}

/// Files that the server never drops: if one is not there, something is wrong.
///
/// Not among them: a database's PG_VERSION, which goes with DROP DATABASE, and the segments of pg_xact, of which
/// VACUUM removes the oldest.
fn is_required(path: &[u8]) -> bool {
    path == b"PG_VERSION" || path == b"global/pg_filenode.map" || path.starts_with(b"pg_wal/")
}

/// Adds empty directories of databases that were dropped before the files were listed, and whose map of relations WAL writes
/// anew: the server's replay ends where it finds no directory for the map, though the drop comes behind.
///
/// # Errors
/// Those of the table.
pub(super) fn add_dropped_databases(table: &mut FileTable, mapped: &[MappedDatabase]) -> Result<()> {
    for MappedDatabase { tablespace, database, .. } in mapped {
        let below = |home: &[u8]| [home, b"/", database.to_string().as_bytes()].concat();
        let is_home = |path: &[u8]| tablespace_oid(path) == Some(*tablespace) && is_database_directory(&below(path));
        let directories = || table.ids().filter(|file| table.entry(*file).kind == EntryKind::Directory);
        let Some(home) = directories().find(|file| is_home(table.path(*file))) else { continue };
        let path = below(table.path(home));
        if directories().all(|file| table.path(file) != path) {
            let FileEntry { mode, mtime_s, .. } = *table.entry(home);
            table.push(&path, &[], EntryKind::Directory, mode, mtime_s, 0)?;
        }
    }
    Ok(())
}

/// Adds a file whose content is in memory.
///
/// # Errors
/// Those of the table.
pub(super) fn add_memory_file(
    table: &mut FileTable,
    root: &mut ReadRoot,
    path: &str,
    content: Vec<u8>,
) -> Result<FileId> {
    let now = jiff::Timestamp::now().as_second();
    let file = table.push(path.as_bytes(), b"", EntryKind::File, file_mode(table), now, content.len() as u64)?;
    root.memory.insert(file, content);
    Ok(file)
}

/// Adds WAL segments and the timeline history files that lie beside them.
///
/// # Errors
/// `Source` if a segment is not there or not of the right size.
pub(super) fn add_wal(
    pgdata: &Path,
    table: &mut FileTable,
    segments: &[WalSegmentName],
    segment_size_bytes: u64,
) -> Result<Vec<FileId>> {
    let directory = pgdata.join("pg_wal");
    let mut files = Vec::new();
    for name in segments {
        let path = directory.join(name.as_str());
        let fail = |cause: String| {
            Error::new(ErrorKind::Source, format!("read WAL segment {}", path.display()), cause).hint(WAL_REMOVED_HINT)
        };
        let metadata = std::fs::metadata(&path).map_err(|cause| fail(cause.to_string()))?;
        if metadata.len() != segment_size_bytes {
            return Err(fail(format!("it has {} bytes where a segment has {segment_size_bytes}", metadata.len())));
        }
        files.push(push_wal_file(table, name.as_str(), metadata.len())?);
    }
    let listed = std::fs::read_dir(&directory)
        .map_err(|cause| Error::new(ErrorKind::Source, format!("list {}", directory.display()), cause))?;
    for entry in listed.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if is_history_file(&name)
            && let Ok(metadata) = entry.metadata()
        {
            files.push(push_wal_file(table, &name, metadata.len())?);
        }
    }
    Ok(files)
}

const WAL_REMOVED_HINT: &str = "the server removed WAL that this backup needs: give the role REPLICATION so that a temporary slot can hold it, and raise max_slot_wal_keep_size or wal_keep_size";

/// Says why a read failed if one of `segments` is gone, which were there a moment ago.
pub(super) fn with_wal_hint(pgdata: &Path, segments: &[WalSegmentName], error: Error) -> Error {
    let is_gone = |name: &WalSegmentName| !pgdata.join("pg_wal").join(name.as_str()).exists();
    if error.kind() == ErrorKind::Source && error.hint_text().is_none() && segments.iter().any(is_gone) {
        return error.hint(WAL_REMOVED_HINT);
    }
    error
}

fn push_wal_file(table: &mut FileTable, name: &str, size_bytes: u64) -> Result<FileId> {
    let now = jiff::Timestamp::now().as_second();
    table.push(format!("pg_wal/{name}").as_bytes(), b"", EntryKind::File, file_mode(table), now, size_bytes)
}

fn is_history_file(name: &str) -> bool {
    name.strip_suffix(".history")
        .is_some_and(|timeline| timeline.len() == 8 && timeline.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f02_wal_that_is_removed_after_it_was_listed_says_what_to_do() {
        let pgdata = tempfile::tempdir().unwrap();
        let (there, gone) = ("00000001000000000000000C", "00000001000000000000000D");
        std::fs::create_dir(pgdata.path().join("pg_wal")).unwrap();
        std::fs::write(pgdata.path().join("pg_wal").join(there), "").unwrap();
        let error = |kind| Error::new(kind, "read source file pg_wal/... at byte 0", "No such file or directory");
        let hint = |segments: &[&str], error| {
            let segments: Vec<WalSegmentName> = segments.iter().map(|name| name.parse().unwrap()).collect();
            with_wal_hint(pgdata.path(), &segments, error).hint_text().map(str::to_owned)
        };
        assert!(hint(&[there, gone], error(ErrorKind::Source)).unwrap().contains("REPLICATION"));
        assert_eq!(hint(&[there], error(ErrorKind::Source)), None);
        assert_eq!(hint(&[gone], error(ErrorKind::Repository)), None);
        assert_eq!(
            hint(&[gone], error(ErrorKind::Source).hint("run it as postgres")).as_deref(),
            Some("run it as postgres")
        );
    }
}
