//! Compares what a server says to have sent with what arrived: the same files, the same sizes, the same checksums.

use std::collections::BTreeMap;

use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::combine;
use crate::format::file_table::{EntryKind, FileTable, StoredRun};
use crate::source::postgres::data_directory::is_signal_file;
use crate::source::postgres::server_manifest::SentFile;
use crate::terms::FileId;

/// A file that is not stored as it was sent: it lost its head on the way, or was written anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SentAs {
    /// Its path in the server's manifest.
    pub(super) path: Vec<u8>,
    /// The part that is not stored: its length and its CRC32C.
    pub(super) head_bytes: u64,
    pub(super) head_crc32c: u32,
    /// Bytes behind it that are stored, in the order in which they came.
    pub(super) stored_bytes: u64,
}

/// What a server says to have sent, and where what is stored is something else.
#[derive(Debug, Default)]
pub(super) struct Sent {
    /// Sorted by path.
    pub(super) files: Vec<SentFile>,
    /// By the number in the table of the stream, from which no file is ever left out.
    pub(super) otherwise: BTreeMap<FileId, SentAs>,
}

impl Sent {
    /// Notes what came out of the data path of files that are not stored as they were sent; `stored` is sorted by file and
    /// offset.
    ///
    /// # Errors
    /// `Source` if it is not as long as what went in.
    pub(super) fn note_stored(&mut self, stored: &[StoredRun]) -> Result<()> {
        for (file, sent) in self.otherwise.iter_mut().filter(|(_, sent)| sent.stored_bytes > 0) {
            let first = stored.partition_point(|run| run.file < *file);
            let own = stored[first..].iter().take_while(|run| run.file == *file);
            let (mut bytes, mut digest) = (0, 0);
            for StoredRun { run, crc32c, .. } in own {
                digest = combine(digest, *crc32c, run.size_bytes);
                bytes += run.size_bytes;
            }
            if bytes != sent.stored_bytes {
                return Err(refuse(&sent.path, &format!("{bytes} of {} bytes were stored", sent.stored_bytes)));
            }
            (sent.head_crc32c, sent.head_bytes) = (combine(sent.head_crc32c, digest, bytes), sent.head_bytes + bytes);
            sent.stored_bytes = 0;
        }
        Ok(())
    }

    /// Compares with the files of `table` but for the WAL, which came another way.
    ///
    /// # Errors
    /// `Source`, naming the first file that differs.
    pub(super) fn compare(&self, table: &FileTable) -> Result<()> {
        let mut arrived: Vec<SentFile> = Vec::new();
        let mut paths: Vec<&[u8]> = Vec::new();
        for file in table.ids().filter(|file| table.entry(*file).kind == EntryKind::File) {
            let (path, entry) = (table.path(file), table.entry(file));
            if path.starts_with(b"pg_wal/") {
                continue;
            }
            paths.push(path);
            arrived.push(match self.otherwise.get(&file) {
                Some(SentAs { path, head_bytes, head_crc32c, .. }) => {
                    SentFile { path: path.clone(), size_bytes: *head_bytes, crc32c: *head_crc32c }
                }
                None => SentFile { path: path.to_vec(), size_bytes: entry.size_bytes, crc32c: entry.crc32c },
            });
        }
        paths.sort_unstable();
        if let Some(twice) = paths.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(refuse(twice[0], "it came twice"));
        }
        arrived.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        compare_lists(&self.files, &arrived)
    }
}

/// Compares two lists that are sorted by path.
fn compare_lists(sent: &[SentFile], arrived: &[SentFile]) -> Result<()> {
    let mut arrived = arrived.iter();
    for sent in sent.iter().filter(|sent| !is_signal_file(&sent.path)) {
        let Some(file) = arrived.next() else { return Err(refuse(&sent.path, "it did not arrive")) };
        if file.path != sent.path {
            let is_missing = file.path > sent.path;
            return Err(match is_missing {
                true => refuse(&sent.path, "it did not arrive"),
                false => refuse(&file.path, "the server's manifest does not know it"),
            });
        }
        if file.size_bytes != sent.size_bytes {
            let cause = format!("{} bytes arrived, the server says {}", file.size_bytes, sent.size_bytes);
            return Err(refuse(&sent.path, &cause));
        }
        if file.crc32c != sent.crc32c {
            let cause = format!("CRC32C {:08x} arrived, the server says {:08x}", file.crc32c, sent.crc32c);
            return Err(refuse(&sent.path, &cause));
        }
    }
    match arrived.next() {
        Some(file) => Err(refuse(&file.path, "the server's manifest does not know it")),
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
    use crate::format::file_table::{Place, Run, ZeroFill};

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

    fn compare(sent: &[SentFile], table: &FileTable) -> Result<()> {
        Sent { files: sent.to_vec(), otherwise: BTreeMap::new() }.compare(table)
    }

    #[test]
    fn every_difference_is_named() {
        let cause = |sent: &[SentFile], paths: &[&str]| compare(sent, &table(paths)).unwrap_err().message();
        compare(&sent(&["a", "b", "standby.signal"]), &table(&["b", "a", "pg_wal/000000010000000000000001"])).unwrap();
        assert!(cause(&sent(&["a", "b"]), &["a"]).contains("b as the server sent it: it did not arrive"));
        assert!(cause(&sent(&["a", "b"]), &["b"]).contains("a as the server sent it: it did not arrive"));
        assert!(cause(&sent(&["b"]), &["a", "b"]).contains("accept a as"));
        assert!(cause(&sent(&["a"]), &["a", "b"]).contains("accept b as"));
        assert!(cause(&sent(&["a", "a"]), &["a", "a"]).contains("it came twice"));
        let mut other = sent(&["a"]);
        other[0].size_bytes = 1;
        assert!(cause(&other, &["a"]).contains("the server says 1"));
        let mut other = sent(&["a"]);
        other[0].crc32c ^= 1;
        assert!(cause(&other, &["a"]).contains("CRC32C"));
    }

    #[test]
    fn what_lost_its_head_is_compared_as_it_was_sent() {
        let (head, pages) = (b"head".as_slice(), [[1u8; 8192], [2u8; 8192]]);
        let whole = [head, &pages[0], &pages[1]].concat();
        let path = b"base/5/INCREMENTAL.7".to_vec();
        let as_sent = SentAs { path: path.clone(), head_bytes: 4, head_crc32c: crc32c(head), stored_bytes: 16_384 };
        let files = vec![SentFile { path, size_bytes: whole.len() as u64, crc32c: crc32c(&whole) }];
        let run = |page: usize, at: u64| StoredRun {
            file: FileId(1),
            run: Run::new(at * 8192, 8192, Place::Zeros),
            crc32c: crc32c(&pages[page]),
        };
        let judge = |runs: &[StoredRun]| {
            let mut sent = Sent { files: files.clone(), otherwise: BTreeMap::from([(FileId(1), as_sent.clone())]) };
            sent.note_stored(runs)?;
            sent.compare(&table(&["base/5/7"]))
        };
        judge(&[run(0, 3), run(1, 9)]).unwrap();
        assert!(judge(&[run(1, 3), run(0, 9)]).unwrap_err().message().contains("CRC32C"));
        assert!(judge(&[run(0, 3)]).unwrap_err().message().contains("8192 of 16384 bytes"));
    }
}
