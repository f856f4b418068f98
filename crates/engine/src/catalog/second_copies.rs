//! What a set cannot be read without, twice: a set with parity has second copies of its manifest and of its file table.
//!
//! They have the names of what was put back (`manifest-r1.json`, `files-r1.table`), from the backup on. A reader that finds
//! the object itself damaged takes the first copy that is what it should be; one that is not there at all is no set.

use super::manifest_lock::check_key;
use super::open_set::manifest_in;
use super::repository::{FILE_TABLE_NAME, MANIFEST_NAME, Repository, set_prefix};
use super::stripe_places::{repair_number, repaired_name};
use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::Manifest;
use crate::format::object_digest::{ObjectHasher, ObjectSums};
use crate::limits::MANIFEST_BYTES_MAX;
use crate::storage::{ObjectReader, Storage};

/// How many must be sound: the object and a copy, or two copies.
const SOUND_MIN: usize = 2;
/// What is read at once.
const PIECE_BYTES: usize = 1 << 20;

/// Names of the copies of `name` that lie below `prefix`, in order of number.
///
/// # Errors
/// Those of the storage.
fn copies_of(storage: &dyn Storage, prefix: &str, name: &str) -> Result<Vec<String>> {
    let listed = storage.list(prefix)?;
    let mut copies: Vec<(u32, String)> =
        listed.into_iter().filter_map(|file| Some((repair_number(name, &file)?, file))).collect();
    copies.sort_unstable();
    Ok(copies.into_iter().map(|(_, file)| file).collect())
}

/// What `read` makes of the object `name`, or of the first of its copies that is not damaged; with the name that was read.
///
/// # Errors
/// Those of reading the object itself; those of the storage.
pub(super) fn sound_one<T>(
    storage: &dyn Storage,
    prefix: &str,
    name: &str,
    read: &dyn Fn(&str) -> Result<T>,
) -> Result<(T, String)> {
    match read(name) {
        Ok(found) => Ok((found, name.to_owned())),
        Err(error) if error.kind() == ErrorKind::Damage => {
            let copies = copies_of(storage, prefix, name)?;
            copies.into_iter().find_map(|copy| Some((read(&copy).ok()?, copy))).ok_or(error)
        }
        Err(error) => Err(error),
    }
}

/// An object of a set of which less than two copies are sound, though there were more.
pub struct DamagedObject {
    /// Its name.
    pub name: &'static str,
    /// What is wrong with one of them.
    pub cause: String,
    /// A copy that is sound; the object itself, if it is that one.
    sound: String,
    /// The first name of a copy that nobody has.
    free: String,
}

/// What of a set's manifest and file table is damaged, so that nothing more may be; only sets with parity have copies.
///
/// # Errors
/// Those of the storage; `Damage` if no copy is sound.
pub fn damaged_objects(repository: &Repository, manifest: &Manifest) -> Result<Vec<DamagedObject>> {
    if manifest.parity.is_none() {
        return Ok(Vec::new());
    }
    let is_manifest = |name: &str| manifest_in(repository, &manifest.source, &manifest.label, name).map(drop);
    let is_table = |name: &str| check_table(repository, manifest, name);
    let manifests = damaged_object(repository, manifest, MANIFEST_NAME, &is_manifest)?;
    let tables = damaged_object(repository, manifest, FILE_TABLE_NAME, &is_table)?;
    Ok(manifests.into_iter().chain(tables).collect())
}

fn damaged_object(
    repository: &Repository,
    manifest: &Manifest,
    name: &'static str,
    check: &dyn Fn(&str) -> Result<()>,
) -> Result<Option<DamagedObject>> {
    let prefix = set_prefix(&manifest.source, &manifest.label);
    let copies = copies_of(repository.storage(), &prefix, name)?;
    let free = (1..).map(|number| repaired_name(name, number)).find(|free| !copies.contains(free)).unwrap_or_default();
    let (mut sound, mut damaged) = (Vec::new(), Vec::new());
    for candidate in std::iter::once(name.to_owned()).chain(copies) {
        match check(&candidate) {
            Ok(()) => sound.push(candidate),
            Err(error) if error.kind() == ErrorKind::Damage => damaged.push(error),
            Err(error) => return Err(error),
        }
    }
    let Some(error) = damaged.into_iter().next() else { return Ok(None) };
    if sound.len() >= SOUND_MIN {
        return Ok(None);
    }
    let cause = error.message();
    match sound.into_iter().next() {
        Some(sound) => Ok(Some(DamagedObject { name, cause, sound, free })),
        None => Err(error),
    }
}

