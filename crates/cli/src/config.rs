//! pagehaul.toml and the PAGEHAUL_... variables: both become defaults of the flags before the command line is read.
//!
//! A flag wins over the environment, that wins over the command's own table, that wins over [global].

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::builder::BoolishValueParser;
use clap::{Arg, ArgAction, Command};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use toml::{Table, Value};

/// Where the file may be, after --config and $PAGEHAUL_CONFIG.
const PLACES: [&str; 2] = ["pagehaul.toml", "/etc/pagehaul/pagehaul.toml"];
/// Commands that have a table.
const COMMANDS: [&str; 6] = ["backup", "restore", "verify", "info", "wal", "tune"];
/// Those of them whose settings are the ones of the commands below them.
const GROUPS: [&str; 1] = ["wal"];
/// Holds for all of them.
const GLOBAL: &str = "global";
/// Flags, and words without a flag, that are no settings.
const NOT_KEYS: [&str; 6] = ["config", "help", "version", "file", "name", "destination"];

/// A settings file that was read.
#[derive(Debug)]
pub(crate) struct ConfigFile {
    path: PathBuf,
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
    Ok(Some(ConfigFile { path, tables }))
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
        command = command.mut_subcommand(name, |verb| {
            let below = names_below(&verb);
            below.into_iter().fold(each_setting(verb, with_variable), |verb, name| {
                verb.mut_subcommand(name, |verb| each_setting(verb, with_variable))
            })
        });
    }
    command
}

/// The commands below a group; none below others.
fn names_below(command: &Command) -> Vec<String> {
    if !GROUPS.contains(&command.get_name()) {
        return Vec::new();
    }
    command.get_subcommands().map(|below| below.get_name().to_owned()).filter(|name| name != "help").collect()
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
    let mut keys: Vec<(String, String)> = keys.collect();
    for name in names_below(command) {
        let below = command.find_subcommand(name).map(settings).unwrap_or_default();
        keys.extend(below.into_iter().filter(|setting| !keys.contains(setting)).collect::<Vec<_>>());
    }
    keys
}

/// Makes what the file says the default of the flags.
///
/// # Errors
/// `Configuration` naming file, table, key and what is valid.
pub(crate) fn with_defaults(mut command: Command, file: &ConfigFile) -> Result<Command> {
    let empty = Table::new();
    for name in file.tables.keys() {
        if name != GLOBAL && !COMMANDS.contains(&name.as_str()) {
            return Err(unknown(file, &format!("table or key {name:?}"), "the tables", &table_names()));
        }
    }
    let global = table(file, GLOBAL)?.unwrap_or(&empty);
    let everywhere = settings(&command);
    let mut known: Vec<String> = everywhere.iter().map(|(_, key)| key.clone()).collect();
    command = apply(command, file, GLOBAL, global, &everywhere)?;
    for name in COMMANDS {
        let own = table(file, name)?.unwrap_or(&empty);
        let keys = command.find_subcommand(name).map(settings).unwrap_or_default();
        if let Some(key) = own.keys().find(|key| !keys.iter().any(|(_, valid)| valid == *key)) {
            let valid: Vec<String> = keys.into_iter().map(|(_, key)| key).collect();
            return Err(unknown(file, &format!("key {key:?} in [{name}]"), "the keys", &valid));
        }
        for (_, key) in &keys {
            if !known.contains(key) {
                known.push(key.clone());
            }
        }
        let mut verb = command.find_subcommand(name).cloned().unwrap_or_default();
        for below in names_below(&verb) {
            let inner = verb.find_subcommand(&below).cloned().unwrap_or_default();
            let keys = settings(&inner);
            let inner = apply(inner, file, GLOBAL, global, &keys)?;
            let inner = apply(inner, file, name, own, &keys)?;
            verb = verb.mut_subcommand(below, |_| inner);
        }
        if !GROUPS.contains(&name) {
            verb = apply(verb, file, GLOBAL, global, &keys)?;
            verb = apply(verb, file, name, own, &keys)?;
        }
        command = command.mut_subcommand(name, |_| verb);
    }
    match global.keys().find(|key| !known.contains(key)) {
        Some(key) => Err(unknown(file, &format!("key {key:?} in [{GLOBAL}]"), "the keys", &known)),
        None => Ok(command),
    }
}

fn table<'a>(file: &'a ConfigFile, name: &str) -> Result<Option<&'a Table>> {
    match file.tables.get(name) {
        None => Ok(None),
        Some(Value::Table(table)) => Ok(Some(table)),
        Some(_) => Err(unknown(file, &format!("{name:?} outside of a table"), "the tables", &table_names())),
    }
}

fn table_names() -> Vec<String> {
    [GLOBAL].into_iter().chain(COMMANDS).map(|name| format!("[{name}]")).collect()
}

fn unknown(file: &ConfigFile, what: &str, kind: &str, valid: &[String]) -> Error {
    Error::new(ErrorKind::Configuration, format!("use {what} of {}", file.path.display()), "not known")
        .hint(format!("{kind} are: {}", valid.join(", ")))
}

fn apply(
    mut command: Command,
    file: &ConfigFile,
    table_name: &str,
    table: &Table,
    keys: &[(String, String)],
) -> Result<Command> {
    for (id, key) in keys {
        let Some(value) = table.get(key) else { continue };
        let bad = |cause: &str| {
            let what = format!("use {key} = {value} in [{table_name}] of {}", file.path.display());
            Error::new(ErrorKind::Configuration, what, cause)
                .hint(format!("`pagehaul {} --help` says what --{key} takes", help_of(table_name)))
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

fn help_of(table_name: &str) -> &str {
    if table_name == GLOBAL { "backup" } else { table_name }
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
    let connections = tables.values().filter_map(|table| table.as_table()?.get("connection")?.as_str());
    if !connections.into_iter().any(holds_password) {
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
