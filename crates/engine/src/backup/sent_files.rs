//! Compares what a server says to have sent with what arrived: the same files, the same sizes, the same checksums.

use crate::error::{Error, ErrorKind, Result};
use crate::format::file_table::{EntryKind, FileTable};
use crate::source::postgres::data_directory::is_signal_file;
use crate::source::postgres::server_manifest::SentFile;
use crate::terms::FileId;

/// Compares `sent`, sorted by path, with the files of `table` but for the WAL, which came another way.
///
/// # Errors
/// `Source`, naming the first file that differs.
pub(super) fn compare(sent: &[SentFile], table: &FileTable) -> Result<()> {
    let is_file = |file: &FileId| table.entry(*file).kind == EntryKind::File;
    let mut arrived: Vec<FileId> = table.ids().filter(is_file).collect();
    arrived.retain(|file| !table.path(*file).starts_with(b"pg_wal/"));
    arrived.sort_unstable_by(|a, b| table.path(*a).cmp(table.path(*b)));
    let mut arrived = arrived.into_iter();
    for sent in sent.iter().filter(|sent| !is_signal_file(&sent.path)) {
        let Some(file) = arrived.next() else { return Err(refuse(&sent.path, "it did not arrive")) };
        let entry = table.entry(file);
        if table.path(file) != sent.path {
            let is_missing = table.path(file) > sent.path.as_slice();
            return Err(match is_missing {
                true => refuse(&sent.path, "it did not arrive"),
                false => refuse(table.path(file), "the server's manifest does not know it"),
            });
        }
        if entry.size_bytes != sent.size_bytes {
            let cause = format!("{} bytes arrived, the server says {}", entry.size_bytes, sent.size_bytes);
            return Err(refuse(&sent.path, &cause));
        }
        if entry.crc32c != sent.crc32c {
            let cause = format!("CRC32C {:08x} arrived, the server says {:08x}", entry.crc32c, sent.crc32c);
            return Err(refuse(&sent.path, &cause));
        }
    }
    match arrived.next() {
        Some(file) => Err(refuse(table.path(file), "the server's manifest does not know it")),
        None => Ok(()),
    }
}

fn refuse(path: &[u8], cause: &str) -> Error {
    let action = format!("accept {} as the server sent it", path.escape_ascii());
    Error::new(ErrorKind::Source, action, cause).hint("bytes were lost or changed on the way; begin a new backup")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::checksum::crc32c;
    use crate::format::file_table::ZeroFill;

    /// A table of empty files, as `with_content` leaves it.
    fn table(paths: &[&str]) -> FileTable {
        let mut table = FileTable::default();
        table.push(b"base", b"", EntryKind::Directory, 0o700, 0, 0).unwrap();
        for path in paths {
            table.push(path.as_bytes(), b"", EntryKind::File, 0o600, 0, 0).unwrap();
        }
        table.with_content(Vec::new(), &[], &[65_536], &mut ZeroFill).unwrap()
    }

    fn sent(paths: &[&str]) -> Vec<SentFile> {
        let file = |path: &&str| SentFile { path: path.as_bytes().to_vec(), size_bytes: 0, crc32c: crc32c(b"") };
        paths.iter().map(file).collect()
    }

    #[test]
    fn every_difference_is_named() {
        let cause = |sent: &[SentFile], paths: &[&str]| compare(sent, &table(paths)).unwrap_err().message();
        compare(&sent(&["a", "b", "standby.signal"]), &table(&["b", "a", "pg_wal/000000010000000000000001"])).unwrap();
        assert!(cause(&sent(&["a", "b"]), &["a"]).contains("b as the server sent it: it did not arrive"));
        assert!(cause(&sent(&["a", "b"]), &["b"]).contains("a as the server sent it: it did not arrive"));
        assert!(cause(&sent(&["b"]), &["a", "b"]).contains("accept a as"));
        assert!(cause(&sent(&["a"]), &["a", "b"]).contains("accept b as"));
        assert!(cause(&sent(&["a"]), &["a", "a"]).contains("does not know it"), "twice the same name");
        let mut other = sent(&["a"]);
        other[0].size_bytes = 1;
        assert!(cause(&other, &["a"]).contains("the server says 1"));
        let mut other = sent(&["a"]);
        other[0].crc32c ^= 1;
        assert!(cause(&other, &["a"]).contains("CRC32C"));
    }
}