/// Which object of a set has its file table: itself, or the first copy that is sound.
///
/// # Errors
/// `Damage` if none is; those of the storage.
pub fn sound_file_table(repository: &Repository, manifest: &Manifest) -> Result<String> {
    let check = |name: &str| check_table(repository, manifest, name);
    let prefix = set_prefix(&manifest.source, &manifest.label);
    sound_one(repository.storage(), &prefix, FILE_TABLE_NAME, &check).map(|((), name)| name)
}

/// Whether this object of a set has the bytes of its file table; not one of them is kept.
fn check_table(repository: &Repository, manifest: &Manifest, name: &str) -> Result<()> {
    let name = format!("{}/{name}", set_prefix(&manifest.source, &manifest.label));
    let damaged = |cause: &str| Error::new(ErrorKind::Damage, format!("open {name}"), cause);
    let object = repository.storage().open(&name)?.ok_or_else(|| damaged("it is missing"))?;
    check_key(manifest, object.as_ref(), &name)?;
    if object.size_bytes() != manifest.file_table.size_bytes {
        return Err(damaged("it does not have the size that the manifest says"));
    }
    match manifest.file_table.fits(&sums_of(object.as_ref())?) {
        true => Ok(()),
        false => Err(damaged("it is not the file table that the manifest names")),
    }
}

/// The sums of all bytes of an object, which are read in pieces of 1 MiB.
///
/// # Errors
/// Those of the storage.
pub fn sums_of(object: &dyn ObjectReader) -> Result<ObjectSums> {
    let mut hasher = ObjectHasher::default();
    each_piece(object, &mut |piece| {
        hasher.update(piece);
        Ok(())
    })?;
    Ok(hasher.finish())
}

fn each_piece(object: &dyn ObjectReader, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let mut buffer = vec![0u8; PIECE_BYTES];
    for offset in (0..object.size_bytes()).step_by(PIECE_BYTES) {
        let length = (object.size_bytes() - offset).min(PIECE_BYTES as u64) as usize;
        object.read_at(&mut buffer[..length], offset)?;
        take(&buffer[..length])?;
    }
    Ok(())
}

/// Puts another copy of a damaged object beside it, from one that is sound; gives its name and size.
///
/// # Errors
/// `Conflict` if somebody else does at the same time; those of the storage.
pub fn put_copy(repository: &Repository, manifest: &Manifest, damaged: &DamagedObject) -> Result<(String, u64)> {
    let (storage, prefix) = (repository.storage(), set_prefix(&manifest.source, &manifest.label));
    let (from, to) = (format!("{prefix}/{}", damaged.sound), format!("{prefix}/{}", damaged.free));
    let missing = || Error::new(ErrorKind::Damage, format!("open {from}"), "it is not there any more");
    let (is_new, bytes) = if damaged.name == MANIFEST_NAME {
        // Who has no key reads it, too: only its private part is encrypted.
        let manifest = storage.read_small(&from, MANIFEST_BYTES_MAX)?.ok_or_else(missing)?;
        (storage.put_new(&to, &manifest)?, manifest.len() as u64)
    } else {
        let object = storage.open(&from)?.ok_or_else(missing)?;
        let mut copy = storage.stage(&to, object.size_bytes())?;
        each_piece(object.as_ref(), &mut |piece| copy.append(piece))?;
        (copy.commit()?, object.size_bytes())
    };
    if is_new {
        return Ok((to, bytes));
    }
    let cause = "somebody else repairs it at the same time";
    Err(Error::new(ErrorKind::Conflict, format!("put back {to}"), cause).hint("run the repair again"))
}
