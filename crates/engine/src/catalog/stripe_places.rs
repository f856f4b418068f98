//! Where the object of a stripe is looked for, and under which names.

use super::manifest_lock::check_key;
use super::repository::{Repository, set_prefix};
use super::second_copies::sound_one;
use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::{Manifest, StripeRecord};
use crate::format::parity::ParityHeader;
use crate::format::stripe::{STRIPE_HEADER_BYTES, StripeHeader};
use crate::storage::{ObjectReader, Storage, is_same_store, object_place};
use crate::terms::{SetId, StripeIndex};

/// Where a stripe was written, for people.
pub(super) fn written_to(repository: &Repository, manifest: &Manifest, record: &StripeRecord) -> String {
    let name = format!("{}/{}", set_prefix(&manifest.source, &manifest.label), record.name);
    object_place(&home_of(repository, record), &name)
}

fn home_of(repository: &Repository, record: &StripeRecord) -> String {
    record.directory.clone().unwrap_or_else(|| repository.storage().describe())
}

/// The object of a stripe as it was found.
pub struct FoundStripe {
    /// The object.
    pub object: Box<dyn ObjectReader>,
    /// Where it lies, for people.
    pub place: String,
    /// Its name in the store.
    pub name: String,
}

/// The object of a stripe and where it lies, for people; nothing of it but its header is looked at. `stripe_from` as for
/// [`super::open_set`].
///
/// Stripes of several sets may have been moved into one directory, and have the same file name: the first one whose header
/// says that it is the right one is taken, and only without such a one the first one found.
///
/// # Errors
/// `Damage` if there is none; those of the storages.
pub fn find_stripe(
    repository: &Repository,
    manifest: &Manifest,
    stripe: StripeIndex,
    record: &StripeRecord,
    stripe_from: &[String],
) -> Result<FoundStripe> {
    let set_id = manifest.set_id()?;
    let mut other = None;
    let found = each_candidate(repository, manifest, record, stripe_from, &mut |found| {
        if says_it_is(found.object.as_ref(), set_id, stripe) {
            return Some(found);
        }
        other = other.take().or(Some(found));
        None
    })?;
    found.or(other).ok_or_else(|| missing(repository, manifest, &format!("stripe {stripe}"), record))
}

/// What is said of a stripe that is nowhere.
pub(super) fn missing(repository: &Repository, manifest: &Manifest, name: &str, record: &StripeRecord) -> Error {
    let place = written_to(repository, manifest, record);
    Error::new(ErrorKind::Damage, format!("open {name} at {place}"), "it is missing")
        .hint("if it was moved, name its directory with --stripe-from")
}

fn says_it_is(object: &dyn ObjectReader, set_id: SetId, stripe: StripeIndex) -> bool {
    let mut bytes = [0u8; STRIPE_HEADER_BYTES];
    let header = object.read_at(&mut bytes, 0).and_then(|()| StripeHeader::from_bytes(&bytes));
    match header {
        Ok(header) => (header.set_id, header.stripe) == (set_id, stripe),
        // Without a key its name has to do, which cannot be changed, and the id of its key.
        Err(error) => error.kind() == ErrorKind::Configuration,
    }
}

/// What the header of an object says: that it is the parity stripe that is wanted, another object, or nothing.
pub(super) fn is_parity(object: &dyn ObjectReader, wanted: &ParityHeader) -> Option<bool> {
    let mut bytes = [0u8; STRIPE_HEADER_BYTES];
    let header = object.read_at(&mut bytes, 0).and_then(|()| ParityHeader::from_bytes(&bytes));
    header.ok().map(|header| header == *wanted)
}

/// Shows `look` each object that may be the stripe, until it takes one: where the stripe was written, in the directories the
/// user named, and beside the manifest. In a set with parity those that were repaired come first, the newest before all.
///
/// A directory that the user names again, behind a throttle, is read the way the user says.
///
/// # Errors
/// Those of the storages: one that cannot be asked says nothing about what is there. In a set with parity all others are asked
/// before that is said.
pub(super) fn each_candidate<T>(
    repository: &Repository,
    manifest: &Manifest,
    record: &StripeRecord,
    stripe_from: &[String],
    look: &mut dyn FnMut(FoundStripe) -> Option<T>,
) -> Result<Option<T>> {
    let mut places: Vec<Box<dyn Storage>> =
        stripe_from.iter().map(|target| repository.open_place(target)).collect::<Result<_>>()?;
    let named = places.len();
    let mut home = None;
    if let Some(directory) = &record.directory {
        let written = repository.open_place(directory)?;
        let again = places.iter().position(|place| is_same_store(place.as_ref(), written.as_ref()));
        home = Some(again.map_or(written, |named| places.remove(named)));
    }
    let prefix = set_prefix(&manifest.source, &manifest.label);
    let places: Vec<&dyn Storage> =
        home.iter().chain(&places).map(AsRef::as_ref).chain([repository.storage()]).collect();
    let mut silent = Silent { may_be: manifest.parity.is_some(), repository: places.len() - 1, ..Silent::default() };
    let mut candidates = Vec::new();
    if manifest.parity.is_some() {
        for (number, place) in places.iter().enumerate() {
            match repaired_in(*place, &prefix, &record.name, named > 0) {
                Ok(found) => candidates.extend(found.into_iter().map(|(repair, name)| (repair, number, name))),
                Err(error) => silent.leave_out(number, error)?,
            }
        }
    }
    candidates.sort_by_key(|(number, ..)| std::cmp::Reverse(*number));
    for number in 0..places.len() {
        candidates.extend([format!("{prefix}/{}", record.name), record.name.clone()].map(|name| (0, number, name)));
    }
    let mut refused = None;
    for (_, number, name) in candidates {
        if silent.places.contains(&number) {
            continue;
        }
        let place = places[number];
        let opened = place.open(&name).and_then(|object| match object {
            Some(object) => check_key(manifest, object.as_ref(), &name).map(|()| Some(object)),
            None => Ok(None),
        });
        match opened {
            Ok(Some(object)) => {
                let place = object_place(&place.describe(), &name);
                if let Some(taken) = look(FoundStripe { object, place, name }) {
                    return Ok(Some(taken));
                }
            }
            Ok(None) => {}
            // One that is not what its name says, or was put there without the key: as good as none.
            Err(error) if error.kind() == ErrorKind::Damage => refused = refused.or(Some(error)),
            Err(error) => silent.leave_out(number, error)?,
        }
    }
    match silent.error.or(refused.filter(|_| manifest.parity.is_none())) {
        Some(error) => Err(error),
        None => Ok(None),
    }
}

