//! Takes backup files apart: into the plain MTF stream, or into images of the database's files.
//!
//! An image is what the pages were while the backup ran, each at its own moment. Only a server that replays the log makes
//! a database of it; nothing here pretends to.

mod image;
mod sink;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use pagehaul_engine::error::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::bytes::BakFile;
use crate::damage::DamageList;
use crate::facts::SetKind;
use crate::inspect::{InspectReport, InspectedSet, inspect};
use crate::ledger::PageLedger;
use crate::source::{Progress, read_pieces};
use crate::sql::Guid;
use crate::verify::missing_extents;
use crate::walk::walk_all;
use image::Images;
use sink::ImageSink;

/// What every report of images says.
pub const NOT_CONSISTENT: &str = "the images are not transactionally consistent: their pages are of different moments, and only a server that restores \
     the backup with its log makes them a database";

/// Writes the MTF stream of `file`, decompressed if it was compressed; gives its length.
///
/// # Errors
/// `Damage` for a chunk that cannot be read, `Target` if `to` cannot be written, `Source` if the file cannot be read.
pub fn unpack_stream(file: &BakFile, threads: u16, progress: Progress<'_>, to: &mut dyn Write) -> Result<u64> {
    let mut written = 0;
    read_pieces(file, threads, progress, &mut |piece| {
        if let Some(cause) = &piece.damage {
            let at = format!("unpack {} at byte {}", file.name, piece.file_offset);
            return Err(Error::new(ErrorKind::Damage, at, cause).hint("pagehaul bak verify lists all damage"));
        }
        written += piece.bytes.len() as u64;
        to.write_all(&piece.bytes).map_err(|cause| Error::new(ErrorKind::Target, "write the MTF stream", cause))
    })?;
    Ok(written)
}

/// Which sets to make images of, and where.
#[derive(Clone, Debug)]
pub struct ImageRequest {
    /// The directory for the images; files of those names must not be there.
    pub directory: PathBuf,
    /// The full set, if there is more than one.
    pub full: Option<Guid>,
    /// Whether the newest differential on top of it is applied, if there is one.
    pub with_differential: bool,
    /// Whether images of damaged sets stay.
    pub keep_damaged: bool,
    /// Threads that decode.
    pub threads: u16,
}

/// Images that were made.
#[derive(Clone, Debug, Serialize)]
pub struct ImageReport {
    /// The full set.
    pub full_set_guid: Guid,
    /// The differential that was applied.
    pub differential_set_guid: Option<Guid>,
    /// The database.
    pub database: String,
    /// One for each data file.
    pub images: Vec<ImageFile>,
    /// Always [`NOT_CONSISTENT`].
    pub warning: &'static str,
    /// What was found damaged, if images were to be kept all the same.
    pub damage: Vec<crate::damage::Damage>,
}

/// The image of one database file.
#[derive(Clone, Debug, Serialize)]
pub struct ImageFile {
    /// The file's number.
    pub file_id: u16,
    /// Its name inside the database.
    pub logical_name: String,
    /// Where it was written.
    pub path: String,
    /// Its size.
    pub size_bytes: u64,
    /// Bytes of pages that were in the sets; the rest is zeros.
    pub written_bytes: u64,
}

/// Makes images of the data files in a full set and, on top of it, a differential.
///
/// # Errors
/// `Usage` if it is not clear which full set is meant; `Damage` if files of its media set are missing or anything that a
/// checksum covers is damaged, and then the images are removed again; `Target` if they cannot be written.
pub fn unpack_images(files: &[BakFile], request: &ImageRequest, progress: Progress<'_>) -> Result<ImageReport> {
    let inspected = inspect(files)?;
    let full = choose_full(&inspected, request.full)?;
    let differential = newest_differential(&inspected, full).filter(|_| request.with_differential);
    let mut images = Images::new(&request.directory);
    let mut damage = DamageList::default();
    let mut base_ledger = None;
    for set in std::iter::once(full).chain(differential) {
        images.begin_set(&set.server)?;
        let mut ledger = read_set(files, set, request.threads, progress, &mut images, &mut damage)?;
        if let Some(base) = &base_ledger {
            ledger.build_on(base);
        }
        ledger.finish(&set.in_files, set.position, &mut damage);
        if set.kind == SetKind::Full {
            let name = set.in_files.first().map_or("", String::as_str);
            missing_extents(&set.server, &ledger, name, &mut damage);
        }
        base_ledger = Some(ledger);
    }
    if let Some(first) = damage.listed.first().filter(|_| !request.keep_damaged) {
        let cause = format!("{first} ({} found)", damage.count);
        return Err(Error::new(ErrorKind::Damage, "make images of the database files", cause)
            .hint("pagehaul bak verify lists all damage; --keep-damaged keeps the images all the same"));
    }
    let made = images.finish()?;
    Ok(ImageReport {
        full_set_guid: full.set_guid,
        differential_set_guid: differential.map(|set| set.set_guid),
        database: full.server.database_name.clone(),
        images: made,
        warning: NOT_CONSISTENT,
        damage: damage.listed,
    })
}

