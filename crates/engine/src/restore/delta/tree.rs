//! The old tree made to fit the set: what is not the set's goes, what is missing comes, modes and owners are mended.
//!
//! Every step works in an open directory on one name and follows no link, so that nothing outside the places is ever
//! changed, whatever was planted in the old tree. A file with a second name elsewhere is unlinked and not written to.

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, Stat, Uid};
use rustix::io::Errno;

use super::super::plan::{SpecialFiles, TablespacePlace};
use super::super::target::{MARKER, Target};
use super::check::Whose;
use super::{ASIDE_NAME, OldTarget};
use crate::error::{Error, ErrorKind, Result};
use crate::format::file_table::{EntryKind, FileTable};
use crate::io::{self, IoResult};
use crate::pipeline::WriteRoot;
use crate::terms::FileId;

/// The entries of the set in order of their paths.
struct PathIndex<'a> {
    table: &'a FileTable,
    sorted: Vec<FileId>,
}

impl<'a> PathIndex<'a> {
    fn new(table: &'a FileTable) -> Self {
        let mut sorted: Vec<FileId> = table.ids().collect();
        sorted.sort_unstable_by(|one, two| table.path(*one).cmp(table.path(*two)));
        PathIndex { table, sorted }
    }

    fn find(&self, path: &[u8]) -> Option<FileId> {
        let position = self.sorted.binary_search_by(|file| self.table.path(*file).cmp(path)).ok()?;
        Some(self.sorted[position])
    }
}

/// What was found, and what became of it.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// By file: it is there, as the right kind of entry.
    pub(super) present: Vec<bool>,
    /// By file: it is there with the right length.
    pub(super) same_size: Vec<bool>,
    pub(super) removed_count: u64,
    pub(super) removed_bytes: u64,
    pub(super) notes: Vec<String>,
}

/// What a directory is to the walk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    /// The top of a place, all of which a restore owns.
    Top,
    /// The top of a tablespace's place: what the set does not have may be another version's.
    SharedTop,
    Inside,
}

/// The walk.
pub(super) struct Tree<'a> {
    pub(super) root: &'a WriteRoot,
    pub(super) table: &'a FileTable,
    pub(super) special: &'a SpecialFiles,
    pub(super) places: &'a [TablespacePlace],
    pub(super) target: &'a Target,
    pub(super) old: &'a OldTarget,
}

