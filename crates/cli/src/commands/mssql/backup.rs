//! `pagehaul mssql backup`: the statement, the memory it takes, the deed, and what msdb says of it.

use std::time::Instant;

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::source::mssql::client::Connection;
use pagehaul_engine::source::mssql::questions::{self, Line};
use pagehaul_engine::source::mssql::server_facts::ServerFacts;
use pagehaul_engine::source::mssql::snapshot::{SnapshotScript, take_snapshot};
use pagehaul_engine::source::mssql::statement::{BackupStatement, Contents};
use pagehaul_tune::mssql::space::buffer_bytes_max;
use serde::Serialize;

use super::snapshot_program::make_snapshot;
use super::watch::Shown;
use crate::args::{MssqlBackupArgs, parse_size, parse_time};
use crate::exit_code::ExitCode;
use crate::output;
use crate::output::figures::{bytes, count, duration, rate_of, ratio};
use crate::output::table::block;
use crate::progress::Console;

/// A snapshot program has this share of the time that the database may stand still: the rest is for storing the metadata.
const SNAPSHOT_SHARE: f64 = 0.8;

/// What came of it; the document of `--json`.
#[derive(Debug, Default, Serialize)]
struct Outcome {
    database: String,
    server: String,
    statement: String,
    devices: Vec<String>,
    description: String,
    elapsed_s: f64,
    pages: u64,
    backup_size_bytes: u64,
    stored_bytes: u64,
    ratio: f64,
    throughput_bytes_per_s: f64,
    buffer_bytes: u64,
    algorithm: String,
    has_checksums: bool,
    is_copy_only: bool,
    is_damaged: bool,
    /// The full backup that a differential is built on.
    differential_base: String,
}

