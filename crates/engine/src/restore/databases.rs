//! A restore of some databases only: the files of the others become zeros, holes where the file system has them.
//!
//! They keep their names and lengths, because replay touches them: every page that WAL changes after the backup's start
//! comes whole the first time (a backup turns full-page writes on), so replay needs nothing of what is left out, and it
//! must not meet a file that ends too early. One record is an exception where neither page checksums nor wal_log_hints are
//! on: a bit of a visibility map that is set touches the heap page without bringing it (log_heap_visible in
//! src/backend/access/heap/heapam.c); replay then ends with "WAL contains references to invalid pages" unless
//! ignore_invalid_pages is on. The databases left out cannot be used afterwards, only dropped.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};
use crate::format::file_table::{EntryKind, FileTable};
use crate::format::manifest::{Database, Manifest};
use crate::terms::FileId;

/// The first OID that is given to what users make (FirstNormalObjectId); below are the databases of initdb.
const FIRST_USER_OID: u32 = 16_384;

/// A database whose content was not restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOutDatabase {
    /// Its OID.
    pub oid: u32,
    /// Its name, if the set knows it.
    pub name: Option<String>,
    /// Bytes of its files.
    pub bytes: u64,
}

/// What may keep a server from starting when databases are left out.
pub(super) fn note_of_replay(left_out: &[LeftOutDatabase], manifest: &Manifest) -> Option<String> {
    (!left_out.is_empty() && !manifest.postgres.data_checksums).then(|| {
        "if the server ends with \"WAL contains references to invalid pages\", start it once with \
         -c ignore_invalid_pages=on: the cluster has no page checksums, and replay then touches pages that were left out"
            .to_owned()
    })
}

/// Replaces by zeros all files of databases that are neither in `include` nor needed by every cluster.
///
/// # Errors
/// `Usage` if a name is none of the set's.
pub(super) fn leave_out(
    table: &mut FileTable,
    manifest: &Manifest,
    include: &[String],
) -> Result<Vec<LeftOutDatabase>> {
    if include.is_empty() {
        return Ok(Vec::new());
    }
    let known = manifest.postgres.databases.as_deref();
    let included = include.iter().map(|name| oid_of(known, name, table)).collect::<Result<Vec<u32>>>()?;
    let stays = |oid: u32| {
        let database = known.map(|known| known.iter().find(|database| database.oid == oid));
        oid < FIRST_USER_OID
            || included.contains(&oid)
            || match database {
                // One that was made while the backup ran.
                Some(None) => true,
                Some(Some(database)) => database.is_template || database.name == "postgres",
                None => false,
            }
    };
    let mut left_out: BTreeMap<u32, u64> = BTreeMap::new();
    for file in table.ids().filter(|file| table.entry(*file).kind == EntryKind::File).collect::<Vec<FileId>>() {
        let Some((oid, name)) = database_file(table.path(file)) else { continue };
        if !stays(oid) {
            let bytes = left_out.entry(oid).or_default();
            if name != b"PG_VERSION" {
                *bytes += table.entry(file).size_bytes;
                table.replace_by_zeros(file);
            }
        }
    }
    let name = |oid| Some(known?.iter().find(|database| database.oid == oid)?.name.clone());
    Ok(left_out.into_iter().map(|(oid, bytes)| LeftOutDatabase { oid, name: name(oid), bytes }).collect())
}

fn oid_of(known: Option<&[Database]>, name: &str, table: &FileTable) -> Result<u32> {
    let by_name = known.and_then(|known| known.iter().find(|database| database.name == name));
    let is_there =
        |oid: &u32| table.ids().any(|file| database_file(table.path(file)).is_some_and(|(found, _)| found == *oid));
    let found = by_name.map(|database| database.oid).or_else(|| name.parse().ok().filter(is_there));
    found.ok_or_else(|| {
        let hint = match known {
            Some(known) => {
                let names: Vec<&str> = known.iter().map(|database| database.name.as_str()).collect();
                format!("the backup has: {}", names.join(", "))
            }
            None => "this backup does not know the names of its databases: give the OID (the number in pg_database)"
                .to_owned(),
        };
        Error::new(ErrorKind::Usage, format!("find database {name:?} in the backup"), "there is none of that name")
            .hint(hint)
    })
}

/// The OID of the database whose file this is, and the name below its directory: `base/OID/NAME`, or
/// `pg_tblspc/OID/PG_VERSION_CATALOG/OID/NAME` in a tablespace.
fn database_file(path: &[u8]) -> Option<(u32, &[u8])> {
    let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    let (oid, name) = match parts.as_slice() {
        [b"base", oid, name] => (oid, name),
        [b"pg_tblspc", _, version, oid, name] if version.starts_with(b"PG_") => (oid, name),
        _ => return None,
    };
    Some((std::str::from_utf8(oid).ok()?.parse().ok()?, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::checksum::crc32c_of_zeros;
    use crate::format::file_table::Place;
    use crate::format::manifest::tests::sample;

    fn table() -> FileTable {
        let mut table = FileTable::default();
        for path in [
            "base/1/1259",
            "base/5/1259",
            "base/16384/PG_VERSION",
            "base/16384/1259",
            "base/16385/1259",
            "base/16386/1259",
            "base/16387/1259",
            "pg_tblspc/20000/PG_15_202209061/16385/30000",
            "global/1262",
        ] {
            table.push(path.as_bytes(), b"", EntryKind::File, 0o600, 0, 8192).unwrap();
        }
        table
    }

    fn named() -> Manifest {
        let mut manifest = sample();
        let database = |oid, name: &str, is_template| Database { oid, name: name.to_owned(), is_template };
        manifest.postgres.databases =
            Some(vec![database(16_384, "app", false), database(16_385, "other", false), database(16_386, "tpl", true)]);
        manifest
    }

    fn zeroed(table: &FileTable) -> Vec<String> {
        let zeros = table.ids().filter(|file| table.runs(*file).iter().any(|run| run.place() == Place::Zeros));
        zeros.map(|file| table.path_text(file)).collect()
    }

    #[test]
    fn databases_that_are_not_named_become_zeros() {
        let mut table = table();
        let left_out = leave_out(&mut table, &named(), &["app".to_owned()]).unwrap();
        assert_eq!(left_out, [LeftOutDatabase { oid: 16_385, name: Some("other".into()), bytes: 16_384 }]);
        assert_eq!(zeroed(&table), ["base/16385/1259", "pg_tblspc/20000/PG_15_202209061/16385/30000"]);
        let file = table.ids().find(|file| table.path(*file) == b"base/16385/1259").unwrap();
        assert_eq!(table.entry(file).crc32c, crc32c_of_zeros(8192));
    }

    #[test]
    fn without_names_oids_tell_databases_apart() {
        let mut table = table();
        let left_out = leave_out(&mut table, &sample(), &["16385".to_owned()]).unwrap();
        assert_eq!(left_out.iter().map(|one| one.oid).collect::<Vec<_>>(), [16_384, 16_386, 16_387]);
        assert_eq!(zeroed(&table), ["base/16384/1259", "base/16386/1259", "base/16387/1259"]);
        assert!(
            leave_out(&mut table, &sample(), &["app".to_owned()]).unwrap_err().hint_text().unwrap().contains("OID")
        );
    }

    #[test]
    fn unknown_names_are_refused_and_none_means_all() {
        let error = leave_out(&mut table(), &named(), &["ap".to_owned()]).unwrap_err();
        assert!(error.hint_text().unwrap().contains("app, other, tpl"), "{error}");
        assert!(leave_out(&mut table(), &named(), &[]).unwrap().is_empty());
    }
}
