//! BACKUP and RESTORE as data, the rules that they keep, and their text.
//!
//! A rule that the server's documentation has is checked here, before anything is sent: the error says which one. Built
//! to the documentation of SQL Server 2012 to 2025.

mod backup;
mod backup_rules;
mod backup_text;
mod restore;
mod restore_rules;
mod restore_text;
#[cfg(test)]
mod tests;

pub use backup::{
    Algorithm, AsymmetricEncryption, BackupOptions, BackupStatement, Cipher, Compression, Contents, Encryptor, Expiry,
    Level, LogTail, Media, OnPageError, Part, TapeEnd,
};
pub use restore::{Recovery, RestoreKind, RestoreOptions, RestoreStatement, Stop, StopAt};

use crate::error::{Error, ErrorKind, Result};

/// Fails with `rule` unless it holds.
fn rule(holds: bool, what: &str, cause: &str, rule: &str) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::new(ErrorKind::Usage, format!("make a {what}"), cause).hint(rule)) }
}
