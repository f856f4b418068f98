//! Running server programs as an OS user they accept: PostgreSQL refuses to run as root.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use super::conninfo::user_by;
use crate::error::{Error, ErrorKind, Result};

/// Name of the OS user that owns `path`, if it has one.
pub fn owner_of(path: &Path) -> Option<String> {
    let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(path).ok()?);
    user_by(|_, uid| uid == owner).map(|user| user.name)
}

/// User and group number of `spec`: USER or USER:GROUP, by name; without a group the user's own.
pub fn user_and_group(spec: &str) -> Option<(u32, u32)> {
    let (user, group) = spec.split_once(':').map_or((spec, None), |(user, group)| (user, Some(group)));
    let user = user_by(|name, _| name == user)?;
    let Some(group) = group else { return Some((user.uid, user.gid)) };
    let groups = std::fs::read_to_string("/etc/group").ok()?;
    let number = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == group).then_some(())?;
        fields.nth(1)?.parse().ok()
    })?;
    Some((user.uid, number))
}

/// Runs `command` by a shell as user and group `owner` (None: as ourselves), as a server of that user would.
///
/// # Errors
/// Those of the system when there is no shell, or the user cannot be taken on; the command's own failure is its status.
pub fn run_shell_as(owner: Option<(u32, u32)>, command: &str) -> std::io::Result<std::process::Output> {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", command]).current_dir("/").stdin(std::process::Stdio::null());
    if let Some((user, group)) = owner {
        // std drops the supplementary groups of root together with the uid.
        shell.uid(user).gid(group);
    }
    shell.output()
}

/// The OS user that owns a scratch server's files and runs its programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OsOwner {
    /// This process' own user, which is not root.
    Ourselves,
    /// The user `postgres`, because this process runs as root.
    Postgres { uid: u32, gid: u32 },
}

impl OsOwner {
    /// # Errors
    /// `Configuration` when this process is root and there is no user `postgres`.
    pub(super) fn find() -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Ok(OsOwner::Ourselves);
        }
        match user_by(|name, _| name == "postgres") {
            Some(user) => Ok(OsOwner::Postgres { uid: user.uid, gid: user.gid }),
            None => Err(Error::new(
                ErrorKind::Configuration,
                "run a scratch server",
                "PostgreSQL refuses to run as root, and there is no OS user postgres to run it as",
            )
            .hint("run as another user, or create one: useradd --system postgres")),
        }
    }

    /// Makes `command` run as this user.
    pub(super) fn apply(self, command: &mut Command) {
        if let OsOwner::Postgres { uid, gid } = self {
            // std drops the supplementary groups of root together with the uid.
            command.uid(uid).gid(gid);
        }
    }

    /// Gives `path` (not what is below it) to this user.
    pub(super) fn take_over(self, path: &Path) -> Result<()> {
        let OsOwner::Postgres { uid, gid } = self else { return Ok(()) };
        std::os::unix::fs::chown(path, Some(uid), Some(gid)).map_err(|cause| {
            Error::new(ErrorKind::Target, format!("give {} to the OS user postgres", path.display()), cause)
        })
    }

    /// Gives `path` and everything below it to this user; links are not followed.
    pub(super) fn take_over_tree(self, path: &Path) -> Result<()> {
        let OsOwner::Postgres { uid, gid } = self else { return Ok(()) };
        let failed = |cause: std::io::Error| {
            Error::new(ErrorKind::Target, format!("give {} to the OS user postgres", path.display()), cause)
        };
        std::os::unix::fs::lchown(path, Some(uid), Some(gid)).map_err(failed)?;
        if std::fs::symlink_metadata(path).map_err(failed)?.is_dir() {
            for entry in std::fs::read_dir(path).map_err(failed)? {
                self.take_over_tree(&entry.map_err(failed)?.path())?;
            }
        }
        Ok(())
    }
}
