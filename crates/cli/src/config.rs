//! pagehaul.toml and the PAGEHAUL_... variables: both become defaults of the flags before the command line is read.
//!
//! A flag wins over the environment, that wins over the tables of the source, those win over the command's own table,
//! and that wins over [global].

mod lines;
mod sources;

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::builder::BoolishValueParser;
use clap::{Arg, ArgAction, Command};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use toml::{Table, Value};

use crate::hooks::{Hooks, MOMENTS, VERBS};
use lines::line_of;
use sources::SOURCES;
pub(crate) use sources::{Choice, choose};

/// Where the file may be, after --config and $PAGEHAUL_CONFIG.
const PLACES: [&str; 2] = ["pagehaul.toml", "/etc/pagehaul/pagehaul.toml"];
/// Commands that have a table.
const COMMANDS: [&str; 20] = [
    "backup",
    "restore",
    "synthesize",
    "copy",
    "verify",
    "repair",
    "prove",
    "extract-table",
    "info",
    "metrics",
    "check",
    "wal",
    "key",
    "head",
    "tune",
    "mssql",
    "expire",
    "pin",
    "unpin",
    "protect",
];
/// Those of them whose settings are the ones of the commands below them.
const GROUPS: [&str; 4] = ["wal", "mssql", "key", "head"];
/// Holds for all of them.
const GLOBAL: &str = "global";
/// Holds what runs before and after a command.
const HOOKS: &str = "hooks";
/// The key in there that lets hooks have the secrets of the environment.
const INHERIT_SECRETS: &str = "inherit-secrets";
/// Flags, and words without a flag, that are no settings.
const NOT_KEYS: [&str; 7] = ["config", "help", "version", "file", "name", "destination", "label"];

/// A settings file that was read.
#[derive(Debug)]
pub(crate) struct ConfigFile {
    path: PathBuf,
    text: String,
    tables: Table,
}

/// Finds and reads the settings file that holds for this command line, if there is one.
///
/// # Errors
/// `Configuration` if a file that was named is not there, or one does not read.
pub(crate) fn find(arguments: &[OsString]) -> Result<Option<ConfigFile>> {
    let words: Vec<_> = arguments.iter().skip(1).map(|argument| argument.to_string_lossy()).collect();
    // Help, demo, completions and man work with a broken file too.
    let is_for_us = words.iter().any(|word| COMMANDS.contains(&word.as_ref()));
    if !is_for_us || words.iter().any(|word| ["-h", "--help", "-V", "--version"].contains(&word.as_ref())) {
        return Ok(None);
    }
    let named = named_on_command_line(arguments).or_else(|| std::env::var_os("PAGEHAUL_CONFIG").map(PathBuf::from));
    let path = match named {
        Some(path) => path,
        None => match PLACES.iter().map(PathBuf::from).find(|path| path.exists()) {
            Some(path) => path,
            None => return Ok(None),
        },
    };
    let bad = |cause: String| Error::new(ErrorKind::Configuration, format!("read {}", path.display()), cause);
    let text = std::fs::read_to_string(&path).map_err(|cause| {
        bad(cause.to_string()).hint("--config and PAGEHAUL_CONFIG name a settings file, such as pagehaul.toml")
    })?;
    let tables: Table = text.parse().map_err(|cause: toml::de::Error| {
        bad(cause.to_string().trim_end().to_owned())
            .hint("the file is TOML: [backup] on one line, then lines like readers = 4")
    })?;
    refuse_readable_password(&path, &tables)?;
    Ok(Some(ConfigFile { path, text, tables }))
}

/// The command line is not parsed yet: the file decides on its defaults.
fn named_on_command_line(arguments: &[OsString]) -> Option<PathBuf> {
    let mut arguments = arguments.iter().skip(1).take_while(|argument| *argument != "--");
    while let Some(argument) = arguments.next() {
        if argument == "--config" {
            return arguments.next().map(PathBuf::from);
        }
        if let Some(path) = argument.to_str().and_then(|text| text.strip_prefix("--config=")) {
            return Some(path.into());
        }
    }
    None
}

/// Gives every flag its environment variable.
pub(crate) fn with_environment(mut command: Command) -> Command {
    command = each_setting(command, with_variable);
    for name in COMMANDS.into_iter().chain(["demo"]) {
        command = command.mut_subcommand(name, with_variables);
    }
    command
}

fn with_variables(mut command: Command) -> Command {
    command = each_setting(command, with_variable);
    for name in parts(&command) {
        command = command.mut_subcommand(name, with_variables);
    }
    command
}

/// The commands below a group; none below others.
fn parts(command: &Command) -> Vec<String> {
    if !GROUPS.contains(&command.get_name()) {
        return Vec::new();
    }
    command.get_subcommands().map(|part| part.get_name().to_owned()).filter(|part| part != "help").collect()
}

