//! The list of what a backup of a data directory holds: the server's own rules, byte paths, no content.
//!
//! The rules: src/backend/backup/basebackup.c (before 15: src/backend/replication/basebackup.c), excludeDirContents,
//! excludeFiles and sendDir; compared in the tests with what pg_basebackup lists.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Stat};

use super::conninfo::owner_hint;
use super::control_file::{CONTROL_FILE_PATH, read_control_file};
use super::path_class::{
    self, Fork, PathClass, RelationFileName, classify, is_database_directory, is_relation_directory,
};
use crate::error::{Error, ErrorKind, Result};
use crate::io;

/// Directories, wherever they are, that a backup holds as empty ones: the server clears or refills them at start.
const EMPTIED_DIRECTORIES: &[&[u8]] =
    &[b"pg_stat_tmp", b"pg_replslot", b"pg_dynshmem", b"pg_notify", b"pg_serial", b"pg_snapshots", b"pg_subtrans"];

/// Files, wherever they are, that must not be in a backup.
const EXCLUDED_FILES: &[&[u8]] = &[
    b"postgresql.auto.conf.tmp",
    b"current_logfiles.tmp",
    b"backup_label",
    b"tablespace_map",
    b"backup_manifest",
    b"postmaster.pid",
    b"postmaster.opts",
];

/// Files of a server that replays WAL. The server's own tools copy them; here they stay out, because they say what the
/// copied server does, and a restored one does what it is told then.
const SIGNAL_FILES: &[&[u8]] = &[b"standby.signal", b"recovery.signal"];

/// Beginnings of names that must not be in a backup: the relation cache, and temporary files of queries.
const EXCLUDED_PREFIXES: &[&[u8]] = &[b"pg_internal.init", b"pgsql_tmp"];

/// Without these there is no cluster: that one of them vanishes is an error, not a dropped table.
const INDISPENSABLE: &[&[u8]] =
    &[b"", b"PG_VERSION", b"global", b"base", b"pg_xact", b"pg_multixact", b"global/pg_filenode.map"];

/// No data directory nests deeper than this; a loop of mounts would.
const DEPTH_MAX: usize = 64;

/// One thing a backup holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanEntry {
    /// Relative to the data directory; tablespaces appear under `pg_tblspc/<oid>`.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: EntryKind,
    /// Size at the time of the scan; 0 unless a file.
    pub size_bytes: u64,
    /// Permission bits.
    pub mode: u32,
    /// Time of the last change, seconds since 1970.
    pub mtime_s: i64,
    /// What it holds, told from its name.
    pub class: PathClass,
}

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A directory; its content follows, unless the server's rules empty it.
    Directory,
    /// A regular file.
    File,
    /// A symbolic link; only those of `pg_tblspc` are followed.
    Symlink {
        /// The link's text.
        target: Vec<u8>,
    },
}

/// What a scan left out that the reader may want to know of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanReport {
    /// Sockets, pipes and devices; they are not in the backup.
    pub skipped_special: Vec<Vec<u8>>,
    /// Files that vanished between listing and looking: dropped tables, mostly.
    pub vanished_count: u64,
}

/// Calls `visit` for everything a backup of `pgdata` holds, parents before children, but for `global/pg_control`,
/// which is read last by [`read_control_file`]. Files that vanish meanwhile are skipped.
///
/// # Errors
/// `Source` naming the path for everything that cannot be read or must not be missing; what `visit` returns.
pub fn scan(pgdata: &Path, visit: &mut dyn FnMut(ScanEntry) -> Result<()>) -> Result<ScanReport> {
    let mut scan = Scan {
        pgdata,
        tablespace_version: tablespace_version(pgdata)?,
        inner_tablespaces: inner_tablespaces(pgdata)?,
        report: ScanReport::default(),
        visit,
    };
    scan.directory(b"", 0)?;
    Ok(scan.report)
}

struct Scan<'a> {
    pgdata: &'a Path,
    /// `PG_15_202209061`: the directory of our own version in every tablespace.
    tablespace_version: Vec<u8>,
    /// Tablespaces whose place is inside the data directory: walked through their link only.
    inner_tablespaces: HashSet<PathBuf>,
    report: ScanReport,
    visit: &'a mut dyn FnMut(ScanEntry) -> Result<()>,
}