/// The objects below a place under which a stripe was put back, and for the how manieth time.
fn repaired_in(place: &dyn Storage, prefix: &str, stripe: &str, is_looked_at_flat: bool) -> Result<Vec<(u32, String)>> {
    let mut found: Vec<(u32, String)> = Vec::new();
    let mut find = |below: &str, name: &dyn Fn(&str) -> String| -> Result<()> {
        let files = place.list(below)?;
        found.extend(files.iter().filter_map(|file| Some((repair_number(stripe, file)?, name(file)))));
        Ok(())
    };
    find(prefix, &|file| format!("{prefix}/{file}"))?;
    // Nobody puts a stripe flat where it was written, and the place may hold much else.
    if is_looked_at_flat {
        find("", &|file| file.to_owned())?;
    }
    Ok(found)
}

/// Places of stripes that cannot be asked. With parity another place, or the rest of the stripes, may do.
#[derive(Default)]
struct Silent {
    may_be: bool,
    /// Which place is the repository, without which there is nothing.
    repository: usize,
    places: Vec<usize>,
    error: Option<Error>,
}

impl Silent {
    /// Asks the place no more.
    ///
    /// # Errors
    /// `error`, where it decides.
    fn leave_out(&mut self, place: usize, error: Error) -> Result<()> {
        if !self.may_be || place == self.repository || error.kind() != ErrorKind::Repository {
            return Err(error);
        }
        self.places.push(place);
        self.error.get_or_insert(error);
        Ok(())
    }
}

/// The name under which a stripe is put back for the `number`-th time: `stripe-0002-r1.phs`.
pub fn repaired_name(name: &str, number: u32) -> String {
    let (stem, extension) = name.rsplit_once('.').unwrap_or((name, ""));
    format!("{stem}-r{number}.{extension}")
}

/// For the how manieth time `file` puts back the stripe of that name; None if it is none of it.
pub fn repair_number(name: &str, file: &str) -> Option<u32> {
    let (stem, extension) = name.rsplit_once('.')?;
    let number = file.strip_prefix(stem)?.strip_prefix("-r")?.strip_suffix(extension)?.strip_suffix('.')?;
    number.parse().ok().filter(|number: &u32| *number > 0 && repaired_name(name, *number) == file)
}

/// What of a set's stripes and file table is missing or has another size than the manifest says, if that is more than its
/// parity gives back; nothing of them is read.
///
/// # Errors
/// Those of the storages.
pub fn find_flaw(repository: &Repository, manifest: &Manifest) -> Result<Option<String>> {
    let mut flaws = Vec::new();
    for record in manifest.all_stripes() {
        let mut found = None;
        let is_whole = each_candidate(repository, manifest, record, &[], &mut |FoundStripe { object, .. }| {
            found = Some(object.size_bytes());
            (object.size_bytes() == record.size_bytes).then_some(())
        });
        let is_whole = match is_whole {
            Err(error) if error.kind() == ErrorKind::Damage => None,
            looked => looked?,
        };
        if is_whole.is_none() {
            let place = object_place(&home_of(repository, record), &set_prefix(&manifest.source, &manifest.label));
            flaws.push(flaw(&record.name, found, record.size_bytes, &place));
        }
    }
    let (storage, table) = (repository.storage(), &manifest.file_table);
    let prefix = set_prefix(&manifest.source, &manifest.label);
    let has_its_size = |object: &str| {
        let found = storage.open(&format!("{prefix}/{object}"))?.map(|object| object.size_bytes());
        let flaw = || flaw(object, found, table.size_bytes, &storage.describe());
        let is_whole = found == Some(table.size_bytes);
        if is_whole { Ok(()) } else { Err(Error::new(ErrorKind::Damage, format!("find all of {object}"), flaw())) }
    };
    match sound_one(storage, &prefix, &table.name, &has_its_size) {
        Err(error) if error.kind() == ErrorKind::Damage => return Ok(Some(error.message())),
        looked => looked?,
    };
    Ok(if flaws.len() > manifest.parity_stripes().len() { flaws.into_iter().next() } else { None })
}

fn flaw(name: &str, found: Option<u64>, size_bytes: u64, place: &str) -> String {
    match found {
        Some(found) => format!("{name} has {found} bytes where {size_bytes} were written"),
        None => format!("{name} is not in {place}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repaired_stripes_are_known_by_their_names() {
        assert_eq!(repaired_name("stripe-0002.phs", 3), "stripe-0002-r3.phs");
        assert_eq!(repair_number("stripe-0002.phs", "stripe-0002-r12.phs"), Some(12));
        for other in
            ["stripe-0002.phs", "stripe-0003-r1.phs", "stripe-0002-r0.phs", "stripe-0002-r01.phs", "stripe-0002-r1"]
        {
            assert_eq!(repair_number("stripe-0002.phs", other), None, "{other}");
        }
    }
}
