//! The target of a restore: is it empty or ours, is there room, who owns it; its directories, links and large files.
//!
//! A marker in the target, and in the place of each tablespace, says that a restore is under way; the restore holds a
//! lock on it. Everything beside it came from that restore, because it was put into an empty directory; a later
//! restore may therefore remove it and start over, once the lock is free. pg_control is written last, so a target that
//! was not finished never starts; a tablespace whose marker names a target with a pg_control is in use.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, Gid, Mode, Uid};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::delta::OldTarget;
use super::plan::{SpecialFiles, TablespacePlace};
use super::report::SpaceNeed;
use crate::error::{Error, ErrorKind, Result};
use crate::format::file_table::{EntryKind, FileTable, Place};
use crate::format::manifest::Manifest;
use crate::io::{self, Locked};
use crate::pipeline::{WriteRoot, pause};
use crate::source::postgres::os_owner::user_and_group;
use crate::storage::Holder;
use crate::terms::FileId;

/// Marks a directory whose restore is not finished.
pub(super) const MARKER: &str = "pagehaul-restore-in-progress.json";

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Marker {
    label: String,
    set_id: String,
    target_dir: PathBuf,
    /// Whether what is beside it was there before: then only another delta restore may go on with it.
    #[serde(default)]
    pub(super) delta: bool,
    /// Who restores, or did so before it died.
    #[serde(default)]
    holder: Option<Holder>,
}

impl Marker {
    /// Says that a restore of the set into `target_dir` is under way.
    pub(super) fn text(manifest: &Manifest, target_dir: &Path, delta: bool) -> Result<Vec<u8>> {
        let marker = Marker {
            label: manifest.label.to_string(),
            set_id: manifest.set_id.clone(),
            target_dir: target_dir.to_owned(),
            delta,
            holder: Some(Holder::here()),
        };
        serde_json::to_vec_pretty(&marker)
            .map_err(|cause| Error::new(ErrorKind::Bug, "render the restore's marker", cause))
    }

    /// The one in `path`; None if there is none that reads.
    pub(super) fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(path.join(MARKER)).ok()?).ok()
    }
}

/// Keeps other restores out of the same places; they are free again when this one ends, however it ends.
pub(super) struct TargetLocks {
    pub(super) _markers: Vec<Locked>,
}

/// Refuses places of which one is another one or inside it, or that share something with what is restored from.
///
/// # Errors
/// `Target`.
pub(super) fn refuse_overlaps(places: &[PathBuf], read_from: &[PathBuf]) -> Result<()> {
    let overlap = |one: &Path, two: &Path| io::lies_in(one, two) || io::lies_in(two, one);
    for (position, path) in places.iter().enumerate() {
        // A tablespace inside the data directory is possible in PostgreSQL, but not as a place of its own.
        if let Some(other) = places[..position].iter().find(|other| overlap(path, other)) {
            return Err(refuse(path, &format!("it overlaps with {}", other.display())));
        }
        if let Some(source) = read_from.iter().find(|source| overlap(path, source)) {
            let cause = format!("it overlaps with what is restored from: {}", source.display());
            return Err(refuse(path, &cause).hint("give --target-dir another directory; nothing was changed"));
        }
    }
    Ok(())
}

/// A target that may be written to.
pub(super) struct Target {
    pub(super) directory: PathBuf,
    pub(super) owner: Option<(u32, u32)>,
    /// What an interrupted restore left behind, to be removed first.
    pub(super) stale: Vec<PathBuf>,
}

impl Target {
    /// Checks the target directory and those of the tablespaces; writes nothing. `read_from` are the directories that the
    /// set is read from.
    ///
    /// # Errors
    /// `Target` if one is not empty, in use, or not a directory; with the next step.
    pub(super) fn check(
        directory: &Path,
        places: &[TablespacePlace],
        read_from: &[PathBuf],
        owner: Option<&str>,
        manifest: &Manifest,
    ) -> Result<Self> {
        let directory = std::path::absolute(directory).map_err(|cause| refuse(directory, &cause.to_string()))?;
        let mut stale = Vec::new();
        let all: Vec<PathBuf> =
            std::iter::once(directory.clone()).chain(places.iter().map(|place| place.to.clone())).collect();
        refuse_overlaps(&all, read_from)?;
        for (position, path) in all.iter().enumerate() {
            match examine(path)? {
                Found::Nothing | Found::Empty => {}
                Found::Unfinished => stale.push(path.clone()),
                Found::UnfinishedDelta => {
                    let hint = "run it again with --delta, or give --target-dir another directory; nothing was changed";
                    return Err(refuse(path, "a delta restore into it was not finished").hint(hint));
                }
                Found::Content(name) => return Err(refuse_content(path, &name, position > 0)),
            }
        }
        let owner = find_owner(&directory, owner, manifest)?;
        Ok(Target { directory, owner, stale })
    }

