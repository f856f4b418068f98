//! Layouts from the files of the catalogs, without a server: those of a data directory, or those that a backup holds.
//!
//! The server may be running: what it has not yet written is not seen, and a page may be torn. After the checkpoint that
//! begins a backup only what has changed since is missing. A backup's files are as torn, as no WAL has been replayed.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use pagehaul_page::{Attribute, PAGE_SIZES_BYTES};
use rustix::io::Errno;

use super::super::catalog_pages::catalog_rows::{
    CatalogColumns, ClassRow, ColumnRow, DEFAULT_TABLESPACE, Domains, GLOBAL_TABLESPACE,
};
use super::super::catalog_pages::heap_page::{Tuple, tuples};
use super::super::control_file::{ControlFile, read_control_file};
use super::super::data_directory::major_version;
use super::super::path_class::is_database_directory;
use super::super::relation_map::{self, FileMap, PG_ATTRIBUTE, PG_CLASS, PG_TYPE, file_of};
use super::{Collector, Place, RelationLayouts};
use crate::error::{Error, ErrorKind, Result};
use crate::io;

/// How much of one catalog is read; relations whose rows lie behind it have no layout.
const CATALOG_BYTES_MAX: u64 = 1 << 30;
/// How much of the catalogs of all databases is read: some seconds.
const READ_BYTES_MAX: u64 = 8 << 30;
/// What one system call reads; a multiple of every page size.
const PIECE_BYTES: usize = 256 << 10;
/// The longest `pg_filenode.map` is 524 bytes.
const MAP_BYTES_MAX: usize = 1024;
/// Rows of `pg_class` of one database that are remembered: 24 MiB.
const CLASS_ROWS_MAX: usize = 1 << 20;
/// Rows of `pg_attribute` of one database that are remembered: 40 MiB, and half as much again while they grow.
const COLUMN_ROWS_MAX: usize = 2 << 20;
const _: () = assert!(size_of::<ClassRow>() <= 24 && size_of::<ColumnRow>() <= 20);
/// A catalog that is rewritten meanwhile is read again this often.
const ATTEMPTS_MAX: u32 = 3;

/// The files of a cluster, wherever they lie. Paths are relative to the data directory, with tablespaces under `pg_tblspc`.
pub trait ClusterFiles {
    /// Fills `into` with the bytes of the file at `path` from `offset`: how many there were before its end.
    ///
    /// # Errors
    /// `NOENT` if there is no such file; others if it does not read.
    fn read(&mut self, path: &str, offset: u64, into: &mut [u8]) -> io::IoResult<usize>;

    /// The names in `directory` that are numbers, sorted; none if there is no such directory.
    fn numbers_in(&mut self, directory: &str) -> Vec<u32>;
}

/// The layouts of the relations of all databases in the data directory `pgdata`.
///
/// While this runs, up to 200 MiB are in use, if the catalogs reach every bound.
///
/// # Errors
/// `Source` or `Damage` if pg_control, `PG_VERSION` or the directory itself cannot be read; nothing else is an error.
pub fn read_from_catalog_files(pgdata: &Path) -> Result<RelationLayouts> {
    let (_, control_file) = read_control_file(pgdata)?;
    let major = major_version(pgdata)?;
    let root = io::open_directory(pgdata)
        .map_err(|cause| Error::new(ErrorKind::Source, format!("open {}", pgdata.display()), cause))?;
    let mut files = DataDirectory { pgdata, root, open: None };
    Ok(read_from_files(&mut files, &control_file, major))
}

/// The same of the files of a cluster of version `major` with this `pg_control`; as much memory is in use.
pub fn read_from_files(files: &mut dyn ClusterFiles, control_file: &ControlFile, major: u32) -> RelationLayouts {
    let mut collector = Collector::new(control_file.block_size_bytes, control_file.segment_blocks);
    let columns = CatalogColumns::of_major(major);
    let (Some(columns), true) = (columns, PAGE_SIZES_BYTES.contains(&control_file.block_size_bytes)) else {
        return collector.finish();
    };
    let databases = databases(files, &format!("PG_{major}_{}", control_file.catalog_version));
    let mut catalogs = CatalogFiles {
        files,
        columns,
        page_size_bytes: control_file.block_size_bytes as usize,
        segment_bytes: u64::from(control_file.segment_blocks) * u64::from(control_file.block_size_bytes),
        left_bytes: READ_BYTES_MAX,
        piece: vec![0; PIECE_BYTES],
    };
    let mut shared_map = catalogs.map_of("global").unwrap_or_default();
    for database in databases {
        if let Some(facts) = catalogs.facts_of(&database.directory)
            && facts.hand_over(&database, &shared_map, &mut collector)
        {
            // Every database has the rows of the shared catalogs; once is enough.
            shared_map.clear();
        }
    }
    collector.finish()
}

