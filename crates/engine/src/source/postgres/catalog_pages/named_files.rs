//! Whether the files are there that a database's `pg_class` names, by the file of `pg_class` itself.
//!
//! A backup begins with a checkpoint, so every row from before it is in that file. What this tells is what the server
//! would tell, as long as the file was not changed since the backup began: not by the LSN of any page, and not by its
//! time, for a page that is being written has a head that is not of its tail. A younger relation is made by the
//! WAL of the backup, and does not count. Of everything else nothing is said, and somebody else has to be asked.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, SystemTime};

use pagehaul_page::PAGE_SIZES_BYTES;
use rustix::io::Errno;

use super::super::catalog_files::{CatalogDatabase, RelationFile};
use super::super::data_directory::tablespace_version;
use super::super::page::PageHeader;
use super::super::relation_map::{self, FileMap, PG_CLASS, file_of};
use super::catalog_rows::{CatalogColumns, DEFAULT_TABLESPACE, FileRow, GLOBAL_TABLESPACE};
use super::heap_page::{Item, items};
use crate::io;
use crate::terms::Lsn;

/// A file that was written no longer ago may be in the middle of it: more than the steps of any file system's times.
const SETTLED: Duration = Duration::from_secs(3);
/// What one system call reads; a multiple of every page size.
const PIECE_BYTES: usize = 256 << 10;

/// The cluster of a running backup.
#[derive(Clone, Copy, Debug)]
pub struct NamedFiles<'a> {
    /// Its data directory.
    pub pgdata: &'a Path,
    /// Its major version.
    pub major: u32,
    /// Size of one data page.
    pub block_size_bytes: u32,
    /// Where the backup began: the redo point of its checkpoint.
    pub start_lsn: Lsn,
}

impl NamedFiles<'_> {
    /// Whether `has_files` says yes to every relation of `database` that has files, shared ones among them. No if it says no, and if the
    /// catalog's file does not tell.
    ///
    /// Reads the catalog once, 256 KiB at a time; what relations there are is not kept.
    pub fn are_there(&self, database: &CatalogDatabase, has_files: &mut dyn FnMut(&RelationFile) -> bool) -> bool {
        self.look(database, has_files).is_some()
    }

    /// None for no.
    fn look(&self, database: &CatalogDatabase, has_files: &mut dyn FnMut(&RelationFile) -> bool) -> Option<()> {
        let columns = CatalogColumns::of_major(self.major)?;
        if !PAGE_SIZES_BYTES.contains(&self.block_size_bytes) {
            return None;
        }
        let places = Places::of(self.pgdata, database)?;
        let first = format!("{}/{}", database.directory, file_of(&places.map, PG_CLASS)?);
        let mut mapped = HashSet::new();
        self.each_row(&first, columns, &mut |row| {
            if row.file_number == 0 {
                mapped.insert(row.oid);
            }
            has_files(&places.relation_file(row)?).then_some(())
        })?;
        // A file that was emptied, or cut, names too little and nothing that is missing.
        let mut known = places.map.iter().chain(&places.shared_map);
        if !known.all(|(oid, _)| mapped.contains(oid)) {
            return None;
        }
        // VACUUM FULL gives a catalog another file.
        (Places::of(self.pgdata, database)? == places).then_some(())
    }

    /// Calls `visit` for each row of the `pg_class` at `first` that has files and is not known to be gone.
    fn each_row(
        &self,
        first: &str,
        columns: CatalogColumns,
        visit: &mut dyn FnMut(&FileRow) -> Option<()>,
    ) -> Option<()> {
        let root = io::open_directory(self.pgdata).ok()?;
        let mut piece = vec![0; PIECE_BYTES];
        for segment_number in 0u64.. {
            let path = if segment_number == 0 { first.to_owned() } else { format!("{first}.{segment_number}") };
            let file = match io::open_below(root.as_fd(), path.as_bytes()) {
                Err(Errno::NOENT) if segment_number > 0 => return Some(()),
                file => std::fs::File::from(file.ok()?),
            };
            let written_at = file.metadata().ok()?.modified().ok()?;
            if SystemTime::now().duration_since(written_at).ok()? < SETTLED {
                return None;
            }
            let mut offset = 0;
            loop {
                let count = io::read_full_at(file.as_fd(), &mut piece, offset).ok()?;
                let pages = piece[..count].chunks_exact(self.block_size_bytes as usize);
                if !pages.remainder().is_empty() {
                    return None;
                }
                for page in pages {
                    self.each_row_of(page, columns, visit)?;
                }
                if count < PIECE_BYTES {
                    break;
                }
                offset += count as u64;
            }
            if file.metadata().ok()?.modified().ok()? != written_at {
                return None;
            }
        }
        None
    }

    fn each_row_of(
        &self,
        page: &[u8],
        columns: CatalogColumns,
        visit: &mut dyn FnMut(&FileRow) -> Option<()>,
    ) -> Option<()> {
        let header = PageHeader::parse(page)?;
        if !header.is_sane(page.len()) || header.lsn >= self.start_lsn {
            return None;
        }
        for item in items(page) {
            match item {
                Item::Tuple(tuple) if tuple.version.is_gone() => {}
                Item::Tuple(tuple) => {
                    let row = columns.file_row(&tuple)?;
                    if row.has_files {
                        visit(&row)?;
                    }
                }
                Item::TakenBack => {}
                Item::Broken => return None,
            }
        }
        Some(())
    }
}