    /// The free bytes that each file system must have, and has; what an old target takes is written over.
    pub(super) fn space(
        &self,
        table: &FileTable,
        places: &[TablespacePlace],
        old: Option<&OldTarget>,
        zeros_are_holes: bool,
    ) -> Vec<SpaceNeed> {
        let prefixes: Vec<(Vec<u8>, &Path)> =
            places.iter().map(|place| ([table.path(place.link), b"/"].concat(), place.to.as_path())).collect();
        let mut by_place: BTreeMap<&Path, u64> = BTreeMap::new();
        for file in table.ids().filter(|file| table.entry(*file).kind == EntryKind::File) {
            if zeros_are_holes && table.runs(file).iter().all(|run| run.place() == Place::Zeros) {
                continue;
            }
            let own = prefixes.iter().find(|(prefix, _)| table.path(file).starts_with(prefix));
            let place = own.map_or(self.directory.as_path(), |(_, path)| path);
            // A file takes whole blocks.
            *by_place.entry(place).or_default() += table.entry(file).size_bytes.next_multiple_of(4096);
        }
        let mut by_device: BTreeMap<u64, SpaceNeed> = BTreeMap::new();
        for (place, bytes) in by_place {
            let existing = place.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(Path::new("/"));
            let device = io::device_of(existing).unwrap_or_default();
            let need = by_device.entry(device).or_insert_with(|| SpaceNeed {
                directory: existing.display().to_string(),
                needed_bytes: 0,
                free_bytes: io::free_bytes(existing).unwrap_or(u64::MAX),
            });
            need.needed_bytes += bytes;
        }
        let without_old = |(device, need): (u64, SpaceNeed)| {
            let old_bytes = old.map_or(0, |old| old.bytes_on(device));
            SpaceNeed { needed_bytes: need.needed_bytes.saturating_sub(old_bytes), ..need }
        };
        by_device.into_iter().map(without_old).collect()
    }

    /// Removes what an interrupted restore left behind, and makes the directories with their marker.
    ///
    /// # Errors
    /// `Target`, naming the path; `Conflict` if another restore has begun there.
    pub(super) fn begin(
        &self,
        manifest: &Manifest,
        places: &[TablespacePlace],
        group_access: bool,
    ) -> Result<TargetLocks> {
        let mode = if group_access { Mode::RWXU | Mode::RGRP | Mode::XGRP } else { Mode::RWXU };
        for path in &self.stale {
            let _lock = lock_marker(path)?;
            remove_content(path).map_err(|cause| fail("clear", path, cause))?;
            unmark(path)?;
        }
        let text = Marker::text(manifest, &self.directory, false)?;
        let mut markers = Vec::new();
        for path in std::iter::once(&self.directory).chain(places.iter().map(|place| &place.to)) {
            io::create_directory_durable(path).map_err(|cause| fail("create", path, cause.into()))?;
            rustix::fs::chmod(path, mode).map_err(|cause| fail("set the mode of", path, cause.into()))?;
            if let Some((user, group)) = self.owner {
                std::os::unix::fs::chown(path, Some(user), Some(group))
                    .map_err(|cause| fail("change the owner of", path, cause))?;
            }
            match io::write_new_durable(&path.join(MARKER), &text) {
                Ok(()) => {}
                Err(Errno::EXIST) => return Err(busy(path)),
                Err(cause) => return Err(fail("write the marker of", path, cause.into())),
            }
            markers.push(lock_marker(path)?);
            // We hold the place: whoever still writes a marker comes too late for it.
            remove_half_written_markers(path).map_err(|cause| fail("clear", path, cause))?;
        }
        Ok(TargetLocks { _markers: markers })
    }

