//! Since when a server runs: what the replication protocol does not tell, asked with SQL on a connection of its own.

use super::client::Connection;
use super::conninfo::ConnectSettings;
use super::server_facts::shown_identifier;
use crate::error::{Error, ErrorKind, Result};
use crate::terms::Lsn;

/// What is known of a server with SQL alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLife {
    /// When its postmaster started, in microseconds since 1970 by its own clock.
    pub postmaster_start_us: u64,
    /// Where it would replay from if it crashed now: a backup of a standby begins there or later.
    pub redo_lsn: Lsn,
}

/// Asks the server that `settings` name; it must be of the cluster `system_identifier`.
///
/// # Errors
/// `Source`, where the role may log in for replication only, too.
pub fn ask_for_life(settings: &ConnectSettings, system_identifier: u64) -> Result<ServerLife> {
    let action = "ask the server since when it runs";
    let mut connection = Connection::connect(settings)?;
    let sql = "SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, \
               s.system_identifier, c.redo_lsn FROM pg_control_system() s, pg_control_checkpoint() c";
    let row = connection.query_row_text(sql, 3).map_err(|error| error.into_error(action))?;
    let texts: Vec<String> = row.into_iter().map(Option::unwrap_or_default).collect();
    if shown_identifier(&texts[1], action)? != system_identifier {
        let cause = "two connections reached two different clusters";
        return Err(Error::new(ErrorKind::Source, action, cause).hint("name the server itself, not a load balancer"));
    }
    match (texts[0].parse(), texts[2].parse()) {
        (Ok(postmaster_start_us), Ok(redo_lsn)) => Ok(ServerLife { postmaster_start_us, redo_lsn }),
        _ => Err(Error::new(ErrorKind::Source, action, "the answer makes no sense")),
    }
}
