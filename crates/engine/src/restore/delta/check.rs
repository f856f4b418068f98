//! What a delta restore may touch. It changes what is there, so it asks more than other restores do:
//!
//! - The data directory is new or empty, or holds an unfinished restore, or is a stopped cluster's with the set's
//!   system identifier; `--force` takes another cluster's too, or one whose pg_control does not read.
//! - A tablespace's place is new or empty, or holds an unfinished restore, or is where the old data directory's own
//!   link of that tablespace leads; `--force` takes any.
//! - No place is inside another one, the repository or a stripe is in none, and none is in the repository: by inode.
//!
//! In the data directory everything is a restore's. In a tablespace's place only the set's own version directory is,
//! because other major versions may have theirs beside it.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::super::plan::TablespacePlace;
use super::super::target::{Found, Target, examine, find_owner, refuse, refuse_overlaps};
use crate::error::{Error, Result};
use crate::format::file_table::FileTable;
use crate::format::manifest::Manifest;
use crate::io;
use crate::source::postgres::control_file::read_control_file;

/// Whose the content of a place is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// There is none.
    Nobodys,
    /// All of it came from a restore that never ended.
    Ours,
    /// A cluster's, perhaps changed already by a delta restore that never ended.
    Clusters,
}

/// The places of a restore with what is in them: the data directory first, then the tablespaces.
#[derive(Debug)]
pub(super) struct OldPlaces(pub(super) Vec<(PathBuf, Whose)>);

/// What the check goes by.
pub(in crate::restore) struct DeltaCheck<'a> {
    pub(in crate::restore) directory: &'a Path,
    pub(in crate::restore) places: &'a [TablespacePlace],
    pub(in crate::restore) table: &'a FileTable,
    pub(in crate::restore) manifest: &'a Manifest,
    /// Files and directories that the set is read from.
    pub(in crate::restore) read_from: &'a [PathBuf],
    pub(in crate::restore) owner: Option<&'a str>,
    pub(in crate::restore) force: bool,
}

impl DeltaCheck<'_> {
    /// Applies the rules; writes nothing.
    pub(super) fn run(&self) -> Result<(Target, OldPlaces)> {
        let directory =
            std::path::absolute(self.directory).map_err(|cause| refuse(self.directory, &cause.to_string()))?;
        let all: Vec<PathBuf> =
            std::iter::once(directory.clone()).chain(self.places.iter().map(|place| place.to.clone())).collect();
        refuse_overlaps(&all, self.read_from)?;
        refuse_running(&directory)?;
        let mut old = vec![(directory.clone(), self.data_directory(&directory)?)];
        for place in self.places {
            old.push((place.to.clone(), self.tablespace(&directory, place)?));
        }
        let owner = find_owner(&directory, self.owner, self.manifest)?;
        Ok((Target { directory, owner, stale: Vec::new() }, OldPlaces(old)))
    }

    fn data_directory(&self, directory: &Path) -> Result<Whose> {
        match examine(directory)? {
            Found::Nothing | Found::Empty => return Ok(Whose::Nobodys),
            Found::Unfinished => return Ok(Whose::Ours),
            Found::UnfinishedDelta => return Ok(Whose::Clusters),
            Found::Content(_) => {}
        }
        let is_cluster = ["PG_VERSION", "global", "base"].iter().all(|name| directory.join(name).exists());
        if !is_cluster {
            return Err(refuse(directory, "it is not empty and no PostgreSQL data directory")
                .hint("give --target-dir the data directory, or a new one; nothing was changed"));
        }
        if self.force {
            return Ok(Whose::Clusters);
        }
        let force = "--force overwrites it all the same; nothing was changed";
        let (_, control_file) = read_control_file(directory).map_err(|error| {
            refuse(directory, &format!("whose it is does not show: {}", error.message())).hint(force)
        })?;
        let (found, wanted) = (control_file.system_identifier.to_string(), &self.manifest.postgres.system_identifier);
        if found != *wanted {
            let cause = format!("it is another cluster's: system identifier {found}, the backup's is {wanted}");
            return Err(refuse(directory, &cause).hint(force));
        }
        Ok(Whose::Clusters)
    }

    fn tablespace(&self, directory: &Path, place: &TablespacePlace) -> Result<Whose> {
        match examine(&place.to)? {
            Found::Nothing | Found::Empty => return Ok(Whose::Nobodys),
            Found::Unfinished => return Ok(Whose::Ours),
            Found::UnfinishedDelta => return Ok(Whose::Clusters),
            Found::Content(_) if self.force => return Ok(Whose::Clusters),
            Found::Content(_) => {}
        }
        let link = directory.join(std::ffi::OsStr::from_bytes(self.table.path(place.link)));
        let is_link = std::fs::symlink_metadata(&link).is_ok_and(|metadata| metadata.is_symlink());
        if is_link && io::is_same(&link, &place.to) {
            return Ok(Whose::Clusters);
        }
        let hint = format!(
            "name the place where this cluster has it: --tablespace-map {}=PLACE; --force overwrites it all the same; \
             nothing was changed",
            place.from.display()
        );
        Err(refuse(&place.to, "it is not empty, and no tablespace of the cluster that is overwritten").hint(hint))
    }
}