impl Scan<'_> {
    /// Visits what is in `directory` (relative), in the order of names.
    fn directory(&mut self, directory: &[u8], depth: usize) -> Result<()> {
        if depth > DEPTH_MAX {
            return Err(self.error(directory, &format!("directories nest deeper than {DEPTH_MAX}")));
        }
        let Some((opened, names)) = self.list(directory)? else { return Ok(()) };
        let unlogged = unlogged_relations(directory, &names);
        for name in &names {
            if is_excluded(directory, name, &unlogged) {
                continue;
            }
            let path = join(directory, name);
            // From its directory on: a whole path costs the kernel several times as much.
            let found = rustix::fs::statat(&opened, OsStr::from_bytes(name), AtFlags::SYMLINK_NOFOLLOW);
            let Some(stat) = self.there(&path, found.map_err(Into::into))? else { continue };
            self.entry(directory, name, path, &stat, depth)?;
        }
        Ok(())
    }

    /// Visits one entry and what is below it.
    fn entry(&mut self, directory: &[u8], name: &[u8], path: Vec<u8>, stat: &Stat, depth: usize) -> Result<()> {
        let kind = kind_of(stat);
        if EMPTIED_DIRECTORIES.contains(&name) && (kind == FileType::Directory || kind == FileType::Symlink) {
            return self.emit_directory(path, stat);
        }
        if path == b"pg_wal" {
            return self.empty_wal_directory(stat);
        }
        if directory == b"pg_tblspc" && kind != FileType::RegularFile {
            return self.tablespace(path, stat, depth);
        }
        match kind {
            FileType::Directory => {
                let is_inner_tablespace = self.inner_tablespaces.contains(&self.absolute(&path));
                self.emit_directory(path.clone(), stat)?;
                if is_inner_tablespace { Ok(()) } else { self.directory(&path, depth + 1) }
            }
            FileType::RegularFile => self.emit(path, EntryKind::File, stat.st_size as u64, stat),
            FileType::Symlink => self.emit_symlink(path, stat),
            _ => {
                self.report.skipped_special.push(path);
                Ok(())
            }
        }
    }

    /// The WAL itself is stored apart; the server wants its directories to be there.
    fn empty_wal_directory(&mut self, link_or_directory: &Stat) -> Result<()> {
        let stat = self.behind_link(b"pg_wal", link_or_directory)?;
        self.emit_directory(b"pg_wal".to_vec(), &stat)?;
        self.emit_directory(b"pg_wal/archive_status".to_vec(), &stat)?;
        // 17 and later: WAL summaries, which are of no use to another cluster.
        if self.absolute(b"pg_wal/summaries").is_dir() {
            self.emit_directory(b"pg_wal/summaries".to_vec(), &stat)?;
        }
        Ok(())
    }

    /// A tablespace's link (or, "in place", directory) and the part of it that belongs to our version.
    fn tablespace(&mut self, path: Vec<u8>, stat: &Stat, depth: usize) -> Result<()> {
        match kind_of(stat) {
            FileType::Symlink => self.emit_symlink(path.clone(), stat)?,
            FileType::Directory => self.emit_directory(path.clone(), stat)?,
            _ => {
                self.report.skipped_special.push(path);
                return Ok(());
            }
        }
        let version_directory = join(&path, &self.tablespace_version);
        let found = rustix::fs::lstat(self.absolute(&version_directory));
        let Some(stat) = self.there(&version_directory, found.map_err(Into::into))? else { return Ok(()) };
        self.emit_directory(version_directory.clone(), &stat)?;
        self.directory(&version_directory, depth + 2)
    }

    fn emit_directory(&mut self, path: Vec<u8>, stat: &Stat) -> Result<()> {
        let stat = self.behind_link(&path, stat)?;
        self.emit(path, EntryKind::Directory, 0, &stat)
    }

    /// `stat` of `path`, or of what it points to if it is a link: the link's own permissions mean nothing.
    fn behind_link(&self, path: &[u8], stat: &Stat) -> Result<Stat> {
        if kind_of(stat) != FileType::Symlink {
            return Ok(*stat);
        }
        rustix::fs::stat(self.absolute(path)).map_err(|cause| self.io_error(path, &cause.into()))
    }

    fn emit_symlink(&mut self, path: Vec<u8>, stat: &Stat) -> Result<()> {
        match std::fs::read_link(self.absolute(&path)) {
            Ok(target) => {
                let kind = EntryKind::Symlink { target: target.into_os_string().into_vec() };
                self.emit(path, kind, 0, stat)
            }
            Err(cause) => self.vanished_or_error(&path, &cause),
        }
    }

    fn emit(&mut self, path: Vec<u8>, kind: EntryKind, size_bytes: u64, stat: &Stat) -> Result<()> {
        let class = if kind == EntryKind::File { classify(&path) } else { PathClass::Other };
        let mode = stat.st_mode & 0o7777;
        (self.visit)(ScanEntry { path, kind, size_bytes, mode, mtime_s: stat.st_mtime, class })
    }

    /// `directory`, and the sorted names in it; none if it has vanished.
    fn list(&mut self, directory: &[u8]) -> Result<Option<(OwnedFd, Vec<Vec<u8>>)>> {
        let place = self.absolute(directory);
        let listed = io::open_directory(&place).map_err(Into::into).and_then(|opened| {
            let names = std::fs::read_dir(&place)?.map(|entry| Ok(entry?.file_name().into_vec()));
            Ok((opened, names.collect::<std::io::Result<Vec<_>>>()?))
        });
        let mut listed = self.there(directory, listed)?;
        if let Some((_, names)) = &mut listed {
            names.sort_unstable();
        }
        Ok(listed)
    }

    /// What was `found` at `path`; none if it has vanished.
    fn there<T>(&mut self, path: &[u8], found: std::io::Result<T>) -> Result<Option<T>> {
        match found {
            Ok(found) => Ok(Some(found)),
            Err(cause) => self.vanished_or_error(path, &cause).map(|()| None),
        }
    }

    fn vanished_or_error(&mut self, path: &[u8], cause: &std::io::Error) -> Result<()> {
        if cause.kind() != std::io::ErrorKind::NotFound || INDISPENSABLE.contains(&path) {
            return Err(self.io_error(path, cause));
        }
        self.report.vanished_count += 1;
        Ok(())
    }

    fn absolute(&self, path: &[u8]) -> PathBuf {
        self.pgdata.join(OsStr::from_bytes(path))
    }

    fn io_error(&self, path: &[u8], cause: &std::io::Error) -> Error {
        let error = self.error(path, &cause.to_string());
        match cause.kind() {
            std::io::ErrorKind::PermissionDenied => error.hint(owner_hint(self.pgdata)),
            std::io::ErrorKind::NotFound => error.hint("is this the data directory of a PostgreSQL cluster?"),
            _ => error,
        }
    }

    fn error(&self, path: &[u8], cause: &str) -> Error {
        Error::new(ErrorKind::Source, format!("scan {}", self.absolute(path).display()), cause)
    }
}

