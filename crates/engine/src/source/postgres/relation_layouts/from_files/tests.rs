//! Catalogs made here, byte by byte; real ones are in the behaviour tests.

use std::path::PathBuf;
use std::time::Instant;

use pagehaul_page::{RelationKind, ValueType};
use proptest::prelude::*;

use super::super::super::catalog_pages::heap_page::tests::page;
use super::super::super::control_file::tests::sample;
use super::*;

/// A tuple: transactions that made and deleted it, infomask, columns.
type TestTuple = (u32, u32, u16, Vec<u8>);

fn put(row: &mut [u8], at: usize, bytes: &[u8]) {
    row[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Rows of version 15.
fn class(oid: u32, file_number: u32, kind: u8, natts: u16) -> Vec<u8> {
    let mut row = vec![0; 120];
    let access_method = if kind == b'i' { 403u32 } else { 2 };
    for (at, number) in [(0, oid), (84, access_method), (88, file_number)] {
        put(&mut row, at, &number.to_le_bytes());
    }
    put(&mut row, 114, &[b'p', kind]);
    put(&mut row, 116, &natts.to_le_bytes());
    row
}

fn column(relation: u32, number: i16, type_oid: u32, length: i16, alignment: u8) -> Vec<u8> {
    let mut row = vec![0; 112];
    put(&mut row, 0, &relation.to_le_bytes());
    put(&mut row, 68, &type_oid.to_le_bytes());
    put(&mut row, 76, &length.to_le_bytes());
    put(&mut row, 78, &number.to_le_bytes());
    row[93] = alignment;
    row
}

fn domain(oid: u32, base_type: u32) -> Vec<u8> {
    let mut row = vec![0; 150];
    put(&mut row, 0, &oid.to_le_bytes());
    row[79] = b'd';
    put(&mut row, 132, &base_type.to_le_bytes());
    row
}

fn made_by(xmin: u32, data: Vec<u8>) -> TestTuple {
    (xmin, 0, 0, data)
}

/// A map of the three catalogs with these file numbers.
fn map(files: [u32; 3]) -> Vec<u8> {
    let mut bytes = vec![0; 512];
    put(&mut bytes, 0, &0x0059_2717u32.to_le_bytes());
    put(&mut bytes, 4, &3u32.to_le_bytes());
    for (entry, (oid, file)) in [PG_TYPE, PG_ATTRIBUTE, PG_CLASS].into_iter().zip(files).enumerate() {
        put(&mut bytes, 8 + 8 * entry, &oid.to_le_bytes());
        put(&mut bytes, 12 + 8 * entry, &file.to_le_bytes());
    }
    let sum = crc_fast::crc32_iscsi(&bytes[..504]);
    put(&mut bytes, 504, &sum.to_le_bytes());
    bytes
}

struct TestCluster {
    directory: tempfile::TempDir,
}

impl TestCluster {
    fn new(major: u32) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let cluster = TestCluster { directory };
        for name in ["global", "base/5", "pg_tblspc/16400/PG_15_7/6"] {
            std::fs::create_dir_all(cluster.path(name)).unwrap();
        }
        cluster.write("global/pg_control", &sample());
        cluster.write("PG_VERSION", format!("{major}\n").as_bytes());
        cluster
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path(name), bytes).unwrap();
    }

    /// The three catalogs of a database, with file numbers 1 to 3.
    fn catalogs(&self, directory: &str, types: &[TestTuple], columns: &[TestTuple], classes: &[TestTuple]) {
        self.write(&format!("{directory}/pg_filenode.map"), &map([1, 2, 3]));
        for (file, rows) in [(1, types), (2, columns), (3, classes)] {
            let pages: Vec<u8> = rows.chunks(40).flat_map(|rows| page(8192, rows)).collect();
            self.write(&format!("{directory}/{file}"), &pages);
        }
    }

    fn read(&self) -> RelationLayouts {
        read_from_catalog_files(self.directory.path()).unwrap()
    }

    fn of(&self, path: &str) -> (RelationKind, Vec<(ValueType, i16, u8)>) {
        let layouts = self.read();
        let layout = layouts.of_path(path).unwrap().0;
        let columns = layout.attributes.iter().map(|column| (column.value_type, column.length, column.alignment));
        (layout.kind, columns.collect())
    }
}

/// A table 100 of an integer, a dropped column and a domain over float8; its index 101; a table of the database in the
/// tablespace.
fn sample_cluster() -> TestCluster {
    let cluster = TestCluster::new(15);
    let columns = [
        made_by(5, column(100, 2, 0, -1, b'i')),
        made_by(5, column(100, 1, 23, 4, b'i')),
        made_by(5, column(100, 3, 16_400, 8, b'd')),
        made_by(5, column(100, -1, 27, 6, b's')),
        made_by(5, column(101, 1, 23, 4, b'i')),
        made_by(5, column(1259, 1, 26, 4, b'i')),
    ];
    let classes = [
        made_by(5, class(100, 200, b'r', 3)),
        made_by(5, class(101, 201, b'i', 1)),
        made_by(5, class(102, 202, b'S', 3)),
        made_by(5, class(1259, 0, b'r', 1)),
        made_by(5, class(103, 203, b'r', 2)),
    ];
    cluster.catalogs("base/5", &[made_by(5, domain(16_400, 701))], &columns, &classes);
    cluster.catalogs("pg_tblspc/16400/PG_15_7/6", &[], &columns, &classes);
    cluster
}

