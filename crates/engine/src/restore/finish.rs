//! The end of a restore: what the data path left out, PostgreSQL's own manifest, and durability, pg_control last.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use super::end_of_set::EndOfSet;
use super::plan::{AUTO_CONF_PATH, SpecialFiles, TABLESPACE_MAP_PATH, TablespacePlace, tablespace_map_content};
use super::recovery_settings::RecoverySettings;
use super::target::Target;
use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::crc32c;
use crate::format::file_table::{EntryKind, FileTable};
use crate::format::manifest::Manifest;
use crate::io;
use crate::pipeline::frame_reader::FrameReader;
use crate::pipeline::{Observer, WriteRoot, watched};
use crate::source::postgres::backup_manifest::{ManifestFile, ManifestHeader, write_backup_manifest};
use crate::source::postgres::control_file::without_checkpoint;
use crate::terms::FileId;

/// Largest special file: they are small, and a lie about it must not cost memory.
const SPECIAL_FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// A file that is not restored as it is stored.
struct Changed {
    file: FileId,
    size_bytes: u64,
    crc32c: u32,
}

impl Changed {
    fn new(file: FileId, content: &[u8]) -> Self {
        Changed { file, size_bytes: content.len() as u64, crc32c: crc32c(content) }
    }
}

/// What the end of a restore works on.
pub(super) struct Finish<'a> {
    pub(super) recovery: Option<&'a RecoverySettings>,
    /// Where it stops if that is at the end of the set.
    pub(super) end_of_set: EndOfSet,
    pub(super) manifest: &'a Manifest,
    pub(super) table: &'a FileTable,
    pub(super) special: SpecialFiles,
    pub(super) places: &'a [TablespacePlace],
    pub(super) target: &'a Target,
    pub(super) root: &'a WriteRoot,
    pub(super) archiving_off: bool,
}

