//! Layouts from a server: of every database that lets us in, which alone can read its catalogs.

use std::time::{Duration, Instant};

use pagehaul_page::{Attribute, RelationKind};

use super::super::catalog_pages::catalog_rows::{Domains, GLOBAL_TABLESPACE, attribute, kind_of};
use super::super::client::{Connection, Row};
use super::super::conninfo::ConnectSettings;
use super::super::server_error::QueryError;
use super::{Collector, Place, RelationLayouts};
use crate::error::{Error, ErrorKind, Result};

/// Relations that one query asks for: about 50 KiB of answers, and 13 MiB if all had 1600 columns.
const RELATIONS_AT_ONCE: usize = 500;
/// How long an answer of the network may take; the server's own limit is below.
const PATIENCE: Duration = Duration::from_secs(10);
/// A longer session ends after its answer. DROP DATABASE waits five seconds for others to leave: this and one statement.
const SESSION_TIME: Duration = Duration::from_millis(1500);
/// A rewrite of a catalog locks it; that is no reason to make a backup wait.
const SESSION_SETTINGS: &str = "SET lock_timeout = '1s'; SET statement_timeout = '3s'";
/// When this is over no further question is asked.
const TIME_MAX: Duration = Duration::from_secs(60);
const ACTION: &str = "ask the server for its relations";

/// The layouts of the relations of all databases that the server at `settings` lets us into, one after the other.
///
/// # Errors
/// `Source` if the database that `settings` name cannot be asked; that another one cannot is no error.
pub fn read_from_server(settings: &ConnectSettings) -> Result<RelationLayouts> {
    let started = Instant::now();
    let mut connection = connect(settings, &settings.database)?;
    let sizes = "SELECT current_setting('block_size'), setting FROM pg_settings WHERE name = 'segment_size'";
    let row = connection.query_row(sizes, 2).map_err(failed)?;
    let sizes: Option<Vec<u32>> = row.iter().map(|value| number(value.as_deref()?)).collect();
    let Some([page_size_bytes, pages_per_segment]) = sizes.as_deref() else {
        return Err(Error::new(ErrorKind::Source, ACTION, "the answer makes no sense"));
    };
    let mut collector = Collector::new(*page_size_bytes, *pages_per_segment);
    let names = "SELECT datname FROM pg_database WHERE datallowconn AND datconnlimit <> -2 \
                 AND has_database_privilege(oid, 'CONNECT') ORDER BY oid";
    let names = connection.query(names).map_err(failed)?;
    drop(connection);
    let mut with_shared = true;
    for name in names.into_iter().flatten().flatten().filter_map(|name| String::from_utf8(name).ok()) {
        if started.elapsed() > TIME_MAX {
            break;
        }
        // What was answered before something went wrong is kept.
        if ask_database(settings, &name, with_shared, started, &mut collector).is_ok() {
            with_shared = false;
        }
    }
    Ok(collector.finish())
}

/// A session that waits neither for long nor for locks.
fn connect(settings: &ConnectSettings, database: &str) -> Result<Connection> {
    let settings = ConnectSettings { database: database.to_owned(), ..settings.clone() };
    let mut connection = Connection::connect(&settings)?;
    connection.wait_at_most(Some(PATIENCE))?;
    connection.query(SESSION_SETTINGS).map_err(failed)?;
    Ok(connection)
}

fn failed(error: QueryError) -> Error {
    error.into_error(ACTION)
}

/// Gives the collector the relations of one database.
fn ask_database(
    settings: &ConnectSettings,
    name: &str,
    with_shared: bool,
    started: Instant,
    collector: &mut Collector,
) -> Result<()> {
    let mut connection = connect(settings, name)?;
    let mut session_started = Instant::now();
    let domains = domains(&mut connection)?;
    let mut after = 0;
    while started.elapsed() < TIME_MAX {
        if session_started.elapsed() > SESSION_TIME {
            drop(connection);
            connection = connect(settings, name)?;
            session_started = Instant::now();
        }
        let rows = connection.query(&relations_sql(after, with_shared)).map_err(failed)?;
        for (place, kind, attributes) in rows.iter().filter_map(|row| relation(row, &domains)) {
            collector.add(place, kind, attributes);
        }
        match rows.last().and_then(|row| number(row.first()?.as_deref()?)) {
            // A server that repeats itself would have no end.
            Some(last) if rows.len() >= RELATIONS_AT_ONCE && last > after => after = last,
            _ => break,
        }
    }
    Ok(())
}

