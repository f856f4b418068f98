//! What the pages of the files of a backup hold, told to the page codec by the names of the files.
//!
//! It is a hint that pays in size, so a catalog that cannot be read is a note and no error.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::report::BackupRequest;
use crate::error::Result;
use crate::format::file_table::FileTable;
use crate::pipeline::{ContentLayouts, Observer, RelationLayout};
use crate::source::postgres::conninfo::ConnectSettings;
use crate::source::postgres::relation_layouts::{RelationLayouts, read_from_catalog_files, read_from_server};
use crate::terms::FileId;

/// The relations of the cluster in `data_directory`; None if the codec does not want to know.
pub(super) fn of_directory(
    request: &BackupRequest,
    data_directory: &Path,
    observer: &dyn Observer,
) -> Option<RelationLayouts> {
    // Where not even pg_control can be read, the page size is not known either.
    request.compression.wants_layouts().then(|| noted(read_from_catalog_files(data_directory), 0, observer))
}

/// The same of a server that sends its files.
pub(super) fn of_server(
    request: &BackupRequest,
    settings: &ConnectSettings,
    page_size_bytes: u32,
    observer: &dyn Observer,
) -> Option<RelationLayouts> {
    request.compression.wants_layouts().then(|| noted(read_from_server(settings), page_size_bytes, observer))
}

/// What was read; if nothing could be, that is noted, and relations of `page_size_bytes` have pages.
pub(super) fn noted(read: Result<RelationLayouts>, page_size_bytes: u32, observer: &dyn Observer) -> RelationLayouts {
    read.unwrap_or_else(|error| {
        let cause = error.message();
        observer.note(&format!("what the tables hold is not known, so the page codec finds less in them: {cause}"));
        RelationLayouts::empty(page_size_bytes)
    })
}

/// A list of files: complete, or growing while a stream comes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Listed<'a> {
    All(&'a FileTable),
    SoFar(&'a Mutex<FileTable>),
}

/// What the pages of a list of files hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileLayouts<'a> {
    pub(super) relations: &'a RelationLayouts,
    pub(super) listed: Listed<'a>,
}

impl ContentLayouts for FileLayouts<'_> {
    fn layout(&self, file: FileId, file_offset: u64) -> Option<(&RelationLayout, u32)> {
        let (layout, first_of_segment) = match self.listed {
            Listed::All(table) => self.relations.of_path(table.path(file)),
            Listed::SoFar(table) => {
                let table = table.lock().unwrap_or_else(PoisonError::into_inner);
                self.relations.of_path(table.path(file))
            }
        }?;
        let page_size_bytes = u64::from(layout.page_size_bytes);
        if page_size_bytes == 0 || !file_offset.is_multiple_of(page_size_bytes) {
            return None;
        }
        Some((layout, first_of_segment.wrapping_add((file_offset / page_size_bytes) as u32)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::file_table::EntryKind;

    #[test]
    fn pages_are_counted_over_segments() {
        let table = || {
            let mut table = FileTable::default();
            for path in ["base/5/1234.2", "PG_VERSION"] {
                table.push(path.as_bytes(), b"", EntryKind::File, 0o600, 0, 1).unwrap();
            }
            table
        };
        let (table, shared) = (table(), Mutex::new(table()));
        let relations = RelationLayouts::empty(8192);
        for listed in [Listed::All(&table), Listed::SoFar(&shared)] {
            let layouts = FileLayouts { relations: &relations, listed };
            let page = |file, offset| layouts.layout(FileId(file), offset).map(|(_, page)| page);
            assert_eq!([page(0, 0), page(0, 3 * 8192)], [Some(262_144), Some(262_147)]);
            assert_eq!([page(0, 100), page(1, 0)], [None; 2]);
        }
    }
}
