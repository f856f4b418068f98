//! Several sources in one settings file: which of them a command line means.

use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::terms::SourceName;
use toml::{Table, Value};

use super::{ConfigFile, GLOBAL, unknown};

/// Holds one table a source.
pub(super) const SOURCES: &str = "sources";

/// Whose settings hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Those of no source.
    Plain,
    /// Those of one.
    One(String),
    /// The command runs once for each.
    Each(Vec<String>),
}

impl ConfigFile {
    /// The table of each source.
    ///
    /// # Errors
    /// `Configuration` if one is no table or has no source's name.
    pub(super) fn sources(&self) -> Result<Vec<(&str, &Table)>> {
        let Some(sources) = self.tables.get(SOURCES) else { return Ok(Vec::new()) };
        let tables = sources.as_table().into_iter().flatten();
        let no_table = |what: &str, path: &[&str]| {
            let valid = ["[sources.NAME], such as [sources.main]".to_owned()];
            Err(unknown(self, what, path, "the tables", &valid))
        };
        if !sources.is_table() {
            return no_table("\"sources\" outside of a table", &[SOURCES]);
        }
        let mut named = Vec::new();
        for (name, table) in tables {
            match table {
                Value::Table(table) if name.parse::<SourceName>().is_ok() => named.push((name.as_str(), table)),
                _ => return no_table(&format!("key {name:?} in [sources]"), &[SOURCES, name]),
            }
        }
        Ok(named)
    }
}

/// Which source a command line means, before it is parsed: its settings decide on the defaults of the parser.
///
/// # Errors
/// `Usage` if there are several to choose from, `Configuration` if the one that is named is none of them.
pub(crate) fn choose(command: &Command, file: &ConfigFile, arguments: &[OsString]) -> Result<Choice> {
    let names: Vec<String> = file.sources()?.into_iter().map(|(name, _)| name.to_owned()).collect();
    if names.is_empty() {
        return Ok(Choice::Plain);
    }
    let Ok(all) = lenient(command.clone()).try_get_matches_from(arguments) else { return Ok(Choice::Plain) };
    let Some((verb, matches)) = deepest(command, &all) else { return Ok(Choice::Plain) };
    let has = |id: &str| verb.get_arguments().any(|argument| argument.get_id() == id);
    if !has("source") {
        return Ok(Choice::Plain);
    }
    let verb = all.subcommand_name().unwrap_or_else(|| verb.get_name());
    // An argument that the command does not have must not be asked for.
    let is_typed =
        |id: &str| has(id) && matches.value_source(id).is_some_and(|source| source != ValueSource::DefaultValue);
    if verb == "expire" && is_typed("all") {
        return Ok(Choice::Each(names));
    }
    let in_file = [GLOBAL, verb].iter().find_map(|table| file.tables.get(*table)?.get("source")?.as_str());
    let typed = is_typed("source").then(|| matches.get_one::<String>("source").cloned()).flatten();
    let Some(name) = typed.or_else(|| in_file.map(str::to_owned)) else {
        return choose_unnamed(verb, names, is_typed("repo"));
    };
    if names.contains(&name) {
        return Ok(Choice::One(name));
    }
    // With a repository on the command line it may be any source of that.
    if is_typed("repo") || !["backup", "expire"].contains(&verb) {
        return Ok(Choice::Plain);
    }
    let action = format!("use the settings of {name} in {}", file.path.display());
    Err(Error::new(ErrorKind::Configuration, action, format!("there is no [sources.{name}]"))
        .hint(format!("the sources are: {}; for another one give --repo", names.join(", "))))
}

fn choose_unnamed(verb: &str, mut names: Vec<String>, has_repo: bool) -> Result<Choice> {
    if has_repo {
        return Ok(Choice::Plain);
    }
    if verb == "info" {
        return Ok(Choice::Each(names));
    }
    if names.len() == 1 {
        return Ok(Choice::One(names.remove(0)));
    }
    // What a backup is called that is not named.
    if verb == "backup" && names.iter().any(|name| name == "main") {
        return Ok(Choice::One("main".to_owned()));
    }
    let all = if verb == "expire" { "; or --all" } else { "" };
    Err(Error::new(ErrorKind::Usage, "choose a source", "pagehaul.toml has several")
        .hint(format!("name one of: {}{all}", names.join(", "))))
}

/// The same command line, of which nothing is required and all that is not understood is passed over.
fn lenient(command: Command) -> Command {
    fn relax(command: Command) -> Command {
        let command = command.subcommand_required(false).mut_args(|argument| argument.required(false));
        command.mut_subcommands(relax)
    }
    relax(command).ignore_errors(true)
}

fn deepest<'a>(command: &'a Command, matches: &'a ArgMatches) -> Option<(&'a Command, &'a ArgMatches)> {
    let (mut command, mut at) = (command, matches);
    while let Some((name, below)) = at.subcommand() {
        (command, at) = (command.find_subcommand(name)?, below);
    }
    (!std::ptr::eq(at, matches)).then_some((command, at))
}
