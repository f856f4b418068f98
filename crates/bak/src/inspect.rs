//! What RESTORE HEADERONLY, FILELISTONLY and LABELONLY show, of any number of files and without a server.

use pagehaul_engine::error::Result;
use serde::Serialize;

use crate::bytes::BakFile;
use crate::damage::{Damage, DamageList};
use crate::facts::{FileFacts, SetFacts, SetKind, read_facts};
use crate::media::{MediaSet, media_sets};
use crate::mtf::MtfDate;
use crate::source::Layout;
use crate::sql::{Configuration, DatabaseFile, Guid, SqlLsn};

/// What files say of themselves.
#[derive(Clone, Debug, Serialize)]
pub struct InspectReport {
    /// The files, in the order given.
    pub files: Vec<InspectedFile>,
    /// The media sets they are of, with families that are missing.
    pub media_sets: Vec<MediaSet>,
    /// The backup sets in them; a striped one is listed once.
    pub sets: Vec<InspectedSet>,
    /// Everything that is wrong with what was read; pages were not.
    pub damage: Vec<Damage>,
}

/// A file and its medium (LABELONLY).
#[derive(Clone, Debug, Serialize)]
pub struct InspectedFile {
    /// Its path.
    pub file: String,
    /// Its size.
    pub size_bytes: u64,
    /// Plain or compressed.
    pub layout: Layout,
    /// Its media set.
    pub media_set_guid: Guid,
    /// Files of the media set.
    pub family_count: u16,
    /// Which of them it is, from 1.
    pub family_number: u16,
    /// The file's own number.
    pub media_family_id: u32,
    /// MEDIANAME.
    pub media_name: String,
    /// MEDIADESCRIPTION.
    pub media_description: String,
    /// Who wrote it.
    pub software_name: String,
    /// When it was formatted, by the server's clock.
    pub written_at: MtfDate,
    /// How many sets it holds.
    pub set_count: usize,
}

/// A backup set (HEADERONLY and FILELISTONLY).
#[derive(Clone, Debug, Serialize)]
pub struct InspectedSet {
    /// The files it lies in.
    pub in_files: Vec<String>,
    /// Its media set.
    pub media_set_guid: Guid,
    /// Its number in its files: FILE = n of a RESTORE.
    pub position: u16,
    /// Its own id.
    pub set_guid: Guid,
    /// What it holds.
    pub kind: SetKind,
    /// Whether all its files are there and the set has its end.
    pub is_complete: bool,
    /// Whether its pages are compressed.
    pub is_compressed: bool,
    /// Made WITH `COPY_ONLY`.
    pub is_copy_only: bool,
    /// Made WITH CHECKSUM.
    pub has_backup_checksums: bool,
    /// NAME.
    pub name: String,
    /// DESCRIPTION.
    pub description: String,
    /// Who made it.
    pub user_name: String,
    /// The server's version, such as 13.0.1500.
    pub server_version: String,
    /// What the server said; the files of the database are in it.
    pub server: Configuration,
    /// The base of a differential.
    pub base_guid: Guid,
    /// The LSN of that base.
    pub base_lsn: SqlLsn,
}

/// Reads what `files` say of themselves; pages and log are passed over.
///
/// # Errors
/// `Damage` if one is no backup file, `Source` if one cannot be read.
pub fn inspect(files: &[BakFile]) -> Result<InspectReport> {
    let facts = files.iter().map(read_facts).collect::<Result<Vec<_>>>()?;
    Ok(inspect_facts(&facts))
}

/// The report of facts that were read already.
pub fn inspect_facts(facts: &[FileFacts]) -> InspectReport {
    let mut damage = DamageList::default();
    for file in facts {
        file.damage.listed.iter().for_each(|found| damage.add(found.clone()));
    }
    let media_sets = media_sets(facts, &mut damage);
    InspectReport {
        files: facts.iter().filter_map(inspected_file).collect(),
        sets: media_sets.iter().flat_map(|media_set| inspected_sets(media_set, facts)).collect(),
        media_sets,
        damage: damage.listed,
    }
}

fn inspected_file(facts: &FileFacts) -> Option<InspectedFile> {
    let (tape, family) = (facts.tape.as_ref()?, facts.family?);
    Some(InspectedFile {
        file: facts.name.clone(),
        size_bytes: facts.size_bytes,
        layout: facts.layout,
        media_set_guid: family.media_set_guid,
        family_count: family.family_count,
        family_number: family.family_number,
        media_family_id: tape.media_family_id,
        media_name: tape.media_name.clone(),
        media_description: tape.media_description.clone(),
        software_name: tape.software_name.clone(),
        written_at: tape.written_at,
        set_count: facts.sets.len(),
    })
}

/// The sets of a media set; sets without a description are in the list of damage only.
fn inspected_sets(media_set: &MediaSet, facts: &[FileFacts]) -> Vec<InspectedSet> {
    let guid = media_set.media_set_guid;
    let of_set: Vec<&FileFacts> =
        facts.iter().filter(|file| file.family.is_some_and(|family| family.media_set_guid == guid)).collect();
    let Some(longest) = of_set.iter().max_by_key(|file| file.sets.len()) else { return Vec::new() };
    let mut inspected = Vec::new();
    for (index, set) in longest.sets.iter().enumerate() {
        let Some(config) = set.configuration() else { continue };
        let same: Vec<(&FileFacts, &SetFacts)> = of_set
            .iter()
            .filter_map(|file| Some((*file, file.sets.get(index)?)))
            .filter(|(_, other)| other.start.set_guid == set.start.set_guid)
            .collect();
        let is_complete = media_set.is_complete()
            && same.len() == usize::from(media_set.family_count)
            && same.iter().all(|(_, set)| set.is_ended);
        let (base_guid, base_lsn) = base_of(config);
        let (major, minor, build) = config.server_version;
        inspected.push(InspectedSet {
            in_files: same.iter().map(|(file, _)| file.name.clone()).collect(),
            media_set_guid: guid,
            position: set.start.position,
            set_guid: set.start.set_guid,
            kind: set.kind(),
            is_complete,
            is_compressed: same.iter().any(|(file, _)| file.layout == Layout::Compressed),
            is_copy_only: set.attributes().is_copy(),
            has_backup_checksums: config.has_checksums(),
            name: set.start.name.clone(),
            description: set.start.description.clone(),
            user_name: set.start.user_name.clone(),
            server_version: format!("{major}.{minor}.{build}"),
            server: config.clone(),
            base_guid: if set.attributes().is_differential() { base_guid } else { Guid::default() },
            base_lsn: if set.attributes().is_differential() { base_lsn } else { SqlLsn::default() },
        });
    }
    inspected
}

/// The base that a differential's data files name.
fn base_of(config: &Configuration) -> (Guid, SqlLsn) {
    let of_file = |file: &&DatabaseFile| !file.is_log() && !file.base_guid.is_none();
    let file = config.files.iter().find(of_file);
    file.map_or((config.base_guid, config.database_backup_lsn), |file| (file.base_guid, file.base_lsn))
}
