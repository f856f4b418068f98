//! What a restore will do, decided before it writes a byte: counts, which files are special, where tablespaces go. Pure.

use std::path::{Path, PathBuf};

use super::report::{ArchiveMode, RestoreRequest};
use crate::catalog::OpenSet;
use crate::error::{Error, ErrorKind, Result};
use crate::format::file_table::{EntryKind, FileTable};
use crate::format::manifest::Manifest;
use crate::pipeline::PipelineSettings;
use crate::source::postgres::control_file::CONTROL_FILE_PATH;
use crate::terms::FileId;

/// Settings that the server writes by itself; recovery settings are appended to it.
pub(super) const AUTO_CONF_PATH: &str = "postgresql.auto.conf";
/// The server's map of tablespaces; it names their places.
pub(super) const TABLESPACE_MAP_PATH: &str = "tablespace_map";

/// Files that the data path leaves to [`super::finish`].
#[derive(Clone, Copy, Debug)]
pub(super) struct SpecialFiles {
    /// Written last of all.
    pub(super) control_file: FileId,
    /// Written with recovery settings appended.
    pub(super) auto_conf: Option<FileId>,
    /// Rewritten when tablespaces move.
    pub(super) tablespace_map: Option<FileId>,
    /// Tells the server where to begin; written by the data path, as it is.
    pub(super) backup_label: Option<FileId>,
    /// Signal files of the source: they say what it was doing, not what the copy is to do.
    signals: [Option<FileId>; 2],
}

impl SpecialFiles {
    /// Finds them.
    ///
    /// # Errors
    /// `Damage` if the set has no pg_control.
    pub(super) fn find(table: &FileTable) -> Result<Self> {
        let find = |path: &str| table.ids().rfind(|file| table.path(*file) == path.as_bytes());
        let no_control =
            || Error::new(ErrorKind::Damage, format!("find {CONTROL_FILE_PATH} in the set"), "it is not there");
        Ok(SpecialFiles {
            control_file: find(CONTROL_FILE_PATH).ok_or_else(no_control)?,
            auto_conf: find(AUTO_CONF_PATH),
            tablespace_map: find(TABLESPACE_MAP_PATH),
            backup_label: find("backup_label"),
            signals: [find("recovery.signal"), find("standby.signal")],
        })
    }

    /// Whether the cluster lets its group read its files.
    pub(super) fn group_access(&self, table: &FileTable) -> bool {
        table.entry(self.control_file).mode & 0o040 != 0
    }

    /// Whether the data path leaves this file alone.
    pub(super) fn contains(&self, file: FileId) -> bool {
        file == self.control_file
            || Some(file) == self.auto_conf
            || Some(file) == self.tablespace_map
            || self.is_left_out(file)
    }

    /// Whether the file is not restored.
    pub(super) fn is_left_out(&self, file: FileId) -> bool {
        self.signals.contains(&Some(file))
    }
}

/// Where one tablespace goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TablespacePlace {
    /// The link in pg_tblspc.
    pub(super) link: FileId,
    /// Where it was.
    pub(super) from: PathBuf,
    /// Where it will be.
    pub(super) to: PathBuf,
}

/// The tablespaces of the set with their places after `map`.
///
/// # Errors
/// `Usage` if the map names a place that is none of the set's, or a relative one.
pub(super) fn tablespaces(table: &FileTable, map: &[(PathBuf, PathBuf)]) -> Result<Vec<TablespacePlace>> {
    use std::os::unix::ffi::OsStrExt;
    let mut used = vec![false; map.len()];
    let mut places = Vec::new();
    for link in table.ids().filter(|file| is_tablespace_link(table, *file)) {
        let from = PathBuf::from(std::ffi::OsStr::from_bytes(table.target(link)));
        let moved = map.iter().position(|(old, _)| *old == from);
        if let Some(position) = moved {
            used[position] = true;
        }
        let to = moved.map_or_else(|| from.clone(), |position| map[position].1.clone());
        if !to.is_absolute() {
            let action = format!("use --tablespace-map {}={}", from.display(), to.display());
            return Err(Error::new(ErrorKind::Usage, action, "the new place is not an absolute path"));
        }
        places.push(TablespacePlace { link, from, to });
    }
    if let Some(unused) = used.iter().position(|used| !used) {
        let known: Vec<String> = places.iter().map(|place| place.from.display().to_string()).collect();
        let action = format!("use --tablespace-map {}", map[unused].0.display());
        let hint = if known.is_empty() {
            "the set has no tablespaces".to_owned()
        } else {
            format!("the set's tablespaces are: {}", known.join(", "))
        };
        return Err(Error::new(ErrorKind::Usage, action, "no tablespace of the set lies there").hint(hint));
    }
    Ok(places)
}

fn is_tablespace_link(table: &FileTable, file: FileId) -> bool {
    let path = table.path(file);
    table.entry(file).kind == EntryKind::Symlink
        && path.strip_prefix(b"pg_tblspc/").is_some_and(|name| name.iter().all(u8::is_ascii_digit))
}

