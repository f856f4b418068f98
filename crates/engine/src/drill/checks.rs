//! What must hold of a restored cluster, each with the evidence.

use std::process::Output;

use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::Manifest;
use crate::format::proof::{CheckState, ProofCheck};
use crate::pipeline::Observer;
use crate::source::postgres::client::Connection;
use crate::source::postgres::sandbox::Sandbox;
use crate::source::postgres::server_error::QueryError;
use crate::source::postgres::server_facts::shown_identifier;
use crate::terms::Lsn;

/// SQLSTATE of a statement that is no SQL.
const SYNTAX_ERROR: &str = "42601";
/// How an error shows the SQLSTATEs of a login that the server does not want, such as of a role that does not exist.
const LOGIN_REFUSED: &str = "(SQLSTATE 28";
/// Lines of a tool's words that are kept as evidence.
const EVIDENCE_LINES_MAX: usize = 20;

pub(super) fn passed(name: &str, detail: impl Into<String>) -> ProofCheck {
    ProofCheck { name: name.to_owned(), state: CheckState::Passed, detail: detail.into() }
}

pub(super) fn failed(name: &str, detail: impl Into<String>) -> ProofCheck {
    ProofCheck { name: name.to_owned(), state: CheckState::Failed, detail: detail.into() }
}

fn skipped(name: &str, detail: impl Into<String>) -> ProofCheck {
    ProofCheck { name: name.to_owned(), state: CheckState::Skipped, detail: detail.into() }
}

/// The checks of a running server.
pub(super) struct RunningChecks<'a> {
    pub(super) sandbox: &'a Sandbox,
    pub(super) manifest: &'a Manifest,
    pub(super) stops_at_point: bool,
    pub(super) queries: &'a [String],
    pub(super) query_database: &'a str,
    pub(super) observer: &'a dyn Observer,
}