    /// Makes all directories and links, then all files that do not come in one piece.
    ///
    /// # Errors
    /// `Target`, naming the path.
    pub(super) fn create_tree(
        &self,
        root: &WriteRoot,
        table: &FileTable,
        places: &[TablespacePlace],
        special: &SpecialFiles,
    ) -> Result<()> {
        let mut files = Vec::new();
        for file in table.ids() {
            match table.entry(file).kind {
                EntryKind::Directory => self.create_directory(root, table, file)?,
                EntryKind::Symlink => self.create_link(root, table, file, places)?,
                EntryKind::File if special.contains(file) => {}
                EntryKind::File => files.push(file),
            }
        }
        root.create_all_large(table, &files)
    }

    fn create_directory(&self, root: &WriteRoot, table: &FileTable, file: FileId) -> Result<()> {
        let path = OsStr::from_bytes(table.path(file));
        let mode = Mode::from_raw_mode(table.entry(file).mode);
        let created = rustix::fs::mkdirat(&root.directory, path, mode)
            .and_then(|()| rustix::fs::chmodat(&root.directory, path, mode, AtFlags::empty()))
            .and_then(|()| self.own(&root.directory, path, AtFlags::empty()));
        created.map_err(|cause| fail("create", Path::new(path), cause.into()))
    }

    fn create_link(&self, root: &WriteRoot, table: &FileTable, file: FileId, places: &[TablespacePlace]) -> Result<()> {
        let place = places.iter().find(|place| place.link == file);
        let link_target = place.map_or_else(|| OsStr::from_bytes(table.target(file)), |place| place.to.as_os_str());
        let path = OsStr::from_bytes(table.path(file));
        rustix::fs::symlinkat(link_target, &root.directory, path)
            .and_then(|()| self.own(&root.directory, path, AtFlags::SYMLINK_NOFOLLOW))
            .map_err(|cause| fail("create the link", Path::new(path), cause.into()))
    }

    fn own(&self, directory: &OwnedFd, path: &OsStr, flags: AtFlags) -> io::IoResult<()> {
        match self.owner {
            Some((user, group)) => {
                rustix::fs::chownat(directory, path, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)), flags)
            }
            None => Ok(()),
        }
    }

    /// Removes the markers: the restore is finished.
    ///
    /// # Errors
    /// `Target`, naming the path.
    pub(super) fn remove_markers(&self, places: &[TablespacePlace]) -> Result<()> {
        places.iter().try_for_each(|place| unmark(&place.to))?;
        unmark(&self.directory)
    }
}

pub(super) fn unmark(path: &Path) -> Result<()> {
    let removed = rustix::fs::unlink(path.join(MARKER)).and_then(|()| io::sync_directory(path));
    removed.map_err(|cause| fail("remove the marker of", path, cause.into()))
}

/// How often a lock is tried: what somebody was just starting when he was killed holds his for a moment, until it becomes its own program.
const LOCK_ATTEMPTS: u32 = 5;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Locks the marker of `path`.
pub(super) fn lock_marker(path: &Path) -> Result<Locked> {
    let file = File::open(path.join(MARKER)).map_err(|cause| fail("open the marker of", path, cause))?;
    for attempt in 1..=LOCK_ATTEMPTS {
        match io::try_lock(&file) {
            Ok(true) => return Ok(Locked(file)),
            Ok(false) if attempt < LOCK_ATTEMPTS => pause(LOCK_PAUSE),
            Ok(false) => {}
            Err(cause) => return Err(fail("lock the marker of", path, cause.into())),
        }
    }
    Err(busy(path))
}

pub(super) fn busy(path: &Path) -> Error {
    let holder = Marker::read(path).and_then(|marker| marker.holder);
    let cause = format!("another restore is writing there{}", Holder::suffix(holder.as_ref()));
    Error::new(ErrorKind::Conflict, format!("restore into {}", path.display()), cause)
        .hint("wait for it to end, or restore into another directory; nothing was changed")
}

/// Whether the restore that left its marker in `path` never got to pg_control, which is the last thing written.
pub(super) fn never_finished(path: &Path) -> bool {
    let has_control = |directory: &Path| directory.join("global/pg_control").exists();
    Marker::read(path).is_some_and(|marker| !has_control(path) && !has_control(&marker.target_dir))
}

