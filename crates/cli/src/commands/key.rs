//! `pagehaul key`.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use pagehaul_engine::catalog::Repository;
use pagehaul_engine::catalog::key_rotation::rotate_keys;
use pagehaul_engine::encryption::{new_identity, new_sign_key};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::terms::SourceName;
use serde::Serialize;

use crate::args::{KeyNewArgs, KeyRotateArgs, KeyVerb};
use crate::exit_code::ExitCode;
use crate::output;
use crate::progress::Console;

/// The keys of `key new --json`.
#[derive(Serialize)]
struct NewKey<'a> {
    recipient: &'a str,
    identity_file: String,
}

/// The keys of `key new --signing --json`.
#[derive(Serialize)]
struct NewSignKey<'a> {
    signer: &'a str,
    sign_key_file: String,
}

/// The keys of `key rotate --json`.
#[derive(Serialize)]
struct Rotated<'a> {
    source: &'a SourceName,
    key_count: u64,
}

/// Runs a verb about keys.
pub(crate) fn run(verb: &KeyVerb, console: &Console) -> Result<ExitCode> {
    match verb {
        KeyVerb::New(args) => make(args, console),
        KeyVerb::Rotate(args) => rotate(args, console),
    }
}

fn make(args: &KeyNewArgs, console: &Console) -> Result<ExitCode> {
    let path = &args.output;
    let failed = |cause: std::io::Error| {
        Error::new(ErrorKind::Target, format!("write {}", path.display()), cause)
            .hint("name a new file in a directory of yours; a key that is there is never overwritten")
    };
    let (secret, public) = if args.signing { new_sign_key()? } else { new_identity() };
    let heading = if args.signing { String::new() } else { format!("# public key: {public}\n") };
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    for text in [&heading, secret.text().trim_end(), "\n"] {
        file.write_all(text.as_bytes()).map_err(failed)?;
    }
    file.sync_all().map_err(failed)?;
    let file = path.display().to_string();
    match (args.json, args.signing) {
        (true, true) => output::json(&NewSignKey { signer: &public, sign_key_file: file })?,
        (true, false) => output::json(&NewKey { recipient: &public, identity_file: file })?,
        (false, _) => output::data(&format!("{public}\n"))?,
    }
    let advice = match args.signing {
        true => "keep it on the hosts that back up and expire; who restores needs the public one",
        false => "keep copies of it away from the database host and from the repository",
    };
    if !args.json {
        console.tell(&format!("the secret key is in {}: {advice}", path.display()));
    }
    Ok(ExitCode::Done)
}

fn rotate(args: &KeyRotateArgs, console: &Console) -> Result<ExitCode> {
    let repository = Repository::open(&args.repo)?;
    let source = args.source.as_deref().map(str::parse).transpose()?;
    let source = repository.source_or_only(source.as_ref())?;
    let key_count = rotate_keys(&repository, &source)?;
    console.tell(&format!("{key_count} data keys of {source} can be read by the given recipients now"));
    if args.json {
        output::json(&Rotated { source: &source, key_count })?;
    }
    Ok(ExitCode::Done)
}