/// Those of a directory, whose server may be running.
struct DataDirectory<'a> {
    pgdata: &'a Path,
    root: OwnedFd,
    /// The last file that was read: one that is unlinked meanwhile is read to its end.
    open: Option<(String, OwnedFd)>,
}

impl ClusterFiles for DataDirectory<'_> {
    fn read(&mut self, path: &str, offset: u64, into: &mut [u8]) -> io::IoResult<usize> {
        // From its start on a file is read anew.
        let open = self.open.take().filter(|(of, _)| offset > 0 && of == path);
        let (path, file) = match open {
            Some(open) => open,
            None => (path.to_owned(), io::open_below(self.root.as_fd(), path.as_bytes())?),
        };
        let count = io::read_full_at(file.as_fd(), into, offset)?;
        self.open = Some((path, file));
        Ok(count)
    }

    fn numbers_in(&mut self, directory: &str) -> Vec<u32> {
        let entries = std::fs::read_dir(self.pgdata.join(directory)).into_iter().flatten().flatten();
        let number = |name: &OsStr| std::str::from_utf8(name.as_bytes()).ok()?.parse().ok();
        let mut numbers: Vec<u32> = entries.filter_map(|entry| number(&entry.file_name())).collect();
        numbers.sort_unstable();
        numbers
    }
}

/// One database's own directory, the one with its catalogs.
struct DatabaseDirectory {
    tablespace: u32,
    database: u32,
    /// Relative to the data directory.
    directory: String,
}

/// Directories in which a database may have its catalogs, in the order of their numbers.
fn databases(files: &mut dyn ClusterFiles, version_directory: &str) -> Vec<DatabaseDirectory> {
    let mut places = vec![(DEFAULT_TABLESPACE, "base".to_owned())];
    for tablespace in files.numbers_in("pg_tblspc") {
        places.push((tablespace, format!("pg_tblspc/{tablespace}/{version_directory}")));
    }
    let of_place = |(tablespace, place): (u32, String)| {
        files.numbers_in(&place).into_iter().map(move |database| DatabaseDirectory {
            tablespace,
            database,
            directory: format!("{place}/{database}"),
        })
    };
    let directories = places.into_iter().flat_map(of_place);
    directories.filter(|found| is_database_directory(found.directory.as_bytes())).collect()
}

/// Reads the catalogs of one cluster.
struct CatalogFiles<'a> {
    files: &'a mut dyn ClusterFiles,
    columns: CatalogColumns,
    page_size_bytes: usize,
    segment_bytes: u64,
    /// How much may still be read.
    left_bytes: u64,
    piece: Vec<u8>,
}

