//! The `pagehaul` command: reads the command line, calls one verb, ends with its exit code.

mod args;
mod commands;
mod config;
mod exit_code;
mod hooks;
mod memory;
mod output;
mod progress;

use std::ffi::OsString;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};

use pagehaul_engine::encryption::{KeySources, Keys, hide_memory};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::secrets;
use pagehaul_engine::storage::tell_of_waits;

use args::{Asked, Command, InfoArgs, KeyVerb, Run, Typed, WalVerb};
use commands::record::Record;
use exit_code::ExitCode;
use hooks::Told;
use progress::Console;

#[global_allocator]
static MEMORY: memory::OrEnd = memory::OrEnd;

fn main() -> std::process::ExitCode {
    std::panic::set_hook(Box::new(confess));
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let is_get = is_wal_get(&arguments);
    memory::end_with(ExitCode::of(ErrorKind::Configuration, is_get));
    memory::catch_aborts();
    let code = or_bug(|| run(&arguments, is_get), is_get);
    std::process::ExitCode::from(code.number())
}

/// What `run` ends with; a panic in it was told when it happened.
fn or_bug(run: impl FnOnce() -> ExitCode, is_get: bool) -> ExitCode {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let code = ExitCode::of(ErrorKind::Bug, is_get);
        if output::is_document_expected() {
            let said = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
            output::document_of(&bug(said.unwrap_or("panicked")), code);
        }
        code
    })
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
    output::expect_document(arguments.iter().any(|argument| argument == "--json"));
    let done = args::parse(arguments).and_then(|asked| match asked {
        Asked::Text(text) => output::data(&text).map(|()| ExitCode::Done),
        Asked::Run(run) => {
            output::expect_document(run.typed.command.wants_json());
            install_keys(std::slice::from_ref(run.as_ref()))?;
            run_one(&run)
        }
        Asked::Each(runs) => {
            output::expect_document(runs.iter().any(|run| run.typed.command.wants_json()));
            install_keys(&runs)?;
            run_each(&runs)
        }
    });
    done.unwrap_or_else(|error| {
        output::error(&error, output::is_document_expected(), ExitCode::of(error.kind(), is_get))
    })
}

/// Reads the keys of all runs, for the verbs that touch repositories.
fn install_keys(runs: &[Run]) -> Result<()> {
    if secrets::are_here() {
        hide_memory();
    }
    let mut all = KeySources::default();
    for run in runs {
        match &run.typed.command {
            // A helper is told its keys by who starts it; the others have no repository, or one of their own.
            Command::Wal(WalVerb::Serve) | Command::Demo(_) | Command::Completions { .. } | Command::Man { .. } => {
                return Ok(());
            }
            command => {
                // What they write is for those who are named.
                let passphrase_only_reads = matches!(command, Command::Copy(_) | Command::Key(KeyVerb::Rotate(_)));
                all.add(KeySources { passphrase_only_reads, ..run.typed.keys.sources() });
            }
        }
    }
    if runs.len() > 1 {
        // Verbs for several sources write nothing that could be encrypted, and what one of them requires is not the other's.
        (all.recipients, all.recipients_files, all.require_encryption) = (Vec::new(), Vec::new(), false);
        if runs.windows(2).any(|pair| pair[0].typed.keys.signer != pair[1].typed.keys.signer) {
            all.signers.clear();
        }
    }
    Keys::load(&all)?.install();
    Ok(())
}

/// A verb between its hooks.
fn run_one(run: &Run) -> Result<ExitCode> {
    let console = Console::new(run.typed.quiet)?;
    let record = Record::new(run.typed.history.as_deref());
    match hooks_tell(&run.typed.command) {
        Some(told) => {
            run.hooks.around(told, &console, || run_command(&run.typed, &console, &record), || record.label())
        }
        None => run_command(&run.typed, &console, &record),
    }
}

/// What hooks are told of a verb; None if they do not run for it, as when it only looks.
fn hooks_tell(command: &Command) -> Option<Told> {
    let told = |verb, source: Option<&String>, label: &str| {
        let label = if label == "latest" { "" } else { label };
        Some(Told { verb, source: source.cloned().unwrap_or_default(), label: label.to_owned() })
    };
    match command {
        Command::Backup(args) if !args.dry_run => told("backup", Some(&args.source), ""),
        Command::Restore(args) if !args.dry_run => told("restore", args.from.source.as_ref(), &args.from.set),
        Command::Verify(args) => told("verify", args.from.source.as_ref(), &args.from.set),
        Command::Repair(args) => told("repair", args.from.source.as_ref(), &args.from.set),
        Command::Synthesize(args) => told("synthesize", args.from.source.as_ref(), &args.from.set),
        Command::Copy(args) => told("copy", args.source.as_ref(), ""),
        Command::Protect(args) if !args.dry_run => told("protect", args.source.as_ref(), ""),
        Command::Expire(args) if args.confirm => told("expire", args.source.as_ref(), ""),
        Command::Prove(args) => told("prove", args.from.source.as_ref(), &args.from.set),
        Command::Check(args) => told("check", Some(&args.source), ""),
        Command::ExtractTable(args) => told("extract-table", args.from.source.as_ref(), &args.from.set),
        _ => None,
    }
}

