//! Keys as text: in files, on the command line, printed by a program.

use std::io::Read;
use std::path::Path;
use std::str::FromStr;

use age::secrecy::SecretString;
use zeroize::Zeroizing;

use crate::error::{Error, ErrorKind, Result};

/// Most bytes of a file with identities, recipients or a passphrase.
const KEY_FILE_BYTES_MAX: u64 = 1024 * 1024;

pub(super) fn recipient(text: &str, from: &str) -> Result<age::x25519::Recipient> {
    age::x25519::Recipient::from_str(text.trim()).map_err(|cause| {
        let hint = "a recipient is the public key that age-keygen prints: age1 and 58 more characters";
        // What was typed may be a secret key by mistake, and is not repeated.
        Error::new(ErrorKind::Configuration, format!("read a recipient of {from}"), cause).hint(hint)
    })
}

pub(super) fn key_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

pub(super) fn identities_in(text: &str, from: &str) -> Result<Vec<Box<dyn age::Identity + Send + Sync>>> {
    let mut identities: Vec<Box<dyn age::Identity + Send + Sync>> = Vec::new();
    for line in key_lines(text) {
        let identity = age::x25519::Identity::from_str(line).map_err(|cause| {
            let hint = "an identity is a line that age-keygen writes: AGE-SECRET-KEY-1 and 58 more characters";
            Error::new(ErrorKind::Configuration, format!("read an identity of {from}"), cause).hint(hint)
        })?;
        identities.push(Box::new(identity));
    }
    if identities.is_empty() {
        return Err(Error::new(ErrorKind::Configuration, format!("read identities of {from}"), "there is none"));
    }
    Ok(identities)
}

/// The text of a file with keys; one with secrets must be nobody else's to read.
pub(super) fn read_key_file(path: &Path, is_secret: bool) -> Result<Zeroizing<String>> {
    use std::os::unix::fs::PermissionsExt;
    let failed = |cause: &dyn std::fmt::Display| {
        Error::new(ErrorKind::Configuration, format!("read key file {}", path.display()), cause)
    };
    let file = std::fs::File::open(path).map_err(|cause| failed(&cause))?;
    let metadata = file.metadata().map_err(|cause| failed(&cause))?;
    if is_secret && metadata.is_file() && metadata.permissions().mode() & 0o077 != 0 {
        let cause = format!("others may read it (mode {:03o})", metadata.permissions().mode() & 0o777);
        return Err(failed(&cause).hint(format!("chmod 600 {}", path.display())));
    }
    let mut text = Zeroizing::new(String::new());
    file.take(KEY_FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|cause| failed(&cause))?;
    if text.len() as u64 > KEY_FILE_BYTES_MAX {
        return Err(failed(&"it is far too long"));
    }
    Ok(text)
}

pub(super) fn read_passphrase(path: &Path) -> Result<SecretString> {
    let text = read_key_file(path, true)?;
    let line = text.lines().next().unwrap_or_default();
    if line.is_empty() {
        let action = format!("read passphrase file {}", path.display());
        return Err(Error::new(ErrorKind::Configuration, action, "its first line is empty"));
    }
    Ok(SecretString::from(line.to_owned()))
}

/// What a program prints; no shell is between.
pub(super) fn run_key_command(command: &str) -> Result<Zeroizing<String>> {
    let failed = |cause: &dyn std::fmt::Display| {
        Error::new(ErrorKind::Configuration, "run the key command", cause).hint(
            "it is a program and its arguments, divided by blanks, that prints AGE-SECRET-KEY-1... and ends with 0",
        )
    };
    let mut words = command.split_whitespace();
    let program = words.next().ok_or_else(|| failed(&"it is empty"))?;
    let output = std::process::Command::new(program)
        .args(words)
        .stdin(std::process::Stdio::null())
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|cause| failed(&format!("{program}: {cause}")))?;
    let bytes = Zeroizing::new(output.stdout);
    if !output.status.success() {
        return Err(failed(&format!("{program} ended with {}", output.status)));
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| failed(&format!("{program} printed what is no text")))?;
    Ok(Zeroizing::new(text.to_owned()))
}