/// Reads the files of `set` and writes its pages into `images`; gives what is known of its pages.
fn read_set(
    files: &[BakFile],
    set: &InspectedSet,
    threads: u16,
    progress: Progress<'_>,
    images: &mut Images,
    damage: &mut DamageList,
) -> Result<PageLedger> {
    let mut ledgers = BTreeMap::new();
    for (index, name) in set.in_files.iter().enumerate() {
        let Some(file) = files.iter().find(|file| file.name == *name) else { continue };
        let mut sink = ImageSink::new(file, index, set.position, &mut ledgers, images)?;
        walk_all(file, threads, progress, &mut sink)?;
        let found = sink.finish()?.damage;
        damage.count += found.count - found.listed.len() as u64;
        found.listed.into_iter().for_each(|found| damage.add(found));
    }
    let own = ledgers.remove(&(set.media_set_guid, set.position)).unwrap_or_default();
    for ((_, position), mut other) in ledgers {
        // Other sets in the same files.
        other.finish(&set.in_files, position, damage);
    }
    Ok(own)
}

fn refused(kind: ErrorKind, cause: String) -> Error {
    Error::new(kind, "make images of the database files", cause)
}

fn choose_full(inspected: &InspectReport, wanted: Option<Guid>) -> Result<&InspectedSet> {
    let fulls: Vec<&InspectedSet> = inspected.sets.iter().filter(|set| set.kind == SetKind::Full).collect();
    let chosen: Vec<&&InspectedSet> =
        fulls.iter().filter(|set| wanted.is_none_or(|wanted| wanted == set.set_guid)).collect();
    let set = match chosen[..] {
        [set] => *set,
        [] => return Err(refused(ErrorKind::Usage, "there is no such full backup in these files".to_owned())),
        _ => {
            let ids: Vec<String> = fulls.iter().map(|set| set.set_guid.to_string()).collect();
            let cause = format!("there are {} full backups in these files", fulls.len());
            return Err(refused(ErrorKind::Usage, cause).hint(format!("choose one with --set: {}", ids.join(", "))));
        }
    };
    if set.is_complete {
        return Ok(set);
    }
    let cause = inspected.damage.first().map_or("the set is not complete".to_owned(), ToString::to_string);
    Err(refused(ErrorKind::Damage, cause).hint("give all files of the media set"))
}

fn newest_differential<'a>(inspected: &'a InspectReport, full: &InspectedSet) -> Option<&'a InspectedSet> {
    let on_top = inspected
        .sets
        .iter()
        .filter(|set| set.is_complete && set.kind == SetKind::Differential && crate::chain::is_base(full, set));
    on_top.max_by_key(|set| set.server.last_lsn)
}

/// The path of an image in `directory`, by the last part of the path that the file had on the server.
pub(crate) fn image_path(
    directory: &Path,
    physical_path: &str,
    file_id: u16,
    is_taken: &dyn Fn(&Path) -> bool,
) -> PathBuf {
    let name = physical_path.rsplit(['\\', '/']).next().unwrap_or_default();
    let is_name = !matches!(name, "" | "." | "..") && name.len() <= 200 && !name.contains(char::is_control);
    let path = directory.join(if is_name { name.to_owned() } else { format!("file-{file_id}") });
    if is_taken(&path) {
        directory.join(format!("file-{file_id}-{}", if is_name { name } else { "image" }))
    } else {
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_stay_in_their_directory() {
        let directory = Path::new("/d");
        let path = |physical: &str| image_path(directory, physical, 3, &|_| false);
        assert_eq!(path("C:\\data\\Sales.mdf"), Path::new("/d/Sales.mdf"));
        assert_eq!(path("/var/opt/mssql/data/s.ndf"), Path::new("/d/s.ndf"));
        for strange in ["", "..", "C:\\..", "a/..", "x\\a\0b"] {
            assert_eq!(path(strange), Path::new("/d/file-3"), "{strange}");
        }
        assert_eq!(image_path(directory, "x.mdf", 4, &|_| true), Path::new("/d/file-4-x.mdf"));
    }
}