impl Tree<'_> {
    /// Removes what is not the set's, mends what is, makes the directories and links that are missing.
    pub(super) fn correct(&self) -> Result<Survey> {
        let index = PathIndex::new(self.table);
        let count = self.table.entries().len();
        let mut survey = Survey { present: vec![false; count], same_size: vec![false; count], ..Survey::default() };
        let directory =
            rustix::io::fcntl_dupfd_cloexec(&self.root.directory, 0).map_err(|cause| self.fail("open", b"", cause))?;
        self.walk(&index, &mut survey, &directory, b"", Level::Top)?;
        for mount in &self.root.mounts {
            let place = self.places.iter().position(|place| self.table.path(place.link) == mount.path);
            let whose = place.map_or(Whose::Clusters, |place| self.old.places.0[place + 1].1);
            let level = if whose == Whose::Clusters { Level::SharedTop } else { Level::Top };
            self.walk(&index, &mut survey, &mount.directory, &mount.path, level)?;
        }
        for file in self.table.ids().filter(|file| !survey.present[file.0 as usize]) {
            match self.table.entry(file).kind {
                EntryKind::Directory => self.make_directory(file),
                EntryKind::Symlink => self.make_link(file),
                EntryKind::File => Ok(()),
            }
            .map_err(|cause| self.fail("create", self.table.path(file), cause))?;
        }
        Ok(survey)
    }

    fn walk(
        &self,
        index: &PathIndex<'_>,
        survey: &mut Survey,
        directory: &OwnedFd,
        prefix: &[u8],
        level: Level,
    ) -> Result<()> {
        for name in names(directory).map_err(|cause| self.fail("list", prefix, cause))? {
            let text = name.to_bytes();
            if level != Level::Inside && (text == b"lost+found" || text == MARKER.as_bytes())
                || prefix == b"global" && text == ASIDE_NAME.as_bytes()
            {
                continue;
            }
            let path = if prefix.is_empty() { text.to_vec() } else { [prefix, b"/", text].concat() };
            let stat = match rustix::fs::statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => continue,
                Err(cause) => return Err(self.fail("look at", &path, cause)),
            };
            let wanted = index.find(&path).filter(|file| !self.special.contains(*file));
            if wanted.is_none() && level == Level::SharedTop {
                survey
                    .notes
                    .push(format!("{} is not this cluster's, and was left there", self.real_path(&path).display()));
                continue;
            }
            let failed = |cause| self.fail("correct", &path, cause);
            let stays = match wanted {
                Some(file) => self.mend(file, directory, &name, &stat).map_err(failed)?,
                None => false,
            };
            match wanted {
                Some(file) if stays => {
                    survey.present[file.0 as usize] = true;
                    survey.same_size[file.0 as usize] = stat.st_size as u64 == self.table.entry(file).size_bytes;
                    if self.table.entry(file).kind == EntryKind::Directory {
                        let inner = io::open_directory_below(directory.as_fd(), text).map_err(failed)?;
                        self.walk(index, survey, &inner, &path, Level::Inside)?;
                    }
                }
                _ => {
                    self.note_lost_link(survey, &path, directory, &name, &stat);
                    let removed =
                        remove(directory.as_fd(), &name, &stat).map_err(|cause| self.fail("remove", &path, cause))?;
                    // A file that is written anew is no file less.
                    if wanted.is_none_or(|file| kind_of(&stat) != Some(self.table.entry(file).kind)) {
                        survey.removed_count += removed.0;
                        survey.removed_bytes += removed.1;
                    }
                }
            }
        }
        Ok(())
    }

    /// Gives an entry the mode, owner and time it ought to have; false if it is not what it ought to be and must go.
    fn mend(&self, file: FileId, directory: &OwnedFd, name: &CStr, stat: &Stat) -> IoResult<bool> {
        let entry = self.table.entry(file);
        if kind_of(stat) != Some(entry.kind) {
            return Ok(false);
        }
        let opened = match entry.kind {
            EntryKind::Symlink => {
                let leads_to = rustix::fs::readlinkat(directory, name, Vec::new())?;
                let stays = leads_to.as_bytes() == self.link_target(file).as_bytes();
                if stays && self.must_own(stat) {
                    self.own_link(directory, name)?;
                }
                return Ok(stays);
            }
            // Written to through this name, it would change under the other one too.
            EntryKind::File if stat.st_nlink != 1 => return Ok(false),
            // It comes whole; whatever it holds is not it.
            EntryKind::File if stat.st_size as u64 != entry.size_bytes && self.root.comes_whole(self.table, file) => {
                return Ok(false);
            }
            EntryKind::File => io::open_regular_below(directory.as_fd(), name.to_bytes()),
            EntryKind::Directory => io::open_directory_below(directory.as_fd(), name.to_bytes()),
        };
        let descriptor = match opened {
            Ok(descriptor) => descriptor,
            // Its mode keeps even us out.
            Err(Errno::ACCESS) if entry.kind == EntryKind::File => return Ok(false),
            Err(Errno::ACCESS) if !rustix::process::geteuid().is_root() => {
                // As an ordinary user we can reach nothing that is not ours anyway.
                rustix::fs::chmodat(directory, name, Mode::RWXU, AtFlags::empty())?;
                io::open_directory_below(directory.as_fd(), name.to_bytes())?
            }
            Err(cause) => return Err(cause),
        };
        let found = rustix::fs::fstat(&descriptor)?;
        if (found.st_dev, found.st_ino) != (stat.st_dev, stat.st_ino) {
            return Ok(false);
        }
        if self.must_own(&found) {
            self.own(&descriptor)?;
        }
        if found.st_mode & 0o7777 != entry.mode & 0o7777 {
            rustix::fs::fchmod(&descriptor, Mode::from_raw_mode(entry.mode & 0o7777))?;
        }
        if entry.kind == EntryKind::File && found.st_mtime != entry.mtime_s {
            let time = rustix::fs::Timespec { tv_sec: entry.mtime_s, tv_nsec: 0 };
            // A convenience: the server does not look at times.
            rustix::fs::futimens(&descriptor, &rustix::fs::Timestamps { last_access: time, last_modification: time })
                .ok();
        }
        Ok(true)
    }

    fn must_own(&self, stat: &Stat) -> bool {
        self.target.owner.is_some_and(|owner| owner != (stat.st_uid, stat.st_gid))
    }

    fn own(&self, descriptor: &OwnedFd) -> IoResult<()> {
        let Some((user, group)) = self.target.owner else { return Ok(()) };
        rustix::fs::fchown(descriptor, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))
    }

    fn own_link(&self, directory: &OwnedFd, name: &CStr) -> IoResult<()> {
        let Some((user, group)) = self.target.owner else { return Ok(()) };
        let (user, group) = (Some(Uid::from_raw(user)), Some(Gid::from_raw(group)));
        rustix::fs::chownat(directory, name, user, group, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn link_target(&self, link: FileId) -> &OsStr {
        let place = self.places.iter().find(|place| place.link == link);
        place.map_or_else(|| OsStr::from_bytes(self.table.target(link)), |place| place.to.as_os_str())
    }

    /// The open directory that `path` lies in, and its name there.
    fn parent(&self, path: &[u8]) -> IoResult<(OwnedFd, CString)> {
        let (base, below) = self.root.locate(path);
        let (parent, name) = match below.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (io::open_directory_below(base, &below[..slash])?, &below[slash + 1..]),
            None => (rustix::io::fcntl_dupfd_cloexec(base, 0)?, below),
        };
        Ok((parent, CString::new(name).map_err(|_| Errno::INVAL)?))
    }

    fn make_directory(&self, file: FileId) -> IoResult<()> {
        let (parent, name) = self.parent(self.table.path(file))?;
        let mode = Mode::from_raw_mode(self.table.entry(file).mode & 0o7777);
        rustix::fs::mkdirat(&parent, &name, mode)?;
        let made = io::open_directory_below(parent.as_fd(), name.to_bytes())?;
        rustix::fs::fchmod(&made, mode)?;
        self.own(&made)
    }

    fn make_link(&self, file: FileId) -> IoResult<()> {
        let (parent, name) = self.parent(self.table.path(file))?;
        rustix::fs::symlinkat(self.link_target(file), &parent, &name)?;
        self.own_link(&parent, &name)
    }

    /// Says where the files stay that only a link led to.
    fn note_lost_link(&self, survey: &mut Survey, path: &[u8], directory: &OwnedFd, name: &CStr, stat: &Stat) {
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            return;
        }
        if let Ok(leads_to) = rustix::fs::readlinkat(directory, name, Vec::new()) {
            let leads_to = OsStr::from_bytes(leads_to.as_bytes()).display().to_string();
            survey.notes.push(format!(
                "{} was a link to {leads_to}; it is not one in the backup, and what it led to was left as it is",
                path.escape_ascii()
            ));
        }
    }

    /// Removes a file of the set, so that it can be written anew.
    pub(super) fn unlink(&self, file: FileId) -> Result<()> {
        let path = self.table.path(file);
        let unlinked =
            self.parent(path).and_then(|(parent, name)| rustix::fs::unlinkat(parent, &name, AtFlags::empty()));
        unlinked.map_err(|cause| self.fail("remove", path, cause))
    }

    fn real_path(&self, path: &[u8]) -> PathBuf {
        let mount =
            self.root.mounts.iter().position(|mount| path.starts_with(&[&mount.path, b"/".as_slice()].concat()));
        let below = mount.map(|at| (&self.old.places.0[at + 1].0, &path[self.root.mounts[at].path.len() + 1..]));
        let (base, below) = below.unwrap_or((&self.target.directory, path));
        base.join(OsStr::from_bytes(below))
    }

    pub(super) fn fail(&self, verb: &str, path: &[u8], cause: Errno) -> Error {
        let object: &Path = &self.real_path(path);
        Error::new(ErrorKind::Target, format!("{verb} {}", object.display()), cause)
    }
}

