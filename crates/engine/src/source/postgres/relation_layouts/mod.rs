//! What each file of a cluster holds, for the page codec: which kind of pages, and the columns of their tuples.
//!
//! | file | answers |
//! |---|---|
//! | `from_files` | the layouts, from the catalogs' files in a directory or in a backup |
//! | `from_server` | the layouts, from the databases of a server |
//!
//! A layout is a hint that pays in size. So whatever is strange, damaged, locked, too much or too slow here leaves
//! relations without a layout, and is never an error of a backup.

mod from_files;
mod from_server;

use std::collections::HashMap;
use std::sync::Arc;

pub use from_files::{ClusterFiles, read_from_catalog_files, read_from_files};
pub use from_server::read_from_server;
use pagehaul_page::{ATTRIBUTES_MAX, Attribute, PAGE_SIZES_BYTES, RelationKind, RelationLayout};

use crate::terms::WalSegmentName;

use super::path_class::{Fork, PathClass, classify, tablespace_oid};

/// Relations of a cluster that get a layout, at most: 32 MiB. Those beyond have none.
const RELATIONS_MAX: usize = 2 << 20;
/// What different layouts may take together. Beyond, only the kind of a relation's pages is kept.
const LAYOUTS_BYTES_MAX: u64 = 32 << 20;
/// What a layout takes beside its attributes: itself, the counters of its Arc, the pointer to it.
const LAYOUT_OVERHEAD_BYTES: usize = size_of::<RelationLayout>() + 3 * size_of::<usize>();

/// XLOG_BLCKSZ of every package. What servers with another one write is taken for no pages, and costs size only.
const WAL_PAGE_BYTES_USUAL: u32 = 8192;

/// Where the files of a relation lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    tablespace: u32,
    /// 0 in the global tablespace.
    database: u32,
    file_number: u32,
}

/// Layouts of a cluster's relations, by where their files lie; relations with the same layout share it.
#[derive(Clone, Debug)]
pub struct RelationLayouts {
    /// Of files of which nothing more is known.
    other: RelationLayout,
    /// Of segments of WAL.
    wal: RelationLayout,
    /// Pages of a whole segment file.
    pages_per_segment: u32,
    /// Sorted by place; the number is an index into `layouts`.
    relations: Vec<(Place, u32)>,
    layouts: Vec<Arc<RelationLayout>>,
}

impl RelationLayouts {
    /// No relation is known; segments are of 1 GiB.
    pub fn empty(page_size_bytes: u32) -> Self {
        Self::of_sizes(page_size_bytes, (1u32 << 30).checked_div(page_size_bytes).unwrap_or(0))
    }

    fn of_sizes(page_size_bytes: u32, pages_per_segment: u32) -> Self {
        let other = RelationLayout::other(page_size_bytes);
        let wal = RelationLayout::wal(WAL_PAGE_BYTES_USUAL);
        RelationLayouts { other, wal, pages_per_segment, relations: Vec::new(), layouts: Vec::new() }
    }

    /// What the file at `path`, relative to the data directory with tablespaces under `pg_tblspc`, holds, and the number
    /// of its first page within its fork.
    ///
    /// A relation's file of which nothing is known, or of another fork than the main one, is [`RelationKind::Other`].
    /// Segments of WAL are told too. None for all other files, and for those of relations if the codec does not know the page size.
    pub fn of_path(&self, path: impl AsRef<[u8]>) -> Option<(&RelationLayout, u32)> {
        let path = path.as_ref();
        let PathClass::Relation { database_oid, file_number, fork, segment_number } = classify(path) else {
            return is_wal_segment(path).then_some((&self.wal, 0));
        };
        if !PAGE_SIZES_BYTES.contains(&self.other.page_size_bytes) {
            return None;
        }
        let first_page = segment_number.checked_mul(self.pages_per_segment)?;
        let known = || {
            let place = Place { tablespace: tablespace_oid(path)?, database: database_oid, file_number };
            let found = self.relations.binary_search_by_key(&place, |(place, _)| *place).ok()?;
            self.layouts.get(self.relations[found].1 as usize)
        };
        let layout = if fork == Fork::Main { known() } else { None };
        Some((layout.map_or(&self.other, Arc::as_ref), first_page))
    }

