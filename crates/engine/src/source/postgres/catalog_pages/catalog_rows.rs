//! What a tuple of `pg_class`, `pg_attribute` or `pg_type` says, by its leading columns of fixed length.
//!
//! The rules: src/include/catalog/pg_class.h, pg_attribute.h and pg_type.h of each major version. Compared with the
//! `pg_attribute` of servers of 13 to 18.

use std::collections::HashMap;

use pagehaul_page::{ATTRIBUTES_MAX, Attribute, RelationKind, ValueType};

use super::heap_page::{RowVersion, Tuple, u16_at, u32_at};

/// `pg_default`: the tablespace of databases in `base`.
pub(in super::super) const DEFAULT_TABLESPACE: u32 = 1663;
/// `pg_global`: files in it belong to no database.
pub(in super::super) const GLOBAL_TABLESPACE: u32 = 1664;

/// Domains that are remembered of a database; columns of further ones are taken by their length.
const DOMAINS_MAX: usize = 100_000;
/// Domains over domains that are followed.
const DOMAIN_DEPTH_MAX: usize = 32;

/// Tables, indexes, TOAST tables, materialized views, sequences: each `relkind` with a file.
const KINDS_WITH_FILES: [u8; 5] = *b"ritmS";

// Offsets that all versions agree on. A name takes 64 bytes.
const OID_AT: usize = 0;
const RELAM_AT: usize = 84;
const RELFILENODE_AT: usize = 88;
const RELTABLESPACE_AT: usize = 92;
const ATTRELID_AT: usize = 0;
const ATTTYPID_AT: usize = 68;
const TYPTYPE_AT: usize = 79;

/// Where the columns lie that versions moved, in bytes from the tuple's first column.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct CatalogColumns {
    relpersistence: usize,
    relkind: usize,
    relnatts: usize,
    attlen: usize,
    attnum: usize,
    attalign: usize,
    typbasetype: usize,
}

impl CatalogColumns {
    /// None for a version that is not known.
    pub(in super::super) fn of_major(major: u32) -> Option<Self> {
        let [relpersistence, relkind, relnatts, attlen, attnum, attalign, typbasetype] = match major {
            13 => [114, 115, 116, 76, 78, 94, 128],
            // typsubscript; attcompression, and attalign before attstorage.
            14 | 15 => [114, 115, 116, 76, 78, 93, 132],
            // attstattarget behind attlen and attnum, a short attndims.
            16 | 17 => [114, 115, 116, 72, 74, 87, 132],
            // relallfrozen; no attcacheoff.
            18 => [118, 119, 120, 72, 74, 83, 132],
            _ => return None,
        };
        Some(CatalogColumns { relpersistence, relkind, relnatts, attlen, attnum, attalign, typbasetype })
    }

    /// A row of `pg_class`; None for relations without a layout.
    pub(in super::super) fn class_row(&self, tuple: &Tuple<'_>) -> Option<ClassRow> {
        let data = tuple.data;
        let kind = kind_of(*data.get(self.relkind)?, u32_at(data, RELAM_AT)?)?;
        let attribute_count = u16_at(data, self.relnatts)?;
        // Files of temporary relations are in no backup.
        if *data.get(self.relpersistence)? == b't' || usize::from(attribute_count) > ATTRIBUTES_MAX {
            return None;
        }
        Some(ClassRow {
            oid: u32_at(data, OID_AT)?,
            file_number: u32_at(data, RELFILENODE_AT)?,
            tablespace: u32_at(data, RELTABLESPACE_AT)?,
            kind,
            attribute_count,
            version: tuple.version,
        })
    }

    /// What a row of `pg_class` says of the relation's files; None if the tuple is too short to be a row.
    pub(in super::super) fn file_row(&self, tuple: &Tuple<'_>) -> Option<FileRow> {
        let data = tuple.data;
        let relkind = *data.get(self.relkind)?;
        let persistence = *data.get(self.relpersistence)?;
        Some(FileRow {
            oid: u32_at(data, OID_AT)?,
            file_number: u32_at(data, RELFILENODE_AT)?,
            tablespace: u32_at(data, RELTABLESPACE_AT)?,
            // Temporary relations are their session's own.
            has_files: KINDS_WITH_FILES.contains(&relkind) && persistence != b't',
            is_unlogged: persistence == b'u',
        })
    }

    /// A row of `pg_attribute`; None for system columns, and for what no column can be.
    pub(in super::super) fn column_row(&self, tuple: &Tuple<'_>, domains: &Domains) -> Option<ColumnRow> {
        let data = tuple.data;
        let number = u16_at(data, self.attnum)?;
        let length = u16_at(data, self.attlen)?.cast_signed();
        if !(1..=ATTRIBUTES_MAX).contains(&usize::from(number)) {
            return None;
        }
        let alignment = *data.get(self.attalign)?;
        Some(ColumnRow {
            relation: u32_at(data, ATTRELID_AT)?,
            number,
            attribute: attribute(domains.base_of(u32_at(data, ATTTYPID_AT)?), length, alignment)?,
            version: tuple.version,
        })
    }

