//! Whether restored files hold the bytes that were read from the source: every file is read back and digested.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use pagehaul_engine::catalog::Repository;
use pagehaul_engine::catalog::open_set::open_set;
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::format::checksum::{combine, crc32c};
use pagehaul_engine::format::file_table::{EntryKind, FileTable};
use pagehaul_engine::io::{self, AlignedBytes};
use pagehaul_engine::terms::{BackupLabel, FileId, SourceName};

/// Bytes read at once.
const PIECE_BYTES: usize = 1 << 20;
/// What a restore writes anew: settings for recovery, the places of moved tablespaces, and pg_control, which names no
/// checkpoint while the backup's label does.
const WRITTEN_ANEW: [&[u8]; 3] = [b"postgresql.auto.conf", b"tablespace_map", b"global/pg_control"];

/// Compares every file below `restored` with the digest that was taken when it was read from the source.
///
/// Gives the first file that differs; None if all are equal.
///
/// # Errors
/// `Damage` if the set cannot be opened, `Target` if a restored file cannot be read, `Interrupted` if `stop` says so.
pub fn first_difference(
    repo: &str,
    source: &SourceName,
    label: &BackupLabel,
    restored: &Path,
    stop: &dyn Fn() -> bool,
) -> Result<Option<String>> {
    let set = open_set(&Repository::open(repo)?, source, label, &[])?;
    let mut buffer = AlignedBytes::new(PIECE_BYTES)?;
    for file in set.table.ids().filter(|file| set.table.entry(*file).kind == EntryKind::File) {
        if stop() {
            return Err(Error::new(ErrorKind::Interrupted, "compare the restored files", "it was asked to stop"));
        }
        let path = set.table.path(file);
        if !WRITTEN_ANEW.contains(&path) && !is_equal(&set.table, file, restored, &mut buffer)? {
            return Ok(Some(set.table.path_text(file)));
        }
    }
    Ok(None)
}

fn is_equal(table: &FileTable, file: FileId, restored: &Path, buffer: &mut [u8]) -> Result<bool> {
    let (entry, path) = (table.entry(file), restored.join(OsStr::from_bytes(table.path(file))));
    let failed = |cause| Error::new(ErrorKind::Target, format!("read restored file {}", path.display()), cause);
    let restored = std::fs::File::open(&path).map_err(failed)?;
    let (mut digest, mut length) = (0, 0u64);
    loop {
        let count = io::read_full_at(restored.as_fd(), buffer, length).map_err(|cause| failed(cause.into()))?;
        digest = combine(digest, crc32c(&buffer[..count]), count as u64);
        length += count as u64;
        if count < buffer.len() {
            return Ok(length == entry.size_bytes && digest == entry.crc32c);
        }
    }
}
