//! `pagehaul mssql restore`: a database back, or a look at a backup.

use std::time::Instant;

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::source::mssql::client::{Connection, ResultSet};
use pagehaul_engine::source::mssql::edition::Dialect;
use pagehaul_engine::source::mssql::server_facts::ServerFacts;
use pagehaul_engine::source::mssql::server_message::{DAMAGE, RunError};
use pagehaul_engine::source::mssql::statement::{RestoreKind, RestoreOptions, RestoreStatement};
use pagehaul_engine::source::mssql::value::Value;
use serde_json::{Map, json};

use super::watch::Shown;
use crate::args::{Look, MssqlRestoreArgs, parse_time};
use crate::exit_code::ExitCode;
use crate::output;
use crate::output::figures::{count, duration};
use crate::output::table::{Align, table};
use crate::progress::Console;

/// Restores, looks, or shows what would be sent.
pub(super) fn run(args: &MssqlRestoreArgs, console: &Console) -> Result<ExitCode> {
    let mut statement = args.statement()?;
    let mut connection = Connection::connect(&args.server.address()?)?;
    // Any database tells what the server is.
    let facts = ServerFacts::ask(&mut connection, "master")?;
    if let Some(directory) = &args.data_to {
        let log = args.log_to.as_ref().unwrap_or(directory);
        statement.options.moves = moves(&mut connection, &facts.dialect, &statement, args, [directory, log])?;
    }
    let text = statement.sql(&facts.dialect)?;
    if args.dry_run {
        output::data(&format!("{text}\nGO\n"))?;
        return Ok(ExitCode::Done);
    }
    let limit = args.statement_limit.as_deref().map(|text| parse_time("--statement-limit", text)).transpose()?;
    let mut shown = Shown::new(console, limit);
    let started = Instant::now();
    let answer = connection.run(&text, &mut shown).map_err(|error| match args.look {
        Some(Look::Verify) => not_verified(error),
        _ => error.into_error(action(&statement)),
    })?;
    if args.look.is_some() && args.look != Some(Look::Verify) {
        return show(&answer.results, args.json, console);
    }
    let elapsed_s = started.elapsed().as_secs_f64();
    let pages = shown.processed.map(|said| said.pages).unwrap_or_default();
    let what = if args.look.is_some() { "the backup is whole, as far as the server looks" } else { "restored" };
    console.tell(&format!("{what}: {} in {}", count(pages, "page"), duration(elapsed_s)));
    if args.json {
        let database = args.database.clone().unwrap_or_default();
        output::json(&json!({"database": database, "statement": text, "pages": pages, "elapsed_s": elapsed_s}))?;
    }
    Ok(ExitCode::Done)
}

fn action(statement: &RestoreStatement) -> String {
    match &statement.kind {
        RestoreKind::Database(name) | RestoreKind::Parts(name, _) | RestoreKind::Pages(name, _) => {
            format!("restore database {name:?}")
        }
        RestoreKind::Log(name) => format!("restore the log of {name:?}"),
        _ => "look at the backup".to_owned(),
    }
}

/// What a verification found: damage if the server says so; otherwise nothing is known of the backup.
fn not_verified(error: RunError) -> Error {
    let is_damage = error.has_number(&DAMAGE);
    let error = error.into_error("verify the backup");
    if !is_damage {
        return error;
    }
    let damage = Error::new(ErrorKind::Damage, error.action(), error.cause());
    match error.hint_text() {
        Some(hint) => damage.hint(hint),
        None => damage,
    }
}

/// Where every file of the backup goes: into `directories` (data, log), under the new database's name.
fn moves(
    connection: &mut Connection,
    dialect: &Dialect,
    statement: &RestoreStatement,
    args: &MssqlRestoreArgs,
    directories: [&String; 2],
) -> Result<Vec<(String, String)>> {
    let look = RestoreStatement {
        kind: RestoreKind::FileListOnly,
        from: statement.from.clone(),
        options: RestoreOptions {
            file: statement.options.file,
            credential: statement.options.credential.clone(),
            metadata_only: statement.options.metadata_only,
            database_in_snapshot: statement.options.database_in_snapshot.clone(),
            ..RestoreOptions::default()
        },
    };
    let answer = connection.ask(&look.sql(dialect)?, "ask which files are in the backup")?;
    let files = answer.results.into_iter().next().unwrap_or_default();
    let database = args.database.clone().unwrap_or_default();
    let text = |index: usize, column: &str| files.value(index, column).and_then(Value::text);
    let mut all = Vec::new();
    for index in 0..files.rows.len() {
        let (Some(name), kind) = (text(index, "LogicalName"), text(index, "Type").unwrap_or_default()) else {
            continue;
        };
        let (directory, ending) = match kind.as_str() {
            "L" => (directories[1], ".ldf"),
            "D" => (directories[0], ".mdf"),
            _ => (directories[0], ""),
        };
        let sign = if dialect.is_windows { "\\" } else { "/" };
        let directory = directory.trim_end_matches(['/', '\\']);
        let named = args.moves.iter().find_map(|moved| moved.strip_prefix(&format!("{name}=")));
        let path = named.map_or_else(|| format!("{directory}{sign}{database}_{index}{ending}"), str::to_owned);
        all.push((name, path));
    }
    if all.is_empty() {
        let cause = "the server names no files in it";
        return Err(Error::new(ErrorKind::Source, "restore the database", cause));
    }
    Ok(all)
}

/// Result sets as tables: a row a column where there is one row, for these have dozens of columns.
fn show(results: &[ResultSet], as_json: bool, console: &Console) -> Result<ExitCode> {
    let cell = |value: &Value| value.text().unwrap_or_default();
    for result in results {
        let names = result.columns.iter().map(|column| column.name.clone());
        let lines: Vec<Vec<String>> = names
            .enumerate()
            .map(|(at, name)| [name].into_iter().chain(result.rows.iter().map(|row| cell(&row[at]))).collect())
            .collect();
        let numbers: Vec<String> = (1..=result.rows.len()).map(|number| number.to_string()).collect();
        let header: Vec<(&str, Align)> = [("column", Align::Left)]
            .into_iter()
            .chain(numbers.iter().map(|text| (text.as_str(), Align::Left)))
            .collect();
        console.tell(&table(&header, &lines));
    }
    if as_json {
        let value = |value: &Value| match value {
            Value::Null => serde_json::Value::Null,
            Value::Int(number) => json!(number),
            Value::Float(number) => json!(number),
            other => json!(other.text()),
        };
        let row = |result: &ResultSet, row: &[Value]| -> Map<String, serde_json::Value> {
            result.columns.iter().zip(row).map(|(column, own)| (column.name.clone(), value(own))).collect()
        };
        let rows: Vec<_> = results.iter().flat_map(|result| result.rows.iter().map(|own| row(result, own))).collect();
        output::json(&json!({"rows": rows}))?;
    }
    Ok(ExitCode::Done)
}