/// Refuses a data directory that a live server has.
///
/// The server's own rule: the process that postmaster.pid names is alive, or somebody is attached to its memory.
///
/// # Errors
/// `Target`.
pub(super) fn refuse_running(directory: &Path) -> Result<()> {
    let path = directory.join("postmaster.pid");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(cause) if matches!(cause.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            return Ok(());
        }
        Err(cause) => return Err(refuse(directory, &format!("{} does not read: {cause}", path.display()))),
    };
    let hint = format!(
        "stop the server: pg_ctl stop -D {}; if there surely is none, remove postmaster.pid; nothing was changed",
        directory.display()
    );
    let refused = |cause: String| -> Error { refuse(directory, &cause).hint(hint.as_str()) };
    let mut lines = text.lines();
    // A server in single-user mode writes its number with a minus.
    let number = lines.next().and_then(|line| line.trim().parse::<i32>().ok()).map(i32::abs);
    let Some(pid) = number.and_then(rustix::process::Pid::from_raw) else {
        return Err(refused("its postmaster.pid does not say which process has it".to_owned()));
    };
    match rustix::process::test_kill_process(pid) {
        Ok(()) | Err(Errno::PERM) if !is_zombie(pid.as_raw_nonzero().get()) => {
            return Err(refused(format!("a server runs on it: process {}", pid.as_raw_nonzero())));
        }
        _ => {}
    }
    // The seventh line of the file: key and id of the shared memory.
    let memory = lines.nth(5).and_then(|line| line.split_whitespace().nth(1)?.parse::<i64>().ok());
    match memory {
        Some(id) if is_attached(&std::fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default(), id) => {
            Err(refused("a server's processes are still attached to its memory".to_owned()))
        }
        _ => Ok(()),
    }
}

/// Whether a process has ended and only its parent has not asked for it yet: it holds nothing any more.
fn is_zombie(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The second field, a name in parentheses, may hold anything.
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}

/// Whether somebody is attached to the shared memory `id`, going by the kernel's table.
fn is_attached(table: &str, id: i64) -> bool {
    let mut rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.any(|row| {
        let attached = row.get(6).and_then(|count| count.parse::<u64>().ok());
        row.get(1).and_then(|shared| shared.parse::<i64>().ok()) == Some(id) && attached.is_some_and(|count| count > 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attached_memory_is_found_in_the_kernels_table() {
        let table = "       key      shmid perms                  size  cpid  lpid nattch   uid\n\
                     1234          7  1600                  56   100   100      6   101\n\
                     1235          8  1600                  56   100   100      0   101\n";
        assert!(is_attached(table, 7));
        assert!(!is_attached(table, 8));
        assert!(!is_attached(table, 9));
        assert!(!is_attached("", 7));
    }

    #[test]
    fn a_live_process_is_a_running_server_and_a_dead_one_is_not() {
        let work = tempfile::tempdir().unwrap();
        refuse_running(work.path()).unwrap();
        let pid_file = work.path().join("postmaster.pid");
        std::fs::write(&pid_file, format!("{}\n", std::process::id())).unwrap();
        assert!(refuse_running(work.path()).unwrap_err().message().contains("a server runs on it"));
        std::fs::write(&pid_file, "nonsense\n").unwrap();
        refuse_running(work.path()).unwrap_err();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        std::fs::write(&pid_file, format!("{}\n/data\n1\n5432\n/tmp\n\n1 99999999\nready\n", child.id())).unwrap();
        while !is_zombie(child.id() as i32) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        refuse_running(work.path()).unwrap();
        child.wait().unwrap();
        refuse_running(work.path()).unwrap();
    }
}
