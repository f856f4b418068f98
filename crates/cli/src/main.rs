//! The `pagehaul` command: reads the command line, calls one verb, ends with its exit code.

mod args;
mod commands;
mod config;
mod exit_code;
mod output;
mod progress;

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};

use pagehaul_engine::error::{Error, ErrorKind, Result};

use args::{Asked, Command, Typed};
use commands::record::Record;
use exit_code::ExitCode;
use progress::Console;

fn main() -> std::process::ExitCode {
    std::panic::set_hook(Box::new(confess));
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let is_get = is_wal_get(&arguments);
    let code =
        catch_unwind(AssertUnwindSafe(|| run(&arguments, is_get))).unwrap_or(ExitCode::of(ErrorKind::Bug, is_get));
    std::process::ExitCode::from(code.number())
}

/// Whether this is `wal get`, or may be meant to be: the server takes a low exit code of it for the end of WAL, so that
/// not even a command line that is not understood may end with one.
fn is_wal_get(arguments: &[OsString]) -> bool {
    let mut words = arguments.iter().skip(1);
    words.any(|word| word == "wal") && words.any(|word| word == "get")
}

/// From command line to exit code; the only place where an error becomes one.
fn run(arguments: &[OsString], is_get: bool) -> ExitCode {
    // Until the command line is understood, the plain word has to do.
    let mut as_json = arguments.iter().any(|argument| argument == "--json");
    let done = args::parse(arguments).and_then(|asked| match asked {
        Asked::Text(text) => output::data(&text).map(|()| ExitCode::Done),
        Asked::Run(typed) => {
            as_json = typed.command.wants_json();
            run_command(&typed)
        }
    });
    done.unwrap_or_else(|error| output::error(&error, as_json, ExitCode::of(error.kind(), is_get)))
}

fn run_command(typed: &Typed) -> Result<ExitCode> {
    let console = Console::new(typed.quiet)?;
    let record = Record::new(typed.history.as_deref());
    match &typed.command {
        Command::Backup(args) => commands::backup::run(args, &record, &console),
        Command::Restore(args) => commands::restore::run(args, &record, &console),
        Command::Verify(args) => commands::verify::run(args, &console),
        Command::Info(args) => commands::info::run(args),
        Command::Wal(verb) => commands::wal::run(verb, &console),
        Command::Tune(args) => commands::tune::run(args, typed.config.as_deref(), &record, &console),
        Command::Demo(args) => commands::demo::run(args, &console.with_phase_mark("       ")),
        Command::Completions { shell } => commands::shell::completions(*shell),
        Command::Man { command } => commands::shell::man(command.as_deref()),
    }
}

/// What a panic says, in whichever thread.
fn confess(panic: &PanicHookInfo<'_>) {
    let error = Error::new(ErrorKind::Bug, "go on", panic)
        .hint("a running backup is not complete; backups that were finished before are not touched");
    output::error(&error, false, ExitCode::Failed(ErrorKind::Bug));
}