    /// How many relations have a layout.
    pub fn relation_count(&self) -> usize {
        self.relations.len()
    }

    /// What all this takes.
    pub fn memory_bytes(&self) -> u64 {
        let layouts: usize = self.layouts.iter().map(|layout| layout_bytes(layout)).sum();
        (size_of::<Self>() + self.relations.capacity() * size_of::<(Place, u32)>() + layouts) as u64
    }
}

/// Whether the file at `path` is a segment of WAL.
fn is_wal_segment(path: &[u8]) -> bool {
    let name = path.strip_prefix(b"pg_wal/").and_then(|name| str::from_utf8(name).ok());
    name.is_some_and(|name| name.parse::<WalSegmentName>().is_ok())
}

fn layout_bytes(layout: &RelationLayout) -> usize {
    LAYOUT_OVERHEAD_BYTES + layout.attributes.capacity() * size_of::<Attribute>()
}

/// Gathers relations, and makes one of the layouts that are the same.
struct Collector {
    gathered: RelationLayouts,
    known: HashMap<Arc<RelationLayout>, u32>,
    layouts_bytes: u64,
}

impl Collector {
    fn new(page_size_bytes: u32, pages_per_segment: u32) -> Self {
        let gathered = RelationLayouts::of_sizes(page_size_bytes, pages_per_segment);
        Collector { gathered, known: HashMap::new(), layouts_bytes: 0 }
    }

    /// Notes a relation; of two at one place the first counts. Without `attributes` its columns are not known.
    fn add(&mut self, place: Place, kind: RelationKind, attributes: Vec<Attribute>) {
        if attributes.len() > ATTRIBUTES_MAX || self.gathered.relations.len() >= RELATIONS_MAX {
            return;
        }
        let number =
            self.number_of(RelationLayout { kind, page_size_bytes: self.gathered.other.page_size_bytes, attributes });
        self.gathered.relations.push((place, number));
    }

    fn number_of(&mut self, mut layout: RelationLayout) -> u32 {
        if let Some(number) = self.known.get(&layout) {
            return *number;
        }
        layout.attributes.shrink_to_fit();
        let bytes = layout_bytes(&layout) as u64;
        if self.layouts_bytes + bytes > LAYOUTS_BYTES_MAX && !layout.attributes.is_empty() {
            return self.number_of(RelationLayout { attributes: Vec::new(), ..layout });
        }
        self.layouts_bytes += bytes;
        let layout = Arc::new(layout);
        let number = self.gathered.layouts.len() as u32;
        self.gathered.layouts.push(Arc::clone(&layout));
        self.known.insert(layout, number);
        number
    }

    fn finish(mut self) -> RelationLayouts {
        let relations = &mut self.gathered.relations;
        relations.sort_by_key(|(place, _)| *place);
        relations.dedup_by_key(|(place, _)| *place);
        relations.shrink_to_fit();
        self.gathered
    }
}

#[cfg(test)]
mod tests {
    use pagehaul_page::ValueType;

    use super::*;

    const INTEGER: Attribute = Attribute { value_type: ValueType::Integer, length: 4, alignment: 4 };

    fn place(tablespace: u32, database: u32, file_number: u32) -> Place {
        Place { tablespace, database, file_number }
    }