fn kind_of(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}

/// Whether `path` says that the server replays WAL: such a file stays out of a set.
pub fn is_signal_file(path: &[u8]) -> bool {
    SIGNAL_FILES.contains(&path)
}

fn is_excluded(directory: &[u8], name: &[u8], unlogged: &HashSet<u32>) -> bool {
    if EXCLUDED_FILES.contains(&name) || EXCLUDED_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
        return true;
    }
    if directory.is_empty() && is_signal_file(name) {
        return true;
    }
    if directory == b"global" && name == &CONTROL_FILE_PATH.as_bytes()["global/".len()..] {
        return true;
    }
    if is_database_directory(directory) && path_class::is_temporary_relation(name) {
        return true;
    }
    !unlogged.is_empty()
        && RelationFileName::parse(name)
            .is_some_and(|file| file.fork != Fork::Init && unlogged.contains(&file.file_number))
}

/// File numbers with an init fork: the server empties such relations after a crash or restore, from that fork.
fn unlogged_relations(directory: &[u8], names: &[Vec<u8>]) -> HashSet<u32> {
    if !is_relation_directory(directory) {
        return HashSet::new();
    }
    let init_forks = names.iter().filter_map(|name| RelationFileName::parse(name));
    init_forks.filter(|file| file.fork == Fork::Init).map(|file| file.file_number).collect()
}