impl RunningChecks<'_> {
    /// All of them in order, and the position in WAL that the server has reached.
    ///
    /// # Errors
    /// `Usage` for a query that is no SQL, `Source` if the server does not answer at all, `Interrupted`.
    pub(super) fn run(&self) -> Result<(Vec<ProofCheck>, Option<Lsn>)> {
        let mut connection = match self.sandbox.connect("postgres").or_else(|_| self.sandbox.connect("template1")) {
            Ok(connection) => connection,
            Err(error) if error.message().contains(LOGIN_REFUSED) => {
                return Err(error.hint("name a superuser of that cluster with --superuser; nothing was recorded"));
            }
            Err(error) => return Ok((vec![failed("the server takes a session", error.message())], None)),
        };
        let (consistent, reached) = self.consistent(&mut connection)?;
        let mut checks = vec![consistent];
        if self.stops_at_point {
            checks.push(self.stopped_at_target());
        }
        let databases = databases(&mut connection)?;
        checks.push(self.databases_open(&databases));
        for sql in self.queries {
            self.stop_if_asked()?;
            checks.push(self.query(sql)?);
        }
        self.stop_if_asked()?;
        self.observer.phase("check every table and index with amcheck");
        checks.push(self.amcheck(&mut connection, &databases)?);
        self.stop_if_asked()?;
        Ok((checks, Some(reached)))
    }

    fn stop_if_asked(&self) -> Result<()> {
        if self.observer.interrupted() { Err(super::interrupted()) } else { Ok(()) }
    }

    /// The server is open for writing, and no WAL of the set is missing.
    fn consistent(&self, connection: &mut Connection) -> Result<(ProofCheck, Lsn)> {
        let name = "the server reached a consistent state and is open";
        let sql = "SELECT pg_is_in_recovery(), CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() \
                   ELSE pg_current_wal_lsn() END, system_identifier FROM pg_control_system()";
        let action = "ask how far the server is";
        let row = connection.query_row_text(sql, 3).map_err(|error| error.into_error(action))?;
        let mut texts = row.into_iter().map(Option::unwrap_or_default);
        let (recovering, lsn) = (texts.next().unwrap_or_default(), texts.next().unwrap_or_default());
        let identifier = shown_identifier(&texts.next().unwrap_or_default(), action)?.to_string();
        let reached: Lsn = lsn.parse()?;
        let needed = self.manifest.postgres.stop_lsn;
        let detail = format!("at {reached}, the set needs {needed}; system identifier {identifier}");
        let holds = recovering == "f" && reached >= needed && identifier == self.manifest.postgres.system_identifier;
        Ok((if holds { passed(name, detail) } else { failed(name, detail) }, reached))
    }

    /// The server itself says where it stopped replaying, and why there.
    fn stopped_at_target(&self) -> ProofCheck {
        let name = "recovery stopped at its target";
        let log = self.sandbox.log();
        match log.lines().find_map(|line| line.split_once("recovery stopping")) {
            Some((_, words)) => passed(name, format!("recovery stopping{words}")),
            None => failed(name, "the server's log does not say so"),
        }
    }

    /// Each database takes a session that reads its catalog.
    fn databases_open(&self, databases: &[String]) -> ProofCheck {
        let name = "every database opens and its catalog reads";
        let mut relations = 0u64;
        for database in databases {
            let counted = self.sandbox.connect(database).map_err(|error| error.message()).and_then(|mut connection| {
                let count = connection.query_value("SELECT count(*) FROM pg_catalog.pg_class");
                count.map_err(|error| error.into_error("read pg_class").message())
            });
            match counted {
                Ok(count) => relations += count.parse::<u64>().unwrap_or_default(),
                Err(cause) => return failed(name, format!("{database}: {cause}")),
            }
        }
        passed(name, format!("{} databases with {relations} relations", databases.len()))
    }

    /// A query of the user's gives a row that is not NULL and not false.
    fn query(&self, sql: &str) -> Result<ProofCheck> {
        let name = format!("query: {sql}");
        let mut connection = match self.sandbox.connect(self.query_database) {
            Ok(connection) => connection,
            Err(error) => return Ok(failed(&name, error.message())),
        };
        // Our own sessions see pg_catalog only; a user's query is written for PostgreSQL's own default.
        let searched = connection.query("SET search_path = \"$user\", public");
        let rows = match searched.and_then(|_| connection.query(sql)) {
            Ok(rows) => rows,
            Err(QueryError::Server(error)) if error.sqlstate == SYNTAX_ERROR => {
                return Err(Error::new(ErrorKind::Usage, format!("run --query {sql:?}"), error)
                    .hint("the server does not take it for SQL; nothing was recorded"));
            }
            Err(error) => return Ok(failed(&name, error.into_error("run it").message())),
        };
        let value = rows.first().map(|row| row.first().cloned().flatten());
        Ok(match value {
            None => failed(&name, "it gave no row"),
            Some(None) => failed(&name, "it gave NULL"),
            Some(Some(value)) => {
                let text = String::from_utf8_lossy(&value).into_owned();
                if matches!(text.as_str(), "f" | "false") {
                    failed(&name, "it gave false")
                } else {
                    passed(&name, text)
                }
            }
        })
    }

    fn amcheck(&self, connection: &mut Connection, databases: &[String]) -> Result<ProofCheck> {
        let name = "amcheck finds no fault in any table or index";
        let sql = "SELECT count(*) FROM pg_available_extensions WHERE name = 'amcheck'";
        let available = connection.query_value(sql).map_err(|error| error.into_error("ask for amcheck"))?;
        if available == "0" {
            return Ok(skipped(name, "this PostgreSQL has no amcheck: it is in the contrib package"));
        }
        if !self.sandbox.install().has_tool("pg_amcheck") {
            return Ok(self.amcheck_of_indexes(name, databases));
        }
        let arguments = ["--all", "--install-missing", "--heapallindexed", "--no-password"];
        Ok(of_tool(name, &self.sandbox.tool("pg_amcheck", &arguments)?, "no fault reported"))
    }

    /// Before 14 there is no program for it and no check of tables: every btree index, in every database.
    fn amcheck_of_indexes(&self, name: &str, databases: &[String]) -> ProofCheck {
        let sql = "SELECT count(bt_index_check(index => c.oid, heapallindexed => true)) FROM pg_catalog.pg_index i \
                   JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid JOIN pg_catalog.pg_am a ON a.oid = c.relam \
                   WHERE a.amname = 'btree' AND c.relkind = 'i' AND c.relpersistence = 'p' AND i.indisready \
                   AND i.indisvalid";
        let mut indexes = 0u64;
        for database in databases {
            let checked = self.sandbox.connect(database).map_err(|error| error.message()).and_then(|mut connection| {
                let words = |error: QueryError| error.into_error("check the indexes").message();
                connection.query("CREATE EXTENSION IF NOT EXISTS amcheck").map_err(words)?;
                connection.query_value(sql).map_err(words)
            });
            match checked {
                Ok(count) => indexes += count.parse::<u64>().unwrap_or_default(),
                Err(cause) => return failed(name, format!("{database}: {cause}")),
            }
        }
        passed(name, format!("{indexes} btree indexes; this version checks no tables"))
    }
}

/// The databases that take connections.
fn databases(connection: &mut Connection) -> Result<Vec<String>> {
    let sql = "SELECT datname FROM pg_catalog.pg_database WHERE datallowconn ORDER BY oid";
    let rows = connection.query(sql).map_err(|error| error.into_error("list the databases"))?;
    let name = |mut row: Vec<Option<Vec<u8>>>| String::from_utf8(row.pop()??).ok();
    Ok(rows.into_iter().filter_map(name).collect())
}

/// The checksum of every page of the stopped cluster.
///
/// # Errors
/// `Configuration` if the program does not run.
pub(super) fn page_checksums(sandbox: &Sandbox, manifest: &Manifest) -> Result<ProofCheck> {
    let name = "the checksum of every page holds";
    if !manifest.postgres.data_checksums {
        return Ok(skipped(name, "the cluster has no page checksums"));
    }
    if !sandbox.install().has_tool("pg_checksums") {
        return Ok(skipped(name, "this PostgreSQL has no pg_checksums"));
    }
    let directory = sandbox.data_directory().display().to_string();
    Ok(of_tool(name, &sandbox.tool("pg_checksums", &["--check", "-D", &directory])?, "no bad page"))
}

fn of_tool(name: &str, output: &Output, when_silent: &str) -> ProofCheck {
    let text = [output.stdout.as_slice(), &output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    if output.status.success() {
        return passed(name, lines.last().copied().unwrap_or(when_silent));
    }
    let shown = lines.iter().take(EVIDENCE_LINES_MAX).copied().collect::<Vec<_>>().join("\n");
    failed(name, if shown.is_empty() { output.status.to_string() } else { shown })
}