    #[test]
    fn paths_lead_to_layouts_and_first_pages() {
        let mut collector = Collector::new(8192, 131_072);
        collector.add(place(1663, 16_384, 16_385), RelationKind::Heap, vec![INTEGER]);
        collector.add(place(1664, 0, 1260), RelationKind::Heap, vec![INTEGER, INTEGER]);
        collector.add(place(16_390, 16_384, 16_391), RelationKind::Index, vec![INTEGER]);
        let layouts = collector.finish();
        let of = |path: &str| layouts.of_path(path).map(|(layout, page)| (layout.kind, layout.attributes.len(), page));
        assert_eq!(of("base/16384/16385"), Some((RelationKind::Heap, 1, 0)));
        assert_eq!(of("base/16384/16385.2"), Some((RelationKind::Heap, 1, 262_144)));
        assert_eq!(of("global/1260"), Some((RelationKind::Heap, 2, 0)));
        assert_eq!(of("pg_tblspc/16390/PG_15_202209061/16384/16391"), Some((RelationKind::Index, 1, 0)));
        for unknown in ["base/16384/16385_fsm", "base/16384/16385_vm", "base/16384/16385_init", "base/1/16385"] {
            assert_eq!(of(unknown), Some((RelationKind::Other, 0, 0)), "{unknown}");
        }
        assert_eq!(of("base/16384/16385_vm.1"), Some((RelationKind::Other, 0, 131_072)));
        assert_eq!(of("pg_tblspc/16391/PG_15_202209061/16384/16391"), Some((RelationKind::Other, 0, 0)));
        assert_eq!(of("pg_wal/0000000100000002000000B3").map(|(kind, ..)| kind), Some(RelationKind::Wal));
        for other in [
            "pg_wal/0000000100000002000000B3.partial",
            "pg_wal/00000002.history",
            "PG_VERSION",
            "base/16384/PG_VERSION",
            "base/16384/pg_filenode.map",
            "pg_wal/16385",
            "16385",
            "",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
        // Such a relation would have more pages than there are numbers.
        assert_eq!(of("base/16384/16385.40000"), None);
    }

    #[test]
    fn page_sizes_that_nobody_knows_have_no_layouts() {
        assert_eq!(RelationLayouts::empty(4096).of_path("base/1/2.1").unwrap().1, 262_144);
        assert_eq!(RelationLayouts::empty(32_768).of_path("base/1/2.1").unwrap().1, 32_768);
        for size in [0, 1024, 12_288, 65_536] {
            assert!(RelationLayouts::empty(size).of_path("base/1/2").is_none(), "{size}");
        }
    }

    #[test]
    fn equal_layouts_are_kept_once_and_memory_has_an_end() {
        let mut collector = Collector::new(8192, 131_072);
        for number in 1..=1000 {
            collector.add(place(1663, 5, number), RelationKind::Heap, vec![INTEGER; number as usize % 3]);
        }
        collector.add(place(1663, 5, 7), RelationKind::Index, Vec::new());
        collector.add(place(1663, 5, 1001), RelationKind::Heap, vec![INTEGER; ATTRIBUTES_MAX + 1]);
        let layouts = collector.finish();
        assert_eq!((layouts.relation_count(), layouts.layouts.len()), (1000, 4));
        assert_eq!(layouts.of_path("base/5/7").unwrap().0.kind, RelationKind::Heap, "the first counts");
        assert_eq!(layouts.of_path("base/5/1001").unwrap().0.kind, RelationKind::Other);
        assert!((16_000..17_500).contains(&layouts.memory_bytes()), "{}", layouts.memory_bytes());
        let mut collector = Collector::new(8192, 131_072);
        for number in 1..=30_000u32 {
            let mut attributes = vec![INTEGER; 500];
            attributes[0].length = number as i16;
            collector.add(place(1663, 5, number), RelationKind::Heap, attributes);
        }
        let layouts = collector.finish();
        assert!(layouts.memory_bytes() < LAYOUTS_BYTES_MAX + (1 << 20), "{}", layouts.memory_bytes());
        let last = layouts.of_path("base/5/30000").unwrap().0;
        assert_eq!((last.kind, last.attributes.len()), (RelationKind::Heap, 0));
    }
}
