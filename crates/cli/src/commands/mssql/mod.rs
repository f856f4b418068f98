//! `pagehaul mssql`: SQL Server's own BACKUP and RESTORE, driven from here.

mod backup;
mod restore;
mod snapshot_program;
mod tune;
mod watch;

use pagehaul_engine::error::Result;

use super::record::Record;
use crate::args::MssqlVerb;
use crate::exit_code::ExitCode;
use crate::progress::Console;

/// Runs one of its verbs.
pub(crate) fn run(verb: &MssqlVerb, record: &Record, console: &Console) -> Result<ExitCode> {
    match verb {
        MssqlVerb::Backup(args) => backup::run(args, console),
        MssqlVerb::Restore(args) => restore::run(args, console),
        MssqlVerb::Tune(args) => tune::run(args, record, console),
        MssqlVerb::Script(args) => tune::script(args, record),
        MssqlVerb::Import(args) => tune::import(args, record, console),
    }
}