/// `PG_<major>_<catalog version>`; the rule: TABLESPACE_VERSION_DIRECTORY in src/include/common/relpath.h.
pub(super) fn tablespace_version(pgdata: &Path) -> Result<Vec<u8>> {
    let (_, control_file) = read_control_file(pgdata)?;
    Ok(format!("PG_{}_{}", major_version(pgdata)?, control_file.catalog_version).into_bytes())
}

/// The server's major version, as `PG_VERSION` in the data directory has it.
///
/// # Errors
/// `Source` if the file cannot be read or holds something else.
pub fn major_version(pgdata: &Path) -> Result<u32> {
    let path = pgdata.join("PG_VERSION");
    let failed =
        |cause: &dyn std::fmt::Display| Error::new(ErrorKind::Source, format!("read {}", path.display()), cause);
    let text = std::fs::read_to_string(&path).map_err(|cause| failed(&cause))?;
    text.trim().parse().map_err(|cause| failed(&cause))
}

/// Where tablespaces lie inside `pgdata` itself, as paths that start with `pgdata`.
fn inner_tablespaces(pgdata: &Path) -> Result<HashSet<PathBuf>> {
    let links = match std::fs::read_dir(pgdata.join("pg_tblspc")) {
        Ok(links) => links,
        // The walk reports what is wrong with it.
        Err(_) => return Ok(HashSet::new()),
    };
    let canonical = |path: &Path| {
        std::fs::canonicalize(path)
            .map_err(|cause| Error::new(ErrorKind::Source, format!("resolve {}", path.display()), cause))
    };
    let root = canonical(pgdata)?;
    let mut inner = HashSet::new();
    for link in links.flatten().filter(|link| link.file_type().is_ok_and(|kind| kind.is_symlink())) {
        let target = canonical(&link.path()).map_err(|error| {
            error.hint("the tablespace's directory is missing; DROP TABLESPACE if it is not needed")
        })?;
        if let Ok(relative) = target.strip_prefix(&root) {
            inner.insert(pgdata.join(relative));
        }
    }
    Ok(inner)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::control_file::tests::sample;
    use super::*;

    /// A directory with what every cluster has.
    fn skeleton() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let pgdata = directory.path().join("data");
        for name in ["", "global", "base", "pg_xact", "pg_multixact", "pg_tblspc", "pg_notify", "pg_wal"] {
            std::fs::create_dir(pgdata.join(name)).unwrap();
        }
        std::fs::write(pgdata.join("PG_VERSION"), "15\n").unwrap();
        std::fs::write(pgdata.join(CONTROL_FILE_PATH), sample()).unwrap();
        directory
    }

    fn names(pgdata: &Path) -> (Vec<String>, ScanReport) {
        let mut names = Vec::new();
        let report = scan(pgdata, &mut |entry| {
            let suffix = match entry.kind {
                EntryKind::Directory => "/".to_owned(),
                EntryKind::File => String::new(),
                EntryKind::Symlink { target } => format!(" -> {}", String::from_utf8_lossy(&target)),
            };
            names.push(format!("{}{suffix}", String::from_utf8_lossy(&entry.path)));
            Ok(())
        })
        .unwrap();
        (names, report)
    }

    #[test]
    fn links_tablespaces_and_odd_names() {
        let directory = skeleton();
        let pgdata = directory.path().join("data");
        // The WAL elsewhere, a tablespace elsewhere, one inside, one in place, an unrelated link.
        std::fs::remove_dir(pgdata.join("pg_wal")).unwrap();
        std::fs::create_dir(directory.path().join("wal")).unwrap();
        symlink("../wal", pgdata.join("pg_wal")).unwrap();
        for space in ["../far", "inner", "pg_tblspc/3"] {
            std::fs::create_dir_all(pgdata.join(space).join("PG_15_7/5")).unwrap();
            std::fs::create_dir_all(pgdata.join(space).join("PG_14_6/5")).unwrap();
            std::fs::write(pgdata.join(space).join("PG_15_7/5/100"), "x").unwrap();
        }
        symlink("../../far", pgdata.join("pg_tblspc/1")).unwrap();
        symlink(pgdata.join("inner"), pgdata.join("pg_tblspc/2")).unwrap();
        symlink("/etc/hosts", pgdata.join("link")).unwrap();
        std::fs::write(pgdata.join("pg_notify/0000"), "x").unwrap();
        std::fs::write(pgdata.join(OsStr::from_bytes(b"odd\xff")), "x").unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(pgdata.join("socket")).unwrap();
        let (found, report) = names(&pgdata);
        let inner = format!("pg_tblspc/2 -> {}", pgdata.join("inner").display());
        let expected = [
            "PG_VERSION",
            "base/",
            "global/",
            "inner/",
            "link -> /etc/hosts",
            "odd\u{fffd}",
            "pg_multixact/",
            "pg_notify/",
            "pg_tblspc/",
            "pg_tblspc/1 -> ../../far",
            "pg_tblspc/1/PG_15_7/",
            "pg_tblspc/1/PG_15_7/5/",
            "pg_tblspc/1/PG_15_7/5/100",
            &inner,
            "pg_tblspc/2/PG_15_7/",
            "pg_tblspc/2/PG_15_7/5/",
            "pg_tblspc/2/PG_15_7/5/100",
            "pg_tblspc/3/",
            "pg_tblspc/3/PG_15_7/",
            "pg_tblspc/3/PG_15_7/5/",
            "pg_tblspc/3/PG_15_7/5/100",
            "pg_wal/",
            "pg_wal/archive_status/",
            "pg_xact/",
        ];
        assert_eq!(found, expected);
        assert_eq!(report, ScanReport { skipped_special: vec![b"socket".to_vec()], vanished_count: 0 });
    }

    #[test]
    fn what_vanishes_during_the_scan_is_skipped_unless_indispensable() {
        let directory = skeleton();
        let pgdata = directory.path().join("data");
        std::fs::create_dir(pgdata.join("base/5")).unwrap();
        std::fs::write(pgdata.join("base/5/100"), "x").unwrap();
        std::fs::write(pgdata.join("base/5/101"), "x").unwrap();
        let mut count = 0;
        let report = scan(&pgdata, &mut |entry| {
            if entry.path == b"base/5/100" {
                std::fs::remove_file(pgdata.join("base/5/101")).unwrap();
            }
            count += 1;
            Ok(())
        });
        assert_eq!(report.unwrap().vanished_count, 1);
        let error = scan(&pgdata, &mut |entry| {
            if entry.path == b"global" {
                std::fs::remove_dir(pgdata.join("pg_xact")).unwrap();
            }
            Ok(())
        })
        .unwrap_err();
        assert!(error.message().contains("pg_xact"), "{error}");
        let stop = || Error::new(ErrorKind::Interrupted, "go on", "asked to stop");
        assert_eq!(scan(&pgdata, &mut |_| Err(stop())).unwrap_err().kind(), ErrorKind::Interrupted);
    }

    #[test]
    fn what_may_not_be_read_is_named_with_the_owner() {
        use std::os::unix::fs::PermissionsExt;
        if rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: root may read everything");
            return;
        }
        let directory = skeleton();
        let pgdata = directory.path().join("data");
        std::fs::set_permissions(pgdata.join("base"), std::fs::Permissions::from_mode(0o000)).unwrap();
        let error = scan(&pgdata, &mut |_| Ok(())).unwrap_err();
        std::fs::set_permissions(pgdata.join("base"), std::fs::Permissions::from_mode(0o700)).unwrap();
        assert!(error.message().contains("data/base"), "{error}");
        assert!(error.hint_text().unwrap().contains("OS user who owns"), "{error}");
    }
}
