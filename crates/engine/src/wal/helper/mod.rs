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

use crate::terms::SourceName;

pub use client::{Heard, Start, get, push, start_program};
pub use serve::{detach, serve};

/// How often the helper tells a waiting client that it lives.
const LIFE_SIGN_EVERY: Duration = Duration::from_millis(500);
/// A helper that was silent for so long is taken for dead.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// How long a client waits for a helper that it started.
const START_MAX: Duration = Duration::from_secs(3);
/// Clients at once: PostgreSQL has one archiver and one recovering process.
const CLIENTS_MAX: u16 = 8;

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

/// The `pg_wal` directory, absolute and without links, that `file` lies in; None if it lies elsewhere.
///
/// A directory counts if the server's notes on what to archive are in it.
pub fn wal_directory_of(file: &Path) -> Option<PathBuf> {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = parent.canonicalize().ok()?;
    directory.join(ARCHIVE_STATUS).is_dir().then_some(directory)
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

/// Threads of a helper: enough that one writes while another waits for a sync.
fn workers() -> u16 {
    crate::pipeline::machine_cores().clamp(2, 4)
}