/// The verbs that run for every source of the settings file.
fn run_each(runs: &[Run]) -> Result<ExitCode> {
    let commands: Vec<&Command> = runs.iter().map(|run| &run.typed.command).collect();
    let info: Vec<&InfoArgs> = commands
        .iter()
        .filter_map(|command| match command {
            Command::Info(args) => Some(args),
            _ => None,
        })
        .collect();
    if info.is_empty() {
        return commands::expire::run_each(runs);
    }
    tell_of_waits(|text| output::say(&format!("waiting: {text}")));
    commands::info::run_each(&info)
}

fn run_command(typed: &Typed, console: &Console, record: &Record) -> Result<ExitCode> {
    match &typed.command {
        Command::Backup(args) => commands::backup::run(args, record, console),
        Command::Restore(args) => commands::restore::run(args, record, console),
        Command::Verify(args) => commands::verify::run(args, console),
        Command::Repair(args) => commands::repair::run(args, console),
        Command::Synthesize(args) => commands::synthesize::run(args, record, console),
        Command::Copy(args) => commands::copy::run(args, console),
        Command::Info(args) => commands::info::run(args),
        Command::Metrics(args) => commands::metrics::run(args, console),
        Command::Prove(args) => commands::prove::run(args, record, console),
        Command::ExtractTable(args) => commands::extract_table::run(args, console),
        Command::Check(args) => commands::check::run(args, console),
        Command::Wal(verb) => commands::wal::run(verb, console),
        Command::Bak(verb) => commands::bak::run(verb, console),
        Command::Expire(args) => commands::expire::run(args, console),
        Command::Pin(args) => commands::pin::pin(args, console),
        Command::Unpin(args) => commands::pin::unpin(args, console),
        Command::Protect(args) => commands::protect::run(args, console),
        Command::Key(verb) => commands::key::run(verb, console),
        Command::Head(verb) => commands::head::run(verb, console),
        Command::Tune(args) => commands::tune::run(args, typed.config.as_deref(), record, console),
        Command::Mssql(verb) => commands::mssql::run(verb, record, console),
        Command::Demo(args) => commands::demo::run(args, &Console::new(typed.quiet)?.with_phase_mark("       ")),
        Command::Completions { shell } => commands::shell::completions(*shell),
        Command::Man { command } => commands::shell::man(command.as_deref()),
    }
}

/// What a panic says, in whichever thread.
fn confess(panic: &PanicHookInfo<'_>) {
    memory::end_if_without_thread(panic);
    output::error(&bug(panic), false, ExitCode::Failed(ErrorKind::Bug));
}

fn bug(cause: impl Display) -> Error {
    Error::new(ErrorKind::Bug, "go on", cause)
        .hint("a running backup is not complete; backups that were finished before are not touched")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says to the test's own program, started once more, that it is to panic.
    const PANICS: &str = "PAGEHAUL_TEST_PANICS";

    #[test]
    fn a_bug_ends_the_command_with_its_code_and_is_a_document_too() {
        if let Ok(as_what) = std::env::var(PANICS) {
            std::panic::set_hook(Box::new(confess));
            output::expect_document(as_what == "document");
            let code = or_bug(|| panic!("this test asks for it: {as_what}"), false);
            signal_hook::low_level::exit(code.number().into());
        }
        for as_what in ["text", "document"] {
            let name = "tests::a_bug_ends_the_command_with_its_code_and_is_a_document_too";
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            let ended = again.args(["--exact", name]).env(PANICS, as_what).output().unwrap();
            assert_eq!(ended.status.code(), Some(70), "{ended:?}");
            let said = String::from_utf8(ended.stderr).unwrap();
            assert!(said.contains("this test asks for it") && said.contains("this is a bug in pagehaul"), "{said}");
            let printed = String::from_utf8(ended.stdout).unwrap();
            let document =
                printed.find('{').map(|at| serde_json::from_str::<serde_json::Value>(&printed[at..]).unwrap());
            let told =
                document.map(|document| (document["error"]["kind"].clone(), document["error"]["exit_code"].clone()));
            assert_eq!(told, (as_what == "document").then(|| ("bug".into(), 70.into())), "{printed}");
        }
    }
}
