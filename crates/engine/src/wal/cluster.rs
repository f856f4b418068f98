//! Whose WAL it is: what the data directory says, or the WAL itself, or the fence of the source.

use std::path::{Path, PathBuf};

use crate::catalog::identity::{self, ClusterFacts};
use crate::catalog::{Repository, wal_inventory};
use crate::error::{Error, ErrorKind, Result};
use crate::source::postgres::control_file::{CONTROL_FILE_PATH, read_control_file};
use crate::source::postgres::data_directory::major_version;
use crate::terms::SourceName;

/// The cluster whose data directory `pgdata` is.
///
/// # Errors
/// `Source` if it is none or cannot be read.
pub fn cluster_of_data_directory(pgdata: &Path) -> Result<ClusterFacts> {
    let (_, control_file) = read_control_file(pgdata)?;
    let pg_version_num = major_version(pgdata)? * 10_000;
    Ok(ClusterFacts { system_identifier: control_file.system_identifier, pg_version_num })
}

/// The data directory that a file belongs to by its path, if it is there: the server hands over `pg_wal/NAME`, relative
/// to it.
pub(super) fn data_directory_of(file: &Path) -> Option<PathBuf> {
    let directory = file.parent()?;
    // pg_wal itself may be a link, so that only the text of the path leads to the data directory.
    let pgdata = (directory.file_name()? == "pg_wal").then(|| directory.parent())??;
    let pgdata = if pgdata.as_os_str().is_empty() { PathBuf::from(".") } else { pgdata.to_owned() };
    pgdata.join(CONTROL_FILE_PATH).exists().then_some(pgdata)
}

/// The cluster whose WAL is meant when nobody says: the one that writes under the name of `source`.
///
/// None if nothing was ever archived under that name.
///
/// # Errors
/// `Repository` if there is no such source; `Usage` if several clusters have WAL and none is the one.
pub(super) fn cluster_of_source(repository: &Repository, source: &SourceName) -> Result<Option<u64>> {
    if let Some((_, found)) = identity::newest(repository, source)? {
        return found.system_identifier().map(Some);
    }
    let clusters = wal_inventory::clusters(repository, source)?;
    match clusters[..] {
        [] if repository.storage().list(source.as_str())?.is_empty() => {
            let action = format!("find source {source} in {}", repository.storage().describe());
            Err(Error::new(ErrorKind::Repository, action, "there is no such source")
                .hint("`pagehaul info` and `pagehaul wal list` name the sources"))
        }
        [] => Ok(None),
        [one] => Ok(Some(one)),
        _ => {
            let action = format!("choose a cluster of {source}");
            Err(Error::new(ErrorKind::Usage, action, "several have WAL under that name, and none owns it")
                .hint("pagehaul wal adopt makes one of them the owner"))
        }
    }
}
