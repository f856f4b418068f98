//! Which files belong together: families by media set and number, in any order.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::damage::{DamageList, Layer};
use crate::facts::FileFacts;
use crate::sql::Guid;

/// The files of one media set that were given.
#[derive(Clone, Debug, Serialize)]
pub struct MediaSet {
    /// The id in all its files.
    pub media_set_guid: Guid,
    /// Files it has.
    pub family_count: u16,
    /// The given files: number of the family, and path.
    pub families: Vec<Family>,
    /// Numbers of the families that were not given.
    pub missing_families: Vec<u16>,
}

/// A file of a media set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Family {
    /// Its number, from 1.
    pub family_number: u16,
    /// Its path.
    pub file: String,
}

impl MediaSet {
    /// Whether all its files were given.
    pub fn is_complete(&self) -> bool {
        self.missing_families.is_empty()
    }
}

/// Sorts files into media sets; what does not fit is noted as damage.
pub fn media_sets(files: &[FileFacts], damage: &mut DamageList) -> Vec<MediaSet> {
    let mut by_guid: BTreeMap<Guid, Vec<&FileFacts>> = BTreeMap::new();
    for file in files {
        match file.family {
            Some(family) => by_guid.entry(family.media_set_guid).or_default().push(file),
            None => damage.whole(&file.name, Layer::MediaSet, "it does not say of which media set it is".to_owned()),
        }
    }
    by_guid.into_iter().map(|(guid, files)| media_set(guid, files, damage)).collect()
}

fn media_set(media_set_guid: Guid, mut files: Vec<&FileFacts>, damage: &mut DamageList) -> MediaSet {
    files.sort_by_key(|file| file.family.map_or(0, |family| family.family_number));
    let family_count = files.iter().filter_map(|file| file.family).map(|family| family.family_count).max().unwrap_or(1);
    let mut families: Vec<Family> = Vec::new();
    for file in &files {
        let Some(family) = file.family else { continue };
        let is_twice = families.last().filter(|last| last.family_number == family.family_number);
        if let Some(first) = is_twice {
            let cause = format!("it is family {} of the media set, and so is {}", family.family_number, first.file);
            damage.whole(&file.name, Layer::MediaSet, cause);
        }
        if family.family_count != family_count {
            let cause = format!("it is of a media set of {} files, others say {family_count}", family.family_count);
            damage.whole(&file.name, Layer::MediaSet, cause);
        }
        families.push(Family { family_number: family.family_number, file: file.name.clone() });
    }
    let is_given = |number: &u16| families.iter().any(|family| family.family_number == *number);
    let missing_families: Vec<u16> = (1..=family_count).filter(|number| !is_given(number)).collect();
    if !missing_families.is_empty() {
        let numbers: Vec<String> = missing_families.iter().take(64).map(u16::to_string).collect();
        let cause = format!("family {} of {family_count} of media set {media_set_guid} is missing", numbers.join(", "));
        damage.whole(&families.first().map_or_else(String::new, |family| family.file.clone()), Layer::MediaSet, cause);
    }
    check_sets(&files, damage);
    MediaSet { media_set_guid, family_count, families, missing_families }
}

/// All files of a media set hold the same sets.
fn check_sets(files: &[&FileFacts], damage: &mut DamageList) {
    let Some((first, others)) = files.split_first() else { return };
    for other in others {
        if other.sets.len() != first.sets.len() {
            let cause = format!("it holds {} sets, but {} holds {}", other.sets.len(), first.name, first.sets.len());
            damage.whole(&other.name, Layer::MediaSet, cause);
        }
        for (number, (set, same)) in (1..).zip(other.sets.iter().zip(&first.sets)) {
            if set.start.set_guid != same.start.set_guid {
                let cause = format!("its set {number} is of another backup than set {number} of {}", first.name);
                damage.whole(&other.name, Layer::MediaSet, cause);
            }
        }
    }
}
