//! What the page codec is told of each file, from the catalogs' files and from the server, compared with the server's word.

use std::collections::BTreeMap;
use std::time::Instant;

use pagehaul_engine::source::postgres::client::Connection;
use pagehaul_engine::source::postgres::conninfo::ConnectSettings;
use pagehaul_engine::source::postgres::relation_layouts::{RelationLayouts, read_from_catalog_files, read_from_server};
use pagehaul_page::{Attribute, RelationKind, RelationLayout, ValueType};
use pagehaul_testkit::cluster::{Cluster, MAKE_TEMPLATE0, installs, work_directory};

fn connect_to(cluster: &Cluster, database: &str) -> Connection {
    let settings = ConnectSettings { database: database.to_owned(), ..cluster.server.connect_settings() };
    let mut connection = Connection::connect(&settings).unwrap();
    connection.query("SET search_path = public").unwrap();
    connection
}

fn run_in(cluster: &Cluster, database: &str, statements: &[&str]) {
    let mut connection = connect_to(cluster, database);
    for statement in statements {
        connection.query(statement).unwrap_or_else(|error| panic!("{statement}: {error:?}"));
    }
}

/// Tables with all kinds of columns, and of all histories.
fn fill(cluster: &Cluster, database: &str) {
    run_in(
        cluster,
        database,
        &[
            "CREATE DOMAIN real_domain AS float8 CHECK (value > 0)",
            "CREATE DOMAIN key_domain AS uuid",
            "CREATE DOMAIN inner_domain AS numeric(10, 2)",
            "CREATE DOMAIN outer_domain AS inner_domain NOT NULL",
            "CREATE TYPE mood AS ENUM ('good', 'bad')",
            "CREATE TYPE pair AS (a int, b text)",
            "CREATE TABLE kinds (a bool, b int2, c int4, d int8, e float4, f float8, g numeric, h uuid, i text, \
             j varchar(9), k char(7), l date, m timestamptz, n interval, o bytea, p jsonb, q int[], r \"char\", s name, \
             t inet, u macaddr, v point, w tid, x mood, y pair, z int4range, aa real_domain, bb key_domain, \
             cc outer_domain, dd real_domain[], ee oid, ff bit(3), gg timetz, hh money, ii xid8, jj pg_lsn, kk circle, \
             ll lseg, mm box, nn line, oo path, pp float8[])",
            "CREATE INDEX ON kinds (d, aa, bb) INCLUDE (cc, i, b)",
            "CREATE INDEX ON kinds (i text_pattern_ops, lower(j), (c + 1), s)",
            "CREATE INDEX ON kinds USING gin (q)",
            "CREATE INDEX ON kinds USING hash (c)",
            "CREATE INDEX ON kinds USING hash (i)",
            "CREATE INDEX ON kinds USING gist (v)",
            "CREATE INDEX ON kinds USING gist (z, kk)",
            "CREATE INDEX ON kinds USING spgist (v)",
            "CREATE INDEX ON kinds USING brin (m)",
            "CREATE TABLE changed (a int4, b text, c float8, d uuid)",
            "ALTER TABLE changed DROP COLUMN b",
            "ALTER TABLE changed DROP COLUMN c",
            "ALTER TABLE changed ADD COLUMN e int8 DEFAULT 5, ADD COLUMN f numeric",
            "ALTER TABLE changed ALTER COLUMN a TYPE int8",
            "INSERT INTO changed SELECT i, gen_random_uuid(), i, i FROM generate_series(1, 2000) AS i",
            "CREATE INDEX ON changed (f, d)",
            "VACUUM FULL changed",
            "CREATE TABLE emptied AS SELECT i, i::text AS t FROM generate_series(1, 1000) AS i",
            "TRUNCATE emptied",
            "CREATE TABLE nothing ()",
            "CREATE TABLE parted (a int, b text) PARTITION BY RANGE (a)",
            "CREATE TABLE part PARTITION OF parted FOR VALUES FROM (1) TO (9)",
            "CREATE INDEX ON parted (b, a)",
            "CREATE MATERIALIZED VIEW seen AS SELECT d, e FROM changed",
            "CREATE UNLOGGED TABLE unlogged (a int, b text)",
            "CREATE SEQUENCE counter",
            "CREATE TEMPORARY TABLE gone_soon (a int)",
            "CREATE TABLE far (a int8, b key_domain PRIMARY KEY, c text) TABLESPACE far",
            "ALTER TABLE kinds SET TABLESPACE far",
            "BEGIN",
            "CREATE TABLE taken_back (a int)",
            "ALTER TABLE kinds ADD COLUMN taken_back int",
            "ROLLBACK",
            "VACUUM FULL pg_class",
            "VACUUM FULL pg_attribute",
            "CREATE TABLE after (a text, b float4)",
            "VACUUM changed",
        ],
    );
    let many: Vec<String> = (0..1600).map(|number| format!("c{number} int2")).collect();
    run_in(cluster, database, &[&format!("CREATE TABLE widest ({})", many.join(", "))]);
}

