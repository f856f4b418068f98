//! Which files the catalogs say there are: of every database that lets us in, page by page.

use std::time::Duration;

use super::client::{Connection, Row};
use super::conninfo::ConnectSettings;
use super::server_error::QueryError;
use super::server_facts::shown_identifier;
use crate::error::{Error, ErrorKind, Result};

/// Relations that one connection is asked for: a fraction of a second, and about a MiB of answers.
pub const RELATIONS_AT_ONCE: usize = 5000;
/// How long an answer may take before the database is left alone.
const PATIENCE: Duration = Duration::from_secs(30);

/// One database as `pg_database` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogDatabase {
    /// Its object id.
    pub oid: u32,
    /// Its name; None if it is not UTF-8.
    pub name: Option<String>,
    /// Whether anybody may connect to it.
    pub allows_connections: bool,
    /// Its own directory, relative to the data directory.
    pub directory: String,
}

impl CatalogDatabase {
    /// Its name for people.
    pub fn shown(&self) -> String {
        self.name.as_ref().map_or_else(|| format!("with OID {}", self.oid), |name| clean(name))
    }
}

/// One relation that has files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelationFile {
    /// Its object id.
    pub oid: u32,
    /// Its main fork's first file, relative to the data directory.
    pub path: String,
    /// Whether it is emptied after a crash, from its init fork.
    pub is_unlogged: bool,
}

/// Why a database was not asked.
#[derive(Debug)]
pub enum NotAsked {
    /// There is no such database.
    NoDatabase,
    /// The server cannot open it, or its catalogs, because of their files.
    Broken(String),
    /// It does not let us in, or does not answer in time.
    Refused(String),
}

impl NotAsked {
    /// The rule: src/backend/utils/errcodes.txt.
    fn new(sqlstate: Option<&str>, message: &str) -> Self {
        match sqlstate {
            Some("3D000") => NotAsked::NoDatabase,
            // undefined_file, data_corrupted, index_corrupted
            Some("58P01" | "XX001" | "XX002") => NotAsked::Broken(clean(message)),
            _ => NotAsked::Refused(clean(message)),
        }
    }

    fn of_query(error: QueryError) -> Self {
        let sqlstate = error.server().map(|refused| refused.sqlstate.clone());
        NotAsked::new(sqlstate.as_deref(), &error.into_error("ask its catalogs").message())
    }
}

/// All databases but those that are half dropped, or that somebody drops or moves right now.
///
/// # Errors
/// `Source` if the session is lost, or the answer makes no sense.
pub(super) fn databases(connection: &mut Connection) -> Result<Vec<CatalogDatabase>> {
    let action = "ask for the databases";
    // A connection limit of -2 marks what an interrupted DROP DATABASE left.
    let sql = "SELECT d.oid, d.datname, d.datallowconn, CASE WHEN d.dattablespace = 1663 THEN 'base/' || d.oid \
               ELSE 'pg_tblspc/' || d.dattablespace || '/PG_' || current_setting('server_version_num')::int / 10000 \
               || '_' || c.catalog_version_no || '/' || d.oid END \
               FROM pg_database d, pg_control_system() c WHERE d.datconnlimit <> -2 AND NOT EXISTS \
               (SELECT FROM pg_locks l WHERE l.locktype = 'object' AND l.classid = 1262 AND l.objid = d.oid \
               AND l.mode = 'AccessExclusiveLock' AND l.granted) ORDER BY d.oid";
    let rows = connection.query(sql).map_err(|error| error.into_error(action))?;
    let read = |row: Row| {
        let [Some(oid), Some(name), Some(allows), Some(directory)] = <[_; 4]>::try_from(row).ok()? else { return None };
        Some(CatalogDatabase {
            oid: number(&oid)?,
            name: String::from_utf8(name).ok(),
            allows_connections: allows == b"t",
            directory: String::from_utf8(directory).ok()?,
        })
    };
    let nonsense = || Error::new(ErrorKind::Source, action, "the answer makes no sense");
    rows.into_iter().map(|row| read(row).ok_or_else(nonsense)).collect()
}

/// What a server had at a moment: what is older has had its files ever since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogMoment {
    /// Its databases.
    pub databases: Vec<CatalogDatabase>,
    /// All transactions before this one had ended.
    pub oldest_transaction: u32,
}

