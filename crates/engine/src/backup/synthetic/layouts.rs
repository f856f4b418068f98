//! What the pages of a chain's files hold, by the catalogs that lie in the chain itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rustix::io::Errno;

use super::super::layouts::noted;
use super::plan::Plan;
use super::store::read_control_file;
use crate::catalog::OpenSet;
use crate::format::file_table::{EntryKind, FileTable};
use crate::io::IoResult;
use crate::pipeline::frame_reader::FrameReader;
use crate::pipeline::{Observer, StripeInput};
use crate::source::postgres::relation_layouts::{ClusterFiles, RelationLayouts, read_from_files};
use crate::terms::FileId;

/// The relations of the chain's newest set, and its stripes again; None if the codec does not want to know. It is a hint, so
/// what does not read here is no error: it is one where it is stored.
pub(super) fn of_chain(
    chain: &OpenSet,
    stripes: Vec<StripeInput>,
    plan: &Plan,
    observer: &dyn Observer,
) -> (Option<RelationLayouts>, Vec<StripeInput>) {
    if !plan.codec.wants_layouts() {
        return (None, stripes);
    }
    let mut reader = FrameReader::keeping(stripes, plan.cached_frames);
    let postgres = &chain.manifest.postgres;
    let control_file = read_control_file(&mut reader, &chain.table);
    let mut files = ChainFiles::new(&chain.table, reader, observer);
    let major = postgres.version_num / 10_000;
    let read = control_file.map(|control_file| read_from_files(&mut files, &control_file, major));
    (Some(noted(read, postgres.block_size_bytes, observer)), files.reader.into_stripes())
}

/// The files of a chain's newest set, put together from all its sets.
struct ChainFiles<'a> {
    table: &'a FileTable,
    files: HashMap<&'a [u8], FileId>,
    /// By directory.
    numbers: BTreeMap<String, BTreeSet<u32>>,
    reader: FrameReader,
    observer: &'a dyn Observer,
}

impl<'a> ChainFiles<'a> {
    fn new(table: &'a FileTable, reader: FrameReader, observer: &'a dyn Observer) -> Self {
        let (mut files, mut numbers) = (HashMap::new(), BTreeMap::<String, BTreeSet<u32>>::new());
        for file in table.ids().filter(|file| table.entry(*file).kind == EntryKind::File) {
            let path = table.path(file);
            if !note_numbers(path, &mut numbers) && !path.starts_with(b"global/") {
                continue;
            }
            files.insert(path, file);
        }
        ChainFiles { table, files, numbers, reader, observer }
    }
}

/// Notes which numbers are names in the directories above the file at `path`; whether it is in a database's directory.
fn note_numbers(path: &[u8], numbers: &mut BTreeMap<String, BTreeSet<u32>>) -> bool {
    let Ok(path) = std::str::from_utf8(path) else { return false };
    let mut note = |directory: &str, name: &str| {
        let Ok(number) = name.parse() else { return false };
        match numbers.get_mut(directory) {
            Some(known) => known.insert(number),
            None => numbers.insert(directory.to_owned(), BTreeSet::from([number])).is_none(),
        };
        true
    };
    let parts: Vec<&str> = path.splitn(5, '/').collect();
    match parts[..] {
        ["base", database, _] => note("base", database),
        ["pg_tblspc", tablespace, version, database, _] => {
            note("pg_tblspc", tablespace) && note(&format!("pg_tblspc/{tablespace}/{version}"), database)
        }
        _ => false,
    }
}

impl ClusterFiles for ChainFiles<'_> {
    fn read(&mut self, path: &str, offset: u64, into: &mut [u8]) -> IoResult<usize> {
        let file = *self.files.get(path.as_bytes()).ok_or(Errno::NOENT)?;
        if self.observer.interrupted() {
            return Err(Errno::INTR);
        }
        let left = self.table.entry(file).size_bytes.saturating_sub(offset);
        let count = left.min(into.len() as u64) as usize;
        let read = self.reader.read(self.table, file, offset, &mut into[..count]);
        read.map(|()| count).map_err(|_| Errno::IO)
    }

    fn numbers_in(&mut self, directory: &str) -> Vec<u32> {
        self.numbers.get(directory).into_iter().flatten().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::NoObserver;

    #[test]
    fn databases_are_found_by_their_files() {
        let mut table = FileTable::default();
        let paths = [
            "base/5/112",
            "base/5/113",
            "base/16384/PG_VERSION",
            "base/pgsql_tmp/1",
            "global/pg_filenode.map",
            "pg_tblspc/16390/PG_15_202209061/6/pg_filenode.map",
            "pg_tblspc/16390/PG_15_202209061/7/1",
            "pg_tblspc/x/PG_15_202209061/8/1",
            "pg_wal/9/1",
        ];
        for path in paths {
            table.push(path.as_bytes(), b"", EntryKind::File, 0o600, 0, 0).unwrap();
        }
        table.push(b"base/9/1", b"", EntryKind::Directory, 0o700, 0, 0).unwrap();
        let mut files = ChainFiles::new(&table, FrameReader::new(Vec::new()), &NoObserver);
        assert_eq!(files.numbers_in("base"), [5, 16_384]);
        assert_eq!(files.numbers_in("pg_tblspc"), [16_390]);
        assert_eq!(files.numbers_in("pg_tblspc/16390/PG_15_202209061"), [6, 7]);
        assert_eq!(files.numbers_in("pg_wal"), [0u32; 0]);
        let mut read = |path: &str| files.read(path, 0, &mut [0; 9]);
        assert_eq!(read("base/5/112"), Ok(0), "it is empty");
        assert_eq!(read("global/pg_filenode.map"), Ok(0));
        assert_eq!([read("base/5/111"), read("pg_wal/9/1")], [Err(Errno::NOENT); 2]);
    }
}
