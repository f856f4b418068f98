//! `pagehaul mssql tune`, `script` and `import`.

use std::path::Path;

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::source::mssql::client::Connection;
use pagehaul_engine::source::mssql::questions;
use pagehaul_engine::source::mssql::server_facts::ServerFacts;
use pagehaul_tune::figures::TuneReport;
use pagehaul_tune::mssql::import::{import as import_results, read_results};
use pagehaul_tune::mssql::session;

use crate::args::{MssqlImportArgs, MssqlScriptArgs, MssqlTuneArgs};
use crate::commands::record::Record;
use crate::commands::tune::view::View;
use crate::commands::tune::{check_writable, text, write_report};
use crate::exit_code::ExitCode;
use crate::output;
use crate::progress::Console;

/// Measures, or prints what would be run.
pub(super) fn run(args: &MssqlTuneArgs, record: &Record, console: &Console) -> Result<ExitCode> {
    let request = args.request(command_line(), record.path()?)?;
    let address = args.server.address()?;
    if args.dry_run {
        let facts = ServerFacts::ask(&mut Connection::connect(&address)?, &request.database)?;
        output::data(&session::script(&request, &facts)?)?;
        return Ok(ExitCode::Done);
    }
    if let Some(report) = &args.report {
        check_writable(report)?;
    }
    let done = session::tune(&request, &address, &View::new(console))?;
    show(&done, args.report.as_deref(), args.json, console)
}

/// Prints the T-SQL of a run, or the batch that asks for facts.
pub(super) fn script(args: &MssqlScriptArgs, record: &Record) -> Result<ExitCode> {
    let request = args.tune.request(command_line(), record.path()?)?;
    if args.questions {
        let text = format!("{}\nGO\n{}\nGO\n", questions::SESSION_START, questions::facts(&request.database)?);
        output::data(&text)?;
        return Ok(ExitCode::Done);
    }
    let facts = match &args.facts {
        Some(path) => ServerFacts::read(read_results(path)?.lines(), &request.database)?,
        None => {
            let address = args.tune.server.address()?;
            ServerFacts::ask(&mut Connection::connect(&address)?, &request.database)?
        }
    };
    output::data(&session::script(&request, &facts)?)?;
    Ok(ExitCode::Done)
}

/// Reads results, and answers.
pub(super) fn import(args: &MssqlImportArgs, record: &Record, console: &Console) -> Result<ExitCode> {
    if let Some(report) = &args.report {
        check_writable(report)?;
    }
    let request = args.request(command_line(), record.path()?)?;
    let done = import_results(&read_results(&args.results)?, &request)?;
    show(&done, args.report.as_deref(), args.json, console)
}

fn command_line() -> String {
    let words: Vec<String> = std::env::args().map(|word| crate::commands::shell_word(&word)).collect();
    words.join(" ")
}

fn show(done: &TuneReport, report: Option<&Path>, as_json: bool, console: &Console) -> Result<ExitCode> {
    console.tell(&text::report(done));
    if let Some(path) = report {
        write_report(path, done)?;
        console.tell(&format!("report: {}\n", path.display()));
    }
    if as_json {
        output::json(done)?;
    }
    match &done.recommendation {
        Some(_) => Ok(ExitCode::Done),
        None => Err(Error::new(ErrorKind::Source, "recommend settings", "no trial succeeded")
            .hint("the table says why each failed")),
    }
}