fn domains(connection: &mut Connection) -> Result<Domains> {
    let mut domains = Domains::default();
    for row in connection.query("SELECT oid, typbasetype FROM pg_type WHERE typtype = 'd'").map_err(failed)? {
        if let [Some(oid), Some(base_type)] = row.as_slice()
            && let (Some(oid), Some(base_type)) = (number(oid), number(base_type))
        {
            domains.note(oid, base_type);
        }
    }
    Ok(domains)
}

/// Object id, tablespace, database, file, kind, access method, number of columns, and columns of the next relations.
fn relations_sql(after: u32, with_shared: bool) -> String {
    let shared = if with_shared { "" } else { "AND NOT c.relisshared" };
    format!(
        "SELECT c.oid, CASE c.reltablespace WHEN 0 THEN d.dattablespace ELSE c.reltablespace END, d.oid, \
         pg_relation_filenode(c.oid), c.relkind, c.relam, c.relnatts, \
         (SELECT string_agg(a.atttypid || ' ' || a.attlen || ' ' || a.attalign::text, ',' ORDER BY a.attnum) \
         FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0) \
         FROM pg_class c, pg_database d WHERE d.datname = current_database() AND c.oid > {after} {shared} \
         AND c.relpersistence <> 't' AND c.relkind IN ('r', 'm', 't', 'i') ORDER BY c.oid LIMIT {RELATIONS_AT_ONCE}"
    )
}

/// What a row of [`relations_sql`] says; None for relations without files or layout.
fn relation(row: &Row, domains: &Domains) -> Option<(Place, RelationKind, Vec<Attribute>)> {
    let [_, Some(tablespace), Some(database), Some(file_number), Some(relkind), Some(relam), Some(natts), columns] =
        row.as_slice()
    else {
        return None;
    };
    let kind = kind_of(*relkind.first()?, number(relam)?)?;
    let tablespace = number(tablespace)?;
    let database = if tablespace == GLOBAL_TABLESPACE { 0 } else { number(database)? };
    let columns = columns.as_deref().unwrap_or_default().split(|byte| *byte == b',');
    let attributes: Option<Vec<Attribute>> = columns.map(|column| column_of(column, domains)).collect();
    let attributes = attributes.filter(|attributes| number(natts) == u32::try_from(attributes.len()).ok());
    Some((Place { tablespace, database, file_number: number(file_number)? }, kind, attributes.unwrap_or_default()))
}

/// A column as `type length alignment`.
fn column_of(text: &[u8], domains: &Domains) -> Option<Attribute> {
    let mut words = text.split(|byte| *byte == b' ');
    let (type_oid, length, alignment) = (words.next()?, words.next()?, words.next()?);
    let length = std::str::from_utf8(length).ok()?.parse().ok()?;
    attribute(domains.base_of(number(type_oid)?), length, *alignment.first()?)
}

fn number(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use pagehaul_page::ValueType;

    use super::*;

    fn row(values: &[&str]) -> Row {
        values.iter().map(|value| (*value != "NULL").then(|| value.as_bytes().to_vec())).collect()
    }

    #[test]
    fn rows_of_relations_are_read_and_strange_ones_passed_over() {
        let mut domains = Domains::default();
        domains.note(16_400, 2950);
        let given = row(&["7", "1663", "5", "200", "r", "2", "2", "16400 16 c,0 -1 i"]);
        let (place, kind, attributes) = relation(&given, &domains).unwrap();
        assert_eq!((place, kind), (Place { tablespace: 1663, database: 5, file_number: 200 }, RelationKind::Heap));
        let types: Vec<_> = attributes.iter().map(|column| column.value_type).collect();
        assert_eq!(types, [ValueType::Uuid, ValueType::Varlena]);
        let shared = row(&["7", "1664", "5", "200", "i", "403", "1", "23 4 i"]);
        assert_eq!(relation(&shared, &domains).unwrap().0.database, 0);
        for columns in ["NULL", "23 4 i", "23 4 i,23 0 i", "23 4 i,23 4", "23 4 i,x 4 i", ",", "23 4 i,23 99999 i"] {
            let strange = row(&["7", "1663", "5", "200", "r", "2", "2", columns]);
            assert!(relation(&strange, &domains).unwrap().2.is_empty(), "{columns}");
        }
        let without: [&[&str]; 4] = [
            &["7", "1663", "5", "NULL", "r", "2", "1", "23 4 i"],
            &["7", "1663", "5", "200", "i", "3580", "1", "23 4 i"],
            &["7", "1663", "5", "200", "", "2", "1", "23 4 i"],
            &["7", "1663"],
        ];
        assert!(without.iter().all(|values| relation(&row(values), &domains).is_none()));
    }
}