/// What leads from a row to a path.
#[derive(PartialEq, Eq)]
struct Places<'a> {
    database: &'a CatalogDatabase,
    map: FileMap,
    shared_map: FileMap,
    /// The directory that a version has in every tablespace.
    version_directory: String,
}

impl<'a> Places<'a> {
    fn of(pgdata: &Path, database: &'a CatalogDatabase) -> Option<Self> {
        let map_of = |directory: &str| relation_map::read(&pgdata.join(directory));
        Some(Places {
            database,
            map: map_of(&database.directory)?,
            shared_map: map_of("global")?,
            version_directory: String::from_utf8(tablespace_version(pgdata).ok()?).ok()?,
        })
    }

    /// None for a mapped catalog that the map does not have.
    fn relation_file(&self, row: &FileRow) -> Option<RelationFile> {
        let FileRow { oid, file_number, tablespace, is_unlogged, .. } = *row;
        let map = if tablespace == GLOBAL_TABLESPACE { &self.shared_map } else { &self.map };
        let file_number = if file_number == 0 { file_of(map, oid)? } else { file_number };
        let database = self.database;
        let directory = match tablespace {
            0 => database.directory.clone(),
            GLOBAL_TABLESPACE => "global".to_owned(),
            DEFAULT_TABLESPACE => format!("base/{}", database.oid),
            other => format!("pg_tblspc/{other}/{}/{}", self.version_directory, database.oid),
        };
        Some(RelationFile { oid, path: format!("{directory}/{file_number}"), is_unlogged })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::PathBuf;

    use super::super::super::control_file::tests::sample;
    use super::super::heap_page::tests::page;
    use super::*;

    const XMIN_INVALID: u16 = 0x0200;
    const XMAX_COMMITTED: u16 = 0x0400;
    const START: Lsn = Lsn(0x5000);

    /// A tuple: transactions that made and deleted it, infomask, columns.
    type TestTuple = (u32, u32, u16, Vec<u8>);

    /// A row of version 15.
    fn row(oid: u32, file_number: u32, tablespace: u32, kind: [u8; 2]) -> Vec<u8> {
        let mut row = vec![0; 120];
        for (at, number) in [(0, oid), (88, file_number), (92, tablespace)] {
            row[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        row[114..116].copy_from_slice(&kind);
        row
    }

    fn live(row: Vec<u8>) -> TestTuple {
        (3, 0, 0, row)
    }

    fn map(entries: &[(u32, u32)]) -> Vec<u8> {
        let mut words = vec![0x0059_2717, entries.len() as u32];
        words.extend(entries.iter().flat_map(|(oid, file)| [*oid, *file]));
        words.resize(126, 0);
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend(crc_fast::crc32_iscsi(&bytes).to_le_bytes());
        bytes.resize(512, 0);
        bytes
    }

    /// A data directory with one database, whose `pg_class` is file 100 and has these pages, written a minute ago.
    struct Directory(tempfile::TempDir);

    impl Directory {
        fn new(pages: &[Vec<u8>]) -> Self {
            let directory = Directory(tempfile::tempdir().unwrap());
            for made in ["base/5", "global"] {
                std::fs::create_dir_all(directory.path().join(made)).unwrap();
            }
            directory.write("PG_VERSION", b"15\n");
            directory.write("global/pg_control", &sample());
            directory.write("base/5/pg_filenode.map", &map(&[(PG_CLASS, 100)]));
            directory.write("global/pg_filenode.map", &map(&[(1262, 200)]));
            directory.write("base/5/100", &pages.concat());
            directory
        }

        fn path(&self) -> PathBuf {
            self.0.path().to_owned()
        }

        fn write(&self, path: &str, bytes: &[u8]) {
            std::fs::write(self.path().join(path), bytes).unwrap();
            self.set_age(path, Duration::from_secs(60));
        }

        fn set_age(&self, path: &str, age: Duration) {
            let file = File::options().write(true).open(self.path().join(path)).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
        }

        /// What was asked for, and whether all of it is there, if nothing but `missing` is missing.
        fn look(&self, missing: &str) -> (Vec<RelationFile>, bool) {
            let (pgdata, mut asked) = (self.path(), Vec::new());
            let named = NamedFiles { pgdata: &pgdata, major: 15, block_size_bytes: 8192, start_lsn: START };
            let database = CatalogDatabase {
                oid: 5,
                name: Some("shop".to_owned()),
                allows_connections: true,
                directory: "base/5".to_owned(),
            };
            let are_there = named.are_there(&database, &mut |relation| {
                asked.push(relation.clone());
                relation.path != missing
            });
            (asked, are_there)
        }
    }

    /// The mapped catalogs, without which a catalog is not whole.
    fn mapped() -> Vec<TestTuple> {
        vec![live(row(1259, 0, 0, *b"pr")), live(row(1262, 0, GLOBAL_TABLESPACE, *b"pr"))]
    }

    fn whole_page() -> Vec<u8> {
        page(8192, &[mapped(), vec![live(row(16_400, 16_401, 0, *b"pr"))]].concat())
    }

    #[test]
    fn every_relation_with_files_is_asked_for_by_its_path() {
        let rows = vec![
            live(row(1259, 0, 0, *b"pr")),
            live(row(1262, 0, GLOBAL_TABLESPACE, *b"pr")),
            live(row(2676, 2677, GLOBAL_TABLESPACE, *b"pi")),
            live(row(16_400, 16_401, 0, *b"pr")),
            live(row(16_402, 16_402, DEFAULT_TABLESPACE, *b"ur")),
            live(row(16_403, 16_403, 16_390, *b"pS")),
            // Without files: a view, a partitioned table, another session's temporary table.
            live(row(16_404, 0, 0, *b"pv")),
            live(row(16_405, 0, 0, *b"pp")),
            live(row(16_406, 16_406, 0, *b"tr")),
        ];
        let directory = Directory::new(&[page(8192, &rows), page(8192, &[live(row(16_407, 16_407, 0, *b"pm"))])]);
        directory.write("base/5/100.1", &page(8192, &[live(row(16_408, 16_408, 0, *b"pt"))]));
        let version = String::from_utf8(tablespace_version(&directory.path()).unwrap()).unwrap();
        let in_space = format!("pg_tblspc/16390/{version}/5/16403");
        let expected = [
            (1259, "base/5/100", false),
            (1262, "global/200", false),
            (2676, "global/2677", false),
            (16_400, "base/5/16401", false),
            (16_402, "base/5/16402", true),
            (16_403, &in_space, false),
            (16_407, "base/5/16407", false),
            (16_408, "base/5/16408", false),
        ];
        let expected =
            expected.map(|(oid, path, is_unlogged)| RelationFile { oid, path: path.to_owned(), is_unlogged });
        assert_eq!(directory.look(""), (expected.to_vec(), true));
        for relation in expected {
            assert!(!directory.look(&relation.path).1, "{relation:?}");
        }
    }

    #[test]
    fn rows_that_nobody_can_see_do_not_count_and_all_others_do() {
        let old = |deleted_by, infomask| vec![(3, deleted_by, infomask, row(16_400, 16_401, 0, *b"pr"))];
        let has_all =
            |tuples: &[TestTuple]| Directory::new(&[page(8192, &mapped()), page(8192, tuples)]).look("base/5/16401").1;
        assert!(has_all(&old(9, XMAX_COMMITTED)), "replaced");
        assert!(has_all(&old(0, XMIN_INVALID)), "taken back");
        // Deleted by nobody knows whom; deleted by somebody who did not commit; locked.
        for (deleted_by, infomask) in [(0, 0), (9, 0), (9, 0x0800), (9, XMAX_COMMITTED | 0x0080)] {
            assert!(!has_all(&old(deleted_by, infomask)), "{infomask:x}");
        }
    }

    #[test]
    fn f53_a_catalog_that_does_not_stand_still_or_is_not_whole_says_nothing() {
        let whole = whole_page();
        let says = |pages: &[Vec<u8>]| Directory::new(pages).look("").1;
        assert!(says(std::slice::from_ref(&whole)));
        for lsn in [START.0 - 1, START.0] {
            let mut changed = whole.clone();
            changed[4..8].copy_from_slice(&(lsn as u32).to_le_bytes());
            assert_eq!(says(&[whole.clone(), changed]), lsn < START.0, "{lsn:x}");
        }
        let broken = |at: usize, byte: u8| {
            let mut page = whole.clone();
            page[at] = byte;
            page
        };
        assert!(!says(&[vec![0; 8192]]), "a page that was never used, or lost");
        assert!(!says(&[whole[..4096].to_vec()]), "half a page");
        assert!(!says(&[broken(18, 9)]), "no page");
        assert!(!says(&[broken(27, 0xFF)]), "a tuple beyond the page");
        let beside = |tuple: Vec<u8>| says(&[whole.clone(), page(8192, &[live(tuple)])]);
        assert!(beside(row(16_402, 16_402, 0, *b"pr")));
        assert!(!beside(vec![0; 100]), "too short for a row");
        assert!(!beside(row(1247, 0, 0, *b"pr")), "a mapped catalog that the map has not");
        assert!(!says(&[]), "emptied");
        assert!(!says(&[page(8192, &mapped()[..1])]), "cut");
        let directory = Directory::new(std::slice::from_ref(&whole));
        for age in [Duration::ZERO, Duration::from_secs(1)] {
            directory.set_age("base/5/100", age);
            assert!(!directory.look("").1, "{age:?}");
        }
        let future = SystemTime::now() + Duration::from_secs(3600);
        File::options().write(true).open(directory.path().join("base/5/100")).unwrap().set_modified(future).unwrap();
        assert!(!directory.look("").1, "a clock that was set back");
        for gone in ["base/5/100", "base/5/pg_filenode.map", "global/pg_filenode.map", "PG_VERSION"] {
            let directory = Directory::new(std::slice::from_ref(&whole));
            std::fs::remove_file(directory.path().join(gone)).unwrap();
            assert!(!directory.look("").1, "{gone}");
        }
    }

    #[test]
    fn a_catalog_that_changes_while_it_is_read_says_nothing() {
        let other_map = map(&[(PG_CLASS, 102)]);
        for (path, bytes) in [("base/5/100", page(8192, &[])), ("base/5/pg_filenode.map", other_map)] {
            let directory = Directory::new(&[whole_page()]);
            let pgdata = directory.path();
            let named = NamedFiles { pgdata: &pgdata, major: 15, block_size_bytes: 8192, start_lsn: START };
            let database =
                CatalogDatabase { oid: 5, name: None, allows_connections: true, directory: "base/5".to_owned() };
            let are_there = named.are_there(&database, &mut |_| {
                std::fs::write(pgdata.join(path), &bytes).unwrap();
                true
            });
            assert!(!are_there, "{path}");
        }
    }
}