fn with_variable(argument: Arg, key: &str) -> Arg {
    // Those that the help shows name theirs themselves.
    if argument.get_env().is_some() {
        return argument;
    }
    let is_switch = matches!(argument.get_action(), ArgAction::SetTrue);
    let argument = argument.env(format!("PAGEHAUL_{}", key.replace('-', "_").to_uppercase())).hide_env(true);
    // "yes" and "1" switch a flag on, "no" and "0" do not.
    if is_switch { argument.value_parser(BoolishValueParser::new()) } else { argument }
}

/// Changes every argument of `command` that is a setting.
fn each_setting(mut command: Command, change: impl Fn(Arg, &str) -> Arg) -> Command {
    for (id, key) in settings(&command) {
        command = command.mut_arg(id, |argument| change(argument, &key));
    }
    command
}

/// Id and key of each argument of `command` that is a setting; of a group those of all commands below it.
fn settings(command: &Command) -> Vec<(String, String)> {
    let keys = command.get_arguments().filter_map(|argument| {
        let id = argument.get_id().to_string();
        let key = argument.get_long().map_or_else(|| id.clone(), str::to_owned);
        (!NOT_KEYS.contains(&key.as_str())).then_some((id, key))
    });
    keys.collect()
}

/// The same of a command and of those it consists of.
fn all_settings(command: &Command) -> Vec<(String, String)> {
    let of_parts = parts(command).into_iter().filter_map(|part| command.find_subcommand(part)).flat_map(all_settings);
    settings(command).into_iter().chain(of_parts).collect()
}

/// Makes what the file says the default of the flags, for one of its sources or for none.
///
/// # Errors
/// `Configuration` naming file, line, table, key and what is valid.
pub(crate) fn with_defaults(mut command: Command, file: &ConfigFile, source: Option<&str>) -> Result<Command> {
    for name in file.tables.keys() {
        if ![GLOBAL, SOURCES, HOOKS].contains(&name.as_str()) && !COMMANDS.contains(&name.as_str()) {
            return Err(unknown(file, &format!("table or key {name:?}"), &[name], "the tables", &table_names()));
        }
    }
    // A table that holds for nothing of this command line must be right too.
    let sources = file.sources()?;
    for (name, table) in &sources {
        check_keys(&command, file, &[SOURCES, name], table)?;
        hooks_of(file, Some(name))?;
    }
    hooks_of(file, None)?;
    if let Some(global) = table(file, GLOBAL)? {
        check_everywhere(&command, file, &[GLOBAL], global)?;
    }
    let own = source.and_then(|source| sources.iter().find(|(name, _)| *name == source));
    command = apply_tables(command, file, None, own)?;
    for name in COMMANDS {
        if let Some(table) = table(file, name)? {
            check_own(&command, file, &[name], name, table)?;
        }
        let mut verb = command.find_subcommand(name).cloned().unwrap_or_default();
        verb = verb_with_defaults(verb, file, name, own)?;
        command = command.mut_subcommand(name, |_| verb);
    }
    Ok(command)
}

fn verb_with_defaults(
    mut command: Command,
    file: &ConfigFile,
    verb: &str,
    source: Option<&(&str, &Table)>,
) -> Result<Command> {
    command = apply_tables(command, file, Some(verb), source)?;
    if let Some((name, _)) = source
        && command.get_arguments().any(|argument| argument.get_id() == "source")
    {
        let name = (*name).to_owned();
        command = command.mut_arg("source", |argument| argument.required(false).default_value(name));
    }
    for part in parts(&command) {
        let below = command.find_subcommand(&part).cloned().unwrap_or_default();
        let below = verb_with_defaults(below, file, verb, source)?;
        command = command.mut_subcommand(part, |_| below);
    }
    Ok(command)
}

/// Applies all tables that hold for a command, the weakest first.
fn apply_tables(
    mut command: Command,
    file: &ConfigFile,
    verb: Option<&str>,
    source: Option<&(&str, &Table)>,
) -> Result<Command> {
    let mut tables: Vec<(Vec<&str>, &Table)> = Vec::new();
    tables.extend(table(file, GLOBAL)?.map(|table| (vec![GLOBAL], table)));
    if let Some(verb) = verb {
        tables.extend(table(file, verb)?.map(|table| (vec![verb], table)));
    }
    if let Some((name, own)) = source {
        tables.push((vec![SOURCES, name], own));
        let of_verb = verb.and_then(|verb| Some((verb, own.get(verb)?.as_table()?)));
        tables.extend(of_verb.map(|(verb, table)| (vec![SOURCES, *name, verb], table)));
    }
    let keys = settings(&command);
    for (path, table) in tables {
        command = apply(command, file, &path, verb.unwrap_or("backup"), table, &keys)?;
    }
    Ok(command)
}