/// The databases of a server and where its transactions are, over a connection of its own; the server must be of the
/// cluster `system_identifier`.
///
/// # Errors
/// `Source`, where the role may log in for replication only, too.
pub fn catalog_moment(settings: &ConnectSettings, system_identifier: u64) -> Result<CatalogMoment> {
    let action = "ask the server for its databases";
    let mut connection = Connection::connect(settings)?;
    let sql = "SELECT pg_snapshot_xmin(pg_current_snapshot())::xid, system_identifier FROM pg_control_system()";
    let row = connection.query_row_text(sql, 2).map_err(|error| error.into_error(action))?;
    let texts: Vec<String> = row.into_iter().map(Option::unwrap_or_default).collect();
    if shown_identifier(&texts[1], action)? != system_identifier {
        return Err(Error::new(ErrorKind::Source, action, "it is one of another cluster"));
    }
    match texts[0].parse() {
        Ok(oldest_transaction) => Ok(CatalogMoment { databases: databases(&mut connection)?, oldest_transaction }),
        Err(_) => Err(Error::new(ErrorKind::Source, action, "the answer makes no sense")),
    }
}

/// The next relations of `database` after the one with object id `after`, in the order of object ids, with the files
/// that they have now; none if there are no more. Shared catalogs only if asked for. With `since`, a transaction of
/// [`CatalogMoment`], only those whose row, and so whose file, has been the same since before it; one whose file changes while
/// it is asked for has the file of its row, or no path.
///
/// # Errors
/// Why it does not answer.
pub fn relation_files(
    settings: &ConnectSettings,
    database: &CatalogDatabase,
    after: u32,
    with_shared: bool,
    since: Option<u32>,
) -> std::result::Result<Vec<RelationFile>, NotAsked> {
    let mut connection = connect(settings, database)?;
    let shared = if with_shared { "" } else { "AND NOT c.relisshared" };
    // The file of a mapped catalog, which has no number in its row, may change while the row stays. A row seems to come
    // from the future if transaction numbers went round since it was written.
    let older = since.map_or_else(String::new, |since| {
        format!("AND c.relfilenode <> 0 AND (age(c.xmin) > age('{since}'::xid) OR age(c.xmin) < 0)")
    });
    // The row is that of the query's snapshot, the path what the server has when it comes to that row. To be asked for the path
    // costs the server three times what the row does, so most are made of the row.
    let sql = format!(
        "SELECT c.oid, CASE WHEN {OF_DATABASE} THEN NULL ELSE pg_relation_filepath(c.oid) END, c.relpersistence = 'u', \
         c.relfilenode, {OF_DATABASE} FROM pg_class c \
         WHERE c.oid > {after} AND c.relpersistence <> 't' AND c.relkind IN ('r', 'i', 't', 'm', 'S') {shared} {older} \
         ORDER BY c.oid LIMIT {RELATIONS_AT_ONCE}"
    );
    let rows = connection.query(&sql).map_err(NotAsked::of_query)?;
    let read = |row| relation_file(row, &database.directory, since.is_some()).ok_or_else(nonsense);
    rows.into_iter().map(read).collect()
}

/// Of a row of pg_class: it is in its database's own tablespace, and its file has a number in its row.
const OF_DATABASE: &str = "(c.reltablespace = 0 AND c.relfilenode <> 0)";

/// Of object id, path, whether it is unlogged, number of the file by its row, and whether that is in `directory`: then it has no
/// path. With `by_row` there is no path that is not that of the row.
fn relation_file(row: Row, directory: &str, by_row: bool) -> Option<RelationFile> {
    let [Some(oid), path, Some(is_unlogged), Some(file), Some(is_in)] = <[_; 5]>::try_from(row).ok()? else {
        return None;
    };
    let (oid, is_unlogged) = (number(&oid)?, is_unlogged == b"t");
    let path = if is_in == b"t" {
        format!("{directory}/{}", number(&file)?)
    } else {
        // A relation that was dropped since the row was found has no path.
        let path = path.filter(|path| !by_row || path.rsplit(|byte| *byte == b'/').next() == Some(&file[..]));
        String::from_utf8(path.unwrap_or_default()).ok()?
    };
    Some(RelationFile { oid, path, is_unlogged })
}