fn kind_of(stat: &Stat) -> Option<EntryKind> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Some(EntryKind::Directory),
        FileType::RegularFile => Some(EntryKind::File),
        FileType::Symlink => Some(EntryKind::Symlink),
        _ => None,
    }
}

fn names(directory: &OwnedFd) -> IoResult<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

/// Removes an entry and what is below it; gives how many files and bytes that were.
fn remove(directory: BorrowedFd<'_>, name: &CStr, stat: &Stat) -> IoResult<(u64, u64)> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        rustix::fs::unlinkat(directory, name, AtFlags::empty())?;
        return Ok((1, stat.st_size as u64));
    }
    let inner = match io::open_directory_below(directory, name.to_bytes()) {
        Err(Errno::ACCESS) if !rustix::process::geteuid().is_root() => {
            rustix::fs::chmodat(directory, name, Mode::RWXU, AtFlags::empty())?;
            io::open_directory_below(directory, name.to_bytes())?
        }
        other => other?,
    };
    let (mut count, mut bytes) = (0, 0);
    for inner_name in names(&inner)? {
        let stat = rustix::fs::statat(&inner, &inner_name, AtFlags::SYMLINK_NOFOLLOW)?;
        let removed = remove(inner.as_fd(), &inner_name, &stat)?;
        count += removed.0;
        bytes += removed.1;
    }
    rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)?;
    Ok((count, bytes))
}
