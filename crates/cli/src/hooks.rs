//! Programs of the user that run before and after a verb: argument lists, no shell in between.

use std::process::{Command, Stdio};

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::secrets;

use crate::exit_code::ExitCode;
use crate::progress::Console;

/// When a hook runs, and its part of the key.
pub(crate) const MOMENTS: [&str; 3] = ["before", "after", "failed"];
/// Verbs that have hooks. Those of WAL have none: they run thousands of times a day, and the server waits for them.
pub(crate) const VERBS: [&str; 11] = [
    "backup",
    "restore",
    "verify",
    "repair",
    "synthesize",
    "copy",
    "protect",
    "expire",
    "prove",
    "check",
    "extract-table",
];

/// The hooks of a settings file that hold for one source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hooks {
    /// Key, such as `before-backup`, and program with arguments.
    pub(crate) commands: Vec<(String, Vec<String>)>,
    /// They get the secrets of our environment too: one that calls pagehaul may need them.
    pub(crate) inherit_secrets: bool,
}

/// What a hook is told of the run, by its environment.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) verb: &'static str,
    pub(crate) source: String,
    pub(crate) label: String,
}

impl Hooks {
    /// Runs `verb` between its hooks.
    ///
    /// # Errors
    /// `Configuration` if the hook before it fails: then the verb does not run; those of the verb.
    pub(crate) fn around(
        &self,
        told: Told,
        console: &Console,
        verb: impl FnOnce() -> Result<ExitCode>,
        label: impl FnOnce() -> Option<String>,
    ) -> Result<ExitCode> {
        let done = self.run("before", &told, "", console).and_then(|()| verb());
        let told = Told { label: label().unwrap_or(told.label), ..told };
        let code = match &done {
            Ok(code) => *code,
            Err(error) => ExitCode::Failed(error.kind()),
        };
        let moment = if code == ExitCode::Done { "after" } else { "failed" };
        if let Err(error) = self.run(moment, &told, &code.number().to_string(), console) {
            console.warn(&format!("note: {}", error.message()));
        }
        done
    }

    fn run(&self, moment: &str, told: &Told, exit_code: &str, console: &Console) -> Result<()> {
        let key = format!("{moment}-{}", told.verb);
        let Some((_, words)) = self.commands.iter().find(|(name, _)| *name == key) else { return Ok(()) };
        let Some((program, arguments)) = words.split_first() else { return Ok(()) };
        console.tell(&format!("== hook {key}: {program}"));
        let failed = |cause: String| {
            let hint = match moment {
                "before" => format!("nothing was done; mend {program}, or take {key} out of [hooks] in pagehaul.toml"),
                _ => format!("look at {key} in [hooks] of pagehaul.toml"),
            };
            Error::new(ErrorKind::Configuration, format!("run the hook {key} ({program})"), cause).hint(hint)
        };
        // Standard output is for our own document.
        let stdout = std::io::stderr();
        let mut command = Command::new(program);
        if !self.inherit_secrets {
            secrets::keep_from(&mut command);
        }
        command.args(arguments).env("PAGEHAUL_VERB", told.verb).env("PAGEHAUL_LABEL", &told.label);
        command.env("PAGEHAUL_EXIT_CODE", exit_code);
        // It is a setting as well: a pagehaul that the hook calls must not find an empty one.
        match told.source.as_str() {
            "" => command.env_remove("PAGEHAUL_SOURCE"),
            source => command.env("PAGEHAUL_SOURCE", source),
        };
        let status = command
            .stdin(Stdio::null())
            .stdout(Stdio::from(stdout))
            .status()
            .map_err(|cause| failed(cause.to_string()))?;
        if status.success() { Ok(()) } else { Err(failed(format!("it ended with {status}"))) }
    }
}