/// Every key of a table that holds for several commands is one of some command.
fn check_everywhere(command: &Command, file: &ConfigFile, path: &[&str], table: &Table) -> Result<()> {
    let mut known: Vec<String> = settings(command).into_iter().map(|(_, key)| key).collect();
    for (_, key) in COMMANDS.iter().filter_map(|name| command.find_subcommand(name)).flat_map(all_settings) {
        if !known.contains(&key) {
            known.push(key);
        }
    }
    match table.iter().find(|(key, _)| !known.contains(key)) {
        Some((key, _)) => Err(unknown_key(file, path, key, &known)),
        None => Ok(()),
    }
}

/// Every key of a table of one command is one of that.
fn check_own(command: &Command, file: &ConfigFile, path: &[&str], verb: &str, table: &Table) -> Result<()> {
    let known: Vec<String> =
        command.find_subcommand(verb).map(all_settings).unwrap_or_default().into_iter().map(|(_, key)| key).collect();
    match table.keys().find(|key| !known.contains(key)) {
        Some(key) => Err(unknown_key(file, path, key, &known)),
        None => Ok(()),
    }
}

/// A source's table has keys of all commands, and tables of single ones.
fn check_keys(command: &Command, file: &ConfigFile, path: &[&str], table: &Table) -> Result<()> {
    let mut plain = table.clone();
    for name in COMMANDS {
        if let Some(Value::Table(inner)) = table.get(name) {
            check_own(command, file, &[path, &[name]].concat(), name, inner)?;
            plain.remove(name);
        }
    }
    plain.remove(HOOKS);
    check_everywhere(command, file, path, &plain)
}

/// The hooks that hold for a source: its own, and those of the file where it has none.
///
/// # Errors
/// `Configuration`, naming what is not known or no list of texts.
pub(crate) fn hooks_of(file: &ConfigFile, source: Option<&str>) -> Result<Hooks> {
    let own = source.and_then(|source| Some((vec![SOURCES, source, HOOKS], file.sources_table(source)?.get(HOOKS)?)));
    let of_file = file.tables.get(HOOKS).map(|table| (vec![HOOKS], table));
    let mut hooks = Hooks::default();
    for (path, value) in own.into_iter().chain(of_file) {
        let valid: Vec<String> =
            VERBS.iter().flat_map(|verb| MOMENTS.map(|moment| format!("{moment}-{verb}"))).collect();
        let Value::Table(table) = value else {
            return Err(unknown(file, "\"hooks\" outside of a table", &path, "the tables", &table_names()));
        };
        for (key, value) in table {
            if key == INHERIT_SECRETS {
                hooks.inherit_secrets |= value.as_bool().ok_or_else(|| {
                    let what = format!("use {key} = {value} in [{}] of {}", path.join("."), place(file, &path, key));
                    Error::new(ErrorKind::Configuration, what, "it is true or false")
                })?;
                continue;
            }
            if !valid.contains(key) {
                return Err(unknown_key(file, &path, key, &valid));
            }
            let words = matches!(value, Value::Array(_)).then(|| texts(value)).flatten();
            let words = words.filter(|words| !words.is_empty()).ok_or_else(|| {
                let what = format!("use {key} = {value} in [{}] of {}", path.join("."), place(file, &path, key));
                Error::new(ErrorKind::Configuration, what, "not a list of a program and its arguments")
                    .hint(format!("write {key} = [\"/usr/bin/logger\", \"words for it\"]; there is no shell"))
            })?;
            if !hooks.commands.iter().any(|(known, _)| known == key) {
                hooks.commands.push((key.clone(), words));
            }
        }
    }
    Ok(hooks)
}

impl ConfigFile {
    fn sources_table(&self, source: &str) -> Option<&Table> {
        self.tables.get(SOURCES)?.get(source)?.as_table()
    }
}

fn table<'a>(file: &'a ConfigFile, name: &str) -> Result<Option<&'a Table>> {
    match file.tables.get(name) {
        None => Ok(None),
        Some(Value::Table(table)) => Ok(Some(table)),
        Some(_) => Err(unknown(file, &format!("{name:?} outside of a table"), &[name], "the tables", &table_names())),
    }
}

fn table_names() -> Vec<String> {
    let named = [GLOBAL].into_iter().chain(COMMANDS).chain(["sources.NAME", HOOKS]);
    named.map(|name| format!("[{name}]")).collect()
}

/// The file, with the line of a key if that can be told.
fn place(file: &ConfigFile, path: &[&str], key: &str) -> String {
    let path: Vec<&str> = path.iter().copied().chain((!key.is_empty()).then_some(key)).collect();
    let line = line_of(&file.text, &path).map_or_else(String::new, |line| format!(", line {line}"));
    format!("{}{line}", file.path.display())
}