impl Finish<'_> {
    /// Writes the special files except pg_control, whose bytes it gives back.
    ///
    /// # Errors
    /// `Damage` if one does not read from the set, `Target` if one cannot be written.
    pub(super) fn write_special_files(&self, reader: &mut FrameReader) -> Result<Vec<u8>> {
        let control = self.control_file(reader)?;
        let mut changed = vec![Changed::new(self.special.control_file, &control)];
        if let Some(file) = self.special.tablespace_map {
            let moved = self.places.iter().any(|place| place.from != place.to);
            let content =
                if moved { tablespace_map_content(self.table, self.places) } else { self.read_file(reader, file)? };
            self.write_file(TABLESPACE_MAP_PATH, &content)?;
            changed.push(Changed::new(file, &content));
        }
        let mut settings = match self.special.auto_conf {
            Some(file) => self.read_file(reader, file)?,
            None => Vec::new(),
        };
        settings.extend_from_slice(self.recovery_settings().as_bytes());
        self.write_file(AUTO_CONF_PATH, &settings)?;
        if let Some(recovery) = self.recovery {
            self.write_file(recovery.signal_file(), b"")?;
        }
        // The segments of the set are archived already, or never will be: the restored server must not push them.
        for segment in &self.manifest.postgres.wal_segments {
            self.write_file(&format!("pg_wal/archive_status/{segment}.done"), b"")?;
        }
        self.write_backup_manifest(&changed)?;
        Ok(control)
    }

    /// What pg_control is to be: with a label beside it the server begins where that says, and nowhere else.
    fn control_file(&self, reader: &mut FrameReader) -> Result<Vec<u8>> {
        let stored = self.read_file(reader, self.special.control_file)?;
        let without = self.special.backup_label.and_then(|_| without_checkpoint(&stored));
        Ok(without.unwrap_or(stored))
    }

    fn read_file(&self, reader: &mut FrameReader, file: FileId) -> Result<Vec<u8>> {
        let entry = self.table.entry(file);
        let bad = |cause: &str| Error::new(ErrorKind::Damage, format!("restore {}", self.table.path_text(file)), cause);
        if entry.size_bytes > SPECIAL_FILE_BYTES_MAX {
            return Err(bad("it is too large to be what its name says"));
        }
        let mut content = vec![0u8; entry.size_bytes as usize];
        reader.read(self.table, file, 0, &mut content)?;
        if crc32c(&content) == entry.crc32c { Ok(content) } else { Err(bad("its digest does not match")) }
    }

    fn write_file(&self, path: &str, content: &[u8]) -> Result<()> {
        let created = io::create_below(self.root.directory.as_fd(), path.as_bytes(), self.mode());
        let written = created.and_then(|file| {
            io::write_all_at(file.as_fd(), content, 0)?;
            self.own(&file)
        });
        written.map_err(|cause| self.fail("write", path, cause.into()))
    }

    /// The mode of the files that are made here: as the cluster's own, with or without group access.
    fn mode(&self) -> u32 {
        if self.special.group_access(self.table) { 0o640 } else { 0o600 }
    }

    fn own(&self, file: &OwnedFd) -> io::IoResult<()> {
        match self.target.owner {
            Some((user, group)) => {
                rustix::fs::fchown(file, Some(rustix::fs::Uid::from_raw(user)), Some(rustix::fs::Gid::from_raw(group)))
            }
            None => Ok(()),
        }
    }

    fn fail(&self, verb: &str, path: &str, cause: std::io::Error) -> Error {
        Error::new(ErrorKind::Target, format!("{verb} {}", self.target.directory.join(path).display()), cause)
    }

    /// Settings appended to postgresql.auto.conf; later lines win.
    fn recovery_settings(&self) -> String {
        let mut settings = String::new();
        if self.archiving_off {
            settings.push_str("# pagehaul: this is a copy; it must not archive into the archive of the original\n");
            settings.push_str("archive_mode = off\n");
        }
        let version_num = self.manifest.postgres.version_num;
        settings.extend(self.recovery.map(|recovery| recovery.text(version_num, self.end_of_set)));
        settings
    }

    /// PostgreSQL's own manifest of what is in the target now, for pg_verifybackup.
    fn write_backup_manifest(&self, changed: &[Changed]) -> Result<()> {
        const PATH: &str = "backup_manifest";
        let created = io::create_below(self.root.directory.as_fd(), PATH.as_bytes(), self.mode())
            .map_err(|cause| self.fail("write", PATH, cause.into()))?;
        self.own(&created).map_err(|cause| self.fail("write", PATH, cause.into()))?;
        let postgres = &self.manifest.postgres;
        let header = ManifestHeader {
            major: postgres.version_num / 10_000,
            system_identifier: postgres.system_identifier.parse().unwrap_or_default(),
            timeline: postgres.timeline,
            start_lsn: postgres.start_lsn,
            stop_lsn: postgres.stop_lsn,
        };
        let listed = self.table.ids().filter(|file| {
            let path = self.table.path(*file);
            self.table.entry(*file).kind == EntryKind::File
                && !path.starts_with(b"pg_wal/")
                && !self.special.is_left_out(*file)
                && path != AUTO_CONF_PATH.as_bytes()
        });
        let files = listed.map(|file| {
            let entry = self.table.entry(file);
            let (size_bytes, crc32c) = match changed.iter().find(|changed| changed.file == file) {
                Some(changed) => (changed.size_bytes, changed.crc32c),
                None => (entry.size_bytes, entry.crc32c),
            };
            ManifestFile { path: self.table.path(file), size_bytes, mtime_s: entry.mtime_s, crc32c }
        });
        let mut output = BufWriter::new(File::from(created));
        write_backup_manifest(&mut output, &header, files)?;
        output.flush().map_err(|cause| self.fail("write", PATH, cause))
    }

    /// Gives large files their times back; the small ones got theirs when they were written.
    pub(super) fn set_times(&self) {
        for file in self.table.ids().filter(|file| !self.special.contains(*file)) {
            let entry = self.table.entry(file);
            if entry.kind == EntryKind::File && !self.root.comes_whole(self.table, file) {
                let time = rustix::fs::Timespec { tv_sec: entry.mtime_s, tv_nsec: 0 };
                let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
                // Times are a convenience: the server does not look at them.
                let path = OsStr::from_bytes(self.table.path(file));
                rustix::fs::utimensat(&self.root.directory, path, &times, rustix::fs::AtFlags::empty()).ok();
            }
        }
    }

    /// Writes pg_control, all or nothing, after everything else is durable, and removes the markers.
    ///
    /// # Errors
    /// `Target`.
    pub(super) fn write_control_file(&self, content: &[u8]) -> Result<()> {
        let path = self.target.directory.join("global/pg_control");
        let failed = |cause: std::io::Error| Error::new(ErrorKind::Target, format!("write {}", path.display()), cause);
        let temporary = path.with_file_name("pg_control.pagehaul");
        let file = File::create_new(&temporary).map_err(failed)?;
        io::write_all_at(file.as_fd(), content, 0).map_err(|cause| failed(cause.into()))?;
        rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(self.mode()))
            .map_err(|cause| failed(cause.into()))?;
        let file = OwnedFd::from(file);
        self.own(&file).and_then(|()| io::sync_file(file.as_fd())).map_err(|cause| failed(cause.into()))?;
        io::durable_rename_new(&temporary, &path).map_err(|cause| failed(cause.into()))?;
        self.target.remove_markers(self.places)
    }
}

/// File systems that hold the target, opened before the first write, so that a failed write-back is reported.
pub(super) struct FileSystems {
    open: Vec<(std::path::PathBuf, OwnedFd)>,
}

impl FileSystems {
    /// One directory of each file system.
    ///
    /// # Errors
    /// `Target` if one cannot be opened.
    pub(super) fn open(target: &Target, places: &[TablespacePlace]) -> Result<Self> {
        let mut devices = Vec::new();
        let mut open = Vec::new();
        for path in std::iter::once(&target.directory).chain(places.iter().map(|place| &place.to)) {
            let failed =
                |cause: rustix::io::Errno| Error::new(ErrorKind::Target, format!("open {}", path.display()), cause);
            let device = io::device_of(path).map_err(failed)?;
            if !devices.contains(&device) {
                devices.push(device);
                open.push((path.clone(), io::open_directory(path).map_err(failed)?));
            }
        }
        Ok(FileSystems { open })
    }

    /// Makes everything written so far durable.
    ///
    /// # Errors
    /// `Target`: after a failed sync nothing is known of what was written, so the restore has failed.
    pub(super) fn sync(&self, observer: &dyn Observer) -> Result<()> {
        for (path, directory) in &self.open {
            let what = format!("make the files below {} durable", path.display());
            watched(observer, &what, || io::sync_file_system(directory.as_fd())).map_err(|cause| {
                Error::new(ErrorKind::Target, what, cause)
                    .hint("the disk failed to write some of them: restore into another directory")
            })?;
        }
        Ok(())
    }
}