/// What is in a place that a restore may go to.
pub(super) enum Found {
    Nothing,
    Empty,
    /// All of it came from a restore that never ended.
    Unfinished,
    /// A delta restore began to change what was there, and never ended.
    UnfinishedDelta,
    /// Something, such as this name.
    Content(String),
}

pub(super) fn examine(path: &Path) -> Result<Found> {
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(cause) => return Err(refuse(path, &cause.to_string())),
    };
    let mut first = None;
    let mut marked = false;
    for entry in entries {
        let name = entry.map_err(|cause| refuse(path, &cause.to_string()))?.file_name();
        // A new file system has this directory at its root; it is empty, and the server ignores it too.
        if name == "lost+found" || is_half_written_marker(&name) {
            continue;
        }
        marked |= name == MARKER;
        first = first.or(Some(name));
    }
    match first {
        None => Ok(Found::Empty),
        Some(_) if marked && never_finished(path) => {
            lock_marker(path)?;
            let is_delta = Marker::read(path).is_some_and(|marker| marker.delta);
            Ok(if is_delta { Found::UnfinishedDelta } else { Found::Unfinished })
        }
        Some(name) => Ok(Found::Content(name.to_string_lossy().into_owned())),
    }
}

/// Left by a restore that was killed before it wrote anything else.
fn is_half_written_marker(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| name.starts_with(&format!(".{MARKER}.")) && io::is_temporary_name(name))
}

pub(super) fn remove_half_written_markers(path: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        if is_half_written_marker(&entry.file_name()) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

pub(super) fn refuse(path: &Path, cause: &str) -> Error {
    Error::new(ErrorKind::Target, format!("restore into {}", path.display()), cause)
}

fn refuse_content(path: &Path, name: &str, is_tablespace: bool) -> Error {
    if path.join("postmaster.pid").exists() {
        return refuse(path, "a server runs on it, or did not stop cleanly: there is a postmaster.pid")
            .hint("restore into another directory; nothing was changed");
    }
    let hint = if is_tablespace {
        format!("give this tablespace another place: --tablespace-map {}=NEW; nothing was changed", path.display())
    } else {
        "give --target-dir a new or empty directory; nothing was changed".to_owned()
    };
    refuse(path, &format!("it is not empty (it has {name:?})")).hint(hint)
}

pub(super) fn fail(verb: &str, path: &Path, cause: std::io::Error) -> Error {
    Error::new(ErrorKind::Target, format!("{verb} {}", path.display()), cause)
}

/// Removes everything below a directory but the marker, and the marker stays last.
fn remove_content(path: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_name() == MARKER || entry.file_name() == "lost+found" {
            continue;
        }
        if entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())?;
        } else {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Whom the files must belong to when root restores: the named user, the owner of an existing target, or the user
/// who owned the original.
pub(super) fn find_owner(directory: &Path, named: Option<&str>, manifest: &Manifest) -> Result<Option<(u32, u32)>> {
    if !rustix::process::geteuid().is_root() {
        return match named {
            None => Ok(None),
            Some(_) => Err(Error::new(ErrorKind::Usage, "use --owner", "only root may give files to another user")),
        };
    }
    if let Some(named) = named {
        let unknown = || Error::new(ErrorKind::Usage, format!("use --owner {named}"), "there is no such user or group");
        return user_and_group(named).map(Some).ok_or_else(unknown);
    }
    if let Ok(metadata) = std::fs::metadata(directory)
        && metadata.uid() != 0
    {
        return Ok(Some((metadata.uid(), metadata.gid())));
    }
    let original = manifest.postgres.owner.as_deref().filter(|owner| *owner != "root");
    Ok(original.and_then(user_and_group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_when_its_restore_ends_though_a_child_has_a_copy_of_the_lock() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join(MARKER), "{}").unwrap();
        let held = lock_marker(place.path()).unwrap();
        // As in a child between its start and its program's.
        let copy = held.0.try_clone().unwrap();
        assert_eq!(lock_marker(place.path()).unwrap_err().kind(), ErrorKind::Conflict);
        drop(held);
        let again = lock_marker(place.path()).unwrap();
        assert_eq!(lock_marker(place.path()).unwrap_err().kind(), ErrorKind::Conflict);
        drop((copy, again));
    }
}