fn unknown_key(file: &ConfigFile, path: &[&str], key: &str, valid: &[String]) -> Error {
    let what = format!("key {key:?} in [{}]", path.join("."));
    unknown(file, &what, &[path, &[key]].concat(), "the keys", valid)
}

fn unknown(file: &ConfigFile, what: &str, path: &[&str], kind: &str, valid: &[String]) -> Error {
    Error::new(ErrorKind::Configuration, format!("use {what} of {}", place(file, path, "")), "not known")
        .hint(format!("{kind} are: {}", valid.join(", ")))
}

fn apply(
    mut command: Command,
    file: &ConfigFile,
    path: &[&str],
    verb: &str,
    table: &Table,
    keys: &[(String, String)],
) -> Result<Command> {
    for (id, key) in keys {
        // A table of that name is one of a command.
        let Some(value) = table.get(key).filter(|value| !value.is_table() || !COMMANDS.contains(&key.as_str())) else {
            continue;
        };
        let bad = |cause: &str| {
            let what = format!("use {key} = {value} in [{}] of {}", path.join("."), place(file, path, key));
            Error::new(ErrorKind::Configuration, what, cause)
                .hint(format!("`pagehaul {verb} --help` says what --{key} takes"))
        };
        let texts = texts(value).ok_or_else(|| bad("not a text, a number, true or false, or a list of them"))?;
        let argument = command.get_arguments().find(|argument| argument.get_id() == id.as_str()).cloned();
        let argument = argument.unwrap_or_else(|| Arg::new(id.clone()));
        if texts.len() != 1 && !matches!(argument.get_action(), ArgAction::Append) {
            return Err(bad("it takes one value"));
        }
        check_value(&argument, &texts).map_err(|cause| bad(&cause))?;
        // A default does not count as given, so the flag is no longer required.
        command = command.mut_arg(id, |argument| argument.required(false).default_values(texts));
    }
    Ok(command)
}

fn texts(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::String(text) => Some(vec![text.clone()]),
        Value::Integer(number) => Some(vec![number.to_string()]),
        Value::Boolean(switch) => Some(vec![switch.to_string()]),
        Value::Array(values) => values
            .iter()
            .map(|value| texts(value).filter(|texts| texts.len() == 1))
            .collect::<Option<Vec<_>>>()
            .map(|texts| texts.concat()),
        Value::Float(_) | Value::Datetime(_) | Value::Table(_) => None,
    }
}

/// Lets a command line with nothing but this flag judge the values, so that the error can name the file.
fn check_value(argument: &Arg, texts: &[String]) -> std::result::Result<(), String> {
    let id = argument.get_id().to_string();
    let argument = Arg::new(id.clone())
        .long(id.clone())
        .num_args(1)
        .action(ArgAction::Append)
        .value_parser(argument.get_value_parser().clone());
    let words = texts.iter().flat_map(|text| [format!("--{id}"), text.clone()]);
    let typed = Command::new("value")
        .arg(argument.allow_hyphen_values(true))
        .try_get_matches_from(["value".to_owned()].into_iter().chain(words));
    typed.map(drop).map_err(|error| {
        let text = error.render().to_string();
        let cause = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        cause.rsplit_once(": ").map_or(cause, |(_, cause)| cause).to_owned()
    })
}

/// A password in a file that others can read is no secret.
fn refuse_readable_password(path: &Path, tables: &Table) -> Result<()> {
    if !has_password(tables) {
        return Ok(());
    }
    let failed =
        |cause: String| Error::new(ErrorKind::Configuration, format!("use the password in {}", path.display()), cause);
    let mode = std::fs::metadata(path).map_err(|cause| failed(cause.to_string()))?.permissions().mode();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    Err(failed(format!("others can read the file (mode {:o})", mode & 0o777))
        .hint(format!("chmod 600 {}, or put the password into ~/.pgpass", path.display())))
}

/// Whether a table, or one in it, has a connection with a password.
fn has_password(tables: &Table) -> bool {
    tables.iter().any(|(key, value)| match value {
        Value::Table(inner) => has_password(inner),
        Value::String(text) => key == "connection" && holds_password(text),
        _ => false,
    })
}

/// Whether a connection string carries a password: as a keyword, or before the @ of a URI, or in its query.
pub(crate) fn holds_password(connection: &str) -> bool {
    let uri = connection.strip_prefix("postgresql://").or_else(|| connection.strip_prefix("postgres://"));
    if let Some(rest) = uri {
        let authority = rest.split(['/', '?']).next().unwrap_or_default();
        let in_authority = authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'));
        let query = rest.split_once('?').map_or("", |(_, query)| query);
        return in_authority || query.split('&').any(|pair| pair.starts_with("password="));
    }
    connection.match_indices("password").any(|(at, word)| {
        let starts = connection[..at].chars().next_back().is_none_or(char::is_whitespace);
        starts && connection[at + word.len()..].trim_start().starts_with('=')
    })
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