/// Backs up, or shows what would be sent.
pub(super) fn run(args: &MssqlBackupArgs, console: &Console) -> Result<ExitCode> {
    let address = args.server.address()?;
    let description = match &args.description {
        Some(text) => text.clone(),
        None => format!("pagehaul {}", jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.9fZ")),
    };
    let statement = args.statement(&description)?;
    let freeze_limit = parse_time("--freeze-limit", &args.freeze_limit)?;
    let mut connection = Connection::connect(&address)?;
    let facts = ServerFacts::ask(&mut connection, &args.database)?;
    facts.check_online()?;
    check_recovery_model(&statement, &facts)?;
    let text = statement.sql(&facts.dialect)?;
    let buffer_bytes = check_memory(args, &statement, &facts)?;
    let snapshot = match &args.snapshot_command {
        Some(program) => Some((program, SnapshotScript::new(&statement, &facts.dialect, freeze_limit)?)),
        None => None,
    };
    console.tell(&format!("buffers: {} of the server's memory beside its buffer pool", bytes(buffer_bytes)));
    if args.dry_run {
        return show(&text, snapshot.as_ref().map(|(_, script)| script));
    }
    let limit = args.statement_limit.as_deref().map(|text| parse_time("--statement-limit", text)).transpose()?;
    let mut shown = Shown::new(console, limit);
    let started = Instant::now();
    match &snapshot {
        Some((program, script)) => {
            let mut guard = Connection::connect(&address)?;
            let mut make = || make_snapshot(program, &args.database, freeze_limit.mul_f64(SNAPSHOT_SHARE), console);
            take_snapshot(&mut connection, &mut guard, script, &mut shown, &mut make)?;
        }
        None => {
            connection.run(&text, &mut shown).map_err(|error| error.into_error(action(&statement)))?;
        }
    }
    let outcome = Outcome {
        database: args.database.clone(),
        server: facts.server.clone(),
        devices: statement.to.iter().map(ToString::to_string).collect(),
        description,
        statement: text,
        elapsed_s: started.elapsed().as_secs_f64(),
        pages: shown.processed.map(|said| said.pages).unwrap_or_default(),
        buffer_bytes,
        ..Outcome::default()
    };
    finish(args, &with_msdb(outcome, &mut connection, &statement, &facts)?, console)
}

fn action(statement: &BackupStatement) -> String {
    format!("back up database {:?}", statement.contents.database().unwrap_or_default())
}

/// A log that is not kept cannot be backed up, and a chain is not begun by trying.
fn check_recovery_model(statement: &BackupStatement, facts: &ServerFacts) -> Result<()> {
    if !matches!(statement.contents, Contents::Log(..)) || facts.recovery_model != "SIMPLE" {
        return Ok(());
    }
    let cause = "its recovery model is SIMPLE, so its log is not kept";
    Err(Error::new(ErrorKind::Source, format!("back up the log of {:?}", facts.database), cause)
        .hint("ALTER DATABASE ... SET RECOVERY FULL, then a full backup with --in-chain begins a chain"))
}

fn check_memory(args: &MssqlBackupArgs, statement: &BackupStatement, facts: &ServerFacts) -> Result<u64> {
    let needed = if statement.options.metadata_only { 0 } else { statement.buffer_bytes(facts) };
    let named = args.max_buffer_memory.as_deref().map(|text| parse_size("--max-buffer-memory", text)).transpose()?;
    let most = named.unwrap_or_else(|| buffer_bytes_max(facts));
    if needed <= most {
        return Ok(needed);
    }
    let cause =
        format!("its buffers would take {} outside of the buffer pool, and {} are allowed", bytes(needed), bytes(most));
    Err(Error::new(ErrorKind::Configuration, action(statement), cause).hint(
        "take fewer buffers or smaller ones (compressed backups have three sets of them), or allow more with \
         --max-buffer-memory; too many end in errors 701 and 802, for others too",
    ))
}

fn show(text: &str, snapshot: Option<&SnapshotScript>) -> Result<ExitCode> {
    let script = match snapshot {
        None => format!("{text}\nGO\n"),
        Some(script) => format!(
            "-- on a session of its own, before all else:\n{}\nGO\n-- then:\n{}\nGO\n-- the snapshot command runs here\n{}\nGO\n-- \
             if anything of that fails:\n-- {}\n",
            script.guard, script.freeze, script.backup, script.thaw
        ),
    };
    output::data(&script)?;
    Ok(ExitCode::Done)
}

/// The figures that the server keeps of the set.
fn with_msdb(
    mut outcome: Outcome,
    connection: &mut Connection,
    statement: &BackupStatement,
    facts: &ServerFacts,
) -> Result<Outcome> {
    let (database, description) = (&outcome.database, &outcome.description);
    let mut question = questions::outcome("", database, description, facts.dialect.version);
    if statement.options.differential {
        question = format!("{}\n{question}", questions::differential_base("", database, description));
    }
    let answer = connection.ask(&question, "look the set up in msdb; the backup itself is done")?;
    let lines: Vec<Line<'_>> = answer.messages.iter().filter_map(|message| Line::parse(&message.text)).collect();
    let text = |name: &str| lines.iter().find(|line| line.name == name).map_or("", |line| line.value);
    let number = |name: &str| text(name).parse::<u64>().unwrap_or_default();
    let plain = number("backup_size");
    let stored = if text("stored_size").is_empty() { plain } else { number("stored_size") };
    let known = !text("backup_size").is_empty();
    let figures = (
        text("algorithm").to_owned(),
        text("has_checksums") == "1",
        text("is_copy_only") == "1",
        text("is_damaged") == "1",
        text("base").to_owned(),
    );
    if !known {
        let cause = "it has no row with this set's description";
        return Err(Error::new(ErrorKind::Source, "find the set in msdb", cause)
            .hint("the server says that the backup is done: look at it with mssql restore --look header"));
    }
    outcome.backup_size_bytes = plain;
    outcome.stored_bytes = stored;
    outcome.ratio = if stored > 0 { plain as f64 / stored as f64 } else { 0.0 };
    outcome.throughput_bytes_per_s = plain as f64 / outcome.elapsed_s.max(1e-9);
    (outcome.algorithm, outcome.has_checksums, outcome.is_copy_only, outcome.is_damaged, outcome.differential_base) =
        figures;
    Ok(outcome)
}

fn finish(args: &MssqlBackupArgs, outcome: &Outcome, console: &Console) -> Result<ExitCode> {
    let mut lines = vec![
        ("set", format!("{} of [{}] on {}", outcome.description, outcome.database, outcome.server)),
        ("devices", outcome.devices.join("\n")),
        ("pages", format!("{}, {}", count(outcome.pages, "page"), bytes(outcome.backup_size_bytes))),
        ("stored", format!("{} (ratio {})", bytes(outcome.stored_bytes), ratio(outcome.ratio))),
        ("took", format!("{}, {}", duration(outcome.elapsed_s), rate_of(outcome.backup_size_bytes, outcome.elapsed_s))),
    ];
    if !outcome.differential_base.is_empty() {
        lines.push(("built on", format!("the full backup of {}", outcome.differential_base)));
    }
    console.tell(&block(&lines));
    if !outcome.has_checksums && !args.no_checksum && args.snapshot_command.is_none() {
        console.warn("warning: msdb says that the set has no checksums, though they were asked for");
    }
    if args.json {
        output::json(outcome)?;
    }
    if outcome.is_damaged {
        console.warn("the server calls this set damaged: pages that it holds were wrong when they were read");
        return Ok(ExitCode::Failed(ErrorKind::Damage));
    }
    Ok(ExitCode::Done)
}
