//! `pagehaul completions` and `pagehaul man`: texts made from the definition of the command line.

use clap::CommandFactory;
use clap_complete::Shell;
use pagehaul_engine::error::{Error, ErrorKind, Result};

use crate::args::Typed;
use crate::exit_code::ExitCode;
use crate::output;

/// Prints the completion script for `shell`.
pub(crate) fn completions(shell: Shell) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Typed::command(), "pagehaul", &mut script);
    output::data(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::Done)
}

/// Prints the manual page of `verb`, or the one about all of them.
pub(crate) fn man(verb: Option<&str>) -> Result<ExitCode> {
    let mut command = Typed::command();
    command.build();
    let command = match verb {
        None => command,
        Some(name) => {
            let found = command.find_subcommand(name).cloned();
            let verb = found.ok_or_else(|| {
                Error::new(ErrorKind::Usage, format!("print the manual page of {name:?}"), "there is no such command")
                    .hint("`pagehaul --help` lists the commands")
            })?;
            verb.name(format!("pagehaul-{name}"))
        }
    };
    let mut page = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut page)
        .map_err(|cause| Error::new(ErrorKind::Bug, "make the manual page", cause))?;
    output::data(&String::from_utf8_lossy(&page))?;
    Ok(ExitCode::Done)
}
