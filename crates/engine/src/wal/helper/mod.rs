//! The resident helper: what makes `wal push` and `wal get` fast, and is never needed.
//!
//! ```text
//! client.rs   one question of a command to the helper; starts one if there is none
//! place.rs    where its socket is, and whether that place is safe
//! message.rs  question and answer as bytes
//! serve.rs    the helper's life: lock, socket, end
//! archive.rs  the repository as the roles see it
//! push_role.rs + push_desk.rs   archiving ahead: the work, and the state behind it
//! get_role.rs + get_desk.rs     fetching ahead, likewise
//! ```

mod archive;
mod client;
mod get_desk;
mod get_role;
mod message;
mod place;
mod push_desk;
mod push_role;
mod serve;
mod stamp;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::cluster::data_directory_of;
use super::{GetRequest, PushRequest};
use crate::encryption::{KeySources, Keys};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::MIB;
use crate::storage::absolute_target;
use crate::terms::SourceName;

pub use client::{Heard, Start, get, push, start_program};
pub(in crate::wal) use get_role::PREFETCH_DIRECTORY;
pub use serve::{detach, serve};

/// How often the helper tells a waiting client that it lives.
const LIFE_SIGN_EVERY: Duration = Duration::from_millis(500);
/// A helper that was silent for so long is taken for dead.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// How long a client waits for a helper that it started.
const START_MAX: Duration = Duration::from_secs(3);
/// Clients at once: PostgreSQL has one archiver and one recovering process.
const CLIENTS_MAX: u16 = 8;

/// Raw bytes of a bundle that a helper makes, at most.
const BUNDLE_BYTES_MAX: u64 = 512 * MIB;
/// Far beyond any settings.
const SETTINGS_BYTES_MAX: u64 = 64 * 1024;

/// What a helper is for; another value in any of it is another helper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelperSettings {
    /// Whose WAL it is.
    pub source: SourceName,
    /// The repository, with an absolute path.
    pub repo: String,
    /// The server's `pg_wal`, absolute and without links.
    pub wal_directory: PathBuf,
    /// What it does.
    pub role: Role,
    /// Ends after so many seconds without a question.
    pub idle_s: u64,
    /// Where its keys come from.
    pub keys: KeySources,
}

/// What a helper does, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Archives.
    Push {
        /// The data directory, if it was named.
        pgdata: Option<PathBuf>,
        /// Codec and level.
        compression: String,
        /// Threads that compress, at most.
        encoders: Option<u16>,
        /// Raw bytes of a bundle, at most.
        bundle_bytes_max: u64,
    },
    /// Fetches.
    Get {
        /// Whose WAL; None is the newest identity of the source.
        system_identifier: Option<u64>,
        /// Threads that decompress, at most.
        decoders: Option<u16>,
    },
}

fn own_keys() -> KeySources {
    Keys::of_process().sources().clone()
}

impl HelperSettings {
    /// Those of the helper that can do what `request` asks, and the file's name; None if a helper is of no use for it:
    /// for several files, or for one outside of a `pg_wal` directory.
    ///
    /// # Errors
    /// `Usage` if the repository's place is not known.
    pub fn of_push(repo: &str, request: &PushRequest, idle_s: u64) -> Result<Option<(Self, String)>> {
        let [file] = &request.files[..] else { return Ok(None) };
        let Some((wal_directory, name)) = wal_directory_of(file).zip(name_of(file)) else { return Ok(None) };
        let pgdata = request.pgdata.clone().or_else(|| data_directory_of(file));
        let role = Role::Push {
            // One that cannot be found is looked for again by whoever does the work.
            pgdata: pgdata.and_then(|pgdata| pgdata.canonicalize().ok()),
            compression: request.compression.to_string(),
            encoders: request.encoders,
            bundle_bytes_max: request.bundle_bytes_max.max(BUNDLE_BYTES_MAX),
        };
        let (source, repo) = (request.source.clone(), absolute_target(repo)?);
        Ok(Some((HelperSettings { source, repo, wal_directory, role, idle_s, keys: own_keys() }, name)))
    }

    /// Those of the helper that can do what `request` asks; None if a helper is of no use for it.
    ///
    /// # Errors
    /// `Usage` if the repository's place is not known.
    pub fn of_get(repo: &str, request: &GetRequest, idle_s: u64) -> Result<Option<Self>> {
        let Some(wal_directory) = wal_directory_of(&request.destination) else { return Ok(None) };
        let role = Role::Get { system_identifier: request.system_identifier, decoders: request.decoders };
        let (source, repo) = (request.source.clone(), absolute_target(repo)?);
        Ok(Some(HelperSettings { source, repo, wal_directory, role, idle_s, keys: own_keys() }))
    }

    /// Reads what [`start_program`] writes.
    ///
    /// # Errors
    /// `Usage` if it is something else.
    pub fn read(from: impl std::io::Read) -> Result<Self> {
        serde_json::from_reader(from.take(SETTINGS_BYTES_MAX)).map_err(|cause| {
            Error::new(ErrorKind::Usage, "read the settings of a helper", cause)
                .hint("`wal push` and `wal get` start it when they need it; there is no use in calling it")
        })
    }
}

fn name_of(file: &Path) -> Option<String> {
    file.file_name()?.to_str().map(str::to_owned).filter(|name| is_plain_name(name))
}

/// The `pg_wal` directory, absolute and without links, that `file` lies in; None if it lies elsewhere.
///
/// A directory counts if the server's notes on what to archive are in it, and its path can be told.
fn wal_directory_of(file: &Path) -> Option<PathBuf> {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = parent.canonicalize().ok()?;
    (directory.to_str().is_some() && directory.join(ARCHIVE_STATUS).is_dir()).then_some(directory)
}

/// Where the server notes what is to be archived.
const ARCHIVE_STATUS: &str = "archive_status";

/// Whether a name can only mean a file of the directory it is looked for in.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 100
        && !name.starts_with('.')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.')
}

/// Threads of a helper: one more than cores, because each waits for the disk now and then.
fn workers() -> u16 {
    crate::pipeline::machine_cores().clamp(1, 4) + 1
}