/// Checks that nothing of the set lies below a link that is not a tablespace: it could lead out of the target.
///
/// # Errors
/// `Damage`, naming the file.
pub(super) fn check_links(table: &FileTable) -> Result<()> {
    let other_links: Vec<&[u8]> = table
        .ids()
        .filter(|file| table.entry(*file).kind == EntryKind::Symlink && !is_tablespace_link(table, *file))
        .map(|file| table.path(file))
        .collect();
    let below = |path: &[u8]| {
        other_links.iter().any(|link| path.strip_prefix(*link).is_some_and(|rest| rest.first() == Some(&b'/')))
    };
    match table.ids().find(|file| below(table.path(*file))) {
        None => Ok(()),
        Some(file) => {
            let action = format!("restore {}", table.path_text(file));
            Err(Error::new(
                ErrorKind::Damage,
                action,
                "it lies below a link that could lead out of the target directory",
            ))
        }
    }
}

/// The tablespace map with the new places, in the server's own form: `OID PLACE` a line, newlines and backslashes
/// in a place escaped by a backslash (src/backend/access/transam/xlogrecovery.c, read_tablespace_map).
pub(super) fn tablespace_map_content(table: &FileTable, places: &[TablespacePlace]) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;
    let mut content = Vec::new();
    for place in places {
        content.extend_from_slice(&table.path(place.link)[b"pg_tblspc/".len()..]);
        content.push(b' ');
        for byte in place.to.as_os_str().as_bytes() {
            if matches!(byte, b'\n' | b'\r' | b'\\') {
                content.push(b'\\');
            }
            content.push(*byte);
        }
        content.push(b'\n');
    }
    content
}

/// Every count and size, from the request or by default, on a machine of `cores`.
///
/// # Errors
/// `Usage` if one is out of range.
pub(super) fn settings(request: &RestoreRequest, set: &OpenSet, cores: u16) -> Result<PipelineSettings> {
    let readers = request.readers.unwrap_or_else(|| set.default_readers(cores));
    let decoders = request.decoders.unwrap_or(cores);
    let file_writers = request.file_writers.unwrap_or_else(|| (2 * cores).min(16));
    let settings = PipelineSettings {
        readers,
        encoders: decoders,
        writers: file_writers,
        buffer_count: request
            .buffer_count
            .unwrap_or_else(|| PipelineSettings::default_buffer_count(readers, decoders, file_writers)),
        transfer_size_bytes: request
            .transfer_size_bytes
            .unwrap_or_else(|| set.transfer_size_bytes(request.max_memory_bytes)),
        // A buffer must hold the largest frame of the chain.
        frame_size_bytes: set.frame_sizes_bytes().1,
        max_rate_bytes_per_s: request.max_rate_bytes_per_s,
    };
    settings.check()?;
    Ok(settings)
}

/// Whether the restored cluster must not archive.
pub(super) fn archiving_off(mode: ArchiveMode, manifest: &Manifest, target_dir: &Path) -> bool {
    match mode {
        ArchiveMode::Preserve => false,
        ArchiveMode::Off => true,
        ArchiveMode::Auto => Path::new(&manifest.postgres.data_directory) != target_dir,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> FileTable {
        let mut table = FileTable::default();
        table.push(b"pg_tblspc/16384", b"/space/one", EntryKind::Symlink, 0o777, 0, 0).unwrap();
        table.push(b"pg_tblspc/16385", b"/space/two", EntryKind::Symlink, 0o777, 0, 0).unwrap();
        table.push(b"odd_link", b"/etc", EntryKind::Symlink, 0o777, 0, 0).unwrap();
        table
    }

    #[test]
    fn tablespaces_move_where_the_map_says() {
        let map = [("/space/one".into(), "/new/a b\\c".into())];
        let places = tablespaces(&table(), &map).unwrap();
        let to: Vec<_> = places.iter().map(|place| place.to.to_str().unwrap()).collect();
        assert_eq!(to, ["/new/a b\\c", "/space/two"]);
        assert_eq!(tablespace_map_content(&table(), &places), b"16384 /new/a b\\\\c\n16385 /space/two\n");
    }

    #[test]
    fn a_map_that_fits_nothing_is_refused() {
        let unknown = tablespaces(&table(), &[("/space/three".into(), "/new".into())]).unwrap_err();
        assert!(unknown.hint_text().unwrap().contains("/space/one, /space/two"), "{unknown}");
        assert!(tablespaces(&table(), &[("/space/one".into(), "relative".into())]).is_err());
    }

    #[test]
    fn copies_do_not_archive() {
        let manifest = crate::format::manifest::tests::sample();
        assert!(archiving_off(ArchiveMode::Auto, &manifest, Path::new("/copy")));
        assert!(!archiving_off(ArchiveMode::Auto, &manifest, Path::new("/data")));
        assert!(!archiving_off(ArchiveMode::Preserve, &manifest, Path::new("/copy")));
    }
}