    /// Notes the domain that a row of `pg_type` is.
    pub(in super::super) fn note_domain(&self, tuple: &Tuple<'_>, domains: &mut Domains) -> Option<()> {
        if *tuple.data.get(TYPTYPE_AT)? == b'd' {
            domains.note(u32_at(tuple.data, OID_AT)?, u32_at(tuple.data, self.typbasetype)?);
        }
        Some(())
    }
}

/// A column of such a type, `attlen` and `attalign`; None if there is no such column.
pub(in super::super) fn attribute(type_oid: u32, length: i16, alignment: u8) -> Option<Attribute> {
    let alignment = match alignment {
        b'c' => 1,
        b's' => 2,
        b'i' => 4,
        b'd' => 8,
        _ => return None,
    };
    let is_possible = length > 0 || length == -1 || length == -2;
    is_possible.then(|| Attribute { value_type: ValueType::of_postgres(type_oid, length), length, alignment })
}

/// What a relation's pages hold, by its `relkind` and `relam`; None if there is no model for them.
pub(in super::super) fn kind_of(relkind: u8, access_method: u32) -> Option<RelationKind> {
    // Oids of src/include/catalog/pg_am.dat; they are fixed for ever.
    const HEAP: u32 = 2;
    const INDEXES: [u32; 3] = [403, 405, 783];
    const GIN: u32 = 2742;
    const SPGIST: u32 = 4000;
    match (relkind, access_method) {
        (b'r' | b'm' | b't', HEAP) => Some(RelationKind::Heap),
        (b'i', btree_hash_gist) if INDEXES.contains(&btree_hash_gist) => Some(RelationKind::Index),
        (b'i', GIN) => Some(RelationKind::Gin),
        (b'i', SPGIST) => Some(RelationKind::SpGist),
        _ => None,
    }
}

/// One relation with a layout.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct ClassRow {
    pub(in super::super) oid: u32,
    /// 0 for one that `pg_filenode.map` has.
    pub(in super::super) file_number: u32,
    /// 0 for that of the database.
    pub(in super::super) tablespace: u32,
    pub(in super::super) kind: RelationKind,
    pub(in super::super) attribute_count: u16,
    pub(in super::super) version: RowVersion,
}

/// The files of one relation, as its row names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct FileRow {
    pub(in super::super) oid: u32,
    /// 0 for one that `pg_filenode.map` has.
    pub(in super::super) file_number: u32,
    /// 0 for that of the database.
    pub(in super::super) tablespace: u32,
    /// Whether it has files that outlive a session.
    pub(in super::super) has_files: bool,
    pub(in super::super) is_unlogged: bool,
}

/// One column of a relation.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct ColumnRow {
    pub(in super::super) relation: u32,
    /// From 1.
    pub(in super::super) number: u16,
    pub(in super::super) attribute: Attribute,
    pub(in super::super) version: RowVersion,
}

/// The types that a database's domains are made of.
#[derive(Debug, Default)]
pub(in super::super) struct Domains {
    base_types: HashMap<u32, u32>,
}

impl Domains {
    pub(in super::super) fn note(&mut self, domain: u32, base_type: u32) {
        if self.base_types.len() < DOMAINS_MAX {
            self.base_types.insert(domain, base_type);
        }
    }

    /// The type below all domains; of another type that type itself.
    pub(in super::super) fn base_of(&self, type_oid: u32) -> u32 {
        let below = std::iter::successors(Some(type_oid), |oid| self.base_types.get(oid).copied());
        below.take(DOMAIN_DEPTH_MAX).last().unwrap_or(type_oid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_lead_to_their_base_type() {
        let mut domains = Domains::default();
        domains.note(16_384, 701);
        domains.note(16_390, 16_384);
        assert_eq!((domains.base_of(16_390), domains.base_of(16_384), domains.base_of(23)), (701, 701, 23));
        domains.note(1, 2);
        domains.note(2, 1);
        assert!([1, 2].contains(&domains.base_of(1)), "a ring has an end");
    }

    #[test]
    fn columns_that_cannot_be_are_refused() {
        let integer = Attribute { value_type: ValueType::Integer, length: 4, alignment: 4 };
        assert_eq!(attribute(23, 4, b'i'), Some(integer));
        assert_eq!(attribute(701, 8, b'd').unwrap().value_type, ValueType::Float);
        for (length, alignment) in [(0, b'i'), (-3, b'i'), (i16::MIN, b'c'), (4, b'x'), (4, 4)] {
            assert_eq!(attribute(23, length, alignment), None);
        }
    }
}