/// Of these relations: object id, the file that each has now, and its name as SQL writes it.
///
/// # Errors
/// Why the database does not answer.
pub fn files_now(
    settings: &ConnectSettings,
    database: &CatalogDatabase,
    oids: &[u32],
) -> std::result::Result<Vec<(u32, String, String)>, NotAsked> {
    let mut connection = connect(settings, database)?;
    let mut found = Vec::new();
    for oids in oids.chunks(RELATIONS_AT_ONCE) {
        let list: Vec<String> = oids.iter().map(u32::to_string).collect();
        let sql = format!(
            "SELECT c.oid, pg_relation_filepath(c.oid), quote_ident(n.nspname) || '.' || quote_ident(c.relname) \
             FROM pg_class c LEFT JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid IN ({})",
            list.join(", ")
        );
        for row in connection.query(&sql).map_err(NotAsked::of_query)? {
            let [Some(oid), path, name] = <[_; 3]>::try_from(row).map_err(|_| nonsense())? else { continue };
            let text = |bytes: Option<Vec<u8>>| String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned();
            found.push((number(&oid).ok_or_else(nonsense)?, text(path), clean(&text(name))));
        }
    }
    Ok(found)
}

/// A session that waits neither for long nor for locks.
fn connect(settings: &ConnectSettings, database: &CatalogDatabase) -> std::result::Result<Connection, NotAsked> {
    let refused = || NotAsked::Refused("its name is not UTF-8".to_owned());
    let name = database.name.clone().ok_or_else(refused)?;
    let settings = ConnectSettings { database: name, ..settings.clone() };
    let mut connection = Connection::connect_or_refusal(&settings)
        .map_err(|refused| NotAsked::new(refused.1.as_deref(), &refused.0.message()))?;
    connection.wait_at_most(Some(PATIENCE)).map_err(|error| NotAsked::Refused(error.message()))?;
    // A rewrite of a catalog locks it; that is no reason to make a backup wait. age() counts from the next transaction when
    // a query is planned, and a row of a later snapshot would seem to come from the future.
    let settings = "SET lock_timeout = '3s'; SET statement_timeout = '20s'; \
                    SET default_transaction_isolation = 'repeatable read'";
    connection.query(settings).map_err(NotAsked::of_query)?;
    Ok(connection)
}

fn nonsense() -> NotAsked {
    NotAsked::Refused("the answer makes no sense".to_owned())
}

fn number(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Names are anybody's choice: no control character of one reaches a terminal or a log.
fn clean(text: &str) -> String {
    let escape = |letter: char| match letter.is_control() {
        true => letter.escape_default().collect::<String>(),
        false => letter.to_string(),
    };
    text.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_names_are_escaped() {
        assert_eq!(clean("a\nb\u{1b}[31m\"ü\""), "a\\nb\\u{1b}[31m\"ü\"");
    }

    #[test]
    fn f53_a_file_that_a_relation_got_while_it_was_asked_for_is_not_that_of_its_old_row() {
        let path_in = |is_in, path: Option<&str>, file: &str, by_row| {
            let texts = [Some("16400"), path, Some("t"), Some(file), Some(is_in)];
            let row = texts.map(|text| text.map(|text| text.as_bytes().to_vec())).to_vec();
            relation_file(row, "base/5", by_row).unwrap().path
        };
        let path_of = |path: Option<&str>, file: &str, by_row| path_in("f", path, file, by_row);
        // A TRUNCATE came between the snapshot of the query and the question for the path.
        assert_eq!(path_of(Some("base/5/16407"), "16400", true), "");
        assert_eq!(path_of(Some("base/5/16400"), "16400", true), "base/5/16400");
        assert_eq!(path_of(Some("pg_tblspc/16390/PG_15_202209061/5/16400"), "16400", true).len(), 39);
        assert_eq!(path_of(None, "16400", true), "");
        // Who asks, looks and asks again wants the file of now, and mapped catalogs have none in their row.
        assert_eq!(path_of(Some("base/5/16407"), "16400", false), "base/5/16407");
        assert_eq!(path_of(Some("base/5/1249"), "0", false), "base/5/1249");
        // Of the row alone.
        assert_eq!([true, false].map(|by_row| path_in("t", None, "16400", by_row)), ["base/5/16400"; 2]);
    }

    #[test]
    fn refusals_are_told_from_damage() {
        let is = |state: &str| NotAsked::new(Some(state), "x");
        assert!(matches!(is("58P01"), NotAsked::Broken(_)) && matches!(is("3D000"), NotAsked::NoDatabase));
        assert!(matches!(is("28000"), NotAsked::Refused(_)));
        assert!(matches!(NotAsked::new(None, ""), NotAsked::Refused(_)));
    }
}
