//! What must hold of the restored cluster, each with the evidence.

use std::collections::BTreeMap;
use std::process::Output;
use std::time::{Duration, Instant};

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::pipeline::pause;
use pagehaul_engine::source::postgres::client::Connection;
use pagehaul_engine::source::postgres::scratch_server::ScratchServer;
use serde::Serialize;

use super::load::{STILL_TABLES, UNLOGGED_TABLE};

/// How long a restored server may replay WAL until it accepts writes.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(600);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// One thing that was checked.
#[derive(Debug, Serialize)]
pub(super) struct Check {
    /// What must hold.
    pub(super) name: String,
    /// "held", "FAILED", or "skipped".
    pub(super) state: &'static str,
    /// The evidence.
    pub(super) detail: String,
}

impl Check {
    /// A check with its outcome.
    pub(super) fn new(name: &str, holds: bool, detail: impl Into<String>) -> Self {
        Check { name: name.to_owned(), state: if holds { "held" } else { "FAILED" }, detail: detail.into() }
    }

    fn skipped(name: &str, why: &str) -> Self {
        Check { name: name.to_owned(), state: "skipped", detail: why.to_owned() }
    }

    /// Whether it speaks against the restore.
    pub(super) fn failed(&self) -> bool {
        self.state == "FAILED"
    }
}

/// Row count and digest of each table that nobody writes to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Digests(BTreeMap<&'static str, (String, String)>);

impl Digests {
    /// Reads every row; the order of rows does not matter.
    ///
    /// # Errors
    /// `Source` with the server's words.
    pub(super) fn read(connection: &mut Connection) -> Result<Self> {
        let mut digests = BTreeMap::new();
        for table in STILL_TABLES {
            let sql = format!("SELECT count(*), coalesce(sum(hashtextextended(t::text, 0)), 0) FROM {table} AS t");
            let row = connection.query_row_text(&sql, 2);
            let row = row.map_err(|error| error.into_error(format!("read every row of {table}")))?;
            let mut columns = row.into_iter().map(Option::unwrap_or_default);
            digests.insert(table, (columns.next().unwrap_or_default(), columns.next().unwrap_or_default()));
        }
        Ok(Digests(digests))
    }

    /// One check a table: the restored rows are the rows of the source.
    pub(super) fn compare(&self, restored: &Digests) -> Vec<Check> {
        let compare_one = |(table, before): (&&'static str, &(String, String))| {
            let after = restored.0.get(table);
            let detail = match after {
                Some(after) if after == before => format!("{} rows, digest {}", before.0, before.1),
                Some(after) => {
                    format!("{} rows, digest {}; was {} rows, digest {}", after.0, after.1, before.0, before.1)
                }
                None => "it is not there".to_owned(),
            };
            Check::new(&format!("rows of {table} are the same"), after == Some(before), detail)
        };
        self.0.iter().map(compare_one).collect()
    }
}

/// Money is neither made nor lost: all four sums are the same, at whatever moment the backup ended.
///
/// # Errors
/// `Source` with the server's words.
pub(super) fn ledger(connection: &mut Connection) -> Result<Check> {
    let sql = "SELECT (SELECT sum(abalance) FROM public.pgbench_accounts), \
        (SELECT sum(tbalance) FROM public.pgbench_tellers), (SELECT sum(bbalance) FROM public.pgbench_branches), \
        (SELECT coalesce(sum(delta), 0) FROM public.pgbench_history), (SELECT count(*) FROM public.pgbench_history)";
    let row = connection.query_row_text(sql, 5).map_err(|error| error.into_error("read pgbench's ledger"))?;
    let mut sums: Vec<String> = row.into_iter().map(Option::unwrap_or_default).collect();
    let transfers = sums.pop().unwrap_or_default();
    let are_equal = sums.windows(2).all(|pair| pair[0] == pair[1]);
    // Without transfers nothing was written during the backup, and the check would prove nothing.
    let detail = if are_equal {
        format!("accounts = tellers = branches = history = {} after {transfers} transfers", sums[0])
    } else {
        format!("accounts, tellers, branches, history: {} after {transfers} transfers", sums.join(", "))
    };
    Ok(Check::new("the ledger written during the backup adds up", are_equal && transfers != "0", detail))
}

/// Unlogged tables are empty after a restore, as after a crash, and can be used.
///
/// # Errors
/// `Source` with the server's words.
pub(super) fn unlogged(connection: &mut Connection) -> Result<Check> {
    let sql = format!("SELECT count(*) FROM {UNLOGGED_TABLE}");
    let rows = connection.query_value(&sql).map_err(|error| error.into_error("read the unlogged table"))?;
    Ok(Check::new("the unlogged table is there and empty", rows == "0", format!("{rows} rows")))
}

/// PostgreSQL's own check of the restored files against its backup manifest, before the server starts.
///
/// # Errors
/// `Configuration` if the program does not run.
pub(super) fn verifybackup(server: &ScratchServer) -> Result<Check> {
    let name = "pg_verifybackup accepts the restored files";
    if !server.install().has_tool("pg_verifybackup") {
        return Ok(Check::skipped(name, "this PostgreSQL has no pg_verifybackup"));
    }
    let directory = server.data_directory().display().to_string();
    Ok(of_tool(name, &server.run_tool("pg_verifybackup", &[&directory])?))
}

/// PostgreSQL's own check of every table and index of the running server.
///
/// # Errors
/// `Configuration` if the program does not run.
pub(super) fn amcheck(server: &ScratchServer) -> Result<Check> {
    let name = "pg_amcheck finds no fault in any table or index";
    if !server.install().has_tool("pg_amcheck") {
        return Ok(Check::skipped(name, "this PostgreSQL has no pg_amcheck (it came with 14)"));
    }
    Ok(of_tool(name, &server.run_tool("pg_amcheck", &["--all", "--install-missing", "--heapallindexed"])?))
}

fn of_tool(name: &str, output: &Output) -> Check {
    let text = [output.stdout.as_slice(), &output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no fault reported");
    Check::new(name, output.status.success(), last.trim())
}

/// Waits until the server has replayed its WAL and accepts writes.
///
/// # Errors
/// `Target` if that takes too long, `Source` with the server's words.
pub(super) fn wait_until_open(connection: &mut Connection) -> Result<()> {
    let started = Instant::now();
    loop {
        let recovering = connection.query_value("SELECT pg_is_in_recovery()");
        if recovering.map_err(|error| error.into_error("ask the restored server whether it is ready"))? == "f" {
            return Ok(());
        }
        if started.elapsed() > REPLAY_TIMEOUT {
            return Err(Error::new(ErrorKind::Target, "wait for the restored server", "it is still replaying WAL"));
        }
        pause(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digests(rows: &str) -> Digests {
        Digests(STILL_TABLES.into_iter().map(|table| (table, (rows.to_owned(), "7".to_owned()))).collect())
    }

    #[test]
    fn a_missing_row_is_a_failed_check() {
        assert!(!digests("5").compare(&digests("5")).iter().any(Check::failed));
        let checks = digests("5").compare(&digests("4"));
        assert!(checks.iter().all(Check::failed) && checks[0].detail.contains("was 5 rows"), "{checks:?}");
        assert!(digests("5").compare(&Digests(BTreeMap::new())).iter().all(Check::failed));
    }
}
