//! Reads every byte of backup files and checks every checksum that covers any of them.

mod extent;
pub(crate) mod set_check;

use std::collections::BTreeMap;

use pagehaul_engine::error::Result;
use serde::Serialize;

use crate::bytes::BakFile;
use crate::chain::is_base;
use crate::damage::{Damage, DamageList, Layer};
use crate::facts::{FileFacts, SetKind};
use crate::inspect::{InspectedSet, inspect_facts};
use crate::ledger::{PageCounts, PageLedger};
use crate::media::{MediaSet, media_sets};
use crate::source::{Layout, Progress};
use crate::sql::Guid;
use crate::walk::walk_all;
use set_check::VerifySink;

/// How to verify.
#[derive(Clone, Copy, Debug)]
pub struct VerifySettings {
    /// Threads that decode chunks and sum sectors.
    pub threads: u16,
}

/// What verifying came to.
#[derive(Clone, Debug, Serialize)]
pub struct VerifyReport {
    /// Whether nothing is wrong.
    pub sound: bool,
    /// The files, in the order given.
    pub files: Vec<FileReport>,
    /// The media sets that they are of.
    pub media_sets: Vec<MediaSet>,
    /// The backup sets in them.
    pub sets: Vec<SetReport>,
    /// Bytes of all files.
    pub read_bytes: u64,
    /// Checksums of WITH CHECKSUM sets that were compared.
    pub backup_checksum_count: u64,
    /// Everything that is wrong, also what is not listed.
    pub damage_count: u64,
    /// What is wrong, up to a bound.
    pub damage: Vec<Damage>,
}

/// One file.
#[derive(Clone, Debug, Serialize)]
pub struct FileReport {
    /// Its path.
    pub file: String,
    /// Its size.
    pub size_bytes: u64,
    /// Plain or compressed.
    pub layout: Layout,
    /// Bytes of the MTF stream in it.
    pub stream_bytes: u64,
}

/// One backup set over all files of its media set.
#[derive(Clone, Debug, Serialize)]
pub struct SetReport {
    /// Its id.
    pub set_guid: Guid,
    /// Its number in its files.
    pub position: u16,
    /// What it holds.
    pub kind: Option<SetKind>,
    /// The database.
    pub database: Option<String>,
    /// Whether it was made WITH CHECKSUM.
    pub has_backup_checksums: bool,
    /// Its pages.
    pub pages: PageCounts,
}

/// Which set: media set, and number in it.
pub(crate) type SetKey = (Guid, u16);

/// Checks `files`; `progress` hears of bytes that were read.
///
/// # Errors
/// `Damage` if one is no backup file at all, `Source` if one cannot be read. Damage inside is in the report.
pub fn verify(files: &[BakFile], settings: VerifySettings, progress: Progress<'_>) -> Result<VerifyReport> {
    let names: Vec<String> = files.iter().map(|file| file.name.clone()).collect();
    let mut ledgers = BTreeMap::new();
    let mut damage = DamageList::default();
    let (mut all_facts, mut reports) = (Vec::new(), Vec::new());
    let mut backup_checksum_count = 0;
    for (index, file) in files.iter().enumerate() {
        let mut sink = VerifySink::new(file, index, &mut ledgers)?;
        walk_all(file, settings.threads, progress, &mut sink)?;
        let outcome = sink.finish();
        backup_checksum_count += outcome.backup_checksum_count;
        let facts = outcome.facts;
        reports.push(FileReport {
            file: facts.name.clone(),
            size_bytes: facts.size_bytes,
            layout: facts.layout,
            stream_bytes: outcome.stream_bytes,
        });
        facts.damage.listed.iter().cloned().for_each(|found| damage.add(found));
        damage.count += facts.damage.count - facts.damage.listed.len() as u64;
        all_facts.push(facts);
    }
    let media_sets = media_sets(&all_facts, &mut damage);
    build_on_bases(&all_facts, &mut ledgers);
    let sets = set_reports(&all_facts, &media_sets, &mut ledgers, &names, &mut damage);
    Ok(VerifyReport {
        sound: damage.count == 0,
        read_bytes: reports.iter().map(|report| report.size_bytes).sum(),
        files: reports,
        media_sets,
        sets,
        backup_checksum_count,
        damage_count: damage.count,
        damage: damage.listed,
    })
}

/// Lets the base of each differential set say which pages are in use, where the base is there.
fn build_on_bases(files: &[FileFacts], ledgers: &mut BTreeMap<SetKey, PageLedger>) {
    let sets = inspect_facts(files).sets;
    let key = |set: &InspectedSet| (set.media_set_guid, set.position);
    // Of one with missing families it is not known what else has changed.
    for differential in sets.iter().filter(|set| set.kind == SetKind::Differential && set.is_complete) {
        let base = sets.iter().find(|set| set.kind == SetKind::Full && is_base(set, differential));
        // Taken out, so that the other one can be asked.
        if let Some(base) = base
            && let Some(mut ledger) = ledgers.remove(&key(differential))
        {
            if let Some(base) = ledgers.get(&key(base)) {
                ledger.build_on(base);
            }
            ledgers.insert(key(differential), ledger);
        }
    }
}

fn set_reports(
    files: &[FileFacts],
    media_sets: &[MediaSet],
    ledgers: &mut BTreeMap<SetKey, PageLedger>,
    names: &[String],
    damage: &mut DamageList,
) -> Vec<SetReport> {
    let mut reports = Vec::new();
    for media_set in media_sets {
        let guid = media_set.media_set_guid;
        let of_set = |file: &&FileFacts| file.family.is_some_and(|family| family.media_set_guid == guid);
        let first = files.iter().filter(of_set).max_by_key(|file| file.sets.len());
        for set in first.map_or(&[][..], |file| &file.sets) {
            let position = set.start.position;
            let mut ledger = ledgers.remove(&(guid, position)).unwrap_or_default();
            ledger.finish(names, position, damage);
            let config = set.configuration();
            if let Some(config) = config.filter(|_| set.kind() == SetKind::Full && media_set.is_complete()) {
                let name = files.iter().find(of_set).map_or("", |file| file.name.as_str());
                missing_extents(config, &ledger, name, damage);
            }
            reports.push(SetReport {
                set_guid: set.start.set_guid,
                position,
                kind: config.map(|_| set.kind()),
                database: config.map(|config| config.database_name.clone()),
                has_backup_checksums: config.is_some_and(crate::sql::Configuration::has_checksums),
                pages: ledger.counts,
            });
        }
    }
    // Pages of sets whose first block was damaged.
    for ((_, position), ledger) in ledgers {
        ledger.finish(names, *position, damage);
    }
    reports
}

/// A full set holds as many bytes of each file as it says.
pub(crate) fn missing_extents(
    config: &crate::sql::Configuration,
    ledger: &PageLedger,
    name: &str,
    damage: &mut DamageList,
) {
    for file in config.files.iter().filter(|file| !file.is_log()) {
        let Ok(file_id) = u16::try_from(file.file_id) else { continue };
        let found = ledger.found_bytes(file_id);
        if found < file.backup_size_bytes {
            let cause = format!(
                "the set says that it has {} bytes of database file {} ({}), {found} are there",
                file.backup_size_bytes, file.file_id, file.logical_name
            );
            damage.whole(name, Layer::Structure, cause);
        }
    }
}