/// Path and layout of every relation of a database that has a file, as the server says it in other words.
fn expected(cluster: &Cluster, database: &str) -> BTreeMap<String, RelationLayout> {
    let sql = "WITH RECURSIVE base (oid, below) AS (SELECT oid, oid FROM pg_type WHERE typtype <> 'd' UNION ALL \
               SELECT t.oid, b.below FROM pg_type t JOIN base b ON t.typtype = 'd' AND t.typbasetype = b.oid) \
               SELECT pg_relation_filepath(c.oid), c.relkind, m.amname, a.attlen, a.attalign, b.below::regtype \
               FROM pg_class c LEFT JOIN pg_am m ON m.oid = c.relam \
               LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 LEFT JOIN base b ON b.oid = a.atttypid \
               WHERE c.relpersistence <> 't' AND pg_relation_filepath(c.oid) IS NOT NULL ORDER BY c.oid, a.attnum";
    let mut found: BTreeMap<String, RelationLayout> = BTreeMap::new();
    for row in connect_to(cluster, database).query(sql).unwrap() {
        let text: Vec<String> =
            row.into_iter().map(|value| String::from_utf8(value.unwrap_or_default()).unwrap()).collect();
        let kind = match (text[1].as_str(), text[2].as_str()) {
            ("r" | "m" | "t", "heap") => RelationKind::Heap,
            ("i", "btree" | "hash" | "gist") => RelationKind::Index,
            ("i", "gin") => RelationKind::Gin,
            ("i", "spgist") => RelationKind::SpGist,
            _ => RelationKind::Other,
        };
        let layout = found.entry(text[0].clone()).or_insert_with(|| RelationLayout::other(8192));
        layout.kind = kind;
        if kind == RelationKind::Other || text[3].is_empty() {
            continue;
        }
        let length: i16 = text[3].parse().unwrap();
        let alignment = match text[4].as_str() {
            "c" => 1,
            "s" => 2,
            "i" => 4,
            "d" => 8,
            other => panic!("{other}"),
        };
        let value_type = match (text[5].as_str(), length) {
            ("real" | "double precision", _) => ValueType::Float,
            ("uuid", _) => ValueType::Uuid,
            ("numeric", _) => ValueType::Numeric,
            ("jsonb", _) => ValueType::Jsonb,
            ("point" | "lseg" | "box" | "line" | "circle" | "interval", _) => ValueType::Floats,
            (_, -1) => ValueType::Varlena,
            (_, 1 | 2 | 4 | 8) => ValueType::Integer,
            _ => ValueType::Opaque,
        };
        layout.attributes.push(Attribute { value_type, length, alignment });
    }
    found
}

fn assert_knows(layouts: &RelationLayouts, expected: &BTreeMap<String, RelationLayout>, what: &str) {
    for (path, wanted) in expected {
        let (found, first_page) = layouts.of_path(path).unwrap_or_else(|| panic!("{what}: {path}"));
        assert_eq!((found, first_page), (wanted, 0), "{what}: {path}");
    }
}