impl CatalogFiles<'_> {
    /// `pg_filenode.map` in `directory`; None if there is no sound one.
    fn map_of(&mut self, directory: &str) -> Option<FileMap> {
        let mut bytes = [0; MAP_BYTES_MAX];
        let length = self.files.read(&format!("{directory}/pg_filenode.map"), 0, &mut bytes).ok()?;
        relation_map::parse(&bytes[..length])
    }

    /// What the catalogs in `directory` say; None if they are not to be found there.
    fn facts_of(&mut self, directory: &str) -> Option<DatabaseFacts> {
        let mut facts = None;
        for _ in 0..ATTEMPTS_MAX {
            let map = self.map_of(directory)?;
            facts = self.read_catalogs(directory, map);
            // VACUUM FULL of a catalog takes the old file away.
            if facts.as_ref().is_some_and(|facts| self.map_of(directory).as_ref() == Some(&facts.map)) {
                break;
            }
        }
        facts
    }

    fn read_catalogs(&mut self, directory: &str, map: FileMap) -> Option<DatabaseFacts> {
        let columns = self.columns;
        let mut domains = Domains::default();
        self.each_tuple(directory, file_of(&map, PG_TYPE)?, &mut |tuple| {
            columns.note_domain(tuple, &mut domains);
            true
        })
        .ok()?;
        let mut classes = Vec::new();
        self.each_tuple(directory, file_of(&map, PG_CLASS)?, &mut |tuple| {
            classes.extend(columns.class_row(tuple));
            classes.len() < CLASS_ROWS_MAX
        })
        .ok()?;
        let wanted: HashSet<u32> = classes.iter().map(|class| class.oid).collect();
        let mut rows = Vec::new();
        self.each_tuple(directory, file_of(&map, PG_ATTRIBUTE)?, &mut |tuple| {
            rows.extend(columns.column_row(tuple, &domains).filter(|row| wanted.contains(&row.relation)));
            rows.len() < COLUMN_ROWS_MAX
        })
        .ok()?;
        Some(DatabaseFacts { map, classes, columns: latest_columns(rows) })
    }

    /// Calls `visit` for every tuple of one heap until it has enough, or as much is read as may be.
    fn each_tuple(
        &mut self,
        directory: &str,
        file_number: u32,
        visit: &mut dyn FnMut(&Tuple<'_>) -> bool,
    ) -> io::IoResult<()> {
        let mut left_of_catalog = CATALOG_BYTES_MAX;
        for segment_number in 0u64.. {
            let path = match segment_number {
                0 => format!("{directory}/{file_number}"),
                _ => format!("{directory}/{file_number}.{segment_number}"),
            };
            let mut offset = 0;
            while offset < self.segment_bytes {
                let count = match self.files.read(&path, offset, &mut self.piece) {
                    Err(Errno::NOENT) if segment_number > 0 => return Ok(()),
                    read => read?,
                };
                let mut pages = self.piece[..count].chunks_exact(self.page_size_bytes);
                let is_enough = !pages.all(|page| tuples(page).all(|tuple| visit(&tuple)));
                offset += count as u64;
                left_of_catalog = left_of_catalog.saturating_sub(count as u64);
                self.left_bytes = self.left_bytes.saturating_sub(count as u64);
                if is_enough || left_of_catalog == 0 || self.left_bytes == 0 {
                    return Ok(());
                }
                if count < self.piece.len() {
                    break;
                }
            }
            // Only the last segment is not full.
            if offset < self.segment_bytes {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Of each column the version that counts, in the order of relations and numbers.
fn latest_columns(mut rows: Vec<ColumnRow>) -> Vec<ColumnRow> {
    // Stable: of versions that do not tell, the last in the file counts.
    rows.sort_by_key(|row| (row.relation, row.number));
    rows.dedup_by(|later, kept| {
        let is_same = (later.relation, later.number) == (kept.relation, kept.number);
        if is_same && later.version.supersedes(kept.version) {
            *kept = *later;
        }
        is_same
    });
    rows
}

/// What the catalogs of one database say.
struct DatabaseFacts {
    map: FileMap,
    /// In the order of the file; rows that were replaced, too, for their files may still be there.
    classes: Vec<ClassRow>,
    /// As [`latest_columns`] gives them.
    columns: Vec<ColumnRow>,
}

impl DatabaseFacts {
    /// Gives the collector all relations that have files; whether some of `shared_map` were among them.
    fn hand_over(&self, database: &DatabaseDirectory, shared_map: &FileMap, collector: &mut Collector) -> bool {
        let placed = |class: &ClassRow| Some((self.place_of(class, database, shared_map)?, *class));
        let mut relations: Vec<(Place, ClassRow)> = self.classes.iter().filter_map(placed).collect();
        relations.sort_by_key(|(place, _)| *place);
        relations.dedup_by(|(later_place, later), (place, kept)| {
            let is_same = later_place == place;
            if is_same && later.version.supersedes(kept.version) {
                *kept = *later;
            }
            is_same
        });
        let has_shared = relations.iter().any(|(place, _)| place.database == 0);
        for (place, class) in relations {
            collector.add(place, class.kind, self.attributes_of(&class));
        }
        has_shared
    }

    fn place_of(&self, class: &ClassRow, database: &DatabaseDirectory, shared_map: &FileMap) -> Option<Place> {
        let is_shared = class.tablespace == GLOBAL_TABLESPACE;
        let map = if is_shared { shared_map } else { &self.map };
        let file_number = if class.file_number == 0 { file_of(map, class.oid)? } else { class.file_number };
        let tablespace = if class.tablespace == 0 { database.tablespace } else { class.tablespace };
        Some(Place { tablespace, database: if is_shared { 0 } else { database.database }, file_number })
    }

    /// The columns of a relation; empty if one of them is not known.
    fn attributes_of(&self, class: &ClassRow) -> Vec<Attribute> {
        let start = self.columns.partition_point(|row| row.relation < class.oid);
        let count = usize::from(class.attribute_count);
        let rows = self.columns[start..].iter().take(count).enumerate();
        let are_these = |(index, row): (usize, &ColumnRow)| {
            (row.relation == class.oid && usize::from(row.number) == index + 1).then_some(row.attribute)
        };
        let attributes: Option<Vec<Attribute>> = rows.map(are_these).collect();
        attributes.filter(|attributes| attributes.len() == count).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