#[test]
fn catalogs_say_what_files_hold() {
    let cluster = sample_cluster();
    let integer = (ValueType::Integer, 4, 4);
    let table = vec![integer, (ValueType::Varlena, -1, 4), (ValueType::Float, 8, 8)];
    assert_eq!(cluster.of("base/5/200"), (RelationKind::Heap, table));
    assert_eq!(cluster.of("base/5/201"), (RelationKind::Index, vec![integer]));
    assert_eq!(cluster.of("base/5/3"), (RelationKind::Heap, vec![integer]), "pg_class, by the map");
    assert_eq!(cluster.of("base/5/202"), (RelationKind::Other, vec![]), "a sequence");
    assert_eq!(cluster.of("base/5/203"), (RelationKind::Heap, vec![]), "columns are missing");
    assert_eq!(cluster.of("pg_tblspc/16400/PG_15_7/6/201"), (RelationKind::Index, vec![integer]));
    assert_eq!(cluster.of("base/6/201").0, RelationKind::Other);
    // The domain is one of the other database only.
    assert_eq!(cluster.of("pg_tblspc/16400/PG_15_7/6/200").1[2], (ValueType::Integer, 8, 8));
}

#[test]
fn the_last_version_of_a_row_counts_and_older_files_keep_a_layout() {
    let cluster = TestCluster::new(15);
    let columns = [
        made_by(9, column(100, 1, 20, 8, b'd')),
        (5, 9, 0, column(100, 1, 23, 4, b'i')),
        // Taken back: XMIN_INVALID.
        (11, 0, 0x0200, column(100, 1, 21, 2, b's')),
    ];
    let classes = [(5, 9, 0, class(100, 200, b'r', 1)), made_by(9, class(100, 300, b'r', 1))];
    cluster.catalogs("base/5", &[], &columns, &classes);
    let long = (RelationKind::Heap, vec![(ValueType::Integer, 8, 8)]);
    assert_eq!((cluster.of("base/5/300"), cluster.of("base/5/200")), (long.clone(), long));
}

#[test]
fn catalogs_go_on_in_further_segments() {
    let cluster = sample_cluster();
    let mut control = sample();
    // One page a segment.
    put(&mut control, 220, &1u32.to_le_bytes());
    let crc = crc_fast::crc32_iscsi(&control[..288]);
    put(&mut control, 288, &crc.to_le_bytes());
    cluster.write("global/pg_control", &control);
    cluster.write("base/5/3.1", &page(8192, &[made_by(5, class(105, 205, b'm', 0))]));
    assert_eq!(cluster.of("base/5/205").0, RelationKind::Heap);
    assert_eq!(cluster.read().of_path("base/5/205.7").unwrap().1, 7);
}

#[test]
fn what_is_strange_leaves_relations_without_layout() {
    let cluster = sample_cluster();
    assert_eq!(cluster.read().relation_count(), 8, "sequences have none");
    std::fs::remove_file(cluster.path("base/5/2")).unwrap();
    std::fs::create_dir(cluster.path("base/5/2")).unwrap();
    assert_eq!(cluster.of("base/5/200").0, RelationKind::Other, "a directory for a catalog");
    assert_eq!(cluster.read().relation_count(), 4, "those of the other database");
    for bytes in [vec![], vec![0; 511], vec![0; 512], vec![7; 4096]] {
        let cluster = sample_cluster();
        cluster.write("base/5/pg_filenode.map", &bytes);
        assert_eq!(cluster.of("base/5/200").0, RelationKind::Other);
    }
    let unknown = TestCluster::new(12);
    assert_eq!(unknown.read().relation_count(), 0);
}

#[test]
fn ten_thousand_relations_are_read_in_a_moment() {
    let cluster = TestCluster::new(15);
    let classes: Vec<TestTuple> = (1..=10_000).map(|oid| made_by(5, class(oid, 20_000 + oid, b'r', 10))).collect();
    let of_relation = |oid| (1..=10).map(move |number| made_by(5, column(oid, number, 23, 4, b'i')));
    let columns: Vec<TestTuple> = (1..=10_000).flat_map(of_relation).collect();
    cluster.catalogs("base/5", &[], &columns, &classes);
    let started = Instant::now();
    let layouts = cluster.read();
    // Slack for slow machines and builds without optimization.
    assert!(started.elapsed().as_secs() < 5, "{:?}", started.elapsed());
    eprintln!("10,000 relations of 10 columns: {:?}, {} bytes", started.elapsed(), layouts.memory_bytes());
    assert_eq!(layouts.relation_count(), 10_000);
    assert_eq!(layouts.of_path("base/5/30000").unwrap().0.attributes.len(), 10);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn rubbish_in_catalogs_never_panics(
        changes in proptest::collection::vec((0usize..3, 0usize..8192, any::<u8>()), 0..60),
        rubbish in proptest::collection::vec(any::<u8>(), 0..9000),
        rubbish_in in 0usize..6,
        cut in 0usize..9000,
    ) {
        let cluster = sample_cluster();
        for (file, name) in ["base/5/1", "base/5/2", "base/5/3"].into_iter().enumerate() {
            let mut bytes = std::fs::read(cluster.path(name)).unwrap();
            for (_, at, value) in changes.iter().filter(|change| change.0 == file) {
                // Mostly line pointers and header, where one byte moves everything.
                let at = if at % 2 == 0 { at % 60 } else { *at };
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = *value;
                }
            }
            if rubbish_in == file {
                bytes.clone_from(&rubbish);
            }
            bytes.truncate(cut);
            cluster.write(name, &bytes);
        }
        let layouts = cluster.read();
        let other = layouts.of_path("pg_tblspc/16400/PG_15_7/6/201").unwrap().0;
        prop_assert_eq!(other.kind, RelationKind::Index, "the other database");
        prop_assert!(layouts.relations.len() < 200);
    }
}