#[test]
fn both_readers_say_what_the_server_says() {
    for install in installs() {
        let work = work_directory();
        let cluster = Cluster::start(&install, work.path());
        let far = cluster.server_directory("far");
        cluster.run(&[
            &format!("CREATE TABLESPACE far LOCATION '{}'", far.display()),
            MAKE_TEMPLATE0,
            "CREATE DATABASE one",
            "CREATE DATABASE two TABLESPACE far",
        ]);
        for database in ["one", "two"] {
            fill(&cluster, database);
        }
        // The catalogs' files of both: one that moves, and shared ones.
        cluster.run(&["VACUUM FULL pg_database", "VACUUM FULL pg_type", "CHECKPOINT"]);
        let data = cluster.server.data_directory();
        let from_files = read_from_catalog_files(data).unwrap();
        let from_server = read_from_server(&cluster.server.connect_settings()).unwrap();
        let major = install.major();
        for database in ["postgres", "template1", "one", "two"] {
            let expected = expected(&cluster, database);
            let kinds = |kind| expected.values().filter(|layout| layout.kind == kind).count();
            assert!(kinds(RelationKind::Heap) > 60 && kinds(RelationKind::Index) > 80, "{major}: {expected:?}");
            assert_knows(&from_files, &expected, &format!("{major}, files of {database}"));
            assert_knows(&from_server, &expected, &format!("{major}, server's {database}"));
        }
        let path = |database: &str, relation: &str| {
            let sql = format!("SELECT pg_relation_filepath('{relation}')");
            connect_to(&cluster, database).query_value(&sql).unwrap()
        };
        let far_path = path("one", "far");
        assert!(far_path.starts_with("pg_tblspc/"), "{far_path}");
        let changed = path("one", "changed");
        for fork in ["_fsm", "_vm", "_init"] {
            let (layout, page) = from_files.of_path(format!("{changed}{fork}")).unwrap();
            assert_eq!((layout, page), (&RelationLayout::other(8192), 0));
        }
        assert_eq!(from_files.of_path(format!("{changed}.3")).unwrap().1, 3 * 131_072);
        // Nobody may connect to template0; its files can be read all the same.
        let template0 = cluster.value("SELECT 'base/' || oid || '/1249' FROM pg_database WHERE datname = 'template0'");
        assert_eq!(from_files.of_path(&template0).unwrap().0.kind, RelationKind::Heap);
        assert_eq!(from_server.of_path(&template0).unwrap().0.kind, RelationKind::Other);
        assert!(from_files.memory_bytes() < 200_000, "{}", from_files.memory_bytes());
        eprintln!("PostgreSQL {major}: {} relations, {} bytes", from_files.relation_count(), from_files.memory_bytes());
    }
}

#[test]
fn databases_that_cannot_be_asked_have_no_layouts() {
    let work = work_directory();
    let cluster = Cluster::start(&installs().pop().unwrap(), work.path());
    cluster.run(&["CREATE DATABASE one", "CREATE DATABASE shut ALLOW_CONNECTIONS false", "CREATE DATABASE broken"]);
    let directory =
        |name: &str| cluster.value(&format!("SELECT 'base/' || oid FROM pg_database WHERE datname = '{name}'"));
    let pg_class = |name: &str| format!("{}/1259", directory(name));
    let kinds = |layouts: &RelationLayouts| {
        ["one", "shut", "broken"].map(|name| layouts.of_path(pg_class(name)).unwrap().0.kind)
    };
    let data = cluster.server.data_directory();
    // Until then a new database's pages may be in the server's memory only.
    cluster.run(&["CHECKPOINT"]);
    std::fs::remove_file(data.join(directory("broken")).join("pg_filenode.map")).unwrap();
    use RelationKind::{Heap, Other};
    assert_eq!(kinds(&read_from_catalog_files(data).unwrap()), [Heap, Heap, Other]);
    assert_eq!(kinds(&read_from_server(&cluster.server.connect_settings()).unwrap()), [Heap, Other, Other]);
    let nobody = ConnectSettings { user: "nobody_here".to_owned(), ..cluster.server.connect_settings() };
    assert!(read_from_server(&nobody).is_err());
    assert!(read_from_catalog_files(work.path()).is_err());
}

/// Prints what reading costs; the bound is for machines that are busy with other things.
#[test]
fn thousands_of_relations_are_read_in_a_moment() {
    let work = work_directory();
    let cluster = Cluster::start(&installs().pop().unwrap(), work.path());
    let create = "DO $$ BEGIN FOR i IN 1..500 LOOP \
                  EXECUTE format('CREATE TABLE many_%s (id bigserial PRIMARY KEY, a int, b text, c float8)', i); \
                  END LOOP; END $$";
    for part in 0..2 {
        cluster.run(&[&create.replace("many_", &format!("many_{part}_"))]);
    }
    cluster.run(&[MAKE_TEMPLATE0, "CHECKPOINT"]);
    let started = Instant::now();
    let from_files = read_from_catalog_files(cluster.server.data_directory()).unwrap();
    let files_took = started.elapsed();
    let from_server = read_from_server(&cluster.server.connect_settings()).unwrap();
    let server_took = started.elapsed() - files_took;
    let count = from_server.relation_count();
    eprintln!("{count} relations: files {files_took:?}, server {server_took:?}, {} bytes", from_files.memory_bytes());
    assert!(count > 4000 && from_files.relation_count() > count);
    assert!(files_took.as_secs() < 5 && server_took.as_secs() < 20, "{files_took:?} {server_took:?}");
}
