//! The only place that writes: people's text goes to standard error, data to standard output.

pub(crate) mod figures;
pub(crate) mod table;
pub(crate) mod timing;

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use pagehaul_engine::error::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::exit_code::{ExitCode, kind_name};

/// Writes data to standard output.
///
/// A reader that went away (`pagehaul info | head`) wants no more: that is no error.
///
/// # Errors
/// `Repository` if the output cannot be written, such as on a full disk.
pub(crate) fn data(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(cause) if cause.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::new(ErrorKind::Repository, "write to standard output", cause))
        }
        _ => Ok(()),
    }
}

/// Writes one JSON document to standard output.
///
/// # Errors
/// As [`data`].
pub(crate) fn json(document: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(document)
        .map_err(|cause| Error::new(ErrorKind::Bug, "render the JSON document", cause))?;
    data(&format!("{text}\n"))
}

/// Writes text for people to standard error; one that is closed is nobody's loss.
pub(crate) fn say(text: &str) {
    let mut stderr = io::stderr().lock();
    writeln!(stderr, "{}", text.trim_end_matches('\n')).and_then(|()| stderr.flush()).ok();
}

static IS_DOCUMENT_EXPECTED: AtomicBool = AtomicBool::new(false);

/// Says whether standard output is for a JSON document, of an error too, however it ends the command.
pub(crate) fn expect_document(is_expected: bool) {
    IS_DOCUMENT_EXPECTED.store(is_expected, Relaxed);
}

/// What [`expect_document`] said last.
pub(crate) fn is_document_expected() -> bool {
    IS_DOCUMENT_EXPECTED.load(Relaxed)
}

/// Reports an error that ends the command with `code`, with `as_json` as a document on standard output too.
pub(crate) fn error(error: &Error, as_json: bool, code: ExitCode) -> ExitCode {
    let text = error.to_string();
    let text = text.strip_prefix("unable").map_or(text.clone(), |rest| format!("{} unable{rest}", red("error:")));
    say(&text);
    if error.kind() == ErrorKind::Bug {
        say("this is a bug in pagehaul: please report it with the lines above");
    }
    if as_json {
        document_of(error, code);
    }
    code
}

/// The document of an error that ends the command with `code`, to standard output.
pub(crate) fn document_of(error: &Error, code: ExitCode) {
    let document = serde_json::json!({"error": {
        "kind": kind_name(error.kind()),
        "message": error.message(),
        "hint": error.hint_text(),
        "attached": error.attached().iter().map(Error::message).collect::<Vec<_>>(),
        "exit_code": code.number(),
    }});
    // The error that is being reported matters more than one of the report.
    json(&document).ok();
}

/// `text` in red where that can be seen; the words alone say as much.
pub(crate) fn red(text: &str) -> String {
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if is_plain || !io::stderr().is_terminal() { text.to_owned() } else { format!("\x1b[1;31m{text}\x1b[0m") }
}
